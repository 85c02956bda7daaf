"""Reduced sets: approximate a large machine by one with few prototypes (Burges 1996)."""

import dataclasses
import functools
import itertools
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import as_key, whole_number
from .._numerics import as_array, dot, epsilon, exponents, like, times_power
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, PRECISION_LOST
from .._types import CLike, Key, KeyLike, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import RBF, Kernel, Linear, Polynomial
from ..prototypes import k_means, pivoted_cholesky
from ..scaling import standardize
from ..solvers import interior_point
from ..solvers.definite import cholesky
from ..solvers.interior_point import Hinge
from . import direct
from .checks import check_choice
from .direct_method import check_descent
from .few_prototypes import FewPrototypes, fit_arrays
from .fixed_point import fixed_points
from .inner_problems import InnerProblem, LargeMargin, Solved, norm_squared, shifted_gram, whitener
from .method import Task, iteration_limit, setting
from .rows import Rows

Approach = Literal["fixed_point", "gradient"]
# A machine on so many rows has nearly the values of a machine on all rows, unless the kernel is far
# narrower than the best one. The time grows with the square of the number.
LARGE_PROTOTYPES = 500
# Relative duality gap of the large machine. With a tenth of it, validation errors of seven tables
# are lower by 0.0005 on average, a tenth of a standard error, and training takes a sixth more time.
_GAP = 1e-3


class ReducedSet(NamedTuple):
    """A machine of few prototypes that approximates a large machine."""

    expansion: KernelExpansion
    error: Float[Array, ""]  # |w - w'| / |w|, large machine w, approximation w' before a refit
    status: Int[Array, ""]

    __repr__ = short_repr


class ReducedSetSVM(FewPrototypes):
    """A large support vector machine, then reduced to few prototypes (Burges 1996).

    The kernel is tuned for a fixed-size LS-SVM on random rows, five for each prototype. Then `C` is
    tuned. `FewPrototypes` describes the settings that are not listed.

    Args:
        refit: whether to fit the coefficients as a support vector machine in the span of the
            prototypes (MRS), instead of keeping the coefficients of the approximation.
        loss: "hinge" or "squared_hinge".
        large_prototypes: largest number of prototypes of the large machine, which are rows chosen
            by randomly pivoted Cholesky. None: all rows; the machine then needs the kernel matrix,
            and the time grows with the cube of the number of rows.
        tolerance: tolerance of the descent, see `direct.minimise`.
        max_iterations: limit of steps of the descent. A new value compiles the programs again.
    """

    refit: bool = setting(False)
    loss: Hinge = setting("hinge")
    large_prototypes: int | None = setting(LARGE_PROTOTYPES)
    tolerance: ScalarLike = direct.TOLERANCE
    max_iterations: int = iteration_limit(direct.MAX_ITERATIONS)

    name: ClassVar[str] = "reduced-set"
    optimises_prototypes: ClassVar[bool] = True
    title: ClassVar[str] = "reduced set"
    max_rows: ClassVar[int | None] = 1000

    @property
    def n_features(self) -> Literal["all"]:
        """See `Method.n_features`."""
        return "all"

    def largest_system(self, n_rows: int) -> int:
        """See `Method.largest_system`: the large machine or the surrogate has it."""
        large = n_rows if self.large_prototypes is None else self.large_prototypes
        return max(large, super().largest_system(n_rows))

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_choice("loss", self.loss, Hinge)
        check_descent(self.tolerance, self.max_iterations)
        if self.large_prototypes is not None:
            whole_number("large_prototypes", self.large_prototypes, 1, 10**6, "a million")

    @property
    def plan_arguments(self) -> dict[str, Any]:
        """See `Method.plan_arguments`."""
        return {"n_prototypes": self.large_prototypes or "all"}

    def shared_over_C(self, kernel: Kernel, rows: Rows) -> tuple[Array, ...]:
        """See `FewPrototypes.shared_over_C`: the prototypes of the large machine."""
        count = self.large_prototypes
        if count is None or count >= len(rows.X):
            return ()
        return (_prototypes_of_large_machine(kernel, rows.X, rows.problem_weights, count),)

    def fit_targets(
        self, kernel: Kernel, starts: Float[Array, "s m d"], *data: Array
    ) -> ReducedSet:
        """See `FewPrototypes.fit_targets`; the large machine's prototypes may follow the data."""
        problem = LargeMargin(kernel, *data[:4], loss=self.loss)
        machine, large_status = _large_machine(problem, self.large_prototypes, *data[4:])
        reduced = _approximate(machine, starts[0], self.tolerance, "gradient", self.max_iterations)
        descent_status = jnp.where(reduced.status == PRECISION_LOST, CONVERGED, reduced.status)
        status = jnp.maximum(descent_status, large_status).astype(jnp.int32)
        if not self.refit:
            return reduced._replace(status=status)
        Z = reduced.expansion.prototypes
        solved = problem.solve(Z)
        status = jnp.maximum(status, solved.status).astype(jnp.int32)
        return ReducedSet(problem.expansion(Z, solved), reduced.error, status)


