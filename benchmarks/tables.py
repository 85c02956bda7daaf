"""Tables 1, 8 and 12 of De Brabanter 2010: test errors over randomisations."""

import sys
from typing import Any, NamedTuple

import jax
import numpy as np

import jsparse

from .report import Report, mean_sd
from .sets import PROTOTYPES, Split, split

DTYPES = ("float64", "float32")


class Cell(NamedTuple):
    """A figure of Table 8: per cent correct on the test set and its standard deviation."""

    label: str
    name: str
    kernel: str
    correct: float
    sd: float
    one_hot: bool = False
    intercept: bool = True
    why: str = ""  # explanation of a figure of ours that is far from the paper's


PAPER_8 = (
    Cell("pima", "pima", "rbf", 76.7, 3.43),
    Cell("pima", "pima", "linear", 77.6, 0.78),
    Cell("spambase", "spambase", "rbf", 92.5, 0.67),
    Cell(
        "spambase",
        "spambase",
        "linear",
        90.9,
        0.75,
        why="least squares puts the intercept at the mean label, far from the best threshold of "
        "these skewed columns; the same machine with its intercept left out is in the next row.",
    ),
    Cell("spambase, intercept left out", "spambase", "linear", 90.9, 0.75, intercept=False),
    Cell("magic", "magic", "rbf", 86.6, 0.51),
    Cell(
        "magic",
        "magic",
        "linear",
        77.8,
        0.23,
        why="the spread of ours over the splits is twice the paper's, and its splits are unknown.",
    ),
    Cell(
        "adult",
        "adult",
        "rbf",
        85.21,
        0.21,
        why="eight of the 14 columns are codes of categories and the paper does not say how it "
        "coded them (its majority rule, 83.4, is not this data's, 75.2). With one column for each "
        "category: the row `adult, one-hot`.",
    ),
    Cell(
        "adult",
        "adult",
        "linear",
        83.9,
        0.17,
        why="as for the RBF kernel, and a linear machine takes the order of the codes at face "
        "value.",
    ),
    Cell("adult, one-hot", "adult", "rbf", 85.21, 0.21, one_hot=True),
    Cell("adult, one-hot", "adult", "linear", 83.9, 0.17, one_hot=True),
)
# Table 12, RBF: L2 (mean squared), L1 (mean absolute) and L-infinity (largest) error.
PAPER_12 = {
    "boston": {"L2": (0.13, 0.02), "L1": (0.24, 0.02), "Linf": (1.90, 0.50)},
    "concrete": {"L2": (0.17, 0.02), "L1": (0.30, 0.03), "Linf": (1.22, 0.42)},
}
# Table 1: mean squared error on boston, m = 200.
PAPER_1 = {"renyi": (0.1293, 0.0246), "uniform": (0.1433, 0.0323)}


def fit(
    data: Split,
    name: str,
    kernel: str,
    randomisation: int,
    selection: Any = "renyi",
    **options: Any,
) -> jsparse.Trained:
    """Train a fixed-size machine with the paper's number of prototypes."""
    task = "regression" if name in PAPER_12 else "classification"
    m = min(PROTOTYPES[name], len(data.y))
    return jsparse.train(
        data.X,
        data.y,
        task=task,
        method=jsparse.FixedSize(m, selection=selection),
        kernel=kernel,
        out_of_fold=False,
        key=randomisation,
        **options,
    )


def table8(*, quick: bool) -> Report:
    """Measure the misclassification: RBF and linear kernel, float64 and float32."""
    rows, data, notes = [], {}, []
    for cell in PAPER_8:
        if quick and cell.name in ("magic", "adult"):
            continue
        errors, seconds, tuned = _errors(cell, 2 if quick else 10)
        paper = 100 - cell.correct
        off = (np.mean(errors["float64"]) - paper) / cell.sd
        gap = np.mean(errors["float32"]) - np.mean(errors["float64"])
        rows.append(
            [
                cell.label,
                cell.kernel,
                PROTOTYPES[cell.name],
                f"{paper:.2f} ({cell.sd:.2f})",
                *[mean_sd(errors[dtype]) for dtype in DTYPES],
                f"{off:+.1f}",
                f"{gap:+.2f}",
                f"{np.median(seconds['float32'][1:]):.2f}",
            ]
        )
        data[f"{cell.label} {cell.kernel}"] = {
            "errors": errors,
            "seconds": seconds,
            "tuned": tuned,
        }
        if abs(off) > 2:
            notes.append(_explanation(cell.label, cell.kernel, off, cell.why))
        if abs(gap) > 0.5:
            notes.append(f"{cell.label}, {cell.kernel}: the precisions differ by over 0.5 points.")
    return Report(
        "Table 8: test misclassification in per cent, mean (standard deviation)",
        [
            "set",
            "kernel",
            "m",
            "paper",
            "ours, float64",
            "ours, float32",
            "(ours - paper) / paper's sd",
            "float32 - float64",
            "seconds, float32",
        ],
        rows,
        [
            "Splits of the paper's sizes. Seconds: standardise, select, tune and fit; median "
            "without the first run, which compiles.",
            *notes,
        ],
        data,
    )


