"""Tuning kernel and `C` of a path of machines: the least error of any size."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import whole
from .._status import COMPLETED, PRECISION_LOST
from .._types import Key
from ..kernels import Kernel
from ..multiclass import Code
from ..validation.cross_validation import standard_error
from ..validation.folds import Folds
from ..validation.paths import PathValidation, cross_validate_path
from .problem import Scoring, kernel_at


class Stopping(NamedTuple):
    """When a path has become long enough (Karsmakers 2011, eq. 38).

    The cross-validated error with k prototypes differs from the mean of the `window` before by at
    most `tolerance` of itself.
    """

    window: int = 10
    tolerance: float = 1e-3

    def check(self) -> None:
        """Raise unless the window is a whole number and the tolerance a number that make sense."""
        whole("stopping.window", self.window, 1, 10**6, "a million")
        if not (isinstance(self.tolerance, int | float) and 0 <= self.tolerance < 1):
            raise ValueError(
                f"stopping.tolerance: expected a number between 0 and 1, got {self.tolerance!r}"
            )

    def length(self, scores: Float[np.ndarray, " k"]) -> int | None:
        """The number of prototypes at which it stops; None if it does not."""
        for k in range(self.window, len(scores)):
            before = np.mean(scores[k - self.window : k])
            if abs(before - scores[k]) <= self.tolerance * abs(scores[k]):
                return k + 1
        return None


class PathProblem(eqx.Module):
    """What stays fixed while kernel and `C` vary, see `tune`."""

    tuned: Kernel  # the template's positive leaves, None elsewhere
    fixed: Kernel  # the rest of the template
    candidates: Float[Array, "M d"]
    X: Float[Array, "n d"]
    y: Float[Array, " n"] | Int[Array, " n"]
    weights: Float[Array, " n"] | None
    folds: Folds
    code: Code | None
    key: Key | None  # of the random subsets
    max_prototypes: int = eqx.field(static=True)
    subset: int | None = eqx.field(static=True)
    separate: bool = eqx.field(static=True)
    stopping: Stopping | None = eqx.field(static=True)

    @property
    def dtype(self) -> jnp.dtype:
        """Of the computations."""
        return self.X.dtype

    @property
    def rows_scored(self) -> int:
        """How many rows a score is a mean over."""
        return self.X.shape[0]

    @property
    def kernels_at_once(self) -> int:
        """One: folds fill the device, and progress is told after each."""
        return 1

    def scores(
        self, thetas: Float[Array, "q p"], C: Float[Array, "q s"], scoring: Scoring
    ) -> tuple[Float[Array, "q s"], Float[Array, "q s"], Int[Array, "q s"]]:
        """The least error of any size for each kernel and `C`, its standard error, stop codes."""
        each = [
            self._least(kernel_at(self, theta), c, scoring)
            for theta, c in zip(thetas, C, strict=True)
        ]
        scores, errors, status = (jnp.stack(column) for column in zip(*each, strict=True))
        return scores, errors, status

    def _least(
        self, kernel: Kernel, C: Float[Array, " s"], scoring: Scoring
    ) -> tuple[Float[Array, " s"], Float[Array, " s"], Int[Array, " s"]]:
        found = self.until_stopped(kernel, C, scoring)
        scores, spread = np.asarray(found.scores), np.asarray(standard_errors(found.fold_scores))
        ends = [
            scores.shape[1] if self.stopping is None else self.stopping.length(f) for f in scores
        ]
        best = [int(np.argmin(f[:end])) for f, end in zip(scores, ends, strict=True)]
        rows = np.arange(len(best))
        # Lost digits of coefficients are no lost digits of values, and those were seen by the
        # folds.
        status = jnp.where(found.status == PRECISION_LOST, COMPLETED, found.status)
        dtype = self.dtype
        return (
            jnp.asarray(scores[rows, best], dtype),
            jnp.asarray(spread[rows, best], dtype),
            status.astype(jnp.int32),
        )

    def until_stopped(
        self, kernel: Kernel, C: Float[Array, " s"], scoring: Scoring
    ) -> PathValidation:
        """Errors up to the longest path, or up to where the stopping rule holds for every `C`.

        Paths of 32 prototypes first, then of twice as many: as a path costs by the square of its
        length, what is done again is a third at most, and the paths of the rule's lengths are the
        first part of the longer ones.
        """
        length = self.max_prototypes
        if self.stopping is None:
            return self.validate(kernel, C, scoring)
        tried = min(max(32, 2 * self.stopping.window), length)
        while True:
            part = dataclasses.replace(self, max_prototypes=tried)
            found = part.validate(kernel, C, scoring)
            stopped = all(self.stopping.length(f) for f in np.asarray(found.scores))
            if stopped or tried == length:
                return found
            tried = min(2 * tried, length)

    def validate(
        self,
        kernel: Kernel,
        C: Float[Array, " s"],
        scoring: Scoring,
        size: Int[Array, ""] | None = None,
    ) -> PathValidation:
        """The errors of every size for one kernel and every `C`."""
        return cross_validate_path(
            kernel,
            self.candidates,
            C,
            self.X,
            self.y,
            self.folds,
            self.weights,
            max_prototypes=self.max_prototypes,
            metric=scoring.metric,
            code=self.code,
            decoding=scoring.decoding,
            separate=self.separate,
            subset=self.subset,
            key=self.key,
            size=size,
        )


def standard_errors(fold_scores: Float[Array, "s v k"]) -> Float[Array, "s k"]:
    """Of the scores of every size, from their spread over the folds."""
    return jax.vmap(standard_error, in_axes=2, out_axes=1)(fold_scores)
