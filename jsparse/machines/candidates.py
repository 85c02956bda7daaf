"""Candidates out of which methods of several sizes select their prototypes."""

import abc
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import check_finite, finite_table, whole_number
from .._blocks import rounded_down
from .._numerics import as_array
from .._status import COMPLETED, PRECISION_LOST
from .._types import Key, ScalarLike
from ..kernels import Kernel
from ..prototypes import k_center, k_means
from ..prototypes.choice import choose_rows
from ..pursuit.probabilistic import SUBSET
from .family import Family
from .from_sums import FromSums
from .held_out import Sums
from .method import (
    Method,
    Metric,
    Points,
    Shape,
    Task,
    TrainingRows,
    at_most,
    check_tolerance,
    option,
    replaced,
    rows_at,
    setting,
)
from .rows import Rows

MAX_PROTOTYPES = 300
CANDIDATES = 1000
CandidateMethod = Literal["k_center", "k_means", "renyi", "uniform"]


class Candidates(Method):
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
        size_tolerance: the size chosen is the least whose error is within as many standard errors
            of the best: 0.1 is the choice of Section 4.5, 1 the one-standard-error rule.
    """

    several_sizes: ClassVar[bool] = True
    shares_C: ClassVar[bool] = True
    size_argument: ClassVar[str] = "candidates"

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
    candidate_method: CandidateMethod = setting("k_center")
    subset: int | Literal["auto"] | None = option(
        None,
        "look at N random candidates for each prototype, or 'auto': 59",
        kind="count or auto",
        metavar="N",
    )
    size_tolerance: float = option(  # type: ignore[assignment]
        0.1,
        "of several sizes, the smallest within T standard errors of the best",
        kind="not negative",
        metavar="T",
    )

    def __post_init__(self) -> None:
        given = self.candidates
        if isinstance(given, list | tuple) or (given is not None and np.ndim(given) > 0):
            self.candidates = _Points(given)
        super().__post_init__()

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

    def resolve(self, shape: Shape) -> "Candidates":
        """See `Method.resolve`."""
        given, M = self.candidates, self._count(shape)
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
        candidates = given if isinstance(given, _Points) else M
        subset = self.resolved_subset(M)
        return replaced(self, max_prototypes=k, candidates=candidates, subset=subset)

    def resolved_subset(self, M: int) -> int | None:
        """Return the number of candidates looked at for each prototype, of `M`."""
        if self.subset is None:
            return None
        if isinstance(self.subset, str) and self.subset == "auto":
            return min(SUBSET, M)
        return whole_number("subset", self.subset, 1, M, "the candidates")

    def _count(self, shape: Shape) -> Any:
        """Return the number of candidates, not yet checked."""
        given = self.candidates
        if isinstance(given, _Points):
            return len(given.X)
        if given is None:
            return min(rounded_down(shape.present), CANDIDATES)
        return shape.present if given == "all" else given

    def capped(self, shape: Shape) -> "Candidates":
        """See `Method.capped`."""
        lowered = replaced(self, candidates=at_most(self.candidates, shape.present))
        M = whole_number("candidates", lowered._count(shape), 1)
        return replaced(
            lowered,
            max_prototypes=at_most(self.max_prototypes, min(M, shape.training)),
            subset=at_most(self.subset, M),
        )

    def for_distillation(self, prototypes: Float[np.ndarray, "m d"]) -> "Candidates":
        """See `Method.for_distillation`: the prototypes are the candidates."""
        return replaced(self, candidates=prototypes)

    @property
    def fit_sizes(self) -> tuple[int, ...]:
        """See `Method.fit_sizes`: every size up to the largest."""
        return tuple(range(1, self.longest + 1))

    def error_status(self, status: Int[np.ndarray, " s"]) -> Int[np.ndarray, " s"]:
        """See `Method.error_status`: coefficients that lost digits may give exact values."""
        return np.where(status == PRECISION_LOST, COMPLETED, status).astype(np.int32)

    def shortened(self, n_sizes: int) -> "Candidates":
        """See `Method.shortened`."""
        return replaced(self, max_prototypes=n_sizes)

    @property
    def n_candidates(self) -> int | None:
        """The number of candidates; None while it depends on the rows."""
        given = self.candidates
        if isinstance(given, _Points):
            return len(given.X)
        return given if isinstance(given, int) else None

    @property
    def longest(self) -> int:
        """The largest number of prototypes, once resolved."""
        assert self.max_prototypes is not None
        return self.max_prototypes

    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Return the candidates."""
        Z, M, weights = rows.X, self.candidates, np.asarray(rows.weights)
        if isinstance(M, _Points):
            return Points(rows.scaling.apply(M.X.astype(Z.dtype)), None)
        present = np.flatnonzero(weights > 0)
        if len(present) == M:
            return Points(rows_at(Z, present), present)
        w = as_array(weights, Z.dtype)
        if self.candidate_method == "k_center":
            centres = np.asarray(k_center(key, Z, M, w).indices)
            return Points(rows_at(Z, centres), centres)
        if self.candidate_method == "k_means":
            means = k_means(key, Z, M, w)
            return Points(means.centres, None, int(means.status))
        labels = rows.labels
        numbers, status = choose_rows(key, self.candidate_method, Z, M, labels, weights, rows.n)
        return Points(rows_at(Z, numbers), numbers, status)


