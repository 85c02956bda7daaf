"""The number of threads that LAPACK uses on a CPU.

JAX calls the LAPACK of SciPy. OpenBLAS shares even a small system among several threads, which wait
actively for the next one and keep the processor from JAX's own threads: on two cores, relevance
vector machines took 1.6 times as long as with one thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ._runtime import on_cpu

# With at least this many unknowns, factorising a system in several threads may be faster.
LARGE_SYSTEM = 1024


@contextmanager
def one_lapack_thread(wanted: bool) -> Iterator[None]:
    """Limit LAPACK and BLAS to one thread within the context, if `wanted` and JAX runs on a CPU.

    The limit is the process's, so other threads have it too. It ends with the context.
    """
    if not wanted or not on_cpu():
        yield
        return
    import scipy.linalg.cython_lapack  # noqa: F401  # loads the library that JAX calls
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield
