"""The program that tunes and fits a batch of problems: from padded tables to machines."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._blocks import map_systems
from .._mesh import spread
from .._programs import compiled
from .._repr import short_repr
from .._status import PRECISION_LOST
from ..kernels.absent import ABSENT, WithAbsent
from ..machines.family import Family
from ..machines.held_out import Sums
from ..machines.method import Method
from ..machines.rows import Rows
from ..multiclass import Code
from ..prototypes.renyi import select
from ..prototypes.uniform import Draws
from ..scaling import Standardization, standardize
from ..search import line
from ..search.template import Template
from ..validation.folds import Folds, folds_of_padded_rows
from ..validation.validate import Scoring, Validation, WithPredictions, mean_losses
from .settings import keys_of
from .source import RowsOfFolds


class Table(NamedTuple):
    """The arrays of one problem, padded to capacities. In a batch all have a leading axis."""

    X: Any  # raw inputs, shape `r d`; columns of padding are 0
    y: Any  # targets of the machine, shape `r *c`; with a code, class numbers
    weights: Any  # row weights, shape `r`; 0 for padding
    key: Any  # a seed, or the data of a key
    draws: Draws  # the rows from which prototypes are drawn
    n_columns: Any  # number of columns without padding
    count: Any  # number of prototypes
    folds: Folds | None  # the caller's folds; None for random ones
    template: Template  # the kernel to tune
    low: Any  # bounds of theta, shape `p`
    high: Any
    C: Any  # values of `C`, shape `s`
    present: Any  # False for a table that only fills the batch

    __repr__ = short_repr


class Steps(NamedTuple):
    """The static arguments of `solve`: for other values, JAX compiles another program."""

    scoring: Scoring
    planned: int  # number of evaluations of the line search
    m: int  # capacity of prototypes
    n_folds: int
    shuffles: int  # rounds of sorting that shuffle the rows, see `shuffle_rounds`

    __repr__ = short_repr


class Solved(NamedTuple):
    """The results of one problem, after `e` kernels were evaluated on `v` folds of `r` rows."""

    scaling: Standardization
    folds: Folds
    point_rows: Int[Array, " m"]  # row numbers of the prototypes; -1 for padding
    selection_status: Int[Array, ""]
    thetas: Float[Array, "e p"]  # the kernels in the order of their evaluation
    validations: Validation  # their errors, with a leading axis `e`
    predictions: Float[Array, "v r l"]  # held-out values of the best machine, by fold
    family: Family
    sums: Sums | None

    __repr__ = short_repr


@functools.partial(compiled, static_argnames=("steps", "mesh"))
def solve_batch(
    method: Method, code: Code | None, tables: Table, *, steps: Steps, mesh: Mesh | None
) -> Solved:
    """Tune and fit all tables of a batch; return a `Solved` whose arrays have a leading axis.

    The axis runs over the tables, which the devices of `mesh` share.
    """

    def solve_tables(shared: tuple[Method, Code | None], tables: Table) -> Solved:
        results = functools.partial(solve, *shared, steps=steps)
        shapes = jax.eval_shape(results, jax.tree.map(lambda a: a[0], tables))

        def zeros(_: Table) -> Solved:
            return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)

        # On a CPU, where one table comes after the other, an absent table takes no time.
        return map_systems(lambda t: jax.lax.cond(t.present, results, zeros, t), tables)

    return spread(solve_tables, mesh, (None, 0), 0)((method, code), tables)


def solve(method: Method, code: Code | None, table: Table, steps: Steps) -> Solved:
    """Tune and fit one problem, as `training.run` does, but as a function that JAX can compile."""
    keys = keys_of(table.key)
    scaling, classes = standardize(table.X, table.weights), table.draws.codes
    rows = Rows(scaling.apply(table.X), table.y, table.weights, code)
    folds = table.folds
    if folds is None:
        folds = folds_of_padded_rows(keys.folds, classes, steps.n_folds, steps.shuffles)
    numbers, selection_status = select(
        keys.points, rows.X, table.draws, steps.m, table.count, table.n_columns
    )
    points = jnp.where((numbers >= 0)[:, None], rows.X[numbers], ABSENT)
    template = Template(WithAbsent(table.template.tuned), WithAbsent(table.template.fixed))
    held_out = RowsOfFolds(method, template, points, rows, folds, keys.method, None)

    def validate(theta: Float[Array, " p"]) -> Validation:
        on_fold = WithPredictions(steps.scoring, quantiles=method.quantiles)
        held = held_out._replace(theta=theta).held_out(table.C, on_fold)
        return mean_losses(held, on_fold.scoring)

    thetas, validations, best = search(validate, table, steps.planned)
    kernel, C = template.at(best.theta), table.C[best.C_index]
    family, sums = method.fit_and_sum(kernel, points, C, rows, keys.method, best.total)
    return Solved(
        scaling, folds, numbers, selection_status, thetas, validations, best.predictions, family,
        sums,
    )  # fmt: skip


class Best(NamedTuple):
    """The best machine so far: its kernel and `C`, and what was computed for them."""

    score: Float[Array, ""]  # held-out error; infinite if it cannot be trusted
    theta: Float[Array, " p"]  # the kernel as a point of the template
    C_index: Int[Array, ""]
    predictions: Float[Array, "v r l"]  # held-out values, by fold
    total: Any  # see `HeldOut.total`

    __repr__ = short_repr


def search(
    validate: Callable[[Float[Array, " p"]], Validation], table: Table, planned: int
) -> tuple[Float[Array, "e p"], Validation, Best]:
    """Search for the best kernel on the line between the bounds of theta, by `planned` evaluations.

    `validate` maps theta to the errors and held-out predictions for every `C`. Return every theta
    in the order of evaluation, their errors, and the best machine.
    """
    step = (table.high - table.low) / max(1, line.last_place(planned))

    def evaluate(theta: Float[Array, " p"]) -> tuple[Best, Validation]:
        validation = validate(theta)
        scores = validation.scores[:, 0]
        ok = (validation.status < PRECISION_LOST) & jnp.isfinite(scores)
        trusted = jnp.where(ok, scores, jnp.inf)
        i = jnp.argmin(trusted).astype(jnp.int32)
        new = Best(trusted[i], theta, i, validation.predictions[:, :, i], validation.total)
        return new, validation._replace(predictions=None, total=None)

    def one(carry: tuple[line.LineState, Best], number: Array) -> tuple[tuple, tuple]:
        state, best = line.ask(carry[0]), carry[1]
        new, validation = evaluate(table.low + state.places[number] * step)
        # The first kernel counts even if its scores cannot be trusted.
        better = (new.score < best.score) | (number == 0)
        best = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, best)
        return (line.tell(state, new.score), best), (new.theta, validation)

    shapes = jax.eval_shape(evaluate, table.low)[0]
    empty = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    numbers = jnp.arange(planned, dtype=jnp.int32)
    initial = line.init(planned, table.X.dtype), empty
    (_, best), (thetas, validations) = jax.lax.scan(one, initial, numbers)
    return thetas, validations, best
