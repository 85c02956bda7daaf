"""The first pass over a stream, which computes moments and classes and draws a sample."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._agreement import BatchChecksums, same_in_all_processes
from .._arguments import whole_number
from .._blocks import capacity, padded
from .._mesh import local_mesh, spans_processes, turn_of
from .._programs import compiled
from .._types import Key
from ..data.streams import Batch, ReplayableStream, RowStream
from ..kernels import Linear
from ..kernels.mixed import categorical_columns
from ..machines.method import Shape, TrainingRows
from ..machines.rows import Rows
from ..validation.folds import Folds
from .checkpoint import Entry, RunState
from .choices import template_of
from .data import TrainingData
from .encoding import Encoding, code_of
from .inputs import WeightedRows, check_labels, class_factors, warn_if_rounded
from .plan import check_fits, plan_of
from .processes import join_processes
from .settings import NO_FOLD_MACHINES, Config, HoldOut
from .streamed import Reader, Split, Streamed
from .summary import Summarizer, Summary
from .target_units import TargetUnits, target_units


def read_stream(stream: RowStream, config: Config, state: RunState) -> TrainingData:
    """Read a stream for the first time, and return the rows to train on.

    For settings that a stream does not support, or rows that contradict the settings, raise a
    `ValueError`; for invalid batches, a `StreamError`, which names the rows.
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
    if method.n_features is not None:  # the points are chosen from the sample
        whole_number(method.size_argument, method.n_features, 1, sample_rows, "sample_rows")
    rows = ReplayableStream(stream)
    checksums = BatchChecksums() if rows.replicated and spans_processes(mesh) else None
    with same_in_all_processes(mesh) as compared:
        compared["sharded stream"] = not rows.replicated
        summarizer = _read_first(rows, config, split.parts, state, checksums)
    own_rows = summarizer.n
    if not rows.replicated:
        join_processes(mesh, summarizer, list(rows.shards))
    summary = summarizer.summary
    reader = _reader(rows, summary, split, config, own_rows)
    batches = {} if checksums is None else checksums.compared()
    return _training_data(reader, summary, config, batches, state)


