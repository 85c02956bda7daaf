"""Sources of rows: the base class, the programs that predict held-out rows, and `InMemory`."""

import abc
import dataclasses
import functools
import math
import sys
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._blocks import block_shape, systems_at_once
from .._lapack_threads import LARGE_SYSTEM, one_lapack_thread
from .._mesh import on_default_device
from .._numerics import is_concrete
from .._programs import compiled
from .._repr import short_repr
from .._runtime import on_cpu, usable_cores
from .._threads import map_in_threads
from .._types import Key
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..machines.family import Family
from ..machines.from_sums import FoldSums, FromSums
from ..machines.held_out import FitStart, HeldOut, OnFold, Sums
from ..machines.method import Method
from ..machines.rows import Rows
from ..multiclass import Code
from ..normal_equations import PART_BLOCK
from ..search.problem import Problem, Table, Wanted
from ..search.template import Template
from ..validation.folds import Folds
from ..validation.sharding import ShardedFolds
from ..validation.validate import (
    FoldLosses,
    Kept,
    Scoring,
    Validation,
    WithPredictions,
    mean_losses,
)
from .fold_fits import held_out_by_fits
from .kept import Evaluated, KeptEvaluations
from .plan import Plan

# If the predictions of all machines are too many to keep, a search still keeps the first machine's
# predictions, so that the program compiled for the search also serves the predictions after it.
FIRST_MACHINE = Kept(np.int32(0), np.int32(0))
# Bytes of predictions to keep for all machines of one kernel, and of their copies in threads. Up to
# five kernels have predictions in memory at once, four that are evaluated and one that is kept, and
# a plan does not count them.
MOST_KEPT = 1 << 26
# Most kernels that the cores evaluate at the same time, and the bytes that these kernels together
# may take for copies of the rows and the systems of the folds. A plan does not count them.
_MOST_KERNELS = 4
_BYTES_OF_KERNELS = 1 << 27


class RowsOfFolds(NamedTuple):
    """The arguments of a program that predicts held-out rows by `Method.held_out`."""

    method: Method
    template: Template
    points: Float[Array, "m d"] | None  # prototypes or candidates
    rows: Rows
    layout: Folds | ShardedFolds  # folds of the rows
    key: Key | None  # of the method's random draws
    theta: Any  # one kernel or `q` kernels as points of the template, shape `*q p`

    __repr__ = short_repr

    def held_out(self, C: Float[Array, " s"], on_fold: OnFold) -> HeldOut:
        """Predict the rows of each fold for every `C`; `on_fold` reduces each fold's predictions.

        See `Method.held_out`.
        """
        kernel = self.template.at(self.theta)
        layout = self.rows, self.layout
        return self.method.held_out(kernel, self.points, C, *layout, on_fold, self.key)


class SumsOfFolds(NamedTuple):
    """The arguments of a program that predicts a stream's held-out rows from sums over parts."""

    method: FromSums
    sums: Sums  # features, and their sums over each part of the rows
    parts: Rows  # the rows to predict, by part; the first parts only, if not all are validated
    key: Key | None  # of the method's random draws

    __repr__ = short_repr

    def held_out(self, C: Float[Array, " s"], on_fold: OnFold) -> HeldOut:
        """Predict the rows of each part for every `C`, from the sums over all other rows.

        `on_fold` reduces the predictions of each part, see `FromSums.held_out_from_sums`.
        """
        features, sums = self.sums
        if self.parts.code is None:  # give the sums of a single target their target axis
            sums = sums._replace(
                cross=sums.cross[..., None],
                target_square=sums.target_square[..., None],
                target_sum=sums.target_sum[..., None],
            )
        per_fold = jax.tree.map(lambda a: a[: self.parts.weights.shape[0]], sums)
        total = Sums(features, sums.joined)
        held = self.method.held_out_from_sums(total, per_fold, C, self.parts, on_fold, self.key)
        return held._replace(total=None)  # `Streamed` has the sums already


