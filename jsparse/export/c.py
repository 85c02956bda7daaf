"""A model as one header of C99: constant arrays, loops, and no dependency but `math.h`."""

import re
from typing import Any, Literal

import numpy as np

from ..predictor import Predictor
from ..predictor.machine import Machine, NormalScores, Standardization
from ..predictor.schema import Column, Schema
from .c_kernel import KernelWriter
from .c_numbers import Numbers, comment, text

# The largest odds of a class that is not predicted, 1 less four units of rounding, as in
# `predictor.codes.probabilities`.
_BELOW_ONE = {"float": 1 - 4 * float(np.finfo("f4").eps), "double": 1 - 4 * np.finfo("f8").eps}


def c_header(
    model: Predictor, *, prefix: str = "model", dtype: Literal["float32", "float64"] | None = None
) -> str:
    """Return the text of a header of C99 that predicts one row.

    The text depends on the model and the arguments alone, byte for byte. `Model.to_c` describes the
    functions.

    Args:
        model: the model.
        prefix: begins every name.
        dtype: "float32" for `float`, "float64" for `double`; by default the model's dtype.

    Raises:
        ValueError: for a prefix that is no name in C, another dtype, or numbers that the dtype does
            not hold.
    """
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", prefix):
        raise ValueError(f"prefix: expected letters, digits and underscores, got {prefix!r}")
    if dtype not in (None, "float32", "float64"):
        raise ValueError(f"dtype: expected 'float32', 'float64' or None, got {dtype!r}")
    numbers = Numbers(np.dtype(dtype or model.dtype))
    parts = [
        comment(_description(model, prefix, numbers)),
        f"#ifndef {prefix.upper()}_H\n#define {prefix.upper()}_H\n\n#include <math.h>",
        _sizes(model, prefix),
        _values(model.machine, prefix, numbers),
        *_scores(model, prefix, numbers),
        *_answers(model, prefix, numbers),
    ]
    if model.columns is not None:
        parts.append(_encoder(model.columns, prefix, numbers))
    return "\n\n".join([*parts, f"#endif /* {prefix.upper()}_H */"]) + "\n"


def _description(model: Predictor, prefix: str, numbers: Numbers) -> list[str]:
    """Return the lines of the header's first comment, which lists its functions."""
    machine, real = model.machine, numbers.type
    m, d = machine.prototypes.shape
    lines = [
        f"A kernel machine of {m} prototypes and {d} inputs, written by jsparse. C99, no memory is",
        "allocated, and all functions may be called by several threads.",
        "",
        f"int {prefix}_scores(const {real} *x, {real} *scores)",
    ]
    if model.labels is None:
        lines += [
            f"    The value of each of {_n_scores(model)} targets, for inputs x in raw units.",
            f"{real} {prefix}_predict(const {real} *x)",
            "    The value of the first target; NaN for an invalid row.",
        ]
    else:
        two = "positive for the second class" if _n_scores(model) == 1 else "one for each class"
        lines += [
            f"    Decision values, {two}, for inputs x in raw units.",
            f"int {prefix}_class(const {real} *x)",
            f"    The number of the class, from 0: its label is {prefix}_labels[number]; -1 for an",
            "    invalid row.",
        ]
    if model.inverse_temperatures is not None:
        lines += [
            f"int {prefix}_probabilities(const {real} *x, {real} *p)",
            f"    The probabilities of the {len(model.labels or ())} classes.",
        ]
    lines += [
        "",
        "Functions of type int return 0, or -1 if a row is invalid: if an input or a value of the",
        "model is NaN or infinite. Do not compile with -ffast-math, which removes this check.",
    ]
    if model.columns is not None:
        lines += ["", *_columns_in_words(model.columns, prefix, real)]
    return lines


def _columns_in_words(schema: Schema, prefix: str, real: str) -> list[str]:
    """Return lines of the first comment that say what the encoder takes for each column."""
    lines = [
        f"void {prefix}_encode(const double *columns, {real} *x)",
        "    The inputs x of a row of the table. A category is given by its number, an unseen one",
        "    by -1. A time is given in microseconds since 1970. A missing number is NAN.",
    ]
    for i, column in enumerate(schema.columns):
        what = "number" if column.origin is None else "time"
        if column.categories is not None:
            values = ("(missing)" if c is None else repr(c) for c in column.categories)
            what = ", ".join(f"{number} for {value}" for number, value in enumerate(values))
        lines.append(f"    columns[{i}] {column.name}: {what}")
    return lines


