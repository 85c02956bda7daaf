"""Read files of named arrays and a JSON document: safetensors, never pickle.

`jsparse._files` writes them. A file has the length of the header in 8 bytes, a JSON header that
gives the dtype, shape and place of each array, and the bytes of the arrays. The metadata of the
header has the entries

    format          "jsparse"
    format_version  "1"
    kind            "model", or another kind of contents
    document        the JSON document
    sha256          digest of the document and of every array

Files that were cut, altered or written by other programs are refused. Nothing in a file is
executed. As anyone can compute the checksum, it does not prove who wrote the file, so everything
that is read is checked.
"""

import hashlib
import json
import math
import os
import reprlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

FORMAT = "jsparse"
FORMAT_VERSION = "1"

# NumPy's dtypes by their names in safetensors files, which may also hold dtypes NumPy lacks.
DTYPES = {
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
}

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class ModelFileError(ValueError):
    """A file is invalid; the message names the file, what was expected and what came."""


def load_state(
    path: PathLike, *, kind: str = "state"
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays, bit for bit, and the JSON document of a file that `save_state` wrote.

    Raises:
        ModelFileError: if the file is missing, empty, cut, altered, of another kind or origin,
            of another format version, or holds what `save_state` does not write.
    """
    path = checked_path(path, ModelFileError)
    wanted = f"{named(path)}: expected a jsparse {kind} in safetensors format"
    metadata, arrays = _read_arrays(_bytes_of(path, wanted), kind, wanted)
    text = metadata.get("document", "")
    if metadata.get("sha256") != digest(kind, text, arrays):
        raise ModelFileError(f"{wanted}; its checksum does not match: it was altered or damaged")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{wanted}; its document cannot be read: {reason_of(error)}"
        ) from error
    if not isinstance(document, dict):
        raise ModelFileError(f"{wanted}; its document holds no names and values")
    return arrays, document


def _bytes_of(path: str, wanted: str) -> bytes:
    """Return the contents of a file; raise `ModelFileError` if it cannot be read or is empty.

    The message begins with `wanted`.
    """
    if not os.path.isfile(path):
        raise ModelFileError(f"{wanted}; {_absence(path)}")
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ModelFileError(f"{wanted}; it cannot be read: {error.strerror or error}") from error
    if not data:
        raise ModelFileError(f"{wanted}; it is empty")
    return data


class _ArrayInfo(NamedTuple):
    """The dtype and shape of an array, its first byte in the file, and the byte after its last."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _read_arrays(
    data: bytes, kind: str, wanted: str
) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return the metadata and the arrays, by name, of a safetensors file with the bytes `data`.

    If jsparse did not write it as a file of this kind, raise `ModelFileError` that begins `wanted`.
    """
    try:
        metadata, infos = _header(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{wanted}; it is cut, damaged or of another kind ({reason_of(error)})"
        ) from error
    _check_header(metadata, kind, wanted)
    return metadata, {name: _array(data, name, info, wanted) for name, info in infos.items()}


def _header(data: bytes) -> tuple[dict[str, str], dict[str, _ArrayInfo]]:
    """Return a file's metadata, and each array's dtype and extent; raise ValueError if invalid."""
    start = 8 + int.from_bytes(data[:8], "little")
    if not 8 < start <= len(data):
        raise ValueError(f"a header of {start - 8} bytes in a file of {len(data)}")
    header = json.loads(data[8:start].decode(), object_pairs_hook=_distinct)
    if not isinstance(header, dict):
        raise ValueError("the header holds no names and values")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("the metadata are no texts by name")
    infos = {name: _array_info(name, described, start) for name, described in header.items()}
    end = start
    for name, info in sorted(infos.items(), key=lambda item: item[1][2:]):
        if info.begin != end:
            raise ValueError(f"array {shown(name)} begins at {info.begin}, expected {end}")
        end = info.end
    if end != len(data):
        raise ValueError(f"the arrays end at {end} in a file of {len(data)} bytes")
    return metadata, infos


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; raise ValueError if it has a name twice."""
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError("a name is used twice in the header")
    return names


