"""Faults outside of the mathematics: signals, full disks, closed pipes, errors in users' code.

After each fault, saved files and the state of the process must be intact.
"""

import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse
from jsparse import FixedSize, Profile, load, save
from jsparse.data.streams import ArrayStream
from jsparse.kernels import Custom

ROOT = pathlib.Path(jsparse.__file__).parents[1]
MESSAGE = "jsparse: interrupted before there was a result"


def entry():
    """Return the command of the installed script, with this interpreter."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, function = scripts["jsparse"].split(":")
    run = f"import sys; from {module} import {function}; sys.exit({function}())"
    return [sys.executable, "-c", run]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with a table, and with the compiled programs that all processes share."""
    folder = tmp_path_factory.mktemp("faults")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 2))
    rows = [f"{a},{b},{a * b + 0.1 * e}" for (a, b), e in zip(X, rng.normal(size=90), strict=True)]
    (folder / "t.csv").write_text("a,b,y\n" + "\n".join(rows) + "\n")
    return folder


def environment(folder):
    cache = {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    return {**os.environ, **cache, "JAX_COMPILATION_CACHE_DIR": str(folder / "cache" / "xla")}


def start(folder, arguments, program=None, **options):
    settings = {"env": environment(folder), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*(program or entry()), *map(str, arguments)]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else ignored in the background
    return subprocess.Popen(command, text=True, **(settings | options))


def after(statements):
    """Return a command that runs statements, then replaces itself by the command that follows.

    A function that runs in the child (`preexec_fn`) would fork this process, which has JAX.
    """
    run = f"import os, sys\n{statements}\nos.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", run]


def fit(folder, out, *more):
    options = ["--target", "y", "--out", out, "--prototypes", 8, "--folds", 3, "--quiet"]
    return ["fit", folder / "t.csv", *options, "--evaluations", 4, *more]


def finish(process):
    out, err = process.communicate(timeout=1800)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def fitted(place):
    """Return a model, and the seconds of a fit whose programs are compiled already."""
    for name in ("first", "m"):
        begin = time.perf_counter()
        code, _, err = finish(start(place, fit(place, place / name)))
        assert code == 0, err
    return place / "m", time.perf_counter() - begin


def lines(err):
    """Return the lines of output, without the compiler's warnings."""
    return [line for line in err.splitlines() if not line.startswith(("E0", "E1", "W0", "W1"))]


# Signals


# Python runs this before the program. It prints a line once the program handles interrupts:
# `jsparse.cli.commands` is the first module that the program imports after that.
ANNOUNCE = """
import os, sys

def watch(event, arguments):
    code = arguments[0] if event == "exec" else None
    if getattr(code, "co_filename", "").endswith(os.path.join("jsparse", "cli", "commands.py")):
        os.write(1, b"ready\\n")

sys.addaudithook(watch)
"""


def interrupt(place, moment, program=None, *, when_ready=True):
    """Interrupt `--version` after `moment` seconds; return the exit code and standard error.

    The seconds count from the start, or with `when_ready` from when it handles interrupts.
    """
    options = {}
    if when_ready:
        (place / "site").mkdir(exist_ok=True)
        (place / "site" / "sitecustomize.py").write_text(ANNOUNCE)
        paths = os.pathsep.join([str(place / "site"), str(ROOT)])
        options["env"] = {**environment(place), "PYTHONPATH": paths}
    process = start(place, ["--version"], program, **options)
    if when_ready:
        assert process.stdout.readline() == "ready\n"
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    return code, err


@pytest.mark.parametrize(
    "program",
    [None, pytest.param([sys.executable, "-m", "jsparse"], marks=pytest.mark.slow)],
    ids=["script", "module"],
)
def test_ctrl_c_during_imports_is_one_line(place, program):
    codes = []
    for moment in (0.0, 0.1, 0.3):
        code, err = interrupt(place, moment, program)
        assert lines(err) in ([MESSAGE], []), (moment, err)
        assert code in (130, 0, -signal.SIGINT), (moment, code)
        codes.append(code)
    assert codes.count(130) >= 2


@pytest.mark.slow
def test_ctrl_c_before_the_program_can_react_ends_it(place):
    for moment in (0.02, 0.1, 0.3):
        code, err = interrupt(place, moment, when_ready=False)
        assert "KeyboardInterrupt" in err or lines(err) in ([MESSAGE], []), err
        assert code != 0


