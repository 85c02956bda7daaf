"""Tables 10 and 11 of De Brabanter 2010: more than two classes, by several output codes."""

import itertools
import sys
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

import jsparse
from jsparse.machines.method import MANY_C
from jsparse.machines.row_prototypes import feature_map
from jsparse.multiclass import Decoding, Scheme, decode, output_code
from jsparse.prototypes import renyi
from jsparse.training.choices import make_kernel

from .report import Report, mean_sd, save, saved_data
from .sets import PROTOTYPES, Split, split

LABELS = {"one_versus_one": "1vs1", "minimum_output": "MOC", "one_versus_rest": "1 vs rest"}
SETS = ("satellite", "pendigits", "optdigits", "shuttle", "letter")
DTYPES = ("float64", "float32")
Way = Literal["together", "apart", "borrowed"]


class Cell(NamedTuple):
    """The settings of a row of the table."""

    name: str
    kernel: str
    scheme: Scheme
    way: Way  # see `together`, `apart` and `borrowed`

    @property
    def key(self) -> str:
        return " ".join(self)


# Table 10: per cent correct and standard deviation; Table 11: seconds.
PAPER: dict[tuple[str, Scheme], dict[str, tuple[float, float, int]]] = {
    ("rbf", "minimum_output"): {
        "optdigits": (96.87, 0.70, 4892),
        "satellite": (91.83, 0.43, 2159),
        "pendigits": (99.44, 0.17, 2221),
        "letter": (89.14, 0.22, 105930),
        "shuttle": (99.87, 0.03, 5908),
    },
    ("rbf", "one_versus_one"): {
        "optdigits": (98.14, 0.10, 623),
        "satellite": (91.93, 0.3, 739),
        "pendigits": (99.57, 0.10, 514),
        "letter": (95.65, 0.17, 10380),
        "shuttle": (99.84, 0.03, 2734),
    },
    ("linear", "one_versus_one"): {
        "optdigits": (97.18, 0.35, 282),
        "satellite": (85.71, 0.77, 153),
        "pendigits": (96.67, 0.35, 156),
        "letter": (84.87, 0.49, 2792),
        "shuttle": (96.82, 0.18, 501),
    },
    ("linear", "minimum_output"): {
        "optdigits": (78.62, 0.32, 942),
        "satellite": (74.35, 0.26, 409),
        "pendigits": (68.21, 0.36, 279),
        "letter": (18.20, 0.46, 44457),
        "shuttle": (84.78, 0.33, 645),
    },
}
NOTES = [
    "Splits of the paper's sizes; m prototypes in all; decoding by the loss, by votes (Hamming) "
    "for problems apart, whose values differ in scale. CPU seconds: to "
    "standardise, select, tune, fit and test in float64, added over threads, of the fastest "
    "randomisation; the first one compiles too. Waiting threads count, and other programs ran "
    "beside on cpu-2core.",
    "letter with the RBF kernel is tuned by 3 folds instead of 10, but for the problems apart.",
    "`apart`: every binary problem has a separate machine, kernel and C, and the share of the m "
    "prototypes that falls to its classes. The paper seems to do so for 1vs1: Table 11 "
    "over problems and 160 evaluations is 0.07 to 0.8 s, which by Tables 3 and 4 and the ratio of "
    "MOC's times to them is what about 2 m / k prototypes take, and a tenth of what m take.",
    "The code for MOC is the paper's, the binary digits of the class number: with the linear "
    "kernel pendigits and letter, which depend on it most, agree with the paper to 1.2 deviations.",
    "Most of the paper's deviations are smaller than chance allows on test sets of its sizes: "
    "8.2 % of 2000 rows (satellite) have a binomial deviation of 0.6, where it prints 0.3 and 0.4.",
]
BORROWED = "`borrowed`: kernel, prototypes and C as tuned for one class against the rest."
_ORACLE = (
    "the cause is not known. It is not the tuning: least squares in NumPy on random prototypes, "
    "with the best kernel and C of a coarse grid for the test rows of one split, errs on "
)
_PAIRS = (
    "the cause is not known. Least squares in NumPy on random prototypes, with kernel and C of a "
    "coarse grid chosen on the test rows of one split, once for all pairs and once for each (which "
    "flatters it), errs on "
)
_INTERCEPT = (
    "probably the intercept: least squares puts it at the mean label, and the classes are of very "
    "unequal size. With the threshold of each problem at its fewest training errors least squares "
    "in NumPy errs on "
)
_TIES = (
    "not explained for certain. LS-SVMlab, the authors' toolbox, leaves a row undecided that is as "
    "near to two classes; counted as errors these rows make "
)
_FEWER = "the paper's 1vs1 seems to have fewer prototypes for a problem, as in the row `apart`."
# Explanations of our figures that are far from the paper's.
WHY = {
    Cell("satellite", "rbf", "minimum_output", "together"): _ORACLE
    + "10.3 % with 330 of them, 9.3 with 1000 (k-means centres: 9.9 and 8.8). A kernel or a C for "
    "every problem changes nothing (10.4, 10.3).",
    Cell("satellite", "rbf", "one_versus_one", "together"): _PAIRS
    + "8.8 and 7.9 % with 330 of them for every pair. A C for every problem changes nothing.",
    Cell("satellite", "rbf", "one_versus_one", "apart"): _PAIRS
    + "10.0 and 9.6 % with 94 of them a problem.",
    Cell("satellite", "linear", "minimum_output", "together"): "the cause is not "
    "known; over five splits least squares in NumPy errs on 27.1 (0.8) %. The paper counts seven "
    "classes; the sixth has no rows.",
    Cell("pendigits", "rbf", "minimum_output", "together"): _ORACLE
    + "1.3 % with 250 of them, 0.7 with 1000 (k-means centres: 1.1 and 0.6). A C for every "
    "problem changes nothing.",
    Cell("pendigits", "rbf", "one_versus_one", "apart"): _PAIRS
    + "0.63 and 0.38 % with 50 of them a problem.",
    Cell("optdigits", "rbf", "one_versus_one", "together"): _FEWER,
    Cell("optdigits", "rbf", "one_versus_one", "apart"): _PAIRS
    + "1.76 and 1.66 % with 84 of them a problem.",
    Cell("optdigits", "linear", "minimum_output", "together"): _TIES
    + "20.5 % of 19.9 in NumPy over five splits.",
    Cell("optdigits", "linear", "one_versus_one", "together"): _TIES
    + "2.2 % of 1.9 in NumPy over three splits; but of pendigits they make 4.1 of 3.4, where the "
    "paper has 3.3.",
    Cell("shuttle", "rbf", "minimum_output", "together"): _ORACLE
    + "0.37 % with 175 of them (k-means centres: 0.32).",
    Cell("shuttle", "rbf", "one_versus_one", "together"): _PAIRS
    + "0.28 and 0.21 % with 175 of them for every pair.",
    Cell("shuttle", "rbf", "one_versus_one", "apart"): _PAIRS
    + "0.40 and 0.27 % with 50 of them a problem.",
    Cell("shuttle", "linear", "minimum_output", "together"): _INTERCEPT + "14.9 %.",
    Cell("shuttle", "linear", "one_versus_one", "together"): _INTERCEPT + "2.3 %.",
    Cell("letter", "rbf", "minimum_output", "together"): _ORACLE
    + "14.3 % with 1500 of them (k-means centres: 12.2).",
    Cell("letter", "rbf", "one_versus_one", "borrowed"): _FEWER,
    Cell("letter", "rbf", "one_versus_one", "apart"): _PAIRS
    + "4.9 and 4.6 % with 115 of them a problem.",
    Cell("letter", "linear", "one_versus_one", "together"): "the cause is not known; least "
    "squares in NumPy is as far off: 16.5 % by the loss, 18.6 by votes.",
}


