"""Speed of the LS-SVM in the dual: solvers, leave-one-out, and recursive feature machines."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.kernel_ridge import KernelRidge

import jsparse
from jsparse._status import ADVICE
from jsparse.kernels import RBF, Matern32
from jsparse.machines import agop, dual

from .data_sets import benchmark_set
from .report import Report, alternated

C = 10.0


def run(*, quick: bool) -> Report:
    """Join the parts; each returns lines of the table, notes, and numbers for the JSON file."""
    rows, notes, data = [], [], {}
    for part in (cholesky, leave_one_out, conjugate_gradients, derivatives, recursive):
        more_rows, more_notes, numbers = part(quick)
        rows, notes = rows + more_rows, notes + more_notes
        data[part.__name__] = numbers
    columns = ["what", "seconds", "against", "seconds", "ratio"]
    title = "The LS-SVM in the dual, warm, compilation apart"
    return Report(title, columns, rows, notes, data)


def _scaled(name: str, n: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return `n` scaled rows, targets, and the lengthscale of scikit-learn's gamma = 1 / d."""
    data = benchmark_set(name)
    rows = np.random.default_rng(0).permutation(len(data.y))[:n]
    X, y = data.X[rows], data.y[rows]
    scale = X.std(0)
    return (X - X.mean(0)) / np.where(scale > 0, scale, 1), y, float(np.sqrt(X.shape[1] / 2))


def cholesky(quick: bool):
    """Compare a fit by Cholesky with scikit-learn's kernel ridge of the same kernel and penalty."""
    n = 1000 if quick else 4000
    X, y, lengthscale = _scaled("magic", n)
    rows, numbers = [], {}
    for dtype in ("float64", "float32"):
        Xd, yd = X.astype(dtype), y.astype(dtype)
        ridge = KernelRidge(alpha=1 / C, kernel="rbf", gamma=1 / (2 * lengthscale**2))
        arguments = RBF(lengthscale), C, jnp.asarray(Xd), jnp.asarray(yd)
        calls = {
            "ours": functools.partial(dual.fit, *arguments, method="cholesky"),
            # KernelRidge has no intercept, so its targets are centred.
            "theirs": functools.partial(ridge.fit, Xd, yd - yd.mean()),
        }
        seconds = alternated(calls, 2 if quick else 5)
        fitted = calls["ours"]()
        rows.append(
            [
                f"Cholesky, magic, {n} rows, {dtype}",
                f"{seconds['ours']:.3f}",
                "KernelRidge",
                f"{seconds['theirs']:.3f}",
                f"{seconds['ours'] / seconds['theirs']:.2f}",
            ]
        )
        numbers[dtype] = {**seconds, "residual": float(fitted.relative_residual)}
    note = "Relative residuals by Cholesky: " + ", ".join(
        f"{dtype} {of['residual']:.1e}" for dtype, of in numbers.items()
    )
    return rows, [note + "."], numbers


def leave_one_out(quick: bool):
    """Compare leave-one-out for 25 values of C, and for one, with one eigendecomposition."""
    n = 500 if quick else 2000
    X, y, lengthscale = _scaled("magic", n)
    kernel, grid = RBF(lengthscale), jnp.geomspace(1e-2, 1e6, 25)
    Xj, yj = jnp.asarray(X), jnp.asarray(y, X.dtype)
    K = kernel.gram(Xj)
    eigh = jax.jit(jnp.linalg.eigh)
    calls = {
        "25 C": lambda: dual.leave_one_out(kernel, grid, Xj, yj),
        "one C": lambda: dual.leave_one_out(kernel, grid[12:13], Xj, yj),
        "eigh": lambda: eigh(K),
    }
    seconds = alternated(calls, 2 if quick else 5)
    rows = [
        [
            f"leave-one-out, {name}, magic, {n} rows, float64",
            f"{seconds[name]:.3f}",
            "one eigendecomposition",
            f"{seconds['eigh']:.3f}",
            f"{seconds[name] / seconds['eigh']:.2f}",
        ]
        for name in ("25 C", "one C")
    ]
    return rows, [], seconds


