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
    """Rows in `v` parts: `v - 1` cross-validation folds, and then the validation split."""

    X: Float[Array, "v r d"]
    y: Float[Array, "v r c"]
    w: Float[Array, "v r"]  # row weights, 0 for padding

    __repr__ = short_repr


class RowLoss(eqx.Module):
    """A differentiable loss of each row. The leaves of the module are parameters of the loss."""

    @abc.abstractmethod
    def __call__(self, y: Float[Array, "r c"], f: Float[Array, "r c"]) -> Float[Array, " r"]:
        """Return the loss of the values `f` of every row, shape `r`."""


class SquaredError(RowLoss):
    """The squared error, averaged over the targets."""

    def __call__(self, y: Float[Array, "r c"], f: Float[Array, "r c"]) -> Float[Array, " r"]:
        """See `RowLoss`."""
        return jnp.mean(jnp.square(y - f), axis=1)


class CrossEntropy(RowLoss):
    """Cross-entropy of the softmax of the values. `y` is +1 in the column of the row's class."""

    inverse_temperature: Float[Array, ""]

    def __call__(self, y: Float[Array, "r c"], f: Float[Array, "r c"]) -> Float[Array, " r"]:
        """See `RowLoss`."""
        logs = jax.nn.log_softmax(self.inverse_temperature * f, axis=1)
        return -jnp.sum(jnp.where(y > 0, logs, 0), axis=1)


class FoldErrors(NamedTuple):
    """Mean losses. The loss `SquaredError` has the squared unit of the targets in `Parts`."""

    error: Float[Array, ""]  # on every fold, of the machine fitted to the other folds
    validation: Float[Array, ""]  # on the validation split, of the machine fitted to all folds

    __repr__ = short_repr


class _Machine(NamedTuple):
    """Coefficients of the prototypes (or of their features), and intercepts."""

    weights: Float[Array, "*v m c"]
    intercept: Float[Array, "*v c"]


def held_out_error(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    C: Float[Array, ""],
    parts: Parts,
    loss: RowLoss = SquaredError(),  # noqa: B008 (a module without leaves)
) -> tuple[Float[Array, ""], FoldErrors]:
    """Return a scalar whose gradient is the gradient of the cross-validated error, and both errors.

    The scalar is the error on the folds plus a term that is zero up to rounding. The `FoldErrors`
    have no derivatives. The gradient costs hardly more than the error. A machine
    `f = K(., Z) a + b` minimises `J = 1/2 a'K(Z, Z)a + C/2 sum_i w_i (y_i - f(x_i))^2`. So the
    machine depends on the kernel and `C` through `dJ = 0`. The derivative of an error `E` therefore
    equals the derivative of the Lagrangian

        E(a, b) - u' dJ(a, b),      d^2J u = dE/d(a, b),

    with the machine `(a, b)` and the adjoint `u` held fixed. Only products of the kernel matrices
    with a few columns are differentiated, not the factorisations or the sums over rows.

    Differentiable once, in both modes, in the kernel, prototypes, `C`, `parts` and `loss`.
    """
    v, r, c = parts.y.shape
    K = kernel.cross_gram(parts.X.reshape(v * r, -1), prototypes)
    gram = kernel.gram(prototypes)
    machines, adjoints = _solutions(*jax.lax.stop_gradient((K, gram, C, parts, loss)))

    # Evaluate every machine and every adjoint at every row. There are `v` machines. The last one is
    # fitted to all folds and has no adjoint.
    a, u = machines.weights, adjoints.weights
    columns = jnp.concatenate([a, u])  # q m c
    q = len(columns)
    flat = jnp.moveaxis(columns, 0, 1).reshape(-1, q * c)
    at_rows = jnp.moveaxis(dot(K, flat).reshape(v, r, q, c), 2, 0)
    f = at_rows[:v] + machines.intercept[:, None, None, :]
    g = at_rows[v:] + adjoints.intercept[:, None, None, :]
    residuals = parts.y[None] - f  # machine, part, row, target
    left_out = jnp.arange(v)[:, None] == jnp.arange(v)[None, :]  # machine, part
    weight = parts.w[:, :, None]
    held_out = jnp.diagonal(f, axis1=0, axis2=1)  # values of each part, by the machine without it
    losses = jax.vmap(loss)(parts.y, jnp.moveaxis(held_out, -1, 0))
    sums, counts = jnp.sum(losses * parts.w, axis=1), jnp.sum(parts.w, axis=1)
    fold_error = jnp.sum(sums[:-1]) / jnp.sum(counts[:-1])
    validation = sums[-1] / jnp.maximum(counts[-1], 1)

    in_gram = dot(gram, jnp.moveaxis(a[: v - 1], 0, 1).reshape(-1, (v - 1) * c))
    penalty_term = jnp.sum(in_gram * jnp.moveaxis(u, 0, 1).reshape(-1, (v - 1) * c))
    trained_on = ~left_out[: v - 1] & (jnp.arange(v) < v - 1)[None, :]
    products = residuals[: v - 1] * g * weight[None]
    data_term = jnp.sum(jnp.where(trained_on[:, :, None, None], products, 0))
    errors = FoldErrors(*jax.lax.stop_gradient((fold_error, validation)))
    return fold_error - (penalty_term - C * data_term), errors


def _solutions(
    K: Float[Array, "n m"],
    gram: Float[Array, "m m"],
    C: Float[Array, ""],
    parts: Parts,
    loss: RowLoss,
) -> tuple[_Machine, _Machine]:
    """Return `v` machines and `v - 1` adjoints.

    Each of the first `v - 1` machines is fitted without one fold; the last machine is fitted to all
    folds. The adjoints belong to the first `v - 1` machines.
    """
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

    folds = (phi[:-1], parts.y[:-1], parts.w[:-1])
    fold_sums = jax.lax.map(sums_of, folds)
    total, count = fold_sums.joined, jnp.sum(parts.w[:-1])

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
    of_all = _solve(_factor(total, C), total, total.cross, total.target_sum[None])
    machines = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), machines, of_all)

    def at_prototypes(machine: _Machine) -> _Machine:
        q = len(machine.weights)
        flat = dot(transform, jnp.moveaxis(machine.weights, 0, 1).reshape(m, q * c))
        return machine._replace(weights=jnp.moveaxis(flat.reshape(m, q, c), 1, 0))

    return at_prototypes(machines), at_prototypes(adjoints)


def _factor(sums: NormalEquations, C: Float[Array, ""]) -> Float[Array, "p p"]:
    """Return the Cholesky factor of the centred ridge system."""
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
    """Solve the ridge system with an unpenalised intercept, from the factor of `_factor`."""
    f, N = sums.feature_sum[:, None], sums.weight_sum
    weights = jax.scipy.linalg.cho_solve((lower, True), rhs - f * intercept_rhs / N)
    return _Machine(weights, ((intercept_rhs - dot(f.T, weights)) / N)[0])
