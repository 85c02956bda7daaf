"""Benchmarks for an accelerator in one command; each part is a process with a time limit.

They need JAX, the runtime dependencies, scikit-learn, and the sets adult, magic, covertype, letter
and optdigits in `$JSPARSE_DATA`. The results of a part are saved as soon as it ends, so that an
interrupted run leaves a table. On a CPU, and with `--quick`, every part is small.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jsparse
from jsparse import pursuit
from jsparse.data.streams import ArrayStream
from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.machines import fixed_size

from .pursuits import _spikes
from .report import Report, machine_kind, timed, write
from .sets import Split, split

Row = list[Any]  # what, size, cold seconds, warm seconds, figure, unit
PAPER_COVERTYPE = 122290  # seconds, De Brabanter 2010, Table 9


def run(*, quick: bool, out: Path) -> Report:
    """Run each part whose results are not in the folder `out` in a process, one after another."""
    small = quick or jax.default_backend() == "cpu"
    file = out / "gpu.json"
    data: dict[str, Any] = {}
    if file.exists():
        content = json.loads(file.read_text())
        data = content["data"] if content.get("data", {}).get("small") is small else {}
    data["small"] = small
    for name, (_, seconds) in PARTS.items():
        if isinstance(data.get(name), list):
            continue
        command = [sys.executable, "-m", "benchmarks.accelerator", name, *["small"] * small]
        try:
            begin = time.perf_counter()
            process = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
            process_seconds = time.perf_counter() - begin
            if process.returncode == 0:
                rows, peak = json.loads(process.stdout.splitlines()[-1])
                data[name] = [[*row, peak if i == 0 else ""] for i, row in enumerate(rows)]
                data[name][0].append(process_seconds)
            else:
                data[name] = "failed: " + (process.stderr.strip().splitlines() or ["?"])[-1][:300]
        except subprocess.TimeoutExpired:
            data[name] = f"not done within {seconds} s"
        write(out, "gpu", _report(data), quick=quick)
    return _report(data)


def _report(data: dict[str, Any]) -> Report:
    rows, notes = [], []
    for name in PARTS:
        if isinstance(data.get(name), str):
            notes.append(f"{name}: {data[name]}")
        for row in data.get(name, []) if isinstance(data.get(name), list) else []:
            full = [*row, *[""] * (8 - len(row))]
            rows.append([f"{a:.3g}" if isinstance(a, float) else a for a in full])
    columns = ["what", "size", "cold s", "warm s", "figure", "unit", "peak GB", "process s"]
    notes += [
        "Cold: the first call, compilation included; warm: a later one of the same shapes. Peak: "
        "memory of the device that the part's process used, where the device tells.",
        f"The paper's time for covertype is {PAPER_COVERTYPE} s on one CPU.",
    ]
    if data.get("small"):
        notes.append("Small sizes: this machine has no accelerator, or a quick run was asked for.")
    return Report(f"On {machine_kind()}", columns, rows, notes, data)


def product(small: bool) -> list[Row]:
    size = 2048 if small else 16384
    rows = []
    for dtype in ("float32", "float64"):
        A = jax.random.normal(jax.random.key(0), (size, size), dtype)
        warm, excess = timed(lambda A=A: _square(A), 3)
        rate = 2 * size**3 / warm / 1e12
        rows.append([f"product, {dtype}", size, warm + excess, warm, rate, "Tflop/s"])
    return rows


@jax.jit
def _square(A: jax.Array) -> jax.Array:
    return jnp.matmul(A, A, precision="highest")


def training(name: str, m: int, dtypes: tuple[str, ...]) -> Callable[[bool], list[Row]]:
    """Return the part that trains a machine of `m` prototypes on a set, in each dtype."""

    def part(small: bool) -> list[Row]:
        rows = []
        for dtype in dtypes:
            data = split(name, 0, dtype)
            n = min(len(data.y), 3000) if small else len(data.y)
            method = jsparse.FixedSize(min(m, 100) if small else m)
            seconds, error = _train_twice(data, n, method=method)
            rows.append([f"train {name}, m = {method.n_prototypes}, {dtype}", n, *seconds, error,
                         "% test error"])  # fmt: skip
        return rows

    return part


def _train_twice(data: Split, n: int, **options: Any) -> tuple[list[float], float]:
    """Return the seconds of two runs on the first `n` rows, and the test error in per cent."""
    seconds, error = [], 0.0
    for _ in range(2):
        begin = time.perf_counter()
        model = jsparse.train(data.X[:n], data.y[:n], task="classification", key=0, **options)
        seconds.append(time.perf_counter() - begin)
        error = 100 * float(np.mean(model.predict(data.X_test) != data.y_test))
    return seconds, error


def sums(small: bool) -> list[Row]:
    """Compare the speed of summing the normal equations with the speed of a matrix product."""
    data = split("covertype", 0, "float32")
    n, m = (20_000, 100) if small else (len(data.y), 500)
    X = jnp.asarray(((data.X - data.X.mean(0)) / np.maximum(data.X.std(0), 1e-6))[:n])
    y, phi = jnp.asarray(data.y[:n]), Nystroem(RBF(7.0), X[:m])
    warm, excess = timed(lambda: jsparse.accumulate(phi, X, y), 3)
    # Kernel block, transform and product: n m (2 d + 2 m + 2 m) flops.
    rate = n * m * (2 * X.shape[1] + 4 * m) / warm
    size = 2048 if small else 16384
    A = jax.random.normal(jax.random.key(0), (size, size), jnp.float32)
    top, _ = timed(lambda: _square(A), 3)
    share = 100 * rate / (2 * size**3 / top)
    return [["sums, covertype", f"{n} x {m}", warm + excess, warm, share, "% of the product"]]


def letters(small: bool) -> list[Row]:
    """Train on 26 classes, with a binary problem for each pair."""
    data = split("letter", 0, "float32")
    n, m = (1500, 60) if small else (len(data.y), 1500)
    seconds, error = _train_twice(
        data, n, method=jsparse.FixedSize(m), folds=3, multiclass="one_versus_one",
        search=jsparse.Profile(3),
    )  # fmt: skip
    what = f"letter, one-versus-one, 325 problems, 3 kernels, m = {m}"
    return [[what, n, *seconds, error, "% test error"]]


def digits(small: bool) -> list[Row]:
    """Train on ten classes by each output code."""
    data, rows = split("optdigits", 0, "float32"), []
    n, m, kernels = (800, 60, 3) if small else (len(data.y), 420, 10)
    for scheme in ("one_versus_rest", "one_versus_one", "minimum_output"):
        seconds, error = _train_twice(
            data, n, method=jsparse.FixedSize(m), multiclass=scheme, search=jsparse.Profile(kernels)
        )
        rows.append([f"optdigits, {scheme}, m = {m}", n, *seconds, error, "% test error"])
    return rows


def stream(small: bool) -> list[Row]:
    """Sum over batches that are made on the device, and train on a stream from the host."""
    n, d, batch = (200_000 if small else 20_000_000), 10, (50_000 if small else 1_000_000)
    key = jax.random.key(0)

    def batches():
        for i in range(n // batch):
            X = jax.random.normal(jax.random.fold_in(key, i), (batch, d), jnp.float32)
            yield X, X[:, 0] * X[:, 1] + jnp.sin(2 * X[:, 2])

    Z = jax.random.normal(key, (100 if small else 500, d), jnp.float32)
    phi = Nystroem(RBF(3.0), Z)
    begin = time.perf_counter()
    total = jsparse.accumulate_batches(phi, batches(), n_folds=10)
    jax.block_until_ready(total)
    seconds = time.perf_counter() - begin
    sizes = [f"{n} streamed rows, sums of 10 folds, m = {len(Z)}", n, seconds, "", n / seconds]
    X = np.asarray(jax.random.normal(key, (5 * batch // 10, d), jnp.float32))
    rows = ArrayStream(X, X[:, 0] * X[:, 1], batch_rows=batch // 10)
    begin = time.perf_counter()
    model = jsparse.train(rows, task="regression", key=0, method=jsparse.FixedSize(len(Z)))
    seconds_train = time.perf_counter() - begin
    return [
        [*sizes, "rows/s"],
        ["train on a stream", len(X), seconds_train, "", model.cv_error, "mse"],
    ]


def conjugate(small: bool) -> list[Row]:
    """Compare SCDP with the bytes that it must read at least."""
    D, k = (1001, 100) if small else (20_001, 2000)
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.standard_normal((D - 1, 10)), jnp.float32)
    A = RBF(3.0).gram(X) + 0.1 * jnp.eye(D - 1, dtype=jnp.float32)
    b = jnp.asarray(rng.standard_normal(D - 1), jnp.float32)
    warm, excess = timed(lambda: pursuit.scdp(A, b, max_atoms=k).coefficients, 1)
    floor = k * (D - 1) * 4 * k / 1e9  # a row of the matrix for each atom, and the directions
    return [["SCDP", f"D = {D - 1}, k = {k}", warm + excess, warm, floor / warm, "GB/s at least"]]


def sensing(small: bool) -> list[Row]:
    """Recover sparse signals by orthogonal matching pursuit, many in one batch."""
    problems, n, D, spikes = (5, 128, 512, 20) if small else (100, 1024, 4096, 160)
    X, _, _ = _spikes(n, D, spikes, 0)
    rng = np.random.default_rng(1)
    w = np.zeros((problems, D), np.float32)
    for signal in w:
        signal[rng.permutation(D)[:spikes]] = rng.choice([-1.0, 1.0], spikes)
    dictionaries = jnp.broadcast_to(jnp.asarray(X)[None], (problems, *X.shape))
    y = jnp.asarray(w @ X.T)

    def recover() -> Any:
        return pursuit.omp(dictionaries, y, max_atoms=spikes)

    warm, excess = timed(lambda: recover().coefficients, 1)
    path = recover()
    recovered = [
        np.asarray(jax.tree.map(lambda a, i=i: a[i], path).dense(D, spikes))
        for i in range(problems)
    ]
    hits = np.mean(
        [np.array_equal(np.abs(f) > 0.5, v != 0) for f, v in zip(recovered, w, strict=True)]
    )
    what = f"{problems} compressed-sensing problems in one batch"
    return [[what, f"{n} x {D}", warm + excess, warm, 100 * float(hits), "% recovered"]]


def many(small: bool) -> list[Row]:
    """Cross-validate many small data sets in one program."""
    sets, n, m = (20 if small else 1000), 400, 50
    X = jax.random.normal(jax.random.key(0), (sets, n, 5), jnp.float32)
    y = jnp.sign(X[..., 0] * X[..., 1])
    folds, C = jsparse.plain_folds(0, n, 10), jnp.geomspace(0.1, 1000, 10, dtype=jnp.float32)

    def one(X: jax.Array, y: jax.Array) -> jax.Array:
        phi = Nystroem(RBF(2.0), X[:m])
        return jsparse.cross_validate(
            phi, C, X, y, folds, metric="misclassification", method="subtraction"
        ).scores

    batched = jax.jit(jax.vmap(one))
    warm, excess = timed(lambda: batched(X, y), 2)
    error = 100 * float(jnp.mean(jnp.min(batched(X, y), axis=1)))
    what = f"{sets} data sets by vmap, 10 folds, 10 C, m = {m}"
    return [[what, n, warm + excess, warm, error, "% error"]]


def precision(small: bool) -> list[Row]:
    """Return the errors of float32 on the device against float64 NumPy on the host."""
    n, m = (2000, 50) if small else (200_000, 500)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((n, 10)) + 3, rng.standard_normal(n)  # not centred
    squares = np.sum(X**2, 1)[:, None] + np.sum(X[:m] ** 2, 1)[None] - 2 * X @ X[:m].T
    exact = np.exp(-squares / 2 / 3.0**2)
    kernel, X32 = RBF(3.0), jnp.asarray(X, jnp.float32)
    phi = Nystroem(kernel, X32[:m])
    values = np.asarray(phi(X32), float)
    equations = jsparse.accumulate(phi, X32, jnp.asarray(y, jnp.float32))
    fit = fixed_size.fit(kernel, X32[:m], 10.0, X32, jnp.asarray(y, jnp.float32))
    machine = fit.expansion
    beta = np.asarray(machine.coefficients, float)
    pairs = {
        "kernel values": (kernel.cross_gram(X32, X32[:m]), exact),
        "sums of products": (equations.gram, values.T @ values),
        "predictions of a machine": (machine(X32), exact @ beta + float(machine.intercept)),
    }
    rows = []
    for what, (computed, reference) in pairs.items():
        difference = np.max(np.abs(np.asarray(computed, float) - reference))
        error = float(difference / np.max(np.abs(reference)))
        rows.append([f"float32: {what}", f"{n} x {m}", "", "", error, "largest relative error"])
    return rows


def default(small: bool) -> list[Row]:
    """Return the time and the error of `train` without a method, which learns a metric."""
    data = split("magic", 0, "float32")
    n = 600 if small else 6000
    seconds, error = _train_twice(data, n)
    return [["train without a method, magic", n, *seconds, error, "% test error"]]


def problems(small: bool) -> list[Row]:
    """Compare the time of a problem in `train_many` with its time in a loop over `train`."""
    count, few = (32, 4) if small else (1000, 20)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((count, 400, 5)).astype(np.float32)
    y = np.sin(X[..., 0]) + X[..., 1] * X[..., 2]
    tables = list(zip(X, y, strict=True))
    options = {"task": "regression", "key": 0, "method": jsparse.FixedSize(30)}
    seconds = [_seconds(lambda: jsparse.train_many(tables, **options)) for _ in range(2)]
    _, loop = [
        _seconds(lambda: [jsparse.train(*table, **options) for table in tables[:few]])
        for _ in range(2)
    ]
    ratio = (loop / few) / (seconds[1] / count)
    return [["train_many, 400 x 5, m = 30", count, *seconds, ratio, "times as fast as a loop"]]


def _seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def devices(small: bool) -> list[Row]:
    """Return the time of `train` on all devices, and its error less the error on one device."""
    data = split("adult", 0, "float32")
    n, m, count = *((2000, 50) if small else (len(data.y), 500)), len(jax.devices())
    if count == 1:
        return [["train adult on a mesh", "one device only", "", "", "", ""]]
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    method = jsparse.FixedSize(m)
    _, alone = _train_twice(data, n, method=method)
    seconds, error = _train_twice(data, n, method=method, resources=jsparse.Resources(mesh=mesh))
    what = f"train adult on {count} devices, m = {m}"
    return [[what, n, *seconds, error - alone, "% test error, less one device's"]]


# Each part with its limit in seconds; together they stay under nine minutes.
PARTS: dict[str, tuple[Callable[[bool], list[Row]], int]] = {
    "precision": (precision, 30),
    "product": (product, 30),
    "sums": (sums, 40),
    "adult": (training("adult", 500, ("float32", "float64")), 50),
    "magic": (training("magic", 1000, ("float32",)), 40),
    "covertype": (training("covertype", 500, ("float32",)), 50),
    "default": (default, 50),
    "letter": (letters, 50),
    "digits": (digits, 40),
    "stream": (stream, 40),
    "scdp": (conjugate, 25),
    "sensing": (sensing, 25),
    "many": (many, 15),
    "problems": (problems, 25),
    "devices": (devices, 30),
}


def main() -> None:
    """Run one part; its last line of output holds its rows and the peak of memory."""
    name, small = sys.argv[1], "small" in sys.argv[2:]
    jax.config.update("jax_enable_x64", True)
    rows = PARTS[name][0](small)
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    print(json.dumps([rows, "" if peak is None else peak / 1e9]))


if __name__ == "__main__":
    main()
