"""Compare the arguments of all processes of a mesh before any work, and report differences."""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ._mesh import (
    ProcessError,
    gather_messages,
    gather_texts,
    processes_of,
    spans_processes,
    sum_over_processes,
)
from ._numerics import is_spread_over_processes, is_traced
from ._repr import clipped

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Entries = dict[str, str]
HEADER_BYTES = 32  # size of a digest or number to compare, for which one program is compiled
_ROWS = ("X", "y", "labels", "weights", "folds")  # names of arguments to compare
_SHOWN = 10  # number of differences that an error lists
_DEEPEST = 12  # number of levels of nested objects that are compared


@dataclasses.dataclass(frozen=True)
class Checksum:
    """The shape, dtype and hash of an array, which are compared instead of its values."""

    form: str  # shape and dtype in words
    digest: str  # BLAKE2b of the bytes, in hexadecimal digits


@contextlib.contextmanager
def same_in_all_processes(mesh: Mesh | None) -> Iterator[dict[str, Any]]:
    """Raise in every process of the mesh if an argument differs between the processes.

    The block gets a mapping, and enters the values to compare by argument name. At the end of the
    block the processes exchange checksums. If the block fails in one process, all processes raise,
    so that no process waits for ever. Without a mesh over several processes nothing is computed,
    compiled or sent.

    Raises:
        ValueError: if entries differ. The message names the entries and the processes.
        RuntimeError: if the block failed in another process, with the message of that process.
    """
    compared: dict[str, Any] = {}
    if not spans_processes(mesh) or jax.process_index() not in processes_of(mesh):
        yield compared
        return
    assert mesh is not None
    try:
        yield compared
        entries = {k: v for name, value in compared.items() for k, v in described(name, value)}
    except ProcessError:  # the other processes cannot be reached
        raise
    except Exception as error:
        _exchange(mesh, {}, f"{type(error).__name__}: {error}")
        raise
    reports = _exchange(mesh, entries, None)
    failures = {process: failure for process, (_, failure) in reports.items() if failure}
    if failures:
        process, failure = next(iter(failures.items()))
        raise RuntimeError(f"process {process} of the mesh stopped before any work: {failure}")
    differences = _differences({process: entries for process, (entries, _) in reports.items()})
    if differences:
        more = len(differences) - _SHOWN
        listed = differences[:_SHOWN] + ([f"and {more} others"] if more > 0 else [])
        raise ValueError(
            "expected the same rows and settings in every process of the mesh, as each process "
            f"computes with its share of rows that all of them hold; got {'; '.join(listed)}. "
            "Give every process the same settings and all of the rows. For rows of which no "
            "process holds all, give a stream of `Shards`"
        )


