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
from .family import group_values


class System(NamedTuple):
    """The system (34) with the intercept eliminated, as if it had been selected first."""

    A: Float[Array, "M M"]
    b: Float[Array, "M *c"]
    rounded: Float[Array, " M"]  # size of the numbers whose difference the diagonal of A is
    feature_sum: Float[Array, " M"]  # weighted sums of the kernel's columns

    __repr__ = short_repr


class CandidateColumns(KernelColumns):
    """The kernel's columns less a constant each, which the intercept takes up.

    The columns of a smooth kernel hardly vary: in float32, sums of their squares that are centred
    afterwards would have lost the variation. The constants are the means over the candidates, not
    over the rows, so that all folds have the same ones, and sums remain additive.
    """

    gram: Float[Array, "M M"]
    shift: Float[Array, " M"]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n M"]:
        """Return `K(X, Z)` less the constants."""
        return super().__call__(X) - self.shift[None, :]

    def expansion(
        self, weights: Float[Array, "M *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """Return the expansion, whose intercept takes the constants up."""
        return super().expansion(weights, intercept - jnp.tensordot(self.shift, weights, axes=1))

    def system(self, sums: NormalEquations, C: Float[Array, ""], nu: Float[Array, ""]) -> System:
        """Return the system from the sums of these columns."""
        f, s, c = sums.feature_sum, sums.weight_sum, self.shift
        total = s + nu
        penalised = sums.gram + self.gram / C
        A = penalised - f[:, None] * (f / total)[None, :]
        b = sums.cross - jnp.tensordot(f, sums.target_sum / total, axes=0)
        # A penalised intercept takes up only a part of the constants.
        share, raw = nu / total, f + s * c
        A = A + share * (raw[:, None] * c[None, :] + c[:, None] * f[None, :])
        b = b + share * jnp.tensordot(c, sums.target_sum, axes=0)
        return System(A, b, jnp.diagonal(penalised), raw)


def candidate_columns(kernel: Kernel, candidates: Float[Array, "M d"]) -> CandidateColumns:
    """Return the columns of candidates, which are summed."""
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
    """Return the paths of systems `A[owner[i]] w = b[i]`, whose right-hand sides select together.

    Without a `subset` every step looks at all candidates, otherwise at random ones.
    """
    diagonal = jnp.diagonal(A, axis1=1, axis2=2)[owner]
    columns, b, diagonal, scale = scaled(Columns(A, owner=owner), b, diagonal)
    system = columns, b, diagonal, times_power(rounded[owner], -scale.A)
    if subset is not None and key is not None:
        path = probabilistic.run(*system, key, max_atoms=max_prototypes, subset=subset)
    else:
        none, zero = jnp.zeros(0, jnp.int32), jnp.zeros((), b.dtype)
        path = conjugate.pursue(*system, none, zero, max_atoms=max_prototypes)
    return scale.undone(path)


def intercept_path(
    path: Path,
    feature_sum: Float[Array, "v k"],
    target_sum: Float[Array, "v c"],
    total: Float[Array, "..."],
) -> Float[Array, "v k c"]:
    """Return the intercepts of centred systems, from sums over the selected columns."""
    explained = jnp.einsum(
        "vk,vjkc->vjc", feature_sum, path.coefficients, precision=jax.lax.Precision.HIGHEST
    )
    return (target_sum[:, None, :] - explained) / total[:, None, None]


def path_values(
    columns: CandidateColumns,
    path: Path,
    intercepts: Float[Array, "v k c"],
    X: Float[Array, "g r d"],
    fold: Int[Array, " v"],
) -> Float[Array, "v r k c"]:
    """Return the values of all machines of a batch of paths, each at the rows of its fold."""

    def one(machines: tuple[Array, Array, Array, Array]) -> Float[Array, "r k c"]:
        support, coefficients, intercepts, fold = machines
        Z = columns.prototypes[jnp.maximum(support, 0)]
        return group_values(columns.kernel.cross_gram(X[fold], Z), coefficients, intercepts)

    return jax.lax.map(one, (path.support, path.coefficients, intercepts, fold))
