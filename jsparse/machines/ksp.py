"""Kernel subspace pursuit (Kabbara 2015)."""

import dataclasses
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import whole_number
from .._blocks import map_systems
from .._numerics import epsilon
from .._types import Key
from ..pursuit import on_atoms
from ..pursuit.subspace import subspace_pursuit, subspace_pursuit_gram
from .dictionary import Rows, System
from .method import Shape, Task
from .pursuit import Pursuit, Selected

SIZES = 10  # numbers of atoms tried by default, where each is a pursuit of its own
LARGEST = 100  # the largest of them
ITERATIONS = 5  # l_max of the source


@dataclasses.dataclass(frozen=True)
class KSP(Pursuit):
    """Kernel subspace pursuit (Kabbara 2015, Algorithm 1).

    Machines with exactly K prototypes, each K by itself: the prototypes are exchanged until the
    error on the rows does not fall. More than two classes, or several targets, are problems each
    with prototypes of its own.

    By default it goes by sums over rows, the normal equations, whose precision is that of squares,
    see `pursuit.subspace_pursuit_gram`; in float32 the coefficients are found again on the rows.
    With `formed=False` every fit to rows in memory, those of the folds too, is Algorithm 1 on the
    rows with as many digits as the atoms allow: some ten times slower, and the values of all
    candidates at all rows are in memory.

    Args:
        max_prototypes: the largest K of the default ones, 100 if not given.
        candidates: their number, "all", or points in raw units; see `Candidates`.
        candidate_method: how they are chosen.
        subset: None: every iteration looks at all candidates.
        size_tolerance: of the size chosen.
        atoms: K, or several numbers of which cross-validation chooses; by default ten up to
            `max_prototypes`.
        intercept: whether every machine has one; it is no prototype.
        ridge: least squares is of the mean squared error plus `ridge |coefficients|^2`.
        max_iterations: l_max.
        formed: whether rows in memory are summed first.
    """

    name: ClassVar[str] = "ksp"
    title: ClassVar[str] = "kernel subspace pursuit"

    max_iterations: int = ITERATIONS
    formed: bool = True

    @property
    def by_sums(self) -> bool:
        """See `Additive.by_sums`."""
        return self.formed

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        whole_number("max_iterations", self.max_iterations, 1)
        if self.subset is not None:
            raise ValueError("subset: expected None with KSP, which looks at all candidates")

    def _bounded(self, shape: Shape) -> "Pursuit":
        """See `Pursuit`."""
        whole = cast(Pursuit, super(Pursuit, self).settled(shape))
        if self.max_prototypes is not None or whole.longest <= LARGEST:
            return self
        return dataclasses.replace(self, max_prototypes=LARGEST)

    def default_sizes(self, longest: int) -> tuple[int, ...]:
        """Ten of them, closer together where they are small."""
        several = np.unique(np.round(np.geomspace(1, longest, SIZES)).astype(int))
        return tuple(several.tolist())

    def select(self, system: System, key: Key | None) -> Selected:
        """See `Pursuit.select`."""
        p = len(system.A)
        return self._each(
            lambda b: subspace_pursuit_gram(
                system.A, b, n_atoms=self.path_sizes, ridge=system.ridge,
                max_iterations=self.max_iterations,
            ),
            system.b, p,
        )  # fmt: skip

    def on_rows(self, rows: Rows, system: System, key: Key | None) -> Selected:
        """See `Pursuit.on_rows`: atoms that no square can tell apart, rows may."""
        if self.formed:
            found = self.select(system, key)
            on_rows = epsilon(rows.D.dtype) > 1e-10
            return _on_atoms(found, rows, system.ridge, self.longest) if on_rows else found
        return self._each(
            lambda y: subspace_pursuit(
                rows.D, y, n_atoms=self.path_sizes, ridge=system.ridge,
                max_iterations=self.max_iterations,
            ),
            rows.y, rows.D.shape[1],
        )  # fmt: skip

    def _each(self, run: Any, targets: Float[Array, "r c"], p: int) -> Selected:
        def one(target: Float[Array, " r"]) -> Selected:
            found = run(target)
            return Selected(found.dense(p), found.status)

        return jax.lax.map(one, targets.T)


def _on_atoms(found: Selected, rows: Rows, ridge: Array, longest: int) -> Selected:
    """Least squares on the rows, on the atoms of each size."""
    p = rows.D.shape[1]

    def one(of: tuple[Array, Array]) -> Float[Array, " p"]:
        own, y = of
        slots = jnp.nonzero(own, size=longest, fill_value=p)[0].astype(jnp.int32)
        inside, at = slots < p, jnp.minimum(slots, p - 1)
        form = on_atoms.Rows(rows.D, y[:, None], ridge)
        weights, _ = form.solve(form.reduced(at, inside))
        return jnp.zeros_like(own).at[slots].set(weights[:, 0], mode="drop")

    c, s, _ = found.coefficients.shape
    targets = jnp.repeat(rows.y.T, s, axis=0)
    again = map_systems(one, (found.coefficients.reshape(c * s, p), targets))
    return found._replace(coefficients=again.reshape(c, s, p))
