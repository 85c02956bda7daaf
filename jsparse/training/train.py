"""From raw rows to a tuned model (De Brabanter 2010, Algorithm 5; Karsmakers 2011, Section 4)."""

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from .._agreement import least_in_all_processes, same_in_all_processes
from .._arguments import finite_rows
from .._mesh import on_default_device, spans_processes
from .._numerics import as_array
from .._repr import short_repr
from .._runtime import check_runtime
from .._status import PRECISION_LOST, NumericalError
from .._types import KeyLike
from ..calibration import fit_slopes
from ..conformal import Unseen, errors_of_classes, errors_of_numbers, kept_errors
from ..data.frames import as_frame
from ..data.schema import Schema
from ..data.streams import RowStream
from ..features import FeatureMap
from ..kernels import Projected
from ..machines.fixed_size import FixedSize
from ..machines.method import Additive, Method, Metric, PathMethod, Points, Task, expansion_of
from ..model import About, Model
from ..multiclass import Scheme
from ..normal_equations import NormalEquations
from ..prediction import scores_of
from ..search.problem import InMemory, Problem, evaluate, signed, split_kernel, start_of
from ..search.prototype_descent import moved_prototypes
from ..search.sizes import SizeCurve, smallest_within, tune_sizes
from ..search.strategies import Automatic, Gradient, Profile, Rescaling, Search
from ..search.tune import Progress, Tuning, tune
from ..validation.cross_validation import standard_error
from ..validation.folds import Folds
from .arrays import ArrayData, some_prototypes
from .auto import family_of, main_directions
from .choices import LENGTHSCALE_FACTOR, KernelLike, projected
from .clock import clock, compile_clock
from .counting import counting_rows
from .fold_machines import fold_machines
from .inputs import checked_targets
from .plan import free_bytes
from .settings import HoldOut, Multiclass, Resources, Settings, compared_settings, settings
from .stream import StreamData
from .trained import Sums, Trained

Data = ArrayData | StreamData
LARGER_GAIN = 0.5  # standard errors by which more prototypes than it was tuned with must be better
Summed = tuple[FeatureMap, NormalEquations]


class Choice(NamedTuple):
    """What cross-validation chose."""

    problem: Problem  # of the size chosen
    tuning: Tuning
    C: float | np.ndarray  # of each problem, if each has its own
    size: int | None  # on a path
    curve: SizeCurve | None
    moved: bool = False  # whether the points are no longer those that were chosen

    __repr__ = short_repr


