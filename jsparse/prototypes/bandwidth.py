"""Bandwidths for density and entropy estimation, one for each column."""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import whole_number
from .._numerics import epsilon, is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE
from .._types import CountLike, Scalar
from ._validate import check_table
from .entropy_terms import Functional, binned, exact

# Numbers of the rules that give a bandwidth.
PLUG_IN = 0
CONSTANT = 1
TIES = 2
UNRESOLVED = 3
GIVEN = 4

RULES = {
    PLUG_IN: "the solve-the-equation plug-in.",
    CONSTANT: "0: the column is constant.",
    TIES: (
        "the normal reference rule: most rows that are close on the scale of the plug-in are ties, "
        "so there is no density. The column is binary, categorical or coarsely rounded, or its "
        "outliers are so extreme that all other rows fall into a few bins (method='exact' has no "
        "bins, but outliers widen its bandwidth too)."
    ),
    UNRESOLVED: (
        "the normal reference rule: the plug-in equation has no solution on scales that can be "
        "resolved. Outliers may be extreme."
    ),
    GIVEN: "the caller's bandwidth.",
}

Method = Literal["auto", "exact", "binned"]
Spread = Literal["std", "robust"]

_EXACT_ROWS = 512  # largest number of rows for which "auto" computes double sums, in milliseconds
_GRID = 2**15  # number of bins
_STEP = float(np.log(0.8))  # of log h, in the descent to the largest root
_STEPS = 64  # limit of descending steps
_MARGIN = 0.01  # of log h; bins change it by some 1e-4
_ROOT_STEPS = 100  # limit of steps of false position
_RESOLVED = 3.0  # bandwidth in bins below which frequencies beyond the grid matter


class Bandwidth(NamedTuple):
    """One bandwidth for each column, and the rule that gave it.

    Attributes:
        h: bandwidths in the units of the columns, 0 where a column is constant, shape `d`.
        rule: `PLUG_IN`, `CONSTANT` or `GIVEN`; or `TIES` or `UNRESOLVED` if the normal reference
            rule replaces the plug-in, shape `d`. `RULES[rule]` is the rule in words.
        status: `CONVERGED`, `EXHAUSTED` if the plug-in took too many steps (the rule is then
            `UNRESOLVED`), or `NOT_FINITE` if the column is not finite, shape `d`.
    """

    h: Float[Array, " d"]
    rule: Int[Array, " d"]
    status: Int[Array, " d"]

    __repr__ = short_repr


def normal_reference_bandwidth(
    X: Float[Array, "n d"], *, spread: Spread = "std"
) -> Float[Array, " d"]:
    """Return `h = (4/3)^(1/5) sigma n^(-1/5)` of each column, the best for a normal density.

    This is the univariate rule (Silverman 1986, eq. 3.28, with the exact constant), on which the
    plug-in improves. It is not the multivariate `(4/(d+2))^(1/(d+4)) n^(-1/(d+4))`.

    Args:
        X: inputs, shape `n d`.
        spread: the estimate of sigma: "std", the sample standard deviation (divisor n - 1), or
            "robust", the smaller of "std" and, unless it is 0, the interquartile range / 1.349.

    Returns:
        Bandwidths, shape `d`, in the units of the columns; 0 where a column is constant. Under
        differentiation they are constants.

    Raises:
        ValueError: if `X` has no rows or (outside `jit`) is not finite, or for an unknown `spread`.
    """
    return _normal_reference(check_table(X), spread)


