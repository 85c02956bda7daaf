"""The convex machines of given expansion vectors that the direct method starts from (Wu 2006)."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._blocks import map_systems
from .._numerics import dot, dot_over_rows, each_alone, epsilon, exponents, times_power
from .._repr import short_repr
from .._status import CONVERGED, PRECISION_LOST, status_of
from .._types import ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..scaling import standardize
from ..solvers import interior_point
from ..solvers.definite import inverse_of_lower

_SOUND = 1e-3  # part of W up to which an inner gap leaves a step of use


class Solved(NamedTuple):
    """The solution of an inner problem for given expansion vectors."""

    value: Float[Array, ""]  # W(Z)
    coefficients: Float[Array, "m *c"]  # beta
    intercept: Float[Array, "*c"]  # b
    multipliers: Any  # arrays
    status: Int[Array, ""]

    def times_power(self, exponent: Int[Array, ""]) -> "Solved":
        """The solution for targets times `2^exponent`; the multipliers stay as they are."""
        once, twice = exponent[None], 2 * exponent[None]
        return self._replace(
            value=times_power(self.value[None], twice)[0],
            coefficients=times_power(self.coefficients[None], once)[0],
            intercept=times_power(self.intercept[None], once)[0],
        )

    __repr__ = short_repr


class InnerProblem(eqx.Module):
    """A machine `w = sum_i beta_i phi(z_i)` of given expansion vectors `z_i`, as an optimisation.

    A new one says how it is solved, and what its Lagrangian is; `direct.marginal` and
    `direct.minimise` then make a sparse machine of it. One whose inputs or targets may be in any
    units overrides `spread` and `scaled` as well.
    """

    kernel: eqx.AbstractVar[Kernel]

    @abc.abstractmethod
    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """The best coefficients and intercept for the expansion vectors, and the multipliers."""

    @abc.abstractmethod
    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """The Lagrangian at a solution, as a function of all that is not part of the solution."""

    def spread(self) -> ScalarLike | Float[Array, " d"]:
        """Return the unit of length of each input column, by which a descent scales its steps."""
        return 1.0

    def scaled(self) -> tuple["InnerProblem", Int[Array, ""]]:
        """Return the problem with targets divided by `2^e` to size one, and the exponent `e`.

        This divides the coefficients and the intercept by `2^e`, and `W` by `4^e`. By default
        return the problem unchanged, with the exponent 0.
        """
        return self, jnp.zeros((), jnp.int32)

    def expansion(self, Z: Float[Array, "m d"], solved: Solved) -> KernelExpansion:
        """The solution as a machine."""
        return KernelExpansion(self.kernel, Z, solved.coefficients, solved.intercept)


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
        self.kernel, self.X, self.y, self.C, self.weights = _given(kernel, X, y, C, weights)

    def spread(self) -> Float[Array, " d"]:
        """Return the standard deviations of the columns; of a constant column 1."""
        return _deviations(self.X, self.weights)


class LargeMargin(Supervised):
    """The support vector machine in the span of `Z` (Wu 2006, problem (24)-(27)).

    Minimise `1/2 |w|^2 + C sum_i weight_i max(0, 1 - y_i f(x_i))`, or of the squared hinge
    `C/2 sum_i weight_i max(0, 1 - y_i f(x_i))^2`, of all targets together if there are several,
    which then share their expansion vectors.

    Attributes:
        kernel: kernel of two points.
        X: inputs, shape `n d`.
        y: targets -1 and +1, shape `n` or `n l`.
        C: weight of the data-fit term, shape `()` or `l`.
        weights: row weights, shape `n`, or each target's own, shape `n l`; 0 is as if absent.
        loss: "hinge" or "squared_hinge" (static).
    """

    loss: interior_point.Hinge = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel,
        X: Float[Array, "n d"],
        y: Float[Array, "n *l"],
        C: ScalarLike | Float[Array, " l"],
        weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
        loss: interior_point.Hinge = "hinge",
    ) -> None:
        super().__init__(kernel, X, y, C, weights)
        self.loss = loss

    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """By `interior_point.solve` on the features `T' psi_z(x)` of eq. 41."""
        T = whitener(self.kernel, Z)
        Phi = dot(self.kernel.cross_gram(self.X, Z), T)
        # The error of the solution, and with it of the gradient, goes by the root of the gap.
        tolerance = 1e-12 if Phi.dtype == jnp.float64 else None
        found = interior_point.solve(
            Phi, self.y, self.C, self.weights, loss=self.loss, tolerance=tolerance
        )
        return Solved(
            jnp.sum(found.objective), dot(T, found.weights), found.intercept, found.dual,
            _ended(found),
        )  # fmt: skip

    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """Eq. 32, of all targets."""
        y, alpha = self.y, solved.multipliers
        values = dot(self.kernel.cross_gram(self.X, Z), solved.coefficients)
        margin = y * (values + jnp.broadcast_to(solved.intercept, values.shape))
        xi = jax.lax.stop_gradient(jnp.maximum(1 - margin, 0))
        w = self.weights if self.weights.ndim == y.ndim else self.weights[:, None]
        most = jnp.broadcast_to(self.C, y.shape) * w
        if self.loss == "hinge":
            fit = (most - jax.lax.stop_gradient(most - alpha)) * xi
        else:
            fit = most * jnp.square(xi) / 2
        of_rows = jnp.where(w > 0, fit - alpha * (margin - 1 + xi), 0)
        return norm_squared(self.kernel, Z, solved.coefficients) / 2 + jnp.sum(of_rows)


class LeastSquares(Supervised):
    """Kernel ridge regression, the LS-SVM, in the span of `Z`: variable projection.

    Minimise `1/2 |w|^2 + C/2 sum_i weight_i (y_i - f(x_i))^2`, of all targets together.

    Attributes:
        kernel: kernel of two points.
        X: inputs, shape `n d`.
        y: targets, shape `n` or `n l`.
        C: weight of the data-fit term, shape `()` or `l`.
        weights: row weights, shape `n`, or each target's own, shape `n l`; 0 is as if absent.
    """

    def scaled(self) -> tuple[InnerProblem, Int[Array, ""]]:
        """See `InnerProblem.scaled`."""
        weights = self.weights.reshape(len(self.y), *[-1] * (self.y.ndim - 1))
        y = jnp.where(weights > 0, self.y, 0)
        exponent = exponents(y[None])
        y = times_power(y[None], -exponent)[0]
        return LeastSquares(self.kernel, self.X, y, self.C, self.weights), exponent[0]

    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """By a Cholesky factorisation of the normal equations about the mean.

        One for all targets, if they have weights and `C` in common. The status is `NOT_FINITE` or
        `PRECISION_LOST` where the dtype cannot hold squares of the targets, and thus not `W`.
        """
        T = whitener(self.kernel, Z)
        Phi = dot(self.kernel.cross_gram(self.X, Z), T)
        if self.weights.ndim == 1 and self.C.ndim == 0:
            y = self.y.reshape(len(Phi), -1)
            solution, intercept = _ridge(Phi, y, self.C, self.weights)
        else:
            y, w, C = _columns(self.y, self.weights, self.C)
            found = map_systems(lambda of: _ridge(Phi, of[0][:, None], *of[1:]), (y.T, C, w.T))
            solution, intercept = found[0][:, :, 0].T, found[1][:, 0]
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
        """The objective itself, as there are no constraints."""
        values = dot(self.kernel.cross_gram(self.X, Z), solved.coefficients)
        values = values + jnp.broadcast_to(solved.intercept, values.shape)
        errors, w, C = _columns(jnp.square(self.y - values), self.weights, self.C)
        loss = jnp.sum(C * jnp.sum(w * errors, axis=0))
        return norm_squared(self.kernel, Z, solved.coefficients) / 2 + loss / 2


class Fisher(Supervised):
    """The kernel Fisher discriminant in the span of `Z` (Wu 2006, Appendix A, eq. 57-63).

    Minimise `-w'A w` with `w'(B + mu I) w = 1`, where `w'A w` is the square of the distance of the
    classes' means, `w'B w` the mean square of the values about the means of their classes, and `mu`
    is `1 / (C sum_i weight_i)`, with which its direction is that of the LS-SVM with the same `C`.
    Of several targets the sum of that. It has no intercept: 0 is returned in its place. Of a target
    whose rows are of one class the direction is 0.

    Attributes:
        kernel: kernel of two points.
        X: inputs, shape `n d`.
        y: classes -1 and +1, shape `n` or `n l`.
        C: shape `()` or `l`.
        weights: row weights, shape `n`, or each target's own, shape `n l`; 0 is as if absent.
    """

    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """As `A` is of rank one, the largest eigenvalue is `d' (B + mu I)^(-1) d`."""
        T = whitener(self.kernel, Z)
        Phi = dot(self.kernel.cross_gram(self.X, Z), T)
        y, w, C = _columns(self.y, self.weights, self.C)

        def one(of: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            y, C, w = of
            up, first, second = _of_classes(y, w)
            means = dot(first, Phi), dot(second, Phi)
            centred = Phi - jnp.where(up[:, None], means[0][None, :], means[1][None, :])
            centred = jnp.where((w > 0)[:, None], centred, 0)
            total = jnp.sum(w)
            total = jnp.where(total > 0, total, 1)
            within = dot_over_rows((w / total)[:, None] * centred, centred)
            system = within + jnp.eye(len(Z), dtype=Phi.dtype) / (C * total)
            both = (jnp.sum(first) > 0) & (jnp.sum(second) > 0)
            apart = jnp.where(both, means[0] - means[1], 0)
            direction = _solution(system, apart[:, None])[:, 0]
            eigenvalue = dot(apart, direction)
            return direction / jnp.sqrt(jnp.where(eigenvalue > 0, eigenvalue, 1)), eigenvalue

        directions, eigenvalues = map_systems(one, (y.T, C, w.T))
        shape = self.y.shape[1:]
        value = jnp.sum(eigenvalues)
        return Solved(
            -value, dot(T, directions.T).reshape(len(Z), *shape), jnp.zeros(shape, Phi.dtype),
            eigenvalues, status_of(~jnp.isfinite(value), jnp.any(eigenvalues < 0)),
        )  # fmt: skip

    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """Eq. 59, of all targets."""
        y, w, C = _columns(self.y, self.weights, self.C)
        coefficients = solved.coefficients.reshape(len(Z), -1)
        values = dot(self.kernel.cross_gram(self.X, Z), coefficients)
        gram = shifted_gram(self.kernel, Z)

        def one(values: Array, beta: Array, y: Array, w: Array, C: Array) -> tuple[Array, Array]:
            up, first, second = _of_classes(y, w)
            means = dot(first, values), dot(second, values)
            total = jnp.sum(w)
            total = jnp.where(total > 0, total, 1)
            within = dot(w / total, jnp.square(values - jnp.where(up, *means)))
            both = (jnp.sum(first) > 0) & (jnp.sum(second) > 0)
            apart = jnp.where(both, jnp.square(means[0] - means[1]), 0)
            return apart, within + dot(beta, dot(gram, beta)) / (C * total)

        apart, within = jax.vmap(one, in_axes=(1, 1, 1, 1, 0))(values, coefficients, y, w, C)
        return jnp.sum(solved.multipliers * (within - 1) - apart)


class OneClass(InnerProblem):
    """The one-class support vector machine in the span of `Z` (Wu 2006, Sections 3.3 and 4.4).

    Minimise `1/2 |w|^2 - rho + 1 / (nu sum_i weight_i) sum_i weight_i max(0, rho - w'phi(x_i))`
    (Schoelkopf et al. 2001). The machine's values are `w'phi(x) - rho`, negative for what is new.

    Attributes:
        kernel: kernel of two points.
        X: inputs, shape `n d`.
        nu: bound of the part of rows with negative values, above 0 and below 1, shape `()`.
        weights: row weights, shape `n`; 0 is as if absent.
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
        nothing = jnp.ones(len(X), X.dtype)
        self.kernel, self.X, _, self.nu, self.weights = _given(kernel, X, nothing, nu, weights)

    def spread(self) -> Float[Array, " d"]:
        """Return the standard deviations of the columns; of a constant column 1."""
        return _deviations(self.X, self.weights)

    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """By `interior_point.solve_one_class` on the features `T' psi_z(x)` of eq. 41."""
        T = whitener(self.kernel, Z)
        Phi = dot(self.kernel.cross_gram(self.X, Z), T)
        tolerance = 1e-12 if Phi.dtype == jnp.float64 else None
        found = interior_point.solve_one_class(Phi, self.nu, self.weights, tolerance=tolerance)
        return Solved(
            found.objective, dot(T, found.weights), found.intercept, found.dual, _ended(found)
        )

    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """With `xi` eliminated: `alpha` sums to 1, so that `rho` stays in what weights it only."""
        alpha, w = solved.multipliers, self.weights
        margin = dot(self.kernel.cross_gram(self.X, Z), solved.coefficients) + solved.intercept
        xi = jax.lax.stop_gradient(jnp.maximum(-margin, 0))
        most = w / (self.nu * jnp.sum(w))
        fit = (most - jax.lax.stop_gradient(most - alpha)) * xi
        of_rows = jnp.where(w > 0, fit - alpha * (margin + xi), 0)
        norm = norm_squared(self.kernel, Z, solved.coefficients) / 2
        return norm + solved.intercept + jnp.sum(of_rows)


def _ended(found: interior_point.Solution) -> Int[Array, ""]:
    """The stop code of an inner problem by the interior-point method."""
    # A gap far below what the steps of the outer method gain does no harm.
    sound = found.gap <= _SOUND * jnp.abs(found.objective)
    return jnp.max(jnp.where(sound & (found.status == PRECISION_LOST), CONVERGED, found.status))


def _columns(y: Array, w: Array, C: Array) -> tuple[Array, Array, Array]:
    """Targets, weights and `C` of each of them, shapes `n l`, `n l` and `l`."""
    y = y.reshape(len(y), -1)
    w = w if w.ndim == 2 else w[:, None]
    return y, jnp.broadcast_to(w, y.shape), jnp.broadcast_to(C, y.shape[1:])


def _of_classes(y: Float[Array, " n"], w: Float[Array, " n"]) -> tuple[Array, Array, Array]:
    """Rows of +1, and weights with which sums are the means of each class; 0 without rows."""
    up = y > 0
    first, second = jnp.where(up, w, 0), jnp.where(up, 0, w)
    of_first, of_second = jnp.sum(first), jnp.sum(second)
    first = first / jnp.where(of_first > 0, of_first, 1)
    return up, first, second / jnp.where(of_second > 0, of_second, 1)


def _ridge(
    Phi: Float[Array, "n m"], y: Float[Array, "n l"], C: Float[Array, ""], w: Float[Array, " n"]
) -> tuple[Float[Array, "m l"], Float[Array, " l"]]:
    """Ridge regression with an intercept."""
    total = jnp.sum(w)
    total = jnp.where(total > 0, total, 1)
    mean, middle = dot(w, Phi) / total, dot(w, y) / total
    Phi = jnp.where((w > 0)[:, None], Phi - mean[None, :], 0)
    weighted = w[:, None] * Phi
    system = dot_over_rows(weighted, Phi) + jnp.eye(Phi.shape[1], dtype=Phi.dtype) / C
    solution = _solution(system, dot_over_rows(weighted, y - middle[None, :]))
    return solution, middle - dot(mean, solution)


def _given(kernel: Kernel, X: Array, y: Array, C: Any, weights: Array | None) -> tuple[Any, ...]:
    """In one dtype, with copies of a row that is there in place of those that are absent.

    Wherever these were, they would move the centre of distances, and a descent enlarges what is
    rounded.
    """
    w = jnp.ones(len(X), X.dtype) if weights is None else weights
    here = w if w.ndim == 1 else jnp.max(w, axis=1)
    y = jnp.where((here > 0).reshape(-1, *[1] * (y.ndim - 1)), y, 1)
    X = jnp.where((here > 0)[:, None], X, X[jnp.argmax(here)][None, :])
    return kernel, X, y, jnp.asarray(C, X.dtype), w


def _deviations(X: Float[Array, "n d"], w: Float[Array, "n *l"]) -> Float[Array, " d"]:
    """Return weighted standard deviations of the columns; each row takes its largest weight."""
    return standardize(X, w if w.ndim == 1 else jnp.max(w, axis=1)).scale


def _jitter(gram: Float[Array, "m m"]) -> Float[Array, ""]:
    """What is added to the diagonal of `K(Z, Z)`, of the size of its rounding.

    As a part of the spectrum, and with a derivative: what is minimised is one function of `Z`.
    """
    return 4 * epsilon(gram.dtype) * jnp.trace(gram) + float(jnp.finfo(gram.dtype).tiny)


@each_alone
def _cholesky(matrix: Float[Array, "m m"]) -> Float[Array, "m m"]:
    return jnp.linalg.cholesky(matrix)


def whitener(kernel: Kernel, Z: Float[Array, "m d"]) -> Float[Array, "m m"]:
    """`T` with `T T' = K(Z, Z)^(-1)` (Wu 2006, eq. 43), jitter included."""
    return inverse_of_lower(_cholesky(shifted_gram(kernel, Z))).T


def shifted_gram(kernel: Kernel, Z: Float[Array, "m d"]) -> Float[Array, "m m"]:
    """`K(Z, Z)`, jitter included."""
    gram = kernel.gram(Z)
    return gram + _jitter(gram) * jnp.eye(len(Z), dtype=gram.dtype)


def norm_squared(
    kernel: Kernel, Z: Float[Array, "m d"], coefficients: Float[Array, "m *c"]
) -> Float[Array, ""]:
    """`|w|^2`, of all outputs, jitter included."""
    gram = kernel.gram(Z)
    own = jnp.sum(coefficients * dot(gram, coefficients))
    return own + _jitter(gram) * jnp.sum(jnp.square(coefficients))


def _solution(system: Float[Array, "m m"], rhs: Float[Array, "m k"]) -> Float[Array, "m k"]:
    """Of a positive definite system whose smallest eigenvalue is known to be above 0."""
    scale = 1 / jnp.sqrt(jnp.diagonal(system))
    scaled = system * scale[:, None] * scale[None, :]
    noise = 4 * epsilon(system.dtype) * len(system)
    inverse = inverse_of_lower(_cholesky(scaled + noise * jnp.eye(len(system), dtype=rhs.dtype)))
    rhs = scale[:, None] * rhs
    x = dot(inverse.T, dot(inverse, rhs))
    x = x + dot(inverse.T, dot(inverse, rhs - dot(scaled, x)))
    return scale[:, None] * x
