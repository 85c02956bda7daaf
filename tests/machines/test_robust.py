"""Absolute and Huber losses against LIBSVM, SciPy and their own definition."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import lsq_linear, minimize
from sklearn.svm import SVR

from jsparse import Robust, _status
from jsparse._blocks import sum_row_blocks
from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.machines import fixed_size, robust
from jsparse.machines.rows import rows_of
from jsparse.multiclass import output_code


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


def without_a_tube(Phi, y, w, C):
    """Return weights and intercept for the absolute loss, by LIBSVM."""
    seen = w > 0
    svr = SVR(kernel="precomputed", C=C / 2, epsilon=0.0, tol=1e-10)
    svr.fit(Phi[seen] @ Phi[seen].T, y[seen], w[seen])
    return np.append(Phi[seen][svr.support_].T @ svr.dual_coef_[0], svr.intercept_)


@pytest.mark.parametrize("C", [1.0, 30.0])
def test_absolute_loss_is_libsvms_without_its_tube(C):
    phi, X, y, _ = problem()
    w = np.random.default_rng(1).choice([0.0, 1.0, 2.0], 80)
    Phi = np.asarray(phi(X))
    v = without_a_tube(Phi, np.asarray(y), w, C)
    best = objective(v, Phi, y, w, C, np.abs)
    fitted = robust.fit(phi, C, X, y, jnp.asarray(w), tolerance=1e-9)
    assert int(fitted.status) == _status.CONVERGED
    np.testing.assert_allclose(fitted.expansion(X), Phi @ v[:-1] + v[-1], atol=1e-4)
    # LIBSVM's intercept is an average, and a little off.
    np.testing.assert_allclose(fitted.objective, best, rtol=1e-6)
    assert float(fitted.objective) <= best
    # As much of the optimum is there at the default tolerance.
    objective_found = robust.fit(phi, C, X, y, jnp.asarray(w)).objective
    np.testing.assert_allclose(objective_found, best, rtol=1e-6)


@pytest.mark.parametrize("delta", [0.05, 0.5])
def test_huber_loss_is_its_minimum(delta):
    phi, X, y, _ = problem()
    w = np.random.default_rng(1).choice([0.0, 1.0, 2.0], 80)
    fitted = robust.fit(
        phi, 5.0, X, y, jnp.asarray(w), loss="huber", threshold=delta, tolerance=1e-13
    )

    Phi, yn = np.asarray(phi(X)), np.asarray(y)
    best = minimize(
        objective, np.zeros(16), (Phi, yn, w, 5.0, huber_of(delta)), "BFGS", options={"gtol": 1e-9}
    )
    np.testing.assert_allclose(fitted.expansion(X), Phi @ best.x[:-1] + best.x[-1], atol=1e-4)
    np.testing.assert_allclose(fitted.objective, best.fun, rtol=1e-8)
    bent = np.abs(yn - np.asarray(fitted.expansion(X))) > delta
    np.testing.assert_array_equal(np.asarray(fitted.row_weights) < 1 - 1e-6, bent)


def with_outliers(size, dtype="float64"):
    """Return the problem with outliers of a size, to both sides."""
    phi, X, y, clean = problem(dtype, outliers=0)
    y = np.array(y, float)
    y[:8] += size * np.array([1, 1, 1, -1, 1, 2, -3, 1])
    return phi, X, jnp.asarray(y, dtype), clean


@pytest.mark.parametrize(
    ("dtype", "loss", "quantile"),
    [
        ("float64", "absolute", None),
        ("float64", "huber", None),
        ("float64", "quantile", 0.4),
        ("float32", "absolute", None),
        pytest.param("float32", "huber", None, marks=pytest.mark.slow),
        ("float32", "quantile", 0.4),
    ],
)
def test_it_does_not_matter_how_far_an_outlier_is(dtype, loss, quantile):
    fits, errors, steps = [], [], []
    for size in (1e2, 1e7, 1e12):
        phi, X, y, clean = with_outliers(size, dtype)
        fitted = robust.fit(phi, 10.0, X, y, loss=loss, quantile=quantile)
        assert int(fitted.status) == _status.CONVERGED
        fits.append(np.asarray(fitted.expansion(X), float))
        errors.append(np.sqrt(np.mean((fits[-1] - clean)[8:] ** 2)))
        steps.append(int(fitted.steps))
        assert (np.asarray(fitted.row_weights)[:8] < 0.1).all()
        # What the tolerance leaves open, in targets of order one.
        np.testing.assert_allclose(
            fits[-1], fits[0], atol={"float64": 1e-3, "float32": 3e-2}[dtype]
        )
    assert max(errors) < 0.3
    assert max(errors) - min(errors) < 0.01
    # The steps to a threshold differ from one set of residuals to another, not with their size.
    assert max(steps) <= 3 * min(steps)


def huber_of(delta):
    return lambda e: np.where(np.abs(e) <= delta, e**2, 2 * delta * np.abs(e) - delta**2)


def duality_gap(Phi, y, w, C, v):
    """Return the relative duality gap of the absolute loss; the objective cuts residuals at 1."""
    e = y - Phi @ v[:-1] - v[-1]
    near = np.abs(e) < 1e-5
    a = np.sign(e)
    if near.any():
        # The dual variables of interpolated rows are free: solve for them by least squares.
        c = C / 2 * w
        rest = np.append(v[:-1] - Phi[~near].T @ (c * a)[~near], -(c * a)[~near].sum())
        columns = np.vstack([Phi[near].T, np.ones(near.sum())]) * c[near]
        size = max(np.abs(columns).max(), 1e-300)
        a[near] = lsq_linear(columns / size, rest / size, (-1, 1), tol=1e-14).x
    pull = C / 2 * w * a
    gap = np.sum(C / 2 * w * (np.abs(e) - a * e)) + np.sum((v[:-1] - Phi.T @ pull) ** 2) / 2
    gap += abs(pull.sum())
    bounded = np.minimum(np.abs(e), 1)
    return gap / (v[:-1] @ v[:-1] / 2 + C / 2 * np.sum(w * bounded) + 1e-9 * C)


def odd_targets():
    rng = np.random.default_rng(3)
    tied = np.where(rng.random(80) < 0.7, 2.0, rng.standard_normal(80))
    return {
        "constant": np.full(80, 2.0),
        "most alike": tied,
        "most alike, an outlier": np.append(tied[:-1], 1e9),
        "classes": rng.choice([-1.0, 1.0], 80, p=[0.2, 0.8]),
        "one row apart": np.append(np.zeros(79), 1.0),
        "counts": rng.poisson(1.5, 80).astype(float),
    }


@pytest.mark.parametrize("name", list(odd_targets()))
@pytest.mark.parametrize("C", [1e-3, 1e8])
def test_odd_targets(name, C):
    phi, X, _, _ = problem()
    y, w = odd_targets()[name], np.ones(80)
    fitted = robust.fit(phi, C, X, jnp.asarray(y))
    assert int(fitted.status) == _status.CONVERGED
    Phi, f = np.asarray(phi(X)), np.asarray(fitted.expansion(X))
    v = np.linalg.lstsq(np.c_[Phi, np.ones(80)], f, rcond=None)[0]
    assert duality_gap(Phi, y, w, C, v) < 1e-4
    huber = robust.fit(phi, C, X, jnp.asarray(y), loss="huber")
    # There its residuals stand for 0.96 times any threshold that is small, and 0 is approached.
    slow = (name, C) == ("most alike", 1e-3)
    assert int(huber.status) == (_status.EXHAUSTED if slow else _status.CONVERGED)
    assert np.isfinite(np.asarray(huber.expansion(X))).all()


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("lightest", [1.0, 1e-6])
def test_a_threshold_beyond_all_residuals_is_least_squares(dtype, lightest):
    phi, X, y, _ = problem(dtype)
    w = jnp.asarray(np.random.default_rng(1).choice([0.0, lightest, 1.0], 80), dtype)
    expected = fixed_size.fit_features(phi, 10.0, X, y, w).expansion(X)
    tolerance, atol = {"float64": (1e-10, 1e-7), "float32": (None, 3e-3)}[dtype]
    for threshold in (1e2, 1e12, 1e30, np.inf):
        fitted = robust.fit(
            phi, 10.0, X, y, w, loss="huber", threshold=threshold, tolerance=tolerance
        )
        assert int(fitted.status) == _status.CONVERGED
        assert int(fitted.steps) <= 20
        assert fitted.threshold == jnp.asarray(threshold, dtype)
        np.testing.assert_array_equal(fitted.row_weights, 1)
        np.testing.assert_allclose(fitted.expansion(X), expected, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["huber", "absolute"])
def test_features_lost_to_rounding_are_told(loss):
    X = np.random.default_rng(0).standard_normal((200, 2))
    y = np.sin(X[:, 0])
    for dtype, end in (("float32", _status.TRUNCATED), ("float64", _status.CONVERGED)):
        phi = Nystroem(RBF(jnp.asarray(1.5, dtype)), jnp.asarray(X[:20], dtype))
        data = jnp.asarray(X, dtype), jnp.asarray(y, dtype)
        assert int(fixed_size.fit_features(phi, 10.0, *data).status) == end
        assert int(robust.fit(phi, 10.0, *data, loss=loss).status) == end


@pytest.mark.slow
def test_each_problem_of_a_code_is_a_fit_of_its_own():
    phi, X, y, _ = problem()
    code = output_code("one_versus_one", 3)
    rows = rows_of(X, jnp.asarray(np.digitize(y, [0, 1]), jnp.int32), code=code.astype(X.dtype))
    C = jnp.array([1.0, 5.0, 20.0])
    family = Robust().fit(phi.kernel, phi.prototypes, C, rows)
    for j in range(3):
        target = jnp.asarray(code.matrix[:, j])[rows.y]
        alone = robust.fit(phi, C[j], X, target, jnp.abs(target), loss="huber")
        np.testing.assert_allclose(family.values(X)[:, 0, j], alone.expansion(X), atol=1e-10)
        for name in Robust.info_powers:
            np.testing.assert_allclose(family.info[name][j], getattr(alone, name), rtol=1e-10)
    assert set(family.info) == {"row_weights", "threshold", "objective", "steps"}
    assert family.expansion.coefficients.shape == (15, 3)
    assert int(family.status) == _status.CONVERGED


def test_a_fit_sums_as_many_rows_at_a_time_as_asked_for(monkeypatch):
    block_sizes = []

    def seen(function, arrays, zero, block_rows):
        block_sizes.append(block_rows)
        return sum_row_blocks(function, arrays, zero, block_rows)

    monkeypatch.setattr("jsparse.solvers.robust.sum_row_blocks", seen)
    phi, X, y, _ = problem()
    robust.fit(phi, 1.0, X, y, loss="huber", block_rows=23)
    assert set(block_sizes) == {23}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "l0"}, "loss: expected"),
        ({"threshold": 0.0, "loss": "huber"}, "threshold: expected a number above 0"),
        ({"tolerance": -1e-6}, "tolerance: expected a number of at least 0"),
        ({"max_iterations": 0}, "max_iterations: expected a whole number of at least 1"),
        ({"max_iterations": 2.7}, "max_iterations: expected a whole number of at least 1"),
        ({"C": -1.0}, "C: expected a positive"),
        ({"y": jnp.zeros(7)}, "y: expected 80 rows"),
    ],
)
def test_bad_input_is_named(as_users_call, change, message):
    phi, X, y, _ = problem()
    with pytest.raises(ValueError, match=message):
        robust.fit(**{"feature_map": phi, "C": 1.0, "X": X, "y": y, **change})
