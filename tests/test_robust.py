"""Absolute and Huber losses against LIBSVM, SciPy and their own definition."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.svm import SVR

from jsparse import _status
from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.machines import fixed_size, robust
from jsparse.tuning.cross_validation import cross_validate
from jsparse.tuning.folds import plain_folds


def problem(dtype="float64", n=80, outliers=8, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    clean = np.sin(2 * X[:, 0]) + X[:, 1]
    y = clean + 0.1 * rng.standard_normal(n)
    y[:outliers] += 20
    phi = Nystroem(RBF(jnp.asarray(1.0, dtype)), jnp.asarray(X[-15:], dtype))
    return phi, jnp.asarray(X, dtype), jnp.asarray(y, dtype), clean


def objective(v, Phi, y, w, C, loss):
    e = y - Phi @ v[:-1] - v[-1]
    return 0.5 * v[:-1] @ v[:-1] + C / 2 * np.sum(w * loss(e))


@pytest.mark.parametrize("C", [1.0, 30.0])
def test_absolute_loss_is_libsvms_without_its_tube(C):
    phi, X, y, _ = problem()
    fitted = robust.fit(phi, C, X, y, tolerance=1e-10, max_steps=1000)
    assert int(fitted.status) == _status.CONVERGED
    Phi = np.asarray(phi(X))
    svr = SVR(kernel="precomputed", C=C / 2, epsilon=0.0, tol=1e-8).fit(Phi @ Phi.T, y)
    v = np.append(Phi[svr.support_].T @ svr.dual_coef_[0], svr.intercept_)
    best = objective(v, Phi, y, np.ones(80), C, np.abs)
    f = fitted.expansion(X)
    np.testing.assert_allclose(f, Phi @ v[:-1] + v[-1], atol=0.01)
    np.testing.assert_allclose(fitted.objective, best, rtol=1e-3)
    # As much of the optimum is there at the default tolerance.
    np.testing.assert_allclose(robust.fit(phi, C, X, y).objective, best, rtol=1e-3)


@pytest.mark.parametrize("delta", [0.05, 0.5])
def test_huber_loss_is_its_minimum(delta):
    phi, X, y, _ = problem()
    w = np.random.default_rng(1).choice([0.0, 1.0, 2.0], 80)
    fitted = robust.fit(
        phi, 5.0, X, y, jnp.asarray(w), loss="huber", threshold=delta, tolerance=1e-13
    )

    def huber(e):
        return np.where(np.abs(e) <= delta, e**2, 2 * delta * np.abs(e) - delta**2)

    Phi, yn = np.asarray(phi(X)), np.asarray(y)
    best = minimize(
        objective, np.zeros(16), (Phi, yn, w, 5.0, huber), "BFGS", options={"gtol": 1e-9}
    )
    np.testing.assert_allclose(fitted.expansion(X), Phi @ best.x[:-1] + best.x[-1], atol=1e-4)
    np.testing.assert_allclose(fitted.objective, best.fun, rtol=1e-8)
    bent = np.abs(yn - np.asarray(fitted.expansion(X))) > delta
    np.testing.assert_array_equal(np.asarray(fitted.row_weights) < 1 - 1e-6, bent)


@pytest.mark.parametrize("loss", ["absolute", "huber"])
def test_the_objective_never_rises(loss):
    phi, X, y, _ = problem()
    delta = jnp.asarray(0.3) if loss == "huber" else None
    args = (phi(X), y, jnp.ones(80), jnp.asarray(10.0))
    state = robust.init(*args, loss=loss, threshold=delta)
    step = jax.jit(lambda s: robust.step(s, *args, jnp.asarray(0.0), loss=loss, threshold=delta))
    for _ in range(10):
        after = step(state)
        chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
        assert float(after.objective) <= float(state.objective) * (1 + 1e-12)
        state = after


@pytest.mark.parametrize("loss", ["absolute", "huber"])
def test_outliers_do_not_move_it(dtype, loss):
    phi, X, y, clean = problem(dtype)
    fitted = robust.fit(phi, 10.0, X, y, loss=loss)
    squares = fixed_size.fit_features(phi, 10.0, X, y)
    ours, theirs = (
        np.sqrt(np.mean((np.asarray(model.expansion(X)) - clean) ** 2))
        for model in (fitted, squares)
    )
    assert fitted.expansion(X).dtype == X.dtype
    assert ours < 0.3
    assert theirs > 5 * ours
    assert (np.asarray(fitted.row_weights)[:8] < 0.1).all()


def test_a_threshold_beyond_all_residuals_is_least_squares():
    phi, X, y, _ = problem()
    fitted = robust.fit(phi, 10.0, X, y, loss="huber", threshold=1e3)
    expected = fixed_size.fit_features(phi, 10.0, X, y).expansion(X)
    np.testing.assert_allclose(fitted.expansion(X), expected, atol=1e-9)


@pytest.mark.parametrize("loss", ["absolute", "huber"])
def test_a_weight_of_two_is_a_row_repeated_and_zero_a_row_removed(loss):
    phi, X, y, _ = problem()
    w = np.random.default_rng(1).integers(0, 3, 80)
    rows = np.repeat(np.arange(80), w)
    fitted = robust.fit(phi, 10.0, X, y, jnp.asarray(w, float), loss=loss)
    expected = robust.fit(phi, 10.0, X[rows], y[rows], loss=loss)
    np.testing.assert_allclose(fitted.expansion(X), expected.expansion(X), atol=1e-8)


def test_jit_vmap_and_steps_that_run_out():
    phi, X, y, _ = problem()
    C = jnp.array([1.0, 10.0])
    f = jax.vmap(lambda c: robust.fit(phi, c, X, y).expansion(X))(C)
    for row, c in zip(f, C, strict=True):
        np.testing.assert_allclose(row, robust.fit(phi, c, X, y).expansion(X), atol=1e-8)
    assert int(robust.fit(phi, 1.0, X, y, max_steps=1).status) == _status.EXHAUSTED
    zero = robust.fit(phi, 1.0, X, jnp.zeros(80))
    assert int(zero.status) == _status.CONVERGED
    np.testing.assert_allclose(zero.expansion(X), 0)


@pytest.mark.parametrize("loss", ["absolute", "huber"])
def test_cross_validation_equals_refitting(loss):
    phi, X, y, _ = problem()
    folds = plain_folds(jax.random.key(0), 80, 4)
    C = jnp.array([1.0, 20.0])
    result = cross_validate(phi, C, X, y, folds, metric="mae", loss=loss)
    for s in range(2):
        out = np.zeros(80)
        for index, valid in zip(folds.index, folds.valid, strict=True):
            test = np.asarray(index)[np.asarray(valid)]
            train = np.setdiff1d(np.arange(80), test)
            out[test] = robust.fit(phi, C[s], X[train], y[train], loss=loss).expansion(X[test])
        # Iterations that start elsewhere end within the tolerance of each other.
        np.testing.assert_allclose(result.predictions[s], out, atol=2e-2)
        np.testing.assert_allclose(result.scores[s], np.mean(np.abs(out - y)), rtol=1e-3)


def test_cross_validation_refuses_what_it_would_not_heed(as_users_call):
    phi, X, y, _ = problem()
    folds, C = plain_folds(jax.random.key(0), 80, 4), jnp.array([1.0])
    for options in ({"method": "removal"}, {"intercept_penalty": 1.0}):
        with pytest.raises(ValueError, match="takes the method 'auto' and no intercept_penalty"):
            cross_validate(phi, C, X, y, folds, loss="huber", **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "l0"}, "loss: expected"),
        ({"threshold": 0.0, "loss": "huber"}, "threshold: expected a positive"),
        ({"C": -1.0}, "C: expected a positive"),
        ({"y": jnp.zeros(7)}, "y: expected 80 rows"),
    ],
)
def test_bad_input_is_named(as_users_call, change, message):
    phi, X, y, _ = problem()
    with pytest.raises(ValueError, match=message):
        robust.fit(**{"feature_map": phi, "C": 1.0, "X": X, "y": y, **change})
