"""Rows that are read, not held (De Brabanter 2010, Section 6.2, Algorithm 4)."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._agreement import BatchChecksums
from .._blocks import capacity, padded
from .._mesh import on_default_device, sum_over_rows
from .._programs import compiled
from .._repr import short_repr
from .._types import Key
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel, Linear
from ..machines.family import Family
from ..machines.from_sums import FromSums
from ..machines.held_out import HeldOut, OnFold, Sums
from ..machines.method import Method, Points, Shape, TrainingRows
from ..machines.rows import Rows
from ..normal_equations import NormalEquations, accumulate_groups, zeros
from ..scaling import Standardization
from ..search.problem import Problem, Table, least_of_sizes
from ..search.template import Template, split_kernel
from ..validation.folds import Folds
from ..validation.validate import FoldLosses, Kept, Scoring, Validation, mean_losses
from .encoding import Encoding
from .plan import Plan, plan
from .programs import target_columns
from .reader import Reader
from .settings import Config
from .summary import Summary

_NOTHING_KEPT = Kept(np.int32(0), np.int32(0))  # one program serves searches and predictions


class SampleRows(NamedTuple):
    """The rows of a stream's sample, on the host, as the machine sees them."""

    X: Float[np.ndarray, "r d"]  # standardised
    y: Float[np.ndarray, " r"] | Int[np.ndarray, " r"]  # targets, or class numbers with a code
    weights: Float[np.ndarray, " r"]
    numbers: Int[np.ndarray, " r"] | None  # of the classes

    __repr__ = short_repr


class _KernelSums(NamedTuple):
    """What was summed for a kernel."""

    name: bytes
    features: FeatureMap
    parts: NormalEquations  # of every part of the rows, and class


