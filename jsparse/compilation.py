"""Compilation ahead of time, and on the disk: what the first fit would wait for."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from ._arguments import whole_number
from ._runtime import check_runtime
from .machines.method import Task
from .training.train import train

_COMPILED = "/jax/core/compile/backend_compile_duration"
_HIT = "/jax/compilation_cache/cache_hits"


class Compiled:
    """What was compiled, counted while `counted` is open.

    Attributes:
        programs: how many, those read from the disk included.
        seconds: how long that took.
        from_disk: how many of them came from the disk.
    """

    def __init__(self) -> None:
        self.programs, self.seconds, self.from_disk = 0, 0.0, 0

    def __repr__(self) -> str:
        return (
            f"Compiled(programs={self.programs}, seconds={self.seconds:.3g}, "
            f"from_disk={self.from_disk})"
        )


@contextmanager
def counted(out: Any = None) -> Iterator[Compiled]:
    """Count the programs that are compiled meanwhile, and with a text file `out` show them."""
    found = Compiled()

    def compiled(event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED:
            found.programs += 1
            found.seconds += duration_secs
            if out is not None:
                what = f"{found.programs} programs, {found.seconds:.1f} s"
                out.write(f"\rjsparse: compiling: {what}")
                out.flush()

    def read(event: str, **_: str | int) -> None:
        found.from_disk += event == _HIT

    jax.monitoring.register_event_duration_secs_listener(compiled)
    jax.monitoring.register_event_listener(read)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(compiled)
        jax.monitoring.unregister_event_listener(read)
        if out is not None and found.programs:
            out.write("\n")


def enable_compilation_cache(folder: str | os.PathLike[str] | None = None) -> str | None:
    """Keep compiled programs on the disk, for the next process; JAX does not by itself.

    Sets JAX's own configuration: its folder, unless the caller has set one, and its thresholds,
    which by default leave out programs that compile in less than a second, as most here do. To be
    called before anything is compiled.

    Args:
        folder: where; by default that of JAX's configuration or environment if there is one, else
            `jsparse/xla` in the user's folder of caches.

    Returns:
        The folder; None where there is none, as no home is known.
    """
    set_before = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if folder is not None:
        chosen: str | None = os.fspath(folder)
    elif set_before is not None or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        chosen = set_before
    else:
        # "~" stays where no home is known, such as that of a container's nameless user.
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        chosen = None if base.startswith("~") else os.path.join(base, "jsparse", "xla")
    if chosen is not None:
        jax.config.update("jax_compilation_cache_dir", chosen)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return chosen


def warm_up(
    n: int,
    d: int,
    *,
    task: Task,
    classes: int = 2,
    dtype: str | None = None,
    verbose: bool = True,
    **options: Any,
) -> Compiled:
    """Compile what `train` needs for a table of about `n` rows, by a run on random rows.

    Tables of like size share programs: rows are padded to a few capacities, by 6 % at most. What
    is compiled is what a run with the same `options` needs and cannot be known without one; a later
    run in this process compiles nothing, and with `enable_compilation_cache` one in another process
    reads it from the disk.

    Args:
        n: rows.
        d: columns.
        task: "classification" or "regression".
        classes: how many.
        dtype: of the inputs, "float32" or "float64"; by default what JAX's configuration takes.
        verbose: show on stderr what is compiled.
        **options: as of `train`, the same as later: method, folds, C, search, ...

    Returns:
        How many programs were compiled, and in how long.

    Raises:
        ValueError: for anything that `train` would not take.
    """
    n, d = whole_number("n", n, 2), whole_number("d", d, 1)
    classes = whole_number("classes", classes, 2, n, "the number of rows")
    check_runtime()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)).astype(dtype or jax.dtypes.canonicalize_dtype(float))
    y = np.arange(n) % classes if task == "classification" else X @ rng.standard_normal(d)
    if task == "classification":
        X[:, 0] += y
    start = time.perf_counter()
    with counted(sys.stderr if verbose else None) as found:
        trained = train(X, y, task=task, **{"key": 0, **options})
        trained.predict(X)
    if verbose:
        seconds = time.perf_counter() - start
        print(f"jsparse: ready for about {n} rows, {seconds:.1f} s", file=sys.stderr)
    return found
