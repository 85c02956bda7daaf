"""Prototype selection against brute force, and properties of the selection by entropy."""

import math

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import sklearn.datasets
from reference.kernels import gaussian
from reference.prototypes import algorithm_1, entropy, largest_remainders, swap

from jsparse._status import CONVERGED, NOT_FINITE
from jsparse.kernels import RBF
from jsparse.prototypes import (
    k_center,
    k_means,
    pivoted_cholesky,
    plug_in_bandwidth,
    renyi,
    stratified,
    uniform,
)
from jsparse.prototypes.bandwidth import GIVEN
from jsparse.prototypes.renyi import init, step
from jsparse.prototypes.uniform import allocate


def cloud(n=60, d=2, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def test_uniform_draws_every_row_equally_often_and_none_twice():
    draws = np.asarray(
        jax.vmap(lambda k: uniform(k, 20, 5))(jax.random.split(jax.random.key(0), 4000))
    )
    assert all(len(set(row)) == 5 for row in draws)
    # Five standard errors of a binomial count, p = 1/4; and of the first place, p = 1/20.
    counts = np.bincount(draws.ravel(), minlength=20)
    assert np.all(np.abs(counts - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75))
    first = np.bincount(draws[:, 0], minlength=20)
    assert np.all(np.abs(first - 200) < 5 * math.sqrt(4000 * 0.05 * 0.95))


def test_all_rows_and_one_row():
    X, h, key = jnp.asarray(cloud(9, 2)), jnp.asarray([0.5, 0.5]), jax.random.key(0)
    np.testing.assert_array_equal(np.sort(uniform(key, 50, 50)), np.arange(50))
    assert uniform(key, 1, 1)[0] == 0
    every = renyi(key, X, 9, bandwidth=h)
    np.testing.assert_array_equal(np.sort(every.indices), np.arange(9))
    assert int(every.accepted) == 0
    for selection in (every, renyi(key, X[:1], 1, bandwidth=0 * h)):
        assert int(selection.status) == CONVERGED


def test_stratified_gives_each_class_its_share():
    labels = np.array(["b"] * 30 + ["a"] * 69 + ["rare"])[np.random.default_rng(0).permutation(100)]
    keys = jax.random.split(jax.random.key(0), 1000)
    draws = np.asarray(jax.vmap(lambda k: stratified(k, labels, 10))(keys))
    for row in draws[:20]:
        assert len(set(row)) == 10
        assert list(labels[row]) == ["a"] * 6 + ["b"] * 3 + ["rare"]
    counts = np.bincount(draws.ravel(), minlength=100)
    assert counts[labels == "rare"] == 1000
    for label, share in (("a", 6 / 69), ("b", 3 / 30)):
        error = 5 * math.sqrt(1000 * share * (1 - share))
        assert np.all(np.abs(counts[labels == label] - 1000 * share) < error)


@hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
@hypothesis.given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.data())
def test_allocation(counts, data):
    n = sum(counts)
    m = data.draw(st.integers(len(counts), n))
    shares = allocate(np.asarray(counts), m)
    assert shares.sum() == m
    assert np.all(shares >= 1)
    assert np.all(shares <= counts)
    if min(counts) * m >= n:
        np.testing.assert_array_equal(shares, largest_remainders(counts, m))


def test_entropy_is_the_integral_of_the_squared_density_estimate():
    X, h = cloud(12, 1), 0.3
    result = renyi(jax.random.key(0), jnp.asarray(X), 5, bandwidth=jnp.asarray([h]))
    Z = X[np.asarray(result.indices), 0]
    squared = lambda x: np.mean(scipy.stats.norm.pdf(x, Z, h)) ** 2  # noqa: E731
    integral = scipy.integrate.quad(squared, -6, 6, limit=200, epsabs=1e-13, points=sorted(Z))[0]
    np.testing.assert_allclose(result.entropy, -np.log(integral), rtol=1e-9)
    assert result.bandwidth.rule[0] == GIVEN


