"""Tuning in stages: one history, one time limit and one report of progress for all of them."""

import contextlib
import dataclasses
import functools
import itertools
import time

import jax
import numpy as np
import pytest

import jsparse
from jsparse import SCDP, FixedSize, Gradient, Profile, Resources, SpSVM
from jsparse._status import COMPLETED, NOT_FINITE, PRECISION_LOST
from jsparse.data.streams import ArrayStream
from jsparse.kernels import RBF
from jsparse.search.descent import Slope
from jsparse.search.problem import Problem
from jsparse.search.run import Run, _Stop
from jsparse.search.scores import Scores, least_of_sizes
from jsparse.search.template import split_kernel
from jsparse.validation.validate import Scoring, Validation

SMALLEST = 2.0**-130  # a unit of the targets, in which squares are far from 1
METHODS = {
    "sizes": FixedSize((5, 20), selection="uniform"),
    "tuned_with": FixedSize(20, selection="uniform", tuned_with=5),
    "SpSVM": SpSVM(max_prototypes=3, candidates=12),
}
SPSVM = pytest.param("SpSVM", marks=pytest.mark.slow)
NAMES = ["sizes", "tuned_with", SPSVM]
SLOW = {
    "moved": FixedSize(6),
    "reduced set": jsparse.ReducedSetSVM(3),
    "reduction": jsparse.SparseReduction(8),
}


def data(name):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((90, 2))
    y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(90)
    if name in ("SpSVM", "reduced set"):
        return (X, y > 0), "classification"
    return (X, SMALLEST * y), "regression"


def search_of(name):
    if name == "moved":
        return Gradient(max_evaluations=6, elimination=False, move_prototypes=True)
    return Profile(4)


def trained(name, *, history=None, stream=None, **options):
    rows, task = data(name)
    if stream is not None:
        rows = (stream(*rows),)
    search = dataclasses.replace(search_of(name), history=history)
    method = {**METHODS, **SLOW}[name]
    return jsparse.train(
        *rows, task=task, method=method, search=search, key=1, folds=3, out_of_fold=False, **options
    )


@functools.cache
def whole(name):
    """Return what a run that nothing stops ends with."""
    return trained(name)


def count_of(history, stage):
    return sum(e.stage == stage for e in history)


@pytest.fixture
def evaluated(monkeypatch):
    """Record the kernels that are evaluated, each with its `C`."""
    kernels, scores = [], Problem.scores

    def counted(problem, thetas, C, scoring, best):
        kernels.extend(zip(thetas, C, strict=True))
        return scores(problem, thetas, C, scoring, best)

    monkeypatch.setattr(Problem, "scores", counted)
    return kernels


@pytest.fixture
def clock(monkeypatch):
    """Return a list of one number, which is added to the time."""
    ahead, now = [0.0], time.perf_counter
    monkeypatch.setattr("time.perf_counter", lambda: now() + ahead[0])
    return ahead


class Broken(Exception):
    pass


def stopped_history(name, way, k, clock, known=None):
    """Return the evaluations of a run that is stopped when it reports the `k`-th."""

    def progress(done, planned, best):
        if done == k:
            clock[0] += 1e6
            if way != "seconds":
                raise KeyboardInterrupt if way == "interrupted" else Broken

    options = {"history": known, "progress": progress, "resources": Resources(max_seconds=1e5)}
    if way == "error":
        with pytest.raises(Broken) as caught:
            trained(name, **options)
        history = caught.value.history
        (note,) = caught.value.__notes__
        assert f"the {len(history)} evaluations" in note
        return history
    tuning = trained(name, **options).tuning
    assert known or tuning.stopped == way
    return tuning.history


