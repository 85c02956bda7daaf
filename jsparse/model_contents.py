"""Write the fields of a model to a file, and read and check them.

This module does not import `Model`: `Contents` holds its fields.
"""

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from jaxtyping import Array

from . import serialization
from ._files import PathLike, check_arrays, check_keys, shown
from ._repr import short_repr
from .conformal import ConformalScores
from .data.schema import Schema
from .expansion import KernelExpansion
from .kernels import Mixture
from .machines.family import Family
from .multiclass import Code, Decoding, output_code


class Contents(NamedTuple):
    """The fields of a model, see `model.Model`."""

    expansion: KernelExpansion
    path: Family | None
    inverse_temperatures: np.ndarray | Array | None
    conformal: ConformalScores | None
    novelties: ConformalScores | None
    code: Code | None
    decoding: Decoding
    labels: tuple[Any, ...] | None
    label_dtype: str
    columns: Schema | None
    about: dict[str, Any]

    __repr__ = short_repr


def write(path: PathLike, contents: Contents) -> None:
    """Write the fields of a model to one file; raises as `model_files.save`."""
    model, arrays = contents, _conformal_arrays(contents.conformal)
    if model.novelties is not None:
        distances = {name: np.asarray(getattr(model.novelties, name)) for name in _ERRORS}
        arrays |= {f"novelty.{name}": array for name, array in distances.items()}
    if model.path is not None:
        with jax.enable_x64(model.expansion.prototypes.dtype == np.float64):
            arrays |= {f"path.{name}": a for name, a in family_arrays(model.path).items()}
    document = {
        "classes": None if model.labels is None else _json_labels(model.labels, model.label_dtype),
        "class_dtype": model.label_dtype,
        "code": None if model.code is None else np.asarray(model.code.matrix, float).tolist(),
        "decoding": model.decoding,
        "inverse_temperatures": None
        if model.inverse_temperatures is None
        else np.asarray(model.inverse_temperatures, float).tolist(),
        "columns": None if model.columns is None else model.columns.to_json(),
        "about": model.about,
    }
    serialization.save(path, model.expansion, document, arrays)


def read(path: PathLike, dtype: str | None) -> Contents:
    """Read the fields of a model from a file that `write` wrote; raises as `model_files.load`.

    Args:
        path: the file.
        dtype: "float32" or "float64" to convert all floats; None to keep the dtype of the file.
    """
    expansion, document, arrays = serialization.load(path, dtype=dtype)
    with serialization.complete(path):
        return _contents(expansion, document, arrays)


_DOCUMENT = {
    "classes",
    "class_dtype",
    "code",
    "decoding",
    "inverse_temperatures",
    "columns",
    "about",
}


def _contents(
    expansion: KernelExpansion, document: Mapping[str, Any], arrays: Mapping[str, Array]
) -> Contents:
    """Return the fields that a file's document and arrays hold; raise if they are invalid."""
    check_keys("metadata", document, _DOCUMENT)
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
    inverse_temperatures = document["inverse_temperatures"]
    if inverse_temperatures is not None:
        inverse_temperatures = _inverse_temperatures(inverse_temperatures, labels)
    path, conformal, novelties = _of_arrays(expansion, arrays, classes=labels is not None)
    return Contents(
        expansion, path, inverse_temperatures, conformal, novelties, code, document["decoding"],
        labels, label_dtype, columns, document["about"],
    )  # fmt: skip


def _columns(columns: Any, d: int, classes: list[Any] | None) -> Schema:
    """Return the schema that a document holds; raise unless it fits `d` columns and the classes."""
    if not isinstance(columns, dict):
        raise ValueError(f"columns: expected names and values, got {shown(columns)}")
    schema = Schema.from_json(columns)
    if len(schema.features) != d:
        raise ValueError(f"columns: expected {d} columns as encoded, got {len(schema.features)}")
    if (None if schema.classes is None else list(schema.classes)) != classes:
        raise ValueError("classes: expected the classes of the columns")
    return schema


def _code(matrix: Any, labels: tuple[Any, ...] | None, outputs: tuple[int, ...]) -> Code | None:
    """Return the output code that a document holds; raise unless it fits labels and outputs."""
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


def _inverse_temperatures(numbers: Any, labels: tuple[Any, ...] | None) -> np.ndarray:
    """Return the inverse temperatures that a document holds; raise unless one for each label."""
    inverse_temperatures = np.asarray(numbers, float)
    positive = np.all((inverse_temperatures > 0) & np.isfinite(inverse_temperatures))
    if labels is None or inverse_temperatures.shape != (len(labels),) or not positive:
        raise ValueError(
            "inverse_temperatures: expected a positive number for each class, got "
            f"{inverse_temperatures}"
        )
    return inverse_temperatures


