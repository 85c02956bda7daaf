"""Many prototypes: conjugate gradients against the direct sums, with the floor of their passes."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsparse.features import Triangular
from jsparse.kernels import RBF
from jsparse.machines import fixed_size, iterative

from .report import Report

D, C, LENGTHSCALE, TEST_ROWS = 10, 10.0, 3.0, 5000


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets: sums of functions of one and two columns, with noise 0.3."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D)).astype(np.float32)
    y = np.sin(2 * X[:, 0] + X[:, 1]) + X[:, 2] * X[:, 3] + np.cos(3 * X[:, 4]) + 0.5 * X[:, 5]
    return X, (y + 0.3 * rng.standard_normal(n)).astype(np.float32)


def conjugate_gradients(Z: jax.Array, X: jax.Array, y: jax.Array, w: jax.Array) -> Any:
    return iterative.fit(RBF(jnp.float32(LENGTHSCALE)), Z, jnp.float32(C), X, y, w)


def direct(Z: jax.Array, X: jax.Array, y: jax.Array, w: jax.Array) -> Any:
    features = Triangular(RBF(jnp.float32(LENGTHSCALE)), Z)
    return fixed_size.fit_features(features, jnp.float32(C), X, y, w)


def run(*, quick: bool) -> Report:
    return of_size(20_000, 500, 2000) if quick else of_size(200_000, 2000, 10_000)


def of_size(n: int, few: int, many: int) -> Report:
    """Measure direct sums of few prototypes, and conjugate gradients of few and of many."""
    X, y = rows(n, 0)
    test = rows(TEST_ROWS, 1)
    calls = [(direct, few), (conjugate_gradients, few), (conjugate_gradients, many)]
    data = [measured(fit, m, X, y, test) for fit, m in calls]
    gflops, values = rates()
    base = data[0]["core seconds"]
    table = []
    for entry in data:
        m, steps = entry["m"], entry["steps"]
        entry["direct floor"] = (
            2 * n * m * (D + m + m / 2) + 2 * m**3 / 3
        ) / gflops + n * m / values
        # A step: distances and two products, and the profile of every kernel value.
        entry["floor of a step"] = n * m * (2 * D + 4) / gflops + n * m / values
        passes = steps + 2
        floor = passes * entry["floor of a step"] + (8 / 3) * m**3 / gflops
        entry["floor"] = entry["direct floor"] if steps == 0 else floor
        table.append([
            entry["solver"], m, steps,
            *(f"{entry[name]:.1f}" for name in ("seconds", "compile", "core seconds", "floor")),
            f"{entry['core seconds'] / base:.2f}", f"{entry['memory'] / 1e6:.0f}",
            f"{entry['error']:.4f}", f"{entry['residual']:.1g}",
        ])  # fmt: skip
    notes = [
        f"{n} made rows, {D} columns, float32, RBF of lengthscale {LENGTHSCALE}, C = {C}; "
        f"{TEST_ROWS} test rows, whose targets have noise of variance 0.09.",
        "Seconds of the cores (core s) count this process alone, on a machine that others used. "
        f"The floor is in them: operations at the rates of this run, {gflops / 1e9:.0f} Gflop/s of "
        f"a matrix product and {values / 1e9:.2f} G exponentials a second of a core.",
        "Memory is what the compiled program takes beside its arguments and results, in MB.",
        f"Direct sums of {many} prototypes have a floor of {data[2]['direct floor']:.0f} s.",
    ]
    columns = [
        "solver", "m", "steps", "seconds", "compile", "core s", "floor", "of direct", "MB",
        "test mse", "residual",
    ]  # fmt: skip
    result = {"n": n, "d": D, "fits": data, "flops": gflops, "exponentials": values}
    return Report("Many prototypes by conjugate gradients", columns, table, notes, result)


def measured(
    fit: Any, m: int, X: np.ndarray, y: np.ndarray, test: tuple[np.ndarray, np.ndarray]
) -> dict[str, Any]:
    """Return seconds of compilation and of one run, memory and test error of a fit."""
    arguments = jax.device_put((X[:m], X, y, np.ones(len(X), np.float32)))
    start = time.perf_counter()
    program = jax.jit(fit).lower(*arguments).compile()
    compiled = time.perf_counter() - start
    (seconds, core_seconds), machine = spent(lambda: program(*arguments))
    predicted = np.asarray(machine.expansion(test[0]))
    return {
        "solver": fit.__name__.replace("_", " "),
        "m": m,
        "seconds": seconds,
        "core seconds": core_seconds,
        "compile": compiled,
        "memory": program.memory_analysis().temp_size_in_bytes,
        "error": float(np.mean((predicted - test[1]) ** 2)),
        "steps": int(getattr(machine, "steps", 0)),
        "residual": float(machine.relative_residual),
        "status": int(machine.status),
    }


def spent(call: Callable[[], Any]) -> tuple[tuple[float, float], Any]:
    """Return the seconds and the seconds of all cores that a call takes, and its result.

    Other processes slow the first and not the second. On an accelerator the two are equal.
    """
    wall, cores = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(call())
    wall, cores = time.perf_counter() - wall, time.process_time() - cores
    return (wall, cores if jax.default_backend() == "cpu" else wall), result


def rates() -> tuple[float, float]:
    """Return operations of a matrix product, and exponentials, in a second of a core, float32."""
    size = 2048
    A = jnp.full((size, size), 1 / size, jnp.float32)
    product = min(spent(lambda: _product(A))[0][1] for _ in range(4))
    block = jnp.full((64, 8192), -0.5, jnp.float32)
    repeats = 50
    exponential = min(spent(lambda: _exponentials(block, repeats))[0][1] for _ in range(4))
    return 2 * size**3 / product, repeats * block.size / exponential


_product = jax.jit(lambda A: jnp.matmul(A, A, precision="highest"))


@jax.jit
def _exponentials(block: jax.Array, repeats: int) -> jax.Array:
    # Each round depends on the one before, so that none is left out.
    return jax.lax.fori_loop(0, repeats, lambda _, a: -jnp.exp(a), block)
