"""The convex machines of given prototypes on which the direct method descends (Wu et al. 2006)."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._blocks import map_systems
from .._numerics import dot, dot_over_rows, epsilon, exponents, times_power
from .._status import CONVERGED, PRECISION_LOST, status_of
from .._types import ScalarLike
from ..kernels import Kernel
from ..scaling import standardize
from ..solvers import interior_point
from ..solvers.definite import cholesky, inverse_of_lower
from .span import InnerProblem, Solved, norm_squared, shifted_gram, whitener

Penalty = Literal["norm", "coefficients"]
_SOUND = 1e-3  # duality gap, as part of W, far below what a step of the descent gains


class Supervised(InnerProblem):
    """An inner problem of rows with targets; see `LargeMargin` for its attributes."""

    kernel: Kernel
    X: Float[Array, "n d"]
    y: Float[Array, "n *l"]
    C: Float[Array, "*k"]
    weights: Float[Array, " n"] | Float[Array, "n l"]

    def __init__(
        self,
        kernel: Kernel,
        X: Float[Array, "n d"],
        y: Float[Array, "n *l"],
        C: ScalarLike | Float[Array, " l"],
        weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
    ) -> None:
        self.kernel, self.X, self.y, self.C, self.weights = _of_rows(kernel, X, y, C, weights)

    def spread(self) -> Float[Array, " d"]:
        """Return the standard deviations of the columns; of a constant column 1."""
        return _deviations(self.X, self.weights)


class LargeMargin(Supervised):
    """The support vector machine in the span of `Z` (Wu 2006, problem (24)-(27)).

    Minimise `1/2 |w|^2 + C sum_i weight_i max(0, 1 - y_i f(x_i))`, or for the squared hinge
    `1/2 |w|^2 + C/2 sum_i weight_i max(0, 1 - y_i f(x_i))^2`. Several targets share their
    prototypes, and their objectives are summed.

    Attributes:
        kernel: kernel of two points.
        X: inputs, shape `n d`.
        y: targets -1 and +1, shape `n` or `n l`.
        C: weight of the data-fit term, shape `()` or `l`.
        weights: row weights, shape `n`, or each target's own, shape `n l`; 0 for an absent row.
        loss: "hinge" or "squared_hinge" (static).
        penalty: `|w|^2`, "norm", or the sum of squared "coefficients" in its place (static).
    """

    loss: interior_point.Hinge = eqx.field(static=True)
    penalty: Penalty = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel,
        X: Float[Array, "n d"],
        y: Float[Array, "n *l"],
        C: ScalarLike | Float[Array, " l"],
        weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
        loss: interior_point.Hinge = "hinge",
        penalty: Penalty = "norm",
    ) -> None:
        super().__init__(kernel, X, y, C, weights)
        self.loss, self.penalty = loss, penalty

    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """Solve on the features `T' psi_z(x)` of eq. 41 by `interior_point.solve`."""
        Phi, T = self.kernel.cross_gram(self.X, Z), None
        if self.penalty == "norm":
            T = whitener(self.kernel, Z)
            Phi = dot(Phi, T)
        # The error of the solution, and of the gradient with it, is of the order of the gap's root.
        tolerance = 1e-12 if Phi.dtype == jnp.float64 else None
        svm = interior_point.solve(
            Phi, self.y, self.C, self.weights, loss=self.loss, tolerance=tolerance
        )
        coefficients = svm.weights if T is None else dot(T, svm.weights)
        return Solved(
            jnp.sum(svm.objective), coefficients, svm.intercept, svm.dual, _worst_status(svm)
        )

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
        squares = jnp.sum(jnp.square(beta))
        norm = norm_squared(self.kernel, Z, beta) if self.penalty == "norm" else squares
        return norm / 2 + jnp.sum(by_row)


class LeastSquares(Supervised):
    """Kernel ridge regression, the LS-SVM, in the span of `Z`: variable projection.

    Minimise `1/2 |w|^2 + C/2 sum_i weight_i (y_i - f(x_i))^2`, summed over targets.

    Attributes:
        kernel: kernel of two points.
        X: inputs, shape `n d`.
        y: targets, shape `n` or `n l`.
        C: weight of the data-fit term, shape `()` or `l`.
        weights: row weights, shape `n`, or each target's own, shape `n l`; 0 for an absent row.
    """

    def scaled(self) -> tuple[InnerProblem, Int[Array, ""]]:
        """See `InnerProblem.scaled`."""
        weights = self.weights.reshape(len(self.y), *[-1] * (self.y.ndim - 1))
        y = jnp.where(weights > 0, self.y, 0)
        exponent = exponents(y[None])
        y = times_power(y[None], -exponent)[0]
        return LeastSquares(self.kernel, self.X, y, self.C, self.weights), exponent[0]

    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """Solve the normal equations about the mean by a Cholesky factorisation.

        One factorisation serves all targets if they share weights and `C`. The status is
        `NOT_FINITE` or `PRECISION_LOST` where the dtype cannot hold squares of the targets, and
        thus not `W`.
        """
        T = whitener(self.kernel, Z)
        Phi = dot(self.kernel.cross_gram(self.X, Z), T)
        if self.weights.ndim == 1 and self.C.ndim == 0:
            y = self.y.reshape(len(Phi), -1)
            solution, intercept = _ridge(Phi, y, self.C, self.weights)
        else:
            y, w, C = _columns(self.y, self.weights, self.C)
            each = map_systems(lambda one: _ridge(Phi, one[0][:, None], *one[1:]), (y.T, C, w.T))
            solution, intercept = each[0][:, :, 0].T, each[1][:, 0]
        solution = solution.reshape(len(Z), *self.y.shape[1:])
        intercept = intercept.reshape(self.y.shape[1:])
        solved = Solved(
            jnp.zeros((), Phi.dtype), dot(T, solution), intercept, (), jnp.asarray(CONVERGED)
        )
        value = self.lagrangian(Z, solved)
        # Below `least` squared targets underflow. W > 0 unless the machine is constant.
        least = float(jnp.finfo(value.dtype).tiny) / epsilon(value.dtype)
        lost = (value < 0) | (value < least) & jnp.any(solution != 0)
        return solved._replace(value=value, status=status_of(~jnp.isfinite(value), lost))

    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """Return the objective itself, as there are no constraints."""
        values = dot(self.kernel.cross_gram(self.X, Z), solved.coefficients)
        values = values + jnp.broadcast_to(solved.intercept, values.shape)
        errors, w, C = _columns(jnp.square(self.y - values), self.weights, self.C)
        loss = jnp.sum(C * jnp.sum(w * errors, axis=0))
        return norm_squared(self.kernel, Z, solved.coefficients) / 2 + loss / 2


class Fisher(Supervised):
    """The kernel Fisher discriminant in the span of `Z` (Wu 2006, Appendix A, eq. 57-63).

    Minimise `-w'A w` with `w'(B + mu I) w = 1`, where `w'A w` is the squared distance of the class
    means, `w'B w` is the mean square of the values about the mean of their class, and `mu` is
    `1 / (C sum_i weight_i)`, for which the direction is that of the LS-SVM with the same `C`. The
    objectives of several targets are summed. There is no intercept, and 0 is returned in its place.
    If all rows of a target are of one class, its direction is 0.

    Attributes:
        kernel: kernel of two points.
        X: inputs, shape `n d`.
        y: classes -1 and +1, shape `n` or `n l`.
        C: shape `()` or `l`.
        weights: row weights, shape `n`, or each target's own, shape `n l`; 0 for an absent row.
    """

    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """Return the largest eigenvalue, `d' (B + mu I)^(-1) d`, as `A = d d'` is of rank one."""
        T = whitener(self.kernel, Z)
        Phi = dot(self.kernel.cross_gram(self.X, Z), T)
        y, w, C = _columns(self.y, self.weights, self.C)

        def one(target: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            y, C, w = target
            up, first, second = _class_weights(y, w)
            means = dot(first, Phi), dot(second, Phi)
            centred = Phi - jnp.where(up[:, None], means[0][None, :], means[1][None, :])
            centred = jnp.where((w > 0)[:, None], centred, 0)
            total = jnp.sum(w)
            total = jnp.where(total > 0, total, 1)
            within = dot_over_rows((w / total)[:, None] * centred, centred)
            system = within + jnp.eye(len(Z), dtype=Phi.dtype) / (C * total)
            both = (jnp.sum(first) > 0) & (jnp.sum(second) > 0)
            distance = jnp.where(both, means[0] - means[1], 0)
            direction = _solve_definite(system, distance[:, None])[:, 0]
            eigenvalue = dot(distance, direction)
            return direction / jnp.sqrt(jnp.where(eigenvalue > 0, eigenvalue, 1)), eigenvalue

        directions, eigenvalues = map_systems(one, (y.T, C, w.T))
        shape = self.y.shape[1:]
        value = jnp.sum(eigenvalues)
        return Solved(
            -value, dot(T, directions.T).reshape(len(Z), *shape), jnp.zeros(shape, Phi.dtype),
            eigenvalues, status_of(~jnp.isfinite(value), jnp.any(eigenvalues < 0)),
        )  # fmt: skip

    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """Return the Lagrangian of eq. 59, summed over targets."""
        y, w, C = _columns(self.y, self.weights, self.C)
        coefficients = solved.coefficients.reshape(len(Z), -1)
        values = dot(self.kernel.cross_gram(self.X, Z), coefficients)
        gram = shifted_gram(self.kernel, Z)

        def one(values: Array, beta: Array, y: Array, w: Array, C: Array) -> tuple[Array, Array]:
            up, first, second = _class_weights(y, w)
            means = dot(first, values), dot(second, values)
            total = jnp.sum(w)
            total = jnp.where(total > 0, total, 1)
            within = dot(w / total, jnp.square(values - jnp.where(up, *means)))
            both = (jnp.sum(first) > 0) & (jnp.sum(second) > 0)
            between = jnp.where(both, jnp.square(means[0] - means[1]), 0)
            return between, within + dot(beta, dot(gram, beta)) / (C * total)

        between, within = jax.vmap(one, in_axes=(1, 1, 1, 1, 0))(values, coefficients, y, w, C)
        return jnp.sum(solved.multipliers * (within - 1) - between)


class OneClass(InnerProblem):
    """The one-class support vector machine in the span of `Z` (Wu 2006, Sections 3.3 and 4.4).

    Minimise `1/2 |w|^2 - rho + 1 / (nu sum_i weight_i) sum_i weight_i max(0, rho - w'phi(x_i))`
    (Schoelkopf et al. 2001). The machine's values are `w'phi(x) - rho`, negative for outliers.

    Attributes:
        kernel: kernel of two points.
        X: inputs, shape `n d`.
        nu: bound of the weighted part of rows with negative values, between 0 and 1, shape `()`.
        weights: row weights, shape `n`; 0 for an absent row.
    """

    kernel: Kernel
    X: Float[Array, "n d"]
    nu: Float[Array, ""]
    weights: Float[Array, " n"]

    def __init__(
        self,
        kernel: Kernel,
        X: Float[Array, "n d"],
        nu: ScalarLike,
        weights: Float[Array, " n"] | None = None,
    ) -> None:
        y = jnp.ones(len(X), X.dtype)
        self.kernel, self.X, _, self.nu, self.weights = _of_rows(kernel, X, y, nu, weights)

    def spread(self) -> Float[Array, " d"]:
        """Return the standard deviations of the columns; of a constant column 1."""
        return _deviations(self.X, self.weights)

    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """Solve on the features `T' psi_z(x)` of eq. 41 by `interior_point.solve_one_class`."""
        T = whitener(self.kernel, Z)
        Phi = dot(self.kernel.cross_gram(self.X, Z), T)
        tolerance = 1e-12 if Phi.dtype == jnp.float64 else None
        svm = interior_point.solve_one_class(Phi, self.nu, self.weights, tolerance=tolerance)
        return Solved(
            svm.objective, dot(T, svm.weights), svm.intercept, svm.dual, _worst_status(svm)
        )

    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """Return the Lagrangian. As `alpha` sums to 1, the terms in `rho` cancel."""
        alpha, w = solved.multipliers, self.weights
        margin = dot(self.kernel.cross_gram(self.X, Z), solved.coefficients) + solved.intercept
        xi = jax.lax.stop_gradient(jnp.maximum(-margin, 0))
        bound = w / (self.nu * jnp.sum(w))
        loss = (bound - jax.lax.stop_gradient(bound - alpha)) * xi
        by_row = jnp.where(w > 0, loss - alpha * (margin + xi), 0)
        norm = norm_squared(self.kernel, Z, solved.coefficients) / 2
        return norm + solved.intercept + jnp.sum(by_row)


