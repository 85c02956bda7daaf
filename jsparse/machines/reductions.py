"""Very sparse LS-SVMs by reweighting until few prototypes are left (Mall and Suykens 2015)."""

import dataclasses
import functools
import math
from typing import Any, ClassVar, Literal, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from .._arguments import real, whole_number
from .._blocks import map_systems
from .._numerics import (
    as_array,
    as_float,
    dot,
    eigh,
    epsilon,
    exponents,
    is_concrete,
    like,
    times_power,
)
from .._programs import compiled
from .._repr import short_repr
from .._status import NOT_FINITE, PRECISION_LOST, TRUNCATED, VANISHED
from .._types import Key, ScalarLike
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..features.nystroem import whitening
from ..kernels import Kernel
from ..multiclass import Code
from ..normal_equations import NormalEquations, accumulate
from ..prototypes.choice import choose_rows
from ..solvers.definite import factorise
from ..solvers.reweighted import Reweighted, Rule, reweighted, reweighted_rows
from . import dual
from .checks import check_problem, in_one_dtype
from .dual import Dual
from .fixed_size import FixedSize, Prototypes
from .method import FEW_C, Additive, Method, Points, Shape, Task, TrainingRows, option, rows_at
from .scdp import check_candidates
from .scdp_system import CandidateColumns, candidate_columns

Initialization = Literal["primal", "dual"]
Start = Literal["coefficients", "weights"]
Loss = Literal["rows", "prototypes"]
_SQUARES = 1e-10  # precision of which squares are precise enough
MOST = 1000  # prototypes to begin with, unless their number is given


class ReducedFit(NamedTuple):
    """A machine of few prototypes; the coefficients of all others are 0."""

    expansion: KernelExpansion
    count: Int[Array, ""]  # prototypes left
    stationarity: Float[Array, ""]  # of the last solution, see `Reweighted`
    steps: Int[Array, ""]  # ridge systems solved
    status: Int[Array, ""]

    def times_power(self, exponent: Int[Array, " 1"]) -> "ReducedFit":
        """Return the fit of targets times `2^exponent`."""
        machine = self.expansion
        expansion = dataclasses.replace(
            machine,
            coefficients=times_power(machine.coefficients[None], exponent)[0],
            intercept=times_power(machine.intercept[None], exponent)[0],
        )
        return self._replace(expansion=expansion)

    __repr__ = short_repr