class Streamed:
    """A stream after its first pass: a `search.problem.Source` whose rows are read again.

    One pass sums every part of the rows for all kernels of a batch, and serves every `C`. Scores
    are over a sample of the rows that stays in memory, each row predicted by the machine that has
    not seen its part.

    Args:
        reader: the rows.
        summary: the outcome of the first pass.
        sample: its sample of rows.
        folds: the rows of the sample in each part that is validated.
        mesh: its devices share the rows of every batch.
        checksums: of the rows, to compare the processes of a mesh.
    """

    def __init__(
        self,
        reader: Reader,
        summary: Summary,
        sample: SampleRows,
        folds: Folds,
        *,
        mesh: Mesh | None = None,
        checksums: BatchChecksums | None = None,
    ) -> None:
        self.reader, self.summary, self.sample, self.folds = reader, summary, sample, folds
        self.mesh, self.checksums = mesh, checksums
        self.kernels_at_once = 1
        self.dtype, self.code, self.n_rows = reader.scaling.shift.dtype, reader.code, reader.n_rows
        index, valid = (np.asarray(a) for a in folds)
        weights = np.where(valid, sample.weights[index], 0)
        X, y, w = jax.device_put((sample.X[index], sample.y[index], weights))
        self.parts = Rows(X, y, w, self.code, mesh)
        self.rows_scored = int(np.count_nonzero(weights > 0))
        # Sums of the kernel that is looked at and of the best so far, with its score.
        self._now: _KernelSums | None = None
        self._best: tuple[float, _KernelSums] | None = None
        self._method: type[Method] | None = None

    def errors(
        self, problem: Problem, thetas: Table, C: Table, scoring: Scoring
    ) -> list[Validation]:
        """See `Source`: one pass over the rows for all kernels."""
        # On the host, as the tuned kernel is made there, by whose values sums are found again.
        kernels = [problem.template.at(theta) for theta in np.asarray(thetas)]
        if self._method is not type(
            problem.method
        ):  # a surrogate's scores are no scores of its own
            self._method, self._best = type(problem.method), None
        names = [_name(problem, kernel) for kernel in kernels]
        held = [self._known(name) for name in names]
        if None in held:
            held = self._sum(problem, kernels)
        found = []
        for sums, c in zip(held, C, strict=True):
            assert sums is not None
            self._now = sums
            errors = self._validated(problem, sums, np.asarray(c), scoring, _NOTHING_KEPT)
            scores = least_of_sizes(problem.method, errors)
            best = float(np.min(scores.trusted))
            if self._best is None or best < self._best[0]:
                self._best = best, sums
            found.append(errors._replace(predictions=None))
        return found

    def validate(
        self,
        problem: Problem,
        theta: Float[np.ndarray, " p"],
        C: Float[np.ndarray, " s"],
        scoring: Scoring,
        keep: Kept,
    ) -> Validation:
        """See `Source`; predictions are NaN for rows of the sample that are not held out."""
        sums = self._of_kernel(problem, problem.template.at(theta))
        found = self._validated(problem, sums, C, scoring, keep)
        return found._replace(predictions=self._in_order(np.asarray(found.predictions)))

    def held_out(
        self,
        problem: Problem,
        theta: Float[np.ndarray, " p"],
        C: Float[np.ndarray, " s"],
        on_fold: OnFold,
    ) -> HeldOut:
        """See `Source`."""
        sums = self._of_kernel(problem, problem.template.at(theta))
        found = _held_out(
            problem.method, sums.features, sums.parts, jax.device_put(C), self.parts, on_fold,
            problem.key,
        )  # fmt: skip
        return on_default_device(self.mesh, found._replace(total=None))

    def fit(
        self,
        problem: Problem,
        kernel: Kernel,
        C: Float[Array, ""] | Float[Array, " l"],
        sums: Sums | None,
    ) -> tuple[Family, Sums | None]:
        """See `Source`; the sums of the best kernel are there."""
        held = self._of_kernel(problem, kernel)
        total = Sums(held.features, _joined(held.parts))
        family = _from_sums(problem).solve(total, C, self.code, problem.key)
        return on_default_device(self.mesh, (family, total))

    def rows_in_memory(self) -> tuple[Float[Array, "n d"], Float[Array, "n c"], Float[Array, " n"]]:
        """See `Source`: the rows of the sample that are held out."""
        X, y, weights = _flat(self.parts.X, self.parts.y, self.parts.weights)
        k = None if self.code is None else len(self.code.matrix)
        return X, target_columns(X, y, k), weights

    def only_rows(self, rows: Int[np.ndarray, " m"]) -> "Streamed":
        """See `Source`.

        Raises:
            ValueError: always.
        """
        raise ValueError("stream: expected a method that is tuned on all rows")

    def fold_machines(
        self,
        problem: Problem,
        kernel: Kernel,
        C: Float[Array, ""] | Float[Array, " l"],
        size: int | None,
        sums: Sums | None,
    ) -> tuple[KernelExpansion, Int[np.ndarray, " n"]]:
        """See `TrainingSource`.

        Raises:
            ValueError: always.
        """
        raise ValueError("out_of_fold: expected True or False for a stream, got 'machines'")

    def shape(self, method: Method, template: Template) -> Shape:
        """Return what a method may know of the sample before any work."""
        n, d = self.sample.X.shape
        present = int(np.count_nonzero(self.sample.weights))
        linear = isinstance(template.kernel, Linear)
        return Shape(n, present, present, d, self.encoding.n_classes, linear)

    def plan(self, method: Method, template: Template, config: Config) -> Plan:
        """Return what a run will take."""
        varied = split_kernel(template.kernel, self.dtype, **config.search.varied).tuned
        features, resources = method.memory, config.resources
        return plan(
            self.n_rows,
            self.sample.X.shape[1],
            len(self.sample.X) if features is None else features,
            folds=self.reader.split.parts,
            code=self.code,
            n_C=config.C.size,
            dtype=self.dtype,
            streamed=True,
            batch_rows=self.summary.most,
            sample_rows=resources.sample_rows,
            search=config.search,
            n_parameters=ravel_pytree(varied)[0].size,
            memory=resources.memory,
        )

    def planned(self, plan: Plan | None) -> "Streamed":
        """Return the source for a run of that plan."""
        assert plan is not None
        self.kernels_at_once = plan.kernels_at_once
        return self

    def choose_points(self, method: Method, key: Key, kernel: Kernel) -> Points:
        """Return the points that may carry the model, out of the sample."""
        X, _, weights, numbers = self.sample
        rows = capacity(len(weights))
        labels = None if numbers is None else padded(numbers, rows)
        training = TrainingRows(
            jax.device_put(padded(X, rows)), labels, padded(weights, rows, "constant"),
            self.encoding.scaling, len(weights),
        )  # fmt: skip
        return method.choose_points(key, kernel, training)

    @property
    def encoding(self) -> Encoding:
        """How raw rows became numbers."""
        reader = self.reader
        return Encoding(reader.scaling, reader.classes, reader.code, reader.units)

    def compared(self) -> dict[str, Any]:
        """Return what must be the same in all processes of a mesh."""
        return {} if self.checksums is None else self.checksums.compared()

    def truth(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return class numbers or targets, and weights; 0 for rows that are not predicted."""
        predicted = np.zeros(len(self.sample.X), bool)
        predicted[np.asarray(self.folds.index)[np.asarray(self.folds.valid)]] = True
        numbers = self.sample.numbers
        truth = self.summary.sample.y if numbers is None else np.asarray(numbers)
        return truth, np.where(predicted, self.sample.weights, 0)

    def caller_rows(self, numbers: np.ndarray | None) -> np.ndarray | None:
        """Return numbers of rows of the sample as numbers in the stream."""
        return None if numbers is None else self.summary.sample.rows[numbers]

    def for_caller(self, values: np.ndarray | None) -> np.ndarray | None:
        """Return values of the sample, whose rows all count."""
        return values

    @property
    def caller_folds(self) -> Folds:
        """The folds of the sample."""
        return self.folds

    def _validated(
        self, problem: Problem, sums: _KernelSums, C: np.ndarray, scoring: Scoring, keep: Kept
    ) -> Validation:
        found = _evaluate(
            problem.method, sums.features, sums.parts, jax.device_put(np.asarray(C, self.dtype)),
            self.parts, scoring, keep, problem.key,
        )  # fmt: skip
        return on_default_device(self.mesh, found._replace(total=None))

    def _in_order(self, values: Float[np.ndarray, "v r l"]) -> np.ndarray:
        """Return values laid out by folds in the order of the sample, NaN for other rows."""
        ordered = np.full((len(self.sample.X), values.shape[2]), np.nan, self.dtype)
        index, valid = (np.asarray(a) for a in self.folds)
        ordered[index[valid]] = values[valid]
        return ordered.reshape(len(ordered), *self.parts.outputs)

    def _known(self, name: bytes) -> _KernelSums | None:
        best = None if self._best is None else self._best[1]
        for held in (self._now, best):
            if held is not None and held.name == name:
                return held
        return None

    def _of_kernel(self, problem: Problem, kernel: Kernel) -> _KernelSums:
        """Return the sums of a kernel; reread the stream only for one from a resumed history."""
        held = self._known(_name(problem, kernel))
        self._now = self._sum(problem, [kernel])[0] if held is None else held
        return self._now

    def _sum(self, problem: Problem, kernels: list[Kernel]) -> list[_KernelSums]:
        """Return the sums of every kernel, by one pass over the rows."""
        reader, points = self.reader, problem.points
        assert points is not None
        begun = [
            _begin(_from_sums(problem), kernel, points, reader.groups, reader.targets)
            for kernel in kernels
        ]
        maps, totals = [phi for phi, _ in begun], [zero for _, zero in begun]
        done: list[Array] = []
        for batch in reader.batches():
            # One batch is summed while the next is read, and no more wait in memory.
            jax.block_until_ready(done)
            rows = jax.device_put(batch)
            # One program for any number of kernels.
            added = [
                _add(total, phi, reader.scaling, *rows, n_groups=reader.groups, mesh=self.mesh)
                for total, phi in zip(totals, maps, strict=True)
            ]
            totals, done = [total for total, _ in added], [one for _, one in added]
        if reader.by_class:
            totals = [_by_part(total, reader.split.parts) for total in totals]
        return [
            _KernelSums(_name(problem, kernel), phi, total)
            for kernel, phi, total in zip(kernels, maps, totals, strict=True)
        ]


def _from_sums(problem: Problem) -> FromSums:
    return problem.method.check_sums("stream")


@functools.partial(compiled, static_argnames=("groups", "targets"))
def _begin(
    method: FromSums,
    kernel: Kernel,
    points: Float[Array, "m d"],
    groups: int,
    targets: tuple[int, ...],
) -> tuple[FeatureMap, NormalEquations]:
    """Return the features of a kernel, and sums over no rows."""
    phi = method.features(kernel, points)
    zero = zeros(phi.n_features, targets, points.dtype)
    return phi, jax.tree.map(lambda a: jnp.zeros((groups, *a.shape), a.dtype), zero)


@functools.partial(compiled, static_argnums=1)
def _by_part(total: NormalEquations, parts: int) -> NormalEquations:
    """Return the sums with the classes of a part along an axis of their own."""
    return jax.tree.map(lambda a: a.reshape(parts, len(a) // parts, *a.shape[1:]), total)


@compiled
def _joined(parts: NormalEquations) -> NormalEquations:
    return parts.joined


@compiled
def _flat(*parts: Float[Array, "v r ..."]) -> tuple[Float[Array, "n ..."], ...]:
    """Return arrays without the axis of parts."""
    return tuple(a.reshape(-1, *a.shape[2:]) for a in parts)


def _name(problem: Problem, kernel: Kernel) -> bytes:
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(kernel)]
    # A surrogate of the method sums other features, and points may have been moved.
    method = type(problem.method).__name__
    return b" ".join([method.encode(), np.asarray(problem.points).tobytes(), *leaves])


@functools.partial(compiled, static_argnames=("n_groups", "mesh"), donate_argnums=0)
def _add(
    total: NormalEquations,
    phi: FeatureMap,
    scaling: Standardization,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    w: Float[Array, " n"],
    group: Int[Array, " n"],
    *,
    n_groups: int,
    mesh: Mesh | None,
) -> tuple[NormalEquations, Float[Array, ""]]:
    def local(
        shared: tuple[FeatureMap, Standardization], w: Array, X: Array, y: Array, group: Array
    ) -> NormalEquations:
        phi, scaling = shared
        return accumulate_groups(phi, scaling.apply(X), y, w, group, n_groups=n_groups)

    more = sum_over_rows(mesh, local, (phi, scaling), w, X, y, group)
    return jax.tree.map(jnp.add, total, more), jnp.sum(more.weight_sum)


@compiled
def _held_out(
    method: FromSums,
    features: FeatureMap,
    sums: NormalEquations,
    C: Float[Array, " s"],
    parts: Rows,
    on_fold: OnFold,
    key: Key | None,
) -> HeldOut:
    code = parts.code
    if code is None:  # one target is a column, as solutions have it
        cross, squares, targets = sums.cross, sums.target_square, sums.target_sum
        sums = sums._replace(
            cross=cross[..., None], target_square=squares[..., None], target_sum=targets[..., None]
        )
    per_fold = jax.tree.map(lambda a: a[: parts.weights.shape[0]], sums)
    total = Sums(features, sums.joined)
    return method.held_out_from_sums(total, per_fold, C, parts, on_fold, key)


@functools.partial(compiled, static_argnames="scoring")
def _evaluate(
    method: FromSums,
    features: FeatureMap,
    sums: NormalEquations,
    C: Float[Array, " s"],
    parts: Rows,
    scoring: Scoring,
    keep: Kept,
    key: Key | None,
) -> Validation:
    on_fold = FoldLosses(scoring, keep)
    return mean_losses(_held_out(method, features, sums, C, parts, on_fold, key))
