"""Targets in any unit give the same machine; scores are in the caller's unit."""

import math
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse
from jsparse import SCDP, FixedSize, Profile, Robust
from jsparse.data.streams import ArrayStream
from jsparse.estimators import FixedSizeLSSVMRegressor
from jsparse.training.target_units import target_units

N, D = 48, 2
SIZES = {"float64": [-155, -100, 150], "float32": [-30, -19, 20, 30]}


SLOW = pytest.mark.slow


def table(dtype, *, power=0, offset=0.0):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((N, D))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(N)
    return X.astype(dtype), (y + offset) * 10.0**power


def trained(kind, X, y, **options):
    options = {"task": "regression", "key": jax.random.key(0), "search": Profile(3), **options}
    method = {
        "path": SCDP(4),
        "streamed path": SCDP(4),
        "absolute": Robust(6, loss="absolute"),
        "sizes": FixedSize([3, 6], "uniform"),
    }.get(kind, FixedSize(6, "uniform"))
    rows = (ArrayStream(X, y),) if kind.startswith("stream") else (X, y)
    return jsparse.train(*rows, method=method, folds=3, **options)


def check_same(model, base, X, power, tol):
    unit = 10.0**power
    assert np.ptp(base.predict(X)) > 0.5
    assert base.C == model.C
    np.testing.assert_allclose(model.predict(X) / unit, base.predict(X), rtol=tol, atol=tol)
    metric = 2 if base.metric == "mse" else 1
    assert base.cv_error > 0
    # Scores far from 1, in their logarithm: they may be subnormal.
    assert ("objective" in model.fit.info) == isinstance(model.method, Robust)
    if isinstance(model.method, Robust) and abs(2 * power) < 300:
        objectives = (float(one.fit.info["objective"]) for one in (model, base))
        grown = np.subtract(*(math.log10(objective) for objective in objectives))
        assert abs(grown - 2 * power) < tol
    gap = math.log10(model.cv_error) - math.log10(base.cv_error) - metric * power
    assert abs(gap) < 10 * tol if abs(metric * power) < 300 else 1e-3
    for ours, theirs in zip(model.tuning.history, base.tuning.history, strict=True):
        np.testing.assert_allclose(ours.theta, theirs.theta)
        assert np.all(ours.scores > 0)
    assert (base.curve is None) == (model.curve is None)
    if base.curve is not None and abs(metric * power) < 300:
        for ours, theirs in zip(model.curve[1:3], base.curve[1:3], strict=True):
            grown = np.log10(ours) - np.log10(theirs)
            np.testing.assert_allclose(grown, metric * power, atol=10 * tol)
    if base.method.several_sizes:  # in the caller's units, too
        for k in (1, 4):
            ours, theirs = (np.asarray(one.at(k)(X), float) for one in (model, base))
            np.testing.assert_allclose(ours / unit, theirs, rtol=tol, atol=tol)


KINDS = ["absolute", "path", "streamed path", "sizes"]


@SLOW
@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_tiny_and_huge_targets_give_the_same_machine(kind, dtype):
    """`tests/contracts/test_relations.py` compares the machines of every other method."""
    X, y = table(dtype)
    base, tol = trained(kind, X, y), {"float64": 1e-6, "float32": 2e-2}[dtype]
    for power in SIZES[dtype]:
        check_same(trained(kind, X, table(dtype, power=power)[1]), base, X, power, tol)


@pytest.mark.slow
def test_a_score_out_of_range_is_said_to_be():
    X, y = table("float64")
    base = trained("squared", X, y)
    for power, score in ((155, math.inf), (-170, 0.0)):
        with pytest.warns(jsparse.PrecisionWarning, match="mse.*out of the range of float64"):
            model = trained("squared", X, y * 10.0**power)
        assert model.cv_error == score
        np.testing.assert_allclose(model.predict(X) / 10.0**power, base.predict(X), rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = trained("squared", X, y * 1e155, metric="mae")
    assert 1e153 < model.cv_error < 1e155


def test_targets_that_the_precision_cannot_hold_are_refused():
    X, y = table("float32")
    for unit in (1e-50, 1e50):
        with pytest.raises(ValueError, match=r"y: .*spread that float32 can hold.*X in float64"):
            trained("squared", X, y * unit)
    with pytest.raises(ValueError, match="times the typical deviation"):
        trained("absolute", X, np.where(np.arange(N) == 3, 1e30, y))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=SLOW)])
def test_estimators_score_in_the_units_of_the_targets(dtype):
    X, y = table(dtype)
    power = -19 if dtype == "float32" else -150
    base, model = (
        FixedSizeLSSVMRegressor(
            6, selection="uniform", cv=3, max_evaluations=3, random_state=0
        ).fit(X, target)
        for target in (y, table(dtype, power=power)[1])
    )
    gap = math.log10(model.cv_error_) - math.log10(base.cv_error_) - 2 * power
    assert abs(gap) < 0.01
    tiny = model.predict(X) / 10.0**power
    np.testing.assert_allclose(tiny, base.predict(X), rtol=0.02, atol=0.02)
    assert model.score(X, y * 10.0**power) > 0.9


@pytest.mark.usefixtures("jax_in_float32")
def test_a_target_far_from_zero_costs_no_digits():
    """In float32 a mean of 1e5 would leave two digits of targets that vary by one."""
    X, y = table("float32")
    near = trained("squared", X, y).expansion
    with pytest.warns(jsparse.PrecisionWarning, match="y: float32 holds .* in steps of 0.0078"):
        far = trained("squared", X, y + 1e5).expansion
    # The intercept is compared by itself: float32 has no digits for the sum.
    values = (replace(one, intercept=jnp.zeros((), "float32"))(X) for one in (far, near))
    np.testing.assert_allclose(*values, atol=1e-3)
    assert abs(float(far.intercept) - 1e5 - float(near.intercept)) < 0.01


def test_rows_are_added_in_the_units_of_the_first():
    X, y = table("float32", power=20, offset=3.0)
    options = {"selection": "uniform", "lengthscale": 1.0, "C": 10.0, "random_state": 0}
    model = FixedSizeLSSVMRegressor(6, cv=3, **options)
    model.partial_fit(X[:30], y[:30])
    before = model.predict(X)
    model.partial_fit(X[30:], y[30:])
    assert np.mean(np.square(model.predict(X) - y)) < np.mean(np.square(before - y))


def test_units_by_medians_do_not_see_outliers():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(101) + 5.0
    for size in (1e3, 1e9):
        spoilt = np.where(np.arange(101) < 10, size, y)
        units = target_units(spoilt, None, np.dtype(float), robust=True)
        assert abs(units.offset - 5.0) < 1.0
        clean = target_units(y, None, np.dtype(float), robust=True)
        assert abs(math.log2(units.unit / clean.unit)) < 0.5
    values = units.apply(y)
    np.testing.assert_allclose(units.values(values), y, rtol=1e-14)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e-300, -7e300])
def test_equal_targets_have_no_spread(value):
    units = target_units(np.full(7, value), None, np.dtype(float))
    assert np.max(np.abs(units.apply(np.full(7, value)))) < 1e-15


def test_rows_without_weight_do_not_decide_the_units():
    y, w = np.array([1.0, 2.0, 3.0, 1e300]), np.array([1.0, 1.0, 2.0, 0.0])
    units = target_units(y, w, np.dtype(float))
    assert units == target_units(y[[0, 1, 2, 2]], None, np.dtype(float))
    np.testing.assert_allclose(units.apply(y, w)[3], 0.0)
