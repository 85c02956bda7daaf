"""Searches in which clearly worse machines skip most folds, beside searches on all folds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

import jsparse
from jsparse.machines.method import Task
from jsparse.search.history import scored
from jsparse.search.strategies import Nearby, Profile

from .report import Report, save, saved_data
from .tabular import split

ROWS = 3000
SETS = (
    "boston", "concrete", "abalone", "pima", "ida_german", "ida_image", "spambase", "magic",
    "satellite",
)  # fmt: skip
METHODS = {
    "scdp": jsparse.SCDP(),
    "kmp": jsparse.KMP(),
    "ksp": jsparse.KSP(),
    "spsvm": jsparse.SpSVM(),
    "rvm": jsparse.RVM(candidates=300),
    "reduction": jsparse.SparseReduction(),
}


@contextmanager
def without_races() -> Iterator[None]:
    """Let the searches within the block validate every machine on all folds."""
    rules = {search: search.race for search in (Profile, Nearby)}
    try:
        for search in rules:
            search.race = None
        yield
    finally:
        for search, rule in rules.items():
            search.race = rule


def trained(name: str, method: Any) -> dict[str, Any]:
    """Return the cost and the score of a search, and the test error of its machine."""
    part = split(name, 0)
    X, y = part.X[:ROWS], part.y[:ROWS]
    begin = time.process_time()
    result = jsparse.train(X, y, task=cast(Task, part.task), method=method, key=0)
    seconds = time.process_time() - begin - result.seconds["compile"]
    last = max(e.stage for e in result.tuning.history)
    evaluations = [e for e in scored(result.tuning.history) if e.stage == last]
    fitted = [~np.isnan(e.fold_scores) for e in evaluations]
    return {
        "seconds": seconds,
        "fits": int(sum(map(np.sum, fitted))),
        "of": int(sum(map(np.size, fitted))),
        "score": float(result.tuning.score),
        "standard error": float(result.tuning.standard_error),
        "test error": part.error(result.predict(part.X_test)),
    }


def run(*, quick: bool, out: Path) -> Report:
    """Search with each method on each set.

    The results of an interrupted run are kept, so delete them after a change of methods or rules.
    """
    data = saved_data(out, "races", quick=quick)
    for label, method in METHODS.items():
        for name in SETS[:2] if quick else SETS:
            if f"{label}, {name}" in data or split(name, 0).task not in method.tasks:
                continue
            trained(name, method)  # compiles
            raced = trained(name, method)
            with without_races():
                whole = trained(name, method)
            data[f"{label}, {name}"] = {"raced": raced, "whole": whole}
            save(out, "races", report(data), quick=quick)
    return report(data)


def report(data: dict[str, Any]) -> Report:
    """Return the table of all searches."""
    rows = []
    for key, searches in data.items():
        raced, whole = searches["raced"], searches["whole"]
        excess = (raced["score"] - whole["score"]) / whole["standard error"]
        excess = round(excess, 2) + 0.0  # not -0
        rows.append([
            *key.split(", "), f"{raced['fits']} of {raced['of']}", f"{whole['fits']}",
            f"{raced['seconds']:.2f}", f"{raced['seconds'] / whole['seconds']:.2f}",
            f"{excess:.2f}", f"{raced['test error']:.4f}", f"{whole['test error']:.4f}",
        ])  # fmt: skip
    return Report(
        "Searches with and without a race",
        ["method", "set", "fits", "without a race", "processor seconds", "over without a race",
         "excess of the score", "test error", "without a race"],
        rows,
        [
            f"At most {ROWS} rows of one split, float32, methods and numbers of folds at their "
            f"defaults, but for {METHODS['rvm']}. Fits: pairs of a kernel, `C` and fold of the "
            "last stage.",
            "Excess of the score: cross-validated error with a race, less the error without, in "
            "standard errors of the latter. Seconds of training, compilation apart.",
        ],
        data,
    )  # fmt: skip
