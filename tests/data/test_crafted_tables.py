"""Tables of every kind of cell: what the csv module and pyarrow say they hold, or a clear refusal.

Each table is written as CSV by the standard library and as Parquet by pyarrow, and read whole and
in batches. What is accepted is compared with loops over the cells in exact arithmetic.
"""

import csv
import datetime
import decimal
import fractions
import io
import re
import statistics
from collections import Counter

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jsparse.data.encoding import encode, encode_target, fit_schema
from jsparse.data.table_streams import TableFile, TableStream, stream_schema
from jsparse.data.tables import NULL_VALUES, TableError, read_table

NUMBER = re.compile(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*", re.ASCII)
BOOLEANS = {"true": 1, "True": 1, "TRUE": 1, "false": 0, "False": 0, "FALSE": 0}

small = st.integers(-99, 99).map(str)
floats = st.floats(allow_nan=False, allow_infinity=False).map(repr)
large = st.integers(0, 20).map(lambda i: str(2**60 + i))
beyond = st.integers(-5, 5).map(lambda i: str(2**64 + i)) | st.just("9" * 30)
texts = st.text('ab,;"\n\té |', min_size=1, max_size=4).filter(lambda t: t.strip() == t)
odd = st.one_of(
    st.sampled_from(["0x1F", "1_000", "+5", "1,5", "1.5e3", "1e400", "inf", "-Infinity", "1 000"]),
    st.sampled_from(["9" * 80, "9" * 400, "٣", "01", "1.", ".5", "-0", "1e5", "NaN", "NA", "null"]),
    st.sampled_from(["2020-01-01", "2020-01-01 10:00:00", "10:30", "1,000", "10%", "$5", "18-25"]),
    st.sampled_from(["?", "-", "None", "true", "FALSE", "T", "", "a\0"]),
)
commas = st.sampled_from(["1,5", "0,250", "-12,5", "1,5e3", ",5"])
thousands = st.sampled_from(["1,234", "12,500", "101,000", "-1,234", "950", "1,234,567"])
points = st.sampled_from(["1.234", "12.500", "1.234,5", "1.5", "7"])
mixed = [small | large, small | odd, commas | thousands, commas | small, points | commas]
kinds = st.sampled_from(
    [small, floats, large, beyond, texts, odd, commas, thousands, points, *mixed]
)


@st.composite
def columns(draw, rows):
    cell = draw(kinds)
    if draw(st.integers(0, 3)) == 0:
        cell = cell | st.sampled_from(["", "NA", "nan"])
    if draw(st.integers(0, 3)) == 0:  # mixed types
        cell = cell | draw(kinds)
    return draw(st.lists(cell, min_size=rows, max_size=rows))


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 6))
    return [draw(columns(rows)) for _ in range(draw(st.integers(1, 2)))]


def exactly(cell):
    """A cell as a fraction."""
    return fractions.Fraction(decimal.Decimal(cell.strip()))


def has_decimal_comma(cell):
    """Whether a cell is a number with a comma that cannot mark thousands."""
    number = "." not in cell and "," in cell and NUMBER.fullmatch(cell.replace(",", "."))
    return bool(number) and not re.fullmatch(r"\s*[-+]?[1-9][0-9]{0,2}(,[0-9]{3})+\s*", cell)


def as_read(table, delimiter):
    """The columns of a file with points for decimal commas, where these may be told."""
    if delimiter == "," or not any(has_decimal_comma(c) for column in table for c in column):
        return table
    read = []
    for column in table:
        pointed = [c.replace(",", ".") for c in column]
        present = [c for c in pointed if c not in NULL_VALUES]
        numbers = all(NUMBER.fullmatch(c) for c in present) and not any("." in c for c in column)
        read.append(pointed if numbers else column)
    return read


def time_of_day(cell):
    return datetime.datetime.combine(datetime.date.min, datetime.time.fromisoformat(cell))


