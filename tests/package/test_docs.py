"""The reference has every public name, and the README's figures are the committed results."""

import inspect
import json
import re
from pathlib import Path

import numpy as np

import jsparse
from jsparse import estimators, features, kernels, prototypes, pursuit

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "cpu-2core"
# Modules whose members have a place of their own, or are for those who build jsparse.
PLACES = {
    "data", "estimators", "expansion", "features", "kernels", "machines", "model", "monitoring",
    "multiclass", "normal_equations", "plotting", "predictor", "prototypes", "pursuit", "scaling",
    "search", "serialization", "solvers", "training", "validation", "layers",
}  # fmt: skip


def referenced():
    text = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    return set(re.findall(r"^\.\. auto\w+:: jsparse\.(\S+)", text, re.MULTILINE))


def test_every_public_name_is_in_the_reference():
    names = referenced()
    missing = set(jsparse._MODULE_OF) - PLACES - {name.rsplit(".", 1)[-1] for name in names}
    assert not missing
    for module in (estimators, features, kernels, prototypes, pursuit):
        part = module.__name__.removeprefix("jsparse.")
        for name in dir(module):
            value = getattr(module, name)
            described = inspect.isclass(value) or inspect.isfunction(value)
            if described and not name.startswith("_") and value.__doc__:
                shown = f"{part}.{name}" in names or name.endswith(("Result", "State"))
                assert shown, f"{part}.{name} is not in docs/reference"


def errors_by_learner(cells):
    """Return the mean error over splits, by learner and table."""
    errors = {}
    for place, cell in cells.items():
        table, _, learner = place.split("/", 2)
        errors.setdefault(learner, {}).setdefault(table, []).append(cell["error"])
    return {
        learner: {table: np.mean(values) for table, values in tables.items()}
        for learner, tables in errors.items()
    }


def test_the_figures_of_the_readme_are_those_measured():
    text = (ROOT / "README.md").read_text()

    def data(name):
        return json.loads((RESULTS / f"{name}.json").read_text())["data"]

    def mean(cells, what):
        return sum(cell[what] for cell in cells) / len(cells)

    adult = data("table5_scdp")["adult"]
    error, svc_error = mean(adult, "error"), mean(adult, "svc error")
    row = next(line for line in text.splitlines() if line.startswith("| adult, the smallest"))
    assert f"{mean(adult, 'size'):.0f} prototypes, {error:.1f} %" in row
    assert f"{mean(adult, 'vectors'):,.0f} support vectors, {svc_error:.1f} %" in row
    runs = data("speed")["pipeline"]["runs"]
    svc, ours = (sorted(run[i]["seconds"] for run in runs)[len(runs) // 2] for i in (0, 1))
    row = next(line for line in text.splitlines() if line.startswith("| adult, 32,561"))
    assert f"{ours:.1f} s" in row
    assert f"{svc:.1f} s" in row
    streams = data("streaming")["training"]["runs"]
    errors = errors_by_learner(data("tabular"))
    ranks = {
        learner: np.mean([1 + sum(other[name] < of[name] for other in errors.values())
                          for name in of])
        for learner, of in errors.items()
    }  # fmt: skip
    one = errors["one lengthscale, 500"]
    ratios = {
        learner: np.mean([of[name] / one[name] for name in of]) for learner, of in errors.items()
    }
    for start, values, digits in (
        ("| mean rank among eleven", ranks, 1),
        ("| errors on these tables", ratios, 2),
    ):
        row = next(line for line in text.splitlines() if line.startswith(start))
        _, _, ours, beside, _ = row.split("|")
        for place, learner in (
            (ours.split(";")[0], "train without options"),
            (ours.split(";")[1], "distilled from it, at most 200"),
            (beside.split(";")[0], "LightGBM"),
            (beside.split(";")[1], "LightGBM, 30 settings"),
        ):
            assert f"{values[learner]:.{digits}f}" in place
    row = next(line for line in text.splitlines() if line.startswith("| covertype"))
    assert f"{streams['stream']['seconds']:.0f} s" in row
    assert f"{streams['memory']['seconds']:.0f} s" in row
