"""Families whose machines have the prototypes of all smaller machines and one more."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._status import COMPLETED, INDEFINITE, PRECISION_LOST, TRUNCATED
from ..kernels import Kernel
from ..pursuit.path import LOST
from .family import Family


def nested_family(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    outputs: tuple[int, ...],
    *,
    support: Int[Array, "g q"],  # in the order of selection, -1 after the last
    coefficients: Float[Array, "g q q c"],
    intercepts: Float[Array, "g q c"],
    condition: Float[Array, "g q"],
    coefficient_error: Float[Array, "g q"],
    coefficient_status: Int[Array, "g q"],
    path_length: Int[Array, " g"],
    path_status: Int[Array, " g"],
) -> Family:
    """Return the machines of 1 to `q` prototypes, selected for each of `g` groups of outputs.

    The stop code of a machine is the worse one of its path and its coefficients. Row `i` of the
    coefficients is the machine of `i + 1` prototypes, with its condition number and the relative
    error that rounding causes.
    """
    size = jnp.arange(1, support.shape[1] + 1, dtype=jnp.int32)
    # The candidates that were passed over, or that ended the path, came after its smaller machines.
    ended_later = (path_status == TRUNCATED) | (path_status == INDEFINITE)
    ended_later = ended_later[:, None] & (size[None, :] < path_length[:, None])
    of_path = jnp.where(ended_later, COMPLETED, path_status[:, None])
    lost = jnp.where(coefficient_error > LOST, PRECISION_LOST, coefficient_status)
    of_machine = jnp.maximum(jnp.maximum(of_path, coefficient_status), lost)
    info = {
        "condition": condition,
        "coefficient_error": coefficient_error,
        "coefficient_status": coefficient_status,
        "path_length": path_length,
        "path_status": path_status,
    }
    return Family(
        kernel=kernel,
        points=candidates,
        support=support,
        coefficients=coefficients,
        intercepts=intercepts,
        sizes=size,
        statuses=jnp.max(of_machine, axis=0).astype(jnp.int32),
        info=info,
        outputs=outputs,
    )


def with_sizes(family: Family, sizes: Int[np.ndarray, " k"]) -> Family:
    """Return a family that a compiled program returned, with sizes that `jit` does not trace."""
    return dataclasses.replace(family, sizes=sizes.astype(np.int32))
