"""Reading tables and encoding them: against loops, round trips, and every kind of bad input."""

import csv
import datetime
import decimal
import gzip
import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from reference.tables import encode_csv
from sklearn.datasets import load_breast_cancer

from benchmarks.data_sets import benchmark_set
from jsparse.data import demo_set
from jsparse.data.encoding import Schema, encode, encode_target, fit_schema, infer_task
from jsparse.data.tables import NULL_VALUES, TableError, locate, read_table

PEOPLE = """age,job,height,member,income
31,clerk,1.75,true,>50K
45,baker,1.6,false,<=50K
28,clerk,1.82,false,<=50K
60,actor,1.7,true,>50K
"""


def written(tmp_path, text, name="data.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(tmp_path, text, name="data.csv", **options):
    return read_table(written(tmp_path, text, name), **options)


def refused(tmp_path, text, *words, name="data.csv"):
    with pytest.raises(TableError) as caught:
        read(tmp_path, text, name)
    for word in (name, *words):
        assert word in str(caught.value)


def test_a_mixed_table(tmp_path):
    table = read(tmp_path, PEOPLE)
    schema = fit_schema(table, "income")
    assert schema.task == "classification"
    assert schema.classes == ("<=50K", ">50K")
    assert schema.features == (
        *("age", "job=actor", "job=baker", "job=clerk", "height"),
        *("member=False", "member=True"),
    )
    encoded = encode(schema, table)
    np.testing.assert_array_equal(
        encoded.X,
        [
            [31, 0, 0, 1, 1.75, 0, 1],
            [45, 0, 1, 0, 1.6, 1, 0],
            [28, 0, 0, 1, 1.82, 1, 0],
            [60, 1, 0, 0, 1.7, 0, 1],
        ],
    )
    assert encoded.X.dtype == np.float64
    assert encode(schema, table, "float32").X.dtype == np.float32
    assert (encoded.unseen, encoded.imputed) == ({}, {})
    assert encode_target(schema, table).tolist() == [">50K", "<=50K", "<=50K", ">50K"]


cell = st.one_of(st.none(), st.integers(-5, 5), st.floats(-1e6, 1e6, allow_nan=False).map(repr))
word = st.one_of(st.none(), st.text(alphabet='ab,";\n é', min_size=1, max_size=3))


@hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
@hypothesis.given(
    train=st.lists(st.tuples(cell, word, word), min_size=1, max_size=8),
    other=st.lists(st.tuples(cell, word, word), min_size=1, max_size=8),
)
def test_agrees_with_loops_over_the_cells(tmp_path_factory, train, other):
    folder = tmp_path_factory.mktemp("tables")
    # At least one value in each column, and texts that no line of them can be blank.
    train = [(1.5, "x", "y"), *train]
    paths = []
    for name, rows in (("train.csv", train), ("other.csv", other)):
        paths.append(folder / name)
        with paths[-1].open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_MINIMAL)
            writer.writerow(["number", "left", "right", "target"])
            writer.writerows([*row, i / 7] for i, row in enumerate(rows))
    table = read_table(paths[0])
    schema = fit_schema(table, "target", impute=True)
    for path, rows in zip(paths, (train, other), strict=True):
        ours = encode(schema, read_table(path, schema=schema))
        expected = encode_csv(paths[0], path, "target", {"number"}, impute=True)
        np.testing.assert_array_equal(ours.X, expected)
        missing = [sum(row[j] is None for row in rows) for j in range(3)]
        names = ("number", "left", "right")
        counts = {name: m for name, m in zip(names, missing, strict=True) if m}
        assert ours.imputed == counts


def test_csv_and_parquet_agree_and_columns_may_come_in_any_order(tmp_path):
    table = read(tmp_path, PEOPLE)
    schema = fit_schema(table, "income")
    names = ["height", "extra", "member", "age", "job"]  # and no target
    other = table.append_column("extra", pa.array([1, 2, 3, 4])).select(names)
    pa.parquet.write_table(other, tmp_path / "data.parquet")
    again = read_table(tmp_path / "data.parquet", schema=schema)
    np.testing.assert_array_equal(encode(schema, again).X, encode(schema, table).X)
    categories = table.set_column(1, "job", table["job"].dictionary_encode())
    pa.parquet.write_table(categories, tmp_path / "dictionary.parquet")
    typed = read_table(tmp_path / "dictionary.parquet")
    assert fit_schema(typed, "income") == schema
    np.testing.assert_array_equal(encode(schema, typed).X, encode(schema, table).X)


def test_schema_survives_json_with_the_types_of_its_values(tmp_path):
    table = read(tmp_path, PEOPLE.replace("baker", ""), null_values=("", "?"))
    schema = fit_schema(table, "member", impute=True, categorical=["age"])
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    assert [type(c) for c in again.classes] == [bool, bool]
    assert again.columns[0].categories == (28, 31, 45, 60)
    assert again.columns[1].categories == ("actor", "clerk", None)
    assert again.null_values == ("", "?")
    with pytest.raises(ValueError, match="to_json"):
        Schema.from_json({"columns": []})


