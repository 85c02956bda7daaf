"""Convex problems for the coefficients of given prototypes, for the direct method (Wu 2006).

`W(Z)` is the minimum of a problem's objective for the prototypes `Z`.
"""

import abc
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._blocks import map_systems
from .._numerics import dot, dot_over_rows, epsilon, exponents, times_power
from .._repr import short_repr
from .._status import CONVERGED, PRECISION_LOST, status_of
from .._types import ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..scaling import standardize
from ..solvers import interior_point
from ..solvers.definite import cholesky, inverse_of_lower

Penalty = Literal["norm", "coefficients"]
_SMALL_GAP = 1e-3  # relative duality gap that is far below what a step of the descent gains


class Solved(NamedTuple):
    """The solution of an inner problem for given prototypes."""

    value: Float[Array, ""]  # W(Z), the minimum of the objective
    coefficients: Float[Array, " m *c"]  # beta
    intercept: Float[Array, "*c"]  # b
    multipliers: Any  # Lagrange multipliers; arrays whose shapes depend on the problem
    status: Int[Array, ""]

    __repr__ = short_repr

    def times_power(self, exponent: Int[Array, ""]) -> "Solved":
        """Return the solution for targets times `2^exponent`, to undo `InnerProblem.scaled`.

        The multipliers are not scaled: problems with multipliers have an exponent of 0.
        """
        once, twice = exponent[None], 2 * exponent[None]
        return self._replace(
            value=times_power(self.value[None], twice)[0],
            coefficients=times_power(self.coefficients[None], once)[0],
            intercept=times_power(self.intercept[None], once)[0],
        )


class InnerProblem(eqx.Module):
    """The optimisation problem for a machine `w = sum_i beta_i phi(z_i)` with given `z_i`.

    A subclass defines `solve` and `lagrangian`. It overrides `spread` and `scaled` if inputs or
    targets may have any units, and `magnitude` if the minimum may be close to 0.
    """

    kernel: eqx.AbstractVar[Kernel]

    @abc.abstractmethod
    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """Return the optimal coefficients, intercept and multipliers for the prototypes `Z`."""

    @abc.abstractmethod
    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """Return the Lagrangian, a function of `Z` and the fields, at a fixed solution."""

    def spread(self) -> ScalarLike | Float[Array, " d"]:
        """Return the unit of a descent's steps in each input column."""
        return 1.0

    def magnitude(self, value: Float[Array, ""]) -> Float[Array, ""]:
        """Return the size relative to which decreases of `W = value` count; by default `|W|`."""
        return jnp.abs(value)

    def scaled(self) -> tuple["InnerProblem", Int[Array, ""]]:
        """Return the problem with targets divided by `2^e`, and the exponent `e`.

        The scaled targets are of size one. Coefficients and intercept are divided by `2^e`, and `W`
        by `4^e`. By default `e` is 0. A subclass that overrides this method must have no
        multipliers, as `Solved.times_power` does not scale them.
        """
        return self, jnp.zeros((), jnp.int32)

    def expansion(self, Z: Float[Array, "m d"], solved: Solved) -> KernelExpansion:
        """Return the solution as a machine."""
        return KernelExpansion(self.kernel, Z, solved.coefficients, solved.intercept)


