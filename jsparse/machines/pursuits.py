"""Kernel subspace, matching and basis pursuit: as many atoms as are asked for (Kabbara 2015)."""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arguments import as_key, increasing, real, whole_number
from .._blocks import map_systems
from .._numerics import as_float, dot, epsilon, present_rows, present_targets, times_power
from .._runtime import compiled
from .._status import COMPLETED, EXHAUSTED, INDEFINITE, PRECISION_LOST, TRUNCATED
from .._types import Key, KeyLike, ScalarLike
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..multiclass import Code
from ..normal_equations import NormalEquations, accumulate
from ..pursuit import conjugate, least_angle, matching, on_atoms, probabilistic
from ..pursuit.on_atoms import least_squares
from ..pursuit.path import LOST, Path, assemble
from ..pursuit.subspace import subspace_pursuit, subspace_pursuit_gram
from ..pursuit.system import Columns, scaled
from .candidates import Candidates
from .checks import check_problem, in_one_dtype
from .method import Additive, Metric, Shape, Task, as_sizes, option
from .scdp import check_candidates
from .sized_path import SizedPath

Fitting = Literal["basic", "backfitting", "prefitting"]
SIZES = 10  # numbers of atoms tried by default, where each is a pursuit of its own
LARGEST = 100  # the largest of them
ITERATIONS = 5  # l_max of the source
_STEPS = 50  # of basic matching pursuit for each atom: it comes back to those it has


class DictionaryColumns(FeatureMap):
    """Atoms `k(., z)` of one kernel, or of several, less a constant each.

    The intercept takes the constants up, the means over the candidates; see `CandidateColumns`.
    Without an intercept they are 0.
    """

    kernels: tuple[Kernel, ...]
    prototypes: Float[Array, "m d"]
    shift: Float[Array, " p"]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n p"]:
        """Values of the atoms, those of the first kernel first."""
        return dictionary(self.kernels, X, self.prototypes) - self.shift[None, :]

    @property
    def n_features(self) -> int:
        """Number of atoms."""
        return len(self.kernels) * self.prototypes.shape[0]

    def penalty(self) -> Float[Array, "p p"] | None:
        """Of the coefficients, as they are."""
        return None

    def expansion(
        self, weights: Float[Array, "p *c"], intercept: Float[Array, "*c"]
    ) -> KernelExpansion:
        """Of one kernel."""
        (kernel,) = self.kernels
        moved = intercept - jnp.tensordot(self.shift, weights, axes=1)
        return KernelExpansion(kernel, self.prototypes, weights, moved)


def dictionary(
    kernels: tuple[Kernel, ...], X: Float[Array, "n d"], Z: Float[Array, "m d"]
) -> Float[Array, "n p"]:
    """`k_q(x_i, z_j)`, the columns of the first kernel first."""
    return jnp.concatenate([kernel.cross_gram(X, Z) for kernel in kernels], axis=1)


class System(NamedTuple):
    """Normal equations of the atoms, the intercept eliminated."""

    A: Float[Array, "p p"]
    b: Float[Array, "p c"]
    rounded: Float[Array, " p"]  # what the diagonal of A was rounded at
    ridge: Float[Array, ""]


class Rows(NamedTuple):
    """The atoms at the rows, times the roots of their weights; centred for an intercept."""

    D: Float[Array, "n p"]
    y: Float[Array, "n c"]


class Selected(NamedTuple):
    """Of each target, `c` of them, and each size the coefficients of all atoms."""

    coefficients: Float[Array, "c s p"]
    statuses: Int[Array, "c s"]


