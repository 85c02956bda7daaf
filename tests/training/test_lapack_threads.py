"""Training uses one thread of LAPACK while its systems are small, and restores the number."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import jsparse
from jsparse._lapack_threads import LARGE_SYSTEM, one_lapack_thread
from jsparse.machines import RVM, Dual, FixedSize, ReducedSetSVM


@pytest.fixture(autouse=True)
def two_threads():
    import scipy.linalg.cython_lapack  # noqa: F401

    with threadpool_limits(2, user_api="blas"):
        yield
        assert threads() == {2}


def threads():
    """Return the numbers of threads of all BLAS libraries of this process."""
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    return {library["num_threads"] for library in libraries}


def test_contexts_may_be_nested():
    with one_lapack_thread(True):
        with one_lapack_thread(True):
            assert threads() == {1}
        assert threads() == {1}
    with one_lapack_thread(False):
        assert threads() == {2}


def train(method, progress):
    X = np.random.default_rng(0).standard_normal((40, 2))
    return jsparse.train(X, X[:, 0], task="regression", method=method, key=0, progress=progress)


@pytest.mark.parametrize(("method", "count"), [(FixedSize(8), 1), (Dual(), 2)])
def test_training_limits_the_threads_for_small_systems(method, count):
    seen = []
    train(method, lambda *_: seen.append(threads()))
    assert seen
    assert all(one == {count} for one in seen)


def test_an_interrupted_training_restores_the_number_of_threads():
    def interrupt(*_):
        assert threads() == {1}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(FixedSize(8), interrupt)


@pytest.mark.parametrize(
    ("method", "large"),
    [
        (FixedSize(LARGE_SYSTEM - 1), False),
        (FixedSize(LARGE_SYSTEM), True),
        (FixedSize((8, LARGE_SYSTEM)), True),
        (Dual(), True),
        (RVM(), False),
        (ReducedSetSVM(), False),
        (ReducedSetSVM(large_prototypes=None), True),
    ],
)
def test_methods_with_large_systems(method, large):
    assert method.has_large_systems == large
