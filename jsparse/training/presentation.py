"""Displays of a tuned model: a few lines of text, and HTML with the curve over its sizes."""

import html
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._repr import LINE, clipped, few_lines
from .._status import ADVICE, COMPLETED, NAMES, trusted
from .._ticks import error_top, linear_ticks, log_ticks, plain
from ..kernels import Kernel, Mixture, Projected
from ..search.sizes import SizeCurve

CHOSEN_COLOUR = "#D55E00"  # vermillion of Okabe and Ito, legible on white and on black
WIDTH, HEIGHT = 380, 170  # of the curve, in pixels
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 22, 36  # margins


def describe_kernel(kernel: Kernel) -> str:
    """Return the kernel's class and hyper-parameters on one line.

    If a hyper-parameter has more than 6 values, the line states their number and range.
    """
    if isinstance(kernel, Mixture):
        return ", ".join(describe_kernel(part) for part in kernel.kernels)
    if isinstance(kernel, Projected):
        return f"{describe_kernel(kernel.kernel)} of {len(kernel.matrix)} directions"
    leaves = jax.tree.leaves(eqx.filter(kernel, eqx.is_inexact_array))
    return f"{type(kernel).__name__}({', '.join(in_words(np.asarray(leaf)) for leaf in leaves)})"


def as_text(title: str, facts: Mapping[str, str]) -> str:
    """Return a title, and below it one line for each fact: its name and its value."""
    return few_lines([title, *(f"  {name:<12}{value}" for name, value in facts.items())])


def as_html(facts: Mapping[str, str], curve: SizeCurve | None, error: str) -> str:
    """Return HTML with a table of the facts, and beside it the curve over the sizes, if any.

    Lines and text have the colour `currentColor`, so that they suit light and dark themes. `error`
    is the title of the error axis: the name of the curve's metric.
    """
    cell = "padding:1px 10px 1px 0;text-align:left;vertical-align:top;background:none"
    rows = "".join(
        f'<tr style="background:none"><th style="{cell};font-weight:600">{html.escape(name)}</th>'
        f'<td style="{cell}">{html.escape(clipped(value, 2 * LINE))}</td></tr>'
        for name, value in facts.items()
    )
    table = f'<table style="border:none;margin:0;font-size:13px"><tbody>{rows}</tbody></table>'
    svg = "" if curve is None else size_curve_svg(curve, error)
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:16px;align-items:flex-start">'
        f"{table}{svg}</div>"
    )


def size_curve_svg(curve: SizeCurve, error: str) -> str:
    """Return an SVG of the error against the size; an empty string if no error is finite.

    `error` is the title of the error axis: the name of the curve's metric.
    """
    finite = np.isfinite(curve.errors)
    if not finite.any():
        return ""
    sizes, errors = np.asarray(curve.sizes)[finite], np.asarray(curve.errors, float)[finite]
    spread = np.nan_to_num(np.asarray(curve.standard_errors, float)[finite], posinf=0.0)
    low, high = float(np.min(errors - spread)), error_top(errors, spread)
    # A constant curve has no range: give it margins, so that it is drawn in the middle.
    margin = 0.05 * (high - low) or 0.1 * abs(low) or 1.0
    low, high = low - margin, high + margin
    narrow, wide = float(sizes[0] / 1.1), float(sizes[-1] * 1.1)

    def x_of(size: Any) -> Any:
        """Return the horizontal position of a size in pixels, on a log scale."""
        fraction = np.log(np.asarray(size) / narrow) / np.log(wide / narrow)
        return np.round(LEFT + fraction * (WIDTH - LEFT - RIGHT), 1)

    def y_of(value: Any) -> Any:
        """Return the vertical position of an error in pixels, from the top."""
        fraction = np.clip((np.asarray(value) - low) / (high - low), 0.0, 1.0)
        return np.round(HEIGHT - BOTTOM - fraction * (HEIGHT - TOP - BOTTOM), 1)

    upper, lower = _points(x_of(sizes), y_of(errors + spread)), y_of((errors - spread)[::-1])
    x, y = float(x_of(curve.size)), float(y_of(curve.errors[curve.chosen]))
    error = html.escape(error)
    return (
        f'<svg role="img" aria-label="{error} against prototypes" '
        f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'fill="none" stroke="none" font-size="11" font-family="sans-serif">'
        + _axes_svg(
            [(float(x_of(t)), plain(t)) for t in log_ticks(narrow, wide, most=8)],
            [(float(y_of(t)), plain(t)) for t in linear_ticks(low, high, most=4)],
            error,
        )
        + f'<polygon points="{upper} {_points(x_of(sizes[::-1]), lower)}" '
        'fill="currentColor" fill-opacity="0.15"/>'
        f'<polyline points="{_points(x_of(sizes), y_of(errors))}" '
        'stroke="currentColor" stroke-width="1.5"/>'
        f'<path d="M{x} {HEIGHT - BOTTOM}V{TOP - 4}" stroke="{CHOSEN_COLOUR}" '
        'stroke-dasharray="2 3"/>'
        f'<circle cx="{x}" cy="{y}" r="4" fill="{CHOSEN_COLOUR}"/>'
        + _text_svg(min(max(x, LEFT + 30), WIDTH - RIGHT - 30), TOP - 8, f"chosen: {curve.size}")
        + "</svg>"
    )


