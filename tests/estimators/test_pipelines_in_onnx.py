"""Pipelines of scikit-learn with our estimators, converted by skl2onnx and run by onnxruntime."""

import copy
import dataclasses
import sys

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import skl2onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from jsparse import estimators
from jsparse.estimators import (
    FixedSizeLSSVMClassifier,
    FixedSizeLSSVMRegressor,
    SparseOneClassSVM,
    register_onnx,
)

IRIS, CLASSES = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[CLASSES]
PLAIN = {"zipmap": False}


@pytest.fixture(autouse=True, scope="module")
def _registered():
    register_onnx()


def classifier(**parameters):
    options = {"selection": "uniform", "lengthscale": 1.0, "C": 10.0, "random_state": 0}
    return FixedSizeLSSVMClassifier(8, **options, **parameters)


def run(model, X, **settings):
    """Convert for rows like the first, and return the outputs for all rows."""
    proto = skl2onnx.to_onnx(model, X[:1], target_opset=18, **settings)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    inputs = {session.get_inputs()[0].name: X}
    if isinstance(X, pd.DataFrame):
        inputs = {name: X[[name]].to_numpy() for name in X}
    return dict(
        zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True)
    )


@pytest.fixture(scope="module")
def fitted():
    """Return a fitted pipeline for float32 rows and labels that are texts."""
    return make_pipeline(StandardScaler(), classifier()).fit(IRIS.astype(np.float32), NAMES)


def check(model, X, tolerance=1e-5):
    answers = run(model, X, options={id(model): PLAIN})
    assert list(answers) == ["label", "probabilities"]
    np.testing.assert_allclose(answers["probabilities"], model.predict_proba(X), atol=tolerance)
    np.testing.assert_array_equal(answers["label"], model.predict(X))
    return answers


def test_a_pipeline_of_a_scaler_and_a_classifier(fitted):
    X = IRIS.astype(np.float32)
    answers = check(fitted, X)
    assert answers["probabilities"].dtype == np.float32
    maps = run(fitted, X[:2])["output_probability"]  # skl2onnx's default, a dict for each row
    assert list(maps[0]) == list(fitted.classes_)


@pytest.mark.slow
def test_a_pipeline_in_float64():
    model = make_pipeline(StandardScaler(), classifier()).fit(IRIS, CLASSES)
    assert check(model, IRIS, 1e-12)["probabilities"].dtype == np.float64


@pytest.mark.slow
def test_two_classes_and_a_search_over_parameters():
    X, y = IRIS.astype(np.float32), CLASSES > 0
    search = GridSearchCV(classifier(), {"C": [1.0, 10.0]}, cv=2).fit(X, y.astype(int))
    check(search, X)


@pytest.mark.slow
@pytest.mark.parametrize("targets", [1, 2])
def test_a_regressor_within_a_pipeline(targets):
    X, y = load_diabetes(return_X_y=True)
    Y = y if targets == 1 else np.stack([y, -y], axis=1)
    model = make_pipeline(
        StandardScaler(), FixedSizeLSSVMRegressor(8, lengthscale=3.0, C=1.0, random_state=0)
    ).fit(X, Y)
    answers = run(model, X)
    expected = model.predict(X).reshape(len(X), -1)
    assert list(answers) == ["variable"]
    np.testing.assert_allclose(answers["variable"], expected, rtol=1e-12)


@pytest.mark.slow
def test_a_table_by_a_transformer_of_columns():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "town": rng.choice(["Bern", "Oslo"], 150).astype(object),
            "length": IRIS[:, 0].astype(np.float32),
            "width": IRIS[:, 1].astype(np.float32),
        }
    )
    columns = ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["length", "width"]),
            ("towns", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["town"]),
        ]
    )
    for output in ("default", "pandas"):  # a table within the pipeline has the names of columns
        model = make_pipeline(columns.set_output(transform=output), classifier()).fit(frame, NAMES)
        check(model, frame)
    model, inputs = classifier().fit(frame, NAMES), [("X", StringTensorType([None, 3]))]
    with pytest.raises(ValueError, match=r"one that encodes the columns \['town'\]"):
        skl2onnx.convert_sklearn(model, initial_types=inputs, target_opset=18)


@pytest.mark.slow
def test_outliers():
    X = IRIS
    model = SparseOneClassSVM(6, nu=0.2, random_state=0).fit(X)
    answers = run(model, X)
    np.testing.assert_allclose(answers["scores"][:, 0], model.decision_function(X), atol=1e-12)
    np.testing.assert_array_equal(answers["label"][:, 0], model.predict(X))
    assert set(answers["label"].ravel()) == {-1, 1}


def test_every_estimator_has_a_converter():
    known = skl2onnx.supported_converters()
    names = [name for name in vars(estimators) if isinstance(getattr(estimators, name), type)]
    assert len(names) > 20
    assert {f"Jsparse{name}" for name in names} <= set(known)


def test_what_cannot_be_converted_is_refused(fitted, monkeypatch):
    X = IRIS[:1].astype(np.float32)
    bare = copy.copy(fitted[-1])
    bare.model_ = dataclasses.replace(bare.model_, inverse_temperatures=None)
    with pytest.raises(ValueError, match="expected a classifier with probabilities"):
        skl2onnx.to_onnx(bare, X, target_opset=18)
    with pytest.raises(ValueError, match="target_opset: expected at least 18, got 15"):
        skl2onnx.to_onnx(fitted, X, target_opset=15)
    inputs = [(name, FloatTensorType([None, 2])) for name in ("a", "b")]
    with pytest.raises(ValueError, match=r"expected one input with all columns, got \['a', 'b'\]"):
        skl2onnx.convert_sklearn(fitted[-1], initial_types=inputs, target_opset=18)
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    monkeypatch.delitem(sys.modules, "jsparse.export.onnx.pipelines")
    monkeypatch.delattr("jsparse.export.onnx.pipelines")
    with pytest.raises(ImportError, match=r"pip install 'jsparse\[onnx\]' skl2onnx"):
        register_onnx()
