"""What is asked of the inputs of this room."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import is_concrete


def check_table(X: Float[Array, "n d"], name: str = "X") -> Float[Array, "n d"]:
    """`X`, if it has rows and, where its values can be looked at, they are finite."""
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"{name}: expected shape (n, d) with at least one row, got {X.shape}")
    if is_concrete(X) and not bool(jnp.all(jnp.isfinite(X))):
        row, column = np.argwhere(~np.isfinite(np.asarray(X)))[0]
        raise ValueError(
            f"{name}: expected finite values, got {float(X[row, column])} in row {row}, column {column}"
        )
    return X


def check_count(m: int, n: int) -> None:
    """That m different prototypes can be taken from n rows."""
    if not 1 <= m <= n:
        raise ValueError(f"m: expected between 1 and the number of rows ({n}), got {m}")
