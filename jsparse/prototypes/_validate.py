"""Checks of arguments that all selections of prototypes take."""

from jaxtyping import Array, ArrayLike, Float

from .._arguments import check_finite, whole_number
from .._numerics import as_float


def check_table(X: ArrayLike) -> Float[Array, "n d"]:
    """Return `X` in floats; raise ValueError without rows or, if it is concrete, if not finite."""
    X = as_float(X)
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"X: expected shape (n, d) with at least one row, got {X.shape}")
    check_finite("X", X)
    return X


def check_count(m: int, n: int) -> int:
    """Return `m` as an int; raise ValueError unless it is between 1 and `n`."""
    return whole_number("n_prototypes", m, 1, n, "the number of rows")
