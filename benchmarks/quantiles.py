"""Quantile regression beside gradient boosting: pinball loss, coverage, crossings and seconds."""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.metrics import make_scorer, mean_pinball_loss
from sklearn.model_selection import GridSearchCV, KFold

import jsparse

from .report import Report
from .tabular import Split, split

SETS = ("boston", "concrete", "istanbul", "abalone")
QUANTILES = (0.1, 0.5, 0.9)
MOST_ROWS, PROTOTYPES = 1000, 60
KERNELS, FOLDS, SPLITS = 5, 4, 3
C = np.geomspace(1e-1, 1e3, 5)
LIGHTGBM = {"num_leaves": [4, 15, 31], "n_estimators": [50, 200]}
BOOSTING = {"max_depth": [2, 4], "n_estimators": [50, 200]}
Result = tuple[np.ndarray, dict[str, float]]  # predictions, shape `t 3`, and seconds


def ours(part: Split, number: int) -> Result:
    """Train one machine for all quantiles; return predictions of the test rows, and times."""
    trained = jsparse.train(
        part.X.astype(float),
        part.y.astype(float),
        task="regression",
        method=jsparse.Robust(PROTOTYPES, loss="quantile", quantile=QUANTILES),
        C=C,
        folds=FOLDS,
        search=jsparse.Profile(KERNELS),
        out_of_fold=False,
        key=number,
    )
    compilation, total = trained.seconds["compile"], trained.seconds["total"]
    seconds = {"run": total - compilation, "compile": compilation}
    return trained.predict(part.X_test.astype(float)), seconds


def lightgbm(q: float) -> Any:
    import lightgbm

    return lightgbm.LGBMRegressor(
        objective="quantile", alpha=q, learning_rate=0.05, random_state=0, n_jobs=1, verbose=-1
    )


def boosting(q: float) -> Any:
    return GradientBoostingRegressor(loss="quantile", alpha=q, learning_rate=0.05, random_state=0)


def peer(make: Callable[[float], Any], grid: dict[str, list[int]]) -> Callable[..., Result]:
    """Return a learner like `ours` that tunes and trains a machine for each quantile."""

    def run(part: Split, number: int) -> Result:
        folds = KFold(FOLDS, shuffle=True, random_state=number)
        start = time.perf_counter()
        columns = []
        for q in QUANTILES:
            scorer = make_scorer(mean_pinball_loss, greater_is_better=False, alpha=q)
            machine = GridSearchCV(make(q), grid, scoring=scorer, cv=folds)
            columns.append(machine.fit(part.X, part.y).predict(part.X_test))
        return np.stack(columns, axis=1), {"run": time.perf_counter() - start, "compile": 0.0}

    return run


MACHINES: dict[str, Callable[[Split, int], Result]] = {
    "Robust, quantile loss": ours,
    "LightGBM": peer(lightgbm, LIGHTGBM),
    "GradientBoosting": peer(boosting, BOOSTING),
}


def measure(name: str, number: int) -> dict[str, dict[str, float]]:
    """Return pinball losses, coverage, crossings and times of each machine on one split."""
    part = split(name, number)
    part = part._replace(X=part.X[:MOST_ROWS], y=part.y[:MOST_ROWS])
    results: dict[str, dict[str, float]] = {}
    for machine, train in MACHINES.items():
        values, seconds = train(part, number)
        truth = part.y_test
        losses = {
            f"pinball {q}": float(mean_pinball_loss(truth, f, alpha=q))
            for q, f in zip(QUANTILES, values.T, strict=True)
        }
        inside = (values[:, 0] <= truth) & (truth <= values[:, -1])
        crossing = np.any(np.diff(values, axis=1) < 0, axis=1)
        shares = {"inside": float(inside.mean()), "crossing": float(crossing.mean())}
        results[machine] = losses | shares | seconds
    print(name, number, results, file=sys.stderr, flush=True)
    return results


def run(*, quick: bool) -> Report:
    numbers = range(1 if quick else SPLITS)
    return report({name: [measure(name, number) for number in numbers] for name in SETS})


def report(data: dict[str, list[dict[str, dict[str, float]]]]) -> Report:
    columns = [*(f"pinball {q}" for q in QUANTILES), "inside", "crossing", "compile", "run"]
    rows, notes, (first, *others) = [], [], MACHINES
    for name, splits in data.items():
        mean = {
            machine: {key: np.mean([each[machine][key] for each in splits]) for key in columns}
            for machine in MACHINES
        }
        for machine, means in mean.items():
            cells = [f"{means[key]:.3g}" for key in columns]
            rows.append([name, machine, *cells, f"{means['run'] / mean[first]['run']:.2f}"])
        for machine in others:
            ratios = (f"{mean[first][key] / mean[machine][key]:.2f}" for key in columns[:3])
            notes.append(f"{name}: our pinball losses over {machine}'s: {', '.join(ratios)}.")
    return Report(
        "Quantile regression",
        ["set", "machine", *columns[:3], "inside 0.1 to 0.9", "rows crossing", "compile, s",
         "run, s", "run over ours"],
        rows,
        [
            f"Three quarters of the rows, at most {MOST_ROWS}, to train on, the others to test on; "
            f"targets standardised; means over random splits, of which there were "
            f"{len(data[SETS[0]])}.",
            f"Ours: one machine of {PROTOTYPES} prototypes and three outputs in float64, "
            f"{KERNELS} lengthscales and {len(C)} values of C, by the mean pinball loss of {FOLDS} "
            "folds. The others: a machine for each quantile, tuned by its pinball loss on as many "
            f"folds. LightGBM: {LIGHTGBM}; scikit-learn's GradientBoostingRegressor: {BOOSTING}; "
            "learning rate 0.05.",
            "Inside: share of the test targets between the quantiles 0.1 and 0.9, of which 0.8 are "
            "wanted. Crossing: share of the test rows with a higher quantile below a lower one. "
            "Seconds: tuning and fit of all three quantiles; ratios are of this run.",
            *notes,
        ],
        data,
    )  # fmt: skip