def check_same_end(model, expected):
    X = data("SpSVM")[0][0]
    np.testing.assert_array_equal(model.expansion(X), expected.expansion(X))
    assert (model.C, model.cv_error) == (expected.C, expected.cv_error)
    assert model.tuning.stopped == "finished"
    for one, other in zip(model.tuning.history, expected.tuning.history, strict=True):
        assert one.stage == other.stage
        for a, b in zip(one[:5], other[:5], strict=True):  # all but the seconds
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("sizes", "interrupted"),
        ("tuned_with", "error"),
        ("sizes", "seconds"),
        pytest.param("SpSVM", "error", marks=pytest.mark.slow),
    ],
)
def test_a_run_stopped_in_its_second_stage_goes_on(name, way, clock, evaluated, tmp_path):
    expected = whole(name)
    first = count_of(expected.tuning.history, 0)
    history = stopped_history(name, way, first + 1, clock)
    assert (count_of(history, 0), count_of(history, 1)) == (first, 1)
    jsparse.save_history(tmp_path / "history", history)
    known = jsparse.load_history(tmp_path / "history")
    evaluated.clear()
    again = trained(name, history=known)
    check_same_end(again, expected)
    # The new evaluations, and one for each stage, whose best evaluation is repeated as a check.
    assert len(evaluated) == len(expected.tuning.history) - len(history) + 2
    assert [e.seconds for e in again.tuning.history[: len(history)]] == [e.seconds for e in history]


@pytest.mark.slow
@pytest.mark.usefixtures("one_kernel_at_a_time")
def test_a_stage_after_one_that_was_stopped_is_run_again(clock, evaluated):
    # Its evaluation is of the best kernel until then, which is not the best of all.
    expected = whole("SpSVM")
    history = stopped_history("SpSVM", "interrupted", 1, clock)
    assert [e.stage for e in history] == [0, 1]
    assert history[1].scores.min() != expected.tuning.history[-1].scores.min()
    evaluated.clear()
    check_same_end(trained("SpSVM", history=history), expected)
    assert len(evaluated) == len(expected.tuning.history)  # one is known, and checked


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("tuned_with", "interrupted"),
        ("sizes", "error"),
        ("tuned_with", "seconds"),
        pytest.param("SpSVM", "interrupted", marks=pytest.mark.slow),
    ],
)
def test_what_is_known_of_later_stages_is_not_lost(name, way, clock, evaluated):
    expected = whole(name)
    kept = len(expected.tuning.history)
    if way == "seconds":
        kept -= 1  # what is known takes no time
    known = expected.tuning.history[:kept]
    history = stopped_history(name, way, 2, clock, known)
    assert [(e.stage, e.seconds) for e in sorted(history, key=lambda e: (e.stage, e.seconds))][
        :kept
    ] == [(e.stage, e.seconds) for e in known]
    evaluated.clear()
    check_same_end(trained(name, history=history), expected)
    stages = len({e.stage for e in history})
    assert len(evaluated) == stages + len(expected.tuning.history) - len(history)


class Failing(ArrayStream):
    """A stream whose pass number `fails` ends in an error."""

    fails, passes = 0, 0

    def __iter__(self):
        self.passes += 1
        for i, batch in enumerate(super().__iter__()):
            if i == 1 and self.passes == self.fails:
                raise OSError("the disk is gone")
            yield batch


@pytest.mark.slow
def test_a_stream_that_breaks_in_the_second_stage_loses_no_evaluation(monkeypatch):
    def stream(X, y):
        # A batch of kernels for each pass is decided by memory; here of any number.
        return Failing(X, y, batch_rows=40)

    expected = trained("sizes", stream=stream)
    histories = []
    for fails in itertools.count(2):
        monkeypatch.setattr(Failing, "fails", fails)
        try:
            trained("sizes", stream=stream)
        except OSError as error:
            histories.append(getattr(error, "history", []))
        else:
            break
    assert [len(history) for history in histories] == sorted(map(len, histories))
    (history, *_) = [one for one in histories if count_of(one, 1) > 0]
    assert count_of(history, 0) == count_of(expected.tuning.history, 0)
    for ours, theirs in zip(history, expected.tuning.history, strict=False):
        np.testing.assert_array_equal(ours.scores, theirs.scores)  # in units of the targets
    monkeypatch.setattr(Failing, "fails", 0)
    check_same_end(trained("sizes", stream=stream, history=history), expected)


