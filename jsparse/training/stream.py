"""Rows that are read in batches, as training takes them (De Brabanter 2010, Section 6.2)."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, UInt32

from .._agreement import BatchChecksums
from .._arguments import whole_number
from .._blocks import capacity, padded
from .._mesh import on_default_device, spans_processes
from .._programs import compiled
from .._repr import short_repr
from .._types import Key
from ..data.streams import Batch, Checked, RowStream
from ..kernels import Kernel, Linear
from ..kernels.mixed import categorical_columns
from ..machines.fixed_size import FixedSize
from ..machines.method import Method, Points, Shape, TrainingRows, require_additive
from ..search.problem import Problem, Scoring, split_kernel
from ..validation.folds import Folds
from ..validation.out_of_fold import Rows
from .arrays import code_of
from .choices import default_folds, template_of
from .inputs import check_labels, class_factors
from .plan import Plan, check_fits, counted, fitting, plan
from .reader import Reader, Split
from .settings import HoldOut, Settings
from .streamed import Streamed
from .summary import Summary, summarize
from .target_units import TargetUnits, target_units


class ScoredRows(NamedTuple):
    """The rows of the sample, on the host, as the machine sees them."""

    X: Float[np.ndarray, "r d"]  # standardised
    y: Float[np.ndarray, "r c"]
    w: Float[np.ndarray, " r"]
    number: Int[np.ndarray, " r"] | None  # of the class

    __repr__ = short_repr


class StreamData:
    """A stream after its first pass, which takes its moments, its classes and a sample of its rows.

    Args:
        asked: what the run is asked for.
        stream: the rows, the same every time they are read.
    """

    def __init__(self, asked: Settings, stream: RowStream) -> None:
        self.asked = asked
        method, folds, sample_rows = asked.method, asked.folds, asked.resources.sample_rows
        require_additive(method, "stream")
        if asked.multiclass.classes is not None:
            raise ValueError("classes: expected None with a stream, whose first pass finds them")
        if isinstance(folds, Folds):
            raise ValueError("folds: expected a number or a HoldOut with a stream, got Folds")
        seed = _number(asked.keys.folds)
        if isinstance(folds, HoldOut):
            split = Split(seed, 2, 1, folds.share)
        else:
            v = default_folds(sample_rows) if folds is None else folds
            v = whole_number("folds", v, 2, sample_rows, "sample_rows")
            split = Split(seed, v, v, 0.0)
        if isinstance(method.memory, int):
            whole_number(counted(method), method.memory, 1, sample_rows, "sample_rows")
        rows = Checked(stream)
        rng = np.random.default_rng(_number(asked.keys.sample))
        least = {"folds": split.parts, "n_C": asked.C.size, "memory": asked.resources.memory}
        batches = _watched(rows, method.memory, counted(method), least)
        self.checksums = BatchChecksums()
        if spans_processes(asked.resources.mesh):
            batches = self.checksums.watch(batches)
        classification = asked.task == "classification"
        self.summary = summarize(batches, rng, sample_rows, classification=classification)
        self.reader = _reader(rows, self.summary, split, asked)
        self.n_rows = self.summary.n
        self.classes, self.code = self.reader.classes, self.reader.code
        self.units, self.scaling = self.reader.units, self.reader.scaling
        self.dtype = self.scaling.shift.dtype
        self.template = template_of(asked.kernel, len(self.summary.low), asked.search)
        if categorical_columns(self.template):
            raise ValueError(
                "kernel: expected one without columns of categories for a stream, whose columns "
                "are all scaled"
            )
        self.folds = _sample_folds(split, self.summary.sample.places)
        self.sample = _sample(self.reader, self.summary)

    def compared(self) -> dict[str, Any]:
        """Return what must be the same in all processes of a mesh."""
        return self.checksums.compared()

    def take(self, asked: Settings) -> None:
        """Settings that rows were needed to decide: kernel and search."""
        self.asked = asked
        self.template = template_of(asked.kernel, len(self.summary.low), asked.search)

    def settled(self, method: Method) -> Method:
        """The method for these rows, if they and the memory allow it."""
        n, d = self.sample.X.shape
        present = int(np.count_nonzero(self.sample.w))
        classes = None if self.classes is None else len(self.classes)
        linear = isinstance(self.template, Linear)
        method = method.settled(Shape(n, present, present, d, classes, linear))
        planned = self._plan(method)
        if self.asked.method.grows:
            method = fitting(method, planned)
            planned = self._plan(method)
        if method.memory is not None:
            check_fits(planned, method.memory, counted(method))
        self.kernels_at_once = planned.kernels_at_once
        return method

    def _plan(self, method: Method) -> Plan:
        asked, d = self.asked, self.sample.X.shape[1]
        varied, _ = split_kernel(self.template, self.dtype, **asked.search.varied)
        features = method.memory
        return plan(
            self.n_rows,
            d,
            len(self.sample.X) if features is None else features,
            folds=self.reader.split.parts,
            code=self.code,
            n_C=asked.C.size,
            dtype=self.dtype,
            streamed=True,
            batch_rows=self.summary.most,
            sample_rows=asked.resources.sample_rows,
            search=asked.search,
            n_parameters=ravel_pytree(varied)[0].size,
            memory=asked.resources.memory,
        )

    def standardised(self) -> TrainingRows:
        """The rows that points are chosen from: those of the sample."""
        X, labels, w = self.sample.X, self.sample.number, self.sample.w
        rows = capacity(len(w))
        return TrainingRows(
            jax.device_put(padded(X, rows)),
            None if labels is None else padded(labels, rows),
            padded(w, rows, "constant"),
            self.scaling,
            len(w),
        )

    def points(self, method: Method) -> Points:
        """Which points may carry the model."""
        return method.points(self.asked.keys.points, self.template, self.standardised())

    def problem(self, method: Method, points: Float[Array, "m d"] | None) -> Problem:
        """The tuning problem, whose rows are read again for every batch of kernels."""
        asked, folds = self.asked, self.folds
        tuned, fixed = split_kernel(self.template, self.dtype, **asked.search.varied)
        index, valid = (np.asarray(a) for a in folds)
        X, y, w, number = self.sample
        laid_out = X[index], y[index], np.where(valid, w[index], 0)
        label = None if number is None else jax.device_put(number[index])
        by_fold = Rows(*jax.device_put(laid_out), label=label)
        source = Streamed(
            self.reader, by_fold, kernels_at_once=self.kernels_at_once, mesh=asked.resources.mesh
        )
        return Problem(method, tuned, fixed, points, source, asked.keys.method, asked.metric)

    def rows_in_memory(self) -> tuple[Float[Array, "r d"], Float[Array, "r c"], Float[Array, " r"]]:
        """Return standardised inputs, targets and weights of the sample."""
        return self.problem(FixedSize(1), None).source.rows_in_memory()

    def predictions(
        self, problem: Problem, kernel: Kernel, C: np.ndarray, scoring: Scoring, size: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Out-of-fold values of the sample for every `C`, shape `s r *c`, and stop codes."""
        # As many values of C as the search had are the program of the search; of paths it is not.
        several = C.astype(self.dtype)
        if not problem.method.is_path:
            several = np.resize(several, max(len(C), self.asked.C.size))
        found = problem.source.validate(problem, kernel, jax.device_put(several), scoring, size)
        mesh = self.asked.resources.mesh
        predictions, status = on_default_device(mesh, (found.predictions, found.status))
        by_fold = np.asarray(predictions)[: len(C)]
        values = np.full((len(C), len(self.sample.X), *by_fold.shape[3:]), np.nan, self.dtype)
        index, valid = (np.asarray(a) for a in self.folds)
        values[:, index[valid]] = by_fold[:, valid]
        return values[..., 0] if self.code is None else values, np.asarray(status)[: len(C)]

    def scored(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Class numbers, or targets, and weights of the sample; 0 of a row not predicted."""
        predicted = np.zeros(len(self.sample.X), bool)
        predicted[np.asarray(self.folds.index)[np.asarray(self.folds.valid)]] = True
        label = self.sample.number
        numbers = self.summary.sample.y if label is None else np.asarray(label)
        return numbers, np.where(predicted, self.sample.w, 0)

    def rows_of(self, chosen: np.ndarray | None) -> np.ndarray | None:
        """Numbers, in the stream, of rows of the sample."""
        return None if chosen is None else self.summary.sample.rows[chosen]

    def for_caller(self, values: np.ndarray | None) -> np.ndarray | None:
        """Values of the sample, whose rows all count."""
        return values

    @property
    def folds_of_caller(self) -> Folds:
        """The folds of the sample."""
        return self.folds


def _watched(
    rows: Checked, m: int | Literal["all"] | None, name: str, shape: Mapping[str, Any]
) -> Iterator[Batch]:
    """The batches, once it is seen by the first that what they need at least will fit."""
    for i, batch in enumerate(rows):
        if i == 0 and isinstance(m, int):
            n, d = batch.X.shape
            least = plan(n, d, m, streamed=True, batch_rows=n, sample_rows=m, **shape)
            check_fits(least, m, name)
        yield batch


def _number(key: Key) -> int:
    """A seed for NumPy's generator and for the hash of row numbers."""
    return int(_bits(key))


@functools.partial(compiled, quickly=True)
def _bits(key: Key) -> UInt32[Array, ""]:
    return jax.random.bits(key, dtype=jnp.uint32)


def _reader(rows: Checked, summary: Summary, split: Split, asked: Settings) -> Reader:
    sample = summary.sample
    dtype = jax.dtypes.canonicalize_dtype(np.result_type(sample.X.dtype, np.float32))
    classes = factors = code = None
    if asked.task == "classification":
        classes = np.array(list(summary.by_class))
        mass = np.array([moments.weight for moments in summary.by_class.values()])
        assert rows.rows is not None
        check_labels(classes, summary.n, rows.rows)
        for label, moments in summary.by_class.items():
            if moments.rows < split.parts:
                raise ValueError(
                    f"y: expected at least {split.parts} rows of every class, one for each part of "
                    f"the data, got {moments.rows} of {label!r}"
                )
        factors = class_factors(asked.class_weight, classes, mass)
        code = code_of(asked, len(classes), dtype)
    scaling = summary.standardization(factors, dtype)
    units = TargetUnits()
    if classes is None:
        units = target_units(sample.y, sample.weights, dtype)
    batch_rows = capacity(summary.most)
    return Reader(rows, summary.n, scaling, classes, factors, code, split, batch_rows, units)


def _sample(reader: Reader, summary: Summary) -> ScoredRows:
    X, y, weights = summary.sample[:3]
    target, number = reader.encode(y, weights, "sample")
    w = reader.weigh(weights, number, len(X))
    dtype = reader.scaling.shift.dtype
    code = reader.code
    target = target[:, None] if code is None else np.asarray(code.matrix)[target]
    shift, scale = (np.asarray(a) for a in reader.scaling)
    Z = (X.astype(dtype) - shift) / scale
    return ScoredRows(Z, target.astype(dtype), w.astype(dtype), number)


def _sample_folds(split: Split, places: Int[np.ndarray, " r"]) -> Folds:
    """The rows of the sample in each part that is validated."""
    part = split(places)
    members = [np.flatnonzero(part == i) for i in range(split.validated)]
    longest = capacity(max(len(numbers) for numbers in members))
    if longest == 0:
        raise ValueError(f"holdout: expected rows of the sample in it, got none of {len(places)}")
    index, valid = np.zeros((2, len(members), longest), np.int32)
    for i, numbers in enumerate(members):
        index[i, : len(numbers)], valid[i, : len(numbers)] = numbers, 1
    return Folds(index, valid.astype(bool))
