"""Support vector machines of few expansion vectors, given or found by descent (Wu et al. 2006)."""

import abc
import dataclasses
import functools
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import real, whole_number
from .._blocks import map_systems
from .._programs import compiled
from .._repr import short_repr
from .._types import Key, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..multiclass import Code
from ..prototypes import k_means
from ..prototypes.choice import choose_rows
from ..solvers import interior_point
from ..solvers.interior_point import Hinge
from . import direct
from .method import (
    Method,
    Points,
    Shape,
    Task,
    TrainingRows,
    at_most,
    default_prototypes,
    each_problem,
    option,
    rows_at,
)

Selection = Literal["k_means", "renyi", "uniform"]
Penalty = Literal["norm", "coefficients"]
Sharing = Literal["shared", "separate"]
SELECTIONS = ("k_means", "renyi", "uniform")
_REPEATED = 1e-6  # the weight of a row that is there already: it is chosen where no other is left


class ReducedFit(NamedTuple):
    """A machine of given expansion vectors."""

    expansion: KernelExpansion
    objective: Float[Array, ""]  # of all problems together
    status: Int[Array, ""]

    __repr__ = short_repr


class DirectFit(NamedTuple):
    """A machine of expansion vectors found by descent, and how it came about.

    With separate expansion vectors all but the machine and the status are those of each problem.
    """

    expansion: KernelExpansion
    history: Float[Array, "*l s"]  # W after 0, 1, .. steps; NaN for those not taken
    steps: Int[Array, "*l"]
    evaluations: Int[Array, "*l"]  # of W, each the solution of one inner problem
    status: Int[Array, ""]

    __repr__ = short_repr


