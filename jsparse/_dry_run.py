"""Compilation ahead of time: a dry run in a second thread compiles the programs of a run.

A run alternates between compiled programs and Python code that reads their results. The shapes of
the results are known before the programs have run. A dry run executes the same Python code on
placeholders of these shapes. So it learns early which programs the run will need, and has them
compiled while the run computes.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from ._runtime import usable_cores

WAITED = "/jsparse/seconds_waited_for_compilation"  # event of `jax.monitoring`
# One compilation keeps about two cores busy. So with two cores, the program that the run waits for
# does not share them with later programs.
_CORES_OF_COMPILATION = 2
# A run whose first programs were compiled before usually needs no new ones. The very first program
# may not depend on the number of rows, and so tells nothing.
_KNOWN_AT_FIRST = 3
_FINISHED: Future[None] = Future()
_FINISHED.set_result(None)

Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Calls a jitted function with positional and named arguments."""

_CALL: ContextVar[Call | None] = ContextVar("_CALL", default=None)
# Signatures for which a run has waited until they were compiled, by jitted function.
_COMPILED: WeakKeyDictionary[Any, set[Hashable]] = WeakKeyDictionary()


def call(jitted: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a jitted function; in a dry run, have it compiled and return placeholders."""
    special = _CALL.get()
    if special is None:
        return jitted(*arguments, **named)
    return special(jitted, arguments, named)


@contextlib.contextmanager
def dry_run(computation: Callable[[], Any]) -> Iterator[None]:
    """Compile the programs of a computation in other threads, while the block computes.

    The dry run ends with the block, at its first error, or if its first programs were compiled
    before. It cannot change a result. Programs that it did not foresee are compiled by the block.

    Args:
        computation: calls `compiled` functions with the shapes and dtypes of the block. It must not
            have side effects, and must end if all real results are 1 and all integers 0.
    """
    settings = jax.config.values  # type: ignore[attr-defined]
    if usable_cores() == 1 or settings["jax_disable_jit"] or _CALL.get() is not None:
        yield
        return
    programs = _Programs()
    x64, device = settings["jax_enable_x64"], settings["jax_default_device"]

    def run_dry() -> None:
        # A thread does not inherit JAX's settings. It would compile other programs with others.
        with jax.enable_x64(x64), jax.default_device(device), np.errstate(all="ignore"):
            if jax.config.values != settings:  # type: ignore[attr-defined]
                return
            _CALL.set(programs.compile_only)
            # The block reports its own errors, and an error on placeholders means nothing.
            with contextlib.suppress(Exception):
                computation()

    threading.Thread(target=run_dry, name="jsparse-dry-run").start()
    token = _CALL.set(programs.run)
    try:
        yield
    finally:
        _CALL.reset(token)
        programs.close()


class _NotNeeded(Exception):
    """Ends the dry run."""


class _Lowered(NamedTuple):
    """A program that has been traced and lowered."""

    shapes: Any  # of the results, see `jax.stages.Lowered.out_info`
    compilation: Future[Any]  # finished if the run itself compiles the program


class _Programs:
    """The programs of a run by function and signature, which the run and its dry run share."""

    def __init__(self) -> None:
        self._lowered: dict[Hashable, Future[_Lowered]] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(
            usable_cores() // _CORES_OF_COMPILATION, thread_name_prefix="jsparse-compile"
        )
        self._known_at_first = 0  # number of calls before the first new program
        self._needed = True  # whether the dry run is still needed

    def close(self) -> None:
        """End the dry run. A compilation that has begun goes on, and its program is kept."""
        self._needed = False
        self._threads.shutdown(wait=False, cancel_futures=True)

    def run(self, jitted: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call a jitted function. If the dry run compiles it, wait for that first."""
        signature = _signature(arguments, named)
        if self._needed and signature not in _COMPILED.setdefault(jitted, set()):
            begin = time.perf_counter()
            program, is_new = self._entry(jitted, signature)
            if is_new:
                self._lower(program, jitted, arguments, named, lambda _: _FINISHED)
            else:
                wait([program])
                # If its compilation has not begun, it would wait for the programs before it.
                if program.exception() is None and not program.result().compilation.cancel():
                    wait([program.result().compilation])
                jax.monitoring.record_event_duration_secs(WAITED, time.perf_counter() - begin)
            _COMPILED[jitted].add(signature)
        return jitted(*arguments, **named)

    def compile_only(self, jitted: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Have a jitted function compiled, and return placeholders for its results."""
        signature = _signature(arguments, named)
        if not self._lowered and signature in _COMPILED.get(jitted, ()):
            self._known_at_first += 1
            self._needed = self._known_at_first < _KNOWN_AT_FIRST
        if not self._needed:
            raise _NotNeeded
        program, is_new = self._entry(jitted, signature)
        if is_new:
            self._lower(program, jitted, arguments, named, self._in_a_thread)
        return jax.device_put(jax.tree.map(_placeholder, program.result().shapes))

    def _entry(self, jitted: Any, signature: Hashable) -> tuple[Future[_Lowered], bool]:
        """Return the future of a program, and whether it is new, so that the caller lowers it."""
        new: Future[_Lowered] = Future()
        with self._lock:
            program = self._lowered.setdefault((jitted, signature), new)
        return program, program is new

    def _lower(
        self,
        program: Future[_Lowered],
        jitted: Any,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        compilation: Callable[[Any], Future[Any]],
    ) -> None:
        """Trace and lower a jitted function, and set the result of `program`."""
        try:
            lowered = jitted.lower(*arguments, **named)
            program.set_result(_Lowered(lowered.out_info, compilation(lowered)))
        except Exception as error:  # the call that follows raises it in the caller's thread
            program.set_exception(error)

    def _in_a_thread(self, lowered: Any) -> Future[Any]:
        return self._threads.submit(lowered.compile)


def _placeholder(result: Any) -> np.ndarray | jax.Array:
    """Return an array of the shape and dtype of a result: ones if it is real, as a weight is."""
    if jnp.issubdtype(result.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, result)
        return jax.random.wrap_key_data(jax.device_put(np.zeros(data.shape, data.dtype)))
    fill = 1 if jnp.issubdtype(result.dtype, jnp.floating) else 0
    return np.full(result.shape, fill, result.dtype)


def _signature(arguments: tuple[Any, ...], named: dict[str, Any]) -> Hashable:
    """Return a key of the program for these arguments: their structure, shapes and dtypes."""
    leaves, structure = jax.tree.flatten((arguments, named))
    return structure, tuple(
        (leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array | np.ndarray | np.generic) else leaf
        for leaf in leaves
    )
