"""Files of named arrays and a JSON document: safetensors, written all or nothing, never pickle.

The header's metadata has

    format          "jsparse"
    format_version  "3"
    kind            "model", or the kind of state
    document        the JSON document
    sha256          digest of the document and of every array

so any safetensors reader can open the file, and one that was cut, altered or written by something
else is told apart from ours. Nothing in it is executed. As anyone can compute the checksum, it says
nothing of who wrote the file: all that is read is checked for itself. Files are written beside
their place and moved into it, so a crash leaves the old file or the new one.
"""

import contextlib
import hashlib
import json
import os
import re
import reprlib
import secrets
import shutil
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np

if sys.platform != "win32":
    import fcntl

FORMAT = "jsparse"
FORMAT_VERSION = 3  # older files are read: 1 had an error for each row, 2 other arrays of paths

# By their names in safetensors files; it knows others that NumPy does not.
_DTYPES = {
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
}

# Limits of a document, for writing as for reading. Decoding JSON recurses, within Python's usual
# limit of 1000 calls.
_MOST_LEVELS = 300
# The fewest digits to which Python's own limit for reading whole numbers can be set.
_MOST_DIGITS = sys.int_info.str_digits_check_threshold
# safetensors reads headers of up to 100 MB, in which a quotation mark takes two characters.
_MOST_CHARACTERS = 40_000_000

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class ModelFileError(ValueError):
    """A file is not what it should be; the message names it, what was expected and what came."""


class OutputError(ValueError):
    """A file cannot be written where it was asked for; the message says why."""


def save_state(
    path: PathLike, arrays: Mapping[str, Any], document: Mapping[str, Any], *, kind: str = "state"
) -> None:
    """Write named arrays and a JSON document into one file, all or nothing.

    Args:
        path: the file to write; an existing one is replaced once the new one is complete.
        arrays: name to array (NumPy or JAX) of integers, floats or booleans, of any shape.
        document: what JSON can hold, see `save`.
        kind: what the file is; `load_state` must be asked for the same.

    Raises:
        ValueError: for an array of another dtype, or a document that JSON cannot hold, nested
            deeper than 300 levels, with a whole number of more than 640 digits, or longer than 40
            million characters.
        OutputError: if the file cannot be written.
    """
    import safetensors.numpy

    laid_out = {name: _laid_out(name, array) for name, array in arrays.items()}
    text = json.dumps(_plain(document, "document"))
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(
            f"document: expected at most {_MOST_CHARACTERS} characters of JSON, got {len(text)}"
        )
    header = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "kind": kind,
        "document": text,
        "sha256": _digest(kind, text, laid_out),
    }
    data = safetensors.numpy.save(laid_out, metadata=header)
    with atomic_path(path) as temporary, writing(path):
        temporary.write_bytes(data)


def load_state(
    path: PathLike, *, kind: str = "state"
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `save_state` wrote: the arrays, bit for bit, and the document.

    Raises:
        ModelFileError: if the file is missing, empty, cut, altered, of another kind or origin,
            of a newer format, or holds what `save_state` does not write.
    """
    import safetensors

    path = _checked(path, ModelFileError)
    name = named(path)
    wanted = f"{name}: expected a jsparse {kind} in safetensors format"
    if not os.path.isfile(path):
        raise ModelFileError(f"{wanted}; {_absence(path)}")
    try:
        with open(path, "rb") as start:  # its errors say why, safetensors' do not
            if not start.read(1):
                raise ModelFileError(f"{wanted}; it is empty")
        with safetensors.safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            _check_header(header, kind, wanted, name)
            arrays = {key: _read(file, key, wanted) for key in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise ModelFileError(f"{wanted}; it cannot be read: {error.strerror or error}") from error
    except safetensors.SafetensorError as error:
        raise ModelFileError(
            f"{wanted}; it is cut, damaged or of another kind ({reason_of(error)})"
        ) from error
    text = header.get("document", "")
    if header.get("sha256") != _digest(kind, text, arrays):
        raise ModelFileError(f"{wanted}; its checksum does not match: it was altered or damaged")
    try:
        return arrays, _decoded(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{wanted}; its document cannot be read: {reason_of(error)}"
        ) from error


def check_writable(path: PathLike) -> None:
    """See that a file can be written at `path`, before the work that would fill it.

    A file beside it is created and removed; an existing file is neither opened nor touched.

    Raises:
        OutputError: naming the path and the reason.
    """
    target = _resolve(path)
    with writing(path), _beside(target):
        pass


@contextlib.contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """A file to write into, moved to `path` if and when the block succeeds.

    Where the system has files without a name, as Linux does, it is one until then, and a process
    that is killed meanwhile leaves nothing. Elsewhere it is a hidden file beside `path`; what
    killed processes left of these is removed when another is made.

    Raises:
        OutputError: if that file cannot be made or moved. Errors of the block stay what they are.
    """
    target = _resolve(path)
    with contextlib.ExitStack() as made:
        with writing(path):
            scratch = made.enter_context(_beside(target))
        yield scratch
        with writing(path):
            if target.exists():
                scratch.chmod(stat.S_IMODE(target.stat().st_mode))
            _move(scratch, target)


@contextlib.contextmanager
def writing(path: PathLike) -> Iterator[None]:
    """A block that writes the file `path`, whose errors of the system become `OutputError`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"{named(path)}: cannot be written: {reason}") from error


