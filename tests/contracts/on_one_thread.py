"""Branches for accelerators, run on a CPU; `test_accelerators.py` starts this file.

JAX has one thread here, because several threads can deadlock in LAPACK's batched calls, see
`_numerics.unbatched_lapack`.
"""

import ast

import jax
import numpy as np
import pytest
from accelerators import PACKAGE, PLATFORMS, check_lowers, traced_for

import jsparse
from jsparse import _programs, estimators, pursuit
from jsparse.data.streams import ArrayStream

GRID = np.array([0.1, 10.0])


def table():
    X = np.random.default_rng(3).standard_normal((48, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1]


def trained(method, *rows, **options):
    """Train on a table; on an accelerator one program scores several kernels."""
    search = {"C": GRID, "search": jsparse.Annealing(12)} if method.has_C else {}
    settings = {"search": jsparse.Profile(2), "folds": 3, "key": 5, **search, **options}
    return jsparse.train(*(rows or table()), task="regression", method=method, **settings)


def streamed():
    X, y = table()
    stream = ArrayStream(X, y, batch_rows=20)
    return trained(jsparse.FixedSize(8), stream, search=jsparse.Profile(2))


def fitted_in_parts():
    X, y = (a.astype(np.float32) for a in table())
    estimator = estimators.FixedSizeLSSVMClassifier(n_prototypes=8, cv=3, random_state=0)
    for part in (slice(0, 32), slice(32, 48)):
        estimator.partial_fit(X[part], (y > 0)[part])
    return estimator.predict_proba(X)


RUNS = {
    "in memory": lambda: trained(jsparse.FixedSize(8)).predict(table()[0]),
    "stream": streamed,
    "partial_fit": fitted_in_parts,
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_all_programs_of_training_lower(run, monkeypatch):
    get, names = _programs.PROGRAMS.get, set()

    def lowered_first(key, make):
        jitted = get(key, make)

        def call(*arguments, **named):
            for platform in PLATFORMS:
                check_lowers(platform, jitted, *arguments, **named)
            names.add(key[0].__name__)
            return jitted(*arguments, **named)

        return call

    monkeypatch.setattr(_programs.PROGRAMS, "get", lowered_first)
    with jax.enable_x64(False), traced_for("gpu"):
        run()
    assert len(names) > 5


METHODS = {
    "fixed-size": jsparse.FixedSize(8),
    "dual": jsparse.Dual(),
    "scdp": jsparse.SCDP(4, 8),
    "robust": jsparse.Robust(8),
    "ksp": jsparse.KSP(n_prototypes=(2, 4), candidates=8),
    "conjugate gradients": jsparse.FixedSize(8, solver="conjugate_gradients"),
}


def branches():
    """Yield file and line of every call of `on_cpu` in the package."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "on_cpu":
                yield str(path), node.lineno


def answers(method):
    """Return the numbers that a user sees of a trained method, and predictions of few rows."""
    result = trained(method)
    X = table()[0]
    kernel = jax.tree.leaves(result.model.expansion.kernel)
    return (result.cv_error, result.out_of_fold, result.C, kernel, result.predict(X))


def subspace_path():
    """Return the coefficients of a pursuit that is called directly, outside of training."""
    X, y = table()
    return pursuit.subspace_pursuit(X, y, n_atoms=1, max_atoms=2).coefficients


def many():
    """Return the predictions of several problems that one program trains."""
    X, y = table()
    options = {"search": jsparse.Profile(2), "folds": 3, "key": 5, "C": GRID}
    problems = [(X, y), (X[:40], y[:40])]
    results = jsparse.train_many(
        problems, task="regression", method=jsparse.FixedSize(8), **options
    )
    return [result.predict(X) for result in results]


def chosen_columns():
    """Return predictions with the better of the two scalings of columns."""
    return trained(jsparse.FixedSize(8), columns="auto").predict(table()[0])


def all_answers():
    return [subspace_path(), many(), chosen_columns(), *map(answers, METHODS.values())]


def agree(accelerator, cpu):
    for ours, expected in zip(jax.tree.leaves(accelerator), jax.tree.leaves(cpu), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-7)


def test_all_branches_give_the_results_of_a_cpu():
    cpu = all_answers()
    with traced_for("gpu") as places:
        agree(all_answers(), cpu)
    assert places == set(branches())
