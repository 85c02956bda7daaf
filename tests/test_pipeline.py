"""From data to a tuned model, and the command line, on scikit-learn's bundled real data."""

import csv
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from jsparse.cli.main import main
from jsparse.data import demo_set
from jsparse.serialization import load
from jsparse.tuning.pipeline import train


@pytest.fixture(scope="module")
def cancer():
    data = demo_set("breast_cancer")
    return data.X, data.y


def small(X, y, **options):
    settings = {"n_prototypes": 20, "folds": 4, "max_evaluations": 4, "key": jax.random.key(0)}
    return train(X, y, **{"task": "classification", **settings, **options})


def test_a_tuned_model_is_good_reproducible_and_told(cancer, dtype):
    X, y = cancer
    calls = []
    first = small(X[:300], y[:300], progress=lambda *a: calls.append(a))
    assert (first.predict(X[300:]) == y[300:]).mean() > 0.9
    assert first.cv_error < 0.1
    assert len(calls) == len(first.tuning.history) == 5
    assert [c[0] for c in calls] == [1, 2, 3, 4, 5]
    assert str(first.expansion.prototypes.dtype) == dtype
    again = small(X[:300], y[:300])
    np.testing.assert_array_equal(first.expansion(X[300:]), again.expansion(X[300:]))


def test_a_stopped_search_goes_on_to_the_same_end(cancer):
    X, y = cancer
    whole = small(X[:200], y[:200])
    stopped = small(X[:200], y[:200], max_seconds=0.0)
    assert stopped.tuning.stopped == "seconds"
    assert len(stopped.tuning.history) == 1
    resumed = small(X[:200], y[:200], history=stopped.tuning.history)
    assert resumed.tuning.history[0] is stopped.tuning.history[0]
    assert resumed.C == whole.C
    np.testing.assert_array_equal(resumed.expansion(X), whole.expansion(X))


def test_ctrl_c_keeps_the_best_so_far(cancer):
    def interrupt(done, planned, best):
        if done == 2:
            raise KeyboardInterrupt

    stopped = small(*cancer, progress=interrupt)
    assert stopped.tuning.stopped == "interrupted"
    assert len(stopped.tuning.history) == 2
    assert stopped.cv_error == min(e.scores.min() for e in stopped.tuning.history)


def test_the_papers_search_spends_its_budget_exactly(cancer):
    X, y = cancer
    tuned = small(X[:200], y[:200], search_method="csa", max_evaluations=16)
    assert len(tuned.tuning.history) == 16
    assert tuned.cv_error < 0.1


def test_regression_and_linear_kernels():
    data = demo_set("diabetes")
    for kernel in ("linear", "rbf"):
        tuned = small(data.X, data.y, task="regression", kernel=kernel)
        assert tuned.cv_error < 0.6 * np.var(data.y)
        assert tuned.expansion(data.X).shape == data.y.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda X, y: (np.where(np.arange(len(y))[:, None] == 2, np.nan, X), y, {}),
            "X: expected finite",
        ),
        (lambda X, y: (X[:0], y[:0], {}), "expected"),
        (lambda X, y: (X, np.full(len(y), "a"), {}), "expected two classes, got 1"),
        (lambda X, y: (X, y[:-1], {}), "y: expected"),
        (lambda X, y: (X, y, {"n_prototypes": len(y) + 1}), "n_prototypes"),
        (lambda X, y: (X, y, {"folds": len(y) + 1}), "folds"),
        (lambda X, y: (X, y, {"kernel": "sigmoid"}), "kernel"),
        (lambda X, y: (X, y, {"task": "regression"}), "expected numbers"),
    ],
)
def test_bad_input_is_told_before_any_work(cancer, change, message):
    X, y, options = change(cancer[0][:60], cancer[1][:60])
    with pytest.raises(ValueError, match=message):
        small(X, y, **options)


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
    options = ["--prototypes", "20", "--folds", "4", "--evaluations", "3", "--quiet"]
    assert main(["fit", str(table), "--target", "diagnosis", "--out", str(model), *options]) == 0
    report = capsys.readouterr().out
    for word in ("data", "device", "prototypes", "C", "CV error", "effective rank", "compile"):
        assert word in report
    assert main(["predict", str(model), str(table), "--out", str(out)]) == 0
    assert "misclassification on 200 rows" in capsys.readouterr().err
    with out.open() as file:
        rows = list(csv.DictReader(file))
    expansion, metadata = load(model)
    assert metadata["classes"] == ["benign", "malignant"]
    assert len(rows) == 200
    assert {r["diagnosis"] for r in rows} == {"benign", "malignant"}
    for r in rows:
        assert (float(r["decision_value"]) >= 0) == (r["diagnosis"] == "malignant")
    assert expansion.prototypes.shape == (20, 4)


@pytest.mark.usefixtures("settings_restored")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "nowhere.csv", "--target", "y"], "nowhere.csv"),
        (["fit", "{table}", "--target", "nope"], "expected the target column 'nope'"),
        (["fit", "{table}", "--target", "diagnosis", "--out", "/nowhere/m"], "/nowhere"),
        (["fit", "{table}", "--target", "diagnosis", "--prototypes", "900"], "n_prototypes"),
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


@pytest.mark.slow
def test_the_demo_runs_from_a_shell(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "jsparse", "demo", "--quiet"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "test error" in done.stdout
