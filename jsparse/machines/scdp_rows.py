"""SCDP from the rows: a pursuit without the `M M` system, and more precise coefficients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._blocks import rows_in_block, sum_row_blocks
from .._numerics import (
    dot,
    dot_over_rows,
    eigh,
    exponents,
    present_rows,
    times_power,
    with_derivative,
)
from .._repr import short_repr
from .._status import CONVERGED, RUNNING
from .._types import Key
from ..kernels import Kernel
from ..pursuit import probabilistic
from ..pursuit.path import Path, assemble, directions_of
from ..solvers.nested_systems import inverse_factor, nested_solutions
from ..solvers.streaming_qr import streaming_qr

_BLOCK = 32  # images in a block; a step reads only the blocks that hold an image


def is_forming_faster(M: int, k: int, subset: int) -> bool:
    """Return whether forming the system of `M` candidates is faster than `k` steps without it.

    The cost of both ways is counted in multiplications for each row. A kernel value counts as 300
    multiplications, and reading a number as 40 (measured on the tables magic and adult on a CPU).
    """
    return k * (300 * subset + 40 * k) >= M * (M + 300)


class Problem(NamedTuple):
    """The arguments of a fixed-size LS-SVM on all candidates, without the targets.

    They define the system (34) of Karsmakers (2011), see `scdp_system.System`.
    """

    kernel: Kernel
    candidates: Float[Array, "M d"]
    C: Float[Array, ""]  # weight of the data-fit term
    X: Float[Array, "n d"]
    w: Float[Array, " n"]  # row weights
    nu: Float[Array, ""]  # penalty of the intercept, see `scdp.fit`

    __repr__ = short_repr


class State(NamedTuple):
    """The state of a pursuit of the system (34) of Karsmakers (2011), which is never formed.

    An axis `n1 = n + 1` has the `n` rows, and one more row for the penalty `nu` of the intercept.
    """

    pursuit: probabilistic.State  # a batch of one
    images: Float[Array, "K n1"]  # u_j = F p_j, for directions p_j and centred kernel columns F
    residual: Float[Array, "n1 c"]  # centred targets less the machine's values
    feature_sum: Float[Array, " k"]  # weighted sum over rows of each selected column

    __repr__ = short_repr


def pursue(
    problem: Problem, y: Float[Array, "n c"], key: Key, *, max_prototypes: int, subset: int
) -> tuple[Path, Float[Array, " k"]]:
    """Return the SCDPP path of the system (34), and the sums over rows of the selected columns.

    Up to rounding, `probabilistic.run` on the formed system with equal draws returns the same path.
    A step computes `n x subset` kernel values and reads the `n x k` images twice. Its cost does not
    depend on the number of candidates (Karsmakers 2011, Section 5.3 and footnote 14). The path's
    `residual_norm` is not computed.

    Centring the columns eliminates the intercept. With the penalty `nu` the mean is
    `sum w phi / (sum w + nu)`, and there is one more row: its weight is `nu`, and it is 0 before
    centring.
    """
    dtype, exponent = y.dtype, exponents(y[None])
    y = times_power(y[None], -exponent)[0]
    targets, _ = _centred(y, problem.w, problem.nu)
    zeros = jnp.zeros((1, len(problem.candidates), y.shape[1]), dtype)
    start = probabilistic.init(zeros, zeros[:, :, 0], max_atoms=max_prototypes)
    status = jnp.where(jnp.all(targets == 0), CONVERGED, RUNNING).astype(jnp.int32)
    images = -(-max_prototypes // _BLOCK) * _BLOCK
    state = jax.lax.while_loop(
        lambda state: jnp.any(state.pursuit.status == RUNNING),
        lambda state: _step(state, problem, key, subset),
        State(
            pursuit=start._replace(status=status[None]),
            images=jnp.zeros((images, len(y) + 1), dtype),
            residual=targets,
            feature_sum=jnp.zeros(max_prototypes, dtype),
        ),
    )
    last = state.pursuit
    blank = jnp.zeros((1, max_prototypes + 1), dtype)
    path = assemble(
        last.support, last.directions, last.along, last.square, blank, last.size, last.status
    )
    path = path._replace(coefficients=times_power(path.coefficients, exponent))
    return jax.tree.map(lambda a: a[0], path), state.feature_sum


def _centred(
    columns: Float[Array, "n r"], w: Float[Array, " n"], nu: Float[Array, ""]
) -> tuple[Float[Array, "n1 r"], Float[Array, " r"]]:
    """Return centred columns times the roots of the weights, and the columns' weighted sums.

    The last of the `n1` rows is for the penalty `nu` of the intercept.
    """
    present = (w > 0)[:, None]
    sums = jnp.sum(jnp.where(present, w[:, None] * columns, 0), axis=0)
    mean = sums[None, :] / (jnp.sum(w) + nu)
    rows = jnp.where(present, jnp.sqrt(w)[:, None] * (columns - mean), 0)
    return jnp.concatenate([rows, -jnp.sqrt(nu) * mean]), sums


def _step(state: State, problem: Problem, key: Key, subset: int) -> State:
    """Add the best prototype of a random subset, or none if all depend on earlier prototypes."""
    kernel, candidates, C, X, w, nu = problem
    before, size = state.pursuit, state.pursuit.size[0]
    priorities, numbers = probabilistic.draw(before, key, subset=subset)
    Z, selected = candidates[numbers[0]], candidates[jnp.maximum(before.support[0], 0)]
    F, sums = _centred(kernel.cross_gram(X, Z), w, nu)
    # The penalty's share of the residuals of the drawn candidates; weights of empty places are 0.
    between = jnp.where(before.support[0] >= 0, kernel.cross_gram(Z, selected), 0)
    penalty = dot(between, before.weights[0]) / C
    choice = probabilistic.choose(priorities, numbers, (dot(F.T, state.residual) - penalty)[None])
    place = choice.place[0]
    column, z = F[:, place], Z[place][None]
    shares = _inner_products(state.images, column, size)[: before.support.shape[1]]
    shares = shares + dot(before.directions[0], between[place]) / C
    square = jnp.sum(jnp.square(column)) + kernel.cross_gram(z, z)[0, 0] / C
    after = probabilistic.advance(before, choice, shares[None], square[None], square[None])
    # The new direction is (e_s - sum_j shares_j p_j) / root, and its image is the same combination
    # of images.
    added = after.size[0] > size
    root = jnp.sqrt(square - jnp.sum(jnp.square(shares)))
    image = column - _combination(state.images, shares, size)
    image = jnp.where(added, image / jnp.where(added, root, 1), 0)
    along = jnp.where(added, after.along[0, size], 0)
    slot = jnp.where(added, size, len(state.images))
    return State(
        pursuit=after,
        images=state.images.at[slot].set(image, mode="drop"),
        residual=state.residual - image[:, None] * along[None, :],
        feature_sum=state.feature_sum.at[slot].set(sums[place], mode="drop"),
    )


def _inner_products(
    images: Float[Array, "K n1"], column: Float[Array, " n1"], n_images: Int[Array, ""]
) -> Float[Array, " K"]:
    """Return `images @ column`. Blocks after the first `n_images` images are 0 and are not read."""

    def block(i: Int[Array, ""], out: Float[Array, " K"]) -> Float[Array, " K"]:
        part = jax.lax.dynamic_slice_in_dim(images, i * _BLOCK, _BLOCK)
        return jax.lax.dynamic_update_slice_in_dim(out, dot(part, column), i * _BLOCK, 0)

    return jax.lax.fori_loop(0, -(-n_images // _BLOCK), block, jnp.zeros_like(images[:, 0]))


def _combination(
    images: Float[Array, "K n1"], coefficients: Float[Array, " k"], n_images: Int[Array, ""]
) -> Float[Array, " n1"]:
    """Return `images' @ coefficients`. Blocks after the first `n_images` images are not read."""
    padded = jnp.pad(coefficients, (0, len(images) - len(coefficients)))

    def block(i: Int[Array, ""], out: Float[Array, " n1"]) -> Float[Array, " n1"]:
        part = jax.lax.dynamic_slice_in_dim(images, i * _BLOCK, _BLOCK)
        return out + dot(jax.lax.dynamic_slice_in_dim(padded, i * _BLOCK, _BLOCK), part)

    return jax.lax.fori_loop(0, -(-n_images // _BLOCK), block, jnp.zeros_like(images[0]))


def solve_again(
    paths: Path, targets: Float[Array, "g n c"], problem: Problem, block_rows: int | None
) -> Path:
    """Return the paths with coefficients computed from QR factors of the rows `[1 K(X, Z) y]`."""
    k = paths.support.shape[1]

    def triangular_factor(group: tuple[Array, Array]) -> Float[Array, "q q"]:
        return _triangular_factor(*group, problem, block_rows)

    R = jax.lax.map(triangular_factor, (paths.support, targets))
    factor, along = R[:, 1 : 1 + k, 1 : 1 + k], R[:, 1 : 1 + k, 1 + k :]
    return assemble(
        paths.support, directions_of(factor, paths.size), along,
        jnp.sum(jnp.square(factor), axis=1), paths.residual_norm, paths.size, paths.status,
        on_rows=True,
    )  # fmt: skip


def _triangular_factor(
    support: Int[Array, " k"],
    targets: Float[Array, "n c"],
    problem: Problem,
    block_rows: int | None,
) -> Float[Array, "q q"]:
    """Return the QR factor `R` of the rows `[1 K(X, Z) y]` above a square root of the penalty.

    The rows are multiplied by the roots of their weights. The root of the penalty has a row for
    `nu`, and the rows `(K(Z, Z) / C)^(1/2)` for the coefficients.
    """
    kernel, candidates, C, X, weights, nu = problem
    k, c = len(support), targets.shape[1]
    inside = support >= 0
    Z = candidates[jnp.maximum(support, 0)]

    def rows_of(X: Array, y: Array, w: Array) -> Float[Array, "r q"]:
        columns = jnp.where(inside[None, :], kernel.cross_gram(X, Z), 0)
        extended = jnp.concatenate([jnp.ones_like(w)[:, None], columns, y], axis=1)
        return jnp.where(w[:, None] > 0, jnp.sqrt(w)[:, None] * extended, 0)

    values, vectors = eigh(jnp.where(inside[:, None] & inside[None, :], kernel.gram(Z), 0))
    root = jnp.sqrt(jnp.maximum(values, 0) / C)[:, None] * vectors.T
    of_intercept = jnp.zeros((1, 1 + k + c), X.dtype).at[0, 0].set(jnp.sqrt(nu))
    penalty = jnp.concatenate([of_intercept, jnp.pad(root, ((0, 0), (1, c)))])
    return streaming_qr(rows_of, (X, targets, weights), penalty, rows_in_block(block_rows))


def with_derivatives(
    path: Path,
    intercepts: Float[Array, "g k c"],
    targets: Float[Array, "g n c"],
    problem: Problem,
    block_rows: int | None,
) -> tuple[Float[Array, "g k k c"], Float[Array, "g k c"]]:
    """Return coefficients and intercepts of `g` paths with derivatives in targets and problem.

    These are the derivatives, in both modes, of `_machines` on the selected prototypes. The pursuit
    has no reverse mode, as its number of steps depends on values. The QR factorisation has no
    derivative where its factor is singular, as it is for the first rows or unused places.
    """

    def machines(support: Array, targets: Array, problem: Problem) -> Float[Array, "g k p c"]:
        return jax.lax.map(
            lambda group: _machines(group[0], group[1], problem, block_rows), (support, targets)
        )

    values = jnp.concatenate([intercepts[:, :, None], path.coefficients], axis=2)
    values = with_derivative(
        lambda _: values,
        lambda _, primals, tangents: jax.jvp(machines, primals, tangents)[1],
        (path.support, targets, problem),
    )
    return values[:, :, 1:], values[:, :, 0]


def _machines(
    support: Int[Array, " k"],
    targets: Float[Array, "n c"],
    problem: Problem,
    block_rows: int | None,
) -> Float[Array, "k p c"]:
    """Return intercept and coefficients of the machines on the first 1, 2, .. selected prototypes.

    The columns times the inverse of their QR factor, a constant, are orthonormal to rounding. So
    their Gram matrix is well-conditioned, and so are its derivatives.
    """
    kernel, candidates, C, X, weights, nu = problem
    p = 1 + len(support)
    inside = support >= 0
    Z = candidates[jnp.maximum(support, 0)]
    R = _triangular_factor(support, *jax.lax.stop_gradient((targets, problem)), block_rows)
    basis = inverse_factor(R[:p, :p], jnp.concatenate([jnp.ones(1, bool), inside]))

    def sums(X: Array, y: Array, w: Array) -> Float[Array, "p q"]:
        rows = jnp.concatenate([jnp.ones_like(w)[:, None], kernel.cross_gram(X, Z)], axis=1)
        rows = dot(rows, basis)
        return dot_over_rows(rows, w[:, None] * jnp.concatenate([rows, y], axis=1))

    zero = jnp.zeros((p, p + targets.shape[1]), X.dtype)
    rows = present_rows(X, weights), targets, weights
    total = sum_row_blocks(sums, rows, zero, rows_in_block(block_rows))
    penalty = jnp.zeros((p, p), X.dtype).at[0, 0].set(nu).at[1:, 1:].set(kernel.gram(Z) / C)
    gram = total[:, :p] + dot(basis.T, dot(penalty, basis))
    return nested_solutions(gram, total[:, p:], basis)[1:]
