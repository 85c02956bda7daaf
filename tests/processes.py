"""Processes that tests start together, for example the processes of a mesh."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_together(commands, folder, seconds, *, stop_at_failure=False, **settings):
    """Run Python commands at the same time, and kill what still runs after `seconds`.

    Args:
        commands: arguments of the interpreter, for each process.
        folder: where the output of each process is written.
        seconds: the time limit.
        stop_at_failure: kill all processes when one fails.
        **settings: environment variables.

    Returns:
        Exit codes, what each process prints, and the seconds from the first end to the last.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment = {
        **kept,
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # little to compute, much to compile
        "XDG_CACHE_HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        **settings,
    }
    logs = [folder / f"log{i}" for i in range(len(commands))]
    running, codes, end, first = [], [None], time.monotonic() + seconds, None
    try:
        for command, log in zip(commands, logs, strict=True):
            command = [sys.executable, *map(str, command)]
            with log.open("w") as out:
                process = subprocess.Popen(
                    command, env=environment, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT
                )
            running.append(process)
        while None in codes and time.monotonic() < end and not (stop_at_failure and any(codes)):
            time.sleep(0.05)
            codes = [process.poll() for process in running]
            if first is None and set(codes) != {None}:
                first = time.monotonic()
    finally:
        for process in running:
            process.kill()
            process.wait()
    took = 0.0 if first is None else time.monotonic() - first
    return [process.returncode for process in running], [log.read_text() for log in logs], took
