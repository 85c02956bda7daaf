"""Coverage and width of prediction intervals and sets, compared with crepes and MAPIE."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import jsparse
from jsparse.estimators import FixedSizeLSSVMRegressor
from jsparse.kernels import Kernel

from .data_sets import benchmark_set
from .report import Report, save, saved_data

SETS = ("concrete", "abalone", "satellite")
TRAIN, HELD_OUT, NEW, PROTOTYPES, FOLDS = 300, 100, 1500, 60, 10
COVERAGE = 0.9
SPLITS, OF_MAPIE, OF_TUNED = 200, 5, 10  # MAPIE refits the machine for each fold
OUT_OF_FOLD, CROSS, JACKKNIFE, SPLIT = (
    "errors out of fold",
    "CV+",
    "jackknife+ (dual)",
    "split",
)
TUNED = "CV+, tuned on the same rows"
NORMALISED, CREPES, MAPIE = "crepes, normalised", "crepes, split", "MAPIE, CV+"
ORDER = (OUT_OF_FOLD, CROSS, TUNED, JACKKNIFE, SPLIT, CREPES, NORMALISED, MAPIE)
# Bounds that theory gives on the mean coverage, for fixed kernel and C.
LEAST = {
    CROSS: 1 - 2 * (1 - COVERAGE) - math.sqrt(2 / TRAIN),
    JACKKNIFE: 1 - 2 * (1 - COVERAGE),
    SPLIT: COVERAGE,
    CREPES: COVERAGE,
    NORMALISED: COVERAGE,
    MAPIE: 1 - 2 * (1 - COVERAGE) - math.sqrt(2 / TRAIN),
}
MOST = dict.fromkeys((SPLIT, CREPES), COVERAGE + 1 / (HELD_OUT + 1))
Rows = tuple[np.ndarray, np.ndarray]
Results = dict[str, list[float]]  # coverage and width of each machine


def run(*, quick: bool, out: Path) -> Report:
    data = _by_split(saved_data(out, "intervals", quick=quick))
    splits = 2 if quick else SPLITS
    for name in SETS[:1] if quick else SETS:
        data.setdefault(name, [])
        start = time.perf_counter()
        while len(data[name]) < splits:
            number = len(data[name])
            extras = {} if quick else {MAPIE: number < OF_MAPIE, TUNED: number < OF_TUNED}
            data[name].append(_split(name, number, extras))
            if len(data[name]) % 20 == 0:
                print(f"{name}: {len(data[name])}, {time.perf_counter() - start:.0f} s", flush=True)
                save(out, "intervals", _report(data), quick=quick)
    return _report(data)


@functools.cache
def _rows(name: str) -> tuple[Rows, Rows, Any]:
    """Return the rows for tuning, all other rows, and the task."""
    data = benchmark_set(name)
    X = data.X
    if data.categorical.any():  # crepes and MAPIE take arrays of numbers
        codes = data.X[:, data.categorical].T
        X = np.concatenate(
            [X[:, ~data.categorical], *[c[:, None] == np.unique(c) for c in codes]], axis=1
        )
    order = np.random.default_rng(2021).permutation(len(X))
    tuning, others = ((X[rows], data.y[rows]) for rows in np.split(order, [TRAIN]))
    return tuning, others, data.task


@functools.cache
def _tuned_settings(name: str, method: jsparse.FixedSize | jsparse.Dual) -> dict[str, Any]:
    """Return options of `train`: kernel and C, tuned on rows that are in no split."""
    rows, _, task = _rows(name)
    tuned = _train(rows, task, 0, method, {"search": jsparse.Profile(max_evaluations=5)})
    return {
        "kernel": tuned.kernel,
        "C": np.atleast_1d(tuned.C),
        "search": jsparse.Profile(tune_kernel=False),
    }


def _split(name: str, number: int, extras: dict[str, bool]) -> Results:
    """Return the results of one random split into training, held-out and test rows."""
    _, (X, y), task = _rows(name)
    order = np.random.default_rng([2021, number]).permutation(len(X))
    parts = np.split(order, [TRAIN, TRAIN + HELD_OUT, TRAIN + HELD_OUT + NEW])[:3]
    rows, held_out, test = ((X[part], y[part]) for part in parts)
    methods = jsparse.FixedSize(PROTOTYPES), jsparse.Dual()
    machines = [_train(rows, task, number, m, _tuned_settings(name, m)) for m in methods]
    if extras.get(TUNED):
        search = {"search": jsparse.Profile(max_evaluations=5)}
        machines.append(_train(rows, task, number, methods[0], search))
    if task == "classification":
        return _classes(machines, held_out, test)
    return _numbers(machines, rows, held_out, test, mapie=extras.get(MAPIE, False))


def _train(rows: Rows, task: Any, number: int, method: Any, how: dict[str, Any]) -> jsparse.Trained:
    return jsparse.train(
        *rows, task=task, key=number, method=method, folds=FOLDS, out_of_fold="machines", **how
    )


def _numbers(
    machines: list[jsparse.Trained], rows: Rows, held_out: Rows, test: Rows, *, mapie: bool
) -> Results:
    """Return coverage and mean width of the intervals of each machine on the test rows."""
    new, truth = test

    def scored(ends: np.ndarray) -> list[float]:
        inside = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
        return [float(inside.mean()), float(np.mean(ends[:, 1] - ends[:, 0]))]

    names = CROSS, JACKKNIFE, TUNED
    results = {
        name: scored(machine.interval(new, COVERAGE))
        for name, machine in zip(names, machines, strict=False)
    }
    trained = machines[0]
    results[OUT_OF_FOLD] = scored(_without_machines(trained.model).interval(new, COVERAGE))
    model = trained.model
    results[SPLIT] = scored(model.calibrated(*held_out).interval(new, COVERAGE))
    try:
        import crepes
        from crepes.extras import DifficultyEstimator
    except ImportError:
        return results
    residuals = held_out[1] - model.predict(held_out[0])
    peer = crepes.ConformalRegressor().fit(residuals)
    results[CREPES] = scored(peer.predict_int(model.predict(new), confidence=COVERAGE))
    difficulty = DifficultyEstimator()
    difficulty.fit(X=rows[0], residuals=rows[1] - model.predict(rows[0]), scaler=True)
    peer = crepes.ConformalRegressor().fit(residuals, sigmas=difficulty.apply(held_out[0]))
    ends = peer.predict_int(model.predict(new), sigmas=difficulty.apply(new), confidence=COVERAGE)
    results[NORMALISED] = scored(ends)
    if mapie:
        results |= _mapie(*rows, new, trained.kernel, float(trained.C), scored)
    return results


def _mapie(
    X: np.ndarray,
    y: np.ndarray,
    new: np.ndarray,
    kernel: Kernel,
    C: float,
    scored: Callable[[np.ndarray], list[float]],
) -> Results:
    """Return results of MAPIE's CV+ with our kernel and C; each fold chooses its prototypes."""
    try:
        from mapie.regression import CrossConformalRegressor
    except ImportError:
        return {}
    machine = FixedSizeLSSVMRegressor(
        PROTOTYPES, kernel=kernel, lengthscale=None, C=C, cv=2, random_state=0
    )
    peer = CrossConformalRegressor(machine, confidence_level=COVERAGE, method="plus", cv=FOLDS)
    _, ends = peer.fit_conformalize(X, y).predict_interval(new)
    return {MAPIE: scored(ends[:, :, 0])}


