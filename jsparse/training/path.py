"""From a table of numbers to tuned machines of every size (Karsmakers 2011, Section 4)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .._arguments import as_key, whole
from .._runtime import check_runtime
from .._status import CONVERGED
from .._types import Key, KeyLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..machines import scdp
from ..multiclass import Code, Decoding, Scheme, output_code
from ..prototypes import k_center, k_means
from ..pursuit.probabilistic import SUBSET
from ..scaling import Standardization, standardize
from ..search.path_problem import PathProblem, Stopping, standard_errors
from ..search.problem import Scoring, split_kernel, start_of
from ..search.sizes import check_tolerance, smallest_within
from ..search.tune import Evaluation, Method, Progress, Tuning, check_settings, tune
from ..validation.cross_validation import Metric
from ..validation.folds import Folds
from .choices import LENGTHSCALE_FACTOR, KernelLike, make_folds, make_kernel, select
from .clock import clock, compile_clock
from .inputs import (
    Task,
    check_classes,
    encoded_targets,
    finite_table,
    row_weights,
)
from .target_units import TargetUnits, target_units
from .trained import decide, stop_codes

Candidates = Literal["k_center", "k_means", "renyi", "uniform"]

# A path for each value and fold is what tuning costs here, so fewer than where they are free.
PATH_C = np.geomspace(1e-2, 1e6, 9)
# "One tenth of the standard deviation of the best cross-validation score" (Section 4.5).
PATH_TOLERANCE = 0.1
MAX_PROTOTYPES = 300
CANDIDATES = 1000


class TrainedPath(NamedTuple):
    """Tuned machines with 1, 2, .. prototypes, and one of them chosen."""

    path: scdp.SparsePath  # in standardised units
    scaling: Standardization
    errors: Float[np.ndarray, " k"]  # cross-validated, with 1, 2, .. k prototypes
    standard_errors: Float[np.ndarray, " k"]  # of the errors, from their spread over the folds
    fold_errors: Float[np.ndarray, "v k"]
    n_prototypes: int  # chosen
    classes: np.ndarray | None  # sorted labels; of two, f >= 0 decides for the second
    code: Code | None  # of more than two classes
    decoding: Decoding
    kernel: Kernel
    C: float
    metric: Metric
    tuning: Tuning
    folds: Folds
    out_of_fold: np.ndarray | None  # values of each row by a machine of the size chosen, `n *l`
    n_rows: int
    n_candidates: int
    seconds: dict[str, float]  # wall time by phase; "compile" is contained in the others
    selection_status: int = CONVERGED  # how the choice of candidates ended

    @property
    def expansion(self) -> KernelExpansion:
        """The machine chosen; takes raw inputs."""
        return self.at(self.n_prototypes)

    @property
    def status(self) -> int:
        """Stop code of the machine chosen, see `check`."""
        return int(self.path.status_at(self.n_prototypes))

    @property
    def statuses(self) -> dict[str, int]:
        """Stop codes of the machine chosen and of what it rests on, see `check`."""
        return stop_codes(self.status, self.selection_status, self.tuning.status)

    @property
    def cv_error(self) -> float:
        """Of the machine chosen."""
        return float(self.errors[self.n_prototypes - 1])

    def at(self, n_prototypes: int) -> KernelExpansion:
        """The machine with so many prototypes; takes raw inputs.

        Raises:
            ValueError: if the path is not that long.
        """
        return dataclasses.replace(self.path.at(n_prototypes), scaling=self.scaling)

    def smallest_within(self, tolerance: float = PATH_TOLERANCE) -> int:
        """The least number of prototypes whose error is within so many standard errors of the best.

        0.1 is the paper's choice (Section 4.5), 1 the one-standard-error rule.

        Raises:
            ValueError: for a negative tolerance.
        """
        check_tolerance(tolerance)
        return 1 + smallest_within(self.errors, self.standard_errors, tolerance)

    def predict(self, X: ArrayLike, n_prototypes: int | None = None) -> np.ndarray:
        """Class labels, or values of the regression, at raw inputs of shape `n d`.

        Raises:
            ValueError: if `X` is not finite.
            NumericalError: if a value of the model is not finite.
        """
        size = self.n_prototypes if n_prototypes is None else n_prototypes
        values = self.at(size)(finite_table(X))
        return decide(values, self.classes, self.code, self.decoding)


def train_path(
    X: ArrayLike,
    y: ArrayLike,
    *,
    task: Task,
    key: KeyLike,
    max_prototypes: int | None = None,
    candidates: int | Literal["all"] | ArrayLike | None = None,
    candidate_method: Candidates = "k_center",
    subset: int | Literal["auto"] | None = None,
    stopping: Stopping | None = None,
    tolerance: float = PATH_TOLERANCE,
    kernel: KernelLike = "rbf",
    tune_kernel: bool = True,
    folds: int | Folds = 10,
    metric: Metric | None = None,
    multiclass: Scheme | ArrayLike = "one_versus_rest",
    decoding: Decoding = "loss",
    selection: scdp.Selection = "joint",
    search_method: Method = "profile",
    max_evaluations: int | None = None,
    max_seconds: float = math.inf,
    C: Float[np.ndarray, " s"] = PATH_C,
    weights: ArrayLike | None = None,
    class_weight: Literal["balanced"] | Mapping[Any, float] | None = None,
    out_of_fold: bool = False,
    progress: Progress | None = None,
    history: list[Evaluation] | None = None,
) -> TrainedPath:
    """Standardise, choose candidates, tune by cross-validation, and fit machines of every size.

    SCDP-FSLSSVM of Karsmakers 2011, Section 4: prototypes are selected out of candidates one after
    another, by what is left of the targets, and cross-validation of the whole path says how many
    are worth having.

    Args:
        X: inputs in raw units, shape `n d`; no NaN or infinity.
        y: classes of any label type, or real targets; shape `n`.
        task: "classification" or "regression".
        key: an integer, or a key of `jax.random`: decides candidates, folds, random subsets and
            search.
        max_prototypes: length of the path; by default 300, or as many as there are candidates or
            rows to train on.
        candidates: their number, "all" rows with weight, or points of the caller's in raw units,
            shape `M d`; by default all rows up to 1000.
        candidate_method: "k_center" (farthest points, the paper's), "k_means", "renyi", "uniform".
        subset: SCDPP: candidates looked at for each prototype, "auto" for the paper's 59.
        stopping: end paths where their error no longer changes (eq. 38), to save time; by default
            they all go on to `max_prototypes`, the paper's safest choice.
        tolerance: the number chosen is the least whose error is within so many standard errors of
            the best; see `TrainedPath.smallest_within`.
        kernel: see `train`; so are all that follow but these:
        tune_kernel: False to take the kernel as it is.
        folds: their number, or the caller's own.
        metric: by default "mse", the press statistic (eq. 35), for classes too.
        multiclass: scheme for more than two classes; not "one_versus_one", whose problems do not
            share their rows.
        decoding: how the problems' values become a class.
        selection: of several problems: "joint", the same prototypes for all, or "separate".
        search_method: "profile" or "csa".
        max_evaluations: budget of the search.
        max_seconds: no evaluation starts later.
        C: grid (or range) of the weight of the data-fit term.
        weights: row weights, shape `n`.
        class_weight: factors of the classes, or "balanced".
        out_of_fold: keep the values of the rows by machines, of the size chosen, that have not seen
            them.
        progress: called with (done, planned, best score) after each evaluation.
        history: of a stopped search.

    Raises:
        ValueError: for anything wrong with the data or the settings, before any work is done.
        NumericalError: if nothing could be computed that can be trusted.
    """
    check_runtime()
    key = as_key(key)
    seconds: dict[str, float] = {}
    with compile_clock(seconds), clock(seconds, "total"):
        scoring = Scoring("mse" if metric is None else metric, decoding, "squared")
        grid = check_settings(
            scoring, C, search_method, max_evaluations, max_seconds, progress, history
        )
        check_tolerance(tolerance)
        if task not in ("classification", "regression"):
            raise ValueError(f"task: expected 'classification' or 'regression', got {task!r}")
        if task == "regression" and scoring.metric == "misclassification":
            raise ValueError("metric: expected 'mse' or 'mae' for regression")
        if selection not in ("joint", "separate"):
            raise ValueError(f"selection: expected 'joint' or 'separate', got {selection!r}")
        Xa = finite_table(X)
        n, d = Xa.shape
        targets, classes = encoded_targets(y, n, task)
        wa = row_weights(weights, class_weight, targets, classes)
        units = TargetUnits() if classes is not None else target_units(targets, wa, Xa.dtype)
        code, target = None, jnp.asarray(units.apply(targets, wa), Xa.dtype)
        if classes is not None:
            check_classes(classes, targets, wa)
            if len(classes) > 2:
                code = output_code(multiclass, len(classes)).astype(Xa.dtype)
                if not code.shares_all_rows:
                    raise ValueError(
                        "multiclass: expected a scheme in which every problem sees every class, "
                        "such as 'one_versus_rest'; their paths are of one system"
                    )
                target = jnp.asarray(targets, jnp.int32)
            else:
                target = jnp.asarray(2 * targets - 1, Xa.dtype)
        wj = None if wa is None else jnp.asarray(wa, Xa.dtype)
        present = np.ones(n, bool) if wa is None else wa > 0
        points, M = _count_candidates(candidates, candidate_method, int(present.sum()), d)
        if stopping is not None:
            if not isinstance(stopping, Stopping):
                raise ValueError(f"stopping: expected a Stopping or None, got {stopping!r}")
            stopping.check()
        candidate_key, fold_key, subset_key, search_key = jax.random.split(key, 4)
        template = make_kernel(kernel, d)
        table = make_folds(fold_key, folds, n, None if classes is None else targets)
        without = present.sum() - _rows_of_folds(table, present)
        most = min(M, int(without.min()))
        k = min(MAX_PROTOTYPES, most) if max_prototypes is None else max_prototypes
        k = whole("max_prototypes", k, 1, most, "the candidates and the rows without a fold")
        rho = min(SUBSET, M) if isinstance(subset, str) and subset == "auto" else subset
        if rho is not None:
            rho = whole("subset", rho, 1, M, "the candidates")

        with clock(seconds, "candidates"):
            scaling = standardize(Xa, wj)
            Z = scaling.apply(Xa)
            labels = None if classes is None else targets
            selected = CONVERGED
            if points is not None:
                chosen = scaling.apply(points.astype(Xa.dtype))
            else:
                chosen, selected = _candidates(
                    candidate_key, candidate_method, Z, M, labels, wa, present
                )
            chosen = jax.block_until_ready(chosen)

        tuned_leaves, fixed = split_kernel(template, Xa.dtype, tune_kernel=tune_kernel)
        posed = PathProblem(
            tuned_leaves,
            fixed,
            chosen,
            Z,
            target,
            wj,
            table,
            code,
            None if rho is None else subset_key,
            k,
            rho,
            selection == "separate" and code is not None,
            stopping,
        )
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
            best_C = jnp.asarray(tuned.C, Xa.dtype)
            curve = posed.until_stopped(tuned.kernel, best_C[None], scoring)
            end = None if stopping is None else stopping.length(np.asarray(curve.scores[0]))
            errors = np.asarray(curve.scores[0, :end])
            spread = np.asarray(standard_errors(curve.fold_scores)[0, :end])
            k = len(errors)
            size = 1 + smallest_within(errors, spread, tolerance)
            fold_errors = np.asarray(curve.fold_scores[0, :, :k])
            kept = None
            if out_of_fold:
                at = jnp.asarray(size, jnp.int32)
                values = posed.validate(tuned.kernel, best_C[None], scoring, at).predictions
                kept = units.values(np.asarray(values)[0])
                kept = kept if code is not None else kept[:, 0]
        with clock(seconds, "fit"):
            y_fit = target if code is None else jnp.asarray(code.matrix)[target]
            path = scdp.fit(
                tuned.kernel,
                chosen,
                best_C,
                Z,
                y_fit,
                wj,
                max_prototypes=k,
                selection=selection,
                subset=rho,
                key=posed.key,
            )
            path = jax.block_until_ready(_in_units(units, path))
    return TrainedPath(
        path=path,
        scaling=scaling,
        errors=units.scores(errors, scoring.metric),
        standard_errors=units.scores(spread, scoring.metric),
        fold_errors=units.scores(fold_errors, scoring.metric),
        n_prototypes=size,
        classes=classes,
        code=code,
        decoding=decoding,
        kernel=tuned.kernel,
        C=tuned.C,
        metric=scoring.metric,
        tuning=units.tuning(tuned, scoring.metric),
        folds=table,
        out_of_fold=kept,
        n_rows=n,
        n_candidates=M,
        seconds=seconds,
        selection_status=selected,
    )


def _count_candidates(
    candidates: int | Literal["all"] | ArrayLike | None, method: str, n: int, d: int
) -> tuple[Float[Array, "M d"] | None, int]:
    """The caller's own points, if they are given, and how many candidates there will be."""
    if method not in ("k_center", "k_means", "renyi", "uniform"):
        raise ValueError(
            "candidate_method: expected 'k_center', 'k_means', 'renyi' or 'uniform', got "
            f"{method!r}"
        )
    if isinstance(candidates, str):
        if candidates != "all":
            raise ValueError(f"candidates: expected a number, 'all' or points, got {candidates!r}")
        return None, n
    if candidates is None or np.ndim(candidates) == 0:
        M: Any = min(n, CANDIDATES) if candidates is None else candidates
        return None, whole("candidates", M, 1, n, "the number of rows with weight")
    points = finite_table(candidates, "candidates")
    if points.shape[1] != d:
        raise ValueError(f"candidates: expected shape (M, {d}), got {points.shape}")
    return points, len(points)


def _rows_of_folds(folds: Folds, present: np.ndarray) -> Int[np.ndarray, " v"]:
    """Rows with weight in every fold; each must have some, and leave some."""
    valid = np.asarray(folds.valid)
    rows = (valid & present[np.where(valid, np.asarray(folds.index), 0)]).sum(axis=1)
    empty = np.flatnonzero((rows == 0) | (rows == present.sum()))
    if len(empty) > 0:
        raise ValueError(
            f"folds: expected rows with weight in every fold and outside of it; fold {empty[0]} "
            f"has {rows[empty[0]]} of {present.sum()}"
        )
    return rows


def _candidates(
    key: Key,
    method: str,
    Z: Float[Array, "n d"],
    M: int,
    labels: np.ndarray | None,
    weights: np.ndarray | None,
    present: np.ndarray,
) -> tuple[Float[Array, "M d"], int]:
    """The points, and how their choice ended."""
    if present.sum() == M:
        return Z[np.flatnonzero(present)], CONVERGED
    w = None if weights is None else jnp.asarray(weights, Z.dtype)
    if method == "k_center":
        return Z[k_center(key, Z, M, w).indices], CONVERGED
    if method == "k_means":
        means = k_means(key, Z, M, w)
        return means.centres, int(means.status)
    rows, status = select(key, method, Z, M, labels, weights)
    return Z[rows], status


def _in_units(units: TargetUnits, path: scdp.SparsePath) -> scdp.SparsePath:
    """A path in the units of the caller's targets."""
    unit, offset = (jnp.asarray(a, path.intercepts.dtype) for a in (units.unit, units.offset))
    return path._replace(
        coefficients=path.coefficients * unit, intercepts=path.intercepts * unit + offset
    )