def cells() -> list[Cell]:
    """Return the settings of all rows, in the order of the table."""
    rows = []
    for name in SETS:
        shared: Way = "borrowed" if name == "letter" else "together"
        rows += [
            Cell(name, "rbf", "minimum_output", "together"),
            Cell(name, "rbf", "one_versus_one", shared),
            Cell(name, "rbf", "one_versus_one", "apart"),
            Cell(name, "rbf", "one_versus_rest", "together"),
            Cell(name, "linear", "minimum_output", "together"),
            Cell(name, "linear", "one_versus_one", "together"),
            Cell(name, "linear", "one_versus_rest", "together"),
        ]
    return rows


def planned(cell: Cell, dtype: str, *, quick: bool) -> int:
    """Return the number of random splits on which a row of the table is measured."""
    large = cell.name == "letter" and cell.kernel == "rbf"
    if quick:
        return 0 if large else 1
    if dtype == "float32":
        return 0 if cell.way == "borrowed" else 1 if large else 2
    return 1 if large else 5 if cell.kernel == "rbf" else 10


def table10(*, quick: bool, out: Path) -> Report:
    """Measure the misclassification by every code; skip the runs whose results are in `out`.

    After a change of the library remove the old results first: they do not record the change.
    """
    data: dict[str, list[dict[str, Any]]] = saved_data(out, "table10", quick=quick)
    # Run every cell once before any cell twice, so that an interrupted run leaves a complete table.
    # The cells with 325 large problems come last.
    schedule = list(itertools.product(range(1, 11), DTYPES, cells()))
    for count, dtype, cell in sorted(schedule, key=lambda step: step[2].way == "borrowed"):
        runs = data.setdefault(f"{cell.key} {dtype}", [])
        if len(runs) < min(count, planned(cell, dtype, quick=quick)):
            runs.append(run(cell, len(runs), dtype, quick=quick))
            print(cell.key, dtype, runs[-1], file=sys.stderr, flush=True)
            save(out, "table10", report(data), quick=quick)
    return report(data)


