"""Kernel subspace, matching and basis pursuit: Tables 1 to 6 of Kabbara 2015, and speed."""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import orthogonal_mp

from jsparse import KBP, KMP, KSP, folds_from_assignment, pursuit, validate
from jsparse.kernels import RBF, Linear, Polynomial
from jsparse.machines import pursuits

from .data_sets import benchmark_set
from .report import Report, alternated, save, saved_data, timed

L, TEST = 400, 200
VARIANCE = 0.15
FOLDS = 5
WIDTHS = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.5])
SIZES = tuple(range(5, 101, 5))
METHODS = {"KSP": KSP, "KMP": KMP, "KBP": KBP}


def doppler(x: np.ndarray) -> np.ndarray:
    return np.sqrt(x * (1 - x)) * np.sin(2 * np.pi * 1.5 / (x + 0.5))


def blocks(x: np.ndarray) -> np.ndarray:
    a = np.array([4, -5, 3, -4, 5, -4.2, 2.1, 4.3, -3.1, 2.1, -4.2])
    b = np.array([10, 13, 15, 23, 25, 40, 44, 65, 76, 78, 81]) / 100
    return ((1 + np.sign(x[:, None] - b)) / 2) @ a


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "cos(exp(x))": lambda x: np.cos(np.exp(x)),
    "sin(exp(x))": lambda x: np.sin(np.exp(x)),
    "tanh(x)": np.tanh,
    "tan(x)": np.tan,
    "Heavisine": lambda x: 4 * np.sin(4 * np.pi * x) - np.sign(x - 0.3) - np.sign(0.72 - x),
    "Doppler": doppler,
    "Blocks": blocks,
}
# Tables 1 (Gaussian kernel) and 2 (polynomial kernel): mean squared error of KSP, KMP and KBP.
PAPER: dict[str, dict[str, tuple[float, float, float]]] = {
    "gaussian": {
        "cos(exp(x))": (0.00214, 0.00212, 0.049),
        "sin(exp(x))": (0.00255, 0.00216, 0.7911),
        "tanh(x)": (0.00291, 0.00369, 0.2223),
        "tan(x)": (0.00348, 0.00658, 0.3107),
        "Heavisine": (0.06323, 0.11921, 9.5013),
        "Doppler": (0.0235, 0.04025, 0.0881),
        "Blocks": (1.4258, 1.6615, 5.8548),
    },
    "polynomial": {
        "cos(exp(x))": (0.00116, 0.00088, 0.24158),
        "sin(exp(x))": (0.00173, 0.011966, 0.81667),
        "tanh(x)": (0.00112, 0.00267, 0.54034),
        "tan(x)": (0.00151, 0.00213, 0.46754),
        "Heavisine": (6.93244, 7.72686, 8.57339),
        "Doppler": (0.07833, 0.07937, 0.08588),
        "Blocks": (3.27133, 3.65594, 6.07591),
    },
}
# Tables 3 (Gaussian kernel) and 4 (polynomial kernel): mean squared error on the real sets.
PAPER_REAL = {
    "gaussian": {
        "boston": (106.0016, 119.4577, 268.31759),
        "abalone": (0.05389, 0.0626, 8.8319),
        "istanbul": (0.00002, 0.00003, 0.00199),
    },
    "polynomial": {
        "boston": (24.4105, 69.5966, 26.4025),
        "abalone": (9.6848, 15.0165, 71.70987),
        "istanbul": (0.00002, 0.00015, 0.00015),
    },
}
REAL = tuple(PAPER_REAL["gaussian"])
# Table 5: milliseconds of KSP, KMP and KBP.
PAPER_TIMES = {
    "cos(exp(x))": (146.64, 287.04, 124.80),
    "sin(exp(x))": (102.96, 254.28, 115.44),
    "tanh(x)": (85.80, 124.80, 235.56),
    "tan(x)": (96.72, 226.20, 143.52),
    "Heavisine": (38.22, 322.61, 140.40),
    "Doppler": (89.86, 242.74, 447.41),
    "Blocks": (32.45, 336.03, 219.96),
}
# Table 6: mean squared error and milliseconds of KSP with 10, 50, 100 and 200 atoms, width 3.
PAPER_K = {
    "cos(exp(x))": ((0.01029, 0.01027, 0.01014, 0.01009), (12.00, 54.00, 124.80, 577.20)),
    "sin(exp(x))": ((0.01048, 0.01041, 0.01040, 0.01039), (21.00, 78.00, 187.20, 717.60)),
    "tanh(x)": ((0.01012, 0.00993, 0.00989, 0.00981), (13.20, 79.00, 249.60, 639.60)),
    "tan(x)": ((0.01053, 0.01035, 0.01032, 0.01024), (17.40, 62.40, 253.60, 811.21)),
    "Heavisine": ((0.6760, 0.5870, 0.5770, 0.556), (4.16, 61.9, 241.00, 836.00)),
    "Doppler": ((0.0865, 0.0858, 0.0853, 0.0844), (9.88, 60.3, 264, 852)),
    "Blocks": ((3.205, 3.131, 2.789, 2.769), (10.80, 54.60, 204.36, 683.60)),
}


