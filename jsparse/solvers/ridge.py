"""Ridge systems for many penalties from one factorisation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numerics import dot, eigh, epsilon, rank_cutoff, relative_size, with_derivative
from .._repr import short_repr
from .._runtime import on_cpu
from .._status import status_of
from .shifted_cholesky import ShiftedCholesky
from .tridiagonal import Tridiagonal, tridiagonal


class Spectrum(NamedTuple):
    """Eigendecomposition of a symmetric matrix.

    Only the field `matrix` has derivatives. The solves below derive their derivatives from it by
    the implicit function theorem, so repeated eigenvalues do no harm.
    """

    matrix: Float[Array, "p p"]
    values: Float[Array, " p"]  # ascending; values that rounding made negative are 0
    vectors: Float[Array, "p p"]

    __repr__ = short_repr

    def apply_inverse(
        self, rhs: Float[Array, "t k p"], shifts: Float[Array, " s"]
    ) -> Float[Array, "s k p"]:
        """Solve `(A + shift_s I) x_s = rhs_s`; vectors are rows. If `t` is 1, all share `rhs`."""
        p = rhs.shape[2]
        rotated = dot(rhs.reshape(-1, p), self.vectors).reshape(rhs.shape)
        solved = rotated / (self.values[None, :] + shifts[:, None])[:, None, :]
        return dot(solved.reshape(-1, p), self.vectors.T).reshape(solved.shape)

    def inverse_diagonal(self, shifts: Float[Array, " s"]) -> Float[Array, "s p"]:
        """Return the diagonal of `(A + shift_s I)^(-1)` for every shift."""
        return dot(1 / (self.values[None, :] + shifts[:, None]), jnp.square(self.vectors).T)

    @property
    def largest(self) -> Float[Array, ""]:
        """Return the largest eigenvalue."""
        return self.values[-1]

    def numerical_rank(self, noise: Float[Array, ""]) -> Int[Array, ""]:
        """Return the number of eigenvalues above `noise`, the rounding error of an eigenvalue."""
        return jnp.sum(self.values > noise, dtype=jnp.int32)

    def degrees_of_freedom(self, shifts: Float[Array, " s"]) -> Float[Array, " s"]:
        """Return `tr(A (A + shift I)^(-1))` for every shift."""
        values = self.values[None, :]
        return jnp.sum(values / (values + shifts[:, None]), axis=1)


class Ridge(NamedTuple):
    """Solutions of a ridge system, one for each `C`."""

    weights: Float[Array, "s p *c"]
    intercept: Float[Array, " s *c"]
    degrees_of_freedom: Float[Array, " s"]  # sum_i d_i / (d_i + 1/C), d_i the eigenvalues
    effective_rank: Int[Array, ""]  # number of eigenvalues of the centred gram above noise
    relative_residual: Float[Array, " s"]  # |G w - c + w/C| / |c|, worst output
    status: Int[Array, " s"]

    __repr__ = short_repr


Factorised = Spectrum | Tridiagonal | ShiftedCholesky
LARGE = 1500  # number of features above which each shift has a separate factorisation


def spectrum(matrix: Float[Array, "p p"]) -> Spectrum:
    """Compute the eigendecomposition of a symmetric positive semi-definite matrix."""
    values, vectors = eigh(jax.lax.stop_gradient(matrix))
    return Spectrum(matrix, jnp.maximum(values, 0), vectors)


def factorised(matrix: Float[Array, "p p"]) -> Factorised:
    """Return the factorisation that is cheapest on this device for many shifts.

    On a CPU it is the tridiagonal form, which takes a third of the time of the eigendecomposition.
    On an accelerator it is the eigendecomposition, which runs in batches there; some accelerators
    lack the tridiagonal form. For more than `LARGE` features each shift is factorised by Cholesky,
    which takes a hundredth of the time of a decomposition.
    """
    if len(matrix) > LARGE:
        return ShiftedCholesky(matrix)
    return tridiagonal(matrix) if on_cpu() else spectrum(matrix)


def resolvent(
    factor: Factorised, rhs: Float[Array, "p k"], shifts: Float[Array, " s"]
) -> Float[Array, "s p k"]:
    """Solve `(A + shift_s I) x_s = rhs` for every shift; differentiable in all arguments."""
    # Every shift and right-hand side is a row of one matrix: a few products serve them all.
    rows = jnp.broadcast_to(rhs.T[None], (len(shifts), *rhs.T.shape))
    # `custom_linear_solve` demands that its solver closes over arrays without derivatives.
    constant, constant_shifts = jax.lax.stop_gradient((factor, shifts))
    solved = jax.lax.custom_linear_solve(
        lambda x: shifted_product(factor.matrix, x, shifts),
        rows,
        lambda _, b: shifted_inverse(constant, b, constant_shifts),
        symmetric=True,
    )
    return jnp.swapaxes(solved, 1, 2)


def shifted_product(
    matrix: Float[Array, "p p"], x: Float[Array, "s k p"], shifts: Float[Array, " s"]
) -> Float[Array, "s k p"]:
    """Compute `(A + shift_s I) x_s` for every shift; vectors are rows."""
    return dot(x.reshape(-1, x.shape[2]), matrix).reshape(x.shape) + shifts[:, None, None] * x


def shifted_inverse(
    factor: Factorised,
    b: Float[Array, "t k p"],
    shifts: Float[Array, " s"],
    *,
    refine: bool = True,
) -> Float[Array, "s k p"]:
    """Solve `(A + shift_s I) x_s = b_s`; vectors are rows. If `t` is 1, shifts share `b`.

    `refine` improves float32 solutions by one step of iterative refinement.
    """
    x = factor.apply_inverse(b, shifts)
    if refine and b.dtype == jnp.float32:
        # The factorisation has an error of eps |A|; the product with A is more precise, so one step
        # of refinement helps. Refinement against the rows gained nothing measurable: the rounding
        # of the features dominates.
        x = x + factor.apply_inverse(b - shifted_product(factor.matrix, x, shifts), shifts)
    return x


def quadratic_form(
    spectrum: Spectrum, B: Float[Array, "p k"], shifts: Float[Array, " s"]
) -> Float[Array, "s k k"]:
    """Return `B' (A + shift_s I)^(-1) B` for every shift; differentiable in all arguments."""
    return with_derivative(_quadratic_form, _quadratic_form_derivative, (spectrum, B, shifts))


def _quadratic_form(arguments: tuple[Spectrum, Array, Array]) -> Float[Array, "s k k"]:
    decomposition, B, shifts = arguments
    rotated = dot(decomposition.vectors.T, B)
    spread = decomposition.values[None, :] + shifts[:, None]
    return dot(rotated.T[None] / spread[:, None, :], rotated)


def _quadratic_form_derivative(
    _: Array, arguments: tuple[Spectrum, Array, Array], tangents: tuple[Spectrum, Array, Array]
) -> Float[Array, "s k k"]:
    # d(B' R B) = dB' X + X' dB - X' (dA + dshift I) X with X = R B and the resolvent R. It needs no
    # derivative of the eigendecomposition, which would divide by differences of eigenvalues.
    decomposition, B, shifts = arguments
    d_decomposition, d_B, d_shifts = tangents
    X = resolvent(decomposition, B, shifts)
    Xt = jnp.swapaxes(X, 1, 2)
    half = dot(Xt, d_B)
    inner = dot(d_decomposition.matrix, X) + d_shifts[:, None, None] * X
    return half + jnp.swapaxes(half, 1, 2) - dot(Xt, inner)


class Bordered(NamedTuple):
    """Systems `[[G + shift I, f], [f', N + p shift]]` of `ridge`; the intercept is last.

    Eliminating the intercept leaves the centred matrix `G - f f'/N`, which is factorised once for
    every shift. A penalty `p > 0` adds a rank-one term (Sherman and Morrison).
    """

    centred: Factorised
    f: Float[Array, " p"]
    N: Float[Array, ""]
    intercept_penalty: Float[Array, ""] | None  # None: 0
    shifts: Float[Array, " s"]

    __repr__ = short_repr

    @property
    def corner(self) -> Float[Array, "s 1"]:
        """Return the corner `N + p shift`."""
        if self.intercept_penalty is None:
            return jnp.broadcast_to(self.N, (len(self.shifts), 1))
        return (self.N + self.intercept_penalty * self.shifts)[:, None]

    def product(self, unknowns: Float[Array, "s c q"]) -> Float[Array, "s c q"]:
        """Return the product of each shift's matrix with its vectors `[w b]`, the rows."""
        w, b = unknowns[..., :-1], unknowns[..., -1]
        along = dot(w, self.f)
        image = shifted_product(self.centred.matrix, w, self.shifts)
        image = image + (along / self.N + b)[:, :, None] * self.f[None, None]
        return jnp.concatenate([image, (along + self.corner * b)[:, :, None]], axis=2)

    def inverse(self, rhs: Float[Array, "t c q"], *, refine: bool) -> Float[Array, "s c q"]:
        """Return the solution `[w b]` of each row of `rhs`. If `t` is 1, shifts share `rhs`."""
        f, N, p = self.f, self.N, self.intercept_penalty
        c, t = rhs[..., :-1], rhs[..., -1]
        b = c - (t / N)[:, :, None] * f[None, None]
        x = shifted_inverse(self.centred, b, self.shifts, refine=refine)

        def with_penalty() -> Float[Array, "s c p"]:
            u = shifted_inverse(self.centred, f[None, None], self.shifts, refine=refine)
            assert p is not None
            alpha = rank_one_weight(N, p, 1 / self.shifts)[:, None]
            return x + (alpha * (t - dot(x, f)) / (1 + alpha * dot(u, f)))[:, :, None] * u

        w = x if p is None else jax.lax.cond(p > 0, with_penalty, lambda: x)
        return jnp.concatenate([w, ((t - dot(w, f)) / self.corner)[:, :, None]], axis=2)


