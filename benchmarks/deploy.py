"""A model in production: bytes, milliseconds for a few rows, and seconds from a process's start."""

import ctypes
import functools
import importlib.util
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.kernel_ridge import KernelRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import jsparse
from jsparse import predictor
from jsparse.model import Model

from .data_sets import benchmark_set
from .report import Report

SETS, PROTOTYPES, ROWS = ("adult", "magic"), 200, (1, 100, 10_000)
WITHIN = 0.5  # percentage points of error that count as equal
FIRST = "first"  # name of the file with the first row


class Deployed(NamedTuple):
    """A model as it is served.

    Attributes:
        file: what must be stored.
        predict: gives the labels of rows.
        process: a command that loads the model and predicts the row in the file `FIRST`.
    """

    file: Path
    predict: Callable[[np.ndarray], Any]
    process: list[str]


def _python(code: str, file: Path) -> list[str]:
    script = f"import numpy as np; X = np.load('{FIRST}.npy'); {code}"
    return [sys.executable, "-c", script, str(file)]


def _by_model(model: Model, folder: Path) -> Deployed:
    file = folder / "model.jsparse"
    model.save(file)
    code = (
        "import sys, jax; jax.config.update('jax_enable_x64', True); import jsparse; "
        "print(jsparse.load(sys.argv[1]).predict(X))"
    )
    return Deployed(file, jsparse.load(file).predict, _python(code, file))


def _by_numpy(model: Model, folder: Path) -> Deployed:
    file = folder / "numpy.jsparse"
    model.save(file)
    code = "import sys, jsparse.predictor as p; print(p.load(sys.argv[1]).predict(X))"
    return Deployed(file, predictor.load(file).predict, _python(code, file))


C_SOURCE = """
#include <stdio.h>
#include "model.h"
void many(const REAL *X, int n, int *labels) {
  int i;
  for (i = 0; i < n; i++) { labels[i] = model_class(X + i * MODEL_INPUTS); }
}
int main(int count, char **files) {
  REAL x[MODEL_INPUTS];
  FILE *file = fopen(files[count - 1], "rb");
  if (!file || fread(x, sizeof x, 1, file) != 1) { return 1; }
  printf("%d\\n", model_class(x));
  return 0;
}
"""


def _by_c(model: Model, folder: Path) -> Deployed | None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    model.to_c(folder / "model.h")
    (folder / "model.c").write_text(C_SOURCE)
    real = {"float32": "float", "float64": "double"}[model.dtype.name]
    command = [compiler, "-std=c99", "-O3", f"-DREAL={real}", "model.c", "-o"]
    for name, flags in {"model.so": ["-shared", "-fPIC"], "model.out": []}.items():
        subprocess.run([*command, name, *flags, "-lm"], cwd=folder, check=True)
    many = ctypes.CDLL(str(folder / "model.so")).many
    classes = model.classes

    def predict(X: np.ndarray) -> Any:
        rows, numbers = np.ascontiguousarray(X, model.dtype), np.empty(len(X), np.int32)
        many(ctypes.c_void_p(rows.ctypes.data), len(rows), ctypes.c_void_p(numbers.ctypes.data))
        return classes[numbers]

    return Deployed(folder / "model.h", predict, [str(folder / "model.out"), f"{FIRST}.bin"])


def _by_onnx(model: Model, folder: Path) -> Deployed | None:
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    file = folder / "model.onnx"
    model.to_onnx(file)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    code = (
        "import sys, onnxruntime as o; "
        "s = o.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider']); "
        "print(s.run(['label'], {'X': X})[0])"
    )
    return Deployed(file, lambda X: session.run(["label"], {"X": X})[0], _python(code, file))


# Other formats add an entry: a function of the model and a folder; None where it cannot run.
FORMATS: dict[str, Callable[[Model, Path], Deployed | None]] = {
    "Model": _by_model,
    "NumPy": _by_numpy,
    "C": _by_c,
    "ONNX": _by_onnx,
}


def _by_sklearn(machine: Any, folder: Path, name: str) -> Deployed:
    file = folder / f"{name}.pickle"
    file.write_bytes(pickle.dumps(machine))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).predict(X))"

    def predict(X: np.ndarray) -> Any:
        values = machine.predict(X)
        return np.where(values >= 0, 1, -1) if name == "KernelRidge" else values

    return Deployed(file, predict, _python(code, file))


def _by_skl2onnx(machine: Any, folder: Path, name: str) -> Deployed:
    """Convert a pipeline to ONNX in float32, because onnxruntime has no SVM in float64."""
    import onnxruntime
    import skl2onnx

    d = machine.n_features_in_
    proto = skl2onnx.to_onnx(
        machine, np.zeros((1, d), np.float32), target_opset=18, options={"zipmap": False}
    )
    file = folder / f"{name}.onnx"
    file.write_bytes(proto.SerializeToString())
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    code = (
        "import sys, onnxruntime as o; "
        "s = o.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider']); "
        "print(s.run(['label'], {'X': X.astype('float32')})[0])"
    )
    return Deployed(
        file,
        lambda X: session.run(["label"], {"X": X.astype(np.float32)})[0],
        _python(code, file),
    )


