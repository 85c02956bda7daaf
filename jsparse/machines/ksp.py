"""Kernel subspace pursuit (Kabbara 2015)."""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import whole_number
from .._blocks import map_systems
from .._numerics import epsilon, is_concrete
from .._types import CountLike, Key, PointTable
from ..kernels import Kernel
from ..pursuit import on_atoms
from ..pursuit.subspace import Subspace, subspace_pursuit, subspace_pursuit_gram
from .dictionary import Design, System
from .held_out import HeldOut, OnFold
from .method import Method, Task, setting
from .pursuits import Pursuit, Selected
from .rows import FoldLayout, Rows

SIZES = 10  # numbers of atoms tried by default, where each is a pursuit of its own
ITERATIONS = 5  # l_max of the source


class KSP(Pursuit):
    """Kernel subspace pursuit (Kabbara 2015, Algorithm 1).

    Machines with exactly K prototypes, each K by itself: the prototypes are exchanged until the
    error on the rows does not fall. Several targets, or the problems of more than two classes, have
    prototypes each of their own.

    By default the pursuit solves the normal equations, sums over rows, which lose digits by the
    square of the atoms' condition, see `pursuit.subspace_pursuit_gram`; in float32 the coefficients
    are found again on the rows. With `formed=False` every fit to rows in memory, those of the folds
    too, is Algorithm 1 on the rows with as many digits as the atoms allow: some ten times slower,
    and the values of all candidates at all rows are in memory.

    Settings that are not listed are those of `Pursuit`.

    Args:
        max_prototypes: the largest K of the default ones, 100 if not given.
        subset: None: every iteration looks at all candidates.
        atoms: K, or several numbers of which cross-validation chooses; by default ten up to
            `max_prototypes`.
        max_iterations: l_max, of exchanges for one size.
        formed: whether rows in memory are summed first.
    """

    name: ClassVar[str] = "ksp"
    title: ClassVar[str] = "kernel subspace pursuit"
    usual_length: ClassVar[int] = 100  # as each size is a pursuit of its own

    max_iterations: CountLike = ITERATIONS
    formed: bool = setting(True)

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if is_concrete(self.max_iterations):
            whole_number("max_iterations", self.max_iterations, 1)
        if self.subset is not None:
            raise ValueError("subset: expected None with KSP, which looks at all candidates")

    def default_sizes(self, longest: int) -> tuple[int, ...]:
        """See `Pursuit.default_sizes`: ten sizes, closer together where they are small."""
        sizes = np.unique(np.round(np.geomspace(1, longest, SIZES)).astype(int))
        return tuple(sizes.tolist())

    def select(self, system: System, key: Key | None) -> Selected:
        """See `Pursuit.select`."""
        return _each_target(
            lambda b: subspace_pursuit_gram(
                system.A, b, n_atoms=self.fit_sizes, ridge=system.ridge,
                max_iterations=self.max_iterations,
            ),
            system.b, len(system.A),
        )  # fmt: skip

    def select_with_rows(self, design: Design, system: System, key: Key | None) -> Selected:
        """See `Pursuit.select_with_rows`; with `formed=False` the rows select as well."""
        if self.formed:
            selected = self.select(system, key)
            if epsilon(design.D.dtype) < 1e-10:  # in double precision
                return selected
            return _solved_again(selected, design, system.ridge, self.longest)
        return _each_target(
            lambda y: subspace_pursuit(
                design.D, y, n_atoms=self.fit_sizes, ridge=system.ridge,
                max_iterations=self.max_iterations,
            ),
            design.y, design.D.shape[1],
        )  # fmt: skip

    def held_out(
        self, kernel: Kernel, points: PointTable, C: Float[Array, " s"], rows: Rows,
        folds: FoldLayout, on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """See `FromSums.held_out`; with `formed=False` each fold is fitted again to its rows."""
        if self.formed or rows.mesh is not None:
            return super().held_out(kernel, points, C, rows, folds, on_fold, key)
        return Method.held_out(self, kernel, points, C, rows, folds, on_fold, key)


def _each_target(
    run: Callable[[Float[Array, " r"]], Subspace], targets: Float[Array, "r c"], p: int
) -> Selected:
    """Return the pursuits of each target, with the coefficients of all `p` atoms."""

    def one(target: Float[Array, " r"]) -> Selected:
        pursuit = run(target)
        return Selected(pursuit.dense(p), pursuit.status)

    return jax.lax.map(one, targets.T)


def _solved_again(selected: Selected, design: Design, ridge: Array, longest: int) -> Selected:
    """Return the selected atoms of each size with coefficients of least squares on the rows."""
    p = design.D.shape[1]

    def one(machine: tuple[Array, Array]) -> Float[Array, " p"]:
        coefficients, y = machine
        slots = jnp.nonzero(coefficients, size=longest, fill_value=p)[0].astype(jnp.int32)
        inside, at = slots < p, jnp.minimum(slots, p - 1)
        form = on_atoms.Rows(design.D, y[:, None], ridge)
        weights, _ = form.solve(form.reduced(at, inside))
        return jnp.zeros_like(coefficients).at[slots].set(weights[:, 0], mode="drop")

    c, s, _ = selected.coefficients.shape
    targets = jnp.repeat(design.y.T, s, axis=0)
    coefficients = map_systems(one, (selected.coefficients.reshape(c * s, p), targets))
    return selected._replace(coefficients=coefficients.reshape(c, s, p))
