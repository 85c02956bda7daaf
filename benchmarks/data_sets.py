"""The data sets of the papers, from a folder of `.npz` files."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped


class BenchmarkSet(NamedTuple):
    """A data set as it was collected, without scaling.

    Attributes:
        name: the set's name.
        task: "classification" or "regression".
        X: inputs in float64, shape `n d`. Categorical columns hold codes, -1 for unknown.
        y: targets, shape `n`: float64 for regression, labels for classification (int64, -1/+1 for
            two classes and 0, 1, ... for more).
        columns: names of the columns of X.
        target: name of y.
        classes: for classification, a description of each class in the order of its label.
        categorical: which columns hold codes, shape `d`.
        train: row numbers of the training parts, one partition a row, shape `s k`, or None.
        test: row numbers of the test parts of the same partitions, or None.
        extra: further contents of the file, by key.
    """

    name: str
    task: str
    X: Float[np.ndarray, "n d"]
    y: Shaped[np.ndarray, " n"]
    columns: tuple[str, ...]
    target: str
    classes: tuple[str, ...] | None
    categorical: Bool[np.ndarray, " d"]
    train: Int[np.ndarray, "s k"] | None
    test: Int[np.ndarray, "s l"] | None
    extra: dict[str, Any]


def benchmark_set(
    name: str, folder: str | os.PathLike[str] | None = None, *, complete: bool = False
) -> BenchmarkSet:
    """Read one of the papers' data sets, from `NAME.npz` in a folder.

    Integer columns are cast to float64. If a file has a `scale`, as the file of the pixels of usps,
    the columns are multiplied by the scale. A file with `n_train` has one partition: the first
    `n_train` rows train, the others test.

    Args:
        name: such as "adult", "magic" or "ida_banana".
        folder: folder of the files; by default the environment variable JSPARSE_DATA.
        complete: drop the rows with unknown values (adult), also from the partitions.

    Raises:
        FileNotFoundError: if there is no such folder or no such file in it.
        ValueError: with `complete`, if the set does not mark its complete rows.
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
        X = X * float(str(parts.pop("scale")))  # by its digits: 1/1000 is stored in float32
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


def _folder(folder: str | os.PathLike[str] | None) -> Path:
    """Return the folder, or $JSPARSE_DATA if None; raise FileNotFoundError if it is missing."""
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
    """Return numbers of training and of test rows, one partition in each row; None without any."""
    if "n_train" in parts:
        rows, cut = np.arange(n), int(parts.pop("n_train"))
        return rows[None, :cut], rows[None, cut:]
    if "train" in parts:
        train, test = parts.pop("train"), parts.pop("test")
        return np.atleast_2d(train).astype(np.int64), np.atleast_2d(test).astype(np.int64)
    return None, None


def _classes(parts: dict[str, Any], y: Int[np.ndarray, " n"]) -> tuple[str, ...]:
    if "classes" in parts:
        return tuple(str(label) for label in parts.pop("classes"))
    return tuple(str(label) for label in np.unique(y))


def _complete_rows(data: BenchmarkSet) -> BenchmarkSet:
    """Drop the rows with unknown values, and renumber the rows of the partitions."""
    keep = data.extra.get("complete")
    if keep is None:
        raise ValueError(f"{data.name}: expected a set that marks its complete rows; it does not")
    position = np.cumsum(keep) - 1

    def renumber(rows: Int[np.ndarray, "s k"] | None) -> Int[np.ndarray, "s l"] | None:
        # Only sets with one partition mark complete rows, so all parts have one length.
        return None if rows is None else np.stack([position[part[keep[part]]] for part in rows])

    return data._replace(
        X=data.X[keep],
        y=data.y[keep],
        train=renumber(data.train),
        test=renumber(data.test),
        extra={key: value for key, value in data.extra.items() if key != "complete"},
    )
