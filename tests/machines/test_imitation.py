"""Few prototypes are moved until they imitate the values of a large machine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.kernels import gaussian as gram

from jsparse.expansion import KernelExpansion
from jsparse.kernels import RBF
from jsparse.kernels.mixed import Mixed
from jsparse.machines.imitation import imitate


def table(n, seed=0, d=2):
    return np.random.default_rng(seed).standard_normal((n, d))


def difference(Z, Zt, bt, X, lengthscale):
    """Return the least mean squared difference from the teacher on `X`, by least squares."""
    truth = gram(X, Zt, lengthscale) @ bt
    A = np.append(gram(X, Z, lengthscale), np.ones((len(X), 1)), axis=1)
    return np.mean((A @ np.linalg.lstsq(A, truth, rcond=None)[0] - truth) ** 2)


@pytest.mark.slow
def test_the_difference_from_the_teacher_falls_on_new_rows_too():
    Zt, bt = table(40, 1), np.random.default_rng(2).standard_normal(40)
    teacher = KernelExpansion(RBF(1.5), jnp.asarray(Zt), jnp.asarray(bt), jnp.asarray(0.3))
    X, new = table(90, 3), 0.8 * table(60, 4)
    start = jnp.asarray(X[:6])
    result = imitate(teacher, start, jnp.asarray(X), jax.random.key(0))
    assert np.nanmin(result.history) < 0.2 * result.history[0]
    before, after = (difference(np.asarray(Z), Zt, bt, new, 1.5) for Z in (start, result.Z))
    assert after < 0.3 * before
    again = imitate(teacher, start, jnp.asarray(X), jax.random.key(0))
    np.testing.assert_array_equal(again.Z, result.Z)


@pytest.mark.slow
def test_codes_of_categories_do_not_move():
    codes = np.random.default_rng(5).integers(0, 3, 60)
    X = np.column_stack([table(60, 6, 1), codes])
    kernel = Mixed(RBF(jnp.ones(2)), (1,))
    teacher = KernelExpansion(kernel, jnp.asarray(X[:30]), jnp.ones(30), jnp.zeros(()))
    Z = np.asarray(imitate(teacher, jnp.asarray(X[:5]), jnp.asarray(X), jax.random.key(0)).Z)
    np.testing.assert_array_equal(Z[:, 1], X[:5, 1])
    assert np.abs(Z[:, 0] - X[:5, 0]).max() > 1e-3
