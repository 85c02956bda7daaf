"""Several devices: what one device gives. In processes of their own, as this one has one device."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(commands, tmp_path, seconds, **settings):
    """Run together; when one fails or the time is up, end the others. What each says comes back."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment = {
        **kept,
        "XDG_CACHE_HOME": str(tmp_path),
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # little to compute, much to compile
        **settings,
    }
    logs = [tmp_path / f"log{i}" for i in range(len(commands))]
    running = []
    try:
        for command, log in zip(commands, logs, strict=True):
            with log.open("w") as out:
                running.append(
                    subprocess.Popen(
                        [sys.executable, *map(str, command)],
                        env=environment,
                        cwd=HERE.parents[1],
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )
                )
        end = time.monotonic() + seconds
        codes = [None]
        while None in codes and not any(codes) and time.monotonic() < end:
            time.sleep(0.05)
            codes = [process.poll() for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    said = [log.read_text() for log in logs]
    assert codes == [0] * len(commands), "\n".join([f"exit codes {codes}", *said])
    return said


def on_eight_devices(tmp_path, which):
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", which]
    command = ["-m", "pytest", *options, HERE / "on_eight_devices.py"]
    said = run([command], tmp_path, 400, JAX_NUM_CPU_DEVICES="8")
    assert " passed" in said[0]


def test_eight_devices(tmp_path):
    on_eight_devices(tmp_path, "not slow")


@pytest.mark.slow
def test_eight_devices_at_length(tmp_path):
    on_eight_devices(tmp_path, "slow")


def on_two_processes(tmp_path, *more):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = HERE / "on_two_processes.py"
    run([[script, port, rank, *more] for rank in (0, 1)], tmp_path, 400)


@pytest.mark.slow
def test_two_processes(tmp_path):
    on_two_processes(tmp_path)


@pytest.mark.slow
def test_two_processes_at_length(tmp_path):
    on_two_processes(tmp_path, "all")


@pytest.mark.slow
def test_the_command_line_on_virtual_devices(tmp_path):
    # The linear kernel chooses no prototypes, which is most of what there is to compile.
    options = ["--set", "diabetes", "--kernel", "linear", "--folds", 3, "--quiet"]
    command = ["-m", "jsparse", "demo", *options]
    many, one = run([[*command, "--devices", 3], command], tmp_path, 200)
    assert "cpu (cpu) x 3, float64" in many
    outputs = [
        [line for line in said.splitlines() if line.startswith(("C ", "CV error", "test error"))]
        for said in (many, one)
    ]
    assert len(outputs[0]) == 3
    assert outputs[0] == outputs[1]
