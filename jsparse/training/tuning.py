"""The choice of a machine by cross-validation, its held-out predictions, and its final fit."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._numerics import as_array
from .._repr import short_repr
from ..calibration import fit_inverse_temperatures
from ..conformal import ConformalScores, conformal_scores, errors_of_numbers, errors_of_scores
from ..machines.family import Family
from ..machines.held_out import MachineIndex, Sums
from ..machines.rows import Rows
from ..machines.stages import Outcome, smallest_within
from ..prediction import scores_of
from ..search.history import Evaluation, arrays_of, evaluations_of
from ..search.problem import Problem, best_per_problem
from ..search.run import Tuning
from ..search.sizes import SizeCurve, curve_of
from ..search.tune import tune_stages
from ..validation.losses import standard_error, weighted
from ..validation.validate import Kept
from .checkpoint import Entry, RunState
from .data import TrainingData
from .encoding import Encoding
from .settings import Config
from .target_units import TargetUnits


class Choice(NamedTuple):
    """The kernel, `C` and size that cross-validation chose."""

    outcome: Outcome  # of the stage that the method chose
    C: float | np.ndarray  # one value, or one for each binary problem
    size: int | None  # number of prototypes, if one fit gives machines of several sizes
    curve: SizeCurve | None  # errors of all sizes, if there are several
    moved: bool  # whether the search has moved the points

    __repr__ = short_repr

    @property
    def problem(self) -> Problem:
        """The tuning problem for the chosen number of prototypes."""
        return self.outcome.problem

    @property
    def tuning(self) -> Tuning:
        """The outcome of the search."""
        return self.outcome.tuning

    @property
    def C_array(self) -> Array:
        """`C` as an array of the problem's dtype."""
        return as_array(np.asarray(self.C, self.problem.dtype))


def choose(problem: Problem, config: Config, encoding: Encoding, state: RunState) -> Choice:
    """Choose kernel, `C` and size by cross-validation, in the stages of the problem's method.

    The evaluations are kept in the run's checkpoint, and continued from there.
    """
    metric, units = problem.scoring.metric, encoding.units
    search, known = units.search(config.search, metric), state.known("history")

    def record(evaluations: Callable[[], list[Evaluation]]) -> None:
        state.keep("history", lambda: Entry(arrays_of(evaluations()), {}))
        state.tick()

    choice = tune_stages(
        problem.method.stages(problem, search),
        key=config.keys.search,
        history=search.history if known is None else evaluations_of(known.arrays),
        same_run=known is not None,
        max_seconds=config.resources.max_seconds,
        progress=units.progress(config.progress, metric),
        record=record,
    )
    if choice.outcome.tuning.stopped != "finished":
        state.checkpoint.complete = False
    outcome, C, size = choice.outcome, choice.outcome.tuning.C, None
    curve = curve_of(choice, metric) if choice.sizes else None
    if problem.method.fit_sizes:
        outcome, curve = _size_curve(outcome)
        size = curve.size
    if encoding.code is not None and config.multiclass.C_per_problem:
        C = _C_per_problem(outcome)
    return Choice(outcome, C, size, curve, choice.moved)


def _size_curve(outcome: Outcome) -> tuple[Outcome, SizeCurve]:
    """Return the outcome, and the curve of the errors of every size with the best kernel and `C`.

    The method of the returned outcome is shortened to the sizes of the curve.
    """
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
    if k < len(method.fit_sizes):
        outcome = outcome._replace(problem=problem.with_method(method.shortened(k)))
    return outcome, curve


