"""Checks and encoding of users' targets and weights, and selection of rows of positive weight."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float, Int, Shaped

from .._arguments import check_finite, labels_of, on_host, real
from .._arguments import numbers as real_numbers
from .._repr import short_repr
from .._status import PrecisionWarning
from ..machines.method import Task
from ..predictor.checks import warn_caller
from ..validation.folds import Folds

MIN_STEPS = 2000  # a column with fewer steps of rounding within its range has three digits or less

ClassWeight = Literal["balanced"] | Mapping[Any, float] | None


def checked_targets(y: ArrayLike, n: int, task: Task) -> np.ndarray:
    """Check targets and return them: class labels, shape `n`, or numbers, shape `n` or `n c`.

    Unless `y` has `n` rows, and targets of a regression are finite numbers, raise a `ValueError`.
    """
    targets = labels_of("y", y) if task == "classification" else on_host("y", y)
    has_columns = task == "regression" and targets.ndim == 2 and targets.shape[1] > 0
    if targets.dtype.kind in "OU" and targets.ndim == 0:
        raise ValueError(
            f"y: expected {n} values, one for each row of X, got {y!r}; only a table has columns "
            "with names"
        )
    if targets.shape[:1] != (n,) or not (targets.ndim == 1 or has_columns):
        raise ValueError(f"y: expected {n} values, as many as rows of X, got shape {targets.shape}")
    if task == "regression":
        if targets.dtype.kind not in "biuf":
            raise ValueError(f"y: expected numbers for regression, got dtype {targets.dtype}")
        check_finite("y", targets)
    return targets


def encoded_targets(
    labels: np.ndarray, task: Task, classes: Sequence[Any] | ArrayLike | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return class numbers and the sorted labels; for regression, the targets and None.

    If `classes` is not None and lacks a label, raise a `ValueError`.
    """
    if task == "regression":
        return labels, None
    known = labels if classes is None else labels_of("classes", classes)
    if known.ndim != 1:
        raise ValueError(f"classes: expected a vector of labels, got shape {known.shape}")
    known, numbers = np.unique(known, return_inverse=True)
    if classes is not None:
        # Look labels up by hash, so that 1 equals 1.0 and True, but not "1".
        number_of = {label: number for number, label in enumerate(known.tolist())}
        unknown = set(labels.tolist()) - set(number_of)
        if unknown:
            raise ValueError(
                f"y: expected labels among {known.tolist()}, got {sorted(unknown, key=str)}"
            )
        numbers = np.array([number_of[label] for label in labels.tolist()])
    return numbers.reshape(-1).astype(np.int32), known


def check_labels(classes: np.ndarray, n: int, n_all: int) -> None:
    """Raise a `ValueError` for fewer than two classes, or nearly as many classes as rows.

    `classes` are the distinct labels of the `n` rows of positive weight, among `n_all` rows. Labels
    with fractions raise the error if there are more than half as many classes as rows.
    """
    if len(classes) < 2 and n < n_all:
        raise ValueError(
            "weights: expected some weight in every class, or at least in two, got weights above "
            f"0 only in {classes.tolist()}"
        )
    if len(classes) < 2:
        raise ValueError(f"y: expected at least two classes, got only {classes.tolist()}")
    fractions = classes.dtype.kind == "f" and np.any(classes != np.rint(classes))
    check_label_count(len(classes), n, 0.5 if fractions else 0.9)


def check_label_count(k: int, n: int, max_share: float = 0.9) -> None:
    """Raise a `ValueError` if `n > 20` rows have more than `max_share n` different labels."""
    if n > 20 and k > max_share * n:
        raise ValueError(
            f"y: expected class labels, got {k} different values in {n} rows; for numbers ask "
            "for task='regression'"
        )


def warn_if_rounded(
    name: str, values: Shaped[np.ndarray, " n *d"], dtype: np.dtype, names: Sequence[str] = ()
) -> None:
    """Give a `PrecisionWarning` if a column's range has fewer than `MIN_STEPS` steps of `dtype`.

    `values` is one column, or a table whose columns have `names`, by default their numbers. `name`
    is the argument that holds them. Columns of whole numbers that `dtype` holds exactly are exempt.
    """
    columns = values.reshape(len(values), -1)
    low, high = columns.min(axis=0), columns.max(axis=0)
    # Large integers differ by less than float64 can tell.
    width = high.astype(np.longdouble) - low.astype(np.longdouble)
    largest = np.maximum(np.abs(low.astype(float)), np.abs(high))
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.spacing(largest.astype(dtype))
    rounded = [
        j
        for j in np.flatnonzero((width > 0) & (width < MIN_STEPS * steps)).tolist()
        if not _are_exact(columns[:, j], dtype)
    ]
    if not rounded:
        return
    j, others = rounded[0], len(rounded) - 1
    what = name if values.ndim == 1 else f"column {names[j] if names else j} of {name}"
    also = f" (and {others} more)" if others else ""
    advice = "; subtract an offset from them"
    if np.dtype(dtype) != np.float64:
        advice += (
            ", or compute in float64 (jax.config.update('jax_enable_x64', True), and arrays in "
            "float64)"
        )
    warn_caller(
        f"{what}{also}: {np.dtype(dtype)} holds values of this size, {largest[j]:.6g}, in "
        f"steps of {steps[j]:.2g}, and they differ by at most {float(width[j]):.2g}{advice}",
        PrecisionWarning,
    )


