"""All methods on one table: errors, prototypes, times, and the error-versus-size figure."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..estimators import (
    FixedSizeLSSVMClassifier,
    FixedSizeLSSVMRegressor,
    LSSVMClassifier,
    LSSVMRegressor,
)
from ..kernels import RBF
from ..machines import spsvm
from ..tuning.sparse import TrainedPath, train_path
from . import report

# The LS-SVM in the dual and the SVM keep or look at all pairs of rows.
DENSE_ROWS = 3000


class Line(NamedTuple):
    """One method's row of the table."""

    name: str
    error: float
    prototypes: int
    fit_seconds: float
    predict_seconds: float  # of a thousand rows


class _Task(NamedTuple):
    """What every method is given."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    classification: bool
    max_prototypes: int | None
    max_evaluations: int | None
    seed: int

    def error(self, predicted: np.ndarray) -> float:
        if self.classification:
            return float(np.mean(predicted != self.y_test))
        return float(np.mean(np.square(predicted - self.y_test)))


def run(
    X: np.ndarray,
    y: np.ndarray,
    task: str,
    *,
    test: float,
    max_prototypes: int | None,
    max_evaluations: int | None,
    seed: int,
    folder: Path,
    quiet: bool,
    check: Callable[[], None],
) -> list[Line]:
    """Split the rows, run every method, print the table, write `compare.png` and `compare.svg`."""
    if not 0 < test < 1:
        raise ValueError(f"--test: expected a share between 0 and 1, got {test}")
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(seed).permutation(len(X))
    cut = round(test * len(X))
    rows, out = order[cut:], order[:cut]
    if cut < 1 or len(rows) < 3:
        raise ValueError(f"--test: expected rows on both sides, got {cut} of {len(X)}")
    given = _Task(
        X[rows], y[rows], X[out], y[out], task == "classification", max_prototypes, max_evaluations,
        seed,
    )  # fmt: skip
    with report.progress(quiet=quiet) as show:

        def progress(done: int, planned: int, best: float) -> None:
            if show is not None:
                show(done, planned, best)
            check()

        start = time.perf_counter()
        path = train_path(
            given.X,
            given.y,
            task=task,  # type: ignore[arg-type]
            key=jax.random.key(seed),
            max_prototypes=max_prototypes,
            max_evaluations=max_evaluations,
            progress=progress,
        )
        seconds = time.perf_counter() - start
    chosen = path.n_prototypes
    lines = [_line(given, "SCDP", path.predict, len(path.expansion.prototypes), seconds)]
    for method in (_fixed_size, _dual, _sparse_svm, _svm):
        check()
        found = method(given, path)
        if found is not None:
            lines.append(found)
    lines.append(_constant(given))
    name = "misclassification" if given.classification else "mean squared error"
    print(f"{len(rows)} rows to train on, {cut} to test on; error: {name}")
    print(f"{'method':<24}{'error':>10}{'prototypes':>12}{'fit s':>10}{'predict ms per 1000':>22}")
    for line in lines:
        print(
            f"{line.name:<24}{line.error:>10.4g}{line.prototypes:>12}{line.fit_seconds:>10.2f}"
            f"{1e3 * line.predict_seconds:>22.2f}"
        )
    print(
        "fit: with tuning and compilation, but for the SVMs, which take SCDP's kernel and choose C "
        "by five folds"
    )
    _figure(path, given, lines, folder, chosen)
    print(f"figure: {folder / 'compare.png'}, {folder / 'compare.svg'}")
    return lines


def _line(
    given: _Task, name: str, predict: Callable[[Any], np.ndarray], prototypes: int, seconds: float
) -> Line:
    predicted = predict(given.X_test)
    thousand = np.resize(given.X_test, (1000, given.X_test.shape[1]))
    predict(thousand)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        predict(thousand)
        taken.append(time.perf_counter() - start)
    return Line(name, given.error(predicted), prototypes, seconds, float(np.median(taken)))


def _fixed_size(given: _Task, path: TrainedPath) -> Line:
    kind = FixedSizeLSSVMClassifier if given.classification else FixedSizeLSSVMRegressor
    model = kind(random_state=given.seed, max_evaluations=given.max_evaluations)
    start = time.perf_counter()
    model.fit(given.X, given.y)
    seconds = time.perf_counter() - start
    return _line(given, "fixed-size LS-SVM", model.predict, len(model.prototypes_), seconds)


def _dual(given: _Task, path: TrainedPath) -> Line | None:
    if len(given.X) > DENSE_ROWS:
        return None
    kind = LSSVMClassifier if given.classification else LSSVMRegressor
    model = kind(random_state=given.seed, max_evaluations=given.max_evaluations)
    start = time.perf_counter()
    model.fit(given.X, given.y)
    seconds = time.perf_counter() - start
    return _line(given, "LS-SVM", model.predict, len(model.prototypes_), seconds)


def _sparse_svm(given: _Task, path: TrainedPath) -> Line | None:
    """The sparse SVM of as many prototypes as SCDP has; C by a hold-out of a fifth."""
    if not given.classification or path.classes is None or len(path.classes) > 2:
        return None
    Z = path.scaling.apply(jnp.asarray(given.X, path.scaling.shift.dtype))
    y = jnp.where(jnp.asarray(given.y == path.classes[1]), 1, -1).astype(Z.dtype)
    candidates, k, key = path.path.candidates, path.n_prototypes, jax.random.key(given.seed)
    subset = min(spsvm.SUBSET, len(candidates))
    options = {"key": key, "max_prototypes": k, "subset": subset}
    start = time.perf_counter()
    best, best_C, fifth = np.inf, 1.0, len(Z) // 5
    for C in (0.1, 1.0, 10.0, 100.0, 1000.0):
        found = spsvm.fit(path.kernel, candidates, C, Z[fifth:], y[fifth:], **options)
        wrong = float(jnp.mean((found.at(k)(Z[:fifth]) >= 0) != (y[:fifth] > 0)))
        if wrong < best:
            best, best_C = wrong, C
    model = spsvm.fit(path.kernel, candidates, best_C, Z, y, **options).at(k)
    seconds = time.perf_counter() - start
    classes = path.classes

    def predict(X: np.ndarray) -> np.ndarray:
        values = np.asarray(model(path.scaling.apply(jnp.asarray(X, Z.dtype))))
        return classes[(values >= 0).astype(int)]

    return _line(given, "sparse SVM", predict, k, seconds)


def _svm(given: _Task, path: TrainedPath) -> Line | None:
    """scikit-learn's, with SCDP's kernel; C by five folds."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC, SVR

    if len(given.X) > DENSE_ROWS:
        return None
    assert isinstance(path.kernel, RBF)
    gamma: Any = float(1 / (2 * np.square(np.asarray(path.kernel.lengthscale))))
    svm = SVC(gamma=gamma) if given.classification else SVR(gamma=gamma)
    name = type(svm).__name__.lower()
    scale = 1.0 if given.classification else float(np.std(given.y)) or 1.0
    grid = {f"{name}__C": scale * np.array([0.1, 1.0, 10.0, 100.0])}
    model = GridSearchCV(make_pipeline(StandardScaler(), svm), grid, cv=min(5, len(given.X)))
    start = time.perf_counter()
    model.fit(given.X, given.y)
    seconds = time.perf_counter() - start
    vectors = len(model.best_estimator_[-1].support_)
    return _line(given, "SVM (scikit-learn)", model.predict, vectors, seconds)


