"""A kernel under which some points are absent, so that machines of several sizes share programs."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._types import Scalar
from .base import Kernel

ABSENT = float("nan")  # the coordinates of an absent point


class WithAbsent(Kernel):
    """`k(x, z) = kernel(x, z)`, or 0 if `x` or `z` is absent: its first coordinate is NaN.

    An absent prototype has no feature, so a machine with absent prototypes equals the machine of
    the other prototypes.
    """

    kernel: Kernel

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """Return `kernel(x, z)`, or 0 if a point is absent."""
        return self.cross_gram(x[None], z[None])[0, 0]

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """Return the Gram matrix, with rows and columns of 0 for absent points."""
        present_X, X = _present(X)
        return jnp.where(present_X[:, None] & present_X[None], self.kernel.gram(X), 0)

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Return the cross-Gram matrix, with rows and columns of 0 for absent points."""
        (present_X, X), (present_Z, Z) = _present(X), _present(Z)
        return jnp.where(present_X[:, None] & present_Z[None], self.kernel.cross_gram(X, Z), 0)

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return the diagonal of the Gram matrix, with 0 for absent points."""
        present_X, X = _present(X)
        return jnp.where(present_X, self.kernel.diagonal(X), 0)


def _present(X: Float[Array, "n d"]) -> tuple[Bool[Array, " n"], Float[Array, "n d"]]:
    """Return which points are present, and the points with the first one in place of absent ones.

    The first point must be present, if any is.
    """
    present = ~jnp.isnan(X[:, 0])
    return present, jnp.where(present[:, None], X, X[:1])
