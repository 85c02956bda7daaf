"""Rows that come later: a machine of all rows so far, from sums."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from .._arguments import check_finite, finite_table
from .._blocks import rows_in_block
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
    targets: Float[np.ndarray, "n *c"] | Int[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"] | None,
) -> tuple[Model, Sums, int]:
    """The machine that a fit to all rows so far gives, its sums, and its stop code.

    Kernel, `C`, points and standardisation stay; so do the calibration of the probabilities and the
    errors on unseen rows. The machines of the folds are dropped, as they lack the new rows.

    Args:
        method: of one size.
        model: of the rows so far.
        sums: `Trained.sums` of them.
        C: weight of the data-fit term.
        X: raw inputs of further rows, shape `n d`.
        targets: real targets; -1 and +1; or class numbers if the model has a code.
        weights: row weights, those of the classes included.

    Raises:
        ValueError: for inputs or targets that are not finite in the precision of the model.
    """
    phi, equations, units = sums
    scaling, dtype, code = model.expansion.scaling, model.dtype, model.code
    assert scaling is not None
    if weights is not None:
        there = weights > 0
        X, targets, weights = X[there], targets[there], weights[there]
    # Weightless rows up to a round number: batches of many sizes compile a few times only.
    n, block = len(X), rows_in_block(None)
    padding = (0, min(1 << (n - 1).bit_length(), -(-n // block) * block) - n)
    w = np.pad(np.ones(n) if weights is None else weights, padding)
    targets = np.pad(targets, [padding, *[(0, 0)] * (np.ndim(targets) - 1)])
    with np.errstate(over="ignore"), jax.enable_x64(dtype == np.float64):
        Z = scaling.apply(finite_table(np.pad(X.astype(dtype), [padding, (0, 0)], "edge")))
        if code is None:
            y = as_array(units.apply(targets, w), dtype)
            check_finite("y", y)
        else:
            code, y = code.astype(dtype), as_array(targets)
        equations += accumulate_rows(phi, Rows(Z, y, as_array(w, dtype), code))
        family = method.solve(RowSums(phi, equations), jnp.asarray(C, dtype), code)
        expansion = dataclasses.replace(units.expansion(family.expansion), scaling=scaling)
    unseen = model.unseen
    if unseen is not None:
        unseen = dataclasses.replace(unseen, machines=None, fold=None)
    found = dataclasses.replace(model, expansion=expansion, unseen=unseen)
    return found, Sums(phi, equations, units), int(family.status)