_FAMILY = {
    "points": "float M d",
    "coefficients": "float g k q c",
    "intercepts": "float g k c",
    "sizes": "int32 k",
    "statuses": "int32 k",
}
_SUPPORT = {"support": "int32 g q"}


def family_arrays(family: Family) -> dict[str, np.ndarray]:
    """Return the arrays of a family by name, without points that no machine uses; on the host."""
    compact = family.compact()
    schema = _FAMILY if compact.support is None else _FAMILY | _SUPPORT
    return {
        name: np.asarray(getattr(compact, name), np.int32 if axes.startswith("int32") else None)
        for name, axes in schema.items()
    }


def _family(expansion: KernelExpansion, arrays: Mapping[str, Array]) -> Family:
    """Return the family that a file's arrays hold; its kernel and outputs are the expansion's.

    Raises:
        ValueError: if names, dtypes, shapes or values do not describe a family.
    """
    kernel, outputs = expansion.kernel, expansion.intercept.shape
    several = isinstance(kernel, Mixture)
    supported = "support" in arrays and not several
    lengths = check_arrays(
        "path", arrays, _FAMILY | (_SUPPORT if supported else {}),
        {"float": expansion.prototypes.dtype, "d": expansion.prototypes.shape[1]},
    )  # fmt: skip
    M, g, q, c = (lengths[letter] for letter in "Mgqc")
    if g * c != math.prod(outputs):
        raise ValueError(f"path: expected {math.prod(outputs)} outputs, got {g} groups of {c}")
    if supported:
        support = np.asarray(arrays["support"])
        if support.min() < -1 or support.max() >= M:
            raise ValueError(f"path.support: expected -1 or numbers of {M} points")
        ordered = np.sort(support, axis=1)
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
            raise ValueError("path.support: expected each point once")
    elif (g, q) != (1, M * (len(kernel.kernels) if several else 1)):
        raise ValueError(f"path.coefficients: expected one for each of {M} points, got {q}")
    sizes = np.asarray(arrays["sizes"])
    if sizes[0] < 1 or (sizes[1:] <= sizes[:-1]).any():  # differences may overflow
        raise ValueError("path.sizes: expected increasing numbers of at least 1")
    family = Family(
        kernel=Mixture(kernel.kernels) if several else kernel,
        support=arrays.get("support"),
        info={},
        outputs=outputs,
        **{name: arrays[name] for name in _FAMILY},
    )
    return family.compact()  # coefficients may become 0 in float32


_ERRORS = {"errors": "float q *targets", "counts": "int32 q"}
_MACHINES = {
    "fold": "int32 q",
    "prototypes": "float p d",
    "coefficients": "float p v",
    "intercept": "float v",
}


def _conformal_arrays(conformal: ConformalScores | None) -> dict[str, np.ndarray]:
    """Return the arrays of errors on unseen rows by name.

    The prefix of the names is "held_out" if no machine was fitted to the rows, else "conformal".
    """
    if conformal is None:
        return {}
    counts = (
        np.ones(len(conformal.errors), np.int32) if conformal.counts is None else conformal.counts
    )
    arrays = {"errors": conformal.errors, "counts": counts}
    if conformal.machines is not None:
        parts = ("prototypes", "coefficients", "intercept")
        arrays |= {name: getattr(conformal.machines, name) for name in parts} | {
            "fold": conformal.fold
        }
    prefix = "held_out" if conformal.held_out else "conformal"
    return {f"{prefix}.{name}": np.asarray(array) for name, array in arrays.items()}


