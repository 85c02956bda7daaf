"""The fixed-size LS-SVM by conjugate gradients against dense least squares, refits and limits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.kernels import gaussian

import jsparse
from jsparse import _status
from jsparse.compilation import count_compilations
from jsparse.kernels import RBF
from jsparse.machines import iterative
from jsparse.machines.fixed_size import FixedSize
from jsparse.machines.held_out import Start
from jsparse.machines.rows import rows_of
from jsparse.multiclass import output_code
from jsparse.training.plan import plan
from jsparse.validation.folds import plain_folds
from jsparse.validation.validate import validate

SCALE = 1.5
METHOD = FixedSize(40, solver="conjugate_gradients")


def problem(dtype="float64", n=150, m=40, d=3, seed=0):
    """Return inputs, two targets, weights (some are 0) and prototypes."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = np.stack([np.sin(2 * X[:, 0]) + X[:, 1] + 3, X[:, 1] * X[:, 2]], axis=1)
    w = rng.uniform(0.5, 2.0, n)
    w[::7] = 0
    return tuple(jnp.asarray(a, dtype) for a in (X, y, w, X[:m]))


def direct(Z, C, X, y, w=None):
    """Return `x -> k(x, Z) beta + b` of least squares in NumPy.

    The penalty `|F beta|^2 / C`, with `F'F = K(Z, Z)`, is appended as rows. `F` comes from an
    eigendecomposition, so `K(Z, Z)` may be singular.
    """
    Z, X, y = (np.asarray(a, float) for a in (Z, X, y))
    root = np.ones((len(X), 1)) if w is None else np.sqrt(np.asarray(w, float))[:, None]
    values, vectors = np.linalg.eigh(gaussian(Z, Z, SCALE))
    F = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T / np.sqrt(C)
    K = np.hstack([gaussian(X, Z, SCALE), np.ones((len(X), 1))])
    A = np.vstack([root * K, np.hstack([F, np.zeros((len(Z), 1))])])
    y = y.reshape(len(X), -1)
    b = np.vstack([root * y, np.zeros((len(Z), y.shape[1]))])
    solution = np.linalg.lstsq(A, b, rcond=1e-15)[0]
    return lambda new: gaussian(new, Z, SCALE) @ solution[:-1] + solution[-1]


@pytest.mark.parametrize(("C", "block_rows"), [(0.1, None), (1000.0, 32)])
def test_equals_direct_least_squares(C, block_rows):
    X, y, w, Z = problem()
    machine = iterative.fit(RBF(SCALE), Z, C, X, y, w, tolerance=1e-12, block_rows=block_rows)
    assert int(machine.status) == _status.CONVERGED
    assert float(machine.relative_residual) <= 1e-12
    new = X + 0.1
    np.testing.assert_allclose(machine.expansion(new), direct(Z, C, X, y, w)(new), atol=1e-8)
    one = iterative.fit(RBF(SCALE), Z, C, X, y[:, 0], w, tolerance=1e-12)
    assert one.expansion.intercept.shape == ()
    np.testing.assert_allclose(one.expansion(new), machine.expansion(new)[:, 0], atol=1e-8)


@pytest.mark.slow
def test_constant_columns_constant_targets_and_repeated_prototypes_change_nothing():
    X, y, w, Z = problem(m=20)
    y = jnp.stack([y[:, 0], jnp.full(len(y), 3.0)], axis=1)
    expected = direct(Z, 10.0, X, y, w)(X)
    X, Z = (jnp.concatenate([a, jnp.full((len(a), 1), 2.0)], axis=1) for a in (X, Z))
    for points, tolerance in ((Z, 1e-12), (jnp.concatenate([Z, Z[:8]]), 1e-9)):
        machine = iterative.fit(RBF(SCALE), points, 10.0, X, y, w, tolerance=tolerance)
        assert int(machine.status) == _status.CONVERGED
        np.testing.assert_allclose(machine.expansion(X), expected, atol=1e-8)
        np.testing.assert_allclose(machine.expansion.coefficients[:, 1], 0, atol=1e-12)
        np.testing.assert_allclose(machine.expansion.intercept[1], 3.0)


def test_more_prototypes_than_rows():
    X, y, _, Z = problem(n=30, m=30)
    Z = jnp.concatenate([Z, Z + 0.5])
    machine = iterative.fit(RBF(SCALE), Z, 10.0, X, y, tolerance=1e-12)
    assert int(machine.status) == _status.CONVERGED
    np.testing.assert_allclose(machine.expansion(X), direct(Z, 10.0, X, y)(X), atol=1e-8)