def plug_in_bandwidth(
    X: Float[Array, "n d"],
    *,
    method: Method = "auto",
    spread: Spread = "std",
    n_rows: CountLike | None = None,
    n_columns: CountLike | None = None,
) -> Bandwidth:
    """Compute the solve-the-equation plug-in bandwidth of each column (Sheather and Jones 1991).

    The method is De Brabanter 2010, Algorithm 2, eq. 13-17, with a Gaussian kernel, whose mu_2 is
    1. Eq. 13 and 14 are read as in Wand and Jones 1995: mu_2 is the integral of `x^2 kappa(x)`, the
    sum has the factor `1 / (n^2 h^(r+1))` with one h inside and outside, and the paper's R(f^(r))
    is `psi_r`, the integral of `f^(r) f`.

    If there are several solutions, the largest is taken, as usual. Small solutions are artefacts in
    a column with few different values. If more than half of the pairs of rows within a pilot
    bandwidth (weighted by the Gaussian) are exact ties, the column gets the normal reference rule,
    and `rule` is `TIES`.

    Columns are centred and scaled first. The result is therefore scale equivariant, and invariant
    to shifts and the order of rows, in float32 and in float64.

    Args:
        X: inputs, shape `n d`.
        method: "exact", the double sums in row blocks, `O(n^2)` time; "binned", linear binning on
            2^15 bins and an FFT, `O(n)` time, equal to "exact" to about 1e-4 or better;
            "auto", exact up to 512 rows.
        spread: the estimate of sigma in step 1: "std" or "robust", which sorts every column; see
            `normal_reference_bandwidth`.
        n_rows: number of rows that count; later rows are padding, so that tables of similar size
            share programs. By default all.
        n_columns: number of columns that count; later columns are constant padding. By default all.

    Returns:
        `Bandwidth`. Under differentiation it is constant.

    Raises:
        ValueError: if `X` has no rows, `method` or `spread` is unknown, `n_rows` is not from 1 to
            the rows of X, or (outside `jit`) `X` is not finite.
    """
    if method not in ("auto", "exact", "binned"):
        raise ValueError(f"method: expected 'auto', 'exact' or 'binned', got {method!r}")
    X = check_table(X)
    use_exact = method == "exact" or (method == "auto" and counts_pairs(X.shape[0]))
    rows: Any = len(X) if n_rows is None else n_rows
    if is_concrete(rows):
        rows = np.int32(whole_number("n_rows", rows, 1, len(X), "the rows of X"))
    columns = np.int32(X.shape[1]) if n_columns is None else n_columns
    return _plug_in(X, rows, columns, use_exact, spread)


def counts_pairs(rows: int) -> bool:
    """Return whether the method "auto" computes the exact double sums for this number of rows."""
    return rows <= _EXACT_ROWS


class _Column(NamedTuple):
    """A column in units of its standard deviation."""

    z: Float[Array, " n"]  # (x - mean) / unit; padding repeats the first row
    share: Float[Array, " n"]  # 1 / n; 0 for padding
    n: Scalar
    unit: Scalar  # the sample standard deviation, 0 where constant
    sigma: Scalar  # the estimate of sigma, in units


def _unit_column(x: Float[Array, " n"], n_rows: Int[Array, ""], spread: Spread) -> _Column:
    """Centre a column and scale it to unit variance, without overflow or cancellation."""
    if spread not in ("std", "robust"):
        raise ValueError(f"spread: expected 'std' or 'robust', got {spread!r}")
    n, present = n_rows.astype(x.dtype), jnp.arange(x.shape[0], dtype=jnp.int32) < n_rows
    share = present.astype(x.dtype) / n
    x = jnp.where(present, x, x[0])
    deviations = x - x[0]
    largest_deviation = jnp.max(jnp.abs(deviations))
    # Values that differ only by rounding count as equal. NaN does not count as constant.
    constant = largest_deviation <= 2 * epsilon(x.dtype) * jnp.max(jnp.abs(x))
    z = deviations / jnp.where(constant, 1, largest_deviation)
    z = z - jnp.sum(share * z)
    z = z - jnp.sum(share * z)  # subtract the mean that rounding left
    squares = jnp.sum(jnp.where(present, z * z, 0))
    deviation = jnp.where(constant, 1, jnp.sqrt(squares / jnp.maximum(n - 1, 1)))
    z = z / deviation
    sigma = jnp.ones((), x.dtype)
    if spread == "robust":
        quarters = jnp.asarray([0.25, 0.75], x.dtype)
        quartiles = _quantiles(jnp.where(present, z, jnp.inf), n, quarters)
        robust = (quartiles[1] - quartiles[0]) / 1.349
        sigma = jnp.where(robust > 0, jnp.minimum(robust, 1), 1)
    return _Column(z, share, n, jnp.where(constant, 0, largest_deviation * deviation), sigma)


def _quantiles(z: Float[Array, " n"], n: Scalar, q: Float[Array, " q"]) -> Float[Array, " q"]:
    """Return the quantiles `q` of the `n` smallest values of `z`, as `jnp.quantile` does."""
    position, ordered = q * (n - 1), jnp.sort(z)
    below = jnp.floor(position).astype(jnp.int32)
    above = jnp.minimum(below + 1, (n - 1).astype(jnp.int32))
    return ordered[below] + (position - jnp.floor(position)) * (ordered[above] - ordered[below])


