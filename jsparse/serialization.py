"""Models on disk: safetensors with JSON in the header, never pickle.

A kernel is stored as a tree of class names and static fields, its leaves as tensors such as
`kernel.left.lengthscale`, beside `prototypes`, `coefficients`, `intercept` and `scaling.*`. Only
the kernels of this package are known, so loading a file runs no code of the file's choosing.
"""

import dataclasses
import importlib.metadata
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import kernels
from ._files import ModelFileError as ModelFileError
from ._files import OutputError as OutputError
from ._files import PathLike, named
from ._files import atomic_path as atomic_path
from ._files import check_writable as check_writable
from ._files import load_state as load_state
from ._files import save_state as save_state
from ._status import PrecisionWarning
from .expansion import KernelExpansion
from .kernels import Kernel
from .scaling import Standardization

_KERNELS = (
    "RBF",
    "Laplacian",
    "Matern32",
    "Matern52",
    "RationalQuadratic",
    "Linear",
    "Polynomial",
    "Sum",
    "Product",
    "Scaled",
)


def save(
    path: PathLike, expansion: KernelExpansion, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write a model; `load` gives back one that predicts the same to the last bit.

    Args:
        path: the file to write; an existing one is replaced once the new one is complete.
        expansion: one model (not a `vmap`ped stack of them).
        metadata: what JSON can hold (strings, ints, floats, booleans, None, lists and dicts of
            them, also as NumPy scalars or arrays): task, classes, columns. Values come back with
            the type they had, tuples and arrays as lists.

    Raises:
        ValueError: for a kernel that is not one of this package's (a `Custom` kernel holds a
            Python function, which a data file cannot carry), metadata that JSON cannot hold, or
            an expansion that is not a single model.
        OutputError: if the file cannot be written.
    """
    if np.ndim(expansion.prototypes) != 2:
        raise ValueError(
            "expansion: expected one model with prototypes of shape (m, d); got prototypes of "
            f"shape {np.shape(expansion.prototypes)}"
        )
    arrays = {
        "prototypes": np.asarray(expansion.prototypes),
        "coefficients": np.asarray(expansion.coefficients),
        "intercept": np.asarray(expansion.intercept),
    }
    if expansion.scaling is not None:
        arrays["scaling.shift"] = np.asarray(expansion.scaling.shift)
        arrays["scaling.scale"] = np.asarray(expansion.scaling.scale)
    document = {
        "kernel": _describe(expansion.kernel, "kernel", arrays),
        "dtype": str(arrays["prototypes"].dtype),
        "versions": {name: _version(name) for name in ("jsparse", "jax", "numpy", "safetensors")},
        "metadata": dict(metadata or {}),
    }
    save_state(path, arrays, document, kind="model")


def load(path: PathLike, *, dtype: str | None = None) -> tuple[KernelExpansion, dict[str, Any]]:
    """Read a model and the metadata saved with it.

    Args:
        path: a file written by `save`.
        dtype: "float32" or "float64", to which every array is cast. By default the model keeps
            the dtype it was trained in; should that be float64 while JAX's float64 is switched
            off, it is cast to float32 and a `PrecisionWarning` says so (asking for "float32" does
            the same in silence).

    Raises:
        ModelFileError: if the file is missing, empty, cut, altered, not a jsparse model, or of
            a newer format.
        ValueError: if float64 is asked for while it is switched off, or a value does not fit
            into the dtype asked for.
    """
    arrays, document = load_state(path, kind="model")
    cast = _caster(path, arrays, dtype)
    leaves = {name: cast(name, array) for name, array in arrays.items()}
    try:
        scaling = None
        if "scaling.shift" in leaves:
            scaling = Standardization(leaves["scaling.shift"], leaves["scaling.scale"])
        expansion = KernelExpansion(
            kernel=_rebuild(document["kernel"], leaves),
            prototypes=leaves["prototypes"],
            coefficients=leaves["coefficients"],
            intercept=leaves["intercept"],
            scaling=scaling,
        )
        _check_shapes(expansion)
        return expansion, document["metadata"]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelFileError(
            f"{named(path)}: expected a complete jsparse model; its parts do not fit together "
            f"({type(error).__name__}: {error})"
        ) from error


class _Mismatch(ValueError):
    """Parts of a file that do not belong together."""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # run from a checkout


def _describe(kernel: Kernel, name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The kernel tree as class names and static fields; its leaves go into `arrays`."""
    known = type(kernel).__name__
    if known not in _KERNELS or type(kernel) is not getattr(kernels, known):
        why = ", which holds a Python function" if known == "Custom" else ""
        raise ValueError(
            f"{name}: expected one of jsparse's own kernels ({', '.join(_KERNELS)}), as only these "
            f"can be saved; got {known}{why}"
        )
    fields = {}
    for field in dataclasses.fields(kernel):  # pyright: ignore[reportArgumentType]
        value = getattr(kernel, field.name)
        if isinstance(value, Kernel):
            fields[field.name] = {"kernel": _describe(value, f"{name}.{field.name}", arrays)}
        elif field.metadata.get("static", False):
            fields[field.name] = {"value": value}
        else:
            arrays[f"{name}.{field.name}"] = np.asarray(value)
            fields[field.name] = {"tensor": f"{name}.{field.name}"}
    return {"class": known, "fields": fields}


