"""Fixed-size machines with the absolute, Huber's or a quantile loss."""

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import numbers, whole_number
from .._blocks import map_row_blocks, rows_in_block
from .._numerics import as_array, dot, is_concrete, like
from .._programs import compiled
from .._repr import short_repr
from .._status import TRUNCATED
from .._types import CLike, Key, PointTable, ScalarLike
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..solvers.robust import SMOOTHING, Solution, default_tolerance, slopes, solve
from . import robust_folds
from .checks import check_choice, check_penalty, check_problem, in_one_dtype
from .family import Family, diagnostics, single
from .held_out import HeldOut, OnFold
from .method import MANY_C, Metric, Task, as_python, check_number, option
from .row_prototypes import Prototypes, feature_map
from .rows import FoldLayout, Rows
from .stages import Stages, nearby_stages
from .surrogate import fixed_size_surrogate

Loss = Literal["absolute", "huber", "quantile"]


class Robust(Prototypes):
    """A fixed-size machine with a loss that outliers cannot dominate (De Brabanter 2010, eq. 6).

    The kernel is tuned for the fixed-size LS-SVM on the same prototypes, for regression by its mean
    absolute error. An interior-point solution for every kernel, `C` and fold would take far longer.
    `C` is tuned for the method. `Prototypes` describes the settings that are not listed.

    Args:
        loss: "huber", which is quadratic for small residuals and linear for large ones; "absolute";
            or "quantile", the pinball loss of quantile regression (Koenker and Bassett 1978), for
            regression only.
        quantile: with the quantile loss, the share of the targets that should lie below the
            machine's value, between 0 and 1; None for 0.5, the median. Several increasing shares
            give an output for each. These outputs share the kernel, the prototypes and `C`. The
            model sorts the outputs of each row, so that they never cross (Chernozhukov,
            Fernandez-Val and Galichon 2010).
    """

    name: ClassVar[str] = "robust"
    title: ClassVar[str] = "robust machine"
    robust: ClassVar[bool] = True
    max_rows: ClassVar[int | None] = 1000  # validation takes a fit for every fold and C
    default_C: ClassVar[Float[np.ndarray, " s"]] = MANY_C
    info_powers: ClassVar[dict[str, int]] = {"threshold": 1, "objective": 2}

    loss: Loss = option("huber", "loss of the residuals", choices=("huber", "absolute", "quantile"))
    quantile: ScalarLike | Sequence[float] | None = option(
        None,
        "with --loss quantile, the share of the targets below the prediction, or several "
        "increasing shares; default: 0.5",
        kind="shares",
        metavar="Q[,Q...]",
        static=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.quantile = as_python(self.quantile)

    @property
    def quantiles(self) -> tuple[ScalarLike, ...]:
        """See `Method.quantiles`."""
        if self.loss != "quantile":
            return ()
        quantile = 0.5 if self.quantile is None else self.quantile
        return tuple(quantile) if isinstance(quantile, Sequence) else (quantile,)

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_choice("loss", self.loss, Loss)
        if self.loss == "quantile" and task == "classification":
            raise ValueError(
                "loss: expected 'huber' or 'absolute' for classification, got 'quantile'"
            )
        _check_quantile(self.loss, self.quantile, in_order=True)

    def metric(self, task: Task) -> Metric:
        """See `Method.metric`: for regression the mean absolute error, or the pinball loss."""
        if task == "classification":
            return "misclassification"
        return "pinball" if self.quantiles else "mae"

    def stages_of_one_size(self, problem: Any, search: Any) -> Stages:
        """See `Method.stages_of_one_size`: tune the kernel for the fixed-size LS-SVM, then `C`."""
        metric: Metric = "mae" if problem.task == "regression" else "mse"
        surrogate = fixed_size_surrogate(problem, self.largest, metric=metric)
        return nearby_stages(surrogate, problem, search)

    def outputs(self, rows: Rows) -> tuple[int, ...]:
        """See `Method.outputs`: with several quantiles of one target, each is an output.

        Raises:
            ValueError: for several quantiles of several targets.
        """
        if len(self.quantiles) <= 1:
            return rows.outputs
        if rows.outputs:
            raise ValueError(
                f"quantile: expected one number with several targets, got {self.quantile!r}"
            )
        return (len(self.quantiles),)

    def fit(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None
    ) -> Family:
        """See `fit` of this module. Each binary problem has a separate threshold."""
        assert points is not None
        data = rows.X, rows.targets, rows.problem_weights
        quantile = None
        if self.quantiles:
            levels = jnp.asarray(self.quantiles, rows.dtype)
            quantile = levels.reshape(self.outputs(rows) if len(levels) > 1 else ())
        machine = fit(feature_map(kernel, points), C, *data, loss=self.loss, quantile=quantile)
        return single(machine.expansion, machine.status, diagnostics(machine))

    def held_out(
        self, kernel: Kernel, points: PointTable, C: Float[Array, " s"], rows: Rows,
        folds: FoldLayout, on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """See `Method.held_out`; Huber's loss starts each fold at the solution of all rows."""
        if self.loss != "huber":
            return super().held_out(kernel, points, C, rows, folds, on_fold, key)
        assert points is not None
        return robust_folds.held_out(feature_map(kernel, points), C, rows, folds, on_fold)


class RobustFit(NamedTuple):
    """A fitted machine, with diagnostics of its optimisation."""

    expansion: KernelExpansion
    # Weighted least squares with these row weights gives this machine too. A residual below the
    # threshold has weight 1; with a quantile q, 2 q if it is positive, and 2 (1 - q) if negative.
    row_weights: Float[Array, " n *c"]
    threshold: Float[Array, "*c"]  # where the loss becomes linear, in units of y
    objective: Float[Array, "*c"]  # its minimum; infinite or 0 if the dtype cannot hold y^2
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
    quantile: ScalarLike | Float[Array, " c"] | None = None,
    threshold: ScalarLike | None = None,
    tolerance: ScalarLike | None = None,
    max_iterations: int | Int[Array, ""] = 200,
    block_rows: int | None = None,
) -> RobustFit:
    """Minimise `1/2 |w|^2 + C/2 sum_i weight_i L(y_i - phi(x_i)'w - b)` (De Brabanter 2010, eq. 6).

    - "absolute": `L(e) = |e|`, the L1 loss of Section 3.2.
    - "huber": `L(e) = e^2` if `|e| <= d`, else `2 d |e| - d^2`, for a threshold d.
    - "quantile": `L(e) = max(2 q e, 2 (q - 1) e)`, twice the pinball loss of a quantile q (Koenker
      and Bassett 1978), which `C` therefore weighs. For `q = 0.5` it is the absolute loss.

    All are quadratic programs. A primal-dual interior-point method with Mehrotra's predictor and
    corrector (Nocedal and Wright 2006, Algorithm 16.4) solves them. Each step is a weighted
    least-squares problem. The distance of an outlier changes neither the solution nor the number of
    steps: targets are centred by their quantile or median and divided by their median absolute
    deviation, and the stopping rule counts a larger residual as one deviation.

    Args:
        feature_map: such as `Nystroem(kernel, prototypes)`; the penalty is the squared norm of the
            features' coefficients.
        C: weight of the data-fit term, positive; or one for each output, shape `c`.
        X: inputs, shape `n d`.
        y: targets, shape `n`, or `n c` for several outputs, each fitted separately. With targets of
            shape `n`, a `C` or `quantile` of shape `c` fits `c` outputs to the same targets.
        weights: row weights, shape `n`, or `n c` for weights of each output; at least 0.
        loss: "absolute", "huber" or "quantile" (static).
        quantile: q, between 0 and 1, or one for each output, shape `c`, for the quantile loss only;
            None for 0.5. The fitted quantiles of several outputs may cross.
        threshold: Huber's d, in units of y. By default it is found together with the solution:
            `TUNING` times a robust standard deviation of the residuals, from their median absolute
            value. With few rows such a threshold may not exist: the status is then `EXHAUSTED`.
        tolerance: the duality gap at which to stop, relative to an objective in which a residual
            counts as at most one deviation. By default it is 1e-6, or the square root of the
            dtype's epsilon if that root is larger.
        max_iterations: limit of interior-point steps.
        block_rows: rows summed at a time (static).

    Returns:
        `RobustFit`. The status is `PRECISION_LOST` if rounding keeps the gap above the tolerance,
        and `TRUNCATED` if the solution needs features lost to rounding, as in `fixed_size.fit`.

    Memory holds the features, shape `n p`. Pure; works under `jit` and `vmap`, and nothing compiles
    again when numbers change. Not differentiable in reverse mode (an iteration of unknown length).

    Raises:
        ValueError: as for `fixed_size.fit`, or if the loss is unknown, the quantile not between 0
            and 1 or given with another loss, the threshold not positive, the tolerance negative, or
            `max_iterations` not a whole number of at least 1.
    """
    check_choice("loss", loss, Loss)
    _check_quantile(loss, quantile)
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
    q = None
    if loss != "huber":  # the absolute loss is the quantile loss of the median
        q = as_array(0.5 if quantile is None else quantile, X.dtype)
    _outputs(y, C, q)
    return _fit(feature_map, C, X, y, weights, q, delta, like(tol, X), limit, block_rows)


def _outputs(y: Array, C: Array, quantile: Array | None) -> tuple[int, ...]:
    """Return the shape of the outputs; raise a `ValueError` if arguments state different shapes."""
    shapes = {
        "y": y.shape[1:],
        "C": C.shape,
        "quantile": () if quantile is None else quantile.shape,
    }
    stated = {shape for shape in shapes.values() if shape}
    if len(stated) > 1:
        raise ValueError(
            f"y, C, quantile: expected one value, or one for each output, got outputs of {shapes}"
        )
    return stated.pop() if stated else ()


def _check_quantile(loss: Loss, quantile: Any, *, in_order: bool = False) -> None:
    """Raise a `ValueError` unless `quantile` is None, or in (0, 1) and for the quantile loss.

    With `in_order` several numbers must increase. Traced values pass.
    """
    if quantile is not None and loss != "quantile":
        raise ValueError(
            f"quantile: expected None with loss={loss!r}, got {quantile!r}; take loss='quantile'"
        )
    if quantile is None or not all(map(is_concrete, jax.tree.leaves(quantile))):
        return
    levels = numbers("quantile", quantile)
    between = levels.ndim <= 1 and levels.size > 0 and np.all((levels > 0) & (levels < 1))
    if not between or (in_order and np.any(np.diff(np.atleast_1d(levels)) <= 0)):
        several = "several increasing ones" if in_order else "one for each output"
        raise ValueError(
            f"quantile: expected a number between 0 and 1, or {several}, got {quantile!r}"
        )


@functools.partial(compiled, static_argnames=("block_rows",))
def _fit(
    feature_map: FeatureMap,
    C: Float[Array, "*k"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | Float[Array, "n c"] | None,
    quantile: Float[Array, "*q"] | None,
    threshold: Float[Array, ""] | None,
    tolerance: Float[Array, ""],
    max_iterations: Int[Array, ""],
    block_rows: int | None,
) -> RobustFit:
    """See `fit`. A loop fits one output at a time. A `quantile` of None means Huber's loss."""
    Phi = map_row_blocks(feature_map, X, rows_in_block(block_rows))
    n, outputs = len(X), _outputs(y, C, quantile)
    w = jnp.ones(n, X.dtype) if weights is None else weights
    columns, w = (jnp.broadcast_to(a.reshape(n, -1), (n, math.prod(outputs))).T for a in (y, w))
    C = jnp.broadcast_to(C, columns.shape[:1])
    if quantile is not None:
        quantile = jnp.broadcast_to(quantile, columns.shape[:1])

    def one(
        output: tuple[Array, Array, Array, Array | None],
    ) -> tuple[Solution, Array, Array, Array]:
        target, w, C, q = output
        solution = solve(
            Phi, target, w, C, tolerance, quantile=q, threshold=threshold,
            max_iterations=max_iterations, block_rows=block_rows,
        )  # fmt: skip
        losses, row_weights = _losses_and_row_weights(solution, q)
        penalty = jnp.sum(jnp.square(solution.weights)) / 2
        objective = penalty + C / 2 * jnp.sum(jnp.where(w > 0, w * losses, 0))
        # At a residual e the absolute loss has the slope of the squared loss with C / (2 |e|). A
        # typical residual is `threshold / SMOOTHING`.
        strength = C if q is None else C / solution.threshold * (SMOOTHING / 2)
        unresolved = feature_map.unresolved(strength, _energy(Phi, w))
        return solution, row_weights, objective, unresolved

    solutions, row_weights, objective, unresolved = jax.lax.map(one, (columns, w, C, quantile))
    lost = jnp.where(jnp.any(unresolved), TRUNCATED, 0)
    coefficients = solutions.weights.T.reshape(-1, *outputs)
    return RobustFit(
        expansion=feature_map.expansion(coefficients, solutions.intercept.reshape(outputs)),
        row_weights=row_weights.T.reshape(n, *outputs),
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


def _losses_and_row_weights(
    solution: Solution, quantile: Float[Array, ""] | None
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return the loss of each row, and the row weights of the equivalent least-squares problem."""
    size, linear_from = jnp.abs(solution.residual), solution.threshold
    if quantile is None:
        inner = jnp.minimum(size, linear_from)
        losses, slope = inner * (2 * size - inner), jnp.ones_like(size)
    else:
        upper, lower = slopes(quantile)
        slope = jnp.where(solution.residual >= 0, upper, lower)
        losses = slope * size
    return losses, slope * jnp.where(size > linear_from, linear_from / size, 1)
