"""The load test of the benchmark `serving`: threads answer as one thread; errors are noticed."""

import jax
import numpy as np
import pytest

from benchmarks import serving


@pytest.fixture(scope="module")
def model():
    with jax.enable_x64(True):
        return serving.make_model(columns=3, prototypes=40)


@pytest.mark.parametrize("server", list(serving.SERVERS))
def test_threads_answer_as_one_thread(server, model, tmp_path):
    model.save(tmp_path / "model.jsparse")
    assert np.abs(model.expansion.coefficients).max() < 100  # so values keep 12 digits
    X = np.random.default_rng(0).standard_normal((1500, 3))
    with jax.enable_x64(True):
        served = serving.SERVERS[server](tmp_path / "model.jsparse")
        expected = served.decision_function(X)
        load = serving.load_test(served, X, expected, threads=8, seconds=0.5)
    assert load.calls >= 8
    assert (load.wrong, len(load.memory)) == (0, 1 + serving.SAMPLES)
    assert load.error <= serving.TOLERANCE
    assert len(load.latencies) > 0


class Faulty:
    """A model that gives a wrong value to one of the rows, or fails at it."""

    def __init__(self, expected, fails):
        self.expected, self.fails = expected, fails

    def decision_function(self, X):
        values = self.expected[X[:, 0].astype(int)]
        if self.fails and (X[:, 0] == 7).any():
            raise RuntimeError("row 7")
        return np.where(X[:, 0] == 7, values + 1e-9, values)


def test_a_wrong_answer_and_a_failure_are_noticed():
    X, expected = np.arange(20.0)[:, None], np.random.default_rng(0).normal(size=20)
    load = serving.load_test(Faulty(expected, False), X, expected, threads=2, seconds=0.2)
    assert 0 < load.wrong < load.calls
    with pytest.raises(RuntimeError, match="row 7"):
        serving.load_test(Faulty(expected, True), X, expected, threads=2, seconds=0.2)
    cell = {"wrong": 0, "growth": 0.0}
    serving._check({"seconds": 3.0, "a": cell})
    for wrong in ({"wrong": 1}, {"growth": serving.FLAT + 1}):
        with pytest.raises(RuntimeError, match="a: expected"):
            serving._check({"a": cell | wrong})
