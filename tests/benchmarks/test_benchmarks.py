"""The small version of the benchmark for accelerators, on the parts that need no data set."""

import json
import subprocess

import pytest

from benchmarks import accelerator
from benchmarks.report import write


@pytest.mark.slow
@pytest.mark.parametrize("row_counts", [{"product": 2, "sensing": 1}, {"scdp": 1, "many": 1}])
def test_parts_are_written_as_they_are_done(row_counts, tmp_path, monkeypatch):
    parts = {name: accelerator.PARTS[name] for name in row_counts}
    monkeypatch.setattr(accelerator, "PARTS", {**parts, "broken": (None, 5), "slow": (None, 5)})
    started = []

    def process(command, *, timeout, **_):
        name = command[3]
        started.append(name)
        if name == "slow":
            raise subprocess.TimeoutExpired(command, timeout)
        if name == "broken":
            return subprocess.CompletedProcess(command, 1, "", "Trace\nValueError: broken")
        rows = parts[name][0]("small" in command)
        return subprocess.CompletedProcess(command, 0, "noise\n" + json.dumps([rows, 0.5]), "")

    monkeypatch.setattr(accelerator.subprocess, "run", process)
    report = accelerator.run(quick=True, out=tmp_path)
    for name, count in row_counts.items():
        assert len(report.data[name]) == count
    assert len(report.rows) == sum(row_counts.values())
    assert "broken: failed: ValueError: broken" in report.notes
    assert "slow: not done within 5 s" in report.notes
    write(tmp_path, "gpu", report, quick=True)
    assert "sensing" not in row_counts or "% recovered" in (tmp_path / "gpu.md").read_text()
    started.clear()
    accelerator.run(quick=True, out=tmp_path)
    assert started == ["broken", "slow"]  # what is there is not done again


def test_together_the_parts_take_less_than_nine_minutes():
    assert sum(seconds for _, seconds in accelerator.PARTS.values()) <= 540
