"""Checks of arguments that all selections of prototypes take."""

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._arguments import check_finite, numbers, whole_number
from .._numerics import as_float, is_concrete


def check_table(X: ArrayLike) -> Float[Array, "n d"]:
    """Return `X` as floats; raise ValueError unless it is finite, of shape `n d` with n > 0."""
    X = as_float(X)
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"X: expected shape (n, d) with at least one row, got {X.shape}")
    check_finite("X", X)
    return X


def check_count(m: int, n: int) -> int:
    """Return `m` as an int; raise ValueError unless it is between 1 and `n`."""
    return whole_number("n_prototypes", m, 1, n, "the number of rows")


def positive_weights(weights: ArrayLike, n: int) -> Float[np.ndarray, " n"]:
    """Return `weights` in NumPy; raise ValueError unless all are finite and >= 0, and one > 0."""
    if not is_concrete(weights):
        raise ValueError("weights: expected an array of values, got a traced one")
    w = numbers("weights", weights)
    if w.shape != (n,) or not np.all((w >= 0) & np.isfinite(w)) or not w.any():
        raise ValueError(f"weights: expected {n} finite weights >= 0, some above 0")
    return w


def check_weighted(
    m: int, X: Float[Array, "n d"], weights: Array | None
) -> tuple[int, Float[Array, " n"] | None]:
    """Return `m` and the weights in the dtype of `X`; check m against the rows with weight.

    If the weights are traced, m is checked against the number of all rows.
    """
    n = len(X)
    if weights is None:
        return check_count(m, n), None
    if weights.shape != (n,):
        raise ValueError(f"weights: expected shape ({n},), got {weights.shape}")
    if is_concrete(weights):
        n = int(np.count_nonzero(positive_weights(weights, n)))
    return check_count(m, n), weights.astype(X.dtype)
