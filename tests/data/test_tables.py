"""Tables are read and encoded as by loops over their cells; bad input is refused."""

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
from jsparse.data.frames import Frame
from jsparse.data.table_files import TableFile, read_table
from jsparse.data.table_streams import stream_schema
from jsparse.data.tables import TableError, rows_of_file
from jsparse.predictor.checks import rows_of
from jsparse.predictor.schema import NULL_VALUES, CsvFormat

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
    table = read(tmp_path, PEOPLE.replace("baker", ""), csv=CsvFormat(("", "?")))
    schema = fit_schema(
        table, "member", impute=True, categorical=["age"], csv=CsvFormat(("", "?"), ",", "|")
    )
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    assert [type(c) for c in again.classes] == [bool, bool]
    assert again.columns[0].categories == (28, 31, 45, 60)
    assert again.columns[1].categories == ("actor", "clerk", None)
    assert again.csv == CsvFormat(("", "?"), decimal=",", delimiter="|")
    with pytest.raises(ValueError, match="to_json"):
        Schema.from_json({"columns": []})


def test_unseen_categories_are_zeros_and_counted(tmp_path):
    schema = fit_schema(read(tmp_path, PEOPLE), "income")
    new = read(tmp_path, "age,job,height,member\n1,pilot,2,true\n1,clerk,2,true\n", schema=schema)
    encoded = encode(schema, new)
    np.testing.assert_array_equal(encoded.X[:, 1:4], [[0, 0, 0], [0, 0, 1]])
    assert encoded.unseen == {"job": 1}
    assert encoded.unseen_values == {"job": ["pilot"]}


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


def test_task_is_inferred_by_the_rule():
    for cells, task in (
        ([0, 1, 1, 0], "classification"),
        ([1.0, 2.0, 2.0, 1.0], "classification"),
        ([0.5, 1.0, 1.0, 0.5], "regression"),
        ([0, 1, 2, 0], "regression"),
        (["a", "b", "c", "a"], "classification"),
        ([True, False, False, False], "classification"),
    ):
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
    with pytest.raises(TableError, match=r"'t': expected numbers, got 'a' in row index 0"):
        fit_schema(table.append_column("t", pa.array(list("abc"))), "t", task="regression")


def test_missing_values_are_refused_by_row_and_column(tmp_path):
    text = 'a,b,y\n1,"two\nlines",1.5\n\n2,,2.5\n,z,3.5\nnan,z,3.5\n'
    table = read(tmp_path, text)
    schema = fit_schema(table, "y")
    with pytest.raises(TableError) as caught:
        encode(schema, table)
    message = str(caught.value)
    assert "'a' has 2 in 4 rows, the first in row index 2" in message
    assert "'b' has 1 in 4 rows, the first in row index 1" in message
    assert "--impute" in message
    with pytest.raises(
        TableError, match=r"the first in data row 102 [(]the first is 1[)]; column 'b'"
    ):
        encode(schema, table.slice(1), name_row=rows_of_file([100, 101, 102]))


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


def test_nan_is_missing_and_infinity_is_an_error():
    def encoded(cells, y=(1.5, 2.5, 3.5), dtype="float64", **options):
        table = pa.table({"x": cells, "y": y})
        return encode(fit_schema(table, "y", **options), table, dtype).X

    infinite = "'x': expected finite numbers, got -inf in row index 2"
    for call, message in (
        (lambda: encoded([1.0, np.nan, 3.0]), "'x' has 1 in 3 rows, the first in row index 1"),
        (lambda: encoded([1.0, 2.0, -np.inf]), infinite),
        (lambda: encoded([1.0, 2.0, -np.inf], impute=True), infinite),
        (
            lambda: encoded([1.0, 1e300, 2.0], dtype="float32"),
            r"'x': expected numbers that fit float32, got 1e\+300",
        ),
        (
            lambda: encoded([1, 2, 3], [1.5, np.inf, 0.5]),
            "'y': expected finite numbers, got inf in row index 1",
        ),
    ):
        with pytest.raises(TableError, match=message):
            call()
    large = encoded([1.7e308, 1.7e308, None], impute=True)  # whose median does not overflow
    np.testing.assert_array_equal(large, 1.7e308)


