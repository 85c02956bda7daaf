"""Methods that fit every fold are validated on the host, by the compiled fit."""

import dataclasses
import itertools
import re
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import solve_triangular

import jsparse
from jsparse import _programs
from jsparse.kernels import RBF
from jsparse.machines import ridge
from jsparse.training import fold_fits, source
from jsparse.training.fold_fits import held_out_by_fits
from jsparse.training.source import WithPredictions, hold_out
from jsparse.training.tables import tuning_problem
from jsparse.validation.validate import Scoring

METHODS = {
    "reduced-svm": jsparse.ReducedSVM(4),
    "spsvm": jsparse.SpSVM(max_prototypes=3, candidates=8, subset=4),  # several sizes, draws
    "rvm": jsparse.RVM(max_prototypes=4, likelihood="normal"),
}
SLOW = ("rvm",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in METHODS]
)
def test_the_results_are_those_of_the_program_of_all_folds(name):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 2))
    y = np.where(X[:, 0] + 0.5 * rng.standard_normal(60) > 0, 1.0, -1.0)
    w = rng.uniform(0.5, 2, 60) * (np.arange(60) % 8 > 0)
    folds = jsparse.plain_folds(2, 60, 3)
    X, y, w = (jax.device_put(a) for a in (X, y, w))
    problem = tuning_problem(
        RBF(1.0), X[:8], X, y, folds, w, method=METHODS[name], key=jax.random.key(3)
    )
    theta, C = problem.template.theta, np.array([0.5, 8.0])
    wanted = np.array([[True, True, False], [False, True, True]])
    on_fold = WithPredictions(Scoring("misclassification"), None, (), wanted)
    assert problem.method.fits_each_fold
    rows = problem.source.held_out_rows(problem, theta)
    expected = hold_out(rows, C, on_fold)
    held = held_out_by_fits(problem, theta, C, problem.source.placed, folds, on_fold)
    # The rounding of two programs differs.
    assert jax.tree.structure(held) == jax.tree.structure(expected)
    for value, other in zip(jax.tree.leaves(held), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-6)
    weights = np.asarray(held.sums[1])[:, :, 0]
    np.testing.assert_array_equal(weights.T > 0, wanted)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("spsvm", "float32"),
        pytest.param("spsvm", "float64", marks=pytest.mark.slow),
        pytest.param("slmc", "float32", marks=pytest.mark.slow),
        pytest.param("slmc", "float64", marks=pytest.mark.slow),
    ],
)
def test_threads_change_no_number(name, dtype, monkeypatch):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 2)).astype(dtype)
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    method = {"slmc": jsparse.SLMC(3), "spsvm": jsparse.SpSVM(max_prototypes=4)}[name]
    # The kernel of the sparse SVM would be tuned by the program of another method.
    search = jsparse.Profile(3, tune_kernel=name != "spsvm")
    options = {"task": "classification", "method": method, "search": search}
    trained = []
    for threads in (1, 3):
        monkeypatch.setattr(fold_fits, "usable_cores", lambda threads=threads: threads)
        result = jsparse.train(X, y, **options, folds=3, key=0)
        trained.append((result.out_of_fold, result.cv_error, result.predict_proba(X)))
    assert np.asarray(trained[0][0]).dtype == dtype
    for one, other in zip(*trained, strict=True):
        np.testing.assert_array_equal(one, other)


def batched_decompositions(module):
    """Return the lines of a lowered program that decompose, and those that decompose a batch."""
    called = r"custom_call @lapack|stablehlo\.(?:triangular_solve|cholesky)"
    lines = [line for line in module.splitlines() if re.search(called, line)]
    return lines, [line for line in lines if re.search(r"tensor<(?:\d+x){3,}[a-z]", line)]


