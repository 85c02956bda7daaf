"""Subspace pursuit and CoSaMP: K atoms at every step, any of which may be exchanged."""

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._arguments import whole_number
from .._blocks import capacities, map_systems, of_capacity
from .._numerics import dot, epsilon, exponents, is_concrete, times_power
from .._programs import compiled
from .._repr import short_repr
from .._runtime import check_runtime, on_cpu
from .._status import COMPLETED, CONVERGED, INDEFINITE, NOT_FINITE, RUNNING
from .._types import CountLike, ScalarLike
from .on_atoms import Gram, Rows
from .path import atoms_for, scattered, unbatched
from .system import check_atoms, check_nonnegative, dictionary_system, rescaled, square_system

# Sizes of the least-squares problems for which code is compiled, in eighths of the largest.
_EIGHTHS = (1, 2, 3, 4, 6, 8)
_LEAST = 16  # smallest size; a smaller problem would save no time
Rule = Literal["subspace", "cosamp"]
Counts = int | Sequence[int] | Int[ArrayLike, "..."]


class Subspace(NamedTuple):
    """A sparse solution with a given number of atoms.

    Shapes are for one system, one number of atoms and one right-hand side. A batch of systems and
    several numbers of atoms add leading axes `v s` to every field. Several right-hand sides add a
    trailing axis to `coefficients`.
    """

    support: Int[Array, "..."]  # T, increasing, then -1; shape `k`
    coefficients: Float[Array, "..."]  # coefficients of these atoms, then 0; shape `k`
    residual_norm: Float[Array, "..."]  # |y - X w|, or |b - A w - ridge w|
    explained: Float[Array, "..."]  # |y|^2 - |y - X w|^2 - ridge |w|^2
    # numerical rank of the atoms, or of their Gram matrix for normal equations
    rank: Int[Array, "..."]
    iterations: Int[Array, "..."]  # number of iterations, including a last one in vain
    status: Int[Array, "..."]

    __repr__ = short_repr

    def dense(self, n_atoms: int) -> Float[Array, "..."]:
        """Return the coefficients of all atoms, including zeros, shape `n_atoms`.

        Raises:
            ValueError: if the support has atoms beyond `n_atoms`.
        """
        return scattered(self.support, self.coefficients, atoms_for(self.support, n_atoms))


class State(NamedTuple):
    """One pursuit; `k` is the largest number of atoms, and `r` counts rows of X or A."""

    support: Int[Array, " k"]  # T, increasing; unused places hold any atom
    weights: Float[Array, "k c"]  # coefficients of these atoms, 0 in unused places
    residual: Float[Array, "r c"]  # r = y - X w, or b - A w - ridge w
    loss: Float[Array, ""]  # |y - X w|^2 + ridge |w|^2, for normal equations less |y|^2
    rank: Int[Array, ""]
    iterations: Int[Array, ""]  # l; -1 before the first atoms
    status: Int[Array, ""]

    __repr__ = short_repr


def init(form: Rows | Gram, *, max_atoms: int) -> State:
    """Return the state without atoms; the first step selects the `T_0` of Algorithm 1."""
    dtype, count = form.target.dtype, jnp.zeros((), jnp.int32)
    return State(
        support=jnp.zeros(max_atoms, jnp.int32),
        weights=jnp.zeros((max_atoms, form.target.shape[1]), dtype),
        residual=form.target,
        loss=jnp.full((), jnp.inf, dtype),
        rank=count,
        iterations=count - 1,
        status=count + RUNNING,
    )


def step(
    state: State,
    form: Rows | Gram,
    n_kept: Int[Array, ""],
    tolerance: Float[Array, ""],
    start: Float[Array, ""],
    max_iterations: Int[Array, ""],
    *,
    rule: Rule,
) -> State:
    """Make one iteration of Algorithm 1; end if the loss does not fall.

    `n_kept` is K, the number of atoms to keep, and `start` is `|y|^2`, or `|b|^2`. For the other
    arguments see `subspace_pursuit_gram`.
    """
    after = _exchange(state, form, n_kept, rule=rule)
    falls = after.loss < state.loss
    finite = jnp.isfinite(after.loss) & jnp.all(jnp.isfinite(after.residual))
    iterations = state.iterations + 1
    squared_norm = jnp.sum(jnp.square(after.residual))
    status = jnp.where(iterations >= max_iterations, COMPLETED, RUNNING)
    status = jnp.where(squared_norm <= jnp.square(tolerance) * start, CONVERGED, status)
    status = jnp.where(falls, status, CONVERGED)
    # As the system is finite, values that are not finite come from a failed factorisation.
    status = jnp.where(finite, status, INDEFINITE if isinstance(form, Gram) else NOT_FINITE)
    next_state = jax.tree.map(lambda new, old: jnp.where(falls, new, old), after, state)
    return next_state._replace(iterations=iterations, status=status.astype(jnp.int32))


