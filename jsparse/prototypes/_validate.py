"""Checks of arguments that all selections of prototypes take."""

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._arguments import whole_number
from .._numerics import as_float, is_concrete


def check_table(X: ArrayLike) -> Float[Array, "n d"]:
    """Return `X` in floats; raise ValueError without rows or, if it is concrete, if not finite."""
    X = as_float(X)
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"X: expected shape (n, d) with at least one row, got {X.shape}")
    if not is_concrete(X):
        return X
    values = np.asarray(X)  # NumPy, because a concrete X may be used inside a caller's jit
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(
            f"X: expected finite values, got {values[row, column]} in row {row}, column {column}"
        )
    return X


def check_count(m: int, n: int) -> int:
    """Return `m` as an int; raise ValueError unless it is between 1 and `n`."""
    return whole_number("n_prototypes", m, 1, n, "the number of rows")