@pytest.mark.usefixtures("one_kernel_at_a_time")
@pytest.mark.parametrize("name", NAMES)
def test_one_time_limit_holds_for_all_stages(name, monkeypatch, clock):
    expected = whole(name)
    starts, scores = [], Problem.scores

    def slow(problem, thetas, C, scoring, best):
        starts.append(clock[0])
        clock[0] += 1e4 * len(thetas)
        return scores(problem, thetas, C, scoring, best)

    monkeypatch.setattr(Problem, "scores", slow)
    first = count_of(expected.tuning.history, 0)
    for evaluations in (1, first, first + 1):
        starts.clear()
        clock[0] = 0.0
        seconds = 1e4 * evaluations - 5e3
        model = trained(name, resources=Resources(max_seconds=seconds))
        needed = name == "SpSVM"  # without its second stage there is no machine
        assert len(starts) == len(model.tuning.history)
        within = [start for start in starts if start <= seconds]
        assert len(within) == evaluations
        assert len(starts) - len(within) == (needed and evaluations <= first)
        complete = len(starts) == len(expected.tuning.history) and evaluations >= first
        assert model.tuning.stopped == ("finished" if complete else "seconds")


@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(s, marks=pytest.mark.slow) for s in SLOW)])
def test_one_report_of_progress_counts_all_stages(name):
    reports = []
    model = trained(name, progress=lambda *report: reports.append(report))
    history, (done, planned, best) = model.tuning.history, zip(*reports, strict=True)
    assert list(done) == list(range(1, len(history) + 1))
    assert all(isinstance(p, int) and d <= p for d, p in zip(done, planned, strict=True))
    last = {e.stage for e in history}
    if name in ("SpSVM", "reduced set", "reduction"):  # the first stage is of another machine
        last = {1}
    scores = [float(e.trusted.min()) for e in history if not e.slope.size]
    of_last = [float(e.trusted.min()) for e in history if e.stage in last and not e.slope.size]
    assert best[-1] == min(of_last)
    assert min(scores) in best
    if name in METHODS:
        first = count_of(history, 0)
        # The number that is known from the first report on is not exceeded.
        assert max(planned) == planned[0] == {"SpSVM": 5, "sizes": 8, "tuned_with": 9}[name]
        assert planned[:first] == planned[:1] * first


@pytest.mark.slow
@pytest.mark.usefixtures("one_kernel_at_a_time")
@pytest.mark.parametrize("name", SLOW)
def test_other_methods_go_on_from_any_evaluation(name, clock):
    expected = whole(name)
    for k in range(1, len(expected.tuning.history) + 1):
        history = stopped_history(name, "error", k, clock)
        assert len(history) == k
        check_same_end(trained(name, history=history), expected)


def without_digits(monkeypatch, stage):
    """Let every evaluation of a stage lose its digits."""
    evaluate = jsparse.search.run.Run._evaluate

    def lost(run, *arguments):
        evaluations = evaluate(run, *arguments)
        return [
            e._replace(scores=e.scores + np.inf) if e.stage == stage else e for e in evaluations
        ]

    monkeypatch.setattr("jsparse.search.run.Run._evaluate", lost)


def test_evaluations_of_a_stage_that_fails_are_kept(monkeypatch):
    kept = whole("tuned_with").tuning.history
    without_digits(monkeypatch, 1)
    model = trained("tuned_with")  # the machine of the first stage
    assert model.model.size == 5
    assert model.tuning.stopped == "finished"
    assert count_of(model.tuning.history, 0) == count_of(kept, 0)
    assert count_of(model.tuning.history, 1) > 0


@pytest.mark.slow
def test_evaluations_of_a_stage_that_is_needed_and_fails_are_kept(monkeypatch):
    without_digits(monkeypatch, 1)
    with pytest.raises(jsparse.NumericalError, match="no kernel and C") as caught:
        trained("SpSVM")
    stages = [e.stage for e in caught.value.history]
    assert stages[:4] == [0, 0, 0, 0]
    assert set(stages[4:]) == {1}


def table_that_rounding_decides():
    """Return a table, and options of `train`.

    The kernel is so smooth that in float32 rounding decides the machine if `C` is 1e9 or more.
    """
    X = np.random.default_rng(0).uniform(size=(100, 2)).astype(np.float32)
    y = np.sin(6 * X[:, 0]) + X[:, 1]
    search = Profile(tune_kernel=False)
    return (X, y), {"task": "regression", "key": 0, "kernel": RBF(20.0), "search": search}


