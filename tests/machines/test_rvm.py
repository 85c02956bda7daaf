"""Relevance vector machines: evidence, stopping, units and precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import relevance

from jsparse._status import COMPLETED, CONVERGED, EXHAUSTED, NOT_FINITE
from jsparse.kernels import RBF
from jsparse.machines import rvm
from jsparse.machines.rows import rows_of
from jsparse.machines.rvm import RVM
from jsparse.solvers import sparse_bayes

N = 40


def rows(likelihood):
    """Return inputs, columns of the kernel and of ones, targets, and weights (some are 0)."""
    rng = np.random.default_rng(0)
    x = np.linspace(-5, 5, N)
    w = rng.uniform(0.5, 1.5, N) * (np.arange(N) % 8 > 0)
    y = np.sinc(x) + 0.3 + 0.1 * rng.standard_normal(N)
    if likelihood == "logistic":
        y = np.where(np.sin(x) + 0.6 * rng.standard_normal(N) > 0, 1.0, -1.0)
    Phi = np.exp(-np.square(x[:, None] - x[None]) / 2)
    Phi = np.concatenate([Phi[:, w > 0], np.ones((N, 1))], axis=1)
    return x, Phi, y, w


def tolerances(nats):
    """Return the tolerances of `sparse_bayes`, 100 times as large for a full model."""
    nats = jnp.asarray(nats)
    return sparse_bayes.Tolerance(nats, 100 * nats)


@pytest.mark.parametrize("likelihood", ["normal", "logistic"])
def test_it_ends_where_no_change_raises_the_evidence(likelihood):
    _, Phi, y, w = rows(likelihood)
    arrays = tuple(map(jnp.asarray, (Phi, y, w)))
    tolerance = tolerances(1e-4)
    last = sparse_bayes.solve(
        *arrays, tolerance, max_functions=20, max_iterations=300, likelihood=likelihood
    )
    assert int(last.status) == CONVERGED
    model, steps = last.model, int(last.steps)
    history = np.asarray(last.history)
    assert np.isnan(history[steps + 1 :]).all()
    assert (np.diff(history[: steps + 1]) > 0).all()
    alpha = np.full(Phi.shape[1], np.inf)
    filled = np.asarray(model.filled)
    alpha[np.asarray(model.columns)[filled]] = np.asarray(model.alpha)[filled]
    assert 2 < filled.sum() < 12
    beta = float(model.beta) if likelihood == "normal" else None
    evidence, s, q = relevance.posterior(Phi, y, w, alpha, beta)
    np.testing.assert_allclose(history[steps], evidence, rtol=1e-7)
    gains, best = relevance.gains(alpha, s, q)
    promising = np.flatnonzero(gains > 1.1e-4)
    if beta is not None:  # nor another level of noise
        assert len(promising) == 0
        for factor in (0.99, 1.01):
            assert relevance.posterior(Phi, y, w, alpha, factor * beta)[0] < evidence + 1e-3
    for i in promising:  # with the mode held fixed; in truth it does not
        other = np.where(np.arange(len(alpha)) == i, best, alpha)
        assert relevance.posterior(Phi, y, w, other, beta)[0] < evidence + 1e-6
    bad = sparse_bayes.solve(
        arrays[0], arrays[1] * jnp.nan, arrays[2], tolerance, max_functions=20,
        max_iterations=300, likelihood=likelihood,
    )  # fmt: skip
    assert int(bad.status) == NOT_FINITE


@functools.partial(jax.jit, static_argnames="likelihood")
def first_state(arrays, likelihood):
    problem = sparse_bayes.Problem(*arrays, likelihood)
    return sparse_bayes.init(problem, 20, 10)._replace(most_changes=jnp.int32(2))


@functools.partial(jax.jit, static_argnames="likelihood")
def one_step(arrays, state, tolerance, likelihood):
    return sparse_bayes.step(sparse_bayes.Problem(*arrays, likelihood), state, tolerance, 10)


@pytest.mark.parametrize("likelihood", ["normal", "logistic"])
@pytest.mark.parametrize(("rises", "is_barred"), [(50, True), (200, False)])
def test_a_failed_change_is_tried_again_only_after_a_large_rise(likelihood, rises, is_barred):
    _, Phi, y, w = rows(likelihood)
    arrays = jax.device_put((Phi.T * (w > 0), y, w))

    def step(state, tolerance):
        return one_step(arrays, state, tolerances(tolerance), likelihood)

    start = first_state(arrays, likelihood)
    best = int(np.asarray(step(start, 1e-9).model.columns)[1])
    tried = np.arange(len(start.tried)) == best
    failed = start._replace(tried=jnp.asarray(tried))
    rise = float(step(failed, 1e-9).posterior.evidence) - float(start.posterior.evidence)
    after = step(failed, rise / rises)  # the rise in tolerances
    assert int(after.steps) == 1
    assert best not in np.asarray(after.model.columns)[np.asarray(after.model.filled)]
    assert bool(np.asarray(after.tried)[best]) == is_barred
    assert (
        np.asarray(after.tried).sum() == is_barred
    )  # the changes of a step that is kept did not fail


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["normal", "logistic"])
def test_it_says_when_steps_or_functions_run_out(likelihood):
    _, Phi, y, w = rows(likelihood)
    arrays = (*map(jnp.asarray, (Phi, y, w)), tolerances(1e-4))
    short = sparse_bayes.solve(*arrays, max_functions=20, max_iterations=1, likelihood=likelihood)
    assert int(short.status) == EXHAUSTED
    if likelihood == "normal":
        few = sparse_bayes.solve(
            *arrays, max_functions=2, max_iterations=300, likelihood=likelihood
        )
        assert int(few.status) == COMPLETED
        assert few.model.filled.sum() <= 3


@pytest.mark.slow
def test_float32_ends_with_about_the_same_evidence():
    for likelihood in ("normal", "logistic"):
        x, _, y, w = rows(likelihood)
        ends = []
        for dtype in ("float64", "float32"):
            X, y_, w_ = (jnp.asarray(a.astype(dtype)) for a in (x[:, None], y, w))
            kernel = RBF(jnp.ones((), dtype))
            fit = RVM(20, likelihood=likelihood).fit(kernel, X, 1.0, rows_of(X, y_, w_))
            assert fit.coefficients.dtype == dtype
            assert int(fit.status) == CONVERGED
            ends.append(float(fit.info["history"][int(fit.info["steps"])]))
        np.testing.assert_allclose(*ends, atol=0.05)


@pytest.mark.slow
def test_columns_of_a_copy_promise_nothing():
    """A prototype that comes twice is selected once."""
    _, Phi, y, w = rows("normal")
    twice = jnp.asarray(np.concatenate([Phi[:, :-1], Phi], axis=1))
    last = sparse_bayes.solve(
        twice, jnp.asarray(y), jnp.asarray(w), tolerances(1e-6), max_functions=20,
        max_iterations=300, likelihood="normal",
    )  # fmt: skip
    which = np.asarray(last.model.columns)[np.asarray(last.model.filled)]
    assert len(np.unique(which % (Phi.shape[1] - 1))) == len(which)
    assert jax.numpy.isfinite(last.posterior.evidence)


@pytest.mark.slow
def test_noise_and_evidence_are_in_the_units_of_the_targets():
    """A density of `n` targets times `a` is lower by `n log a` nats."""
    x, _, y, w = rows("normal")
    X, w = jnp.asarray(x[:, None]), jnp.asarray(w)
    one = rvm.fit(RBF(1.0), X, X, jnp.asarray(y), w, max_prototypes=8)
    for a in (1e-100, 1e-30, 1e30, 1e100):
        scaled = rvm.fit(RBF(1.0), X, X, jnp.asarray(a * y), w, max_prototypes=8)
        assert int(scaled.status) == int(one.status)
        np.testing.assert_allclose(scaled.noise / a**2, one.noise, rtol=1e-9)
        shift = float(jnp.sum(w)) * np.log(a)
        np.testing.assert_allclose(scaled.history + shift, one.history, rtol=1e-9)
        np.testing.assert_allclose(scaled.expansion(X) / a, one.expansion(X), atol=1e-9)


def test_the_units_of_the_functions_do_not_change_the_result_in_float32():
    """The updates of the covariance must not add numbers of very different size."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    Phi = np.array(RBF(1.5).cross_gram(jnp.asarray(X), jnp.asarray(np.repeat(X[:20], 2, axis=0))))
    Phi = np.concatenate([Phi, np.zeros((60, 1))], axis=1)
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(60)

    def solved(unit):
        functions = np.concatenate([unit * Phi, np.ones((60, 1))], axis=1)
        arrays = (jnp.asarray(a, jnp.float32) for a in (functions, y, np.ones(60)))
        limits = {"max_functions": 30, "max_iterations": 50, "likelihood": "normal"}
        return sparse_bayes.solve(*arrays, tolerances(jnp.float32(1e-3)), **limits)

    one = solved(1.0)
    assert float(one.posterior.evidence) > float(one.history[0]) + 10
    for unit in (1e-8, 1e-4, 1e4, 1e6):
        other = solved(unit)
        np.testing.assert_allclose(other.posterior.evidence, one.posterior.evidence, atol=0.01)


