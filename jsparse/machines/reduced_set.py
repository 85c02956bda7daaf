"""Machines with fewer expansion vectors than they have: the reduced set method (Burges 1996)."""

import dataclasses
import functools
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arguments import as_key, real, whole_number
from .._numerics import as_array, dot, each_alone, epsilon, exponents, like, times_power
from .._programs import compiled
from .._repr import short_repr
from .._status import CONVERGED, PRECISION_LOST
from .._types import Key, KeyLike, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import RBF, Kernel, Linear, Polynomial
from ..multiclass import Code
from ..prototypes import k_means
from ..scaling import standardize
from ..solvers import interior_point
from ..solvers.definite import inverse_of_lower
from . import direct
from .inner_problems import norm_squared, shifted_gram, whitener
from .method import Method, Task, each_problem
from .slmc import Reduced, ReducedSVM, check_loss

Approach = Literal["fixed_point", "gradient"]
APPROACHES = ("fixed_point", "gradient")
_TRIES = 6  # starts of the fixed point of each vector
_STEPS = 100  # of a fixed point
_GAP = 300  # of the whole machine, in units of the precision; float32 does not always get to 40


class ReducedSet(NamedTuple):
    """A machine of fewer expansion vectors, and how near it is."""

    expansion: KernelExpansion
    error: Float[Array, ""]  # |w - w'| / |w|
    status: Int[Array, ""]

    __repr__ = short_repr


class Approximation(direct.InnerProblem):
    """A machine's `w` projected on the span of `Z` (Wu 2006, eq. 4 and 47).

    Minimise `|w - sum_i beta_i phi(z_i)|^2`, of all outputs together.

    Attributes:
        kernel: kernel of two points.
        X: expansion vectors of the machine, shape `n d`.
        coefficients: shape `n` or `n l`.
        norm: `|w|^2`.
    """

    kernel: Kernel
    X: Float[Array, "n d"]
    coefficients: Float[Array, "n *l"]
    norm: Float[Array, ""]

    def __init__(
        self, kernel: Kernel, X: Float[Array, "n d"], coefficients: Float[Array, "n *l"]
    ) -> None:
        self.kernel, self.X, self.coefficients = kernel, X, coefficients
        self.norm = jnp.sum(coefficients * dot(kernel.gram(X), coefficients))

    def spread(self) -> Float[Array, " d"]:
        """Return the standard deviations of the columns, each row weighed by its coefficients."""
        sizes = jnp.sum(jnp.abs(self.coefficients.reshape(len(self.X), -1)), axis=1)
        return standardize(self.X, sizes).scale

    def scaled(self) -> tuple["Approximation", Int[Array, ""]]:
        """See `InnerProblem.scaled`."""
        exponent = exponents(self.coefficients[None])
        coefficients = times_power(self.coefficients[None], -exponent)[0]
        return Approximation(self.kernel, self.X, coefficients), exponent[0]

    def solve(self, Z: Float[Array, "m d"]) -> direct.Solved:
        """By the features in which `K(Z, Z)` is the identity."""
        T = whitener(self.kernel, Z)
        along = dot(T.T, dot(self.kernel.cross_gram(Z, self.X), self.coefficients))
        beta = dot(T, along)
        value = self.norm - jnp.sum(jnp.square(along))
        return direct.Solved(
            value, beta, jnp.zeros(beta.shape[1:], Z.dtype), (), jnp.asarray(CONVERGED, jnp.int32)
        )

    def lagrangian(self, Z: Float[Array, "m d"], solved: direct.Solved) -> Float[Array, ""]:
        """The objective itself."""
        beta = solved.coefficients
        values = dot(self.kernel.cross_gram(Z, self.X), self.coefficients)
        own = norm_squared(self.kernel, Z, beta)
        return self.norm - 2 * jnp.sum(beta * values) + own


