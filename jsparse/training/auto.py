"""The kernel's family by a race on a part of the rows."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime import compiled
from .._types import Key
from ..kernels import RBF, Laplacian, Matern32
from ..kernels.stationary import Stationary
from ..search.gradient import Batches
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
        """That of the family whose weight is 1."""
        one = jnp.ones((), s.dtype)
        each = [family(one).profile(s) for family in FAMILIES.values()]
        weights = self.weights.astype(s.dtype)
        return sum((w * values for w, values in zip(weights, each, strict=True)), jnp.zeros_like(s))


@compiled
def _errors(
    weights: Float[Array, " k"],
    lengthscales: Float[Array, " f"],
    C: Float[Array, " s"],
    points: Float[Array, "m d"],
    parts: Parts,
) -> Float[Array, "f s"]:
    """Of one family: errors of the folds for every lengthscale and `C`."""

    def one(lengthscale: Array, C: Array) -> Float[Array, ""]:
        return held_out_error(_Any(lengthscale, weights), points, C, parts)[1].error

    return jax.lax.map(lambda a: jax.lax.map(lambda c: one(a, c), C), lengthscales)


def family_of(
    key: Key, X: Float[Array, "n d"], y: Float[Array, "n c"], weights: Float[Array, " n"]
) -> str:
    """The name of the kernel of the least squared error on folds, of a few lengthscales and `C`.

    On at most `ROWS` of the rows with `PROTOTYPES` of them as prototypes, all drawn at random; of
    two within a thousandth the smoother one.

    Args:
        key: decides rows and prototypes.
        X: standardised inputs, shape `n d`.
        y: targets, shape `n c`.
        weights: row weights; a row of weight 0 is not there.
    """
    batches = Batches(key, X, y, weights, None, rows=ROWS, prototypes=PROTOTYPES)
    parts, points = batches.at(0), batches.points
    lengthscales = (FACTORS * np.sqrt(X.shape[1])).astype(X.dtype)
    best, chosen = np.inf, "rbf"
    for name, own in zip(FAMILIES, np.eye(len(FAMILIES), dtype=X.dtype), strict=True):
        errors = np.asarray(
            _errors(own, lengthscales, PENALTIES.astype(X.dtype), points, parts), float
        )
        least = float(np.min(np.where(np.isfinite(errors), errors, np.inf)))
        if least < 0.999 * best:
            best, chosen = least, name
    return chosen
