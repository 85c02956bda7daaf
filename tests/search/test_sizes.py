"""Several numbers of prototypes: the curve of errors, and the size chosen from it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import fixed_size as reference

from jsparse import (
    Annealing,
    Dual,
    FixedSize,
    Multiclass,
    Profile,
    Robust,
    fixed_size,
    tune_sizes,
    tuning_problem,
)
from jsparse.cli.main import main
from jsparse.data import demo_set
from jsparse.data.streams import ArrayStream
from jsparse.estimators import FixedSizeLSSVMRegressor
from jsparse.kernels import RBF, Matern32
from jsparse.machines import robust
from jsparse.machines.row_prototypes import feature_map
from jsparse.machines.sized import doubled
from jsparse.prototypes import interleaved
from jsparse.search.sizes import smallest_within
from jsparse.search.strategies import local_line_search
from jsparse.training.train import train
from jsparse.validation.folds import folds_from_assignment


def regression(n=60, d=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(n)


def tuned_sizes(X, y, sizes, dtype, kernel=None, **options):
    """Call `tune_sizes` on three folds, with the first rows as prototypes."""
    Z, target = jnp.asarray(X, dtype), jnp.asarray(y, dtype)
    folds = folds_from_assignment(np.arange(len(X)) % 3)
    kernel = RBF(1.0) if kernel is None else kernel
    problem = tuning_problem(kernel, Z[: max(sizes)], Z, target, folds)
    p = sum(np.size(leaf) for leaf in jax.tree.leaves(kernel))
    settings = {
        "key": jax.random.key(0),
        "metric": "mse",
        "low": np.full(p, -1.0),
        "high": np.full(p, 1.5),
        "C": np.array([1.0, 10.0, 100.0]),
        "search": Profile(6),
    }
    return problem, tune_sizes(problem, sizes, **{**settings, **options})


@pytest.mark.slow
def test_each_size_is_scored_as_refitting_scores_its_own_prototypes(dtype):
    X, y = regression()
    _, choice = tuned_sizes(X, y, [3, 6, 12], dtype)
    assert choice.sizes.tolist() == [3, 6, 12]
    assignment = np.arange(len(y)) % 3
    tol = {"float64": 1e-8, "float32": 2e-3}[dtype]
    curve = zip(choice.sizes, choice.errors, choice.standard_errors, choice.tunings, strict=True)
    for m, error, spread, tuned in curve:
        Phi = reference.nystroem(X, X[:m], float(tuned.kernel.lengthscale))
        f = reference.cross_validate(Phi, y, tuned.C, assignment, 0.0)
        by_fold = [np.mean((f - y)[assignment == fold] ** 2) for fold in range(3)]
        np.testing.assert_allclose(error, np.mean((f - y) ** 2), rtol=tol)
        np.testing.assert_allclose(spread, np.std(by_fold, ddof=1) / np.sqrt(3), rtol=10 * tol)
        assert error == min(e.scores.min() for e in tuned.history)


@pytest.mark.parametrize(
    ("lowest", "start", "steps"), [(0.3, 0.0, 2), (0.3, 1.0, 5), (-1.0, -0.9, 1), (2.0, 1.5, 4)]
)
def test_a_local_search_brackets_the_minimum_within_the_bounds(lowest, start, steps):
    points_scored = []

    def scores(points):
        points_scored.extend(points[:, 0])
        return (points[:, 0] - lowest) ** 2

    local_line_search(-1.0, 2.0, np.array([start]), 10, scores)
    width = 3 / 5 / 2**2  # of ten evaluations six are an even grid, and two rounds halve its width
    best = min(points_scored, key=lambda t: (t - lowest) ** 2)
    assert abs(best - lowest) <= width / 2 or min(best + 1, 2 - best) < width
    assert min(points_scored) >= -1
    assert max(points_scored) <= 2
    assert len(points_scored) == len(set(points_scored)) <= steps + 3


def test_a_local_search_ends_with_its_budget():
    points_scored = []

    def falling(points):
        points_scored.extend(points[:, 0])
        return points[:, 0]

    local_line_search(-1.0, 2.0, np.array([1.9]), 10, falling)
    assert len(points_scored) == 10


@pytest.mark.parametrize("tolerance", [0.0, 0.5, 1.0, 3.0])
def test_the_smallest_size_within_the_tolerance(tolerance):
    rng = np.random.default_rng(0)
    for _ in range(50):
        errors, spread = rng.uniform(1, 2, 5), rng.uniform(0, 0.5, 5)
        best = 0
        for i in range(5):
            if errors[i] < errors[best]:
                best = i
        for i in range(5):
            if errors[i] <= errors[best] + tolerance * spread[best]:
                break
        assert smallest_within(errors, spread, tolerance) == i
        unknown = np.full(5, np.nan)  # of rows held out as one part
        assert smallest_within(errors, unknown, tolerance) == best


def test_every_beginning_of_an_interleaved_order_has_its_share_of_every_class():
    labels = np.random.default_rng(0).choice(["a", "b", "c"], 40, p=[0.1, 0.3, 0.6])
    order = interleaved(jax.random.key(0), 40, labels)
    assert sorted(order) == list(range(40))
    for k in range(3, 41):
        for label in "abc":
            share = k * np.mean(labels == label)
            count = np.sum(labels[order[:k]] == label)
            assert count >= 1
            assert abs(count - share) < 2
    plain = interleaved(jax.random.key(0), 40)
    assert sorted(plain) == list(range(40))
    assert not np.array_equal(plain, order)


OPTIONS = {"key": jax.random.key(0), "folds": 3, "search": Profile(3)}


@pytest.mark.slow
def test_a_smaller_machine_has_the_first_prototypes_of_a_larger_one():
    X, y = regression(80)
    small, large = (
        train(
            X, y, task="regression", method=FixedSize([5, 20], size_tolerance=tolerance), **OPTIONS
        )
        for tolerance in (1e9, 0.0)
    )
    np.testing.assert_array_equal(small.curve.errors, large.curve.errors)
    assert len(small.point_rows) == small.curve.size == small.model.size == 5
    assert len(large.point_rows) == large.curve.size == [5, 20][np.argmin(large.curve.errors)]
    np.testing.assert_array_equal(small.point_rows, large.point_rows[:5])
    # The one trained is the one chosen.
    assert small.cv_error == small.curve.errors[0]
    Z = small.expansion.scaling.apply(jnp.asarray(X))
    fitted = fixed_size.fit(small.kernel, Z[small.point_rows], small.C, Z, jnp.asarray(y))
    np.testing.assert_allclose(small.expansion(X), fitted.expansion(Z), atol=1e-7)


@pytest.mark.slow
def test_several_classes_with_weights():
    data = demo_set("iris")
    weights = np.where(np.arange(150) % 10 == 0, 0.0, 1.0)
    model = train(
        data.X,
        data.y,
        task="classification",
        method=FixedSize([6, 24], selection="uniform"),
        multiclass=Multiclass("one_versus_one", C_per_problem=True),
        weights=weights,
        **OPTIONS,
    )
    assert model.curve.size in (6, 24)
    assert not set(model.point_rows) & set(np.flatnonzero(weights == 0))
    assert model.out_of_fold.shape == (150, 3)
    assert (model.predict(data.X) == data.y).mean() > 0.9


@pytest.mark.slow
def test_a_loss_for_outliers():
    X, y = regression(50)
    method = Robust([4, 12], selection="uniform", loss="huber")
    C = np.array([1.0, 100.0])
    model = train(X, y, task="regression", method=method, C=C, **OPTIONS)
    assert model.curve.sizes.tolist() == [4, 12]
    Z = model.expansion.scaling.apply(jnp.asarray(X))
    phi = feature_map(model.kernel, Z[model.point_rows])
    fitted = robust.fit(phi, model.C, Z, jnp.asarray(y), loss="huber")
    np.testing.assert_allclose(model.expansion(X), fitted.expansion(Z), atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("search", [Profile(16), Annealing(16)])
def test_several_parameters_go_by_the_simplex_from_the_size_before(search):
    X, y = regression()
    kernel = RBF(1.0) + 0.5 * Matern32(1.0)
    _, choice = tuned_sizes(X, y, [4, 12], "float64", kernel=kernel, search=search)
    first, second = choice.tunings
    assert len(first.history) in (15, 16)  # annealing evaluates five kernels at a time
    assert len(second.history) == 7  # the simplex's part of 16
    np.testing.assert_allclose(second.history[0].theta, first.theta, rtol=1e-12)
    if isinstance(search, Annealing):
        np.testing.assert_allclose(second.history[0].C, first.C, rtol=1e-12)


@pytest.mark.slow
def test_ctrl_c_keeps_the_sizes_looked_at():
    X, y = regression()
    seen = []

    def interrupt(done, planned, best):
        seen.append((done, planned, best))
        if done == 7:
            raise KeyboardInterrupt

    _, choice = tuned_sizes(X, y, [4, 12], "float64", progress=interrupt)
    assert choice.sizes.tolist() == [4, 12]
    assert len(choice.tunings[1].history) == 1
    assert choice.tunings[1].stopped == choice.stopped == "interrupted"
    assert [done for done, _, _ in seen] == list(range(1, 8))
    assert seen[-1][1] == 12
    assert seen[-1][2] == choice.errors.min()
    # The search for a larger machine begins at the kernel of the smaller one.
    assert choice.tunings[1].history[0].theta == choice.tunings[0].theta


def test_a_search_out_of_time_leaves_sizes_out():
    X, y = regression()
    _, choice = tuned_sizes(X, y, [4, 12], "float64", max_seconds=0.0)
    assert choice.sizes.tolist() == [4]
    assert choice.stopped == "seconds"


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("method", [FixedSize, Robust])
def test_bad_sizes_are_told_before_any_work(monkeypatch, method):
    """`tests/contracts/test_arguments.py` refuses what is no number of prototypes."""
    monkeypatch.setattr("jsparse.prototypes.choice.renyi", None)  # no work may be done
    for sizes, options, message in (
        ([], {}, "n_prototypes: expected increasing numbers, at least one"),
        ([10, 10], {}, "n_prototypes: expected increasing numbers"),
        (np.array([20, 10]), {}, "n_prototypes: expected increasing numbers"),
        ([10, 61], {}, r"the number of rows \(60\), got 61"),
        ([0, 10], {}, "n_prototypes: expected a whole number between 1 and"),
        ([5, "all"], {}, "n_prototypes: expected a whole number"),
        ("all", {}, "n_prototypes: expected a whole number"),
        ([5, 10], {"kernel": "linear"}, "one number for the linear kernel"),
    ):
        with pytest.raises(ValueError, match=message):
            train(*regression(), task="regression", key=0, method=method(sizes), **options)
    with pytest.raises(ValueError, match="tuned_with: expected None with several"):
        train(*regression(), task="regression", key=0, method=FixedSize("auto", tuned_with=10))


def test_a_problem_without_or_with_too_few_prototypes_is_refused():
    X, y = regression()
    options = {"key": jax.random.key(0), "metric": "mse", "C": np.ones(1)}
    bounds = {"low": np.array([-1.0]), "high": np.array([1.0])}
    problem, _ = tuned_sizes(X, y, [4], "float64")
    with pytest.raises(ValueError, match=r"the number of prototypes \(4\), got 5"):
        tune_sizes(problem, [2, 5], **options, **bounds)
    with pytest.raises(ValueError, match="problem: expected one with prototypes"):
        tune_sizes(
            dataclasses.replace(problem, points=None, method=Dual()), [2], **options, **bounds
        )


def test_numbers_are_doubled_up_to_the_rows():
    assert doubled(10**6, 2, 30, 2000) == (31, 62, 124, 248, 496, 992, 1984)
    assert doubled(400, 3, 30, 2000) == (50, 100, 200, 400)
    assert doubled(45, 2, 30, 2000) == (32,)
    assert doubled(9, 2, 30, 2000) == (9,)
    assert doubled(400, 120, 30, 2000) == (200, 400)


def test_growing_ends_where_the_error_is_flat_or_time_runs_out(monkeypatch):
    X, y = regression()
    sizes = [4, 12, 24, 36]
    _, whole = tuned_sizes(X, y, sizes, "float64")
    _, grown = tuned_sizes(X, y, sizes, "float64", stop_when_flat=True)
    k = len(grown.sizes)
    assert 2 < k < len(sizes)
    np.testing.assert_array_equal(grown.errors, whole.errors[:k])
    bound = whole.errors[:-1] - 0.1 * whole.standard_errors[:-1]
    better = whole.errors[1:] < bound
    assert better[: k - 2].all()
    assert not better[k - 2]
    assert grown.stopped == "finished"
    clock = iter(np.arange(0.0, 1e6, 10.0))  # as if every look at it were ten seconds later
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    _, short = tuned_sizes(X, y, sizes, "float64", stop_when_flat=True, max_seconds=100.0)
    assert short.stopped == "seconds"
    assert len(short.sizes) < k


def test_growing_ends_where_nothing_is_left_to_gain():
    X, _ = regression()
    _, grown = tuned_sizes(X, np.zeros(len(X)), [4, 12, 24], "float64", stop_when_flat=True)
    assert grown.sizes.tolist() == [4, 12]
    np.testing.assert_array_equal(grown.errors, 0)


@pytest.mark.slow
def test_as_many_as_are_worth_it():
    X, y = regression(n=120)
    options = {"task": "regression", "search": Profile(3), "folds": 3, "key": 0}
    trained = train(X, y, method=FixedSize("auto"), **options)
    assert trained.curve.sizes.tolist() == [40, 80]
    assert trained.model.size == trained.curve.size
    linear = train(X, y, method=FixedSize("auto"), kernel="linear", **options)
    assert linear.curve is None


@pytest.mark.slow
def test_sizes_of_streams_estimators_and_the_command_line(cache_folder, capsys):
    X, y = regression(n=120)
    options = {"task": "regression", "search": Profile(3), "folds": 3, "key": 0}
    streamed = train(ArrayStream(X, y, batch_rows=60), method=FixedSize("auto"), **options)
    assert streamed.curve.sizes.tolist() == [56, 112]
    machine = FixedSizeLSSVMRegressor("auto", cv=3, random_state=0).fit(X, y)
    assert machine.sizes_.tolist() == [40, 80]
    file, out = str(cache_folder / "rows.csv"), str(cache_folder / "m")
    np.savetxt(file, np.column_stack([X, y]), delimiter=",", header="a,b,y", comments="")
    fit = ["fit", file, "--target", "y", "--out", out, "--folds", "3", "--quiet"]
    fit += ["--method", "fixed-size", "--evaluations", "2", "--prototypes"]
    for way in (["auto"], ["5,15"], ["5,15", "--stream"]):
        assert main([*fit, *way]) == 0
        printed = capsys.readouterr().out
        assert printed.count(" chosen") == 1
        curve = [row.split(":")[0].strip() for row in printed.splitlines() if "+-" in row]
        assert curve == (["40", "80"] if way == ["auto"] else ["5", "15"])
