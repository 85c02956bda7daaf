"""The system (34) of Karsmakers 2011 from sums over rows, and its pursuits."""

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
    """The system (34) of Karsmakers 2011, `A w = b`, with the intercept eliminated."""

    A: Float[Array, "M M"]
    b: Float[Array, " M *c"]
    rounded: Float[Array, " M"]  # diagonal of A before centring, whose rounding A inherits
    feature_sum: Float[Array, " M"]  # weighted sum over rows of each kernel column

    __repr__ = short_repr


class CandidateColumns(KernelColumns):
    """Features `k(x, z) - constant`, one for each candidate `z`. The intercept absorbs constants.

    The columns of a smooth kernel hardly vary: in float32, centring their sums of squares would
    lose the variation. The constant of a column is its mean over the candidates, not over the rows,
    so that all folds share the constants, and sums remain additive.

    Attributes:
        gram: `K(Z, Z)` of the candidates, shape `M M`.
        shift: the constants, shape `M`.
    """

    gram: Float[Array, "M M"]
    shift: Float[Array, " M"]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n M"]:
        """Return `K(X, Z)` less the constants."""
        return super().__call__(X) - self.shift[None, :]

    def expansion(
        self, weights: Float[Array, " M *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """Return the machine as an expansion, whose intercept absorbs the constants."""
        return super().expansion(weights, intercept - jnp.tensordot(self.shift, weights, axes=1))

    def system(self, sums: NormalEquations, C: Float[Array, ""], nu: Float[Array, ""]) -> System:
        """Return the system (34), given the sums of these features over rows."""
        f, s, c = sums.feature_sum, sums.weight_sum, self.shift
        total = s + nu
        penalised = sums.gram + self.gram / C
        A = penalised - f[:, None] * (f / total)[None, :]
        b = sums.cross - jnp.tensordot(f, sums.target_sum / total, axes=0)
        # A penalised intercept absorbs only a part of the constants.
        share, raw = nu / total, f + s * c
        A = A + share * (raw[:, None] * c[None, :] + c[:, None] * f[None, :])
        b = b + share * jnp.tensordot(c, sums.target_sum, axes=0)
        return System(A, b, jnp.diagonal(penalised), raw)


def candidate_columns(kernel: Kernel, candidates: Float[Array, "M d"]) -> CandidateColumns:
    """Return the `CandidateColumns` of a kernel at the candidates."""
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
    rule: conjugate.Rule = "residual",
) -> Path:
    """Return paths of at most `max_prototypes`, one for each of `v` systems `A[owner[i]] w = b[i]`.

    All `c` columns of a right-hand side share one selection. With a `subset` and a `key`, every
    step examines `subset` random candidates by their residuals. Otherwise it examines all
    candidates by the `rule`, see `conjugate`. `rounded` is as in `System`.
    """
    diagonal = jnp.diagonal(A, axis1=1, axis2=2)[owner]
    columns, b, diagonal, scale = scaled(Columns(A, owner=owner), b, diagonal)
    system = columns, b, diagonal, times_power(rounded[owner], -scale.A)
    if subset is not None and key is not None:
        path = probabilistic.run(*system, key, max_atoms=max_prototypes, subset=subset)
    else:
        none, zero = jnp.zeros(0, jnp.int32), jnp.zeros((), b.dtype)
        path = conjugate.pursue(*system, none, zero, max_atoms=max_prototypes, rule=rule)
    return scale.unscaled(path)


def intercept_path(
    path: Path,
    feature_sum: Float[Array, "v k"],
    target_sum: Float[Array, "v c"],
    total: Float[Array, "..."],
) -> Float[Array, "v k c"]:
    """Return the intercepts of all machines of `v` paths.

    The sums are weighted sums over rows, of each selected column and each target. The total weight
    includes the intercept's penalty, and has shape `v` or `1`.
    """
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
    """Return the values of all machines of path `i` at the rows `X[fold[i]]`, for `v` paths."""

    def one(machines: tuple[Array, Array, Array, Array]) -> Float[Array, "r k c"]:
        support, coefficients, intercepts, fold = machines
        Z = columns.prototypes[jnp.maximum(support, 0)]
        return group_values(columns.kernel.cross_gram(X[fold], Z), coefficients, intercepts)

    return jax.lax.map(one, (path.support, path.coefficients, intercepts, fold))
