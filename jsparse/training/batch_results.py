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

# Axes of arrays that count prototypes (m) or columns (d), by the name of the field.
_AXES = {
    "points": "md", "prototypes": "md", "support": ".m", "coefficients": "..m", "transform": "mm",
    "shift": "m", "gram": "mm", "cross": "m", "feature_sum": "m",
}  # fmt: skip


def trained_members(members: list[Member], solved: Any, seconds: float) -> list[Any]:
    """Return a `Trained` for each member, or the error of a member without a result.

    Args:
        members: the members of the batch.
        solved: a `batch.Solved`, with a leading axis of at least as many tables.
        seconds: wall time of the program for each member.
    """
    solved = jax.tree.map(np.asarray, solved)
    machines, spread = _Machines(solved), _standard_errors(solved)
    results: list[Any] = []
    for i, member in enumerate(members):
        one = jax.tree.map(lambda a, i=i: a[i], solved._replace(family=None, sums=None))
        one = one._replace(**machines.of(i, member.n_prototypes, member.shape.d))
        try:
            results.append(_trained(member, one, spread[i], seconds))
        except NumericalError as error:
            results.append(error)
    return results


class _Machines:
    """The machines and sums of a batch, whose kernels know no absent points.

    Args:
        solved: a `batch.Solved`, on the host.
    """

    def __init__(self, solved: Any) -> None:
        family = eqx.tree_at(lambda f: f.kernel, solved.family, solved.family.kernel.kernel)
        sums = solved.sums
        if sums is not None:
            features = eqx.tree_at(lambda f: f.kernel, sums.features, sums.features.kernel.kernel)
            sums = sums._replace(features=features)
        with_paths, self.structure = jax.tree_util.tree_flatten_with_path((family, sums))
        self.leaves = [leaf for _, leaf in with_paths]
        self.axes = [_AXES.get(getattr(path[-1], "name", ""), "") for path, _ in with_paths]

    def of(self, i: int, m: int, d: int) -> dict[str, Any]:
        """Return the family and the sums of member `i`, without padding.

        Args:
            i: the number of the member.
            m: its number of prototypes.
            d: its number of columns.
        """
        lengths = {"m": slice(m), "d": slice(d), ".": slice(None)}
        cut = [
            leaf[(i, *(lengths[axis] for axis in axes))]
            for leaf, axes in zip(self.leaves, self.axes, strict=True)
        ]
        family, sums = self.structure.unflatten(jax.device_put(cut))
        return {"family": dataclasses.replace(family, sizes=np.full(1, m, np.int32)), "sums": sums}


def _standard_errors(solved: Any) -> np.ndarray:
    """Return the standard errors of all scores, shape `b e s`."""
    folds = solved.validations.fold_scores
    flat = folds.reshape(-1, *folds.shape[2:])
    return np.stack([standard_error(scores)[..., 0] for scores in flat]).reshape(
        *folds.shape[:2], -1
    )


def _trained(member: Member, solved: Any, spread: np.ndarray, seconds: float) -> Trained:
    """Return the result of one member."""
    config, (n, d) = member.config, member.raw.X.shape
    scaling = Standardization(*(a[:d] for a in solved.scaling))
    folds = member.folds
    if folds is None:
        width = -(-n // member.common.steps.n_folds)
        folds = Folds(solved.folds.index[:, :width], solved.folds.valid[:, :width])
    Z = (member.raw.X - scaling.shift) / scaling.scale
    data = _data(member, scaling, Z, folds)
    numbers = solved.point_rows[: member.n_prototypes]
    points = Points(solved.family.points, numbers, int(solved.selection_status))
    problem = problem_of(member.common.method, member.common.template, config, data, points)
    tuning = _tuning(problem, solved, spread)
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
        choice, units.family(family, member.common.method.info_powers), solved.sums, values,
        inverse_temperatures, conformal,
    )  # fmt: skip
    times = {"total": seconds, "batch": seconds}
    schema = member.raw.schema
    return trained_of(fitted, data, config, schema, points, times, member.preset)


def _data(member: Member, scaling: Standardization, Z: np.ndarray, folds: Folds) -> TrainingData:
    """Return the rows of a member as `read_table` does, on the host and without padding."""
    encoded, n = member.encoded, len(Z)
    w, targets = member.weights, member.targets
    X, y, weights, *arrays = jax.device_put((Z, targets, w, *scaling))
    encoding, rows = member.encoding(Standardization(*arrays)), Rows(X, y, weights, encoded.code)
    return TrainingData(
        source=InMemory(rows, rows, folds, folds, n),
        encoding=encoding,
        shape=member.shape,
        candidates=TrainingRows(X, encoded.labels, w, encoding.scaling, n),
        truth=encoded.numbers,
        weights=encoded.weights,
        weighted=member.raw.weighted,
        folds=folds,
        compared={},
        planning={},
    )


def _tuning(problem: Problem, solved: Any, spread: np.ndarray) -> Tuning:
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
