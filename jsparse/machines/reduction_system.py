"""Sparse reductions of LS-SVMs from sums over rows (Mall and Suykens 2015)."""

import dataclasses
import functools
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numerics import dot, epsilon, exponents, times_power
from .._programs import compiled
from .._repr import short_repr
from .._status import NOT_FINITE, PRECISION_LOST, VANISHED
from ..expansion import KernelExpansion
from ..features.nystroem import whitening
from ..normal_equations import NormalEquations
from ..solvers.definite import factorise
from ..solvers.reweighted import Reweighted, Rule, reweighted, reweighted_rows
from . import dual
from .reduction_columns import ReductionColumns

Initialization = Literal["primal", "dual"]
Start = Literal["coefficients", "weights"]
Loss = Literal["rows", "prototypes"]


class Variant(NamedTuple):
    """Which reduction it is; for the settings see `reductions.SparseReduction`."""

    initialization: Initialization = "primal"
    start: Start = "coefficients"
    loss: Loss = "rows"
    rule: Rule = "relative"

    __repr__ = short_repr

    @property
    def needs_rows(self) -> bool:
        """Whether it needs the targets of the rows that are prototypes, besides sums over rows."""
        return self.initialization == "dual" or self.loss == "prototypes"

    def check(self) -> None:
        """Raise a `ValueError` for an unknown setting, or one that another setting excludes."""
        allowed = {
            "initialization": ("primal", "dual"),
            "start": ("coefficients", "weights"),
            "loss": ("rows", "prototypes"),
            "rule": ("relative", "paper"),
        }
        for name, values in allowed.items():
            value = getattr(self, name)
            if value not in values:
                expected = " or ".join(map(repr, values))
                raise ValueError(f"{name}: expected {expected}, got {value!r}")
        if self.start == "weights" and self.initialization == "dual":
            raise ValueError(
                "start: expected 'coefficients' with initialization='dual', got 'weights'"
            )


class ReducedFit(NamedTuple):
    """A machine of few prototypes; the coefficients of all other prototypes are 0."""

    expansion: KernelExpansion
    count: Int[Array, ""]  # the number of prototypes left
    stationarity: Float[Array, ""]  # of the last solution, see `Reweighted`
    steps: Int[Array, ""]  # the number of ridge systems solved
    status: Int[Array, ""]

    __repr__ = short_repr

    def times_power(self, exponent: Int[Array, " 1"]) -> "ReducedFit":
        """Return the fit of targets times `2^exponent`."""
        machine = self.expansion
        expansion = dataclasses.replace(
            machine,
            coefficients=times_power(machine.coefficients[None], exponent)[0],
            intercept=times_power(machine.intercept[None], exponent)[0],
        )
        return self._replace(expansion=expansion)


@functools.partial(compiled, static_argnames="variant")
def solve(
    variant: Variant, columns: ReductionColumns, sums: NormalEquations, C: Float[Array, ""]
) -> ReducedFit:
    """Fit the first machine to rows that were summed, and reduce it; see `reductions.fit`.

    Args:
        variant: which reduction (static).
        columns: the columns that were summed; with targets if `variant.needs_rows`.
        sums: sums over rows.
        C: weight of the data-fit term.
    """
    outputs = sums.cross.shape[1:]
    sums = sums.with_outputs((math.prod(outputs),))
    # The squares of tiny targets underflow before their products with the columns do.
    least = float(jnp.finfo(C.dtype).tiny) / epsilon(C.dtype)
    lost = (jnp.max(sums.target_square) < least * sums.weight_sum) & jnp.any(sums.cross != 0)
    exponent = target_exponent(variant, jnp.sqrt(_variance(sums)))
    columns, sums = columns.targets_times(-exponent), sums.targets_times(-exponent)
    # The paper's C and start are for standardised targets: here C is divided by the variance.
    variance = jnp.ones((), C.dtype) if variant.rule == "paper" else _variance(sums)
    weight = C / variance
    system = _system(columns, sums)
    sizes = _first_sizes(variant, columns, system, C)
    if variant.loss == "prototypes":
        sums = columns.sums_over_prototypes()
        system = _system(columns, sums)
    # A size of 0 to rounding would leave its coefficient without any penalty.
    penalty = jnp.maximum(sizes, epsilon(C.dtype) * jnp.max(sizes))
    if variant.rule == "relative":
        # No coefficient begins below the least size that it can have at a minimum: else all
        # coefficients might vanish.
        penalty = jnp.minimum(penalty / variance**1.5, weight * system.squares)
    reduced = system.reduce(weight, 1 / jnp.sqrt(penalty), variant.rule)
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
    """Return the power of two of the targets' size, or 0 for the paper's rule.

    The paper's rule depends on the unit of the targets.
    """
    return exponents(y[None]) * int(variant.rule != "paper")


