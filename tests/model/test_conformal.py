"""Intervals and prediction sets against the papers' formulas by loops, and against refits."""

import dataclasses

import jax
import numpy as np
import pytest
from reference import conformal as loops
from reference.fixed_size import dual as solve_dual
from reference.kernels import gaussian
from test_model import LABELS, NUMBERS, QUICK, ROWS, SMALL

from jsparse import SCDP, Dual, HoldOut, Robust, SparseRidge, load, train
from jsparse.conformal import (
    ConformalScores,
    conformal_scores,
    intervals,
    kept_ranks,
    margin_deficit,
    rank_of,
    sets,
)
from jsparse.data.streams import ArrayStream
from jsparse.estimators import FixedSizeLSSVMClassifier, FixedSizeLSSVMRegressor
from jsparse.expansion import KernelExpansion
from jsparse.kernels import RBF

NEW = np.random.default_rng(9).standard_normal((7, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, 0.0]
TWO = np.where(LABELS == "low", "no", "yes")


def learn(y, task="regression", method=SMALL, **options):
    options = {**QUICK, "out_of_fold": "machines", **options}
    with jax.enable_x64(True):
        return train(ROWS, y, task=task, method=method, **options)


# --- the formulas -------------------------------------------------------------------------------


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 20 / 21])
def test_intervals_are_those_of_the_paper_by_loops(coverage):
    rng = np.random.default_rng(0)
    centres, errors = rng.standard_normal((6, 4)), np.abs(rng.standard_normal(20))
    fold = rng.integers(0, 4, 20).astype(np.int32)
    expected = [loops.cv_plus(each, errors, fold, coverage) for each in centres]
    ends = intervals(centres, ConformalScores(errors, fold), coverage)
    np.testing.assert_allclose(ends, expected, rtol=1e-14)
    one = [loops.cv_plus(each, errors, 0 * fold, coverage) for each in centres]
    ends = intervals(centres[:, :1], ConformalScores(errors), coverage)
    np.testing.assert_allclose(ends, one, rtol=1e-14)


@pytest.mark.parametrize("k", [2, 4])
def test_sets_are_those_of_the_paper_by_loops(k):
    rng = np.random.default_rng(1)
    labels, fold = rng.integers(0, k, 30), rng.integers(0, 3, 30).astype(np.int32)
    rows, new = rng.standard_normal((30, k)), rng.standard_normal((50, 3, k))
    rows[np.arange(30), labels] += 1
    errors = np.take_along_axis(margin_deficit(rows), labels[:, None], axis=1)[:, 0]
    apart = margin_deficit(new.reshape(-1, k)).reshape(new.shape)
    in_set = sets(apart, ConformalScores(errors, fold), 0.8)
    expected = [loops.cross_set(each[fold], rows, labels, 0.8) for each in new]
    np.testing.assert_array_equal(in_set, expected)
    assert 0 < in_set.mean() < 1
    if k == 2:  # of two classes there is one score
        score = (rows[:, 1] - rows[:, 0]) / 2
        np.testing.assert_allclose(2 * margin_deficit(score), margin_deficit(rows), rtol=1e-12)


def test_split_intervals_cover_as_often_as_order_statistics_do():
    # The chance that a new error is at most the r-th smallest of n is r / (n + 1).
    rng, n, draws = np.random.default_rng(2), 40, 20_000
    errors = rng.exponential(size=(n, draws))
    for coverage in (0.5, 0.9):
        ends = intervals(np.zeros((1, 1, draws)), ConformalScores(errors), coverage)[0]
        inside = rng.exponential(size=draws) <= ends[:, 1]
        expected = rank_of(coverage, n) / (n + 1)
        assert coverage <= expected < coverage + 1 / (n + 1)
        assert abs(inside.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / draws)


def test_a_coverage_that_so_few_errors_cannot_give_is_refused():
    for coverage in (0.0, 1.0, -1, np.nan, "x", True, 0.91):
        with pytest.raises(ValueError, match="coverage: expected"):
            rank_of(coverage, 9)
    with pytest.raises(ValueError, match=r"got 90; take 0\.9 for 90 per cent"):
        rank_of(90, 9)
    assert rank_of(0.9, 9) == 9


# --- quantiles instead of the errors of all rows -------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 80, 99, 700, 100_000])
def test_coverages_of_two_digits_take_the_errors_that_all_rows_give(n):
    ranks = np.array(kept_ranks(n))
    assert ranks[-1] == n
    assert (np.diff(ranks) > 0).all()
    assert len(ranks) <= min(n, 90 * np.log10(max(n, 2)) + 90)
    if n < 100:
        assert len(ranks) == n
    for digits in range(10, 100):
        for scale in (100, 1000, 10_000):
            coverage = (scale - digits) / scale
            if coverage <= n / (n + 1):
                assert rank_of(coverage, n) in ranks