def train(
    X: Any,
    y: Any = None,
    *,
    task: Task,
    key: KeyLike,
    method: Method = FixedSize(),
    kernel: KernelLike = "rbf",
    C: ArrayLike | None = None,
    search: Search | Literal["auto"] = Profile(),
    folds: int | Folds | HoldOut | Literal["auto"] = "auto",
    metric: Metric | None = None,
    multiclass: Scheme | ArrayLike | Multiclass = "one_versus_rest",
    weights: ArrayLike | None = None,
    class_weight: Literal["balanced"] | Mapping[Any, float] | None = None,
    out_of_fold: bool | Literal["machines"] = True,
    resources: Resources = Resources(),
    progress: Progress | None = None,
) -> Trained:
    """Standardise, choose points, tune by cross-validation, fit: from raw rows to a model.

    Args:
        X: raw inputs without NaN or infinity, shape `n d`; or a table (pandas, Arrow, or a `Frame`
            with settings of its own), whose columns may hold numbers, categories, texts and dates;
            or a stream of batches of rows (`data.streams`), for more rows than memory.
        y: classes of any one label type, or real targets, shape `n`, or several of them, `n c`; of
            a table also the name of the column; nothing for a stream, whose batches hold it.
        task: "classification" or "regression".
        key: an integer, or a key of `jax.random`: decides points, folds and search; the same key
            gives the same model.
        method: what is fitted: `FixedSize`, `SCDP`, `Dual`, `Robust`, `SpSVM`, `SparseReduction`,
            `KSP`, `KMP`, `KBP`, `SLMC`, `SparseFisher`, `SparseRidge`, `ReducedSetSVM`,
            `ReducedSVM`, `RVM`, with their settings.
        kernel: a name ("rbf", "laplacian", "matern32", "matern52", "rational_quadratic", "linear",
            "polynomial"), or a kernel whose positive leaves are tuned within a factor of
            `LENGTHSCALE_FACTOR` of their values, in standardised units, or a function of two points
            written in JAX. "auto": that of "rbf", "matern32" and "laplacian" with which a machine
            on a part of the rows has the least squared error, see `training.auto`. For `KSP`,
            `KMP` and `KBP` also a list of kernels, of each of which every candidate has an atom.
        C: grid (or range) of the weight of the data-fit term; by default that of the method. With
            the absolute loss it weighs residuals divided by `Trained.target_unit`, about the
            targets' spread.
        search: `Profile`, all `C` at once for each kernel, `Gradient`, a lengthscale for every
            column, or `Annealing`, that of De Brabanter 2010; with its budget, and the history of a
            stopped search to resume. "auto": `Gradient` for 100 rows or more, else `Profile`.
        folds: their number (stratified for classification), "auto" for 10, or as many as there are
            rows; the caller's own, or of a stream a `HoldOut`. A method in the dual is validated by
            leave-one-out, whatever they are.
        metric: what is minimised and reported: "misclassification", "mse", "mae". By default errors
            of classes are misclassification, and those of numbers "mse", with `Robust` "mae". A
            pursuit (`SCDP`, `KSP`, `KMP`, `KBP`) minimises the "mse" for classes too, but reports
            the misclassification (`Trained.criterion`, `Trained.metric`).
        multiclass: how more than two classes become problems of two: a scheme, a matrix of codes,
            or a `Multiclass`.
        weights: row weights, shape `n`: they count in the standardisation, the choice of points,
            the fit and the score. A row of weight 0 is as if it were not there: it is dropped
            before anything is computed, and the model is that of the other rows. A label that only
            such rows have is no class. Arrays must be finite in these rows too.
        class_weight: a factor for the weights of the rows of each class, or "balanced", which lets
            all classes weigh the same.
        out_of_fold: keep, in `Trained.out_of_fold`, the values of the rows by the tuned machine
            that has not seen them, and calibrate probabilities and intervals by them; one
            evaluation more. "machines": keep the machines of the folds in the model too, by which
            intervals and sets are those of CV+, and in the dual of jackknife+, see
            `Model.interval`; for rows in memory, on one device. In the dual, and where methods do
            not go by sums, that may take much longer than the fit, and memory for n machines.
        resources: memory, seconds and devices that may be taken.
        progress: called with (done, planned, best score) after each evaluation.

    Rows of a stream are read several times. The first pass takes their moments, their classes and
    a random sample, in which every class has its part; points are chosen from it, and scores are
    means over it. Each further pass sums every fold for a batch of kernels and serves every `C`
    (De Brabanter 2010, Section 6.2, Algorithm 4). Memory does not depend on the number of rows.

    Ctrl-C during tuning keeps the best result so far (`tuning.stopped` says "interrupted").

    Raises:
        ValueError: for anything wrong with the data or the settings, or more points than memory
            has room for, before any work is done; so for arrays spread over several processes, and,
            in every process of a mesh, for rows or settings that differ between its processes.
        RuntimeError: in the other processes of a mesh, if one refuses its arguments.
        StreamError: naming the rows, for a stream that changes from pass to pass, ends early or
            holds what it should not; nothing of what was summed is used.
        NumericalError: if nothing could be computed that can be trusted.
    """
    check_runtime()
    seconds: dict[str, float] = {}
    with compile_clock(seconds), clock(seconds, "total"):
        mesh = getattr(resources, "mesh", None)
        with same_in_all_processes(mesh) as compared:
            asked = settings(
                task, key, method, kernel, C, search, folds, metric, multiclass, class_weight,
                resources, progress,
            )  # fmt: skip
            _check_out_of_fold(out_of_fold, X, asked)
            compared |= compared_settings(asked) | {"out_of_fold": out_of_fold}
        with same_in_all_processes(mesh) as compared:
            data, columns = _read(X, y, weights, asked, seconds)
            compared |= data.compared() | {"columns": columns}
        asked = _settled(_within_memory_of_all(asked, data), data)
        method = data.settled(method)
        with clock(seconds, "prototypes"):
            asked = _kernel_of_rows(asked, data)
            points = data.points(method)
            jax.block_until_ready(points.X)
        problem = data.problem(method, points.X)
        with clock(seconds, "tuning"), data.units.of_errors(asked.scoring.metric):
            chosen = _choose(problem, points, data, asked)
            values, summed = _unseen(chosen, data, asked, bool(out_of_fold))
        with clock(seconds, "fit"):
            fitted, sums = _fit(chosen, data, asked, summed)
            unseen = None
            if values is not None:
                by_machines = out_of_fold == "machines"
                unseen = _unseen_errors(values, chosen, data, asked, summed, by_machines)
    return _trained(asked, data, columns, points, chosen, fitted, sums, values, unseen, seconds)