@functools.partial(compiled, static_argnames="max_rows", loop=True)
def _prototypes_of_large_machine(
    kernel: Kernel,
    X: Float[Array, "n d"],
    weights: Float[Array, " n"] | Float[Array, "n l"],
    max_rows: int,
) -> Float[Array, "k d"]:
    """Return `max_rows` of the rows that have weight for any problem, which span the others."""
    w = weights if weights.ndim == 1 else jnp.max(weights, axis=1)
    present = (w > 0).astype(X.dtype)
    return X[pivoted_cholesky(jax.random.key(0), kernel, X, max_rows, present).indices]


def _large_machine(
    problem: LargeMargin, max_rows: int | None, Z: Float[Array, "k d"] | None = None
) -> tuple[KernelExpansion, Int[Array, ""]]:
    """Fit a support vector machine to all rows; return the machine and its stop code.

    Its prototypes are at most `max_rows` of the rows, or all rows if `max_rows` is None. `Z` are
    these prototypes if they have been chosen already.
    """
    kernel, X = problem.kernel, problem.X
    if Z is None and max_rows is not None and max_rows < len(X):
        Z = _prototypes_of_large_machine(kernel, X, problem.weights, max_rows)
    if Z is not None:
        solved = problem.solve(Z, _GAP)
        return problem.expansion(Z, solved), solved.status
    # The rows of the Cholesky factor of K are features whose Gram matrix is K.
    features = cholesky(shifted_gram(kernel, X))
    svm = interior_point.solve(
        features, problem.y, problem.C, problem.weights, loss=problem.loss, tolerance=_GAP
    )
    machine = KernelExpansion(kernel, X, svm.dual * problem.y, svm.intercept)
    return machine, jnp.max(svm.status)


def fit(
    kernel: Kernel,
    start: Float[Array, "m d"],
    C: CLike,
    X: Float[Array, "n d"],
    y: Float[Array, " n *l"],
    weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
    *,
    refit: bool = False,
    loss: Hinge = "hinge",
    large_prototypes: int | None = LARGE_PROTOTYPES,
    tolerance: ScalarLike = direct.TOLERANCE,
    max_iterations: int = direct.MAX_ITERATIONS,
) -> ReducedSet:
    """Fit a large support vector machine, and approximate it (Burges 1996; Wu 2006, eq. 4).

    The approximation ignores the margin. With `refit` (static) the coefficients are fitted as a
    support vector machine in the span of the prototypes (MRS, Wu et al. 2006, eq. 45), else they
    are the coefficients of the approximation (eq. 47). For `large_prototypes` (static) see
    `ReducedSetSVM`. Other arguments and errors are as for `slmc.fit`, with one start, shape `m d`.

    Returns:
        `ReducedSet`, with the worst status of the large machine, the descent and the refit. A
        descent that rounding ends counts as converged, as the objective is then nearly 0.

    Pure; works under `jit` and `vmap`. Not differentiable, see `slmc.fit`.
    """
    method = ReducedSetSVM(
        refit=refit, loss=loss, large_prototypes=large_prototypes, tolerance=tolerance,
        max_iterations=max_iterations,
    )  # fmt: skip
    return fit_arrays(method, "start", kernel, start, C, X, y, weights)


