"""Rows that are in memory, as training takes them."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from .._blocks import capacity, padded
from .._mesh import on_default_device
from .._numerics import as_array
from .._programs import compiled
from ..expansion import KernelExpansion
from ..kernels import Kernel, Linear
from ..kernels.mixed import categorical_columns
from ..machines.method import Additive, Method, Points, Shape, TrainingRows, rows_at
from ..multiclass import Code, output_code
from ..scaling import Standardization, standardize
from ..search.problem import Problem, Scoring, in_memory, split_kernel
from ..validation.folds import Folds
from ..validation.sharding import ShardedFolds, in_row_order
from .categories import check_codes, indicators, unscaled
from .choices import make_folds, template_of
from .counting import CountingRows
from .inputs import check_labels, encoded_targets, row_weights
from .plan import Plan, check_fits, counted, fitting, plan
from .settings import HoldOut, Settings
from .target_units import TargetUnits, target_units


class ArrayData:
    """Raw inputs and targets in memory, of the rows that count.

    Args:
        asked: what the run is asked for.
        X: finite raw inputs of the rows that count.
        y: labels or real targets, from `checked_targets`, of the rows that count.
        counting: which of the caller's rows count, and their weights.
        codes: the columns that hold codes of categories, for the kernel to compare.
    """

    scaling: Standardization

    def __init__(
        self,
        asked: Settings,
        X: Float[np.ndarray, "n d"],
        y: Shaped[np.ndarray, "n *c"],
        counting: CountingRows,
        codes: tuple[int, ...] = (),
    ) -> None:
        self.asked = asked
        self.X, self.counting = X, counting
        self.n_rows, d = self.X.shape
        self.rows = capacity(self.n_rows)
        self.dtype = self.X.dtype
        self.numbers, self.classes = encoded_targets(y, asked.task, asked.multiclass.classes)
        self.weights = row_weights(counting.weights, asked.class_weight, self.numbers, self.classes)
        self.units, self.code = TargetUnits(), None
        if self.classes is None:
            self.units = target_units(
                self.numbers, self.weights, self.dtype, robust=asked.method.robust
            )
        else:
            check_labels(self.classes[np.unique(self.numbers)], self.n_rows, counting.n)
            self.code = self._code(asked.method, self.classes)
        if isinstance(asked.folds, HoldOut):
            raise ValueError("folds: expected a number or Folds for rows in memory, got a HoldOut")
        self.given_codes = codes
        self.template = template_of(asked.kernel, d, asked.search, codes)
        self.codes = categorical_columns(self.template)
        check_codes(self.X, self.codes)
        labels = None if self.classes is None else self.numbers
        folds = asked.folds
        if isinstance(folds, Folds):
            folds = counting.folds_within(folds)
        self.folds = make_folds(asked.keys.folds, folds, self.n_rows, labels)

    def _code(self, method: Method, classes: np.ndarray) -> Code | None:
        if not isinstance(method, Additive) and len(np.unique(self.numbers)) < len(classes):
            raise ValueError(
                f"classes: expected rows of all of them with {type(method).__name__}, got none of "
                f"some of {classes.tolist()}"
            )
        return code_of(self.asked, len(classes), self.dtype)

    @property
    def targets(self) -> Float[np.ndarray, "r *c"] | Int[np.ndarray, " r"]:
        """As the machine sees them: in its units, -1 and +1, or class numbers."""
        if self.code is not None:
            return padded(self.numbers.astype(np.int32), self.rows)
        values = 2 * self.numbers - 1
        if self.classes is None:
            values = np.asarray(self.units.apply(self.numbers, self.weights))
        return padded(values.astype(self.dtype), self.rows)

    def compared(self) -> dict[str, Any]:
        """Return what must be the same in all processes of a mesh."""
        return {
            "X": self.X,
            "y": self.numbers,
            "classes": self.classes,
            "weights": self.weights,
            "columns of categories": self.given_codes,
        }

    def take(self, asked: Settings) -> None:
        """Settings that rows were needed to decide: kernel and search."""
        self.asked = asked
        d = self.X.shape[1]
        self.template = template_of(asked.kernel, d, asked.search, self.given_codes)

    def settled(self, method: Method) -> Method:
        """The method for these rows, if they and the memory allow it."""
        asked, (n, d) = self.asked, self.X.shape
        in_folds = _rows_of_folds(self.folds, n, every=method.is_path)
        classes = None if self.classes is None else len(self.classes)
        linear = isinstance(self.template, Linear)
        method = method.settled(Shape(n, n, n - int(in_folds.max()), d, classes, linear))
        if method.memory is not None:
            planned = self._plan(method)
            if asked.method.grows:
                method = fitting(method, planned)
                planned = self._plan(method)
                assert method.memory is not None
            check_fits(planned, method.memory, counted(method))
        return method

    def _plan(self, method: Method) -> Plan:
        asked, (n, d) = self.asked, self.X.shape
        assert method.memory is not None
        return plan(
            n, d, method.memory, folds=len(self.folds.index), code=self.code,
            n_C=asked.C.size, dtype=self.dtype, memory=asked.resources.memory,
        )  # fmt: skip

    def standardised(self) -> TrainingRows:
        """The rows that points are chosen from: all."""
        w = np.ones(self.n_rows) if self.weights is None else self.weights
        self.w = padded(w.astype(self.dtype), self.rows, "constant")
        self.scaling, self.Z = _standardised(padded(self.X, self.rows), self.w)
        if self.codes:
            self.scaling = unscaled(self.scaling, self.codes)
            self.Z = self.scaling.apply(jax.device_put(padded(np.asarray(self.X), self.rows)))
        labels = None if self.classes is None else padded(self.numbers, self.rows)
        return TrainingRows(self.Z, labels, self.w, self.scaling, self.n_rows)

    def points(self, method: Method) -> Points:
        """Which points may carry the model; categories have indicators while they are chosen."""
        rows = self.standardised()
        key = self.asked.keys.points
        if not self.codes:
            return method.points(key, self.template, rows)
        X = jax.device_put(indicators(np.asarray(rows.X), self.codes))
        X = _standardised(X, self.w)[1]
        found = method.points(key, self.template, rows._replace(X=X))
        if found.X is None or found.X.shape[1] == self.Z.shape[1]:
            return found
        if found.rows is None:
            raise ValueError(
                f"{type(method).__name__}: expected prototypes that are rows, as some columns hold "
                "categories, which have no means"
            )
        return found._replace(X=rows_at(self.Z, found.rows))

    def problem(self, method: Method, points: Float[Array, "m d"] | None) -> Problem:
        """The tuning problem."""
        asked = self.asked
        tuned, fixed = split_kernel(self.template, self.dtype, **asked.search.varied)
        targets, weights = as_array(self.targets), as_array(self.w)
        rows = in_memory(
            self.Z, targets, self._padded_folds(), weights, self.code, asked.resources.mesh
        )
        return Problem(method, tuned, fixed, points, rows, asked.keys.method, asked.metric)

    def rows_in_memory(self) -> tuple[Float[Array, "r d"], Float[Array, "r c"], Float[Array, " r"]]:
        """Return standardised inputs, targets and weights in the rows' own order, on one device."""
        self.standardised()
        targets, weights = as_array(self.targets), as_array(self.w)
        return in_memory(
            self.Z, targets, self._padded_folds(), weights, self.code, None
        ).rows_in_memory()

    def _padded_folds(self) -> Folds:
        """The folds with room for those of any table of the same capacity."""
        index, valid = (np.asarray(a) for a in self.folds)
        v, r = index.shape
        room = max(-(-self.rows // v), capacity(r) if r > -(-self.n_rows // v) else r)
        wide = [(0, 0), (0, room - r)]
        return Folds(np.pad(index, wide), np.pad(valid, wide))

    def predictions(
        self, problem: Problem, kernel: Kernel, C: np.ndarray, scoring: Scoring, size: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Out-of-fold values for every `C`, shape `s n *c`, and stop codes."""
        found = problem.source.validate(problem, kernel, as_array(C, self.dtype), scoring, size)
        assert found.predictions is not None
        mesh = self.asked.resources.mesh
        predictions, status = on_default_device(mesh, (found.predictions, found.status))
        return np.stack([self._ordered(each) for each in predictions]), np.asarray(status)

    def in_order(self, values: Float[Array, "r *c"]) -> np.ndarray:
        """Values of the rows without the padding, in their order, shape `n *c`."""
        return self._ordered(on_default_device(self.asked.resources.mesh, values))

    def _ordered(self, values: Float[Array, "r *c"]) -> np.ndarray:
        if self.asked.resources.mesh is not None:
            values = in_row_order(self.folds, ShardedFolds(len(self.folds.index)), values)
        shape = self.numbers.shape[1:] if self.code is None else (-1,)
        return np.asarray(values)[: self.n_rows].reshape(self.n_rows, *shape)

    def scored(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Class numbers, or targets, and weights of the rows that are predicted out of fold."""
        return self.numbers, self.weights

    def rows_of(self, chosen: np.ndarray | None) -> np.ndarray | None:
        """Numbers, among the caller's rows, of the rows that points are."""
        return None if chosen is None else self.counting.index[chosen]

    def for_caller(self, values: np.ndarray | None) -> np.ndarray | None:
        """Values of the caller's rows, NaN for a row of weight 0."""
        return None if values is None else self.counting.spread(values)

    @property
    def folds_of_caller(self) -> Folds:
        """The folds by the numbers of the caller's rows."""
        return self.counting.folds_of_caller(self.folds)


@functools.partial(compiled, quickly=True)
def _standardised(
    X: Float[Array, "r d"], weights: Float[Array, " r"]
) -> tuple[Standardization, Float[Array, "r d"]]:
    scaling = standardize(X, weights)
    return scaling, scaling.apply(X)


def some_prototypes(expansion: KernelExpansion, kept: Int[np.ndarray, " k"]) -> KernelExpansion:
    """A machine without the prototypes that it does not need; on the host."""
    cut = (
        jax.device_put(np.asarray(a)[kept]) for a in (expansion.prototypes, expansion.coefficients)
    )
    prototypes, coefficients = cut
    return dataclasses.replace(expansion, prototypes=prototypes, coefficients=coefficients)


def code_of(asked: Settings, k: int, dtype: jnp.dtype) -> Code | None:
    """How `k` classes become problems of two; None for two.

    Raises:
        ValueError: for a code that the method cannot take.
    """
    if k <= 2:
        return None
    code = output_code(asked.multiclass.scheme, k)
    if asked.method.shares_rows and not code.shares_all_rows:
        raise ValueError(
            "multiclass: expected a scheme in which every problem sees every class, such as "
            "'one_versus_rest'; their paths are of one system"
        )
    return code.astype(dtype)


def _rows_of_folds(folds: Folds, n: int, *, every: bool) -> Int[np.ndarray, " v"]:
    """Rows in every fold, of `n` in all; if asked for, each must have some, and leave some."""
    rows = np.asarray(folds.valid).sum(axis=1)
    empty = np.flatnonzero((rows == 0) | (rows == n))
    if every and len(empty) > 0:
        raise ValueError(
            f"folds: expected rows with weight in every fold and outside of it; fold {empty[0]} "
            f"has {rows[empty[0]]} of {n}"
        )
    return rows
