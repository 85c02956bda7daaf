"""Sparse large margin classifiers as a method: sharing, starts, repeated rows, bad settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.svm import SVC

import jsparse
from jsparse import _programs
from jsparse._status import CONVERGED
from jsparse.kernels import RBF
from jsparse.machines import few_prototypes, slmc
from jsparse.machines.direct_method import copies_apart
from jsparse.machines.method import Shape, TrainingRows
from jsparse.machines.rows import rows_of
from jsparse.scaling import Standardization

KEY = jax.random.key(0)


def three_classes(n=60):
    rng = np.random.default_rng(0)
    label = np.arange(n) % 3
    X = rng.standard_normal((n, 2)) + 2 * np.stack([label == 1, label == 2], axis=1)
    return jnp.asarray(X), jnp.asarray(label.astype(np.int32))


def test_rows_that_are_there_several_times_are_chosen_once():
    X = np.repeat(np.random.default_rng(0).standard_normal((10, 2)), 6, axis=0)
    scaling = Standardization(jnp.zeros(2), jnp.ones(2))
    rows = TrainingRows(jnp.asarray(X), np.arange(60) // 30, np.ones(60), scaling, 60)
    for selection in ("renyi", "uniform"):
        points = jsparse.SLMC(8, selection, starts=1).choose_points(KEY, RBF(1.0), rows)
        assert len(np.unique(np.asarray(points.X), axis=0)) == 8


def test_a_descent_as_users_compile_it_ends_at_the_same_machine(options_of_loops, monkeypatch):
    X, label = three_classes()
    y = jnp.where(label == 0, 1.0, -1.0)

    def fitted():
        few_prototypes._fit_arrays.clear_cache()  # compile again
        return slmc.fit(RBF(1.0), X[:3], 1.0, X, y).expansion(X)

    quickly_compiled = fitted()
    monkeypatch.setattr(_programs, "_LOOP_OPTIONS", options_of_loops)
    np.testing.assert_allclose(fitted(), quickly_compiled, rtol=1e-6)


@pytest.mark.slow
def test_copies_of_a_point_start_apart_and_the_descent_converges():
    # Six prototypes of four different rows; from copies no step would lower the objective.
    corners = np.array([[1, 3], [2, 1], [3, 3], [4, 1]])
    corners = (corners - corners.mean(axis=0)) / corners.std(axis=0)
    X, y = np.repeat(corners, 4, axis=0), np.repeat([-1.0, 1.0, -1.0, 1.0], 4)
    scaling = Standardization(jnp.zeros(2), jnp.ones(2))
    rows = TrainingRows(jnp.asarray(X), (y > 0).astype(np.int32), np.ones(16), scaling, 16)
    method = jsparse.SLMC(6, "uniform", starts=2)
    sets = np.split(np.asarray(method.choose_points(KEY, RBF(2.0), rows).X), 2)
    of_four, data = np.concatenate([corners, corners[:2]]), rows_of(jnp.asarray(X), jnp.asarray(y))
    for start in (*sets, copies_apart(of_four, np.array([0.1, 0.1]))):
        assert len(np.unique(start, axis=0)) == 6
        nearest = np.abs(start[:, None] - corners[None]).max(axis=2).min(axis=1)
        assert nearest.max() <= 0.2 + 1e-12
        assert int(method.fit(RBF(2.0), jnp.asarray(start), 10.0, data).statuses[0]) == CONVERGED
    # Copies of one point, along columns that vary only; zeros of both signs are the same.
    moved = copies_apart(np.array([[0.0, 1.0], [-0.0, 1.0], [0.0, 1.0]]), np.array([0.5, 0.0]))
    np.testing.assert_array_equal(moved, [[0.0, 1.0], [0.5, 1.0], [1.0, 1.0]])


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        (jsparse.SLMC, {"n_prototypes": 0}, "n_prototypes: expected a whole number between 1"),
        (jsparse.SLMC, {"n_prototypes": [4, 2]}, "n_prototypes: expected increasing"),
        (jsparse.SLMC, {"n_prototypes": 200}, "between 1 and the number of rows"),
        (jsparse.SLMC, {"selection": "center"}, "selection: expected 'k_means', 'renyi' or"),
        (jsparse.SLMC, {"sharing": "joint"}, "sharing: expected 'shared' or 'separate'"),
        (jsparse.SLMC, {"loss": "absolute"}, "loss: expected 'hinge' or 'squared_hinge'"),
        (jsparse.ReducedSVM, {"loss": "absolute"}, "loss: expected 'hinge' or 'squared_hinge'"),
        (jsparse.SLMC, {"tolerance": -1.0}, "tolerance: expected a number of at least 0"),
        (jsparse.SLMC, {"starts": 0}, "starts: expected a whole number between 1"),
        (jsparse.SparseRidge, {"sharing": "joint"}, "sharing: expected 'shared' or 'separate'"),
        (jsparse.SparseFisher, {"loss": "log"}, "loss: expected 'hinge' or 'squared_hinge'"),
        (jsparse.ReducedSVM, {"penalty": "none"}, "penalty: expected 'norm' or 'coefficients'"),
        (jsparse.ReducedSetSVM, {"tolerance": -1.0}, "tolerance: expected a number of at least"),
        (jsparse.SLMC, {"max_iterations": 0}, "max_iterations: expected a whole number between 1"),
        (jsparse.RVM, {"max_prototypes": 0}, "max_prototypes: expected a whole number between 1"),
        (jsparse.RVM, {"candidates": 0}, "candidates: expected a whole number between 1"),
        (jsparse.RVM, {"tolerance": -1.0}, "tolerance: expected a number of at least 0"),
        (jsparse.RVM, {"max_iterations": 0}, "max_iterations: expected a whole number between 1"),
        (jsparse.RVM, {"likelihood": "poisson"}, "likelihood: expected 'auto', 'normal' or"),
    ],
)
def test_bad_settings_are_told(kind, options, match, as_users_call):
    def resolve():
        method = kind(**options)
        method.check("classification")
        return method.resolve(Shape(60, 60, 40, 2, 3, False))

    with pytest.raises(ValueError, match=match):
        resolve()


def test_the_penalty_of_coefficients_is_that_of_a_linear_machine():
    """RSVM: LIBSVM's linear machine on the columns of the kernel."""
    X, label = three_classes(40)
    y = jnp.where(label == 1, 1.0, -1.0)
    machine = jsparse.ReducedSVM(4, penalty="coefficients").fit(RBF(1.0), X[:4], 3.0, rows_of(X, y))
    columns = np.asarray(RBF(1.0).cross_gram(X, X[:4]))
    peer = SVC(kernel="linear", C=3.0, tol=1e-10).fit(columns, y)
    np.testing.assert_allclose(machine.expansion.coefficients, peer.coef_[0], rtol=1e-4)
    np.testing.assert_allclose(machine.expansion(X), peer.decision_function(columns), atol=1e-4)
