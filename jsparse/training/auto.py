"""Choice of a kernel's family, and of the directions of its metric, on a sample of the rows."""

import functools
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
from ..expansion import KernelExpansion
from ..kernels import RBF, Laplacian, Matern32
from ..kernels.stationary import Stationary
from ..machines import fixed_size
from ..machines.dual_leave_one_out import leave_one_out_by_spectrum
from ..machines.gradient_product import agop
from ..search.descent import folds_and_prototypes
from ..search.recursive import lengthscales_of
from ..validation.error_gradient import Parts, held_out_error

FAMILIES = {"rbf": RBF, "matern32": Matern32, "laplacian": Laplacian}  # from smooth to rough
LENGTHSCALE_FACTORS = np.geomspace(0.25, 4.0, 6)  # lengthscales to try, in units of sqrt(d)
C_VALUES = np.geomspace(1.0, 1e3, 4)  # values of `C` to try for a fixed-size machine
DUAL_C_VALUES = np.geomspace(0.1, 1e4, 11)  # values of `C` to try in the dual
ROWS, PROTOTYPES = 2048, 400  # upper limits of the rows and prototypes of a fixed-size machine
DUAL_ROWS = 500  # upper limit of the rows of a machine in the dual
LARGEST_SAMPLE_SYSTEM = max(PROTOTYPES, DUAL_ROWS)  # unknowns of the largest system of equations
METRIC_FACTORS = np.geomspace(1 / 1.4, 1.4, 3)  # factors to try for learned lengthscales
Machine = list[Array]  # the coefficients and the intercept of a machine
# Without optimisation these programs compile far faster, and run as fast: LAPACK takes nearly all
# of their time.
_quickly_compiled = functools.partial(compiled, quickly=True)
# A rougher family gains at least this factor in the error when all rows replace the sample.
ROUGHER_TOLERANCE = 1.01


