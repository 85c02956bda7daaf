"""Stop codes: their order, the warnings and errors they raise, and the status of joined parts."""

import dataclasses
import functools
import itertools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse
from jsparse import _status
from jsparse._files import save_state
from jsparse._status import (
    ADVICE,
    COMPLETED,
    CONVERGED,
    EXHAUSTED,
    INDEFINITE,
    NOT_FINITE,
    PRECISION_LOST,
    RUNNING,
    TRUNCATED,
    VANISHED,
    check,
)
from jsparse.cli import commands as command_line
from jsparse.cli import report
from jsparse.estimators import FixedSizeLSSVMRegressor
from jsparse.features import Nystroem
from jsparse.kernels import RBF, Linear
from jsparse.machines import candidates, dual, robust, scdp
from jsparse.machines.method import TrainingRows
from jsparse.machines.nested import nested_family
from jsparse.multiclass import accumulate_code, output_code, solve_code
from jsparse.prototypes import choice, k_means, renyi
from jsparse.search.strategies import Profile
from jsparse.search.template import split_kernel
from jsparse.search.tune import tune
from jsparse.validation import cross_validation
from jsparse.validation import validate as validation
from jsparse.validation.folds import folds_from_assignment

GOOD = (CONVERGED, COMPLETED, TRUNCATED)
BAD = (VANISHED, EXHAUSTED, PRECISION_LOST, NOT_FINITE, INDEFINITE)
WARNINGS = {
    RUNNING: jsparse.ConvergenceWarning,
    TRUNCATED: jsparse.PrecisionWarning,
    VANISHED: jsparse.ConvergenceWarning,
    EXHAUSTED: jsparse.ConvergenceWarning,
    PRECISION_LOST: jsparse.PrecisionWarning,
}
KEY = jax.random.key(0)


def test_every_bad_status_is_above_every_good_one():
    assert sorted(ADVICE) == list(range(9))
    for good, bad in itertools.product(GOOD, BAD):
        assert max(good, bad) == bad
        assert _status.trusted(good)
        assert not _status.trusted(bad)
    # A joined status is CONVERGED only if every part is.
    assert min(GOOD) == CONVERGED


@pytest.mark.parametrize("code", ADVICE)
def test_each_status_is_reported_alone_and_beside_good_ones(code):
    for status in (code, jnp.asarray([COMPLETED, code, CONVERGED])):
        if code in (NOT_FINITE, INDEFINITE):
            with pytest.raises(jsparse.NumericalError, match=f"the fit: {ADVICE[code][:20]}"):
                check(status, "the fit")
        elif code in WARNINGS:
            with pytest.warns(WARNINGS[code], match=f"the fit: {ADVICE[code][:20]}"):
                check(status, "the fit")
        else:
            check(status, "the fit")  # warnings are errors


def test_a_batch_is_reported_by_kind_number_and_place():
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        check(jnp.asarray([EXHAUSTED, CONVERGED, PRECISION_LOST]))
    assert {w.category for w in raised} == {jsparse.PrecisionWarning, jsparse.ConvergenceWarning}
    check(jnp.zeros(0, jnp.int32))
    with pytest.raises(ValueError, match=r"status: expected stop codes.*got dict"):
        check({"fit": CONVERGED})
    statuses = np.full(100, CONVERGED)
    statuses[[0, 1, 4, 9]] = PRECISION_LOST
    with pytest.warns(
        jsparse.PrecisionWarning, match=r"^the fit: .* 4 of 100 \(first 0, 1, 4\)\.$"
    ):
        check(statuses, "the fit")
    table = np.full((2, 3), CONVERGED)
    table[1] = EXHAUSTED, CONVERGED, NOT_FINITE
    with (
        pytest.warns(jsparse.ConvergenceWarning, match=r" 1 of 6 \(first \(1, 0\)\)\.$"),
        pytest.raises(jsparse.NumericalError, match=r" 1 of 6 \(first \(1, 2\)\)\.$"),
    ):
        check(table)
    with pytest.raises(ValueError, match="status: expected numbers, got an array that JAX"):
        jax.jit(check)(statuses)


def rows(n=30, d=2, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)))