def run(*, quick: bool) -> Report:
    rows, data = [], {}
    for name in SETS:
        X, y, X_test, y_test = _parts(name, quick=quick)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            deployed = _deployed(X, y, X_test, y_test, folder, quick=quick)
            np.save(folder / f"{FIRST}.npy", X_test[:1])
            (folder / f"{FIRST}.bin").write_bytes(X_test[:1].tobytes())
            data[name] = _measured(deployed, X_test, y_test, folder, quick=quick)
        for who, cell in data[name].items():
            milliseconds = [f"{cell[f'{n} rows'] * 1e3:.3g}" for n in ROWS]
            start = [f"{cell[what]:.3f}" for what in ("start", "start, of the processor")]
            rows.append([name, who, f"{cell['error']:.2f}", cell["bytes"], *milliseconds, *start])
    return Report(
        f"A model of {PROTOTYPES} prototypes in production, float64",
        ["set", "served by", "per cent misclassified", "bytes",
         *(f"ms for {n:,} rows" for n in ROWS), "seconds to first answer", "of the processor"],
        rows,
        [
            "Medians of calls in turn, in one process. C is called by ctypes; ONNX is run by "
            "onnxruntime, which is asked for the label alone.",
            "The first answer is timed from the start of a process, with Python and its imports: "
            "the least of several processes, each of which reads the model and a row from files.",
            "SVC and KernelRidge have the model's lengthscale, C = 1, and the smallest set of rows,"
            f" doubled from 500, whose error is within {WITHIN} points; or 8,000 rows.",
            "skl2onnx converts no KernelRidge.",
            "Model predicts one and 100 rows by NumPy, and 10,000 by a compiled program.",
        ],
        data,
    )  # fmt: skip


def _parts(name: str, *, quick: bool) -> tuple[np.ndarray, ...]:
    """Return training and test rows, by a random split; the labels are -1 and 1."""
    data = benchmark_set(name)
    order = np.random.default_rng(2010).permutation(len(data.y))
    n_test = 2_000 if quick else 10_000
    test, train = order[:n_test], order[n_test:][: 2_000 if quick else None]
    # 10,000 rows are predicted whatever the set's size.
    return data.X[train], data.y[train], data.X[test], data.y[test]


def _deployed(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, folder: Path,
    *, quick: bool,
) -> dict[str, Deployed]:  # fmt: skip
    """Train our model and scikit-learn's machines, and write each in its formats, by name."""
    method = jsparse.FixedSize(n_prototypes=50 if quick else PROTOTYPES)
    trained = jsparse.train(X, y, task="classification", key=0, method=method)
    model = trained.model
    formats = {name: make(model, folder) for name, make in FORMATS.items()}
    deployed = {name: each for name, each in formats.items() if each is not None}
    allowed_error = _error(model.predict, X_test, y_test) + WITHIN
    gamma = 0.5 / float(model.expansion.kernel.lengthscale) ** 2  # type: ignore[attr-defined]
    makers: dict[str, Callable[[], Any]] = {
        "SVC": lambda: SVC(C=1.0, gamma=gamma),
        "KernelRidge": lambda: KernelRidge(alpha=1.0, kernel="rbf", gamma=gamma),
    }
    for name, make in makers.items():
        n = 500
        while True:
            machine = make_pipeline(StandardScaler(), make()).fit(X[:n], y[:n])
            each = _by_sklearn(machine, folder, name)
            largest = 1_000 if quick else 8_000
            if _error(each.predict, X_test, y_test) <= allowed_error or n >= largest:
                break
            n *= 2
        deployed[f"{name}, {n} rows"] = each
        if name == "SVC" and "ONNX" in deployed and importlib.util.find_spec("skl2onnx"):
            deployed[f"SVC, {n} rows, by skl2onnx"] = _by_skl2onnx(machine, folder, name)
    return deployed


def _error(predict: Callable[[np.ndarray], Any], X: np.ndarray, y: np.ndarray) -> float:
    return 100 * float(np.mean(np.asarray(predict(X)) != y))


def _measured(
    deployed: dict[str, Deployed], X: np.ndarray, y: np.ndarray, folder: Path, *, quick: bool
) -> dict[str, dict[str, float]]:
    """Return the error, the bytes and the times of each deployed model."""
    cells: dict[str, dict[str, float]] = {
        who: {"error": _error(each.predict, X, y), "bytes": each.file.stat().st_size}
        for who, each in deployed.items()
    }
    repeats = 3 if quick else 7
    for n in ROWS:
        rows = np.resize(X, (n, X.shape[1]))
        calls = {who: functools.partial(each.predict, rows) for who, each in deployed.items()}
        for who, seconds in _in_turn(calls, repeats).items():
            cells[who][f"{n} rows"] = seconds
    for _ in range(repeats):
        for who, each in deployed.items():
            for what, seconds in _first_answer(each.process, folder).items():
                cells[who][what] = min(cells[who].get(what, np.inf), seconds)
    return cells


def _first_answer(command: list[str], folder: Path) -> dict[str, float]:
    """Return the wall time of a process from its start to its end, and its processor time."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"start": seconds, "start, of the processor": busy}


def _in_turn(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each call, made in turn; loop over calls shorter than 10 ms."""
    counts, seconds = {}, {who: [] for who in calls}
    for who, call in calls.items():
        call()
        begin = time.perf_counter()
        call()
        counts[who] = max(1, int(0.01 / (time.perf_counter() - begin)))
    for repeat in range(repeats):
        for who, call in calls.items():
            if repeat > 1 and seconds[who][0] > 1:
                continue  # a call of seconds varies little
            begin = time.perf_counter()
            for _ in range(counts[who]):
                call()
            seconds[who].append((time.perf_counter() - begin) / counts[who])
    return {who: float(np.median(each)) for who, each in seconds.items()}
