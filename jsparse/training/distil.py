"""A machine of few prototypes out of one of many."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import ArrayLike

from .._types import KeyLike
from ..data.frames import Frame, as_frame
from ..data.schema import Schema
from ..kernels import Mixture
from ..machines.method import Method
from ..machines.scdp import SCDP
from ..model import Model
from ..search.strategies import Profile
from .inputs import counting_rows
from .train import train
from .trained import Trained


def distil(
    trained: Trained | Model,
    X: Any,
    y: Any = None,
    *,
    key: KeyLike,
    method: Method = SCDP(),
    C: ArrayLike | None = None,
    **options: Any,
) -> Trained:
    """Train a machine of few of the prototypes of a large one, in its kernel.

    A kernel is best searched with few prototypes and fitted with many; where few are wanted all the
    same, a pursuit selects them out of the many, or a reduction leaves out the others. Nothing of
    the kernel is searched. The curve of what comes out says what each prototype is worth, and its
    `at(size)` gives the machine of every size.

    Args:
        trained: what `train` gave, or a model that was saved.
        X: the rows, as for `train`.
        y: their targets.
        key: decides folds and what the method draws.
        method: one that selects out of candidates, `SCDP`, `SpSVM`, `KSP`, `KMP` or `KBP`, which
            are then the large machine's prototypes; or `SparseReduction`, of as many prototypes as
            that has, chosen again.
        C: values of the weight of the data-fit term; by default that of the large machine, if the
            method has a `C`.
        **options: see `train`; `task` by default as the model's.

    Arrays and tables are taken in float64, whatever the rows and the large machine are in: what
    tells the last of some hundred prototypes from each other is beyond the digits of float32. The
    model that comes out is in float64 too, and small. Lengthscales are in units of the spread of
    the rows given: with others than the large machine's the kernel is another. Columns of a table
    may come in another order. Several classes become problems as `multiclass` says, not as they
    did.

    Raises:
        ValueError: for a method that is neither, a machine of several kernels, a table whose
            columns are not those of the large machine's, options that are decided here, and as
            `train`.
    """
    model = trained.model if isinstance(trained, Trained) else trained
    if not isinstance(model, Model):
        raise ValueError(f"trained: expected what train gave, or a Model, got {trained!r}")
    if not isinstance(method, Method):
        raise ValueError(f"method: expected a method, such as SCDP(..), got {method!r}")
    if decided := sorted({"kernel", "search"} & set(options)):
        raise ValueError(f"{decided[0]}: expected none, as that of the large machine is taken")
    kernel = model.expansion.kernel
    if isinstance(kernel, Mixture):
        raise ValueError(
            f"trained: expected a machine of one kernel, got one of {len(kernel.kernels)}"
        )
    tuned = model.about.get("C")
    if C is None and method.has_C and tuned is not None:
        C = np.unique(tuned)
    task = "regression" if model.classes is None else "classification"
    frame = as_frame(X)
    if frame is not None and model.columns is not None:
        X = _in_order(frame, y, options.get("weights"), model.columns)
    kernel, Z, scaling = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64) if eqx.is_inexact_array(leaf) else leaf,
        (kernel, model.expansion.prototypes, model.expansion.scaling),
    )
    if scaling is not None:
        Z = Z * scaling.scale + scaling.shift
    with jax.enable_x64(True):
        return train(
            X.astype(np.float64) if isinstance(X, np.ndarray | jax.Array) else X,
            y,
            key=key,
            method=method.for_distillation(Z),
            kernel=kernel,
            C=C,
            search=Profile(tune_kernel=False),
            **{"task": task, **options},
        )


def _in_order(frame: Frame, y: Any, weights: ArrayLike | None, columns: Schema) -> Frame:
    """Return the table with the columns in their order; raise if it has others."""
    frame = frame.ordered([column.name for column in columns.columns])
    rows = None if weights is None else counting_rows(weights, frame.n_rows).index
    schema = frame.arrays(y, columns.task, rows)[2]
    given, expected = ([c._replace(fill=None) for c in s.columns] for s in (schema, columns))
    if given != expected:
        raise ValueError(
            f"X: expected the columns of the large machine, {', '.join(columns.features)}, got "
            f"{', '.join(schema.features)}"
        )
    return frame