def _constant(given: _Task) -> Line:
    """What every method has to beat."""
    if given.classification:
        labels, counts = np.unique(given.y, return_counts=True)
        value = labels[np.argmax(counts)]
    else:
        value = given.y.mean()
    predicted = np.full(len(given.y_test), value)
    return Line("constant", given.error(predicted), 0, 0.0, 0.0)


def _figure(path: TrainedPath, given: _Task, lines: list[Line], folder: Path, chosen: int) -> None:
    from matplotlib.figure import Figure

    from .. import plotting

    sizes = sorted({*np.unique(np.geomspace(1, len(path.errors), 40).astype(int)), chosen})
    # The figure is in the error of the table; the curve of the tuning may be in another.
    errors = [given.error(path.predict(given.X_test, int(k))) for k in sizes]
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    plotting.error_curve(path, left)
    left.set_title("SCDP, cross-validated")
    right.plot(sizes, errors, label="SCDP")
    for line in lines:
        right.plot([max(line.prototypes, 1)], [line.error], "x", label=line.name)
    right.set_xscale("log")
    right.set_xlabel("prototypes")
    right.set_ylabel("misclassification" if given.classification else "mean squared error")
    right.set_title("rows held out")
    right.legend()
    figure.savefig(folder / "compare.png", dpi=120)
    figure.savefig(folder / "compare.svg")
