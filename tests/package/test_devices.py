"""Results on several devices, in separate processes, equal the results on one device."""

from pathlib import Path

import pytest
from processes import free_port, run_together

HERE = Path(__file__).parent


def run(commands, tmp_path, seconds, **settings):
    """Run processes together; when one fails, end the others. Return what each prints."""
    codes, printed, _ = run_together(commands, tmp_path, seconds, stop_at_failure=True, **settings)
    assert codes == [0] * len(commands), "\n".join([f"exit codes {codes}", *printed])
    return printed


@pytest.mark.parametrize("mark", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_eight_devices(tmp_path, mark):
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", mark]
    command = ["-m", "pytest", *options, HERE / "on_eight_devices.py"]
    printed = run([command], tmp_path, 400, JAX_NUM_CPU_DEVICES="8")
    assert " passed" in printed[0]


@pytest.mark.slow
def test_two_processes(tmp_path):
    script, port = HERE / "on_two_processes.py", free_port()
    run([[script, port, rank] for rank in (0, 1)], tmp_path, 400)


@pytest.mark.slow
def test_the_command_line_on_virtual_devices(tmp_path):
    # The linear kernel chooses no prototypes, which is most of what there is to compile.
    options = ["--set", "diabetes", "--kernel", "linear", "--folds", 3, "--quiet"]
    command = ["-m", "jsparse", "demo", *options]
    many, one = run([[*command, "--devices", 3], command], tmp_path, 200)
    assert "cpu (cpu) x 3, float64" in many
    outputs = [
        [line for line in printed.splitlines() if line.startswith(("C ", "CV error", "test error"))]
        for printed in (many, one)
    ]
    assert len(outputs[0]) == 3
    assert outputs[0] == outputs[1]