def _classes(machines: list[jsparse.Trained], held_out: Rows, test: Rows) -> Results:
    """Return coverage and mean size of the prediction sets of each machine on the test rows."""
    new, truth = test
    labels = machines[0].classes
    assert labels is not None
    place = np.searchsorted(labels, truth)

    def scored(sets: np.ndarray) -> list[float]:
        inside = sets[np.arange(len(place)), place]
        return [float(inside.mean()), float(sets.sum(axis=1).mean())]

    names = CROSS, JACKKNIFE, TUNED
    results = {
        name: scored(machine.predict_set(new, COVERAGE))
        for name, machine in zip(names, machines, strict=False)
    }
    trained = machines[0]
    results[OUT_OF_FOLD] = scored(_without_machines(trained.model).predict_set(new, COVERAGE))
    model = trained.model
    results[SPLIT] = scored(model.calibrated(*held_out).predict_set(new, COVERAGE))
    try:
        import crepes
        from crepes.extras import hinge
    except ImportError:
        return results
    alphas = hinge(model.predict_proba(held_out[0]), model.classes, held_out[1])
    peer = crepes.ConformalClassifier().fit(alphas, seed=0)
    p = peer.predict_set(
        hinge(model.predict_proba(new)), confidence=COVERAGE, smoothing=False, seed=0
    )
    results[CREPES] = scored(np.asarray(p))
    return results


