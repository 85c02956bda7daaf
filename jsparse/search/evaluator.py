"""What a search asks of the loop that runs it."""

from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._types import Key
from .template import Template


@runtime_checkable
class Evaluator(Protocol):
    """What a search asks of the loop that runs it."""

    problem: Any  # `search.problem.Problem`, or what else can be tuned
    key: Key
    grid: Float[np.ndarray, " s"]  # values of `C`
    low: Float[np.ndarray, " p"]
    high: Float[np.ndarray, " p"]
    planned: int  # evaluations
    deadline: float  # of `time.perf_counter`

    @property
    def stops(self) -> tuple[type[BaseException], ...]:
        """What it raises when the time is up."""
        ...

    @property
    def template(self) -> Template:
        """The kernel whose leaves are tuned."""
        ...

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the computations."""
        ...

    def scores(self, thetas: np.ndarray, C: np.ndarray | None = None) -> Float[np.ndarray, " q"]:
        """Return the best score of each kernel over its row of `C`, or over the grid; recorded."""
        ...

    def best_C(self, theta: np.ndarray) -> float:
        """Return the `C` of the best score of a kernel that was scored."""
        ...

    def slope(self, theta: np.ndarray, C: float, evaluate: Any) -> Any:
        """Return `evaluate()`, a step of a gradient, recorded or as it is known."""
        ...
