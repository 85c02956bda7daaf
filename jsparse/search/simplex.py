"""Nelder-Mead simplex search, one evaluation at a time.

While `status` is RUNNING, evaluate the point of `ask` and pass the value to `tell`.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .._numerics import as_float, epsilon, is_concrete, like
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, EXHAUSTED, NOT_FINITE, RUNNING
from .._types import ScalarLike
from . import box

# Phases: the role of the point under evaluation.
FILL = 0  # a vertex of the first simplex, or of a shrunken one
REFLECT = 1
EXPAND = 2
OUTSIDE = 3
INSIDE = 4
# For each phase, the factor t of the point c + t (c - x_p): x_p is the worst vertex, and c is the
# centroid of the other vertices.
_REACH = (0.0, 1.0, 2.0, 0.5, -0.5)
_SHRINK = 0.5


class SimplexState(NamedTuple):
    """The state of a simplex search over `p` parameters.

    Symbols are from Lagarias et al. 1998, Section 2, with indices from 0. Vertices may lie outside
    the box; the objective is evaluated at their reflections into the box.
    """

    vertices: Float[Array, "p+1 p"]  # x_0 ... x_p, best first once all are evaluated
    values: Float[Array, " p+1"]  # f(x_0) ... f(x_p); infinity if not finite or not yet known
    candidate: Float[Array, " p"]  # the point to evaluate next
    phase: Int[Array, ""]  # role of the candidate: FILL, REFLECT, EXPAND, OUTSIDE or INSIDE
    cursor: Int[Array, ""]  # in FILL, the index of the candidate among the vertices
    reflection: Float[Array, " p"]  # x_r
    reflection_value: Float[Array, ""]  # f(x_r)
    best_theta: Float[Array, " p"]  # the best finite point ever evaluated, in the box
    best_value: Float[Array, ""]
    low: Float[Array, " p"]
    high: Float[Array, " p"]
    tolerance: Float[Array, ""]  # in widths of the box
    evaluations: Int[Array, ""]
    max_evaluations: Int[Array, ""]
    status: Int[Array, ""]  # RUNNING, EXHAUSTED, CONVERGED, or NOT_FINITE: no vertex was finite

    __repr__ = short_repr


def init(
    theta0: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    value0: ScalarLike | None = None,
    size: ArrayLike = 0.25,
    tolerance: ScalarLike | None = None,
    max_evaluations: int = 70,
) -> SimplexState:
    """Return the state before any evaluation.

    Args:
        theta0: start, within the bounds, shape `p`; a vertex of the first simplex.
        low: lower bounds of the (log-)parameters, shape `p`. The search has their dtype.
        high: upper bounds, shape `p`.
        value0: the objective at `theta0` if it is known; saves one evaluation.
        size: edge of the first simplex along each parameter, a scalar or shape `p`, in widths of
            the box, at most 1/2. The default is large because cross-validation surfaces are rough
            at small scales: after 70 evaluations the error is lower than with the customary 1/20.
        tolerance: stop when no vertex is further than this from the best, in widths of the box; by
            default the root of the machine epsilon, below which rounding hides a smooth minimum.
        max_evaluations: the budget.

    Raises:
        ValueError: for bounds, a start, a size, a tolerance or a budget out of range.
    """
    lower, upper = box.bounds(low, high)
    dtype, p = lower.dtype, lower.size
    start, edge = as_float(theta0).astype(dtype), as_float(size).astype(dtype)
    if start.shape != (p,) or edge.shape not in ((), (p,)):
        raise ValueError(
            f"theta0, size: expected shapes ({p},) and () or ({p},), to match the bounds, got "
            f"{start.shape} and {edge.shape}"
        )
    if max_evaluations < 1:
        raise ValueError(f"max_evaluations: expected at least 1, got {max_evaluations}")
    if is_concrete(edge) and not ((np.asarray(edge) > 0) & (np.asarray(edge) <= 0.5)).all():
        raise ValueError(f"size: expected parts of the box in (0, 1/2], got {np.asarray(edge)}")
    if all(map(is_concrete, (start, lower, upper))):
        x, a, b = map(np.asarray, (start, lower, upper))
        if not ((x >= a) & (x <= b)).all():
            raise ValueError(f"theta0: expected points within the bounds {a} and {b}, got {x}")
    if tolerance is None:
        tolerance = float(np.sqrt(epsilon(dtype)))
    elif is_concrete(tolerance) and not float(tolerance) >= 0:
        raise ValueError(f"tolerance: expected at least 0, got {tolerance}")
    value = None if value0 is None else like(value0, lower)
    return _initial_state(start, edge, lower, upper, value, like(tolerance, lower), max_evaluations)


@compiled
def _initial_state(
    start: Float[Array, " p"],
    edge: Float[Array, "*p"],
    lower: Float[Array, " p"],
    upper: Float[Array, " p"],
    value: Float[Array, ""] | None,
    tolerance: Float[Array, ""],
    max_evaluations: ArrayLike,
) -> SimplexState:
    """Return the state of `init`; `edge` is in widths of the box, `value` is known at `start`."""
    dtype, p = lower.dtype, len(lower)
    edge = jnp.broadcast_to(edge, (p,)) * (upper - lower)
    edge = jnp.where(start + edge <= upper, edge, -edge)
    vertices = start[None] + jnp.concatenate([jnp.zeros((1, p), dtype), jnp.diag(edge)])
    cursor = 0 if value is None else 1  # the first vertex to evaluate
    value = jnp.full((), jnp.inf, dtype) if value is None else box.finite_or_inf(value)
    return SimplexState(
        vertices=vertices,
        values=jnp.full(p + 1, jnp.inf, dtype).at[0].set(value),
        candidate=vertices[cursor],
        phase=jnp.asarray(FILL, jnp.int32),
        cursor=jnp.asarray(cursor, jnp.int32),
        reflection=start,
        reflection_value=jnp.full((), jnp.inf, dtype),
        best_theta=start,
        best_value=value,
        low=lower,
        high=upper,
        tolerance=tolerance,
        evaluations=jnp.zeros((), jnp.int32),
        max_evaluations=jnp.asarray(max_evaluations, jnp.int32),
        status=jnp.asarray(RUNNING, jnp.int32),
    )


@compiled
def ask(state: SimplexState) -> Float[Array, " p"]:
    """Return the next point to evaluate, shape `p`.

    The candidate is reflected into the box, while the vertices may lie outside. On random
    quadratics, a simplex that is clipped to the box sometimes collapses onto a face for ever, and a
    simplex with penalties outside stalls where the minimum lies on a face.
    """
    return box.reflect(state.candidate, state.low, state.high)


@compiled
def tell(
    state: SimplexState, probe: Float[Array, " p"], probe_value: Float[Array, ""]
) -> SimplexState:
    """Return the state after an evaluation, from the point of `ask` and its value.

    Nelder and Mead's method as stated by Lagarias et al. 1998 (cited by De Brabanter 2010, Section
    6.3): reflection 1, expansion 2, contraction 1/2, shrinkage 1/2, with their strict inequalities
    and their rule for ties. It evaluates the same points as SciPy. A value that is not finite
    counts as infinity.
    """
    value = box.finite_or_inf(probe_value)
    better = value < state.best_value
    p, f, phase = state.low.size, state.values, state.phase
    filling = phase == FILL
    f_r = jnp.where(phase == REFLECT, value, state.reflection_value)

    # After a reflection: the phase of a second trial, or REFLECT to accept the reflected point.
    next_phase = jnp.where(
        value < f[0],
        EXPAND,
        jnp.where(value < f[p - 1], REFLECT, jnp.where(value < f[p], OUTSIDE, INSIDE)),
    )
    trial = (phase == REFLECT) & (next_phase != REFLECT)
    failed = ((phase == OUTSIDE) & (value > f_r)) | ((phase == INSIDE) & (value >= f[p]))
    replace = ~filling & ~trial & ~failed
    fall_back = (phase == EXPAND) & (value >= f_r)
    new_vertex = jnp.where(fall_back, state.reflection, state.candidate)
    slot = jnp.where(filling, state.cursor, p)
    placed = filling | replace
    vertices = jnp.where(placed, state.vertices.at[slot].set(new_vertex), state.vertices)
    values = jnp.where(placed, f.at[slot].set(jnp.where(fall_back, f_r, value)), f)

    # Sort a complete simplex by value; the new vertex comes after vertices of equal value.
    complete = replace | (filling & (state.cursor == p))
    order = jnp.where(complete, jnp.argsort(values, stable=True), jnp.arange(p + 1))
    vertices, values = vertices[order], values[order]
    vertices = jnp.where(failed, vertices[:1] + _SHRINK * (vertices - vertices[:1]), vertices)

    cursor = jnp.where(failed, 1, jnp.minimum(state.cursor + 1, p))
    phase = jnp.where(trial, next_phase, jnp.where(complete, REFLECT, FILL)).astype(jnp.int32)
    centroid = jnp.mean(vertices[:-1], axis=0)
    reach = jnp.asarray(_REACH, state.low.dtype)[phase]
    candidate = jnp.where(
        phase == FILL, vertices[cursor], centroid + reach * (centroid - vertices[-1])
    )

    evaluations = state.evaluations + 1
    furthest = jnp.max(jnp.abs(vertices - vertices[:1]) / (state.high - state.low)[None])
    status = jnp.where(evaluations >= state.max_evaluations, EXHAUSTED, RUNNING)
    status = jnp.where(complete & (furthest <= state.tolerance), CONVERGED, status)
    status = jnp.where(complete & ~jnp.isfinite(values[0]), NOT_FINITE, status)
    return state._replace(
        vertices=vertices,
        values=values,
        candidate=candidate,
        phase=phase,
        cursor=cursor.astype(jnp.int32),
        reflection=jnp.where(phase == REFLECT, candidate, state.reflection),
        reflection_value=f_r,
        best_theta=jnp.where(better, probe, state.best_theta),
        best_value=jnp.where(better, value, state.best_value),
        evaluations=evaluations,
        status=status.astype(jnp.int32),
    )
