"""Descents of the direct method from several starts, of which one goes on after a few steps."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsparse.kernels import RBF
from jsparse.machines import direct
from jsparse.machines.inner_problems import Fisher, LargeMargin, LeastSquares
from jsparse.prototypes import k_means

from .report import Report
from .tabular import split

ROWS, STARTS = 600, 3
SETS = (
    "concrete", "abalone", "ida_banana", "pima", "ida_german", "ida_image", "magic", "spambase",
)  # fmt: skip
LENGTHSCALE = 0.7  # in units of sqrt(d), on standardised inputs
AFTER = (10, direct.FIRST_STEPS, 30)


def problem_of(machine: Callable[..., Any], name: str, C: float) -> Any:
    """Return the inner problem of a machine on rows of a set, in float32."""
    part = split(name, 0)
    X, y = np.asarray(part.X[:ROWS], float), np.asarray(part.y[:ROWS])
    spread = X.std(axis=0)
    X = jnp.asarray((X - X.mean(axis=0)) / np.where(spread > 0, spread, 1), jnp.float32)
    regression = part.task == "regression"
    y = (y - y.mean()) / y.std() if regression else np.where(y == np.unique(y)[0], -1.0, 1.0)
    kernel = RBF(jnp.asarray(LENGTHSCALE * np.sqrt(X.shape[1]), X.dtype))
    return machine(kernel, X, jnp.asarray(y, X.dtype), jnp.asarray(C, X.dtype))


def descents(problem: Any, m: int) -> dict[str, Any]:
    """Return the excess objective of each rule, and its share of all descents' evaluations."""
    X, rng = problem.X, np.random.default_rng(0)
    means = k_means(jax.random.key(0), X, m, jnp.ones(len(X), X.dtype)).centres
    starts = [means, *(X[rng.choice(len(X), m, replace=False)] for _ in range(STARTS - 1))]
    minima = [direct.minimise(problem, start) for start in starts]
    ends = np.array([float(one.solved.value) for one in minima])
    evaluations = np.array([int(one.evaluations) for one in minima])
    steps = np.array([int(one.steps) for one in minima])
    histories = [np.asarray(one.history) for one in minima]

    def excess(place: int) -> float:
        return float((ends[place] - ends.min()) / np.abs(ends.min()))

    by_rule = {
        "one start": {"excess": excess(0), "evaluations": evaluations[0] / evaluations.sum()}
    }
    for most in AFTER:
        first = np.minimum(steps, most)
        best = int(np.argmin([W[k] for W, k in zip(histories, first, strict=True)]))
        # The evaluations of a descent are nearly proportional to its steps.
        share_of_steps = first / np.maximum(steps, 1)
        share_of_steps[best] = 1
        share = float(np.sum(share_of_steps * evaluations) / evaluations.sum())
        by_rule[f"best after {most} steps"] = {"excess": excess(best), "evaluations": share}
    return by_rule


def run(*, quick: bool) -> Report:
    data = {}
    for name in SETS[2:4] if quick else SETS:
        machines = (LeastSquares,) if name in SETS[:2] else (LargeMargin, Fisher)
        for machine in machines:
            for C in (1.0, 100.0):
                for m in (5, 20):
                    label = f"{name}, {machine.__name__}, C = {C:g}, {m} prototypes"
                    data[label] = descents(problem_of(machine, name, C), m)
                    print(label, data[label], file=sys.stderr, flush=True)
    rows = []
    for rule in ("one start", *(f"best after {most} steps" for most in AFTER)):
        excess = np.array([each[rule]["excess"] for each in data.values()])
        share = np.array([each[rule]["evaluations"] for each in data.values()])
        rows.append([
            rule, f"{share.mean():.2f}", f"{100 * excess.mean():.1f} %",
            f"{100 * excess.max():.1f} %", f"{np.mean(excess < 1e-3):.2f}",
        ])  # fmt: skip
    return Report(
        "One of several descents goes on after a few steps",
        ["rule", "evaluations", "mean excess of W", "largest excess", "lowest end found"],
        rows,
        [
            f"{len(data)} problems of at most {ROWS} rows, float32. Whole descents from {STARTS} "
            "starts, cluster means and random rows, are the reference.",
            "Evaluations: share of all evaluations of whole descents. Excess: the last W less the "
            "lowest last W of the whole descents, over its size. Lowest end found: share of the "
            "problems whose excess is below 0.1 %.",
        ],
        data,
    )  # fmt: skip
