"""The data sets of the papers, and real sets that come with the package or scikit-learn."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from .._repr import short_repr

# Wolberg, Street and Mangasarian 1995, Breast Cancer Wisconsin (Diagnostic), UCI (CC BY 4.0).
_BUNDLED = Path(__file__).parent / "breast_cancer.csv"
_DEMO_SETS = {
    "diabetes": "load_diabetes",
    "digits": "load_digits",
    "iris": "load_iris",
    "wine": "load_wine",
}


class BenchmarkSet(NamedTuple):
    """A data set as it was collected: nothing is scaled.

    Attributes:
        name: the set's name.
        task: "classification" or "regression".
        X: inputs in float64, shape `n d`. Categorical columns hold codes, -1 for unknown.
        y: targets, shape `n`: float64 for regression, labels for classification (int64, -1/+1 for
            two classes and 0, 1, ... for more; strings in a `demo_set`).
        columns: names of the columns of X.
        target: name of y.
        classes: for classification, a description of each class in the order of its label.
        categorical: which columns hold codes, shape `d`.
        train: row numbers of the training parts, one partition a row, shape `s k`, or None.
        test: row numbers of the test parts belonging to them, or None.
        extra: whatever else the file holds, by its own key.
    """

    name: str
    task: str
    X: Float[np.ndarray, "n d"]
    y: Shaped[np.ndarray, "n"]
    columns: tuple[str, ...]
    target: str
    classes: tuple[str, ...] | None
    categorical: Bool[np.ndarray, "d"]
    train: Int[np.ndarray, "s k"] | None
    test: Int[np.ndarray, "s l"] | None
    extra: dict[str, Any]

    __repr__ = short_repr


def benchmark_set(
    name: str, folder: str | os.PathLike[str] | None = None, *, complete: bool = False
) -> BenchmarkSet:
    """One of the papers' data sets, from `NAME.npz` in a folder.

    Integer columns are cast to float64 (and multiplied by the file's `scale` where it has one, as
    the pixels of usps). A file that names its first `n_train` rows as the training part has them
    as its one partition.

    Args:
        name: such as "adult", "magic" or "ida_banana".
        folder: where the files are; by default what the environment variable JSPARSE_DATA says.
        complete: leave out the rows with unknown values (adult), in the partitions also.

    Raises:
        FileNotFoundError: if there is no such folder or no such file in it.
        ValueError: if `complete` is asked of a set that does not mark its complete rows.
    """
    path = _folder(folder) / f"{name}.npz"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.npz"))) or "no .npz file"
        raise FileNotFoundError(
            f"expected a benchmark set {name!r} at {path}; the folder has {known}"
        )
    with np.load(path) as archive:
        parts = {key: archive[key] for key in archive.files}
    X = parts.pop("X").astype(np.float64)
    if "scale" in parts:
        X = X * float(str(parts.pop("scale")))  # 1/1000 was written as float32
    y = parts.pop("y")
    regression = np.issubdtype(y.dtype, np.floating)
    train, test = _partitions(parts, X.shape[0])
    d = X.shape[1]
    data = BenchmarkSet(
        name=name,
        task="regression" if regression else "classification",
        X=X,
        y=y.astype(np.float64 if regression else np.int64),
        columns=tuple(parts.pop("columns", np.array([f"x{j}" for j in range(d)])).tolist()),
        target=str(parts.pop("target", "y")),
        classes=None if regression else _classes(parts, y),
        categorical=parts.pop("categorical", np.zeros(d, bool)),
        train=train,
        test=test,
        extra=parts,
    )
    if "categories" in parts:
        parts["categories"] = json.loads(str(parts["categories"]))
    return _complete_rows(data) if complete else data


def demo_set(name: str = "breast_cancer") -> BenchmarkSet:
    """Return a real data set without a download: the package's own, or one of scikit-learn's.

    Args:
        name: "breast_cancer" (two classes; needs no scikit-learn, which takes longer to import than
            the fit), "diabetes" (regression, unscaled), "digits", "iris" or "wine" (several
            classes). Labels are the classes' names.

    Raises:
        ValueError: for another name.
        ImportError: if scikit-learn is needed, and not installed.
    """
    if name == "breast_cancer":
        return _bundled(name)
    if name not in _DEMO_SETS:
        known = ", ".join(sorted([*_DEMO_SETS, "breast_cancer"]))
        raise ValueError(f"demo set: expected one of {known}; got {name!r}")
    try:
        import sklearn.datasets
    except ImportError as error:
        raise ImportError(
            "the other demo sets come with scikit-learn: pip install 'jsparse[sklearn]'"
        ) from error
    options = {"scaled": False} if name == "diabetes" else {}
    bunch = getattr(sklearn.datasets, _DEMO_SETS[name])(**options)
    X = np.asarray(bunch.data, np.float64)
    y = np.asarray(bunch.target)
    classes = None
    if name != "diabetes":
        labels = np.asarray([str(label) for label in bunch.target_names])
        y, classes = labels[y], tuple(labels.tolist())
    y = y.astype(np.float64) if classes is None else y
    return _plain(name, X, y, tuple(map(str, bunch.feature_names)), classes)


def _bundled(name: str) -> BenchmarkSet:
    with _BUNDLED.open() as file:
        columns = file.readline().strip().split(",")[:-1]
        rows = [line.strip().rsplit(",", 1) for line in file]
    X = np.array([numbers.split(",") for numbers, _ in rows]).astype(np.float64)
    y = np.array([label for _, label in rows])
    return _plain(name, X, y, tuple(columns), ("malignant", "benign"))


def _plain(
    name: str, X: np.ndarray, y: np.ndarray, columns: tuple[str, ...], classes: Any
) -> BenchmarkSet:
    """Columns of numbers, all rows together."""
    return BenchmarkSet(
        name=name,
        task="regression" if classes is None else "classification",
        X=X,
        y=y,
        columns=columns,
        target="disease progression" if classes is None else "class",
        classes=classes,
        categorical=np.zeros(X.shape[1], bool),
        train=None,
        test=None,
        extra={},
    )


def _folder(folder: str | os.PathLike[str] | None) -> Path:
    where = folder if folder is not None else os.environ.get("JSPARSE_DATA")
    if where is None:
        raise FileNotFoundError(
            "benchmark sets: set the environment variable JSPARSE_DATA to the folder that holds "
            "the .npz files, or pass folder="
        )
    if not Path(where).is_dir():
        raise FileNotFoundError(
            f"benchmark sets: expected a folder of .npz files at {os.fspath(where)!r} (from "
            f"{'folder=' if folder is not None else 'the environment variable JSPARSE_DATA'}); "
            "there is none"
        )
    return Path(where)


def _partitions(
    parts: dict[str, Any], n: int
) -> tuple[Int[np.ndarray, "s k"] | None, Int[np.ndarray, "s l"] | None]:
    """Training and test rows, one partition a row, whichever way the file says it."""
    if "n_train" in parts:
        rows, cut = np.arange(n), int(parts.pop("n_train"))
        return rows[None, :cut], rows[None, cut:]
    if "train" in parts:
        train, test = parts.pop("train"), parts.pop("test")
        return np.atleast_2d(train).astype(np.int64), np.atleast_2d(test).astype(np.int64)
    return None, None


def _classes(parts: dict[str, Any], y: Int[np.ndarray, "n"]) -> tuple[str, ...]:
    if "classes" in parts:
        return tuple(str(label) for label in parts.pop("classes"))
    return tuple(str(label) for label in np.unique(y))


def _complete_rows(data: BenchmarkSet) -> BenchmarkSet:
    keep = data.extra.get("complete")
    if keep is None:
        raise ValueError(f"{data.name}: expected a set that marks its complete rows; it does not")
    position = np.cumsum(keep) - 1

    def renumber(rows: Int[np.ndarray, "s k"] | None) -> Int[np.ndarray, "s l"] | None:
        # Only sets with one partition mark complete rows, so no row of it is shorter than another.
        return None if rows is None else np.stack([position[part[keep[part]]] for part in rows])

    return data._replace(
        X=data.X[keep],
        y=data.y[keep],
        train=renumber(data.train),
        test=renumber(data.test),
        extra={key: value for key, value in data.extra.items() if key != "complete"},
    )
