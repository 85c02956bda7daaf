"""The LS-SVM in the dual against dense systems, refits and scikit-learn."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import fixed_size as reference
from reference.kernels import gaussian
from sklearn.kernel_ridge import KernelRidge

import jsparse
from jsparse import _status
from jsparse.compilation import count_compilations
from jsparse.kernels import RBF
from jsparse.machines import dual, fixed_size
from jsparse.machines.dual import Dual
from jsparse.machines.dual_leave_one_out import (
    leave_one_out_by_cholesky,
    leave_one_out_by_spectrum,
    leave_one_out_of,
)
from jsparse.machines.rows import rows_of
from jsparse.multiclass import output_code
from jsparse.solvers import conjugate_gradients, definite
from jsparse.training import source
from jsparse.validation.folds import plain_folds

METHODS = ["cholesky", "conjugate_gradients"]


def problem(dtype="float64", n=60, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n) + 3
    return jnp.asarray(X, dtype), jnp.asarray(y, dtype)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("C", [0.1, 1e3])
def test_solves_the_kkt_system(dtype, tol, method, C):
    X, y = problem(dtype)
    fitted = dual.fit(RBF(1.0), C, X, y, method=method, tolerance=tol / 100, block_rows=17)
    K = gaussian(X, X)
    alpha, b = reference.dual(K, np.asarray(y, float), C)
    np.testing.assert_allclose(fitted.expansion(X), K @ alpha + b, atol=20 * tol)
    np.testing.assert_allclose(fitted.expansion.intercept, b, atol=100 * tol)
    assert fitted.expansion(X).dtype == X.dtype
    assert int(fitted.status) == _status.CONVERGED
    assert float(fitted.relative_residual) < tol
    assert (int(fitted.steps) > 0) == (method == "conjugate_gradients")


def test_without_variation_of_the_mean_it_is_kernel_ridge():
    # Rows with targets y and mirrored rows with -y: the intercept is zero by symmetry.
    X, y = problem()
    kernel = RBF(1.0)
    X, y = jnp.concatenate([X + 5, -X - 5]), jnp.concatenate([y, -y])
    fitted = dual.fit(kernel, 4.0, X, y)
    theirs = KernelRidge(alpha=0.25, kernel="rbf", gamma=0.5).fit(X, y)
    np.testing.assert_allclose(fitted.expansion(X[:20]), theirs.predict(X[:20]), atol=1e-10)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_leave_one_out_is_refitting(dtype, tol):
    X, y = problem(dtype, n=25)
    y = jnp.stack([y, jnp.square(y)], axis=1)
    w = jnp.asarray(np.random.default_rng(1).choice([0.0, 1.0, 2.5], 25), dtype)
    C = jnp.asarray([0.1, 10.0, 500.0], dtype)
    predictions, status = dual.leave_one_out(RBF(1.0), C, X, y, w)
    assert predictions.dtype == X.dtype
    assert predictions.shape == (3, 25, 2)
    np.testing.assert_array_equal(status, _status.CONVERGED)
    X64, y64 = np.asarray(X, float), np.asarray(y, float)
    for s in range(3):
        for i in range(25):
            rest = np.array([j for j in range(25) if j != i and w[j] > 0])
            K = gaussian(X64[rest], X64[rest])
            # Weights enter as W^(-1)/C on the diagonal.
            K += np.diag(1 / np.asarray(w, float)[rest] - 1) / float(C[s])
            k = gaussian(X64[i : i + 1], X64[rest])[0]
            for t, ours in zip(y64.T, predictions[s, i], strict=True):
                alpha, b = reference.dual(K, t[rest], float(C[s]))
                np.testing.assert_allclose(ours, k @ alpha + b, atol=100 * tol)


def rows_of_kind(kind, n=24):
    """Return rows with one or two targets, or with classes as binary problems; some weigh 0."""
    X, y = problem(n=n)
    w = jnp.asarray(np.random.default_rng(1).choice([0.0, 1.0, 2.5], n))
    if kind == "one target":
        return rows_of(X, y, w)
    if kind == "two targets":
        return rows_of(X, jnp.stack([y, jnp.square(y)], axis=1), w)
    labels = jnp.asarray(np.argsort(np.argsort(y)) * 3 // n, jnp.int32)
    return rows_of(X, labels, w, output_code(kind, 3).astype(X.dtype))


def without_each(rows, C):
    """Fit to all rows but one, for each row; return the expansions."""
    fit = jax.jit(lambda w: Dual().fit(RBF(1.0), None, C, rows.with_weights(w)).expansion)
    return [fit(rows.weights.at[i].set(0)) for i in range(len(rows))]


@pytest.mark.parametrize(
    "kind", [pytest.param("one target", marks=pytest.mark.slow), "one_versus_one"]
)
def test_the_machines_without_each_row_are_fits_to_all_others(kind):
    rows = rows_of_kind(kind)
    outputs = rows.target_columns.shape[1]
    C = jnp.asarray([1.0, 5.0, 20.0]) if kind == "one_versus_one" else jnp.asarray(5.0)
    expected = np.stack([m(rows.X).reshape(-1, outputs) for m in without_each(rows, C)], axis=1)
    # Filled up with rows of weight 0, which may hold anything.
    padded = rows_of(
        jnp.concatenate([rows.X, jnp.full((3, 3), jnp.inf)]),
        jnp.concatenate([rows.y, rows.y[:3]]),
        jnp.concatenate([rows.weights, jnp.zeros(3)]),
        rows.code,
    )
    folds = Dual().validation_folds(plain_folds(0, 24, 4), 24)
    machines = Dual().fold_machines(RBF(1.0), None, C, None, padded, folds, None, None)
    assert len(machines.prototypes) == np.sum(rows.weights > 0)
    values = machines(rows.X).reshape(24, 24, outputs)
    np.testing.assert_allclose(values, expected, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_leave_one_out_by_cholesky_is_by_the_spectrum(dtype, monkeypatch):
    monkeypatch.setattr(definite, "_BLOCK", 30)  # three blocks
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(70, 3)).astype(dtype), rng.normal(size=(70, 2)).astype(dtype)
    w = rng.uniform(0.2, 2, 70).astype(dtype)
    w[:5] = 0
    C = np.array([0.3, 20.0], dtype)
    arguments = RBF(1.3), jnp.asarray(C), jnp.asarray(X), jnp.asarray(y), jnp.asarray(w)
    values, status, by_spectrum = leave_one_out_by_spectrum(*arguments)
    others, other_status, by_cholesky = leave_one_out_by_cholesky(*arguments)
    np.testing.assert_array_equal(status, other_status)
    ways = (by_spectrum, 10), (by_cholesky, 2)
    for i, (machines, factor) in itertools.product(range(2), ways):
        fit = dual.fit(RBF(1.3), arguments[1][i], *arguments[2:])
        coefficients = np.asarray(fit.expansion.coefficients)
        # Rounding in a solution is relative to its largest entries.
        in_float32 = {"rtol": 1e-4, "atol": 1e-4 * np.abs(coefficients).max()}
        tolerance = in_float32 if dtype == "float32" else {"rtol": 1e-9}
        np.testing.assert_allclose(machines.coefficients[i], coefficients, **tolerance)
        np.testing.assert_allclose(machines.intercepts[i], fit.expansion.intercept, **tolerance)
        assert machines.relative_residual[i] < factor * fit.relative_residual
        assert machines.statuses[i] == fit.status
    np.testing.assert_allclose(values, others, atol=2e-3 if np.finfo(dtype).eps > 1e-10 else 1e-9)
    # Rounding that decides is told by both.
    twice = jnp.concatenate([arguments[2]] * 2), jnp.concatenate([arguments[3]] * 2)
    for by in (dual.leave_one_out, leave_one_out_by_cholesky):
        assert by(RBF(1.3), jnp.asarray([1e18], dtype), *twice)[1][0] == _status.PRECISION_LOST


def test_derivatives_of_leave_one_out_by_cholesky_are_those_by_the_spectrum(monkeypatch):
    monkeypatch.setattr(definite, "_BLOCK", 10)  # three blocks
    rng = np.random.default_rng(3)
    X, y = (jnp.asarray(rng.normal(size=shape)) for shape in ((25, 2), (25,)))

    def error(by, lengthscale, C, X):
        return jnp.mean(jnp.square(by(RBF(lengthscale), C[None], X, y)[0][0] - y))

    arguments = jnp.asarray(1.3), jnp.asarray(5.0), X
    ways = dual.leave_one_out, lambda *problem: leave_one_out_by_cholesky(*problem)[:2]
    one, other = (jax.grad(error, argnums=(1, 2, 3))(by, *arguments) for by in ways)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("tuned_with", [None, pytest.param(100, marks=pytest.mark.slow)])
def test_squared_errors_choose_the_kernel_and_wrong_classes_choose_C(tuned_with, monkeypatch):
    X, y = problem(seed=5)
    labels = np.where(y > np.median(y), 1, -1)
    labels[:6] *= -1
    evaluations = []
    evaluate = source.evaluate
    monkeypatch.setattr(source, "evaluate", lambda *a: evaluations.append(a) or evaluate(*a))
    monkeypatch.delattr(Dual, "fit")  # the machine comes from the evaluations
    trained = jsparse.train(np.asarray(X), labels, task="classification", key=0, kernel="rbf",
                            method=Dual(tuned_with), folds=10)  # fmt: skip
    *kernels, last = trained.tuning.history
    assert len(evaluations) == len(kernels)  # the last one was kept

    best = min(kernels, key=lambda e: e.least)
    np.testing.assert_array_equal(last.theta, best.theta)
    rows = trained.model.standardised(X), jnp.asarray(labels, float)
    C = jnp.asarray(best.C)
    predictions = np.asarray(dual.leave_one_out(trained.kernel, C, *rows)[0])
    np.testing.assert_allclose(best.scores, np.mean((predictions - labels) ** 2, axis=1))
    place = int(np.argmin(best.scores))
    np.testing.assert_array_equal(last.C, best.C[place - 1 : place + 2])
    wrong = np.mean(np.sign(predictions) != labels, axis=1)[place - 1 : place + 2]
    np.testing.assert_allclose(last.scores, wrong)
    assert trained.cv_error == wrong.min()
    assert last.C[np.argmin(wrong)] == trained.C

    fit = dual.fit(trained.kernel, trained.C, *rows)
    np.testing.assert_allclose(trained.model(X), fit.expansion(rows[0]), atol=1e-8)


@pytest.mark.slow
def test_many_rows_and_few_C_are_predicted_by_cholesky():
    rng = np.random.default_rng(4)
    X = jnp.asarray(rng.normal(size=(1100, 2)))
    rows = rows_of(X, jnp.sin(X[:, 0]), None, None)
    few, many = (jnp.geomspace(0.1, 10, s) for s in (3, 5))
    values = leave_one_out_of(RBF(1.0), few, rows)[0]
    np.testing.assert_allclose(
        values[:, 0], leave_one_out_of(RBF(1.0), many, rows)[0][:, 0], atol=1e-8
    )


def test_the_machines_without_each_row_need_digits():
    X, y = problem("float32")
    folds = Dual().validation_folds(plain_folds(0, 60, 4), 60)
    C = jnp.asarray(1e9, jnp.float32)
    with pytest.raises(_status.NumericalError, match=r"out_of_fold: .* use float64"):
        Dual().fold_machines(RBF(5.0), None, C, None, rows_of(X, y), folds, None, None)


@pytest.mark.slow
def test_a_family_has_no_prototype_of_weight_zero():
    rows = rows_of_kind("two targets")
    family = Dual().fit(RBF(1.0), None, 5.0, rows)
    present = np.asarray(rows.weights) > 0
    np.testing.assert_array_equal(family.expansion.prototypes, rows.X[present])
    np.testing.assert_array_equal(family.sizes, [present.sum()])
    np.testing.assert_allclose(
        family.expansion(rows.X), family.values(rows.X)[:, 0], rtol=1e-12, atol=1e-12
    )
    assert set(family.info) == {"relative_residual", "steps"}


def test_another_number_of_steps_compiles_nothing():
    X, y = problem()
    options = {"method": "conjugate_gradients", "landmarks": 5}
    dual.fit(RBF(1.0), 5.0, X, y, max_iterations=3, **options)
    with count_compilations() as compiled:
        machine = dual.fit(RBF(1.0), 5.0, X, y, max_iterations=4, **options)
    assert int(machine.steps) == 4
    assert compiled.programs == 0


def test_says_when_rounding_decides():
    X, y = problem("float32")
    assert int(dual.fit(RBF(5.0), 1e9, X, y).status) == _status.PRECISION_LOST
    assert (
        int(dual.leave_one_out(RBF(5.0), jnp.array([1e9], "float32"), X, y)[1][0])
        >= _status.PRECISION_LOST
    )


@pytest.mark.slow
def test_landmarks_save_steps():
    X, y = problem(n=400)
    few, many = (
        dual.fit(RBF(2.0), 1e4, X, y, method="conjugate_gradients", landmarks=m) for m in (5, 100)
    )
    assert int(many.steps) < int(few.steps) / 3


def test_conjugate_gradients_reports_an_indefinite_matrix_and_freezes_finished_columns():
    A = np.diag([1.0, 2.0, -1.0])
    rhs = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])

    @jax.jit
    def solve(rhs):
        return conjugate_gradients.solve(lambda v: A @ v, rhs, tolerance=1e-12, max_iterations=10)

    x, _, steps, status = map(np.asarray, solve(rhs))
    ended = [_status.CONVERGED, _status.INDEFINITE, _status.CONVERGED]
    assert status.tolist() == ended
    assert steps[0] == 1
    assert steps[2] == 0
    np.testing.assert_allclose(x[:, 0], [1, 0, 0])


def test_the_relative_residual_knows_no_units():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2)).astype(np.float32)
    y = rng.standard_normal(40).astype(np.float32)
    options = {"method": "conjugate_gradients", "max_iterations": 2, "landmarks": 1}
    large, small, y, X = (jnp.asarray(a) for a in (np.ldexp(y, 83), np.ldexp(y, -83), y, X))
    kernel, C = RBF(jnp.float32(1.0)), jnp.float32(100.0)
    for fit in (
        lambda y: dual.fit(kernel, C, X, y, **options),
        lambda y: fixed_size.fit(kernel, X[:10], C, X, y),
    ):
        usual = fit(y).relative_residual
        assert usual > 0
        for scaled in (large, small):
            np.testing.assert_allclose(fit(scaled).relative_residual, usual, rtol=0.2)


def test_bad_input_is_named(as_users_call):
    X, y = problem()
    for change, message in (
        ({"C": -1.0}, "C: expected a positive number"),
        ({"y": jnp.full(60, jnp.nan)}, "y: expected finite"),
        ({"y": jnp.zeros(59)}, "y: expected 60 rows"),
        ({"weights": -jnp.ones(60)}, "weights: expected all at least 0"),
        ({"method": "qr"}, "method: expected"),
        ({"max_iterations": 0}, "max_iterations: expected a whole number of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            dual.fit(**{"kernel": RBF(1.0), "C": 1.0, "X": X, "y": y, **change})
    code = output_code("one_versus_rest", 3)
    for labels, message in (
        (jnp.zeros(0, jnp.int32), "labels: expected a class number for each row, got none"),
        (jnp.full(60, 3), "labels: expected class numbers 0 to 2, got numbers from 3 to 3"),
        (jnp.zeros(60), "labels: expected class numbers, integers"),
    ):
        with pytest.raises(ValueError, match=message):
            dual.fit_classes(RBF(1.0), 1.0, X, labels, code)
