"""Counts of the programs that JAX compiles, and their compile time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_HIT = "/jax/compilation_cache/cache_hits"


class Compiled:
    """The programs compiled while `count_compilations` was open.

    Attributes:
        programs: number of programs, including those read from the disk.
        seconds: compile time in seconds.
        from_disk: number of programs read from the disk.
    """

    def __init__(self) -> None:
        self.programs, self.seconds, self.from_disk = 0, 0.0, 0

    def __repr__(self) -> str:
        return (
            f"Compiled(programs={self.programs}, seconds={self.seconds:.3g}, "
            f"from_disk={self.from_disk})"
        )


@contextmanager
def count_compilations(out: Any = None) -> Iterator[Compiled]:
    """Count the programs compiled within the block; write progress to the file `out`, if any."""
    counts = Compiled()

    def compiled(event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED:
            counts.programs += 1
            counts.seconds += duration_secs
            if out is not None:
                progress = f"{counts.programs} programs, {counts.seconds:.1f} s"
                out.write(f"\rjsparse: compiling: {progress}")
                out.flush()

    def read(event: str, **_: str | int) -> None:
        counts.from_disk += event == _HIT

    jax.monitoring.register_event_duration_secs_listener(compiled)
    jax.monitoring.register_event_listener(read)
    try:
        yield counts
    finally:
        jax.monitoring.unregister_event_duration_listener(compiled)
        jax.monitoring.unregister_event_listener(read)
        if out is not None and counts.programs:
            out.write("\n")
