"""Standardisation against float64 NumPy loops, and its behaviour on awkward columns."""

import chex
import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from reference.scaling import mean_and_deviation

from jsparse.scaling import NormalScores, Standardization, normal_scores, standardize

compiled = jax.jit(standardize)


def columns(n=200, d=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_agrees_with_loops_whatever_the_mean(dtype, mean, weighted):
    X = np.asarray(mean + columns(), dtype)
    weights = np.random.default_rng(1).uniform(0.1, 3.0, 200).astype(dtype) if weighted else None
    scaling = compiled(X, weights)
    assert scaling.shift.dtype == scaling.scale.dtype == dtype
    shift, scale = mean_and_deviation(X, weights)  # of the very float32 numbers it was given
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(scaling.scale, scale, rtol=20 * eps)
    # The mean cannot be more exact than its rounding.
    np.testing.assert_allclose(scaling.shift, shift, atol=20 * eps, rtol=2 * eps)
    scaled = scaling.apply(jnp.asarray(X))
    assert scaled.dtype == dtype
    again, unit = mean_and_deviation(np.asarray(scaled, float), weights)
    np.testing.assert_allclose(again, 0, atol=20 * eps + eps * mean)
    np.testing.assert_allclose(unit, 1, rtol=20 * eps)
    undone = scaling.undo(scaled)
    np.testing.assert_allclose(undone, X, rtol=40 * eps, atol=40 * eps)
    np.testing.assert_allclose(scaling.apply(jnp.asarray(X[0])), scaled[0], rtol=40 * eps)


def test_awkward_columns(dtype):
    """Columns are constant, constant to rounding, constant but for one row, tiny or huge."""
    eps, n = np.finfo(dtype).eps, 1000
    constants = [0.0, 1.0, -0.1, 1e6, 1e-30, -1e30]
    rounding = np.where(np.arange(n) % 2, 1e3, 1e3 * (1 + eps))
    lone = (np.arange(n) == 17) * 1.0
    far = 1e6 + (np.arange(n) == 400)
    sizes = columns(n, 1) * [1e-30, 1e30]
    X = np.column_stack([np.tile(constants, (n, 1)), rounding, lone, far, sizes]).astype(dtype)
    scaling = compiled(X)
    np.testing.assert_array_equal(scaling.scale[:7], 1)
    np.testing.assert_array_equal(scaling.shift[:6], X[0, :6])
    np.testing.assert_array_equal(scaling.apply(jnp.asarray(X))[:, :6], 0)
    np.testing.assert_allclose(scaling.scale[7:9], np.sqrt(0.001 * 0.999), rtol=1e-4)
    np.testing.assert_allclose(scaling.scale[9:], sizes.std(axis=0), rtol=1e-4)


def test_rows_count_by_their_weights_and_those_of_weight_zero_do_not_exist(dtype):
    X = columns(5).astype(dtype)
    counts = np.array([1, 3, 2, 1, 4])
    padded = np.concatenate([np.full((3, 3), np.nan), X, np.full((2, 3), np.inf)]).astype(dtype)
    weights = np.concatenate([np.zeros(3), counts, np.zeros(2)]).astype(dtype)
    ours, repeated = compiled(padded, weights), np.repeat(X, counts, axis=0)
    np.testing.assert_allclose(ours.shift, repeated.mean(0), atol=1e-6)
    np.testing.assert_allclose(ours.scale, repeated.std(0), rtol=1e-5)
    one = compiled(np.array([[2.0, 5.0]], dtype))
    np.testing.assert_array_equal(one.shift, [2, 5])
    np.testing.assert_array_equal(one.scale, [1, 1])
    chex.assert_tree_all_finite(compiled(np.ones((3, 2), dtype), np.zeros(3, dtype)))


@pytest.mark.slow
@hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
@hypothesis.given(
    X=hypothesis.extra.numpy.arrays(
        np.float64, (7, 2), elements=st.floats(-1e6, 1e6, allow_nan=False, allow_subnormal=False)
    ),
    shift=st.floats(-100, 100),
    size=st.floats(0.01, 100),
)
def test_affine_maps_and_row_order_change_nothing(X, shift, size):
    order = np.random.default_rng(0).permutation(7)
    spread = np.abs(X - X[:1]).max(0)
    # Leave out columns at the edge of being constant, where a shift may decide.
    hypothesis.assume(bool(np.all((spread == 0) | (spread > 1e-3 * (1 + np.abs(X).max(0))))))
    scaled = [
        standardize(jnp.asarray(Z)).apply(jnp.asarray(Z)) for Z in (X, shift + size * X, X[order])
    ]
    # A constant column under a linear map may come out as the rounding of its magnitude.
    np.testing.assert_allclose(scaled[0], scaled[1], atol=1e-6)
    np.testing.assert_allclose(scaled[0][order], scaled[2], atol=1e-9)


def test_jit_vmap_and_no_second_compilation():
    chex.clear_trace_counter()
    X = jnp.asarray(columns(30))
    counted = jax.jit(chex.assert_max_traces(lambda Z: standardize(Z), n=1))
    chex.assert_trees_all_close(counted(X), standardize(X), rtol=1e-10)
    counted(X + 1)
    stack = jnp.stack([X, 2 * X + 1])
    mapped = jax.jit(jax.vmap(standardize))(stack)
    for i in range(2):
        one = Standardization(mapped.shift[i], mapped.scale[i])
        chex.assert_trees_all_close(one, counted(stack[i]), rtol=1e-10, atol=1e-10)


def test_gradients_agree_with_finite_differences_and_are_finite_at_constant_columns():
    X = np.column_stack([columns(6, 2), np.full(6, 3.0)])
    direction, target = columns(6, 3, seed=2), columns(6, 3, seed=3)
    direction[:, 2] = 0

    @jax.jit
    def objective(t):
        Z = X + t * direction
        return jnp.sum(jnp.sin(standardize(Z).apply(Z) * target))

    slope = jax.jit(jax.grad(objective))(0.0)
    difference = (objective(1e-5) - objective(-1e-5)) / 2e-5
    np.testing.assert_allclose(slope, difference, rtol=1e-7)
    forward = jax.jit(lambda t: jax.jvp(objective, (t,), (1.0,))[1])(0.0)
    np.testing.assert_allclose(forward, slope, rtol=1e-10)
    gradient = jax.jit(jax.grad(lambda Z: jnp.sum(standardize(Z).scale)))(X)
    chex.assert_tree_all_finite(gradient)


@pytest.mark.usefixtures("as_users_call")
def test_bad_input_is_named():
    for X, weights, message in (
        (np.zeros((0, 2)), None, "at least one row"),
        (np.zeros((3, 2)), np.ones(2), "one per row"),
        (np.zeros((3, 2)), -np.ones(3), "negative"),
    ):
        with pytest.raises(ValueError, match=message):
            standardize(jnp.asarray(X), None if weights is None else jnp.asarray(weights))


def test_normal_scores_are_those_of_mid_ranks():
    """Compare with SciPy's average ranks and quantiles of the normal distribution."""
    rng = np.random.default_rng(0)
    X = np.stack([rng.standard_cauchy(100), rng.integers(0, 4, 100), np.full(100, 7.0)], axis=1)
    scaling = normal_scores(X)
    expected = scipy.stats.norm.ppf((scipy.stats.rankdata(X[:, :2], axis=0) - 0.5) / 100)
    expected = (expected - expected.mean(axis=0)) / expected.std(axis=0)
    scores = np.asarray(scaling.apply(jnp.asarray(X)))
    np.testing.assert_allclose(scores[:, :2], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(scores[:, 2], 0)
    # Back again, by JAX and by NumPy; beyond the ends the map is constant.
    np.testing.assert_allclose(scaling.undo(jnp.asarray(scores)), X, rtol=1e-9)
    np.testing.assert_allclose(scaling.undo_on_host(scores), X, rtol=1e-9)
    far = scaling.apply(jnp.asarray([[1e9, -1.0, 7.0]]))
    np.testing.assert_allclose(far[0], [scores[:, 0].max(), scores[:, 1].min(), 0])


def test_normal_scores_of_many_values_are_monotone_and_near(dtype):
    X = np.random.default_rng(1).lognormal(0, 3, (5000, 2)).astype(dtype)
    scaling = normal_scores(X)
    assert scaling.knots.shape == (128, 2)
    scores = np.asarray(scaling.apply(jnp.asarray(X)))
    assert scores.dtype == dtype
    assert np.all(np.diff(scores[np.argsort(X[:, 0]), 0]) >= 0)
    exact = scipy.stats.norm.ppf((scipy.stats.rankdata(X[:, 0]) - 0.5) / 5000)
    assert np.abs(scores[:, 0] - exact / exact.std()).max() < 0.06
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(scores.std(axis=0), 1, rtol=1e-4)


def test_normal_scores_take_weights_and_monotone_maps():
    X = columns(60, 2)
    weights = np.append(np.ones(40), np.zeros(20))
    part, whole = normal_scores(X[:40]), normal_scores(X, weights)
    np.testing.assert_allclose(part.knots, whole.knots)
    np.testing.assert_allclose(part.scores, whole.scores, atol=1e-12)
    mapped = normal_scores(np.exp(X)).apply(jnp.asarray(np.exp(X)))
    np.testing.assert_allclose(mapped, normal_scores(X).apply(jnp.asarray(X)), atol=1e-12)
    slope = jax.jit(jax.grad(lambda x: part.apply(x)[0]))(jnp.asarray(X[45]))
    assert np.all(np.isfinite(slope))
    assert isinstance(part, NormalScores)