class KeptSums(NamedTuple):
    """The arguments of a program that predicts held-out rows from the normal equations of folds.

    The normal equations belong to one kernel, and stay in memory between evaluations of it.
    """

    method: FromSums
    sums: FoldSums
    key: Key | None  # of the method's random draws

    __repr__ = short_repr

    def held_out(self, C: Float[Array, " s"], on_fold: OnFold) -> HeldOut:
        """Predict the rows of each fold for every `C`, see `FromSums.held_out_from_sums`."""
        total, per_fold, parts = self.sums
        return self.method.held_out_from_sums(total, per_fold, C, parts, on_fold, self.key)


HeldOutRows = RowsOfFolds | SumsOfFolds | KeptSums
mean_of_losses = compiled(mean_losses, static_argnames="scoring")


@compiled
def evaluate(held_out: HeldOutRows, C: Float[Array, " s"], on_fold: FoldLosses) -> Validation:
    """Return the held-out errors of one kernel for every `C`, and the predictions that are kept.

    The search and the predictions after it share this program. Predictions are arranged by folds.
    """
    return mean_losses(held_out.held_out(C, on_fold), on_fold.scoring)


@compiled
def evaluate_batch(
    held_out: RowsOfFolds, C: Float[Array, "q s"], on_fold: FoldLosses
) -> Validation:
    """Return the held-out errors of `q` kernels, each for its vector of `C`; leading axis `q`.

    A `vmap` over kernels uses an accelerator better than a loop over kernels. It takes the memory
    of `q` blocks of rows.
    """

    def evaluate_kernel(theta: Array, C: Array) -> Validation:
        held = held_out._replace(theta=theta).held_out(C, on_fold)
        validation = mean_losses(held, on_fold.scoring)
        return validation._replace(total=None)

    return jax.vmap(evaluate_kernel)(held_out.theta, C)


@compiled
def sum_folds(rows: RowsOfFolds, first_rows: Int[Array, ""] | None) -> FoldSums:
    """Return the sums of each fold and of all rows, for one kernel.

    With `first_rows` the sums are only over so many rows of each fold, from its first.
    """
    method, kernel = cast(FromSums, rows.method), rows.template.at(rows.theta)
    return method.fold_sums(kernel, rows.points, rows.rows, rows.layout, first_rows)


@compiled
def hold_out(held_out: HeldOutRows, C: Float[Array, " s"], on_fold: OnFold) -> HeldOut:
    """Return what `on_fold` computes on the rows of every fold, for every `C`."""
    return held_out.held_out(C, on_fold)


def hold_out_by_cores(
    held_out: HeldOutRows, C: Float[Any, " s"], on_fold: FoldLosses, most_threads: int
) -> HeldOut:
    """Return the result of `hold_out` for the wanted folds, which the cores of a CPU share.

    A decomposition in one thread of LAPACK, or a loop of small operations, leaves the other cores
    idle. Every thread calls the same program for some of the folds, and returns predictions of all
    folds, which are zeros for the other folds.
    """
    assert on_fold.wanted is not None, "on a CPU the wanted folds are stated"
    wanted = np.asarray(on_fold.wanted)
    folds = np.flatnonzero(np.any(wanted, axis=0))
    threads = max(1, min(usable_cores(), most_threads, len(folds)))

    def hold_out_share(thread: int) -> HeldOut:
        share = wanted & np.isin(np.arange(wanted.shape[1]), folds[thread::threads])
        held = hold_out(held_out, C, dataclasses.replace(on_fold, wanted=share))
        return jax.block_until_ready(held)

    return functools.reduce(HeldOut.joined, map_in_threads(hold_out_share, range(threads), threads))


@functools.partial(compiled, static_argnums=2)
def target_columns(X: Float[Array, "n d"], y: Array, classes: int | None) -> Float[Array, "n c"]:
    """Return targets as columns: real targets, or +1 and -1 for each class against the others.

    Args:
        X: inputs.
        y: real targets, or class numbers.
        classes: the number of classes; None for real targets (static).
    """
    if classes is None:
        return y.reshape(len(X), -1)
    in_class = y[:, None] == jnp.arange(classes, dtype=y.dtype)[None, :]
    return jnp.where(in_class, 1, -1).astype(X.dtype)


