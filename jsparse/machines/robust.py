"""Fixed-size machines with losses that outliers cannot dominate."""

import dataclasses
import functools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import real, whole_number
from .._blocks import map_row_blocks, rows_in_block
from .._numerics import dot, is_concrete, like
from .._programs import compiled
from .._repr import short_repr
from .._status import TRUNCATED
from .._types import Key, ScalarLike
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..multiclass import Code
from ..solvers.robust import SMOOTHING, Loss, Solution, default_tolerance, solve
from .checks import check_penalty, check_problem, in_one_dtype
from .fixed_size import Prototypes, feature_map
from .method import MANY_C, Metric, Task, each_problem, option


@dataclasses.dataclass(frozen=True)
class Robust(Prototypes):
    """A fixed-size machine with a loss that outliers cannot dominate (De Brabanter 2010, eq. 6).

    Args:
        n_prototypes: see `Prototypes`, as are `selection` and `size_tolerance`.
        selection: "renyi" or "uniform".
        size_tolerance: of several sizes.
        loss: "huber": least squares for the rows that fit, absolute for the others; or "absolute".
    """

    name: ClassVar[str] = "robust"
    title: ClassVar[str] = "robust machine"
    robust: ClassVar[bool] = True
    most_rows: ClassVar[int | None] = 1000  # a fit for every fold and C
    default_C: ClassVar[Float[np.ndarray, " s"]] = MANY_C

    loss: Loss = option("huber", "of large residuals", choices=("huber", "absolute"))

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if self.loss not in ("absolute", "huber"):
            raise ValueError(f"loss: expected 'absolute' or 'huber', got {self.loss!r}")

    def metric(self, task: Task) -> Metric:
        """The mean absolute error for numbers."""
        return "misclassification" if task == "classification" else "mae"

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
    ) -> "RobustFit":
        """See `fit`."""
        assert points is not None
        targets, weights = each_problem(y, weights, code, X.dtype)
        return fit(feature_map(kernel, points), C, X, targets, weights, loss=self.loss)


class RobustFit(NamedTuple):
    """A fitted machine and how it came about."""

    expansion: KernelExpansion
    row_weights: Float[
        Array, "n *c"
    ]  # with which least squares gives the same, 1 for rows that fit
    threshold: Float[Array, "*c"]
    # Infinite, or 0, where the dtype does not reach the squares of targets; `train` gives float64.
    objective: Float[Array, "*c"] | Float[np.ndarray, "*c"]
    steps: Int[Array, ""]  # of the output that took most
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
    max_steps: int = 200,
    block_rows: int | None = None,
) -> RobustFit:
    """Minimise `1/2 |w|^2 + C/2 sum_i weight_i L(y_i - phi(x_i)'w - b)` (De Brabanter 2010, eq. 6).

    - "absolute": `L(e) = |e|`, the L1 loss of Section 3.2.
    - "huber": `L(e) = e^2` up to a threshold d and `2 d |e| - d^2` beyond: least squares for the
      rows that fit, absolute for the others.

    Both are quadratic programs, solved by a primal-dual interior-point method with Mehrotra's
    predictor and corrector (Nocedal and Wright 2006, Algorithm 16.4); each step is a weighted
    least-squares problem. How far off an outlier is changes neither the solution nor when it is
    found: targets are taken about their median in units of their median deviation, and the stopping
    rule counts no residual beyond one such unit by more than that.

    Args:
        feature_map: such as `Nystroem(kernel, prototypes)`; penalised by the identity.
        C: weight of the data-fit term, positive; or one for each output, shape `c`.
        X: inputs, shape `n d`.
        y: targets, shape `n`, or `n c` for several, each on its own.
        weights: row weights, shape `n`, or each output's own, shape `n c`; at least 0.
        loss: "absolute" or "huber".
        threshold: Huber's d, in units of y. By default `TUNING` times the standard deviation that
            the median size of the solution's own residuals stands for: the threshold and the
            solution of it are found together. Few rows may leave no such threshold: then the steps
            run out.
        tolerance: stop when the duality gap is no more than this part of the objective, less what
            outliers add to it; by default 1e-6, or the square root of the dtype's spacing.
        max_steps: cap.
        block_rows: rows at a time in the sums (static).

    Memory `n p` for the features. Pure; works under `jit` and `vmap`. Not differentiable in reverse
    mode (an iteration of unknown length). The status is `PRECISION_LOST` where rounding keeps the
    gap above the tolerance, `TRUNCATED` where features lost to rounding would have been used, see
    `fixed_size.fit`.

    Raises:
        ValueError: as `fixed_size.fit`, or if the loss is unknown, the threshold not positive, the
            tolerance negative, or `max_steps` no whole number of at least 1.
    """
    if loss not in ("absolute", "huber"):
        raise ValueError(f"loss: expected 'absolute' or 'huber', got {loss!r}")
    check_penalty(feature_map)
    X, y, weights = in_one_dtype(X, y, weights)
    n = X.shape[0]
    own = [None] if weights is None else list(weights.reshape(n, -1).T)
    for w in own:
        check_problem(None, C, X, y, w)
    if threshold is not None and is_concrete(threshold):
        real("threshold", threshold, 0.0, above=True, finite=False)
    if tolerance is not None and is_concrete(tolerance):
        real("tolerance", tolerance, 0.0)
    if is_concrete(max_steps):
        whole_number("max_steps", max_steps, 1)
    columns = y.reshape(n, -1)
    w = jnp.ones(n, X.dtype) if weights is None else weights
    w = jnp.broadcast_to(w.reshape(n, -1), columns.shape)
    each = jnp.broadcast_to(jnp.asarray(C, X.dtype), columns.shape[1:])
    tol = default_tolerance(X.dtype) if tolerance is None else tolerance
    delta = None if threshold is None else like(threshold, X)
    cap = jnp.asarray(max_steps, jnp.int32)
    fitted = _fit(feature_map, each, X, columns, w, delta, like(tol, X), cap, loss, block_rows)
    if y.ndim == 2:
        return fitted
    # One output: without its axis.
    model = fitted.expansion
    expansion = KernelExpansion(
        model.kernel, model.prototypes, model.coefficients[:, 0], model.intercept[0]
    )
    return fitted._replace(
        expansion=expansion,
        row_weights=fitted.row_weights[:, 0],
        threshold=fitted.threshold[0],
        objective=fitted.objective[0],
    )


