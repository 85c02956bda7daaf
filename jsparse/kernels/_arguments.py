"""Checks and conversions of a kernel's hyper-parameters and points.

Shapes are always known and always checked. Values are checked at construction, and only when they
are concrete: a kernel may be built inside `jit`, `grad` and `vmap`.
"""

import operator
from typing import SupportsIndex

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._numerics import as_array, as_float, is_concrete
from .._runtime import starting


def hyperparameter(value: ArrayLike) -> Float[Array, "..."]:
    """Return `value` as a JAX array of floats; integers and Python numbers get the default dtype.

    The dtype is not weak: a weakly typed leaf would recompile all programs when a tuned value
    replaces it.

    Raises:
        ValueError: unless `value` is a real number or a nonempty array of real numbers.
    """
    starting()
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = np.asarray(value, float)  # a Python number would run a program
    try:
        array = as_array(value)
    except TypeError:
        array = jnp.zeros(0)
    real = jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)
    if array.size == 0 or not real:
        raise ValueError(
            f"kernel: expected one or several real numbers as hyper-parameter, got {value!r}"
        )
    array = as_float(array)
    return jnp.asarray(array, dtype=array.dtype)


def check_scalar(name: str, value: Array) -> None:
    """Raise ValueError unless `value` has shape `()`."""
    if value.ndim != 0:
        raise ValueError(f"{name}: expected a scalar, got shape {value.shape}")


def check_positive(name: str, value: Array) -> None:
    """Raise ValueError if any entry of a concrete `value` is not positive and finite."""
    if is_concrete(value):
        values = np.asarray(value)
        if not np.all(np.isfinite(values) & (values > 0)):
            raise ValueError(f"{name}: expected positive and finite, got {values}")


def check_not_negative(name: str, value: Array) -> None:
    """Raise ValueError if any entry of a concrete `value` is negative or not finite."""
    if is_concrete(value):
        values = np.asarray(value)
        if not np.all(np.isfinite(values) & (values >= 0)):
            raise ValueError(f"{name}: expected finite and at least 0, got {values}")


def degree_of(value: SupportsIndex) -> int:
    """Return a degree as a Python int; raise ValueError unless it is an integer of at least 1."""
    try:
        degree = operator.index(value)
    except TypeError:  # a float or a traced number, whose power cannot be unrolled
        degree = 0
    if degree < 1 or isinstance(value, bool):
        raise ValueError(f"degree: expected a whole number of at least 1, got {value!r}")
    return degree


def two_points(x: Array, z: Array) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Return two points as floats; raise ValueError unless both have one shape `d`."""
    x, z = as_float(x), as_float(z)
    if x.ndim != 1 or z.shape != x.shape:
        raise ValueError(
            f"expected two points of one shape (d,), got {x.shape} and {z.shape}; for two tables "
            "call cross_gram"
        )
    return x, z


def one_table(X: Array) -> Float[Array, "n d"]:
    """Return `X` as floats; raise ValueError unless it is a table with one point in each row."""
    X = as_float(X)
    if X.ndim != 2:
        raise ValueError(f"X: expected shape (n, d), one point in each row; got {X.shape}")
    return X


def two_tables(X: Array, Z: Array) -> tuple[Float[Array, "n d"], Float[Array, "m d"]]:
    """Return two tables as floats; raise ValueError unless they have equal numbers of columns."""
    X, Z = as_float(X), as_float(Z)
    if X.ndim != 2 or Z.ndim != 2 or X.shape[1] != Z.shape[1]:
        raise ValueError(
            f"expected X of shape (n, d) and Z of shape (m, d) with one d, got X {X.shape} and "
            f"Z {Z.shape}"
        )
    return X, Z
