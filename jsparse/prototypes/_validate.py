"""Checks of arguments that all selections of prototypes take."""

import numpy as np
from jaxtyping import Array, Float

from .._arguments import whole_number
from .._numerics import is_concrete


def check_table(X: Float[Array, "n d"], name: str = "X") -> Float[Array, "n d"]:
    """Return `X`; raise ValueError if it has no rows or, if it is concrete, is not finite."""
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"{name}: expected shape (n, d) with at least one row, got {X.shape}")
    if not is_concrete(X):
        return X
    values = np.asarray(X)  # NumPy, because a concrete X may be used inside a caller's jit
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(
            f"{name}: expected finite values, got {values[row, column]} in row {row}, "
            f"column {column}"
        )
    return X


def check_count(m: int, n: int) -> int:
    """Return `m` as an int; raise ValueError unless it is between 1 and `n`."""
    return whole_number("n_prototypes", m, 1, n, "the number of rows")