def _within_memory_of_all(asked: Settings, data: Data) -> Settings:
    """Let the processes of a mesh plan by the least memory that any of them has left."""
    mesh, memory = asked.resources.mesh, asked.resources.memory
    if mesh is None or not spans_processes(mesh) or memory is not None:
        return asked
    memory = least_in_all_processes(mesh, free_bytes())
    asked = asked._replace(resources=dataclasses.replace(asked.resources, memory=memory))
    data.take(asked)
    return asked


def _settled(asked: Settings, data: Data) -> Settings:
    """With the search that the number of rows asks for."""
    if not isinstance(asked.search, Automatic):
        return asked
    alone = asked.resources.mesh is None
    asked = asked._replace(search=asked.search.settled(data.n_rows, alone=alone))
    data.take(asked)
    return asked


def _kernel_of_rows(asked: Settings, data: Data) -> Settings:
    """With what a part of the rows decides of the kernel: its family, directions of its metric."""
    search, key = asked.search, jax.random.fold_in(asked.keys.search, 1)
    rank = search.rank if isinstance(search, Gradient) and search.tune_kernel else None
    raced = isinstance(asked.kernel, str) and asked.kernel == "auto"
    if not raced and rank is None:
        return asked
    rows = data.rows_in_memory()
    if raced:
        asked = asked._replace(kernel=family_of(key, *rows))
    if rank is not None:
        assert isinstance(search, Gradient)
        kernel = projected(asked.kernel, main_directions(key, *rows, rank))
        if search.start is not None and isinstance(search.start.kernel, Projected):
            kernel = search.start.kernel  # whose directions may have other signs
        asked = asked._replace(kernel=kernel, search=dataclasses.replace(search, rank=None))
    data.take(asked)
    return asked


def _read(
    X: Any, y: Any, weights: ArrayLike | None, asked: Settings, seconds: dict[str, float]
) -> tuple[Data, Schema | None]:
    """The rows, and how they were encoded if they came as a table.

    Of rows in memory those of weight 0 are dropped here, of a stream in every pass.
    """
    frame = as_frame(X)
    if frame is not None:
        counting = None if weights is None else counting_rows(weights, frame.n_rows)
        X, y, columns = frame.arrays(y, asked.task, None if counting is None else counting.index)
        counting = counting_rows(None, len(X)) if counting is None else counting
        y = checked_targets(y, len(X), asked.task)
        return ArrayData(asked, finite_rows(X), y, counting, columns.codes), columns
    if y is not None:
        X = finite_rows(X)
        counting, y = counting_rows(weights, len(X)), checked_targets(y, len(X), asked.task)
        return ArrayData(asked, counting.select(X), counting.select(y), counting), None
    if not isinstance(X, RowStream) or isinstance(X, np.ndarray | jax.Array):
        raise ValueError(f"y: expected targets, as X is no stream of rows but {type(X).__name__}")
    if weights is not None:
        raise ValueError("weights: expected None with a stream, whose batches hold them")
    with clock(seconds, "first pass"):
        return StreamData(asked, X), getattr(X, "schema", None)


