"""Rows that no process holds whole: several processes over loopback, against one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsparse.data.streams import ArrayStream, ReplayableStream, Shards, StreamError

HERE = Path(__file__).parent


def run(tmp_path, count, *what, seconds=400):
    """Run the script in several processes; return exit codes, what each said, and seconds.

    The time runs from the first end to the last.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment = {
        **kept,
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # little to compute, much to compile
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": str(HERE.parents[1]),
    }
    command = [sys.executable, HERE / "on_shards.py", port]
    logs = [tmp_path / f"log{rank}" for rank in range(count)]
    running = []
    try:
        for rank, log in enumerate(logs):
            with log.open("w") as out:
                arguments = [*map(str, [*command, rank, count, *what])]
                running.append(
                    subprocess.Popen(
                        arguments, env=environment, stdout=out, stderr=subprocess.STDOUT
                    )
                )
        end, first = time.monotonic() + seconds, None
        while any(process.poll() is None for process in running) and time.monotonic() < end:
            time.sleep(0.05)
            if first is None and any(process.poll() is not None for process in running):
                first = time.monotonic()
    finally:
        for process in running:
            process.kill()
            process.wait()
    took = 0.0 if first is None else time.monotonic() - first
    return [process.returncode for process in running], [log.read_text() for log in logs], took


def succeeds(*arguments):
    codes, said, _ = run(*arguments)
    assert not any(codes), "\n".join([f"exit codes {codes}", *said])


def test_two_processes_are_one(tmp_path):
    succeeds(tmp_path, 2, "fast")


@pytest.mark.slow
def test_two_processes_are_one_with_every_method(tmp_path):
    succeeds(tmp_path, 2, "slow")


@pytest.mark.slow
def test_four_processes_are_one(tmp_path):
    succeeds(tmp_path, 4, "fast")


def resumes(tmp_path, moments):
    """One of two processes is killed at the moments, one after another; the result is the same."""
    broken, unbroken = tmp_path / "broken", tmp_path / "unbroken"
    unbroken.mkdir()
    succeeds(tmp_path, 2, "resumed", unbroken)
    unbroken.joinpath("programs").rename(broken.mkdir() or broken / "programs")
    kills = 0
    for moment in moments:
        codes, said, took = run(tmp_path, 2, "resumed", broken, moment)
        if codes == [0, 0]:  # the moment came after the end
            continue
        kills += 1
        # The other one ends with an error that names it, within the time of the heartbeat and more.
        assert codes[1] == -signal.SIGKILL, said
        assert codes[0] not in (None, 0, -signal.SIGKILL), said
        assert "process 1" in said[0], said
        assert "Task 1 heartbeat timeout" in said[0] or "heartbeats):\n1\n" in said[0], said
        assert took < 60
    succeeds(tmp_path, 2, "resumed", broken)
    for rank in (0, 1):
        resumed, expected = (
            json.loads((f / f"result{rank}").read_text()) for f in (broken, unbroken)
        )
        assert resumed == expected
    assert not list(broken.glob("checkpoint*"))
    return kills


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_others_and_all_resume(tmp_path):
    rng = np.random.default_rng(0)
    kinds = ["batch", "write", "rename", "fsync"]
    moments = [f"{kinds[i % 4]} {rng.integers(2, 16)}" for i in range(12)]
    assert resumes(tmp_path, moments) > 3  # the other moments come after the end


def test_numbers_of_rows_and_batches_do_not_depend_on_the_process():
    X = np.arange(10.0)[:, None]
    streams = [ArrayStream(part, part[:, 0], batch_rows=2) for part in (X[:5], X[5:])]
    both = ReplayableStream(Shards({0: streams[0], 1: streams[1]})).located()
    whole = {part.batch.X[0, 0]: part for part in both}
    second = list(ReplayableStream(Shards.dealt(streams, process=1, processes=2)).located())
    assert len(second) == 3
    for part in second:
        np.testing.assert_array_equal(part.places, whole[part.batch.X[0, 0]].places)
        np.testing.assert_array_equal(part.rows, whole[part.batch.X[0, 0]].rows)
    assert whole[0.0].places[0] == 0


def test_shards_are_checked(as_users_call):
    stream = ArrayStream(np.zeros((2, 1)), np.zeros(2))
    cases: list[tuple[Any, str]] = [
        ([stream], "expected streams by the number of the shard"),
        ({-1: stream}, "shards: expected"),
        ({2**23: stream}, "shards: expected"),
        ({0: iter([])}, "read several times"),
    ]
    for shards, message in cases:
        with pytest.raises(ValueError, match=message):
            Shards(shards)
    with pytest.raises(ValueError, match="process: expected"):
        Shards.dealt([stream], process=2, processes=2)
    broken = ArrayStream(np.array([[1.0], [np.nan]]), np.zeros(2))
    with pytest.raises(
        StreamError, match="shard 7: row indices 0 to 1: X is not finite at row index 1"
    ):
        list(ReplayableStream(Shards({0: stream, 7: broken})))
    assert list(ReplayableStream(Shards({}))) == []
