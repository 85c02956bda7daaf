"""The direct method: marginal functions, their gradients, and descents on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.kernels import gaussian
from sklearn.svm import SVC

from jsparse._status import CONVERGED, EXHAUSTED, NOT_FINITE, PRECISION_LOST
from jsparse.kernels import RBF
from jsparse.machines import direct
from jsparse.machines.reduced_set import Approximation

N, M = 60, 5


def rows(dtype="float64", seed=0):
    """Return rows of two interleaved classes, weights (some are 0), and expansion vectors."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, 2))
    y = np.where(np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(N) > 0, 1.0, -1.0)
    w = rng.uniform(0.5, 1.5, N) * (np.arange(N) % 7 > 0)
    X[0] = 1e6  # a row without weight
    Z = rng.standard_normal((M, 2))
    return tuple(jnp.asarray(a.astype(dtype)) for a in (X, y, w, Z))


def problems(X, y, w, C=3.0, lengthscale=1.0):
    kernel = RBF(lengthscale)
    both = jnp.stack([y, -jnp.sign(X[:, 0] + 0.1).astype(y.dtype)], axis=1)
    return {
        "hinge": direct.LargeMargin(kernel, X, y, C, w),
        "two targets": direct.LargeMargin(kernel, X, both, C, w),
        "Fisher": direct.Fisher(kernel, X, y, C, w),
        "Fisher, two targets": direct.Fisher(kernel, X, both, C, jnp.stack([w, w[::-1]], axis=1)),
        "ridge, own weights": direct.LeastSquares(
            kernel, X, jnp.sin(both), jnp.stack([C * w[1], C * w[2]]), jnp.stack([w, w**2], axis=1)
        ),
        "one class": direct.OneClass(kernel, X, 0.1 * C, w),
        "reduced set": Approximation(kernel, X[1:20], both[1:20]),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["two targets", "Fisher, two targets", "ridge, own weights", "one class", "reduced set"],
)
def test_the_gradient_is_that_of_differences(name):
    """Move expansion vectors, lengthscale and C together along one direction."""
    X, y, w, Z = rows()
    along = jnp.asarray(np.random.default_rng(3).standard_normal((M, 2)))

    @jax.jit
    def W(t):
        problem = problems(X, y, w, 3.0 * (1 + 0.3 * t), 1.0 + 0.2 * t)[name]
        return direct.marginal(problem)(Z + t * along)[0]

    slope = jax.jit(jax.grad(W))(0.1)
    h = 1e-5
    np.testing.assert_allclose(slope, (W(0.1 + h) - W(0.1 - h)) / (2 * h), rtol=2e-5)


@pytest.mark.slow
def test_support_vectors_give_back_the_machine_that_they_support():
    """Section 5.7, example 1: no other expansion vectors have a lower W."""
    X, y, _, _ = rows()
    X, y = X[1:], y[1:]
    svm = SVC(C=10.0, gamma=0.5, tol=1e-10).fit(np.asarray(X, float), np.asarray(y))
    problem = direct.LargeMargin(RBF(1.0), X, y, 10.0)
    evaluate = jax.jit(lambda Z: direct.marginal(problem)(Z))
    W, solved = evaluate(X[svm.support_])
    a, K = svm.dual_coef_[0], gaussian(svm.support_vectors_, svm.support_vectors_)
    np.testing.assert_allclose(W, np.abs(a).sum() - a @ K @ a / 2, rtol=1e-7)
    model = problem.expansion(X[svm.support_], solved)
    expected = svm.decision_function(np.asarray(X, float))
    np.testing.assert_allclose(model(X), expected, atol=30 * 1e-7**0.5)


def test_a_descent_ends_at_a_minimum():
    X, y, w, Z = rows()
    problem = direct.LargeMargin(RBF(1.0), X, y, 316.0, w)
    optimum = direct.minimise(problem, Z, tolerance=1e-4)
    history = np.asarray(optimum.history)[: int(optimum.steps) + 1]
    assert int(optimum.status) == CONVERGED
    assert (np.diff(history) < 0).all()
    assert np.isnan(optimum.history[int(optimum.steps) + 1 :]).all()
    assert int(optimum.evaluations) >= int(optimum.steps) + 1
    assert optimum.solved.value == history[-1] < 0.8 * history[0]
    random = np.random.default_rng(1)
    W = jax.jit(lambda Z: direct.marginal(problem)(Z)[0])
    around = [optimum.Z + 0.05 * random.standard_normal(Z.shape) for _ in range(8)]
    assert min(float(W(Z)) for Z in around) > 0.998 * history[-1]


@pytest.mark.slow
def test_a_descent_says_when_steps_run_out():
    X, y, w, Z = rows()
    problem = direct.LargeMargin(RBF(1.0), X, y, 316.0, w)
    short = direct.minimise(problem, Z, max_iterations=2)
    assert int(short.status) == EXHAUSTED
    assert int(short.steps) == 2


@pytest.mark.slow
def test_an_objective_that_the_dtype_cannot_hold_is_told():
    X, _, _, Z = rows("float32")
    X, kernel = X[1:], RBF(jnp.ones((), jnp.float32))
    y = jnp.sin(2 * X[:, 0]) + X[:, 1] ** 2
    for size, status in ((1e-30, PRECISION_LOST), (1.0, CONVERGED), (1e30, NOT_FINITE)):
        problem = direct.LeastSquares(kernel, X, y * jnp.float32(size), 1.0)
        assert int(jax.jit(direct.marginal(problem))(Z)[1].status) == status
    constant = direct.LeastSquares(kernel, X, jnp.zeros_like(y), 1.0)
    assert int(direct.minimise(constant, Z).status) == CONVERGED


@pytest.mark.slow
def test_hard_cases_end_well_or_say_that_they_do_not(dtype, as_users_call):
    X, y, w, Z = rows(dtype)
    same, apart = jnp.broadcast_to(Z[0], Z.shape), jnp.sign(X[:, 1]).astype(X.dtype)
    for C, start, targets in ((1e9, Z, apart), (1e-9, Z, y), (10.0, same, y), (10.0, Z, abs(y))):
        problem = direct.LargeMargin(RBF(jnp.ones((), X.dtype)), X, targets, C, w)
        optimum = direct.minimise(problem, start)
        assert np.isfinite(optimum.solved.value)
        assert np.isfinite(optimum.Z).all()
        assert int(optimum.status) in (CONVERGED, EXHAUSTED, PRECISION_LOST)
    problem = direct.LargeMargin(RBF(jnp.ones((), X.dtype)), X, y, 1.0, w)
    assert int(direct.minimise(problem, Z * jnp.nan).status) == NOT_FINITE
    # Targets of one class have no direction.
    alone = direct.Fisher(problem.kernel, X, abs(y), 3.0, w)
    solved = jax.jit(direct.Fisher.solve)(alone, Z)
    assert float(solved.value) == 0
    assert not np.asarray(solved.coefficients).any()
    with pytest.raises(ValueError, match="max_iterations: expected at least 1"):
        direct.minimise(problem, Z, max_iterations=0)
    with pytest.raises(ValueError, match=r"start: expected shape \(m, d\) or \(s, m, d\)"):
        direct.minimise(problem, Z[0])
