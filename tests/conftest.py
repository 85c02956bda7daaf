"""Strict mode for the whole suite: any silent promotion, broadcast or warning is an error.

With `--check-types`, and whenever slow tests run, the types and shapes of all annotations are
checked at each call. As this takes two fifths of the time of tests whose programs are compiled, the
fast suite checks them in the one process that `package/test_annotations.py` starts.
"""
# ruff: noqa: E402 (JAX reads the environment when it is imported)

import gc
import os
from pathlib import Path

from environment import VARIABLES

for _name, _value in VARIABLES.items():  # also for the processes that tests start
    os.environ.setdefault(_name, _value)

import jax
import jaxtyping
import pytest
from xdist.scheduler import LoadFileScheduling

# Each collection of garbage goes through all that was imported: a sixth of the time.
gc.set_threshold(200_000, 50, 100)


def pytest_addoption(parser):
    parser.addoption("--check-types", action="store_true", help="check annotations at each call")


def pytest_configure(config):
    if config.getoption("--check-types") or config.option.markexpr != "not slow":
        jaxtyping.install_import_hook("jsparse", "beartype.beartype")


# At the end of a run, one worker would still be in one of these files while the other has none.
_LONGEST = ("test_annotations.py", "test_devices.py", "test_many.py", "test_shards.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in _LONGEST)


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config):
    """Collect garbage once: each of the five collections that pytest then makes would take 1 s."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Run all tests of a file on one worker, which compiles shared programs once."""
    # This takes a sixth less time.
    config.option.loadscopereorder = False  # files of few long tests would come last
    return LoadFileScheduling(config, log)


@pytest.fixture
def one_kernel_at_a_time(monkeypatch):
    """Make a search use one core, so that it evaluates one kernel after the other."""
    monkeypatch.setattr("jsparse.training.source.usable_cores", lambda: 1)


@pytest.fixture(scope="session", autouse=True)
def options_of_loops():
    """Drop the compiler options of loops, so that `environment.py` decides: tests take few steps.

    The value is the options that were dropped. `machines/test_slmc.py` fits with them.
    """
    from jsparse import _programs  # not earlier: `pytest_configure` may have to hook into imports

    dropped = _programs._LOOP_OPTIONS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_programs, "_LOOP_OPTIONS", {})
        yield dropped


jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True)
def precision(request):
    """Compute in float64, or in the precision `dtype` if a test takes this fixture."""
    wanted = request.getfixturevalue("dtype") if "dtype" in request.fixturenames else "float64"
    with jax.enable_x64(wanted == "float64"):
        yield wanted


@pytest.fixture
def jax_in_float32(precision):
    """Switch float64 off, as it is for users who set nothing."""
    with jax.enable_x64(False):
        yield


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """Let the command line cache programs in a temporary folder; then restore JAX's setting."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture(autouse=True)
def memory_maps(request):
    """After slow tests, drop programs before they use up the 65,530 memory maps of Linux."""
    yield
    maps = Path("/proc/self/maps")
    if not (request.node.get_closest_marker("slow") and maps.exists()):
        return
    if maps.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()


@pytest.fixture(params=["float64", "float32"])
def dtype(request):
    """Return each precision; a test must pass in both, with only `tol` relaxed."""
    return request.param


@pytest.fixture
def tol(dtype):
    """Return the relative tolerance of a well-conditioned computation in the precision `dtype`."""
    return {"float64": 1e-10, "float32": 2e-4}[dtype]


@pytest.fixture
def as_users_call():
    """Switch off the suite's type checks at run time, which would raise before the package does."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
