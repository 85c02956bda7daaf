"""Cross-validation of ridge regression: one factorisation serves every `C`."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._blocks import map_systems, rows_in_block, systems_at_once
from .._mesh import spread, sum_over_rows
from .._numerics import dot, epsilon, present_targets
from .._status import CONVERGED, TRUNCATED, status_of
from .._types import Key, PointTable
from ..features import FeatureMap
from ..kernels import Kernel
from ..multiclass import Code, solve_code
from ..normal_equations import NormalEquations, accumulate, accumulate_groups
from ..solvers.ridge import LARGE, Spectrum, quadratic_form, rank_one_weight, spectrum
from ..solvers.ridge import Ridge as RidgeSolution
from .from_sums import FromSums, accumulate_parts
from .held_out import HeldOut, OnFold, Sums, each_fold, folds_wanted, zeros_unless
from .rows import FoldLayout, Rows

Way = Literal["auto", "subtraction", "removal"]
# With more rows in a fold, the sums of a kernel are kept between evaluations of it.
LARGE_FOLD = 1024


class Ridge(FromSums):
    """A method whose machine is ridge regression on features, with the squared norm as penalty."""

    def fits_from_fold_sums(self, r: int, s: int) -> bool:
        """See `Method.fits_from_fold_sums`: with large folds, which `held_out` subtracts."""
        p = self.n_features
        return isinstance(p, int) and r > LARGE_FOLD and cheaper(p, r, s) == "subtraction"

    def held_out(
        self, kernel: Kernel, points: PointTable, C: Float[Array, " s"], rows: Rows,
        folds: FoldLayout, on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """See `Method.held_out`, and `held_out` of this module."""
        assert points is not None
        return held_out(self.features(kernel, points), C, rows.by_fold(folds), on_fold)

    def held_out_from_sums(
        self, sums: Sums, per_fold: NormalEquations, C: Float[Array, " s"], parts: Rows,
        on_fold: OnFold, key: Key | None = None,
    ) -> HeldOut:  # fmt: skip
        """See `FromSums.held_out_from_sums`: one decomposition for each fold that is wanted."""
        return _by_subtraction(
            sums.features, per_fold, C, parts, on_fold, total=sums.equations, only_wanted=True
        )


def held_out(
    features: FeatureMap,
    C: Float[Array, " s"],
    parts: Rows,
    on_fold: OnFold,
    *,
    way: Way = "auto",
    intercept_penalty: Float[Array, ""] | None = None,
    block_rows: int | None = None,
) -> HeldOut:
    """Predict every fold by ridge regression on all other rows, for every `C`.

    Two algorithms give equal predictions up to rounding (De Brabanter 2010, Table 2):

    - subtraction: one decomposition for each fold serves every `C`. It is faster for few, large
      folds, and necessary if some problems of a code leave out rows.
    - removal: only one decomposition, of all rows. Each fold is removed from the full solution by
      the block form of the leave-one-out identity, `e_out = (I - H_ff)^(-1) e_f` with `H` the hat
      matrix. It is faster for folds of far fewer rows than features.

    Args:
        features: feature map; the penalty is the squared norm of the features' coefficients.
        C: weights of the data-fit term, shape `s`.
        parts: rows laid out by folds.
        on_fold: reduces the predictions of each fold, see `OnFold`.
        way: "subtraction", "removal", or "auto" for the faster one (static).
        intercept_penalty: see `solvers.ridge`.
        block_rows: rows in memory at a time (static).
    """
    if parts.code is not None and not parts.code.shares_all_rows:
        per_fold = _sums_by_class(features, parts, parts.code, block_rows)
    else:
        if way == "auto":
            way = cheaper(features.n_features, parts.weights.shape[1], C.shape[0])
        if way == "removal":
            return _by_removal(features, C, parts, on_fold, intercept_penalty, block_rows)
        per_fold = accumulate_parts(features, parts, block_rows=block_rows)
    return _by_subtraction(features, per_fold, C, parts, on_fold, intercept_penalty, block_rows)


def cheaper(p: int, r: int, s: int) -> Literal["subtraction", "removal"]:
    """Return the cheaper algorithm for `p` features, `r` rows in a fold and `s` values of `C`."""
    if p > LARGE:  # subtraction then needs a Cholesky factor for each fold and C, no decomposition
        return "subtraction"
    # On a CPU of two cores a decomposition took as long as this many operations of a removal, whose
    # small products and factors run slower than large products (13 shapes in both precisions).
    decompose = 3 * p**3
    remove = 2 * p**2 * r + s * (2 * p * r**2 + 3 * r**3)  # rotate; hat matrices; Cholesky
    return "removal" if remove <= decompose else "subtraction"


def _sums_by_class(
    features: FeatureMap, parts: Rows, code: Code, block_rows: int | None
) -> NormalEquations:
    """Return the sums without targets over each class of each fold, axes `v k`: folds, classes."""
    v, k = parts.weights.shape[0], code.matrix.shape[0]
    group = jnp.arange(v, dtype=jnp.int32)[:, None] * k + parts.y

    def by_group(features: FeatureMap, w: Array, X: Array, group: Array) -> NormalEquations:
        no_targets = jnp.zeros((X.shape[0], 0), X.dtype)
        return accumulate_groups(
            features, X, no_targets, w, group, n_groups=v * k, block_rows=block_rows
        )

    arrays = parts.weights, parts.X, group
    sums = sum_over_rows(parts.mesh, _of_flat_rows(by_group), features, *arrays, axis=1)
    return jax.tree.map(lambda a: a.reshape(v, k, *a.shape[1:]), sums)


def _of_flat_rows(function: Callable[..., NormalEquations]) -> Callable[..., NormalEquations]:
    """Return `function` with the axes `v r` of its row arrays flattened to one."""
    return lambda shared, *rows: function(shared, *(a.reshape(-1, *a.shape[2:]) for a in rows))


def _by_subtraction(
    features: FeatureMap,
    per_fold: NormalEquations,
    C: Float[Array, " s"],
    parts: Rows,
    on_fold: OnFold,
    intercept_penalty: Float[Array, ""] | None = None,
    block_rows: int | None = None,
    total: NormalEquations | None = None,
    only_wanted: bool = False,
) -> HeldOut:
    """Predict each fold by the solution of the total less the fold (De Brabanter 2010, eq. 20-21).

    `per_fold` has the sums of each fold, with an axis of classes after the folds if some problems
    of the code leave out rows. `total` has the sums over all rows; None to add up the folds. With
    `only_wanted`, see `each_fold`.
    Float32 solutions are not refined: refinement takes longer, and changes scores by far less than
    the rounding of features and sums does.
    """
    total = per_fold.joined if total is None else total
    by_class = parts.code is not None and not parts.code.shares_all_rows

    def solve(
        shared: tuple[NormalEquations, Code | None, Array, Array | None], folds: NormalEquations
    ) -> tuple[Array, Array, Array]:
        total, code, C, penalty = shared

        def one(fold: NormalEquations) -> tuple[Array, Array, Array]:
            if code is None:
                solved = (total - fold).solve(C, penalty, refine=False)
            else:
                solved = solve_code(code, total - fold, C, penalty, refine=False)
            return solved.weights, solved.intercept, solved.status

        if wanted is not None:
            return map_systems(zeros_unless(one), (folds, wanted))
        return jax.lax.map(one, folds) if by_class else map_systems(one, folds)

    wanted = folds_wanted(on_fold) if only_wanted and parts.mesh is None else None
    shared = total, parts.code, C, intercept_penalty
    solutions = spread(solve, parts.mesh, (None, 0), 0)(shared, per_fold)

    def predict(
        features: FeatureMap, rows: Rows, solution: tuple[Array, Array, Array]
    ) -> tuple[Float[Array, "r s l"], Int[Array, " s"]]:
        weights, intercepts, status = solution
        s, p, c = weights.shape
        columns = jnp.moveaxis(weights, 0, 1).reshape(p, s * c)
        model = features.expansion(columns, intercepts.reshape(s * c))
        return model(rows.X, block_rows=block_rows).reshape(-1, s, c), status

    at_once = rows_in_block(block_rows)
    options = {"at_once": at_once, "only_wanted": only_wanted}
    validated = each_fold(predict, features, solutions, C, parts, on_fold, **options)
    energy = (total.joined if by_class else total).energy
    total = total if by_class else total.with_outputs(parts.outputs)
    return _completed(validated, C, Sums(features, total), energy)


def _by_removal(
    features: FeatureMap,
    C: Float[Array, " s"],
    parts: Rows,
    on_fold: OnFold,
    intercept_penalty: Float[Array, ""] | None,
    block_rows: int | None,
) -> HeldOut:
    """Predict each fold by removing it from the full solution, see `held_out`."""

    # Sum all rows at once: separate sums of many small folds would dominate the time.
    def sums(features: FeatureMap, w: Array, X: Array, y: Array) -> NormalEquations:
        return accumulate(features, X, y, w, block_rows=block_rows)

    arrays = parts.weights, parts.X, parts.target_columns
    total = sum_over_rows(parts.mesh, _of_flat_rows(sums), features, *arrays, axis=1)
    full, f = total.solve(C, intercept_penalty), total.feature_sum
    centred = spectrum(total.gram - f[:, None] * f[None, :] / total.weight_sum)
    penalty = jnp.zeros((), C.dtype) if intercept_penalty is None else intercept_penalty
    shared = features, C, penalty, total, full, centred
    validated = each_fold(_without_fold, shared, None, C, parts, on_fold)
    return _completed(validated, C, Sums(features, total.with_outputs(parts.outputs)), total.energy)


def _completed(
    validated: HeldOut, C: Float[Array, " s"], sums: Sums, energy: Float[Array, " p"]
) -> HeldOut:
    """Add `sums`, and status `TRUNCATED` for each `C` that features lost to rounding would change.

    `energy` is the weighted sum of squares of each feature about its mean.
    """
    unresolved = sums.features.unresolved(C, energy)
    lost = jnp.where(unresolved, TRUNCATED, CONVERGED).astype(jnp.int32)
    return validated._replace(statuses=jnp.maximum(validated.statuses, lost), total=sums)


def _without_fold(
    shared: tuple[FeatureMap, Array, Array, NormalEquations, RidgeSolution, Spectrum],
    rows: Rows,
    _: None,
) -> tuple[Float[Array, "r s l"], Int[Array, " s"]]:
    """Predict the rows of one fold by machines fitted without it; return also a stop code per `C`.

    `_by_removal` makes `shared`: feature map, `C`, penalty of the intercept, normal equations of
    all rows, their solution for every `C`, and the spectrum of their centred Gram matrix.
    """
    features, C, intercept_penalty, total, full, centred = shared
    f, N, shifts = total.feature_sum, total.weight_sum, 1 / C
    alpha = rank_one_weight(N, intercept_penalty, C)[:, None, None]
    r = rows.X.shape[0]
    noise = 4 * r * epsilon(rows.X.dtype)

    # Zero-weight rows may hold any values: they are predicted, but must not affect other rows.
    values, w = features(rows.X), rows.weights[:, None]
    bound = float(jnp.finfo(values.dtype).max) ** 0.25  # fourth powers of features stay finite
    phi = jnp.where((w > 0) | jnp.all(jnp.abs(values) < bound, axis=1, keepdims=True), values, 0)
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

    fitted = dot(values[None], full.weights) + full.intercept[:, None, :]
    predictable = (w > 0) | jnp.all(jnp.isfinite(fitted), axis=(0, 2))[:, None]
    y = present_targets(rows.target_columns, rows.weights)
    error = jnp.where(predictable[None], y[None] - fitted, 0)
    root = jnp.sqrt(jax.lax.stop_gradient(w))

    # Solve (I - H W) e = error for the errors e of the machine fitted without the fold. This form
    # is linear in the weights, so that derivatives are right at weights of 0. Its solution comes
    # from a Cholesky factor of the symmetric I - W^(1/2) H W^(1/2).
    def without(system: tuple[Array, Array]) -> tuple[Float[Array, "r c"], Float[Array, ""]]:
        hat, error = system
        fixed = jax.lax.stop_gradient(hat)
        scaled = root * fixed * root.T
        factor = jnp.linalg.cholesky((1 + noise) * jnp.eye(r, dtype=phi.dtype) - scaled)

        def inverse(b: Float[Array, "r c"]) -> Float[Array, "r c"]:
            solved = jax.scipy.linalg.cho_solve((factor, True), b)
            # One refinement step removes the effect of `noise` on the diagonal.
            residual = b - solved + dot(scaled, solved)
            return solved + jax.scipy.linalg.cho_solve((factor, True), residual)

        out = jax.lax.custom_linear_solve(
            lambda e: e - dot(hat, w * e),
            error,
            lambda _, b: b + dot(fixed, root * inverse(root * b)),
            lambda _, b: b + root * inverse(root * dot(fixed, b)),
        )
        return out, jnp.min(jnp.diagonal(factor))

    # On a CPU solve one system at a time: batches of triangular solves may deadlock, see
    # `unbatched_lapack`. A batch of one uses XLA's triangular solve, which beats BLAS's on
    # small systems.
    out, pivots = jax.lax.map(without, (hat, error), batch_size=systems_at_once())
    predictions = jnp.swapaxes(jnp.where(predictable[None], y[None], fitted) - out, 0, 1)
    # If a pivot 1 - h is at the level of rounding, the full solution interpolates the fold's rows,
    # and rounding decides the predictions without them.
    lost = jnp.square(pivots) < 16 * noise
    finite = jnp.isfinite(predictions) | (w == 0)[:, None]
    failed = ~jnp.all(finite, axis=(0, 2))
    return predictions, jnp.maximum(status_of(failed, lost), full.status)