def bordered_solve(
    system: Bordered, rhs: Float[Array, "c q"], refine: bool
) -> Float[Array, "s c q"]:
    """Return the solutions `[w b]` of `system` for every shift and every row of `rhs`.

    Differentiable in both modes in `rhs` and in the system: the matrix, `f`, `N`, `p` and shifts.
    """

    def solution(arguments: tuple[Bordered, Array]) -> Float[Array, "s c q"]:
        # The right-hand sides are transformed once for all shifts.
        system, rhs = arguments
        return system.inverse(rhs[None], refine=refine)

    def derivative(x: Array, arguments: tuple, tangents: tuple) -> Float[Array, "s c q"]:
        # M x = rhs implies M dx = d_rhs - dM x, however it is solved.
        system, (d_system, d_rhs) = arguments[0], tangents
        _, d_product = jax.jvp(lambda system: system.product(x), (system,), (d_system,))
        # Derivatives follow from the system, not from its factorisation.
        constant = jax.lax.stop_gradient(system)
        return jax.lax.custom_linear_solve(
            system.product,
            d_rhs[None] - d_product,
            lambda _, b: constant.inverse(b, refine=refine),
            symmetric=True,
        )

    return with_derivative(solution, derivative, (system, rhs))


def rank_one_weight(
    weight_sum: Float[Array, ""], intercept_penalty: Float[Array, ""], C: Float[Array, " s"]
) -> Float[Array, " s"]:
    """Return `alpha` with `G - f f'/(N + p/C) = (G - f f'/N) + alpha f f'`; 0 for p = 0."""
    p = intercept_penalty / C
    return p / (weight_sum * (weight_sum + p))


