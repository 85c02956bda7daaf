"""A model's functions as StableHLO files, run by JAX in a process without this package."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import export
from predictor.plain_models import D, a_model, every_kernel, numbered, rows

from jsparse._files import OutputError
from jsparse.export.stablehlo import PLATFORMS

KERNELS = every_kernel()
CASES = [
    *(("two", "float64", function) for function in ("decision_function", "predict")),
    ("one_versus_one", "float32", "predict_proba"),
    ("hamming", "float64", "predict_proba"),
]
# The recipe of docs/howto/deploy.md, in a process in which `import jsparse` fails.
READER = """
import sys
sys.modules["jsparse"] = None
from pathlib import Path
import jax
import numpy as np
jax.config.update("jax_enable_x64", True)
folder = Path(sys.argv[1])
for file in folder.glob("*.stablehlo"):
    program = jax.export.deserialize(bytearray(file.read_bytes()))
    for n in (1, 300):
        values = program.call(np.load(folder / f"{file.stem}.rows.npy")[:n])
        np.save(folder / f"{file.stem}.{n}.npy", values)
try:
    import jsparse
except ImportError:
    print("no jsparse")
"""


def test_a_process_without_this_package_gives_the_model_s_answers(tmp_path):
    answers = {}
    for task, dtype, function in CASES:
        model, name = numbered(a_model(KERNELS["rbf"], task, dtype)), f"{task} {dtype} {function}"
        model.to_stablehlo(tmp_path / f"{name}.stablehlo", function)
        np.save(tmp_path / f"{name}.rows.npy", rows(300, dtype))
        answers[name] = getattr(model, function)(rows(300, dtype))
    command = [sys.executable, "-c", READER, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert run.stdout == "no jsparse\n"
    for name, answer in answers.items():
        tolerance = 1e-12 if "float64" in name else 1e-4  # of values of size 10
        for n in (1, 300):
            values = np.load(tmp_path / f"{name}.{n}.npy")
            np.testing.assert_allclose(values, answer[:n], rtol=tolerance, atol=tolerance)


def test_the_file_is_for_all_platforms_and_names_no_source_file(tmp_path):
    model = a_model(KERNELS["composed"])
    for name in ("a", "b"):
        model.to_stablehlo(tmp_path / name, "predict")
    data = (tmp_path / "a").read_bytes()
    assert data == (tmp_path / "b").read_bytes()
    assert b".py" not in data
    exported = export.deserialize(bytearray(data))
    assert exported.platforms == PLATFORMS
    assert str(exported.in_avals[0].shape) == f"(n, {D})"
    with jax.enable_x64(True):
        assert np.isnan(exported.call(np.full((2, D), np.nan))).all()


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    model = a_model(KERNELS["rbf"], "two")
    path = tmp_path / "file"
    with pytest.raises(ValueError, match="function: expected one of decision_function, "):
        model.to_stablehlo(path, "interval")
    with pytest.raises(ValueError, match="expected labels that JAX's arrays hold"):
        model.to_stablehlo(path, "predict")
    with pytest.raises(ValueError, match="this model has no classes"):
        a_model(KERNELS["linear"]).to_stablehlo(path, "predict_proba")
    with pytest.raises(OutputError, match="cannot be written"):
        model.to_stablehlo(tmp_path / "missing" / "file")
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ImportError, match=r"pip install 'jsparse\[stablehlo\]'"):
        model.to_stablehlo(path)
    assert not path.exists()
