"""Training: raw rows to a tuned model (De Brabanter 2010, Algorithm 5; Karsmakers 2011, 4)."""

import dataclasses
import functools
from typing import Any, Literal

import numpy as np
from jaxtyping import ArrayLike

from .._arguments import whole_number
from .._runtime import check_runtime
from .._types import KeyLike
from ..data.frames import as_frame
from ..machines.method import Method, Metric, Task
from ..machines.scdp import SCDP
from ..multiclass import Scheme
from ..search.run import Progress
from ..search.strategies import Search
from ..validation.folds import Folds
from .budget import Budget, within_budget
from .checkpoint import resumable
from .choices import KernelLike
from .distil import NO_NUMBER, distil
from .inputs import ClassWeight
from .presets import Preset, Situation, completed
from .run import run
from .settings import Columns, HoldOut, Multiclass, Resources, Stated
from .trained import Trained

LARGEST_DISTILLED = 500  # prototypes, up to which a pursuit takes seconds


@resumable
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
    budget: Budget | None = None,
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
            `ReducedSVM`, `RVM`, with their settings.
        kernel: a name ("rbf", "laplacian", "matern32", "matern52", "rational_quadratic", "linear",
            "polynomial"), a kernel in standardised units, or a function of two points written in
            JAX. The positive leaves of a kernel are tuned within a factor of `LENGTHSCALE_FACTOR`
            of their values. "auto" chooses "rbf", "matern32" or "laplacian" by the squared error of
            a machine on a sample of the rows, see `training.auto`. For `KSP`, `KMP` and `KBP` also
            a list of kernels; every candidate then has one atom for each kernel.
        C: weight of the data-fit term, or a grid (or range) of weights from which cross-validation
            chooses; by default the method's grid. With the absolute and the quantile loss, `C`
            weighs residuals divided by `Trained.target_unit`, which is near the standard deviation
            of the targets.
        search: `Profile` scores each kernel with all `C` at once; `Gradient` tunes a lengthscale
            for every column; `Recursive` learns a metric from the machine's derivatives;
            `Annealing` is the search of De Brabanter 2010. "auto" is `Gradient` for 100 rows or
            more on one device, else `Profile`.
        folds: number of random folds, stratified for classification; "auto" for 10 or,
            with `KSP`, `KMP`, `KBP`, `RVM`, `SpSVM` and the methods of Wu 2006, for 5; at most the
            number of rows. Or the caller's `Folds`; for a stream a `HoldOut`. `Dual` is
            validated by leave-one-out, whatever the folds.
        metric: the metric to minimise and report: "misclassification", "mse", "mae", or "pinball"
            with `Robust(loss="quantile")`. The default is "misclassification" for classification
            and "mse" for regression (with `Robust` "mae", or "pinball"). By default a pursuit
            (`SCDP`, `KSP`, `KMP`, `KBP`) minimises "mse" for classification too, and reports
            misclassification (`Trained.criterion`, `Trained.metric`).
        multiclass: how more than two classes are divided into binary problems: a scheme, a matrix
            of codes, or a `Multiclass`.
        weights: row weights, shape `n`, used in the standardisation, the choice of points, the fit
            and the score. Rows of weight 0 are dropped before anything is computed. So a label that
            only such rows have is no class. Arrays must be finite in rows of weight 0 too.
        class_weight: a weight factor for each class, by label; or "balanced" to give all classes
            the same total weight.
        out_of_fold: keep the held-out values of the tuned machine in `Trained.out_of_fold`, and use
            them to calibrate probabilities and intervals. If the search did not keep them, this
            takes one more evaluation. "machines" also keeps the machines of the folds in the model;
            with `Dual`, one for each row. Intervals and sets then follow CV+, or with `Dual`
            jackknife+, see `Model.interval`. "machines" needs rows in memory on one device. With
            `Dual`, and with methods that need more than sums, it may take much longer than the fit.
        resources: memory, time and devices that the run may use.
        progress: called with (done, planned, best score) for each evaluation. A CPU may evaluate up
            to four kernels at the same time, and then reports them one after another.
        columns: "standard" gives every column mean 0 and variance 1. "ranks" replaces its values by
            normal scores of their ranks (`scaling.NormalScores`), which suits heavy tails. "auto"
            takes the scaling with the lower error of a machine on a sample of the rows.
        preset: the settings to use where `method`, `kernel`, `search` or `columns` is None. "fast"
            has the settings of De Brabanter 2010: `FixedSize()`, "rbf", `Profile()` (one
            lengthscale) and "standard". "balanced" and "accurate" compare kernel families and
            scalings of the columns, learn a metric, and make every row a prototype, "balanced" up
            to 6,000 rows, "accurate" up to 20,000. With more rows, too little memory, stated
            `folds` or `out_of_fold="machines"`, they have at most 500 and 2,000 prototypes. On two
            cores "balanced" takes some ten seconds for 6,000 rows of 20 columns in float32, and two
            to three times as long for a hundred columns or in float64. The default is "fast" for a
            stream, on a mesh and with a stated method, else "balanced".
        n_prototypes: distil the machine of the preset to at most `n_prototypes` prototypes, see
            `distil`. The result is in float64. The preset "accurate" also moves the prototypes, and
            keeps the moved ones if held-out rows err less. Only without a method.
        budget: limits of the bytes of the model's file, or of the seconds that a row takes. If the
            model exceeds a limit, smaller machines are trained until one meets it. Without a
            method, the machine of the preset is distilled to at most `LARGEST_DISTILLED`
            prototypes. The model has no `path` of other sizes; `Trained.costs` has its costs.

    The rows of a stream are read several times. The first pass computes their moments and classes,
    and draws a random sample with rows of every class. Points are chosen from the sample, and
    scores are means over it. Each further pass sums every fold for a batch of kernels and all `C`
    (De Brabanter 2010, Section 6.2, Algorithm 4). Memory does not depend on the number of rows.

    Ctrl-C during tuning keeps the best result so far; `tuning.stopped` is then "interrupted". With
    `Resources(checkpoint=path)` a killed call resumes when it is made again.

    Warns:
        PrecisionWarning: naming a column whose range the dtype of the computations holds in few
            steps, such as seconds since 1970 in float32. Of a stream the random sample is checked.

    Raises:
        ValueError: before any work is done, for invalid data or settings, more points than fit into
            memory, or arrays spread over several processes. On a mesh of several processes, in
            every process, for rows or settings that differ between the processes.
        RuntimeError: in the other processes of a mesh, if one process raises a ValueError.
        StreamError: naming the rows, for a stream that changes from pass to pass, ends early or
            holds invalid batches. No sums of such a stream are used.
        BudgetError: if no model of the method meets the budget.
        NumericalError: if no result can be trusted. But a machine of a stated kernel, `C` and size
            is returned with its `statuses`.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-3.0, 3.0, 100)[:, None]
        >>> labels = np.where(np.abs(X[:, 0]) < 1, "inside", "outside")
        >>> trained = train(X, labels, task="classification", preset="fast", key=0)
        >>> trained.predict(np.array([[0.0], [2.0]])).tolist()
        ['inside', 'outside']
    """
    check_runtime()
    if not (budget is None or isinstance(budget, Budget)):
        raise ValueError(f"budget: expected a Budget, such as Budget(bytes=9000), got {budget!r}")
    stated = Stated(method, kernel, search, columns)
    settings, preset = completed(stated, preset, situation_of(X, y, folds, out_of_fold, resources))
    options = {
        "task": task, "key": key, "folds": folds, "metric": metric, "multiclass": multiclass,
        "weights": weights, "class_weight": class_weight, "resources": resources,
        "progress": progress,
    }  # fmt: skip
    run_with = functools.partial(run, X, y, C=C, preset=preset, **options)
    if n_prototypes is None and (budget is None or method is not None):
        trained = run_with(settings=settings, out_of_fold=out_of_fold)
        if budget is None:
            return trained

        def smaller(m: int) -> Trained:
            limited = settings._replace(method=trained.method.limited(m))
            return run_with(settings=limited, out_of_fold=out_of_fold)

        return within_budget(budget, trained, smaller)
    if method is not None:
        raise ValueError(NO_NUMBER.format(n_prototypes))
    m = LARGEST_DISTILLED if n_prototypes is None else whole_number("n_prototypes", n_prototypes, 1)
    # Refuse output codes that the pursuit cannot fit before the large machine is trained.
    large = run_with(settings=settings, out_of_fold=False, student=SCDP())
    distilled = functools.partial(_distilled, large, X, y, out_of_fold=out_of_fold, **options)
    if budget is None:
        return distilled(m)
    m = min(m, budget.largest_size(large.model, np.dtype(np.float64)))
    return within_budget(budget, distilled(m), distilled)


def _distilled(large: Trained, X: Any, y: Any, m: int, **options: Any) -> Trained:
    """Distil the machine of a preset to at most `m` prototypes; with "accurate", also move them."""
    move = large.preset == "accurate"
    small = distil(large, X, y, n_prototypes=m, move_prototypes=move, **options)
    seconds = small.seconds | {"large machine": large.seconds["total"]}
    for name in ("total", "compile"):
        seconds[name] += large.seconds[name]
    return dataclasses.replace(small, preset=large.preset, seconds=seconds)


def situation_of(X: Any, y: Any, folds: Any, out_of_fold: Any, resources: Resources) -> Situation:
    """Return the facts that decide the settings of a preset, from arguments not yet checked."""
    frame, mesh = as_frame(X), getattr(resources, "mesh", None)
    n = None
    if mesh is None and (frame is not None or (y is not None and hasattr(X, "__len__"))):
        n = len(X) if frame is None else frame.n_rows
    # `Dual` validates by leave-one-out, and would keep a machine for each row.
    by_folds = folds != "auto" or out_of_fold == "machines"
    return Situation(n, by_folds, getattr(resources, "memory", None))