def test_unseen_categories_are_zeros_and_counted(tmp_path):
    schema = fit_schema(read(tmp_path, PEOPLE), "income")
    new = read(tmp_path, "age,job,height,member\n1,pilot,2,true\n1,clerk,2,true\n", schema=schema)
    encoded = encode(schema, new)
    np.testing.assert_array_equal(encoded.X[:, 1:4], [[0, 0, 0], [0, 0, 1]])
    assert encoded.unseen == {"job": 1}


def test_codes_that_look_like_numbers_stay_what_they_were(tmp_path):
    text = "code,y\n01,1.5\n1,2.5\nA,0.5\nB,1.0\nC,2.0\n"
    schema = fit_schema(read(tmp_path, text), "y")
    assert schema.columns[0].categories == ("01", "1", "A", "B", "C")
    new = read(tmp_path, "code\n01\n1\n", schema=schema)  # alone, these would be numbers
    np.testing.assert_array_equal(encode(schema, new).X, [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]])
    parquet = pa.table({"code": pa.array([1, 2])})
    np.testing.assert_array_equal(encode(schema, parquet).X, [[0, 1, 0, 0, 0], [0] * 5])


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["b", "a", "b"], ["a", "b"]),
        ([3, 1, 3], [1, 3]),
        ([2.0, -1.0, 2.0], [-1.0, 2.0]),
        ([True, False, True], [False, True]),
        ([decimal.Decimal("1.00"), decimal.Decimal("2.00"), decimal.Decimal("1.00")], [1.0, 2.0]),
    ],
)
def test_labels_of_any_type_keep_it(cells, labels):
    table = pa.table({"x": [1, 2, 3], "y": cells})
    schema = fit_schema(table, "y")
    assert schema.task == "classification"
    assert [(type(c), c) for c in schema.classes] == [(type(c), c) for c in labels]
    y = encode_target(schema, table)
    assert set(y.tolist()) == set(labels)
    assert type(y.tolist()[0]) is type(labels[0])


@pytest.mark.parametrize(
    ("cells", "task"),
    [
        ([0, 1, 1, 0], "classification"),
        ([1.0, 2.0, 2.0, 1.0], "classification"),
        ([0.5, 1.0, 1.0, 0.5], "regression"),
        ([0, 1, 2, 0], "regression"),
        (["a", "b", "c", "a"], "classification"),
        ([True, False, False, False], "classification"),
    ],
)
def test_task_is_inferred_by_the_rule(cells, task):
    table = pa.table({"x": [1, 2, 3, 4], "y": cells})
    inferred, reason = infer_task(table, "y")
    assert inferred == fit_schema(table, "y").task == task
    assert "'y' holds" in reason


def test_task_may_be_given():
    table = pa.table({"x": [1, 2, 3], "y": [0, 1, 2], "z": [True, False, True]})
    assert fit_schema(table, "y", task="classification").classes == (0, 1, 2)
    regression = fit_schema(table, "z", task="regression")
    y = encode_target(regression, table)
    assert y.dtype == np.float64
    assert y.tolist() == [1, 0, 1]
    with pytest.raises(TableError, match="'classification' or 'regression', got 'ranking'"):
        fit_schema(table, "y", task="ranking")
    with pytest.raises(TableError, match=r"'t': expected numbers, got 'a' in row 1"):
        fit_schema(table.append_column("t", pa.array(list("abc"))), "t", task="regression")


def test_missing_values_are_refused_by_row_line_and_column(tmp_path):
    text = 'a,b,y\n1,"two\nlines",1.5\n\n2,,2.5\n,z,3.5\nnan,z,3.5\n'
    table = read(tmp_path, text)
    schema = fit_schema(table, "y")
    with pytest.raises(TableError) as caught:
        encode(schema, table)
    message = str(caught.value)
    assert "'a' has 2 in 4 rows, the first in row 3 (line 6 of" in message
    assert "'b' has 1 in 4 rows, the first in row 2 (line 5 of" in message
    assert "--impute" in message
    part = table.slice(1)  # no longer the file: rows are those of the table, lines unknown
    with pytest.raises(TableError, match=r"the first in row 2; column 'b'"):
        encode(schema, part)


def test_missing_values_are_imputed_on_request(tmp_path):
    table = read(tmp_path, "a,b,c,y\n1,u,p,1.5\n,,q,2.5\n5,v,q,3.5\n7,v,p,4.5\n")
    schema = fit_schema(table, "y", impute=True)
    encoded = encode(schema, table)
    np.testing.assert_array_equal(encoded.X[:, 0], [1, 5, 5, 7])
    np.testing.assert_array_equal(encoded.X[1, 1:4], [0, 0, 1])
    assert schema.features[3] == "b=(missing)"
    assert encoded.imputed == {"a": 1, "b": 1}
    # Later tables get the training table's values, and zeros where training missed nothing.
    new = encode(schema, read(tmp_path, "a,b,c\n,,\n100,u,p\n", schema=schema))
    np.testing.assert_array_equal(new.X, [[5, 0, 0, 1, 0, 0], [100, 1, 0, 0, 1, 0]])
    assert new.imputed == {"a": 1, "b": 1, "c": 1}
    assert new.unseen == {}


