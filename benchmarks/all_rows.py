"""All rows as prototypes, with a metric from derivatives, compared with other learners."""

from pathlib import Path
from typing import Any

import jsparse

from . import tabular
from .report import Report
from .tabular import LAST, ONE, WAYS, Split, distilled, result

ALL, DISTILLED = "all rows, recursive", "distilled from all rows, at most 200"
OTHERS = (ONE, "auto, 500", "LightGBM", "LightGBM, 30 settings", "xRFM")


def _all_rows(part: Split) -> dict[str, Any]:
    """Train on all rows as prototypes, with a metric from the derivatives of the machine."""
    trained = jsparse.train(
        part.X, part.y, task=part.task, method=jsparse.Dual(tuned_with=1000),
        search=jsparse.Recursive(), kernel="auto", columns="auto", key=0,
    )  # fmt: skip
    LAST["all rows"] = trained
    return result(part, trained)


def run(*, quick: bool, out: Path) -> Report:
    """Run two splits of all sets; resume from the results of an interrupted run."""
    ways = {ALL: _all_rows, DISTILLED: distilled("all rows", 200)}
    ways |= {name: WAYS[name] for name in OTHERS}
    large_of = {DISTILLED: (ALL, "all rows")}
    return tabular.compare("all_rows", ways, large_of, quick=quick, out=out, splits=2)
