"""The tuning problem: a method, a kernel, candidates for the prototypes, and the rows."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._numerics import as_array
from .._repr import short_repr
from .._status import PRECISION_LOST
from .._types import Key
from ..kernels import Kernel
from ..machines.family import Family
from ..machines.held_out import FitStart, HeldOut, OnFold, Sums
from ..machines.method import Method, Metric, Task
from ..multiclass import Decoding
from ..validation.validate import Kept, Scoring, Validation
from .race import BestFolds, race, rounds
from .scores import Scores, least_of_sizes
from .template import Template, split_kernel

Table = Float[Array, "_ _"] | Float[np.ndarray, "_ _"]
# The lengthscale is searched within this factor of sqrt(d), which is the typical distance of two
# standardised points divided by sqrt(2). The best lengthscale of every benchmark table lies well
# inside.
LENGTHSCALE_FACTOR = 12.0


Wanted = Bool[np.ndarray, "q s v"] | None
"""For each kernel, `C` and fold, whether its errors are wanted; None if all are."""


class _Scored(Protocol):
    """The properties that `Tunable` and `Source` have in common."""

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the computations."""
        ...

    @property
    def rows_scored(self) -> int:
        """The number of rows over which a score is averaged."""
        ...


@runtime_checkable
class Tunable(_Scored, Protocol):
    """The part of a problem that a search uses."""

    @property
    def kernels_at_once(self) -> int:
        """The largest number of kernels to score in one call."""
        ...

    @property
    def template(self) -> Template:
        """The kernel whose leaves are tuned."""
        ...

    def scores(
        self, thetas: Table, C: Table, scoring: Scoring, best: BestFolds | None = None
    ) -> Scores:
        """Return the scores of `q` kernels.

        Args:
            thetas: the kernels as points of the template, shape `q p`.
            C: values of `C` for each kernel, shape `q s`.
            scoring: the metric and the decoding.
            best: the best machine so far, for a race: scores of machines that are clearly worse
                may be estimates. None for scores over all folds.
        """
        ...


