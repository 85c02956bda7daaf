"""From data to a tuned model, and the command line, on scikit-learn's bundled real data."""

import csv
import os
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jsparse
from jsparse import (
    SCDP,
    Annealing,
    Dual,
    FixedSize,
    Model,
    Multiclass,
    NumericalError,
    Profile,
    Resources,
    Robust,
    load,
    load_history,
    save_history,
    standardize,
)
from jsparse.cli.main import main
from jsparse.data import demo_set
from jsparse.data.frames import Frame
from jsparse.data.streams import ArrayStream
from jsparse.estimators import FixedSizeLSSVMClassifier, FixedSizeLSSVMRegressor
from jsparse.kernels import RBF, Matern32
from jsparse.machines import fixed_size
from jsparse.training.tables import tuning_problem
from jsparse.training.train import train
from jsparse.validation.folds import folds_from_assignment, plain_folds, stratified_folds
from jsparse.validation.validate import Scoring


@pytest.fixture(scope="module")
def cancer():
    data = demo_set("breast_cancer")
    return data.X, data.y


def few(cancer):
    """Return rows of one shape for many tests, which then share their programs."""
    X, y = cancer
    return X[:60, :3], y[:60]


SEARCHES = {"profile": Profile, "annealing": Annealing}


def small(X, y, **options):
    settings = {"method": FixedSize(20), "folds": 4, "search": Profile(4), "key": jax.random.key(0)}
    return train(X, y, **{"task": "classification", **settings, **options})


@pytest.mark.slow
def test_a_tuned_model_is_good_reproducible_and_told(cancer, dtype):
    X, y = cancer
    calls = []
    first = small(X[:300], y[:300], progress=lambda *a: calls.append(a))
    assert (first.predict(X[300:]) == y[300:]).mean() > 0.9
    assert first.cv_error < 0.1
    assert len(calls) == len(first.tuning.history) == 4
    assert [c[0] for c in calls] == [1, 2, 3, 4]
    assert str(first.expansion.prototypes.dtype) == dtype
    again = small(X[:300], y[:300])
    np.testing.assert_array_equal(first.expansion(X[300:]), again.expansion(X[300:]))


@pytest.mark.slow
@pytest.mark.parametrize("search", ["profile", pytest.param("annealing", marks=pytest.mark.slow)])
def test_a_stopped_search_goes_on_to_the_same_end(cancer, search, tmp_path):
    X, y = cancer[0][:200], cancer[1][:200]
    search, options = SEARCHES[search](12), {"metric": "mse"}

    def interrupt(completed, planned, best):
        if completed == 8:
            raise KeyboardInterrupt

    whole = small(X, y, search=search, **options)
    stopped = small(X, y, search=search, progress=interrupt, **options)
    assert len(stopped.tuning.history) == 8
    path = tmp_path / "search"
    save_history(path, stopped.tuning.history)
    resumed = small(X, y, search=replace(search, history=load_history(path)), **options)
    assert resumed.tuning.history[7].seconds == stopped.tuning.history[7].seconds
    assert len(resumed.tuning.history) == len(whole.tuning.history) == 12
    assert resumed.C == whole.C
    np.testing.assert_array_equal(resumed.expansion(X), whole.expansion(X))
    search = replace(search, history=stopped.tuning.history)
    with pytest.raises(ValueError, match="history: expected evaluations of the same problem"):
        small(X, y, search=search, **options, key=jax.random.key(1))


def test_ctrl_c_keeps_the_best_so_far(cancer):
    def interrupt(completed, planned, best):
        if completed == 2:
            raise KeyboardInterrupt

    X, y = few(cancer)
    stopped = small(X, y, folds=3, progress=interrupt)
    assert stopped.tuning.stopped == "interrupted"
    assert len(stopped.tuning.history) == 2
    assert stopped.cv_error == min(e.scores.min() for e in stopped.tuning.history)


