"""Many prototypes: conjugate gradients against the direct sums, with the floor of their passes."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

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
    """Compare direct sums of few prototypes with conjugate gradients of few and of many."""
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
    """Return compilation time, run time, memory and test error of a fit with `m` prototypes."""
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
    """Return wall time and processor time of a call, in seconds, and its result.

    Other processes lengthen only the wall time. On an accelerator the two times are equal.
    """
    wall, cores = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(call())
    wall, cores = time.perf_counter() - wall, time.process_time() - cores
    return (wall, cores if jax.default_backend() == "cpu" else wall), result


def rates() -> tuple[float, float]:
    """Return how many operations of a product, and exponentials, a core does in a second."""
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


def preconditioners(*, quick: bool) -> Report:
    """Compare preconditioners by the error of the machine after some steps, in float64."""
    n, m = (1500, 400) if quick else (6000, 1500)
    X, y = (a.astype(float) for a in rows(n, 0))
    Z, marks, rng = X[:m], (5, 10, 20, 40, 80, 160), np.random.default_rng(1)
    columns, gram = _rbf(X, Z), _rbf(Z, Z)
    columns, y = columns - columns.mean(axis=0), y - y.mean()
    table, data = [], []
    for C in (1.0, 10.0, 100.0):
        matrix = columns.T @ columns + gram / C + 1e-9 * np.eye(m)
        solvers = {"two Cholesky factors (Falkon)": _falkon(gram, n, C)}
        for rank in (m // 10, m // 4, m // 2):
            name = f"pivoted Cholesky, rank {rank}"
            solvers[name] = _low_rank(_pivoted(gram, rank, rng), n / m, C)
        for name, solver in solvers.items():
            errors = _errors(matrix, columns.T @ y, solver, marks)
            table.append([C, name, *(f"{error:.0e}" for error in errors)])
            data.append({"C": C, "preconditioner": name, "errors": errors})
    note = (
        f"{n} made rows, {m} prototypes, float64. Errors after so many steps are in the norm of "
        "the objective, relative to the solution's; below 1e-2 the test error hardly changes."
    )
    return Report(
        "Preconditioners",
        ["C", "preconditioner", *(f"{mark} steps" for mark in marks)],
        table,
        [note],
        {"n": n, "m": m, "of": data},
    )


def _rbf(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    squares = np.sum(X**2, axis=1)[:, None] + np.sum(Z**2, axis=1) - 2 * X @ Z.T
    return np.exp(-squares / 2 / LENGTHSCALE**2)


def _falkon(gram: np.ndarray, n: int, C: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return the preconditioner that takes the prototypes for a sample of the `n` rows."""
    m = len(gram)
    L = np.linalg.cholesky(gram + 1e-10 * np.eye(m))
    centred = L - L.mean(axis=0)
    A = np.linalg.cholesky(n / m * centred.T @ centred + np.eye(m) / C)

    def apply(r: np.ndarray) -> np.ndarray:
        for factor, trans in ((L, 0), (A, 0), (A, 1), (L, 1)):
            r = scipy.linalg.solve_triangular(factor, r, lower=True, trans=trans)
        return r

    return apply


def _pivoted(gram: np.ndarray, rank: int, rng: np.random.Generator) -> np.ndarray:
    """Return a factor `F`, shape `m rank`, with randomly chosen pivots (Chen et al. 2022)."""
    F, left = np.zeros((len(gram), rank)), np.diag(gram).copy()
    for i in range(rank):
        pivot = rng.choice(len(gram), p=left / left.sum())
        column = gram[:, pivot] - F[:, :i] @ F[pivot, :i]
        F[:, i] = column / np.sqrt(column[pivot])
        left = np.maximum(left - F[:, i] ** 2, 0)
    return F


def _low_rank(F: np.ndarray, share: float, C: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return the inverse of `share (F F')^2 + F F' / C`, with its least eigenvalue off the span."""
    U, s, _ = np.linalg.svd(F, full_matrices=False)
    values = share * s**4 + s**2 / C
    return lambda r: U @ ((1 / values - 1 / values[-1]) * (U.T @ r)) + r / values[-1]


def _errors(
    matrix: np.ndarray,
    rhs: np.ndarray,
    precondition: Callable[[np.ndarray], np.ndarray],
    marks: tuple[int, ...],
) -> list[float]:
    """Return the relative errors of conjugate gradients after the numbers of steps in `marks`."""
    solution = np.linalg.solve(matrix, rhs)
    size, x, r = solution @ matrix @ solution, np.zeros_like(rhs), rhs
    z = direction = precondition(r)
    errors = []
    for step in range(1, marks[-1] + 1):
        image, before = matrix @ direction, r @ z
        alpha = before / (direction @ image)
        x, r = x + alpha * direction, r - alpha * image
        z = precondition(r)
        direction = z + (r @ z) / before * direction
        if step in marks:
            errors.append(float(np.sqrt((x - solution) @ matrix @ (x - solution) / size)))
    return errors
