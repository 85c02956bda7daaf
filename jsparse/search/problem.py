"""What a search varies and what it keeps: a kernel's leaves and `C` over fixed rows and folds."""

import dataclasses
import functools
import sys
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import KeyPath
from jaxtyping import Array, Bool, Float, Int

from .._agreement import same_rows
from .._mesh import check_mesh, on_default_device
from .._numerics import as_array, is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._status import COMPLETED, PRECISION_LOST
from .._types import Key
from ..features import FeatureMap
from ..kernels import Kernel
from ..machines.fixed_size import FixedSize
from ..machines.method import (
    Additive,
    Method,
    Metric,
    PathMethod,
    each_problem,
    require_additive,
)
from ..multiclass import Code, Decoding
from ..normal_equations import NormalEquations
from ..validation.cross_validation import CrossValidation, standard_error
from ..validation.folds import Folds
from ..validation.paths import PathValidation
from ..validation.sharding import ShardedFolds, shard
from ..validation.validate import validate

Table = Float[Array, "_ _"] | Float[np.ndarray, "_ _"]
Scores = tuple[Float[np.ndarray, "q s"], Float[np.ndarray, "q s"], Int[np.ndarray, "q s"]]
"""Of kernels, each for its vector of `C`: scores, their standard errors, stop codes."""


class Scoring(NamedTuple):
    """How machines are scored: static, each setting compiles again."""

    metric: Metric
    decoding: Decoding = "loss"

    __repr__ = short_repr


@runtime_checkable
class Tunable(Protocol):
    """What a search asks of a problem: the scores of kernels, each for a vector of `C`."""

    @property
    def tuned(self) -> Kernel:
        """The template's leaves to be tuned, None elsewhere."""
        ...

    @property
    def fixed(self) -> Kernel:
        """The rest of the template."""
        ...

    @property
    def dtype(self) -> jnp.dtype:
        """In which it is computed."""
        ...

    @property
    def rows_scored(self) -> int:
        """How many rows a score is a mean over."""
        ...

    @property
    def kernels_at_once(self) -> int:
        """How many kernels are best handed over in one call."""
        ...

    def scores(self, thetas: Table, C: Table, scoring: Scoring) -> Scores:
        """Scores of the kernels `kernel_at(theta)`, their standard errors and stop codes."""
        ...


@runtime_checkable
class Source(Protocol):
    """Where the rows of a problem are: in memory, or read again for every evaluation."""

    @property
    def dtype(self) -> jnp.dtype:
        """In which it is computed."""
        ...

    @property
    def rows_scored(self) -> int:
        """How many rows a score is a mean over."""
        ...

    @property
    def kernels_at_once(self) -> int:
        """How many kernels are best handed over in one call."""
        ...

    @property
    def code(self) -> Code | None:
        """Several classes as several problems."""
        ...

    def scores(
        self,
        problem: "Problem",
        thetas: Table,
        C: Table,
        scoring: Scoring,
    ) -> Scores:
        """See `Tunable`."""
        ...

    def validate(
        self,
        problem: "Problem",
        kernel: Kernel,
        C: Float[Array, " s"],
        scoring: Scoring,
        size: Int[Array, ""] | None = None,
    ) -> CrossValidation | PathValidation:
        """Everything that cross-validation says of one kernel, for every `C`."""
        ...

    def fit(
        self, problem: "Problem", kernel: Kernel, C: Float[Array, ""] | Float[Array, " l"]
    ) -> tuple[Any, FeatureMap | None, NormalEquations | None]:
        """The machine of all rows; if it was solved from sums, also their features and them."""
        ...

    def rows_in_memory(self) -> tuple[Float[Array, "n d"], Float[Array, "n c"], Float[Array, " n"]]:
        """Inputs, targets and weights of the rows at hand; of more than two classes -1 and +1."""
        ...


