"""The source of rows that reads a stream (De Brabanter 2010, Section 6.2, Algorithm 4)."""

import functools
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._agreement import summed_in_all_processes
from .._blocks import padded
from .._mesh import from_first_process, on_default_device, sum_over_rows
from .._programs import compiled
from .._repr import short_repr
from ..data.streams import Located, ReplayableStream, StreamError, indices_in_words
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..machines.family import Family
from ..machines.from_sums import FromSums
from ..machines.held_out import Sums
from ..machines.rows import Rows
from ..normal_equations import NormalEquations, accumulate_groups, zeros
from ..scaling import Standardization
from ..search.problem import Problem, Table, Wanted
from ..search.scores import least_of_sizes
from ..validation.folds import Folds
from ..validation.validate import FoldLosses, Scoring, Validation
from .checkpoint import Entry, RunState
from .draws import random_bits, random_numbers
from .encoding import Encoding
from .plan import Plan
from .settings import NO_FOLD_MACHINES
from .source import FIRST_MACHINE, SumsOfFolds, TrainingSource, evaluate, target_columns


class Split(NamedTuple):
    """A random division of the rows of a stream into parts, by a hash of each row's place.

    The parts are the folds of cross-validation, or the held-out rows and all other rows. A
    validated part is one whose rows are predicted by the machine fitted to the other parts.

    The parts are random whatever the order of the rows, and equal in every pass. The place of a row
    is its number among the rows of positive weight, so rows of weight 0 have no influence.
    """

    seed: int
    parts: int  # number of folds; or 2, of which the first is held out
    validated: int  # number of parts that are validated: all folds, or 1
    share: float  # fraction of the rows in the held-out part; 0 for folds

    __repr__ = short_repr

    def __call__(self, places: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the number of each row's part."""
        if self.share:
            return (random_numbers(places, self.seed) >= self.share).astype(np.int32)
        bits = random_bits(places, self.seed)
        return (bits % np.uint64(self.parts)).astype(np.int32)


class Reader(NamedTuple):
    """A reader of a stream, which yields encoded batches of one size."""

    stream: ReplayableStream
    n_rows: int  # number of rows of positive weight
    own_rows: int  # number of rows of positive weight that this process reads
    encoding: Encoding
    factors: Float[np.ndarray, " k"] | None  # weight factor of each class; None for 1
    split: Split
    batch_rows: int  # rows of a batch
    # `(i, p)` if all `p` processes read all batches, and this process sums the batches with the
    # numbers i, i + p, i + 2 p, ... (counted from 0). `(0, 1)` to sum all batches.
    turn: tuple[int, int] = (0, 1)

    __repr__ = short_repr

    @property
    def groups_per_part(self) -> int:
        """The number of groups of rows in a part, each with separate sums.

        If all binary problems use the same rows, the whole part is one group. Otherwise each class
        of the part is a group.
        """
        code = self.encoding.code
        return 1 if code is None or code.shares_all_rows else len(code.matrix)

    @property
    def n_groups(self) -> int:
        """The number of groups of rows with separate sums, over all parts of the stream."""
        return self.split.parts * self.groups_per_part

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of a row's targets in the sums; `(0,)` if classes are summed separately."""
        code = self.encoding.code
        if code is None:
            return ()
        return (code.matrix.shape[1],) if self.groups_per_part == 1 else (0,)

    def encode(
        self, y: np.ndarray, weights: np.ndarray | None, where: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return targets, weights, and class numbers (None for regression) of some rows.

        Raw row weights are multiplied by the factors of the classes. For a label that was not in
        the first pass, or numbers outside the range of the machine's dtype, raise a `StreamError`,
        which names the rows by `where`.
        """
        encoding, w = self.encoding, np.ones(len(y)) if weights is None else weights.astype(float)
        if encoding.classes is None:
            targets = _cast(encoding.targets(y, weights), encoding.dtype, where, "y")
            return targets, _cast(w, encoding.dtype, where, "weights"), None
        last = len(encoding.classes) - 1
        numbers = np.minimum(np.searchsorted(encoding.classes, y), last).astype(np.int32)
        unknown = encoding.classes[numbers] != y
        if np.any(unknown):
            label = y[np.argmax(unknown)]
            raise StreamError(f"{where}: expected the labels of the first pass, got {label!r}")
        w = w if self.factors is None else w * self.factors[numbers]
        w = _cast(w, encoding.dtype, where, "weights")
        return encoding.targets(numbers, None), w, numbers

    def batches(self, skip: int = 0) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
        """Yield batches `(X, targets, weights, groups)`, padded with rows of weight 0.

        The first `skip` batches are left out. Each batch comes with the number of batches up to its
        end. `groups` holds the number of each row's group, see `groups_per_part`. If the classes
        are summed separately, the targets have no columns, because the class determines them. If
        the rows differ from the rows of the first pass, raise a `StreamError`.
        """
        n_rows = count = 0
        for part in self.stream.located():
            n = len(part.places)
            n_rows += n
            for first in range(0, n, self.batch_rows):
                count += 1
                if count > skip and (count - 1) % self.turn[1] == self.turn[0]:
                    yield count, self._encoded(part, slice(first, first + self.batch_rows))
        if n_rows != self.own_rows:
            raise StreamError(
                f"weights: expected {self.own_rows} rows with a weight above 0 as in the first "
                f"pass, got {n_rows}"
            )

    def _encoded(self, part: Located, rows: slice) -> tuple[np.ndarray, ...]:
        """Return some rows as a batch, see `batches`."""
        (X, y, weights), numbers, places = part
        where, code, dtype = indices_in_words(numbers), self.encoding.code, self.encoding.dtype
        y, weights = y[rows], None if weights is None else weights[rows]
        targets, w, class_numbers = self.encode(y, weights, where)
        group = self.split(places[rows])
        if self.groups_per_part > 1:
            group = group * self.groups_per_part + class_numbers
            targets = np.zeros((len(y), 0), dtype)
        elif code is not None:
            targets = np.asarray(code.matrix, dtype)[class_numbers]
        X, size = _cast(X[rows], dtype, where, "X"), self.batch_rows
        w = padded(w, size, "constant")
        return padded(X, size), padded(targets, size), w, padded(group, size)


def _cast(a: np.ndarray, dtype: np.dtype, where: str, name: str) -> np.ndarray:
    """Return an array in another dtype; raise a `StreamError` if a value is out of range."""
    with np.errstate(over="ignore"):
        cast = a.astype(dtype)
    if not np.isfinite(cast).all():
        value = a[~np.isfinite(cast)][0]
        raise StreamError(f"{where}: {name}: expected values that fit {dtype}, got {value}")
    return cast


class Streamed(TrainingSource):
    """The rows of a stream, which are reread for each batch of kernels.

    One pass computes the sums over every part of the rows for a batch of kernels. The sums serve
    every `C`. Scores are means over a sample of the rows, which stays in memory. Each row of the
    sample is predicted by the machine fitted without the row's part.

    Args:
        reader: reads the rows.
        parts: standardised rows of the sample, arranged by validated part, see `Split`.
        folds: for each validated part, the numbers of its rows in the sample.
        n_sample: number of rows of the sample.
        mesh: the devices of all processes, or of one; None for one device.
        state: the run's entries of the checkpoint: cached sums, and sums of an unfinished pass.
    """

    def __init__(
        self,
        reader: Reader,
        parts: Rows,
        folds: Folds,
        n_sample: int,
        mesh: Mesh | None,
        state: RunState,
    ) -> None:
        self.reader, self.placed, self.folds = reader, parts, folds
        self.mesh, self.state = mesh, state
        self.n_predicted, self.n_rows = n_sample, reader.n_rows
        self._kernels_in_pass = 1
        # Cached sums over every part of the rows, for the last kernel and the best kernel so far.
        self._sums: dict[str, Sums] = {}
        self._best: tuple[float, str] = np.inf, ""  # score and cache key of the best kernel
        self._method = ""  # name of the method that the best score belongs to
        self._restored: dict[str, NormalEquations] = {}  # sums of an earlier call, on the host
        if (known := state.known("sums")) is not None:
            score, name, self._method = known.document["best"]
            self._best = np.inf if score is None else score, name
            self._restored = _by_name(known.arrays)

    @property
    def rows_scored(self) -> int:
        """See `Source`."""
        return int(np.count_nonzero(np.asarray(self.placed.weights)))

    @property
    def fold_sizes(self) -> Int[np.ndarray, " v"]:
        """See `Source`."""
        return np.count_nonzero(np.asarray(self.placed.weights), axis=1)

    def follow(self, plan: Plan | None) -> None:
        """Sum as many kernels in one pass as the plan says."""
        assert plan is not None
        self._kernels_in_pass = plan.kernels_at_once

    def kernels_at_once(self, problem: Problem) -> int:
        """Return the number of kernels that are summed in one pass, see `Source`."""
        return self._kernels_in_pass

    def divisible(self, problem: Problem) -> bool:
        """See `Source`: a pass over a stream reads all rows."""
        return False

    def held_out_rows(self, problem: Problem, theta: Float[Any, " p"]) -> SumsOfFolds:
        """See `TrainingSource`."""
        return self._with_sums(problem, self._sums_of(problem, problem.template.at(theta)))

    def errors(
        self, problem: Problem, thetas: Table, C: Table, scoring: Scoring, wanted: Wanted = None
    ) -> list[Validation]:
        """See `Source`: one pass over the rows for all kernels and folds."""
        # The cache key depends on every bit of the kernel. So make kernels on the host, where the
        # tuned kernel is made.
        kernels = [problem.template.at(theta) for theta in np.asarray(thetas)]
        method = type(problem.method).__name__
        if self._method != method:  # scores of two methods are not comparable
            self._method, self._best, self._sums, self._restored = method, (np.inf, ""), {}, {}
        names, sums = self._sum(problem, kernels)
        on_fold, validations = FoldLosses(scoring, FIRST_MACHINE), []
        C = np.asarray(C, self.dtype)
        for name, kernel_sums, C_of_kernel in zip(names, sums, C, strict=True):
            validation = evaluate(self._with_sums(problem, kernel_sums), C_of_kernel, on_fold)
            validation = validation._replace(predictions=None)
            validation = on_default_device(self.placed.mesh, validation)
            validations.append(from_first_process(self.mesh, validation))
            score = float(np.min(least_of_sizes(problem.method, validations[-1]).trusted))
            self._cache(name, kernel_sums, score)
        return validations

    def fit(
        self, problem: Problem, kernel: Kernel, C: Float[Array, "*l"], sums: Sums | None
    ) -> tuple[Family, Sums | None]:
        """See `Source`; the sums of the best kernel are cached."""
        features, parts = self._sums_of(problem, kernel)
        total = Sums(features, _sum_over_parts(parts))
        family = _from_sums(problem).solve(total, C, self.code, problem.key)
        return on_default_device(self.placed.mesh, (family, total))

    def rows_in_memory(self) -> tuple[Float[Array, "n d"], Float[Array, "n c"], Float[Array, " n"]]:
        """See `Source`: the rows of the sample that are in a validated part, see `Split`."""
        X, y, weights = _flat(self.placed.X, self.placed.y, self.placed.weights)
        k = None if self.code is None else len(self.code.matrix)
        return X, target_columns(X, y, k), weights

    def only_rows(self, rows: Int[np.ndarray, " m"]) -> "Streamed":
        """Raise a `ValueError`, as a stream cannot select rows by number."""
        raise ValueError("stream: expected a method that is tuned on all rows")

    def on_a_part(self, n_rows: int, folds: int) -> "Streamed":
        """Raise a `ValueError`, as a pass over a stream reads all rows."""
        raise ValueError("stream: expected a search on all rows")

    def fold_machines(self, *_: Any) -> tuple[KernelExpansion, Int[np.ndarray, " n"]]:
        """Raise a `ValueError`, as a stream is not fitted again for each fold."""
        raise ValueError(NO_FOLD_MACHINES)

    def _with_sums(self, problem: Problem, sums: Sums) -> SumsOfFolds:
        """Return the arguments of the program that predicts held-out rows from sums."""
        return SumsOfFolds(_from_sums(problem), sums, self.placed, problem.key)

    def _cache(self, name: str, sums: Sums, score: float = np.inf) -> None:
        """Cache the sums of a kernel beside the sums of the best kernel; drop all others."""
        if score < self._best[0]:
            self._best = score, name
        sums_by_name = {self._best[1]: self._sums.get(self._best[1]), name: sums}
        self._sums = {name: sums for name, sums in sums_by_name.items() if sums is not None}
        self._restored = {n: s for n, s in self._restored.items() if n == self._best[1]}
        self.state.keep("sums", self._cached)

    def _cached(self) -> Entry:
        """Return the cached sums, and the best kernel's score, as an entry of the checkpoint."""
        sums = self._restored | {name: sums.equations for name, sums in self._sums.items()}
        score, name = self._best
        best = [score if np.isfinite(score) else None, name, self._method]
        return Entry(_arrays_of(sums), {"best": best})

    def _sums_of(self, problem: Problem, kernel: Kernel) -> Sums:
        """Return the sums of a kernel from the cache, or else from a pass over the rows.

        Only a kernel from the history of an earlier search needs the pass.
        """
        (name,), (sums,) = self._sum(problem, [kernel])
        self._cache(name, sums)
        return sums

    def _sum(self, problem: Problem, kernels: list[Kernel]) -> tuple[list[str], list[Sums]]:
        """Return the cache keys and the sums of kernels, by one pass over the rows or none."""
        reader, points = self.reader, problem.points
        assert points is not None
        names = [_cache_key(problem, kernel) for kernel in kernels]
        if all(name in self._sums for name in names):
            return names, [self._sums[name] for name in names]
        initial = [
            _initial_sums(_from_sums(problem), kernel, points, reader.n_groups, reader.outputs)
            for kernel in kernels
        ]
        maps, totals = [phi for phi, _ in initial], [zero for _, zero in initial]
        if all(name in self._restored for name in names):
            totals = [jax.device_put(self._restored[name]) for name in names]
        else:
            zero_sums = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), totals)
            sums_of_process = functools.partial(self._pass, maps, totals, names)
            totals = summed_in_all_processes(self.mesh, zero_sums, sums_of_process)
            self.state.keep("unfinished", None)
            if reader.groups_per_part > 1:
                totals = [_by_part(total, reader.split.parts) for total in totals]
        return names, [Sums(*pair) for pair in zip(maps, totals, strict=True)]

    def _pass(
        self, maps: list[FeatureMap], totals: list[NormalEquations], names: list[str]
    ) -> list[NormalEquations]:
        """Return the sums of every feature map over this process's rows, by one pass.

        `totals` are sums of zero, which are overwritten. A checkpoint recognises an unfinished pass
        by `names`, the cache keys of the kernels.
        """
        reader, mesh, known = self.reader, self.placed.mesh, self.state.known("unfinished")
        skip = 0
        if known is not None and known.document["names"] == names:
            skip, sums = known.document["batches"], _by_name(known.arrays)
            totals = [jax.device_put(sums[name]) for name in names]
        pending: list[Array] = []  # weights of the last batch, ready once the batch is summed

        def unfinished(batches: int) -> Entry:
            sums = dict(zip(names, totals, strict=True))
            return Entry(_arrays_of(sums), {"names": names, "batches": batches})

        for count, batch in reader.batches(skip):
            # Read the next batch while one batch is summed, but hold no third batch in memory.
            jax.block_until_ready(pending)
            rows = jax.device_put(batch)
            # With a loop over kernels, one program serves any number of kernels.
            add = functools.partial(_add, n_groups=reader.n_groups, mesh=mesh)
            added = [
                add(total, phi, reader.encoding.scaling, *rows)
                for total, phi in zip(totals, maps, strict=True)
            ]
            totals, pending = [total for total, _ in added], [weight for _, weight in added]
            self.state.tick(unfinished=functools.partial(unfinished, count))
        return totals