def test_the_median_of_huge_numbers_does_not_overflow():
    table = pa.table({"x": [1.7e308, 1.7e308, None, None], "y": [1.5, 2.5, 3.5, 4.5]})
    np.testing.assert_array_equal(encode(fit_schema(table, "y", impute=True), table).X, 1.7e308)


def test_nan_is_missing_and_infinity_is_an_error():
    table = pa.table({"x": [1.0, np.nan, 3.0], "y": [1.5, 2.5, 3.5]})
    with pytest.raises(TableError, match="'x' has 1 in 3 rows, the first in row 2"):
        encode(fit_schema(table, "y"), table)
    for impute in (False, True):
        infinite = pa.table({"x": [1.0, 2.0, -np.inf], "y": [1.5, 2.5, 3.5]})
        with pytest.raises(TableError, match="'x': expected finite numbers, got -inf in row 3"):
            encode(fit_schema(infinite, "y", impute=impute), infinite)
    large = pa.table({"x": [1.0, 1e300], "y": [1.5, 2.5]})
    with pytest.raises(TableError, match=r"'x': expected numbers that fit float32, got 1e\+300"):
        encode(fit_schema(large, "y"), large, "float32")
    target = pa.table({"x": [1, 2], "y": [1.5, np.inf]})
    with pytest.raises(TableError, match="'y': expected finite numbers, got inf in row 2"):
        fit_schema(target, "y")


@pytest.mark.parametrize("cells", [[1.5, None, 2.5], ["a", None, "b"], [1.5, np.nan, 2.5]])
def test_a_missing_target_is_an_error_even_when_imputing(cells):
    table = pa.table({"x": [1, 2, 3], "y": cells})
    with pytest.raises(TableError, match="'y': missing in 1 of 3 rows, the first is row 2"):
        fit_schema(table, "y", impute=True)


def test_what_means_missing_is_remembered(tmp_path):
    table = read(tmp_path, "a,y\n1,1.5\n?,2.5\n", null_values=(*NULL_VALUES, "?"))
    schema = fit_schema(table, "y", impute=True)
    assert schema.columns[0].categories is None
    new = read(tmp_path, "a\n3\n?\n", schema=schema)
    np.testing.assert_array_equal(encode(schema, new).X, [[3], [1]])


def test_a_stray_text_does_not_turn_numbers_into_categories(tmp_path):
    table = read(tmp_path, "a,y\n1,1.5\n2,2.5\n?,3.5\n4,4.5\n")
    with pytest.raises(TableError) as caught:
        fit_schema(table, "y")
    assert "'a': expected numbers" in str(caught.value)
    assert "'?' in row 3 (line 4 of" in str(caught.value)
    forced = fit_schema(table, "y", categorical=["a"])
    assert forced.columns[0].categories == ("1", "2", "4", "?")
    numbers = fit_schema(read(tmp_path, "a,y\n1,1.5\n2,2.5\n", "other.csv"), "y")
    with pytest.raises(TableError, match=r"'a': expected numbers, got '\?' in row 3 \(line 4"):
        encode(numbers, table)


def test_too_many_categories_name_the_column():
    names = [f"name {i}" for i in range(101)]
    table = pa.table({"who": names, "y": np.arange(101) / 7})
    with pytest.raises(TableError, match="'who': expected at most 100 categories, got 101"):
        fit_schema(table, "y")
    assert len(fit_schema(table, "y", max_categories=101).features) == 101
    assert fit_schema(table.append_column("x", table["y"]), "y", drop=["who"]).features == ("x",)
    numbers = table.append_column("x", table["y"])
    with pytest.raises(TableError, match="'y': expected at most 100 classes, got 101"):
        fit_schema(numbers, "y", task="classification", drop=["who"])


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([[1], [2]], "list"),
        ([{"a": 1}, {"a": 2}], "struct"),
        ([b"a", b"b"], "binary"),
    ],
)
def test_types_without_a_meaning_are_refused_by_name(cells, words):
    table = pa.table({"odd": cells, "x": [1, 2], "y": [1.5, 2.5]})
    with pytest.raises(TableError) as caught:
        fit_schema(table, "y")
    assert "'odd'" in str(caught.value)
    assert words in str(caught.value)
    assert fit_schema(table, "y", drop=["odd"]).features == ("x",)
    with pytest.raises(TableError, match="'odd'"):
        fit_schema(table, "odd")


