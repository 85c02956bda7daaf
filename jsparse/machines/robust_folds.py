"""Machines with Huber's loss without each fold, from the solution of all rows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._blocks import map_row_blocks, rows_in_block
from .._numerics import dot, dot_over_rows, like, present_rows
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, RUNNING, TRUNCATED
from ..features import FeatureMap
from ..solvers.definite import Factor, factorise
from ..solvers.robust import (
    PER_MEDIAN,
    Solution,
    default_tolerance,
    least_threshold,
    solve,
    weighted_quantile,
)
from .held_out import HeldOut, OnFold, each_C, one_size
from .rows import FoldLayout, Rows

STEPS = 100  # limit of the steps of a fold
# A step must be shorter than this share of the step before. Otherwise the steps solve systems of
# all rows, which bound the curvature of the loss: they are shorter, but always descend.
SHRINKAGE = 0.5


class System(NamedTuple):
    """Sums over rows of `w phi phi'`, with the intercept's column apart."""

    products: Float[Array, "p p"]
    features: Float[Array, " p"]
    total: Float[Array, ""]

    __repr__ = short_repr

    def factorised(self, C: Float[Array, ""]) -> "Factorised":
        """Return the system, factorised with the intercept eliminated and `1/C` on its diagonal."""
        f, N = self.features, jnp.maximum(self.total, jnp.finfo(self.total.dtype).tiny)
        return Factorised(factorise(self.products - f[:, None] * f[None] / N, 1 / C), f, N)


