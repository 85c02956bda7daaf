"""The search by gradient on columns and targets with heavy tails, compared with plain Adam."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import kurtosis

import jsparse
from benchmarks.gradient_defects import (
    COLUMNS,
    cauchy_like,
    lognormal,
    lognormal_targets_too,
    table,
)
from jsparse.kernels import RBF
from jsparse.machines.stages import Outcome, better_by, better_on_folds
from jsparse.validation.error_gradient import Parts, held_out_error

INFORMATIVE = 4  # columns that count


def standardised(a):
    return (a - a.mean(axis=0)) / a.std(axis=0)


def error_of_five_folds(X, y, Z):
    """Return the cross-validated error and its gradient, in the logs of lengthscales and `C`."""
    order = np.random.default_rng(1).permutation(len(X)).reshape(5, -1)
    parts = Parts(*map(jnp.asarray, (X[order], y[order][..., None], np.ones(order.shape, X.dtype))))

    def error(theta):
        return held_out_error(RBF(jnp.exp(theta[:-1])), Z, jnp.exp(theta[-1]), parts)

    return jax.jit(jax.value_and_grad(error))


def plain_adam(error_and_gradient, d, steps=60, rate=0.1):
    """Return the least error on the way of Adam's steps from sqrt(d) and C = 100."""
    theta = jnp.asarray(np.append(np.full(d, np.log(d) / 2), np.log(100.0)))
    adam = optax.adam(rate)
    state, least = adam.init(theta), np.inf
    for _ in range(steps):
        error, gradient = error_and_gradient(theta)
        least = min(least, float(error))
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in integers
            update, state = adam.update(gradient / error, state)
        theta = theta + update
    return least


def trained_on(X, y, method):
    return jsparse.train(
        X, y, task="regression", method=method, key=0, search=jsparse.Gradient(elimination=False)
    )


@pytest.mark.parametrize(
    "kind",
    [lognormal_targets_too, lognormal, cauchy_like],
)
@pytest.mark.slow
def test_outliers_do_not_end_the_descent_before_plain_adam_has_the_lower_error(kind):
    X, y = table(kind, 800)
    assert kurtosis(X).max() > 100
    trained = trained_on(X, y, jsparse.FixedSize(80, selection="uniform"))
    Xs, ys = standardised(X), standardised(y)
    Z = jnp.asarray(Xs[trained.point_rows])
    error_and_gradient = error_of_five_folds(Xs, ys, Z)
    logs = np.log(trained.kernel.lengthscale)
    points = [np.append(logs, log_C) for log_C in np.log(np.geomspace(1, 1e4, 13))]
    least_error = min(float(error_and_gradient(point)[0]) for point in points)
    assert least_error <= 1.01 * plain_adam(error_and_gradient, COLUMNS)
    relevance = np.exp(-logs)
    assert set(np.argsort(relevance)[-2:]) <= set(range(INFORMATIVE))


@pytest.mark.slow
def test_more_prototypes_keep_the_lengthscales_of_the_columns_and_do_not_err_more():
    X, y = table(lognormal_targets_too, 800)
    trained = trained_on(X, y, jsparse.FixedSize(160, tuned_with=40, selection="uniform"))
    lengthscales = np.asarray(trained.kernel.lengthscale)
    assert lengthscales.max() > 10 * lengthscales.min()
    scored = [e for e in trained.tuning.history if not e.slope.size]
    smaller = min(e.least for e in scored if e.stage == 0)
    assert trained.cv_error <= smaller
    profile = min(e.least for e in scored[:10])
    assert smaller < 0.8 * profile


def outcome(fold_errors):
    """Return the outcome of a stage whose errors on the folds are given."""
    errors = np.asarray(fold_errors, float)
    spread = errors.std(ddof=1) / np.sqrt(len(errors))
    problem = types.SimpleNamespace(
        dtype=np.dtype(float), scoring=None,
        errors=lambda *_: [types.SimpleNamespace(fold_scores=errors[None, :, None])],
    )  # fmt: skip
    tuning = types.SimpleNamespace(score=np.nanmean(errors), standard_error=spread, C=1.0)
    return Outcome(problem, tuning, np.zeros(1), np.ones(1))


def test_two_machines_are_compared_fold_by_fold():
    hard_fold = np.array([1.0, 1.1, 9.0, 1.2, 0.9])
    first, lower = outcome(hard_fold), outcome(hard_fold - 0.1)
    assert not better_by(first, lower, 0.5)  # the fold of outliers hides the difference
    assert better_on_folds(first, lower, 1.0)
    lucky = outcome(hard_fold - np.array([0.1, -0.1, 1.0, -0.1, -0.1]))
    assert lucky.tuning.score < lower.tuning.score
    assert not better_on_folds(first, lucky, 1.0)  # lower on one fold alone
    assert not better_on_folds(first, first, 1.0)
    assert better_on_folds(outcome([1.0, np.nan]), outcome([0.9, np.nan]), 1.0)
