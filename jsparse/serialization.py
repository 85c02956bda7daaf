"""Models on disk: safetensors with JSON in the header, never pickle.

A kernel is stored as a tree of class names and static fields, its leaves as tensors such as
`kernel.left.lengthscale`, several kernels as a list of trees, beside `prototypes`, `coefficients`,
`intercept` and `scaling.*`. Only the kernels of this package are known, so loading a file runs no
code of the file's choosing. A file that is loaded is one that `save` could have written: whatever
else it holds is refused.
"""

import dataclasses
import importlib.metadata
import warnings
from collections.abc import Callable, Collection, Mapping
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
from ._files import reason_of as reason_of
from ._files import save_state as save_state
from ._files import shown as shown
from ._files import writing as writing
from ._numerics import as_array
from ._runtime import check_fork
from ._status import PrecisionWarning
from .expansion import KernelExpansion
from .kernels import Kernel
from .scaling import Standardization

_PART = "part."
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
    "Mixed",
    "Projected",
)
_SEVERAL = "Mixture"  # of the kernels of an expansion, never a part of another
_WHICH = "kernel.which"


def save(
    path: PathLike,
    expansion: KernelExpansion,
    metadata: Mapping[str, Any] | None = None,
    parts: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write an expansion and what belongs to it; `load` gives back the same to the last bit.

    Args:
        path: the file to write; an existing one is replaced once the new one is complete.
        expansion: one model (not a `vmap`ped stack of them).
        metadata: what JSON can hold (strings, ints, floats, booleans, None, lists and dicts of
            them, also as NumPy scalars or arrays). Values come back with the type they had, tuples
            and arrays as lists.
        parts: more arrays, by name.

    Raises:
        ValueError: for a kernel that is not one of this package's (a `Custom` kernel holds a
            Python function, which a data file cannot carry), metadata that `save_state` cannot
            hold, or an expansion that is not a single model of finite numbers, float32 or float64.
        OutputError: if the file cannot be written.
    """
    arrays = {
        "prototypes": np.asarray(expansion.prototypes),
        "coefficients": np.asarray(expansion.coefficients),
        "intercept": np.asarray(expansion.intercept),
    }
    if expansion.scaling is not None:
        arrays["scaling.shift"] = np.asarray(expansion.scaling.shift)
        arrays["scaling.scale"] = np.asarray(expansion.scaling.scale)
    kernel = _describe(expansion.kernel, "kernel", arrays)
    arrays |= {f"{_PART}{name}": array for name, array in (parts or {}).items()}
    _check_arrays(arrays)
    document = {
        "kernel": kernel,
        "dtype": str(arrays["prototypes"].dtype),
        "versions": {name: _version(name) for name in ("jsparse", "jax", "numpy", "safetensors")},
        "metadata": dict(metadata or {}),
    }
    save_state(path, arrays, document, kind="model")


def load(
    path: PathLike, *, dtype: str | None = None
) -> tuple[KernelExpansion, dict[str, Any], dict[str, jax.Array]]:
    """Read an expansion, the metadata and the parts saved with it; see `jsparse.load`."""
    check_fork()
    arrays, document = load_state(path, kind="model")
    try:
        _check_document(document, arrays)
        _check_arrays(arrays)
    except ValueError as error:
        raise _incomplete(path, error) from error
    cast = _caster(path, arrays, dtype)
    leaves = {name: cast(name, array) for name, array in arrays.items()}
    scaling = None
    if "scaling.shift" in leaves:
        scaling = Standardization(leaves["scaling.shift"], leaves["scaling.scale"])
    try:
        expansion = KernelExpansion(
            kernel=_rebuild(document["kernel"], leaves),
            prototypes=leaves["prototypes"],
            coefficients=leaves["coefficients"],
            intercept=leaves["intercept"],
            scaling=scaling,
        )
        # The kernel knows what it takes, such as a lengthscale of each column.
        prototypes = expansion.prototypes
        row = jax.ShapeDtypeStruct((1, prototypes.shape[1]), prototypes.dtype)
        jax.eval_shape(expansion.kernel.cross_gram, row, prototypes)
    except ValueError as error:
        raise _incomplete(path, error) from error
    parts = {
        name.removeprefix(_PART): array for name, array in leaves.items() if name.startswith(_PART)
    }
    return expansion, document["metadata"], parts


def _incomplete(path: PathLike, error: ValueError) -> ModelFileError:
    return ModelFileError(
        f"{named(path)}: expected a complete jsparse model; its parts do not fit together: "
        f"{reason_of(error)}"
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # run from a checkout


def _describe(kernel: Kernel, name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The kernel tree as class names and static fields; its leaves go into `arrays`."""
    known = type(kernel).__name__
    if isinstance(kernel, kernels.Mixture) and name == "kernel" and kernel.which is not None:
        arrays[_WHICH] = np.asarray(kernel.which)
        own = [_describe(k, f"{name}.{i}", arrays) for i, k in enumerate(kernel.kernels)]
        return {"class": _SEVERAL, "kernels": own}
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


