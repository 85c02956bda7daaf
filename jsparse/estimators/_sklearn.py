"""scikit-learn, or the words that say how to get it."""

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, OutlierMixin, RegressorMixin
    from sklearn.exceptions import DataConversionWarning
    from sklearn.svm import SVC
    from sklearn.utils import check_random_state, check_X_y
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "the estimators need scikit-learn 1.6 or later: pip install 'jsparse[sklearn]'"
    ) from error

__all__ = [
    "SVC",
    "BaseEstimator",
    "ClassifierMixin",
    "DataConversionWarning",
    "OutlierMixin",
    "RegressorMixin",
    "available_if",
    "check_X_y",
    "check_classification_targets",
    "check_is_fitted",
    "check_random_state",
    "validate_data",
]
