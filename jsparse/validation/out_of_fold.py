"""How the rows of a fold are predicted by a machine that has not seen them, for every `C`."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree

from .._blocks import map_systems, systems_at_once
from .._mesh import spread, sum_over_rows
from .._numerics import dot, epsilon, present_targets
from .._repr import short_repr
from .._status import status_of
from .._types import Key
from ..features import FeatureMap
from ..machines.method import Additive
from ..multiclass import Code, solve_code
from ..normal_equations import NormalEquations, accumulate, accumulate_folds, accumulate_groups
from ..solvers.ridge import Ridge, Spectrum, quadratic_form, rank_one_weight, spectrum


class Rows(NamedTuple):
    """Rows laid out by folds, or those of one fold."""

    X: Float[Array, "*v r d"]
    y: Float[Array, "*v r c"]
    w: Float[Array, "*v r"]
    label: Int[Array, "*v r"] | None

    __repr__ = short_repr


class Solution(NamedTuple):
    """Of `Ridge` what predicts: the rest need not be computed."""

    weights: Float[Array, "*v s p c"]
    intercept: Float[Array, "*v s c"]
    status: Int[Array, "*v s"]

    __repr__ = short_repr


def _solution(solved: Ridge) -> Solution:
    return Solution(solved.weights, solved.intercept, solved.status)


Predicted = tuple[Float[Array, "r s c"], Int[Array, " s"]]
"""Values of a fold's rows for every `C`, and status."""


class Strategy(NamedTuple):
    """How the rows of a fold are predicted without it."""

    shared: PyTree  # what all folds have in common
    per_fold: PyTree  # what differs between folds, leading axis `v`
    predict: Callable[[PyTree, tuple[Rows, PyTree]], Predicted]
    total: NormalEquations  # the sums over all rows; where problems differ in theirs, per class
    whole_folds: bool  # the rows of a fold are predicted together, not each on its own

    __repr__ = short_repr


def by_subtraction(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    rows: Rows,
    intercept_penalty: Float[Array, ""] | None,
    mesh: Mesh | None,
    block_rows: int | None,
) -> Strategy:
    """One system per fold: what trains for it is the total less the fold."""
    per_fold = accumulate_folds(
        feature_map, rows.X, rows.y, rows.w, mesh=mesh, block_rows=block_rows
    )
    total = per_fold.joined
    return from_sums(feature_map, C, total, per_fold, None, intercept_penalty, mesh, block_rows)


def by_classes(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    rows: Rows,
    code: Code,
    intercept_penalty: Float[Array, ""] | None,
    mesh: Mesh | None,
    block_rows: int | None,
) -> Strategy:
    """The same from sums per fold and class, where the problems of a code see different rows."""
    assert rows.label is not None
    v, k = len(rows.X), code.matrix.shape[0]
    group = jnp.arange(v, dtype=jnp.int32)[:, None] * k + rows.label

    def by_group(feature_map: FeatureMap, w: Array, X: Array, group: Array) -> NormalEquations:
        nothing = jnp.zeros((X.shape[0], 0), X.dtype)
        return accumulate_groups(
            feature_map, X, nothing, w, group, n_groups=v * k, block_rows=block_rows
        )

    sums = sum_over_rows(mesh, _flat(by_group), feature_map, rows.w, rows.X, group, axis=1)
    per_fold = jax.tree.map(lambda a: a.reshape(v, k, *a.shape[1:]), sums)
    total = per_fold.joined
    return from_sums(feature_map, C, total, per_fold, code, intercept_penalty, mesh, block_rows)


def from_sums(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    total: NormalEquations,
    per_fold: NormalEquations,
    code: Code | None,
    intercept_penalty: Float[Array, ""] | None,
    mesh: Mesh | None,
    block_rows: int | None,
) -> Strategy:
    """What trains for a fold is the total less the fold (De Brabanter 2010, eq. 20-21).

    With a code whose problems see different rows, the sums have an axis of classes, before which
    those of the folds have theirs.

    Float32 solutions are not refined: it takes longer, and changes scores by far less than the
    rounding of features and sums does.
    """
    if code is None or code.shares_all_rows:

        def solve(
            shared: tuple[NormalEquations, Array, Array | None], folds: NormalEquations
        ) -> Solution:
            total, C, penalty = shared
            return map_systems(
                lambda fold: _solution((total - fold).solve(C, penalty, refine=False)), folds
            )

        solutions = spread(solve, mesh, (None, 0), 0)((total, C, intercept_penalty), per_fold)
        return _solved(feature_map, solutions, total, block_rows)

    def solve_problems(
        shared: tuple[NormalEquations, Code, Array, Array | None], folds: NormalEquations
    ) -> Solution:
        total, code, C, penalty = shared
        return jax.lax.map(
            lambda fold: _solution(solve_code(code, total - fold, C, penalty, refine=False)), folds
        )

    shared = (total, code, C, intercept_penalty)
    solutions = spread(solve_problems, mesh, (None, 0), 0)(shared, per_fold)
    return _solved(feature_map, solutions, total, block_rows)