@pytest.mark.parametrize(("n", "often"), [(12, False), (60, True)])
def test_the_changes_of_a_step_are_those_of_dense_algebra(n, often, monkeypatch):
    """There are fewer rows than functions and changes, and copies that the basis spans already."""
    if often:
        monkeypatch.setitem(sparse_bayes._CHANGES_IN_BLOCK, "normal", 1)
    else:  # never
        monkeypatch.setattr(sparse_bayes, "_factorised", lambda changed: changed)
    Phi, y = duplicated_functions(n)

    @jax.jit
    def changed(*arrays):
        problem = sparse_bayes.Problem(*arrays, "normal")
        state = sparse_bayes.init(problem, n + 1, 10)
        return sparse_bayes._changes(problem, state, tolerances(1e-6))

    last, first = jax.device_get(changed(*map(jnp.asarray, (Phi.T, y, np.ones(n)))))
    filled = np.asarray(last.model.filled)
    assert int(first.number) < len(Phi.T)  # adds a function
    assert int(last.changes) > max(8, filled.sum())  # some changes added no function
    assert_matches_dense_algebra(last, Phi, y)


@pytest.mark.parametrize("n", [12, 60])
def test_a_step_leaves_the_expansion_about_its_mode(n):
    """The basis is rotated, not computed anew: also with more places than rows."""
    Phi, y = duplicated_functions(n)
    state = first_state((jnp.asarray(Phi.T), jnp.asarray(y), jnp.ones(n)), "normal")
    state = state._replace(most_changes=jnp.int32(16))
    arrays, betas, holes = (jnp.asarray(Phi.T), jnp.asarray(y), jnp.ones(n)), set(), 0
    for steps in (1, 2, 3):
        state = one_step(arrays, state, tolerances(1e-6), "normal")
        assert int(state.steps) == steps
        expansion = jax.device_get(state.expansion)
        assert_matches_dense_algebra(expansion, Phi, y)
        model, root = expansion.model, np.sqrt(float(state.model.beta))
        np.testing.assert_array_equal(model.columns, state.model.columns)
        used = np.where(model.filled, root * Phi[:, model.columns], 0)
        np.testing.assert_allclose(expansion.basis.T @ expansion.in_model, used, atol=1e-9 * root)
        functions = expansion.basis @ (root * Phi)
        np.testing.assert_allclose(expansion.coordinates, functions, atol=1e-9 * root)
        squares = np.square(expansion.basis).sum(axis=1)
        products = expansion.basis @ expansion.basis.T
        np.testing.assert_allclose(products, np.diag(squares > 0.5), atol=1e-9)
        betas.add(float(model.beta))
        holes += int(np.any(~model.filled[:-1] & model.filled[1:]))
    assert len(betas) == 3  # the noise has changed
    assert n == 12 or holes > 0  # empty places lie among the filled ones


