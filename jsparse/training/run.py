"""A run: the steps from raw rows and complete settings to a tuned model."""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, ArrayLike

from .._agreement import least_in_all_processes, same_in_all_processes
from .._arguments import finite_rows
from .._blocks import capacity
from .._lapack_threads import one_lapack_thread
from .._mesh import from_first_process, spans_processes
from .._repr import short_repr
from .._runtime import on_cpu, usable_cores
from .._threads import map_in_threads
from .._types import KeyLike
from ..conformal import ConformalScores
from ..data.frames import as_frame
from ..data.streams import RowStream
from ..kernels import Projected
from ..machines.family import Family
from ..machines.held_out import Sums as RowSums
from ..machines.method import Method, Metric, Points, Task
from ..model import About, Model
from ..multiclass import Scheme
from ..predictor.checks import refuse_path
from ..predictor.schema import Schema
from ..scaling import normal_scores
from ..search.problem import Problem
from ..search.run import Progress
from ..search.template import Template, split_kernel
from ..validation.folds import Folds
from .auto import LARGEST_SAMPLE_SYSTEM, family_of, main_directions
from .checkpoint import Entry, RunState, resumable, run_state
from .choices import KernelLike, projected, template_of
from .clock import clock, compile_clock
from .data import TrainingData
from .encoding import apply_scaling, indicators
from .inputs import ClassWeight, WeightedRows, checked_targets, warn_if_rounded, weighted_rows
from .plan import check_fits, free_bytes
from .presets import Preset
from .settings import Config, HoldOut, Multiclass, Resources, Settings, configure, keys_of
from .streams import read_stream
from .tables import prepare_table
from .target_units import TargetUnits
from .trained import Sums, Trained
from .tuning import Choice, calibrate, choose, fit_all_rows, predict_held_out


@resumable
def run(
    X: Any,
    y: Any = None,
    *,
    task: Task,
    key: KeyLike,
    settings: Settings,
    C: ArrayLike | None = None,
    folds: int | Folds | HoldOut | Literal["auto"] = "auto",
    metric: Metric | None = None,
    multiclass: Scheme | ArrayLike | Multiclass = "one_versus_rest",
    weights: ArrayLike | None = None,
    class_weight: ClassWeight = None,
    out_of_fold: bool | Literal["machines"] = True,
    resources: Resources = Resources(),
    progress: Progress | None = None,
    preset: Preset | None = None,
    student: Method | None = None,
) -> Trained:
    """Train a model with complete settings.

    Arguments and errors are as for `train`. `preset` has no effect but is recorded in the result.
    `student` is a method that will distil the model: before any work, raise its errors too.
    """
    seconds: dict[str, float] = {}
    with compile_clock(seconds), clock(seconds, "total"):
        state = run_state(resources)
        mesh = getattr(resources, "mesh", None)
        with same_in_all_processes(mesh) as compared:
            config = configure(
                task, keys_of(key), settings, C, folds, metric, multiclass, class_weight,
                out_of_fold, resources, progress, student,
            )  # fmt: skip
            compared |= config.compared
            state.same("settings", config.resumed)
        state.share(mesh)
        with same_in_all_processes(mesh) as compared:
            data, schema = _read(X, y, weights, config, seconds, state)
            compared |= data.compared | {"columns": schema}
            state.same("data", data.compared | {"columns": schema})
        if config.columns == "auto":
            with clock(seconds, "settings"), one_lapack_thread(LARGEST_SAMPLE_SYSTEM):
                config = _choose_columns(config, data)
            if config.columns == "ranks":
                data, schema = _read(X, y, weights, config, seconds, state)
        config = _resolve_search(config, data, state)
        method = _resolve_method(config, data)
        if _is_auto(config.kernel) or config.search.rank is not None:
            with clock(seconds, "settings"), one_lapack_thread(LARGEST_SAMPLE_SYSTEM):
                config = _choose_kernel(config, data)
        with one_lapack_thread(method.largest_system(capacity(data.source.n_rows))):
            fitted = _fitted(method, config, data, state, seconds)
    return trained_of(fitted, data, config, schema, seconds, preset)


