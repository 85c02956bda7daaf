"""The header of C99, compiled by the machine's compiler, answers as the model does."""

import ctypes
import datetime
import re
import subprocess
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pytest
from c_program import compile_source, compiled, needs_compiler, pointers
from predictor.plain_models import D, M, a_model, every_kernel, every_pair, rows

from jsparse import Model, kernels
from jsparse.cli.main import main
from jsparse.data.encoding import encode, fit_schema
from jsparse.expansion import KernelExpansion
from jsparse.predictor import load

KERNELS = every_kernel()
CLASSIFIER = """
int scores(const REAL *x, REAL *s) { return m_scores(x, s); }
int number(const REAL *x) { return m_class(x); }
int probabilities(const REAL *x, REAL *p) { return m_probabilities(x, p); }
"""
REGRESSION = """
int scores(const REAL *x, REAL *s) { return m_scores(x, s); }
REAL predict(const REAL *x) { return m_predict(x); }
"""


class Compiled:
    """A header as a library, whose functions take rows of NumPy."""

    def __init__(self, model, folder, dtype=None, rest=""):
        model.to_c(folder / "m.h", prefix="m", dtype=dtype)
        self.dtype = np.dtype(dtype or model.dtype)
        self.n_scores = len(model.code.matrix) if model.code else model.expansion.intercept.size
        self.n_classes = len(model.labels or ())
        functions = (CLASSIFIER if model.labels else REGRESSION) + rest
        self.library = compiled(folder, "m", functions, self.dtype)

    def filled(self, name, X, width):
        """Return what a function writes for each row, NaN where it returns an error."""
        X, out = np.ascontiguousarray(X, self.dtype), np.zeros((len(X), width), self.dtype)
        function = getattr(self.library, name)
        for x, y in zip(X, out, strict=True):
            if function(*pointers(x, y)):
                y[:] = np.nan
        return out

    def numbers(self, X):
        X = np.ascontiguousarray(X, self.dtype)
        return np.array([self.library.number(*pointers(x)) for x in X])


@needs_compiler
@pytest.mark.parametrize(("kernel", "task"), every_pair(KERNELS))
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_c_agrees_with_the_model(kernel, task, dtype, tmp_path):
    model, X = a_model(KERNELS[kernel], task, dtype), rows(200, dtype)
    program = Compiled(model, tmp_path)
    expected = model.decision_function(X).reshape(len(X), -1)
    scores = program.filled("scores", X, program.n_scores)
    tolerance = {"float64": 1e-12, "float32": 2e-5}[dtype] * np.abs(expected).max()
    np.testing.assert_allclose(scores, expected, rtol=0, atol=tolerance)
    if model.labels is None:
        return
    ordered = np.sort(expected if expected.shape[1] > 1 else np.abs(expected), axis=1)
    lead = ordered[:, -1] - (ordered[:, -2] if expected.shape[1] > 1 else 0)
    clear = lead > 4 * tolerance
    assert clear.mean() > 0.9 or dtype == "float32"  # rounding may decide every label of few rows
    labels = np.array(model.labels)[program.numbers(X)]
    np.testing.assert_array_equal(labels[clear], model.predict(X)[clear])
    ours, theirs = program.filled("probabilities", X, program.n_classes), model.predict_proba(X)
    atol = {"float64": 1e-10, "float32": 2e-3}[dtype]
    np.testing.assert_allclose(ours[clear], theirs[clear], rtol=0, atol=atol)


@needs_compiler
def test_maps_of_columns_and_a_model_of_float64_in_float32(tmp_path):
    X = np.concatenate([rows(200), [[-99.0] * D, [99.0] * D]])
    for model, dtype, tolerance in (
        (a_model(KERNELS["rbf"], scaling="ranks"), None, 1e-12),
        (a_model(KERNELS["rbf"], scaling="none"), None, 1e-12),
        (a_model(KERNELS["composed"], "hamming"), "float32", 2e-5),
    ):
        expected = model.decision_function(X).reshape(len(X), -1)
        scores = Compiled(model, tmp_path, dtype).filled("scores", X, expected.shape[1])
        atol = tolerance * np.abs(expected).max()
        np.testing.assert_allclose(scores, expected, rtol=0, atol=atol)


@needs_compiler
def test_invalid_rows_are_told_by_the_return_value(tmp_path):
    model = a_model(kernels.Polynomial(3), "two")
    program = Compiled(model, tmp_path)
    X = rows(4)
    X[0, 1], X[1, 0], X[2] = np.nan, np.inf, 1e200
    assert np.isnan(program.filled("scores", X, 1)[:, 0]).tolist() == [True] * 3 + [False]
    assert (program.numbers(X) == -1).tolist() == [True] * 3 + [False]
    (tmp_path / "value").mkdir()
    library = Compiled(a_model(kernels.Polynomial(3)), tmp_path / "value").library
    library.predict.restype = ctypes.c_double
    values = [library.predict(*pointers(x)) for x in X]
    assert np.isnan(values).tolist() == [True] * 3 + [False]


