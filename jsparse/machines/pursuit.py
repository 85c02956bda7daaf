"""What machines with given numbers of atoms share: settings, sizes, intercepts."""

import abc
import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arguments import increasing, real
from .._numerics import present_rows, present_targets
from .._programs import compiled
from .._repr import short_repr
from .._status import COMPLETED, EXHAUSTED, INDEFINITE, PRECISION_LOST, TRUNCATED
from .._types import Key, ScalarLike
from ..features import FeatureMap
from ..kernels import Kernel
from ..multiclass import Code
from ..normal_equations import NormalEquations, accumulate
from .candidates import Candidates
from .dictionary import (
    DictionaryColumns,
    Rows,
    System,
    dictionary_columns,
    kernels_of,
    rows_of,
    system_of,
)
from .method import Additive, Metric, Shape, Task, as_sizes, at_most, option
from .sized_path import SizedPath


class Selected(NamedTuple):
    """Of each target, `c` of them, and each size the coefficients of all atoms."""

    coefficients: Float[Array, "c s p"]
    statuses: Int[Array, "c s"]

    __repr__ = short_repr


@dataclasses.dataclass(frozen=True)
class Pursuit(Candidates, Additive):
    """The settings of machines with given numbers of atoms, without `C`."""

    has_C: ClassVar[bool] = False
    default_C: ClassVar[Float[np.ndarray, " s"]] = np.ones(1)
    shares_rows: ClassVar[bool] = True
    several_kernels: ClassVar[bool] = True
    most_rows: ClassVar[int | None] = 20_000  # the atoms at all rows are in memory

    atoms: Any = option(
        None,
        "numbers of atoms to choose from, with commas between them; default: up to the longest "
        "path",
        kind="sizes",
        metavar="K",
    )
    intercept: bool = True
    ridge: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "atoms", as_sizes(self.atoms))

    @property
    def memory(self) -> int | None:
        """The candidates, once their number is known."""
        return self.n_candidates

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        real("ridge", self.ridge, 0.0)
        if not isinstance(self.intercept, bool):
            raise ValueError(f"intercept: expected True or False, got {self.intercept!r}")

    def criterion(self, task: Task) -> Metric:
        """Least squares, for classes too."""
        return "mse"

    def settled(self, shape: Shape) -> "Pursuit":
        """See `Method.settled`."""
        if self.atoms is None:
            method = cast(Pursuit, super(Pursuit, self._bounded(shape)).settled(shape))
            return dataclasses.replace(method, atoms=self.default_sizes(method.longest))
        sizes = sizes_of(self.atoms, shape.present, "the rows with weight")
        if self.max_prototypes not in (None, sizes[-1]):
            raise ValueError(
                f"max_prototypes: expected None or the last of atoms, {sizes[-1]}, got "
                f"{self.max_prototypes}"
            )
        whole = dataclasses.replace(self, max_prototypes=sizes[-1], atoms=sizes)
        return cast(Pursuit, super(Pursuit, whole).settled(shape))

    def capped(self, shape: Shape) -> "Pursuit":
        """See `Method.capped`."""
        lowered = cast(Pursuit, super().capped(shape))
        bound = min(lowered._resolved_candidates(shape), shape.training)
        return dataclasses.replace(lowered, atoms=at_most(self.atoms, bound))

    def _bounded(self, shape: Shape) -> "Pursuit":
        """With a bound on the default sizes, where they are dear."""
        return self

    def default_sizes(self, longest: int) -> tuple[int, ...]:
        """Every size, as they come from one pursuit."""
        return tuple(range(1, longest + 1))

    @property
    def path_sizes(self) -> tuple[int, ...]:
        """See `PathMethod.path_sizes`."""
        assert isinstance(self.atoms, tuple)
        return self.atoms

    def shortened(self, length: int) -> "Pursuit":
        """Itself: its sizes are what they are."""
        return self

    def features(self, kernel: Kernel, points: Float[Array, "M d"]) -> DictionaryColumns:
        """The atoms."""
        return dictionary_columns(kernel, points, intercept=self.intercept)

    def system(self, sums: NormalEquations) -> System:
        """The system from sums over rows; a target is a column."""
        return system_of(sums, self.ridge, intercept=self.intercept)

    @abc.abstractmethod
    def select(self, system: System, key: Key | None) -> Selected:
        """Machines of every size from sums over rows, each target by itself."""

    def on_rows(self, rows: Rows, system: System, key: Key | None) -> Selected:
        """The same where the rows are there; by default no better."""
        return self.select(system, key)

    def solve(
        self,
        features: FeatureMap,
        sums: NormalEquations,
        C: ScalarLike | Float[Array, " l"],
        code: Code | None = None,
        *,
        key: Key | None = None,
    ) -> SizedPath:
        """From the sums alone; `fit` sees the rows. `C` is not looked at."""
        assert isinstance(features, DictionaryColumns)
        return _solve(self, features, sums, key)

    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "M d"] | None,
        C: ScalarLike | Float[Array, " l"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        code: Code | None = None,
        key: Key | None = None,
    ) -> SizedPath:
        """See `pursuits.fit`; `C` is not looked at."""
        assert points is not None
        targets = y if code is None else jnp.asarray(code.matrix, X.dtype)[y]
        return fit_rows(self, kernel, points, X, targets, weights, key)


