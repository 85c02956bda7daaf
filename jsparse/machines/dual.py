"""The LS-SVM in the dual: every row is a prototype."""

import dataclasses
import functools
from typing import ClassVar, Literal, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._blocks import map_row_blocks, rows_in_block
from .._numerics import (
    as_float,
    dot,
    epsilon,
    like,
    present_rows,
    present_targets,
    rank_cutoff,
    relative_size,
    with_derivative,
)
from .._programs import compiled
from .._repr import short_repr
from .._status import NOT_FINITE, status_of
from .._types import Key, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..multiclass import Code
from ..solvers import conjugate_gradients
from ..solvers.definite import factorise
from ..solvers.ridge import Spectrum, shifted_inverse, spectrum
from .checks import check_labels, check_problem, in_one_dtype
from .dual_system import intercept_of, less, nystroem_preconditioner, right_sides, weighted
from .method import MANY_C, Method, Points, TrainingRows

T = TypeVar("T")
Solver = Literal["auto", "cholesky", "conjugate_gradients"]
DENSE_ROWS = 8192  # n x n in float64 is half a gigabyte; more rows go by conjugate gradients


@dataclasses.dataclass(frozen=True)
class Dual(Method):
    """The LS-SVM in the dual: every row carries the model (De Brabanter 2010, Section 2).

    Memory grows with the square of the number of rows. Validated by leave-one-out, which one
    decomposition gives for every `C`.
    """

    name: ClassVar[str] = "dual"
    title: ClassVar[str] = "LS-SVM"
    most_rows: ClassVar[int | None] = 3000
    default_C: ClassVar[Float[np.ndarray, " s"]] = MANY_C

    @property
    def memory(self) -> Literal["all"]:
        """A kernel matrix."""
        return "all"

    def points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Every row."""
        return Points(None, np.arange(rows.n))

    def fit(
        self,
        kernel: Kernel,
        points: Float[Array, "m d"] | None,
        C: ScalarLike | Float[Array, " l"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"] | Int[Array, " n"],
        weights: Float[Array, " n"] | None = None,
        *,
        code: Code | None = None,
        key: Key | None = None,
    ) -> "DualFit":
        """See `fit` and `fit_classes`."""
        if code is not None:
            return fit_classes(kernel, C, X, y, code, weights)
        return fit(kernel, cast(ScalarLike, C), X, y, weights)

    def leave_one_out(
        self,
        kernel: Kernel,
        C: Float[Array, " s"],
        X: Float[Array, "n d"],
        y: Float[Array, "n *c"],
        weights: Float[Array, " n"] | None = None,
    ) -> "tuple[Float[Array, 's n *c'], Int[Array, ' s']]":
        """See `leave_one_out`."""
        return leave_one_out(kernel, C, X, y, weights)


class DualFit(NamedTuple):
    """A fitted LS-SVM and what is known of its solve."""

    expansion: KernelExpansion  # prototypes are the rows, coefficients the multipliers alpha
    relative_residual: Float[Array, ""]  # |(K + W^(-1)/C) alpha + b - y| / |y|, worst output
    steps: Int[Array, ""]  # of conjugate gradients; 0 by Cholesky
    status: Int[Array, ""]

    __repr__ = short_repr


def fit(
    kernel: Kernel,
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    method: Solver = "auto",
    tolerance: float | None = None,
    max_steps: int = 1000,
    landmarks: int = 1000,
    block_rows: int | None = None,
) -> DualFit:
    """Fit an LS-SVM by its dual system (De Brabanter 2010, Section 2).

    Solves `[[0, 1'], [1, K + W^(-1)/C]] [b; alpha] = [0; y]`, the intercept eliminated. The
    classifier of Section 2.1 is the same with targets -1 and +1: its `alpha_k Y_k` is `alpha_k`
    here.

    - "cholesky": memory `n x n`, time `n^3 / 3`.
    - "conjugate_gradients": the kernel matrix is never formed; memory `(block_rows + landmarks) n`.
      Preconditioned by the Nystroem approximation of `landmarks` rows, spread evenly.

    Args:
        kernel: kernel of two points.
        C: weight of the data-fit term, positive.
        X: inputs, shape `n d`.
        y: targets, shape `n`, or `n c` for several at once.
        weights: row weights, shape `n`, at least 0; weight 0 is as if the row were not there, and
            its prototype is a copy of another's, of coefficient 0.
        method: "auto" takes Cholesky up to `DENSE_ROWS` rows.
        tolerance: conjugate gradients stop at this relative residual; by default the square root
            of the dtype's epsilon times 0.1.
        max_steps: cap on conjugate gradient steps.
        landmarks: rows in the preconditioner.
        block_rows: rows of the kernel matrix in memory at a time by conjugate gradients.

    Returns:
        The expansion over all rows with its diagnostics. Status `PRECISION_LOST` where `1/C` is
        below the rounding of the kernel matrix (by Cholesky that rounding then takes its place),
        `EXHAUSTED` at `max_steps`; by conjugate gradients `CONVERGED` where with `D = W^(1/2)` the
        residual of each output is at most `2 tolerance (|D y| + |b| |D 1|)`.

    Pure; works under `jit` and `vmap`; differentiable in everything but the shapes, in both modes,
    in a weight of zero as the row comes in, unless that is further from the others than
    `eps**-0.25` times what they are from each other.

    Raises:
        ValueError: for shapes that do not fit, or (outside `jit`) values that are not finite, `C`
            not positive, or negative weights.
    """
    X, y, weights = in_one_dtype(X, y, weights)
    check_problem(None, C, X, y, weights)
    if method not in ("auto", "cholesky", "conjugate_gradients"):
        raise ValueError(
            f"method: expected 'auto', 'cholesky' or 'conjugate_gradients', got {method!r}"
        )
    n = X.shape[0]
    w = jnp.ones(n, X.dtype) if weights is None else weights
    if method == "cholesky" or (method == "auto" and n <= DENSE_ROWS):
        return _by_cholesky(kernel, like(C, X), X, y, w)
    tol = 0.1 * epsilon(X.dtype) ** 0.5 if tolerance is None else tolerance
    rows, m = rows_in_block(block_rows), min(landmarks, n)
    return _by_conjugate_gradients(kernel, like(C, X), X, y, w, like(tol, X), max_steps, m, rows)


def fit_classes(
    kernel: Kernel,
    C: ScalarLike | Float[Array, " l"],
    X: Float[Array, "n d"],
    labels: Int[Array, " n"],
    code: Code,
    weights: Float[Array, " n"] | None = None,
    *,
    method: Solver = "auto",
) -> DualFit:
    """Fit the problems of an output code.

    Those that see all rows with one `C` share a factorisation; else each has its own, with weight
    0 for the rows it leaves out.

    Args:
        kernel: kernel of two points.
        C: weight of the data-fit term, or one for each problem, shape `l`.
        X: inputs, shape `n d`.
        labels: class numbers 0..k-1, shape `n`.
        code: see `multiclass.output_code`.
        weights: row weights, shape `n`, at least 0.
        method: see `fit`.

    Returns:
        An expansion with one column for each problem; the diagnostics are those of the worst.

    Raises:
        ValueError: as `fit`, or for labels that are not class numbers.
    """
    check_labels(labels, code.matrix.shape[0])
    X = as_float(X)
    targets = jnp.asarray(code.matrix, X.dtype)[labels]
    if code.shares_all_rows and jnp.ndim(C) == 0:
        return fit(kernel, C, X, targets, weights, method=method)
    if weights is None:
        w = jnp.ones(len(X), X.dtype)
    else:
        w = as_float(weights).astype(X.dtype)
        X = present_rows(X, w)
    each = jnp.broadcast_to(jnp.asarray(C, X.dtype), targets.shape[1:])
    fits = [
        fit(kernel, each[j], X, targets[:, j], w * jnp.abs(targets[:, j]), method=method)
        for j in range(targets.shape[1])
    ]
    every = jax.tree.map(lambda *parts: jnp.stack(parts, axis=-1), *fits)
    return DualFit(
        expansion=KernelExpansion(
            kernel, X, every.expansion.coefficients, every.expansion.intercept
        ),
        relative_residual=jnp.max(every.relative_residual),
        steps=jnp.max(every.steps),
        status=jnp.max(every.status),
    )


@compiled
def leave_one_out(
    kernel: Kernel,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
) -> tuple[Float[Array, "s n *c"], Int[Array, " s"]]:
    """Predictions of each row by the LS-SVM of all the others, for every `C`, and status.

    One eigendecomposition of the kernel matrix serves every `C`; the residuals are
    `alpha_i / [A^(-1)]_ii` with `A` the system of `fit` (Cawley and Talbot 2004). A row of weight
    zero is predicted by all rows of positive weight.

    Args:
        kernel: kernel of two points.
        C: weights of the data-fit term, shape `s`.
        X: inputs, shape `n d`.
        y: targets, shape `n` or `n c`.
        weights: row weights, shape `n`, at least 0.

    Memory `n x n`. Pure; differentiable in everything but the shapes, in both modes, in a weight of
    zero as `fit` is.
    """
    n, s = X.shape[0], C.shape[0]
    w = jnp.ones(n, X.dtype) if weights is None else weights
    rows = X
    X, y = present_rows(X, w), present_targets(y, w)
    targets = y.reshape(n, -1)
    K = kernel.gram(X)
    root = jnp.sqrt(w)[:, None]
    spec = jax.lax.stop_gradient(spectrum(root * K * root.T))
    rhs = right_sides(X, y)
    alpha, e = _decomposed(spec, K, w, C, jnp.broadcast_to(rhs[None], (s, *rhs.shape)))
    # The residual without a row is the residual over what of it is the row's own doing: the
    # diagonal of (I + C K W)^(-1) less the intercept's share. It is 1 for a row of weight zero.
    own = with_derivative(_own, _own_derivative, (spec, K, w, C))
    own = own - alpha[:, :, 0] * e[:, :, 0] / jnp.sum(alpha[:, :, 0], axis=1, keepdims=True)
    share = own[:, :, None]
    b = intercept_of(alpha)
    alpha, e = less(alpha, b), less(e, b)
    # That of a row of weight zero does not depend on its target, however large.
    fitted = dot(K[None], alpha) + b - e * (1 - share) / share
    predictions = jnp.where(w[None, :, None] > 0, targets[None] - e / share, fitted)
    finite = jnp.all(jnp.isfinite(predictions), axis=(1, 2))
    # Rows without weight, where another stood in for them.
    moved = jnp.any(rows != X, axis=1)
    predictions = jax.lax.cond(
        jnp.any(moved),
        lambda: jnp.where(
            moved[None, :, None],
            dot(kernel.cross_gram(rows, X)[None], alpha) + b,
            predictions,
        ),
        lambda: predictions,
    )
    lost = (rank_cutoff(spec.largest) > 1 / C) | jnp.any(own < 32 * epsilon(X.dtype), axis=1)
    return predictions.reshape(s, n, *y.shape[1:]), status_of(~finite, lost)


def _decomposed(
    spec: Spectrum,
    K: Float[Array, "n n"],
    w: Float[Array, " n"],
    C: Float[Array, " s"],
    rhs: Float[Array, "s n k"],
) -> tuple[Float[Array, "s n k"], Float[Array, "s n k"]]:
    """`weighted` for every `C`, by the eigendecomposition of `W^(1/2) K W^(1/2)`."""
    shifts = jax.lax.stop_gradient(1 / C)

    def inverse(b: Float[Array, "s n k"]) -> tuple[Float[Array, "s n k"], None]:
        return jnp.swapaxes(
            shifted_inverse(jax.lax.stop_gradient(spec), jnp.swapaxes(b, 1, 2), shifts), 1, 2
        ), None

    scales = w[None, :, None], C[:, None, None]
    alpha, e, _ = weighted(lambda v: dot(K[None], v), inverse, *scales, rhs)
    return alpha, e


def _own(given: tuple[Spectrum, Array, Array, Array]) -> Float[Array, "s n"]:
    """Diagonal of `(I + C K W)^(-1)` for every `C`."""
    # That of (W^(1/2) K W^(1/2) + I/C)^(-1), by which `spec` decomposes, over C.
    spec, _, w, C = given
    return jnp.where(w[None] > 0, spec.inverse_diagonal(1 / C) / C[:, None], 1)


def _own_derivative(
    _: Array,
    given: tuple[Spectrum, Array, Array, Array],
    tangents: tuple[Spectrum, Array, Array, Array],
) -> Float[Array, "s n"]:
    # dP = -P d(C K W) P with P = (I + C K W)^(-1), one C at a time: n x n each.
    spec, K, w, C = given
    _spec, d_K, d_w, d_C = tangents
    one = jnp.eye(len(w), dtype=K.dtype)[None]

    def slope(of: tuple[Array, Array]) -> Float[Array, " n"]:
        C, d_C = of
        P = _decomposed(spec, K, w, C[None], one)[1][0]
        moved = C * d_K * w[None, :] + K * (C * d_w + d_C * w)[None, :]
        return -jnp.sum(dot(P, moved) * P.T, axis=1)

    return jax.lax.map(slope, (C, d_C))


@compiled
def _by_cholesky(
    kernel: Kernel,
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    w: Float[Array, " n"],
) -> DualFit:
    X, y = present_rows(X, w), present_targets(y, w)
    K, root = kernel.gram(X), jnp.sqrt(w)[:, None]
    factor = jax.lax.stop_gradient(factorise(root * K * root.T, 1 / C))
    C = jnp.where(factor.lost, 1 / factor.shift, C)

    def inverse(rhs: Float[Array, "n k"]) -> tuple[Float[Array, "n k"], None]:
        return factor.solve(rhs), None

    alpha, _, (residual, _) = weighted(
        lambda v: dot(K, v), inverse, w[:, None], C[None, None], right_sides(X, y)
    )
    status = status_of(~jnp.all(jnp.isfinite(alpha)), factor.lost)
    return _result(kernel, X, y, w, alpha, residual, jnp.zeros((), jnp.int32), status)


@functools.partial(compiled, static_argnames=("max_steps", "landmarks", "block_rows"))
def _by_conjugate_gradients(
    kernel: Kernel,
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    w: Float[Array, " n"],
    tolerance: Float[Array, ""],
    max_steps: int,
    landmarks: int,
    block_rows: int,
) -> DualFit:
    X, y = present_rows(X, w), present_targets(y, w)
    n, root = X.shape[0], jax.lax.stop_gradient(jnp.sqrt(w)[:, None])

    # Kept by nobody: the backward pass computes each block of the kernel matrix again.
    @jax.checkpoint
    def rows_times(rows: Float[Array, "r d"], v: Float[Array, "n k"]) -> Float[Array, "r k"]:
        return dot(kernel.cross_gram(rows, X), v)

    def product(v: Float[Array, "n k"]) -> Float[Array, "n k"]:
        return map_row_blocks(lambda rows: rows_times(rows, v), X, block_rows)

    every = jnp.linspace(0, n - 1, landmarks).astype(jnp.int32)
    precondition = nystroem_preconditioner(kernel, C, X, X[every], root, block_rows)

    def inverse(rhs: Float[Array, "n k"]) -> tuple[Float[Array, "n k"], tuple[Array, Array]]:
        solved = conjugate_gradients.solve(
            lambda v: root * product(root * v) + v / C,
            rhs,
            tolerance=tolerance,
            max_steps=max_steps,
            preconditioner=precondition,
        )
        return solved.x, (solved.steps, solved.status)

    alpha, _, (residual, (steps, status)) = weighted(
        product, inverse, w[:, None], C[None, None], right_sides(X, y)
    )
    return _result(kernel, X, y, w, alpha, residual, jnp.max(steps), jnp.max(status))


def _result(
    kernel: Kernel,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    w: Float[Array, " n"],
    both: Float[Array, "n k"],
    residual: Float[Array, "n k"],
    steps: Int[Array, ""],
    status: Int[Array, ""],
) -> DualFit:
    outputs = y.shape[1:]
    b = intercept_of(both)
    alpha, rest, b = less(both, b), less(residual, b), b[0]
    root = jnp.sqrt(jax.lax.stop_gradient(w))[:, None]
    relative = relative_size(rest.T, (root * y.reshape(alpha.shape)).T)
    failed = ~(jnp.all(jnp.isfinite(alpha)) & jnp.all(jnp.isfinite(b)))
    return DualFit(
        expansion=KernelExpansion(kernel, X, alpha.reshape(y.shape), b.reshape(outputs)),
        relative_residual=jax.lax.stop_gradient(jnp.max(relative, initial=0)),
        steps=steps,
        status=jnp.where(failed, jnp.int32(NOT_FINITE), status),
    )
