"""Ridge systems for many penalties from one factorisation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._numerics import dot, eigh, epsilon, rank_cutoff, relative_size, with_derivative
from .._repr import short_repr
from .._status import status_of
from .shifted_cholesky import ShiftedCholesky
from .tridiagonal import Tridiagonal, tridiagonal


class Spectrum(NamedTuple):
    """Eigendecomposition of a symmetric matrix.

    Of it only `matrix` has derivatives, from which the solves below take theirs, by the implicit
    function theorem: repeated eigenvalues do no harm.
    """

    matrix: Float[Array, "p p"]
    values: Float[Array, " p"]  # ascending, negative rounding set to 0
    vectors: Float[Array, "p p"]

    __repr__ = short_repr

    def apply_inverse(
        self, rhs: Float[Array, "t k p"], shifts: Float[Array, " s"]
    ) -> Float[Array, "s k p"]:
        """Solve `(A + shift_s I) x_s = rhs_s` for every shift, with one or several `rhs`."""
        p = rhs.shape[2]
        turned = dot(rhs.reshape(-1, p), self.vectors).reshape(rhs.shape)
        solved = turned / (self.values[None, :] + shifts[:, None])[:, None, :]
        return dot(solved.reshape(-1, p), self.vectors.T).reshape(solved.shape)

    def inverse_diagonal(self, shifts: Float[Array, " s"]) -> Float[Array, "s p"]:
        """Diagonal of `(A + shift_s I)^(-1)` for every shift."""
        return dot(1 / (self.values[None, :] + shifts[:, None]), jnp.square(self.vectors).T)

    @property
    def largest(self) -> Float[Array, ""]:
        """The largest eigenvalue."""
        return self.values[-1]

    def count_above(self, bound: Float[Array, ""]) -> Int[Array, ""]:
        """How many eigenvalues exceed a bound."""
        return jnp.sum(self.values > bound, dtype=jnp.int32)

    def degrees_of_freedom(self, shifts: Float[Array, " s"]) -> Float[Array, " s"]:
        """`tr(A (A + shift I)^(-1))` for every shift."""
        values = self.values[None, :]
        return jnp.sum(values / (values + shifts[:, None]), axis=1)


class Ridge(NamedTuple):
    """Solutions of a ridge system, one for each `C`."""

    weights: Float[Array, "s p *c"]
    intercept: Float[Array, "s *c"]
    degrees_of_freedom: Float[Array, " s"]  # sum_i d_i / (d_i + 1/C)
    effective_rank: Int[Array, ""]  # eigenvalues of the centred gram above rounding noise
    relative_residual: Float[Array, " s"]  # |G w - c + w/C| / |c|, worst output
    status: Int[Array, " s"]

    __repr__ = short_repr


Factorised = Spectrum | Tridiagonal | ShiftedCholesky
LARGE = 1500  # features, from which on no single factorisation is to serve every shift


def spectrum(matrix: Float[Array, "p p"]) -> Spectrum:
    """Eigendecomposition of a symmetric positive semi-definite matrix."""
    values, vectors = eigh(jax.lax.stop_gradient(matrix))
    return Spectrum(matrix, jnp.maximum(values, 0), vectors)


def factorised(matrix: Float[Array, "p p"]) -> Factorised:
    """Return the factorisation that serves every shift: the cheaper one on this device.

    On a CPU the tridiagonal form takes a third of the time of the eigendecomposition, solves
    included. Accelerators decompose in batches, and some lack the tridiagonal form, so they take
    the eigendecomposition. For more than `LARGE` features each shift is factorised by Cholesky,
    which takes a hundredth of the time of a decomposition.
    """
    if len(matrix) > LARGE:
        return ShiftedCholesky(matrix)
    return tridiagonal(matrix) if jax.default_backend() == "cpu" else spectrum(matrix)


def resolvent(
    factor: Factorised, rhs: Float[Array, "p k"], shifts: Float[Array, " s"]
) -> Float[Array, "s p k"]:
    """Solve `(A + shift_s I) x_s = rhs` for every shift; differentiable in all arguments."""
    # Every shift and right-hand side is a row of one matrix: a few products serve them all.
    rows = jnp.broadcast_to(rhs.T[None], (len(shifts), *rhs.T.shape))
    # Held constant: the arrays that `solve` closes over must have no derivative.
    constant, fixed = jax.lax.stop_gradient((factor, shifts))
    solved = jax.lax.custom_linear_solve(
        lambda x: shifted_product(factor.matrix, x, shifts),
        rows,
        lambda _, b: shifted_inverse(constant, b, fixed),
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
    """Solve `(A + shift_s I) x_s = b_s` for every shift, with one `b` or one for each shift."""
    x = factor.apply_inverse(b, shifts)
    if refine and b.dtype == jnp.float32:
        # One step of refinement: the factorisation is exact to eps |A| only, and the product with A
        # is better. Refining against the rows gained nothing measurable, because the rounding of
        # the features dominates there.
        x = x + factor.apply_inverse(b - shifted_product(factor.matrix, x, shifts), shifts)
    return x


def quadratic_form(
    spectrum: Spectrum, B: Float[Array, "p k"], shifts: Float[Array, " s"]
) -> Float[Array, "s k k"]:
    """Return `B' (A + shift_s I)^(-1) B` for every shift; differentiable in all arguments."""
    return with_derivative(_quadratic_form, _quadratic_form_derivative, (spectrum, B, shifts))


def _quadratic_form(given: tuple[Spectrum, Array, Array]) -> Float[Array, "s k k"]:
    spec, B, shifts = given
    rotated = dot(spec.vectors.T, B)
    spread = spec.values[None, :] + shifts[:, None]
    return dot(rotated.T[None] / spread[:, None, :], rotated)


def _quadratic_form_derivative(
    _: Array, given: tuple[Spectrum, Array, Array], tangents: tuple[Spectrum, Array, Array]
) -> Float[Array, "s k k"]:
    # d(B' R B) = dB' X + X' dB - X' (dA + dshift I) X with X = R B, R the resolvent: no derivative
    # of the eigendecomposition, hence no differences of eigenvalues.
    spec, B, shifts = given
    d_spec, d_B, d_shifts = tangents
    X = resolvent(spec, B, shifts)
    Xt = jnp.swapaxes(X, 1, 2)
    half = dot(Xt, d_B)
    inner = dot(d_spec.matrix, X) + d_shifts[:, None, None] * X
    return half + jnp.swapaxes(half, 1, 2) - dot(Xt, inner)


class Bordered(NamedTuple):
    """Systems `[[G + shift I, f], [f', N + p shift]]` for all shifts; the intercept is last.

    Eliminating the intercept leaves the centred matrix `G - f f'/N`, whose one factorisation serves
    every shift. A penalty `p > 0` adds a rank-one term (Sherman and Morrison).
    """

    centred: Factorised
    f: Float[Array, " p"]
    N: Float[Array, ""]
    intercept_penalty: Float[Array, ""] | None  # None: 0
    shifts: Float[Array, " s"]

    __repr__ = short_repr

    @property
    def edge(self) -> Float[Array, "s 1"]:
        """The corner `N + p shift`."""
        if self.intercept_penalty is None:
            return jnp.broadcast_to(self.N, (len(self.shifts), 1))
        return (self.N + self.intercept_penalty * self.shifts)[:, None]

    def product(self, unknowns: Float[Array, "s c q"]) -> Float[Array, "s c q"]:
        """Return the product of each shift's matrix with its vectors."""
        w, b = unknowns[..., :-1], unknowns[..., -1]
        along = dot(w, self.f)
        image = shifted_product(self.centred.matrix, w, self.shifts)
        image = image + (along / self.N + b)[:, :, None] * self.f[None, None]
        return jnp.concatenate([image, (along + self.edge * b)[:, :, None]], axis=2)

    def inverse(self, rhs: Float[Array, "t c q"], *, refine: bool) -> Float[Array, "s c q"]:
        """Return the solutions, for one `rhs` that all shifts share or one `rhs` for each shift."""
        f, N, p = self.f, self.N, self.intercept_penalty
        c, t = rhs[..., :-1], rhs[..., -1]
        b = c - (t / N)[:, :, None] * f[None, None]
        x = shifted_inverse(self.centred, b, self.shifts, refine=refine)

        def penalised() -> Float[Array, "s c p"]:
            u = shifted_inverse(self.centred, f[None, None], self.shifts, refine=refine)
            assert p is not None
            alpha = rank_one_weight(N, p, 1 / self.shifts)[:, None]
            return x + (alpha * (t - dot(x, f)) / (1 + alpha * dot(u, f)))[:, :, None] * u

        w = x if p is None else jax.lax.cond(p > 0, penalised, lambda: x)
        return jnp.concatenate([w, ((t - dot(w, f)) / self.edge)[:, :, None]], axis=2)