@pytest.mark.parametrize("targets", [(), (2,)])
def test_quantiles_of_errors_give_intervals_that_are_never_shorter(targets):
    rng, n = np.random.default_rng(5), 3000
    errors = rng.exponential(size=(n, *targets))
    kept, centre = conformal_scores(errors), np.zeros((1, 1, *targets))
    assert kept.n_rows == n
    assert len(kept.errors) < 400
    ordered = np.sort(errors, axis=0)
    for coverage in (0.1234, 0.5, 0.8, 0.8765, 0.9, 0.9234, 0.95, 0.99, 0.9876, 0.999, 0.99911):
        exact = ordered[rank_of(coverage, n) - 1]
        half = intervals(centre, kept, coverage)[0, ..., 1]
        assert (half >= exact).all()
        miss = 1 - coverage
        step = 10.0 ** (np.floor(np.log10(miss)) - 1)
        digits = round(miss / step, 6)
        next_coverage = min(1 - np.floor(digits) * step, n / (n + 1))
        assert next_coverage - coverage < 0.1 * miss + 1e-9
        np.testing.assert_array_equal(half, ordered[rank_of(next_coverage, n) - 1])


def test_quantiles_of_each_fold_give_intervals_and_sets_that_are_never_smaller():
    rng, n, v = np.random.default_rng(6), 3000, 5
    errors, fold = rng.exponential(size=n), rng.integers(0, v, n).astype(np.int32)
    centres, machines = 0.3 * rng.standard_normal((7, v)), object.__new__(KernelExpansion)
    kept, every = conformal_scores(errors, fold, machines), ConformalScores(errors, fold, machines)
    assert (kept.n_rows, kept.guarantee) == (n, "folds")
    assert len(kept.errors) < n / 2
    apart = rng.standard_normal((200, v, 3)) + 1
    for coverage in (0.5, 0.8, 0.9, 0.95, 0.987):
        ends, exact = (intervals(centres, conformal, coverage) for conformal in (kept, every))
        # At most a tenth of what may be outside is lost, or a hundredth, and a row of each fold.
        wider = coverage + min(0.01, 0.1 * (1 - coverage)) + v / n
        outer = intervals(centres, every, wider)
        assert (outer[:, 0] <= ends[:, 0]).all()
        assert (ends[:, 0] <= exact[:, 0]).all()
        assert (exact[:, 1] <= ends[:, 1]).all()
        assert (ends[:, 1] <= outer[:, 1]).all()
        inside, least = (sets(apart, conformal, coverage) for conformal in (kept, every))
        assert (least <= inside).all()
        assert (inside <= sets(apart, every, wider)).all()
    few = conformal_scores(errors[:60], fold[:60], machines)
    np.testing.assert_array_equal(np.sort(few.errors), np.sort(errors[:60]))