def _are_exact(values: Shaped[np.ndarray, " n"], dtype: np.dtype) -> bool:
    """Return whether all values are whole numbers that `dtype` holds exactly."""
    return bool(
        np.array_equal(values.astype(dtype), values) and np.array_equal(np.rint(values), values)
    )


def checked_weights(weights: ArrayLike, n: int) -> np.ndarray:
    """Return row weights in float64; raise a `ValueError` unless all are >= 0 and some above 0."""
    w = real_numbers("weights", weights)
    expected = f"weights: expected {n} finite numbers of at least 0, one for each row, got"
    if w.shape != (n,):
        raise ValueError(f"{expected} shape {w.shape}")
    if not np.all(valid := (w >= 0) & np.isfinite(w)):
        raise ValueError(f"{expected} {w[~valid][0]}")
    if not np.any(w > 0):
        raise ValueError("weights: expected some above 0, got weights of zero only")
    return w


def row_weights(
    weights: ArrayLike | None,
    class_weight: ClassWeight,
    numbers: np.ndarray,
    classes: np.ndarray | None,
) -> np.ndarray | None:
    """Return row weights times the factors of the rows' classes; None if neither is stated.

    `numbers` are the class numbers of the rows, and `classes` the sorted labels. For regression
    they are the targets and None.
    """
    w = np.ones(len(numbers)) if weights is None else checked_weights(weights, len(numbers))
    if class_weight is None or classes is None:
        return None if weights is None else w
    return w * class_factors(class_weight, classes, np.bincount(numbers, w, len(classes)))[numbers]


def class_factors(
    class_weight: ClassWeight, classes: np.ndarray, class_sums: np.ndarray
) -> np.ndarray:
    """Return the weight factor of each class; a label that `class_weight` lacks has the factor 1.

    `classes` has the labels in sorted order, and `class_sums` the sum of each class's row weights.
    For unknown labels, or factors that are not positive numbers, raise a `ValueError`.
    """
    if isinstance(class_weight, str) and class_weight == "balanced":
        n_classes = np.count_nonzero(class_sums)  # classes that have weight
        return class_sums.sum() / (n_classes * np.where(class_sums > 0, class_sums, 1))
    if not isinstance(class_weight, Mapping):
        raise ValueError(
            f"class_weight: expected None, 'balanced' or a mapping, got {class_weight!r}"
        )
    unknown = sorted(set(class_weight) - set(classes.tolist()), key=str)
    if unknown:
        raise ValueError(f"class_weight: expected labels among y's, got {unknown}")
    factors = [class_weight.get(label, 1) for label in classes.tolist()]
    return np.array([real("class_weight", factor, 0.0, above=True) for factor in factors])


class WeightedRows(NamedTuple):
    """The rows of positive weight among the caller's rows.

    Rows of weight 0 are dropped before anything is computed. Random draws depend on the number of
    rows, so a row of weight 0 would otherwise change folds, prototypes and initial points.
    """

    n: int  # number of the caller's rows
    index: Int[np.ndarray, " k"]  # numbers of the rows of positive weight, in increasing order
    weights: Float[np.ndarray, " k"] | None  # their weights; None if all are 1

    __repr__ = short_repr

    def select(self, values: Shaped[np.ndarray, "n ..."]) -> Shaped[np.ndarray, "k ..."]:
        """Return the values of the rows of positive weight."""
        return values if len(self.index) == self.n else values[self.index]

    def spread(self, values: Float[np.ndarray, "k ..."]) -> Float[np.ndarray, "n ..."]:
        """Return values in the order of the caller's rows, with NaN for rows of weight 0."""
        if len(self.index) == self.n:
            return values
        all_values = np.full((self.n, *values.shape[1:]), np.nan, values.dtype)
        all_values[self.index] = values
        return all_values

    def folds_within(self, folds: Folds) -> Folds:
        """Drop rows of weight 0 from the caller's folds, and renumber the rows that remain.

        Unless each row of positive weight is in exactly one fold, and each row of weight 0 in at
        most one, raise a `ValueError`.
        """
        index, valid = np.asarray(folds.index), np.asarray(folds.valid)
        rows = index[valid]
        if not (np.isin(self.index, rows).all() and np.isin(rows, np.arange(self.n)).all()) or (
            len(np.unique(rows)) < len(rows)
        ):
            raise ValueError(
                f"folds: expected each of the {self.n} rows in exactly one fold; only rows of "
                "weight 0 may be in none"
            )
        if len(self.index) == self.n:
            return Folds(index, valid)
        new_number = np.full(self.n, -1, np.int32)
        new_number[self.index] = np.arange(len(self.index))
        members = [new_number[fold[used]] for fold, used in zip(index, valid, strict=True)]
        return Folds.of([fold[fold >= 0] for fold in members])

    def with_caller_rows(self, folds: Folds) -> Folds:
        """Return folds of the rows of positive weight, renumbered among the caller's rows."""
        if len(self.index) == self.n:
            return folds
        index, valid = np.asarray(folds.index), np.asarray(folds.valid)
        return Folds(np.where(valid, self.index[index], 0).astype(np.int32), valid)


def weighted_rows(weights: ArrayLike | None, n: int) -> WeightedRows:
    """Return the rows of positive weight among `n` rows; all rows if `weights` is None.

    Invalid weights raise a `ValueError`, see `checked_weights`.
    """
    if weights is None:
        return WeightedRows(n, np.arange(n), None)
    w = checked_weights(weights, n)
    index = np.flatnonzero(w > 0)
    return WeightedRows(n, index, w[index])
