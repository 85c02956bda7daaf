"""Active selection: prototypes of maximal quadratic Renyi entropy."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .._arguments import as_key, whole_number
from .._blocks import block_shape, capacity, padded, to_blocks
from .._numerics import as_array, as_float, epsilon, is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, RUNNING
from .._types import Key, KeyLike, ScalarLike
from ._validate import check_count, check_table, positive_weights
from .bandwidth import GIVEN, Bandwidth, plug_in_bandwidth
from .uniform import Draws, draws_of, encode, first_draw

# Number of points tried in a step. Up to 32 the time of a step grows less than its gain of entropy,
# and then in proportion (measured on a CPU, m = 200 to 1000).
CANDIDATES = 32
MOST_STEPS = 512  # in a sweep
# Number of kernel values in a block when the sums are recomputed.
_BLOCK = 2**20


class RenyiState(NamedTuple):
    """The state of the selection, without `X`; its size does not grow with n.

    Symbols of De Brabanter 2010, Algorithm 1.
    """

    key: Key  # key of the run; sweep s draws from fold_in(key, s)
    indices: Int[Array, " m"]  # rows of X in the working set W_m; -1 for an empty slot
    points: Float[Array, "m d"]  # the rows as (x - centre) * scale
    codes: Int[Array, " m"]  # strata of the rows; a slot keeps its stratum
    sums: Float[Array, " m"]  # kernel sums between a point and the other points of its stratum
    size: Float[Array, ""]  # number of slots that are not empty
    entropy: Float[Array, ""]  # eq. 12, from recomputed sums
    centre: Float[Array, " d"]
    scale: Float[Array, " d"]  # 1 / (2 h), so that the kernel is exp(-|.|^2); 0 where h is 0
    normaliser: Float[Array, ""]  # log of the Gaussian constant, (4 pi)^(-d/2) / |D|
    tolerance: Float[Array, ""]
    accepted: Int[Array, ""]  # number of swaps
    trials: Int[Array, ""]  # number of trials X^+
    max_trials: Int[Array, ""]
    sweeps: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


class RenyiResult(NamedTuple):
    """Selected rows, with diagnostics of the selection.

    Attributes:
        indices: rows of X, all different, shape `m`.
        entropy: quadratic Renyi entropy of the rows, scalar.
        bandwidth: the bandwidths and their rules.
        accepted: number of swaps.
        trials: number of points tried.
        status: `CONVERGED`, `EXHAUSTED` at the limit of trials, or `NOT_FINITE`.
    """

    indices: Int[Array, " m"]
    entropy: Float[Array, ""]
    bandwidth: Bandwidth
    accepted: Int[Array, ""]
    trials: Int[Array, ""]
    status: Int[Array, ""]

    __repr__ = short_repr


def renyi(
    key: KeyLike,
    X: Float[Array, "n d"],
    n_prototypes: int,
    *,
    bandwidth: Bandwidth | Float[Array, " d"] | None = None,
    labels: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    candidates: int = CANDIDATES,
    tolerance: ScalarLike = 1e-3,
    max_trials: int | None = None,
    n_rows: int | None = None,
) -> RenyiResult:
    """Choose `m` rows of `X` of high quadratic Renyi entropy (De Brabanter 2010, Algorithm 1).

    The selection starts from a random working set, and swaps its points for other rows if that
    raises the entropy; see `step`. Points in crowded regions drop out, repeated rows first. With
    plug-in bandwidths in ten or more columns, nearly all kernel values between rows are 0 and the
    entropy starts at its upper bound. The selection then only avoids near-duplicates. Larger
    bandwidths spread the prototypes.

    Pure in (key, X, bandwidth), and `vmap` over keys works. Invariant to shifts and, together with
    the bandwidth, to scales of the columns. The result is discrete, so it is not differentiable.

    Args:
        key: random key of the run.
        X: inputs, shape `n d`.
        n_prototypes: number of prototypes `m`.
        bandwidth: h, the diagonal of D, shape `d`, in the units of the columns. A column with h = 0
            is left out. By default `plug_in_bandwidth` of the rows with weight; `bandwidth.rule` in
            the result shows the columns with a fallback.
        labels: class of every row, of any type, shape `n`, not traced. Every class then gets its
            share of the prototypes (`allocate`), and swaps stay within a class. The entropy is the
            entropy of the joint density of input and class, so each class spreads separately.
        weights: row weights, shape `n`, not traced. Rows are tried with probability proportional to
            their weights, and classes get shares of the weight. Rows of weight 0 are never chosen.
        candidates: number of points tried in one step; 1 follows Algorithm 1 most closely.
        tolerance: stop when a sweep raises the entropy by at most this number of nats, which does
            not depend on the units of X.
        max_trials: limit of points tried, by default 400 m, rounded up to whole sweeps.
        n_rows: number of rows of X that count, equal to the number of labels and weights; later
            rows are padding, so that tables of similar size share programs. By default all.

    Raises:
        ValueError: unless m is from 1 (or the number of classes) to the number of rows with weight,
            the shapes agree, the limits are positive, weights and tolerance are not negative, and
            (outside `jit`) X is finite and the bandwidths finite and >= 0.
    """
    X = check_table(X)
    rows = X.shape[0]
    n = rows if n_rows is None else whole_number("n_rows", n_rows, 1, rows, "the rows of X")
    key = as_key(key)
    m, candidates = check_count(n_prototypes, n), whole_number("candidates", candidates, 1)
    max_trials = None if max_trials is None else whole_number("max_trials", max_trials, 1)
    if is_concrete(tolerance) and not np.asarray(tolerance) >= 0:
        raise ValueError(f"tolerance: expected at least 0, got {tolerance}")
    w = None if weights is None else positive_weights(weights, n)
    resolved = _bandwidth(bandwidth, *_present(X, n, w))
    codes = np.zeros(n, np.int32) if labels is None else encode(labels)
    if len(codes) != n:
        raise ValueError(f"labels: expected shape ({n},), one per row of X, got {codes.shape}")
    draws = draws_of(codes, m, rows, w, stratify=labels is not None)
    indices, key_run = _start(key, draws, m)
    state = _run(key_run, X, indices, resolved.h, draws, tolerance, max_trials, candidates)
    return RenyiResult(
        state.indices, state.entropy, resolved, state.accepted, state.trials, state.status
    )


def select(
    key: Key,
    X: Float[Array, "n d"],
    draws: Draws,
    m: int,
    count: Int[Array, ""],
    n_columns: Int[Array, ""],
) -> tuple[Int[Array, " m"], Int[Array, ""]]:
    """Return the numbers of the rows that `renyi` chooses by default settings, and the stop code.

    Pure in all arguments but `m`: `jit` and `vmap` work.

    Args:
        key: random key of the run.
        X: inputs, shape `n d`.
        draws: the rows to choose from, see `draws_of`.
        m: the capacity of the working set (static).
        count: the number of prototypes; later slots hold -1.
        n_columns: the number of columns that are not padding.
    """
    bandwidth = plug_in_bandwidth(X, n_rows=draws.n_rows, n_columns=n_columns)
    indices, key_run = _start(key, draws, m)
    indices = jnp.where(jnp.arange(m, dtype=jnp.int32) < count, indices, -1)
    state = _run(key_run, X, indices, bandwidth.h, draws, 1e-3, None, CANDIDATES)
    worst = jnp.max(bandwidth.status, initial=CONVERGED)
    return state.indices, jnp.maximum(state.status, worst).astype(jnp.int32)


@compiled
def init(
    key: Key,
    X: Float[Array, "n d"],
    indices: Int[Array, " m"],
    h: Float[Array, " d"],
    codes: Int[Array, " n"],
    *,
    tolerance: ScalarLike = 1e-3,
    max_trials: int | Int[Array, ""] | None = None,
) -> RenyiState:
    """Return the state before the first swap.

    `indices` is the first working set, of different rows. An index of -1 is an empty slot, so that
    working sets of similar size share a compiled program. A bandwidth `h` of 0 leaves a column out.
    `codes` is the stratum of every row, all 0 without strata. For the other arguments see `renyi`.
    """
    filled = indices >= 0
    size = jnp.sum(filled, dtype=X.dtype)
    if max_trials is None:
        max_trials = 400 * jnp.sum(filled, dtype=jnp.int32)
    h = h.astype(X.dtype)
    valid = h > 0
    width = jnp.where(valid, h, 1)
    centre = jnp.sum(jnp.where(filled[:, None], X[indices], 0), axis=0) / size
    scale = jnp.where(valid, 0.5 / width, 0)
    points = (X[indices] - centre[None]) * scale[None]
    log_constant = jnp.where(valid, -jnp.log(width) - float(np.log(4 * np.pi) / 2), 0)
    zero = jnp.zeros((), jnp.int32)
    # Each empty slot is alone in a stratum, so that no kernel value and no swap involves it.
    empty = -2 - jnp.arange(indices.shape[0], dtype=jnp.int32)
    state = RenyiState(
        key=key,
        indices=indices.astype(jnp.int32),
        points=points,
        codes=jnp.where(filled, codes[indices], empty).astype(jnp.int32),
        sums=jnp.zeros(indices.shape, X.dtype),
        size=size,
        entropy=jnp.zeros((), X.dtype),
        centre=centre,
        scale=scale,
        normaliser=jnp.sum(log_constant),
        tolerance=jnp.asarray(tolerance, X.dtype),
        accepted=zero,
        trials=zero,
        max_trials=jnp.asarray(max_trials, jnp.int32),
        sweeps=zero,
        status=zero,
    )
    state = _with_sums(state)
    failed = ~jnp.isfinite(state.entropy)
    return state._replace(status=jnp.where(failed, NOT_FINITE, RUNNING).astype(jnp.int32))


@functools.partial(compiled, static_argnames="candidates")
def step(
    state: RenyiState,
    X: Float[Array, "n d"],
    codes: Int[Array, " n"],
    cumulative: Float[Array, " n"] | None = None,
    n_rows: Int[Array, ""] | None = None,
    *,
    candidates: int = CANDIDATES,
) -> RenyiState:
    """Run one sweep: m/4 steps (8 to 512) of `candidates` trials each, then the stopping rule.

    De Brabanter 2010, Algorithm 1, steps 2-9. A step draws rows X^+ at random, and considers
    swaps with points X^* of the working set in one stratum with X^+. It makes the swap that raises
    the entropy most, if any does.

    The paper draws X^* at random too. But the kernel row of X^+, which costs O(m), gives the gain
    of its swap with *every* X^*. The entropy depends on `sum_kl kappa(X_k - X_l)`. Given the row
    sums of the working set, a swap changes this sum by twice `sum_l kappa(X^+ - X_l) - kappa(X^+ -
    X^*) - sums[X^*]`. The selection reaches the entropy of random pairs in a fraction of the
    time. A draw that is already in the working set is a void trial.

    Each swap updates the sums by one more kernel row, the row of X^*. After every sweep the sums
    are recomputed by blocks of rows, so rounding does not accumulate and the entropy is exact.

    Step 9: stop when a sweep raises the entropy by at most `tolerance`. A swap must raise it by
    more than `tolerance` divided by the number of steps.

    The first `n_rows` rows are drawn with equal probability. If there is `cumulative`, the share of
    the weight up to each row, rows are drawn in proportion to their weights instead.
    """
    n = X.shape[0] if n_rows is None else n_rows
    most = min(max(len(state.indices) // 4, 8), MOST_STEPS)
    steps = _steps_in_sweep(state.size).astype(jnp.int32)
    key = jax.random.fold_in(state.key, state.sweeps)
    # The first numbers of a larger draw are the numbers of a smaller draw.
    if cumulative is None:
        draws = jax.random.randint(key, (most, candidates), 0, n, jnp.int32)
    else:
        # The first row whose cumulative weight exceeds a uniform number never has weight 0.
        levels = jax.random.uniform(key, (most, candidates), jnp.float32)
        draws = jnp.searchsorted(cumulative, levels, side="right").astype(jnp.int32)
    entropy_before = state.entropy
    state = jax.lax.fori_loop(0, steps, lambda t, s: _swap(s, X, codes, draws[t]), state)
    state = _with_sums(state)
    trials = state.trials + steps * candidates
    status = jnp.where(trials >= state.max_trials, EXHAUSTED, RUNNING)
    status = jnp.where(state.entropy - entropy_before <= state.tolerance, CONVERGED, status)
    status = jnp.where(jnp.isfinite(state.entropy), status, NOT_FINITE).astype(jnp.int32)
    return state._replace(trials=trials, sweeps=state.sweeps + 1, status=status)


@functools.partial(compiled, static_argnames="candidates")
def _run(
    key: Key,
    X: Float[Array, "n d"],
    indices: Int[Array, " m"],
    h: Float[Array, " d"],
    draws: Draws,
    tolerance: ScalarLike,
    max_trials: int | Int[Array, ""] | None,
    candidates: int,
) -> RenyiState:
    codes = draws.codes
    return jax.lax.while_loop(
        lambda state: state.status == RUNNING,
        lambda state: step(state, X, codes, draws.cumulative, draws.n_rows, candidates=candidates),
        init(key, X, indices, h, codes, tolerance=tolerance, max_trials=max_trials),
    )


def _steps_in_sweep(m: Float[Array, ""]) -> Float[Array, ""]:
    """Return the number of steps, about `m / 4`; recomputing sums then costs a tenth of a sweep."""
    return jnp.clip(jnp.floor(m / 4), 8, MOST_STEPS)


def _swap(
    state: RenyiState, X: Float[Array, "n d"], codes: Int[Array, " n"], draws: Int[Array, " b"]
) -> RenyiState:
    """Swap a point for the row of `draws` that raises the entropy most, if it raises it enough."""
    points, sums = state.points, state.sums
    new_points = (X[draws] - state.centre[None]) * state.scale[None]
    same_stratum = codes[draws][:, None] == state.codes[None]
    kernel_rows = _kernel(new_points, points, same_stratum)
    totals = jnp.sum(kernel_rows, axis=1)
    member = jnp.any(draws[:, None] == state.indices[None], axis=1)
    # the sums that vanish with X^*, if X^+ replaces it
    saved_sums = jnp.where(same_stratum, kernel_rows + sums[None], -jnp.inf)
    gains = jnp.where(member, -jnp.inf, jnp.max(saved_sums, axis=1) - totals)
    best = jnp.argmax(gains)
    # The entropy is -log(m + sum(sums)). Gains below rounding, or below the step's share of the
    # tolerance, are ignored.
    least_gain = jnp.maximum(state.tolerance / _steps_in_sweep(state.size), epsilon(sums.dtype))
    improves = 2 * gains[best] > least_gain * (state.size + jnp.sum(sums))
    slot = _argmax(saved_sums[best])

    row, old_point = kernel_rows[best], points[slot]
    old_row = _kernel(old_point[None], points, (state.codes == state.codes[slot])[None])[0]
    new_sums = (sums + row - old_row).at[slot].set(totals[best] - row[slot])
    return state._replace(
        indices=state.indices.at[slot].set(jnp.where(improves, draws[best], state.indices[slot])),
        points=points.at[slot].set(jnp.where(improves, new_points[best], old_point)),
        sums=jnp.where(improves, new_sums, sums),
        accepted=state.accepted + improves.astype(jnp.int32),
    )


def _kernel(a: Float[Array, "k d"], b: Float[Array, "m d"], same: Array) -> Float[Array, "k m"]:
    """Return `exp(-|a - b|^2)` between points of equal strata, 0 between different strata."""
    # |a|^2 + |b|^2 - 2 a.b would cancel in float32 if columns range over thousands of bandwidths,
    # so differences are formed. XLA fuses the loop and never stores the k x m x d array.
    squares = jnp.sum(jnp.square(a[:, None, :] - b[None, :, :]), axis=2)
    return jnp.where(same, jnp.exp(-squares), 0)


def _with_sums(state: RenyiState) -> RenyiState:
    """Return the state with recomputed kernel sums within the strata, and entropy."""
    m = state.points.shape[0]
    blocks, rows = block_shape(m, max(1, _BLOCK // m))
    slots = jnp.arange(m, dtype=jnp.int32)

    def block(rows_of_block):
        points, codes, slot = rows_of_block
        others = (codes[:, None] == state.codes[None]) & (slot[:, None] != slots[None])
        return jnp.sum(_kernel(points, state.points, others), axis=1)

    parts = tuple(to_blocks(a, blocks, rows) for a in (state.points, state.codes, slots))
    sums = jax.lax.map(block, parts).reshape(blocks * rows)[:m]
    potential = jnp.log(state.size + jnp.sum(sums)) - 2 * jnp.log(state.size) + state.normaliser
    return state._replace(sums=sums, entropy=-potential)


def _argmax(values: Float[Array, " m"]) -> Int[Array, ""]:
    """Return `jnp.argmax(values)` several times faster: XLA vectorises no argmax on a CPU."""
    m = values.shape[0]
    at_top = jnp.where(values == jnp.max(values), jnp.arange(m, dtype=jnp.int32), m - 1)
    return jnp.min(at_top)


@functools.partial(compiled, quickly=True, static_argnames="m")
def _start(key: Key, draws: Draws, m: int) -> tuple[Int[Array, " m"], Key]:
    """Draw the first working set, from all rows or class by class; return it and the run's key."""
    key_start, key_run = jax.random.split(key)
    return first_draw(key_start, draws, m), key_run