class Supervised(InnerProblem):
    """An inner problem of rows with targets.

    Attributes:
        kernel: kernel of two points.
        X: inputs, shape `n d`.
        y: targets, shape `n` or `n l`.
        C: weight of the data-fit term, shape `()` or `l`.
        weights: row weights, shape `n`, or `n l` for weights of each target; 0 for an absent row.
    """

    kernel: Kernel
    X: Float[Array, "n d"]
    y: Float[Array, " n *l"]
    C: Float[Array, "*k"]
    weights: Float[Array, " n"] | Float[Array, "n l"]

    def __init__(
        self,
        kernel: Kernel,
        X: Float[Array, "n d"],
        y: Float[Array, " n *l"],
        C: ScalarLike | Float[Array, " l"],
        weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
    ) -> None:
        # Absent rows become copies of a present row: their values would affect the rounding of
        # distances, which a descent amplifies.
        w = jnp.ones(len(X), X.dtype) if weights is None else weights
        heaviest = w if w.ndim == 1 else jnp.max(w, axis=1)
        self.kernel, self.C, self.weights = kernel, jnp.asarray(C, X.dtype), w
        self.y = jnp.where((heaviest > 0).reshape(-1, *[1] * (y.ndim - 1)), y, 1)
        self.X = jnp.where((heaviest > 0)[:, None], X, X[jnp.argmax(heaviest)][None, :])

    def spread(self) -> Float[Array, " d"]:
        """Return the weighted standard deviation of each input column; 1 for constant columns."""
        w = self.weights
        return standardize(self.X, w if w.ndim == 1 else jnp.max(w, axis=1)).scale

    def columns(self) -> tuple[Array, Array, Array]:
        """Return targets, row weights and `C` for each target, shapes `n l`, `n l` and `l`."""
        y, w = (a.reshape(len(self.y), -1) for a in (self.y, self.weights))
        return y, jnp.broadcast_to(w, y.shape), jnp.broadcast_to(self.C, y.shape[1:])


class LargeMargin(Supervised):
    """The support vector machine in the span of `Z` (Wu 2006, problem (24)-(27)).

    Minimise `1/2 |w|^2 + C sum_i weight_i max(0, 1 - y_i f(x_i))`, or for the squared hinge
    `1/2 |w|^2 + C/2 sum_i weight_i max(0, 1 - y_i f(x_i))^2`, summed over targets, which are -1 and
    +1. `Supervised` describes the other attributes.

    Attributes:
        loss: "hinge" or "squared_hinge" (static).
        penalty: "norm" for `|w|^2`, or "coefficients" for `|beta|^2` instead (static).
    """

    loss: interior_point.Hinge = eqx.field(static=True)
    penalty: Penalty = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel,
        X: Float[Array, "n d"],
        y: Float[Array, " n *l"],
        C: ScalarLike | Float[Array, " l"],
        weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
        loss: interior_point.Hinge = "hinge",
        penalty: Penalty = "norm",
    ) -> None:
        super().__init__(kernel, X, y, C, weights)
        self.loss, self.penalty = loss, penalty

    def solve(self, Z: Float[Array, "m d"], tolerance: float | None = None) -> Solved:
        """Solve by `interior_point.solve`, to a relative duality gap of `tolerance`.

        If it is None, the tolerance depends on the dtype, see `_gap_tolerance`. The features are
        `T' k(Z, x)` (eq. 41), or `k(Z, x)` with the penalty "coefficients".
        """
        Phi, T = self.kernel.cross_gram(self.X, Z), None
        if self.penalty == "norm":
            T = whitener(self.kernel, Z)
            Phi = dot(Phi, T)
        svm = interior_point.solve(
            Phi, self.y, self.C, self.weights, loss=self.loss,
            tolerance=_gap_tolerance(Phi) if tolerance is None else tolerance,
        )  # fmt: skip
        beta, value = svm.weights if T is None else dot(T, svm.weights), jnp.sum(svm.objective)
        return Solved(value, beta, svm.intercept, svm.dual, _worst_status(svm))

    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """Return the Lagrangian of eq. 32, summed over targets."""
        y, alpha, beta = self.y, solved.multipliers, solved.coefficients
        values = dot(self.kernel.cross_gram(self.X, Z), beta)
        margin = y * (values + jnp.broadcast_to(solved.intercept, values.shape))
        xi = jax.lax.stop_gradient(jnp.maximum(1 - margin, 0))
        w = self.weights if self.weights.ndim == y.ndim else self.weights[:, None]
        bound = jnp.broadcast_to(self.C, y.shape) * w
        if self.loss == "hinge":
            loss = (bound - jax.lax.stop_gradient(bound - alpha)) * xi
        else:
            loss = bound * jnp.square(xi) / 2
        by_row = jnp.where(w > 0, loss - alpha * (margin - 1 + xi), 0)
        if self.penalty == "norm":
            penalty = norm_squared(self.kernel, Z, beta)
        else:
            penalty = jnp.sum(jnp.square(beta))
        return penalty / 2 + jnp.sum(by_row)


