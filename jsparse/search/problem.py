"""The tuning problem: what is fitted, to which rows, from which points."""

import dataclasses
import math
from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._numerics import as_array
from .._repr import short_repr
from .._status import COMPLETED, PRECISION_LOST
from .._types import Key
from ..kernels import Kernel
from ..machines.family import Family
from ..machines.held_out import HeldOut, OnFold, Sums
from ..machines.method import Method, Metric, Task
from ..multiclass import Code, Decoding
from ..validation.losses import standard_error
from ..validation.validate import Kept, Scoring, Validation
from .template import Template, split_kernel

Table = Float[Array, "_ _"] | Float[np.ndarray, "_ _"]
# The lengthscale is looked for within this factor of sqrt(d), the typical distance over sqrt(2) of
# two standardised points; both ends of every table's data set lie well inside.
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


@runtime_checkable
class Tunable(Protocol):
    """What a search asks of a problem."""

    @property
    def template(self) -> Template:
        """The kernel whose leaves are tuned."""
        ...

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
        """How many kernels are best handed over in one call."""
        ...

    def scores(self, thetas: Table, C: Table, scoring: Scoring) -> Scores:
        """Return the scores of the kernels at points of the template."""
        ...


@runtime_checkable
class Source(Protocol):
    """Where the rows of a problem are: in memory, or read again for every batch of kernels."""

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the computations."""
        ...

    @property
    def n_rows(self) -> int:
        """How many rows there are to train on."""
        ...

    @property
    def rows_scored(self) -> int:
        """How many rows a score is a mean over."""
        ...

    @property
    def kernels_at_once(self) -> int:
        """How many kernels are best handed over in one call."""
        ...

    @property
    def code(self) -> Code | None:
        """Several classes as several binary problems."""
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
        """Return inputs, targets and weights of the rows at hand; of a class -1 and +1."""
        ...

    def only_rows(self, rows: Int[np.ndarray, " m"]) -> "Source":
        """Return some of the rows alone.

        Raises:
            ValueError: if the rows are not in memory.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Problem:
    """A method, a template kernel, points that may carry the model, and a source of rows.

    Attributes:
        method: what is fitted, resolved.
        template: the kernel whose leaves are tuned.
        points: shape `m d`; None for every row, as in the dual.
        source: the rows.
        C: values of the weight of the data-fit term.
        point_rows: the numbers of the rows that the points are, if they are rows.
        task: what the targets are.
        metric: to be minimised, if the user named one.
        decoding: of several classes.
        varied: which leaves a search varies, see `split_kernel`.
        key: decides what the method draws at random.
        box: bounds of the template's `theta`; None for a factor to both sides of it.
    """

    method: Method
    template: Template
    points: Float[Array, "m d"] | None
    source: Source
    C: Float[np.ndarray, " s"]
    point_rows: Int[np.ndarray, " m"] | None = None
    task: Task = "regression"
    metric: Metric | None = None
    decoding: Decoding = "loss"
    varied: dict[str, bool] = dataclasses.field(default_factory=dict)
    key: Key | None = None
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
        if self.metric is not None:
            return Scoring(self.metric, self.decoding, self.metric)
        criterion, reported = self.method.criterion(self.task), self.method.metric(self.task)
        return Scoring(criterion, self.decoding, reported)

    @property
    def bounds(self) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]]:
        """The box that a search varies `theta` in."""
        if self.box is not None and self.box[0].size == self.template.size:
            return self.box
        middle, span = self.template.theta.astype(float), math.log(LENGTHSCALE_FACTOR)
        return middle - span, middle + span

    def scores(self, thetas: Table, C: Table, scoring: Scoring) -> Scores:
        """See `Tunable`; of methods of several sizes, the least error of any size."""
        each = [least_of_sizes(self.method, v) for v in self.errors(thetas, C, scoring)]
        return Scores(*(np.stack(column) for column in zip(*each, strict=True)))

    def errors(self, thetas: Table, C: Table, scoring: Scoring) -> list[Validation]:
        """Return the errors of every kernel, up to the longest path or until paths may end.

        Short paths first, then longer ones, see `Method.shorter`: as a path costs by the square of
        its length, what is done again is a third at most, and short paths are the first part of
        longer ones.
        """
        for method in self.method.shorter():
            found = self.source.errors(self.with_method(method), thetas, C, scoring)
            ends = [method.path_end(e) for v in found for e in np.asarray(v.scores)]
            if None not in ends:
                break
        return found

    def with_method(self, method: Method) -> "Problem":
        """Return the problem of another method with the same points."""
        return dataclasses.replace(self, method=method)

    def with_first_points(self, m: int) -> "Problem":
        """Return the problem with the first points alone."""
        assert self.points is not None
        rows = None if self.point_rows is None else self.point_rows[:m]
        points = as_array(np.asarray(self.points)[:m])  # a slice on the device is a program
        return dataclasses.replace(self, points=points, point_rows=rows)

    def with_points(self, points: Float[Array, "m d"]) -> "Problem":
        """Return the problem with other points, which need not be rows."""
        return dataclasses.replace(self, points=points, point_rows=None)

    def on_its_points(self) -> "Problem":
        """Return the problem of the rows that are points, each of which carries the model."""
        assert self.point_rows is not None
        rows = self.source.only_rows(self.point_rows)
        return dataclasses.replace(self, points=None, source=rows)

    def with_template(self, kernel: Kernel) -> "Problem":
        """Return the problem whose search starts from a kernel, and leaves its matrices."""
        return dataclasses.replace(self, template=split_kernel(kernel, self.dtype))

    def with_kernel(self, kernel: Kernel) -> "Problem":
        """Return the problem of a kernel that is not tuned."""
        template = split_kernel(kernel, self.dtype, tune_kernel=False)
        return dataclasses.replace(self, template=template)

    def theta_of(self, kernel: Kernel) -> Float[np.ndarray, " p"]:
        """Return a kernel as a point of the problem's search."""
        return split_kernel(kernel, self.dtype, **self.varied).theta.astype(float)


def least_of_sizes(method: Method, found: Validation) -> Scores:
    """Return the least error of any size for every `C`, its standard error, and stop codes."""
    scores, spread = np.asarray(found.scores), standard_error(found.fold_scores)
    best = [int(np.argmin(errors[: method.path_end(errors)])) for errors in scores]
    rows, status = np.arange(len(best)), np.asarray(found.status)
    if method.several_sizes:
        # Coefficients without digits may give values with all of them, which the folds have seen.
        status = np.where(status == PRECISION_LOST, COMPLETED, status).astype(np.int32)
    return Scores(scores[rows, best], spread[rows, best], status)


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
    apart = np.abs(np.log(grid) - math.log(C))[:, None]
    return grid[np.argmin(np.where(errors == errors.min(axis=0)[None], apart, np.inf), axis=0)]