def ridge(
    gram: Float[Array, "p p"],
    cross: Float[Array, " p *c"],
    feature_sum: Float[Array, " p"],
    target_sum: Float[Array, "*c"],
    weight_sum: Float[Array, ""],
    C: Float[Array, " s"],
    intercept_penalty: Float[Array, ""] | None = None,
    *,
    refine: bool = True,
) -> Ridge:
    """Minimise `1/2 |w|^2 + p/2 b^2 + C/2 sum_i weight_i (y_i - phi_i'w - b)^2` for every `C`.

    De Brabanter 2010, eq. 7, with the intercept's penalty `p` free (the paper prints `p = 1`).

    Args:
        gram: `G = sum_i weight_i phi_i phi_i'`, shape `p p`.
        cross: `sum_i weight_i phi_i y_i`, shape `p` or `p c`.
        feature_sum: `f = sum_i weight_i phi_i`, shape `p`.
        target_sum: `sum_i weight_i y_i`, shape `()` or `c`.
        weight_sum: `N = sum_i weight_i`.
        C: weights of the data-fit term, shape `s`.
        intercept_penalty: `p`, at least 0. None stands for 0 and compiles faster.
        refine: improve float32 solutions and their derivatives by one step of refinement (static).

    Returns:
        `Ridge`, whose solutions are stacked along the first axis. The status is `NOT_FINITE` if a
        solution is not finite or `C`, `p` or `N` is out of range. It is `PRECISION_LOST` if
        rounding decides the solution: `1/C` is below the rounding noise of a rank-deficient system,
        or the residual is large.

    Differentiable in every argument in both modes.
    """
    outputs = cross.shape[1:]
    c, t = cross.reshape(cross.shape[0], -1), target_sum.reshape(-1)
    f, N, shifts = feature_sum, weight_sum, 1 / C
    centred = factorised(gram - f[:, None] * f[None, :] / N)
    rhs = jnp.concatenate([c.T, t[:, None]], axis=1)
    system = Bordered(centred, f, N, intercept_penalty, shifts)
    solved = bordered_solve(system, rhs, refine)
    rows, b = solved[..., :-1], solved[..., -1]
    w = jnp.swapaxes(rows, 1, 2)

    residual = dot(rows, gram) + b[:, :, None] * f[None, None] - c.T[None]
    residual = residual + shifts[:, None, None] * rows
    # An infinite entry of the matrix is compatible with a finite solution if its factor is 0.
    undefined = jnp.any(jnp.isnan(residual), axis=(1, 2))
    flat = residual.reshape(-1, c.shape[0])
    relative = relative_size(flat, jnp.broadcast_to(c.T[None], residual.shape).reshape(flat.shape))
    relative = jnp.max(relative.reshape(residual.shape[:2]), axis=1, initial=0)

    # Eigenvalues below `noise` are rounding errors of the factorisation and of the subtraction that
    # centred the matrix.
    squares = jnp.diagonal(gram)
    noise = rank_cutoff(jnp.maximum(centred.largest, jnp.max(squares)))
    rank = centred.numerical_rank(noise)
    # A feature that is zero at every row lowers the rank exactly, not by rounding.
    deficient = rank < jnp.sum(squares > 0, dtype=jnp.int32)
    lost = (shifts < noise) & deficient | (relative > epsilon(gram.dtype) ** 0.5)
    finite = jnp.all(jnp.isfinite(w), axis=(1, 2)) & jnp.all(jnp.isfinite(b), axis=1)
    valid = (shifts > 0) & (N > 0) & jnp.isfinite(N)
    if intercept_penalty is not None:
        valid = valid & (intercept_penalty >= 0)
    return Ridge(
        weights=w.reshape(-1, c.shape[0], *outputs),
        intercept=b.reshape(-1, *outputs),
        degrees_of_freedom=degrees_of_freedom(centred, C),
        effective_rank=rank,
        relative_residual=jax.lax.stop_gradient(relative),
        status=status_of(~(finite & valid) | undefined, lost),
    )


