"""Checks and conversions of users' arguments, from any array library."""

import dataclasses
import itertools
import math
import operator
import reprlib
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float

from ._numerics import as_array, as_float, is_concrete, is_spread_over_processes
from ._types import Key, KeyLike
from .predictor import checks
from .predictor.checks import real as real


def whole_number(name: str, value: Any, least: int, most: int | None = None, what: str = "") -> int:
    """Return `value` as an int; raise ValueError unless it is a whole number within the bounds.

    A bool is no whole number. The message names the argument `name`, and describes the bound `most`
    by `what`.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"between {least} and {what} ({most})"
        raise ValueError(f"{name}: expected a whole number {bounds}, got {value!r}")
    return number


def increasing(name: str, values: Any, most: int, what: str) -> tuple[int, ...]:
    """Return increasing whole numbers from 1 to `most`; raise ValueError for other values.

    `name` and `what` are as for `whole_number`.
    """
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
        raise ValueError(f"{name}: expected several numbers, got {values!r}")
    numbers = [whole_number(name, value, 1, most, what) for value in values]
    if not numbers or any(a >= b for a, b in itertools.pairwise(numbers)):
        raise ValueError(f"{name}: expected increasing numbers, at least one, got {numbers}")
    return tuple(numbers)


def boolean(name: str, value: Any) -> bool:
    """Return a bool of Python or NumPy as a bool of Python; raise ValueError for other values."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def column_names(name: str, names: Any) -> tuple[str, ...]:
    """Return names of columns as texts; `name` is the name of the argument.

    Raise ValueError for a single text, whose letters would count as names, or if `names` cannot be
    iterated over.
    """
    if isinstance(names, str | bytes):
        raise ValueError(
            f"{name}: expected a sequence of names, such as [{names!r}], got the text {names!r}"
        )
    try:
        return tuple(map(str, names))
    except TypeError as error:
        raise ValueError(f"{name}: expected a sequence of names, got {names!r}") from error


def check_flags(settings: Any) -> None:
    """Raise ValueError unless every field of a dataclass with a bool as default holds a bool."""
    for field in dataclasses.fields(settings):
        if isinstance(field.default, bool):
            boolean(field.name, getattr(settings, field.name))


def as_key(key: KeyLike) -> Key:
    """Return a key of `jax.random`, given a key or an integer seed; else raise ValueError."""
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        # JAX accepts a Python integer, but compiles another program for it.
        key = jax.random.key(as_array(np.int64(key) if isinstance(key, int) else key))
    checked: Any = key
    dtype, ndim = getattr(checked, "dtype", None), getattr(checked, "ndim", None)
    if isinstance(key, jax.Array) and ndim == 0 and jnp.issubdtype(key.dtype, jnp.integer):
        return jax.random.key(key)  # a seed, perhaps traced
    new_style = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and ndim == 0
    if not (new_style or (dtype == np.uint32 and ndim == 1)):
        raise ValueError(
            f"key: expected an integer or one key, such as jax.random.key(0), got {checked!r}"
        )
    return checked


def numbers(name: str, values: Any) -> np.ndarray:
    """Return real numbers or booleans of any shape as float64; raise ValueError for others."""
    check_held(name, values)
    try:
        array = np.asarray(values)
        if array.dtype.kind in "biuf":
            return array.astype(float)
    except ValueError:  # lists of different lengths
        pass
    raise ValueError(f"{name}: expected real numbers, got {reprlib.repr(values)}")


def labels_of(name: str, values: Any) -> np.ndarray:
    """Return labels as a sortable array: all numbers, all texts, or all of another type.

    Raise ValueError if labels are missing, or if types are mixed, because NumPy would turn them
    into texts or could not sort them.
    """
    check_held(name, values)
    try:
        labels = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name}: expected one label for each row ({error})") from error
    is_list = isinstance(values, list | tuple) and labels.ndim == 1
    if is_list or labels.dtype.kind == "O":
        label_list = values if is_list else labels.reshape(-1).tolist()
        _check_one_type(name, label_list)
    missing = {"f": lambda: ~np.isfinite(labels), "M": lambda: np.isnat(labels)}
    if labels.dtype.kind in missing and missing[labels.dtype.kind]().any():
        raise ValueError(f"{name}: expected class labels, got NaN or infinity among them")
    if labels.dtype.kind in "cV":
        hint = "; Complex data not supported" if labels.dtype.kind == "c" else ""  # scikit-learn's
        raise ValueError(
            f"{name}: expected labels that can be sorted, got dtype {labels.dtype}{hint}"
        )
    # A model file holds no objects, so texts stored as objects, as in pandas, are converted.
    return labels.astype(str) if labels.size and isinstance(labels.flat[0], str) else labels