def _array_info(name: str, described: Any, start: int) -> _ArrayInfo:
    """Return an array's entry `described` in the header, with offsets from the file's first byte.

    `start` is the offset of the first array. If the entry is invalid, raise ValueError.
    """
    check_keys(f"array {shown(name)}", described, ("dtype", "shape", "data_offsets"))
    dtype, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
    are_lists = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    if not isinstance(dtype, str) or not are_lists or not all(map(_is_size, [*shape, *offsets])):
        raise ValueError(f"array {shown(name)}: dtype, shape or place is invalid")
    begin, end = offsets
    if dtype in DTYPES and end - begin != math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize:
        raise ValueError(f"array {shown(name)}: {end - begin} bytes do not suit its shape")
    return _ArrayInfo(dtype, tuple(shape), start + begin, start + end)


def _is_size(value: Any) -> bool:
    """Return whether a value is a whole number that may be a size or an offset in a file."""
    return type(value) is int and 0 <= value < 2**63


def _array(data: bytes, name: str, info: _ArrayInfo, wanted: str) -> np.ndarray:
    """Return an array of the file with the bytes `data`.

    For a dtype or shape that NumPy lacks, raise `ModelFileError`; its message begins with `wanted`.
    """
    refusal = f"{wanted}; its array {shown(name)}"
    if info.dtype not in DTYPES:
        known = ", ".join(DTYPES.values())
        raise ModelFileError(f"{refusal} is of dtype {info.dtype}; expected {known}")
    dtype = np.dtype(DTYPES[info.dtype])
    try:
        little = np.frombuffer(data[info.begin : info.end], dtype.newbyteorder("<"))
        return little.astype(dtype).reshape(info.shape)
    except ValueError as error:  # more axes than NumPy allows, or a longer axis in an empty array
        shape = shown(list(info.shape))
        raise ModelFileError(f"{refusal} is of shape {shape}; expected another") from error


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
        array, full_name = arrays[name], f"{prefix}.{name}" if prefix else name
        wanted = ("float32", "float64") if dtype == "floating" else (str(known.get(dtype, dtype)),)
        if array.dtype.name not in wanted:
            raise ValueError(f"{full_name}: expected {' or '.join(wanted)}, got {array.dtype}")
        if not _matches(array.shape, axes, known):
            sizes = {axis: known[axis.strip("*")] for axis in axes if axis.strip("*") in known}
            raise ValueError(
                f"{full_name}: expected shape {' '.join(axes) or '()'}, where {sizes}, got "
                f"{shown(array.shape)}"
            )
        if array.dtype.kind == "f" and not np.all(np.isfinite(np.asarray(array))):
            raise ValueError(f"{full_name}: expected finite numbers")
    return known


def _matches(shape: tuple[int, ...], axes: list[str], known: dict[str, Any]) -> bool:
    """Return whether a shape has axes of these names, whose lengths by name are in `known`.

    The lengths of axes that are not in `known` are added to it.
    """
    starred = bool(axes) and axes[-1].startswith("*")
    plain = axes[:-1] if starred else axes
    rest = shape[len(plain) :]
    if len(shape) < len(plain) or (rest and not starred) or 0 in shape[: len(plain)]:
        return False
    matches = all(
        known.setdefault(axis, length) == length for axis, length in zip(plain, shape, strict=False)
    )
    return matches and (not starred or known.setdefault(axes[-1][1:], rest) == rest)


def checked_path(path: PathLike, refusal: type[ValueError]) -> str:
    """Return a path as text; raise the error class `refusal` if no file can have such a path."""
    text = os.fsdecode(path)
    try:
        is_valid = text and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # for half of a surrogate pair
        is_valid = False
    if not is_valid:
        raise refusal(f"{text!r}: expected a path, of characters that file names have")
    return text


def _absence(path: PathLike) -> str:
    """Return why `path` is no regular file, in words."""
    if os.path.isdir(path):
        return "it is a folder"
    return "it is not a regular file" if os.path.exists(path) else "there is no such file"


def _check_header(header: Mapping[str, str], kind: str, wanted: str) -> None:
    """Raise `ModelFileError` unless the metadata say that jsparse wrote a file of this kind.

    The message begins with `wanted`.
    """
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


def digest(kind: str, text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 digest of kind, document and arrays, in hexadecimal digits."""
    digest = hashlib.sha256(f"{kind}\n{text}\n".encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
