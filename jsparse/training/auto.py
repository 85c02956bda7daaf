"""The choice of a kernel from a sample of the rows: its family, and directions of its metric."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._programs import compiled
from .._types import Key
from ..kernels import RBF, Laplacian, Matern32
from ..kernels.stationary import Stationary
from ..machines import fixed_size
from ..search.descent import Batches
from ..validation.error_gradient import Parts, held_out_error

FAMILIES = {"rbf": RBF, "matern32": Matern32, "laplacian": Laplacian}  # from smooth to rough
FACTORS = np.geomspace(0.25, 4.0, 6)  # lengthscales to try, in units of sqrt(d)
PENALTIES = np.geomspace(1.0, 1e3, 4)  # values of `C` to try
ROWS, PROTOTYPES = 2048, 400  # the most rows, and the most prototypes, of the sample


class _Any(Stationary):
    """A kernel of one of `FAMILIES`, selected by traced weights so that one program serves all.

    The selected family has weight 1, the others 0.
    """

    weights: Float[Array, " k"] = eqx.field(default_factory=lambda: jnp.ones(len(FAMILIES)))

    _cusp: ClassVar[bool] = True

    def profile(self, s: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the profile of the selected family."""
        one, weights = jnp.ones((), s.dtype), self.weights.astype(s.dtype)
        terms = [w * f(one).profile(s) for w, f in zip(weights, FAMILIES.values(), strict=True)]
        return sum(terms, jnp.zeros_like(s))


@compiled
def _errors(
    weights: Float[Array, " k"],
    lengthscales: Float[Array, " f"],
    C: Float[Array, " s"],
    points: Float[Array, "m d"],
    parts: Parts,
) -> Float[Array, "f s"]:
    """Return the cross-validated errors of one family, for every lengthscale and `C`."""

    def error(lengthscale: Array, C: Array) -> Float[Array, ""]:
        return held_out_error(_Any(lengthscale, weights), points, C, parts)[1].error

    return jax.lax.map(lambda a: jax.lax.map(lambda c: error(a, c), C), lengthscales)


def family_of(
    key: Key, X: Float[Array, "n d"], y: Float[Array, "n c"], weights: Float[Array, " n"]
) -> str:
    """Return the name of the kernel family with the least cross-validated squared error.

    Each family is tried with a few lengthscales and values of `C`, on a random sample of at most
    `ROWS` rows with `PROTOTYPES` of them as prototypes. A rougher family is chosen only if its
    error is lower by a thousandth.

    Args:
        key: PRNG key of the sample.
        X: standardised inputs.
        y: targets.
        weights: row weights; a row of weight 0 is absent.
    """
    parts, points = _part(key, X, y, weights)
    best, family = np.inf, "rbf"
    for name in FAMILIES:
        error = _least(name, points, parts)[0]
        if error < 0.999 * best:  # a smaller difference is noise, and the smoother family stays
            best, family = error, name
    return family


def main_directions(
    key: Key,
    X: Float[Array, "n d"],
    y: Float[Array, "n c"],
    weights: Float[Array, " n"],
    rank: int,
) -> Float[np.ndarray, "r d"]:
    """Return a linear map to the `rank` directions in which an RBF machine varies most.

    The machine is fitted to a sample of the rows. The map is the square root of the mean outer
    product of the machine's gradients, truncated to the rank (Radhakrishnan et al. 2024, Algorithm
    1). It is scaled so that the mean square norm of standardised inputs does not change. If `rank`
    equals the number of columns, the map is the identity.

    Arguments are as for `family_of`.
    """
    d = X.shape[1]
    if rank == d:
        return np.eye(d, dtype=X.dtype)
    parts, points = _part(key, X, y, weights)
    _, lengthscale, C = _least("rbf", points, parts)
    product = np.asarray(_outer_product(RBF(lengthscale), points, C, parts), float)
    if not (np.isfinite(product).all() and np.any(product)):  # the machine is constant
        return np.eye(rank, d, dtype=X.dtype)
    values, vectors = np.linalg.eigh(product)
    root = np.sqrt(np.maximum(values, 0))[::-1][:rank, None] * vectors.T[::-1][:rank]
    return (root * np.sqrt(d / np.sum(np.square(root)))).astype(X.dtype)


def _part(
    key: Key, X: Float[Array, "n d"], y: Float[Array, "n c"], weights: Float[Array, " n"]
) -> tuple[Parts, Float[Array, "m d"]]:
    """Return a sample of the rows laid out by folds, and prototypes drawn from the sample."""
    batches = Batches(key, X, y, weights, None, rows=ROWS, prototypes=PROTOTYPES)
    return batches.at(0), batches.points


def _least(
    name: str, points: Float[Array, "m d"], parts: Parts
) -> tuple[float, np.floating, np.floating]:
    """Return the least error of a family, and the lengthscale and `C` that give it."""
    dtype = points.dtype
    lengthscales, C = (FACTORS * np.sqrt(points.shape[1])).astype(dtype), PENALTIES.astype(dtype)
    weights = np.array([family == name for family in FAMILIES], dtype)
    errors = np.asarray(_errors(weights, lengthscales, C, points, parts), float)
    errors = np.where(np.isfinite(errors), errors, np.inf)
    f, s = np.unravel_index(np.argmin(errors), errors.shape)
    return float(errors[f, s]), lengthscales[f], C[s]


@compiled
def _outer_product(
    kernel: RBF, points: Float[Array, "m d"], C: Float[Array, ""], parts: Parts
) -> Float[Array, "d d"]:
    """Return the mean outer product of the machine's gradients, summed over targets."""
    X, y, w = (a.reshape(-1, *a.shape[2:]) for a in parts)
    machine = fixed_size.fit(kernel, points, C, X, y, w).expansion
    slopes = jax.vmap(jax.jacrev(lambda x: machine(x[None])[0]))(X)  # n c d
    return jnp.einsum("n,ncd,nce->de", w / jnp.sum(w), slopes, slopes)