def _of_rows(kernel: Kernel, X: Array, y: Array, C: Any, weights: Array | None) -> tuple[Any, ...]:
    """Return the data in one dtype, with each absent row replaced by a copy of a present one.

    Absent rows would move the centre of distances, and a descent enlarges what is rounded.
    """
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    heaviest = w if w.ndim == 1 else jnp.max(w, axis=1)
    y = jnp.where((heaviest > 0).reshape(-1, *[1] * (y.ndim - 1)), y, 1)
    X = jnp.where((heaviest > 0)[:, None], X, X[jnp.argmax(heaviest)][None, :])
    return kernel, X, y, jnp.asarray(C, X.dtype), w


def _deviations(X: Float[Array, "n d"], w: Float[Array, "n *l"]) -> Float[Array, " d"]:
    """Return weighted standard deviations of the columns; each row takes its largest weight."""
    return standardize(X, w if w.ndim == 1 else jnp.max(w, axis=1)).scale


def _worst_status(svm: interior_point.Solution) -> Int[Array, ""]:
    """Return the worst stop code; a duality gap below `_SOUND` counts as convergence."""
    sound = svm.gap <= _SOUND * jnp.abs(svm.objective)
    return jnp.max(jnp.where(sound & (svm.status == PRECISION_LOST), CONVERGED, svm.status))