def simplify(
    machine: KernelExpansion,
    m: int,
    *,
    key: KeyLike = 0,
    approach: Approach = "gradient",
    start: Float[Array, "m d"] | None = None,
    tolerance: ScalarLike = direct.TOLERANCE,
    max_steps: int = direct.MAX_STEPS,
) -> ReducedSet:
    """The reduced set method: `m` vectors whose span is as near as can be to a machine's `w`.

    Burges 1996; Schoelkopf and Smola 2002, Section 18.2; Wu 2006, eq. 4 and 47. The function is
    what is approximated, in the norm of its space; its intercept is kept.

    - "fixed_point": one vector after another for what is left, each from several of the machine's
      by `z <- sum_i g_i x_i / sum_i g_i` (Mika et al. 1999), shortened where it would not lower the
      distance; for `RBF` only.
    - "gradient": all vectors together by `direct.minimise`, from where the fixed point ends, or
      with another kernel from means of clusters of the machine's vectors.

    Args:
        machine: any expansion, of one output or several.
        m: number of vectors, at most as many as the machine has.
        key: decides the starts.
        approach: "fixed_point" or "gradient".
        start: vectors that "gradient" starts from in place of these, in the units of the
            machine's prototypes.
        tolerance: of the descent, see `direct.minimise`.
        max_steps: cap on its steps (static).

    Returns:
        `ReducedSet`. Its status is that of the descent; that of a fixed point is `CONVERGED`.

    Pure in the machine; works under `jit` and `vmap`.

    Raises:
        ValueError: for another approach, or "fixed_point" with another kernel than `RBF`; a number
            that is not between 1 and that of the machine; a start of another shape.
    """
    n, d = machine.prototypes.shape
    m = whole_number("m", m, 1, n, "the machine's number of prototypes")
    if approach not in APPROACHES:
        raise ValueError(f"approach: expected one of {APPROACHES}, got {approach!r}")
    if approach == "fixed_point" and (start is not None or not isinstance(machine.kernel, RBF)):
        raise ValueError(
            "approach: expected 'gradient' with a start of one's own or a kernel that is not RBF, "
            f"got {approach!r} and {type(machine.kernel).__name__}"
        )
    if start is not None and start.shape != (m, d):
        raise ValueError(f"start: expected shape ({m}, {d}), got {start.shape}")
    key, tolerance = as_key(key), like(tolerance, machine.prototypes)
    return _simplify(machine, key, start, tolerance, m, approach, max_steps)


@functools.partial(compiled, static_argnames=("m", "approach", "max_steps"))
def _simplify(
    machine: KernelExpansion,
    key: Key,
    start: Float[Array, "m d"] | None,
    tolerance: Float[Array, ""],
    m: int,
    approach: Approach,
    max_steps: int,
) -> ReducedSet:
    problem = Approximation(machine.kernel, machine.prototypes, machine.coefficients)
    if start is None and isinstance(machine.kernel, RBF):
        start = _fixed_points(key, problem.scaled()[0], m)
    elif start is None:
        start = k_means(key, machine.prototypes, m).centres
    return near(problem, start, machine, tolerance, approach, max_steps)


def near(
    problem: Approximation,
    start: Float[Array, "m d"],
    machine: KernelExpansion,
    tolerance: ScalarLike,
    approach: Approach,
    max_steps: int,
) -> ReducedSet:
    """The machine of the start, or of where a descent from there ends."""
    problem, exponent = problem.scaled()
    Z, solved, status = start, problem.solve(start), jnp.asarray(CONVERGED, jnp.int32)
    if approach == "gradient":
        found = direct.minimise(problem, start, tolerance=tolerance, max_steps=max_steps)
        Z, solved, status = found.Z, found.solved, found.status
    part = solved.value / jnp.where(problem.norm > 0, problem.norm, 1)
    # Of a distance of the size of its own rounding no more can be had.
    status = jnp.where(part <= 256 * epsilon(Z.dtype), CONVERGED, status).astype(jnp.int32)
    coefficients = solved.times_power(exponent).coefficients
    expansion = dataclasses.replace(machine, prototypes=Z, coefficients=coefficients)
    return ReducedSet(expansion, jnp.sqrt(jnp.maximum(part, 0)), status)


@each_alone
def _cholesky(matrix: Float[Array, "m m"]) -> Float[Array, "m m"]:
    return jnp.linalg.cholesky(matrix)


class _Point(NamedTuple):
    """Fixed points of one vector, from several starts."""

    z: Float[Array, "t d"]
    t: Float[Array, " t"]  # part of the step that is tried next
    value: Float[Array, " t"]  # the squared projection there
    steps: Int[Array, ""]
    going: Bool[Array, ""]


