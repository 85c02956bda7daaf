"""The number of threads that LAPACK uses on a CPU.

JAX calls the LAPACK of SciPy. OpenBLAS shares even a small system among several threads, which wait
actively for the next one and keep the processor from JAX's own threads: on two cores, relevance
vector machines took 1.6 times as long as with one thread. While another process used one of the
two cores, the choice of a kernel's family took nine times as long as with one thread, and a search
in the dual with 379 rows eight times.
"""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ._runtime import on_cpu

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

# Systems with at least this many unknowns keep LAPACK's threads. With 3,072 unknowns, training took
# as long with one thread as with two on two cores; with more cores it would take longer.
LARGE_SYSTEM = 1024

_limited = threading.Lock()  # held by the context that limits the threads of this process


@contextmanager
def one_lapack_thread(largest_system: int) -> Iterator[None]:
    """Limit LAPACK and BLAS to one thread within the context, on a CPU and for small systems.

    The limit holds for all threads of the process until the context ends. Of concurrent contexts
    only the first sets and ends a limit: two of them could restore each other's limit.

    Args:
        largest_system: number of unknowns of the largest system of equations. From `LARGE_SYSTEM`
            on, LAPACK keeps its threads.
    """
    if largest_system >= LARGE_SYSTEM or not on_cpu() or not _limited.acquire(blocking=False):
        yield
        return
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        _limited.release()


@functools.cache
def _controller() -> "ThreadpoolController":
    """Return the controller of the loaded libraries, among them the LAPACK that JAX calls.

    Finding the libraries takes 2 ms, a limit 0.02 ms.
    """
    import scipy.linalg.cython_lapack  # noqa: F401  # loads the library that JAX calls
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
