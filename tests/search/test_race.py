"""A race leaves out folds of machines that are clearly worse, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse
from jsparse._status import CONVERGED, PRECISION_LOST
from jsparse.kernels import RBF
from jsparse.machines import KSP, RVM, SCDP, Dual, FixedSize, SparseReduction, SpSVM, dual
from jsparse.machines.rows import rows_of
from jsparse.search.history import Evaluation, load_history, save_history, scored
from jsparse.search.race import RULE, RULE_OF_WALKS, BestFolds, Comparison, race, rounds
from jsparse.search.run import Tuning
from jsparse.search.strategies import Nearby, Profile
from jsparse.validation.folds import plain_folds
from jsparse.validation.validate import FoldLosses, Scoring, Validation, mean_losses

V = 10


class Errors:
    """Errors of machines on every fold, shape `s v k`; only the wanted ones are returned."""

    def __init__(self, fold_scores, weights=None, *, ignores_wishes=False):
        self.fold_scores = np.asarray(fold_scores, float)
        self.weights = np.ones(V) if weights is None else np.asarray(weights, float)
        self.asked, self.ignores_wishes = [], ignores_wishes

    def __call__(self, wanted):
        self.asked.append(wanted.copy())
        computed = np.ones_like(wanted) if self.ignores_wishes else wanted
        weights = computed * self.weights
        folds = np.where(weights[:, :, None] > 0, self.fold_scores, np.nan)
        with np.errstate(invalid="ignore"):
            sums = np.sum(folds * weights[:, :, None], axis=1, where=weights[:, :, None] > 0)
            scores = sums / weights.sum(axis=1)[:, None]
        return Validation(scores, folds, weights, np.ones(len(folds), np.int32))

    @property
    def scores(self):
        """Return the least error of all sizes over all folds, for each `C`."""
        return np.average(self.fold_scores, axis=1, weights=self.weights).min(axis=1)

    def race(self, best=None, rows_in_fold=100, metric="mse", method=SCDP(3), C=None):  # noqa: B008
        best = best or BestFolds()
        race_rounds = rounds(rows_in_fold * (self.weights > 0), best.rule, metric)
        first = self(np.broadcast_to(race_rounds[0].folds, self.fold_scores.shape[:2]))
        C = np.arange(1.0, len(self.fold_scores) + 1) if C is None else C
        return race(method, C, race_rounds, first, self, best)[1]

    @property
    def folds_asked(self):
        """Return the number of folds computed for each `C`."""
        return sum(wanted.sum(axis=1) for wanted in self.asked).tolist()


def machines(*means, spread=0.0, k=1):
    """Return errors around the means: the hard rows of a fold are hard for all machines."""
    rng = np.random.default_rng(0)
    folds = 1 + 0.3 * rng.standard_normal(V)
    noise = spread * rng.standard_normal((len(means), V, k))
    return np.asarray(means)[:, None, None] * np.abs(folds)[:, None] + noise


def test_clearly_worse_machines_are_left_out_and_near_ones_are_not():
    errors = Errors(machines(1.0, 1.001, 1.5, 9.0, spread=1e-3))
    scores = errors.race()
    assert errors.folds_asked == [V, V, 2, 2]
    np.testing.assert_allclose(scores.scores[:2], errors.scores[:2])
    # The estimate is the best machine's score plus the mean difference on two folds.
    assert scores.scores[2] > scores.scores[0]
    assert np.isnan(scores.fold_scores[2]).sum() == V - 2


def test_all_but_the_two_best_values_of_C_are_left_out():
    errors = Errors(machines(1.0, 1.0, 1.0, 1.0, spread=1e-3))
    errors.race()
    assert sorted(errors.folds_asked) == [2, 2, V, V]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 0, 2, 1, 3]])
@pytest.mark.parametrize("rise", [0.0, 0.18])  # of the second error after two folds
def test_the_smallest_C_of_nearly_least_error_is_validated_on_all_folds(rise, order):
    # The third and fourth C are the best; the second is within a standard error of them.
    fold_scores = machines(1.5, 1.02, 1.0, 1.001, 1.002, spread=1e-3)
    fold_scores[1, 2:] += rise
    errors = Errors(fold_scores[order])
    C = np.arange(5.0)[order] + 1
    method = SparseReduction(10, size_tolerance=1.0)
    scores = errors.race(method=method, C=C)
    folds_by_C = dict(zip(C.tolist(), errors.folds_asked, strict=True))
    assert folds_by_C == {1.0: 2, 2.0: V, 3.0: V, 4.0: V, 5.0: 2}
    by_C = dict(zip(C.tolist(), zip(scores.scores, errors.scores, strict=True), strict=True))
    for value in (2.0, 3.0, 4.0):
        np.testing.assert_allclose(*by_C[value])
    every = errors.race(method=method, C=C, rows_in_fold=1)
    assert choice(scores, C) == choice(every, C) == (2.0 if rise == 0 else 3.0)


def choice(scores, C):
    """Return the smallest `C` whose error is within a standard error of the least one."""
    evaluation = Evaluation(np.zeros(0), C, *scores[:3], 0.0, fold_scores=scores.fold_scores)
    tuning = Tuning(RBF(1.0), 3.0, 1.0, 0.1, np.zeros(0), 1, [evaluation], "finished")
    return tuning.sparsest(1.0).C


def test_only_the_best_two_are_validated_on_all_folds_if_the_smallest_C_is_not_asked_for():
    errors = Errors(machines(1.5, 1.02, 1.0, 1.001, 1.002, spread=1e-3))
    errors.race(method=SparseReduction(10, size_tolerance=0.0))
    assert errors.folds_asked == [2, 2, V, V, 2]
    # The kernel's best machine is worse than another kernel's, so none of its `C` is chosen.
    errors.asked.clear()
    best = BestFolds(0.99, 0.99 * errors.fold_scores[2, :, 0])
    errors.race(best, method=SparseReduction(10, size_tolerance=1.0))
    assert errors.folds_asked == [2, 2, V, V, 2]


@pytest.mark.parametrize(("factor", "folds"), [(1.2, 5), (1.1, V), (0.9, V)])
def test_the_rule_of_walks_has_a_larger_margin(factor, folds):
    errors = Errors(machines(1.0))
    best = BestFolds(1 / factor, errors.fold_scores[0, :, 0] / factor, RULE_OF_WALKS)
    scores = errors.race(best)
    assert errors.folds_asked == [folds]
    assert (folds == V) or scores.scores[0] > best.score


@pytest.mark.parametrize(("score", "folds"), [(0.5, 2), (1.0, V), (2.0, V)])
def test_a_kernel_races_against_the_best_one_so_far(score, folds):
    errors = Errors(machines(1.0))
    best = BestFolds(score, score * errors.fold_scores[0, :, 0])
    scores = errors.race(best)
    assert errors.folds_asked == [folds]
    estimate = score + np.mean((1 - score) * errors.fold_scores[0, :2, 0])
    np.testing.assert_allclose(scores.scores, errors.scores if folds == V else estimate)


def test_a_machine_whose_estimate_is_the_least_is_validated_on_all_folds():
    # On the first two folds the third machine is much worse; the others get worse later.
    fold_scores = np.ones((3, V, 1))
    fold_scores[:2, 2:] = 8.0
    fold_scores[2, :2] = 1.5
    errors = Errors(fold_scores)
    scores = errors.race()
    least = np.argmin(scores.scores)
    assert not np.isnan(scores.fold_scores[least]).any()
    np.testing.assert_allclose(scores.scores[least], errors.scores[least])


@pytest.mark.parametrize("rows_in_fold", [100, 500])
@pytest.mark.parametrize("seed", range(20))
def test_the_least_score_of_a_kernel_is_of_all_folds(seed, rows_in_fold):
    rng = np.random.default_rng(seed)
    errors = Errors(rng.gamma(2.0, size=(5, V, 3)), rng.integers(1, 4, V))
    best = BestFolds() if seed % 2 else BestFolds(0.9, rng.gamma(2.0, size=V))
    scores = errors.race(best, rows_in_fold)
    least = np.argmin(scores.scores)
    if scores.scores[least] < best.score:
        assert not np.isnan(scores.fold_scores[least]).any()
        by_size = np.average(errors.fold_scores[least], axis=0, weights=errors.weights)
        np.testing.assert_allclose(scores.scores[least], by_size.min())


@pytest.mark.parametrize("rows_in_fold", [100, 500])
def test_a_method_that_computes_every_fold_is_asked_once(rows_in_fold):
    errors = Errors(machines(1.0, 5.0), ignores_wishes=True)
    scores = errors.race(rows_in_fold=rows_in_fold)
    assert len(errors.asked) == 1
    np.testing.assert_allclose(scores.scores, errors.scores)


@pytest.mark.parametrize("rows_in_fold", [100, 500])
def test_folds_without_weight_have_no_say(rows_in_fold):
    weights = np.ones(V)
    weights[[0, 5]] = 0.0
    errors = Errors(machines(1.0, 1.4), weights)
    scores = errors.race(rows_in_fold=rows_in_fold)
    least = np.average(errors.fold_scores[0, :, 0], weights=weights)
    np.testing.assert_allclose(scores.scores[0], least)


@pytest.mark.parametrize(("rows_in_fold", "folds"), [(100, 2), (500, 1)])
def test_machines_that_cannot_be_trusted_leave_the_race(rows_in_fold, folds):
    fold_scores = machines(1.0, 2.0)
    fold_scores[0] = np.nan
    errors = Errors(fold_scores)
    errors.race(rows_in_fold=rows_in_fold)
    assert errors.folds_asked == [folds, V]


def test_large_folds_are_compared_alone_by_a_wide_margin():
    errors = Errors(machines(1.0, 1.001, 1.25, 1.5, 9.0, spread=1e-3))
    scores = errors.race(rows_in_fold=500)
    assert errors.folds_asked == [V, V, 2, 1, 1]
    assert np.argmin(scores.scores) == np.argmin(errors.scores)
    # One fold tells how much worse a machine is there, and nothing of the other folds.
    gap = errors.fold_scores[3, 0, 0] - errors.fold_scores[np.argmin(errors.scores), 0, 0]
    np.testing.assert_allclose(scores.scores[3], errors.scores.min() + gap)


def test_a_comparison_on_one_fold_leaves_more_than_two_values_of_C():
    errors = Errors(machines(*[1.0] * 5, spread=1e-3))
    errors.race(rows_in_fold=500)
    assert sorted(errors.folds_asked) == [2, 2, 2, V, V]


def test_a_kernel_that_is_far_worse_on_one_large_fold_is_left_out_there():
    errors = Errors(machines(1.0, 1.1))
    best = BestFolds(0.5, 0.5 * errors.fold_scores[0, :, 0], RULE_OF_WALKS)
    scores = errors.race(best, rows_in_fold=500)
    assert errors.folds_asked == [1, 1]
    assert scores.scores.min() > best.score


def test_one_fold_does_not_decide_by_a_few_wrong_rows():
    # Of 500 rows in a fold one machine errs on 0, then 5; the other on 1, then 2.
    shares = np.full((2, V, 1), 0.01)
    shares[0, 0], shares[1], shares[1, 0] = 0.0, 0.004, 0.002
    errors = Errors(shares)
    scores = errors.race(rows_in_fold=500, metric="misclassification")
    assert np.argmin(scores.scores) == 1
    np.testing.assert_allclose(scores.scores[1], errors.scores[1])


def folds_of(sizes, rule, metric="mse"):
    """Return the number of folds in each round."""
    return [int(one.folds.sum()) for one in rounds(np.array(sizes), rule, metric)]


def test_every_round_has_more_folds_than_the_one_before():
    rule = tuple(Comparison(folds, 1, 0.0, 0.1, 2) for folds in (3, 2, 5, 5))
    assert folds_of([100] * 10, rule) == [2, 5]
    assert folds_of([500] * 10, RULE_OF_WALKS, "misclassification") == [3]


@pytest.mark.parametrize(
    ("sizes", "folds"),
    [
        ([1] * 10, [10]), ([20] * 10, [5]), ([100] * 10, [2]), ([500] * 10, [1, 2]),
        ([0, 0, 90, 5, 90, 90], [5]), ([0, 500, 90], [2, 3]), ([500], [1]),
    ],
)  # fmt: skip
def test_machines_are_first_compared_on_one_large_fold_or_two_with_a_hundred_rows(sizes, folds):
    assert folds_of(sizes, RULE) == folds


@pytest.mark.parametrize(("size", "folds"), [(1000, [1, 3]), (499, [2, 3]), (150, [4]), (40, [10])])
def test_walks_compare_machines_on_three_folds_with_five_hundred_rows(size, folds):
    assert folds_of([size] * 10, RULE_OF_WALKS) == folds


def rows(n, task="regression"):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (n, 2))
    y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(n)
    return X, np.where(y > 0, 1, -1) if task == "classification" else y


@pytest.mark.parametrize(
    "method",
    [
        SCDP(6, candidates=20),
        SpSVM(5, candidates=20),
        SparseReduction(20, initialization="dual"),
        pytest.param(SparseReduction(20, loss="prototypes"), marks=pytest.mark.slow),
        pytest.param(SparseReduction(20), marks=pytest.mark.slow),
        # Training with a race, tested below, makes this claim for KSP.
        pytest.param(KSP(4), marks=pytest.mark.slow),
    ],
)
def test_folds_that_are_not_wanted_are_zero_and_the_others_are_unchanged(method):
    task = method.tasks[0]
    X, y = rows(60, task)
    method = method.resolve(jsparse.machines.method.Shape(60, 60, 45, 2, None, False))
    wanted = np.array([[True, False, True, False], [False, False, True, True]])
    C, key = jnp.array([1.0, 10.0]), jax.random.key(0)
    table = rows_of(jnp.asarray(X), jnp.asarray(y, float))
    arguments = RBF(1.0), jnp.asarray(X[:20]), C, table, plain_folds(0, 60, 4)

    @jax.jit
    def validation(wanted):
        on_fold = FoldLosses(Scoring("mse"), wanted=wanted)
        return mean_losses(method.held_out(*arguments, on_fold, key), on_fold.scoring)

    some, every = validation(wanted), validation(None)
    np.testing.assert_array_equal(some.fold_weights > 0, wanted)
    np.testing.assert_array_equal(np.isnan(some.fold_scores).any(axis=2), ~wanted)
    np.testing.assert_array_equal(some.fold_scores[wanted], every.fold_scores[wanted])
    joined = some.joined(validation(~wanted))
    np.testing.assert_allclose(joined.scores, every.scores, rtol=1e-6)
    np.testing.assert_array_equal(joined.fold_scores, every.fold_scores)


@pytest.mark.parametrize(
    "method",
    [pytest.param(SCDP(20, candidates=60), marks=pytest.mark.slow), KSP(n_prototypes=(2, 8))],
)
def test_training_with_a_race_gives_the_same_machine_by_fewer_fits(method, monkeypatch, tmp_path):
    task = method.tasks[0]
    X, y = rows(240, task)
    raced = jsparse.train(X, y, task=task, method=method, key=0, out_of_fold=True)
    monkeypatch.setattr(Profile, "race", None)
    whole = jsparse.train(X, y, task=task, method=method, key=0, out_of_fold=True)
    assert any(np.isnan(e.fold_scores).any() for e in raced.tuning.history)
    assert not any(np.isnan(e.fold_scores).any() for e in whole.tuning.history)
    assert raced.C == whole.C
    np.testing.assert_array_equal(raced.kernel.lengthscale, whole.kernel.lengthscale)
    np.testing.assert_allclose(raced.tuning.score, whole.tuning.score, rtol=1e-6)
    np.testing.assert_array_equal(raced.out_of_fold, whole.out_of_fold)
    np.testing.assert_array_equal(raced.predict(X), whole.predict(X))
    save_history(tmp_path / "history", raced.tuning.history)
    for saved, evaluation in zip(
        load_history(tmp_path / "history"), raced.tuning.history, strict=True
    ):
        np.testing.assert_array_equal(saved.fold_scores, evaluation.fold_scores)


def test_a_walk_near_a_surrogate_races_too(monkeypatch):
    X, y = rows(1000)
    options = {"task": "regression", "method": RVM(10, candidates=30), "key": 0}
    raced = jsparse.train(X, y, **options).tuning
    monkeypatch.setattr(Nearby, "race", None)
    whole = jsparse.train(X, y, **options).tuning
    fits = [
        sum(np.sum(~np.isnan(e.fold_scores)) for e in scored(t.history)) for t in (raced, whole)
    ]
    assert fits[0] < fits[1]
    assert not np.isnan(min(raced.history[10:], key=lambda e: e.least).fold_scores).any()
    assert raced.score < whole.score + 0.5 * whole.standard_error


def test_methods_whose_folds_cost_nothing_do_not_race():
    X, y = rows(300)
    trained = jsparse.train(X, y, task="regression", method=FixedSize(20, "uniform"), key=0)
    assert not any(np.isnan(e.fold_scores).any() for e in trained.tuning.history)


def test_the_reported_metric_is_that_of_a_search_without_a_race(monkeypatch):
    X, y = rows(240, "classification")
    options = {"task": "classification", "method": KSP(n_prototypes=(2, 8)), "key": 0}
    raced = jsparse.train(X, y, **options)
    monkeypatch.setattr(Profile, "race", None)
    whole = jsparse.train(X, y, **options)
    assert raced.curve.metric == whole.curve.metric == "misclassification"
    np.testing.assert_allclose(raced.curve.errors, whole.curve.errors)


def test_only_scores_of_all_folds_may_be_the_sparsest():
    C, folds = np.array([1.0, 10.0]), np.array([[1.0, np.nan], [0.9, 1.1]])
    scores = np.array([1.01, 1.0]), np.array([0.1, 0.1]), np.ones(2, np.int32)
    estimate = Evaluation(np.zeros(0), C, *scores, 0.0)
    known = estimate._replace(fold_scores=np.array([[0.9, 1.12], [0.9, 1.1]]))
    raced = estimate._replace(fold_scores=folds)
    for history, sparsest in (([estimate], 1.0), ([known], 1.0), ([raced], 10.0)):
        tuning = Tuning(
            RBF(1.0), 10.0, 1.0, 0.1, np.zeros(0), 1, history, "finished"
        )  # fmt: skip
        assert sparsest == tuning.sparsest(1.0).C


@pytest.mark.parametrize("C", [None, np.array([10.0])])
def test_a_dual_of_many_rows_is_tuned_near_the_best_of_a_sample(monkeypatch, C):
    X, y = rows(300)
    monkeypatch.setattr(dual, "MOST_SEARCHED", 200)
    monkeypatch.setattr(dual, "SAMPLE", 150)
    trained = jsparse.train(X, y, task="regression", method=Dual(), C=C, key=0, out_of_fold=True)
    assert {e.stage for e in trained.tuning.history} == {0, 1}
    np.testing.assert_allclose(trained.cv_error, np.mean((trained.out_of_fold - y) ** 2), rtol=1e-5)
    monkeypatch.setattr(dual, "MOST_SEARCHED", 2000)
    whole = jsparse.train(X, y, task="regression", method=Dual(), C=C, key=0)
    assert trained.cv_error <= 1.2 * whole.cv_error


def test_a_dual_tries_no_C_that_rounding_forbids(monkeypatch):
    # The targets have no noise, so the error falls as `C` grows, until float32 loses the digits.
    monkeypatch.setattr(dual, "MOST_SEARCHED", 500)
    monkeypatch.setattr(dual, "SAMPLE", 200)
    X = np.random.default_rng(0).normal(size=(600, 2)).astype(np.float32)
    y = np.sin(X[:, 0]) + X[:, 1] ** 2 / 4
    trained = jsparse.train(X, y, task="regression", method=Dual(), key=0)
    walk = [e for e in trained.tuning.history if e.stage == 1]
    assert len(walk) > 3
    assert all(np.all(e.status == CONVERGED) for e in walk)
    stated = {"kernel": trained.kernel, "search": Profile(tune_kernel=False), "C": 10 * trained.C}
    larger = jsparse.train(X, y, task="regression", method=Dual(), key=0, **stated)
    assert larger.tuning.status == PRECISION_LOST


@pytest.mark.parametrize("key", range(4))
def test_the_sample_of_a_dual_has_rows_of_rare_classes(monkeypatch, key):
    X, y = rows(120)
    y = np.where(np.arange(120) < 2, np.arange(120), 2)  # two classes of one row each
    monkeypatch.setattr(dual, "MOST_SEARCHED", 100)
    monkeypatch.setattr(dual, "SAMPLE", 40)
    multiclass = jsparse.Multiclass("one_versus_one")
    trained = jsparse.train(
        X, y, task="classification", method=Dual(), key=key, multiclass=multiclass
    )
    assert np.isfinite(trained.cv_error)