@dataclasses.dataclass(frozen=True)
class SparseReduction(Prototypes, Additive):
    """The SPFS-LSSVM and SSD-LSSVM: most prototypes of an LS-SVM driven out (Mall and Suykens).

    The kernel is tuned for the machine it begins with, in the dual for the prototypes alone, as in
    the paper. `C`, by which the number of prototypes left is decided, is tuned for the reduction
    itself; the paper takes that of the first machine.

    Args:
        n_prototypes: how many to begin with; None for `k` roots of the number of rows (Table III),
            at most 1000.
        selection: "renyi" or "uniform".
        size_tolerance: of the values of `C`, the smallest is chosen, with the fewest prototypes,
            whose error is within so many standard errors of the least.
        k: see `n_prototypes`.
        initialization: the machine it begins with: "primal", a fixed-size LS-SVM of all rows
            (Algorithm 3), or "dual", an LS-SVM of the prototypes alone (eq. 6, Algorithm 4), which
            needs the rows in memory.
        start: what first weighs a prototype (static): its "coefficients" in that machine, or, for
            "primal", the "weights" of the features of as many eigenvectors, which have nothing to
            do with the prototype of that number but are what Algorithm 3 prints.
        loss: squared errors of all "rows", or of the "prototypes" alone, which is the SV_L0-norm
            PFS-LSSVM that the paper compares with and needs the rows in memory.
        rule: when it ends, see `solvers.reweighted`; by the "paper"'s rule it also begins exactly
            as printed; else in units in which the targets have the variance 1, and with no
            prototype weighed down so far that it would have to vanish.
    """

    name: ClassVar[str] = "reduction"
    title: ClassVar[str] = "sparse reduction"
    default_C: ClassVar[Float[np.ndarray, " s"]] = FEW_C
    shares_rows: ClassVar[bool] = True
    sparser_by_C: ClassVar[bool] = True

    n_prototypes: int | None = option(  # type: ignore[assignment]
        None, "number of prototypes to begin with", kind="sizes", metavar="M"
    )
    k: float = option(
        4.0,
        "begin with K times the root of the number of rows, if --prototypes is not given",
        kind="not negative",
        metavar="K",
    )
    initialization: Initialization = option(
        "primal", "the machine it begins with", choices=("primal", "dual")
    )
    start: Start = "coefficients"
    loss: Loss = "rows"
    rule: Rule = "relative"

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        real("k", self.k, 0.0, above=True)
        check_settings(self.initialization, self.start, self.loss, self.rule)
        if isinstance(self.n_prototypes, tuple | str):
            raise ValueError(
                f"n_prototypes: expected one number to begin with, got {self.n_prototypes}"
            )
        numbered = 1 if self.n_prototypes is None else self.n_prototypes
        FixedSize(numbered, self.selection, self.size_tolerance).check(task)

    def settled(self, shape: Shape) -> "SparseReduction":
        """See `Method.settled`."""
        m = self.n_prototypes
        if m is None:
            most = min(shape.present, MOST)
            m = min(max(shape.classes or 1, math.ceil(self.k * math.sqrt(shape.present))), most)
        m = whole_number("n_prototypes", m, 1, shape.n, "the number of rows")
        return dataclasses.replace(self, n_prototypes=m)

    @property
    def sums_suffice(self) -> bool:
        """See `Additive.sums_suffice`."""
        return self.initialization == "primal" and self.loss == "rows"

    def surrogate(self) -> Method:
        """The machine it begins with."""
        if self.initialization == "dual":
            return Dual()
        return FixedSize(self.largest, self.selection)

    @property
    def surrogate_sees(self) -> Literal["rows", "points"]:
        """See `Method.surrogate_sees`."""
        return "points" if self.initialization == "dual" else "rows"

    def points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Rows by entropy or at random, whatever the kernel."""
        chosen, status = choose_rows(
            key, self.selection, rows.X, self.largest, rows.labels, rows.weights, rows.n
        )
        return Points(rows_at(rows.X, chosen), chosen, status)

    def features(self, kernel: Kernel, points: Float[Array, "M d"]) -> "ReductionColumns":
        """The kernel's columns."""
        return reduction_columns(kernel, points)

    def informed(
        self,
        features: FeatureMap,
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"],
        weights: Float[Array, " n"],
    ) -> FeatureMap:
        """With the targets of the prototypes, where more than sums is needed."""
        assert isinstance(features, ReductionColumns)
        return features if self.sums_suffice else features.seen(X, y, weights)

    def solve(
        self,
        features: FeatureMap,
        sums: NormalEquations,
        C: ScalarLike | Float[Array, " l"],
        code: Code | None = None,
        *,
        key: Key | None = None,
    ) -> ReducedFit:
        """The reduction, from sums."""
        assert isinstance(features, ReductionColumns)
        _check_C(C)
        return _solve(self, features, sums, jnp.asarray(C, sums.gram.dtype))

    def values(
        self,
        features: FeatureMap,
        sums: NormalEquations,
        C: Float[Array, " s"],
        code: Code | None,
        X: Float[Array, "n d"],
        *,
        key: Key | None = None,
    ) -> tuple[Float[Array, "n s l"], Int[Array, " s"]]:
        """See `Additive.values`: the kernel is evaluated once for every `C`."""

        def one(C: Float[Array, ""]) -> tuple[Array, Array, Array]:
            fitted = self.solve(features, sums, C, code, key=key)
            model = fitted.expansion
            return model.coefficients.reshape(features.n_features, -1), model.intercept, fitted[-1]

        coefficients, intercepts, status = map_systems(one, C)
        columns = jnp.moveaxis(coefficients, 0, 1).reshape(features.n_features, -1)
        assert isinstance(features, ReductionColumns)
        model = KernelExpansion(
            features.kernel, features.prototypes, columns, intercepts.reshape(-1)
        )
        # Of the machine that this precision found the fold says what it is worth.
        lost = (status == PRECISION_LOST) | (status == VANISHED)
        status = jnp.where(lost, jnp.int32(TRUNCATED), status)
        return model(X).reshape(len(X), len(C), -1), status

    def kept(self, fitted: Any) -> Int[np.ndarray, " k"]:
        """See `Method.kept`: the prototypes that are left, or one where none is."""
        coefficients = np.asarray(fitted.expansion.coefficients)
        left = np.flatnonzero(np.any(coefficients.reshape(len(coefficients), -1) != 0, axis=1))
        return left if len(left) > 0 else np.zeros(1, int)


