"""Machines in the span of given prototypes (Wu et al. 2006)."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numerics import dot, epsilon, times_power
from .._repr import short_repr
from .._types import ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..solvers.definite import cholesky, inverse_of_lower


class Solved(NamedTuple):
    """The solution of an inner problem for given prototypes."""

    value: Float[Array, ""]  # W(Z)
    coefficients: Float[Array, "m *c"]  # beta
    intercept: Float[Array, "*c"]  # b
    multipliers: Any  # arrays
    status: Int[Array, ""]

    def times_power(self, exponent: Int[Array, ""]) -> "Solved":
        """Return the solution for targets times `2^exponent`; the multipliers do not change."""
        once, twice = exponent[None], 2 * exponent[None]
        return self._replace(
            value=times_power(self.value[None], twice)[0],
            coefficients=times_power(self.coefficients[None], once)[0],
            intercept=times_power(self.intercept[None], once)[0],
        )

    __repr__ = short_repr


class InnerProblem(eqx.Module):
    """A machine `w = sum_i beta_i phi(z_i)` of given prototypes `z_i`, as an optimisation problem.

    A subclass states how it is solved and what its Lagrangian is; `direct.marginal` and
    `direct.minimise` then make a sparse machine of it. If its inputs or targets may be in any
    units, it overrides `spread` and `scaled` as well, and if its objective may come near to 0,
    `magnitude`.
    """

    kernel: eqx.AbstractVar[Kernel]

    @abc.abstractmethod
    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """Return the best coefficients and intercept for the prototypes, and the multipliers."""

    @abc.abstractmethod
    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """Return the Lagrangian at a solution, which is held fixed, as a function of all else."""

    def spread(self) -> ScalarLike | Float[Array, " d"]:
        """Return the unit of length of each input column, by which a descent scales its steps."""
        return 1.0

    def magnitude(self, value: Float[Array, ""]) -> Float[Array, ""]:
        """Return what a decrease of `W` is compared with; by default the size of `W` itself."""
        return jnp.abs(value)

    def scaled(self) -> tuple["InnerProblem", Int[Array, ""]]:
        """Return the problem with targets divided by `2^e` to size one, and the exponent `e`.

        This divides the coefficients and the intercept by `2^e`, and `W` by `4^e`. By default
        return the problem unchanged, with the exponent 0.
        """
        return self, jnp.zeros((), jnp.int32)

    def expansion(self, Z: Float[Array, "m d"], solved: Solved) -> KernelExpansion:
        """Return the solution as a machine."""
        return KernelExpansion(self.kernel, Z, solved.coefficients, solved.intercept)


def shifted_gram(kernel: Kernel, Z: Float[Array, "m d"]) -> Float[Array, "m m"]:
    """Return `K(Z, Z)` with a shift of the size of its rounding."""
    gram = kernel.gram(Z)
    return gram + _shift(gram) * jnp.eye(len(Z), dtype=gram.dtype)


def whitener(kernel: Kernel, Z: Float[Array, "m d"]) -> Float[Array, "m m"]:
    """Return `T` with `T T' = K(Z, Z)^(-1)` (Wu 2006, eq. 43), of the shifted matrix."""
    return inverse_of_lower(cholesky(shifted_gram(kernel, Z))).T


def norm_squared(
    kernel: Kernel, Z: Float[Array, "m d"], coefficients: Float[Array, "m *c"]
) -> Float[Array, ""]:
    """Return `|w|^2`, summed over outputs, with the shifted matrix."""
    gram = kernel.gram(Z)
    norm = jnp.sum(coefficients * dot(gram, coefficients))
    return norm + _shift(gram) * jnp.sum(jnp.square(coefficients))


def _shift(gram: Float[Array, "m m"]) -> Float[Array, ""]:
    """Return the shift: relative to the trace and differentiated, so `W(Z)` is one function."""
    return 4 * epsilon(gram.dtype) * jnp.trace(gram) + float(jnp.finfo(gram.dtype).tiny)
