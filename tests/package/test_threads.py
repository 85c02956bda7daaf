"""Threads that share the folds of a fit: same results, settings and errors as one thread."""

import _thread
import contextvars
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsparse._programs import compiled
from jsparse._threads import map_in_threads
from jsparse.compilation import count_compilations

CALLER = contextvars.ContextVar("caller", default="nobody")


def test_results_keep_their_order_and_calls_run_at_the_same_time():
    together = threading.Barrier(3)

    def square(number):
        together.wait(timeout=60)  # ends only if three calls have begun
        time.sleep(0.01 * (3 - number))
        return number**2

    assert map_in_threads(square, range(3), 3) == [0, 1, 4]
    assert map_in_threads(lambda number: number, [], 3) == []
    main = threading.get_ident()
    assert map_in_threads(lambda _: threading.get_ident(), range(2), 1) == [main, main]


@pytest.mark.parametrize("x64", [False, True])
def test_a_thread_has_the_settings_of_the_caller(x64):
    def seen(number):
        array = jnp.asarray(np.arange(2.0))
        return threading.get_ident(), array.dtype, np.geterr()["divide"], CALLER.get()

    CALLER.set("this test")
    with jax.enable_x64(x64), np.errstate(divide="raise"):
        threads, *others = zip(*map_in_threads(seen, range(2), 2), strict=True)
    assert threading.get_ident() not in threads
    expected = (np.dtype("float64" if x64 else "float32"), "raise", "this test")
    assert list(zip(*others, strict=True)) == [expected] * 2


def test_values_that_the_caller_made_errors_are_errors():
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        map_in_threads(lambda x: jnp.log(x), [jnp.float32(-1), jnp.float32(1)], 2)


def test_after_an_error_no_other_call_begins():
    begun, failed = [], threading.Event()

    def fail(number):
        begun.append(number)
        if number == 1:
            failed.set()
            raise ValueError("of the second call")
        failed.wait(timeout=60)
        time.sleep(0.5)

    with pytest.raises(ValueError, match="of the second call"):
        map_in_threads(fail, range(50), 2)
    assert len(begun) <= 3  # a thread may take another call before the caller knows of the error


@pytest.fixture
def interruptible():
    """Let an interrupt raise its error; processes in the background may ignore it."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def test_an_interrupt_ends_the_calls(interruptible):
    begun = []

    def interrupt(number):
        begun.append(number)
        if number == 0:
            _thread.interrupt_main()
        time.sleep(0.5)

    with pytest.raises(KeyboardInterrupt):
        map_in_threads(interrupt, range(50), 2)
    assert len(begun) <= 3


def test_threads_that_need_a_program_at_once_compile_it_once():
    @compiled
    def slow_to_compile(x):
        for _ in range(20):
            x = jnp.cumsum(jnp.sort(jnp.sin(x)))
        return x

    for x in (jnp.ones(7, jnp.float64), jnp.ones(7, jnp.float32)):
        with count_compilations() as counts:
            results = map_in_threads(slow_to_compile, [x] * 3, 3)
        assert counts.programs == 1
        np.testing.assert_array_equal(results[0], results[2])
