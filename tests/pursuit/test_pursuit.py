"""Pursuits against the paper's loops, scikit-learn, and exhaustive search."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import pursuit as reference
from sklearn.linear_model import lars_path, orthogonal_mp, orthogonal_mp_gram

from jsparse import NumericalError, check, pursuit
from jsparse._status import (
    COMPLETED,
    CONVERGED,
    EXHAUSTED,
    INDEFINITE,
    PRECISION_LOST,
    TRUNCATED,
)
from jsparse.pursuit import conjugate
from jsparse.pursuit.system import Columns, scaled


def problem(n=60, D=20, seed=0, c=None, dtype=np.float64):
    """Return a dictionary with correlated atoms of different lengths, and a target."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D)) + 0.5 * rng.standard_normal((n, 1))
    X = X * rng.uniform(0.5, 2.0, D)
    y = rng.standard_normal((n,) if c is None else (n, c)) + X[:, :1].reshape(
        -1, *[1] * (c is not None)
    )
    return X.astype(dtype), y.astype(dtype)


def gram(X, y):
    return X.T @ X, X.T @ y


def dense(path, D, k):
    """Return `path.dense(D, k)` in NumPy, which compiles no program for every `k`."""
    w = np.zeros((D, *path.coefficients.shape[2:]))
    support = np.asarray(path.support)
    w[support[support >= 0]] = np.asarray(path.coefficients)[k - 1][support >= 0]
    return w