def test_importing_the_package_imports_neither_jax_nor_numpy():
    code = (
        "import jsparse, jsparse.cli.main, sys; print('jax' in sys.modules, 'numpy' in sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == ["False", "False"]


def test_every_name_of_the_package_is_where_type_checkers_find_it():
    for name, module in jsparse._MODULE_OF.items():
        home = f"jsparse.{module}" if module else "jsparse"
        value = getattr(jsparse, name)
        __import__(home)
        assert value is getattr(sys.modules[home], name)
    assert set(dir(jsparse)) == {*jsparse.__all__, "__version__"}
    assert len(jsparse.__all__) <= 46  # the output fits on a screen
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        jsparse.nothing  # noqa: B018


def files(folder):
    """Return the files of a folder, without the temporary files of killed processes."""
    return sorted(name for name in os.listdir(folder) if not name.startswith(".jsparse-"))


def changed_but_valid(out, before, folder):
    """Assert that a model, old or new, is valid, and return whether it is new."""
    assert files(folder) == ([out.name] if out.exists() else [])
    if before is not None:
        assert out.exists()
    if out.exists():
        assert np.isfinite(np.asarray(load(out)(jnp.zeros((2, 2))))).all()
        return out.read_bytes() != before
    return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_fit_is_ended_at_any_moment(place, fitted, number, tmp_path):
    """End a fit at 10 moments; every second fit replaces a model."""
    model, seconds = fitted
    moments, codes = random.Random(int(number)), []
    for trial in range(10):
        folder = tmp_path / f"{trial}"
        folder.mkdir()
        out, before = folder / "m", None
        if trial % 2:
            before = model.read_bytes()
            out.write_bytes(before)
        process = start(place, fit(place, out, "--seed", trial + 1))
        time.sleep(moments.uniform(0.05, 1.1 * seconds))
        process.send_signal(number)
        code, _, err = finish(process)
        assert "Traceback" not in err
        changed = changed_but_valid(out, before, folder)
        codes.append(code)
        if number == signal.SIGINT:
            # A fit that is interrupted during tuning saves the best machine so far.
            assert code in (0, 130, -signal.SIGINT), err
            assert changed == (code == 0)
            assert code != 130 or lines(err) == [MESSAGE]
        else:
            assert code in (0, -number), err
    assert len([code for code in codes if code != 0]) >= 3


@pytest.mark.slow
def test_a_prediction_is_interrupted_at_any_moment(place, fitted, tmp_path):
    """The output is complete or absent."""

    def predict(name):
        return start(place, ["predict", fitted[0], place / "t.csv", "--out", tmp_path / name])

    assert finish(predict("first"))[0] == 0
    begin = time.perf_counter()
    assert finish(predict("second"))[0] == 0
    seconds, moments = time.perf_counter() - begin, random.Random(1)
    for trial in range(10):
        process = predict(f"{trial}")
        time.sleep(moments.uniform(0.2, 1) * seconds)  # the program handles interrupts
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        assert code in (0, 130, -signal.SIGINT), err
        assert "Traceback" not in err
        assert code != 130 or lines(err)[-1:] == [MESSAGE]
        out = tmp_path / f"{trial}"
        assert not out.exists() or out.read_bytes() == (tmp_path / "second").read_bytes()


TRAINING = """
import os, random, signal, sys, threading, time
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
import jsparse
rng = np.random.default_rng(0)
X = rng.standard_normal((60, 2))
y = X[:, 0] * X[:, 1]

def train():
    begin = time.perf_counter()
    model = jsparse.train(X, y, task="regression", key=jax.random.key(0), folds=3,
                          method=jsparse.FixedSize(8), search=jsparse.Profile(6))
    values = np.asarray(model.expansion(X))
    return model.tuning.stopped, values, time.perf_counter() - begin

fresh, warm = train()[1], train()[2]
jax.clear_caches()
cold, ends = train()[2], set()
moments = random.Random(0)
for trial in range(200):
    if trial >= 20 and {"raised", "interrupted"} <= ends:
        break
    if trial % 2:
        jax.clear_caches()  # so that most moments fall into compilation
    moment = moments.uniform(0, cold if trial % 2 else warm)
    timer = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        end, values, _ = train()
        assert np.isfinite(values).all()
        assert end != "finished" or np.array_equal(values, fresh)
    except KeyboardInterrupt:
        end = "raised"
    try:
        timer.join()
        time.sleep(0.01)
    except KeyboardInterrupt:
        end = "late"
    ends.add(end)
    end, values, _ = train()
    assert end == "finished"
    assert np.array_equal(values, fresh)
print(ends)
"""


@pytest.mark.slow
def test_training_is_interrupted_at_any_moment_and_the_process_goes_on(place):
    """Interrupt at 20 moments, and more until some fall before and after the first evaluation.

    The next model must equal the first one to the last bit.
    """
    code, out, err = finish(start(place, [], [sys.executable, "-c", TRAINING]))
    assert code == 0, err
    assert "raised" in out
    assert "interrupted" in out


# Outputs


@pytest.mark.slow
def test_a_disk_gets_full_during_a_command(place, fitted, tmp_path):
    """The exit code is 1, the message has the reason, and the old model stays."""
    model, _ = fitted
    path = tmp_path / "m"
    before = model.read_bytes()
    path.write_bytes(before)

    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))"
    full = [*after(limit), *entry()]
    code, _, err = finish(start(place, fit(place, path), full))
    assert code == 1, err
    assert "cannot be written" in lines(err)[-1]
    assert path.read_bytes() == before
    out = tmp_path / "p.csv"
    predict = ["predict", model, place / "t.csv"]
    code, _, err = finish(start(place, [*predict, "--out", out], full))
    assert code == 1, err
    assert "cannot be written" in lines(err)[-1]
    assert os.listdir(tmp_path) == ["m"]
    with open("/dev/full", "w") as no_room:
        for arguments in (fit(place, path), predict):
            code, _, err = finish(start(place, arguments, stdout=no_room))
            assert code == 1, err
            assert "No space left on device" in lines(err)[-1]
            assert "Exception ignored" not in err
    load(path)
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *entry()]
    code, _, err = finish(start(place, fit(place, path), closed))
    assert (code, lines(err)) == (0, [])


