"""From a stream to a source: the first pass, which takes moments, classes and a sample of rows."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from .._agreement import BatchChecksums
from .._arguments import whole_number
from .._blocks import capacity
from .._mesh import spans_processes
from .._programs import compiled
from .._types import Key
from ..data.streams import Batch, Checked, RowStream
from ..kernels.mixed import categorical_columns
from ..validation.folds import Folds
from .choices import default_folds, template_of
from .encoding import code_of
from .inputs import check_labels, class_factors
from .plan import check_fits, plan
from .reader import Reader, Split
from .settings import Config, HoldOut
from .streamed import SampleRows, Streamed
from .summary import Summary, summarize
from .target_units import TargetUnits, target_units


def read_stream(stream: RowStream, config: Config) -> Streamed:
    """Read a stream for the first time.

    Args:
        stream: the rows, the same every time they are read.
        config: of the run.

    Raises:
        ValueError: for settings that do not suit a stream, or rows that do not suit the settings.
        StreamError: naming the rows, for batches that hold what they should not.
    """
    method, mesh, sample_rows = config.method, config.resources.mesh, config.resources.sample_rows
    method.check_sums("stream")
    if config.multiclass.classes is not None:
        raise ValueError("classes: expected None with a stream, whose first pass finds them")
    split = _split_of(config, sample_rows)
    if method.memory is not None:
        whole_number(method.size_argument, method.memory, 1, sample_rows, "sample_rows")
    rows = Checked(stream)
    rng = np.random.default_rng(_number(config.keys.sample))
    least = {"folds": split.parts, "n_C": config.C.size, "memory": config.resources.memory}
    batches = _if_they_fit(rows, method.memory, method.size_argument, least)
    checksums = BatchChecksums()
    if spans_processes(mesh):
        batches = checksums.watch(batches)
    classification = config.task == "classification"
    summary = summarize(batches, rng, sample_rows, classification=classification)
    reader = _reader(rows, summary, split, config)
    template = template_of(config.kernel, len(summary.low), config.search)
    if categorical_columns(template):
        raise ValueError(
            "kernel: expected one without columns of categories for a stream, whose columns "
            "are all scaled"
        )
    folds = _sample_folds(split, summary.sample.places)
    sample = _sample(reader, summary)
    return Streamed(reader, summary, sample, folds, mesh=mesh, checksums=checksums)


def _split_of(config: Config, sample_rows: int) -> Split:
    """Return how the rows are divided into parts."""
    folds, seed = config.folds, _number(config.keys.folds)
    if isinstance(folds, Folds):
        raise ValueError("folds: expected a number or a HoldOut with a stream, got Folds")
    if isinstance(folds, HoldOut):
        return Split(seed, 2, 1, folds.share)
    v = default_folds(sample_rows) if folds is None else folds
    v = whole_number("folds", v, 2, sample_rows, "sample_rows")
    return Split(seed, v, v, 0.0)


def _if_they_fit(rows: Checked, m: Any, name: str, shape: Mapping[str, Any]) -> Iterator[Batch]:
    """Yield the batches; raise at the first if the least that they need does not fit."""
    for i, batch in enumerate(rows):
        if i == 0 and m is not None:
            n, d = batch.X.shape
            least = plan(n, d, m, streamed=True, batch_rows=n, sample_rows=m, **shape)
            check_fits(least, m, name)
        yield batch


def _number(key: Key) -> int:
    """Return a seed for NumPy's generator and for the hash of row numbers."""
    return int(_bits(key))


@functools.partial(compiled, quickly=True)
def _bits(key: Key) -> UInt32[Array, ""]:
    return jax.random.bits(key, dtype=jnp.uint32)


def _reader(rows: Checked, summary: Summary, split: Split, config: Config) -> Reader:
    sample = summary.sample
    dtype = jax.dtypes.canonicalize_dtype(np.result_type(sample.X.dtype, np.float32))
    classes = factors = code = None
    if config.task == "classification":
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
        factors = class_factors(config.class_weight, classes, mass)
        code = code_of(config, len(classes), dtype)
    scaling = summary.standardization(factors, dtype)
    units = TargetUnits()
    if classes is None:
        units = target_units(sample.y, sample.weights, dtype)
    batch_rows = capacity(summary.most)
    return Reader(rows, summary.n, scaling, classes, factors, code, split, batch_rows, units)


def _sample(reader: Reader, summary: Summary) -> SampleRows:
    """Return the sample as the machine sees it."""
    X, y, weights = summary.sample[:3]
    target, number = reader.encode(y, weights, "sample")
    w = reader.weigh(weights, number, len(X))
    dtype = reader.scaling.shift.dtype
    shift, scale = (np.asarray(a) for a in reader.scaling)
    target = target.astype(dtype if reader.code is None else np.int32)
    return SampleRows((X.astype(dtype) - shift) / scale, target, w.astype(dtype), number)


def _sample_folds(split: Split, places: Int[np.ndarray, " r"]) -> Folds:
    """Return the rows of the sample in each part that is validated."""
    part = split(places)
    members = [np.flatnonzero(part == i) for i in range(split.validated)]
    longest = capacity(max(len(numbers) for numbers in members))
    if longest == 0:
        raise ValueError(f"holdout: expected rows of the sample in it, got none of {len(places)}")
    index, valid = np.zeros((2, len(members), longest), np.int32)
    for i, numbers in enumerate(members):
        index[i, : len(numbers)], valid[i, : len(numbers)] = numbers, 1
    return Folds(index, valid.astype(bool))
