"""Categories as indicator columns, compared with a kernel that compares categories, on adult."""

import math
import time
from typing import Any

import numpy as np

import jsparse
from jsparse.kernels import RBF, Mixed

from .data_sets import benchmark_set
from .report import Report, alternated, mean_sd
from .sets import TEST_ROWS

PROTOTYPES, SPLITS, EVALUATIONS = 300, 3, 6
INDICATORS, KERNEL, NUMBERS = (
    "an indicator column for each category",
    "a kernel that compares categories",
    "codes taken for numbers",
)


def run(*, quick: bool) -> Report:
    data = benchmark_set("adult", complete=True)
    numbers, codes = data.X[:, ~data.categorical], data.X[:, data.categorical]
    hot = [(column[:, None] == np.unique(column)).astype(float) for column in codes.T]
    d = data.X.shape[1]
    columns = tuple(range(numbers.shape[1], d))
    mixed = np.concatenate([numbers, codes], axis=1).astype(np.float32)
    ways: dict[str, tuple[np.ndarray, Any]] = {
        INDICATORS: (np.concatenate([numbers, *hot], axis=1).astype(np.float32), "rbf"),
        KERNEL: (mixed, Mixed(RBF(np.float32(math.sqrt(d))), columns)),
        NUMBERS: (mixed, "rbf"),
    }
    m, splits = (50, 1) if quick else (PROTOTYPES, SPLITS)
    runs = [_split(ways, data.y, number, m, 3000 if quick else None) for number in range(splits)]

    def over(way: str, what: str) -> str:
        return f"{np.median([each[way][what] / each[INDICATORS][what] for each in runs]):.2f}"

    rows = [
        [
            way,
            ways[way][0].shape[1],
            mean_sd([each[way]["error"] for each in runs]),
            *(over(way, what) for what in ("seconds", "cpu seconds", "choice", "predict")),
        ]
        for way in ways
    ]
    return Report(
        f"Categories of adult; {m} prototypes, float32",
        ["categories", "columns", "per cent misclassified", "seconds to train over indicators'",
         "of the processor", "to choose prototypes", "to predict"],
        rows,
        [
            f"Means (standard deviations) over {splits} random splits of the paper's sizes (rows "
            "without unknown values), the same for all; ratios are medians. Kernel and C by "
            f"{EVALUATIONS} evaluations of ten-fold cross-validation.",
            "Training is choosing, tuning and fitting, warm: of a second run, compilation apart.",
        ],
        {"splits": runs},
    )  # fmt: skip


def _split(
    ways: dict[str, tuple[np.ndarray, Any]], y: np.ndarray, number: int, m: int, n: int | None
) -> dict[str, dict[str, float]]:
    """Return error and times of each way on one random split of at most `n` rows each."""
    order = np.random.default_rng([2010, number]).permutation(len(y))
    test, rows = order[: TEST_ROWS["adult"]][:n], order[TEST_ROWS["adult"] :][:n]
    results = {}
    trained: dict[str, jsparse.Trained] = {}
    for way, (X, kernel) in ways.items():
        for _ in range(2 if number == 0 else 1):  # the first run compiles
            start = time.process_time()
            trained[way] = jsparse.train(
                X[rows],
                y[rows],
                task="classification",
                key=number,
                kernel=kernel,
                method=jsparse.FixedSize(m),
                search=jsparse.Profile(max_evaluations=EVALUATIONS),
            )
            cpu = time.process_time() - start
        seconds = trained[way].seconds
        error = 100 * np.mean(trained[way].predict(X[test]) != y[test])
        results[way] = {
            "error": float(error),
            "seconds": seconds["total"] - min(seconds["compile"], seconds["total"]),
            "choice": seconds["prototypes"],
            "cpu seconds": cpu,
        }
    calls = {way: lambda way=way: trained[way].predict(ways[way][0][test]) for way in ways}
    for way, seconds in alternated(calls, 3).items():
        results[way]["predict"] = seconds
    return results
