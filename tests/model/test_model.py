"""What is deployed: one function of rows, whatever trained it, within JAX and outside."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import safetensors
from jax import export

from jsparse import (
    SCDP,
    Dual,
    FixedSize,
    Model,
    Profile,
    Robust,
    UnseenCategoryWarning,
    load,
    save,
    train,
)
from jsparse.cli.main import main
from jsparse.data.encoding import encode
from jsparse.data.frames import Frame
from jsparse.data.tables import TableError
from jsparse.expansion import KernelExpansion
from jsparse.kernels import RBF

N, D = 80, 3
ROWS = np.random.default_rng(0).standard_normal((N, D)) * [1.0, 10.0, 0.1] + [0.0, 5.0, 0.0]
NUMBERS = np.sin(2 * ROWS[:, 0]) + ROWS[:, 1] / 10
LABELS = np.array(["low", "middle", "top"])[np.digitize(NUMBERS, [0.0, 1.0])]
SMALL = FixedSize(12)
QUICK = {"key": 0, "search": Profile(tune_kernel=False), "C": np.array([5.0]), "folds": 3}


def trained(X, y, task="classification", method=SMALL, **options):
    with jax.enable_x64(True):
        return train(X, y, task=task, method=method, **{**QUICK, **options}).model


@pytest.fixture(scope="module")
def models():
    """Of every kind: two classes, several, numbers, several of them, a path."""
    two = np.where(LABELS == "low", -1, 7)
    several = np.stack([NUMBERS, -3 * NUMBERS + 1], axis=1)
    return {
        "two": trained(ROWS, two),
        "several": trained(ROWS, LABELS),
        "numbers": trained(ROWS, NUMBERS, "regression"),
        "targets": trained(ROWS, several, "regression"),
        "path": trained(ROWS, LABELS, method=SCDP(max_prototypes=6)),
    }


KINDS = ["two", "several", "numbers", "targets", "path"]
OUTPUTS = {"two": (), "several": (3,), "numbers": (), "targets": (2,), "path": (3,)}


def test_a_model_and_its_expansion_take_one_row(models):
    X = jnp.asarray(ROWS[:4])
    for function in (models["several"], models["several"].expansion, models["numbers"]):
        values = function(X)
        np.testing.assert_allclose(function(X[2]), values[2], rtol=1e-12)
        np.testing.assert_allclose(function(ROWS[2]), values[2], rtol=1e-12)
        np.testing.assert_allclose(jax.vmap(function)(X), values, rtol=1e-12)
        np.testing.assert_allclose(jax.jit(function)(X), values, rtol=1e-12)
    gradient = jax.grad(models["numbers"])(X[2])
    whole = jax.grad(lambda X: jnp.sum(models["numbers"](X)))(X)
    np.testing.assert_allclose(gradient, whole[2], rtol=1e-9)


@pytest.mark.parametrize("kind", [pytest.param("two", marks=pytest.mark.slow), *KINDS[1:]])
def test_a_model_is_a_function_for_jit_and_an_argument_of_one(models, kind):
    model = models[kind]
    X = jnp.asarray(ROWS[:7])
    values = model(X)
    assert values.shape == (7, *OUTPUTS[kind])
    np.testing.assert_allclose(jax.jit(model)(X), values, rtol=1e-12, atol=1e-12)
    traces = []

    @jax.jit
    def apply(model, X):
        traces.append(1)
        return model(X)

    for _ in range(2):
        np.testing.assert_allclose(apply(model, X), values, rtol=1e-12, atol=1e-12)
    assert len(traces) == 1
    assert hash(model) == hash(model)
    assert model == model
    assert model != trained_again(model)
    np.testing.assert_allclose(model(ROWS[:7]), values, rtol=1e-12, atol=1e-12)  # rows of NumPy


def trained_again(model):
    return jax.tree.map(lambda leaf: leaf, model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_within_a_larger_one_is_differentiable(models, kind):
    model = models[kind]
    rng = np.random.default_rng(1)
    raw, W = jnp.asarray(rng.standard_normal((5, 4))), jnp.asarray(rng.standard_normal((4, D)))
    direction = jnp.asarray(rng.standard_normal((4, D)))

    def loss(W):
        return jnp.sum(jnp.sin(model(jnp.tanh(raw @ W))))

    slope = jnp.sum(jax.jit(jax.grad(loss))(W) * direction)
    h, loss = 1e-5, jax.jit(loss)
    difference = (loss(W + h * direction) - loss(W - h * direction)) / (2 * h)
    np.testing.assert_allclose(slope, difference, rtol=1e-6, atol=1e-8)
    # Also with respect to every floating leaf of the model.
    free, rest = eqx.partition(model, eqx.is_inexact_array)
    X = jnp.asarray(ROWS[:5])
    gradient = jax.jit(jax.grad(lambda free: jnp.sum(eqx.combine(free, rest)(X))))(free)
    np.testing.assert_allclose(gradient.expansion.intercept, 5 * np.ones(OUTPUTS[kind]), rtol=1e-12)
    ones = eqx.tree_at(
        lambda m: (m.expansion.coefficients, m.expansion.intercept),
        model,
        (jnp.eye(model.size), jnp.zeros(model.size)),
    )
    columns = jnp.sum(ones(X), axis=0)
    expected = jnp.broadcast_to(
        columns.reshape(-1, *[1] * len(OUTPUTS[kind])), (model.size, *OUTPUTS[kind])
    )
    np.testing.assert_allclose(gradient.expansion.coefficients, expected, rtol=1e-9)
    moved = gradient.expansion
    for leaf in (moved.prototypes, moved.kernel.lengthscale, moved.scaling.shift):
        assert float(jnp.max(jnp.abs(leaf))) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_exported_for_any_number_of_rows(models, kind):
    model = models[kind]
    (n,) = export.symbolic_shape("n")
    exported = export.export(jax.jit(model))(jax.ShapeDtypeStruct((n, D), jnp.float64))
    assert exported.out_avals[0].shape[0] == n
    for rows in (1, 2, 79, 256, 600):
        X = jnp.asarray(np.resize(ROWS, (rows, D)))
        np.testing.assert_allclose(exported.call(X), model(X), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_is_answered_as_many(models, kind):
    model = models[kind]
    answers = [model.predict, model.decision_function]
    if model.classes is not None:
        answers.append(model.predict_proba)
    for answer in answers:
        many = answer(ROWS[:3])
        assert isinstance(many, np.ndarray)
        assert len(many) == 3
        one = answer(ROWS[1])
        assert np.shape(one) == many.shape[1:]
        assert isinstance(one, np.ndarray)
        if many.dtype.kind == "f":
            np.testing.assert_allclose(one, many[1], rtol=1e-12, atol=1e-14)
        else:
            assert one == many[1]
        np.testing.assert_array_equal(answer(ROWS[1].tolist()), one)
    with pytest.raises(ValueError, match=f"X: expected {D} columns, as in training, got 2"):
        model.predict(ROWS[0, :2])
    with pytest.raises(ValueError, match="X: expected"):
        model.predict(ROWS[None])


def test_decisions_are_the_largest_scores_and_probabilities(models):
    for kind in ("two", "several", "path"):
        model = models[kind]
        scores, labels, probabilities = (
            answer(ROWS) for answer in (model.decision_function, model.predict, model.predict_proba)
        )
        number = (scores >= 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        np.testing.assert_array_equal(labels, model.classes[number])
        np.testing.assert_array_equal(probabilities.argmax(axis=1), number)
        assert labels.dtype == model.classes.dtype
    for kind in ("numbers", "targets"):
        np.testing.assert_allclose(models[kind].predict(ROWS), models[kind](ROWS), rtol=1e-10)
        assert models[kind].classes is None
        with pytest.raises(ValueError, match="this model has no classes"):
            models[kind].predict_proba(ROWS)


def test_a_model_tells_what_it_is(models):
    assert repr(models["numbers"]).splitlines()[0] == (
        "Model: regression, 3 inputs, 12 prototypes, RBF kernel, float64"
    )
    said = repr(models["path"])
    for words in (
        "Model: 3 classes, 3 inputs",
        "path: at(1) to at(6)",
        "classes: low, middle, top",
        "method: scdp",
        "metric: misclassification",
        f"rows: {N}",
    ):
        assert words in said
    assert "no probabilities" not in said
    assert "classes: low, middle, top; no probabilities" in repr(models["path"].at(2))
    assert "n_prototypes: 2" in repr(models["path"].at(2))
    table = pd.DataFrame(ROWS, columns=["b", "a", "c"])
    assert "columns: b, a, c" in repr(trained(table, LABELS))
    bare = Model(KernelExpansion(RBF(1.0), jnp.zeros((2, 4)), jnp.ones(2), jnp.zeros(())))
    assert repr(bare) == "Model: regression, 4 inputs, 2 prototypes, RBF kernel, float64"


def test_sizes_of_a_path_and_of_none(models):
    model = models["path"]
    for size in range(1, 7):
        assert model.at(size).size == size
        with pytest.raises(ValueError, match="came from `at`, take the model before"):
            model.at(size).at(7)
    np.testing.assert_array_equal(model.at(model.size)(ROWS), model(ROWS))
    np.testing.assert_array_equal(  # the selected size keeps its calibration
        model.at(model.size).predict_proba(ROWS), model.predict_proba(ROWS)
    )
    for size in (0, 7):
        with pytest.raises(ValueError, match=f"expected one of 1 to 6, got {size}"):
            model.at(size)
    assert models["two"].at(12) is models["two"]
    with pytest.raises(ValueError, match="the only size of this model"):
        models["two"].at(5)


def test_the_file_of_one_size_holds_this_size_alone(models, tmp_path):
    model, d = models["path"], ROWS.shape[1]
    bytes_of = {}
    for size in (1, 2, model.size):
        path = tmp_path / f"{size}"
        model.at(size).save(path)
        with safetensors.safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        assert arrays["prototypes"] == [size, d]
        assert not [name for name in arrays if name.startswith("path.")]
        bytes_of[size] = path.stat().st_size
    model.save(tmp_path / "all")
    assert bytes_of[1] < bytes_of[2] < bytes_of[model.size] < (tmp_path / "all").stat().st_size
    assert load(tmp_path / "all").path is not None
    # A folder for NumPy serves one size.
    folder = tmp_path / "served"
    assert main(["export", str(tmp_path / "all"), "--to", "numpy", "--out", str(folder)]) == 0
    assert load(folder / "model.jsparse").path is None
    assert (folder / "model.jsparse").stat().st_size < (tmp_path / "all").stat().st_size


def test_where_jax_has_float32_a_model_of_float64_keeps_its_digits(models, tmp_path):
    """As an estimator's model does: every size of it, and its file."""
    X = ROWS[:9]
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