class ReductionColumns(CandidateColumns):
    """Kernel columns, with the targets of the rows that are prototypes where they are needed.

    In float32 they are turned: into the directions of the eigenvectors of `K(Z, Z)`, in which the
    columns are nearly orthogonal. Sums of squares then keep the digits of every direction, however
    small it is beside the largest, and the factor of the system has those of the columns
    themselves.
    """

    turn: Float[Array, "M M"] | None = None
    targets: Float[Array, "M *c"] | None = None  # weighted means over rows equal to the prototype
    weights: Float[Array, " M"] | None = None  # of those rows; 0: the prototype is none

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n M"]:
        """`K(X, Z)` less the constants, turned."""
        columns = super().__call__(X)
        return columns if self.turn is None else dot(columns, self.turn)

    def targets_times(self, exponent: Int[Array, " 1"]) -> "ReductionColumns":
        """Return the columns of targets times `2^exponent`."""
        if self.targets is None:
            return self
        targets = times_power(self.targets[None], exponent)[0]
        return eqx.tree_at(lambda map: map.targets, self, targets)

    def seen(
        self, X: Float[Array, "n d"], y: Float[Array, "n *c"], weights: Float[Array, " n"]
    ) -> "ReductionColumns":
        """With the targets of those of these rows that are prototypes."""
        given = jnp.where((weights > 0)[:, None], y.reshape(len(y), -1), 0)
        columns = jnp.concatenate([weights[:, None], weights[:, None] * given], axis=1)

        # Most rows are told apart by a number; where several have it, their elements are compared.
        own = _as_number(X)

        def of(one: tuple[Float[Array, " d"], Array]) -> Float[Array, " q"]:
            z, number = one
            hits = own == number
            equal = jax.lax.cond(
                jnp.sum(hits, dtype=jnp.int32) > 1,
                lambda: jnp.all(z[None] == X, axis=1),
                lambda: hits & jnp.all(z == X[jnp.argmax(hits)]),
            )
            return dot(equal.astype(X.dtype), columns)

        totals = jax.lax.map(of, (self.prototypes, _as_number(self.prototypes)))
        w = totals[:, 0]
        targets = totals[:, 1:] / jnp.where(w > 0, w, 1)[:, None]
        return eqx.tree_at(
            lambda map: (map.targets, map.weights),
            self,
            (targets.reshape(-1, *y.shape[1:]), w),
            is_leaf=lambda leaf: leaf is None,
        )


def reduction_columns(kernel: Kernel, prototypes: Float[Array, "M d"]) -> ReductionColumns:
    """Columns to sum, for prototypes."""
    plain = candidate_columns(kernel, prototypes)
    turn = eigh(plain.gram)[1] if epsilon(plain.gram.dtype) > _SQUARES else None
    return ReductionColumns(plain.kernel, plain.prototypes, plain.gram, plain.shift, turn)


