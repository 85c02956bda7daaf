"""Both factorisations of shifted systems against NumPy's eigenvalues and solves."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsparse import accumulate, cross_validate, plain_folds
from jsparse._status import NOT_FINITE
from jsparse.features import Linear
from jsparse.multiclass import output_code, solve_code
from jsparse.solvers import definite
from jsparse.solvers.definite import cholesky_from_upper, inverse_by_blocks, inverse_of_lower
from jsparse.solvers.ridge import (
    degrees_of_freedom,
    resolvent,
    ridge,
    shifted_inverse,
    spectrum,
)
from jsparse.solvers.tridiagonal import tridiagonal

BOTH = pytest.mark.parametrize("factorise", [tridiagonal, spectrum])


def semidefinite(kind, p):
    rng = np.random.default_rng(p)
    B = rng.standard_normal((p + 5, p))
    if kind == "deficient":
        B = B[: p // 2 + 1]
    elif kind == "graded":
        B = B * np.geomspace(1, 1e-3, p)
    elif kind == "zero columns":  # features left out, also the feature of a reflection
        B[:, 1::3] = 0
    elif kind == "diagonal":
        return np.diag(rng.uniform(0, 3, p))
    elif kind == "zero":
        return np.zeros((p, p))
    return B.T @ B


@BOTH
@pytest.mark.parametrize("p", [1, 2, 130])
def test_solves_and_eigenvalues(factorise, p):
    shifts, rhs = np.array([1e-2, 1.0, 50.0]), np.random.default_rng(0).standard_normal((p, 4))

    @jax.jit
    def run(A, bounds):
        factor = factorise(A)
        solved = resolvent(factor, jnp.asarray(rhs), jnp.asarray(shifts))
        counts = jnp.stack([factor.numerical_rank(bound) for bound in bounds])
        return solved, factor.largest, counts, degrees_of_freedom(factor, 1 / jnp.asarray(shifts))

    for kind in ("full", "deficient", "graded", "zero columns", "diagonal", "zero"):
        A = semidefinite(kind, p)
        values = np.linalg.eigvalsh(A)
        bounds = np.array([1e-6, 0.5 * (values[0] + values[-1]) + 1e-6])
        solved, largest, counts, used = run(jnp.asarray(A), jnp.asarray(bounds))
        for x, shift in zip(solved, shifts, strict=True):
            expected = np.linalg.solve(A + shift * np.eye(p), rhs)
            np.testing.assert_allclose(x, expected, atol=1e-9 * np.abs(expected).max())
        assert 0.9 * values[-1] - 1e-12 <= largest <= values[-1] * (1 + 1e-9), kind
        np.testing.assert_array_equal(counts, [np.sum(values > bound) for bound in bounds])
        ratio = np.maximum(values, 0)[None] / (np.maximum(values, 0)[None] + shifts[:, None])
        np.testing.assert_allclose(used, ratio.sum(axis=1), atol=1e-9)


def test_small_features_keep_their_digits_in_float32():
    """The largest features come first, as in Nystroem's map."""
    with jax.enable_x64(False):
        p, shift = 64, np.float32(1e-3)
        A, rhs = semidefinite("graded", p).astype(np.float32), np.ones((p, 1), np.float32)
        exact = np.linalg.solve(A.astype(float) + float(shift) * np.eye(p), rhs)
        error = {}
        for factorise in (tridiagonal, spectrum):

            @jax.jit
            def solve(A, columns, shifts, factorise=factorise):
                return factorise(A).apply_inverse(columns, shifts)

            x = solve(A, rhs.T[None], shift[None])
            error[factorise] = np.abs(np.asarray(x)[0, 0] - exact[:, 0]).max()
        assert error[tridiagonal] < 0.5 * error[spectrum]


@BOTH
def test_refinement_takes_the_error_of_the_factorisation_off_float32_solutions(factorise):
    shifts = np.geomspace(1e-4, 100, 4)
    A = semidefinite("graded", 130).astype(np.float32)
    rhs = np.ones((4, 1, 130))
    exact = np.stack([np.linalg.solve(A + shift * np.eye(130), np.ones(130)) for shift in shifts])

    @jax.jit
    def solve(A, rhs, shifts):
        factor = factorise(A)
        return [shifted_inverse(factor, rhs, shifts, refine=refine) for refine in (True, False)]

    def errors(dtype):
        solutions = solve(*(a.astype(dtype) for a in (A, rhs, shifts)))
        return [
            np.linalg.norm(x[:, 0] - exact, axis=1) / np.linalg.norm(exact, axis=1)
            for x in map(np.asarray, solutions)
        ]

    with jax.enable_x64(False):
        refined, plain = errors(np.float32)
    assert np.all(3 * refined < plain)
    np.testing.assert_array_equal(*errors(np.float64))