def _n_scores(model: Predictor) -> int:
    """Return the number of scores of a row: classes with a code, else outputs of the machine."""
    if model.code is not None:
        return len(model.code)
    return model.machine.intercept.size


def _sizes(model: Predictor, prefix: str) -> str:
    """Return the definitions of the numbers of inputs, scores, classes and columns."""
    sizes = {"INPUTS": model.machine.prototypes.shape[1], "SCORES": _n_scores(model)}
    if model.labels is not None:
        sizes["CLASSES"] = len(model.labels)
    if model.columns is not None:
        sizes["COLUMNS"] = len(model.columns.columns)
    return "\n".join(f"#define {prefix.upper()}_{name} {size}" for name, size in sizes.items())


def _function(head: str, lines: list[str], numbers: Numbers) -> str:
    """Return a function of C, with declarations of the scratch variables that its lines use.

    Args:
        head: return type, name and parameters.
        lines: statements; decimal literals get the precision of `numbers`.
        numbers: writes numbers in the precision of the model.
    """
    body = "\n".join(numbers.literals(line) for line in lines)
    kinds = {"int": ["i", "j", "q"], numbers.type: ["t", "e", "r"]}
    declared = []
    for kind, names in kinds.items():
        used = [name for name in names if re.search(rf"\b{name}\b", body)]
        if used:
            declared.append(f"  {kind} {', '.join(used)};")
    indented = "\n".join(f"  {line}" if line else "" for line in body.split("\n"))
    return "\n".join([f"static inline {head} {{", *declared, indented, "}"])


def _values(machine: Machine, prefix: str, numbers: Numbers) -> str:
    """Return a machine's arrays, and the function that writes its values at `x` to `f`."""
    m = len(machine.prototypes)
    kernel = KernelWriter(numbers, prefix)
    at_prototype, value = kernel.value(machine.kernel, machine.prototypes)
    coefficients = machine.coefficients.reshape(m, -1)
    c = coefficients.shape[1]
    arrays, helpers, scaled = _scaling(machine, prefix, numbers)
    arrays += [
        *kernel.arrays,
        numbers.array(f"{prefix}_coefficients", coefficients),
        numbers.array(f"{prefix}_intercept", machine.intercept.reshape(-1)),
    ]
    body = [
        *scaled,
        *kernel.maps,
        f"for (i = 0; i < {c}; i++) {{ f[i] = {prefix}_intercept[i]; }}",
        f"for (i = 0; i < {m}; i++) {{",
        *[f"  {line}" for line in at_prototype],
        f"  for (j = 0; j < {c}; j++) {{ f[j] += {prefix}_coefficients[i][j] * {value}; }}",
        "}",
    ]
    head = f"void {prefix}_values(const {numbers.type} *x, {numbers.type} *f)"
    return "\n\n".join([*arrays, *helpers, _function(head, body, numbers)])


def _scaling(
    machine: Machine, prefix: str, numbers: Numbers
) -> tuple[list[str], list[str], list[str]]:
    """Return arrays, functions and statements that turn raw inputs `x` into scaled inputs `u0`."""
    d, scaling, real = machine.prototypes.shape[1], machine.scaling, numbers.type
    if scaling is None:
        return [], [], [f"const {real} *const u0 = x;"]
    names = ("shift", "scale") if isinstance(scaling, Standardization) else ("knots", "scores")
    arrays = [getattr(scaling, name).T for name in names]
    if isinstance(scaling, NormalScores):
        k = len(scaling.knots)
        helper = [_interpolation(prefix, numbers)]
        value = f"{prefix}_between(x[j], {prefix}_knots[j], {prefix}_scores_at[j], {k})"
        names = ("knots", "scores_at")
    else:
        helper, value = [], f"(x[j] - {prefix}_shift[j]) / {prefix}_scale[j]"
    declared = [numbers.array(f"{prefix}_{n}", a) for n, a in zip(names, arrays, strict=True)]
    return declared, helper, [
        f"{real} u0[{d}];",
        f"for (j = 0; j < {d}; j++) {{ u0[j] = {value}; }}",
    ]  # fmt: skip


