"""Forest covertype: 531,012 training rows, m = 500 (De Brabanter 2010, Tables 8 and 9)."""

import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

import jsparse
from jsparse.features import Nystroem
from jsparse.kernels import RBF

from .report import Report, timed
from .sets import split

PAPER_ERROR, PAPER_SECONDS = 18.2, 122290
M = 500


def run(*, quick: bool) -> Report:
    part = split("covertype", 0, "float32")
    if quick:
        part = part._replace(X=part.X[:50_000], y=part.y[:50_000])
    runs = []
    for key in range(1 if quick else 2):
        start = time.perf_counter()
        model = jsparse.train(
            part.X,
            part.y,
            task="classification",
            method=jsparse.FixedSize(M),
            out_of_fold=False,
            key=key,
        )
        error = float(100 * np.mean(model.predict(part.X_test) != part.y_test))
        compile_s = model.seconds["compile"]
        runs.append(
            {
                "error": error,
                "seconds": time.perf_counter() - start - compile_s,
                "compile": compile_s,
                "C": model.C,
                "lengthscale": float(model.kernel.lengthscale),
                "phases": model.seconds,
            }
        )
    # Kernel block, transform and product: n m (2 d + 2 m + 2 m) flops.
    X = jnp.asarray((part.X - part.X.mean(0)) / np.maximum(part.X.std(0), 1e-6))
    n, d = X.shape
    y = jnp.asarray(part.y)
    phi = Nystroem(RBF(7.0), X[:M])
    sums, _ = timed(lambda: jsparse.accumulate(phi, X, y), 3)
    size = 4096 if jax.default_backend() == "cpu" else 16384
    A = jax.random.normal(jax.random.key(0), (size, size), jnp.float32)
    square = jax.jit(lambda a: jnp.matmul(a, a, precision="highest"))
    product, _ = timed(lambda: square(A), 3)
    rate, top = n * M * (2 * d + 4 * M) / sums, 2 * size**3 / product
    memory = _peak_bytes()
    last = runs[-1]
    rows = [
        ["test misclassification, per cent", PAPER_ERROR, f"{last['error']:.2f}"],
        ["seconds, tuned, without compilation", PAPER_SECONDS, f"{last['seconds']:.1f}"],
        ["seconds of compilation, first run", "", f"{runs[0]['compile']:.1f}"],
        ["sums of the normal equations, s", "", f"{sums:.3f}"],
        ["their Gflop/s", "", f"{rate / 1e9:.0f}"],
        [f"Gflop/s of a {size} x {size} product", "", f"{top / 1e9:.0f}"],
        ["ratio", "", f"{rate / top:.2f}"],
        ["peak memory, GB", "", f"{memory / 1e9:.2f}"],
    ]
    note = f"{n} training rows, {len(part.y_test)} test rows, {d} inputs, m = {M}, float32."
    return Report("Covertype, class 2 against the rest", ["", "paper", "ours"], rows, [note], runs)


def _peak_bytes() -> float:
    """Return the device's peak memory, or the process's if the device keeps no count."""
    statistics = jax.devices()[0].memory_stats()
    if statistics and "peak_bytes_in_use" in statistics:
        return float(statistics["peak_bytes_in_use"])
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
