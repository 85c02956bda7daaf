"""Checks of arguments, and the errors of this package. None needs more than NumPy."""

import dataclasses
import inspect
import math
import os
import reprlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

# Returns the name of a row in a message, such as "row index 4", from its index in the array.
NameRow = Callable[[int], str]


def row_index(index: int) -> str:
    """Return the name of a row of an array, or of a table in memory: its index, as in NumPy."""
    return f"row index {index}"


class NumericalError(ArithmeticError):
    """A computation failed; the message says what to do."""


class TableError(ValueError):
    """A table is not what was expected; the message names the file, column or row."""


class UnseenCategoryWarning(UserWarning):
    """A table has categories that training did not see; the message names columns and values."""


def real(name: str, value: Any, least: float, *, above: bool = False, finite: bool = True) -> float:
    """Return `value` as a float; it must be at least `least`, or above `least` if `above` is True.

    Raises:
        ValueError: for other values, NaN and bools; also for infinity, unless `finite` is False.
            The message begins with `name`.
    """
    number = math.nan
    if isinstance(value, int | float | np.number) or hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.ndim == 0 and array.dtype.kind in "iuf":
            number = float(array)
    if not (number > least or (number == least and not above)) or (finite and math.isinf(number)):
        bounds = f"{'above' if above else 'of at least'} {least:g}"
        raise ValueError(f"{name}: expected a number {bounds}, got {value!r}")
    return number


def check_finite(name: str, array: np.ndarray) -> None:
    """Raise ValueError if an array has a NaN or infinity; the message has `name` and its index."""
    finite = np.isfinite(array)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"{name}: expected finite values, got {array[index]} at index {index}")


# Packages that call the methods of a `Model`, so that their frames lie between the frames of this
# package: equinox always, the others if annotations are checked.
_WRAPPERS = ("equinox", "jaxtyping", "beartype")


def warn_caller(message: str, category: type[Warning]) -> None:
    """Issue a warning that points at the user's line of code, which called this package.

    The package is jsparse, or the folder of a copy of `predictor`.
    """
    packages = ((__package__ or "").removesuffix(".predictor"), *_WRAPPERS)
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_back and _within(frame.f_globals.get("__name__", ""), packages):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _within(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def refuse_path(name: str, X: Any) -> None:
    """Raise a `ValueError` if the rows are the path of a file."""
    if isinstance(X, str | os.PathLike):
        raise ValueError(
            f"{name}: expected rows, such as an array or a table, got the path {os.fspath(X)!r}; "
            "read the file first, for example with pandas.read_csv"
        )


def _as_array(X: Any, name: str) -> np.ndarray:
    """Return rows as an array of any dtype and shape; refuse a path and ragged lists."""
    refuse_path(name, X)
    try:
        return np.asarray(X)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"{name}: expected a table of numbers ({error})") from error


def _not_numbers(table: np.ndarray) -> str:
    """Return what an array without numbers holds, and what to give instead, for a message."""
    if table.dtype != object:
        return f"dtype {table.dtype}"
    if table.ndim == 0:  # NumPy makes this of one object, such as None or a dict
        return f"{type(table.item()).__name__}; give an array, or a pandas or Arrow table"
    return (
        "Python objects (dtype object); give columns of text as a pandas or Arrow table, in "
        "training too, and one row as df.iloc[[0]]"
    )


def finite_rows(X: Any, name: str = "X", widest: Any = np.float64) -> np.ndarray:
    """Return rows of finite numbers, shape `n d`, as floats at most as precise as `widest`.

    Raises:
        ValueError: for other shapes and types, NaN, infinity, and numbers too large for the dtype.
    """
    table = _as_array(X, name)
    if table.dtype.kind not in "biuf":
        raise ValueError(f"{name}: expected numbers, got {_not_numbers(table)}")
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(
            f"{name}: expected shape (n, d) with at least one row and column, got {table.shape}"
        )
    check_finite(name, table)
    dtype = np.result_type(table.dtype, np.float32)
    dtype = dtype if dtype.itemsize <= np.dtype(widest).itemsize else np.dtype(widest)
    with np.errstate(over="ignore"):
        cast = table.astype(dtype)
    if not np.isfinite(cast).all():
        raise ValueError(f"{name}: expected values that fit {dtype}, got {np.abs(table).max()}")
    return cast


def rows_of(X: Any, d: int, widest: Any) -> tuple[np.ndarray, bool]:
    """Return finite rows, shape `n d`, at most as precise as `widest`; and whether `X` was one row.

    Raises:
        ValueError: for other shapes, types and numbers of columns, and for NaN and infinity.
    """
    array = _as_array(X, "X")
    single = array.ndim == 1
    rows = finite_rows(array[None] if single else array, widest=widest)
    if rows.shape[1] != d:
        raise ValueError(f"X: expected {d} columns, as in training, got {rows.shape[1]}")
    return rows, single


def check_scores(scores: np.ndarray, *, name_row: NameRow = row_index) -> None:
    """Raise NumericalError naming the first row with a score that is not finite.

    The scores have `n` rows and any further axes. The check covers the machine's values too: if a
    value is not finite, neither are its distances from the code.
    """
    finite = np.isfinite(scores)
    if not finite.all():
        row = int(np.argmin(finite.reshape(len(scores), -1).all(axis=1)))
        raise NumericalError(
            f"the model's value at {name_row(row)} is not finite, or too large; look for huge "
            "inputs"
        )


def short_repr(self: Any) -> str:
    """Return the class and its fields in one short line; for use as `__repr__`."""
    names = getattr(self, "_fields", None) or [field.name for field in dataclasses.fields(self)]
    parts = [f"{name}={_shown(getattr(self, name))}" for name in names]
    return f"{type(self).__name__}({', '.join(parts)})"


def _shown(value: Any) -> str:
    """Return the dtype and shape of an array, or else the shortened `repr` of a value."""
    if isinstance(value, np.ndarray) and value.size > 1:
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return reprlib.repr(value)
