"""Intervals and prediction sets of ONNX files and headers of C equal the answers of the model."""

import dataclasses

import numpy as np
import pytest
from c_program import compiled, needs_compiler, pointers
from onnx_program import program
from predictor.plain_models import a_model, rows

from jsparse import kernels
from jsparse.cli.main import main

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
SOURCES = {
    "interval": "int interval(const REAL *x, REAL *l, REAL *u) { return m_interval(x, l, u); }",
    "set": "int set(const REAL *x, int *in_set) { return m_set(x, in_set); }",
}
TASKS = ("regression", "targets", "quantiles", "two", "one_versus_one", "hamming")


def calibrated(task, folds, dtype="float64"):
    return a_model(kernels.RBF(1.5), task, dtype, folds=folds)


def by_onnx(model, X, coverage, folder):
    """Return lower and upper ends, or prediction sets, as onnxruntime computes them."""
    answers = program(model, folder, coverage=coverage)(X=X)
    if model.labels is None:
        return answers["lower"], answers["upper"]
    return answers["prediction_set"]


def by_c(model, X, coverage, folder):
    """Return lower and upper ends, or prediction sets, as compiled C computes them."""
    model.to_c(folder / "m.h", prefix="m", coverage=coverage)
    source = SOURCES["interval" if model.labels is None else "set"]
    library, X = compiled(folder, "m", source, X.dtype), np.ascontiguousarray(X)

    def called(function, arrays):
        for row in zip(X, *arrays, strict=True):
            assert function(*pointers(*row)) == 0
        return arrays

    if model.labels is not None:
        return called(library.set, [np.full((len(X), len(model.labels)), 9, np.int32)])[0] == 1
    targets = max(1, model.expansion.intercept.size if not model.quantiles else 1)
    return called(library.interval, [np.zeros((len(X), targets), X.dtype) for _ in range(2)])


def agree(model, X, coverage, answer):
    if model.labels is not None:
        expected = model.predict_set(X, coverage)
        assert answer.shape == expected.shape
        assert 0 < expected.mean() <= 1
        np.testing.assert_array_equal(answer, expected)
        return
    expected = model.interval(X, coverage).reshape(len(X), -1, 2)
    size = max(1, np.abs(expected).max()) * TOLERANCE[X.dtype.name]
    for end, values in enumerate(answer):
        np.testing.assert_allclose(values, expected[..., end], rtol=0, atol=size)


@pytest.mark.parametrize("folds", [0, 3])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("answer", "dtype"),
    [
        (by_onnx, "float64"),
        (by_onnx, "float32"),
        pytest.param(by_c, "float64", marks=needs_compiler),
        pytest.param(by_c, "float32", marks=[needs_compiler, pytest.mark.slow]),
    ],
)
def test_a_file_agrees_with_the_model(answer, task, folds, dtype, tmp_path):
    model, X = calibrated(task, folds, dtype), rows(100, dtype)
    for coverage in (0.3, 0.9):  # the folds' machines differ, so at 0.3 some ends are exchanged
        agree(model, X, coverage, answer(model, X, coverage, tmp_path))


@pytest.mark.parametrize("folds", [0, 3])
def test_a_row_with_nan_has_no_interval_and_an_empty_set(folds, tmp_path):
    X = rows(3)
    X[1, 2] = np.nan
    lower, upper = by_onnx(calibrated("targets", folds), X, 0.9, tmp_path)
    assert np.isnan(lower).any(axis=1).tolist() == [False, True, False]
    assert np.isnan(upper).any(axis=1).tolist() == [False, True, False]
    for task in ("two", "one_versus_one"):
        in_set = by_onnx(calibrated(task, folds), X, 0.9, tmp_path)
        assert in_set.any(axis=1).tolist() == [True, False, True]


@pytest.mark.usefixtures("as_users_call")
def test_coverages_that_no_error_gives_are_refused(tmp_path):
    model = calibrated("regression", 0)
    bare = dataclasses.replace(model, conformal=None)
    for write, name in ((model.to_onnx, "m.onnx"), (model.to_c, "m.h")):
        with pytest.raises(ValueError, match="coverage: expected above 0 and at most"):
            write(tmp_path / name, coverage=0.999)
    for write, name in ((bare.to_onnx, "m.onnx"), (bare.to_c, "m.h")):
        with pytest.raises(ValueError, match="coverage: expected a model with errors on held-out"):
            write(tmp_path / name, coverage=0.9)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_writes_the_files_of_the_model(tmp_path, capsys):
    model, path, again = calibrated("two", 3), tmp_path / "m.jsparse", tmp_path / "again"
    model.save(path)
    export, coverage = ["export", str(path), "--to"], ["--coverage", "0.8"]
    for options, write in (
        (["onnx", *coverage, "--outputs", "label,prediction_set"],
         lambda: model.to_onnx(again, coverage=0.8, outputs=["prediction_set", "label"])),
        (["c", *coverage], lambda: model.to_c(again, coverage=0.8)),
        (["stablehlo", "--function", "predict_proba"],
         lambda: model.to_stablehlo(again, "predict_proba")),
    ):  # fmt: skip
        assert main([*export, *options]) == 0
        write()
        suffix = {"c": "h"}.get(options[0], options[0])
        assert (tmp_path / f"m.{suffix}").read_bytes() == again.read_bytes()
    capsys.readouterr()
    assert main([*export, "stablehlo", *coverage]) == 2
    assert "--coverage: expected together with --to c or onnx" in capsys.readouterr().err