@dataclasses.dataclass(frozen=True)
class Reduced(Method):
    """The settings of support vector machines whose number of expansion vectors is given.

    Args:
        n_prototypes: `N_z`, the number of expansion vectors, at most as many as rows; None for a
            third of the rows, at most 20 and at least one for each class.
        selection: where they are, or start from: "k_means", or rows by "renyi" or "uniform". Rows
            that are there several times are chosen once, as long as there are others (Section 5.6).
        starts: so many sets of points, of which the further ones are rows at random. What is not
            found by descent takes the first.
    """

    tasks: ClassVar[tuple[Task, ...]] = ("classification",)
    default_C: ClassVar[Float[np.ndarray, " s"]] = np.geomspace(0.1, 1000, 5)
    usual_prototypes: ClassVar[int] = 20

    n_prototypes: int | None = option(
        None, "number of prototypes", kind="sizes", metavar="M[,M...]"
    )
    selection: Selection = "k_means"
    starts: int = 1

    @property
    def largest(self) -> int:
        """The number of prototypes, once settled."""
        assert self.n_prototypes is not None
        return self.n_prototypes

    @property
    def memory(self) -> int | Literal["all"] | None:
        """See `Method.memory`."""
        return self.n_prototypes

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if self.selection not in SELECTIONS:
            raise ValueError(f"selection: expected one of {SELECTIONS}, got {self.selection!r}")
        if self.n_prototypes is not None:
            whole_number("n_prototypes", self.n_prototypes, 1, 2**31 - 1, "the largest number")
        whole_number("starts", self.starts, 1, 1000, "a thousand")

    def settled(self, shape: Shape) -> "Reduced":
        """See `Method.settled`."""
        m = self.n_prototypes
        if m is None:
            m = default_prototypes(self.usual_prototypes, shape)
        m = whole_number("n_prototypes", m, 1, shape.n, "the number of rows")
        return dataclasses.replace(self, n_prototypes=m)

    def capped(self, shape: Shape) -> "Reduced":
        """See `Method.capped`."""
        return dataclasses.replace(self, n_prototypes=at_most(self.n_prototypes, shape.n))

    def points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Means of clusters, or rows, a share of them from each class; start after start."""
        if self.starts == 1:
            return self._points(key, self.selection, rows)
        keys = jax.random.split(key, self.starts)
        ways = [self.selection] + ["uniform"] * (self.starts - 1)
        each = [self._points(k, way, rows) for k, way in zip(keys, ways, strict=True)]
        X = np.concatenate([np.asarray(found.X) for found in each])
        return Points(jax.device_put(X), None, max(found.status for found in each))

    def _points(self, key: Key, selection: str, rows: TrainingRows) -> Points:
        X, weights, m = np.asarray(rows.X), np.array(rows.weights), self.largest
        there = np.flatnonzero(weights)
        if selection == "k_means":
            # What rows without weight hold must not be felt, not even in the last digits.
            held = np.where((weights > 0)[:, None], X, X[there[0]])
            held, w = jax.device_put((held, weights.astype(X.dtype)))
            means = k_means(key, held, m, w)
            return Points(means.centres, None, int(means.status))
        first = np.unique(X[there], axis=0, return_index=True)[1]
        weights[np.delete(there, first)] *= _REPEATED
        chosen, status = choose_rows(key, selection, rows.X, m, rows.labels, weights, rows.n)
        return Points(rows_at(rows.X, chosen), chosen, status)

    def each_start(self, points: Float[Array, "m d"]) -> Float[Array, "s k d"]:
        """What `points` gives, start by start; any other number of points is one start."""
        m = self.n_prototypes
        several = self.starts > 1 and m is not None and len(points) == self.starts * m
        return points.reshape(self.starts if several else 1, -1, points.shape[1])


@dataclasses.dataclass(frozen=True)
class ReducedSVM(Reduced):
    """The support vector machine in the span of given expansion vectors (Wu et al. 2006, MRSVM).

    As in Section 4.2, where the regularisation is that of the support vector machine itself; the
    RSVM of Lee and Mangasarian (2001) has the sum of squares of the coefficients in its place.

    Args:
        n_prototypes: see `Reduced`, as are the next two.
        selection: "k_means", "renyi" or "uniform".
        starts: sets of points, of which it takes the first.
        loss: "hinge" or "squared_hinge".
        penalty: of the "norm" of the function, or of the "coefficients" (RSVM).
    """

    name: ClassVar[str] = "reduced-svm"
    title: ClassVar[str] = "reduced SVM"
    most_rows: ClassVar[int | None] = 2000

    loss: Hinge = "hinge"
    penalty: Penalty = "norm"

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_loss(self.loss)
        if self.penalty not in ("norm", "coefficients"):
            raise ValueError(f"penalty: expected 'norm' or 'coefficients', got {self.penalty!r}")

    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "m d"] | None,
        C: ScalarLike | Float[Array, " l"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        code: Code | None = None,
        key: Key | None = None,
    ) -> ReducedFit:
        """See `Method.fit`; of several problems with the same expansion vectors."""
        assert points is not None
        Z = self.each_start(points)[0]
        return _reduced(self, kernel, Z, jnp.asarray(C, X.dtype), X, y, weights, code)


@dataclasses.dataclass(frozen=True)
class Direct(Reduced):
    """The settings of machines whose expansion vectors are found by the direct method.

    The kernel is tuned for the reduced support vector machine of the points that the descent starts
    from, as a descent for every kernel, `C` and fold would take far longer; `C` is its own.

    Args:
        n_prototypes: see `Reduced`; of each problem, if they are separate.
        selection: "k_means", "renyi" or "uniform".
        starts: of descents, of which the lowest end is taken; the first from points by
            `selection`, the others from rows at random.
        sharing: of more than two classes, whether the problems have the same expansion vectors,
            "shared", or each its own, "separate".
        tolerance: of the descent, see `direct.minimise`.
        max_steps: cap on its steps.
    """

    most_rows: ClassVar[int | None] = 1000  # a descent for every fold and C

    starts: int = 3
    sharing: Sharing = "shared"
    tolerance: float = direct.TOLERANCE
    max_steps: int = direct.MAX_STEPS

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if self.sharing not in ("shared", "separate"):
            raise ValueError(f"sharing: expected 'shared' or 'separate', got {self.sharing!r}")
        real("tolerance", self.tolerance, 0.0)
        whole_number("max_steps", self.max_steps, 1, 10**6, "a million")

    def surrogate(self) -> Method:
        """The reduced machine of the points that the descent starts from."""
        return ReducedSVM(self.n_prototypes, self.selection, self.starts)

    @abc.abstractmethod
    def problem(
        self,
        kernel: Kernel,
        C: Float[Array, "*k"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *l"],
        w: Float[Array, "n *l"],
    ) -> direct.InnerProblem:
        """What is minimised of one target, or of several that share their expansion vectors."""

    def machine(
        self,
        kernel: Kernel,
        C: Float[Array, "*k"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *l"],
        w: Float[Array, "n *l"],
        found: direct.Minimum,
    ) -> direct.Solved:
        """Coefficients and intercepts of the expansion vectors found; by default as they are."""
        return found.solved

    def minimum(
        self,
        kernel: Kernel,
        starts: Float[Array, "s m d"],
        C: Float[Array, "*k"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *l"],
        w: Float[Array, "n *l"],
    ) -> direct.Minimum:
        """The best of the descents, with the machine's own coefficients."""
        problem = self.problem(kernel, C, X, y, w)
        found = direct.best_of(problem, starts, tolerance=self.tolerance, max_steps=self.max_steps)
        solved = self.machine(kernel, C, X, y, w, found)
        status = jnp.maximum(found.status, solved.status)
        return found._replace(solved=solved, status=status)

    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "m d"] | None,
        C: ScalarLike | Float[Array, " l"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        code: Code | None = None,
        key: Key | None = None,
    ) -> DirectFit:
        """See `Method.fit`: a descent from the points."""
        assert points is not None
        return _descended(self, kernel, points, jnp.asarray(C, X.dtype), X, y, weights, code)