@pytest.mark.slow
def test_a_search_out_of_time_keeps_its_first_evaluation(cancer):
    stopped = small(cancer[0][:200], cancer[1][:200], resources=Resources(max_seconds=0.0))
    assert stopped.tuning.stopped == "seconds"
    assert len(stopped.tuning.history) == 1


@pytest.mark.slow
def test_a_batch_of_kernels_is_scored_in_one_call(cancer):
    X, y = cancer[0][:60], np.where(cancer[1][:60] == "malignant", 1.0, -1.0)
    Z = jnp.asarray((X - X.mean(0)) / X.std(0))
    folds = stratified_folds(jax.random.key(0), jnp.asarray(y > 0, int), 5)
    problem = tuning_problem(RBF(1.0), Z[:20], Z, jnp.asarray(y), folds)
    thetas, C = jnp.array([[0.5], [1.0], [2.0]]), jnp.array([[1.0, 10.0]] * 3)
    together = problem.errors(thetas, C, Scoring("mse"))
    for theta, c, evaluation in zip(thetas, C, together, strict=True):
        (alone,) = problem.errors(theta[None], c[None], Scoring("mse"))
        np.testing.assert_allclose(evaluation.scores, alone.scores, rtol=1e-10)
        np.testing.assert_allclose(evaluation.fold_scores, alone.fold_scores, rtol=1e-10)
        np.testing.assert_array_equal(evaluation.status, alone.status)


@pytest.mark.slow
def test_several_parameters_are_tuned_together(cancer):
    X, y = cancer[0][:100, :3], cancer[1][:100]
    kernel = RBF(np.array([1.0, 2.0, 3.0])) + 0.5 * Matern32(1.0)
    tuned = small(X, y, kernel=kernel, search=Profile(9))
    assert len(tuned.tuning.history) == 9
    assert {e.theta.shape for e in tuned.tuning.history} == {(5,)}
    assert {e.C.shape for e in tuned.tuning.history} == {(25,)}
    assert tuned.cv_error <= min(e.scores.min() for e in tuned.tuning.history)


@pytest.mark.slow
def test_the_papers_search_spends_its_budget_exactly(cancer):
    X, y = cancer
    tuned = small(X[:200], y[:200], search=Annealing(16))
    assert len(tuned.tuning.history) == 16
    assert tuned.cv_error < 0.1


@pytest.mark.slow
def test_regression_and_linear_kernels():
    data = demo_set("diabetes")
    for kernel in ("linear", "rbf"):
        tuned = small(data.X, data.y, task="regression", kernel=kernel)
        assert tuned.cv_error < 0.6 * np.var(data.y)
        assert tuned.expansion(data.X).shape == data.y.shape


