"""The fixed-size LS-SVM: ridge regression in Nystroem features of a few prototypes."""

import functools
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._agreement import same_rows
from .._arguments import whole_number
from .._numerics import as_float, like
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, TRUNCATED
from .._types import CLike, Key, PointTable, ScalarLike
from ..expansion import KernelExpansion
from ..features import FeatureMap, Nystroem, Triangular
from ..kernels import Kernel, Linear
from ..multiclass import Code, accumulate_code, solve_code
from ..normal_equations import NormalEquations, accumulate
from . import iterative
from .checks import (
    check_choice,
    check_labels,
    check_penalties,
    check_penalty,
    check_problem,
    in_one_dtype,
    nan_for_wrong_labels,
    penalty_or_none,
)
from .family import Family, diagnostics, single
from .held_out import HeldOut, OnFold, Sums
from .method import Shape, Task, at_most, iteration_limit, option, replaced, sums_needed
from .ridge import Ridge
from .row_prototypes import Prototypes, feature_map
from .rows import FoldLayout, Rows
from .stages import Chosen, Outcome, Stage, better_by, better_on_folds, stages_within

Solver = Literal["cholesky", "conjugate_gradients"]
# Standard errors of the paired difference by which the machine of all prototypes must beat the
# machine of `tuned_with` prototypes.
LARGER_GAIN = 1.0
# Kernels are first compared by machines of this many rows for each prototype, and at least of
# LEAST_PART rows, if there are LEAST_RATIO times as many.
ROWS_FOR_EACH, LEAST_PART, LEAST_RATIO = 12, 4096, 2.5
PART_FOLDS = 2  # number of folds to validate in this comparison
TUNED_WITH = 1000  # prototypes that tune the kernel for conjugate gradients

_triangular = compiled(Triangular)