def _check_document(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """See that a document is one of `save`, of these arrays, or raise ValueError."""
    check_keys("document", document, {"kernel", "dtype", "versions", "metadata"})
    for name in ("versions", "metadata"):
        if not isinstance(document[name], dict):
            raise ValueError(f"{name}: expected names and values, got {shown(document[name])}")
    found = {name for name in arrays if name.startswith("scaling.")}
    scaling = {"scaling.shift", "scaling.scale"} if found else set()
    named_in_kernel = _check_kernel(document["kernel"], "kernel")
    parts = {name for name in arrays if name.startswith(_PART)}
    wanted = {"prototypes", "coefficients", "intercept", *scaling, *named_in_kernel, *parts}
    check_keys("arrays", arrays, wanted)
    dtype = arrays["prototypes"].dtype.name
    if document["dtype"] != dtype:
        raise ValueError(f"dtype: expected {dtype}, got {shown(document['dtype'])}")


def _check_kernel(description: Any, name: str) -> list[str]:
    """The names of the tensors of a kernel as `_describe` gives it, or ValueError."""
    if name == "kernel" and isinstance(description, dict) and description.get("class") == _SEVERAL:
        check_keys(name, description, {"class", "kernels"})
        several = description["kernels"]
        if not isinstance(several, list):
            raise ValueError(f"{name}: expected several kernels, got {shown(several)}")
        own = [_check_kernel(one, f"{name}.{i}") for i, one in enumerate(several)]
        return [_WHICH, *(tensor for tensors in own for tensor in tensors)]
    check_keys(name, description, {"class", "fields"})
    known = description["class"]
    if known not in _KERNELS:
        raise ValueError(f"{name}: class {shown(known)} is none of {', '.join(_KERNELS)}")
    declared = {field.name: field for field in dataclasses.fields(getattr(kernels, known))}
    check_keys(f"{name}.fields", description["fields"], set(declared))
    tensors = []
    for own, field in description["fields"].items():
        place = f"{name}.{own}"
        if declared[own].type is Kernel:
            check_keys(place, field, {"kernel"})
            tensors += _check_kernel(field["kernel"], place)
        elif declared[own].metadata.get("static", False):
            check_keys(place, field, {"value"})  # which the kernel checks
        else:
            check_keys(place, field, {"tensor"})
            if field["tensor"] != place:
                raise ValueError(f"{place}: expected its own tensor, got {shown(field['tensor'])}")
            tensors.append(place)
    return tensors


def check_keys(name: str, found: Any, wanted: Collection[str]) -> None:
    """Raise a `ValueError` unless it is a mapping of just these keys."""
    if not isinstance(found, Mapping):
        raise ValueError(f"{name}: expected names and values, got {shown(found)}")
    if set(found) != set(wanted):
        missing, other = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
        raise ValueError(f"{name}: {shown(missing)} missing, {shown(other)} not expected")


def _rebuild(description: Mapping[str, Any], arrays: Mapping[str, jax.Array]) -> Kernel:
    if description["class"] == _SEVERAL:
        own = tuple(_rebuild(one, arrays) for one in description["kernels"])
        return kernels.Mixture(own, arrays[_WHICH])
    fields = {}
    for name, field in description["fields"].items():
        if "kernel" in field:
            fields[name] = _rebuild(field["kernel"], arrays)
        else:
            fields[name] = arrays[field["tensor"]] if "tensor" in field else field["value"]
    return getattr(kernels, description["class"])(**fields)


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
            return as_array(array)
        with np.errstate(over="ignore"):
            narrowed = array.astype(dtype)
        if np.any(np.isinf(narrowed) & np.isfinite(array)):
            raise ValueError(f"{named(path)}: {name} holds values too large for {dtype}")
        return as_array(narrowed)

    return cast


def _check_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    """See that arrays are those of one model that predicts, or raise ValueError."""
    for name, array in arrays.items():
        if name.startswith(_PART) and array.dtype == np.int32:
            continue
        if name == _WHICH:
            if array.dtype != np.int32 or array.shape != arrays["prototypes"].shape[:1]:
                raise ValueError(f"{name}: expected a whole number for each prototype")
            continue
        if array.dtype not in (np.float32, np.float64):
            raise ValueError(f"{name}: expected float32 or float64, got {array.dtype}")
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{name}: expected finite numbers")
    prototypes, coefficients, intercept = (
        arrays[name] for name in ("prototypes", "coefficients", "intercept")
    )
    if prototypes.ndim != 2:
        raise ValueError(
            "expected one model with prototypes of shape (m, d); got prototypes of shape "
            f"{prototypes.shape}"
        )
    m, d = prototypes.shape
    if (
        coefficients.ndim not in (1, 2)
        or len(coefficients) != m
        or 0 in coefficients.shape[1:]
        or intercept.shape != coefficients.shape[1:]
    ):
        raise ValueError(
            f"expected coefficients of shape ({m},) or ({m}, c) and an intercept of shape () or "
            f"(c,); got {coefficients.shape} and {intercept.shape}"
        )
    dtypes = {array.dtype.name for array in (prototypes, coefficients, intercept)}
    if len(dtypes) > 1:
        raise ValueError(
            "expected prototypes, coefficients and intercept of one dtype; got "
            f"{', '.join(sorted(dtypes))}"
        )
    for name in {"scaling.shift", "scaling.scale"} & set(arrays):
        if arrays[name].shape != (d,):
            raise ValueError(f"{name}: expected shape ({d},), got {arrays[name].shape}")
    if not np.all(arrays.get("scaling.scale", np.ones(())) > 0):
        raise ValueError("scaling.scale: expected positive numbers")
