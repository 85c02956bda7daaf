"""Mixtures: each prototype has one of several kernels."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._numerics import is_concrete
from .._types import Scalar
from ._arguments import two_tables
from .base import Kernel, check_kernel


def _numbers(which: Any) -> Int[Array, " m"] | Int[np.ndarray, " m"] | None:
    return None if which is None else jnp.asarray(which, jnp.int32)


class Mixture(Kernel):
    """`k_j(x, z_j)`: prototype j has kernel number `which_j` of several.

    Expansions with several kernels or widths have such a kernel. Without `which` it defines a
    dictionary in which every point has an atom of each kernel. `KSP`, `KMP` and `KBP` choose atoms
    from the dictionary. A mixture is not a function of two points alone, and has no Gram matrix.

    Attributes:
        kernels: at least one kernel.
        which: number of the kernel of each prototype, shape `m`; None for a dictionary.

    Raises:
        ValueError: if there is no kernel, a kernel is not a `Kernel` or is a mixture, or a number
            is out of range.
    """

    kernels: tuple[Kernel, ...] = eqx.field(converter=tuple)
    which: Int[Array, " m"] | Int[np.ndarray, " m"] | None = eqx.field(
        default=None, converter=_numbers
    )

    def __check_init__(self) -> None:
        if not self.kernels:
            raise ValueError("kernels: expected at least one, got none")
        for kernel in self.kernels:
            check_kernel("kernels", kernel)
            if isinstance(kernel, Mixture):
                raise ValueError("kernels: expected no Mixture among the kernels, got one")
        which = self.which
        if which is not None and is_concrete(which):
            numbers = np.asarray(which)
            if numbers.ndim != 1 or np.any((numbers < 0) | (numbers >= len(self.kernels))):
                raise ValueError(
                    f"which: expected numbers of {len(self.kernels)} kernels, got {numbers}"
                )

    def __call__(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Scalar:
        """Raise ValueError: a mixture is not a function of two points alone."""
        raise self._no_pair_value()

    def gram(self, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
        """Raise ValueError: a mixture has no Gram matrix."""
        raise self._no_pair_value()

    def cross_gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Return `k_j(x_i, z_j)`, where `k_j` is the kernel of prototype `z_j`, shape `n m`.

        Raises:
            ValueError: if `which` is None, or its length is not the number of prototypes.
        """
        X, Z = two_tables(X, Z)
        if self.which is None:
            raise self._no_pair_value()
        if len(self.which) != len(Z):
            raise ValueError(
                f"which: expected the number of a kernel for each of {len(Z)} prototypes, got "
                f"{len(self.which)}"
            )
        values = self.kernels[0].cross_gram(X, Z)
        for number, kernel in enumerate(self.kernels[1:], 1):
            values = jnp.where(self.which[None] == number, kernel.cross_gram(X, Z), values)
        return values

    def of_prototypes(self, indices: Int[np.ndarray, " k"]) -> "Mixture":
        """Return this mixture for only the prototypes with these indices.

        Raises:
            ValueError: if `which`, the kernel of each prototype, is None.
        """
        if self.which is None:
            raise self._no_pair_value()
        return Mixture(self.kernels, self.which[indices])

    def _no_pair_value(self) -> ValueError:
        return ValueError(
            f"kernel: expected a single kernel, got a Mixture of {len(self.kernels)}; only KSP, "
            "KMP and KBP choose from several"
        )