def _arrays_of(sums: dict[str, NormalEquations]) -> dict[str, np.ndarray]:
    """Return sums as arrays on the host, by the keys "name.field"."""
    return {
        f"{name}.{field}": np.asarray(array)
        for name, equations in sums.items()
        for field, array in equations._asdict().items()
    }


def _by_name(arrays: Mapping[str, Any]) -> dict[str, NormalEquations]:
    """Return sums by name, from the arrays that `_arrays_of` returns."""
    names = dict.fromkeys(key.partition(".")[0] for key in arrays)
    fields = NormalEquations._fields
    return {name: NormalEquations(*(arrays[f"{name}.{f}"] for f in fields)) for name in names}


def _from_sums(problem: Problem) -> FromSums:
    """Return the problem's method; raise a `ValueError` if it needs more than sums over rows."""
    return problem.method.check_sums("stream")


def _cache_key(problem: Problem, kernel: Kernel) -> str:
    """Return the cache key of sums: a hash of the method's name, the points and the kernel.

    The method and the points can change during tuning: a surrogate has other features, and a search
    may move the points.
    """
    digest = hashlib.blake2b(type(problem.method).__name__.encode(), digest_size=16)
    for array in (problem.points, *jax.tree.leaves(kernel)):
        digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()


@functools.partial(compiled, static_argnames=("n_groups", "outputs"))
def _initial_sums(
    method: FromSums,
    kernel: Kernel,
    points: Float[Array, "m d"],
    n_groups: int,
    outputs: tuple[int, ...],
) -> tuple[FeatureMap, NormalEquations]:
    """Return the feature map of a kernel, and sums of zero with a leading axis of groups.

    `outputs` is the shape of a row's targets in the sums, see `Reader.outputs`.
    """
    phi = method.features(kernel, points)
    zero = zeros(phi.n_features, outputs, points.dtype)
    return phi, jax.tree.map(lambda a: jnp.zeros((n_groups, *a.shape), a.dtype), zero)


