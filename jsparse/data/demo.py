"""Real data sets that come with the package or with scikit-learn."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from .._repr import short_repr

# Wolberg, Street and Mangasarian 1995, Breast Cancer Wisconsin (Diagnostic), UCI (CC BY 4.0).
_BUNDLED = Path(__file__).parent / "breast_cancer.csv"
DEMO_SETS = ("breast_cancer", "diabetes", "digits", "iris", "wine")


class DemoSet(NamedTuple):
    """A data set as it was collected: nothing is scaled."""

    name: str
    task: str  # "classification" or "regression"
    X: Float[np.ndarray, "n d"]  # numeric inputs
    y: Shaped[np.ndarray, " n"]  # float64 targets, or the classes' names
    columns: tuple[str, ...]  # names of the columns of X
    target: str  # name of y
    classes: tuple[str, ...] | None  # names of the classes; None for regression

    __repr__ = short_repr


def demo_set(name: str = "breast_cancer") -> DemoSet:
    """Return a real data set of the package or of scikit-learn, without a download.

    Args:
        name: "breast_cancer" (two classes; it does without scikit-learn, whose import takes longer
            than the fit), "diabetes" (regression, unscaled), "digits", "iris" or "wine" (several
            classes). Labels are the classes' names.

    Raises:
        ValueError: for an unknown name.
        ImportError: if scikit-learn is needed but not installed.
    """
    if name == "breast_cancer":
        return _bundled(name)
    if name not in DEMO_SETS:
        raise ValueError(f"demo set: expected one of {', '.join(DEMO_SETS)}; got {name!r}")
    try:
        import sklearn.datasets
    except ImportError as error:
        raise ImportError(
            f"the demo set {name!r} comes with scikit-learn: pip install 'jsparse[sklearn]'"
        ) from error
    bunch: Any
    if name == "diabetes":
        bunch = sklearn.datasets.load_diabetes(scaled=False)
        y, classes = np.asarray(bunch.target, np.float64), None
    else:
        bunch = getattr(sklearn.datasets, f"load_{name}")()
        labels = np.asarray([str(label) for label in bunch.target_names])
        y, classes = labels[bunch.target], tuple(labels.tolist())
    X = np.asarray(bunch.data, np.float64)
    return _as_demo_set(name, X, y, tuple(map(str, bunch.feature_names)), classes)


def _bundled(name: str) -> DemoSet:
    with _BUNDLED.open() as file:
        columns = file.readline().strip().split(",")[:-1]
        rows = [line.strip().rsplit(",", 1) for line in file]
    X = np.array([numbers.split(",") for numbers, _ in rows]).astype(np.float64)
    y = np.array([label for _, label in rows])
    return _as_demo_set(name, X, y, tuple(columns), ("malignant", "benign"))


def _as_demo_set(
    name: str, X: np.ndarray, y: np.ndarray, columns: tuple[str, ...], classes: Any
) -> DemoSet:
    task = "regression" if classes is None else "classification"
    target = "disease progression" if classes is None else "class"
    return DemoSet(name, task, X, y, columns, target, classes)
