"""Predictions of NumPy rows by few compiled programs, and the same functions within JAX."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from predictor.plain_models import D, a_model, numbered, rows

from jsparse import NumericalError
from jsparse._blocks import batch_capacities, row_batches
from jsparse.compilation import count_compilations
from jsparse.data.tables import rows_of_file
from jsparse.estimators import SparseOneClassSVM
from jsparse.kernels import RBF

# Of the output codes only the decoding matters.
KINDS = ("two", "one_versus_one", "hamming")


def classifier(kind, dtype="float64", labels=None, **options):
    """Return a classifier whose labels are whole numbers, unless labels are given."""
    return numbered(a_model(RBF(np.asarray(1.3, dtype)), kind, dtype, **options), labels)


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
    """Return the values of the expansion, in NumPy."""
    parts = model.expansion
    Z, beta, b = map(np.asarray, (parts.prototypes, parts.coefficients, parts.intercept))
    apart = ((X[:, None] - Z[None]) ** 2).sum(axis=2)
    return np.exp(-apart / (2 * 1.3**2)) @ beta + b


def test_any_number_of_rows_takes_six_programs():
    model = classifier("one_versus_one", scaling="none")
    X, most = rows(5000), len(batch_capacities())
    sizes = [1, 5000, *np.random.default_rng(0).integers(1, 5000, 40)]
    for answer in (model.decision_function, model):
        with count_compilations() as compiled:
            for n in sizes:
                values = answer(X[:n])
                assert values.shape[0] == n
        assert 0 < compiled.programs <= most + 1  # and the one that asks whether JAX is tracing
    assert isinstance(values, jax.Array)
    np.testing.assert_allclose(values, by_loops(model, X[:n]), rtol=1e-9, atol=1e-12)
    with count_compilations() as compiled:
        for n in sizes:
            model.predict_proba(X[:n])
            model.predict(X[:n])
    assert compiled.programs == 0
    loss = np.mean((1 - model.code.matrix[None] * by_loops(model, X)[:, None]) ** 2, axis=2)
    np.testing.assert_allclose(model.decision_function(X), -loss, rtol=1e-9, atol=1e-12)
    broken = jax.device_put(np.full(6, np.inf))
    expansion = dataclasses.replace(model.expansion, intercept=broken)
    with pytest.raises(NumericalError, match=r"at data row 8 \(the first is 1\) is not finite"):
        dataclasses.replace(model, expansion=expansion).scores(
            X[:3], name_row=rows_of_file([7, 8, 9])
        )


def test_models_are_warmed_up_in_silence(capsys):
    kernel = RBF(1.3) * RBF(9.0)  # programs that no other test has compiled
    model = a_model(kernel, "targets", folds=2)
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


@pytest.mark.slow
def test_an_estimator_of_one_class_takes_six_programs_too(as_users_call):
    machine = SparseOneClassSVM(n_prototypes=3, starts=2, random_state=0).fit(rows(40))
    with count_compilations() as compiled:
        for n in range(1, 400, 9):
            machine.predict(rows(n))
    assert compiled.programs <= len(batch_capacities())


def test_values_of_rows_on_the_host_stay_where_the_model_is():
    model, X = classifier("two", "float32"), rows(5, "float32")
    on_device = jax.device_put(model.expansion, jax.devices()[0])
    assert not model.expansion(X).committed
    assert on_device(X).committed
    assert on_device(X[:0]).shape == (0,)


# --- within JAX ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("two", "float64"),
        ("one_versus_one", "float32"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("two", "float32"), ("one_versus_one", "float64"), ("hamming", "float64"))
        ),
    ],
)
def test_traced_answers_are_those_of_numpy(kind, dtype):
    model, X = classifier(kind, dtype), rows(9, dtype)
    rtol = 1e-10 if dtype == "float64" else 1e-4
    with jax.enable_x64(dtype == "float64"):
        inputs = jnp.asarray(X)
        for answer in answers(model):
            expected = answer(X)
            assert isinstance(expected, np.ndarray)
            assert isinstance(answer(inputs), np.ndarray)  # outside of a trace

            @jax.jit
            def compiled(inputs, row, answer=answer):
                constant = answer(X)  # rows that are a constant
                return answer(inputs), answer(row), jax.vmap(answer)(inputs), constant

            traced, one, each, within = compiled(inputs, X[0])
            assert isinstance(traced, jax.Array)
            assert traced.dtype == dtype
            for ours, theirs in (
                (traced, expected), (one, expected[0]), (each, expected), (within, expected),
            ):  # fmt: skip
                np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)
        of_model = jax.jit(lambda model, X: model.predict_proba(X))(model, inputs)
        np.testing.assert_allclose(of_model, model.predict_proba(X), rtol=rtol, atol=rtol)
        labels = jax.jit(model.predict)(inputs)
        np.testing.assert_array_equal(labels, model.predict(X))
        assert labels.dtype == jax.dtypes.canonicalize_dtype(np.int64)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind):
    model, X = classifier(kind), rows(4)
    direction, h = np.random.default_rng(5).standard_normal((4, D)), 1e-5
    functions = answers(model)
    each = [np.random.default_rng(3).standard_normal(f(X).shape) for f in functions]

    def totals(X):
        return [jnp.sum(f(X) * weights) for f, weights in zip(functions, each, strict=True)]

    slopes = jax.jit(jax.jacrev(totals))(X)
    for answer, weights, slope in zip(functions, each, slopes, strict=True):
        change = np.sum((answer(X + h * direction) - answer(X - h * direction)) * weights)
        np.testing.assert_allclose(
            np.sum(np.asarray(slope) * direction), change / (2 * h), rtol=1e-5, atol=1e-8
        )


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("hamming", "float64"),
        ("targets", "float64"),
        pytest.param("two", "float64", marks=pytest.mark.slow),
        pytest.param("one_versus_one", "float32", marks=pytest.mark.slow),
    ],
)
def test_exported_answers_are_those_of_the_model(kind, dtype):
    if kind == "targets":
        model = a_model(RBF(1.3), kind)
        functions = (model.predict, model)
    else:
        model = classifier(kind, dtype)
        functions = (*answers(model), model.predict)
    rtol = 1e-10 if dtype == "float64" else 1e-4
    with jax.enable_x64(dtype == "float64"):
        (n,) = export.symbolic_shape("n")
        for function in functions:
            exported = export.export(jax.jit(function))(jax.ShapeDtypeStruct((n, D), dtype))
            assert exported.out_avals[0].shape[0] == n
            again = export.deserialize(exported.serialize())
            for count in (1, 300):
                X = rows(count, dtype)
                np.testing.assert_allclose(again.call(X), function(X), rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    ("task", "method", "folds"),
    [
        ("targets", "interval", 2),
        ("regression", "interval", 0),
        ("one_versus_one", "predict_set", 2),
        ("one_versus_one", "predict_set", 0),
    ],
)
def test_intervals_and_sets_within_jax(task, method, folds):
    model, X = a_model(RBF(1.3), task, folds=folds), rows(7)
    answer = getattr(model, method)
    traced, each = jax.jit(lambda X: (answer(X), jax.vmap(answer)(X)))(X)
    np.testing.assert_allclose(traced, answer(X), rtol=1e-10)
    np.testing.assert_allclose(each, traced, rtol=1e-10)
    with pytest.raises(ValueError, match="expected a model that the traced function closes"):
        jax.jit(lambda model, X: getattr(model, method)(X))(model, X)


def test_labels_that_jax_does_not_hold_are_refused_within_it():
    X = jnp.asarray(rows(3, "float32"))
    for labels in (("no", "yes"), (1, 2**40)):
        model = classifier("two", "float32", labels)
        assert set(model.predict(X)) <= set(labels)
        with (
            jax.enable_x64(False),
            pytest.raises(ValueError, match="predict: expected labels that"),
        ):
            jax.jit(model.predict)(X)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(model.predict)(X), model.predict(X))
    for labels, dtype in (((False, True), bool), ((0.5, 2.5), np.float32)):
        model = classifier("two", "float32", labels)
        with jax.enable_x64(False):
            predictions = jax.jit(model.predict)(X)
        assert predictions.dtype == dtype
        np.testing.assert_array_equal(predictions, model.predict(X))
    with pytest.raises(ValueError, match="X: expected"):
        jax.jit(model.predict_proba)(X[:, :2])