@functools.partial(compiled, static_argnums=1)
def _by_part(total: NormalEquations, parts: int) -> NormalEquations:
    """Split the leading axis of the sums, the groups, into two axes: parts and classes."""
    return jax.tree.map(lambda a: a.reshape(parts, len(a) // parts, *a.shape[1:]), total)


_sum_over_parts = compiled(lambda parts: parts.joined)


@compiled
def _flat(*parts: Float[Array, "v r ..."]) -> tuple[Float[Array, "n ..."], ...]:
    """Merge the axes of parts and rows, for each array."""
    return tuple(a.reshape(-1, *a.shape[2:]) for a in parts)


@functools.partial(compiled, static_argnames=("n_groups", "mesh"), donate_argnums=0)
def _add(
    total: NormalEquations,
    phi: FeatureMap,
    scaling: Standardization,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    w: Float[Array, " n"],
    group: Int[Array, " n"],
    *,
    n_groups: int,
    mesh: Mesh | None,
) -> tuple[NormalEquations, Float[Array, ""]]:
    """Add the sums over a batch to the totals of each group; also return the batch's weight.

    The next call takes over the memory of the totals (donation). So a caller cannot wait for the
    totals, but can wait for the weight.
    """

    def local(
        shared: tuple[FeatureMap, Standardization], w: Array, X: Array, y: Array, group: Array
    ) -> NormalEquations:
        phi, scaling = shared
        return accumulate_groups(phi, scaling.apply(X), y, w, group, n_groups=n_groups)

    batch = sum_over_rows(mesh, local, (phi, scaling), w, X, y, group)
    return jax.tree.map(jnp.add, total, batch), jnp.sum(batch.weight_sum)
