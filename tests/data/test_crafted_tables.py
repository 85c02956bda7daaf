"""Tables with every kind of cell are read as by the csv module, or clearly refused.

Each table is written as CSV by the standard library and read whole, in batches, and from Parquet.
What is accepted is compared with loops over the cells.
"""

import csv
import datetime
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
from crafted import crafted_examples

from jsparse.data.encoding import encode, encode_target, fit_schema
from jsparse.data.table_files import TableFile, read_table
from jsparse.data.table_streams import TableStream, stream_schema
from jsparse.data.tables import TableError, rows_of_file
from jsparse.predictor.schema import NULL_VALUES

small = st.integers(-99, 99).map(str)
floats = st.floats(-1e300, 1e300, allow_nan=False).map(repr)
texts = st.text('ab,;"\n\té |', min_size=1, max_size=4).filter(lambda t: t.strip() == t)
booleans = st.sampled_from(["true", "false"])
dates = st.dates().map(str)
odd = st.one_of(
    st.sampled_from(["0x1F", "1_000", "1,5", "1e400", "inf", "1 000", "9" * 30, "9" * 400]),
    st.sampled_from(["٣", "01", "NaN", "NA", "10:30", "10%", "$5", "18-25", "?", "-", "a\0", ""]),
)
kinds = st.sampled_from([small, floats, texts, booleans, dates, odd, small | odd, floats | odd])


@st.composite
def columns(draw, rows):
    cell = draw(kinds)
    if draw(st.integers(0, 3)) == 0:
        cell = cell | st.sampled_from(["", "NA", "nan"])
    return draw(st.lists(cell, min_size=rows, max_size=rows))


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 6))
    return [draw(columns(rows)) for _ in range(draw(st.integers(1, 2)))]


def number(cell):
    """Return the number that pyarrow reads from a cell: 31 from 0x1F."""
    return float(int(cell, 16) if cell.startswith("0x") else float(cell))


def moment(cell):
    """Return the point in time of a cell; a time of day is placed on the first day."""
    if "-" in cell:
        return datetime.datetime.fromisoformat(cell)
    return datetime.datetime.combine(datetime.date.min, datetime.time.fromisoformat(cell))


def expected_column(cells, column):
    """Encode cells by loops as the schema's kind of column says; return also which are missing."""
    missing = [cell in NULL_VALUES for cell in cells]
    if column.categories is not None:
        names = [str(c).lower() if isinstance(c, bool) else c for c in column.categories]
        names = [n for n in names if n is not None]
        return [[float(c == n) for n in names] for c in cells], missing
    if column.origin is None:
        values = [np.nan if m else number(c) for c, m in zip(cells, missing, strict=True)]
        return np.transpose([values]), missing
    times = [None if m else moment(c) for c, m in zip(cells, missing, strict=True)]
    start = next(t for t in times if t is not None)
    micro = datetime.timedelta(microseconds=1)
    return [[np.nan if t is None else (t - start) / micro] for t in times], missing


def as_csv(cells, delimiter, bom, end):
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
    writer.writerow([*(f"x{i}" for i in range(len(cells))), "y"])
    writer.writerows([*row, f"{i + 1}.5"] for i, row in enumerate(zip(*cells, strict=True)))
    return ("\ufeff" if bom else "").encode() + file.getvalue().encode()


def read_whole(path):
    table = read_table(path)
    names = {"name_row": rows_of_file(range(table.num_rows))}
    schema = fit_schema(table, "y", task="regression", impute=True, **names)
    return schema, encode(schema, table, **names).X, encode_target(schema, table, **names)


def read_stream(path):
    file = TableFile(path, batch_rows=2)
    schema, *_ = stream_schema(file, "y", task="regression", impute=True)
    X, y, _ = zip(*TableStream(file, schema), strict=True)
    return schema, np.concatenate(X), np.concatenate(y)


def outcome(read, path):
    """Return the table that is read from a file, or the message of a clear refusal."""
    try:
        return read(path)
    except TableError as refusal:
        message = str(refusal)
    assert re.search(r"'x\d'|column|row|lines?|expected", message), message
    assert len(message) < 1500
    return message


