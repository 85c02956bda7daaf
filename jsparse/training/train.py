"""From raw rows to a tuned model (De Brabanter 2010, Algorithm 5; Karsmakers 2011, Section 4)."""

import dataclasses
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, ArrayLike

from .._agreement import least_in_all_processes, same_in_all_processes
from .._arguments import finite_rows, whole_number
from .._mesh import spans_processes
from .._runtime import check_runtime
from .._types import KeyLike
from ..conformal import ConformalScores
from ..data.frames import as_frame
from ..data.schema import Schema
from ..data.streams import RowStream
from ..kernels import Projected
from ..machines.family import Family
from ..machines.method import Method, Metric, Points, Task
from ..machines.scdp import SCDP
from ..model import About, Model
from ..multiclass import Scheme
from ..scaling import normal_scores
from ..search.problem import Problem
from ..search.run import Progress
from ..search.strategies import Search
from ..search.template import Template, split_kernel
from ..validation.folds import Folds
from .auto import family_of, main_directions
from .choices import KernelLike, projected, template_of
from .clock import clock, compile_clock
from .data import TrainingData
from .encoding import apply_scaling, indicators
from .inputs import ClassWeight, checked_targets, counting_rows
from .plan import check_fits, free_bytes
from .presets import Preset, Situation, completed
from .settings import Columns, Config, HoldOut, Multiclass, Resources, Stated, configure
from .streams import read_stream
from .tables import read_table
from .target_units import TargetUnits
from .trained import Sums, Trained
from .tuning import Choice, calibrate, choose, fit_all_rows, predict_unseen