@functools.partial(compiled, static_argnames="method")
def fit_rows(
    method: Pursuit,
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None,
    key: Key | None,
) -> SizedPath:
    """Machines of every size on rows, the method settled."""
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    X, y = present_rows(X, w, apart=True), present_targets(y, w)
    columns = method.features(kernel, candidates)
    sums = accumulate(columns, X, y, w)
    rows = rows_of(columns, X, y, w, intercept=method.intercept)
    found = method.on_rows(rows, method.system(sums), key)
    return _machines(method, columns, sums, found)


@functools.partial(compiled, static_argnames="method")
def _solve(
    method: Pursuit, columns: DictionaryColumns, sums: NormalEquations, key: Key | None
) -> SizedPath:
    return _machines(method, columns, sums, method.select(method.system(sums), key))


def _machines(
    method: Pursuit, columns: DictionaryColumns, sums: NormalEquations, found: Selected
) -> SizedPath:
    """With intercepts, which take up what was subtracted from the atoms."""
    targets = sums.cross.shape[1:]
    coefficients = jnp.moveaxis(found.coefficients, 0, -1)  # s p c
    intercepts = jnp.zeros_like(coefficients[:, 0])
    if method.intercept:
        explained = jnp.tensordot(coefficients, sums.feature_sum, axes=((1,), (0,)))
        mean = (sums.target_sum.reshape(1, -1) - explained) / sums.weight_sum
        intercepts = mean - jnp.tensordot(coefficients, columns.shift, axes=((1,), (0,)))
    s, p = coefficients.shape[:2]
    return SizedPath(
        kernels_of(columns.kernel),
        columns.prototypes,
        jnp.asarray(method.path_sizes, jnp.int32),
        coefficients.reshape(s, p, *targets),
        intercepts.reshape(s, *targets),
        jnp.max(found.statuses, axis=0),
    )


def sizes_of(atoms: Any, most: int, what: str) -> tuple[int, ...]:
    """Numbers of atoms, increasing."""
    given = atoms if isinstance(atoms, tuple) else (atoms,)
    return tuple(increasing("atoms", given, most, what))


def dense(
    support: Int[Array, "c k"], coefficients: Float[Array, "c s k"], p: int
) -> Float[Array, "c s p"]:
    """Coefficients of all atoms."""

    def one(support: Int[Array, " k"], own: Float[Array, "s k"]) -> Float[Array, "s p"]:
        out = jnp.zeros((len(own), p), own.dtype)
        return out.at[:, jnp.where(support < 0, p, support)].add(own, mode="drop")

    return jax.vmap(one)(support, coefficients)


def statuses(
    status: Int[Array, "*c"],
    size: Int[Array, "*c"],
    lost: Bool[Array, "*c k"],
    at: Int[np.ndarray, " s"],
) -> Int[Array, "*c s"]:
    """Of machines on a path: what ended it came after all but the last; digits each loses alone."""
    status, size = status[..., None], size[..., None]
    # Digits are lost to machines, not to the path; but one that is too short passed atoms over.
    status = jnp.where(status == PRECISION_LOST, TRUNCATED, status)
    after = (status == TRUNCATED) | (status == EXHAUSTED) | (status == INDEFINITE)
    there = at.reshape(*[1] * (size.ndim - 1), -1) < size
    each = jnp.where(after & there, COMPLETED, status)
    return jnp.where(lost[..., at], jnp.maximum(each, PRECISION_LOST), each).astype(jnp.int32)
