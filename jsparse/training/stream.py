"""The fixed-size LS-SVM of data larger than memory (De Brabanter 2010, Section 6.2)."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import ArrayLike, Float, Int

from .._arguments import as_key, real, whole
from .._mesh import check_mesh
from .._runtime import check_runtime
from .._status import CONVERGED
from .._types import Key, KeyLike
from ..data.streams import Batch, Checked, RowStream
from ..kernels import Linear
from ..multiclass import Decoding, Scheme, output_code
from ..search.problem import Scoring, split_kernel, start_of
from ..search.tune import Evaluation, Method, Progress, check_settings, tune
from ..validation.cross_validation import Metric
from ..validation.folds import Folds
from ..validation.out_of_fold import Rows
from .choices import DEFAULT_C, LENGTHSCALE_FACTOR, KernelLike, make_kernel, select
from .clock import clock, compile_clock
from .inputs import Task, check_labels, class_factors
from .plan import SAMPLE_ROWS, check_fits, plan
from .reader import Reader, Split
from .stream_problem import StreamProblem
from .summary import Summary, summarize
from .target_units import TargetUnits, target_units
from .trained import Trained


def train_stream(
    stream: RowStream,
    *,
    task: Task,
    key: KeyLike,
    n_prototypes: int = 200,
    kernel: KernelLike = "rbf",
    tune_kernel: bool = True,
    selection: Literal["renyi", "uniform"] = "renyi",
    folds: int | None = None,
    holdout: float | None = None,
    metric: Metric | None = None,
    multiclass: Scheme | ArrayLike = "one_versus_rest",
    decoding: Decoding = "loss",
    search_method: Method = "profile",
    max_evaluations: int | None = None,
    max_seconds: float = math.inf,
    C: Float[np.ndarray, " s"] = DEFAULT_C,
    class_weight: Literal["balanced"] | Mapping[Any, float] | None = None,
    sample_rows: int = SAMPLE_ROWS,
    memory: int | None = None,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
    history: list[Evaluation] | None = None,
) -> Trained:
    """`train` for rows that do not fit in memory (De Brabanter 2010, Section 6.2, Algorithm 4).

    The first pass over the rows takes their moments, their classes and a random sample of them, in
    which every class has its part; its rows count for as many as they stand for.
    Prototypes are chosen from the sample. Each further pass sums the normal equations of every fold
    for a batch of kernels, all there are if memory allows, and serves every `C`; the search
    "profile" takes three such passes for its ten kernels. The final fit needs none. Memory does
    not depend on the number of rows.

    Scores are means over the rows of the sample, each predicted by the machine that has not seen
    its fold: of all the rows if the sample holds them all.

    Args:
        stream: batches of raw inputs, labels or targets, and row weights; the same every time it is
            iterated over (`data.streams`). Weights count as in `train`.
        task: "classification" or "regression".
        key: an integer, or a key of `jax.random`: decides sample, prototypes, folds and search.
        n_prototypes: `m`, at most the rows of the sample.
        kernel: see `train`, also for what is not said here.
        tune_kernel: False to tune `C` only.
        selection: "renyi" or "uniform".
        folds: their number, by default 10; rows are dealt to them by a hash of their number.
        holdout: share of the rows that is held out to validate, instead of folds (Algorithm 4);
            one decomposition for each kernel and two sums instead of `folds`. Scores are over the
            held-out rows of the sample, the final fit is on all rows.
        metric: "misclassification", "mse" or "mae".
        multiclass: how more than two classes become problems of two.
        decoding: how their values become a class.
        search_method: "profile", or "csa", which takes a pass for every five or fewer points.
        max_evaluations: budget of the search.
        max_seconds: no pass starts later, of those that tune and but for the first of them.
        C: grid (or range) of the weight of the data-fit term.
        class_weight: a factor for the rows of each class, or "balanced".
        sample_rows: rows of the sample.
        memory: bytes that may be taken; by default what the device has left. See `plan`.
        mesh: its devices share the rows of every batch, and the folds. In several processes each
            reads the whole stream, and calls with the same arguments.
        progress: called with (done, planned, best score).
        history: of a stopped search, to go on from.

    Returns:
        As of `train`; `folds` and `prototype_rows` are of the sample and of the stream.

    Raises:
        StreamError: naming the rows, for a stream that changes from pass to pass, ends early or
            holds what it should not; nothing of what was summed is used.
        ValueError: for settings that make no sense, or more prototypes than memory has room for.
        NumericalError: if nothing could be computed that can be trusted.
    """
    check_runtime()
    key = as_key(key)
    seconds: dict[str, float] = {}
    with compile_clock(seconds), clock(seconds, "total"):
        default: Metric = "misclassification" if task == "classification" else "mse"
        scoring = Scoring(default if metric is None else metric, decoding)
        grid = check_settings(
            scoring, C, search_method, max_evaluations, max_seconds, progress, history
        )
        if task not in ("classification", "regression"):
            raise ValueError(f"task: expected 'classification' or 'regression', got {task!r}")
        if task == "regression" and scoring.metric == "misclassification":
            raise ValueError("metric: expected 'mse' or 'mae' for regression")
        if selection not in ("renyi", "uniform"):
            raise ValueError(f"selection: expected 'renyi' or 'uniform', got {selection!r}")
        if mesh is not None:
            check_mesh(mesh)
        make_kernel(kernel, 1)
        if isinstance(multiclass, str) and multiclass not in get_args(Scheme):
            raise ValueError(f"multiclass: expected one of {get_args(Scheme)}, got {multiclass!r}")
        if class_weight is not None and task == "regression":
            raise ValueError("class_weight: expected None for regression")
        if holdout is not None and folds is not None:
            raise ValueError("folds, holdout: expected one of them, got both")
        if holdout is not None and not real("holdout", holdout, 0.0, above=True) < 1:
            raise ValueError(f"holdout: expected a share between 0 and 1, got {holdout}")
        sample_rows = whole("sample_rows", sample_rows, 2, 2**31 - 1, "the largest number")
        m = whole("n_prototypes", n_prototypes, 1, sample_rows, "sample_rows")
        v = whole("folds", 10 if folds is None else folds, 2, sample_rows, "sample_rows")
        sample_key, prototype_key, fold_key, search_key = jax.random.split(key, 4)
        split = Split(_number(fold_key), v, v, 0.0)
        if holdout is not None:
            split = Split(_number(fold_key), 2, 1, holdout)

        rows = Checked(stream)
        with clock(seconds, "first pass"):
            rng = np.random.default_rng(_number(sample_key))
            least = {"folds": split.parts, "n_C": grid.size, "memory": memory}
            batches = _watched(rows, m, least)
            summary = summarize(batches, rng, sample_rows, classification=task == "classification")
        reader = _reader(rows, summary, split, multiclass, class_weight, task)
        dtype, d = reader.scaling.shift.dtype, len(summary.low)
        template = make_kernel(kernel, d)
        m = whole("n_prototypes", m, 1, len(summary.sample.X), "the rows of the sample")
        varied, _ = split_kernel(template, dtype, tune_kernel=tune_kernel)
        planned = plan(
            summary.n,
            d,
            m,
            folds=split.parts,
            code=reader.code,
            n_C=grid.size,
            dtype=dtype,
            streamed=True,
            batch_rows=summary.most,
            sample_rows=sample_rows,
            method=search_method,
            n_parameters=ravel_pytree(varied)[0].size,
            max_evaluations=max_evaluations,
            memory=memory,
        )
        check_fits(planned, f"{m} prototypes")

        with clock(seconds, "prototypes"):
            sample, w = _sample(reader, summary)
            selected = CONVERGED
            if isinstance(template, Linear):
                chosen = np.arange(m)  # the linear machine is solved in the primal
            else:
                labels = None if sample.label is None else np.asarray(sample.label)
                even = np.all(w == w[0])
                weights = None if even else w
                chosen, selected = select(prototype_key, selection, sample.X, m, labels, weights)
            table = _table(split, summary.sample.rows)
            laid_out = jax.tree.map(table.gather, sample)
            laid_out = laid_out._replace(w=jnp.where(table.valid, laid_out.w, 0))
            posed = StreamProblem(
                template,
                sample.X[chosen],
                reader,
                laid_out,
                kernels_at_once=planned.kernels_at_once,
                tune_kernel=tune_kernel,
                mesh=mesh,
            )
        units = reader.units
        middle, span = np.asarray(start_of(posed), float), math.log(LENGTHSCALE_FACTOR)
        with clock(seconds, "tuning"), units.of_errors(scoring.metric):
            tuned = tune(
                posed,
                key=search_key,
                metric=scoring.metric,
                low=middle - span,
                high=middle + span,
                C=grid,
                decoding=decoding,
                method=search_method,
                max_evaluations=max_evaluations,
                max_seconds=max_seconds,
                progress=units.progress(progress, scoring.metric),
                history=units.history(history, scoring.metric),
            )
        with clock(seconds, "fit"):
            fitted, sums = jax.block_until_ready(posed.fit(tuned))
            fitted = fitted._replace(expansion=units.expansion(fitted.expansion))
            sums = sums._replace(units=units)
            tuned = units.tuning(tuned, scoring.metric)
    return Trained(
        expansion=dataclasses.replace(fitted.expansion, scaling=reader.scaling),
        classes=reader.classes,
        code=reader.code,
        decoding=decoding,
        kernel=tuned.kernel,
        C=tuned.C,
        target_unit=units.unit,
        cv_error=tuned.score,
        metric=scoring.metric,
        tuning=tuned,
        fit=fitted,
        prototype_rows=summary.sample.rows[chosen],
        folds=table,
        out_of_fold=None,
        sums=sums,
        n_rows=summary.n,
        seconds=seconds,
        selection_status=selected,
    )


def _watched(rows: Checked, m: int, shape: dict[str, Any]) -> Iterator[Batch]:
    """The batches, once it is seen by the first that what they need at least will fit."""
    for i, batch in enumerate(rows):
        if i == 0:
            n, d = batch.X.shape
            least = plan(n, d, m, streamed=True, batch_rows=n, sample_rows=m, **shape)
            check_fits(least, f"{m} prototypes")
        yield batch


def _number(key: Key) -> int:
    """A seed for NumPy's generator and for the hash of row numbers."""
    return int(jax.random.bits(key, dtype=jnp.uint32))


