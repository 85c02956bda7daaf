"""Speed of sums, training, folds and the demo, as ratios within one run."""

import functools
import os
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.svm import SVC

import jsparse
from jsparse.features import KernelColumns, Nystroem
from jsparse.kernels import RBF

from .data_sets import benchmark_set
from .report import Report, alternated

M = 500


def run(*, quick: bool) -> Report:
    """Join the parts; each returns lines of the table, notes, and numbers for the JSON file."""
    rows, notes, data = [], [], {}
    for part in (sums, pipeline, fold_counts, demo):
        more_rows, more_notes, numbers = part(quick)
        rows, notes = rows + more_rows, notes + more_notes
        data[part.__name__] = numbers
    columns = ["what", "seconds", "against", "seconds", "ratio", "mark"]
    return Report("Speed, warm, compilation apart", columns, rows, notes, data)


def _adult() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    data = benchmark_set("adult")
    train, test = data.train[0], data.test[0]
    X, y = data.X.astype(np.float32), data.y.astype(np.float32)
    return X[train], y[train], X[test], y[test]


def sums(quick: bool):
    """Compare the normal equations of adult with the bare product of the same shape."""
    X, y, _, _ = _adult()
    X = jnp.asarray((X - X.mean(0)) / X.std(0))
    y = jnp.asarray(y)
    Phi = jax.random.normal(jax.random.key(0), (len(y), M), jnp.float32)
    product = jax.jit(lambda a: jnp.matmul(a.T, a, precision="highest"))
    columns, nystroem = (make(RBF(4.0), X[:M]) for make in (KernelColumns, Nystroem))
    calls = {
        "bare": lambda: product(Phi),
        "columns": lambda: jsparse.accumulate(columns, X, y),
        "nystroem": lambda: jsparse.accumulate(nystroem, X, y),
    }
    seconds = alternated(calls, 5 if quick else 21)
    bare = seconds["bare"]
    shape = f"{len(y)} x {M}, float32"
    rows = [
        [
            f"sums of {what}, {shape}",
            f"{seconds[name]:.4f}",
            "Phi' Phi",
            f"{bare:.4f}",
            f"{seconds[name] / bare:.2f}",
            mark,
        ]
        for name, what, mark in (
            ("columns", "KernelColumns", "1.5"),
            ("nystroem", "Nystroem (a second product by its nature)", ""),
        )
    ]
    flops = 2 * len(y) * M * M
    note = f"Phi' Phi runs at {flops / bare / 1e9:.0f} Gflop/s."
    return rows, [note], seconds


def pipeline(quick: bool):
    """Compare training from raw rows, and its test, with one SVC fit with fixed parameters."""
    X, y, X_test, y_test = _adult()
    scaled = (X - X.mean(0)) / X.std(0)
    scaled_test = (X_test - X.mean(0)) / X.std(0)

    def ours(key: int, **options):
        start = time.perf_counter()
        model = jsparse.train(
            X,
            y,
            task="classification",
            method=jsparse.FixedSize(M),
            out_of_fold=False,
            key=key,
            **options,
        )
        error = float(100 * np.mean(model.predict(X_test) != y_test))
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds - model.seconds["compile"],
            "compile": model.seconds["compile"],
            "error": error,
            "kernels": kernels_of(model),
            "C values": len(model.tuning.history[0].C),
        }

    def theirs():
        start = time.perf_counter()
        machine = SVC(C=1, gamma=1 / 28).fit(scaled, y)
        fitted = time.perf_counter() - start
        error = float(100 * np.mean(machine.predict(scaled_test) != y_test))
        return {"seconds": fitted, "error": error, "vectors": len(machine.support_)}

    first = ours(0)
    runs = [(theirs(), ours(key)) for key in range(1, 2 if quick else 4)]
    csa = [ours(key, search=jsparse.Annealing()) for key in range(1, 2 if quick else 3)]
    svc = float(np.median([a["seconds"] for a, _ in runs]))
    mine = float(np.median([b["seconds"] for _, b in runs]))
    slow = float(np.median([c["seconds"] for c in csa]))
    last = runs[-1][1]
    rows = [
        [
            f"adult, tuned: {last['kernels']} kernels x {last['C values']} C x 10 folds, fit, test",
            f"{mine:.2f}",
            "one SVC fit",
            f"{svc:.2f}",
            f"{mine / svc:.2f}",
            "0.4",
        ],
        [
            "adult, CSA + simplex, 160 points",
            f"{slow:.2f}",
            "one SVC fit",
            f"{svc:.2f}",
            f"{slow / svc:.2f}",
            "",
        ],
    ]
    ours_error, csa_error = (np.mean([a["error"] for a in b]) for b in ([b for _, b in runs], csa))
    note = (
        f"adult, per cent misclassified: profile search {ours_error:.2f}, "
        f"CSA + simplex {csa_error:.2f}, SVC(C=1, gamma=1/28) "
        f"{runs[0][0]['error']:.2f} with {runs[0][0]['vectors']} support vectors against {M} "
        f"prototypes; compilation {first['compile']:.1f} s once."
    )
    return rows, [note], {"runs": runs, "csa": csa, "first": first}


def kernels_of(trained: jsparse.Trained) -> str:
    """Return how many kernels a search has tried, by stage: a part of the rows, then all rows."""
    stages = [evaluation.stage for evaluation in trained.tuning.history]
    counts = [stages.count(stage) for stage in sorted(set(stages))]
    return " (part of the rows) + ".join(map(str, counts))


def fold_counts(quick: bool):
    """Compare 50 folds with 5 on concrete, m = 400."""
    data = benchmark_set("concrete")
    rows, numbers = [], {}
    for dtype in ("float64", "float32"):
        X = jnp.asarray((data.X - data.X.mean(0)) / data.X.std(0), dtype)
        y = jnp.asarray((data.y - data.y.mean()) / data.y.std(), dtype)
        C = jnp.geomspace(1e-2, 1e6, 25, dtype=dtype)
        phi = Nystroem(RBF(2.0), X[np.random.default_rng(0).permutation(len(y))[:400]])
        tables = {v: jsparse.plain_folds(jax.random.key(v), len(y), v) for v in (5, 50)}
        for count, values in (("one C", C[12:13]), ("25 C", C)):
            calls = {
                str(v): functools.partial(jsparse.cross_validate, phi, values, X, y, table)
                for v, table in tables.items()
            }
            seconds = alternated(calls, 5 if quick else 15)
            ratio = seconds["50"] / seconds["5"]
            rows.append(
                [
                    f"concrete, m = 400, 50 folds, {count}, {dtype}",
                    f"{seconds['50']:.4f}",
                    "5 folds",
                    f"{seconds['5']:.4f}",
                    f"{ratio:.2f}",
                    "1.5",
                ]
            )
            numbers[f"{count} {dtype}"] = seconds
    return rows, [], numbers


def demo(quick: bool):
    """Time `jsparse demo` with a cold and then with a warm compilation cache."""
    seconds = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        for _ in range(2):
            start = time.perf_counter()
            command = [sys.executable, "-m", "jsparse", "demo", "--quiet"]
            subprocess.run(command, env=environment, check=True, capture_output=True)
            seconds.append(time.perf_counter() - start)
    rows = [
        [
            "jsparse demo, second run",
            f"{seconds[1]:.1f}",
            "first run",
            f"{seconds[0]:.1f}",
            f"{seconds[1] / seconds[0]:.2f}",
            "first under 15 s, second faster",
        ]
    ]
    return rows, [], {"first": seconds[0], "second": seconds[1]}
