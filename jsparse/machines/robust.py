"""Fixed-size machines with the absolute or the Huber loss, which outliers cannot dominate."""

import functools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import whole_number
from .._blocks import map_row_blocks, rows_in_block
from .._numerics import dot, is_concrete, like
from .._programs import compiled
from .._repr import short_repr
from .._status import TRUNCATED
from .._types import Key, ScalarLike
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..solvers.robust import SMOOTHING, Loss, Solution, default_tolerance, solve
from .checks import check_choice, check_penalty, check_problem, in_one_dtype
from .family import Family, diagnostics, single
from .method import MANY_C, Metric, Task, check_number, option
from .row_prototypes import Prototypes, feature_map
from .rows import Rows


class Robust(Prototypes):
    """A fixed-size machine with a loss that outliers cannot dominate (De Brabanter 2010, eq. 6).

    `Prototypes` describes the settings that are not listed.

    Args:
        loss: "huber", which is quadratic for small residuals and linear for large ones; or
            "absolute".
    """

    name: ClassVar[str] = "robust"
    title: ClassVar[str] = "robust machine"
    robust: ClassVar[bool] = True
    max_rows: ClassVar[int | None] = 1000  # validation takes a fit for every fold and C
    default_C: ClassVar[Float[np.ndarray, " s"]] = MANY_C
    info_powers: ClassVar[dict[str, int]] = {"threshold": 1, "objective": 2}

    loss: Loss = option("huber", "loss of the residuals", choices=("huber", "absolute"))

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_choice("loss", self.loss, Loss)

    def metric(self, task: Task) -> Metric:
        """See `Method.metric`: the mean absolute error for regression."""
        return "misclassification" if task == "classification" else "mae"

    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "m d"] | None,
        C: ScalarLike | Float[Array, " l"],
        rows: Rows,
        key: Key | None = None,
    ) -> Family:
        """See `fit` of this module. Each binary problem has a separate threshold."""
        assert points is not None
        data = rows.X, rows.targets, rows.problem_weights
        machine = fit(feature_map(kernel, points), C, *data, loss=self.loss)
        return single(machine.expansion, machine.status, diagnostics(machine))


class RobustFit(NamedTuple):
    """A fitted machine, with diagnostics of its optimisation."""

    expansion: KernelExpansion
    # Weighted least squares with these row weights gives the same machine. A row whose residual is
    # below the threshold has weight 1.
    row_weights: Float[Array, " n *c"]
    threshold: Float[Array, "*c"]  # where the loss becomes linear, in units of y
    objective: Float[Array, "*c"]  # infinite or 0 if the dtype cannot hold squared targets
    steps: Int[Array, ""]  # interior-point steps, largest over outputs
    status: Int[Array, ""]  # worst over outputs

    __repr__ = short_repr


