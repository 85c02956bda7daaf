"""Save and load kernel expansions as safetensors files with JSON in the header, never pickle.

The JSON document describes the kernel as a tree of class names and static fields. The kernel's
arrays are tensors such as `kernel.left.lengthscale`, beside `prototypes`, `coefficients`,
`intercept` and `scaling.*`. Only kernel classes of this package can be loaded, so a file cannot
make the reader run other code.
"""

import contextlib
import dataclasses
import importlib.metadata
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import kernels
from ._files import ModelFileError as ModelFileError
from ._files import OutputError as OutputError
from ._files import PathLike, check_arrays, check_keys, named, reason_of, shown
from ._files import atomic_path as atomic_path
from ._files import check_writable as check_writable
from ._files import load_state as load_state
from ._files import save_state as save_state
from ._files import writing as writing
from ._numerics import as_array
from ._runtime import check_fork
from ._status import PrecisionWarning
from .expansion import KernelExpansion
from .kernels import Kernel
from .scaling import NormalScores, Standardization

_PART = "part."
_WHICH = "kernel.which"  # the number of each prototype's kernel in a `Mixture`
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
    "Mixture",
)
_EXPANSION = {
    "prototypes": "float m d",
    "coefficients": "float m *outputs",
    "intercept": "float *outputs",
}
_SCALINGS = {
    "scaling.shift": {"scaling.shift": "floating d", "scaling.scale": "floating d"},
    "scaling.knots": {"scaling.knots": "floating k d", "scaling.scores": "floating k d"},
}


def save(
    path: PathLike,
    expansion: KernelExpansion,
    metadata: Mapping[str, Any] | None = None,
    parts: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write an expansion, metadata and more arrays to a file; `load` returns them bit for bit.

    Args:
        path: the file to write. An existing file is replaced once the new file is complete.
        expansion: one model, not a `vmap`ped stack of models.
        metadata: strings, ints, floats, booleans, None, lists and dicts of them, also NumPy scalars
            or arrays. `load` returns values of the same types, but tuples and arrays as lists.
        parts: more arrays, by name.

    Raises:
        ValueError: for a kernel that is not one of this package's (a `Custom` kernel holds a
            Python function, which a data file cannot carry), metadata that `save_state` cannot
            hold, or an expansion that is not a single model of finite numbers, float32 or float64.
        OutputError: if the file cannot be written.
    """
    arrays = {name: np.asarray(getattr(expansion, name)) for name in _EXPANSION}
    if expansion.scaling is not None:
        fields = expansion.scaling._asdict().items()
        arrays |= {f"scaling.{name}": np.asarray(array) for name, array in fields}
    leaves: dict[str, np.ndarray] = {}
    document = {
        "kernel": _describe(expansion.kernel, "kernel", leaves),
        "versions": {name: _version(name) for name in ("jsparse", "jax", "numpy", "safetensors")},
        "metadata": dict(metadata or {}),
    }
    _check_expansion(arrays, leaves)
    arrays |= leaves | {f"{_PART}{name}": array for name, array in (parts or {}).items()}
    save_state(path, arrays, document, kind="model")


def load(
    path: PathLike, *, dtype: str | None = None
) -> tuple[KernelExpansion, dict[str, Any], dict[str, jax.Array]]:
    """Read the expansion, metadata and parts that `save` wrote.

    Args:
        path: the file.
        dtype: "float32" or "float64" to convert all floats; None to keep the dtype of the file.

    Raises:
        ModelFileError: if the file is missing, damaged or no model.
        ValueError: for another dtype, or values too large for it.
    """
    check_fork()
    arrays, document = load_state(path, kind="model")
    with complete(path):
        check_keys("document", document, {"kernel", "versions", "metadata"})
        if not isinstance(document["metadata"], dict):
            raise ValueError("metadata: expected names and values")
        parts, kernel_arrays = (
            {name: arrays.pop(name) for name in list(arrays) if name.startswith(prefix)}
            for prefix in (_PART, "kernel.")
        )
        _check_expansion(arrays, kernel_arrays)
    cast = _caster(path, {**arrays, **kernel_arrays, **parts}, dtype)
    tensors, leaves, parts = (
        {name: cast(name, array) for name, array in group.items()}
        for group in (arrays, kernel_arrays, parts)
    )
    with complete(path):
        kernel = _kernel_of(document["kernel"], "kernel", leaves)
        if leaves:
            raise ValueError(f"arrays: {shown(sorted(leaves))} not expected")
        scaling = None
        if "scaling.shift" in tensors:
            scaling = Standardization(tensors["scaling.shift"], tensors["scaling.scale"])
        elif "scaling.knots" in tensors:
            scaling = NormalScores(tensors["scaling.knots"], tensors["scaling.scores"])
        expansion = KernelExpansion(
            kernel, tensors["prototypes"], tensors["coefficients"], tensors["intercept"], scaling
        )
        # Let the kernel check its arrays, such as one lengthscale for each column.
        prototypes = expansion.prototypes
        row = jax.ShapeDtypeStruct((1, prototypes.shape[1]), prototypes.dtype)
        jax.eval_shape(kernel.cross_gram, row, prototypes)
    by_name = {name.removeprefix(_PART): array for name, array in parts.items()}
    return expansion, document["metadata"], by_name


@contextlib.contextmanager
def complete(path: PathLike) -> Iterator[None]:
    """Turn errors in a block that checks the contents of the file `path` into `ModelFileError`."""
    try:
        yield
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        raise ModelFileError(
            f"{named(path)}: expected a complete jsparse model; its parts do not fit together: "
            f"{reason_of(error)}"
        ) from error


def _version(package: str) -> str:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # jsparse runs from a source folder


def _describe(kernel: Kernel, place: str, leaves: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return a kernel's class name and static fields as JSON values; put its arrays into `leaves`.

    `place` is the name of the kernel in the file, such as "kernel.left".
    """
    name = type(kernel).__name__
    if name not in _KERNELS or type(kernel) is not getattr(kernels, name):
        why = ", which holds a Python function" if name == "Custom" else ""
        raise ValueError(
            f"{place}: expected one of jsparse's own kernels ({', '.join(_KERNELS)}), as only "
            f"these can be saved; got {name}{why}"
        )
    description: dict[str, Any] = {"class": name}
    for field in dataclasses.fields(kernel):  # pyright: ignore[reportArgumentType]
        value, field_place = getattr(kernel, field.name), f"{place}.{field.name}"
        if isinstance(value, Kernel):
            description[field.name] = _describe(value, field_place, leaves)
        elif field.name == "kernels":
            description[field.name] = [
                _describe(part, f"{field_place}.{i}", leaves) for i, part in enumerate(value)
            ]
        elif field.metadata.get("static", False):
            description[field.name] = value
        else:
            if value is None:
                raise ValueError(f"{field_place}: expected the number of each prototype's kernel")
            leaves[field_place] = np.asarray(value)
    return description


