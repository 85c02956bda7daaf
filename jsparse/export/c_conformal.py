"""Prediction intervals and sets as functions of C, equal to `predictor.conformal`."""

import dataclasses

import numpy as np

from ..predictor import Predictor
from ..predictor.answers import known_errors
from ..predictor.conformal import ConformalScores, error_at, rank_of
from .c_machine import values
from .c_numbers import Numbers, c_function, int_array


def intervals_or_sets(
    model: Predictor, coverage: float | None, prefix: str, numbers: Numbers
) -> list[str]:
    """Return the C arrays and functions that compute prediction intervals or sets.

    If `coverage` is None, return an empty list.

    Raises:
        ValueError: as `Predictor.interval` and `Predictor.predict_set`.
    """
    if coverage is None:
        return []
    conformal = known_errors(model.conformal, "coverage")
    writer = _Writer(model, conformal, coverage, prefix, numbers)
    if conformal.machines is None:
        return writer.interval() if model.labels is None else writer.set_of_classes()
    return writer.fold_interval() if model.labels is None else writer.fold_set()


def description(model: Predictor, coverage: float, prefix: str, real: str) -> list[str]:
    """Return the lines of the header's first comment that describe the C function."""
    if model.labels is not None:
        return [
            f"int {prefix}_set(const {real} *x, int *in_set)",
            f"    1 for each of {len(model.labels)} classes that is in the prediction set of "
            f"coverage {coverage:g}, else 0.",
        ]
    return [
        f"int {prefix}_interval(const {real} *x, {real} *lower, {real} *upper)",
        f"    The ends of the interval of coverage {coverage:g} for each of "
        f"{n_intervals(model)} targets.",
    ]


def n_intervals(model: Predictor) -> int:
    """Return the number of intervals of a row: one for each target."""
    return 1 if len(model.quantiles) > 1 else model.machine.intercept.size


