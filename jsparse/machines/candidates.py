"""Candidates that methods of growing size choose their prototypes from."""

import dataclasses
from typing import Any, Literal

import numpy as np

from .._arguments import finite_table, whole_number
from .._blocks import rounded_down
from .._numerics import as_array
from .._types import Key
from ..kernels import Kernel
from ..prototypes import k_center, k_means
from ..prototypes.choice import choose_rows
from ..pursuit.probabilistic import SUBSET
from .method import (
    PathMethod,
    Points,
    Shape,
    Task,
    TrainingRows,
    at_most,
    check_tolerance,
    option,
    rows_at,
)

MAX_PROTOTYPES = 300
CANDIDATES = 1000
CandidateMethod = Literal["k_center", "k_means", "renyi", "uniform"]


@dataclasses.dataclass(frozen=True)
class Candidates(PathMethod):
    """The settings of methods that select prototypes one after another out of candidates.

    Args:
        max_prototypes: length of the path; by default 300, or as many as there are candidates or
            rows to train on.
        candidates: their number, "all" rows with weight, or points of the caller's in raw units,
            shape `M d`; by default nearly all rows, a number that tables of like size share,
            up to 1000.
        candidate_method: "k_center" (farthest points, the choice of Karsmakers 2011), "k_means",
            "renyi", "uniform".
        subset: candidates looked at for each prototype, drawn at random, "auto" for 59, the number
            of Karsmakers 2011, Section 3.5.2; None for the method's own default.
        size_tolerance: the size chosen is the least whose error is within so many standard errors
            of the best: 0.1 is the choice of Section 4.5, 1 the one-standard-error rule.
    """

    max_prototypes: int | None = option(
        None, "the longest path; default: 300, or as many as there are", kind="count", metavar="K"
    )
    candidates: Any = option(
        None,
        "choose prototypes from so many rows far from each other; default: 1000, or as many as "
        "there are",
        kind="count",
        metavar="N",
    )
    candidate_method: CandidateMethod = "k_center"
    subset: int | Literal["auto"] | None = option(
        None,
        "look at N random candidates for each prototype, or 'auto': 59",
        kind="count or auto",
        metavar="N",
    )
    size_tolerance: float = option(
        0.1,
        "of several sizes, the smallest within T standard errors of the best",
        kind="not negative",
        metavar="T",
    )

    def __post_init__(self) -> None:
        given = self.candidates
        if isinstance(given, list | tuple) or (given is not None and np.ndim(given) > 0):
            object.__setattr__(self, "candidates", _Points(given))

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if self.candidate_method not in ("k_center", "k_means", "renyi", "uniform"):
            raise ValueError(
                "candidate_method: expected 'k_center', 'k_means', 'renyi' or 'uniform', got "
                f"{self.candidate_method!r}"
            )
        if isinstance(self.candidates, str) and self.candidates != "all":
            raise ValueError(
                f"candidates: expected a number, 'all' or points, got {self.candidates!r}"
            )
        check_tolerance("size_tolerance", self.size_tolerance)

    def settled(self, shape: Shape) -> "Candidates":
        """See `Method.settled`."""
        given, M = self.candidates, self._resolved_candidates(shape)
        if isinstance(given, _Points):
            if given.X.shape[1] != shape.d:
                raise ValueError(f"candidates: expected shape (M, {shape.d}), got {given.X.shape}")
        else:
            M = whole_number("candidates", M, 1, shape.present, "the number of rows with weight")
        most = min(M, shape.training)
        k = self.max_prototypes
        k = min(MAX_PROTOTYPES, rounded_down(most)) if k is None else k
        what = "the candidates and the rows without a fold"
        k = whole_number("max_prototypes", k, 1, most, what)
        subset = self.subset
        if isinstance(subset, str) and subset == "auto":
            subset = min(SUBSET, M)
        if subset is not None:
            subset = whole_number("subset", subset, 1, M, "the candidates")
        candidates = given if isinstance(given, _Points) else M
        return dataclasses.replace(self, max_prototypes=k, candidates=candidates, subset=subset)

    def _resolved_candidates(self, shape: Shape) -> Any:
        """The number of candidates, not yet checked."""
        given = self.candidates
        if isinstance(given, _Points):
            return len(given.X)
        if given is None:
            return min(rounded_down(shape.present), CANDIDATES)
        return shape.present if given == "all" else given

    def capped(self, shape: Shape) -> "Candidates":
        """See `Method.capped`."""
        lowered = dataclasses.replace(self, candidates=at_most(self.candidates, shape.present))
        M = whole_number("candidates", lowered._resolved_candidates(shape), 1)
        return dataclasses.replace(
            lowered,
            max_prototypes=at_most(self.max_prototypes, min(M, shape.training)),
            subset=at_most(self.subset, M),
        )

    @property
    def n_candidates(self) -> int | None:
        """Number of candidates; None while it depends on the rows."""
        given = self.candidates
        if isinstance(given, _Points):
            return len(given.X)
        return given if isinstance(given, int) else None

    @property
    def longest(self) -> int:
        """The length of the path, once settled."""
        assert self.max_prototypes is not None
        return self.max_prototypes

    def points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """The candidates."""
        Z, M, weights = rows.X, self.candidates, np.asarray(rows.weights)
        if isinstance(M, _Points):
            return Points(rows.scaling.apply(M.X.astype(Z.dtype)), None)
        present = np.flatnonzero(weights > 0)
        if len(present) == M:
            return Points(rows_at(Z, present), present)
        w = as_array(weights, Z.dtype)
        if self.candidate_method == "k_center":
            chosen = np.asarray(k_center(key, Z, M, w).indices)
            return Points(rows_at(Z, chosen), chosen)
        if self.candidate_method == "k_means":
            means = k_means(key, Z, M, w)
            return Points(means.centres, None, int(means.status))
        chosen, status = choose_rows(key, self.candidate_method, Z, M, rows.labels, weights, rows.n)
        return Points(rows_at(Z, chosen), chosen, status)


class _Points:
    """A table of the caller's points, by identity."""

    def __init__(self, points: Any) -> None:
        self.X = finite_table(points, "candidates")
