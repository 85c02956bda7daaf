"""Very sparse LS-SVMs: reweighting drives most coefficients to 0 (Mall and Suykens 2015)."""

import functools
import math
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._arguments import real
from .._blocks import map_systems
from .._numerics import as_array, as_float, is_concrete, like, times_power
from .._programs import compiled
from .._status import PRECISION_LOST, TRUNCATED, VANISHED
from .._types import CLike, Key, PointTable, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..multiclass import Code
from ..normal_equations import NormalEquations, accumulate
from ..solvers.reweighted import Rule
from . import dual
from .checks import check_points, check_problem, in_one_dtype
from .family import Family, diagnostics, single
from .fixed_size import FixedSize
from .from_sums import FromSums
from .held_out import HeldOut, OnFold, Sums, each_fold, folds_wanted, zeros_unless
from .method import FEW_C, Points, Shape, Task, TrainingRows, option, replaced, setting, sums_needed
from .reduction_system import (
    Initialization,
    Loss,
    PrototypeTargets,
    ReducedFit,
    ReductionColumns,
    Start,
    Variant,
    prototype_targets,
    reduction_columns,
    solve,
    target_exponent,
)
from .row_prototypes import Prototypes
from .rows import Rows
from .sized import Sized
from .stages import Stages, surrogate_stages

MOST = 1000  # upper limit of the default number of initial prototypes


