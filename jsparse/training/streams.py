"""The first pass over a stream, which gives its moments, its classes and a sample of its rows."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from .._agreement import BatchChecksums
from .._arguments import whole_number
from .._blocks import capacity, padded
from .._mesh import spans_processes
from .._programs import compiled
from .._types import Key
from ..data.streams import Batch, ReplayableStream, RowStream
from ..kernels import Linear
from ..kernels.mixed import categorical_columns
from ..machines.method import Method, Shape, TrainingRows
from ..machines.rows import Rows
from ..validation.folds import Folds
from .choices import default_folds, template_of
from .data import TrainingData
from .encoding import Encoding, code_of
from .inputs import CountingRows, check_labels, class_factors, folds_of_rows
from .plan import check_fits, plan_of
from .settings import NO_FOLD_MACHINES, Config, HoldOut
from .streamed import Reader, Split, Streamed
from .summary import Summary, summarize
from .target_units import TargetUnits, target_units


def read_stream(stream: RowStream, config: Config) -> TrainingData:
    """Read a stream for the first time, and return the rows to train on.

    Raises:
        ValueError: for settings that do not suit a stream, or rows that do not suit the settings.
        StreamError: for invalid batches, naming the rows.
    """
    method, mesh, sample_rows = config.method, config.resources.mesh, config.resources.sample_rows
    method.check_sums("stream")
    if config.out_of_fold == "machines":
        raise ValueError(NO_FOLD_MACHINES)
    if config.multiclass.classes is not None:
        raise ValueError("classes: expected None with a stream, whose first pass finds them")
    split = _split_of(config, sample_rows)
    method.check_sample(sample_rows)
    rows, checksums = ReplayableStream(stream), BatchChecksums()
    arguments = {"folds": split.parts, "n_C": config.C.size, "memory": config.resources.memory}
    batches = _if_they_fit(rows, method, arguments)
    if spans_processes(mesh):
        batches = checksums.watch(batches)
    rng = np.random.default_rng(_seed(config.keys.sample))
    summary = summarize(batches, rng, sample_rows, classification=config.task == "classification")
    compared = checksums.compared() if spans_processes(mesh) else {}
    return _data(_reader(rows, summary, split, config), summary, config, compared)


def _data(
    reader: Reader, summary: Summary, config: Config, compared: dict[str, Any]
) -> TrainingData:
    """Return the rows to train on: the encoded sample, and the stream to reread."""
    encoding, drawn, split = reader.encoding, summary.sample, reader.split
    n, d = drawn.X.shape
    kernel = template_of(config.kernel, d, config.search)
    if categorical_columns(kernel):
        raise ValueError(
            "kernel: expected one without columns of categories for a stream, whose columns "
            "are all scaled"
        )
    shift, scale = (np.asarray(a) for a in encoding.scaling)
    X = (drawn.X.astype(encoding.dtype) - shift) / scale
    y, w, labels = reader.encode(drawn.y, drawn.weights, "sample")
    folds = _sample_folds(split(drawn.places), split.validated)
    weights = np.where(folds.valid, w[folds.index], 0)
    arrays = {"X": X[folds.index], "y": y[folds.index], "weights": weights}
    parts = Rows(**jax.device_put(arrays), code=encoding.code, mesh=config.resources.mesh)
    in_fold = np.zeros(n, bool)
    in_fold[folds.index[folds.valid]] = True
    room, classes = capacity(n), encoding.classes
    candidates = TrainingRows(
        jax.device_put(padded(X, room)), None if labels is None else padded(labels, room),
        padded(w, room, "constant"), encoding.scaling, n,
    )  # fmt: skip
    present, linear = int(np.count_nonzero(w)), isinstance(kernel, Linear)
    return TrainingData(
        source=Streamed(reader, parts, folds, n),
        encoding=encoding,
        shape=Shape(n, present, present, d, None if classes is None else len(classes), linear),
        candidates=candidates,
        truth=drawn.y if labels is None else labels,
        weights=np.where(in_fold, w, 0),
        counting=CountingRows(n, drawn.rows, None),
        folds=folds,
        compared=compared,
        planning={
            "folds": split.parts,
            "streamed": True,
            "batch_rows": summary.most,
            "sample_rows": config.resources.sample_rows,
        },
    )


def _split_of(config: Config, sample_rows: int) -> Split:
    """Return how the rows are divided into parts."""
    folds, seed = config.folds, _seed(config.keys.folds)
    if isinstance(folds, Folds):
        raise ValueError("folds: expected a number or a HoldOut with a stream, got Folds")
    if isinstance(folds, HoldOut):
        return Split(seed, 2, 1, folds.share)
    v = default_folds(sample_rows) if folds is None else folds
    v = whole_number("folds", v, 2, sample_rows, "sample_rows")
    return Split(seed, v, v, 0.0)


def _if_they_fit(
    rows: ReplayableStream, method: Method, arguments: Mapping[str, Any]
) -> Iterator[Batch]:
    """Yield the batches of a stream; at the first batch, raise if the run cannot fit into memory.

    The size of the sample is not known yet, so its memory is not counted. `arguments` holds further
    arguments of `plan`.
    """
    for i, batch in enumerate(rows):
        if i == 0:
            n, d = batch.X.shape
            known = {"n": n, "d": d, "streamed": True, "batch_rows": n, "sample_rows": 1}
            check_fits(plan_of(method, **known, **arguments), method)
        yield batch


def _seed(key: Key) -> int:
    """Return a seed for NumPy's generator, or for the hash of `Split`."""
    return int(_bits(key))


@functools.partial(compiled, quickly=True)
def _bits(key: Key) -> UInt32[Array, ""]:
    """Return 32 random bits."""
    return jax.random.bits(key, dtype=jnp.uint32)


def _reader(rows: ReplayableStream, summary: Summary, split: Split, config: Config) -> Reader:
    """Return the reader of all later passes, with the encoding from the first pass.

    Raises:
        ValueError: for fewer than two classes, or fewer rows of a class than parts.
    """
    X, y, weights, *_ = summary.sample
    dtype = jax.dtypes.canonicalize_dtype(np.result_type(X.dtype, np.float32))
    classes = factors = code = None
    units = TargetUnits()
    if config.task == "regression":
        units = target_units(y, weights, dtype)
    else:
        classes = np.array(list(summary.by_class))
        assert rows.rows is not None
        check_labels(classes, summary.n, rows.rows)
        for label, moments in summary.by_class.items():
            if moments.rows < split.parts:
                raise ValueError(
                    f"y: expected at least {split.parts} rows of every class, one for each part of "
                    f"the data, got {moments.rows} of {label!r}"
                )
        mass = np.array([moments.weight for moments in summary.by_class.values()])
        if config.class_weight is not None:
            factors = class_factors(config.class_weight, classes, mass)
        code = code_of(config, len(classes), dtype)
    encoding = Encoding(summary.standardization(factors, dtype), classes, code, units)
    return Reader(rows, summary.n, encoding, factors, split, capacity(summary.most))


def _sample_folds(part: np.ndarray, n_folds: int) -> Folds:
    """Return the rows of the sample in each validated part, as folds.

    Args:
        part: number of each row's part.
        n_folds: number of validated parts, which are the first ones.
    """
    members = [np.flatnonzero(part == i) for i in range(n_folds)]
    longest = capacity(max(len(numbers) for numbers in members))
    if longest == 0:
        raise ValueError(f"holdout: expected rows of the sample in it, got none of {len(part)}")
    return folds_of_rows(members, longest)
