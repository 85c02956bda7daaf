"""The cross-validated error, and its gradient at little more than the cost of the error."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._blocks import map_systems
from .._numerics import cholesky_shift, dot, dot_over_rows, epsilon
from .._repr import short_repr
from ..kernels import Kernel
from ..normal_equations import NormalEquations


class Parts(NamedTuple):
    """Rows with `c` targets in `v` cross-validation folds, padded to `r` rows in each."""

    X: Float[Array, "v r d"]
    y: Float[Array, "v r c"]
    w: Float[Array, "v r"]  # row weights, 0 for padding

    __repr__ = short_repr


class RowLoss(eqx.Module):
    """A differentiable loss of each row. The leaves of the module are parameters of the loss."""

    @abc.abstractmethod
    def __call__(self, y: Float[Array, "r c"], f: Float[Array, "r c"]) -> Float[Array, " r"]:
        """Return the loss of every row, given its targets `y` and a machine's values `f`."""


class SquaredError(RowLoss):
    """The squared error, averaged over the targets."""

    def __call__(self, y: Float[Array, "r c"], f: Float[Array, "r c"]) -> Float[Array, " r"]:
        """Return the mean of `(y - f)^2` over the targets of every row."""
        return jnp.mean(jnp.square(y - f), axis=1)


class CrossEntropy(RowLoss):
    """Cross-entropy of the softmax of the values. `y` is +1 in the column of the row's class."""

    inverse_temperature: Float[Array, ""]

    def __call__(self, y: Float[Array, "r c"], f: Float[Array, "r c"]) -> Float[Array, " r"]:
        """Return `-log softmax(inverse_temperature f)` of each row, where `y` is +1."""
        logs = jax.nn.log_softmax(self.inverse_temperature * f, axis=1)
        return -jnp.sum(jnp.where(y > 0, logs, 0), axis=1)


class _Machine(NamedTuple):
    """Coefficients of the `m` prototypes (or of their features), and intercepts."""

    weights: Float[Array, "*v m c"]
    intercept: Float[Array, "*v c"]


def held_out_error(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    C: Float[Array, ""],
    parts: Parts,
    loss: RowLoss = SquaredError(),  # noqa: B008 (a module without leaves)
) -> Float[Array, ""]:
    """Return the weighted mean loss of all rows, each by the machine fitted to the other folds.

    `SquaredError` gives the squared unit of the targets in `parts`. The gradient costs hardly more
    than the error. A machine `f = K(., Z) a + b` minimises
    `J = 1/2 a'K(Z, Z)a + C/2 sum_i w_i (y_i - f(x_i))^2`. So the machine depends on the kernel and
    `C` through `dJ = 0`. The derivative of an error `E` therefore equals the derivative of the
    Lagrangian

        E(a, b) - u' dJ(a, b),      d^2J u = dE/d(a, b),

    with the machine `(a, b)` and the adjoint `u` held fixed. Only products of the kernel matrices
    with a few columns are differentiated, not the factorisations or the sums over rows.

    Differentiable once, in both modes, in the kernel, prototypes, `C`, `parts` and `loss`.
    """
    v, r, c = parts.y.shape
    K = kernel.cross_gram(parts.X.reshape(v * r, -1), prototypes)
    gram = kernel.gram(prototypes)
    machines, adjoints = _solutions(*jax.lax.stop_gradient((K, gram, C, parts, loss)))

    # Evaluate the machine and the adjoint of every fold at every row.
    a, u = (jnp.moveaxis(part.weights, 0, 1).reshape(-1, v * c) for part in (machines, adjoints))
    at_rows = dot(K, jnp.concatenate([a, u], axis=1)).reshape(v, r, 2 * v, c)
    values = jnp.moveaxis(at_rows, 2, 0)
    f = values[:v] + machines.intercept[:, None, None, :]
    g = values[v:] + adjoints.intercept[:, None, None, :]
    residuals = parts.y[None] - f  # machine, fold, row, target
    held_out = jnp.diagonal(f, axis1=0, axis2=1)  # values of each fold, by the machine without it
    losses = jax.vmap(loss)(parts.y, jnp.moveaxis(held_out, -1, 0))
    error = jnp.sum(losses * parts.w) / jnp.sum(parts.w)

    penalty_term = jnp.sum(dot(gram, a) * u)
    trained_on = ~jnp.eye(v, dtype=bool)[:, :, None, None]
    data_term = jnp.sum(jnp.where(trained_on, residuals * g * parts.w[None, :, :, None], 0))
    stationarity = penalty_term - C * data_term  # u' dJ(a, b), which is 0 up to rounding
    return error - (stationarity - jax.lax.stop_gradient(stationarity))


