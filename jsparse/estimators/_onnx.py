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
        from ..onnx import pipelines
    except ImportError as error:
        raise ImportError(
            "register_onnx needs skl2onnx: pip install 'jsparse[onnx]' skl2onnx"
        ) from error
    from .. import estimators

    for estimator in vars(estimators).values():
        if isinstance(estimator, type) and issubclass(estimator, SparseOneClassSVM):
            pipelines.register_outliers(estimator, _one_class)
        elif isinstance(estimator, type) and issubclass(estimator, Classifier):
            pipelines.register_classifier(estimator, _predictor)
        elif isinstance(estimator, type) and issubclass(estimator, Regressor):
            pipelines.register_regressor(estimator, _predictor)


def _predictor(estimator: Any) -> Predictor:
    return estimator.model_.to_numpy()


def _one_class(estimator: Any) -> tuple[Machine, float]:
    machine = plain_expansion(estimator.expansion_)
    return machine, estimator._rounding_error