@pytest.mark.slow
def test_a_ridge_system_is_refined_unless_told():
    rng = np.random.default_rng(0)
    with jax.enable_x64(False):
        Phi, y = rng.standard_normal((2, 300, 60)).astype(np.float32), np.ones(300, np.float32)
        sums = accumulate(Linear(jnp.zeros(60)), jnp.asarray(Phi[0]), jnp.asarray(y * Phi[1, :, 0]))
        C = jnp.asarray([1e-2, 1.0, 100.0])
        refined, plain = sums.solve(C), sums.solve(C, refine=False)
        assert np.all(1.5 * refined.relative_residual < plain.relative_residual)
        np.testing.assert_allclose(refined.weights, plain.weights, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_batch_is_decomposed_by_calls_that_wait_for_nobody():
    # LAPACK's batched calls may wait for each other for ever: see `unbatched_lapack`.
    p, k = 70, 4
    code = output_code("one_versus_one", k)  # six problems, which go by four
    B = np.random.default_rng(0).standard_normal((k, p, p + 5))
    sums = jax.vmap(
        lambda B: accumulate(Linear(jnp.zeros(p)), B.T, jnp.zeros((p + 5, 0)), jnp.ones(p + 5))
    )(jnp.asarray(B))
    C = jnp.array([1.0, 10.0])

    def pairs(sums):
        return solve_code(code, sums, C).weights

    def every(sums):  # by fours, six in a loop, and two times three
        grams = jnp.concatenate([sums.gram, sums.gram[:2]])
        factors = [
            jax.vmap(lambda gram: (tridiagonal(gram).V, spectrum(gram).vectors))(some)
            for some in (sums.gram, grams)
        ]
        nested = jax.vmap(jax.vmap(lambda gram: spectrum(gram).values))(grams.reshape(2, 3, p, p))
        return factors, nested

    def removed(sums):
        X = sums.gram.reshape(-1, p)
        folds = plain_folds(jax.random.key(0), len(X), 4)
        phi = Linear(jnp.zeros(p))
        return cross_validate(phi, C, X, X[:, 0], folds, method="removal").scores

    for function, calls in ((pairs, 1), (every, 5), (removed, 3)):
        program = jax.jit(function).lower(sums).compile().as_text()
        lapack = [line for line in program.splitlines() if re.search('"(lapack|blas)_', line)]
        assert len(lapack) >= calls
        for line in lapack:
            shapes = re.findall(r"[fs]\d+\[([\d,]*)\]", line)
            assert all(set(shape.split(",")[:-2]) <= {"1"} for shape in shapes), line
    for factorise in (tridiagonal, spectrum):
        for grams in (sums.gram, jnp.concatenate([sums.gram, 2 * sums.gram])):
            rhs = jnp.ones((len(grams), 1, 1, p))
            x = jax.vmap(lambda f, b: f.apply_inverse(b, C))(jax.vmap(factorise)(grams), rhs)
            expected = np.linalg.solve(np.asarray(grams) + np.eye(p), np.ones((p, 1)))
            np.testing.assert_allclose(x[:, 0, 0], expected[..., 0], rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("refine", [True, False])
def test_an_infinite_system_is_not_solved(refine):
    with jax.enable_x64(False):
        one = jnp.ones(3)
        for at in ((0, 0), (1, 1), (2, 2)):
            for value in (np.inf, -np.inf, np.nan):
                gram = np.eye(3)
                gram[at] = value
                sums = jnp.asarray(gram), one, 0 * one, jnp.sum(one), jnp.sum(one), one[:2]
                solved = ridge(*sums, jnp.zeros(()), refine=refine)
                np.testing.assert_array_equal(solved.status, NOT_FINITE)
        solved = ridge(jnp.eye(3), one, one, one[0], jnp.inf * one[0], one[:2], 0 * one[0])
        np.testing.assert_array_equal(solved.status, NOT_FINITE)


def test_the_value_of_a_cholesky_factor_needs_only_the_upper_triangle():
    rng = np.random.default_rng(0)
    B = rng.standard_normal((9, 6))
    matrix = B.T @ B
    upper = np.triu(matrix) + np.tril(rng.standard_normal((6, 6)), -1)
    expected = np.linalg.cholesky(matrix)
    np.testing.assert_allclose(cholesky_from_upper(jnp.asarray(upper)), expected, rtol=1e-12)
    assert np.all(np.isnan(cholesky_from_upper(-jnp.eye(3))[np.tril_indices(3)]))


def test_a_cholesky_factor_has_the_derivative_of_the_symmetric_matrix():
    rng = np.random.default_rng(1)
    B, change = rng.standard_normal((2, 5, 5))

    @jax.jit
    def value(t):
        root = B + t * change
        return jnp.sum(jnp.sin(cholesky_from_upper(root @ root.T + np.eye(5))))

    h = 1e-5
    expected = (value(h) - value(-h)) / (2 * h)
    assert jax.grad(value)(0.0) == pytest.approx(float(expected), rel=1e-7)
    assert jax.jvp(value, (0.0,), (1.0,))[1] == pytest.approx(float(expected), rel=1e-7)


def lower_triangle(p):
    A = np.random.default_rng(0).normal(size=(p, 2 * p))
    return np.linalg.cholesky(A @ A.T + np.eye(p))


@pytest.mark.parametrize("p", [1, 256, 301])
def test_a_triangular_inverse(p):
    lower = lower_triangle(p)
    inverse = jax.jit(inverse_of_lower)(lower)
    np.testing.assert_allclose(inverse @ lower, np.eye(p), atol=1e-10)
    np.testing.assert_array_equal(np.triu(inverse, 1), 0)


@pytest.mark.parametrize(("p", "blocks"), [(1, 1), (6, 1), (7, 2), (20, 4)])
def test_a_triangular_inverse_in_blocks(p, blocks, monkeypatch):
    monkeypatch.setattr(definite, "_BLOCK", 6)
    lower = lower_triangle(p)

    @jax.jit
    def results(lower, identity):
        inverse = inverse_by_blocks(lower)
        assert len(inverse.columns) == blocks
        products = inverse.times(identity), inverse.transposed_times(identity)
        return *products, inverse.squared_norms()

    product, transposed, squares = results(lower, np.eye(p))
    expected = np.linalg.inv(lower)
    np.testing.assert_allclose(product, expected, atol=1e-12)
    np.testing.assert_allclose(transposed, expected.T, atol=1e-12)
    np.testing.assert_allclose(squares, np.sum(expected**2, axis=0), atol=1e-12)
