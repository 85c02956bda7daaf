"""Checks of arguments that all selections of prototypes take."""

from jaxtyping import Array, Float

from .._arguments import check_finite, whole_number


def check_table(X: Float[Array, "n d"], name: str = "X") -> Float[Array, "n d"]:
    """Return `X`; raise ValueError if it has no rows or, if it is concrete, is not finite."""
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"{name}: expected shape (n, d) with at least one row, got {X.shape}")
    check_finite(name, X)
    return X


def check_count(m: int, n: int) -> int:
    """Return `m` as an int; raise ValueError unless it is between 1 and `n`."""
    return whole_number("n_prototypes", m, 1, n, "the number of rows")
