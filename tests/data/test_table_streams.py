"""Files read in batches give the numbers of the whole file; errors name rows by number."""

import functools

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from predictor.plain_models import schema_model

from jsparse import load
from jsparse.cli.main import main
from jsparse.data.encoding import encode, encode_target, fit_schema
from jsparse.data.streams import Shards
from jsparse.data.table_files import TableFile, read_table
from jsparse.data.table_streams import TableStream, stream_schema, table_shards
from jsparse.data.tables import TableError
from jsparse.predictor.schema import CsvFormat


def people(n=500):
    rng = np.random.default_rng(0)
    age, income = rng.integers(18, 90, n), np.round(rng.lognormal(10, 1, n), 2)
    town = np.array(["Leuven", "Gent", "Brugge", "Aalst"])[rng.integers(0, 4, n)]
    # A category of one row, late in the file.
    town[n - 20] = "Ieper"
    owner = income > 22000 + 100 * (age - 50)
    return pa.table({"age": age, "income": income, "town": town, "owner": owner})


def replaced(table, name, value):
    """Replace the values of one column by a function of row number and value."""
    values = [value(i, v) for i, v in enumerate(table[name].to_pylist())]
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def written(kind, folder, table):
    if kind == "csv":
        pyarrow.csv.write_csv(table, folder / "t.csv")
        return folder / "t.csv"
    if kind == "parquet":
        pq.write_table(table, folder / "t.parquet", row_group_size=90)
        return folder / "t.parquet"
    (folder / "parts").mkdir()
    for i in range(0, len(table), 200):
        pq.write_table(table.slice(i, 200), folder / "parts" / f"{i:04}.parquet")
    return folder / "parts"


@pytest.mark.parametrize("kind", ["csv", "parquet", "folder"])
@pytest.mark.parametrize("impute", [False, True])
def test_batches_are_the_file(kind, impute, tmp_path):
    table = people()
    if impute:
        table = replaced(table, "income", lambda i, v: None if i % 7 == 3 else v)
    path = written(kind, tmp_path, table)
    file = TableFile(path, keep=("owner",), batch_rows=64)
    schema, reason, n = stream_schema(file, "owner", impute=impute)
    whole = table if kind == "folder" else read_table(path)
    expected = fit_schema(whole, "owner", impute=impute)
    assert schema == expected
    assert "booleans" in reason
    assert n == 500
    batches = list(TableStream(file, schema))
    assert max(len(b.X) for b in batches) <= 64
    np.testing.assert_array_equal(np.concatenate([b.X for b in batches]), encode(expected, whole).X)
    np.testing.assert_array_equal(
        np.concatenate([b.y for b in batches]), encode_target(expected, whole)
    )


def test_decimal_commas_and_whole_numbers_that_are_not(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a;b;y\n" + "".join(f"{i};{i},5;{i % 2}\n" for i in range(40)) + "7,5;1;0\n")
    file = TableFile(path, csv=CsvFormat(decimal=","), keep=("y",), batch_rows=16)
    schema, *_ = stream_schema(file, "y")
    X = np.concatenate([b.X for b in TableStream(file, schema)])
    np.testing.assert_array_equal(X[:40], np.stack([np.arange(40), np.arange(40) + 0.5], axis=1))
    assert X[40].tolist() == [7.5, 1.0]
    assert schema.classes == (0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("age", lambda i, v: None if i == 333 else v),
            "column 'age' has 1 in .*data row 334 [(]the first is 1[)]",
        ),
        (
            ("age", lambda i, v: np.inf if i == 70 else float(v)),
            "'age': expected finite numbers, got inf in data row 71 ",
        ),
        (
            ("owner", lambda i, v: None if i == 99 else v),
            "'owner': missing in data row 100 [(]the first is 1[)];",
        ),
        (("town", lambda i, v: f"t{i}"), "at most 100 categories"),
        (("town", lambda i, v: "?" if i == 444 else str(i % 50)), "got '[?]' in data row 445 "),
    ],
)
def test_what_is_wrong_is_told_with_the_row_of_the_file(change, message, tmp_path):
    pq.write_table(replaced(people(), *change), tmp_path / "t.parquet")
    file = TableFile(tmp_path / "t.parquet", batch_rows=64)

    def read():
        schema, *_ = stream_schema(file, "owner")
        return list(TableStream(file, schema))

    with pytest.raises(TableError, match=message):
        read()


