"""Subspace pursuit and CoSaMP: exactly K atoms at every step, any of which may be exchanged."""

import functools
import operator
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._arguments import whole_number
from .._blocks import capacities, map_systems, of_capacity
from .._numerics import dot, epsilon, exponents, is_concrete, times_power
from .._programs import compiled
from .._repr import short_repr
from .._runtime import check_runtime
from .._status import COMPLETED, CONVERGED, INDEFINITE, NOT_FINITE, RUNNING
from .._types import CountLike, ScalarLike
from .on_atoms import Gram, Rows
from .system import check_atoms, check_nonnegative, in_finer_dtype

# sizes of least squares, in sixths of the largest, for which code is compiled
_EIGHTHS = (1, 2, 3, 4, 6, 8)
_LEAST = 16  # smallest size for which this is worthwhile
Rule = Literal["subspace", "cosamp"]
Counts = int | Sequence[int] | Int[ArrayLike, "..."]


class Subspace(NamedTuple):
    """A sparse solution with a given number of atoms.

    Shapes are for one system, one number of atoms and one right-hand side; a batch of systems
    and several numbers of atoms add leading axes `v s` to every field, several right-hand sides a
    trailing one to `coefficients`.
    """

    support: Int[Array, "..."]  # T, increasing, then -1; shape `k`
    coefficients: Float[Array, "..."]  # coefficients of these atoms, then 0; shape `k`
    residual_norm: Float[Array, "..."]  # |y - X w|; for normal equations |b - A w|
    explained: Float[Array, "..."]  # |y|^2 - |y - X w|^2 - ridge |w|^2
    # numerical rank of the atoms; for normal equations, of their Gram matrix
    rank: Int[Array, "..."]
    iterations: Int[Array, "..."]  # number of iterations, including a last one without progress
    status: Int[Array, "..."]

    __repr__ = short_repr

    def dense(self, n_atoms: int) -> Float[Array, "..."]:
        """Return the coefficients of all atoms, including zeros, shape `n_atoms`."""
        return _dense(self.support, self.coefficients, operator.index(n_atoms))


@functools.partial(compiled, static_argnames="n_atoms")
def _dense(
    support: Int[Array, "*v k"], coefficients: Float[Array, "..."], n_atoms: int
) -> Float[Array, "..."]:
    several = coefficients.ndim > support.ndim
    columns = coefficients if several else coefficients[..., None]

    def one(support: Int[Array, " k"], own: Float[Array, "k c"]) -> Float[Array, "D c"]:
        out = jnp.zeros((n_atoms, own.shape[1]), own.dtype)
        return out.at[jnp.where(support < 0, n_atoms, support)].add(own, mode="drop")

    for _ in range(support.ndim - 1):
        one = jax.vmap(one)
    out = one(support, columns)
    return out if several else out[..., 0]


class State(NamedTuple):
    """One pursuit; `k` is the largest number of atoms."""

    support: Int[Array, " k"]  # T, increasing; unused places hold any atom
    weights: Float[Array, "k c"]  # coefficients of these, 0 in unused places
    left: Float[Array, "r c"]  # r = y - X w, or b - A w
    loss: Float[Array, ""]  # |y - X w|^2 + ridge |w|^2, or w'A w - 2 b'w
    rank: Int[Array, ""]
    iterations: Int[Array, ""]  # l; -1 before the first atoms
    status: Int[Array, ""]

    __repr__ = short_repr


def init(form: Rows | Gram, *, max_atoms: int) -> State:
    """Return the state without atoms; the first step selects the `T_0` of Algorithm 1."""
    start = form.start()
    zero, count = jnp.zeros((), start.dtype), jnp.zeros((), jnp.int32)
    return State(
        support=jnp.zeros(max_atoms, jnp.int32),
        weights=jnp.zeros((max_atoms, start.shape[1]), start.dtype),
        left=start,
        loss=zero + jnp.inf,
        rank=count,
        iterations=count - 1,
        status=count + RUNNING,
    )


