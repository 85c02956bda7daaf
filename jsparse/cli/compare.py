"""Compare all methods on one table: errors, prototypes, times, and the error-versus-size figure."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from jax.errors import JaxRuntimeError

from .. import _status
from ..kernels import RBF
from ..machines import METHODS, Method, Robust
from ..machines.method import Shape, replaced
from ..search.strategies import Profile
from ..serialization import check_writable
from ..training.choices import template_of
from ..training.settings import Resources
from ..training.train import train
from ..training.trained import Trained
from . import report
from .comparison import SVM, Comparison, LeftOut, Line, print_header, print_line, print_notes
from .interrupts import Interrupts, Result

# Errors that stop one method but not the comparison.
_METHOD_ERRORS = (ValueError, _status.NumericalError, MemoryError, JaxRuntimeError)
SVM_ROWS = 3000  # the SVM computes the kernel of all pairs of rows


class _Task(NamedTuple):
    """The data and settings that every method gets."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    classification: bool
    max_prototypes: int | None
    max_evaluations: int | None
    seed: int
    codes: tuple[int, ...] = ()  # columns that hold numbers of categories
    max_seconds: float = math.inf

    @property
    def metric(self) -> str:
        return "misclassification" if self.classification else "mean squared error"

    def error(self, predicted: np.ndarray) -> float:
        if self.classification:
            return float(np.mean(predicted != self.y_test))
        return float(np.mean(np.square(predicted - self.y_test)))


def run(
    X: np.ndarray,
    y: np.ndarray,
    task: str,
    *,
    methods: Sequence[str] | None = None,
    codes: tuple[int, ...] = (),
    test: float,
    max_prototypes: int | None,
    max_evaluations: int | None,
    max_seconds: float = math.inf,
    seed: int,
    folder: Path,
    quiet: bool,
    interrupts: Interrupts,
) -> Comparison:
    """Split the rows, run every method, print the table, write `compare.png` and `compare.svg`.

    A method's line is printed to standard output as soon as the method is trained; progress goes to
    standard error. Ctrl-C ends the comparison: the running method keeps its best result so far, and
    the names of the remaining methods are printed.

    The options of `jsparse compare` explain the arguments. `task` is "classification" or
    "regression", and `codes` are the columns of `X` that hold numbers of categories. If
    `max_prototypes` is None, the methods have their default limits. A line with more prototypes has
    a mark: its method has no limit, or one for each class.

    Raises:
        ValueError: for a share of test rows that leaves one side empty, or if no method suits the
            rows.
        NumericalError: if every method fails; if the first of them fails with another error, this
            error is raised instead.
        ImportError: if matplotlib is missing, before any work.
        OSError: if the folder cannot be written to, before any work.
        KeyboardInterrupt: at Ctrl-C, if there is no line yet.
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
    training, testing = _split(y, test, task == "classification", seed)
    data = _Task(
        X[training], y[training], X[testing], y[testing], task == "classification", max_prototypes,
        max_evaluations, seed, codes, max_seconds,
    )  # fmt: skip
    names, left_out = _suitable_methods(data, methods)
    print_header(len(data.X), len(data.X_test), data.metric)
    lines, trained = _lines(data, names, left_out, quiet, interrupts)
    interrupts.mark_handled()
    result = Comparison([*lines, _constant(data)], left_out)
    with interrupts.delayed():
        print_line(result.lines[-1])
        peer = "SCDP's kernel" if "scdp" in trained else "its default width"
        print_notes(result, max_seconds, peer)
        _figure(trained.get("scdp"), data, result.lines, folder)
        interrupts.result = Result(
            0 if result.trusted else 3, f"the figures are in {str(folder)!r}"
        )
    print(f"figure: {figures[0]}, {figures[1]}")
    return result


def _suitable_methods(data: _Task, names: Sequence[str] | None) -> tuple[list[str], list[LeftOut]]:
    """Return the methods to run, in the registry's order, and the methods unsuited to the rows."""
    reasons = {name: _reason_against(method, data) for name, method in METHODS.items()}
    reasons["svm"] = _reason_against_svm(data)
    requested = {name: why for name, why in reasons.items() if names is None or name in names}
    if names is not None and None not in requested.values():
        reason = "; ".join(f"{name}: {why}" for name, why in requested.items())
        raise ValueError(f"--methods: expected one that suits the rows; {reason}")
    left_out = [LeftOut(_title(name), why) for name, why in requested.items() if why is not None]
    return [name for name, why in requested.items() if why is None], left_out


def _title(name: str) -> str:
    return SVM if name == "svm" else METHODS[name].title


