"""From a table of numbers to a tuned fixed-size LS-SVM (De Brabanter 2010, Algorithm 5)."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .. import kernels
from .._numerics import as_float
from .._types import Key
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..machines import fixed_size
from ..prototypes import renyi, stratified, uniform
from ..scaling import standardize
from . import search
from .cross_validation import Metric
from .folds import Folds, plain_folds, stratified_folds

Task = Literal["classification", "regression"]

KERNELS = {
    "rbf": kernels.RBF,
    "laplacian": kernels.Laplacian,
    "matern32": kernels.Matern32,
    "matern52": kernels.Matern52,
    "rational_quadratic": kernels.RationalQuadratic,
}
DEFAULT_C = np.geomspace(1e-2, 1e6, 25)
# The lengthscale is looked for within this factor of sqrt(d), the typical distance over sqrt(2) of
# two standardised points; both ends of every table's data set lie well inside.
LENGTHSCALE_FACTOR = 12.0


_COMPILE_EVENTS = (
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


class Trained(NamedTuple):
    """A tuned model and how it came about."""

    expansion: KernelExpansion  # takes raw inputs: the standardisation is part of it
    classes: np.ndarray | None  # sorted labels; f >= 0 decides for the second
    kernel: Kernel
    C: float
    cv_error: float
    metric: Metric
    tuning: search.Tuning
    fit: fixed_size.FixedSizeFit
    prototype_rows: np.ndarray  # rows of X, shape `m`
    seconds: dict[str, float]  # wall time by phase; "compile" is contained in the others

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Class labels, or values of the regression, at raw inputs of shape `n d`."""
        values = np.asarray(self.expansion(as_float(X)))
        if self.classes is None:
            return values
        return self.classes[(values >= 0).astype(int)]


def train(
    X: ArrayLike,
    y: ArrayLike,
    *,
    task: Task,
    key: Key,
    n_prototypes: int = 200,
    kernel: str | Kernel = "rbf",
    selection: Literal["renyi", "uniform"] = "renyi",
    folds: int | Folds = 10,
    metric: Metric | None = None,
    search_method: search.Method = "profile",
    max_evaluations: int | None = None,
    max_seconds: float = math.inf,
    C: Float[np.ndarray, " s"] = DEFAULT_C,
    weights: ArrayLike | None = None,
    progress: search.Progress | None = None,
    history: list[search.Evaluation] | None = None,
) -> Trained:
    """Standardise, choose prototypes, tune by cross-validation, fit (De Brabanter 2010, Alg. 5).

    Args:
        X: inputs in raw units, shape `n d`; no NaN or infinity.
        y: two classes of any label type, or real targets; shape `n`.
        task: "classification" or "regression".
        key: decides prototypes, folds and search; the same key gives the same model.
        n_prototypes: `m`, at most n.
        kernel: a name ("rbf", "laplacian", "matern32", "matern52", "rational_quadratic", "linear",
            "polynomial"), or a kernel whose positive leaves are tuned within a factor of
            `LENGTHSCALE_FACTOR` of their values, in standardised units.
        selection: "renyi" (Algorithm 1, stratified by class) or "uniform".
        folds: their number (stratified for classification), or the caller's own.
        metric: what is minimised; "misclassification" or "mse" by default.
        search_method: "profile", all `C` at once for each kernel, or "csa", the paper's; see
            `tune`.
        max_evaluations: by default 10 kernels for "profile", 160 points for "csa"; see `tune`.
        max_seconds: no evaluation starts later.
        C: grid (or range) of the weight of the data-fit term.
        weights: row weights, shape `n`.
        progress: called with (done, planned, best score) after each evaluation.
        history: `Trained.tuning.history` of a stopped search, to go on from; see `tune`.

    Ctrl-C during tuning keeps the best result so far (`tuning.stopped` says "interrupted").

    Raises:
        ValueError: for anything wrong with the data or the sizes, before any work is done.
    """
    seconds: dict[str, float] = {}
    with _compile_clock(seconds):
        Xa, ya, wa, classes = _check(X, y, task, n_prototypes, weights)
        prototype_key, fold_key, search_key = jax.random.split(key, 3)
        template = make_kernel(kernel, Xa.shape[1])
        n = Xa.shape[0]
        if isinstance(folds, Folds):
            table = folds
        elif classes is None:
            table = plain_folds(fold_key, n, folds)
        else:
            table = stratified_folds(fold_key, (ya > 0).astype(jnp.int32), folds)

        with _clock(seconds, "prototypes"):
            scaling = standardize(Xa, wa)
            Z = scaling.apply(Xa)
            if isinstance(template, kernels.Linear):
                rows = np.arange(min(n_prototypes, n))  # the linear machine is solved in the primal
            elif selection == "renyi":
                labels = None if classes is None else np.asarray(ya)
                rows = np.asarray(renyi(prototype_key, Z, n_prototypes, labels=labels).indices)
            elif classes is None:
                rows = np.asarray(uniform(prototype_key, n, n_prototypes))
            else:
                rows = np.asarray(stratified(prototype_key, np.asarray(ya), n_prototypes))
            chosen = Z[rows]

        metric = metric or ("mse" if classes is None else "misclassification")
        problem = search.problem(template, chosen, Z, ya, table, wa)
        middle = np.asarray(search.start_of(problem), float)
        span = math.log(LENGTHSCALE_FACTOR)
        with _clock(seconds, "tuning"):
            tuned = search.tune(
                problem,
                key=search_key,
                metric=metric,
                low=middle - span,
                high=middle + span,
                C=np.asarray(C),
                method=search_method,
                max_evaluations=max_evaluations,
                max_seconds=max_seconds,
                progress=progress,
                history=history,
            )
        with _clock(seconds, "fit"):
            fitted = jax.block_until_ready(_fit(problem, tuned))
    expansion = KernelExpansion(
        fitted.expansion.kernel,
        fitted.expansion.prototypes,
        fitted.expansion.coefficients,
        fitted.expansion.intercept,
        scaling,
    )
    return Trained(
        expansion=expansion,
        classes=classes,
        kernel=tuned.kernel,
        C=tuned.C,
        cv_error=tuned.score,
        metric=metric,
        tuning=tuned,
        fit=fitted,
        prototype_rows=rows,
        seconds=seconds,
    )