def degrees_of_freedom(factor: Factorised, C: Float[Array, " s"]) -> Float[Array, " s"]:
    """Return the effective number of parameters, `tr(A (A + I/C)^(-1))`, for every `C`."""
    return with_derivative(
        lambda arguments: arguments[0].degrees_of_freedom(1 / arguments[1]),
        _degrees_of_freedom_derivative,
        (factor, C),
    )


def _degrees_of_freedom_derivative(
    _: Array, arguments: tuple[Factorised, Array], tangents: tuple[Factorised, Array]
) -> Float[Array, " s"]:
    # The value is p - shift tr(R) with the resolvent R, and dR = -R (dA + dshift I) R. The loop
    # over shifts holds one resolvent in memory.
    factor, C = arguments
    d_factor, d_C = tangents
    identity = jnp.eye(factor.matrix.shape[0], dtype=C.dtype)

    def derivative_at(pair: tuple[Array, Array]) -> Float[Array, ""]:
        C, d_C = pair
        R = resolvent(factor, identity, 1 / C[None])[0]
        square, d_shift = dot(R, R), -d_C / jnp.square(C)
        d_trace = jnp.sum(square * d_factor.matrix) + d_shift * jnp.trace(square)
        return d_trace / C - d_shift * jnp.trace(R)

    return jax.lax.map(derivative_at, (C, d_C))