class GramSystem(NamedTuple):
    """Least squares in the columns of the prototypes, `A beta = b`, without the intercept."""

    A: Float[Array, "M M"]
    b: Float[Array, "M c"]

    __repr__ = short_repr

    @property
    def squares(self) -> Float[Array, " M"]:
        """The diagonal of `A`."""
        return jnp.diagonal(self.A)

    def ridge(self, gram: Float[Array, "M M"], C: Float[Array, ""]) -> Float[Array, "M c"]:
        """Return the coefficients of the fixed-size LS-SVM (Karsmakers 2011, Theorem 1)."""
        return factorise(self.A + gram / C, jnp.zeros((), C.dtype)).solve(self.b)

    def reduce(self, C: Float[Array, ""], first: Float[Array, " M"], rule: Rule) -> Reweighted:
        """Return the reduction, see `reweighted`."""
        return reweighted(self.A, self.b, C, first, rule=rule)


class FactorSystem(NamedTuple):
    """The system with `A = F'F` and `b = F'g`, for float32, which does not hold the squares."""

    F: Float[Array, "M M"]
    g: Float[Array, "M c"]

    __repr__ = short_repr

    @property
    def squares(self) -> Float[Array, " M"]:
        """The diagonal of `A`."""
        return jnp.sum(jnp.square(self.F), axis=0)

    def ridge(self, gram: Float[Array, "M M"], C: Float[Array, ""]) -> Float[Array, "M c"]:
        """See `GramSystem.ridge`."""
        A, b = dot(self.F.T, self.F), dot(self.F.T, self.g)
        return GramSystem(A, b).ridge(gram, C)

    def reduce(self, C: Float[Array, ""], first: Float[Array, " M"], rule: Rule) -> Reweighted:
        """See `GramSystem.reduce`."""
        return reweighted_rows(self.F, self.g, C, first, rule=rule)


def _system(columns: ReductionColumns, sums: NormalEquations) -> GramSystem | FactorSystem:
    """Return the system of some sums, with the intercept eliminated."""
    f, s = sums.feature_sum, sums.weight_sum
    A = sums.gram - f[:, None] * (f / s)[None, :]
    b = sums.cross - f[:, None] * (sums.target_sum / s)[None, :]
    if columns.rotation is None:
        return GramSystem(A, b)
    square = jnp.diagonal(A)
    positive = square > 0
    unit = jnp.where(positive, 1 / jnp.sqrt(jnp.where(positive, square, 1)), 0)
    length = jnp.where(positive, square * unit, square)  # NaN stays NaN
    lower = factorise(unit[:, None] * A * unit[None, :], jnp.zeros((), A.dtype)).lower
    F = dot(lower.T, length[:, None] * columns.rotation.T)
    g = jax.scipy.linalg.solve_triangular(lower, unit[:, None] * b, lower=True)
    return FactorSystem(F, g)


def _first_sizes(
    variant: Variant,
    columns: ReductionColumns,
    system: GramSystem | FactorSystem,
    C: Float[Array, ""],
) -> Float[Array, " M"]:
    """Return the sizes of the first machine's coefficients, `lambda` of the first system."""
    if variant.initialization == "primal":
        beta = system.ridge(columns.gram, C)
        if variant.start == "coefficients":
            return _row_lengths(beta)
        return _row_lengths(dot(whitening(columns.gram).T, dot(columns.gram, beta)))
    assert columns.targets is not None
    targets, w = columns.targets
    y = targets.reshape(len(targets), -1)
    # The intercept takes up the mean of the targets; left in, a large mean would round them.
    y = y - dot(w / jnp.sum(w), y)[None]
    machine = dual.fit(columns.kernel, C, columns.prototypes, y, w, method="cholesky")
    sizes = _row_lengths(machine.expansion.coefficients)
    # A prototype of the fold that is left out has no coefficient: it takes the mean size.
    present = w > 0
    mean = jnp.sum(jnp.where(present, sizes, 0)) / jnp.sum(present, dtype=sizes.dtype)
    return jnp.where(present, sizes, mean)


def _row_lengths(coefficients: Float[Array, "M *c"]) -> Float[Array, " M"]:
    return jnp.sqrt(jnp.sum(jnp.square(coefficients.reshape(len(coefficients), -1)), axis=1))


def _variance(sums: NormalEquations) -> Float[Array, ""]:
    """Return the variance of the targets, added up over the outputs; 1 for constant targets."""
    mean = sums.target_sum / sums.weight_sum
    variance = jnp.sum(sums.target_square / sums.weight_sum - jnp.square(mean))
    return jnp.where(variance > 0, variance, 1)