class Fit(NamedTuple):
    """The K atoms with the largest coefficients of a least-squares solution."""

    atoms: Int[Array, " t"]  # increasing; D stands for no atom
    weights: Float[Array, "t c"]
    rank: Int[Array, ""]  # rank of all atoms of the solution

    __repr__ = short_repr


def _exchange(state: State, form: Rows | Gram, n_kept: Int[Array, ""], *, rule: Rule) -> State:
    """Fit the present atoms and the atoms of largest scores; keep the K largest coefficients."""
    k, D, factor = len(state.support), form.n_atoms, (2 if rule == "cosamp" else 1)
    filled = (jnp.arange(k, dtype=jnp.int32) < n_kept) & (state.iterations >= 0)
    present = jnp.where(filled, state.support, D)
    score = form.score(state.residual, state.support, state.weights)
    new_atoms = jnp.where(_largest(score, factor * n_kept), jnp.arange(D, dtype=jnp.int32), D)
    # Sorting takes a third of the time of marking the atoms in a mask.
    candidates = jnp.sort(jnp.concatenate([new_atoms, present]))
    repeated = jnp.concatenate([jnp.zeros(1, bool), candidates[1:] == candidates[:-1]])
    max_candidates = min((factor + 1) * k, D)
    candidates = jnp.sort(jnp.where(repeated, D, candidates))[:max_candidates]
    fit = functools.partial(_fitted, form, n_kept)
    no_weights = jnp.zeros((max_candidates, state.weights.shape[1]), score.dtype)
    start = Fit(candidates, no_weights, state.rank)

    def unchanged(fitted: Fit) -> Bool[Array, ""]:
        return (state.iterations >= 0) & jnp.all(fitted.atoms[:k] == present)

    if rule == "cosamp":
        fitted = fit(start)
    else:
        must_drop = jnp.sum(candidates < D, dtype=jnp.int32) > n_kept

        def more_to_fit(carry: tuple[Array, Fit]) -> Bool[Array, ""]:
            n_fits, fitted = carry
            return (n_fits == 0) | (n_fits == 1) & must_drop & ~unchanged(fitted)

        # In a loop the least-squares program is compiled once.
        zero = jnp.zeros((), jnp.int32)
        _, fitted = jax.lax.while_loop(
            more_to_fit, lambda carry: (carry[0] + 1, fit(carry[1])), (zero, start)
        )
    support = jnp.minimum(fitted.atoms[:k], D - 1)
    # If no atom changes, the coefficients keep every digit.
    keeps_weights = unchanged(fitted) if rule == "subspace" else False
    weights = jnp.where(keeps_weights, state.weights, fitted.weights[:k])
    residual = form.residual(support, weights)
    return state._replace(
        support=support,
        weights=weights,
        residual=residual,
        loss=form.loss(residual, support, weights),
        rank=fitted.rank,
    )


def _largest(values: Float[Array, " t"], count: Int[Array, ""]) -> Bool[Array, " t"]:
    """Mark the `count` largest values, and among equal values the first.

    Negative values must all be equal. Bit patterns of non-negative floats are in the order of the
    floats, and integers sort ten times faster.
    """
    bits = jax.lax.bitcast_convert_type(values, jnp.dtype(f"int{8 * values.dtype.itemsize}"))
    cut = jnp.sort(bits)[jnp.maximum(len(values) - count, 0)]
    above, equal = bits > cut, bits == cut
    room = count - jnp.sum(above, dtype=jnp.int32)
    return above | equal & (jnp.cumsum(equal, dtype=jnp.int32) <= room)


def _fitted(form: Rows | Gram, n_kept: Int[Array, ""], candidates: Fit) -> Fit:
    """Fit the atoms of `candidates` by least squares; return the K largest coefficients."""
    atoms, D = candidates.atoms, form.n_atoms
    t, inside = len(atoms), atoms < D
    slots = jnp.minimum(atoms, D - 1)

    def solution(size: int) -> tuple[Array, Array]:
        weights, rank = form.solve(form.reduced(slots[:size], inside[:size]))
        return jnp.pad(weights, ((0, t - size), (0, 0))), rank

    count = jnp.sum(inside, dtype=jnp.int32)
    weights, rank = of_capacity(count, capacities(t, _EIGHTHS, _LEAST), solution)
    squared = jnp.where(inside, jnp.sum(jnp.square(weights), axis=1), -1)
    numbers = jnp.arange(t, dtype=jnp.int32)
    # Sorting makes equal sets equal arrays.
    places = jnp.sort(jnp.where(inside & _largest(squared, n_kept), numbers, t))
    filled, places = places < t, jnp.minimum(places, t - 1)
    weights = jnp.where(filled[:, None], weights[places], 0)
    return Fit(jnp.where(filled, slots[places], D), weights, rank)


