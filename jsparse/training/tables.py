"""Construction of training data from rows in memory, and of a tuning problem from arrays."""

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Shaped

from .._agreement import same_rows
from .._arguments import whole_number
from .._blocks import capacity, padded
from .._mesh import check_mesh
from .._numerics import as_array
from .._repr import short_repr
from .._types import Key
from ..kernels import Kernel, Linear
from ..kernels.mixed import categorical_columns
from ..machines.fixed_size import FixedSize
from ..machines.method import Method, Shape, TrainingRows
from ..machines.rows import Rows, rows_of
from ..multiclass import Code
from ..scaling import normal_scores
from ..search.problem import Problem
from ..search.template import split_kernel
from ..validation.folds import Folds, plain_folds, stratified_folds
from ..validation.sharding import shard
from .choices import template_of
from .data import TrainingData
from .encoding import Encoding, apply_scaling, check_codes, code_of, standardised, unscaled
from .inputs import WeightedRows, check_labels, encoded_targets, row_weights
from .settings import Config, HoldOut
from .source import InMemory
from .target_units import TargetUnits, target_units


def prepare_table(
    X: Float[np.ndarray, "n d"],
    y: Shaped[np.ndarray, " n *c"],
    weighted: WeightedRows,
    config: Config,
    codes: tuple[int, ...] = (),
) -> TrainingData:
    """Encode, standardise and divide into folds the rows of positive weight.

    `X` and `y` are the checked raw inputs and targets of these rows, and `weighted` has their
    numbers among the caller's rows. The columns `codes` hold codes of categories. If the targets,
    folds, kernel or method do not fit the rows, raise a `ValueError`.
    """
    (n, d), dtype = X.shape, X.dtype
    numbers, classes, labels, weights, units, code = encode_rows(X, y, weighted, config)
    kernel = template_of(config.kernel, d, config.search, codes)
    codes = categorical_columns(kernel)
    check_codes(X, codes)
    folds = _folds_of(config, weighted, n, labels)
    # Check the settings against the rows before any work on the rows.
    in_fold = np.asarray(folds.valid).sum(axis=1)
    shape = shape_of(n, d, in_fold, classes, kernel)
    config.method.resolve(shape)
    padding = capacity(n)
    w = padded((np.ones(n) if weights is None else weights).astype(dtype), padding, "constant")
    table = padded(X, padding)
    scaling, Z = standardised(table, as_array(w))
    if config.columns == "ranks":
        if codes:
            raise ValueError(
                "columns: expected 'standard' if the kernel compares categories, got 'ranks'"
            )
        scaling = normal_scores(X, weights)
        Z = apply_scaling(scaling, jax.device_put(table))
    elif codes:
        scaling = unscaled(scaling, codes)
        Z = scaling.apply(jax.device_put(table))
    encoding = Encoding(scaling, classes, code, units, codes)
    targets = encoding.targets(numbers, weights)
    targets = targets.astype(dtype if code is None else np.int32)
    rows = Rows(Z, as_array(padded(targets, padding)), as_array(w), code)
    labels = None if labels is None else padded(labels, padding)
    return TrainingData(
        source=_placed(rows, padded_folds(folds, n, padding), n, config.resources.mesh),
        encoding=encoding,
        shape=shape,
        candidates=TrainingRows(Z, labels, w, scaling, n),
        truth=numbers,
        weights=weights,
        weighted=weighted,
        folds=folds,
        compared={
            "X": X,
            "y": numbers,
            "classes": classes,
            "weights": weights,
            "columns of categories": codes,
        },
        planning={"folds": len(folds.index)},
    )


class EncodedRows(NamedTuple):
    """The encoded targets and the weights of the rows of positive weight, on the host."""

    numbers: Shaped[np.ndarray, " n *c"]  # class numbers, or real targets
    classes: Shaped[np.ndarray, " k"] | None  # labels in sorted order; None for regression
    labels: Int[np.ndarray, " n"] | None  # class numbers; None for regression
    weights: Float[np.ndarray, " n"] | None  # row weights; None if all are 1
    units: TargetUnits
    code: Code | None

    __repr__ = short_repr


def encode_rows(
    X: Float[np.ndarray, "n d"],
    y: Shaped[np.ndarray, " n *c"],
    weighted: WeightedRows,
    config: Config,
) -> EncodedRows:
    """Return encoded targets and weights; arguments and errors are as for `prepare_table`."""
    numbers, classes = encoded_targets(y, config.task, config.multiclass.classes)
    weights = row_weights(weighted.weights, config.class_weight, numbers, classes)
    units, code, labels = TargetUnits(), None, None
    if classes is None:
        units = target_units(numbers, weights, X.dtype, robust=config.method.robust)
    else:
        present, labels = classes[np.unique(numbers)], numbers
        check_labels(present, len(X), weighted.n)
        config.method.check_classes(classes, len(present))
        code = code_of(config, len(classes), X.dtype)
    return EncodedRows(numbers, classes, labels, weights, units, code)


