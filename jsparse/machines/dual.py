"""The LS-SVM in the dual: every row is a prototype."""

import functools
from collections.abc import Generator
from typing import Any, ClassVar, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._arguments import whole_number
from .._blocks import map_row_blocks, rows_in_block
from .._numerics import (
    as_float,
    dot,
    epsilon,
    is_concrete,
    like,
    present_rows,
    present_targets,
    relative_size,
)
from .._programs import compiled
from .._repr import short_repr
from .._status import NOT_FINITE, PRECISION_LOST, status_of
from .._types import CLike, Key, PointTable, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..multiclass import Code
from ..solvers import conjugate_gradients
from ..solvers.definite import factorise
from .checks import check_choice, check_labels, check_problem, in_one_dtype, nan_for_wrong_labels
from .dual_leave_one_out import leave_one_out as leave_one_out
from .dual_leave_one_out import leave_one_out_of, machines_without_each
from .dual_system import (
    intercept_of,
    nystroem_preconditioner,
    right_sides,
    solve_weighted,
    without_intercept,
)
from .family import Family, diagnostics, single
from .held_out import HeldOut, OnFold, Solutions, Sums, each_C, with_size_axis
from .method import MANY_C, Method, Points, Task, TrainingRows, option, replaced
from .rows import FoldLayout, Rows
from .stages import Chosen, Outcome, Stage, single_stage

# With more rows than MOST_SEARCHED, a kernel search begins on a sample. The time of an evaluation
# grows with `n^3`: with 3000 rows a search of ten kernels takes 36 s of a core, and one that begins
# on a sample 13 s.
MOST_SEARCHED, SAMPLE = 1500, 1000
Solver = Literal["auto", "cholesky", "conjugate_gradients"]
DENSE_ROWS = 8192  # most rows for Cholesky by default: n x n in float64 is half a gigabyte


