"""Kernel basis pursuit (Guigue et al. 2005)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import epsilon
from .._status import TRUNCATED
from .._types import Key
from ..pursuit import least_angle
from ..pursuit.path import LOST
from ..pursuit.system import Columns, scaled
from .dictionary import System, of_unit_length
from .method import Task
from .pursuits import Pursuit, Selected, statuses


class KBP(Pursuit):
    """Kernel basis pursuit (Guigue et al. 2005): least angle regression, an atom in each step.

    The atoms are scaled to unit length, and selected atoms are never removed. The coefficients are
    shrunk towards 0. Each target or binary problem has separate prototypes. The path is computed
    for the system that includes the `ridge`. `Pursuit` describes the settings; `subset` must be
    None, as every step examines all candidates.
    """

    name: ClassVar[str] = "kbp"
    title: ClassVar[str] = "kernel basis pursuit"

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if self.subset is not None:
            raise ValueError("subset: expected None with KBP, which examines all candidates")

    def select(self, system: System, key: Key | None) -> Selected:
        """See `Pursuit.select`."""
        unit, factor = of_unit_length(system)
        k, sizes = self.largest_size, np.asarray(self.fit_sizes, np.int32)
        # Later corners than the first one of noise are not used.
        limits = {
            "max_atoms": k, "max_iterations": k, "largest_condition": 1 / epsilon(unit.A.dtype),
        }  # fmt: skip
        diagonal, zero = jnp.diagonal(unit.A)[None], jnp.zeros((), unit.A.dtype)

        def one(b: Float[Array, " p"]) -> Selected:
            """Return the machines of all sizes for the target with right-hand side `b`."""
            columns, targets, squares, scale = scaled(Columns(unit.A), b[None, :, None], diagonal)
            target = targets[0, :, 0]
            path = least_angle.run(columns, target, squares[0], zero, **limits, lasso=False)
            path = scale.unscaled_single(path)
            # Drop the first corner whose coefficients are rounding noise.
            error = epsilon(b.dtype) * path.condition[1:]
            noise = error > 1
            ends = jnp.any(noise)
            first_noise = jnp.maximum(jnp.argmax(noise).astype(jnp.int32), 1)
            length = jnp.where(ends, first_noise, path.steps)
            lost = (error > LOST) & (jnp.arange(k, dtype=jnp.int32) < length)
            status = jnp.where(ends, TRUNCATED, path.status)
            status = statuses(status, length, lost, sizes - 1)
            coefficients = path.coefficients[jnp.minimum(sizes, length)]
            return Selected(coefficients * factor[None, :], status)

        return jax.lax.map(one, unit.b.T)
