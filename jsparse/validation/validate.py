"""Held-out errors of any method."""

import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._agreement import same_rows
from .._numerics import as_array, as_float, is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._types import Key, ScalarLike
from ..kernels import Kernel
from ..machines.checks import check_labels, check_problem, nan_for_wrong_labels
from ..machines.held_out import FitStart, HeldOut, MachineIndex
from ..machines.method import Method, Metric
from ..machines.rows import FoldLayout, Rows
from ..multiclass import Code, Decoding
from .folds import Folds
from .losses import check_metric, losses, weighted
from .sharding import ShardedFolds


class Scoring(NamedTuple):
    """The metrics and the decoding that score a machine (static: a new value compiles anew)."""

    metric: Metric
    decoding: Decoding = "loss"
    reported: Metric | None = None  # a second metric to score every machine in
    compared: Metric | None = None  # a second metric, in which a stage may compare kernels

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The distinct metrics to compute, first the metric to minimise."""
        stated = (self.metric, self.reported, self.compared)
        return tuple(dict.fromkeys(metric for metric in stated if metric is not None))

    @property
    def compares_as_it_scores(self) -> bool:
        """Whether kernels are compared in the metric to minimise."""
        return self.compared in (None, self.metric)

    def place(self, metric: Metric | None) -> int | None:
        """Return the index of a further metric in `metrics`; None for None, and for the first."""
        return None if metric in (None, self.metric) else self.metrics.index(metric)

    __repr__ = short_repr


class Kept(NamedTuple):
    """The machine whose predictions are kept."""

    C: Int[Array, "*l"] | Int[np.ndarray, "*l"] | np.int32  # index into `C`, or one per problem
    size: Int[Array, ""] | np.int32  # index into the sizes

    __repr__ = short_repr


class FoldLosses(eqx.Module):
    """An `OnFold` that sums the losses and weights of a fold's rows, and may keep predictions."""

    keeps_all: ClassVar[bool] = False  # whether the predictions of all machines are kept

    scoring: Scoring = eqx.field(static=True)
    keep: Kept | None = None  # the machine whose predictions are kept; None for none
    quantiles: tuple[ScalarLike, ...] = ()  # the quantiles that the outputs estimate, if any
    # for each `C` and fold, whether the method has to compute it; None for all
    wanted: Bool[Array, "s v"] | Bool[np.ndarray, "s v"] | None = None

    def __call__(
        self, rows: Rows, values: Float[Array, "r q l"], which: MachineIndex
    ) -> tuple[PyTree, PyTree]:
        """Return the sums of losses and of weights, and the predictions of the machine `keep`.

        `values` are of `q` machines, which `which` identifies, with `l` outputs at the `r` rows of
        one fold. The first result is for each machine, the second for each row.
        """
        w, decoding, quantiles = rows.weights[:, None], self.scoring.decoding, self.quantiles
        values = self.predictions(values)
        sums = jnp.stack([
            jnp.sum(weighted(w, losses(metric, decoding, rows, values, quantiles)), axis=0)
            for metric in self.scoring.metrics
        ])  # fmt: skip
        weight = jnp.broadcast_to(jnp.sum(rows.weights), which.C.shape)
        if self.keep is None:
            return (sums, weight), None
        kept_C = jnp.broadcast_to(jnp.asarray(self.keep.C, jnp.int32), values.shape[2:])
        is_kept = (which.C[:, None] == kept_C[None]) & (which.size == self.keep.size)[:, None]
        return (sums, weight), jnp.sum(jnp.where(is_kept[None], values, 0), axis=1)

    def predictions(self, values: Float[Array, "r q l"]) -> Float[Array, "r q l"]:
        """Return the predictions from the machines' values: sort several quantiles of a row."""
        return jnp.sort(values, axis=-1) if len(self.quantiles) > 1 else values

    def over_C(self, kept: PyTree) -> PyTree:
        """Return the sum of predictions kept for each `C`: all but one of these are zeros."""
        return jnp.sum(kept, axis=0)

    def of_machine(self, predictions: Float[np.ndarray, "v r ..."], keep: Kept, s: int) -> Any:
        """Return the predictions of the machine `keep`, shape `v r l`: no others are kept here."""
        return predictions


