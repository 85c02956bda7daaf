"""Kernel matching pursuit (Vincent and Bengio 2002)."""

from typing import ClassVar, Literal, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._numerics import epsilon
from .._types import Key
from ..pursuit import matching
from ..pursuit.path import LOST, Path, assemble, directions_of
from ..pursuit.system import Columns, scaled
from . import scdp_system
from .checks import check_choice
from .dictionary import Design, System, of_unit_length
from .method import Task, option
from .pursuits import Pursuit, Selected, statuses

Fitting = Literal["basic", "backfitting", "prefitting"]
_STEPS = 50  # steps of "basic" for each prototype, at most; it may select an atom again


class KMP(Pursuit):
    """Kernel matching pursuit (Vincent and Bengio 2002): machines of every size on one path.

    Prototypes are selected one after another, and are not removed. Each target or binary problem
    has separate prototypes. `Pursuit` describes the settings that are not listed.

    Args:
        subset: number of random atoms examined in each step: stochastic kernel matching pursuit
            (Popovici et al. 2005). Not for "prefitting".
        fitting: "basic" selects the atom most correlated with the residual, and fits only its
            coefficient; it may select an atom again, which adds no prototype. "backfitting" fits
            all coefficients after each step: orthogonal matching pursuit, which is SCDP without a
            penalty, on atoms of unit length. "prefitting" selects the atom that leaves the smallest
            residual when all coefficients are fitted: orthogonal least squares.
    """

    name: ClassVar[str] = "kmp"
    title: ClassVar[str] = "kernel matching pursuit"

    fitting: Fitting = option(
        "backfitting", "how coefficients are fitted", choices=get_args(Fitting)
    )

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_choice("fitting", self.fitting, Fitting)
        if self.fitting == "prefitting" and self.subset is not None:
            raise ValueError("subset: expected None with fitting='prefitting'")

    def select(self, system: System, key: Key | None) -> Selected:
        """See `Pursuit.select`."""
        return self._selected(self._path(system, key), len(system.A), on_rows=False)

    def _path(self, system: System, key: Key | None) -> Path:
        """Return each target's path of unit-length atoms, with coefficients of unscaled atoms."""
        unit, factor = of_unit_length(system)
        b, k, c = unit.b.T[:, :, None], self.largest_size, unit.b.shape[1]
        subset = cast(int | None, self.subset)
        draws = None if subset is None else key
        if self.fitting == "basic":
            diagonal = jnp.broadcast_to(jnp.diagonal(unit.A), (c, len(unit.A)))
            columns, b, diagonal, scale = scaled(Columns(unit.A), b, diagonal)
            zero = jnp.zeros((), b.dtype)
            path = matching.run(
                columns, b, diagonal, zero + 1, zero, draws, max_atoms=k, max_iterations=_STEPS * k,
                subset=subset,
            )  # fmt: skip
            path = scale.unscaled(path)
        else:
            owner = jnp.zeros(c, jnp.int32)  # all targets share one matrix
            path = scdp_system.select(
                unit.A[None], b, unit.rounded[None], owner, draws, max_prototypes=k, subset=subset,
                rule="gain" if self.fitting == "prefitting" else "residual",
            )  # fmt: skip
        factors = factor[jnp.maximum(path.support, 0)]
        return path._replace(coefficients=path.coefficients * factors[:, None, :, None])

    def select_with_rows(self, design: Design, system: System, key: Key | None) -> Selected:
        """See `Pursuit.select_with_rows`: compute the coefficients from the rows."""
        path, p = self._path(system, key), design.D.shape[1]
        if self.fitting != "basic":
            path = _with_coefficients_from_rows(path, design, system.ridge)
        return self._selected(path, p, on_rows=True)

    def _selected(self, path: Path, p: int, *, on_rows: bool) -> Selected:
        """Return the machines of `fit_sizes` on each path, with coefficients of all `p` atoms.

        With `on_rows`, the coefficients were computed from rows, not from sums.
        """
        rounding = epsilon(path.condition.dtype)
        lost = rounding * (jnp.sqrt(path.condition) if on_rows else path.condition) > LOST
        places = np.asarray(self.fit_sizes, np.int32) - 1

        def dense(support: Int[Array, " k"], coefficients: Float[Array, "s k"]) -> Array:
            out = jnp.zeros((len(coefficients), p), coefficients.dtype)
            return out.at[:, jnp.where(support < 0, p, support)].add(coefficients, mode="drop")

        coefficients = jax.vmap(dense)(path.support, path.coefficients[..., 0][:, places])
        return Selected(coefficients, statuses(path.status, path.size, lost, places))


def _with_coefficients_from_rows(path: Path, design: Design, ridge: Array) -> Path:
    """Return the paths with coefficients computed by QR from the selected atoms at the rows."""
    k = path.support.shape[1]
    # The root has no derivative at 0.
    root = jnp.where(ridge > 0, jnp.sqrt(jnp.where(ridge > 0, ridge, 1)), 0)

    def factors(machine: tuple[Array, Array]) -> tuple[Array, Array]:
        """Return `R` and `Q'y`, with `QR` the selected atoms above the roots of the ridge."""
        support, y = machine
        inside = support >= 0
        atoms = jnp.where(inside[None, :], design.D[:, jnp.maximum(support, 0)], 0)
        # A one at an unused place keeps R invertible, and so its derivative finite.
        penalty = jnp.pad(jnp.diag(jnp.where(inside, root, 1)), ((0, 0), (0, 1)))
        both = jnp.concatenate([jnp.concatenate([atoms, y[:, None]], axis=1), penalty])
        R = jnp.linalg.qr(both, mode="r")
        return R[:k, :k], R[:k, k:]

    factor, along = jax.lax.map(factors, (path.support, design.y.T))
    return assemble(
        path.support, directions_of(factor, path.size), along, jnp.sum(jnp.square(factor), axis=1),
        path.residual_norm, path.size, path.status, on_rows=True,
    )  # fmt: skip
