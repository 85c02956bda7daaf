"""Pursuits: Figures 4 and 6 of Karsmakers 2011, and speed."""

import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import Lasso, orthogonal_mp_gram

import jsparse
from jsparse import pursuit
from jsparse._status import ADVICE
from jsparse.features import KernelColumns
from jsparse.kernels import RBF
from jsparse.machines.scdp_system import candidate_columns
from jsparse.prototypes import k_center

from .data_sets import benchmark_set
from .report import Report, alternated, over_draws


def figure4(*, quick: bool) -> Report:
    """Compare the squared errors of pursuits with exhaustive search, on random systems."""
    draws, n, D = (10 if quick else 100), 20, 15
    names = ["exhaustive", "SCDP", "SCDP by gain", "LASSO de-biased", "LASSO", "LARS"]
    errors = {name: np.zeros((draws, D + 1)) for name in names}
    for draw in range(draws):
        rng = np.random.default_rng([2011, draw])
        X, y = rng.standard_normal((n, D)), rng.standard_normal(n)
        A, b = X.T @ X + 1e-9 * np.eye(D), X.T @ y
        total = y @ y
        errors["exhaustive"][draw] = total - _exhaustive(A, b)
        for name, rule in (("SCDP", "residual"), ("SCDP by gain", "gain")):
            path = pursuit.scdp(A, b, max_atoms=D, rule=rule)
            errors[name][draw] = total - np.asarray(path.explained)
        lasso = pursuit.lasso(A, b, max_atoms=D)
        lars = pursuit.lars(A, b, max_atoms=D)
        debiased = pursuit.debiased(lasso, jnp.asarray(A), jnp.asarray(b), max_atoms=D)
        for name, path in (("LASSO", lasso), ("LASSO de-biased", debiased), ("LARS", lars)):
            # Several corners may have `k` nonzeros. The paper takes the best.
            nonzeros = (np.asarray(path.coefficients) != 0).sum(axis=1)
            corner_errors = total - np.asarray(path.explained)
            for k in range(D + 1):
                candidates = corner_errors[nonzeros == k]
                errors[name][draw, k] = candidates.min() if len(candidates) else np.nan
    rows = []
    for name in names:
        mse = errors[name] / n
        rows.append([name, *[f"{np.nanmean(mse[:, k]):.4f}" for k in (1, 2, 4, 6, 8, 10, 12, 15)]])
    excess = {
        name: float(np.nanmean((errors[name] - errors["exhaustive"])[:, 1:D] / n)) for name in names
    }
    note = "Mean excess over the exhaustive front, 1 to 14 atoms: " + ", ".join(
        f"{name} {value:.4f}" for name, value in excess.items()
    )
    return Report(
        "Figure 4: mean squared error by number of atoms, random systems of 20 x 15",
        ["method", *[f"{k}" for k in (1, 2, 4, 6, 8, 10, 12, 15)]],
        rows,
        [f"{draws} draws.", note + "."],
        {name: over_draws(errors[name]) for name in names},
    )


