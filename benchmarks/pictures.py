"""Draw the pictures of the README and the documentation: `python -m benchmarks.pictures`.

Every number comes from the JSON files under `results`. Each picture is an SVG file for light pages
and one for dark pages, in `docs/_static`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from .kabbara import PAPER as PAPER_KABBARA
from .reductions import PAPER as PAPER_MALL
from .tables import PAPER_8
from .wu import SETS

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "cpu-2core"
OUT = ROOT.parent / "docs" / "_static"
MEMORY = 24 * 2**30  # bytes of the machine that measured the results
INK = {"light": "#1f2328", "dark": "#e6edf3"}
MUTED = {"light": "#6e7781", "dark": "#8d96a0"}
OURS = {"light": "#0b62c4", "dark": "#58a6ff"}
RIVAL = {"light": "#c4450b", "dark": "#ff9b5e"}


def results(name: str) -> Any:
    """Return the data of a committed benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text())["data"]


def error_and_size(axes: Axes, theme: str) -> None:
    """Draw the test error of tuned SCDP paths against their size, and the test error of an SVC."""
    cells = results("table5_scdp")["adult"]
    for cell in cells:
        sizes, errors = np.array([(int(m), e) for m, e in cell["test errors"].items()]).T
        axes.plot(sizes, errors, color=OURS[theme], lw=1.2, alpha=0.35)
        axes.plot(cell["size"], cell["error"], "o", ms=5, color=OURS[theme], mec="none")
        axes.plot(cell["vectors"], cell["svc error"], "D", ms=5, color=RIVAL[theme], mec="none")
    size, vectors = (np.mean([cell[what] for cell in cells]) for what in ("size", "vectors"))
    error, svc_error = (np.mean([cell[what] for cell in cells]) for what in ("error", "svc error"))
    axes.annotate(
        f"jsparse, SCDP: {size:.0f} prototypes\n{error:.1f} % wrong",
        (size, error), (0, 66), textcoords="offset points", color=OURS[theme], ha="center",
    )  # fmt: skip
    axes.annotate(
        f"LIBSVM: {vectors:,.0f} support vectors\n{svc_error:.1f} % wrong",
        (vectors, svc_error), (6, 34), textcoords="offset points", color=RIVAL[theme], ha="right",
    )  # fmt: skip
    axes.set(
        xscale="log", xlabel="prototypes or support vectors", ylabel="test error, %",
        title=f"adult: every size of {len(cells)} tuned paths, and an SVC on the same rows",
    )  # fmt: skip
    axes.set_xlim(1, 2e4)


def rank_and_time(axes: Axes, theme: str) -> None:
    """Draw the mean rank of the learners over the tables against their training time."""
    runs: dict[str, dict[str, dict[str, float]]] = {}
    for key, cell in results("tabular").items():
        table, split, learner = key.split("/")
        runs.setdefault(f"{table}/{split}", {})[learner] = cell
    learners = list(next(iter(runs.values())))
    complete = {place: cells for place, cells in runs.items() if len(cells) == len(learners)}
    tables = sorted({place.split("/")[0] for place in complete})
    errors = np.array([
        [
            np.mean([c[learner]["error"] for p, c in complete.items() if p.split("/")[0] == table])
            for learner in learners
        ]
        for table in tables
    ])  # fmt: skip
    ranks = np.mean(1 + np.sum(errors[:, :, None] > errors[:, None, :], axis=2), axis=0)
    drawn: list[tuple[float, float]] = []
    for learner, rank in sorted(zip(learners, ranks, strict=True), key=lambda pair: pair[1]):
        seconds = np.median([cells[learner]["seconds"] for cells in complete.values()])
        rival = learner.startswith(("LightGBM", "xRFM", "Hist", "SVC"))
        colour = (RIVAL if rival else OURS)[theme]
        axes.plot(seconds, rank, "D" if rival else "o", ms=6, color=colour, mec="none")
        crowded = any(abs(rank - r) < 0.3 and 0.25 < seconds / s < 4 for s, r in drawn)
        place = {"xytext": (0, -14), "ha": "center"} if crowded else {"xytext": (7, -3)}
        axes.annotate(
            learner, (seconds, rank), textcoords="offset points", color=colour, **place
        )  # fmt: skip
        drawn.append((float(seconds), rank))
    axes.set(
        xscale="log", xlabel="median training time, s, without compilation",
        ylabel="mean rank of the error", title=f"{len(learners)} learners on {len(tables)} tables",
    )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlim(axes.get_xlim()[0] / 2, axes.get_xlim()[1] * 6)


def seconds_and_rows(axes: Axes, theme: str) -> None:
    """Draw training time against streamed rows, and the rows whose kernel matrix fits in memory."""
    runs = results("streaming")["growth"]["runs"]
    rows, seconds = np.array([(run["rows"], run["run"]) for run in runs]).T
    peak = max(run["peak_bytes"] for run in runs) / 1e9
    axes.plot(rows, seconds, "o-", color=OURS[theme], lw=1.5, mec="none")
    axes.annotate(
        f"jsparse from Parquet files,\nat most {peak:.1f} GB of memory", (rows[-1], seconds[-1]),
        (-60, 0), textcoords="offset points", color=OURS[theme], ha="right", va="top",
    )  # fmt: skip
    limit = np.sqrt(MEMORY / 8)  # rows whose kernel matrix fills the memory in float64
    axes.axvline(limit, color=RIVAL[theme], lw=1, ls=":")
    axes.annotate(
        f"an n x n kernel matrix\nfills {MEMORY / 2**30:.0f} GiB", (limit, max(seconds)), (6, 0),
        textcoords="offset points", va="top", color=RIVAL[theme],
    )  # fmt: skip
    axes.set_yscale("log")
    axes.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set(
        xscale="log", xlabel="rows of ten columns", ylabel="seconds",
        title="Training on a stream: 25 values of C, five folds, 100 prototypes",
    )  # fmt: skip


