"""`Family`, the result of every fit: machines of one size or of several, on shared points."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._numerics import dot, is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._status import PRECISION_LOST
from ..expansion import KernelExpansion
from ..kernels import Kernel, Mixture


class Family(eqx.Module):
    """Machines of `k` sizes with `l = g c` outputs; a fit of one size has `k = 1`.

    An atom is a function `k(., z)` of one kernel and one point. With one kernel, atom `j` belongs
    to point `j`. A dictionary of several kernels lists the atoms of the first kernel first.

    Outputs come in `g` groups of `c`. With a `support`, each group has an ordered selection of
    atoms, and the machine of size `s` uses the first `s` of them. Without a `support` there is one
    group, and a machine uses the atoms with a coefficient other than 0.

    Attributes:
        kernel: kernel of two points, or a `Mixture` for a dictionary of several.
        points: candidates or prototypes, shape `M d`.
        support: atoms of each group in the order of selection, -1 for none, shape `g q`; or None.
        coefficients: by group, size, atom (in the order of the `support`, if there is one) and
            output, shape `g k q c`.
        intercepts: by group, size and output, shape `g k c`.
        sizes: number of prototypes of each machine, increasing, shape `k`.
        statuses: stop code of each machine, shape `k`.
        info: diagnostics by name, in the units of the targets that were fitted.
        outputs: the shape of one row's values, `()` or `(l,)` (static).
    """

    kernel: Kernel
    points: Float[Array, "M d"]
    support: Int[Array, "g q"] | None
    coefficients: Float[Array, "g k q c"]
    intercepts: Float[Array, "g k c"]
    sizes: Int[Array, " k"] | Int[np.ndarray, " k"]
    statuses: Int[Array, " k"]
    info: dict[str, Any]
    outputs: tuple[int, ...] = eqx.field(static=True, default=())

    __repr__ = short_repr

    @property
    def n_sizes(self) -> int:
        """The number of machines `k`."""
        return self.intercepts.shape[1]

    @property
    def status(self) -> Int[Array, ""]:
        """The worst stop code. PRECISION_LOST counts only if every machine has it."""
        return _worst_of(self.statuses)

    @property
    def expansion(self) -> KernelExpansion:
        """The machine of the largest size."""
        return self._machine(self.n_sizes - 1)

    def place_of(self, size: int) -> int:
        """Return the index of a size in `sizes`.

        Raises:
            ValueError: if there is no machine of that size, or under `jit` if the sizes are traced.
        """
        if not is_concrete(self.sizes):
            raise ValueError(
                "size: expected sizes that are known, got traced ones; choose a size outside jit"
            )
        sizes = np.asarray(self.sizes)
        index = int(np.searchsorted(sizes, size))
        if index == len(sizes) or sizes[index] != size:
            raise ValueError(f"size: expected one of {_listed(sizes)}, got {size!r}")
        return index

    def at(self, size: int) -> KernelExpansion:
        """Return the machine of a size; outside `jit` unused prototypes are dropped.

        The machine has the prototypes of all groups, between `size` and `g size` of them. If a
        path ended early, each larger size has the path's last machine.

        Raises:
            ValueError: as for `place_of`.
        """
        return self._machine(self.place_of(size))

    def status_at(self, size: int) -> int:
        """Return the stop code of the machine of a size; errors are as for `place_of`."""
        return int(np.asarray(self.statuses)[self.place_of(size)])

    def active_points(self, size: int | None = None) -> Int[np.ndarray, " m"]:
        """Return the indices in `points` of a machine's prototypes; on the host.

        A `size` of None stands for the largest. Errors are as for `place_of`. A point with atoms of
        two kernels is listed twice.
        """
        index = self.n_sizes - 1 if size is None else self.place_of(size)
        return self._active_atoms(index) % len(self.points)

    def values(self, X: Float[Array, "n d"]) -> Float[Array, "n k l"]:
        """Return the values at the rows of `X`, by row, size and output.

        Differentiable in both modes in `X` and in every floating leaf.
        """
        if self.support is None:
            columns = atoms(self.kernel, X, self.points)
            return group_values(columns, self.coefficients[0], self.intercepts[0])

        def one_group(group: tuple[Array, Array, Array]) -> Float[Array, "n k c"]:
            support, coefficients, intercepts = group
            columns = self.kernel.cross_gram(X, self.points[jnp.maximum(support, 0)])
            return group_values(columns, coefficients, intercepts)

        if len(self.support) == 1:
            return one_group((self.support[0], self.coefficients[0], self.intercepts[0]))
        by_group = jax.lax.map(one_group, (self.support, self.coefficients, self.intercepts))
        return jnp.moveaxis(by_group, 0, -1).reshape(len(X), self.n_sizes, -1)

    def compact(self) -> "Family":
        """Return the family without points that no machine uses; on the host."""
        M, coefficients = len(self.points), np.asarray(self.coefficients)
        g, k, _, c = coefficients.shape
        if self.support is None:
            by_kernel = coefficients.reshape(g, k, -1, M, c)
            used = np.any(by_kernel != 0, axis=(0, 1, 2, 4))
        else:
            used = np.isin(np.arange(M), np.asarray(self.support))
        used[0] |= not used.any()  # a family has at least one point
        changed: dict[str, np.ndarray] = {"points": np.asarray(self.points)[used]}
        if self.support is None:
            changed["coefficients"] = by_kernel[:, :, :, used].reshape(g, k, -1, c)
        else:
            support, place = np.asarray(self.support), np.cumsum(used) - 1
            changed["support"] = np.where(support >= 0, place[support], -1).astype(np.int32)
        return dataclasses.replace(self, **jax.device_put(changed))

    def rescaled(
        self, unit: float, offset: float | Float[np.ndarray, " c"], info: dict[str, Any]
    ) -> "Family":
        """Return the family whose values are `unit * values + offset`, with the given `info`."""
        coefficients, intercepts = (np.asarray(a) for a in (self.coefficients, self.intercepts))
        dtype, (g, _, c) = coefficients.dtype, intercepts.shape
        offsets = np.broadcast_to(np.asarray(offset, dtype), (g * c,)).reshape(g, 1, c)
        factor = np.asarray(unit, dtype)
        changed = {
            "coefficients": coefficients * factor,
            "intercepts": intercepts * factor + offsets,
        }
        return dataclasses.replace(self, info=info, **jax.device_put(changed))

    def _machine(self, index: int) -> KernelExpansion:
        """Return the machine of `sizes[index]`; outside `jit` unused atoms are dropped."""
        if not all(map(is_concrete, jax.tree.leaves(self))):
            return self._traced_machine(index)
        active, M, kernel = self._active_atoms(index), len(self.points), self.kernel
        coefficients, intercepts = (
            np.asarray(a)[:, index] for a in (self.coefficients, self.intercepts)
        )
        if self.support is None:
            columns = coefficients[0, active]
        else:
            columns = np.zeros((M, *intercepts.shape), coefficients.dtype)
            for group, support in enumerate(np.asarray(self.support)):
                slots = self._slots(support, index)
                columns[np.maximum(support[slots], 0), group] = coefficients[group, slots]
            columns = columns[active]
        if is_dictionary(kernel):
            kernel = Mixture(kernels_of(kernel), jax.device_put((active // M).astype(np.int32)))
        points = np.asarray(self.points)[active % M]
        arrays = points, columns.reshape(-1, *self.outputs), intercepts.reshape(self.outputs)
        return KernelExpansion(kernel, *jax.device_put(arrays))

    def _traced_machine(self, index: int) -> KernelExpansion:
        """Return the machine of `sizes[index]` with all atoms: `jit` allows no dropping."""
        g, _, q, _ = self.coefficients.shape
        intercept = self.intercepts[:, index].reshape(self.outputs)
        if self.support is None:
            flat = self.coefficients[0, index].reshape(q, *self.outputs)
            return KernelExpansion(*every_atom(self.kernel, self.points), flat, intercept)
        same_group = jnp.eye(g, dtype=self.coefficients.dtype)
        blocks = self.coefficients[:, index, :, None, :] * same_group[:, None, :, None]  # g q g c
        Z = self.points[jnp.maximum(self.support, 0).reshape(-1)]
        return KernelExpansion(self.kernel, Z, blocks.reshape(g * q, *self.outputs), intercept)

    def _slots(self, support: Int[np.ndarray, " q"], index: int) -> Int[np.ndarray, " m"]:
        """Return the indices in a `support` that machine `index` uses; index 0 if it uses none."""
        used = np.flatnonzero(support[: int(np.asarray(self.sizes)[index])] >= 0)
        return used if len(used) else np.zeros(1, int)

    def _active_atoms(self, index: int) -> Int[np.ndarray, " m"]:
        """Return the numbers of the atoms that machine `index` uses; atom 0 if it uses none."""
        if self.support is None:
            coefficients = np.asarray(self.coefficients)[0, index]
            used = np.flatnonzero(np.any(coefficients != 0, axis=1))
            return used if len(used) else np.zeros(1, int)
        active = [np.maximum(s[self._slots(s, index)], 0) for s in np.asarray(self.support)]
        return active[0] if len(active) == 1 else np.unique(np.concatenate(active))


def is_dictionary(kernel: Kernel) -> bool:
    """Return whether the kernel is a dictionary: each point has an atom of every kernel."""
    return isinstance(kernel, Mixture) and kernel.which is None


def kernels_of(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the kernels of a mixture, or a tuple of the one kernel."""
    return kernel.kernels if isinstance(kernel, Mixture) else (kernel,)


