"""From a tuning problem to the machine that cross-validation chooses, and its held-out errors."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._numerics import as_array
from .._repr import short_repr
from ..calibration import fit_slopes
from ..conformal import Unseen, errors_of_classes, errors_of_numbers, kept_errors
from ..machines.family import Family
from ..machines.held_out import Sums, Which
from ..machines.rows import Rows
from ..machines.stages import Outcome, smallest_within
from ..prediction import scores_of
from ..search.problem import Problem, best_per_problem
from ..search.run import Tuning
from ..search.sizes import SizeCurve, curve_of
from ..search.tune import tune_stages
from ..validation.losses import standard_error, weighted
from ..validation.validate import Kept
from .data import TrainingData
from .encoding import Encoding
from .settings import Config
from .target_units import TargetUnits


class Choice(NamedTuple):
    """What cross-validation chose."""

    outcome: Outcome
    C: float | np.ndarray  # of each problem, if each has its own
    size: int | None  # if one fit gives machines of several sizes
    curve: SizeCurve | None
    moved: bool  # whether the points are no longer those that were chosen

    __repr__ = short_repr

    @property
    def problem(self) -> Problem:
        """The problem of the size chosen."""
        return self.outcome.problem

    @property
    def tuning(self) -> Tuning:
        """The outcome of the search."""
        return self.outcome.tuning

    @property
    def C_array(self) -> Array:
        """The value of `C`, or of each problem, as programs take it."""
        return as_array(np.asarray(self.C, self.problem.dtype))


def choose(problem: Problem, config: Config, encoding: Encoding) -> Choice:
    """Tune a problem in the stages of its method: kernel, `C` and size by cross-validation."""
    metric, units = problem.scoring.metric, encoding.units
    search = units.search(config.search, metric)
    chosen = tune_stages(
        problem.method.stages(problem, search),
        key=config.keys.search,
        history=search.history,
        max_seconds=config.resources.max_seconds,
        progress=units.progress(config.progress, metric),
    )
    outcome, C, size = chosen.outcome, chosen.outcome.tuning.C, None
    curve = curve_of(chosen, metric) if chosen.sizes else None
    if problem.method.several_sizes:
        outcome, curve = _curve(outcome)
        size = curve.size
    if encoding.code is not None and config.multiclass.C_per_problem:
        C = _C_per_problem(outcome)
    return Choice(outcome, C, size, curve, chosen.moved)


def _curve(outcome: Outcome) -> tuple[Outcome, SizeCurve]:
    """Return the errors of every size with the best kernel and `C`; the problem ends with them."""
    problem, tuning = outcome.problem, outcome.tuning
    method, scoring = problem.method, problem.scoring
    C = np.asarray([tuning.C], problem.dtype)
    (validation,) = problem.errors(outcome.theta.astype(problem.dtype)[None], C[None], scoring)
    validation = jax.tree.map(np.asarray, validation)
    end = method.path_end(validation.scores[0])
    errors, spread = validation.scores[0, :end], standard_error(validation.fold_scores)[0, :end]
    k = len(errors)
    curve = SizeCurve(
        sizes=np.asarray(method.fit_sizes[:k]),
        errors=errors,
        standard_errors=spread,
        chosen=smallest_within(errors, spread, method.size_tolerance),
        metric=scoring.metric,
        fold_errors=validation.fold_scores[0, :, :k],
        stopped=tuning.stopped,
    )
    if validation.reported is not None:
        curve = curve._replace(
            errors=validation.reported[0, :k],
            standard_errors=standard_error(validation.fold_reported)[0, :k],
            metric=scoring.reported,
            fold_errors=validation.fold_reported[0, :, :k],
            chosen_by=curve,
        )
    return outcome._replace(problem=problem.with_method(method.shortened(k))), curve


class _ProblemErrors(eqx.Module):
    """Weights of the rows that each binary problem tells apart wrongly, and of those it sees."""

    def __call__(
        self, rows: Rows, values: Float[Array, "r q l"], which: Which
    ) -> tuple[PyTree, PyTree]:
        targets = rows.target_columns
        seen = (jnp.abs(targets) * rows.weights[:, None])[:, None]
        wrong = ((values >= 0) != (targets > 0)[:, None]).astype(values.dtype)
        sums = jnp.sum(weighted(seen, wrong), axis=0)
        total = jnp.broadcast_to(jnp.sum(seen, axis=0), sums.shape)
        return (sums.T, total.T), None


def _C_per_problem(outcome: Outcome) -> Float[np.ndarray, " l"]:
    """Return the `C` of the grid with which the rows of each problem are told apart best."""
    problem = outcome.problem
    theta, grid = outcome.theta.astype(problem.dtype), problem.C.astype(problem.dtype)
    held = problem.source.held_out(problem, theta, grid, _ProblemErrors())
    wrong, seen = (np.sum(np.asarray(a), axis=0)[..., 0] for a in held.sums)  # s l
    status = np.asarray(held.statuses)
    return best_per_problem(grid, wrong / seen, status, outcome.tuning.C)


def predict_unseen(choice: Choice, units: TargetUnits) -> tuple[np.ndarray, Sums | None]:
    """Return values of the rows by the machine chosen that has not seen their fold, `n *c`.

    And the sums of all rows, if the same program gives them. Values are in the units of the caller.
    """
    problem, grid, C = choice.problem, choice.outcome.C, np.asarray(choice.C)
    # The program of the search, with the values of C that it was compiled for, where that is cheap.
    if not (problem.method.shares_work_over_C and np.all(np.isin(C, grid))):
        grid = np.unique(C)
    place = np.argmin(np.abs(grid[:, None] - C.reshape(1, -1)), axis=0).astype(np.int32)
    size = 0 if choice.size is None or choice.curve is None else choice.curve.chosen
    keep = Kept(place.reshape(C.shape), np.int32(size))
    theta, grid = (a.astype(problem.dtype) for a in (choice.outcome.theta, grid))
    validation = problem.source.validate(problem, theta, grid, problem.scoring, keep)
    return units.values(validation.predictions), validation.total


def calibrate(
    values: np.ndarray, choice: Choice, data: TrainingData, sums: Sums | None, *, machines: bool
) -> tuple[Float[np.ndarray, " k"] | None, Unseen]:
    """Return the slopes of the probabilities, and errors with the machines if these are to be kept.

    Both of the held-out `values`; a regression has no probabilities.
    """
    problem, encoding, rows, weights = choice.problem, data.encoding, data.predicted, data.weights
    truth, slopes = data.truth[rows], None
    if encoding.classes is None:
        errors = errors_of_numbers(values[rows], truth)
    else:
        scores = scores_of(values[rows], encoding.code, problem.decoding)
        errors = errors_of_classes(scores, truth)
        slopes = fit_slopes(scores, truth, None if weights is None else weights[rows])
    if not machines:
        return slopes, kept_errors(errors)
    of_folds, fold = data.source.fold_machines(
        problem, choice.tuning.kernel, choice.C_array, choice.size, sums
    )
    return slopes, kept_errors(errors, fold[rows], encoding.units.expansion(of_folds))


def fit_all_rows(
    choice: Choice, units: TargetUnits, sums: Sums | None
) -> tuple[Family, Sums | None]:
    """Return the machine of all rows in the caller's units, and the sums it was solved from."""
    problem = choice.problem
    family, sums = problem.source.fit(problem, choice.tuning.kernel, choice.C_array, sums)
    return units.family(family, problem.method.info_powers), sums