def train(
    X: Any,
    y: Any = None,
    *,
    task: Task,
    key: KeyLike,
    method: Method | None = None,
    kernel: KernelLike | None = None,
    C: ArrayLike | None = None,
    search: Search | Literal["auto"] | None = None,
    folds: int | Folds | HoldOut | Literal["auto"] = "auto",
    metric: Metric | None = None,
    multiclass: Scheme | ArrayLike | Multiclass = "one_versus_rest",
    weights: ArrayLike | None = None,
    class_weight: ClassWeight = None,
    out_of_fold: bool | Literal["machines"] = True,
    resources: Resources = Resources(),
    progress: Progress | None = None,
    columns: Columns | None = None,
    preset: Preset | None = None,
    n_prototypes: int | None = None,
) -> Trained:
    """Train a model on raw rows: standardise, choose points, tune by cross-validation, and fit.

    Args:
        X: raw inputs without NaN or infinity, shape `n d`. Or a table (pandas, Arrow, or a `Frame`
            with settings for its columns) of numbers, categories, texts and dates. Or a stream of
            batches of rows (`data.streams`), for more rows than fit into memory.
        y: class labels of one type, shape `n`, or real targets, shape `n` or `n c`. For a table
            also the name of a column. None for a stream, whose batches hold the targets.
        task: "classification" or "regression".
        key: random seed, an integer or a key of `jax.random`. The same key gives the same model.
        method: what to fit: `FixedSize`, `SCDP`, `Dual`, `Robust`, `SpSVM`, `SparseReduction`,
            `KSP`, `KMP`, `KBP`, `SLMC`, `SparseFisher`, `SparseRidge`, `ReducedSetSVM`,
            `ReducedSVM`, `RVM`, with their settings. None: what the preset chooses.
        kernel: a name ("rbf", "laplacian", "matern32", "matern52", "rational_quadratic", "linear",
            "polynomial"), or a kernel whose positive leaves are tuned within a factor of
            `LENGTHSCALE_FACTOR` of their values, in standardised units, or a function of two points
            written in JAX. "auto" chooses "rbf", "matern32" or "laplacian" by the squared error of
            a machine on a sample of the rows, see `training.auto`. For `KSP`, `KMP` and `KBP` also
            a list of kernels; every candidate then has one atom for each kernel. None: "rbf" with
            a stated method, else what the preset chooses.
        C: grid (or range) of the weight of the data-fit term; by default the method's grid. With
            the absolute loss, `C` weighs residuals divided by `Trained.target_unit`, which is about
            the targets' spread.
        search: `Profile` scores each kernel with all `C` at once; `Gradient` tunes a lengthscale
            for every column; `Annealing` is the search of De Brabanter 2010. A search has its
            budget, and the history of a stopped search to resume. `Recursive` learns a metric from
            the machine's derivatives. "auto" is `Gradient` for 100 rows or more, else `Profile`.
            None: `Profile()` with a stated method, else what the preset chooses.
        folds: number of random folds, stratified for classification; "auto" for 10, or the number
            of rows if that is less. Or the caller's `Folds`; for a stream a `HoldOut`. In the dual,
            validation is by leave-one-out whatever the folds.
        metric: the metric to minimise and report: "misclassification", "mse" or "mae". The default
            is "misclassification" for classification and "mse" for regression ("mae" with
            `Robust`). By default a pursuit (`SCDP`, `KSP`, `KMP`, `KBP`) minimises "mse" for
            classification too, and reports misclassification (`Trained.criterion`,
            `Trained.metric`).
        multiclass: how more than two classes are divided into binary problems: a scheme, a matrix
            of codes, or a `Multiclass`.
        weights: row weights, shape `n`, used in the standardisation, the choice of points, the fit
            and the score. Rows of weight 0 are dropped before anything is computed; a label of
            such rows only is no class. Arrays must be finite in rows of weight 0 too.
        class_weight: a weight factor for each class, by label; or "balanced" to give all classes
            the same total weight.
        out_of_fold: keep the held-out values of the tuned machine in `Trained.out_of_fold`, and
            calibrate probabilities and intervals by them; this takes one more evaluation.
            "machines" also keeps the machines of the folds in the model. Intervals and sets then
            follow CV+, in the dual jackknife+, see `Model.interval`. It needs rows in
            memory on one device. In the dual, and for methods that need more of the rows than sums,
            it may take much longer than the fit, and memory for n machines.
        resources: memory, time and devices that the run may use.
        progress: called with (done, planned, best score) after each evaluation.
        columns: "standard" gives every column mean 0 and variance 1. "ranks" replaces its values by
            normal scores of their ranks (`scaling.NormalScores`), which suits heavy tails. "auto"
            takes the one with the lower error of a machine on a sample of the rows. None:
            "standard" with a stated method, else what the preset chooses.
        preset: how much time the choice of `method`, `kernel`, `search` and `columns` may take,
            where these are None. "fast" takes the settings of De Brabanter 2010: a fixed-size
            machine, an RBF kernel with one lengthscale, standardised columns. "balanced" and
            "accurate" compare kernel families and maps of the columns, learn a metric, and take
            every row as a prototype, "balanced" up to 6,000 rows, "accurate" up to 20,000. For more
            rows, with stated `folds` or `out_of_fold="machines"`, they take at most 500 and 2,000
            prototypes. On two cores "balanced" takes some ten seconds for 6,000 rows of 20 columns
            in float32, and two to three times as long for a hundred columns or in float64. The
            default is "balanced"; but "fast" for a stream, on a mesh and with a stated method.
        n_prototypes: distil the machine of the preset to at most so many prototypes, see `distil`.
            The result is in float64. Only without a method.

    The rows of a stream are read several times. The first pass computes their moments and classes,
    and draws a random sample with rows of every class. Points are chosen from the sample, and
    scores are means over it. Each further pass sums every fold for a batch of kernels and all `C`
    (De Brabanter 2010, Section 6.2, Algorithm 4). Memory does not depend on the number of rows.

    Ctrl-C during tuning keeps the best result so far; `tuning.stopped` is then "interrupted".

    Raises:
        ValueError: before any work is done, for invalid data or settings, more points than fit into
            memory, or arrays spread over several processes. On a mesh of several processes, in
            every process, for rows or settings that differ between the processes.
        RuntimeError: in the other processes of a mesh, if one process raises a ValueError.
        StreamError: naming the rows, for a stream that changes from pass to pass, ends early or
            holds invalid batches. No sums of such a stream are used.
        NumericalError: if no result can be trusted.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-3.0, 3.0, 100)[:, None]
        >>> labels = np.where(np.abs(X[:, 0]) < 1, "inside", "outside")
        >>> trained = train(X, labels, task="classification", preset="fast", key=0)
        >>> trained.predict(np.array([[0.0], [2.0]])).tolist()
        ['inside', 'outside']
    """
    check_runtime()
    stated = Stated(method, kernel, search, columns)
    if n_prototypes is not None:
        shared = {
            "task": task, "key": key, "folds": folds, "metric": metric, "multiclass": multiclass,
            "weights": weights, "class_weight": class_weight, "resources": resources,
            "progress": progress,
        }  # fmt: skip
        return _distilled(n_prototypes, X, y, stated, C, preset, out_of_fold, shared)
    situation = _situation(X, y, folds, out_of_fold, resources)
    settings, taken = completed(stated, preset, situation)
    seconds: dict[str, float] = {}
    with compile_clock(seconds), clock(seconds, "total"):
        mesh = getattr(resources, "mesh", None)
        with same_in_all_processes(mesh) as compared:
            config = configure(
                task, key, settings, C, folds, metric, multiclass, class_weight, out_of_fold,
                resources, progress,
            )  # fmt: skip
            compared |= config.compared
        with same_in_all_processes(mesh) as compared:
            data, schema = _read(X, y, weights, config, seconds)
            compared |= data.compared | {"columns": schema}
        if config.columns == "auto":
            with clock(seconds, "settings"):
                config = _with_columns_of_rows(config, data)
            if config.columns == "ranks":
                data, schema = _read(X, y, weights, config, seconds)
        config, units = _with_rows_known(config, data), data.encoding.units
        method = _resolved(config, data)
        if _is_auto(config.kernel) or config.search.rank is not None:
            with clock(seconds, "settings"):
                config = _with_kernel_of_rows(config, data)
        with clock(seconds, "prototypes"):
            problem, points = _problem(method, config, data)
            jax.block_until_ready(points.X)
        values = inverse_temperatures = conformal = summed = None
        with clock(seconds, "tuning"), units.of_errors(problem.scoring.metric):
            choice = choose(problem, config, data.encoding)
            if out_of_fold:
                values, summed = predict_unseen(choice, units)
        with clock(seconds, "fit"):
            family, sums = fit_all_rows(choice, units, summed)
            jax.block_until_ready(jax.tree.leaves(family))
            if values is not None:
                machines = out_of_fold == "machines"
                inverse_temperatures, conformal = calibrate(
                    values, choice, data, summed, machines=machines
                )
    problem, tuning, curve = choice.problem, choice.tuning, choice.curve
    error, metric = _reported(choice, units)
    rows = None if choice.moved else problem.point_rows
    if rows is not None:
        rows = data.counting.index[rows[family.active_points(choice.size)]]
    return Trained(
        model=_model(data, schema, choice, family, inverse_temperatures, conformal, error, metric),
        method=problem.method,
        kernel=tuning.kernel,
        C=choice.C,
        target_unit=units.unit,
        cv_error=error,
        metric=metric,
        criterion=problem.scoring.metric,
        tuning=units.tuning(tuning, problem.scoring.metric),
        search=config.search,
        fit=family,
        sums=None if sums is None else Sums(sums.features, sums.equations, units),
        point_rows=rows,
        n_points=data.source.n_rows if points.X is None else len(points.X),
        folds=data.counting.folds_of_caller(data.folds),
        out_of_fold=None if values is None else data.counting.spread(values),
        n_rows=data.source.n_rows,
        seconds=seconds,
        preset=taken,
        curve=None if curve is None else units.curve(curve),
        selection_status=points.status,
    )


