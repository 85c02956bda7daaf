"""Checkpoints: the state of a run in a file, from which the same call resumes after a kill."""

import contextlib
import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from .. import __version__
from .._agreement import described
from .._arguments import real
from .._files import OutputError, PathLike, check_writable, load_state, named, save_state
from .._mesh import gather_texts, processes_of, spans_processes, sum_over_processes
from .._repr import clipped, short_repr
from ..predictor.checks import warn_caller

P = ParamSpec("P")
R = TypeVar("R")
_KIND = "checkpoint 1"
_MARK = "checkpoint"
_DOCUMENTS = "documents"
_SHARE = 20  # writing takes at most 1 / 20 of the time
_SHOWN = 5  # number of differences that an error lists
CHECKPOINT_SECONDS = 30.0


class Entry(NamedTuple):
    """What a checkpoint holds under one name: named arrays and a JSON document."""

    arrays: dict[str, Any]
    document: dict[str, Any]  # values that JSON can hold

    __repr__ = short_repr


class Checkpoint:
    """The file of a call of `train`, which holds entries by name.

    The file is written under another name and renamed, so that a kill leaves the last complete
    file. Each run of the call reads and keeps its entries by a `RunState`; a call with a budget
    makes several runs. As a context, a checkpoint removes its file at the end, unless the block
    failed or a search was stopped early.

    Args:
        path: the file; None for a checkpoint that is never written, and holds nothing.
        seconds: least time between two writes of the file.

    Raises:
        ValueError: if `seconds` is negative.
        OutputError: if no file can be written at `path`.
        ModelFileError: if the file there is no checkpoint, or is damaged.
    """

    def __init__(self, path: PathLike | None, seconds: float = CHECKPOINT_SECONDS) -> None:
        self.path, self.seconds = path, real("checkpoint_seconds", seconds, 0.0)
        self.complete = True  # whether no search was stopped before its end
        self.entries: dict[str, Entry | Callable[[], Entry]] = {}  # or functions that return them
        self.unwritten = False  # whether an entry was kept since the last file
        self.due = time.monotonic() + self.seconds  # when to write the next file
        self._runs = 0
        if path is None:
            return
        check_writable(path, _MARK)  # also removes what a kill left of a file
        if os.path.exists(path):
            self.entries = dict(_by_name(*load_state(path, kind=_KIND)))

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

    def remove(self) -> None:
        """Remove the file."""
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.path)

    def next_run(self) -> "RunState":
        """Count one more run of the call, and return the access to its entries."""
        self._runs += 1
        return RunState(self, f"run {self._runs}: ")

    def describe(self, name: str, entry: Entry | Callable[[], Entry] | None) -> None:
        """Set an entry, or drop it by None, without marking the file as out of date."""
        if entry is None:
            self.entries.pop(name, None)
        else:
            self.entries[name] = entry

    def close(self) -> None:
        """Write the file if it is out of date; else leave it, with the partial sums in it."""
        if self.path is not None and self.unwritten:
            self.write(self.entries)

    def write(self, entries: Mapping[str, Entry | Callable[[], Entry]]) -> None:
        """Replace the file by one with these entries. If writing fails, warn and leave the file."""
        begin = time.monotonic()
        computed = {name: e() if callable(e) else e for name, e in entries.items()}
        try:
            assert self.path is not None
            save_state(self.path, *_together(computed), kind=_KIND, mark=_MARK)
            self.unwritten = False
        except OutputError as error:
            warn_caller(
                f"checkpoint: {error}; the run goes on, and a kill now loses all work since the "
                "last checkpoint",
                RuntimeWarning,
            )
        end = time.monotonic()
        self.due = end + max(self.seconds, _SHARE * (end - begin))


