"""Methods that fit every fold are validated on the host, by the compiled fit."""

import jax
import numpy as np
import pytest

import jsparse
from jsparse.kernels import RBF
from jsparse.training.fold_fits import held_out_by_fits
from jsparse.training.source import WithPredictions, hold_out
from jsparse.training.tables import tuning_problem
from jsparse.validation.validate import Scoring

METHODS = {
    "reduced-svm": jsparse.ReducedSVM(4),
    "spsvm": jsparse.SpSVM(max_prototypes=3, candidates=8, subset=4),  # several sizes, draws
    "rvm": jsparse.RVM(max_prototypes=4, likelihood="logistic"),
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


def test_validation_and_the_last_fit_share_one_program(monkeypatch):
    traced, fit_targets = [], jsparse.ReducedSVM.fit_targets

    def counted(self, *arguments):
        traced.append(len(arguments[2]))
        return fit_targets(self, *arguments)

    monkeypatch.setattr(jsparse.ReducedSVM, "fit_targets", counted)
    rng = np.random.default_rng(1)
    X = rng.standard_normal((83, 2)).astype(np.float32)
    jsparse.train(X, X[:, 0] > 0, task="classification", method=jsparse.ReducedSVM(5), key=0)
    assert len(traced) == 1
