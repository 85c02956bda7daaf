"""The search by gradient: derivatives, starts, stopping, resuming, compilations."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.kernels import gaussian as rbf

import jsparse
from jsparse.compilation import count_compilations
from jsparse.data.streams import ArrayStream
from jsparse.kernels import RBF, Laplacian, Matern52, Projected
from jsparse.search.descent import DescentObjective, error_and_gradient, folds_and_prototypes
from jsparse.search.template import split_kernel
from jsparse.training.auto import main_directions
from jsparse.validation.error_gradient import Parts, held_out_error

SEARCH = jsparse.Gradient(max_evaluations=8, prototypes=6, patience=8)
OPTIONS = {"task": "regression", "method": jsparse.FixedSize(8), "folds": 4}


def rows(seed, n=40, d=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(n)


def laid_out(seed, v=3, r=9, d=2, c=2):
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((v, r, d)), rng.uniform(0.5, 2, (v, r))
    y = np.stack([np.sin(2 * X[..., 0]), X[..., 1] ** 2], axis=2)[..., :c]
    w[0, -1] = 0  # padding
    return X, y + 0.1 * rng.standard_normal(y.shape), w


def naive_error(kernel, Z, C, X, y, w):
    """Return the held-out error, by a dense system with intercept without each fold."""
    total = 0.0
    folds = range(len(X))
    for f in folds:
        others = [i for i in folds if i != f]
        Xt, yt, wt = (np.concatenate([a[i] for i in others]) for a in (X, y, w))
        Phi = np.concatenate([kernel(Xt, Z), np.ones((len(Xt), 1))], axis=1)
        penalty = np.zeros((len(Z) + 1, len(Z) + 1))
        penalty[:-1, :-1] = kernel(Z, Z)
        beta = np.linalg.solve(
            Phi.T @ (wt[:, None] * Phi) + penalty / C, Phi.T @ (wt[:, None] * yt)
        )
        values = kernel(X[f], Z) @ beta[:-1] + beta[-1]
        total += np.sum(w[f][:, None] * (y[f] - values) ** 2)
    return total / np.sum(w) / y.shape[2]


P = np.array([[0.9, -0.4], [0.3, 1.2]])


def by_columns(theta):
    """Return the kernel for logs of two lengthscales, of a third one and of its variance."""
    lengthscales, one, variance = np.exp(theta[:2]), np.exp(theta[2]), np.exp(theta[3])
    return lambda A, B: rbf(A, B, lengthscales) + variance * rbf(A, B, one)


def by_matrix(theta):
    """Return the kernel for the log of a lengthscale, and the elements of a matrix."""
    matrix = theta[1:5].reshape(2, 2)
    return lambda A, B: rbf(A @ matrix.T, B @ matrix.T, np.exp(theta[0]))


APART = np.log(0.8) - np.log([0.8, 1.7]).mean()
GRADIENTS = {
    # Lengthscales of columns are pulled to their mean, a single one to nowhere.
    "columns": (RBF(np.ones(2)) + 1.0 * RBF(1.0), by_columns, np.log([0.8, 1.7, 2.0, 0.6]),
                np.zeros(4), 2 * np.log1p(APART**2)),
    # Elements are pulled to where they begin.
    "matrix": (Projected(RBF(1.3), P), by_matrix, np.append(np.log(1.3), P) + 0.1,
               np.append(np.log(1.3), P), 4 * np.log1p(0.1**2)),
}  # fmt: skip


@pytest.mark.parametrize("case", GRADIENTS)
def test_the_error_its_gradient_and_the_prior_are_those_by_loops(case):
    kernel, kernel_of, theta, origin, prior = GRADIENTS[case]
    X, y, w = laid_out(0)
    Z, theta, n = X[0, :5], np.append(theta, np.log(30.0)), np.count_nonzero(w)

    def error(theta):
        return np.log(naive_error(kernel_of(theta), Z, np.exp(theta[-1]), X, y, w))

    options = {"dtype": np.dtype("float64"), "tune_kernel": True}
    if case == "matrix":  # by itself the lengthscale alone is tuned
        assert split_kernel(kernel, **options).theta.size == 1
    template = split_kernel(kernel, **options, tune_matrices=True)
    np.testing.assert_array_equal(
        template.signed, (np.arange(origin.size) > 0) & (case == "matrix")
    )
    parts, free = Parts(*map(jnp.asarray, (X, y, w))), np.ones(origin.size, bool)
    of = DescentObjective(template, jnp.asarray(Z), parts, free, origin)
    value, slope, held_out = error_and_gradient(of, jnp.asarray(theta), np.float64(0))
    np.testing.assert_allclose(value, error(theta), rtol=1e-9)
    np.testing.assert_allclose(np.log(held_out), value, rtol=1e-12)
    steps = 1e-5 * np.eye(theta.size)
    moved = [(error(theta + step) - error(theta - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(slope, moved, rtol=1e-6, atol=1e-9)
    pulled, _, _ = error_and_gradient(of, jnp.asarray(theta), np.float64(3))
    np.testing.assert_allclose(pulled - value, 6 / n * prior, rtol=1e-9)
    if case == "columns":  # a leaf that is held does not pull, and is no part of the mean
        held = dataclasses.replace(of, free=np.array([True, False, True, True]))
        alone, _, _ = error_and_gradient(held, jnp.asarray(theta), np.float64(3))
        np.testing.assert_allclose(alone, value, rtol=1e-12)


def test_prototypes_are_differentiated_too():
    X, y, w = laid_out(2)
    Z, C = X[0, :4] + 0.3, jnp.asarray(20.0)
    parts = Parts(*map(jnp.asarray, (X, y, w)))
    slope = jax.jit(jax.grad(lambda Z: held_out_error(RBF(1.1), Z, C, parts)))(jnp.asarray(Z))

    def error(Z):
        return naive_error(lambda A, B: rbf(A, B, 1.1), Z, C, X, y, w)

    step = 1e-5 * np.eye(Z.size).reshape(-1, *Z.shape)
    moved = [(error(Z + e) - error(Z - e)) / 2e-5 for e in step]
    np.testing.assert_allclose(np.ravel(slope), moved, rtol=1e-5, atol=1e-9)


@pytest.mark.slow
def test_few_prototypes_are_moved_if_that_is_better(as_users_call):
    X, y = rows(7, n=120, d=2)
    options = {**OPTIONS, "method": jsparse.FixedSize(6), "key": 0}
    search = jsparse.Gradient(max_evaluations=30, per_column=False)
    still = jsparse.train(X, y, search=search, **options)
    search = dataclasses.replace(search, move_prototypes=True)
    moved = jsparse.train(X, y, search=search, **options)
    assert moved.cv_error < 0.9 * still.cv_error
    assert moved.point_rows is None
    np.testing.assert_array_equal(moved.kernel.lengthscale, still.kernel.lengthscale)
    Z, Z_moved = (np.asarray(t.expansion.prototypes) for t in (still, moved))
    assert 0.05 < np.abs(Z - Z_moved).max() < 3
    out = np.mean((moved.out_of_fold - y) ** 2)  # by the machine that came out
    assert out == pytest.approx(moved.cv_error, rel=1e-4)
    # Of a search that ran out of time they stay.
    short = jsparse.Resources(max_seconds=0.0)
    left = jsparse.train(X, y, search=search, resources=short, **options)
    assert left.point_rows is not None
    for method in (jsparse.SCDP(), jsparse.FixedSize([3, 6]), jsparse.FixedSize(6, tuned_with=3)):
        with pytest.raises(ValueError, match="move_prototypes: expected False but for FixedSize"):
            jsparse.train(X, y, search=search, **{**options, "method": method})


def one_direction():
    """Return rows of an effect along one direction that is no column, and options for them.

    A machine with a lengthscale for each column has an error of 0.18 on the last rows; a
    tenth of that is asked for.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((160, 4))
    y = np.sin(1.5 * X @ np.array([1.0, -1.0, 1.0, 0.0])) + 0.05 * rng.standard_normal(160)
    return X, y, {**OPTIONS, "method": jsparse.FixedSize(40), "key": 0}