DAY = 86_400_000_000  # microseconds


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ([datetime.date(2020, 1, 1), datetime.date(2020, 1, 3), None], [0, 2 * DAY, DAY]),
        ([datetime.datetime(2020, 1, 1, 12), datetime.datetime(2020, 1, 1), None],
         [0, -DAY / 2, -DAY / 4]),
        ([datetime.timedelta(1), datetime.timedelta(2), None], [0, DAY, DAY / 2]),
        ([datetime.time(6), datetime.time(12), None], [0, DAY / 4, DAY / 8]),
        (["2020-01-01", " 2020-01-02T12:00", None], [0, 1.5 * DAY, 0.75 * DAY]),
        (["2020-01-01 00:00:01", "2020-01-01 00:00:01.5", "NA"], [0, 5e5, 2.5e5]),
    ],
)  # fmt: skip
def test_dates_and_times_are_microseconds(cells, found):
    table = pa.table({"when": cells, "y": [1.5, 2.5, 3.5]})
    schema = fit_schema(table, "y", impute=True)
    assert schema.columns[0].time
    np.testing.assert_array_equal(encode(schema, table).X[:, 0], found)
    assert Schema.from_json(schema.to_json()) == schema
    for other in ([1, 2, 3], ["a", "b", "c"]):
        with pytest.raises(TableError, match="'when': expected dates or times"):
            encode(schema, pa.table({"when": other}))
    numbers = fit_schema(pa.table({"when": [1, 2, 3], "y": [1.5, 2.5, 3.5]}), "y")
    with pytest.raises(TableError, match="'when': expected numbers"):
        encode(numbers, table)
    if not isinstance(cells[0], str):
        for call in (infer_task, fit_schema):
            with pytest.raises(TableError, match="target column 'when': expected numbers or cl"):
                call(table, "when")


@pytest.mark.parametrize(
    "kind",
    [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.decimal128(9, 2), pa.int64()],
)
def test_every_numeric_type_becomes_float64(kind):
    cells = [1, None, 3]
    if pa.types.is_decimal(kind):
        cells = [None if c is None else decimal.Decimal(c) for c in cells]
    elif kind == pa.float16():
        cells = np.array([1, np.nan, 3], np.float16)
    table = pa.table({"x": pa.array(cells, kind), "y": [1.5, 2.5, 3.5]})
    encoded = encode(fit_schema(table, "y", impute=True), table)
    np.testing.assert_array_equal(encoded.X, [[1], [2], [3]])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_every_text_type_is_a_category(kind):
    table = pa.table({"x": pa.array(["b", "a"]).cast(kind), "y": [1.5, 2.5]})
    np.testing.assert_array_equal(encode(fit_schema(table, "y"), table).X, [[0, 1], [1, 0]])


@pytest.mark.parametrize("first", [2**60, 2**64 - 10, 10**30, -(2**60)])
def test_whole_numbers_beyond_float64_keep_their_differences(tmp_path, first):
    cells = [first, first + 1, first + 7, None, first - 3]
    decimals = pa.array(
        [None if c is None else decimal.Decimal(c) for c in cells], pa.decimal256(40, 0)
    )
    texts = pa.array([None if c is None else str(c) for c in cells])
    target = pa.array([1.5, 2.5, 3.5, 4.5, 5.5])
    tables = [pa.table({"x": x, "y": target}) for x in (decimals, texts)]
    if first < 2**64:
        kind = pa.uint64() if first > 2**63 else pa.int64()
        tables.append(pa.table({"x": pa.array(cells, kind), "y": target}))
    text = "x,y\n" + "".join(f"{'' if c is None else c},{i + 1.5}\n" for i, c in enumerate(cells))
    for table in (*tables, read(tmp_path, text)):
        schema = fit_schema(table, "y", impute=True)
        assert schema.columns == (("x", None, 0.5, first, False, False),)
        again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
        np.testing.assert_array_equal(encode(again, table).X, [[0], [1], [7], [0.5], [-3]])
        # Other files, in which they may be of another type, are counted from there as well.
        other = read(tmp_path, f"x\n{first + 2}\n5\n", "other.csv", schema=schema)
        expected = [[2], [float(5 - first)]]
        np.testing.assert_array_equal(encode(schema, other).X, expected)
        other = pa.table({"x": pa.array([float(first)])})
        expected = int(float(first)) - first
        np.testing.assert_array_equal(encode(schema, other).X, [[expected]])


def test_numbers_that_float64_does_not_tell_apart_are_refused(tmp_path):
    for cells, pair in (
        ([0, 2**60, 2**60 + 1, 5], f"{2**60} and {2**60 + 1}, the latter in row 3"),
        ([decimal.Decimal("1." + "0" * 20 + d) for d in "12"], "1.0{20}1 and 1.0{20}2, .* row 2"),
    ):
        table = pa.table({"x": cells, "y": np.arange(len(cells)) / 3})
        with pytest.raises(TableError, match="'x': expected numbers that .*" + pair):
            fit_schema(table, "y")
    table = pa.table({"x": [1, 2, 3], "y": [2**60, 2**60 + 1, 5]})
    with pytest.raises(TableError, match="'y': expected numbers that float64 tells apart"):
        fit_schema(table, "y")
    codes = fit_schema(
        pa.table({"x": [0, 2**60, 2**60 + 1], "y": [1.5, 2, 3]}), "y", categorical=["x"]
    )
    assert codes.columns[0].categories == (0, 2**60, 2**60 + 1)
    long = "x,y\n1,1.5\n" + "9" * 80 + ",2.5\n"
    with pytest.raises(TableError, match=r"'x': expected numbers .* at most 76 digits.* row 2"):
        fit_schema(read(tmp_path, long), "y")