def _lines(
    data: _Task, names: list[str], left_out: list[LeftOut], quiet: bool, interrupts: Interrupts
) -> tuple[list[Line], dict[str, Trained]]:
    """Train the methods one after another, and print the line of each as soon as it is trained.

    Return the lines, and the trained models by name. Methods without a line join `left_out`.

    Raises:
        KeyboardInterrupt: at Ctrl-C, if there is no line yet.
    """
    lines: list[Line] = []
    trained: dict[str, Trained] = {}
    remaining = dict.fromkeys(names)
    try:
        for number, name in enumerate(names, 1):
            interrupts.check()
            what = f"{number} of {len(names)}: {_title(name)}"
            with report.progress(quiet=quiet, method=what) as show:
                outcome = _attempt(name, data, trained, show, interrupts)
            del remaining[name]
            if isinstance(outcome, LeftOut):
                left_out.append(outcome)
                continue
            lines.append(outcome)
            print_line(outcome)
            if outcome.stopped == "interrupted":
                break
    except KeyboardInterrupt:
        if not lines:
            raise
    left_out += [LeftOut(_title(name), "interrupted") for name in remaining]
    errors = [method.error for method in left_out if method.error is not None]
    if not lines and errors:
        raise errors[0]
    return lines, trained


def _attempt(
    name: str,
    data: _Task,
    trained: dict[str, Trained],
    show: Callable[[int, int, float], None] | None,
    interrupts: Interrupts,
) -> Line | LeftOut:
    """Train a method, add it to `trained`, and return its line, or the reason for having none."""

    def progress(completed: int, planned: int, best: float) -> None:
        if show is not None:
            show(completed, planned, best)
        interrupts.check()

    try:
        if name == "svm":
            return _svm(data, trained.get("scdp"))
        trained[name], line = _trained(METHODS[name], data, progress)
        return line
    except Exception as error:
        interrupts.check()  # an interrupt within the compiler may become another error
        if not isinstance(error, _METHOD_ERRORS):
            raise
        reason = str(error).splitlines()[0] if str(error) else "out of memory"
        return LeftOut(_title(name), reason, error)


def _reason_against(method: type[Method], data: _Task) -> str | None:
    """Return why a method does not suit these rows; None if it does."""
    task = "classification" if data.classification else "regression"
    if task not in method.tasks:
        return f"it is for {' and '.join(method.tasks)}"
    if method is Robust and data.classification:
        return "it is for outliers among numbers"
    if method.max_rows is not None and len(data.X) > method.max_rows:
        return f"more than {method.max_rows} rows"
    return None


def _reason_against_svm(data: _Task) -> str | None:
    """Return why scikit-learn's SVM does not suit these rows; None if it does."""
    if len(data.X) > SVM_ROWS:
        return f"more than {SVM_ROWS} rows"
    if data.codes:
        return "it has no kernel that compares categories"
    if data.classification and np.unique(data.y, return_counts=True)[1].min() < 2:
        return "a class has one row to train on, too few to choose C by folds"
    return None


def _trained(
    method: type[Method], data: _Task, progress: Callable[[int, int, float], None]
) -> tuple[Trained, Line]:
    """Train a method with default settings and the options' limits; return model and line."""
    search = Profile(max_evaluations=data.max_evaluations)
    start = time.perf_counter()
    trained = train(
        data.X,
        data.y,
        task="classification" if data.classification else "regression",
        key=data.seed,
        method=_limited(method, data),
        kernel=template_of("rbf", data.X.shape[1], search, data.codes) if data.codes else "rbf",
        search=search,
        resources=Resources(max_seconds=data.max_seconds),
        progress=progress,
    )
    seconds = time.perf_counter() - start
    for what, status in trained.statuses.items():
        _status.check(status, what)
    line = _line(data, method.title, trained.predict, trained.model.size, seconds)
    status = max(trained.statuses.values())
    return trained, line._replace(status=status, stopped=trained.tuning.stopped)


def _limited(method: type[Method], data: _Task) -> Method:
    """Return the method with default settings, limited to `data.max_prototypes` if it can be."""
    defaults, most = method(), data.max_prototypes
    if most is None:
        return defaults
    if "max_prototypes" in {field.name for field in dataclasses.fields(method)}:
        return replaced(defaults, max_prototypes=most)
    n, d = data.X.shape
    classes = len(np.unique(data.y)) if data.classification else None
    resolved = defaults.resolve(Shape(n, n, n, d, classes, linear=False))
    try:
        limited = resolved.limited(max(most, classes or 1))  # at least one for each class
    except ValueError:  # the method has no such limit; its line gets a mark
        return defaults
    return defaults if limited == resolved else limited


