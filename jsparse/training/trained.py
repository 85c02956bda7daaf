"""A tuned model and how it came about."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._status import COMPLETED, CONVERGED, EXHAUSTED, NumericalError
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..machines import dual, fixed_size, robust
from ..multiclass import Code, Decoding, decode
from ..normal_equations import NormalEquations
from ..search.sizes import SizeChoice
from ..search.tune import Tuning
from ..validation.cross_validation import Metric
from ..validation.folds import Folds
from .inputs import finite_table
from .target_units import TargetUnits

Fit = fixed_size.FixedSizeFit | robust.RobustFit | dual.DualFit


class Sums(NamedTuple):
    """What the fit was solved from; rows are added by `machines.fixed_size.solve`."""

    feature_map: FeatureMap  # of standardised inputs
    equations: NormalEquations
    units: TargetUnits = TargetUnits()  # of the targets that were summed


class Trained(NamedTuple):
    """A tuned model and how it came about."""

    expansion: KernelExpansion  # takes raw inputs: the standardisation is part of it
    classes: np.ndarray | None  # sorted labels; of two, f >= 0 decides for the second
    code: Code | None  # of more than two classes
    decoding: Decoding
    kernel: Kernel
    C: float | np.ndarray  # shape `l` if every problem has its own
    target_unit: float  # with the loss "absolute", `C` weighs residuals divided by it
    cv_error: float
    metric: Metric
    tuning: Tuning
    fit: Fit
    sums: Sums | None  # None in the dual and for other losses than the square
    prototype_rows: np.ndarray  # rows of X, shape `m`
    folds: Folds
    out_of_fold: np.ndarray | None  # values of each row by a machine that has not seen it, `n *l`
    n_rows: int  # it was trained on
    seconds: dict[str, float]  # wall time by phase; "compile" is contained in the others
    sizes: SizeChoice | None = None  # if `n_prototypes` was chosen among several
    selection_status: int = CONVERGED  # how the choice of prototypes ended

    @property
    def statuses(self) -> dict[str, int]:
        """Stop codes of the fit and of what it rests on, see `check`."""
        return stop_codes(int(self.fit.status), self.selection_status, self.tuning.status)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Class labels, or values of the regression, at raw inputs of shape `n d`.

        Raises:
            ValueError: if `X` is not finite.
            NumericalError: if a value of the model is not finite, which is no decision.
        """
        values = self.expansion(finite_table(X))
        return decide(values, self.classes, self.code, self.decoding)


def stop_codes(fit: int, selection: int, validation: int) -> dict[str, int]:
    """Of a fit and of what it rests on.

    Of cross-validation it is told if steps ran out; whether the precision was enough is told of the
    fit.
    """
    told = EXHAUSTED if validation == EXHAUSTED else COMPLETED
    return {"fit": fit, "choice of prototypes": selection, "cross-validation": told}


def decide(
    values: Float[Array, "n *l"],
    classes: np.ndarray | None,
    code: Code | None = None,
    decoding: Decoding = "loss",
    *,
    first: int = 0,
) -> np.ndarray:
    """Class labels for the values of a classifier; the values themselves without classes.

    Raises:
        NumericalError: if a value is not finite, or too large to be compared with a code, with its
            row, of which the first has number `first`.
    """
    found = np.asarray(values)
    usable = np.isfinite(found).all(axis=tuple(range(1, found.ndim)))
    if code is None:
        number = (found >= 0).astype(int)
    else:
        number = np.asarray(decode(jnp.asarray(code.matrix, values.dtype), values, decoding))
        usable &= number >= 0
    if not usable.all():
        row = int(np.argmin(usable)) + first
        raise NumericalError(
            f"the model's value at row {row} is not finite, or too large; the inputs are huge?"
        )
    return found if classes is None else classes[number]