@pytest.mark.parametrize(("classes", "candidates"), [(1, 1), (2, 3)])
def test_a_sweep_makes_the_swaps_of_brute_force(classes, candidates):
    n, m, h = 15, 6, np.array([0.4, 0.7])
    X = cloud(n, seed=3)
    codes = np.arange(n) % classes
    state = init(
        jax.random.key(2),
        jnp.asarray(X),
        jnp.arange(m, dtype=jnp.int32),
        jnp.asarray(h),
        jnp.asarray(codes, jnp.int32),
        tolerance=1e-9,
    )
    working, accepted = list(range(m)), 0
    for sweep in range(2):
        draw_key = jax.random.fold_in(state.key, sweep)
        draws = np.asarray(jax.random.randint(draw_key, (8, candidates), 0, n, jnp.int32))
        for drawn in draws:
            working, swapped = swap(X, h, codes, working, list(drawn))
            accepted += swapped
        state = step(state, jnp.asarray(X), jnp.asarray(codes, jnp.int32), candidates=candidates)
        assert list(np.asarray(state.indices)) == working
        np.testing.assert_allclose(state.entropy, entropy(X[working], h, codes[working]))
    assert int(state.accepted) == accepted >= 2
    assert int(state.trials) == 2 * 8 * candidates


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_result_in_both_precisions(dtype):
    X = np.concatenate([cloud(300, 3), 0.1 * cloud(300, 3, 1)]) + np.array([0, 5, 100])
    X = X.astype(dtype)
    h = np.full(3, 0.5)
    result = renyi(jax.random.key(0), jnp.asarray(X), 40, bandwidth=jnp.asarray(h, dtype))
    assert result.entropy.dtype == dtype
    assert result.indices.dtype == jnp.int32
    assert len(set(np.asarray(result.indices).tolist())) == 40
    assert int(result.status) == CONVERGED
    Z = X.astype(np.float64)[np.asarray(result.indices)]
    np.testing.assert_allclose(
        result.entropy, entropy(Z, h), rtol={"float64": 1e-12, "float32": 1e-4}[dtype]
    )
    # Half of the rows crowd in one place and are left alone.
    assert np.mean(np.asarray(result.indices) >= 300) < 0.1


@pytest.mark.slow
def test_both_precisions_choose_the_same_rows():
    X = np.asarray(sklearn.datasets.load_breast_cancer().data[:, :8], np.float32)
    labels = sklearn.datasets.load_breast_cancer().target
    rows = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            Z = jnp.asarray(X, jnp.float64 if wide else jnp.float32)
            h = plug_in_bandwidth(Z).h * 3
            rows.append(renyi(jax.random.key(0), Z, 30, bandwidth=h, labels=labels).indices)
    np.testing.assert_array_equal(*rows)


def test_without_a_tolerance_it_runs_until_no_swap_is_left():
    X, h = cloud(), np.array([0.5, 0.5])
    result = renyi(jax.random.key(0), jnp.asarray(X), 10, bandwidth=jnp.asarray(h), tolerance=0.0)
    assert int(result.status) == CONVERGED
    best = entropy(X[np.asarray(result.indices)], h)
    np.testing.assert_allclose(result.entropy, best)
    _, swapped = swap(X, h, np.zeros(60), list(np.asarray(result.indices)), list(range(60)))
    assert not swapped


@pytest.mark.slow
def test_no_worse_than_algorithm_1_to_the_letter():
    X = np.asarray(sklearn.datasets.load_iris().data, np.float64)
    X = (X - X.mean(0)) / X.std(0)
    h, m = np.full(4, 0.5), 20
    ours, letter, start = [], [], []
    for seed in range(4):
        key = jax.random.key(seed)
        result = renyi(key, jnp.asarray(X), m, bandwidth=jnp.asarray(h))
        ours.append(float(result.entropy))
        start.append(entropy(X[np.asarray(uniform(key, 150, m))], h))
        rows = algorithm_1(X, h, m, 3000, np.random.default_rng(seed))
        letter.append(entropy(X[rows], h))
    assert min(ours) > max(start)
    assert np.mean(ours) > np.mean(letter) - 0.01