def simplify(
    machine: KernelExpansion,
    n_prototypes: int,
    *,
    key: KeyLike = 0,
    approach: Approach = "gradient",
    start: Float[Array, "m d"] | None = None,
    tolerance: ScalarLike = direct.TOLERANCE,
    max_iterations: int = direct.MAX_ITERATIONS,
) -> ReducedSet:
    """Approximate a machine by a machine of `m` prototypes: the reduced set method.

    Burges 1996; Schoelkopf and Smola 2002, Section 18.2; Wu 2006, eq. 4 and 47. Minimise the
    distance in feature space from the machine's weight vector to the span of the prototypes. The
    intercept does not change.

    - "fixed_point": choose one prototype after another for the residual, by the iteration
      `z <- sum_i g_i x_i / sum_i g_i` from several of the machine's prototypes (Mika et al. 1999);
      for `RBF` only.
    - "gradient": move all prototypes together by `direct.minimise`, from the fixed points, or for
      other kernels from cluster means of the machine's prototypes.

    Args:
        machine: any expansion, of one output or several.
        n_prototypes: number of prototypes `m`, at most as many as the machine has.
        key: decides the random starts of the fixed points or of the clustering.
        approach: "fixed_point" or "gradient" (static).
        start: prototypes from which "gradient" starts, in the units of the machine's prototypes,
            shape `m d`; None for the start described above.
        tolerance: tolerance of the descent, see `direct.minimise`.
        max_iterations: limit of steps of the descent (static).

    Returns:
        `ReducedSet`, with the status of the descent; `CONVERGED` for a fixed point.

    Pure in the machine; works under `jit` and `vmap`.

    Raises:
        ValueError: for an unknown approach, "fixed_point" with a start or a kernel other than
            `RBF`, `m` below 1 or above the machine's number of prototypes, or a start of another
            shape.
    """
    n, d = machine.prototypes.shape
    m = whole_number("n_prototypes", n_prototypes, 1, n, "the machine's number of prototypes")
    check_choice("approach", approach, Approach)
    if approach == "fixed_point" and (start is not None or not isinstance(machine.kernel, RBF)):
        raise ValueError(
            "approach: expected 'gradient' if a start is passed or the kernel is not RBF, "
            f"got {approach!r} and {type(machine.kernel).__name__}"
        )
    if start is not None and start.shape != (m, d):
        raise ValueError(f"start: expected shape ({m}, {d}), got {start.shape}")
    tolerance = like(tolerance, machine.prototypes)
    return _simplify(machine, as_key(key), start, tolerance, m, approach, max_iterations)


@functools.partial(compiled, static_argnames=("m", "approach", "max_iterations"))
def _simplify(
    machine: KernelExpansion,
    key: Key,
    start: Float[Array, "m d"] | None,
    tolerance: Float[Array, ""],
    m: int,
    approach: Approach,
    max_iterations: int,
) -> ReducedSet:
    kernel, X = machine.kernel, machine.prototypes
    if start is None and isinstance(kernel, RBF):
        beta = machine.coefficients[None]
        start = fixed_points(key, kernel, X, times_power(beta, -exponents(beta))[0], m)
    elif start is None:
        start = k_means(key, X, m).centres
    return _approximate(machine, start, tolerance, approach, max_iterations)


def _approximate(
    machine: KernelExpansion,
    start: Float[Array, "m d"],
    tolerance: ScalarLike,
    approach: Approach,
    max_iterations: int,
) -> ReducedSet:
    """Approximate a machine on the prototypes `start`, with "gradient" after a descent from them.

    The status is CONVERGED without a descent, or if rounding keeps the error from falling.
    """
    problem = Approximation(machine.kernel, machine.prototypes, machine.coefficients)
    problem, exponent = problem.scaled()
    if approach == "gradient":
        Z, solved, *_, status = direct.minimise(
            problem, start, tolerance=tolerance, max_iterations=max_iterations
        )
    else:
        Z, solved, status = start, problem.solve(start), jnp.asarray(CONVERGED, jnp.int32)
    squared_error = solved.value / jnp.where(problem.squared_norm > 0, problem.squared_norm, 1)
    # A squared error at the level of rounding cannot be lowered.
    rounding = squared_error <= 256 * epsilon(Z.dtype)
    status = jnp.where(rounding, CONVERGED, status).astype(jnp.int32)
    coefficients = solved.times_power(exponent).coefficients
    expansion = dataclasses.replace(machine, prototypes=Z, coefficients=coefficients)
    return ReducedSet(expansion, jnp.sqrt(jnp.maximum(squared_error, 0)), status)