def _reader(
    rows: Checked,
    summary: Summary,
    split: Split,
    multiclass: Scheme | ArrayLike,
    class_weight: Literal["balanced"] | Mapping[Any, float] | None,
    task: Task,
) -> Reader:
    sample = summary.sample
    dtype = jax.dtypes.canonicalize_dtype(np.result_type(sample.X.dtype, np.float32))
    classes = factors = code = None
    if task == "classification":
        classes = np.array(list(summary.by_class))
        mass = np.array([moments.weight for moments in summary.by_class.values()])
        check_labels(classes, summary.n, mass)
        for label, moments in summary.by_class.items():
            if moments.rows < split.parts:
                raise ValueError(
                    f"y: expected at least {split.parts} rows of every class, one for each part of "
                    f"the data, got {moments.rows} of {label!r}"
                )
        factors = class_factors(class_weight, classes, mass)
        if len(classes) > 2:
            code = output_code(multiclass, len(classes)).astype(dtype)
    scaling = summary.standardization(factors, dtype)
    units = TargetUnits()
    if classes is None:
        units = target_units(sample.y, sample.weights, dtype)
    return Reader(rows, scaling, classes, factors, code, split, summary.most, units)


def _sample(reader: Reader, summary: Summary) -> tuple[Rows, np.ndarray]:
    """The rows of the sample, standardised, and their weights."""
    X, y, weights, _ = summary.sample
    target, number = reader.encode(y, weights, "sample")
    w = reader.weigh(weights, number, len(X))
    dtype = reader.scaling.shift.dtype
    code = reader.code
    target = target[:, None] if code is None else np.asarray(code.matrix)[target]
    rows = Rows(
        X=reader.scaling.apply(jnp.asarray(X, dtype)),
        y=jnp.asarray(target, dtype),
        w=jnp.asarray(w, dtype),
        label=None if number is None else jnp.asarray(number),
    )
    return rows, w


def _table(split: Split, rows: Int[np.ndarray, " r"]) -> Folds:
    """The rows of the sample in each part that is validated."""
    part = split(rows)
    members = [np.flatnonzero(part == i) for i in range(split.validated)]
    longest = max(len(numbers) for numbers in members)
    if longest == 0:
        raise ValueError(f"holdout: expected rows of the sample in it, got none of {len(rows)}")
    index, valid = np.zeros((2, len(members), longest), np.int32)
    for i, numbers in enumerate(members):
        index[i, : len(numbers)], valid[i, : len(numbers)] = numbers, 1
    return Folds(jnp.asarray(index), jnp.asarray(valid, bool))
