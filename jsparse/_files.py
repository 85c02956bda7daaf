"""Files of named arrays and a JSON document: safetensors, written all or nothing, never pickle.

The header's metadata has

    format          "jsparse"
    format_version  "1"
    kind            "model", or the kind of state
    document        the JSON document
    sha256          digest of the document and of every array

so any safetensors reader can open the file, and one that was cut, altered or written by something
else is told apart from ours. Nothing in it is executed. Files are written beside their place and
moved into it, so a crash leaves the old file or the new one.
"""

import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

FORMAT = "jsparse"
FORMAT_VERSION = 1

_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)

PathLike = str | os.PathLike[str]


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
        ValueError: for an array of another dtype, or a document that JSON cannot hold.
        OutputError: if the file cannot be written.
    """
    import safetensors.numpy

    laid_out = {name: _laid_out(name, array) for name, array in arrays.items()}
    text = json.dumps(_plain(document, "document"))
    header = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "kind": kind,
        "document": text,
        "sha256": _digest(kind, text, laid_out),
    }
    data = safetensors.numpy.save(laid_out, metadata=header)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def load_state(
    path: PathLike, *, kind: str = "state"
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `save_state` wrote: the arrays, bit for bit, and the document.

    Raises:
        ModelFileError: if the file is missing, empty, cut, altered, of another kind or origin,
            or of a newer format.
    """
    import safetensors

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
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise ModelFileError(f"{wanted}; it cannot be read: {error.strerror or error}") from error
    except safetensors.SafetensorError as error:
        raise ModelFileError(
            f"{wanted}; it is cut, damaged or of another kind ({error})"
        ) from error
    if header.get("sha256") != _digest(kind, header.get("document", ""), arrays):
        raise ModelFileError(f"{wanted}; its checksum does not match: it was altered or damaged")
    return arrays, json.loads(header["document"])


def check_writable(path: PathLike) -> None:
    """See that a file can be written at `path`, before the work that would fill it.

    A neighbour is created and removed; an existing file is neither opened nor touched.

    Raises:
        OutputError: naming the path and the reason.
    """
    target = _resolve(path)
    neighbour = _neighbour(target)
    try:
        os.close(_create(neighbour))
    except OSError as error:
        raise OutputError(f"{named(path)}: cannot be written: {error.strerror}") from error
    finally:
        neighbour.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """A file beside `path` to write into, moved to `path` if and when the block succeeds.

    Raises:
        OutputError: if that file cannot be made, written or moved.
    """
    target = _resolve(path)
    neighbour = _neighbour(target)
    try:
        os.close(_create(neighbour))
        yield neighbour
        if target.exists():
            neighbour.chmod(stat.S_IMODE(target.stat().st_mode))
        with neighbour.open("rb") as file:
            os.fsync(file.fileno())
        neighbour.replace(target)
    except OSError as error:
        raise OutputError(f"{named(path)}: cannot be written: {error}") from error
    finally:
        neighbour.unlink(missing_ok=True)


def _resolve(path: PathLike) -> Path:
    """Where `path` really lies (a link stays a link), if a file may be put there."""
    target = os.path.realpath(path)
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


def _neighbour(target: Path) -> Path:
    return target.with_name(f".{secrets.token_hex(8)}{''.join(target.suffixes[-2:])}")


def _create(path: Path) -> int:
    """Create a file that must not exist yet, with the permissions the user's umask gives."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)


def named(path: PathLike) -> str:
    return repr(os.fspath(path))


def _absence(path: PathLike) -> str:
    if os.path.isdir(path):
        return "it is a folder"
    return "it is not a regular file" if os.path.exists(path) else "there is no such file"


def _check_header(header: Mapping[str, str], kind: str, wanted: str, name: str) -> None:
    if header.get("format") != FORMAT:
        raise ModelFileError(
            f"{wanted}; it is a safetensors file of other origin (format {header.get('format')!r})"
        )
    version = header.get("format_version", "")
    if not version.isdecimal():
        raise ModelFileError(f"{wanted}; its format version is {version!r}, not a number")
    if int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{name}: expected format version {FORMAT_VERSION} or older; it has version {version}, "
            "written by a newer jsparse: upgrade jsparse to read it"
        )
    if header.get("kind") != kind:
        raise ModelFileError(f"{wanted}; it holds a jsparse {header.get('kind')}")


def _laid_out(name: str, array: Any) -> np.ndarray:
    """The array in C order and native bytes: safetensors writes the memory as it lies."""
    array = np.array(array, order="C")
    array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.name not in _DTYPES:
        raise ValueError(f"array {name!r}: expected dtype {', '.join(_DTYPES)}; got {array.dtype}")
    return array


def _digest(kind: str, text: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(f"{kind}\n{text}\n".encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _plain(value: Any, where: str) -> Any:
    """`value` as what JSON gives back unchanged, or an error that names the place."""
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
