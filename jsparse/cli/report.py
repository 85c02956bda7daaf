"""The output of the command line: a progress bar, and a short report at the end."""

import dataclasses
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import jax
import numpy as np
from jax.sharding import Mesh

from .. import _status
from ..machines.method import METRIC_NAMES
from ..predictor.schema import Schema
from ..search.run import Progress as Callback
from ..training.presentation import describe_kernel
from ..training.presets import ADVICE
from ..training.trained import PHASES, Trained
from ..validation.losses import pinball

INDENT = 16  # columns of the names in the report
SILENCE = 10.0  # seconds between progress lines without a terminal


def rate_limiter() -> Callable[[], bool]:
    """Return a function that returns True at most once in `SILENCE` seconds, starting now."""
    last = time.perf_counter()

    def is_due() -> bool:
        nonlocal last
        now = time.perf_counter()
        if now - last < SILENCE:
            return False
        last = now
        return True

    return is_due


def note(text: str) -> None:
    """Print a line on standard error at once."""
    print(f"jsparse: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress(*, quiet: bool, method: str | None = None) -> Iterator[Callback | None]:
    """Yield a callback that shows the progress of a search on standard error.

    On a terminal it shows a bar; otherwise it prints a line at most every `SILENCE` seconds.

    If `quiet`, show nothing and yield None. `method` is the name of the method, if it is one of
    several; without a terminal it is printed at once.
    """
    if quiet:
        yield None
        return
    try:
        from rich import progress as bars
        from rich.console import Console
        from rich.text import Text
    except ImportError as error:
        raise ImportError("the progress bar needs rich: pip install 'jsparse[cli]'") from error
    console = Console(stderr=True)
    if not console.is_terminal:
        note(f"training {method or ''}".rstrip())  # the first evaluation may be minutes away
        yield _line_printer(method or "tuning")
        return
    # In a narrow terminal the name is cut and the bar is short, so that the numbers stay whole.
    name = Text(method or "tuning", no_wrap=True, overflow="ellipsis")
    columns = (
        bars.RenderableColumn(name),
        bars.BarColumn(bar_width=min(40, console.width // 8)),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[now]}"),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=console, transient=True) as bar:
        # The first evaluation is mostly compilation.
        task = bar.add_task("tuning", total=None, now="compiling")

        def callback(completed: int, planned: int, best: float) -> None:
            now = f"CV score {best:.4g}"
            bar.update(task, completed=completed, total=max(planned, completed), now=now)

        yield callback


def _line_printer(name: str) -> Callback:
    """Return a callback that prints progress as lines, which begin with `name`."""
    begin, is_due = time.perf_counter(), rate_limiter()

    def callback(completed: int, planned: int, best: float) -> None:
        if is_due():
            seconds = time.perf_counter() - begin
            so_far = f"{completed} of {planned} evaluations, best CV score {best:.4g}"
            note(f"{name}: {so_far}, {seconds:.0f} s")

    return callback


def line(name: str, value: object) -> None:
    """Print a name and its value; in a terminal, long values continue below their first word."""
    text = f"{name:<{INDENT}}{value}"
    if sys.stdout is not None and sys.stdout.isatty():  # other programs get one line
        width = max(shutil.get_terminal_size().columns, 2 * INDENT)
        text = textwrap.fill(
            str(value), width, initial_indent=f"{name:<{INDENT}}", subsequent_indent=" " * INDENT,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    print(text)


def training(
    trained: Trained, source: str, d: int, mesh: Mesh | None, columns: Schema | None = None
) -> None:
    """Print data, devices, prototypes, tuned parameters, error, rank and time.

    `source` names the data, `d` is its number of columns, and `columns` names them.
    """
    device, count = jax.devices()[0], 1 if mesh is None else mesh.size
    kind = f"{device.platform} ({device.device_kind}){f' x {count}' if count > 1 else ''}"
    line("data", f"{source}, {trained.n_rows} rows x {d} columns")
    line("device", f"{kind}, {trained.expansion.prototypes.dtype}")
    line("method", trained.method.title)
    if trained.preset is not None:
        line("settings", f"{trained.preset}: {ADVICE[trained.preset]}")
    out_of = f" of {trained.n_points} candidates" if trained.method.several_sizes else ""
    if trained.costs is not None:
        line("costs", trained.costs_in_words)
    line("prototypes", f"{len(trained.expansion.prototypes)}{out_of}")
    if trained.curve is not None:
        for words in trained.curve.lines():
            line("", words)
    line("kernel", describe_kernel(trained.kernel))
    _print_relevance(trained, columns)
    if trained.method.has_C:
        line("C", np.array2string(np.asarray(trained.C), precision=4, threshold=8))
    if trained.classes is not None and trained.code is not None:
        line("classes", f"{len(trained.classes)}, by {trained.code.matrix.shape[1]} problems")
    validated = "CV error" if len(trained.folds.index) > 1 else "hold-out error"
    spread = f"standard error {trained.standard_error:.2g}"
    line(validated, f"{trained.cv_error:.4g} ({METRIC_NAMES[trained.metric]}; {spread})")
    if trained.criterion != trained.metric:
        line("", f"tuned by {METRIC_NAMES[trained.criterion]}: {trained.tuning.score:.4g}")
    if "effective_rank" in trained.fit.info:
        line("effective rank", int(trained.fit.info["effective_rank"]))
    line("evaluations", f"{len(trained.tuning.history)} ({trained.tuning.stopped})")
    _print_status(trained.statuses)
    _print_seconds(trained.seconds)


def _print_relevance(trained: Trained, columns: Schema | None) -> None:
    """Print the relevance of the columns, if the kernel has more than one lengthscale."""
    try:
        relevance = dataclasses.replace(trained.model, columns=columns).relevance()
    except ValueError:  # one lengthscale for all, or none, as the line above says
        return
    for i, words in enumerate(relevance.lines()):
        line("" if i else "relevance", words)


def _print_status(statuses: dict[str, int]) -> None:
    """Print how the fit ended, with advice, and every other computation that is not trusted."""
    line("status", _status.ADVICE[statuses["fit"]])
    for what, status in statuses.items():
        if what != "fit" and not _status.trusted(status):
            line("", f"{what}: {_status.ADVICE[status]}")


def _print_seconds(seconds: dict[str, float]) -> None:
    total = seconds["total"]
    compiling = min(seconds["compile"], total)
    spent = ", ".join(f"{name} {seconds[name]:.2f}" for name in PHASES if name in seconds)
    line("seconds", f"{total:.2f}: {spent}; compile {compiling:.2f}, run {total - compiling:.2f}")


def test_error(trained: Trained, truth: np.ndarray, predicted: np.ndarray) -> None:
    """Print the error of the predictions for held-out rows."""
    name, error = error_of(trained.classes, truth, predicted, trained.model.quantiles)
    line("test error", f"{error:.4g} ({name}, {len(truth)} held-out rows)")


def error_of(
    classes: object, truth: np.ndarray, predicted: np.ndarray, quantiles: Sequence[float] = ()
) -> tuple[str, float]:
    """Return name and value of the error: misclassification, mean squared error or pinball loss."""
    if quantiles:
        columns = predicted.reshape(len(predicted), -1)
        losses = pinball(np.asarray(truth)[:, None], columns, np.asarray(quantiles), np)
        return METRIC_NAMES["pinball"], float(np.mean(losses))
    if classes is not None:
        return METRIC_NAMES["misclassification"], float(np.mean(np.asarray(truth) != predicted))
    return METRIC_NAMES["mse"], float(np.mean(np.square(np.asarray(truth) - predicted)))
