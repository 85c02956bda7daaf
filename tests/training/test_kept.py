"""A search keeps the held-out values of its best machine."""

import numpy as np
import pytest

import jsparse
from jsparse.training import source

KEPT = {
    "scdp": jsparse.SCDP(max_prototypes=8),  # a race over several C, and several sizes
    "kmp": jsparse.KMP(max_prototypes=6),  # without C
    "fixed-size": jsparse.FixedSize(6, "uniform"),
    "robust": jsparse.Robust(6, "uniform", loss="quantile", quantile=(0.2, 0.8)),
    "sparse-fisher": jsparse.SparseFisher(3, starts=1, max_iterations=5),
    "reduced-svm": jsparse.ReducedSVM(4),
}


def rows(method, n=90):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 2)).astype(np.float32)
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(n)
    if method.tasks == ("classification",):
        return X, (y > 0) + (X[:, 1] > 1).astype(int), "classification"
    return X, y, "regression"


FAST = ("scdp", "fixed-size")
EVALUATIONS = ("evaluate", "held_out_by_fits", "hold_out_by_cores")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in KEPT]
)
def test_held_out_values_come_from_the_search(name, monkeypatch):
    """They take no evaluation, and equal the values after a search that keeps nothing."""
    method, after_search = KEPT[name], []
    X, y, task = rows(method)
    held_out_values = source.TrainingSource.held_out_values
    evaluations = {name: getattr(source, name) for name in EVALUATIONS}

    def counting(evaluate):
        return lambda *a: after_search.append(a) or evaluate(*a)

    def counted(self, *arguments):
        for name, evaluate in evaluations.items():
            monkeypatch.setattr(source, name, counting(evaluate))
        values = held_out_values(self, *arguments)
        for name, evaluate in evaluations.items():
            monkeypatch.setattr(source, name, evaluate)
        return values

    monkeypatch.setattr(source.TrainingSource, "held_out_values", counted)
    search = jsparse.Profile(max_evaluations=4)
    kept = jsparse.train(X, y, task=task, method=method, search=search, key=0)
    assert not after_search
    monkeypatch.setattr(source, "MOST_KEPT", 0)
    fresh = jsparse.train(X, y, task=task, method=method, search=search, key=0)
    assert len(after_search) == 1
    assert kept.C == fresh.C
    assert kept.cv_error == pytest.approx(fresh.cv_error, rel=1e-6)
    scale = np.abs(fresh.out_of_fold).max()
    np.testing.assert_allclose(kept.out_of_fold, fresh.out_of_fold, atol=1e-5 * scale)


def test_of_kernels_with_the_same_score_the_first_is_kept(monkeypatch):
    """The search chooses the first, so the last fit starts from its sums."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = (8 * y[:, None] + rng.standard_normal((60, 2))).astype(np.float32)
    fit, starts = source.InMemory.fit, []
    monkeypatch.setattr(source.InMemory, "fit", lambda *a: starts.append(a[-1]) or fit(*a))
    trained = jsparse.train(
        X, y, task="classification", method=jsparse.FixedSize(6, "uniform"), C=np.array([1.0, 9.0]),
        search=jsparse.Profile(max_evaluations=3), metric="misclassification", out_of_fold=False,
        key=0,
    )  # fmt: skip
    least = [evaluation.least for evaluation in trained.tuning.history]
    assert least.count(min(least)) > 1
    assert len(starts) == 1
    assert starts[0] is not None
