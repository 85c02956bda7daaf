"""A model file's contents: arrays and a JSON document as a `Predictor`, checked throughout.

The document describes the kernel as a tree of class names and static fields. The kernel's arrays
are tensors such as `kernel.left.lengthscale`, beside `prototypes`, `coefficients`, `intercept` and
`scaling.*`. Parts of a model beside the machine have names that begin with `part.`.

The functions raise `ValueError` for contents that do not fit together. `complete` turns such an
error into a `ModelFileError` that names the file.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .codes import check_code
from .conformal import ConformalScores
from .files import (
    ModelFileError,
    PathLike,
    check_arrays,
    check_keys,
    load_state,
    named,
    reason_of,
    shown,
)
from .kernels import KERNELS, Kernel
from .machine import Machine, NormalScores, Standardization
from .predictor import Predictor
from .schema import Schema

PART = "part."
_KERNEL_NUMBERS = "kernel.which"  # the number of each prototype's kernel in a `Mixture`
# Dtype and axes of a machine's arrays, in the notation of `files.check_arrays`.
_MACHINE_ARRAYS = {
    "prototypes": "float m d",
    "coefficients": "float m *outputs",
    "intercept": "float *outputs",
}
# The arrays of each kind of scaling, by the name of the array that tells the kinds apart.
_SCALINGS = {
    "scaling.shift": {"scaling.shift": "floating d", "scaling.scale": "floating d"},
    "scaling.knots": {"scaling.knots": "floating k d", "scaling.scores": "floating k d"},
}


def load(path: PathLike) -> Predictor:
    """Return the predictor of a model file that `jsparse.save` or `jsparse fit` has written.

    It computes in the dtype of the file. Machines of other sizes in the file are ignored.

    Raises:
        ModelFileError: if the file is missing, empty, cut, altered, not a jsparse model, of a newer
            format, or its contents are not a model: unknown parts, shapes that do not fit together,
            numbers that are not finite.
    """
    machine, document, parts = load_machine(path)
    with complete(path):
        return predictor_of(machine, document, parts)


def load_machine(path: PathLike) -> tuple[Machine, dict[str, Any], dict[str, np.ndarray]]:
    """Return the machine of a model file, its metadata, and its other arrays.

    The names of the other arrays lack the prefix `part.` that they have in the file.

    Raises:
        ModelFileError: if the file is missing, damaged or no model.
    """
    arrays, document = load_state(path, kind="model")
    with complete(path):
        check_keys("document", document, {"kernel", "versions", "metadata"})
        if not isinstance(document["metadata"], dict):
            raise ValueError("metadata: expected names and values")
        parts, leaves = (
            {name: arrays.pop(name) for name in list(arrays) if name.startswith(prefix)}
            for prefix in (PART, "kernel.")
        )
        check_machine_arrays(arrays, leaves)
        kernel = _kernel(document["kernel"], "kernel", leaves)
        if leaves:
            raise ValueError(f"arrays: {shown(sorted(leaves))} not expected")
        kernel.check(arrays["prototypes"].shape[1])
        scaling = None
        if "scaling.shift" in arrays:
            scaling = Standardization(arrays["scaling.shift"], arrays["scaling.scale"])
        elif "scaling.knots" in arrays:
            scaling = NormalScores(arrays["scaling.knots"], arrays["scaling.scores"])
    machine = Machine(kernel, **{name: arrays[name] for name in _MACHINE_ARRAYS}, scaling=scaling)
    by_name = {name.removeprefix(PART): array for name, array in parts.items()}
    return machine, document["metadata"], by_name


@contextlib.contextmanager
def complete(path: PathLike) -> Iterator[None]:
    """Turn errors in a block that checks the contents of the file `path` into `ModelFileError`."""
    try:
        yield
    except (ValueError, TypeError, OverflowError, KeyError, RecursionError) as error:
        raise ModelFileError(
            f"{named(path)}: expected a complete jsparse model; its parts do not fit together: "
            f"{reason_of(error)}"
        ) from error


def machine_arrays(machine: Machine) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return a machine's arrays by their names in a file, and its kernel as JSON values.

    If the arrays do not fit together, raise ValueError.
    """
    arrays = {name: getattr(machine, name) for name in _MACHINE_ARRAYS}
    if machine.scaling is not None:
        for field in dataclasses.fields(machine.scaling):
            arrays[f"scaling.{field.name}"] = getattr(machine.scaling, field.name)
    leaves: dict[str, np.ndarray] = {}
    description = _describe(machine.kernel, "kernel", leaves)
    check_machine_arrays(arrays, leaves)
    return arrays | leaves, description