UNIFORM = functools.partial(FixedSize, selection="uniform")  # `train_many` has no batches for it


@pytest.mark.usefixtures("jax_in_float32")
@pytest.mark.parametrize(
    "choice",
    [
        {"C": np.array([1e9, 1e10])},
        pytest.param({"search": Profile(max_evaluations=1)}, marks=pytest.mark.slow),
        pytest.param({"method": UNIFORM((40, 50))}, marks=pytest.mark.slow),
    ],
    ids=lambda choice: next(iter(choice)),
)
def test_no_choice_is_made_among_machines_that_rounding_decides(choice):
    rows, stated = table_that_rounding_decides()
    with pytest.raises(jsparse.NumericalError, match="no kernel and C"):
        jsparse.train(*rows, **{"C": 1e9, "method": UNIFORM(40)} | stated | choice)


@pytest.mark.usefixtures("jax_in_float32")
def test_a_stated_machine_that_rounding_decides_has_its_stop_code():
    (X, y), stated = table_that_rounding_decides()
    model = jsparse.train(X, y, C=1e9, method=UNIFORM(40), **stated)
    assert model.statuses["cross-validation"] == PRECISION_LOST
    many = jsparse.train_many([(X, y)], C=1e9, method=FixedSize(40), **stated)
    assert not many.alone
    assert many.statuses["cross-validation"].tolist() == [PRECISION_LOST]
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.usefixtures("one_kernel_at_a_time")
@pytest.mark.parametrize("name", ["tuned_with", SPSVM])
def test_ctrl_c_before_a_stage_has_a_result(name, monkeypatch):
    calls, scores = itertools.count(1), Problem.scores

    def interrupted(*arguments):
        if next(calls) > 4:
            raise KeyboardInterrupt
        return scores(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Problem, "scores", interrupted)
        if name == "SpSVM":  # without its second stage there is no machine
            with pytest.raises(KeyboardInterrupt) as caught:
                trained(name)
            history = caught.value.history
        else:
            tuning = trained(name).tuning
            assert tuning.stopped == "interrupted"
            history = tuning.history
    assert len(history) == 4
    check_same_end(trained(name, history=history), whole(name))


