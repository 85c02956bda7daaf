"""Kernel subspace pursuit (Kabbara 2015)."""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import whole_number
from .._blocks import map_systems
from .._numerics import is_concrete, resolves_products
from .._types import CountLike, Key, PointTable
from ..kernels import Kernel
from ..pursuit import on_atoms
from ..pursuit.subspace import Subspace, subspace_pursuit, subspace_pursuit_gram
from .dictionary import Design, System
from .held_out import HeldOut, OnFold
from .method import Method, Task, iteration_limit, setting
from .pursuits import Pursuit, Selected
from .rows import FoldLayout, Rows

SIZES = 10  # default number of sizes to try; each size needs a separate pursuit
ITERATIONS = 5  # l_max of the paper


class KSP(Pursuit):
    """Kernel subspace pursuit (Kabbara 2015, Algorithm 1).

    A separate pursuit for each K returns a machine with exactly K prototypes: it exchanges
    prototypes until the error on the rows stops falling. Each target or binary problem has separate
    prototypes.

    By default the pursuit solves the normal equations, see `pursuit.subspace_pursuit_gram`. Their
    condition number is the square of the condition number of the atoms, so in float32 the
    coefficients are computed again from the rows. With `formed=False`, every fit to rows in memory,
    also for cross-validation, runs Algorithm 1 on the rows. This is more precise, but about ten
    times slower, and memory holds the values of all candidates at all rows.

    `Pursuit` describes the settings that are not listed.

    Args:
        max_prototypes: the largest default K; None for 100, or fewer if there are fewer candidates
            or training rows.
        subset: must be None: every iteration examines all candidates.
        n_prototypes: K, or several numbers from which cross-validation chooses; None or "auto" for
            at most ten numbers up to `max_prototypes`.
        max_iterations: limit of the exchanges for one K, the paper's l_max.
        formed: whether fits to rows in memory use the normal equations.
    """

    name: ClassVar[str] = "ksp"
    title: ClassVar[str] = "kernel subspace pursuit"
    usual_length: ClassVar[int] = 100  # fewer, as each size needs a separate pursuit

    max_iterations: CountLike = iteration_limit(ITERATIONS, static=False)
    formed: bool = setting(True)

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if is_concrete(self.max_iterations):
            whole_number("max_iterations", self.max_iterations, 1)
        if self.subset is not None:
            raise ValueError("subset: expected None with KSP, which examines all candidates")

    def default_sizes(self, largest: int) -> tuple[int, ...]:
        """See `Pursuit.default_sizes`: at most ten sizes in geometric progression."""
        sizes = np.unique(np.round(np.geomspace(1, largest, SIZES)).astype(int))
        return tuple(sizes.tolist())

    def select(self, system: System, key: Key | None) -> Selected:
        """See `Pursuit.select`."""
        return self._pursue(subspace_pursuit_gram, system.A, system.b, system.ridge)

    def select_with_rows(self, design: Design, system: System, key: Key | None) -> Selected:
        """See `Pursuit.select_with_rows`; the class describes the effect of `formed`."""
        if self.formed:
            selected = self.select(system, key)
            if resolves_products(design.D.dtype):
                return selected
            return _with_coefficients_from_rows(selected, design, system.ridge, self.largest_size)
        return self._pursue(subspace_pursuit, design.D, design.y, system.ridge)

    def _pursue(
        self, pursuit: Callable[..., Subspace], matrix: Array, targets: Array, ridge: Array
    ) -> Selected:
        """Return the machines of each target by a `pursuit` on a `matrix`: the Gram matrix or rows.

        `targets` has a column for each target: a right-hand side, or values at the rows.
        """

        def one(target: Float[Array, " r"]) -> Selected:
            result = pursuit(
                matrix, target, n_atoms=self.fit_sizes, ridge=ridge,
                max_iterations=self.max_iterations,
            )  # fmt: skip
            return Selected(result.dense(matrix.shape[1]), result.status)

        return jax.lax.map(one, targets.T)

    def fits_from_fold_sums(self, r: int, s: int) -> bool:
        """See `Method.fits_from_fold_sums`."""
        return self.formed

    def held_out(
        self, kernel: Kernel, points: PointTable, C: Float[Array, " s"], rows: Rows,
        folds: FoldLayout, on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """See `FromSums.held_out`; with `formed=False`, fit from the rows for each fold."""
        if self.formed or rows.mesh is not None:
            return super().held_out(kernel, points, C, rows, folds, on_fold, key)
        return Method.held_out(self, kernel, points, C, rows, folds, on_fold, key)


def _with_coefficients_from_rows(
    selected: Selected, design: Design, ridge: Array, most_atoms: int
) -> Selected:
    """Return the selected atoms of each size, with coefficients refitted by QR of the rows.

    No machine has more than `most_atoms` atoms.
    """
    p = design.D.shape[1]

    def refitted(machine: tuple[Array, Array]) -> Float[Array, " p"]:
        coefficients, y = machine
        atoms = jnp.nonzero(coefficients, size=most_atoms, fill_value=p)[0].astype(jnp.int32)
        used, indices = atoms < p, jnp.minimum(atoms, p - 1)
        rows = on_atoms.Rows(design.D, y[:, None], ridge)
        weights, _ = rows.solve(rows.reduced(indices, used))
        return jnp.zeros_like(coefficients).at[atoms].set(weights[:, 0], mode="drop")

    c, s, _ = selected.coefficients.shape
    targets = jnp.repeat(design.y.T, s, axis=0)
    coefficients = map_systems(refitted, (selected.coefficients.reshape(c * s, p), targets))
    return selected._replace(coefficients=coefficients.reshape(c, s, p))