def _columns(y: Array, w: Array, C: Array) -> tuple[Array, Array, Array]:
    """Return targets, weights and `C` of each target, shapes `n l`, `n l` and `l`."""
    y = y.reshape(len(y), -1)
    w = w if w.ndim == 2 else w[:, None]
    return y, jnp.broadcast_to(w, y.shape), jnp.broadcast_to(C, y.shape[1:])


def _class_weights(y: Float[Array, " n"], w: Float[Array, " n"]) -> tuple[Array, Array, Array]:
    """Return which rows are +1, and weights whose sums are the means of each class, or 0."""
    up = y > 0
    first, second = jnp.where(up, w, 0), jnp.where(up, 0, w)
    first_total, second_total = jnp.sum(first), jnp.sum(second)
    first = first / jnp.where(first_total > 0, first_total, 1)
    return up, first, second / jnp.where(second_total > 0, second_total, 1)


def _ridge(
    Phi: Float[Array, "n m"], y: Float[Array, "n l"], C: Float[Array, ""], w: Float[Array, " n"]
) -> tuple[Float[Array, "m l"], Float[Array, " l"]]:
    """Return weights and intercept of ridge regression."""
    total = jnp.sum(w)
    total = jnp.where(total > 0, total, 1)
    mean, y_mean = dot(w, Phi) / total, dot(w, y) / total
    Phi = jnp.where((w > 0)[:, None], Phi - mean[None, :], 0)
    weighted = w[:, None] * Phi
    system = dot_over_rows(weighted, Phi) + jnp.eye(Phi.shape[1], dtype=Phi.dtype) / C
    solution = _solve_definite(system, dot_over_rows(weighted, y - y_mean[None, :]))
    return solution, y_mean - dot(mean, solution)


def _solve_definite(system: Float[Array, "m m"], rhs: Float[Array, "m k"]) -> Float[Array, "m k"]:
    """Solve a positive definite system whose smallest eigenvalue is known to be above 0."""
    scale = 1 / jnp.sqrt(jnp.diagonal(system))
    scaled = system * scale[:, None] * scale[None, :]
    noise = 4 * epsilon(system.dtype) * len(system)
    inverse = inverse_of_lower(cholesky(scaled + noise * jnp.eye(len(system), dtype=rhs.dtype)))
    rhs = scale[:, None] * rhs
    x = dot(inverse.T, dot(inverse, rhs))
    x = x + dot(inverse.T, dot(inverse, rhs - dot(scaled, x)))
    return scale[:, None] * x