def fit(
    feature_map: FeatureMap,
    C: ScalarLike | Float[Array, " c"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | Float[Array, "n c"] | None = None,
    *,
    loss: Loss = "absolute",
    threshold: ScalarLike | None = None,
    tolerance: ScalarLike | None = None,
    max_iterations: int | Int[Array, ""] = 200,
    block_rows: int | None = None,
) -> RobustFit:
    """Minimise `1/2 |w|^2 + C/2 sum_i weight_i L(y_i - phi(x_i)'w - b)` (De Brabanter 2010, eq. 6).

    - "absolute": `L(e) = |e|`, the L1 loss of Section 3.2.
    - "huber": `L(e) = e^2` if `|e| <= d`, else `2 d |e| - d^2`, for a threshold d.

    Both are quadratic programs. A primal-dual interior-point method with Mehrotra's predictor and
    corrector (Nocedal and Wright 2006, Algorithm 16.4) solves them; each step is a weighted
    least-squares problem. The distance of an outlier changes neither the solution nor the number of
    steps: targets are centred by their median and divided by their median absolute deviation, and
    the stopping rule counts a larger residual as one deviation.

    Args:
        feature_map: such as `Nystroem(kernel, prototypes)`; penalised by the identity.
        C: weight of the data-fit term, positive; or one for each output, shape `c`.
        X: inputs, shape `n d`.
        y: targets, shape `n`, or `n c` for several outputs, each fitted separately.
        weights: row weights, shape `n`, or `n c` for weights of each output; at least 0.
        loss: "absolute" or "huber" (static).
        threshold: Huber's d, in units of y. By default it is `TUNING` times a robust standard
            deviation of the residuals, from their median absolute value; threshold and solution are
            found together. With few rows such a threshold may not exist: the status is then
            `EXHAUSTED`.
        tolerance: the duality gap at which to stop, relative to an objective in which a residual
            counts as at most one deviation; by default 1e-6, or the square root of the dtype's
            epsilon if that is larger.
        max_iterations: limit of interior-point steps.
        block_rows: rows summed at a time (static).

    Returns:
        `RobustFit`. The status is `PRECISION_LOST` if rounding keeps the gap above the tolerance,
        and `TRUNCATED` if the solution needs features lost to rounding, as in `fixed_size.fit`.

    Memory `n p` for the features. Pure; works under `jit` and `vmap`, and nothing compiles again
    when numbers change. Not differentiable in reverse mode (an iteration of unknown length).

    Raises:
        ValueError: as for `fixed_size.fit`, or if the loss is unknown, the threshold not positive,
            the tolerance negative, or `max_iterations` not a whole number of at least 1.
    """
    check_choice("loss", loss, Loss)
    check_penalty(feature_map)
    X, y, weights = in_one_dtype(X, y, weights)
    n = X.shape[0]
    for w in [None] if weights is None else weights.reshape(n, -1).T:
        check_problem(None, C, X, y, w)
    if threshold is not None:
        check_number("threshold", threshold, 0.0, above=True, finite=False)
    if tolerance is not None:
        check_number("tolerance", tolerance, 0.0)
    if is_concrete(max_iterations):
        whole_number("max_iterations", max_iterations, 1)
    tol = default_tolerance(X.dtype) if tolerance is None else tolerance
    delta = None if threshold is None else like(threshold, X)
    limit, C = jnp.asarray(max_iterations, jnp.int32), jnp.asarray(C, X.dtype)
    return _fit(feature_map, C, X, y, weights, delta, like(tol, X), limit, loss, block_rows)


@functools.partial(compiled, static_argnames=("loss", "block_rows"))
def _fit(
    feature_map: FeatureMap,
    C: Float[Array, "*k"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | Float[Array, "n c"] | None,
    threshold: Float[Array, ""] | None,
    tolerance: Float[Array, ""],
    max_iterations: Int[Array, ""],
    loss: Loss,
    block_rows: int | None,
) -> RobustFit:
    Phi = map_row_blocks(feature_map, X, rows_in_block(block_rows))
    n, outputs = len(X), y.shape[1:]
    columns = y.reshape(n, -1)
    w = jnp.ones(n, X.dtype) if weights is None else weights
    w = jnp.broadcast_to(w.reshape(n, -1), columns.shape)
    C = jnp.broadcast_to(C, columns.shape[1:])

    def one(output: tuple[Array, Array, Array]) -> tuple[Solution, Array, Array, Array]:
        target, w, C = output
        solution = solve(
            Phi, target, w, C, tolerance, loss=loss, threshold=threshold,
            max_iterations=max_iterations, block_rows=block_rows,
        )  # fmt: skip
        size, d = jnp.abs(solution.residual), solution.threshold
        row_weights = jnp.where(size > d, d / size, 1)
        # At a residual e the absolute loss has the slope of the squared loss with C / (2 |e|).
        strength = C if loss == "huber" else C / d * (SMOOTHING / 2)
        unresolved = feature_map.unresolved(strength, _energy(Phi, w))
        return solution, row_weights, _objective(loss, solution, w, C), unresolved

    solutions, row_weights, objective, unresolved = jax.lax.map(one, (columns.T, w.T, C))
    lost = jnp.where(jnp.any(unresolved), TRUNCATED, 0)
    coefficients = solutions.weights.T.reshape(-1, *outputs)
    return RobustFit(
        expansion=feature_map.expansion(coefficients, solutions.intercept.reshape(outputs)),
        row_weights=row_weights.T.reshape(y.shape),
        threshold=solutions.threshold.reshape(outputs),
        objective=objective.reshape(outputs),
        steps=jnp.max(solutions.steps),
        status=jnp.maximum(jnp.max(solutions.status), lost),
    )


def _energy(Phi: Float[Array, "n p"], w: Float[Array, " n"]) -> Float[Array, " p"]:
    """Return the weighted sum of squares of each feature about its mean."""
    Phi = jnp.where((w > 0)[:, None], Phi, 0)
    mean = dot(w, Phi) / jnp.sum(w)
    return dot(w, jnp.square(Phi - mean[None, :]))


def _objective(
    loss: Loss, solution: Solution, w: Float[Array, " n"], C: Float[Array, ""]
) -> Float[Array, ""]:
    """Return the value of the objective that `fit` minimises."""
    losses = jnp.abs(solution.residual)
    if loss == "huber":
        inner = jnp.minimum(losses, solution.threshold)
        losses = inner * (2 * losses - inner)
    penalty = jnp.sum(jnp.square(solution.weights)) / 2
    return penalty + C / 2 * jnp.sum(jnp.where(w > 0, w * losses, 0))