def _training_data(
    reader: Reader, summary: Summary, config: Config, compared: dict[str, Any], state: RunState
) -> TrainingData:
    """Return the rows to train on: the encoded sample, and the stream to reread.

    `compared` are values, such as checksums, that must be equal in all processes.
    """
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
    mesh = config.resources.mesh
    parts = Rows(**jax.device_put(arrays), code=encoding.code, mesh=local_mesh(mesh))
    in_fold = np.zeros(n, bool)
    in_fold[folds.index[folds.valid]] = True
    size, classes = capacity(n), encoding.classes
    candidates = TrainingRows(
        jax.device_put(padded(X, size)), None if labels is None else padded(labels, size),
        padded(w, size, "constant"), encoding.scaling, n,
    )  # fmt: skip
    present, linear = int(np.count_nonzero(w)), isinstance(kernel, Linear)
    return TrainingData(
        source=Streamed(reader, parts, folds, n, mesh, state),
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
    """Return the division of the rows into parts; raise a `ValueError` for unsuitable folds."""
    folds, seed = config.folds, _seed(config.keys.folds)
    if isinstance(folds, Folds):
        raise ValueError("folds: expected a number or a HoldOut with a stream, got Folds")
    if isinstance(folds, HoldOut):
        return Split(seed, 2, 1, folds.share)
    n_folds = config.method.default_folds(sample_rows) if folds is None else folds
    n_folds = whole_number("folds", n_folds, 2, sample_rows, "sample_rows")
    return Split(seed, n_folds, n_folds, 0.0)


def _read_first(
    stream: ReplayableStream,
    config: Config,
    parts: int,
    state: RunState,
    checksums: BatchChecksums | None,
) -> Summarizer:
    """Read all rows, or the rows that a checkpoint lacks, and return their `Summarizer`.

    With `checksums` all rows are read, and every batch is added to the checksums. If a run with
    this number of `parts` does not fit into memory, or the first batch differs from the first batch
    of the call that wrote the checkpoint, raise a `ValueError`.
    """
    summarizer = Summarizer(
        _seed(config.keys.sample),
        config.resources.sample_rows,
        classification=config.task == "classification",
    )
    known = None if checksums is not None else state.known("first_pass")  # they need all batches
    batches_read, n_rows = 0, None
    if known is not None:
        summarizer.restore(*known)
        batches_read, n_rows = known.document["batches"], known.document["rows"]
    for number, (batch, *numbers) in enumerate(stream.located()):
        if number == 0:
            _check_first(batch, config, parts)
            fields = batch._asdict().items()
            state.same("stream", {f"{name} of the first batch": array for name, array in fields})
        if n_rows is not None:  # an earlier call has read all batches
            stream.rows = n_rows
            break
        if checksums is not None:
            checksums.add(batch)
        if number >= batches_read:
            summarizer.add(batch, *numbers)
            state.tick(first_pass=lambda count=number + 1: _state_of(summarizer, count, None))
    if n_rows is None:
        state.keep("first_pass", _state_of(summarizer, batches_read, stream.rows))
    return summarizer


def _check_first(batch: Batch, config: Config, parts: int) -> None:
    """Raise a `ValueError` if a run on batches as large as the first does not fit into memory.

    `parts` is the number of parts with separate sums. The memory plan has a sample of one row, as
    the size of the sample is not yet known.
    """
    (n, d), method = batch.X.shape, config.method
    planned = plan_of(
        method, n=n, d=d, streamed=True, batch_rows=n, sample_rows=1, folds=parts,
        n_C=config.C.size, memory=config.resources.memory,
    )  # fmt: skip
    check_fits(planned, method)


def _state_of(summarizer: Summarizer, batches: int, rows: int | None) -> Entry:
    """Return the state of the first pass after a number of batches.

    `rows` is the number of rows of the stream; None before the end of the pass.
    """
    arrays, document = summarizer.state
    return Entry(arrays, document | {"batches": batches, "rows": rows})


def _seed(key: Key) -> int:
    """Return a 32-bit integer drawn with the key: the seed of a `Summarizer` or a `Split`."""
    return int(_random_bits(key))


_random_bits = compiled(lambda key: jax.random.bits(key, dtype=jnp.uint32), quickly=True)


def _reader(
    rows: ReplayableStream, summary: Summary, split: Split, config: Config, own_rows: int
) -> Reader:
    """Return the reader of all later passes, with the encoding from the first pass.

    `own_rows` is the number of rows of positive weight that this process reads. If there are fewer
    than two classes, or fewer rows of a class than parts, raise a `ValueError`.
    """
    X, y, weights, *_ = summary.sample
    dtype = jax.dtypes.canonicalize_dtype(np.result_type(X.dtype, np.float32))
    warn_if_rounded("X", X, dtype)
    classes = factors = code = None
    units = TargetUnits()
    if config.task == "regression":
        units = target_units(y, weights, dtype)
    else:
        classes = np.array(list(summary.by_class))
        assert rows.rows is not None
        check_labels(classes, summary.n, max(summary.n, rows.rows))
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
    turn = turn_of(config.resources.mesh) if rows.replicated else (0, 1)
    batch_rows = capacity(summary.largest_batch)
    return Reader(rows, summary.n, own_rows, encoding, factors, split, batch_rows, turn)


def _sample_folds(part: np.ndarray, n_folds: int) -> Folds:
    """Return the folds of a sample: the rows of the parts 0 to `n_folds - 1`, see `Split`.

    `part` is the part number of each row. If no row is in these parts, raise a `ValueError`.
    """
    members = [np.flatnonzero(part == i) for i in range(n_folds)]
    longest = capacity(max(len(numbers) for numbers in members))
    if longest == 0:
        raise ValueError(
            f"holdout: expected a share that holds out rows of the sample, got none of {len(part)} "
            "rows; take a larger share or more sample_rows"
        )
    return Folds.of(members, longest)