def fit(
    kernel: Kernel,
    prototypes: Float[Array, "M d"],
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    initialization: Initialization = "primal",
    start: Start = "coefficients",
    loss: Loss = "rows",
    rule: Rule = "relative",
    block_rows: int | None = None,
) -> ReducedFit:
    """Fit an LS-SVM and drive most of its prototypes out (Mall and Suykens 2015).

    Minimises `sum_j log |beta_j| + C/2 sum_i weight_i (y_i - f(x_i))^2 / v` over
    `f(x) = sum_j beta_j k(z_j, x) + b`, the sum over the coefficients that are not 0, `v` the
    variance of the targets (1 by the paper's rule, whose targets are standardised), by the
    reweighted systems (10) and (13), which are one: the features of the first are functions of the
    prototypes. They begin with `lambda_j = |beta_j|` of the first machine, and come to a local
    minimum. With several outputs a prototype lives or dies for all.

    With every row a prototype, "dual" is the L0-norm LS-SVM of Lopez et al. (2011), and with the
    loss "prototypes", "primal" the SV_L0-norm PFS-LSSVM; the paper compares with both.

    Args:
        kernel: kernel of two points.
        prototypes: to begin with, shape `M d`; there may be more than rows.
        C: weight of the data-fit term, positive; the smaller, the fewer are left.
        X: inputs, shape `n d`, in the units of the prototypes.
        y: targets, shape `n`, or `n c` for several at once.
        weights: row weights, shape `n`, at least 0.
        initialization: "primal" (Algorithm 3) or "dual" (Algorithm 4; prototypes must be rows).
        start: see `SparseReduction`.
        loss: see `SparseReduction`; for "prototypes" they must be rows.
        rule: see `SparseReduction`.
        block_rows: rows in memory at a time (static).

    Returns:
        `ReducedFit`. The status is that of `solvers.reweighted`, or `VANISHED` where no prototype
        is left: the machine is its intercept.

    Pure; works under `jit` and `vmap`, and nothing recompiles when values change. Not
    differentiable in reverse mode (an iteration of unknown length).

    Raises:
        ValueError: for shapes that do not fit, values known to be out of range, unknown settings,
            or prototypes that are no rows where they must be.
    """
    _check_C(C)
    X, prototypes = as_float(X), as_float(prototypes)
    X, y, weights = in_one_dtype(X, as_array(y), weights)
    check_problem(None, C, X, y, weights)
    check_candidates(prototypes, X.shape[1])
    check_settings(initialization, start, loss, rule)
    method = SparseReduction(
        len(prototypes), initialization=initialization, start=start, loss=loss, rule=rule
    )
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    if not method.sums_suffice and all(is_concrete(a) for a in (X, prototypes, w)):
        rows = {row.tobytes() for row in np.asarray(X)[np.asarray(w) > 0] + 0.0}
        if not any(z.tobytes() in rows for z in np.asarray(prototypes) + 0.0):
            raise ValueError(
                "prototypes: expected rows of X with a weight above 0, whose targets are needed "
                f"for initialization={initialization!r} and loss={loss!r}; none of them is"
            )
    return _fit(method, kernel, prototypes, like(C, X), X, y, w, block_rows)


def subsampled_dual(
    kernel: Kernel,
    prototypes: Float[Array, "M d"],
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
) -> dual.DualFit:
    """The SD-LSSVM (Mall and Suykens 2015, eq. 6): an LS-SVM of the rows that are prototypes alone.

    Arguments as for `fit`; prototypes that are no rows of weight above 0 have the coefficient 0.
    """
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    columns = reduction_columns(kernel, prototypes).seen(X, y, w)
    assert columns.targets is not None
    return dual.fit(kernel, C, prototypes, columns.targets, columns.weights, method="cholesky")


def check_settings(initialization: str, start: str, loss: str, rule: str) -> None:
    """Raise a `ValueError` for one that is not known, or does not go with the others."""
    known = {
        "initialization": (initialization, ("primal", "dual")),
        "start": (start, ("coefficients", "weights")),
        "loss": (loss, ("rows", "prototypes")),
        "rule": (rule, ("relative", "paper")),
    }
    for name, (value, values) in known.items():
        if value not in values:
            raise ValueError(f"{name}: expected {' or '.join(map(repr, values))}, got {value!r}")
    if start == "weights" and initialization == "dual":
        raise ValueError("start: expected 'coefficients' with initialization='dual', got 'weights'")


def _check_C(C: ScalarLike | Array) -> None:
    if jnp.ndim(C) != 0:
        raise ValueError(
            "C: expected one number, as all outputs share their prototypes, got shape "
            f"{np.shape(C)}"
        )


@functools.partial(compiled, static_argnames=("method", "block_rows"))
def _fit(
    method: SparseReduction,
    kernel: Kernel,
    prototypes: Float[Array, "M d"],
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"],
    block_rows: int | None,
) -> ReducedFit:
    columns = reduction_columns(kernel, prototypes)
    y = jnp.where((weights > 0).reshape(-1, *[1] * (y.ndim - 1)), y, 0)
    exponent = _exponent(method, y)
    y = times_power(y[None], -exponent)[0]
    sums = accumulate(columns, X, y, weights, block_rows=block_rows)
    fitted = _solve(method, cast(Any, method.informed(columns, X, y, weights)), sums, C)
    return fitted.times_power(exponent)


