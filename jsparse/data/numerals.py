"""Texts that are numbers: which are, what they are exactly, and which only look like numbers."""

import decimal

from .arrow import pa, pc

_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_WHOLE = r"[-+]?[0-9]+"
_LONG = r"[-+]?0*[1-9][0-9]{15,}(?:\.[0-9]*)?"  # at least the 16 digits of 2^53
# Groups of thousands, decimal commas, units, another minus sign, brackets for it.
_WRITTEN = (
    r"[-+\x{2212}]?[$€£¥]?\s?(?:[0-9]{1,3}(?:[.,'_\s][0-9]{3})+(?:[.,][0-9]+)?|[0-9]+[.,]?[0-9]*"
    r"|[.,][0-9]+)(?:[eE][-+\x{2212}]?[0-9]+)?\s?[%$€£¥]?"
)
_MONTH = r"(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
# Numbers, dates of years with four digits or two, times of day.
_OTHER_NOTATION = (
    rf"{_WRITTEN}|\({_WRITTEN}\)"
    r"|[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}(?:[T ].*)?"
    r"|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:[0-9]{4}|[0-9]{2})"
    rf"|[0-9]{{1,2}}[-/. ]{_MONTH}[-/. ](?:[0-9]{{4}}|[0-9]{{2}})"
    r"|[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}.*)?"
)
_TIME = (
    r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
    r"(?:[T ](?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?)?"
)
_HEXADECIMAL = r"[-+]?0[xX].*"
EXACT = 2**53  # up to which float64 holds every whole number


def are_numbers(texts: pa.Array | pa.ChunkedArray, point: str = ".") -> pa.Array | pa.ChunkedArray:
    """Of each text whether it is a number written out, with this decimal point.

    Where that is the comma, all may have a point instead, if in some it cannot mark thousands.
    """
    trimmed, point = pc.utf8_trim_whitespace(texts), _own_point(texts, point)
    found = _match(pc.replace_substring(trimmed, point, "."), _NUMBER)
    return found if point == "." else pc.and_(found, pc.invert(pc.match_substring(trimmed, ".")))


def look_like_numbers(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Of each text whether it is a number or a date in one of many notations."""
    return _match(pc.utf8_trim_whitespace(texts), _OTHER_NOTATION)


def are_times(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Of each text whether it is a date, with or without a time of day, of ISO 8601."""
    return _match(pc.utf8_trim_whitespace(texts), _TIME)


def are_hexadecimal(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Of each text whether it is such as 0x1F, which Arrow takes for a number."""
    return _match(pc.utf8_trim_whitespace(texts), _HEXADECIMAL)


def may_be_thousands(texts: pa.Array | pa.ChunkedArray, mark: str) -> pa.Array | pa.ChunkedArray:
    """Of each text whether it is such as 1,234 or 12,345,678, with this mark."""
    number = rf"[-+]?[1-9][0-9]{{0,2}}(?:[{mark}][0-9]{{3}})+"
    return _match(pc.utf8_trim_whitespace(texts), number)


def exact_numbers(texts: pa.ChunkedArray, point: str = ".") -> pa.ChunkedArray | None:
    """Texts as int64, uint64, decimals or float64, of which whole numbers lose no digit.

    Nor do others, as decimals, where one of 2^53 or more that is written out would lose some. None
    if some text is no number, or they take more than 76 digits.
    """
    if not _all(are_numbers(texts, point)):
        return None
    plain = pc.utf8_trim_whitespace(texts)
    plain = pc.replace_substring(plain, _own_point(texts, point), ".")
    plain = pc.replace_substring_regex(plain, r"^\+", "")
    if not _all(_match(plain, _WHOLE)):
        long = plain.filter(_match(plain, _LONG)).to_pylist()
        if all(decimal.Decimal(text) == float(text) for text in long):
            return plain.cast(pa.float64())
        return _decimals(plain)
    digits = pc.utf8_length(pc.replace_substring_regex(plain, r"^-?0*", ""))
    most = pc.max(digits).as_py() or 0
    for kind in (pa.int64(), pa.uint64()):
        try:
            return plain.cast(kind)
        except pa.ArrowInvalid:  # too large for this one
            continue
    # Arrow does not notice when a decimal has too many digits.
    for kind, holds in ((pa.decimal128(38, 0), 38), (pa.decimal256(76, 0), 76)):
        if most <= holds:
            return plain.cast(kind)
    return None


def _decimals(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Numbers of any form as decimals of one type, or None if they take more than 76 digits."""
    try:
        cells = [None if text is None else decimal.Decimal(text) for text in texts.to_pylist()]
        return pa.chunked_array([pa.array(cells)])
    except (pa.ArrowInvalid, decimal.InvalidOperation):
        return None


def _own_point(texts: pa.Array | pa.ChunkedArray, point: str) -> str:
    commas = pc.any(pc.match_substring(texts, ","), min_count=0).as_py()
    points = pc.match_substring(texts, ".")
    thousands = may_be_thousands(texts, ".")
    decimals = pc.any(pc.and_(points, pc.invert(thousands)), min_count=0).as_py()
    return "." if point == "." or (decimals and not commas) else point


def _match(texts: pa.Array | pa.ChunkedArray, pattern: str) -> pa.Array | pa.ChunkedArray:
    return pc.match_substring_regex(texts, f"^(?:{pattern})$")


def _all(found: pa.Array | pa.ChunkedArray) -> bool:
    return pc.all(found, min_count=0).as_py()