@dataclasses.dataclass(frozen=True, eq=False)
class _Writer:
    """Writes the C functions of a model for one coverage, whose names begin with `prefix`."""

    model: Predictor
    conformal: ConformalScores
    coverage: float
    prefix: str
    numbers: Numbers

    @property
    def _rank(self) -> int:
        return rank_of(self.coverage, self.conformal.n_rows)

    @property
    def _width(self) -> int:
        """The number of values of a machine."""
        return self.model.machine.intercept.size

    @property
    def _machines(self) -> int:
        assert self.conformal.machines is not None
        return self.conformal.machines.intercept.size // self._width

    @property
    def _several_quantiles(self) -> bool:
        return len(self.model.quantiles) > 1

    def _scores(self) -> list[str]:
        """Return C statements that compute the scores of the model."""
        width = self._width if self.model.code is None else len(self.model.code)
        return [
            f"{self.numbers.type} scores[{width}];",
            f"if ({self.prefix}_scores(x, scores) != 0) {{ return -1; }}",
        ]

    def interval(self) -> list[str]:
        """Return the C array and function that compute intervals from the model's errors."""
        prefix, c = self.prefix, n_intervals(self.model)
        error = error_at(self.conformal, self.coverage).reshape(-1)
        last = f"{self._width} - 1" if self._several_quantiles else "i"
        first = "0" if self._several_quantiles else "i"
        lines = [
            *self._scores(),
            f"for (i = 0; i < {c}; i++) {{",
            f"  lower[i] = scores[{first}] - {prefix}_error[i];",
            f"  upper[i] = scores[{last}] + {prefix}_error[i];",
            *self._ascending(),
            "}",
            "return 0;",
        ]
        return [self.numbers.array(f"{prefix}_error", error), self._interval_function(lines)]

    def _ascending(self) -> list[str]:
        """Return a C statement that exchanges the ends of interval `i` if the lower is larger."""
        exchange = "{ t = lower[i]; lower[i] = upper[i]; upper[i] = t; }"
        return [f"  if (lower[i] > upper[i]) {exchange}"]

    def _interval_function(self, lines: list[str]) -> str:
        real = self.numbers.type
        head = f"int {self.prefix}_interval(const {real} *x, {real} *lower, {real} *upper)"
        return c_function(head, lines, self.numbers)

    def set_of_classes(self) -> list[str]:
        """Return the C functions that compute prediction sets from the model's errors."""
        prefix, k = self.prefix, len(self.model.labels or ())
        error = self.numbers.literal(error_at(self.conformal, self.coverage))
        lines = [
            *self._scores(),
            f"{self.numbers.type} deficits[{k}];",
            f"{prefix}_deficits(scores, deficits);",
            f"for (i = 0; i < {k}; i++) {{ in_set[i] = deficits[i] <= {error}; }}",
            "return 0;",
        ]
        return [self._deficits(), self._set_function(lines)]

    def _set_function(self, lines: list[str]) -> str:
        head = f"int {self.prefix}_set(const {self.numbers.type} *x, int *in_set)"
        return c_function(head, lines, self.numbers)

    def _deficits(self) -> str:
        """Return the C function of margin deficits, see `predictor.conformal.margin_deficit`."""
        real, k = self.numbers.type, len(self.model.labels or ())
        lines = ["deficits[0] = scores[0];", "deficits[1] = -scores[0];"]
        if self.model.code is not None:
            lines = [
                f"for (i = 0; i < {k}; i++) {{",
                f"  for (t = -({real})INFINITY, j = 0; j < {k}; j++) {{",
                "    if (j != i && scores[j] > t) { t = scores[j]; }",
                "  }",
                "  deficits[i] = t - scores[i];",
                "}",
            ]
        head = f"void {self.prefix}_deficits(const {real} *scores, {real} *deficits)"
        return c_function(head, lines, self.numbers)

    def _fold_arrays(self, errors: np.ndarray) -> list[str]:
        """Return C source: the folds' machines, and arrays of errors, their counts and folds."""
        conformal, prefix = self.conformal, self.prefix
        assert conformal.machines is not None
        assert conformal.fold is not None
        return [
            values(conformal.machines, f"{prefix}_folds", self.numbers),
            self.numbers.array(f"{prefix}_errors", errors),
            int_array(f"{prefix}_counts", conformal.counts.tolist()),
            int_array(f"{prefix}_fold", conformal.fold.tolist()),
        ]

    def _fold_values(self) -> list[str]:
        """Return C statements that check a row and evaluate the machines of the folds."""
        size, d = self._machines * self._width, self.model.machine.prototypes.shape[1]
        return [
            f"{self.numbers.type} f[{size}];",
            f"for (j = 0; j < {d}; j++) {{ if (!isfinite(x[j])) {{ return -1; }} }}",
            f"{self.prefix}_folds_values(x, f);",
            f"for (j = 0; j < {size}; j++) {{ if (!isfinite(f[j])) {{ return -1; }} }}",
        ]

    def fold_interval(self) -> list[str]:
        """Return C arrays and functions that compute intervals from the machines of the folds."""
        prefix, real, width = self.prefix, self.numbers.type, self._width
        errors = self.conformal.errors.reshape(len(self.conformal.errors), -1)
        q, machines = len(errors), self._machines
        outermost = [f"  low[j] = high[j] = f[j * {width} + i];"]
        if self._several_quantiles:
            outermost = [
                f"  low[j] = high[j] = f[j * {width}];",
                f"  for (q = 1; q < {width}; q++) {{",
                f"    t = f[j * {width} + q];",
                "    if (t < low[j]) { low[j] = t; }",
                "    if (t > high[j]) { high[j] = t; }",
                "  }",
            ]
        ends = [
            ("lower", "-", f"{prefix}_errors[j][i] - low[{prefix}_fold[j]]"),
            ("upper", "", f"high[{prefix}_fold[j]] + {prefix}_errors[j][i]"),
        ]
        lines = [
            *self._fold_values(),
            f"{real} low[{machines}], high[{machines}], sums[{q}];",
            f"for (i = 0; i < {n_intervals(self.model)}; i++) {{",
            f"  for (j = 0; j < {machines}; j++) {{",
            *[f"  {line}" for line in outermost],
            "  }",
        ]
        for end, sign, term in ends:
            lines += [
                f"  for (j = 0; j < {q}; j++) {{ sums[j] = {term}; }}",
                f"  {end}[i] = {sign}{prefix}_ranked(sums);",
            ]
        lines += [*self._ascending(), "}", "return 0;"]
        return [*self._fold_arrays(errors), self._ranked(q), self._interval_function(lines)]

    def _ranked(self, q: int) -> str:
        """Return the C function that sorts `q` values and returns the one at the conformal rank."""
        lines = [  # Shell's sort
            f"int counts[{q}], gap, count;",
            f"for (i = 0; i < {q}; i++) {{ counts[i] = {self.prefix}_counts[i]; }}",
            f"for (gap = {max(q // 2, 1)}; gap > 0; gap /= 2) {{",
            f"  for (i = gap; i < {q}; i++) {{",
            "    t = values[i];",
            "    count = counts[i];",
            "    for (j = i; j >= gap && values[j - gap] > t; j -= gap) {",
            "      values[j] = values[j - gap];",
            "      counts[j] = counts[j - gap];",
            "    }",
            "    values[j] = t;",
            "    counts[j] = count;",
            "  }",
            "}",
            f"for (i = 0, count = counts[0]; count < {self._rank}; count += counts[++i]) {{ }}",
            "return values[i];",
        ]
        real = self.numbers.type
        return c_function(f"{real} {self.prefix}_ranked({real} *values)", lines, self.numbers)

    def fold_set(self) -> list[str]:
        """Return C arrays and functions that compute sets from the machines of the folds."""
        prefix, real, width = self.prefix, self.numbers.type, self._width
        q, k, machines = len(self.conformal.errors), len(self.model.labels or ()), self._machines
        scores, n_scores = "  scores[0] = f[j];", 1
        if self.model.code is not None:
            scores, n_scores = f"  {prefix}_decode(f + {width} * j, scores);", k
        lines = [
            *self._fold_values(),
            f"{real} scores[{n_scores}], deficits[{machines}][{k}];",
            "int count;",
            f"for (j = 0; j < {machines}; j++) {{",
            scores,
            f"  {prefix}_deficits(scores, deficits[j]);",
            "}",
            f"for (i = 0; i < {k}; i++) {{",
            f"  for (count = 0, j = 0; j < {q}; j++) {{",
            f"    if ({prefix}_errors[j] < deficits[{prefix}_fold[j]][i]) "
            f"{{ count += {prefix}_counts[j]; }}",
            "  }",
            f"  in_set[i] = count < {self._rank};",
            "}",
            "return 0;",
        ]
        return [
            *self._fold_arrays(self.conformal.errors), self._deficits(), self._set_function(lines)
        ]  # fmt: skip