def _check_one_type(name: str, labels: Collection[Any]) -> None:
    """Raise ValueError if labels are missing, have several types, or cannot be sorted."""
    kinds: dict[type, str] = {}
    for label in labels:
        if type(label) not in kinds:
            number = isinstance(label, int | float | np.bool_ | np.integer | np.floating)
            text = isinstance(label, str)
            kinds[type(label)] = "number" if number else "text" if text else type(label).__name__
        if label is None or (isinstance(label, float | np.floating) and not math.isfinite(label)):
            raise ValueError(f"{name}: expected class labels, got {label!r} among them")
    if len(set(kinds.values())) > 1:
        type_names = sorted(kind.__name__ for kind in kinds)
        raise ValueError(f"{name}: expected labels of one type, got {' and '.join(type_names)}")
    if not set(kinds.values()) <= {"number", "text"}:
        try:
            sorted(set(labels))
        except TypeError as error:
            raise ValueError(f"{name}: expected labels that can be sorted ({error})") from error


def finite_targets(y: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return targets in NumPy; raise ValueError unless they are finite numbers of this shape."""
    targets = on_host("y", y)
    if targets.shape != shape or targets.dtype.kind not in "biuf":
        raise ValueError(
            f"y: expected numbers of shape {shape}, got {targets.dtype} of shape {targets.shape}"
        )
    check_finite("y", targets)
    return targets


def numbers_of_labels(y: Any, labels: Sequence[Any], n: int) -> np.ndarray:
    """Return the index in `labels` of each of `n` entries of `y`; else raise ValueError."""
    truth = on_host("y", y)
    number_of = {label: number for number, label in enumerate(labels)}
    unknown = set(truth.reshape(-1).tolist()) - set(number_of)
    if truth.shape != (n,) or unknown:
        raise ValueError(
            f"y: expected {n} labels among {list(number_of)}, got shape {truth.shape}"
            + (f" with {sorted(unknown, key=str)[:5]}" if unknown else "")
        )
    return np.array([number_of[label] for label in truth.tolist()], int)


def check_held(name: str, values: Any) -> None:
    """Raise ValueError for a JAX array that is traced, or spread over several processes."""
    if isinstance(values, Tracer):
        raise ValueError(
            f"{name}: expected values, got an array that JAX traces; call this function outside "
            "jit, vmap and grad (the pure functions, such as machines.fixed_size.fit, work inside)"
        )
    if is_spread_over_processes(values):
        raise ValueError(
            f"{name}: expected values that this process holds whole, got an array of shape "
            f"{values.shape} spread over the devices of several processes; give every process "
            "all of the values, such as by "
            "jax.experimental.multihost_utils.process_allgather(array, tiled=True)"
        )


def on_host(name: str, values: Any) -> np.ndarray:
    """Return the values as a NumPy array; raise ValueError if traced or spread over processes."""
    check_held(name, values)
    return np.asarray(values)


def check_finite(name: str, a: Array | np.ndarray) -> None:
    """Raise ValueError that names the first NaN or infinity; do nothing while JAX traces."""
    # Inside a caller's jit, jax.numpy would trace even concrete values.
    if is_concrete(a):
        checks.check_finite(name, np.asarray(a))


def finite_table(X: ArrayLike, name: str = "X") -> Float[Array, "n d"]:
    """Check that `X` is a table of finite numbers; return it as a JAX array of floats."""
    return as_float(finite_rows(X, name))


def finite_rows(X: ArrayLike, name: str = "X") -> Float[np.ndarray, "n d"]:
    """Check that `X` is a table of finite numbers; return it as a NumPy array of floats."""
    check_held(name, X)
    return checks.finite_rows(X, name, jax.dtypes.canonicalize_dtype(np.float64))
