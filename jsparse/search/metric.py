"""The settings, and the initial profile, of all searches that learn a metric."""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from .._arguments import whole_number
from .strategies import LINE_EVALUATIONS, Evaluator, Search, line_search


@dataclasses.dataclass(frozen=True, repr=False)
class MetricSearch(Search):
    """A search that learns a lengthscale for every column, or a matrix; see `Gradient`."""

    per_column: bool = True
    rank: int | None = None
    runs_on_mesh: ClassVar[bool] = False

    @property
    def varied(self) -> dict[str, bool]:
        """See `Search.varied`."""
        return {**super().varied, "tune_matrices": True}

    def check(self) -> None:
        """See `Search.check`."""
        super().check()
        if self.rank is not None:
            whole_number("rank", self.rank, 1)

    def without_rank(self) -> Search:
        """See `Search.without_rank`."""
        return dataclasses.replace(self, rank=None)


def scored_profile(
    run: Evaluator, fixed: Float[np.ndarray, " p"] | None = None
) -> list[tuple[float, Float[np.ndarray, " p"]]]:
    """Score kernels that differ in one common factor of all positive leaves, by a line search.

    Return the scores with their thetas, the best first. `fixed` has the values of the elements of
    theta that are not varied, and NaN for the others.
    """
    middle, signed = run.template.theta.astype(float), run.template.signed
    scored: list[tuple[float, np.ndarray]] = []

    def scores(points: np.ndarray) -> Float[np.ndarray, " q"]:
        thetas = middle[None] + np.where(signed[None], 0, points)
        if fixed is not None:
            thetas = np.where(np.isnan(fixed)[None], thetas, fixed[None])
        values = run.scores(thetas)
        scored.extend(zip(values.tolist(), thetas, strict=True))
        return values

    narrow, wide = np.max(run.low - middle), np.min(run.high - middle)
    line_search(float(narrow), float(wide), LINE_EVALUATIONS, run.dtype, scores)
    return sorted(scored, key=lambda pair: pair[0])
