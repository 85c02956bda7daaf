"""The first pass over a stream, which computes moments and classes and draws a sample."""

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
from .inputs import WeightedRows, check_labels, class_factors, folds_of_rows
from .plan import check_fits, plan_of
from .settings import NO_FOLD_MACHINES, Config, HoldOut
from .streamed import Reader, Split, Streamed
from .summary import Summary, summarize
from .target_units import TargetUnits, target_units


def read_stream(stream: RowStream, config: Config) -> TrainingData:
    """Read a stream for the first time, and return the rows to train on.

    Raises:
        ValueError: for settings that a stream does not support, or rows that contradict the
            settings.
        StreamError: for invalid batches, naming the rows.
    """
    method, mesh, sample_rows = config.method, config.resources.mesh, config.resources.sample_rows
    method.check_sums("stream")
    if config.out_of_fold == "machines":
        raise ValueError(NO_FOLD_MACHINES)
    if config.multiclass.classes is not None:
        raise ValueError(
            "classes: expected None with a stream, whose first pass finds the classes, got "
            f"{config.multiclass.classes!r}"
        )
    split = _split_of(config, sample_rows)
    method.check_sample(sample_rows)
    rows, checksums = ReplayableStream(stream), BatchChecksums()
    arguments = {"folds": split.parts, "n_C": config.C.size, "memory": config.resources.memory}
    batches = _checked_for_memory(rows, method, arguments)
    if spans_processes(mesh):
        batches = checksums.watch(batches)
    rng = np.random.default_rng(_seed(config.keys.sample))
    summary = summarize(batches, rng, sample_rows, classification=config.task == "classification")
    compared = checksums.compared() if spans_processes(mesh) else {}
    return _training_data(_reader(rows, summary, split, config), summary, config, compared)


def _training_data(
    reader: Reader, summary: Summary, config: Config, compared: dict[str, Any]
) -> TrainingData:
    """Return the rows to train on: the encoded sample, and the stream to reread."""
    encoding, sample, split = reader.encoding, summary.sample, reader.split
    n, d = sample.X.shape
    kernel = template_of(config.kernel, d, config.search)
    if categorical_columns(kernel):
        raise ValueError(
            "kernel: expected one without columns of categories for a stream, whose columns "
            "are all scaled"
        )
    shift, scale = (np.asarray(a) for a in encoding.scaling)
    X = (sample.X.astype(encoding.dtype) - shift) / scale
    y, w, labels = reader.encode(sample.y, sample.weights, "sample")
    folds = _sample_folds(split(sample.places), split.validated)
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
        truth=sample.y if labels is None else labels,
        weights=np.where(in_fold, w, 0),
        weighted=WeightedRows(n, sample.rows, None),
        folds=folds,
        compared=compared,
        planning={
            "folds": split.parts,
            "streamed": True,
            "batch_rows": summary.largest_batch,
            "sample_rows": config.resources.sample_rows,
        },
    )


def _split_of(config: Config, sample_rows: int) -> Split:
    """Return the division of the rows into parts.

    Raises:
        ValueError: for `Folds`, or a number of folds below 2 or above `sample_rows`.
    """
    folds, seed = config.folds, _seed(config.keys.folds)
    if isinstance(folds, Folds):
        raise ValueError("folds: expected a number or a HoldOut with a stream, got Folds")
    if isinstance(folds, HoldOut):
        return Split(seed, 2, 1, folds.share)
    n_folds = default_folds(sample_rows) if folds is None else folds
    n_folds = whole_number("folds", n_folds, 2, sample_rows, "sample_rows")
    return Split(seed, n_folds, n_folds, 0.0)


def _checked_for_memory(
    rows: ReplayableStream, method: Method, arguments: Mapping[str, Any]
) -> Iterator[Batch]:
    """Yield the batches of a stream; check the memory of the run at the first batch.

    The size of the sample is not yet known, so the plan has a sample of one row. `arguments` holds
    further arguments of `plan`.

    Raises:
        ValueError: if the run does not fit into memory.
    """
    for i, batch in enumerate(rows):
        if i == 0:
            n, d = batch.X.shape
            known = {"n": n, "d": d, "streamed": True, "batch_rows": n, "sample_rows": 1}
            check_fits(plan_of(method, **known, **arguments), method)
        yield batch


def _seed(key: Key) -> int:
    """Return a 32-bit integer drawn with the key: the seed of a NumPy generator or a `Split`."""
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
        class_sums = np.array([moments.weight for moments in summary.by_class.values()])
        if config.class_weight is not None:
            factors = class_factors(config.class_weight, classes, class_sums)
        code = code_of(config, len(classes), dtype)
    encoding = Encoding(summary.standardization(factors, dtype), classes, code, units)
    return Reader(rows, summary.n, encoding, factors, split, capacity(summary.largest_batch))


def _sample_folds(part: np.ndarray, n_folds: int) -> Folds:
    """Return the rows of the sample in each validated part, as folds; see `Split`.

    Args:
        part: number of each row's part.
        n_folds: number of validated parts; the parts 0 to `n_folds - 1` are validated.

    Raises:
        ValueError: if no row of the sample is in a validated part.
    """
    members = [np.flatnonzero(part == i) for i in range(n_folds)]
    longest = capacity(max(len(numbers) for numbers in members))
    if longest == 0:
        raise ValueError(
            f"holdout: expected a share that holds out rows of the sample, got none of {len(part)} "
            "rows; take a larger share or more sample_rows"
        )
    return folds_of_rows(members, longest)