def test_a_batch_of_decompositions_is_found():
    matrices = np.zeros((3, 4, 4), np.float32)
    for function in (jnp.linalg.cholesky, lambda a: solve_triangular(a, a, lower=True)):
        one, batch = (jax.jit(function).lower(a).as_text() for a in (matrices[0], matrices))
        assert batched_decompositions(one)[0]
        assert not batched_decompositions(one)[1]
        assert batched_decompositions(batch)[1]


FITTED_BY_FOLD = sorted(
    name for name, method in jsparse.machines.METHODS.items() if method().fits_each_fold
)


FROM_SUMS = "fixed-size", "scdp", "ksp", "kmp", "kbp", "reduction"
IN_ONE_PROGRAM = *FROM_SUMS, "dual", "robust"  # if the folds have few rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "large_fold"),
    [(name, 1) for name in (*FITTED_BY_FOLD, *FROM_SUMS)] + [(n, 1000) for n in IN_ONE_PROGRAM],
)
def test_programs_of_several_threads_decompose_one_matrix_at_a_time(name, large_fold, monkeypatch):
    """Two programs with batches could wait for each other, see `_numerics.unbatched_lapack`."""
    get, modules = _programs.PROGRAMS.get, []

    def lowered_first(key, make):
        program = get(key, make)

        def call(*arguments, **named):
            modules.append(program.lower(*arguments, **named).as_text())
            return program(*arguments, **named)

        return call

    monkeypatch.setattr(_programs.PROGRAMS, "get", lowered_first)
    monkeypatch.setattr(ridge, "LARGE_FOLD", large_fold)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = np.digitize(X[:, 0] + X[:, 1], [-0.5, 0.5])
    fields = {field.name for field in dataclasses.fields(jsparse.machines.METHODS[name])}
    sizes = {size: 4 for size in ("n_prototypes", "max_prototypes") if size in fields}
    for task in jsparse.machines.METHODS[name].tasks:
        if task in ("classification", "regression"):
            method = jsparse.machines.METHODS[name](**sizes)
            # The other methods take one problem for each class.
            schemes = ["one_versus_one"] if name in ("fixed-size", "dual", "robust") else []
            for scheme in ("one_versus_rest", *schemes):
                jsparse.train(X, y, task=task, method=method, multiclass=scheme, folds=3, key=0)
    decompositions, batched = batched_decompositions("\n".join(modules))
    assert decompositions
    assert batched == []


@pytest.mark.parametrize(
    "method",
    [
        jsparse.KMP(5),
        jsparse.FixedSize(6, "uniform"),
        pytest.param(jsparse.SparseReduction(6, "uniform"), marks=pytest.mark.slow),
    ],
)
def test_threads_share_the_folds_of_kept_sums(method, monkeypatch):
    monkeypatch.setattr(ridge, "LARGE_FOLD", 1)
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 2))
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    options = {"task": "classification", "method": method, "search": jsparse.Profile(3)}
    hold_out, folds, trained = source.hold_out, [], []

    def recorded(held_out, C, on_fold):
        folds[-1].append(np.flatnonzero(np.any(on_fold.wanted, axis=0)).tolist())
        return hold_out(held_out, C, on_fold)

    monkeypatch.setattr(source, "hold_out", recorded)
    for threads in (1, 2):
        monkeypatch.setattr(source, "usable_cores", lambda threads=threads: threads)
        folds.append([])
        trained.append(jsparse.train(X, y, **options, folds=3, key=0))
    assert [0, 1, 2] in folds[0]
    assert [0, 2] in folds[1]
    every = [sorted(itertools.chain.from_iterable(calls)) for calls in folds]
    assert every[0] == every[1]  # each fold once
    one, other = trained
    np.testing.assert_array_equal(one.out_of_fold, other.out_of_fold)
    for a, b in zip(one.tuning.history, other.tuning.history, strict=True):
        np.testing.assert_array_equal(a.scores, b.scores)
        np.testing.assert_array_equal(a.fold_scores, b.fold_scores)