def test_a_missing_target_is_an_error_even_when_imputing():
    for cells in ([1.5, None, 2.5], ["a", None, "b"], [1.5, np.nan, 2.5]):
        table = pa.table({"x": [1, 2, 3], "y": cells})
        message = "'y': missing in 1 of 3 rows, the first is row index 1"
        with pytest.raises(TableError, match=message):
            fit_schema(table, "y", impute=True)


def test_what_means_missing_is_remembered(tmp_path):
    csv_format = CsvFormat((*NULL_VALUES, "?"))
    table = read(tmp_path, "a,y\n1,1.5\n?,2.5\n", csv=csv_format)
    schema = fit_schema(table, "y", impute=True, csv=csv_format)
    assert schema.columns[0].categories is None
    new = read(tmp_path, "a\n3\n?\n", schema=schema)
    np.testing.assert_array_equal(encode(schema, new).X, [[3], [1]])


def test_a_stray_text_does_not_turn_numbers_into_categories(tmp_path):
    table = read(tmp_path, "a,y\n1,1.5\n2,2.5\n?,3.5\n4,4.5\n")
    with pytest.raises(TableError) as caught:
        fit_schema(table, "y")
    assert "'a': expected numbers" in str(caught.value)
    assert "'?' in row index 2" in str(caught.value)
    forced = fit_schema(table, "y", categorical=["a"])
    assert forced.columns[0].categories == ("1", "2", "4", "?")
    numbers = fit_schema(read(tmp_path, "a,y\n1,1.5\n2,2.5\n", "other.csv"), "y")
    with pytest.raises(
        TableError, match=r"'a': data row 3 \(the first is 1\): CSV conversion error .* value '\?'"
    ):
        read_table(tmp_path / "data.csv", schema=numbers)


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


def test_types_without_a_meaning_are_refused_by_name():
    for cells, words in (
        ([[1], [2]], "list"),
        ([{"a": 1}, {"a": 2}], "struct"),
        ([b"a", b"b"], "binary; if it is text, save .* UTF-8"),
    ):
        table = pa.table({"odd": cells, "x": [1, 2], "y": [1.5, 2.5]})
        with pytest.raises(TableError, match=f"'odd'.*{words}"):
            fit_schema(table, "y")
        assert fit_schema(table, "y", drop=["odd"]).features == ("x",)
        with pytest.raises(TableError, match="'odd'"):
            fit_schema(table, "odd")


def test_columns_that_arrow_cannot_convert_are_named():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"x": [1.0, 2.0], "odd": [1.0, 3.0], "y": [1.5, 2.5]})
    for values, words in (
        (pd.cut(table["odd"], 2), "interval"),
        (np.array([1.0, 2j]), "complex128"),
        (pd.Categorical([1.0, 2j]), "category"),
        (pd.Categorical(pd.period_range("2020", periods=2, freq="D")), "period"),
    ):
        with pytest.raises(TableError, match=f"'odd': expected .*{words}.*; turn it into numbers"):
            Frame(table.assign(odd=values)).arrays("y", "regression")
    with pytest.raises(TableError, match=r"'odd': expected .* got type complex128"):
        Frame({"x": [1.0], "odd": np.array([2j])}).arrays("x", "regression")


def test_invalid_options_of_a_table_are_refused_when_they_are_stated(tmp_path):
    table = {"x": [1.0, 2.0], "y": [1.0, 2.0], "xy": [1.0, 2.0]}
    for value in ("median", 1, 0.5, None):
        with pytest.raises(ValueError, match=f"impute: expected True or False, got {value!r}"):
            Frame(table, impute=value)
    assert Frame(table, impute=np.True_).impute is True
    text = r"expected a sequence of names, such as \['xy'\], got the text 'xy'"
    file = written(tmp_path, "x,y\n1,2\n")
    for name, call in (
        ("drop", lambda: Frame(table, drop="xy")),
        ("categorical", lambda: Frame(table, categorical="xy")),
        ("drop", lambda: TableFile(file, drop="xy")),
        ("categorical", lambda: stream_schema(TableFile(file), "y", categorical="xy")),
    ):
        with pytest.raises(ValueError, match=f"{name}: {text}"):
            call()
    with pytest.raises(ValueError, match="drop: expected a sequence of names, got None"):
        Frame(table, drop=None)
    assert Frame(table, drop=np.array(["xy"])).loaded().table.column_names == ["x", "y"]
    with pytest.raises(ValueError, match="max_categories: expected a whole number of at least 1"):
        Frame(table, max_categories="all")
    with pytest.raises(ValueError, match=r"table: expected a pandas .* got ndarray"):
        Frame(np.zeros((3, 2))).arrays("y", "regression")