class FixedSize(Prototypes, Ridge):
    """The fixed-size LS-SVM (De Brabanter 2010): ridge regression in Nystroem features.

    `Prototypes` describes the settings that are not listed.

    With many rows for each prototype, and folds of over 1,000 rows, the search `Profile` first
    compares kernels by machines fitted to a part of the rows. They are validated on two whole
    folds, by their squared errors unless the user states a metric. Then `C` is tuned for all rows;
    for classes also a common factor of the lengthscales, above 1. This needs a single CPU, rows in
    memory, folds of similar sizes, and binary problems that see all classes. The more rows, the
    more time it saves.

    Args:
        tuned_with: tune the kernel for a machine of only the first `tuned_with` prototypes; then,
            with the same folds, retune `C` and one common factor of the lengthscales for all
            prototypes. This takes a few Cholesky factors, and no eigendecomposition. If the large
            machine does not lower the score by one standard error of the paired difference on the
            folds, the smaller machine is the result. None: tune for all prototypes directly.
        solver: "cholesky" sums products of features over the rows and factorises the sums, in
            `n m^2` operations. "conjugate_gradients" multiplies by the kernel matrix of rows and
            prototypes, block by block, in some tens of passes over the rows of `n m` kernel values
            each. It suits 5,000 prototypes and more. A machine of `tuned_with` prototypes, by
            default 1,000, tunes the kernel and `C`. Then only `C` is retuned, on one fold that is
            held out. The result has all prototypes. The rows must be in memory on one device.
        max_iterations: limit of the steps of conjugate gradients for each `C`.
    """

    tuned_with: int | None = option(
        None,
        "tune the kernel for a machine of only M prototypes, then fit with all prototypes",
        kind="count",
        metavar="M",
    )
    solver: Solver = option(
        "cholesky",
        "how the system is solved; conjugate_gradients suits 5,000 prototypes and more",
        choices=get_args(Solver),
        kw_only=True,
    )
    max_iterations: int = iteration_limit(iterative.MAX_ITERATIONS, kw_only=True)

    name: ClassVar[str] = "fixed-size"
    title: ClassVar[str] = "fixed-size LS-SVM"

    @property
    def nested(self) -> bool:
        """See `Prototypes.nested`: also true if fewer prototypes tune the kernel."""
        return super().nested or self.tuned_with is not None or self._uses_conjugate_gradients

    @property
    def _uses_conjugate_gradients(self) -> bool:
        """Whether the solver is conjugate gradients, which need all rows in every step."""
        return self.solver == "conjugate_gradients"

    @property
    def _several_numbers(self) -> bool:
        """Whether cross-validation chooses among several numbers of prototypes."""
        return len(self.sizes) > 0 or self.n_prototypes == "auto"

    @property
    def plan_arguments(self) -> dict[str, Any]:
        """See `Method.plan_arguments`."""
        return super().plan_arguments | {"solver": self.solver}

    @property
    def why_alone(self) -> str | None:
        """See `Method.why_alone`."""
        if self._several_numbers:
            return "a batch needs one number of prototypes, not several"
        if self._surrogate() is not None:
            return "a batch needs tuned_with=None and solver='cholesky'"
        if self.selection != "renyi":
            return f"a batch needs selection='renyi', not {self.selection!r}"
        return None

    @property
    def shares_work_over_C(self) -> bool:
        """See `Method.shares_work_over_C`.

        One eigendecomposition serves all values of `C`. But if fewer prototypes tune the kernel,
        see `tuned_with`, the machine of all prototypes is solved separately for each `C`.
        """
        return self._surrogate() is None

    def check_movable(self) -> None:
        """See `Method.check_movable`: allowed for one size, unless fewer prototypes tune."""
        if self._several_numbers or self._surrogate() is not None:
            super().check_movable()

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if self.tuned_with is not None:
            if self._several_numbers:
                raise ValueError("tuned_with: expected None with several n_prototypes")
            most = 2**31 - 1 if self.n_prototypes is None else self.largest
            whole_number("tuned_with", self.tuned_with, 1, most, "n_prototypes")
        check_choice("solver", self.solver, Solver)
        whole_number("max_iterations", self.max_iterations, 1)
        if self._uses_conjugate_gradients and self._several_numbers:
            raise ValueError("solver: expected 'cholesky' with several n_prototypes")

    def check_sums(self, argument: str) -> Any:
        """See `Method.check_sums`."""
        if self._uses_conjugate_gradients:
            why = " with solver='conjugate_gradients', which needs the rows in every step"
            raise sums_needed(self, argument, why)
        return super().check_sums(argument)

    def check_code(self, argument: str, code: Code | None) -> None:
        """See `Method.check_code`: conjugate gradients have one system for all problems."""
        if self._uses_conjugate_gradients and code is not None and not code.shares_all_rows:
            raise ValueError(
                f"{argument}: expected a scheme in which every problem sees every class, such as "
                "'one_versus_rest', with solver='conjugate_gradients'"
            )

    def check_C_per_problem(self) -> None:
        """See `Method.check_C_per_problem`: conjugate gradients have one system for all."""
        if self._uses_conjugate_gradients:
            raise ValueError("C_per_problem: expected False with solver='conjugate_gradients'")

    def resolve(self, shape: Shape) -> "FixedSize":
        """See `Method.resolve`."""
        if shape.linear and self._uses_conjugate_gradients:
            raise ValueError(
                "solver: expected 'cholesky' with the linear kernel, whose features are the inputs"
            )
        return cast(FixedSize, super().resolve(shape))

    def capped(self, shape: Shape) -> "FixedSize":
        """See `Method.capped`."""
        return replaced(super().capped(shape), tuned_with=at_most(self.tuned_with, shape.n))

    def features(self, kernel: Kernel, points: Float[Array, "m d"]) -> FeatureMap:
        """See `FromSums.features`: triangular features if fewer prototypes tune the kernel."""
        if self._surrogate() is not None and not isinstance(kernel, Linear):
            return _triangular(kernel, points)
        return feature_map(kernel, points)

    def solve(
        self, sums: Sums, C: CLike, code: Code | None = None, key: Key | None = None
    ) -> Family:
        """See `FromSums.solve`, and `solve` of this module."""
        machine = solve(sums.features, sums.equations, C, code)
        return single(machine.expansion, machine.status, diagnostics(machine))

    def fit_and_sum(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None,
        sums: Any = None,
    ) -> tuple[Family, Sums | None]:  # fmt: skip
        """See `Method.fit_and_sum`; for conjugate gradients `sums` is a `Start` or None."""
        if not self._uses_conjugate_gradients:
            return super().fit_and_sum(kernel, points, C, rows, key, sums)
        assert points is not None
        C = jnp.asarray(C, rows.dtype)
        return iterative.fit_rows(kernel, points, C, rows, sums, self.max_iterations), None

    def fits_from_fold_sums(self, r: int, s: int) -> bool:
        """See `Method.fits_from_fold_sums`: not with conjugate gradients, which have no sums."""
        return not self._uses_conjugate_gradients and super().fits_from_fold_sums(r, s)

    def held_out(
        self, kernel: Kernel, points: PointTable, C: Float[Array, " s"], rows: Rows,
        folds: FoldLayout, on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """See `Method.held_out`; conjugate gradients hold out only the first fold."""
        if not self._uses_conjugate_gradients:
            return super().held_out(kernel, points, C, rows, folds, on_fold, key)
        assert points is not None
        folds = self.validation_folds(folds, len(rows))
        return iterative.held_out(kernel, points, C, rows, folds, on_fold, self.max_iterations)

    def validation_folds(self, folds: Any, n: int) -> Any:
        """See `Method.validation_folds`: the first fold, for conjugate gradients."""
        if not self._uses_conjugate_gradients:
            return folds
        return folds._replace(index=folds.index[:1], valid=folds.valid[:1])

    def validation_text(self, folds: int) -> str:
        """See `Method.validation_text`."""
        text = super().validation_text(folds)
        return f"1 of {text} held out" if self._uses_conjugate_gradients else text

    def solver_text(self, info: Mapping[str, Any]) -> str | None:
        """See `Method.solver_text`: how conjugate gradients ended; None for Cholesky."""
        if not self._uses_conjugate_gradients:
            return None
        residual = float(info["relative_residual"])
        return f"conjugate gradients, {info['steps']} steps, residual {residual:.1g}"

    def fold_machines(
        self, kernel: Kernel, points: PointTable, C: CLike, size: int | None, rows: Rows,
        folds: Any, key: Key | None, sums: Any,
    ) -> KernelExpansion:  # fmt: skip
        """See `Method.fold_machines`; conjugate gradients have no sums to subtract from."""
        sums = None if self._uses_conjugate_gradients else sums
        return super().fold_machines(kernel, points, C, size, rows, folds, key, sums)

    def stages_of_one_size(
        self, problem: Any, search: Any
    ) -> Generator[Stage, Outcome | None, Chosen]:
        """See `Method.stages_of_one_size`.

        With `tuned_with`, tune a smaller machine first. If the search moves prototypes, move them
        after the kernel is tuned.
        """
        small = self._surrogate()
        if small is not None and self._uses_conjugate_gradients:
            return (yield from self._iterated_stages(small, problem, search))
        if small is not None and search.tune_kernel:
            return (yield from self._rescaled_stages(small, problem, search))
        if search.near_a_sample and search.tune_kernel and problem.rows_of_part is not None:
            return (yield from self._stages_of_a_part(problem, search))
        best = yield from super().stages_of_one_size(problem, search)
        if not search.move_prototypes:
            return best
        first = best.outcome
        tuned = first.problem.with_kernel(first.tuning.kernel)
        moved = yield Stage(tuned, search.descent_of_prototypes(first.tuning), optional=True)
        if moved is None or not better_by(first, moved, 0.0):
            return best
        return Chosen(moved.with_theta(first.tuning.theta), moved=True)

    def rows_of_part(self, n: int, m: int) -> int | None:
        """See `Method.rows_of_part`."""
        rows = max(ROWS_FOR_EACH * m, LEAST_PART)
        return rows if n >= LEAST_RATIO * rows else None

    def _stages_of_a_part(
        self, problem: Any, search: Any
    ) -> Generator[Stage, Outcome | None, Chosen]:
        """Tune the kernel by machines of a part of the rows, then `C` by machines of all rows.

        Kernels are compared by their squared errors, unless the user states a metric. If the second
        stage minimises another metric, it also tries larger lengthscales, as long as they err less:
        the share of wrong classes was least at larger lengthscales than the squared error.
        """
        problem = problem.with_compared("mse")
        rescaling = search.rescaling(() if problem.scoring.compares_as_it_scores else (1,))
        part = problem.on_a_part(PART_FOLDS)
        first = yield Stage(part, search, planned_later=rescaling.planned(problem))
        assert first is not None
        kernel = first.tuning.kernel
        del first, part  # with the sums and predictions that the part has kept
        last = yield Stage(problem.with_template(kernel), rescaling)
        assert last is not None
        return Chosen(last.with_theta(problem.theta_of(last.tuning.kernel)))

    def _rescaled_stages(
        self, small: "FixedSize", problem: Any, search: Any
    ) -> Generator[Stage, Outcome | None, Chosen]:
        """Tune a machine of fewer prototypes, `small`; then adapt kernel and `C` to all prototypes.

        The second stage retunes `C` and one common factor of the lengthscales. It tries only values
        of `C` near the best one, as each value needs a factorisation for each fold.
        """
        smaller = problem.with_method(small).at_size(small.largest)
        rescaling = search.rescaling()
        first = yield from _tuned(smaller, search, rescaling.planned(problem))
        larger = problem.with_template(first.tuning.kernel)
        near = _near(problem.C, first.tuning.C)
        last = yield Stage(larger, rescaling, near, optional=True)
        if last is None or not better_on_folds(first, last, LARGER_GAIN):
            return Chosen(first)
        return Chosen(last.with_theta(problem.theta_of(last.tuning.kernel)))

    def _iterated_stages(
        self, small: "FixedSize", problem: Any, search: Any
    ) -> Generator[Stage, Outcome | None, Chosen]:
        """Tune a machine of fewer prototypes, `small`; then retune only `C` for all prototypes."""
        smaller = problem.with_method(small).at_size(small.largest)
        first = yield from _tuned(smaller, search, 1)
        larger = problem.with_kernel(first.tuning.kernel)
        last = yield Stage(larger, search.of_C_alone(), _near(problem.C, first.tuning.C))
        assert last is not None
        return Chosen(last.with_theta(first.tuning.theta))

    def _surrogate(self) -> "FixedSize | None":
        """Return the method of fewer prototypes that tunes the kernel; None if all tune it."""
        if self._uses_conjugate_gradients:
            m = TUNED_WITH if self.tuned_with is None else self.tuned_with
            few = m if self.n_prototypes is None else min(m, self.largest)
            return replaced(self, n_prototypes=few, tuned_with=None, solver="cholesky")
        if self.tuned_with is None:
            return None
        if self.n_prototypes is not None and self.tuned_with >= self.largest:
            return None
        return replaced(self, n_prototypes=self.tuned_with, tuned_with=None)


def _tuned(
    problem: Any, search: Any, planned_later: int
) -> Generator[Stage, Outcome | None, Outcome]:
    """Yield the stages of a cheaper problem; return the outcome that its method keeps."""
    stages = problem.method.stages_of_one_size(problem, search)
    outcome = yield from stages_within(stages, planned_later=planned_later)
    assert outcome is not None
    return outcome


def _near(grid: Float[np.ndarray, " s"], C: float) -> Float[np.ndarray, " t"]:
    """Return the values of the grid within a factor of 5 of `C`, in increasing order."""
    return np.sort(grid[np.abs(np.log(grid / C)) <= np.log(5.0)])


class FixedSizeFit(NamedTuple):
    """A fitted machine, with diagnostics of its linear system."""

    expansion: KernelExpansion
    # sum_i d_i / (d_i + 1/C), with `d` the eigenvalues of the centred Gram matrix G.
    degrees_of_freedom: Float[Array, ""]
    effective_rank: Int[Array, ""]  # number of eigenvalues of G above rounding noise
    relative_residual: Float[Array, ""]  # |G w - c + w/C| / |c|, for the system (G + I/C) w = c
    status: Int[Array, ""]

    __repr__ = short_repr


@same_rows
def fit(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    intercept_penalty: ScalarLike = 0.0,
    mesh: Mesh | None = None,
    block_rows: int | None = None,
) -> FixedSizeFit:
    """Fit a fixed-size LS-SVM (De Brabanter 2010, eq. 5-7).

    Minimises `1/2 |w|^2 + C/2 sum_i weight_i (y_i - phi(x_i)'w - b)^2` over the Nystroem features
    of the prototypes. Classification is the same with targets -1 and +1.

    Args:
        kernel: kernel of two points.
        prototypes: shape `m d`, `m <= n`.
        C: weight of the data-fit term, positive.
        X: inputs, shape `n d`, in the units of the prototypes.
        y: targets, shape `n`, or `n c` for several at once.
        weights: row weights, shape `n`, at least 0.
        intercept_penalty: adds `intercept_penalty/2 b^2` to the objective: 0 for the LS-SVM, 1 for
            eq. 7 as printed.
        mesh: devices over which the rows are spread, see `accumulate` (static).
        block_rows: rows in memory at a time (static).

    Returns:
        The expansion with its diagnostics. The status is `TRUNCATED` if `C` is so large that the
        solution needs features lost to rounding, `PRECISION_LOST` if rounding, not the data,
        decides the solution.

    Pure; differentiable in all floating arguments, in both modes; works under `jit` and `vmap`, and
    nothing compiles again when values change.

    Raises:
        ValueError: for shapes that do not fit, m > n, or (outside `jit`) NaN or infinity in X, y or
            the prototypes, C not positive, or negative weights.

    Example:
        >>> import jax.numpy as jnp
        >>> from jsparse.kernels import RBF
        >>> X = jnp.linspace(-2.0, 2.0, 50)[:, None]
        >>> machine = fit(RBF(1.0), X[::10], 1e3, X, X[:, 0] ** 2).expansion
        >>> machine(jnp.array([[1.0], [-2.0]])).round().astype(int).tolist()
        [1, 4]
    """
    _check_scalar(C)
    X, y, weights = in_one_dtype(X, y, weights)
    prototypes = as_float(prototypes).astype(X.dtype)
    check_problem(prototypes, C, X, y, weights, intercept_penalty, kernel=kernel)
    penalty, rows = penalty_or_none(intercept_penalty, X), (X, y, weights)
    return _fit_kernel(kernel, prototypes, like(C, X), rows, penalty, mesh, block_rows)


@same_rows
def fit_features(
    feature_map: FeatureMap,
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    intercept_penalty: ScalarLike = 0.0,
    mesh: Mesh | None = None,
    block_rows: int | None = None,
) -> FixedSizeFit:
    """Fit as `fit` does, with any feature map whose penalty is the squared norm.

    With `features.Linear` the result is the linear machine in the primal.
    """
    _check_scalar(C)
    check_penalty(feature_map)
    X, y, weights = in_one_dtype(X, y, weights)
    check_problem(None, C, X, y, weights, intercept_penalty)
    penalty, rows = penalty_or_none(intercept_penalty, X), (X, y, weights)
    return _fit(feature_map, like(C, X), rows, None, penalty, mesh, block_rows)


@same_rows
def fit_classes(
    feature_map: FeatureMap,
    C: CLike,
    X: Float[Array, "n d"],
    labels: Int[Array, " n"],
    code: Code,
    weights: Float[Array, " n"] | None = None,
    *,
    intercept_penalty: ScalarLike = 0.0,
    mesh: Mesh | None = None,
    block_rows: int | None = None,
) -> FixedSizeFit:
    """Fit the problems of an output code, in one pass over the rows (De Brabanter 2010, Sec. 8.4).

    The `labels` are class numbers 0..k-1, shape `n`. Under `jit`, a label out of range makes the
    machine NaN, with the status `NOT_FINITE`; outside `jit` it raises ValueError. The `code` comes
    from `multiclass.output_code`. `C` may hold a weight for each problem, shape `l`. Other
    arguments are as for `fit_features`.

    Returns:
        An expansion with one column for each problem, for `multiclass.decode`, and the worst
        diagnostics over problems.

    Pure; differentiable in the feature map, `C`, `X` and `weights`, in both modes.
    """
    check_penalty(feature_map)
    X, y, weights = in_one_dtype(X, jnp.zeros(len(labels)), weights)
    check_problem(None, C, X, y, weights, intercept_penalty)
    check_labels(labels, code.matrix.shape[0])
    penalty, rows = penalty_or_none(intercept_penalty, X), (X, labels, weights)
    C = nan_for_wrong_labels(jnp.asarray(C, X.dtype), labels, code.matrix.shape[0])
    return _fit(feature_map, C, rows, code.astype(X.dtype), penalty, mesh, block_rows)


def solve(
    feature_map: FeatureMap,
    equations: NormalEquations,
    C: CLike,
    code: Code | None = None,
    *,
    intercept_penalty: ScalarLike = 0.0,
) -> FixedSizeFit:
    """Fit, given sums over rows: `fit_features` or `fit_classes` without the pass over the rows.

    Sums are additive: `solve(phi, equations + accumulate(phi, X_new, y_new), C)` also fits later
    rows.

    Args:
        feature_map: the features that were summed; the penalty is the squared norm of their
            coefficients.
        equations: from `accumulate`, or with a code from `multiclass.accumulate_code`.
        C: weight of the data-fit term; with a code also one for each problem, shape `l`.
        code: see `multiclass.output_code`; None if `equations` were summed without a code.
        intercept_penalty: see `fit`.

    Pure; differentiable in the feature map, the sums and `C`, in both modes.

    Raises:
        ValueError: (outside `jit`) if C is not positive or the intercept's penalty is negative.
    """
    check_penalty(feature_map)
    check_penalties(C, intercept_penalty)
    dtype = equations.gram.dtype
    code = None if code is None else code.astype(dtype)
    penalty = penalty_or_none(intercept_penalty, equations.gram)
    return _solve(feature_map, equations, jnp.asarray(C, dtype), code, penalty)


@functools.partial(compiled, static_argnames=("mesh", "block_rows"))
def _fit_kernel(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    C: Float[Array, ""],
    rows: tuple[Array, Array, Array | None],
    intercept_penalty: Float[Array, ""] | None,
    mesh: Mesh | None,
    block_rows: int | None,
) -> FixedSizeFit:
    """Fit in Nystroem features, which are not centred if the intercept is penalised."""
    phi = Nystroem(kernel, prototypes)
    # A penalised intercept belongs to the uncentred features of eq. 5.
    if intercept_penalty is not None:
        shift = jnp.where(intercept_penalty == 0, phi.shift, 0)
        phi = eqx.tree_at(lambda map: map.shift, phi, shift)
    return _fit(phi, C, rows, None, intercept_penalty, mesh, block_rows)


@functools.partial(compiled, static_argnames=("mesh", "block_rows"))
def _fit(
    feature_map: FeatureMap,
    C: Float[Array, ""] | Float[Array, " l"],
    rows: tuple[Array, Array, Array | None],
    code: Code | None,
    intercept_penalty: Float[Array, ""] | None,
    mesh: Mesh | None,
    block_rows: int | None,
) -> FixedSizeFit:
    """Fit to `rows`: inputs; targets, or labels with a code; and weights."""
    options = {"mesh": mesh, "block_rows": block_rows}
    if code is None:
        equations = accumulate(feature_map, *rows, **options)
    else:
        equations = accumulate_code(code, feature_map, *rows, **options)
    return _solve(feature_map, equations, C, code, intercept_penalty)


@functools.partial(compiled, quickly=True)
def _solve(
    feature_map: FeatureMap,
    equations: NormalEquations,
    C: Float[Array, ""] | Float[Array, " l"],
    code: Code | None,
    intercept_penalty: Float[Array, ""] | None,
) -> FixedSizeFit:
    """Fit from sums over rows, see `solve`; None is an intercept penalty of 0."""
    if code is None:
        solution = equations.solve(C[None], intercept_penalty)
    else:
        solution = solve_code(code, equations, C[None], intercept_penalty)
        if not code.shares_all_rows:  # then there are sums for each class
            equations = equations.joined
    unresolved = feature_map.unresolved(jnp.max(C), equations.energy)
    lost = jnp.where(unresolved, TRUNCATED, CONVERGED).astype(jnp.int32)
    return FixedSizeFit(
        expansion=feature_map.expansion(solution.weights[0], solution.intercept[0]),
        degrees_of_freedom=solution.degrees_of_freedom[0],
        effective_rank=solution.effective_rank,
        relative_residual=solution.relative_residual[0],
        status=jnp.maximum(solution.status[0], lost),
    )


def _check_scalar(C: ScalarLike) -> None:
    if jnp.ndim(C) != 0:
        raise ValueError(f"C: expected one number, got shape {jnp.shape(C)}; use vmap for several")