class Part(NamedTuple):
    """A part of the rows, on which kernels are compared in less time than on all rows."""

    rows_of_fold: int  # machines are fitted to so many rows of each fold, from its first
    folds: int  # so many folds are validated, from the first, each with all its rows

    __repr__ = short_repr


class TrainingSource(abc.ABC):
    """The rows to train on and to validate on: the base of `InMemory` and `Streamed`.

    It implements the methods of `search.problem.Source` that both classes share. The validation
    rows are the rows that are predicted by machines fitted without the row's fold.

    Attributes:
        placed: the validation rows on the device or devices, arranged as compiled programs take
            them: for `InMemory` a table, for `Streamed` one table for each validated part.
        folds: the numbers of the validation rows in each fold.
        n_predicted: the number of validation rows, without padding.
        part: the rows to fit and the folds to validate; None for all.
    """

    placed: Rows
    folds: Folds
    n_predicted: int
    part: Part | None = None

    @property
    def n_folds(self) -> int:
        """The number of folds of the validation rows."""
        return len(self.folds.index)

    def every_fold(self, s: int) -> Bool[np.ndarray, "s v"] | None:
        """Return a mask that is True for every fold to validate and each of `s` values of `C`.

        On a part of the rows these are the first folds. The mask is for `OnFold.wanted`. None if
        the programs compute every fold in any case.
        """
        return None

    def on_fold(
        self,
        problem: Problem,
        s: int,
        scoring: Scoring,
        keep: Kept,
        wanted: Bool[np.ndarray, "s v"] | None,
    ) -> FoldLosses:
        """Return the function that reduces the predictions of a fold to losses.

        Args:
            problem: the tuning problem.
            s: number of values of `C`.
            scoring: the metrics and the decoding.
            keep: the machine whose predictions the function also returns; a source may keep more.
            wanted: the folds to compute for each `C`; None for all folds.
        """
        return FoldLosses(scoring, keep, problem.method.quantiles, wanted)

    def keeps_predictions(self, problem: Problem, s: int) -> bool:
        """See `Source`."""
        return False

    @abc.abstractmethod
    def held_out_rows(self, problem: Problem, theta: Float[Any, "*q p"]) -> HeldOutRows:
        """Return the arguments of a program that predicts held-out rows.

        Args:
            problem: the method, the template and the points.
            theta: the kernel, or `q` kernels, as points of the template.
        """

    @property
    def dtype(self) -> jnp.dtype:
        """See `Source`."""
        return self.placed.dtype

    @property
    def code(self) -> Code | None:
        """The output code of the binary problems, for several classes."""
        return self.placed.code

    def held_out_values(
        self,
        problem: Problem,
        theta: Float[np.ndarray, " p"],
        C: Float[np.ndarray, " s"],
        scoring: Scoring,
        keep: Kept,
    ) -> tuple[Float[np.ndarray, " n *c"], FitStart | None]:
        """See `Source`; predictions of rows in no fold are NaN."""
        used, places = np.unique(keep.C, return_inverse=True)
        validation, wanted = self.known(problem, theta, C[used], scoring), None
        if validation is not None:
            C, keep = C[used], keep._replace(C=places.reshape(np.shape(keep.C)))
        else:
            wanted = self.every_fold(len(C))
            if wanted is not None:  # the other values of `C` may take a fit for each fold
                wanted = wanted & np.isin(np.arange(len(C)), used)[:, None]
        on_fold = self.on_fold(problem, len(C), scoring, keep, wanted)
        if validation is None:
            validation = self._evaluate(problem, theta, C, on_fold)
        validation = on_default_device(self.placed.mesh, validation)
        folds = problem.method.validation_folds(self.folds, self.n_predicted)
        index, valid = np.asarray(folds.index), np.asarray(folds.valid)
        by_fold = np.asarray(validation.predictions)[: len(index), : index.shape[1]]
        by_fold = on_fold.of_machine(by_fold, keep, len(C))
        values = np.full((self.n_predicted, by_fold.shape[2]), np.nan, by_fold.dtype)
        values[index[valid]] = by_fold[valid]
        outputs = problem.method.outputs(self.placed)
        return values.reshape(-1, *outputs), validation.total

    def known(
        self, problem: Problem, theta: Float[Any, " p"], C: Float[Any, " s"], scoring: Scoring
    ) -> Validation | None:
        """Return a kernel's kept errors and predictions; None unless all `C` are kept."""
        return None

    def _evaluate(
        self,
        problem: Problem,
        theta: Float[Any, " p"],
        C: Float[Any, " s"],
        on_fold: FoldLosses,
    ) -> Validation:
        """Return the held-out errors and predictions of one kernel for a vector of `C`."""
        return evaluate(self.held_out_rows(problem, theta), C, on_fold)

    def held_out(
        self,
        problem: Problem,
        theta: Float[np.ndarray, " p"],
        C: Float[np.ndarray, " s"],
        on_fold: OnFold,
    ) -> HeldOut:
        """See `Source`."""
        held = self._hold_out(problem, theta, C, on_fold)
        return on_default_device(self.placed.mesh, held._replace(total=None))

    def _hold_out(
        self, problem: Problem, theta: Float[Any, " p"], C: Float[Any, " s"], on_fold: OnFold
    ) -> HeldOut:
        """Return the results of `on_fold` for one kernel and a vector of `C`."""
        return hold_out(self.held_out_rows(problem, theta), C, on_fold)


