"""Parts of all figures: colours, axes with plain numbers, labels beside points."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ._ticks import linear_ticks, log_ticks, plain

# Okabe and Ito's palette for colour-blind readers, without black and yellow (faint on white).
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DARKER = 0.6  # factor of the brightness of each further round of colours
LABEL = 8.0  # font size of labels, in points
GREY = "0.45"


def figure(n: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """Return a figure that a notebook shows, and its `n` axes side by side; sizes in inches."""
    try:
        from ._notebook_figure import NotebookAxes, NotebookFigure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'jsparse[cli]'") from error
    new_figure = NotebookFigure(figsize=(width, height), layout="constrained")
    axes = new_figure.subplots(1, n, squeeze=False, subplot_kw={"axes_class": NotebookAxes})
    for ax in axes[0]:
        ax.spines[["top", "right"]].set_visible(False)
    return new_figure, list(axes[0])


def shades(n: int) -> list[tuple[float, ...]]:
    """Return `n` different RGB colours: Okabe and Ito's, then darker shades of them."""
    palette = [tuple(int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)) for code in OKABE_ITO]
    count = len(palette)
    return [tuple(part * DARKER ** (i // count) for part in palette[i % count]) for i in range(n)]


def log_axis(axis: Any, values: Float[np.ndarray, " k"]) -> None:
    """Make an axis logarithmic, with room for all values and ticks such as 1, 2, 5, 10."""
    low, high = float(np.min(values)), float(np.max(values))
    room = max((high / low) ** 0.05, 1.05)
    low, high = low / room, high * room
    _set(axis, "log", low, high, log_ticks(low, high))


def linear_axis(axis: Any, values: Float[np.ndarray, " k"]) -> None:
    """Make an axis linear, with room for all values and ticks in plain numbers."""
    low, high = float(np.min(values)), float(np.max(values))
    room = 0.06 * (high - low) or 0.1 * abs(low) or 1.0
    low, high = low - room, high + room
    _set(axis, "linear", low, high, linear_ticks(low, high, most=7))


def _set(axis: Any, scale: str, low: float, high: float, ticks: Sequence[float]) -> None:
    name = axis.axis_name
    getattr(axis.axes, f"set_{name}scale")(scale)
    getattr(axis.axes, f"set_{name}lim")(low, high)
    axis.set_ticks(ticks, [plain(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def label_at_right(axes: Any, labels: Sequence[tuple[str, Any, Any, Any]]) -> None:
    """Write labels in a column right of the axes, each with a thin line to its point.

    `labels` has the text, x, y and colour of each label. The limits of the axes must be final.
    Labels are in the order of the heights of their points, and are moved apart where points are
    near each other.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [float(to_axes.transform((x, y))[1]) for _, x, y, _ in labels]
    inches = axes.get_position().height * axes.get_figure().get_figheight()
    # A line of text takes 1.2 font sizes. The layout may reduce the height of the axes by 25 %.
    distance = 1.2 * LABEL / 72 / (0.75 * inches)
    places = spread_out(np.clip(heights, 0.0, 1.0), distance)
    for (text, x, y, colour), place in zip(labels, places, strict=True):
        axes.annotate(
            text, (x, y), xytext=(1.05, place), textcoords="axes fraction", va="center",
            fontsize=LABEL, annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 1, "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )  # fmt: skip


def spread_out(places: np.ndarray, apart: float) -> np.ndarray:
    """Return positions moved so that neighbours are `apart` or more, with the least squared moves.

    Positions keep their order. They stay between 0 and 1 if there is room for all; otherwise the
    last positions exceed 1. Neighbours that are too near are pooled and spread evenly about their
    mean (pool adjacent violators).
    """
    order = np.argsort(places, kind="stable")
    # After subtracting steps of `apart`, places need only be non-decreasing.
    pools: list[tuple[float, int]] = []
    for i, place in enumerate(places[order]):
        mean, count = float(place) - i * apart, 1
        while pools and pools[-1][0] > mean:
            pool_mean, n = pools.pop()
            mean, count = (mean * count + pool_mean * n) / (count + n), count + n
        pools.append((mean, count))
    level = np.concatenate([np.full(count, mean) for mean, count in pools])
    level = np.clip(level, 0.0, max(0.0, 1.0 - (len(places) - 1) * apart))
    moved = np.empty(len(places))
    moved[order] = level + np.arange(len(places)) * apart
    return moved


def note_above(axes: Any, at: float | int, text: str, *, side: str = "center") -> None:
    """Write `text` above the axes at x = `at`, aligned by `side`; titles move above the text."""
    above = axes.secondary_xaxis("top")
    above.set_ticks([at], [text])
    above.set_ticks([], minor=True)
    above.tick_params(length=0, labelsize=LABEL)
    above.spines["top"].set_visible(False)
    (label,) = above.get_xticklabels()
    label.set_horizontalalignment(side)
