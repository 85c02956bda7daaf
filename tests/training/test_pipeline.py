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
    Annealing,
    Dual,
    FixedSize,
    Multiclass,
    Profile,
    Resources,
    Robust,
    load,
    load_history,
    save_history,
)
from jsparse.cli.main import main
from jsparse.data import demo_set
from jsparse.data.frames import Frame
from jsparse.kernels import RBF
from jsparse.training.train import train
from jsparse.validation.folds import folds_from_assignment

ABSENT = [0, 30, 60]  # where tests insert rows of weight zero


@pytest.fixture(scope="module")
def rows():
    """Return rows of one shape for all tests, which then share their programs."""
    data = demo_set("breast_cancer")
    return data.X[:60, :3], data.y[:60]


def small(X, y, **options):
    settings = {"method": FixedSize(20, "uniform"), "folds": 3, "search": Profile(4), "key": 0}
    return train(X, y, **{"task": "classification", **settings, **options})


def interruption_after(count):
    def interrupt(completed, planned, best):
        if completed == count:
            raise KeyboardInterrupt

    return interrupt


@pytest.mark.usefixtures("one_kernel_at_a_time")
def test_a_search_ended_by_ctrl_c_time_or_a_budget_of_one_keeps_the_best_so_far(rows):
    stopped = small(*rows, progress=interruption_after(2))
    assert (stopped.tuning.stopped, len(stopped.tuning.history)) == ("interrupted", 2)
    assert stopped.cv_error == min(e.scores.min() for e in stopped.tuning.history)
    late = small(*rows, resources=Resources(max_seconds=0.0))
    assert (late.tuning.stopped, len(late.tuning.history)) == ("seconds", 1)
    middle = small(*rows, search=Profile(1))
    assert len(middle.tuning.history) == 1
    np.testing.assert_allclose(middle.kernel.lengthscale, np.sqrt(3), rtol=1e-6)


def test_annealing_that_is_stopped_goes_on_to_the_same_end(rows, tmp_path):
    search, options = Annealing(12), {"metric": "mse"}
    whole = small(*rows, search=search, **options)
    stopped = small(*rows, search=search, progress=interruption_after(8), **options)
    save_history(tmp_path / "search", stopped.tuning.history)
    search = replace(search, history=load_history(tmp_path / "search"))
    resumed = small(*rows, search=search, **options)
    assert len(resumed.tuning.history) == len(whole.tuning.history) == 12
    np.testing.assert_array_equal(resumed.expansion(rows[0]), whole.expansion(rows[0]))
    # Ctrl-C in a resumed search loses nothing.
    search = replace(search, history=whole.tuning.history)
    again = small(*rows, search=search, progress=interruption_after(3), **options)
    assert (again.tuning.stopped, len(again.tuning.history)) == ("interrupted", 12)
    assert again.cv_error == whole.cv_error
    for change in ({"key": 1}, {"search": Profile(20, history=search.history)}):
        with pytest.raises(ValueError, match="history: expected evaluations of"):
            small(*rows, **{"search": search, **options, **change})


def test_arguments_that_do_not_fit_together_are_refused_before_any_work(
    rows, monkeypatch, as_users_call
):
    """`tests/contracts/test_arguments.py` refuses values that are wrong in themselves."""
    (X, y), one_class = rows, np.full(60, "a")
    rare = Multiclass(classes=["benign", *y, "mixed"])
    cases = [
        ((X, one_class), {}, "expected at least two classes"),
        ((X, X[:, 0]), {}, "ask for task='regression'"),
        ((X, X[:, 0]), {"task": "regression", "metric": "misclassification"}, "mse"),
        ((X, y), {"C": np.ones(1), "search": Annealing()}, "C: expected a range"),
        ((X, y), {"weights": np.full(60, np.inf)}, "weights: expected"),
        ((X, y), {"multiclass": rare, "method": Robust(20)}, "rows of all of them"),
        ((X, y), {"multiclass": rare, "method": Dual()}, "rows of all of them"),
    ]
    monkeypatch.setattr("jsparse.training.tables.standardised", None)  # no work may be done
    for data, options, message in cases:
        with pytest.raises(ValueError, match=message):
            small(*data, **options)


@pytest.mark.slow
def test_classes_may_have_no_rows_yet():
    data = demo_set("iris")
    more = ["zinnia", "aster", *np.unique(data.y)]  # two that no problem can tell apart
    multiclass = Multiclass("one_versus_one", classes=more)
    tuned = small(data.X, data.y, multiclass=multiclass, class_weight="balanced")
    assert tuned.classes.tolist() == sorted(more)
    assert (tuned.predict(data.X) == data.y).mean() > 0.95
    assert tuned.cv_error < 0.08


