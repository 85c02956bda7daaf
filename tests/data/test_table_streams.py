"""Files in batches: the same numbers as the file as a whole, and rows told by their number."""

import functools

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from jsparse import load
from jsparse.cli.main import main
from jsparse.data.encoding import encode, encode_target, fit_schema
from jsparse.data.schema import CsvFormat
from jsparse.data.streams import Shards
from jsparse.data.table_files import TableFile, read_table
from jsparse.data.table_streams import TableStream, stream_schema, table_shards
from jsparse.data.tables import TableError


def people(n=500):
    rng = np.random.default_rng(0)
    age, income = rng.integers(18, 90, n), np.round(rng.lognormal(10, 1, n), 2)
    town = np.array(["Leuven", "Gent", "Brugge", "Aalst"])[rng.integers(0, 4, n)]
    # A category of one row, late in the file.
    town[n - 20] = "Ieper"
    owner = income > 22000 + 100 * (age - 50)
    return pa.table({"age": age, "income": income, "town": town, "owner": owner})


def replaced(table, name, value):
    """With other values in one column, by row and value."""
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
    pq.write_table(people(), tmp_path / "t.parquet")
    file = TableFile(tmp_path / "t.parquet")
    with pytest.raises(TableError, match="column 'owned', not found; nearest: 'owner'"):
        stream_schema(file, "owned")
    pq.write_table(people().slice(0, 0), tmp_path / "t.parquet")
    with pytest.raises(TableError, match="at least one row"):
        stream_schema(file, "owner")


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


def test_a_column_without_values_at_first_is_one_of_numbers(tmp_path):
    path = tmp_path / "t.csv"
    lines = [",".join(["", str(i % 2)]) for i in range(2_000_000)]
    path.write_text("a,y\n" + "\n".join(lines) + "\n" + "1.5,0\n2.5,1\n" * 20)
    assert path.stat().st_size < 1 << 24
    with path.open("a") as file:
        file.write(",1\n" * 4_000_000 + "1.5,0\n")
    file = TableFile(path, keep=("y",))
    schema, *_ = stream_schema(file, "y", impute=True)
    assert schema.columns[0].categories is None


def test_a_broken_file_is_told(tmp_path):
    with pytest.raises(TableError, match="nowhere"):
        TableFile(tmp_path / "nowhere.csv")
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(TableError, match="Expected 2 columns, got 1"):
        list(TableFile(path))
    (tmp_path / "empty").write_text("")
    with pytest.raises(TableError, match="it is empty"):
        TableFile(tmp_path / "empty")