def _fit(problem: search.Problem, tuned: search.Tuning) -> fixed_size.FixedSizeFit:
    X, y, weights = problem.X, problem.y, problem.weights
    if isinstance(tuned.kernel, kernels.Linear):
        phi = search.feature_map(tuned.kernel, problem.prototypes)
        return fixed_size.fit_features(phi, tuned.C, X, y, weights)
    return fixed_size.fit(tuned.kernel, problem.prototypes, tuned.C, X, y, weights)


def make_kernel(kernel: str | Kernel, d: int) -> Kernel:
    """A kernel by name, with the scale that standardised inputs of `d` columns ask for."""
    if isinstance(kernel, Kernel):
        return kernel
    if kernel in KERNELS:
        return KERNELS[kernel](math.sqrt(d))
    if kernel == "linear":
        return kernels.Linear()
    if kernel == "polynomial":
        return kernels.Polynomial(3, 1.0 / d, 1.0)
    names = [*KERNELS, "linear", "polynomial"]
    raise ValueError(f"kernel: expected one of {', '.join(names)} or a Kernel, got {kernel!r}")


def _check(
    X: ArrayLike, y: ArrayLike, task: Task, m: int, weights: ArrayLike | None
) -> tuple[Array, Array, Array | None, np.ndarray | None]:
    if task not in ("classification", "regression"):
        raise ValueError(f"task: expected 'classification' or 'regression', got {task!r}")
    Xa, labels = as_float(X), np.asarray(y)
    if labels.ndim != 1:
        raise ValueError(f"y: expected shape (n,), got {labels.shape}")
    classes = None
    if task == "classification":
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise ValueError("y: expected class labels, got NaN or infinity among them")
        classes = np.unique(labels)
        if len(classes) != 2:
            raise ValueError(
                f"y: expected two classes, got {len(classes)}: {classes[:10].tolist()}"
            )
        labels = np.where(labels == classes[1], 1.0, -1.0)
    elif labels.dtype.kind not in "fiub":
        raise ValueError(f"y: expected numbers for regression, got dtype {labels.dtype}")
    ya = jnp.asarray(labels, Xa.dtype)
    wa = None if weights is None else jnp.asarray(weights, Xa.dtype)
    fixed_size.check_problem(None, 1.0, Xa, ya, wa)
    if not 1 <= m <= Xa.shape[0]:
        raise ValueError(
            f"n_prototypes: expected between 1 and the number of rows ({Xa.shape[0]}), got {m}"
        )
    return Xa, ya, wa, classes


@contextmanager
def _clock(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = time.perf_counter() - start


@contextmanager
def _compile_clock(seconds: dict[str, float]) -> Iterator[None]:
    """Add up what JAX reports of lowering and compiling (nested tracing would count twice)."""

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event in _COMPILE_EVENTS:
            seconds["compile"] = seconds.get("compile", 0.0) + duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    seconds["compile"] = 0.0
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
