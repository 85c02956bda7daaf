"""Handling of Ctrl-C: at any moment it gives one line and an exit code, and loses no result."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

INTERRUPTED = 130
MESSAGE = "jsparse: interrupted before there was a result"


class Result(NamedTuple):
    """The result that remains after an interrupt."""

    code: int  # the exit code
    where: str  # the place of the result, in words


class Interrupts:
    """A context in which interrupts are recorded, even if Python loses the exception.

    The compiler and the garbage collector swallow or replace an exception that is raised within
    their callbacks. Before `begin`, an interrupt raises no exception, because a half-imported
    module cannot be imported again: if `owns_process`, it ends the process, else it is only
    recorded.

    Args:
        owns_process: whether the process runs nothing but this command.
    """

    def __init__(self, owns_process: bool) -> None:
        self._owns_process = owns_process
        self.pressed = False
        self.result: Result | None = None
        self._raising = False
        self._starting = True
        self._previous_handler: Any = None
        self._previous_hook = sys.unraisablehook

    def __enter__(self) -> "Interrupts":
        # A process started in the background may ignore interrupts.
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            self._previous_handler = signal.signal(signal.SIGINT, self._on_interrupt)
        if self._owns_process:
            sys.unraisablehook = self._on_unraisable
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        if self._previous_handler is not None:
            # Python takes a while to exit; an interrupt during the exit would print a traceback.
            signal.signal(
                signal.SIGINT, signal.SIG_IGN if self._owns_process else self._previous_handler
            )

    def begin(self) -> None:
        """Raise KeyboardInterrupt at interrupts from now on, and at a recorded one immediately."""
        self._starting, self._raising = False, True
        self.check()

    def end(self) -> None:
        """Only record interrupts from now on."""
        self._raising = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if an interrupt was recorded and not yet handled."""
        if self.pressed:
            raise KeyboardInterrupt

    def mark_handled(self) -> None:
        """Forget a recorded interrupt, because the search has kept its best result."""
        self.pressed = False

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Delay interrupts until the end of the block, which should be short."""
        self._raising = False
        try:
            yield
        finally:
            self._raising = True
        self.check()

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        if self._starting and self._owns_process:
            os.write(2, f"{MESSAGE}\n".encode())
            os._exit(INTERRUPTED)
        if self._raising:
            raise KeyboardInterrupt

    def _on_unraisable(self, unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._previous_hook(unraisable)