@functools.partial(compiled, static_argnames=("loss", "block_rows"))
def _fit(
    feature_map: FeatureMap,
    C: Float[Array, " c"],
    X: Float[Array, "n d"],
    y: Float[Array, "n c"],
    w: Float[Array, "n c"],
    threshold: Float[Array, ""] | None,
    tolerance: Float[Array, ""],
    max_steps: Int[Array, ""],
    loss: Loss,
    block_rows: int | None,
) -> RobustFit:
    Phi = map_row_blocks(feature_map, X, rows_in_block(block_rows))

    def output(of: tuple[Array, Array, Array]) -> tuple[Solution, Array, Array, Array]:
        target, seen, c = of
        found = solve(
            Phi, target, seen, c, tolerance, loss=loss, threshold=threshold, max_steps=max_steps,
            block_rows=block_rows,
        )  # fmt: skip
        size, d = jnp.abs(found.residual), found.threshold
        weighing = jnp.where(size > d, d / size, 1)
        # Of a typical residual, the absolute loss has the slope of least squares with C / (2 |e|).
        strength = c if loss == "huber" else c / d * (SMOOTHING / 2)
        unresolved = feature_map.unresolved(strength, _energy(Phi, seen))
        return found, weighing, _objective(loss, found, seen, c), unresolved

    found, own, objective, unresolved = jax.lax.map(output, (y.T, w.T, C))
    return RobustFit(
        expansion=feature_map.expansion(found.weights.T, found.intercept),
        row_weights=own.T,
        threshold=found.threshold,
        objective=objective,
        steps=jnp.max(found.steps),
        status=jnp.maximum(jnp.max(found.status), jnp.where(jnp.any(unresolved), TRUNCATED, 0)),
    )


def _energy(Phi: Float[Array, "n p"], w: Float[Array, " n"]) -> Float[Array, " p"]:
    """Weighted sum of squares of each feature about its mean."""
    Phi = jnp.where((w > 0)[:, None], Phi, 0)
    mean = dot(w, Phi) / jnp.sum(w)
    return dot(w, jnp.square(Phi - mean[None, :]))


def _objective(
    loss: Loss, found: Solution, w: Float[Array, " n"], C: Float[Array, ""]
) -> Float[Array, ""]:
    losses = jnp.abs(found.residual)
    if loss == "huber":
        bent = jnp.minimum(losses, found.threshold)
        losses = bent * (2 * losses - bent)
    return jnp.sum(jnp.square(found.weights)) / 2 + C / 2 * jnp.sum(jnp.where(w > 0, w * losses, 0))