@dataclasses.dataclass(frozen=True)
class Pursuit(Candidates, Additive):
    """The settings of machines with given numbers of atoms, without `C`."""

    has_C: ClassVar[bool] = False
    default_C: ClassVar[Float[np.ndarray, " s"]] = np.ones(1)
    shares_rows: ClassVar[bool] = True
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

    def metric(self, task: Task) -> Metric:
        """Least squares, for classes too."""
        return "mse"

    def settled(self, shape: Shape) -> "Pursuit":
        """See `Method.settled`."""
        if self.atoms is None:
            method = cast(Pursuit, super(Pursuit, self._bounded(shape)).settled(shape))
            return dataclasses.replace(method, atoms=self.default_sizes(method.longest))
        sizes = _sizes(self.atoms, shape.present, "the rows with weight")
        if self.max_prototypes not in (None, sizes[-1]):
            raise ValueError(
                f"max_prototypes: expected None or the last of atoms, {sizes[-1]}, got "
                f"{self.max_prototypes}"
            )
        whole = dataclasses.replace(self, max_prototypes=sizes[-1], atoms=sizes)
        return cast(Pursuit, super(Pursuit, whole).settled(shape))

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
        return self.columns((kernel,), points)

    def columns(
        self, kernels: tuple[Kernel, ...], points: Float[Array, "M d"]
    ) -> DictionaryColumns:
        """The atoms of one kernel or several."""
        if self.intercept:
            shift = jnp.mean(dictionary(kernels, points, points), axis=0)
        else:
            shift = jnp.zeros(len(kernels) * len(points), points.dtype)
        return DictionaryColumns(kernels, points, shift)

    def system(self, sums: NormalEquations) -> System:
        """The system from sums over rows; a target is a column."""
        f, total = sums.feature_sum, sums.weight_sum
        A, b = sums.gram, sums.cross.reshape(len(f), -1)
        if self.intercept:
            A = A - f[:, None] * (f / total)[None, :]
            b = b - f[:, None] * (sums.target_sum.reshape(1, -1) / total)
        return System(A, b, jnp.diagonal(sums.gram), self.ridge * total)

    def rows(
        self,
        columns: DictionaryColumns,
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"],
        w: Float[Array, " n"],
    ) -> Rows:
        """What `system` is the normal equations of."""
        D, y, root = columns(X), y.reshape(len(X), -1), jnp.sqrt(w)[:, None]
        D = jnp.where(root > 0, D, 0)
        if self.intercept:
            share = w / jnp.sum(w)
            D, y = (a - dot(share, a)[None, :] for a in (D, y))
        return Rows(root * D, root * y)

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
        """See `fit`; `C` is not looked at."""
        assert points is not None
        targets = y if code is None else jnp.asarray(code.matrix, X.dtype)[y]
        return fit(self, kernel, points, X, targets, weights, key=key)


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
        unit, length = _of_unit_length(system)
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
        statuses = _statuses(path.status, path.size, lost, at)
        return Selected(_dense(path.support, path.coefficients[..., 0][:, at], p), statuses)


