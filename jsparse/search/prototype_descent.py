"""Prototypes moved by the gradient of the error on held-out folds."""

import dataclasses
import time
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._programs import compiled
from ..kernels import Kernel
from ..validation.error_gradient import FoldErrors, Parts, held_out_error
from .descent import Batches
from .strategies import Evaluator, Search

RATE = 0.1  # length of the first steps, in standard deviations of the columns


@dataclasses.dataclass(frozen=True, repr=False)
class PrototypeDescent(Search):
    """Adam on the cross-validated squared error, in the prototypes; the kernel stays as it is.

    A sixth of the rows is the validation split. The prototypes with the least error there are
    scored with every `C`: those of the problem, if no step does better.

    Args:
        settings: the `Gradient` that tuned the kernel: its `rows`, `patience` and
            `max_evaluations` count here, too.
        tuning: its outcome.
    """

    moves_points: ClassVar[bool] = True

    settings: Any = None
    tuning: Any = None

    def rounds(self, p: int) -> list[int]:
        """See `Search.rounds`."""
        return [1]

    def run(self, run: Evaluator) -> None:
        """See `Search.run`: replaces the points of the problem."""
        run.problem = run.problem.with_points(self._moved(run))
        run.scores(np.zeros((1, 0)))

    def _moved(self, run: Evaluator) -> Float[Array, "m d"]:
        problem, settings, kernel = run.problem, self.settings, self.tuning.kernel
        Z = best = problem.points
        X, y, weights = problem.source.rows_in_memory()
        key = jax.random.fold_in(run.key, 2)
        batches = Batches(key, X, y, weights, Z, rows=settings.rows, prototypes=len(Z))
        C, parts = np.asarray(self.tuning.C, run.dtype), batches.at(0)
        mean, square = jnp.zeros_like(Z), jnp.zeros_like(Z)
        least, steps_without_improvement = np.inf, 0
        steps = settings.max_evaluations or 60
        for i in range(steps + 1):
            gradient, errors = _gradient(kernel, Z, C, parts)
            steps_without_improvement += 1
            if (validation_error := float(errors.validation)) < least:
                least, steps_without_improvement, best = validation_error, 0, Z
            out_of_time = time.perf_counter() > run.deadline
            if steps_without_improvement >= settings.patience or i == steps or out_of_time:
                break
            rate = np.asarray(RATE * (1 + np.cos(np.pi * i / steps)) / 2, run.dtype)
            Z, mean, square = _stepped(Z, gradient, mean, square, rate, np.int32(i + 1))
            if batches.resampled:
                parts = batches.at(i + 1)
        return best


@compiled
def _gradient(
    kernel: Kernel, Z: Float[Array, "m d"], C: Float[Array, ""], parts: Parts
) -> tuple[Float[Array, "m d"], FoldErrors]:
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
