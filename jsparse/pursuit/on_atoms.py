"""Least squares on some atoms, from the rows of a dictionary or from normal equations."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._numerics import dot, epsilon, solved_with_border, unbatched_lapack
from .._repr import short_repr

# Guard that is added to the diagonal of a Gram matrix, in units of epsilon times the trace. It is
# well above the rounding error. Without it, dependent atoms would have rounding errors as pivots.
_GUARD = 256


class SmallProblem(NamedTuple):
    """A least-squares problem on the atoms T, reduced to small matrices by `Rows` or by `Gram`."""

    matrix: Float[Array, "q p"]  # R of `X_T = Q R`, or [[A_TT, b_T], [b_T', 0]]
    target: Float[Array, "q c"]  # Q'y, or b_T

    __repr__ = short_repr


class Rows(NamedTuple):
    """The problem `min |y - X w|^2 + ridge |w|^2` on some atoms, solved by QR and SVD.

    In its methods, `w` holds the coefficients of the atoms `slots`.
    """

    X: Float[Array, "n D"]
    target: Float[Array, "n c"]  # y, the residual without atoms
    ridge: Float[Array, ""]

    __repr__ = short_repr

    @property
    def n_atoms(self) -> int:
        """Return D, the number of atoms."""
        return self.X.shape[1]

    def residual(self, slots: Int[Array, " m"], w: Float[Array, "m c"]) -> Float[Array, "n c"]:
        """Return the residual `y - X w`."""
        return self.target - dot(self.X[:, slots], w)

    def score(
        self, residual: Float[Array, "n c"], slots: Int[Array, " m"], w: Float[Array, "m c"]
    ) -> Float[Array, " D"]:
        """Return the squares of `X' residual - ridge w`, summed over the right-hand sides."""
        # Multiply from the left: XLA's product with `X.T` takes 20 to 45 times as long on a CPU.
        correlations = _less_ridge(dot(residual.T, self.X), slots, w, self.ridge)
        return jnp.sum(jnp.square(correlations), axis=0)

    def loss(
        self, residual: Float[Array, "n c"], slots: Int[Array, " m"], w: Float[Array, "m c"]
    ) -> Float[Array, ""]:
        """Return the objective `|y - X w|^2 + ridge |w|^2`."""
        return jnp.sum(jnp.square(residual)) + self.ridge * jnp.sum(jnp.square(w))

    def reduced(self, slots: Int[Array, " m"], inside: Bool[Array, " m"]) -> SmallProblem:
        """Reduce the problem on the atoms T, `slots` where `inside`, by QR of `[X_T, y]`."""
        columns = jnp.where(inside[None, :], self.X[:, slots], 0)
        R = _triangular_factor(jnp.concatenate([columns, self.target], axis=1))
        return SmallProblem(R[:, : len(slots)], R[:, len(slots) :])

    def solve(self, small: SmallProblem) -> tuple[Float[Array, "m c"], Int[Array, ""]]:
        """Return the solution, `X_T^+ y` if `ridge` is 0, and the rank of `X_T`.

        A singular value counts as rounding below epsilon times the largest singular value times the
        larger dimension. This is the rule of MATLAB's pseudo-inverse, which the paper uses.
        """
        U, s, V = _svd(small.matrix)
        resolved = s > max(self.X.shape[0], small.matrix.shape[1]) * epsilon(s.dtype) * s[0]
        filtered = jnp.where(resolved, s / jnp.where(resolved, jnp.square(s) + self.ridge, 1), 0)
        w = dot(V.T, filtered[:, None] * dot(U.T, small.target))
        return w, jnp.sum(resolved).astype(jnp.int32)


class Gram(NamedTuple):
    """The problem of `Rows` by `A = X'X` and `b = X'y`, at a cost that does not depend on n."""

    bordered: Float[Array, "D1 D1"]  # [[A, b, 0], [b', 0, 0], [0, 0, 0]]
    target: Float[Array, "D c"]  # b, the residual without atoms
    ridge: Float[Array, ""]

    __repr__ = short_repr

    @classmethod
    def of(cls, A: Float[Array, "D D"], b: Float[Array, "D c"], ridge: Float[Array, ""]) -> "Gram":
        """Return the problem `(A + ridge I) w = b`."""
        last = jnp.pad(b.T, ((0, 1), (0, b.shape[1] + 1)))
        top = jnp.pad(jnp.concatenate([A, b], axis=1), ((0, 0), (0, 1)))
        return cls(jnp.concatenate([top, last]), b, ridge)

    @property
    def n_atoms(self) -> int:
        """Return D, the number of atoms."""
        return len(self.target)

    def residual(self, slots: Int[Array, " m"], w: Float[Array, "m c"]) -> Float[Array, "D c"]:
        """Return the residual `b - A w - ridge w`."""
        # The additional row of zeros keeps XLA from fusing a single row and the look-up into one
        # slow loop.
        D, c = self.target.shape
        fitted = dot(jnp.pad(w.T, ((0, 1), (0, 0))), self.bordered[slots])[:c, :D].T
        return _less_ridge((self.target - fitted).T, slots, w, self.ridge).T

    def score(
        self, residual: Float[Array, "D c"], slots: Int[Array, " m"], w: Float[Array, "m c"]
    ) -> Float[Array, " D"]:
        """Return the squares of `residual`, summed over the right-hand sides."""
        return jnp.sum(jnp.square(residual), axis=1)

    def loss(
        self, residual: Float[Array, "D c"], slots: Int[Array, " m"], w: Float[Array, "m c"]
    ) -> Float[Array, ""]:
        """Return `w'A w - 2 b'w + ridge |w|^2`: the objective less `|y|^2`.

        `residual` is the result of `self.residual(slots, w)`, which saves the product with `A`.
        """
        return -jnp.sum((self.target[slots] + residual[slots]) * w)

    def reduced(self, slots: Int[Array, " m"], inside: Bool[Array, " m"]) -> SmallProblem:
        """Return the problem on the atoms T, which are `slots` where `inside`."""
        D, c = self.target.shape
        borders = jnp.arange(D, D + c, dtype=jnp.int32)
        indices = jnp.concatenate([jnp.where(inside, slots, D + c), borders])
        matrix = self.bordered[indices[:, None], indices[None, :]]
        return SmallProblem(matrix, self.target[slots])

    def solve(self, small: SmallProblem) -> tuple[Float[Array, "m c"], Int[Array, ""]]:
        """Return `(A_TT + ridge I)^+ b_T`, and the numerical rank of `A_TT`.

        A guard is added to the diagonal, and the matrix is factorised by Cholesky. As the guard
        tends to zero, the solution tends to the shortest solution.
        """
        m, c = small.target.shape
        dtype = small.matrix.dtype
        # `jnp.trace` would read every element.
        guard = _GUARD * epsilon(dtype) * jnp.sum(jnp.diagonal(small.matrix))
        shift = jnp.where(guard > 0, guard, 1) + self.ridge
        # The corner must exceed b'A^(-1)b.
        corner = 1 + 2 * jnp.sum(jnp.square(small.target)) / shift
        diagonal = jnp.where(jnp.arange(m + c, dtype=jnp.int32) < m, shift, corner)
        w, pivots = solved_with_border(c)(small.matrix + jnp.diag(diagonal))
        # An atom that is the combination `c` of earlier atoms has the pivot `(1 + |c|^2) guard`.
        independent = jnp.square(pivots) - self.ridge > 16 * guard
        return w, jnp.sum(independent, dtype=jnp.int32)


def _less_ridge(
    correlations: Float[Array, "c D"],
    slots: Int[Array, " m"],
    w: Float[Array, "m c"],
    ridge: Float[Array, ""],
) -> Float[Array, "c D"]:
    """Return `correlations` less `ridge w`; `w` holds the coefficients of the atoms `slots`."""
    # The condition skips the scatter-add, which takes longer than a small product.
    return jax.lax.cond(
        ridge > 0,
        lambda correlations: correlations.at[:, slots].add(-ridge * w.T),
        lambda correlations: correlations,
        correlations,
    )


@unbatched_lapack
def _triangular_factor(rows: Float[Array, "n q"]) -> Float[Array, "p q"]:
    return jnp.linalg.qr(rows, mode="r")


@unbatched_lapack
def _svd(matrix: Float[Array, "q m"]) -> tuple[Array, Array, Array]:
    return tuple(jnp.linalg.svd(matrix, full_matrices=False))


def least_squares(X: Float[Array, "n k"], y: Float[Array, " n *c"]) -> Float[Array, " k *c"]:
    """Return the shortest least-squares solution `X^+ y`, the last step of a pursuit on its atoms.

    Args:
        X: the atoms, one per column, shape `n k`.
        y: shape `n` or `n c`.

    Differentiable in both modes in X and y where the rank does not change. The derivative of a
    pursuit with the selected atoms held fixed is the derivative of this function.
    """
    cut = max(X.shape) * epsilon(X.dtype)  # see `Rows.solve`
    return dot(jnp.linalg.pinv(X, rtol=cut), y)