def by_solving(
    method: Additive,
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    rows: Rows,
    code: Code | None,
    outputs: tuple[int, ...],
    key: Key | None,
    mesh: Mesh | None,
    block_rows: int | None,
) -> Strategy:
    """By the solution of a method's own for each fold and `C`, from the total less the fold.

    Every device solves for every fold, and predicts its own rows.
    """
    per_fold = accumulate_folds(
        feature_map, rows.X, rows.y, rows.w, mesh=mesh, block_rows=block_rows
    )
    total = per_fold.joined
    informed = None
    if not method.sums_suffice:
        X, y = (a.reshape(-1, *a.shape[2:]) for a in (rows.X, rows.y))
        fold = jnp.arange(len(rows.w), dtype=jnp.int32)

        def without(fold: Int[Array, ""]) -> FeatureMap:
            own = jnp.arange(len(rows.w), dtype=jnp.int32) == fold
            w = jnp.where(own[:, None], 0, rows.w).reshape(-1)
            return method.informed(feature_map, X, y.reshape(-1, *outputs), w)

        informed = jax.lax.map(without, fold)
    return solving(method, feature_map, C, total, per_fold, informed, code, outputs, key)


def solving(
    method: Additive,
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    total: NormalEquations,
    per_fold: NormalEquations,
    informed: FeatureMap | None,
    code: Code | None,
    outputs: tuple[int, ...],
    key: Key | None,
) -> Strategy:
    """By the solution of a method's own, from sums, and what it was told of the rows if need be."""

    def predict(shared: PyTree, fold: tuple[Rows, PyTree]) -> Predicted:
        feature_map, C, total, code, key = shared
        rows, (less, own) = fold
        sums = (total - less).with_outputs(outputs)
        return method.values(feature_map if own is None else own, sums, C, code, rows.X, key=key)

    shared = (feature_map, C, total, code, key)
    return Strategy(shared, (per_fold, informed), predict, total, whole_folds=False)


def _flat(function: Callable[..., NormalEquations]) -> Callable[..., NormalEquations]:
    """`function` of rows that are laid out by folds."""
    return lambda shared, *rows: function(shared, *(a.reshape(-1, *a.shape[2:]) for a in rows))


def _solved(
    feature_map: FeatureMap,
    solutions: Solution,
    total: NormalEquations,
    block_rows: int | None,
) -> Strategy:
    """Predict each fold by its own solution."""

    def predict(feature_map: FeatureMap, fold: tuple[Rows, Solution]) -> Predicted:
        rows, solution = fold
        s, p, c = solution.weights.shape
        columns = jnp.moveaxis(solution.weights, 0, 1).reshape(p, s * c)
        model = feature_map.expansion(columns, solution.intercept.reshape(s * c))
        return model(rows.X, block_rows=block_rows).reshape(-1, s, c), solution.status

    return Strategy(feature_map, solutions, predict, total, whole_folds=False)


def by_removal(
    feature_map: FeatureMap,
    C: Float[Array, " s"],
    rows: Rows,
    intercept_penalty: Float[Array, ""] | None,
    mesh: Mesh | None,
    block_rows: int | None,
) -> Strategy:
    """Each fold removed from the one full solution, by the block leave-one-out identity."""

    # Only the total is needed: the sums of many small folds would cost more than all the rest.
    def sums(feature_map: FeatureMap, w: Array, X: Array, y: Array) -> NormalEquations:
        return accumulate(feature_map, X, y, w, block_rows=block_rows)

    total = sum_over_rows(mesh, _flat(sums), feature_map, rows.w, rows.X, rows.y, axis=1)
    full, f = total.solve(C, intercept_penalty), total.feature_sum
    centred = spectrum(total.gram - f[:, None] * f[None, :] / total.weight_sum)
    shared = Removal(feature_map, C, intercept_penalty, total, full, centred)
    return Strategy(shared, None, _remove, total, whole_folds=True)