@dataclasses.dataclass(frozen=True)
class SLMC(Direct):
    """Sparse large margin classifiers: the support vector machine of the best expansion vectors.

    Wu et al. 2006, problem (20)-(23): a descent on the objective of the support vector machine in
    the span of the expansion vectors, as a function of these.

    Args:
        n_prototypes: see `Direct`, as are all others but one.
        selection: of the points that the descent starts from.
        starts: of descents.
        sharing: of expansion vectors by problems.
        tolerance: of the descent.
        max_steps: of the descent.
        loss: "hinge" or "squared_hinge".
    """

    name: ClassVar[str] = "slmc"
    title: ClassVar[str] = "sparse large margin"

    loss: Hinge = "hinge"

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_loss(self.loss)

    def surrogate(self) -> Method:
        """See `Direct.surrogate`."""
        return ReducedSVM(self.n_prototypes, self.selection, self.starts, self.loss)

    def problem(
        self,
        kernel: Kernel,
        C: Float[Array, "*k"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *l"],
        w: Float[Array, "n *l"],
    ) -> direct.InnerProblem:
        """See `Direct.problem`."""
        return direct.LargeMargin(kernel, X, y, C, w, self.loss)


def check_loss(loss: str) -> None:
    """Raise unless it is a loss of the interior-point method."""
    if loss not in ("hinge", "squared_hinge"):
        raise ValueError(f"loss: expected 'hinge' or 'squared_hinge', got {loss!r}")


@functools.partial(compiled, static_argnames="method")
def _reduced(
    method: ReducedSVM,
    kernel: Kernel,
    points: Float[Array, "m d"],
    C: Float[Array, "*k"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    weights: Float[Array, " n"] | None,
    code: Code | None,
) -> ReducedFit:
    targets, w = each_problem(y, weights, code, X.dtype)
    problem = direct.LargeMargin(kernel, X, targets, C, w, method.loss)
    if method.penalty == "coefficients":
        psi = kernel.cross_gram(problem.X, points)
        found = interior_point.solve(psi, problem.y, problem.C, problem.weights, loss=method.loss)
        expansion = KernelExpansion(kernel, points, found.weights, found.intercept)
        return ReducedFit(expansion, jnp.sum(found.objective), jnp.max(found.status))
    solved = problem.solve(points)
    return ReducedFit(problem.expansion(points, solved), solved.value, solved.status)


@functools.partial(compiled, static_argnames="method")
def _descended(
    method: Direct,
    kernel: Kernel,
    points: Float[Array, "m d"],
    C: Float[Array, "*k"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    weights: Float[Array, " n"] | None,
    code: Code | None,
) -> DirectFit:
    targets, w = each_problem(y, weights, code, X.dtype)
    w = jnp.ones(len(X), X.dtype) if w is None else w
    w = jnp.broadcast_to(w if w.ndim == targets.ndim else w[:, None], targets.shape)
    starts = method.each_start(points)
    if targets.ndim == 1 or method.sharing == "shared":
        found = method.minimum(kernel, starts, C, X, targets, w)
        solved = found.solved
        expansion = KernelExpansion(kernel, found.Z, solved.coefficients, solved.intercept)
        return DirectFit(expansion, found.history, found.steps, found.evaluations, found.status)
    problems = targets.shape[1]
    each = targets.T, w.T, jnp.broadcast_to(C, (problems,))
    found = map_systems(lambda of: method.minimum(kernel, starts, of[2], X, of[0], of[1]), each)
    solved = found.solved
    own = jnp.eye(problems, dtype=X.dtype)
    expansion = KernelExpansion(
        kernel,
        found.Z.reshape(-1, X.shape[1]),
        (solved.coefficients[:, :, None] * own[:, None, :]).reshape(-1, problems),
        solved.intercept,
    )
    worst = jnp.max(found.status)
    return DirectFit(expansion, found.history, found.steps, found.evaluations, worst)
