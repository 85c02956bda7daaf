"""Selection of rows as prototypes, by the name of the criterion."""

import numpy as np
from jaxtyping import Array, Float, Int

from .._status import CONVERGED
from .._types import Key
from .renyi import renyi
from .uniform import draws_of, encode, first_draw


def choose_rows(
    key: Key,
    criterion: str,
    X: Float[Array, "n d"],
    n_prototypes: int,
    labels: Int[np.ndarray, " n"] | None,
    weights: Float[np.ndarray, " n"],
    n_rows: int,
) -> tuple[Int[np.ndarray, " m"], int]:
    """Choose `m` rows as prototypes, a share from each class; return their numbers and a stop code.

    `criterion` is "renyi" (De Brabanter 2010, Algorithm 1) or "uniform". `X` are standardised
    inputs, of which the first `n_rows` rows are not padding. `labels` are class numbers, or None to
    choose among all rows alike. Rows of weight 0 are never chosen.
    """
    w, m = weights[:n_rows], n_prototypes
    w = None if np.all(w == w[0]) else w
    labels = None if labels is None else labels[:n_rows]
    if criterion == "renyi":
        selection = renyi(key, X, m, labels=labels, weights=w, n_rows=n_rows)
        worst_bandwidth = np.max(np.asarray(selection.bandwidth.status), initial=CONVERGED)
        return np.asarray(selection.indices), max(int(selection.status), int(worst_bandwidth))
    codes = np.zeros(n_rows, np.int32) if labels is None else encode(labels)
    draws = draws_of(codes, m, len(X), w, stratify=labels is not None)
    return np.asarray(first_draw(key, draws, m)), CONVERGED