def test_large_numbers_among_others_lose_no_digit(tmp_path):
    first = 1_700_000_000_000_000_001
    text = f"x,y\n{first},1.5\n{first + 2},2.5\n{first + 8},3.5\n"
    schema = fit_schema(read(tmp_path, text), "y")
    for mark in ",;":
        cells = ["1.7e18", str(first + 3), f"{first + 4}.5"]
        cells = [c.replace(".", ",") if mark == ";" else c for c in cells]
        other = read(
            tmp_path, "".join([f"x{mark}z\n", *(f"{c}{mark}1\n" for c in cells)]), schema=schema
        )
        np.testing.assert_array_equal(encode(schema, other).X, [[-1], [3], [4.5]])
    texts = pa.table({"x": ["1.7e18", str(first + 3)]})
    np.testing.assert_array_equal(encode(schema, texts).X, [[-1], [3]])
    # In training they are told apart as well, or refused.
    for mark, half in ((",", "0.5"), (";", "0,5")):

        def table(*cells, mark=mark):
            rows = "".join(f"{c}{mark}{i}\n" for i, c in enumerate(cells))
            return read(tmp_path, f"x{mark}y\n{rows}")

        apart = table(2**53, 2**53 + 1, half)
        X = encode(fit_schema(apart, "y", task="regression"), apart).X
        assert X[:2, 0].tolist() == [0, 1]
        with pytest.raises(TableError, match="'x': expected numbers that float64 tells apart"):
            fit_schema(table(half, 2**53, 2**53 + 1), "y", task="regression")
    # Where float64 holds them, or as floats are written, nothing is counted from the first.
    floats = read(tmp_path, f"x,y\n{2**60},1\n0.5,2\n1e300,3\n1.2345678901234567e+19,4\n")
    schema = fit_schema(floats, "y")
    assert (floats["x"].type, schema.columns[0].origin) == (pa.float64(), 0)
    for cells in ((2**53 + 1, "1e300"), (2**53 + 1, "1e-300"), (2**53 + 1, f"1e{'9' * 30}")):
        with pytest.raises(TableError, match="'x': expected numbers that take at most 76 digits"):
            fit_schema(table(*cells, mark=","), "y")


def test_constant_columns_are_kept():
    table = pa.table({"x": [2**50, 2**50], "one": ["a", "a"], "y": [1.5, 2.5]})
    encoded = encode(fit_schema(table, "y"), table)
    np.testing.assert_array_equal(encoded.X, [[2.0**50, 1], [2.0**50, 1]])


def test_numbers_kept_as_text_are_numbers_and_said_to_be():
    cells = [str(i / 4) for i in range(40)]
    table = pa.table({"x": cells, "y": np.arange(40) / 7})
    for x in (table["x"], table["x"].dictionary_encode(), table["x"].cast(pa.large_string())):
        shown = table.set_column(0, "x", x)
        schema = fit_schema(shown, "y")
        assert schema.features == ("x",)
        encoded = encode(schema, shown)
        np.testing.assert_array_equal(encoded.X[:, 0], np.arange(40) / 4)
        assert encoded.parsed == {"x": 40}
    assert encode(schema, pa.table({"x": [1.5]})).parsed == {}
    # What means missing in a CSV file means it among numbers here.
    gaps = table.set_column(0, "x", pa.array(["NA", *cells[1:]]))
    with pytest.raises(TableError, match="'x' has 1 in 40 rows, the first in row 1"):
        encode(fit_schema(gaps, "y"), gaps)
    imputed = encode(fit_schema(gaps, "y", impute=True), gaps)
    assert imputed.X[0, 0] == np.median(np.arange(1, 40) / 4)
    assert (imputed.imputed, imputed.parsed) == ({"x": 1}, {"x": 39})
    # But a country may be NA.
    countries = pa.table({"x": ["NA", "BE", "NA"], "y": [1.5, 2.5, 3.5]})
    assert fit_schema(countries, "y").features == ("x=BE", "x=NA")
    # Targets likewise, and codes stay codes.
    reason = infer_task(table.rename_columns(["y", "x"]), "y")
    assert reason == ("regression", "'y' holds 40 distinct numbers, kept as text")
    two = pa.table({"x": [1.5, 2.5], "y": ["0", "1"]})
    assert fit_schema(two, "y").classes == ("0", "1")
    assert fit_schema(table, "y", categorical=["x"]).columns[0].categories == tuple(sorted(cells))


