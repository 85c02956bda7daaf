"""Many problems: `train_many` against a loop over `train`, with everything compiled, in turn."""

import numpy as np

import jsparse
from jsparse.compilation import count_compilations

from .report import Report, alternated

ROWS, COLUMNS, PROTOTYPES = 400, 5, 30


def run(*, quick: bool) -> Report:
    problems = [_table(seed) for seed in range(128 if quick else 1000)]
    options = {"task": "regression", "key": 0, "method": jsparse.FixedSize(PROTOTYPES)}
    few = problems[: 16 if quick else 100]  # each problem of the loop takes equally long
    jsparse.train(*few[0], **options)
    with count_compilations() as counts:
        jsparse.train_many(few, **options)
    calls = {
        "loop": lambda: [jsparse.train(*problem, **options) for problem in few] and None,
        "batch": lambda: jsparse.train_many(problems, **options) and None,
    }
    seconds = alternated(calls, 3)
    each = {"loop": seconds["loop"] / len(few), "batch": seconds["batch"] / len(problems)}
    errors = np.array([jsparse.train(*problem, **options).cv_error for problem in few])
    differences = np.abs(jsparse.train_many(few, **options).cv_errors / errors - 1).tolist()
    ratio = each["loop"] / each["batch"]
    rows = [
        ["a loop over `train`", len(few), f"{1e3 * each['loop']:.1f}", "1.0"],
        ["`train_many`", len(problems), f"{1e3 * each['batch']:.1f}", f"{ratio:.1f}"],
    ]
    notes = [
        f"{ROWS} rows of {COLUMNS} columns in float32, {PROTOTYPES} prototypes, 10 folds, 10 "
        "kernels with 25 values of `C` each. The two are timed in turn, with all programs "
        "compiled; medians of three.",
        f"Programs compiled for the batch: {counts.programs}, in {counts.seconds:.1f} s.",
        f"Largest relative difference of the errors: {max(differences):.1g} (float32).",
    ]
    columns = ["what", "problems", "milliseconds for a problem", "times as fast"]
    data = {"seconds of a problem": each, "programs": counts.programs, "differences": differences}
    return Report("A thousand problems", columns, rows, notes, data)


def _table(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((ROWS, COLUMNS))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(ROWS)
    return X.astype(np.float32), y.astype(np.float32)
