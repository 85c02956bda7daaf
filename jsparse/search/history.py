"""The history of a search: its evaluations, and the file that stores them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from .._files import ModelFileError, PathLike, load_state, named, save_state, shown
from .._repr import ShortList, short_repr
from .._status import PRECISION_LOST

_NO_SLOPE = np.zeros(0)
_NO_FOLDS = np.zeros((0, 0))
_KIND = "tuning history 6"  # earlier formats had other stop codes, or other columns


class Evaluation(NamedTuple):
    """The cross-validated errors of one kernel, for a vector of `C`."""

    theta: np.ndarray  # the kernel as a point of the search, see `Template`; shape `p`
    C: np.ndarray  # weights of the data-fit term, shape `s`
    scores: np.ndarray  # cross-validated errors, shape `s`
    # Standard errors of the scores, from the spread over the computed folds; NaN for one fold.
    standard_errors: np.ndarray  # shape `s`
    status: np.ndarray  # stop codes, the worst over computed folds, shape `s`
    seconds: float  # from the beginning of the stage to the end of the evaluation
    # For a step of `Gradient`, the objective (the log of the error plus the penalty of the prior)
    # and its gradient in theta and log C, shape `p + 2`; else empty. In such a step, `C` and
    # `scores` each repeat one number.
    slope: np.ndarray = _NO_SLOPE
    stage: int = 0  # number of the stage, see `machines.stages`
    # Errors of each fold, shape `s v`; empty if they are not known. Where a race ended before a
    # fold they are NaN, and the score is an estimate, see `race`.
    fold_scores: np.ndarray = _NO_FOLDS

    __repr__ = short_repr

    @property
    def trusted(self) -> Float[np.ndarray, " s"]:
        """The scores, with infinity in place of scores that cannot be trusted.

        A machine that stopped at its iteration limit counts as trusted, as the score is the error
        of exactly this machine; `Tuning.status` then reports the limit.
        """
        ok = (self.status < PRECISION_LOST) & np.isfinite(self.scores)
        return np.where(ok, self.scores, np.inf)

    @property
    def least(self) -> float:
        """The smallest of the `trusted` scores; infinite if no score can be trusted."""
        return float(np.min(self.trusted))

    @property
    def is_comparable(self) -> Bool[np.ndarray, " s"]:
        """Whether each score has errors of the same folds as the least trusted score."""
        known = ~np.isnan(self.fold_scores)
        if known.size == 0:
            return np.ones(self.C.shape, bool)
        return np.all(known == known[np.argmin(self.trusted)], axis=1)

    def at(self, place: int | np.integer) -> dict[str, Any]:
        """Return `C`, score, standard error and stop code at index `place`, as for `Tuning`."""
        return {
            "C": float(self.C[place]),
            "score": float(self.scores[place]),
            "standard_error": float(self.standard_errors[place]),
            "status": int(self.status[place]),
        }


def scored(history: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the evaluations without the steps of `Gradient`, which have no score in the metric."""
    return [evaluation for evaluation in history if not evaluation.slope.size]


_COLUMNS = Evaluation._fields[:-3]  # without `slope`, `stage` and `fold_scores`


def save_history(path: PathLike, history: Sequence[Evaluation]) -> None:
    """Write the evaluations of a search to a file, from which a later run can resume.

    Raises:
        ValueError: if there are no evaluations, or the evaluations of a stage differ in shape.
        OutputError: if the file cannot be written.
    """
    shapes = {(e.stage, e.theta.shape, e.C.shape) for e in history}
    if not history or len(shapes) > len({stage for stage, _, _ in shapes}):
        raise ValueError("history: expected the evaluations of one search, at least one")
    save_state(path, arrays_of(history), {}, kind=_KIND)