def step(
    state: State,
    form: Rows | Gram,
    n_atoms: Int[Array, ""],
    tolerance: Float[Array, ""],
    start: Float[Array, ""],
    max_iterations: Int[Array, ""],
    *,
    rule: Rule,
) -> State:
    """Make one iteration of Algorithm 1; end if the residual does not fall.

    Args:
        state: before.
        form: the system.
        n_atoms: K.
        tolerance: see `subspace_pursuit`.
        start: `|y|^2`, or `|b|^2`.
        max_iterations: of the loop.
        rule: "subspace" or "cosamp" (static).
    """
    after = _exchange(state, form, n_atoms, rule=rule)
    falls = after.loss < state.loss
    finite = jnp.isfinite(after.loss) & jnp.all(jnp.isfinite(after.left))
    iterations = state.iterations + 1
    norm = jnp.sum(jnp.square(after.left))
    status = jnp.where(iterations >= max_iterations, COMPLETED, RUNNING)
    status = jnp.where(norm <= jnp.square(tolerance) * start, CONVERGED, status)
    status = jnp.where(falls, status, CONVERGED)
    # The system is finite, so a value that is not finite comes from a factor that does not exist.
    status = jnp.where(finite, status, INDEFINITE if isinstance(form, Gram) else NOT_FINITE)
    taken = jax.tree.map(lambda new, old: jnp.where(falls, new, old), after, state)
    return taken._replace(iterations=iterations, status=status.astype(jnp.int32))


class Fit(NamedTuple):
    """A least-squares solution on some atoms, and its K atoms with the largest coefficients."""

    atoms: Int[Array, " t"]  # increasing, then D
    weights: Float[Array, "t c"]
    rank: Int[Array, ""]  # rank of all its atoms

    __repr__ = short_repr


def _exchange(state: State, form: Rows | Gram, n_atoms: Int[Array, ""], *, rule: Rule) -> State:
    """Fit the present and the new atoms, and return the K largest coefficients."""
    k, D, more = len(state.support), form.n_atoms, (2 if rule == "cosamp" else 1)
    filled = (jnp.arange(k, dtype=jnp.int32) < n_atoms) & (state.iterations >= 0)
    present = jnp.where(filled, state.support, D)
    score = form.score(state.left, state.support, state.weights)
    coming = jnp.where(_largest(score, more * n_atoms), jnp.arange(D, dtype=jnp.int32), D)
    # Sorting takes a third of the time of marking the atoms in a mask.
    named = jnp.sort(jnp.concatenate([coming, present]))
    again = jnp.concatenate([jnp.zeros(1, bool), named[1:] == named[:-1]])
    most = min((more + 1) * k, D)
    named = jnp.sort(jnp.where(again, D, named))[:most]
    fit = functools.partial(_fitted, form, n_atoms)
    start = Fit(named, jnp.zeros((most, state.weights.shape[1]), score.dtype), state.rank)

    def unchanged(fitted: Fit) -> Bool[Array, ""]:
        return (state.iterations >= 0) & jnp.all(fitted.atoms[:k] == present)

    if rule == "cosamp":
        fitted = fit(start)
    else:
        some_go = jnp.sum(named < D, dtype=jnp.int32) > n_atoms

        def more_to_fit(carry: tuple[Array, Fit]) -> Bool[Array, ""]:
            times, fitted = carry
            return (times == 0) | (times == 1) & some_go & ~unchanged(fitted)

        # A loop, so that least squares is compiled once.
        zero = jnp.zeros((), jnp.int32)
        _, fitted = jax.lax.while_loop(
            more_to_fit, lambda carry: (carry[0] + 1, fit(carry[1])), (zero, start)
        )
    support = jnp.minimum(fitted.atoms[:k], D - 1)
    # Unchanged atoms keep their coefficients, to the last digit.
    same = unchanged(fitted) if rule == "subspace" else False
    weights = jnp.where(same, state.weights, fitted.weights[:k])
    left = form.left(support, weights)
    return state._replace(
        support=support,
        weights=weights,
        left=left,
        loss=form.loss(left, support, weights),
        rank=fitted.rank,
    )


def _largest(values: Float[Array, " t"], count: Int[Array, ""]) -> Bool[Array, " t"]:
    """Return the places of the largest values; of equal values the first.

    Negative values must be equal.

    Non-negative floats have the order of their bit patterns, and integers sort ten times faster.
    """
    bits = jax.lax.bitcast_convert_type(values, jnp.dtype(f"int{8 * values.dtype.itemsize}"))
    cut = jnp.sort(bits)[jnp.maximum(len(values) - count, 0)]
    above, equal = bits > cut, bits == cut
    room = count - jnp.sum(above, dtype=jnp.int32)
    return above | equal & (jnp.cumsum(equal, dtype=jnp.int32) <= room)


