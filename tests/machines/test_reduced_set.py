"""Reduced sets of machines of scikit-learn and of others, by fixed points and by descent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.kernels import gaussian as gram
from sklearn.svm import SVC, SVR, OneClassSVM

import jsparse
from jsparse._status import CONVERGED
from jsparse.expansion import KernelExpansion
from jsparse.kernels import RBF, Linear, Matern32
from jsparse.machines import reduced_set
from jsparse.machines.rows import rows_of


def rows(n=40, classes=2):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 2))
    return X, np.digitize(X[:, 0] + 0.5 * X[:, 1] ** 2, np.linspace(-1, 2, classes + 1)[1:-1])


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "rbf"},
        {"kernel": "rbf", "gamma": 0.3},
        {"kernel": "linear"},
        {"kernel": "poly", "gamma": 0.5, "coef0": 1.0, "degree": 2},
    ],
)
def test_machines_of_scikit_learn_are_expansions(options):
    X, y = rows(classes=4)
    pairs = SVC(**options, decision_function_shape="ovo").fit(X, y)
    values = reduced_set.from_sklearn(pairs)(X)
    np.testing.assert_allclose(-values, pairs.decision_function(X), atol=1e-8)
    for one in (SVC(**options).fit(X, y > 1), SVR(**options).fit(X, X[:, 0])):
        expected = one.decision_function(X) if isinstance(one, SVC) else one.predict(X)
        np.testing.assert_allclose(reduced_set.from_sklearn(one)(X), expected, atol=1e-8)


def test_the_prototypes_of_the_large_machine_are_chosen_once_for_all_C(monkeypatch):
    choose, calls = reduced_set._prototypes_of_large_machine, []
    monkeypatch.setattr(
        reduced_set, "_prototypes_of_large_machine", lambda *a: calls.append(a) or choose(*a)
    )
    X, y = rows(n=60)
    X, y = jnp.asarray(X), jnp.asarray(np.where(y == 0, -1.0, 1.0))
    w = jnp.asarray(np.where(np.arange(60) < 10, 0.0, 1.0))
    options = {"large_prototypes": 45, "tolerance": 1e-6}
    method, C = jsparse.ReducedSetSVM(6, **options), np.array([0.1, 10.0])
    data = rows_of(X, y, w)
    families = list(method.fits_over_C(RBF(1.0), X[20:26], C, data))
    assert len(calls) == 1
    assert not any(isinstance(a, jax.core.Tracer) for a in calls[0])  # not inside a fit
    for one_C, family in zip(C, families, strict=True):
        alone = reduced_set.fit(RBF(1.0), X[20:26], one_C, X, y, w, **options)
        for name in ("prototypes", "coefficients", "intercept"):
            expected = np.asarray(getattr(alone.expansion, name))
            value = np.asarray(getattr(family.expansion, name)).reshape(expected.shape)
            np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-9)


def test_what_is_no_machine_of_scikit_learn_is_told():
    X, y = rows()
    for machine, match in (
        (SVC(), "machine: expected a fitted machine"),
        (SVC(kernel="sigmoid").fit(X, y), "machine: expected the kernel"),
    ):
        with pytest.raises(ValueError, match=match):
            reduced_set.from_sklearn(machine)


def machine(outputs=2, n=12):
    rng = np.random.default_rng(1)
    X, A = rng.standard_normal((n, 2)), rng.standard_normal((n, outputs))
    return KernelExpansion(RBF(1.0), *(jnp.asarray(a) for a in (X, A, A[0])))


def test_coefficients_and_distance_are_those_of_the_projection():
    """Compare with eq. 4 and 47 in NumPy; a descent lowers the distance."""
    whole = machine()
    distances = {}
    for approach in ("fixed_point", "gradient"):
        reduction = reduced_set.simplify(whole, 4, approach=approach)
        assert int(reduction.status) == CONVERGED
        Z, beta = reduction.expansion.prototypes, np.asarray(reduction.expansion.coefficients)
        X, A = np.asarray(whole.prototypes), np.asarray(whole.coefficients)
        best = np.linalg.solve(gram(Z, Z), gram(Z, X) @ A)
        np.testing.assert_allclose(beta, best, rtol=1e-6)
        norm = np.sum(A * (gram(X, X) @ A))
        rest = norm - 2 * np.sum(beta * (gram(Z, X) @ A)) + np.sum(beta * (gram(Z, Z) @ beta))
        np.testing.assert_allclose(reduction.error, np.sqrt(rest / norm), rtol=1e-6)
        np.testing.assert_array_equal(reduction.expansion.intercept, whole.intercept)
        distances[approach] = float(reduction.error)
    assert distances["gradient"] < 0.9 * distances["fixed_point"] < 0.9


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [(RBF, "float32"), pytest.param(Matern32, "float64", marks=pytest.mark.slow)],
)
def test_coefficients_of_any_size_have_the_same_reduced_set(kernel, dtype):
    X, A = (np.asarray(a, dtype) for a in (machine().prototypes, machine().coefficients))

    def reduced(size):
        parts = (X, (A.astype(float) * size).astype(dtype), np.zeros(2, dtype))
        whole = KernelExpansion(kernel(jnp.ones((), dtype)), *map(jnp.asarray, parts))
        return reduced_set.simplify(whole, 4, tolerance=1e-5)

    one, near = reduced(1.0), {"float64": 1e-8, "float32": 1e-3}[dtype]
    assert int(one.status) == CONVERGED
    assert 0 < float(one.error) < 0.6
    for size in (1e-30, 1e-10, 1e30, 2.0**-100):
        reduction = reduced(size)
        assert int(reduction.status) == CONVERGED
        np.testing.assert_allclose(reduction.error, one.error, rtol=near)
        beta = np.asarray(reduction.expansion.coefficients, float) / size
        # At a minimum they err by the root of what the error does.
        largest = np.abs(one.expansion.coefficients).max()
        np.testing.assert_allclose(beta, one.expansion.coefficients, atol=near**0.5 * largest)


def test_one_vector_is_where_the_projection_is_longest():
    """Compare with all points of a fine grid."""
    whole = machine(outputs=1)
    reduction = reduced_set.simplify(whole, 1, approach="fixed_point")
    axis = np.linspace(-3.5, 3.5, 281)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    values = gram(grid, whole.prototypes) @ np.asarray(whole.coefficients)[:, 0]
    best = grid[np.argmax(np.abs(values))]
    np.testing.assert_allclose(reduction.expansion.prototypes[0], best, atol=0.03)


@pytest.mark.slow
def test_the_whole_machine_is_that_of_libsvm_and_refitting_lowers_the_objective():
    X, y = rows(60)
    sign = jnp.asarray(np.where(y > 0, 1.0, -1.0))
    arguments = (RBF(1.0), jnp.asarray(X[:6]), 10.0, rows_of(jnp.asarray(X), sign))
    near = jsparse.ReducedSetSVM(6).fit(*arguments)
    svm = reduced_set.from_sklearn(SVC(C=10.0, gamma=0.5, tol=1e-8).fit(X, y))
    reduction = reduced_set.simplify(svm, 6, start=arguments[1])
    np.testing.assert_allclose(near.info["error"], reduction.error, rtol=0.05)
    again = jsparse.ReducedSetSVM(6, refit=True).fit(*arguments)

    def objective(machine):
        Z, beta = np.asarray(machine.prototypes), np.asarray(machine.coefficients)
        short = np.maximum(1 - np.asarray(sign) * np.asarray(machine(X)), 0)
        return beta @ gram(Z, Z) @ beta / 2 + 10 * short.sum()

    np.testing.assert_array_equal(again.expansion.prototypes, near.expansion.prototypes)
    assert objective(again.expansion) < objective(near.expansion)


def test_few_rows_span_the_large_machine():
    X, y = rows(60)
    targets = jnp.asarray(np.where(y > 0, 1.0, -1.0))
    start, weights = jnp.asarray(X[:6]), jnp.asarray(np.arange(60) < 30, float)

    def fit(weights=None, **options):
        rows = jnp.asarray(X), targets, weights
        return reduced_set.fit(RBF(1.0), start, 10.0, *rows, tolerance=1e-6, **options)

    def fitted(weights=None, **options):
        machine = fit(weights, **options)
        assert int(machine.status) == CONVERGED
        return np.asarray(machine.expansion(X))

    whole = fitted(large_prototypes=None)
    # As many prototypes as rows are the same program as all rows.
    of_all, of_60, of_45 = (
        str(jax.make_jaxpr(lambda k=k: fit(large_prototypes=k))()) for k in (None, 60, 45)
    )
    assert of_all == of_60 != of_45
    spanned = fitted(large_prototypes=45)
    assert 0 < np.linalg.norm(spanned - whole) < 0.02 * np.linalg.norm(whole)
    # Fewer rows with weight than prototypes of the large machine.
    part = fitted(weights, large_prototypes=45)
    alone = fitted(weights, large_prototypes=None)
    np.testing.assert_allclose(part[:30], alone[:30], atol=0.02 * np.abs(alone).max())
    with pytest.raises(ValueError, match="large_prototypes: expected a whole number between 1"):
        fitted(large_prototypes=0)


def test_other_kernels_and_bad_arguments(as_users_call):
    X, _ = rows(12)
    whole = KernelExpansion(Matern32(1.0), jnp.asarray(X), jnp.asarray(X[:, 0]), jnp.asarray(0.0))
    for options, match in (
        ({"n_prototypes": 13}, "n_prototypes: expected a whole number between 1"),
        ({"n_prototypes": 0}, "n_prototypes: expected a whole number between 1"),
        ({"n_prototypes": 2, "approach": "newton"}, "approach: expected 'fixed_point' or"),
        ({"n_prototypes": 2, "approach": "fixed_point"}, "approach: expected 'gradient'"),
        ({"n_prototypes": 2, "start": jnp.zeros((3, 2))}, r"start: expected shape \(2, 2\)"),
    ):
        with pytest.raises(ValueError, match=match):
            reduced_set.simplify(whole, **options)


@pytest.mark.slow
def test_a_kernel_without_fixed_points_starts_from_means():
    X, _ = rows(30)
    whole = KernelExpansion(Matern32(1.0), jnp.asarray(X), jnp.asarray(X[:, 0]), jnp.asarray(0.0))
    errors = [float(reduced_set.simplify(whole, m).error) for m in (2, 6)]
    assert errors[1] < 0.5 * errors[0] < 0.5
    line = KernelExpansion(Linear(), jnp.asarray(X), jnp.asarray(X[:, 0]), jnp.asarray(0.0))
    assert float(reduced_set.simplify(line, 2).error) < 1e-4  # a space of two dimensions
    novelty = reduced_set.from_sklearn(OneClassSVM(nu=0.3).fit(X))
    assert float(reduced_set.simplify(novelty, 5).error) < 0.4
