"""Ctrl-C: at any moment one line and an exit code, and no result is lost."""

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
    """What is left when the rest is interrupted."""

    code: int  # the exit code
    where: str  # in words


class Interrupts:
    """Within it an interrupt is noted, also where Python loses the exception it raises.

    An exception raised within a callback of the compiler's, or of the garbage collector's, is
    swallowed there or turned into another. Before `begin` none is raised: modules that are imported
    by halves cannot be imported again. A process of our own ends there and then instead.

    Args:
        own: whether the process is ours, and ends after this.
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
        # Who starts a process in the background may have its interrupts ignored.
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            self._before = signal.signal(signal.SIGINT, self._note)
        if self.own:
            sys.unraisablehook = self._unraisable
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        if self._before is not None:
            # Python takes a while to close, and would say where it was interrupted in that.
            signal.signal(signal.SIGINT, signal.SIG_IGN if self.own else self._before)

    def begin(self) -> None:
        """From here on an interrupt raises KeyboardInterrupt."""
        self._starting, self._raising = False, True
        self.check()

    def end(self) -> None:
        """From here on none does."""
        self._raising = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was an interrupt, and nothing came of it yet."""
        if self.pressed:
            raise KeyboardInterrupt

    def settled(self) -> None:
        """Note that an interrupt has been handled: the search has kept its best result."""
        self.pressed = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Interrupts wait until the end of the block, which is short."""
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