def planted(n, D, k, seed=0):
    """Return unit atoms, a target that combines k of them, and its coefficients."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D))
    X /= np.linalg.norm(X, axis=0)
    support = rng.permutation(D)[:k]
    w = np.zeros(D)
    w[support] = rng.choice([-1.0, 1.0], k) * rng.uniform(1, 2, k)
    return X, X @ w, w


def noisy():
    """Return unit atoms, and a target that combines eight of them, with noise."""
    X, y, _ = planted(100, 200, 8, seed=2)
    return X, y + 0.01 * np.random.default_rng(0).standard_normal(100)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_scdp_is_the_papers_algorithm(dtype, tol):
    X, y = problem(dtype=dtype)
    A, b = gram(X, y)
    path = pursuit.scdp(A, b, max_atoms=12)
    for k in (5, 12):
        np.testing.assert_array_equal(path.dense(20, k), dense(path, 20, k))
    path = jax.device_get(path)  # each comparison of an entry on the device is a program
    support, record = reference.scdp(A.astype(float), b.astype(float), 12)
    assert path.support.tolist() == support
    assert path.status == COMPLETED
    assert path.size == 12
    for k, w in enumerate(record, start=1):
        np.testing.assert_allclose(dense(path, 20, k), w, rtol=30 * tol, atol=30 * tol)
        norm = np.linalg.norm(b - A @ w)
        np.testing.assert_allclose(path.residual_norm[k], norm, rtol=100 * tol)
        np.testing.assert_allclose(path.explained[k], b @ w, rtol=10 * tol)


def test_any_order_of_selection_gives_least_squares_at_every_size():
    A, b = gram(*problem())
    order = [7, 3, 11, 0, 19, 5]
    path = pursuit.scdp(A, b, max_atoms=8, initial=order)
    support, record = reference.scdp(A, b, 6, order)
    assert np.asarray(path.support[:6]).tolist() == support
    for k, w in enumerate(record, start=1):
        np.testing.assert_allclose(dense(path, 20, k), w, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(w, reference.least_squares(A, b, support[:k]), rtol=1e-8)
    # After the atoms given, selection goes on as always.
    assert int(path.support[6]) == np.argmax(np.abs(b - A @ record[-1]))


def test_scdp_equals_scikit_learn_on_the_gram_matrix():
    A, b = gram(*problem(200, 128, seed=3))
    path = pursuit.scdp(A, b, max_atoms=30)
    theirs = orthogonal_mp_gram(A, b, n_nonzero_coefs=30, return_path=True)
    for k in range(1, 31):
        np.testing.assert_allclose(dense(path, 128, k), theirs[:, k - 1], rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_omp_equals_scikit_learn_over_and_under_determined(dtype, tol):
    for n, D in ((60, 20), (20, 60)):
        X, y = problem(n, D, seed=1, dtype=dtype)
        path = pursuit.omp(X, y, max_atoms=12)
        theirs = orthogonal_mp(X.astype(float), y.astype(float), n_nonzero_coefs=12)
        np.testing.assert_allclose(path.dense(D), theirs, rtol=100 * tol, atol=100 * tol)
        w = np.asarray(path.dense(D))
        norm = np.linalg.norm(y - X @ w)
        np.testing.assert_allclose(path.residual_norm[-1], norm, rtol=100 * tol)
        np.testing.assert_allclose(
            np.square(y).sum() - path.explained, np.square(path.residual_norm), rtol=1e3 * tol
        )


def test_several_right_hand_sides_select_together():
    X, y = problem(c=3)
    A, b = gram(X, y)
    path, rows = pursuit.scdp(A, b, max_atoms=10), pursuit.omp(X, y, max_atoms=10)
    np.testing.assert_array_equal(path.dense(20, 5), dense(path, 20, 5))
    path, rows = jax.device_get((path, rows))
    assert (path.support == rows.support).all()
    w = np.zeros((20, 3))
    for k in range(10):
        atom = int(np.argmax(np.linalg.norm(b - A @ w, axis=1)))
        assert path.support[k] == atom
        support = path.support[: k + 1]
        w = np.stack([reference.least_squares(A, b[:, i], support) for i in range(3)], axis=1)
        for each_path in (path, rows):
            np.testing.assert_allclose(dense(each_path, 20, k + 1), w, rtol=1e-9, atol=1e-12)


def test_gain_selects_what_lowers_the_objective_most():
    A, b = gram(*problem())
    path = jax.device_get(pursuit.scdp(A, b, max_atoms=6, rule="gain"))
    support = []
    for k in range(6):
        gains = {
            j: b @ reference.least_squares(A, b, [*support, j])
            for j in range(20)
            if j not in support
        }
        support.append(max(gains, key=gains.get))
        assert path.support[k] == support[-1]
        np.testing.assert_allclose(path.explained[k + 1], gains[support[-1]], rtol=1e-10)


@pytest.mark.parametrize(
    "solve",
    [
        lambda X, y, k: pursuit.scdp(*gram(X, y), max_atoms=k),
        lambda X, y, k: pursuit.omp(X, y, max_atoms=k),
        lambda X, y, k: pursuit.stagewise_omp(X, y, max_atoms=k, threshold=2.0),
    ],
    ids=["scdp", "omp", "stagewise"],
)
def test_planted_supports_are_recovered(solve):
    X, y, w = planted(64, 128, 6)
    path = solve(X, y, 30)
    assert set(np.flatnonzero(w)) <= set(np.asarray(path.support[: path.size]).tolist())
    np.testing.assert_allclose(path.dense(128), w, atol=1e-7)
    assert path.status == CONVERGED
    assert path.size < 30


def test_stagewise_takes_all_above_the_threshold_at_once():
    X, y = noisy()
    path = pursuit.stagewise_omp(X, y, max_atoms=40, threshold=2.5, max_stages=3)
    support = []
    for _ in range(3):
        w = np.zeros(200)
        if support:
            w[support] = np.linalg.lstsq(X[:, support], y, rcond=None)[0]
        r = y - X @ w
        score = np.abs(X.T @ r)
        above = np.flatnonzero(score > 2.5 * np.linalg.norm(r) / 10)
        support += sorted((j for j in above if j not in support), key=lambda j: -score[j])
    assert np.asarray(path.support[: path.size]).tolist() == support[: int(path.size)]
    assert path.size == len(support)


def test_random_subsets_select_within_themselves_and_fit_by_least_squares():
    A, b = gram(*problem(100, 20, seed=4))
    keys = jax.random.key(1), jax.random.key(2)
    path, other = jax.device_get(
        [pursuit.scdpp(A, b, key=key, max_atoms=12, subset=7) for key in keys]
    )
    support = path.support
    assert len(set(support.tolist())) == 12
    for k in (1, 4, 12):
        w = reference.least_squares(A, b, support[:k])
        np.testing.assert_allclose(dense(path, 20, k), w, rtol=1e-8, atol=1e-11)
        np.testing.assert_allclose(path.residual_norm[k], np.linalg.norm(b - A @ w), rtol=1e-8)
    assert not (other.support == support).all()
    # With all atoms in the subset it is the pursuit itself.
    whole = pursuit.scdpp(A, b, key=keys[0], max_atoms=12, subset=20)
    np.testing.assert_array_equal(whole.support, pursuit.scdp(A, b, max_atoms=12).support)


@pytest.mark.slow
def test_random_subsets_are_the_same_for_all_systems_of_a_batch():
    systems = [gram(*problem(100, 40, seed=seed)) for seed in (4, 5)]
    both = [np.stack(parts) for parts in zip(*systems, strict=True)]
    batch = pursuit.scdpp(*both, key=jax.random.key(1), max_atoms=15, subset=1)
    assert (batch.support[0] == batch.support[1]).all()  # of one drawn atom there is no choice


@pytest.mark.parametrize("shrinkage", [1.0, 0.1])
def test_matching_pursuit_is_the_papers_algorithm(shrinkage):
    A, b = gram(*problem(seed=6))
    options = {"max_atoms": 8, "shrinkage": shrinkage, "max_iterations": 500}
    path = jax.device_get(pursuit.matching_pursuit(A, b, **options))
    record = reference.matching_pursuit(A, b, 500, shrinkage)
    sizes = [int((w != 0).sum()) for w in record]
    for k in range(1, 9):
        last = record[max(i for i, size in enumerate(sizes) if size == k)]
        np.testing.assert_allclose(dense(path, 20, k), last, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(path.residual_norm[k], np.linalg.norm(b - A @ last), rtol=1e-9)
        np.testing.assert_allclose(path.explained[k], 2 * b @ last - last @ A @ last, rtol=1e-9)


@pytest.mark.parametrize(  # fast tests of LARS: test_least_angle.py
    ("method", "solve"),
    [("lasso", pursuit.lasso), pytest.param("lar", pursuit.lars, marks=pytest.mark.slow)],
)
def test_lasso_and_lars_equal_scikit_learn(method, solve):
    X, y = problem(seed=8)
    path = jax.device_get(solve(*gram(X, y), max_atoms=12))
    _, _, theirs = lars_path(X, y, method=method, max_iter=12)
    k = min(theirs.shape[1], int(path.steps) + 1)
    assert k >= 10
    np.testing.assert_allclose(path.coefficients[:k].T, theirs[:, :k], rtol=1e-8, atol=1e-10)


def test_columns_on_demand_need_no_matrix():
    X, y = problem()
    A, b = gram(X, y)
    expected = pursuit.scdp(A, b, max_atoms=12)
    with_columns = pursuit.scdp(
        pursuit.GramColumns(jnp.asarray(X)), b, diagonal=np.diag(A), max_atoms=12
    )
    closed = pursuit.scdp(lambda j: jnp.asarray(A)[j], b, diagonal=np.diag(A), max_atoms=12)
    for path in (with_columns, closed):
        chex.assert_trees_all_close(path, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "matrices", ["owner", *[pytest.param(name, marks=pytest.mark.slow) for name in ("each", "one")]]
)
def test_large_systems_are_solved_alone_with_the_same_paths(matrices, monkeypatch):
    problems = [gram(*problem(seed=s)) for s in range(4)]
    A, b = (jnp.asarray(np.stack(arrays)) for arrays in zip(*problems, strict=True))
    if matrices == "each":
        columns, of_system = Columns(A), A
    elif matrices == "one":
        columns, of_system = Columns(A[0]), A[jnp.zeros(4, jnp.int32)]
    else:
        owner = jnp.array([1, 0, 1, 0], jnp.int32)
        columns, of_system = Columns(A[:2], owner=owner), A[owner]
    diagonal = jnp.diagonal(of_system, axis1=1, axis2=2)
    columns, b, diagonal, _ = scaled(columns, 1e20 * b[:, :, None], diagonal)
    none, tolerance, paths = jnp.zeros(0, jnp.int32), jnp.asarray(0.2), []
    for many_atoms in (20, 21):
        monkeypatch.setattr(conjugate, "_MANY_ATOMS", many_atoms)
        conjugate.pursue.clear_cache()
        path = conjugate.pursue(columns, b, diagonal, diagonal, none, tolerance, max_atoms=12)
        paths.append(path)
    conjugate.pursue.clear_cache()
    assert len(set(paths[0].size.tolist())) > 1
    chex.assert_trees_all_close(*paths, rtol=1e-10)


@pytest.mark.parametrize(
    ("solve", "tolerance"),
    [
        (pursuit.scdp, 0.05),
        pytest.param(pursuit.omp, 0.7, marks=pytest.mark.slow),
        pytest.param(pursuit.matching_pursuit, 0.05, marks=pytest.mark.slow),
    ],
)
def test_a_batch_goes_in_step_and_equals_one_after_another(solve, tolerance):
    problems = [problem(seed=s) for s in range(3)]
    if solve is not pursuit.omp:
        problems = [gram(*one) for one in problems]
    stacked, options = map(np.stack, zip(*problems, strict=True)), {"max_atoms": 12}
    together = jax.device_get(solve(*stacked, tolerance=tolerance, **options))
    for i, one in enumerate(problems):
        alone = jax.device_get(solve(*one, tolerance=tolerance, **options))
        assert (together.support[i] == alone.support).all()
        assert together.status[i] == alone.status
        np.testing.assert_allclose(
            together.coefficients[i], alone.coefficients, rtol=1e-6, atol=1e-8
        )
    assert len(set(together.size.tolist())) > 1  # some end before others


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from(["duplicate", "zero", "dependent", "constant"]))
def test_degenerate_atoms_are_passed_over(seed, kind):
    X, y = problem(60, 8, seed=seed)
    if kind == "duplicate":
        X = np.concatenate([X, X, X[:, :4]], axis=1)
    elif kind == "zero":
        X = np.concatenate([X, np.zeros((60, 12))], axis=1)
    elif kind == "dependent":
        X = np.concatenate([X, X @ np.random.default_rng(seed).standard_normal((8, 12))], axis=1)
    else:
        X = np.concatenate([X, np.ones((60, 12))], axis=1)
    rank = np.linalg.matrix_rank(X)
    A, b = gram(X, y)
    fitted = X @ np.linalg.lstsq(X, y, rcond=None)[0]
    key = jax.random.key(seed)
    for path in (
        pursuit.scdp(A, b, max_atoms=12),
        pursuit.omp(X, y, max_atoms=12),
        pursuit.scdpp(A, b, key=key, max_atoms=12, subset=20),
    ):
        assert int(path.size) == rank
        # Sums of eight atoms round more: once in some thousand cases they seem to add something.
        assert path.status in ((CONVERGED, TRUNCATED) if kind == "dependent" else (CONVERGED,))
        np.testing.assert_allclose(X @ np.asarray(path.dense(20)), fitted, atol=1e-5)


def test_a_zero_target_needs_no_atoms():
    X, _ = problem()
    A, zero = X.T @ X, np.zeros(20)
    for path in (
        pursuit.scdp(A, zero, max_atoms=12),
        pursuit.omp(X, np.zeros(60), max_atoms=12),
        pursuit.matching_pursuit(A, zero, max_atoms=12),
    ):
        assert (path.size, path.status) == (0, CONVERGED)
        assert (path.support == -1).all()
        assert (path.dense(20) == 0).all()
    corners = pursuit.lasso(A, zero, max_atoms=12)
    assert (corners.steps, corners.status) == (0, CONVERGED)


def test_an_indefinite_matrix_is_told_beside_a_large_entry():
    A, b = np.diag([1e10, *np.ones(19)]), np.zeros(20)
    A[1:3, 1:3] = [[1.0, 2.0], [2.0, 1.0]]  # with a positive diagonal
    b[:4] = np.diag(A)[:4]  # the others have no part in it
    for solve in (pursuit.scdp, pursuit.matching_pursuit):
        path = solve(A, b, max_atoms=12)
        assert path.status == INDEFINITE
        with pytest.raises(NumericalError, match="positive semi-definite"):
            check(path.status)


def test_float32_is_right_on_the_rows_or_says_that_it_is_not():
    """The squared condition number of a smooth kernel's Gram matrix is 1e7 or more."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (300, 1))
    X = np.exp(-np.square(x - np.linspace(-3, 3, 40)[None]) / (2 * 0.2**2))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.standard_normal(300)
    exact = pursuit.omp(X, y, max_atoms=25)
    w, support = np.asarray(exact.dense(40)), np.asarray(exact.support)
    with jax.enable_x64(False):
        X32, y32 = X.astype(np.float32), y.astype(np.float32)
        rows = pursuit.omp(X32, y32, max_atoms=25)
        same = bool((np.asarray(rows.support) == support).all())
        assert same
        error = np.linalg.norm(rows.dense(40) - w) / np.linalg.norm(w)
        assert error < 1e-3
        assert rows.status < PRECISION_LOST
        again = pursuit.scdp(X32.T @ X32, X32.T @ y32, max_atoms=25, initial=support)
        wrong = np.linalg.norm(again.dense(40) - w) / np.linalg.norm(w)
        assert wrong < 1e-3 or again.status == PRECISION_LOST
        assert again.condition.dtype == jnp.float32


