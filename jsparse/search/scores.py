"""Cross-validated errors of the kernels of a search."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .._repr import short_repr
from .._status import PRECISION_LOST
from ..machines.method import Method
from ..machines.stages import smallest_within
from ..validation.losses import standard_error
from ..validation.validate import Validation


class Scores(NamedTuple):
    """Errors on `v` folds of one or `q` kernels, each for `s` values of `C`; on the host."""

    scores: Float[np.ndarray, "*q s"]  # cross-validated errors
    standard_errors: Float[np.ndarray, "*q s"]  # of the scores, from the spread over folds
    status: Int[np.ndarray, "*q s"]  # stop codes, the worst over folds
    # Errors of each fold. NaN where a race ended before the fold: the score is then an estimate,
    # see `race`.
    fold_scores: Float[np.ndarray, "*q s v"]

    __repr__ = short_repr

    def with_folds(self, v: int) -> "Scores":
        """Return the scores of one kernel, with `fold_scores` emptied if they are not of `v` folds.

        Methods such as `Dual`, which leave out one row at a time, have one fold for each row.
        """
        if self.fold_scores.shape[1] == v:
            return self
        return self._replace(fold_scores=self.fold_scores[:, :0])

    @property
    def trusted(self) -> Float[np.ndarray, "*q s"]:
        """The scores, with infinity in place of scores that cannot be trusted."""
        ok = (self.status < PRECISION_LOST) & np.isfinite(self.scores)
        return np.where(ok, self.scores, np.inf)


def smallest_C(
    C: Float[np.ndarray, " s"],
    errors: Float[np.ndarray, " s"],
    standard_errors: Float[np.ndarray, " s"],
    tolerance: float,
) -> int:
    """Return the index of the smallest `C` whose error is nearly the least.

    See `smallest_within`, which decides what is nearly the least.
    """
    order = np.argsort(C, kind="stable")
    return int(order[smallest_within(errors[order], standard_errors[order], tolerance)])


def least_of_sizes(method: Method, validation: Validation) -> Scores:
    """Return the scores of one kernel, for each `C` at the size with the least error."""
    errors, fold_scores = np.asarray(validation.scores), np.asarray(validation.fold_scores)
    best_sizes = [np.argmin(path[: method.path_end(path)]) for path in errors]
    best = np.arange(len(best_sizes)), best_sizes
    of_best = fold_scores[best[0], :, best_sizes]
    status = method.error_status(np.asarray(validation.status))
    return Scores(errors[best], standard_error(of_best), status, of_best)