def with_classes(*more):
    return Multiclass(classes=["benign", *more])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda X, y: (np.where(np.arange(len(y))[:, None] == 2, np.nan, X), y, {}),
            "X: expected finite",
        ),
        (lambda X, y: (X[:0], y[:0], {}), "expected"),
        (lambda X, y: (X, np.full(len(y), "a"), {}), "expected at least two classes"),
        (lambda X, y: (X, y[:-1], {}), "y: expected"),
        (lambda X, y: (X, y, {"method": FixedSize(len(y) + 1)}), "n_prototypes"),
        (lambda X, y: (X, y, {"folds": len(y) + 1}), "folds"),
        (lambda X, y: (X, y, {"kernel": "sigmoid"}), "kernel"),
        (lambda X, y: (X, y, {"task": "regression"}), "expected numbers"),
        (lambda X, y: (X, y, {"metric": "auc"}), "metric: expected"),
        (lambda X, y: (X, y, {"search": "grid"}), "search: expected"),
        (lambda X, y: (X, y, {"method": "fixed-size"}), "method: expected"),
        (lambda X, y: (X, y, {"method": FixedSize(9, selection="best")}), "selection: expected"),
        (lambda X, y: (X, y, {"C": np.array([0.0, 1.0])}), "C: expected"),
        (lambda X, y: (X, y, {"C": np.ones(1), "search": Annealing()}), "C: expected a range"),
        (lambda X, y: (X, y, {"search": Profile(0)}), "max_evaluations: expected"),
        (
            lambda X, y: (X, y, {"resources": Resources(max_seconds=float("nan"))}),
            "max_seconds: expected",
        ),
        (lambda X, y: (X, y, {"folds": 2.5}), "folds: expected a whole number"),
        (lambda X, y: (X, y, {"folds": plain_folds(jax.random.key(0), 90, 5)}), "exactly one fold"),
        (lambda X, y: (X, y, {"method": FixedSize(10.0)}), "n_prototypes: expected a whole"),
        (lambda X, y: (X[:, :0], y, {}), "X: expected shape"),
        (lambda X, y: (X.astype(str), y, {}), "X: expected numbers"),
        (lambda X, y: (X, y, {"weights": np.full(60, np.inf)}), "weights: expected"),
        (lambda X, y: (X, y, {"weights": np.zeros(60)}), "weights: expected"),
        (lambda X, y: (X, y, {"weights": (y == y[0]) * 1.0}), "some weight in every class"),
        (lambda X, y: (X, y, {"class_weight": {"odd": 2.0}}), "class_weight: expected labels"),
        (lambda X, y: (X, y, {"multiclass": with_classes("0")}), "y: expected labels among"),
        (lambda X, y: (X, y, {"multiclass": with_classes(0)}), "classes: expected labels of one"),
        *[
            (
                lambda X, y, m=m: (X, y, {"multiclass": with_classes(*y, "mixed"), "method": m}),
                "rows of all of them",
            )
            for m in (Robust(20), Dual())
        ],
        (
            lambda X, y: (X, X[:, 0], {"task": "regression", "multiclass": with_classes("b")}),
            "classes: expected None",
        ),
        (lambda X, y: (X, X[:, 0], {}), "ask for task='regression'"),
        (lambda X, y: (X, X[:, 0], {"task": "regression", "metric": "misclassification"}), "mse"),
    ],
)
def test_bad_input_is_told_before_any_work(cancer, monkeypatch, as_users_call, change, message):
    X, y, options = change(cancer[0][:60], cancer[1][:60])
    # No work may be done.
    monkeypatch.setattr("jsparse.training.tables.standardised", None)
    with pytest.raises(ValueError, match=message):
        small(X, y, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param("one_versus_one", marks=pytest.mark.slow),
        "one_versus_rest",
        pytest.param("minimum_output", marks=pytest.mark.slow),
    ],
)
def test_several_classes(scheme):
    data = demo_set("iris")
    tuned = small(data.X, data.y, multiclass=scheme)
    assert (tuned.predict(data.X) == data.y).mean() > 0.95
    assert tuned.cv_error < 0.08
    per_problem = small(data.X, data.y, multiclass=Multiclass(scheme, C_per_problem=True))
    assert per_problem.C.shape == (tuned.code.matrix.shape[1],)
    assert (per_problem.predict(data.X) == data.y).mean() > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    [
        "one_versus_one",
        pytest.param("one_versus_rest", marks=pytest.mark.slow),
        pytest.param("minimum_output", marks=pytest.mark.slow),
    ],
)
def test_classes_may_have_no_rows_yet(scheme):
    data = demo_set("iris")
    more = ["zinnia", "aster", *np.unique(data.y)]  # two that no problem can tell apart
    multiclass = Multiclass(scheme, classes=more)
    tuned = small(data.X, data.y, multiclass=multiclass, class_weight="balanced")
    assert tuned.classes.tolist() == sorted(more)
    assert (tuned.predict(data.X) == data.y).mean() > 0.95
    assert tuned.cv_error < 0.08


