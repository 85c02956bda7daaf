"""ONNX files of models, run by onnxruntime: they answer what the models answer."""

import dataclasses
import sys

import jax
import numpy as np
import onnx
import pytest
from onnx_program import program
from predictor.plain_models import TASKS, D, M, a_model, every_kernel, rows

from jsparse import Model, kernels
from jsparse._files import OutputError
from jsparse.expansion import KernelExpansion
from jsparse.multiclass import output_code
from jsparse.scaling import Standardization

SLOW = pytest.mark.slow
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
with jax.enable_x64(True):
    KERNELS = (
        every_kernel()
        | {
            "almost rbf": kernels.RationalQuadratic(1.1, 1e4),  # which needs log1p
            "codes only": kernels.Mixed(kernels.RBF(2.0), tuple(range(D))),
            "nested": kernels.Projected(kernels.RBF(1.0), np.eye(D)[:2])
            + 0.5 * kernels.Matern32(3.0),
        }
    )
RBF = KERNELS["rbf"]
CODES = ("mixed", "mixed cusp", "codes only")
CASES = [
    *((kernel, "two", "none") for kernel in KERNELS),
    *(("rbf", task, "standard") for task in TASKS),
    ("rbf", "two", "ranks"),
    ("linear", "targets", "ranks"),
]
ALL_CASES = [
    (kernel, task, "none" if kernel in CODES else "standard")
    for kernel in KERNELS
    for task in TASKS
]


@pytest.mark.parametrize(
    ("kernel", "task", "scaling"),
    [*CASES, *(pytest.param(*case, marks=SLOW) for case in ALL_CASES if case not in CASES)],
)
def test_a_file_answers_as_the_model(kernel, task, scaling, dtype, tmp_path):
    dtype = np.dtype(dtype).name
    model, X = a_model(KERNELS[kernel], task, dtype, scaling=scaling), rows(200, dtype)
    answers = program(model, tmp_path)(X=X)
    if model.labels is None:
        close(answers["variable"], model.predict(X).reshape(len(X), -1), dtype)
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
    best = np.sort(scores if model.code else np.pad(scores, [(0, 0), (0, 1)]), axis=1)
    gap = best[:, -1] - best[:, -2]  # for two classes the scores are 0 and f
    clear = gap > tolerance * np.abs(scores).max(axis=1)
    if model.decoding == "hamming":
        values = np.asarray(model(X)).reshape(len(X), -1)
        clear &= np.abs(values).min(axis=1) > tolerance * np.abs(values).max(axis=1)
    assert np.mean(clear) > 0.9
    return clear


def close(values, expected, dtype, size=1.0):
    assert values.dtype == dtype
    tolerance = TOLERANCE[dtype]
    size = max(size, 1, np.abs(expected).max())  # a value may be small as its terms cancel
    np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize("scaled", [False, True])
def test_an_offset_costs_no_digits_in_float32(scaled, tmp_path):
    rng, offset = np.random.default_rng(0), 1e4
    X, Z = ((rng.normal(size=(n, D)) + offset).astype(np.float32) for n in (200, M))
    beta, lengthscale = rng.normal(size=M).astype(np.float32), np.float32(1.5)
    # The oracle in float64, from differences of numbers that float32 holds.
    squares = np.square((X[:, None] - Z.astype(float)) / lengthscale).sum(axis=2)
    expected = np.exp(-squares / 2) @ beta
    shift, scale = np.full(D, offset, np.float32), np.ones(D, np.float32)
    parts = (Z - shift if scaled else Z), beta, np.float32(0), lengthscale, shift, scale
    prototypes, coefficients, intercept, *rest = map(jax.device_put, parts)
    scaling = Standardization(*rest[1:]) if scaled else None
    kernel = kernels.RBF(rest[0])
    machine = KernelExpansion(kernel, prototypes, coefficients, intercept, scaling)
    values = program(Model(machine), tmp_path)(X=X)["variable"][:, 0]
    np.testing.assert_allclose(values, expected, atol=1e-6 * np.abs(beta).sum())


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
    model = dataclasses.replace(
        a_model(RBF, "two"), labels=tuple(labels.tolist()), label_dtype=labels.dtype.str
    )
    run, X = program(model, tmp_path), rows(40)
    assert run.outputs["label"] == kind
    np.testing.assert_array_equal(run(X=X)["label"], model.predict(X))
    assert len(set(model.predict(X).tolist())) == 2


@pytest.mark.parametrize(
    ("task", "outputs"),
    [
        ("regression", {"variable": (1,)}),
        ("targets", {"variable": (2,)}),
        ("two", {"label": (), "probabilities": (2,), "scores": ()}),
        ("one_versus_rest", {"label": (), "probabilities": (4,), "scores": (4,)}),
    ],
)
def test_inputs_and_outputs_have_the_names_that_skl2onnx_gives(task, outputs, tmp_path):
    model = a_model(RBF, task)
    run = program(model, tmp_path)
    assert run.inputs == {"X": "tensor(double)"}
    for n in (1, 7):
        answers = run(X=rows(n))
        assert {name: a.shape for name, a in answers.items()} == {
            name: (n, *shape) for name, shape in outputs.items()
        }
    bare = program(dataclasses.replace(model, inverse_temperatures=None), tmp_path)
    assert list(bare.outputs) == [name for name in outputs if name != "probabilities"]


