"""The systems that pursuits solve: `A w = b`, with a matrix A or its columns, one or a batch."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .._arguments import whole_number
from .._numerics import as_array, dot, exponents, is_concrete, times_power
from .._programs import compiled
from .._repr import short_repr
from .._runtime import check_runtime
from .path import Path, unbatched

Column = Callable[..., Float[Array, " D"]]
"""A function from the number of an atom to the column of `A`."""


class Columns(eqx.Module):
    """Access to columns of the symmetric matrices of `v` systems."""

    matrix: Float[Array, "g D D"] | Float[Array, "D D"] | None  # one matrix serves all systems
    column: Column | None = None  # a function that returns columns, instead of a matrix
    owner: Int[Array, " v"] | None = None  # the index of each system's matrix; None if g = v
    exponent: Int[Array, " v"] | None = None  # entries are returned divided by 2**exponent

    def __call__(self, atoms: Int[Array, " v"]) -> Float[Array, "v D"]:
        """Return, in row i, column `atoms[i]` of the matrix of system i."""
        if self.matrix is None:
            assert self.column is not None
            columns = jax.vmap(self.column)(atoms)
        elif self.matrix.ndim == 2:
            columns = self.matrix[atoms]
        else:
            columns = self.matrix[self._owner(atoms.shape[0]), atoms]
        return self._scaled(columns)

    def of_system(self, i: Int[Array, ""], v: int) -> "Columns":
        """Return the columns of the matrix of system `i`, of `v` systems, as a batch of one."""
        exponent = None if self.exponent is None else self.exponent[i][None]
        return Columns(self.matrix, self.column, self._owner(v)[i][None], exponent)

    def scaled_by(self, exponent: Int[Array, " v"]) -> "Columns":
        """Return `Columns` that divide the entries of system i by `2**exponent[i]`."""
        return eqx.tree_at(lambda c: c.exponent, self, exponent, is_leaf=lambda x: x is None)

    def entries(self, rows: Int[Array, "v r"], atoms: Int[Array, "v k"]) -> Float[Array, "v r k"]:
        """Return the entries of each matrix at `rows` and columns `atoms`; `matrix` must be set."""
        assert self.matrix is not None
        if self.matrix.ndim == 2:
            return self._scaled(self.matrix[rows[:, :, None], atoms[:, None, :]])
        owner = self._owner(rows.shape[0])[:, None, None]
        return self._scaled(self.matrix[owner, rows[:, :, None], atoms[:, None, :]])

    def _scaled(self, values: Float[Array, "v ..."]) -> Float[Array, "v ..."]:
        if self.exponent is None:
            return values
        # A single system may return several columns.
        return times_power(values, -jnp.broadcast_to(self.exponent, values.shape[:1]))

    def _owner(self, v: int) -> Int[Array, " v"]:
        return jnp.arange(v, dtype=jnp.int32) if self.owner is None else self.owner


class Scale(NamedTuple):
    """Exponents of the powers of two by which A and b are divided, to keep squares in range."""

    A: Int[Array, " v"]
    b: Int[Array, " v"]

    __repr__ = short_repr

    def unscaled(self, path: Any) -> Any:
        """Return a `Path` or `AnglePath` in the units of the unscaled systems."""
        return rescaled(path, self.b - self.A, self.b, 2 * self.b - self.A)

    @compiled
    def unscaled_single(self, path: Any) -> Any:
        """Return the path of a single system, without the axis `v`, in the unscaled units."""
        batch = self.unscaled(type(path)(*(a[None] for a in path)))
        return type(path)(*(a[0] for a in batch))


def rescaled(
    result: Any,
    coefficients: Int[Array, " v"],
    residual_norm: Int[Array, " v"],
    explained: Int[Array, " v"],
) -> Any:
    """Multiply fields of a pursuit's result by powers of two, given the exponent of each field."""
    return result._replace(
        coefficients=times_power(result.coefficients, coefficients),
        residual_norm=times_power(result.residual_norm, residual_norm),
        explained=times_power(result.explained, explained),
    )


def scaled(
    columns: Columns, b: Float[Array, "v D c"], diagonal: Float[Array, "v D"]
) -> tuple[Columns, Float[Array, "v D c"], Float[Array, "v D"], Scale]:
    """Return `columns`, `b` and `diagonal` divided to near 1, and the exponents of the divisors."""
    scale = Scale(exponents(diagonal), exponents(b))
    return (
        columns.scaled_by(scale.A),
        times_power(b, -scale.b),
        times_power(diagonal, -scale.A),
        scale,
    )


class System(NamedTuple):
    """A batch of systems `A w = b`, divided by the powers of two in `scale`."""

    columns: Columns
    b: Float[Array, "v D c"]
    diagonal: Float[Array, "v D"]
    scale: Scale
    batched: bool  # whether the caller's arrays had an axis of systems
    several: bool  # whether the caller's arrays had an axis of right-hand sides

    __repr__ = short_repr

    def in_caller_units(self, path: Path) -> Path:
        """Return a path of these systems in the caller's units and shape."""
        return _in_caller_units(self.scale, path, self.batched, self.several)


@functools.partial(compiled, static_argnames=("batched", "several"))
def _in_caller_units(scale: Scale, path: Path, batched: bool, several: bool) -> Path:
    return unbatched(scale.unscaled(path), batched, several)


@functools.partial(compiled, static_argnames=("batched", "several"))
def _scaled_sides(
    matrix: Float[Array, "..."] | None,
    b: Float[Array, "..."],
    diagonal: Float[Array, " D"] | None,
    batched: bool,
    several: bool,
) -> tuple[Float[Array, "v D c"], Float[Array, "v D"], Scale]:
    """Return the scaled `b`, the scaled diagonals of A and the scale of a batch of systems.

    The matrices are not returned, because a program copies what it returns.
    """
    if diagonal is None:
        assert matrix is not None
        squares = jnp.diagonal(matrix, axis1=-2, axis2=-1)
    else:
        squares = diagonal
    b = b if several else b[..., None]
    b, squares = (b, squares) if batched else (b[None], squares[None])
    return scaled(Columns(None), b, squares)[1:]


