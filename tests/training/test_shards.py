"""Training in several processes, each with a part of the rows, equals training in one."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import free_port, run_together

from jsparse.data.streams import ArrayStream, ReplayableStream, Shards, StreamError


def run(tmp_path, count, *what):
    """Run the script in several processes; return exit codes, what each prints, and seconds.

    The time runs from the first end to the last.
    """
    command = [Path(__file__).with_name("on_shards.py"), free_port()]
    return run_together([[*command, rank, count, *what] for rank in range(count)], tmp_path, 400)


def succeeds(*arguments):
    codes, printed, _ = run(*arguments)
    assert not any(codes), "\n".join([f"exit codes {codes}", *printed])


@pytest.mark.parametrize(
    ("count", "cases"),
    [(2, "fast"), *(pytest.param(*c, marks=pytest.mark.slow) for c in ((2, "slow"), (4, "fast")))],
)
def test_several_processes_give_the_result_of_one(count, cases, tmp_path):
    succeeds(tmp_path, count, cases)


def resumes(tmp_path, moments):
    """Kill one of two processes at each moment in turn; the resumed result must be equal."""
    broken, unbroken = tmp_path / "broken", tmp_path / "unbroken"
    unbroken.mkdir()
    succeeds(tmp_path, 2, "resumed", unbroken)
    unbroken.joinpath("programs").rename(broken.mkdir() or broken / "programs")
    kills = 0
    for moment in moments:
        codes, printed, took = run(tmp_path, 2, "resumed", broken, moment)
        if codes == [0, 0]:  # the moment came after the end
            continue
        kills += 1
        # The other process ends soon after the missed heartbeats, with an error that names it.
        assert codes[1] == -signal.SIGKILL, printed
        assert codes[0] not in (None, 0, -signal.SIGKILL), printed
        assert "process 1" in printed[0], printed
        assert "Task 1 heartbeat timeout" in printed[0] or "heartbeats):\n1\n" in printed[0], (
            printed
        )
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
    second = list(ReplayableStream(Shards.of_process(streams, process=1, processes=2)).located())
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
        Shards.of_process([stream], process=2, processes=2)
    broken = ArrayStream(np.array([[1.0], [np.nan]]), np.zeros(2))
    with pytest.raises(
        StreamError, match="shard 7: row indices 0 to 1: X is not finite at row index 1"
    ):
        list(ReplayableStream(Shards({0: stream, 7: broken})))
    assert list(ReplayableStream(Shards({}))) == []
