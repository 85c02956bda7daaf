"""The tuning problem: a method, a kernel, the points that may carry the model, and the rows."""

import dataclasses
import math
from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._numerics import as_array
from .._repr import short_repr
from .._status import PRECISION_LOST
from .._types import Key
from ..kernels import Kernel
from ..machines.family import Family
from ..machines.held_out import HeldOut, OnFold, Sums
from ..machines.method import Method, Metric, Task
from ..multiclass import Decoding
from ..validation.losses import standard_error
from ..validation.validate import Kept, Scoring, Validation
from .template import Template, split_kernel

Table = Float[Array, "_ _"] | Float[np.ndarray, "_ _"]
# The lengthscale is searched within this factor of sqrt(d), the typical distance over sqrt(2) of
# two standardised points; the best lengthscale of every benchmark table lies well inside.
LENGTHSCALE_FACTOR = 12.0


class Scores(NamedTuple):
    """Errors of one kernel, or of `q` kernels, each for its own vector of `C`; on the host."""

    scores: Float[np.ndarray, "*q s"]
    standard_errors: Float[np.ndarray, "*q s"]
    status: Int[np.ndarray, "*q s"]

    __repr__ = short_repr

    @property
    def trusted(self) -> Float[np.ndarray, "*q s"]:
        """The scores that can be trusted, infinite elsewhere."""
        return np.where(self.status < PRECISION_LOST, self.scores, np.inf)


class _Scored(Protocol):
    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the computations."""
        ...

    @property
    def rows_scored(self) -> int:
        """How many rows a score is a mean over."""
        ...

    @property
    def kernels_at_once(self) -> int:
        """How many kernels to score in one call."""
        ...


@runtime_checkable
class Tunable(_Scored, Protocol):
    """What a search asks of a problem."""

    @property
    def template(self) -> Template:
        """The kernel whose leaves are tuned."""
        ...

    def scores(self, thetas: Table, C: Table, scoring: Scoring) -> Scores:
        """Return the scores of the kernels at points of the template."""
        ...


@runtime_checkable
class Source(_Scored, Protocol):
    """The rows of a problem: in memory, or read again for every batch of kernels."""

    @property
    def n_rows(self) -> int:
        """How many rows there are to train on."""
        ...

    def errors(
        self, problem: "Problem", thetas: Table, C: Table, scoring: Scoring
    ) -> list[Validation]:
        """Return the errors of every kernel, on the host; not of sizes beyond a path's end."""
        ...

    def validate(
        self,
        problem: "Problem",
        theta: Float[np.ndarray, " p"],
        C: Float[np.ndarray, " s"],
        scoring: Scoring,
        keep: Kept,
    ) -> Validation:
        """Return all that cross-validation says of one kernel, on the default device.

        Predictions are in the order of the rows that are predicted, shape `n *outputs`.
        """
        ...

    def held_out(
        self,
        problem: "Problem",
        theta: Float[np.ndarray, " p"],
        C: Float[np.ndarray, " s"],
        on_fold: OnFold,
    ) -> HeldOut:
        """Return what `on_fold` makes of the rows of every fold, on the default device."""
        ...

    def fit(
        self,
        problem: "Problem",
        kernel: Kernel,
        C: Float[Array, ""] | Float[Array, " l"],
        sums: Sums | None,
    ) -> tuple[Family, Sums | None]:
        """Fit to all rows, see `Method.fit_and_sum`."""
        ...

    def rows_in_memory(self) -> tuple[Float[Array, "n d"], Float[Array, "n c"], Float[Array, " n"]]:
        """Return inputs, targets and weights of the rows in memory; classes as -1 and +1."""
        ...

    def only_rows(self, rows: Int[np.ndarray, " m"]) -> "Source":
        """Return the source of some of the rows; of a stream, raise a `ValueError`."""
        ...


