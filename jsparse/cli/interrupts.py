"""Handling of Ctrl-C: one line and an exit code at any moment, without losing a result."""

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
    where: str  # in words


class Interrupts:
    """A context in which interrupts are recorded, even if Python loses the exception.

    An exception raised within a callback of the compiler or the garbage collector is swallowed or
    replaced there. Before `begin` no exception is raised, because a half-imported module cannot be
    imported again; a process of our own ends immediately instead.

    Args:
        own: whether the process is ours and ends with the command.
    """

    def __init__(self, own: bool) -> None:
        self.own = own
        self.pressed = False
        self.result: Result | None = None
        self._raising = False
        self._starting = True
        self._before: Any = None
        self._hook = sys.unraisablehook

    def __enter__(self) -> "Interrupts":
        # A process started in the background may ignore interrupts.
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            self._before = signal.signal(signal.SIGINT, self._note)
        if self.own:
            sys.unraisablehook = self._unraisable
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        if self._before is not None:
            # Python takes a while to close, and would print a traceback if interrupted then.
            signal.signal(signal.SIGINT, signal.SIG_IGN if self.own else self._before)

    def begin(self) -> None:
        """Let interrupts raise KeyboardInterrupt from now on."""
        self._starting, self._raising = False, True
        self.check()

    def end(self) -> None:
        """Let interrupts raise nothing from now on."""
        self._raising = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if an interrupt was recorded and not yet handled."""
        if self.pressed:
            raise KeyboardInterrupt

    def settled(self) -> None:
        """Note that an interrupt has been handled: the search has kept its best result."""
        self.pressed = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay interrupts until the end of the block, which is short."""
        self._raising = False
        yield
        self._raising = True
        self.check()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        if self._starting and self.own:
            os.write(2, f"{MESSAGE}\n".encode())
            os._exit(INTERRUPTED)
        if self._raising:
            raise KeyboardInterrupt

    def _unraisable(self, unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._hook(unraisable)
