"""Write the fields of a model to a file, and read and check them.

This module does not import `Model`: `Contents` holds its fields.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from . import serialization
from ._files import PathLike, named
from ._repr import short_repr
from ._runtime import check_fork
from .conformal import ConformalScores, jax_scores
from .expansion import KernelExpansion
from .kernels import Mixture
from .machines.family import Family
from .multiclass import Code, Decoding, output_code
from .plain import jax_expansion
from .predictor.contents import LONGEST_LABEL, complete, load_machine, machine_arrays, predictor_of
from .predictor.files import check_arrays
from .predictor.schema import Schema


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
    quantiles: tuple[float, ...]
    columns: Schema | None
    about: dict[str, Any]

    __repr__ = short_repr


def write(path: PathLike, contents: Contents) -> None:
    """Write the fields of a model to one file; see `model_files.save`."""
    arrays, labels, code = _conformal_arrays(contents.conformal), contents.labels, contents.code
    novelties, temperatures = contents.novelties, contents.inverse_temperatures
    if temperatures is not None:
        temperatures = np.asarray(temperatures, float).tolist()
    if novelties is not None:
        arrays |= {f"{_NOVELTY}{name}": np.asarray(getattr(novelties, name)) for name in _DISTANCES}
    if contents.path is not None:
        with jax.enable_x64(contents.expansion.prototypes.dtype == np.float64):
            arrays |= {f"{_PATH}{name}": a for name, a in family_arrays(contents.path).items()}
    document = {
        "classes": None if labels is None else _json_labels(labels, contents.label_dtype),
        "class_dtype": contents.label_dtype,
        "code": None if code is None else np.asarray(code.matrix, float).tolist(),
        "decoding": contents.decoding,
        "inverse_temperatures": temperatures,
        "quantiles": list(contents.quantiles),
        "columns": None if contents.columns is None else contents.columns.to_json(),
        "about": contents.about,
    }
    serialization.save(path, contents.expansion, document, arrays)


def read(path: PathLike, dtype: str | None) -> Contents:
    """Read the fields of a model from a file of `write`; `dtype` is as for `model_files.load`."""
    check_fork()
    machine, document, arrays = load_machine(path)
    with complete(path):
        predictor = predictor_of(machine, document, arrays)
    cast = serialization.caster(named(path), machine_arrays(machine)[0] | arrays, dtype)
    path_arrays, distances = (
        {
            name.removeprefix(prefix): cast(name, array)
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
        for prefix in (_PATH, _NOVELTY)
    )
    with complete(path):
        expansion = jax_expansion(machine, cast)
        return Contents(
            expansion,
            _family(expansion, path_arrays) if path_arrays else None,
            predictor.inverse_temperatures,
            jax_scores(predictor.conformal, cast),
            _novelties(expansion, distances) if distances else None,
            None if predictor.code is None else output_code(predictor.code, len(predictor.code)),
            document["decoding"],
            predictor.labels,
            predictor.label_dtype,
            predictor.quantiles,
            predictor.columns,
            predictor.about,
        )


_PATH, _NOVELTY = "path.", "novelty."
_DISTANCES = {"errors": "float q", "counts": "int32 q"}
_FAMILY = {  # dtype and axes of each array, see `Family`
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

    Raise ValueError if names, dtypes, shapes or values do not describe a family.
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


def _novelties(expansion: KernelExpansion, arrays: Mapping[str, Array]) -> ConformalScores:
    """Return the novelty of calibration rows that a file holds; raise ValueError if invalid."""
    check_arrays("novelty", arrays, _DISTANCES, {"float": expansion.prototypes.dtype})
    distances, counts = np.asarray(arrays["errors"]), np.asarray(arrays["counts"])
    if distances[0] < 0 or distances[-1] > 1 or np.any(np.diff(distances) < 0):
        raise ValueError("novelty.errors: expected increasing distances from 0 to 1")
    if counts.min() < 1:
        raise ValueError("novelty.counts: expected numbers of rows of at least 1")
    return ConformalScores(distances, counts=counts)


def _conformal_arrays(conformal: ConformalScores | None) -> dict[str, np.ndarray]:
    """Return the arrays of errors on held-out rows by name.

    Names begin with "held_out" if the model was not fitted to the rows, else with "conformal".
    """
    if conformal is None:
        return {}
    errors, counts, machines = conformal.errors, conformal.counts, conformal.machines
    counts = np.ones(len(errors), np.int32) if counts is None else counts
    arrays: dict[str, Any] = {"errors": errors, "counts": counts}
    if machines is not None:
        parts = ("prototypes", "coefficients", "intercept")
        arrays |= {name: getattr(machines, name) for name in parts} | {"fold": conformal.fold}
    prefix = "held_out" if conformal.held_out else "conformal"
    return {f"{prefix}.{name}": np.asarray(array) for name, array in arrays.items()}


def _json_labels(labels: tuple[Any, ...], dtype: str) -> list[Any]:
    """Return labels as Python values that JSON can hold; raise a `ValueError` for others."""
    classes = np.array(labels, dtype=dtype)
    if classes.dtype.kind not in "biufU" or classes.dtype.itemsize > LONGEST_LABEL:
        raise ValueError(
            f"classes: expected numbers or texts of at most {LONGEST_LABEL // 4} characters, as "
            f"only these can be saved, got {classes.dtype}"
        )
    return classes.tolist()
