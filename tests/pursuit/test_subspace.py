"""Subspace pursuit and CoSaMP against loops in NumPy, and where they end."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import pursuit as reference

from jsparse import pursuit
from jsparse._status import COMPLETED, CONVERGED, INDEFINITE, NOT_FINITE

SIZES = [2, 5, 9]


def problem(n=40, D=30, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, D)).astype(dtype), rng.standard_normal(n).astype(dtype)


def solutions(X, y, rule="subspace", *, gram=False, **options):
    if gram:
        return pursuit.subspace_pursuit_gram(X.T @ X, X.T @ y, rule=rule, **options)
    run = pursuit.subspace_pursuit if rule == "subspace" else pursuit.cosamp
    return run(X, y, **options)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("gram", [False, True], ids=["rows", "gram"])
@pytest.mark.parametrize("rule", ["subspace", "cosamp"])
def test_they_are_the_papers_algorithms(rule, gram, dtype, tol):
    X, y = problem(dtype=dtype)
    wide, target = X.astype(float), y.astype(float)
    result = solutions(X, y, rule, gram=gram, n_atoms=SIZES)
    assert result.coefficients.dtype == dtype
    for i, K in enumerate(SIZES):
        if rule == "subspace":
            atoms, w, norms = reference.subspace_pursuit(wide, target, K)
            assert result.iterations[i] == len(norms)  # the last finds that it falls no more
            dense = np.zeros(30)
            dense[atoms] = w
        else:
            dense, norms = reference.cosamp(wide, target, K)
        assert np.count_nonzero(result.support[i] >= 0) == K
        np.testing.assert_allclose(result.dense(30)[i], dense, rtol=30 * tol, atol=30 * tol)
        explained = target @ target - norms[-1] ** 2
        np.testing.assert_allclose(result.explained[i], explained, rtol=30 * tol)
        if not gram:
            np.testing.assert_allclose(result.residual_norm[i], norms[-1], rtol=30 * tol)
    assert (result.status == CONVERGED).all()
    assert result.rank.tolist() == SIZES


@pytest.mark.parametrize(
    ("rule", "gram"), [("subspace", False), pytest.param("cosamp", True, marks=pytest.mark.slow)]
)
def test_sizes_that_share_a_program_are_each_the_papers_algorithm(rule, gram):
    sizes = [3, 10, 20, 30, 40]  # systems of a quarter to all of the largest
    X, y = problem(120, 90, seed=1)
    result = solutions(X, y, rule, gram=gram, n_atoms=sizes)
    for i, K in enumerate(sizes):
        if rule == "subspace":
            atoms, w, _ = reference.subspace_pursuit(X, y, K)
            dense = np.zeros(90)
            dense[atoms] = w
        else:
            dense, _ = reference.cosamp(X, y, K)
        np.testing.assert_allclose(result.dense(90)[i], dense, rtol=1e-7, atol=1e-9)


def test_planted_solutions_are_recovered_and_both_agree():
    rng = np.random.default_rng(3)
    X, w = rng.standard_normal((80, 160)) / np.sqrt(80), np.zeros(160)
    w[rng.permutation(160)[:12]] = rng.choice([-1.0, 1.0], 12) * rng.uniform(1, 2, 12)
    for run in (pursuit.subspace_pursuit, pursuit.cosamp):
        result = run(X, X @ w, n_atoms=12)
        assert np.asarray(result.support).tolist() == np.flatnonzero(w).tolist()
        np.testing.assert_allclose(result.dense(160), w, atol=1e-14)
        assert result.status == CONVERGED


def test_the_residual_never_grows_and_iterations_are_those_of_longer_runs():
    X, y = problem(seed=2)
    pursue = jax.jit(  # nothing compiles again for another number
        chex.assert_max_traces(
            lambda most: pursuit.subspace_pursuit(X, y, n_atoms=9, max_iterations=most), n=1
        )
    )
    whole, norms = pursue(100), []
    assert whole.status == CONVERGED
    with pytest.raises(ValueError, match="n_atoms: expected at least"):
        whole.dense(3)
    for most in range(1, int(whole.iterations)):
        part = pursue(most)
        assert part.status == COMPLETED
        norms.append(float(part.residual_norm))
    assert len(norms) > 1
    assert (np.diff(norms) < 0).all()
    assert norms[-1] == float(whole.residual_norm)


@pytest.mark.slow
def test_dependent_atoms_share_a_coefficient_as_the_pseudo_inverse_has_it(dtype, tol):
    X, y = problem(dtype=dtype)
    twice = np.concatenate([X[:, :6], X[:, :6]], axis=1)
    every = pursuit.subspace_pursuit(twice, y, n_atoms=12)
    expected = np.linalg.pinv(twice.astype(float)) @ y
    np.testing.assert_allclose(every.coefficients, expected, rtol=30 * tol, atol=30 * tol)
    assert every.rank == 6
    formed = pursuit.subspace_pursuit_gram(twice.T @ twice, twice.T @ y, n_atoms=12)
    assert formed.rank == 6
    np.testing.assert_allclose(formed.coefficients, expected, atol=1e-2)  # what rounding leaves
    np.testing.assert_allclose(twice @ formed.coefficients, twice @ expected, atol=1e4 * tol)
    # A kernel so wide that its dictionary has rank one.
    flat = np.ones((40, 12), dtype)
    for result in (
        pursuit.subspace_pursuit(flat, y, n_atoms=4),
        pursuit.subspace_pursuit_gram(flat.T @ flat, flat.T @ y, n_atoms=4),
    ):
        assert result.status == CONVERGED
        np.testing.assert_allclose(flat @ result.dense(12), y.mean(), rtol=1e3 * tol)
        assert np.count_nonzero(result.coefficients) == 4


def test_float32_errs_by_the_condition_of_the_atoms_not_by_its_square():
    x = np.linspace(-1, 1, 60)
    X = np.exp(-np.square(x[:, None] - x[None, ::5]) / 0.3)
    y = np.sin(4 * x)
    assert np.linalg.cond(X) ** 2 > 1e11
    narrow = X.astype("f"), y.astype("f")
    left = {
        gram: np.linalg.norm(
            y - X @ np.asarray(solutions(*narrow, gram=gram, n_atoms=12).coefficients, float)
        )
        for gram in (False, True)
    }
    assert left[False] < 1e-3 * np.linalg.norm(y)
    assert left[True] > 5 * left[False]


def test_a_ridge_shrinks_as_more_rows_would():
    X, y = problem()
    more = np.concatenate([X, np.sqrt(3.0) * np.eye(30)]), np.concatenate([y, np.zeros(30)])
    expected = pursuit.subspace_pursuit(*more, n_atoms=SIZES)
    for gram in (False, True):
        result = solutions(X, y, gram=gram, n_atoms=SIZES, ridge=3.0)
        np.testing.assert_array_equal(result.support, expected.support)
        np.testing.assert_allclose(result.coefficients, expected.coefficients, atol=1e-10)


def test_units_do_not_matter_and_zero_or_bad_numbers_have_their_status():
    X, y = problem(dtype=np.float32)
    unscaled = pursuit.subspace_pursuit(X, y, n_atoms=5)
    for size in np.float32([1e-30, 1e30]):  # of targets: tests/contracts/test_relations.py
        scaled = pursuit.subspace_pursuit(size * X, y, n_atoms=5)
        np.testing.assert_array_equal(scaled.support, unscaled.support)
    nothing = pursuit.subspace_pursuit(X, 0 * y, n_atoms=5)
    assert nothing.status == CONVERGED
    assert not np.any(nothing.coefficients)
    spoilt = X.copy()
    spoilt[3, 4] = np.nan
    for gram in (False, True):
        n_atoms = 30 if gram else 5
        assert solutions(spoilt, y, gram=gram, n_atoms=n_atoms).status == NOT_FINITE
    A = X.T @ X
    A[0, 1] = A[1, 0] = 1e3 * A[0, 0]
    assert pursuit.subspace_pursuit_gram(A, X.T @ y, n_atoms=30).status == INDEFINITE


def test_batches_targets_and_numbers_of_atoms_are_each_alone():
    X, y = problem()
    other = problem(seed=1)
    both = pursuit.subspace_pursuit(np.stack([X, other[0]]), np.stack([y, other[1]]), n_atoms=SIZES)
    assert both.support.shape == (2, 3, 9)
    both = jax.device_get(both)
    # Traced, nothing compiles again for other numbers.
    traced = jax.jit(
        chex.assert_max_traces(
            lambda X, y, K: pursuit.subspace_pursuit(X, y, n_atoms=K, max_atoms=9), n=1
        )
    )
    for v, one in enumerate(((X, y), other)):
        for s, K in enumerate(SIZES):
            member = jax.tree.map(lambda a, v=v, s=s: a[v, s], both)
            chex.assert_trees_all_close(traced(*one, jnp.asarray(K)), member, atol=1e-12)
    together = pursuit.subspace_pursuit(X, np.stack([y, 2 * y], axis=1), n_atoms=9)
    np.testing.assert_array_equal(together.support, both.support[0, 2])
    np.testing.assert_allclose(together.coefficients[:, 1], 2 * both.coefficients[0, 2], rtol=1e-9)
    assert together.dense(30).shape == (30, 2)


def test_bad_input_is_named(as_users_call):
    X, y = problem()
    A, b = X.T @ X, X.T @ y
    for run, args in (
        (pursuit.subspace_pursuit, (X, y)),
        (pursuit.cosamp, (X, y)),
        (pursuit.subspace_pursuit_gram, (A, b)),
    ):
        for options, message in (
            *[({"n_atoms": K}, "n_atoms: expected a whole number bet") for K in (0, 31, 2.5, True)],
            ({"tolerance": -1.0}, "tolerance: expected"),
            ({"ridge": np.nan}, "ridge: expected"),
            ({"max_iterations": 0}, "max_iterations: expected"),
            ({"max_atoms": 31}, "max_atoms: expected"),
        ):
            with pytest.raises(ValueError, match=message):
                run(*args, **{"n_atoms": 3, **options})
        with pytest.raises(ValueError, match="max_atoms: expected a number, as n_atoms is traced"):
            jax.jit(lambda K, run=run, args=args: run(*args, n_atoms=K))(3)
    for run, args, options, message in (
        (pursuit.subspace_pursuit, (X, y[:-1]), {}, "y: expected shape"),
        (pursuit.subspace_pursuit, (y, y), {}, "X: expected shape"),
        (pursuit.subspace_pursuit_gram, (X, y), {}, "A: expected shape"),
        (pursuit.subspace_pursuit_gram, (-A, b), {}, "A: expected a positive semi-definite"),
        (pursuit.subspace_pursuit_gram, (A, b), {"rule": "other"}, "rule: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            run(*args, n_atoms=3, **options)


def test_derivatives_of_the_last_step_with_and_without_full_rank():
    X, y = problem(12, 4)

    def of(t, u, rank):
        Z = X[:, [0, 1, 2, 0]] if rank == 3 else X
        moved = Z * (1 + t) + t * jnp.sin(Z)
        return jnp.sum(jnp.sin(pursuit.least_squares(moved, y + u * jnp.cos(y))))

    gradients = jax.jit(jax.grad(of, (0, 1)), static_argnums=2)
    of = jax.jit(of, static_argnums=2)
    for rank in (3, 4):
        for place in (0, 1):
            gradient = gradients(0.3, 0.2, rank)[place]
            h = 1e-5 * np.eye(2)[place]
            ahead, behind = of(0.3 + h[0], 0.2 + h[1], rank), of(0.3 - h[0], 0.2 - h[1], rank)
            np.testing.assert_allclose(gradient, (ahead - behind) / 2e-5, rtol=1e-6)
