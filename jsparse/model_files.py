"""Save and load models."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ._files import PathLike
from .expansion import KernelExpansion
from .model import About, Model
from .model_contents import read


def save(
    path: PathLike, model: Model | KernelExpansion, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write a model; the model that `load` returns has equal predictions, to the last bit.

    A file holds what the model needs to predict. It includes these parts of the training data:

    - prototypes in standardised units, with the means and standard deviations of the columns. In
      most methods prototypes are training rows; in the method `Dual` they are all rows with weight;
    - the prototypes of all sizes. A model from `Model.at` has one size, and its file holds only the
      prototypes of this size;
    - the labels of the classes; for a table also the names of columns and target, categories, and
      the values that replace missing values;
    - some hundred quantiles of the errors on held-out rows, with the largest error, and the
      prototypes of the folds' machines if the model keeps these;
    - after `Model.with_novelty`, some hundred quantiles of the novelty of rows;
    - `about`: method, metric, error, `C` and the number of rows.

    Otherwise the size of the file does not grow with the number of rows.

    Args:
        path: the file to write. An existing file is replaced once the new file is complete.
        model: a model, or an expansion alone, as the pure functions give it.
        metadata: further facts about the model, values that JSON can hold; loaded as `Model.about`.

    Raises:
        ValueError: for a kernel that is not one of this package's (a `Custom` kernel holds a
            Python function, which a data file cannot carry), metadata that JSON cannot hold,
            numbers that are not finite, or a `model` of another type.
        OutputError: if the file cannot be written.
    """
    if isinstance(model, KernelExpansion):
        model = Model(model)
    if not isinstance(model, Model):
        raise ValueError(
            "model: expected a Model (such as `train(..).model`) or a KernelExpansion, got "
            f"{type(model).__name__}; the path comes first: save(path, model)"
        )
    if metadata:
        model = dataclasses.replace(model, about=About({**model.about, **metadata}))
    model.save(path)


def load(path: PathLike, *, dtype: str | None = None) -> Model:
    """Read a model that `save`, an estimator or `jsparse fit` has written.

    Args:
        path: the file.
        dtype: "float32" or "float64", to which every array is cast. By default the model keeps its
            dtype. If this is float64 while JAX's float64 is switched off, the model is cast to
            float32 with a `PrecisionWarning`; `dtype="float32"` casts it without the warning.

    Raises:
        ModelFileError: if the file is missing, empty, cut, altered, not a jsparse model, of a newer
            format, or its contents are not a model: unknown parts, shapes that do not fit together,
            numbers that are not finite.
        ValueError: if `dtype` is float64 while it is switched off in JAX, or a value is too large
            for `dtype`.
        UnusableJaxError: in a process forked after JAX had started.
    """
    contents = read(path, dtype)
    return Model(**contents._replace(about=About(contents.about))._asdict())
