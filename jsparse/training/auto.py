"""What a part of the rows decides of the kernel: its family, and directions of its metric."""

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

FAMILIES = {"rbf": RBF, "matern32": Matern32, "laplacian": Laplacian}  # smooth to rough
FACTORS = np.geomspace(0.25, 4.0, 6)  # of sqrt(d), the lengthscale
PENALTIES = np.geomspace(1.0, 1e3, 4)  # C
ROWS, PROTOTYPES = 2048, 400


class _Any(Stationary):
    """One of the families, by weights that are traced: one program serves them all."""

    weights: Float[Array, " k"] = eqx.field(default_factory=lambda: jnp.ones(len(FAMILIES)))

    _cusp: ClassVar[bool] = True

    def profile(self, s: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the profile of the family whose weight is 1."""
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
    """Return the errors on the folds of one family, for every lengthscale and `C`."""

    def one(lengthscale: Array, C: Array) -> Float[Array, ""]:
        return held_out_error(_Any(lengthscale, weights), points, C, parts)[1].error

    return jax.lax.map(lambda a: jax.lax.map(lambda c: one(a, c), C), lengthscales)


def family_of(
    key: Key, X: Float[Array, "n d"], y: Float[Array, "n c"], weights: Float[Array, " n"]
) -> str:
    """Return the family of kernels with the least squared error on folds; the smoother of equals.

    Of a few lengthscales and `C`, on at most `ROWS` rows with `PROTOTYPES` of them as prototypes,
    drawn at random. Inputs are standardised; a row of weight 0 is absent.
    """
    parts, points = _part(key, X, y, weights)
    best, family = np.inf, "rbf"
    for name in FAMILIES:
        error = _least(name, points, parts)[0]
        if error < 0.999 * best:
            best, family = error, name
    return family


def main_directions(
    key: Key,
    X: Float[Array, "n d"],
    y: Float[Array, "n c"],
    weights: Float[Array, " n"],
    rank: int,
) -> Float[np.ndarray, "r d"]:
    """Return a linear map to the directions in which an RBF machine of some rows varies most.

    The root of the mean outer product of its gradients, cut to a rank (Radhakrishnan et al. 2024,
    Algorithm 1), with a mean square of the mapped inputs as before; of full rank the identity.
    """
    d = X.shape[1]
    if rank == d:
        return np.eye(d, dtype=X.dtype)
    parts, points = _part(key, X, y, weights)
    _, lengthscale, C = _least("rbf", points, parts)
    product = np.asarray(_outer_product(RBF(lengthscale), points, C, parts), float)
    if not (np.isfinite(product).all() and np.any(product)):  # it does not vary
        return np.eye(rank, d, dtype=X.dtype)
    values, vectors = np.linalg.eigh(product)
    root = np.sqrt(np.maximum(values, 0))[::-1][:rank, None] * vectors.T[::-1][:rank]
    return (root * np.sqrt(d / np.sum(np.square(root)))).astype(X.dtype)


def _part(
    key: Key, X: Float[Array, "n d"], y: Float[Array, "n c"], weights: Float[Array, " n"]
) -> tuple[Parts, Float[Array, "m d"]]:
    """Return some of the rows by fold, and some of these as prototypes."""
    batches = Batches(key, X, y, weights, None, rows=ROWS, prototypes=PROTOTYPES)
    return batches.at(0), batches.points


def _least(
    name: str, points: Float[Array, "m d"], parts: Parts
) -> tuple[float, np.floating, np.floating]:
    """Return the least error of a family, its lengthscale and `C`."""
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
