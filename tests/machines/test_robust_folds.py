"""Held-out values with Huber's loss against a separate fit without each fold."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsparse import Robust
from jsparse.kernels import RBF
from jsparse.machines.method import Method
from jsparse.machines.rows import rows_of
from jsparse.multiclass import output_code
from jsparse.validation.folds import plain_folds

KERNEL, FOLDS, N_C = RBF(1.2), 4, 3


class ValuesOfFolds(eqx.Module):
    """Returns no sums, and the values of every machine, placed by its `C`."""

    wanted: None = None

    def __call__(self, rows, values, which):
        kept = jnp.zeros((len(values), N_C, values.shape[2]), values.dtype)
        return jnp.zeros(values.shape[1]), kept.at[:, which.C].set(values)

    def over_C(self, kept):
        return jnp.sum(kept, axis=0)


def both(rows, prototypes, C):
    """Return values and stop codes of the folds: by few steps, and by fits of all other rows."""
    folds, method = plain_folds(0, len(rows), FOLDS), Robust(len(prototypes))
    arguments = KERNEL, prototypes, C, rows, folds, ValuesOfFolds()
    fast = jax.jit(lambda: method.held_out(*arguments))()
    slow = jax.jit(lambda: Method.held_out(method, *arguments))()
    return fast, slow


def outliers(dtype, n=90):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 2)).astype(dtype)
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(n).astype(dtype)
    y[::11] += 50 * rng.standard_normal(len(y[::11])).astype(dtype)
    return jnp.asarray(X), jnp.asarray(y)


@pytest.mark.parametrize(
    ("dtype", "unit"), [("float64", 1e-6), pytest.param("float32", 1e6, marks=pytest.mark.slow)]
)
def test_values_are_those_of_fits_to_all_other_rows(dtype, unit):
    X, y = outliers(dtype)
    weights = jnp.asarray(np.arange(90) % 5 != 3, dtype) * 2
    y = unit * jnp.where(weights > 0, y, 1e3)
    C = jnp.asarray([0.03, 1.0, 100.0], dtype)
    fast, slow = both(rows_of(X, y, weights), X[:12], C)
    np.testing.assert_array_equal(fast.statuses, slow.statuses)
    present = plain_folds(0, 90, FOLDS).gather(weights) > 0
    difference = np.asarray(fast.kept - slow.kept)[..., 0][np.asarray(present)]
    threshold = 0.2 * unit
    # In float32 the interior-point method ends at a gap of 3e-4.
    assert np.abs(difference).max() < (3e-3 if dtype == "float64" else 1e-2) * threshold


@pytest.mark.slow
def test_each_binary_problem_has_its_values():
    X, _ = outliers("float64")
    label = jnp.asarray(np.argmax(np.asarray(X @ np.array([[1, -1, 0.3], [0.5, 1, -1]])), axis=1))
    code = output_code("one_versus_one", 3).astype(X.dtype)
    fast, slow = both(rows_of(X, label, code=code), X[:8], jnp.asarray([0.1, 1.0, 10.0]))
    np.testing.assert_allclose(fast.kept, slow.kept, atol=2e-3)
    np.testing.assert_array_equal(fast.statuses, slow.statuses)
