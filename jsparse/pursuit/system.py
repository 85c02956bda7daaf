"""How systems reach a pursuit: normal equations formed or by columns, one or a batch, checked."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .._numerics import as_float, dot, is_concrete

Column = Callable[..., Float[Array, " D"]]
"""From the number of an atom to its column of `A`."""


class Columns(eqx.Module):
    """Columns of the symmetric matrices of a batch of systems, one of each.

    Attributes:
        matrix: one for each system, one for all, or those that `owner` deals out.
        column: a function instead.
        owner: which matrix is that of each system, if not each has its own.
    """

    matrix: Float[Array, "g D D"] | Float[Array, "D D"] | None
    column: Column | None = None
    owner: Int[Array, " v"] | None = None

    def __call__(self, atoms: Int[Array, " v"]) -> Float[Array, "v D"]:
        """Column `atoms[i]` of matrix i."""
        if self.matrix is None:
            assert self.column is not None
            return jax.vmap(self.column)(atoms)
        if self.matrix.ndim == 2:
            return self.matrix[atoms]
        return self.matrix[self._own(atoms.shape[0]), atoms]

    def entries(self, rows: Int[Array, "v r"], atoms: Int[Array, "v k"]) -> Float[Array, "v r k"]:
        """Entries at some rows and columns of each matrix, which must be there."""
        assert self.matrix is not None
        if self.matrix.ndim == 2:
            return self.matrix[rows[:, :, None], atoms[:, None, :]]
        own = self._own(rows.shape[0])[:, None, None]
        return self.matrix[own, rows[:, :, None], atoms[:, None, :]]

    def _own(self, v: int) -> Int[Array, " v"]:
        return jnp.arange(v, dtype=jnp.int32) if self.owner is None else self.owner


class System(NamedTuple):
    """A batch of systems `A w = b`."""

    columns: Columns
    b: Float[Array, "v D c"]
    diagonal: Float[Array, "v D"]
    batched: bool  # whether the caller's arrays had an axis of systems
    several: bool  # and one of right-hand sides


def system(
    A: Float[ArrayLike, "..."] | Column, b: Float[ArrayLike, "..."], diagonal: ArrayLike | None
) -> System:
    """Check the arguments of a pursuit of normal equations, and bring them to one form."""
    b = as_float(b)
    if callable(A):
        if diagonal is None:
            raise ValueError("diagonal: expected that of A, which is given by its columns")
        if b.ndim not in (1, 2):
            raise ValueError(f"b: expected shape (D,) or (D, c), got {b.shape}")
        # A pytree, so that the arrays within are traced.
        is_tree = isinstance(A, eqx.Module | jax.tree_util.Partial)
        function: Any = A if is_tree else jax.tree_util.Partial(A)
        columns, batched = Columns(None, function), False
        own = jnp.asarray(diagonal, b.dtype)
        if own.shape != b.shape[:1]:
            raise ValueError(f"diagonal: expected shape {b.shape[:1]}, got {own.shape}")
    else:
        if diagonal is not None:
            raise ValueError("diagonal: expected None with a matrix, which has its own")
        A = jnp.asarray(A, b.dtype)
        if A.ndim not in (2, 3) or A.shape[-1] != A.shape[-2]:
            raise ValueError(f"A: expected shape (D, D) or (v, D, D), got {A.shape}")
        batched = A.ndim == 3
        lead = A.shape[:-1]
        if b.shape[: len(lead)] != lead or b.ndim > len(lead) + 1:
            raise ValueError(f"b: expected shape {lead} or with one more axis, got {b.shape}")
        columns, own = Columns(A), jnp.diagonal(A, axis1=-2, axis2=-1)
    lead = 2 if batched else 1
    several = b.ndim > lead
    b = b if several else b[..., None]
    if not batched:
        b, own = b[None], own[None]
    return System(columns, b, own, batched, several)


class GramColumns(eqx.Module):
    """Columns of `X'X` without forming it."""

    X: Float[Array, "n D"]

    def __call__(self, atom: Int[Array, ""]) -> Float[Array, " D"]:
        """`X'x_j`."""
        return dot(self.X[:, atom], self.X)


def check_atoms(count: int, n_atoms: int, name: str = "max_atoms") -> int:
    """A whole number of atoms that there are."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise TypeError(f"{name}: expected a whole number, got {count!r}")
    if not 1 <= count <= n_atoms:
        raise ValueError(f"{name}: expected 1 to {n_atoms}, the atoms there are; got {count}")
    return int(count)


def check_nonnegative(name: str, value: ArrayLike) -> None:
    """Raise for a number known to be negative or NaN."""
    if is_concrete(value) and not np.all(np.asarray(value) >= 0):
        raise ValueError(f"{name}: expected a number of at least 0, got {value}")


def check_initial(
    initial: Sequence[int] | ArrayLike | None, n_atoms: int, max_atoms: int
) -> Int[Array, " i"]:
    """Atoms that come first, as an array."""
    atoms = np.zeros(0, np.int32) if initial is None else np.asarray(initial)
    if atoms.ndim != 1 or not (atoms.size == 0 or np.issubdtype(atoms.dtype, np.integer)):
        raise ValueError(f"initial: expected a vector of numbers of atoms, got {initial!r}")
    if len(atoms) > max_atoms or len(np.unique(atoms)) < len(atoms):
        raise ValueError(f"initial: expected at most {max_atoms} different atoms, got {atoms}")
    if not np.all((atoms >= 0) & (atoms < n_atoms)):
        raise ValueError(f"initial: expected atoms from 0 to {n_atoms - 1}, got {atoms}")
    return jnp.asarray(atoms, jnp.int32)
