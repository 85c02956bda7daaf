"""Fixed-size machines with losses that outliers cannot dominate."""

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
from .fixed_size import Prototypes, feature_map
from .method import MANY_C, Metric, Task, check_number, option
from .rows import Rows


class Robust(Prototypes):
    """A fixed-size machine with a loss that outliers cannot dominate (De Brabanter 2010, eq. 6).

    Args:
        n_prototypes: see `Prototypes`, as are all others but the loss.
        loss: "huber", least squares for small residuals and absolute for large ones; or "absolute".
    """

    name: ClassVar[str] = "robust"
    title: ClassVar[str] = "robust machine"
    robust: ClassVar[bool] = True
    max_rows: ClassVar[int | None] = 1000  # a fit for every fold and C
    default_C: ClassVar[Float[np.ndarray, " s"]] = MANY_C
    info_powers: ClassVar[dict[str, int]] = {"threshold": 1, "objective": 2}

    loss: Loss = option("huber", "of large residuals", choices=("huber", "absolute"))

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
        """See `fit`. Each binary problem has a threshold of its own."""
        assert points is not None
        data = rows.X, rows.targets, rows.problem_weights
        machine = fit(feature_map(kernel, points), C, *data, loss=self.loss)
        return single(machine.expansion, machine.status, diagnostics(machine))


class RobustFit(NamedTuple):
    """A fitted machine, and diagnostics of its solution."""

    expansion: KernelExpansion
    # Least squares with these weights gives the same machine; 1 for residuals below the threshold.
    row_weights: Float[Array, "n *c"]
    threshold: Float[Array, "*c"]
    objective: Float[Array, "*c"]  # infinite or 0 if the squares of targets are out of range
    steps: Int[Array, ""]  # the largest number over outputs
    status: Int[Array, ""]  # the worst over outputs

    __repr__ = short_repr


def fit(
    feature_map: FeatureMap,
    C: ScalarLike | Float[Array, " c"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | Float[Array, "n c"] | None = None,
    *,
    loss: Loss = "absolute",
    threshold: ScalarLike | None = None,
    tolerance: ScalarLike | None = None,
    max_steps: int | Int[Array, ""] = 200,
    block_rows: int | None = None,
) -> RobustFit:
    """Minimise `1/2 |w|^2 + C/2 sum_i weight_i L(y_i - phi(x_i)'w - b)` (De Brabanter 2010, eq. 6).

    - "absolute": `L(e) = |e|`, the L1 loss of Section 3.2.
    - "huber": `L(e) = e^2` up to a threshold d and `2 d |e| - d^2` beyond: least squares for small
      residuals, absolute for large ones.

    Both are quadratic programs. A primal-dual interior-point method with Mehrotra's predictor and
    corrector (Nocedal and Wright 2006, Algorithm 16.4) solves them; each step is a weighted
    least-squares problem. The distance of an outlier changes neither the solution nor the number of
    steps: targets are taken about their median in units of their median deviation, and the stopping
    rule counts larger residuals as one such unit.

    Args:
        feature_map: such as `Nystroem(kernel, prototypes)`; penalised by the identity.
        C: weight of the data-fit term, positive; or one for each output, shape `c`.
        X: inputs, shape `n d`.
        y: targets, shape `n`, or `n c` for several outputs, each fitted separately.
        weights: row weights, shape `n`, or `n c` for weights of each output; at least 0.
        loss: "absolute" or "huber" (static).
        threshold: Huber's d, in units of y. By default it is `TUNING` times the standard deviation
            that the solution's median absolute residual stands for: the threshold and the solution
            are found together. Few rows may leave no such threshold; then the steps run out.
        tolerance: the duality gap at which to stop, as a part of the objective without what
            outliers add to it; by default 1e-6, or the square root of the dtype's epsilon.
        max_steps: cap on interior-point steps.
        block_rows: rows at a time in the sums (static).

    Returns:
        `RobustFit`. The status is `PRECISION_LOST` where rounding keeps the gap above the
        tolerance, and `TRUNCATED` as by `fixed_size.fit`, where features lost to rounding would
        have been used.

    Memory `n p` for the features. Pure; works under `jit` and `vmap`, and nothing compiles again
    when numbers change. Not differentiable in reverse mode (an iteration of unknown length).

    Raises:
        ValueError: as `fixed_size.fit`, or if the loss is unknown, the threshold not positive, the
            tolerance negative, or `max_steps` no whole number of at least 1.
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
    if is_concrete(max_steps):
        whole_number("max_steps", max_steps, 1)
    tol = default_tolerance(X.dtype) if tolerance is None else tolerance
    delta = None if threshold is None else like(threshold, X)
    cap, C = jnp.asarray(max_steps, jnp.int32), jnp.asarray(C, X.dtype)
    return _fit(feature_map, C, X, y, weights, delta, like(tol, X), cap, loss, block_rows)


@functools.partial(compiled, static_argnames=("loss", "block_rows"))
def _fit(
    feature_map: FeatureMap,
    C: Float[Array, "*k"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | Float[Array, "n c"] | None,
    threshold: Float[Array, ""] | None,
    tolerance: Float[Array, ""],
    max_steps: Int[Array, ""],
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
            Phi, target, w, C, tolerance, loss=loss, threshold=threshold, max_steps=max_steps,
            block_rows=block_rows,
        )  # fmt: skip
        size, d = jnp.abs(solution.residual), solution.threshold
        row_weights = jnp.where(size > d, d / size, 1)
        # At a residual e the absolute loss has the slope of least squares with C / (2 |e|).
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
    """Return what `fit` minimises."""
    losses = jnp.abs(solution.residual)
    if loss == "huber":
        inner = jnp.minimum(losses, solution.threshold)
        losses = inner * (2 * losses - inner)
    penalty = jnp.sum(jnp.square(solution.weights)) / 2
    return penalty + C / 2 * jnp.sum(jnp.where(w > 0, w * losses, 0))
