"""Coverage, drift tests and error streams against SciPy, NumPy loops and synthetic data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from predictor.plain_models import table_model
from reference.kernels import gaussian
from scipy.stats import binomtest

from jsparse import KernelExpansion, Model, monitoring
from jsparse.data.frames import Frame
from jsparse.kernels import RBF, Laplacian, Linear
from jsparse.multiclass import output_code
from jsparse.scaling import Standardization
from jsparse.training.trained import Trained

NAMES = np.array(["high", "low", "middle"])


def data(n, seed=0, shift=0.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2)) + shift
    return X, np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(n)


def labels_of(y):
    return NAMES[np.where(y > 0.5, 0, np.where(y < -0.5, 1, 2))]


@functools.cache
def fitted(kind):
    """Return a least-squares machine with 20 prototypes, calibrated on other rows."""
    (X, y), (others, targets) = data(200), data(150, seed=7)
    code, options = None, {}
    if kind == "two targets":
        y, targets = (np.stack([each, 3 * each], axis=1) for each in (y, targets))
    if kind == "labels":
        y, targets = np.where(labels_of(y)[:, None] == NAMES, 1.0, -1.0), labels_of(targets)
        code = output_code("one_versus_rest", 3)
        options = {"labels": tuple(NAMES.tolist()), "label_dtype": NAMES.dtype.str}
    shift, scale = X.mean(axis=0), X.std(axis=0)
    scaled = (X - shift) / scale
    beta = np.linalg.lstsq(gaussian(scaled, scaled[:20]), y, rcond=1e-6)[0]
    with jax.enable_x64(True):
        parts = scaled[:20], beta, np.zeros(y.shape[1:]), shift, scale
        Z, beta, b, shift, scale = map(jax.device_put, parts)
        machine = KernelExpansion(RBF(1.0), Z, beta, b, Standardization(shift, scale))
        return Model(machine, code=code, **options).calibrated(others, targets)


def test_coverage_is_counted_with_the_exact_interval():
    model, (X, y) = fitted("numbers"), data(120, seed=1)
    for level, truth in ((0.9, y), (0.5, y), (0.9, y + 9), (0.9, model.predict(X))):
        interval = monitoring.coverage(model, X, truth, level, confidence=0.9)
        count = sum(a <= t <= b for (a, b), t in zip(model.interval(X, level), truth, strict=True))
        exact = binomtest(count, 120).proportion_ci(0.9, method="exact")
        assert interval.observed == count / 120
        np.testing.assert_allclose(
            [interval.low, interval.high], [exact.low, exact.high], atol=1e-12
        )
        assert (interval.expected, interval.n_rows) == (level, 120)
    assert monitoring.coverage(model, X, y + 9).high < 0.9  # as after a drift of the targets


def test_coverage_of_several_targets_and_of_labels():
    X, y = data(120, seed=1)
    Y = np.stack([y, 3 * y + 9], axis=1)
    each = monitoring.coverage(fitted("two targets"), X, Y)
    assert each.observed.shape == each.low.shape == (2,)
    assert each.observed[0] > 0.8
    assert each.observed[1] < 0.1
    model = fitted("labels")
    labels = labels_of(y)
    sets, classes = model.predict_set(X, 0.8), model.classes.tolist()
    inside = [s[classes.index(label)] for s, label in zip(sets, labels, strict=True)]
    interval = monitoring.coverage(model, X, labels, 0.8)
    assert interval.observed == np.mean(inside)
    assert interval.low < 0.8 < interval.high


def mmd(X, Y, kernel=gaussian):
    """Return the unbiased estimate, from all pairs of different rows."""

    def within(A):
        K = kernel(A, A)
        return (K.sum() - np.trace(K)) / (len(A) * (len(A) - 1))

    return within(X) + within(Y) - 2 * kernel(X, Y).mean()


@pytest.mark.parametrize("block_rows", [None, 7])
def test_the_statistic_is_the_unbiased_estimate(dtype, block_rows):
    X, Y = data(12)[0].astype(dtype), data(21, seed=1, shift=0.7)[0].astype(dtype)
    for ours, theirs in (
        (RBF(0.8), lambda A, B: gaussian(A, B, 0.8)),
        (Linear(0.3), lambda A, B: 0.3 + A @ B.T),
    ):
        test_result = monitoring.mmd_test(0, ours, X, Y, block_rows=block_rows)
        expected = mmd(X.astype(float), Y.astype(float), theirs)
        np.testing.assert_allclose(
            test_result.statistic, expected, rtol=1e-10 if dtype == "float64" else 1e-4
        )
        assert test_result.statistic.dtype == dtype


def test_p_values_of_few_rows_are_those_of_all_permutations():
    X, Y = np.zeros((2, 1)), np.array([[1.0], [1.1], [5.0]])
    test_result = monitoring.mmd_test(0, RBF(1.0), X, Y, n_permutations=3000)
    together, statistics = np.concatenate([X, Y]), []
    for i in range(5):
        for j in range(i):
            others = np.delete(together, [i, j], axis=0)
            statistics.append(mmd(together[[i, j]], others))
    exact = np.mean(np.array(statistics) >= mmd(X, Y) - 1e-12)
    assert 0.05 < exact < 0.5
    assert abs(test_result.p_value - exact) < 0.03  # three standard errors of 3000 permutations


def test_the_size_of_the_test_is_its_level_and_shifts_are_found():
    @jax.jit
    def p_value(key, X, Y):
        return monitoring.mmd_test(key, Laplacian(1.0), X, Y, n_permutations=99).p_value

    def p_values(shift):
        pairs = ((data(25, i)[0], data(40, 10**6 + i, shift)[0]) for i in range(200))
        return [float(p_value(jax.random.key(i), X, Y)) for i, (X, Y) in enumerate(pairs)]

    without = np.array(p_values(0.0))
    # A count of 20 has a standard deviation of 4.2, and of 100 of 7.
    assert 7 <= np.sum(without <= 0.1) <= 33
    assert 78 <= np.sum(without <= 0.5) <= 122
    assert np.mean(np.array(p_values(1.0)) <= 0.1) > 0.9


def test_a_model_compares_rows_in_its_units():
    model = fitted("numbers")
    reference = data(60, seed=2)[0]
    kept = monitoring.drift_test(model, data(50, seed=3)[0], reference, key=0)
    drifted = monitoring.drift_test(model, data(50, seed=3, shift=1.0)[0], reference, key=0)
    assert drifted.p_value == pytest.approx(1 / 200)
    assert kept.p_value > 0.05
    scaling = model.expansion.scaling
    X, Y = (np.asarray(scaling.apply(jnp.asarray(a))) for a in (data(50, seed=3)[0], reference))
    np.testing.assert_allclose(kept.statistic, mmd(X, Y), rtol=1e-9)


def test_errors_come_one_by_one():
    X, y = data(9, seed=4)
    model = fitted("numbers")
    stream = monitoring.error_stream(model, [(X[:4], y[:4]), (X[4:], y[4:], None)])
    errors = [next(stream), *stream]
    assert all(isinstance(error, float) for error in errors)
    np.testing.assert_allclose(errors, np.abs(model.predict(X) - y))
    both = fitted("two targets")
    Y = np.stack([y, 3 * y], axis=1)
    expected = np.abs(both.predict(X) - Y).mean(axis=1)
    np.testing.assert_allclose(monitoring.row_errors(both, X, Y), expected)
    labels = labels_of(y)
    wrong = monitoring.row_errors(fitted("labels"), X, labels.tolist())
    assert wrong.tolist() == (fitted("labels").predict(X) != labels).astype(float).tolist()


class Result(Trained):
    """A result of training that holds a given model."""

    def __init__(self, model):
        vars(self).update(model=model)


@pytest.mark.parametrize("labels", [(), ("high", "low")])
def test_the_name_of_a_column_of_a_table_stands_for_the_targets(labels):
    X, y = data(150)
    if labels:
        y = np.where(y > 0, *labels)
    table = pd.DataFrame({"target": y, "a": X[:, 0], "b": X[:, 1]})
    model = table_model(Frame(table, drop=["target"]), labels)
    result = Result(model)
    np.testing.assert_array_equal(
        result.calibrated(table[100:], "target").conformal.errors,
        model.calibrated(table[100:], "target").conformal.errors,
    )
    np.testing.assert_array_equal(
        result.with_novelty(table[:100]).novelty(table[100:]).distance,
        model.with_novelty(table[:100]).novelty(table[100:]).distance,
    )
    for rows in (table[100:], pa.Table.from_pandas(table[100:]), Frame(table[100:])):
        by_name, by_values = model.calibrated(rows, "target"), model.calibrated(rows, y[100:])
        np.testing.assert_array_equal(by_name.conformal.errors, by_values.conformal.errors)
        covered = monitoring.coverage(by_name, rows, "target", 0.8)
        assert covered == monitoring.coverage(by_name, rows, y[100:], 0.8)
        errors = monitoring.row_errors(model, rows, "target")
        np.testing.assert_array_equal(errors, monitoring.row_errors(model, rows, y[100:]))
        assert list(monitoring.error_stream(model, [(rows, "target")])) == errors.tolist()
    for door in (model.calibrated, lambda *rows: monitoring.row_errors(model, *rows)):
        with pytest.raises(ValueError, match="the target column 'prise', not found"):
            door(table, "prise")
        with pytest.raises(ValueError, match="one for each row, as X is an array, got the name 't"):
            door(X, "target")


def test_bad_arguments_are_named(as_users_call):
    X, y = data(20)
    model, labels = fitted("numbers"), fitted("labels")
    for call, message in (
        (lambda: monitoring.coverage(model, X, y[:3]), "y: expected numbers of shape"),
        (lambda: monitoring.coverage(model, X, y, confidence=1), "confidence: expected a number"),
        (lambda: monitoring.coverage(model, X, y, 1.5), "coverage: expected above 0"),
        (lambda: monitoring.coverage(model, X, "y"), "y: expected targets, one for each row"),
        (lambda: monitoring.row_errors(model.predict, X, y), "model: expected a Model, such as"),
        (lambda: monitoring.coverage(labels, X, y), "y: expected 20 labels among"),
        (lambda: monitoring.row_errors(labels, X, ["low"] * 3), "y: expected 20 labels among"),
        (lambda: monitoring.row_errors(model, X, y * np.nan), "y: expected finite values"),
        (lambda: monitoring.drift_test(model, X, X[:1], key=0), "X, Y: expected two tables"),
        (lambda: monitoring.drift_test(model, X, X[:, :1], key=0), "X: expected 2 columns"),
        (lambda: monitoring.mmd_test(0, RBF(1.0), X, X * np.inf), "Y: expected finite values"),
        (lambda: monitoring.mmd_test(0, RBF(1.0), X, X, n_permutations=0), "n_permutations: exp"),
        (lambda: monitoring.mmd_test("a", RBF(1.0), X, X), "key: expected an integer"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