def test_the_estimate_of_the_condition_is_an_upper_bound_and_near():
    A, b = gram(*problem(60, 20, seed=2))
    path = jax.device_get(pursuit.scdp(A, b, max_atoms=20))
    for k in (1, 5, 20):
        S = path.support[:k]
        scale = 1 / np.sqrt(np.diag(A)[S])
        true = np.linalg.cond(A[np.ix_(S, S)] * scale * scale[:, None])
        assert true * (1 - 1e-9) <= path.condition[k - 1] <= k**2 * true * (1 + 1e-9)


@pytest.mark.parametrize("s", [1e-150, 1e150])
def test_scale_does_not_matter_to_what_is_selected(s):
    """`tests/contracts/test_relations.py` scales rows."""
    A, b = gram(*problem())
    for solve in (pursuit.scdp, pursuit.matching_pursuit, pursuit.lasso):
        usual, large, both = (
            solve(*system, max_atoms=12) for system in ((A, b), (A, b * s), (A * s, b * s))
        )
        assert large.status == both.status == usual.status
        np.testing.assert_allclose(large.coefficients / s, usual.coefficients, rtol=1e-9)
        np.testing.assert_allclose(both.coefficients, usual.coefficients, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(both.residual_norm / s, usual.residual_norm, rtol=1e-8)


def test_atoms_passed_over_for_the_precision_are_told():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5)) + 300
    y = X @ [1, -2, 0, 0, 0.5] + 0.01 * rng.standard_normal(200)
    A, b = gram(X, y)
    assert pursuit.scdp(A, b, max_atoms=5).size == 5
    A, b = A.astype(np.float32), b.astype(np.float32)
    for path in (
        pursuit.scdp(A, b, max_atoms=5),
        pursuit.scdpp(A, b, key=jax.random.key(0), max_atoms=5),
    ):
        assert path.size < 5
        assert path.status == TRUNCATED


