"""Checkpoints: the state of a run in a file, from which the same call resumes after a kill."""

import contextlib
import dataclasses
import functools
import os
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np

from .. import __version__
from .._agreement import described
from .._arguments import real
from .._files import OutputError, PathLike, check_writable, load_state, named, save_state
from .._repr import clipped, short_repr

P = ParamSpec("P")
R = TypeVar("R")
_KIND = "checkpoint 1"
_MARK = "checkpoint"
_SHARE = 20  # writing takes at most one part in so many of the time
_SHOWN = 5  # number of differences that an error lists
CHECKPOINT_SECONDS = 30.0


class State(NamedTuple):
    """A part of the state of a run."""

    arrays: dict[str, Any]
    document: dict[str, Any]  # values that JSON can hold

    __repr__ = short_repr


class Checkpoint:
    """The file of a call of `train`, whose states it holds by name.

    The file is written to a neighbour and renamed, so that a kill leaves the last complete file.
    A run reads a state of an earlier call by `known` and keeps a newer one by `keep`; `tick` writes
    the file if it is time. If a call makes several runs, as for a budget, each has a `RunState`.
    As a context, it removes the file at the end, unless a search was stopped before its end.

    Args:
        path: the file; None for a checkpoint that is never written, and knows nothing.
        seconds: time between two files.

    Raises:
        OutputError: if no file can be written at `path`.
        ModelFileError: if the file there is no checkpoint, or is damaged.
    """

    def __init__(self, path: PathLike | None, seconds: float = CHECKPOINT_SECONDS) -> None:
        self.path, self.seconds = path, real("checkpoint_seconds", seconds, 0.0)
        self.complete = True  # whether no search was stopped before its end
        self._states: dict[str, State | Callable[[], State]] = {}
        self._runs = 0
        self._unwritten = False  # whether a state was kept since the last file
        self._due = time.monotonic() + self.seconds
        if path is None:
            return
        check_writable(path, _MARK)  # also removes what a kill left of a file
        if os.path.exists(path):
            arrays, document = load_state(path, kind=_KIND)
            for name, part in document.items():
                own = {
                    k.removeprefix(f"{name}/"): a
                    for k, a in arrays.items()
                    if k.startswith(f"{name}/")
                }
                self._states[name] = State(own, part)

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Remove the file. If the block failed or a search was stopped, write the state instead."""
        if error is not None:
            with contextlib.suppress(Exception):  # the error of the block is the one to report
                self.close()
        elif self.complete:
            self.remove()
        else:
            self.close()

    def next_run(self) -> "RunState":
        """Return the states of the next run of the call."""
        self._runs += 1
        return RunState(self, f"run {self._runs}: ")

    def known(self, name: str) -> State | None:
        """Return a state of an earlier call; None if it is not known."""
        state = self._states.get(name)
        return state if isinstance(state, State) else None

    def keep(self, name: str, state: State | Callable[[], State] | None) -> None:
        """Keep a state, or a function that returns it when the file is written; None drops it."""
        if self.path is None:
            return
        self._unwritten = True
        self.describe(name, state)

    def describe(self, name: str, state: State | Callable[[], State] | None) -> None:
        """As `keep`, of a state that alone is not worth a file, such as the arguments."""
        if state is None:
            self._states.pop(name, None)
        else:
            self._states[name] = state

    def tick(self, **unfinished: Callable[[], State]) -> None:
        """Write the file if the time since the last file is over.

        Args:
            unfinished: functions that return states which hold only now, such as sums of a part of
                the rows, by name.
        """
        if self.path is not None and time.monotonic() >= self._due:
            self._write(self._states | unfinished)

    def close(self) -> None:
        """Write the file if it lacks a state. It keeps its unfinished states if it lacks none."""
        if self.path is not None and self._unwritten:
            self._write(self._states)

    def _write(self, states_by_name: Mapping[str, State | Callable[[], State]]) -> None:
        """Write the file. If that fails, warn; the last file is then still there."""
        begin = time.monotonic()
        states = {name: s() if callable(s) else s for name, s in states_by_name.items()}
        arrays = {f"{name}/{k}": a for name, s in states.items() for k, a in s.arrays.items()}
        try:
            documents = {name: dict(state.document) for name, state in states.items()}
            assert self.path is not None
            save_state(self.path, arrays, documents, kind=_KIND, mark=_MARK)
            self._unwritten = False
        except OutputError as error:
            warnings.warn(
                f"checkpoint: {error}; the run goes on, and a kill now loses all work since the "
                "last checkpoint",
                RuntimeWarning,
                stacklevel=2,
            )
        end = time.monotonic()
        self._due = end + max(self.seconds, _SHARE * (end - begin))

    def remove(self) -> None:
        """Remove the file."""
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.path)


@dataclasses.dataclass(frozen=True)
class RunState:
    """The states of one run of a call, which a `Checkpoint` holds."""

    checkpoint: Checkpoint
    prefix: str

    __repr__ = short_repr

    def known(self, name: str) -> State | None:
        """See `Checkpoint.known`."""
        return self.checkpoint.known(self.prefix + name)

    def keep(self, name: str, state: State | Callable[[], State] | None) -> None:
        """See `Checkpoint.keep`."""
        self.checkpoint.keep(self.prefix + name, state)

    def tick(self, **unfinished: Callable[[], State]) -> None:
        """See `Checkpoint.tick`."""
        self.checkpoint.tick(**{self.prefix + name: state for name, state in unfinished.items()})

    def same(self, name: str, values: Mapping[str, Any]) -> None:
        """Raise a `ValueError` if arguments differ from those of the call that wrote the file.

        Args:
            name: the name of the group of arguments.
            values: the arguments by name; of arrays checksums are compared.
        """
        if self.checkpoint.path is None:
            return
        values = {**values, **environment()} if name == "settings" else values
        entries = {k: v for what, value in values.items() for k, v in described(what, value)}
        known = self.known(name)
        if known is not None and known.document != entries:
            written, names = known.document, dict.fromkeys([*known.document, *entries])
            lines = [
                f"{what}: {clipped(written.get(what, 'none'), 100)} in the file, "
                f"{clipped(entries.get(what, 'none'), 100)} in this call"
                for what in names
                if written.get(what) != entries.get(what)
            ]
            more = f"; and {len(lines) - _SHOWN} others" if len(lines) > _SHOWN else ""
            raise ValueError(
                f"checkpoint: {named(self.checkpoint.path)}: expected the checkpoint of a call "
                f"with the same arguments and data, got {'; '.join(lines[:_SHOWN])}{more}. Remove "
                "the file to start anew, or state another path"
            )
        if known is None:
            self.checkpoint.describe(self.prefix + name, State({}, entries))


NO_CHECKPOINT = Checkpoint(None).next_run()


def environment() -> dict[str, Any]:
    """Return the versions and devices on which the bits of a result depend."""
    devices = jax.local_devices()
    return {
        "version of jsparse": __version__,
        "version of JAX": jax.__version__,
        "devices": f"{len(devices)} of kind {devices[0].device_kind} ({devices[0].platform})",
        "widest dtype": jax.dtypes.canonicalize_dtype(np.float64),
    }


def resumable(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function with `resources` open their checkpoint, and remove its file at the end.

    A function that gets an open checkpoint, from another resumable function, leaves that open.
    """

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        resources: Any = named.get("resources")
        path = getattr(resources, "checkpoint", None)
        if path is None or isinstance(path, Checkpoint):
            return function(*arguments, **named)
        with Checkpoint(path, resources.checkpoint_seconds) as checkpoint:
            named["resources"] = dataclasses.replace(resources, checkpoint=checkpoint)
            return function(*arguments, **named)

    return call


def run_state(resources: Any) -> RunState:
    """Return the states of the next run of a call with such resources, see `resumable`."""
    checkpoint = getattr(resources, "checkpoint", None)
    return checkpoint.next_run() if isinstance(checkpoint, Checkpoint) else NO_CHECKPOINT
