"""A kernel with leaves to tune, and the vector `theta` of these leaves that a search varies."""

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
    """A kernel split into the leaves to tune and the fixed leaves.

    A search varies a vector `theta` of the tuned leaves. As tuned leaves are positive, `theta`
    holds their logs. Only matrices of `kernels.Projected` have elements of any sign, and `theta`
    holds these elements themselves.
    """

    tuned: Kernel  # the kernel with None in place of fixed leaves
    fixed: Kernel  # the kernel with None in place of tuned leaves

    @property
    def size(self) -> int:
        """The number of elements of `theta`."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.tuned))

    @property
    def signed(self) -> Bool[np.ndarray, " p"]:
        """True for the elements of `theta` that are elements of a matrix, not logs."""
        leaves = jax.tree_util.tree_leaves_with_path(self.tuned)
        signed = [np.full(leaf.size, _is_matrix(path)) for path, leaf in leaves]
        return np.concatenate([np.zeros(0, bool), *signed])

    @property
    def theta(self) -> Float[np.ndarray, " p"]:
        """The vector `theta` of the template's kernel, in the dtype of its leaves."""
        leaves = [np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(self.tuned)]
        flat = np.concatenate(leaves) if leaves else np.zeros(0)
        logs = np.log(np.where(self.signed, 1, flat))
        return np.where(self.signed, flat, logs).astype(flat.dtype)

    @property
    def kernel(self) -> Kernel:
        """The template's kernel."""
        return eqx.combine(self.tuned, self.fixed)

    def at(self, theta: Float[Any, " p"]) -> Kernel:
        """Return the template's kernel with other tuned leaves, of which `theta` holds the logs.

        If `theta` is a NumPy array, nothing is compiled.
        """
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
        """Indices into `theta` of the lengthscales of each of `c` columns.

        A product kernel has `k` factors, each with a lengthscale for the column. If one lengthscale
        serves all columns, the table is empty. If the factors have different numbers of
        lengthscales, each lengthscale has a row.
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
    """Return a template whose tuned leaves are the kernel's positive floating-point leaves.

    All floating-point leaves are cast to `dtype`. Without `tune_kernel` no leaf is tuned. With
    `tune_matrices` the matrices of `kernels.Projected` are tuned too, whatever their sign.
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
    """Return whether a leaf is the matrix of `kernels.Projected`."""
    return getattr(path[-1], "name", "") == "matrix"