def run(cell: Cell, randomisation: int, dtype: str, *, quick: bool) -> dict[str, Any]:
    """Run one split; return test errors in per cent by each decoding, settings and times."""
    part, m = split(cell.name, randomisation, dtype), PROTOTYPES[cell.name]
    if quick:
        part, m = Split(*(a[:1500] for a in part)), 100
    cpu, wall = time.process_time(), time.perf_counter()
    way = {"together": together, "apart": apart, "borrowed": borrowed}[cell.way]
    result = way(part, cell, m, jax.random.key(randomisation))
    matrix = jnp.asarray(result.matrix, result.values.dtype)
    errors = {
        decoding: float(
            100 * np.mean(result.classes[decode(matrix, result.values, decoding)] != part.y_test)
        )
        for decoding in get_args(Decoding)
    }
    seconds = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    return errors | seconds | result.tuned


def report(data: dict[str, list[dict[str, Any]]]) -> Report:
    """Return the table of the results so far."""
    rows, notes = [], []
    for cell in cells():
        runs = {dtype: data.get(f"{cell.key} {dtype}", []) for dtype in DTYPES}
        if not any(runs.values()):
            continue
        decoding = "hamming" if cell.way == "apart" else "loss"
        errors = {dtype: [r[decoding] for r in runs[dtype]] for dtype in DTYPES}
        correct, sd, seconds = PAPER.get((cell.kernel, cell.scheme), {}).get(cell.name, (0, 0, 0))
        off = (np.mean(errors["float64"]) + correct - 100) / sd if sd and errors["float64"] else 0
        rows.append(
            [
                cell.name,
                cell.kernel,
                LABELS[cell.scheme] + ("" if cell.way == "together" else f", {cell.way}"),
                PROTOTYPES[cell.name] if cell.kernel == "rbf" else "",
                f"{100 - correct:.2f} ({sd:.2f})" if sd else "",
                *[_shown(errors[dtype]) for dtype in DTYPES],
                f"{off:+.1f}" if sd else "",
                " / ".join(str(len(errors[dtype])) for dtype in DTYPES),
                f"{min(r['cpu'] for r in runs['float64'] or runs['float32']):.1f}",
                seconds or "",
            ]
        )
        if abs(off) > 2:
            side = "better" if off < 0 else "worse"
            notes.append(
                f"{', '.join(str(value) for value in rows[-1][:3])}: {abs(off):.1f} of the paper's "
                f"deviations {side} than the paper: {WHY.get(cell, 'not explained.')}"
            )
    return Report(
        "Table 10: test misclassification in per cent, mean (standard deviation)",
        [
            "set",
            "kernel",
            "code",
            "m",
            "paper",
            "ours, float64",
            "ours, float32",
            "(ours - paper) / paper's sd",
            "randomisations",
            "CPU seconds",
            "paper's seconds (Table 11)",
        ],
        rows,
        [*NOTES, *[BORROWED] * any("borrowed" in row[2] for row in rows), *notes],
        data,
    )


def _shown(errors: list[float]) -> str:
    return mean_sd(errors) if len(errors) > 1 else "".join(f"{error:.2f}" for error in errors)