def pursue(
    form: Rows | Gram,
    n_atoms: Int[Array, ""],
    tolerance: Float[Array, ""],
    max_iterations: Int[Array, ""],
    *,
    max_atoms: int,
    rule: Rule,
) -> Subspace:
    """Return the solution of one problem with `n_atoms` atoms by subspace pursuit or CoSaMP."""
    start = jnp.sum(jnp.square(form.target))
    tolerance = jnp.maximum(tolerance, 4 * epsilon(start.dtype))  # residual that rounding leaves
    final = jax.lax.while_loop(
        lambda state: state.status == RUNNING,
        lambda state: step(state, form, n_atoms, tolerance, start, max_iterations, rule=rule),
        init(form, max_atoms=max_atoms),
    )
    # A product propagates NaN and infinity, in a third of the time of testing every number.
    ones = jnp.ones((1, len(form[0])), start.dtype)
    finite = jnp.all(jnp.isfinite(dot(ones, form[0]))) & jnp.all(jnp.isfinite(form.target))
    squared_target = start if isinstance(form, Rows) else jnp.zeros_like(start)
    inside = jnp.arange(max_atoms, dtype=jnp.int32) < n_atoms
    return Subspace(
        support=jnp.where(inside, final.support, -1),
        coefficients=final.weights,
        residual_norm=jnp.sqrt(jnp.sum(jnp.square(final.residual))),
        explained=squared_target - final.loss,
        rank=jnp.minimum(final.rank, n_atoms),
        iterations=final.iterations,
        status=jnp.where(finite, final.status, NOT_FINITE).astype(jnp.int32),
    )


@functools.partial(compiled, static_argnames=("max_atoms", "rule", "gram"))
def run(
    matrix: Float[Array, "*v n D"],
    target: Float[Array, "*v n c"],
    n_atoms: Int[Array, " s"],
    ridge: Float[Array, " v"],
    tolerance: Float[Array, ""],
    max_iterations: Int[Array, ""],
    *,
    max_atoms: int,
    rule: Rule,
    gram: bool,
) -> Subspace:
    """Solve every system for every number of atoms; the results have leading axes `v s`.

    If `gram`, `matrix` and `target` are A and b (`n` is D), otherwise X and y. A single system may
    lack the axis `v`. The state of a pursuit is small, so a batch of loops copies no matrix.
    """
    form = Gram.of if gram else Rows

    def solve_system(system: tuple[Array, Array, Array]) -> Subspace:
        solve_count = functools.partial(
            pursue,
            form(*system),
            tolerance=tolerance,
            max_atoms=max_atoms,
            max_iterations=max_iterations,
            rule=rule,
        )
        return map_systems(solve_count, n_atoms)

    if matrix.ndim == 2:  # another axis would copy the matrix
        return jax.tree.map(lambda a: a[None], solve_system((matrix, target, ridge[0])))
    return map_systems(solve_system, (matrix, target, ridge))