def _rebuild(description: Mapping[str, Any], arrays: Mapping[str, jax.Array]) -> Kernel:
    known = description["class"]
    if known not in _KERNELS:
        raise _Mismatch(f"kernel class {known!r} is none of {', '.join(_KERNELS)}")
    fields = {}
    for name, field in description["fields"].items():
        if "kernel" in field:
            fields[name] = _rebuild(field["kernel"], arrays)
        else:
            fields[name] = arrays[field["tensor"]] if "tensor" in field else field["value"]
    return getattr(kernels, known)(**fields)


def _caster(
    path: PathLike, arrays: Mapping[str, np.ndarray], dtype: str | None
) -> Callable[[str, np.ndarray], jax.Array]:
    """How the arrays of a file become JAX arrays: in their own dtype, or all in `dtype`."""
    if dtype not in (None, "float32", "float64"):
        raise ValueError(f"dtype: expected 'float32', 'float64' or None, got {dtype!r}")
    has_float64 = jnp.result_type(float) == jnp.float64
    switch = "jax.config.update('jax_enable_x64', True)"
    if dtype == "float64" and not has_float64:
        raise ValueError(f"dtype: float64 is switched off in JAX; switch it on by {switch}")
    if dtype is None and not has_float64 and any(a.dtype == np.float64 for a in arrays.values()):
        dtype = "float32"
        warnings.warn(
            f"{named(path)} holds a float64 model and float64 is switched off in JAX: it is cast "
            f"to float32 and predicts with that precision; call {switch} before loading to keep "
            "it, or load with dtype='float32' to accept",
            PrecisionWarning,
            stacklevel=3,
        )

    def cast(name: str, array: np.ndarray) -> jax.Array:
        if dtype is None or not np.issubdtype(array.dtype, np.floating):
            return jnp.asarray(array)
        with np.errstate(over="ignore"):
            narrowed = array.astype(dtype)
        if np.any(np.isinf(narrowed) & np.isfinite(array)):
            raise ValueError(f"{named(path)}: {name} holds values too large for {dtype}")
        return jnp.asarray(narrowed)

    return cast


def _check_shapes(expansion: KernelExpansion) -> None:
    prototypes, coefficients = expansion.prototypes, expansion.coefficients
    if prototypes.ndim != 2 or coefficients.ndim not in (1, 2):
        raise _Mismatch(f"prototypes {prototypes.shape}, coefficients {coefficients.shape}")
    m, d = prototypes.shape
    if coefficients.shape[0] != m or expansion.intercept.shape != coefficients.shape[1:]:
        raise _Mismatch(
            f"{m} prototypes, coefficients {coefficients.shape}, "
            f"intercept {expansion.intercept.shape}"
        )
    if expansion.scaling is not None:
        for part, array in zip(expansion.scaling._fields, expansion.scaling, strict=True):
            if array.shape != (d,):
                raise _Mismatch(f"{d} columns, scaling.{part} {array.shape}")