@pytest.mark.slow
def test_a_weight_of_zero_is_a_row_that_is_not_there(cancer):
    X, y = cancer[0][:150], cancer[1][:150].copy()
    w = np.ones(150)
    w[:50] = 0
    y[:50] = y[:50][::-1]  # wrong labels that must not be seen
    folds = folds_from_assignment(np.arange(150) % 4)
    method = FixedSize(20, selection="uniform")
    tuned = small(X, y, weights=w, folds=folds, method=method)
    rows = np.asarray(tuned.point_rows)
    assert (rows >= 50).all()
    # The same machine from the rows that count.
    scaling = standardize(X[50:])
    np.testing.assert_allclose(tuned.expansion.scaling.shift, scaling.shift)
    Z = scaling.apply(jnp.asarray(X))
    sign = jnp.asarray(np.where(y == "malignant", 1.0, -1.0))
    fitted = fixed_size.fit(tuned.kernel, Z[rows], tuned.C, Z[50:], sign[50:])
    np.testing.assert_allclose(tuned.expansion(X), fitted.expansion(Z), atol=1e-7)


def test_what_only_rows_of_weight_zero_have_is_not_there(cancer):
    """A class, and a fold."""
    X, y = few(cancer)
    at = [0, 30, 60]
    w = np.insert(np.ones(60), at, 0.0)
    present = np.flatnonzero(w)
    fold = np.insert(np.arange(60) % 3, at, 3)
    wide_X, wide_y = np.insert(X, at, 1e3, axis=0), np.insert(y, at, "neither")
    assignment = np.arange(60) % 3
    alone = small(X, y, folds=folds_from_assignment(assignment), class_weight="balanced")
    folds = folds_from_assignment(fold)
    padded = small(wide_X, wide_y, weights=w, folds=folds, class_weight="balanced")
    assert padded.classes.tolist() == ["benign", "malignant"]
    np.testing.assert_allclose(padded.expansion(X), alone.expansion(X), rtol=1e-9)
    np.testing.assert_allclose(padded.cv_error, alone.cv_error)
    np.testing.assert_array_equal(padded.folds.valid.sum(axis=1), [20, 20, 20, 0])
    for row, valid, before in zip(*padded.folds, alone.folds.index, strict=False):
        np.testing.assert_array_equal(row[valid], present[before])


def test_what_only_cells_of_weight_zero_have_is_not_there(cancer):
    """A category of a table; the means that fill missing cells in."""
    X, y = few(cancer)
    at = [0, 30, 60]
    w = np.insert(np.ones(60), at, 0.0)
    present = np.flatnonzero(w)
    wide_X, wide_y = np.insert(X, at, 1e3, axis=0), np.insert(y, at, "neither")

    def table(X, kind):
        filled = np.where(np.arange(len(X)) == 20, np.nan, X[:, 0])
        return Frame(pd.DataFrame({"a": filled, "kind": kind}), impute=True)

    kinds = np.where(np.arange(60) % 2, "x", "y")
    alone = small(table(X, kinds), y, folds=3)
    filled = table(wide_X, np.insert(kinds, at, "z"))
    filled.table.loc[20, "a"], filled.table.loc[21, "a"] = wide_X[20, 0], np.nan
    padded = small(filled, wide_y, weights=w, folds=3)
    assert padded.model.columns == alone.model.columns
    new = table(X, kinds).table
    np.testing.assert_allclose(padded.predict_proba(new), alone.predict_proba(new), rtol=1e-7)
    np.testing.assert_array_equal(padded.point_rows, present[alone.point_rows])


