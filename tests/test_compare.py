"""`jsparse compare`: the table of all methods, and what is told when a line cannot be had."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from jsparse import SCDP
from jsparse._status import PRECISION_LOST
from jsparse.cli import compare
from jsparse.cli.main import main
from jsparse.kernels import RBF
from jsparse.machines import METHODS
from jsparse.training.trained import Trained


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_command_line_compares_all_methods(tmp_path, capsys, monkeypatch, every):
    some = METHODS if every else ("fixed-size", "scdp", "dual", "robust", "spsvm", "ksp")
    for name in METHODS.keys() - some:
        monkeypatch.delitem(METHODS, name)
    data = load_breast_cancer(as_frame=True)
    path = tmp_path / "cancer.csv"
    data.frame[::2].to_csv(path, index=False)
    options = ["--target", "target", "--quiet", "--evaluations", "1", "--max-prototypes", "8"]
    assert main(["compare", str(path), *options, "--out", str(tmp_path / "figures")]) == 0
    said = capsys.readouterr().out
    for method in ("SCDP", "fixed-size LS-SVM", "LS-SVM", "sparse SVM", "SVM (scikit-learn)"):
        line = next(line for line in said.splitlines() if line.startswith(method))
        assert float(line[24:].split()[0]) < 0.12
    constant = next(line for line in said.splitlines() if line.startswith("constant"))
    assert float(constant.split()[1]) > 0.25
    assert "without robust machine: it is for outliers among numbers" in said
    told = [line.removeprefix("without ") for line in said.splitlines()]
    for method in METHODS.values():  # a line of its own, or why not
        assert sum(line.startswith((method.title + " ", method.title + ":")) for line in told) == 1
    for name in ("compare.png", "compare.svg"):
        assert (tmp_path / "figures" / name).stat().st_size > 1000
    assert main(["compare", str(path), "--target", "target", "--test", "1.5"]) == 2


def given(X, y, classification, rows=80):
    """The task of the first rows, the others to test on."""
    parts = (X[:rows], y[:rows], X[rows:], y[rows:])
    return compare._Task(*parts, classification, None, None, 0)


def run(X, y, folder, task="classification", **options):
    settings = {"max_prototypes": None, "max_evaluations": None, "seed": 0, "quiet": True}
    settings |= {"test": 1 / 3, "folder": folder, "check": lambda: None}
    return compare.run(X, y, task, **(settings | options))


class Stub(Trained):
    """What predicts zero, without any training."""

    def __init__(self, status=1):
        vars(self).update(found=status, model=SimpleNamespace(size=1), kernel=RBF(1.0))

    @property
    def statuses(self):
        return {"fit": self.found}

    def predict(self, X):
        return np.zeros(len(X))


def test_a_line_not_to_be_trusted_is_marked_and_gives_the_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "_svm", lambda g, p: compare._LeftOut("one", "of its ways"))
    monkeypatch.setattr(compare, "_figure", lambda *_: None)

    def train(*data, method, **options):
        return Stub(PRECISION_LOST if isinstance(method, SCDP) else 1)

    monkeypatch.setattr(compare, "train", train)
    table = tmp_path / "t.csv"
    table.write_text("a,t\n" + "\n".join(f"{i},{i / 7}" for i in range(30)))
    options = ["compare", str(table), "--target", "t", "--quiet", "--out", str(tmp_path / "o")]
    assert main(options) == 3
    said = capsys.readouterr().out.splitlines()
    assert next(line for line in said if line.startswith("SCDP")).endswith(" *")
    for name in ("constant", "fixed-size LS-SVM", "LS-SVM", "robust machine"):
        assert not next(line for line in said if line.startswith(name)).endswith("*")
    assert "without sparse SVM: it is for classification" in said
    assert any(line.startswith("*: the result is not determined") for line in said)
    assert "without one: of its ways" in said
    monkeypatch.setattr(compare, "train", lambda *_, **__: Stub(1))
    assert main(options) == 0
    assert "*" not in capsys.readouterr().out


def test_no_work_is_done_for_figures_that_cannot_be(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "train", None)
    X, y = np.zeros((9, 1)), np.arange(9.0)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        run(X, y, tmp_path / "file", "regression")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="figures need matplotlib: pip install"):
        run(X, y, tmp_path, "regression")


def test_every_class_is_trained_on():
    y = np.array(["common"] * 50 + ["rare"] * 2 + ["single"] + ["third"] * 37)
    for seed in range(10):
        for test in (0.1, 1 / 3, 0.8):
            rows, out = compare._split(y, test, True, seed)
            assert sorted([*rows, *out]) == list(range(90))
            assert len(out) == round(test * 90)
            assert set(y[rows]) == set(y)
            assert abs(np.sum(y[out] == "common") - 50 * test) <= 2
    with pytest.raises(ValueError, match="--test: expected rows of all 4 classes"):
        compare._split(y[48:54], 0.5, True, 0)


def test_the_peer_takes_targets_of_any_scale_and_classes_of_few_rows():
    X = np.random.default_rng(0).standard_normal((120, 2))
    path = Stub()
    y = np.sin(2 * X[:, 0])
    big, small = (compare._svm(given(X, s * y, False), path) for s in (1.0, 1e-3))
    assert small.prototypes == big.prototypes
    np.testing.assert_allclose(small.error, 1e-6 * big.error, rtol=1e-3)
    labels = np.array([f"c{i % 20}" for i in range(120)])
    assert compare._svm(given(X, labels, True, 60), path).prototypes > 0
    labels[0] = "alone"
    assert "a class has one row" in compare._svm(given(X, labels, True, 60), path).why