@dataclasses.dataclass(frozen=True)
class Problem:
    """A method, a template kernel, points that may carry the model, and a source of rows."""

    method: Method  # resolved
    template: Template  # the kernel whose leaves are tuned
    points: Float[Array, "m d"] | None  # None for every row, as in the dual
    source: Source
    C: Float[np.ndarray, " s"]  # values of the weight of the data-fit term
    point_rows: Int[np.ndarray, " m"] | None = None  # row numbers of the points, if they are rows
    task: Task = "regression"
    metric: Metric | None = None  # to be minimised, if the user named one
    decoding: Decoding = "loss"
    varied: dict[str, bool] = dataclasses.field(default_factory=dict)  # see `Search.varied`
    key: Key | None = None  # decides what the method draws at random
    # Bounds of the template's `theta`; None for a factor to both sides of it.
    box: tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]] | None = None

    __repr__ = short_repr

    @property
    def dtype(self) -> jnp.dtype:
        """See `Tunable`."""
        return self.source.dtype

    @property
    def rows_scored(self) -> int:
        """See `Tunable`."""
        return self.source.rows_scored

    @property
    def kernels_at_once(self) -> int:
        """See `Tunable`."""
        return self.source.kernels_at_once

    @property
    def scoring(self) -> Scoring:
        """The metric that is minimised, and the one that is reported."""
        criterion = self.metric or self.method.criterion(self.task)
        return Scoring(criterion, self.decoding, self.metric or self.method.metric(self.task))

    @property
    def bounds(self) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]]:
        """The box that a search varies `theta` in."""
        if self.box is not None and self.box[0].size == self.template.size:
            return self.box
        middle, span = self.template.theta.astype(float), math.log(LENGTHSCALE_FACTOR)
        return middle - span, middle + span

    def scores(self, thetas: Table, C: Table, scoring: Scoring) -> Scores:
        """See `Tunable`; of methods of several sizes, the least error of any size."""
        scores = [least_of_sizes(self.method, v) for v in self.errors(thetas, C, scoring)]
        return Scores(*map(np.stack, zip(*scores, strict=True)))

    def errors(self, thetas: Table, C: Table, scoring: Scoring) -> list[Validation]:
        """Return the errors of every kernel, up to the longest path or until paths may end.

        Short paths come first, see `Method.shorter`: a path costs by the square of its length, so
        that at most a third of the work is repeated.
        """
        for method in self.method.shorter():
            errors = self.source.errors(self.with_method(method), thetas, C, scoring)
            paths = [path for validation in errors for path in np.asarray(validation.scores)]
            if None not in map(method.path_end, paths):
                break
        return errors

    def with_method(self, method: Method) -> "Problem":
        """Return the problem of another method with the same points."""
        return dataclasses.replace(self, method=method)

    def with_first_points(self, m: int) -> "Problem":
        """Return the problem with the first points alone."""
        assert self.points is not None
        rows = None if self.point_rows is None else self.point_rows[:m]
        points = as_array(np.asarray(self.points)[:m])  # a slice on the device is a program
        return dataclasses.replace(self, points=points, point_rows=rows)

    def on_its_points(self) -> "Problem":
        """Return the problem of the points' own rows, each of which carries the model."""
        assert self.point_rows is not None
        rows = self.source.only_rows(self.point_rows)
        return dataclasses.replace(self, points=None, source=rows)

    def with_template(self, kernel: Kernel) -> "Problem":
        """Return the problem whose search starts from a kernel, with its matrices fixed."""
        return dataclasses.replace(self, template=split_kernel(kernel, self.dtype))

    def with_kernel(self, kernel: Kernel) -> "Problem":
        """Return the problem with a kernel that is not tuned."""
        return dataclasses.replace(
            self, template=split_kernel(kernel, self.dtype, tune_kernel=False)
        )

    def theta_of(self, kernel: Kernel) -> Float[np.ndarray, " p"]:
        """Return a kernel as a point of the problem's search."""
        return split_kernel(kernel, self.dtype, **self.varied).theta.astype(float)


def least_of_sizes(method: Method, validation: Validation) -> Scores:
    """Return the least error of any size for every `C`, its standard error, and stop codes."""
    errors, spread = np.asarray(validation.scores), standard_error(validation.fold_scores)
    best = [np.argmin(path[: method.path_end(path)]) for path in errors]
    places = np.arange(len(best)), best
    status = method.error_status(np.asarray(validation.status))
    return Scores(errors[places], spread[places], status)


def best_per_problem(
    grid: Float[np.ndarray, " s"],
    errors: Float[np.ndarray, "s l"],
    status: Int[np.ndarray, " s"],
    C: float,
) -> Float[np.ndarray, " l"]:
    """Return the value of the grid with which each binary problem makes the fewest errors.

    Where several values make as few errors, the nearest to `C`, the best for all problems.
    """
    errors = np.where((status < PRECISION_LOST)[:, None], errors, np.inf)
    distance = np.abs(np.log(grid) - math.log(C))[:, None]
    return grid[np.argmin(np.where(errors == errors.min(axis=0), distance, np.inf), axis=0)]