def _checked(path: PathLike, refusal: type[ValueError]) -> str:
    """A path as text, or a refusal of one that no file can have."""
    text = os.fsdecode(path)
    try:
        sound = text and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # of half a character
        sound = False
    if not sound:
        raise refusal(f"{text!r}: expected a path, of characters that file names have")
    return text


def _resolve(path: PathLike) -> Path:
    """Where `path` really lies (a link stays a link), if a file may be put there."""
    target = os.path.realpath(_checked(path, OutputError))
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
    if len(os.fsencode(name)) > 255:  # its neighbour's name would be short enough
        raise OutputError(f"{named(path)}: cannot be written: File name too long")
    return Path(target)


_ABANDONED = 3600.0  # seconds without a write, far beyond the clocks of machines differing


def _neighbour(target: Path) -> Path:
    """A hidden name in the target's folder, from which others' abandoned files are removed."""
    _remove_abandoned(target.parent)
    suffixes = "".join(target.suffixes[-2:])
    return target.with_name(f".jsparse-{secrets.token_hex(8)}{suffixes}")


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A new file in the target's folder with the permissions the user's umask gives.

    It is gone afterwards if it was not moved. Meanwhile it is locked, where there are locks.
    """
    file = _unnamed(target.parent)
    scratch = _neighbour(target) if file is None else _path_of(file)
    if file is None:
        file = os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        if sys.platform == "win32":  # an open file cannot be moved there
            os.close(file)
        else:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield scratch
    finally:
        if sys.platform != "win32":
            os.close(file)
        if scratch.parent == target.parent:
            scratch.unlink(missing_ok=True)


def _unnamed(folder: Path) -> int | None:
    """The number of a new file without a name, or None if system or file system has no such."""
    if not hasattr(os, "O_TMPFILE"):
        return None
    try:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
    except OSError:  # should it be for another reason, a named file will fail for it as well
        return None
    if _path_of(file).exists():
        return file
    os.close(file)
    return None


def _path_of(file: int) -> Path:
    return Path(f"/proc/self/fd/{file}")


def _move(scratch: Path, target: Path) -> None:
    """Put a file of `_beside` in the target's place."""
    _flush(scratch)
    if scratch.parent == target.parent:
        scratch.replace(target)
        return

    def name(path: Path) -> None:
        # Any number of a folder will do: with one, the link is followed.
        os.link(scratch, path, src_dir_fd=0)

    with contextlib.suppress(OSError):  # mostly as there is an old file, which no link replaces
        name(target)
        return
    neighbour = _neighbour(target)
    try:
        try:
            name(neighbour)
        except OSError:  # on some file systems what had no name cannot get one
            shutil.copy(scratch, neighbour)
            _flush(neighbour)
        neighbour.replace(target)
    finally:
        neighbour.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    with path.open("r+b") as file:  # to be written, as Windows wants it
        os.fsync(file.fileno())


def _remove_abandoned(folder: Path) -> None:
    """Remove the hidden files of processes that were killed.

    Those are neither written to any more nor locked; age alone would take one whose writer is slow,
    and not every file system of several machines shares its locks.
    """
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not re.fullmatch(r"\.jsparse-[0-9a-f]{16}(\..*)?", entry.name):
                continue
            with contextlib.suppress(OSError):  # of another user, or gone by now
                if time.time() - entry.stat(follow_symlinks=False).st_mtime < _ABANDONED:
                    continue
                file = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(entry.path)
                finally:
                    os.close(file)


def named(path: PathLike) -> str:
    return repr(os.fsdecode(path))


