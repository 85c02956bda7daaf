"""Families of nested machines: each adds one prototype to the prototypes of the previous one."""

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
    support: Int[Array, "g q"],
    coefficients: Float[Array, "g q q c"],
    intercepts: Float[Array, "g q c"],
    condition: Float[Array, "g q"],
    coefficient_error: Float[Array, "g q"],
    coefficient_status: Int[Array, "g q"],
    path_length: Int[Array, " g"],
    path_status: Int[Array, " g"],
) -> Family:
    """Return the machines of 1 to `q` prototypes, selected for each of `g` groups of `c` outputs.

    The stop code of a machine is the worst of three: of its coefficients, of its path, and
    PRECISION_LOST if the error of its coefficients exceeds `LOST`. TRUNCATED and INDEFINITE paths
    count as COMPLETED for machines smaller than the path's last machine.

    Args:
        kernel: kernel of two points.
        candidates: points from which the prototypes are selected, shape `M d`.
        outputs: the shape of one row's values, `()` or `(g c,)`.
        support: indices of candidates in the order of selection, -1 after the last.
        coefficients: entry `g i` holds the machine of `i + 1` prototypes.
        intercepts: intercept of each machine.
        condition: condition number of each machine's system.
        coefficient_error: relative error of the coefficients that rounding causes.
        coefficient_status: stop code of the solution for the coefficients.
        path_length: number of prototypes selected.
        path_status: stop code of the selection.
    """
    size = jnp.arange(1, support.shape[1] + 1, dtype=jnp.int32)
    # The candidates that truncated or ended a path do not affect smaller machines of the path.
    concerns_last = (path_status == TRUNCATED) | (path_status == INDEFINITE)
    smaller = size[None, :] < path_length[:, None]
    path_codes = jnp.where(concerns_last[:, None] & smaller, COMPLETED, path_status[:, None])
    lost = jnp.where(coefficient_error > LOST, PRECISION_LOST, coefficient_status)
    codes = jnp.maximum(jnp.maximum(path_codes, coefficient_status), lost)
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
        statuses=jnp.max(codes, axis=0).astype(jnp.int32),
        info=info,
        outputs=outputs,
    )


def with_sizes(family: Family, sizes: Int[np.ndarray, " k"]) -> Family:
    """Return the family with the given `sizes`, as a NumPy array, which `jit` does not trace."""
    return dataclasses.replace(family, sizes=sizes.astype(np.int32))
