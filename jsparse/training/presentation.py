"""Displays of a tuned model: a few lines of text, and HTML with the curve of its sizes."""

import html
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._repr import LINE, clipped, few_lines
from .._status import ADVICE, trusted
from .._ticks import error_top, linear_ticks, log_ticks, plain
from ..kernels import Kernel, Mixture, Projected
from ..search.sizes import SizeCurve

CHOSEN = "#D55E00"  # vermillion of Okabe and Ito, legible on white and on black
WIDTH, HEIGHT = 380, 170  # of the curve, in pixels
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 22, 36  # margins


def describe_kernel(kernel: Kernel) -> str:
    """Return the kernel's class and hyper-parameters on one line, or the range of many values."""
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
    """Return HTML with the facts as a table, and beside it the curve of the sizes.

    Colours are `currentColor`, the notebook's text colour, for light and dark themes.

    Args:
        facts: values by name.
        curve: the curve; None for none.
        error: name of the curve's metric, for its axis.
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
    """Return SVG of the error against the size; empty if no error is finite.

    Args:
        curve: the sizes and errors.
        error: name of the metric, for the axis.
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

    def across(size: Any) -> Any:
        """Return the horizontal position of a size in pixels, on a log scale."""
        share = np.log(np.asarray(size) / narrow) / np.log(wide / narrow)
        return np.round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def up(value: Any) -> Any:
        """Return the vertical position of an error in pixels, from the top."""
        share = np.clip((np.asarray(value) - low) / (high - low), 0.0, 1.0)
        return np.round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    upper, lower = _points(across(sizes), up(errors + spread)), up((errors - spread)[::-1])
    x, y = float(across(curve.size)), float(up(curve.errors[curve.chosen]))
    error = html.escape(error)
    return (
        f'<svg role="img" aria-label="{error} against prototypes" '
        f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'fill="none" stroke="none" font-size="11" font-family="sans-serif">'
        + _axes_svg(
            [(float(across(t)), plain(t)) for t in log_ticks(narrow, wide, most=8)],
            [(float(up(t)), plain(t)) for t in linear_ticks(low, high, most=4)],
            error,
        )
        + f'<polygon points="{upper} {_points(across(sizes[::-1]), lower)}" '
        'fill="currentColor" fill-opacity="0.15"/>'
        f'<polyline points="{_points(across(sizes), up(errors))}" '
        'stroke="currentColor" stroke-width="1.5"/>'
        f'<path d="M{x} {HEIGHT - BOTTOM}V{TOP - 4}" stroke="{CHOSEN}" stroke-dasharray="2 3"/>'
        f'<circle cx="{x}" cy="{y}" r="4" fill="{CHOSEN}"/>'
        + _text(min(max(x, LEFT + 30), WIDTH - RIGHT - 30), TOP - 8, f"chosen: {curve.size}")
        + "</svg>"
    )


def _axes_svg(x: list[tuple[float, str]], y: list[tuple[float, str]], error: str) -> str:
    """Return the lines, ticks and titles of both axes.

    `x` and `y` are the ticks of each axis, as pairs of position in pixels and text.
    """
    bottom, middle, halfway = (
        HEIGHT - BOTTOM,
        (LEFT + WIDTH - RIGHT) / 2,
        (TOP + HEIGHT - BOTTOM) / 2,
    )
    lines = [f"M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"]
    lines += [f"M{at} {bottom}v4" for at, _ in x] + [f"M{LEFT} {at}h-4" for at, _ in y]
    texts = [_text(at, bottom + 15, tick) for at, tick in x]
    texts += [_text(LEFT - 7, at + 4, tick, "end") for at, tick in y]
    return (
        f'<path d="{"".join(lines)}" stroke="currentColor" stroke-opacity="0.5"/>'
        f"{''.join(texts)}{_text(middle, HEIGHT - 6, 'prototypes')}"
        f'<text transform="translate(11 {halfway}) rotate(-90)" text-anchor="middle" '
        f'fill="currentColor">{error}</text>'
    )


def _text(x: int | float, y: int | float, text: str, anchor: str = "middle") -> str:
    """Return an SVG text element at a position in pixels."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor">{text}</text>'


def _points(x: np.ndarray, y: np.ndarray) -> str:
    """Return positions as the `points` attribute of SVG lines."""
    return " ".join(f"{a},{b}" for a, b in zip(x, y, strict=True))


def in_words(array: np.ndarray) -> str:
    """Return the numbers of an array as text, or the range of more than 6."""
    if array.size <= 6:
        return ", ".join(f"{value:.4g}" for value in array.reshape(-1).tolist())
    return f"{array.size} values from {array.min():.4g} to {array.max():.4g}"


def rounded(value: float, digits: int) -> str:
    """Return a number as text, with `digits` significant digits."""
    return plain(float(f"{value:.{digits}g}"))


def status_in_words(statuses: dict[str, int]) -> str:
    """Return the advice for the fit's stop code, and for every other code that is not trusted.

    Args:
        statuses: stop codes by the name of the part of a run, with one for "fit".
    """
    clauses = {name: ADVICE[code].partition(";")[0].rstrip(".") for name, code in statuses.items()}
    doubtful = [name for name, code in statuses.items() if name != "fit" and not trusted(code)]
    return "; ".join([clauses["fit"], *(f"{name}: {clauses[name]}" for name in doubtful)])