def frame_of(table):
    return Frame(table, drop=["id"], categorical=["code"])


@pytest.fixture(scope="module")
def of_table():
    table = a_table()
    y = np.where((table.town == "Gent") == (table["size"] > 0), "yes", "no")
    return trained(frame_of(table.assign(answer=y)), "answer")


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
    with pytest.raises(TableError, match="'town', not found; nearest: 'towns'"):
        of_table.predict(table.rename(columns={"town": "towns"}))
    with pytest.raises(TableError, match=r"missing values: column 'size' has 2 in 80 rows"):
        of_table.predict(table.assign(size=table["size"].where(table.index > 1)))
    with pytest.raises(
        TableError, match="column 'size': expected numbers, got 'large' in row index 0"
    ):
        of_table.predict(table.assign(size="large"))
    with pytest.raises(
        TableError, match="column 'size': expected finite numbers, got inf in row index 0"
    ):
        of_table.predict(table.assign(size=np.inf))
    twice = pd.concat([table, table[["town"]]], axis=1)
    with pytest.raises(ValueError, match="X: expected columns with distinct names"):
        of_table.predict(twice)


def test_a_category_that_was_not_seen_is_none_of_those_that_were(of_table):
    table = a_table(4).assign(town="Hasselt")
    inputs = encode(of_table.columns, pa.Table.from_pandas(table)).X
    towns = [name.startswith("town=") for name in of_table.columns.features]
    assert sum(towns) == 3
    np.testing.assert_array_equal(inputs[:, towns], 0)
    with pytest.warns(UnseenCategoryWarning, match="column 'town': 'Hasselt'"):
        values = of_table.decision_function(table)
    np.testing.assert_allclose(of_table(inputs), values, rtol=1e-10)


