"""Prototypes moved by the gradient of the error on held-out folds."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._programs import compiled
from .._types import Key
from ..kernels import Kernel
from ..validation.error_gradient import HeldOut, Parts, held_out_error
from .gradient import Batches
from .problem import Problem
from .strategies import Gradient
from .tune import Tuning

RATE = 0.1  # length of the first steps, in standard deviations of the columns


def moved_prototypes(
    key: Key, problem: Problem, tuning: Tuning, search: Gradient, seconds: float
) -> Float[Array, "m d"]:
    """The problem's points by Adam to the least squared error on folds, kernel and `C` as tuned.

    A sixth of the rows is watched, and the points of the least error there are returned: those
    that were there, if none does better.

    Args:
        key: decides the rows.
        problem: with points.
        tuning: its kernel and `C`.
        search: `rows`, `patience` and `max_evaluations` are what it has for the kernel.
        seconds: no step starts later.
    """
    assert problem.points is not None
    end = time.perf_counter() + seconds
    Z = best = problem.points
    batches = Batches(key, *problem.source.rows_in_memory(), Z, rows=search.rows, prototypes=len(Z))
    C, parts = np.asarray(tuning.C, problem.dtype), batches.at(0)
    mean, square = jnp.zeros_like(Z), jnp.zeros_like(Z)
    least, since, steps = np.inf, 0, search.max_evaluations or 60
    for i in range(steps + 1):
        gradient, held = _gradient(tuning.kernel, Z, C, parts)
        watched = float(held.watched)
        if watched < least:
            least, since, best = watched, 0, Z
        else:
            since += 1
        if since >= search.patience or i == steps or time.perf_counter() > end:
            break
        rate = np.asarray(RATE * (1 + np.cos(np.pi * i / steps)) / 2, problem.dtype)
        Z, mean, square = _stepped(Z, gradient, mean, square, rate, np.int32(i + 1))
        if batches.resampled:
            parts = batches.at(i + 1)
    return best


@compiled
def _gradient(
    kernel: Kernel, Z: Float[Array, "m d"], C: Float[Array, ""], parts: Parts
) -> tuple[Float[Array, "m d"], HeldOut]:
    slope, held = jax.grad(held_out_error, argnums=1, has_aux=True)(kernel, Z, C, parts)
    return jnp.where(jnp.isfinite(slope), slope, 0), held


@compiled
def _stepped(
    Z: Float[Array, "m d"],
    gradient: Float[Array, "m d"],
    mean: Float[Array, "m d"],
    square: Float[Array, "m d"],
    rate: Float[Array, ""],
    count: Array,
) -> tuple[Float[Array, "m d"], Float[Array, "m d"], Float[Array, "m d"]]:
    """A step of Adam (Kingma and Ba 2015)."""
    mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * jnp.square(gradient)
    n = count.astype(Z.dtype)
    size = jnp.sqrt(square / (1 - 0.999**n))
    step = mean / (1 - 0.9**n) / jnp.where(size > 0, size, 1)
    return Z - rate * step, mean, square