class SparseReduction(Prototypes, FromSums):
    """The SPFS-LSSVM and SSD-LSSVM (Mall and Suykens 2015): an LS-SVM with most prototypes dropped.

    A first machine has many prototypes. Iteratively reweighted ridge regression then drives most
    coefficients to 0. As in the paper, the kernel is tuned for the first machine. `C` decides how
    many prototypes are left. It is tuned for the reduction; the paper keeps the `C` of the first
    machine.

    Args:
        n_prototypes: initial number of prototypes, or several numbers, from which cross-validation
            chooses one; None for `k` times the square root of the number of rows (Table III), at
            most 1000.
        selection: how the initial prototypes are chosen: "renyi" or "uniform".
        size_tolerance: choose the smallest `C` whose error is within this many standard errors of
            the smallest error; a smaller `C` leaves fewer prototypes. The tolerance also chooses
            among several initial numbers.
        k: factor of the square root in the default of `n_prototypes`.
        initialization: the first machine: "primal" for a fixed-size LS-SVM of all rows (Algorithm
            3), or "dual" for an LS-SVM of the prototypes alone (eq. 6, Algorithm 4), which needs
            the rows in memory.
        start: the reweighting starts from the sizes of the "coefficients" of the first machine, or
            for "primal" of its "weights" in Nystroem features. Algorithm 3 prints the weights,
            although feature `j` is unrelated to prototype `j`.
        loss: the squared errors of all "rows", or of the "prototypes" alone, which is the
            SV_L0-norm PFS-LSSVM of the paper's comparison; it needs the rows in memory.
        rule: the stopping rule, see `solvers.reweighted`. "paper" also starts the iteration as
            printed. "relative" scales the targets to variance 1, and starts no prototype with a
            penalty that would force it to vanish.
    """

    name: ClassVar[str] = "reduction"
    title: ClassVar[str] = "sparse reduction"
    default_C: ClassVar[Float[np.ndarray, " s"]] = FEW_C
    shares_rows: ClassVar[bool] = True
    shares_C: ClassVar[bool] = True

    k: float = option(
        4.0,
        "initial number of prototypes, in units of the square root of the number of rows, if "
        "--prototypes is not given",
        kind="not negative",
        metavar="K",
    )
    initialization: Initialization = option(
        "primal", "the first machine, before prototypes are dropped", choices=("primal", "dual")
    )
    start: Start = setting("coefficients")
    loss: Loss = setting("rows")
    rule: Rule = setting("relative")

    @property
    def variant(self) -> Variant:
        """The settings that select one of the reductions."""
        return Variant(self.initialization, self.start, self.loss, self.rule)

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        real("k", self.k, 0.0, above=True)
        self.variant.check()
        super().check(task)

    def check_sums(self, argument: str) -> Any:
        """See `Method.check_sums`."""
        if self.variant.needs_rows:
            why = f" with settings that need the rows themselves, {self}"
            raise sums_needed(self, argument, why)
        return self

    @property
    def C_tolerance(self) -> float:
        """See `Method.C_tolerance`; a smaller `C` leaves fewer prototypes."""
        return self.size_tolerance

    def default_number(self, shape: Shape) -> int:
        """See `Sized.default_number`."""
        most = min(shape.n_present, MOST)
        return min(max(shape.classes or 1, math.ceil(self.k * math.sqrt(shape.n_present))), most)

    def resolve(self, shape: Shape) -> "SparseReduction":
        """See `Method.resolve`; the linear kernel needs prototypes too."""
        return cast(SparseReduction, Sized.resolve(self, shape))

    def for_distillation(self, prototypes: Float[np.ndarray, "m d"]) -> "SparseReduction":
        """See `Method.for_distillation`: start with as many rows as the machine has prototypes."""
        return replaced(self, n_prototypes=len(prototypes))

    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Return rows chosen by `selection`; the kernel has no effect."""
        return self.chosen_rows(key, rows)

    def features(self, kernel: Kernel, points: Float[Array, "M d"]) -> ReductionColumns:
        """See `FromSums.features`: the kernel columns."""
        return reduction_columns(kernel, points)

    def sum_rows(self, kernel: Kernel, points: PointTable, rows: Rows) -> Sums:
        """See `FromSums.sum_rows`; the features also hold targets, if the variant needs them."""
        columns, equations = super().sum_rows(kernel, points, rows)
        if self.variant.needs_rows:
            assert isinstance(columns, ReductionColumns)
            data = rows.X, rows.targets, rows.weights
            columns = columns.with_targets(prototype_targets(columns.prototypes, *data))
        return Sums(columns, equations)

    def solve(
        self, sums: Sums, C: CLike, code: Code | None = None, key: Key | None = None
    ) -> Family:
        """See `FromSums.solve`, and `fit` of this module."""
        columns, equations = sums
        assert isinstance(columns, ReductionColumns)
        _check_C(C)
        fit = solve(self.variant, columns, equations, like(C, equations.gram))
        return single(fit.expansion, fit.status, diagnostics(fit), count=fit.count)

    def fit_and_sum(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None,
        sums: Sums | None = None,
    ) -> tuple[Family, Sums | None]:  # fmt: skip
        """See `Method.fit_and_sum`: no sums if the variant needs rows too."""
        if self.variant.needs_rows:
            return super().fit_and_sum(kernel, points, C, rows, key)[0], None
        return super().fit_and_sum(kernel, points, C, rows, key, sums)

    def fits_from_fold_sums(self, r: int, s: int) -> bool:
        """See `Method.fits_from_fold_sums`."""
        return True

    def held_out_from_sums(
        self, sums: Sums, per_fold: NormalEquations, C: Float[Array, " s"], parts: Rows,
        on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """See `FromSums.held_out_from_sums`: evaluate the kernel once for all `C` of a fold.

        If the variant needs the targets of the prototypes, `parts` must hold all rows, and
        prototypes in the held-out fold have no target.
        """
        columns, total = sums
        assert isinstance(columns, ReductionColumns)
        variant, outputs, v = self.variant, parts.outputs, parts.weights.shape[0]
        targets = None
        if variant.needs_rows:
            targets = _targets_without_each_fold(columns, parts, folds_wanted(on_fold))
        wanted = None if on_fold.wanted is None else jnp.asarray(on_fold.wanted).T
        of_folds = jax.tree.map(lambda a: a[:v], per_fold), targets, wanted

        def predict(
            shared: PyTree, rows: Rows, of_fold: tuple[NormalEquations, Any, Any]
        ) -> tuple[Float[Array, "r s l"], Int[Array, " s"]]:
            columns, total, C = shared
            fold, targets, wanted = of_fold
            columns = columns if targets is None else columns.with_targets(targets)
            training, M = (total - fold).with_outputs(outputs), columns.n_features

            def one(C: Float[Array, ""]) -> tuple[Array, Array, Array]:
                machine, *_, status = solve(variant, columns, training, C)
                return machine.coefficients.reshape(M, -1), machine.intercept.reshape(-1), status

            if wanted is None:
                results = map_systems(one, C)
            else:
                results = map_systems(zeros_unless(one), (C, wanted))
            coefficients, intercepts, status = results
            flat = jnp.moveaxis(coefficients, 0, 1).reshape(M, -1), intercepts.reshape(-1)
            machines = KernelExpansion(columns.kernel, columns.prototypes, *flat)
            # The error on the fold is valid even if a machine lost digits or all prototypes.
            valid = (status == PRECISION_LOST) | (status == VANISHED)
            status = jnp.where(valid, jnp.int32(TRUNCATED), status)
            return machines(rows.X).reshape(len(rows), len(C), -1), status

        shared = columns, total, C
        held = each_fold(predict, shared, of_folds, C, parts, on_fold, only_wanted=True)
        if wanted is None:
            return held

        def only_wanted(sums: Float[Array, "v s ..."]) -> Float[Array, "v s ..."]:
            return jnp.where(jnp.expand_dims(wanted, range(2, sums.ndim)), sums, 0)

        # The machines that are not wanted are zero, but not their losses.
        return held._replace(sums=jax.tree.map(only_wanted, held.sums))

    def stages_of_one_size(self, problem: Any, search: Any) -> Stages:
        """See `Method.stages_of_one_size`: the kernel is tuned for the first machine, then `C`."""
        if self.initialization == "dual":
            first = problem.on_its_points().with_method(dual.Dual())
        else:
            first = problem.with_method(FixedSize(self.largest, selection=self.selection))
        best = yield from surrogate_stages(first, problem, search)
        outcome = best.outcome
        tuning = outcome.tuning.sparsest(self.size_tolerance)
        return best._replace(outcome=outcome._replace(tuning=tuning))


def _targets_without_each_fold(
    columns: ReductionColumns, parts: Rows, wanted: Bool[Array, " v"] | None
) -> PrototypeTargets:
    """Return the targets of the prototypes from the rows outside each fold, leading axis `v`.

    If `wanted` is given, a loop over folds returns zeros for the folds that are not wanted.
    """
    X, y = (a.reshape(-1, a.shape[-1]) for a in (parts.X, parts.target_columns))
    folds = jnp.arange(len(parts.X), dtype=jnp.int32)

    def one(fold: Int[Array, ""]) -> PrototypeTargets:
        weights = jnp.where((folds == fold)[:, None], 0, parts.weights).reshape(-1)
        return prototype_targets(columns.prototypes, X, y, weights)

    if wanted is None:
        return jax.lax.map(one, folds)
    return jax.lax.map(zeros_unless(one), (folds, wanted))


def fit(
    kernel: Kernel,
    prototypes: Float[Array, "M d"],
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    initialization: Initialization = "primal",
    start: Start = "coefficients",
    loss: Loss = "rows",
    rule: Rule = "relative",
    block_rows: int | None = None,
) -> ReducedFit:
    """Fit an LS-SVM, and drive most of its coefficients to 0 (Mall and Suykens 2015).

    Minimises `sum_j log |beta_j| + C/2 sum_i weight_i (y_i - f(x_i))^2 / v` over
    `f(x) = sum_j beta_j k(z_j, x) + b`. The first sum is over the coefficients that are not 0. `v`
    is the variance of the targets, or 1 with the rule "paper", which expects standardised targets.

    The reweighted systems (10) and (13) of the paper are one system, as the features of (10) are
    functions of the prototypes. The iteration starts with `lambda_j = |beta_j|` of the first
    machine, and ends at a local minimum. A prototype is kept or dropped for all outputs together.
    If every row is a prototype, "dual" is the L0-norm LS-SVM of Lopez et al. (2011), and "primal"
    with the loss "prototypes" the SV_L0-norm PFS-LSSVM. The paper compares with both.

    Args:
        kernel: kernel of two points.
        prototypes: initial prototypes, shape `M d`; there may be more prototypes than rows.
        C: weight of the data-fit term, positive; a smaller `C` leaves fewer prototypes.
        X: inputs, shape `n d`, in the units of the prototypes.
        y: targets, shape `n`, or `n c` for several at once.
        weights: row weights, shape `n`, at least 0.
        initialization: see `SparseReduction`; for "dual" the prototypes must be rows.
        start: see `SparseReduction`.
        loss: see `SparseReduction`; for "prototypes" the prototypes must be rows.
        rule: see `SparseReduction`.
        block_rows: rows in memory at a time (static).

    Returns:
        `ReducedFit`, with the status of `solvers.reweighted`; or `VANISHED` if no prototype is
        left, so that the machine is its intercept.

    Pure; works under `jit` and `vmap`, and nothing compiles again when numbers change. Not
    differentiable in reverse mode (an iteration of unknown length).

    Raises:
        ValueError: for shapes that do not fit, values known to be out of range, unknown settings,
            or if the prototypes must be rows and none of them is.
    """
    _check_C(C)
    prototypes = as_float(prototypes)
    X, y, weights = in_one_dtype(X, y, weights)
    check_problem(None, C, X, y, weights, kernel=kernel)
    check_points("prototypes", prototypes, X.shape[1])
    variant = Variant(initialization, start, loss, rule)
    variant.check()
    w = as_array(np.ones(len(X), X.dtype)) if weights is None else weights
    if variant.needs_rows and all(is_concrete(a) for a in (X, prototypes, w)):
        rows = {row.tobytes() for row in np.asarray(X)[np.asarray(w) > 0] + 0.0}
        if not any(z.tobytes() in rows for z in np.asarray(prototypes) + 0.0):
            raise ValueError(
                "prototypes: expected rows of X with a weight above 0, whose targets are needed "
                f"for initialization={initialization!r} and loss={loss!r}; none of them is"
            )
    return _fit(variant, kernel, prototypes, like(C, X), X, y, w, block_rows)


def subsampled_dual(
    kernel: Kernel,
    prototypes: Float[Array, "M d"],
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
) -> dual.DualFit:
    """Fit the SD-LSSVM, an LS-SVM of the prototypes alone (Mall and Suykens 2015, eq. 6).

    Arguments are as for `fit`. Each prototype takes its target and weight from the row of `X` that
    equals it. If no row of positive weight does, the prototype's coefficient is 0.
    """
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    targets = prototype_targets(prototypes, X, y, w)
    return dual.fit(kernel, C, prototypes, *targets, method="cholesky")


def _check_C(C: ScalarLike | Array) -> None:
    if jnp.ndim(C) != 0:
        raise ValueError(
            "C: expected one number, as all outputs share their prototypes, got shape "
            f"{np.shape(C)}"
        )


@functools.partial(compiled, static_argnames=("variant", "block_rows"))
def _fit(
    variant: Variant,
    kernel: Kernel,
    prototypes: Float[Array, "M d"],
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"],
    block_rows: int | None,
) -> ReducedFit:
    """See `fit`. A power of two scales the targets to size one before the rows are summed."""
    columns = reduction_columns(kernel, prototypes)
    y = jnp.where((weights > 0).reshape(-1, *[1] * (y.ndim - 1)), y, 0)
    exponent = target_exponent(variant, y)
    y = times_power(y[None], -exponent)[0]
    sums = accumulate(columns, X, y, weights, block_rows=block_rows)
    if variant.needs_rows:
        columns = columns.with_targets(prototype_targets(prototypes, X, y, weights))
    return solve(variant, columns, sums, C).times_power(exponent)
