"""Shifted symmetric systems, with a separate Cholesky factor for each shift."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numerics import dot, epsilon
from .._repr import short_repr
from .definite import largest_eigenvalue

_GUARD = 16  # addition to the diagonal, in units of the diagonal's rounding error


class ShiftedCholesky(NamedTuple):
    """A symmetric positive semi-definite `A`, factorised again for every shift.

    It suits large systems and few shifts. A factorisation takes `p^3 / 3` operations at the speed
    of matrix products. The decompositions that serve every shift (`Spectrum`, `Tridiagonal`) take
    as long as `25 p^3` such operations.

    The rounding error of Cholesky's method is relative to the diagonal entry of each row (Demmel
    1989), and so is the guard that is added to the diagonal.
    """

    matrix: Float[Array, "p p"]

    __repr__ = short_repr

    @property
    def _guard(self) -> Float[Array, " p"]:
        return _GUARD * epsilon(self.matrix.dtype) * jnp.abs(jnp.diagonal(self.matrix))

    def _lower(self, shift: Float[Array, ""]) -> Float[Array, "p p"]:
        return jnp.linalg.cholesky(self.matrix + jnp.diag(shift + self._guard))

    def apply_inverse(
        self, rhs: Float[Array, "t k p"], shifts: Float[Array, " s"]
    ) -> Float[Array, "s k p"]:
        """Solve `(A + shift_s I) x_s = rhs_s`; vectors are rows. If `t` is 1, all share `rhs`."""
        rhs_of_shifts = jnp.broadcast_to(rhs, (len(shifts), *rhs.shape[1:]))

        def solve_one(system: tuple[Array, Array]) -> Float[Array, "k p"]:
            shift, rhs = system
            return jax.scipy.linalg.cho_solve((self._lower(shift), True), rhs.T).T

        return jax.lax.map(solve_one, (shifts, rhs_of_shifts))

    @property
    def largest(self) -> Float[Array, ""]:
        """Estimate the largest eigenvalue from below, within a few per cent."""
        start = jnp.sqrt(jnp.maximum(jnp.diagonal(self.matrix), 0))
        return largest_eigenvalue(lambda x: dot(self.matrix, x), start)

    def numerical_rank(self, _: Float[Array, ""]) -> Int[Array, ""]:
        """Return the numerical rank, read from the Cholesky pivots.

        A pivot of the unshifted factor counts if its square exceeds twice its guard. The rank is 0
        if the factorisation fails. The argument of the other factorisations, the rounding error of
        an eigenvalue, has no use here: each pivot has the rounding error of its diagonal entry.
        """
        pivots = jnp.square(jnp.diagonal(self._lower(jnp.zeros((), self.matrix.dtype))))
        return jnp.sum(pivots > 2 * self._guard, dtype=jnp.int32)

    def degrees_of_freedom(self, shifts: Float[Array, " s"]) -> Float[Array, " s"]:
        """Return `tr(A (A + shift I)^(-1))` for every shift."""
        identity = jnp.eye(len(self.matrix), dtype=self.matrix.dtype)

        def trace(shift: Float[Array, ""]) -> Float[Array, ""]:
            inverse = jax.scipy.linalg.solve_triangular(self._lower(shift), identity, lower=True)
            return len(identity) - shift * jnp.sum(jnp.square(inverse))

        return jax.lax.map(trace, shifts)