def _unseen(
    expansion: KernelExpansion, arrays: Mapping[str, Array], *, held_out: bool, classes: bool
) -> ConformalScores:
    """Return the errors on unseen rows that a file's arrays hold.

    Args:
        expansion: the model, which gives kernel, dtype and shapes.
        arrays: the arrays by name, without prefix.
        held_out: whether the model was fitted without the rows.
        classes: whether the model is a classifier.

    Raises:
        ValueError: if names, dtypes, shapes or values are invalid.
    """
    with_machines = not held_out and "fold" in arrays
    intercept = expansion.intercept
    lengths = check_arrays(
        "conformal", arrays, _ERRORS | (_MACHINES if with_machines else {}),
        {
            "float": expansion.prototypes.dtype,
            "d": expansion.prototypes.shape[1],
            "targets": () if classes else intercept.shape,
        },
    )  # fmt: skip
    errors, counts = np.asarray(arrays["errors"]), np.asarray(arrays["counts"])
    if not classes and errors.min() < 0:
        raise ValueError("conformal.errors: expected distances of at least 0")
    if counts.min() < 1:
        raise ValueError("conformal.counts: expected numbers of rows of at least 1")
    if not with_machines:
        return ConformalScores(errors, counts=counts, held_out=held_out)
    fold, (n_machines, rest) = np.asarray(arrays["fold"]), divmod(lengths["v"], intercept.size)
    if rest or fold.min() < 0 or fold.max() >= n_machines:
        raise ValueError(
            f"conformal.fold: expected numbers of machines with {intercept.size} outputs each, got "
            f"{lengths['v']} outputs and {shown(fold.tolist())}"
        )
    machines = KernelExpansion(
        expansion.kernel, arrays["prototypes"], arrays["coefficients"], arrays["intercept"]
    )
    return ConformalScores(errors, fold, machines, counts)


def _of_arrays(
    expansion: KernelExpansion, arrays: Mapping[str, Array], *, classes: bool
) -> tuple[Family | None, ConformalScores | None, ConformalScores | None]:
    """Return the machines of several sizes, the errors on unseen rows, and the novelties.

    Missing parts are None.
    """
    groups: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        prefix, _, rest = name.partition(".")
        groups.setdefault(prefix, {})[rest] = array
    held_out = "held_out" in groups
    path, novelties = (groups.pop(name, None) for name in ("path", "novelty"))
    errors = groups.pop("held_out" if held_out else "conformal", None)
    if groups:
        raise ValueError(f"arrays: {shown(sorted(groups))} not expected")
    return (
        None if path is None else _family(expansion, path),
        None if errors is None else _unseen(expansion, errors, held_out=held_out, classes=classes),
        None if novelties is None else _novelties(expansion, novelties),
    )


def _novelties(expansion: KernelExpansion, arrays: Mapping[str, Array]) -> ConformalScores:
    """Return the distances from the prototypes' span that a file holds; raise if invalid."""
    lengths = {"float": expansion.prototypes.dtype, "targets": ()}
    check_arrays("novelty", arrays, _ERRORS, lengths)
    distances, counts = np.asarray(arrays["errors"]), np.asarray(arrays["counts"])
    if distances[0] < 0 or distances[-1] > 1 or np.any(np.diff(distances) < 0):
        raise ValueError("novelty.errors: expected increasing distances from 0 to 1")
    if counts.min() < 1:
        raise ValueError("novelty.counts: expected numbers of rows of at least 1")
    return ConformalScores(distances, counts=counts)


_LONGEST = 2**16  # most bytes of a label


def _json_labels(labels: tuple[Any, ...], dtype: str) -> list[Any]:
    """Return labels as Python values that JSON can hold; raise a `ValueError` for others."""
    classes = np.array(labels, dtype=dtype)
    if classes.dtype.kind not in "biufU" or classes.dtype.itemsize > _LONGEST:
        raise ValueError(
            f"classes: expected numbers or texts of at most {_LONGEST // 4} characters, as only "
            f"these can be saved, got {classes.dtype}"
        )
    return classes.tolist()


def _labels(labels: Any, dtype: Any) -> tuple[Any, ...]:
    """Return the labels that a document holds as a tuple.

    Raises:
        ValueError: unless they are distinct, sorted and of the NumPy type that `dtype` names.
    """
    if not isinstance(labels, list) or len(labels) < 2:
        raise ValueError(f"classes: expected at least two labels, got {shown(labels)}")
    if not isinstance(dtype, str) or len({type(label) for label in labels}) != 1:
        raise ValueError("classes: expected labels of one type, with its name")
    kinds = {str: "U", bool: "b", int: "iu", float: "f"}.get(type(labels[0]))
    if kinds is None:
        raise ValueError("classes: expected numbers, booleans or texts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # for old type names, refused below
        wanted = np.dtype(dtype)
    # Use the named type: by default NumPy would turn the largest whole numbers into floats.
    if wanted.kind not in kinds or wanted.itemsize > _LONGEST:
        raise ValueError(f"classes: expected labels of type {shown(dtype)}")
    with np.errstate(over="ignore"):
        array = np.array(labels, dtype=wanted)
    if array.tolist() != labels:
        raise ValueError(f"classes: expected labels of type {shown(dtype)}")
    if len(np.unique(array)) < len(array) or not (np.sort(array) == array).all():
        raise ValueError("classes: expected sorted, distinct labels")
    return tuple(labels)
