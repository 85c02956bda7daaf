"""SCDP-FSLSSVM: fixed-size LS-SVMs of growing size by sparse conjugate directions pursuit."""

import functools
import math
from collections.abc import Sequence
from typing import ClassVar, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._arguments import as_key
from .._blocks import systems_at_once
from .._numerics import as_array, as_float, epsilon, like, present_targets, resolves_products
from .._programs import compiled
from .._status import COMPLETED, CONVERGED, PRECISION_LOST, TRUNCATED
from .._types import CLike, Key, KeyLike, ScalarLike
from ..kernels import Kernel
from ..multiclass import Code
from ..normal_equations import NormalEquations, accumulate
from ..pursuit.path import Path
from ..pursuit.system import check_atoms
from . import scdp_rows
from .candidates import CandidatesFromSums
from .checks import check_choice, check_points, check_problem, in_one_dtype
from .family import Family
from .held_out import C_and_folds, HeldOut, OnFold, Sums, each_size, over_C_and_folds, where_wanted
from .method import FEW_C, Task, check_number, setting
from .nested import nested_family, with_sizes
from .rows import Rows
from .scdp_system import CandidateColumns, candidate_columns, intercept_path, path_values, select
from .stopping import Stopping

Selection = Literal["joint", "separate"]
FIRST_LENGTH = 32  # length of the first paths to validate, with a stopping rule


