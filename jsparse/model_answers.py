"""The predictions of a model: by a compiled program, or by NumPy for few rows."""

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ._arguments import check_held
from ._blocks import map_row_blocks
from ._numerics import is_concrete, is_traced
from ._runtime import check_fork
from .conformal import plain_scores
from .data.frames import as_frame
from .plain import is_plain, plain_expansion
from .prediction import Scorer
from .predictor import Predictor
from .predictor.answers import Answers
from .predictor.checks import rows_of
from .predictor.conformal import in_blocks


class ModelAnswers(Answers):
    """The predictions of `Model`, which has the fields.

    Within JAX's transformations they are JAX's arrays. Outside, the model's program computes them;
    on a CPU, NumPy predicts few rows, because it has no program to call. Both agree to rounding.

    This is no `equinox.Module`, whose methods are pytrees: each call would take 0.1 ms.
    """

    expansion: Any
    code: Any
    decoding: Any
    label_dtype: str
    columns: Any
    about: Any

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype in which the model computes."""
        return np.dtype(self.expansion.prototypes.dtype)

    def _scorer(self) -> Scorer:
        """Return the scorer of the model."""
        matrix = None if self.code is None else self.code.matrix
        return Scorer(self.expansion, matrix, self.decoding)

    def _machines(self) -> Scorer:
        """Return the scorer of the folds' machines, or of the model without such machines."""
        if self.conformal is None or self.conformal.machines is None:
            return self._scorer()
        machines = dataclasses.replace(self.conformal.machines, scaling=self.expansion.scaling)
        outputs = self.expansion.intercept.shape
        return self._scorer()._replace(expansion=machines, outputs=outputs)

    def scores(
        self, inputs: Float[np.ndarray, "n d"], *, first: int = 0, by_fold: bool = False
    ) -> np.ndarray:
        """Return the scores of an array of finite inputs, shape `n *k`.

        Args:
            inputs: raw inputs.
            first: number of the first row in error messages.
            by_fold: return the scores of each fold's machine, shape `n v *k`, if there are any.
        """
        predictor = self._predictor_of_few(len(inputs), by_fold)
        if predictor is not None:
            return predictor.scores(inputs, first=first, by_fold=by_fold)
        scorer = self._machines() if by_fold else self._scorer()
        return scorer.on_host(inputs, first=first)

    def _predictor_of_few(self, n_rows: int, by_fold: bool) -> Predictor | None:
        """Return the predictor of NumPy if it is the faster one for this number of rows."""
        check_fork()
        if self not in _PREDICTORS:
            _PREDICTORS[self] = self.to_numpy() if _suits_numpy(self) else None
        predictor = _PREDICTORS[self]
        if predictor is None or n_rows * predictor.n_prototypes(by_fold=by_fold) > _FEW_VALUES:
            return None
        return predictor

    def to_numpy(self) -> Predictor:
        """Return the model as arrays of NumPy that predict without JAX, see `jsparse.predictor`.

        The predictor has this size alone: for another size, convert `model.at(size)`.

        Raises:
            ValueError: for a kernel that is not one of this package's, such as a `Custom` kernel,
                which holds a Python function of JAX.
        """
        machine, code = plain_expansion(self.expansion), self.code
        temperatures = self.inverse_temperatures
        return Predictor(
            machine,
            None if temperatures is None else np.asarray(temperatures, float),
            plain_scores(self.conformal, machine),
            None if code is None else np.asarray(code.matrix, float),
            self.decoding,
            self.labels,
            self.label_dtype,
            self.columns,
            dict(self.about),
        )

    def _answer(self, X: Any, answer: Callable[[Any, Any], Any], *, by_fold: bool = False) -> Any:
        """Return `answer(scores, numpy)`, or `answer(scores, jax.numpy)` while JAX is tracing."""
        if is_traced(self, X):
            inputs, single = self._traced_inputs(X)
            scorer = self._machines() if by_fold else self._scorer()
            result = answer(scorer(inputs), jnp)
        else:
            inputs, single = self._inputs(X)
            result = answer(self.scores(inputs, by_fold=by_fold), np)
        return result[0, ...] if single else result

    def _labels_in(self, xp: Any, classes: np.ndarray) -> Any:
        return classes if xp is np else _jax_labels(classes)

    def _map_blocks_in(self, xp: Any) -> Callable[..., Any]:
        return in_blocks if xp is np else map_row_blocks

    def _traced_inputs(self, X: Any) -> tuple[Any, bool]:
        """Return the rows of a traced input, and whether the input was one row."""
        if not isinstance(X, jax.Array):  # a table, or rows of NumPy
            return self._inputs(X)
        single = X.ndim == 1
        return X[None] if single else X, single

    def _inputs(self, X: Any) -> tuple[np.ndarray, bool]:
        """Return the rows of an input as an array, and whether the input was one row."""
        frame = as_frame(X)
        if frame is not None and self.columns is not None:
            return frame.encode(self.columns, self.dtype.name), False
        # A table is taken for an array whose columns are in the order of training.
        values = X if frame is None else frame.table
        check_held("X", values)
        rows, single = rows_of(values, self.expansion.prototypes.shape[1], self.dtype)
        return rows, single and frame is None


# Number of kernel values up to which NumPy is faster than a compiled program, on two cores: for 100
# prototypes it takes a fiftieth of the time for one row, a tenth for 100, and all of it for 1,300.
_FEW_VALUES = 2**16

# The predictors of models that are in use, by the identity of the model.
_PREDICTORS: weakref.WeakKeyDictionary[ModelAnswers, Predictor | None] = weakref.WeakKeyDictionary()


def _suits_numpy(model: ModelAnswers) -> bool:
    """Return whether a model's arrays are in a CPU's memory, and its kernels are of this package.

    A `Custom` kernel has a Python function of JAX.
    """
    arrays = [leaf for leaf in jax.tree.leaves(model) if isinstance(leaf, jax.Array)]
    on_cpu = all(
        is_concrete(array) and all(device.platform == "cpu" for device in array.devices())
        for array in arrays
    )
    one_device = all(len(array.sharding.device_set) == 1 for array in arrays)
    return on_cpu and one_device and is_plain(model.expansion.kernel)


def _jax_labels(classes: np.ndarray) -> jax.Array:
    """Return labels as a JAX array.

    Raises:
        ValueError: if they are not numbers, or JAX's dtypes do not hold them.
    """
    labels = None
    if classes.dtype.kind in "biuf":
        held = classes.astype(jax.dtypes.canonicalize_dtype(classes.dtype))
        labels = jnp.asarray(held) if np.array_equal(held, classes) else None
    if labels is None:
        raise ValueError(
            f"predict: expected labels that JAX's arrays hold, as it is traced by jit, vmap, grad "
            f"or jax.export, got labels of dtype {classes.dtype}; use decision_function or "
            "predict_proba there, and Model.classes outside"
        )
    return labels