@pytest.mark.parametrize("method", [jsparse.FixedSize(6, "uniform"), jsparse.Dual()])
def test_threads_share_the_kernels_if_one_program_has_all_folds(method, monkeypatch):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 2))
    evaluate, threads, reports, trained = source.evaluate, set(), [], []

    def evaluated_together(*arguments):
        """Wait until `at_once` threads have called this function, then evaluate."""
        if len(threads) < at_once:
            threads.add(threading.get_ident())
            together.wait(60)
        return evaluate(*arguments)

    monkeypatch.setattr(source, "evaluate", evaluated_together)
    for cores, at_once in ((1, 1), (2, 2), (16, 4)):
        monkeypatch.setattr(source, "usable_cores", lambda cores=cores: cores)
        together = threading.Barrier(at_once)
        threads.clear()
        reports.append([])
        trained.append(
            jsparse.train(
                X, X[:, 0], task="regression", method=method, search=jsparse.Profile(6), folds=3,
                key=0, progress=lambda *report: reports[-1].append(report),
            )
        )  # fmt: skip
        assert len(threads) == at_once
        assert (threading.get_ident() in threads) == (at_once == 1)
    for other in trained[1:]:
        for a, b in zip(trained[0].tuning.history, other.tuning.history, strict=True):
            np.testing.assert_array_equal(a.scores, b.scores)
        np.testing.assert_array_equal(trained[0].out_of_fold, other.out_of_fold)
    assert reports[0] == reports[1] == reports[2]


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_how_many_kernels_are_evaluated_at_the_same_time(platform, monkeypatch):
    monkeypatch.setattr(source, "usable_cores", lambda: 16)
    monkeypatch.setattr(source, "on_cpu", lambda: platform == "cpu")
    monkeypatch.setattr(source, "_BYTES_OF_KERNELS", 10 * 1023**2 * 8)

    def at_once(method, n):
        X = np.zeros((n, 2))
        folds = jsparse.folds_from_assignment(np.arange(n) % 3)
        points = None if isinstance(method, jsparse.Dual) else X[:5]
        X, y, points = jax.device_put((X, X[:, 0], points))
        problem = tuning_problem(RBF(1.0), points, X, y, folds, method=method)
        return problem.kernels_at_once

    assert at_once(jsparse.SpSVM(max_prototypes=4), 60) == 1  # the folds are fitted one by one
    cases = (
        (jsparse.FixedSize(5), 60, 4),
        (jsparse.FixedSize(5), 6000, 1),  # the cores share the folds
        (jsparse.Dual(), 500, 4),
        (jsparse.Dual(), 1023, 2),  # more would take too much memory
        (jsparse.Dual(), 1024, 1),  # LAPACK has several threads
    )
    for method, n, on_cpu in cases:
        assert at_once(method, n) == (on_cpu if platform == "cpu" else sys.maxsize)


def test_large_tables_are_fitted_one_fold_after_another(monkeypatch):
    monkeypatch.setattr(fold_fits, "usable_cores", lambda: 16)
    method = jsparse.RVM(max_prototypes=10)
    assert [fold_fits._folds_at_once(method, n) for n in (100, 30_000, 10**6)] == [16, 2, 1]
    assert fold_fits._folds_at_once(jsparse.RVM(max_prototypes=2000), 100) == 1


def test_validation_and_the_last_fit_share_one_program(monkeypatch):
    traced, fit_targets = [], jsparse.ReducedSVM.fit_targets

    def counted(self, *arguments):
        traced.append(len(arguments[2]))
        return fit_targets(self, *arguments)

    monkeypatch.setattr(jsparse.ReducedSVM, "fit_targets", counted)
    rng = np.random.default_rng(1)
    X = rng.standard_normal((83, 2)).astype(np.float32)
    method = jsparse.ReducedSVM(5, selection="uniform")
    jsparse.train(X, X[:, 0] > 0, task="classification", method=method, key=0)
    assert len(traced) == 1
