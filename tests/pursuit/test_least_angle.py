"""Paths of LARS and the LASSO where atoms tie, depend on others, or lose their precision."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from reference import pursuit as reference
from sklearn.linear_model import lars_path

from jsparse import pursuit
from jsparse._status import COMPLETED, CONVERGED, INDEFINITE, NOT_FINITE, PRECISION_LOST, RUNNING
from jsparse.pursuit import least_angle
from jsparse.pursuit.system import Columns

D = 8
# Of one shape almost everywhere, for one compilation.
lars = partial(pursuit.lars, max_atoms=D)
lasso = partial(pursuit.lasso, max_atoms=D, max_iterations=60)


def data(kind, seed):
    """Return a small dictionary, in which atoms tie or leave the path together, and a target."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((12, D)), rng.standard_normal(12)
    match kind:
        case "duplicated":
            X[:, 4:] = X[:, :4] * rng.choice([-1, 1], 4)
        case "averaged":
            X[:, 4], X[:, 5] = (X[:, 0] + X[:, 1]) / 2, (X[:, 2] + X[:, 3]) / 2
            y = X[:, 0] + X[:, 1] + 0.3 * y
        case "dependent":
            X[:, 4:] = X[:, :4] @ rng.standard_normal((4, 4))
        case "whole numbers":
            X, y = rng.integers(-1, 2, (12, D)), rng.integers(-2, 3, 12)
        case "symmetric":
            X[:, 4:] = np.roll(X[:, :4], 6, axis=0)
            y = np.tile(y[:6], 2)
        case "zeros":
            X[:, 4:] = 0
        case "orthonormal":
            X = np.linalg.qr(X)[0]
            y = X @ rng.choice([-1.0, 1.0], D)
    return X.astype(float), y.astype(float)


def violation(A, b, path):
    """Return the largest violation of the LASSO's optimality conditions, relative to max |b|."""
    worst = 0.0
    for w, penalty in zip(np.asarray(path.coefficients), np.asarray(path.penalty), strict=True):
        c, inside = b - A @ w, np.abs(w) > 1e-6 * np.abs(w).max()
        on = np.abs(c[inside] - penalty * np.sign(w[inside])).max(initial=0)
        worst = max(worst, on, np.abs(c).max() - penalty)
    return worst / np.abs(b).max()


@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        "duplicated",
        "averaged",
        "dependent",
        "whole numbers",
        "symmetric",
        "zeros",
        "orthonormal",
    ],
)
def test_lasso_is_optimal_also_where_atoms_tie_or_depend(kind, dtype):
    for seed in range(6):
        X, y = data(kind, seed)
        A, b = jnp.asarray(X.T @ X, dtype), jnp.asarray(X.T @ y, dtype)
        path = lasso(A, b)
        assert path.status == CONVERGED
        assert (
            violation(np.asarray(A), np.asarray(b), path)
            < {"float64": 1e-13, "float32": 1e-5}[dtype]
        )


@pytest.mark.parametrize("solve", [lars, lasso])
def test_a_duplicate_does_not_change_the_path(solve):
    X, _ = data("plain", 0)
    y = X @ np.arange(D) + X[:, 0]
    alone, twice = X.copy(), X.copy()
    alone[:, 5:] = 0
    twice[:, 5:] = -X[:, :3]
    expected, path = (solve(Z.T @ Z, Z.T @ y) for Z in (alone, twice))
    assert path.steps == expected.steps
    assert path.status == expected.status == CONVERGED
    np.testing.assert_allclose(path.penalty, expected.penalty, atol=1e-12)
    w = np.array(path.coefficients)
    w[:, :3] -= w[:, 5:]
    np.testing.assert_allclose(w[:, :5], expected.coefficients[:, :5], atol=1e-12)


@pytest.mark.parametrize("max_atoms", [1, 5, D])
def test_lars_ends_where_the_next_atom_would_come(max_atoms):
    X, y = data("plain", 1)
    path = pursuit.lars(X.T @ X, X.T @ y, max_atoms=max_atoms)
    alphas, _, theirs = lars_path(X, y, method="lar", max_iter=max_atoms)
    np.testing.assert_allclose(path.coefficients.T, theirs, atol=1e-12)
    np.testing.assert_allclose(path.penalty, 12 * alphas, atol=1e-12)
    assert path.status == (CONVERGED if max_atoms == D else COMPLETED)


def test_condition_is_that_of_the_atoms_active():
    X, y = data("plain", 2)
    X[:, 1:] += 2 * X[:, :1]
    A, b = X.T @ X, X.T @ y
    path = lasso(A, b)
    assert (np.diff(np.asarray(path.cardinality)) < 0).any()  # also after drops
    units = A / np.sqrt(np.outer(np.diag(A), np.diag(A)))
    w = np.asarray(path.coefficients)
    for i in range(1, int(path.steps) + 1):
        inside = (w[i - 1] != 0) | (w[i] != 0)
        among = units[np.ix_(inside, inside)]
        expected = np.trace(among) * np.trace(np.linalg.inv(among))
        np.testing.assert_allclose(path.condition[i], expected, rtol=1e-9)