def _reference(n: Scalar) -> Scalar:
    return float((4 / 3) ** 0.2) * n**-0.2


@functools.partial(compiled, static_argnames="spread")
def _normal_reference(X: Float[Array, "n d"], spread: Spread) -> Float[Array, " d"]:
    n = jnp.asarray(X.shape[0], jnp.int32)

    def bandwidth(x):
        column = _unit_column(x, n, spread)
        return _reference(column.n) * column.sigma * column.unit

    # The loop over columns keeps one column in working memory.
    return jax.lax.map(bandwidth, jax.lax.stop_gradient(X).T)


@functools.partial(compiled, static_argnames=("use_exact", "spread"))
def _plug_in(
    X: Float[Array, "n d"],
    n_rows: Int[Array, ""],
    n_columns: Int[Array, ""],
    use_exact: bool,
    spread: Spread,
) -> Bandwidth:
    """Return the bandwidths of the first `n_columns` columns; later columns count as constant."""
    columns = jax.lax.stop_gradient(X).T

    def of_column(i: Array, bandwidths: Bandwidth) -> Bandwidth:
        column = _unit_column(columns[i], n_rows, spread)
        new = _plug_in_column(column, use_exact)
        return jax.tree.map(lambda a, b: a.at[i].set(b), bandwidths, new)

    rule, status = (jnp.full(len(columns), code, jnp.int32) for code in (CONSTANT, CONVERGED))
    padding = Bandwidth(jnp.zeros(len(columns), X.dtype), rule, status)
    return jax.lax.fori_loop(0, n_columns, of_column, padding)


def _plug_in_column(column: _Column, use_exact: bool) -> Bandwidth:
    """Return the bandwidth of one column, in the units of the column; all fields are scalars."""
    z, share, sigma, n = column.z, column.share, column.sigma, column.n
    # Eq. 16 and 17 give h_1 and h_2 of a normal density.
    h1 = float((16 * np.sqrt(2) / 5) ** (1 / 7)) * n ** (-1 / 7) * sigma
    h2 = float((32 * np.sqrt(2) / 7) ** (1 / 9)) * n ** (-1 / 9) * sigma
    if use_exact:
        functional, ties = exact(z, share)
        finest = jnp.zeros((), z.dtype)
    else:
        functional, ties, width = binned(z, share, _GRID, margin=10 * n ** (-1 / 9))
        finest = _RESOLVED * width
    psi4, psi6 = functional(4, h1), functional(6, h2)
    # A is defined by h_AMSE = A h^(5/7).
    log_a = (jnp.log(6 * float(np.sqrt(2)) * psi4 / -psi6) - 5 * jnp.log(h1) + 7 * jnp.log(h2)) / 7
    log_h, has_root, exhausted = _solve(functional, log_a, n, finest)
    pilot = _pilot(log_h, log_a)
    close_pairs = float(np.sqrt(2 * np.pi)) * functional(0, pilot) - 1 / n
    tied = ties > 0.5 * close_pairs
    rule = jnp.where(tied, TIES, jnp.where(has_root, PLUG_IN, UNRESOLVED))
    h = jnp.where(rule == PLUG_IN, jnp.exp(log_h), _reference(n) * sigma)
    constant = column.unit == 0
    finite = jnp.isfinite(column.unit)
    h = jnp.where(constant, 0, jnp.where(finite, h * column.unit, jnp.nan))
    rule = jnp.where(constant, CONSTANT, rule).astype(jnp.int32)
    status = jnp.where((rule == UNRESOLVED) & exhausted, EXHAUSTED, CONVERGED)
    return Bandwidth(h, rule, jnp.where(finite, status, NOT_FINITE).astype(jnp.int32))


def _pilot(log_h: Float[Array, "*k"], log_a: Scalar) -> Float[Array, "*k"]:
    return jnp.exp(log_a + 5 / 7 * log_h)


