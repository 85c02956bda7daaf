"""How raw rows and targets become numbers, and what a machine says becomes answers."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from .._repr import short_repr
from ..multiclass import Code, output_code
from ..scaling import Standardization
from .settings import Config
from .target_units import TargetUnits


class Encoding(NamedTuple):
    """What was found out about a source before any machine was fitted to it."""

    scaling: Standardization
    classes: Shaped[np.ndarray, " k"] | None  # labels in sorted order; None for regression
    code: Code | None  # of more than two classes
    units: TargetUnits  # of real targets
    codes: tuple[int, ...] = ()  # columns that hold codes of categories

    __repr__ = short_repr

    @property
    def n_classes(self) -> int | None:
        """The number of classes; None for regression."""
        return None if self.classes is None else len(self.classes)


def code_of(config: Config, k: int, dtype: np.dtype) -> Code | None:
    """Return how `k` classes become binary problems; None for two classes.

    Raises:
        ValueError: for a code that the method cannot take.
    """
    if k <= 2:
        return None
    code = output_code(config.multiclass.scheme, k)
    config.method.check_code("multiclass", code)
    return code.astype(dtype)
