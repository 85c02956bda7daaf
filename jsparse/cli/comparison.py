"""The table of `jsparse compare`: a row for each method, and notes."""

from typing import NamedTuple

from .. import _status

SVM = "SVM (scikit-learn)"


class Line(NamedTuple):
    """The row of one method in the table."""

    name: str
    error: float
    prototypes: int
    fit_seconds: float
    predict_seconds: float  # for a thousand rows
    status: int = _status.CONVERGED
    stopped: str = "finished"  # why the search ended, see `Tuning.stopped`
    over_limit: bool = False  # whether there are more prototypes than --max-prototypes

    @property
    def trusted(self) -> bool:
        """False if precision was lost, or if the solver reached its iteration limit."""
        return _status.trusted(self.status)

    @property
    def marks(self) -> str:
        """The marks after the row.

        " +" if tuning ended early, " >" if there are more prototypes than the limit, " *" if the
        fit is not trusted.
        """
        marks = (
            (" +", self.stopped != "finished"),
            (" >", self.over_limit),
            (" *", not self.trusted),
        )
        return "".join(mark for mark, applies in marks if applies)


class LeftOut(NamedTuple):
    """A method without a row in the table."""

    name: str
    why: str
    error: Exception | None = None  # the error that training raised

    @property
    def failed(self) -> bool:
        """True if the computation failed. A ValueError means instead that the rows do not suit."""
        return not isinstance(self.error, ValueError | None)


class Comparison(NamedTuple):
    """The lines of the table of methods, and the methods left out of the table."""

    lines: list[Line]
    left_out: list[LeftOut]

    @property
    def trusted(self) -> bool:
        """Whether every line can be trusted and no method failed; unsuited methods do not count."""
        lines = all(line.trusted for line in self.lines)
        return lines and not any(method.failed for method in self.left_out)


def print_header(train: int, test: int, metric: str) -> None:
    """Print the numbers of rows, the metric of the errors, and the names of the columns."""
    print(f"{train} rows to train on, {test} to test on; error: {metric}")
    print(
        f"{'method':<24}{'error':>10}{'prototypes':>12}{'fit s':>10}{'predict ms per 1000':>20}",
        flush=True,
    )


def print_line(line: Line) -> None:
    """Print a row of the table, and flush it, so that a pipe receives it immediately."""
    print(
        f"{line.name:<24}{line.error:>10.4g}{line.prototypes:>12}{line.fit_seconds:>10.2f}"
        f"{1e3 * line.predict_seconds:>20.2f}{line.marks}",
        flush=True,
    )


def print_notes(result: Comparison, max_seconds: float, peer: str) -> None:
    """Print the meaning of the marks, the methods without a row, and the kernel of the SVM.

    `max_seconds` is the time limit of tuning, and `peer` describes the kernel of the SVM.
    """
    for status in sorted({line.status for line in result.lines if not line.trusted}):
        print(f"*: {_status.ADVICE[status]}")
    early = {line.stopped for line in result.lines}
    if "seconds" in early:
        print(f"+: tuning stopped after {max_seconds:g} s (--max-seconds), best result so far")
    if "interrupted" in early:
        print("+: tuning was interrupted, best result so far")
    if any(line.over_limit for line in result.lines):
        print(">: more prototypes than --max-prototypes: no limit, or one for each class")
    for method in result.left_out:
        print(f"without {method.name}: {'failed: ' if method.failed else ''}{method.why}")
    print("fit: with tuning and compilation")
    if any(line.name == SVM for line in result.lines):
        print(f"{SVM}: with {peer}, C by at most five folds; fit: of the search alone")
