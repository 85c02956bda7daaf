"""`Gradient` on columns with heavy tails, beside plain steps of Adam on the same prototypes."""

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import cho_solve
from scipy.stats import norm

import jsparse
from jsparse.kernels import RBF
from jsparse.machines import fixed_size

from .report import Report

COLUMNS, TEST_ROWS = 21, 6000
FOLDS, STEPS, RATE = 5, 60, 0.1
GRID = np.log(np.geomspace(1e-1, 1e5, 19))  # of log C, from which every machine gets its best


def lognormal_targets_too(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    f = np.exp(0.8 * G[:, 0] + 0.5 * np.sin(2 * G[:, 1])) + np.exp(0.6 * G[:, 2]) * np.tanh(G[:, 3])
    return np.exp(1.6 * G), f


def lognormal(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    f = np.sin(1.5 * G[:, 0]) + 0.8 * np.tanh(G[:, 1]) * G[:, 2] + 0.6 * np.abs(G[:, 3])
    return np.exp(1.5 * G), f


def cauchy_like(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.clip(np.tan(np.pi * (norm.cdf(G) - 0.5)), -300, 300), lognormal(G)[1]


KINDS = (lognormal_targets_too, lognormal, cauchy_like)


def table(
    kind: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], n: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of 21 columns, of which four count, and targets with noise of deviation 0.1."""
    rng = np.random.default_rng(seed)
    X, f = kind(rng.standard_normal((n, COLUMNS)))
    return X, (f - f.mean()) / f.std() + 0.1 * rng.standard_normal(n)


class Rows(NamedTuple):
    """Standardised rows, divided into folds, and prototypes."""

    X: jax.Array  # shape `v r d`
    y: jax.Array  # shape `v r`
    Z: jax.Array  # prototypes, shape `m d`


def plain_error(theta: jax.Array, rows: Rows) -> jax.Array:
    """Return the mean squared error over the folds; `theta` has log lengthscales, then log `C`."""
    scaled = jnp.exp(-theta[:-1])
    Z, (v, r, d) = rows.Z * scaled, rows.X.shape
    X = rows.X.reshape(v * r, d) * scaled

    def kernel(A: jax.Array) -> jax.Array:
        squares = jnp.sum(A**2, 1)[:, None] + jnp.sum(Z**2, 1)[None] - 2 * A @ Z.T
        return jnp.exp(-jnp.maximum(squares, 0) / 2)

    identity = jnp.eye(len(Z), dtype=X.dtype)
    lower = jnp.linalg.cholesky(kernel(Z) + 1e-5 * identity)
    features = jax.scipy.linalg.solve_triangular(lower, kernel(X).T, lower=True).T
    features = jnp.concatenate([features, jnp.ones((v * r, 1), X.dtype)], 1).reshape(v, r, -1)
    grams = jnp.einsum("vrp,vrq->vpq", features, features)
    crosses = jnp.einsum("vrp,vr->vp", features, rows.y)
    penalty = jnp.diag(jnp.append(jnp.full(len(Z), jnp.exp(-theta[-1])), 1e-6))
    error = jnp.zeros(())
    for fold in range(v):
        factor = jnp.linalg.cholesky(grams.sum(0) - grams[fold] + penalty), True
        weights = cho_solve(factor, crosses.sum(0) - crosses[fold])
        error += jnp.sum((rows.y[fold] - features[fold] @ weights) ** 2)
    return error / (v * r)


error_and_gradient = jax.jit(jax.value_and_grad(plain_error))
error_of_folds = jax.jit(plain_error)


def plain_adam(rows: Rows) -> tuple[np.ndarray, float]:
    """Minimise `plain_error` by Adam; return the best `theta`, and the processor time."""
    d, adam = rows.X.shape[2], optax.adam(RATE)
    theta = jnp.asarray(np.append(np.full(d, np.log(d) / 2), np.log(100.0)), rows.X.dtype)
    state, least, best = adam.init(theta), np.inf, theta
    jax.block_until_ready(error_and_gradient(theta, rows))  # compile
    begin = time.process_time()
    for _ in range(STEPS):
        error, gradient = error_and_gradient(theta, rows)
        if float(error) < least:
            least, best = float(error), theta
        update, state = adam.update(gradient / error, state)
        theta = theta + cast(jax.Array, update)
    return np.asarray(best), time.process_time() - begin


def measured(theta: np.ndarray, rows: Rows, X: jax.Array, y: np.ndarray) -> tuple[float, float]:
    """Return the error over the folds with the best `C` of the grid, and R2 on the new rows `X`."""
    points = [np.append(theta[:-1], C).astype(np.float32) for C in GRID]
    error, log_C = min((float(error_of_folds(p, rows)), p[-1]) for p in points)
    kernel, (v, r, d) = RBF(jnp.exp(jnp.asarray(theta[:-1]))), rows.X.shape
    machine = fixed_size.fit(
        kernel, rows.Z, jnp.exp(log_C), rows.X.reshape(v * r, d), rows.y.reshape(v * r)
    ).expansion
    return error, float(1 - np.mean((np.asarray(machine(X)) - y) ** 2) / np.var(y))


def compare(kind: Callable[..., Any], n: int, m: int) -> dict[str, dict[str, float]]:
    """Compare `Gradient` with `m` prototypes, then with 4 `m`, and Adam with the `m` prototypes."""
    X, y = (a.astype(np.float32) for a in table(kind, n + TEST_ROWS))
    X = (X - X[:n].mean(0)) / X[:n].std(0)
    y = (y - y[:n].mean()) / y[:n].std()
    X_test, y_test = jnp.asarray(X[n:]), y[n:]
    options = {"task": "regression", "key": 0, "search": jsparse.Gradient(), "out_of_fold": False}
    result = {}
    methods = {
        "Gradient": jsparse.FixedSize(m, selection="uniform"),
        "Gradient, then 4 m": jsparse.FixedSize(4 * m, selection="uniform", tuned_with=m),
    }
    for name, method in methods.items():
        if name == "Gradient":
            jsparse.train(X[:n], y[:n], method=method, **options)  # compile
        begin = time.process_time()
        trained = jsparse.train(X[:n], y[:n], method=method, **options)
        seconds = time.process_time() - begin if name == "Gradient" else np.nan
        lengthscales = np.asarray(getattr(trained.kernel, "lengthscale"))  # noqa: B009
        r2 = 1 - np.mean((trained.predict(X[n:]) - y_test) ** 2) / np.var(y_test)
        result[name] = {"seconds": seconds, "cv error": trained.cv_error, "test R2": float(r2)}
        result[name]["log of longest over shortest"] = float(np.ptp(np.log(lengthscales)))
        if name == "Gradient":
            order = np.random.default_rng(1).permutation(n)[: n // FOLDS * FOLDS]
            folds = order.reshape(FOLDS, -1)
            arrays = (X[folds], y[folds], X[trained.point_rows])
            rows = Rows(*map(jnp.asarray, arrays))
            theta = np.append(np.log(lengthscales), np.log(trained.C))
            result[name]["error of folds"] = measured(theta, rows, X_test, y_test)[0]
            adam, seconds = plain_adam(rows)
            error, r2 = measured(adam, rows, X_test, y_test)
            result["Adam"] = {"seconds": seconds, "error of folds": error, "test R2": r2}
    print(kind.__name__, result, file=sys.stderr, flush=True)
    return result


def run(*, quick: bool) -> Report:
    n, m = (1500, 125) if quick else (6000, 500)
    data = {kind.__name__.replace("_", " "): compare(kind, n, m) for kind in KINDS}
    rows = []
    for name, result in data.items():
        for way, cells in result.items():
            numbers = [cells.get(key, np.nan) for key in ("error of folds", "cv error", "test R2")]
            ratio = cells["seconds"] / result["Adam"]["seconds"]
            rows.append([name, way, *(f"{x:.4f}" for x in numbers), f"{cells['seconds']:.1f}",
                         f"{ratio:.2f}"])  # fmt: skip
    return Report(
        "Gradient search on heavy tails, beside plain Adam",
        ["table", "search", "error of five folds", "cv error of training", "test R2",
         "processor seconds", "ratio to Adam"],
        rows,
        [
            f"{n} made rows of {COLUMNS} columns, of which four count; {m} uniform prototypes, the "
            f"same for both; float32; warm. Adam: {STEPS} steps of rate {RATE} on the closed-form "
            "error of five folds, differentiated by JAX. Gradient: the whole of `train`, with "
            "profile and fit. The error of five folds is of the plain script, with the best `C`.",
            f"Then 4 m: `FixedSize({4 * m}, tuned_with={m})`.",
        ],
        data,
    )  # fmt: skip
