"""Seconds from rows to predictions with each method at its defaults, in fresh processes."""

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from .data_sets import benchmark_set
from .report import Report, save, saved_data

ROWS, OTHER_ROWS, COLUMNS, TEST_ROWS = 3000, 3001, 5, 2000
ADULT, ADULT_ROWS = "adult", 10_000  # in place of a task: classification of real rows
QUICK_ROWS = 400
SECONDS = 120  # limit of the processor time of each process, imports included
REFERENCE_SECONDS = 1800  # the same for the learners of `REFERENCES`
WALL_SECONDS = 20 * SECONDS
STEPS = ("cold", "warm", "another number of rows")
# Places of the numbers of a step, see `main`.
PROCESSOR, PROGRAMS, ERROR, WALL = range(4)
GRID = {"C": np.geomspace(0.1, 1000, 5), "gamma": np.geomspace(0.01, 1, 5)}

Answers = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # of X, y and test rows


def made_rows(n: int, task: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return normal inputs, shape `n 5`, and targets `sin(2 x0) + x1 x2` with noise, or signs."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, COLUMNS)).astype(np.float32)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n).astype(np.float32)
    return X, (y > 0).astype(int) if task == "classification" else y


def adult_rows(n: int) -> tuple[np.ndarray, ...]:
    """Return the first `n` rows of adult as X and y, and later rows to test on."""
    data = benchmark_set("adult")
    train, test = slice(n), slice(ADULT_ROWS, ADULT_ROWS + TEST_ROWS)
    spread = data.X[train].std(axis=0)
    X = (data.X - data.X[train].mean(axis=0)) / np.where(spread > 0, spread, 1)
    X, y = X.astype(np.float32), np.asarray(data.y)
    return X[train], y[train], X[test], y[test]


def main() -> None:
    """Time one learner, named by the arguments; print the numbers of each step as they come."""
    name, task, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CPU, (_limit(name), _limit(name)))
    answers, compiled = _learner(name, "classification" if task == ADULT else task)
    test = adult_rows(n)[2:] if task == ADULT else made_rows(TEST_ROWS, task, seed=0)
    with compiled as counts:
        row_counts = (n,) if name in REFERENCES else (n, n, n + OTHER_ROWS - ROWS)
        for number, rows in enumerate(row_counts):
            X, y = adult_rows(rows)[:2] if task == ADULT else made_rows(rows, task, 1 + number // 2)
            before = getattr(counts, "programs", 0)
            begin, processor = time.perf_counter(), time.process_time()
            predicted = answers(X, y, test[0])
            processor, wall = time.process_time() - processor, time.perf_counter() - begin
            wrong = (predicted - test[1]) ** 2 if task == "regression" else predicted != test[1]
            programs = getattr(counts, "programs", 0) - before
            print(json.dumps([processor, programs, float(np.mean(wrong)), wall]), flush=True)


def _learner(name: str, task: Any) -> tuple[Answers, AbstractContextManager[Any]]:
    """Return a learner, and a context that counts the programs compiled in it."""
    if name in REFERENCES:
        return REFERENCES[name](task), nullcontext()
    import jsparse
    from jsparse.compilation import count_compilations

    method = jsparse.machines.METHODS[name]

    def answers(X: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
        return jsparse.train(X, y, task=task, method=method(), key=0).predict(test)

    return answers, count_compilations()


def _svm_grid(task: str) -> Answers:
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC, SVR

    machine = SVR(epsilon=0.1) if task == "regression" else SVC()
    return lambda X, y, test: GridSearchCV(machine, GRID, cv=5).fit(X, y).predict(test)


def _lightgbm(task: str) -> Answers:
    import lightgbm

    make = lightgbm.LGBMRegressor if task == "regression" else lightgbm.LGBMClassifier
    return lambda X, y, test: np.asarray(make(n_jobs=1, verbose=-1).fit(X, y).predict(test))


REFERENCES = {"SVM grid": _svm_grid, "LightGBM": _lightgbm}


def run(*, quick: bool, out: Path) -> Report:
    """Run each learner and task in a fresh process; keep the results of an interrupted run."""
    import jsparse

    learners = [(name, task) for name in REFERENCES for task in ("regression", "classification")]
    methods = jsparse.machines.METHODS.items()
    learners += [(name, task) for name, method in methods for task in method.tasks]
    data = _results("methods", learners, QUICK_ROWS if quick else ROWS, quick, out, report)
    return report(data, quick=quick)


def run_adult(*, quick: bool, out: Path) -> Report:
    """Run each learner that can classify in a fresh process on rows of adult."""
    import jsparse

    methods = jsparse.machines.METHODS.items()
    names = [*REFERENCES, *(name for name, m in methods if "classification" in m.tasks)]
    n = QUICK_ROWS if quick else ADULT_ROWS
    learners = [(name, ADULT) for name in names]
    data = _results("methods_adult", learners, n, quick, out, report_adult)
    return report_adult(data, quick=quick)


def _results(
    benchmark: str,
    learners: list[tuple[str, str]],
    n: int,
    quick: bool,
    out: Path,
    report: Callable[..., Report],
) -> dict[str, Any]:
    """Return the results of a benchmark; keep the results of an interrupted run."""
    data = saved_data(out, benchmark, quick=quick)
    for name, task in learners:
        if f"{name}, {task}" not in data:
            data[f"{name}, {task}"] = _process(name, task, n)
            save(out, benchmark, report(data, quick=quick), quick=quick)
    return data


def report(data: dict[str, Any], *, quick: bool) -> Report:
    """Return the table of all results."""
    n = QUICK_ROWS if quick else ROWS
    return Report(
        f"Every method at its defaults: seconds of training and prediction, {n} x {COLUMNS} rows",
        HEADER,
        _table(data),
        [
            "Normal inputs in float32; targets sin(2 x0) + x1 x2 with noise of deviation 0.1, or "
            f"their sign. Errors: mean square, or share of wrong classes, of {TEST_ROWS} new rows.",
            *_notes(n),
        ],
        data,
    )


def report_adult(data: dict[str, Any], *, quick: bool) -> Report:
    """Return the table of the results on adult."""
    n = QUICK_ROWS if quick else ADULT_ROWS
    return Report(
        f"Every method at its defaults on adult: seconds of training and prediction, {n} rows",
        HEADER,
        _table(data),
        [
            "The first rows of adult (UCI), 14 columns whose categories are numbers, standardised, "
            f"in float32. Errors: share of wrong classes of {TEST_ROWS} other rows.",
            *_notes(n),
        ],
        data,
    )


HEADER = ["learner", "task", *STEPS, "warm / SVM grid", "programs of each step", "test error"]


def _table(data: dict[str, Any]) -> list[list[str]]:
    """Return the lines of the table, one for each learner."""
    rows = []
    for learner, result in data.items():
        name, task = learner.rsplit(", ", 1)
        grid = data.get(f"SVM grid, {task}", {"steps": []})["steps"]
        steps = result["steps"]
        seconds = [f"{step[WALL]:.2f}" for step in steps] + ["-"] * (len(STEPS) - len(steps))
        # There is no ratio without a second run, or if the grid did not end.
        ratio = (
            f"{steps[1][PROCESSOR] / grid[0][PROCESSOR]:.3f}" if len(steps) > 1 and grid else "-"
        )
        compiled = "/".join(str(step[PROGRAMS]) for step in steps) or "-"
        error = f"{steps[0][ERROR]:.4f}" if steps else result["failure"]
        rows.append([name, task, *seconds, ratio, compiled, error])
    return rows


def _notes(n: int) -> list[str]:
    """Return what the columns mean, for `n` rows."""
    return [
        "`cold`: the first call of a fresh process, compilation included and imports not. "
        f"`another number of rows`: other rows, {n + OTHER_ROWS - ROWS} of them.",
        "`SVM grid`: an SVC or SVR of scikit-learn over 5 x 5 settings in 5 folds. It and "
        "LightGBM compile nothing, so they run once, each on one core. The ratio is to this run, "
        "and of processor times.",
        f"Seconds by the clock. A process ends after {SECONDS} seconds of processor time "
        f"({REFERENCE_SECONDS} for `SVM grid` and LightGBM); `-` stands for a step that was not "
        "run or did not end. The file with the numbers also has the processor time of all threads.",
    ]


def _limit(name: str) -> int:
    """Return the limit of the processor time of a learner's process, in seconds."""
    return REFERENCE_SECONDS if name in REFERENCES else SECONDS


def _process(name: str, task: str, n: int) -> dict[str, Any]:
    """Return the finished steps of a fresh process, and why it failed, if it did."""
    command = [sys.executable, "-m", "benchmarks.methods", name, task, str(n)]
    failure = None
    try:
        process = subprocess.run(command, capture_output=True, timeout=WALL_SECONDS)
        output = process.stdout
        if process.returncode == -signal.SIGXCPU or process.returncode == -signal.SIGKILL:
            failure = f"not done in {_limit(name)} s"
        elif process.returncode:
            failure = "failed: " + process.stderr.decode().strip().splitlines()[-1]
    except subprocess.TimeoutExpired as end:
        output, failure = end.stdout or b"", f"not done in {WALL_SECONDS} s of wall time"
    steps = [json.loads(line) for line in output.decode().splitlines() if line.startswith("[")]
    return {"steps": steps, "failure": failure}


if __name__ == "__main__":
    main()