@pytest.mark.parametrize(
    "cells",
    [
        ["1,5", "2,25", "3"],
        ["1,000", "12,345.5", "7"],
        ["1.234,5", "2.345,6", "3"],
        ["10%", "12.5%", "3%"],
        ["$10", "$ 1,200.50", "€3"],
        ["2020-01-01", "2020-01-02T10:00:00Z", "2020-02-01 10:00"],
        ["31.12.2020", "1/2/2021", "1.1.1999"],
        ["10:30", "11:45:10", "9:00"],
        [",5", "1,5e3", ",25"],
        ["−5", "−12.5", "−1e−3"],  # noqa: RUF001
        ["(1.5)", "(1,200)", "(3)"],
        ["2020/01/02", "2020/1/3", "2020.01.04"],
        ["31.12.20", "1/2/21", "01-02-99"],
        ["02-Jan-2020", "3 feb 21", "04/March/2020"],
    ],
)
def test_texts_that_look_like_numbers_or_dates_are_refused(cells):
    table = pa.table({"x": cells, "y": [1.5, 2.5, 3.5]})
    with pytest.raises(TableError, match=r"'x': expected numbers .* got '.*' in row 1; .*--categ"):
        fit_schema(table, "y")
    with pytest.raises(TableError, match=r"'x': expected numbers .* ask for the task class"):
        infer_task(table, "x")
    assert len(fit_schema(table, "y", categorical=["x"]).features) == 3
    bins = pa.table({"x": ["18-25", "26-40", "v1.2.3"], "y": [1.5, 2.5, 3.5]})
    assert len(fit_schema(bins, "y").features) == 3


def test_csv_cells_are_what_they_say(tmp_path):
    mixed = read(tmp_path, "a,y\n1,1.5\ntrue,2.5\n")
    assert mixed["a"].to_pylist() == ["1", "true"]
    hexadecimal = read(tmp_path, "a,b,y\n0x1F,3,1.5\n0xFFFFFFFFFFFFFFFF,4,2.5\n")
    assert hexadecimal["a"].to_pylist() == ["0x1F", "0xFFFFFFFFFFFFFFFF"]
    assert hexadecimal["b"].to_pylist() == [3, 4]
    large = read(tmp_path, f"a,b,c,y\n{2**64 - 1},{10**30 + 1},1e300,1.5\n1,2,{2**60},2.5\n")
    assert large["a"].to_pylist() == [2**64 - 1, 1]
    assert large["b"].to_pylist() == [10**30 + 1, 2]
    assert large["c"].to_pylist() == [1e300, 2.0**60]
    commas = read(tmp_path, "a;b;y\n1,5;1.500;1\n2,5;2.500;2\n")
    with pytest.raises(TableError, match=r"'b': expected numbers .* got '1.500' in row 1"):
        fit_schema(commas, "y")
    # A column of other points is one of those, unless they may mark the thousands.
    commas = read(tmp_path, "a;b;y\n1,5;1.500;1\n2,5;0.500;2\n")
    np.testing.assert_array_equal(encode(fit_schema(commas, "y"), commas).X[:, 1], [1.5, 0.5])
    few = read(tmp_path, "a;y\n1;1\n2;2\n3;3\n2,5;4\n")
    assert few["a"].to_pylist() == [1, 2, 3, 2.5]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_commas_that_may_mark_thousands_are_no_decimal_commas(tmp_path, mark):
    def table(*cells, name="a", **options):
        rows = "".join(f"{cell}{mark}{i}.5\n" for i, cell in enumerate(cells))
        return read(tmp_path, f"{name}{mark}y\n{rows}", **options)

    for cells in (("1,234", "950", "12,500", "880", "101,000"), ("1,234", "2,345"), ("-1,234",)):
        thousands = table(*cells)
        assert thousands["a"].to_pylist() == list(cells)
        with pytest.raises(TableError, match=r"'a': expected numbers .* got '-?1,234' in row 1"):
            fit_schema(thousands, "y")
    assert table("1,234", "950", "0,500")["a"].to_pylist() == [1.234, 950, 0.5]
    assert table("1,234", "950", "1,5")["a"].to_pylist() == [1.234, 950, 1.5]
    # Nor does a column decide that the model does not know.
    schema = fit_schema(table("1.5", "2.25", name="x"), "y")
    text = f"u{mark}x\n1,5{mark}1.250\n2,5{mark}2.500\n"
    other = read(tmp_path, text, schema=schema)
    np.testing.assert_array_equal(encode(schema, other).X, [[1.25], [2.5]])


def test_a_kind_that_changed_since_training_is_refused():
    table = pa.table({"flag": [True, False], "code": [1, 2], "y": [1.5, 2.5]})
    schema = fit_schema(table, "y", categorical=["code"])
    floats = pa.table({"flag": [True, False], "code": [1.0, 2.5]})
    assert encode(schema, floats).unseen == {"code": 1}
    with pytest.raises(TableError, match="'flag': expected booleans as in training, got numbers"):
        encode(schema, table.set_column(0, "flag", pa.array([0, 1])))
    with pytest.raises(TableError, match=r"'code': expected numbers as in training, got texts"):
        encode(schema, table.set_column(1, "code", pa.array(["1", "2"])))


