"""Incremental learning: update a machine with later rows by adding to its sums."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from .._arguments import check_finite, finite_table
from .._blocks import padded, rows_in_block
from .._numerics import as_array
from ..features import FeatureMap
from ..machines.from_sums import FromSums, accumulate_rows
from ..machines.held_out import Sums as RowSums
from ..machines.rows import Rows
from ..model import Model
from ..normal_equations import NormalEquations
from .forgetting import Forgetting, HostRows, new_window, scaled
from .target_units import TargetUnits
from .trained import Sums

Targets = Float[np.ndarray, " n *c"] | Int[np.ndarray, " n"]
KEEP = Forgetting()  # forgets nothing


def with_more_rows(
    method: FromSums,
    model: Model,
    sums: Sums,
    C: float | Float[np.ndarray, " l"],
    X: Float[np.ndarray, "n d"],
    targets: Targets,
    weights: Float[np.ndarray, " n"] | None,
    forgetting: Forgetting = KEEP,
) -> tuple[Model, Sums, int]:
    """Return the model fitted to the old and the new rows, its sums, and its stop code.

    Kernel, `C`, prototypes, standardisation, the calibration of probabilities and the held-out
    errors do not change. The machines of the folds are dropped, as they are not fitted to the new
    rows.

    `method`, `model`, `sums` and `C` belong to the old rows. `X` are raw inputs of the new rows.
    Their targets are real numbers, -1 and +1, or class numbers if the model has a code. Their
    weights include the class weights; None for 1. `forgetting` reduces the weights of old rows.

    Raises:
        ValueError: for inputs or targets that are not finite in the precision of the model, or a
            window other than the window of the sums.
    """
    phi, equations, units, window = sums
    size = None if window is None else window.size
    if forgetting.window != size:
        raise ValueError(
            f"window: expected {size}, as in the first call, got {forgetting.window}; only sums "
            "with a window from the first call on have the rows that leave it"
        )
    w = np.ones(len(X)) if weights is None else weights
    n, w = int(np.count_nonzero(w > 0)), forgetting.row_weights(w)
    dtype, code = model.dtype, model.code
    with jax.enable_x64(dtype == np.float64):
        rows = _host_rows(model, units, X, targets, w)
        if window is not None:
            window, equations = window.moved(equations, rows, lambda r: _sums_of(phi, model, r))
        else:
            factor = forgetting.factor_of_earlier(n)
            if factor < 1:
                equations = scaled(equations, np.asarray(factor, dtype))
            equations += _sums_of(phi, model, rows)
        code = None if code is None else code.astype(dtype)
        family = method.solve(RowSums(phi, equations), jnp.asarray(C, dtype), code)
        expansion = units.expansion(family.expansion)
        expansion = dataclasses.replace(expansion, scaling=model.expansion.scaling)
    conformal = model.conformal
    if conformal is not None:
        conformal = dataclasses.replace(conformal, machines=None, fold=None)
    model = dataclasses.replace(model, expansion=expansion, conformal=conformal)
    return model, Sums(phi, equations, units, window), int(family.status)


def with_window(
    model: Model,
    sums: Sums,
    X: Float[np.ndarray, "n d"],
    targets: Targets,
    weights: Float[np.ndarray, " n"],
    size: int,
) -> Sums:
    """Return the model's sums with a window of at most `size` rows.

    Arguments are as for `with_more_rows`, but for the rows that the model was fitted to. The window
    holds their rows of positive weight, of which there must be at most `size`.
    """
    with jax.enable_x64(model.dtype == np.float64):
        rows = _host_rows(model, sums.units, X, targets, weights)
        return sums._replace(window=new_window(rows, size, sums.equations))


def _capacity(n: int) -> int:
    """Return the number of rows to pad a batch to, so that few shapes are compiled.

    It is the next power of 2, or the next multiple of a block of rows if this is smaller.
    """
    block = rows_in_block(None)
    return min(1 << (n - 1).bit_length(), -(-n // block) * block)


def _host_rows(
    model: Model, units: TargetUnits, X: np.ndarray, targets: Targets, w: np.ndarray
) -> HostRows:
    """Return the rows of positive weight, with inputs and targets in the machine's units.

    If they are not finite in the precision of the model, raise a `ValueError`.
    """
    dtype, scaling = model.dtype, model.expansion.scaling
    assert scaling is not None
    X, targets, w = X[w > 0], targets[w > 0], w[w > 0]
    n = len(X)
    with np.errstate(over="ignore"):
        inputs = finite_table(padded(X.astype(dtype), _capacity(n)))
        if model.code is None:
            targets = units.apply(targets, w).astype(dtype)
            check_finite("y", targets)
    return HostRows(np.asarray(scaling.apply(inputs))[:n], targets, w.astype(dtype))


def _sums_of(phi: FeatureMap, model: Model, rows: HostRows) -> NormalEquations:
    """Return the normal equations of the features `phi`, summed over the rows.

    To save compilations, the rows are padded to `_capacity` with rows of weight 0.
    """
    n = _capacity(len(rows.weights))
    w = padded(rows.weights, n, "constant")
    X, y, w = (as_array(a) for a in (padded(rows.X, n), padded(rows.y, n), w))
    code = None if model.code is None else model.code.astype(model.dtype)
    return accumulate_rows(phi, Rows(X, y, w, code))