class Fitted(NamedTuple):
    """The tuned machine in the caller's units, and what was computed on held-out rows."""

    points: Points
    choice: Choice
    family: Family
    sums: RowSums | None
    values: np.ndarray | None  # held-out values, shape `n *c`
    inverse_temperatures: np.ndarray | None  # of the probabilities of classes
    conformal: ConformalScores | None

    __repr__ = short_repr


def _fitted(
    method: Method, config: Config, data: TrainingData, state: RunState, seconds: dict[str, float]
) -> Fitted:
    """Choose the points, tune the machine, and fit it to all rows."""
    units = data.encoding.units
    with clock(seconds, "prototypes"):
        template = _template(config, data)
        points = _points(method, template, config, data, state)
        jax.block_until_ready(points.X)
    problem = problem_of(method, template, config, data, points)
    values = inverse_temperatures = conformal = None
    with clock(seconds, "tuning"), units.converting_histories(problem.scoring.metric):
        choice = choose(problem, config, data.encoding, state)
        if config.out_of_fold:
            values, validation_sums = predict_held_out(choice, units)
        else:
            validation_sums = choice.problem.known_start(choice.outcome.theta, choice.C)
    with clock(seconds, "fit"):
        family, sums = fit_all_rows(choice, units, validation_sums)
        jax.block_until_ready(jax.tree.leaves(family))
        if values is not None:
            machines = config.out_of_fold == "machines"
            inverse_temperatures, conformal = calibrate(
                values, choice, data, validation_sums, machines=machines
            )
    return Fitted(points, choice, family, sums, values, inverse_temperatures, conformal)


def trained_of(
    fitted: Fitted,
    data: TrainingData,
    config: Config,
    schema: Schema | None,
    seconds: dict[str, float],
    preset: Preset | None,
) -> Trained:
    """Return the result of a run: the model, its diagnostics and the outcome of tuning."""
    points, choice, family, sums, values = fitted[:5]
    problem, tuning, curve, units = choice.problem, choice.tuning, choice.curve, data.encoding.units
    criterion = problem.scoring.metric
    error, metric = _reported_error(choice, criterion, units)
    rows = None if choice.moved else problem.point_rows
    if rows is not None:
        rows = data.weighted.index[rows[family.active_points(choice.size)]]
    return Trained(
        model=_model(data, schema, fitted, error, metric),
        method=problem.method,
        kernel=tuning.kernel,
        C=choice.C,
        target_unit=units.unit,
        cv_error=error,
        metric=metric,
        criterion=criterion,
        tuning=units.tuning(tuning, criterion),
        search=config.search,
        fit=family,
        sums=None if sums is None else Sums(sums.features, sums.equations, units),
        point_rows=rows,
        n_points=data.source.n_rows if points.X is None else len(points.X),
        folds=data.weighted.with_caller_rows(data.folds),
        out_of_fold=None if values is None else data.weighted.spread(values),
        n_rows=data.source.n_rows,
        seconds=seconds,
        preset=preset,
        curve=None if curve is None else units.curve(curve),
        selection_status=points.status,
    )


class RawRows(NamedTuple):
    """The caller's rows of positive weight, checked but not encoded."""

    X: np.ndarray
    y: np.ndarray
    weighted: WeightedRows
    schema: Schema | None  # of the columns, if the caller's `X` has one

    __repr__ = short_repr


def raw_rows(X: Any, y: Any, weights: ArrayLike | None, task: Task) -> RawRows | None:
    """Return the checked rows of positive weight; None without targets `y`, as with a stream.

    If the inputs, the targets or the weights are invalid, raise a `ValueError`.
    """
    frame = as_frame(X)
    if frame is not None:
        weighted = weighted_rows(weights, frame.n_rows)
        numbers = None if weights is None else weighted.index
        X, y, schema = frame.arrays(y, task, numbers)
        rows = finite_rows(X)
        warn_if_rounded("X", X, rows.dtype, schema.features)
        return RawRows(rows, checked_targets(y, len(X), task), weighted, schema)
    refuse_path("X", X)
    if y is None:
        return None
    rows = finite_rows(X)
    weighted, y = weighted_rows(weights, len(rows)), checked_targets(y, len(rows), task)
    warn_if_rounded("X", weighted.select(np.asarray(X)), rows.dtype)
    return RawRows(weighted.select(rows), weighted.select(y), weighted, None)


