"""Read and write files of named arrays and a JSON document: safetensors, never pickle.

The metadata of the header has the entries

    format          "jsparse"
    format_version  "1"
    kind            "model", or another kind of contents
    document        the JSON document
    sha256          digest of the document and of every array

Any safetensors reader can open the file. Files that were cut, altered or written by other programs
are refused. Nothing in a file is executed. As anyone can compute the checksum, it does not prove
who wrote the file, so everything that is read is checked. A file is written under a temporary name
in its folder and then renamed, so a crash leaves either the old file or the new one.
"""

import contextlib
import hashlib
import json
import os
import reprlib
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

FORMAT = "jsparse"
FORMAT_VERSION = "1"

# NumPy's dtypes by their names in safetensors files, which may also hold dtypes NumPy lacks.
_DTYPES = {
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
# safetensors reads headers of up to 100 MB, in which the quotation marks of JSON count twice.
_MOST_CHARACTERS = 40_000_000

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class ModelFileError(ValueError):
    """A file is invalid; the message names the file, what was expected and what came."""


class OutputError(ValueError):
    """A file cannot be written at the stated path; the message says why."""


def save_state(
    path: PathLike, arrays: Mapping[str, Any], document: Mapping[str, Any], *, kind: str = "state"
) -> None:
    """Write named arrays and a JSON document to one file, completely or not at all.

    Args:
        path: the file to write. An existing file is replaced once the new file is complete.
        arrays: NumPy or JAX arrays of integers, floats or booleans, of any shape, by name.
        document: values that JSON can hold, see the `metadata` of `save`.
        kind: the kind of contents; `load_state` must get an equal `kind`.

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
        "sha256": _digest(kind, text, contiguous),
    }
    data = safetensors.numpy.save(contiguous, metadata=header)
    with atomic_path(path) as temporary, writing(path):
        temporary.write_bytes(data)


def load_state(
    path: PathLike, *, kind: str = "state"
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays, bit for bit, and the document of a file that `save_state` wrote.

    Raises:
        ModelFileError: if the file is missing, empty, cut, altered, of another kind or origin,
            of another format version, or holds what `save_state` does not write.
    """
    import safetensors

    path = _checked(path, ModelFileError)
    wanted = f"{named(path)}: expected a jsparse {kind} in safetensors format"
    if not os.path.isfile(path):
        raise ModelFileError(f"{wanted}; {_absence(path)}")
    try:
        with open(path, "rb") as file:  # the errors of `open` say why, those of safetensors do not
            if not file.read(1):
                raise ModelFileError(f"{wanted}; it is empty")
        with safetensors.safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            _check_header(header, kind, wanted)
            arrays = {key: _read(file, key, wanted) for key in file.keys()}  # noqa: SIM118
        text = header.get("document", "")
        if header.get("sha256") != _digest(kind, text, arrays):
            raise ModelFileError(
                f"{wanted}; its checksum does not match: it was altered or damaged"
            )
    except OSError as error:
        raise ModelFileError(f"{wanted}; it cannot be read: {error.strerror or error}") from error
    except safetensors.SafetensorError as error:
        raise ModelFileError(
            f"{wanted}; it is cut, damaged or of another kind ({reason_of(error)})"
        ) from error
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{wanted}; its document cannot be read: {reason_of(error)}"
        ) from error
    if not isinstance(document, dict):
        raise ModelFileError(f"{wanted}; its document holds no names and values")
    return arrays, document


def check_writable(path: PathLike) -> None:
    """Check that a file can be written at `path`, before any work on its contents.

    A temporary file in the same folder is created and removed; an existing file is not touched.

    Raises:
        OutputError: naming the path and the reason.
    """
    target = _resolve(path)
    with writing(path):
        neighbour = _neighbour(target)
        neighbour.touch()
        neighbour.unlink()


@contextlib.contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yield a hidden file in the folder of `path`; rename it to `path` if the block succeeds.

    If the block fails, the hidden file is removed. If the process is killed, it remains.

    Raises:
        OutputError: if the hidden file cannot be made or renamed. Errors of the block pass through.
    """
    target = _resolve(path)
    neighbour = _neighbour(target)
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


def named(path: PathLike) -> str:
    """Return a path as error messages show it: as text in quotation marks."""
    return repr(os.fsdecode(path))


def shown(value: Any) -> str:
    """Return a value from a file as error messages show it: shortened, in one line."""
    return _shorten.repr(value)


def reason_of(error: Exception) -> str:
    """Return the message of an error in one line, shortened, as it may quote a file."""
    return " ".join(str(error).split())[:500]


_shorten = reprlib.Repr()
_shorten.maxstring = _shorten.maxother = 80


def check_keys(name: str, value: Any, keys: Collection[str]) -> None:
    """Raise a `ValueError`, naming `name`, unless `value` is a mapping with exactly these keys."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: expected names and values, got {shown(value)}")
    if set(value) != set(keys):
        missing, other = sorted(set(keys) - set(value)), sorted(set(value) - set(keys))
        raise ValueError(f"{name}: {shown(missing)} missing, {shown(other)} not expected")


