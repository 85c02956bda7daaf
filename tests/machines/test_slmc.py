"""Sparse large margin classifiers as a method: sharing, starts, repeated rows, bad settings."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.svm import SVC, OneClassSVM

import jsparse
from jsparse.estimators import SparseLargeMarginClassifier, SparseOneClassSVM
from jsparse.kernels import RBF
from jsparse.machines.method import TrainingRows
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
    start = jsparse.ReducedSVM(4).fit(RBF(1.0), X[:4], 10.0, X, label, code=code)
    found = jsparse.SLMC(4, sharing=sharing).fit(RBF(1.0), X[:4], 10.0, X, label, code=code)
    Z, beta = found.expansion.prototypes, np.asarray(found.expansion.coefficients)
    assert beta.shape == ((4, 3) if sharing == "shared" else (12, 3))
    # By NumPy, from the machine itself.
    K = np.exp(-np.square(np.asarray(Z)[:, None] - np.asarray(Z)[None]).sum(-1) / 2)
    y = np.asarray(code.matrix)[np.asarray(label)]
    short = np.maximum(1 - y * np.asarray(found.expansion(X)), 0)
    objective = np.sum(beta * (K @ beta)) / 2 + 10 * short.sum()
    ends = np.take_along_axis(
        np.atleast_2d(found.history), np.atleast_1d(found.steps)[:, None], axis=1
    )
    np.testing.assert_allclose(objective, ends.sum(), rtol=1e-5)
    starts = np.atleast_2d(found.history)[:, 0].sum()
    np.testing.assert_allclose(starts, start.objective, rtol=1e-7)
    assert objective < 0.8 * starts
    if sharing == "separate":  # each problem's machine is made of its own prototypes
        assert (np.count_nonzero(beta, axis=1) == 1).all()


def test_rows_that_are_there_several_times_are_chosen_once():
    X = np.repeat(np.random.default_rng(0).standard_normal((10, 2)), 6, axis=0)
    scaling = Standardization(jnp.zeros(2), jnp.ones(2))
    rows = TrainingRows(jnp.asarray(X), np.arange(60) // 30, np.ones(60), scaling, 60)
    for selection in ("renyi", "uniform"):
        found = jsparse.SLMC(8, selection, starts=1).points(KEY, RBF(1.0), rows)
        assert len(np.unique(np.asarray(found.X), axis=0)) == 8


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        (jsparse.SLMC, {"n_prototypes": 0}, "n_prototypes: expected a whole number between 1"),
        (jsparse.SLMC, {"n_prototypes": [2, 4]}, "n_prototypes: expected a whole number"),
        (jsparse.SLMC, {"n_prototypes": 200}, "between 1 and the number of rows"),
        (jsparse.SLMC, {"selection": "center"}, "selection: expected one of"),
        (jsparse.SLMC, {"sharing": "joint"}, "sharing: expected 'shared' or 'separate'"),
        (jsparse.SLMC, {"loss": "absolute"}, "loss: expected 'hinge' or 'squared_hinge'"),
        (jsparse.ReducedSVM, {"loss": "absolute"}, "loss: expected 'hinge' or 'squared_hinge'"),
        (jsparse.SLMC, {"tolerance": -1.0}, "tolerance: expected a number of at least 0"),
        (jsparse.SLMC, {"starts": 0}, "starts: expected a whole number between 1"),
        (jsparse.SparseRidge, {"sharing": "joint"}, "sharing: expected 'shared' or 'separate'"),
        (jsparse.SparseFisher, {"loss": "log"}, "loss: expected 'hinge' or 'squared_hinge'"),
        (jsparse.ReducedSVM, {"penalty": "none"}, "penalty: expected 'norm' or 'coefficients'"),
        (jsparse.ReducedSetSVM, {"tolerance": -1.0}, "tolerance: expected a number of at least"),
        (jsparse.SLMC, {"max_steps": 0}, "max_steps: expected a whole number between 1"),
    ],
)
def test_bad_settings_are_told(kind, options, match, as_users_call):
    X, y = (np.asarray(a) for a in three_classes())
    with pytest.raises(ValueError, match=match):
        jsparse.train(X, y, task="classification", key=0, method=kind(**options))


def two_classes(dtype="float64"):
    X, label = three_classes(40)
    return X.astype(dtype), jnp.where(label == 1, 1, -1).astype(dtype)


@pytest.mark.slow
def test_several_starts_are_each_a_start_and_the_first_is_the_surrogates():
    X, y = two_classes()
    rows = TrainingRows(X, np.asarray(y > 0).astype(int), np.ones(40), jsparse.standardize(X), 40)
    method = jsparse.SLMC(4, "uniform", starts=2, max_steps=3)
    points = method.points(KEY, RBF(1.0), rows).X
    assert points.shape == (8, 2)
    assert all(len(np.unique(start, axis=0)) == 4 for start in np.asarray(points).reshape(2, 4, 2))
    ends = [
        jsparse.SLMC(4, starts=1, max_steps=3).fit(RBF(1.0), start, 10.0, X, y)
        for start in (points[:4], points[4:])
    ]
    both = method.fit(RBF(1.0), points, 10.0, X, y)
    last = [float(one.history[int(one.steps)]) for one in (*ends, both)]
    np.testing.assert_allclose(last[2], min(last[:2]), rtol=1e-9)
    first = method.surrogate().fit(RBF(1.0), points, 10.0, X, y)
    np.testing.assert_allclose(first.objective, ends[0].history[0], rtol=1e-9)


@pytest.mark.slow
def test_the_penalty_of_coefficients_is_that_of_a_linear_machine():
    """RSVM: LIBSVM's linear machine on the columns of the kernel."""
    X, y = two_classes()
    found = jsparse.ReducedSVM(4, penalty="coefficients").fit(RBF(1.0), X[:4], 3.0, X, y)
    columns = np.asarray(RBF(1.0).cross_gram(X, X[:4]))
    peer = SVC(kernel="linear", C=3.0, tol=1e-10).fit(columns, y)
    np.testing.assert_allclose(found.expansion.coefficients, peer.coef_[0], rtol=1e-4)
    np.testing.assert_allclose(found.expansion(X), peer.decision_function(columns), atol=1e-4)


