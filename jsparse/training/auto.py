"""The choice of a kernel from a sample of the rows: its family, and directions of its metric."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._blocks import capacity, padded
from .._programs import compiled
from .._status import PRECISION_LOST
from .._types import Key
from ..kernels import RBF, Laplacian, Matern32
from ..kernels.stationary import Stationary
from ..machines import dual, fixed_size
from ..machines.dual import leave_one_out
from ..machines.gradient_product import agop
from ..search.descent import folds_and_prototypes
from ..search.recursive import lengthscales_of
from ..validation.error_gradient import Parts, held_out_error

FAMILIES = {"rbf": RBF, "matern32": Matern32, "laplacian": Laplacian}  # from smooth to rough
FACTORS = np.geomspace(0.25, 4.0, 6)  # lengthscales to try, in units of sqrt(d)
PENALTIES = np.geomspace(1.0, 1e3, 4)  # values of `C` to try
DUAL_PENALTIES = np.geomspace(0.1, 1e4, 11)
ROWS, PROTOTYPES = 2048, 400  # the most rows, and the most prototypes, of the sample
DUAL_ROWS = 500  # the most rows of the sample if all are prototypes
NEAR = np.geomspace(1 / 1.4, 1.4, 3)  # factors to try for a learned metric
ROUGHER = 1.01  # with more rows than the sample has, a rougher family gains at least so much


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
        return held_out_error(_Any(lengthscale, weights), points, C, parts)

    return jax.lax.map(lambda a: jax.lax.map(lambda c: error(a, c), C), lengthscales)


def family_of(
    key: Key,
    X: Float[Array, "n d"],
    y: Float[Array, "n c"],
    weights: Float[Array, " n"],
    *,
    all_rows: bool = False,
    per_column: bool = False,
) -> tuple[str, float]:
    """Return the name of the kernel family with the least squared error on held-out rows.

    Each family is tried with a few lengthscales and values of `C`. A rougher family is chosen only
    if its error is lower by a thousandth.

    Args:
        key: PRNG key of the sample.
        X: standardised inputs.
        y: targets.
        weights: row weights; a row of weight 0 is absent.
        all_rows: False for cross-validation on a random sample of at most `ROWS` rows, with
            `PROTOTYPES` of them as prototypes. True for leave-one-out on at most `DUAL_ROWS` rows,
            each of which is a prototype. If there are more rows than these, a rougher family may
            err by a factor of `ROUGHER` more, as more prototypes favour rougher families.
        per_column: with `all_rows`, compare the families with lengthscales for each column, which
            one round of a recursive feature machine gives. Families differ in what they gain.

    Returns:
        The name, and the error.
    """
    best, family, advantage = np.inf, "rbf", 0.999  # a smaller difference is noise
    if all_rows:
        sample = _sample(key, X, y, weights)
        errors = [_leave_one_out_error(f, *sample, per_column=per_column) for f in FAMILIES]
        if np.count_nonzero(np.asarray(weights)) > DUAL_ROWS:
            advantage = ROUGHER
    else:
        parts, points = _part(key, X, y, weights)
        errors = [_least(name, points, parts)[0] for name in FAMILIES]
    for name, error in zip(FAMILIES, errors, strict=True):
        if error < advantage * best:
            best, family = error, name
    return family, min(errors)


def _sample(
    key: Key, X: Float[Array, "n d"], y: Float[Array, "n c"], weights: Float[Array, " n"]
) -> tuple[Float[np.ndarray, "r d"], Float[np.ndarray, "r c"], Float[np.ndarray, " r"]]:
    """Return at most `DUAL_ROWS` random rows with weight."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32).tolist())
    rows = rng.permutation(np.flatnonzero(np.asarray(weights) > 0))[:DUAL_ROWS]
    inputs, targets, w = (np.asarray(a)[rows] for a in (X, y, weights))
    room = capacity(len(rows))  # so that tables of similar size share programs
    return padded(inputs, room), padded(targets, room), padded(w, room, "constant")


def _leave_one_out_error(
    name: str,
    X: Float[np.ndarray, "r d"],
    y: Float[np.ndarray, "r c"],
    weights: Float[np.ndarray, " r"],
    *,
    per_column: bool,
) -> float:
    """Return the least leave-one-out error of a family, over lengthscales and `C`."""
    dtype, C = X.dtype, DUAL_PENALTIES.astype(X.dtype)
    family = np.array([other == name for other in FAMILIES], dtype)

    def least(candidates: np.ndarray) -> tuple[float, np.ndarray, np.floating]:
        """Return the least error, and the lengthscales and `C` that give it."""
        errors = np.array([_squared_errors(family, one, C, X, y, weights) for one in candidates])
        errors = np.where(np.isfinite(errors), errors, np.inf)
        f, s = np.unravel_index(np.argmin(errors), errors.shape)
        return float(errors[f, s]), candidates[f], C[s]

    common = np.full(X.shape[1], np.sqrt(X.shape[1]))
    error, lengthscales, best_C = least((FACTORS[:, None] * common).astype(dtype))
    if not per_column:
        return error
    product = _product(family, lengthscales, best_C, X, y, weights)
    learned = lengthscales_of(np.asarray(product), lengthscales)
    return min(error, least((NEAR[:, None] * learned).astype(dtype))[0])


@compiled
def _product(
    family: Float[Array, " k"],
    lengthscales: Float[Array, " d"],
    C: Float[Array, ""],
    X: Float[Array, "r d"],
    y: Float[Array, "r c"],
    w: Float[Array, " r"],
) -> Float[Array, " d"]:
    """Return the mean squared derivatives of the LS-SVM of the sample."""
    machine = dual.fit(_Any(lengthscales, family), C, X, y, w).expansion
    return agop(machine, X, w, diagonal=True)


@compiled
def _squared_errors(
    family: Float[Array, " k"],
    lengthscales: Float[Array, " d"],
    C: Float[Array, " s"],
    X: Float[Array, "r d"],
    y: Float[Array, "r c"],
    w: Float[Array, " r"],
) -> Float[Array, " s"]:
    """Return the leave-one-out errors of one kernel; infinite where rounding decides them."""
    values, status = leave_one_out(_Any(lengthscales, family), C, X, y, w)
    errors = jnp.sum(w[None] * jnp.sum(jnp.square(values - y[None]), axis=2), axis=1)
    return jnp.where(status < PRECISION_LOST, errors / jnp.sum(w), jnp.inf)


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
    return folds_and_prototypes(key, X, y, weights, None, rows=ROWS, prototypes=PROTOTYPES)


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
