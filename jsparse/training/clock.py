"""Wall time of each phase of a run, and of compilation."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax

_COMPILE_EVENTS = (
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


@contextmanager
def clock(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add the wall time of the block to `seconds[phase]`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start


@contextmanager
def compile_clock(seconds: dict[str, float]) -> Iterator[None]:
    """Store the time that JAX spends on lowering and compiling in `seconds["compile"]`.

    The time of tracing is not included, because nested traces would count twice.
    """

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event in _COMPILE_EVENTS:
            seconds["compile"] = seconds.get("compile", 0.0) + duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    seconds["compile"] = 0.0
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
