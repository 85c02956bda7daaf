"""A kernel of linearly mapped points: a full or low-rank metric."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import dot, is_concrete
from .._types import Scalar
from ._arguments import hyperparameter, one_table, two_points, two_tables
from .base import Kernel, check_kernel
from .stationary import Stationary


class Projected(Kernel):
    """A kernel of projected points, `kernel(P x, P z)`.

    With `RBF(1.0)` it is `exp(-(x - z)' P'P (x - z) / 2)`. The points have the Mahalanobis metric
    `P'P`, whose rank is at most the number of rows of `P`. `Gradient(rank=..)` tunes `P`; other
    searches leave it unchanged.

    Attributes:
        kernel: a kernel of points of `r` dimensions.
        matrix: `P`, shape `r d`.

    Raises:
        ValueError: if `kernel` is not a kernel, or if the matrix has the wrong shape or (outside
            `jit`) a value that is not finite. At evaluation, if the points do not have `d` columns.
    """

    kernel: Kernel
    matrix: Float[Array, "r d"] = eqx.field(converter=hyperparameter)

    def __check_init__(self) -> None:
        check_kernel("kernel", self.kernel)
        if self.matrix.ndim != 2:
            raise ValueError(f"matrix: expected shape (r, d), got {self.matrix.shape}")
        if is_concrete(self.matrix) and not np.all(np.isfinite(np.asarray(self.matrix))):
            raise ValueError("matrix: expected finite numbers, got NaN or infinity")

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """Return `kernel(P x, P z)`."""
        x, z = two_points(x, z)
        centre = self._centre(z[None])
        return self.kernel(*(self._mapped(a[None], centre)[0] for a in (x, z)))

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """Return the Gram matrix of the mapped points."""
        X = one_table(X)
        return self.kernel.gram(self._mapped(X, self._centre(X)))

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Return the cross-Gram matrix of the mapped points."""
        X, Z = two_tables(X, Z)
        centre = self._centre(Z)
        return self.kernel.cross_gram(self._mapped(X, centre), self._mapped(Z, centre))

    def diagonal(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return the diagonal of the Gram matrix of the mapped points."""
        X = one_table(X)
        return self.kernel.diagonal(self._mapped(X, self._centre(X)))

    def _centre(self, Z: Float[Array, "m d"]) -> Float[Array, "1 d"]:
        """Return the point to subtract before the map, so that an offset costs no digits.

        It is the mean of `Z` for a kernel of distances, which do not depend on the shift, else 0,
        because inner products depend on it.
        """
        if not isinstance(self.kernel, Stationary):
            return jnp.zeros((1, Z.shape[1]), Z.dtype)
        return jax.lax.stop_gradient(jnp.mean(Z, axis=0, keepdims=True))

    def _mapped(self, X: Float[Array, "n d"], centre: Float[Array, "1 d"]) -> Float[Array, "n r"]:
        if self.matrix.shape[1] != X.shape[1]:
            raise ValueError(
                f"matrix: expected {X.shape[1]} columns, one for each column of the points, got "
                f"shape {self.matrix.shape}"
            )
        return dot(X - centre, self.matrix.astype(X.dtype).T)