def conjugate_gradients(quick: bool):
    """Fit all of adult's training rows without forming their kernel matrix."""
    X, y, lengthscale = _scaled("adult", 4000 if quick else 32_000)
    X, y = jnp.asarray(X, jnp.float32), jnp.asarray(y, jnp.float32)
    n, kernel = len(X), RBF(lengthscale)
    fit = jax.jit(lambda X, y: dual.fit(kernel, C, X, y, method="conjugate_gradients"))
    start = time.perf_counter()
    compiled = fit.lower(X, y).compile()
    compilation = time.perf_counter() - start
    start = time.perf_counter()
    fitted = jax.block_until_ready(compiled(X, y))
    seconds = time.perf_counter() - start

    # A step multiplies by the kernel matrix. The floor is this product alone, in blocks.
    @jax.jit
    def product(X: jax.Array, v: jax.Array) -> jax.Array:
        blocks = X.reshape(-1, 2000, X.shape[1])
        return jax.lax.map(lambda rows: kernel.cross_gram(rows, X) @ v, blocks)

    two = jnp.stack([jnp.ones_like(y), y], axis=1)
    bare = alternated({"product": lambda: product(X, two)}, 1 if quick else 3)["product"]
    steps = int(fitted.steps)
    memory = compiled.memory_analysis().temp_size_in_bytes
    row = [
        f"conjugate gradients, adult, {n} rows, float32",
        f"{seconds:.1f}",
        f"{steps} bare products with the kernel matrix",
        f"{steps * bare:.1f}",
        f"{seconds / (steps * bare):.2f}",
    ]
    note = (
        f"Conjugate gradients, C = {C:g}: {steps} steps, relative residual "
        f"{float(fitted.relative_residual):.1e}, status '{ADVICE[int(fitted.status)]}', "
        f"{memory / 2**20:.0f} MiB of working memory against {4 * n * n / 2**20:.0f} MiB for the "
        f"kernel matrix; compilation {compilation:.1f} s."
    )
    numbers = {"seconds": seconds, "steps": steps, "product": bare, "memory": memory,
               "residual": float(fitted.relative_residual), "rows": n}  # fmt: skip
    return [row], [note], numbers


def made_rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs with 20 columns, six of which matter, and targets with noise; float32."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 20)).astype(np.float32)
    y = np.sin(2 * X[:, 0] + X[:, 1]) + X[:, 2] * X[:, 3] + np.cos(3 * X[:, 4]) + 0.5 * X[:, 5]
    return X, (y + 0.1 * rng.standard_normal(n)).astype(np.float32)


def derivatives(quick: bool):
    """Compare the time of the average gradient outer product with the time of the fit."""
    n = 1000 if quick else 6000
    X, y = (jnp.asarray(a) for a in made_rows(n))
    kernel = Matern32(jnp.full(20, 5.0, jnp.float32))
    fit = functools.partial(dual.fit, kernel, C, X, y, method="cholesky")
    machine = fit().expansion
    calls = {
        "fit": fit,
        "scales of the columns": lambda: agop(machine, X, diagonal=True),
        "whole product": lambda: agop(machine, X),
    }
    seconds = alternated(calls, 2 if quick else 5)
    rows = [
        [
            f"gradient outer product, {name}, {n} x 20 rows, float32",
            f"{seconds[name]:.2f}",
            "one fit by Cholesky",
            f"{seconds['fit']:.2f}",
            f"{seconds[name] / seconds['fit']:.2f}",
        ]
        for name in ("scales of the columns", "whole product")
    ]
    return rows, [], seconds


def recursive(quick: bool):
    """Train without options: every row, and a metric in five rounds for three families."""
    n = 500 if quick else 6000
    X, y = made_rows(n)
    jsparse.train(X, y, task="regression", key=0)  # compiles
    start = time.perf_counter()
    trained = jsparse.train(X, y, task="regression", key=0)
    seconds = time.perf_counter() - start
    test_X, test_y = made_rows(n + 2000)
    error = float(np.mean((trained.predict(test_X[n:]) - test_y[n:]) ** 2) / np.var(test_y))
    row = [f"train without options, {n} x 20 rows, float32", f"{seconds:.1f}", "", "", ""]
    note = (
        "Without options `train` compares three families of kernels and learns a metric in up to "
        "five rounds, both on 1,000 of the rows, and fits the machine to every row: a mean squared "
        f"error of {error:.3f} variances on new rows."
    )
    return [row], [note], {"seconds": seconds, "error": error, "kernel": str(trained.kernel)}
