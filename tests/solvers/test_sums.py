"""Sums over blocks of rows."""

import jax
import jax.numpy as jnp
import numpy as np

from jsparse._blocks import sum_row_blocks
from jsparse.features import Linear
from jsparse.normal_equations import accumulate


def test_the_error_of_a_sum_does_not_grow_with_the_number_of_blocks():
    x = np.full(40_000, 0.1, np.float32)
    w = jnp.ones(len(x), jnp.float32)

    @jax.jit
    def sums(x):
        zero = jnp.zeros((), x.dtype)
        return sum_row_blocks(lambda x, w: jnp.sum(x * w), (x, w), zero, 4)

    blocks = np.add.reduce(x.reshape(-1, 4), axis=1)
    plain = blocks.cumsum(dtype=np.float32)[-1]  # one block after another
    exact = x.sum(dtype=float)
    assert abs(float(sums(x)) / exact - 1) < 1.2e-7
    assert abs(float(plain) / exact - 1) > 1e-6
    np.testing.assert_array_equal(jax.grad(sums)(x), w)
    np.testing.assert_array_equal(jax.jvp(sums, (x,), (w,))[1], len(x))
    assert np.isnan(sums(x * np.nan))
    assert np.isposinf(sums(np.full_like(x, 1e35)))  # as with one block


def test_small_blocks_do_not_spoil_normal_equations_in_float32():
    X = np.random.default_rng(0).uniform(1, 2, (40_000, 3)).astype(np.float32)
    features = Linear(jnp.zeros(3, jnp.float32))
    w = jnp.ones(len(X), jnp.float32)
    equations = accumulate(features, jnp.asarray(X), jnp.asarray(X[:, 0]), w, block_rows=16)
    np.testing.assert_allclose(equations.gram, X.T.astype(float) @ X, rtol=2e-7)
    np.testing.assert_allclose(equations.cross, X.T.astype(float) @ X[:, 0], rtol=2e-7)
