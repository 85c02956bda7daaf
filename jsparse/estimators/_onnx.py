"""Register the estimators with skl2onnx."""

from typing import Any

from ..plain import plain_expansion
from ..predictor import Predictor
from ..predictor.machine import Machine
from ._base import Classifier, Regressor
from ._one_class import SparseOneClassSVM


def register_onnx() -> None:
    """Let skl2onnx convert the estimators, also within pipelines and searches of scikit-learn.

    After a call, `skl2onnx.to_onnx(pipeline, X[:1].astype(np.float32), target_opset=18)` gives an
    ONNX model. The estimators compute in the precision of their training; the outputs have the
    precision of the pipeline's inputs. A classifier must have probabilities. For a model of a
    table call `estimator.model_.to_onnx(path)` instead.

    Raises:
        ImportError: without skl2onnx; `pip install "jsparse[onnx]" skl2onnx`.
    """
    try:
        from ..export.onnx import pipelines
    except ImportError as error:
        raise ImportError(
            "register_onnx needs skl2onnx: pip install 'jsparse[onnx]' skl2onnx"
        ) from error
    for estimator in _subclasses(Classifier):
        pipelines.register_classifier(estimator, _predictor)
    for estimator in _subclasses(Regressor):
        pipelines.register_regressor(estimator, _predictor)
    pipelines.register_outliers(SparseOneClassSVM, _one_class)


def _subclasses(base: type) -> list[type]:
    """Return the classes that inherit from a class, directly or not."""
    return [c for direct in base.__subclasses__() for c in (direct, *_subclasses(direct))]


def _predictor(estimator: Any) -> Predictor:
    return estimator.model_.to_numpy()


def _one_class(estimator: Any) -> tuple[Machine, float]:
    machine = plain_expansion(estimator.expansion_)
    return machine, estimator._rounding_error