def test_rows_are_named_by_their_index_in_the_callers_table():
    table = a_table()
    table.loc[7, "size"] = np.nan
    weights = np.append(np.zeros(3), np.ones(N - 3))  # rows without weight are left out
    with pytest.raises(TableError, match="1 in 77 rows, the first in row index 7"):
        trained(Frame(table, drop=["id"]), NUMBERS, "regression", weights=weights)


def test_missing_values_are_filled_in_as_asked():
    table = a_table()
    table.loc[:5, "size"], table.loc[3:9, "town"] = np.nan, None
    frame = Frame(table, drop=["id"], impute=True)
    with pytest.raises(TableError, match="missing values"):
        trained(Frame(table, drop=["id"]), NUMBERS, "regression")
    model = trained(frame, NUMBERS, "regression")
    filled = table.assign(size=table["size"].fillna(table["size"].median()))
    np.testing.assert_array_equal(model.predict(table), model.predict(filled))


def test_targets_of_a_table_by_name_or_as_an_array():
    table = a_table().drop(columns="id")
    named = trained(table.assign(y=NUMBERS), "y", "regression")
    trained_on_table = trained(table, NUMBERS, "regression")
    np.testing.assert_array_equal(named.predict(table), trained_on_table.predict(table))
    both = np.stack([NUMBERS, 1 - 2 * NUMBERS], axis=1)
    several = trained(table, both, "regression")
    assert several.predict(table).shape == (N, 2)
    np.testing.assert_allclose(
        several.predict(table)[:, 0], trained_on_table.predict(table), rtol=1e-8
    )
    with pytest.raises(ValueError, match="y: expected the name of a column of the table"):
        trained(table, None)
    with pytest.raises(ValueError, match="y: expected 80 values, as many as rows of X"):
        trained(table, LABELS[:-1])
    with pytest.raises(TableError, match="the target column 'z'"):
        trained(table, "z")


