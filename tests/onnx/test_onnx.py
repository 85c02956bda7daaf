"""ONNX files of models, run by onnxruntime: they answer what the models answer."""

import dataclasses
import sys

import jax
import numpy as np
import onnx
import pytest
from models import KERNELS, TASKS, D, make, program, rows, without_probabilities

from jsparse import Model, kernels
from jsparse._files import OutputError
from jsparse.expansion import KernelExpansion
from jsparse.scaling import Standardization

SLOW = pytest.mark.slow
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
PARTS = ("coefficients", "intercept")
CASES = [
    *((kernel, "two", "none") for kernel in KERNELS),
    *(("RBF", task, "standard") for task in TASKS),
    ("RBF", "two", "ranks"),
    ("Linear", "several numbers", "ranks"),
]
ALL_CASES = [
    (kernel, task, scaling)
    for kernel in KERNELS
    for task in TASKS
    for scaling in ("none", "standard", "ranks")
    if scaling == "none" or not kernel.startswith("Mixed")
]


@pytest.mark.parametrize(
    ("kernel", "task", "scaling"),
    [*CASES, *(pytest.param(*case, marks=SLOW) for case in ALL_CASES if case not in CASES)],
)
def test_a_file_answers_as_the_model(kernel, task, scaling, dtype, tmp_path):
    dtype = np.dtype(dtype).name
    model = make(kernel, task, dtype, scaling)
    X = rows(1000, dtype, codes=kernel.startswith("Mixed"))
    answers = program(model, tmp_path)(X=X)
    if model.labels is None:
        close(answers["variable"], model.predict(X).reshape(1000, -1), dtype)
        return
    clear = clearly_decided(model, X, dtype)
    scores = model.decision_function(X)[clear]
    answers = {name: values[clear] for name, values in answers.items()}
    close(answers["scores"], scores, dtype)
    # Probabilities are functions of the scores times slopes of about 1.
    size = np.abs(scores).max()
    close(answers["probabilities"], model.predict_proba(X)[clear], dtype, size)
    np.testing.assert_array_equal(answers["label"], model.predict(X)[clear])


def clearly_decided(model, X, dtype):
    """Return the rows in which rounding decides neither a sign that is counted nor the label."""
    scores, tolerance = model.decision_function(X).reshape(len(X), -1), TOLERANCE[dtype]
    values = np.asarray(model(X)).reshape(len(X), -1)
    first, second = np.sort(np.pad(scores, [(0, 0), (0, int(model.code is None))]), axis=1)[
        :, -2:
    ].T
    gap = second - first  # for two classes the scores are 0 and f
    clear = gap > tolerance * np.abs(scores).max(axis=1)
    if model.decoding == "hamming":
        clear &= np.abs(values).min(axis=1) > tolerance * np.abs(values).max(axis=1)
    assert np.mean(clear) > 0.98
    return clear


def close(values, expected, dtype, size=1.0):
    assert values.dtype == dtype
    tolerance = TOLERANCE[dtype]
    size = max(size, 1, np.abs(expected).max())  # a value may be small as its terms cancel
    np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize("scaling", ["none", "standard"])
def test_an_offset_costs_no_digits(scaling, tmp_path):
    offset = 1e4
    X = rows(200, "float64") + offset
    X = X.astype(np.float32).astype(float)
    model = make("RBF", "number", "float64", "none")
    parts = [np.asarray(a) for a in (model.expansion.prototypes, model.expansion.coefficients)]
    Z = (parts[0] + offset).astype(np.float32).astype(float)
    lengthscale = np.asarray(model.expansion.kernel.lengthscale, np.float32).astype(float)
    shift, scale = np.full(D, offset), np.ones(D)
    # The oracle in float64, from differences of numbers that float32 holds.
    squares = np.square((X[:, None] - Z[None]) / lengthscale).sum(axis=2)
    expected = np.exp(-squares / 2) @ parts[1]
    put = lambda a: jax.device_put(np.asarray(a, np.float32))  # noqa: E731
    scaled = scaling == "standard"
    expansion = KernelExpansion(
        kernels.RBF(put(lengthscale)),
        put(Z - shift if scaled else Z),
        put(parts[1]),
        put(0),
        Standardization(put(shift), put(scale)) if scaled else None,
    )
    values = program(Model(expansion), tmp_path)(X=X.astype(np.float32))["variable"][:, 0]
    np.testing.assert_allclose(values, expected, atol=2e-6 * np.abs(parts[1]).sum())


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (np.array(["no", "yes"]), "tensor(string)"),
        (np.array([-1, 7]), "tensor(int64)"),
        (np.array([False, True]), "tensor(bool)"),
        (np.array([0.5, 2.5]), "tensor(double)"),
        (np.array([0.5, 2.5], np.float32), "tensor(double)"),
        (np.array([1, 200], np.uint8), "tensor(int64)"),
        (np.array([-3, 4], np.int32), "tensor(int64)"),
        (np.array([1, 2**63], np.uint64), "tensor(uint64)"),
    ],
)
def test_labels_keep_their_type(labels, kind, tmp_path):
    model = make(task="two", labels=tuple(labels.tolist()))
    model = dataclasses.replace(model, label_dtype=labels.dtype.str)
    run = program(model, tmp_path)
    assert run.outputs["label"] == kind
    X = rows(40, "float64")
    np.testing.assert_array_equal(run(X=X)["label"], model.predict(X))
    assert len(set(model.predict(X).tolist())) == 2


