"""Functions of a model as StableHLO files, which JAX runs without this package."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ._files import PathLike, atomic_path, writing

FUNCTIONS = ("decision_function", "predict_proba", "predict")
PLATFORMS = ("cpu", "cuda", "tpu")


def check_function(function: str) -> None:
    """Raise ValueError unless `function` is the name of a function that can be exported."""
    if function not in FUNCTIONS:
        raise ValueError(f"function: expected one of {', '.join(FUNCTIONS)}, got {function!r}")


def write(path: PathLike, function: Callable[[Any], Any], columns: int, dtype: np.dtype) -> None:
    """Write a function of rows to a file for `jax.export.deserialize`.

    The file holds one program for all of `PLATFORMS` and any number of rows, at least one.

    Args:
        path: the file to write. An existing file is replaced once the new file is complete.
        function: a function of rows of shape `n columns` that JAX can trace.
        columns: number of columns of the rows.
        dtype: of the rows.

    Raises:
        ImportError: without flatbuffers, with which JAX writes and reads such files.
        OutputError: if the file cannot be written.
    """
    from jax import export  # slow to import, and often not needed

    try:
        import flatbuffers  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "StableHLO files need flatbuffers: pip install 'jsparse[stablehlo]'"
        ) from error
    (n,) = export.symbolic_shape("n")
    with jax.enable_x64(dtype == np.float64):
        rows = jax.ShapeDtypeStruct((n, columns), dtype)
        exported = export.export(jax.jit(function), platforms=PLATFORMS)(rows)
        data = _without_locations(exported).serialize()
    with atomic_path(path) as temporary, writing(path):
        temporary.write_bytes(data)


def _without_locations(exported: Any) -> Any:
    """Return an exported function without the names of source files, which name users' folders."""
    from jax.extend.mlir import ir, passmanager
    from jax.extend.mlir.dialects import stablehlo

    # The version that JAX itself writes, so that a JAX of three weeks earlier reads the file.
    version = stablehlo.get_version_from_compatibility_requirement(
        stablehlo.StablehloCompatibilityRequirement.WEEK_4
    )
    with ir.Context() as context:
        program = exported.mlir_module_serialized
        module = stablehlo.deserialize_portable_artifact(context, program)
        strip = passmanager.PassManager.parse("builtin.module(strip-debuginfo)")
        strip.run(module.operation)
        program = stablehlo.serialize_portable_artifact(module, version)
    return dataclasses.replace(exported, mlir_module_serialized=program)