def test_whole_numbers_compare_whatever_their_size():
    def encoded(known, cells):
        y = np.arange(len(known)) / 7
        schema = fit_schema(pa.table({"x": known, "y": y}), "y", categorical=["x"])
        return encode(schema, pa.table({"x": cells}))

    known = pa.array([1, 2, 2**64 - 1], pa.uint64())
    np.testing.assert_array_equal(encoded(known, [1, 2]).X, np.eye(3)[:2])
    np.testing.assert_array_equal(encoded(known, pa.array([2**64 - 1], pa.uint64())).X, [[0, 0, 1]])
    for few in (known, pa.array([-1, 2, 3])):
        for cells, unseen in (([-1, 2], few == known), ([2**63, 2], True)):
            kind = pa.uint64() if 2**63 in cells else pa.int64()
            found = encoded(few, pa.array(cells, kind))
            assert found.unseen == ({"x": 1} if unseen else {})
            assert found.X[1].tolist() == [0, 1, 0]
    # Labels as well.
    schema = fit_schema(pa.table({"x": [1, 2], "y": [-1, 3]}), "y")
    labels = encode_target(schema, pa.table({"y": pa.array([2**64 - 1, 3], pa.uint64())}))
    assert labels.tolist() == [2**64 - 1, 3]


def test_what_means_missing_means_it_in_targets_kept_as_text():
    def table(*cells):
        return pa.table({"x": np.arange(len(cells)) / 3, "y": cells})

    for cells, task in ((("1.5", "NA", "2.5"), "regression"), (("0", "NA", "1"), "classification")):
        assert infer_task(table(*cells), "y")[0] == task
        with pytest.raises(TableError, match="'y': missing in 1 of 3 rows, the first is row 2"):
            fit_schema(table(*cells), "y")
    # But a country may be NA.
    assert fit_schema(table("NA", "BE", "NA"), "y").classes == ("BE", "NA")
    assert fit_schema(table("0", "1", "0"), "y").classes == ("0", "1")
    countries = fit_schema(table("NA", "BE", "NA"), "y")
    assert encode_target(countries, table("NA", "NA")).tolist() == ["NA", "NA"]


def test_missing_columns_name_the_nearest(tmp_path):
    table = read(tmp_path, PEOPLE)
    with pytest.raises(TableError, match=r"target column 'Incme', not found; nearest: 'income'"):
        fit_schema(table, "Incme")
    with pytest.raises(TableError, match="'zzz', not found; the table has 'age', 'job', 'height'"):
        infer_task(table, "zzz")
    with pytest.raises(TableError, match=r"the columns to drop 'jobb', not found"):
        fit_schema(table, "income", drop=["jobb"])
    schema = fit_schema(table, "income")
    with pytest.raises(TableError, match="the columns 'age', 'job', not found"):
        encode(schema, table.drop_columns(["age", "job"]))
    with pytest.raises(TableError, match="target column 'income', not found"):
        encode_target(schema, table.drop_columns(["income"]))


def test_one_class_only_and_nothing_to_learn_from():
    with pytest.raises(TableError, match="at least two classes; all 2 rows are 'a'"):
        fit_schema(pa.table({"x": [1, 2], "y": ["a", "a"]}), "y")
    with pytest.raises(TableError, match="at least one column beside the target 'y'"):
        fit_schema(pa.table({"y": [1.5, 2.5]}), "y")
    with pytest.raises(TableError, match="'x': expected values, but all are missing"):
        fit_schema(pa.table({"x": pa.nulls(2), "y": [1.5, 2.5]}), "y", impute=True)
    with pytest.raises(TableError, match="at least one row"):
        fit_schema(pa.table({"x": pa.array([], pa.int64()), "y": pa.array([], pa.int64())}), "y")


def test_files_that_are_no_tables(tmp_path):
    with pytest.raises(TableError, match="there is no such file"):
        read_table(tmp_path / "nothing.csv")
    with pytest.raises(TableError, match="it is not a file"):
        read_table(tmp_path)
    refused(tmp_path, "", "it is empty")
    refused(tmp_path, "\n\n", "readable CSV")
    refused(tmp_path, "a,b\n", "at least one row")
    refused(tmp_path, "a,b\n1,2\n3\n", "Row #3", "Expected 2 columns, got 1")
    refused(tmp_path, "a,b\n1,2\n3,4,5\n", "Row #3", "Expected 2 columns, got 3")
    refused(tmp_path, "a,b,a\n1,2,3\n", "repeated: 'a'")
    refused(tmp_path, b"PK\x03\x04....", "Excel", name="data.xlsx")
    refused(tmp_path, "a,b\n1,2\n".encode("utf-16"), "UTF-16")
    refused(tmp_path, "é,b\n1,2\n".encode("latin-1"), "UTF-8")
    refused(tmp_path, b"\x1f\x8bnot gzip", "readable CSV", name="data.csv.gz")


