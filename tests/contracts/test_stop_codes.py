"""Stop codes: their order, what the host does about them, and joins in which one part fails."""

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


def test_every_bad_end_is_above_every_good_one():
    assert sorted(ADVICE) == list(range(9))
    for good, bad in itertools.product(GOOD, BAD):
        assert max(good, bad) == bad
        assert _status.trusted(good)
        assert not _status.trusted(bad)
    # A joined status is CONVERGED only if every part is.
    assert min(GOOD) == CONVERGED


@pytest.mark.parametrize("code", ADVICE)
def test_each_end_is_told_alone_and_beside_a_good_one(code):
    for status in (code, jnp.asarray([COMPLETED, code, CONVERGED])):
        if code in (NOT_FINITE, INDEFINITE):
            with pytest.raises(jsparse.NumericalError, match=f"the fit: {ADVICE[code][:20]}"):
                check(status, "the fit")
        elif code in WARNINGS:
            with pytest.warns(WARNINGS[code], match=f"the fit: {ADVICE[code][:20]}"):
                check(status, "the fit")
        else:
            check(status, "the fit")  # warnings are errors


def test_two_kinds_of_bad_ends_are_both_told():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check(jnp.asarray([EXHAUSTED, CONVERGED, PRECISION_LOST]))
    assert {w.category for w in said} == {jsparse.PrecisionWarning, jsparse.ConvergenceWarning}
    check(jnp.zeros(0, jnp.int32))
    assert "max_iterations" in ADVICE[EXHAUSTED]


def rows(n=30, d=2, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)))


@pytest.fixture
def fresh():
    """Programs with a part exchanged are compiled, and forgotten."""
    programs = validation._validate_rows, robust._fit
    for program in programs:
        program.clear_cache()
    yield
    for program in programs:
        program.clear_cache()


def test_one_output_of_one_fold_whose_steps_run_out(monkeypatch, fresh):
    solve = robust.solve

    def cut(Phi, y, seen, *rest, **options):
        out = (y[0] == 7) & (seen[0] == 0)
        status = jnp.where(out, EXHAUSTED, CONVERGED).astype(jnp.int32)
        return solve(Phi, y, seen, *rest, **options)._replace(status=status)

    monkeypatch.setattr(robust, "solve", cut)
    X, C = rows(), jnp.asarray([1.0, 10.0])
    folds = folds_from_assignment(np.arange(30) % 3)
    for first, end in ((6.0, CONVERGED), (7.0, EXHAUSTED)):
        y = X.at[0, 1].set(first)
        cv = jsparse.validate(jsparse.Robust(), RBF(1.0), X[:5], C, X, y, folds, metric="mae")
        np.testing.assert_array_equal(cv.status, end)


@pytest.mark.parametrize(
    ("method", "least"),
    [
        ("subtraction", NOT_FINITE),
        pytest.param("removal", PRECISION_LOST, marks=pytest.mark.slow),
    ],
)
def test_one_fold_without_which_nothing_is_left(method, least):
    X, assignment = rows(), np.arange(30) % 3
    folds = folds_from_assignment(assignment)
    phi, C = Nystroem(RBF(1.0), X[:5]), jnp.asarray([1.0, 10.0])
    w = jnp.asarray(assignment == 0, X.dtype)
    found = cross_validation.cross_validate(phi, C, X, X[:, 0], folds, w, method=method)
    assert (np.asarray(found.status) >= least).all()
    even = cross_validation.cross_validate(phi, C, X, X[:, 0], folds, w + 1, method=method)
    np.testing.assert_array_equal(even.status, CONVERGED)


