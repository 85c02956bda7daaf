"""Models in files: written whole, and checked when they are read."""

from collections.abc import Mapping
from typing import Any, get_args

import jax
import numpy as np

from . import serialization
from ._files import ModelFileError, PathLike, named, reason_of, shown
from .conformal import unseen_arrays, unseen_of
from .data.schema import Schema
from .expansion import KernelExpansion
from .machines.dictionary import kernels_of
from .machines.sized_path import SizedPath
from .machines.sparse_path import SparsePath
from .model import About, Model
from .multiclass import Decoding, output_code


def save(
    path: PathLike, model: Model | KernelExpansion, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write a model; `load` gives back one that predicts the same to the last bit.

    A file holds what the model needs to predict. Of the data it was trained on that is:

    - prototypes, which of most methods are training rows, in standardised units, with the means and
      standard deviations of the columns; of the method in the dual all rows with weight;
    - of a path the candidates that any size uses, which are training rows, too;
    - the labels of the classes; of tables the names of columns and target, categories, and what is
      filled in for missing values;
    - some hundred quantiles of the errors on unseen rows, the largest one included, and where the
      machines of the folds are kept their prototypes;
    - `about`: method, metric, error, `C` and the number of rows.

    Its size does not grow with the number of rows otherwise.

    Args:
        path: the file to write; an existing one is replaced once the new one is complete.
        model: a model, or an expansion alone, as the pure functions give it.
        metadata: more to know about the model, what JSON can hold; comes back as `Model.about`.

    Raises:
        ValueError: for a kernel that is not one of this package's (a `Custom` kernel holds a
            Python function, which a data file cannot carry), metadata that JSON cannot hold, or
            numbers that are not finite.
        OutputError: if the file cannot be written.
    """
    if isinstance(model, KernelExpansion):
        model = Model(model)
    if not isinstance(model, Model):
        raise ValueError(
            "model: expected a Model (such as `train(..).model`) or a KernelExpansion, got "
            f"{type(model).__name__}"
        )
    parts = unseen_arrays(model.unseen)
    if model.path is not None:
        with jax.enable_x64(model.dtype == np.float64):
            parts |= {f"path.{name}": a for name, a in _path_arrays(model.path).items()}
    document = {
        "classes": None if model.labels is None else _json_labels(model),
        "class_dtype": model.label_dtype,
        "code": None if model.code is None else np.asarray(model.code.matrix, float).tolist(),
        "decoding": model.decoding,
        "slopes": None if model.slopes is None else np.asarray(model.slopes, float).tolist(),
        "columns": None if model.columns is None else model.columns.to_json(),
        "about": {**model.about, **(metadata or {})},
    }
    serialization.save(path, model.expansion, document, parts)


def load(path: PathLike, *, dtype: str | None = None) -> Model:
    """Read a model that `save`, an estimator or `jsparse fit` has written.

    Args:
        path: the file.
        dtype: "float32" or "float64", to which every array is cast. By default the model keeps
            the dtype it was trained in; should that be float64 while JAX's float64 is switched
            off, it is cast to float32 and a `PrecisionWarning` says so (asking for "float32" does
            the same in silence).

    Raises:
        ModelFileError: if the file is missing, empty, cut, altered, not a jsparse model, of a newer
            format, or holds what is no model: unknown parts, shapes that do not fit together,
            numbers that are not finite.
        ValueError: if float64 is asked for while it is switched off, or a value does not fit
            into the dtype asked for.
        UnusableJaxError: in a process forked after JAX had started.
    """
    expansion, document, parts = serialization.load(path, dtype=dtype)
    try:
        return _model(expansion, document, parts)
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        raise ModelFileError(
            f"{named(path)}: expected a complete jsparse model; its parts do not fit together: "
            f"{reason_of(error)}"
        ) from error


_PARTS = {"classes", "class_dtype", "code", "decoding", "slopes", "columns", "about"}


def _model(
    expansion: KernelExpansion, document: Mapping[str, Any], parts: Mapping[str, Any]
) -> Model:
    serialization.check_keys("metadata", document, _PARTS)
    if document["decoding"] not in get_args(Decoding):
        raise ValueError(f"decoding: got {shown(document['decoding'])}")
    if not isinstance(document["about"], dict):
        raise ValueError(f"about: expected names and values, got {shown(document['about'])}")
    d, outputs = expansion.prototypes.shape[1], expansion.intercept.shape
    labels, label_dtype = None, document["class_dtype"]
    if document["classes"] is not None:
        labels = _labels(document["classes"], label_dtype)
    columns = document["columns"]
    if columns is not None:
        if not isinstance(columns, dict):
            raise ValueError(f"columns: expected names and values, got {shown(columns)}")
        columns = Schema.from_json(columns)
        if len(columns.features) != d:
            raise ValueError(
                f"columns: expected {d} columns as encoded, got {len(columns.features)}"
            )
        if (columns.classes is None) is not (labels is None):
            raise ValueError("classes: expected those of the columns")
        if labels is not None and list(columns.classes or ()) != document["classes"]:
            raise ValueError("classes: expected those of the columns")
    code = None
    if document["code"] is not None:
        if labels is None:
            raise ValueError("code: expected classes with it")
        matrix = np.asarray(document["code"], float)
        code = output_code(matrix, len(labels))
        if outputs != matrix.shape[1:]:
            raise ValueError(f"code: expected outputs {matrix.shape[1:]}, the model has {outputs}")
    elif labels is not None and (outputs or len(labels) > 2):
        raise ValueError("code: expected one, as there are several outputs or classes")
    slopes = document["slopes"]
    if slopes is not None:
        slopes = np.asarray(slopes, float)
        positive = np.all((slopes > 0) & np.isfinite(slopes))
        if labels is None or slopes.shape != (len(labels),) or not positive:
            raise ValueError(f"slopes: expected a positive number for each class, got {slopes}")
    path = unseen = None
    by_prefix: dict[str, dict[str, Any]] = {}
    for name, array in parts.items():
        prefix, _, rest = name.partition(".")
        by_prefix.setdefault(prefix, {})[rest] = array
    known = {"path"} | ({"held_out"} if "held_out" in by_prefix else {"unseen"})
    if not set(by_prefix) <= known:
        raise ValueError(f"arrays: {shown(sorted(parts))} not expected")
    for prefix, arrays in by_prefix.items():
        if prefix == "path":
            path = _path(expansion, arrays)
        else:
            held_out = prefix == "held_out"
            unseen = unseen_of(expansion, arrays, held_out=held_out, classes=labels is not None)
    return Model(
        expansion, path, slopes, unseen, code, document["decoding"], labels, label_dtype, columns,
        About(document["about"]),
    )  # fmt: skip


_PATH = (
    "candidates", "support", "coefficients", "intercepts", "condition", "coefficient_error",
    "coefficient_status", "size", "status",
)  # fmt: skip
_SIZED = ("candidates", "sizes", "coefficients", "intercepts", "statuses")
_WHOLE = {"support", "coefficient_status", "size", "status", "sizes", "statuses"}


def _path_arrays(path: SparsePath | SizedPath) -> dict[str, np.ndarray]:
    """The arrays of a path, with the candidates that it selected, and finite."""
    path = path.compact()
    if isinstance(path, SizedPath):
        return {name: np.asarray(getattr(path, name)) for name in _SIZED}
    arrays = {name: np.asarray(getattr(path, name)) for name in _PATH}
    for name in ("condition", "coefficient_error"):
        arrays[name] = np.nan_to_num(arrays[name], posinf=np.finfo(arrays[name].dtype).max)
    return arrays


def _path(expansion: KernelExpansion, arrays: Mapping[str, Any]) -> SparsePath | SizedPath:
    sized = "sizes" in arrays
    serialization.check_keys("path", arrays, set(_SIZED if sized else _PATH))
    for name, array in arrays.items():
        kind = np.int32 if name in _WHOLE else expansion.prototypes.dtype
        if array.dtype != kind:
            raise ValueError(f"path.{name}: expected {np.dtype(kind)}, got {array.dtype}")
    if sized:
        return _sized_path(expansion, arrays)
    support, candidates = np.asarray(arrays["support"]), arrays["candidates"]
    k, lead = support.shape[-1] if support.ndim else 0, support.shape[:-1]
    outputs = expansion.intercept.shape
    inner = () if lead else outputs
    wanted = {
        "support": (*lead, k),
        "coefficients": (*lead, k, k, *inner),
        "intercepts": (*lead, k, *inner),
        "condition": (*lead, k),
        "coefficient_error": (*lead, k),
        "coefficient_status": (*lead, k),
        "size": lead,
        "status": lead,
    }
    found = {name: arrays[name].shape for name in wanted}
    if k == 0 or found != wanted or lead not in ((), outputs):
        raise ValueError(f"path: expected arrays of shapes {wanted}, got {shown(found)}")
    _check_candidates(expansion, candidates)
    if not (support.min() >= -1 and support.max() < len(candidates)):
        raise ValueError("path.support: expected numbers of candidates")
    if not (support[..., 0] >= 0).all():
        raise ValueError("path.support: expected at least one prototype")
    ordered = np.sort(support, axis=-1)
    if ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any():
        raise ValueError("path.support: expected every candidate once")
    return SparsePath(expansion.kernel, *(arrays[name] for name in _PATH))


def _sized_path(expansion: KernelExpansion, arrays: Mapping[str, Any]) -> SizedPath:
    _check_candidates(expansion, arrays["candidates"])
    sizes, outputs = np.asarray(arrays["sizes"]), expansion.intercept.shape
    atoms = len(kernels_of(expansion.kernel)) * len(arrays["candidates"])
    s = len(sizes) if sizes.ndim == 1 else 0
    wanted = {
        "coefficients": (s, atoms, *outputs),
        "intercepts": (s, *outputs),
        "statuses": (s,),
    }
    found = {name: arrays[name].shape for name in wanted}
    if s == 0 or found != wanted:
        raise ValueError(f"path: expected arrays of shapes {wanted}, got {shown(found)}")
    if sizes[0] < 1 or not (np.diff(sizes) > 0).all():
        raise ValueError("path.sizes: expected increasing numbers of at least 1")
    return SizedPath(kernels_of(expansion.kernel), *(arrays[name] for name in _SIZED))


def _check_candidates(expansion: KernelExpansion, candidates: Any) -> None:
    if candidates.ndim != 2 or candidates.shape[1] != expansion.prototypes.shape[1]:
        raise ValueError(f"path.candidates: got shape {candidates.shape}")


_LONGEST = 2**16  # bytes of a label


def _json_labels(model: Model) -> list[Any]:
    classes = model.classes
    assert classes is not None
    if classes.dtype.kind not in "biufU" or classes.dtype.itemsize > _LONGEST:
        raise ValueError(
            f"classes: expected numbers or texts of at most {_LONGEST // 4} characters, as only "
            f"these can be saved, got {classes.dtype}"
        )
    return classes.tolist()


def _labels(labels: Any, dtype: Any) -> tuple[Any, ...]:
    """Distinct sorted labels that NumPy holds as `dtype`, or ValueError."""
    if not isinstance(labels, list) or len(labels) < 2:
        raise ValueError(f"classes: expected at least two labels, got {shown(labels)}")
    if not isinstance(dtype, str) or len({type(label) for label in labels}) != 1:
        raise ValueError("classes: expected labels of one type, with its name")
    kinds = {str: "U", bool: "b", int: "iu", float: "f"}.get(type(labels[0]))
    if kinds is None:
        raise ValueError("classes: expected numbers, booleans or texts")
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