def _solve(
    functional: Functional, log_a: Scalar, n: Scalar, finest: Scalar
) -> tuple[Scalar, Array, Array]:
    """Return log h at the largest root, whether it exists, and whether steps ran out.

    The equation `h = (2 sqrt(pi) n psi_4(g))^(-1/5)` with the pilot bandwidth `g = A h^(5/7)` (De
    Brabanter 2010, eq. 15) is written as excess(log h) = 0. No pilot below `finest` is tried. The
    excess is positive at a large h. On a grid that starts at four times the bandwidth of maximal
    smoothing, h descends by factors of 0.8 until the excess changes its sign. Then false position
    finds log h to eps^(2/3), far below the statistical error.

    For a density of variance v the optimal bandwidth is at most `1.144 v^(1/2) n^(-1/5)`, the
    bandwidth of maximal smoothing (Terrell 1990). `psi_4(g)` is the integral of the squared second
    derivative of a density estimate of variance at most `1 + g^2 / 2`. Above the bound for this
    variance the excess is positive, so the descent skips these h.
    """
    dtype = log_a.dtype
    offset = float(np.log(2 * np.sqrt(np.pi))) + jnp.log(n)

    def excess(log_h: Scalar) -> Scalar:
        psi4 = functional(4, _pilot(log_h, log_a))
        return 2 / 7 * log_h - log_a + 0.2 * (offset + jnp.log(psi4))

    log_smoothest = float(np.log(1.144)) - 0.2 * jnp.log(n)
    log_grid = log_smoothest + float(np.log(4)) + _STEP * jnp.arange(_STEPS, dtype=dtype)
    pilots = _pilot(log_grid, log_a)
    above = log_grid > log_smoothest + 0.5 * jnp.log1p(0.5 * jnp.square(pilots)) + _MARGIN
    reached = (pilots >= finest).at[0].set(True)
    n_skipped = jnp.argmin(above & reached).astype(jnp.int32)

    def descending(carry):
        log_h, value, steps = carry
        return (value > 0) & (_pilot(log_h + _STEP, log_a) >= finest) & (steps < _STEPS)

    def descend(carry):
        log_h, _, steps = carry
        return log_h + _STEP, excess(log_h + _STEP), steps + 1

    first = jnp.maximum(n_skipped - 1, 0)
    value = jax.lax.cond(n_skipped > 0, lambda: jnp.ones((), dtype), lambda: excess(log_grid[0]))
    start = log_grid[first], value, first
    log_h, value, steps = jax.lax.while_loop(descending, descend, start)
    has_root = (value <= 0) & (steps > 0)
    tolerance = float(epsilon(dtype) ** (2 / 3))
    root, last_step = _false_position(excess, (log_h, log_h - _STEP), value, tolerance)
    converged = has_root & (last_step <= tolerance)
    exhausted = (has_root & ~converged) | ((value > 0) & (steps >= _STEPS))
    return jnp.where(converged, root, log_h), converged, exhausted


def _false_position(
    function: Callable[[Scalar], Scalar],
    bracket: tuple[Scalar, Scalar],
    value: Scalar,
    tolerance: float,
) -> tuple[Scalar, Scalar]:
    """Return the root of a function, and the length of the last step.

    The last step is longer than `tolerance` only at the limit of steps. The function must be at
    most 0 at the first end of the bracket, where it is `value`, and positive at the second end. If
    `value` is positive, return the first end, and 0. The method is false position with the Illinois
    modification (Dowell and Jarratt 1971): the value at an end that stays twice is halved.
    """

    def unfinished(carry):
        _, _, last_step, steps = carry
        return (last_step > tolerance) & (steps < _ROOT_STEPS)

    def step(carry):
        (a, f_a), (b, f_b), _, steps = carry  # b is the newest point
        new = b - f_b * (b - a) / jnp.where(f_b == f_a, 1, f_b - f_a)
        f_new = function(new)
        crosses = (f_new > 0) != (f_b > 0)
        a = jnp.where(crosses, b, a)
        f_a = jnp.where(crosses, f_b, f_a / 2)
        return (a, f_a), (new, f_new), jnp.abs(new - b), steps + 1

    low, high = bracket
    last_step = jnp.where(value > 0, 0, jnp.inf).astype(low.dtype)  # without a bracket take no step
    start = ((high, function(high)), (low, value), last_step, jnp.int32(0))
    _, (root, _), last_step, _ = jax.lax.while_loop(unfinished, step, start)
    return root, last_step
