"""Sparse SVM of growing size: greedy prototypes, squared hinge, Newton (Keerthi et al. 2006)."""

import dataclasses
import functools
from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from .._arguments import as_key, whole_number
from .._blocks import systems_at_once
from .._numerics import as_array, as_float, is_concrete, like, present_rows, present_targets
from .._programs import compiled
from .._status import RUNNING
from .._types import CLike, CountLike, Key, KeyLike, PointTable, ScalarLike
from ..kernels import Kernel
from ..pursuit.probabilistic import SUBSET
from ..pursuit.system import check_atoms
from . import spsvm_path
from .candidates import Candidates
from .checks import check_points, check_problem, in_one_dtype
from .family import Family
from .method import Task, check_number
from .nested import nested_family, with_sizes
from .rows import Rows
from .spsvm_newton import Objective
from .stages import Stages, surrogate_stages
from .surrogate import fixed_size_surrogate

# Optimise all coefficients whenever their number has grown by this factor; in between, optimise
# only the coefficient of the newest prototype. The total cost is then proportional to the cost of
# the last optimisation (Keerthi et al. 2006, Section 3.3).
GROWTH = 1.1
# The kernel and `C` are tuned for a quarter of the path, but at least for this number of
# prototypes: the cost of a path grows faster than its length.
SEARCHED = 32
# Prototypes of the surrogate. Fewer would favour kernels that are too smooth for prototypes
# selected out of all candidates.
SURROGATE_PROTOTYPES = 300


