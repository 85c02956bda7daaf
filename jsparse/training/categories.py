"""Columns of codes of categories, which a kernel compares and nothing may scale."""

import jax
import numpy as np
from jaxtyping import Float

from ..scaling import Standardization


def check_codes(X: Float[np.ndarray, "n d"], codes: tuple[int, ...]) -> None:
    """Raise unless these columns are there and hold whole numbers."""
    if not codes:
        return
    if codes[-1] >= X.shape[1]:
        raise ValueError(
            f"kernel: expected columns of categories among the {X.shape[1]} of X, got {codes}"
        )
    values = np.asarray(X)[:, codes]
    odd = np.any(values != np.round(values), axis=0)
    if odd.any():
        column = codes[int(np.argmax(odd))]
        raise ValueError(f"X: expected codes of categories in column {column}, got other numbers")


def unscaled(scaling: Standardization, codes: tuple[int, ...]) -> Standardization:
    """The same scaling, which leaves these columns as they are."""
    shift, scale = (np.array(a) for a in scaling)
    shift[list(codes)], scale[list(codes)] = 0, 1
    return Standardization(*(jax.device_put(a) for a in (shift, scale)))


def indicators(X: Float[np.ndarray, "n d"], codes: tuple[int, ...]) -> Float[np.ndarray, "n p"]:
    """Rows whose categories have a column each."""
    rest = np.delete(X, codes, axis=1)
    each = [(X[:, c, None] == np.unique(X[:, c])).astype(X.dtype) for c in codes]
    return np.concatenate([rest, *each], axis=1)