@pytest.fixture
def settings_restored():
    import jax

    yield
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.mark.slow
@pytest.mark.usefixtures("settings_restored")
def test_the_command_line_streams_a_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = written("folder", tmp_path, people())
    model = tmp_path / "m"
    options = ["--method", "fixed-size", "--prototypes", "20", "--evaluations", "2", "--quiet"]
    fit = ["fit", str(path), "--target", "owner", "--out", str(model), *options]
    assert main([*fit, "--stream", "--holdout", "0.2"]) == 0
    report = capsys.readouterr().out
    assert "500 rows x 7 columns" in report
    assert "hold-out error" in report
    loaded = load(model)
    assert loaded.about["rows"] == 500
    assert loaded.expansion.prototypes.shape == (20, 7)
    assert loaded.about["cv_error"] < 0.2
    assert loaded.inverse_temperatures is not None
    table = tmp_path / "t.csv"
    pyarrow.csv.write_csv(people(), table)
    assert main(["predict", str(model), str(table), "--out", str(tmp_path / "p.csv")]) == 0
    assert "misclassification on 500 rows: 0.0" in capsys.readouterr().err
    for more, message in (
        (["--holdout", "0.2"], "--stream"),
        (["--stream", "--loss", "huber"], "--loss: expected together with --method robust"),
        (["--stream", "--method", "robust"], "--stream: expected a method that needs only sums"),
        (["--stream", "--folds", "4", "--holdout", "0.2"], "--folds, --holdout: expected one"),
        (["--stream", "--prototypes", "900000"], "n_prototypes"),
    ):
        assert main([*fit, *more]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("settings_restored")
def test_the_command_line_takes_a_loss(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pyarrow.csv.write_csv(people(150), tmp_path / "t.csv")
    options = ["--prototypes", "10", "--folds", "3", "--evaluations", "1", "--quiet"]
    fit = ["fit", str(tmp_path / "t.csv"), "--target", "income", "--out", str(tmp_path / "m")]
    assert main([*fit, *options, "--method", "robust", "--loss", "absolute"]) == 0
    assert "mean absolute error" in capsys.readouterr().out
    monkeypatch.setattr("jsparse.cli.files.free_bytes", lambda: 1000)
    assert main([*fit, *options]) == 2
    assert "--stream" in capsys.readouterr().err


@pytest.mark.usefixtures("settings_restored")
@pytest.mark.parametrize(
    "kind", ["csv", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("parquet", "folder"))]
)
def test_predictions_of_a_stream_are_those_of_the_whole_file(kind, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        "jsparse.cli.predict.TableFile", functools.partial(TableFile, batch_rows=90)
    )
    code = [f"{i % 3:02}" for i in range(500)]  # text, although it reads as numbers
    table = people().append_column("code", pa.array(code))
    whole, model = tmp_path / "whole.parquet", tmp_path / "m"
    pq.write_table(table, whole)
    fit = ["fit", str(whole), "--target", "owner", "--out", str(model), "--method", "fixed-size"]
    assert (
        main([*fit, "--prototypes", "20", "--evaluations", "2", "--quiet", "--categorical", "code"])
        == 0
    )
    capsys.readouterr()

    shown = replaced(table, "town", lambda i, v: "Hasselt" if i % 100 == 99 else v)
    pq.write_table(shown, whole)
    streamed = written(kind, tmp_path, shown)
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    assert main(["predict", str(model), str(whole), "--out", str(one)]) == 0
    output = capsys.readouterr().err
    assert "column 'town': 5 rows of unseen category" in output
    assert "misclassification on 500 rows" in output
    assert main(["predict", str(model), str(streamed), "--out", str(other), "--stream"]) == 0
    assert capsys.readouterr().err == output
    labels, values = zip(*(r.split(",") for r in one.read_text().split()), strict=True)
    labels_2, values_2 = zip(*(r.split(",") for r in other.read_text().split()), strict=True)
    assert labels == labels_2
    # Batches of other shapes are summed in another order.
    np.testing.assert_allclose(np.float64(values[1:]), np.float64(values_2[1:]), atol=1e-8)
    assert main(["predict", str(model), str(streamed), "--stream"]) == 0
    assert capsys.readouterr().out == other.read_text()

    if kind == "folder":  # nor into the folder that is read
        inside = str(streamed / "0000.parquet")
        assert main(["predict", str(model), str(streamed), "--stream", "--out", inside]) == 2
        assert "another file than one that is read" in capsys.readouterr().err
        assert pq.read_table(inside).num_rows == 200

    # What is wrong in the last batch leaves the file as it was.
    before = other.read_bytes()
    wrong = replaced(shown, "income", lambda i, v: float("inf") if i == 480 else v)
    if kind == "folder":
        pq.write_table(wrong.slice(400), streamed / "0400.parquet")
    else:
        written(kind, tmp_path, wrong)
    assert main(["predict", str(model), str(streamed), "--out", str(other), "--stream"]) == 2
    assert "481" in capsys.readouterr().err
    assert other.read_bytes() == before


@pytest.mark.slow
@pytest.mark.usefixtures("settings_restored")
def test_a_file_too_large_to_predict_as_a_whole(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pyarrow.csv.write_csv(people(150), tmp_path / "t.csv")
    table, model = str(tmp_path / "t.csv"), str(tmp_path / "m")
    options = ["--prototypes", "10", "--folds", "3", "--evaluations", "1", "--quiet"]
    assert main(["fit", table, "--target", "income", "--out", model, *options]) == 0
    monkeypatch.setattr("jsparse.cli.files.free_bytes", lambda: 1000)
    capsys.readouterr()
    assert main(["predict", model, table]) == 2
    assert "--stream" in capsys.readouterr().err
    assert main(["predict", model, table, "--stream"]) == 0
    read = capsys.readouterr()
    assert len(read.out.split()) == 151
    # Damaged: named where it is read.
    cut = tmp_path / "cut.parquet"
    pq.write_table(people(150), cut)
    cut.write_bytes(cut.read_bytes()[:-9])
    assert main(["predict", model, str(cut)]) == 2
    assert "'" + str(cut) + "': expected a readable Parquet file" in capsys.readouterr().err
    assert "mean squared error on 150 rows" in read.err


@pytest.mark.slow
@pytest.mark.usefixtures("settings_restored")
def test_the_types_of_a_stream_are_those_of_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
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
    model, small, large = str(tmp_path / "m"), tmp_path / "small.csv", tmp_path / "large.csv"
    options = ["--prototypes", "10", "--folds", "3", "--evaluations", "1", "--quiet", "--impute"]
    codes = ["--categorical", "code", "serial", "--task", "classification"]
    with_gaps = replaced(table, "x", lambda i, v: None if i == 5 else v)
    for name in ("flag", "code", "serial"):
        with_gaps = replaced(with_gaps, name, lambda i, v: None if i == 5 else v)
    pyarrow.csv.write_csv(with_gaps, small)
    fit = ["fit", str(small), "--target", "y", "--out", model]
    assert main([*fit, *codes, *options]) == 0
    # Longer than the piece of the file by which types are inferred: empty until row 190, but for
    # columns that the model does not know, whose kind changes then.
    late = table.add_column(0, "text", pa.array(["a" * 100_000] * n))
    for name in ("x", "flag", "code", "serial"):
        late = replaced(late, name, lambda i, v: None if i < 190 else v)
    late = late.append_column("id", pa.array([str(i) if i < 190 else f"A{i}" for i in range(n)]))
    remark = pa.array([None if i < 190 else "?" for i in range(n)], pa.string())
    late = late.append_column("remark", remark)
    pyarrow.csv.write_csv(late, large, pyarrow.csv.WriteOptions(quoting_style="none"))
    assert large.stat().st_size > 1 << 24
    capsys.readouterr()
    assert main(["predict", model, str(large)]) == 0
    whole = capsys.readouterr()
    assert "misclassification on 200 rows" in whole.err
    assert main(["predict", model, str(large), "--stream"]) == 0
    streamed = capsys.readouterr()
    assert streamed.err == whole.err
    labels = [row.split(",")[0] for row in streamed.out.split()]
    assert labels == [row.split(",")[0] for row in whole.out.split()]
    assert set(labels[1:]) <= {"3", "7"}
    # A column that is missing is told by its name, with the nearest.
    pyarrow.csv.write_csv(table.rename_columns(["x", "flags", "code", "serial", "y"]), small)
    assert main(["predict", model, str(small), "--stream"]) == 2
    assert "'flag', not found; nearest: 'flags'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("settings_restored")
def test_a_stream_says_what_the_whole_file_says(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rng, n, model = np.random.default_rng(0), 60, str(tmp_path / "m")
    x = np.round(rng.normal(size=n), 3)
    table = pa.table({"x": x, "flag": np.arange(n) % 2 == 0, "y": np.round(2 * x, 3)})
    path = tmp_path / "t.csv"
    pyarrow.csv.write_csv(table, path)
    options = ["--prototypes", "8", "--folds", "3", "--evaluations", "1", "--quiet"]
    assert main(["fit", str(path), "--target", "y", "--out", model, *options]) == 0
    capsys.readouterr()

    for delimiter, columns, code, words in (
        (",", {"y": lambda i: "?" if i == 3 else "1.5"}, 0, ["not scored: column 'y'"]),
        (";", {"u": lambda i: "12,5"}, 0, ["mean squared error on 60 rows"]),
        (",", {"flag": lambda i: i}, 2, ["'flag'", "CSV conversion error to bool"]),
        (
            ",",
            {"x": lambda i: "a" if i == 3 else "1"},
            2,
            ["'x'", "conversion error to double"],
        ),
    ):
        values = {name: [value(i) for i in range(n)] for name, value in columns.items()}
        shown = pa.table({**{name: table[name] for name in table.column_names}, **values})
        write = pyarrow.csv.WriteOptions(quoting_style="none", delimiter=delimiter)
        pyarrow.csv.write_csv(shown, path, write)
        outputs = []
        for more in ([], ["--stream"]):
            assert main(["predict", model, str(path), *more]) == code
            outputs.append(capsys.readouterr().err.strip())
        if code == 0:
            assert outputs[0] == outputs[1]
        assert all(word in message for word in words for message in outputs)
    # Files that differ in a column that is not wanted.
    (tmp_path / "parts").mkdir()
    pq.write_table(table.append_column("u", pa.array(range(n))), tmp_path / "parts" / "a.parquet")
    other = table.append_column("u", pa.array(["A"] * n))
    pq.write_table(other, tmp_path / "parts" / "b.parquet")
    assert main(["predict", model, str(tmp_path / "parts"), "--stream"]) == 0
    assert "mean squared error on 120 rows" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("settings_restored")
def test_columns_to_drop_are_not_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path, n = tmp_path / "t.csv", 200
    remark = [None if i < 190 else "?" for i in range(n)]
    town = [None if i < 180 else ("Gent", "Leuven")[i % 2] for i in range(n)]
    x = np.arange(float(n))
    table = pa.table({"text": ["a" * 100_000] * n, "x": x, "town": town, "remark": remark})
    table = table.append_column("y", pa.array(np.where(x < 170, np.round(x), x / 2)))
    pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(quoting_style="none"))
    fit = ["fit", str(path), "--target", "y", "--task", "regression", "--stream", "--impute"]
    fit += ["--out", str(tmp_path / "m"), "--prototypes", "10", "--folds", "3", "--quiet"]
    fit += ["--evaluations", "1", "--categorical", "town"]
    assert main([*fit, "--drop", "text"]) == 2
    message = capsys.readouterr().err
    assert "column 'remark': " in message
    assert "CSV conversion error to double: invalid value '?'; in a str" in message
    assert main([*fit, "--drop", "text", "remarks"]) == 2
    assert "the columns to drop 'remarks', not found; nearest: 'remark'" in capsys.readouterr().err
    assert main([*fit, "--drop", "text", "remark", "y"]) == 2
    assert "--drop: expected other columns than the target 'y'" in capsys.readouterr().err
    assert main([*fit, "--drop", "text", "remark"]) == 0
    assert "200 rows x 4 columns" in capsys.readouterr().out
    assert main([*fit, "--drop", "text", "remark", "town"]) == 0  # also if it is categorical
    assert "200 rows x 1 columns" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("settings_restored")
def test_a_target_whose_first_values_are_whole(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x, model = np.arange(200.0), str(tmp_path / "m")
    target = np.where(x < 190, np.round(x / 10), x / 10)
    small, large = tmp_path / "small.csv", tmp_path / "large.csv"
    pyarrow.csv.write_csv(pa.table({"x": x, "y": target}), small)
    options = ["--prototypes", "10", "--folds", "3", "--evaluations", "1", "--quiet"]
    assert main(["fit", str(small), "--target", "y", "--out", model, *options]) == 0
    # Longer than the piece of the file by which its types are told.
    padded = pa.table({"x": x, "y": target, "text": ["a" * 100_000] * 200})
    pyarrow.csv.write_csv(padded, large, pyarrow.csv.WriteOptions(quoting_style="none"))
    text = large.read_text().replace(".0,", ",")
    large.write_text(text)
    capsys.readouterr()
    assert main(["predict", model, str(large), "--stream"]) == 0
    assert "mean squared error on 200 rows" in capsys.readouterr().err


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
    second = Shards.dealt(shards, process=1, processes=2)
    assert list(second.shards) == [1, 3, 5, 7]
    assert second.schema == schema
    with pytest.raises(TableError, match="no such file"):
        table_shards([tmp_path / "none"], schema)
