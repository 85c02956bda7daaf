"""The greedy sparse SVM against loops: prototypes in order, and the machine of every size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import sparse_svm as reference
from reference.kernels import gaussian
from sklearn.datasets import load_iris

from jsparse._status import CONVERGED
from jsparse.kernels import RBF
from jsparse.machines import spsvm

C = 5.0


def two_iris_species(seed, dtype="float64"):
    """Return forty standardised flowers of two species that overlap, and row weights."""
    X, species = load_iris(return_X_y=True)
    random = np.random.default_rng(seed)
    rows = 50 + random.permutation(100)[:40]
    X, y = X[rows], np.where(species[rows] == 2, 1.0, -1.0)
    X, w = (X - X.mean(axis=0)) / X.std(axis=0), random.uniform(0.3, 2.0, 40)
    return X.astype(dtype), y.astype(dtype), w.astype(dtype)


def both_paths(candidates, X, y, w, seed, max_prototypes, subset, growth):
    """Return the reference's problem, the package's path and the reference's path."""
    key = jax.random.key(seed)
    options = {"max_prototypes": max_prototypes, "subset": subset, "growth": growth}
    Z, rows, signs, weights = (a.astype(float) for a in (candidates, X, y, w))
    problem = reference.Problem(gaussian(rows, Z), gaussian(Z, Z), signs, weights, C)
    # The random numbers by which each step of the package draws its subset.
    priorities = [
        jax.random.uniform(jax.random.fold_in(key, step), (len(candidates),), jnp.float32)
        for step in range(2 * len(candidates))
    ]
    expected = reference.path(problem, priorities=np.asarray(priorities), **options)
    arrays = [jnp.asarray(a) for a in (X, y, w)]
    kernel = RBF(jnp.ones((), X.dtype))
    fitted = spsvm.fit(kernel, jnp.asarray(candidates), C, *arrays, key=key, **options)
    return problem, fitted, expected


def assert_same_path(problem, fitted, expected, near=1e-8):
    support, machines = expected
    fitted = jax.device_get(fitted)  # each entry that is taken on the device is a program
    length = int(fitted.info["path_length"][0])
    assert np.asarray(fitted.support[0, :length]).tolist() == support
    for k, machine in enumerate(machines):
        beta = np.asarray(fitted.coefficients[0, k, : k + 1, 0], float)
        b = float(fitted.intercepts[0, k, 0])
        largest = np.abs(machine.coefficients).max()
        np.testing.assert_allclose(beta, machine.coefficients, rtol=0, atol=near * largest)
        np.testing.assert_allclose(b, machine.intercept, rtol=0, atol=near * largest)
        objective = reference.objective(problem, support[: k + 1], beta, b)
        np.testing.assert_allclose(objective, machine.objective, rtol=near / 100)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("seed", "subset", "growth"), [(0, 40, 1.0), (1, 7, 1.0), (2, 7, 1.5)])
def test_prototypes_and_machines_match_the_reference(seed, subset, growth, dtype):
    X, y, w = two_iris_species(seed, dtype)
    paths = both_paths(X, X, y, w, seed, max_prototypes=8, subset=subset, growth=growth)
    assert_same_path(*paths, near={"float64": 1e-8, "float32": 1e-3}[dtype])


@pytest.mark.slow
def test_a_repeated_candidate_is_selected_once():
    """The path ends, with all coefficients optimised, when no other candidate is free."""
    X, y, w = two_iris_species(4)
    candidates = np.concatenate([X[:6], X[:6]])
    paths = both_paths(candidates, X, y, w, 4, max_prototypes=12, subset=4, growth=3.0)
    assert_same_path(*paths)
    assert paths[1].info["path_length"].tolist() == [6]
    assert int(paths[1].status) == CONVERGED
