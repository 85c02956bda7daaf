"""The average gradient outer product, against loops and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsparse import kernels
from jsparse.expansion import KernelExpansion
from jsparse.machines import agop

N, M, D = 40, 7, 3
RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(N, D)), RNG.normal(size=(M, D))


def machine(kernel, outputs=(), dtype=np.float64):
    coefficients = np.random.default_rng(1).normal(size=(M, *outputs))
    return KernelExpansion(
        kernel, jnp.asarray(Z, dtype), jnp.asarray(coefficients, dtype), jnp.zeros(outputs, dtype)
    )


def by_differences(expansion, X, weights, step=1e-5):
    """Return the mean outer product of central differences, by a loop over rows."""
    total = np.zeros((D, D))
    for x, w in zip(X, weights, strict=True):
        slopes = np.stack(
            [
                np.atleast_1d(expansion((x + e)[None])[0] - expansion((x - e)[None])[0]) / 2 / step
                for e in step * np.eye(D)
            ]
        )
        total += w * slopes @ slopes.T
    return total / np.sum(weights)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.RBF(jnp.array([1.0, 0.5, 2.0])),
        pytest.param(kernels.Laplacian(1.1), marks=pytest.mark.slow),
        pytest.param(kernels.Polynomial(2, 0.3, 1.0), marks=pytest.mark.slow),
        kernels.Projected(kernels.RBF(1.0), jnp.asarray(RNG.normal(size=(2, D)))),
    ],
)
def test_agrees_with_finite_differences(kernel):
    expansion, weights = machine(kernel, (2,)), RNG.uniform(0, 2, N)
    expected = by_differences(expansion, X, weights)
    np.testing.assert_allclose(agop(expansion, X, weights), expected, rtol=1e-5, atol=1e-8)
    diagonal = agop(expansion, X, weights, diagonal=True)
    np.testing.assert_allclose(diagonal, np.diagonal(expected), rtol=1e-5, atol=1e-8)
    blocks = agop(expansion, X, weights, block_rows=7)
    np.testing.assert_allclose(blocks, agop(expansion, X, weights), rtol=1e-12)


def test_categories_count_by_the_difference_that_agreeing_makes():
    kernel = kernels.Mixed(kernels.RBF(1.2), (1,))
    rows = X.copy()
    rows[:, 1] = RNG.integers(0, 3, N)
    expansion = machine(kernel)
    codes = expansion.prototypes.at[:, 1].set(jnp.asarray(RNG.integers(0, 3, M), float))
    expansion = KernelExpansion(kernel, codes, expansion.coefficients, expansion.intercept)
    other = rows.copy()
    other[:, 1] = 99  # a category of no prototype
    change = np.asarray(expansion(rows) - expansion(other))
    product = agop(expansion, rows)
    np.testing.assert_allclose(product[1, 1], np.mean(change**2) / 2, rtol=1e-12)
    np.testing.assert_array_equal(np.asarray(product)[1, [0, 2]], 0)


def test_rows_of_weight_zero_are_absent_and_transformations_work():
    expansion = machine(kernels.RBF(1.0))
    rows, weights = np.vstack([X, np.full((2, D), 1e300)]), np.append(np.ones(N), [0, 0])
    np.testing.assert_allclose(agop(expansion, rows, weights), agop(expansion, X), rtol=1e-12)
    batch = jax.vmap(lambda X: agop(expansion, X, diagonal=True))(jnp.stack([X, 2 * X]))
    np.testing.assert_allclose(batch[0], agop(expansion, X, diagonal=True), rtol=1e-12)

    def trace(scale):
        return jnp.trace(jax.jit(agop)(expansion, scale * jnp.asarray(X)))

    step = 1e-6
    expected = (trace(1 + step) - trace(1 - step)) / 2 / step
    np.testing.assert_allclose(jax.grad(trace)(1.0), expected, rtol=1e-6)


def test_bad_arguments_are_named(as_users_call):
    expansion = machine(kernels.RBF(1.0))
    with pytest.raises(ValueError, match=r"X: expected shape \(n, 3\)"):
        agop(expansion, X[:, :2])
    with pytest.raises(ValueError, match="X: "):
        agop(expansion, np.full((2, D), np.nan))
    with pytest.raises(ValueError, match=r"weights: expected shape \(40,\)"):
        agop(expansion, X, np.ones(3))
