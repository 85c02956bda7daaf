"""The deployed model: predictions for arrays and tables, within JAX and outside."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import safetensors
from families import model_of_sizes
from predictor.plain_models import D, a_model, rows, table_model

from jsparse import FixedSize, Model, Profile, load, train
from jsparse.data.encoding import encode
from jsparse.data.frames import Frame
from jsparse.data.tables import TableError
from jsparse.expansion import KernelExpansion
from jsparse.kernels import RBF
from jsparse.model import About

N = 80
ROWS = np.random.default_rng(0).standard_normal((N, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, 0.0]
NUMBERS = np.sin(2 * ROWS[:, 0]) + ROWS[:, 1] / 10
LABELS = np.array(["low", "middle", "top"])[np.digitize(NUMBERS, [0.0, 1.0])]
SMALL = FixedSize(12, selection="uniform")
QUICK = {"key": 0, "search": Profile(tune_kernel=False), "C": np.array([5.0]), "folds": 3}
X = rows(20)


def trained(X, y, task="classification", method=SMALL, **options):
    with jax.enable_x64(True):
        return train(X, y, task=task, method=method, **{**QUICK, **options}).model


@pytest.fixture(scope="module")
def models():
    """Return models of two classes, several classes, one target, several targets, and a path."""
    kernel = RBF(np.linspace(0.8, 2.5, D))
    tasks = {"two": "two", "several": "one_versus_one", "numbers": "regression"}
    made = {name: a_model(kernel, task) for name, task in (tasks | {"targets": "targets"}).items()}
    with jax.enable_x64(True):
        path, _ = model_of_sizes("joint", D)
    about = About(method="scdp", metric="misclassification", rows=N)
    return {**made, "path": dataclasses.replace(path, about=about)}


def test_a_model_and_its_expansion_take_one_row_and_batches(models):
    model, inputs = models["several"], jnp.asarray(X[:4])
    values = model(inputs)
    assert values.shape == (4, 6)
    np.testing.assert_allclose(model(X[:4]), values, rtol=1e-12)  # rows of NumPy
    for function in (model, model.expansion):
        for row in (inputs[2], X[2]):
            np.testing.assert_allclose(function(row), values[2], rtol=1e-12)
        np.testing.assert_allclose(jax.jit(jax.vmap(function))(inputs), values, rtol=1e-12)
        np.testing.assert_allclose(jax.jit(function)(inputs), values, rtol=1e-12)


@pytest.mark.parametrize("kind", ["several", "path"])
def test_a_model_is_an_argument_of_jit_and_differentiable_in_every_leaf(models, kind):
    model, inputs, traces = models[kind], jnp.asarray(X[:5]), []

    @jax.jit
    def apply(model, inputs):
        traces.append(1)
        return model(inputs)

    for _ in range(2):
        np.testing.assert_allclose(apply(model, inputs), model(inputs), rtol=1e-12, atol=1e-12)
    assert len(traces) == 1
    assert hash(model) == hash(model)
    assert model == model
    assert model != jax.tree.map(lambda leaf: leaf, model)
    free, rest = eqx.partition(model, eqx.is_inexact_array)
    gradient = jax.jit(jax.grad(lambda free: jnp.sum(eqx.combine(free, rest)(inputs))))(free)
    machine, slope = model.expansion, gradient.expansion
    outputs = machine.intercept.shape
    np.testing.assert_allclose(slope.intercept, 5 * np.ones(outputs), rtol=1e-12)
    columns = machine.kernel.cross_gram(machine.scaling.apply(inputs), machine.prototypes)
    expected = np.broadcast_to(np.sum(columns, axis=0)[:, None], (model.size, *outputs))
    np.testing.assert_allclose(slope.coefficients, expected, rtol=1e-9)
    for leaf in (slope.prototypes, slope.kernel.lengthscale, slope.scaling.shift):
        assert float(np.max(np.abs(leaf))) > 0


def test_one_row_is_answered_as_many_and_decisions_are_the_largest_scores(models):
    for model in models.values():
        answers = [model.predict, model.decision_function]
        if model.classes is not None:
            answers.append(model.predict_proba)
        for answer in answers:
            many, one = answer(X[:3]), answer(X[1])
            assert isinstance(many, np.ndarray)
            assert isinstance(one, np.ndarray)
            assert np.shape(one) == many.shape[1:]
            if many.dtype.kind == "f":
                np.testing.assert_allclose(one, many[1], rtol=1e-12, atol=1e-14)
            else:
                assert one == many[1]
            np.testing.assert_array_equal(answer(X[1].tolist()), one)
        with pytest.raises(ValueError, match=f"X: expected {D} columns, as in training, got 2"):
            model.predict(X[0, :2])
        with pytest.raises(ValueError, match="X: expected"):
            model.predict(X[None])
        if model.classes is None:
            np.testing.assert_allclose(model.predict(X), model(X), rtol=1e-10)
            with pytest.raises(ValueError, match="this model has no classes"):
                model.predict_proba(X)
            continue
        scores = model.decision_function(X)
        number = (scores >= 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        np.testing.assert_array_equal(model.predict(X), model.classes[number])
        np.testing.assert_array_equal(model.predict_proba(X).argmax(axis=1), number)


def test_a_model_tells_what_it_is(models):
    text = repr(models["path"])
    for words in (
        f"Model: 3 classes, {D} inputs",
        "path: at(1) to at(6)",
        "classes: a, b, c",
        "method: scdp",
        "metric: misclassification",
        f"rows: {N}",
    ):
        assert words in text
    assert "no probabilities" not in text
    assert "classes: a, b, c; no probabilities" in repr(models["path"].at(2))
    assert "n_prototypes: 2" in repr(models["path"].at(2))
    table = pd.DataFrame(X, columns=["b", "a", "c", "d"])
    assert "columns: b, a, c, d" in repr(table_model(Frame(table)))
    bare = Model(KernelExpansion(RBF(1.0), jnp.zeros((2, 4)), jnp.ones(2), jnp.zeros(())))
    assert repr(bare) == "Model: regression, 4 inputs, 2 prototypes, RBF kernel, float64"


def test_sizes_of_a_path_and_of_none(models):
    model = models["path"]
    with pytest.raises(ValueError, match="came from `at`, take the model before"):
        model.at(2).at(7)
    selected = model.at(model.size)  # the selected size keeps its calibration
    np.testing.assert_array_equal(selected.predict_proba(X), model.predict_proba(X))
    assert models["two"].at(80) is models["two"]
    with pytest.raises(ValueError, match="the only size of this model"):
        models["two"].at(5)


def test_the_file_of_one_size_holds_this_size_alone(models, tmp_path):
    model, bytes_of = models["path"], {}
    for size in (1, 2, model.size):
        path = tmp_path / f"{size}"
        model.at(size).save(path)
        with safetensors.safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        assert arrays["prototypes"] == [size, D]
        assert not [name for name in arrays if name.startswith("path.")]
        bytes_of[size] = path.stat().st_size
    model.save(tmp_path / "all")
    assert bytes_of[1] < bytes_of[2] < bytes_of[model.size] < (tmp_path / "all").stat().st_size


def test_where_jax_has_float32_a_model_of_float64_keeps_its_digits(models, tmp_path):
    """Without float64 in JAX, machines of every size, and the file, keep float64."""
    model = models["path"]
    wanted = [model.at(size).decision_function(X) for size in (1, 6)]
    with jax.enable_x64(False):
        assert model.at(1).dtype == np.float64
        values_by_size = [model.at(size).decision_function(X) for size in (1, 6)]
        model.save(tmp_path / "m")
    np.testing.assert_array_equal(values_by_size, wanted)
    loaded = load(tmp_path / "m")
    assert loaded.dtype == np.float64
    for size, values in zip((1, 6), wanted, strict=True):
        np.testing.assert_array_equal(loaded.at(size).decision_function(X), values)


# Tables.


def a_table(n=N):
    town = np.array(["Leuven", "Gent", "Brugge"])[np.arange(n) % 3]
    return pd.DataFrame(
        {"size": ROWS[:n, 0], "town": town, "code": np.arange(n) % 2, "id": np.arange(n)}
    )


@pytest.fixture(scope="module")
def of_table():
    return table_model(Frame(a_table(), drop=["id"], categorical=["code"]), ("no", "yes"))


def test_columns_may_come_in_any_order_and_with_others(of_table, tmp_path):
    table = a_table()
    assert [column.name for column in of_table.columns.columns] == ["size", "town", "code"]
    expected = of_table.predict_proba(table)
    assert len(np.unique(of_table.predict(table))) == 2
    other = table[["town", "id", "code", "size"]].assign(more=1.5)
    of_table.save(tmp_path / "m")
    for model in (of_table, load(tmp_path / "m")):
        for container in (other, pa.Table.from_pandas(other), Frame(other), other.set_index("id")):
            np.testing.assert_array_equal(model.predict_proba(container), expected)
            np.testing.assert_array_equal(model.predict(container), of_table.predict(table))
    # The rows as they were encoded are an array like any other.
    inputs = encode(of_table.columns, pa.Table.from_pandas(table)).X
    np.testing.assert_array_equal(of_table.predict_proba(inputs), expected)
    with pytest.raises(ValueError, match="X: expected 6 columns, as in training, got 3"):
        of_table.predict(ROWS)


def test_what_is_wrong_with_a_table_is_named(of_table):
    table = a_table()
    for wrong, message in (
        (table.rename(columns={"town": "towns"}), "'town', not found; nearest: 'towns'"),
        (
            table.assign(size=table["size"].where(table.index > 1)),
            "missing values: column 'size' has 2 in 80 rows",
        ),
        (table.assign(size="large"), "'size': expected numbers, got 'large' in row index 0"),
        (table.assign(size=np.inf), "'size': expected finite numbers, got inf in row index 0"),
        (pd.concat([table, table[["town"]]], axis=1), "X: expected columns with distinct names"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            of_table.predict(wrong)
        assert isinstance(caught.value, TableError) or "distinct" in message


def test_training_takes_targets_by_name_or_as_an_array_and_fills_in_values_as_asked():
    table = a_table().drop(columns="id")
    table.loc[:5, "size"] = np.nan
    frame = Frame(table, impute=True)
    model = trained(frame, NUMBERS, "regression")
    filled = table.assign(size=table["size"].fillna(table["size"].median()))
    named = trained(filled.assign(y=NUMBERS), "y", "regression")
    for each in (table, filled):
        np.testing.assert_array_equal(model.predict(each), named.predict(filled))
    weights = np.append(np.zeros(3), np.ones(N - 3))  # rows without weight are left out
    for wrong, y, message in (
        (table, NUMBERS, "3 in 77 rows, the first in row index 3"),
        (frame, None, "y: expected the name of a column of the table"),
        (frame, LABELS[:-1], "y: expected 80 values, as many as rows of X"),
        (frame, "z", "the target column 'z'"),
    ):
        with pytest.raises(ValueError, match=message):
            trained(wrong, y, "regression", weights=weights)


def test_a_model_of_arrays_takes_the_columns_of_a_table_in_their_order(models):
    model, table = models["several"], pd.DataFrame(X, columns=list("abcd"))
    for container in (table, pa.Table.from_pandas(table), Frame(table)):
        np.testing.assert_array_equal(model.predict(container), model.predict(X))
    np.testing.assert_array_equal(model.predict(table.iloc[0]), model.predict(X[0]))  # a series
    with pytest.raises(ValueError, match="X: expected 4 columns, as in training, got 2"):
        model.predict(table[["a", "b"]])
    with pytest.raises(ValueError, match="X: expected numbers"):
        model.predict(table.assign(b="x"))


def test_a_category_of_whole_numbers_is_a_category():
    table = pd.DataFrame({"zone": pd.Categorical([7, 5, 7, 6]), "age": [1.0, 2.0, 3.0, 4.0]})
    X, _, columns = Frame(table).arrays(np.arange(4.0), "regression")
    assert columns.features == ("zone=5", "zone=6", "zone=7", "age")
    np.testing.assert_array_equal(X[:, :3], [[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0]])
    plain = table.astype({"zone": int})
    np.testing.assert_array_equal(Frame(plain).encode(columns, "float64"), X)
    ordered = Frame(table).ordered(["age", "zone"]).arrays(np.arange(4.0), "regression")
    assert ordered[2].features == ("age", "zone=5", "zone=6", "zone=7")
