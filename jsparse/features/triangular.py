"""Nystroem features by a Cholesky factor, for many prototypes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._numerics import cholesky_shift, dot
from ..kernels import Kernel
from .whitened import Whitened


class Triangular(Whitened):
    """`Phi = K(X, Z) L^-T - shift`, `R = I`, with `K(Z, Z) + noise I = L L'`.

    The machines equal the machines of `Nystroem` up to the noise. `cholesky_shift` chooses the
    noise: about the rounding error of the largest eigenvalue, or more if distances have larger
    errors. The factorisation takes `m^3 / 3` operations, an eigendecomposition about `25 m^3`.

    `transform` is `L^-T`; `kernel`, `prototypes` and `shift` are as in `Nystroem`. Differentiable
    as `Nystroem` is.
    """

    def __init__(self, kernel: Kernel, prototypes: Float[Array, "m d"]) -> None:
        gram = kernel.gram(prototypes)
        identity = jnp.eye(len(gram), dtype=gram.dtype)
        lower = jnp.linalg.cholesky(gram + cholesky_shift(gram) * identity)
        self.kernel, self.prototypes = kernel, prototypes
        self.transform = jax.scipy.linalg.solve_triangular(lower, identity, lower=True).T
        self.shift = dot(jnp.mean(gram, axis=0), self.transform)