def _distilled(
    n_prototypes: int,
    X: Any,
    y: Any,
    stated: Stated,
    C: ArrayLike | None,
    preset: Preset | None,
    out_of_fold: bool | Literal["machines"],
    shared: dict[str, Any],
) -> Trained:
    """Train the machine of the preset, and distil it to at most so many prototypes."""
    from .distil import distil  # which calls `train`

    if stated.method is not None:
        raise ValueError(
            "n_prototypes: expected None with a method, which has its own number of prototypes, "
            f"got {n_prototypes!r}"
        )
    most = whole_number("n_prototypes", n_prototypes, 1)
    large = train(
        X, y, C=C, preset=preset, out_of_fold=False, **stated._asdict(), **shared
    )  # fmt: skip
    without_a_fold = large.n_rows - int(np.asarray(large.folds.valid).sum(axis=1).max())
    pursuit = SCDP(max_prototypes=min(most, large.model.size, without_a_fold))
    small = distil(large, X, y, method=pursuit, out_of_fold=out_of_fold, **shared)
    before, after = large.seconds, small.seconds
    seconds = after | {"large machine": before["total"]}
    seconds |= {name: before[name] + after[name] for name in ("total", "compile")}
    return dataclasses.replace(small, preset=large.preset, seconds=seconds)


