"""Incremental learning: update a machine with later rows by adding to its sums."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from .._arguments import check_finite, finite_table
from .._blocks import padded, rows_in_block
from .._numerics import as_array
from ..machines.from_sums import FromSums, accumulate_rows
from ..machines.held_out import Sums as RowSums
from ..machines.rows import Rows
from ..model import Model
from .trained import Sums


def with_more_rows(
    method: FromSums,
    model: Model,
    sums: Sums,
    C: float | Float[np.ndarray, " l"],
    X: Float[np.ndarray, "n d"],
    targets: Float[np.ndarray, " n *c"] | Int[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"] | None,
) -> tuple[Model, Sums, int]:
    """Return the model fitted to the old and the new rows, its sums, and its stop code.

    Kernel, `C`, points, standardisation, the calibration of probabilities and the held-out errors
    do not change. The machines of the folds are dropped, as they are not fitted to the new rows.

    Args:
        method: the method that the sums were made for.
        model: the model to update.
        sums: the model's sums over the old rows.
        C: the model's weight of the data-fit term, or one for each binary problem.
        X: new raw inputs.
        targets: new targets: real numbers, or -1 and +1, or class numbers if the model has a code.
        weights: new row weights, multiplied by the factors of the classes; None for 1.

    Raises:
        ValueError: for inputs or targets that are not finite in the precision of the model.
    """
    phi, equations, units = sums
    scaling, dtype, code = model.expansion.scaling, model.dtype, model.code
    assert scaling is not None
    w = np.ones(len(X)) if weights is None else weights
    X, targets, w = X[w > 0], targets[w > 0], w[w > 0]
    # Pad with rows of weight 0, so that batches of many sizes compile only a few programs.
    n, block = len(X), rows_in_block(None)
    rows = min(1 << (n - 1).bit_length(), -(-n // block) * block)
    w, targets = padded(w, rows, "constant"), padded(targets, rows, "constant")
    with np.errstate(over="ignore"), jax.enable_x64(dtype == np.float64):
        Z = scaling.apply(finite_table(padded(X.astype(dtype), rows)))
        if code is None:
            y = as_array(units.apply(targets, w), dtype)
            check_finite("y", y)
        else:
            code, y = code.astype(dtype), as_array(targets)
        equations += accumulate_rows(phi, Rows(Z, y, as_array(w, dtype), code))
        family = method.solve(RowSums(phi, equations), jnp.asarray(C, dtype), code)
        expansion = dataclasses.replace(units.expansion(family.expansion), scaling=scaling)
    conformal = model.conformal
    if conformal is not None:
        conformal = dataclasses.replace(conformal, machines=None, fold=None)
    model = dataclasses.replace(model, expansion=expansion, conformal=conformal)
    return model, Sums(phi, equations, units), int(family.status)