def _read(
    X: Any,
    y: Any,
    weights: ArrayLike | None,
    config: Config,
    seconds: dict[str, float],
    state: RunState,
) -> tuple[TrainingData, Schema | None]:
    """Return the encoded rows of a table or a stream, and the schema of the columns or None.

    `seconds` gets the time of a stream's first pass, and `state` has its checkpoint.
    """
    raw = raw_rows(X, y, weights, config.task)
    if raw is not None:
        codes = () if raw.schema is None else raw.schema.codes
        return prepare_table(raw.X, raw.y, raw.weighted, config, codes), raw.schema
    if not isinstance(X, RowStream) or isinstance(X, np.ndarray | jax.Array):
        raise ValueError(
            f"y: expected targets, got None; only a stream holds its targets, and X is a "
            f"{type(X).__name__}"
        )
    if weights is not None:
        raise ValueError("weights: expected None with a stream, whose batches hold them")
    if config.columns != "standard":
        raise ValueError(f"columns: expected 'standard' with a stream, got {config.columns!r}")
    with clock(seconds, "first pass"):
        return read_stream(X, config, state), getattr(X, "schema", None)


def _resolve_search(config: Config, data: TrainingData, state: RunState) -> Config:
    """Return the configuration with the search resolved for the number of rows.

    If no memory is stated, a mesh of several processes gets the least free memory of all processes.
    A call with a checkpoint gets the free memory of the first call, as it decides the sizes.
    """
    resources, mesh = config.resources, config.resources.mesh
    if resources.memory is None and (spans_processes(mesh) or state.checkpoint.path is not None):
        known = state.known("memory")
        memory = free_bytes() if known is None else known.document["bytes"]
        if mesh is not None and spans_processes(mesh):
            memory = least_in_all_processes(mesh, memory)
        if state.checkpoint.path is not None:
            state.checkpoint.describe(state.prefix + "memory", Entry({}, {"bytes": memory}))
        resources = dataclasses.replace(resources, memory=memory)
    search = config.search.resolve(data.source.n_rows, on_mesh=mesh is not None)
    return config._replace(resources=resources, search=search)


def _choose_columns(config: Config, data: TrainingData) -> Config:
    """Return the configuration with "standard" or "ranks" in place of the columns "auto".

    The choice is the scaling with the lower error on a sample of the rows. A kernel "auto" becomes
    the best family for that scaling. Ranks do not change under a monotone map, so the normal scores
    are computed from the standardised rows. Columns of categories have no ranks.
    """
    if data.encoding.codes:
        return config._replace(columns="standard")
    X, y, weights = data.source.rows_in_memory()
    ranks = apply_scaling(normal_scores(np.asarray(X), np.asarray(weights)), X)
    threads = usable_cores() if on_cpu() and config.resources.mesh is None else 1
    standard, normal = map_in_threads(
        lambda inputs: _best_family(config, inputs, y, weights), (X, ranks), threads
    )
    columns, best = ("ranks", normal) if normal[1] < standard[1] else ("standard", standard)
    kernel = best[0] if _is_auto(config.kernel) else config.kernel
    return config._replace(columns=columns, kernel=kernel)


def _best_family(config: Config, *rows: Array) -> tuple[str, float]:
    """Return the best kernel family for a sample of the rows, and the least error.

    `rows` are standardised inputs, targets and weights.
    """
    all_rows, search = config.method.n_features == "all", config.search
    per_column = search.tune_kernel and search.per_column
    return family_of(config.keys.kernel, *rows, all_rows=all_rows, per_column=per_column)


def _is_auto(kernel: KernelLike) -> bool:
    return isinstance(kernel, str) and kernel == "auto"


def _template(config: Config, data: TrainingData) -> Template:
    """Return the template of the kernel, for the columns of the data."""
    kernel = template_of(config.kernel, data.shape.d, config.search, data.encoding.codes)
    return split_kernel(kernel, data.source.dtype, **config.search.varied)