class Approximation(InnerProblem):
    """The projection of a machine on the span of prototypes `Z` (Wu 2006, eq. 4 and 47).

    Minimise `|w - sum_i beta_i phi(z_i)|^2`, summed over outputs, for the machine's weight vector
    `w` in feature space.

    Attributes:
        kernel: kernel of two points.
        X: prototypes of the machine, shape `n d`.
        coefficients: coefficients of the machine, shape `n` or `n l`.
        squared_norm: `|w|^2`, summed over outputs.
    """

    kernel: Kernel
    X: Float[Array, "n d"]
    coefficients: Float[Array, " n *l"]
    squared_norm: Float[Array, ""]

    def __init__(
        self, kernel: Kernel, X: Float[Array, "n d"], coefficients: Float[Array, " n *l"]
    ) -> None:
        self.kernel, self.X, self.coefficients = kernel, X, coefficients
        self.squared_norm = jnp.sum(coefficients * dot(kernel.gram(X), coefficients))

    def spread(self) -> Float[Array, " d"]:
        """Return the standard deviation of each column; rows are weighted by `|coefficients|`."""
        sizes = jnp.sum(jnp.abs(self.coefficients.reshape(len(self.X), -1)), axis=1)
        return standardize(self.X, sizes).scale

    def magnitude(self, value: Float[Array, ""]) -> Float[Array, ""]:
        """Return `|w|^2`, as the squared error `value` may be far below its rounding error."""
        return self.squared_norm

    def scaled(self) -> tuple["Approximation", Int[Array, ""]]:
        """See `InnerProblem.scaled`."""
        exponent = exponents(self.coefficients[None])
        coefficients = times_power(self.coefficients[None], -exponent)[0]
        return Approximation(self.kernel, self.X, coefficients), exponent[0]

    def solve(self, Z: Float[Array, "m d"]) -> Solved:
        """Project `w` on the span of `Z`, in features for which `K(Z, Z)` is the identity."""
        T = whitener(self.kernel, Z)
        projection = dot(T.T, dot(self.kernel.cross_gram(Z, self.X), self.coefficients))
        beta = dot(T, projection)
        value = self.squared_norm - jnp.sum(jnp.square(projection))
        converged = jnp.asarray(CONVERGED, jnp.int32)
        return Solved(value, beta, jnp.zeros(beta.shape[1:], Z.dtype), (), converged)

    def lagrangian(self, Z: Float[Array, "m d"], solved: Solved) -> Float[Array, ""]:
        """Return the objective itself, as there are no constraints."""
        beta = solved.coefficients
        values = dot(self.kernel.cross_gram(Z, self.X), self.coefficients)
        return self.squared_norm - 2 * jnp.sum(beta * values) + norm_squared(self.kernel, Z, beta)


def from_sklearn(machine: Any) -> KernelExpansion:
    """Return the expansion of a fitted machine of `sklearn.svm`.

    For regression, outliers and two classes, its value is the machine's prediction or decision
    function, which is positive for the second class. For more classes it has a value for each pair
    of classes, in the order of `output_code("one_versus_one", k)`, positive for the later class.

    Args:
        machine: a fitted SVC, NuSVC, SVR, NuSVR or OneClassSVM with the kernel "rbf", "linear" or
            "poly".

    Raises:
        ValueError: for a machine that is not fitted, or another kernel.
    """
    attributes = ("support_vectors_", "dual_coef_", "intercept_", "kernel")
    if not all(hasattr(machine, name) for name in attributes):
        raise ValueError(
            "machine: expected a fitted machine of sklearn.svm with support vectors, got "
            f"{type(machine).__name__}"
        )
    if machine.kernel not in ("rbf", "linear", "poly"):
        raise ValueError(
            f"machine: expected the kernel 'rbf', 'linear' or 'poly', got {machine.kernel!r}"
        )
    dual, intercept = np.asarray(machine.dual_coef_), np.asarray(machine.intercept_)
    kernel: Kernel = Linear()
    if machine.kernel == "rbf":
        kernel = RBF.from_gamma(machine._gamma)
    elif machine.kernel == "poly":
        kernel = Polynomial(machine.degree, machine._gamma, float(machine.coef0))
    X = as_array(np.asarray(machine.support_vectors_))
    if len(dual) == 1:
        coefficients, intercept = dual[0], intercept[0]
    else:
        class_rows = np.split(np.arange(len(X)), np.cumsum(machine.n_support_)[:-1])
        coefficients, intercept = np.zeros((len(X), len(intercept))), -intercept
        for p, (i, j) in enumerate(itertools.combinations(range(len(class_rows)), 2)):
            coefficients[class_rows[i], p] = -dual[j - 1, class_rows[i]]
            coefficients[class_rows[j], p] = -dual[i, class_rows[j]]
    return KernelExpansion(kernel, X, as_array(coefficients, X.dtype), as_array(intercept, X.dtype))
