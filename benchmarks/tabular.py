"""Errors on tables, compared with other learners."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.svm import SVC, SVR

import jsparse

from .data_sets import benchmark_set
from .report import Report, save, saved_data

SETS = (
    "boston", "concrete", "istanbul", "abalone", "pima", "ida_german", "ida_image", "ida_splice",
    "spambase", "satellite", "pendigits", "magic", "adult",
)  # fmt: skip
QUICK = ("boston", "concrete", "istanbul", "pima")
LARGE_SETS = SETS[7:]
SPLITS, LARGE_SPLITS = 5, 2
MOST_ROWS, MOST_TEST_ROWS = 6000, 10000
SMALL, LARGE, FEW = 500, 2000, 200


class Split(NamedTuple):
    """Training and test rows; the training rows standardise the inputs."""

    task: str
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    def error(self, predicted: np.ndarray) -> float:
        """Return the mean squared error of standardised targets, or the share of wrong classes."""
        if self.task == "classification":
            return float(np.mean(predicted != self.y_test))
        return float(np.mean((predicted - self.y_test) ** 2))


def split(name: str, number: int) -> Split:
    """Return a split with three quarters for training, at most `MOST_ROWS`; encode categories."""
    data = benchmark_set(name, complete=name == "adult")
    codes = data.X[:, data.categorical].T
    columns = [data.X[:, ~data.categorical], *[c[:, None] == np.unique(c) for c in codes]]
    X, y = np.concatenate(columns, axis=1), np.asarray(data.y)
    order = np.random.default_rng([2026, number]).permutation(len(X))
    train = order[: min(MOST_ROWS, 3 * len(X) // 4)]
    test = order[len(train) :][:MOST_TEST_ROWS]
    spread = X[train].std(axis=0)
    X = (X - X[train].mean(axis=0)) / np.where(spread > 0, spread, 1)
    if data.task == "regression":
        y = ((y - y[train].mean()) / y[train].std()).astype(np.float32)
    X = X.astype(np.float32)
    return Split(data.task, X[train], y[train], X[test], y[test])


def ours(
    search: Any,
    prototypes: int,
    tuned_with: int | None = None,
    kernel: str = "rbf",
) -> Callable[[Split], dict[str, Any]]:
    """Return a learner: a fixed-size machine in float32, tuned with `tuned_with` prototypes."""

    def run(part: Split) -> dict[str, Any]:
        m = min(prototypes, len(part.X) // 2)
        if tuned_with is not None:
            m = min(prototypes, len(part.X))
        with_few = None if tuned_with is None or m <= tuned_with else tuned_with
        method = jsparse.FixedSize(m, tuned_with=with_few)
        trained = jsparse.train(
            part.X, part.y, task=part.task, method=method, search=search, kernel=kernel, key=0
        )
        return result(part, trained)

    return run


def without_options(part: Split) -> dict[str, Any]:
    """Train with the settings that the library chooses; keep the model for `distilled`."""
    trained = jsparse.train(part.X, part.y, task=part.task, key=0)
    LAST[:] = [trained]
    return result(part, trained)


def distilled(part: Split) -> dict[str, Any]:
    """Select few of the prototypes of the machine that `without_options` trained last."""
    large = LAST.pop()
    method = jsparse.SCDP(max_prototypes=min(FEW, large.model.size, len(part.X) // 2))
    return result(part, jsparse.distil(large, part.X, part.y, key=0, method=method))


def result(part: Split, trained: jsparse.Trained) -> dict[str, Any]:
    """Return the test error, the times and the settings of a trained model."""
    compiled = trained.seconds["compile"]
    return {
        "error": part.error(trained.predict(part.X_test)),
        "seconds": trained.seconds["total"] - compiled,
        "compile": compiled,
        "prototypes": trained.model.size,
        "cv_error": trained.cv_error,
        "kernel": type(trained.kernel).__name__,
        "columns": type(trained.model.expansion.scaling).__name__,
    }


def peer(make: Callable[[Split], Any]) -> Callable[[Split], dict[str, Any]]:
    """Return a learner: an estimator with scikit-learn's interface."""

    def run(part: Split) -> dict[str, Any]:
        begin = time.perf_counter()
        model = make(part).fit(part.X, part.y)
        seconds = time.perf_counter() - begin
        return {"error": part.error(model.predict(part.X_test)), "seconds": seconds}

    return run


def _boosting(part: Split) -> Any:
    if part.task == "classification":
        return HistGradientBoostingClassifier(random_state=0)
    return HistGradientBoostingRegressor(random_state=0)


def _grid(part: Split) -> Any:
    scale = 1 / part.X.shape[1]
    grid = {"C": [0.3, 3, 30, 300], "gamma": [scale * f for f in (0.03, 0.1, 0.3, 1, 3)]}
    model = SVC(cache_size=500) if part.task == "classification" else SVR(cache_size=500)
    return GridSearchCV(model, grid, cv=3)


def _lightgbm(part: Split) -> Any:
    import lightgbm

    kinds = {"classification": lightgbm.LGBMClassifier, "regression": lightgbm.LGBMRegressor}
    return kinds[part.task](random_state=0, verbose=-1)


def _tuned_lightgbm(part: Split) -> Any:
    space = {
        "num_leaves": [7, 15, 31, 63, 127],
        "learning_rate": [0.02, 0.05, 0.1, 0.2],
        "n_estimators": [100, 200, 400, 800],
        "min_child_samples": [5, 10, 20, 50],
        "subsample": [0.6, 0.8, 1.0],
        "subsample_freq": [1],
        "colsample_bytree": [0.5, 0.75, 1.0],
        "reg_lambda": [0.0, 0.1, 1.0, 10.0],
    }
    return RandomizedSearchCV(_lightgbm(part), space, n_iter=30, cv=3, random_state=0)