class Problem(eqx.Module):
    """A method, a template kernel, points that may carry the model, and a source of rows.

    The arrays are traced: nothing compiles again when they change.
    """

    method: Method = eqx.field(static=True)
    tuned: Kernel  # the template's leaves to be tuned, None elsewhere
    fixed: Kernel  # the rest of the template
    points: Float[Array, "m d"] | None  # None: every row, as in the dual
    source: Source
    key: Key | None = None  # decides what the method draws at random
    # Another metric in which paths are scored as well.
    reported: Metric | None = eqx.field(static=True, default=None)

    @property
    def dtype(self) -> jnp.dtype:
        """In which it is computed."""
        return self.source.dtype

    @property
    def rows_scored(self) -> int:
        """How many rows a score is a mean over."""
        return self.source.rows_scored

    @property
    def kernels_at_once(self) -> int:
        """How many kernels are best handed over in one call."""
        return self.source.kernels_at_once

    def scores(self, thetas: Table, C: Table, scoring: Scoring) -> Scores:
        """Scores of the kernels `kernel_at(theta)`; of paths, the least error of any size."""
        return self.source.scores(self, thetas, C, scoring)

    def path_errors(
        self, kernel: Kernel, C: Float[Array, " s"], scoring: Scoring
    ) -> PathValidation:
        """Errors up to the longest path, or up to where its stopping rule holds for every `C`.

        Paths of 32 prototypes first, then of twice as many: as a path costs by the square of its
        length, what is done again is a third at most, and the paths of the rule's lengths are the
        first part of the longer ones.
        """
        method = self.method
        assert isinstance(method, PathMethod)
        length, stopping = method.longest, method.stopping
        tried = length if stopping is None else min(max(32, 2 * stopping.window), length)
        while True:
            part = dataclasses.replace(self, method=method.shortened(tried))
            found = self.source.validate(part, kernel, C, scoring)
            assert isinstance(found, PathValidation)
            if tried == length or stopping is None:
                return found
            if all(stopping.length(f) for f in np.asarray(found.scores)):
                return found
            tried = min(2 * tried, length)


class InMemory(eqx.Module):
    """Standardised rows in memory, and their folds."""

    X: Float[Array, "n d"]
    y: Float[Array, "n *c"] | Int[Array, " n"]  # targets, or class numbers if there is a code
    weights: Float[Array, " n"] | None
    folds: Folds | ShardedFolds
    code: Code | None  # several classes as several problems
    mesh: Mesh | None = eqx.field(static=True)  # the devices over which the rows are spread

    @property
    def dtype(self) -> jnp.dtype:
        """In which it is computed."""
        return self.X.dtype

    @property
    def rows_scored(self) -> int:
        """How many rows a score is a mean over."""
        if self.weights is None or not is_concrete(self.weights):
            return len(self.X)
        return int(np.sum(np.asarray(self.weights) > 0))

    @property
    def kernels_at_once(self) -> int:
        """One on a CPU, which it fills and which can report after each; else all there are."""
        return 1 if jax.default_backend() == "cpu" else sys.maxsize

    def scores(
        self,
        problem: Problem,
        thetas: Table,
        C: Table,
        scoring: Scoring,
    ) -> Scores:
        """See `Tunable`."""
        if problem.method.is_path:
            each = [
                least_on_path(problem, kernel_at(problem, theta), c, scoring)
                for theta, c in zip(thetas, C, strict=True)
            ]
            scores, errors, status = (np.stack(column) for column in zip(*each, strict=True))
            return scores, errors, status
        if len(thetas) > 1:
            scores, fold_scores, status = evaluate_batch(problem, thetas, C, scoring)
            errors = np.stack([standard_error(each) for each in np.asarray(fold_scores)])
            return np.asarray(scores), errors, np.asarray(status)
        found = evaluate(problem, thetas[0], C[0], scoring, np.int32(0))
        each = np.asarray(found.scores), standard_error(found.fold_scores), np.asarray(found.status)
        return each[0][None], each[1][None], each[2][None]

    def validate(
        self,
        problem: Problem,
        kernel: Kernel,
        C: Float[Array, " s"],
        scoring: Scoring,
        size: Int[Array, ""] | None = None,
        *,
        keep: Int[Array, "*l"] | None = None,
    ) -> CrossValidation | PathValidation:
        """See `validation.validate`."""
        return validate(
            problem.method,
            kernel,
            problem.points,
            C,
            self.X,
            self.y,
            self.folds,
            self.weights,
            metric=scoring.metric,
            reported=problem.reported,
            code=self.code,
            decoding=scoring.decoding,
            key=problem.key,
            size=size,
            mesh=self.mesh,
            keep=keep,
        )

    def fit(
        self, problem: Problem, kernel: Kernel, C: Float[Array, ""] | Float[Array, " l"]
    ) -> tuple[Any, FeatureMap | None, NormalEquations | None]:
        """By its sums, which are kept, if the method needs no more; paths by their rows."""
        method, points = problem.method, problem.points
        if not isinstance(method, Additive) or (method.is_path and self.mesh is None):
            fitted = method.fit(
                kernel, points, C, self.X, self.y, self.weights, code=self.code, key=problem.key
            )
            return fitted, None, None
        assert points is not None
        features = method.features(kernel, points)
        sums = method.accumulate(features, self.X, self.y, self.weights, self.code, self.mesh)
        if not method.sums_suffice:
            features = _informed(method, features, self.X, self.y, self.weights, self.code)
        return method.solve(features, sums, C, self.code, key=problem.key), features, sums

    def rows_in_memory(self) -> tuple[Float[Array, "n d"], Float[Array, "n c"], Float[Array, " n"]]:
        """See `Source`; each class against all others, whatever the code."""
        X, y, weights = on_default_device(self.mesh, (self.X, self.y, self.weights))
        weights = jnp.ones(len(X), X.dtype) if weights is None else weights
        k = None if self.code is None else len(self.code.matrix)
        return X, _targets(X, y, k), weights

    def of_rows(self, rows: Int[np.ndarray, " m"]) -> "InMemory":
        """Some of the rows alone, without folds of their own."""
        X, y, weights = _taken((self.X, self.y, self.weights), rows)
        return InMemory(X, y, weights, self.folds, self.code, self.mesh)


