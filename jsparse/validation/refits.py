"""Cross-validation of any method: one honest fit for each fold and `C`."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._blocks import map_systems
from .._programs import compiled
from .._types import Key
from ..kernels import Kernel
from ..machines.method import Method, PathMethod, values_of_fit
from ..multiclass import Code, Decoding
from .cross_validation import Metric, rows_by_fold, weighted
from .folds import Folds
from .paths import PathValidation, losses_in, metrics_of, path_validation


@functools.partial(compiled, static_argnames=("method", "metric", "reported", "decoding"))
def cross_validate_by_refitting(
    method: Method,
    kernel: Kernel,
    points: Float[Array, "m d"] | None,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    folds: Folds,
    weights: Float[Array, " n"] | None = None,
    *,
    metric: Metric = "mse",
    reported: Metric | None = None,
    code: Code | None = None,
    decoding: Decoding = "loss",
    key: Key | None = None,
    size: Int[Array, ""] | None = None,
) -> PathValidation:
    """Cross-validate a method of which no more is known than how it is fitted to weighted rows.

    The rows of a fold have weight 0 while it is predicted. Arguments as for `cross_validate_path`;
    a method without a path has one size.
    """
    n = X.shape[0]
    rows = rows_by_fold(X, y, folds, weights, code)
    w = jnp.ones(n, X.dtype) if weights is None else weights
    v, s = rows.w.shape[0], C.shape[0]
    metrics = metrics_of(metric, reported)

    place = None
    if size is not None:
        place = method.place_of(size) if isinstance(method, PathMethod) else size - 1

    def one(of: tuple[Array, Array]) -> tuple[Array, Array, Float[Array, "r l"] | None]:
        c, fold = of
        out = jnp.where(folds.valid[fold], folds.index[fold], n)
        kept = w.at[out].set(0, mode="drop")
        fitted = method.fit(kernel, points, C[c], X, y, kept, code=code, key=key)
        own = jax.tree.map(lambda a: a[fold], rows)
        values = values_of_fit(fitted, own.X)  # r k l
        loss = jnp.sum(weighted(own.w[:, None], losses_in(metrics, decoding, code, own, values)), 0)
        at_size = None if place is None else jnp.take(values, place, axis=1)
        return loss, jnp.max(fitted.status), at_size

    grid = jnp.meshgrid(jnp.arange(s), jnp.arange(v), indexing="ij")
    fold_loss, status, at_size = map_systems(one, tuple(a.reshape(-1) for a in grid))
    if at_size is not None:
        by_fold = at_size.reshape(s, v, *at_size.shape[1:])
        at_size = jax.vmap(lambda values: folds.scatter(values, n))(by_fold)
    return path_validation(
        fold_loss.reshape(s, v, len(metrics), -1), rows.w, at_size, status.reshape(s, v)
    )
