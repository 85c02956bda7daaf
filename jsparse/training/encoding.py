"""Encoding of raw inputs and targets: standardisation, class numbers, output codes, units."""

import functools
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Shaped

from .._programs import compiled
from .._repr import short_repr
from ..multiclass import Code, output_code
from ..scaling import Scaling, Standardization, standardize
from .settings import Config
from .target_units import TargetUnits


class Encoding(NamedTuple):
    """The encoding of raw inputs and targets, known before any machine is fitted."""

    scaling: Scaling  # of the inputs
    classes: Shaped[np.ndarray, " k"] | None  # labels in sorted order; None for regression
    code: Code | None  # binary problems of more than two classes
    units: TargetUnits  # of real targets
    codes: tuple[int, ...] = ()  # numbers of the columns that hold codes of categories

    __repr__ = short_repr

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the computations."""
        return np.dtype(self.scaling[0].dtype)

    def targets(
        self, y: Shaped[np.ndarray, " n *c"], weights: Float[np.ndarray, " n"] | None
    ) -> Shaped[np.ndarray, " n *c"]:
        """Return the targets that machines are fitted to, from real targets or class numbers.

        Real targets are in the machine's units, in float64, with 0 for rows of weight 0. Two
        classes are -1 and +1. With a code, the targets are the class numbers.
        """
        if self.classes is None:
            return self.units.apply(y, weights)
        return y.astype(np.int32) if self.code is not None else (2 * y - 1).astype(self.dtype)


def code_of(config: Config, k: int, dtype: np.dtype) -> Code | None:
    """Return the output code of `k` classes in `dtype`; None for two classes.

    If a method of the run cannot take the scheme in `Multiclass`, raise a `ValueError`.
    """
    if k <= 2:
        return None
    code = output_code(config.multiclass.scheme, k)
    for method in config.methods:
        method.check_code("multiclass", code)
    return code.astype(dtype)


def check_codes(X: Float[np.ndarray, "n d"], codes: tuple[int, ...]) -> None:
    """Raise a `ValueError` unless the columns of `X` with the numbers `codes` hold whole numbers.

    The column numbers increase. A number beyond the last column also raises.
    """
    if codes and codes[-1] >= X.shape[1]:
        raise ValueError(
            f"kernel: expected columns of categories among the {X.shape[1]} of X, got {codes}"
        )
    for column in codes:
        if np.any(X[:, column] != np.round(X[:, column])):
            raise ValueError(
                f"X: expected codes of categories in column {column}, got other numbers"
            )


def unscaled(scaling: Standardization, codes: tuple[int, ...]) -> Standardization:
    """Return the standardisation changed to leave the columns `codes` as they are."""
    shift, scale = (np.array(a) for a in scaling)
    shift[list(codes)], scale[list(codes)] = 0, 1
    return Standardization(*jax.device_put((shift, scale)))


def indicators(X: Float[np.ndarray, "n d"], codes: tuple[int, ...]) -> Float[np.ndarray, "n p"]:
    """Replace the columns `codes` by one indicator column for each category that they hold.

    All other columns come first.
    """
    numbers = np.delete(X, codes, axis=1)
    columns = [(X[:, c, None] == np.unique(X[:, c])).astype(X.dtype) for c in codes]
    return np.concatenate([numbers, *columns], axis=1)


@functools.partial(compiled, quickly=True)
def standardised(
    X: Float[Array, "r d"], weights: Float[Array, " r"]
) -> tuple[Standardization, Float[Array, "r d"]]:
    """Return the standardisation of weighted rows, and the standardised rows."""
    scaling = standardize(X, weights)
    return scaling, scaling.apply(X)


apply_scaling = compiled(lambda scaling, X: scaling.apply(X), quickly=True)
