"""Reweighted systems and sparse reductions against naive loops and a search of all supports."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import fixed_size as machines
from reference import reductions as reference
from reference.kernels import gaussian as columns

import jsparse
from jsparse._status import (
    CONVERGED,
    EXHAUSTED,
    NOT_FINITE,
    PRECISION_LOST,
    TRUNCATED,
    VANISHED,
)
from jsparse.data.streams import ArrayStream
from jsparse.kernels import RBF
from jsparse.machines import reductions
from jsparse.machines.reduction_system import prototype_targets
from jsparse.machines.reductions import SparseReduction
from jsparse.machines.rows import rows_of
from jsparse.solvers.reweighted import reweighted, reweighted_rows
from jsparse.validation.folds import folds_from_assignment

solve = jax.jit(reweighted, static_argnames="rule")
by_rows = jax.jit(reweighted_rows, static_argnames="rule")


def problem(dtype="float64", n=80, M=30, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)
    return jnp.asarray(X, dtype), jnp.asarray(y, dtype), jnp.asarray(X[:M], dtype)


def system(Q, y):
    """Return the normal equations with the intercept eliminated."""
    f, y = Q.sum(axis=0), y.reshape(len(y), -1)
    A, b = Q.T @ Q - np.outer(f, f) / len(y), Q.T @ y - np.outer(f, y.mean(axis=0))
    return A, b if b.shape[1] > 1 else b[:, 0]


@pytest.mark.parametrize(("initialization", "C"), [("primal", 1.0), ("dual", 100.0)])
def test_by_the_papers_rule_it_is_the_papers_loop(initialization, C):
    X, y, Z = problem()
    Q, K, target = columns(X, Z), columns(Z, Z), np.asarray(y)
    if initialization == "primal":  # Algorithm 3: weights of the features, largest eigenvalue first
        Phi = machines.nystroem(np.asarray(X), np.asarray(Z), 1.0)
        first, start = machines.ridge(Phi, target, C, 0.0)[:-1][::-1], "weights"
    else:  # Algorithm 4
        first, start = machines.dual(K, target[:30], C)[0], "coefficients"
    beta, b, steps = reference.reweighted(Q, target, C, np.abs(first))
    reduction = reductions.fit(
        RBF(1.0), Z, C, X, y, initialization=initialization, start=start, rule="paper"
    )
    assert int(reduction.steps) == steps
    assert int(reduction.count) == np.count_nonzero(beta) < 20
    np.testing.assert_allclose(
        reduction.expansion.coefficients, beta, atol=1e-5 * np.abs(beta).max()
    )
    np.testing.assert_allclose(reduction.expansion(X), Q @ beta + b, atol=1e-5)


def test_it_begins_with_the_machine_of_the_prototypes_alone():
    X, y, Z = problem()
    alpha, b = machines.dual(columns(Z, Z), np.asarray(y)[:30], 10.0)
    machine = reductions.subsampled_dual(RBF(1.0), Z, 10.0, X, y).expansion
    np.testing.assert_allclose(machine.coefficients, alpha, rtol=1e-8)
    np.testing.assert_allclose(machine.intercept, b, rtol=1e-8)


@pytest.mark.slow
def test_the_losses_that_the_paper_compares_with():
    X, y, Z = problem()
    model = reductions.fit(RBF(1.0), Z, 10.0, X, y, loss="prototypes").expansion
    kept = np.asarray(model.coefficients) != 0
    # Rows that are no prototypes say where it begins, and no more: it rests at a point of the loss.
    rest = np.asarray(y)[:30] - np.asarray(model(Z))
    slope = 10 / np.var(np.asarray(y)) * (columns(Z, Z) - columns(Z, Z).mean(axis=0)).T @ rest
    np.testing.assert_allclose((slope * np.asarray(model.coefficients))[kept], 1, atol=1e-3)
    assert abs(rest.mean()) < 1e-10
    # Of Lopez: every row a prototype, in the dual.
    every = reductions.fit(RBF(1.0), X, 10.0, X, y, initialization="dual")
    assert 0 < int(every.count) < 20
    weights = jnp.asarray(np.arange(len(X)) < len(Z), float)
    by_rows, by_prototypes = (
        reductions.fit(RBF(1.0), Z, 10.0, X, y, weights, initialization="dual", loss=loss)
        for loss in ("rows", "prototypes")
    )
    np.testing.assert_allclose(by_rows.expansion(X), by_prototypes.expansion(X), atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "C"), [pytest.param("float32", 1.0, marks=pytest.mark.slow), ("float64", 30.0)]
)
def test_what_is_left_is_stationary_and_a_minimum(dtype, C):
    X, y, Z = problem(dtype)
    reduction = reductions.fit(RBF(1.0), Z, C, X, y)
    assert int(reduction.status) in (CONVERGED, PRECISION_LOST)
    if int(reduction.status) == CONVERGED:
        assert float(reduction.stationarity) < (1e-3 if dtype == "float64" else 0.1)
    A, _ = system(columns(X, Z), np.asarray(y, float))
    C = C / np.var(np.asarray(y, float))
    beta = np.asarray(reduction.expansion.coefficients, float)
    kept = beta != 0
    assert 0 < kept.sum() == int(reduction.count) < 20
    assert (C * beta**2 * np.diagonal(A))[kept].min() >= 0.99
    assert reduction.expansion.coefficients.dtype == X.dtype
    if dtype == "float64":
        hessian = C * A[np.ix_(kept, kept)] - np.diag(1 / beta[kept] ** 2)
        assert np.linalg.eigvalsh(hessian).min() > 0


def test_near_the_best_of_all_supports():
    gaps = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        Q = rng.standard_normal((40, 7))
        y = Q[:, :3] @ np.array([2.0, -1.0, 0.7]) + 0.3 * rng.standard_normal(40)
        least, _ = reference.fewest(Q, y, 3.0)
        A, b = system(Q, y)
        solution = solve(A, b, jnp.asarray(3.0), jnp.ones(7))
        kept = np.flatnonzero(np.asarray(solution.coefficients))
        inside = np.column_stack([np.ones(40), Q[:, kept]])
        rest = y - inside @ np.linalg.lstsq(inside, y, rcond=None)[0]
        value = len(kept) + 1.5 * rest @ rest
        assert value >= least - 1e-9
        gaps.append(value / least - 1)
    assert np.median(gaps) < 0.05
    assert max(gaps) < 0.5


def test_outputs_keep_or_lose_a_prototype_together():
    X, y, Z = problem()
    Q, Y = columns(X, Z), np.stack([np.asarray(y), np.cos(np.asarray(X)[:, 0])], axis=1)
    A, b = system(Q, Y)
    solution = solve(A, b, jnp.asarray(30.0), jnp.ones(30))
    kept = np.asarray(solution.coefficients) != 0
    assert (kept[:, 0] == kept[:, 1]).all()
    assert 0 < int(solution.count) < 25
    expected = reference.jointly(Q, Y, 30.0, np.ones(30))
    np.testing.assert_allclose(solution.coefficients, expected, atol=1e-3)
    one = solve(A, b[:, 0], jnp.asarray(30.0), jnp.ones(30))
    same = solve(A, jnp.stack([b[:, 0], 0 * b[:, 0]], axis=1), jnp.asarray(30.0), jnp.ones(30))
    np.testing.assert_allclose(same.coefficients[:, 0], one.coefficients, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_columns_in_many_units(dtype):
    """The penalties of the first system span 1e12, and more where columns have other units."""
    X, y, Z = problem(dtype)
    A, b = (jnp.asarray(a, dtype) for a in system(columns(X, Z), np.asarray(y, float)))
    C = jnp.asarray(10.0, dtype)
    units = jnp.asarray(np.geomspace(1e-3, 1e3, 30), dtype)
    plain = solve(A, b, C, jnp.ones(30, dtype))
    other = solve(A * units[:, None] * units[None], b * units, C, 1 / units)
    tol = 1e-8 if dtype == "float64" else 2e-2
    scale = np.abs(plain.coefficients).max()
    np.testing.assert_allclose(units * other.coefficients, plain.coefficients, atol=tol * scale)
    spanning = solve(A, b, C, units**1.0)
    assert np.isfinite(spanning.coefficients).all()
    assert int(spanning.status) == CONVERGED
    assert 0 < int(spanning.count) < 20


def test_from_a_factor_it_is_the_same_with_twice_the_digits():
    """The kernel is so wide that its Gram matrix is rank-deficient in float32."""
    X, y, Z = problem(n=120)
    Q, y = columns(X, Z, 2.0), np.asarray(y)
    Q, y = Q - Q.mean(axis=0), y - y.mean()
    F = np.linalg.qr(np.column_stack([Q, y]), mode="r")
    systems = {by_rows: (F[:, :30], F[:, 30]), solve: (Q.T @ Q, Q.T @ y)}

    def solution(run, dtype):
        arguments = (*systems[run], 1e3, np.full(30, 0.01))
        reweighting = run(*(jnp.asarray(a, dtype) for a in arguments))
        values = Q @ np.asarray(reweighting.coefficients, float)
        return reweighting, np.mean(np.square(values - y))

    (exact, error), (same, _) = solution(by_rows, "float64"), solution(solve, "float64")
    np.testing.assert_allclose(same.coefficients, exact.coefficients, rtol=1e-6)
    narrow, narrow_error = solution(by_rows, "float32")
    assert int(narrow.count) == int(exact.count)
    np.testing.assert_allclose(narrow.coefficients, exact.coefficients, rtol=1e-3)
    np.testing.assert_allclose(narrow_error, error, rtol=1e-3)
    squares, worse = solution(solve, "float32")
    assert int(squares.status) == PRECISION_LOST
    assert worse > 1.5 * error


def test_nothing_left_is_a_constant_that_says_so():
    X, y, Z = problem()
    reduction = reductions.fit(RBF(1.0), Z, 1e-4, X, y)
    assert int(reduction.count) == 0
    assert int(reduction.status) == VANISHED
    np.testing.assert_allclose(reduction.expansion(X), np.mean(np.asarray(y)), rtol=1e-5)


@pytest.mark.slow
def test_training_with_nothing_left_warns():
    X, y, _ = problem()
    trained = jsparse.train(
        X, y, task="regression", key=0, C=np.array([1e-4]), method=jsparse.SparseReduction(10),
        folds=3, search=jsparse.Profile(2),
    )  # fmt: skip
    assert trained.statuses["fit"] == VANISHED
    assert trained.model.size == 1
    np.testing.assert_allclose(trained.predict(X), np.mean(np.asarray(y)), rtol=1e-5)
    with pytest.warns(jsparse.ConvergenceWarning, match="no prototype is left"):
        jsparse.check(trained.status)


@pytest.mark.slow
def test_extreme_numbers_of_prototypes():
    X, y, Z = problem()
    many = reductions.fit(RBF(1.0), Z, 10.0, X[:9], y[:9])
    assert int(many.status) == CONVERGED
    assert int(many.count) < 9
    one = reductions.fit(RBF(1.0), Z[:1], 10.0, X, y)
    assert int(one.count) == 1
    Q = columns(X, Z[:1])
    C = 10.0 / np.var(np.asarray(y))
    beta, (A, b) = float(one.expansion.coefficients[0]), system(Q, np.asarray(y))
    assert abs(C * beta * (b[0] - A[0, 0] * beta) - 1) < 1e-4
    twice = reductions.fit(RBF(1.0), jnp.concatenate([Z, Z]), 10.0, X, y)
    assert int(twice.status) == CONVERGED
    both = np.asarray(twice.expansion.coefficients).reshape(2, 30) != 0
    assert not both.all(axis=0).any()  # one of two equals will do
    constant = reductions.fit(RBF(1.0), Z, 10.0, X, jnp.full(80, 3.0))
    assert int(constant.status) == VANISHED
    np.testing.assert_allclose(constant.expansion(X), 3.0)


def test_the_order_of_prototypes_changes_nothing():
    X, y, Z = problem()
    order = np.random.default_rng(1).permutation(30)
    plain, permuted = (
        reductions.fit(RBF(1.0), points, 10.0, X, y).expansion for points in (Z, Z[order])
    )
    np.testing.assert_allclose(permuted.coefficients, plain.coefficients[order], atol=1e-5)


def test_what_makes_no_sense(as_users_call, monkeypatch):
    X, y, Z = problem()
    two = np.eye(2), np.ones(2), np.asarray(9.0), np.ones(2)
    for place, bad in (
        (1, np.array([1.0, np.nan])),
        (0, np.diag([np.nan, 1.0])),
        (2, np.array(-1.0)),
        (3, np.array([1.0, np.inf])),
    ):
        spoilt = solve(*two[:place], bad, *two[place + 1 :])
        assert int(spoilt.status) == NOT_FINITE
    assert int(solve(*two[:3], np.zeros(2)).count) == 0
    monkeypatch.setattr("jsparse.solvers.reweighted.STEPS", 2)
    assert int(jax.jit(lambda: reweighted(*two))().status) == EXHAUSTED
    for changes, options, message in (
        ({}, {"initialization": "none"}, "initialization: expected 'primal' or 'dual'"),
        ({}, {"start": "none"}, "start: expected"),
        ({}, {"loss": "none"}, "loss: expected 'rows' or 'prototypes'"),
        ({}, {"rule": "none"}, "rule: expected"),
        (
            {},
            {"initialization": "dual", "start": "weights"},
            "start: expected 'coefficients' with",
        ),
        ({"Z": Z + 1.0}, {"initialization": "dual"}, r"rows of X .* none of them is"),
        ({"Z": Z[:, :1]}, {}, r"prototypes: expected shape \(m, 2\)"),
        ({"C": jnp.ones(2)}, {}, "C: expected one number, as all outputs"),
    ):
        arguments = {"Z": Z, "C": 1.0, **changes}
        with pytest.raises(ValueError, match=message):
            reductions.fit(RBF(1.0), arguments["Z"], arguments["C"], X, y, **options)
    rows = np.asarray(X), np.asarray(y)
    for settings, source, message in (
        ({"n_prototypes": [10, 5]}, rows, "n_prototypes: expected increasing"),
        ({"k": 0.0}, rows, "k: expected"),
        ({"n_prototypes": 81}, rows, "n_prototypes: expected"),
        ({"loss": "none"}, rows, "loss: expected"),
        ({"loss": "prototypes"}, (ArrayStream(*rows),), r"stream: .* need the rows themselves"),
    ):
        with pytest.raises(ValueError, match=message):
            jsparse.train(*source, task="regression", key=0, method=SparseReduction(**settings))


class SquaredErrors(eqx.Module):
    """Squared errors summed over rows, and the values themselves."""

    wanted: None = None

    def __call__(self, rows, values, which):
        errors = jnp.square(rows.target_columns[:, None, :] - values).sum(axis=2)
        return jnp.sum(rows.weights[:, None] * errors, axis=0), values

    def over_C(self, kept):
        return jnp.concatenate(kept, axis=2)


each_start = pytest.mark.parametrize(
    "initialization", ["primal", pytest.param("dual", marks=pytest.mark.slow)]
)


@pytest.mark.slow
def test_a_fold_whose_machine_vanishes_is_scored():
    X, y, Z = problem()
    folds, C = folds_from_assignment(np.arange(80) % 3), jnp.asarray([1e-4, 10.0])
    held = SparseReduction(30).held_out(RBF(1.0), Z, C, rows_of(X, y), folds, SquaredErrors())
    np.testing.assert_array_equal(held.statuses, [TRUNCATED, CONVERGED])
    assert np.isfinite(held.sums).all()


@each_start
def test_a_family_is_the_fit_without_the_prototypes_that_vanished(initialization):
    X, y, Z = problem()
    method = SparseReduction(30, initialization=initialization)
    family, sums = method.fit_and_sum(RBF(1.0), Z, 10.0, rows_of(X, y))
    reduction = reductions.fit(RBF(1.0), Z, 10.0, X, y, initialization=initialization)
    left = np.flatnonzero(reduction.expansion.coefficients)
    np.testing.assert_array_equal(family.sizes, [len(left)])
    np.testing.assert_array_equal(family.active_points(len(left)), left)
    np.testing.assert_allclose(family.expansion(X), reduction.expansion(X), atol=1e-6)
    assert int(family.status) == int(reduction.status)
    # Sums are there only if later rows can be added to them.
    assert (sums is None) == (initialization == "dual")
    SparseReduction(30).check_sums("mesh")
    with pytest.raises(ValueError, match=r"mesh: expected .* need the rows themselves"):
        SparseReduction(30, initialization="dual").check_sums("mesh")


@each_start
def test_the_machines_of_the_folds_are_fits_without_them(initialization):
    X, y, Z = problem()
    folds, rows = folds_from_assignment(np.arange(80) % 3), rows_of(X, y)
    method = SparseReduction(30, initialization=initialization)
    sums = method.fit_and_sum(RBF(1.0), Z, 10.0, rows)[1]
    C = jnp.asarray(10.0)
    machines = method.fold_machines(RBF(1.0), Z, C, None, rows, folds, None, sums)
    assert len(machines.prototypes) <= 30
    for v in range(3):
        left = rows.without_fold(folds, jnp.int32(v)).weights
        fit = reductions.fit(RBF(1.0), Z, C, X, y, left, initialization=initialization)
        np.testing.assert_allclose(machines(X)[:, v], fit.expansion(X), atol=1e-5)


@pytest.mark.slow
def test_the_sparsest_that_cross_validation_cannot_tell_from_the_best():
    X, y, _ = problem(n=120)
    options = {"task": "regression", "key": 0, "folds": 4, "search": jsparse.Profile(3)}
    options["C"] = np.geomspace(1, 1e3, 7)
    sizes, C = [], []
    for tolerance in (0.0, 5.0):
        method = jsparse.SparseReduction(40, size_tolerance=tolerance)
        trained = jsparse.train(X, y, method=method, **options)
        sizes.append(trained.model.size)
        C.append(trained.C)
        assert len(trained.point_rows) == trained.model.size < 40
        np.testing.assert_allclose(
            trained.model.expansion.scaling.apply(X)[trained.point_rows],
            trained.model.expansion.prototypes,
        )
    assert C[1] < C[0]
    assert sizes[1] < sizes[0]


def test_targets_of_prototypes_are_those_of_the_rows_equal_to_them():
    dtype = np.float64
    rng = np.random.default_rng(5)
    X = rng.integers(-1, 2, (40, 3)).astype(dtype)  # many rows twice
    X[X == 0] = rng.choice(np.asarray([0.0, -0.0], dtype), np.sum(X == 0))
    X[0] = 7  # one once
    y, w = rng.standard_normal(40).astype(dtype), rng.integers(0, 3, 40).astype(dtype)
    w[0] = 1
    Z = np.concatenate([X[:9], np.full((1, 3), 5, dtype)])
    nearest_targets = prototype_targets(*map(jnp.asarray, (Z, X, y, w)))
    for j, z in enumerate(Z):
        weights_at_point = np.where((z == X).all(axis=1), w, 0)
        np.testing.assert_allclose(nearest_targets.weights[j], weights_at_point.sum(), rtol=1e-6)
        expected = weights_at_point @ y / weights_at_point.sum() if weights_at_point.sum() else 0
        np.testing.assert_allclose(nearest_targets.values[j], expected, rtol=1e-5, atol=1e-6)