def test_the_basis_stays_orthonormal_in_float32():
    """Rounding adds up from step to step, as each step rotates the basis of the step before."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    Phi = np.array(RBF(1.5).cross_gram(jnp.asarray(X), jnp.asarray(X[:60])))
    Phi = jnp.asarray(np.concatenate([Phi, np.ones((200, 1))], axis=1), jnp.float32)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    arrays = Phi.T, jnp.asarray(y, jnp.float32), jnp.ones(200, jnp.float32)
    state = first_state(arrays, "normal")
    limits = sparse_bayes.Tolerance(*2 * [jnp.float32(1e-6)])
    for _ in range(60):  # of one change each
        state = state._replace(most_changes=jnp.int32(1), status=jnp.int32(0))
        state = one_step(arrays, state, limits, "normal")
    basis = np.asarray(state.expansion.basis, float)
    used = np.square(basis).sum(axis=1) > 0.5
    assert int(state.steps) == 60
    np.testing.assert_allclose(basis @ basis.T, np.diag(used), atol=3e-6)
    functions = np.asarray(Phi * state.expansion.root[:, None], float)
    coordinates = np.asarray(state.expansion.coordinates)
    np.testing.assert_allclose(coordinates, basis @ functions, atol=3e-6 * functions.max() * 15)


def duplicated_functions(n):
    rng = np.random.default_rng(0)
    x = rng.uniform(-5, 5, n)
    Phi = np.exp(-np.square(x[:, None] - np.repeat(x[: n // 2], 2)[None]))
    y = np.sinc(x) + 0.1 * rng.standard_normal(n)
    return np.concatenate([Phi, np.ones((n, 1))], axis=1), y


def assert_matches_dense_algebra(last, Phi, y):
    """Compare the posterior of a `Quadratic`, and its derivatives, with the normal equations."""
    model, filled = last.model, np.asarray(last.model.filled)
    used, beta = Phi[:, np.asarray(model.columns)[filled]], float(model.beta)
    covariance = np.linalg.inv(np.diag(np.asarray(model.alpha)[filled]) + beta * used.T @ used)
    mean = beta * covariance @ used.T @ y
    cross = beta * used.T @ Phi
    unexplained = beta * np.square(Phi).sum(axis=0) - np.sum(cross * (covariance @ cross), axis=0)
    limits = {"rtol": 1e-6, "atol": 1e-6 * beta}
    np.testing.assert_allclose(np.asarray(last.mean)[filled], mean, rtol=1e-6, atol=1e-8)
    whole = np.eye(len(filled))
    whole[np.ix_(filled, filled)] = covariance
    np.testing.assert_allclose(last.factor.T @ last.factor, whole, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(last.unexplained, unexplained, **limits)
    np.testing.assert_allclose(last.slopes, beta * Phi.T @ (y - used @ mean), **limits)


def test_cheap_steps_save_factorisations_and_end_at_the_same_mode(monkeypatch):
    """Also from so far away that Newton's method halves its steps."""
    _, Phi, y, w = rows("logistic")
    Phi = jnp.asarray(Phi.T * (w > 0))
    problem = sparse_bayes.Problem(Phi, jnp.asarray(y), jnp.asarray(w), "logistic")
    k, columns = 6, np.array([3, 12, 20, 30, len(Phi) - 1, 0])
    alpha = jnp.asarray([0.5, 1.0, 2.0, 1.0, 0.1, 1.0])
    model = sparse_bayes.Model(jnp.asarray(columns), jnp.arange(k) < 5, alpha, jnp.ones(()))
    factorise, calls = sparse_bayes._covariance_factor, []

    def counted(*arguments):
        jax.debug.callback(lambda: calls.append(1))
        return factorise(*arguments)

    monkeypatch.setattr(sparse_bayes, "_covariance_factor", counted)

    @jax.jit
    def posterior(begin, factor=None):
        return sparse_bayes.posterior(problem, model, begin, jnp.zeros((1, k)), factor)

    def slope_at(end):
        p = 1 / (1 + np.exp(-np.asarray(end.values)))
        slope = np.asarray(Phi)[columns] @ (w * ((y > 0) - p)) - np.asarray(alpha * end.mean)
        return np.abs(slope[:5]).max()

    mode = posterior(jnp.zeros(k))
    covariance = np.asarray(mode.factor.T @ mode.factor)
    change = jnp.asarray([0.3, -0.2, 0.1, 0.2, -0.3, 0.0])
    for away in (1.0, 30.0):
        counts = []
        for factor in (None, 0.9 * mode.factor, 3 * mode.factor):  # the last steps are too long
            jax.effects_barrier()
            calls.clear()
            end = posterior(mode.mean + away * change, factor)
            jax.effects_barrier()
            counts.append(len(calls))
            for name in ("mean", "values", "evidence"):
                expected, value = getattr(mode, name), getattr(end, name)
                np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(end.factor.T @ end.factor, covariance, rtol=1e-5, atol=1e-6)
            if factor is not None:
                assert slope_at(end) < 1e-9
        assert counts[1] == 1 < counts[0]
    # Within the rounding of the density Newton's method would not go on.
    near = mode.mean + 1e-6 * change
    assert slope_at(posterior(near)) > 1e-8
    assert slope_at(posterior(near, 0.01 * mode.factor)) < 1e-9


