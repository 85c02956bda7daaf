"""ONNX files of models trained by every method answer as the models."""

import jax
import numpy as np
import pytest
from contracts.registry import NAMES, method_named
from onnx_program import program

import jsparse
from jsparse import kernels

D, TOLERANCE = 4, {"float64": 1e-12, "float32": 1e-5}
SEARCH = jsparse.Profile(max_evaluations=4)
SETTINGS = {name: {"method": method_named(name), "search": SEARCH} for name in NAMES} | {
    "several kernels": {
        "method": method_named("ksp"),
        "kernel": [kernels.RBF(1.0), kernels.Laplacian(2.0)],
        "search": SEARCH,
    },
    "recursive": {"method": jsparse.FixedSize(12), "search": jsparse.Recursive()},
    "ranks": {"method": jsparse.FixedSize(12), "search": SEARCH, "columns": "ranks"},
}


def data(n, dtype):
    X = np.random.default_rng(n).normal(size=(n, D)) * [1, 5, 0.1, 1] + [0, 100, 0, -3]
    value = np.sin(X[:, 0]) + 10 * X[:, 2]
    return X.astype(dtype), value


SHORT = ("fixed-size", "several kernels", "recursive")  # also in float32
CASES = [
    (name, task, dtype)
    for name, each in SETTINGS.items()
    for task in each["method"].tasks
    for dtype in (("float64", "float32") if name in SHORT else ("float64",))
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task", "dtype"), CASES)
def test_a_trained_model(name, task, dtype, tmp_path):
    X, value = data(80, dtype)
    y = value.astype(dtype) if task == "regression" else np.digitize(value, [-0.7, 0.7])
    with jax.enable_x64(dtype == "float64"):
        # With a large C the coefficients are so large that rounding in float32 decides labels.
        C = {"C": np.array([10.0])} if dtype == "float32" and SETTINGS[name]["method"].has_C else {}
        model = jsparse.train(X, y, task=task, key=0, **SETTINGS[name], **C).model
    new, _ = data(1000, dtype)
    answers = program(model, tmp_path)(X=new)
    tolerance = TOLERANCE[dtype] * sum_of_terms(model, new)
    if task == "regression":
        assert np.all(np.abs(answers["variable"][:, 0] - model.predict(new)) <= tolerance)
        return
    scores = model.decision_function(new)
    assert np.all(np.abs(answers["scores"] - scores).max(axis=1) <= 4 * tolerance)
    # Probabilities are functions of the scores times slopes.
    slopes = 4 * np.max(model.inverse_temperatures)
    errors = np.abs(answers["probabilities"] - model.predict_proba(new)).max(axis=1)
    assert np.all(errors <= slopes * tolerance + TOLERANCE[dtype])
    first, second = np.sort(scores, axis=1)[:, -2:].T
    clear = second - first > 8 * tolerance
    assert np.mean(clear) > 0.98
    np.testing.assert_array_equal(answers["label"][clear], model.predict(new)[clear])


def sum_of_terms(model, X):
    """Return the sum of a value's terms without their signs, the unit of its rounding error."""
    machine = model.expansion
    with jax.enable_x64(model.dtype == np.float64):
        rows = machine.scaling.apply(jax.device_put(X))
        gram = np.abs(machine.kernel.cross_gram(rows, machine.prototypes))
        terms = gram @ np.abs(machine.coefficients) + np.abs(machine.intercept)
    return np.maximum(1, terms.reshape(len(X), -1).max(axis=1))