def _choose(problem: Problem, points: Points, data: Data, asked: Settings) -> Choice:
    """Kernel, `C` and size, by cross-validation."""
    method, metric, units = problem.method, asked.scoring.metric, data.units
    surrogate = method.surrogate()
    search = units.search(asked.search, metric)
    options: dict[str, Any] = {
        "key": asked.keys.search,
        "decoding": asked.scoring.decoding,
        "progress": units.progress(asked.progress, metric),
        "max_seconds": asked.resources.max_seconds,
    }

    def bounds(of: Problem) -> dict[str, Any]:
        middle, span = np.asarray(start_of(of), float), math.log(LENGTHSCALE_FACTOR)
        return {"low": middle - span, "high": middle + span}

    options |= {"metric": metric, "C": asked.C}
    if method.sizes:
        curve = tune_sizes(
            problem, method.sizes, tolerance=method.size_tolerance, search=search,
            growing=asked.method.grows,
            **bounds(problem), **options,
        )  # fmt: skip
        assert problem.points is not None
        sized = dataclasses.replace(problem, points=problem.points[: curve.size])
        best_C = _C(sized, curve.tuning, data, asked)
        return Choice(sized, curve.tuning, best_C, None, curve)
    begin = time.perf_counter()
    if surrogate is None or not asked.search.tune_kernel:
        tuned = _sparser(method, tune(problem, search=search, **bounds(problem), **options))
    else:
        problem, tuned = _through(
            surrogate, problem, points, search, asked, options, bounds(problem)
        )
    there = problem.points
    if isinstance(search, Gradient) and search.move_prototypes:
        problem, tuned = _moved(problem, tuned, search, options, begin)
    if not method.is_path:
        moved = problem.points is not there
        return Choice(problem, tuned, _C(problem, tuned, data, asked), None, None, moved)
    problem, curve = _curve(problem, tuned, asked)
    return Choice(problem, tuned, tuned.C, curve.size, curve)


def _sparser(method: Method, tuned: Tuning) -> Tuning:
    """With the smallest `C` whose error is within the method's tolerance of the least."""
    if not method.sparser_by_C:
        return tuned
    scored = [e for e in tuned.history if not e.slope.size]  # not the steps of a gradient
    (best,) = [e for e in scored if np.array_equal(e.theta, tuned.theta)][:1]
    bound = tuned.score + method.size_tolerance * np.nan_to_num(tuned.standard_error)
    usable = (best.status < PRECISION_LOST) & (best.scores <= bound)
    j = min(np.flatnonzero(usable), key=lambda j: best.C[j])
    return tuned._replace(
        C=float(best.C[j]),
        score=float(best.scores[j]),
        standard_error=float(best.standard_errors[j]),
        status=int(best.status[j]),
    )


def _through(
    surrogate: Method,
    problem: Problem,
    points: Points,
    search: Search,
    asked: Settings,
    options: dict[str, Any],
    bounds: dict[str, Any],
) -> tuple[Problem, Tuning]:
    """The kernel tuned for the surrogate, then `C` for the method itself."""
    metric = asked.scoring.metric if asked.own_metric else surrogate.criterion(asked.task)
    begin, show = time.perf_counter(), options["progress"]
    own = {**options, "metric": metric, "C": surrogate.default_C}
    if show is not None:  # one evaluation is still to come
        own["progress"] = lambda done, planned, best: show(done, planned + 1, best)
    easier = dataclasses.replace(problem, method=surrogate)
    if problem.method.surrogate_sees == "some points":
        assert problem.points is not None
        assert isinstance(surrogate, FixedSize)
        easier = dataclasses.replace(easier, points=problem.points[: surrogate.largest])
        own["C"] = options["C"]
    if problem.method.surrogate_sees == "points":
        assert isinstance(problem.source, InMemory)
        assert points.rows is not None
        source = problem.source.of_rows(points.rows)
        easier = dataclasses.replace(easier, points=None, source=source)
    first = tune(easier, search=search, **bounds, **own)
    if problem.method.surrogate_sees == "some points":
        return _larger(problem, easier, first, search, options, begin)
    done = len(first.history) + 1
    if show is not None:
        options = {**options, "progress": lambda _, planned, best: show(done, done, best)}
    left = max(0.0, options["max_seconds"] - (time.perf_counter() - begin))
    nothing = jax.tree.map(lambda _: None, problem.tuned)
    fixed = dataclasses.replace(problem, tuned=nothing, fixed=first.kernel)
    none = {"low": np.zeros(0), "high": np.zeros(0)}
    try:
        last = Profile(tune_kernel=False)
        second = tune(fixed, search=last, **none, **{**options, "max_seconds": left})
        second = _sparser(problem.method, second)
    except KeyboardInterrupt as error:  # there is no C of its own yet
        error.history = first.history  # type: ignore[attr-defined]
        raise
    tuned = second._replace(theta=first.theta, history=first.history, stopped=first.stopped)
    return fixed, tuned


