"""Forgetting against dense solves with explicit weights, written with loops in NumPy."""

import copy
import itertools
import pickle

import jax
import numpy as np
import pytest
from reference.fixed_size import nystroem, ridge
from test_partial_fit import LEFT_OUT, OPTIONS, rows, values

from jsparse.estimators import FixedSizeLSSVMClassifier, FixedSizeLSSVMRegressor
from jsparse.multiclass import output_code
from jsparse.training.forgetting import Forgetting
from jsparse.training.more_rows import with_more_rows

pytestmark = pytest.mark.usefixtures("jax_in_float32")
FIRST, BATCH = 50, 15  # rows of the first call and of later calls


def batches(X, y, w):
    """Divide rows into a first batch, and later batches of a few rows each."""
    edges = [0, *range(FIRST, len(X), BATCH), len(X)]
    return [(X[a:b], y[a:b], w[a:b]) for a, b in itertools.pairwise(edges) if a < b]


def learnt(machine, parts, **options):
    for X, y, w in parts:
        machine.partial_fit(X, y, sample_weight=w, **options)
    return machine


def weights_left(parts, forget=1.0, half_life=np.inf, window=None):
    """Return the remaining weight of every row after the last batch, by a loop over rows."""
    left, ages = [], []
    for _, _, w in parts:
        left = [forget * weight for weight in left]
        for weight in w:
            if weight > 0:
                ages = [age + 1 for age in ages]
            left.append(weight)
            ages.append(0)
    left = [weight * 0.5 ** (age / half_life) for weight, age in zip(left, ages, strict=True)]
    if window is not None:
        left = [weight if age < window else 0.0 for weight, age in zip(left, ages, strict=True)]
    return np.array(left)


def dense(model, X, target, weights, X_new):
    """Return values of a dense solve with explicit weights and the model's prototypes, scaled."""
    expansion = model.model_.expansion
    shift, scale = (np.asarray(a, float) for a in expansion.scaling)
    Z = np.asarray(expansion.prototypes, float)
    Phi, new = (nystroem((x - shift) / scale, Z, OPTIONS["lengthscale"]) for x in (X, X_new))
    solution = ridge(Phi, target, OPTIONS["C"], 0.0, weights)
    return new @ solution[:-1] + solution[-1]


WAYS = [{"forget": 0.7}, {"half_life": 25.0}, {"window": 35}, {"window": 60}]


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_regression_is_the_dense_solve_with_explicit_weights(way, dtype):
    X, y, w = rows(n=130)
    parts = batches(X.astype(dtype), y, w)
    model = learnt(FixedSizeLSSVMRegressor(**OPTIONS), parts, **way)
    X_new = rows(seed=1)[0][:20]
    expected = dense(model, X, y, weights_left(parts, **way), X_new)
    predicted = model.predict(X_new)
    assert predicted.dtype == dtype
    rtol, atol = (1e-10, 1e-10) if dtype == "float64" else (1e-7, 2e-4)
    np.testing.assert_allclose(predicted, expected, rtol=rtol, atol=atol)
    everything = dense(model, X, y, w, X_new)
    assert np.abs(expected - everything).max() > 1e-3


@pytest.mark.parametrize(
    ("scheme", "way"),
    [
        ("one_versus_rest", {"half_life": 25.0}),
        ("one_versus_rest", {"window": 35}),
        pytest.param("left_out", {"forget": 0.7}, marks=pytest.mark.slow),
        pytest.param("left_out", {"window": 35}, marks=pytest.mark.slow),
    ],
)
def test_classes_are_the_dense_solve_of_every_problem(scheme, way):
    X, y, w = rows(4, n=130)
    parts, factor = batches(X, y, w), {"red": 3.0, "green": 0.5}
    scheme = LEFT_OUT if scheme == "left_out" else scheme
    model = FixedSizeLSSVMClassifier(**OPTIONS, multiclass=scheme, class_weight=factor)
    learnt(model, parts, classes=np.unique(y), **way)
    each = np.array([factor.get(label, 1.0) for label in y])
    numbers, X_new = np.searchsorted(model.classes_, y), rows(seed=1)[0][:20]
    left = weights_left(parts, **way) * each
    expected = [
        dense(model, X, column[numbers], left * np.abs(column[numbers]), X_new)
        for column in output_code(scheme, 4).matrix.T
    ]
    np.testing.assert_allclose(values(model, X_new), np.stack(expected, axis=1), atol=1e-9)


@pytest.mark.parametrize("way", [{"half_life": 9.0}, {"window": 30}], ids=str)
def test_batches_of_any_size_forget_the_same(way):
    X, y, w = rows(n=90)
    start = FixedSizeLSSVMRegressor(**OPTIONS).partial_fit(X[:50], y[:50], w[:50], **way)
    at_once = copy.deepcopy(start).partial_fit(X[50:], y[50:], w[50:], **way)
    singly = copy.deepcopy(start)
    for i in range(50, 90):
        if w[i] > 0:
            singly.partial_fit(X[i : i + 1], y[i : i + 1], w[i : i + 1], **way)
    np.testing.assert_allclose(singly.predict(X), at_once.predict(X), rtol=1e-9, atol=1e-10)