def _kernel_of(description: Any, place: str, leaves: dict[str, jax.Array]) -> Kernel:
    """Return the kernel that `_describe` described; remove its arrays from `leaves`."""
    name = description.get("class") if isinstance(description, dict) else None
    if name not in _KERNELS:
        raise ValueError(f"{place}: class {shown(name)} is none of {', '.join(_KERNELS)}")
    fields = dataclasses.fields(getattr(kernels, name))
    static = {field.name for field in fields if field.metadata.get("static", False)}
    inner = {field.name for field in fields if field.type is Kernel}
    several = {"kernels"} if name == "Mixture" else set()
    check_keys(place, description, {"class"} | static | inner | several)
    values: dict[str, Any] = {}
    for field in (field.name for field in fields):
        value, field_place = description.get(field), f"{place}.{field}"
        if field in static:
            values[field] = value  # the kernel checks it
        elif field in inner:
            values[field] = _kernel_of(value, field_place, leaves)
        elif field in several:
            if not isinstance(value, list):
                raise ValueError(f"{field_place}: expected several kernels, got {shown(value)}")
            values[field] = tuple(
                _kernel_of(part, f"{field_place}.{i}", leaves) for i, part in enumerate(value)
            )
        elif field_place not in leaves:
            raise ValueError(f"{field_place}: missing")
        else:
            values[field] = leaves.pop(field_place)
    return getattr(kernels, name)(**values)


def _check_expansion(arrays: Mapping[str, np.ndarray], leaves: Mapping[str, np.ndarray]) -> None:
    """Raise a `ValueError` unless the arrays of an expansion and of its kernel fit together."""
    scaling = next((fields for name, fields in _SCALINGS.items() if name in arrays), {})
    which = {_WHICH: "int32 m"} if _WHICH in leaves else {}
    others = {name: "floating *shape" for name in leaves if name not in which}
    dtype = arrays["prototypes"].dtype if "prototypes" in arrays else np.dtype("float64")
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"prototypes: expected float32 or float64, got {dtype}")
    lengths = check_arrays("", arrays, {**_EXPANSION, **scaling}, {"float": dtype})
    for name, described in {**which, **others}.items():
        check_arrays("", {name: leaves[name]}, {name: described}, lengths)
    if len(lengths["outputs"]) > 1 or 0 in lengths["outputs"]:
        raise ValueError(f"coefficients: expected shape m or m c, got {lengths['outputs']}")
    if not np.all(arrays.get("scaling.scale", np.ones(())) > 0):
        raise ValueError("scaling.scale: expected positive numbers")
    for name in ("scaling.knots", "scaling.scores"):
        if name in arrays and np.any(np.diff(arrays[name], axis=0) < 0):
            raise ValueError(f"{name}: expected columns that do not fall")


def _caster(
    path: PathLike, arrays: Mapping[str, np.ndarray], dtype: str | None
) -> Callable[[str, np.ndarray], jax.Array]:
    """Return a function of name and array that returns a JAX array.

    It converts floats to `dtype`, or to float32 with a warning if JAX has no float64; other arrays
    keep their dtype.
    """
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