def shape_of(
    n: int,
    d: int,
    in_fold: Int[np.ndarray, " v"],
    classes: Shaped[np.ndarray, " k"] | None,
    kernel: Kernel,
) -> Shape:
    """Return the `Shape` of `n` rows of `d` columns; raise a `ValueError` if a fold has all rows.

    `in_fold` is the number of rows in each fold; `classes` is None for regression.
    """
    largest = int(in_fold.max())
    if largest == n:
        raise ValueError(
            "folds: expected at least one row with weight outside of each fold, got all "
            f"{n} rows in fold {int(np.argmax(in_fold))}"
        )
    n_classes = None if classes is None else len(classes)
    return Shape(n, n, n - largest, d, n_classes, linear=isinstance(kernel, Linear))


def _folds_of(config: Config, weighted: WeightedRows, n: int, labels: np.ndarray | None) -> Folds:
    """Return the folds of the `n` rows of positive weight: the caller's folds, or random ones.

    Random folds are stratified by the class numbers `labels`; None for regression.
    """
    folds = config.folds
    if isinstance(folds, HoldOut):
        raise ValueError("folds: expected a number or Folds for rows in memory, got a HoldOut")
    if isinstance(folds, Folds):
        return weighted.folds_within(folds)
    n_folds, key = number_of_folds(config, n), config.keys.folds
    if labels is None:
        return plain_folds(key, n, n_folds)
    return stratified_folds(key, labels, n_folds)


def number_of_folds(config: Config, n: int) -> int:
    """Return the number of random folds; if `n` rows are too few for it, raise a `ValueError`."""
    if n < 2:
        raise ValueError(f"X: expected at least two rows of positive weight, got {n}")
    n_folds = config.method.default_folds(n) if config.folds is None else config.folds
    return whole_number("folds", n_folds, 2, n, "the number of rows")


def padded_folds(folds: Folds, n: int, padding: int) -> Folds:
    """Pad folds of `n` rows, so that tables padded to `padding` rows have folds of equal shape.

    Only folds that are longer than an equal share of the rows may be padded to a larger shape.
    """
    v, r = folds.index.shape
    return folds.padded(max(-(-padding // v), capacity(r) if r > -(-n // v) else r))


def _placed(rows: Rows, folds: Folds, n: int, mesh: Mesh | None) -> InMemory:
    """Return padded rows in memory, `n` of them real; spread over the devices of a given mesh."""
    if mesh is None:
        return InMemory(rows, rows, folds, folds, n)
    placed, layout = shard(mesh, folds, rows)
    return InMemory(rows, placed, layout, folds, n)


@same_rows
def tuning_problem(
    kernel: Kernel,
    points: Float[Array, "m d"] | None,
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"] | Int[Array, " n"],
    folds: Folds,
    weights: Float[Array, " n"] | None = None,
    code: Code | None = None,
    *,
    method: Method = FixedSize(),
    key: Key | None = None,
    tune_kernel: bool = True,
    tune_matrices: bool = False,
    mesh: Mesh | None = None,
) -> Problem:
    """Return the problem of tuning the positive floating-point leaves of a kernel, and `C`.

    Args:
        kernel: the kernel with initial values of the leaves.
        points: prototypes or candidates, shape `m d`; None in the dual.
        X: inputs, shape `n d`, in the units of the points.
        y: targets, shape `n` or `n c`; with a `code`, class numbers.
        folds: see `validation.folds`.
        weights: row weights, shape `n`.
        code: output code of the binary problems, for several classes.
        method: the resolved method, see `Method.resolve`.
        key: PRNG key of the method's random draws.
        tune_kernel: False to tune `C` only.
        tune_matrices: also tune the matrices of `kernels.Projected`, by their elements instead of
            logs.
        mesh: devices over which the rows are spread, in fold order; see `validation.sharding`.

    Raises:
        ValueError: for a mesh with axes of type Explicit, a mesh with a method that needs more than
            sums over rows, or rows that differ between the processes of the mesh.
    """
    varied = {"tune_kernel": tune_kernel, "tune_matrices": tune_matrices}
    template = split_kernel(kernel, X.dtype, **varied)
    if mesh is not None:
        check_mesh(mesh)
        method.check_sums("mesh")
    code = None if code is None else code.astype(X.dtype)
    source = _placed(rows_of(X, y, weights, code), folds, len(X), mesh)
    C = np.asarray(method.values_of_C(None))
    return Problem(method, template, points, source, C, varied=varied, key=key)