@dataclasses.dataclass(frozen=True)
class RunState:
    """The entries of one run of a call, which a `Checkpoint` holds."""

    checkpoint: Checkpoint
    prefix: str  # begins the names of the run's entries in the checkpoint

    __repr__ = short_repr

    def known(self, name: str) -> Entry | None:
        """Return an entry; None if there is none, or only a function that returns it."""
        entry = self.checkpoint.entries.get(self.prefix + name)
        return entry if isinstance(entry, Entry) else None

    def keep(self, name: str, entry: Entry | Callable[[], Entry] | None) -> None:
        """Set an entry, or a function that returns it at the next write; None drops the entry."""
        if self.checkpoint.path is not None:
            self.checkpoint.unwritten = True
            self.checkpoint.describe(self.prefix + name, entry)

    def tick(self, **unfinished: Callable[[], Entry]) -> None:
        """Write the file if it is due, with entries that are valid only now, such as partial sums.

        The functions `unfinished` return these entries by name.
        """
        checkpoint = self.checkpoint
        if checkpoint.path is not None and time.monotonic() >= checkpoint.due:
            entries = {self.prefix + name: entry for name, entry in unfinished.items()}
            checkpoint.write(checkpoint.entries | entries)

    def share(self, mesh: Mesh | None) -> None:
        """Give all processes of a mesh the entries of the process that has made most evaluations.

        These are the memory, the points, the evaluations and the sums of complete passes. Each
        process keeps the sums of its unfinished pass, in case the run continues with this pass.
        """
        if mesh is None or not spans_processes(mesh) or self.checkpoint.path is None:
            return
        import safetensors.numpy

        names = ("memory", "points", "history", "sums")
        entries = {name: entry for name in names if (entry := self.known(name)) is not None}
        history = entries["history"].arrays if "history" in entries else {}
        n_evaluations = sum(len(a) for name, a in history.items() if name.endswith(".seconds"))
        arrays, documents = _together(entries)
        arrays |= {_DOCUMENTS: np.frombuffer(json.dumps(documents).encode(), np.uint8)}
        packed = safetensors.numpy.save({name: np.array(a) for name, a in arrays.items()})
        progress = json.dumps([n_evaluations, len(entries), len(packed)]).encode()
        of_processes = [json.loads(text) for text in gather_texts(mesh, progress)]
        best = max(range(len(of_processes)), key=lambda i: (*of_processes[i][:2], -i))
        _, n_entries, n_bytes = of_processes[best]
        if n_entries == 0:
            return
        text = np.zeros(n_bytes, np.uint8)
        if processes_of(mesh)[best] == jax.process_index():
            text = np.frombuffer(packed, np.uint8)
        arrays = safetensors.numpy.load(np.asarray(sum_over_processes(mesh, text)).tobytes())
        entries = _by_name(arrays, json.loads(arrays.pop(_DOCUMENTS).tobytes()))
        for name in names:
            self.checkpoint.describe(self.prefix + name, entries.get(name))

    def same(self, name: str, values: Mapping[str, Any]) -> None:
        """Raise a `ValueError` if arguments differ from the entry `name` of an earlier call.

        `values` are the arguments by name; arrays are compared by checksums. If there is no entry,
        store them. The entry "settings" also has the `environment`.
        """
        if self.checkpoint.path is None:
            return
        values = {**values, **environment()} if name == "settings" else values
        new = {k: v for argument, value in values.items() for k, v in described(argument, value)}
        known = self.known(name)
        if known is None:
            self.checkpoint.describe(self.prefix + name, Entry({}, new))
        elif known.document != new:
            written = known.document
            lines = [
                f"{argument}: {clipped(written.get(argument, 'none'), 100)} in the file, "
                f"{clipped(new.get(argument, 'none'), 100)} in this call"
                for argument in dict.fromkeys([*written, *new])
                if written.get(argument) != new.get(argument)
            ]
            more = f"; and {len(lines) - _SHOWN} others" if len(lines) > _SHOWN else ""
            raise ValueError(
                f"checkpoint: {named(self.checkpoint.path)}: expected the checkpoint of a call "
                f"with the same arguments and data, got {'; '.join(lines[:_SHOWN])}{more}. Remove "
                "the file to start anew, or state another path"
            )


def _together(entries: Mapping[str, Entry]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all arrays by the keys "entry/array", and the documents by entry name."""
    arrays = {f"{name}/{k}": a for name, e in entries.items() for k, a in e.arrays.items()}
    return arrays, {name: entry.document for name, entry in entries.items()}


def _by_name(arrays: dict[str, Any], documents: dict[str, Any]) -> dict[str, Entry]:
    """Return the entries from the arrays and documents that `_together` returns."""
    entries = {name: Entry({}, document) for name, document in documents.items()}
    for key, array in arrays.items():
        name, _, array_name = key.rpartition("/")
        entries[name].arrays[array_name] = array
    return entries


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
    """Make a function open the checkpoint file that its argument `resources` names.

    At the end the file is removed, see `Checkpoint`. Each of several processes has a separate file.
    A function that gets an open checkpoint from another resumable function leaves it open.
    """

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        resources: Any = named.get("resources")
        path = getattr(resources, "checkpoint", None)
        if path is None or isinstance(path, Checkpoint):
            return function(*arguments, **named)
        if spans_processes(resources.mesh):
            path = f"{os.fsdecode(path)}.{jax.process_index()}"
        with Checkpoint(path, resources.checkpoint_seconds) as checkpoint:
            named["resources"] = dataclasses.replace(resources, checkpoint=checkpoint)
            return function(*arguments, **named)

    return call


def run_state(resources: Any) -> RunState:
    """Return the state of the call's next run; `NO_CHECKPOINT` if no checkpoint is open."""
    checkpoint = getattr(resources, "checkpoint", None)
    return checkpoint.next_run() if isinstance(checkpoint, Checkpoint) else NO_CHECKPOINT