class LeastSquares(Supervised):
    """Kernel ridge regression, the LS-SVM, in the span of `Z`: variable projection.

    Minimise `1/2 |w|^2 + C/2 sum_i weight_i (y_i - f(x_i))^2`, summed over targets.
    """

    def scaled(self) -> tuple[InnerProblem, Int[Array, ""]]:
        """See `InnerProblem.scaled`."""
        weights = self.weights.reshape(len(self.y), *[-1] * (self.y.ndim - 1))
        y = jnp.where(weights > 0, self.y, 0)
        exponent = exponents(y[None])
        y = times_power(y[None], -exponent)[0]
        return LeastSquares(self.kernel, self.X, y, self.C, self.weights), exponent[0]

    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """Solve the centred normal equations by a Cholesky factorisation.

        One factorisation serves all targets if they share weights and `C`. If the dtype cannot hold
        squared targets, and thus `W(Z)`, the status is `NOT_FINITE` or `PRECISION_LOST`.
        """
        T = whitener(self.kernel, Z)
        Phi = dot(self.kernel.cross_gram(self.X, Z), T)
        y, w, C = self.columns()
        if self.weights.ndim == 1 and self.C.ndim == 0:
            solution, intercept = _ridge(Phi, y, self.C, self.weights)
        else:
            solutions, intercepts = map_systems(
                lambda target: _ridge(Phi, target[0][:, None], *target[1:]), (y.T, C, w.T)
            )
            solution, intercept = solutions[:, :, 0].T, intercepts[:, 0]
        solution = solution.reshape(len(Z), *self.y.shape[1:])
        intercept = intercept.reshape(self.y.shape[1:])
        solved = Solved(
            jnp.zeros((), Phi.dtype), dot(T, solution), intercept, (), jnp.asarray(CONVERGED)
        )
        value = self.lagrangian(Z, solved)
        # Below `smallest`, squared targets underflow. W > 0 unless the machine is constant.
        smallest = float(jnp.finfo(value.dtype).tiny) / epsilon(value.dtype)
        lost = (value < 0) | (value < smallest) & jnp.any(solution != 0)
        return solved._replace(value=value, status=status_of(~jnp.isfinite(value), lost))

    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """Return the objective itself, as there are no constraints."""
        values = dot(self.kernel.cross_gram(self.X, Z), solved.coefficients)
        values = values + jnp.broadcast_to(solved.intercept, values.shape)
        y, w, C = self.columns()
        loss = jnp.sum(C * jnp.sum(w * jnp.square(y - values.reshape(y.shape)), axis=0))
        return norm_squared(self.kernel, Z, solved.coefficients) / 2 + loss / 2