def test_forgetting_all_is_a_fit_of_the_last_batch_and_nothing_is_more_rows():
    X, y, w = rows()
    start = FixedSizeLSSVMRegressor(**OPTIONS).fit(X[:50], y[:50], w[:50])
    last, every, plain = (copy.deepcopy(start) for _ in range(3))
    last.partial_fit(X[50:], y[50:], forget=0.0)
    np.testing.assert_allclose(
        last.predict(X), dense(start, X[50:], y[50:], np.ones(50), X), rtol=1e-10, atol=1e-10
    )
    every.partial_fit(X[50:], y[50:], forget=1.0)
    plain.partial_fit(X[50:], y[50:])
    np.testing.assert_array_equal(every.predict(X), plain.predict(X))


@pytest.mark.slow
@pytest.mark.parametrize(("single", "steps"), [(False, 560), (True, 1000)])
def test_many_steps_of_a_window_stay_within_rounding(single, steps):
    X, y, _ = rows(n=100 + steps)
    cast = np.float32 if single else np.float64
    model = FixedSizeLSSVMRegressor(**OPTIONS).partial_fit(X[:100].astype(cast), y[:100], window=60)
    for i in range(100, 100 + steps):
        model.partial_fit(X[i : i + 1], y[i : i + 1], window=60)
    expected = dense(model, X[-60:], y[-60:], np.ones(60), X[:50])
    np.testing.assert_allclose(model.predict(X[:50]), expected, atol=1e-4 if single else 1e-12)
    assert 1 <= model.n_resummed_ <= 4  # about 512 steps of two roundings each


def test_a_huge_row_that_leaves_the_window_is_subtracted_exactly():
    X, y, _ = rows(n=60)
    model = FixedSizeLSSVMRegressor(**OPTIONS).partial_fit(X[:40], y[:40], window=20)
    model.partial_fit(X[40:41], 1e12 + y[40:41], window=20)
    before = model.n_resummed_
    model.partial_fit(X[41:], y[41:], window=20)
    assert model.n_resummed_ == before
    model.partial_fit(X[:1], y[:1], window=20)
    assert model.n_resummed_ == before + 1
    inside = [*range(41, 60), 0]
    expected = dense(model, X[inside], y[inside], np.ones(20), X)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "scheme", ["one_versus_rest", pytest.param("one_versus_one", marks=pytest.mark.slow)]
)
def test_a_class_that_leaves_the_window_is_forgotten(scheme):
    X, y, w = rows(4)
    y = np.where((np.arange(100) >= 50) & (y == "red"), "blue", y)
    w[50:] = 1
    model = FixedSizeLSSVMClassifier(**OPTIONS, multiclass=scheme)
    for part in (slice(50), slice(50, 75), slice(75, 100)):
        model.partial_fit(X[part], y[part], sample_weight=w[part], window=45)
    numbers = np.searchsorted(model.classes_, y[55:])
    targets = output_code(scheme, 4).matrix[numbers].T
    expected = [dense(model, X[55:], target, np.abs(target), X) for target in targets]
    np.testing.assert_allclose(values(model, X), np.stack(expected, axis=1), atol=1e-9)
    assert not np.any(model.predict(X) == "red")


