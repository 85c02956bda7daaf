"""The error on held-out folds, and its gradient in kernel and `C` for the price of the error."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._blocks import map_systems
from .._numerics import cholesky_shift, dot, dot_over_rows, epsilon
from .._repr import short_repr
from ..kernels import Kernel


class Parts(NamedTuple):
    """Rows laid out by parts: the folds of the error, and last the validation split."""

    X: Float[Array, "v r d"]
    y: Float[Array, "v r c"]
    w: Float[Array, "v r"]  # 0 for the padding

    __repr__ = short_repr


class FoldErrors(NamedTuple):
    """Mean squared errors in units of the targets' variance."""

    error: Float[Array, ""]  # of each fold by the machine of the others
    validation: Float[Array, ""]  # of the last part by the machine of all folds

    __repr__ = short_repr


class _Sums(NamedTuple):
    gram: Float[Array, "p p"]
    cross: Float[Array, "p c"]
    feature_sum: Float[Array, " p"]
    target_sum: Float[Array, " c"]
    weight_sum: Float[Array, ""]


class _Machine(NamedTuple):
    """Coefficients of a machine; those of the prototypes, and intercepts."""

    weights: Float[Array, "*v m c"]
    intercept: Float[Array, "*v c"]


def held_out_error(
    kernel: Kernel, prototypes: Float[Array, "m d"], C: Float[Array, ""], parts: Parts
) -> tuple[Float[Array, ""], FoldErrors]:
    """The error of the folds, whose reverse derivative costs hardly more than itself.

    A machine `f = K(., Z) a + b` of `J = 1/2 a'K(Z, Z)a + C/2 sum_i w_i (y_i - f(x_i))^2` depends
    on the kernel and `C` through `dJ = 0`. So the derivative of an error `E` is that of

        E(a, b) - u' dJ(a, b),      d^2J u = dE/d(a, b),

    with the machine and the adjoint `u` held still: of products of `K` with a few columns, whatever
    the system was solved by. What is differentiable is thus the kernel's own matrices, once; the
    factorisations, and the sums over rows that they are of, are not differentiated.

    Differentiable once, in reverse mode, in the kernel, the prototypes, `C` and `parts.X`.

    Args:
        kernel: of two points.
        prototypes: shape `m d`.
        C: weight of the data-fit term.
        parts: rows by folds, and the validation split.

    Returns:
        The error, and both errors without derivatives.
    """
    v, r, c = parts.y.shape
    X, y, w = parts.X.reshape(v * r, -1), parts.y.reshape(v * r, c), parts.w.reshape(-1)
    K, gram = kernel.cross_gram(X, prototypes), kernel.gram(prototypes)
    machines, adjoints = _solutions(*jax.lax.stop_gradient((K, gram, C, parts)))

    # Values of every machine and of every adjoint at every row, and at the prototypes.
    a, u = machines.weights, adjoints.weights  # of the folds; the last machine, without an adjoint
    columns = jnp.concatenate([a, u])  # q m c
    q = len(columns)
    flat = jnp.moveaxis(columns, 0, 1).reshape(-1, q * c)
    at_rows = jnp.moveaxis(dot(K, flat).reshape(v, r, q, c), 2, 0)
    f = at_rows[:v] + machines.intercept[:, None, None, :]
    g = at_rows[v:] + adjoints.intercept[:, None, None, :]
    rest = y.reshape(v, r, c)[None] - f
    own = jnp.arange(v)[:, None] == jnp.arange(v)[None, :]
    weight = parts.w[:, :, None]
    squares = jnp.sum(jnp.square(rest) * weight[None], axis=(2, 3))  # machine, part
    count = jnp.sum(w[: (v - 1) * r]) * c
    fold_error = jnp.sum(jnp.where(own, squares, 0)[: v - 1]) / count
    validation = squares[-1, -1] / jnp.maximum(jnp.sum(parts.w[-1]) * c, 1)

    in_gram = dot(gram, jnp.moveaxis(a[: v - 1], 0, 1).reshape(-1, (v - 1) * c))
    smooth = jnp.sum(in_gram * jnp.moveaxis(u, 0, 1).reshape(-1, (v - 1) * c))
    seen = ~own[: v - 1] & (jnp.arange(v) < v - 1)[None, :]  # machine, part
    slope = jnp.sum(jnp.where(seen[:, :, None, None], rest[: v - 1] * g * weight[None], 0))
    held = FoldErrors(*jax.lax.stop_gradient((fold_error, validation)))
    return fold_error - (smooth - C * slope), held