def _situation(X: Any, y: Any, folds: Any, out_of_fold: Any, resources: Resources) -> Situation:
    """Return what decides about the settings of a preset, from arguments not yet checked."""
    frame, mesh = as_frame(X), getattr(resources, "mesh", None)
    n = None
    if mesh is None and (frame is not None or (y is not None and hasattr(X, "__len__"))):
        n = len(X) if frame is None else frame.n_rows
    # The dual validates by leave-one-out, and would keep a machine for each row.
    by_folds = folds != "auto" or out_of_fold == "machines"
    return Situation(n, by_folds, getattr(resources, "memory", None))


def _read(
    X: Any, y: Any, weights: ArrayLike | None, config: Config, seconds: dict[str, float]
) -> tuple[TrainingData, Schema | None]:
    """Return the rows of positive weight; and the schema of the columns, if `X` has one."""
    frame = as_frame(X)
    if frame is not None:
        counting = counting_rows(weights, frame.n_rows)
        numbers = None if weights is None else counting.index
        X, y, columns = frame.arrays(y, config.task, numbers)
        y = checked_targets(y, len(X), config.task)
        return read_table(finite_rows(X), y, counting, config, columns.codes), columns
    if y is not None:
        X = finite_rows(X)
        counting, y = counting_rows(weights, len(X)), checked_targets(y, len(X), config.task)
        return read_table(counting.select(X), counting.select(y), counting, config), None
    if not isinstance(X, RowStream) or isinstance(X, np.ndarray | jax.Array):
        raise ValueError(f"y: expected targets, as X is no stream of rows but {type(X).__name__}")
    if weights is not None:
        raise ValueError("weights: expected None with a stream, whose batches hold them")
    if config.columns != "standard":
        raise ValueError(f"columns: expected 'standard' with a stream, got {config.columns!r}")
    with clock(seconds, "first pass"):
        return read_stream(X, config), getattr(X, "schema", None)


def _with_rows_known(config: Config, data: TrainingData) -> Config:
    """Return the configuration with the search resolved for the number of rows.

    On a mesh of several processes, also set the memory to the least free memory of all processes.
    """
    resources, mesh = config.resources, config.resources.mesh
    if mesh is not None and spans_processes(mesh) and resources.memory is None:
        memory = least_in_all_processes(mesh, free_bytes())
        resources = dataclasses.replace(resources, memory=memory)
    search = config.search.resolve(data.source.n_rows, on_mesh=mesh is not None)
    return config._replace(resources=resources, search=search)


def _with_columns_of_rows(config: Config, data: TrainingData) -> Config:
    """Return the configuration with the map of the columns that errs less on a sample of the rows.

    Ranks do not change under a monotone map, so the standardised rows give the normal scores. The
    kernel "auto" becomes the best family for that map. Columns of categories have no ranks.
    """
    if data.encoding.codes:
        return config._replace(columns="standard")
    X, y, weights = data.source.rows_in_memory()
    ranks = apply_scaling(normal_scores(np.asarray(X), np.asarray(weights)), X)
    standard, normal = (_family(config, inputs, y, weights) for inputs in (X, ranks))
    columns, best = ("ranks", normal) if normal[1] < standard[1] else ("standard", standard)
    kernel = best[0] if _is_auto(config.kernel) else config.kernel
    return config._replace(columns=columns, kernel=kernel)