@pytest.fixture
def fresh():
    """Clear compiled programs before and after a test that patches functions they trace."""
    programs = validation._validate_rows, robust._fit
    for program in programs:
        program.clear_cache()
    yield
    for program in programs:
        program.clear_cache()


@pytest.mark.slow
def test_validation_reports_one_output_of_one_fold_that_is_exhausted(monkeypatch, fresh):
    solve = robust.solve

    def cut(Phi, y, seen, *rest, **options):
        is_marked = (y[0] == 7) & (seen[0] == 0)  # row 0 has target 7 and is held out
        status = jnp.where(is_marked, EXHAUSTED, CONVERGED).astype(jnp.int32)
        return solve(Phi, y, seen, *rest, **options)._replace(status=status)

    monkeypatch.setattr(robust, "solve", cut)
    X, C = rows(), jnp.asarray([1.0, 10.0])
    folds = folds_from_assignment(np.arange(30) % 3)
    for first, end in ((6.0, CONVERGED), (7.0, EXHAUSTED)):
        y = X.at[0, 1].set(first)
        cv = jsparse.validate(
            jsparse.Robust(loss="absolute"), RBF(1.0), X[:5], C, X, y, folds, metric="mae"
        )
        np.testing.assert_array_equal(cv.status, end)


@pytest.mark.parametrize(
    ("method", "least"),
    [
        ("subtraction", NOT_FINITE),
        pytest.param("removal", PRECISION_LOST, marks=pytest.mark.slow),
    ],
)
def test_validation_reports_a_fold_that_holds_all_weight(method, least):
    X, assignment = rows(), np.arange(30) % 3
    folds = folds_from_assignment(assignment)
    phi, C = Nystroem(RBF(1.0), X[:5]), jnp.asarray([1.0, 10.0])
    w = jnp.asarray(assignment == 0, X.dtype)
    cv = cross_validation.cross_validate(phi, C, X, X[:, 0], folds, w, method=method)
    assert (np.asarray(cv.status) >= least).all()
    even = cross_validation.cross_validate(phi, C, X, X[:, 0], folds, w + 1, method=method)
    np.testing.assert_array_equal(even.status, CONVERGED)


def test_validation_reports_one_path_that_is_exhausted(monkeypatch, fresh):
    """The path of the fold with all nonzero targets is exhausted."""
    select_atoms = scdp.select

    def select(A, b, *rest, **options):
        path = select_atoms(A, b, *rest, **options)
        bad = jnp.all(b == 0, axis=(1, 2))
        return path._replace(status=jnp.where(bad, EXHAUSTED, path.status).astype(jnp.int32))

    monkeypatch.setattr(scdp, "select", select)
    X, assignment = rows(), np.arange(30) % 3
    y, folds = np.where(assignment == 0, X[:, 0], 0), folds_from_assignment(assignment)
    C = jnp.asarray([1.0, 10.0])
    rest = jnp.asarray(y), folds
    cv = jsparse.validate(jsparse.SCDP(3), RBF(1.0), X[:6], C, X, *rest, metric="mse")
    np.testing.assert_array_equal(cv.status, EXHAUSTED)


def test_one_failed_problem_fails_the_fit_of_several_classes():
    X, labels = rows(), jnp.asarray(np.arange(30) % 3, jnp.int32)
    code = output_code("one_versus_rest", 3)
    sums = accumulate_code(code, Nystroem(RBF(2.0), X[:8]), X, labels)
    solved = jax.jit(lambda last: solve_code(code, sums, jnp.array([[1.0, 1.0, last]])).status)
    assert (solved(1.0), solved(np.nan)) == (CONVERGED, NOT_FINITE)

    @jax.jit
    def fitted(last):
        return dual.fit_classes(RBF(2.0), jnp.array([1.0, 1.0, last]), X, labels, code).status

    assert (fitted(1.0), fitted(1e25)) == (CONVERGED, PRECISION_LOST)