def expected_columns(cells):
    """What a column must become, by loops: lists of numbers, NaN where one is missing."""
    present = [c for c in cells if c not in NULL_VALUES]
    if all(c in BOOLEANS for c in present):
        cells = [c if c in NULL_VALUES else str(bool(BOOLEANS[c])) for c in cells]
        present = [c for c in cells if c not in NULL_VALUES]
    elif all(NUMBER.fullmatch(c) for c in present):
        whole = all(re.fullmatch(r"\s*[-+]?[0-9]+\s*", c) for c in present)
        values = [exactly(c) for c in present]
        written_out = [c for c in present if "e" not in c.lower() and abs(exactly(c)) >= 2**53]
        if not whole and all(exactly(c) == fractions.Fraction(float(c)) for c in written_out):
            values, origin = [fractions.Fraction(float(c)) for c in present], 0
        else:
            origin = int(values[0]) if max(map(abs, values)) > 2**53 else 0
        numbers = [float("nan") if c in NULL_VALUES else None for c in cells]
        rest = iter(float(v - origin) for v in values)
        return [[next(rest) if n is None else n for n in numbers]]
    for parse in (datetime.datetime.fromisoformat, time_of_day):
        try:
            times = [parse(c) for c in present]
        except ValueError:
            continue
        first = times[0]
        rest = iter((t - first) / datetime.timedelta(microseconds=1) for t in times)
        return [[float("nan") if c in NULL_VALUES else next(rest) for c in cells]]
    categories = sorted(set(present))
    return [[float(c == k) if c not in NULL_VALUES else 0.0 for c in cells] for k in categories]


def as_csv(cells, delimiter, bom, end):
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
    writer.writerow([*(f"x{i}" for i in range(len(cells))), "y"])
    writer.writerows([*row, f"{i + 1}.5"] for i, row in enumerate(zip(*cells, strict=True)))
    return ("\ufeff" if bom else "").encode() + file.getvalue().encode()


def read_whole(path):
    table = read_table(path)
    schema = fit_schema(table, "y", task="regression", impute=True)
    return schema, encode(schema, table).X, encode_target(schema, table)


def read_stream(path):
    file = TableFile(path, batch_rows=2)
    schema, *_ = stream_schema(file, "y", task="regression", impute=True)
    X, y, _ = zip(*TableStream(file, schema), strict=True)
    return schema, np.concatenate(X), np.concatenate(y)


def outcome(read, path):
    """What a file is read as, or the message of a clear refusal."""
    try:
        return read(path)
    except TableError as refusal:
        message = str(refusal)
    assert re.search(r"'x\d'|column|row|lines?|expected", message), message
    assert len(message) < 1500
    return message


def check(cells, found):
    """See that a table that was accepted is what its cells say."""
    schema, X, y = found
    np.testing.assert_array_equal(y, [i + 1.5 for i in range(len(y))])
    at = 0
    for column, own in zip(schema.columns, cells, strict=True):
        missing = np.array([c in NULL_VALUES for c in own])
        width = len(column.features)
        ours, at = X[:, at : at + width], at + width
        expected = np.transpose(expected_columns(own))
        if column.categories is not None and None in column.categories:
            np.testing.assert_array_equal(ours[:, -1], missing)
            ours = ours[:, :-1]
        # To a rounding: less the origin of a column, which is exact for whole numbers only.
        np.testing.assert_allclose(ours[~missing], expected[~missing], rtol=4e-16)
        if column.categories is None:  # numbers that differ do so still
            told = {c if column.time else exactly(c) for c in np.array(own)[~missing]}
            assert len(set(ours[~missing, 0].tolist())) == len(told)
            middle = statistics.median(map(fractions.Fraction, ours[~missing, 0].tolist()))
            assert np.all(ours[missing] == float(middle))


def net(folder, examples):
    counts = Counter()

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        cells=tables(),
        delimiter=st.sampled_from(",;\t|"),
        bom=st.booleans(),
        end=st.sampled_from(["\n", "\r\n"]),
    )
    def every_table_is_what_it_says_or_refused(cells, delimiter, bom, end):
        path = folder / "t.csv"
        path.write_bytes(as_csv(cells, delimiter, bom, end))
        # The oracle of what is in a cell: the standard library's reader of what was written.
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, delimiter=delimiter))[1:]
        cells = [list(column) for column in zip(*rows, strict=True)][:-1]
        kept_texts = {
            f"x{i}": pa.array([None if c in NULL_VALUES else c for c in column], pa.string())
            for i, column in enumerate(cells)
        }
        # A file that is accepted has one reading of every column.
        cells = as_read(cells, delimiter)
        whole = outcome(read_whole, path)
        counts["CSV refused" if isinstance(whole, str) else "CSV"] += 1
        if not isinstance(whole, str):
            check(cells, whole)
        streamed = outcome(read_stream, path)
        if not isinstance(streamed, str):
            check(cells, streamed)
            assert not isinstance(whole, str)
        # Parquet of the same texts, and its own numbers where Arrow has a type for them.
        y = pa.array([i + 1.5 for i in range(len(rows))])
        path = folder / "t.parquet"
        pq.write_table(pa.table({**kept_texts, "y": y}), path, row_group_size=3)
        for read in (read_whole, read_stream):
            kept = outcome(read, path)
            counts["Parquet refused" if isinstance(kept, str) else "Parquet"] += 1
            if isinstance(kept, str) or isinstance(whole, str):
                continue
            truths = [c for c in cells if all(v in BOOLEANS or v in NULL_VALUES for v in c)]
            if not truths:  # texts there, booleans in CSV
                check(cells, kept)
                np.testing.assert_array_equal(kept[1], whole[1])

    every_table_is_what_it_says_or_refused()
    print(dict(counts))
    assert min(counts[name] for name in ("CSV", "Parquet", "CSV refused")) > 0.1 * examples


