"""Predictions under load: threads and processes that answer as one thread does, in flat memory."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import jsparse
from jsparse import predictor
from jsparse._runtime import usable_cores

from .report import Report

SECONDS = {"full": 60.0, "quick": 3.0}
LOADS = {"8 threads": (1, 8), "4 processes": (4, 1)}  # number of processes, and of threads in each
SERVERS: dict[str, Callable[[Path], Any]] = {"NumPy": predictor.load, "Model": jsparse.load}
BATCHES = (1, 100, 1000)  # a `Model` predicts the last by a compiled program
ROWS, COLUMNS, PROTOTYPES, C = 2000, 10, 200, 0.1
# Relative to the largest value. Equal programs give equal bits, but products of different threads
# may be divided differently.
TOLERANCE = 1e-12
WARM_UP = 0.25  # share of the time in which the allocator makes room for each thread
SAMPLES = 8  # number of measurements of memory after the warm-up
# Growth of the resident memory that counts as flat, in MiB: fragments of the allocator's arenas. A
# leak of 100 bytes for each prediction would take 100 MiB in a minute.
FLAT = 8.0
LATENCIES = 4096  # number of latencies of one row that a thread keeps


class Load(NamedTuple):
    """What one process measured.

    Attributes:
        calls: number of predictions, of any number of rows.
        wrong: number of predictions that differ from the predictions of one thread.
        error: largest difference, relative to the largest value.
        memory: resident memory after the warm-up and until the end, in MiB.
        latencies: seconds of the last predictions of one row.
    """

    calls: int
    wrong: int
    error: float
    memory: list[float]
    latencies: list[float]


class _Client(threading.Thread):
    """A thread that predicts and compares until it is stopped.

    Args:
        model: has the method `decision_function`.
        X: rows.
        expected: the values of the rows, by one thread.
        seed: random seed of the choice of rows.
        stop: the thread ends when this event is set.
    """

    def __init__(
        self, model: Any, X: np.ndarray, expected: np.ndarray, seed: int, stop: threading.Event
    ) -> None:
        super().__init__()
        self.model, self.X, self.expected, self.stop = model, X, expected, stop
        self.rng = np.random.default_rng(seed)
        self.calls, self.wrong, self.largest_error = 0, 0, 0.0
        self.latencies, self.n_latencies = np.zeros(LATENCIES), 0
        self.failure: Exception | None = None

    def run(self) -> None:
        size = float(np.abs(self.expected).max())
        try:
            while not self.stop.is_set():
                self._predict(BATCHES[self.calls % len(BATCHES)], size)
        except Exception as failure:  # the process raises it, see `load_test`
            self.failure = failure

    def _predict(self, n: int, size: float) -> None:
        """Predict `n` rows, and compare the values."""
        rows = self.rng.integers(len(self.X), size=n)
        X = self.X[rows]
        begin = time.perf_counter()
        values = self.model.decision_function(X)
        if n == 1:
            self.latencies[self.n_latencies % LATENCIES] = time.perf_counter() - begin
            self.n_latencies += 1
        error = float(np.abs(values - self.expected[rows]).max()) / size
        self.calls += 1
        self.wrong += not error <= TOLERANCE
        self.largest_error = max(self.largest_error, error)


def load_test(
    model: Any, X: np.ndarray, expected: np.ndarray, *, threads: int, seconds: float
) -> Load:
    """Predict by several threads for a time; raise whatever a thread raised.

    Args:
        model: has the method `decision_function`.
        X: rows, shape `n d`.
        expected: the values of the rows by one thread, shape `n`.
        threads: number of threads, which share the model.
        seconds: duration.
    """
    stop = threading.Event()
    clients = [_Client(model, X, expected, seed, stop) for seed in range(threads)]
    for client in clients:
        client.start()
    time.sleep(WARM_UP * seconds)
    memory = [_resident_mib()]
    for _ in range(SAMPLES):
        time.sleep((1 - WARM_UP) * seconds / SAMPLES)
        memory.append(_resident_mib())
    stop.set()
    for client in clients:
        client.join()
    for client in clients:
        if client.failure is not None:
            raise client.failure
    return Load(
        sum(client.calls for client in clients),
        sum(client.wrong for client in clients),
        max(client.largest_error for client in clients),
        memory,
        [s for client in clients for s in client.latencies[: client.n_latencies].tolist()],
    )


def _resident_mib() -> float:
    """Return the resident memory of this process, in MiB; NaN where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("nan")
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def make_model(*, columns: int = COLUMNS, prototypes: int = PROTOTYPES) -> jsparse.Model:
    """Return a model of float64 whose coefficients are moderate, so that values keep 12 digits."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4 * prototypes, columns))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    X, y = jax.device_put(X), jax.device_put(y)
    kernel = jsparse.kernels.RBF(np.sqrt(columns))
    machine = jsparse.fixed_size.fit(kernel, X[:prototypes], C, X, y)
    return jsparse.Model(machine.expansion)


def run(*, quick: bool, seconds: float | None = None) -> Report:
    """Measure every server under every load.

    Args:
        quick: take the short duration.
        seconds: duration of each load, instead of the durations `SECONDS`.
    """
    seconds = SECONDS["quick" if quick else "full"] if seconds is None else seconds
    data: dict[str, Any] = {"seconds": seconds}
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = make_model()
        model.save(folder / "model.jsparse")
        data["largest coefficient"] = float(np.abs(model.expansion.coefficients).max())
        X = np.random.default_rng(1).standard_normal((ROWS, COLUMNS))
        np.save(folder / "rows.npy", X)
        for server, load in SERVERS.items():
            np.save(folder / "values.npy", load(folder / "model.jsparse").decision_function(X))
            for name in LOADS:
                parts = _by_processes(folder, server, name, seconds)
                data[f"{server}, {name}"] = cell = _summary(parts, seconds)
                rows.append([
                    server, name, f"{cell['predictions']:,}", f"{cell['per second']:,.0f}",
                    cell["wrong"], f"{cell['largest error']:.1g}",
                    f"{cell['median of a row'] * 1e3:.3g}", f"{cell['99% of a row'] * 1e3:.3g}",
                    f"{cell['memory']:.0f}", f"{cell['growth']:+.1f}",
                ])  # fmt: skip
    _check(data)
    return Report(
        f"Predictions under load for {seconds:g} seconds each, float64",
        ["served by", "load", "predictions", "per second", "wrong", "largest error",
         "median ms of a row", "99 % ms of a row", "MiB", "MiB more at the end"],
        rows,
        [
            f"A machine of {PROTOTYPES} prototypes and {COLUMNS} columns predicts 1, 100 and 1,000 "
            "random rows in turn. Threads share a model; each process reads it from its file.",
            f"Wrong are predictions that differ by more than {TOLERANCE:g}, relative to the "
            "largest value, from the predictions of one thread; the run fails if there are any.",
            "Memory is the resident memory of the largest process after a quarter of the time. The "
            f"run fails if it grows by more than {FLAT:g} MiB until the end.",
            "A Model predicts 1 and 100 rows by NumPy, and 1,000 by a compiled program. All "
            f"processes import JAX, and share {usable_cores()} of the machine's cores.",
        ],
        data,
    )  # fmt: skip


def _by_processes(folder: Path, server: str, name: str, seconds: float) -> list[Load]:
    """Run the processes of a load at the same time; return what each measured."""
    processes, threads = LOADS[name]
    command = [sys.executable, "-m", "benchmarks.serving", str(folder), "--server", server]
    command += ["--threads", str(threads), "--seconds", str(seconds)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    outputs = [process.communicate()[0] for process in running]
    for process in running:
        if process.returncode != 0:
            raise RuntimeError(f"{server}, {name}: expected status 0, got {process.returncode}")
    return [Load(**json.loads(text)) for text in outputs]


def _summary(parts: list[Load], seconds: float) -> dict[str, Any]:
    """Return the sums over processes, and the largest of their errors and memories."""
    calls = sum(part.calls for part in parts)
    latencies = np.concatenate([part.latencies for part in parts])
    return {
        "predictions": calls,
        "per second": calls / seconds,
        "wrong": sum(part.wrong for part in parts),
        "largest error": max(part.error for part in parts),
        "median of a row": float(np.median(latencies)),
        "99% of a row": float(np.quantile(latencies, 0.99)),
        "memory": max(part.memory[0] for part in parts),
        "growth": max(part.memory[-1] - part.memory[0] for part in parts),
        "memory over time": [part.memory for part in parts],
    }


def _check(data: dict[str, Any]) -> None:
    """Raise RuntimeError if a prediction is wrong, or memory grew by more than `FLAT`."""
    for name, cell in data.items():
        if not isinstance(cell, dict):
            continue
        if cell["wrong"]:
            raise RuntimeError(f"{name}: expected the values of one thread, got {cell}")
        if cell["growth"] > FLAT:
            raise RuntimeError(f"{name}: expected at most {FLAT} MiB of growth, got {cell}")


def main() -> None:
    """Load a model, predict by threads, and print the `Load` as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--server", choices=list(SERVERS), required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    model = SERVERS[options.server](options.folder / "model.jsparse")
    X, expected = (np.load(options.folder / f"{name}.npy") for name in ("rows", "values"))
    for n in BATCHES:
        model.decision_function(X[:n])
    load = load_test(model, X, expected, threads=options.threads, seconds=options.seconds)
    print(json.dumps(load._asdict()))


if __name__ == "__main__":
    main()
