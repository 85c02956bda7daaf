"""The reference has every public name, and the README's figures are the committed results."""

import inspect
import json
import re
from pathlib import Path

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
    tables = data("all_rows")
    row = next(line for line in text.splitlines() if line.startswith("| errors on these tables"))
    _, _, ours, beside, _ = row.split("|")
    for place, learner in (
        (ours.split(";")[0], "all rows, recursive"),
        (ours.split(";")[1], "distilled from all rows, at most 200"),
        (beside.split(";")[0], "LightGBM"),
        (beside.split(";")[1], "LightGBM, 30 settings"),
    ):
        ratios = []
        for name in {place.split("/")[0] for place in tables}:
            errors = [
                mean([cell for key, cell in tables.items()
                      if key.startswith(f"{name}/") and key.split("/", 2)[2] == who], "error")
                for who in (learner, "one lengthscale, 500")
            ]  # fmt: skip
            ratios.append(errors[0] / errors[1])
        assert f"{sum(ratios) / len(ratios):.2f}" in place
    row = next(line for line in text.splitlines() if line.startswith("| covertype"))
    assert f"{streams['stream']['seconds']:.0f} s" in row
    assert f"{streams['memory']['seconds']:.0f} s" in row
