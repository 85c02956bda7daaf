"""Intervals and prediction sets of ONNX files and headers of C equal the answers of the model."""

import ctypes
import dataclasses
import shutil
import subprocess

import jax
import numpy as np
import pytest
from onnx_program import program
from predictor.plain_models import TASKS, a_model, rows

import jsparse
from jsparse import kernels
from jsparse.cli.main import main

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
SOURCES = {
    "interval": "int interval(const REAL *x, REAL *l, REAL *u) { return m_interval(x, l, u); }",
    "set": "int set(const REAL *x, int *in_set) { return m_set(x, in_set); }",
}
CASES = [(task, folds) for task in TASKS for folds in (0, 3)]


def calibrated(task, folds, dtype="float64"):
    """A model whose stored errors represent one to four rows each."""
    model = a_model(kernels.RBF(1.5), task, dtype, folds=folds)
    counts = np.arange(30, dtype=np.int32) % 4 + 1
    return dataclasses.replace(model, conformal=dataclasses.replace(model.conformal, counts=counts))


def by_onnx(model, X, coverage, folder):
    """Return lower and upper ends, or prediction sets, as onnxruntime computes them."""
    answers = program(model, folder, coverage=coverage)(X=X)
    if model.labels is None:
        return answers["lower"], answers["upper"]
    return answers["prediction_set"]


def by_c(model, X, coverage, folder):
    """Return lower and upper ends, or prediction sets, as compiled C computes them."""
    model.to_c(folder / "m.h", prefix="m", coverage=coverage)
    real = {"float64": "double", "float32": "float"}[X.dtype.name]
    source = SOURCES["interval" if model.labels is None else "set"]
    (folder / "m.c").write_text(f'#include "m.h"\n{source}')
    flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", f"-DREAL={real}"]
    library = folder / f"{coverage}.so"
    command = [COMPILER, *flags, "-shared", "-fPIC", "m.c", "-o", str(library), "-lm"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    functions, X = ctypes.CDLL(str(library)), np.ascontiguousarray(X)

    def called(function, arrays):
        for row in zip(X, *arrays, strict=True):
            assert function(*(ctypes.c_void_p(part.ctypes.data) for part in row)) == 0
        return arrays

    if model.labels is not None:
        return called(functions.set, [np.full((len(X), len(model.labels)), 9, np.int32)])[0] == 1
    targets = max(1, model.expansion.intercept.size if not model.quantiles else 1)
    return called(functions.interval, [np.zeros((len(X), targets), X.dtype) for _ in range(2)])


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


@pytest.mark.parametrize(("task", "folds"), CASES)
def test_onnx_agrees_with_the_model(task, folds, dtype, tmp_path):
    model, X = calibrated(task, folds, np.dtype(dtype).name), rows(200, np.dtype(dtype).name)
    for coverage in (0.3, 0.9):  # the folds' machines differ, so at 0.3 some ends are exchanged
        agree(model, X, coverage, by_onnx(model, X, coverage, tmp_path))


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
@pytest.mark.parametrize(("task", "folds"), CASES)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_c_agrees_with_the_model(task, folds, dtype, tmp_path):
    model, X = calibrated(task, folds, dtype), rows(100, dtype)
    for coverage in (0.3, 0.9):
        agree(model, X, coverage, by_c(model, X, coverage, tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
@pytest.mark.parametrize("out_of_fold", [True, "machines"])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_trained_models(task, out_of_fold, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) * [1, 5, 0.1, 1] + [0, 100, 0, -3]
    value = np.sin(X[:, 0]) + 10 * X[:, 2] + 0.3 * rng.normal(size=300)
    y = value if task == "regression" else np.digitize(value, [-0.7, 0.7])
    with jax.enable_x64(True):
        model = jsparse.train(
            X, y, task=task, key=0, method=jsparse.FixedSize(20), out_of_fold=out_of_fold,
            search=jsparse.Profile(max_evaluations=4),
        ).model  # fmt: skip
    for answer in (by_onnx, by_c):
        agree(model, X, 0.9, answer(model, X, 0.9, tmp_path))


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


def test_the_command_line_takes_coverage_and_outputs(tmp_path, capsys):
    model, path = calibrated("two", 3), tmp_path / "m.jsparse"
    model.save(path)
    export = ["export", str(path), "--coverage", "0.8", "--to"]
    assert main([*export, "onnx", "--outputs", "label,prediction_set"]) == 0
    model.to_onnx(tmp_path / "again", coverage=0.8, outputs=["prediction_set", "label"])
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "again").read_bytes()
    assert main([*export, "c"]) == 0
    model.to_c(tmp_path / "again", coverage=0.8)
    assert (tmp_path / "m.h").read_bytes() == (tmp_path / "again").read_bytes()
    capsys.readouterr()
    assert main([*export, "stablehlo"]) == 2
    assert "--coverage: expected together with --to c or onnx" in capsys.readouterr().err
