"""The system (34) of Karsmakers 2011 from sums over rows, and pursuits of it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numerics import times_power
from .._repr import short_repr
from .._types import Key
from ..expansion import KernelExpansion
from ..features import KernelColumns
from ..kernels import Kernel
from ..normal_equations import NormalEquations
from ..pursuit import conjugate, probabilistic
from ..pursuit.path import Path
from ..pursuit.system import Columns, scaled


class System(NamedTuple):
    """The system (34) with the intercept eliminated, which is to select it first."""

    A: Float[Array, "M M"]
    b: Float[Array, "M *c"]
    rounded: Float[Array, " M"]  # what the diagonal of A was rounded at
    feature_sum: Float[Array, " M"]  # weighted sums of the kernel's columns

    __repr__ = short_repr


class CandidateColumns(KernelColumns):
    """The kernel's columns less a constant each, which the intercept takes up.

    Of a smooth kernel the columns hardly vary: sums of their squares, centred afterwards, would
    have lost that in float32. The constants are the means over the candidates, not over the rows,
    so that they are the same for all folds, and sums remain additive.
    """

    gram: Float[Array, "M M"]
    shift: Float[Array, " M"]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n M"]:
        """`K(X, Z)` less the constants."""
        return super().__call__(X) - self.shift[None, :]

    def expansion(
        self, weights: Float[Array, "M *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """The intercept takes the constants up."""
        return super().expansion(weights, intercept - jnp.tensordot(self.shift, weights, axes=1))

    def system(self, sums: NormalEquations, C: Float[Array, ""], nu: Float[Array, ""]) -> System:
        """The system from the sums of these columns."""
        f, s, c = sums.feature_sum, sums.weight_sum, self.shift
        total = s + nu
        penalised = sums.gram + self.gram / C
        A = penalised - f[:, None] * (f / total)[None, :]
        b = sums.cross - jnp.tensordot(f, sums.target_sum / total, axes=0)
        # A penalised intercept does not take all of the constants up.
        share, raw = nu / total, f + s * c
        A = A + share * (raw[:, None] * c[None, :] + c[:, None] * f[None, :])
        b = b + share * jnp.tensordot(c, sums.target_sum, axes=0)
        return System(A, b, jnp.diagonal(penalised), raw)


def candidate_columns(kernel: Kernel, candidates: Float[Array, "M d"]) -> CandidateColumns:
    """Columns to sum, for candidates."""
    gram = kernel.gram(candidates)
    return CandidateColumns(kernel, candidates, gram, jnp.mean(gram, axis=0))


def select(
    A: Float[Array, "g M M"],
    b: Float[Array, "v M c"],
    rounded: Float[Array, "g M"],
    owner: Int[Array, " v"],
    key: Key | None,
    *,
    max_prototypes: int,
    subset: int | None,
) -> Path:
    """Pursuit of systems whose right-hand sides select together; `owner` says which A is whose."""
    diagonal = jnp.diagonal(A, axis1=1, axis2=2)[owner]
    columns, b, diagonal, scale = scaled(Columns(A, owner=owner), b, diagonal)
    given = columns, b, diagonal, times_power(rounded[owner], -scale.A)
    if subset is not None and key is not None:
        path = probabilistic.run(*given, key, max_atoms=max_prototypes, subset=subset)
    else:
        none, zero = jnp.zeros(0, jnp.int32), jnp.zeros((), b.dtype)
        path = conjugate.pursue(*given, none, zero, max_atoms=max_prototypes)
    return scale.undone(path)


def intercept_path(
    path: Path,
    feature_sum: Float[Array, "v k"],
    target_sum: Float[Array, "v c"],
    total: Float[Array, "..."],
) -> Float[Array, "v k c"]:
    """Intercepts of paths of centred systems, from sums over the features on the path."""
    explained = jnp.einsum(
        "vk,vjkc->vjc", feature_sum, path.coefficients, precision=jax.lax.Precision.HIGHEST
    )
    return (target_sum[:, None, :] - explained) / total[:, None, None]