class Factorised(NamedTuple):
    """A factorised `System`."""

    factor: Factor
    features: Float[Array, " p"]
    total: Float[Array, ""]

    __repr__ = short_repr

    def solve(
        self, features: Float[Array, " p"], total: Float[Array, ""]
    ) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Return the changes of the weights and of the intercept."""
        right = features - self.features * (total / self.total)
        weights = self.factor.solve(right[:, None])[:, 0]
        return weights, (total - dot(self.features, weights)) / self.total


def sums(Phi: Float[Array, "r p"], w: Float[Array, " r"]) -> System:
    """Return the `System` of rows with weights `w`."""
    weighted = Phi * w[:, None]
    return System(dot_over_rows(Phi, weighted), jnp.sum(weighted, axis=0), jnp.sum(w))


class State(NamedTuple):
    """The steps of one fold."""

    weights: Float[Array, " p"]
    intercept: Float[Array, ""]
    residual: Float[Array, " n"]
    size: Float[Array, ""]  # length of the last step: root mean square over rows, in thresholds
    bounded: Bool[Array, ""]  # whether the steps solve the system of all rows
    steps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


def solve_without(
    Phi: Float[Array, "n p"],
    y: Float[Array, " n"],
    w: Float[Array, " n"],
    C: Float[Array, ""],
    start: Solution,
    systems: tuple[System, System],
    tolerance: Float[Array, ""],
    scale: Float[Array, ""],
) -> State:
    """Minimise Huber's objective of `solvers.robust.solve`, from a nearby solution.

    The threshold follows the residuals, as in `solvers.robust.solve`. Each step solves a system
    that is factorised once, with the gradient of the present solution. Few rows cross the threshold
    when a fold is left out, so a step removes most of the error.

    Args:
        Phi: features. Rows of weight 0 hold finite values.
        y: targets, finite.
        w: row weights, at least 0; 0 for the rows of the fold.
        C: weight of the data-fit term.
        start: the solution of all rows.
        systems: sums over the rows within the threshold of `start`, and sums over all rows, both
            without the fold.
        tolerance: stop if a step moves the values by less, as a share of the threshold.
        scale: typical size of the targets about their median, for the least threshold.
    """
    near, bound = (system.factorised(C) for system in systems)
    least = jnp.maximum(least_threshold(y.dtype) * scale, jnp.finfo(y.dtype).tiny)
    total = jnp.sum(w)

    def step(state: State) -> State:
        e = state.residual
        d = jnp.maximum(PER_MEDIAN * weighted_quantile(jnp.abs(e), w), least)
        slopes = w * jnp.clip(e, -d, d)
        gradient = dot(slopes, Phi) - state.weights / C, jnp.sum(slopes)
        change = jax.lax.cond(
            state.bounded, lambda: bound.solve(*gradient), lambda: near.solve(*gradient)
        )
        weights, intercept = state.weights + change[0], state.intercept + change[1]
        residual = y - dot(Phi, weights) - intercept
        size = jnp.sqrt(jnp.sum(w * jnp.square((residual - e) / d)) / total)
        slow = size > SHRINKAGE * state.size
        status = jnp.where(state.steps + 1 >= STEPS, EXHAUSTED, RUNNING)
        status = jnp.where(size <= tolerance, CONVERGED, status)
        status = jnp.where(jnp.isfinite(size), status, NOT_FINITE).astype(jnp.int32)
        return State(
            weights, intercept, residual, size, state.bounded | slow, state.steps + 1, status
        )

    zero = jnp.zeros((), jnp.int32)
    first = State(
        start.weights, start.intercept, y - dot(Phi, start.weights) - start.intercept,
        jnp.full((), jnp.inf, y.dtype), jnp.zeros((), bool), zero, zero + RUNNING,
    )  # fmt: skip
    return jax.lax.while_loop(lambda state: state.status == RUNNING, step, first)


def held_out(
    feature_map: FeatureMap, C: Float[Array, " s"], rows: Rows, folds: FoldLayout, on_fold: OnFold
) -> HeldOut:
    """Predict the rows of each fold by machines with Huber's loss fitted without the fold.

    Arguments are as for `Method.held_out`. There is one interior-point solution for each `C`, which
    the solutions without each fold start from.
    """
    n, parts = len(rows), rows.by_fold(folds)
    X = present_rows(rows.X, rows.weights, apart=True)
    Phi = map_row_blocks(feature_map, X, rows_in_block(None))
    y = rows.target_columns
    w = jnp.broadcast_to(rows.problem_weights.reshape(n, -1), y.shape)
    y, tolerance = jnp.where(w > 0, y, 0), like(default_tolerance(y.dtype), y)
    places, valid = folds.gather(jnp.arange(n, dtype=jnp.int32)), jnp.asarray(folds.valid)

    def one_output(problem: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        C, y, w = problem
        full = solve(Phi, y, w, C, tolerance, quantile=None)
        inside = jnp.where(jnp.abs(full.residual) <= full.threshold, w, 0)
        systems = sums(Phi, inside), sums(Phi, w)
        distance = jnp.abs(y - weighted_quantile(y, w))
        scale = weighted_quantile(distance, jnp.where(distance > 0, w, 0))

        def one_fold(fold: tuple[Array, Array]) -> tuple[Array, Array]:
            place, in_fold = fold
            held = jnp.zeros(n, bool).at[place].max(in_fold)
            features = Phi[place]
            of_fold = [sums(features, jnp.where(in_fold, a[place], 0)) for a in (inside, w)]
            without = jax.tree.map(jnp.subtract, systems, tuple(of_fold))
            start = full, without
            state = solve_without(Phi, y, jnp.where(held, 0, w), C, *start, tolerance, scale)
            return dot(features, state.weights) + state.intercept, state.status

        values, status = jax.lax.map(one_fold, (places, valid))
        products, f, total = systems[1]
        energy = jnp.diagonal(products) - jnp.square(f) / total
        lost = jnp.where(feature_map.unresolved(C, energy), TRUNCATED, 0)
        return values, jnp.maximum(jnp.maximum(jnp.max(status), full.status), lost)

    s, outputs = len(C), y.shape[1]
    problems = jnp.repeat(C, outputs), jnp.tile(y.T, (s, 1)), jnp.tile(w.T, (s, 1))
    values, status = jax.lax.map(one_output, problems)  # (s l) v r
    values = jnp.moveaxis(values.reshape(s, outputs, *places.shape), (0, 1), (2, 3))
    fold_numbers = jnp.arange(len(places), dtype=jnp.int32)
    sums_of_folds, kept = jax.lax.map(
        lambda fold: on_fold(parts.fold(fold[0]), fold[1], each_C(C)), (fold_numbers, values)
    )
    return HeldOut(one_size(sums_of_folds), kept, jnp.max(status.reshape(s, outputs), axis=1))
