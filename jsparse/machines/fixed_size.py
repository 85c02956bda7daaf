"""The fixed-size LS-SVM: ridge regression in Nystroem features of a few prototypes."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._numerics import as_float, is_concrete, like
from .._runtime import check_runtime
from .._status import CONVERGED, TRUNCATED
from .._types import ScalarLike
from ..expansion import KernelExpansion
from ..features import FeatureMap, Nystroem
from ..kernels import Kernel
from ..multiclass import Code, accumulate_code, solve_code
from ..normal_equations import NormalEquations, accumulate


class FixedSizeFit(NamedTuple):
    """A fitted machine and what is known of its solve."""

    expansion: KernelExpansion
    degrees_of_freedom: Float[Array, ""]  # sum_i d_i / (d_i + 1/C) of the centred gram
    effective_rank: Int[Array, ""]  # features above rounding noise
    relative_residual: Float[Array, ""]  # |G w - c + w/C| / |c|
    status: Int[Array, ""]


def fit(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    intercept_penalty: ScalarLike = 0.0,
    mesh: Mesh | None = None,
    block_rows: int | None = None,
) -> FixedSizeFit:
    """Fit a fixed-size LS-SVM (De Brabanter 2010, eq. 5-7).

    Minimises `1/2 |w|^2 + C/2 sum_i weight_i (y_i - phi(x_i)'w - b)^2` over the Nystroem features
    of the prototypes. Classification is the same with targets -1 and +1.

    Args:
        kernel: kernel of two points.
        prototypes: shape `m d`, `m <= n`.
        C: weight of the data-fit term, positive.
        X: inputs, shape `n d`, in the units of the prototypes.
        y: targets, shape `n`, or `n c` for several at once.
        weights: row weights, shape `n`, at least 0.
        intercept_penalty: adds `intercept_penalty/2 b^2`; 0 as in the LS-SVM, 1 as eq. 7 prints.
        mesh: spread the rows over its devices, see `accumulate` (static).
        block_rows: rows in memory at a time (static).

    Returns:
        The expansion with its diagnostics. The status is `TRUNCATED` for a `C` so large that
        features lost to rounding would have been used, `PRECISION_LOST` where rounding, not the
        data, decides the solution.

    Pure, and differentiable in everything but the shapes, in both modes; works under `jit` and
    `vmap`, and nothing recompiles when values change.

    Raises:
        ValueError: for shapes that do not fit, m > n, or (outside `jit`) NaN or infinity in X, y or
            the prototypes, C not positive, or negative weights.
    """
    _check_scalar(C)
    X, y, weights = in_one_dtype(X, y, weights)
    prototypes = as_float(prototypes).astype(X.dtype)
    check_problem(prototypes, C, X, y, weights, intercept_penalty)
    penalty = like(intercept_penalty, X)
    return _fit_kernel(kernel, prototypes, like(C, X), X, y, weights, penalty, mesh, block_rows)


def fit_features(
    feature_map: FeatureMap,
    C: ScalarLike,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None = None,
    *,
    intercept_penalty: ScalarLike = 0.0,
    mesh: Mesh | None = None,
    block_rows: int | None = None,
) -> FixedSizeFit:
    """`fit` for any feature map that is penalised by the identity; see there.

    With `features.Linear` this is the linear machine in the primal.
    """
    _check_scalar(C)
    check_penalty(feature_map)
    X, y, weights = in_one_dtype(X, y, weights)
    check_problem(None, C, X, y, weights, intercept_penalty)
    penalty = like(intercept_penalty, X)
    return _fit(feature_map, like(C, X), X, y, weights, penalty, mesh, block_rows)


def fit_classes(
    feature_map: FeatureMap,
    C: ScalarLike | Float[Array, " l"],
    X: Float[Array, "n d"],
    labels: Int[Array, " n"],
    code: Code,
    weights: Float[Array, " n"] | None = None,
    *,
    intercept_penalty: ScalarLike = 0.0,
    mesh: Mesh | None = None,
    block_rows: int | None = None,
) -> FixedSizeFit:
    """Fit the problems of an output code, in one pass over the rows (De Brabanter 2010, Sec. 8.4).

    Args:
        feature_map: such as `Nystroem(kernel, prototypes)`; penalised by the identity.
        C: weight of the data-fit term, or one for each problem, shape `l`.
        X: inputs, shape `n d`.
        labels: class numbers 0..k-1, shape `n`.
        code: see `multiclass.output_code`.
        weights: row weights, shape `n`, at least 0.
        intercept_penalty: see `fit`.
        mesh: see `fit`.
        block_rows: rows in memory at a time (static).

    Returns:
        An expansion with one column for each problem, for `multiclass.decode`; the diagnostics are
        those of the worst problem.

    Pure; differentiable in the feature map, `C`, `X` and `weights`, in both modes.
    """
    check_penalty(feature_map)
    X, y, weights = in_one_dtype(X, jnp.zeros(len(labels)), weights)
    check_problem(None, C, X, y, weights, intercept_penalty)
    check_labels(labels, code.matrix.shape[0])
    penalty = like(intercept_penalty, X)
    return _fit_classes(
        feature_map,
        jnp.asarray(C, X.dtype),
        X,
        labels,
        code.astype(X.dtype),
        weights,
        penalty,
        mesh,
        block_rows,
    )


def solve(
    feature_map: FeatureMap,
    equations: NormalEquations,
    C: ScalarLike | Float[Array, " l"],
    code: Code | None = None,
    *,
    intercept_penalty: ScalarLike = 0.0,
) -> FixedSizeFit:
    """The machine of rows already summed: `fit_features` or `fit_classes` less the pass over rows.

    Sums are additive, so rows that come later cost nothing but themselves:
    `solve(phi, equations + accumulate(phi, X_new, y_new), C)` is the fit of all rows.

    Args:
        feature_map: that of the sums; penalised by the identity.
        equations: from `accumulate`, or with a code from `multiclass.accumulate_code`.
        C: weight of the data-fit term; with a code also one for each problem, shape `l`.
        code: see `multiclass.output_code`; None for targets of any other kind.
        intercept_penalty: see `fit`.

    Pure; differentiable in the feature map, the sums and `C`, in both modes.

    Raises:
        ValueError: (outside `jit`) if C is not positive or the intercept's penalty is negative.
    """
    check_penalty(feature_map)
    check_penalties(C, intercept_penalty)
    dtype = equations.gram.dtype
    code = None if code is None else code.astype(dtype)
    penalty = like(intercept_penalty, equations.gram)
    return _solve(feature_map, equations, jnp.asarray(C, dtype), code, penalty)


@functools.partial(jax.jit, static_argnames=("mesh", "block_rows"))
def _fit_classes(
    feature_map: FeatureMap,
    C: Float[Array, ""] | Float[Array, " l"],
    X: Float[Array, "n d"],
    labels: Int[Array, " n"],
    code: Code,
    weights: Float[Array, " n"] | None,
    intercept_penalty: Float[Array, ""],
    mesh: Mesh | None,
    block_rows: int | None,
) -> FixedSizeFit:
    equations = accumulate_code(
        code, feature_map, X, labels, weights, mesh=mesh, block_rows=block_rows
    )
    return _solve(feature_map, equations, C, code, intercept_penalty)


@functools.partial(jax.jit, static_argnames=("mesh", "block_rows"))
def _fit_kernel(
    kernel: Kernel,
    prototypes: Float[Array, "m d"],
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None,
    intercept_penalty: Float[Array, ""],
    mesh: Mesh | None,
    block_rows: int | None,
) -> FixedSizeFit:
    phi = Nystroem(kernel, prototypes)
    # A penalised intercept is that of the features as eq. 5 has them, not centred.
    shift = jnp.where(intercept_penalty == 0, phi.shift, 0)
    phi = eqx.tree_at(lambda map: map.shift, phi, shift)
    return _fit(phi, C, X, y, weights, intercept_penalty, mesh, block_rows)


@functools.partial(jax.jit, static_argnames=("mesh", "block_rows"))
def _fit(
    feature_map: FeatureMap,
    C: Float[Array, ""],
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    weights: Float[Array, " n"] | None,
    intercept_penalty: Float[Array, ""],
    mesh: Mesh | None,
    block_rows: int | None,
) -> FixedSizeFit:
    equations = accumulate(feature_map, X, y, weights, mesh=mesh, block_rows=block_rows)
    return _solve(feature_map, equations, C, None, intercept_penalty)


@jax.jit
def _solve(
    feature_map: FeatureMap,
    equations: NormalEquations,
    C: Float[Array, ""] | Float[Array, " l"],
    code: Code | None,
    intercept_penalty: Float[Array, ""],
) -> FixedSizeFit:
    if code is None:
        solution = equations.solve(C[None], intercept_penalty)
    else:
        solution = solve_code(code, equations, C[None], intercept_penalty)
        if not code.shares_all_rows:  # sums per class
            equations = equations.joined
    unresolved = feature_map.unresolved(jnp.max(C), equations.energy)
    lost = jnp.where(unresolved, TRUNCATED, CONVERGED).astype(jnp.int32)
    return FixedSizeFit(
        expansion=feature_map.expansion(solution.weights[0], solution.intercept[0]),
        degrees_of_freedom=solution.degrees_of_freedom[0],
        effective_rank=solution.effective_rank,
        relative_residual=solution.relative_residual[0],
        status=jnp.maximum(solution.status[0], lost),
    )


def _check_scalar(C: ScalarLike) -> None:
    if jnp.ndim(C) != 0:
        raise ValueError(f"C: expected one number, got shape {jnp.shape(C)}; for many, vmap")


def in_one_dtype(X: Array, y: Array, weights: Array | None) -> tuple[Array, Array, Array | None]:
    """All in the dtype of `X`, the default float if that is no float."""
    X = as_float(X)
    weights = None if weights is None else as_float(weights).astype(X.dtype)
    return X, as_float(y).astype(X.dtype), weights


def check_penalty(feature_map: FeatureMap) -> None:
    """Raise unless the map is penalised by the identity."""
    if feature_map.penalty() is not None:
        raise ValueError(
            "feature_map: expected one penalised by the identity (Nystroem, Linear), got "
            f"{type(feature_map).__name__}; Nystroem gives the same models"
        )


def check_labels(labels: Array, k: int) -> None:
    """Raise unless the labels are class numbers 0..k-1, as far as they can be looked at."""
    if labels.ndim != 1 or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(
            f"labels: expected class numbers, integers of shape (n,), got {labels.dtype} of shape "
            f"{labels.shape}"
        )
    values = np.asarray(labels) if is_concrete(labels) else np.zeros(1)
    if not (values.min() >= 0 and values.max() < k):
        raise ValueError(f"labels: expected class numbers 0 to {k - 1}, got others")


def check_problem(
    prototypes: Array | None,
    C: ScalarLike | Array,
    X: Array,
    y: Array,
    weights: Array | None,
    intercept_penalty: ScalarLike = 0.0,
) -> None:
    """Raise a `ValueError` that says what was expected and what came; values only if concrete."""
    check_runtime()
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"X: expected shape (n, d) with at least one row, got {X.shape}")
    if X.dtype not in (jnp.float32, jnp.float64):
        raise ValueError(
            f"X: expected numbers of 32 or 64 bits, which alone can be solved with, got {X.dtype}"
        )
    n = X.shape[0]
    if y.shape[:1] != (n,):
        raise ValueError(f"y: expected {n} rows, as many as X, got shape {y.shape}")
    if weights is not None and weights.shape != (n,):
        raise ValueError(f"weights: expected shape ({n},), got {weights.shape}")
    if prototypes is not None:
        if prototypes.ndim != 2 or prototypes.shape[1] != X.shape[1]:
            raise ValueError(
                f"prototypes: expected shape (m, {X.shape[1]}), got {prototypes.shape}"
            )
        if not 1 <= prototypes.shape[0] <= n:
            raise ValueError(
                f"prototypes: expected between 1 and as many as rows ({n}), got "
                f"{prototypes.shape[0]}"
            )
        check_finite("prototypes", prototypes)
    check_finite("X", X)
    check_finite("y", y)
    check_penalties(C, intercept_penalty)
    if weights is not None and is_concrete(weights):
        w = np.asarray(weights)
        if not np.all((w >= 0) & np.isfinite(w)):
            raise ValueError("weights: expected all at least 0, got a negative or infinite weight")
        if not np.any(w > 0):
            raise ValueError("weights: expected at least one above 0, got zeros only")


def check_penalties(C: ScalarLike | Array, intercept_penalty: ScalarLike) -> None:
    """Raise unless `C` is positive and the intercept's penalty not negative."""
    if is_concrete(C) and not (np.all(np.isfinite(np.asarray(C))) and np.all(np.asarray(C) > 0)):
        raise ValueError(f"C: expected a positive number, got {C}")
    if is_concrete(intercept_penalty) and not np.asarray(intercept_penalty) >= 0:
        raise ValueError(f"intercept_penalty: expected at least 0, got {intercept_penalty}")


def check_finite(name: str, a: Array | np.ndarray) -> None:
    """Raise naming the first NaN or infinity; silent while tracing."""
    # NumPy, as jax.numpy would trace even concrete values inside a caller's jit.
    if is_concrete(a) and not np.all(np.isfinite(np.asarray(a))):
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(np.asarray(a)))[0])
        value = np.asarray(a)[where]
        raise ValueError(f"{name}: expected finite values, got {value} at index {where}")
