"""The settings of machines with a small, given number of prototypes, which may be no rows."""

from typing import ClassVar, Literal, get_args

import jax
import numpy as np
from jaxtyping import Array, Float

from .._arguments import whole_number
from .._types import Key
from ..kernels import Kernel
from ..prototypes import k_means
from ..prototypes.choice import choose_rows
from .method import (
    Method,
    Points,
    Shape,
    Task,
    TrainingRows,
    at_most,
    default_prototypes,
    option,
    replaced,
    rows_at,
    setting,
)

Selection = Literal["k_means", "renyi", "uniform"]
_REPEATED = 1e-6  # weight of a copy of an earlier row, so that it is chosen last


class FewPrototypes(Method):
    """The settings of machines whose number of prototypes is given (Wu et al. 2006: `N_z`).

    Args:
        n_prototypes: at most as many as rows; None for a third of the rows, at most 20 and at least
            one for each class.
        selection: where they are, or where a descent starts: "k_means", or rows by "renyi" or
            "uniform". Copies of a row are chosen only if there are too few different rows
            (Section 5.6).
        starts: the number of sets of points; all but the first are rows at random. A method without
            a descent takes the first set.
    """

    n_prototypes: int | None = option(
        None, "number of prototypes", kind="sizes", metavar="M[,M...]"
    )
    selection: Selection = setting("k_means")
    starts: int = setting(1)

    tasks: ClassVar[tuple[Task, ...]] = ("classification",)
    default_C: ClassVar[Float[np.ndarray, " s"]] = np.geomspace(0.1, 1000, 5)
    usual_prototypes: ClassVar[int] = 20

    @property
    def largest(self) -> int:
        """The number of prototypes, once resolved."""
        assert self.n_prototypes is not None
        return self.n_prototypes

    @property
    def memory(self) -> int | Literal["all"] | None:
        """See `Method.memory`."""
        return self.n_prototypes

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        if self.selection not in get_args(Selection):
            expected = get_args(Selection)
            raise ValueError(f"selection: expected one of {expected}, got {self.selection!r}")
        if self.n_prototypes is not None:
            whole_number("n_prototypes", self.n_prototypes, 1, 2**31 - 1, "the largest number")
        whole_number("starts", self.starts, 1, 1000, "a thousand")

    def resolve(self, shape: Shape) -> "FewPrototypes":
        """See `Method.resolve`."""
        m = self.n_prototypes
        if m is None:
            m = default_prototypes(self.usual_prototypes, shape)
        m = whole_number("n_prototypes", m, 1, shape.n, "the number of rows")
        return replaced(self, n_prototypes=m)

    def capped(self, shape: Shape) -> "FewPrototypes":
        """See `Method.capped`."""
        return replaced(self, n_prototypes=at_most(self.n_prototypes, shape.n))

    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Return one set of points after another: cluster means, or rows of each class."""
        if self.starts == 1:
            return self._one_set(key, self.selection, rows)
        keys = jax.random.split(key, self.starts)
        criteria = [self.selection] + ["uniform"] * (self.starts - 1)
        sets = [self._one_set(k, by, rows) for k, by in zip(keys, criteria, strict=True)]
        X = np.concatenate([np.asarray(points.X) for points in sets])
        return Points(jax.device_put(X), None, max(points.status for points in sets))

    def _one_set(self, key: Key, selection: str, rows: TrainingRows) -> Points:
        X, weights, m = np.asarray(rows.X), np.array(rows.weights), self.largest
        present = np.flatnonzero(weights)
        if selection == "k_means":
            # The values of absent rows must not reach the means, not even by rounding.
            X = np.where((weights > 0)[:, None], X, X[present[0]])
            inputs, w = jax.device_put((X, weights.astype(X.dtype)))
            means = k_means(key, inputs, m, w)
            return Points(means.centres, None, int(means.status))
        first = np.unique(X[present], axis=0, return_index=True)[1]
        weights[np.delete(present, first)] *= _REPEATED
        numbers, status = choose_rows(key, selection, rows.X, m, rows.labels, weights, rows.n)
        return Points(rows_at(rows.X, numbers), numbers, status)

    def each_start(self, points: Float[Array, "m d"]) -> Float[Array, "s k d"]:
        """Return the sets of `choose_points`; any other number of points is one set."""
        m = self.n_prototypes
        several = self.starts > 1 and m is not None and len(points) == self.starts * m
        return points.reshape(self.starts if several else 1, -1, points.shape[1])
