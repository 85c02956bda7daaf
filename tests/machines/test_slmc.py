"""Sparse large margin classifiers as a method: sharing, starts, repeated rows, bad settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.svm import SVC

import jsparse
from jsparse._status import CONVERGED
from jsparse.kernels import RBF
from jsparse.machines.few_prototypes import copies_apart
from jsparse.machines.method import Shape, TrainingRows
from jsparse.machines.rows import rows_of
from jsparse.multiclass import output_code
from jsparse.scaling import Standardization

KEY = jax.random.key(0)


def three_classes(n=60):
    rng = np.random.default_rng(0)
    label = np.arange(n) % 3
    X = rng.standard_normal((n, 2)) + 2 * np.stack([label == 1, label == 2], axis=1)
    return jnp.asarray(X), jnp.asarray(label.astype(np.int32))


@pytest.mark.parametrize("sharing", [pytest.param("shared", marks=pytest.mark.slow), "separate"])
def test_a_descent_lowers_the_objective_of_the_machine_it_starts_from(sharing):
    X, label = three_classes()
    code = output_code("one_versus_rest", 3).astype(X.dtype)
    arguments = (RBF(1.0), X[:4], 10.0, rows_of(X, label, code=code))
    start, moved = (
        m.fit(*arguments) for m in (jsparse.ReducedSVM(4), jsparse.SLMC(4, sharing=sharing))
    )
    history, steps = np.atleast_2d(moved.info["history"]), np.atleast_1d(moved.info["steps"])
    Z, beta = moved.expansion.prototypes, np.asarray(moved.expansion.coefficients)
    assert beta.shape == ((4, 3) if sharing == "shared" else (12, 3))
    # By NumPy, from the machine itself.
    K = np.exp(-np.square(np.asarray(Z)[:, None] - np.asarray(Z)[None]).sum(-1) / 2)
    y = np.asarray(code.matrix)[np.asarray(label)]
    short = np.maximum(1 - y * np.asarray(moved.expansion(X)), 0)
    objective = np.sum(beta * (K @ beta)) / 2 + 10 * short.sum()
    ends = np.take_along_axis(history, steps[:, None], axis=1)
    np.testing.assert_allclose(objective, ends.sum(), rtol=1e-5)
    starts = history[:, 0].sum()
    np.testing.assert_allclose(starts, start.info["objective"], rtol=1e-7)
    assert objective < 0.8 * starts
    if sharing == "separate":  # each problem's machine is made of its own prototypes
        assert (np.count_nonzero(beta, axis=1) == 1).all()


def test_rows_that_are_there_several_times_are_chosen_once():
    X = np.repeat(np.random.default_rng(0).standard_normal((10, 2)), 6, axis=0)
    scaling = Standardization(jnp.zeros(2), jnp.ones(2))
    rows = TrainingRows(jnp.asarray(X), np.arange(60) // 30, np.ones(60), scaling, 60)
    for selection in ("renyi", "uniform"):
        points = jsparse.SLMC(8, selection, starts=1).choose_points(KEY, RBF(1.0), rows)
        assert len(np.unique(np.asarray(points.X), axis=0)) == 8


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
    ],
)
def test_bad_settings_are_told(kind, options, match, as_users_call):
    def resolve():
        method = kind(**options)
        method.check("classification")
        return method.resolve(Shape(60, 60, 40, 2, 3, False))

    with pytest.raises(ValueError, match=match):
        resolve()


def two_classes(dtype="float64"):
    X, label = three_classes(40)
    return X.astype(dtype), jnp.where(label == 1, 1, -1).astype(dtype)


@pytest.mark.slow
def test_several_starts_are_each_a_start_and_the_first_is_the_surrogates():
    X, y = two_classes()
    rows = TrainingRows(X, np.asarray(y > 0).astype(int), np.ones(40), jsparse.standardize(X), 40)
    method = jsparse.SLMC(4, "uniform", starts=2, max_iterations=3)
    points = method.choose_points(KEY, RBF(1.0), rows).X
    assert points.shape == (8, 2)
    assert all(len(np.unique(start, axis=0)) == 4 for start in np.asarray(points).reshape(2, 4, 2))
    ends = [
        jsparse.SLMC(4, starts=1, max_iterations=3).fit(RBF(1.0), start, 10.0, rows_of(X, y))
        for start in (points[:4], points[4:])
    ]
    both = method.fit(RBF(1.0), points, 10.0, rows_of(X, y))
    last = [float(one.info["history"][int(one.info["steps"])]) for one in (*ends, both)]
    np.testing.assert_allclose(last[2], min(last[:2]), rtol=1e-9)
    surrogate = jsparse.ReducedSVM(4, "uniform", starts=2)
    first = surrogate.fit(RBF(1.0), points, 10.0, rows_of(X, y))
    np.testing.assert_allclose(first.info["objective"], ends[0].info["history"][0], rtol=1e-9)


@pytest.mark.slow
def test_the_penalty_of_coefficients_is_that_of_a_linear_machine():
    """RSVM: LIBSVM's linear machine on the columns of the kernel."""
    X, y = two_classes()
    machine = jsparse.ReducedSVM(4, penalty="coefficients").fit(RBF(1.0), X[:4], 3.0, rows_of(X, y))
    columns = np.asarray(RBF(1.0).cross_gram(X, X[:4]))
    peer = SVC(kernel="linear", C=3.0, tol=1e-10).fit(columns, y)
    np.testing.assert_allclose(machine.expansion.coefficients, peer.coef_[0], rtol=1e-4)
    np.testing.assert_allclose(machine.expansion(X), peer.decision_function(columns), atol=1e-4)


@pytest.mark.slow
def test_fisher_discriminants_and_ridge_regression_lower_what_they_start_from():
    X, label = three_classes()
    code = output_code("one_versus_rest", 3).astype(X.dtype)
    rows = rows_of(X, label, code=code)
    for sharing in ("shared", "separate"):
        for kind in (jsparse.SparseFisher, jsparse.SparseRidge):
            machine = kind(4, sharing=sharing).fit(RBF(1.0), X[:4], 10.0, rows)
            history, steps = (np.asarray(machine.info[name]) for name in ("history", "steps"))
            history, steps = np.atleast_2d(history), np.atleast_1d(steps)
            assert (np.take_along_axis(history, steps[:, None], 1)[:, 0] < history[:, 0]).all()
            decided = np.asarray(machine.expansion(X)).argmax(axis=1)
            assert (decided == np.asarray(label)).mean() > 0.8
            svm = jsparse.ReducedSVM(4).fit(RBF(1.0), machine.expansion.prototypes, 10.0, rows)
            if kind is jsparse.SparseFisher and sharing == "shared":
                np.testing.assert_allclose(machine.expansion(X), svm.expansion(X), atol=1e-6)
