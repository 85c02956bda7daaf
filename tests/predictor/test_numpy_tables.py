"""A predictor encodes tables with NumPy as training encodes them with Arrow."""

import datetime
import decimal
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from jax import device_put
from predictor.plain_models import a_model

from jsparse import Model, kernels, predictor
from jsparse.data.encoding import encode, fit_schema
from jsparse.data.frames import Frame
from jsparse.expansion import KernelExpansion
from jsparse.predictor import TableError, UnseenCategoryWarning
from jsparse.predictor.schema import Column, Schema
from jsparse.predictor.tables import encode_table, is_table

UTC = datetime.UTC
COLUMNS = {
    "whole": [3, 1, 2**53, -4],
    "unsigned": np.array([1, 2, 3, 4], np.uint8),
    "real": [0.5, None, -1.5, float("nan")],
    "single": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
    "mixed": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("3.50"), decimal.Decimal(4)]),
    "maybe": [1, None, 3, 4],
    "flag": [True, False, True, True],
    "flag?": [True, None, False, True],
    "text": ["u", "v", "u", "é"],
    "text?": ["u", None, "", "w"],
    "chosen": pa.array(["b", "a", None, "b"]).dictionary_encode(),
    "codes": [7, 8, 7, 9],
    "codes?": [7.0, None, 7.0, 9.5],
    "day": [datetime.date(2020, 1, d) for d in (1, 2, 3, 4)],
    "moment": [datetime.datetime(2020, 1, 1, h, 30) for h in (1, 2, 3, 4)],
    "zone": [datetime.datetime(2020, 1, 1, h, tzinfo=UTC) for h in (1, 2, 3, 4)],
    "wait": [datetime.timedelta(seconds=s) for s in (1, 2, 3, 4)],
    "clock": [datetime.time(h, 15) for h in (1, 2, 3, 4)],
    "nothing": pa.array([1.0, None, None, None]),
    "y": ["no", "yes", "yes", "no"],
}
TABLE = pa.table(COLUMNS)
CODES = ("codes", "codes?", "flag")


def a_schema(**options):
    return fit_schema(
        TABLE, "y", task="classification", impute=True, categorical=CODES, **options
    )  # fmt: skip


def lists(table):
    return {name: table[name].to_pylist() for name in table.column_names}


KINDS = {
    "arrow": lambda table: table,
    "chunks": lambda table: pa.concat_tables([table.slice(0, 1), table.slice(1)]),
    "lists": lists,
    "arrays": lambda table: {n: np.asarray(v) for n, v in lists(table).items()},
    "pandas": lambda table: table.to_pandas(),
    "pandas of lists": lambda table: pd.DataFrame(lists(table)),
    "pandas of Arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "nullable pandas": lambda table: table.to_pandas().convert_dtypes(),
    "stream": lambda table: Stream(table),
}


