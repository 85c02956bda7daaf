"""Solve the sparse reductions of LS-SVMs from sums over rows (Mall and Suykens 2015)."""

import dataclasses
import functools
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from .._numerics import dot, eigh, epsilon, exponents, resolves_products, times_power
from .._programs import compiled
from .._repr import short_repr
from .._status import NOT_FINITE, PRECISION_LOST, VANISHED
from ..expansion import KernelExpansion
from ..features.nystroem import whitening
from ..kernels import Kernel
from ..normal_equations import NormalEquations, accumulate
from ..solvers.definite import factorise
from ..solvers.reweighted import Rule, reweighted, reweighted_rows
from . import dual
from .checks import check_choice
from .scdp_system import CandidateColumns, candidate_columns

Initialization = Literal["primal", "dual"]
Start = Literal["coefficients", "weights"]
Loss = Literal["rows", "prototypes"]


class Variant(NamedTuple):
    """The settings that select one of the reductions, see `reductions.SparseReduction`."""

    initialization: Initialization = "primal"
    start: Start = "coefficients"
    loss: Loss = "rows"
    rule: Rule = "relative"

    __repr__ = short_repr

    @property
    def needs_rows(self) -> bool:
        """Whether the reduction needs `PrototypeTargets`, besides sums over rows."""
        return self.initialization == "dual" or self.loss == "prototypes"

    def check(self) -> None:
        """Raise a `ValueError` for an unknown setting, or one that another setting excludes."""
        for name, literal in Variant.__annotations__.items():
            check_choice(name, getattr(self, name), literal)
        if self.start == "weights" and self.initialization == "dual":
            raise ValueError(
                "start: expected 'coefficients' with initialization='dual', got 'weights'"
            )


class PrototypeTargets(NamedTuple):
    """The targets of the rows that equal each prototype."""

    values: Float[Array, " M *c"]  # weighted mean target of these rows
    weights: Float[Array, " M"]  # total weight of these rows; 0 if there are none

    __repr__ = short_repr


class ReductionColumns(CandidateColumns):
    """Kernel columns of the prototypes and, if the variant needs them, the prototypes' targets.

    In float32 the columns are rotated to the eigenvectors of `K(Z, Z)`, where they are nearly
    orthogonal. Sums of squares then keep the digits of small directions too, and the factor of the
    system is as precise as the columns.

    Attributes:
        rotation: eigenvectors of `K(Z, Z)`, shape `M M`; None in float64.
        targets: see `PrototypeTargets`; None if the variant does not need them.
    """

    rotation: Float[Array, "M M"] | None = None
    targets: PrototypeTargets | None = None

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n M"]:
        """Return `K(X, Z)` less the constants, rotated."""
        columns = super().__call__(X)
        return columns if self.rotation is None else dot(columns, self.rotation)

    def with_targets(self, targets: PrototypeTargets) -> "ReductionColumns":
        """Return the columns with other targets."""
        return dataclasses.replace(self, targets=targets)

    def targets_times(self, exponent: Int[Array, " 1"]) -> "ReductionColumns":
        """Return the columns with `targets` multiplied by `2^exponent`."""
        if self.targets is None:
            return self
        values = times_power(self.targets.values[None], exponent)[0]
        return self.with_targets(self.targets._replace(values=values))


@compiled
def reduction_columns(kernel: Kernel, prototypes: Float[Array, "M d"]) -> ReductionColumns:
    """Return the `ReductionColumns` of some prototypes, without targets."""
    columns = candidate_columns(kernel, prototypes)
    rotation = None if resolves_products(columns.gram.dtype) else eigh(columns.gram)[1]
    return ReductionColumns(kernel, prototypes, columns.gram, columns.shift, rotation)


