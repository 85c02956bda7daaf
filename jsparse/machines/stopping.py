"""When a path of machines has become long enough."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .._arguments import whole_number
from .._repr import short_repr


class Stopping(NamedTuple):
    """The stopping rule of a path (Karsmakers 2011, eq. 38).

    A path ends with k prototypes if their cross-validated error differs from the mean error of the
    `window` sizes before by at most `tolerance` times itself.
    """

    window: int = 10
    tolerance: float = 1e-3

    __repr__ = short_repr

    def check(self) -> None:
        """Raise unless the window is a whole number of at least 1, and the tolerance in [0, 1)."""
        whole_number("stopping.window", self.window, 1, 10**6, "a million")
        if not (isinstance(self.tolerance, int | float) and 0 <= self.tolerance < 1):
            raise ValueError(
                f"stopping.tolerance: expected a number between 0 and 1, got {self.tolerance!r}"
            )

    def length(self, scores: Float[np.ndarray, " k"]) -> int | None:
        """Return the number of prototypes at which the path ends; None if it goes on."""
        for k in range(self.window, len(scores)):
            before = np.mean(scores[k - self.window : k])
            if abs(before - scores[k]) <= self.tolerance * abs(scores[k]):
                return k + 1
        return None