def test_paths_that_end_early_say_what_was_reached():
    X, y = problem()
    A, b = gram(X, y)
    nothing = pursuit.scdp(
        np.zeros((20, 20)), np.array([1.0, 2.0, 3.0, *np.zeros(17)]), max_atoms=12
    )
    np.testing.assert_allclose(nothing.residual_norm, np.sqrt(14.0))
    assert nothing.size == 0
    # Of the atoms given those are left out that depend on the ones before, and the path goes on.
    A[:, 1], A[1] = A[:, 0], A[0]
    A[1, 1] = A[0, 0]
    b[1] = b[0]
    path = pursuit.scdp(A, b, max_atoms=4, initial=[0, 1, 5])
    assert path.support[:2].tolist() == [0, 5]
    assert path.size == 4
    # A zero atom has nothing to give, whatever its residual.
    first = np.arange(20) == 0
    zero = pursuit.matching_pursuit(np.diag(1.0 - first), 1.0 * first, max_atoms=12)
    assert (zero.status, zero.size) == (TRUNCATED, 0)
    X, y = noisy()
    cut = pursuit.stagewise_omp(X, y, max_atoms=40, threshold=2.5, max_stages=3)
    assert cut.size < 40
    assert cut.status == EXHAUSTED


def test_precisions_are_not_mixed_in_silence(as_users_call):
    A, b = gram(*problem())
    path = pursuit.scdp(A, b.astype(np.float32), max_atoms=12)
    assert path.coefficients.dtype == np.float64
    path = pursuit.scdp(A[:5, :5].astype(np.float32), np.ones(5, int), max_atoms=5)
    assert path.coefficients.dtype == np.float32
    with pytest.raises(ValueError, match="A: expected columns of shape"):
        pursuit.scdp(lambda j: jnp.asarray(A)[j, :3], b, max_atoms=3, diagonal=np.diag(A))
    with pytest.raises(ValueError, match="n_atoms: expected at least"):
        path.dense(1)


