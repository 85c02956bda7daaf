"""The results of a batch as one `Trained` for each problem."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._status import NumericalError
from ..machines.method import Points, TrainingRows
from ..machines.rows import Rows
from ..machines.stages import Outcome
from ..scaling import Standardization
from ..search.history import Evaluation
from ..search.problem import Problem
from ..search.run import Tuning, best_of
from ..validation.folds import Folds
from ..validation.losses import standard_error
from .data import TrainingData
from .members import Member
from .run import Fitted, problem_of, trained_of
from .source import InMemory
from .trained import Trained
from .tuning import Choice, calibrate

# By field, a letter for each axis: m counts prototypes, d columns; a dot stands for another axis.
_AXES = {
    "points": "md", "prototypes": "md", "support": ".m", "coefficients": "..m", "transform": "mm",
    "shift": "m", "gram": "mm", "cross": "m", "feature_sum": "m",
}  # fmt: skip


def trained_members(members: list[Member], solved: Any, seconds: float) -> list[Any]:
    """Return a `Trained` for each member, or the error of a member without a result.

    `solved` is a `batch.Solved` with a leading axis of at least as many tables. `seconds` is the
    program's wall time divided by the number of members.
    """
    solved = jax.tree.map(np.asarray, solved)
    machines = _machines(solved, members)
    folds = solved.validations.fold_scores  # shape `b e s v k`
    errors = standard_error(folds.reshape(-1, *folds.shape[3:]))[:, 0].reshape(folds.shape[:3])
    results: list[Any] = []
    for i, member in enumerate(members):
        one = jax.tree.map(lambda a, i=i: a[i], solved._replace(family=None, sums=None))
        try:
            results.append(_trained(member, one._replace(**machines[i]), errors[i], seconds))
        except NumericalError as error:
            results.append(error)
    return results


def _machines(solved: Any, members: list[Member]) -> list[dict[str, Any]]:
    """Return the family, the sums and the scaling of each member, without padding, as JAX arrays.

    `solved` is a `batch.Solved` on the host. Its kernels, which allow for absent points
    (`WithAbsent`), are replaced by the members' plain kernels.
    """
    family = eqx.tree_at(lambda f: f.kernel, solved.family, solved.family.kernel.kernel)
    sums = solved.sums
    if sums is not None:
        features = eqx.tree_at(lambda f: f.kernel, sums.features, sums.features.kernel.kernel)
        sums = sums._replace(features=features)
    padded = {"family": family, "sums": sums, "scaling": solved.scaling}
    with_paths, structure = jax.tree_util.tree_flatten_with_path(padded)
    axes = [
        "d" if path[0].key == "scaling" else _AXES.get(getattr(path[-1], "name", ""), "")
        for path, _ in with_paths
    ]

    def without_padding(i: int, member: Member) -> list[np.ndarray | np.generic]:
        lengths = {"m": slice(member.n_prototypes), "d": slice(member.shape.d), ".": slice(None)}
        places = [(i, *(lengths[axis] for axis in names)) for names in axes]
        return [leaf[place] for (_, leaf), place in zip(with_paths, places, strict=True)]

    # One call for all members: the time of a call is the time of moving some hundred numbers.
    placed = jax.device_put([without_padding(i, member) for i, member in enumerate(members)])
    machines = [structure.unflatten(leaves) for leaves in placed]
    for machine, member in zip(machines, members, strict=True):
        sizes = np.full(1, member.n_prototypes, np.int32)
        machine["family"] = dataclasses.replace(machine["family"], sizes=sizes)
    return machines


def _trained(member: Member, solved: Any, standard_errors: np.ndarray, seconds: float) -> Trained:
    """Return the result of one problem from its `batch.Solved`, without the leading axis.

    `standard_errors` belong to the scores: for each kernel and `C`, shape `e s`.
    """
    config, n, scaling = member.config, len(member.raw.X), solved.scaling
    folds = member.folds
    if folds is None:
        width = -(-n // member.common.steps.n_folds)
        folds = Folds(solved.folds.index[:, :width], solved.folds.valid[:, :width])
    Z = (member.raw.X - np.asarray(scaling.shift)) / np.asarray(scaling.scale)
    data = _data(member, scaling, Z, folds)
    numbers = solved.point_rows[: member.n_prototypes]
    points = Points(solved.family.points, numbers, int(solved.selection_status))
    problem = problem_of(member.common.method, member.common.template, config, data, points)
    tuning = _tuning(problem, solved, standard_errors)
    outcome = Outcome(problem, tuning, tuning.theta, config.C)
    choice = Choice(outcome, tuning.C, None, None, False)
    units, family = data.encoding.units, solved.family
    values = inverse_temperatures = conformal = None
    if config.out_of_fold:
        by_fold = solved.predictions[:, : folds.index.shape[1]]
        values = np.full((n, by_fold.shape[2]), np.nan, by_fold.dtype)
        values[folds.index[folds.valid]] = by_fold[folds.valid]
        values = units.values(values.reshape(n, *family.outputs))
        inverse_temperatures, conformal = calibrate(values, choice, data, None, machines=False)
    fitted = Fitted(
        points, choice, units.family(family, member.common.method.info_powers), solved.sums,
        values, inverse_temperatures, conformal,
    )  # fmt: skip
    times = {"total": seconds, "batch": seconds}
    return trained_of(fitted, data, config, member.raw.schema, times, member.preset)


def _data(member: Member, scaling: Standardization, Z: np.ndarray, folds: Folds) -> TrainingData:
    """Return what `prepare_table` returns, without padding; `Z` are the standardised rows."""
    encoded, n, w, encoding = member.encoded, len(Z), member.weights, member.encoding(scaling)
    table, targets, row_weights = jax.device_put((Z, member.targets, w))
    rows = Rows(table, targets, row_weights, encoded.code)
    return TrainingData(
        source=InMemory(rows, rows, folds, folds, n),
        encoding=encoding,
        shape=member.shape,
        candidates=TrainingRows(table, encoded.labels, w, encoding.scaling, n),
        truth=encoded.numbers,
        weights=encoded.weights,
        weighted=member.raw.weighted,
        folds=folds,
        compared={},
        planning={},
    )


def _tuning(problem: Problem, solved: Any, standard_errors: np.ndarray) -> Tuning:
    """Return the best kernel and `C` with the history; raise `NumericalError` as `best_of` does."""
    validations, C = solved.validations, problem.C
    history = [
        Evaluation(theta, C, scores, errors, status, 0.0, fold_scores=folds)
        for theta, scores, errors, status, folds in zip(
            solved.thetas.astype(float), validations.scores[..., 0], standard_errors,
            validations.status, validations.fold_scores[..., 0], strict=True,
        )
    ]  # fmt: skip
    is_stated = problem.template.size == 0 and len(C) == 1
    return best_of(problem.template, problem.dtype, history, "finished", is_stated=is_stated)
