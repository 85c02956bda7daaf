"""`train` without options (all rows as prototypes, a learned metric) beside other learners."""

from pathlib import Path
from typing import Any

import jsparse

from . import tabular
from .report import Report
from .tabular import LAST, ONE, WAYS, Split, distilled, result

ALL, DISTILLED = "train without options", "distilled from it, at most 200"
OTHERS = (ONE, "auto, 500", "LightGBM", "LightGBM, 30 settings", "xRFM")


def _all_rows(part: Split) -> dict[str, Any]:
    """Train without options: up to 6,000 rows, every row is a prototype."""
    trained = jsparse.train(part.X, part.y, task=part.task, key=0)
    LAST["all rows"] = trained
    return result(part, trained)


def run(*, quick: bool, out: Path) -> Report:
    """Run two splits of all sets; what an interrupted run left is not done again."""
    ways = {ALL: _all_rows, DISTILLED: distilled("all rows", 200)}
    ways |= {name: WAYS[name] for name in OTHERS}
    large_of = {DISTILLED: (ALL, "all rows")}
    return tabular.compare("all_rows", ways, large_of, quick=quick, out=out, splits=2)
