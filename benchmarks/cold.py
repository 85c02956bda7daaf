"""Times in a fresh process: imports, compilation and computation."""

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from .report import Report

# Each part is a separate process, whose last line of output holds its numbers.
START = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
begin = time.perf_counter()
import jax
jax_seconds = time.perf_counter() - begin
"""
COUNT = """
import numpy as np
jax.config.update("jax_enable_x64", DTYPE == "float64")
from jsparse.compilation import count_compilations, enable_compilation_cache
if CACHE:
    enable_compilation_cache(CACHE)
def rows(n, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(DTYPE)
    score = X[:, 0] * X[:, 1] + 0.3 * rng.standard_normal(n).astype(DTYPE)
    return X, (score > 0).astype(int), score
measured = []
def measure(call):
    with count_compilations() as compiled:
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
    measured.append([seconds, compiled.programs, compiled.from_disk])
"""
END = "\nprint(json.dumps(measured))\n"

IMPORT = """
begin = time.perf_counter()
import jsparse
jsparse.train
measured = [[jax_seconds, 0, 0], [time.perf_counter() - begin, 0, 0]]
"""
FIT = """
from jsparse import estimators
import jsparse
make = MAKE
def fit(n, seed):
    X, y, score = rows(n, seed=seed)
    machine = make()
    measure(lambda: machine.fit(X, score if REGRESSION
                                else y).predict(X))
for seed, n in enumerate(SIZES):
    fit(n, seed)
"""
TRAIN = """
import jsparse
for seed, n in enumerate(SIZES):
    X, y, _ = rows(n, seed=seed)
    measure(lambda: jsparse.train(X, y, task="classification", key=0, method=jsparse.SCDP(
        max_prototypes=50, candidates=200)).predict(X))
"""
DEFAULTS = """
import jsparse
for seed, n in enumerate(SIZES):
    X, _, score = rows(n, seed=seed)
    measure(lambda: jsparse.train(X, score, task="regression", key=0).predict(X))
"""
ADULT = """
from benchmarks.data_sets import benchmark_set
from jsparse.estimators import FixedSizeLSSVMClassifier
data = benchmark_set("adult")
X, y = data.X[data.train[0]].astype(DTYPE), data.y[data.train[0]]
for _ in range(2):
    measure(lambda: FixedSizeLSSVMClassifier(n_prototypes=500, random_state=0).fit(X, y))
"""
SCORE = """
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from jsparse.estimators import FixedSizeLSSVMClassifier
X, y, _ = rows(2003)
machine = FixedSizeLSSVMClassifier(n_prototypes=100, random_state=0)
grid = {"C": np.geomspace(0.1, 1000, 5), "gamma": np.geomspace(0.01, 1, 5)}
if WHAT == "cross_val_score":
    measure(lambda: cross_val_score(machine, X, y, cv=5))
    measure(lambda: cross_val_score(GridSearchCV(SVC(), grid, cv=5), X, y, cv=5))
else:
    pipeline = make_pipeline(StandardScaler(), machine)
    sizes = {"fixedsizelssvmclassifier__n_prototypes": [50, 100]}
    measure(lambda: GridSearchCV(pipeline, sizes, cv=3).fit(X, y))
    measure(lambda: GridSearchCV(make_pipeline(StandardScaler(), SVC()),
        {"svc__" + name: values for name, values in grid.items()}, cv=3).fit(X, y))
"""
ESTIMATORS = {
    "FixedSizeLSSVMClassifier": "n_prototypes=100",
    "FixedSizeLSSVMRegressor": "n_prototypes=100",
    "LSSVMClassifier": "",
    "SCDPClassifier": "max_prototypes=50, candidates=200",
    "SCDPRegressor": "max_prototypes=50, candidates=200",
    "SpSVMClassifier": "max_prototypes=20, candidates=200",
}


def run(*, quick: bool) -> Report:
    """Run each part in fresh processes: without a compilation cache, and with a filled one."""
    sizes = [300, 301] if quick else [3000, 3001]
    dtypes = ["float32"] if quick else ["float32", "float64"]
    rows, data = [], {}

    def part(name: str, code: str, labels: list[str], **settings: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for state in ("no folder", "empty folder", "filled folder"):
                cache = None if state == "no folder" else folder
                each = _process(START + COUNT + code + END, CACHE=cache, **settings)
                data[f"{name}, {state}"] = each
                if state == "empty folder":
                    continue  # this run fills the folder and is not reported
                for label, (seconds, programs, from_disk) in zip(labels, each, strict=True):
                    rows.append([name, label, state, f"{seconds:.2f}", programs - from_disk])

    imports = [_process(START + IMPORT + END) for _ in range(1 if quick else 5)]
    least = [min(each[i][0] for each in imports) for i in (0, 1)]
    data["import"] = imports
    rows += [
        ["import", what, "", f"{seconds:.2f}", 0]
        for what, seconds in zip(("JAX", "jsparse.train, on top"), least, strict=True)
    ]
    for dtype in dtypes:
        estimators = dict(list(ESTIMATORS.items())[: 2 if quick or dtype == "float64" else None])
        for name, options in estimators.items():
            fitted = [min(n, 1000) for n in sizes] if name.startswith("LSSVM") else sizes
            if name.startswith("LSSVM"):
                fitted = [1000, 1001] if not quick else sizes
            labels = ["first fit", "another number of rows"]
            part(
                f"{name}, {fitted[0]} x 5, {dtype}", FIT, labels, DTYPE=dtype, SIZES=fitted,
                MAKE=Code(f"lambda: estimators.{name}(random_state=0, {options})"),
                REGRESSION="Regressor" in name,
            )  # fmt: skip
    labels = ["first fit", "another number of rows"]
    part(f"train, SCDP, {sizes[0]} x 5", TRAIN, labels, DTYPE="float32", SIZES=sizes)
    part(f"train without options, {sizes[0]} x 5", DEFAULTS, labels, DTYPE="float32", SIZES=sizes)
    if not quick:
        part("FixedSizeLSSVMClassifier, adult, m = 500", ADULT, ["first fit", "again"],
             DTYPE="float32")  # fmt: skip
        for what in ("cross_val_score", "GridSearchCV"):
            labels = [what, "an SVC grid"]
            part(f"{what}, 2003 rows", SCORE, labels, DTYPE="float32", WHAT=what)
    rows += _demo(data)
    return Report(
        "From cold to answer: seconds in a fresh process, compilation and all",
        ["what", "step", "programs on disk", "seconds", "programs compiled"],
        rows,
        [
            "Each line's process starts fresh; the step `another number of rows` follows the first "
            "in the same process.",
            "`filled folder`: `enable_compilation_cache`, after a run that filled it.",
            "cross_val_score: 5 folds; the SVC's grid has 25 points with 5 inner folds. "
            "GridSearchCV: pipelines with a scaler, 3 folds, two sizes against the same grid.",
        ],
        data,
    )


def _demo(data: dict[str, Any]) -> list[list[Any]]:
    """Return lines with the time of `jsparse demo`, which keeps its programs on the disk."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for state in ("empty folder", "filled folder"):
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "jsparse", "demo"], check=True, capture_output=True,
                env={**os.environ, "XDG_CACHE_HOME": folder},
            )  # fmt: skip
            seconds = time.perf_counter() - begin
            data[f"demo, {state}"] = seconds
            rows.append(["jsparse demo", "the whole command", state, f"{seconds:.2f}", ""])
    return rows


class Code(str):
    """Source code, which is inserted into a script as it is."""


def _process(script: str, **settings: Any) -> list[list[float]]:
    """Run a script, with settings as its variables, and return the numbers that it prints."""
    lines = [
        f"{name} = {value if isinstance(value, Code) else repr(value)}"
        for name, value in settings.items()
        if not isinstance(value, Code)
    ]
    for name, value in settings.items():
        if isinstance(value, Code):
            script = script.replace(f"make = {name}", f"make = {value}")
    variables = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    process = subprocess.run(
        [sys.executable, "-c", "\n".join(lines) + script], check=True, stdout=subprocess.PIPE,
        text=True, env=variables,
    )  # fmt: skip
    return json.loads(process.stdout.splitlines()[-1])