def _interpolation(prefix: str, numbers: Numbers) -> str:
    """Return the function that interpolates linearly, constant beyond the outer of `n` knots."""
    real = numbers.type
    head = f"{real} {prefix}_between({real} a, const {real} *x, const {real} *y, int n)"
    body = [
        "int low = 0, high = n - 1;",
        "if (a <= x[0]) { return y[0]; }",
        "if (a >= x[n - 1]) { return y[n - 1]; }",
        "while (high - low > 1) {",
        "  const int middle = (low + high) / 2;",
        "  if (x[middle] <= a) { low = middle; } else { high = middle; }",
        "}",
        "return y[low] + (y[high] - y[low]) * ((a - x[low]) / (x[high] - x[low]));",
    ]
    return _function(head, body, numbers)


def _scores(model: Predictor, prefix: str, numbers: Numbers) -> list[str]:
    """Return the function that checks a row and computes its scores."""
    d, real, s = model.machine.prototypes.shape[1], numbers.type, _n_scores(model)
    lines = [f"for (j = 0; j < {d}; j++) {{ if (!isfinite(x[j])) {{ return -1; }} }}"]
    parts = []
    if model.code is None:
        lines.append(f"{prefix}_values(x, scores);")
        if len(model.quantiles) > 1:  # sorted, by insertion
            lines += [
                f"for (i = 1; i < {s}; i++) {{",
                "  for (t = scores[i], j = i; j > 0 && scores[j - 1] > t; j--) {",
                "    scores[j] = scores[j - 1];",
                "  }",
                "  scores[j] = t;",
                "}",
            ]
    else:
        problems = model.code.shape[1]
        parts.append(_int8_matrix(f"{prefix}_code", model.code))
        lines += [f"{real} f[{problems}];", f"{prefix}_values(x, f);", *_distances(model, prefix)]
    lines += [
        f"for (i = 0; i < {s}; i++) {{ if (!isfinite(scores[i])) {{ return -1; }} }}",
        "return 0;",
    ]
    head = f"int {prefix}_scores(const {real} *x, {real} *scores)"
    return [*parts, _function(head, lines, numbers)]


def _int8_matrix(name: str, values: np.ndarray) -> str:
    """Return the declaration of a constant matrix of small whole numbers."""
    rows = ",\n".join("{" + ",".join(str(int(v)) for v in row) + "}" for row in values)
    k, problems = values.shape
    return f"static const signed char {name}[{k}][{problems}] = {{{rows}}};"


def _distances(model: Predictor, prefix: str) -> list[str]:
    """Return statements that set `scores` to the negative distances, see `codes.distances`."""
    assert model.code is not None
    k, problems = model.code.shape
    code = f"{prefix}_code[i][j]"
    term = f"f[j] * ({code} * {code} * f[j] - 2 * {code})"
    lines = [
        f"for (i = 0; i < {k}; i++) {{",
        f"  for (t = 0.0, j = 0; j < {problems}; j++) {{ t += {term}; }}",
        f"  scores[i] = -(1.0 + t / {problems}.0);",
        "}",
    ]  # fmt: skip
    if model.decoding != "hamming":
        return lines
    return [
        *lines,
        f"for (t = scores[0], i = 1; i < {k}; i++) {{ if (scores[i] < t) {{ t = scores[i]; }} }}",
        f"for (i = 0; i < {k}; i++) {{",
        f"  for (e = 0.0, j = 0; j < {problems}; j++) {{ e += f[j] >= 0.0 ? {code} : -{code}; }}",
        f"  scores[i] = -(({problems}.0 - e) / 2.0 - 0.25 * scores[i] / (1.0 - t));",
        "}",
    ]