@functools.partial(compiled, static_argnums=2)
def _targets(X: Float[Array, "n d"], y: Array, classes: int | None) -> Float[Array, "n c"]:
    if classes is None:
        return y.reshape(len(X), -1)
    own = y[:, None] == jnp.arange(classes, dtype=y.dtype)[None, :]
    return jnp.where(own, 1, -1).astype(X.dtype)


_taken = compiled(lambda arrays, rows: jax.tree.map(lambda a: a[rows], arrays))


@functools.partial(compiled, static_argnames="method")
def _informed(
    method: Additive,
    features: FeatureMap,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    weights: Float[Array, " n"] | None,
    code: Code | None,
) -> FeatureMap:
    targets, _ = each_problem(y, weights, code, X.dtype)
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    return method.informed(features, X, targets, w)


@same_rows
def tuning_problem(
    kernel: Kernel,
    points: Float[Array, "m d"] | None,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    folds: Folds,
    weights: Float[Array, " n"] | None = None,
    code: Code | None = None,
    *,
    method: Method = FixedSize(),
    key: Key | None = None,
    tune_kernel: bool = True,
    tune_matrices: bool = False,
    mesh: Mesh | None = None,
    reported: Metric | None = None,
) -> Problem:
    """The tuning problem of a template kernel: its positive floating leaves are tuned.

    Args:
        kernel: the template.
        points: prototypes or candidates, shape `m d`; None in the dual.
        X: inputs, shape `n d`, in the units of the points.
        y: targets, shape `n` or `n c`; with a `code`, class numbers.
        folds: see `validation.folds`.
        weights: row weights, shape `n`.
        code: several classes as several problems.
        method: what is fitted.
        key: decides what the method draws at random.
        tune_kernel: False to tune `C` only.
        tune_matrices: tune those of `kernels.Projected` too, of which a point has the elements
            themselves, not their logs.
        mesh: the rows are sharded over its devices, and come in another order; see
            `validation.sharding`.
        reported: of a path, another metric in which every machine is scored as well.

    Raises:
        ValueError: for a mesh with axes of type Explicit, a method that does not need only sums, or
            rows that differ between the processes of the mesh.
    """
    tuned, fixed = split_kernel(
        kernel, X.dtype, tune_kernel=tune_kernel, tune_matrices=tune_matrices
    )
    if mesh is not None:
        check_mesh(mesh)
        require_additive(method, "mesh")
    rows = in_memory(X, y, folds, weights, code, mesh)
    return Problem(method, tuned, fixed, points, rows, key, reported)


def in_memory(
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    folds: Folds,
    weights: Float[Array, " n"] | None,
    code: Code | None,
    mesh: Mesh | None,
) -> InMemory:
    """Return the rows of a tuning problem, sharded over the devices of a mesh if there is one."""
    code = None if code is None else code.astype(X.dtype)
    if mesh is None:
        return InMemory(X, y, weights, folds, code, None)
    return InMemory(*shard(mesh, folds, X, y, weights), code, mesh)


def split_kernel(
    kernel: Kernel, dtype: jnp.dtype, *, tune_kernel: bool, tune_matrices: bool = False
) -> tuple[Kernel, Kernel]:
    """A template's leaves to be tuned, the positive ones and if asked matrices, and the rest."""
    kernel = jax.tree.map(
        lambda a: as_array(np.asarray(a), dtype) if eqx.is_inexact_array(a) else a, kernel
    )

    def varies(path: KeyPath, leaf: Any) -> bool:
        if not (tune_kernel and eqx.is_inexact_array(leaf)):
            return False
        return tune_matrices if _is_matrix(path) else bool(np.all(np.asarray(leaf) > 0))

    return eqx.partition(kernel, jax.tree_util.tree_map_with_path(varies, kernel))