class _SelectedFamily(Stationary):
    """A kernel of one of `FAMILIES`, selected by traced weights so that one program serves all.

    The selected family has weight 1, the others 0.
    """

    weights: Float[Array, " k"] = eqx.field(default_factory=lambda: jnp.ones(len(FAMILIES)))

    _cusp: ClassVar[bool] = True

    def profile(self, s: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the kernel values of the selected family at squared scaled distances `s`."""
        one = jnp.ones((), s.dtype)
        profiles = [lambda s, f=family: f(one).profile(s) for family in FAMILIES.values()]
        return jax.lax.switch(jnp.argmax(self.weights), profiles, s)


@compiled
def _errors(
    weights: Float[Array, " k"],
    lengthscales: Float[Array, " f"],
    C: Float[Array, " s"],
    points: Float[Array, "m d"],
    parts: Parts,
) -> Float[Array, "f s"]:
    """Return the cross-validated error of the family of weight 1, for each lengthscale and `C`.

    `parts` are the rows, laid out by folds, and `points` the prototypes.
    """

    def error(lengthscale: Array, C: Array) -> Float[Array, ""]:
        return held_out_error(_SelectedFamily(lengthscale, weights), points, C, parts)

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

    Each family is scored with a few lengthscales and values of `C`, from the smoothest on, until a
    rougher family is not better. It is better only if its error is lower by a thousandth, since a
    smaller difference is noise.

    Args:
        key: PRNG key of the sample.
        X: standardised inputs.
        y: targets.
        weights: row weights; a row of weight 0 is absent.
        all_rows: False for cross-validation on a random sample of at most `ROWS` rows, with at most
            `PROTOTYPES` of them as prototypes. True for leave-one-out on at most `DUAL_ROWS` rows,
            each of which is a prototype. If `all_rows` and there are more than `DUAL_ROWS` rows,
            the error of a rougher family may exceed the best by the factor `ROUGHER_TOLERANCE`,
            because additional prototypes favour rougher families.
        per_column: with `all_rows`, also try a separate lengthscale for each column, learned by one
            round of a recursive feature machine. Families gain differently from the lengthscales.

    Returns:
        The name of the chosen family, and the least error of the families tried.

    Raises:
        ValueError: unless `all_rows`, if fewer than 12 rows have a positive weight.
    """
    tolerance = 0.999
    if all_rows:
        rows = _rows_for_dual(key, X, y, weights)
        if np.count_nonzero(np.asarray(weights)) > DUAL_ROWS:
            tolerance = ROUGHER_TOLERANCE
    else:
        parts, points = _fold_sample(key, X, y, weights)
    chosen, best, errors = "rbf", np.inf, []
    for name in FAMILIES:
        if all_rows:
            errors.append(_leave_one_out_error(name, *rows, per_column=per_column))
        else:
            errors.append(_least_error(name, points, parts)[0])
        if errors[-1] < tolerance * best:
            chosen, best = name, errors[-1]
        elif np.isfinite(best):
            break  # from smooth to rough the error usually falls and then rises
    return chosen, min(errors)


def _rows_for_dual(
    key: Key, X: Float[Array, "n d"], y: Float[Array, "n c"], weights: Float[Array, " n"]
) -> tuple[Float[np.ndarray, "r d"], Float[np.ndarray, "r c"], Float[np.ndarray, " r"]]:
    """Return inputs, targets and weights of at most `DUAL_ROWS` random rows of positive weight.

    Rows of weight 0 are added up to a `capacity`.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32).tolist())
    rows = rng.permutation(np.flatnonzero(np.asarray(weights) > 0))[:DUAL_ROWS]
    inputs, targets, w = (np.asarray(a)[rows] for a in (X, y, weights))
    n_padded = capacity(len(rows))  # so that tables of similar size share programs
    return padded(inputs, n_padded), padded(targets, n_padded), padded(w, n_padded, "constant")


def _leave_one_out_error(
    name: str,
    X: Float[np.ndarray, "r d"],
    y: Float[np.ndarray, "r c"],
    weights: Float[np.ndarray, " r"],
    *,
    per_column: bool,
) -> float:
    """Return the family's least leave-one-out error over one shared lengthscale and `C`.

    With `per_column`, also try a lengthscale for each column, from the best machine's derivatives.
    """
    dtype, C = X.dtype, DUAL_C_VALUES.astype(X.dtype)
    family = np.array([other == name for other in FAMILIES], dtype)

    def least(candidates: np.ndarray) -> tuple[float, np.ndarray, Machine]:
        """Return the least error, and the lengthscales and the machine that give it.

        From the middle of `candidates`, rows of lengthscales, descend to the nearest minimum.
        """

        @functools.cache
        def best(i: int) -> tuple[float, Machine]:
            error, *machine = _least_squared_error(family, candidates[i], C, X, y, weights)
            return float(error), machine

        i = len(candidates) // 2
        for step in (-1, 1):
            while 0 <= i + step < len(candidates) and best(i + step)[0] < best(i)[0]:
                i += step
        error, machine = best(i)
        return error, candidates[i], machine

    equal_lengthscales = np.full(X.shape[1], np.sqrt(X.shape[1]))
    error, lengthscales, machine = least(
        (LENGTHSCALE_FACTORS[:, None] * equal_lengthscales).astype(dtype)
    )
    if not per_column:
        return error
    relevance = _mean_squared_derivatives(family, lengthscales, *machine, X, weights)
    learned = lengthscales_of(np.asarray(relevance), lengthscales)
    return min(error, least((METRIC_FACTORS[:, None] * learned).astype(dtype))[0])


@_quickly_compiled
def _mean_squared_derivatives(
    family: Float[Array, " k"],
    lengthscales: Float[Array, " d"],
    coefficients: Float[Array, "r c"],
    intercept: Float[Array, " c"],
    X: Float[Array, "r d"],
    w: Float[Array, " r"],
) -> Float[Array, " d"]:
    """Return, for each column, the mean over the rows of an LS-SVM's squared derivative."""
    kernel = _SelectedFamily(lengthscales, family)
    return agop(KernelExpansion(kernel, X, coefficients, intercept), X, w, diagonal=True)


@_quickly_compiled
def _least_squared_error(
    family: Float[Array, " k"],
    lengthscales: Float[Array, " d"],
    C: Float[Array, " s"],
    X: Float[Array, "r d"],
    y: Float[Array, "r c"],
    w: Float[Array, " r"],
) -> tuple[Float[Array, ""], Float[Array, "r c"], Float[Array, " c"]]:
    """Return the least leave-one-out error of one kernel over `C`: the mean squared residual.

    Squares are summed over targets. The error is infinite where rounding dominates it. Also return
    the coefficients and the intercept of the machine of all rows, for the best `C`.
    """
    kernel = _SelectedFamily(lengthscales, family)
    values, status, machines = leave_one_out_by_spectrum(kernel, C, X, y, w)
    errors = jnp.sum(w[None] * jnp.sum(jnp.square(values - y[None]), axis=2), axis=1)
    is_trusted = (status < PRECISION_LOST) & jnp.isfinite(errors)
    errors = jnp.where(is_trusted, errors / jnp.sum(w), jnp.inf)
    best = jnp.argmin(errors)
    return errors[best], machines.coefficients[best], machines.intercepts[best]


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
    1). Its squared elements sum to `d`, so that the map keeps the mean squared norm of uncorrelated
    standardised inputs. If `rank` equals the number of columns, the map is the identity. If the
    machine is constant, the map selects the first `rank` columns.

    The other arguments are as for `family_of`.

    Raises:
        ValueError: if fewer than 12 rows have a positive weight.
    """
    d = X.shape[1]
    if rank == d:
        return np.eye(d, dtype=X.dtype)
    parts, points = _fold_sample(key, X, y, weights)
    _, lengthscale, C = _least_error("rbf", points, parts)
    product = np.asarray(_outer_product(RBF(lengthscale), points, C, parts), float)
    if not (np.isfinite(product).all() and np.any(product)):  # the machine is constant
        return np.eye(rank, d, dtype=X.dtype)
    values, vectors = np.linalg.eigh(product)
    root = np.sqrt(np.maximum(values, 0))[::-1][:rank, None] * vectors.T[::-1][:rank]
    return (root * np.sqrt(d / np.sum(np.square(root)))).astype(X.dtype)


def _fold_sample(
    key: Key, X: Float[Array, "n d"], y: Float[Array, "n c"], weights: Float[Array, " n"]
) -> tuple[Parts, Float[Array, "m d"]]:
    """Return a sample of the rows laid out by folds, and prototypes drawn from the sample."""
    return folds_and_prototypes(key, X, y, weights, None, rows=ROWS, prototypes=PROTOTYPES)


def _least_error(
    name: str, points: Float[Array, "m d"], parts: Parts
) -> tuple[float, np.floating, np.floating]:
    """Return the least error of a family, and the lengthscale and `C` that give it."""
    dtype = points.dtype
    lengthscales = (LENGTHSCALE_FACTORS * np.sqrt(points.shape[1])).astype(dtype)
    C = C_VALUES.astype(dtype)
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
    jacobians = jax.vmap(jax.jacrev(lambda x: machine(x[None])[0]))(X)  # n c d
    return jnp.einsum("n,ncd,nce->de", w / jnp.sum(w), jacobians, jacobians)