def _answers(model: Predictor, prefix: str, numbers: Numbers) -> list[str]:
    """Return the functions that predict a value, or a class and its probabilities."""
    real, s = numbers.type, _n_scores(model)
    checked = [f"{real} scores[{s}];", f"if ({prefix}_scores(x, scores) != 0) {{ return %s; }}"]
    if model.labels is None:
        lines = [checked[0], checked[1] % f"({real})NAN", "return scores[0];"]
        return [_function(f"{real} {prefix}_predict(const {real} *x)", lines, numbers)]
    best = ["return scores[0] >= 0.0;"]
    if s > 1:
        best = [
            f"for (j = 0, i = 1; i < {s}; i++) {{ if (scores[i] > scores[j]) {{ j = i; }} }}",
            "return j;",
        ]
    lines = [checked[0], checked[1] % "-1", f"return {prefix}_best(scores);"]
    parts = [
        _labels(model.labels, prefix),
        _function(f"int {prefix}_best(const {real} *scores)", best, numbers),
        _function(f"int {prefix}_class(const {real} *x)", lines, numbers),
    ]
    if model.inverse_temperatures is not None:
        parts += _probabilities(model, prefix, numbers, lines[:2])
    return parts


def _labels(labels: tuple[Any, ...], prefix: str) -> str:
    """Return the labels as an array of texts, whole numbers or decimal numbers."""
    k = len(labels)
    if isinstance(labels[0], float):
        kind, values = "double", [repr(label) for label in labels]
    elif isinstance(labels[0], int) and max(labels) >= 2**63:
        kind, values = "unsigned long long", [f"{label}ULL" for label in labels]
    elif isinstance(labels[0], int):
        kind, values = "long long", [_whole(int(label)) for label in labels]
    else:
        kind, values = "char *const", [text(str(label)) for label in labels]
    return f"static const {kind} {prefix}_labels[{k}] = {{{', '.join(values)}}};"


def _whole(number: int) -> str:
    """Return a whole number of 64 bits as a literal of C, or an expression for the smallest."""
    # C reads -2^63 as the negative of 2^63, which has no signed type.
    return f"{number}LL" if number > -(2**63) else f"({number + 1}LL - 1)"


def _probabilities(model: Predictor, prefix: str, numbers: Numbers, scores: list[str]) -> list[str]:
    """Return the slopes of the classes, and the function of the probabilities."""
    slopes, real, k = model.inverse_temperatures, numbers.type, len(model.labels or ())
    assert slopes is not None
    score = "scores[i]" if _n_scores(model) > 1 else "(i == 0 ? 0.0 : scores[0])"
    best = "scores[best]" if _n_scores(model) > 1 else "(best == 0 ? 0.0 : scores[0])"
    lines = [
        *scores,
        f"const int best = {prefix}_best(scores);",
        "t = 0.0;",
        f"for (i = 0; i < {k}; i++) {{",
        f"  e = {numbers.functions['exp']}({prefix}_slopes[best] * ({score} - {best}));",
        f"  p[i] = i == best ? 1.0 : e < {_BELOW_ONE[real]} ? e : {_BELOW_ONE[real]};",
        "  t += p[i];",
        "}",
        f"for (i = 0; i < {k}; i++) {{ p[i] /= t; }}",
        "return 0;",
    ]
    head = f"int {prefix}_probabilities(const {real} *x, {real} *p)"
    return [numbers.array(f"{prefix}_slopes", slopes), _function(head, lines, numbers)]


def _encoder(schema: Schema, prefix: str, numbers: Numbers) -> str:
    """Return the function that encodes the columns of a table as inputs."""
    lines, offset = [], 0
    for i, column in enumerate(schema.columns):
        lines += _encoded(column, i, offset, numbers, impute=schema.impute)
        offset += len(column.features)
    head = f"void {prefix}_encode(const double *columns, {numbers.type} *x)"
    return _function(head, lines, numbers)


def _encoded(column: Column, i: int, offset: int, numbers: Numbers, *, impute: bool) -> list[str]:
    """Return statements that encode column `i` of a table as inputs from number `offset` on."""
    value, width = f"columns[{i}]", len(column.features)
    if column.categories is None:
        if column.origin is not None:
            value = f"({value} - ({_whole(column.origin)}))"
        if impute and column.fill is not None:
            value = f"(isnan(columns[{i}]) ? {column.fill!r} : {value})"
        return [f"x[{offset}] = ({numbers.type}){value};"]
    if column.coded:
        return [f"x[{offset}] = ({numbers.type}){value};"]
    return [f"for (j = 0; j < {width}; j++) {{ x[{offset} + j] = {value} == j; }}"]