def test_folds_of_the_caller_hold_every_row_that_counts_once(cancer):
    X, y = few(cancer)
    w = np.where(np.arange(60) < 2, 0.0, 1.0)
    index = np.arange(60).reshape(3, 20)
    for row, place in ((5, 4), (1, 30), (60, 7)):  # comes twice, is missing, or is none
        wrong = index.copy()
        wrong.flat[place] = row
        with pytest.raises(ValueError, match="exactly one fold; only rows of weight 0"):
            small(X, y, weights=w, folds=jsparse.Folds(wrong, np.ones((3, 20), bool)))
    valid = np.ones((3, 20), bool)
    valid[0, 0] = False  # a row of weight 0 is in none
    assert small(X, y, weights=w, folds=jsparse.Folds(index, valid)).n_rows == 58
    # Padding may come first.
    index, valid = (np.pad(a, [(0, 0), (1, 0)]) for a in (index, np.ones((3, 20), bool)))
    folds = small(X, y, folds=jsparse.Folds(index, valid)).folds
    np.testing.assert_array_equal(np.sort(folds.index[folds.valid]), np.arange(60))


def test_balanced_classes_weigh_the_same(cancer):
    X, y = cancer
    rows = np.flatnonzero((y == "benign") | (np.cumsum(y == "malignant") <= 20))
    X, y = X[rows][:, :2], y[rows]
    method = FixedSize(20, selection="uniform")
    plain = small(X, y, method=method)
    balanced = small(X, y, method=method, class_weight="balanced")
    factor = {label: len(y) / (2 * np.sum(y == label)) for label in np.unique(y)}
    mapped = small(X, y, method=method, class_weight=factor)
    np.testing.assert_allclose(balanced.expansion(X), mapped.expansion(X), rtol=1e-9)
    rare = y == "malignant"
    balanced_recall, before = (
        (model.predict(X)[rare] == y[rare]).mean() for model in (balanced, plain)
    )
    assert balanced_recall > before


def test_a_value_that_is_not_finite_is_no_decision(cancer):
    X, y = few(cancer)
    tuned = small(X, y, folds=3, kernel="polynomial")
    with pytest.raises(ValueError, match="X: expected finite"):
        tuned.predict(np.full((1, 3), np.nan))
    with pytest.raises(NumericalError, match="row index 0 is not finite"):
        tuned.predict(np.full((1, 3), 1e200))


@pytest.mark.slow
def test_ctrl_c_in_a_resumed_search_loses_nothing(cancer):
    X, y = cancer[0][:100], cancer[1][:100]
    search = Annealing(20)
    whole = small(X, y, search=search, metric="mse")

    def interrupt(completed, planned, best):
        if completed == 3:
            raise KeyboardInterrupt

    known = {"history": whole.tuning.history}
    again = small(X, y, search=replace(search, **known), progress=interrupt, metric="mse")
    assert again.tuning.stopped == "interrupted"
    assert len(again.tuning.history) == 20
    assert again.cv_error == whole.cv_error
    with pytest.raises(ValueError, match="history: expected evaluations"):
        small(X, y, search=Profile(20, **known), metric="mse")


@pytest.mark.slow
def test_a_budget_of_one_is_the_middle(cancer):
    tuned = small(cancer[0][:100], cancer[1][:100], search=Profile(1))
    assert len(tuned.tuning.history) == 1
    np.testing.assert_allclose(tuned.kernel.lengthscale, np.sqrt(30), rtol=1e-6)


@pytest.fixture
def table(tmp_path, cancer):
    X, y = cancer
    path = tmp_path / "cancer.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["size", "texture", "kind", "diagnosis"])
        for row, label in zip(X[:200], y[:200], strict=True):
            writer.writerow([row[0], row[1], "big" if row[3] > 600 else "small", label])
    return path