def table12(*, quick: bool) -> Report:
    """Measure regression errors on standardised targets."""
    rows, data, notes = [], {}, []
    for name, paper in PAPER_12.items():
        errors: dict[str, dict[str, list[float]]] = {
            dtype: {loss: [] for loss in paper} for dtype in DTYPES
        }
        for dtype in DTYPES:
            for r in range(2 if quick else 10):
                part = split(name, r, dtype)
                gap = np.abs(fit(part, name, "rbf", r).predict(part.X_test) - part.y_test)
                for loss, value in zip(
                    ("L2", "L1", "Linf"), (np.mean(gap**2), gap.mean(), gap.max()), strict=True
                ):
                    errors[dtype][loss].append(float(value))
        for loss, (mean, sd) in paper.items():
            off = (np.mean(errors["float64"][loss]) - mean) / sd
            rows.append(
                [
                    name,
                    loss,
                    PROTOTYPES[name],
                    f"{mean:.2f} ({sd:.2f})",
                    *[mean_sd(errors[dtype][loss], 3) for dtype in DTYPES],
                    f"{off:+.1f}",
                ]
            )
            if abs(off) > 2:
                notes.append(_explanation(name, loss, off, ""))
        data[name] = errors
    return Report(
        "Table 12: test errors on standardised targets, mean (standard deviation)",
        ["set", "loss", "m", "paper", "ours, float64", "ours, float32", "off, in paper's sd"],
        rows,
        ["L2 mean squared, L1 mean absolute, Linf largest error; RBF kernel.", *notes],
        data,
    )


def table1(*, quick: bool) -> Report:
    """Compare prototypes of maximal entropy with random prototypes."""
    errors: dict[str, list[float]] = {name: [] for name in PAPER_1}
    for r in range(3 if quick else 30):
        part = split("boston", r, "float64")
        for selection in PAPER_1:
            model = fit(part, "boston", "rbf", r, selection=selection)
            errors[selection].append(
                float(np.mean((model.predict(part.X_test) - part.y_test) ** 2))
            )
    difference = np.subtract(errors["uniform"], errors["renyi"])
    standard_error = difference.std(ddof=1) / np.sqrt(len(difference))
    return Report(
        "Table 1: test mean squared error, boston, m = 200",
        ["prototypes", "paper", "ours"],
        [
            [name, f"{mean:.4f} ({sd:.4f})", mean_sd(errors[name], 4)]
            for name, (mean, sd) in PAPER_1.items()
        ],
        [
            f"{len(difference)} randomisations; random less entropy, pair by pair: "
            f"{difference.mean():.4f}, standard error {standard_error:.4f}.",
            "The paper's gap is not found here. 200 of 338 rows are prototypes, whichever way they "
            "are chosen; and in 13 dimensions the plug-in bandwidths are small against the "
            "distances between rows, so that the entropy of a random choice is within 1 % of its "
            "bound, log m plus a constant, before the first swap.",
        ],
        errors,
    )


def _errors(
    cell: Cell, randomisations: int
) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, list[Any]]]:
    """Return test errors in per cent, seconds, and tuned parameters of all splits, by dtype."""
    errors: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
    seconds: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
    tuned: dict[str, list[Any]] = {dtype: [] for dtype in DTYPES}
    for dtype in DTYPES:
        for r in range(randomisations):
            part = split(cell.name, r, dtype, one_hot=cell.one_hot)
            model = fit(part, cell.name, cell.kernel, r)
            f = np.asarray(model.expansion(part.X_test))
            if not cell.intercept:
                f = f - float(model.expansion.intercept)
            errors[dtype].append(float(100 * np.mean((f >= 0) != (part.y_test > 0))))
            seconds[dtype].append(model.seconds["total"] - model.seconds["compile"])
            leaves = [float(leaf) for leaf in jax.tree.leaves(model.kernel)]
            tuned[dtype].append({"kernel": leaves, "C": model.C, "cv_error": model.cv_error})
        print(cell.label, cell.kernel, dtype, mean_sd(errors[dtype]), file=sys.stderr, flush=True)
    return errors, seconds, tuned


def _explanation(name: str, cell: str, off: float, why: str) -> str:
    side = "better" if off < 0 else "worse"
    why = why or "not explained."
    return f"{name}, {cell}: {abs(off):.1f} of the paper's deviations {side} than the paper: {why}"