def test_damaged_parquet(tmp_path):
    path = tmp_path / "whole.parquet"
    pa.parquet.write_table(pa.table({"a": list(range(1000)), "b": ["text"] * 1000}), path)
    whole = path.read_bytes()
    assert read_table(path).num_rows == 1000
    for damaged in (whole[:-9], whole[: len(whole) // 2], whole[:4]):
        refused(tmp_path, damaged, "readable Parquet", name="cut.parquet")
    refused(tmp_path, "a,b\n1,2\n", "readable Parquet", name="text.parquet")
    refused(tmp_path, b"", "it is empty", name="empty.parquet")
    refused(tmp_path, whole[:60] + bytes(60) + whole[120:], "Parquet", name="holed.parquet")
    pa.parquet.write_table(pa.table({"a": pa.array([], pa.int64())}), path)
    with pytest.raises(TableError, match="at least one row"):
        read_table(path)


def test_text_that_is_not_utf8_is_named_as_a_column(tmp_path):
    table = read(tmp_path, "name,y\né,1.5\nb,2.5\n".encode("latin-1"))
    with pytest.raises(TableError, match=r"'name': .* type binary; if it is text, save .* UTF-8"):
        fit_schema(table, "y")


@pytest.mark.parametrize("mark", [";", "\t", "|", ","])
def test_delimiters_and_compression(tmp_path, mark):
    text = PEOPLE.replace(",", mark)
    expected = read(tmp_path, PEOPLE).to_pydict()
    assert read(tmp_path, text).to_pydict() == expected
    packed = read(tmp_path, gzip.compress(text.encode()), "data.csv.gz")
    assert packed.to_pydict() == expected
    assert locate(packed, 2) == f"row 3 (line 4 of {tmp_path / 'data.csv.gz'})"
    assert read(tmp_path, b"\xef\xbb\xbf" + text.encode()).to_pydict() == expected


def test_parquet_rows_have_no_line_and_pandas_labels_no_column(tmp_path):
    path = tmp_path / "a=1.parquet"
    pa.parquet.write_table(pa.table({"x": [1], "__index_level_0__": [7]}), path)
    table = read_table(path)
    assert table.column_names == ["x"]
    assert locate(table, 0) == "row 1"


def small_archive(folder, **parts):
    np.savez(folder / "toy.npz", **parts)


def test_benchmark_sets_cast_scale_and_number_their_partitions(tmp_path, monkeypatch):
    X = np.arange(12, dtype=np.int16).reshape(6, 2)
    y = np.array([-1, 1, 1, -1, 1, 1], np.int8)
    small_archive(
        tmp_path,
        X=X,
        y=y,
        scale=np.float32(0.001),
        n_train=np.int32(4),
        complete=np.array([1, 0, 1, 1, 0, 1], bool),
        categories=json.dumps({"a": ["u", "v"]}),
    )
    monkeypatch.setenv("JSPARSE_DATA", str(tmp_path))
    data = benchmark_set("toy")
    np.testing.assert_array_equal(data.X, X * 0.001)
    assert (data.X.dtype, data.y.dtype, data.task) == (np.float64, np.int64, "classification")
    assert data.columns == ("x0", "x1")
    assert data.extra["categories"] == {"a": ["u", "v"]}
    assert data.train.tolist() == [[0, 1, 2, 3]]
    assert data.test.tolist() == [[4, 5]]
    complete = benchmark_set("toy", complete=True)
    np.testing.assert_array_equal(complete.X, (X * 0.001)[[0, 2, 3, 5]])
    assert complete.y.tolist() == [-1, 1, -1, 1]
    assert complete.train.tolist() == [[0, 1, 2]]
    assert complete.test.tolist() == [[3]]
    with pytest.raises(FileNotFoundError, match=r"'other'.*the folder has toy"):
        benchmark_set("other")


def test_benchmark_sets_for_regression_and_with_several_partitions(tmp_path):
    small_archive(
        tmp_path,
        X=np.ones((3, 1), np.float32),
        y=np.ones(3, np.float32),
        target="price",
        train=np.array([[0, 1], [1, 2]], np.int32),
        test=np.array([[2], [0]], np.int32),
    )
    data = benchmark_set("toy", tmp_path)
    assert (data.task, data.y.dtype, data.target, data.classes) == (
        *("regression", np.float64, "price", None),
    )
    assert data.train.shape == (2, 2)
    with pytest.raises(ValueError, match="toy: expected a set that marks its complete rows"):
        benchmark_set("toy", tmp_path, complete=True)


def test_benchmark_folder_must_be_there(tmp_path, monkeypatch):
    monkeypatch.delenv("JSPARSE_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="JSPARSE_DATA"):
        benchmark_set("adult")
    monkeypatch.setenv("JSPARSE_DATA", str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match="JSPARSE_DATA"):
        benchmark_set("adult")


def test_demo_sets_need_no_download():
    cancer = demo_set()
    assert cancer.X.shape == (569, 30)
    assert set(cancer.y.tolist()) == set(cancer.classes) == {"malignant", "benign"}
    assert int(np.sum(cancer.y == "malignant")) == 212  # as its description says
    theirs = load_breast_cancer()
    np.testing.assert_array_equal(cancer.X, theirs.data)
    np.testing.assert_array_equal(cancer.y, theirs.target_names[theirs.target])
    assert cancer.columns == tuple(theirs.feature_names.tolist())
    diabetes = demo_set("diabetes")
    assert (diabetes.task, diabetes.X.shape, diabetes.y.dtype) == (
        *("regression", (442, 10), np.float64),
    )
    assert diabetes.X[:, 0].max() > 70  # years, not scaled units
    with pytest.raises(ValueError, match="got 'moons'"):
        demo_set("moons")
