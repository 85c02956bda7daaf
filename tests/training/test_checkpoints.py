"""Checkpoints: a killed call resumes and gives the bits of a call that was never killed."""

import itertools
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import on_kills
import pytest
import safetensors.numpy

import jsparse
from jsparse import _files
from jsparse.cli.main import main
from jsparse.data.streams import ArrayStream
from jsparse.training import checkpoint
from jsparse.training.checkpoint import Checkpoint
from jsparse.training.streamed import Reader

HERE = Path(__file__).parent


def full(*_, **__):
    raise OSError(28, "No space left on device")


class Killed(BaseException):
    """Stands for a kill: nothing more is written."""


def kills_after(monkeypatch, owner, name, count):
    """Make the function end the run at its call number `count`, from 0."""
    function, calls = getattr(owner, name), itertools.count()

    def killed(*arguments, **named):
        if next(calls) == count:
            raise Killed
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, killed)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Write the file after every step, however long that takes."""
    monkeypatch.setattr(checkpoint, "_SHARE", 0.0)


@pytest.mark.parametrize(
    "case",
    [
        "stream",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("memory", "classes", "path", "gradient", "distilled")
        ),
    ],
)
def test_a_killed_call_resumes_with_the_same_bits(case, tmp_path, monkeypatch):
    path, rng = tmp_path / "checkpoint", np.random.default_rng(0)
    expected = on_kills.result(on_kills.trained(case, None))
    monkeypatch.setattr(Checkpoint, "close", lambda self: None)
    places = [
        (_files, "atomic_path"),  # before the file is written
        (_files.os, "fsync"),  # while it is written
        (Path, "replace"),  # before it replaces the last one
        (np, "asarray"),  # anywhere
    ]
    ended = 0
    for owner, name in itertools.islice(itertools.cycle(places), 12):
        with monkeypatch.context() as patched:
            kills_after(patched, owner, name, int(rng.integers(400 if name == "asarray" else 8)))
            try:
                on_kills.trained(case, path)
                ended += 1
            except Killed:
                pass
    assert ended < 6
    assert on_kills.result(on_kills.trained(case, path)) == expected
    assert not any(tmp_path.iterdir())  # neither the checkpoint, nor parts of one


def test_a_process_that_is_killed_resumes(tmp_path):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, HERE / "on_kills.py", "stream", tmp_path]
    for moment, code in ((["batch 21"], -signal.SIGKILL), ([], 0)):
        ended = subprocess.run(
            [*command, *moment], env=environment, capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == code, ended.stderr
        assert (tmp_path / "checkpoint").exists() == (code != 0)
    resumed = json.loads((tmp_path / "result.json").read_text())
    assert resumed == on_kills.result(on_kills.trained("stream", None))


def test_an_unfinished_pass_is_not_repeated(tmp_path, monkeypatch):
    path, read = tmp_path / "checkpoint", []
    encoded = Reader._encoded

    def counted(*arguments):
        read.append(arguments)
        return encoded(*arguments)

    monkeypatch.setattr(Reader, "_encoded", counted)
    on_kills.trained("stream", None)
    batches = len(read)
    with monkeypatch.context() as patched:
        kills_after(patched, Reader, "_encoded", batches // 2)
        patched.setattr(Checkpoint, "close", lambda self: None)
        with pytest.raises(Killed):
            on_kills.trained("stream", path)
    assert len(read) == batches + batches // 2
    on_kills.trained("stream", path)
    assert len(read) == 2 * batches


def test_a_search_that_the_time_limit_stopped_goes_on(tmp_path):
    data, path = on_kills.CASES["memory"][0], tmp_path / "checkpoint"
    options = {**on_kills.OPTIONS, "key": 0, "search": jsparse.Profile(6)}

    def trained(**resources):
        resources = jsparse.Resources(checkpoint=path, memory=10**9, **resources)
        return jsparse.train(*data, resources=resources, **options)

    stopped = trained(max_seconds=0.0)
    assert stopped.tuning.stopped == "seconds"
    assert path.exists()
    ended = trained()
    assert ended.tuning.stopped == "finished"
    assert not path.exists()
    expected = on_kills.trained("memory", None)
    assert on_kills.result(ended) == on_kills.result(expected)


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """Return the path of the checkpoint of a call that was killed."""
    path = tmp_path / "checkpoint"
    with monkeypatch.context() as patched:
        kills_after(patched, Reader, "_encoded", 12)
        with pytest.raises(Killed):
            on_kills.trained("stream", path)
    assert path.exists()
    return path


def test_a_checkpoint_of_another_call_or_version_is_refused(interrupted, monkeypatch):
    X, y, path = on_kills.X, on_kills.y, interrupted
    content = path.read_bytes()

    def call(stream=None, **changed):
        stream = ArrayStream(X, y, batch_rows=50) if stream is None else stream
        resources = jsparse.Resources(checkpoint=path, sample_rows=200, memory=10**9)
        options = {**on_kills.OPTIONS, "key": 0, "resources": resources}
        return jsparse.train(stream, **{**options, **changed})

    cases = [
        ("folds: 3 in the file, 4 in this call", {"folds": 4}),
        ("contents of key: checksum", {"key": 1}),
        ("method.n_prototypes: 10 in the file, 9 in", {"method": jsparse.FixedSize(9)}),
        ("search.max_evaluations: 4 in the file, 5", {"search": jsparse.Profile(5)}),
        ("contents of X of the first batch", {"stream": ArrayStream(X + 1, y, batch_rows=50)}),
        ("X of the first batch: .*50, 3.*40, 3", {"stream": ArrayStream(X, y, batch_rows=40)}),
    ]
    for message, changed in cases:
        with pytest.raises(ValueError, match=f"checkpoint.*{message}.*Remove the file") as raised:
            call(**changed)
        assert str(path) in str(raised.value)
        assert path.read_bytes() == content
    with monkeypatch.context() as patched:
        patched.setattr("jsparse.training.checkpoint.__version__", "0.0.1")
        with pytest.raises(ValueError, match=r"version of jsparse: '0.1.0' in .*, '0.0.1' in"):
            call()
    path.write_bytes(content[:-9])
    with pytest.raises(jsparse.ModelFileError, match="checkpoint"):
        call()


def test_a_full_disk_warns_and_leaves_the_last_checkpoint(interrupted, monkeypatch):
    content, expected = interrupted.read_bytes(), on_kills.trained("stream", None)
    seen = []
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        patched.setattr(Checkpoint, "remove", lambda self: seen.append(interrupted.read_bytes()))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            trained = on_kills.trained("stream", interrupted)
    assert seen == [content]
    assert "checkpoint: " in str(told[0].message)
    assert "No space left on device" in str(told[0].message)
    assert on_kills.result(trained) == on_kills.result(expected)
    assert [file.name for file in interrupted.parent.iterdir()] == ["checkpoint"]
    assert on_kills.result(on_kills.trained("stream", interrupted)) == on_kills.result(expected)


def test_paths_that_cannot_be_written_are_told_before_any_work(tmp_path):
    class Unread:
        def __iter__(self):
            raise AssertionError("the stream was read")

    def call(*data, **resources):
        resources = jsparse.Resources(**resources)
        return jsparse.train(*data, key=0, resources=resources, **on_kills.OPTIONS)

    for path, message in ((tmp_path / "no" / "file", "there is no folder"), (tmp_path, "a folder")):
        with pytest.raises(_files.OutputError, match=message):
            call(Unread(), checkpoint=path)
    path = tmp_path / "checkpoint"
    with pytest.raises(ValueError, match="checkpoint_seconds: "):
        call(Unread(), checkpoint=path, checkpoint_seconds=-1.0)
    with pytest.raises(ValueError, match="X: expected finite"):
        call(np.full((9, 2), np.nan), np.arange(9.0), checkpoint=path)
    assert not path.exists()  # a call that is refused leaves no file


def test_the_command_line_resumes_until_the_model_is_saved(tmp_path, monkeypatch, capsys):
    table, path = tmp_path / "table.csv", tmp_path / "checkpoint"
    rows = np.column_stack([on_kills.X, on_kills.y])[:90]
    np.savetxt(table, rows, delimiter=",", header="a,b,c,y", comments="")
    command = ["fit", table, "--target", "y", "--stream", "--method", "fixed-size", "--folds", 3]
    command += ["--prototypes", 10, "--evaluations", 3, "--quiet", "--checkpoint", path]

    def fitted(name):
        assert main([*map(str, command), "--out", str(tmp_path / name)]) == 0
        arrays = safetensors.numpy.load_file(tmp_path / name)
        return {name: array.tobytes() for name, array in arrays.items()}

    with monkeypatch.context() as patched:
        patched.setattr("jsparse.model.Model.save", full)
        assert main([*map(str, command), "--out", str(tmp_path / "model")]) != 0
    assert "No space left" in capsys.readouterr().err
    assert path.exists()
    resumed = fitted("resumed")
    assert f"jsparse: resuming from {str(path)!r}" in capsys.readouterr().err
    assert not path.exists()
    assert fitted("again") == resumed
