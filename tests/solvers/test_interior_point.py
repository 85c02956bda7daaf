"""The support vector machine on given features against LIBSVM and a naive solver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import svm as reference
from sklearn.svm import SVC, OneClassSVM

from jsparse._status import CONVERGED, EXHAUSTED, NOT_FINITE, PRECISION_LOST
from jsparse.solvers import interior_point

N, P = 60, 4
C = np.array([0.1, 3.0, 316.0])


def problem(dtype="float64", seed=0):
    """Return features of different size, and targets of three problems, one of them separable."""
    rng = np.random.default_rng(seed)
    Phi = rng.standard_normal((N, P)) * np.array([1, 0.3, 1e-2, 3]) + np.array([2, 0, 0, -5])
    score = Phi[:, 0] - 2 + Phi[:, 1] * 2
    noise = rng.standard_normal(N)
    y = np.stack([score + noise > 1, score + 0.3 * noise > 0, score > 0.2], axis=1)
    return Phi.astype(dtype), np.where(y, 1, -1).astype(dtype)


def solved(Phi, y, C, weights=None, **options):
    arrays = (None if a is None else jnp.asarray(a, Phi.dtype) for a in (Phi, y, C, weights))
    return jax.tree.map(np.asarray, interior_point.solve(*arrays, **options))


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_the_machine_is_that_of_libsvm(dtype):
    Phi, y = problem(dtype)
    w = np.random.default_rng(1).integers(0, 3, N).astype(dtype)
    spoilt = np.where(w[:, None] > 0, Phi, np.nan)
    solution = solved(spoilt, y, C, w)
    assert solution.weights.dtype == solution.dual.dtype == dtype
    assert (solution.status == CONVERGED).all()
    Phi, y, present = Phi.astype(float), y.astype(float), w > 0
    near = 1e-6 if dtype == "float64" else 2e-5
    for j in range(3):
        libsvm = SVC(kernel="linear", C=C[j], tol=1e-10)
        libsvm.fit(Phi[present], y[present, j], sample_weight=w[present])
        # libsvm's dual objective, which has more correct digits than libsvm's intercept.
        best = np.abs(libsvm.dual_coef_).sum() - np.square(libsvm.coef_).sum() / 2
        machine = solution.weights[:, j].astype(float), float(solution.intercept[j])
        mine = reference.objective(Phi, y[:, j], C[j], *machine, w)
        np.testing.assert_allclose([mine, solution.objective[j]], best, rtol=near)
        alpha = solution.dual[:, j]
        assert (alpha >= 0).all()
        assert (alpha <= C[j] * w * (1 + 1e-6)).all()
        np.testing.assert_allclose(alpha @ y[:, j], 0, atol=1e-6 * alpha.sum())
        np.testing.assert_allclose(
            (alpha * y[:, j]) @ Phi, solution.weights[:, j], atol=30 * near**0.5 * 1e-1
        )
        assert 0 <= solution.gap[j] <= near * best


@pytest.mark.parametrize("loss", ["hinge", pytest.param("squared_hinge", marks=pytest.mark.slow)])
def test_multipliers_and_gap_are_those_of_a_naive_solver(loss):
    Phi, y = problem()
    w = np.random.default_rng(2).uniform(0.2, 2, N)
    solution = solved(Phi, y, 2.0, w, loss=loss)
    for j in range(3):
        alpha, best = reference.dual(Phi, y[:, j], 2.0, w, loss)
        np.testing.assert_allclose(solution.objective[j], best, rtol=1e-8)
        np.testing.assert_allclose(solution.dual[:, j], alpha, atol=2e-4)
        mine = reference.objective(
            Phi, y[:, j], 2.0, solution.weights[:, j], solution.intercept[j], w, loss
        )
        assert mine - best <= solution.gap[j] + 1e-10 * best


@pytest.mark.slow
def test_any_C_ends_near_the_optimum_or_says_that_it_does_not(dtype):
    Phi, y = problem(dtype)
    all_C, losses = [1e-9, 316.0, 1e9], ("hinge", "squared_hinge")
    for size in all_C:
        for loss in losses:
            solution = solved(Phi, y, np.full(3, size), loss=loss)
            assert np.isfinite(solution.weights).all()
            assert np.isfinite(solution.intercept).all()
            relative = solution.gap / solution.objective
            assert np.isin(solution.status, [CONVERGED, PRECISION_LOST]).all()
            tolerance = interior_point.default_tolerance(Phi.dtype)
            assert ((solution.status == CONVERGED) == (relative <= tolerance)).all()
            assert (relative < (1e-8 if dtype == "float64" else 1e-3)).all()


@pytest.mark.parametrize("dtype", ["float32"])
@pytest.mark.parametrize(("size", "factor"), [(1e25, 1.0), (2.0, 1e25)])
def test_a_first_step_out_of_range_is_no_convergence(dtype, size, factor):
    Phi, y = problem(dtype)
    solution = solved((factor * Phi).astype(dtype), y[:, 0], size)
    assert int(solution.status) == PRECISION_LOST
    np.testing.assert_array_equal(solution.weights, 0)
    assert np.isinf(solution.gap)
    # The objective is that of the start, a machine of value 0.
    np.testing.assert_allclose(solution.objective, size * len(y), rtol=1e-6)


@pytest.mark.slow
def test_batches_blocks_and_single_problems_agree():
    Phi, y = problem()
    both = solved(Phi, y, C, block_rows=16)
    mapped = jax.vmap(lambda c: interior_point.solve(jnp.asarray(Phi), jnp.asarray(y[:, 1]), c))(
        jnp.asarray(C)
    )
    for j in range(3):
        alone = solved(Phi, y[:, j], C[j])
        np.testing.assert_allclose(both.weights[:, j], alone.weights, rtol=1e-6)
    np.testing.assert_allclose(mapped.weights[1], both.weights[:, 1], rtol=1e-6)


def test_one_class_constant_features_steps_that_run_out_and_bad_input(as_users_call):
    Phi, y = problem()
    alone = solved(Phi, np.abs(y), C)
    assert (alone.status == CONVERGED).all()
    assert (alone.intercept == 1).all()
    assert (alone.weights == 0).all()
    constant = solved(np.ones_like(Phi), y, C)
    assert (constant.status == CONVERGED).all()
    assert np.abs(constant.weights).max() < 1e-6
    assert (solved(Phi, y, C, max_iterations=2).status == EXHAUSTED).all()
    assert (solved(Phi * np.inf, y, C).status == NOT_FINITE).all()
    for changes, match in (
        ({"loss": "absolute"}, "loss: expected 'hinge' or"),
        ({"max_iterations": 0}, "max_iterations: expected at least 1"),
        ({"y": y[:3]}, r"y: expected shape \(60,\)"),
        ({"y": 2 * y}, r"y: expected -1 and \+1, got"),
        ({"C": C[:2]}, "C: expected one of the shapes"),
        ({"weights": np.ones(5)}, "weights: expected one of the shapes"),
    ):
        with pytest.raises(ValueError, match=match):
            solved(Phi, **{"y": y, "C": C, **changes})


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_the_one_class_machine_is_that_of_libsvm(dtype, as_users_call):
    Phi, w = problem(dtype)[0], np.random.default_rng(1).uniform(0.5, 1.5, N) * (np.arange(N) % 5)
    here, near = w > 0, {"float64": 1e-6, "float32": 2e-4}[dtype]
    spoilt = jnp.asarray(np.where(here[:, None], Phi, np.nan))
    for nu in (0.1, 0.5, 0.95):
        solution = interior_point.solve_one_class(spoilt, nu, jnp.asarray(w.astype(dtype)))
        assert int(solution.status) == CONVERGED
        assert solution.weights.dtype == dtype
        peer = OneClassSVM(kernel="linear", nu=nu, tol=1e-10)
        peer.fit(Phi[here].astype(float), sample_weight=w[here])
        unit = nu * w.sum()  # of LIBSVM's multipliers
        weights, rho = peer.coef_[0] / unit, -peer.intercept_[0] / unit
        size = np.abs(weights).max()
        np.testing.assert_allclose(solution.weights, weights, atol=near * size)
        np.testing.assert_allclose(-solution.intercept, rho, rtol=near)
        short = np.maximum(rho - Phi[here].astype(float) @ weights, 0)
        best = weights @ weights / 2 - rho + w[here] @ short / unit
        np.testing.assert_allclose(solution.objective, best, rtol=near)
        np.testing.assert_allclose(solution.dual.sum(), 1, rtol=1e-5)
        assert (solution.dual <= w / unit * (1 + 1e-5)).all()
    with pytest.raises(ValueError, match="weights: expected shape"):
        interior_point.solve_one_class(spoilt, 0.5, jnp.ones(3))
