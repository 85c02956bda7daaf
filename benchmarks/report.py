"""The result of a benchmark: timing, table and files."""

import json
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import sklearn

import jsparse


class Report(NamedTuple):
    """A table, its conclusions, and the origin of its numbers."""

    title: str
    columns: list[str]
    rows: list[list[Any]]
    notes: list[str]
    data: Any  # the numbers behind the table, for the JSON file


def machine_kind() -> str:
    """Return a short name for this kind of machine: `cpu-2core`, or the accelerator's name."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return f"cpu-{os.cpu_count()}core"
    return re.sub(r"[^a-z0-9]+", "-", device.device_kind.lower()).strip("-")


def measured_on() -> dict[str, Any]:
    """Return the versions of the libraries, the device and the processor."""
    return {
        "jsparse": jsparse.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def timed(call: Callable[[], Any], repeats: int = 5) -> tuple[float, float]:
    """Return the median seconds of a warm call, and the excess of the first call (compilation)."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - start)
    warm = float(np.median(seconds[1:]))
    return warm, max(0.0, seconds[0] - warm)


def alternated(calls: dict[str, Callable[[], Any]], repeats: int = 5) -> dict[str, float]:
    """Return the median seconds of each warm call; in turn, so that drift affects all calls."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def mean_sd(values: list[float], digits: int = 2) -> str:
    """Return the text `mean (standard deviation)`, as the papers print it."""
    sd = np.std(values, ddof=1) if len(values) > 1 else float("nan")
    return f"{np.mean(values):.{digits}f} ({sd:.{digits}f})"


def over_draws(values: np.ndarray) -> dict[str, list[float]]:
    """Return mean, quartiles and maximum over draws of curves, shape `draws k`."""
    low, middle, high = np.nanpercentile(values, (25, 50, 75), axis=0)
    curves = {"mean": np.nanmean(values, axis=0), "lower quartile": low, "median": middle}
    curves |= {"upper quartile": high, "most": np.nanmax(values, axis=0)}
    return {name: curve.tolist() for name, curve in curves.items()}


def saved_data(out: Path, name: str, *, quick: bool) -> dict[str, Any]:
    """Return the data of an earlier run on this machine with equal versions, or an empty dict."""
    file = out / f"{name}.json"
    content = json.loads(file.read_text()) if file.is_file() else {}
    same = content.get("quick") == quick and content.get("measured_on") == measured_on()
    return content["data"] if same else {}


def write(out: Path, name: str, report: Report, *, quick: bool) -> None:
    """Print the table, and `save` it."""
    print(save(out, name, report, quick=quick), flush=True)


def save(out: Path, name: str, report: Report, *, quick: bool) -> str:
    """Write `NAME.md` and `NAME.json` into a folder, and return the text of `NAME.md`."""
    where = measured_on()
    lines = [f"# {report.title}", ""]
    lines += ["| " + " | ".join(report.columns) + " |", "|" + "---|" * len(report.columns)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in report.rows]
    lines += ["", *[f"- {note}" for note in report.notes]]
    lines += ["", "Measured on: " + ", ".join(f"{k} {v}" for k, v in where.items()) + "."]
    if quick:
        lines += ["", "A quick run: fewer repetitions than the benchmark states."]
    text = "\n".join(lines) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.md").write_text(text)
    content = {"title": report.title, "quick": quick, "measured_on": where, "data": report.data}
    (out / f"{name}.json").write_text(_as_json(content))
    return text


def _as_json(content: Any) -> str:
    """Return JSON with six digits of every number, and with each innermost list in one line."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: short(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [short(item) for item in value]
        if isinstance(value, float | np.floating):
            return float(f"{value:.6g}")
        return value

    text = json.dumps(short(content), indent=1, default=float)
    return re.sub(r"\[[^][{}]*\]", lambda match: " ".join(match[0].split()), text) + "\n"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