class Removal(NamedTuple):
    """What the removal of every fold starts from."""

    feature_map: FeatureMap
    C: Float[Array, " s"]
    intercept_penalty: Float[Array, ""] | None
    total: NormalEquations
    full: Ridge  # solution of the total
    centred: Spectrum

    __repr__ = short_repr


def _remove(shared: Removal, fold: tuple[Rows, None]) -> Predicted:
    feature_map, C, intercept_penalty, total, full, centred = shared
    rows, _ = fold
    f, N, shifts = total.feature_sum, total.weight_sum, 1 / C
    if intercept_penalty is None:
        intercept_penalty = jnp.zeros((), C.dtype)
    alpha = rank_one_weight(N, intercept_penalty, C)[:, None, None]
    r = rows.X.shape[0]
    noise = 4 * r * epsilon(rows.X.dtype)

    # Rows without weight may hold anything: they are predicted, but no other row by them.
    given, w = feature_map(rows.X), rows.w[:, None]
    bound = float(jnp.finfo(given.dtype).max) ** 0.25  # products of products are in range
    phi = jnp.where((w > 0) | jnp.all(jnp.abs(given) < bound, axis=1, keepdims=True), given, 0)
    # The hat matrix among the fold's rows, H = q' M^(-1) q + 1/(N + p/C) with M and q as in
    # `ridge`: a quadratic form in [phi - f/N, f], and a rank-one term if the intercept is
    # penalised.
    corners = jnp.concatenate([(phi - f[None, :] / N).T, f[:, None]], axis=1)
    form = quadratic_form(centred, corners, shifts)
    inner, edge, corner = form[:, :r, :r], form[:, :r, r:], form[:, r:, r:]
    edge_t = jnp.swapaxes(edge, 1, 2)
    q = edge + alpha * corner
    hat = inner + alpha * (edge + edge_t) + alpha**2 * corner
    hat = hat - alpha / (1 + alpha * corner) * (q * jnp.swapaxes(q, 1, 2))
    hat = hat + (1 / (N + intercept_penalty * shifts))[:, None, None]

    fitted = dot(given[None], full.weights) + full.intercept[:, None, :]
    near = (w > 0) | jnp.all(jnp.isfinite(fitted), axis=(0, 2))[:, None]
    y = present_targets(rows.y, rows.w)
    error = jnp.where(near[None], y[None] - fitted, 0)
    root = jnp.sqrt(jax.lax.stop_gradient(w))

    # The errors without the fold, (I - H W)^(-1) error: linear in the weights, so that derivatives
    # are right where they are zero. It is solved for by the symmetric I - W^(1/2) H W^(1/2).
    def without(of: tuple[Array, Array]) -> tuple[Float[Array, "r c"], Float[Array, ""]]:
        hat, error = of
        fixed = jax.lax.stop_gradient(hat)
        scaled = root * fixed * root.T
        factor = jnp.linalg.cholesky((1 + noise) * jnp.eye(r, dtype=phi.dtype) - scaled)

        def inverse(b: Float[Array, "r c"]) -> Float[Array, "r c"]:
            solved = jax.scipy.linalg.cho_solve((factor, True), b)
            # Once against the matrix without its guard.
            rest = b - solved + dot(scaled, solved)
            return solved + jax.scipy.linalg.cho_solve((factor, True), rest)

        out = jax.lax.custom_linear_solve(
            lambda e: e - dot(hat, w * e),
            error,
            lambda _, b: b + dot(fixed, root * inverse(root * b)),
            lambda _, b: b + root * inverse(root * dot(fixed, b)),
        )
        return out, jnp.min(jnp.diagonal(factor))

    # On a CPU one after another: batches of triangular solves, of two threads or devices, may wait
    # for each other for ever (see `each_alone`).
    # A batch of one takes XLA's triangular solve, for such small systems faster than BLAS's.
    out, pivots = jax.lax.map(without, (hat, error), batch_size=systems_at_once())
    predictions = jnp.swapaxes(jnp.where(near[None], y[None], fitted) - out, 0, 1)
    # A pivot 1 - h at the level of rounding: the fold's rows are interpolated, and what the
    # model without them says is not in these numbers any more.
    lost = jnp.square(pivots) < 16 * noise
    finite = jnp.isfinite(predictions) | (w == 0)[:, None]
    failed = ~jnp.all(finite, axis=(0, 2))
    return predictions, jnp.maximum(status_of(failed, lost), full.status)
