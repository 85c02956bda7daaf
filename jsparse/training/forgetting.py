"""Forgetting: rows of a stream lose their weight with age, or leave a window of the last rows."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import real, whole_number
from .._programs import compiled
from .._repr import short_repr
from ..normal_equations import NormalEquations

# A row whose weight has been multiplied by a smaller factor is dropped. In float32 its weight could
# underflow to 0; in float64 its share is 14 orders of magnitude below rounding.
_LEAST_FACTOR = 2.0**-100
# The largest rounding error of the sums over a window, relative to their energy, in units of eps. A
# lower limit would recompute the sums more often for little accuracy. A higher limit would cost
# more than three of the seven digits of float32.
_LIMIT = 1024


class Forgetting(NamedTuple):
    """How rows of earlier batches are forgotten. The default forgets nothing."""

    factor: float = 1.0  # of the weights of all earlier rows, for each batch
    half_life: float = math.inf  # number of later rows after which a row has half its weight
    window: int | None = None  # number of last rows that have any weight

    __repr__ = short_repr

    def row_weights(self, weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the weights of a batch's rows after the forgetting within the batch.

        The age of a row is the number of later rows with weight.
        """
        present = weights > 0
        age = np.cumsum(present[::-1])[::-1] - present
        factors = np.exp2(-age / self.half_life)
        forgotten = factors < _LEAST_FACTOR
        if self.window is not None:
            forgotten |= age >= self.window
        return np.where(forgotten, 0.0, weights * factors)

    def factor_of_earlier(self, n: int) -> float:
        """Return the factor by which `n` later rows, of one batch, reduce all earlier weights."""
        return self.factor * 2.0 ** (-n / self.half_life)


def forgetting(forget: Any, half_life: Any, window: Any) -> Forgetting:
    """Return the `Forgetting` that the arguments of `partial_fit` state.

    Each is None unless it is stated. For several, or one out of range, raise a `ValueError`.
    """
    stated = {"forget": forget, "half_life": half_life, "window": window}
    names = [name for name, value in stated.items() if value is not None]
    if len(names) > 1:
        raise ValueError(
            f"{names[0]}: expected at most one of forget, half_life and window, got "
            + ", ".join(f"{name}={stated[name]!r}" for name in names)
        )
    if forget is not None:
        factor = real("forget", forget, 0.0)
        if factor > 1:
            raise ValueError(f"forget: expected a factor from 0 to 1, got {forget!r}")
        return Forgetting(factor=factor)
    if half_life is not None:
        return Forgetting(half_life=real("half_life", half_life, 0.0, above=True))
    return Forgetting(window=None if window is None else whole_number("window", window, 1))


class HostRows(NamedTuple):
    """Rows with weight in the units of the machine, as NumPy arrays."""

    X: Float[np.ndarray, "n d"]  # standardised
    y: Float[np.ndarray, " n *c"] | Int[np.ndarray, " n"]  # class numbers if there is a code
    weights: Float[np.ndarray, " n"]

    __repr__ = short_repr

    def part(self, rows: slice) -> "HostRows":
        """Return the rows of a slice."""
        return HostRows(*(a[rows] for a in self))


class Window(NamedTuple):
    """The last rows of a stream, and the rounding of the sums over them.

    The energies of sums are their traces, weights and squared targets, see `_energies`. Each
    addition or subtraction rounds the sums by about eps times their energies. When these rounding
    errors together exceed `_LIMIT` times eps times the present energies, the rows of the window
    are summed again.
    """

    rows: HostRows
    size: int  # the largest number of rows
    rounding: Float[np.ndarray, " e"]  # accumulated rounding errors of the energies, divided by eps
    n_resummed: int = 0  # number of times that the rows were summed again

    __repr__ = short_repr

    def moved(
        self,
        equations: NormalEquations,
        entering: HostRows,
        sum_of: Callable[[HostRows], NormalEquations],
    ) -> tuple["Window", NormalEquations]:
        """Return the window and its sums after rows have entered and surplus rows have left.

        `equations` are the sums over the rows of the window; `sum_of` returns the sums over rows.
        """
        rows = HostRows(*map(np.concatenate, zip(self.rows, entering, strict=True)))
        equations = equations + sum_of(entering)
        energies = np.asarray(_energies(equations))
        rounding = np.asarray(self.rounding) + energies
        excess = max(len(rows.weights) - self.size, 0)
        staying = rows.part(slice(excess, None))
        if excess > 0:
            equations = equations - sum_of(rows.part(slice(excess)))
            energies = np.asarray(_energies(equations))
            rounding = rounding + energies
        if np.all(rounding <= _LIMIT * energies):  # False for NaN, so the sums are recomputed
            return self._replace(rows=staying, rounding=rounding), equations
        n_resummed = self.n_resummed + 1
        return Window(staying, self.size, np.zeros_like(rounding), n_resummed), sum_of(staying)


def new_window(rows: HostRows, size: int, equations: NormalEquations) -> Window:
    """Return a window of at most `size` rows that begins with `rows`; `equations` sum them."""
    return Window(rows, size, np.zeros_like(np.asarray(_energies(equations))))


@compiled
def _energies(equations: NormalEquations) -> Float[Array, " e"]:
    """Return a vector of the Gram matrix's trace, the weight, and each target's sum of squares.

    By the Cauchy-Schwarz inequality they bound all other sums. If the sums have an axis of classes,
    each class has separate energies.
    """
    traces = jnp.trace(equations.gram, axis1=-2, axis2=-1)
    parts = traces, equations.weight_sum, equations.target_square
    return jnp.concatenate([part.reshape(-1) for part in parts])


@compiled
def scaled(equations: NormalEquations, factor: Float[Array, ""]) -> NormalEquations:
    """Return the sums over rows whose weights are multiplied by a factor.

    If the weight of a class is nearly the smallest positive number, its sums become 0, as products
    with them would underflow.
    """
    weight = equations.weight_sum * factor
    info = jnp.finfo(weight.dtype)
    present = weight > float(info.tiny) / float(info.eps)

    def times_factor(a: Float[Array, "..."]) -> Float[Array, "..."]:
        mask = present.reshape(present.shape + (1,) * (a.ndim - present.ndim))
        return jnp.where(mask, a * factor, 0)

    return jax.tree.map(times_factor, equations)