@pytest.mark.slow
def test_ctrl_c_brings_evaluations_in_units_of_the_targets(monkeypatch):
    expected, scores = whole("reduction"), Problem.scores
    first = count_of(expected.tuning.history, 0)

    def interrupted(problem, *arguments):
        if isinstance(problem.method, jsparse.SparseReduction):
            raise KeyboardInterrupt
        return scores(problem, *arguments)

    monkeypatch.setattr(Problem, "scores", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        trained("reduction")
    assert len(caught.value.history) == first
    for ours, theirs in zip(caught.value.history, expected.tuning.history, strict=False):
        np.testing.assert_array_equal(ours.scores, theirs.scores)
        assert np.all(ours.scores < SMALLEST)


@pytest.mark.parametrize("name", NAMES)
def test_a_start_with_other_parameters_and_a_history_of_other_rows_are_refused(name):
    (X, y), task = data(name)
    options = {"task": task, "method": METHODS[name], "key": 1, "folds": 3}
    tuning = whole(name).tuning
    start = Profile(4, start=tuning._replace(theta=np.zeros(2)))
    with pytest.raises(ValueError, match="start: expected the result of a search over kernel par"):
        jsparse.train(X, y, search=start, **options)
    history = Profile(4, history=tuning.history)
    with pytest.raises(ValueError, match="history: expected evaluations of the same problem"):
        jsparse.train(np.roll(X, 1, axis=0), y, search=history, **options)


def test_a_callback_that_runs_out_is_an_error():
    answers = iter(range(2))
    with pytest.raises(StopIteration):
        trained("sizes", progress=lambda *report: next(answers))


class Parabola:
    """A problem that is not of rows: its error is a parabola of the log of a lengthscale."""

    dtype, rows_scored = np.dtype(float), 100

    def __init__(self, kernels_at_once):
        self.template = split_kernel(jsparse.kernels.RBF(1.0), self.dtype)
        self.kernels_at_once, self.calls = kernels_at_once, []

    def scores(self, thetas, C, scoring, best=None):
        self.calls.append(len(thetas))
        errors = 1 + (thetas[:, :1] - 0.3) ** 2 + 0 * C
        return Scores(errors, 0 * errors, np.zeros(errors.shape, np.int32), errors[..., None])


@pytest.mark.parametrize("kernels_at_once", [1, 3, 100])
def test_a_batch_is_evaluated_without_the_kernels_that_are_known(kernels_at_once):
    def tuned(problem, history=None):
        return jsparse.tune(
            problem, key=jax.random.key(0), metric="mse", low=np.array([-1.0]),
            high=np.array([1.0]), C=np.ones(2), search=Profile(10, history=history),
        )  # fmt: skip

    alone = tuned(Parabola(1))
    problem = Parabola(kernels_at_once)
    again = tuned(problem, alone.history[:4])
    assert [e.theta[0] for e in again.history] == [e.theta[0] for e in alone.history]
    assert sum(problem.calls) == 1 + len(alone.history) - 4


def test_ctrl_c_between_the_reports_of_a_batch_loses_no_evaluation():
    def stop(done, planned, best):
        if done == 2:
            raise KeyboardInterrupt

    tuning = jsparse.tune(
        Parabola(3), key=jax.random.key(0), metric="mse", low=np.array([-1.0]),
        high=np.array([1.0]), C=np.ones(2), search=Profile(10), progress=stop,
    )  # fmt: skip
    assert tuning.stopped == "interrupted"
    assert len(tuning.history) == 3


def test_lost_digits_count_unless_the_method_says_that_the_errors_show_them():
    errors = np.array([[3.0, 1.0, 2.0], [5.0, 4.0, 6.0]])
    status = np.array([PRECISION_LOST, NOT_FINITE], np.int32)
    folds = np.stack([errors, errors + 2], axis=1)
    validation = Validation(errors, folds, np.ones((2, 2)), status)
    of_path, of_one = (least_of_sizes(m, validation) for m in (SCDP(3), FixedSize(3)))
    for scores in (of_path, of_one):
        np.testing.assert_array_equal(scores.scores, [1.0, 4.0])
        np.testing.assert_allclose(scores.standard_errors, [1.0, 1.0])
    assert of_path.status.tolist() == [COMPLETED, NOT_FINITE]
    assert of_one.status.tolist() == [PRECISION_LOST, NOT_FINITE]
    assert of_path.status.dtype == of_one.status.dtype == np.int32


@pytest.mark.parametrize("resumed", [False, True])
def test_a_gradient_leaves_time_to_score_the_kernel_at_its_end(monkeypatch, resumed):
    """Kernels of one batch share one time; times in a given history come from another machine."""
    now = 0.0

    class Batched:
        template, dtype = split_kernel(RBF(1.0), np.dtype(float)), np.dtype(float)
        rows_scored, kernels_at_once = 30, 4

        def scores(self, thetas, C, scoring, best=None):
            nonlocal now
            now += 2.0 * len(thetas)
            errors = 1 + np.sum(np.square(thetas), axis=1)[:, None] + 0 * C
            return Scores(errors, 0 * errors, np.zeros(errors.shape, np.int32), errors[..., None])

    def slope():
        calls.append(now)
        return Slope(0.0, np.zeros(2), 1.0)

    monkeypatch.setattr("time.perf_counter", lambda: now)
    thetas, calls, history = np.linspace(-1, 1, 4)[:, None], [], []
    common = Profile(4), Scoring("mse"), jax.random.key(0), np.ones(1), (-np.ones(1), np.ones(1))
    if resumed:
        first = Run(Batched(), *common, 1e9, None, [])
        first.scores(thetas)
        history, now = [e._replace(seconds=9.0 - i) for i, e in enumerate(first.history)], 6.0
    # Scoring a kernel takes 2 seconds, at a time of 8; the run has scored four, or one again.
    for deadline, slopes in ((11.0, 1), (9.0, 0)):
        run, start = Run(Batched(), *common, deadline, None, history), now
        run.scores(thetas)
        calls.clear()
        with contextlib.nullcontext() if slopes else pytest.raises(_Stop):
            run.slope(np.zeros(1), 1.0, slope)
        assert len(calls) == slopes
        now = start
