"""Recursive feature machines: one round against plain NumPy, and the metrics they find."""

import jax
import numpy as np
import pandas as pd
import pytest

from jsparse import Dual, FixedSize, Profile, Recursive, train
from jsparse.data.frames import Frame
from jsparse.data.streams import ArrayStream
from jsparse.kernels import Laplacian, Projected
from jsparse.training.kept import KeptEvaluations


def rows(n=300, d=6, seed=0):
    """Return inputs, and targets that depend on the first two of `d` columns."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.05 * rng.normal(size=n)


@pytest.mark.slow
def test_the_metric_finds_the_columns_that_matter():
    X, y = rows()
    new, targets = rows(seed=1)
    options = {"task": "regression", "key": 0, "kernel": "matern32", "method": Dual()}
    learned = train(X, y, search=Recursive(), **options)
    plain = train(X, y, search=Profile(), **options)
    lengths = np.asarray(learned.kernel.lengthscale)
    assert lengths[:2].max() < 0.2 * lengths[2:].min()
    assert learned.cv_error < 0.3 * plain.cv_error
    error, plain_error = (np.mean((m.predict(new) - targets) ** 2) for m in (learned, plain))
    assert error < 0.3 * plain_error
    # The profile comes first and the best kernel stays.
    scores = [evaluation.least for evaluation in learned.tuning.history]
    assert learned.tuning.score == min(scores)
    assert min(scores[:10]) == pytest.approx(min(e.least for e in plain.tuning.history), rel=1e-6)


def test_one_round_is_the_plain_computation():
    """Compute kernel ridge regression, squared derivatives and their roots in NumPy."""
    X, y = rows(80, 3)
    X, y = (X - X.mean(0)) / X.std(0), y - y.mean()
    search = Recursive(rounds=1)
    with jax.enable_x64(True):
        trained = train(X, y, task="regression", key=0, method=Dual(), kernel="matern32",
                        search=search)  # fmt: skip
    history = trained.tuning.history
    best = min(history[:10], key=lambda e: e.least)
    scale = np.exp(-best.theta)
    C = best.C[np.argmin(best.trusted)]
    A = X * scale
    difference = A[:, None] - A[None]
    r = np.sqrt(3 * np.sum(difference**2, axis=2))
    K = (1 + r) * np.exp(-r) + np.eye(len(X)) / C
    ones = np.linalg.solve(K, np.ones(len(X)))
    # The targets' unit changes neither the metric nor the best C.
    alpha = np.linalg.solve(K, y)
    alpha = alpha - ones * alpha.sum() / ones.sum()
    slopes = -3 * np.einsum("j,ij,ijd->id", alpha, np.exp(-r), difference) * scale
    metric = np.sqrt(np.mean(slopes**2, axis=0))
    metric *= np.sqrt(np.sum(scale**2) / np.sum(metric**2))
    np.testing.assert_allclose(np.exp(-history[10].theta), metric, rtol=1e-6)


@pytest.mark.slow
def test_a_full_metric_and_a_low_rank_one():
    X, _ = rows(d=4)
    direction = np.array([1.0, -1.0, 0.5, 0.0]) / 1.5
    y = np.sin(2 * X @ direction)
    for rank in (1, 4):
        trained = train(X, y, task="regression", key=0, method=Dual(), kernel="matern32",
                        search=Recursive(rank=rank))  # fmt: skip
        assert isinstance(trained.kernel, Projected)
        matrix = np.asarray(trained.kernel.matrix)
        assert matrix.shape == (rank, 4)
        metric = matrix.T @ matrix
        leading = np.linalg.eigh(metric)[1][:, -1]
        assert abs(leading @ direction) > 0.98
        assert trained.cv_error < 0.01 * np.var(y)


@pytest.mark.slow
def test_any_method_with_a_metric_and_none_without():
    X, y = rows(200, 4)
    labels = np.where(y > np.median(y), "high", "low")
    fixed = train(X, labels, task="classification", key=0, method=FixedSize(40),
                  search=Recursive(rounds=2))  # fmt: skip
    assert np.asarray(fixed.kernel.lengthscale).shape == (4,)
    one = train(X, y, task="regression", key=0, method=FixedSize(40), kernel=Laplacian(2.0),
                search=Recursive())  # fmt: skip
    assert len(one.tuning.history) == 10  # one lengthscale: the profile alone
    linear = train(X, y, task="regression", key=0, method=FixedSize(40), kernel="linear",
                   search=Recursive())  # fmt: skip
    assert len(linear.tuning.history) == 1


@pytest.mark.slow
def test_streams_classes_targets_and_categories():
    X, y = rows(240, 4)
    method, search = FixedSize(30), Recursive(rounds=1)
    stream = train(ArrayStream(X, y, batch_rows=100), task="regression", key=0, method=method,
                   search=search)  # fmt: skip
    assert np.asarray(stream.kernel.lengthscale).shape == (4,)
    classes = np.digitize(y, [0.3, 1.2])
    for targets, task in ((classes, "classification"), (np.stack([y, -y], axis=1), "regression")):
        several = train(X, targets, task=task, key=0, method=method, search=search)
        assert np.asarray(several.kernel.lengthscale)[2:].min() > several.kernel.lengthscale[0]
    town = np.random.default_rng(1).choice(["a", "b", "c"], 240)
    table = pd.DataFrame({"town": town, "x": X[:, 0], "noise": X[:, 3]})
    target = X[:, 0] + 2.0 * (town == "b")
    mixed = train(Frame(table, categories="kernel"), target, task="regression", key=0,
                  method=FixedSize(60), search=Recursive(rounds=2))  # fmt: skip
    relevance = mixed.relevance()
    assert relevance["noise"] < 0.3 * min(relevance["town"], relevance["x"])


def test_a_stopped_search_resumes():
    X, y = rows(80, 3)
    options = {"task": "regression", "key": 0, "method": Dual(), "kernel": "matern32"}
    whole = train(X, y, search=Recursive(rounds=2), **options)
    part = whole.tuning.history[:12]
    resumed = train(X, y, search=Recursive(rounds=2, history=part), **options)
    assert [e.theta.tolist() for e in resumed.tuning.history] == [
        e.theta.tolist() for e in whole.tuning.history
    ]
    assert resumed.tuning.score == whole.tuning.score
    warm = train(X, y, search=Recursive(rounds=1, start=whole.tuning), **options)
    assert warm.tuning.score <= whole.tuning.score * (1 + 1e-6)


@pytest.mark.parametrize("method", [Dual(), FixedSize(12, "uniform")])
def test_a_search_that_keeps_nothing_goes_the_same_way(method, monkeypatch):
    """As a resumed run, which has not kept the evaluations that it reads from the history."""
    X, y = rows(80, 3)
    options = {"task": "classification", "key": 0, "kernel": "matern32", "method": method}
    options["search"] = Recursive(rounds=2)
    kept = train(X, y > np.median(y), **options)
    monkeypatch.setattr(KeptEvaluations, "known", lambda *_: None)
    again = train(X, y > np.median(y), **options)
    for one, other in zip(kept.tuning.history, again.tuning.history, strict=True):
        np.testing.assert_array_equal(one.theta, other.theta)
        np.testing.assert_array_equal(one.scores, other.scores)


@pytest.mark.slow
def test_a_sample_of_the_rows_tunes_the_dual():
    X, y = rows(400)
    options = {"task": "regression", "key": 0, "kernel": "matern32", "search": Recursive(rounds=2)}
    whole = train(X, y, method=Dual(), **options)
    sampled = train(X, y, method=Dual(tuned_with=150), **options)
    assert sampled.model.size == 400
    assert sampled.cv_error < 1.5 * whole.cv_error
    labels = (y > np.median(y)).astype(int)
    classes = train(X, labels, task="classification", method=Dual(tuned_with=150), key=0,
                    kernel="matern32", search=Recursive(rounds=2))  # fmt: skip
    assert classes.metric == "misclassification"
    assert classes.cv_error < 0.1
    with pytest.raises(ValueError, match="tuned_with: expected a whole number of at least 2"):
        train(X, y, method=Dual(tuned_with=1), **options)


def test_settings_out_of_range_are_named():
    X, y = rows(50)
    for settings, message in (
        ({"rounds": 0}, "rounds: expected a whole number of at least 1"),
        ({"exponent": 0.0}, "exponent: expected"),
        ({"rank": 0}, "rank: expected a whole number of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            train(X, y, task="regression", key=0, search=Recursive(**settings))


@pytest.mark.slow
def test_constant_duplicated_and_offset_columns():
    X, y = rows(d=3)
    wide = np.column_stack([X, np.full(300, 7.0), X[:, 2], X[:, 0] * 1e-6 + 1e3])
    trained = train(wide, y, task="regression", key=0, method=Dual(), kernel="matern32",
                    search=Recursive(rounds=3))  # fmt: skip
    assert np.all(np.isfinite(trained.predict(wide)))
    assert trained.cv_error < 0.2 * np.var(y)
