"""Numbers, arrays, texts and functions as C writes them."""

import dataclasses
import re
from collections.abc import Iterable, Sequence

import numpy as np

WIDTH = 100  # number of characters of a line
_LITERAL = re.compile(r"(?<![\w.])(\d+\.\d+)(?![\w.])")


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Writes numbers in the precision of a model, with the fewest digits that identify a number.

    Attributes:
        dtype: float32 or float64.
    """

    dtype: np.dtype

    @property
    def type(self) -> str:
        """The name of the type in C."""
        return "float" if self.dtype == np.float32 else "double"

    @property
    def functions(self) -> dict[str, str]:
        """Names of the functions of `math.h` in this precision."""
        suffix = "f" if self.dtype == np.float32 else ""
        return {name: name + suffix for name in ("exp", "sqrt", "log1p")}

    def literal(self, value: float | np.floating | np.ndarray) -> str:
        """Return a number as a literal of C.

        Raises:
            ValueError: if it is too large for the precision.
        """
        with np.errstate(over="ignore"):
            number = self.dtype.type(value)
        if not np.isfinite(number):
            raise ValueError(f"dtype: {self.dtype} does not hold {float(value):g}")
        return f"{number}f" if self.dtype == np.float32 else str(number)

    def in_precision(self, line: str) -> str:
        """Return a statement whose decimal literals have the precision of the model."""
        suffix = "f" if self.dtype == np.float32 else ""
        return _LITERAL.sub(rf"\1{suffix}", line)

    def array(self, name: str, values: np.ndarray) -> str:
        """Return the declaration of a constant array."""
        sizes = "".join(f"[{n}]" for n in values.shape)
        return f"static const {self.type} {name}{sizes} = {self._braces(np.asarray(values))};"

    def _braces(self, values: np.ndarray) -> str:
        """Return the initialiser of an array: nested braces with numbers."""
        if values.ndim == 1:
            return f"{{\n{comma_separated(map(self.literal, values))}}}"
        return "{" + ",\n".join(self._braces(row) for row in values) + "}"


def int_array(name: str, values: Sequence[int]) -> str:
    """Return the declaration of a constant array of whole numbers."""
    return f"static const int {name}[{len(values)}] = {{\n{comma_separated(map(str, values))}}};"


def comma_separated(words: Iterable[str]) -> str:
    """Return words with commas between them, in lines of at most `WIDTH` characters."""
    lines, line = [], ""
    for word in words:
        if line and len(line) + len(word) + 1 > WIDTH:
            lines.append(line)
            line = ""
        line += f"{word},"
    return "\n".join([*lines, line]).removesuffix(",")


def string_literal(value: str) -> str:
    """Return a text as a string literal of C; unsafe bytes are written as octal escapes."""
    safe = {ord(c) for c in " !#$%&'()*+,-./:;<=>@[]^_`{|}~"}  # no ?, for trigraphs
    characters = (
        chr(b) if (chr(b).isalnum() and b < 128) or b in safe else f"\\{b:03o}"
        for b in value.encode()
    )
    return '"' + "".join(characters) + '"'


def comment(lines: Iterable[str]) -> str:
    """Return lines as a comment of C; marks in the lines that would end it are broken up."""
    safe = (line.replace("*/", "* /").replace("/*", "/ *").replace("??/", "?? /") for line in lines)
    printable = (line.encode("unicode_escape").decode() for line in safe)
    return "\n".join(["/*", *(f" * {line}".rstrip().rstrip("\\") for line in printable), " */"])


def int_literal(number: int) -> str:
    """Return a whole number of 64 bits as a literal of C, or an expression for the smallest."""
    # C reads -2^63 as the negative of 2^63, which has no signed type.
    return f"{number}LL" if number > -(2**63) else f"({number + 1}LL - 1)"


def c_function(head: str, lines: list[str], numbers: Numbers) -> str:
    """Return a function of C, with declarations of the scratch variables that its lines use.

    `head` is the return type, the name and the parameters. Decimal literals in the statements
    `lines` get the precision of `numbers`.
    """
    body = "\n".join(numbers.in_precision(line) for line in lines)
    kinds = {"int": ["i", "j", "q"], numbers.type: ["t", "e", "r"]}
    declared = []
    for kind, names in kinds.items():
        used = [name for name in names if re.search(rf"\b{name}\b", body)]
        if used:
            declared.append(f"  {kind} {', '.join(used)};")
    indented = "\n".join(f"  {line}" if line else "" for line in body.split("\n"))
    return "\n".join([f"static inline {head} {{", *declared, indented, "}"])