@runtime_checkable
class Source(_Scored, Protocol):
    """The rows of a problem: in memory, or a stream that is reread for each batch of kernels."""

    @property
    def n_rows(self) -> int:
        """The number of rows to train on."""
        ...

    @property
    def fold_sizes(self) -> Int[np.ndarray, " v"]:
        """The number of rows with weight in each fold of the rows that are scored."""
        ...

    def errors(
        self, problem: "Problem", thetas: Table, C: Table, scoring: Scoring, wanted: Wanted = None
    ) -> list[Validation]:
        """Return the held-out errors of every kernel, one `Validation` each.

        `thetas` and `C` are as for `Tunable.scores`. All `wanted` folds are computed, and others if
        they cost nothing.
        """
        ...

    def kernels_at_once(self, problem: "Problem") -> int:
        """Return the largest number of kernels that one call of `errors` should evaluate."""
        ...

    def known(self, problem: "Problem", theta: Any, C: Any, scoring: Scoring) -> Validation | None:
        """Return a kernel's kept errors and predictions; None unless all `C` are kept."""
        ...

    def keeps_predictions(self, problem: "Problem", s: int) -> bool:
        """Whether an evaluation of `s` values of `C` keeps the predictions of all machines."""
        ...

    def held_out_values(
        self,
        problem: "Problem",
        theta: Float[np.ndarray, " p"],
        C: Float[np.ndarray, " s"],
        scoring: Scoring,
        keep: Kept,
    ) -> tuple[Float[np.ndarray, " n *c"], FitStart | None]:
        """Return the held-out predictions of one machine, and what its fit to all rows can reuse.

        Predictions are in the order of the rows that are scored. `keep` is the machine's size and
        the index of its `C`. With the search's `scoring`, no further program is compiled.
        """
        ...

    def held_out(
        self,
        problem: "Problem",
        theta: Float[np.ndarray, " p"],
        C: Float[np.ndarray, " s"],
        on_fold: OnFold,
    ) -> HeldOut:
        """Predict every fold by machines fitted without it, for each `C`, with the kernel `theta`.

        Return the results of `on_fold`, on the default device.
        """
        ...

    def fit(
        self,
        problem: "Problem",
        kernel: Kernel,
        C: Float[Array, ""] | Float[Array, " l"],
        sums: Any,
    ) -> tuple[Family, Sums | None]:
        """Fit to all rows; return the machines and the sums over the rows, if the method has sums.

        `sums`, the second result of `held_out_values` or None, saves passes over the rows.
        """
        ...

    def rows_in_memory(self) -> tuple[Float[Array, "n d"], Float[Array, "n c"], Float[Array, " n"]]:
        """Return inputs, targets and weights of the rows in memory.

        Classes are columns of -1 and +1: one column for two classes, else one for each class.
        """
        ...

    def only_rows(self, rows: Int[np.ndarray, " m"]) -> "Source":
        """Return the source of some rows, given by number; a stream raises a `ValueError`."""
        ...

    @property
    def part(self) -> Any:
        """The rows to fit and the folds to validate; None for all."""
        ...

    def divisible(self, problem: "Problem") -> bool:
        """Whether kernels can be compared on a part of the rows, by the programs for all rows.

        The rows must be in memory on one CPU, and the folds large and of similar sizes.
        """
        ...

    def on_a_part(self, n_rows: int, folds: int) -> "Source":
        """Return a source whose machines are fitted to about `n_rows / v` rows of each fold.

        These rows are drawn with a fixed seed. Only the first `folds` folds are validated, with all
        their rows.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Problem:
    """The tuning problem: choose the kernel and `C` of a method by the held-out error on the rows.

    A search reads it as a `Tunable`.
    """

    method: Method  # resolved, see `Method.resolve`
    template: Template  # the kernel whose leaves are tuned
    # The prototypes, or the candidates from which the method selects them; None for all rows.
    points: Float[Array, "m d"] | None
    source: Source  # the rows
    C: Float[np.ndarray, " s"]  # values of the weight of the data-fit term
    point_rows: Int[np.ndarray, " m"] | None = None  # row numbers of the points, if they are rows
    task: Task = "regression"
    metric: Metric | None = None  # to minimise and report; None for the method's defaults
    decoding: Decoding = "loss"
    varied: dict[str, bool] = dataclasses.field(default_factory=dict)  # see `Search.varied`
    key: Key | None = None  # of the method's random draws
    # Bounds of `theta`; None for a factor of `LENGTHSCALE_FACTOR` on both sides of the template.
    box: tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]] | None = None
    compared: Metric | None = None  # a second metric, in which a stage compares kernels
    compares: bool = False  # whether the scores are in the metric `compared`, if there is one

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
        return self.source.kernels_at_once(self)

    @property
    def scoring(self) -> Scoring:
        """The metrics to minimise, to report, and to compare kernels in."""
        criterion = self.metric or self.method.criterion(self.task)
        reported = self.metric or self.method.metric(self.task)
        return Scoring(criterion, self.decoding, reported, self.compared)

    @property
    def rows_of_part(self) -> int | None:
        """The number of rows on which to compare kernels first; None if all rows are compared."""
        tunes_kernel = self.template.size > 0
        if self.points is None or not tunes_kernel or not self.source.divisible(self):
            return None
        return self.method.rows_of_part(self.source.rows_scored, len(self.points))

    @property
    def bounds(self) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]]:
        """The bounds of `theta` in a search: `box`, or `bounds_of` if it has another size."""
        if self.box is not None and self.box[0].size == self.template.size:
            return self.box
        return bounds_of(self.template)

    def scores(
        self, thetas: Table, C: Table, scoring: Scoring, best: BestFolds | None = None
    ) -> Scores:
        """See `Tunable`; the score of a path of sizes is the least error of all its sizes.

        With a `best` machine every kernel races against it, see `race`.
        """
        for method in self.method.shorter():
            validations, scores = self.with_method(method)._raced(thetas, C, scoring, best)
            if _paths_end(method, validations):
                break
        v = len(self.source.fold_sizes)
        return Scores(*map(np.stack, zip(*(one.with_folds(v) for one in scores), strict=True)))

    def errors(self, thetas: Table, C: Table, scoring: Scoring) -> list[Validation]:
        """Return the held-out errors of every kernel, one `Validation` each.

        A method with a path of sizes is validated with longer and longer paths (`Method.shorter`),
        until all paths end, see `Method.path_end`. The cost of a path grows with the square of its
        length, so at most a third of the work is repeated.
        """
        for method in self.method.shorter():
            errors = self.with_method(method)._errors(thetas, C, scoring)
            if _paths_end(method, errors):
                break
        return errors

    def _errors(
        self, thetas: Table, C: Table, scoring: Scoring, wanted: Wanted = None
    ) -> list[Validation]:
        """Return the errors of every kernel, see `Source`; `scores` in the metric of this stage."""
        errors = self.source.errors(self, thetas, C, scoring, wanted)
        return [one.in_compared_metric() for one in errors] if self.compares else errors

    def _raced(
        self, thetas: Table, C: Table, scoring: Scoring, best: BestFolds | None
    ) -> tuple[Sequence[Validation], Sequence[Scores]]:
        """Return errors and scores of every kernel.

        Kernels race if `best` is given, unless their scores are in the second metric.
        """
        if best is None or self.compares:
            errors = self._errors(thetas, C, scoring)
            return errors, [least_of_sizes(self.method, one) for one in errors]
        race_rounds = rounds(self.source.fold_sizes, best.rule, scoring.metric)
        first_folds = race_rounds[0].folds
        v = len(first_folds)
        if len(best.fold_scores) != v:  # a history may lack them
            best = BestFolds(rule=best.rule)
        wanted_first = np.broadcast_to(first_folds, (*C.shape, v))
        first = self._errors(thetas, C, scoring, wanted_first)

        def raced(i: int) -> tuple[Validation, Scores]:
            def some_errors(wanted: Bool[np.ndarray, "s v"]) -> Validation:
                one = thetas[i : i + 1], C[i : i + 1]
                (validation,) = self._errors(*one, scoring, wanted[None])
                return validation

            return race(self.method, np.asarray(C[i]), race_rounds, first[i], some_errors, best)

        validations, scores = zip(*map(raced, range(len(C))), strict=True)
        return validations, scores

    def with_method(self, method: Method) -> "Problem":
        """Return the problem with another method, and with the points unchanged."""
        return dataclasses.replace(self, method=method)

    def for_surrogate(self, method: Method, points: slice, metric: Metric) -> "Problem":
        """Return the problem of a cheaper method on some of the points.

        It minimises the user's metric. If the user stated none, or the pinball loss, it minimises
        `metric`.
        """
        part = self.with_points(points)
        stated = None if self.metric == "pinball" else self.metric
        return dataclasses.replace(part, method=method, metric=stated or metric)

    def with_points(self, part: slice) -> "Problem":
        """Return the problem on some of the points."""
        assert self.points is not None
        rows = None if self.point_rows is None else self.point_rows[part]
        points = as_array(np.asarray(self.points)[part])  # a slice on the device would compile
        return dataclasses.replace(self, points=points, point_rows=rows)

    def with_metric(self, metric: Metric) -> "Problem":
        """Return the problem that minimises `metric`, unless the user stated a metric."""
        return dataclasses.replace(self, metric=self.metric or metric)

    def with_compared(self, metric: Metric) -> "Problem":
        """Return the problem whose scoring has a second metric, unless the user stated a metric.

        Stages that compare kernels in the second metric (`compares`) and stages that minimise the
        first one then share programs, and kept evaluations.
        """
        return dataclasses.replace(self, compared=metric if self.metric is None else None)

    def comparing(self) -> "Problem":
        """Return the problem whose scores are in the metric that compares kernels, if any."""
        return dataclasses.replace(self, compares=True)

    def at_size(self, m: int) -> "Problem":
        """Return the problem of machines with `m` prototypes, see `Method.at_size`."""
        method, part = self.method.at_size(m)
        return self.with_points(part).with_method(method)

    def on_its_points(self) -> "Problem":
        """Return the problem whose rows are the points; every row is then a prototype."""
        assert self.point_rows is not None
        rows = self.source.only_rows(self.point_rows)
        return dataclasses.replace(self, points=None, source=rows)

    def on_a_sample(self, n_rows: int) -> "Problem":
        """Return the problem on a random sample of `n_rows` rows, all of them prototypes.

        See `_sampled` for the draw.
        """
        source = self.source.only_rows(self._sampled(n_rows))
        return dataclasses.replace(self, points=None, source=source)

    def with_rows_as_points(self, m: int) -> "Problem":
        """Return the problem with `m` random rows, or all rows, as points; see `_sampled`."""
        rows = self._sampled(m)
        X, _, _ = self.source.rows_in_memory()
        points = as_array(np.asarray(X)[rows])  # indexing on the device would compile
        return dataclasses.replace(self, points=points, point_rows=rows)

    def _sampled(self, n_rows: int) -> Int[np.ndarray, " _"]:
        """Return the numbers of `n_rows` random rows, in increasing order.

        Rows of weight 0 are not drawn; if fewer have weight, all of these are returned. Up to five
        rows of every class are drawn first, from one class after the other in turn.
        """
        _, y, weights = self.source.rows_in_memory()
        seed = [2026, n_rows] if self.key is None else np.asarray(jax.random.key_data(self.key))
        rng = np.random.default_rng(np.asarray(seed).astype(np.uint32).tolist())
        order = rng.permutation(np.flatnonzero(np.asarray(weights) > 0))
        if self.task == "classification":  # five rows of every class come first
            columns = np.asarray(y)[order]
            classes = columns.argmax(axis=1) if columns.shape[1] > 1 else columns[:, 0] > 0
            of_class = [np.flatnonzero(classes == k)[:5] for k in np.unique(classes)]
            turns = itertools.zip_longest(*of_class)
            first = np.array([place for turn in turns for place in turn if place is not None])
            order = np.append(order[first], np.delete(order, first))
        return np.sort(order[:n_rows]).astype(np.int32)

    def on_a_part(self, folds: int) -> "Problem":
        """Return the problem of machines fitted to about `rows_of_part` rows.

        The first `folds` folds are validated, see `Source.on_a_part`. Scores are
        in the metric `compared`, if there is one.
        """
        rows = self.rows_of_part
        assert rows is not None
        part = self.source.on_a_part(rows, folds)
        return dataclasses.replace(self, source=part).comparing()

    def known_start(self, theta: Float[np.ndarray, " p"], C: ArrayLike) -> FitStart | None:
        """Return what a fit to all rows can start from; None if the search has not kept it."""
        theta, C = theta.astype(self.dtype), np.unique(np.asarray(C, self.dtype))
        known = self.source.known(self, theta, C, self.scoring)
        return None if known is None else known.total

    def with_template(self, kernel: Kernel) -> "Problem":
        """Return the problem with another kernel to tune, whose matrices are fixed."""
        return dataclasses.replace(self, template=split_kernel(kernel, self.dtype))

    def with_kernel(self, kernel: Kernel) -> "Problem":
        """Return the problem with another kernel, no leaf of which is tuned."""
        return dataclasses.replace(
            self, template=split_kernel(kernel, self.dtype, tune_kernel=False)
        )

    def theta_of(self, kernel: Kernel) -> Float[np.ndarray, " p"]:
        """Return a kernel as a point of the problem's search, see `Template`."""
        return split_kernel(kernel, self.dtype, **self.varied).theta.astype(float)


def _paths_end(method: Method, validations: Sequence[Validation]) -> bool:
    """Return whether the path of sizes ends for every kernel and `C`, see `Method.path_end`."""
    paths = [path for validation in validations for path in np.asarray(validation.scores)]
    return None not in map(method.path_end, paths)


def bounds_of(template: Template) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]]:
    """Return bounds of `theta`: `log(LENGTHSCALE_FACTOR)` below and above the template's values."""
    middle, span = template.theta.astype(float), math.log(LENGTHSCALE_FACTOR)
    return middle - span, middle + span


def best_per_problem(
    grid: Float[np.ndarray, " s"],
    errors: Float[np.ndarray, "s l"],
    status: Int[np.ndarray, " s"],
    C: float,
) -> Float[np.ndarray, " l"]:
    """Return, for each binary problem, the value of `C` in the grid with the lowest error.

    Ties go to the value nearest to `C`, the best one for all problems together, on the log scale.
    Values whose status shows that the errors cannot be trusted are not chosen.
    """
    errors = np.where((status < PRECISION_LOST)[:, None], errors, np.inf)
    distance = np.abs(np.log(grid) - math.log(C))[:, None]
    return grid[np.argmin(np.where(errors == errors.min(axis=0), distance, np.inf), axis=0)]
