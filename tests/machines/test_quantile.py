"""The quantile loss against scikit-learn, linear and quadratic programs, and the optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.linear_model import QuantileRegressor
from sklearn.metrics import mean_pinball_loss

from jsparse import Robust, _status, validate
from jsparse.compilation import count_compilations
from jsparse.features import Linear, Nystroem
from jsparse.kernels import RBF
from jsparse.machines import robust
from jsparse.machines.rows import rows_of
from jsparse.validation.folds import plain_folds


def problem(dtype="float64", n=80, m=15, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * rng.standard_t(2, n)
    phi = Nystroem(RBF(jnp.asarray(1.0, dtype)), jnp.asarray(X[:m], dtype))
    return phi, jnp.asarray(X, dtype), jnp.asarray(y, dtype)


def fitted(phi, C, X, y, q, w=None, **options):
    fit = robust.fit(phi, C, X, y, w, loss="quantile", quantile=q, **options)
    assert int(fit.status) == _status.CONVERGED
    return fit


def values(phi, C, X, y, q, w=None, **options):
    return np.asarray(fitted(phi, C, X, y, q, w, **options).expansion(X))


@pytest.mark.parametrize(
    ("q", "linear"), [(0.05, False), (0.5, False), pytest.param(0.8, True, marks=pytest.mark.slow)]
)
def test_without_its_penalty_it_is_scikit_learns(q, linear):
    phi, X, y = problem()
    phi = Linear(jnp.zeros(2)) if linear else phi
    w = np.random.default_rng(1).choice([0.0, 1.0, 2.0], 80)
    Phi = np.asarray(phi(X))
    peer = QuantileRegressor(quantile=q, alpha=0.0).fit(Phi, np.asarray(y), sample_weight=w)
    f = values(phi, 1e12, X, y, q, jnp.asarray(w), tolerance=1e-10)
    np.testing.assert_allclose(f, peer.predict(Phi), atol=1e-6)


@pytest.mark.parametrize("q", [0.1, 0.7])
def test_with_its_penalty_it_is_a_quadratic_program(q):
    phi, X, y = problem(n=40)
    w, C = np.random.default_rng(1).uniform(0.5, 2.0, 40), 3.0
    Phi, y_there = np.asarray(phi(X)), np.asarray(y)
    # The dual: the least |Phi' a|^2 / 2 - y'a with C w (q - 1) <= a <= C w q and sum a = 0.
    best = minimize(
        lambda a: (np.sum((a @ Phi) ** 2) / 2 - y_there @ a, Phi @ (a @ Phi) - y_there),
        np.zeros(40), jac=True, bounds=list(zip(C * w * (q - 1), C * w * q, strict=True)),
        constraints={"type": "eq", "fun": np.sum, "jac": lambda a: np.ones(40)},
        method="SLSQP", options={"ftol": 1e-12, "maxiter": 1000},
    )  # fmt: skip
    fit = fitted(phi, C, X, y, q, jnp.asarray(w), tolerance=1e-10)
    np.testing.assert_allclose(fit.objective, -best.fun, rtol=1e-7)
    f = np.asarray(fit.expansion(X))
    np.testing.assert_allclose(f - f[0], Phi @ (best.x @ Phi) - Phi[0] @ (best.x @ Phi), atol=1e-4)
    # The objective is C times the pinball loss, not half of it.
    coefficients = np.linalg.lstsq(np.c_[Phi, np.ones(40)], f, rcond=None)[0][:-1]
    loss = 40 * mean_pinball_loss(y_there, f, sample_weight=w, alpha=q) * np.mean(w)
    np.testing.assert_allclose(fit.objective, coefficients @ coefficients / 2 + C * loss, rtol=1e-7)


def test_the_median_is_the_absolute_loss_to_the_last_digit():
    phi, X, y = problem()
    absolute = robust.fit(phi, 5.0, X, y, loss="absolute")
    for quantile in (0.5, None):
        median = robust.fit(phi, 5.0, X, y, loss="quantile", quantile=quantile)
        jax.tree.map(np.testing.assert_array_equal, median, absolute)


@pytest.mark.parametrize(("q", "C"), [(0.03, 10.0), (0.9, 0.1)])
def test_the_share_of_rows_below_is_the_quantile(q, C):
    phi, X, y = problem()
    w = np.random.default_rng(1).integers(1, 4, 80).astype(float)
    e = np.asarray(y) - values(phi, C, X, y, q, jnp.asarray(w), tolerance=1e-10)
    below, near = np.sum(w[e < -1e-5]), np.sum(w[np.abs(e) <= 1e-5])
    assert below <= q * w.sum() <= below + near
    assert near < 0.5 * w.sum()


def test_least_squares_with_the_row_weights_is_the_machine():
    phi, X, y = problem()
    C, q = 5.0, 0.8
    fit = fitted(phi, C, X, y, q, tolerance=1e-12)
    e = np.asarray(y) - np.asarray(fit.expansion(X))
    far = np.abs(e) > 1e-3
    slope = np.asarray(fit.row_weights) * np.abs(e) / float(fit.threshold)
    np.testing.assert_allclose(slope[far], np.where(e > 0, 2 * q, 2 - 2 * q)[far], rtol=1e-10)


@pytest.mark.slow
def test_one_call_is_a_path_over_C_and_several_quantiles():
    phi, X, y = problem()
    C, q = jnp.array([0.1, 3.0, 50.0]), jnp.array([0.2, 0.5, 0.9])
    for each_C, each_q in ((C, 0.9), (2.0, q), (C, q)):
        together = values(phi, each_C, X, y, each_q)
        assert together.shape == (80, 3)
        pairs = np.broadcast_arrays(each_C, each_q)
        for j, (c, level) in enumerate(zip(*pairs, strict=True)):
            np.testing.assert_allclose(together[:, j], values(phi, c, X, y, level), atol=1e-8)


def test_another_quantile_compiles_nothing():
    phi, X, y = problem(n=50)
    with count_compilations() as first:
        fitted(phi, 1.0, X, y, 0.3)
    with count_compilations() as later:
        fitted(phi, 2.0, X, y, 0.95)
        robust.fit(phi, 1.0, X, y, loss="absolute")
    assert first.programs > 0
    assert later.programs == 0


@pytest.mark.parametrize("q", [0.01, 0.7])
def test_heavy_tails_reach_the_optimum(q):
    phi, X, _ = problem()
    y = np.random.default_rng(5).standard_cauchy(80) + np.asarray(X[:, 0])
    Phi = np.asarray(phi(X))
    peer = QuantileRegressor(quantile=q, alpha=0.0).fit(Phi, y)
    f = values(phi, 1e14, X, jnp.asarray(y), q)
    ours, best = (mean_pinball_loss(y, v, alpha=q) for v in (f, peer.predict(Phi)))
    np.testing.assert_allclose(ours, best, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("q", [0.001, 0.999])
def test_odd_shapes(q):
    phi, X, y = problem()
    constant = values(phi, 10.0, X, jnp.full(80, 2.0), q)
    np.testing.assert_allclose(constant, 2.0, rtol=1e-6)
    single = values(phi, 10.0, X[:1], y[:1], q)
    np.testing.assert_allclose(single, y[:1], rtol=1e-6)
    # More prototypes than rows: with a small C the constant is the quantile.
    few = values(phi, 1e-6, X[:5], y[:5], q)
    np.testing.assert_allclose(few, np.quantile(y[:5], q, method="inverted_cdf"), atol=1e-2)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_targets_in_other_units_and_mirrored(dtype):
    (phi, X, y), shift = problem(dtype), 3.0
    tolerance, atol = {"float64": (1e-10, 1e-5), "float32": (None, 3e-2)}[dtype]
    far = {"float64": 1e150, "float32": 1e30}[dtype]
    expected = values(phi, 1.0, X, y, 0.8, tolerance=tolerance)
    for unit in (-1.0, 1 / far, -1e-3, far):
        q = 0.8 if unit > 0 else 1 - 0.8
        y_there = jnp.asarray(unit * (np.asarray(y, float) + shift), dtype)
        f = values(phi, abs(unit), X, y_there, q, tolerance=tolerance)
        np.testing.assert_allclose(f.astype(float) / unit - shift, expected, atol=atol)


def heteroscedastic(n, rng):
    X = rng.uniform(-2, 2, (n, 1))
    y = np.sin(2 * X[:, 0]) + (0.2 + 0.3 * np.abs(X[:, 0])) * rng.standard_normal(n)
    return X, y


@pytest.mark.slow
def test_the_quantiles_of_made_data_are_found():
    rng = np.random.default_rng(0)
    (X, y), (X_new, y_new) = heteroscedastic(1500, rng), heteroscedastic(20000, rng)
    q = np.array([0.1, 0.5, 0.95])
    phi = Nystroem(RBF(0.8), jnp.asarray(np.linspace(-2, 2, 12)[:, None]))
    fit = fitted(phi, 10.0, jnp.asarray(X), jnp.asarray(y), jnp.asarray(q))
    f = np.asarray(fit.expansion(jnp.asarray(X_new)))
    oracle = np.sin(2 * X_new) + (0.2 + 0.3 * np.abs(X_new)) * norm.ppf(q)
    for j, level in enumerate(q):
        ours, best = (mean_pinball_loss(y_new, v[:, j], alpha=level) for v in (f, oracle))
        assert best <= ours < 1.03 * best
        assert abs(np.mean(y_new <= f[:, j]) - level) < 0.03


@pytest.mark.slow
def test_held_out_errors_are_those_of_separate_fits_for_every_C():
    levels, crossed = (0.1, 0.4, 0.9), 0
    phi, X, y = problem(n=60)
    folds, C = plain_folds(jax.random.key(0), 60, 3), np.array([0.1, 5.0, 500.0])
    w = jnp.asarray(np.random.default_rng(1).uniform(0.0, 2.0, 60))
    method = Robust(15, loss="quantile", quantile=levels)
    validation = validate(
        method, phi.kernel, phi.prototypes, jnp.asarray(C), X, y, folds, w, metric="pinball", keep=1
    )
    for place, c in enumerate(C):
        kept = np.zeros((60, len(levels)))
        for index, valid in zip(np.asarray(folds.index), np.asarray(folds.valid), strict=True):
            rows = index[valid]
            fit = fitted(phi, c, X, y, jnp.asarray(levels), w.at[rows].set(0))
            kept[rows] = np.asarray(fit.expansion(X))[rows]
        crossed += np.sum(np.diff(kept, axis=1) < 0)
        kept = np.sort(kept, axis=1)
        loss = np.mean([
            mean_pinball_loss(y, kept[:, j], alpha=q, sample_weight=w)
            for j, q in enumerate(levels)
        ])  # fmt: skip
        np.testing.assert_allclose(validation.scores[place, 0], loss, rtol=1e-6)
        if place == 1:
            np.testing.assert_allclose(validation.predictions.reshape(60, -1), kept, atol=1e-6)
    assert crossed > 0  # so sorting matters


@pytest.mark.slow
def test_several_targets_have_one_quantile():
    phi, X, y = problem()
    both = jnp.stack([y, -y], axis=1)
    machine = Robust(15, loss="quantile", quantile=0.8)
    family = machine.fit(phi.kernel, phi.prototypes, 5.0, rows_of(X, both))
    expected = [values(phi, 5.0, X, column, 0.8) for column in (y, -y)]
    np.testing.assert_allclose(family.values(X)[:, 0].T, expected, atol=1e-8)
    several = Robust(15, loss="quantile", quantile=(0.2, 0.8))
    with pytest.raises(ValueError, match="quantile: expected one number with several targets"):
        several.fit(phi.kernel, phi.prototypes, 5.0, rows_of(X, both))


def test_bad_input_and_settings_are_named(as_users_call):
    phi, X, y = problem()
    arguments = {"feature_map": phi, "C": 1.0, "X": X, "y": y, "loss": "quantile", "quantile": 0.5}
    for change, message in (
        ({"quantile": 0.0}, "quantile: expected a number between 0 and 1, or one for each output"),
        ({"quantile": jnp.array([0.5, 1.0])}, "quantile: expected a number between 0 and 1"),
        ({"quantile": np.nan}, "quantile: expected a number between 0 and 1"),
        ({"quantile": True}, "quantile: expected a number between 0 and 1"),
        ({"quantile": "high"}, "quantile: expected real numbers"),
        ({"quantile": jnp.full(3, 0.5), "C": jnp.ones(2)}, "y, C, quantile: expected one value"),
        ({"loss": "absolute"}, "quantile: expected None with loss='absolute', got 0.5"),
        ({"loss": "huber"}, "quantile: expected None with loss='huber', got 0.5"),
    ):
        with pytest.raises(ValueError, match=message):
            robust.fit(**{**arguments, **change})
    for settings, task, message in (
        ({"quantile": 1.5}, "regression", "quantile: expected a number between 0 and 1, or sever"),
        ({"quantile": ()}, "regression", "quantile: expected a number between 0 and 1"),
        ({"quantile": (0.9, 0.1)}, "regression", r"increasing ones, got \(0.9, 0.1\)"),
        ({"quantile": (0.5, 0.5)}, "regression", "quantile: .* increasing ones"),
        ({"quantile": [[0.5]]}, "regression", "quantile: expected a number between 0 and 1"),
        ({"loss": "huber", "quantile": 0.5}, "regression", "take loss='quantile'"),
        ({}, "classification", "loss: expected 'huber' or 'absolute' for classification"),
    ):
        with pytest.raises(ValueError, match=message):
            Robust(**{"loss": "quantile", **settings}).check(task)
    rows, folds = (jnp.ones(1), X, y), plain_folds(jax.random.key(0), 80, 4)
    with pytest.raises(ValueError, match="metric: expected 'pinball' only with a method that"):
        validate(Robust(), phi.kernel, phi.prototypes, *rows, folds, metric="pinball")