def _solutions(
    K: Float[Array, "n m"],
    gram: Float[Array, "m m"],
    C: Float[Array, ""],
    parts: Parts,
    loss: RowLoss,
) -> tuple[_Machine, _Machine]:
    """Return the machines fitted without each of the `v` folds, and their adjoints, stacked."""
    (v, r, c), m = parts.y.shape, len(gram)
    identity = jnp.eye(m, dtype=K.dtype)
    lower = jnp.linalg.cholesky(gram + cholesky_shift(gram) * identity)
    transform = jax.scipy.linalg.solve_triangular(lower, identity, lower=True).T
    phi = dot(K, transform).reshape(v, r, m)

    def sums_of(part: tuple[Array, Array, Array]) -> NormalEquations:
        phi, y, w = part
        weighted = phi * w[:, None]
        return NormalEquations(
            dot_over_rows(phi, weighted), dot(weighted.T, y), dot(w, jnp.square(y)), dot(w, phi),
            dot(w, y), jnp.sum(w),
        )  # fmt: skip

    folds = (phi, parts.y, parts.w)
    fold_sums = jax.lax.map(sums_of, folds)
    total, count = fold_sums.joined, jnp.sum(parts.w)

    def without(
        fold: tuple[NormalEquations, tuple[Array, Array, Array]],
    ) -> tuple[_Machine, _Machine]:
        left_out, (phi, y, w) = fold
        sums = total - left_out
        factor = _factor(sums, C)
        machine = _solve(factor, sums, sums.cross, sums.target_sum[None])
        values = dot(phi, machine.weights) + machine.intercept[None]
        slopes = jax.grad(lambda f: dot(w, loss(y, f)))(values) / (count * C)
        adjoint = _solve(factor, sums, dot(phi.T, slopes), jnp.sum(slopes, axis=0, keepdims=True))
        return machine, adjoint

    machines, adjoints = map_systems(without, (fold_sums, folds))

    def at_prototypes(machine: _Machine) -> _Machine:
        flat = dot(transform, jnp.moveaxis(machine.weights, 0, 1).reshape(m, v * c))
        return machine._replace(weights=jnp.moveaxis(flat.reshape(m, v, c), 1, 0))

    return at_prototypes(machines), at_prototypes(adjoints)


def _factor(sums: NormalEquations, C: Float[Array, ""]) -> Float[Array, "p p"]:
    """Return the Cholesky factor of the Gram matrix of `sums`, centred, plus `I / C`."""
    f = sums.feature_sum
    centred = sums.gram - f[:, None] * f[None, :] / sums.weight_sum
    # Centring leaves rounding errors in proportion to each feature's sum of squares. A shift by 16
    # such errors keeps the system positive definite.
    shift = 16 * epsilon(centred.dtype) * jnp.diagonal(sums.gram)
    return jnp.linalg.cholesky(centred + jnp.diag(1 / C + shift))


def _solve(
    lower: Float[Array, "p p"],
    sums: NormalEquations,
    rhs: Float[Array, "p c"],
    intercept_rhs: Float[Array, "1 c"],
) -> _Machine:
    """Solve the ridge system with an unpenalised intercept; `lower` is the factor by `_factor`."""
    f, N = sums.feature_sum[:, None], sums.weight_sum
    weights = jax.scipy.linalg.cho_solve((lower, True), rhs - f * intercept_rhs / N)
    return _Machine(weights, ((intercept_rhs - dot(f.T, weights)) / N)[0])