def _fixed_points(key: Key, problem: Approximation, m: int) -> Float[Array, "m d"]:
    """One vector after another, each where what is left of `w` has its longest projection.

    The coefficients of the problem are of size one, see `Approximation.scaled`.
    """
    kernel, X = problem.kernel, problem.X
    n, dtype = len(X), X.dtype
    A = problem.coefficients.reshape(n, -1)
    place = jnp.arange(m, dtype=jnp.int32)
    # Rows that matter more often; the tries of a vector are different ones.
    mass = jnp.log(jnp.sum(jnp.square(A), axis=1) + float(jnp.finfo(dtype).tiny))
    chance = mass[None, :] + jax.random.gumbel(key, (m, n), dtype)

    def vector(j: Int[Array, ""], found: tuple[Array, Array]) -> tuple[Array, Array]:
        Z, beta = found
        every, left = jnp.concatenate([X, Z]), jnp.concatenate([A, -beta])

        def seen(z: Float[Array, "t d"]) -> tuple[Array, Array]:
            columns = kernel.cross_gram(z, every)
            along = dot(columns, left)
            return jnp.sum(jnp.square(along), axis=1), columns * dot(along, left.T)

        def step(point: _Point) -> _Point:
            value, pull = seen(point.z)
            total = jnp.sum(pull, axis=1)
            # `total` is the squared projection itself, never negative.
            target = dot(pull, every) / jnp.where(total > 0, total, 1)[:, None]
            z = point.z + point.t[:, None] * (target - point.z)
            after, _ = seen(z)
            better = after > value
            gained = jnp.where(better, after - value, 0) > 1e-4 * value
            t = jnp.where(better, jnp.minimum(2 * point.t, 1), point.t / 4)
            going = jnp.any(gained | (~better & (t > 1e-3))) & (point.steps < _STEPS)
            kept = jnp.where(better[:, None], z, point.z)
            return _Point(kept, t, jnp.where(better, after, value), point.steps + 1, going)

        starts = X[jax.lax.top_k(chance[j], min(_TRIES, n))[1]]
        ones = jnp.ones(len(starts), dtype)
        first = _Point(starts, ones, 0 * ones, jnp.zeros((), jnp.int32), jnp.asarray(True))
        last = jax.lax.while_loop(lambda point: point.going, step, first)
        Z = Z.at[j].set(last.z[jnp.argmax(last.value)])
        # All coefficients again (eq. 47); of vectors that are yet to come 0.
        there = place <= j
        both = there[:, None] & there[None, :]
        gram = jnp.where(both, shifted_gram(kernel, Z), jnp.eye(m, dtype=dtype))
        inverse = inverse_of_lower(_cholesky(gram))
        values = jnp.where(there[:, None], dot(kernel.cross_gram(Z, X), A), 0)
        return Z, dot(inverse.T, dot(inverse, values))

    empty = jnp.broadcast_to(X[:1], (m, X.shape[1])), jnp.zeros((m, A.shape[1]), dtype)
    return jax.lax.fori_loop(0, m, vector, empty)[0]


def from_sklearn(machine: Any) -> KernelExpansion:
    """The expansion of a fitted machine of scikit-learn's `sklearn.svm`, as it was fitted.

    Of two classes the value is `decision_function`, positive for the second. Of more it is the
    values of all pairs of classes in the order of `output_code("one_versus_one", k)`, positive for
    the later class.

    Args:
        machine: a fitted SVC, NuSVC, SVR, NuSVR or OneClassSVM with the kernel "rbf", "linear" or
            "poly".

    Raises:
        ValueError: for a machine that is not fitted, or another kernel.
    """
    wanted = ("support_vectors_", "dual_coef_", "intercept_", "kernel")
    if not all(hasattr(machine, name) for name in wanted):
        raise ValueError(
            "machine: expected a fitted machine of sklearn.svm with support vectors, got "
            f"{type(machine).__name__}"
        )
    if machine.kernel not in ("rbf", "linear", "poly"):
        raise ValueError(
            f"machine: expected the kernel 'rbf', 'linear' or 'poly', got {machine.kernel!r}"
        )
    X, dual = np.asarray(machine.support_vectors_), np.asarray(machine.dual_coef_)
    scale = machine.gamma if isinstance(machine.gamma, float | int) else machine._gamma
    kernel: Kernel
    if machine.kernel == "rbf":
        kernel = RBF.from_gamma(scale)
    elif machine.kernel == "linear":
        kernel = Linear()
    else:
        kernel = Polynomial(machine.degree, scale, float(machine.coef0))
    if len(dual) == 1:
        return _as_expansion(kernel, X, dual[0], np.asarray(machine.intercept_)[0])
    ends = np.cumsum(machine.n_support_)
    rows = [slice(end - count, end) for end, count in zip(ends, machine.n_support_, strict=True)]
    pairs = [(i, j) for i in range(len(rows)) for j in range(i + 1, len(rows))]
    coefficients = np.zeros((len(X), len(pairs)))
    for p, (i, j) in enumerate(pairs):
        coefficients[rows[i], p] = -dual[j - 1, rows[i]]
        coefficients[rows[j], p] = -dual[i, rows[j]]
    return _as_expansion(kernel, X, coefficients, -np.asarray(machine.intercept_))


