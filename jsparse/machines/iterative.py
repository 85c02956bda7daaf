"""The fixed-size LS-SVM of many prototypes, by preconditioned conjugate gradients."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, PyTree

from .._arguments import check_finite, whole_number
from .._blocks import default_block_rows, sum_row_blocks, systems_at_once
from .._numerics import (
    as_array,
    as_float,
    cholesky_shift,
    dot,
    epsilon,
    is_concrete,
    like,
    present_rows,
    present_targets,
)
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, PRECISION_LOST, RUNNING
from .._types import ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..solvers import conjugate_gradients
from ..solvers.definite import factorise
from .checks import check_points, check_problem, in_one_dtype
from .family import Family, diagnostics, single
from .held_out import HeldOut, OnFold, Start, each_C, with_size_axis
from .rows import FoldLayout, Rows

MAX_ITERATIONS = 200
# Number of rounds of conjugate gradients, each from a residual that is computed from the rows. In
# float32 a round divides the residual by 2 to 10.
ROUNDS = 6
# Number of kernel values in memory at a time. On a CPU they stay in the cache: with 10,000
# prototypes in float32, a product takes a quarter of the time that blocks of 2048 rows need.
BLOCK_VALUES = {"cpu": 2**19, "other": 2**28}


class IterativeFit(NamedTuple):
    """A fitted machine, with diagnostics of the iteration."""

    expansion: KernelExpansion
    relative_residual: Float[Array, ""]  # |r| / |b| of the preconditioned system, worst output
    steps: Int[Array, ""]  # steps of conjugate gradients of all rounds, worst output
    status: Int[Array, ""]

    __repr__ = short_repr


def default_tolerance(dtype: Any) -> float:
    """Return the relative residual at which the iteration stops: 1e-2 in float32, 4e-7 in float64.

    A residual of this size changes the test error by about its square. With 4,000 prototypes and
    C = 100, rounding in float32 leaves a residual of 3e-3.
    """
    return 30 * epsilon(dtype) ** 0.5


def rows_of_block(m: int) -> int:
    """Return the number of rows whose kernel values with `m` prototypes are in memory at a time."""
    values = BLOCK_VALUES["cpu" if systems_at_once() == 1 else "other"]
    return max(16, min(default_block_rows(), values // m))


def fit(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    start: Float[Array, " m *c"] | Float[np.ndarray, " m *c"] | None = None,
    tolerance: ScalarLike | None = None,
    max_iterations: int | Int[Array, ""] = MAX_ITERATIONS,
    block_rows: int | None = None,
) -> IterativeFit:
    """Fit the machine of `fixed_size.fit` by conjugate gradients, without an `m m` sum over rows.

    Minimises `1/2 beta' K(Z, Z) beta + C/2 sum_i weight_i (y_i - k(x_i, Z)' beta - b)^2`. A step
    takes one pass over the rows, in blocks, for all targets together. The preconditioner follows
    Falkon (Rudi, Carratino and Rosasco 2017): two Cholesky factors of size `m` solve the system in
    which each row is replaced by its nearest prototype. Prototypes may be repeated, as the diagonal
    of `K(Z, Z)` has a small shift (`lower_factor`).

    Args:
        kernel: kernel of two points.
        prototypes: shape `m d`; `m` may exceed `n`.
        C: weight of the data-fit term, positive.
        X: inputs, shape `n d`, in the units of the prototypes.
        y: targets, shape `n`, or `n c` for several at once.
        weights: row weights, shape `n`, at least 0. A row of weight 0 is absent.
        start: coefficients of a similar machine, shape `m`, or `m c` for several targets, in the
            dtype of `X`.
        tolerance: the norm of the preconditioned residual, relative to the norm of the right-hand
            side, at which to stop; by default `default_tolerance`. If the preconditioner is exact,
            the ratio is the machine's relative error in the norm that the objective defines.
        max_iterations: limit of steps.
        block_rows: rows in memory at a time (static).

    Returns:
        The expansion with its diagnostics. The status is `CONVERGED` if the residual, computed from
        the rows, meets the tolerance; `EXHAUSTED` at the limit of steps; `PRECISION_LOST` if
        rounding prevents the tolerance.

    Pure; works under `jit`, and nothing compiles again when numbers change. Not differentiable.

    Raises:
        ValueError: for shapes that do not fit, a kernel given by name, a `start` of another dtype,
            or a `max_iterations` that is not a whole number of at least 1. Outside `jit` also for
            values that are not finite, `C` not positive, or negative weights.
    """
    X, y, weights = in_one_dtype(X, y, weights)
    prototypes = as_float(prototypes).astype(X.dtype)
    check_problem(None, C, X, y, weights, kernel=kernel)
    check_points("prototypes", prototypes, X.shape[1])
    if is_concrete(max_iterations):
        whole_number("max_iterations", max_iterations, 1)
    if start is not None:
        start = _checked_start(start, (len(prototypes), *y.shape[1:]), X.dtype)
    tol = default_tolerance(X.dtype) if tolerance is None else tolerance
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    limits = like(tol, X), jnp.asarray(max_iterations, jnp.int32)
    return _fit(kernel, prototypes, like(C, X), (X, y, w), start, limits, block_rows)


def _checked_start(start: Any, shape: tuple[int, ...], dtype: Any) -> Float[Array, "m l"]:
    """Return coefficients with a column for each target; raise ValueError for another shape."""
    columns = as_array(start)
    if columns.shape != shape:
        raise ValueError(
            f"start: expected the coefficients of a machine with {shape[0]} prototypes, shape "
            f"{shape}, got {columns.shape}"
        )
    if start.dtype != dtype:
        raise ValueError(f"start: expected the dtype of X, {dtype}, got {start.dtype}")
    check_finite("start", columns)
    return columns.reshape(shape[0], -1)


@compiled
def fit_rows(
    kernel: Kernel,
    points: Float[Array, "m d"],
    C: Float[Array, ""],
    rows: Rows,
    start: Start | None,
    max_iterations: Int[Array, ""] | int,
) -> Family:
    """Fit like `fit` to the rows, with a target for each binary problem of their code."""
    limits = like(default_tolerance(rows.dtype), rows.X), jnp.asarray(max_iterations, jnp.int32)
    coefficients = None if start is None else start.coefficients
    data = rows.X, rows.targets, rows.weights
    machine = _fit(kernel, points, C, data, coefficients, limits, None)
    return single(machine.expansion, machine.status, diagnostics(machine))


@functools.partial(compiled, static_argnames="block_rows")
def _fit(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    C: Float[Array, ""],
    rows: tuple[Array, Array, Array],
    start: Float[Array, "m l"] | None,
    limits: tuple[Float[Array, ""], Int[Array, ""]],
    block_rows: int | None,
) -> IterativeFit:
    """Fit to `rows`: inputs, targets, weights. `limits` are the tolerance and limit of steps."""
    outputs = rows[1].shape[1:]
    system = system_of(kernel, prototypes, lower_factor(kernel, prototypes), *rows, block_rows)
    solved = solve(system, C, start, *limits)
    coefficients, intercept = solved.coefficients, system.intercept(solved.coefficients)
    return IterativeFit(
        KernelExpansion(
            kernel, prototypes, coefficients.reshape(-1, *outputs), intercept.reshape(outputs)
        ),
        jnp.max(solved.relative_residual, initial=0),
        jnp.max(solved.steps, initial=0),
        jnp.max(solved.status, initial=CONVERGED),
    )


def held_out(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    C: Float[Array, " s"],
    rows: Rows,
    folds: FoldLayout,
    on_fold: OnFold,
    max_iterations: int,
) -> HeldOut:
    """Predict the rows of each fold by machines fitted to the other folds, for every `C` in turn.

    The iteration for each `C` starts from the machine of the previous `C`. The last machine of the
    last fold, in the field `total` of the result, is the warm start of a fit to all rows.
    """
    parts, m = rows.by_fold(folds), len(prototypes)
    lower, tolerance = lower_factor(kernel, prototypes), default_tolerance(rows.dtype)

    def one_fold(fold: Int[Array, ""]) -> tuple[PyTree, PyTree, Array, Array]:
        """Return both results of `on_fold`, the stop code of each `C`, and the last machine."""
        training, part = rows.without_fold(folds, fold), parts.fold(fold)
        system = system_of(kernel, prototypes, lower, rows.X, rows.targets, training.weights)

        def next_C(start: Float[Array, "m l"], C: Float[Array, ""]) -> tuple[Array, Any]:
            solved = solve(system, C, start, like(tolerance, C), jnp.int32(max_iterations))
            intercept = system.intercept(solved.coefficients)
            return solved.coefficients, (solved.coefficients, intercept, jnp.max(solved.status))

        zero = jnp.zeros_like(system.cross)
        last, (coefficients, intercepts, status) = jax.lax.scan(next_C, zero, C)
        columns = jnp.moveaxis(coefficients, 0, 1).reshape(m, -1)
        machines = KernelExpansion(kernel, prototypes, columns, intercepts.reshape(-1))
        values = machines(part.X, block_rows=rows_of_block(m)).reshape(-1, *intercepts.shape)
        return *on_fold(part, values, each_C(C)), status, last

    sums, kept, statuses, last = jax.lax.map(
        one_fold, jnp.arange(len(parts.weights), dtype=jnp.int32)
    )
    return HeldOut(with_size_axis(sums), kept, jnp.max(statuses, axis=0), Start(last[-1]))


class System(NamedTuple):
    """The system `(Phi' W Phi + I/C) w = Phi' W y` of centred features, without its matrix.

    `Phi` is `K(X, Z) L^-T` less its weighted mean row, and `w = L' beta`, with `L` from
    `lower_factor`. Every product with the matrix evaluates the kernel again, see `pull_back`.
    """

    kernel: Kernel
    prototypes: Float[Array, "m d"]
    lower: Float[Array, "m m"]  # L
    X: Float[Array, "n d"]
    y: Float[Array, "n l"]  # less their weighted mean
    weights: Float[Array, " n"]
    mean_target: Float[Array, " l"]
    mean_column: Float[Array, " m"]  # weighted mean of k(x_i, Z)
    cross: Float[Array, "m l"]  # K' W y
    nearby_weight: Float[Array, " m"]  # weight of the rows nearest to each prototype
    block_rows: int

    __repr__ = short_repr

    def intercept(self, beta: Float[Array, "m l"]) -> Float[Array, " l"]:
        """Return the intercept of the machine with coefficients `beta`."""
        return self.mean_target - dot(self.mean_column, beta)

    def pull_back(self, beta: Float[Array, "m l"], factor: float) -> Float[Array, "m l"]:
        """Return `K' W (factor y - K beta)`, where `K` is `K(X, Z)` less its weighted mean row.

        With a `factor` of 1 this is a residual, with 0 the product of `-K' W K` and `beta`.
        """
        mean = dot(self.mean_column, beta)

        def of_block(X: Array, y: Array, w: Array) -> tuple[Array, Array]:
            # Without the barrier, each of the two products would evaluate the kernel again.
            K = jax.lax.optimization_barrier(self.kernel.cross_gram(X, self.prototypes))
            errors = w[:, None] * (factor * y - dot(K, beta) + mean[None])
            return dot(errors.T, K).T, jnp.sum(errors, axis=0)

        zero = jnp.zeros_like(beta), jnp.zeros_like(mean)
        rows = self.X, self.y, self.weights
        columns, total = sum_row_blocks(of_block, rows, zero, self.block_rows)
        return columns - self.mean_column[:, None] * total[None]


def lower_factor(kernel: Kernel, prototypes: Float[Array, "m d"]) -> Float[Array, "m m"]:
    """Return `L` with `L L' = K(Z, Z) + shift I`; the shift covers rounding errors."""
    gram = kernel.gram(prototypes)
    shift = cholesky_shift(gram) * jnp.eye(len(gram), dtype=gram.dtype)
    return jnp.linalg.cholesky(gram + shift)


def system_of(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    lower: Float[Array, "m m"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"],
    block_rows: int | None = None,
) -> System:
    """Return the system of the rows, by one pass; `lower` comes from `lower_factor`."""
    m = len(prototypes)
    block_rows = rows_of_block(m) if block_rows is None else block_rows
    X, y = present_rows(X, weights, apart=True), present_targets(y, weights).reshape(len(X), -1)
    total = jnp.sum(weights)
    mean_target = dot(weights, y) / total
    y = y - mean_target[None]

    def of_block(X: Array, y: Array, w: Array) -> tuple[Array, Array, Array]:
        K = jax.lax.optimization_barrier(kernel.cross_gram(X, prototypes))
        nearby_weight = jnp.zeros(m, K.dtype).at[jnp.argmax(K, axis=1)].add(w)
        return dot(w, K), dot((w[:, None] * y).T, K).T, nearby_weight

    zero = jnp.zeros(m, X.dtype), jnp.zeros((m, y.shape[1]), X.dtype), jnp.zeros(m, X.dtype)
    column, cross, nearby_weight = sum_row_blocks(of_block, (X, y, weights), zero, block_rows)
    return System(
        kernel, prototypes, lower, X, y, weights, mean_target, column / total, cross,
        nearby_weight, block_rows,
    )  # fmt: skip


class Solved(NamedTuple):
    """Coefficients, and for each output the relative residual, the steps and the stop code."""

    coefficients: Float[Array, "m l"]
    relative_residual: Float[Array, " l"]
    steps: Int[Array, " l"]
    status: Int[Array, " l"]

    __repr__ = short_repr


class _Round(NamedTuple):
    """The state between two rounds of conjugate gradients."""

    x: Float[Array, "m l"]
    residual: Float[Array, "m l"]  # computed from the rows
    steps: Int[Array, " l"]
    rounds: Int[Array, ""]


def solve(
    system: System,
    C: Float[Array, ""],
    start: Float[Array, "m l"] | None,
    tolerance: Float[Array, ""],
    max_iterations: Int[Array, ""],
) -> Solved:
    """Solve the system for one `C`; arguments as for `fit`.

    The unknown is `x = A' w`, where `A A'` approximates `Phi' W Phi + I/C`. The matrix of the
    system in `x` is then near the identity, so residuals measure errors. Each round of conjugate
    gradients starts from a residual computed as `Phi' W (y - Phi w)`. Its rounding error is far
    smaller than the error of the difference `Phi' W y - Phi' W Phi w`.
    """
    L, A = system.lower, _preconditioner(system, C)

    def weights_of(x: Float[Array, "m l"]) -> Float[Array, "m l"]:
        return solve_triangular(A, x, lower=True, trans=1)

    def coefficients_of(w: Float[Array, "m l"]) -> Float[Array, "m l"]:
        return solve_triangular(L, w, lower=True, trans=1)

    def preconditioned(columns: Float[Array, "m l"], w: Array | float = 0.0) -> Array:
        """Map `K' W r` to the residual of the system in `x`: `A^-1 (L^-1 columns - w / C)`."""
        return solve_triangular(A, solve_triangular(L, columns, lower=True) - w / C, lower=True)

    def residual_of(x: Float[Array, "m l"], factor: float = 1.0) -> Float[Array, "m l"]:
        """Return `factor b - M x` for the matrix `M` and right-hand side `b` of the system."""
        w = weights_of(x)
        return preconditioned(system.pull_back(coefficients_of(w), factor), w)

    rhs = preconditioned(system.cross)
    norm = jnp.linalg.norm(rhs, axis=0)
    target = tolerance * norm

    def unfinished(state: _Round) -> Array:
        above = jnp.linalg.norm(state.residual, axis=0) > target
        return jnp.any(above) & (jnp.max(state.steps) < max_iterations) & (state.rounds < ROUNDS)

    def next_round(state: _Round) -> _Round:
        """Correct `x` by conjugate gradients, and compute its residual from the rows."""
        size = jnp.linalg.norm(state.residual, axis=0)
        limit = max_iterations - jnp.max(state.steps)
        final = jax.lax.while_loop(
            lambda inner: jnp.any(inner.status == RUNNING),
            lambda inner: conjugate_gradients.step(inner, lambda v: -residual_of(v, 0.0), limit),
            conjugate_gradients.init(state.residual, target / jnp.where(size > 0, size, 1)),
        )
        x = state.x + final.x
        return _Round(x, residual_of(x), state.steps + final.steps, state.rounds + 1)

    if start is None:
        x, residual = jnp.zeros_like(rhs), rhs
    else:
        x = dot(A.T, dot(L.T, start))
        residual = residual_of(x)
    first = _Round(x, residual, jnp.zeros(len(norm), jnp.int32), jnp.int32(0))
    final = jax.lax.while_loop(unfinished, next_round, first)
    size = jnp.linalg.norm(final.residual, axis=0)
    exhausted = jnp.max(final.steps) >= max_iterations
    status = jnp.where(exhausted, EXHAUSTED, PRECISION_LOST)
    status = jnp.where(size <= target, CONVERGED, status)
    status = jnp.where(jnp.isfinite(size), status, NOT_FINITE).astype(jnp.int32)
    coefficients = coefficients_of(weights_of(final.x))
    return Solved(coefficients, size / jnp.where(norm > 0, norm, 1), final.steps, status)


def _preconditioner(system: System, C: Float[Array, ""]) -> Float[Array, "m m"]:
    """Return the lower Cholesky factor `A` of an approximation of `Phi' W Phi + I/C`.

    Each row is replaced by its nearest prototype, whose features are a row of `L`. So each
    prototype has the weight of the rows nearest to it. On 8,000 rows of adult with C = 100 this
    weighting saves a quarter of the steps.
    """
    L, w = system.lower, system.nearby_weight
    mean = dot(w, L) / jnp.sum(w)
    centred = jnp.sqrt(w)[:, None] * (L - mean[None])
    return factorise(dot(centred.T, centred), 1 / C).lower