def test_columns_and_rows_must_be_there(tmp_path):
    path = tmp_path / "t.parquet"
    for table, target, message in (
        (people(), "owned", "column 'owned', not found; nearest: 'owner'"),
        (people().slice(0, 0), "owner", "at least one row"),
    ):
        pq.write_table(table, path)
        with pytest.raises(TableError, match=message):
            stream_schema(TableFile(path), target)
    with pytest.raises(TableError, match="nowhere"):
        TableFile(tmp_path / "nowhere.csv")


def test_files_of_a_folder_must_have_the_same_columns(tmp_path):
    table = people()
    (tmp_path / "a").mkdir()
    pq.write_table(table.slice(0, 250), tmp_path / "a" / "0.parquet")
    pq.write_table(table.slice(250).drop_columns(["town"]), tmp_path / "a" / "1.parquet")
    with pytest.raises(TableError, match=r"'town' are not in all, see .*1\.parquet"):
        list(TableFile(tmp_path / "a"))
    (tmp_path / "b" / "town=Gent").mkdir(parents=True)
    pq.write_table(table.drop_columns(["town"]), tmp_path / "b" / "town=Gent" / "0.parquet")
    with pytest.raises(TableError, match="in the name of"):
        list(TableFile(tmp_path / "b"))
    # Whole numbers in one file and others in the next are numbers.
    half = replaced(table.slice(250), "age", lambda i, v: v + 0.5)
    pq.write_table(half, tmp_path / "a" / "1.parquet")
    read = pa.concat_tables(list(TableFile(tmp_path / "a", batch_rows=100)))
    assert read["age"].to_pylist() == table["age"].to_pylist()[:250] + half["age"].to_pylist()


def written_long(table, path):
    """Write a table as CSV, longer than the piece of a file by which types are inferred."""
    table = table.append_column("text", pa.array(["a" * 100_000] * len(table)))
    pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(quoting_style="none"))
    assert path.stat().st_size > 1 << 24
    return path


def test_a_column_without_values_at_first_is_one_of_numbers(tmp_path):
    table = pa.table({"a": [None] * 190 + [1.5] * 10, "y": np.arange(200) % 2})
    file = TableFile(written_long(table, tmp_path / "t.csv"), keep=("y",), drop=["text"])
    schema, *_ = stream_schema(file, "y", impute=True)
    assert schema.columns[0].categories is None


def test_of_a_large_file_the_median_is_that_of_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr("jsparse.data.table_streams.SAMPLE_ROWS", 400)
    cells = np.where(np.arange(4000) % 50 == 7, np.nan, np.random.default_rng(0).normal(size=4000))
    pq.write_table(pa.table({"x": cells, "y": np.arange(4000) / 7}), tmp_path / "t.parquet")
    file = TableFile(tmp_path / "t.parquet", batch_rows=100)
    schema, *_ = stream_schema(file, "y", impute=True)
    # The standard error of the median of 400 normal numbers is 0.06.
    assert 0 < abs(schema.columns[0].fill - np.nanmedian(cells)) < 0.25


# The command line.

SMALL = ("--prototypes", 10, "--folds", 3, "--evaluations", 1, "--quiet")


@pytest.fixture
def command(cache_folder, capsys):
    """Run the command line, and return its exit code, output and messages."""

    def run(*words):
        capsys.readouterr()
        code = main([*map(str, words)])
        return code, *capsys.readouterr()

    return run


def model_file(path, table, target, labels=(), **options):
    """Save a model of the columns of a table, with random coefficients."""
    schema = fit_schema(table, target, **options)
    schema_model(schema, encode(schema, table).X, labels).save(path)
    return path


