"""Checks of the arguments of the pure fit functions, made before any work."""

from typing import Any, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments import check_finite
from .._numerics import as_array, as_float, is_concrete, is_traced, like
from .._runtime import check_runtime
from .._types import ScalarLike
from ..features import FeatureMap


def in_one_dtype(X: Array, y: Array, weights: Array | None) -> tuple[Array, Array, Array | None]:
    """Return all arrays in the dtype of `X`, or in JAX's default float if `X` holds no floats."""
    X = as_float(X)
    weights = None if weights is None else as_float(weights).astype(X.dtype)
    return X, as_float(y).astype(X.dtype), weights


def columns_in_one_dtype(
    name: str,
    points: Array,
    C: ScalarLike | Array,
    X: Array,
    y: Array,
    weights: Array | None,
    *,
    classes: bool,
    several: bool = False,
) -> tuple[Array, Array, Array, Array, Array]:
    """Check arguments, and return points, `C`, inputs, targets and weights in the dtype of `X`.

    Each column of targets may have a separate `C` and separate weights.

    Args:
        name: the name of the argument that holds the points, for error messages.
        points: shape `m d`.
        C: weight of the data-fit term, shape `()` or `l`.
        X: inputs, shape `n d`.
        y: targets, shape `n` or `n l`.
        weights: shape `n` or `n l`; 0 for an absent row; None for weights of 1.
        classes: whether the targets must be -1 or +1.
        several: whether there may be several sets of points, shape `s m d`.

    Raises:
        ValueError: for shapes that do not fit, or (outside `jit`) values out of range.
    """
    X, y, weights = in_one_dtype(X, y, weights)
    points, C = as_float(points).astype(X.dtype), jnp.asarray(C, X.dtype)
    if weights is None:
        weights = as_array(np.ones(X.shape[:1], X.dtype))
    check_problem(None, C, X, y, weights if weights.ndim == 1 else None)
    if y.ndim > 2:
        raise ValueError(f"y: expected shape (n,) or (n, l), got {y.shape}")
    n, d = X.shape
    for argument, a, allowed in (
        ("C", C, ((), y.shape[1:])),
        ("weights", weights, ((n,), y.shape)),
    ):
        if a.shape not in allowed:
            raise ValueError(f"{argument}: expected one of the shapes {allowed}, got {a.shape}")
    if points.ndim not in (2, 2 + several) or points.shape[-1] != d or 0 in points.shape:
        raise ValueError(f"{name}: expected shape (m, {d}), got {points.shape}")
    check_finite(name, points)
    _check_not_negative(weights)
    if classes and is_concrete(y) and is_concrete(weights):
        w, targets = np.asarray(weights).reshape(n, *[-1] * (y.ndim - 1)), np.asarray(y)
        wrong = targets[(w > 0) & (np.abs(targets) != 1)]
        if len(wrong):
            raise ValueError(f"y: expected -1 and +1, got {wrong[0]:g}")
    return points, C, X, y, weights


def check_choice(name: str, value: Any, literal: Any) -> None:
    """Raise a `ValueError` unless the argument `name` has one of the values of a `Literal`."""
    choices = get_args(literal)
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{name}: expected {', '.join(others)} or {last}, got {value!r}")


def penalty_or_none(
    intercept_penalty: ScalarLike, X: Array | np.ndarray
) -> Float[Array, ""] | None:
    """Return a penalty in the dtype of `X`; None for the Python number 0, a simpler program."""
    if isinstance(intercept_penalty, int | float) and intercept_penalty == 0:
        return None
    return like(intercept_penalty, X)


def check_penalty(feature_map: FeatureMap) -> None:
    """Raise a `ValueError` unless this is a `FeatureMap` whose penalty is the squared norm."""
    if not isinstance(feature_map, FeatureMap):
        raise ValueError(
            "feature_map: expected a map such as jsparse.features.Nystroem(kernel, prototypes), "
            f"got {feature_map!r}"
        )
    if feature_map.penalty() is not None:
        raise ValueError(
            "feature_map: expected one whose penalty is the squared norm (Nystroem, Linear), got "
            f"{type(feature_map).__name__}; Nystroem gives the same models"
        )