def _axes_svg(x: list[tuple[float, str]], y: list[tuple[float, str]], error: str) -> str:
    """Return the lines, ticks and titles of both axes as SVG.

    `x` and `y` are the ticks of each axis, as pairs of position in pixels and text. `error` is the
    title of the vertical axis.
    """
    bottom = HEIGHT - BOTTOM
    middle, halfway = (LEFT + WIDTH - RIGHT) / 2, (TOP + bottom) / 2
    lines = [f"M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"]
    lines += [f"M{at} {bottom}v4" for at, _ in x] + [f"M{LEFT} {at}h-4" for at, _ in y]
    texts = [_text_svg(at, bottom + 15, tick) for at, tick in x]
    texts += [_text_svg(LEFT - 7, at + 4, tick, "end") for at, tick in y]
    return (
        f'<path d="{"".join(lines)}" stroke="currentColor" stroke-opacity="0.5"/>'
        f"{''.join(texts)}{_text_svg(middle, HEIGHT - 6, 'prototypes')}"
        f'<text transform="translate(11 {halfway}) rotate(-90)" text-anchor="middle" '
        f'fill="currentColor">{error}</text>'
    )


def _text_svg(x: int | float, y: int | float, text: str, anchor: str = "middle") -> str:
    """Return an SVG text element at a position in pixels."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor">{text}</text>'


def _points(x: np.ndarray, y: np.ndarray) -> str:
    """Return positions in pixels as the `points` attribute of SVG lines."""
    return " ".join(f"{a},{b}" for a, b in zip(x, y, strict=True))


def in_words(array: np.ndarray) -> str:
    """Return the numbers of an array as text; of more than 6 numbers, their count and range."""
    if array.size <= 6:
        return ", ".join(f"{value:.4g}" for value in array.reshape(-1).tolist())
    return f"{array.size} values from {array.min():.4g} to {array.max():.4g}"


def rounded(value: float, digits: int) -> str:
    """Return a number as text, with `digits` significant digits."""
    return plain(float(f"{value:.{digits}g}"))


def status_in_words(statuses: dict[str, int]) -> str:
    """Return in words the stop code of the fit, and other codes whose results cannot be trusted.

    `statuses` has the stop code by part of a run, of which "fit" is one.
    """
    clauses = {name: ADVICE[code].partition(";")[0].rstrip(".") for name, code in statuses.items()}
    # The name of a bad code comes first, as a display may cut the text.
    for name, code in statuses.items():
        if code > COMPLETED:
            clauses[name] = f"{NAMES[code]}: {clauses[name]}"
    doubtful = [name for name, code in statuses.items() if name != "fit" and not trusted(code)]
    return "; ".join([clauses["fit"], *(f"{name}: {clauses[name]}" for name in doubtful)])