def _resolve_method(config: Config, data: TrainingData) -> Method:
    """Return the method with all defaults resolved.

    Default numbers of prototypes that need too much memory are left out. The source of the rows is
    told how many kernels to sum in one pass.

    Raises:
        ValueError: if the method needs more memory than there is.
    """
    method, n_parameters = config.method.resolve(data.shape), _template(config, data).size
    plan = data.plan(method, config, n_parameters)
    if plan is not None and plan.largest is not None:
        method = config.method.resolve(data.shape._replace(room=plan.largest))
        plan = data.plan(method, config, n_parameters)
    check_fits(plan, method)
    data.source.follow(plan)
    return method


def _choose_kernel(config: Config, data: TrainingData) -> Config:
    """Return the configuration with the parts of the kernel that a sample of the rows decides.

    The best family replaces the kernel "auto", and a matrix of the main directions replaces a rank.
    """
    search = config.search
    rank = search.rank if search.tune_kernel else None
    rows = data.source.rows_in_memory()
    if _is_auto(config.kernel):
        X, *others = rows
        if codes := data.encoding.codes:
            X = jax.device_put(indicators(np.asarray(X), codes))
        config = config._replace(kernel=_best_family(config, X, *others)[0])
    if rank is None:
        return config
    directions = main_directions(config.keys.kernel, *rows, rank)
    kernel = projected(config.kernel, directions)
    if search.start is not None and isinstance(search.start.kernel, Projected):
        # Keep the directions of a warm start, as the new directions may differ in sign.
        kernel = search.start.kernel
    return config._replace(kernel=kernel, search=search.without_rank())


def _points(
    method: Method, template: Template, config: Config, data: TrainingData, state: RunState
) -> Points:
    """Return the points of the tuning problem; read them from the checkpoint, or record them."""
    known = state.known("points")
    if known is not None:
        X = known.arrays.get("X")
        X = None if X is None else jax.device_put(X)
        return Points(X, known.arrays.get("rows"), known.document["status"])
    points = data.choose_points(method, config.keys.points, template.kernel)
    if points.X is not None:
        points = points._replace(X=from_first_process(config.resources.mesh, points.X))
    arrays = {"X": points.X, "rows": points.rows}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    state.keep("points", Entry(arrays, {"status": int(points.status)}))
    return points


def problem_of(
    method: Method, template: Template, config: Config, data: TrainingData, points: Points
) -> Problem:
    """Return the tuning problem of a resolved method, a kernel's template, rows and points."""
    return Problem(
        method, template, points.X, data.source, config.C, points.rows, config.task,
        config.metric, config.multiclass.decoding, config.search.varied, config.keys.method,
    )  # fmt: skip


def _reported_error(choice: Choice, criterion: Metric, units: TargetUnits) -> tuple[float, Metric]:
    """Return the error of the chosen machine in the caller's units, and the error's metric."""
    error, metric, curve = choice.tuning.score, criterion, choice.curve
    if curve is not None:
        error, metric = curve.errors[curve.chosen], curve.metric
    return float(units.scores(np.asarray(error), metric)), metric


def _model(
    data: TrainingData,
    columns: Schema | None,
    fitted: Fitted,
    error: float,
    metric: Metric,
) -> Model:
    """Return the model to deploy: the fitted machine, its scaling and labels, and its error."""
    choice, family = fitted.choice, fitted.family
    encoding, method, classes = data.encoding, choice.problem.method, data.encoding.classes
    machine = family.expansion if choice.size is None else family.at(choice.size)
    return Model(
        expansion=dataclasses.replace(machine, scaling=encoding.scaling),
        path=None if choice.size is None else family.compact(),
        inverse_temperatures=fitted.inverse_temperatures,
        conformal=fitted.conformal,
        code=encoding.code,
        decoding=choice.problem.decoding,
        labels=None if classes is None else tuple(classes.tolist()),
        label_dtype="" if classes is None else classes.dtype.str,
        quantiles=tuple(map(float, method.quantiles)),
        columns=columns,
        about=About(
            method=method.name,
            metric=metric,
            cv_error=error,
            C=method.reported_C(np.asarray(choice.C).tolist()),
            rows=data.source.n_rows,
        ),
    )