class _XRFM:
    """xRFM at its defaults, with a fifth of the rows for validation."""

    def __init__(self, part: Split) -> None:
        from xrfm import xRFM

        self.task, self.model = part.task, xRFM(verbose=False, random_state=0)

    def fit(self, X: np.ndarray, y: np.ndarray) -> "_XRFM":
        self.classes, numbers = np.unique(y, return_inverse=True)
        y = y[:, None] if self.task == "regression" else numbers.astype(np.int64)
        n = 4 * len(X) // 5
        self.model.fit(X[:n], y[:n], X[n:], y[n:])
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        values = np.asarray(self.model.predict(X)).reshape(len(X), -1)[:, 0]
        return values if self.task == "regression" else self.classes[values.astype(int)]


LAST: list[jsparse.Trained] = []  # the large machine that the next learner distils
Ways = dict[str, Callable[[Split], dict[str, Any]]]
ONE, DEFAULT = "one lengthscale, 500", "train without options"
DISTILLED = f"distilled from it, at most {FEW}"
WAYS: Ways = {
    ONE: ours(jsparse.Profile(), SMALL),
    "gradient, 500": ours(jsparse.Gradient(), SMALL),
    "auto, 500": ours("auto", SMALL, None, "auto"),
    "auto, 500, then 2000": ours("auto", LARGE, SMALL, "auto"),
    DEFAULT: without_options,
    DISTILLED: distilled,
    "LightGBM": peer(_lightgbm),
    "LightGBM, 30 settings": peer(_tuned_lightgbm),
    "xRFM": peer(_XRFM),
    "HistGradientBoosting": peer(_boosting),
    "SVC or SVR, grid": peer(_grid),
}


def run(*, quick: bool, out: Path) -> Report:
    """Run all learners; resume from the results of an interrupted run."""
    data = saved_data(out, "tabular", quick=quick)
    sets = QUICK if quick else SETS
    report = _report(data, sets, WAYS)
    for number in range(LARGE_SPLITS if quick else SPLITS):
        for name in sets:
            if name in LARGE_SETS and number >= LARGE_SPLITS:
                continue
            part = None
            for way, fit in WAYS.items():
                place = f"{name}/{number}/{way}"
                if place in data:
                    continue
                part = split(name, number) if part is None else part
                if way == DISTILLED and not LAST:  # an earlier run trained the large machine
                    without_options(part)
                try:
                    data[place] = fit(part)
                except ImportError as error:  # a learner that is not installed
                    print(place, error, file=sys.stderr, flush=True)
                    continue
                print(place, data[place], file=sys.stderr, flush=True)
                report = _report(data, sets, WAYS)
                save(out, "tabular", report, quick=quick)
    return report


def _report(data: dict[str, Any], sets: tuple[str, ...], ways: Ways) -> Report:
    rows: list[list[Any]] = []
    runs_of = {
        way: {name: [one for place, one in data.items() if _is(place, name, way)] for name in sets}
        for way in ways
    }
    means = {
        way: {name: float(np.mean([r["error"] for r in runs])) for name, runs in of.items() if runs}
        for way, of in runs_of.items()
    }
    measured = [way for way in ways if means[way]]
    common = [name for name in sets if all(name in means[way] for way in measured)]
    ranks = {
        way: [1 + sum(means[o][name] < means[way][name] for o in measured) for name in common]
        for way in measured
    }
    for way in measured:
        runs = [run for of in runs_of[way].values() for run in of]
        both = [name for name in means[way] if name in means[ONE]]
        ratios = [means[way][name] / means[ONE][name] for name in both]
        rows.append(
            [
                way,
                len(runs),
                *(f"{means[way][name]:.4f}" if name in means[way] else "" for name in sets),
                f"{np.mean(ranks[way]):.1f}" if common else "",
                f"{np.mean(ratios):.2f} ({np.max(ratios):.2f})" if ratios else "",
                f"{np.median([run['seconds'] for run in runs]):.1f}",
                _median(runs, "compile"),
                _median(runs, "prototypes"),
            ]
        )
    return Report(
        "Errors on tables beside other learners",
        [
            "learner", "runs", *sets, "mean rank", "ratio to one lengthscale (largest)", "seconds",
            "compile", "prototypes",
        ],
        rows,
        [
            "Mean over splits of the mean squared error in units of the training targets' "
            "variance, or of the share of wrong classes. Splits: "
            + ", ".join(f"{name} {len(runs)}" for name, runs in runs_of[ONE].items())
            + f". Training rows: three quarters, at most {MOST_ROWS}. Categories are indicators "
            "for all.",
            "Ours in float32, key 0; seconds are the median without compilation, which the next "
            "column has. LightGBM's settings by three inner folds; xRFM at its defaults, a fifth "
            "of the rows to validate on. The distilled machine is selected by SCDP in float64; its "
            "seconds are those after the large machine's. Ranks are over the sets that all "
            "learners have done.",
        ],
        data,
    )  # fmt: skip


def _is(place: str, name: str, way: str) -> bool:
    set_name, _, learner = place.split("/", 2)
    return set_name == name and learner == way


def _median(runs: list[dict[str, Any]], what: str) -> str:
    values = [run[what] for run in runs if what in run]
    return f"{np.median(values):.0f}" if values else ""
