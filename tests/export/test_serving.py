"""The web service of docs/howto/deploy.md, run by the test client of its framework."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from predictor.plain_models import D, a_model, every_kernel, rows

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "deploy.md"


@pytest.mark.slow
def test_the_recipe_serves_labels_and_probabilities(tmp_path, monkeypatch):
    from fastapi.testclient import TestClient

    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (code,) = (block for block in blocks if "from fastapi" in block)
    (tmp_path / "serve.py").write_text(code)
    model = a_model(every_kernel()["rbf"], "one_versus_one", "float32")
    model.to_onnx(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("serve", tmp_path / "serve.py")
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    client, X = TestClient(serve.app), rows(4, "float32")
    answers = client.post("/predict", json=X.tolist())
    assert answers.status_code == 200
    assert answers.json()["label"] == model.predict(X).tolist()
    probabilities = answers.json()["probabilities"]
    np.testing.assert_allclose(probabilities, model.predict_proba(X), atol=1e-5)
    for wrong in ([], [[1.0]], [["a"] * D], [[1e39] * D]):
        with np.errstate(over="ignore"):  # float32 does not hold 1e39
            assert client.post("/predict", json=wrong).status_code == 422
