"""Training uses one thread of LAPACK while its systems are small, and restores the number."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import jsparse
from jsparse import _lapack_threads
from jsparse._lapack_threads import LARGE_SYSTEM, one_lapack_thread
from jsparse.machines import RVM, SLMC, Dual, FixedSize, ReducedSetSVM, ReducedSVM
from jsparse.training import run


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
    with one_lapack_thread(8):
        with one_lapack_thread(8):
            assert threads() == {1}
        assert threads() == {1}
    with one_lapack_thread(LARGE_SYSTEM):
        assert threads() == {2}


def test_concurrent_contexts_restore_the_number_of_threads():
    first, second = one_lapack_thread(8), one_lapack_thread(8)
    entered, leave = threading.Event(), threading.Event()

    def other_thread():
        with second:
            entered.set()
            assert leave.wait(60)

    other = threading.Thread(target=other_thread)
    first.__enter__()
    other.start()
    assert entered.wait(60)
    first.__exit__(None, None, None)
    leave.set()
    other.join()
    assert threads() == {2}


def train(method, progress):
    X = np.random.default_rng(0).standard_normal((40, 2))
    return jsparse.train(X, X[:, 0], task="regression", method=method, key=0, progress=progress)


@pytest.mark.parametrize(
    ("method", "count"), [(FixedSize(8, "uniform"), 1), (Dual(), 1), (Dual(), 2)]
)
def test_training_limits_the_threads_for_small_systems(method, count, monkeypatch):
    if count == 2:
        monkeypatch.setattr(_lapack_threads, "LARGE_SYSTEM", 40)
    seen = []
    train(method, lambda *_: seen.append(threads()))
    assert seen
    assert all(one == {count} for one in seen)


def test_the_choice_of_columns_and_kernel_limits_the_threads(monkeypatch):
    """With two threads of LAPACK on a busy computer the choice took nine times as long."""
    seen = []

    def family_of(*_, **options):
        seen.append(threads())
        return "rbf", 1.0

    monkeypatch.setattr(run, "family_of", family_of)
    X = np.random.default_rng(0).standard_normal((60, 2))
    jsparse.train(
        X, X[:, 0], task="regression", method=FixedSize(8, "uniform"), columns="auto", key=0
    )  # fmt: skip
    assert seen == [{1}, {1}]


def test_an_interrupted_training_restores_the_number_of_threads():
    def interrupt(*_):
        assert threads() == {1}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(FixedSize(8, "uniform"), interrupt)


@pytest.mark.parametrize(
    ("method", "unknowns"),
    [
        (FixedSize(100), 100),
        (FixedSize((8, 2000)), 2000),
        (Dual(), 5000),
        (RVM(max_prototypes=50), 50),
        (SLMC(300), 1500),
        (ReducedSVM(300), 300),
        (ReducedSetSVM(20), 500),
        (ReducedSetSVM(200), 1000),
        (ReducedSetSVM(20, large_prototypes=None), 5000),
    ],
)
def test_the_largest_system_of_a_method(method, unknowns):
    assert method.largest_system(5000) == unknowns