@pytest.mark.parametrize("separate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_one_fold_or_problem_whose_path_ends_badly(monkeypatch, fresh, separate):
    """The fold without which all targets are zero, or the first of the problems."""
    usual = scdp.select

    def select(A, b, *rest, **options):
        path = usual(A, b, *rest, **options)
        bad = jnp.arange(len(b)) == 0 if separate else jnp.all(b == 0, axis=(1, 2))
        return path._replace(status=jnp.where(bad, EXHAUSTED, path.status).astype(jnp.int32))

    monkeypatch.setattr(scdp, "select", select)
    X, assignment = rows(), np.arange(30) % 3
    y, w, code = jnp.where(assignment == 0, X[:, 0], 0), jnp.ones(30), None
    if separate:
        y = jnp.asarray(np.arange(30) // 3 % 3, jnp.int32)
        code = output_code("one_versus_rest", 3)
    method = jsparse.SCDP(3, selection="separate" if separate else "joint")
    found = jsparse.validate(
        method, RBF(1.0), X[:6], jnp.asarray([1.0, 10.0]), X, y, folds_from_assignment(assignment),
        w, metric="mse", code=code,
    )  # fmt: skip
    np.testing.assert_array_equal(found.status, EXHAUSTED)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["one_versus_rest", "one_versus_one"])
def test_one_problem_of_several_classes(scheme):
    X, labels = rows(), jnp.asarray(np.arange(30) % 3, jnp.int32)
    code, phi = output_code(scheme, 3), Nystroem(RBF(2.0), X[:8])
    sums = accumulate_code(code, phi, X, labels)
    for last, end in ((1.0, CONVERGED), (np.nan, NOT_FINITE)):
        found = solve_code(code, sums, jnp.asarray([[1.0, 1.0, last]]))
        np.testing.assert_array_equal(found.status, end)


def test_one_problem_of_several_in_the_dual():
    X, labels = rows(), jnp.asarray(np.arange(30) % 3, jnp.int32)
    code = output_code("one_versus_rest", 3)
    for last, end in ((1.0, CONVERGED), (1e25, PRECISION_LOST)):
        found = dual.fit_classes(RBF(2.0), jnp.asarray([1.0, 1.0, last]), X, labels, code)
        assert int(found.status) == end


def test_one_problem_left_one_row_out():
    """The third class lies so far away that the rounding of its products is above 1/C."""
    labels = np.arange(30) % 3
    X, C, folds = rows(), jnp.asarray([1e4]), folds_from_assignment(np.arange(30))
    far = X * jnp.asarray(np.where(labels == 2, 1e6, 1.0))[:, None]
    code = output_code("one_versus_one", 3)
    for Z, end in ((X, CONVERGED), (far, PRECISION_LOST)):
        given = Z, jnp.asarray(labels, jnp.int32), folds
        found = jsparse.validate(
            jsparse.Dual(), Linear(), None, C, *given, metric="misclassification", code=code
        )
        np.testing.assert_array_equal(found.status, end)
    first = labels < 2
    _, alone = dual.leave_one_out(Linear(), C, far[first], X[first, 0])
    np.testing.assert_array_equal(alone, CONVERGED)


def test_of_a_sparse_path_the_worst_target_and_what_the_machine_has():
    X = rows()
    y = jnp.stack([X[:, 0], X[:, 1]], axis=1)
    path = scdp.fit(RBF(1.0), X[:6], 1.0, X, y, max_prototypes=4, selection="separate")
    np.testing.assert_array_equal(path.info["path_status"], COMPLETED)
    np.testing.assert_array_equal(path.info["coefficient_status"], CONVERGED)

    def statuses(**changes):
        parts = {"support": path.support, "coefficients": path.coefficients}
        parts |= {"intercepts": path.intercepts, **path.info, **changes}
        family = nested_family(path.kernel, path.points, path.outputs, **parts)
        return [family.status_at(size) for size in (1, 2, 3, 4)]

    assert statuses() == [path.status_at(size) for size in (1, 2, 3, 4)] == [COMPLETED] * 4
    for bad in BAD:
        one = statuses(path_status=path.info["path_status"].at[1].set(bad))
        # What ended the path came after the last prototype of a shorter machine.
        assert one == [COMPLETED if bad == INDEFINITE else bad] * 3 + [bad]
    searched = path.info["coefficient_status"].at[1, 1].set(EXHAUSTED)
    found = statuses(coefficient_status=searched)
    assert found == [COMPLETED, EXHAUSTED, COMPLETED, COMPLETED]
    error = path.info["coefficient_error"].at[0, 1].set(1.0)
    assert statuses(coefficient_status=searched, coefficient_error=error)[1] == PRECISION_LOST


class Scored:
    """A problem whose scores are known, and how their computation ended."""

    def __init__(self, statuses):
        dtype = jnp.dtype("float64")
        self.template = split_kernel(RBF(1.0), dtype, tune_kernel=True)
        self.dtype, self.rows_scored, self.kernels_at_once = dtype, 10, 1
        self.statuses = jnp.asarray([statuses])

    def scores(self, thetas, C, scoring):
        return jnp.asarray([[3.0, 1.0, 2.0]]), jnp.ones((1, 3)), self.statuses


@pytest.mark.parametrize(
    ("statuses", "best"),
    [
        ((CONVERGED, EXHAUSTED, CONVERGED), 1),
        ((EXHAUSTED, COMPLETED, CONVERGED), 1),
        ((CONVERGED, PRECISION_LOST, CONVERGED), 2),
        ((CONVERGED, NOT_FINITE, TRUNCATED), 2),
    ],
)
def test_the_best_score_says_how_its_computation_ended(as_users_call, statuses, best):
    found = tune(
        Scored(statuses), key=KEY, metric="mse", low=np.zeros(1), high=np.ones(1),
        C=np.array([1.0, 2.0, 4.0]), search=Profile(1),
    )  # fmt: skip
    assert int(found.C) == 2**best
    assert found.status == statuses[best]


def test_how_the_choice_of_prototypes_ended_is_passed_on(monkeypatch):
    X = rows(60)
    usual = functools.partial(renyi, bandwidth=jnp.ones(2))

    def chosen(method):
        return method.choose_points(
            KEY, RBF(1.0), TrainingRows(X, None, np.ones(60), jsparse.standardize(X), 60)
        )

    def by(name):
        return jsparse.SCDP(3, candidates=8, candidate_method=name)

    assert choice.choose_rows(KEY, "uniform", X, 8, None, np.ones(60), 60)[1] == CONVERGED
    for cap, end in ((10**4, CONVERGED), (1, EXHAUSTED)):
        monkeypatch.setattr(choice, "renyi", functools.partial(usual, max_trials=cap))
        assert choice.choose_rows(KEY, "renyi", X, 8, None, np.ones(60), 60)[1] == end
        for method in (jsparse.FixedSize(8), jsparse.Robust([4, 8]), by("renyi")):
            assert chosen(method).status == end
    monkeypatch.setattr(candidates, "k_means", functools.partial(k_means, max_iterations=1))
    assert chosen(by("k_means")).status == EXHAUSTED
    found = usual(KEY, X, 8, max_trials=10**4)
    capped = found.bandwidth._replace(status=jnp.asarray([CONVERGED, EXHAUSTED]))
    monkeypatch.setattr(choice, "renyi", lambda *_, **__: found._replace(bandwidth=capped))
    assert choice.choose_rows(KEY, "renyi", X, 8, None, np.ones(60), 60)[1] == EXHAUSTED


@pytest.fixture(scope="module")
def model():
    X = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    return jsparse.train(
        X, X[:, 0], task="regression", key=KEY, method=jsparse.FixedSize(5, selection="uniform"),
        folds=3, C=np.ones(1), search=Profile(1),
    )  # fmt: skip


def trained(model, fit=CONVERGED, selection=CONVERGED, tuning=CONVERGED):
    """The model, had its parts ended so."""
    return dataclasses.replace(
        model,
        fit=eqx.tree_at(lambda family: family.statuses, model.fit, np.array([fit], np.int32)),
        selection_status=selection,
        tuning=model.tuning._replace(status=tuning),
    )


def estimated(monkeypatch, found):
    """What an estimator says of it."""
    monkeypatch.setattr("jsparse.estimators._base.train", lambda *_, **__: found)
    return FixedSizeLSSVMRegressor(5).fit(np.asarray(rows()), np.asarray(rows())[:, 0])


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"fit": EXHAUSTED}, "fit"),
        ({"selection": EXHAUSTED}, "choice of prototypes"),
        ({"tuning": EXHAUSTED}, "cross-validation"),
    ],
)
def test_estimators_and_the_command_line_tell_what_was_exhausted(
    as_users_call, capsys, monkeypatch, model, parts, what
):
    found = trained(model, **parts)
    with pytest.warns(jsparse.ConvergenceWarning, match=f"FixedSizeLSSVMRegressor, {what}: stop"):
        estimated(monkeypatch, found)
    with pytest.warns(jsparse.ConvergenceWarning, match=f"the {what}: stopped"):
        assert command_line._exit_code(found) == command_line.UNTRUSTED
    report._ends(found.statuses)
    assert ADVICE[EXHAUSTED] in capsys.readouterr().out