def _exponent(method: SparseReduction, y: Float[Array, "*s"]) -> Int[Array, " 1"]:
    """The power of two of the targets' size; 0 by the paper's rule, which depends on their unit."""
    return exponents(y[None]) * int(method.rule != "paper")


@functools.partial(compiled, static_argnames="method")
def _solve(
    method: SparseReduction,
    columns: ReductionColumns,
    sums: NormalEquations,
    C: Float[Array, ""],
) -> ReducedFit:
    outputs = sums.cross.shape[1:]
    sums = sums.with_outputs((math.prod(outputs),))
    # Of tiny targets the squares are lost before their sums with the columns are.
    least = float(jnp.finfo(C.dtype).tiny) / epsilon(C.dtype)
    lost = (jnp.max(sums.target_square) < least * sums.weight_sum) & jnp.any(sums.cross != 0)
    exponent = _exponent(method, jnp.sqrt(_variance(sums)))
    columns, sums = columns.targets_times(-exponent), sums.targets_times(-exponent)
    system = _system(columns, sums)
    first = _start(method, columns, system, C)
    # As printed, `C` and the start depend on the units of the targets; here their variance is 1.
    square = jnp.ones((), C.dtype) if method.rule == "paper" else _variance(sums)
    weight = C / square
    of = sums
    if method.loss == "prototypes":
        of = _sums_of_prototypes(columns)
        system = _system(columns, of)
    # Those that cannot be told from 0 would not be penalised at all.
    penalty = jnp.maximum(first, epsilon(C.dtype) * jnp.max(first))
    if method.rule == "relative":
        # None is to begin smaller than a coefficient can be at a minimum, or all might vanish.
        penalty = jnp.minimum(penalty / square**1.5, weight * system.squares)
    found = system.reduced(weight, 1 / jnp.sqrt(penalty), method.rule)
    beta = found.coefficients
    explained = dot(of.feature_sum, beta if columns.turn is None else dot(columns.turn.T, beta))
    intercept = (of.target_sum - explained) / of.weight_sum
    model = columns.expansion(beta.reshape(-1, *outputs), intercept.reshape(outputs))
    none = (found.count == 0) & (found.status < NOT_FINITE)
    finite = jnp.all(jnp.isfinite(intercept))
    status = jnp.where(none, jnp.int32(VANISHED), found.status)
    status = jnp.where(lost, jnp.maximum(status, PRECISION_LOST), status).astype(jnp.int32)
    fitted = ReducedFit(
        expansion=model,
        count=found.count,
        stationarity=found.stationarity,
        steps=found.steps,
        status=jnp.where(finite, status, jnp.int32(NOT_FINITE)),
    )
    return fitted.times_power(exponent)


class Squares(NamedTuple):
    """The system of the prototypes, the intercept eliminated."""

    A: Float[Array, "M M"]
    b: Float[Array, "M c"]

    __repr__ = short_repr

    @property
    def squares(self) -> Float[Array, " M"]:
        """The diagonal of A."""
        return jnp.diagonal(self.A)

    def ridge(self, gram: Float[Array, "M M"], C: Float[Array, ""]) -> Float[Array, "M c"]:
        """The fixed-size LS-SVM in the kernel's columns (Karsmakers 2011, Theorem 1)."""
        return factorise(self.A + gram / C, jnp.zeros((), C.dtype)).solve(self.b)

    def reduced(self, C: Float[Array, ""], first: Float[Array, " M"], rule: Rule) -> Reweighted:
        """The reduction of it."""
        return reweighted(self.A, self.b, C, first, rule=rule)