def test_names_and_shapes_are_those_of_skl2onnx(tmp_path):
    double = "tensor(double)"
    expected = {
        "number": {"variable": double},
        "two": {"label": "tensor(string)", "probabilities": double, "scores": double},
    }
    for task, outputs in expected.items():
        run = program(make(task=task), tmp_path)
        assert run.inputs == {"X": double}
        assert run.outputs == outputs
        for n in (1, 7):
            answers = run(X=rows(n, "float64"))
            shapes = {"variable": (n, 1), "label": (n,), "probabilities": (n, 2), "scores": (n,)}
            assert {name: a.shape for name, a in answers.items()} == {
                name: shapes[name] for name in outputs
            }
    assert "probabilities" not in program(without_probabilities(make()), tmp_path).outputs


def test_at_a_tie_the_class_is_that_of_the_model(tmp_path):
    X = rows(3, "float64")
    for task, label in (("two", "class 1"), ("one_versus_rest, loss", "class 0")):
        model = make(task=task, scaling_of="none")
        with jax.enable_x64(True):
            zeros = {name: 0 * getattr(model.expansion, name) for name in PARTS}
        expansion = dataclasses.replace(model.expansion, **zeros)
        model = dataclasses.replace(model, expansion=expansion)
        answers = program(model, tmp_path)(X=X)
        assert answers["label"].tolist() == model.predict(X).tolist() == [label] * 3
        predicted = answers["probabilities"].argmax(axis=1)
        assert [f"class {i}" for i in predicted] == [label] * 3


@pytest.mark.parametrize("kernel", [k for k in KERNELS if not k.startswith("Mixed")])
@pytest.mark.parametrize("scaling", ["none", "ranks"])
def test_of_a_row_that_is_not_finite_no_score_is_finite(kernel, scaling, tmp_path):
    runs = [program(make(kernel, task, "float32", scaling), tmp_path) for task in TASKS[1:4]]
    for value in (np.nan, np.inf, -np.inf):
        X = rows(4, "float32")
        X[1, 2] = value
        for run in runs:
            answers = run(X=X)
            label = answers.pop("label", None)
            for values in answers.values():
                finite = np.isfinite(values.reshape(4, -1))
                assert not finite[1].any()
                assert finite[[0, 2, 3]].all()
            if label is not None and np.isnan(value):
                assert label[1] == "class 0"


def test_files_are_checked_small_and_equal_byte_for_byte(tmp_path):
    model = make("Sum", "one_versus_one, hamming")
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for path in paths:
        model.to_onnx(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    onnx.checker.check_model(paths[0], full_check=True)
    proto = onnx.load(paths[0])
    assert (proto.producer_name, proto.ir_version) == ("jsparse", 8)
    assert {(o.domain, o.version) for o in proto.opset_import} == {("", 18)}
    rng = np.random.default_rng(0)
    Z, beta = rng.standard_normal((200, 10)), rng.standard_normal(200)
    with jax.enable_x64(True):
        put = jax.device_put
        kernel = kernels.RBF(1.0) + kernels.Laplacian(put(np.ones(10)))
        Model(KernelExpansion(kernel, put(Z), put(beta), put(np.zeros(())))).to_onnx(paths[0])
    assert paths[0].stat().st_size < 1.3 * (Z.nbytes + beta.nbytes)


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    custom = kernels.Custom(lambda params, x, z: x @ z)
    model = make()
    expansion = dataclasses.replace(model.expansion, kernel=custom)
    with pytest.raises(ValueError, match="expected one of jsparse's own kernels"):
        dataclasses.replace(model, expansion=expansion).to_onnx(path)
    with pytest.raises(OutputError, match="cannot be written"):
        model.to_onnx(tmp_path / "missing" / "model.onnx")
    for name in [name for name in sys.modules if name.partition(".")[0] == "onnx"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("jsparse.onnx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("jsparse.onnx", raising=False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'jsparse\[onnx\]'"):
        model.to_onnx(path)
    assert not path.exists()
