"""Short texts of objects that hold arrays: at most 12 lines for any number of rows."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np

T = TypeVar("T")

LINE = 100  # number of characters of a line; 12 lines are below 1,500 characters
MOST_LINES = 12
MOST_FIELDS = 10  # the two parentheses take the other lines
MOST_ITEMS = 6  # number of items of a list, tuple or dict that are shown


def short_repr(self: Any) -> str:
    """Return the class and fields of an object, arrays as dtype and shape; for use as `__repr__`.

    Fields of dataclasses that have their default value are left out.
    """
    fields = [f"{name}={brief(value)}" for name, value in _fields(self)]
    name = type(self).__name__
    line = f"{name}({', '.join(fields)})"
    if len(line) <= LINE:
        return line
    if len(fields) > MOST_FIELDS:
        hidden = len(fields) - MOST_FIELDS + 1
        fields = [*fields[: MOST_FIELDS - 1], f"... {hidden} more fields"]
    lines = [f"  {clipped(field, LINE - 3)}," for field in fields]
    return "\n".join([f"{name}(", *lines, ")"])


class ShortList(list[T]):
    """A list whose repr shows the first items, a line each, and the number of the others."""

    def __repr__(self) -> str:
        lines = [f"  {clipped(brief(item), LINE - 3)}," for item in self[:MOST_ITEMS]]
        if len(self) > MOST_ITEMS:
            lines.append(f"  ... {len(self) - MOST_ITEMS} more")
        return "\n".join(["[", *lines, "]"]) if lines else "[]"


def brief(value: Any) -> str:
    """Return one line for a value: arrays as dtype and shape, long sequences as their length."""
    if _is_array(value):
        return _array(value)
    if isinstance(value, Mapping):
        pairs = [f"{brief(k)}: {brief(v)}" for k, v in _first(value.items())]
        return _written_out(value, pairs, "{}")
    if _fields(value):
        inside = ", ".join(f"{name}={brief(part)}" for name, part in _fields(value))
        return f"{type(value).__name__}({inside})"
    if isinstance(value, list | tuple):
        ends = "()" if isinstance(value, tuple) else "[]"
        return _written_out(value, [brief(item) for item in _first(value)], ends)
    if hasattr(value, "shape") and not isinstance(value, type | np.dtype):  # a table
        return f"{type(value).__name__}[{','.join(map(str, value.shape))}]"
    return clipped(repr(value).partition("\n")[0], LINE)


def few_lines(lines: list[str]) -> str:
    """Return at most 12 of the lines, each cut to `LINE` characters, as one text."""
    shown = [clipped(line, LINE) for line in lines[:MOST_LINES]]
    if len(lines) > MOST_LINES:
        shown[-1] = f"  ... {len(lines) - MOST_LINES + 1} more lines"
    return "\n".join(shown)


def clipped(text: str, width: int) -> str:
    """Return the text, cut to `width` characters with an ellipsis at the end if it is longer."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _fields(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(name, getattr(value, name)) for name in cast(Any, value)._fields]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return []
    pairs = [(f, getattr(value, f.name, None)) for f in dataclasses.fields(value) if f.repr]
    return [(f.name, part) for f, part in pairs if not _is_default(f, part)]


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    # Texts are compared, because comparing arrays returns an array.
    return type(value) is type(field.default) and brief(value) == brief(field.default)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type)


def _array(value: Any) -> str:
    """Return the numbers of a short concrete array, or the dtype and shape of another array."""
    from ._numerics import is_concrete  # imports JAX, which records of tables do not need

    # An array that JAX traces has no values to write.
    few = math.prod(value.shape) <= MOST_ITEMS and len(value.shape) <= 1
    if few and is_concrete(value) and getattr(value.dtype, "kind", "") in list("biuf"):
        numbers = [f"{number:.6g}" for number in np.asarray(value).reshape(-1).tolist()]
        return f"[{', '.join(numbers)}]" if value.shape else numbers[0]
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def _first(values: Any) -> list[Any]:
    values = list(values)
    return values if len(values) <= MOST_ITEMS else []


def _written_out(values: Any, shown: list[str], ends: str) -> str:
    text = ", ".join(shown)
    if len(values) <= MOST_ITEMS and len(text) <= LINE:
        return f"{ends[0]}{text}{ends[1]}"
    kinds = {type(value).__name__ for value in values}
    items = kinds.pop() if len(kinds) == 1 else "items"
    return f"<{type(values).__name__} of {len(values)} {items}>"
