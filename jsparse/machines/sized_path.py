"""Machines of several sizes, each with prototypes of its own."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._numerics import dot, is_concrete
from .._repr import short_repr
from .._status import PRECISION_LOST
from ..expansion import KernelExpansion
from ..kernels import Kernel, Mixture


class SizedPath(NamedTuple):
    """Machines with given numbers of prototypes, out of a set of candidates.

    Unlike those of a `SparsePath` they need not have each other's prototypes. Of several kernels
    every candidate has an atom, those of the first kernel first.
    """

    kernels: tuple[Kernel, ...]
    candidates: Float[Array, "M d"]
    sizes: Int[Array, " s"]  # numbers of prototypes, increasing
    coefficients: Float[Array, "s p *c"]  # of every atom, 0 of those not selected
    intercepts: Float[Array, "s *c"]
    statuses: Int[Array, " s"]  # how each ended

    __repr__ = short_repr

    @property
    def status(self) -> Int[Array, ""]:
        """The worst of them, lost digits apart, which a smaller machine need not have."""
        each = jnp.where(self.statuses == PRECISION_LOST, 0, self.statuses)
        return jnp.maximum(jnp.max(each), jnp.min(self.statuses)).astype(jnp.int32)

    def status_at(self, n_prototypes: int) -> Int[Array, ""]:
        """Stop code of the machine with so many prototypes.

        Raises:
            ValueError: if there is none.
        """
        return jax.device_put(np.asarray(self.statuses)[self._place(n_prototypes)])

    def at(self, n_prototypes: int) -> KernelExpansion:
        """The machine with so many prototypes for each target; not under `jit`.

        Of several targets it has the prototypes of all; of several kernels, a `Mixture`.

        Raises:
            ValueError: if there is none.
        """
        place, Z = self._place(n_prototypes), np.asarray(self.candidates)
        own = np.asarray(self.coefficients)[place]
        intercept = np.asarray(self.intercepts)[place]
        used = _used(own != 0)
        kernel = self.kernels[0]
        if len(self.kernels) > 1:
            kernel = Mixture(self.kernels, jax.device_put(np.int32(used // len(Z))))
        machine = jax.device_put((Z[used % len(Z)], own[used], intercept))
        return KernelExpansion(kernel, *machine)

    def values(self, X: Float[Array, "n d"]) -> Float[Array, "n s *c"]:
        """Values of all machines, from one block of kernel values; `n s`, or `n s c`."""
        s, p = self.coefficients.shape[:2]
        flat = jnp.moveaxis(self.coefficients.reshape(s, p, -1), 1, 0).reshape(p, -1)
        columns = [kernel.cross_gram(X, self.candidates) for kernel in self.kernels]
        values = dot(jnp.concatenate(columns, axis=1), flat)
        return values.reshape(len(X), *self.intercepts.shape) + self.intercepts[None]

    def compact(self) -> "SizedPath":
        """The same machines with no candidates but those that they use; not under `jit`."""
        Z, own = np.asarray(self.candidates), np.asarray(self.coefficients)
        s, Q = len(own), len(self.kernels)
        apart = own.reshape(s, Q, len(Z), -1)
        used = _used(np.moveaxis(apart, 2, 0) != 0)
        kept = apart[:, :, used].reshape(s, Q * len(used), *own.shape[2:])
        return self._replace(candidates=jax.device_put(Z[used]), coefficients=jax.device_put(kept))

    def _place(self, n_prototypes: int) -> int:
        sizes: Any = self.sizes
        if not is_concrete(sizes):
            raise ValueError("n_prototypes: expected to be asked for outside jit")
        there = np.asarray(sizes)
        place = int(np.searchsorted(there, n_prototypes))
        if place == len(there) or there[place] != n_prototypes:
            raise ValueError(
                f"n_prototypes: expected one of {there.tolist()}, the sizes there are; got "
                f"{n_prototypes}"
            )
        return place


def _used(there: np.ndarray) -> np.ndarray:
    """Numbers of the rows in which anything is true; the first if there are none."""
    found = np.flatnonzero(there.reshape(len(there), -1).any(axis=1))
    return found if len(found) else np.zeros(1, int)