@pytest.fixture
def settings_restored():
    yield
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.mark.usefixtures("settings_restored")
def test_fit_and_predict_on_a_file(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, out = tmp_path / "m.jsparse", tmp_path / "p.csv"
    options = ["--method", "fixed-size", "--prototypes", "20", "--folds", "4", "--evaluations", "3"]
    fit = ["fit", str(table), "--target", "diagnosis", "--out", str(model), "--quiet", *options]
    assert main(fit) == 0
    report = capsys.readouterr().out
    for word in ("data", "device", "prototypes", "C", "CV error", "effective rank", "compile"):
        assert word in report
    assert main(["predict", str(model), str(table), "--out", str(out)]) == 0
    assert "misclassification on 200 rows" in capsys.readouterr().err
    with out.open() as file:
        rows = list(csv.DictReader(file))
    loaded = load(model)
    assert loaded.classes.tolist() == ["benign", "malignant"]
    assert len(rows) == 200
    assert {r["diagnosis"] for r in rows} == {"benign", "malignant"}
    for r in rows:
        assert (float(r["decision_value"]) >= 0) == (r["diagnosis"] == "malignant")
    assert loaded.expansion.prototypes.shape == (20, 4)


SIZE = ["--method", "fixed-size", "--prototypes"]


@pytest.mark.usefixtures("settings_restored")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "nowhere.csv", "--target", "y"], "nowhere.csv"),
        (["fit", "{table}", "--target", "nope"], "expected the target column 'nope'"),
        (["fit", "{table}", "--target", "diagnosis", "--out", "/nowhere/m"], "/nowhere"),
        (["fit", "{table}", "--target", "diagnosis", *SIZE, "900"], "n_prototypes"),
        (["predict", "{table}", "{table}"], "expected"),
    ],
)
def test_the_command_line_says_what_is_wrong(
    table, tmp_path, capsys, monkeypatch, arguments, message
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code = main([a.format(table=table) for a in arguments])
    assert code == 2
    assert message in capsys.readouterr().err


def write(path, header, rows, mark=","):
    lines = [mark.join(header), *(mark.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("settings_restored")
def test_several_classes_decimal_commas_and_awkward_names(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = demo_set("iris")
    cells = [[str(v).replace(".", ",") for v in row] for row in data.X]
    rows = [[*row, label] for row, label in zip(cells, data.y, strict=True)]
    table = write(tmp_path / "iris.csv", ["a", "b", "c", "d", "decision_value"], rows, ";")
    model, out = tmp_path / "m", tmp_path / "p.csv"
    options = ["--prototypes", "20", "--folds", "4", "--evaluations", "3", "--quiet"]
    options += ["--decimal", ",", "--method", "fixed-size"]
    fit = ["fit", str(table), "--target", "decision_value", "--out", str(model), *options]
    assert main([*fit, "--multiclass", "one-versus-one", "--balanced"]) == 0
    assert "150 rows x 4 columns" in capsys.readouterr().out
    assert main(["predict", str(model), str(table), "--out", str(out)]) == 0
    with out.open() as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == ["decision_value", *(f"decision_value {c}" for c in data.classes)]
    assert np.mean([r["decision_value"] for r in read] == data.y) > 0.9
    for name in (table, model):
        before = name.read_bytes()
        assert main(["predict", str(model), str(table), "--out", str(name)]) == 2
        assert name.read_bytes() == before
    assert main([*fit[:-9], "--out", str(table), *options]) == 2
    assert "another file than one that is read" in capsys.readouterr().err


@pytest.mark.usefixtures("settings_restored")
def test_a_stray_text_among_numbers_to_predict(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = [[i, i * 0.5 if i != 7 else "?"] for i in range(40)]
    table = write(tmp_path / "t.csv", ["a", "y"], rows)
    assert main(["fit", str(table), "--target", "y", "--quiet", "--out", str(tmp_path / "m")]) == 2
    message = capsys.readouterr().err
    assert "column 'y'" in message
    assert "in data row 8 (the first is 1)" in message
    assert "--missing" in message


@pytest.mark.slow
def test_the_demo_runs_from_a_shell(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "jsparse", "demo", "--quiet"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "test error" in process.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        "memory",
        "stream",
        pytest.param("path", marks=pytest.mark.slow),
        pytest.param("estimator", marks=pytest.mark.slow),
    ],
)
def test_a_target_far_from_zero_costs_no_digits(way, as_users_call):
    """In float32 a mean of 1e5 would leave two digits of targets that vary by one."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2)).astype(np.float32)
    y = np.sin(2 * X[:, 0].astype(float)) + 1e5
    options = {"task": "regression", "key": jax.random.key(0), "search": Profile(3)}
    with jax.enable_x64(False):
        if way == "memory":
            model = train(X, y, method=FixedSize(40), **options)
        elif way == "stream":
            model = train(ArrayStream(X, y), method=FixedSize(40), **options)
        elif way == "path":
            model = train(X, y, method=SCDP(candidates=60, max_prototypes=40), **options)
        else:
            kind = FixedSizeLSSVMRegressor(40, max_evaluations=3, random_state=0)
            model = kind.fit(X[:200], y[:200]).partial_fit(X[200:], y[200:])
        expansion = model.expansion_ if way == "estimator" else model.expansion
        # What the intercept is added to: float32 has no digits for the sum itself.
        low = replace(expansion, intercept=jnp.zeros((), jnp.float32))
        values = np.asarray(low(X), float) + (float(expansion.intercept) - 1e5)
    assert np.sqrt(np.mean(np.square(values - (y - 1e5)))) < 0.05


def gaussian(x, z):
    return jnp.exp(-jnp.sum(jnp.square(x - z)) / 2)


@pytest.mark.slow
def test_an_integer_is_a_key_and_a_function_of_two_points_a_kernel(cancer):
    X, y = (a[:120] for a in cancer)
    options = {"search": Profile(tune_kernel=False), "C": np.ones(1), "method": FixedSize(8)}
    ours = small(X, y, kernel=RBF(1.0), **options)
    theirs = small(X, y, kernel=gaussian, **options | {"key": 0})
    np.testing.assert_array_equal(theirs.point_rows, ours.point_rows)
    np.testing.assert_allclose(theirs.expansion(X), ours.expansion(X), rtol=1e-8, atol=1e-10)
    assert theirs.kernel == small(X, y, kernel=gaussian, **options).kernel
    with pytest.raises(ValueError, match=r"kernel: expected one of .* got <class"):
        small(X, y, kernel=RBF)


@pytest.mark.usefixtures("settings_restored")
def test_probabilities_on_the_command_line(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, out = tmp_path / "m.jsparse", tmp_path / "p.csv"
    options = [
        "--method",
        "fixed-size",
        "--prototypes",
        "20",
        "--folds",
        "4",
        "--evaluations",
        "3",
        "--quiet",
    ]
    assert main(["fit", str(table), "--target", "diagnosis", "--out", str(model), *options]) == 0
    outputs = []
    for stream in ([], ["--stream"]):
        assert main(["predict", str(model), str(table), "--proba", "--out", str(out), *stream]) == 0
        outputs.append(out.read_text())
    assert outputs[0] == outputs[1]
    rows = list(csv.DictReader(outputs[0].splitlines()))
    names = [f"probability {label}" for label in ("benign", "malignant")]
    assert list(rows[0]) == ["diagnosis", "decision_value", *names]
    loaded = load(model)
    with table.open() as file:
        inputs = pd.DataFrame(list(csv.DictReader(file)))
    inputs = inputs.astype({"size": float, "texture": float})
    output = np.array([[float(row[name]) for name in names] for row in rows])
    np.testing.assert_allclose(output, loaded.predict_proba(inputs), rtol=1e-14)
    np.testing.assert_allclose(output.sum(axis=1), 1, rtol=1e-14)
    assert [("benign", "malignant")[i] for i in output.argmax(1)] == [r["diagnosis"] for r in rows]
    # Without being asked for, or where there are none, they are not there.
    assert main(["predict", str(model), str(table)]) == 0
    assert "probability" not in capsys.readouterr().out
    numbers = write(tmp_path / "n.csv", ["a", "y"], [[i, i * 0.5] for i in range(30)])
    fit = ["fit", str(numbers), "--target", "y", "--out", str(model), *options]
    assert main(fit) in (0, 3)
    assert main(["predict", str(model), str(numbers), "--proba"]) == 2
    output = capsys.readouterr().err.splitlines()[-1]
    assert output.startswith("jsparse: error: --proba: expected a classifier")


@pytest.mark.slow
@pytest.mark.usefixtures("settings_restored")
@pytest.mark.parametrize("way", ["arrays", "frame", "estimator", "command line", "expansion"])
def test_models_of_every_origin_are_files_alike(way, cancer, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    X, y = cancer[0][:150, :3], cancer[1][:150]
    names, path, out = ["size", "texture", "edge"], tmp_path / "m.jsparse", tmp_path / "p.csv"
    rows = [[*map(float, row), label] for row, label in zip(X, y, strict=True)]
    table = write(tmp_path / "t.csv", [*names, "diagnosis"], rows)
    inputs = write(tmp_path / "x.csv", names, [row[:-1] for row in rows])
    if way == "command line":
        options = ["--prototypes", "20", "--folds", "4", "--evaluations", "3", "--quiet"]
        fit = ["fit", str(table), "--target", "diagnosis", "--out", str(path), *options]
        assert main(fit) == 0
    elif way == "estimator":
        estimator = FixedSizeLSSVMClassifier(20, max_evaluations=3, random_state=0).fit(X, y)
        estimator.model_.save(path)
        values, labels = estimator.decision_function(X), estimator.predict(X)
        probabilities = estimator.predict_proba(X)
    else:
        frame = pd.DataFrame(X, columns=names)
        trained = small(frame if way == "frame" else X, y, search=Profile(3))
        of = trained.expansion if way == "expansion" else trained.model
        jsparse.save(path, of, {"made": way})
        values, labels = trained.decision_function(X), trained.predict(X)
        probabilities = trained.predict_proba(X)
    loaded = load(path)
    assert isinstance(loaded, Model)
    capsys.readouterr()
    proba = [] if way == "expansion" else ["--proba"]
    assert main(["predict", str(path), str(inputs), "--out", str(out), *proba]) == 0
    by_order = "columns are taken in their order" in capsys.readouterr().err
    assert by_order == (loaded.columns is None) == (way in ("arrays", "estimator", "expansion"))
    with out.open() as file:
        records = list(csv.DictReader(file))
    if way == "command line":
        values, labels = loaded.decision_function(X), loaded.predict(X)
        probabilities = loaded.predict_proba(X)
    np.testing.assert_array_equal(loaded.decision_function(X), values)
    if way == "expansion":  # values of a machine that knows no classes
        assert loaded.classes is None
        written = [float(row["prediction"]) for row in records]
        np.testing.assert_allclose(written, values, rtol=1e-12)
    else:
        assert loaded.predict(X).tolist() == labels.tolist()
        np.testing.assert_array_equal(loaded.predict_proba(X), probabilities)
        target = "prediction" if by_order else "target" if way == "frame" else "diagnosis"
        assert [row[target] for row in records] == labels.tolist()
        written = [float(row["decision_value"]) for row in records]
        np.testing.assert_allclose(written, values, rtol=1e-12)
        written = [[float(row[f"probability {c}"]) for c in loaded.classes] for row in records]
        np.testing.assert_allclose(written, probabilities, rtol=1e-12)
    if way in ("arrays", "frame", "expansion"):
        assert loaded.about["made"] == way
    # Other columns are another table.
    few = write(tmp_path / "few.csv", names[:2], [row[:2] for row in rows])
    assert main(["predict", str(path), str(few)]) == 2
    words = "expected 3 columns" if by_order else "'edge'"
    assert words in capsys.readouterr().err
