"""A model as one header of C99: constant arrays, loops, and no dependency but `math.h`."""

import re
from typing import Any, Literal

import numpy as np

from ..predictor import Predictor
from .c_columns import columns_in_words, encoder
from .c_conformal import description, intervals_or_sets, n_intervals
from .c_machine import values
from .c_numbers import Numbers, c_function, comment, int_literal, string_literal

# The largest odds of a class that is not predicted, 1 less four units of rounding, as in
# `predictor.codes.probabilities`.
_BELOW_ONE = {"float": 1 - 4 * float(np.finfo("f4").eps), "double": 1 - 4 * np.finfo("f8").eps}


def c_header(
    model: Predictor,
    *,
    prefix: str = "model",
    dtype: Literal["float32", "float64"] | None = None,
    coverage: float | None = None,
) -> str:
    """Return the text of a header of C99 whose functions predict one row; see `Model.to_c`.

    All names begin with `prefix`. `dtype` is by default the model's. With a `coverage`, a function
    computes prediction intervals or sets. For invalid arguments, raise ValueError.
    """
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", prefix):
        raise ValueError(f"prefix: expected letters, digits and underscores, got {prefix!r}")
    if dtype not in (None, "float32", "float64"):
        raise ValueError(f"dtype: expected 'float32', 'float64' or None, got {dtype!r}")
    numbers = Numbers(np.dtype(dtype or model.dtype))
    parts = [
        comment(_description(model, prefix, numbers, coverage)),
        f"#ifndef {prefix.upper()}_H\n#define {prefix.upper()}_H\n\n#include <math.h>",
        _sizes(model, prefix, coverage),
        values(model.machine, prefix, numbers),
        *_scores(model, prefix, numbers),
        *_answers(model, prefix, numbers),
        *intervals_or_sets(model, coverage, prefix, numbers),
    ]
    if model.columns is not None:
        parts.append(encoder(model.columns, prefix, numbers))
    return "\n\n".join([*parts, f"#endif /* {prefix.upper()}_H */"]) + "\n"


def _description(
    model: Predictor, prefix: str, numbers: Numbers, coverage: float | None
) -> list[str]:
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
    if coverage is not None:
        lines += description(model, coverage, prefix, real)
    lines += [
        "",
        "Functions of type int return 0, or -1 if a row is invalid: if an input or a value of the",
        "model is NaN or infinite. Do not compile with -ffast-math, which removes this check.",
    ]
    if model.columns is not None:
        lines += ["", *columns_in_words(model.columns, prefix, real)]
    return lines


def _n_scores(model: Predictor) -> int:
    """Return the number of scores of a row: the classes of a code, else the machine's outputs."""
    if model.code is not None:
        return len(model.code)
    return model.machine.intercept.size


def _sizes(model: Predictor, prefix: str, coverage: float | None) -> str:
    """Return C macros with the numbers of inputs, scores, classes, intervals and columns."""
    sizes = {"INPUTS": model.machine.prototypes.shape[1], "SCORES": _n_scores(model)}
    if model.labels is not None:
        sizes["CLASSES"] = len(model.labels)
    elif coverage is not None:
        sizes["INTERVALS"] = n_intervals(model)
    if model.columns is not None:
        sizes["COLUMNS"] = len(model.columns.columns)
    return "\n".join(f"#define {prefix.upper()}_{name} {size}" for name, size in sizes.items())


def _scores(model: Predictor, prefix: str, numbers: Numbers) -> list[str]:
    """Return C source: a function that checks a row and computes its scores, helpers first."""
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
        head = f"void {prefix}_decode(const {real} *f, {real} *scores)"
        parts.append(c_function(head, _distances(model, prefix), numbers))
        lines += [
            f"{real} f[{problems}];",
            f"{prefix}_values(x, f);",
            f"{prefix}_decode(f, scores);",
        ]
    lines += [
        f"for (i = 0; i < {s}; i++) {{ if (!isfinite(scores[i])) {{ return -1; }} }}",
        "return 0;",
    ]
    head = f"int {prefix}_scores(const {real} *x, {real} *scores)"
    return [*parts, c_function(head, lines, numbers)]


def _int8_matrix(name: str, values: np.ndarray) -> str:
    """Return the C declaration of a constant matrix of small whole numbers."""
    rows = ",\n".join("{" + ",".join(str(int(v)) for v in row) + "}" for row in values)
    k, problems = values.shape
    return f"static const signed char {name}[{k}][{problems}] = {{{rows}}};"


def _distances(model: Predictor, prefix: str) -> list[str]:
    """Return C statements that set `scores` to minus the `codes.distances` of the values `f`."""
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
    """Return the C functions that predict a value, or a class and its probabilities."""
    real, s = numbers.type, _n_scores(model)
    scoring = [f"{real} scores[{s}];", f"if ({prefix}_scores(x, scores) != 0) {{ return %s; }}"]
    if model.labels is None:
        lines = [scoring[0], scoring[1] % f"({real})NAN", "return scores[0];"]
        return [c_function(f"{real} {prefix}_predict(const {real} *x)", lines, numbers)]
    best = ["return scores[0] >= 0.0;"]
    if s > 1:
        best = [
            f"for (j = 0, i = 1; i < {s}; i++) {{ if (scores[i] > scores[j]) {{ j = i; }} }}",
            "return j;",
        ]
    lines = [scoring[0], scoring[1] % "-1", f"return {prefix}_best(scores);"]
    parts = [
        _labels(model.labels, prefix),
        c_function(f"int {prefix}_best(const {real} *scores)", best, numbers),
        c_function(f"int {prefix}_class(const {real} *x)", lines, numbers),
    ]
    if model.inverse_temperatures is not None:
        parts += _probabilities(model, prefix, numbers, lines[:2])
    return parts


def _labels(labels: tuple[Any, ...], prefix: str) -> str:
    """Return the labels as a C array of texts, whole numbers or decimal numbers."""
    k = len(labels)
    if isinstance(labels[0], float):
        kind, values = "double", [repr(label) for label in labels]
    elif isinstance(labels[0], int) and max(labels) >= 2**63:
        kind, values = "unsigned long long", [f"{label}ULL" for label in labels]
    elif isinstance(labels[0], int):
        kind, values = "long long", [int_literal(int(label)) for label in labels]
    else:
        kind, values = "char *const", [string_literal(str(label)) for label in labels]
    return f"static const {kind} {prefix}_labels[{k}] = {{{', '.join(values)}}};"


def _probabilities(model: Predictor, prefix: str, numbers: Numbers, scores: list[str]) -> list[str]:
    """Return the C array of inverse temperatures, and the C function of the probabilities.

    `scores` are the C statements that compute a row's scores.
    """
    temperatures, real, k = model.inverse_temperatures, numbers.type, len(model.labels or ())
    assert temperatures is not None
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
    return [numbers.array(f"{prefix}_slopes", temperatures), c_function(head, lines, numbers)]