class Dual(Method):
    """The LS-SVM in the dual: every row is a prototype (De Brabanter 2010, Section 2).

    Memory grows with the square of the number of rows. Cross-validation is always leave-one-out,
    whatever folds the user asks for: one decomposition gives the predictions for every `C`.

    Args:
        tuned_with: tune kernel and `C` for a machine of this many random rows; then tune `C` again
            for all rows, among three values. With many rows this saves nearly all time. None, or at
            least the number of rows: tune the machine of all rows. With more than 1,500 rows the
            search `Profile` then begins on 1,000 of them, and goes downhill from the best kernel
            and `C` with all rows. The share of wrong classes is too coarse to compare kernels on a
            sample or on few rows: unless a metric is stated, squared errors compare them there, and
            with all rows `C` is then chosen by the share of wrong classes. With `Annealing` that
            share compares them on few rows too. After a sample, values of `C` so large that
            rounding would decide the machine of all rows are left out.
    """

    tuned_with: int | None = option(
        None,
        "tune the kernel for a machine of only N random rows, then fit to all rows",
        kind="count",
        metavar="N",
    )

    name: ClassVar[str] = "dual"
    title: ClassVar[str] = "LS-SVM"
    max_rows: ClassVar[int | None] = 3000
    default_C: ClassVar[Float[np.ndarray, " s"]] = MANY_C

    @property
    def n_features(self) -> Literal["all"]:
        """See `Method.n_features`: memory holds the kernel matrix."""
        return "all"

    def largest_system(self, n_rows: int) -> int:
        """See `Method.largest_system`: the kernel matrix of all rows is factorised."""
        return n_rows

    @property
    def shares_work_over_C(self) -> bool:
        """See `Method.shares_work_over_C`.

        One eigendecomposition serves all values of `C`. But if fewer rows tune the kernel, see
        `tuned_with`, then the machine of all rows needs a Cholesky factor for each `C`.
        """
        return self.tuned_with is None

    def check(self, task: Task) -> None:
        """Raise a `ValueError` if `tuned_with` is below 2; see `Method.check`."""
        super().check(task)
        if self.tuned_with is not None:
            whole_number("tuned_with", self.tuned_with, 2)

    def stages_of_one_size(
        self, problem: Any, search: Any
    ) -> Generator[Stage, Outcome | None, Chosen]:
        """Yield the stages of tuning, see `Method.stages_of_one_size`.

        With more rows than `tuned_with`, or than `MOST_SEARCHED`, the first stage tunes kernel and
        `C` on a sample of the rows. The second stage then tries three values of `C` with all rows,
        or without `tuned_with` it goes downhill from the first. Values of `C` that rounding forbids
        for the first stage's kernel are left out.

        Otherwise both stages have all rows, and the second chooses among three values of `C`. The
        share of wrong classes is too coarse to choose among kernels, so squared errors choose them,
        and that share only chooses `C`.
        """
        n, sample_rows = problem.source.n_rows, self.tuned_with
        if not search.tune_kernel:
            return (yield from super().stages_of_one_size(problem, search))
        with_all_rows = problem.with_method(replaced(self, tuned_with=None))
        if sample_rows is not None and sample_rows < n:
            sample = with_all_rows.on_a_sample(sample_rows).with_metric("mse")
            first = yield Stage(sample, search, planned_later=1)
            assert first is not None
            kernel = first.tuning.kernel
            C_near = _three_near(first.tuning.C, _allowed_C(problem, kernel))
            last = yield Stage(problem.with_kernel(kernel), search.of_C_alone(), C_near)
            assert last is not None
            return Chosen(last.with_theta(first.tuning.theta))
        if search.near_a_sample and n > MOST_SEARCHED:
            sample = with_all_rows.on_a_sample(SAMPLE).with_metric("mse")
            later = search.nearby(None).planned(problem)
            first = yield Stage(sample, search, problem.C, planned_later=later)
            assert first is not None
            allowed = _allowed_C(problem, first.tuning.kernel)
            nearby = search.nearby(first.tuning)
            return (yield from single_stage(with_all_rows, nearby, allowed))
        compared = with_all_rows.with_compared("mse")
        chooses_kernel = problem.template.size > 0 and search.scores_grid
        if compared.scoring.compares_as_it_scores or not chooses_kernel:
            return (yield from single_stage(with_all_rows, search))
        first = yield Stage(compared.comparing(), search, planned_later=1)
        assert first is not None
        C_near = _three_near(first.tuning.C, np.sort(problem.C))
        return (yield from single_stage(compared, search.of_C_alone(first.tuning), C_near))

    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Return every row."""
        return Points(None, np.arange(rows.n))

    def fit(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None
    ) -> Family:
        """See `fit` and `fit_classes` of this module."""
        X, y, weights = rows.X, rows.y, rows.weights
        if rows.code is not None:
            machine = fit_classes(kernel, C, X, y, rows.code, weights)
        else:
            machine = fit(kernel, cast(ScalarLike, C), X, y, weights)
        return _family(machine, weights)

    def fit_and_sum(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None,
        sums: Solutions | None = None,
    ) -> tuple[Family, Sums | None]:  # fmt: skip
        """See `Method.fit_and_sum`: take the machine from leave-one-out's `sums`, or fit.

        It is fitted anew unless `sums` has a machine without PRECISION_LOST for the `C` of every
        output.
        """
        if sums is not None:
            C_of_output = np.broadcast_to(np.asarray(C, rows.dtype), sums.intercepts.shape[1:])
            is_precise = np.asarray(sums.statuses)[:, None] < PRECISION_LOST
            is_usable = (np.asarray(sums.C)[:, None] == C_of_output[None]) & is_precise
            if np.all(np.any(is_usable, axis=0)):
                C_index = np.argmax(is_usable, axis=0).astype(np.int32)
                return _family(_solution_at(kernel, sums, C_index, rows), rows.weights), None
        return super().fit_and_sum(kernel, points, C, rows, key)

    def held_out(
        self, kernel: Kernel, points: PointTable, C: Float[Array, " s"], rows: Rows,
        folds: FoldLayout, on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """See `Method.held_out`: predict each row by `leave_one_out`."""
        n = len(rows)
        parts = rows.by_fold(self.validation_folds(folds, n))
        values, statuses, machines_of_all_rows = leave_one_out_of(kernel, C, rows)
        machines = each_C(C)

        # Fold i holds only row i.
        def score(row: Int[Array, ""], values: Float[Array, "s l"]) -> tuple[PyTree, PyTree]:
            return on_fold(parts.fold(row), values[None], machines)

        sums, kept_values = jax.vmap(score)(jnp.arange(n, dtype=jnp.int32), values)
        return HeldOut(with_size_axis(sums), kept_values, statuses, machines_of_all_rows)

    def validation_text(self, folds: int) -> str:
        """Return "leave-one-out", the validation in words; see `Method.validation_text`."""
        return "leave-one-out"

    def validation_folds(self, folds: Any, n: int) -> Any:
        """See `Method.validation_folds`: `n` folds of one row each."""
        index = np.arange(n, dtype=np.int32)[:, None]
        return folds._replace(index=index, valid=np.ones((n, 1), bool))

    def fold_machines(
        self, kernel: Kernel, points: PointTable, C: CLike, size: int | None, rows: Rows,
        folds: Any, key: Key | None, sums: Solutions | None,
    ) -> KernelExpansion:  # fmt: skip
        """See `Method.fold_machines`: one matrix inverse gives the machines without each row."""
        index = np.asarray(folds.index)
        assert index.shape[1] == 1, "folds: expected the result of `validation_folds`"
        return machines_without_each(kernel, C, rows, index[:, 0])


def _three_near(C: float, grid: Float[np.ndarray, " s"]) -> Float[np.ndarray, " t"]:
    """Return three consecutive values of an increasing grid around `C`, or fewer if it has fewer.

    If `C` is at an end of the grid or outside, they are the three values at that end.
    """
    begin = int(np.argmin(np.abs(np.log(grid / C)))) - 1
    begin = int(np.clip(begin, 0, max(0, len(grid) - 3)))
    return grid[begin : begin + 3]


def _allowed_C(problem: Any, kernel: Kernel) -> Float[np.ndarray, " s"]:
    """Return the problem's values of `C`, increasing, for which a fit to all rows keeps precision.

    `1 / C` must exceed the rounding of the kernel matrix, as in `definite.factorise`. The rounding
    is estimated from some rows of the matrix. If no value is allowed, return the smallest.
    """
    X, _, weights = problem.source.rows_in_memory()
    rounding = 4 * epsilon(X.dtype) * float(np.max(_sampled_row_sums(kernel, X, weights)))
    grid = np.sort(problem.C)
    return grid[: max(1, np.sum(grid * rounding < 1))]


@compiled
def _sampled_row_sums(
    kernel: Kernel, X: Float[Array, "n d"], w: Float[Array, " n"]
) -> Float[Array, " r"]:
    """Return the sum of `|W^(1/2) K W^(1/2)|` in each of `r` rows of the matrix, at most 256."""
    sampled = jnp.linspace(0, len(X) - 1, min(256, len(X))).astype(jnp.int32)
    root_weights = jnp.sqrt(w)
    magnitudes = jnp.abs(kernel.cross_gram(X[sampled], X))
    return root_weights[sampled] * dot(magnitudes, root_weights[:, None])[:, 0]


class DualFit(NamedTuple):
    """A fitted LS-SVM, with diagnostics of the solution of its system."""

    expansion: KernelExpansion  # prototypes are the rows, coefficients the multipliers alpha
    # |D ((K + W^(-1)/C) alpha + b - y)| / |D y| with D = W^(1/2), worst output
    relative_residual: Float[Array, ""]
    steps: Int[Array, ""]  # steps of conjugate gradients; 0 with Cholesky
    status: Int[Array, ""]

    __repr__ = short_repr


def fit(
    kernel: Kernel,
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    method: Solver = "auto",
    tolerance: ScalarLike | None = None,
    max_iterations: int | Int[Array, ""] = 1000,
    landmarks: int = 1000,
    block_rows: int | None = None,
) -> DualFit:
    """Fit an LS-SVM by its dual system (De Brabanter 2010, Section 2).

    Solves `[[0, 1'], [1, K + W^(-1)/C]] [b; alpha] = [0; y]` by eliminating the intercept. With
    targets -1 and +1 it is the classifier of Section 2.1, whose `alpha_k Y_k` is `alpha_k` here.

    - "cholesky" takes memory `n x n` and `n^3 / 3` operations.
    - "conjugate_gradients" never forms the kernel matrix, and takes memory
      `(block_rows + landmarks) n`. The preconditioner is the Nystroem approximation by `landmarks`
      rows, evenly spaced in the table.

    Args:
        kernel: kernel of two points.
        C: weight of the data-fit term, positive.
        X: inputs, shape `n d`.
        y: targets, shape `n`, or `n c` for several at once.
        weights: row weights, shape `n`, at least 0. A row of weight 0 is absent: its coefficient is
            0, and its prototype may be a copy of another row.
        method: "cholesky", "conjugate_gradients", or "auto" for Cholesky up to `DENSE_ROWS` rows
            (static).
        tolerance: the relative residual at which conjugate gradients stop; by default 0.1 times the
            square root of the dtype's epsilon.
        max_iterations: limit of conjugate gradient steps.
        landmarks: number of rows in the preconditioner (static).
        block_rows: rows of the kernel matrix in memory at a time, for conjugate gradients; the
            default depends on the device (static).

    Returns:
        The expansion over all rows with its diagnostics. The status is `PRECISION_LOST` if `1/C` is
        below the rounding of the kernel matrix, in which case Cholesky uses the size of that
        rounding instead of `1/C`; and `EXHAUSTED` at `max_iterations`. Conjugate gradients end with
        `CONVERGED` if, with `D = W^(1/2)`, the residual of each output is at most
        `2 tolerance (|D y| + |b| |D 1|)`.

    Pure; works under `jit` and `vmap`, and nothing compiles again when numbers change.
    Differentiable in all floating arguments, in both modes. At a weight of 0 the derivative is the
    change of the fit as the row enters. This does not hold for a row that is further from the other
    rows than `eps**-0.25` times the distances among them.

    Raises:
        ValueError: for shapes that do not fit, if `max_iterations` is not a whole number of at
            least 1, or (outside `jit`) for values that are not finite, `C` not positive, or
            negative weights.
    """
    X, y, weights = in_one_dtype(X, y, weights)
    check_problem(None, C, X, y, weights, kernel=kernel)
    check_choice("method", method, Solver)
    if is_concrete(max_iterations):
        whole_number("max_iterations", max_iterations, 1)
    n = X.shape[0]
    w = jnp.ones(n, X.dtype) if weights is None else weights
    if method == "cholesky" or (method == "auto" and n <= DENSE_ROWS):
        return _by_cholesky(kernel, like(C, X), X, y, w)
    tol = 0.1 * epsilon(X.dtype) ** 0.5 if tolerance is None else tolerance
    limits = like(tol, X), jnp.asarray(max_iterations, jnp.int32)
    rows, m = rows_in_block(block_rows), min(landmarks, n)
    return _by_conjugate_gradients(kernel, like(C, X), X, y, w, *limits, m, rows)


def fit_classes(
    kernel: Kernel,
    C: CLike,
    X: Float[Array, "n d"],
    labels: Int[Array, " n"],
    code: Code,
    weights: Float[Array, " n"] | None = None,
    *,
    method: Solver = "auto",
) -> DualFit:
    """Fit the LS-SVMs of the binary problems of an output code.

    If all problems see all rows and share one `C`, they share a factorisation. Otherwise there is
    one factorisation for each problem, with weight 0 for the rows that it leaves out.

    Args:
        kernel: kernel of two points.
        C: weight of the data-fit term, or one for each problem, shape `l`.
        X: inputs, shape `n d`.
        labels: class numbers 0..k-1, shape `n`. Under `jit`, a label out of range makes the machine
            NaN; outside `jit` it raises ValueError.
        code: see `multiclass.output_code`.
        weights: row weights, shape `n`, at least 0.
        method: see `fit`.

    Returns:
        An expansion with one column for each problem, and the worst diagnostics over problems.

    Raises:
        ValueError: as for `fit`, or for labels that are not class numbers.
    """
    check_labels(labels, code.matrix.shape[0])
    X = as_float(X)
    C = nan_for_wrong_labels(jnp.asarray(C, X.dtype), labels, code.matrix.shape[0])
    targets = jnp.asarray(code.matrix, X.dtype)[labels]
    if code.shares_all_rows and jnp.ndim(C) == 0:
        return fit(kernel, C, X, targets, weights, method=method)
    if weights is None:
        w = jnp.ones(len(X), X.dtype)
    else:
        w = as_float(weights).astype(X.dtype)
        X = present_rows(X, w)
    each_C = jnp.broadcast_to(jnp.asarray(C, X.dtype), targets.shape[1:])
    fits = [
        fit(kernel, each_C[j], X, targets[:, j], w * jnp.abs(targets[:, j]), method=method)
        for j in range(targets.shape[1])
    ]
    machine, *worst = jax.tree.map(lambda *problems: jnp.stack(problems, axis=-1), *fits)
    expansion = KernelExpansion(kernel, X, machine.coefficients, machine.intercept)
    return DualFit(expansion, *map(jnp.max, worst))


@functools.partial(compiled, quickly=True)
def _solution_at(
    kernel: Kernel, solutions: Solutions, C_index: Int[Array, " l"], rows: Rows
) -> DualFit:
    """Return the machine whose `C` for each output has the given index in `solutions.C`.

    Its residual and stop code are the worst over all outputs with these values of `C`.
    """
    X, outputs = present_rows(rows.X, rows.weights), jnp.arange(len(C_index), dtype=jnp.int32)
    coefficients = solutions.coefficients[C_index, :, outputs].T.reshape(len(X), *rows.outputs)
    intercept = solutions.intercepts[C_index, outputs].reshape(rows.outputs)
    return DualFit(
        KernelExpansion(kernel, X, coefficients, intercept),
        jnp.max(solutions.relative_residual[C_index]),
        jnp.zeros((), jnp.int32),
        jnp.max(solutions.statuses[C_index]),
    )


def _family(machine: DualFit, weights: Float[Array, " n"]) -> Family:
    """Return the family of one machine, whose size is the number of rows with weight."""
    count = _count_present(weights)
    return single(machine.expansion, machine.status, diagnostics(machine), count=count)


_count_present = compiled(lambda weights: jnp.sum(weights > 0, dtype=jnp.int32), quickly=True)


@compiled
def _by_cholesky(
    kernel: Kernel,
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    w: Float[Array, " n"],
) -> DualFit:
    """Fit by a Cholesky factor of the kernel matrix of all rows."""
    X, y = present_rows(X, w), present_targets(y, w)
    K, root_weights = kernel.gram(X), jnp.sqrt(w)[:, None]
    factor = jax.lax.stop_gradient(factorise(root_weights * K * root_weights.T, 1 / C))
    # If the shift 1/C was too small, `factorise` has replaced it, and C becomes smaller.
    C = jnp.where(factor.lost, 1 / factor.shift, C)
    alpha, _, (residual, _) = solve_weighted(
        lambda v: dot(K, v), lambda rhs: (factor.solve(rhs), None), w[:, None], C[None, None],
        right_sides(X, y),
    )  # fmt: skip
    status = status_of(~jnp.all(jnp.isfinite(alpha)), factor.lost)
    return _result(kernel, X, y, w, alpha, residual, jnp.zeros((), jnp.int32), status)


@functools.partial(compiled, static_argnames=("landmarks", "block_rows"))
def _by_conjugate_gradients(
    kernel: Kernel,
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    w: Float[Array, " n"],
    tolerance: Float[Array, ""],
    max_iterations: Int[Array, ""],
    landmarks: int,
    block_rows: int,
) -> DualFit:
    """Fit by conjugate gradients, without the kernel matrix.

    The preconditioner is the Nystroem approximation by `landmarks` rows, evenly spaced in the
    table. The result has the steps of the slowest column, and the worst status of all columns.
    """
    X, y = present_rows(X, w), present_targets(y, w)
    root_weights = jax.lax.stop_gradient(jnp.sqrt(w)[:, None])

    # Recompute each block of the kernel matrix in the backward pass, instead of storing all blocks.
    @jax.checkpoint
    def rows_times(rows: Float[Array, "r d"], v: Float[Array, "n k"]) -> Float[Array, "r k"]:
        return dot(kernel.cross_gram(rows, X), v)

    def product(v: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """Return `K v`."""
        return map_row_blocks(lambda rows: rows_times(rows, v), X, block_rows)

    landmark_rows = jnp.linspace(0, len(X) - 1, landmarks).astype(jnp.int32)
    precondition = nystroem_preconditioner(kernel, C, X, X[landmark_rows], root_weights, block_rows)

    def inverse(rhs: Float[Array, "n k"]) -> tuple[Float[Array, "n k"], tuple[Array, Array]]:
        """Return `(W^(1/2) K W^(1/2) + I/C)^(-1) rhs`, and the steps and status of each column."""
        solved = conjugate_gradients.solve(
            lambda v: root_weights * product(root_weights * v) + v / C,
            rhs,
            tolerance=tolerance,
            max_iterations=max_iterations,
            preconditioner=precondition,
        )
        return solved.x, (solved.steps, solved.status)

    alpha, _, (residual, (steps, status)) = solve_weighted(
        product, inverse, w[:, None], C[None, None], right_sides(X, y)
    )
    return _result(kernel, X, y, w, alpha, residual, jnp.max(steps), jnp.max(status))


def _result(
    kernel: Kernel,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    w: Float[Array, " n"],
    alpha: Float[Array, "n k"],
    residual: Float[Array, "n k"],
    steps: Int[Array, ""],
    status: Int[Array, ""],
) -> DualFit:
    """Return the fit, given the results of `solve_weighted` for the right-hand sides `[1, y]`."""
    b = intercept_of(alpha)
    alpha, residual, b = without_intercept(alpha, b), without_intercept(residual, b), b[0]
    root_weights = jnp.sqrt(jax.lax.stop_gradient(w))[:, None]
    relative = relative_size(residual.T, (root_weights * y.reshape(alpha.shape)).T)
    failed = ~(jnp.all(jnp.isfinite(alpha)) & jnp.all(jnp.isfinite(b)))
    return DualFit(
        expansion=KernelExpansion(kernel, X, alpha.reshape(y.shape), b.reshape(y.shape[1:])),
        relative_residual=jax.lax.stop_gradient(jnp.max(relative, initial=0)),
        steps=steps,
        status=jnp.where(failed, jnp.int32(NOT_FINITE), status),
    )