def bordered_solve(
    system: Bordered, rhs: Float[Array, "c q"], refine: bool
) -> Float[Array, "s c q"]:
    """Return the solutions `[w b]` of `system` for every shift and every row of `rhs`.

    Differentiable in both modes in `rhs` and in the system: the matrix, `f`, `N`, `p` and shifts.
    """

    def solution(given: tuple[Bordered, Array]) -> Float[Array, "s c q"]:
        # The right-hand sides are transformed once for all shifts.
        return given[0].inverse(given[1][None], refine=refine)

    def derivative(x: Array, given: tuple, tangents: tuple) -> Float[Array, "s c q"]:
        # M x = rhs implies M dx = d_rhs - dM x, however it is solved.
        system, (d_system, d_rhs) = given[0], tangents
        _, moved = jax.jvp(lambda system: system.product(x), (system,), (d_system,))
        # Held constant: derivatives follow from the system, not from how it is solved.
        constant = jax.lax.stop_gradient(system)
        return jax.lax.custom_linear_solve(
            system.product,
            d_rhs[None] - moved,
            lambda _, b: constant.inverse(b, refine=refine),
            symmetric=True,
        )

    return with_derivative(solution, derivative, (system, rhs))


def rank_one_weight(
    weight_sum: Float[Array, ""], intercept_penalty: Float[Array, ""], C: Float[Array, " s"]
) -> Float[Array, " s"]:
    """`alpha = 1/N - 1/(N + p/C)` in `G - f f'/(N + p/C) = centred + alpha f f'`; 0 for p = 0."""
    p = intercept_penalty / C
    return p / (weight_sum * (weight_sum + p))


