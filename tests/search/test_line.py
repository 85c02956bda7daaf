"""The line search of batches visits the points of `line_search`."""

import jax
import numpy as np
import pytest
from reference.kernels import gaussian

from jsparse.kernels import RBF, Custom, Polynomial
from jsparse.kernels.absent import ABSENT, WithAbsent
from jsparse.search import line
from jsparse.search.strategies import line_search

FUNCTIONS = {
    "inside": lambda t: (t - 0.73) ** 2,
    "low": lambda t: t,
    "high": lambda t: -t,
    "rough": lambda t: np.sin(40 * t),
    "infinite": lambda t: np.inf if t > 0 else t,
}
ask, tell = jax.jit(line.ask), jax.jit(line.tell)


@pytest.mark.parametrize("planned", [1, 2, 3, 10, 17])
def test_points_are_those_of_the_search_on_the_host(planned):
    low, high = -1.0, 2.5
    for value in FUNCTIONS.values():
        visited = []

        def scores(points, value=value, visited=visited):
            visited.extend(points[:, 0])
            return np.array([value(t) for t in points[:, 0]])

        line_search(low, high, planned, np.dtype(float), scores)
        step = (high - low) / max(1, line.last_place(planned))
        state = line.init(planned, np.dtype(float))
        for number in range(planned):
            state = ask(state)
            place = float(state.places[number])
            state = tell(state, np.asarray(value(low + place * step), float))
        ours = low + np.asarray(state.places) * step
        np.testing.assert_allclose(ours, visited, rtol=1e-12, atol=1e-12)


def test_absent_points_have_no_kernel_values():
    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((5, 2)), rng.standard_normal((4, 2))
    with_absent = np.concatenate([Z, np.full((2, 2), ABSENT)])

    @jax.jit
    def values(X, Z):
        kernel = WithAbsent(RBF(1.3))
        return kernel.gram(Z), kernel.cross_gram(X, Z), kernel.diagonal(Z), kernel(Z[0], Z[5])

    gram, cross, diagonal, last = values(X, with_absent)
    expected = np.zeros((6, 6))
    expected[:4, :4] = gaussian(Z, Z, 1.3)
    np.testing.assert_allclose(gram, expected, rtol=1e-12)
    np.testing.assert_allclose(cross[:, :4], gaussian(X, Z, 1.3), rtol=1e-12)
    assert np.all(cross[:, 4:] == 0)
    np.testing.assert_array_equal(diagonal, [1, 1, 1, 1, 0, 0])
    assert last == 0.0


def test_kernels_say_whether_they_ignore_columns_of_zeros():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((5, 2))
    wide = np.pad(X, ((0, 0), (0, 3)))
    ignoring = [RBF(0.7), Polynomial(2), RBF(1.0) + 2.0 * Polynomial(3), RBF(1.0) * RBF(2.0)]
    for kernel in ignoring:
        assert kernel.ignores_zero_columns
        grams = jax.jit(lambda a, b, kernel=kernel: (kernel.gram(a), kernel.gram(b)))(wide, X)
        np.testing.assert_allclose(*grams, rtol=1e-12)
    product = Custom(lambda _, x, z: x[-1] * z[-1])
    for kernel in (RBF(np.ones(2)), product, RBF(1.0) + product, 2.0 * product):
        assert not kernel.ignores_zero_columns
