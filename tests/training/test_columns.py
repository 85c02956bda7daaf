"""The setting `columns`: standardisation, normal scores of ranks, or the better of the two."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jsparse import Dual, FixedSize, Profile, Recursive, distil, load, train
from jsparse.data.frames import Frame
from jsparse.data.streams import ArrayStream
from jsparse.machines.scdp import SCDP
from jsparse.scaling import NormalScores, Standardization


def heavy_tails(n=200, seed=0):
    """Return lognormal columns, and a target that depends on their logs."""
    Z = np.random.default_rng(seed).normal(size=(n, 3))
    return np.exp(3 * Z), np.sin(2 * Z[:, 0]) + Z[:, 1] * Z[:, 2]


@pytest.mark.slow
def test_ranks_do_not_change_under_monotone_maps_of_the_columns():
    X, y = heavy_tails(120)
    new, targets = heavy_tails(seed=1)
    options = {"task": "regression", "key": 0, "method": FixedSize(60)}
    ranks, logs, standard = (
        train(table, y, columns=columns, **options)
        for table, columns in ((X, "ranks"), (np.log(X), "ranks"), (X, "standard"))
    )
    np.testing.assert_allclose(ranks.out_of_fold, logs.out_of_fold, atol=1e-6)
    error, other = (np.mean((t.predict(new) - targets) ** 2) for t in (ranks, standard))
    assert error < 0.7 * other


@pytest.mark.parametrize(
    "method", [pytest.param(Dual(), marks=pytest.mark.slow), FixedSize(60, "uniform")]
)
def test_auto_takes_what_errs_less(method):
    X, y = heavy_tails()
    options = {"task": "regression", "key": 0, "method": method, "columns": "auto"}
    options |= {"search": Profile(5), "out_of_fold": False}
    trained = train(X, y, **options)
    assert isinstance(trained.model.expansion.scaling, NormalScores)
    Z = np.random.default_rng(2).normal(size=X.shape)
    linear = train(Z, Z @ [1.0, -2.0, 0.0], **options)
    assert isinstance(linear.model.expansion.scaling, Standardization)


@pytest.mark.slow
def test_models_of_ranks_are_saved_distilled_and_composed(tmp_path):
    X, y = heavy_tails()
    method = Dual(tuned_with=100)
    trained = train(X, y, task="regression", key=0, method=method, columns="ranks",
                    search=Recursive(rounds=2))  # fmt: skip
    trained.model.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict(X), trained.predict(X))
    values = loaded(jnp.asarray(X))
    np.testing.assert_allclose(values, trained.predict(X), rtol=1e-9)
    small = distil(trained, X, y, key=0, method=SCDP(max_prototypes=40))
    assert isinstance(small.model.expansion.scaling, NormalScores)
    assert small.model.size <= 40
    assert small.cv_error < 4 * trained.cv_error


@pytest.mark.slow
def test_the_accurate_preset_errs_less_and_keeps_what_is_stated():
    X, y = heavy_tails()
    new, targets = heavy_tails(seed=1)
    options = {"task": "regression", "key": 0}
    fast, accurate = (train(X, y, preset=name, **options) for name in ("fast", "accurate"))
    assert isinstance(accurate.method, Dual)
    assert isinstance(accurate.search, Recursive)
    assert isinstance(accurate.model.expansion.scaling, NormalScores)
    error, other = (np.mean((t.predict(new) - targets) ** 2) for t in (accurate, fast))
    assert error < 0.6 * other
    stated = train(X, y, preset="accurate", method=FixedSize(30), **options)
    assert isinstance(stated.method, FixedSize)
    table = pd.DataFrame(X).assign(y=y).rename(columns=str)
    of_table = train(table, "y", preset="accurate", **options)
    np.testing.assert_allclose(of_table.cv_error, accurate.cv_error, rtol=1e-6)
    with pytest.raises(ValueError, match="preset: expected 'fast' for a stream"):
        train(ArrayStream(X, y), preset="accurate", **options)


def test_what_ranks_cannot_do_is_named(as_users_call):
    X, y = heavy_tails(60)
    options = {"task": "regression", "key": 0, "method": FixedSize(10)}
    with pytest.raises(ValueError, match="columns: expected one of"):
        train(X, y, columns="quantiles", **options)
    with pytest.raises(ValueError, match="columns: expected 'standard' with a stream"):
        train(ArrayStream(X, y), columns="ranks", **options)
    table = pd.DataFrame({"town": ["a", "b"] * 30, "x": X[:, 0]})
    with pytest.raises(ValueError, match="columns: expected 'standard' if the kernel compares"):
        train(Frame(table, categories="kernel"), y, columns="ranks", **options)
