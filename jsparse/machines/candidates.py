"""Settings of methods that select their prototypes one after another out of candidates."""

import abc
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import finite_table, real, whole_number
from .._blocks import rounded_down
from .._numerics import as_array
from .._status import COMPLETED, PRECISION_LOST
from .._types import CLike, Key, PointTable
from ..kernels import Kernel
from ..prototypes import k_center, k_means
from ..prototypes.choice import choose_rows
from ..pursuit.probabilistic import SUBSET
from .checks import check_choice
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
    option,
    replaced,
    setting,
)
from .rows import Rows

CANDIDATES = 1000  # upper limit of the default number of candidates
CandidateMethod = Literal["k_center", "k_means", "renyi", "uniform"]


class Candidates(Method):
    """The settings of methods that select prototypes one after another out of candidates.

    Args:
        max_prototypes: largest number of prototypes, at which the path ends; by default 300, or
            fewer if there are fewer candidates or training rows.
        candidates: number of candidates; or "all" for every row with weight; or a table of points
            in raw units, shape `M d`. By default the number of rows, at most 1000, rounded down so
            that tables of similar size share programs.
        candidate_method: how candidates are chosen: "k_center" (rows far from each other, as in
            Karsmakers 2011), "k_means" (cluster means), or rows by "renyi" entropy or "uniform".
        subset: number of random candidates examined for each prototype; "auto" for 59, the number
            of Karsmakers 2011, Section 3.5.2; None for the default of the method.
        size_tolerance: choose the smallest size whose error is within this many standard errors of
            the smallest error. 0.1 is the choice of Karsmakers 2011, Section 4.5; 1 is the
            one-standard-error rule.
    """

    several_sizes: ClassVar[bool] = True
    shares_C: ClassVar[bool] = True
    size_argument: ClassVar[str] = "candidates"
    usual_length: ClassVar[int] = 300  # upper limit of the default `max_prototypes`

    max_prototypes: int | None = option(
        None,
        "largest number of prototypes; default: 300 (rvm: 100), or the number of candidates",
        kind="count",
        metavar="K",
    )
    candidates: Any = option(
        None,
        "choose prototypes from N rows far from each other; default: 1000, or about the number of "
        "rows if that is smaller",
        kind="count",
        metavar="N",
    )
    candidate_method: CandidateMethod = setting("k_center")
    subset: int | Literal["auto"] | None = option(
        None,
        "examine N random candidates for each prototype; 'auto' for 59",
        kind="count or auto",
        metavar="N",
    )
    size_tolerance: float = option(  # type: ignore[assignment]
        0.1,
        "choose the smallest size whose error is within T standard errors of the smallest error",
        kind="not negative",
        metavar="T",
    )

    def __post_init__(self) -> None:
        table = self.candidates
        if isinstance(table, list | tuple) or (table is not None and np.ndim(table) > 0):
            self.candidates = _CandidateTable(table)
        super().__post_init__()

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        check_choice("candidate_method", self.candidate_method, CandidateMethod)
        if isinstance(self.candidates, str) and self.candidates != "all":
            raise ValueError(
                f"candidates: expected a number, 'all' or points, got {self.candidates!r}"
            )
        real("size_tolerance", self.size_tolerance, 0.0)

    def resolve(self, shape: Shape) -> "Candidates":
        """See `Method.resolve`."""
        candidates, M = self.candidates, self._candidate_count(shape)
        if isinstance(candidates, _CandidateTable):
            if candidates.X.shape[1] != shape.d:
                raise ValueError(
                    f"candidates: expected shape (M, {shape.d}), got {candidates.X.shape}"
                )
        else:
            what = "the number of rows with weight"
            candidates = M = whole_number("candidates", M, 1, shape.n_present, what)
        most, k = min(M, shape.training), self.max_prototypes
        k = min(self.usual_length, rounded_down(most)) if k is None else k
        what = "the number of candidates or of training rows"
        k = whole_number("max_prototypes", k, 1, most, what)
        subset = self.resolved_subset(M)
        return replaced(self, max_prototypes=k, candidates=candidates, subset=subset)

    def resolved_subset(self, M: int) -> int | None:
        """Return how many of the `M` candidates are examined for each prototype.

        None stands for the default of the method: all candidates, or 59 for `SpSVM`.

        Raises:
            ValueError: if `subset` exceeds `M`.
        """
        if self.subset is None:
            return None
        if self.subset == "auto":
            return min(SUBSET, M)
        return whole_number("subset", self.subset, 1, M, "the number of candidates")

    def _candidate_count(self, shape: Shape) -> Any:
        """Return the number of candidates that the settings state, unchecked."""
        if self.candidates is None:
            return min(rounded_down(shape.n_present), CANDIDATES)
        if isinstance(self.candidates, _CandidateTable):
            return len(self.candidates.X)
        return shape.n_present if self.candidates == "all" else self.candidates

    def capped(self, shape: Shape) -> "Candidates":
        """See `Method.capped`."""
        lowered = replaced(self, candidates=at_most(self.candidates, shape.n_present))
        M = whole_number("candidates", lowered._candidate_count(shape), 1)
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
        return tuple(range(1, self.largest_size + 1))

    def error_status(self, status: Int[np.ndarray, " s"]) -> Int[np.ndarray, " s"]:
        """See `Method.error_status`: PRECISION_LOST of coefficients does not spoil predictions."""
        return np.where(status == PRECISION_LOST, COMPLETED, status).astype(np.int32)

    def limited(self, n_prototypes: int) -> "Candidates":
        """See `Method.limited`; a method keeps at least its smallest size."""
        return self.shortened(max(1, sum(size <= n_prototypes for size in self.fit_sizes)))

    def shortened(self, n_sizes: int) -> "Candidates":
        """See `Method.shortened`."""
        return replaced(self, max_prototypes=n_sizes)

    @property
    def largest_size(self) -> int:
        """The largest number of prototypes; only valid for a resolved method."""
        assert self.max_prototypes is not None
        return self.max_prototypes

    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Return the candidates: the user's points, rows or cluster means."""
        X, M, weights = rows.X, self.candidates, np.asarray(rows.weights)
        if isinstance(M, _CandidateTable):
            return Points(rows.scaling.apply(M.X.astype(X.dtype)), None)
        present, criterion = np.flatnonzero(weights > 0), self.candidate_method
        if len(present) == M:
            return rows.points_at(present)
        if criterion == "k_center":
            centres = k_center(key, X, M, as_array(weights, X.dtype))
            return rows.points_at(np.asarray(centres.indices))
        if criterion == "k_means":
            means = k_means(key, X, M, as_array(weights, X.dtype))
            return Points(means.centres, None, int(means.status))
        numbers, status = choose_rows(key, criterion, X, M, rows.labels, weights, rows.n)
        return rows.points_at(numbers, status)