def _moved(
    problem: Problem, tuned: Tuning, search: Gradient, options: dict[str, Any], begin: float
) -> tuple[Problem, Tuning]:
    """With prototypes moved by the gradient, if the score is the better for it."""
    left = max(0.0, options["max_seconds"] - (time.perf_counter() - begin))
    if tuned.stopped != "finished" or left == 0:
        return problem, tuned
    key = jax.random.fold_in(options["key"], 2)
    nothing = jax.tree.map(lambda _: None, problem.tuned)
    none = {"low": np.zeros(0), "high": np.zeros(0)}
    again = {**options, "progress": None, "max_seconds": math.inf}
    try:
        points = moved_prototypes(key, problem, tuned, search, left)
        there = dataclasses.replace(problem, points=points, tuned=nothing, fixed=tuned.kernel)
        second = tune(there, search=Profile(tune_kernel=False), **none, **again)
    except NumericalError:
        return problem, tuned
    except KeyboardInterrupt:
        return problem, tuned._replace(stopped="interrupted")
    if not second.score < tuned.score:
        return problem, tuned
    own = {"theta": tuned.theta, "history": tuned.history}
    return dataclasses.replace(problem, points=points), second._replace(**own)


def _larger(
    problem: Problem,
    small: Problem,
    first: Tuning,
    search: Search,
    options: dict[str, Any],
    begin: float,
) -> tuple[Problem, Tuning]:
    """A common factor of the kernel's leaves and `C`, for more prototypes than it was tuned with.

    Of `C` those within five times the best one, as each takes a factorisation for each fold. Unless
    the score then is the less by half a standard error, the machine it was tuned with stays.
    """
    tuned, fixed = split_kernel(first.kernel, problem.dtype, tune_kernel=True)
    larger = dataclasses.replace(problem, tuned=tuned, fixed=fixed)
    near = np.abs(np.log(options["C"] / first.C)) <= math.log(5.0)
    middle, show, done = start_of(larger).astype(float), options["progress"], len(first.history)
    own = {**options, "C": options["C"][near], "low": middle - 1.0, "high": middle + 1.0}
    own["max_seconds"] = max(0.0, options["max_seconds"] - (time.perf_counter() - begin))
    if show is not None:
        own["progress"] = lambda now, planned, best: show(done + now, done + planned, best)
    try:
        second = tune(larger, search=Rescaling(), **own)
    except KeyboardInterrupt:  # nothing is known of the larger machine
        return small, first._replace(stopped="interrupted")
    except NumericalError:
        return small, first
    stopped = second.stopped if first.stopped == "finished" else first.stopped
    bound = first.score - LARGER_GAIN * np.nan_to_num(first.standard_error)
    if not second.score < bound:
        return small, first._replace(stopped=stopped)
    second = second._replace(history=first.history, stopped=stopped)
    tuned, fixed = split_kernel(second.kernel, problem.dtype, **search.varied)
    if signed(tuned).any():  # a point of the search, from which another can start
        larger = dataclasses.replace(larger, tuned=tuned, fixed=fixed)
        second = second._replace(theta=start_of(larger).astype(float))
    return larger, second


def _curve(problem: Problem, tuned: Tuning, asked: Settings) -> tuple[Problem, SizeCurve]:
    """The errors of every size with the best kernel and `C`, and the problem up to its end."""
    method = problem.method
    assert isinstance(method, PathMethod)
    C = jnp.asarray(tuned.C, problem.dtype)[None]
    found = problem.path_errors(tuned.kernel, C, asked.scoring)
    end = None
    if method.stopping is not None:
        end = method.stopping.length(np.asarray(found.scores[0]))
    errors = np.asarray(found.scores[0, :end])
    spread = standard_error(found.fold_scores)[0, :end]
    k = len(errors)
    curve = SizeCurve(
        sizes=np.asarray(method.path_sizes[:k]),
        errors=errors,
        standard_errors=spread,
        chosen=smallest_within(errors, spread, method.size_tolerance),
        metric=asked.scoring.metric,
        fold_errors=np.asarray(found.fold_scores[0, :, :k]),
        stopped=tuned.stopped,
    )
    if found.reported is not None:
        assert found.fold_reported is not None
        curve = curve._replace(
            errors=np.asarray(found.reported[0, :k]),
            standard_errors=standard_error(found.fold_reported)[0, :k],
            metric=asked.metric,
            fold_errors=np.asarray(found.fold_reported[0, :, :k]),
            chosen_by=curve,
        )
    return dataclasses.replace(problem, method=method.shortened(k)), curve