def _exhaustive(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the largest b'w of solutions w of A w = b on `k` atoms, for every `k` up to all."""
    D = len(b)
    best = np.zeros(D + 1)
    for k in range(1, D + 1):
        sets = np.array(list(itertools.combinations(range(D), k)))
        for supports in np.array_split(sets, max(1, len(sets) // 2000)):
            matrix = A[supports[:, :, None], supports[:, None, :]]
            w = np.linalg.solve(matrix, b[supports][..., None])[..., 0]
            best[k] = max(best[k], np.einsum("sk,sk->s", w, b[supports]).max())
    return best


NOISE = [1e-4, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 8e-3, 1e-2]


def figure6(*, quick: bool) -> Report:
    """Recover 160 spikes out of 4096 from 1024 measurements, by variance of the noise."""
    runs, n, D, spikes = (2, 256, 1024, 40) if quick else (100, 1024, 4096, 160)
    steps = [spikes, 5 * spikes // 4, 3 * spikes // 2]
    names = [f"SCDP, {k} steps" for k in steps] + ["LASSO"]
    hits = {name: np.zeros((runs, len(NOISE))) for name in names}
    for run in range(runs):
        X, y, w = _spikes(n, D, spikes, run)
        dictionaries = jnp.stack([jnp.asarray(X)] * len(NOISE))
        path = pursuit.omp(dictionaries, jnp.asarray(y), max_atoms=steps[-1])
        for i in range(len(NOISE)):
            one_path = jax.tree.map(lambda a, i=i: a[i], path)
            signals = [np.asarray(one_path.dense(D, k)) for k in steps] + [_lasso(X, y[i], w)]
            for name, signal in zip(names, signals, strict=True):
                hits[name][run, i] = _recovered(signal, w)
    rows = [
        [f"{variance:g}", *[f"{100 * hit[:, i].mean():.0f}" for hit in hits.values()]]
        for i, variance in enumerate(NOISE)
    ]
    data = {name: hit.mean(axis=0).tolist() for name, hit in hits.items()}
    notes = [
        f"{spikes} spikes of +-1, {n} x {D}, rows orthonormal; {runs} runs, each with all "
        "variances. Recovered: the positions of all spikes, after thresholding at half their size; "
        "the LASSO de-biased before. Its lambda is 0.1 max |X'y| (Figueiredo et al. 2007).",
        f"SCDP is run on the rows (`omp`), where it selects the same atoms. Of {steps[0]} steps "
        "none may be wrong; of more, the coefficients of wrong ones are small (the paper does not "
        "say how many it takes).",
    ]
    title = "Figure 6: % of signals recovered, by variance of the noise"
    return Report(title, ["variance", *names], rows, notes, data)


def _spikes(n: int, D: int, spikes: int, run: int) -> tuple[np.ndarray, ...]:
    """Return a matrix, noisy measurements of a signal for each variance, and the signal."""
    rng = np.random.default_rng([2011, run])
    X = np.linalg.qr(rng.standard_normal((D, n)))[0].T.astype(np.float32)
    w = np.zeros(D, np.float32)
    w[rng.permutation(D)[:spikes]] = rng.choice([-1.0, 1.0], spikes)
    noise = rng.standard_normal((len(NOISE), n))
    y = X @ w + np.sqrt(NOISE)[:, None] * noise
    return X, y.astype(np.float32), w


def _lasso(X: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the signal by the LASSO and least squares on its support, in the shape of `w`."""
    penalty = 0.1 * np.abs(X.T @ y).max()
    model = Lasso(alpha=penalty / len(y), fit_intercept=False, max_iter=2000, tol=1e-4)
    coefficients = model.fit(X, y).coef_
    support = np.flatnonzero(np.abs(coefficients) > 1e-3)[: len(y)]
    out = np.zeros_like(w)
    out[support] = np.linalg.lstsq(X[:, support], y, rcond=None)[0]  # the de-bias step
    return out


def _recovered(signal: np.ndarray, w: np.ndarray) -> bool:
    return bool(np.array_equal(np.abs(signal) > 0.5, w != 0))


def speed(*, quick: bool) -> Report:
    """Time SCDP on a system of adult, against scikit-learn and the time to read the data."""
    D, k = (501, 100) if quick else (2001, 800)
    A64, b64 = _adult_system(D)
    rows, data = [], {}
    for dtype in ("float64", "float32"):
        A, b = A64.astype(dtype), b64.astype(dtype)
        Aj, bj = jnp.asarray(A), jnp.asarray(b)
        images, weights = jnp.ones((k, D), dtype), jnp.ones(k, dtype)

        # The floor: each step only reads the images of the earlier steps once.
        @jax.jit
        def reading(images: jax.Array, weights: jax.Array) -> jax.Array:
            def one(i: jax.Array, total: jax.Array) -> jax.Array:
                row = images[i] * total[0]
                return total + row

            def step(size: jax.Array, total: jax.Array) -> jax.Array:
                def block(j: jax.Array, t: jax.Array) -> jax.Array:
                    part = jax.lax.dynamic_slice_in_dim(images, j * 50, 50)
                    w = jax.lax.dynamic_slice_in_dim(weights, j * 50, 50)
                    return t + w @ part

                return jax.lax.fori_loop(0, (size + 49) // 50, block, total)

            return jax.lax.fori_loop(0, k, step, jnp.zeros(D, images.dtype))

        calls = {
            "ours": functools.partial(pursuit.scdp, Aj, bj, max_atoms=k),
            "theirs": functools.partial(orthogonal_mp_gram, A64, b64, n_nonzero_coefs=k),
            "floor": functools.partial(reading, images, weights),
        }
        seconds = alternated(calls, 2 if quick else 5)
        path = calls["ours"]()
        theirs = np.flatnonzero(orthogonal_mp_gram(A64, b64, n_nonzero_coefs=k))
        common = len(set(theirs.tolist()) & set(np.asarray(path.support).tolist()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may end early, which `their_size` reports
            their_size = int(np.sum(orthogonal_mp_gram(A, b, n_nonzero_coefs=k) != 0))
        for against in ("theirs", "floor"):
            whose = "orthogonal_mp_gram, float64"
            name = whose if against == "theirs" else "reading the images alone"
            ratio = seconds[against] / seconds["ours"]
            rows.append(
                [
                    f"SCDP, {dtype}",
                    f"{seconds['ours']:.3f}",
                    name,
                    f"{seconds[against]:.3f}",
                    f"{ratio:.2f}",
                    {"theirs": {"float64": "1.5", "float32": "3"}[dtype], "floor": ""}[against],
                ]
            )
        data[dtype] = {
            **seconds,
            "common": common,
            "size": int(path.size),
            "their size": their_size,
            "status": ADVICE[int(path.status)],
            "condition": float(path.condition[int(path.size) - 1]),
        }
    folds = _folds(quick)
    rows.append(
        [
            "ten folds in one batch",
            f"{folds['batch']:.3f}",
            "ten, one after another",
            f"{folds['each']:.3f}",
            f"{folds['each'] / folds['batch']:.2f}",
            "1",
        ]
    )
    notes = [
        f"D = {D}, k = {k}: adult, candidates by k-centre, C = 10, lengthscale 4. Atoms in common "
        f"with scikit-learn's in float64: {data['float64']['common']} of {k} in float64, "
        f"{data['float32']['common']} in float32, where SCDP ends with {data['float32']['size']} "
        f"atoms, as the others depend on these to rounding, and scikit-learn with "
        f"{data['float32']['their size']}. Condition of those selected, float64: "
        f"{data['float64']['condition']:.1e}.",
        "How many times faster than what stands against it; the mark in the last column.",
    ]
    columns = ["what", "seconds", "against", "seconds", "times faster", "mark"]
    return Report("Speed of SCDP, warm", columns, rows, notes, data | {"folds": folds})


def _adult_system(D: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the system (34) of adult's training rows, with the intercept as the last atom."""
    data = benchmark_set("adult", complete=True)
    rows = np.random.default_rng(0).permutation(len(data.y))[:30148]
    X, y = data.X[rows].astype(float), data.y[rows].astype(float)
    X = (X - X.mean(0)) / X.std(0)
    X, y, M = jnp.asarray(X), jnp.asarray(y), D - 1
    Z = X[k_center(jax.random.key(0), X, M).indices]
    kernel, C = RBF(4.0), 10.0
    sums = jsparse.accumulate(KernelColumns(kernel, Z), X, y)
    f, N = sums.feature_sum, sums.weight_sum
    A = jnp.block(
        [[sums.gram + kernel.gram(Z) / C, f[:, None]], [f[None, :], N[None, None] + 1e-8]]
    )
    return np.asarray(A), np.asarray(jnp.append(sums.cross, sums.target_sum))


def _folds(quick: bool) -> dict[str, float]:
    """Return the times of SCDP on ten folds of magic: in a batch, one after another, and of one."""
    data = benchmark_set("magic")
    M, k = (200, 50) if quick else (1000, 200)
    rows = np.random.default_rng(0).permutation(len(data.y))[: 2000 if quick else 12000]
    X, y = data.X[rows].astype(float), jnp.asarray(data.y[rows], float)
    X = jnp.asarray((X - X.mean(0)) / X.std(0))
    Z, kernel = X[:M], RBF(3.0)
    columns, C, nu = candidate_columns(kernel, Z), jnp.asarray(10.0), jnp.asarray(0.0)
    trains = [jnp.asarray(np.arange(len(X)) % 10 != v, float) for v in range(10)]
    systems = [columns.system(jsparse.accumulate(columns, X, y, w), C, nu)[:2] for w in trains]
    A, b = (jnp.stack(a) for a in zip(*systems, strict=True))
    calls = {
        "batch": lambda: pursuit.scdp(A, b, max_atoms=k),
        "each": lambda: [pursuit.scdp(A[v], b[v], max_atoms=k) for v in range(10)],
        "one": lambda: pursuit.scdp(A[0], b[0], max_atoms=k),
    }
    return alternated(calls, 2 if quick else 5)