def test_repeated_rows_are_left_out():
    X = jnp.asarray(np.repeat(cloud(12), 5, axis=0))
    result = renyi(jax.random.key(1), X, 10, bandwidth=jnp.asarray([0.2, 0.2]))
    assert len(set((np.asarray(result.indices) // 5).tolist())) == 10


def test_all_rows_the_same():
    X = jnp.asarray(np.full((60, 2), 3.0))
    result = renyi(jax.random.key(1), X, 10)
    assert len(set(np.asarray(result.indices).tolist())) == 10
    assert int(result.accepted) == 0
    assert int(result.status) == CONVERGED
    np.testing.assert_allclose(result.entropy, 0, atol=1e-6)
    positive = renyi(jax.random.key(1), X, 10, bandwidth=jnp.ones(2))
    np.testing.assert_allclose(positive.entropy, math.log(4 * math.pi), rtol=1e-6)
    assert int(positive.accepted) == 0
    pivots = pivoted_cholesky(jax.random.key(1), RBF(1.0), X[:5], 5)
    assert sorted(np.asarray(pivots.indices).tolist()) == list(range(5))


def test_columns_without_a_bandwidth_are_left_out():
    X, h = cloud(), np.array([0.3, 0.4])
    more = np.column_stack([X[:, :1], np.full(60, 5.0), X[:, 1:]])
    key = jax.random.key(0)
    lean = renyi(key, jnp.asarray(X), 10, bandwidth=jnp.asarray(h))
    full = renyi(key, jnp.asarray(more), 10, bandwidth=jnp.asarray([0.3, 0.0, 0.4]))
    np.testing.assert_array_equal(lean.indices, full.indices)
    np.testing.assert_allclose(lean.entropy, full.entropy)
    assert plug_in_bandwidth(jnp.asarray(more)).h[1] == 0


@pytest.mark.parametrize(("dtype", "shift"), [("float32", 0.0), ("float64", 1e3)])
def test_scales_and_shifts_change_nothing_but_the_entropy(dtype, shift):
    # Values that both precisions hold exactly, and powers of two.
    X = np.round(cloud() * 64) / 64
    h = np.array([0.25, 0.5])
    scale = np.array([1024.0, 0.125])
    key = jax.random.key(4)
    base = renyi(key, jnp.asarray(X, dtype), 10, bandwidth=jnp.asarray(h, dtype))
    moved = renyi(
        key, jnp.asarray((X + shift) * scale, dtype), 10, bandwidth=jnp.asarray(h * scale, dtype)
    )
    np.testing.assert_allclose(
        moved.entropy, float(base.entropy) + np.sum(np.log(scale)), rtol=1e-4
    )
    if shift == 0:
        np.testing.assert_array_equal(moved.indices, base.indices)


def test_classes_keep_their_shares_and_spread_on_their_own():
    # Two classes on the same points: the classes must not push each other away.
    half = np.column_stack([cloud(30, 1), np.zeros(30)])
    X, labels = np.concatenate([half, half]), np.array(["no"] * 30 + ["yes"] * 30)
    h = np.array([0.2, 0.2])
    result = renyi(jax.random.key(0), jnp.asarray(X), 10, bandwidth=jnp.asarray(h), labels=labels)
    rows = np.asarray(result.indices)
    assert np.sum(labels[rows] == "no") == 5
    np.testing.assert_allclose(result.entropy, entropy(X[rows], h, labels[rows]))
    for label in ("no", "yes"):
        places = np.sort(X[rows[labels[rows] == label], 0])
        assert np.min(np.diff(places)) > h[0]


def test_a_batch_of_keys_is_a_loop_and_the_default_bandwidth_is_the_plug_in():
    X, keys = jnp.asarray(cloud()), jax.random.split(jax.random.key(0), 2)

    def select(key, h):
        result = renyi(key, X, 10, bandwidth=h, labels=np.arange(60) % 2)
        return result.indices, result.entropy, result.trials

    indices, values, trials = jax.jit(jax.vmap(select, in_axes=(0, None)))(keys, jnp.full(2, 0.3))
    for i, key in enumerate(keys):
        one = select(key, jnp.full(2, 0.3))
        np.testing.assert_array_equal(indices[i], one[0])
        np.testing.assert_allclose(values[i], one[1], rtol=1e-12)
        assert int(trials[i]) == int(one[2])
    assert set(indices[0].tolist()) != set(indices[1].tolist())
    default, plug_in = renyi(keys[0], X, 10), plug_in_bandwidth(X)
    chex.assert_trees_all_equal(default.bandwidth, plug_in)
    chex.assert_trees_all_equal(renyi(keys[0], X, 10, bandwidth=plug_in), default)


def test_bad_input_is_named_or_marked(as_users_call):
    """`tests/contracts/test_arguments.py` refuses wrong types and numbers."""
    key, h, X = jax.random.key(0), jnp.asarray([0.3, 0.3]), cloud(20)
    for options, message in (
        ({"bandwidth": jnp.asarray([1.0, -1.0])}, "finite values >= 0"),
        ({"bandwidth": jnp.asarray([1.0, np.nan])}, "finite values >= 0"),
        ({"bandwidth": jnp.ones(3)}, "one per column"),
        ({"labels": np.zeros(19)}, "one per row of X"),
        ({"labels": np.arange(20) % 6}, "each of 6 classes, got 5"),
    ):
        with pytest.raises(ValueError, match=message):
            renyi(key, jnp.asarray(X), 5, **{"bandwidth": h, **options})
    with pytest.raises(ValueError, match="traced"):
        jax.jit(lambda labels: stratified(key, labels, 2))(jnp.arange(4))
    with pytest.raises(ValueError, match="at least one row"):
        stratified(key, np.zeros(0), 1)
    X[7, 0] = np.inf
    with pytest.raises(ValueError, match=r"inf at index \(7, 0\)"):
        renyi(key, jnp.asarray(X), 5, bandwidth=h)
    traced = jax.jit(lambda Z: renyi(key, Z, 20, bandwidth=h))(jnp.asarray(X))
    assert int(traced.status) == NOT_FINITE


@pytest.mark.parametrize(
    "choose", ["uniform", "stratified", pytest.param("renyi", marks=pytest.mark.slow)]
)
def test_weights_are_chances_and_rows_without_weight_stay_out(choose):
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.standard_normal((300, 2)))
    labels = np.arange(300) % 3
    # Class 2 weighs half of all; every seventh row nothing.
    w = np.where(labels == 2, 2.0, 1.0) * (np.arange(300) % 7 > 0)
    select = {
        "uniform": lambda key: uniform(key, 300, 40, jnp.asarray(w)),
        "stratified": lambda key: stratified(key, labels, 40, w),
        "renyi": lambda key: renyi(key, X, 40, labels=labels, weights=w).indices,
    }[choose]
    share = []
    for seed in range(20):
        rows = np.asarray(select(jax.random.key(seed)))
        assert len(set(rows.tolist())) == 40
        assert (w[rows] > 0).all()
        share.append((labels[rows] == 2).mean())
    if choose == "uniform":  # without replacement the heavy ones run out: a little under half
        assert 0.42 < np.mean(share) < 0.52
    else:
        assert set(share) == {0.5}


@pytest.mark.parametrize(
    "choose",
    [
        "uniform",
        "stratified",
        "renyi",
        pytest.param("k_center", marks=pytest.mark.slow),
        pytest.param("k_means", marks=pytest.mark.slow),
        "pivoted",
    ],
)
def test_rows_of_weight_zero_change_no_draw(choose):
    rng = np.random.default_rng(0)
    X, labels, w = rng.standard_normal((40, 2)), np.arange(40) % 3, rng.uniform(1, 2, 40)
    at = [0, 0, 11, 40]

    def select(X, labels, w):
        key, n = jax.random.key(3), len(w)
        as_jax = jnp.asarray(X), 6, jnp.asarray(w)
        return {
            "uniform": lambda: uniform(key, n, 6, jnp.asarray(w)),
            "stratified": lambda: stratified(key, labels, 6, w),
            "renyi": lambda: renyi(key, jnp.asarray(X), 6, labels=labels, weights=w).indices,
            "k_center": lambda: k_center(key, *as_jax).indices,
            "k_means": lambda: k_means(key, *as_jax).centres,
            "pivoted": lambda: pivoted_cholesky(key, RBF(1.0), *as_jax).indices,
        }[choose]()

    alone = np.asarray(select(X, labels, w))
    wide = np.insert(X, at, 50.0, axis=0), np.insert(labels, at, 1), np.insert(w, at, 0.0)
    selection = np.asarray(select(*wide))
    if choose == "k_means":
        np.testing.assert_allclose(selection, alone, rtol=1e-5)
    else:
        np.testing.assert_array_equal(selection, np.flatnonzero(wide[2])[alone])


def test_shares_of_weight_are_capped_by_the_rows_there_are():
    np.testing.assert_array_equal(allocate(np.array([5, 100]), 50, np.array([1.0, 1.0])), [5, 45])
    np.testing.assert_array_equal(allocate(np.array([50, 50]), 10, np.array([3.0, 1.0])), [8, 2])


def test_pivoted_cholesky_leaves_what_the_nystroem_approximation_leaves():
    X = np.random.default_rng(0).standard_normal((30, 2))
    weights = jnp.asarray(np.where(np.arange(30) < 3, 0.0, 1.0))
    selection = pivoted_cholesky(jax.random.key(0), RBF(0.7), jnp.asarray(X), 8, weights)
    indices = np.asarray(selection.indices)
    assert len(set(indices.tolist())) == 8
    assert indices.min() >= 3
    K = gaussian(X[3:], X[3:], 0.7)
    for k in (1, 4, 8):
        pivots = indices[:k] - 3
        rest = K - K[:, pivots] @ np.linalg.solve(K[np.ix_(pivots, pivots)], K[pivots])
        np.testing.assert_allclose(selection.residual[k - 1], np.trace(rest) / 27, rtol=1e-3)
    fewer = pivoted_cholesky(jax.random.key(0), RBF(0.7), jnp.asarray(X), 4, weights)
    np.testing.assert_array_equal(fewer.indices, indices[:4])


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e-30), ("float32", 1e30)])
def test_clusters_are_the_same_in_all_units(dtype, size):
    """Squares of the inputs are out of the range of float32."""
    X = cloud().astype(dtype)
    scaled = jnp.asarray((X.astype(float) * size).astype(dtype))
    weights = jnp.asarray(np.arange(60) % 5 > 0, dtype)
    scaled = scaled.at[0].set(1e3 if size < 1 else jnp.finfo(dtype).max / 4)  # of no weight
    X = jnp.asarray(X).at[0].set(1e3)
    near = {"float64": 1e-14, "float32": 1e-5}[dtype]
    few, same = k_center(0, X, 5, weights), k_center(0, scaled, 5, weights)
    np.testing.assert_array_equal(same.indices, few.indices)
    np.testing.assert_allclose(np.asarray(same.radius, float) / size, few.radius, rtol=near)
    means, others = k_means(0, X, 5, weights), k_means(0, scaled, 5, weights)
    assert int(others.status) == CONVERGED
    centres = np.asarray(others.centres, float) / size
    np.testing.assert_allclose(centres, means.centres, atol=100 * near)
