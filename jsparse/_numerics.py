"""The one home of precision policy: products, thresholds, jitter, dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ._types import Scalar


def dot(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """Matrix product at the highest precision.

    The default on accelerators (TF32, bfloat16) has about three digits, which is enough to
    make a Gram matrix indefinite.
    """
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def epsilon(dtype: jnp.dtype) -> float:
    """Relative spacing of `dtype`, as a Python float (never promotes an array)."""
    return float(jnp.finfo(dtype).eps)


def rank_cutoff(largest: Float[Array, "*b"], size: int) -> Float[Array, "*b"]:
    """Eigenvalue below which a computed spectrum of a `size x size` Gram matrix is rounding noise.

    A kernel entry carries a relative error of a few eps, so the matrix carries an error of
    spectral norm about sqrt(size) eps |K|_max <= sqrt(size) eps lambda_1 for independent
    roundings; eigh adds a few eps lambda_1 more. Four times that keeps noise out and loses
    less than the customary size * eps * lambda_1 (numpy.linalg.matrix_rank).
    """
    return 4.0 * float(np.sqrt(size)) * epsilon(largest.dtype) * jnp.maximum(largest, 0)


def as_float(x: ArrayLike) -> Array:
    """`x` as a JAX array of floating dtype; integers and booleans take the default float."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def like(value: ArrayLike, x: Array) -> Scalar:
    """`value` (a Python or array scalar) in the dtype of `x`, so that nothing is promoted."""
    return jnp.asarray(value, dtype=x.dtype)


def is_concrete(x: object) -> bool:
    """Whether the values of `x` can be looked at now (not while tracing)."""
    return not isinstance(x, jax.core.Tracer)