class CandidatesFromSums(Candidates, FromSums):
    """Methods that select prototypes by sums over rows.

    Rows in memory on one device are there again once the prototypes are selected, for coefficients
    with more digits than sums have: `fit` then differs from `solve` by rounding.
    """

    shares_rows: ClassVar[bool] = True

    @property
    def memory(self) -> int | None:
        """See `Method.memory`: the candidates, once their number is known."""
        return self.n_candidates

    def criterion(self, task: Task) -> Metric:
        """See `Method.criterion`: least squares (Karsmakers 2011, eq. 35), for classes too."""
        return "mse"

    @abc.abstractmethod
    def fit_in_memory(
        self,
        kernel: Kernel,
        points: Float[Array, "M d"],
        C: ScalarLike | Float[Array, " l"],
        rows: Rows,
        key: Key | None,
    ) -> Family:
        """Fit to rows in memory; arguments as for `fit`."""

    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "M d"] | None,
        C: ScalarLike | Float[Array, " l"],
        rows: Rows,
        key: Key | None = None,
    ) -> Family:
        """See `Method.fit`: rows of a mesh are fitted from their sums."""
        if rows.mesh is not None:
            return super().fit(kernel, points, C, rows, key)
        assert points is not None
        return self.fit_in_memory(kernel, points, C, rows, key)

    def fit_and_sum(
        self,
        kernel: Kernel,
        points: Float[Array, "M d"] | None,
        C: ScalarLike | Float[Array, " l"],
        rows: Rows,
        key: Key | None = None,
        sums: Sums | None = None,
    ) -> tuple[Family, Sums | None]:
        """See `Method.fit_and_sum`: rows in memory are not summed."""
        if rows.mesh is not None:
            return super().fit_and_sum(kernel, points, C, rows, key, sums)
        return self.fit(kernel, points, C, rows, key), None


class _Points:
    """A table of the caller's points, which is equal to no other."""

    def __init__(self, points: Any) -> None:
        self.X = finite_table(points, "candidates")


def check_candidates(candidates: Array, d: int) -> None:
    """Raise unless the candidates are finite points of `d` columns; they may outnumber the rows."""
    if candidates.ndim != 2 or candidates.shape[1] != d or len(candidates) == 0:
        raise ValueError(
            f"candidates: expected shape (M, {d}) with M at least 1, got {candidates.shape}"
        )
    check_finite("candidates", candidates)