def draw(name: str, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training rows with noise, and test rows without noise."""
    rng = np.random.default_rng([2015, list(FUNCTIONS).index(name), number])
    x = rng.uniform(size=L + TEST)
    y = FUNCTIONS[name](x)
    noisy = y[:L] + np.sqrt(VARIANCE) * rng.standard_normal(L)
    return x[:L, None], noisy, x[L:, None], y[L:]


def method_of(name: str, sizes: tuple[int, ...], **options: Any) -> pursuits.Pursuit:
    """Return a pursuit without an intercept, as in the paper."""
    kind = {"KMP": functools.partial(KMP, fitting="backfitting")}.get(name, METHODS[name])
    return kind(n_prototypes=sizes, max_prototypes=sizes[-1], intercept=False, **options)


@functools.partial(jax.jit, static_argnames="kind")
def search(
    method: pursuits.Pursuit, kind: str, widths: Any, X: Any, y: Any, folds: Any
) -> jax.Array:
    """Return cross-validated errors, a row for each width and a column for each size."""

    def one(width: jax.Array) -> jax.Array:
        kernel = kernel_of(kind, width)
        return validate(method, kernel, X, jnp.ones(1), X, y, folds, metric="mse").scores[0]

    return jax.lax.map(one, widths)


@functools.partial(jax.jit, static_argnames="kind")
def errors(
    method: pursuits.Pursuit, kind: str, width: Any, X: Any, y: Any, X_test: Any, y_test: Any
) -> jax.Array:
    """Return the test mean squared error of every size, for each draw of a batch."""

    def one(data: tuple[jax.Array, ...]) -> jax.Array:
        X, y, X_test, y_test = data
        fitted = pursuits.fit(method, kernel_of(kind, width), X, X, y)
        return jnp.mean(jnp.square(fitted.values(X_test)[:, :, 0] - y_test[:, None]), axis=0)

    return jax.lax.map(one, (X, y, X_test, y_test))


def kernel_of(kind: str, width: Any) -> Any:
    """Return the Gaussian kernel of a width, or the kernel of Table 2 or 4."""
    if kind == "gaussian":
        return RBF(width)
    return Linear(1.0) if kind == "linear" else Polynomial(2, 1.0, 1.0)


def five_folds(n: int) -> Any:
    return folds_from_assignment(np.random.default_rng(5).permutation(n) % FOLDS)


def tuned_size_and_width(
    method: pursuits.Pursuit, kind: str, widths: np.ndarray, X: Any, y: Any
) -> tuple[int, float]:
    """Return the index of the size, and the width, with the least cross-validated error."""
    arrays = (jnp.asarray(a) for a in (widths, X, y))
    scores = np.asarray(search(method, kind, *arrays, five_folds(len(y))))
    at, size = np.unravel_index(np.nanargmin(scores), scores.shape)
    return int(size), float(widths[at])


NOTES = [
    "Tables 1 and 2: L = 400, noise of variance 0.15, 200 test rows without noise; size and "
    "width by five folds on the first draw, then the mean over draws (50, quick: 2). KSP is the "
    "default, by sums. No intercept, as in the paper; KMP is back-fitting. The polynomial kernel "
    "is of degree 2, in Table 4 of degree 1. Heavisine is Donoho and Johnstone's, of which the "
    "paper's print lacks a minus; the Doppler has the paper's epsilon of 0.5.",
    "With noise of variance 0.15, least squares with p coefficients on 400 rows errs by 0.15 p / "
    "400 on average at these rows: 0.0023 for p = 6, and 0.0011 for the three that a polynomial of "
    "degree 2 has, whatever K is. Errors of KBP are not of the paper's algorithm to the letter: "
    "atoms are of unit length, and K is by folds.",
    "Tables 3 and 4: the first 400 rows train and the next 100 test, as the paper prints for "
    "abalone. For boston (506 rows) and istanbul (536) its 800 rows do not exist. Inputs are "
    "standardised and widths times ten times the root of the number of columns. The paper's errors "
    "for abalone, 0.054 in Table 3 and 9.7 in Table 4, cannot both be in the units of the ages.",
    "Where ours differ. Table 1: Heavisine, Doppler and Blocks err less here, Blocks with narrower "
    "kernels than the paper's; the paper's KBP errs as a constant would, ours as the two others. "
    "Table 2: three coefficients are all there is to learn, so that methods with K of at least 3 "
    "are one, and the paper's differences are not due to the methods; KBP ends where the rank "
    "does. Abalone errs by 9.9 with either kernel, as in the paper's Table 4, and 0.054 is out of "
    "reach. Istanbul errs by 0.00014, as the paper's KMP and KBP in Table 4. Why boston's 151 is "
    "more than 106, and 38.6 more than 24.4, is not known: the rows are others.",
    "Table 5: ratios of times to the time of KSP; ours of warm fits with the same number of atoms.",
    "Table 6: width 3; besides, the numerical rank of the dictionary. The paper's errors of the "
    "smooth functions there, 0.010, are three to five times the errors of its Table 1.",
    "Speed: medians of warm calls in turn, compilation apart, with one thread for BLAS and one for "
    "XLA, against scikit-learn's orthogonal_mp on the same "
    "dictionary in float64 with as many atoms, and against the loop over a NumPy "
    "Algorithm 1, timed on part of the grid and taken times the rest.",
]


def run(*, quick: bool, out: Path) -> Report:
    """Run all tables and the speed; skip the parts whose results are in the folder."""
    sizes = (5, 10, 20) if quick else SIZES
    widths = WIDTHS[3:5] if quick else WIDTHS
    parts: dict[str, Callable[[list[list[str]]], dict[str, Any]]] = {
        "functions": lambda rows: _functions(rows, sizes, widths, 2 if quick else 50),
        "real": lambda rows: _real(rows, sizes, widths, ("istanbul",) if quick else REAL),
        "times": lambda rows: _times(rows, 20 if quick else 80),
        "by K": lambda rows: _by_size(rows, (10, 50) if quick else (10, 50, 100, 200)),
        "iterations": lambda rows: _iterations(rows, 2 if quick else 20),
        "speed": lambda rows: _speed(rows, quick),
    }
    data = saved_data(out, "kabbara", quick=quick)
    for name, part in parts.items():
        if name in data:
            continue
        rows: list[list[str]] = []
        start = time.perf_counter()
        results = part(rows)
        data[name] = {"found": results, "rows": rows, "seconds": time.perf_counter() - start}
        print(f"{name}: {data[name]['seconds']:.0f} s", flush=True)
        save(out, "kabbara", _report(data), quick=quick)
    return _report(data)


def _report(data: dict[str, Any]) -> Report:
    columns = ["table", "what", "paper: KSP, KMP, KBP", "ours: KSP, KMP, KBP", "besides"]
    title = "Kabbara 2015: kernel subspace, matching and basis pursuit"
    rows = [row for part in data.values() for row in part["rows"]]
    return Report(title, columns, rows, NOTES, data)


def _shown(values: Any, digits: int = 3) -> str:
    return ", ".join(f"{value:.{digits}g}" for value in values)


def _functions(
    rows: list[list[str]], sizes: tuple[int, ...], widths: np.ndarray, draws: int
) -> dict[str, Any]:
    """Append the rows of Tables 1 and 2, and return their numbers."""
    data: dict[str, Any] = {}
    for kind, of_paper in PAPER.items():
        kind_widths = widths if kind == "gaussian" else widths[:1]
        for name in FUNCTIONS:
            samples = [draw(name, number) for number in range(draws)]
            batch = [jnp.asarray(np.stack(parts)) for parts in zip(*samples, strict=True)]
            results, settings = [], []
            for method in METHODS:
                pursuit_method = method_of(method, sizes)
                size, width = tuned_size_and_width(
                    pursuit_method, kind, kind_widths, *samples[0][:2]
                )
                mse = np.asarray(errors(pursuit_method, kind, width, *batch))[:, size]
                results.append({"mean": mse.mean(), "sd": mse.std(), "K": sizes[size], "w": width})
                K = sizes[size]
                settings.append(f"{K}, {width:g}" if kind == "gaussian" else f"{K}")
            data[f"{kind}, {name}"] = results
            ours = [one["mean"] for one in results]
            number = "1" if kind == "gaussian" else "2"
            row = [
                number,
                name,
                _shown(of_paper[name]),
                _shown(ours),
                "K, width: " + "; ".join(settings),
            ]
            rows.append(row)
            print(" | ".join(row), flush=True)
    return data


def _real(
    rows: list[list[str]], sizes: tuple[int, ...], widths: np.ndarray, sets: tuple[str, ...]
) -> dict[str, Any]:
    """Append the rows of Tables 3 and 4, and return their numbers."""
    data: dict[str, Any] = {}
    for kind, of_paper in PAPER_REAL.items():
        kernel_kind = "gaussian" if kind == "gaussian" else "linear"
        for name in sets:
            table = benchmark_set(name)
            X, y = table.X.astype(float)[:500], table.y.astype(float)[:500]
            X = (X - X[:400].mean(axis=0)) / np.maximum(X[:400].std(axis=0), 1e-12)
            offset, unit = y[:400].mean(), y[:400].std()
            y = (y - offset) / unit
            scaled = widths * 10 * np.sqrt(X.shape[1])
            scaled = scaled if kind == "gaussian" else scaled[:1]
            results = []
            for method in METHODS:
                pursuit_method = method_of(method, sizes)
                size, width = tuned_size_and_width(
                    pursuit_method, kernel_kind, scaled, X[:400], y[:400]
                )
                parts = [jnp.asarray(a)[None] for a in (X[:400], y[:400], X[400:], y[400:])]
                mse = np.asarray(errors(pursuit_method, kernel_kind, width, *parts))[0]
                results.append({"mse": mse[size] * unit**2, "K": sizes[size], "w": width})
            data[f"{kind}, {name}"] = results
            number = "3" if kind == "gaussian" else "4"
            ks = "; ".join(f"{one['K']}, {one['w']:.3g}" for one in results)
            row = [
                number, name, _shown(of_paper[name]), _shown([one["mse"] for one in results]),
                f"K, width: {ks}",
            ]  # fmt: skip
            rows.append(row)
            print(" | ".join(row), flush=True)
    return data


def _times(rows: list[list[str]], K: int) -> dict[str, Any]:
    """Append the rows of Table 5, times of fits with `K` atoms, and return the times."""
    data: dict[str, Any] = {}
    for name, of_paper in PAPER_TIMES.items():
        X, y = (jnp.asarray(a) for a in draw(name, 0)[:2])
        calls = {
            method: functools.partial(
                pursuits.fit, method_of(method, (K,)), RBF(jnp.asarray(0.1)), X, X, y
            )
            for method in METHODS
        }
        seconds = alternated(calls, 3)
        data[name] = seconds
        ours = [value / seconds["KSP"] for value in seconds.values()]
        paper = [value / of_paper[0] for value in of_paper]
        setting = f"K = {K}; KSP {1e3 * seconds['KSP']:.0f} ms"
        rows.append(["5", name, _shown(paper, 2), _shown(ours, 2), setting])
    return data


def _by_size(rows: list[list[str]], sizes: tuple[int, ...]) -> dict[str, Any]:
    """Append the rows of Table 6, and return their numbers."""
    data: dict[str, Any] = {}
    for name, (of_paper, paper_times) in PAPER_K.items():
        X, y, X_test, y_test = (jnp.asarray(a) for a in draw(name, 0))
        results, milliseconds = [], []
        for K in sizes:
            call = functools.partial(
                pursuits.fit, method_of("KSP", (K,)), RBF(jnp.asarray(3.0)), X, X, y
            )
            milliseconds.append(1e3 * alternated({"KSP": call}, 2)["KSP"])
            values = call().values(X_test)[:, 0, 0]
            results.append(float(jnp.mean(jnp.square(values - y_test))))
        rank = int(np.linalg.matrix_rank(np.asarray(RBF(3.0).gram(X))))
        data[name] = {"errors": results, "milliseconds": milliseconds, "rank": rank}
        first = slice(0, len(sizes))
        rows.append([
            "6", f"{name}, K = {', '.join(map(str, sizes))}: error", _shown(of_paper[first]),
            _shown(results),
            f"ms: {_shown(paper_times[first])} in the paper, {_shown(milliseconds)} here; "
            f"rank {rank}",
        ])  # fmt: skip
    return data


def _iterations(rows: list[list[str]], draws: int) -> dict[str, Any]:
    """Append a row, and return test errors over the error with l_max = 50 iterations, by l_max."""
    limits = (1, 2, 5, 50)
    ratios = np.zeros((len(FUNCTIONS), draws, len(limits)))
    for f, name in enumerate(FUNCTIONS):
        samples = [draw(name, number) for number in range(draws)]
        batch = [jnp.asarray(np.stack(parts)) for parts in zip(*samples, strict=True)]
        results = [
            np.asarray(
                errors(method_of("KSP", (40,), max_iterations=most), "gaussian", 0.1, *batch)
            )[:, 0]
            for most in limits
        ]
        ratios[f] = (np.stack(results) / results[-1]).T
    mean = ratios.mean(axis=(0, 1))
    setting = f"ratios of errors to the errors of 50, mean over functions and {draws} draws; K = 40"
    rows.append(["4.3", "l_max = 1, 2, 5, 50", "5 suffice", _shown(mean, 4), setting])
    return {"l_max": limits, "ratios": mean.tolist()}


def _naive(G: np.ndarray, y: np.ndarray, K: int, most: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Run Algorithm 1 literally, in NumPy; return the atoms and their coefficients."""

    def largest(values: np.ndarray) -> np.ndarray:
        return np.argsort(-np.abs(values))[:K]

    T = largest(G.T @ y)
    w = np.linalg.pinv(G[:, T]) @ y
    r = y - G[:, T] @ w
    for _ in range(most):
        merged = np.union1d(T, largest(G.T @ r))
        new = merged[largest(np.linalg.pinv(G[:, merged]) @ y)]
        w_new = np.linalg.pinv(G[:, new]) @ y
        r_new = y - G[:, new] @ w_new
        if np.linalg.norm(r_new) >= np.linalg.norm(r):
            break
        T, w, r = new, w_new, r_new
    return T, w


def _naive_search(
    X: np.ndarray, y: np.ndarray, sizes: tuple[int, ...], widths: np.ndarray
) -> np.ndarray:
    """Return cross-validated errors of `_naive`, a row for each width, a column for each size."""
    fold = np.random.default_rng(5).permutation(len(y)) % FOLDS
    scores = np.zeros((len(widths), len(sizes)))
    for i, width in enumerate(widths):
        for j, K in enumerate(sizes):
            for v in range(FOLDS):
                train, test = fold != v, fold == v
                G = np.exp(-np.square(X[train] - X[None, :, 0]) / (2 * width**2))
                T, w = _naive(G, y[train], K)
                out = np.exp(-np.square(X[test] - X[None, T, 0]) / (2 * width**2)) @ w
                scores[i, j] += np.sum(np.square(out - y[test])) / len(y)
    return scores


def _speed(rows: list[list[str]], quick: bool) -> dict[str, Any]:
    """Append the times of a fit and of a search beside peers' times, and return them."""
    n, K = (1000, 25) if quick else (4000, 100)
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n, 2))
    y = doppler(X[:, 0]) + np.sin(6 * X[:, 1]) + np.sqrt(VARIANCE) * rng.standard_normal(n)
    G = np.asarray(RBF(0.1).gram(jnp.asarray(X)))
    Gj, yj = jnp.asarray(G), jnp.asarray(y)
    data: dict[str, Any] = {}
    for dtype in ("float64", "float32"):
        D, target = Gj.astype(dtype), yj.astype(dtype)
        calls = {
            "ours": functools.partial(
                pursuit.subspace_pursuit, D, target, n_atoms=K, max_iterations=5
            ),
            "theirs": functools.partial(orthogonal_mp, G, y, n_nonzero_coefs=K),
        }
        seconds = alternated(calls, 3)
        ratio = seconds["theirs"] / seconds["ours"]
        data[f"orthogonal_mp, {dtype}"] = seconds
        rows.append([
            "speed", f"KSP, K = {K}, L = {n}, {dtype}, against orthogonal_mp", "aim 3",
            f"{ratio:.2f} times faster", f"{seconds['ours']:.3f} s against {seconds['theirs']:.3f}",
        ])  # fmt: skip
    X, y, *_ = draw("Doppler", 0)
    sizes, widths = ((5, 10, 20), WIDTHS[3:5]) if quick else (SIZES, WIDTHS)
    part_of_grid = sizes[1::3], widths[1::3] if len(widths) > 3 else widths[:1]
    start = time.perf_counter()
    _naive_search(X, y, *part_of_grid)
    share = len(part_of_grid[0]) * len(part_of_grid[1]) / (len(sizes) * len(widths))
    naive = (time.perf_counter() - start) / share
    for way, options in (("by sums", {}), ("on rows", {"formed": False})):
        method = method_of("KSP", sizes, **options)
        arrays = [jnp.asarray(a) for a in (widths, X, y)]
        call = functools.partial(search, method, "gaussian", *arrays, five_folds(len(y)))
        search.clear_cache()  # earlier parts compiled it
        seconds, compiling = timed(call, 2)
        data[f"search, {way}"] = {"ours": seconds, "naive": naive, "compiling": compiling}
        rows.append([
            "speed", f"search of {len(sizes)} K, {len(widths)} widths, 5 folds, {way}", "aim 20",
            f"{naive / seconds:.2f} times faster",
            f"{seconds:.2f} s against {naive:.1f}; and {compiling:.0f} s of compilation, once",
        ])  # fmt: skip
    return data
