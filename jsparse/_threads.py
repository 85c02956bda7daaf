"""Calls of compiled functions in several threads of the host."""

import contextvars
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any, TypeVar

import jax

S = TypeVar("S")
T = TypeVar("T")

# A caller may set these for one thread, by context managers of JAX with the same names. They decide
# dtypes, devices, values, what is an error and what is logged. Others, such as meshes and transfer
# guards, do not reach the threads.
_SETTINGS = (
    "enable_x64", "default_device", "default_matmul_precision", "default_prng_impl",
    "threefry_partitionable", "numpy_dtype_promotion", "numpy_rank_promotion", "debug_nans",
    "debug_infs", "disable_jit", "check_tracer_leaks", "log_compiles",
)  # fmt: skip


def map_in_threads(function: Callable[[S], T], items: Iterable[S], threads: int) -> list[T]:
    """Return `[function(item) for item in items]`, computed in at most `threads` threads.

    JAX on a CPU runs the programs that one thread calls one after another, and a program of many
    small operations leaves most cores idle. Programs of several threads run at the same time. They
    must call LAPACK for one matrix at a time, see `_numerics.unbatched_lapack`.

    Every thread has the caller's context variables and settings of JAX. If a call raises an error,
    or the caller is interrupted, then calls that have begun are awaited, and all others are left
    out.
    """
    items = list(items)
    if min(threads, len(items)) <= 1:
        return [function(item) for item in items]
    settings = {name: getattr(jax.config, f"jax_{name}") for name in _SETTINGS}

    def call(item: S) -> T:
        with ExitStack() as stack:
            for name, value in settings.items():
                stack.enter_context(getattr(jax, name)(value))
            return function(item)

    pool = ThreadPoolExecutor(min(threads, len(items)))
    try:
        # Two threads cannot be in one context at the same time, so each call has a copy.
        futures: list[Future[Any]] = [
            pool.submit(contextvars.copy_context().run, call, item) for item in items
        ]
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()  # raises the error of a call
        return [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)