def check(cells, encoded):
    """Check that an accepted table is what its cells say."""
    schema, X, y = encoded
    np.testing.assert_array_equal(y, [i + 1.5 for i in range(len(y))])
    at = 0
    for column, column_cells in zip(schema.columns, cells, strict=True):
        expected, missing = expected_column(column_cells, column)
        missing = np.array(missing)
        width = len(column.features)
        ours, at = X[:, at : at + width], at + width
        if column.categories is not None and None in column.categories:
            np.testing.assert_array_equal(ours[:, -1], missing)
            ours = ours[:, :-1]
        np.testing.assert_allclose(ours[~missing], np.array(expected)[~missing], rtol=4e-16)
        if column.categories is None and column.fill is not None:
            middle = statistics.median(ours[~missing, 0].tolist())
            np.testing.assert_allclose(ours[missing, 0], middle, rtol=4e-16)


@pytest.mark.parametrize("examples", [50, pytest.param(3_000, marks=pytest.mark.slow)])
def test_every_table_is_what_its_cells_say_or_refused(tmp_path, examples):
    counts = Counter()

    @crafted_examples(examples)
    @hypothesis.given(
        cells=tables(),
        delimiter=st.sampled_from(",;\t|"),
        bom=st.booleans(),
        end=st.sampled_from(["\n", "\r\n"]),
    )
    def check_table(cells, delimiter, bom, end):
        path = tmp_path / "t.csv"
        path.write_bytes(as_csv(cells, delimiter, bom, end))
        # The oracle of what is in a cell: the standard library's reader of what was written.
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, delimiter=delimiter))[1:]
        cells = [list(column) for column in zip(*rows, strict=True)][:-1]
        whole = outcome(read_whole, path)
        counts["CSV refused" if isinstance(whole, str) else "CSV"] += 1
        if not isinstance(whole, str):
            check(cells, whole)
        streamed = outcome(read_stream, path)
        if not isinstance(streamed, str):
            check(cells, streamed)
            if not isinstance(whole, str):
                np.testing.assert_array_equal(whole[1], streamed[1])
        # Parquet of texts: categories, or refused as they look like numbers.
        nulls = {
            f"x{i}": pa.array([None if c in NULL_VALUES else c for c in column], pa.string())
            for i, column in enumerate(cells)
        }
        y = pa.array([i + 1.5 for i in range(len(rows))])
        path = tmp_path / "t.parquet"
        pq.write_table(pa.table({**nulls, "y": y}), path, row_group_size=3)
        for read in (read_whole, read_stream):
            encoded = outcome(read, path)
            counts["Parquet refused" if isinstance(encoded, str) else "Parquet"] += 1
            if not isinstance(encoded, str):
                check(cells, encoded)

    check_table()
    assert min(counts[name] for name in ("CSV", "Parquet", "CSV refused")) > 0.1 * examples


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
        (b"\n\n", "readable CSV|Empty CSV"),
        (b"a,y\n1,1\n2\n", "Expected 2 columns, got 1"),
        (b"a,y\n1,1\n2,2,2\n", "Expected 2 columns, got 3"),
        (b'a,y\n"1,1\n2,2\n', "Expected 2 columns"),
    ],
)
def test_files_are_refused_alike_whole_and_in_batches(content, words, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    for read in (read_table, lambda path: list(TableFile(path))):
        with pytest.raises(TableError, match=words) as caught:
            read(path)
        assert "t.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (pa.array([True, False, None]), [[0, 1, 0], [1, 0, 0], [0, 0, 1]]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), [[0, 1], [1, 0], [0, 1]]),
        (pa.array([1, 12, None], pa.decimal128(9, 2)), [[1], [12], [6.5]]),
        (pa.array([2**63 + 1, 2**63, None], pa.uint64()), "whole numbers of at most 2^53"),
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
        (
            pa.array([1.0, float("inf"), 2.0]),
            "finite numbers, got inf in data row 2 (the first is 1)",
        ),
        (pa.array(["1", "inf", "2"]), "got 'inf' in data row 2 (the first is 1)"),
    ],
)
def test_types_of_parquet(cells, expected, tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": cells, "y": [1.5, 2.5, 3.5]}), path)
    for read in (read_whole, read_stream):
        got = outcome(read, path)
        if isinstance(expected, str):
            assert "'x'" in got
            assert expected in got
        else:
            np.testing.assert_array_equal(got[1], expected)


def test_texts_that_are_not_utf8_in_parquet(tmp_path):
    bytes_ = pa.array([b"\xff\xfe", b"a"])
    pq.write_table(pa.table({"x": bytes_.view(pa.string()), "y": [1.5, 2.5]}), tmp_path / "t")
    with pytest.raises(TableError, match="UTF8"):
        read_table(tmp_path / "t")
