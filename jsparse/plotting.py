"""Figures of trained models, with matplotlib.

Each function draws on the given axes, or on axes of a new figure, and returns the axes. A notebook
shows the figure of axes that are the last line of a cell. pyplot does not know the figure.
`axes.figure.savefig("file.png")` writes it to a file.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ._arguments import whole_number
from ._figures import GREY, LABEL, figure, label_at_right, linear_axis, log_axis, note_above, shades
from ._repr import short_repr
from ._ticks import error_top
from .machines.method import METRIC_NAMES, Metric
from .model import Model
from .relevance import Relevance
from .training.trained import Trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "os^Dv"  # one marker for each round of colours
COLOURS = 6  # number of colours in a round
WIDE_RANGE = 20.0  # factor between errors above which their axis is logarithmic


class Machine(NamedTuple):
    """A machine as a point of `comparison`.

    Attributes:
        name: the label of the point.
        size: number of prototypes.
        error: the error, in the metric of the figure.
    """

    name: str
    size: float | int
    error: float | int

    __repr__ = short_repr


def error_curve(
    trained: Trained,
    ax: "Axes | None" = None,
    *,
    test_errors: Float[np.ndarray, " k"] | None = None,
    others: Mapping[str, tuple[float, float]] | None = None,
) -> "Axes":
    """Draw the cross-validated error against the number of prototypes, and the selected size.

    The band extends one standard error of the cross-validated error to either side.

    Args:
        trained: result of `train` for a path or several numbers of prototypes.
        ax: axes to draw on; by default new axes.
        test_errors: errors on new rows in the metric of `trained`, one for each size.
        others: further machines, name to (number of prototypes, error).

    Raises:
        ValueError: if `trained` is no result of `train`, or if there are no errors of several
            sizes.
        ImportError: without matplotlib.
    """
    if not isinstance(trained, Trained):
        raise ValueError(f"trained: expected a Trained, got {type(trained).__name__}")
    curve = trained.curve
    if curve is None:
        raise ValueError(
            "trained: expected errors of several sizes: a path such as SCDP's, or "
            "FixedSize(n_prototypes=[..]) with several numbers"
        )
    axes: Any = figure(1, 6.5, 4.0)[1][0] if ax is None else ax
    machines = [Machine(name, *point) for name, point in (others or {}).items()]
    sizes, errors = curve.sizes, curve.errors
    spread = np.nan_to_num(curve.standard_errors, posinf=0.0)
    blue, orange, *colours = shades(2 + len(machines))
    axes.fill_between(sizes, errors - spread, errors + spread, color=blue, alpha=0.2, linewidth=0)
    axes.plot(sizes, errors, color=blue)
    labels = [("cross-validation", sizes[-1], errors[-1], blue)]
    low, high = np.min(errors - spread), error_top(errors, spread)
    if test_errors is not None:
        axes.plot(sizes, test_errors, linestyle="--", color=orange)
        labels.append(("new rows", sizes[-1], test_errors[-1], orange))
        low = min(low, np.min(test_errors))
        high = max(high, error_top(test_errors, np.zeros(len(sizes))))
    axes.plot([curve.size], [errors[curve.chosen]], marker="o", linestyle="none", color=blue)
    for machine, colour in zip(machines, colours, strict=True):
        axes.plot([machine.size], [machine.error], marker="D", linestyle="none", color=colour)
        labels.append((f"{machine.name}: {machine.size:g}", machine.size, machine.error, colour))
    points = [errors[curve.chosen], *(machine.error for machine in machines)]
    log_axis(axes.xaxis, np.array([*sizes, *(machine.size for machine in machines)], float))
    linear_axis(axes.yaxis, np.array([low, high, *points], float))
    axes.set_xlabel("prototypes")
    axes.set_ylabel(METRIC_NAMES[trained.metric])
    axes.axvline(curve.size, linestyle=":", linewidth=1, color=GREY, zorder=0)
    note_above(axes, curve.size, f"chosen: {curve.size}")
    label_at_right(axes, labels)
    return axes


def comparison(
    machines: Sequence[Machine] | Mapping[str, Trained],
    ax: "Axes | None" = None,
    *,
    error: str | None = None,
    path: tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]] | None = None,
    path_name: str = "",
    baseline: Machine | None = None,
) -> "Axes":
    """Draw the errors of machines against their numbers of prototypes.

    If errors differ by a factor above 20, their axis is logarithmic. The range of the axis depends
    on the machines only. The baseline is a dashed line if its error is in the range, else a note.

    Args:
        machines: points to draw, at least one. Or a mapping from names to results of `train`, whose
            sizes and cross-validated errors are drawn.
        ax: axes to draw on; by default new axes.
        error: label of the axis of errors; by default the metric of the results of `train`.
        path: numbers of prototypes and errors of one machine at many sizes, drawn as a line.
        path_name: name of the machine of `path`. The line has the colour of this machine.
        baseline: a machine without prototypes, such as a constant.

    Raises:
        ValueError: without machines, for other objects than machines, for results of `train` in
            different metrics, or for points without a label of the axis of errors.
        ImportError: without matplotlib.
    """
    machines, error = _points(machines, error)
    axes: Any = figure(1, 7.5, _height(len(machines)))[1][0] if ax is None else ax
    labels, sizes = [], [max(machine.size, 1) for machine in machines]
    errors = np.array([machine.error for machine in machines], float)
    for i, (machine, colour) in enumerate(zip(machines, shades(len(machines)), strict=True)):
        if path is not None and machine.name == path_name:
            axes.plot(*path, color=colour, linewidth=1)
            sizes += list(path[0])
        # Hollow markers show all points that coincide.
        axes.plot(
            [sizes[i]], [machine.error], marker=MARKERS[i // COLOURS % len(MARKERS)],
            linestyle="none", color=colour, markerfacecolor="none", markeredgewidth=1.6,
        )  # fmt: skip
        labels.append((f"{machine.name}: {machine.size:g}", sizes[i], machine.error, colour))
    log_axis(axes.xaxis, np.array(sizes, float))
    if 0 < WIDE_RANGE * errors.min() < errors.max():
        log_axis(axes.yaxis, errors)
    else:
        linear_axis(axes.yaxis, errors)
    axes.set_xlabel("prototypes")
    axes.set_ylabel(error)
    if baseline is not None:
        _draw_baseline(axes, baseline)
    label_at_right(axes, labels)
    return axes


def compared(
    trained: Trained,
    machines: Sequence[Machine],
    baseline: Machine,
    *,
    error: str,
    path: tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]],
) -> "Figure":
    """Draw `error_curve` and `comparison` side by side, the figure of `jsparse compare`.

    Args:
        trained: result of `train` for a path.
        machines: the points of `comparison`; the machine named `trained.method.title` gives the
            line of `path` its colour.
        baseline: a machine without prototypes, such as a constant.
        error: label of the axis of the machines' errors.
        path: sizes of the path of `trained`, and its error at each size on the rows that gave the
            errors of the machines.

    Raises:
        ImportError: without matplotlib.
    """
    title = trained.method.title
    whole_figure, (left, right) = figure(2, 12.5, _height(len(machines)))
    error_curve(trained, left)
    left.set_title(f"{title}, cross-validated")
    comparison(machines, right, error=error, path=path, path_name=title, baseline=baseline)
    right.set_title("rows held out")
    return whole_figure


def relevance(
    trained: Trained | Model | Relevance,
    ax: "Axes | None" = None,
    *,
    names: Sequence[Any] | None = None,
    most: int = 20,
) -> "Axes":
    """Draw the relevance of each column, with the most relevant at the top.

    Relevance is the inverse of a column's lengthscale, divided by the largest inverse. Columns that
    share one lengthscale have hatched bars. Columns that are switched off have no bars.

    Args:
        trained: a model with one lengthscale for each column, or the result of its `relevance`.
        ax: axes to draw on; by default new axes.
        names: names of the inputs; by default the columns of the table used in training, or x0, x1,
            .. If `trained` is a `Relevance`, its names are drawn.
        most: largest number of columns to draw.

    Raises:
        ValueError: for a kernel without a lengthscale for each column, another number of names, or
            a `most` below 1.
        ImportError: without matplotlib.
    """
    values = trained if isinstance(trained, Relevance) else trained.relevance(names)
    shown = sorted(values, key=lambda name: -values[name])[: whole_number("most", most, 1)]
    axes: Any = figure(1, 6.5, max(2.0, 1.0 + 0.26 * len(shown)))[1][0] if ax is None else ax
    separate, common = shades(2)
    sharing = {name: len(group) for group in values.shared for name in group}
    for name in shown:
        style, note = {"color": separate}, f"{values[name]:.2g}"
        if name in sharing:
            style = {"facecolor": "none", "edgecolor": common, "hatch": "///"}
            note += f", one lengthscale for {sharing[name]} columns"
        if name in values.switched_off:
            note = "switched off"
        axes.barh([name], [values[name]], **style)
        axes.annotate(
            note, (values[name], name), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=LABEL, annotation_clip=False,
        )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    hidden = len(values) - len(shown)
    note = f" ({hidden} less relevant columns not shown)" if hidden else ""
    axes.set_xlabel("relevance" + note)
    return axes


def _points(machines: Any, error: str | None) -> tuple[list[Machine], str]:
    """Return the points of `comparison`, and the label of the axis of errors."""
    names: list[str] = []
    points: list[Any]
    if isinstance(machines, Mapping):
        names, points, kind = list(machines), list(machines.values()), Trained
    elif isinstance(machines, Machine) or not isinstance(machines, Iterable):
        points, kind = [machines], type(None)  # one object in place of several
    else:
        points, kind = list(machines), Machine
    if wrong := [type(point).__name__ for point in points if not isinstance(point, kind)]:
        raise ValueError(
            "machines: expected points jsparse.plotting.Machine(name, size, error), or a "
            f"mapping from names to results of train, got {wrong[0]}"
        )
    if not points:
        raise ValueError("machines: expected at least one, got none")
    if kind is Trained:
        metrics: list[Metric] = sorted({trained.metric for trained in points})
        if len(metrics) > 1:
            raise ValueError(f"machines: expected errors in one metric, got {metrics}")
        error = METRIC_NAMES[metrics[0]] if error is None else error
        named = zip(names, points, strict=True)
        points = [Machine(name, trained.model.size, trained.cv_error) for name, trained in named]
    if error is None:
        raise ValueError("error: expected the label of the axis of errors, got None")
    return points, error


def _height(labels: int) -> float:
    """Return the height in inches for a column of `labels` labels."""
    return max(4.0, 1.4 + 0.22 * labels)


def _draw_baseline(axes: Any, baseline: Machine) -> None:
    """Draw the baseline as a dashed line with a note, or as a note if it is outside the axes."""
    low, high = axes.get_ylim()
    text = f"{baseline.name}: {baseline.error:.3g}"
    if low <= baseline.error <= high:
        axes.axhline(baseline.error, linestyle="--", linewidth=1, color=GREY, zorder=0)
        text = f"dashed: {text}"
    else:
        text += ", above these axes" if baseline.error > high else ", below these axes"
    note_above(axes, axes.get_xlim()[0], text, side="left")
