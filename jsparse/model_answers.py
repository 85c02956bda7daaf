"""The predictions of a model: by a compiled program, or by NumPy for few rows."""

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ._arguments import check_held, on_host
from ._blocks import map_row_blocks
from ._numerics import is_concrete, is_traced
from ._runtime import check_runtime, on_cpu
from .data.frames import as_frame
from .plain import is_plain
from .prediction import Scorer
from .predictor import Predictor
from .predictor.answers import Answers
from .predictor.checks import NameRow, row_index, rows_of
from .predictor.conformal import in_blocks


class ModelAnswers(Answers):
    """The methods of `Model` that predict. `Model` inherits them, and defines the fields.

    Within JAX's transformations they return JAX arrays. Otherwise a compiled program computes the
    predictions, or for few rows on a CPU NumPy, which is faster. Both agree to rounding.
    """

    @staticmethod
    def _answer(
        model: Any, X: Any, answer: Callable[[Any, Any], Any], *, by_fold: bool = False
    ) -> Any:
        """Return `answer(scores, numpy)`, or `answer(scores, jax.numpy)` while JAX is tracing."""
        if is_traced(model, X):
            inputs, single = traced_inputs(model, X)
            result = answer(scorer_of(model, by_fold=by_fold)(inputs), jnp)
        else:
            inputs, single = inputs_of(model, X)
            result = answer(scores_of_rows(model, inputs, by_fold=by_fold), np)
        return result[0, ...] if single else result

    @staticmethod
    def _labels_in(xp: Any, classes: np.ndarray) -> Any:
        return classes if xp is np else _jax_labels(classes)

    @staticmethod
    def _map_blocks_in(xp: Any) -> Callable[..., Any]:
        return in_blocks if xp is np else map_row_blocks


def scorer_of(model: Any, *, by_fold: bool = False) -> Scorer:
    """Return the function from inputs to scores of a `Model`.

    With `by_fold` it has the scores of the folds' machines, if the model has any.
    """
    expansion, conformal = model.expansion, model.conformal
    matrix = None if model.code is None else model.code.matrix
    scorer = Scorer(expansion, matrix, model.decoding, in_order=len(model.quantiles) > 1)
    if not by_fold or conformal is None or conformal.machines is None:
        return scorer
    machines = dataclasses.replace(conformal.machines, scaling=expansion.scaling)
    return scorer._replace(expansion=machines, outputs=expansion.intercept.shape)


def scores_of_rows(
    model: Any,
    inputs: Float[np.ndarray, "n d"],
    *,
    name_row: NameRow = row_index,
    by_fold: bool = False,
) -> np.ndarray:
    """Return `Model.scores`: by NumPy for few rows on a CPU, else by a compiled program."""
    check_runtime()
    if model not in _PREDICTORS:
        _PREDICTORS[model] = model.to_numpy() if _suits_numpy(model) else None
    predictor, n = _PREDICTORS[model], len(inputs)
    if predictor is not None and n * predictor.n_prototypes(by_fold=by_fold) <= _FEW_VALUES:
        return predictor.scores(inputs, name_row=name_row, by_fold=by_fold)
    return scorer_of(model, by_fold=by_fold).on_host(inputs, name_row=name_row)


def traced_inputs(model: Any, X: Any) -> tuple[Any, bool]:
    """Return the rows of an input within JAX's transformations, and whether it was one row."""
    if not isinstance(X, jax.Array):  # a table, or rows of NumPy
        return inputs_of(model, X)
    single = X.ndim == 1
    return X[None] if single else X, single


def inputs_of(model: Any, X: Any) -> tuple[np.ndarray, bool]:
    """Return the rows of an array or table as a NumPy array, and whether it was one row."""
    frame = as_frame(X)
    if frame is not None and model.columns is not None:
        return frame.encode(model.columns, model.dtype.name), False
    # A table is taken for an array whose columns are in the order of training.
    values = X if frame is None else frame.table
    check_held("X", values)
    rows, single = rows_of(values, model.expansion.prototypes.shape[1], model.dtype)
    return rows, single and frame is None


def targets_of(model: Any, X: Any, y: Any) -> np.ndarray:
    """Return the targets of rows: `y`, or the column of the table `X` that has the name `y`.

    Raise ValueError for a name, unless rows and training rows are tables.
    """
    if not isinstance(y, str):
        return on_host("y", y)
    frame = as_frame(X)
    if frame is None or model.columns is None:
        what = "the model was trained on an array" if frame is not None else "X is an array"
        raise ValueError(f"y: expected targets, one for each row, as {what}, got the name {y!r}")
    return frame.targets(model.columns, y)


# Number of kernel values up to which NumPy predicts. With 100 prototypes on two cores, NumPy takes
# 1/50 of the compiled program's time for one row, 1/10 for 100 rows, and equal time for 1,300.
_FEW_VALUES = 2**16

# Predictors by the identity of their model, as long as the model exists. None for models that NumPy
# cannot evaluate.
_PREDICTORS: weakref.WeakKeyDictionary[Any, Predictor | None] = weakref.WeakKeyDictionary()


def _suits_numpy(model: Any) -> bool:
    """Return whether a model's arrays are on one CPU device, and its kernels are jsparse's own.

    NumPy cannot evaluate a `Custom` kernel, which holds a function of JAX.
    """
    arrays = [leaf for leaf in jax.tree.leaves(model) if isinstance(leaf, jax.Array)]
    held_by_cpus = all(is_concrete(array) and on_cpu(*array.devices()) for array in arrays)
    one_device = all(len(array.sharding.device_set) == 1 for array in arrays)
    return held_by_cpus and one_device and is_plain(model.expansion.kernel)


def _jax_labels(classes: np.ndarray) -> jax.Array:
    """Return labels as a JAX array; raise ValueError unless they are numbers that JAX can hold."""
    if classes.dtype.kind in "biuf":
        held = classes.astype(jax.dtypes.canonicalize_dtype(classes.dtype))
        if np.array_equal(held, classes):
            return jnp.asarray(held)
    raise ValueError(
        "predict: expected labels that JAX's arrays hold, as it is traced by jit, vmap, grad or "
        f"jax.export, got labels of dtype {classes.dtype}; use decision_function or "
        "predict_proba there, and Model.classes outside"
    )