def test_float32_reaches_its_tolerance_or_says_that_it_does_not():
    X, y, w, Z = problem("float32")
    expected = direct(Z, 10.0, X, y, w)(X)
    machine = iterative.fit(RBF(SCALE), Z, 10.0, X, y, w)
    assert machine.expansion(X).dtype == jnp.float32
    assert int(machine.status) == _status.CONVERGED
    tolerance = iterative.default_tolerance(X.dtype)
    assert float(machine.relative_residual) <= tolerance < 0.011
    errors = np.sqrt(np.mean((np.asarray(machine.expansion(X)) - expected) ** 2, axis=0))
    assert (errors < 3 * tolerance * np.std(expected, axis=0)).all()
    beyond = iterative.fit(RBF(SCALE), Z, 10.0, X, y, w, tolerance=1e-9)
    assert int(beyond.status) == _status.PRECISION_LOST


def test_the_limit_of_steps_is_reported():
    X, y, w, Z = problem()
    machine = iterative.fit(RBF(SCALE), Z, 10.0, X, y, w, max_iterations=3)
    assert (int(machine.steps), int(machine.status)) == (3, _status.EXHAUSTED)
    assert float(machine.relative_residual) > iterative.default_tolerance(X.dtype)
    with pytest.raises(ValueError, match="max_iterations: expected"):
        iterative.fit(RBF(SCALE), Z, 10.0, X, y, w, max_iterations=0)


@pytest.mark.parametrize("targets", [slice(None), 0])
def test_a_solution_is_its_own_start(targets):
    X, y, w, Z = problem()
    rows = X, y[:, targets], w
    machine = iterative.fit(RBF(SCALE), Z, 10.0, *rows)
    start = np.asarray(machine.expansion.coefficients)
    again = iterative.fit(RBF(SCALE), Z, 10.0, *rows, start=start)
    assert (int(again.steps), int(again.status)) == (0, _status.CONVERGED)
    np.testing.assert_allclose(again.expansion(X), machine.expansion(X), atol=1e-9)
    near = iterative.fit(RBF(SCALE), Z, 12.0, *rows, start=start)
    assert 0 < int(near.steps) < int(machine.steps)


def test_a_start_that_does_not_fit_is_refused(as_users_call):
    X, y, w, Z = problem()
    start = np.ones((40, 2))
    for bad, message in (
        (start[:-1], r"start: expected the coefficients .* 40 prototypes, .*\(39, 2\)"),
        (start[:, 0], r"start: expected .* shape \(40, 2\), got \(40,\)"),
        (start[:, :1], r"start: expected .* shape \(40, 2\), got \(40, 1\)"),
        (start.astype("float32"), "start: expected the dtype of X, float64, got flo"),
        (start.astype("int32"), "start: expected the dtype of X, float64, got int32"),
        (start * np.nan, "start: expected finite"),
    ):
        with pytest.raises(ValueError, match=message):
            iterative.fit(RBF(SCALE), Z, 10.0, X, y, w, start=bad)
    for bad, message in ((Z[:, :-1], "shape"), (Z[:0], "m at least 1"), (Z * np.nan, "finite")):
        with pytest.raises(ValueError, match=f"prototypes: expected .*{message}"):
            iterative.fit(RBF(SCALE), bad, 10.0, X, y, w)
    with pytest.raises(ValueError, match="kernel: expected a kernel, such as"):
        iterative.fit("rbf", Z, 10.0, X, y, w)


def test_the_preconditioner_saves_steps():
    # Without it, the square root of the condition number, some thousands, bounds the steps.
    X, y, _, Z = problem(n=600, m=100)
    machine = iterative.fit(RBF(SCALE), Z, 10.0, X, y, tolerance=1e-8)
    assert int(machine.status) == _status.CONVERGED
    assert int(machine.steps) < 60


def test_nothing_compiles_again_whatever_the_steps():
    X, y, w, Z = problem()
    iterative.fit(RBF(SCALE), Z, 10.0, X, y, w)
    with count_compilations() as count:
        few = iterative.fit(RBF(1.1 * SCALE), Z, 0.1, X, y, w, tolerance=1e-2)
        many = iterative.fit(RBF(0.9 * SCALE), Z, 100.0, X, y, w, tolerance=1e-10)
    assert int(few.steps) < int(many.steps)
    assert count.programs == 0


def classes(n=150):
    X, _, w, Z = problem(n=n)
    labels = np.digitize(np.sin(2 * X[:, 0]) + X[:, 1], [-0.7, 0.7])
    return X, labels, w, Z


@pytest.mark.slow
def test_three_classes_share_the_passes():
    X, labels, w, Z = classes()
    code = output_code("one_versus_rest", 3)
    family = METHOD.fit(
        RBF(SCALE), Z, 10.0, rows_of(X, jnp.asarray(labels), w, code.astype(np.dtype(float)))
    )
    targets = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    np.testing.assert_allclose(family.values(X)[:, 0], direct(Z, 10.0, X, targets, w)(X), atol=1e-5)
    assert int(family.status) == _status.CONVERGED


