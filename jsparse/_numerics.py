"""Numerical precision: products, thresholds, shifts of diagonals, dtypes."""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from ._runtime import on_cpu, starting
from ._types import Scalar

Function = TypeVar("Function", bound=Callable)
_FALSE = np.zeros((), bool)


def dot(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the matrix product at the highest precision.

    The default precision of accelerators (TF32, bfloat16) is about three digits, and makes a Gram
    matrix indefinite.
    """
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def dot_over_rows(a: Float[Array, "n p"], b: Float[Array, "n q"]) -> Float[Array, "p q"]:
    """Compute `a' b` at the highest precision, for tall matrices."""
    transposed = a.T
    if a.dtype == jnp.float64 and on_cpu():
        # Without the barrier the product reads the matrix across its rows, which is slower: for
        # 2048 x 500 by a factor of 1.9 with jaxlib 0.10.1, and of 1.4 with 0.12.0.1.
        transposed = jax.lax.optimization_barrier(transposed)
    return dot(transposed, b)


def epsilon(dtype: jnp.dtype) -> float:
    """Return the machine epsilon of `dtype` as a Python float, which promotes no array."""
    return float(jnp.finfo(dtype).eps)


# Sums over rows hold products of two kernel columns, so they resolve a column to the square root of
# epsilon only. This is 1.5e-8 in float64, which is enough, and 3e-4 in float32, which is not. The
# threshold lies between the epsilons of these dtypes, 2.2e-16 and 1.2e-7.
_EPSILON_FOR_PRODUCTS = 1e-10


def resolves_products(dtype: jnp.dtype) -> bool:
    """Return whether `dtype` has enough digits to solve for weights from sums over rows."""
    return epsilon(dtype) < _EPSILON_FOR_PRODUCTS


def rank_cutoff(largest: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """Return `2 eps` times the largest eigenvalue; smaller computed eigenvalues are rounding noise.

    Symmetric eigensolvers are backward stable, with an error of about eps times the largest
    eigenvalue. Independent rounding errors of the matrix entries change eigenvalues by less. The
    usual cutoff has the number of rows in place of 2 (`numpy.linalg.matrix_rank`), which drops too
    many features of a kernel machine in float32: on the table magic (m = 500, lengthscale 10, C =
    100) it keeps 48 of 500 features and costs a percentage point of test error against float64. 2
    eps keeps 107 features and costs 0.2 points.
    """
    return 2.0 * epsilon(largest.dtype) * jnp.maximum(largest, 0)


def cholesky_shift(gram: Float[Array, "m m"]) -> Float[Array, ""]:
    """Return the shift of a Gram matrix's diagonal that ensures a Cholesky factor.

    The shift is the rounding error of the largest eigenvalue, which the column sums bound, times
    the smallest sufficient power of 8, up to the sixth. Points that are many lengthscales away need
    higher powers, because their distances have larger rounding errors. If no power suffices, the
    Cholesky factor with the returned shift is not finite.
    """
    gram = jax.lax.stop_gradient(gram)
    identity = jnp.eye(len(gram), dtype=gram.dtype)

    def fails(shift: Array) -> Array:
        return ~jnp.all(jnp.isfinite(jnp.linalg.cholesky(gram + shift * identity)))

    def enlarge(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        shift, count, _ = carry
        return 8 * shift, count + 1, fails(8 * shift)

    least = epsilon(gram.dtype) * jnp.max(jnp.sum(jnp.abs(gram), axis=0))
    initial = least, jnp.zeros((), jnp.int32), fails(least)
    return jax.lax.while_loop(lambda carry: carry[2] & (carry[1] < 6), enlarge, initial)[0]


UNROLLED = 4  # number of decompositions that a program repeats instead of a loop


def unbatched_lapack(decompose: Function) -> Function:
    """Wrap `decompose` so that, on a CPU, `vmap` calls it once for each matrix.

    LAPACK's batched calls and BLAS's triangular solves divide a batch among the threads of a pool
    and wait for them. Two concurrent calls may each hold a thread that the other call needs, and
    wait for ever. Calls for one matrix do not wait. The deadlock occurs with jaxlib 0.10.1 and
    0.10.2, most often in triangular solves, and not with 0.12.0.1.
    """
    unbatched = jax.custom_batching.custom_vmap(decompose)

    @unbatched.def_vmap
    def _(size: int, _: list[bool], matrices: Array) -> tuple[PyTree, PyTree]:
        if size > UNROLLED:
            results = jax.lax.map(unbatched, matrices)
        else:  # faster than the loop
            results = jax.tree.map(lambda *a: jnp.stack(a), *[unbatched(a) for a in matrices])
        return results, jax.tree.map(lambda _: True, results)

    @functools.wraps(decompose)
    def call(matrix: Array) -> PyTree:
        return (unbatched if on_cpu() else decompose)(matrix)

    return call  # type: ignore[return-value]


@functools.cache
def solved_with_border(c: int) -> Callable[[Array], tuple[Array, Array]]:
    """Return a function of a matrix `[[A, B], [., d I]]`, where `B` has `c` columns.

    The function returns `A^(-1) B` and the diagonal of A's Cholesky factor `L`. The factor of the
    bordered matrix is `[[L, 0], [Y', D]]` with `L Y = B`. So only one of two triangular systems is
    solved, and nothing is copied, which saves a third of the time for size 200. Only the upper
    triangle is read. `d` must exceed the eigenvalues of `B'A^(-1)B`.
    """

    @unbatched_lapack
    def solved(bordered: Float[Array, "p p"]) -> tuple[Float[Array, "m c"], Float[Array, " m"]]:
        m = len(bordered) - c
        # LAPACK stores matrices by columns, as the transpose is.
        factor = jax.lax.linalg.cholesky(bordered.T, symmetrize_input=False)
        border = jnp.pad(-factor[m:, m:].T, ((m, 0), (0, 0)))
        solution = jax.scipy.linalg.solve_triangular(factor, border, lower=True, trans=1)
        return solution[:m], jnp.diagonal(factor)[:m]

    return solved


def with_derivative(
    function: Callable[[PyTree], Float[Array, "..."]],
    rule: Callable[[Array, PyTree, PyTree], Float[Array, "..."]],
    primals: PyTree,
) -> Float[Array, "..."]:
    """Return `function(primals)` with the derivative `rule(value, primals, tangents)`.

    It replaces `jax.custom_jvp`, whose rules JAX 0.10 drops in the body of a scan that it
    differentiates in reverse mode: second derivatives would differentiate the function itself. JAX
    keeps the rules of linear solves. This is the linear solve `[[0, 1], [1, -f]] [d, e] = [1, 0]`,
    whose solution `d = f` is known and whose derivative follows from the rule.
    """
    value = jax.lax.stop_gradient(function(jax.lax.stop_gradient(primals)))

    @jax.custom_jvp
    def known(value: Array, primals: PyTree) -> Array:
        return value

    @known.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:
        # For derivatives of higher order, the rule needs a value that has derivatives.
        differentiable = with_derivative(lambda _: primals[0], rule, primals[1])
        return differentiable, rule(differentiable, primals[1], tangents[1])

    return jax.lax.custom_linear_solve(
        lambda x: jnp.stack([x[1], x[0] - known(value, primals) * x[1]]),
        jnp.stack([jnp.ones_like(value), jnp.zeros_like(value)]),
        lambda _, b: jnp.stack([value * b[0] + b[1], b[0]]),
        symmetric=True,
    )[0]


@unbatched_lapack
def _eigh(matrix: Float[Array, "p p"]) -> tuple[Float[Array, " p"], Float[Array, "p p"]]:
    return tuple(jnp.linalg.eigh(matrix))


def eigh(matrix: Float[Array, "p p"]) -> tuple[Float[Array, " p"], Float[Array, "p p"]]:
    """Return the ascending eigenvalues of a symmetric matrix, and its eigenvectors as columns.

    Differentiable in both modes. The derivative does not rotate eigenvectors of a repeated
    eigenvalue within their eigenspace. First derivatives are exact for functions of the eigenspace.
    """
    decomposition = with_derivative(
        lambda matrix: jnp.concatenate([a.reshape(-1, len(matrix)) for a in _eigh(matrix)]),
        _eigh_derivative,
        matrix,
    )
    return decomposition[0], decomposition[1:]


def _eigh_derivative(decomposition: Float[Array, "q p"], _: Array, tangent: Array) -> Array:
    values, vectors = decomposition[0], decomposition[1:]
    rotated = dot(vectors.T, dot(tangent, vectors))
    gap = values[None, :] - values[:, None]
    distinct = jnp.abs(gap) > epsilon(values.dtype) * jnp.max(jnp.abs(values))
    rotation = jnp.where(distinct, rotated / jnp.where(distinct, gap, 1), 0)
    return jnp.concatenate([jnp.diagonal(rotated)[None], dot(vectors, rotation)])


def exponents(x: Float[Array, "v ..."]) -> Int[Array, " v"]:
    """Return the `e` of `2^(e-1) <= max |x[i]| < 2^e`; 1 if the maximum is 0 or not finite."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=tuple(range(1, x.ndim)), initial=0))
    usable = jnp.isfinite(largest) & (largest > 0)
    exponent = jnp.frexp(jnp.where(usable, largest, 1))[1]
    # The inverse of the power of two must be a normal number.
    bound = int(jnp.finfo(x.dtype).maxexp) - 2
    return jnp.clip(exponent, -bound, bound).astype(jnp.int32)


def times_power(x: Float[Array, "v ..."], exponent: Int[Array, " v"]) -> Float[Array, "v ..."]:
    """Return `x[i] * 2**exponent[i]` exactly, even if `2**exponent[i]` is out of range."""
    half = exponent // 2
    for part in (half, exponent - half):
        power = jnp.ldexp(jnp.ones((), x.dtype), part)
        x = x * power.reshape(-1, *[1] * (x.ndim - 1))
    return x


def relative_size(x: Float[Array, "v n"], of: Float[Array, "v n"]) -> Float[Array, " v"]:
    """Return `|x[i]| / |of[i]|`, or `|x[i]|` if `of[i]` is zero, without overflow of squares."""
    largest = jnp.max(jnp.abs(of), axis=1, keepdims=True, initial=0)
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    top, bottom = (jnp.sqrt(jnp.sum(jnp.square(a / unit), axis=1)) for a in (x, of))
    return top / jnp.where(bottom > 0, bottom, 1)


def as_array(x: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Return `x` as a JAX array; copy NumPy arrays and scalars without compiling a program.

    `jnp.asarray` compiles a program for every shape. `device_put` may share the caller's memory.
    """
    if isinstance(x, np.ndarray | np.generic):
        return jax.device_put(np.array(x, dtype, subok=True))
    return jnp.asarray(x, dtype)


def as_float(x: ArrayLike) -> Array:
    """Return `x` as a JAX array of floats; integers and booleans become the default float.

    Raise ValueError for complex numbers, whose imaginary parts would be lost.
    """
    starting()
    if np.iscomplexobj(x):
        raise ValueError(
            f"expected an array of real numbers, got {jnp.result_type(x)} of shape {jnp.shape(x)}"
        )
    if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "biu":
        return as_array(x, jnp.result_type(float))
    x = as_array(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def present_rows(
    X: Float[Array, "n d"], w: Float[Array, " n"], *, apart: bool = False
) -> Float[Array, "n d"]:
    """Replace the values of zero-weight rows, so that infinities there cannot reach other rows.

    Zero-weight rows may hold NaN, and 0 times NaN is NaN. Harmless rows are unchanged, because
    derivatives in their weights depend on their values. Harmful rows become copies of a row with
    weight, and so do the derivatives in their weights.

    If `apart`, the caller processes each row separately. Otherwise distant zero-weight rows are
    replaced too: they would move the centre of the distances and cost other rows digits.
    """
    values = jax.lax.stop_gradient(X)
    heaviest_row = values[jnp.argmax(w)]
    heaviest_row = jnp.where(jnp.isfinite(heaviest_row), heaviest_row, 0)
    distance = jnp.max(jnp.abs(values - heaviest_row[None, :]), axis=1, initial=0)
    radius = jnp.max(jnp.where(w > 0, distance, 0))
    bound = float(jnp.finfo(X.dtype).max) ** 0.125  # a kernel can square this magnitude
    if apart:
        near = distance <= jnp.maximum(16 * radius, bound)  # NaN is not near
    else:
        near = distance <= jnp.where(radius > 0, epsilon(X.dtype) ** -0.25 * radius, bound)
    return jnp.where(((w > 0) | near)[:, None], X, heaviest_row[None, :])


def present_targets(y: Float[Array, " n *c"], w: Float[Array, " n"]) -> Float[Array, " n *c"]:
    """Set targets of zero-weight rows to 0 if their squares are out of range."""
    w = w.reshape(-1, *[1] * (y.ndim - 1))
    bound = float(jnp.finfo(y.dtype).max) ** 0.45
    return jnp.where((w > 0) | (jnp.abs(y) < bound), y, 0)


def like(value: ArrayLike, x: Array | np.ndarray) -> Scalar:
    """Return a scalar in the dtype of `x`, so that `x` is not promoted."""
    if isinstance(value, int | float):
        value = np.asarray(value)  # `as_array` converts it without compiling a program
    return as_array(value, x.dtype)


def is_concrete(x: object) -> bool:
    """Return whether the values of `x` are available: neither traced nor in other processes."""
    return not isinstance(x, Tracer) and getattr(x, "is_fully_addressable", True)


def is_spread_over_processes(x: object) -> bool:
    """Return whether this process holds only some elements of the array."""
    if isinstance(x, Tracer) or not isinstance(x, jax.Array):
        return False
    return not (x.is_fully_addressable or x.is_fully_replicated)


def is_traced(*trees: PyTree) -> bool:
    """Return whether JAX traces an array of `trees`, or every operation, as within `jit`."""
    leaves = jax.tree.leaves(trees)
    # Within `jit` a transfer is traced like an operation. Outside `jit` it needs no program.
    return any(isinstance(a, Tracer) for a in (*leaves, jax.device_put(_FALSE)))
