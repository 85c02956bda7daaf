"""Machines of many prototypes whose kernel was tuned with few; the choice of a kernel family."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.kernels import gaussian

import jsparse
from jsparse.features import Triangular
from jsparse.kernels import RBF
from jsparse.solvers import ridge as ridge_of
from jsparse.solvers.shifted_cholesky import ShiftedCholesky
from jsparse.training.auto import family_of


def dense(X, y, Z, lengthscale, C):
    """Solve the dense system of coefficients and intercept."""
    Phi = np.concatenate([gaussian(X, Z, lengthscale), np.ones((len(X), 1))], axis=1)
    penalty = np.zeros((len(Z) + 1, len(Z) + 1))
    penalty[:-1, :-1] = gaussian(Z, Z, lengthscale)
    return np.linalg.solve(Phi.T @ Phi + penalty / C, Phi.T @ y)


def positive(seed, p):
    A = np.random.default_rng(seed).standard_normal((p, 2 * p))
    return A @ A.T


def test_shifted_systems_by_a_factor_each():
    A, shifts = positive(0, 6), np.array([0.1, 3.0])
    b = np.random.default_rng(1).standard_normal((1, 2, 6))

    @jax.jit
    def solved(A, b, shifts):
        of = ShiftedCholesky(A)
        rank = of.numerical_rank(jnp.zeros(()))
        return of.apply_inverse(b, shifts), of.degrees_of_freedom(shifts), of.largest, rank

    products, freedom, largest, rank = solved(A, b, shifts)
    each = [np.linalg.inv(A + s * np.eye(6)) for s in shifts]
    np.testing.assert_allclose(products, [(inverse @ b[0].T).T for inverse in each], rtol=1e-9)
    np.testing.assert_allclose(freedom, [np.trace(A @ inverse) for inverse in each], rtol=1e-9)
    top = np.linalg.eigvalsh(A)[-1]
    assert 0.9 * top < largest <= top * (1 + 1e-9)
    assert rank == 6
    A[:, 5], A[5, :] = A[:, 4], A[4, :]
    A[5, 5] = A[4, 4]
    assert solved(A, b, shifts)[3] == 5


@pytest.mark.slow
def test_large_ridge_systems_have_the_solutions_and_derivatives_of_small_ones(monkeypatch):
    rng = np.random.default_rng(2)
    Phi, y, C = rng.standard_normal((30, 7)), rng.standard_normal(30), np.array([0.5, 20.0])

    def weights(Phi):
        sums = Phi.T @ Phi, Phi.T @ y, jnp.sum(Phi, axis=0), jnp.sum(y), jnp.asarray(30.0)
        return ridge_of.ridge(*sums, jnp.asarray(C))

    small = weights(jnp.asarray(Phi))
    slope = jax.grad(lambda Phi: jnp.sum(jnp.sin(weights(Phi).weights)))
    expected = slope(jnp.asarray(Phi))
    monkeypatch.setattr(ridge_of, "LARGE", 6)
    large = weights(jnp.asarray(Phi))
    for a, b in zip(large, small, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(slope(jnp.asarray(Phi)), expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_machines_in_triangular_features_are_those_of_the_kernel(dtype):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, 2)).astype(dtype)
    y = np.sin(2 * X[:, 0])
    Z = X[:9]
    fit = jax.jit(
        lambda Z, X, y: jsparse.fixed_size.fit_features(
            Triangular(RBF(np.ones(2, dtype)), Z), 10.0, X, y
        )
    )(Z, X, y)
    assert fit.expansion.coefficients.dtype == dtype
    beta = dense(X.astype(float), y, Z.astype(float), 1.0, 10.0)
    values = gaussian(X, Z, 1.0) @ beta[:-1] + beta[-1]
    np.testing.assert_allclose(
        fit.expansion(X), values, atol={"float64": 1e-8, "float32": 1e-3}[dtype]
    )


@pytest.mark.slow
def test_the_errors_of_a_large_machine_are_its_own():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((48, 2))
    y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(48)
    method = jsparse.FixedSize(24, tuned_with=8)
    trained = jsparse.train(
        X, y, task="regression", method=method, search=jsparse.Profile(5), folds=4, key=0
    )
    assert trained.model.size == 24
    assert len(set(trained.point_rows.tolist())) == 24
    S = (X - X.mean(axis=0)) / X.std(axis=0)
    Z, scale = S[trained.point_rows], float(trained.kernel.lengthscale)
    values = np.zeros(48)
    for index, valid in zip(*(np.asarray(a) for a in trained.folds), strict=True):
        test = index[valid]
        train = np.setdiff1d(np.arange(48), test)
        beta = dense(S[train], y[train], Z, scale, trained.C)
        values[test] = gaussian(S[test], Z, scale) @ beta[:-1] + beta[-1]
    np.testing.assert_allclose(trained.out_of_fold, values, atol=1e-5)
    np.testing.assert_allclose(trained.cv_error, np.mean((values - y) ** 2), rtol=1e-4)
    # The kernel of the small machine, times a power of the ratio.
    searched = {float(e.theta[0]) for e in trained.tuning.history}
    steps = [(np.log(scale) - theta) / np.log(1.4) for theta in searched]
    assert min(abs(step - round(step)) for step in steps) < 1e-6


@pytest.mark.slow
def test_more_prototypes_that_gain_nothing_are_left_out():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((60, 2))
    y = X[:, 0] + 0.5 * rng.standard_normal(60)
    trained = jsparse.train(
        X, y, task="regression", method=jsparse.FixedSize(30, tuned_with=6),
        search=jsparse.Profile(5), folds=4, key=0,
    )  # fmt: skip
    assert trained.model.size == 6
    assert trained.method == jsparse.FixedSize(6)
    small, large = (
        min(e.scores.min() for e in trained.tuning.history if e.stage == stage) for stage in (0, 1)
    )
    assert trained.cv_error == trained.tuning.score == small
    assert large > small - 0.5 * trained.tuning.standard_error
    S = (X - X.mean(axis=0)) / X.std(axis=0)
    Z, scale = S[trained.point_rows], float(trained.kernel.lengthscale)
    beta = dense(S, y, Z, scale, trained.C)
    values = gaussian(S, Z, scale) @ beta[:-1] + beta[-1]
    np.testing.assert_allclose(trained.predict(X), values, atol=1e-6)


@pytest.mark.parametrize(
    "method",
    [
        *(jsparse.FixedSize(24, tuned_with=m) for m in (0, 25)),
        jsparse.FixedSize([8, 24], tuned_with=8),
    ],
)
def test_a_smaller_machine_of_no_size_or_beside_several_sizes_is_refused(method):
    with pytest.raises(ValueError, match="tuned_with"):
        jsparse.train(np.eye(40), np.arange(40.0), task="regression", method=method, key=0)


@pytest.mark.slow
def test_a_race_tells_smooth_targets_from_rough_ones():
    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(-2, 2, (400, 1)), axis=0)
    key, w = jax.random.key(0), jnp.ones(400)
    walk = np.cumsum(rng.standard_normal((400, 1)), axis=0)
    smooth, rough = np.sin(2 * X), walk / walk.std()
    names = [family_of(key, jnp.asarray(X), jnp.asarray(y), w)[0] for y in (smooth, rough)]
    assert names[0] == "rbf"
    assert names[1] in ("matern32", "laplacian")  # with less than half of rbf's error


@pytest.mark.slow
def test_what_is_chosen_without_asking():
    rng = np.random.default_rng(6)
    X = rng.standard_normal((160, 4))
    y = (np.abs(np.mod(2 * X[:, 0], 2) - 1) + 0.05 * rng.standard_normal(160)) > 0.5
    options = {"task": "classification", "method": jsparse.FixedSize(60), "key": 0}
    plain = jsparse.train(X, y, **options)
    automatic = jsparse.train(X, y, kernel="auto", search="auto", **options)
    assert automatic.kernel.lengthscale.shape == (4,)
    assert automatic.cv_error <= plain.cv_error
    few = jsparse.train(
        X[:60], y[:60], search="auto", **{**options, "method": jsparse.FixedSize(20)}
    )
    assert few.kernel.lengthscale.shape == ()


def test_the_largest_eigenvalue_is_one_of_any_units(dtype):
    A = np.diag([3.0, 2.0, 0.0]) + 0.5
    largest = jax.jit(lambda A: ShiftedCholesky(A).largest)
    for power in (-100, -60, 0, 60, 100):
        expected = np.ldexp(np.linalg.eigvalsh(A)[-1], power)
        np.testing.assert_allclose(largest(np.ldexp(A, power).astype(dtype)), expected, rtol=1e-3)
    assert largest(np.zeros((3, 3), dtype)) == 0