@pytest.mark.parametrize("code", GOOD)
def test_nothing_is_told_of_good_ends_of_the_parts(as_users_call, capsys, monkeypatch, model, code):
    found = trained(model, selection=min(code, COMPLETED), tuning=code)
    estimated(monkeypatch, found)
    assert command_line._exit_code(found) == command_line.DONE
    report._ends(found.statuses)
    assert capsys.readouterr().out.splitlines() == [f"{'status':<16}{ADVICE[CONVERGED]}"]


@pytest.mark.slow
def test_a_trained_model_says_that_its_prototypes_were_cut_short(monkeypatch):
    monkeypatch.setattr(choice, "renyi", functools.partial(renyi, max_trials=1))
    X = np.asarray(rows(60))
    model = FixedSizeLSSVMRegressor(n_prototypes=8, cv=3, max_evaluations=1)
    with pytest.warns(jsparse.ConvergenceWarning, match="choice of prototypes: stopped at its cap"):
        model.fit(X, X[:, 0])
    found = jsparse.train(
        X, X[:, 0], task="regression", key=KEY, method=jsparse.FixedSize(8), folds=3,
        search=Profile(1),
    )  # fmt: skip
    assert found.selection_status == EXHAUSTED
    assert found.statuses["fit"] == CONVERGED


def test_a_history_with_other_stop_codes_is_refused(tmp_path):
    from jsparse._files import save_state

    save_state(tmp_path / "old", {"status": np.zeros(1)}, {}, kind="tuning history")
    with pytest.raises(jsparse.ModelFileError, match="tuning history"):
        jsparse.load_history(tmp_path / "old")