def atoms(kernel: Kernel, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n p"]:
    """Return the values `k_q(x_i, z_j)` of all atoms, the columns of the first kernel first."""
    if not is_dictionary(kernel):
        return kernel.cross_gram(X, Z)
    return jnp.concatenate([one.cross_gram(X, Z) for one in kernels_of(kernel)], axis=1)


def every_atom(kernel: Kernel, Z: Float[Array, "m d"]) -> tuple[Kernel, Float[Array, "p d"]]:
    """Return the kernel and the `p` prototypes of an expansion that has every atom on `Z`."""
    if not is_dictionary(kernel):
        return kernel, Z
    kernels, m = kernels_of(kernel), len(Z)
    which = jnp.repeat(jnp.arange(len(kernels), dtype=jnp.int32), m)
    return Mixture(kernels, which), jnp.tile(Z, (len(kernels), 1))


def group_values(
    columns: Float[Array, "n q"],
    coefficients: Float[Array, "k q c"],
    intercepts: Float[Array, "k c"],
) -> Float[Array, "n k c"]:
    """Return the values of one group's machines of all sizes, given the values of its atoms."""
    k, q, c = coefficients.shape
    flat = jnp.moveaxis(coefficients, 1, 0).reshape(q, k * c)
    return dot(columns, flat).reshape(-1, k, c) + intercepts[None]


def single(
    expansion: KernelExpansion,
    status: Int[Array, ""],
    info: dict[str, Any] | None = None,
    *,
    count: Int[Array, ""] | None = None,
) -> Family:
    """Return the family of one machine, with its stop code and its diagnostics by name.

    If `count` is None, the machine keeps all prototypes. Else it drops those whose coefficients are
    0, and `count` is the number of the others.
    """
    m, outputs = expansion.prototypes.shape[0], expansion.intercept.shape
    known = all(map(is_concrete, jax.tree.leaves((expansion, status, count))))
    numpy = np if known else jnp  # NumPy compiles nothing
    arrays = {
        "support": numpy.arange(m, dtype=np.int32)[None] if count is None else None,
        "coefficients": numpy.asarray(expansion.coefficients).reshape(1, 1, m, -1),
        "intercepts": numpy.asarray(expansion.intercept).reshape(1, 1, -1),
        "sizes": numpy.full(1, m, np.int32) if count is None else numpy.asarray(count).reshape(1),
        "statuses": numpy.asarray(status, np.int32).reshape(1),
    }
    return Family(
        kernel=expansion.kernel,
        points=expansion.prototypes,
        info=info or {},
        outputs=outputs,
        **(jax.device_put(arrays) if known else arrays),
    )


def diagnostics(fit: Any) -> dict[str, Any]:
    """Return the fields of a fit's NamedTuple, by name, without `expansion` and `status`."""
    fields = fit._asdict()
    del fields["expansion"], fields["status"]
    return fields


@functools.partial(compiled, quickly=True)
def _worst_of(statuses: Int[Array, " k"]) -> Int[Array, ""]:
    """Return the worst stop code; PRECISION_LOST counts only if every machine has it."""
    without = jnp.where(statuses == PRECISION_LOST, 0, statuses)
    return jnp.maximum(jnp.max(without), jnp.min(statuses)).astype(jnp.int32)


def _listed(sizes: Int[np.ndarray, " k"]) -> str:
    """Return the sizes as text for an error message: a range, or a list."""
    first, last = int(sizes[0]), int(sizes[-1])
    if len(sizes) > 1 and len(sizes) == last - first + 1:
        return f"{first} to {last}"
    return str(sizes.tolist())
