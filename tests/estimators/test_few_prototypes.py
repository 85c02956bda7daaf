"""Estimators of few prototypes, against LIBSVM's machines."""

import warnings

import numpy as np
import pytest
from sklearn.svm import SVC, OneClassSVM

import jsparse
from jsparse.estimators import SparseLargeMarginClassifier, SparseOneClassSVM


@pytest.mark.slow
def test_a_part_of_the_support_vectors_of_libsvm(as_users_call):
    rng, label = np.random.default_rng(0), np.arange(40) % 3
    X = rng.standard_normal((40, 2)) + 2 * np.stack([label == 1, label == 2], axis=1)
    y = np.where(label == 1, 1, -1)
    model = SparseLargeMarginClassifier(0.25, C=3.0, lengthscale=1.5, cv=3, random_state=0)
    model.fit(X, y)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    count = len(SVC(C=3.0, gamma=1 / (2 * 1.5**2)).fit(scaled, y).support_)
    assert len(model.prototypes_) == round(0.25 * count)
    for part in (0.0, 1.0, 1.5):
        with pytest.raises(ValueError, match="expected a whole number, or a fraction"):
            SparseLargeMarginClassifier(part).fit(X, y)


@pytest.mark.slow
def test_outliers_as_by_libsvm(as_users_call):
    """With as many prototypes as rows, the machine is scikit-learn's."""
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
        ({"n_prototypes": "auto"}, "n_prototypes: expected a whole number"),
        ({"n_prototypes": [3, 5]}, "n_prototypes: expected a whole number"),
        ({"kernel": "cosine"}, "kernel: expected one of"),
        ({"lengthscale": "auto"}, "lengthscale: expected 'scale' or numbers"),
    ):
        with pytest.raises(ValueError, match=match):
            SparseOneClassSVM(**options).fit(X)
