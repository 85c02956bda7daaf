"""Bandwidths against the naive double sum, and their behaviour on awkward columns."""

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import sklearn.datasets
from reference.prototypes import normal_reference, plug_in, robust_sigma, tied

from jsparse._status import CONVERGED, NOT_FINITE
from jsparse.prototypes import RULES, normal_reference_bandwidth, plug_in_bandwidth
from jsparse.prototypes.bandwidth import CONSTANT, PLUG_IN, TIES, UNRESOLVED, _solve


def awkward(n=60, seed=0):
    """Return columns for which the plug-in rule differs much from the normal reference rule."""
    rng = np.random.default_rng(seed)
    half = n // 2
    return np.stack(
        [
            rng.normal(size=n),
            np.concatenate([rng.normal(size=half), rng.normal(30, 2, size=n - half)]),
            rng.lognormal(0, 1, size=n),
            rng.standard_t(2, size=n),
            np.round(rng.normal(size=n), 1),
        ],
        1,
    )


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("method", "spread"), [("exact", "std"), ("binned", "robust")])
def test_plug_in_agrees_with_the_naive_one(dtype, method, spread):
    X = awkward().astype(dtype)
    expected = []
    for x in X.astype(np.float64).T:
        expected.append(plug_in(x, robust_sigma(x) if spread == "robust" else None)[0])
    ours = plug_in_bandwidth(jnp.asarray(X), method=method, spread=spread)
    assert ours.h.dtype == dtype
    tolerance = {("exact", "float64"): 1e-9, ("binned", "float64"): 1e-5}.get((method, dtype), 1e-4)
    np.testing.assert_allclose(ours.h, expected, rtol=tolerance)
    np.testing.assert_array_equal(ours.rule, PLUG_IN)
    np.testing.assert_array_equal(ours.status, CONVERGED)


@pytest.mark.parametrize("load", [sklearn.datasets.load_wine, sklearn.datasets.load_diabetes])
def test_real_columns_and_their_ties(load):
    X = np.asarray(load().data, np.float64)[:60, :5]
    ours = plug_in_bandwidth(jnp.asarray(X))
    fast = plug_in_bandwidth(jnp.asarray(X), method="binned")
    np.testing.assert_array_equal(ours.rule, fast.rule)
    np.testing.assert_allclose(ours.h, fast.h, rtol=1e-5)
    for j, x in enumerate(X.T):
        h, pilot = plug_in(x)
        if tied(x, pilot) > 0.5:
            assert ours.rule[j] == TIES
            h = normal_reference(x)
        else:
            assert ours.rule[j] == PLUG_IN
        np.testing.assert_allclose(ours.h[j], h, rtol=1e-8)
    # The second of diabetes is binary.
    assert (TIES in np.asarray(ours.rule)) == (load is sklearn.datasets.load_diabetes)


def test_half_of_the_close_pairs_tied_is_the_limit():
    steps = np.random.default_rng(5).exponential(size=60)
    columns = [np.round(steps * c) / 4 for c in (2.4, 2.8, 3.2, 4.0, 8.0)]
    shares = [tied(x, plug_in(x)[1]) for x in columns]
    assert 0.55 < shares[0] < 0.65
    assert 0.4 < shares[1] < 0.45
    ours = plug_in_bandwidth(jnp.asarray(np.stack(columns, 1)))
    np.testing.assert_array_equal(ours.rule == TIES, np.asarray(shares) > 0.5)


def test_a_large_normal_sample_gets_the_normal_reference_bandwidth():
    # The relative error of the selector falls like n^(-5/14), here to about one percent.
    X = jnp.asarray(np.random.default_rng(0).normal(3, 2, size=(100_000, 2)))
    ours = plug_in_bandwidth(X)
    np.testing.assert_allclose(ours.h / normal_reference_bandwidth(X), 1, atol=0.05)
    np.testing.assert_allclose(ours.h, 1.06 * 2 * 100_000**-0.2, rtol=0.05)


def test_the_smoothest_density_has_nearly_the_largest_bandwidth():
    """Beta(4, 4) attains the bound of Terrell (1990), above which the search skips the grid."""
    x = scipy.stats.beta.ppf((np.arange(400) + 0.5) / 400, 4, 4)
    h, pilot = plug_in(x)
    np.testing.assert_allclose(plug_in_bandwidth(jnp.asarray(x[:, None])).h, h, rtol=1e-9)
    bound = 1.144 * np.sqrt(np.var(x, ddof=1) + pilot**2 / 2) * 400**-0.2
    assert 0.98 < h / bound < 1


def test_the_search_skips_no_place_that_the_bins_cannot_resolve():
    """The pilot of the last place decides whether a column has ties."""
    n, finest = jnp.asarray(400.0), jnp.asarray(1e9)
    log_h, has_root, _ = jax.jit(
        lambda *limits: _solve(lambda r, h: jnp.ones(()), jnp.zeros(()), *limits)
    )(n, finest)
    assert not has_root
    np.testing.assert_allclose(log_h, np.log(4 * 1.144) - 0.2 * np.log(400))


def test_two_far_clusters_keep_the_bandwidth_of_one():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=200), rng.normal(50, 1, size=200)
    both = jnp.asarray(np.concatenate([a, b])[:, None])
    h = float(plug_in_bandwidth(both).h[0])
    assert 0.5 * normal_reference(a) < h < 2 * normal_reference(a)
    assert h < 0.1 * float(normal_reference_bandwidth(both)[0])