@dataclasses.dataclass(frozen=True)
class KBP(Pursuit):
    """Kernel basis pursuit (Guigue et al. 2005): least angle regression stopped after K steps.

    The atoms are of one length, as the source of the algorithm has it, and none leaves. The
    coefficients are those of the path, which shrinks them. Several targets or problems have
    prototypes each of its own.

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
        unit, length = _of_unit_length(system)
        k, at = self.longest, np.asarray(self.path_sizes, np.int32)
        diagonal, zero = jnp.diagonal(unit.A), jnp.zeros((), unit.A.dtype)

        def one(b: Float[Array, " p"]) -> Selected:
            columns, own, own_diagonal, scale = scaled(
                Columns(unit.A), b[None, :, None], diagonal[None]
            )
            path = least_angle.run(
                columns, own[0, :, 0], own_diagonal[0], zero, max_atoms=k, max_steps=k, lasso=False
            )
            path = scale.undone_alone(path)
            lost = epsilon(b.dtype) * path.condition[1:] > LOST
            status = _statuses(path.status, path.steps, lost, at - 1)
            return Selected(path.coefficients[at] * length[None, :], status)

        return jax.lax.map(one, unit.b.T)


def _of_unit_length(system: System) -> tuple[System, Float[Array, " p"]]:
    """Of atoms over their lengths, and one over these; 0 for atoms that are rounding."""
    diagonal = jnp.diagonal(system.A)
    there = diagonal > conjugate.NOISE * epsilon(diagonal.dtype) * system.rounded
    length = jnp.where(there, jax.lax.rsqrt(jnp.where(there, diagonal + system.ridge, 1)), 0)
    A = system.A + system.ridge * jnp.eye(len(diagonal), dtype=diagonal.dtype)
    A = A * length[:, None] * length[None, :]
    rounded = system.rounded * jnp.square(length)
    return System(A, system.b * length[:, None], rounded, system.ridge), length


def _in_units(path: Path, length: Float[Array, " p"]) -> Path:
    """A path of atoms of unit length as one of those given."""
    own = length[jnp.maximum(path.support, 0)]
    return path._replace(coefficients=path.coefficients * own[:, None, :, None])


def _dense(
    support: Int[Array, "c k"], coefficients: Float[Array, "c s k"], p: int
) -> Float[Array, "c s p"]:
    """Coefficients of all atoms."""

    def one(support: Int[Array, " k"], own: Float[Array, "s k"]) -> Float[Array, "s p"]:
        out = jnp.zeros((len(own), p), own.dtype)
        return out.at[:, jnp.where(support < 0, p, support)].add(own, mode="drop")

    return jax.vmap(one)(support, coefficients)


def _statuses(
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


def fit(
    method: Pursuit,
    kernel: Kernel | Sequence[Kernel],
    candidates: Float[Array, "M d"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    key: KeyLike | None = None,
) -> SizedPath:
    """Fit machines of every size of a method, `KSP`, `KMP` or `KBP`.

    Args:
        method: the settings, with `atoms` the sizes (static).
        kernel: kernel of two points; or several, of each of which every candidate has an atom: a
            dictionary of several kernels or widths.
        candidates: points of the atoms, shape `M d`.
        X: inputs, shape `n d`, in the units of the candidates.
        y: targets, shape `n`, or `n c` for several at once, each by itself.
        weights: row weights, shape `n`, at least 0.
        key: decides what is drawn at random, for a method with a `subset`.

    Works under `jit` and `vmap`, and nothing compiles again when values change. Not differentiable;
    `refit` is.

    Raises:
        ValueError: for inputs whose shapes do not fit, values known to be out of range, or more
            atoms than there are.
    """
    X, candidates = as_float(X), as_float(candidates)
    X, y, weights = in_one_dtype(X, jnp.asarray(y), weights)
    check_problem(None, 1.0, X, y, weights)
    check_candidates(candidates, X.shape[1])
    kernels = (kernel,) if isinstance(kernel, Kernel) else tuple(kernel)
    if not kernels or not all(isinstance(one, Kernel) for one in kernels):
        raise ValueError(f"kernel: expected a Kernel or several, got {kernel!r}")
    method.check("regression")
    if method.atoms is None:
        raise ValueError("atoms: expected one number of atoms or several, got None")
    sizes = _sizes(method.atoms, len(kernels) * len(candidates), "the number of atoms")
    if method.subset is not None and key is None:
        raise ValueError("key: expected one with a subset, got None")
    settled = dataclasses.replace(method, atoms=sizes, max_prototypes=sizes[-1])
    return _fit(settled, kernels, candidates, X, y, weights, None if key is None else as_key(key))


@functools.partial(compiled, static_argnames="method")
def _fit(
    method: Pursuit,
    kernels: tuple[Kernel, ...],
    candidates: Float[Array, "M d"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None,
    key: Key | None,
) -> SizedPath:
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    X, y = present_rows(X, w, apart=True), present_targets(y, w)
    columns = method.columns(kernels, candidates)
    sums = accumulate(columns, X, y, w)
    found = method.on_rows(method.rows(columns, X, y, w), method.system(sums), key)
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
        columns.kernels,
        columns.prototypes,
        jnp.asarray(method.path_sizes, jnp.int32),
        coefficients.reshape(s, p, *targets),
        intercepts.reshape(s, *targets),
        jnp.max(found.statuses, axis=0),
    )


def _sizes(atoms: Any, most: int, what: str) -> tuple[int, ...]:
    """Numbers of atoms, increasing."""
    given = atoms if isinstance(atoms, tuple) else (atoms,)
    return tuple(increasing("atoms", given, most, what))


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


def refit(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    intercept: bool = True,
) -> KernelExpansion:
    """Least squares on given prototypes: the last step of `KSP` and of `KMP` with back-fitting.

    Args:
        kernel: kernel of two points.
        prototypes: shape `m d`, those selected.
        X: inputs, shape `n d`, in the units of the prototypes.
        y: targets, shape `n` or `n c`.
        weights: row weights, shape `n`, at least 0.
        intercept: whether there is one (static).

    Differentiable in both modes in the kernel, prototypes, X, y and weights above 0, where the rank
    does not change; by the formula of the pseudo-inverse. Works under `jit` and `vmap`.

    Raises:
        ValueError: for inputs whose shapes do not fit, or values known to be out of range.
    """
    X, prototypes = as_float(X), as_float(prototypes)
    X, y, weights = in_one_dtype(X, jnp.asarray(y), weights)
    check_problem(None, 1.0, X, y, weights)
    check_candidates(prototypes, X.shape[1])
    method = KSP(intercept=intercept)
    columns = method.features(kernel, prototypes)
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    rows = method.rows(columns, X, y, w)
    found = least_squares(rows.D, rows.y)
    mean = jnp.zeros(found.shape[1:], X.dtype)
    if intercept:
        share = w / jnp.sum(w)
        mean = dot(share, y.reshape(len(X), -1)) - dot(dot(share, columns(X)), found)
    return columns.expansion(found.reshape(-1, *y.shape[1:]), mean.reshape(y.shape[1:]))
