"""Validation of any method, by the cheapest way that its mathematics allows."""

from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._types import Key
from ..kernels import Kernel
from ..machines.dual import Dual
from ..machines.method import Additive, Method, PathMethod, require_additive
from ..multiclass import Code, Decoding
from .cross_validation import (
    CrossValidation,
    Metric,
    checked,
    cross_validate,
    cross_validate_by_solving,
)
from .folds import Folds
from .leave_one_out import leave_one_out
from .paths import PathValidation, cross_validate_path, metrics_of
from .refits import cross_validate_by_refitting
from .sharding import ShardedFolds


def validate(
    method: Method,
    kernel: Kernel,
    points: Float[Array, "m d"] | None,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    folds: Folds | ShardedFolds,
    weights: Float[Array, " n"] | None = None,
    *,
    metric: Metric,
    reported: Metric | None = None,
    code: Code | None = None,
    decoding: Decoding = "loss",
    key: Key | None = None,
    size: Int[Array, ""] | None = None,
    mesh: Mesh | None = None,
    keep: Int[Array, "*l"] | None = None,
) -> CrossValidation | PathValidation:
    """Errors on rows that were not seen, for every `C` and, of a path, every size.

    A method in the dual is validated by leave-one-out, whatever the folds; one that needs only sums
    over rows and solves them by ridge regression by subtraction or removal, see `cross_validate`;
    one that gives every size from sums by what is left of them without a fold; one that solves them
    otherwise by its solution for each fold and `C`; any other by one fit for each fold and `C`.

    Args:
        method: the settings.
        kernel: kernel of two points.
        points: that may carry the model, shape `m d`; None in the dual.
        C: weights of the data-fit term, shape `s`.
        X: inputs, shape `n d`, in the units of the points.
        y: targets, shape `n` or `n c`; -1 and +1 for "misclassification". With a `code`, class
            numbers.
        folds: see `validation.folds`.
        weights: row weights, shape `n`, used in fitting and in scoring.
        metric: "mse", "mae" or "misclassification".
        reported: of a path, another metric in which every machine is scored as well.
        code: several classes as several problems.
        decoding: of several classes.
        key: decides what the method draws at random.
        size: of a path, the size of whose machines predictions are kept.
        mesh: its devices share the rows.
        keep: the place in `C` of the one, or of each problem's own, whose predictions are wanted;
            not for paths. See `cross_validate`.

    Raises:
        ValueError: as `cross_validate`, or for a mesh and a method that does not need only sums.
    """
    if mesh is not None:
        require_additive(method, "mesh")
    given = None if isinstance(method, Dual) else folds
    for each in metrics_of(metric, reported):
        C, X, y, weights = checked(C, X, y, given, weights, each, code)
    C, code = C.astype(X.dtype), None if code is None else code.astype(X.dtype)
    options: dict[str, Any] = {"metric": metric, "code": code, "decoding": decoding}
    if isinstance(method, Dual):
        return _kept(leave_one_out(kernel, C, X, y, weights, **options), keep)
    summed = isinstance(method, Additive) and (method.by_sums or mesh is not None)
    if summed and isinstance(method, PathMethod):
        assert points is not None
        return cross_validate_path(
            method, kernel, points, C, X, y, folds, weights, reported=reported, key=key,
            size=size, mesh=mesh, **options,
        )  # fmt: skip
    if isinstance(method, Additive) and method.is_ridge:
        assert points is not None
        features = method.features(kernel, points)
        return cross_validate(features, C, X, y, folds, weights, mesh=mesh, keep=keep, **options)
    whole = code is None or code.shares_all_rows
    if isinstance(method, Additive) and not method.is_path and whole:
        assert points is not None
        return cross_validate_by_solving(
            method, kernel, points, C, X, y, folds, weights, key=key, mesh=mesh, keep=keep,
            **options,
        )  # fmt: skip
    if not isinstance(folds, Folds):
        raise ValueError(
            f"mesh: expected None with {type(method).__name__}, fitted again for every fold"
        )
    found = cross_validate_by_refitting(
        method, kernel, points, C, X, y, folds, weights, key=key,
        reported=reported if method.is_path else None,
        size=size if method.is_path else jnp.ones((), jnp.int32), **options,
    )  # fmt: skip
    if method.is_path:
        return found
    assert found.predictions is not None
    shape = (len(C), len(X), *(y.shape[1:] if code is None else (-1,)))
    all_C = CrossValidation(
        scores=found.scores[:, 0],
        fold_scores=found.fold_scores[:, :, 0],
        predictions=found.predictions.reshape(shape),
        status=found.status,
    )
    return _kept(all_C, keep)


def _kept(found: CrossValidation, keep: Int[Array, "*l"] | None) -> CrossValidation:
    """With the predictions of one `C`, or of each problem's own."""
    if keep is None:
        return found
    values = found.predictions
    place = jnp.broadcast_to(keep, values.shape[2:])[None, None]
    return found._replace(predictions=jnp.take_along_axis(values, place, axis=0)[0])
