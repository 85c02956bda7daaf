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
from .pursuit import Pursuit, Selected, statuses


class KBP(Pursuit):
    """Kernel basis pursuit (Guigue et al. 2005): least angle regression stopped after K steps.

    The atoms are of one length, as the source of the algorithm has it, and no atom is removed
    again. The coefficients are those of the path, which shrinks them. Several targets or problems
    have prototypes each of their own.

    Args:
        max_prototypes: the longest path, see `Candidates`, as are the following.
        candidates: their number, "all", or points in raw units.
        candidate_method: how they are chosen.
        subset: None: every step looks at all candidates.
        size_tolerance: of the size chosen.
        atoms: K, or several numbers of which cross-validation chooses; by default all.
        intercept: whether every machine has one; it is no prototype.
        ridge: see `KSP`; the path is that of the system with it.
    """

    name: ClassVar[str] = "kbp"
    title: ClassVar[str] = "kernel basis pursuit"

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if self.subset is not None:
            raise ValueError("subset: expected None with KBP, which looks at all candidates")

    def select(self, system: System, key: Key | None) -> Selected:
        """See `Pursuit.select`."""
        unit, factor = of_unit_length(system)
        k, sizes = self.longest, np.asarray(self.fit_sizes, np.int32)
        diagonal, zero = jnp.diagonal(unit.A), jnp.zeros((), unit.A.dtype)

        def one(b: Float[Array, " p"]) -> Selected:
            columns, scaled_b, scaled_diagonal, scale = scaled(
                Columns(unit.A), b[None, :, None], diagonal[None]
            )
            path = least_angle.run(
                columns, scaled_b[0, :, 0], scaled_diagonal[0], zero, max_atoms=k, max_steps=k,
                lasso=False,
            )  # fmt: skip
            path = scale.undone_alone(path)
            # The path ends before an atom of which rounding leaves no digit: it would be noise.
            error = epsilon(b.dtype) * path.condition[1:]
            noise = error > 1
            ends = jnp.any(noise)
            before = jnp.maximum(jnp.argmax(noise).astype(jnp.int32), 1)
            sound = jnp.where(ends, before, path.steps)
            lost = (error > LOST) & (jnp.arange(k, dtype=jnp.int32) < sound)
            status = jnp.where(ends, TRUNCATED, path.status)
            status = statuses(status, sound, lost, sizes - 1)
            coefficients = path.coefficients[jnp.minimum(sizes, sound)]
            return Selected(coefficients * factor[None, :], status)

        return jax.lax.map(one, unit.b.T)