class Factor(NamedTuple):
    """The same as `F'F` and `F'g`."""

    F: Float[Array, "M M"]
    g: Float[Array, "M c"]

    __repr__ = short_repr

    @property
    def squares(self) -> Float[Array, " M"]:
        """Of the lengths of the columns of F."""
        return jnp.sum(jnp.square(self.F), axis=0)

    def ridge(self, gram: Float[Array, "M M"], C: Float[Array, ""]) -> Float[Array, "M c"]:
        """See `Squares`."""
        A, b = dot(self.F.T, self.F), dot(self.F.T, self.g)
        return Squares(A, b).ridge(gram, C)

    def reduced(self, C: Float[Array, ""], first: Float[Array, " M"], rule: Rule) -> Reweighted:
        """See `Squares`."""
        return reweighted_rows(self.F, self.g, C, first, rule=rule)


def _system(columns: ReductionColumns, sums: NormalEquations) -> Squares | Factor:
    """From sums, with the intercept eliminated."""
    f, s = sums.feature_sum, sums.weight_sum
    A = sums.gram - f[:, None] * (f / s)[None, :]
    b = sums.cross - f[:, None] * (sums.target_sum / s)[None, :]
    if columns.turn is None:
        return Squares(A, b)
    square = jnp.diagonal(A)
    there = square > 0
    unit = jnp.where(there, 1 / jnp.sqrt(jnp.where(there, square, 1)), 0)
    length = jnp.where(there, square * unit, square)  # NaN stays what it is
    lower = factorise(unit[:, None] * A * unit[None, :], jnp.zeros((), A.dtype)).lower
    F = dot(lower.T, length[:, None] * columns.turn.T)
    return Factor(F, jax.scipy.linalg.solve_triangular(lower, unit[:, None] * b, lower=True))


def _start(
    method: SparseReduction,
    columns: ReductionColumns,
    system: Squares | Factor,
    C: Float[Array, ""],
) -> Float[Array, " M"]:
    """`lambda` of the first system: sizes of the coefficients of the machine it begins with."""
    if method.initialization == "dual":
        targets = columns.targets
        assert targets is not None
        assert columns.weights is not None
        # Less their mean, which the intercept takes up: of large targets it would round them.
        w, flat = columns.weights, targets.reshape(len(targets), -1)
        flat = flat - dot(w / jnp.sum(w), flat)[None]
        machine = dual.fit(columns.kernel, C, columns.prototypes, flat, w, method="cholesky")
        sizes = _sizes(machine.expansion.coefficients)
        # A prototype that is left out of this fold begins as the others do on average.
        there = columns.weights > 0
        mean = jnp.sum(jnp.where(there, sizes, 0)) / jnp.sum(there, dtype=sizes.dtype)
        return jnp.where(there, sizes, mean)
    beta = system.ridge(columns.gram, C)
    if method.start == "coefficients":
        return _sizes(beta)
    return _sizes(dot(whitening(columns.gram).T, dot(columns.gram, beta)))


def _variance(sums: NormalEquations) -> Float[Array, ""]:
    """Of the targets, all outputs together; 1 for constant ones."""
    mean = sums.target_sum / sums.weight_sum
    variance = jnp.sum(sums.target_square / sums.weight_sum - jnp.square(mean))
    return jnp.where(variance > 0, variance, 1)


def _as_number(X: Float[Array, "n d"]) -> UInt[Array, " n"]:
    """A whole number for each row, the same for equal rows and hardly ever for others."""
    X = X + 0.0  # -0 is 0
    bits = jax.lax.bitcast_convert_type(X, jnp.uint32).reshape(len(X), -1)
    factors = np.random.default_rng(0).integers(2**31, size=bits.shape[1], dtype=np.uint32)
    mixed = (bits ^ (bits >> 15)) * (2 * factors + 1)[None]
    return jnp.sum(mixed ^ (mixed >> 13), axis=1, dtype=jnp.uint32)


def _sizes(coefficients: Float[Array, "M *c"]) -> Float[Array, " M"]:
    return jnp.sqrt(jnp.sum(jnp.square(coefficients.reshape(len(coefficients), -1)), axis=1))


def _sums_of_prototypes(columns: ReductionColumns) -> NormalEquations:
    """The sums over the prototypes that are rows, in place of those over all rows."""
    targets, weights = columns.targets, columns.weights
    assert targets is not None
    assert weights is not None
    return accumulate(columns, columns.prototypes, targets.reshape(len(targets), -1), weights)
