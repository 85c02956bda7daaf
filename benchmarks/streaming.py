"""Data larger than memory: speed compared with memory, peak memory, growth with the rows."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import jsparse
from jsparse.data.streams import ArrayStream
from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.training.streamed import Split

from .report import Report, alternated
from .sets import split

M = 500
PART = 100_000  # rows of each generated file


def run(*, quick: bool) -> Report:
    """Join the parts; each returns lines of the table, notes, and numbers for the JSON file."""
    rows, notes, data = [], [], {}
    for part in (sums, training, growth):
        more_rows, more_notes, numbers = part(quick)
        rows, notes, data[part.__name__] = rows + more_rows, notes + more_notes, numbers
    columns = ["what", "value", "against", "value", "ratio", "mark"]
    return Report("Streams of row batches", columns, rows, notes, data)


def _covertype(quick: bool):
    part = split("covertype", 0, "float32")
    n = 50_000 if quick else len(part.y)
    return part._replace(X=part.X[:n], y=part.y[:n])


def sums(quick: bool):
    """Compare sums over covertype from a file on disk with sums in memory."""
    part = _covertype(quick)
    X = (part.X - part.X.mean(0)) / np.maximum(part.X.std(0), 1e-6)
    phi = Nystroem(RBF(7.0), jnp.asarray(X[:M]))
    held, targets = jnp.asarray(X), jnp.asarray(part.y)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "X.npy", X)
        mapped = np.load(Path(folder) / "X.npy", mmap_mode="r")
        stream = ArrayStream(mapped, part.y)
        groups = jnp.asarray(Split(0, 10, 10, 0.0)(np.arange(len(X))))
        ones = jnp.ones(len(X), held.dtype)
        calls = {
            "memory": lambda: jsparse.accumulate(phi, held, targets),
            "stream": lambda: jsparse.accumulate_batches(phi, (b[:2] for b in stream)),
            "memory, folds": lambda: jsparse.normal_equations.accumulate_groups(
                phi, held, targets, ones, groups, n_groups=10
            ),
            "stream, folds": lambda: jsparse.accumulate_batches(
                phi, (b[:2] for b in stream), n_folds=10
            ),
        }
        seconds = alternated(calls, 2 if quick else 5)
    rows = [
        [
            f"covertype, {len(X)} rows, m = {M}, sums{what} streamed, s",
            f"{seconds['stream' + key]:.3f}",
            "in memory, s",
            f"{seconds['memory' + key]:.3f}",
            f"{seconds['stream' + key] / seconds['memory' + key]:.2f}",
            "1.3",
        ]
        for what, key in ((" of all rows", ""), (" of ten folds", ", folds"))
    ]
    return rows, [], seconds


def training(quick: bool):
    """Compare training on covertype from a stream and in memory; measure peak memory by rows."""
    part = _covertype(quick)
    options = {
        "task": "classification",
        "method": jsparse.FixedSize(M),
        "out_of_fold": False,
        "key": 0,
    }
    stream, tenth = ArrayStream(part.X, part.y), jsparse.HoldOut(0.1)
    runs = {}
    for name, call in (
        ("stream", lambda: jsparse.train(stream, **options)),
        (
            "holdout",
            lambda: jsparse.train(stream, folds=tenth, **options),
        ),
        ("memory", lambda: jsparse.train(part.X, part.y, **options)),
    ):
        start = time.perf_counter()
        model = call()
        seconds = time.perf_counter() - start - model.seconds["compile"]
        error = float(100 * np.mean(model.predict(part.X_test) != part.y_test))
        runs[name] = {"seconds": seconds, "error": error, "cv_error": 100 * model.cv_error}
    memory = runs["memory"]
    rows = [
        [
            f"covertype tuned from a stream, {what}, s (error, per cent)",
            f"{runs[name]['seconds']:.1f} ({runs[name]['error']:.2f})",
            "in memory",
            f"{memory['seconds']:.1f} ({memory['error']:.2f})",
            f"{runs[name]['seconds'] / memory['seconds']:.2f}",
            "",
        ]
        for name, what in (("stream", "ten folds"), ("holdout", "a tenth held out"))
    ]
    peaks = {}
    with tempfile.TemporaryDirectory() as folder:
        for share in (4, 2, 1):
            n = len(part.y) // share
            path = Path(folder) / str(n)
            path.mkdir()
            names = [f"x{j}" for j in range(part.X.shape[1])]
            table = pa.table([*part.X[:n].T, part.y[:n].astype(np.int8)], names=[*names, "y"])
            pq.write_table(table, path / "rows.parquet", row_group_size=65536)
            peaks[n] = _job(path, {"n_prototypes": M, "max_evaluations": 3})
    sizes = sorted(peaks)
    rows += [
        [
            f"peak memory, {sizes[-1]} rows of covertype, GB",
            f"{peaks[sizes[-1]]['peak_bytes'] / 1e9:.2f}",
            f"{n} rows",
            f"{peaks[n]['peak_bytes'] / 1e9:.2f}",
            f"{peaks[sizes[-1]]['peak_bytes'] / peaks[n]['peak_bytes']:.2f}",
            "1",
        ]
        for n in sizes[:-1]
    ]
    largest = peaks[sizes[-1]]
    added = largest["peak_bytes"] - largest["before_bytes"]
    rows.append(
        [
            "peak memory beyond the imported program's, GB",
            f"{added / 1e9:.2f}",
            "as planned",
            f"{largest['planned_bytes'] / 1e9:.2f}",
            f"{added / largest['planned_bytes']:.2f}",
            "",
        ]
    )
    return rows, [], {"runs": runs, "peaks": peaks}


def growth(quick: bool):
    """Train on generated data, each time with more rows; kill and resume the largest run."""
    parts = [1, 2, 4] if quick else [1, 2, 4, 8, 16, 32, 64, 128, 200, 1000]
    settings = {"n_prototypes": 100, "tune_kernel": False, "folds": 5}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "all"
        source.mkdir()
        for i in range(parts[-1]):
            _write(source / f"{i:05}.parquet", i)
        runs = []
        for count in parts:
            path = Path(folder) / str(count)
            path.mkdir()
            for i in range(count):
                os.link(source / f"{i:05}.parquet", path / f"{i:05}.parquet")
            runs.append(_job(path, settings))
        largest = runs[-1]
        checkpoint = {"checkpoint": str(Path(folder) / "state")}
        killed_after = largest["schema"] + 0.5 * largest["total"]
        _killed(path, settings | checkpoint, killed_after)
        resumed = _job(path, settings | checkpoint)
    rows = []
    for last, this in itertools.pairwise(runs):
        more = this["rows"] / last["rows"]
        rows.append(
            [
                f"{this['rows']} rows x 10, s (peak GB)",
                f"{this['run']:.2f} ({this['peak_bytes'] / 1e9:.2f})",
                f"{last['rows']} rows",
                f"{last['run']:.2f} ({last['peak_bytes'] / 1e9:.2f})",
                f"{this['run'] / last['run']:.2f}",
                f"{1.1 * more:.2f}",
            ]
        )
    rows.append(
        [
            f"{largest['rows']} rows, killed after {killed_after:.0f} s, then resumed, s",
            f"{resumed['run']:.2f}",
            "the whole run",
            f"{largest['run']:.2f}",
            f"{resumed['run'] / largest['run']:.2f}",
            "1",
        ]
    )
    same = resumed["digest"] == largest["digest"]
    notes = [
        "Growth: first pass, prototypes (m = 100), one kernel with 25 values of C and five folds, "
        "fit; float32, from a folder of Parquet files; without compilation.",
        "The coefficients of the resumed run and of the whole run are "
        f"{'equal, bit for bit' if same else 'NOT equal'}.",
    ]
    return rows, notes, {"runs": runs, "resumed": resumed, "same": same}


def _write(path: Path, i: int) -> None:
    rng = np.random.default_rng([20, i])
    X = rng.standard_normal((PART, 10), np.float32)
    y = (X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + 0.5 * rng.standard_normal(PART) > 0).astype(int)
    pq.write_table(pa.table([*X.T, y], names=[*(f"x{j}" for j in range(10)), "y"]), path)


def _command(folder: Path, settings: dict) -> list[str]:
    return [sys.executable, "-m", "benchmarks.stream_job", str(folder), json.dumps(settings)]


def _job(folder: Path, settings: dict) -> dict:
    command = _command(folder, settings)
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _killed(folder: Path, settings: dict, seconds: float) -> None:
    """Start a training process, and kill it after some seconds."""
    process = subprocess.Popen(_command(folder, settings), stdout=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    else:
        raise RuntimeError(f"the job ended within {seconds:.0f} s, before it could be killed")
