"""Predictions of rows on the host, by few programs, and the same functions within JAX."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from test_conformal import NEW, learn
from test_model import LABELS, NUMBERS, ROWS, trained

from jsparse import Model, NumericalError, load
from jsparse._blocks import batch_capacities, row_batches
from jsparse.compilation import count_compilations
from jsparse.data.tables import rows_of_file
from jsparse.estimators import SparseOneClassSVM
from jsparse.expansion import KernelExpansion
from jsparse.kernels import RBF
from jsparse.multiclass import output_code

SLOW = pytest.mark.slow
D = 3
CODES = ["one_versus_one", "one_versus_rest", "minimum_output"]
KINDS = ["two", *(f"{code} {decoding}" for code in CODES for decoding in ("loss", "hamming"))]


def a_model(kind, dtype, m=6, labels=None):
    """A classifier with random coefficients, of two classes or of five by a code."""
    rng = np.random.default_rng(0)
    k = 2 if kind == "two" else 5
    scheme, decoding = ("one_versus_rest", "loss") if kind == "two" else kind.split()
    code = None if kind == "two" else output_code(scheme, k)
    outputs = () if code is None else code.matrix.shape[1:]
    with jax.enable_x64(dtype == np.float64):
        shapes = (m, D), (m, *outputs), outputs
        parts = (jax.device_put(rng.standard_normal(s).astype(dtype)) for s in shapes)
        expansion = KernelExpansion(RBF(jax.device_put(np.array(1.3, dtype))), *parts)
    labels = tuple(range(10, 10 + k)) if labels is None else labels
    inverse_temperatures = np.linspace(0.5, 1.5, k)
    return Model(
        expansion,
        inverse_temperatures=inverse_temperatures,
        code=code,
        decoding=decoding,
        labels=labels,
        label_dtype=np.array(labels).dtype.str,
    )


def rows(n, dtype=np.float64):
    return np.random.default_rng(n).standard_normal((n, D)).astype(dtype)


def answers(model):
    return (model.decision_function, model.predict_proba)


# --- few programs -------------------------------------------------------------------------------


def test_batches_cover_the_rows_with_little_padding():
    capacities = batch_capacities()
    block = capacities[-1]
    assert len(capacities) == 6
    for n in [*range(1, 3 * block, 7), 10 * block, 10 * block + 1]:
        batches = list(row_batches(n))
        starts, stops, sizes = zip(*batches, strict=True)
        assert (starts[0], stops[-1]) == (0, n)
        assert starts[1:] == stops[:-1]
        assert set(sizes) <= set(capacities)
        assert all(0 < stop - start <= size for start, stop, size in batches)
        assert len(batches) <= n // block + 2
        assert sum(sizes) - n < max(capacities[1], block // 2)
        # Blocks that are filled need nothing else.
        assert sum(sizes[: n // block]) == n // block * block


def by_loops(model, X):
    """Values of the expansion, in NumPy."""
    parts = model.expansion
    Z, beta, b = map(np.asarray, (parts.prototypes, parts.coefficients, parts.intercept))
    apart = ((X[:, None] - Z[None]) ** 2).sum(axis=2)
    return np.exp(-apart / (2 * 1.3**2)) @ beta + b


def test_any_number_of_rows_takes_six_programs():
    model = a_model("one_versus_one loss", np.float64, m=50)
    X, most = rows(5000), len(batch_capacities())
    sizes = [1, 5000, *np.random.default_rng(0).integers(1, 5000, 40)]
    for answer in (model.decision_function, model):
        with jax.enable_x64(True), count_compilations() as compiled:
            for n in sizes:
                values = answer(X[:n])
                assert values.shape[0] == n
        assert 0 < compiled.programs <= most + 1  # and the one that asks whether JAX is tracing
        if answer is model:
            np.testing.assert_allclose(values, by_loops(model, X[:n]), rtol=1e-9, atol=1e-12)
            assert isinstance(values, jax.Array)
    with count_compilations() as compiled:
        for n in sizes:
            model.predict_proba(X[:n])
            model.predict(X[:n])
    assert compiled.programs == 0
    values, matrix = by_loops(model, X), model.code.matrix
    loss = np.mean((1 - matrix[None] * values[:, None]) ** 2, axis=2)
    np.testing.assert_allclose(model.decision_function(X), -loss, rtol=1e-9, atol=1e-12)
    broken = jax.device_put(np.full(10, np.inf, np.float32))
    model = a_model("one_versus_one loss", np.float32)
    model = dataclasses.replace(
        model, expansion=dataclasses.replace(model.expansion, intercept=broken)
    )
    with pytest.raises(NumericalError, match=r"at data row 8 \(the first is 1\) is not finite"):
        model.scores(X[:3], name_row=rows_of_file([7, 8, 9]))


def test_models_are_warmed_up_in_silence(capsys):
    model = learn(np.stack([NUMBERS, -NUMBERS], axis=1)).model
    kernel = RBF(1.3) * RBF(9.0)  # programs that no other test has compiled
    expansions = (model.expansion, model.conformal.machines)
    expansion, folds = (dataclasses.replace(each, kernel=kernel) for each in expansions)
    conformal = dataclasses.replace(model.conformal, machines=folds)
    model = dataclasses.replace(model, expansion=expansion, conformal=conformal)
    first = model.warm_up()
    assert len(batch_capacities()) <= first.programs <= 2 * len(batch_capacities())
    assert first.seconds > 0
    with count_compilations() as compiled:
        for n in (1, 3, 70, 300, 2500):
            model.predict(rows(n))
            model.interval(rows(n))
    assert compiled.programs == 0
    assert model.warm_up().programs == 0
    assert capsys.readouterr() == ("", "")


def test_an_estimator_of_one_class_takes_six_programs_too(as_users_call):
    machine = SparseOneClassSVM(n_prototypes=3, starts=2, random_state=0).fit(rows(40))
    with count_compilations() as compiled:
        for n in range(1, 400, 9):
            machine.predict(rows(n))
    assert compiled.programs <= len(batch_capacities())


def test_values_of_rows_on_the_host_stay_where_the_model_is():
    model = a_model("two", np.float32)
    on_device = jax.device_put(model.expansion, jax.devices()[0])
    assert not model.expansion(rows(5)).committed
    assert on_device(rows(5)).committed
    assert on_device(rows(5)[:0]).shape == (0,)


# --- within JAX ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, "float64") for kind in KINDS),
        *((kind, "float32") for kind in KINDS[:2]),
        *(pytest.param(kind, "float32", marks=SLOW) for kind in KINDS[2:]),
    ],
)
def test_traced_answers_are_those_of_numpy(kind, dtype):
    dtype = np.dtype(dtype)
    model, X = a_model(kind, dtype), rows(9, dtype)
    rtol = 1e-10 if dtype == np.float64 else 1e-4
    with jax.enable_x64(dtype == np.float64):
        inputs = jnp.asarray(X)
        for answer in answers(model):
            expected = answer(X)
            assert isinstance(expected, np.ndarray)
            assert isinstance(answer(inputs), np.ndarray)  # outside of a trace
            traced = jax.jit(answer)(inputs)
            assert isinstance(traced, jax.Array)
            assert traced.dtype == dtype
            np.testing.assert_allclose(traced, expected, rtol=rtol, atol=rtol)
            np.testing.assert_allclose(
                jax.jit(answer)(inputs[0]), expected[0], rtol=rtol, atol=rtol
            )
            each = jax.vmap(answer)(inputs)
            loop = jnp.stack([jax.jit(answer)(row) for row in inputs])
            np.testing.assert_allclose(each, loop, rtol=rtol, atol=rtol)
            np.testing.assert_allclose(each, expected, rtol=rtol, atol=rtol)
            within = jax.jit(lambda answer=answer: answer(X))()  # rows that are a constant
            np.testing.assert_allclose(within, expected, rtol=rtol, atol=rtol)
        of_model = jax.jit(lambda model, X: model.predict_proba(X))(model, inputs)
        np.testing.assert_allclose(of_model, model.predict_proba(X), rtol=rtol, atol=rtol)
        labels = jax.jit(model.predict)(inputs)
        np.testing.assert_array_equal(labels, model.predict(X))
        assert labels.dtype == jax.dtypes.canonicalize_dtype(np.int64)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind):
    model, X = a_model(kind, np.float64), rows(4)
    direction, h = rows(4 + 1)[:4], 1e-5
    with jax.enable_x64(True):
        for answer in answers(model):
            weights = np.random.default_rng(3).standard_normal(answer(X).shape)
            slope = jax.jit(jax.grad(lambda X, f=answer, w=weights: jnp.sum(f(X) * w)))
            gradient = slope(jnp.asarray(X))
            change = np.sum((answer(X + h * direction) - answer(X - h * direction)) * weights)
            np.testing.assert_allclose(
                np.sum(np.asarray(gradient) * direction), change / (2 * h), rtol=1e-5, atol=1e-8
            )


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, "float64") for kind in (KINDS[0], KINDS[1], KINDS[4])),
        (KINDS[0], "float32"),
        *(pytest.param(kind, "float32", marks=SLOW) for kind in (KINDS[1], KINDS[4])),
    ],
)
def test_exported_answers_are_those_of_the_model(kind, dtype):
    dtype = np.dtype(dtype)
    model = a_model(kind, dtype)
    rtol = 1e-10 if dtype == np.float64 else 1e-4
    with jax.enable_x64(dtype == np.float64):
        (n,) = export.symbolic_shape("n")
        for answer in (*answers(model), model.predict):
            exported = export.export(jax.jit(answer))(jax.ShapeDtypeStruct((n, D), dtype))
            again = export.deserialize(exported.serialize())
            for count in (1, 3, 300):
                X = rows(count, dtype)
                np.testing.assert_allclose(again.call(X), answer(X), rtol=rtol, atol=rtol)


def test_regressions_are_predicted_within_jax():
    Y = np.stack([NUMBERS, 1 - NUMBERS], axis=1)
    model = trained(ROWS, Y, "regression")
    (n,) = export.symbolic_shape("n")
    with jax.enable_x64(True):
        X = jnp.asarray(NEW)
        np.testing.assert_allclose(jax.jit(model.predict)(X), model.predict(NEW), rtol=1e-10)
        shape = jax.ShapeDtypeStruct((n, D), np.float64)
        again = export.deserialize(export.export(jax.jit(model.predict))(shape).serialize())
        np.testing.assert_allclose(again.call(X), model.predict(NEW), rtol=1e-10)


@pytest.mark.parametrize(
    ("y", "method", "machines"),
    [
        (np.stack([NUMBERS, 1 - NUMBERS], axis=1), "interval", True),
        (NUMBERS, "interval", False),
        (LABELS, "predict_set", True),
        (LABELS, "predict_set", False),
    ],
)
def test_intervals_and_sets_within_jax(y, method, machines):
    task = "regression" if method == "interval" else "classification"
    model = learn(y, task, out_of_fold="machines" if machines else True).model
    answer = getattr(model, method)
    with jax.enable_x64(True):
        traced = jax.jit(answer)(jnp.asarray(NEW))
        np.testing.assert_allclose(traced, answer(NEW), rtol=1e-10)
        one = jax.vmap(answer)(jnp.asarray(NEW))
        np.testing.assert_allclose(one, traced, rtol=1e-10)
        with pytest.raises(ValueError, match="expected a model that the traced function closes"):
            jax.jit(lambda model, X: getattr(model, method)(X))(model, NEW)


def test_labels_that_jax_does_not_hold_are_refused_within_it(tmp_path):
    X = jnp.asarray(rows(3, np.float32))
    for labels in (("no", "yes"), (1, 2**40)):
        model = a_model("two", np.float32, labels=labels)
        assert set(model.predict(X)) <= set(labels)
        with (
            jax.enable_x64(False),
            pytest.raises(ValueError, match="predict: expected labels that"),
        ):
            jax.jit(model.predict)(X)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(model.predict)(X), model.predict(X))
    for labels, dtype in (((False, True), bool), ((0.5, 2.5), np.float32)):
        model = a_model("two", np.float32, labels=labels)
        with jax.enable_x64(False):
            predictions = jax.jit(model.predict)(X)
        assert predictions.dtype == dtype
        np.testing.assert_array_equal(predictions, model.predict(X))
    with pytest.raises(ValueError, match="X: expected"):
        jax.jit(model.predict_proba)(X[:, :2])
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(rows(9)), model.predict_proba(rows(9)))
