"""Budgets of a deployed model: the bytes of its file, and the seconds to predict one row."""

import dataclasses
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from .._arguments import real, whole_number
from ..model import Model
from .trained import Trained

Serving = Literal["numpy", "c"]
ATTEMPTS = 4  # number of machines whose costs are compared with a budget
AIM = 0.9  # share of the latency to aim at, as a measurement varies by some percent
RUNS = 30  # number of timed groups of predictions; the median over groups counts
SECONDS = 0.002  # duration of a group


class BudgetError(ValueError):
    """No model of the method meets the budget."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits of the model that is deployed. At least one must be stated.

    Args:
        bytes: limit of the size of the model file.
        latency: limit of the median seconds in which one row is predicted on this machine.
        serving: the program whose latency is meant: "numpy" for `Model.to_numpy().predict`, "c" for
            the functions of `Model.to_c`, which need a C compiler here.
    """

    bytes: int | None = None
    latency: float | None = None
    serving: Serving = "numpy"

    def __post_init__(self) -> None:
        if self.bytes is None and self.latency is None:
            raise ValueError("budget: expected bytes, latency or both, got neither")
        if self.bytes is not None:
            whole_number("bytes", self.bytes, 1)
        if self.latency is not None:
            real("latency", self.latency, 0.0, above=True)
        if self.serving not in get_args(Serving):
            raise ValueError(f"serving: expected one of {get_args(Serving)}, got {self.serving!r}")

    def largest_size(self, model: Model, dtype: np.dtype | None = None) -> int:
        """Estimate the largest number of prototypes within the budget from a similar model's costs.

        Costs are assumed to grow linearly with the number of prototypes. The numbers in the file
        will have the `dtype`; None for the model's. If one prototype exceeds the budget, or "c" has
        no working compiler, raise a `BudgetError`.
        """
        sizes = []
        if self.bytes is not None:
            m, d = model.expansion.prototypes.shape
            numbers = d + model.expansion.coefficients.size // m  # that a prototype adds
            added_bytes = (dtype or model.dtype).itemsize * numbers
            fixed_bytes = file_bytes(model) - model.dtype.itemsize * numbers * model.size
            if self.bytes < fixed_bytes + added_bytes:
                raise BudgetError(
                    f"bytes: expected at least {fixed_bytes + added_bytes}, which the file of one "
                    f"prototype takes, got {self.bytes}; train with out_of_fold=False for a file "
                    "without the quantiles of intervals"
                )
            sizes.append((self.bytes - fixed_bytes) // added_bytes)
        if self.latency is not None:
            smallest = seconds_of_a_row(_first_prototypes(model, 1), self.serving)
            if self.latency < smallest:
                raise BudgetError(
                    f"latency: expected at least {smallest:.2g} s, which one prototype takes here "
                    f"by {self.serving!r}, got {self.latency:.2g} s"
                )
            increase = seconds_of_a_row(model, self.serving) - smallest
            slope = max(increase, 1e-12) / max(model.size - 1, 1)  # at least 0 despite noise
            sizes.append(1 + int(max(AIM * self.latency - smallest, 0) / slope))
        return int(min(sizes))

    def costs(self, model: Model) -> dict[str, float]:
        """Return the measured costs that are limited: "bytes" of the file, "latency" in seconds."""
        costs = {} if self.bytes is None else {"bytes": float(file_bytes(model))}
        if self.latency is not None:
            costs["latency"] = seconds_of_a_row(model, self.serving)
        return costs


def within_budget(budget: Budget, trained: Trained, train: Callable[[int], Trained]) -> Trained:
    """Train smaller and smaller machines until one meets the budget; return its result.

    `trained` is the first result, and `train` trains a machine of at most a given number of
    prototypes. The machines of other sizes are dropped from the model. If none of `ATTEMPTS`
    machines meets the budget, raise a `BudgetError`.
    """
    for attempts_left in reversed(range(ATTEMPTS)):
        model = dataclasses.replace(trained.model, path=None)
        costs = budget.costs(model)
        if all(cost <= getattr(budget, name) for name, cost in costs.items()):
            return dataclasses.replace(trained, model=model, costs=costs)
        size = min(budget.largest_size(model), model.size - 1)
        if size < 1 or not attempts_left:
            break
        trained = train(size)
    raise BudgetError(
        f"budget: expected a limit that a model of {trained.method.title} meets, got {budget}; the "
        f"smallest tried has {model.size} prototypes and takes {costs}"
    )


def file_bytes(model: Model) -> int:
    """Return the size of the model's file, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model")
        model.save(path)
        return os.path.getsize(path)


def seconds_of_a_row(model: Model, serving: Serving) -> float:
    """Return the median seconds in which the model predicts a row of zeros on this computer.

    For "c" without a working C compiler, raise a `BudgetError`.
    """
    if serving == "c":
        return _seconds_by_c(model)
    predictor = model.to_numpy()
    row = np.zeros(model.expansion.prototypes.shape[1], model.dtype)

    def group(repeats: int) -> float:
        """Return the mean seconds of repeated predictions."""
        begin = time.perf_counter()
        for _ in range(repeats):
            predictor.predict(row)
        return (time.perf_counter() - begin) / repeats

    group(1)
    repeats = max(1, int(SECONDS / group(3)))
    return float(np.median([group(repeats) for _ in range(RUNS)]))


# Prints the mean time of a prediction for each of RUNS groups. The group grows until it takes at
# least half of SECONDS.
_TIMER = """
#include <stdio.h>
#include <time.h>
#include "model.h"
int main(void) {
  static REAL x[MODEL_INPUTS], values[MODEL_SCORES];
  volatile double sum = 0;
  long i, n = 1;
  int run;
  double seconds = 0;
  for (run = 0; run < RUNS;) {
    clock_t begin = clock();
    for (i = 0; i < n; i++) { model_scores(x, values); sum += values[0]; }
    seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    if (seconds < 0.5 * SECONDS) { n *= 2; continue; }
    printf("%.9e\\n", seconds / n);
    run++;
  }
  return 0;
}
"""


def _seconds_by_c(model: Model) -> float:
    """Return the median time of `model_scores` in compiled C for a row of zeros, in seconds."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BudgetError("serving: expected a C compiler on the path for 'c', found none")
    real_type = {"float32": "float", "float64": "double"}[model.dtype.name]
    names = {"REAL": real_type, "RUNS": RUNS, "SECONDS": SECONDS}
    with tempfile.TemporaryDirectory() as folder:
        model.to_c(Path(folder, "model.h"))
        Path(folder, "time.c").write_text(_TIMER)
        definitions = [f"-D{name}={value}" for name, value in names.items()]
        command = [compiler, "-std=c99", "-O2", *definitions, "time.c", "-o", "time", "-lm"]
        compilation = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if compilation.returncode != 0:
            message = compilation.stderr[:300]
            raise BudgetError(
                f"serving: expected that {compiler} compiles the header, got {message}"
            )
        lines = subprocess.run(
            [os.path.join(folder, "time")], check=True, capture_output=True, text=True
        ).stdout
    return float(np.median([float(line) for line in lines.split()]))


def _first_prototypes(model: Model, m: int) -> Model:
    """Return the model cut to its first `m` prototypes, to be timed; its values mean nothing."""
    expansion = model.expansion
    few = dataclasses.replace(
        expansion,
        kernel=expansion.kernel.of_prototypes(np.arange(m)),
        prototypes=expansion.prototypes[:m],
        coefficients=expansion.coefficients[:m],
    )
    return dataclasses.replace(model, expansion=few, path=None)