def _split(
    y: np.ndarray, test: float, stratified: bool, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the training and of the test rows, chosen at random.

    If the split is `stratified`, each class has a training row.
    """
    n, cut = len(y), round(test * len(y))
    if cut < 1 or n - cut < 3:
        raise ValueError(f"--test: expected rows on both sides, got {cut} of {n}")
    random = np.random.default_rng(seed)
    order = random.permutation(n)
    if not stratified:
        return order[cut:], order[:cut]
    # Random rank of a row within its class, from 0 to 1. The last row of a class is for training.
    rank = np.empty(n)
    labels = np.unique(y)
    if n - cut < len(labels):
        raise ValueError(
            f"--test: expected rows of all {len(labels)} classes to train on, got {n - cut} rows"
        )
    for label in labels:
        rows = order[y[order] == label]
        rank[rows] = (np.arange(len(rows)) + random.uniform(size=len(rows))) / len(rows)
        rank[rows[-1]] = np.inf
    order = order[np.argsort(rank[order], kind="stable")]
    return order[cut:], order[:cut]


def _line(
    data: _Task,
    name: str,
    predict: Callable[[Any], np.ndarray],
    prototypes: int,
    seconds: float,
) -> Line:
    """Return a method's line: its test error, and the median time to predict a thousand rows."""
    predicted = predict(data.X_test)
    rows = np.resize(data.X_test, (1000, data.X_test.shape[1]))
    predict(rows)  # compile
    durations = []
    for _ in range(5):
        start = time.perf_counter()
        predict(rows)
        durations.append(time.perf_counter() - start)
    limit = math.inf if data.max_prototypes is None else data.max_prototypes
    return Line(
        name, data.error(predicted), prototypes, seconds, float(np.median(durations)),
        over_limit=prototypes > limit,
    )  # fmt: skip


def _svm(data: _Task, scdp: Trained | None) -> Line:
    """Train scikit-learn's SVM and return its line; SCDP's kernel, if known; C by up to 5 folds."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC, SVR

    smallest = len(data.y)  # number of rows of the smallest class
    if data.classification:
        smallest = int(np.unique(data.y, return_counts=True)[1].min())
    gamma: Any = "scale"
    if scdp is not None:
        assert isinstance(scdp.kernel, RBF)
        gamma = float(1 / (2 * np.square(np.asarray(scdp.kernel.lengthscale))))
    if data.classification:
        machine, prefix = make_pipeline(StandardScaler(), SVC(gamma=gamma)), "svc"
    else:
        # The default width of the insensitive tube suits targets of scale one.
        machine = make_pipeline(StandardScaler(), SVR(gamma=gamma))
        machine = TransformedTargetRegressor(machine, transformer=StandardScaler())
        prefix = "regressor__svr"
    grid = {f"{prefix}__C": np.array([0.1, 1.0, 10.0, 100.0])}
    model = GridSearchCV(machine, grid, cv=min(5, smallest))
    start = time.perf_counter()
    model.fit(data.X, data.y)
    seconds = time.perf_counter() - start
    best: Any = model.best_estimator_
    fitted = best if data.classification else best.regressor_
    return _line(data, SVM, model.predict, len(fitted[-1].support_), seconds)


def _constant(data: _Task) -> Line:
    """Return the line of the constant model, whose error every method should beat."""
    if data.classification:
        labels, counts = np.unique(data.y, return_counts=True)
        value = labels[np.argmax(counts)]
    else:
        value = data.y.mean()
    predicted = np.full(len(data.y_test), value)
    return Line("constant", data.error(predicted), 0, 0.0, 0.0)


def _figure(scdp: Trained | None, data: _Task, lines: list[Line], folder: Path) -> None:
    """Write the error-versus-size figure of the lines, and of SCDP's path if it was trained.

    The last line is the constant model's.
    """
    from .. import plotting

    *machines, constant = [
        plotting.Machine(line.name, line.prototypes, line.error) for line in lines
    ]
    if scdp is None:
        axes = plotting.comparison(machines, error=data.metric, baseline=constant)
        figure = cast(Any, axes.figure)
    else:
        assert scdp.curve is not None
        longest = len(scdp.curve.sizes)
        sizes = sorted({*np.unique(np.geomspace(1, longest, 40).astype(int)), scdp.curve.size})
        errors = np.array([data.error(scdp.at(int(k)).predict(data.X_test)) for k in sizes])
        figure = plotting.compared(
            scdp, machines, constant, error=data.metric, path=(np.array(sizes), errors)
        )
    figure.savefig(folder / "compare.png", dpi=120)
    figure.savefig(folder / "compare.svg")
