"""All methods on one table: errors, prototypes, times, and the error-versus-size figure."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import _status
from ..kernels import RBF
from ..machines import METHODS, Method, Robust
from ..search.strategies import Profile
from ..serialization import check_writable
from ..training.train import train
from ..training.trained import Trained
from . import report

SVM_ROWS = 3000  # it looks at all pairs of rows


class Line(NamedTuple):
    """One method's row of the table."""

    name: str
    error: float
    prototypes: int
    fit_seconds: float
    predict_seconds: float  # of a thousand rows
    status: int = _status.CONVERGED

    @property
    def trusted(self) -> bool:
        """False if digits were lost, or steps ran out."""
        return _status.trusted(self.status)


class _LeftOut(NamedTuple):
    name: str
    why: str


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
    """Split the rows, run every method, print the table, write `compare.png` and `compare.svg`.

    Raises:
        ValueError: for a share of test rows that leaves one side empty.
        ImportError: without matplotlib, before any work.
        OSError: if the folder cannot be written to, before any work.
    """
    if not 0 < test < 1:
        raise ValueError(f"--test: expected a share between 0 and 1, got {test}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'jsparse[cli]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    figures = folder / "compare.png", folder / "compare.svg"
    for figure in figures:
        check_writable(figure)
    rows, out = _split(y, test, task == "classification", seed)
    given = _Task(
        X[rows], y[rows], X[out], y[out], task == "classification", max_prototypes, max_evaluations,
        seed,
    )  # fmt: skip
    with report.progress(quiet=quiet) as show:

        def progress(done: int, planned: int, best: float) -> None:
            if show is not None:
                show(done, planned, best)
            check()

        lines, left_out, trained = [], [], {}
        for name, method in METHODS.items():
            check()
            why = _unsuited(method, given)
            if why is not None:
                left_out.append(_LeftOut(method.title, why))
                continue
            trained[name], line = _trained(method, given, progress)
            lines.append(line)
    path = trained["scdp"]
    svm = _svm(given, path)
    (lines if isinstance(svm, Line) else left_out).append(svm)
    lines.append(_constant(given))
    _print(given, lines, left_out)
    _figure(path, given, lines, folder)
    print(f"figure: {figures[0]}, {figures[1]}")
    return lines


def _unsuited(method: type[Method], given: _Task) -> str | None:
    """Why a method is not for these rows."""
    task = "classification" if given.classification else "regression"
    if task not in method.tasks:
        return f"it is for {' and '.join(method.tasks)}"
    if method is Robust and given.classification:
        return "it is for outliers among numbers"
    if method.most_rows is not None and len(given.X) > method.most_rows:
        return f"more than {method.most_rows} rows"
    return None


def _trained(
    method: type[Method], given: _Task, progress: Callable[[int, int, float], None]
) -> tuple[Trained, Line]:
    """A method with its default settings, but for the sizes asked for."""
    n, settings = len(given.X), {}
    names = {field.name: field.default for field in dataclasses.fields(method)}
    if "max_prototypes" in names and given.max_prototypes is not None:
        settings["max_prototypes"] = given.max_prototypes
    if names.get("n_prototypes") is not None:  # else the method finds a number of its own
        kinds = len(np.unique(given.y)) if given.classification else 1
        settings["n_prototypes"] = max(kinds, min(300, method.usual_prototypes, -(-n // 3)))
    start = time.perf_counter()
    trained = train(
        given.X,
        given.y,
        task="classification" if given.classification else "regression",
        key=given.seed,
        method=method(**settings),
        search=Profile(max_evaluations=given.max_evaluations),
        folds=min(10, n),
        progress=progress,
    )
    seconds = time.perf_counter() - start
    for what, status in trained.statuses.items():
        _status.check(status, f"{method.title}, {what}")
    status = max(trained.statuses.values())
    line = _line(given, method.title, trained.predict, trained.model.size, seconds, status)
    return trained, line


def _split(y: np.ndarray, test: float, classes: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and to test on; of each class the same share, and one to train on."""
    n, cut = len(y), round(test * len(y))
    if cut < 1 or n - cut < 3:
        raise ValueError(f"--test: expected rows on both sides, got {cut} of {n}")
    random = np.random.default_rng(seed)
    order = random.permutation(n)
    if not classes:
        return order[cut:], order[:cut]
    place = np.empty(n)  # of a row within its class, from 0 to 1; the last trains
    labels = np.unique(y)
    if n - cut < len(labels):
        raise ValueError(
            f"--test: expected rows of all {len(labels)} classes to train on, got {n - cut} rows"
        )
    for label in labels:
        own = order[y[order] == label]
        place[own] = (np.arange(len(own)) + random.uniform(size=len(own))) / len(own)
        place[own[-1]] = np.inf
    order = order[np.argsort(place[order], kind="stable")]
    return order[cut:], order[:cut]


def _print(given: _Task, lines: list[Line], left_out: list[_LeftOut]) -> None:
    name = "misclassification" if given.classification else "mean squared error"
    print(f"{len(given.X)} rows to train on, {len(given.X_test)} to test on; error: {name}")
    print(f"{'method':<24}{'error':>10}{'prototypes':>12}{'fit s':>10}{'predict ms per 1000':>22}")
    for line in lines:
        print(
            f"{line.name:<24}{line.error:>10.4g}{line.prototypes:>12}{line.fit_seconds:>10.2f}"
            f"{1e3 * line.predict_seconds:>22.2f}{'' if line.trusted else ' *'}"
        )
    for status in sorted({line.status for line in lines if not line.trusted}):
        print(f"*: {_status.ADVICE[status]}")
    for name, why in left_out:
        print(f"without {name}: {why}")
    print(
        "fit: with tuning and compilation, but for scikit-learn's SVM, which takes SCDP's kernel "
        "and chooses C by five folds"
    )


def _line(
    given: _Task,
    name: str,
    predict: Callable[[Any], np.ndarray],
    prototypes: int,
    seconds: float,
    status: int = _status.CONVERGED,
) -> Line:
    predicted = predict(given.X_test)
    thousand = np.resize(given.X_test, (1000, given.X_test.shape[1]))
    predict(thousand)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        predict(thousand)
        taken.append(time.perf_counter() - start)
    return Line(name, given.error(predicted), prototypes, seconds, float(np.median(taken)), status)


def _svm(given: _Task, path: Trained) -> Line | _LeftOut:
    """scikit-learn's, with SCDP's kernel; C by five folds, or as many as the rows allow."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC, SVR

    name = "SVM (scikit-learn)"
    if len(given.X) > SVM_ROWS:
        return _LeftOut(name, f"more than {SVM_ROWS} rows")
    smallest = len(given.y)
    if given.classification:
        smallest = int(np.unique(given.y, return_counts=True)[1].min())
    if smallest < 2:
        return _LeftOut(name, "a class has one row to train on, too few to choose C by folds")
    assert isinstance(path.kernel, RBF)
    gamma: Any = float(1 / (2 * np.square(np.asarray(path.kernel.lengthscale))))
    if given.classification:
        machine, prefix = make_pipeline(StandardScaler(), SVC(gamma=gamma)), "svc"
    else:
        # The width of the tube is one for targets of scale one.
        machine = make_pipeline(StandardScaler(), SVR(gamma=gamma))
        machine = TransformedTargetRegressor(machine, transformer=StandardScaler())
        prefix = "regressor__svr"
    grid = {f"{prefix}__C": np.array([0.1, 1.0, 10.0, 100.0])}
    model = GridSearchCV(machine, grid, cv=min(5, smallest))
    start = time.perf_counter()
    model.fit(given.X, given.y)
    seconds = time.perf_counter() - start
    best: Any = model.best_estimator_
    fitted = best if given.classification else best.regressor_
    return _line(given, name, model.predict, len(fitted[-1].support_), seconds)


def _constant(given: _Task) -> Line:
    """What every method has to beat."""
    if given.classification:
        labels, counts = np.unique(given.y, return_counts=True)
        value = labels[np.argmax(counts)]
    else:
        value = given.y.mean()
    predicted = np.full(len(given.y_test), value)
    return Line("constant", given.error(predicted), 0, 0.0, 0.0)


def _figure(path: Trained, given: _Task, lines: list[Line], folder: Path) -> None:
    from .. import plotting

    assert path.curve is not None
    longest = len(path.curve.sizes)
    sizes = sorted({*np.unique(np.geomspace(1, longest, 40).astype(int)), path.curve.size})
    # The figure is in the error of the table; the curve of the tuning may be in another.
    errors = np.array([given.error(path.at(int(k)).predict(given.X_test)) for k in sizes])
    *machines, constant = [
        plotting.Machine(line.name, line.prototypes, line.error) for line in lines
    ]
    figure = plotting.compared(
        path,
        machines,
        constant,
        error="misclassification" if given.classification else "mean squared error",
        path=(np.array(sizes), errors),
    )
    figure.savefig(folder / "compare.png", dpi=120)
    figure.savefig(folder / "compare.svg")