def test_one_failed_problem_fails_leave_one_out():
    """The third class lies so far away that its kernel values round by more than 1/C."""
    labels = np.arange(30) % 3
    X, C, folds = np.asarray(rows()), jnp.asarray([1e4]), folds_from_assignment(np.arange(30))
    far = X * np.where(labels == 2, 1e6, 1.0)[:, None]
    code = output_code("one_versus_one", 3)
    for Z, end in ((X, CONVERGED), (far, PRECISION_LOST)):
        data = jnp.asarray(Z), jnp.asarray(labels, jnp.int32), folds
        cv = jsparse.validate(
            jsparse.Dual(), Linear(), None, C, *data, metric="misclassification", code=code
        )
        np.testing.assert_array_equal(cv.status, end)
    first = labels < 2
    _, alone = dual.leave_one_out(Linear(), C, *jax.device_put((far[first], X[first, 0])))
    np.testing.assert_array_equal(alone, CONVERGED)


def test_the_status_of_a_size_joins_targets_and_the_path_up_to_the_size():
    X = np.asarray(rows())
    y = np.stack([X[:, 0], X[:, 1]], axis=1)
    Z, X, y = jax.device_put((X[:6], X, y))
    path = scdp.fit(RBF(1.0), Z, 1.0, X, y, max_prototypes=4, selection="separate")
    np.testing.assert_array_equal(path.info["path_status"], COMPLETED)
    np.testing.assert_array_equal(path.info["coefficient_status"], CONVERGED)

    def changed(name, place, value):
        array = np.array(path.info[name])
        array[place] = value
        return jax.device_put(array)

    def statuses(**changes):
        parts = {"support": path.support, "coefficients": path.coefficients}
        parts |= {"intercepts": path.intercepts, **path.info, **changes}
        family = nested_family(path.kernel, path.points, path.outputs, **parts)
        return [family.status_at(size) for size in (1, 2, 3, 4)]

    assert statuses() == [path.status_at(size) for size in (1, 2, 3, 4)] == [COMPLETED] * 4
    for bad in BAD:
        joined = statuses(path_status=changed("path_status", 1, bad))
        # INDEFINITE ended the path after its last prototype, so shorter machines are good.
        assert joined == [COMPLETED if bad == INDEFINITE else bad] * 3 + [bad]
    exhausted = changed("coefficient_status", (1, 1), EXHAUSTED)
    joined = statuses(coefficient_status=exhausted)
    assert joined == [COMPLETED, EXHAUSTED, COMPLETED, COMPLETED]
    error = changed("coefficient_error", (0, 1), 1.0)
    assert statuses(coefficient_status=exhausted, coefficient_error=error)[1] == PRECISION_LOST


class ScoredProblem:
    """A tuning problem with fixed scores, and with the statuses of their computation."""

    def __init__(self, statuses):
        dtype = jnp.dtype("float64")
        self.template = split_kernel(RBF(1.0), dtype, tune_kernel=True)
        self.dtype, self.rows_scored, self.kernels_at_once = dtype, 10, 1
        self.statuses = jnp.asarray([statuses])

    def scores(self, thetas, C, scoring, best):
        errors = jnp.asarray([[3.0, 1.0, 2.0]])
        return errors, jnp.ones((1, 3)), self.statuses, errors[..., None]


@pytest.mark.parametrize(
    ("statuses", "best"),
    [
        ((CONVERGED, EXHAUSTED, CONVERGED), 1),
        ((EXHAUSTED, COMPLETED, CONVERGED), 1),
        ((CONVERGED, PRECISION_LOST, CONVERGED), 2),
        ((CONVERGED, NOT_FINITE, TRUNCATED), 2),
    ],
)
def test_tuning_returns_the_status_of_the_best_score(as_users_call, statuses, best):
    tuning = tune(
        ScoredProblem(statuses), key=KEY, metric="mse", low=np.zeros(1), high=np.ones(1),
        C=np.array([1.0, 2.0, 4.0]), search=Profile(1),
    )  # fmt: skip
    assert int(tuning.C) == 2**best
    assert tuning.status == statuses[best]