@pytest.mark.slow
def test_what_a_model_and_its_file_hold_does_not_grow_with_the_rows(tmp_path):
    """Only quantiles are stored, neither the candidates of a path nor the errors of all rows."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal((1200, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(1200)
    method = SCDP(max_prototypes=4, candidates=700, candidate_method="uniform")
    options = {**QUICK, "task": "regression", "method": method}
    with jax.enable_x64(True):
        model = train(X, y, **options).model
    large = [a.shape for a in jax.tree.leaves(model) if a.size > 350]
    assert large == []
    assert len(model.path.points) <= 4
    model.save(tmp_path / "small")
    assert (tmp_path / "small").stat().st_size < 12_000
    with jax.enable_x64(True):
        again = load(tmp_path / "small")
    for coverage in (0.5, 0.9234, 0.999):
        ends = model.interval(NEW, coverage)
        np.testing.assert_array_equal(again.interval(NEW, coverage), ends)
    wide = model.calibrated(np.resize(X, (30_000, 3)), np.resize(y, 30_000))
    wide.save(tmp_path / "wide")
    assert (tmp_path / "wide").stat().st_size < 15_000


# --- machines that have not seen a row ----------------------------------------------------------


def test_jackknife_plus_is_that_of_a_machine_solved_without_each_row():
    weights = np.random.default_rng(3).choice([0.0, 1.0, 2.0], len(ROWS), p=[0.1, 0.6, 0.3])
    trained = learn(NUMBERS, method=Dual(), kernel=RBF(1.5), weights=weights)
    rows = np.flatnonzero(weights > 0)
    mean = np.average(ROWS, axis=0, weights=weights)
    scale = np.sqrt(np.average((ROWS - mean) ** 2, axis=0, weights=weights))
    Z, new = (ROWS - mean) / scale, (NEW - mean) / scale
    centres, errors = [], []
    for i in rows:
        others = rows[rows != i]
        K = gaussian(Z[others], Z[others], 1.5)
        alpha, b = solve_dual(K, NUMBERS[others], 5.0, weights[others])
        at = gaussian(np.concatenate([Z[i : i + 1], new]), Z[others], 1.5) @ alpha + b
        errors.append(abs(NUMBERS[i] - at[0]))
        centres.append(at[1:])
    which = np.arange(len(rows))
    expected = [loops.cv_plus(each, errors, which, 0.8) for each in np.array(centres).T]
    np.testing.assert_allclose(trained.interval(NEW, 0.8), expected, rtol=1e-7, atol=1e-8)


def values_of_folds(trained):
    """Return the value of each training row, by the machine that was fitted without its fold."""
    model, fold = trained.model, np.arange(len(ROWS))
    if not isinstance(trained.method, Dual):
        for number, (rows, valid) in enumerate(zip(*trained.folds, strict=True)):
            fold[rows[valid]] = number
    machines = dataclasses.replace(model.conformal.machines, scaling=model.expansion.scaling)
    values = np.asarray(machines(ROWS)).reshape(len(ROWS), -1, *trained.out_of_fold.shape[1:])
    return values[np.arange(len(ROWS)), fold]


@pytest.mark.parametrize(
    ("method", "y", "options"),
    [
        pytest.param(
            SMALL, np.stack([NUMBERS, -3 * NUMBERS + 1], axis=1), {}, marks=pytest.mark.slow
        ),
        (SMALL, TWO.astype(object), {}),
        pytest.param(SMALL, LABELS.astype(object), {}, marks=pytest.mark.slow),
        pytest.param(SMALL, LABELS, {"multiclass": "one_versus_one"}, marks=pytest.mark.slow),
        pytest.param(Robust(12), NUMBERS, {}, marks=pytest.mark.slow),
        pytest.param(SCDP(max_prototypes=6), NUMBERS, {}, marks=pytest.mark.slow),
        (SparseRidge(4, max_iterations=20, selection="uniform"), NUMBERS, {}),
    ],
)
def test_machines_of_the_folds_give_the_values_out_of_fold(method, y, options, tmp_path):
    numbers = y.dtype.kind == "f"
    trained = learn(y, "regression" if numbers else "classification", method, **options)
    expected = trained.out_of_fold
    # The iterations of `Robust` for all folds together end at another tolerance than its fits.
    atol = np.abs(expected).max() * (2e-4 if isinstance(method, Robust) else 1e-8)
    np.testing.assert_allclose(values_of_folds(trained), expected, atol=atol)
    assert trained.model.conformal.guarantee == "folds"
    trained.model.save(tmp_path / "model")
    with jax.enable_x64(True):
        again = load(tmp_path / "model")
    if numbers:
        ends = trained.interval(NEW, 0.8)
        assert ends.shape == (7, *y.shape[1:], 2)
        np.testing.assert_array_equal(again.interval(NEW, 0.8), ends)
        np.testing.assert_allclose(trained.interval(NEW[0], 0.8), ends[0], rtol=1e-12)
        assert (ends[..., 0] < ends[..., 1]).all()
    else:
        inside = trained.predict_set(NEW, 0.8)
        assert inside.shape == (7, len(trained.classes))
        np.testing.assert_array_equal(again.predict_set(NEW, 0.8), inside)
        np.testing.assert_array_equal(again.predict(NEW), trained.predict(NEW))


# --- models and what is known of them -----------------------------------------------------------


@pytest.fixture(scope="module")
def models():
    plain = {"out_of_fold": True}
    return {
        "numbers": learn(NUMBERS, **plain),
        "two": learn(TWO, "classification", **plain),
        "without": learn(NUMBERS, out_of_fold=False),
    }


@pytest.mark.slow
def test_errors_out_of_fold_are_kept_by_default(models):
    trained = models["numbers"]
    errors = np.abs(NUMBERS - trained.out_of_fold)
    half = np.sort(errors)[rank_of(0.9, 80) - 1]
    ends = trained.interval(NEW)
    np.testing.assert_allclose(ends.mean(axis=1), trained.predict(NEW), rtol=1e-12)
    np.testing.assert_allclose(ends[:, 1] - ends[:, 0], 2 * half, rtol=1e-9)
    assert "intervals: by errors out of fold" in repr(trained.model)
    trained = models["two"]
    truth = np.where(TWO == "yes", 1, -1) * trained.out_of_fold
    f = trained.decision_function(NEW)
    for coverage in (0.5, 0.9):
        least = np.sort(truth)[80 - rank_of(coverage, 80)]
        inside = np.stack([-f >= least, f >= least], axis=1)
        np.testing.assert_array_equal(trained.predict_set(NEW, coverage), inside)
    np.testing.assert_array_equal(trained.predict_set(NEW), inside)
    assert "sets: by errors out of fold" in repr(trained.model)


def test_rows_held_out_calibrate_any_model(models, tmp_path):
    y = np.linspace(-1, 1, 7)
    for name in ("numbers", "without"):
        model = models[name].model.calibrated(NEW, y)
        half = np.sort(np.abs(y - model.predict(NEW)))[6]
        middle = model.predict(ROWS)
        expected = np.stack([middle - half, middle + half], axis=1)
        np.testing.assert_allclose(model.interval(ROWS, 7 / 8), expected, rtol=1e-12)
        assert model.conformal.guarantee == "held out"
        model.save(tmp_path / "model")
        with jax.enable_x64(True):
            assert load(tmp_path / "model").conformal.guarantee == "held out"
    labels = np.array(["yes", "no", "no", "yes", "no", "yes", "no"])
    model = models["two"].model.calibrated(NEW, labels)
    margins = np.where(labels == "yes", 1, -1) * model.decision_function(NEW)
    f = model.decision_function(ROWS)
    inside = np.stack([-f >= margins.min(), f >= margins.min()], axis=1)
    np.testing.assert_array_equal(model.predict_set(ROWS, 7 / 8), inside)


def test_what_is_not_known_or_does_not_fit_is_said(models):
    numbers, two, without = (models[name].model for name in ("numbers", "two", "without"))
    wrong = [
        (lambda: numbers.predict_set(NEW), "predict_set: expected a classifier"),
        (lambda: two.interval(NEW), "interval: expected a regression"),
        (lambda: without.interval(NEW), "interval: expected a model with errors"),
        (
            lambda: dataclasses.replace(two, conformal=None).predict_set(NEW),
            "predict_set: expected a model with errors",
        ),
        (lambda: numbers.interval(NEW, 0.99), "at most 0.987654, as errors of 80 rows"),
        (lambda: numbers.calibrated(NEW, NEW), r"y: expected numbers of shape \(7,\)"),
        (lambda: numbers.calibrated(NEW, ["a"] * 7), "y: expected numbers of shape"),
        (lambda: numbers.calibrated(NEW, [np.nan] * 7), "y"),
        (lambda: two.calibrated(NEW, ["yes"] * 6 + ["maybe"]), "labels among .*maybe"),
    ]
    for call, message in wrong:
        with pytest.raises(ValueError, match=message):
            call()
    stream = ArrayStream(ROWS, NUMBERS, batch_rows=20)
    with pytest.raises(ValueError, match="expected True or False for a stream"):
        train(stream, task="regression", key=0, method=SMALL, out_of_fold="machines")


@pytest.mark.slow
def test_errors_of_a_stream_are_those_of_its_sample():
    stream = ArrayStream(ROWS, 5 + 3 * NUMBERS, batch_rows=20)
    options = {**QUICK, "folds": HoldOut(0.3), "task": "regression", "method": SMALL}
    with jax.enable_x64(True):
        trained = train(stream, **options)
    held_out = len(trained.model.conformal.errors)
    assert 10 < held_out < 40
    is_predicted = np.isfinite(trained.out_of_fold)
    errors = np.abs((5 + 3 * NUMBERS)[is_predicted] - trained.out_of_fold[is_predicted])
    np.testing.assert_allclose(np.sort(trained.model.conformal.errors), np.sort(errors), rtol=1e-9)


def test_estimators_show_values_out_of_fold_and_answer_by_them():
    options = {"lengthscale": 1.5, "C": 5.0, "cv": 3, "random_state": 0, "selection": "uniform"}
    regressor = FixedSizeLSSVMRegressor(12, **options).fit(ROWS, NUMBERS)
    errors = np.abs(NUMBERS - regressor.oob_prediction_)
    assert regressor.oob_prediction_.shape == (80,)
    assert errors.mean() > np.abs(NUMBERS - regressor.predict(ROWS)).mean()
    ends = regressor.interval(NEW, 0.8)
    half = np.sort(errors)[rank_of(0.8, 80) - 1]
    np.testing.assert_allclose(ends[:, 1] - ends[:, 0], 2 * half, rtol=1e-9)
    weights = np.r_[0.0, np.ones(79)]
    classifier = FixedSizeLSSVMClassifier(12, **options).fit(ROWS, TWO, weights)
    p = classifier.oob_decision_function_
    assert p.shape == (80, 2)
    assert np.isnan(p[0]).all()
    np.testing.assert_allclose(p[1:].sum(axis=1), 1, rtol=1e-12)
    assert np.mean((p[1:, 1] > 0.5) != (TWO[1:] == "yes")) == pytest.approx(classifier.cv_error_)
    assert classifier.predict_set(NEW, 0.8).shape == (7, 2)