def _C(problem: Problem, tuned: Tuning, data: Data, asked: Settings) -> float | np.ndarray:
    """The best `C`; if each problem is to have its own, that with which its rows are told apart.

    Of the grid; where several values make as few errors, the nearest to the one best for all.
    """
    if data.code is None or not asked.multiclass.C_per_problem:
        return tuned.C
    grid = asked.C.astype(data.dtype)
    values, status = data.predictions(problem, tuned.kernel, grid, asked.scoring)
    numbers, w = data.scored()
    target = np.asarray(data.code.matrix)[numbers]
    seen = np.abs(target) * (1 if w is None else w[:, None])
    wrong = ((values >= 0) != (target > 0)[None]).astype(float)
    errors = np.sum(wrong * seen[None], axis=1) / np.sum(seen, axis=0)[None]
    errors = np.where((status < PRECISION_LOST)[:, None], errors, np.inf)
    apart = np.abs(np.log(grid) - math.log(tuned.C))
    return grid[np.argmin(np.where(errors == errors.min(axis=0)[None], apart[:, None], np.inf), 0)]


def _unseen(
    chosen: Choice, data: Data, asked: Settings, out_of_fold: bool
) -> tuple[np.ndarray | None, Summed | None]:
    """Values of the rows by the machine chosen that has not seen their fold, shape `n *c`.

    And the sums of all rows, if the same program gives them.
    """
    problem, method = chosen.problem, chosen.problem.method
    summed = isinstance(method, Additive) and method.is_ridge
    if isinstance(data, ArrayData) and not method.is_path and (out_of_fold or summed):
        # The program of the search, with the values of C that it was compiled for.
        large = method.surrogate() is not None and method.surrogate_sees == "some points"
        same = not large and np.all(np.isin(chosen.C, asked.C))
        grid = asked.C if same else np.unique(chosen.C)  # of a large machine as few as can be
        keep = np.argmin(np.abs(grid[:, None] - np.reshape(chosen.C, (1, -1))), axis=0)
        keep = keep.astype(np.int32).reshape(np.shape(chosen.C))
        theta = chosen.tuning.theta[: start_of(problem).size]
        found = evaluate(
            problem, theta.astype(data.dtype), grid.astype(data.dtype), asked.scoring, keep
        )
        if not out_of_fold:
            return None, found.sums
        return data.units.values(data.in_order(found.predictions)), found.sums
    if not out_of_fold:
        return None, None
    grid, which = np.unique(np.asarray(chosen.C, data.dtype), return_inverse=True)
    size = None if chosen.size is None else jnp.asarray(chosen.size, jnp.int32)
    values, _ = data.predictions(chosen.problem, chosen.tuning.kernel, grid, asked.scoring, size)
    if np.ndim(chosen.C) == 0:
        return data.units.values(values[0]), None
    return np.stack([values[s, :, j] for j, s in enumerate(which.reshape(-1))], axis=1), None


def _check_out_of_fold(out_of_fold: Any, X: Any, asked: Settings) -> None:
    if not (isinstance(out_of_fold, bool) or out_of_fold == "machines"):
        raise ValueError(f"out_of_fold: expected True, False or 'machines', got {out_of_fold!r}")
    streamed = isinstance(X, RowStream) and not isinstance(X, np.ndarray | jax.Array)
    if out_of_fold == "machines" and (streamed or asked.resources.mesh is not None):
        raise ValueError(
            "out_of_fold: expected True or False for a stream or on several devices, as the "
            "machines of the folds are kept for rows in memory on one device; for intervals see "
            "Model.calibrated"
        )


