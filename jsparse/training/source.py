"""What training asks of a source of rows besides what a search does."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, Int

from .._types import Key
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..machines.held_out import Sums
from ..machines.method import Method, Points, Shape
from ..search.problem import Problem, Source
from ..search.template import Template
from ..validation.folds import Folds
from .encoding import Encoding
from .plan import Plan
from .settings import Config


@runtime_checkable
class TrainingSource(Source, Protocol):
    """Rows in memory, or a stream after its first pass."""

    @property
    def encoding(self) -> Encoding:
        """How raw rows became numbers."""
        ...

    @property
    def caller_folds(self) -> Folds:
        """The folds by the numbers of the caller's rows; of a stream those of its sample."""
        ...

    def shape(self, method: Method, template: Template) -> Shape:
        """Return what a method may know of the rows before any work."""
        ...

    def plan(self, method: Method, template: Template, config: Config) -> Plan | None:
        """Return what a run will take; None where that is hardly more than the rows."""
        ...

    def planned(self, plan: Plan | None) -> "TrainingSource":
        """Return the source for a run of that plan."""
        ...

    def choose_points(self, method: Method, key: Key, kernel: Kernel) -> Points:
        """Return the points that may carry the model."""
        ...

    def compared(self) -> dict[str, Any]:
        """Return what must be the same in all processes of a mesh."""
        ...

    def truth(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return class numbers, or targets, and weights of the rows that are predicted."""
        ...

    def caller_rows(self, numbers: np.ndarray | None) -> np.ndarray | None:
        """Return row numbers as the caller counts."""
        ...

    def for_caller(self, values: np.ndarray | None) -> np.ndarray | None:
        """Return values of the caller's rows; of a stream those of its sample."""
        ...

    def fold_machines(
        self,
        problem: Problem,
        kernel: Kernel,
        C: Float[Array, ""] | Float[Array, " l"],
        size: int | None,
        sums: Sums | None,
    ) -> tuple[KernelExpansion, Int[np.ndarray, " n"]]:
        """Return the machines that have not seen a fold, see `Method.fold_machines`; and folds.

        Raises:
            ValueError: for a stream.
        """
        ...