def with_absent(X, y):
    """Insert rows of weight zero of another class; return also weights and the other rows."""
    w = np.insert(np.ones(60), ABSENT, 0.0)
    return np.insert(X, ABSENT, 1e3, axis=0), np.insert(y, ABSENT, "neither"), w, np.flatnonzero(w)


def test_a_class_and_a_fold_of_rows_of_weight_zero_alone_do_not_exist(rows):
    wide_X, wide_y, w, present = with_absent(*rows)
    assignment = np.arange(60) % 3
    alone = small(*rows, folds=folds_from_assignment(assignment), class_weight="balanced")
    folds = folds_from_assignment(np.insert(assignment, ABSENT, 3))
    padded = small(wide_X, wide_y, weights=w, folds=folds, class_weight="balanced")
    assert padded.classes.tolist() == ["benign", "malignant"]
    np.testing.assert_allclose(padded.expansion(rows[0]), alone.expansion(rows[0]), rtol=1e-9)
    np.testing.assert_allclose(padded.cv_error, alone.cv_error)
    np.testing.assert_array_equal(padded.folds.valid.sum(axis=1), [20, 20, 20, 0])
    for row, valid, before in zip(*padded.folds, alone.folds.index, strict=False):
        np.testing.assert_array_equal(row[valid], present[before])


def test_a_category_and_cells_of_rows_of_weight_zero_do_not_count(rows):
    """The cells do not count for the means that fill missing cells."""
    (X, y), kinds = rows, np.where(np.arange(60) % 2, "x", "y")
    wide_X, wide_y, w, present = with_absent(*rows)

    def table(column, kind):
        return Frame(pd.DataFrame({"a": column, "kind": kind}), impute=True)

    new = table(np.where(np.arange(60) == 20, np.nan, X[:, 0]), kinds)
    alone = small(new, y)
    wide = np.where(np.arange(63) == 21, np.nan, wide_X[:, 0])
    padded = small(table(wide, np.insert(kinds, ABSENT, "z")), wide_y, weights=w)
    assert padded.model.columns == alone.model.columns
    probabilities = (one.predict_proba(new.table) for one in (padded, alone))
    np.testing.assert_allclose(*probabilities, rtol=1e-7)
    np.testing.assert_array_equal(padded.point_rows, present[alone.point_rows])


def test_folds_of_the_caller_hold_every_row_that_counts_once(rows):
    X, y = rows
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


def test_balanced_classes_weigh_the_same():
    data = demo_set("breast_cancer")
    (rare,), (common,) = (np.nonzero(data.y == name) for name in ("malignant", "benign"))
    picked = np.concatenate([rare[:10], common[:50]])
    X, y = data.X[picked][:, [1, 4, 9]], data.y[picked]
    factor = {label: 60 / (2 * np.sum(y == label)) for label in np.unique(y)}
    plain, balanced, mapped = (small(X, y, class_weight=w) for w in (None, "balanced", factor))
    np.testing.assert_allclose(balanced.expansion(X), mapped.expansion(X), rtol=1e-9)
    recall, before = ((one.predict(X)[:10] == y[:10]).mean() for one in (balanced, plain))
    assert recall > before


@pytest.mark.slow
def test_a_function_of_two_points_is_a_kernel(rows):
    def gaussian(x, z):
        return jnp.exp(-jnp.sum(jnp.square(x - z)) / 2)

    options = {"search": Profile(tune_kernel=False), "C": np.ones(1)}
    ours, theirs = (small(*rows, kernel=kernel, **options) for kernel in (RBF(1.0), gaussian))
    values = (model.expansion(rows[0]) for model in (theirs, ours))
    np.testing.assert_allclose(*values, rtol=1e-8, atol=1e-10)


@pytest.fixture
def folder(cache_folder, monkeypatch):
    """Run commands in a temporary folder."""
    monkeypatch.chdir(cache_folder)
    return cache_folder