def _without_machines(model: jsparse.Model) -> jsparse.Model:
    """Return the model with the out-of-fold errors alone, as it is saved by default."""
    assert model.conformal is not None
    return dataclasses.replace(
        model, conformal=dataclasses.replace(model.conformal, machines=None, fold=None)
    )


def _by_machine(data: dict[str, list[Results]]) -> dict[str, dict[str, list[list[float]]]]:
    """Return the layout of the file: by set and machine, the coverages and widths of all splits."""
    tables: dict[str, dict[str, list[list[float]]]] = {}
    for name, splits in data.items():
        machines = dict.fromkeys(machine for split in splits for machine in split)
        tables[name] = {
            machine: np.transpose([s[machine] for s in splits if machine in s]).tolist()
            for machine in machines
        }
    return tables


def _by_split(tables: dict[str, dict[str, list[list[float]]]]) -> dict[str, list[Results]]:
    """Undo `_by_machine`; a machine that some splits lack belongs to the first splits."""
    data: dict[str, list[Results]] = {}
    for name, machines in tables.items():
        count = max((len(values[0]) for values in machines.values()), default=0)
        data[name] = [
            {m: [v[0][i], v[1][i]] for m, v in machines.items() if i < len(v[0])}
            for i in range(count)
        ]
    return data


def _report(data: dict[str, list[Results]]) -> Report:
    rows = []
    for name, splits in data.items():
        machines = {machine for split in splits for machine in split}
        for machine in (m for m in ORDER if m in machines):
            pairs = [(s[machine], s[SPLIT]) for s in splits if machine in s]
            coverage = np.array([ours[0] for ours, _ in pairs])
            error = coverage.std(ddof=1) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.nan
            mean = coverage.mean()
            least, most = LEAST.get(machine, 0.0), MOST.get(machine, 1.0)
            known = len(pairs) > 1 and machine in LEAST
            within = least - 3 * error <= mean <= most + 3 * error
            width = float(np.mean([ours[1] for ours, _ in pairs]))
            ratio = width / float(np.mean([other[1] for _, other in pairs]))
            allowed = f"{least:.3f} to {most:.3f}" if machine in LEAST else "nothing said"
            rows.append(
                [name, machine, len(pairs), f"{mean:.4f} ({error:.4f})", f"{coverage.min():.3f}",
                 allowed, ("yes" if within else "no") if known else "-", f"{width:.4g}",
                 f"{ratio:.3f}"]
            )  # fmt: skip
    return Report(
        f"Intervals and sets of {COVERAGE:.0%} coverage",
        ["set", "how", "splits", "mean coverage (standard error)", "least of a split",
         "theory, of the mean", "within, to 3 standard errors", "mean width, or classes in a set",
         "over split's"],
        rows,
        [
            f"{TRAIN} random rows to train on, {HELD_OUT} held out, at most {NEW} others to test "
            f"on. Fixed-size LS-SVM of {PROTOTYPES} prototypes, {FOLDS} folds, kernel and C tuned "
            f"once on {TRAIN} rows that are in no split: one machine for all but jackknife+. "
            "Split conformal prediction and crepes see the rows held out, the others do without.",
            "Theory holds for split conformal as it is; for jackknife+ but for the scaling, for "
            "CV+ but for scaling and prototypes, which all rows of a split decide. Of errors out "
            f"of fold alone nothing is guaranteed. On {OF_TUNED} of the splits kernel and C are "
            "tuned on the rows of the split too, as a user's are.",
            "crepes normalised divides errors by how far the errors of the 25 nearest training "
            "rows are from 0, so that widths differ from row to row; ours do not. MAPIE refits the "
            f"machine with our kernel and C for each fold, on {OF_MAPIE} of the splits. Of classes "
            "crepes ranks by calibrated probabilities, ours by how far a class is behind.",
        ],
        _by_machine(data),
    )  # fmt: skip