def ridge(
    gram: Float[Array, "p p"],
    cross: Float[Array, "p *c"],
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
        gram: `G = Phi' W Phi`, shape `p p`.
        cross: `Phi' W y`, shape `p` or `p c`.
        feature_sum: `f = Phi' w`, shape `p`.
        target_sum: `y' w`, shape `()` or `c`.
        weight_sum: `N = sum w`.
        C: weights of the data-fit term, shape `s`.
        intercept_penalty: `p`, at least 0; None is 0, and compiles faster.
        refine: improve float32 solutions, also those of derivatives, by one step of refinement
            (static).

    Returns:
        `Ridge`, solutions stacked along the first axis. Its status is `NOT_FINITE` if a solution is
        not finite or `C`, `p` or `N` is out of range, and `PRECISION_LOST` if `1/C` is below the
        rounding noise of a rank-deficient system or the residual is large: rounding would decide
        the solution.

    Differentiable in every argument in both modes.
    """
    outputs = cross.shape[1:]
    c, t = cross.reshape(cross.shape[0], -1), target_sum.reshape(-1)
    f, N, shifts = feature_sum, weight_sum, 1 / C
    # Factorised once, it serves every C.
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

    # Eigenvalues below this carry no information: they are the rounding of the factorisation, and
    # of the subtraction that centred the matrix.
    squares = jnp.diagonal(gram)
    noise = rank_cutoff(jnp.maximum(centred.largest, jnp.max(squares)))
    rank = centred.count_above(noise)
    # A feature that is zero at every row is zero exactly, not by rounding.
    deficient = rank < jnp.sum(squares > 0, dtype=jnp.int32)
    lost = (shifts < noise) & deficient | (relative > epsilon(gram.dtype) ** 0.5)
    finite = jnp.all(jnp.isfinite(w), axis=(1, 2)) & jnp.all(jnp.isfinite(b), axis=1)
    sensible = (shifts > 0) & (N > 0) & jnp.isfinite(N)
    if intercept_penalty is not None:
        sensible = sensible & (intercept_penalty >= 0)
    return Ridge(
        weights=w.reshape(-1, c.shape[0], *outputs),
        intercept=b.reshape(-1, *outputs),
        degrees_of_freedom=degrees_of_freedom(centred, C),
        effective_rank=rank,
        relative_residual=jax.lax.stop_gradient(relative),
        status=status_of(~(finite & sensible) | undefined, lost),
    )


def degrees_of_freedom(factor: Factorised, C: Float[Array, " s"]) -> Float[Array, " s"]:
    """Return the effective number of parameters, `sum_i d_i / (d_i + 1/C)`; differentiable."""
    return with_derivative(
        lambda given: given[0].degrees_of_freedom(1 / given[1]),
        _degrees_of_freedom_derivative,
        (factor, C),
    )


def _degrees_of_freedom_derivative(
    _: Array, given: tuple[Factorised, Array], tangents: tuple[Factorised, Array]
) -> Float[Array, " s"]:
    # p - shift tr(R) with R the resolvent, and dR = -R (dA + dshift I) R: one shift at a time.
    factor, C = given
    d_factor, d_C = tangents
    one = jnp.eye(factor.matrix.shape[0], dtype=C.dtype)

    def slope(of: tuple[Array, Array]) -> Float[Array, ""]:
        C, d_C = of
        R = resolvent(factor, one, 1 / C[None])[0]
        square, d_shift = dot(R, R), -d_C / jnp.square(C)
        moved = jnp.sum(square * d_factor.matrix) + d_shift * jnp.trace(square)
        return moved / C - d_shift * jnp.trace(R)

    return jax.lax.map(slope, (C, d_C))