@pytest.fixture(scope="module")
def direction():
    X, y, options = one_direction()
    with jax.enable_x64(True):
        search = jsparse.Gradient(max_evaluations=30, rank=1)
        return jsparse.train(X[:120], y[:120], search=search, **options)


def error_on_last(trained):
    X, y, _ = one_direction()
    return np.mean((trained.predict(X[120:]) - y[120:]) ** 2)


@pytest.mark.slow
def test_a_direction_that_is_no_column_is_found(direction, tmp_path):
    X, _, _ = one_direction()
    assert error_on_last(direction) < 0.018
    (row,) = np.asarray(direction.kernel.matrix)
    row = row / np.asarray(direction.model.expansion.scaling.scale)
    np.testing.assert_allclose(row / np.linalg.norm(row), np.array([1, -1, 1, 0]) * np.sign(row[0])
                               / np.sqrt(3), atol=0.05)  # fmt: skip
    assert list(direction.relevance()) == ["x0", "x1", "x2", "x3"]
    assert direction.relevance()["x3"] < 0.1
    direction.model.save(tmp_path / "model")
    again = jsparse.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), direction.predict(X))


@pytest.mark.slow
def test_a_direction_serves_other_searches_more_prototypes_and_starts(direction):
    X, y, options = one_direction()
    kernel = direction.kernel
    profile = jsparse.train(X[:120], y[:120], kernel=kernel, search=jsparse.Profile(4), **options)
    np.testing.assert_array_equal(profile.kernel.matrix, kernel.matrix)
    options["method"] = jsparse.FixedSize(80, tuned_with=40)
    search = jsparse.Gradient(max_evaluations=30, rank=1)
    larger = jsparse.train(X[:120], y[:120], search=search, **options)
    assert error_on_last(larger) < 0.018
    # A second search can start where the first one ended, whatever the signs of its directions.
    start = dataclasses.replace(search, start=larger.tuning, max_evaluations=4)
    again = jsparse.train(X[:120], y[:120], search=start, **{**options, "key": 5})
    assert error_on_last(again) < 0.018


