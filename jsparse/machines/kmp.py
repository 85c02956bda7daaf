"""Kernel matching pursuit (Vincent and Bengio 2002)."""

import dataclasses
from typing import ClassVar, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics import epsilon, times_power
from .._types import Key
from ..pursuit import conjugate, matching, probabilistic
from ..pursuit.path import LOST, Path, assemble
from ..pursuit.system import Columns, scaled
from .dictionary import Rows, System, of_unit_length
from .method import Task, option
from .pursuit import Pursuit, Selected, dense, statuses

Fitting = Literal["basic", "backfitting", "prefitting"]
_STEPS = 50  # of basic matching pursuit for each atom: it comes back to those it has


@dataclasses.dataclass(frozen=True)
class KMP(Pursuit):
    """Kernel matching pursuit (Vincent and Bengio 2002), of every size.

    Prototypes come one after another and stay. "basic": the atom whose direction is nearest to the
    residual, with the coefficient that is best for it alone; it may come again, which is no
    prototype more. "backfitting": all coefficients are fitted again, which is orthogonal matching
    pursuit, and SCDP without a penalty on atoms of one length. "prefitting": the atom with which
    that leaves least, orthogonal least squares. Several targets or problems have prototypes each of
    its own.

    Args:
        max_prototypes: the longest path, see `Candidates`, as are the following.
        candidates: their number, "all", or points in raw units.
        candidate_method: how they are chosen.
        subset: atoms looked at in each step, drawn at random: stochastic kernel matching pursuit
            (Popovici et al. 2005). Not for "prefitting".
        size_tolerance: of the size chosen.
        atoms: K, or several numbers of which cross-validation chooses; by default all.
        intercept: whether every machine has one; it is no prototype.
        ridge: see `KSP`.
        fitting: "basic", "backfitting" or "prefitting".
    """

    name: ClassVar[str] = "kmp"
    title: ClassVar[str] = "kernel matching pursuit"

    fitting: Fitting = option(
        "backfitting",
        "how coefficients are fitted",
        choices=("basic", "backfitting", "prefitting"),
    )

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if self.fitting not in ("basic", "backfitting", "prefitting"):
            raise ValueError(
                f"fitting: expected 'basic', 'backfitting' or 'prefitting', got {self.fitting!r}"
            )
        if self.fitting == "prefitting" and self.subset is not None:
            raise ValueError("subset: expected None with fitting='prefitting'")

    def select(self, system: System, key: Key | None) -> Selected:
        """See `Pursuit.select`."""
        return self._selected(self._path(system, key), len(system.A), on_rows=False)

    def _path(self, system: System, key: Key | None) -> Path:
        """Of atoms in units of their own lengths; coefficients are of these."""
        unit, length = of_unit_length(system)
        c = system.b.shape[1]
        diagonal, rounded = (
            jnp.broadcast_to(a[None], (c, len(a))) for a in (jnp.diagonal(unit.A), unit.rounded)
        )
        columns, b, diagonal, scale = scaled(Columns(unit.A), unit.b.T[:, :, None], diagonal)
        rounded = times_power(rounded, -scale.A)
        zero, k = jnp.zeros((), b.dtype), self.longest
        own_key = None if self.subset is None else key
        if self.fitting == "basic":
            path = matching.run(
                columns, b, diagonal, zero + 1, zero, own_key, max_atoms=k, max_steps=_STEPS * k,
                subset=cast(int | None, self.subset),
            )  # fmt: skip
        elif own_key is not None:
            path = probabilistic.run(
                columns, b, diagonal, rounded, own_key, max_atoms=k, subset=cast(int, self.subset)
            )
        else:
            rule = "gain" if self.fitting == "prefitting" else "residual"
            none = jnp.zeros(0, jnp.int32)
            path = conjugate.pursue(
                columns, b, diagonal, rounded, none, zero, max_atoms=k, rule=rule
            )
        return _in_units(scale.undone(path), length)

    def on_rows(self, rows: Rows, system: System, key: Key | None) -> Selected:
        """See `Pursuit.on_rows`: coefficients of least squares have more digits."""
        path, p = self._path(system, key), rows.D.shape[1]
        if self.fitting != "basic":
            path = _recovered(path, rows, system.ridge)
        return self._selected(path, p, on_rows=True)

    def _selected(self, path: Path, p: int, *, on_rows: bool) -> Selected:
        rounding = epsilon(path.condition.dtype)
        lost = rounding * (jnp.sqrt(path.condition) if on_rows else path.condition) > LOST
        at = np.asarray(self.path_sizes, np.int32) - 1
        status = statuses(path.status, path.size, lost, at)
        return Selected(dense(path.support, path.coefficients[..., 0][:, at], p), status)


def _in_units(path: Path, length: Float[Array, " p"]) -> Path:
    """A path of atoms of unit length as one of those given."""
    own = length[jnp.maximum(path.support, 0)]
    return path._replace(coefficients=path.coefficients * own[:, None, :, None])


def _recovered(path: Path, rows: Rows, ridge: Array) -> Path:
    """The coefficients of paths again, from the triangular factor of the atoms at the rows."""
    k, dtype = path.support.shape[1], rows.D.dtype

    def factors(of: tuple[Array, Array]) -> tuple[Array, Array]:
        support, y = of
        inside = support >= 0
        atoms = jnp.where(inside[None, :], rows.D[:, jnp.maximum(support, 0)], 0)
        penalty = jnp.sqrt(ridge) * jnp.eye(k, k + 1, dtype=dtype)
        both = jnp.concatenate([jnp.concatenate([atoms, y[:, None]], axis=1), penalty])
        R = jnp.linalg.qr(both, mode="r")
        return R[:k, :k], R[:k, k:]

    factor, along = jax.lax.map(factors, (path.support, rows.y.T))
    return assemble(
        path.support, factor, along, jnp.sum(jnp.square(factor), axis=1), path.residual_norm,
        path.size, path.status, on_rows=True,
    )  # fmt: skip