@pytest.mark.slow
def test_fisher_discriminants_and_ridge_regression_lower_what_they_start_from():
    X, label = three_classes()
    code = output_code("one_versus_rest", 3).astype(X.dtype)
    given = (RBF(1.0), X[:4], 10.0, X, label)
    for sharing in ("shared", "separate"):
        for kind in (jsparse.SparseFisher, jsparse.SparseRidge):
            found = kind(4, sharing=sharing).fit(*given, code=code)
            history, steps = np.atleast_2d(found.history), np.atleast_1d(found.steps)
            assert (np.take_along_axis(history, steps[:, None], 1)[:, 0] < history[:, 0]).all()
            decided = np.asarray(found.expansion(X)).argmax(axis=1)
            assert (decided == np.asarray(label)).mean() > 0.8
            svm = jsparse.ReducedSVM(4).fit(
                RBF(1.0), found.expansion.prototypes, 10.0, X, label, code=code
            )
            if kind is jsparse.SparseFisher and sharing == "shared":
                np.testing.assert_allclose(found.expansion(X), svm.expansion(X), atol=1e-6)


@pytest.mark.slow
def test_a_part_of_the_support_vectors_of_libsvm(as_users_call):
    X, y = (np.asarray(a) for a in two_classes())
    model = SparseLargeMarginClassifier(0.25, C=3.0, lengthscale=1.5, cv=3, random_state=0)
    model.fit(X, y)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    count = len(SVC(C=3.0, gamma=1 / (2 * 1.5**2)).fit(scaled, y).support_)
    assert len(model.prototypes_) == round(0.25 * count)
    for part in (0.0, 1.0, 1.5):
        with pytest.raises(ValueError, match="n_prototypes: expected a whole number, a part"):
            SparseLargeMarginClassifier(part).fit(X, y)


def test_outliers_as_by_libsvm(as_users_call):
    """With as many prototypes as rows it is scikit-learn's machine."""
    X = np.random.default_rng(0).standard_normal((24, 2)) * np.array([1.0, 5.0])
    model = SparseOneClassSVM(24, nu=0.3, starts=1, max_iter=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jsparse.ConvergenceWarning)
        model.fit(X)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    peer = OneClassSVM(nu=0.3, gamma=0.5, tol=1e-10).fit(scaled)
    new = np.array([[0.0, 0.0], [4.0, 0.0], [0.5, -3.0]])
    expected = peer.decision_function((new - X.mean(axis=0)) / X.std(axis=0)) / (0.3 * 24)
    np.testing.assert_allclose(model.decision_function(new), expected, atol=1e-4)
    np.testing.assert_array_equal(model.predict(new), np.where(expected >= 0, 1, -1))
    np.testing.assert_allclose(model.score_samples(new) - model.offset_, expected, atol=1e-4)
    for options, match in (
        ({"nu": 1.0}, "nu: expected a number above 0 and below 1"),
        ({"nu": 0.0}, "nu: expected a number above 0"),
        ({"n_prototypes": 0}, "n_prototypes: expected a whole number between 1 and"),
        ({"n_prototypes": "few"}, "n_prototypes: expected 'auto' or a number"),
        ({"kernel": "cosine"}, "kernel: expected one of"),
        ({"lengthscale": "auto"}, "lengthscale: expected 'scale' or numbers"),
    ):
        with pytest.raises(ValueError, match=match):
            SparseOneClassSVM(**options).fit(X)