def _is_matrix(path: KeyPath) -> bool:
    """Whether a leaf is that of `kernels.Projected`, whose elements have any sign."""
    return getattr(path[-1], "name", "") == "matrix"


def signed(tuned: Kernel) -> Bool[np.ndarray, " p"]:
    """Of which numbers of a point the leaf is the number itself, not its exponential."""
    leaves = jax.tree_util.tree_leaves_with_path(tuned)
    each = [np.full(leaf.size, _is_matrix(path)) for path, leaf in leaves]
    return np.concatenate([np.zeros(0, bool), *each])


def start_of(problem: Tunable) -> Float[np.ndarray, " p"]:
    """Logs of the template's tuned leaves, of matrices the elements, shape `p`."""
    leaves = [np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(problem.tuned)]
    flat, own = np.concatenate([np.zeros(0, problem.dtype), *leaves]), signed(problem.tuned)
    return np.where(own, flat, np.log(np.where(own, 1, flat))).astype(problem.dtype)


@runtime_checkable
class Template(Protocol):
    """Of a kernel, the leaves that are tuned and the rest."""

    @property
    def tuned(self) -> Kernel:
        """The leaves that are tuned, None elsewhere."""
        ...

    @property
    def fixed(self) -> Kernel:
        """The rest."""
        ...


def kernel_at(problem: Template, theta: Float[Array, " p"] | Float[np.ndarray, " p"]) -> Kernel:
    """The template with tuned leaves `exp(theta)`, of matrices `theta`.

    Of a NumPy array nothing is compiled.
    """
    leaves, structure = jax.tree.flatten(problem.tuned)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    numpy = np if isinstance(theta, np.ndarray) else jnp
    own = signed(problem.tuned)
    if own.any():
        theta = numpy.where(own, theta, numpy.exp(numpy.where(own, 0, theta)))
    else:
        theta = numpy.exp(theta)
    parts = numpy.split(theta, ends) if leaves else []
    tuned = [
        as_array(part.reshape(leaf.shape).astype(leaf.dtype))
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return eqx.combine(structure.unflatten(tuned), problem.fixed)


@functools.partial(compiled, static_argnames="scoring")
def evaluate(
    problem: Problem,
    theta: Float[Array, " p"],
    C: Float[Array, " s"],
    scoring: Scoring,
    keep: Int[Array, "*l"],
) -> CrossValidation:
    """The cross-validation of one kernel for every `C`, with the predictions of one of them.

    One program for the search and for what comes after it: out-of-fold values and the sums of all
    rows.
    """
    assert isinstance(problem.source, InMemory)
    kernel = kernel_at(problem, theta)
    found = problem.source.validate(problem, kernel, C, scoring, keep=keep)
    assert isinstance(found, CrossValidation)
    return found


@functools.partial(compiled, static_argnames="scoring")
def evaluate_batch(
    problem: Problem, thetas: Float[Array, "q p"], C: Float[Array, "q s"], scoring: Scoring
) -> tuple[Float[Array, "q s"], Float[Array, "q s v"], Int[Array, "q s"]]:
    """Scores, those of the folds and stop codes, of kernels each with its own vector of `C`.

    By `vmap`, for accelerators, which it fills; memory is that of `q` blocks of rows.
    """

    def one(theta: Array, c: Array) -> tuple[Array, Array, Array]:
        found = problem.source.validate(problem, kernel_at(problem, theta), c, scoring)
        return found.scores, found.fold_scores, found.status

    return jax.vmap(one)(thetas, C)


def least_on_path(
    problem: Problem, kernel: Kernel, C: Float[np.ndarray, " s"], scoring: Scoring
) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, " s"], Int[np.ndarray, " s"]]:
    """The least error of any size for every `C`, its standard error, stop codes."""
    method = problem.method
    assert isinstance(method, PathMethod)
    found = problem.path_errors(kernel, as_array(C), scoring)
    scores, spread = np.asarray(found.scores), standard_error(found.fold_scores)
    stop = method.stopping
    ends = [scores.shape[1] if stop is None else stop.length(f) for f in scores]
    best = [int(np.argmin(f[:end])) for f, end in zip(scores, ends, strict=True)]
    rows = np.arange(len(best))
    # Lost digits of coefficients are no lost digits of values, and those were seen by the folds.
    status = np.asarray(found.status)
    status = np.where(status == PRECISION_LOST, COMPLETED, status).astype(np.int32)
    return scores[rows, best], spread[rows, best], status
