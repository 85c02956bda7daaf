"""SCDP machines with random subsets, on the rows: kernel columns when they are looked at."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numerics import dot, exponents, times_power
from .._repr import short_repr
from .._status import CONVERGED, RUNNING
from .._types import Key
from ..kernels import Kernel
from ..pursuit import probabilistic
from ..pursuit.path import Path, from_directions

# Images read at a time: no more than are filled.
_IMAGES = 32


class State(NamedTuple):
    """A pursuit whose system is never formed."""

    pursuit: probabilistic.State  # a batch of one
    images: Float[Array, "K n1"]  # rows u_j = F p_j over centred kernel columns F
    residual: Float[Array, "n1 c"]  # of the centred targets
    feature_sum: Float[Array, " k"]  # weighted sums of the columns selected

    __repr__ = short_repr


def pursue(
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    y: Float[Array, "n c"],
    w: Float[Array, " n"],
    nu: Float[Array, ""],
    key: Key,
    *,
    max_prototypes: int,
    subset: int,
) -> tuple[Path, Float[Array, " k"]]:
    """SCDPP of the system (34), and the sums over rows of the columns selected.

    The same paths as `probabilistic.run` of the formed system by the same draws, but for rounding.
    A step computes `n x subset` entries of the kernel and reads the images, `n x k`, twice; nothing
    depends on the number of candidates (Karsmakers 2011, Section 5.3 and its footnote 14). The
    residuals are those of the path: `residual_norm` is not computed.

    The intercept is eliminated by centred columns. With its penalty `nu` the mean is
    `sum w phi / (sum w + nu)`, and the rows have one more, of weight `nu`, in which everything is 0
    before it is centred.
    """
    exponent = exponents(y[None])
    y = times_power(y[None], -exponent)[0]
    targets, _ = _centred(y, w, nu)
    nothing = jnp.zeros((1, len(candidates), y.shape[1]), X.dtype)
    start = probabilistic.init(nothing, nothing[:, :, 0], max_atoms=max_prototypes)
    status = jnp.where(jnp.all(targets == 0), CONVERGED, RUNNING).astype(jnp.int32)
    images = -(-max_prototypes // _IMAGES) * _IMAGES
    state = jax.lax.while_loop(
        lambda state: jnp.any(state.pursuit.status == RUNNING),
        lambda state: _step(state, kernel, candidates, C, X, w, nu, key, subset),
        State(
            pursuit=start._replace(status=status[None]),
            images=jnp.zeros((images, len(X) + 1), X.dtype),
            residual=targets,
            feature_sum=jnp.zeros(max_prototypes, X.dtype),
        ),
    )
    own = state.pursuit
    blank = jnp.zeros((1, max_prototypes + 1), X.dtype)
    path = from_directions(
        own.support, own.directions, own.along, own.square, blank, own.size, own.status
    )
    path = path._replace(coefficients=times_power(path.coefficients, exponent))
    return jax.tree.map(lambda a: a[0], path), state.feature_sum


def _centred(
    columns: Float[Array, "n r"], w: Float[Array, " n"], nu: Float[Array, ""]
) -> tuple[Float[Array, "n1 r"], Float[Array, " r"]]:
    """Columns less their means, times the roots of the weights; and their sums."""
    total, root_w, here = jnp.sum(w) + nu, jnp.sqrt(w)[:, None], (w > 0)[:, None]
    sums = jnp.sum(jnp.where(here, w[:, None] * columns, 0), axis=0)
    mean = sums[None, :] / total
    rows = jnp.where(here, root_w * (columns - mean), 0)
    return jnp.concatenate([rows, -jnp.sqrt(nu) * mean]), sums


def _step(
    state: State,
    kernel: Kernel,
    candidates: Float[Array, "M d"],
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    w: Float[Array, " n"],
    nu: Float[Array, ""],
    key: Key,
    subset: int,
) -> State:
    own = state.pursuit
    drawn, some = probabilistic.draw(own, key, subset=subset)
    Z, selected = candidates[some[0]], candidates[jnp.maximum(own.support[0], 0)]
    F, sums = _centred(kernel.cross_gram(X, Z), w, nu)
    # What the penalty asks of those drawn; the weights of empty places are 0.
    between = jnp.where(own.support[0] >= 0, kernel.cross_gram(Z, selected), 0)
    asked = dot(between, own.weights[0]) / C
    choice = probabilistic.choose(drawn, some, (dot(F.T, state.residual) - asked)[None])
    place = choice.place[0]
    column = F[:, place]
    shares = _against(state.images, column, own.size[0])[: own.support.shape[1]]
    shares = shares + dot(own.directions[0], between[place]) / C
    z = Z[place]
    square = jnp.sum(jnp.square(column)) + kernel.cross_gram(z[None], z[None])[0, 0] / C
    after = probabilistic.advance(own, choice, shares[None], square[None], square[None])
    # The new direction is (e_s - sum_j shares_j p_j) / root; its image goes the same way.
    at = own.size[0]
    added = after.size[0] > at
    root = jnp.sqrt(square - jnp.sum(jnp.square(shares)))
    image = column - _combined(state.images, shares, at)
    image = jnp.where(added, image / jnp.where(added, root, 1), 0)
    along = jnp.where(added, after.along[0, at], 0)
    slot = jnp.where(added, at, len(state.images))
    return State(
        pursuit=after,
        images=state.images.at[slot].set(image, mode="drop"),
        residual=state.residual - image[:, None] * along[None, :],
        feature_sum=state.feature_sum.at[slot].set(sums[place], mode="drop"),
    )


def _blocks(filled: Int[Array, ""]) -> Int[Array, ""]:
    return -(-filled // _IMAGES)


def _against(
    images: Float[Array, "K n1"], column: Float[Array, " n1"], filled: Int[Array, ""]
) -> Float[Array, " K"]:
    """`images @ column` over the rows filled; the others are zero."""

    def block(i: Int[Array, ""], out: Float[Array, " K"]) -> Float[Array, " K"]:
        part = jax.lax.dynamic_slice_in_dim(images, i * _IMAGES, _IMAGES)
        return jax.lax.dynamic_update_slice_in_dim(out, dot(part, column), i * _IMAGES, 0)

    return jax.lax.fori_loop(0, _blocks(filled), block, jnp.zeros_like(images[:, 0]))


def _combined(
    images: Float[Array, "K n1"], shares: Float[Array, " k"], filled: Int[Array, ""]
) -> Float[Array, " n1"]:
    """`images' @ shares` over the rows filled."""
    padded = jnp.pad(shares, (0, len(images) - len(shares)))

    def block(i: Int[Array, ""], out: Float[Array, " n1"]) -> Float[Array, " n1"]:
        part = jax.lax.dynamic_slice_in_dim(images, i * _IMAGES, _IMAGES)
        return out + dot(jax.lax.dynamic_slice_in_dim(padded, i * _IMAGES, _IMAGES), part)

    return jax.lax.fori_loop(0, _blocks(filled), block, jnp.zeros_like(images[0]))