def smooth():
    """Return the system of kernel columns whose centres are closer than the lengthscale."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (300, 1))
    X = np.exp(-np.square(x - np.linspace(-3, 3, D)[None]) / (2 * 1.2**2))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.standard_normal(300)
    return X.T @ X, X.T @ y


def test_lost_precision_is_told_and_only_then(dtype):
    A, b = (jnp.asarray(a, dtype) for a in smooth())
    for solve in (lars, lasso):
        path = solve(A, b)
        lost = path.status == PRECISION_LOST
        assert lost == (dtype == "float32")
        assert (pursuit.debiased(path, A, b, max_atoms=D).status == PRECISION_LOST) == lost
        # The path as far as it is determined.
        early = solve(A, b, tolerance=0.1)
        assert early.status == CONVERGED
        assert pursuit.debiased(early, A, b, max_atoms=D).status == CONVERGED


@pytest.mark.slow
def test_debiased_takes_columns_and_as_many_atoms_as_there_are():
    X, y = data("plain", 3)
    A, b = jnp.asarray(X.T @ X), jnp.asarray(X.T @ y)
    path = lasso(A, b, tolerance=0.05)
    solution = pursuit.debiased(path, A, b)
    for i, w in enumerate(np.asarray(path.coefficients)):
        expected = reference.least_squares(A, b, np.flatnonzero(w)) if w.any() else np.zeros(D)
        np.testing.assert_allclose(solution.coefficients[i], expected, atol=1e-12)
        norm = np.linalg.norm(b - A @ expected)
        np.testing.assert_allclose(solution.residual_norm[i], norm, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(solution.explained[i], b @ expected, atol=1e-12)
    assert solution.status == path.status == CONVERGED
    columns = pursuit.GramColumns(jnp.asarray(X))
    other = jax.jit(pursuit.debiased)(path, columns, b, diagonal=jnp.diagonal(A))
    for ours, theirs in zip(other, solution, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_debiased_never_truncates_and_names_bad_input(as_users_call):
    X, y = data("plain", 4)
    A, b = jnp.asarray(X.T @ X), jnp.asarray(X.T @ y)
    path = lasso(A, b)
    for system, options, match in (
        ((A, b), {"max_atoms": 5}, "max_atoms: expected at least 8"),
        ((A, b), {"max_atoms": 2.5}, "max_atoms: expected"),
        ((A[:5, :5], b[:5]), {}, "path: expected"),
        ((A, b[:, None]), {}, "one right-hand side"),
        ((lambda j: A[j], b), {}, "diagonal: expected"),
    ):
        with pytest.raises(ValueError, match=match):
            pursuit.debiased(path, *system, **options)
    for solve in (pursuit.lars, pursuit.lasso):
        with pytest.raises(ValueError, match="max_atoms: expected a whole number"):
            solve(A, b, max_atoms=None)
    traced = jax.jit(lambda path: pursuit.debiased(path, A, b, max_atoms=5))(path)
    assert traced.status == NOT_FINITE
    whole = np.isfinite(np.asarray(traced.coefficients)).all(axis=1)
    assert (whole == (np.count_nonzero(path.coefficients, axis=1) <= 5)).all()
    negative = pursuit.debiased(path, A - 10 * jnp.eye(D), b)
    assert negative.status == INDEFINITE


def test_debiased_is_differentiable():
    X, y = data("plain", 5)
    A, b = jnp.asarray(X.T @ X), jnp.asarray(X.T @ y)
    path = lars(A, b)

    def last(A, b):
        solution = pursuit.debiased(path, (A + A.T) / 2, b)
        return jnp.sum(jnp.square(solution.coefficients)) + jnp.sum(solution.residual_norm)

    check_grads(jax.jit(last), (A, b), order=1, modes=["fwd", "rev"], rtol=1e-5)


def test_a_path_ends_at_the_first_corner_above_the_largest_condition():
    X, y = data("plain", 3)
    A, b = jnp.asarray(X.T @ X), jnp.asarray(X.T @ y)
    whole = lars(A, b)
    part = least_angle.run(
        Columns(A), b, jnp.diagonal(A), jnp.zeros(()), max_atoms=D, max_iterations=D, lasso=False,
        largest_condition=50.0,
    )  # fmt: skip
    steps = int(part.steps)
    assert part.condition[steps] > 50 > part.condition[steps - 1]
    assert steps < whole.steps
    assert int(part.status) == RUNNING
    np.testing.assert_allclose(part.coefficients[: steps + 1], whole.coefficients[: steps + 1])
    np.testing.assert_array_equal(
        part.coefficients[steps:], part.coefficients[steps][None].repeat(D + 1 - steps, 0)
    )


@pytest.mark.parametrize("n_atoms", [1, 4])
def test_lasso_with_one_active_atom(n_atoms):
    X, y = data("plain", 3)
    A, b = X[:, :n_atoms].T @ X[:, :n_atoms], X[:, :n_atoms].T @ y
    path = pursuit.lasso(A, b, max_atoms=1)
    first = np.argmax(np.abs(b))
    level = np.asarray(path.penalty)[int(path.steps)]
    expected = np.zeros(n_atoms)
    expected[first] = np.sign(b[first]) * (np.abs(b[first]) - level) / A[first, first]
    np.testing.assert_allclose(path.coefficients[int(path.steps)], expected, rtol=1e-12)
    assert (level == 0) == (n_atoms == 1)


def test_correlations_stay_exact_after_many_atoms_have_left():
    rng = np.random.default_rng(0)
    mixed = rng.standard_normal((60, 60)) @ np.linalg.cholesky(0.9 + 0.1 * np.eye(60)).T
    A, b = mixed.T @ mixed, mixed.T @ rng.standard_normal(60)
    path = pursuit.lasso(A, b, max_atoms=55, max_iterations=400)
    steps = int(path.steps)
    left = int(np.sum(np.diff(np.asarray(path.cardinality)[: steps + 1]) < 0))
    assert left >= 5
    residual = np.linalg.norm(b - np.asarray(path.coefficients) @ A, axis=1)
    atol = 1e-11 * np.linalg.norm(b)
    np.testing.assert_allclose(path.residual_norm[: steps + 1], residual[: steps + 1], atol=atol)
    assert violation(A, b, jax.tree.map(lambda a: a[: steps + 1] if a.ndim else a, path)) < 1e-10