def paths(axes: Axes, theme: str) -> None:
    """Draw the test errors of sparse paths (Karsmakers 2011, Figures 12 and 13)."""
    curves = results("figure12_scdp")
    colours = {"SCDP": OURS, "MP": RIVAL, "LASSO": MUTED}
    for method, colour in colours.items():
        for table, style in (("magic", "-"), ("adult", "--")):
            errors = curves[f"{table} {method}"]["errors"]
            sizes = np.arange(1, len(errors) + 1)
            axes.plot(
                sizes, errors, style, color=colour[theme], lw=1.4, label=f"{method}, {table}"
            )  # fmt: skip
    axes.set(
        xscale="log", xlabel="prototypes", ylabel="test error, %",
        title="Paths of SCDP, matching pursuit and the LASSO, de-biased",
    )  # fmt: skip
    axes.legend(frameon=False, ncols=3)


Pairs = dict[str, list[tuple[float, float]]]  # the paper's error and ours, by group


def de_brabanter() -> Pairs:
    """Return the errors of Table 8, in per cent, by kernel."""
    data, pairs = results("table8"), {}
    for cell in PAPER_8:
        ours = np.mean(data[f"{cell.label} {cell.kernel}"]["errors"]["float64"])
        pairs.setdefault(f"{cell.kernel} kernel", []).append((100 - cell.correct, float(ours)))
    return pairs


def mall() -> Pairs:
    """Return the errors of Table IV, by machine."""
    data, pairs = results("mall"), {}
    for paper in PAPER_MALL:
        for machine, error in zip(("PFS", "SPFS", "SV_L0", "SD", "SSD"), paper[2], strict=True):
            cells = [run[machine]["error"] for run in data[paper[0]] if machine in run]
            if cells:
                pairs.setdefault(machine, []).append((error, float(np.mean(cells))))
    return pairs


def wu() -> Pairs:
    """Return the errors of Tables 1 to 3 with 5 and 10 % of the SVM's vectors, by machine."""
    data, pairs = results("wu")["sets"], {}
    for name, settings in SETS.items():
        for machine, paper in settings.paper.items():
            for at, error in enumerate(paper):
                cells = [run[machine][at] for run in data[name] if machine in run]
                if np.isfinite(error) and cells:
                    pairs.setdefault(machine, []).append((error, float(np.mean(cells))))
    return pairs


def kabbara() -> Pairs:
    """Return the mean squared errors of Tables 1 and 2, by pursuit."""
    data, pairs = results("kabbara")["functions"]["found"], {}
    for kind, functions in PAPER_KABBARA.items():
        for name, errors in functions.items():
            for place, method in enumerate(("KSP", "KMP", "KBP")):
                ours = data[f"{kind}, {name}"][place]["mean"]
                pairs.setdefault(method, []).append((errors[place], ours))
    return pairs


def agreement(title: str, pairs_of: Callable[[], Pairs]) -> Callable[[Axes, str], None]:
    """Return a function that draws our errors against the paper's; ours are smaller below."""

    def draw_pairs(axes: Axes, theme: str) -> None:
        pairs = pairs_of()
        every = np.array([pair for group in pairs.values() for pair in group])
        ends = np.array([every.min() / 1.3, every.max() * 1.3])
        axes.plot(ends, ends, color=MUTED[theme], lw=1)
        shades = plt.get_cmap("viridis")(np.linspace(0.25, 0.9, len(pairs)))
        for (label, group), shade in zip(pairs.items(), shades, strict=True):
            axes.plot(*np.array(group).T, "o", ms=5, color=shade, mec="none", label=label)
        axes.set(
            xscale="log", yscale="log", xlabel="error in the paper", ylabel="error here",
            title=title,
        )  # fmt: skip
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
            axis.set_major_formatter("{x:g}")
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if ends[1] < 100 * ends[0] else (1,)))
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))

    return draw_pairs


PICTURES: dict[str, Callable[[Axes, str], None]] = {
    "error_and_size": error_and_size,
    "rank_and_time": rank_and_time,
    "seconds_and_rows": seconds_and_rows,
    "paths": paths,
    "de_brabanter": agreement("De Brabanter 2010, Table 8: per cent wrong", de_brabanter),
    "mall": agreement("Mall and Suykens 2015, Table IV: test errors", mall),
    "wu": agreement("Wu 2006, Tables 1 to 3: per cent wrong", wu),
    "kabbara": agreement("Kabbara 2015, Tables 1 and 2: mean squared errors", kabbara),
}


def draw(name: str, theme: str, out: Path = OUT) -> Path:
    """Draw one picture for pages of one theme, and return its path."""
    style = {
        "svg.hashsalt": name, "svg.fonttype": "none", "font.size": 10, "font.family": "sans-serif",
        "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10,
        "axes.titlelocation": "left", "text.color": INK[theme], "axes.edgecolor": MUTED[theme],
        "axes.labelcolor": INK[theme], "xtick.color": MUTED[theme], "ytick.color": MUTED[theme],
    }  # fmt: skip
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
        PICTURES[name](axes, theme)
        path = out / f"{name}_{theme}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)
    return path


if __name__ == "__main__":
    for picture in PICTURES:
        for page in INK:
            print(draw(picture, page))
