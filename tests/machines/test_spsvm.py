"""The sparse SVM against a general minimiser, and its greedy choice against trying all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.kernels import gaussian as gram
from scipy.optimize import minimize

import jsparse
from jsparse._status import COMPLETED, CONVERGED, EXHAUSTED, PRECISION_LOST
from jsparse.compilation import count_compilations
from jsparse.kernels import RBF, Linear
from jsparse.machines import spsvm, spsvm_path


def fit(*arguments, **options):
    """Convert NumPy arguments to JAX arrays, which the type annotations require."""
    arrays = (jnp.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments)
    return spsvm.fit(*arrays, **options)


def fit_by_a_program_of_its_own(*arguments, **options):
    """Fit by a program that is compiled now, so that it sees what a test has changed."""
    function, names = spsvm._fit.__wrapped__, ("max_prototypes", "subset")
    alone = jax.jit(lambda *a, **static: function(*a, **static), static_argnames=names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spsvm, "_fit", alone)
        return fit(*arguments, **options)


# Tests with these settings share the program of a fit to all rows.
SHARED = {"key": 0, "max_prototypes": 17, "subset": 20}
M = 26  # candidates


def problem(n=60, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    y = np.where(np.square(X).sum(1) + 0.5 * rng.standard_normal(n) > 1.5, 1.0, -1.0)
    return X.astype(dtype), y.astype(dtype)


def objective(beta, b, X, y, Z, C, w):
    short = np.maximum(0, 1 - y * (gram(X, Z) @ beta + b))
    return beta @ gram(Z, Z) @ beta / 2 + C / 2 * np.sum(w * np.square(short))


@pytest.mark.slow
def test_rare_optimisation_ends_at_the_optimum_all_the_same():
    X, y = problem(200)
    path = fit(RBF(1.0), X, 3.0, X, y, key=jax.random.key(0), max_prototypes=20, growth=1.5)
    Z = X[np.asarray(path.support[0])]
    ones = np.ones(len(X))
    machine = np.asarray(path.coefficients[0, -1, :, 0]), float(path.intercepts[0, -1, 0])
    reached = objective(*machine, X, y, Z, 3.0, ones)
    best = minimize(lambda p: objective(p[:20], p[20], X, y, Z, 3.0, ones), np.zeros(21))
    assert reached <= best.fun * (1 + 1e-6)
    assert ((np.asarray(path.at(20)(X)) > 0) == (y > 0)).mean() > 0.85


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_prototypes": 61}, "max_prototypes: expected a whole number between 1"),
        ({"growth": 0.5}, "growth: expected a number of at least 1"),
        ({"max_iterations": 0}, "max_iterations: expected a whole number of at least 1"),
        ({"C": -1.0}, "C: expected a positive"),
        ({"y": np.arange(60.0) % 2}, r"y: expected -1 and \+1, got \[0\. 1\.\]"),
        ({"y": np.full((60, 2), 2.0)}, r"y: expected -1, 0 and \+1, got \[2\.\]"),
        ({"y": np.ones((60, 2, 2))}, r"y: expected shape \(n,\) or \(n, l\)"),
    ],
)
def test_bad_input_is_told(options, match, as_users_call):
    X, y = problem()
    y = options.pop("y", y)
    settings = {"C": 1.0, "max_prototypes": 5, "key": jax.random.key(0), **options}
    with pytest.raises(ValueError, match=match):
        fit(RBF(1.0), X, settings.pop("C"), X, y, **settings)


def test_a_path_may_end_early_in_the_program_of_a_longer_one():
    X, y = problem()
    arguments = RBF(1.0), X[:M], 3.0, X, y
    whole = fit(*arguments, length=5, **SHARED)
    shorter = SHARED | {"max_prototypes": 5}
    traced = jax.jit(lambda length: fit(*arguments, length=length, **shorter))
    short = traced(5)
    assert int(whole.info["path_length"][0]) == 5
    assert int(whole.info["path_status"][0]) == COMPLETED
    with count_compilations() as counts:
        fit(*arguments, length=7, **SHARED)
    assert counts.programs == 0
    for size in (1, 4, 5, 8, 17):
        np.testing.assert_allclose(whole.at(size)(X), short.at(min(size, 5))(X), rtol=1e-10)
    with pytest.raises(ValueError, match="length: expected a whole number between 1 and max_"):
        fit(*arguments, length=18, **SHARED)
    np.testing.assert_allclose(traced(99).at(5)(X), short.at(5)(X), rtol=1e-10)


def test_smaller_products_on_the_way_change_no_machine(monkeypatch):
    X, y = problem()
    arguments = RBF(1.0), X[:M], 3.0, X, y
    one_size = fit(*arguments, **SHARED)
    monkeypatch.setattr(spsvm_path, "_LEAST", 2)
    several_sizes = fit_by_a_program_of_its_own(*arguments, **SHARED)
    np.testing.assert_array_equal(several_sizes.support, one_size.support)
    for size in (3, 5, 9, 17):
        np.testing.assert_allclose(
            several_sizes.at(size)(X), one_size.at(size)(X), rtol=1e-9, atol=1e-10
        )


def test_training_searches_on_the_beginning_of_the_path_by_the_same_program(monkeypatch):
    X, y = problem()
    traced, fit_arrays = [], spsvm._fit

    def counted(*arguments, **static):
        traced.append((int(arguments[9]), static["max_prototypes"]))
        return fit_arrays(*arguments, **static)

    monkeypatch.setattr(spsvm, "SEARCHED", 2)
    monkeypatch.setattr(spsvm, "_fit", counted)
    result = jsparse.train(
        X, y > 0, task="classification", method=jsparse.SpSVM(max_prototypes=12), folds=3, key=0,
        search=jsparse.Profile(tune_kernel=False),
    )  # fmt: skip
    assert set(traced) == {(3, 12), (12, 12)}
    assert traced[-1] == (12, 12)
    assert len(result.curve.errors) == 12


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_kernel_too_large_for_memory_gives_the_same_path(dtype, monkeypatch):
    X, y = problem(dtype=dtype)
    w = np.where(np.arange(len(X)) % 7 > 0, 1, 0).astype(dtype)
    X[::7] = 1e4  # absent rows far away from all candidates
    arguments = RBF(1.0), X[w > 0][:M], np.asarray(3.0, dtype), X, y, w
    computed_once = fit(*arguments, **SHARED)
    monkeypatch.setattr(spsvm_path, "_MOST_BYTES", 0)
    when_drawn = fit_by_a_program_of_its_own(*arguments, **SHARED)
    np.testing.assert_array_equal(when_drawn.support, computed_once.support)
    rows = X[w > 0]
    rtol = 1e-10 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(
        when_drawn.at(17)(rows), computed_once.at(17)(rows), rtol=rtol, atol=rtol
    )


def test_the_machine_of_one_class_is_a_constant():
    X, _ = problem()
    alone = fit(RBF(1.0), X[:M], 3.0, X, np.ones(60), **SHARED)
    for size in (1, 5, 17):
        assert (np.asarray(alone.at(size)(X)) > 0).all()


def test_problems_are_each_alone_and_see_no_rows_of_classes_that_they_leave_out():
    X, y = problem()
    targets = np.stack([y, -y, np.where(X[:, 0] > 0.3, 0.0, y)], axis=1)
    C = np.array([3.0, 1.0, 2.0])
    together = fit(RBF(1.0), X[:M], C, X, targets, **SHARED)
    assert together.support.shape == (3, 17)
    assert together.values(jnp.asarray(X)).shape == (60, 17, 3)
    for j in range(3):
        rows = targets[:, j] != 0
        alone = fit(RBF(1.0), X[:M], C[j], X[rows], targets[rows, j], **SHARED)
        np.testing.assert_array_equal(together.support[j], alone.support[0])
        for k in (1, 5, 17):
            values = together.at(k)(X)[:, j]
            np.testing.assert_allclose(values, alone.at(k)(X), rtol=1e-8, atol=1e-9)
    both = [fit(RBF(1.0), X[:M], 3.0, X, y, **SHARED, max_iterations=steps) for steps in (1, 50)]
    assert both[0].status_at(5) == EXHAUSTED
    assert both[1].status_at(5) == COMPLETED


@pytest.mark.slow
def test_the_derivative_is_right_in_forward_mode():
    X, y = (jnp.asarray(a) for a in problem())

    def error(t):
        options = {"key": jax.random.key(0), "max_prototypes": 4, "growth": 1.0}
        path = spsvm.fit(RBF(1.0 + t), X[:30], 3.0 + t, X, y, **options)
        return jnp.sum(jnp.sin(path.values(X)))

    _, slope = jax.jvp(error, (0.0,), (1.0,))
    np.testing.assert_allclose(slope, (error(1e-5) - error(-1e-5)) / 2e-5, rtol=1e-6)


def test_large_C_in_float32_is_optimal_and_says_where_digits_are_lost():
    X, y = problem()
    with jax.enable_x64(False):
        X32, y32 = X.astype(np.float32), y.astype(np.float32)
        path = fit(RBF(3.0), X32, 1e4, X32, y32, key=jax.random.key(0), max_prototypes=20)
    rows = X32.astype(float)
    length = int(path.info["path_length"][0])
    Z = rows[np.asarray(path.support[0, :length])]
    K, R = (gram(A, Z, 3.0) for A in (rows, Z))

    def value(p):
        short = np.maximum(0, 1 - y * (K @ p[:-1] + p[-1]))
        slope = np.append(R @ p[:-1] - 1e4 * K.T @ (y * short), -1e4 * np.sum(y * short))
        return p[:-1] @ R @ p[:-1] / 2 + 5e3 * short @ short, slope

    machine = np.append(path.coefficients[0, -1, :length], path.intercepts[0, -1]).astype(float)
    best = minimize(value, machine, jac=True, method="BFGS", options={"maxiter": 300})
    assert value(machine)[0] <= best.fun * (1 + 1e-4)
    assert path.status_at(2) == COMPLETED
    assert path.status_at(20) == PRECISION_LOST
    assert (np.diff(path.info["condition"][0]) >= 0).mean() > 0.9


def test_a_candidate_of_norm_zero_is_none():
    X, y = problem()
    Z = np.concatenate([np.zeros((1, 2)), X[:2]])
    path = fit(Linear(), Z, 3.0, X, y, key=jax.random.key(0), max_prototypes=3)
    assert np.isfinite(path.coefficients).all()
    assert sorted(np.asarray(path.support[0]).tolist()) == [-1, 1, 2]
    assert int(path.status) == CONVERGED