@dataclasses.dataclass(frozen=True)
class InMemory(TrainingSource):
    """Standardised rows in memory, and their folds.

    Attributes:
        rows: the rows in the caller's order, padded with rows of weight 0.
        placed: `rows` as compiled programs take them; on a mesh, sharded in fold order.
        layout: the folds of `placed`.
        folds: the folds of `rows`, by row number.
        n_rows: the number of rows without padding.
        kept: evaluations and sums that are not computed again.
    """

    rows: Rows
    placed: Rows
    layout: Folds | ShardedFolds
    folds: Folds
    n_rows: int
    part: Part | None = None
    kept: KeptEvaluations = dataclasses.field(default_factory=KeptEvaluations, compare=False)

    __repr__ = short_repr

    @property
    def n_predicted(self) -> int:  # type: ignore[override]
        """The number of rows without padding, as all rows are predicted."""
        return self.n_rows

    @property
    def rows_scored(self) -> int:
        """See `Source`."""
        weights = self.rows.weights
        return int(np.sum(np.asarray(weights) > 0)) if is_concrete(weights) else len(self.rows)

    @property
    def fold_sizes(self) -> Int[np.ndarray, " v"]:
        """See `Source`."""
        index, valid = np.asarray(self.folds.index), np.asarray(self.folds.valid)
        weights = self.rows.weights
        return np.sum(valid & (np.asarray(weights) > 0)[index], axis=1)

    def kernels_at_once(self, problem: Problem) -> int:
        """Return how many kernels to evaluate at the same time.

        If one program evaluates a kernel, an accelerator evaluates all kernels as one batch, and a
        CPU evaluates one in each core, at most `_MOST_KERNELS`. A CPU evaluates one at a time if
        its cores share the folds of a kernel, if LAPACK has several threads, or on a mesh.
        """
        if not self._in_one_program(problem):
            return 1
        if not on_cpu():
            return sys.maxsize
        shares_folds = self.part is None and self._keeps_sums(problem)
        system = problem.method.largest_system(self.n_rows)
        if shares_folds or system >= LARGE_SYSTEM or self.placed.mesh is not None:
            return 1
        systems = (self.n_folds + 1) * system**2 * self.dtype.itemsize
        most = _BYTES_OF_KERNELS // (self.placed.X.nbytes + systems)
        return max(1, min(usable_cores(), _MOST_KERNELS, most))

    def _in_one_program(self, problem: Problem) -> bool:
        """Return whether one program evaluates a kernel, on all folds and for every `C`."""
        return problem.method.shares_work_over_C and not self._fits_one_by_one(problem)

    def held_out_rows(self, problem: Problem, theta: Float[Any, "*q p"]) -> HeldOutRows:
        """See `TrainingSource`.

        A race evaluates a kernel several times. If the method needs only sums of the folds, the
        last kernel's sums are kept.
        """
        rows = RowsOfFolds(
            problem.method, problem.template, problem.points, self.placed, self.layout,
            problem.key, theta,
        )  # fmt: skip
        if np.ndim(theta) > 1 or not self._keeps_sums(problem):
            return rows
        first_rows = None
        if self.part is not None:
            first_rows = np.int32(self.part.rows_of_fold)
        elif problem.rows_of_part is not None:  # so that one program sums the part and all rows
            first_rows = np.int32(self._rows_of_fold)
        sums = self.kept.sums_of(problem, theta, lambda: sum_folds(rows, first_rows))
        return KeptSums(cast(FromSums, problem.method), sums, problem.key)

    def _keeps_sums(self, problem: Problem) -> bool:
        """Return whether the sums of the last kernel are kept for further evaluations of it."""
        method, code = problem.method, self.placed.code
        sees_all_rows = code is None or code.shares_all_rows
        serves = method.fits_from_fold_sums(self._rows_of_fold, len(problem.C))
        return serves and sees_all_rows and self.every_fold(1) is not None

    @property
    def _rows_of_fold(self) -> int:
        """The number of rows in each fold, with padding."""
        return self.folds.index.shape[1]

    def every_fold(self, s: int) -> Bool[np.ndarray, "s v"] | None:
        """See `TrainingSource`: a CPU fits one fold after another, and can leave out some."""
        if self.placed.mesh is not None or systems_at_once() > 1:
            return None
        count = self.n_folds if self.part is None else self.part.folds
        return np.broadcast_to(np.arange(self.n_folds) < count, (s, self.n_folds))

    def divisible(self, problem: Problem) -> bool:
        """See `Source`; blocks of rows are left out, so a fold must have several."""
        in_fold = self.fold_sizes
        are_similar = bool(2 * in_fold.min() > in_fold.max())
        is_large = self._rows_of_fold > 2 * PART_BLOCK and are_similar
        return is_large and self.part is None and self._keeps_sums(problem)

    def on_a_part(self, n_rows: int, folds: int) -> "InMemory":
        """See `Source`."""
        index, valid = np.asarray(self.folds.index), np.asarray(self.folds.valid)
        # The rows of a fold may be sorted by class.
        order = np.random.default_rng(0).permutation(index.shape[1])
        shuffled = Folds(np.ascontiguousarray(index[:, order]), valid[:, order])
        _, block = block_shape(index.shape[1], PART_BLOCK)
        blocks = max(1, round(n_rows / self.n_folds / block))
        part = Part(blocks * block, min(folds, self.n_folds))
        return dataclasses.replace(
            self, layout=shuffled, folds=shuffled, part=part, kept=KeptEvaluations()
        )

    def on_fold(
        self,
        problem: Problem,
        s: int,
        scoring: Scoring,
        keep: Kept,
        wanted: Bool[np.ndarray, "s v"] | None,
    ) -> FoldLosses:
        """See `TrainingSource`.

        The predictions of all machines are kept if they fit into `MOST_KEPT` bytes. So once `C` and
        the size are chosen, the held-out predictions need no second fit.
        """
        if self.keeps_predictions(problem, s):
            return WithPredictions(scoring, None, problem.method.quantiles, wanted)
        return super().on_fold(problem, s, scoring, keep, wanted)

    def keeps_predictions(self, problem: Problem, s: int) -> bool:
        """See `Source`."""
        return self.placed.mesh is None and self._prediction_bytes(problem, s) <= MOST_KEPT

    def _prediction_bytes(self, problem: Problem, s: int) -> int:
        """Return the bytes of the predictions of all machines of one kernel."""
        method = problem.method
        machines = s * max(1, len(method.fit_sizes)) * math.prod(method.outputs(self.placed))
        return len(self.placed) * machines * self.dtype.itemsize

    def errors(
        self, problem: Problem, thetas: Table, C: Table, scoring: Scoring, wanted: Wanted = None
    ) -> list[Validation]:
        """See `Source`."""
        levels = problem.method.quantiles
        if not on_cpu() and len(thetas) > 1 and self._in_one_program(problem):
            on_fold = FoldLosses(scoring, quantiles=levels)
            batch = evaluate_batch(self.held_out_rows(problem, thetas), C, on_fold)
            return [
                jax.tree.map(lambda a, i=i: np.asarray(a)[i], batch) for i in range(len(thetas))
            ]
        every = self.every_fold(C.shape[1])
        folds_of = [every] * len(thetas) if every is None or wanted is None else wanted
        on_folds = [
            self.on_fold(problem, C.shape[1], scoring, FIRST_MACHINE, folds) for folds in folds_of
        ]
        validations = self._evaluate_kernels(problem, list(zip(thetas, C, on_folds, strict=True)))
        return [one._replace(predictions=None, total=None) for one in validations]

    def _evaluate(
        self,
        problem: Problem,
        theta: Float[Any, " p"],
        C: Float[Any, " s"],
        on_fold: FoldLosses,
    ) -> Validation:
        """See `TrainingSource`; a kept evaluation is not computed again."""
        return self._evaluate_kernels(problem, [(theta, C, on_fold)])[0]

    def _evaluate_kernels(
        self, problem: Problem, kernels: list[tuple[Any, Any, FoldLosses]]
    ) -> list[Validation]:
        """Return the held-out errors of kernels, each given as its theta, `C` and `on_fold`.

        A CPU evaluates several kernels at the same time, each in a thread, see `kernels_at_once`.
        LAPACK has one thread, unless the systems are large. Kept evaluations are not computed
        again.
        """
        validations = [
            self.known(problem, theta, C, on_fold.scoring) for theta, C, on_fold in kernels
        ]
        missing = [i for i, validation in enumerate(validations) if validation is None]
        system = problem.method.largest_system(self.n_rows)
        at_once = min(len(missing), self.kernels_at_once(problem))
        fold_threads = 1 if system >= LARGE_SYSTEM or at_once > 1 else usable_cores()

        def compute(i: int) -> Validation:
            return jax.block_until_ready(self._compute(problem, *kernels[i], fold_threads))

        with one_lapack_thread(system):
            computed = map_in_threads(compute, missing, at_once)
        for i, validation in zip(missing, computed, strict=True):
            validations[i] = validation
            theta, C, on_fold = kernels[i]
            if on_fold.keeps_all:
                every = np.ones((len(C), self.n_folds), bool)
                wanted = every if on_fold.wanted is None else np.asarray(on_fold.wanted)
                point = np.asarray(theta).tobytes()
                self.kept.add(
                    Evaluated(
                        problem, on_fold.scoring, point, np.asarray(C), validation,
                        validation.computed(wanted),
                    )
                )  # fmt: skip
        return [validation for validation in validations if validation is not None]

    def _compute(
        self,
        problem: Problem,
        theta: Float[Any, " p"],
        C: Float[Any, " s"],
        on_fold: FoldLosses,
        fold_threads: int,
    ) -> Validation:
        """Compute the held-out errors of one kernel; at most `fold_threads` cores share folds."""
        shares_folds = self._keeps_sums(problem)
        if not (shares_folds or self._fits_one_by_one(problem)):
            return super()._evaluate(problem, theta, C, on_fold)
        if shares_folds:
            copies = MOST_KEPT // max(1, self._prediction_bytes(problem, len(C)))
            rows = self.held_out_rows(problem, theta)
            held = hold_out_by_cores(rows, C, on_fold, min(fold_threads, copies))
        else:
            held = self._hold_out(problem, theta, C, on_fold)
        losses = held._replace(kept=None, total=None)  # which the program would copy
        means = mean_of_losses(losses, scoring=on_fold.scoring)
        return means._replace(predictions=held.kept, total=held.total)

    def _hold_out(
        self, problem: Problem, theta: Float[Any, " p"], C: Float[Any, " s"], on_fold: OnFold
    ) -> HeldOut:
        """See `TrainingSource`."""
        if self._fits_one_by_one(problem):
            return held_out_by_fits(problem, theta, C, self.placed, self.folds, on_fold)
        return super()._hold_out(problem, theta, C, on_fold)

    def _fits_one_by_one(self, problem: Problem) -> bool:
        """Return whether the host calls one compiled fit for each fold and `C`."""
        return problem.method.fits_each_fold and self.every_fold(1) is not None

    def known(
        self, problem: Problem, theta: Float[Any, " p"], C: Float[Any, " s"], scoring: Scoring
    ) -> Validation | None:
        """See `TrainingSource`."""
        return self.kept.known(problem, theta, C, scoring)

    def fit(
        self, problem: Problem, kernel: Kernel, C: Float[Array, "*l"], sums: Any
    ) -> tuple[Family, Sums | None]:
        """See `Source`."""
        self.kept.sums = None
        arguments = kernel, problem.points, C, self.placed, problem.key, sums
        return on_default_device(self.placed.mesh, problem.method.fit_and_sum(*arguments))

    def rows_in_memory(self) -> tuple[Float[Array, "n d"], Float[Array, "n c"], Float[Array, " n"]]:
        """See `Source`; the output code has no effect on the columns of the targets."""
        rows, k = self.rows, None if self.code is None else len(self.code.matrix)
        return rows.X, target_columns(rows.X, rows.y, k), rows.weights

    def follow(self, plan: Plan | None) -> None:
        """Do nothing; only `Streamed` takes the number of kernels in a pass from the plan."""

    def only_rows(self, rows: Int[np.ndarray, " m"]) -> "InMemory":
        """Return the source of some rows, given by number, which stay in their folds."""
        X, y, weights = _select_rows((self.rows.X, self.rows.y, self.rows.weights), rows)
        subset = Rows(X, y, weights, self.code)
        place = np.full(len(self.rows), -1, np.int32)
        place[rows] = np.arange(len(rows))
        place = place[np.asarray(self.folds.index)]
        valid = np.asarray(self.folds.valid) & (place >= 0)
        folds = Folds(np.where(valid, place, 0).astype(np.int32), valid)
        return dataclasses.replace(
            self, rows=subset, placed=subset, layout=folds, folds=folds, n_rows=len(rows),
            kept=KeptEvaluations(),
        )  # fmt: skip

    def fold_machines(
        self,
        problem: Problem,
        kernel: Kernel,
        C: Float[Array, "*l"],
        size: int | None,
        sums: Any,
    ) -> tuple[KernelExpansion, Int[np.ndarray, " n"]]:
        """Return the machines fitted without each fold as one expansion, and the fold of each row.

        See `Method.fold_machines`.
        """
        folds = problem.method.validation_folds(self.folds, self.n_rows)
        machines = problem.method.fold_machines(
            kernel, problem.points, C, size, self.rows, folds, problem.key, sums
        )
        fold_of_row = np.zeros(self.n_rows, np.int32)
        fold_numbers, positions = np.nonzero(folds.valid)
        fold_of_row[np.asarray(folds.index)[fold_numbers, positions]] = fold_numbers
        return machines, fold_of_row


_select_rows = compiled(lambda arrays, rows: jax.tree.map(lambda a: a[rows], arrays))