def same_rows(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function of rows and `mesh` raise if rows differ between the mesh's processes.

    `same_in_all_processes` compares the arguments `X`, `y`, `labels`, `weights` and `folds`. Of
    global arrays, which hold different shards in each process, it compares shapes and dtypes only.
    While JAX traces, nothing is compared, because values are not available.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        mesh: Any = named.get("mesh")
        if spans_processes(mesh):
            bound = signature.bind(*arguments, **named).arguments
            rows = {name: bound.get(name) for name in _ROWS}
            if not is_traced(rows):
                with same_in_all_processes(mesh) as compared:
                    compared |= rows
        return function(*arguments, **named)

    return call


def summed_in_all_processes(
    mesh: Mesh | None, zeros: list[T], compute: Callable[[], list[T]]
) -> list[T]:
    """Return the list `compute()`, summed over the processes; raise if `compute` fails in one.

    A process that failed takes part with zeros, so that no process waits for ever. There is a
    collective operation for each part of the list, so that one program serves any number of parts.
    Without a mesh over several processes nothing is sent.

    Args:
        mesh: the mesh.
        zeros: a list like the result, with arrays of 0; at least one part.
        compute: returns the arrays of this process: a list of parts, pytrees of equal shapes.

    Raises:
        RuntimeError: if `compute` failed in another process, with the message of that process. If
            it failed in this process, the error of `compute` is raised.
    """
    if mesh is None or not spans_processes(mesh):
        return compute()
    processes, parts, error = processes_of(mesh), zeros, None
    try:
        parts = compute()
    except Exception as failure:
        error = failure
    failed = np.array([error is not None and p == jax.process_index() for p in processes], np.int32)
    sums, failed_of_part = zip(
        *(sum_over_processes(mesh, (part, failed)) for part in parts), strict=True
    )
    failed = np.asarray(failed_of_part[0])
    if not np.any(failed):
        return list(sums)
    texts = gather_texts(mesh, f"{type(error).__name__}: {error}".encode())
    if error is not None:
        raise error
    place = int(np.argmax(failed))
    raise RuntimeError(f"process {processes[place]} of the mesh stopped: {texts[place].decode()}")


def least_in_all_processes(mesh: Mesh, number: int | None) -> int | None:
    """Return the least `number` of all processes, ignoring None; None if every process has None."""
    messages = gather_messages(mesh, json.dumps(number).encode().ljust(HEADER_BYTES))
    numbers = [json.loads(message) for message in messages]
    return min((number for number in numbers if number is not None), default=None)


def _exchange(
    mesh: Mesh, entries: Entries, failure: str | None
) -> dict[int, tuple[Entries, str | None]]:
    """Return each process's entries and failure, by process index; {} if all are equal."""
    text = json.dumps([entries, failure]).encode()
    digest = hashlib.blake2b(text, digest_size=HEADER_BYTES).digest()
    if len(set(gather_messages(mesh, digest))) == 1:
        return {}
    reports = (tuple(json.loads(text)) for text in gather_texts(mesh, text))
    return dict(zip(processes_of(mesh), reports, strict=True))


def _differences(reports: Mapping[int, Entries]) -> list[str]:
    """Return a line of text for each entry that differs between processes."""
    names = list(dict.fromkeys(name for entries in reports.values() for name in entries))
    lines: dict[str, str] = {}
    for name in names:
        processes_by_text: dict[str, list[int]] = {}
        for process, entries in reports.items():
            processes_by_text.setdefault(entries.get(name, "none"), []).append(process)
        form_differs = name.removeprefix("contents of ") in lines
        if len(processes_by_text) > 1 and not form_differs:
            parts = [f"{clipped(t, 100)} in {_processes(p)}" for t, p in processes_by_text.items()]
            lines[name] = f"{name}: {', '.join(parts)}"
    return list(lines.values())


def _processes(indices: list[int]) -> str:
    if len(indices) == 1:
        return f"process {indices[0]}"
    shown = ", ".join(map(str, indices[:4]))
    return f"processes {shown}" + (f" and {len(indices) - 4} others" if len(indices) > 4 else "")


def described(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield pairs of name and text by which processes compare an argument, part by part.

    `depth` is the nesting level, beyond which parts are not compared. The texts hold no addresses,
    so equal values have equal texts in every process. An array has two texts: its form and, under
    the name "contents of ...", a checksum of its contents.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, jax.Array | np.ndarray):
        value = checksum(value)
    if isinstance(value, Checksum):
        yield name, value.form
        yield f"contents of {name}", f"checksum {value.digest}"
    elif value is None or isinstance(value, str | bytes | int | float | complex | np.dtype):
        yield name, repr(value)
    elif isinstance(value, Mesh):
        ids = [device.id for device in value.devices.flat]
        yield name, f"devices {ids}, axes {dict(value.shape)}"
    else:
        parts = _parts(value) if depth < _DEEPEST else {}
        yield name, _kind(value, parts)
        for part, content in parts.items():
            yield from described(f"{name}{part}", content, depth + 1)


def _kind(value: Any, parts: Mapping[str, Any]) -> str:
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    count = f" of {len(parts)}" if isinstance(value, list | set | frozenset | Mapping) else ""
    return f"{kind.__module__}.{kind.__qualname__}{count}"


def _parts(value: Any) -> dict[str, Any]:
    """Return the parts of an object by name suffix, such as `.field` or `[0]`."""
    if isinstance(value, type):
        return {}
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        return {f".{field}": part for field, part in zip(fields, value, strict=True)}
    if dataclasses.is_dataclass(value):
        return {f".{f.name}": getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {f"[{k!r}]": value[k] for k in sorted(value, key=repr)}
    if isinstance(value, set | frozenset):
        return {f"[{i}]": part for i, part in enumerate(sorted(value, key=repr))}
    if isinstance(value, list | tuple):
        return {f"[{i}]": part for i, part in enumerate(value)}
    if isinstance(value, functools.partial):
        return {".func": value.func, ".args": value.args, ".keywords": value.keywords}
    if isinstance(value, types.CodeType):
        return {".code": value.co_code, ".names": value.co_names, ".constants": value.co_consts}
    if callable(value) and isinstance(inspect.unwrap(value), types.FunctionType):
        return _parts_of_function(inspect.unwrap(value))
    attributes = getattr(value, "__dict__", {})
    return {f".{name}": attributes[name] for name in sorted(attributes)}


def _parts_of_function(function: types.FunctionType) -> dict[str, Any]:
    enclosed = [cell.cell_contents for cell in function.__closure__ or ()]
    defaults = function.__defaults__
    return {".code": function.__code__, ".defaults": defaults, ".enclosed": enclosed}


def checksum(array: jax.Array | np.ndarray) -> Checksum:
    """Return the checksum of an array; the digest is "none" if it is spread over processes."""
    form = f"{array.dtype} of shape {array.shape}"
    if isinstance(array, jax.Array):
        if is_spread_over_processes(array):
            return Checksum(f"{form}, spread over several processes", "none")
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.random.key_data(array)
    digest = hashlib.blake2b(digest_size=8)
    _update(digest, np.asarray(array))
    return Checksum(form, digest.hexdigest())


def _update(digest: "hashlib.blake2b", array: np.ndarray) -> None:
    if array.dtype.kind == "O":  # the bytes of objects are addresses
        digest.update(repr(array.tolist()).encode())
    elif array.size:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


class BatchChecksums:
    """Running checksums of the batches of a stream, for `same_in_all_processes`."""

    def __init__(self) -> None:
        self.rows = self.batches = 0  # numbers of rows and batches read so far
        self._forms: dict[str, str] = {}
        self._digests: dict[str, Any] = {}

    def add(self, batch: Any) -> None:
        """Add a batch, a NamedTuple of arrays, to the checksums."""
        self.rows, self.batches = self.rows + len(batch[0]), self.batches + 1
        for name, array in batch._asdict().items():
            digest = self._digests.setdefault(name, hashlib.blake2b(digest_size=8))
            if array is None:
                digest.update(b"none")
                continue
            # Lengths of batches must agree, because the processes take turns at the batches.
            digest.update(f"{array.dtype} {array.shape}".encode())
            self._forms.setdefault(name, f"{array.dtype} of shape (n, *{array.shape[1:]})")
            _update(digest, array)

    def compared(self) -> dict[str, Any]:
        """Return the counts and checksums to compare, by name."""
        compared: dict[str, Any] = {"rows of the stream": self.rows}
        compared["batches of the stream"] = self.batches
        for name, digest in self._digests.items():
            compared[name] = Checksum(self._forms.get(name, "none"), digest.hexdigest())
        return compared
