"""The machine `f(x) = sum_j beta_j k(z_j, s(x)) + b` in NumPy."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .kernels import Kernel

_ENTRIES = 2**17  # number of kernel values in a block of rows, which stays in the cache


@dataclasses.dataclass(frozen=True, eq=False)
class Standardization:
    """The affine map `x -> (x - shift) / scale`, column by column; both of shape `d`."""

    shift: np.ndarray
    scale: np.ndarray

    def map_in(self, dtype: np.dtype) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function that maps raw rows to rows of `dtype` in scaled units."""
        shift, scale = self.shift.astype(dtype), self.scale.astype(dtype)
        return lambda X: (X - shift) / scale


@dataclasses.dataclass(frozen=True, eq=False)
class NormalScores:
    """A map for each column: non-decreasing, piecewise linear, constant beyond the outer knots.

    Attributes:
        knots: raw values of each column, increasing, shape `k d`. The last may be repeated.
        scores: scaled values at the knots, shape `k d`.
    """

    knots: np.ndarray
    scores: np.ndarray

    def map_in(self, dtype: np.dtype) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function that maps raw rows to rows of `dtype` in scaled units."""
        knots, scores = (np.ascontiguousarray(a.T) for a in (self.knots, self.scores))

        def mapped(X: np.ndarray) -> np.ndarray:
            out = np.empty(X.shape, dtype)
            for j, (x, y) in enumerate(zip(knots, scores, strict=True)):
                out[:, j] = np.interp(X[:, j], x, y)
            return out

        return mapped


Scaling = Standardization | NormalScores


@dataclasses.dataclass(frozen=True, eq=False)
class Machine:
    """A sparse kernel machine, as `jsparse.expansion.KernelExpansion`.

    Attributes:
        kernel: kernel of two points, or a `Mixture`, which has one for each prototype.
        prototypes: points in scaled units, shape `m d`.
        coefficients: one column for each output, shape `m` or `m c`.
        intercept: shape `()` or `c`.
        scaling: map from raw inputs to scaled units; None for the identity.
    """

    kernel: Kernel
    prototypes: np.ndarray
    coefficients: np.ndarray
    intercept: np.ndarray
    scaling: Scaling | None = None

    @property
    def dtype(self) -> np.dtype:
        """The dtype in which the machine computes."""
        return self.prototypes.dtype

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Return the values at rows of raw inputs in the machine's dtype, shape `n` or `n c`."""
        step = max(1, _ENTRIES // len(self.prototypes))
        with np.errstate(all="ignore"):  # the caller checks values, to name the row
            if len(X) <= step:
                return self._block(X)
            blocks = [self._block(X[i : i + step]) for i in range(0, len(X), step)]
            return np.concatenate(blocks)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone, which can be pickled."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _block(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function that evaluates the machine at a block of rows."""
        kernel_values = self.kernel.at(self.prototypes)
        scaled = None if self.scaling is None else self.scaling.map_in(self.dtype)
        coefficients, intercept = self.coefficients, self.intercept

        def values(X: np.ndarray) -> np.ndarray:
            return kernel_values(X if scaled is None else scaled(X)) @ coefficients + intercept

        return values
