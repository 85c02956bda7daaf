"""Compilation ahead of time, and a compilation cache on the disk."""

import os
import platform
import sys
import time
from typing import Any

import jax
import numpy as np

from ._arguments import whole_number
from ._compilations import Compiled as Compiled
from ._compilations import count_compilations as count_compilations
from ._runtime import JAXLIB, check_runtime, jax_started
from .machines.method import Task
from .training.train import train


def enable_compilation_cache(folder: str | os.PathLike[str] | None = None) -> str | None:
    """Keep compiled programs on the disk for later processes.

    It sets JAX's configuration: the folder, unless the caller has set one, and the thresholds. By
    default JAX omits programs that compile in less than a second, as most programs here do. With
    jaxlib 0.10 it also adds `--xla_cpu_max_isa=AVX2` to the environment variable XLA_FLAGS, unless
    the variable sets this option. Without it, XLA prints kilobytes about a false mismatch of
    machines for each AVX-512 program read from the disk. Programs for AVX2 are as fast.

    Call it before JAX is first used, because XLA reads its flags only once.

    Args:
        folder: the folder; by default JAX's configured folder or, if there is none, `jsparse/xla`
            in the user's cache folder.

    Returns:
        The folder; None if no home folder is known.
    """
    configured = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if folder is not None:
        path: str | None = os.fspath(folder)
    elif configured is not None or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        path = configured
    else:
        # Without a known home, as for a container's nameless user, "~" is not expanded.
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        path = None if base.startswith("~") else os.path.join(base, "jsparse", "xla")
    if path is not None:
        jax.config.update("jax_compilation_cache_dir", path)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    _limit_instructions()
    return path


def _limit_instructions() -> None:
    """Let XLA compile for AVX2 at most, if its loader mistakes AVX-512 programs for foreign ones.

    For AVX-512 XLA adds `prefer-no-gather` and `prefer-no-scatter` to a program's features. No
    processor lists these preferences, but the loader of jaxlib 0.10 expects them (openxla/xla issue
    44565; 0.11 skips them). A true mismatch is still printed.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    affected = JAXLIB.startswith("0.10.") and platform.machine().lower() in ("x86_64", "amd64")
    # After the start of JAX the flag would change only the names of the files.
    if affected and "xla_cpu_max_isa" not in flags and not jax_started():
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_max_isa=AVX2".lstrip()


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
    """Compile the programs of `train` for a table of about `n` rows, by a run on random rows.

    Tables of similar size share programs: rows are padded to a few capacities, by at most 6 %. A
    later run with the same `options` in this process compiles nothing. With
    `enable_compilation_cache`, a run in another process reads the programs from the disk. If
    `train` chooses the kernel by the rows, as it does without `method`, it may compile further
    programs.

    Args:
        n: number of rows.
        d: number of columns.
        task: "classification" or "regression".
        classes: number of classes.
        dtype: dtype of the inputs, "float32" or "float64"; by default JAX's default float.
        verbose: whether to show the number of compiled programs on stderr.
        **options: the options of the later call of `train`: method, folds, C, search, ...

    Returns:
        `Compiled`: the number of programs, how many were read from the disk, and the compile time.

    Raises:
        ValueError: for arguments that `train` would not accept.
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
    with count_compilations(sys.stderr if verbose else None) as counts:
        trained = train(X, y, task=task, **{"key": 0, **options})
        trained.model.warm_up()
    if verbose:
        seconds = time.perf_counter() - start
        print(f"jsparse: ready for about {n} rows, {seconds:.1f} s", file=sys.stderr)
    return counts