def test_full_rank_and_targets_that_do_not_vary_begin_at_the_columns():
    X = jnp.asarray(np.random.default_rng(0).standard_normal((40, 3)))
    y, w, key = jnp.ones((40, 1)), jnp.ones(40), jax.random.key(0)
    np.testing.assert_array_equal(main_directions(key, X, X[:, :1], w, 3), np.eye(3))
    np.testing.assert_array_equal(main_directions(key, X, y, w, 2), np.eye(2, 3))


def test_a_rank_is_of_a_kernel_by_its_name(as_users_call):
    X, y = rows(0)
    for kernel in ("linear", "polynomial", RBF(1.0)):
        with pytest.raises(ValueError, match="rank: expected None unless"):
            jsparse.train(X, y, search=jsparse.Gradient(rank=2), kernel=kernel, key=0, **OPTIONS)
    with pytest.raises(ValueError, match=r"rank: .* the number of columns \(3\), got 4"):
        jsparse.train(X, y, search=jsparse.Gradient(rank=4), key=0, **OPTIONS)


@pytest.mark.parametrize("seed", [8, 13, 19])
@pytest.mark.parametrize("budget", [8, 12, None])
def test_few_prototypes_and_few_steps_do_not_end_beside_the_profile(seed, budget):
    # With six prototypes and one lengthscale the error is 0.3 to 0.4, and descents from there alone
    # end at 0.42, 0.38 and 0.28 with eight steps. The variance of the noise is 0.01.
    X, y = rows(seed, n=120, d=2)
    search = jsparse.Gradient(max_evaluations=budget)
    options = {**OPTIONS, "method": jsparse.FixedSize(6), "key": 0}
    trained = jsparse.train(X, y, search=search, **options)
    assert trained.cv_error < 0.03
    profile = [e for e in trained.tuning.history if not e.slope.size][:10]
    assert trained.cv_error < 0.15 * min(e.least for e in profile)


@pytest.mark.slow
def test_a_preliminary_descent_is_planned_and_is_not_for_a_start_or_many_prototypes():
    X, y = rows(8, n=120, d=2)
    reports = []
    options = {**OPTIONS, "method": jsparse.FixedSize(6), "key": 0}
    search = jsparse.Gradient(max_evaluations=4)
    first = jsparse.train(X, y, search=search, progress=lambda *r: reports.append(r), **options)
    assert len(steps(first.tuning)) == 12  # preliminary, from the profile, and from the metric
    assert len(reports) <= reports[0][1] == 10 + 4 + 1 + 2 * (4 + 1)
    local = dataclasses.replace(search, start=first.tuning)
    assert len(steps(jsparse.train(X, y, search=local, **options).tuning)) == 4
    options["method"] = jsparse.FixedSize(51)
    assert len(steps(jsparse.train(X, y, search=search, **options).tuning)) == 4


@pytest.mark.slow
def test_nothing_compiles_again_for_other_rows_starts_and_steps():
    X, y = rows(0)
    jsparse.train(X, y, search=SEARCH, key=0, **OPTIONS)
    more = dataclasses.replace(SEARCH, starts=2, max_evaluations=4, prior_strength=0.3)
    X, y = rows(1, n=43)
    with count_compilations() as counts:
        trained = jsparse.train(X, y, search=more, key=1, **OPTIONS)
    assert counts.programs == 0
    assert trained.kernel.lengthscale.shape == (3,)


