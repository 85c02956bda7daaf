"""`FromSums`: methods that need only sums over the rows."""

import abc
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from .._programs import compiled
from .._repr import short_repr
from .._types import CLike, Key, PointTable
from ..expansion import KernelExpansion
from ..features import FeatureMap
from ..kernels import Kernel
from ..multiclass import Code, accumulate_code
from ..normal_equations import NormalEquations, accumulate, accumulate_folds
from .family import Family
from .fold_machines import join_machines
from .held_out import HeldOut, OnFold, Sums, each_fold_and_C
from .method import MANY_C, Method
from .rows import FoldLayout, Rows


class FoldSums(NamedTuple):
    """The sums and rows from which cross-validation fits and predicts every fold, for any `C`."""

    total: Sums  # over all rows
    per_fold: NormalEquations  # sums of each fold, leading axis `v`
    parts: Rows  # the rows, laid out by folds

    __repr__ = short_repr


class FromSums(Method):
    """A method that needs only the `NormalEquations` of the rows, which are additive.

    Hence it works on streams and several devices, cross-validates by subtraction, and its
    estimator can offer `partial_fit`.
    """

    default_C: ClassVar[Float[np.ndarray, " s"]] = MANY_C

    def check_classes(self, classes: Shaped[np.ndarray, " k"], present: int) -> None:
        """See `Method.check_classes`; pass, as `partial_fit` may add rows of a missing class."""

    def check_sums(self, argument: str) -> Any:
        """See `Method.check_sums`."""
        return self

    @abc.abstractmethod
    def features(self, kernel: Kernel, points: Float[Array, "m d"]) -> FeatureMap:
        """Return the feature map of the points. The sums are of its features' products."""

    @abc.abstractmethod
    def solve(
        self, sums: Sums, C: CLike, code: Code | None = None, key: Key | None = None
    ) -> Family:
        """Return the machines fitted to the rows in the `sums`; other arguments as for `fit`."""

    def sum_rows(self, kernel: Kernel, points: PointTable, rows: Rows) -> Sums:
        """Return the sums over rows, which may be on several devices; arguments as for `fit`."""
        assert points is not None
        features = self.features(kernel, points)
        return Sums(features, accumulate_rows(features, rows))

    def fit(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None
    ) -> Family:
        """See `Method.fit`."""
        return self.fit_and_sum(kernel, points, C, rows, key)[0]

    def fit_and_sum(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None,
        sums: Sums | None = None,
    ) -> tuple[Family, Sums | None]:  # fmt: skip
        """See `Method.fit_and_sum`."""
        sums = self.sum_rows(kernel, points, rows) if sums is None else sums
        return self.solve(sums, C, rows.code, key), sums

    def held_out(
        self, kernel: Kernel, points: PointTable, C: Float[Array, " s"], rows: Rows,
        folds: FoldLayout, on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """See `Method.held_out`: the sums without a fold are the total less the fold's sums.

        See De Brabanter 2010, eq. 20-21. If some problems of a code leave out rows, each fold is
        fitted from the rows instead.
        """
        if rows.code is not None and not rows.code.shares_all_rows:
            return super().held_out(kernel, points, C, rows, folds, on_fold, key)
        total, per_fold, parts = self.fold_sums(kernel, points, rows, folds)
        return self.held_out_from_sums(total, per_fold, C, parts, on_fold, key)

    def fold_sums(
        self, kernel: Kernel, points: PointTable, rows: Rows, folds: FoldLayout,
        first_rows: Int[Array, ""] | None = None,
    ) -> FoldSums:  # fmt: skip
        """Return the sums of each fold and of all rows; arguments as for `held_out`.

        With `first_rows` the sums are only over so many rows of each fold, from its first.
        """
        assert points is not None
        parts = rows.by_fold(folds)
        features = self.features(kernel, points)
        per_fold = accumulate_parts(features, parts, first_rows=first_rows)
        return FoldSums(Sums(features, per_fold.joined), per_fold, parts)

    def held_out_from_sums(
        self, sums: Sums, per_fold: NormalEquations, C: Float[Array, " s"], parts: Rows,
        on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """Predict each fold, given the sums of each fold; by default solve for each fold and `C`.

        Args:
            sums: sums over all rows, with a column for each target.
            per_fold: sums of each fold, leading axis `v`. Rows in no fold are in `sums` alone.
            C: weights of the data-fit term, shape `s`.
            parts: rows to predict, laid out by folds.
            on_fold: reduces the predictions of each fold.
            key: decides random draws.
        """
        features, total = sums

        def fit(C: Float[Array, ""], fold: Int[Array, ""]) -> Family:
            training = total - NormalEquations(*(a[fold] for a in per_fold))
            training = training.with_outputs(parts.outputs)
            return self.solve(Sums(features, training), C, parts.code, key)

        return each_fold_and_C(fit, C, parts, on_fold)

    def fold_machines(
        self, kernel: Kernel, points: PointTable, C: CLike, size: int | None, rows: Rows,
        folds: Any, key: Key | None, sums: Sums | None,
    ) -> KernelExpansion:  # fmt: skip
        """See `Method.fold_machines`: subtract the sums of each fold, if there are `sums`."""
        if sums is None:
            return super().fold_machines(kernel, points, C, size, rows, folds, key, sums)
        machines, weights = [], np.asarray(rows.weights)
        for index, valid in zip(np.asarray(folds.index), np.asarray(folds.valid), strict=True):
            w = jnp.asarray(np.where(valid, weights[index], 0).astype(weights.dtype))
            X, y = rows_by_number(rows.X, rows.y, index)
            fold = Rows(X, y, w, rows.code)
            training = sums.equations - accumulate_rows(sums.features, fold)
            family = self.solve(Sums(sums.features, training), C, rows.code, key)
            machines.append(family.expansion if size is None else family.at(size))
        return join_machines(machines)


@compiled
def rows_by_number(X: Array, y: Array, numbers: Int[Array, " r"]) -> tuple[Array, Array]:
    """Return the inputs and targets of the rows with these numbers, in one program."""
    return X[numbers], y[numbers]


def accumulate_rows(features: FeatureMap, rows: Rows) -> NormalEquations:
    """Return the sums over rows: one for each class if some problems of a code leave out rows."""
    if rows.code is None:
        return accumulate(features, rows.X, rows.y, rows.weights, mesh=rows.mesh)
    return accumulate_code(rows.code, features, rows.X, rows.y, rows.weights, mesh=rows.mesh)


def accumulate_parts(
    features: FeatureMap,
    parts: Rows,
    *,
    block_rows: int | None = None,
    first_rows: Int[Array, ""] | None = None,
) -> NormalEquations:
    """Return the sums over each fold, given rows laid out by folds; a column for each target.

    Other arguments are as for `accumulate_folds`.
    """
    return accumulate_folds(
        features, parts.X, parts.target_columns, parts.weights,
        mesh=parts.mesh, block_rows=block_rows, first_rows=first_rows,
    )  # fmt: skip