def _unseen_errors(
    values: np.ndarray,
    chosen: Choice,
    data: Data,
    asked: Settings,
    summed: Summed | None,
    by_machines: bool,
) -> Unseen:
    """The errors of rows with weight, with the machines that made them if these are kept."""
    truth, weights = data.scored()
    there = slice(None) if weights is None else weights > 0
    if data.classes is None:
        errors = errors_of_numbers(values[there], truth[there])
    else:
        scores = scores_of(values[there], data.code, asked.scoring.decoding)
        errors = errors_of_classes(scores, truth[there])
    if not by_machines:
        return kept_errors(errors)
    C = as_array(np.asarray(chosen.C, data.dtype))
    machines, fold = fold_machines(
        chosen.problem, chosen.tuning.kernel, C, chosen.size, summed, data.units, data.n_rows
    )
    return kept_errors(errors, fold[there], machines)


def _fit(
    chosen: Choice, data: Data, asked: Settings, summed: Summed | None
) -> tuple[Any, Sums | None]:
    """The machine of all rows in the caller's units, and the sums it was solved from."""
    problem, method = chosen.problem, chosen.problem.method
    C = as_array(np.asarray(chosen.C, data.dtype))
    if summed is not None and isinstance(method, Additive):
        features, sums = summed
        fitted = method.solve(features, sums, C, data.code, key=problem.key)
    else:
        fitted, features, sums = problem.source.fit(problem, chosen.tuning.kernel, C)
    if problem.points is None:
        first = np.arange(data.n_rows)
        fitted = fitted._replace(expansion=some_prototypes(fitted.expansion, first))
    fitted, features, sums = on_default_device(asked.resources.mesh, (fitted, features, sums))
    fitted = data.units.fit(fitted)
    jax.block_until_ready(jax.tree.leaves(fitted))
    if features is None or sums is None:
        return fitted, None
    return fitted, Sums(features, sums, data.units)


def _trained(
    asked: Settings,
    data: Data,
    columns: Schema | None,
    points: Points,
    chosen: Choice,
    fitted: Any,
    sums: Sums | None,
    values: np.ndarray | None,
    unseen: Unseen | None,
    seconds: dict[str, float],
) -> Trained:
    """The model, and how it came about."""
    units, metric, method = data.units, asked.metric, chosen.problem.method
    kept = method.kept(fitted)
    tuning = units.tuning(chosen.tuning, asked.scoring.metric)
    curve = None if chosen.curve is None else units.curve(chosen.curve)
    error = tuning.score
    if curve is not None and method.is_path:
        error = float(curve.errors[curve.chosen])
    expansion = dataclasses.replace(expansion_of(fitted, chosen.size), scaling=data.scaling)
    if kept is not None:
        expansion = some_prototypes(expansion, kept)
    slopes = None
    if values is not None and data.classes is not None:
        numbers, weights = data.scored()
        there = slice(None) if weights is None else weights > 0
        scores = scores_of(values[there], data.code, asked.scoring.decoding)
        slopes = fit_slopes(scores, numbers[there], None if weights is None else weights[there])
    classes = data.classes
    model = Model(
        expansion=expansion,
        path=fitted.compact() if method.is_path else None,
        slopes=slopes,
        unseen=unseen,
        code=data.code,
        decoding=asked.scoring.decoding,
        labels=None if classes is None else tuple(classes.tolist()),
        label_dtype="" if classes is None else classes.dtype.str,
        columns=columns,
        about=About(
            method=method.name,
            metric=metric,
            cv_error=error,
            C=np.asarray(chosen.C).tolist() if method.has_C else None,
            rows=data.n_rows,
        ),
    )
    rows = None if chosen.moved else points.rows
    if rows is not None and chosen.problem.points is not None:  # the size chosen
        rows = rows[: len(chosen.problem.points)]
    if rows is not None and kept is not None:
        rows = rows[kept]
    return Trained(
        model=model,
        method=method,
        kernel=chosen.tuning.kernel,
        C=chosen.C,
        target_unit=units.unit,
        cv_error=error,
        metric=metric,
        criterion=asked.scoring.metric,
        tuning=tuning,
        search=asked.search,
        fit=fitted,
        sums=sums,
        point_rows=data.rows_of(rows),
        n_points=data.n_rows if points.X is None else len(points.X),
        folds=data.folds_of_caller,
        out_of_fold=data.for_caller(values),
        n_rows=data.n_rows,
        seconds=seconds,
        curve=curve,
        selection_status=points.status,
    )