# After these statements root obeys the permissions of files too: PR_CAPBSET_DROP (24) removes
# CAP_DAC_OVERRIDE (1) from the capabilities that the next program may have.
WITHOUT_ROOTS_RIGHTS = """
import ctypes
if os.geteuid() == 0 and ctypes.CDLL(None).prctl(24, 1):
    raise OSError("prctl")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux to drop rights")
def test_a_folder_that_may_not_be_written_to(place, fitted, tmp_path):
    """A command refuses before any work. A cache that cannot be written does not matter."""
    folder, model = tmp_path / "theirs", fitted[0]
    folder.mkdir()
    (folder / "m").write_bytes(before := model.read_bytes())
    folder.chmod(0o555)
    theirs = {**environment(place), "JAX_COMPILATION_CACHE_DIR": str(folder / "cache")}
    program, options = [*after(WITHOUT_ROOTS_RIGHTS), *entry()], {"env": theirs}
    for arguments in (
        fit(place, folder / "m"),
        fit(place, folder / "new"),
        ["predict", model, place / "t.csv", "--out", folder / "p.csv"],
    ):
        code, _, err = finish(start(place, arguments, program, **options))
        assert code == 2, err
        assert "cannot be written: Permission denied" in lines(err)[-1]
    arguments = ["predict", folder / "m", place / "t.csv"]
    code, out, err = finish(start(place, arguments, program, **options))
    assert code == 0, err
    assert len(out.splitlines()) == 91
    assert os.listdir(folder) == ["m"]
    assert (folder / "m").read_bytes() == before


@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_in_silence(place, fitted, tmp_path):
    model, _ = fitted
    rows = "\n".join(f"{i / 7},{i / 3}" for i in range(50_000))
    (tmp_path / "long.csv").write_text("a,b\n" + rows + "\n")
    for more in ([], ["--stream"]):
        with start(place, ["predict", model, tmp_path / "long.csv", *more]) as process:
            assert process.stdout.readline().strip() == '"y"'
            process.stdout.close()
            code = process.wait(timeout=1800)
            assert (code, lines(process.stderr.read())) == (141, [])


# Functions of the user, in one process


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    return X, 700 * X[:, 0] * X[:, 1]


def train(rows, **options):
    settings = {"task": "regression", "key": jax.random.key(0), "folds": 3}
    settings |= {"method": FixedSize(8, selection="uniform"), "search": Profile(4)}
    return jsparse.train(*rows, **{**settings, **options})


def raising(params, x, z):
    raise ZeroDivisionError("of the kernel")


def not_a_number(params, x, z):
    return params["s"] * jnp.sum(x * z) * jnp.nan


def test_a_kernel_that_fails_leaves_the_process_as_it_was(rows):
    before = train(rows)
    with pytest.raises(ZeroDivisionError, match="of the kernel"):
        train(rows, kernel=Custom(raising, {"s": 1.0}))
    with pytest.raises(jsparse.NumericalError):
        train(rows, kernel=Custom(not_a_number, {"s": 1.0}))
    np.testing.assert_array_equal(train(rows).expansion(rows[0]), before.expansion(rows[0]))


class Failing:
    """A stream whose pass number `fails` ends in an error."""

    def __init__(self, rows, fails):
        self.stream, self.fails, self.passes = ArrayStream(*rows, batch_rows=25), fails, 0

    def __iter__(self):
        self.passes += 1
        for i, batch in enumerate(self.stream):
            if i == 1 and self.passes == self.fails:
                raise OSError("the disk is gone")
            yield batch


def test_a_stream_that_fails_midway_loses_no_evaluation(rows):
    uninterrupted = train([Failing(rows, 0)])
    for fails in (1, 2, 3):
        with pytest.raises(OSError, match="the disk is gone") as caught:
            train([Failing(rows, fails)])
        assert hasattr(caught.value, "history") == (fails == 3)
    resumed = train([Failing(rows, 0)], search=Profile(4, history=caught.value.history))
    np.testing.assert_array_equal(resumed.expansion(rows[0]), uninterrupted.expansion(rows[0]))


def test_two_threads_fit_and_save_at_the_same_time(rows, tmp_path):
    alone = train(rows)
    results, path = [], tmp_path / "m"

    def work(number):
        with jax.enable_x64(True):
            model = train(rows)
            for _ in range(20):
                save(path, model.expansion, {"by": number})
                load(path)
            results.append(np.asarray(model.expansion(rows[0])))

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(results) == 2
    for values in results:
        np.testing.assert_array_equal(values, alone.expansion(rows[0]))
    assert os.listdir(tmp_path) == ["m"]
