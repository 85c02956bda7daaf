"""Rows as prototypes, by the name of the criterion."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._status import CONVERGED
from .._types import Key
from .renyi import renyi
from .uniform import stratified, uniform


def choose_rows(
    key: Key,
    criterion: str,
    X: Float[Array, "n d"],
    m: int,
    labels: Int[np.ndarray, " n"] | None,
    weights: Float[np.ndarray, " n"] | None,
) -> tuple[Int[np.ndarray, " m"], int]:
    """Rows of `m` prototypes, a share of them from each class, and how the choice ended.

    Args:
        key: decides the choice.
        criterion: "renyi" (De Brabanter 2010, Algorithm 1) or "uniform".
        X: standardised inputs, shape `n d`.
        m: how many.
        labels: class numbers, shape `n`.
        weights: row weights, shape `n`; a row of weight 0 is never chosen.
    """
    if criterion == "renyi":
        found = renyi(key, X, m, labels=labels, weights=weights)
        status = max(int(found.status), int(np.max(found.bandwidth.status, initial=CONVERGED)))
        return np.asarray(found.indices), status
    if labels is not None:
        return np.asarray(stratified(key, labels, m, weights)), CONVERGED
    w = None if weights is None else jnp.asarray(weights)
    return np.asarray(uniform(key, len(X), m, w)), CONVERGED
