"""Checks that this process can use JAX: a correct compiler, and no fork after JAX's start.

Every function that fits or predicts calls `check_runtime` first, on the host.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.version import __version__ as JAXLIB
from jaxtyping import Array, Float

# With these versions the programs of `canary` are right on CPUs; with 0.10.2 both are wrong.
KNOWN_RIGHT = frozenset({"0.10.0", "0.10.1", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.12.0.1"})


class UnusableJaxError(RuntimeError):
    """JAX in this process would give wrong results, or wait for ever."""


_seen_right = JAXLIB in KNOWN_RIGHT
_started_in: int | None = None  # process in which JAX was first used, if known


def _note_compilation(event: str, duration_secs: float, **kwargs: str | int) -> None:
    global _started_in
    if _started_in is None and event == "/jax/core/compile/backend_compile_duration":
        _started_in = os.getpid()


# The caller's computations, such as making a random key, start JAX as well.
jax.monitoring.register_event_duration_secs_listener(_note_compilation)


def jax_started() -> bool:
    """Return whether JAX has compiled a program, or this package has made an array."""
    return _started_in is not None


def check_fork() -> None:
    """Raise UnusableJaxError in a process that was forked after JAX had started.

    In such a process making an array may never end. A start of JAX before the import of this module
    is not known.
    """
    if _started_in not in (None, os.getpid()):
        raise UnusableJaxError(
            "this process was forked after JAX had started, and JAX's threads are not in it: it "
            "would wait for them for ever. Start processes by 'spawn' or 'forkserver' "
            "(multiprocessing.get_context), or by joblib's loky, or fork before JAX is used at all"
        )


def starting() -> None:
    """Call `check_fork`, and record that JAX starts in this process now."""
    global _started_in
    check_fork()
    _started_in = os.getpid()


def check_runtime() -> None:
    """Raise UnusableJaxError in a process forked after JAX had started, or if jaxlib miscompiles.

    The result for jaxlib is cached.
    """
    global _seen_right
    check_fork()
    if _seen_right:
        return
    for name, computed, expected in canary() if _cpus() else ():
        # In sums of positive numbers float32 errs by about 1e-6, miscompilation by 1e-3 or more.
        if not np.allclose(computed, expected, rtol=1e-4):
            raise UnusableJaxError(
                f"jaxlib {JAXLIB} miscompiles on this CPU: {name} is wrong by "
                f"{np.max(np.abs(computed - expected)):.2g}, and so may be every result. Install "
                "another version of it, such as pip install 'jax!=0.10.2' 'jaxlib!=0.10.2'; "
                f"known to be right are {', '.join(sorted(KNOWN_RIGHT))}"
            )
    _seen_right = True


def canary() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name, JAX's result and NumPy's result of programs that jaxlib 0.10.2 miscompiles.

    The second program is from jax-ml/jax issue 39103. Both are wrong in float32 at any precision.
    Both are right with fewer rows, and the first is right if its constants are arguments.
    """
    n, m, d = 1024, 100, 8
    X = np.random.default_rng(0).standard_normal((n, d)).astype(np.float32)
    Z, lengthscales = X[:m], np.linspace(0.5, 1.5, d, dtype=np.float32)

    def norms(lengthscales: Float[Array, " d"]) -> Float[Array, "n m"]:
        a = jnp.sum(jnp.square(X / lengthscales[None]), axis=1)
        b = jnp.sum(jnp.square(Z / lengthscales[None]), axis=1)
        return a[:, None] + b[None]

    a, b = (np.sum(np.square(points / lengthscales), axis=1) for points in (X, Z))
    yield "a sum of squared norms", _run(norms, lengthscales), a[:, None] + b[None]

    rows = np.zeros((2**15 + 1, 3), np.float32)
    rows[:, 0] = np.linspace(1, 2, len(rows))

    def squares(M: Float[Array, "3 3"], rows: Float[Array, "r 3"]) -> Float[Array, " r"]:
        return jax.vmap(lambda row: jnp.sum(jnp.square(jnp.matmul(M, row))))(rows)

    eye = np.eye(3, dtype=np.float32)
    yield "a sum of products along rows", _run(squares, eye, rows), np.sum(np.square(rows), axis=1)


def platform_of(device: Any = None) -> str:
    """Return the platform of a device: "cpu", "gpu" or "tpu"; by default of the default device."""
    if device is None:
        # A platform, a device, or None.
        device = jax.config.jax_default_device  # type: ignore[attr-defined]
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform


def on_cpu(*devices: Any) -> bool:
    """Return whether the devices are CPUs; without arguments, whether the default device is one.

    Every branch between CPUs and accelerators calls this function while its program is traced. So
    a test runs the branches of accelerators on a CPU by replacing `platform_of`.
    """
    return all(platform_of(device) == "cpu" for device in devices or (None,))


def usable_cores() -> int:
    """Return the number of cores that this process, and processes that it starts, may use."""
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run(function: Callable[..., Array], *arguments: np.ndarray) -> np.ndarray:
    # Compile ahead of time, because a call could be traced into the caller's program.
    with jax.disable_jit(False), jax.default_device(_cpus()[0]):
        return np.asarray(jax.jit(function).lower(*arguments).compile()(*arguments))


def _cpus() -> list[Any]:
    try:
        return jax.local_devices(backend="cpu")
    except RuntimeError:  # JAX is configured for other devices only
        return []
