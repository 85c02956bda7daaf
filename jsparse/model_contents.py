"""What a file holds of a model, and the checks of what one holds.

This module knows no `Model`: `Contents` has the fields of one.
"""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from jaxtyping import Array

from . import serialization
from ._files import ModelFileError, PathLike, named, reason_of, shown
from ._repr import short_repr
from .conformal import Unseen, unseen_arrays, unseen_of
from .data.schema import Schema
from .expansion import KernelExpansion
from .family_arrays import family_arrays, family_of
from .machines.family import Family
from .multiclass import Code, Decoding, output_code


class Contents(NamedTuple):
    """The fields of a `model.Model`, which see."""

    expansion: KernelExpansion
    path: Family | None
    slopes: np.ndarray | Array | None
    unseen: Unseen | None
    code: Code | None
    decoding: Decoding
    labels: tuple[Any, ...] | None
    label_dtype: str
    columns: Schema | None
    about: dict[str, Any]

    __repr__ = short_repr


def write(path: PathLike, contents: Contents) -> None:
    """Write what a model consists of into one file; see `model_files.save` for the errors."""
    model = contents
    arrays = unseen_arrays(model.unseen)
    if model.path is not None:
        with jax.enable_x64(model.expansion.prototypes.dtype == np.float64):
            arrays |= {f"path.{name}": a for name, a in family_arrays(model.path).items()}
    document = {
        "classes": None if model.labels is None else _json_labels(model.labels, model.label_dtype),
        "class_dtype": model.label_dtype,
        "code": None if model.code is None else np.asarray(model.code.matrix, float).tolist(),
        "decoding": model.decoding,
        "slopes": None if model.slopes is None else np.asarray(model.slopes, float).tolist(),
        "columns": None if model.columns is None else model.columns.to_json(),
        "about": model.about,
    }
    serialization.save(path, model.expansion, document, arrays)


def read(path: PathLike, dtype: str | None) -> Contents:
    """Read what `write` wrote; see `model_files.load` for the errors."""
    expansion, document, arrays = serialization.load(path, dtype=dtype)
    try:
        return _contents(expansion, document, arrays)
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        raise ModelFileError(
            f"{named(path)}: expected a complete jsparse model; its parts do not fit together: "
            f"{reason_of(error)}"
        ) from error


_DOCUMENT = {"classes", "class_dtype", "code", "decoding", "slopes", "columns", "about"}


def _contents(
    expansion: KernelExpansion, document: Mapping[str, Any], arrays: Mapping[str, Array]
) -> Contents:
    serialization.check_keys("metadata", document, _DOCUMENT)
    if document["decoding"] not in get_args(Decoding):
        raise ValueError(f"decoding: got {shown(document['decoding'])}")
    if not isinstance(document["about"], dict):
        raise ValueError(f"about: expected names and values, got {shown(document['about'])}")
    labels, label_dtype = None, document["class_dtype"]
    if document["classes"] is not None:
        labels = _labels(document["classes"], label_dtype)
    columns = None
    if document["columns"] is not None:
        columns = _columns(document["columns"], expansion.prototypes.shape[1], document["classes"])
    code = _code(document["code"], labels, expansion.intercept.shape)
    slopes = document["slopes"]
    if slopes is not None:
        slopes = _slopes(slopes, labels)
    path, unseen = _of_arrays(expansion, arrays, classes=labels is not None)
    return Contents(
        expansion, path, slopes, unseen, code, document["decoding"], labels, label_dtype, columns,
        document["about"],
    )  # fmt: skip


def _columns(columns: Any, d: int, classes: list[Any] | None) -> Schema:
    if not isinstance(columns, dict):
        raise ValueError(f"columns: expected names and values, got {shown(columns)}")
    schema = Schema.from_json(columns)
    if len(schema.features) != d:
        raise ValueError(f"columns: expected {d} columns as encoded, got {len(schema.features)}")
    if (None if schema.classes is None else list(schema.classes)) != classes:
        raise ValueError("classes: expected those of the columns")
    return schema


def _code(matrix: Any, labels: tuple[Any, ...] | None, outputs: tuple[int, ...]) -> Code | None:
    if matrix is None:
        if labels is not None and (outputs or len(labels) > 2):
            raise ValueError("code: expected one, as there are several outputs or classes")
        return None
    if labels is None:
        raise ValueError("code: expected classes with it")
    matrix = np.asarray(matrix, float)
    code = output_code(matrix, len(labels))
    if outputs != matrix.shape[1:]:
        raise ValueError(f"code: expected outputs {matrix.shape[1:]}, the model has {outputs}")
    return code


def _slopes(numbers: Any, labels: tuple[Any, ...] | None) -> np.ndarray:
    slopes = np.asarray(numbers, float)
    positive = np.all((slopes > 0) & np.isfinite(slopes))
    if labels is None or slopes.shape != (len(labels),) or not positive:
        raise ValueError(f"slopes: expected a positive number for each class, got {slopes}")
    return slopes


def _of_arrays(
    expansion: KernelExpansion, arrays: Mapping[str, Array], *, classes: bool
) -> tuple[Family | None, Unseen | None]:
    """Return the machines of several sizes, and the errors on unseen rows."""
    by_prefix: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        prefix, _, rest = name.partition(".")
        by_prefix.setdefault(prefix, {})[rest] = array
    held_out = "held_out" in by_prefix
    errors = "held_out" if held_out else "unseen"
    if not set(by_prefix) <= {"path", errors}:
        raise ValueError(f"arrays: {shown(sorted(arrays))} not expected")
    path = unseen = None
    if "path" in by_prefix:
        path = family_of(expansion, by_prefix["path"])
    if errors in by_prefix:
        unseen = unseen_of(expansion, by_prefix[errors], held_out=held_out, classes=classes)
    return path, unseen


_LONGEST = 2**16  # bytes of a label


def _json_labels(labels: tuple[Any, ...], dtype: str) -> list[Any]:
    classes = np.array(labels, dtype=dtype)
    if classes.dtype.kind not in "biufU" or classes.dtype.itemsize > _LONGEST:
        raise ValueError(
            f"classes: expected numbers or texts of at most {_LONGEST // 4} characters, as only "
            f"these can be saved, got {classes.dtype}"
        )
    return classes.tolist()


def _labels(labels: Any, dtype: Any) -> tuple[Any, ...]:
    """Return distinct sorted labels that NumPy holds as `dtype`, or raise ValueError."""
    if not isinstance(labels, list) or len(labels) < 2:
        raise ValueError(f"classes: expected at least two labels, got {shown(labels)}")
    if not isinstance(dtype, str) or len({type(label) for label in labels}) != 1:
        raise ValueError("classes: expected labels of one type, with its name")
    kinds = {str: "U", bool: "b", int: "iu", float: "f"}.get(type(labels[0]))
    if kinds is None:
        raise ValueError("classes: expected numbers, booleans or texts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of old names, which are refused
        wanted = np.dtype(dtype)
    # By the type that is named: NumPy itself would make floats of the largest whole numbers.
    if wanted.kind not in kinds or wanted.itemsize > _LONGEST:
        raise ValueError(f"classes: expected labels of type {shown(dtype)}")
    with np.errstate(over="ignore"):
        array = np.array(labels, dtype=wanted)
    if array.tolist() != labels:
        raise ValueError(f"classes: expected labels of type {shown(dtype)}")
    if len(np.unique(array)) < len(array) or not (np.sort(array) == array).all():
        raise ValueError("classes: expected sorted, distinct labels")
    return tuple(labels)
