"""Leave-one-out errors of the LS-SVM in the dual, for every `C`."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._programs import compiled
from ..kernels import Kernel
from ..machines import dual
from ..machines.method import Metric
from ..multiclass import Code, Decoding
from .cross_validation import CrossValidation, losses, weighted
from .out_of_fold import Rows


@functools.partial(compiled, static_argnames=("metric", "decoding"))
def leave_one_out(
    kernel: Kernel,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"] | Int[Array, " n"],
    weights: Float[Array, " n"] | None = None,
    *,
    metric: Metric = "mse",
    code: Code | None = None,
    decoding: Decoding = "loss",
) -> CrossValidation:
    """What `cross_validate` gives, with every row a prototype and a fold of its own.

    One eigendecomposition of the kernel matrix gives every `C`; with a code whose problems see
    different rows, one for each problem. Memory `n x n`. Arguments as for `cross_validate`.
    """
    n, s = X.shape[0], C.shape[0]
    w = jnp.ones(n, X.dtype) if weights is None else weights
    targets = y.reshape(n, -1) if code is None else jnp.asarray(code.matrix, X.dtype)[y]
    if code is None or code.shares_all_rows:
        predictions, status = dual.leave_one_out(kernel, C, X, targets, weights)
    else:

        def one(target: Float[Array, " n"]) -> tuple[Array, Array]:
            return dual.leave_one_out(kernel, C, X, target, w * jnp.abs(target))

        predictions, status = jax.lax.map(one, targets.T)
        predictions, status = jnp.moveaxis(predictions, 0, -1), jnp.max(status, axis=0)
    rows = Rows(X, targets, w, None if code is None else y)
    loss = losses(metric, decoding, code, rows, jnp.moveaxis(predictions, 0, 1)).T
    return CrossValidation(
        scores=jnp.sum(weighted(w[None, :], loss), axis=1) / jnp.sum(w),
        fold_scores=jnp.where(w[None, :] > 0, loss, jnp.nan),
        predictions=predictions.reshape(s, n, *(y.shape[1:] if code is None else (-1,))),
        status=status,
    )