class SpSVM(Candidates):
    """Sparse support vector machines of growing size (Keerthi et al. 2006).

    Several classes are several binary problems, each with separate prototypes. The kernel is tuned
    for the fixed-size LS-SVM on the first candidates, at least 300, as a path for every kernel, `C`
    and fold would take many times longer. Then `C` is tuned on the first quarter of the path, at
    least 32 prototypes, and the size on the whole path. `Candidates` describes the settings that
    are not listed.

    Args:
        subset: number of random candidates examined for each prototype; None for 59.
        growth: factor by which the number of prototypes grows between optimisations of all
            coefficients, see `fit`.
    """

    name: ClassVar[str] = "spsvm"
    title: ClassVar[str] = "sparse SVM"
    tasks: ClassVar[tuple[Task, ...]] = ("classification",)
    usual_folds: ClassVar[int] = 5
    default_C: ClassVar[Float[np.ndarray, " s"]] = np.geomspace(0.1, 1000, 5)

    growth: ScalarLike = GROWTH

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_number("growth", self.growth, 1.0, finite=False)

    def stages(self, problem: Any, search: Any) -> Stages:
        """See `Method.stages`: the kernel and `C` are tuned for the first part of the path."""
        length = max(SEARCHED, self.largest_size // 4)
        if length >= self.largest_size:
            return (yield from super().stages(problem, search))
        if systems_at_once() > 1:  # a path takes the time of its largest size there
            beginning = self.shortened(length)
        else:
            fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
            beginning = _Beginning(**fields, length=length)
        tuned = yield from super().stages(problem.with_method(beginning), search)
        outcome = tuned.outcome
        problem = outcome.problem.with_method(self)
        return tuned._replace(outcome=outcome._replace(problem=problem))

    def stages_of_one_size(self, problem: Any, search: Any) -> Stages:
        """See `Method.stages_of_one_size`: tune the kernel for a fixed-size LS-SVM, then `C`."""
        surrogate = fixed_size_surrogate(problem, max(self.largest_size, SURROGATE_PROTOTYPES))
        return surrogate_stages(surrogate, problem, search)

    def fit(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None
    ) -> Family:
        """See `fit` of this module."""
        assert points is not None
        assert key is not None
        return fit(
            kernel, points, C, rows.X, rows.targets, rows.weights, key=key, growth=self.growth,
            max_prototypes=self.largest_size, subset=cast(int | None, self.subset),
            length=self.path_length,
        )  # fmt: skip

    @property
    def path_length(self) -> int:
        """The number of prototypes at which the path ends."""
        return self.largest_size


class _Beginning(SpSVM):
    """`SpSVM` with paths that end at `length` prototypes; larger sizes repeat their last machine.

    Fits share the program of the whole path, so that tuning `C` compiles no second one.
    """

    length: int = eqx.field(static=True, kw_only=True)

    @property
    def path_length(self) -> int:
        """See `SpSVM.path_length`."""
        return self.length


def fit(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: CLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    key: KeyLike,
    max_prototypes: int,
    subset: int | None = None,
    growth: ScalarLike = GROWTH,
    max_iterations: CountLike = 50,
    length: CountLike | None = None,
) -> Family:
    """Fit sparse support vector machines of 1, 2, .. prototypes (Keerthi et al. 2006, spSVM-2).

    Minimises `1/2 beta'K beta + C/2 sum_i weight_i max(0, 1 - y_i f(x_i))^2` over a growing set of
    prototypes. Each step adds, out of a random subset, the candidate whose coefficient alone lowers
    the objective most. Whenever the set has grown by the factor `growth`, Newton steps optimise all
    coefficients again. Their systems are the normal equations of the rows within the margin.
    Candidates that depend on the prototypes up to rounding are skipped. The path ends when no other
    candidates are left.

    Args:
        kernel: kernel of two points.
        candidates: points to choose prototypes from, shape `M d`.
        C: weight of the data-fit term, positive; or one for each problem, shape `l`.
        X: inputs, shape `n d`, in the units of the candidates.
        y: classes -1 and +1, shape `n`; or `n l` for several problems with separate prototypes,
            where 0 leaves the row out of a problem.
        weights: row weights, shape `n`, at least 0.
        key: decides the random subsets, which all problems share.
        max_prototypes: largest number of prototypes, at most `M` (static).
        subset: number of random candidates examined for each prototype (static); None for 59, as in
            the paper, or `M` if it is smaller.
        growth: factor by which the number of prototypes grows between optimisations of all
            coefficients; 1 to optimise them after every prototype.
        max_iterations: limit of the Newton steps of each optimisation.
        length: number of prototypes at which the path ends, from 1 to `max_prototypes`, which is
            also the default. Larger sizes repeat the last machine. Another value needs no
            compilation.

    Returns:
        A `Family` of the sizes 1 to `max_prototypes`, with a group of outputs for each problem. Its
        `info` has the length and status of each group's path. For each machine it has the condition
        number, the estimated relative error of the coefficients and the status (`EXHAUSTED` at
        `max_iterations`) of the last optimisation of all coefficients.

    Pure; works under `jit` and `vmap`, and nothing compiles again when values change. Where the
    selection does not change, differentiable in forward mode, as precisely as Newton's steps
    converged. Not differentiable in reverse mode, as the number of steps depends on values.

    Raises:
        ValueError: for shapes that do not fit, values known to be out of range, or more prototypes
            than candidates.
    """
    X, y, weights = in_one_dtype(as_float(X), as_array(y), weights)
    candidates = as_float(candidates).astype(X.dtype)
    check_problem(None, C, X, y, weights, kernel=kernel)
    check_points("candidates", candidates, X.shape[1])
    if y.ndim > 2:
        raise ValueError(f"y: expected shape (n,) or (n, l), got {y.shape}")
    _check_classes(y, weights)
    M = len(candidates)
    max_prototypes = check_atoms(max_prototypes, M, "max_prototypes", "candidates")
    subset = min(SUBSET, M) if subset is None else check_atoms(subset, M, "subset", "candidates")
    check_number("growth", growth, 1.0, finite=False)
    if is_concrete(max_iterations):
        whole_number("max_iterations", max_iterations, 1)
    length = max_prototypes if length is None else length
    if is_concrete(length):
        whole_number("length", length, 1, max_prototypes, "max_prototypes")
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    family = _fit(
        kernel, candidates, jnp.asarray(C, X.dtype), X, y, w, as_key(key), like(growth, X),
        jnp.asarray(max_iterations, jnp.int32), jnp.asarray(length, jnp.int32),
        max_prototypes=max_prototypes, subset=subset,
    )  # fmt: skip
    return with_sizes(family, np.arange(1, max_prototypes + 1))


def _check_classes(y: Float[Array, " n *c"], weights: Float[Array, " n"] | None) -> None:
    """Raise a `ValueError` unless rows with weight have classes -1 or +1. Traced values pass."""
    if not (is_concrete(y) and (weights is None or is_concrete(weights))):
        return
    # Use NumPy: inside a caller's jit, jax.numpy would trace even concrete values.
    present = slice(None) if weights is None else np.asarray(weights) > 0
    classes = np.unique(np.asarray(y)[present])
    expected = ([-1, 1], "-1 and +1") if y.ndim == 1 else ([-1, 0, 1], "-1, 0 and +1")
    if not np.isin(classes, expected[0]).all():
        listed = np.array2string(classes, threshold=6)
        raise ValueError(f"y: expected {expected[1]}, got {listed}")


@functools.partial(compiled, static_argnames=("max_prototypes", "subset"))
def _fit(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: Float[Array, ""] | Float[Array, " l"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    w: Float[Array, " n"],
    key: Key,
    growth: Float[Array, ""],
    max_iterations: Int[Array, ""],
    length: Int[Array, ""],
    *,
    max_prototypes: int,
    subset: int,
) -> Family:
    rows = present_rows(X, w, apart=True)
    kernel_values = spsvm_path.values_of_candidates(
        kernel, rows, candidates, max_prototypes, subset
    )

    def grow_path(C_and_y: tuple[Array, Array]) -> dict[str, Array]:
        C, y = C_and_y
        weights = jnp.where(y == 0, 0, w)
        objective = Objective(present_targets(y, weights), weights, C)
        problem = spsvm_path.Problem(kernel, rows, candidates, kernel_values, objective)
        last = jax.lax.while_loop(
            lambda state: state.status == RUNNING,
            lambda state: spsvm_path.step(
                problem, state, key, growth, max_iterations, length, subset=subset
            ),
            spsvm_path.init(problem, max_prototypes),
        )
        return _machines(last)

    outputs = y.shape[1:]
    each_y = y.reshape(len(X), -1).T
    each_C = jnp.broadcast_to(C, each_y.shape[:1])
    if len(each_y) == 1:
        paths = jax.tree.map(lambda a: a[None], grow_path((each_C[0], each_y[0])))
    else:  # one problem after another: a batched loop runs as long as its slowest member
        paths = jax.lax.map(grow_path, (each_C, each_y))
    return nested_family(kernel, candidates, outputs, **paths)


def _machines(last: spsvm_path.State) -> dict[str, Array]:
    """Return the arguments of `nested_family` for one group of outputs.

    Sizes beyond the end of the path repeat its last machine.
    """
    places = jnp.arange(len(last.support), dtype=jnp.int32)
    places = jnp.minimum(places, jnp.maximum(last.size - 1, 0))
    machines = jax.tree.map(lambda a: a[places], last.machines)
    coefficients = solve_triangular(last.factor, machines.coordinates.T, trans=1, lower=True).T
    return {
        "support": last.support,
        "coefficients": coefficients[:, :, None],
        "intercepts": machines.intercept[:, None],
        "condition": machines.condition,
        "coefficient_error": machines.error,
        "coefficient_status": machines.status,
        "path_length": last.size,
        "path_status": last.status,
    }
