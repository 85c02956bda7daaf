"""The worked example in CONTRIBUTING.md: a new method is one class and one line."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.kernels import gaussian

import jsparse
from jsparse.cli import compare
from jsparse.cli.interrupts import Interrupts
from jsparse.estimators import SCDPClassifier
from jsparse.kernels import RBF
from jsparse.machines import METHODS
from jsparse.machines.rows import rows_of
from jsparse.validation.validate import validate


@pytest.fixture
def greedy(monkeypatch):
    """Register the class of the example, beside one other method, and return it."""
    text = Path(__file__).parents[2].joinpath("CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for name in set(METHODS) - {"fixed-size"}:
        monkeypatch.delitem(METHODS, name)
    monkeypatch.setitem(METHODS, "greedy", None)  # so that the end of the test removes it
    exec(compile(code, "CONTRIBUTING.md", "exec"), {"__name__": "example"})
    return METHODS["greedy"]


def table(n=90):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 2))
    label = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    return X, label, np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(n)


def test_its_machines_and_their_validation_are_ridge_regression_on_the_selected_prototypes(greedy):
    X, _, y = table(30)
    w, folds = np.linspace(0.5, 2, 30), jsparse.folds_from_assignment(np.arange(30) % 3)
    losses, points = np.zeros((30, 3)), jnp.asarray(X)
    fit = jax.jit(lambda rows: greedy(3).fit(RBF(1.0), points, 10.0, rows))
    for fold in np.asarray(folds.index):
        rest = np.setdiff1d(np.arange(30), fold)
        family = fit(rows_of(*(jnp.asarray(a[rest]) for a in (X, y, w))))
        for size in (1, 2, 3):
            Z, v = X[family.active_points(size)], w[rest]
            K = gaussian(X[rest], Z)
            A = K.T @ (v[:, None] * K) + gaussian(Z, Z) / 10
            A = np.block([[A, (v @ K)[:, None]], [v @ K, v.sum()]])
            solution = np.linalg.solve(A, np.append(K.T @ (v * y[rest]), v @ y[rest]))
            expected = gaussian(X, Z) @ solution[:-1] + solution[-1]
            np.testing.assert_allclose(family.at(size)(X), expected, rtol=1e-7)
            losses[fold, size - 1] = (expected[fold] - y[fold]) ** 2
    arrays = points, jnp.asarray([10.0]), points, jnp.asarray(y), folds, jnp.asarray(w)
    scores = validate(greedy(3), RBF(1.0), *arrays, metric="mse").scores
    np.testing.assert_allclose(scores[0], np.average(losses, axis=0, weights=w), rtol=1e-7)


@pytest.mark.slow
def test_every_public_entry_point_takes_it(greedy, tmp_path, capsys):
    X, label, _ = table()
    options = {"key": 0, "folds": 3, "search": jsparse.Profile(3)}
    trained = jsparse.train(X, label, task="classification", method=greedy(8), **options)
    assert (trained.predict(X) == label).mean() > 0.85
    assert trained.curve.sizes.tolist() == list(range(1, 9))
    trained.model.save(tmp_path / "model")
    loaded = jsparse.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.at(2).predict(X), trained.at(2).predict(X))

    class Estimator(SCDPClassifier):
        def make_method(self):
            return greedy(self.max_prototypes)

    assert Estimator(8, random_state=0, cv=3).fit(X, label).score(X, label) > 0.8
    X, label, _ = table(120)  # 90 rows train, as above, so that programs are shared
    options = {"test": 0.25, "max_prototypes": 8, "max_evaluations": 3, "seed": 0}
    options |= {"folder": tmp_path, "quiet": True, "interrupts": Interrupts(owns_process=False)}
    compare.run(X, label, "classification", **options)
    assert "greedy ridge regression" in capsys.readouterr().out
