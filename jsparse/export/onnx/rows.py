"""Rows and prototypes as tensors, whose affine maps are merged into few nodes."""

import dataclasses
import functools

import numpy as np

from .graph import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """The inputs `(raw - shift) / scale` of rows, in the units of the prototypes.

    Attributes:
        raw: shape `n d`.
        shift: shape `d`, float64; None for 0.
        scale: shape `d`, float64; None for 1.
    """

    raw: Tensor
    shift: np.ndarray | None = None
    scale: np.ndarray | None = None

    @functools.cached_property
    def tensor(self) -> Tensor:
        """The scaled inputs, shape `n d`, by the operations that the model computes them with."""
        dtype, tensor = self.raw.graph.dtype, self.raw
        tensor = tensor if self.shift is None else tensor - self.shift.astype(dtype)
        return tensor if self.scale is None else tensor / self.scale.astype(dtype)

    def columns(self, numbers: np.ndarray) -> "Rows":
        """Return the columns with these numbers."""
        shift, scale = (None if a is None else a[numbers] for a in (self.shift, self.scale))
        return Rows(self.raw.columns(numbers), shift, scale)


@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """Prototypes, as an array of shape `m d` and as a tensor that depends on constants alone."""

    array: np.ndarray
    tensor: Tensor

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.array.shape[1]

    def columns(self, numbers: np.ndarray) -> "Points":
        """Return the columns with these numbers."""
        return Points(self.array[:, numbers], self.tensor.columns(numbers))

    def rows(self, numbers: np.ndarray) -> "Points":
        """Return the prototypes with these numbers."""
        return Points(self.array[numbers], self.tensor.rows(numbers))


def centred(
    X: Rows, Z: Points, unit: np.ndarray, matrix: np.ndarray | None = None
) -> tuple[Tensor, Tensor]:
    """Return rows and prototypes less a common centre, divided by `unit`, times `matrix`.

    Their shapes are `n d` and `m d`, or with a matrix `n r` and `m r`.

    The centre is near the mean of the prototypes, so that an offset of the data costs no digits. It
    is rounded to the graph's dtype in the units of the raw rows, and the prototypes are centred at
    the same point. So all other rounding is relative to the differences.

    Args:
        X: `n` rows.
        Z: `m` prototypes.
        unit: divisor of each column, in scaled units, shape `d`.
        matrix: shape `d r`; None for the identity.
    """
    dtype = X.raw.graph.dtype
    shift = 0.0 if X.shift is None else X.shift
    scale = 1.0 if X.scale is None else X.scale
    raw_centre = (shift + scale * Z.array.mean(axis=0, dtype=float)).astype(dtype)
    centre = ((raw_centre - shift) / scale).astype(dtype)
    U, V, raw_unit = X.raw - raw_centre, Z.tensor - centre, scale * unit
    if matrix is None:
        return U * (1 / raw_unit).astype(dtype), V * (1 / unit).astype(dtype)
    to_U, to_V = ((matrix / step[:, None]).astype(dtype) for step in (raw_unit, unit))
    return U @ to_U, V @ to_V