class SCDP(CandidatesFromSums):
    """SCDP-FSLSSVM: fixed-size LS-SVMs of growing size (Karsmakers 2011, Section 4).

    Prototypes are selected out of candidates one after another: each step takes the candidate with
    the largest residual. Cross-validation of the whole path chooses how many to keep.

    `Candidates` describes the settings that are not listed.

    Args:
        subset: number of random candidates examined for each prototype (SCDPP); None for all.
        selection: whether several problems or targets have the same prototypes, "joint", or
            "separate" ones.
        stopping: end a path once its error no longer changes (eq. 38), to save time. By default all
            paths have `max_prototypes`, the paper's safest choice.
        nu: penalty of the intercept, see `fit`.
    """

    name: ClassVar[str] = "scdp"
    title: ClassVar[str] = "SCDP"
    default_C: ClassVar[Float[np.ndarray, " s"]] = FEW_C  # each value takes a path for every fold

    selection: Selection = setting("joint")
    stopping: Stopping | None = setting(None)
    nu: ScalarLike = 0.0

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_choice("selection", self.selection, Selection)
        check_number("nu", self.nu, 0.0)
        if self.stopping is not None:
            if not isinstance(self.stopping, Stopping):
                raise ValueError(f"stopping: expected a Stopping or None, got {self.stopping!r}")
            self.stopping.check()

    def fits_from_fold_sums(self, r: int, s: int) -> bool:
        """See `Method.fits_from_fold_sums`."""
        return True

    def shorter(self) -> "Sequence[SCDP]":
        """See `Method.shorter`: with a stopping rule, paths of 32, 64, .. prototypes.

        The first path has twice the rule's `window` if that is more than 32. A shorter path is the
        beginning of a longer one, so the rule ends both at one length. The cost of a path grows
        with the square of its length: a path twice as long costs three times all shorter ones.
        """
        if self.stopping is None:
            return (self,)
        methods, length = [], max(FIRST_LENGTH, 2 * self.stopping.window)
        while length < self.largest_size:
            methods.append(cast(SCDP, self.shortened(length)))
            length *= 2
        return (*methods, self)

    def path_end(self, scores: Float[np.ndarray, " k"]) -> int | None:
        """See `Method.path_end`: the stopping rule decides."""
        return None if self.stopping is None else self.stopping.path_length(scores)

    def features(self, kernel: Kernel, points: Float[Array, "M d"]) -> CandidateColumns:
        """See `FromSums.features`: the kernel columns."""
        return candidate_columns(kernel, points)

    def paths(
        self,
        columns: CandidateColumns,
        equations: NormalEquations,
        C: Float[Array, ""],
        key: Key | None,
    ) -> tuple[Path, Float[Array, "v k c"]]:
        """Return the paths of a batch of sums, and the intercepts of their machines.

        With `selection="separate"` there is a path for each target of each member of the batch,
        target after target. All paths use the same random subsets.

        Args:
            columns: the features whose products were summed.
            equations: sums with a leading batch axis, and a column for each of `c` targets.
            C: weight of the data-fit term.
            key: decides the random subsets.
        """
        nu = like(self.nu, C)
        A, b, rounded, feature_sum = jax.vmap(lambda sums: columns.system(sums, C, nu))(equations)
        separate = self.selection == "separate"
        problems = b.shape[-1] if separate else 1
        owner = jnp.repeat(jnp.arange(len(A), dtype=jnp.int32), problems)

        def by_problem(a: Array) -> Array:  # `g .. c` to `g*c .. 1`
            return jnp.moveaxis(a, -1, 1).reshape(-1, *a.shape[1:-1], 1) if separate else a

        path = select(
            A, by_problem(b), rounded, owner, None if self.subset is None else key,
            max_prototypes=self.largest_size, subset=cast(int | None, self.subset),
        )  # fmt: skip
        intercepts = intercept_path(
            path,
            jnp.take_along_axis(feature_sum[owner], jnp.maximum(path.support, 0), axis=1),
            by_problem(equations.target_sum),
            (equations.weight_sum + nu)[owner],
        )
        return path, intercepts

    def solve(
        self, sums: Sums, C: CLike, code: Code | None = None, key: Key | None = None
    ) -> Family:
        """See `FromSums.solve`; in float32 `fit` is more precise, as it reads the rows."""
        assert isinstance(sums.features, CandidateColumns)
        family = _solve(self, *sums, jnp.asarray(C, sums.equations.gram.dtype), key)
        return with_sizes(family, np.arange(1, self.largest_size + 1))

    def fit_in_memory(
        self, kernel: Kernel, points: Float[Array, "M d"], C: CLike, rows: Rows, key: Key | None
    ) -> Family:
        """See `fit` of this module."""
        return fit(
            kernel, points, cast(ScalarLike, C), rows.X, rows.targets, rows.weights, nu=self.nu,
            max_prototypes=self.largest_size, selection=self.selection,
            subset=cast(int | None, self.subset), key=None if self.subset is None else key,
        )  # fmt: skip

    def held_out_from_sums(
        self, sums: Sums, per_fold: NormalEquations, C: Float[Array, " s"], parts: Rows,
        on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """See `FromSums.held_out_from_sums` (Karsmakers 2011, Algorithm 4).

        On a CPU the folds run one after another, as one fold keeps the CPU busy. Elsewhere the
        paths of all folds run as one batch.
        """
        columns, total = sums
        assert isinstance(columns, CandidateColumns)
        s, v = len(C), len(parts.weights)
        folds_at_once = 1 if systems_at_once() == 1 else v
        groups = jax.tree.map(
            lambda a: a.reshape(v // folds_at_once, folds_at_once, *a.shape[1:]),
            ((parts.X, parts.y, parts.weights), per_fold),
        )

        def predict(place: tuple[Array, Array]) -> tuple[PyTree, PyTree, Int[Array, " f"]]:
            i, group = place
            rows, fold_sums = jax.tree.map(lambda a: a[group], groups)
            training = jax.tree.map(lambda t, a: t[None] - a, total, fold_sums)
            path, intercepts = self.paths(columns, training, C[i], key)
            problems = len(path.support) // folds_at_once  # number of separate paths for each fold
            fold = jnp.repeat(jnp.arange(folds_at_once, dtype=jnp.int32), problems)
            values = path_values(columns, path, intercepts, rows[0], fold)
            if problems > 1:
                values = jnp.moveaxis(
                    values.reshape(folds_at_once, problems, *values.shape[1:3]), 1, -1
                )
            which = each_size(i, values.shape[2])

            def reduce(rows: tuple[Array, Array, Array], values: Array) -> tuple[PyTree, PyTree]:
                return on_fold(Rows(*rows, parts.code, parts.mesh), values, which)

            return *jax.vmap(reduce)(rows, values), jnp.full(folds_at_once, jnp.max(path.status))

        wanted = on_fold.wanted if folds_at_once == 1 else None
        results = jax.lax.map(where_wanted(predict, wanted), C_and_folds(s, v // folds_at_once))
        results = jax.tree.map(lambda a: jax.lax.collapse(a, 0, 2), results)
        return over_C_and_folds(results, on_fold, s, v)


def fit(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    max_prototypes: int,
    nu: ScalarLike = 0.0,
    selection: Selection = "joint",
    subset: int | None = None,
    key: KeyLike | None = None,
    formed: bool | None = None,
    block_rows: int | None = None,
) -> Family:
    """Fit fixed-size LS-SVMs of 1, 2, .. prototypes (Karsmakers 2011, Section 4.3).

    Sparse conjugate directions pursuit of the system (34): each step selects the candidate with the
    largest residual, and solves the fixed-size LS-SVM on the prototypes selected so far. Every
    machine has an intercept, which is eliminated from the system.

    In float32, once the prototypes are selected, orthogonal transformations of the rows compute the
    coefficients again. Their error is then proportional to the condition number of the kernel
    columns, not to its square.

    Args:
        kernel: kernel of two points.
        candidates: points to choose prototypes from, shape `M d`.
        C: weight of the data-fit term, positive.
        X: inputs, shape `n d`, in the units of the candidates.
        y: targets, shape `n`, or `n c` for several at once.
        weights: row weights, shape `n`, at least 0.
        max_prototypes: length of the path, at most `M` (static).
        nu: penalty of the intercept, which adds `C nu/2 b^2` to the objective (34). Its effect
            depends on the units of the weights. The paper uses 1e-8, as it keeps the intercept in
            the system.
        selection: whether several targets have the same prototypes, "joint", or "separate" ones
            (static).
        subset: number of random candidates examined for each prototype (SCDPP; Section 3.5.2, where
            it is 59); None for all (static).
        key: decides the random subsets.
        formed: whether to sum the system of all candidates, `M M`, first (static). With False,
            which needs a `subset`, each step computes the kernel columns that it examines, and
            memory holds `n x k` numbers. None chooses the faster way by a count of operations, but
            True with `block_rows`.
        block_rows: rows in memory at a time while the system is summed (static).

    Returns:
        A `Family` of the sizes 1 to `max_prototypes`, with one group of outputs for "joint". Its
        `info` has the length and status of each group's path, and for each machine the condition
        number of its system and the estimated relative error of its coefficients.

    Pure; works under `jit` and `vmap`, and nothing compiles again when values change. The machines
    are differentiable in both modes, any number of times, in all floating arguments where the
    selection does not change. The figures in `info` have derivatives of 0.

    Raises:
        ValueError: for inputs whose shapes do not fit, values known to be out of range, more
            prototypes than candidates, or only one of `subset` and `key`.
    """
    X, candidates = as_float(X), as_float(candidates)
    X, y, weights = in_one_dtype(X, as_array(y), weights)
    check_problem(None, C, X, y, weights, nu, kernel=kernel)
    check_points("candidates", candidates, X.shape[1])
    M, what = len(candidates), "candidates"
    max_prototypes = check_atoms(max_prototypes, M, "max_prototypes", what)
    if (subset is None) != (key is None):
        raise ValueError("key, subset: expected both, for random subsets, or neither")
    if subset is None:
        if formed is False:
            raise ValueError(
                "formed: expected True or None without a subset, as every step then needs all "
                "columns of the system, got False"
            )
        formed = True
    else:
        subset = check_atoms(subset, M, "subset", what)
        if formed is None:
            formed = block_rows is not None or scdp_rows.is_forming_faster(
                M, max_prototypes, subset
            )
    check_choice("selection", selection, Selection)
    w = as_array(np.ones(len(X), X.dtype)) if weights is None else weights
    problem = scdp_rows.Problem(kernel, candidates, like(C, X), X, w, like(nu, X))
    family = _fit(
        problem, y, None if key is None else as_key(key), max_prototypes=max_prototypes,
        selection=selection, subset=subset, formed=formed, block_rows=block_rows,
    )  # fmt: skip
    return with_sizes(family, np.arange(1, max_prototypes + 1))


@functools.partial(
    compiled, static_argnames=("max_prototypes", "selection", "subset", "formed", "block_rows")
)
def _fit(
    problem: scdp_rows.Problem,
    y: Float[Array, " n *c"],
    key: Key | None,
    *,
    max_prototypes: int,
    selection: Selection,
    subset: int | None,
    formed: bool,
    block_rows: int | None,
) -> Family:
    def by_group(a: Float[Array, " r *c"]) -> Float[Array, "g r c"]:
        flat = a.reshape(len(a), -1)
        return flat.T[:, :, None] if selection == "separate" else flat[None]

    primals = by_group(present_targets(y, problem.w)), problem
    y, targets, problem = jax.lax.stop_gradient((y, *primals))
    kernel, candidates, C, X, w, nu = problem
    options = {"max_prototypes": max_prototypes, "subset": subset}
    if formed:
        columns = candidate_columns(kernel, candidates)
        sums = accumulate(columns, X, y, w, block_rows=block_rows)
        A, b, rounded, feature_sum = columns.system(sums, C, nu)
        b = by_group(b)
        owner = jnp.zeros(len(b), jnp.int32)  # all right-hand sides share one matrix
        path = select(A[None], b, rounded[None], owner, key, **options)
        feature_sum = feature_sum[jnp.maximum(path.support, 0)]
    else:
        assert key is not None
        path, feature_sum = jax.lax.map(
            lambda y: scdp_rows.pursue(problem, y, key, **options), targets
        )
    on_rows, solution = not resolves_products(X.dtype), path
    if on_rows:
        solution = scdp_rows.solve_again(path, targets, problem, block_rows)
    target_sum = jnp.einsum("n,vnc->vc", w, targets, precision=jax.lax.Precision.HIGHEST)
    intercepts = intercept_path(solution, feature_sum, target_sum, (jnp.sum(w) + nu)[None])
    coefficients, intercepts = scdp_rows.with_derivatives(
        solution, intercepts, *primals, block_rows
    )
    path = solution._replace(coefficients=coefficients, status=path.status)
    kernel, candidates = primals[1].kernel, primals[1].candidates
    return _family(kernel, candidates, y.shape[1:], path, intercepts, on_rows=on_rows)


@compiled
def _solve(
    method: SCDP,
    columns: CandidateColumns,
    equations: NormalEquations,
    C: Float[Array, ""],
    key: Key | None,
) -> Family:
    outputs = equations.target_sum.shape
    batch = jax.tree.map(lambda a: a[None], equations.with_outputs((math.prod(outputs),)))
    path, intercepts = method.paths(columns, batch, C, key)
    return _family(columns.kernel, columns.prototypes, outputs, path, intercepts, on_rows=False)


def _family(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    outputs: tuple[int, ...],
    path: Path,
    intercepts: Float[Array, "g k c"],
    *,
    on_rows: bool,
) -> Family:
    """Return the machines of the paths of all groups of outputs.

    With `on_rows`, the coefficients were computed from rows, not from sums.
    """
    # PRECISION_LOST is a property of machines, not of paths. A path that is too short is TRUNCATED:
    # it skipped candidates that rounding cannot distinguish from the selected ones.
    ended = jnp.where(path.size < path.support.shape[-1], TRUNCATED, COMPLETED)
    status = jnp.where(path.status == PRECISION_LOST, ended, path.status).astype(jnp.int32)
    error = epsilon(intercepts.dtype) * (jnp.sqrt(path.condition) if on_rows else path.condition)
    return nested_family(
        kernel,
        candidates,
        outputs,
        support=path.support,
        coefficients=path.coefficients,
        intercepts=intercepts,
        condition=path.condition,
        coefficient_error=error,
        coefficient_status=jnp.full(error.shape, CONVERGED, jnp.int32),  # as the solution is direct
        path_length=path.size,
        path_status=status,
    )
