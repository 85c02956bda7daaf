"""Machines of every size whose prototypes are nested."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._numerics import dot, is_concrete
from .._repr import short_repr
from .._status import COMPLETED, INDEFINITE, PRECISION_LOST, TRUNCATED
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..pursuit.path import LOST


class SparsePath(NamedTuple):
    """Machines with one prototype more at a time, out of a set of candidates.

    With several targets that were selected for separately all but the kernel and the candidates
    have a leading axis of targets.
    """

    kernel: Kernel
    candidates: Float[Array, "M d"]
    support: Int[Array, "..."]  # candidates in the order of selection, -1 past `size`; `k`
    coefficients: Float[Array, "..."]  # with i + 1 prototypes in row i; `k k`, or `k k c`
    intercepts: Float[Array, "..."]  # `k`, or `k c`
    condition: Float[Array, "..."]  # of the system, see `pursuit.Path`
    coefficient_error: Float[Array, "..."]  # estimated from it, relative, by rounding; `k`
    coefficient_status: Int[Array, "..."]  # how the search for the coefficients ended; `k`
    size: Int[Array, "..."]
    status: Int[Array, "..."]  # of the path; of a machine on it see `status_at`

    __repr__ = short_repr

    def status_at(self, n_prototypes: int) -> Int[Array, ""]:
        """The path's status or, if worse, the coefficients'.

        `PRECISION_LOST` if they may be wrong by more than 1e-3.

        Raises:
            ValueError: if the path is not that long.
        """
        self._check_size(n_prototypes)
        numpy, path = self._where_known()
        error = numpy.max(path.coefficient_error[..., n_prototypes - 1])
        found = numpy.max(path.coefficient_status[..., n_prototypes - 1])
        found = numpy.where(error > LOST, numpy.maximum(found, PRECISION_LOST), found)
        # What was passed over, or what ended the path, came after the last on it.
        ended = (path.status == TRUNCATED) | (path.status == INDEFINITE)
        status = numpy.where(ended & (n_prototypes < path.size), COMPLETED, path.status)
        return jax.device_put(numpy.maximum(numpy.max(status), found).astype(np.int32))

    def at(self, n_prototypes: int) -> KernelExpansion:
        """The machine with so many prototypes; of each target, if they were selected separately.

        Separate targets share the prototypes that they have in common, so that the machine has
        between `n_prototypes` and as many for each target; how many depends on values, so not under
        `jit`. Where a path ended before, it is the last machine on it.

        Raises:
            ValueError: if the path is not that long.
        """
        self._check_size(n_prototypes)
        k = n_prototypes
        if self.support.ndim == 1:
            if is_concrete(self.size):
                k = max(1, min(k, int(self.size)))
            numpy, path = self._where_known()
            Z = path.candidates[numpy.maximum(path.support[:k], 0)]
            weights = Z, path.coefficients[k - 1, :k], path.intercepts[k - 1]
            return KernelExpansion(self.kernel, *jax.device_put(weights))
        support = np.asarray(self.support[:, :k])
        atoms = np.unique(support[support >= 0])
        coefficients = np.zeros((len(atoms), len(support)), self.coefficients.dtype)
        for target, own in enumerate(support):
            inside = own >= 0
            taken = np.asarray(self.coefficients[target, k - 1, :k])[inside]
            coefficients[np.searchsorted(atoms, own[inside]), target] = taken
        _, path = self._where_known()
        weights = path.candidates[atoms], coefficients, path.intercepts[:, k - 1]
        return KernelExpansion(self.kernel, *jax.device_put(weights))

    def values(self, X: Float[Array, "n d"]) -> Float[Array, "n k *c"]:
        """Values of all machines on the path, from one block of kernel values; `n k`, or `n k c`.

        With one prototype in the first of the `k`; past the end of the path the last one's.
        """
        if self.support.ndim == 1:
            columns = self.kernel.cross_gram(X, self.candidates[jnp.maximum(self.support, 0)])
            k = len(self.support)
            flat = jnp.moveaxis(self.coefficients.reshape(k, k, -1), 1, 0).reshape(k, -1)
            values = dot(columns, flat).reshape(len(X), *self.intercepts.shape)
            return values + self.intercepts[None]

        def one(of: tuple[Array, Array, Array]) -> Float[Array, "n k"]:
            support, coefficients, intercepts = of
            Z = self.candidates[jnp.maximum(support, 0)]
            return dot(self.kernel.cross_gram(X, Z), coefficients.T) + intercepts[None]

        each = jax.lax.map(one, (self.support, self.coefficients, self.intercepts))
        return jnp.moveaxis(each, 0, -1)

    def compact(self) -> "SparsePath":
        """The same path with no candidates but those that it selected; not under `jit`."""
        support = np.asarray(self.support)
        used = np.unique(support[support >= 0])
        place = np.where(support >= 0, np.searchsorted(used, support), -1).astype(np.int32)
        candidates = np.asarray(self.candidates)[used]
        return self._replace(candidates=jax.device_put(candidates), support=jax.device_put(place))

    def _where_known(self) -> "tuple[Any, SparsePath]":
        """The path on the host, if it is known, where nothing compiles for another size."""
        if all(map(is_concrete, jax.tree.leaves(self))):
            return np, jax.tree.map(np.asarray, self)
        return jnp, self

    def _check_size(self, n_prototypes: int) -> None:
        longest = self.support.shape[-1]
        if not 1 <= n_prototypes <= longest:
            raise ValueError(
                f"n_prototypes: expected 1 to {longest}, the length of the path; got {n_prototypes}"
            )