def test_bad_input_is_told(as_users_call):
    A, b = gram(*problem())
    key = jax.random.key(0)
    for solve, arguments, options, match in (
        (pursuit.scdp, (A, b), {"max_atoms": 21}, "max_atoms: expected a whole number between 1"),
        (pursuit.scdp, (A, b), {"max_atoms": 0}, "max_atoms: expected a whole number between 1"),
        (pursuit.scdp, (A[:5], b), {}, "A: expected shape"),
        (pursuit.scdp, (A, b[:5]), {}, "b: expected shape"),
        (pursuit.scdp, (A, b), {"tolerance": -1.0}, "tolerance: expected"),
        (pursuit.scdp, (A, b), {"initial": [1, 1]}, "different atoms"),
        (pursuit.scdp, (A, b), {"initial": [20]}, "atoms from 0 to 19"),
        (pursuit.scdp, (A, b), {"rule": "best"}, "rule: expected"),
        (pursuit.scdp, (lambda j: A[j], b), {}, "diagonal: expected"),
        (pursuit.scdpp, (A, b), {"key": key, "subset": 21}, "subset: expected a whole number betw"),
        (pursuit.omp, (A, b[:4]), {}, "y: expected shape"),
        (pursuit.omp, (A[:4], b[:4]), {"max_atoms": 5}, "between 1 and the number of rows or ato"),
        (pursuit.stagewise_omp, (A, b), {"max_stages": 0}, "max_stages"),
        (pursuit.matching_pursuit, (A, b), {"shrinkage": 0.0}, "shrinkage"),
        (pursuit.matching_pursuit, (A, b), {"shrinkage": 2.0}, "shrinkage"),
        (pursuit.matching_pursuit, (A, b), {"max_iterations": 0}, "max_iterations"),
        (pursuit.lasso, (A, b), {"max_iterations": 0}, "max_iterations: expected a whole number"),
        (pursuit.lasso, (A, b), {"max_iterations": 2.5}, "max_iterations: expected a whole"),
        (pursuit.lars, (A, b[:, None]), {}, "one right-hand side"),
    ):
        with pytest.raises(ValueError, match=match):
            solve(*arguments, **{"max_atoms": 3, **options})