class Fisher(Supervised):
    """The kernel Fisher discriminant in the span of `Z` (Wu 2006, Appendix A, eq. 57-63).

    Minimise `-w'A w` subject to `w'(B + mu I) w = 1`, summed over targets, which are -1 and +1.
    `w'A w` is the squared distance of the class means, and `w'B w` the variance of the values
    within the classes. With `mu = 1 / (C sum_i weight_i)` the LS-SVM with an equal `C` has the same
    direction. The intercept is 0. If a target has rows of only one class, its direction is 0.
    """

    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """Solve the generalised eigenproblem of `A` and `B + mu I`.

        As `A = d d'` has rank one, the largest eigenvalue is `d' (B + mu I)^(-1) d`.
        """
        T = whitener(self.kernel, Z)
        Phi = dot(self.kernel.cross_gram(self.X, Z), T)
        y, w, C = self.columns()

        def one_target(target: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            y, C, w = target
            total = _or_one(jnp.sum(w))
            positive, means, has_both = _class_means(y, w, Phi)
            centred = Phi - jnp.where(positive[:, None], means[0][None, :], means[1][None, :])
            centred = jnp.where((w > 0)[:, None], centred, 0)
            within = dot_over_rows((w / total)[:, None] * centred, centred)
            system = within + jnp.eye(len(Z), dtype=Phi.dtype) / (C * total)
            distance = jnp.where(has_both, means[0] - means[1], 0)
            direction = _solve_definite(system, distance[:, None])[:, 0]
            eigenvalue = dot(distance, direction)
            return direction / jnp.sqrt(_or_one(eigenvalue)), eigenvalue

        directions, eigenvalues = map_systems(one_target, (y.T, C, w.T))
        shape = self.y.shape[1:]
        value = jnp.sum(eigenvalues)
        return Solved(
            -value, dot(T, directions.T).reshape(len(Z), *shape), jnp.zeros(shape, Phi.dtype),
            eigenvalues, status_of(~jnp.isfinite(value), jnp.any(eigenvalues < 0)),
        )  # fmt: skip

    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """Return the Lagrangian of eq. 59, summed over targets."""
        coefficients = solved.coefficients.reshape(len(Z), -1)
        values = dot(self.kernel.cross_gram(self.X, Z), coefficients)
        gram = shifted_gram(self.kernel, Z)

        def one_target(
            values: Array, beta: Array, y: Array, w: Array, C: Array
        ) -> tuple[Array, Array]:
            total = _or_one(jnp.sum(w))
            positive, means, has_both = _class_means(y, w, values)
            within = dot(w / total, jnp.square(values - jnp.where(positive, *means)))
            between = jnp.where(has_both, jnp.square(means[0] - means[1]), 0)
            return between, within + dot(beta, dot(gram, beta)) / (C * total)

        columns = values, coefficients, *self.columns()
        between, within = jax.vmap(one_target, in_axes=(1, 1, 1, 1, 0))(*columns)
        return jnp.sum(solved.multipliers * (within - 1) - between)


class OneClass(Supervised):
    """The one-class support vector machine in the span of `Z` (Wu 2006, Sections 3.3 and 4.4).

    Minimise `1/2 |w|^2 - rho + 1 / (nu sum_i weight_i) sum_i weight_i max(0, rho - w'phi(x_i))`
    (Schoelkopf et al. 2001). The machine's values are `w'phi(x) - rho`, negative for outliers. All
    targets `y` are 1. `Supervised` describes the other attributes.

    Attributes:
        C: `nu`, an upper limit of the weighted fraction of rows with negative values, between 0 and
            1, shape `()`.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Float[Array, "n d"],
        nu: ScalarLike,
        weights: Float[Array, " n"] | None = None,
    ) -> None:
        super().__init__(kernel, X, jnp.ones(len(X), X.dtype), nu, weights)

    @property
    def nu(self) -> Float[Array, ""]:
        """Upper limit of the weighted fraction of rows with negative values: the field `C`."""
        return self.C

    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """Solve on the features `T' k(Z, x)` (eq. 41) by `interior_point.solve_one_class`."""
        T = whitener(self.kernel, Z)
        Phi = dot(self.kernel.cross_gram(self.X, Z), T)
        svm = interior_point.solve_one_class(
            Phi, self.nu, self.weights, tolerance=_gap_tolerance(Phi)
        )
        beta = dot(T, svm.weights)
        return Solved(svm.objective, beta, svm.intercept, svm.dual, _worst_status(svm))

    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """Return the Lagrangian, in which the terms in `rho` cancel, as `alpha` sums to 1."""
        alpha, w = solved.multipliers, self.weights
        margin = dot(self.kernel.cross_gram(self.X, Z), solved.coefficients) + solved.intercept
        xi = jax.lax.stop_gradient(jnp.maximum(-margin, 0))
        bound = w / (self.nu * jnp.sum(w))
        loss = (bound - jax.lax.stop_gradient(bound - alpha)) * xi
        by_row = jnp.where(w > 0, loss - alpha * (margin + xi), 0)
        norm = norm_squared(self.kernel, Z, solved.coefficients) / 2
        return norm + solved.intercept + jnp.sum(by_row)


def shifted_gram(kernel: Kernel, Z: Float[Array, "m d"]) -> Float[Array, "m m"]:
    """Return `K(Z, Z)` with its diagonal shifted by the size of its rounding."""
    gram = kernel.gram(Z)
    return gram + _shift(gram) * jnp.eye(len(Z), dtype=gram.dtype)


def whitener(kernel: Kernel, Z: Float[Array, "m d"]) -> Float[Array, "m m"]:
    """Return `T` with `T T' = K^(-1)` for the shifted matrix `K(Z, Z)` (Wu 2006, eq. 43)."""
    return inverse_of_lower(cholesky(shifted_gram(kernel, Z))).T


def norm_squared(
    kernel: Kernel, Z: Float[Array, "m d"], coefficients: Float[Array, " m *c"]
) -> Float[Array, ""]:
    """Return the squared norm `|w|^2` of a machine, summed over outputs; see `shifted_gram`."""
    gram = kernel.gram(Z)
    norm = jnp.sum(coefficients * dot(gram, coefficients))
    return norm + _shift(gram) * jnp.sum(jnp.square(coefficients))


def _shift(gram: Float[Array, "m m"]) -> Float[Array, ""]:
    """Return the shift of a Gram matrix's diagonal, which is proportional to the trace.

    Derivatives pass through the shift, so that derivatives of `W(Z)` are exact.
    """
    return 4 * epsilon(gram.dtype) * jnp.trace(gram) + float(jnp.finfo(gram.dtype).tiny)


def _gap_tolerance(Phi: Float[Array, "n m"]) -> float | None:
    """Return the tolerance of the duality gap; None for the solver's default, in float32.

    The error of the gradient of `W` is of the order of the square root of the gap.
    """
    return 1e-12 if Phi.dtype == jnp.float64 else None


def _worst_status(svm: interior_point.Solution) -> Int[Array, ""]:
    """Return the worst stop code over targets.

    PRECISION_LOST counts as CONVERGED if the duality gap is below `_SMALL_GAP` of the objective.
    """
    small = svm.gap < _SMALL_GAP * jnp.abs(svm.objective)
    return jnp.max(jnp.where(small & (svm.status == PRECISION_LOST), CONVERGED, svm.status))


def _or_one(total: Float[Array, ""]) -> Float[Array, ""]:
    """Return the total, or 1 if the total is not positive, for use as a divisor."""
    return jnp.where(total > 0, total, 1)


def _class_means(
    y: Float[Array, " n"], w: Float[Array, " n"], values: Float[Array, " n *m"]
) -> tuple[Bool[Array, " n"], tuple[Array, Array], Bool[Array, ""]]:
    """Return which rows are of class +1, the mean values of the classes +1 and -1, and a flag.

    The flag says whether both classes have rows.
    """
    positive = y > 0
    of_class = jnp.where(positive, w, 0), jnp.where(positive, 0, w)
    upper, lower = (weights / _or_one(jnp.sum(weights)) for weights in of_class)
    has_both = (jnp.sum(upper) > 0) & (jnp.sum(lower) > 0)
    return positive, (dot(upper, values), dot(lower, values)), has_both


def _ridge(
    Phi: Float[Array, "n m"], y: Float[Array, "n l"], C: Float[Array, ""], w: Float[Array, " n"]
) -> tuple[Float[Array, "m l"], Float[Array, " l"]]:
    """Return weights and intercept of ridge regression of `y` on `Phi`, with row weights `w`."""
    total = _or_one(jnp.sum(w))
    mean, y_mean = dot(w, Phi) / total, dot(w, y) / total
    Phi = jnp.where((w > 0)[:, None], Phi - mean[None, :], 0)
    weighted = w[:, None] * Phi
    system = dot_over_rows(weighted, Phi) + jnp.eye(Phi.shape[1], dtype=Phi.dtype) / C
    solution = _solve_definite(system, dot_over_rows(weighted, y - y_mean[None, :]))
    return solution, y_mean - dot(mean, solution)


def _solve_definite(system: Float[Array, "m m"], rhs: Float[Array, "m k"]) -> Float[Array, "m k"]:
    """Solve a positive definite system by Cholesky, with one step of refinement."""
    scale = 1 / jnp.sqrt(jnp.diagonal(system))
    scaled = system * scale[:, None] * scale[None, :]
    noise = 4 * epsilon(system.dtype) * len(system)
    inverse = inverse_of_lower(cholesky(scaled + noise * jnp.eye(len(system), dtype=rhs.dtype)))
    rhs = scale[:, None] * rhs
    x = dot(inverse.T, dot(inverse, rhs))
    x = x + dot(inverse.T, dot(inverse, rhs - dot(scaled, x)))
    return scale[:, None] * x
