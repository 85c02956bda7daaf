"""A kernel whose leaves are tuned, and the vector of numbers that a search varies."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import KeyPath
from jaxtyping import Bool, Float, Int

from .._numerics import as_array
from ..kernels import Kernel


class Template(eqx.Module):
    """A kernel split into the leaves that are tuned and the rest.

    A search varies a vector `theta`: logs of the positive leaves, and the elements themselves of
    the matrices of `kernels.Projected`, which have any sign.
    """

    tuned: Kernel  # None for leaves that are not tuned
    fixed: Kernel

    @property
    def size(self) -> int:
        """The number of elements of `theta`."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.tuned))

    @property
    def signed(self) -> Bool[np.ndarray, " p"]:
        """Which elements of `theta` are numbers of a matrix, not logs."""
        leaves = jax.tree_util.tree_leaves_with_path(self.tuned)
        signed = [np.full(leaf.size, _is_matrix(path)) for path, leaf in leaves]
        return np.concatenate([np.zeros(0, bool), *signed])

    @property
    def theta(self) -> Float[np.ndarray, " p"]:
        """The vector of the template itself, in the dtype of its leaves."""
        leaves = [np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(self.tuned)]
        flat = np.concatenate(leaves) if leaves else np.zeros(0)
        logs = np.log(np.where(self.signed, 1, flat))
        return np.where(self.signed, flat, logs).astype(flat.dtype)

    @property
    def kernel(self) -> Kernel:
        """The template itself as a kernel."""
        return eqx.combine(self.tuned, self.fixed)

    def at(self, theta: Float[Any, " p"]) -> Kernel:
        """Return the kernel at a point; of a NumPy array nothing is compiled."""
        leaves, structure = jax.tree.flatten(self.tuned)
        ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
        numpy = np if isinstance(theta, np.ndarray) else jnp
        signed = self.signed
        values = numpy.where(signed, theta, numpy.exp(numpy.where(signed, 0, theta)))
        parts = numpy.split(values, ends) if leaves else []
        tuned = [
            as_array(part.reshape(leaf.shape).astype(leaf.dtype))
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return eqx.combine(structure.unflatten(tuned), self.fixed)

    @property
    def lengthscales(self) -> Int[np.ndarray, "c k"]:
        """Places in `theta` of each column's lengthscales; a product has one for each factor.

        No rows, if there is one lengthscale for all columns.
        """
        leaves = jax.tree_util.tree_leaves_with_path(self.tuned)
        ends = np.cumsum([0, *(leaf.size for _, leaf in leaves)])
        places = [
            np.arange(ends[i], ends[i + 1])
            for i, (path, leaf) in enumerate(leaves)
            if leaf.ndim == 1 and leaf.size > 1 and getattr(path[-1], "name", "") == "lengthscale"
        ]
        if len({place.size for place in places}) == 1:
            return np.stack(places, axis=1)
        return np.concatenate([np.zeros(0, int), *places])[:, None]


def split_kernel(
    kernel: Kernel, dtype: jnp.dtype, *, tune_kernel: bool = True, tune_matrices: bool = False
) -> Template:
    """Return a kernel as a template: its positive floating leaves are tuned.

    Without `tune_kernel` none is. `tune_matrices` adds the matrices of `kernels.Projected`.
    """
    kernel = jax.tree.map(
        lambda a: as_array(np.asarray(a), dtype) if eqx.is_inexact_array(a) else a, kernel
    )

    def varies(path: KeyPath, leaf: Any) -> bool:
        if not (tune_kernel and eqx.is_inexact_array(leaf)):
            return False
        return tune_matrices if _is_matrix(path) else bool(np.all(np.asarray(leaf) > 0))

    return Template(*eqx.partition(kernel, jax.tree_util.tree_map_with_path(varies, kernel)))


def _is_matrix(path: KeyPath) -> bool:
    """Whether a leaf is the matrix of `kernels.Projected`."""
    return getattr(path[-1], "name", "") == "matrix"