def _present(
    X: Float[Array, "r d"], n: int, w: Float[np.ndarray, " n"] | None
) -> tuple[Float[Array, "p d"], int]:
    """Return the rows with weight, followed by padding, and their number."""
    if w is None or np.all(w > 0):
        return X, n
    present = np.flatnonzero(w)
    return X[padded(present, capacity(len(present)))], len(present)


def _bandwidth(
    bandwidth: Bandwidth | Array | None, X: Float[Array, "n d"], n_rows: int
) -> Bandwidth:
    """Check and return the caller's bandwidth; by default compute the plug-in bandwidth of X."""
    if bandwidth is None:
        return plug_in_bandwidth(X, n_rows=n_rows)
    if not isinstance(bandwidth, Bandwidth):
        h = as_float(bandwidth).astype(X.dtype)
        rule, status = (as_array(np.full(h.shape, code, np.int32)) for code in (GIVEN, CONVERGED))
        bandwidth = Bandwidth(h, rule, status)
    h = bandwidth.h
    if h.shape != X.shape[1:]:
        raise ValueError(f"bandwidth: expected shape {X.shape[1:]}, one per column, got {h.shape}")
    if is_concrete(h) and not np.all(np.isfinite(np.asarray(h)) & (np.asarray(h) >= 0)):
        raise ValueError(f"bandwidth: expected finite values >= 0, got {np.asarray(h)}")
    return bandwidth