class Stream:
    """A table of another library, which hands over Arrow data."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("coded", [False, True])
def test_every_table_is_encoded_as_arrow_is(kind, coded):
    schema = a_schema(coded=coded)
    container = KINDS[kind](TABLE.select(TABLE.column_names[::-1]))
    assert is_table(container)
    np.testing.assert_array_equal(
        encode_table(schema, container, "float64"), encode(schema, TABLE).X
    )
    single = encode_table(schema, container, "float32")
    np.testing.assert_array_equal(single, encode(schema, TABLE, "float32").X)


NEW = {
    "whole": pa.array([2**53 + 1, 1, 1, 1]),
    "real": ["a", "b", "c", "d"],
    "single": [1.0, float("inf"), 0.0, 0.0],
    "flag": [1, 0, 1, 1],
    "codes": ["7", "8", "7", "9"],
    "day": [1.0, 2.0, 3.0, 4.0],
    "text": COLUMNS["day"],
    "maybe": COLUMNS["day"],
    "unsigned": pa.array([b"1", b"2", b"3", b"4"]),
    "wait": [None, None, "x", None],
}


@pytest.mark.parametrize("name", NEW)
def test_columns_of_another_kind_are_refused_in_the_same_words(name):
    schema, place = a_schema(), TABLE.column_names.index(name)
    table = TABLE.set_column(place, name, pa.array(NEW[name]))
    with pytest.raises(TableError) as expected:
        encode(schema, table)
    for kind in ("arrow", "lists", "pandas"):
        with pytest.raises(TableError) as caught:
            encode_table(schema, KINDS[kind](table), "float64")
        # A value is shown as the table holds it, so the words before it are compared.
        ours, theirs = (str(error.value).partition(", got ") for error in (caught, expected))
        assert ours[0] == theirs[0], kind


def test_unseen_categories_and_missing_columns_and_values():
    schema = a_schema()
    unseen = TABLE.set_column(8, "text", pa.array(["z", "v", None, "u"]))
    for kind in ("arrow", "lists", "pandas"):
        with pytest.warns(UnseenCategoryWarning, match=r"column 'text': 'z' \(rows: 1\);"):
            X = encode_table(schema, KINDS[kind](unseen), "float64")
        np.testing.assert_array_equal(X, encode(schema, unseen).X)
    strict = fit_schema(TABLE.select(["whole", "text", "y"]), "y", task="classification")
    for table in (TABLE.drop_columns(["text"]), unseen):
        with pytest.raises(TableError) as expected:
            encode(strict, table)
        for kind in ("arrow", "lists", "pandas"):
            with pytest.raises(TableError) as caught:
                encode_table(strict, KINDS[kind](table), "float64")
            assert str(caught.value) == str(expected.value)


def test_the_warning_cuts_long_categories_and_counts_many():
    schema = Schema((Column("town", ("Bern", "Oslo")),), "y", "regression", None, False)
    for values, words in (
        (["x" * 1000], f"'{'x' * 79} (rows: 1);"),
        ([*"ABCDEFG", "A"], "'A', 'B', 'C', 'D', 'E' and 2 more (rows: 8);"),
    ):
        with pytest.warns(UnseenCategoryWarning) as caught:
            encode_table(schema, {"town": values}, "float64")
        assert f"column 'town': {words}" in str(caught[0].message)


def test_the_warning_points_at_the_line_of_the_caller(tmp_path):
    """The caller may be in a package that has a copy of `jsparse.predictor`."""
    program = """
        from {}.schema import Column, Schema
        from {}.tables import encode_table
        schema = Schema((Column("town", ("Bern", "Oslo")),), "y", "regression", None, False)
        def answer():
            encode_table(schema, {{"town": ["Rome"]}}, "float64")  # this is line 6
    """
    shutil.copytree(Path(predictor.__file__).parent, tmp_path / "app" / "served")
    for package in ("jsparse.predictor", "app.served"):
        path = tmp_path / "app" / "program.py"
        path.write_text(textwrap.dedent(program.format(package, package)))
        run = subprocess.run(
            [sys.executable, "-c", "import app.program; app.program.answer()"],
            capture_output=True, text=True, check=True, timeout=120, cwd=tmp_path,
        )  # fmt: skip
        words = "UnseenCategoryWarning: categories that training did"
        assert run.stderr.startswith(f"{path}:6: {words}")


def test_tables_of_no_sense():
    schema = a_schema()
    for bad in ({"whole": [1, 2], "real": [1.0]}, pd.DataFrame([[1, 2]], columns=["a", "a"])):
        with pytest.raises(ValueError, match="distinct names and equal lengths"):
            encode_table(schema, bad, "float64")
    with pytest.raises(TableError, match="got type dict"):
        encode_table(schema, lists(TABLE) | {"whole": [{}, {}, {}, {}]}, "float64")
    with pytest.raises(TableError, match="one value in each row"):
        encode_table(schema, lists(TABLE) | {"whole": np.ones((4, 2))}, "float64")


@pytest.mark.filterwarnings("ignore::jsparse.UnseenCategoryWarning")
def test_a_model_of_a_table_and_its_predictor_take_the_same_tables(tmp_path):
    schema = fit_schema(
        TABLE.select(["single", "text", "y"]), "y", task="classification", impute=True
    )
    d, rng = len(schema.features), np.random.default_rng(0)
    parts = rng.normal(size=(3, d)), rng.normal(size=3), np.float64(0.1)
    model = Model(
        KernelExpansion(kernels.RBF(1.0), *map(device_put, parts)),
        labels=schema.classes, label_dtype="<U3", columns=schema,
    )  # fmt: skip
    model.save(tmp_path / "m")
    predictor, frame = model.to_numpy(), TABLE.to_pandas()
    for table in (TABLE, frame):
        np.testing.assert_array_equal(
            predictor.decision_function(table), model.decision_function(table)
        )
    by_hand = {"text": ["u", "z"], "single": [0.1, 0.2]}
    np.testing.assert_array_equal(
        predictor.decision_function(by_hand), model.decision_function(Frame(by_hand))
    )
    X = encode(schema, TABLE).X
    np.testing.assert_array_equal(predictor.predict(X), predictor.predict(TABLE))
    arrays = a_model(kernels.RBF(1.0))
    frame = pd.DataFrame(rng.normal(size=(3, 4)))
    np.testing.assert_array_equal(arrays.to_numpy().predict(frame), arrays.predict(frame))
