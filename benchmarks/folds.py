"""Tables 3 and 4 of De Brabanter 2010: fast against simple cross-validation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import jsparse
from jsparse.features import Nystroem
from jsparse.kernels import RBF

from .data_sets import benchmark_set
from .report import Report, alternated

FOLDS = (5, 10, 20, 30, 40, 50)
# Seconds: simple, optimised.
PAPER_3 = {
    50: ((0.066, 0.14, 0.29, 0.44, 0.57, 0.71), (0.009, 0.012, 0.015, 0.018, 0.019, 0.021)),
    100: ((0.19, 0.38, 0.75, 1.15, 1.49, 1.86), (0.031, 0.033, 0.035, 0.039, 0.052, 0.058)),
    400: ((3.60, 7.27, 14.51, 21.62, 31.07, 39.12), (0.40, 0.45, 0.53, 0.57, 0.65, 0.76)),
}
PAPER_4 = {
    50: ((0.71, 1.51, 2.98, 4.47, 6.05, 7.60), (0.15, 0.16, 0.16, 0.17, 0.19, 0.19)),
    300: ((6.27, 12.80, 25.49, 38.08, 50.94, 64.43), (1.52, 1.57, 1.60, 1.64, 1.66, 1.83)),
    700: (
        (29.01, 58.56, 117.12, 179.44, 231.59, 290.36),
        (5.95, 6.06, 6.34, 6.60, 6.94, 7.11),
    ),
}


def table3(*, quick: bool) -> Report:
    return _table("Table 3", "concrete", PAPER_3, "float64", quick)


def table4(*, quick: bool) -> Report:
    return _table("Table 4", "magic", PAPER_4, "float32", quick)


@functools.partial(jax.jit, static_argnames="metric")
def fast(kernel, Z, C, X, y, folds, metric):
    return jsparse.cross_validate(Nystroem(kernel, Z), C, X, y, folds, metric=metric).scores


@functools.partial(jax.jit, static_argnames="metric")
def simple(kernel, Z, C, X, y, folds, others, metric):
    """Return the error by a separate fit for each fold, to the rows `others` (Section 7.1)."""

    def one(fold):
        rows, valid, training = fold
        # `others` is padded with -1; these rows get weight 0.
        weights = (training >= 0).astype(X.dtype)
        training = jnp.maximum(training, 0)
        fitted = jsparse.fixed_size.fit(kernel, Z, C[0], X[training], y[training], weights)
        f = fitted.expansion(X[rows])
        if metric == "mse":
            loss = jnp.square(y[rows] - f)
        else:
            loss = jnp.where((f >= 0) == (y[rows] > 0), 0, 1).astype(X.dtype)
        return jnp.sum(jnp.where(valid, loss, 0))

    return jnp.sum(jax.lax.map(one, (folds.index, folds.valid, others)))[None] / X.shape[0]


def training_rows(folds: jsparse.Folds, n: int) -> np.ndarray:
    """Return the numbers of the rows outside of each fold, padded with -1, shape `v r`."""
    outside = []
    for index, valid in zip(np.asarray(folds.index), np.asarray(folds.valid), strict=True):
        outside.append(np.setdiff1d(np.arange(n), index[valid]))
    width = max(len(rows) for rows in outside)
    return np.stack([np.pad(r, (0, width - len(r)), constant_values=-1) for r in outside])


def _table(title: str, name: str, paper: dict, dtype: str, quick: bool) -> Report:
    """Compare the times of both ways on a set, for the prototypes in `paper`, beside its times."""
    data = benchmark_set(name)
    X = jnp.asarray((data.X - data.X.mean(0)) / data.X.std(0), dtype)
    metric = "mse" if data.task == "regression" else "misclassification"
    y = data.y.astype(float)
    y = jnp.asarray((y - y.mean()) / y.std() if metric == "mse" else y, dtype)
    n = len(y)
    kernel, C = RBF(jnp.asarray(2.0, dtype)), jnp.array([10.0], dtype)
    rows, results = [], []
    for m, (theirs_simple, theirs_fast) in list(paper.items())[: 1 if quick else None]:
        Z = X[np.random.default_rng(0).permutation(n)[:m]]
        for i, v in enumerate(FOLDS[:2] if quick else FOLDS):
            folds = jsparse.plain_folds(jax.random.key(v), n, v)
            others = jnp.asarray(training_rows(folds, n))
            repeats = 1 if m * v * n > 1e8 else 7
            calls = {
                "fast": functools.partial(fast, kernel, Z, C, X, y, folds, metric),
                "simple": functools.partial(simple, kernel, Z, C, X, y, folds, others, metric),
            }
            seconds = alternated(calls, repeats)
            a, b = (float(call()[0]) for call in calls.values())
            if abs(a - b) > (1e-6 if dtype == "float64" else 2e-3) * (1 + abs(a)):
                raise AssertionError(f"m = {m}, {v} folds: fast says {a}, simple {b}")
            ratio, theirs = seconds["simple"] / seconds["fast"], theirs_simple[i] / theirs_fast[i]
            rows.append(
                [
                    m,
                    v,
                    f"{1e3 * seconds['simple']:.1f}",
                    f"{1e3 * seconds['fast']:.1f}",
                    f"{ratio:.1f}",
                    f"{theirs:.1f}",
                ]
            )
            results.append({"m": m, "folds": v, **seconds, "ratio": ratio, "paper": theirs})
    note = f"One kernel and C; {dtype}; both give the same error, which the benchmark checks."
    return Report(
        f"{title}: simple against fast cross-validation on {name} ({n} rows)",
        ["m", "folds", "simple, ms", "fast, ms", "ratio", "paper's ratio"],
        rows,
        [note],
        results,
    )
