"""`partial_fit` against dense solves of all rows, written with loops in NumPy."""

import copy
import pickle

import jax
import numpy as np
import pytest
from reference.fixed_size import nystroem, ridge
from sklearn.base import clone

from jsparse import NumericalError
from jsparse.compilation import count_compilations
from jsparse.estimators import FixedSizeLSSVMClassifier, FixedSizeLSSVMRegressor
from jsparse.multiclass import output_code

pytestmark = pytest.mark.usefixtures("jax_in_float32")
OPTIONS = {
    "n_prototypes": 12,
    "lengthscale": 1.0,
    "C": 5.0,
    "selection": "uniform",
    "cv": 3,
    "random_state": 0,
}
ONE = np.ones(50)
LEFT_OUT = np.array([[1.0, 1, 0], [-1, 1, 1], [0, -1, 1], [-1, 0, -1]])


def rows(k=None, n=100, seed=0):
    """Return inputs in different units, targets (names of classes if `k` is given) and weights.

    The first weights do not depend on `n`. So batches with equal numbers of rows have equal numbers
    of rows with weight too, and tests share their programs.
    """
    w = np.random.default_rng([seed, 1]).choice([0.0, 1.0, 2.5], n)
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(n)
    if k is not None:
        edges = np.quantile(y, np.arange(1, k) / k)
        y = np.array(["red", "green", "blue", "grey"])[np.searchsorted(edges, y)]
    return X * [1.0, 10.0, 0.1] + [0.0, 5.0, 0.0], y, w


def dense(model, first, weights_of_first, X, target, weights, X_new):
    """Return values of a dense solve of all rows; scaling and prototypes come from the first."""
    w = weights_of_first / weights_of_first.sum()
    mean = w @ first
    sd = np.sqrt(w @ (first - mean) ** 2)
    Z = (first[model.prototype_indices_] - mean) / sd
    Phi, new = (nystroem((x - mean) / sd, Z, OPTIONS["lengthscale"]) for x in (X, X_new))
    solution = ridge(Phi, target, OPTIONS["C"], 0.0, weights)
    return new @ solution[:-1] + solution[-1]


def split(X, y, w):
    return (X[:50], y[:50], w[:50]), (X[50:], y[50:], w[50:])


@jax.jit
def values_of(expansion, X):
    return expansion(X)


def values(model, X):
    with jax.enable_x64(True):
        return np.asarray(values_of(model.expansion_, X))


def test_regression_is_the_dense_solve_of_all_rows():
    X, y, w = rows()
    (A, yA, wA), (B, yB, wB) = split(X, y, w)
    X_new = rows(seed=1)[0][:20]
    after_fit = FixedSizeLSSVMRegressor(**OPTIONS).fit(A, yA, wA).partial_fit(B, yB, wB)
    from_start = FixedSizeLSSVMRegressor(**OPTIONS).partial_fit(A, yA, wA).partial_fit(B, yB, wB)
    expected = dense(after_fit, A, wA, X, y, w, X_new)
    np.testing.assert_allclose(after_fit.predict(X_new), expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(from_start.predict(X_new), after_fit.predict(X_new))
    without = FixedSizeLSSVMRegressor(**OPTIONS).fit(A, yA, wA)
    assert np.abs(without.predict(X_new) - expected).max() > 1e-2


def test_several_targets_are_the_dense_solve_of_each():
    X, y, w = rows()
    Y = np.stack([y, 1000 * np.cos(y) + 5e4], axis=1)
    (A, yA, wA), (B, yB, wB) = split(X, Y, w)
    X_new = rows(seed=1)[0][:20]
    model = FixedSizeLSSVMRegressor(**OPTIONS).fit(A, yA, wA).partial_fit(B, yB, wB)
    predicted = model.predict(X_new)
    for j, target in enumerate(Y.T):
        expected = dense(model, A, wA, X, target, w, X_new)
        np.testing.assert_allclose(predicted[:, j], expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match=r"y: expected shape .*, as in the first call"):
        model.partial_fit(B, yB[:, 0], wB)
    with pytest.raises(ValueError, match=r"y: expected shape .*, as in the first call"):
        model.partial_fit(B, yB[:, [0, 1, 1]], wB)
    np.testing.assert_array_equal(model.predict(X_new), predicted)


FAST = [("two", False), ("two", True), ("left_out", True)]


@pytest.mark.parametrize(
    ("k", "scheme", "unseen"),
    [
        pytest.param(
            2 if name == "two" else 4,
            {"two": "one_versus_rest", "left_out": LEFT_OUT}.get(name, name),
            unseen,
            id=f"{name}-{unseen}",
            marks=() if (name, unseen) in FAST else pytest.mark.slow,
        )
        for name in ("two", "one_versus_rest", "one_versus_one", "left_out")
        for unseen in (False, True)
    ],
)
def test_classification_is_the_dense_solve_of_every_problem(k, scheme, unseen):
    X, y, w = rows(k)
    if unseen and k == 4:  # the first batch has two classes of four: one pair has no rows at all
        early = np.isin(y, ["blue", "red"])
        X, y = (np.concatenate([a[early], a[~early]]) for a in (X, y))
    (A, yA, wA), (B, yB, wB) = split(X, y, w)
    factor = {"red": 3.0, "green": 0.5}
    model = FixedSizeLSSVMClassifier(**OPTIONS, multiclass=scheme, class_weight=factor)
    model.partial_fit(A, yA, sample_weight=wA, classes=np.unique(y)[::-1])
    before = model.predict(X)
    assert set(before) <= set(yA)
    model.partial_fit(B, yB, sample_weight=wB)
    np.testing.assert_array_equal(model.classes_, np.unique(y))
    numbers = np.searchsorted(model.classes_, y)
    each = np.array([factor.get(label, 1.0) for label in y])
    X_new = rows(seed=1)[0][:20]
    matrix = output_code(scheme, k).matrix
    expected = []
    for column in matrix.T:
        target = column[numbers]
        w_all = w * each * np.abs(target)
        expected.append(dense(model, A, wA * each[:50], X, target, w_all, X_new))
    expected = np.stack(expected, axis=1)
    got = values(model, X_new).reshape(len(X_new), -1)
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)
    p = model.predict_proba(X_new)
    np.testing.assert_array_equal(model.classes_[p.argmax(axis=1)], model.predict(X_new))