@pytest.mark.parametrize(("task", "number"), [("two", 1), ("one_versus_rest", 0)])
def test_at_a_tie_the_class_is_that_of_the_model(task, number, tmp_path):
    model, X = a_model(RBF, task), rows(3)
    with jax.enable_x64(True):
        zeros = {name: 0 * getattr(model.expansion, name) for name in ("coefficients", "intercept")}
    model = dataclasses.replace(model, expansion=dataclasses.replace(model.expansion, **zeros))
    answers = program(model, tmp_path)(X=X)
    label = model.labels[number]
    assert answers["label"].tolist() == model.predict(X).tolist() == [label] * 3
    assert answers["probabilities"].argmax(axis=1).tolist() == [number] * 3


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name not in CODES])
@pytest.mark.parametrize("scaling", ["none", "ranks"])
def test_of_a_row_that_is_not_finite_no_score_is_finite(kernel, scaling, tmp_path):
    tasks = ("targets", "two", "one_versus_one", "hamming")
    models = [a_model(KERNELS[kernel], task, "float32", scaling=scaling) for task in tasks]
    for model in models:
        run = program(model, tmp_path)
        for value in (np.nan, np.inf, -np.inf):
            X = rows(4, "float32")
            X[1, 2] = value
            answers = run(X=X)
            label = answers.pop("label", None)
            for values in answers.values():
                finite = np.isfinite(values.reshape(4, -1))
                assert not finite[1].any()
                assert finite[[0, 2, 3]].all()
            if label is not None and np.isnan(value):
                assert label[1] == model.labels[0]


def test_files_are_checked_and_equal_byte_for_byte(tmp_path):
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for path in paths:
        a_model(RBF, "hamming").to_onnx(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    onnx.checker.check_model(paths[0], full_check=True)
    proto = onnx.load(paths[0])
    assert (proto.producer_name, proto.ir_version) == ("jsparse", 8)
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", 18)]


def test_a_file_holds_every_array_once(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "model.onnx"
    Z, beta = rng.standard_normal((300, 10)), rng.standard_normal(300)
    with jax.enable_x64(True):
        kernel = kernels.RBF(1.0) + kernels.Laplacian(2.0) * kernels.Polynomial(3)
        parts = (jax.device_put(a) for a in (Z, beta, np.zeros(())))
        Model(KernelExpansion(kernel, *parts)).to_onnx(path)
    assert path.stat().st_size < 1.3 * (Z.nbytes + beta.nbytes)


@pytest.mark.parametrize(
    ("task", "outputs", "most"),
    [
        ("two", "all", 13),
        ("two", ["label"], 10),
        ("two", ["scores"], 8),
        ("regression", "all", 7),
    ],
)
@pytest.mark.parametrize("scaling", ["none", "standard"])
def test_a_row_passes_few_nodes(task, outputs, most, scaling, tmp_path):
    path = tmp_path / "model.onnx"
    model = a_model(RBF, task, scaling=scaling)
    model.to_onnx(path, outputs=outputs)
    depends_on_row, nodes = {"X"}, onnx.load(path).graph.node
    for node in nodes:  # in the order of computation
        if depends_on_row.intersection(node.input):
            depends_on_row.update(node.output)
    assert sum(bool(depends_on_row.intersection(node.input)) for node in nodes) <= most
    assert len(nodes) <= most + 3  # nodes of constants, which a program computes when it loads


def test_outputs_are_selected_by_name(tmp_path):
    model, X = a_model(RBF, "one_versus_one"), rows(50)
    everything = program(model, tmp_path)(X=X)
    for names in (["label"], ["scores"], ["scores", "label"], ["probabilities"]):
        answers = program(model, tmp_path, outputs=names)(X=X)
        assert list(answers) == [name for name in everything if name in names]
        for name, values in answers.items():
            np.testing.assert_array_equal(values, everything[name])
    for wrong in (["labels"], [], "label"):
        with pytest.raises(ValueError, match="outputs: expected 'all', or a list of names among"):
            model.to_onnx(tmp_path / "model.onnx", outputs=wrong)


def test_two_classes_may_have_an_output_code(tmp_path):
    model, X = a_model(RBF, "one_versus_rest"), rows(50)
    code = output_code(np.array([[1, -1, 1, -1], [-1, 1, -1, 1]]), 2)
    model = dataclasses.replace(
        model, code=code, labels=("no", "yes"), label_dtype="<U3", inverse_temperatures=np.ones(2)
    )
    answers = program(model, tmp_path)(X=X)
    close(answers["scores"], model.decision_function(X), "float64")
    close(answers["probabilities"], model.predict_proba(X), "float64")
    np.testing.assert_array_equal(answers["label"], model.predict(X))


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    path, model = tmp_path / "model.onnx", a_model(RBF)
    custom = a_model(kernels.Custom(lambda params, x, z: x @ z))
    with pytest.raises(ValueError, match="expected one of jsparse's own kernels"):
        custom.to_onnx(path)
    with pytest.raises(OutputError, match="cannot be written"):
        model.to_onnx(tmp_path / "missing" / "model.onnx")
    for name in [name for name in sys.modules if name.startswith("jsparse.export.onnx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'jsparse\[onnx\]'"):
        model.to_onnx(path)
    assert not path.exists()