def test_crafted_tables(tmp_path):
    net(tmp_path, 100)


@pytest.mark.slow
def test_thousands_of_crafted_tables(tmp_path):
    net(tmp_path, 3_000)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,y\n1,1\n".encode("utf-16"), "UTF-16"),
        ("a,y\n1,1\n".encode("utf-16-le"), "UTF-16"),
        ("a,y\n1,1\n".encode("utf-32"), "UTF-16"),
        ("é,y\n1,1\n".encode("latin-1"), "(UTF|utf)-8"),
        (b"a,a,y\n1,2,1\n", "repeated: 'a'"),
        (b"a,,,y\n1,2,3,1\n", "repeated: ''"),
        (b"a,y\n", "at least one row"),
        (b"", "it is empty"),
        (b"a,y\n1,1\n2\n", "Expected 2 columns"),
        (b'a,y\n"1,1\n2,2\n', "Expected 2 columns"),
    ],
)
def test_files_are_refused_alike_whole_and_in_batches(content, words, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(TableError, match=words):
        read_table(path)

    def batches():
        return list(TableFile(path))

    with pytest.raises(TableError, match=words):
        batches()


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (pa.array([True, False, None]), [[0, 1, 0], [1, 0, 0], [0, 0, 1]]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), [[0, 1], [1, 0], [0, 1]]),
        (pa.array(["2", "1", "2"]).dictionary_encode(), [[2], [1], [2]]),
        (pa.array([1, 12, None], pa.decimal128(9, 2)), [[1], [12], [6.5]]),
        (pa.array([2**63 + 1, 2**63, None], pa.uint64()), [[0], [-1], [-0.5]]),
        (pa.array([1.5, float("nan"), 2.5]), [[1.5], [2.0], [2.5]]),
        (
            pa.array([datetime.date(2020, 1, 1), datetime.date(2020, 1, 2), None]),
            [[0], [86.4e9], [43.2e9]],
        ),
        (pa.array([0, 4000, 2000], pa.timestamp("ns", "Europe/Brussels")), [[0], [4], [2]]),
        (pa.array([[1], [2], [3]]), "list"),
        (pa.array([{"a": 1}] * 3), "struct"),
        (pa.array([b"a"] * 3), "binary"),
        (pa.nulls(3), "all are missing"),
        (pa.array([1.0, float("inf"), 2.0]), "finite numbers, got inf in row 2"),
        (pa.array(["1", "inf", "2"]), "got 'inf' in row 2"),
        (pa.array(["1", "1e400", "2"]), "finite numbers, got inf in row 2"),
        (pa.array(["1", "9" * 400 + ".5", "2"]), "numbers that take at most 76 digits"),
    ],
)
def test_types_of_parquet(cells, found, tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": cells, "y": [1.5, 2.5, 3.5]}), path)
    for read in (read_whole, read_stream):
        got = outcome(read, path)
        if isinstance(found, str):
            assert "'x'" in got
            assert found in got
        else:
            np.testing.assert_array_equal(got[1], found)


def test_texts_that_are_not_utf8_in_parquet(tmp_path):
    bytes_ = pa.array([b"\xff\xfe", b"a"])
    pq.write_table(pa.table({"x": bytes_.view(pa.string()), "y": [1.5, 2.5]}), tmp_path / "t")
    with pytest.raises(TableError, match="UTF8"):
        read_table(tmp_path / "t")