def _describe(kernel: Kernel, prefix: str, leaves: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return a kernel's class name and static fields as JSON values; put its arrays into `leaves`.

    `prefix` is the name of the kernel in the file, such as "kernel.left".
    """
    description: dict[str, Any] = {"class": type(kernel).__name__}
    for field in dataclasses.fields(kernel):
        value, full_name = getattr(kernel, field.name), f"{prefix}.{field.name}"
        if isinstance(value, np.ndarray):
            leaves[full_name] = value
        elif isinstance(value, Kernel):
            description[field.name] = _describe(value, full_name, leaves)
        elif field.name == "kernels":
            parts = enumerate(value)
            description[field.name] = [
                _describe(part, f"{full_name}.{i}", leaves) for i, part in parts
            ]
        else:
            description[field.name] = value
    return description


def _kernel(description: Any, prefix: str, leaves: dict[str, np.ndarray]) -> Kernel:
    """Return the kernel from the result of `_describe`; take its arrays out of `leaves`.

    If the description or the arrays are invalid, raise ValueError.
    """
    name = description.get("class") if isinstance(description, dict) else None
    if not isinstance(name, str) or name not in KERNELS:
        raise ValueError(f"{prefix}: class {shown(name)} is none of {', '.join(KERNELS)}")
    fields = {field.name: field.type for field in dataclasses.fields(KERNELS[name])}
    described = {field for field, kind in fields.items() if kind is not np.ndarray}
    check_keys(prefix, description, {"class"} | described)
    values: dict[str, Any] = {}
    for field, kind in fields.items():
        value, full_name = description.get(field), f"{prefix}.{field}"
        if kind is np.ndarray:
            if full_name not in leaves:
                raise ValueError(f"{full_name}: missing")
            value = leaves.pop(full_name)
        elif kind is Kernel:
            value = _kernel(value, full_name, leaves)
        elif field == "kernels":
            if not isinstance(value, list):
                raise ValueError(f"{full_name}: expected several kernels, got {shown(value)}")
            value = tuple(_kernel(part, f"{full_name}.{i}", leaves) for i, part in enumerate(value))
        elif isinstance(value, list):
            value = tuple(value)
        values[field] = value
    return KERNELS[name](**values)


def check_machine_arrays(
    arrays: Mapping[str, np.ndarray], leaves: Mapping[str, np.ndarray]
) -> None:
    """Raise ValueError unless a machine's arrays and its kernel's arrays `leaves` fit together."""
    scaling = next((fields for name, fields in _SCALINGS.items() if name in arrays), {})
    dtype = arrays["prototypes"].dtype if "prototypes" in arrays else np.dtype("float64")
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"prototypes: expected float32 or float64, got {dtype}")
    lengths = check_arrays("", arrays, {**_MACHINE_ARRAYS, **scaling}, {"float": dtype})
    for name, array in leaves.items():
        axes = "int32 m" if name == _KERNEL_NUMBERS else "floating *shape"
        check_arrays("", {name: array}, {name: axes}, lengths)
    if len(lengths["outputs"]) > 1 or 0 in lengths["outputs"]:
        raise ValueError(f"coefficients: expected shape m or m c, got {lengths['outputs']}")
    if not np.all(arrays.get("scaling.scale", np.ones(())) > 0):
        raise ValueError("scaling.scale: expected positive numbers")
    for name in ("scaling.knots", "scaling.scores"):
        if name in arrays and np.any(np.diff(arrays[name], axis=0) < 0):
            raise ValueError(f"{name}: expected columns that do not fall")


# The entries of a model's metadata.
_DOCUMENT = {
    "classes",
    "class_dtype",
    "code",
    "decoding",
    "inverse_temperatures",
    "quantiles",
    "columns",
    "about",
}


def predictor_of(
    machine: Machine, document: Mapping[str, Any], parts: Mapping[str, np.ndarray]
) -> Predictor:
    """Return the predictor of a file's machine, metadata `document` and other arrays `parts`.

    A predictor does not need the machines of other sizes or the calibration of novelty. So arrays
    whose names begin with `path.` or `novelty.` are left unchecked. For other contents that are
    invalid, raise ValueError.
    """
    check_keys("metadata", document, _DOCUMENT)
    decoding, about, label_dtype = (document[n] for n in ("decoding", "about", "class_dtype"))
    if decoding not in ("hamming", "loss"):
        raise ValueError(f"decoding: got {shown(decoding)}")
    if not isinstance(about, dict):
        raise ValueError(f"about: expected names and values, got {shown(about)}")
    labels, columns, temperatures = None, document["columns"], document["inverse_temperatures"]
    if document["classes"] is not None:
        labels = _labels(document["classes"], label_dtype)
    if columns is not None:
        columns = _columns(columns, machine.prototypes.shape[1], document["classes"])
    if labels is None and label_dtype != "":
        raise ValueError(f"class_dtype: expected '' without classes, got {shown(label_dtype)}")
    code = _code(document["code"], labels, machine.intercept.shape)
    if temperatures is not None:
        temperatures = _inverse_temperatures(temperatures, labels)
    quantiles = _quantiles(document["quantiles"], labels, machine.intercept.shape)
    signed = labels is not None or len(quantiles) > 1
    conformal = _held_out_errors(machine, parts, signed=signed)
    return Predictor(
        machine, temperatures, conformal, code, decoding, labels, label_dtype, quantiles, columns,
        about,
    )  # fmt: skip


def _columns(columns: Any, d: int, classes: list[Any] | None) -> Schema:
    """Return the schema in a file's metadata; raise unless it has `d` inputs and these classes."""
    if not isinstance(columns, dict):
        raise ValueError(f"columns: expected names and values, got {shown(columns)}")
    schema = Schema.from_json(columns)
    if len(schema.features) != d:
        raise ValueError(f"columns: expected {d} columns as encoded, got {len(schema.features)}")
    if (None if schema.classes is None else list(schema.classes)) != classes:
        raise ValueError("classes: expected the classes of the columns")
    return schema


def _code(matrix: Any, labels: tuple[Any, ...] | None, outputs: tuple[int, ...]) -> Any:
    """Return the output code in a file's metadata; raise unless it fits labels and outputs."""
    if matrix is None:
        if labels is not None and (outputs or len(labels) > 2):
            raise ValueError("code: expected one, as there are several outputs or classes")
        return None
    if labels is None:
        raise ValueError("code: expected classes with it")
    code = check_code(np.asarray(matrix, float), len(labels))
    if outputs != code.shape[1:]:
        raise ValueError(f"code: expected outputs {code.shape[1:]}, the model has {outputs}")
    return code


def _inverse_temperatures(numbers: Any, labels: tuple[Any, ...] | None) -> np.ndarray:
    """Return the inverse temperatures in a file's metadata; raise unless each label has one."""
    inverse_temperatures = np.asarray(numbers, float)
    positive = np.all((inverse_temperatures > 0) & np.isfinite(inverse_temperatures))
    if labels is None or inverse_temperatures.shape != (len(labels),) or not positive:
        raise ValueError(
            "inverse_temperatures: expected a positive number for each class, got "
            f"{inverse_temperatures}"
        )
    return inverse_temperatures


def _quantiles(
    numbers: Any, labels: tuple[Any, ...] | None, outputs: tuple[int, ...]
) -> tuple[float, ...]:
    """Return the quantiles in a file's metadata; raise unless they fit labels and outputs."""
    quantiles = np.asarray(numbers, float)
    valid = quantiles.ndim == 1 and np.all(np.diff(quantiles, prepend=0, append=1) > 0)
    fits = labels is None and (quantiles.size == 1 or outputs == quantiles.shape)
    if not valid or (quantiles.size > 0 and not fits):
        raise ValueError(
            "quantiles: expected increasing numbers between 0 and 1, one for each output of a "
            f"regression, got {shown(numbers)}"
        )
    return tuple(quantiles.tolist())


# Dtype and axes of the errors on held-out rows, and of the machines of the folds.
_ERRORS = {"errors": "float q *targets", "counts": "int32 q"}
_FOLD_MACHINES = {
    "fold": "int32 q",
    "prototypes": "float p d",
    "coefficients": "float p v",
    "intercept": "float v",
}


def _held_out_errors(
    machine: Machine, parts: Mapping[str, np.ndarray], *, signed: bool
) -> ConformalScores | None:
    """Return the errors on held-out rows that a file's arrays hold; None if there are none.

    Args:
        machine: the machine of the model, which gives kernel, dtype and shapes.
        parts: the arrays by name.
        signed: True if each row has one error that may be negative, as for classes and for several
            quantiles; False if each row has a distance for each output.
    """
    groups: dict[str, dict[str, np.ndarray]] = {}
    for name, array in parts.items():
        prefix, _, rest = name.partition(".")
        groups.setdefault(prefix, {})[rest] = array
    for prefix in ("path", "novelty"):  # a predictor has neither
        groups.pop(prefix, None)
    held_out = "held_out" in groups
    arrays = groups.pop("held_out" if held_out else "conformal", None)
    if groups:
        raise ValueError(f"arrays: {shown(sorted(groups))} not expected")
    if arrays is None:
        return None
    with_machines, intercept = not held_out and "fold" in arrays, machine.intercept
    lengths = check_arrays(
        "conformal", arrays, _ERRORS | (_FOLD_MACHINES if with_machines else {}),
        {
            "float": machine.dtype,
            "d": machine.prototypes.shape[1],
            "targets": () if signed else intercept.shape,
        },
    )  # fmt: skip
    errors, counts = arrays["errors"], arrays["counts"]
    if not signed and errors.min() < 0:
        raise ValueError("conformal.errors: expected distances of at least 0")
    if counts.min() < 1:
        raise ValueError("conformal.counts: expected numbers of rows of at least 1")
    if not with_machines:
        return ConformalScores(errors, counts, held_out=held_out)
    fold, (n_machines, remainder) = arrays["fold"], divmod(lengths["v"], intercept.size)
    if remainder or fold.min() < 0 or fold.max() >= n_machines:
        raise ValueError(
            f"conformal.fold: expected numbers of machines with {intercept.size} outputs each, got "
            f"{lengths['v']} outputs and {shown(fold.tolist())}"
        )
    machines = Machine(
        machine.kernel, *(arrays[name] for name in _MACHINE_ARRAYS), scaling=machine.scaling
    )
    return ConformalScores(errors, counts, fold, machines)


LONGEST_LABEL = 2**16  # most bytes of a label


def _labels(labels: Any, dtype: Any) -> tuple[Any, ...]:
    """Return the labels in a file's metadata; raise unless they are sorted and distinct.

    There must be at least two labels, which NumPy's type named `dtype` holds exactly.
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
    if wanted.kind not in kinds or wanted.itemsize > LONGEST_LABEL:
        raise ValueError(f"classes: expected labels of type {shown(dtype)}")
    with np.errstate(over="ignore"):
        array = np.array(labels, dtype=wanted)
    if array.tolist() != labels:
        raise ValueError(f"classes: expected labels of type {shown(dtype)}")
    if len(np.unique(array)) < len(array) or not (np.sort(array) == array).all():
        raise ValueError("classes: expected sorted, distinct labels")
    return tuple(labels)
