"""A predictor of NumPy answers as the model of JAX does, and needs no JAX."""

import multiprocessing
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from predictor.in_another_process import answers
from predictor.plain_models import D, M, a_model, every_kernel, every_pair, rows

import jsparse
from jsparse import kernels
from jsparse.predictor import ModelFileError, NumericalError, Predictor
from jsparse.predictor import load as load_predictor

KERNELS = every_kernel()
FOLDER = Path(jsparse.__file__).parent
assert 1000 * M > 2**16  # so that a `Model` predicts the rows by JAX


def decided(scores, dtype):
    """Return whether the best score leads by more than rounding, for each row."""
    rounding = {"float64": 1e-10, "float32": 1e-5}[dtype] * np.abs(scores).max()
    if scores.ndim == 1:
        return np.abs(scores) > rounding
    first = np.sort(scores, axis=1)
    return first[:, -1] - first[:, -2] > rounding


def agree(ours, theirs, dtype):
    """Compare with a tolerance relative to the largest value, which bounds the kernel sums."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    tolerance = {"float64": 1e-12, "float32": 1e-5}[dtype]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize(("kernel", "task"), every_pair(KERNELS))
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_predictor_agrees_with_its_model(kernel, task, dtype):
    model = a_model(
        KERNELS[kernel], task, dtype, folds=2 if task in ("targets", "quantiles", "hamming") else 0
    )
    X = rows()
    predictor = model.to_numpy()
    assert isinstance(predictor, Predictor)
    scores = model.decision_function(X)
    agree(predictor.decision_function(X), scores, dtype)
    if model.labels is None:
        agree(predictor.interval(X, 0.8), model.interval(X, 0.8), dtype)
        agree(predictor.predict(X), model.predict(X), dtype)
        return
    clear = decided(scores, dtype)
    assert clear.mean() > (0.9 if dtype == "float64" else 0.1)  # large values round coarsely
    np.testing.assert_array_equal(predictor.predict(X)[clear], model.predict(X)[clear])
    ours, theirs = predictor.predict_proba(X), model.predict_proba(X)
    np.testing.assert_allclose(ours[clear], theirs[clear], rtol=0, atol=1e-3 if
                               dtype == "float32" else 1e-10)  # fmt: skip
    sets = predictor.predict_set(X, 0.8), model.predict_set(X, 0.8)
    # A class is at the edge of its set with the probability of a tie.
    assert np.mean(sets[0] != sets[1]) < (1e-9 if dtype == "float64" else 2e-3)


@pytest.mark.parametrize(
    ("scaling", "dtype"), [("ranks", "float64"), ("ranks", "float32"), ("none", "float64")]
)
def test_every_map_of_columns(scaling, dtype):
    model = a_model(KERNELS["rbf"], scaling=scaling, dtype=dtype)
    X = np.concatenate([rows(), [[-99.0] * D, [99.0] * D]])  # beyond the outer knots
    agree(model.to_numpy().predict(X), model.predict(X), dtype)


def test_few_rows_are_predicted_without_a_program():
    model, X = a_model(KERNELS["rbf"]), rows(20)
    with jsparse._compilations.count_compilations() as compiled:
        few = model.predict(X)
    assert compiled.programs == 0
    np.testing.assert_array_equal(few, model.to_numpy().predict(X))
    agree(few, np.asarray(jax.jit(model.predict)(X)), "float64")
    agree(model.predict(X[0])[None], few[:1], "float64")
    custom = a_model(kernels.Custom(lambda _, x, z: jax.numpy.exp(-jax.numpy.sum((x - z) ** 2))))
    assert custom.predict(X).shape == (20,)  # by JAX
    with pytest.raises(ValueError, match="Custom, which holds a Python function"):
        custom.to_numpy()


@pytest.mark.usefixtures("as_users_call")
def test_errors_are_those_of_the_model():
    regression, classifier = a_model(KERNELS["rbf"]), a_model(KERNELS["rbf"], "two")
    X = rows(3)
    broken = {
        "nan": np.where(np.eye(3, D) > 0, np.nan, X),
        "inf": np.where(np.eye(3, D) > 0, np.inf, X),
        "columns": X[:, :2],
        "shape": X[None],
        "empty": X[:0],
        "text": X.astype(str),
        "ragged": [[1.0, 2.0], [1.0]],
        "huge": np.full((1000, D), 1e200),
    }
    cubic = a_model(kernels.Polynomial(3))
    for name, bad in broken.items():
        model = cubic if name == "huge" else regression
        assert message(model.to_numpy().predict, bad) == message(model.predict, bad)
    with pytest.raises(NumericalError, match="at row index 1 is"):
        cubic.to_numpy().predict([X[0], np.full(D, 1e200)])
    for call in (
        lambda m: m.predict_proba(X),
        lambda m: m.predict_set(X),
        lambda m: m.interval(X, 1.5),
        lambda m: m.interval(X, 0.99),
        lambda m: m.interval(X, "0.9"),
    ):
        assert message(call, regression.to_numpy()) == message(call, regression)
    with pytest.raises(ValueError, match="interval: expected a regression"):
        classifier.to_numpy().interval(X)
    narrow = a_model(KERNELS["rbf"], dtype="float32")
    ours, theirs = (message(m.predict, X * 1e60) for m in (narrow.to_numpy(), narrow))
    assert ours == theirs
    assert "fit float32" in ours[1]


def message(call, argument):
    """Return the kind and the text of the error that a call raises."""
    with pytest.raises((ValueError, ArithmeticError)) as caught:
        call(argument)
    return type(caught.value), str(caught.value)


@pytest.fixture
def model_file(tmp_path):
    a_model(KERNELS["rbf"], "hamming", folds=3).save(tmp_path / "m.jsparse")
    return tmp_path / "m.jsparse"


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_file_gives_the_predictor_of_its_model(kernel, tmp_path):
    task = "hamming" if kernel == "rbf" else "two"
    model = a_model(KERNELS[kernel], task, folds=2, scaling="ranks")
    model.save(tmp_path / "m")
    loaded, X = load_predictor(tmp_path / "m"), rows(50)
    for method in ("decision_function", "predict", "predict_proba", "predict_set"):
        ours, theirs = getattr(loaded, method)(X), getattr(model.to_numpy(), method)(X)
        np.testing.assert_array_equal(ours, theirs)
    assert repr(loaded) == repr(model.to_numpy())
    again = pickle.loads(pickle.dumps(loaded))
    np.testing.assert_array_equal(again.predict(X), loaded.predict(X))


def test_files_that_are_damaged_are_refused(model_file):
    data = model_file.read_bytes()
    header = int.from_bytes(data[:8], "little")
    for damaged, words in (
        (b"", "it is empty"),
        (b"age,income\n1,2\n" * 40, "it is cut"),
        (data[:5], "it is cut"),
        (data[: 8 + header // 2], "it is cut"),
        (data[:-1], "it is cut"),
        (data + b"0", "it is cut"),
        (data[: 8 + header], "it is cut"),
        (data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], "checksum does not match"),
        (data.replace(b"prototypes", b"prototypez"), "checksum does not match"),
        (data.replace(b"hamming", b"hammimg"), "checksum does not match"),
        ((2**63).to_bytes(8, "little") + data[8:], "it is cut"),
        (data[:8] + b"x" + data[9:], "it is cut"),
        (data.replace(b'"format":"jsparse"', b'"format":"another"'), "of other origin"),
        (data.replace(b'"F64"', b'"F16"', 1), "it is cut"),
    ):
        assert damaged != data
        model_file.write_bytes(damaged)
        with pytest.raises(ModelFileError, match=words) as caught:
            load_predictor(model_file)
        assert str(model_file) in str(caught.value)
        with pytest.raises(ModelFileError, match=re.escape(str(caught.value)[:80])):
            jsparse.load(model_file)


def test_the_folder_alone_predicts_with_numpy_alone(model_file, tmp_path):
    """Copy the folder under another name, and run it where nothing else can be imported."""
    shutil.copytree(FOLDER / "predictor", tmp_path / "vendored")
    program = """
        import sys
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] not in {"numpy", "vendored", *sys.stdlib_module_names}:
                    raise ImportError(f"{name} is not here")
        sys.meta_path.insert(0, Refuse())
        import numpy as np
        import vendored
        model = vendored.load(sys.argv[1])
        np.save(sys.argv[2], model.predict_proba(np.load(sys.argv[3])))
        assert not any("jsparse" in name or "jax" in name for name in sys.modules)
    """
    X = rows(30)
    np.save(tmp_path / "X.npy", X)
    arguments = [model_file, tmp_path / "answer.npy", tmp_path / "X.npy"]
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, check=True, timeout=120,
    )  # fmt: skip
    expected = load_predictor(model_file).predict_proba(X)
    np.testing.assert_array_equal(np.load(tmp_path / "answer.npy"), expected)


def test_the_module_imports_no_jax():
    program = "import sys, jsparse.predictor; assert 'jax' not in sys.modules, 'jax is imported'"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_threads_and_processes_get_the_answers_of_one_thread(model_file):
    predictor, model, X = load_predictor(model_file), jsparse.load(model_file), rows(40)
    expected = predictor.predict(X)
    with ThreadPoolExecutor(8) as pool:
        for which in (predictor, model):
            calls = [pool.submit(which.predict, X[i % 40]) for i in range(400)]
            assert [call.result().item() for call in calls] == np.tile(expected, 10).tolist()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        parts = [slice(start, 40, 2) for start in range(2)]
        labels = pool.map(answers, [model_file] * 2, [X[part] for part in parts])
        assert list(labels) == [expected[part].tolist() for part in parts]
