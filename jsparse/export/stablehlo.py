"""Functions of a model as StableHLO files, which JAX runs without this package."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

FUNCTIONS = ("decision_function", "predict_proba", "predict")
PLATFORMS = ("cpu", "cuda", "tpu")


def stablehlo_bytes(function: Callable[[Any], Any], columns: int, dtype: np.dtype) -> bytes:
    """Return a function of rows as a file for `jax.export.deserialize`.

    The file holds one program for all of `PLATFORMS` and any number of rows, at least one.

    Args:
        function: a function of rows of shape `n columns` that JAX can trace.
        columns: number of columns of the rows.
        dtype: dtype of the rows.

    Raises:
        ImportError: without flatbuffers, with which JAX writes and reads such files.
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
        return bytes(_without_locations(exported).serialize())


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