def subspace_pursuit(
    X: Float[ArrayLike, "..."],
    y: Float[ArrayLike, "..."],
    *,
    n_atoms: Counts,
    max_atoms: int | None = None,
    max_iterations: CountLike = 50,
    tolerance: ScalarLike = 0.0,
    ridge: ScalarLike = 0.0,
) -> Subspace:
    """Solve `X w = y` with exactly K atoms by subspace pursuit (Dai and Milenkovic 2009).

    This is Algorithm 1 of Kabbara 2015. It begins with the K atoms most correlated with y. An
    iteration adds the K atoms most correlated with the residual and fits all atoms by least
    squares. It keeps the K atoms with the largest coefficients and fits these again. The pursuit
    ends when the residual does not fall. The number of iterations does not depend on K, and a
    selected atom may be dropped again.

    If atoms are dependent, the pseudo-inverse gives the least-squares solution. It comes from a QR
    decomposition of the atoms and a singular value decomposition of the triangle. The errors of the
    coefficients grow with the condition number of the atoms, not with its square. An iteration
    costs two products with X and `O(n K^2 + K^3)`.

    Args:
        X: dictionary, one atom per column, shape `n D`, or `v n D` for a batch. Atoms are compared
            by coefficients and correlations. Scale them to one length if lengths should not count.
        y: shape `n`, or `n c` for several right-hand sides that select together; after the axis `v`
            of a batch.
        n_atoms: K, or several numbers, shape `s`, each solved separately. On a CPU the time grows
            with K in six steps up to `max_atoms`. The numbers are traced, so other numbers do not
            compile again. Under `vmap` each number takes the time of `max_atoms`.
        max_atoms: upper limit of K (static). By default the largest K, which must be concrete.
        max_iterations: limit of iterations, the source's l_max.
        tolerance: end when `|y - X w| <= tolerance |y|`.
        ridge: minimise `|y - X w|^2 + ridge |w|^2` in the fits.

    Returns:
        `Subspace`. The status is `CONVERGED` by the tolerance or if the residual no longer falls,
        `COMPLETED` at `max_iterations`, or `NOT_FINITE`.

    Works under `jit` and `vmap`, but a batch is faster than `vmap`. Not differentiable, unlike
    `least_squares` on the selected atoms.

    Raises:
        ValueError: for shapes that do not fit, K below 1 or above `max_atoms` or D, no iterations,
            or a negative tolerance or ridge.
    """
    return _of_rows(X, y, n_atoms, max_atoms, max_iterations, tolerance, ridge, "subspace")


def cosamp(
    X: Float[ArrayLike, "..."],
    y: Float[ArrayLike, "..."],
    *,
    n_atoms: Counts,
    max_atoms: int | None = None,
    max_iterations: CountLike = 50,
    tolerance: ScalarLike = 0.0,
    ridge: ScalarLike = 0.0,
) -> Subspace:
    """Solve `X w = y` by CoSaMP (Needell and Tropp 2009, Algorithm 1).

    Unlike `subspace_pursuit` it adds 2K atoms in an iteration, and does not fit the K largest of
    the up to 3K coefficients again. If the residual does not fall, it ends with the previous
    solution, as the source states no rule. `subspace_pursuit` explains arguments, result and
    errors.
    """
    return _of_rows(X, y, n_atoms, max_atoms, max_iterations, tolerance, ridge, "cosamp")


def subspace_pursuit_gram(
    A: Float[ArrayLike, "..."],
    b: Float[ArrayLike, "..."],
    *,
    n_atoms: Counts,
    max_atoms: int | None = None,
    max_iterations: CountLike = 50,
    tolerance: ScalarLike = 0.0,
    ridge: ScalarLike = 0.0,
    rule: Rule = "subspace",
) -> Subspace:
    """Run `subspace_pursuit` or `cosamp` on `A = X'X` and `b = X'y`, for repeated use.

    The cost does not depend on the number of rows; each fit is a Cholesky factorisation. But
    squaring loses precision. Directions are not resolved but damped if their singular value is
    below the root of epsilon times the largest. In the limit they are removed, as by the
    pseudo-inverse. `rank` is the number of resolved directions.

    Args:
        A: symmetric, positive semi-definite, shape `D D` or `v D D`.
        b: shape `D`, or `D c` for several right-hand sides that select together; after the axis `v`
            of a batch.
        n_atoms: K, or several numbers, shape `s`, each solved separately.
        max_atoms: upper limit of K (static). By default the largest K, which must be concrete.
        max_iterations: limit of iterations.
        tolerance: end when `|b - A w - ridge w| <= tolerance |b|`.
        ridge: number added to the diagonal of A.
        rule: "subspace" or "cosamp" (static).

    Returns:
        `Subspace`. Its residual norm `|b - A w - ridge w|` may grow while the error on rows falls.
        The status is a status of `subspace_pursuit`, or `INDEFINITE` if A is not positive
        semi-definite.

    Raises:
        ValueError: as in `subspace_pursuit`; also for an unknown rule, or a negative entry on the
            diagonal of A.
    """
    if rule not in ("subspace", "cosamp"):
        raise ValueError(f"rule: expected 'subspace' or 'cosamp', got {rule!r}")
    check_runtime()
    A, b = square_system(A, b)
    if is_concrete(A) and np.any(np.diagonal(np.asarray(A), axis1=-2, axis2=-1) < 0):
        raise ValueError("A: expected a positive semi-definite matrix, got one with diagonal < 0")
    return _solutions(A, b, n_atoms, max_atoms, max_iterations, tolerance, ridge, rule, gram=True)


def _of_rows(X: Float[ArrayLike, "..."], y: Float[ArrayLike, "..."], *options: Any) -> Subspace:
    check_runtime()
    return _solutions(*dictionary_system(X, y), *options, gram=False)