def _as_expansion(kernel: Kernel, X: Any, coefficients: Any, intercept: Any) -> KernelExpansion:
    X = as_array(X)
    return KernelExpansion(
        kernel, X, as_array(coefficients, X.dtype), jnp.asarray(intercept, X.dtype)
    )


@dataclasses.dataclass(frozen=True)
class ReducedSetSVM(Reduced):
    """A support vector machine, simplified afterwards by the reduced set method (Burges 1996).

    The machine of all rows is solved for with their whole kernel matrix, and approximated by a
    descent from the points (Wu et al. 2006, eq. 4), whatever that does to its margin.

    Args:
        n_prototypes: see `Reduced`, as is the next.
        selection: of the points that the descent starts from.
        refit: the coefficients of the vectors so found are those of the support vector machine in
            their span (MRS, Wu et al. 2006, eq. 45), in place of those of eq. 47.
        loss: "hinge" or "squared_hinge".
        tolerance: of the descent, see `direct.minimise`.
        max_steps: cap on its steps.
    """

    name: ClassVar[str] = "reduced-set"
    title: ClassVar[str] = "reduced set"
    most_rows: ClassVar[int | None] = 1000

    refit: bool = False
    loss: interior_point.Hinge = "hinge"
    tolerance: float = direct.TOLERANCE
    max_steps: int = direct.MAX_STEPS

    @property
    def memory(self) -> Literal["all"]:
        """See `Method.memory`."""
        return "all"

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_loss(self.loss)
        real("tolerance", self.tolerance, 0.0)
        whole_number("max_steps", self.max_steps, 1, 10**6, "a million")

    def surrogate(self) -> Method:
        """The reduced machine of the points that the descent starts from."""
        return ReducedSVM(self.n_prototypes, self.selection, self.starts, self.loss)

    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "m d"] | None,
        C: ScalarLike | Float[Array, " l"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        code: Code | None = None,
        key: Key | None = None,
    ) -> ReducedSet:
        """See `Method.fit`: the whole machine, and a descent from the points."""
        assert points is not None
        return _reduced(self, kernel, points, jnp.asarray(C, X.dtype), X, y, weights, code)


@functools.partial(compiled, static_argnames="method")
def _reduced(
    method: ReducedSetSVM,
    kernel: Kernel,
    points: Float[Array, "m d"],
    C: Float[Array, "*k"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    weights: Float[Array, " n"] | None,
    code: Code | None,
) -> ReducedSet:
    targets, w = each_problem(y, weights, code, X.dtype)
    small = direct.LargeMargin(kernel, X, targets, C, w, method.loss)
    # The rows of the Cholesky factor of K are features of which K is the Gram matrix.
    features = _cholesky(shifted_gram(kernel, small.X))
    # What is left of the gap is far below what the approximation errs by.
    gap = max(interior_point.default_tolerance(X.dtype), _GAP * epsilon(X.dtype))
    svm = interior_point.solve(
        features, small.y, small.C, small.weights, loss=method.loss, tolerance=gap
    )
    machine = KernelExpansion(kernel, small.X, svm.dual * small.y, svm.intercept)
    problem = Approximation(kernel, small.X, machine.coefficients)
    found = near(problem, points, machine, method.tolerance, "gradient", method.max_steps)
    # Where rounding ends the descent, as it does near the whole machine, `error` says what it is.
    ended = jnp.where(found.status == PRECISION_LOST, CONVERGED, found.status)
    status = jnp.maximum(ended, jnp.max(svm.status)).astype(jnp.int32)
    if not method.refit:
        return found._replace(status=status)
    solved = small.solve(found.expansion.prototypes)
    return ReducedSet(
        small.expansion(found.expansion.prototypes, solved), found.error,
        jnp.maximum(status, solved.status).astype(jnp.int32),
    )  # fmt: skip
