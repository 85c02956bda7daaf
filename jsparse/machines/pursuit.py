"""What machines with given numbers of atoms share: settings, sizes, intercepts."""

import abc
import math
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arguments import increasing
from .._numerics import like, present_rows, present_targets
from .._programs import compiled
from .._repr import short_repr
from .._status import COMPLETED, EXHAUSTED, INDEFINITE, PRECISION_LOST, TRUNCATED
from .._types import Key, ScalarLike
from ..kernels import Kernel, Mixture
from ..multiclass import Code
from ..normal_equations import NormalEquations, accumulate
from .candidates import CandidatesFromSums
from .dictionary import (
    Design,
    DictionaryColumns,
    System,
    design_of,
    dictionary_columns,
    kernels_of,
    system_of,
)
from .family import Family
from .held_out import Sums
from .method import Shape, Task, at_most, check_number, option, replaced, setting
from .nested import with_sizes
from .rows import Rows


class Selected(NamedTuple):
    """Coefficients of all atoms, for each of `c` targets and each size."""

    coefficients: Float[Array, "c s p"]
    statuses: Int[Array, "c s"]

    __repr__ = short_repr


class Pursuit(CandidatesFromSums):
    """The settings of machines with given numbers of atoms, without `C`.

    Args:
        max_prototypes: see `Candidates`, as are the following.
        candidates: their number, "all", or points in raw units.
        candidate_method: how they are chosen.
        subset: candidates looked at in each step; None for all.
        size_tolerance: of the size chosen.
        atoms: K, or several numbers of which cross-validation chooses.
        intercept: whether every machine has one; it is no prototype.
        ridge: least squares is of the mean squared error plus `ridge |coefficients|^2`.
    """

    has_C: ClassVar[bool] = False
    default_C: ClassVar[Float[np.ndarray, " s"]] = np.ones(1)
    max_rows: ClassVar[int | None] = 20_000  # the atoms at all rows are in memory

    atoms: Any = option(
        None,
        "numbers of atoms to choose from, with commas between them; default: up to the longest "
        "path",
        kind="sizes",
        metavar="K",
    )
    intercept: bool = setting(True)
    ridge: ScalarLike = 0.0

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_number("ridge", self.ridge, 0.0)
        if not isinstance(self.intercept, bool):
            raise ValueError(f"intercept: expected True or False, got {self.intercept!r}")

    def check_kernel(self, kernel: Kernel) -> None:
        """See `Method.check_kernel`: a dictionary may have atoms of several kernels."""
        if isinstance(kernel, Mixture) and kernel.which is not None:
            raise ValueError(
                "kernel: expected kernels of a dictionary, got a Mixture of prototypes"
            )

    def resolve(self, shape: Shape) -> "Pursuit":
        """See `Method.resolve`."""
        if self.atoms is None:
            bounded = self._bounded(shape)
            method = cast(Pursuit, CandidatesFromSums.resolve(bounded, shape))
            return replaced(method, atoms=self.default_sizes(method.longest))
        sizes = sizes_of(self.atoms, shape.present, "the rows with weight")
        if self.max_prototypes not in (None, sizes[-1]):
            raise ValueError(
                f"max_prototypes: expected None or the last of atoms, {sizes[-1]}, got "
                f"{self.max_prototypes}"
            )
        method = replaced(self, max_prototypes=sizes[-1], atoms=sizes)
        return cast(Pursuit, CandidatesFromSums.resolve(method, shape))

    def capped(self, shape: Shape) -> "Pursuit":
        """See `Method.capped`."""
        lowered = cast(Pursuit, super().capped(shape))
        bound = min(lowered._count(shape), shape.training)
        return replaced(lowered, atoms=at_most(self.atoms, bound))

    def _bounded(self, shape: Shape) -> "Pursuit":
        """Return the method with a bound on its default sizes, if large ones take long."""
        return self

    def default_sizes(self, longest: int) -> tuple[int, ...]:
        """Return the sizes where the user gives none: every size, as one pursuit gives them all."""
        return tuple(range(1, longest + 1))

    @property
    def fit_sizes(self) -> tuple[int, ...]:
        """The numbers of atoms, once resolved."""
        assert isinstance(self.atoms, tuple)
        return self.atoms

    def shortened(self, n_sizes: int) -> "Pursuit":
        """See `Method.shortened`."""
        sizes = self.fit_sizes[:n_sizes]
        return replaced(self, atoms=sizes, max_prototypes=sizes[-1])

    def features(self, kernel: Kernel, points: Float[Array, "M d"]) -> DictionaryColumns:
        """See `FromSums.features`: the atoms."""
        return dictionary_columns(kernel, points, intercept=self.intercept)

    def system(self, equations: NormalEquations) -> System:
        """Return the system from sums over rows, with a column for each target."""
        return system_of(equations, like(self.ridge, equations.gram), intercept=self.intercept)

    @abc.abstractmethod
    def select(self, system: System, key: Key | None) -> Selected:
        """Return the machines of every size from sums over rows, of each target by itself."""

    def select_with_rows(self, design: Design, system: System, key: Key | None) -> Selected:
        """Return the machines of every size where the rows are in memory.

        By default those of `select`.
        """
        return self.select(system, key)

    def solve(
        self,
        sums: Sums,
        C: ScalarLike | Float[Array, " l"],
        code: Code | None = None,
        key: Key | None = None,
    ) -> Family:
        """See `FromSums.solve`; `C` has no effect."""
        assert isinstance(sums.features, DictionaryColumns)
        return with_sizes(_solve(self, *sums, key), np.array(self.fit_sizes))

    def fit_in_memory(
        self,
        kernel: Kernel,
        points: Float[Array, "M d"],
        C: ScalarLike | Float[Array, " l"],
        rows: Rows,
        key: Key | None,
    ) -> Family:
        """See `pursuits.fit`; `C` has no effect."""
        return fit_rows(self, kernel, points, rows.X, rows.targets, rows.weights, key)


