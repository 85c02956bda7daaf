"""Write files of named arrays and a JSON document, which `predictor.files` reads.

Any safetensors reader can open the file. A file is written under a temporary name in its folder and
then renamed, so a crash leaves either the old file or the new one.
"""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .predictor.files import (
    DTYPES,
    FORMAT,
    FORMAT_VERSION,
    PathLike,
    checked_path,
    digest,
    reason_of,
)
from .predictor.files import ModelFileError as ModelFileError
from .predictor.files import load_state as load_state
from .predictor.files import named as named
from .predictor.files import shown as shown

# safetensors reads headers of up to 100 MB, in which the quotation marks of JSON count twice.
_MOST_CHARACTERS = 40_000_000


class OutputError(ValueError):
    """A file cannot be written at the stated path; the message says why."""


def save_state(
    path: PathLike,
    arrays: Mapping[str, Any],
    document: Mapping[str, Any],
    *,
    kind: str = "state",
    mark: str | None = None,
) -> None:
    """Write named arrays and a JSON document to one file, completely or not at all.

    Args:
        path: the file to write. An existing file is replaced once the new file is complete.
        arrays: NumPy or JAX arrays of integers, floats or booleans, of any shape, by name.
        document: strings, numbers, booleans, None, and lists and dicts of them. Arrays are written
            as lists.
        kind: the kind of contents; `load_state` must get an equal `kind`.
        mark: part of the temporary file's name, see `atomic_path`.

    Raises:
        ValueError: for an array of another dtype, or a document that JSON cannot hold or that is
            longer than 40 million characters.
        OutputError: if the file cannot be written.
    """
    import safetensors.numpy

    contiguous = {name: _contiguous(name, array) for name, array in arrays.items()}
    text = _encoded(document)
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "document": text,
        "sha256": digest(kind, text, contiguous),
    }
    data = _in_fixed_order(safetensors.numpy.save(contiguous, metadata=header))
    write_bytes(path, data, mark)


def write_bytes(path: PathLike, data: bytes, mark: str | None = None) -> None:
    """Write a file completely, or raise OutputError; `mark` is as for `atomic_path`."""
    with atomic_path(path, mark) as temporary, writing(path):
        temporary.write_bytes(data)


def _in_fixed_order(data: bytes) -> bytes:
    """Return the bytes of a safetensors file with sorted metadata: equal models have equal bytes.

    safetensors writes metadata in random order.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the arrays are aligned
    return len(text).to_bytes(8, "little") + text + data[end:]


def check_writable(path: PathLike, mark: str | None = None) -> None:
    """Check that a file can be written at `path`, before any work; raise OutputError if not.

    A temporary file in the folder is created and removed. An existing file is not touched. `mark`
    is as for `atomic_path`.
    """
    target = _resolve(path)
    with writing(path):
        neighbour = _neighbour(target, mark)
        neighbour.touch()
        neighbour.unlink()


@contextlib.contextmanager
def atomic_path(path: PathLike, mark: str | None = None) -> Iterator[Path]:
    """Yield a hidden file in the folder of `path`; rename it to `path` if the block succeeds.

    If the block fails, the hidden file is removed. If the process is killed, it remains.

    Args:
        path: the file to write.
        mark: part of the hidden file's name, with which a later call overwrites a file that
            remained. None for random letters, so that several processes can write to `path`.

    Raises:
        OutputError: if the hidden file cannot be made or renamed. Errors of the block pass through.
    """
    target = _resolve(path)
    neighbour = _neighbour(target, mark)
    try:
        with writing(path):
            neighbour.touch()
        yield neighbour
        with writing(path):
            if target.exists():
                shutil.copymode(target, neighbour)
            with neighbour.open("r+b") as file:  # Windows syncs only files opened for writing
                os.fsync(file.fileno())
            neighbour.replace(target)
    finally:
        neighbour.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: PathLike) -> Iterator[None]:
    """Turn each `OSError` in a block that writes the file `path` into an `OutputError`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"{named(path)}: cannot be written: {reason}") from error


def _resolve(path: PathLike) -> Path:
    """Return the file that `path` or its link refers to; raise OutputError if not writable."""
    target = os.path.realpath(checked_path(path, OutputError))
    if os.path.isdir(target):
        raise OutputError(f"{named(path)}: expected a file to write, but it is a folder")
    if os.path.exists(target):
        if not os.path.isfile(target):
            raise OutputError(f"{named(path)}: expected a file to write; it is not a regular file")
        if not os.access(target, os.W_OK):
            raise OutputError(f"{named(path)}: cannot be written: it exists and is read-only")
    folder, name = os.path.split(target)
    if not os.path.isdir(folder):
        raise OutputError(f"{named(path)}: cannot be written: there is no folder {folder!r}")
    if len(os.fsencode(name)) > 255:  # the name of the temporary file would be short enough
        raise OutputError(f"{named(path)}: cannot be written: File name too long")
    return Path(target)


def _neighbour(target: Path, mark: str | None = None) -> Path:
    """Return a path in the target's folder with a hidden name, made of `mark` or random letters."""
    suffixes = "".join(target.suffixes[-2:])
    unique = secrets.token_hex(8) if mark is None else f"{mark}-{target.name}"
    return target.with_name(f".jsparse-{unique}{suffixes}")


def _contiguous(name: str, array: Any) -> np.ndarray:
    """Return a copy in C order and native byte order, as safetensors writes the raw memory."""
    array = np.array(array, order="C")
    array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.name not in DTYPES.values():
        known = ", ".join(DTYPES.values())
        raise ValueError(f"array {name!r}: expected dtype {known}; got {array.dtype}")
    return array


def _encoded(document: Mapping[str, Any]) -> str:
    """Return a document as JSON text; raise a `ValueError` if it could not be read again."""
    try:
        text = json.dumps(_plain(document, "document"))
        json.loads(text)  # fails if there are too many levels or digits, which Python limits
    except (RecursionError, ValueError) as error:
        if str(error).startswith("document"):
            raise
        raise ValueError(f"document: expected what JSON can hold: {reason_of(error)}") from error
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(
            f"document: expected at most {_MOST_CHARACTERS} characters of JSON, got {len(text)}"
        )
    return text


def _plain(value: Any, where: str) -> Any:
    """Convert a value to the types that JSON preserves; raise ValueError if that is not possible.

    `where` is the place of the value in the document, for the message.
    """
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value).tolist()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where}: expected keys that are strings, got {key!r}")
        return {key: _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    raise ValueError(
        f"{where}: expected what JSON can hold (strings, numbers, booleans, None, lists, dicts), "
        f"got {type(value).__name__}"
    )
