"""Coupled simulated annealing against a loop; the claims of the paper; contracts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import io_callback
from reference import annealing as reference
from search import loops

from jsparse._status import COMPLETED, NOT_FINITE, RUNNING
from jsparse.search import annealing
from jsparse.search.annealing import Schedule
from jsparse.search.box import reflect

LOW, HIGH = np.array([-5.12, -2.0]), np.array([5.12, 3.0])


def rastrigin(x, args):
    # Squared distances and cosines; `args` is a shift.
    return 20.0 + jnp.sum((x - args) ** 2 - 10 * jnp.cos(2 * jnp.pi * (x - args)))


def bowl(x, args):
    return jnp.sum((x - args) ** 2)


step = functools.partial(loops.step, annealing)


def run(objective, args, key, low, high, max_evaluations=90, **options):
    """Run the whole search; return the last state and every evaluation."""
    state = annealing.init(key, low, high, max_evaluations=max_evaluations, **options)
    rounds = max_evaluations // state.values.size
    return loops.run(annealing, objective, args, state, rounds)


CALLS = []


@jax.custom_batching.sequential_vmap
def counted(x, args):
    io_callback(lambda x: CALLS.append(np.array(x)), None, x, ordered=True)
    return bowl(x, args)


def tilted(x, args):
    return 3 + args * x[0]


def box(dtype="float64"):
    return jnp.asarray(LOW, dtype), jnp.asarray(HIGH, dtype)


# Against the loop ---------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [1, 3])
def test_follows_algorithm_6_step_by_step(inner):
    low, high = box()
    shift, key, q, rounds = jnp.asarray([0.3, -0.2]), jax.random.key(4), 4, 40
    schedule = Schedule(generation=0.7, acceptance=0.6, inner=inner)
    state = annealing.init(key, low, high, members=q, max_evaluations=q * rounds, schedule=schedule)
    first = np.asarray(state.thetas)
    probes, temperatures, variances = [], [], []
    for _ in range(rounds):
        probes.append(np.asarray(annealing.ask(state)))
        state = step(rastrigin, shift, state)
        temperatures.append(float(state.acceptance))
        variances.append(float(state.variance))

    jumps, draws = [], []
    for r in range(1, rounds):
        move, accept = jax.random.split(jax.random.fold_in(key, r))
        jumps.append(np.asarray(jax.random.cauchy(move, (q, 2))))
        draws.append(np.asarray(jax.random.uniform(accept, (q,))))

    def energy(x):
        return float(20 + sum((x - shift) ** 2 - 10 * np.cos(2 * np.pi * (x - shift))))

    record, x, energies, T, sigma2 = reference.anneal(
        energy, first, LOW, HIGH, jumps, draws, 0.7, 0.6, G=inner
    )
    # Far jumps are folded many times, which costs digits.
    np.testing.assert_allclose(np.concatenate(probes), record, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(state.thetas, x, rtol=1e-8)
    np.testing.assert_allclose(state.values, energies, rtol=1e-7)
    np.testing.assert_allclose(temperatures[1:], T, rtol=1e-10)
    np.testing.assert_allclose(variances, sigma2, rtol=1e-6, atol=1e-12)


# Variance control ---------------------------------------------------------------------------


def _variances(objective, members, rounds, chains):
    def chain(key):
        low, high = box()
        state = annealing.init(
            key, low, high, members=members, max_evaluations=members * rounds + members
        )

        def body(state, _):
            state = step(objective, jnp.zeros(2), state)
            return state, state.variance

        return jax.lax.scan(body, state, None, rounds)[1]

    return np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(11), chains)))


@pytest.mark.parametrize(
    ("objective", "q"),
    [(rastrigin, 10), pytest.param(bowl, 5, marks=pytest.mark.slow)],
)
def test_variance_settles_at_its_target(objective, q):
    """16 chains of 1200 rounds; each chain's second half is one independent observation.

    T is steady when rises and falls balance, u log(1 + a) + (1 - u) log(1 - a) = 0 with u the
    share of rounds at or above the target: u = 0.5125 for a = 0.05. The mean over the chains must
    be within 4 standard errors of it, allowing also for the trend of T itself: the energies shrink
    as the search converges, by at most e^6 over the 600 rounds, which is 6 / 600 / 0.1 = 0.1 of u
    in the worst case but is seen to be below 0.01. The median ratio must be within 1 % of 1.
    """
    rounds, chains, alpha = 1200, 16, 0.05
    target = 0.99 * (q - 1) / q**2
    ratio = _variances(objective, q, rounds, chains)[:, rounds // 2 :] / target
    assert abs(np.median(ratio) - 1) < 0.01
    shares = (ratio >= 1).mean(axis=1)
    balance = -np.log(1 - alpha) / (np.log(1 + alpha) - np.log(1 - alpha))
    error = shares.std(ddof=1) / np.sqrt(chains)
    assert abs(shares.mean() - balance) < 4 * error + 0.01


@pytest.mark.slow
def test_variance_is_near_its_target_within_the_papers_budget():
    """The budget is 90 evaluations; as in cross-validation, a value may be a large outlier."""

    def spiked(x, args):
        return bowl(x, args) + jnp.where(x[0] > 4, 1e6, 0.0)

    low, high = box()
    keys = jax.random.split(jax.random.key(2), 64)

    @jax.jit
    @jax.vmap
    def variance(key):
        return run(spiked, jnp.zeros(2), key, low, high)[0].variance

    assert np.median(variance(keys)) > 0.8 * 0.16


@jax.jit
def _probabilities(values, temperature, scale):
    return annealing.acceptance_probabilities(
        jnp.asarray(values), jnp.asarray(temperature), jnp.asarray(scale)
    )


@given(
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=8),
    st.floats(1e-150, 1e150),
    st.floats(1e-150, 1e150),
)
@settings(max_examples=40, deadline=None)
def test_probabilities_are_a_distribution_whatever_the_scale(values, temperature, scale):
    with jax.enable_x64(True):
        A = np.asarray(_probabilities(np.array(values), temperature, scale))
    assert np.isfinite(A).all()
    np.testing.assert_allclose(A.sum(), 1, rtol=1e-12)
    assert (np.diff(A[np.argsort(values)]) >= 0).all()  # the worst moves most readily


def test_probabilities_match_the_loop(dtype, tol):
    values = np.random.default_rng(0).normal(size=6)
    A = _probabilities(values.astype(dtype), np.asarray(0.3, dtype), np.asarray(2.0, dtype))
    assert A.dtype == dtype
    np.testing.assert_allclose(A, reference.probability(values, 0.6), rtol=10 * tol)


def in_units(x, args):
    scale, offset = args
    return scale * rastrigin(x, jnp.zeros_like(x)) + offset


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_search_does_not_depend_on_the_units_of_the_objective(dtype):
    low, high = box(dtype)

    def thetas(scale, offset):
        args = jnp.asarray(scale, dtype), jnp.asarray(offset, dtype)
        return run(in_units, args, jax.random.key(3), low, high)[1].thetas

    plain = thetas(1.0, 0.0)
    for scale in (2.0**-60, 2.0**60):  # powers of two: no rounding
        np.testing.assert_array_equal(thetas(scale, 0.0), plain)
    if dtype == "float64":
        np.testing.assert_allclose(thetas(3e6, -1e7), plain, rtol=1e-12)


# Quality ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "budget"), [(rastrigin, 600), pytest.param(bowl, 90, marks=pytest.mark.slow)]
)
def test_beats_blind_search_at_the_same_budget(objective, budget):
    """100 seeds; the paired difference of log regrets is below 0 by more than 4 standard errors.

    Rastrigin's function has 55 minima in the box.
    """
    low, high = box()
    keys, shift = jax.random.split(jax.random.key(8), 100), jnp.asarray([1.3, 0.4])

    @jax.jit
    @jax.vmap
    def both(key):
        state, _ = run(objective, shift, key, low, high, max_evaluations=budget)
        thetas = low[None] + (high - low)[None] * jax.random.uniform(key, (budget, 2))
        return state.best_value, jnp.min(jax.vmap(lambda theta: objective(theta, shift))(thetas))

    annealed, blind = both(keys)
    difference = np.log(np.asarray(annealed)) - np.log(np.asarray(blind))
    assert difference.mean() < -4 * difference.std(ddof=1) / 10


# Budget, record, and what stops it ------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "budget", "used"), [(5, 93, 90), pytest.param(1, 7, 7, marks=pytest.mark.slow)]
)
def test_budget_is_exact_and_everything_is_recorded(members, budget, used):
    CALLS.clear()
    limits = {"members": members, "max_evaluations": budget}
    state, record = run(counted, jnp.zeros(2), jax.random.key(0), *box(), **limits)
    jax.effects_barrier()
    assert len(CALLS) == used == state.evaluations
    assert state.status == COMPLETED
    assert record.thetas.shape == (used, 2)
    loops.assert_recorded(CALLS, state, record)
    loops.assert_same(step(counted, jnp.zeros(2), state), state)
    jax.effects_barrier()
    assert len(CALLS) == used


def test_values_not_finite_are_never_accepted():
    low, high = box()

    def broken(x, args):
        bad = jnp.where(x[1] > 0, jnp.nan, jnp.where(x[1] < -1, -jnp.inf, jnp.inf))
        return jnp.where(jnp.abs(x[0]) < 2, bowl(x, args), bad)

    advance = jax.jit(functools.partial(loops.advance, annealing, broken, jnp.zeros(2)))
    state = annealing.init(jax.random.key(9), low, high, max_evaluations=200)
    seen = set()
    while state.status == RUNNING:
        before = state
        state, _, raw = advance(state)
        raw = np.asarray(raw)
        seen |= {"nan"} if np.isnan(raw).any() else set()
        seen |= {"minus"} if np.isneginf(raw).any() else set()
        moved = np.any(np.asarray(state.thetas) != np.asarray(before.thetas), axis=1)
        assert not moved[~np.isfinite(raw)].any()
        assert np.isfinite(state.variance)
        held = np.isfinite(np.asarray(state.values))
        assert (np.abs(np.asarray(state.thetas)[held, 0]) < 2).all()
    assert seen == {"nan", "minus"}
    assert state.status == COMPLETED
    assert state.best_value >= 0
    assert abs(state.best_theta[0]) < 2


def test_says_when_no_value_was_ever_finite():
    low, high = box()
    state, record = run(lambda x, args: x[0] * jnp.nan, None, jax.random.key(0), low, high)
    assert state.status == NOT_FINITE
    assert state.evaluations == 90
    assert np.isnan(record.values).all()
    assert np.isfinite(record.thetas).all()


@pytest.mark.parametrize("members", [1, 5])
def test_level_objective_and_single_member(members):
    low, high = box()
    for slope in (0.0, 1.0):  # level, then not
        state, record = run(
            tilted, jnp.asarray(slope), jax.random.key(1), low, high, members=members
        )
        leaves = [state.thetas, state.values, state.acceptance, state.variance, record.thetas]
        assert all(np.isfinite(leaf).all() for leaf in leaves)
        assert state.status == COMPLETED
        controlled = slope > 0 and members > 1
        assert (state.acceptance != state.schedule.acceptance) == controlled


def test_long_run_with_ties_keeps_temperatures_finite():
    """Two values only: the worst are tied, the target is out of reach, and T^ac falls for long."""

    def two_values(x, args):
        return jnp.where(x[0] > 0, 1.0, 0.0).astype(x.dtype)

    limits = {"members": 8, "max_evaluations": 8 * 3000}
    state, _ = run(two_values, None, jax.random.key(1), *box("float32"), **limits)
    assert np.isfinite(state.variance)
    assert state.acceptance > 0


# Contracts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32"])
def test_resumed_run_equals_uninterrupted_run_bit_for_bit(dtype):
    low, high = box(dtype)
    args, key = jnp.zeros(2, dtype), jax.random.key(12)
    whole, record = run(rastrigin, args, key, low, high)
    state, rows = annealing.init(key, low, high), []
    types = jax.tree.map(jax.typeof, state)
    for r in range(18):
        if r == 7:  # to disk and back
            saved = jax.tree.map(np.asarray, state._replace(key=jax.random.key_data(state.key)))
            state = jax.tree.map(jnp.asarray, saved)
            state = state._replace(key=jax.random.wrap_key_data(state.key))
        rows.append(annealing.ask(state))
        state = step(rastrigin, args, state)
        assert jax.tree.map(jax.typeof, state) == types
    loops.assert_same(state, whole)
    np.testing.assert_array_equal(np.concatenate(rows), record.thetas)
    assert state.best_theta.dtype == state.values.dtype == dtype


@pytest.mark.slow
def test_vmap_over_keys_with_everything_traced_equals_a_loop():
    low, high = box()

    def thetas(key, low, high, generation):
        schedule = Schedule(generation=generation)
        return run(rastrigin, jnp.zeros(2), key, low, high, schedule=schedule)[1].thetas

    keys = jax.random.split(jax.random.key(13), 3)
    together = jax.jit(jax.vmap(thetas, (0, None, None, None)))(keys, low, high, 0.3)
    for key, one in zip(keys, together, strict=True):
        np.testing.assert_allclose(one, thetas(key, low, high, 0.3), rtol=1e-12, atol=1e-12)


def test_nothing_recompiles_when_values_change():
    traces = []

    def objective(x, args):
        traces.append(None)
        return jnp.sum((x - args) ** 2)

    low, high = box()
    for seed in range(3):
        args, key = jnp.full(2, float(seed)), jax.random.key(seed)
        schedule = Schedule(generation=0.1 + seed, inner=1 + seed)
        state = annealing.init(
            key, low - seed, high + seed, max_evaluations=50 + seed, schedule=schedule
        )
        for _ in range(3):
            state = step(objective, args, state)
        assert len(traces) == 1
    for seed in range(3):
        args, key = jnp.full(2, float(seed)), jax.random.key(seed)
        run(objective, args, key, low - seed, high)
        assert len(traces) == 2


@given(st.floats(-1e6, 1e6), st.floats(-10, 10), st.floats(0.1, 10))
@settings(max_examples=40, deadline=None)
def test_fold_matches_bouncing_off_the_walls(x, low, width):
    x = low + np.clip(x - low, -200 * width, 200 * width)  # the loop bounces one by one
    high = low + width
    with jax.enable_x64(True):
        got = reflect(*(jnp.asarray([v]) for v in (x, low, high)))[0]
    assert low <= got <= high
    assert got == pytest.approx(reference.triangle(x, low, high), abs=1e-9 * width)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"low": np.zeros(2), "high": np.array([1.0, 0.0])}, "low < high"),
        ({"low": np.array([0.0, np.nan])}, "finite"),
        ({"low": np.zeros(1)}, "one length"),
        ({"members": 0}, "at least one member"),
        ({"max_evaluations": 4}, "one evaluation of each"),
        ({"schedule": Schedule(rate=1.5)}, "rate in"),
        ({"schedule": Schedule(generation=0.0)}, "positive temperatures"),
    ],
)
def test_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        annealing.init(**({"key": jax.random.key(0), "low": LOW, "high": HIGH} | change))