def arrays_of(history: Sequence[Evaluation]) -> dict[str, np.ndarray]:
    """Return the evaluations of a search as arrays with a row for each evaluation.

    The name of an array is the number of the tuning stage and a field of `Evaluation`, such as
    "0.scores". Slopes and fold scores that are not known are NaN.
    """
    arrays: dict[str, np.ndarray] = {}
    for stage in sorted({e.stage for e in history}):
        evaluations = [e for e in history if e.stage == stage]
        columns = zip(*(evaluation[: len(_COLUMNS)] for evaluation in evaluations), strict=True)
        stacked = dict(zip(_COLUMNS, map(np.stack, columns), strict=True))
        for name in ("slope", "fold_scores"):  # of some evaluations only
            values = [getattr(evaluation, name) for evaluation in evaluations]
            longest = max(values, key=np.size)
            if longest.size > 0:
                fill = np.full_like(longest, np.nan)
                stacked[name] = np.stack([value if value.size else fill for value in values])
        arrays |= {f"{stage}.{name}": array for name, array in stacked.items()}
    return arrays


def load_history(path: PathLike) -> list[Evaluation]:
    """Return the evaluations in a file that `save_history` wrote.

    Raises:
        ModelFileError: if the file is damaged, truncated, or of another format.
    """
    return evaluations_of(load_state(path, kind=_KIND)[0], path)


def evaluations_of(
    arrays: Mapping[str, np.ndarray], path: PathLike = "history"
) -> list[Evaluation]:
    """Return the evaluations that `arrays_of` has turned into `arrays`.

    `path` is the name of the file in error messages.

    Raises:
        ModelFileError: if the arrays are not the columns of evaluations.
    """
    stages: dict[int, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        stage, _, column = name.partition(".")
        if not (stage.isdecimal() and column):
            raise ModelFileError(f"{named(path)}: expected columns of stages, got {name!r}")
        stages.setdefault(int(stage), {})[column] = array
    if not stages:
        raise ModelFileError(f"{named(path)}: expected evaluations of at least one stage, got none")
    return ShortList(
        evaluation
        for stage, columns in sorted(stages.items())
        for evaluation in _evaluations(path, stage, columns)
    )


def _evaluations(path: PathLike, stage: int, arrays: dict[str, np.ndarray]) -> list[Evaluation]:
    """Return the evaluations of one stage, from an array for each field of `Evaluation`.

    Raises:
        ModelFileError: if dtypes or shapes of the arrays disagree, or values are out of range.
    """
    kinds = {name: (array.dtype.kind, array.shape) for name, array in arrays.items()}
    theta_shape, C_shape = (kinds.get(name, ("", ()))[1] for name in ("theta", "C"))
    n = C_shape[0] if C_shape else 0
    s, p = C_shape[-1:], theta_shape[-1:]
    expected = {
        **dict.fromkeys(("C", "scores", "standard_errors"), ("f", (n, *s))),
        "theta": ("f", (n, *p)),
        "status": ("i", (n, *s)),
        "seconds": ("f", (n,)),
    }
    if "slope" in kinds and len(theta_shape) == 2:  # the stage was a gradient search
        expected["slope"] = ("f", (n, theta_shape[1] + 2))  # see `Evaluation.slope`
    if "fold_scores" in kinds:
        n_folds = kinds["fold_scores"][1][2:3] or (0,)
        expected["fold_scores"] = ("f", (n, *s, *n_folds))
    if n == 0 or kinds != expected:
        raise ModelFileError(
            f"{named(path)}: expected {', '.join(Evaluation._fields)} of n evaluations, n at least "
            f"1; got {shown(kinds)}"
        )
    positive = (arrays["C"] > 0) & (arrays["C"] < np.inf)
    if not (np.all(np.isfinite(arrays["theta"])) and np.all(positive)):
        raise ModelFileError(f"{named(path)}: expected finite theta and positive C")
    slopes = arrays.get("slope", np.zeros((n, 0)))
    folds = arrays.get("fold_scores", np.zeros((n, *s, 0)))
    rows = zip(*(arrays[name] for name in _COLUMNS), slopes, folds, strict=True)
    return [
        Evaluation(
            *row, slope=slope[~np.isnan(slope)], stage=stage,
            fold_scores=_NO_FOLDS if np.all(np.isnan(of_folds)) else of_folds,
        )
        for *row, slope, of_folds in rows
    ]  # fmt: skip