class CandidatesFromSums(Candidates, FromSums):
    """Methods that select prototypes from sums over rows.

    If the rows are in memory on one device, `fit` computes the coefficients from the rows, which
    keeps more digits than `solve` does with sums.
    """

    shares_rows: ClassVar[bool] = True

    @property
    def n_features(self) -> int | None:
        """See `Method.n_features`: the number of candidates; None if it depends on the rows."""
        if isinstance(self.candidates, _CandidateTable):
            return len(self.candidates.X)
        return self.candidates if isinstance(self.candidates, int) else None

    def criterion(self, task: Task) -> Metric:
        """See `Method.criterion`: least squares for both tasks (Karsmakers 2011, eq. 35)."""
        return "mse"

    @abc.abstractmethod
    def fit_in_memory(
        self, kernel: Kernel, points: Float[Array, "M d"], C: CLike, rows: Rows, key: Key | None
    ) -> Family:
        """Return the machines fitted to rows in memory on one device; arguments as for `fit`."""

    def fit_and_sum(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None,
        sums: Sums | None = None,
    ) -> tuple[Family, Sums | None]:  # fmt: skip
        """See `Method.fit_and_sum`: without a mesh, fit from the rows, and return no sums."""
        if rows.mesh is not None:
            return super().fit_and_sum(kernel, points, C, rows, key, sums)
        assert points is not None
        return self.fit_in_memory(kernel, points, C, rows, key), None


class _CandidateTable:
    """The user's table of points. Tables are compared and hashed by identity, not by content."""

    def __init__(self, points: Any) -> None:
        self.X = finite_table(points, "candidates")