def steps(tuning):
    return [e for e in tuning.history if e.slope.size]


def test_a_stopped_search_goes_on_as_if_it_had_not_been(tmp_path):
    # The preliminary descent, which is stopped, and the next one start at the same kernel and C.
    X, y = rows(8, n=120, d=2)
    options = OPTIONS | {"method": jsparse.FixedSize(6), "key": 0}
    search = jsparse.Gradient(max_evaluations=8)
    whole = jsparse.train(X, y, search=search, **options).tuning
    calls = itertools.count(1)

    def stop(done, planned, best):
        if next(calls) == 13:  # the third step
            raise KeyboardInterrupt

    stopped = jsparse.train(X, y, search=search, progress=stop, **options).tuning
    assert stopped.stopped == "interrupted"
    assert len(steps(stopped)) == 3
    jsparse.save_history(tmp_path / "search", stopped.history)
    history = jsparse.load_history(tmp_path / "search")
    assert [e.slope.size for e in history] == [e.slope.size for e in stopped.history]
    resumed = dataclasses.replace(search, history=history)
    again = jsparse.train(X, y, search=resumed, **options).tuning
    np.testing.assert_array_equal(again.theta, whole.theta)
    assert again.C == whole.C
    assert len(again.history) == len(whole.history)
    for a, b in zip(again.history, whole.history, strict=True):
        np.testing.assert_array_equal(a.slope, b.slope)
    # Time that is up leaves the profile and no step.
    resources = jsparse.Resources(max_seconds=0.0)
    late = jsparse.train(X, y, search=search, resources=resources, **options).tuning
    assert late.stopped == "seconds"
    assert len(late.history) >= 1
    assert not steps(late)


def test_settings_that_make_no_sense_are_refused(as_users_call):
    X, y = rows(0)
    for settings in (
        {"starts": 0},
        {"prior_strength": -1.0},
        {"patience": 0},
        {"rows": 3},
        {"prototypes": 0},
        {"learning_rate": 0.0},
        {"elimination": 1},
        {"rank": 0},
        {"move_prototypes": "yes"},
    ):
        with pytest.raises(ValueError, match=next(iter(settings))):
            jsparse.train(X, y, search=jsparse.Gradient(**settings), key=0, **OPTIONS)
    w = np.r_[np.ones(11), np.zeros(3)]
    with pytest.raises(ValueError, match="at least 12 rows with weight, got 11"):
        folds_and_prototypes(jax.random.key(0), X[:14], X, w, None, rows=100, prototypes=5)


def test_the_error_of_a_descent_is_of_every_row_once_or_of_a_sample():
    X, w = jnp.arange(60.0)[:, None], jnp.ones(60).at[7].set(0)
    for rows, count in ((100, 59), (30, 30)):
        parts, Z = folds_and_prototypes(
            jax.random.key(0), X, 2 * X, w, None, rows=rows, prototypes=4
        )
        values = np.asarray(parts.X)[np.asarray(parts.w) > 0].ravel()
        assert len(values) == len(set(values.tolist())) == count
        assert 7 not in values
        assert np.ptp(np.count_nonzero(parts.w, axis=1)) <= 1
        np.testing.assert_array_equal(parts.y, 2 * parts.X)
        assert Z.shape == (4, 1)


@pytest.mark.slow
def test_columns_are_left_out_while_the_score_falls_where_rows_are_few():
    X, y = rows(6, n=60, d=9)
    options = {**OPTIONS, "method": jsparse.FixedSize(30)}
    search = jsparse.Gradient(max_evaluations=16, prototypes=30)
    plain, fewer = (
        jsparse.train(X, y, search=dataclasses.replace(search, elimination=e), key=0, **options)
        for e in (False, True)
    )
    assert fewer.cv_error < plain.cv_error
    relevance = np.asarray(fewer.kernel.lengthscale[0] / fewer.kernel.lengthscale)
    assert np.all(relevance[1:] < 1 / 8)
    assert np.argmax(relevance) == 0
    # What was done before the first column is left out is the same.
    same = len(plain.tuning.history)
    for a, b in zip(plain.tuning.history, fewer.tuning.history[:same], strict=True):
        np.testing.assert_array_equal(a.theta, b.theta)
    # Each time a quarter of the columns goes, from one lengthscale for the others.
    first = steps(fewer.tuning)[len(steps(plain.tuning))].theta
    assert len(np.unique(np.sort(first)[:7])) == 1
    assert np.all(np.sort(first)[7:] > np.log(100))