class _ProblemErrors(eqx.Module):
    """An `OnFold` that sums, by binary problem, the weights of wrong signs and of all its rows."""

    wanted: None = None

    def __call__(
        self, rows: Rows, values: Float[Array, "r q l"], which: MachineIndex
    ) -> tuple[PyTree, PyTree]:
        targets = rows.target_columns  # 0 where a binary problem does not use the row
        problem_weights = (jnp.abs(targets) * rows.weights[:, None])[:, None]
        errors = ((values >= 0) != (targets > 0)[:, None]).astype(values.dtype)
        sums = jnp.sum(weighted(problem_weights, errors), axis=0)
        total = jnp.broadcast_to(jnp.sum(problem_weights, axis=0), sums.shape)
        return (sums.T, total.T), None

    def over_C(self, kept: PyTree) -> PyTree:
        return kept


def _C_per_problem(outcome: Outcome) -> Float[np.ndarray, " l"]:
    """Return, for each binary problem, the `C` of the grid with the lowest held-out error rate."""
    problem = outcome.problem
    theta, grid = outcome.theta.astype(problem.dtype), problem.C.astype(problem.dtype)
    held = problem.source.held_out(problem, theta, grid, _ProblemErrors())
    errors, total = (np.sum(np.asarray(a), axis=0)[..., 0] for a in held.sums)  # s l
    status = np.asarray(held.statuses)
    return best_per_problem(grid, errors / total, status, outcome.tuning.C)


def predict_held_out(choice: Choice, units: TargetUnits) -> tuple[np.ndarray, Any]:
    """Return the held-out values of the chosen machine, shape `n *c`, in the caller's units.

    Also return what the fit to all rows can start from, if the validation program computes it: sums
    over all rows, coefficients or whole machines; else None.
    """
    problem, C = choice.problem, np.asarray(choice.C)
    grid = problem.method.C_to_validate(C, choice.outcome.C)
    C_index = np.argmin(np.abs(grid[:, None] - C.reshape(1, -1)), axis=0).astype(np.int32)
    size = 0 if choice.size is None or choice.curve is None else choice.curve.chosen
    keep = Kept(C_index.reshape(C.shape), np.int32(size))
    theta, grid = (a.astype(problem.dtype) for a in (choice.outcome.theta, grid))
    values, total = problem.source.held_out_values(problem, theta, grid, problem.scoring, keep)
    return units.values(values), total


def calibrate(
    values: np.ndarray, choice: Choice, data: TrainingData, sums: Any, *, machines: bool
) -> tuple[Float[np.ndarray, " k"] | None, ConformalScores]:
    """Return the inverse temperatures (None for regression) and the conformal scores.

    Args:
        values: held-out values, from `predict_held_out`.
        choice: the chosen kernel, `C` and size.
        data: the rows.
        sums: from `predict_held_out`.
        machines: whether the conformal scores also hold the machines of the folds.
    """
    problem, encoding, weights = choice.problem, data.encoding, data.weights
    rows = data.predicted(problem.method)
    truth, inverse_temperatures = data.truth[rows], None
    if encoding.classes is None:
        errors = errors_of_numbers(values[rows], truth)
    else:
        scores = scores_of(values[rows], encoding.code, problem.decoding)
        errors = errors_of_scores(scores, truth)
        inverse_temperatures = fit_inverse_temperatures(
            scores, truth, None if weights is None else weights[rows]
        )
    if not machines:
        return inverse_temperatures, conformal_scores(errors)
    fold_machines, fold = data.source.fold_machines(
        problem, choice.tuning.kernel, choice.C_array, choice.size, sums
    )
    return inverse_temperatures, conformal_scores(
        errors, fold[rows], encoding.units.expansion(fold_machines)
    )


def fit_all_rows(choice: Choice, units: TargetUnits, sums: Any) -> tuple[Family, Sums | None]:
    """Fit to all rows with the chosen kernel and `C`; return the machines, and the sums or None.

    The machines return values in the caller's units. The argument `sums`, from `predict_held_out`,
    saves passes over the rows.
    """
    problem = choice.problem
    family, sums = problem.source.fit(problem, choice.tuning.kernel, choice.C_array, sums)
    return units.family(family, problem.method.info_powers), sums