def test_the_status_of_the_choice_of_prototypes_is_passed_on(monkeypatch):
    X = rows(60)
    choose = functools.partial(renyi, bandwidth=jnp.ones(2))

    def points_of(method):
        return method.choose_points(
            KEY, RBF(1.0), TrainingRows(X, None, np.ones(60), jsparse.standardize(X), 60)
        )

    def by(name):
        return jsparse.SCDP(3, candidates=8, candidate_method=name)

    assert choice.choose_rows(KEY, "uniform", X, 8, None, np.ones(60), 60)[1] == CONVERGED
    for cap, end in ((10**4, CONVERGED), (1, EXHAUSTED)):
        monkeypatch.setattr(choice, "renyi", functools.partial(choose, max_trials=cap))
        assert choice.choose_rows(KEY, "renyi", X, 8, None, np.ones(60), 60)[1] == end
        for method in (jsparse.FixedSize(8), jsparse.Robust([4, 8]), by("renyi")):
            assert points_of(method).status == end
    monkeypatch.setattr(candidates, "k_means", functools.partial(k_means, max_iterations=1))
    assert points_of(by("k_means")).status == EXHAUSTED
    selection = choose(KEY, X, 8, max_trials=10**4)
    capped = selection.bandwidth._replace(status=jnp.asarray([CONVERGED, EXHAUSTED]))
    monkeypatch.setattr(choice, "renyi", lambda *_, **__: selection._replace(bandwidth=capped))
    assert choice.choose_rows(KEY, "renyi", X, 8, None, np.ones(60), 60)[1] == EXHAUSTED


@pytest.fixture(scope="module")
def model():
    X = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    return jsparse.train(
        X, X[:, 0], task="regression", key=KEY, method=jsparse.FixedSize(5, selection="uniform"),
        folds=3, C=np.ones(1), search=Profile(1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "part"),
    [
        ((EXHAUSTED, CONVERGED, CONVERGED), "fit"),
        ((CONVERGED, EXHAUSTED, CONVERGED), "choice of prototypes"),
        ((CONVERGED, CONVERGED, EXHAUSTED), "cross-validation"),
        ((CONVERGED, COMPLETED, TRUNCATED), None),
    ],
)
def test_estimators_and_the_command_line_name_the_part_that_is_not_trusted(
    as_users_call, capsys, monkeypatch, model, ends, part
):
    fit, selection, tuning = ends
    model = dataclasses.replace(
        model,
        fit=eqx.tree_at(lambda family: family.statuses, model.fit, np.array([fit], np.int32)),
        selection_status=selection,
        tuning=model.tuning._replace(status=tuning),
    )
    monkeypatch.setattr("jsparse.estimators._base.train", lambda *_, **__: model)
    X = np.asarray(rows())
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        FixedSizeLSSVMRegressor(5).fit(X, X[:, 0])
        code = command_line._exit_code(model)
    report._print_status(model.statuses)
    printed = capsys.readouterr().out
    messages = [str(warning.message) for warning in raised]
    if part is None:
        assert (messages, code) == ([], command_line.DONE)
        assert printed.splitlines() == [f"{'status':<16}{ADVICE[CONVERGED]}"]
    else:
        assert code == command_line.UNTRUSTED
        assert {warning.category for warning in raised} == {jsparse.ConvergenceWarning}
        ended = "fit with max_iter=200: stop" if part == "fit" else f"{part}: stop"
        assert any(text.startswith(f"FixedSizeLSSVMRegressor, {ended}") for text in messages)
        assert any(text.startswith(f"the {part}: stopped") for text in messages)
        assert ADVICE[EXHAUSTED] in printed


@pytest.mark.slow
def test_training_reports_that_the_choice_of_prototypes_was_stopped(monkeypatch):
    monkeypatch.setattr(choice, "renyi", functools.partial(renyi, max_trials=1))
    X = np.asarray(rows(60))
    estimator = FixedSizeLSSVMRegressor(n_prototypes=8, cv=3, max_evaluations=1)
    with pytest.warns(jsparse.ConvergenceWarning, match="choice of prototypes: stopped at its cap"):
        estimator.fit(X, X[:, 0])
    model = jsparse.train(
        X, X[:, 0], task="regression", key=KEY, method=jsparse.FixedSize(8), folds=3,
        search=Profile(1),
    )  # fmt: skip
    assert model.selection_status == EXHAUSTED
    assert model.statuses["fit"] == CONVERGED


def test_a_history_with_other_stop_codes_is_refused(tmp_path):
    save_state(tmp_path / "old", {"status": np.zeros(1)}, {}, kind="tuning history")
    with pytest.raises(jsparse.ModelFileError, match="tuning history"):
        jsparse.load_history(tmp_path / "old")