def check_labels(labels: Array, k: int) -> None:
    """Raise a `ValueError` unless `labels` is a vector of class numbers 0..k-1, at least one.

    Labels that JAX traces are checked for shape and dtype only, see `nan_for_wrong_labels`.
    """
    if labels.ndim != 1 or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(
            f"labels: expected class numbers, integers of shape (n,), got {labels.dtype} of shape "
            f"{labels.shape}"
        )
    if len(labels) == 0:
        raise ValueError("labels: expected a class number for each row, got none")
    values = np.asarray(labels) if is_concrete(labels) else np.zeros(1)
    if not (values.min() >= 0 and values.max() < k):
        raise ValueError(
            f"labels: expected class numbers 0 to {k - 1}, got "
            f"numbers from {values.min()} to {values.max()}"
        )


def nan_for_wrong_labels(values: Float[Array, "*s"], labels: Array, k: int) -> Float[Array, "*s"]:
    """Return `values`, all NaN if JAX traces the labels and one is not a class number 0..k-1.

    JAX clips or drops an index out of range, so a wrong label would go unnoticed under `jit`.
    """
    if not is_traced(labels):
        return values
    return jnp.where(jnp.all((labels >= 0) & (labels < k)), values, jnp.nan)


def check_problem(
    prototypes: Array | None,
    C: ScalarLike | Array,
    X: Array,
    y: Array,
    weights: Array | None,
    intercept_penalty: ScalarLike = 0.0,
    *,
    kernel: Any = None,
) -> None:
    """Raise a `ValueError` for shapes or dtypes that do not fit, or values out of range.

    A kernel that is stated by its name is refused too, as only `train` knows the names. Traced
    values are not checked. Shapes: prototypes `m d` with `m <= n`, `C` any, `X` `n d`, `y` `n ..`,
    weights `n`.
    """
    check_runtime()
    if isinstance(kernel, str):
        raise ValueError(f"kernel: expected a kernel, such as kernels.RBF(1.0), got {kernel!r}")
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"X: expected shape (n, d) with at least one row, got {X.shape}")
    if X.dtype not in (jnp.float32, jnp.float64):
        raise ValueError(
            f"X: expected numbers of 32 or 64 bits, as solvers accept no others, got {X.dtype}"
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
    check_weights(weights)


def check_points(name: str, points: Array, d: int) -> None:
    """Raise a `ValueError` unless the argument `name` holds finite points, shape `m d`."""
    if points.ndim != 2 or points.shape[1] != d or len(points) == 0:
        raise ValueError(f"{name}: expected shape (m, {d}) with m at least 1, got {points.shape}")
    check_finite(name, points)


def check_weights(weights: Array | None) -> None:
    """Raise a `ValueError` for weights that are negative, not finite or all zero."""
    if weights is not None and is_concrete(weights):
        _check_not_negative(weights)
        if not np.any(np.asarray(weights) > 0):
            raise ValueError("weights: expected at least one above 0, got zeros only")


def _check_not_negative(weights: Array) -> None:
    """Raise a `ValueError` for a weight that is negative, infinite or NaN."""
    if is_concrete(weights):
        w = np.asarray(weights)
        if not np.all((w >= 0) & np.isfinite(w)):
            raise ValueError("weights: expected all at least 0, got a negative or infinite weight")


def check_penalties(C: ScalarLike | Array, intercept_penalty: ScalarLike) -> None:
    """Raise a `ValueError` unless `C` is positive and finite, and the penalty at least 0."""
    if is_concrete(C) and not (np.all(np.isfinite(np.asarray(C))) and np.all(np.asarray(C) > 0)):
        raise ValueError(f"C: expected a positive number, got {C}")
    if is_concrete(intercept_penalty) and not np.asarray(intercept_penalty) >= 0:
        raise ValueError(f"intercept_penalty: expected at least 0, got {intercept_penalty}")
