"""Leave-one-out for the LS-SVM in the dual: predictions, and the machines without each row."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._blocks import map_row_blocks, rows_in_block
from .._numerics import (
    dot,
    epsilon,
    present_rows,
    present_targets,
    rank_cutoff,
    relative_size,
    with_derivative,
)
from .._programs import compiled
from .._status import NumericalError, status_of
from .._types import CLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..solvers.definite import factorise, inverse_by_blocks
from ..solvers.ridge import Spectrum, shifted_inverse, spectrum
from .dual_system import intercept_of, right_sides, solve_weighted, without_intercept
from .fold_machines import expansion_of_folds
from .held_out import Solutions
from .rows import Rows


@compiled
def leave_one_out(
    kernel: Kernel,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
) -> tuple[Float[Array, "s n *c"], Int[Array, " s"]]:
    """Predict each row by the LS-SVM of all other rows, for every `C`.

    One eigendecomposition of the kernel matrix serves every `C`. The leave-one-out residuals are
    `alpha_i / [A^(-1)]_ii` with `A` the system of `dual.fit` (Cawley and Talbot 2004). A row of
    weight 0 is predicted by the machine of all rows with weight. `C` has shape `s`; other arguments
    are as for `dual.fit`.

    Returns:
        The predictions of each row for each `C`, and a stop code for each `C`: `PRECISION_LOST` if
        rounding, not the data, decides a prediction.

    Memory `n x n`. Pure; differentiable in all floating arguments, in both modes. At a weight of 0
    the derivative is as for `dual.fit`.
    """
    return leave_one_out_by_spectrum(kernel, C, X, y, weights)[:2]


@compiled
def leave_one_out_by_spectrum(
    kernel: Kernel,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
) -> tuple[Float[Array, "s n *c"], Int[Array, " s"], Solutions]:
    """Return the result of `leave_one_out`, and the machines of all rows for every `C`.

    Arguments are as for `leave_one_out`. The diagnostics of the machines have no
    derivatives.
    """
    n, s = X.shape[0], C.shape[0]
    w = jnp.ones(n, X.dtype) if weights is None else weights
    inputs, X, y = X, present_rows(X, w), present_targets(y, w)
    targets = y.reshape(n, -1)
    K, root = kernel.gram(X), jnp.sqrt(w)[:, None]
    spec = jax.lax.stop_gradient(spectrum(root * K * root.T))
    rhs = right_sides(X, y)
    alpha, e, residual = _solve(spec, K, w, C, jnp.broadcast_to(rhs[None], (s, *rhs.shape)))
    # The residuals are a matrix times the targets. The residual of a row is its leave-one-out
    # residual times the diagonal entry of that matrix, which is (I + C K W)^(-1) less a rank-one
    # term for the intercept. The entry is 1 for a row of weight 0.
    diagonal = with_derivative(_diagonal, _diagonal_derivative, (spec, K, w, C))
    total = jnp.sum(alpha[:, :, 0], axis=1, keepdims=True)
    diagonal = diagonal - alpha[:, :, 0] * e[:, :, 0] / total
    ratio = diagonal[:, :, None]
    b = intercept_of(alpha)
    alpha, e = without_intercept(alpha, b), without_intercept(e, b)
    # The prediction of a row of weight 0 does not depend on its target, however large.
    fitted = dot(K[None], alpha) + b - e * (1 - ratio) / ratio
    predictions = jnp.where(w[None, :, None] > 0, targets[None] - e / ratio, fitted)
    finite = jnp.all(jnp.isfinite(predictions), axis=(1, 2))
    # `present_rows` replaced some rows of weight 0: predict them at their original inputs.
    replaced = jnp.any(inputs != X, axis=1)
    predictions = jax.lax.cond(
        jnp.any(replaced),
        lambda: jnp.where(
            replaced[None, :, None], dot(kernel.cross_gram(inputs, X)[None], alpha) + b, predictions
        ),
        lambda: predictions,
    )
    rounded = jnp.any(diagonal < 32 * epsilon(X.dtype), axis=1)
    lost = rank_cutoff(spec.largest) > 1 / C
    residual = jax.lax.stop_gradient(without_intercept(residual, b))
    size = jax.lax.stop_gradient(root * targets).T  # c n
    machines = Solutions(
        C, alpha, b[:, 0],
        jax.vmap(lambda r: jnp.max(relative_size(r.T, size), initial=0))(residual),
        status_of(~jnp.all(jnp.isfinite(alpha), axis=(1, 2)), lost),
    )  # fmt: skip
    return predictions.reshape(s, n, *y.shape[1:]), status_of(~finite, lost | rounded), machines


# With up to FEW_C values of C and at least MANY_ROWS rows, a Cholesky factor for each value is
# faster: an eigendecomposition takes the time of five factors with their inverses (measured for
# 2000 rows on two cores).
FEW_C, MANY_ROWS = 4, 1024


@compiled
def leave_one_out_by_cholesky(
    kernel: Kernel,
    C: Float[Array, " s"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *c"],
    weights: Float[Array, " n"] | None = None,
) -> tuple[Float[Array, "s n *c"], Int[Array, " s"], Solutions]:
    """Return the result of `leave_one_out`, and the machines, by a Cholesky factor for each `C`.

    Each `C` takes about `0.9 n^3` operations at the speed of matrix products. Memory holds the
    kernel matrix, one factor and its inverse. Arguments are as for `leave_one_out`, and derivatives
    too, except in weights that are 0, where they are not finite.
    """
    n = X.shape[0]
    w = jnp.ones(n, X.dtype) if weights is None else weights
    inputs, X, y = X, present_rows(X, w), present_targets(y, w)
    targets, root = y.reshape(n, -1), jnp.sqrt(w)[:, None]
    K = kernel.gram(X)
    rhs = root * right_sides(X, y)

    def predict(C: Float[Array, ""]) -> tuple[Float[Array, "n c"], Int[Array, ""], Solutions]:
        """Return the predictions of all rows, their stop code and the machine, for one `C`."""
        factor = factorise(root * K * root.T, 1 / C)
        inverse = inverse_by_blocks(factor.lower)
        g = inverse.transposed_times(inverse.times(rhs))

        def residual(g: Float[Array, "n k"]) -> Float[Array, "n k"]:
            # Multiply by K, not by `factor.matrix`, whose memory is free after the factorisation.
            return rhs - root * dot(K, root * g) - factor.shift * g

        g = g + inverse.transposed_times(inverse.times(residual(g)))
        errors = residual(g)
        ones, total = g[:, :1], jnp.sum(root * g[:, :1])
        b = jnp.sum(root * g[:, 1:], axis=0, keepdims=True) / total
        g = g[:, 1:] - ones * b
        diagonal = inverse.squared_norms()[:, None] - jnp.square(ones) / total
        present = root > 0
        left_out = targets - g / jnp.where(present, diagonal * root, 1)
        # A row of weight 0 is predicted by the machine of all rows, at its original inputs.
        of_all = map_row_blocks(
            lambda rows: dot(kernel.cross_gram(rows, X), root * g), inputs, rows_in_block(None)
        )
        predictions = jnp.where(present, left_out, of_all + b)
        finite = jnp.all(jnp.isfinite(predictions))
        # `diagonal / C` is the `diagonal` of `leave_one_out`, at most 1.
        rounded = jnp.any(jnp.where(present, diagonal / C, 1) < 32 * epsilon(X.dtype))
        alpha, errors = root * g, errors[:, 1:] - errors[:, :1] * b
        machine = Solutions(
            C, alpha, b[0], jnp.max(relative_size(errors.T, (root * targets).T), initial=0),
            status_of(~(jnp.all(jnp.isfinite(alpha)) & jnp.all(jnp.isfinite(b))), factor.lost),
        )  # fmt: skip
        return predictions, status_of(~finite, factor.lost | rounded), machine

    predictions, status, machines = jax.lax.map(predict, C)
    return predictions.reshape(len(C), n, *y.shape[1:]), status, machines


def leave_one_out_of(
    kernel: Kernel, C: Float[Array, " s"], rows: Rows
) -> tuple[Float[Array, "n s l"], Int[Array, " s"], Solutions | None]:
    """Return leave-one-out predictions by row, `C` and output, and a stop code for each `C`.

    Also return the machines of all rows. If some problems of a code leave out rows, the predictions
    of each problem are computed separately, and there are no such machines: None.
    """
    targets, weights = rows.target_columns, rows.problem_weights
    few = len(C) <= FEW_C and len(rows) >= MANY_ROWS
    predict = leave_one_out_by_cholesky if few else leave_one_out_by_spectrum
    if weights.ndim == 1:
        predictions, status, machines = predict(kernel, C, rows.X, targets, weights)
        return jnp.moveaxis(predictions, 0, 1), status, machines

    def predict_one(problem: tuple[Array, Array]) -> tuple[Float[Array, "s n"], Int[Array, " s"]]:
        return predict(kernel, C, rows.X, *problem)[:2]

    predictions, status = jax.lax.map(predict_one, (targets.T, weights.T))
    return jnp.transpose(predictions, (2, 1, 0)), jnp.max(status, axis=0), None


def machines_without_each(
    kernel: Kernel,
    C: CLike | Float[np.ndarray, "*l"],
    rows: Rows,
    left_out: Int[np.ndarray, " v"],
) -> KernelExpansion:
    """Return the machines fitted without each of the `v` rows numbered `left_out`; on the host.

    The solution without row `i` is the solution of all rows less column `i` of `A^(-1)` times the
    residual of `leave_one_out`, `alpha_i / [A^(-1)]_ii`. The machines are one expansion, with a
    column for each row left out and each output, row by row. Its prototypes are the rows with
    weight. Leaving out a row of weight 0 changes nothing.

    Raises:
        NumericalError: if `1 / C` is below the rounding of the kernel matrix.
    """
    K, y, weights, X = (np.asarray(a) for a in _matrices(kernel, rows))
    present = np.flatnonzero(np.any(weights > 0, axis=1))
    K, y, weights = K[np.ix_(present, present)], y[present], weights[present]
    place = np.minimum(np.searchsorted(present, left_out), len(present) - 1)
    is_present = present[place] == left_out
    C_of_output = np.broadcast_to(np.asarray(C, K.dtype).reshape(-1), y.shape[1:])
    columns = np.zeros((len(present), len(left_out), y.shape[1]), K.dtype)
    intercepts = np.zeros(columns.shape[1:], K.dtype)
    P = previous = None
    for j in range(y.shape[1]):
        system = C_of_output[j], weights[:, j].tobytes()
        if P is None or system != previous:
            P, previous = _inverse(K, weights[:, j], C_of_output[j]), system
        ones = P.sum(axis=1)
        share = ones / P.sum()
        b = share @ y[:, j]
        alpha, B = P @ y[:, j] - ones * b, P - np.outer(ones, share)
        diagonal = np.diagonal(B)  # 0 if the problem does not see the row
        residuals = np.where(diagonal > 0, alpha / np.where(diagonal > 0, diagonal, 1), 0)
        residual = np.where(is_present, residuals[place], 0)
        columns[:, :, j] = alpha[:, None] - B[:, place] * residual
        intercepts[:, j] = b - share[place] * residual
    return expansion_of_folds(kernel, X[present], columns, intercepts)


@compiled
def _matrices(
    kernel: Kernel, rows: Rows
) -> tuple[Float[Array, "n n"], Float[Array, "n l"], Float[Array, "n l"], Float[Array, "n d"]]:
    """Return the kernel matrix, the targets and weights of every output, and the inputs."""
    targets = rows.target_columns
    weights = rows.problem_weights.reshape(len(rows), -1)
    X = present_rows(rows.X, rows.weights)
    return kernel.gram(X), targets, jnp.broadcast_to(weights, targets.shape), X


def _inverse(K: Float[np.ndarray, "n n"], w: Float[np.ndarray, " n"], C: Any) -> np.ndarray:
    """Return `(K + W^(-1) / C)^(-1)`, with 0 for rows of weight 0.

    Raises:
        NumericalError: if `1 / C` is below the rounding of `K`.
    """
    from scipy.linalg import cho_factor, cho_solve  # imported late, as it is slow to import

    root, one = np.sqrt(w), np.eye(len(K), dtype=K.dtype)
    try:
        factor = cho_factor(root[:, None] * K * root + one / C, lower=True)
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "out_of_fold: the machines without each row cannot be computed in this precision, as "
            "1 / C is below the rounding of the kernel matrix; use float64 or a smaller C"
        ) from error
    return root[:, None] * cho_solve(factor, one) * root


def _solve(
    spec: Spectrum,
    K: Float[Array, "n n"],
    w: Float[Array, " n"],
    C: Float[Array, " s"],
    rhs: Float[Array, "s n k"],
) -> tuple[Float[Array, "s n k"], Float[Array, "s n k"], Float[Array, "s n k"]]:
    """Return `alpha`, `e` and the residual of `solve_weighted` for each `C`.

    `spec` is of `W^(1/2) K W^(1/2)`.
    """
    spec, shifts = jax.lax.stop_gradient((spec, 1 / C))

    def inverse(b: Float[Array, "s n k"]) -> tuple[Float[Array, "s n k"], None]:
        return jnp.swapaxes(shifted_inverse(spec, jnp.swapaxes(b, 1, 2), shifts), 1, 2), None

    scales = w[None, :, None], C[:, None, None]
    alpha, e, (residual, _) = solve_weighted(lambda v: dot(K[None], v), inverse, *scales, rhs)
    return alpha, e, residual


def _diagonal(arguments: tuple[Spectrum, Array, Array, Array]) -> Float[Array, "s n"]:
    """Return the diagonal of `(I + C K W)^(-1)` for every `C`; `arguments` are `spec, K, w, C`.

    It is the diagonal of `(W^(1/2) K W^(1/2) + I/C)^(-1)`, which `spec` decomposes, divided by `C`.
    """
    spec, _, w, C = arguments
    return jnp.where(w[None] > 0, spec.inverse_diagonal(1 / C) / C[:, None], 1)


def _diagonal_derivative(
    _: Array,
    arguments: tuple[Spectrum, Array, Array, Array],
    tangents: tuple[Spectrum, Array, Array, Array],
) -> Float[Array, "s n"]:
    """Return the derivative of `_diagonal`: `dP = -P d(C K W) P` with `P = (I + C K W)^(-1)`."""
    spec, K, w, C = arguments
    _spec, d_K, d_w, d_C = tangents
    one = jnp.eye(len(w), dtype=K.dtype)[None]

    def tangent(C_and_tangent: tuple[Array, Array]) -> Float[Array, " n"]:
        C, d_C = C_and_tangent
        P = _solve(spec, K, w, C[None], one)[1][0]
        change = C * d_K * w[None, :] + K * (C * d_w + d_C * w)[None, :]
        return -jnp.sum(dot(P, change) * P.T, axis=1)

    return jax.lax.map(tangent, (C, d_C))  # one C at a time, as each takes memory n x n
