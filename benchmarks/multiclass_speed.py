"""Speed with 26 classes on letter, as ratios within one run."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.svm import SVC

import jsparse
from jsparse._lapack_threads import one_lapack_thread
from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.multiclass import output_code
from jsparse.normal_equations import NormalEquations, accumulate_groups
from jsparse.validation.validate import Scoring

from .data_sets import benchmark_set
from .report import Report, alternated
from .speed import kernels_of

M, FOLDS = 500, 5
C = np.geomspace(1e-2, 1e6, 12)


def run(*, quick: bool) -> Report:
    """Join the parts; each returns lines of the table, notes, and numbers for the JSON file."""
    rows, notes, data = [], [], {}
    for part in (one_versus_rest, one_versus_one, final_fit):
        more_rows, more_notes, numbers = part(quick)
        rows, notes = rows + more_rows, notes + more_notes
        data[part.__name__] = numbers
    columns = ["what", "seconds", "against", "seconds", "ratio", "mark"]
    title = "Speed with 26 classes: letter, float32, warm, compilation apart"
    return Report(title, columns, rows, notes, data)


def _letter() -> tuple[np.ndarray, np.ndarray]:
    data = benchmark_set("letter")
    X = (data.X - data.X.mean(0)) / data.X.std(0)
    return X.astype(np.float32), np.unique(data.y, return_inverse=True)[1].astype(np.int32)


def one_versus_rest(quick: bool):
    """Compare the time of training from raw rows with one SVC fit with fixed parameters."""
    X, y = _letter()

    def ours(key: int) -> dict[str, float]:
        start = time.perf_counter()
        model = jsparse.train(
            X,
            y,
            task="classification",
            method=jsparse.FixedSize(M),
            folds=FOLDS,
            C=C,
            out_of_fold=False,
            key=key,
        )
        seconds = time.perf_counter() - start
        apart = model.seconds["compile"]
        return {"seconds": seconds - apart, "compile": apart, "error": 100 * model.cv_error,
                "kernels": kernels_of(model)}  # fmt: skip

    def theirs() -> float:
        start = time.perf_counter()
        SVC(C=10, gamma=0.2).fit(X, y)
        return time.perf_counter() - start

    first = ours(0)
    runs = [(theirs(), ours(key)) for key in range(1, 3 if quick else 6)]
    svc = float(np.median([a for a, _ in runs]))
    mine = float(np.median([b["seconds"] for _, b in runs]))
    last = runs[-1][1]
    row = [
        f"one-versus-rest, m = {M}: {last['kernels']} kernels x {len(C)} C x {FOLDS} folds, fit",
        f"{mine:.2f}",
        "one SVC fit",
        f"{svc:.2f}",
        f"{mine / svc:.2f}",
        "2",
    ]
    note = (
        f"One-versus-rest: {len(X)} rows for both; cross-validated error {last['error']:.2f} %; "
        f"compilation {first['compile']:.1f} s once. SVC(C=10, gamma=0.2)."
    )
    return [row], [note], {"runs": runs, "first": first}


def one_versus_one(quick: bool):
    """Compare cross-validation of all pairs of classes, for one kernel, with its largest parts."""
    X, y = _letter()
    X, labels = jnp.asarray(X), jnp.asarray(y)
    n, k = len(X), int(y.max()) + 1
    code = output_code("one_versus_one", k).astype(X.dtype)
    folds = jsparse.stratified_folds(jax.random.key(0), y, FOLDS)
    Z = X[np.random.default_rng(0).permutation(n)[:M]]
    problem = jsparse.tuning_problem(RBF(4.0), Z, X, labels, folds, None, code)
    thetas, grid = np.full((1, 1), np.log(4.0), X.dtype), np.asarray([C], X.dtype)
    phi = Nystroem(RBF(4.0), Z)
    fold_of = jnp.repeat(jnp.arange(FOLDS, dtype=jnp.int32), folds.index.shape[1])
    rows = folds.index.reshape(-1)
    seen = folds.valid.reshape(-1).astype(X.dtype)
    group = jnp.where(seen > 0, fold_of * k + labels[rows], -1)

    @jax.jit
    def sums(phi: Nystroem, *data: jax.Array) -> NormalEquations:
        X, rows, seen, group = data
        nothing = jnp.zeros((len(rows), 0), X.dtype)
        return accumulate_groups(phi, X[rows], nothing, seen, group, n_groups=FOLDS * k)

    data = X, rows, seen, group
    systems, problems = code.members.shape[0], code.matrix.shape[1]
    batch = 65 if quick else systems
    gram = sums(phi, *data).gram.reshape(FOLDS, k, M * M).sum(axis=0)
    pairs = (code.members[:batch] @ gram).reshape(batch, M, M)
    coefficients = jnp.ones((M, len(C) * problems), X.dtype)
    # In blocks, as cross-validation does: all values at once do not fit into memory.
    values = jax.jit(
        lambda K, w: jax.lax.map(lambda K: jnp.sum(jnp.matmul(K, w, precision="highest")), K)
    )
    scoring = Scoring("misclassification")
    calls = {
        "evaluation": lambda: problem.errors(thetas, grid, scoring),
        "sums": lambda: sums(phi, *data),
        "factorisations": lambda: _bare(pairs, all_factors=False),
        "factorisations kept whole": lambda: _bare(pairs, all_factors=True),
        "eigendecompositions": lambda: _eigen(pairs),
        "predictions": lambda: values(jnp.ones((FOLDS, n // FOLDS, M), X.dtype), coefficients),
    }
    with one_lapack_thread(M):  # as in training
        seconds = alternated(calls, 2 if quick else 5)
    bare = ("factorisations", "factorisations kept whole", "eigendecompositions")
    each = {name: seconds[name] / batch for name in bare}
    count = FOLDS * systems
    floors = {f"sums + {count} bare {name}": seconds["sums"] + count * each[name] for name in each}
    evaluation = seconds["evaluation"]
    what = f"one-versus-one, m = {M}: one kernel x {len(C)} C x {FOLDS} folds"
    table = [
        [what, f"{evaluation:.2f}", against, f"{floor:.2f}", f"{evaluation / floor:.2f}", mark]
        for (against, floor), mark in zip(floors.items(), ("1.5", "", ""), strict=True)
    ]
    note = (
        f"One-versus-one: {problems} problems, {n} rows; bare are the sums {seconds['sums']:.2f} s,"
        f" a factorisation {1e3 * each['factorisations']:.2f} ms (what the device has for it, of "
        f"the library's: LAPACK's tridiagonal reduction on a CPU, else an eigendecomposition; of "
        f"the result only the diagonals), {1e3 * each['factorisations kept whole']:.2f} with all "
        f"that a solve takes of it, an eigendecomposition "
        f"{1e3 * each['eigendecompositions']:.2f} ms; not in the floor is the product that gives "
        f"every row the values of every problem and C, {seconds['predictions']:.2f} s."
    )
    return table, [note], seconds


@functools.partial(jax.jit, static_argnames="all_factors")
def _bare(grams: jax.Array, *, all_factors: bool) -> jax.Array | tuple[jax.Array, ...]:
    if jax.default_backend() != "cpu":
        values, vectors = jnp.linalg.eigh(grams)
        return (values, vectors) if all_factors else values
    factors = jax.lax.map(lambda A: jax.lax.linalg.tridiagonal(A, lower=False), grams)
    return factors if all_factors else factors[1]


@jax.jit
def _eigen(grams: jax.Array) -> jax.Array:
    return jax.lax.map(lambda A: jnp.linalg.eigh(A)[1], grams)


def final_fit(quick: bool):
    """Compare the fit of all pairs for one C with bare eigendecompositions."""
    X, y = _letter()
    X, labels = jnp.asarray(X), jnp.asarray(y)
    m, batch = (600 if quick else 1500), 4
    code = output_code("one_versus_one", int(y.max()) + 1)
    phi = Nystroem(RBF(4.0), X[np.random.default_rng(0).permutation(len(X))[:m]])
    gram = jsparse.accumulate(phi, X, jnp.zeros(len(X), X.dtype)).gram
    grams = jnp.broadcast_to(gram, (batch, m, m))
    calls = {
        "fit": lambda: jsparse.fixed_size.fit_classes(phi, 100.0, X, labels, code),
        "eigendecompositions": lambda: _eigen(grams),
    }
    seconds = alternated(calls, 1 if quick else 3)
    count = code.matrix.shape[1]
    bare = count * seconds["eigendecompositions"] / batch
    row = [
        f"one-versus-one, m = {m}: fit with one C",
        f"{seconds['fit']:.1f}",
        f"{count} bare eigendecompositions",
        f"{bare:.1f}",
        f"{seconds['fit'] / bare:.2f}",
        "",
    ]
    return [row], [], seconds