def write(path, header, rows, mark=","):
    lines = [mark.join(header), *(mark.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def read(path):
    with open(path) as file:
        return list(csv.DictReader(file))


@pytest.fixture
def table(folder, rows):
    X, y = rows
    kinds = np.where(X[:, 2] > 120, "big", "small")
    cells = [[x[0], x[1], kind, label] for x, kind, label in zip(X, kinds, y, strict=True)]
    return write(folder / "cancer.csv", ["size", "texture", "kind", "diagnosis"], cells)


SIZE = ["--method", "fixed-size", "--prototypes"]
FIT = [*SIZE, "20", "--folds", "3", "--evaluations", "3", "--quiet"]


def test_fit_and_predict_on_a_file(table, rows, folder, capsys):
    model, out = str(folder / "m.jsparse"), str(folder / "p.csv")
    assert main(["fit", table, "--target", "diagnosis", "--out", model, *FIT]) == 0
    report = capsys.readouterr().out
    for word in ("data", "device", "prototypes", "C", "CV error", "effective rank", "compile"):
        assert word in report
    assert main(["predict", model, table, "--out", out]) == 0
    assert "misclassification on 60 rows" in capsys.readouterr().err
    plain = read(out)
    assert list(plain[0]) == ["diagnosis", "decision_value"]  # no probabilities unless asked for
    for row in plain:
        assert (float(row["decision_value"]) >= 0) == (row["diagnosis"] == "malignant")
    outputs = []
    for stream in ([], ["--stream"]):
        assert main(["predict", model, table, "--proba", "--out", out, *stream]) == 0
        outputs.append(read(out))
    assert outputs[0] == outputs[1]
    names = [f"probability {label}" for label in ("benign", "malignant")]
    assert list(outputs[0][0]) == ["diagnosis", "decision_value", *names]
    loaded, inputs = load(model), pd.read_csv(table)
    assert loaded.expansion.prototypes.shape == (20, 4)
    written = np.array([[float(row[name]) for name in names] for row in outputs[0]])
    np.testing.assert_allclose(written, loaded.predict_proba(inputs), rtol=1e-14)
    assert [row["diagnosis"] for row in outputs[0]] == loaded.predict(inputs).tolist()
    # A model of arrays takes the columns of a file in their order.
    columns, trained = ["x", "texture", "edge"], small(*rows, key=jax.random.key(0))
    inputs = write(folder / "x.csv", columns, rows[0])
    for part in (trained.model, trained.expansion):
        jsparse.save(folder / "arrays", part)
        assert main(["predict", str(folder / "arrays"), inputs, "--out", out]) == 0
        assert "columns are taken in their order" in capsys.readouterr().err
        name = "decision_value" if part is trained.model else "prediction"
        values = [float(row[name]) for row in read(out)]
        np.testing.assert_allclose(values, trained.decision_function(rows[0]), rtol=1e-12)
    assert main(["predict", str(folder / "arrays"), table]) == 2
    assert "expected 3 columns" in capsys.readouterr().err
    for name in (table, model):
        assert main(["predict", model, table, "--out", name]) == 2
        assert "another file than one that is read" in capsys.readouterr().err
    assert read(table)[0]["diagnosis"] == "malignant"
    load(model)
    assert main(["predict", str(folder / "arrays"), inputs, "--proba"]) == 2  # an expansion
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("jsparse: error: --proba: expected a classifier")


def test_the_command_line_says_what_is_wrong(table, folder, capsys):
    stray = [[i, i * 0.5 if i != 7 else "?"] for i in range(40)]
    stray = write(folder / "stray.csv", ["a", "y"], stray)
    for arguments, *words in (
        (["fit", "nowhere.csv", "--target", "y"], "nowhere.csv"),
        (["fit", table, "--target", "nope"], "expected the target column 'nope'"),
        (["fit", table, "--target", "diagnosis", "--out", "/nowhere/m"], "/nowhere"),
        (["fit", table, "--target", "diagnosis", *SIZE, "900"], "n_prototypes"),
        (["fit", table, "--target", "diagnosis", "--out", table], "another file than one that is"),
        (["fit", stray, "--target", "y"], "column 'y'", "in data row 8", "--missing"),
        (["predict", table, table], "expected"),
    ):
        assert main(arguments) == 2
        message = capsys.readouterr().err
        assert all(word in message for word in words)


@pytest.mark.slow
def test_several_classes_decimal_commas_and_awkward_names(folder, capsys):
    data = demo_set("iris")
    cells = [[str(v).replace(".", ",") for v in row] for row in data.X]
    cells = [[*row, label] for row, label in zip(cells, data.y, strict=True)]
    table = write(folder / "iris.csv", ["a", "b", "c", "d", "decision_value"], cells, ";")
    model, out = str(folder / "m"), str(folder / "p.csv")
    fit = ["fit", table, "--target", "decision_value", "--out", model, *FIT, "--decimal", ","]
    assert main([*fit, "--multiclass", "one-versus-one", "--balanced"]) == 0
    assert "150 rows x 4 columns" in capsys.readouterr().out
    assert main(["predict", model, table, "--out", out]) == 0
    answers = read(out)
    assert list(answers[0]) == ["decision_value", *(f"decision_value {c}" for c in data.classes)]
    assert np.mean([row["decision_value"] for row in answers] == data.y) > 0.9


@pytest.mark.slow
def test_the_demo_runs_from_a_shell(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "jsparse", "demo", "--quiet"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "test error" in process.stdout