def test_rows_that_are_no_numbers_are_described():
    expected = "X: expected numbers, got"
    objects = np.array([["Ghent", 1.0]], object)
    for X, words in (
        (None, "NoneType; give an array"),
        ({"x": [1.0]}, "dict; give an array, or a pandas or Arrow table"),
        (objects, r"Python objects \(dtype object\); .* one row as df.iloc\[\[0\]\]"),
        (objects[0], r"Python objects \(dtype object\); give columns of text as a pandas"),
        ([["Ghent"]], "dtype <U5"),
    ):
        with pytest.raises(ValueError, match=f"{expected} {words}"):
            rows_of(X, 2, np.float64)


DAY = 86_400_000_000  # microseconds


@pytest.mark.parametrize(
    ("cells", "encoded"),
    [
        ([datetime.date(2020, 1, 1), datetime.date(2020, 1, 3), None], [0, 2 * DAY, DAY]),
        ([datetime.datetime(2020, 1, 1, 12), datetime.datetime(2020, 1, 1), None],
         [0, -DAY / 2, -DAY / 4]),
        ([datetime.timedelta(1), datetime.timedelta(2), None], [0, DAY, DAY / 2]),
        ([datetime.time(6), datetime.time(12), None], [0, DAY / 4, DAY / 8]),
        (pa.array([0, 4000, 2000], pa.timestamp("ns", "Europe/Brussels")), [0, 4, 2]),
    ],
)  # fmt: skip
def test_dates_and_times_are_microseconds(cells, encoded):
    table = pa.table({"when": cells, "y": [1.5, 2.5, 3.5]})
    schema = fit_schema(table, "y", impute=True)
    np.testing.assert_array_equal(encode(schema, table).X[:, 0], encoded)
    assert Schema.from_json(schema.to_json()) == schema
    for other in ([1, 2, 3], ["a", "b", "c"]):
        with pytest.raises(
            TableError, match=r"'when': expected dates or times, got .* row index 0"
        ):
            encode(schema, pa.table({"when": other}))
    with pytest.raises(
        TableError, match=r"row index 0; turn texts into times, as pandas.to_datetime"
    ):
        encode(schema, pa.table({"when": ["2020-01-01"]}))
    numbers = fit_schema(pa.table({"when": [1, 2, 3], "y": [1.5, 2.5, 3.5]}), "y")
    with pytest.raises(TableError, match=r"'when': expected numbers, got .* row index 0"):
        encode(numbers, table)
    for call in (infer_task, fit_schema):
        with pytest.raises(TableError, match="target column 'when': expected numbers or cl"):
            call(table, "when")


def test_dates_of_csv_files(tmp_path):
    table = read(tmp_path, "when,y\n2024-01-31,1.5\n2024-02-01,2.5\n")
    schema = fit_schema(table, "y")
    new = read(tmp_path, "when\n2024-01-31 12:00:00\n", schema=schema)
    np.testing.assert_array_equal(encode(schema, new).X, [[DAY / 2]])


def test_texts_that_look_like_dates_are_refused_unless_they_are_named_as_codes():
    """pandas leaves dates as texts, and as categories no later date would be known."""
    table = pa.table({"when": ["2024-01-31", "2024-2-1 12:00", "unknown"], "y": [1.5, 2.5, 3.5]})
    with pytest.raises(TableError, match=r"'when': expected dates, .*2024-01-31.*to_datetime"):
        fit_schema(table, "y")
    assert fit_schema(table, "y", categorical=["when"]).columns[0].categories is not None
    towns = pa.table({"town": ["2024-01-31", "Ghent", "Leuven"], "y": [1.5, 2.5, 3.5]})
    assert fit_schema(towns, "y").columns[0].categories is not None