def test_a_model_of_arrays_takes_the_columns_of_a_table_in_their_order(models):
    model, table = models["several"], pd.DataFrame(ROWS, columns=list("abc"))
    for container in (table, pa.Table.from_pandas(table), Frame(table)):
        np.testing.assert_array_equal(model.predict(container), model.predict(ROWS))
    with pytest.raises(ValueError, match="X: expected 3 columns, as in training, got 2"):
        model.predict(table[["a", "b"]])
    with pytest.raises(ValueError, match="X: expected numbers"):
        model.predict(table.assign(b="x"))


# Several targets.

METHODS = {
    "fixed size": FixedSize(12, selection="uniform"),
    "dual": Dual(),
    "joint": SCDP(max_prototypes=4, candidates=ROWS[:10]),
    "separate": SCDP(max_prototypes=4, candidates=ROWS[:10], selection="separate"),
    "robust": Robust(6, selection="uniform"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("fixed size", marks=pytest.mark.slow),
        "dual",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("joint", "separate", "robust")),
    ],
)
def test_several_targets_are_as_many_models_of_one(name, tmp_path):
    Y = np.stack([NUMBERS, 100 - 7 * NUMBERS**2], axis=1)
    method = METHODS[name]
    both = trained(ROWS, Y, "regression", method)
    assert both.expansion.coefficients.shape[1:] == (2,)
    alone = [trained(ROWS, y, "regression", method) for y in Y.T]
    size = 3 if name == "separate" else None
    values = (both if size is None else both.at(size)).predict(ROWS)
    for j, one in enumerate(alone):
        expected = (one if size is None else one.at(size)).predict(ROWS)
        if name == "joint":  # with prototypes for all
            assert np.corrcoef(values[:, j], Y[:, j])[0, 1] > 0.5
            assert abs(np.mean(values[:, j] - Y[:, j])) < 0.1 * np.std(Y[:, j])
        elif name == "robust":  # C counts in units that the targets share
            assert np.corrcoef(values[:, j], expected)[0, 1] > 0.99
        else:
            scale = np.ptp(Y[:, j])
            np.testing.assert_allclose(values[:, j], expected, rtol=0, atol=1e-7 * scale)
    save(tmp_path / "m", both)
    np.testing.assert_array_equal(load(tmp_path / "m").predict(ROWS), both.predict(ROWS))


@pytest.mark.slow
def test_the_error_of_several_targets_is_their_mean():
    Y = np.stack([NUMBERS, 3 * NUMBERS], axis=1)
    with jax.enable_x64(True):
        errors = [
            train(ROWS, y, task="regression", method=FixedSize(12), **QUICK).cv_error
            for y in (Y, Y[:, 0], Y[:, 1])
        ]
    assert errors[2] == pytest.approx(9 * errors[1], rel=1e-6)
    assert errors[0] == pytest.approx((errors[1] + errors[2]) / 2, rel=1e-6)


def test_a_series_is_one_row(models):
    model = models["several"]
    row = pd.Series(ROWS[0], index=list("abc"))
    np.testing.assert_array_equal(model.predict(row), model.predict(ROWS[0]))


def test_a_category_of_whole_numbers_is_a_category():
    table = pd.DataFrame({"zone": pd.Categorical([7, 5, 7, 6]), "age": [1.0, 2.0, 3.0, 4.0]})
    X, _, columns = Frame(table).arrays(np.arange(4.0), "regression")
    assert columns.features == ("zone=5", "zone=6", "zone=7", "age")
    np.testing.assert_array_equal(X[:, :3], [[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0]])
    plain = table.astype({"zone": int})
    np.testing.assert_array_equal(Frame(plain).encode(columns, "float64"), X)
    ordered = Frame(table).ordered(["age", "zone"]).arrays(np.arange(4.0), "regression")
    assert ordered[2].features == ("age", "zone=5", "zone=6", "zone=7")


def test_texts_that_come_as_objects_are_saved(tmp_path):
    X = np.random.default_rng(0).standard_normal((40, 2))
    y = np.where(X[:, 0] > 0, "right", "left").astype(object)
    model = train(
        X, y, task="classification", method=FixedSize(5), key=0,
        search=Profile(2), folds=3,
    ).model  # fmt: skip
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict(X), model.predict(X))