@compiled
def prototype_targets(
    prototypes: Float[Array, "M d"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"],
) -> PrototypeTargets:
    """Return, for each prototype, mean target and total weight of the rows that are equal to it."""
    y_present = jnp.where((weights > 0)[:, None], y.reshape(len(y), -1), 0)
    summands = jnp.concatenate([weights[:, None], weights[:, None] * y_present], axis=1)
    hashes = _hash(X)

    # Most hashes belong to one row. If several rows share a hash, compare all their elements.
    def one(point: tuple[Float[Array, " d"], Array]) -> Float[Array, " q"]:
        z, hash_of_z = point
        hits = hashes == hash_of_z
        equal = jax.lax.cond(
            jnp.sum(hits, dtype=jnp.int32) > 1,
            lambda: jnp.all(z[None] == X, axis=1),
            lambda: hits & jnp.all(z == X[jnp.argmax(hits)]),
        )
        return dot(equal.astype(X.dtype), summands)

    totals = jax.lax.map(one, (prototypes, _hash(prototypes)))
    w = totals[:, 0]
    values = totals[:, 1:] / jnp.where(w > 0, w, 1)[:, None]
    return PrototypeTargets(values.reshape(-1, *y.shape[1:]), w)


def _hash(X: Float[Array, "n d"]) -> UInt[Array, " n"]:
    """Return a number for each row: equal for equal rows, and hardly ever for different rows."""
    X = X + 0.0  # -0 becomes 0
    bits = jax.lax.bitcast_convert_type(X, jnp.uint32).reshape(len(X), -1)
    factors = np.random.default_rng(0).integers(2**31, size=bits.shape[1], dtype=np.uint32)
    mixed = (bits ^ (bits >> 15)) * (2 * factors + 1)[None]
    return jnp.sum(mixed ^ (mixed >> 13), axis=1, dtype=jnp.uint32)


class ReducedFit(NamedTuple):
    """A machine on all initial prototypes; the coefficients of dropped prototypes are 0."""

    expansion: KernelExpansion
    count: Int[Array, ""]  # number of prototypes that are left
    # Largest |C beta_j'(b - A beta)_j - 1|, which is 0 at a local minimum; see `Reweighted`.
    stationarity: Float[Array, ""]
    steps: Int[Array, ""]  # number of ridge systems solved
    status: Int[Array, ""]

    __repr__ = short_repr

    def times_power(self, exponent: Int[Array, " 1"]) -> "ReducedFit":
        """Return the fit for targets multiplied by `2^exponent`."""
        arrays = self.expansion.coefficients, self.expansion.intercept
        beta, b = (times_power(a[None], exponent)[0] for a in arrays)
        machine = dataclasses.replace(self.expansion, coefficients=beta, intercept=b)
        return self._replace(expansion=machine)


@functools.partial(compiled, static_argnames="variant")
def solve(
    variant: Variant, columns: ReductionColumns, sums: NormalEquations, C: Float[Array, ""]
) -> ReducedFit:
    """Fit the first machine from sums over rows, and drop most prototypes; see `reductions.fit`.

    The sums are of the features `columns`, which must have targets if `variant.needs_rows`.
    """
    outputs = sums.cross.shape[1:]
    sums = sums.with_outputs((math.prod(outputs),))
    # Tiny targets lose precision: their squares underflow although their products do not.
    least = float(jnp.finfo(C.dtype).tiny) / epsilon(C.dtype)
    lost = (jnp.max(sums.target_square) < least * sums.weight_sum) & jnp.any(sums.cross != 0)
    exponent = target_exponent(variant, jnp.sqrt(_variance(sums)))
    columns, sums = columns.targets_times(-exponent), sums.targets_times(-exponent)
    # Mall and Suykens assume standardised targets. For others, C is divided by the variance.
    variance = jnp.ones((), C.dtype) if variant.rule == "paper" else _variance(sums)
    weight = C / variance
    system = _system(columns, sums)
    sizes = _first_sizes(variant, columns, system, C)
    if variant.loss == "prototypes":
        assert columns.targets is not None
        y, w = columns.targets
        sums = accumulate(columns, columns.prototypes, y.reshape(len(y), -1), w)
        system = _system(columns, sums)
    # A size at the level of rounding would leave its coefficient without a penalty.
    penalty = jnp.maximum(sizes, epsilon(C.dtype) * jnp.max(sizes))
    if variant.rule == "relative":
        # At a local minimum nonzero coefficients have a minimal size. Start none below this size,
        # as all coefficients might vanish otherwise.
        penalty = jnp.minimum(penalty / variance**1.5, weight * jnp.diagonal(system.A))
    start = weight, 1 / jnp.sqrt(penalty)
    if system.factor is None:
        reduced = reweighted(system.A, system.b, *start, rule=variant.rule)
    else:
        reduced = reweighted_rows(*system.factor, *start, rule=variant.rule)
    beta = reduced.coefficients
    rotated = beta if columns.rotation is None else dot(columns.rotation.T, beta)
    intercept = (sums.target_sum - dot(sums.feature_sum, rotated)) / sums.weight_sum
    none_left = (reduced.count == 0) & (reduced.status < NOT_FINITE)
    status = jnp.where(none_left, jnp.int32(VANISHED), reduced.status)
    status = jnp.where(lost, jnp.maximum(status, PRECISION_LOST), status).astype(jnp.int32)
    status = jnp.where(jnp.all(jnp.isfinite(intercept)), status, jnp.int32(NOT_FINITE))
    machine = columns.expansion(beta.reshape(-1, *outputs), intercept.reshape(outputs))
    fit = ReducedFit(machine, reduced.count, reduced.stationarity, reduced.steps, status)
    return fit.times_power(exponent)


def target_exponent(variant: Variant, y: Float[Array, "*s"]) -> Int[Array, " 1"]:
    """Return the exponent `e` for which `y / 2^e` is of size one; 0 for the paper's rule.

    The paper's rule depends on the unit of the targets, which therefore must not change.
    """
    return exponents(y[None]) * int(variant.rule != "paper")


class System(NamedTuple):
    """The normal equations `A beta = b` in the kernel columns, with the intercept eliminated."""

    A: Float[Array, "M M"]
    b: Float[Array, "M c"]
    # F and g with `A = F'F` and `b = F'g`: float32 resolves F, but not the squares in A.
    factor: tuple[Float[Array, "M M"], Float[Array, "M c"]] | None = None

    __repr__ = short_repr


def _system(columns: ReductionColumns, sums: NormalEquations) -> System:
    """Return the normal equations of the coefficients; with a rotation, also their factor."""
    f, s = sums.feature_sum, sums.weight_sum
    A = sums.gram - f[:, None] * (f / s)[None, :]
    b = sums.cross - f[:, None] * (sums.target_sum / s)[None, :]
    if columns.rotation is None:
        return System(A, b)
    square = jnp.diagonal(A)
    positive = square > 0
    unit = jnp.where(positive, 1 / jnp.sqrt(jnp.where(positive, square, 1)), 0)
    length = jnp.where(positive, square * unit, square)  # NaN stays NaN
    lower = factorise(unit[:, None] * A * unit[None, :], jnp.zeros((), A.dtype)).lower
    F = dot(lower.T, length[:, None] * columns.rotation.T)
    g = jax.scipy.linalg.solve_triangular(lower, unit[:, None] * b, lower=True)
    return System(dot(F.T, F), dot(F.T, g), (F, g))


def _first_sizes(
    variant: Variant, columns: ReductionColumns, system: System, C: Float[Array, ""]
) -> Float[Array, " M"]:
    """Return the first `lambda`: norms over outputs of each coefficient of the first machine.

    With the start "weights" these are coefficients of Nystroem features, else of prototypes.
    """
    if variant.initialization == "primal":
        # The fixed-size LS-SVM (Karsmakers 2011, Theorem 1).
        beta = factorise(system.A + columns.gram / C, jnp.zeros((), C.dtype)).solve(system.b)
        if variant.start == "weights":
            beta = dot(whitening(columns.gram).T, dot(columns.gram, beta))
        return jnp.linalg.norm(beta, axis=1)
    assert columns.targets is not None
    y, w = columns.targets
    y = y.reshape(len(y), -1)
    # Subtract the mean, which the intercept absorbs: a large mean would round the targets.
    y = y - dot(w / jnp.sum(w), y)[None]
    machine = dual.fit(columns.kernel, C, columns.prototypes, y, w, method="cholesky")
    sizes = jnp.linalg.norm(machine.expansion.coefficients, axis=1)
    # A prototype in the held-out fold has no coefficient: use the mean size.
    present = w > 0
    mean = jnp.sum(jnp.where(present, sizes, 0)) / jnp.sum(present, dtype=sizes.dtype)
    return jnp.where(present, sizes, mean)


def _variance(sums: NormalEquations) -> Float[Array, ""]:
    """Return the variance of the targets, added up over the outputs; 1 for constant targets."""
    mean = sums.target_sum / sums.weight_sum
    variance = jnp.sum(sums.target_square / sums.weight_sum - jnp.square(mean))
    return jnp.where(variance > 0, variance, 1)