@pytest.mark.parametrize("k", [None, pytest.param(4, marks=pytest.mark.slow)])
def test_rows_in_any_order_and_batches_of_any_size(k):
    X, y, w = rows(k)
    Machine = FixedSizeLSSVMRegressor if k is None else FixedSizeLSSVMClassifier
    start = Machine(**OPTIONS).fit(X[:50], y[:50], w[:50])
    w[50:] += 0.5
    at_once = copy.deepcopy(start).partial_fit(X[50:], y[50:], sample_weight=w[50:])
    singly = copy.deepcopy(start)
    for i in np.random.default_rng(0).permutation(np.arange(50, len(X))):
        singly.partial_fit(X[i : i + 1], y[i : i + 1], sample_weight=w[i : i + 1])
    np.testing.assert_allclose(values(singly, X), values(at_once, X), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("k", [None, pytest.param(4, marks=pytest.mark.slow)])
def test_weights_are_repetitions_and_rows_of_weight_zero_may_hold_anything(k):
    X, y, w = rows(k)
    Machine = FixedSizeLSSVMRegressor if k is None else FixedSizeLSSVMClassifier
    start = Machine(**OPTIONS).fit(X[:50], y[:50], w[:50])
    repeats = np.random.default_rng(0).integers(0, 3, 50)
    i = 50 + np.repeat(np.arange(50), repeats)
    repeated = copy.deepcopy(start).partial_fit(X[i], y[i])
    absent = np.flatnonzero(repeats == 0) + 50
    X[absent], y[absent] = 1e300, 1e300 if k is None else y[0]
    weighted = copy.deepcopy(start).partial_fit(X[50:], y[50:], sample_weight=repeats)
    X[absent] = 0
    np.testing.assert_allclose(values(weighted, X), values(repeated, X), rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_lists_pickles_and_clones():
    X, y, _ = rows(4)
    model = FixedSizeLSSVMClassifier(**OPTIONS, multiclass="one_versus_one")
    model.fit(X[:50], y[:50], ONE)
    again, fresh = pickle.loads(pickle.dumps(model)), clone(model)
    model.partial_fit(X[50:], y[50:])
    again.partial_fit(X[50:].tolist(), y[50:].tolist())
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    model.fit(X[:50], y[:50], ONE)  # starts anew
    fresh.fit(X[:50], y[:50], ONE)
    np.testing.assert_array_equal(model.decision_function(X), fresh.decision_function(X))


@pytest.mark.slow
def test_batches_take_the_precision_of_the_machine():
    X, y, _ = rows(4)
    model = FixedSizeLSSVMClassifier(**OPTIONS).fit(X[:50].astype(np.float32), y[:50])
    model.partial_fit(X[50:], y[50:])
    assert model.decision_function(X).dtype == model.dual_coef_.dtype == np.float32
    for j, label in enumerate(model.classes_):
        target = np.where(y == label, 1.0, -1.0)
        expected = dense(model, X[:50], ONE, X, target, np.ones(100), X[:10])
        np.testing.assert_allclose(values(model, X[:10])[:, j], expected, atol=1e-3)


def test_the_linear_machine_stays_in_the_primal():
    X, y, w = rows()
    (A, yA, wA), (B, yB, wB) = split(X, y, w)
    options = {**OPTIONS, "lengthscale": "auto", "kernel": "linear"}
    model = FixedSizeLSSVMRegressor(**options).fit(A, yA, wA).partial_fit(B, yB, wB)
    mean = np.average(A, axis=0, weights=wA)
    Phi = (X - mean) / np.sqrt(np.average((A - mean) ** 2, axis=0, weights=wA))
    solution = ridge(Phi, y, OPTIONS["C"], 0.0, w)
    np.testing.assert_allclose(model.predict(X), Phi @ solution[:-1] + solution[-1], rtol=1e-9)
    assert model.dual_coef_.shape == (1,)


def test_probabilities_keep_their_calibration():
    X, y, w = rows(2)
    model = FixedSizeLSSVMClassifier(**OPTIONS).fit(X[:50], y[:50], w[:50])

    def inverse_temperatures():
        f, p = model.decision_function(X), model.predict_proba(X)[:, 1]
        assert 0 < (f > 0).mean() < 1
        odds = np.log(p / (1 - p)) / f
        return odds[f > 0], odds[f < 0]

    before = inverse_temperatures()
    after = [model.partial_fit(X[50:], y[50:]), inverse_temperatures()][1]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(old, old[0], rtol=1e-9)
        np.testing.assert_allclose(new, old[0], rtol=1e-9)


def test_batches_of_many_sizes_compile_a_few_times():
    X, y, w = rows(n=150)
    model = FixedSizeLSSVMRegressor(**OPTIONS).fit(X[:50], y[:50], w[:50])
    with count_compilations() as compiled:
        for n in range(1, 130, 9):
            model.partial_fit(X[:n], y[:n])
    assert compiled.programs <= 10  # for powers of two from 16 on


WRONG = [
    (lambda X, y: (X[:, :2], y, None), "expecting 3 features"),
    (lambda X, y: (X, np.where(y == "red", "pink", y), None), r"labels among .*, got \['pink'\]"),
    (lambda X, y: (X, np.zeros(len(y), int), None), r"labels among .*, got \[0\]"),
    (lambda X, y: (np.where(X > 6, np.nan, X), y, None), "NaN"),
    (lambda X, y: (X * 1e300, y, None), "X: expected finite values"),
    (lambda X, y: (X, y, np.ones(3)), "weights: expected 50 finite"),
    (lambda X, y: (X, y, -np.ones(50)), "weights: expected 50 finite"),
    (lambda X, y: (X, y, np.zeros(50)), "zero"),
]


def test_a_bad_batch_is_named_and_leaves_no_trace(as_users_call):
    X, y, _ = rows(2)
    model = FixedSizeLSSVMClassifier(**OPTIONS).fit(X[:50].astype(np.float32), y[:50])
    other = copy.deepcopy(model)
    for wrong, message in WRONG:
        X_bad, y_bad, w = wrong(X[50:], y[50:])
        with pytest.raises(ValueError, match=message):
            model.partial_fit(X_bad, y_bad, sample_weight=w)
    with pytest.raises(NumericalError, match="row index 0 is not finite"):  # in float32
        model.predict(X * 1e300)
    for machine in (model, other):
        machine.partial_fit(X[50:], y[50:], classes=np.unique(y))
    np.testing.assert_array_equal(model.decision_function(X), other.decision_function(X))


@pytest.mark.slow
def test_what_cannot_be_added_to_is_refused(as_users_call):
    X, y, _ = rows(4)
    X, y = X[:50], y[:50]
    balanced = FixedSizeLSSVMClassifier(**OPTIONS, class_weight="balanced")
    with pytest.raises(ValueError, match="class_weight: expected None or a mapping"):
        balanced.partial_fit(X, y)
    model = FixedSizeLSSVMClassifier(**OPTIONS)
    with pytest.raises(ValueError, match="class"):
        model.partial_fit(X, np.full(len(y), "red"), classes=np.unique(y))
    with pytest.raises(ValueError, match=r"labels among .*, got \['green', 'grey'\]"):
        model.partial_fit(X, y, classes=["red", "blue"])
    model.partial_fit(X, y, [*np.unique(y)], ONE)
    with pytest.raises(ValueError, match="classes: expected the labels of the first call"):
        model.partial_fit(X, y, classes=["red", "blue"])