def fit_rows(
    method: Pursuit,
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None,
    key: Key | None,
) -> Family:
    """Return the machines of every size of a resolved method, fitted to rows."""
    family = _fit_rows(method, kernel, candidates, X, y, weights, key)
    return with_sizes(family, np.array(method.fit_sizes))


@compiled
def _fit_rows(
    method: Pursuit,
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None,
    key: Key | None,
) -> Family:
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    X, y = present_rows(X, w, apart=True), present_targets(y, w)
    columns = method.features(kernel, candidates)
    equations = accumulate(columns, X, y, w)
    design = design_of(columns, X, y, w, intercept=method.intercept)
    selected = method.select_with_rows(design, method.system(equations), key)
    return _family(method, columns, equations, selected)


@compiled
def _solve(
    method: Pursuit, columns: DictionaryColumns, equations: NormalEquations, key: Key | None
) -> Family:
    return _family(method, columns, equations, method.select(method.system(equations), key))


def _family(
    method: Pursuit, columns: DictionaryColumns, equations: NormalEquations, selected: Selected
) -> Family:
    """Return the machines with intercepts, which take up what was subtracted from the atoms."""
    outputs = equations.target_sum.shape
    equations = equations.with_outputs((math.prod(outputs),))
    coefficients = jnp.moveaxis(selected.coefficients, 0, -1)  # s p c
    intercepts = jnp.zeros_like(coefficients[:, 0])
    if method.intercept:
        explained = jnp.tensordot(coefficients, equations.feature_sum, axes=((1,), (0,)))
        mean = (equations.target_sum[None] - explained) / equations.weight_sum
        intercepts = mean - jnp.tensordot(coefficients, columns.shift, axes=((1,), (0,)))
    first, *others = kernels_of(columns.kernel)
    return Family(
        kernel=columns.kernel if others else first,
        points=columns.prototypes,
        support=None,
        coefficients=coefficients[None],
        intercepts=intercepts[None],
        sizes=jnp.asarray(method.fit_sizes, jnp.int32),
        statuses=jnp.max(selected.statuses, axis=0),
        info={},
        outputs=outputs,
    )


def sizes_of(atoms: Any, most: int, what: str) -> tuple[int, ...]:
    """Return numbers of atoms as Python's, increasing."""
    several = atoms if isinstance(atoms, tuple) else (atoms,)
    return tuple(increasing("atoms", several, most, what))


def dense(
    support: Int[Array, "c k"], coefficients: Float[Array, "c s k"], p: int
) -> Float[Array, "c s p"]:
    """Return the coefficients of all `p` atoms, zeros included."""

    def one(support: Int[Array, " k"], coefficients: Float[Array, "s k"]) -> Float[Array, "s p"]:
        out = jnp.zeros((len(coefficients), p), coefficients.dtype)
        return out.at[:, jnp.where(support < 0, p, support)].add(coefficients, mode="drop")

    return jax.vmap(one)(support, coefficients)


def statuses(
    status: Int[Array, "*c"],
    length: Int[Array, "*c"],
    lost: Bool[Array, "*c k"],
    places: Int[np.ndarray, " s"],
) -> Int[Array, "*c s"]:
    """Return the stop codes of the machines at some places of a path.

    Args:
        status: of the path. What ended it came after all its machines but the last.
        length: number of machines that are not repetitions of the last one.
        lost: which machines lost their digits.
        places: of the machines on the path.
    """
    status, length = status[..., None], length[..., None]
    # Digits are lost to machines, not to the path; but a path that is too short passed atoms over.
    status = jnp.where(status == PRECISION_LOST, TRUNCATED, status)
    after = (status == TRUNCATED) | (status == EXHAUSTED) | (status == INDEFINITE)
    inside = places.reshape(*[1] * (length.ndim - 1), -1) < length
    each = jnp.where(after & inside, COMPLETED, status)
    return jnp.where(lost[..., places], jnp.maximum(each, PRECISION_LOST), each).astype(jnp.int32)
