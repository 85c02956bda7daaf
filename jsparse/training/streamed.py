"""A source of rows that are read, not held (De Brabanter 2010, Algorithm 4)."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._mesh import on_default_device, sum_over_rows
from .._programs import compiled
from .._status import PRECISION_LOST
from ..features import FeatureMap
from ..kernels import Kernel
from ..machines.method import Additive, Metric, PathMethod, require_additive
from ..multiclass import Code
from ..normal_equations import NormalEquations, accumulate_groups, zeros
from ..scaling import Standardization
from ..search.problem import Problem, Scores, Scoring, Table, kernel_at, least_on_path
from ..validation.cross_validation import CrossValidation, score, standard_error
from ..validation.out_of_fold import Rows, from_sums, solving
from ..validation.paths import PathValidation, metrics_of, score_paths
from .reader import Reader


class _Sums(NamedTuple):
    """What was summed for a kernel."""

    name: bytes
    features: FeatureMap
    parts: NormalEquations  # of every part of the rows, and class


class Streamed:
    """Rows that are read again for every batch of kernels.

    One read sums every part of the rows for all kernels of a batch, and serves every `C`. Scores
    are over a sample of the rows that stays in memory, each row predicted by the machine that has
    not seen its part.

    Args:
        reader: the rows.
        sample: rows to score, laid out by the parts that are validated.
        kernels_at_once: kernels summed in one read.
        mesh: its devices share the rows of every batch.
    """

    def __init__(
        self, reader: Reader, sample: Rows, *, kernels_at_once: int, mesh: Mesh | None
    ) -> None:
        self.reader, self.sample, self.mesh = reader, sample, mesh
        self.kernels_at_once = kernels_at_once
        self.dtype = reader.scaling.shift.dtype
        self.code = reader.code
        self.rows_scored = int(np.count_nonzero(np.asarray(sample.w) > 0))
        # Sums of the kernel that is looked at and of the best so far, with its score.
        self._now: _Sums | None = None
        self._best: tuple[float, _Sums] | None = None
        self._method: type[Additive] | None = None

    def scores(
        self,
        problem: Problem,
        thetas: Table,
        C: Table,
        scoring: Scoring,
    ) -> Scores:
        """As of every `Tunable`, by one read of the rows."""
        method = require_additive(problem.method, "stream")
        # On the host, as the tuned kernel is made there, by whose values sums are found again.
        kernels = [kernel_at(problem, theta) for theta in np.asarray(thetas)]
        if self._method is not type(method):  # scores of a surrogate are none of its own
            self._method, self._best = type(method), None
        found = []
        for i, (kernel, held) in enumerate(zip(kernels, self._sums(problem, kernels), strict=True)):
            self._now = held
            if method.is_path:
                scores, errors, status = least_on_path(problem, kernel, np.asarray(C[i]), scoring)
            else:
                validated = self.validate(
                    problem, kernel, jax.device_put(np.asarray(C[i])), scoring
                )
                outcome = validated.scores, validated.fold_scores, validated.status
                scores, by_fold, status = map(np.asarray, on_default_device(self.mesh, outcome))
                errors = standard_error(by_fold)
            trusted = (status < PRECISION_LOST) & np.isfinite(scores)
            best = float(np.min(np.where(trusted, scores, np.inf)))
            if self._best is None or best < self._best[0]:
                self._best = best, self._now
            found.append((scores, errors, status))
        self._now = None
        scores, errors, status = (np.stack(column) for column in zip(*found, strict=True))
        return scores, errors, status

    def validate(
        self,
        problem: Problem,
        kernel: Kernel,
        C: Float[Array, " s"],
        scoring: Scoring,
        size: Int[Array, ""] | None = None,
    ) -> CrossValidation | PathValidation:
        """Of the sample; predictions are laid out by the parts that are validated."""
        method = require_additive(problem.method, "stream")
        phi, parts = self._held(problem, kernel)
        validated = self.reader.split.validated
        if isinstance(method, PathMethod):
            return _score_paths(
                method, phi, C, parts, self.sample, self.code, scoring, problem.reported,
                validated, problem.key, size,
            )  # fmt: skip
        if not method.is_ridge:
            if self.code is not None and not self.code.shares_all_rows:
                raise ValueError(
                    "stream: expected a method whose sums are solved by ridge regression for "
                    "problems that do not all see all classes, got "
                    f"{type(method).__name__}"
                )
            return _score_solutions(
                method, phi, C, parts, self.sample, self.code, scoring, validated, problem.key,
                self.mesh,
            )  # fmt: skip
        return _score(phi, C, parts, self.sample, self.code, scoring, validated, self.mesh)

    def fit(
        self, problem: Problem, kernel: Kernel, C: Float[Array, ""] | Float[Array, " l"]
    ) -> tuple[Any, FeatureMap | None, NormalEquations | None]:
        """The machine of all rows from its sums; those of the best kernel are there."""
        method = require_additive(problem.method, "stream")
        phi, parts = self._held(problem, kernel)
        total = _joined(parts)
        fitted = method.solve(phi, total, C, self.code, key=problem.key)
        return on_default_device(self.mesh, (fitted, phi, total))

    def rows_in_memory(self) -> tuple[Float[Array, "n d"], Float[Array, "n c"], Float[Array, " n"]]:
        """Those of the sample; of more than two classes the targets of every problem."""
        X, y, w, _ = self.sample
        return _flat(X, y, w)

    def _held(self, problem: Problem, kernel: Kernel) -> tuple[FeatureMap, NormalEquations]:
        """Sums of a kernel; only if it is known from a history of another run, by a read more."""
        name = _name(problem, kernel)
        best = None if self._best is None else self._best[1]
        for held in (self._now, best):
            if held is not None and held.name == name:
                return held.features, held.parts
        self._now = self._sums(problem, [kernel])[0]
        return self._now.features, self._now.parts

    def _sums(self, problem: Problem, kernels: list[Kernel]) -> list[_Sums]:
        """For every kernel, by one read of the rows."""
        method = require_additive(problem.method, "stream")
        reader, points = self.reader, _points(problem)
        begun = [
            _begin(method, kernel, points, reader.groups, reader.targets) for kernel in kernels
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
            _Sums(_name(problem, kernel), phi, total)
            for kernel, phi, total in zip(kernels, maps, totals, strict=True)
        ]


@functools.partial(compiled, static_argnames=("method", "groups", "targets"))
def _begin(
    method: Additive,
    kernel: Kernel,
    points: Float[Array, "m d"],
    groups: int,
    targets: tuple[int, ...],
) -> tuple[FeatureMap, NormalEquations]:
    """The features of a kernel, and sums over no rows."""
    phi = method.features(kernel, points)
    zero = zeros(phi.n_features, targets, points.dtype)
    return phi, jax.tree.map(lambda a: jnp.zeros((groups, *a.shape), a.dtype), zero)


@functools.partial(compiled, static_argnums=1)
def _by_part(total: NormalEquations, parts: int) -> NormalEquations:
    """The classes of a part along an axis of their own."""
    return jax.tree.map(lambda a: a.reshape(parts, len(a) // parts, *a.shape[1:]), total)


@compiled
def _joined(parts: NormalEquations) -> NormalEquations:
    return parts.joined


@compiled
def _flat(*parts: Float[Array, "v r ..."]) -> tuple[Float[Array, "n ..."], ...]:
    """Without the axis of parts."""
    return tuple(a.reshape(-1, *a.shape[2:]) for a in parts)


def _points(problem: Problem) -> Float[Array, "m d"]:
    assert problem.points is not None
    return problem.points


def _name(problem: Problem, kernel: Kernel) -> bytes:
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(kernel)]
    # A surrogate of the method sums other features, and points may have been moved.
    method = type(problem.method).__name__
    return b" ".join([method.encode(), np.asarray(_points(problem)).tobytes(), *leaves])


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


def _with_targets(sums: NormalEquations, code: Code | None) -> NormalEquations:
    """One target is a column, as solutions have it."""
    if code is not None:
        return sums
    cross, squares, targets = sums.cross, sums.target_square, sums.target_sum
    return sums._replace(
        cross=cross[..., None], target_square=squares[..., None], target_sum=targets[..., None]
    )


@functools.partial(compiled, static_argnames=("scoring", "validated", "mesh"))
def _score(
    phi: FeatureMap,
    C: Float[Array, " s"],
    sums: NormalEquations,
    sample: Rows,
    code: Code | None,
    scoring: Scoring,
    validated: int,
    mesh: Mesh | None,
) -> CrossValidation:
    each = _with_targets(sums, code)
    per_fold = jax.tree.map(lambda a: a[:validated], each)
    strategy = from_sums(phi, C, each.joined, per_fold, code, None, mesh, None)
    scores, by_fold, predictions, status = score(
        strategy, phi, C, sample, code, scoring.metric, scoring.decoding, mesh
    )
    return CrossValidation(scores, by_fold, jnp.moveaxis(predictions, 2, 0), status)


@functools.partial(compiled, static_argnames=("method", "scoring", "validated", "mesh"))
def _score_solutions(
    method: Additive,
    phi: FeatureMap,
    C: Float[Array, " s"],
    sums: NormalEquations,
    sample: Rows,
    code: Code | None,
    scoring: Scoring,
    validated: int,
    key: Array | None,
    mesh: Mesh | None,
) -> CrossValidation:
    each = _with_targets(sums, code)
    per_fold = jax.tree.map(lambda a: a[:validated], each)
    outputs = () if code is None else (sample.y.shape[-1],)
    strategy = solving(method, phi, C, each.joined, per_fold, None, code, outputs, key)
    scores, by_fold, predictions, status = score(
        strategy, phi, C, sample, code, scoring.metric, scoring.decoding, mesh
    )
    return CrossValidation(scores, by_fold, jnp.moveaxis(predictions, 2, 0), status)


@functools.partial(compiled, static_argnames=("method", "scoring", "reported", "validated"))
def _score_paths(
    method: PathMethod,
    phi: FeatureMap,
    C: Float[Array, " s"],
    sums: NormalEquations,
    sample: Rows,
    code: Code | None,
    scoring: Scoring,
    reported: Metric | None,
    validated: int,
    key: Array | None,
    size: Int[Array, ""] | None,
) -> PathValidation:
    each = _with_targets(sums, code)
    per_fold = jax.tree.map(lambda a: a[:validated], each)
    return score_paths(
        method, phi, C, per_fold, each.joined, sample, code,
        metrics_of(scoring.metric, reported), scoring.decoding, key, size,
        several=code is not None,
    )  # fmt: skip