@pytest.mark.slow
def test_the_command_line_streams_a_folder(tmp_path, command):
    path, model = written("folder", tmp_path, people()), tmp_path / "m"
    fit = ["fit", path, "--target", "owner", "--out", model, "--method", "fixed-size"]
    fit += ["--prototypes", 20, "--evaluations", 2, "--quiet"]
    code, report, _ = command(*fit, "--stream", "--holdout", 0.2)
    assert code == 0
    assert "500 rows x 7 columns" in report
    assert "hold-out error" in report
    loaded = load(model)
    assert loaded.about["rows"] == 500
    assert loaded.expansion.prototypes.shape == (20, 7)
    assert loaded.about["cv_error"] < 0.2
    assert loaded.inverse_temperatures is not None
    pyarrow.csv.write_csv(people(), tmp_path / "t.csv")
    code, _, messages = command("predict", model, tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    assert code == 0
    assert "misclassification on 500 rows: 0.0" in messages
    for more, message in (
        (["--holdout", 0.2], "--stream"),
        (["--stream", "--loss", "huber"], "--loss: expected together with --method robust"),
        (["--stream", "--method", "robust"], "--stream: expected a method that needs only sums"),
        (["--stream", "--folds", 4, "--holdout", 0.2], "--folds, --holdout: expected one"),
        (["--stream", "--prototypes", 900000], "n_prototypes"),
    ):
        code, _, messages = command(*fit, *more)
        assert code == 2
        assert message in messages


@pytest.mark.slow
def test_the_command_line_takes_a_loss(tmp_path, command):
    pyarrow.csv.write_csv(people(150), tmp_path / "t.csv")
    fit = ["fit", tmp_path / "t.csv", "--target", "income", "--out", tmp_path / "m", *SMALL]
    code, report, _ = command(*fit, "--method", "robust", "--loss", "absolute")
    assert code == 0
    assert "mean absolute error" in report


def test_a_file_too_large_for_memory_is_to_be_streamed(tmp_path, command, monkeypatch):
    table, path, cut = people(150), tmp_path / "t.csv", tmp_path / "cut.parquet"
    pyarrow.csv.write_csv(table, path)
    model = model_file(tmp_path / "m", table, "income")
    pq.write_table(table, cut)
    cut.write_bytes(cut.read_bytes()[:-9])
    code, _, messages = command("predict", model, cut)  # named where it is read
    assert code == 2
    assert f"'{cut}': expected a readable Parquet file" in messages
    monkeypatch.setattr("jsparse.cli.files.free_bytes", lambda: 1000)
    for words in (
        ["fit", path, "--target", "income", "--out", tmp_path / "n", *SMALL],
        ["predict", model, path],
    ):
        code, _, messages = command(*words)
        assert code == 2
        assert "--stream" in messages
    code, out, messages = command("predict", model, path, "--stream")
    assert code == 0
    assert len(out.split()) == 151
    assert "mean squared error on 150 rows" in messages


@pytest.mark.parametrize("kind", ["csv", "parquet", "folder"])
def test_predictions_of_a_stream_are_those_of_the_whole_file(kind, tmp_path, command, monkeypatch):
    monkeypatch.setattr(
        "jsparse.cli.predict.TableFile", functools.partial(TableFile, batch_rows=90)
    )
    code = [f"{i % 3:02}" for i in range(500)]  # text, although it reads as numbers
    table = people().append_column("code", pa.array(code))
    model = model_file(tmp_path / "m", table, "owner", (False, True), categorical=["code"])
    shown = replaced(table, "town", lambda i, v: "Hasselt" if i % 100 == 99 else v)
    whole, one, other = (tmp_path / name for name in ("whole.parquet", "one.csv", "other.csv"))
    pq.write_table(shown, whole)
    streamed = written(kind, tmp_path, shown)
    code, _, messages = command("predict", model, whole, "--out", one)
    assert code == 0
    assert "column 'town': 5 rows of unseen category" in messages
    assert "misclassification on 500 rows" in messages
    by_stream = ["predict", model, streamed, "--stream"]
    assert command(*by_stream, "--out", other) == (0, "", messages)
    labels, values = zip(*(r.split(",") for r in one.read_text().split()), strict=True)
    labels_2, values_2 = zip(*(r.split(",") for r in other.read_text().split()), strict=True)
    assert labels == labels_2
    # Batches of other shapes are summed in another order.
    np.testing.assert_allclose(np.float64(values[1:]), np.float64(values_2[1:]), atol=1e-8)
    assert command(*by_stream)[:2] == (0, other.read_text())

    if kind == "folder":  # nor into the folder that is read
        inside = streamed / "0000.parquet"
        code, _, messages = command(*by_stream, "--out", inside)
        assert code == 2
        assert "another file than one that is read" in messages
        assert pq.read_table(inside).num_rows == 200

    # What is wrong in the last batch leaves the file as it was.
    before = other.read_bytes()
    wrong = replaced(shown, "income", lambda i, v: float("inf") if i == 480 else v)
    if kind == "folder":
        pq.write_table(wrong.slice(400), streamed / "0400.parquet")
    else:
        written(kind, tmp_path, wrong)
    code, _, messages = command(*by_stream, "--out", other)
    assert code == 2
    assert "481" in messages
    assert other.read_bytes() == before


def test_the_types_of_a_stream_are_those_of_training(tmp_path, command):
    rng, n = np.random.default_rng(0), 200
    table = pa.table(
        {
            "x": rng.normal(size=n),
            "flag": np.arange(n) % 3 == 1,
            "code": np.arange(n) % 4,
            "serial": 2**60 + np.arange(n) % 2,
            "y": np.where(np.arange(n) % 3 == 1, 7, 3),
        }
    )
    inputs = ("x", "flag", "code", "serial")
    with_gaps, late = table, table
    for name in inputs:
        with_gaps = replaced(with_gaps, name, lambda i, v: None if i == 5 else v)
        late = replaced(late, name, lambda i, v: None if i < 190 else v)
    options = {"impute": True, "categorical": ["code", "serial"], "task": "classification"}
    model = model_file(tmp_path / "m", with_gaps, "y", (3, 7), **options)
    # Empty until row 190, but for columns that the model does not know, whose kind changes then.
    late = late.append_column("id", pa.array([str(i) if i < 190 else f"A{i}" for i in range(n)]))
    remark = pa.array([None if i < 190 else "?" for i in range(n)], pa.string())
    late = late.append_column("remark", remark)
    large, small = written_long(late, tmp_path / "large.csv"), tmp_path / "small.csv"
    code, whole, messages = command("predict", model, large)
    assert code == 0
    assert "misclassification on 200 rows" in messages
    code, streamed, stream_messages = command("predict", model, large, "--stream")
    assert (code, stream_messages) == (0, messages)
    labels, labels_2 = ([row.split(",")[0] for row in out.split()] for out in (streamed, whole))
    assert labels == labels_2
    assert set(labels[1:]) <= {"3", "7"}
    # A column that is missing is told by its name, with the nearest.
    pyarrow.csv.write_csv(table.rename_columns(["x", "flags", "code", "serial", "y"]), small)
    code, _, messages = command("predict", model, small, "--stream")
    assert code == 2
    assert "'flag', not found; nearest: 'flags'" in messages


def test_a_stream_says_what_the_whole_file_says(tmp_path, command):
    rng, n, path = np.random.default_rng(0), 60, tmp_path / "t.csv"
    x = np.round(rng.normal(size=n), 3)
    table = pa.table({"x": x, "flag": np.arange(n) % 2 == 0, "y": np.round(2 * x, 3)})
    model = model_file(tmp_path / "m", table, "y")
    for delimiter, columns, code, words in (
        (",", {"y": lambda i: "?" if i == 3 else "1.5"}, 0, ["not scored: column 'y'"]),
        (";", {"u": lambda i: "12,5"}, 0, ["mean squared error on 60 rows"]),
        (",", {"flag": lambda i: i}, 2, ["'flag'", "CSV conversion error to bool"]),
        (",", {"x": lambda i: "a" if i == 3 else "1"}, 2, ["'x'", "conversion error to double"]),
    ):
        values = {name: [value(i) for i in range(n)] for name, value in columns.items()}
        shown = pa.table({**{name: table[name] for name in table.column_names}, **values})
        write = pyarrow.csv.WriteOptions(quoting_style="none", delimiter=delimiter)
        pyarrow.csv.write_csv(shown, path, write)
        codes, _, messages = zip(
            *(command("predict", model, path, *more) for more in ([], ["--stream"])), strict=True
        )
        assert codes == (code, code)
        assert code != 0 or messages[0].strip() == messages[1].strip()
        assert all(word in message for word in words for message in messages)
    # Files that differ in a column that is not wanted.
    (tmp_path / "parts").mkdir()
    for name, cells in (("a", range(n)), ("b", ["A"] * n)):
        other = table.append_column("u", pa.array(cells))
        pq.write_table(other, tmp_path / "parts" / f"{name}.parquet")
    code, _, messages = command("predict", model, tmp_path / "parts", "--stream")
    assert code == 0
    assert "mean squared error on 120 rows" in messages


@pytest.mark.slow
def test_columns_to_drop_are_not_read(tmp_path, command):
    n, x = 200, np.arange(200.0)
    remark = [None if i < 190 else "?" for i in range(n)]
    town = [None if i < 180 else ("Gent", "Leuven")[i % 2] for i in range(n)]
    y = np.where(x < 170, np.round(x), x / 2)
    table = pa.table({"x": x, "town": town, "remark": remark, "y": y})
    path = written_long(table, tmp_path / "t.csv")
    fit = ["fit", path, "--target", "y", "--task", "regression", "--stream", "--impute"]
    fit += ["--out", tmp_path / "m", *SMALL, "--categorical", "town"]
    for drop, words in (
        ([], "CSV conversion error to double: invalid value '?'; in a str"),
        ([], "column 'remark': "),
        (["remarks"], "the columns to drop 'remarks', not found; nearest: 'remark'"),
        (["remark", "y"], "--drop: expected other columns than the target 'y'"),
    ):
        code, _, messages = command(*fit, "--drop", "text", *drop)
        assert code == 2
        assert words in messages
    for drop, columns in ((["remark"], 4), (["remark", "town"], 1)):  # also if it is categorical
        code, report, _ = command(*fit, "--drop", "text", *drop)
        assert code == 0
        assert f"200 rows x {columns} columns" in report


def test_a_target_whose_first_values_are_whole(tmp_path, command):
    x = np.arange(200.0)
    table = pa.table({"x": x, "y": np.where(x < 190, np.round(x / 10), x / 10)})
    model = model_file(tmp_path / "m", table, "y")
    large = written_long(table, tmp_path / "large.csv")
    large.write_text(large.read_text().replace(".0,", ","))
    code, _, messages = command("predict", model, large, "--stream")
    assert code == 0
    assert "mean squared error on 200 rows" in messages


def test_row_groups_and_files_are_shards(tmp_path):
    table = people()
    folder, single = (written(kind, tmp_path, table) for kind in ("folder", "parquet"))
    whole = [folder / "0000.parquet", single]
    pyarrow.csv.write_csv(table.slice(0, 50), tmp_path / "t.csv")
    schema = stream_schema(TableFile(single), "owner")[0]
    shards = table_shards([*whole, tmp_path / "t.csv"], schema)
    assert len(shards) == 1 + 6 + 1  # a file of one row group, six row groups of 90 rows, a CSV
    rows = [np.concatenate([batch.X for batch in shard]) for shard in shards]
    expected = encode(schema, table).X
    np.testing.assert_array_equal(rows[0], expected[:200])
    np.testing.assert_array_equal(np.concatenate(rows[1:7]), expected)
    np.testing.assert_array_equal(rows[7], expected[:50])
    second = Shards.of_process(shards, process=1, processes=2)
    assert list(second.shards) == [1, 3, 5, 7]
    assert second.schema == schema
    with pytest.raises(TableError, match="no such file"):
        table_shards([tmp_path / "none"], schema)