def scaled_systems(
    A: Float[ArrayLike, "..."] | Column, b: Float[ArrayLike, "..."], diagonal: ArrayLike | None
) -> System:
    """Check `A`, `b` and the `diagonal` of A (None with a matrix), and return the scaled batch."""
    check_runtime()
    if callable(A):
        if diagonal is None:
            raise ValueError("diagonal: expected the diagonal of A, which is given by its columns")
        # In a pytree the arrays of the function are traced.
        is_tree = isinstance(A, eqx.Module | jax.tree_util.Partial)
        function: Any = A if is_tree else jax.tree_util.Partial(A)
        columns, batched = Columns(None, function), False
        diagonals, b = in_finer_dtype(diagonal, b)
        if b.ndim not in (1, 2):
            raise ValueError(f"b: expected shape (D,) or (D, c), got {b.shape}")
        if diagonals.shape != b.shape[:1]:
            raise ValueError(f"diagonal: expected shape {b.shape[:1]}, got {diagonals.shape}")
        column = jax.eval_shape(function, jax.ShapeDtypeStruct((), jnp.int32))
        if (column.shape, column.dtype) != (diagonals.shape, diagonals.dtype):
            raise ValueError(
                f"A: expected columns of shape {diagonals.shape} and dtype {diagonals.dtype}, as "
                f"the diagonal and b; got {column.shape} and {column.dtype}"
            )
    else:
        if diagonal is not None:
            raise ValueError("diagonal: expected None with a matrix, which has its own")
        A, b = square_system(A, b)
        columns, batched, diagonals = Columns(A), A.ndim == 3, None
    lead = 2 if batched else 1
    several = b.ndim > lead
    targets, diagonals, scale = _scaled_sides(columns.matrix, b, diagonals, batched, several)
    return System(columns.scaled_by(scale.A), targets, diagonals, scale, batched, several)


def in_finer_dtype(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    """Return both arrays in the more precise of their floating dtypes, or in the default dtype."""
    a, b = as_array(a), as_array(b)
    floating = [x.dtype for x in (a, b) if jnp.issubdtype(x.dtype, jnp.floating)]
    dtype = max(floating, key=lambda d: jnp.finfo(d).bits) if floating else jnp.result_type(float)
    return a.astype(dtype), b.astype(dtype)


def square_system(A: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    """Return `A` and `b` in one dtype; raise ValueError unless `A` is square and `b` fits."""
    A, b = in_finer_dtype(A, b)
    if A.ndim not in (2, 3) or A.shape[-1] != A.shape[-2]:
        raise ValueError(f"A: expected shape (D, D) or (v, D, D), got {A.shape}")
    _check_sides("b", b, A.shape[:-1])
    return A, b


def dictionary_system(X: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """Return `X` and `y` in one dtype; raise ValueError unless the axes of X and y fit."""
    X, y = in_finer_dtype(X, y)
    if X.ndim not in (2, 3):
        raise ValueError(f"X: expected shape (n, D) or (v, n, D), got {X.shape}")
    _check_sides("y", y, X.shape[:-1])
    return X, y


def _check_sides(name: str, sides: Array, lead: tuple[int, ...]) -> None:
    """Raise ValueError unless the right-hand sides have the shape `lead`, or one more axis."""
    if sides.shape[: len(lead)] != lead or sides.ndim > len(lead) + 1:
        raise ValueError(f"{name}: expected shape {lead} or with one more axis, got {sides.shape}")


class GramColumns(eqx.Module):
    """A function that returns columns of `X'X` without computing the whole matrix.

    The condition number of `X'X` is the square of X's.
    """

    X: Float[Array, "n D"]

    def __call__(self, atom: Int[Array, ""]) -> Float[Array, " D"]:
        """Return `X'x_j`, where j is `atom`."""
        return dot(self.X[:, atom], self.X)


def check_atoms(count: int, n_atoms: int, name: str = "max_atoms", what: str = "atoms") -> int:
    """Return `count` as an int; raise ValueError unless it is whole and from 1 to `n_atoms`."""
    return whole_number(name, count, 1, n_atoms, f"the number of {what}")


def check_nonnegative(name: str, value: ArrayLike) -> None:
    """Raise ValueError for a negative number or NaN; let numbers pass that JAX traces."""
    if is_concrete(value) and not np.all(np.asarray(value) >= 0):
        raise ValueError(f"{name}: expected a number of at least 0, got {value}")


def check_initial(
    initial: Sequence[int] | ArrayLike | None, n_atoms: int, max_atoms: int
) -> Int[Array, " i"]:
    """Return `initial` as an array; raise ValueError unless its atoms exist, differ and fit."""
    atoms = np.zeros(0, np.int32) if initial is None else np.asarray(initial)
    if atoms.ndim != 1 or not (atoms.size == 0 or np.issubdtype(atoms.dtype, np.integer)):
        raise ValueError(f"initial: expected a vector of numbers of atoms, got {initial!r}")
    if len(atoms) > max_atoms or len(np.unique(atoms)) < len(atoms):
        raise ValueError(f"initial: expected at most {max_atoms} different atoms, got {atoms}")
    if not np.all((atoms >= 0) & (atoms < n_atoms)):
        raise ValueError(f"initial: expected atoms from 0 to {n_atoms - 1}, got {atoms}")
    return jnp.asarray(atoms, jnp.int32)
