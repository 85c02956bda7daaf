"""Save and load kernel expansions as safetensors files with JSON in the header, never pickle.

`predictor.contents` describes the files. Only kernel classes of this package can be loaded, so a
file cannot make the reader run other code.
"""

import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._files import ModelFileError as ModelFileError
from ._files import OutputError as OutputError
from ._files import PathLike, named
from ._files import atomic_path as atomic_path
from ._files import check_writable as check_writable
from ._files import load_state as load_state
from ._files import save_state as save_state
from ._files import writing as writing
from ._numerics import as_array
from ._runtime import check_fork
from ._status import PrecisionWarning
from .expansion import KernelExpansion
from .plain import jax_expansion, plain_expansion
from .predictor.checks import warn_caller
from .predictor.contents import PART, complete, load_machine, machine_arrays


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
        ValueError: for a kernel that is not one of this package's: a `Custom` kernel holds a Python
            function, which a data file cannot carry. Also for metadata of other types, and for an
            expansion that is not a single model of finite numbers, float32 or float64.
        OutputError: if the file cannot be written.
    """
    arrays, kernel = machine_arrays(plain_expansion(expansion))
    document = {
        "kernel": kernel,
        "versions": {name: _version(name) for name in ("jsparse", "jax", "numpy", "safetensors")},
        "metadata": dict(metadata or {}),
    }
    arrays |= {f"{PART}{name}": array for name, array in (parts or {}).items()}
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
    machine, metadata, parts = load_machine(path)
    cast = caster(named(path), machine_arrays(machine)[0] | parts, dtype)
    with complete(path):
        expansion = jax_expansion(machine, cast)
    return expansion, metadata, {name: cast(name, array) for name, array in parts.items()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # jsparse runs from a source folder


def caster(
    where: str, arrays: Mapping[str, np.ndarray], dtype: str | None
) -> Callable[[str, np.ndarray], jax.Array]:
    """Return a function that converts a NumPy array, given its name, to a JAX array.

    The function converts floats to `dtype`. If `dtype` is None, it keeps them, but warns and gives
    float32 if `arrays` hold float64 and JAX has none. Other arrays keep their dtype. Error messages
    begin with `where`.
    """
    if dtype not in (None, "float32", "float64"):
        raise ValueError(f"dtype: expected 'float32', 'float64' or None, got {dtype!r}")
    has_float64 = jnp.result_type(float) == jnp.float64
    switch = "jax.config.update('jax_enable_x64', True)"
    if dtype == "float64" and not has_float64:
        raise ValueError(f"dtype: float64 is switched off in JAX; switch it on by {switch}")
    if dtype is None and not has_float64 and any(a.dtype == np.float64 for a in arrays.values()):
        dtype = "float32"
        warn_caller(
            f"{where} holds a float64 model and float64 is switched off in JAX: it is cast "
            f"to float32 and predicts with that precision; call {switch} before loading to keep "
            "it, or load with dtype='float32' to accept",
            PrecisionWarning,
        )

    def cast(name: str, array: np.ndarray) -> jax.Array:
        if dtype is None or not np.issubdtype(array.dtype, np.floating):
            return as_array(array)
        with np.errstate(over="ignore"):
            narrowed = array.astype(dtype)
        if np.any(np.isinf(narrowed) & np.isfinite(array)):
            raise ValueError(f"{where}: {name} holds values too large for {dtype}")
        return as_array(narrowed)

    return cast