def _absence(path: PathLike) -> str:
    if os.path.isdir(path):
        return "it is a folder"
    return "it is not a regular file" if os.path.exists(path) else "there is no such file"


def _check_header(header: Mapping[str, str], kind: str, wanted: str, name: str) -> None:
    if header.get("format") != FORMAT:
        raise ModelFileError(
            f"{wanted}; it is a safetensors file of other origin "
            f"(format {shown(header.get('format'))})"
        )
    version = header.get("format_version", "")
    if not re.fullmatch("[0-9]{1,9}", version):
        raise ModelFileError(f"{wanted}; its format version is {shown(version)}, not a number")
    if int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{name}: expected format version {FORMAT_VERSION} or older; it has version {version}, "
            "written by a newer jsparse: upgrade jsparse to read it"
        )
    if header.get("kind") != kind:
        raise ModelFileError(f"{wanted}; it holds a jsparse {shown(str(header.get('kind')))[1:-1]}")


def _read(file: Any, name: str, wanted: str) -> np.ndarray:
    """An array of a safetensors file, of a dtype and shape that NumPy has."""
    described = file.get_slice(name)
    dtype, shape = described.get_dtype(), described.get_shape()
    place = f"{wanted}; its array {shown(name)}"
    if dtype not in _DTYPES:
        known = ", ".join(_DTYPES.values())
        raise ModelFileError(f"{place} is of dtype {dtype}; expected {known}")
    try:
        return file.get_tensor(name)
    except ValueError as error:  # more dimensions, or longer ones in an empty array
        raise ModelFileError(f"{place} is of shape {shown(shape)}; expected another") from error


def shown(value: Any) -> str:
    """What a file holds for a message: shortened, in one line."""
    return _shorten.repr(value)


def reason_of(error: Exception) -> str:
    """What an error says of a file, likewise: it may quote what the file holds."""
    return " ".join(str(error).split())[:500]


_shorten = reprlib.Repr()
_shorten.maxstring = _shorten.maxother = 80


def _decoded(text: str) -> dict[str, Any]:
    """The document of a text such as `save_state` writes, or ValueError."""
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"expected at most {_MOST_CHARACTERS} characters, got {len(text)}")
    document = json.loads(
        text, object_pairs_hook=_distinct, parse_int=_whole_number, parse_float=_number
    )
    if not isinstance(document, dict):
        raise ValueError(f"expected names and values, got {shown(document)}")
    levels, nested = 0, [document]
    while nested:
        levels += 1
        inner = chain.from_iterable(v.values() if isinstance(v, dict) else v for v in nested)
        nested = [value for value in inner if type(value) in (dict, list)]
    if levels > _MOST_LEVELS:
        raise ValueError(f"expected at most {_MOST_LEVELS} levels, one within the other")
    return document


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"expected distinct names, {shown(repeated)} is repeated")
    return found


def _whole_number(digits: str) -> int:
    if len(digits.lstrip("-")) > _MOST_DIGITS:
        raise ValueError(f"expected whole numbers of at most {_MOST_DIGITS} digits")
    return int(digits)


def _number(digits: str) -> float:
    if len(digits) > _MOST_DIGITS or np.isinf(float(digits)):
        raise ValueError(f"expected numbers in the range of float64, got {shown(digits)}")
    return float(digits)


def _laid_out(name: str, array: Any) -> np.ndarray:
    """The array in C order and native bytes: safetensors writes the memory as it lies."""
    array = np.array(array, order="C")
    array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.name not in _DTYPES.values():
        known = ", ".join(_DTYPES.values())
        raise ValueError(f"array {name!r}: expected dtype {known}; got {array.dtype}")
    return array


def _digest(kind: str, text: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(f"{kind}\n{text}\n".encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _plain(value: Any, where: str, level: int = 1) -> Any:
    """`value` as what JSON gives back unchanged, or an error that names the place."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, int) and abs(value) >= 10**_MOST_DIGITS:
        raise ValueError(f"{where}: expected whole numbers of at most {_MOST_DIGITS} digits")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if level > _MOST_LEVELS:
        raise ValueError(f"expected at most {_MOST_LEVELS} levels, one within the other: {where}")
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", level + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where}: expected keys that are strings, got {key!r}")
        return {key: _plain(item, f"{where}[{key!r}]", level + 1) for key, item in value.items()}
    raise ValueError(
        f"{where}: expected what JSON can hold (strings, numbers, booleans, None, lists, dicts), "
        f"got {type(value).__name__}"
    )