def test_held_out_rows_are_those_of_the_first_fold():
    X, y, w, Z = problem()
    folds, grid = plain_folds(0, len(X), 5), jnp.asarray([0.1, 1.0, 10.0])
    result = validate(METHOD, RBF(SCALE), Z, grid, X, y, folds, w, metric="mse", keep=1)
    held = np.asarray(folds.index)[0]
    out = np.isin(np.arange(len(X)), held)
    training = np.where(out, 0, w)
    for i, C in enumerate(np.asarray(grid)):
        errors = np.asarray(y) - direct(Z, C, X, y, training)(X)
        loss = np.sum((np.asarray(w)[:, None] * errors**2)[out]) / np.sum(np.asarray(w)[out]) / 2
        np.testing.assert_allclose(result.scores[i, 0], loss, rtol=1e-5)
    expected = direct(Z, 1.0, X, y, training)(X)
    np.testing.assert_allclose(result.predictions[out], expected[out], atol=1e-5)
    assert isinstance(result.total, Start)
    last = direct(Z, 10.0, X, y, training)
    centred = gaussian(X, Z, SCALE) @ result.total.coefficients
    difference = centred - last(X)
    np.testing.assert_allclose(difference, difference[:1] * np.ones((len(X), 1)), atol=1e-5)


def test_settings_that_need_sums_are_refused():
    X, labels, _, _ = classes()
    X, options = np.asarray(X), {"task": "classification", "key": 0}
    few = FixedSize((10, 20), solver="conjugate_gradients")
    with pytest.raises(ValueError, match="solver: expected 'cholesky' with several"):
        jsparse.train(X, labels, method=few, **options)
    with pytest.raises(ValueError, match="solver: expected 'cholesky' with the linear kernel"):
        jsparse.train(X, labels, method=METHOD, kernel="linear", **options)
    with pytest.raises(ValueError, match="multiclass: expected a scheme in which every problem"):
        jsparse.train(X, labels, method=METHOD, multiclass="one_versus_one", **options)
    each = jsparse.Multiclass(C_per_problem=True)
    with pytest.raises(ValueError, match="C_per_problem: expected False"):
        jsparse.train(X, labels, method=METHOD, multiclass=each, **options)
    with pytest.raises(ValueError, match=r"stream: expected .* needs the rows in every step"):
        METHOD.check_sums("stream")
    with pytest.raises(ValueError, match=r"n_prototypes: .* of memory .*kernel values"):
        jsparse.train(
            X, labels, method=METHOD, resources=jsparse.Resources(memory=20_000), **options
        )


def test_the_plan_covers_what_the_program_takes():
    n, m, item = 2000, 1500, 4
    planned = plan(n, 5, m, n_C=4, solver="conjugate_gradients", memory=10**9)
    assert "sums" not in planned.parts
    assert planned.parts["preconditioner"] == 4 * m * m * item
    assert 1500 < planned.largest < 10_000
    abstract = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, jnp.float32),
        (jnp.zeros((m, 5)), jnp.zeros(()), jnp.zeros((n, 5)), jnp.zeros(n)),
    )
    Z, C, X, y = abstract

    def fit(Z, C, X, y):
        return iterative.fit(RBF(jnp.float32(SCALE)), Z, C, X, y)

    memory = jax.jit(fit).lower(Z, C, X, y).compile().memory_analysis()
    assert 0.5 * planned.bytes < memory.temp_size_in_bytes < planned.bytes


@pytest.mark.slow
def test_training_tunes_few_prototypes_and_holds_out_one_fold():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 3))
    labels = np.digitize(np.sin(2 * X[:, 0]) + X[:, 1], [-0.7, 0.7])
    names = np.array(["low", "middle", "high"])[labels]
    method = FixedSize(60, tuned_with=20, solver="conjugate_gradients")
    search = jsparse.Profile(max_evaluations=3)
    options = {"task": "classification", "search": search, "folds": 5, "key": 0}
    model = jsparse.train(X, names, method=method, **options)
    assert model.model.size == 60
    stages = {evaluation.stage for evaluation in model.tuning.history}
    assert stages == {0, 1}
    last = model.tuning.history[-1]
    assert 1 < len(last.C) < 6
    assert model.status == _status.CONVERGED
    held = np.asarray(model.folds.index)[0][np.asarray(model.folds.valid)[0]]
    predicted = np.isfinite(model.out_of_fold).all(axis=1)
    assert np.array_equal(np.flatnonzero(predicted), np.sort(held))
    assert "1 of 5 folds held out" in str(model)
    assert f"solver      conjugate gradients, {model.fit.info['steps']} steps, resid" in str(model)
    direct_method = dataclasses.replace(model.method, solver="cholesky", tuned_with=None)
    same = jsparse.train(
        X, names, method=direct_method, kernel=model.kernel, C=np.array([model.C]),
        **options | {"search": jsparse.Profile(tune_kernel=False)},
    )  # fmt: skip
    values, expected = (each.model.decision_function(X) for each in (model, same))
    errors = np.sqrt(np.mean((values - expected) ** 2, axis=0))
    tolerance = iterative.default_tolerance(np.dtype("float32"))
    assert (errors < 2 * tolerance * np.std(expected, axis=0)).all()
    assert np.mean(model.predict(X) == names) > 0.9
