"""Compiled programs: how they are compiled, and how many of them a process keeps.

Each compiled program takes memory maps of its process, 3 to 250 on a CPU. Linux grants a process
65,530 maps; if a program needs more, a segmentation fault in LLVM ends the process. A process that
trains on tables of ever new shapes reaches this limit after about 60 tables. This package therefore
drops its least recently used programs long before.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxlib.version import __version__ as JAXLIB

from ._numerics import is_traced
from ._runtime import on_cpu

# With these options jaxlib 0.10 compiles for CPUs a fifth to a quarter faster, but programs run up
# to a quarter slower. Up to `_SHORT_ROWS` rows, ten fits lose about as much time as the first fit
# gains. Later versions have no such option.
_SHORT_OPTIONS: dict[str, Any] = (
    {"xla_cpu_use_fusion_emitters": False} if JAXLIB.startswith("0.10.") else {}
)
_SHORT_ROWS = 4096
# For loops of many small operations: with jaxlib 0.10 a descent runs in 0.6 of the time that it
# takes with `_SHORT_OPTIONS`, and optimising beyond level 1 gains nothing.
_LOOP_OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 1}
# Compilation in one part halves the memory maps, and is as fast for small programs.
_QUICK_OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
}

# JAX reports this event when a program has been lowered and is about to be compiled.
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
# Number of maps that a program may take: four times the maps of this package's largest program.
_LARGEST_PROGRAM = 1000


def bytes_of_programs(rows: int) -> int:
    """Return the bytes of host memory for the compiler and all programs of a training run.

    Measured on a CPU: with jaxlib 0.10 about 135 MB up to `_SHORT_ROWS` rows, and 250 to 400 MB
    above, because the compiler's other code generator is loaded; with jaxlib 0.12 about 240 MB.
    """
    if not _SHORT_OPTIONS:
        return 7 * 2**25
    return 2**27 if rows <= _SHORT_ROWS else 5 * 2**26


class TooManyProgramsError(RuntimeError):
    """The process holds nearly all memory maps that Linux grants; compiling could crash it."""


class Programs:
    """A store of jitted functions that drops the least recently used.

    The key of each has its function, and the shapes, dtypes and static values of its arguments.

    Args:
        limit: number of memory maps that this process may have; None without a limit.
        largest_program: number of memory maps that one compilation may add.
    """

    def __init__(self, limit: int | None, largest_program: int = _LARGEST_PROGRAM) -> None:
        self.limit = limit
        self.largest_program = largest_program
        # Programs are dropped from half of the limit, or somewhat more, down to a third of it.
        # Between two drops lie hundreds of programs.
        self._drop_above = (limit or 0) // 2
        self._drop_to = (limit or 0) // 3
        self._jitted: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.RLock()
        self._compilations_before_counting = 0

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the jitted function of `key`, or `make()` if absent, and mark it as last used."""
        with self._lock:
            if key not in self._jitted:
                self._jitted[key] = make()
            self._jitted.move_to_end(key)
            return self._jitted[key]

    def drop(self, keys: list[Hashable]) -> None:
        """Drop the programs of these keys; their next use compiles them again."""
        with self._lock:
            dropped = [self._jitted.pop(key) for key in keys if key in self._jitted]
        for jitted in dropped:
            jitted.clear_cache()

    def drop_function(self, function: Callable[..., Any]) -> None:
        """Drop every program compiled for `function`."""
        with self._lock:
            keys = [key for key in self._jitted if key[0] is function]  # type: ignore[index]
        self.drop(keys)

    def make_room(self) -> None:
        """Drop the least recently used programs if the process nears its limit of memory maps.

        Counting takes 0.2 to 25 ms, so it is skipped while the process cannot have reached four
        fifths of the limit. Most programs are far smaller than the largest, so usually half of the
        limit is noticed soon after it is reached.

        Raises:
            TooManyProgramsError: if hardly any map is free and this package holds no program.
        """
        if self.limit is None:
            return
        with self._lock:
            self._compilations_before_counting -= 1
            if self._compilations_before_counting > 0:
                return
        maps = count_memory_maps()
        if maps > self._drop_above:
            maps = self._drop_oldest()
            # If other programs hold most maps, each compilation would drop all of ours.
            self._drop_above = max(self.limit // 2, maps + self.limit // 20)
        if maps > self.limit - self.largest_program:
            raise TooManyProgramsError(
                f"this process holds {maps} of the {self.limit} memory maps that Linux grants it, "
                "nearly all of them for programs compiled outside of jsparse; one more program "
                "could crash it. Call jax.clear_caches(), which drops all compiled programs, or "
                "have more memory maps granted (sysctl vm.max_map_count)"
            )
        room = 4 * self.limit // 5 - maps
        self._compilations_before_counting = room // self.largest_program

    def _drop_oldest(self) -> int:
        """Drop the least recently used programs; return the number of memory maps still in use."""
        while (maps := count_memory_maps()) > self._drop_to and self._jitted:
            with self._lock:
                oldest = list(self._jitted)[: 1 + len(self._jitted) // 8]
            self.drop(oldest)
        return maps


def count_memory_maps() -> int:
    """Return the number of memory maps of this process; 0 if the system does not state it."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def _memory_map_limit() -> int | None:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):  # no Linux, or a Linux that hides the limit
        return None


PROGRAMS = Programs(_memory_map_limit())


def _before_compilation(event: str, duration_secs: float, **_: str | int) -> None:
    if event == _LOWERED:
        PROGRAMS.make_room()


# The caller's programs take maps as well, so every compilation of the process counts.
jax.monitoring.register_event_duration_secs_listener(_before_compilation)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str | int) else tuple(value)


class _Program:
    """A jitted function whose first call is finished before a second thread may call it.

    JAX would compile a program once for every thread that calls it before it has been compiled.
    """

    def __init__(self, jitted: Any) -> None:
        self.jitted, self.lower, self.clear_cache = jitted, jitted.lower, jitted.clear_cache
        self._first, self._called = threading.RLock(), False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._called:
            return self.jitted(*arguments, **named)
        with self._first:
            result = self.jitted(*arguments, **named)
            self._called = True
            return result


def compiled(
    function: Callable[..., Any], *, quickly: bool = False, loop: bool = False, **options: Any
) -> Callable[..., Any]:
    """Return `jax.jit(function)`, with options that minimise compile plus run time on a CPU.

    The number of rows predicts how long the program runs, and so decides the options. If another
    program is being traced, the function becomes a part of that program. Programs that were not
    used for long may be dropped (`Programs`), and are compiled again when needed.

    Args:
        function: a pure function.
        quickly: compile without optimisation, which takes less time. Use it for short programs
            that run once in a fit, and for programs that spend nearly all their time in LAPACK.
        loop: compile for a loop of many small operations that takes most of the time of a fit. The
            number of rows then has no effect. Not together with `quickly`.
        **options: options of `jax.jit`.
    """
    assert not (quickly and loop)
    plain = jax.jit(function, **options)
    static_names = _as_tuple(options.get("static_argnames", ()))
    static_places = _as_tuple(options.get("static_argnums", ()))

    def jit_for(longest: int) -> Any:
        """Return a new jitted function, compiled for arrays of at most `longest` rows."""
        compiler_options = _QUICK_OPTIONS if quickly else _LOOP_OPTIONS if loop else {}
        if longest <= _SHORT_ROWS and not loop:
            compiler_options = compiler_options | _SHORT_OPTIONS
        if not on_cpu():
            compiler_options = {}

        # JAX keeps programs by function object, so each droppable program needs a new object.
        @functools.wraps(function)
        def copy(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

        return _Program(jax.jit(copy, compiler_options=compiler_options or None, **options))

    def jitted_for(*arguments: Any, **named: Any) -> Any:
        leaves, structure = jax.tree.flatten((arguments, named))
        # Python's, NumPy's and JAX's numbers share programs.
        arrays = (leaf for leaf in leaves if isinstance(leaf, jax.Array | np.ndarray))
        shapes = tuple((array.shape, array.dtype) for array in arrays if array.ndim > 0)
        longest = max((max(shape) for shape, _ in shapes), default=0)
        static = tuple(named.get(name) for name in static_names)
        static += tuple(arguments[place] for place in static_places if place < len(arguments))
        key = (call, structure, shapes, static, on_cpu())
        return PROGRAMS.get(key, functools.partial(jit_for, longest))

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        # JAX takes compiler options for whole programs only.
        jitted = plain if is_traced(arguments, named) else jitted_for(*arguments, **named)
        return jitted(*arguments, **named)

    def program(*arguments: Any, **named: Any) -> jax.stages.Compiled:
        """Return the compiled program for these arguments; call it with the arrays among them."""
        return jitted_for(*arguments, **named).lower(*arguments, **named).compile()

    def clear_cache() -> None:
        plain.clear_cache()  # type: ignore[attr-defined]
        PROGRAMS.drop_function(call)

    call.clear_cache = clear_cache  # type: ignore[attr-defined]
    call.lower = plain.lower  # type: ignore[attr-defined]
    call.program = program  # type: ignore[attr-defined]
    return call
