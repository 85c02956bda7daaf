"""Selection of rows as prototypes, by the name of the criterion."""

import numpy as np
from jaxtyping import Array, Float, Int

from .._blocks import padded
from .._status import CONVERGED
from .._types import Key
from .renyi import renyi
from .uniform import allocate, draw, draw_strata, encode, places_in_strata, shares_of_weight


def choose_rows(
    key: Key,
    criterion: str,
    X: Float[Array, "n d"],
    n_prototypes: int,
    labels: Int[np.ndarray, " n"] | None,
    weights: Float[np.ndarray, " n"],
    n_rows: int,
) -> tuple[Int[np.ndarray, " m"], int]:
    """Choose `m` rows as prototypes, a share from each class.

    Return their row numbers, and the stop code of the choice.

    Args:
        key: random key of the choice.
        criterion: "renyi" (De Brabanter 2010, Algorithm 1) or "uniform".
        X: standardised inputs, shape `n d`.
        n_prototypes: number of prototypes `m`.
        labels: class numbers, shape `n`; None to choose among all rows alike.
        weights: row weights, shape `n`. Rows of weight 0 are never chosen.
        n_rows: number of rows that count; later rows are padding.
    """
    w, m = weights[:n_rows], n_prototypes
    w = None if np.all(w == w[0]) else w
    labels = None if labels is None else labels[:n_rows]
    if criterion == "renyi":
        selection = renyi(key, X, m, labels=labels, weights=w, n_rows=n_rows)
        status = max(
            int(selection.status),
            int(np.max(np.asarray(selection.bandwidth.status), initial=CONVERGED)),
        )
        return np.asarray(selection.indices), status
    mass = None if w is None else padded(w.astype(np.float32), len(X), "constant")
    if labels is None:
        return np.asarray(draw(key, len(X), m, np.int32(n_rows), mass)), CONVERGED
    codes, counts = encode(labels)
    shares = allocate(counts, m) if w is None else shares_of_weight(codes, counts, m, w)
    codes = padded(codes, len(X))
    codes[n_rows:] = -1  # padding belongs to no class
    return np.asarray(draw_strata(key, codes, places_in_strata(shares), mass)), CONVERGED