def _family(config: Config, *rows: Array) -> tuple[str, float]:
    """Return the best family of kernels on a sample of the rows, and its error."""
    all_rows, search = config.method.n_features == "all", config.search
    per_column = search.tune_kernel and search.per_column
    key = jax.random.fold_in(config.keys.search, 1)
    return family_of(key, *rows, all_rows=all_rows, per_column=per_column)


def _is_auto(kernel: KernelLike) -> bool:
    return isinstance(kernel, str) and kernel == "auto"


def _template(config: Config, data: TrainingData) -> Template:
    """Return the template of the kernel, for the columns of the data."""
    kernel = template_of(config.kernel, data.shape.d, config.search, data.encoding.codes)
    return split_kernel(kernel, data.source.dtype, **config.search.varied)


def _resolved(config: Config, data: TrainingData) -> Method:
    """Return the method with all defaults resolved; raise a `ValueError` if it exceeds the memory.

    Sizes that the method added by default are dropped if they do not fit into memory. The source
    of the rows takes its number of kernels in a pass from the plan.
    """
    method, n_parameters = config.method.resolve(data.shape), _template(config, data).size
    plan = data.plan(method, config, n_parameters)
    if plan is not None and plan.largest is not None:
        method = config.method.resolve(data.shape._replace(room=plan.largest))
        plan = data.plan(method, config, n_parameters)
    check_fits(plan, method)
    data.source.follow(plan)
    return method


def _with_kernel_of_rows(config: Config, data: TrainingData) -> Config:
    """Return the configuration with the kernel that a sample of the rows decides.

    Replace the kernel "auto" by the best family, and a rank by a matrix of the main directions.
    """
    search = config.search
    rank = search.rank if search.tune_kernel else None
    rows = data.source.rows_in_memory()
    if _is_auto(config.kernel):
        X, *others = rows
        if codes := data.encoding.codes:
            X = jax.device_put(indicators(np.asarray(X), codes))
        config = config._replace(kernel=_family(config, X, *others)[0])
    if rank is None:
        return config
    key = jax.random.fold_in(config.keys.search, 1)
    kernel = projected(config.kernel, main_directions(key, *rows, rank))
    if search.start is not None and isinstance(search.start.kernel, Projected):
        # The directions of a warm start may differ in sign from new ones.
        kernel = search.start.kernel
    return config._replace(kernel=kernel, search=search.without_rank())


def _problem(method: Method, config: Config, data: TrainingData) -> tuple[Problem, Points]:
    """Return the tuning problem, and its points with the stop code of their choice."""
    template = _template(config, data)
    points = data.choose_points(method, config.keys.points, template.kernel)
    problem = Problem(
        method, template, points.X, data.source, config.C, points.rows, config.task, config.metric,
        config.multiclass.decoding, config.search.varied, config.keys.method,
    )  # fmt: skip
    return problem, points


def _reported(choice: Choice, units: TargetUnits) -> tuple[float, Metric]:
    """Return the cross-validated error of the chosen machine in caller's units, and its metric."""
    error, metric, curve = choice.tuning.score, choice.problem.scoring.metric, choice.curve
    if curve is not None:
        error, metric = curve.errors[curve.chosen], curve.metric
    return float(units.scores(np.asarray(error), metric)), metric


def _model(
    data: TrainingData,
    columns: Schema | None,
    choice: Choice,
    family: Family,
    inverse_temperatures: np.ndarray | None,
    conformal: ConformalScores | None,
    error: float,
    metric: Metric,
) -> Model:
    """Return the model to deploy."""
    encoding, method, classes = data.encoding, choice.problem.method, data.encoding.classes
    machine = family.expansion if choice.size is None else family.at(choice.size)
    return Model(
        expansion=dataclasses.replace(machine, scaling=encoding.scaling),
        path=None if choice.size is None else family.compact(),
        inverse_temperatures=inverse_temperatures,
        conformal=conformal,
        code=encoding.code,
        decoding=choice.problem.decoding,
        labels=None if classes is None else tuple(classes.tolist()),
        label_dtype="" if classes is None else classes.dtype.str,
        columns=columns,
        about=About(
            method=method.name,
            metric=metric,
            cv_error=error,
            C=method.reported_C(np.asarray(choice.C).tolist()),
            rows=data.source.n_rows,
        ),
    )
