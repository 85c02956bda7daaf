"""Join the machines fitted without each fold into one expansion, a column for each machine."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ..expansion import KernelExpansion
from ..kernels import Kernel, Mixture


def join_machines(machines: Sequence[KernelExpansion]) -> KernelExpansion:
    """Join machines into one expansion on the union of their prototypes; on the host.

    The machines must share the kernel and the number of outputs. The expansion has a column for
    each output of each machine, machine by machine.
    """
    kernel, outputs = machines[0].kernel, machines[0].intercept.size
    atoms = [_atoms(machine) for machine in machines]
    joined, inverse = np.unique(np.concatenate(atoms), axis=0, return_inverse=True)
    indices = np.split(inverse.reshape(-1), np.cumsum([len(a) for a in atoms])[:-1])
    columns = np.zeros((len(joined), len(machines), outputs), joined.dtype)
    for fold, machine in enumerate(machines):
        coefficients = np.asarray(machine.coefficients).reshape(-1, outputs)
        np.add.at(columns[:, fold], indices[fold], coefficients)
    used = np.any(columns != 0, axis=(1, 2))
    used[0] = True  # an expansion has at least one prototype
    if isinstance(kernel, Mixture):
        kernel = Mixture(kernel.kernels, jax.device_put(joined[used, 0].astype(np.int32)))
        joined = joined[:, 1:]
    intercepts = np.concatenate([np.asarray(machine.intercept).reshape(-1) for machine in machines])
    return expansion_of_folds(kernel, joined[used], columns[used], intercepts)


def expansion_of_folds(
    kernel: Kernel,
    prototypes: Float[np.ndarray, "m d"],
    columns: Float[np.ndarray, "m v l"],
    intercepts: Float[np.ndarray, "..."],
) -> KernelExpansion:
    """Return the expansion with a column for each of `v` folds and `l` outputs, fold by fold."""
    arrays: Any = prototypes, columns.reshape(len(columns), -1), intercepts.reshape(-1)
    return KernelExpansion(kernel, *jax.device_put(arrays))


def _atoms(machine: KernelExpansion) -> Float[np.ndarray, "m q"]:
    """Return the prototypes; with several kernels, column 0 is the number of the kernel."""
    prototypes = np.asarray(machine.prototypes)
    if not isinstance(machine.kernel, Mixture):
        return prototypes
    return np.column_stack([np.asarray(machine.kernel.which, prototypes.dtype), prototypes])