def test_every_numeric_type_becomes_float64_and_every_text_type_a_category():
    cells, halves = [1, None, 3], np.array([1, np.nan, 3], np.float16)
    decimals = [None if c is None else decimal.Decimal(c) for c in cells]
    for column in (
        *(pa.array(cells, kind) for kind in (pa.int8(), pa.uint64(), pa.float32(), pa.int64())),
        pa.array(halves, pa.float16()),
        pa.array(decimals, pa.decimal128(9, 2)),
    ):
        table = pa.table({"x": column, "y": [1.5, 2.5, 3.5]})
        encoded = encode(fit_schema(table, "y", impute=True), table)
        np.testing.assert_array_equal(encoded.X, [[1], [2], [3]])
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        table = pa.table({"x": pa.array(["b", "a"]).cast(kind), "y": [1.5, 2.5]})
        np.testing.assert_array_equal(encode(fit_schema(table, "y"), table).X, [[0, 1], [1, 0]])
    constant = pa.table({"x": [2**50, 2**50], "one": ["a", "a"], "y": [1.5, 2.5]})
    encoded = encode(fit_schema(constant, "y"), constant)
    np.testing.assert_array_equal(encoded.X, [[2.0**50, 1], [2.0**50, 1]])


def test_texts_that_look_like_numbers_are_refused():
    for cells in (
        ["1,5", "2,25", "3"],
        ["1,000", "12,345.5", "7"],
        ["10%", "12.5%", "3%"],
        ["$10", "$ 1,200.50", "€3"],
        ["31.12.2020", "1.2.2021", "?"],
        ["(1.5)", "(1,200)", "n.a."],
        ["1.5", "2.5e3", "-2"],
    ):
        table = pa.table({"x": cells, "y": [1.5, 2.5, 3.5]})
        with pytest.raises(TableError, match=r"'x': expected numbers, .* got '.*' in row .*--cat"):
            fit_schema(table, "y")
        with pytest.raises(TableError, match=r"'x': expected numbers, .* ask for the task class"):
            infer_task(table, "x")
        assert len(fit_schema(table, "y", categorical=["x"]).features) == 3
    bins = pa.table({"x": ["18-25", "26-40", "v1.2.3"], "y": [1.5, 2.5, 3.5]})
    assert len(fit_schema(bins, "y").features) == 3


def test_decimal_commas_are_read_on_request_and_remembered(tmp_path):
    text = "a;y\n1,5;1\n2,25;2\n"
    with pytest.raises(
        TableError, match=r"'a': expected numbers, .* got '1,5' in row index 0;.*decimal"
    ):
        fit_schema(read(tmp_path, text), "y")
    csv_format = CsvFormat(decimal=",", delimiter=";")
    table = read(tmp_path, text, csv=csv_format)
    schema = fit_schema(table, "y", csv=csv_format)
    np.testing.assert_array_equal(encode(schema, table).X, [[1.5], [2.25]])
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    new = read(tmp_path, "y;a\n1;-1,25\n", "other.csv", schema=again)
    np.testing.assert_array_equal(encode(again, new).X, [[-1.25]])


def test_a_kind_that_changed_since_training_is_refused():
    table = pa.table({"flag": [True, False], "code": [1, 2], "y": [1.5, 2.5]})
    schema = fit_schema(table, "y", categorical=["code"])
    floats = pa.table({"flag": [True, False], "code": [1.0, 2.5]})
    assert encode(schema, floats).unseen == {"code": 1}
    with pytest.raises(TableError, match="'flag': expected booleans as in training, got numbers"):
        encode(schema, table.set_column(0, "flag", pa.array([0, 1])))
    with pytest.raises(TableError, match=r"'code': expected numbers as in training, got texts"):
        encode(schema, table.set_column(1, "code", pa.array(["1", "2"])))