@needs_compiler
@pytest.mark.parametrize(
    ("coded", "dtype"), [(False, "float64"), (True, "float64"), (False, "float32")]
)
def test_columns_of_a_table(coded, dtype, tmp_path):
    days = [datetime.date(2020, 1, day) for day in range(1, 6)]
    table = pa.table(
        {
            "a": [1.5, None, 2.5, 4.0, 5.5],
            "b": ["u", "v*/", None, "u", 'w"\\??/'],
            "day": days,
            "flag": [True, False, True, True, False],
            "y": ["no", "yes", "né", "yes", "no"],
        }
    )
    schema = fit_schema(table, "y", task="classification", impute=True, coded=coded)
    d, rng = len(schema.features), np.random.default_rng(0)
    kernel = kernels.Mixed(kernels.RBF(1e12), schema.codes) if coded else kernels.RBF(1e12)
    parts = rng.normal(size=(3, d)), rng.normal(size=(3, 3)), rng.normal(size=3)
    code = a_model(kernels.RBF(1.0), "one_versus_rest").code._replace(matrix=2 * np.eye(3) - 1)
    model = Model(
        KernelExpansion(kernel, *map(jax.device_put, parts)),
        code=code, labels=schema.classes, label_dtype="<U3", columns=schema,
        inverse_temperatures=np.ones(3),
    )  # fmt: skip
    encoder = "void encode(const double *c, REAL *x) { m_encode(c, x); }"
    program = Compiled(model, tmp_path, dtype, rest=encoder)
    b, flag = schema.columns[1].categories, schema.columns[3].categories
    day = [(day - datetime.date(1970, 1, 1)).days * 86400e6 for day in days]
    columns = [
        [np.nan if a is None else a, b.index(c), t, flag.index(f)]
        for a, c, t, f in zip(*(table[n].to_pylist() for n in ("a", "b")), day,
                              table["flag"].to_pylist(), strict=True)
    ]  # fmt: skip
    columns[0][1] = -1  # unseen
    new = table.set_column(1, "b", pa.array(["z", *table["b"].to_pylist()[1:]]))
    X = np.zeros((5, d), dtype)
    for row, x in zip(np.array(columns), X, strict=True):
        program.library.encode(*pointers(row, x))
    np.testing.assert_array_equal(X, encode(schema, new, dtype=dtype).X)


@needs_compiler
def test_the_program_of_the_documentation(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "howto" / "deploy.md").read_text()
    code = re.search("^```c\n(.*?)^```", page, re.S | re.M)
    assert code is not None
    (tmp_path / "main.c").write_text(code[1])
    model = a_model(KERNELS["rbf"], "two")
    model.to_c(tmp_path / "fan.h", prefix="fan", dtype="float32")
    compile_source(
        tmp_path / "main.c", tmp_path / "main", "-std=c99", "-Wall", "-Wextra", "-Werror"
    )
    printed = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout
    number, probability = re.findall(r"[0-9.e-]+", printed)
    x = [0.3, -1.2, 0.1, 0.8]
    assert model.labels[int(number)] == model.predict(x)
    assert float(probability) == pytest.approx(model.predict_proba(x).max(), rel=1e-4)


def test_the_header_is_deterministic_and_small(tmp_path):
    model = a_model(KERNELS["composed"], "one_versus_one")
    model.to_c(tmp_path / "a.h")
    model.save(tmp_path / "m")
    again = main(["export", str(tmp_path / "m"), "--to", "c", "--out", str(tmp_path / "b.h")])
    assert again == 0
    header = (tmp_path / "a.h").read_bytes()
    assert (tmp_path / "b.h").read_bytes() == header
    thousands = (M * (D + 6) + 4 * D) / 1000
    assert len(header) < 21_000 * thousands + 6_000
    assert max(map(len, header.splitlines())) <= 200
    numbers = re.search(rb"model_z0\[80\]\[4\] = \{(.*?)\};", header, re.S)
    assert numbers is not None
    read = np.array(re.findall(rb"[-+0-9.e]+", numbers[1]), float).reshape(M, D)
    np.testing.assert_array_equal(read, model.expansion.prototypes)


@pytest.mark.usefixtures("as_users_call")
def test_the_arguments_are_checked(tmp_path):
    model = a_model(KERNELS["linear"])
    for prefix in ("", "1a", "a b", "a-b", "é"):
        with pytest.raises(ValueError, match="prefix: expected letters"):
            model.to_c(tmp_path / "m.h", prefix=prefix)
    with pytest.raises(ValueError, match="dtype: expected 'float32'"):
        model.to_c(tmp_path / "m.h", dtype="float16")
    large = a_model(kernels.Linear(1e60))
    with pytest.raises(ValueError, match="float32 does not hold 1e"):
        large.to_c(tmp_path / "m.h", dtype="float32")
    assert list(tmp_path.iterdir()) == []
    model.to_c(tmp_path / "m.h", prefix="fan")
    assert "fan_predict" in (tmp_path / "m.h").read_text()


def test_a_folder_of_numpy_predicts(tmp_path, capsys):
    model, folder = a_model(KERNELS["rbf"], "two"), tmp_path / "served"
    model.save(tmp_path / "m.jsparse")
    arguments = ["export", str(tmp_path / "m.jsparse"), "--to", "numpy", "--out", str(folder)]
    assert main(arguments) == 0
    assert {path.suffix for path in folder.iterdir()} == {".py", ".jsparse"}
    predictor = load(folder / "model.jsparse")
    np.testing.assert_array_equal(predictor.predict(rows(5)), model.predict(rows(5)))
    capsys.readouterr()
    assert main(arguments) == 1
    assert "it exists" in capsys.readouterr().err