def check_arrays(
    prefix: str, arrays: Mapping[str, Any], schema: Mapping[str, str], lengths: Mapping[str, Any]
) -> dict[str, Any]:
    """Raise a `ValueError` unless arrays have the names, dtypes and shapes of a schema.

    Args:
        prefix: precedes the names in error messages.
        arrays: NumPy or JAX arrays by name.
        schema: the dtype and axes of each name, such as "int32 g q" or "float m *outputs". Axes
            with equal names have equal lengths. A star marks any number of axes; only these may be
            empty. "floating" is float32 or float64; "float" is the dtype in `lengths`.
        lengths: axes whose lengths are known, by name: a number, or a tuple for a starred name; and
            the dtype "float".

    Returns:
        `lengths`, completed by the axes of the arrays.
    """
    check_keys(prefix or "arrays", arrays, schema)
    known = dict(lengths)
    for name, described in schema.items():
        dtype, *axes = described.split()
        array, place = arrays[name], f"{prefix}.{name}" if prefix else name
        wanted = ("float32", "float64") if dtype == "floating" else (str(known.get(dtype, dtype)),)
        if array.dtype.name not in wanted:
            raise ValueError(f"{place}: expected {' or '.join(wanted)}, got {array.dtype}")
        if not _matches(array.shape, axes, known):
            sizes = {axis: known[axis.strip("*")] for axis in axes if axis.strip("*") in known}
            raise ValueError(
                f"{place}: expected shape {' '.join(axes) or '()'}, where {sizes}, got "
                f"{shown(array.shape)}"
            )
        if array.dtype.kind == "f" and not np.all(np.isfinite(np.asarray(array))):
            raise ValueError(f"{place}: expected finite numbers")
    return known


def _matches(shape: tuple[int, ...], axes: list[str], known: dict[str, Any]) -> bool:
    """Return whether a shape has the axes; add the lengths of axes that are not in `known`."""
    starred = bool(axes) and axes[-1].startswith("*")
    plain = axes[:-1] if starred else axes
    rest = shape[len(plain) :]
    if len(shape) < len(plain) or (rest and not starred) or 0 in shape[: len(plain)]:
        return False
    same = all(
        known.setdefault(axis, length) == length for axis, length in zip(plain, shape, strict=False)
    )
    return same and (not starred or known.setdefault(axes[-1][1:], rest) == rest)


def _checked(path: PathLike, refusal: type[ValueError]) -> str:
    """Return a path as text; raise `refusal` if no file can have such a path."""
    text = os.fsdecode(path)
    try:
        sound = text and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # for half of a surrogate pair
        sound = False
    if not sound:
        raise refusal(f"{text!r}: expected a path, of characters that file names have")
    return text


def _resolve(path: PathLike) -> Path:
    """Return the file that `path` or its link refers to.

    Raises:
        OutputError: if no file can be written there.
    """
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
    if len(os.fsencode(name)) > 255:  # the name of the temporary file would be short enough
        raise OutputError(f"{named(path)}: cannot be written: File name too long")
    return Path(target)


def _neighbour(target: Path) -> Path:
    """Return a path in the target's folder with a new, hidden name."""
    suffixes = "".join(target.suffixes[-2:])
    return target.with_name(f".jsparse-{secrets.token_hex(8)}{suffixes}")


def _absence(path: PathLike) -> str:
    """Return why `path` is no regular file, in words."""
    if os.path.isdir(path):
        return "it is a folder"
    return "it is not a regular file" if os.path.exists(path) else "there is no such file"


def _check_header(header: Mapping[str, str], kind: str, wanted: str) -> None:
    """Raise `ModelFileError`, beginning with `wanted`, unless jsparse wrote a file of the kind."""
    if header.get("format") != FORMAT:
        origin = shown(header.get("format"))
        raise ModelFileError(
            f"{wanted}; it is a safetensors file of other origin (format {origin})"
        )
    version = header.get("format_version")
    if version != FORMAT_VERSION:
        raise ModelFileError(
            f"{wanted} of version {FORMAT_VERSION}; it has version {shown(version)}, written by "
            "another version of jsparse"
        )
    if header.get("kind") != kind:
        raise ModelFileError(f"{wanted}; it holds a jsparse {shown(str(header.get('kind')))[1:-1]}")


def _read(file: Any, name: str, wanted: str) -> np.ndarray:
    """Return an array of a safetensors file; raise for dtypes and shapes that NumPy lacks."""
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


def _contiguous(name: str, array: Any) -> np.ndarray:
    """Return a copy in C order and native byte order, as safetensors writes the raw memory."""
    array = np.array(array, order="C")
    array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.name not in _DTYPES.values():
        known = ", ".join(_DTYPES.values())
        raise ValueError(f"array {name!r}: expected dtype {known}; got {array.dtype}")
    return array


def _digest(kind: str, text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 digest of kind, document and arrays, in hexadecimal digits."""
    digest = hashlib.sha256(f"{kind}\n{text}\n".encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


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
    """Convert a value to the types that JSON preserves.

    Raises:
        ValueError: if JSON cannot hold a part of the value, naming its place in the document;
            `where` is the place of the value itself.
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