@pytest.mark.parametrize(
    "scheme", ["one_versus_rest", pytest.param("one_versus_one", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("dtype", "forget"),
    [("float64", 1e-25), pytest.param("float32", 1e-3, marks=pytest.mark.slow)],
)
def test_a_class_forgotten_beyond_the_range_of_floats_does_no_harm(scheme, dtype, forget):
    X, y, w = rows(4, n=50)
    X = X.astype(dtype)
    model = FixedSizeLSSVMClassifier(**OPTIONS, multiclass=scheme).partial_fit(X, y, None, w)
    later = y != "red"
    for _ in range(30):  # the factors leave the range of the floats after 15 batches
        model.partial_fit(X[later], y[later], forget=forget)
        assert np.isfinite(values(model, X)).all()
    assert not np.any(model.predict(X) == "red")


def test_the_pure_function_forgets_like_the_estimator():
    X, y, w = rows()
    for way in ({"factor": 0.5}, {"half_life": 20.0}, {"window": 30}):
        options = {"forget" if name == "factor" else name: value for name, value in way.items()}
        model = FixedSizeLSSVMRegressor(**OPTIONS)
        model.partial_fit(X[:50], y[:50], w[:50], **options)
        updated, sums, status = with_more_rows(
            model._method, model.model_, model._sums, model.C_, X[50:], y[50:], w[50:],
            Forgetting(**way),
        )  # fmt: skip
        assert status in (1, 3)
        model.partial_fit(X[50:], y[50:], w[50:], **options)
        np.testing.assert_array_equal(updated.predict(X), model.predict(X))
        assert (sums.window is None) == ("window" not in way)


def test_a_pickled_window_goes_on():
    X, y, w = rows(4)
    model = FixedSizeLSSVMClassifier(**OPTIONS)
    model.partial_fit(X[:50], y[:50], sample_weight=w[:50], window=40)
    again = pickle.loads(pickle.dumps(model))
    for machine in (model, again):
        for a in (50, 60, 70):
            machine.partial_fit(X[a : a + 10], y[a : a + 10], window=40)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again._sums.window.rows.X.shape == (40, 3)


def test_progressive_scores_are_errors_before_learning():
    X, y, w = rows(4)
    parts = batches(X, y, w)
    one = FixedSizeLSSVMClassifier(**OPTIONS)
    score = one.progressive_score(parts, classes=np.unique(y), forget=0.8)
    other = FixedSizeLSSVMClassifier(**OPTIONS).partial_fit(
        *parts[0][:2], np.unique(y), parts[0][2], forget=0.8
    )
    expected = [np.nan]
    for inputs, labels, weights in parts[1:]:
        expected.append(np.average(other.predict(inputs) != labels, weights=weights))
        other.partial_fit(inputs, labels, sample_weight=weights, forget=0.8)
    np.testing.assert_allclose(score.errors, expected)
    totals = [weights.sum() for _, _, weights in parts]
    np.testing.assert_allclose(score.weights, totals)
    assert score.overall == pytest.approx(np.average(expected[1:], weights=totals[1:]))
    assert score.metric == "misclassification"
    np.testing.assert_array_equal(one.predict(X), other.predict(X))


def test_progressive_scores_of_numbers_and_of_a_machine_that_is_fitted():
    X, y, w = rows()
    Y = np.stack([y, 2 * y], axis=1)
    model = FixedSizeLSSVMRegressor(**OPTIONS).fit(X[:50], Y[:50], w[:50])
    error = np.mean(np.square(model.predict(X[50:]) - Y[50:]))
    score = model.progressive_score([(X[50:], Y[50:])])
    np.testing.assert_allclose(score.errors, [error])
    assert score.metric == "mse"
    with pytest.raises(ValueError, match="stream: expected at least one batch"):
        model.progressive_score([])
    first = FixedSizeLSSVMRegressor(**OPTIONS).progressive_score([(X[:50], y[:50], w[:50])])
    assert np.isnan(first.overall)
    with pytest.raises(ValueError, match=r"y: expected shape \(50, 2\)"):
        model.progressive_score([(X[50:], y[50:])])
    X, y, w = rows(4)
    labels = FixedSizeLSSVMClassifier(**OPTIONS).fit(X[:50], y[:50], w[:50])
    with pytest.raises(ValueError, match=r"y: expected labels among \['blue', .*\], got"):
        labels.progressive_score([(X, np.zeros(100, int))])


WRONG = [
    ({"forget": 0.9, "window": 5}, "forget: expected at most one of forget, half_life and window"),
    ({"half_life": 9.0, "window": 5}, "half_life: expected at most one"),
    ({"forget": 1.1}, "forget: expected a factor from 0 to 1"),
    ({"forget": -0.1}, "forget: expected a number of at least 0"),
    ({"half_life": 0}, "half_life: expected a number above 0"),
    ({"half_life": np.inf}, "half_life: expected a number above 0"),
    ({"window": 0}, "window: expected a whole number of at least 1"),
    ({"window": 20.5}, "window: expected a whole number"),
    ({"window": 50}, "window: expected None, as in the first call, got 50"),
]


def test_wrong_options_are_named_and_leave_no_trace(as_users_call):
    X, y, w = rows()
    model = FixedSizeLSSVMRegressor(**OPTIONS).fit(X[:50], y[:50], w[:50])
    before = model.predict(X)
    for options, message in WRONG:
        with pytest.raises(ValueError, match=message):
            model.partial_fit(X[50:], y[50:], **options)
    np.testing.assert_array_equal(model.predict(X), before)


def test_a_window_is_the_same_in_every_call():
    X, y, w = rows()
    model = FixedSizeLSSVMRegressor(**OPTIONS).partial_fit(X[:50], y[:50], window=30)
    for options in ({}, {"window": 40}, {"forget": 0.9}):
        with pytest.raises(ValueError, match="window: expected 30, as in the first call, got"):
            model.partial_fit(X[50:], y[50:], **options)
    with pytest.raises(ValueError, match="weights: expected"):
        FixedSizeLSSVMRegressor(**OPTIONS).partial_fit(X, y, -w, window=30)
    with jax.enable_x64(True):
        assert model._sums.window.rows.X.dtype == np.float64
    assert len(model._sums.window.rows.X) == 30  # of more rows with weight
