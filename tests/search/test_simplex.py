"""The simplex search against SciPy's: box, budget, resuming and compilations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.experimental import io_callback
from search import loops

from jsparse._status import CONVERGED, EXHAUSTED, NOT_FINITE, RUNNING
from jsparse.search import simplex
from jsparse.search.box import reflect

step = functools.partial(loops.step, simplex)


def run(objective, args, theta0, low, high, max_evaluations=70, **options):
    """Run the whole search; return the last state and every evaluation."""
    state = simplex.init(theta0, low, high, max_evaluations=max_evaluations, **options)
    return loops.run(simplex, objective, args, state, max_evaluations)


def rosenbrock(x, args):
    return jnp.sum(args * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def bowl(x, args):
    """Return the value of a tilted ellipsoid with its minimum at `args`."""
    z = x - args
    return jnp.sum(z**2 * jnp.arange(1, 1 + z.size, dtype=z.dtype)) + 0.5 * jnp.sum(z) ** 2


def cliff(x, args):
    """Return the value of a bowl, NaN where x0 > 1; the search starts next to this region."""
    return jnp.where(x[0] > 1, jnp.nan, bowl(x, args))


def box(p, dtype="float64"):
    return jnp.full(p, -4.0, dtype), jnp.full(p, 6.0, dtype)


def scipy_points(objective, args, start, low, high, size, budget):
    """Return the points that SciPy evaluates; beyond the box the objective is reflected."""
    points = []

    @jax.jit
    def compiled(x):
        inside = reflect(x, low, high)
        return inside, objective(inside, args)

    def folded(x):
        inside, value = map(np.asarray, compiled(x))
        points.append(inside)
        return float(value) if np.isfinite(value) else np.inf

    edge = size * np.asarray(high - low)
    edge = np.where(start + edge <= high, edge, -edge)
    options = {
        "initial_simplex": np.vstack([start, start + np.diag(edge)]),
        "maxfev": budget,
        "xatol": 0,
        "fatol": 0,
    }
    scipy.optimize.minimize(folded, start, method="Nelder-Mead", options=options)
    return np.array(points)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # SciPy: inf - inf
@pytest.mark.parametrize(
    ("objective", "args", "start"),
    [
        (rosenbrock, 100.0, [-1.2, 1.0]),
        (bowl, 0.7, [3.0]),
        (bowl, 0.7, [2.0, -1.0, 0.5, 1.0]),
        (bowl, 5.95, [5.0, 0.0]),  # a minimum next to a corner: folded points
        (bowl, -9.0, [-3.0, -3.5]),  # a minimum outside
        (cliff, 1.5, [0.9, 0.5]),
    ],
)
def test_evaluates_the_points_that_scipy_does(objective, args, start):
    start, args, size, budget = np.array(start), jnp.asarray(args), 0.1, 80
    low, high = box(start.size)
    state, record = run(objective, args, start, low, high, budget, size=size, tolerance=0.0)
    points = scipy_points(objective, args, start, low, high, size, budget)
    assert state.status == EXHAUSTED
    # Near a minimum a comparison may turn on rounding; one dimension is there by then.
    n = 40 if start.size == 1 else budget
    np.testing.assert_allclose(record.thetas[:n], points[:n], rtol=1e-8, atol=1e-8)


def test_converges_to_the_minimum(dtype):
    low, high = box(3, dtype)
    args = jnp.linspace(-1, 2, 3, dtype=dtype)
    state, record = run(bowl, args, jnp.zeros(3, dtype), low, high, 1000)
    assert state.status == CONVERGED
    width = 10 * np.sqrt(np.finfo(dtype).eps)
    np.testing.assert_allclose(state.best_theta, args, atol=10 * width)
    n = int(state.evaluations)
    assert n < 1000
    assert np.isfinite(record.values[:n]).all()
    assert np.isnan(record.values[n:]).all()
    assert np.isnan(record.thetas[n:]).all()


@pytest.mark.parametrize("p", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_finds_minima_on_faces_and_never_collapses_onto_one(p):
    """Minimise 60 random ellipsoids, most with their centre outside; L-BFGS-B is the oracle.

    SciPy's own bounded simplex, which clips, is the peer that collapses.
    """
    rng, low, high = np.random.default_rng(p), np.zeros(p), np.ones(p)
    Q = np.linalg.qr(rng.normal(size=(60, p, p)))[0]
    H = np.einsum("aij,aj,akj->aik", Q, 10 ** rng.uniform(0, 1.5, (60, p)), Q)
    centre, start = rng.uniform(-0.3, 1.3, (60, p)), rng.uniform(size=(60, p))
    least, clipped = [], []
    for A, c, x0 in zip(H, centre, start, strict=True):
        problem = {"fun": lambda x, A, c: (x - c) @ A @ (x - c), "args": (A, c)}
        problem["bounds"] = [(0, 1)] * p
        exact = {"jac": lambda x, A, c: 2 * A @ (x - c), "method": "L-BFGS-B"}
        exact["options"] = {"ftol": 0, "gtol": 1e-12}
        least.append(scipy.optimize.minimize(x0=np.full(p, 0.5), **problem, **exact).fun)
        peer = {"method": "Nelder-Mead", "options": {"maxfev": 300}}
        clipped.append(scipy.optimize.minimize(x0=x0, **problem, **peer).fun)

    def ellipsoid(x, args):
        return jnp.sum((x - args[1])[:, None] * args[0] * (x - args[1])[None])

    def best(H, centre, start):
        state, _ = run(ellipsoid, (H, centre), start, low, high, 300)
        return state.best_value

    reached = jax.jit(jax.vmap(best))(jnp.asarray(H), jnp.asarray(centre), jnp.asarray(start))
    excess = np.asarray(reached) - np.array(least)
    assert excess.min() > -1e-9
    assert np.quantile(excess, 0.9) < 1e-4
    assert excess.max() < 5e-2  # of values that span about ten
    assert excess.max() < 0.2 * np.max(np.array(clipped) - np.array(least))


@pytest.mark.parametrize("budget", [2, 70])
def test_budget_is_exact_and_everything_is_recorded(budget):
    calls = []

    def counted(x, args):
        io_callback(lambda x: calls.append(np.array(x)), None, x, ordered=True)
        return rosenbrock(x, args)

    low, high = box(2)
    args = jnp.asarray(100.0)
    state, record = run(counted, args, np.array([-1.2, 1.0]), low, high, budget)
    jax.effects_barrier()
    assert len(calls) == budget == state.evaluations
    assert state.status == EXHAUSTED
    loops.assert_recorded(calls, state, record)
    loops.assert_same(step(counted, args, state), state)
    jax.effects_barrier()
    assert len(calls) == budget


def test_a_known_start_is_not_evaluated_again():
    low, high = box(2)
    start, args = jnp.asarray([-1.2, 1.0]), jnp.asarray(100.0)
    value = rosenbrock(start, args)
    _, plain = run(rosenbrock, args, start, low, high, 71)
    _, known = run(rosenbrock, args, start, low, high, 70, value0=value)
    np.testing.assert_array_equal(known.thetas, plain.thetas[1:])
    state = simplex.init(start, low, high, value0=value)
    assert state.best_value == value
    np.testing.assert_array_equal(state.best_theta, start)


def test_values_not_finite_are_the_worst():
    low, high = box(2)
    start = jnp.asarray([0.9, 0.5])

    def broken(x, bad):
        return jnp.where(x[0] > 1, bad, bowl(x, jnp.full_like(x, 1.5)))

    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        state, record = run(broken, jnp.asarray(bad), start, low, high, 200)
        assert not np.isfinite(record.values[: state.evaluations]).all()
        assert state.best_theta[0] <= 1
        assert state.best_theta[0] > 0.99  # the minimum lies on the edge of the cliff
        assert np.isfinite(state.best_value)


def test_stops_when_no_vertex_is_finite_or_all_are_level():
    low, high = box(3)

    def constant(x, value):
        return x[0] * 0 + value

    state, record = run(constant, jnp.nan, jnp.zeros(3), low, high, 500)
    assert state.status == NOT_FINITE
    assert state.evaluations == 4
    assert np.isnan(record.values).all()
    assert np.isfinite(record.thetas).all(axis=1).sum() == 4
    state, _ = run(constant, 1.0, jnp.zeros(3), low, high, 500)
    assert state.status == CONVERGED
    np.testing.assert_array_equal(state.best_theta, 0)


def test_starts_in_a_corner_with_a_whole_simplex():
    low, high = box(3)
    for corner in (-4.0, 6.0):
        state = simplex.init(jnp.full(3, corner), low, high, size=0.5)
        edges = np.asarray(state.vertices[1:] - state.vertices[:1])
        np.testing.assert_allclose(np.abs(edges), 5 * np.eye(3))
        assert ((state.vertices >= low[None]) & (state.vertices <= high[None])).all()


@pytest.mark.parametrize("dtype", ["float32"])
def test_resumed_run_equals_uninterrupted_run_bit_for_bit(dtype):
    low, high = box(2, dtype)
    start, args = jnp.asarray([-1.2, 1.0], dtype), jnp.asarray(100.0, dtype)
    whole, record = run(rosenbrock, args, start, low, high)
    state, thetas = simplex.init(start, low, high), []
    types = jax.tree.map(jax.typeof, state)
    while state.status == RUNNING:
        if state.evaluations == 33:  # to disk and back
            state = jax.tree.map(jnp.asarray, jax.tree.map(np.asarray, state))
        thetas.append(simplex.ask(state))
        state = step(rosenbrock, args, state)
        assert jax.tree.map(jax.typeof, state) == types
    loops.assert_same(state, whole)
    np.testing.assert_array_equal(np.array(thetas), record.thetas[: len(thetas)])
    assert state.best_theta.dtype == state.values.dtype == dtype


def test_vmap_over_starts_equals_loop():
    low, high = box(2)
    starts = jnp.asarray([[-1.2, 1.0], [3.0, 3.0], [0.0, -2.0], [5.5, 5.5]])
    minima = jnp.asarray([0.0, 1.0, 2.0, -1.0])

    def search(start, minimum):
        return run(bowl, minimum, start, low, high, 150, tolerance=1e-4)

    together = jax.vmap(search)(starts, minima)
    assert len(set(together[0].evaluations.tolist())) > 1  # lanes stop at different times
    for i, (start, minimum) in enumerate(zip(starts, minima, strict=True)):
        state, record = search(start, minimum)
        assert together[0].evaluations[i] == state.evaluations
        np.testing.assert_allclose(together[1].thetas[i], record.thetas, rtol=1e-9, atol=1e-9)


def test_nothing_recompiles_when_values_change():
    traces = []

    def objective(x, args):
        traces.append(None)
        return jnp.sum((x - args) ** 2)

    low, high = box(2)
    for seed in range(3):
        args, start = jnp.full(2, float(seed)), jnp.full(2, 0.1 * seed)
        state = simplex.init(start, low - seed, high, size=0.1 + 0.1 * seed)
        for _ in range(5):
            state = step(objective, args, state)
        assert len(traces) == 1
    for seed in range(3):
        args, start = jnp.full(2, float(seed)), jnp.full(2, 0.1 * seed)
        run(objective, args, start, low - seed, high, value0=float(seed))
        assert len(traces) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"high": np.zeros(3)}, "one length"),
        ({"high": np.array([1.0, -9.0])}, "low < high"),
        ({"theta0": np.zeros(3)}, "match the bounds"),
        ({"theta0": np.array([0.0, 7.0])}, "within"),
        ({"theta0": np.array([0.0, np.nan])}, "within"),
        ({"size": 0.0}, "parts of the box"),
        ({"size": 0.6}, "parts of the box"),
        ({"size": np.ones(3)}, "match the bounds"),
        ({"max_evaluations": 0}, "at least 1"),
        ({"tolerance": -1.0}, "tolerance"),
    ],
)
def test_refuses(change, message):
    low, high = box(2)
    with pytest.raises(ValueError, match=message):
        simplex.init(**({"theta0": np.zeros(2), "low": low, "high": high} | change))