def test_normal_reference():
    X = awkward()
    ours = normal_reference_bandwidth(jnp.asarray(X))
    np.testing.assert_allclose(ours, [normal_reference(x) for x in X.T], rtol=1e-5)
    robust = normal_reference_bandwidth(jnp.asarray(X), spread="robust")
    expected = [normal_reference(x, robust_sigma(x)) for x in X.T]
    np.testing.assert_allclose(robust, expected, rtol=1e-5)
    mostly = jnp.asarray(np.r_[np.zeros(90), np.ones(10)][:, None])  # no quartile range
    np.testing.assert_allclose(
        normal_reference_bandwidth(mostly, spread="robust"), normal_reference_bandwidth(mostly)
    )


@pytest.mark.parametrize("method", ["exact", "binned"])
def test_columns_without_a_density_get_the_normal_reference_rule_and_say_so(method):
    rng = np.random.default_rng(2)
    n = 60
    X = np.stack(
        [
            rng.integers(0, 2, n),  # binary
            np.r_[np.zeros(54), rng.normal(5, 1, 6)],  # mostly one value
            np.round(rng.normal(size=n), 1),  # rounded, finer than the bandwidth
            np.full(n, 7.3),
            np.zeros(n),
        ],
        1,
    )
    ours = plug_in_bandwidth(jnp.asarray(X), method=method)
    rules = [TIES, TIES, PLUG_IN, CONSTANT, CONSTANT]
    np.testing.assert_array_equal(ours.rule, rules)
    np.testing.assert_array_equal(ours.status, CONVERGED)
    reference = normal_reference_bandwidth(jnp.asarray(X))
    np.testing.assert_allclose(ours.h[:2], reference[:2], rtol=1e-5)
    np.testing.assert_array_equal(ours.h[3:], 0)
    np.testing.assert_array_equal(reference[3:], 0)
    assert set(rules) < set(RULES)


def test_extreme_outliers_are_reported():
    x = np.r_[np.random.default_rng(3).normal(size=399), 1e7]
    X = jnp.asarray(x[:, None])
    reference = normal_reference_bandwidth(X, spread="robust")
    ours = plug_in_bandwidth(X, method="exact", spread="robust")
    assert ours.rule[0] == UNRESOLVED
    np.testing.assert_allclose(ours.h, reference)
    assert plug_in_bandwidth(X, method="binned").rule[0] == TIES  # all else in one bin


@pytest.mark.parametrize("method", ["exact", "binned"])
def test_neither_overflows_nor_underflows(method):
    X = awkward()
    h = np.asarray(plug_in_bandwidth(jnp.asarray(X), method=method).h)
    for size in (1e-30, 1e30):
        ours = plug_in_bandwidth(jnp.asarray(size * X, jnp.float32), method=method)
        np.testing.assert_allclose(np.asarray(ours.h, np.float64) / size, h, rtol=1e-4)


def test_a_large_mean_costs_only_the_rounding_of_the_data():
    X = awkward()[:, :4]
    with jax.enable_x64(False):
        ours = plug_in_bandwidth(jnp.asarray(X + 1e3, jnp.float32), method="exact")
    rounded = (X + 1e3).astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(ours.h, [plug_in(x)[0] for x in rounded.T], rtol=1e-4)


@hypothesis.settings(max_examples=8, deadline=None, derandomize=True)
@hypothesis.given(
    seed=st.integers(0, 1000),
    size=st.floats(1e-3, 1e3),
    shift=st.floats(-10, 10),
    flip=st.booleans(),
)
def test_equivariance(seed, size, shift, flip):
    X = awkward(seed=seed)
    size = -size if flip else size
    order = np.random.default_rng(seed).permutation(60)
    h = plug_in_bandwidth(jnp.asarray(X)).h
    moved = plug_in_bandwidth(jnp.asarray(size * (X + shift)))
    # The last column has ties, which rounding may undo.
    np.testing.assert_allclose(moved.h[:4], abs(size) * h[:4], rtol=1e-7)
    np.testing.assert_allclose(plug_in_bandwidth(jnp.asarray(X[order])).h, h, rtol=1e-9)


def test_one_to_three_rows():
    for X in ([[1.0, 2.0]], [[1.0, 2.0], [1.0, 3.0]], [[0.0, 1.0], [0.0, 5.0], [0.0, 6.0]]):
        ours = plug_in_bandwidth(jnp.asarray(X))
        chex.assert_tree_all_finite(ours.h)
        assert ours.h[0] == 0
        assert (ours.h[1] > 0) == (len(X) > 1)


def test_constant_under_differentiation():
    X = jnp.asarray(awkward())
    for bandwidth in (lambda Z: plug_in_bandwidth(Z).h, normal_reference_bandwidth):
        slope = jax.grad(lambda Z, bandwidth=bandwidth: jnp.sum(bandwidth(Z)))(X)
        np.testing.assert_array_equal(slope, 0)


def test_bad_input_is_named_or_marked(as_users_call):
    X = awkward()
    X[3, 1] = np.nan
    for bandwidth in (plug_in_bandwidth, normal_reference_bandwidth):
        with pytest.raises(ValueError, match=r"nan at index \(3, 1\)"):
            bandwidth(jnp.asarray(X))
    traced = jax.jit(lambda Z: plug_in_bandwidth(Z))(jnp.asarray(X))
    np.testing.assert_array_equal(traced.status, np.where(np.arange(5) == 1, NOT_FINITE, CONVERGED))
    assert np.isnan(traced.h[1])
    with pytest.raises(ValueError, match="at least one row"):
        plug_in_bandwidth(jnp.ones((0, 2)))
    for name in ("method", "spread"):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            plug_in_bandwidth(jnp.ones((3, 2)), **{name: "fast"})