def test_no_column_is_left_out_where_rows_are_many():
    template = split_kernel(RBF(np.ones(3)), np.dtype("float64"))
    assert jsparse.Gradient().columns_left(template, 60)
    assert not jsparse.Gradient().columns_left(template, 300)


@pytest.mark.slow
def test_a_search_stopped_while_columns_are_left_out_goes_on():
    X, y = rows(6, n=60, d=9)
    options = {**OPTIONS, "method": jsparse.FixedSize(30), "key": 0}
    search = jsparse.Gradient(max_evaluations=6, prototypes=30)
    whole = jsparse.train(X, y, search=search, **options).tuning
    plain = dataclasses.replace(search, elimination=False)
    before = len(jsparse.train(X, y, search=plain, **options).tuning.history)
    assert len(whole.history) > before + 14

    def stop(done, planned, best):
        if done == before + 13:  # after the profile of fewer columns
            raise KeyboardInterrupt

    stopped = jsparse.train(X, y, search=search, progress=stop, **options).tuning
    assert stopped.stopped == "interrupted"
    resumed = dataclasses.replace(search, history=stopped.history)
    again = jsparse.train(X, y, search=resumed, **options).tuning
    np.testing.assert_array_equal(again.theta, whole.theta)
    assert (again.C, again.score, again.stopped) == (whole.C, whole.score, "finished")
    assert len(again.history) == len(whole.history)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{"rank": 1}, {"move_prototypes": True}])
def test_directions_and_moved_prototypes_of_streams_histories_and_starts(more):
    X, y = rows(7, n=120, d=2)
    options = {**OPTIONS, "method": jsparse.FixedSize(6), "key": 0}
    search = jsparse.Gradient(max_evaluations=12, **more)
    first = jsparse.train(X, y, search=search, **options)
    streamed = jsparse.train(ArrayStream(X, y, batch_rows=50), search=search, **options)
    assert streamed.cv_error < 1.3 * first.cv_error
    np.testing.assert_allclose(
        np.mean((streamed.predict(X) - y) ** 2), np.mean((first.predict(X) - y) ** 2), rtol=0.3
    )
    with count_compilations() as counts:
        resumed = dataclasses.replace(search, history=first.tuning.history)
        again = jsparse.train(X, y, search=resumed, **options)
    assert counts.programs == 0
    np.testing.assert_array_equal(again.predict(X), first.predict(X))
    begun = dataclasses.replace(search, start=first.tuning)
    local = jsparse.train(X, y, search=begun, **options)
    assert local.cv_error <= first.cv_error * (1 + 1e-4)
    np.testing.assert_array_equal(local.tuning.history[0].theta, first.tuning.theta)
    assert len(local.tuning.history) < len(first.tuning.history)  # no profile before it


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [Laplacian(1.0) * Matern52(np.ones(3)), 0.5 * RBF(1.0)])
def test_every_kernel_is_searched_and_never_worse_than_its_profile(kernel):
    X, y = rows(3, n=120)
    options = {**OPTIONS, "method": jsparse.FixedSize(40), "kernel": kernel}
    trained = jsparse.train(X, y, search=jsparse.Gradient(max_evaluations=20), key=0, **options)
    profile = [e for e in trained.tuning.history if not e.slope.size][:10]
    assert trained.cv_error <= min(e.scores.min() for e in profile)
    assert trained.cv_error < 0.12


@pytest.mark.slow
@pytest.mark.parametrize("method", [jsparse.Dual(), jsparse.SCDP(max_prototypes=8)])
def test_other_methods_and_several_classes(method):
    X, _ = rows(4, n=90)
    y = np.argmax(X[:, :3], axis=1)
    search = jsparse.Gradient(max_evaluations=8, prototypes=20)
    trained = jsparse.train(X, y, task="classification", method=method, search=search, key=0)
    assert len(steps(trained.tuning)) > 1
    assert trained.cv_error < 0.4


@pytest.mark.slow
def test_a_stream_gives_its_sample_to_the_gradient():
    X, y = rows(5, n=64)
    passes = itertools.count()

    class Counted(ArrayStream):
        def __iter__(self):
            next(passes)
            return super().__iter__()

    stream = Counted(X, y, batch_rows=32)
    trained = jsparse.train(stream, search=SEARCH, key=0, **OPTIONS)
    scored = [e for e in trained.tuning.history if not e.slope.size]
    assert len(steps(trained.tuning)) > 1
    assert next(passes) <= 1 + len(scored) + 1  # none for a step