@pytest.mark.parametrize("likelihood", ["normal", "logistic"])
def test_validation_of_classes_stops_earlier(likelihood):
    x, _, y, w = rows(likelihood)
    X, y, w = map(jnp.asarray, (x[:, None], y, w))
    method, data = RVM(20, likelihood=likelihood), rows_of(X, y, w)
    (rough,) = method.fits_over_C(RBF(1.0), X, np.ones(1), data)
    full = method.fit(RBF(1.0), X, 1.0, data)
    ends = [float(np.nanmax(fit.info["history"])) for fit in (rough, full)]
    if likelihood == "normal":
        assert ends[0] == ends[1]
    else:  # it stops after up to ten changes that each promise or gain less than 0.1 nats
        assert ends[1] - 2 < ends[0] < ends[1]


def test_coordinates_along_the_last_basis_vectors_are_found():
    """A block of changes may begin just before the last basis vector, as the one before ended."""
    k, p, r = 2, 3, sparse_bayes._CHANGES_IN_BLOCK["normal"]
    problem = sparse_bayes.Problem(jnp.ones((p, 5)), jnp.arange(5.0), jnp.ones(5), "normal")

    def changes():
        return sparse_bayes._changes(problem, sparse_bayes.init(problem, k, 3), tolerances(1e-3))

    shapes, _ = jax.eval_shape(changes)
    start = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    first = k + sparse_bayes._MOST_CHANGES - 1
    recent = jnp.zeros((r, p)).at[0].set(jnp.arange(1.0, p + 1))
    last = start._replace(recent=recent, first_recent=jnp.int32(first))
    vector = jnp.zeros(len(start.basis)).at[first].set(2.0)
    for each in (last, last.with_recent_merged()):
        np.testing.assert_array_equal(each.products(vector), [2.0, 4.0, 6.0])
        assert each.coordinates_of(jnp.int32(1))[first] == 2.0
