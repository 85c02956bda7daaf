"""The rule that stops a path of machines of growing size."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .._arguments import whole_number
from .._repr import short_repr


class Stopping(NamedTuple):
    """The stopping rule of a path (Karsmakers 2011, eq. 38).

    A path ends with k prototypes if their cross-validated error differs from the mean error of the
    previous `window` sizes by at most `tolerance` times the error.
    """

    window: int = 10
    tolerance: float = 1e-3

    __repr__ = short_repr

    def check(self) -> None:
        """Raise a `ValueError` unless `window` is at least 1 and `tolerance` in [0, 1)."""
        whole_number("stopping.window", self.window, 1, 10**6, "a million")
        if not (isinstance(self.tolerance, int | float) and 0 <= self.tolerance < 1):
            raise ValueError(
                f"stopping.tolerance: expected a number between 0 and 1, got {self.tolerance!r}"
            )

    def path_length(self, scores: Float[np.ndarray, " k"]) -> int | None:
        """Return the length at which the path ends, given the errors of 1, 2, .. prototypes.

        None if the path does not end.
        """
        for k in range(self.window, len(scores)):
            mean = np.mean(scores[k - self.window : k])
            if abs(mean - scores[k]) <= self.tolerance * abs(scores[k]):
                return k + 1
        return None