class TestValues(NamedTuple):
    """Values of the test rows, and the code that decodes them."""

    values: jax.Array  # n l
    classes: np.ndarray  # k
    matrix: np.ndarray  # k l
    tuned: dict[str, Any]


def together(part: Split, cell: Cell, m: int, key: jax.Array) -> TestValues:
    """Train one set of prototypes, one kernel and one `C` for all problems: the default."""
    model = train(part, cell, m, key)
    return TestValues(model.expansion(part.X_test), model.classes, model.code.matrix, _tuned(model))


def borrowed(part: Split, cell: Cell, m: int, key: jax.Array) -> TestValues:
    """Tune kernel, prototypes and `C` for one-versus-rest, then fit the code of the cell."""
    model = train(part, cell._replace(scheme="one_versus_rest"), m, key)
    labels = jnp.asarray(np.searchsorted(model.classes, part.y), jnp.int32)
    scaling, Z = model.expansion.scaling, model.expansion.prototypes
    phi = feature_map(model.kernel, Z)
    code = output_code(cell.scheme, len(model.classes))
    X, X_test = (scaling.apply(jnp.asarray(a)) for a in (part.X, part.X_test))
    fitted = jsparse.fixed_size.fit_classes(phi, model.C, X, labels, code)
    return TestValues(fitted.expansion(X_test), model.classes, code.matrix, _tuned(model))


def train(part: Split, cell: Cell, m: int, key: jax.Array) -> jsparse.Trained:
    return jsparse.train(
        part.X,
        part.y,
        task="classification",
        method=jsparse.FixedSize(m),
        kernel=cell.kernel,
        multiclass=cell.scheme,
        folds=3 if cell.name == "letter" else 10,
        out_of_fold=False,
        key=key,
    )


def _tuned(model: jsparse.Trained) -> dict[str, Any]:
    leaves = [float(leaf) for leaf in jax.tree.leaves(model.kernel)]
    return {"kernel": leaves, "C": model.C, "cv_error": model.cv_error}


def apart(part: Split, cell: Cell, m: int, key: jax.Array) -> TestValues:
    """Train a separate machine for each problem, with separate prototypes, kernel and `C`.

    A problem gets a share of the `m` prototypes, in proportion to its classes. Rows of weight 0 pad
    its rows to a power of two, so that problems of similar size share programs.
    """
    classes, labels = np.unique(part.y, return_inverse=True)
    matrix = np.asarray(output_code(cell.scheme, len(classes)).matrix)
    scaling = jsparse.standardize(part.X)
    X, X_test = np.asarray(scaling.apply(part.X)), scaling.apply(jnp.asarray(part.X_test))
    values = []
    for j, column in enumerate(matrix.T):
        rows = np.flatnonzero(column[labels])
        share = max(2, min(round(m * np.abs(column).mean()), len(rows) // 2))
        problem_key = jax.random.fold_in(key, j)
        machine = _binary(X, column[labels], rows, share, cell.kernel, problem_key)
        values.append(machine(X_test))
    return TestValues(jnp.stack(values, axis=1), classes, matrix, {})


def _binary(
    X: np.ndarray, y: np.ndarray, rows: np.ndarray, m: int, kernel: str, key: jax.Array
) -> jsparse.KernelExpansion:
    """Tune and fit one binary problem on standardised inputs."""
    n = len(rows)
    width = 1 << (n - 1).bit_length()
    padded = np.resize(rows, width)
    w = jnp.asarray(np.arange(width) < n, X.dtype)
    X, y = jnp.asarray(X[padded]), jnp.asarray(y[padded], X.dtype)
    stratum = np.where(w > 0, y, 0)  # padding is a stratum of the folds
    key_select, key_folds, key_search = jax.random.split(key, 3)
    folds = jsparse.stratified_folds(key_folds, stratum, min(10, n))
    template = make_kernel(kernel, X.shape[1])
    indices = np.arange(m)
    if kernel != "linear":
        indices = np.asarray(renyi(key_select, X, m, labels=np.asarray(y), weights=w).indices)
    problem = jsparse.tuning_problem(template, X[indices], X, y, folds, w)
    low, high = problem.bounds
    tuned = jsparse.tune(
        problem, key=key_search, metric="misclassification", low=low, high=high, C=MANY_C
    )
    phi = feature_map(tuned.kernel, X[indices])
    return jsparse.fixed_size.fit_features(phi, tuned.C, X, y, w).expansion