def _solutions(
    K: Float[Array, "n m"], gram: Float[Array, "m m"], C: Float[Array, ""], parts: Parts
) -> tuple[_Machine, _Machine]:
    """Machines without each fold and of all folds, and adjoints of the former."""
    v, r, c = parts.y.shape
    m = len(gram)
    identity = jnp.eye(m, dtype=K.dtype)
    lower = jnp.linalg.cholesky(gram + cholesky_shift(gram) * identity)
    transform = jax.scipy.linalg.solve_triangular(lower, identity, lower=True).T
    phi = dot(K, transform).reshape(v, r, m)

    def summed(part: tuple[Array, Array, Array]) -> _Sums:
        phi, y, w = part
        weighted = phi * w[:, None]
        return _Sums(
            dot_over_rows(phi, weighted), dot(weighted.T, y), dot(w, phi), dot(w, y), jnp.sum(w)
        )

    folds = jax.lax.map(summed, (phi[:-1], parts.y[:-1], parts.w[:-1]))
    total = jax.tree.map(lambda a: jnp.sum(a, axis=0), folds)
    count = jnp.sum(parts.w[:-1]) * c

    def one(fold: tuple[_Sums, tuple[Array, Array, Array]]) -> tuple[_Machine, _Machine]:
        less, (phi, y, w) = fold
        sums = jax.tree.map(jnp.subtract, total, less)
        factor = _factor(sums, C)
        machine = _solve(factor, sums, sums.cross, sums.target_sum[None])
        rest = w[:, None] * (y - dot(phi, machine.weights) - machine.intercept[None])
        rest = rest * (-2 / (count * C))
        adjoint = _solve(factor, sums, dot(phi.T, rest), jnp.sum(rest, axis=0, keepdims=True))
        return machine, adjoint

    machines, adjoints = map_systems(one, (folds, (phi[:-1], parts.y[:-1], parts.w[:-1])))
    whole = _solve(_factor(total, C), total, total.cross, total.target_sum[None])
    machines = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), machines, whole)

    def at_prototypes(of: _Machine) -> _Machine:
        q = len(of.weights)
        flat = jnp.moveaxis(of.weights, 0, 1).reshape(m, q * c)
        flat = dot(transform, flat)
        return of._replace(weights=jnp.moveaxis(flat.reshape(m, q, c), 1, 0))

    return at_prototypes(machines), at_prototypes(adjoints)


def _factor(sums: _Sums, C: Float[Array, ""]) -> Float[Array, "p p"]:
    """Of the centred system; rounding goes by each feature's own size, and so does the guard."""
    f = sums.feature_sum
    centred = sums.gram - f[:, None] * f[None, :] / sums.weight_sum
    guard = 16 * epsilon(centred.dtype) * jnp.diagonal(sums.gram)
    return jnp.linalg.cholesky(centred + jnp.diag(1 / C + guard))


def _solve(
    lower: Float[Array, "p p"], sums: _Sums, rhs: Float[Array, "p c"], last: Float[Array, "1 c"]
) -> _Machine:
    f, N = sums.feature_sum[:, None], sums.weight_sum
    weights = jax.scipy.linalg.cho_solve((lower, True), rhs - f * last / N)
    return _Machine(weights, ((last - dot(f.T, weights)) / N)[0])