def _fitted(form: Rows | Gram, n_atoms: Int[Array, ""], given: Fit) -> Fit:
    """Return the least-squares solution on the given atoms."""
    atoms, D = given.atoms, form.n_atoms
    t, inside = len(atoms), atoms < D
    slots = jnp.minimum(atoms, D - 1)

    def solution(size: int) -> tuple[Array, Array]:
        weights, rank = form.solve(form.reduced(slots[:size], inside[:size]))
        return jnp.pad(weights, ((0, t - size), (0, 0))), rank

    count = jnp.sum(inside, dtype=jnp.int32)
    weights, rank = of_capacity(count, capacities(t, _EIGHTHS, _LEAST), solution)
    size = jnp.where(inside, jnp.sum(jnp.square(weights), axis=1), -1)
    numbers = jnp.arange(t, dtype=jnp.int32)
    # In increasing order, so that equal sets are equal arrays.
    places = jnp.sort(jnp.where(inside & _largest(size, n_atoms), numbers, t))
    filled, places = places < t, jnp.minimum(places, t - 1)
    return Fit(
        jnp.where(filled, slots[places], D), jnp.where(filled[:, None], weights[places], 0), rank
    )


def pursue(
    form: Rows | Gram,
    n_atoms: Int[Array, ""],
    tolerance: Float[Array, ""],
    max_iterations: Int[Array, ""],
    *,
    max_atoms: int,
    rule: Rule,
) -> Subspace:
    """Iterate one pursuit until it ends; see `subspace_pursuit`."""
    start = jnp.sum(jnp.square(form.start()))
    tolerance = jnp.maximum(tolerance, 4 * epsilon(start.dtype))  # residual that rounding leaves
    last = jax.lax.while_loop(
        lambda state: state.status == RUNNING,
        lambda state: step(state, form, n_atoms, tolerance, start, max_iterations, rule=rule),
        init(form, max_atoms=max_atoms),
    )
    # A product takes a third of the time of testing every number, and propagates NaN and infinity.
    ones = jnp.ones((1, len(form[0])), start.dtype)
    finite = jnp.all(jnp.isfinite(dot(ones, form[0]))) & jnp.all(jnp.isfinite(form[1]))
    total = start if isinstance(form, Rows) else jnp.zeros_like(start)
    inside = jnp.arange(max_atoms, dtype=jnp.int32) < n_atoms
    return Subspace(
        support=jnp.where(inside, last.support, -1),
        coefficients=last.weights,
        residual_norm=jnp.sqrt(jnp.sum(jnp.square(last.left))),
        explained=total - last.loss,
        rank=jnp.minimum(last.rank, n_atoms),
        iterations=last.iterations,
        status=jnp.where(finite, last.status, NOT_FINITE).astype(jnp.int32),
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

    A single system may lack the axis `v`.

    The state of a pursuit is small, so a batch of loops copies no matrix.
    """
    form = Gram.of if gram else Rows

    def one(of: tuple[Array, Array, Array]) -> Subspace:
        each = functools.partial(
            pursue,
            form(*of),
            tolerance=tolerance,
            max_atoms=max_atoms,
            max_iterations=max_iterations,
            rule=rule,
        )
        return map_systems(each, n_atoms)

    if matrix.ndim == 2:  # another axis would copy the matrix
        return jax.tree.map(lambda a: a[None], one((matrix, target, ridge[0])))
    return map_systems(one, (matrix, target, ridge))


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

    Algorithm 1 of Kabbara 2015. It begins with the K atoms most correlated with y. An iteration
    adds the K atoms most correlated with the residual, fits all of them by least squares, keeps the
    K atoms with the largest coefficients and fits these again. The pursuit ends when the residual
    does not fall. The number of iterations does not depend on K, and a selected atom may be dropped
    again.

    If atoms are dependent, the least-squares solution is that of the pseudo-inverse. It comes from
    a QR decomposition of the atoms and a singular value decomposition of the triangle. The errors
    of the coefficients grow with the condition number of the atoms, not with its square. An
    iteration costs two products with X and `O(n K^2 + K^3)`.

    Args:
        X: dictionary, one atom per column, shape `n D`, or `v n D` for a batch. Atoms are compared
            by coefficients and correlations, so scale them to one length if their lengths should
            not count.
        y: shape `n`, or `n c` for several right-hand sides that select together; after the axis `v`
            of a batch.
        n_atoms: K, or several numbers, shape `s`, each solved separately. On a CPU the time grows
            with K in six steps up to `max_atoms`. The numbers are traced: other numbers do not
            compile again, and `vmap` over them works, though each then takes the time of
            `max_atoms`.
        max_atoms: upper limit of K (static); by default the largest K, which must then be concrete.
        max_iterations: limit of iterations, the source's l_max.
        tolerance: end when `|y - X w| <= tolerance |y|`.
        ridge: minimise `|y - X w|^2 + ridge |w|^2` in the fits.

    Returns:
        `Subspace`. Status `CONVERGED` if the residual no longer falls, or by the tolerance,
        `COMPLETED` at `max_iterations`, `NOT_FINITE`.

    Works under `jit` and `vmap` (but see the batch). Not differentiable; `least_squares` on the
    selected atoms is.

    Raises:
        ValueError: for shapes that do not fit, K below 1 or above the number of atoms, or negative
            numbers.
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
    solution; the source states no rule.

    Arguments, result and errors are as for `subspace_pursuit`.
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
    squaring loses precision: directions with singular values below the root of epsilon times the
    largest one are damped and not resolved. In the limit they are removed, as by the
    pseudo-inverse. `rank` is the number of resolved directions.

    Args:
        A: symmetric, positive semi-definite, shape `D D` or `v D D`.
        b: shape `D`, or `D c` for several right-hand sides that select together; after the axis `v`
            of a batch.
        n_atoms: K, or several numbers; see `subspace_pursuit`.
        max_atoms: upper limit of K (static).
        max_iterations: cap.
        tolerance: end when `|b - A w| <= tolerance |b|`.
        ridge: added to the diagonal.
        rule: "subspace" or "cosamp" (static).

    Returns:
        `Subspace`, with residuals `|b - A w|`, which may grow while the error on the rows falls.
        The status is as for `subspace_pursuit`, or `INDEFINITE` if A is not positive semi-definite.

    Raises:
        ValueError: as `subspace_pursuit`, or for an unknown rule.
    """
    if rule not in ("subspace", "cosamp"):
        raise ValueError(f"rule: expected 'subspace' or 'cosamp', got {rule!r}")
    check_runtime()
    A, b = in_finer_dtype(A, b)
    if A.ndim not in (2, 3) or A.shape[-1] != A.shape[-2]:
        raise ValueError(f"A: expected shape (D, D) or (v, D, D), got {A.shape}")
    if is_concrete(A) and np.any(np.diagonal(np.asarray(A), axis1=-2, axis2=-1) < 0):
        raise ValueError("A: expected a positive semi-definite matrix, got one with diagonal < 0")
    options = (n_atoms, max_atoms, max_iterations, tolerance, ridge, rule)
    return _solutions(A, b, "b", *options, gram=True)


def _of_rows(
    X: Float[ArrayLike, "..."],
    y: Float[ArrayLike, "..."],
    n_atoms: Counts,
    max_atoms: int | None,
    max_iterations: CountLike,
    tolerance: ScalarLike,
    ridge: ScalarLike,
    rule: Rule,
) -> Subspace:
    check_runtime()
    X, y = in_finer_dtype(X, y)
    if X.ndim not in (2, 3):
        raise ValueError(f"X: expected shape (n, D) or (v, n, D), got {X.shape}")
    options = (n_atoms, max_atoms, max_iterations, tolerance, ridge, rule)
    return _solutions(X, y, "y", *options, gram=False)


def _solutions(
    matrix: Float[Array, "..."],
    target: Float[Array, "..."],
    name: str,
    n_atoms: Counts,
    max_atoms: int | None,
    max_iterations: CountLike,
    tolerance: ScalarLike,
    ridge: ScalarLike,
    rule: Rule,
    *,
    gram: bool,
) -> Subspace:
    """Check the arguments, scale by powers of two, solve, and undo the scaling."""
    lead, batched, D = matrix.shape[:-1], matrix.ndim == 3, matrix.shape[-1]
    if target.shape[: len(lead)] != lead or target.ndim > len(lead) + 1:
        raise ValueError(f"{name}: expected shape {lead} or with one more axis, got {target.shape}")
    counts, most, one = _counts(n_atoms, max_atoms, D)
    check_nonnegative("tolerance", tolerance)
    check_nonnegative("ridge", ridge)
    if is_concrete(max_iterations):
        whole_number("max_iterations", max_iterations, 1)
    several = target.ndim > len(lead)
    target = target if several else target[..., None]
    matrix, of_matrix = _near_one(matrix, batched)
    target, of_target = _near_one(target, batched)
    squares = of_matrix if gram else 2 * of_matrix
    solutions = run(
        matrix,
        target,
        counts,
        times_power(jnp.full(len(of_matrix), ridge, matrix.dtype), -squares),
        jnp.asarray(tolerance, matrix.dtype),
        jnp.asarray(max_iterations, jnp.int32),
        max_atoms=most,
        rule=rule,
        gram=gram,
    )
    of_squares = 2 * of_target - of_matrix if gram else 2 * of_target
    return _as_posed(
        solutions,
        of_target - of_matrix,
        of_target,
        of_squares,
        batched=batched,
        several=several,
        one=one,
    )


@functools.partial(compiled, static_argnames=("batched", "several", "one"))
def _as_posed(
    result: Subspace,
    of_coefficients: Int[Array, " v"],
    of_target: Int[Array, " v"],
    of_squares: Int[Array, " v"],
    *,
    batched: bool,
    several: bool,
    one: bool,
) -> Subspace:
    """Return a result in the caller's units, without axes that the caller's arrays did not have."""
    result = result._replace(
        coefficients=times_power(result.coefficients, of_coefficients),
        residual_norm=times_power(result.residual_norm, of_target),
        explained=times_power(result.explained, of_squares),
    )
    if not several:
        result = result._replace(coefficients=result.coefficients[..., 0])
    if one:
        result = Subspace(*(a[:, 0] for a in result))
    return result if batched else Subspace(*(a[0] for a in result))


def _near_one(x: Float[Array, "..."], batched: bool) -> tuple[Array, Int[Array, " v"]]:
    """Divide each array of a batch by a power of two that brings it near 1; return the powers too.

    If squares and their sums are far within the range, the array is unchanged: scaling a large
    matrix takes as long as several iterations.
    """
    v = len(x) if batched else 1
    if is_concrete(x):
        if jax.default_backend() == "cpu":  # XLA's own takes five times as long
            flat = np.asarray(x).reshape(v, -1)
            largest = np.maximum(flat.max(axis=1, initial=0), -flat.min(axis=1, initial=0))
        else:
            largest = np.asarray(jnp.max(jnp.abs(x.reshape(v, -1)), axis=1, initial=0))
        far = 2.0 ** (int(jnp.finfo(x.dtype).maxexp) // 8)
        if np.all((largest == 0) | ((largest > 1 / far) & (largest < far))):
            return x, jnp.zeros(v, jnp.int32)
    every = x if batched else x[None]
    of = exponents(every)
    every = times_power(every, -of)
    return every if batched else every[0], of


def _counts(n_atoms: Counts, max_atoms: int | None, D: int) -> tuple[Int[Array, " s"], int, bool]:
    """Return the numbers of atoms, their upper limit, and whether there is only one number."""
    if max_atoms is not None:
        max_atoms = check_atoms(max_atoms, D)
    most = D if max_atoms is None else max_atoms
    if not is_concrete(n_atoms):
        if max_atoms is None:
            raise ValueError("max_atoms: expected a number, as n_atoms is traced")
        counts = jnp.asarray(n_atoms)
    else:
        what = "the number of atoms" if max_atoms is None else "max_atoms"
        flat = np.asarray(n_atoms)
        if flat.ndim > 1 or flat.size == 0:
            raise ValueError(f"n_atoms: expected one number or a vector, got {n_atoms!r}")
        counts_list = [whole_number("n_atoms", k, 1, most, what) for k in flat.reshape(-1)]
        most = max(counts_list) if max_atoms is None else most
        counts = jnp.asarray(np.reshape(counts_list, flat.shape), jnp.int32)
    if counts.ndim > 1 or not jnp.issubdtype(counts.dtype, jnp.integer):
        raise ValueError(f"n_atoms: expected one whole number or a vector, got {counts.dtype}")
    return jnp.atleast_1d(counts.astype(jnp.int32)), most, counts.ndim == 0
