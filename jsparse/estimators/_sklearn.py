"""Imports from scikit-learn, with an error that says how to install it if it is missing."""

from typing import Any

try:
    from sklearn.base import BaseEstimator as BaseEstimator
    from sklearn.base import ClassifierMixin as ClassifierMixin
    from sklearn.base import OutlierMixin as OutlierMixin
    from sklearn.base import RegressorMixin as RegressorMixin
    from sklearn.exceptions import DataConversionWarning as DataConversionWarning
    from sklearn.svm import SVC as SVC
    from sklearn.utils import check_random_state as check_random_state
    from sklearn.utils import check_X_y as check_X_y
    from sklearn.utils import validation
    from sklearn.utils.metaestimators import available_if as available_if
    from sklearn.utils.multiclass import (
        check_classification_targets as check_classification_targets,
    )
    from sklearn.utils.validation import check_is_fitted as check_is_fitted
except ImportError as error:
    raise ImportError(
        "the estimators need scikit-learn 1.6 or later: pip install 'jsparse[sklearn]'"
    ) from error

from .._arguments import check_held


def validate_data(
    estimator: BaseEstimator, X: Any, y: Any = "no_validation", **options: Any
) -> Any:
    """Check that this process holds all elements of `X` and `y`; then let scikit-learn check them.

    `options`, and the returned arrays, are as for `sklearn.utils.validation.validate_data`.

    Raises:
        ValueError: for arrays spread over several processes, and as scikit-learn's function.
    """
    check_held("X", X)
    check_held("y", y)
    return validation.validate_data(estimator, X, y, **options)
