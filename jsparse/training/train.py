"""From a table of numbers to a tuned fixed-size LS-SVM (De Brabanter 2010, Algorithm 5)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import ArrayLike, Float

from .. import kernels
from .._arguments import as_key, whole
from .._mesh import check_mesh, on_default_device
from .._runtime import check_runtime
from .._status import CONVERGED, PRECISION_LOST
from .._types import KeyLike
from ..kernels import Kernel
from ..machines import dual, fixed_size, robust
from ..multiclass import Decoding, Scheme, accumulate_code, output_code
from ..normal_equations import accumulate
from ..prototypes import interleaved
from ..scaling import standardize
from ..search.problem import Problem, Scoring, feature_map, start_of, tuning_problem, validate
from ..search.sizes import SIZE_TOLERANCE, check_sizes, check_tolerance, tune_sizes
from ..search.tune import Evaluation, Method, Progress, Tuning, check_settings, tune
from ..validation.cross_validation import Loss, Metric
from ..validation.folds import Folds
from ..validation.sharding import ShardedFolds, in_row_order
from .choices import (
    DEFAULT_C,
    LENGTHSCALE_FACTOR,
    KernelLike,
    make_folds,
    make_kernel,
    select,
)
from .clock import clock, compile_clock
from .inputs import (
    Task,
    check_classes,
    encoded_targets,
    finite_table,
    row_weights,
)
from .plan import check_fits, plan
from .target_units import TargetUnits, target_units
from .trained import Fit, Sums, Trained


def train(
    X: ArrayLike,
    y: ArrayLike,
    *,
    task: Task,
    key: KeyLike,
    n_prototypes: int | Sequence[int] | Literal["all"] = 200,
    size_tolerance: float = SIZE_TOLERANCE,
    kernel: KernelLike = "rbf",
    tune_kernel: bool = True,
    selection: Literal["renyi", "uniform"] = "renyi",
    folds: int | Folds = 10,
    metric: Metric | None = None,
    loss: Loss = "squared",
    multiclass: Scheme | ArrayLike = "one_versus_rest",
    decoding: Decoding = "loss",
    search_method: Method = "profile",
    max_evaluations: int | None = None,
    max_seconds: float = math.inf,
    C: Float[np.ndarray, " s"] = DEFAULT_C,
    C_per_problem: bool = False,
    weights: ArrayLike | None = None,
    classes: Sequence[Any] | ArrayLike | None = None,
    class_weight: Literal["balanced"] | Mapping[Any, float] | None = None,
    out_of_fold: bool = False,
    memory: int | None = None,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
    history: list[Evaluation] | None = None,
) -> Trained:
    """Standardise, choose prototypes, tune by cross-validation, fit (De Brabanter 2010, Alg. 5).

    Args:
        X: inputs in raw units, shape `n d`; no NaN or infinity.
        y: classes of any label type, or real targets; shape `n`.
        task: "classification" or "regression".
        key: an integer, or a key of `jax.random`: decides prototypes, folds and search; the same
            key gives the same model.
        n_prototypes: `m`, at most n; or several, increasing, of which one is chosen by
            cross-validation (Section 5), see `tune_sizes`; or "all", the LS-SVM in the dual, tuned
            by leave-one-out.
        size_tolerance: of several, the smallest is chosen whose error is within as many standard
            errors of the least; 0 for the least error itself.
        kernel: a name ("rbf", "laplacian", "matern32", "matern52", "rational_quadratic", "linear",
            "polynomial"), or a kernel whose positive leaves are tuned within a factor of
            `LENGTHSCALE_FACTOR` of their values, in standardised units, or a function of two points
            written in JAX.
        tune_kernel: False to take the kernel as it is and tune `C` only.
        selection: "renyi" (Algorithm 1, stratified by class) or "uniform".
        folds: their number (stratified for classification), or the caller's own.
        metric: what is minimised; by default "misclassification", or "mse", or with another loss
            than "squared" "mae".
        loss: "squared" (the LS-SVM), or "absolute" or "huber" for data with outliers; see
            `machines.robust`.
        multiclass: how more than two classes become problems of two; see
            `multiclass.output_code`.
        decoding: how their values become a class; see `multiclass.distances`.
        search_method: "profile", all `C` at once for each kernel, or "csa", the paper's; see
            `tune`.
        max_evaluations: by default 10 kernels for "profile", 160 points for "csa"; see `tune`.
        max_seconds: no evaluation starts later.
        C: grid (or range) of the weight of the data-fit term. With the loss "absolute" it weighs
            residuals divided by `Trained.target_unit`, about the targets' spread.
        C_per_problem: with more than two classes, let each problem have the `C` of the grid that is
            best for it, with the kernel they share.
        weights: row weights, shape `n`: they count in the standardisation, the selection, the fit
            and the score. A row of weight 0 is as if it were not there.
        classes: all labels, should there be some of which no rows have come yet; by default those
            of `y`. Only for prototypes and the loss "squared".
        class_weight: a factor for the weights of the rows of each class, or "balanced", which lets
            all classes weigh the same.
        out_of_fold: keep, in `Trained.out_of_fold`, the values of the rows by the tuned machine
            that has not seen them; one evaluation more.
        memory: bytes that may be taken; by default what the device has left. See `plan`.
        mesh: its devices share the work of tuning and fitting, each with its own rows; the model is
            the same to rounding. For the loss "squared" and a number of prototypes. In several
            processes, each calls `train` with the same arguments, and without `max_seconds`.
        progress: called with (done, planned, best score) after each evaluation.
        history: `Trained.tuning.history` of a stopped search, to go on from; see `tune`.

    Ctrl-C during tuning keeps the best result so far (`tuning.stopped` says "interrupted").

    Raises:
        ValueError: for anything wrong with the data or the settings, or more prototypes than memory
            has room for, before any work is done.
        NumericalError: if nothing could be computed that can be trusted.
    """
    check_runtime()
    key = as_key(key)
    seconds: dict[str, float] = {}
    with compile_clock(seconds), clock(seconds, "total"):
        if metric is None:
            robust_metric: Metric = "mse" if loss == "squared" else "mae"
            metric = "misclassification" if task == "classification" else robust_metric
        scoring = Scoring(metric, decoding, loss)
        grid = check_settings(
            scoring, C, search_method, max_evaluations, max_seconds, progress, history
        )
        if task not in ("classification", "regression"):
            raise ValueError(f"task: expected 'classification' or 'regression', got {task!r}")
        if selection not in ("renyi", "uniform"):
            raise ValueError(f"selection: expected 'renyi' or 'uniform', got {selection!r}")
        if task == "regression" and metric == "misclassification":
            raise ValueError("metric: expected 'mse' or 'mae' for regression")
        Xa = finite_table(X)
        n = Xa.shape[0]
        dense = isinstance(n_prototypes, str)
        if dense and (n_prototypes != "all" or loss != "squared"):
            raise ValueError(
                "n_prototypes: expected a number, or 'all' with the loss 'squared', got "
                f"{n_prototypes!r} with {loss!r}"
            )
        several = isinstance(n_prototypes, Sequence) and not dense
        if isinstance(n_prototypes, str):
            sizes = [n]
        elif isinstance(n_prototypes, Sequence):
            sizes = check_sizes(n_prototypes, n, "the number of rows")
        else:
            sizes = [whole("n_prototypes", n_prototypes, 1, n, "the number of rows")]
        m = sizes[-1]
        check_tolerance(size_tolerance)
        if several and history is not None:
            raise ValueError("history: expected None with several n_prototypes")
        if mesh is not None:
            _check_mesh(mesh, dense, loss, max_seconds)
        targets, classes = encoded_targets(y, n, task, classes)
        wa = row_weights(weights, class_weight, targets, classes)
        units, code = TargetUnits(), None
        if classes is None:
            units = target_units(targets, wa, Xa.dtype, robust=loss != "squared")
        target = jnp.asarray(units.apply(targets, wa), Xa.dtype)
        if classes is not None:
            check_classes(classes, targets, wa)
            if (dense or loss != "squared") and len(np.unique(targets)) < len(classes):
                raise ValueError(
                    "classes: expected rows of all of them with n_prototypes='all' or another "
                    f"loss than 'squared', got none of some of {classes.tolist()}"
                )
            if len(classes) > 2:
                code = output_code(multiclass, len(classes))
                target = jnp.asarray(targets, jnp.int32)
            else:
                target = jnp.asarray(2 * targets - 1, Xa.dtype)
        wj = None if wa is None else jnp.asarray(wa, Xa.dtype)
        prototype_key, fold_key, search_key = jax.random.split(key, 3)
        template = make_kernel(kernel, Xa.shape[1])
        if several and isinstance(template, kernels.Linear):
            raise ValueError("n_prototypes: expected one number for the linear kernel, it has none")
        table = make_folds(fold_key, folds, n, None if classes is None else targets)
        planned = plan(
            n,
            Xa.shape[1],
            "all" if dense else m,
            folds=len(table.index),
            code=code,
            n_C=grid.size,
            dtype=Xa.dtype,
            memory=memory,
        )
        check_fits(planned, f"{m} prototypes")

        with clock(seconds, "prototypes"):
            scaling = standardize(Xa, wj)
            Z = scaling.apply(Xa)
            selected = CONVERGED
            if dense or isinstance(template, kernels.Linear):
                rows = np.arange(m)  # the linear machine is solved in the primal
            else:
                labels = None if classes is None else targets
                rows, selected = select(prototype_key, selection, Z, m, labels, wa)
                if several:
                    own = None if labels is None else labels[rows]
                    rows = rows[interleaved(jax.random.fold_in(prototype_key, 1), m, own)]
            chosen = None if dense else Z[rows]

        posed = tuning_problem(
            template, chosen, Z, target, table, wj, code, tune_kernel=tune_kernel, mesh=mesh
        )
        middle = np.asarray(start_of(posed), float)
        span = math.log(LENGTHSCALE_FACTOR)
        with clock(seconds, "tuning"), units.of_errors(metric):
            search: dict[str, Any] = {
                "key": search_key,
                "metric": metric,
                "low": middle - span,
                "high": middle + span,
                "C": grid,
                "decoding": decoding,
                "loss": loss,
                "method": search_method,
                "max_evaluations": max_evaluations,
                "max_seconds": max_seconds,
                "progress": units.progress(progress, metric),
            }
            choice = None
            if several:
                choice = tune_sizes(posed, sizes, tolerance=size_tolerance, **search)
                choice = units.sizes(choice, metric)
                tuned, rows = choice.tuning, rows[: choice.size]
                posed = dataclasses.replace(posed, prototypes=Z[rows])
            else:
                known = units.history(history, metric)
                tuned = units.tuning(tune(posed, history=known, **search), metric)
            best_C: float | np.ndarray = tuned.C
            if code is not None and C_per_problem:
                best_C = _problem_C(posed, tuned, grid, scoring)
            kept = None
            if out_of_fold:
                kept = _kept(posed, table, tuned.kernel, best_C, scoring)
                kept = units.values(kept)
        with clock(seconds, "fit"):
            fitted, sums = on_default_device(posed.mesh, _fit(posed, tuned.kernel, best_C, loss))
            fitted = _in_units(units, fitted)
            sums = None if sums is None else sums._replace(units=units)
            jax.block_until_ready(fitted)
    return Trained(
        expansion=dataclasses.replace(fitted.expansion, scaling=scaling),
        classes=classes,
        code=code,
        decoding=decoding,
        kernel=tuned.kernel,
        C=best_C,
        target_unit=units.unit,
        cv_error=tuned.score,
        metric=metric,
        tuning=tuned,
        fit=fitted,
        sums=sums,
        prototype_rows=rows,
        folds=table,
        out_of_fold=kept,
        n_rows=n,
        seconds=seconds,
        sizes=choice,
        selection_status=selected,
    )


def _check_mesh(mesh: Mesh, dense: bool, loss: Loss, max_seconds: float) -> None:
    check_mesh(mesh)
    if dense or loss != "squared":
        raise ValueError(
            "mesh: expected None with n_prototypes='all' or another loss than 'squared', whose "
            "machines are no sums over rows"
        )
    if len({d.process_index for d in mesh.devices.flat}) > 1 and max_seconds < math.inf:
        raise ValueError(
            "max_seconds: expected none in several processes, whose clocks could part them, got "
            f"{max_seconds}"
        )


def _kept(
    posed: Problem, table: Folds, kernel: Kernel, C: float | np.ndarray, scoring: Scoring
) -> np.ndarray:
    """Out-of-fold values with the `C` chosen, which each problem may have its own of."""
    grid, which = np.unique(np.asarray(C, posed.X.dtype), return_inverse=True)
    every = on_default_device(
        posed.mesh, validate(posed, kernel, jnp.asarray(grid), scoring).predictions
    )
    if isinstance(posed.folds, ShardedFolds):
        every = jnp.stack([in_row_order(table, posed.folds, values) for values in every])
    every = np.asarray(every)
    if np.ndim(C) == 0:
        return every[0]
    return np.stack([every[s, :, j] for j, s in enumerate(which.reshape(-1))], axis=1)


def _problem_C(posed: Problem, tuned: Tuning, grid: np.ndarray, scoring: Scoring) -> np.ndarray:
    """Of the grid, the `C` with which each problem's own rows are told apart best."""
    assert posed.code is not None
    grid = grid.astype(posed.X.dtype)
    result = validate(posed, tuned.kernel, jnp.asarray(grid), scoring)
    target = jnp.asarray(posed.code.matrix)[posed.y]
    w = jnp.ones(len(target), target.dtype) if posed.weights is None else posed.weights
    seen = jnp.abs(target) * w[:, None]
    wrong = ((result.predictions >= 0) != (target > 0)[None]).astype(target.dtype)
    errors = jnp.sum(wrong * seen[None], axis=1) / jnp.sum(seen, axis=0)[None]
    errors = jnp.where((result.status < PRECISION_LOST)[:, None], errors, jnp.inf)
    # Many values of C may make as few errors: the nearest to the one that is best for all.
    apart = jnp.abs(jnp.log(jnp.asarray(grid)) - math.log(tuned.C))
    best = jnp.where(errors == jnp.min(errors, axis=0)[None], apart[:, None], jnp.inf)
    return grid[np.asarray(jnp.argmin(best, axis=0))]


def _fit(
    posed: Problem, kernel: Kernel, C: float | np.ndarray, loss: Loss
) -> tuple[Fit, Sums | None]:
    X, w, code, best = posed.X, posed.weights, posed.code, jnp.asarray(C, posed.X.dtype)
    if posed.prototypes is None:
        if code is not None:
            return dual.fit_classes(kernel, best, X, posed.y, code, w), None
        return dual.fit(kernel, best, X, posed.y, w), None
    phi = feature_map(kernel, posed.prototypes)
    if loss != "squared":
        targets = posed.y
        if code is not None:  # a problem leaves out the rows of classes with target 0
            targets = jnp.asarray(code.matrix)[posed.y]
            w = jnp.abs(targets) if w is None else jnp.abs(targets) * w[:, None]
        return robust.fit(phi, best, X, targets, w, loss=loss), None
    if code is None:
        equations = accumulate(phi, X, posed.y, w, mesh=posed.mesh)
    else:
        equations = accumulate_code(code, phi, X, posed.y, w, mesh=posed.mesh)
    return fixed_size.solve(phi, equations, best, code), Sums(phi, equations)


def _in_units(units: TargetUnits, fitted: Fit) -> Fit:
    """A fit in the units of the caller's targets."""
    fitted = fitted._replace(expansion=units.expansion(fitted.expansion))
    if isinstance(fitted, robust.RobustFit):
        unit = jnp.asarray(units.unit, fitted.threshold.dtype)
        fitted = fitted._replace(
            threshold=fitted.threshold * unit,
            objective=units.scores(np.asarray(fitted.objective), "mse"),
        )
    return fitted