def _solutions(
    matrix: Float[Array, "..."],
    target: Float[Array, "..."],
    n_atoms: Counts,
    max_atoms: int | None,
    max_iterations: CountLike,
    tolerance: ScalarLike,
    ridge: ScalarLike,
    rule: Rule,
    *,
    gram: bool,
) -> Subspace:
    """Check the arguments, and return the solutions in the caller's units and axes."""
    batched, several = matrix.ndim == 3, target.ndim == matrix.ndim
    counts, limit, single_count = _counts(n_atoms, max_atoms, matrix.shape[-1])
    check_nonnegative("tolerance", tolerance)
    check_nonnegative("ridge", ridge)
    if is_concrete(max_iterations):
        whole_number("max_iterations", max_iterations, 1)
    target = target if several else target[..., None]
    matrix, matrix_exponent = _scaled(matrix, batched)
    target, target_exponent = _scaled(target, batched)
    ridges = jnp.full(len(matrix_exponent), ridge, matrix.dtype)
    solutions = run(
        matrix,
        target,
        counts,
        times_power(ridges, -matrix_exponent if gram else -2 * matrix_exponent),
        jnp.asarray(tolerance, matrix.dtype),
        jnp.asarray(max_iterations, jnp.int32),
        max_atoms=limit,
        rule=rule,
        gram=gram,
    )
    squares = 2 * target_exponent - matrix_exponent if gram else 2 * target_exponent
    exponents_of_fields = target_exponent - matrix_exponent, target_exponent, squares
    return _in_caller_units(solutions, exponents_of_fields, batched, several, single_count)


@functools.partial(compiled, static_argnums=(2, 3, 4))
def _in_caller_units(
    result: Subspace,
    exponents_of_fields: tuple[Int[Array, " v"], Int[Array, " v"], Int[Array, " v"]],
    batched: bool,
    several: bool,
    single_count: bool,
) -> Subspace:
    """Return a result in the caller's units, without axes that the caller's arrays lack."""
    result = rescaled(result, *exponents_of_fields)
    if single_count:
        result = Subspace(*(a[:, 0] for a in result))
    return unbatched(result, batched, several)


def _scaled(x: Float[Array, "..."], batched: bool) -> tuple[Array, Int[Array, " v"]]:
    """Divide each array of a batch by a power of two, to near 1; return the exponents too.

    If squares and their sums are far within the range of the dtype, the array is unchanged, because
    scaling a large matrix takes as long as several iterations.
    """
    v = len(x) if batched else 1
    if is_concrete(x):
        if on_cpu():  # XLA takes five times as long as NumPy
            flat = np.asarray(x).reshape(v, -1)
            largest = np.maximum(flat.max(axis=1, initial=0), -flat.min(axis=1, initial=0))
        else:
            largest = np.asarray(jnp.max(jnp.abs(x.reshape(v, -1)), axis=1, initial=0))
        limit = 2.0 ** (int(jnp.finfo(x.dtype).maxexp) // 8)
        if np.all((largest == 0) | ((largest > 1 / limit) & (largest < limit))):
            return x, jnp.zeros(v, jnp.int32)
    arrays = x if batched else x[None]
    exponent = exponents(arrays)
    arrays = times_power(arrays, -exponent)
    return arrays if batched else arrays[0], exponent


def _counts(n_atoms: Counts, max_atoms: int | None, D: int) -> tuple[Int[Array, " s"], int, bool]:
    """Return `n_atoms` as a vector, its upper limit, and whether `n_atoms` was a single number."""
    if max_atoms is not None:
        max_atoms = check_atoms(max_atoms, D)
    limit = D if max_atoms is None else max_atoms
    if not is_concrete(n_atoms):
        if max_atoms is None:
            raise ValueError("max_atoms: expected a number, as n_atoms is traced")
        counts = jnp.asarray(n_atoms)
    else:
        limit_name = "the number of atoms" if max_atoms is None else "max_atoms"
        flat = np.asarray(n_atoms)
        if flat.ndim > 1 or flat.size == 0:
            raise ValueError(f"n_atoms: expected one number or a vector, got {n_atoms!r}")
        counts_list = [whole_number("n_atoms", k, 1, limit, limit_name) for k in flat.reshape(-1)]
        limit = max(counts_list) if max_atoms is None else limit
        counts = jnp.asarray(np.reshape(counts_list, flat.shape), jnp.int32)
    if counts.ndim > 1 or not jnp.issubdtype(counts.dtype, jnp.integer):
        raise ValueError(f"n_atoms: expected one whole number or a vector, got {counts.dtype}")
    return jnp.atleast_1d(counts.astype(jnp.int32)), limit, counts.ndim == 0