class WithPredictions(FoldLosses):
    """An `OnFold` that sums losses as `FoldLosses` does, and keeps predictions of all machines.

    The axis of machines has every size of the first `C`, then every size of the second, and so on.
    """

    keeps_all: ClassVar[bool] = True

    def __call__(
        self, rows: Rows, values: Float[Array, "r q l"], which: MachineIndex
    ) -> tuple[PyTree, PyTree]:
        """Return the sums of the losses and of the weights, and the predictions of all machines."""
        return super().__call__(rows, values, which)[0], self.predictions(values)

    def over_C(self, kept: PyTree) -> PyTree:
        """Return the predictions kept for each `C`, joined along the axis of machines."""
        return jnp.concatenate(kept, axis=2)

    def of_machine(self, predictions: Float[np.ndarray, "v r q l"], keep: Kept, s: int) -> Any:
        """Return the predictions of machine `keep`, shape `v r l`; `s` is the number of `C`."""
        machines = np.asarray(keep.C) * (predictions.shape[2] // s) + int(keep.size)
        outputs = np.arange(predictions.shape[3])
        return predictions[:, :, np.broadcast_to(machines, outputs.shape), outputs]


class Validation(NamedTuple):
    """Held-out errors for `s` values of `C` and `k` sizes, by `v` folds."""

    scores: Float[Array, "s k"]  # weighted mean loss over all rows
    # Mean loss in each fold; NaN for a fold without weight, or that was not computed for this `C`.
    fold_scores: Float[Array, "s v k"]
    fold_weights: Float[Array, "s v"]  # weight of each fold's rows, 0 where it was not computed
    status: Int[Array, " s"]  # the worst stop code of all folds
    predictions: PyTree = None  # held-out predictions of the kept machine or machines, if any
    reported: Float[Array, "s k"] | None = None  # `scores` in the reported metric, if it differs
    fold_reported: Float[Array, "s v k"] | None = None  # `fold_scores` in the reported metric
    compared: Float[Array, "s k"] | None = None  # `scores` in `Scoring.compared`, if it differs
    fold_compared: Float[Array, "s v k"] | None = None  # `fold_scores` in `Scoring.compared`
    total: FitStart | None = None  # what a fit to all rows can start from, if it is known

    __repr__ = short_repr

    def computed(self, wanted: Bool[np.ndarray, "s v"]) -> Bool[np.ndarray, "s v"]:
        """Return which folds were computed for each `C`: the `wanted` folds, or more.

        A method with one factorisation for every `C` computes a fold for all `C` if one of them
        wants it. If a fold that no `C` wants has an error, the method ignores `wanted`: all folds
        were computed. So were they if the method validates other folds, such as single rows.
        """
        weights = np.asarray(self.fold_weights)
        if weights.shape != wanted.shape or np.any(weights[:, ~np.any(wanted, axis=0)] > 0):
            return np.ones_like(wanted)
        return wanted | (weights > 0)

    def of_C(self, places: Int[np.ndarray, " t"]) -> "Validation":
        """Return errors and predictions for the values `C[places]`, as NumPy arrays.

        The predictions of all machines must have been kept, as by `WithPredictions`.
        """
        errors = self._replace(predictions=None, total=None)
        predictions = np.asarray(self.predictions)
        v, r, machines, outputs = predictions.shape
        by_C = predictions.reshape(v, r, len(self.scores), -1, outputs)[:, :, places]
        n_kept = len(places) * machines // len(self.scores)
        return jax.tree.map(lambda a: np.asarray(a)[places], errors)._replace(
            predictions=by_C.reshape(v, r, n_kept, outputs), total=self.total
        )

    def joined(self, other: "Validation") -> "Validation":
        """Return the errors on the folds of both validations, as NumPy arrays.

        The validations are of the same machines, and no fold of a `C` is in both.
        """
        first, second = (jax.tree.map(np.asarray, validation) for validation in (self, other))
        weights = first.fold_weights + second.fold_weights
        of_fold = weights[:, :, None]

        def both(first: np.ndarray, second: np.ndarray) -> tuple[Any, Any]:
            """Return the mean loss over all folds, and the mean loss in each fold."""
            folds = np.where(np.isnan(first), second, first)
            sums, total = np.sum(folds * of_fold, axis=1, where=of_fold > 0), of_fold.sum(axis=1)
            means = np.divide(sums, total, out=np.full_like(sums, np.nan), where=total > 0)
            return means.astype(folds.dtype), folds

        scores, fold_scores = both(first.fold_scores, second.fold_scores)
        reported = fold_reported = compared = fold_compared = predictions = None
        if first.fold_reported is not None:
            reported, fold_reported = both(first.fold_reported, second.fold_reported)
        if first.fold_compared is not None:
            compared, fold_compared = both(first.fold_compared, second.fold_compared)
        if first.predictions is not None:
            predictions = first.predictions + second.predictions  # 0 where not computed
        return Validation(
            scores, fold_scores, weights, np.maximum(first.status, second.status), predictions,
            reported, fold_reported, compared, fold_compared, first.total,
        )  # fmt: skip

    def in_compared_metric(self) -> "Validation":
        """Return the validation with scores in `Scoring.compared`, if that is another metric."""
        if self.compared is None:
            return self
        return self._replace(scores=self.compared, fold_scores=self.fold_compared)


def mean_losses(held: HeldOut, scoring: Scoring) -> Validation:
    """Return the weighted mean losses over all rows and in each fold, from a `FoldLosses` run.

    Kept predictions have the shape `v r ..`: rows within folds, not in the order of the table.
    """
    sums, weights = held.sums  # v s q k, v s k
    weight = weights[:, :, 0].T  # s v
    loss = jnp.moveaxis(sums, 0, 1)  # s v q k
    fold_weight = weight[:, :, None, None]
    divisor = jnp.where(fold_weight > 0, fold_weight, 1)
    fold_scores = jnp.where(fold_weight > 0, loss / divisor, jnp.nan)
    scores = jnp.sum(loss, axis=1) / jnp.sum(fold_weight, axis=1)

    def of(metric: Metric | None) -> tuple[Any, Any]:
        place = scoring.place(metric)
        return (None, None) if place is None else (scores[:, place], fold_scores[:, :, place])

    return Validation(
        scores[:, 0], fold_scores[:, :, 0], weight, held.statuses, held.kept,
        *of(scoring.reported), *of(scoring.compared), held.total,
    )  # fmt: skip


@functools.partial(compiled, static_argnames="scoring")
def _validate_rows(
    method: Method,
    kernel: Kernel,
    points: Float[Array, "m d"] | None,
    C: Float[Array, " s"],
    rows: Rows,
    folds: FoldLayout,
    scoring: Scoring,
    keep: Kept | None,
    key: Key | None,
) -> Validation:
    """Return the held-out errors, and the predictions of the machine `keep` in row order."""
    on_fold = FoldLosses(scoring, keep, method.quantiles)
    held = method.held_out(kernel, points, C, rows, folds, on_fold, key)
    means = mean_losses(held, scoring)
    if keep is None:
        return means
    layout = method.validation_folds(folds, len(rows))
    values = layout.scatter(means.predictions, len(rows))
    return means._replace(predictions=values.reshape(len(rows), *method.outputs(rows)))


@same_rows
def validate(
    method: Method,
    kernel: Kernel,
    points: Float[Array, "m d"] | None,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"] | Int[Array, " n"],
    folds: Folds | ShardedFolds,
    weights: Float[Array, " n"] | None = None,
    *,
    metric: Metric,
    reported: Metric | None = None,
    code: Code | None = None,
    decoding: Decoding = "loss",
    key: Key | None = None,
    keep: Int[Array, "*l"] | int | None = None,
    size: Int[Array, ""] | int = 0,
    mesh: Mesh | None = None,
) -> Validation:
    """Return the held-out errors of a method, for every `C` and every size.

    `Method.held_out` decides how the held-out rows are predicted: from the total sums less the
    fold's sums, by removing the fold from one solution, by leave-one-out (in the dual, whatever the
    folds), or by a fit for each fold and `C`.

    Args:
        method: resolved settings, see `Method.resolve`.
        kernel: kernel of two points.
        points: points that may carry the model, shape `m d`; None in the dual.
        C: weights of the data-fit term, shape `s`.
        X: inputs, shape `n d`, in the units of the points.
        y: targets, shape `n` or `n c`; -1 and +1 for "misclassification". With a `code`, class
            numbers.
        folds: the division of the rows, such as `validation.folds.plain_folds` returns.
        weights: row weights, shape `n`, used in fitting and in scoring.
        metric: "mse", "mae", "misclassification", or "pinball" for a method that estimates
            quantiles (static).
        reported: a second metric to score every machine in (static).
        code: output code of the binary problems, for several classes.
        decoding: how the values of the binary problems give a class (static).
        key: random key of the method's random draws.
        keep: index into `C`, or one index for each problem, of the machine whose held-out
            predictions are kept. By default none are kept.
        size: index of the kept machine among the sizes.
        mesh: devices that share the rows (static).

    Works under `jit` and `vmap`; nothing recompiles when numbers change. Differentiable where the
    method's `held_out` is differentiable: for ridge methods in every argument but class numbers.

    Raises:
        ValueError: for shapes that do not match, values known to be out of range, a code that the
            method cannot take, or a mesh with a method that needs more than sums over rows.
    """
    method.check_code("code", code)
    if mesh is not None:
        method.check_sums("mesh")
    scoring = Scoring(metric, decoding, reported)
    C, rows = checked(C, X, y, folds, weights, scoring.metrics, code, mesh, method.quantiles)
    kept = None
    if keep is not None:
        kept = Kept(jnp.asarray(keep, jnp.int32), jnp.asarray(size, jnp.int32))
    C = C.astype(rows.dtype)
    return _validate_rows(method, kernel, points, C, rows, folds, scoring, kept, key)


def checked(
    C: Array,
    X: Array,
    y: Array,
    folds: Folds | ShardedFolds,
    weights: Array | None,
    metrics: Sequence[Metric],
    code: Code | None,
    mesh: Mesh | None = None,
    quantiles: Sequence[ScalarLike] = (),
) -> tuple[Array, Rows]:
    """Return `C` and the arguments as `Rows`; raise ValueError if they do not match."""
    for metric in metrics:
        check_metric(metric, quantiles)
    X, C = as_float(X), as_float(C)
    if C.ndim != 1:
        raise ValueError(f"C: expected a vector, shape (s,), got shape {C.shape}")
    w = None if weights is None else as_float(weights).astype(X.dtype)
    if not isinstance(folds, Folds | ShardedFolds):
        raise ValueError(
            f"folds: expected Folds, such as jsparse.plain_folds(0, {len(X)}, 5), got {folds!r}"
        )
    folds.check(len(X))
    if code is None:
        y = as_float(y).astype(X.dtype)
        check_problem(None, C, X, y, w)
        checks_y = "misclassification" in metrics and is_concrete(y)
        if checks_y and not np.all(np.abs(np.asarray(y)) == 1):
            raise ValueError(
                "y: expected -1 and +1 for the metric 'misclassification', got other numbers; give "
                "class numbers with a code"
            )
    else:
        y = as_array(y).astype(jnp.int32)
        check_problem(None, C, X, jnp.zeros(y.shape), w)
        check_labels(y, code.matrix.shape[0])
        C, code = nan_for_wrong_labels(C, y, code.matrix.shape[0]), code.astype(X.dtype)
    return C, Rows(X, y, jnp.ones(len(X), X.dtype) if w is None else w, code, mesh)
