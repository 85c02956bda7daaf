"""Precision of float32 in hard cases: large `C`, large lengthscales, many prototypes."""

import jax.numpy as jnp
import numpy as np

import jsparse
from jsparse._status import CONVERGED
from jsparse.kernels import RBF

from .report import Report


def stress(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 10))
    noise = 0.3 * rng.standard_normal(n)
    label = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] ** 2 - 0.5 + noise
    return x, np.where(label >= 0, 1.0, -1.0)


def run(*, quick: bool) -> Report:
    n, m = (2000, 200) if quick else (10_000, 1000)
    X, y = stress(n, 0)
    X_test, y_test = stress(n, 1)
    rows, data = [], []
    for lengthscale in (20.0, 200.0):
        for C in 10.0 ** np.arange(3, 9):
            results = {}
            for dtype in ("float64", "float32"):
                Xd = jnp.asarray(X, dtype)
                fitted = jsparse.fixed_size.fit(
                    RBF(lengthscale), Xd[:m], C, Xd, jnp.asarray(y, dtype)
                )
                f = np.asarray(fitted.expansion(X_test))
                results[dtype] = {
                    "error": float(100 * np.mean((f >= 0) != (y_test > 0))),
                    "trusted": int(fitted.status) == CONVERGED,
                    "rank": int(fitted.effective_rank),
                }
            gap = results["float32"]["error"] - results["float64"]["error"]
            honest = abs(gap) <= 1 or not results["float32"]["trusted"]
            rows.append(
                [
                    lengthscale,
                    f"{C:.0e}",
                    *[f"{results[d]['error']:.2f}" for d in results],
                    f"{gap:+.2f}",
                    *[f"{results[d]['rank']}" for d in results],
                    "trusted" if results["float32"]["trusted"] else "precision lost",
                    "yes" if honest else "NO",
                ]
            )
            data.append({"lengthscale": lengthscale, "C": C, **results, "honest": honest})
    return Report(
        f"float32 against float64: {n} rows, 10 inputs, m = {m}; per cent misclassified",
        [
            "lengthscale",
            "C",
            "float64",
            "float32",
            "difference",
            "rank, float64",
            "rank, float32",
            "float32's status",
            "within 1 point or said",
        ],
        rows,
        [
            f"{sum(d['honest'] for d in data)} of {len(data)} cases: float32 agrees with float64 "
            "within one point, or says that it is not to be trusted."
        ],
        data,
    )
