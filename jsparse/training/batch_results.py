"""The results of a batch as one `Trained` for each problem."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._status import NumericalError
from ..machines.family import Family
from ..machines.held_out import Sums
from ..machines.method import Points, TrainingRows
from ..machines.rows import Rows
from ..machines.stages import Outcome
from ..scaling import Standardization
from ..search.history import Evaluation
from ..search.run import Tuning, best_of
from ..search.problem import Problem
from ..validation.folds import Folds
from ..validation.losses import standard_error
from .batch import Solved
from .data import TrainingData
from .members import Member
from .run import Fitted, problem_of, trained_of
from .source import InMemory
from .trained import Trained
from .tuning import Choice, calibrate


def trained_members(members: list[Member], solved: Solved, seconds: float) -> list[Any]:
    """Return a `Trained` for each member, or the error of a member without a result.

    Args:
        members: the members of the batch.
        solved: the results of the program, with a leading axis of at least as many tables.
        seconds: wall time of the program for each member.
    """
    solved = _without_wrapper(jax.tree.map(np.asarray, solved))
    spread = _standard_errors(solved)
    results: list[Any] = []
    for i, member in enumerate(members):
        one = jax.tree.map(lambda a, i=i: a[i], solved)
        try:
            results.append(_trained(member, one, spread[i], seconds))
        except NumericalError as error:
            results.append(error)
    return results


def _without_wrapper(solved: Solved) -> Solved:
    """Return results whose kernels know no absent points."""
    family = eqx.tree_at(lambda f: f.kernel, solved.family, solved.family.kernel.kernel)
    sums = solved.sums
    if sums is not None:
        features = eqx.tree_at(lambda f: f.kernel, sums.features, sums.features.kernel.kernel)
        sums = Sums(features, sums.equations)
    return solved._replace(family=family, sums=sums)


def _standard_errors(solved: Solved) -> np.ndarray:
    """Return the standard errors of all scores, shape `b e s`."""
    folds = solved.validations.fold_scores
    flat = folds.reshape(-1, *folds.shape[2:])
    return np.stack([standard_error(scores)[..., 0] for scores in flat]).reshape(
        *folds.shape[:2], -1
    )


def _trained(member: Member, solved: Solved, spread: np.ndarray, seconds: float) -> Trained:
    """Return the result of one member."""
    config, (n, d), m = member.config, member.raw.X.shape, member.n_prototypes
    scaling = Standardization(*(a[:d] for a in solved.scaling))
    folds = member.folds
    if folds is None:
        width = -(-n // member.n_folds)
        folds = Folds(solved.folds.index[:, :width], solved.folds.valid[:, :width])
    Z = (member.raw.X - scaling.shift) / scaling.scale
    data = _data(member, scaling, Z, folds)
    numbers = solved.point_rows[:m]
    points = Points(Z[numbers], numbers, int(solved.selection_status))
    problem = problem_of(member.method, member.template, config, data, points)
    tuning = _tuning(problem, solved, spread)
    outcome = Outcome(problem, tuning, tuning.theta, config.C)
    choice = Choice(outcome, tuning.C, None, None, False)
    units, family = data.encoding.units, _family(solved, tuning, m, d)
    values = inverse_temperatures = conformal = None
    if config.out_of_fold:
        by_fold = solved.predictions[:, : folds.index.shape[1]]
        values = np.full((n, by_fold.shape[2]), np.nan, by_fold.dtype)
        values[folds.index[folds.valid]] = by_fold[folds.valid]
        values = units.values(values.reshape(n, *family.outputs))
        inverse_temperatures, conformal = calibrate(values, choice, data, None, machines=False)
    fitted = Fitted(
        choice, units.family(family, member.method.info_powers), _sums(solved, tuning, m, d), values,
        inverse_temperatures, conformal,
    )  # fmt: skip
    times = {"total": seconds, "batch": seconds}
    schema = member.raw.schema
    return trained_of(fitted, data, config, schema, points, times, member.preset)


def _data(member: Member, scaling: Standardization, Z: np.ndarray, folds: Folds) -> TrainingData:
    """Return the rows of a member as `read_table` does, on the host and without padding."""
    encoded, n = member.encoded, len(Z)
    encoding = member.encoding(Standardization(*jax.device_put(tuple(scaling))))
    rows = Rows(Z, encoding.targets(encoded.numbers, encoded.weights), member.weights, encoded.code)
    return TrainingData(
        source=InMemory(rows, rows, folds, folds, n),
        encoding=encoding,
        shape=member.shape,
        candidates=TrainingRows(Z, encoded.labels, member.weights, scaling, n),
        truth=encoded.numbers,
        weights=encoded.weights,
        weighted=member.raw.weighted,
        folds=folds,
        compared={},
        planning={},
    )


def _tuning(problem: Problem, solved: Solved, spread: np.ndarray) -> Tuning:
    """Return the outcome of the search.

    Raises:
        NumericalError: if no score can be trusted.
    """
    validations, C = solved.validations, problem.C
    history = [
        Evaluation(theta.astype(float), C, scores, errors, status, 0.0)
        for theta, scores, errors, status in zip(
            solved.thetas, validations.scores[..., 0], spread, validations.status, strict=True
        )
    ]
    return best_of(problem.template, problem.dtype, history, "finished")


def _sums(solved: Solved, tuning: Tuning, m: int, d: int) -> Sums | None:
    """Return the sums of the features of the prototypes that are not absent.

    The features of absent prototypes come last and are 0.
    """
    if solved.sums is None:
        return None
    phi, equations = solved.sums
    features = eqx.tree_at(
        lambda f: (f.kernel, f.prototypes, f.transform, f.shift),
        phi,
        (tuning.kernel, phi.prototypes[:m, :d], phi.transform[:m, :m], phi.shift[:m]),
    )
    equations = equations._replace(
        gram=equations.gram[:m, :m], cross=equations.cross[:m], feature_sum=equations.feature_sum[:m]
    )
    return jax.device_put(Sums(features, equations))


def _family(solved: Solved, tuning: Tuning, m: int, d: int) -> Family:
    """Return the machine without absent prototypes and columns of padding."""
    family = solved.family
    changed = Family(
        tuning.kernel, family.points[:m, :d], family.support[:, :m],
        family.coefficients[:, :, :m], family.intercepts, np.full(1, m, np.int32),
        family.statuses, family.info, family.outputs,
    )  # fmt: skip
    return jax.device_put(changed)
