"""Annealing and the simplex on an objective written in JAX, in one compiled loop."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jsparse._status import RUNNING


def assert_same(a, b):
    """Assert that all leaves of two states are equal bit for bit; NaN equals NaN."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def assert_recorded(calls, state, record):
    """Assert that a record holds the points of all calls in order, within the box, and the best."""
    # float32 is what a callback's thread receives.
    np.testing.assert_allclose(calls, record.thetas, rtol=1e-6)
    best = int(np.argmin(record.values))
    assert state.best_value == record.values[best]
    np.testing.assert_array_equal(state.best_theta, record.thetas[best])
    assert ((record.thetas >= state.low[None]) & (record.thetas <= state.high[None])).all()


class Record(NamedTuple):
    """Every evaluation in order, with NaN in unused rows."""

    thetas: jax.Array
    values: jax.Array


def advance(algorithm, objective, args, state):
    """Evaluate what the algorithm asks for; return the next state, the points and their values."""
    points = algorithm.ask(state)

    def value(theta):
        return objective(theta, args).astype(theta.dtype)

    values = value(points) if points.ndim == 1 else jax.vmap(value)(points)
    return algorithm.tell(state, points, values), points, values


@functools.partial(jax.jit, static_argnums=(0, 1))
def step(algorithm, objective, args, state):
    """Return the state after one round; a stopped state is returned unchanged."""
    return jax.lax.cond(
        state.status == RUNNING,
        lambda state: advance(algorithm, objective, args, state)[0],
        lambda state: state,
        state,
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def run(algorithm, objective, args, state, rounds):
    """Return the last state, and the `Record` of at most so many rounds."""

    def body(carry):
        i, state, thetas, values = carry
        state, *evaluated = advance(algorithm, objective, args, state)
        return i + 1, state, thetas.at[i].set(evaluated[0]), values.at[i].set(evaluated[1])

    shape, dtype = algorithm.ask(state).shape, state.low.dtype
    thetas, values = (jnp.full((rounds, *s), jnp.nan, dtype) for s in (shape, shape[:-1]))
    start = jnp.zeros((), jnp.int32), state, thetas, values
    _, state, thetas, values = jax.lax.while_loop(lambda c: c[1].status == RUNNING, body, start)
    return state, Record(thetas.reshape(-1, shape[-1]), values.reshape(-1))