def test_whole_numbers_that_float64_does_not_hold(tmp_path):
    large = [2**60 + 1, 2**60 + 2, 2**60 + 1]
    table = pa.table({"x": large, "y": [1.5, 2.5, 3.5]})
    with pytest.raises(TableError, match=r"'x': expected whole numbers of at most 2\^53, .*--ca"):
        encode(fit_schema(table, "y"), table)
    # As codes and labels they are exact, in CSV files too.
    schema = fit_schema(table, "y", categorical=["x"])
    np.testing.assert_array_equal(encode(schema, table).X, [[1, 0], [0, 1], [1, 0]])
    new = read(tmp_path, f"x\n{2**60 + 2}\n{2**60 + 3}\n", schema=schema)
    encoded = encode(schema, new)
    np.testing.assert_array_equal(encoded.X, [[0, 1], [0, 0]])
    assert encoded.unseen == {"x": 1}
    labels = pa.table({"x": [1.5, 2.5, 3.5], "y": large})
    assert encode_target(fit_schema(labels, "y"), labels).tolist() == large


def test_codes_that_pandas_wrote_as_floats_are_the_same_codes(tmp_path):
    table = read(tmp_path, "code,y\n1,0.5\n2,1.5\n3,2.5\n")
    schema = fit_schema(table, "y", categorical=["code"], impute=True)
    new = read(tmp_path, "code,other\n2.0,1\n,2\n1.0,3\n", schema=schema)
    np.testing.assert_array_equal(encode(schema, new).X, [[0, 1, 0], [0, 0, 0], [1, 0, 0]])


def test_missing_columns_name_the_nearest_and_tables_of_nothing_are_refused(tmp_path):
    table = read(tmp_path, PEOPLE)
    schema = fit_schema(table, "income")
    nothing, empty = pa.nulls(2), pa.array([], pa.int64())
    for call, message in (
        (lambda: fit_schema(table, "Incme"), "target column 'Incme', not found; nearest: 'income'"),
        (
            lambda: infer_task(table, "zzz"),
            "'zzz', not found; the table has 'age', 'job', 'height'",
        ),
        (
            lambda: fit_schema(table, "income", drop=["jobb"]),
            "the columns to drop 'jobb', not found",
        ),
        (
            lambda: encode(schema, table.drop_columns(["age", "job"])),
            "the columns 'age', 'job', not found",
        ),
        (
            lambda: encode_target(schema, table.drop_columns(["income"])),
            "target column 'income', not found",
        ),
        (
            lambda: fit_schema(pa.table({"x": [1, 2], "y": ["a", "a"]}), "y"),
            "at least two classes; all 2 rows are 'a'",
        ),
        (
            lambda: fit_schema(pa.table({"y": [1.5, 2.5]}), "y"),
            "at least one column beside the target 'y'",
        ),
        (
            lambda: fit_schema(pa.table({"x": nothing, "y": [1.5, 2.5]}), "y", impute=True),
            "'x': expected values, but all are missing",
        ),
        (lambda: fit_schema(pa.table({"x": empty, "y": empty}), "y"), "at least one row"),
    ):
        with pytest.raises(TableError, match=message):
            call()


def test_files_that_are_no_tables(tmp_path):
    with pytest.raises(TableError, match="is no such file"):
        read_table(tmp_path / "nothing.csv")
    refused(tmp_path, b"PK\x03\x04....", "Excel", name="data.xlsx")
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


def test_delimiters_and_compression(tmp_path):
    expected = read(tmp_path, PEOPLE).to_pydict()
    for mark in ";\t|,":
        text = PEOPLE.replace(",", mark)
        for content, name in (
            (text, "data.csv"),
            (gzip.compress(text.encode()), "data.csv.gz"),
            (b"\xef\xbb\xbf" + text.encode(), "data.csv"),
        ):
            assert read(tmp_path, content, name).to_pydict() == expected


def test_row_labels_of_pandas_are_no_column(tmp_path):
    path = tmp_path / "a=1.parquet"
    pa.parquet.write_table(pa.table({"x": [1], "__index_level_0__": [7]}), path)
    table = read_table(path)
    assert table.column_names == ["x"]


def test_benchmark_sets_cast_scale_and_number_their_partitions(tmp_path, monkeypatch):
    X = np.arange(12, dtype=np.int16).reshape(6, 2)
    y = np.array([-1, 1, 1, -1, 1, 1], np.int8)
    np.savez(
        tmp_path / "toy.npz",
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
    np.savez(
        tmp_path / "toy.npz",
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
