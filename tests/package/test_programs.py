"""Programs that are dropped before the process runs out of memory maps, and compiled again."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsparse import _programs
from jsparse._programs import Programs, TooManyProgramsError, compiled, count_memory_maps
from jsparse.compilation import count_compilations

needs_memory_maps = pytest.mark.skipif(
    _programs.PROGRAMS.limit is None, reason="this system has no limit of memory maps"
)


@compiled
def double(x):
    return jnp.exp(x) @ jnp.ones((x.shape[0],), x.dtype) + 2 * x


def compilations(function, *shapes):
    function(np.ones(99))  # what JAX itself compiles at a first call is not counted
    with count_compilations() as compilations:
        for n in shapes:
            function(np.ones(n))
    return compilations.programs


@pytest.fixture
def limited(monkeypatch):
    """Return a function that sets the limit of memory maps of this process."""
    double.clear_cache()

    def limit(maps, **options):
        programs = Programs(maps, **options)
        monkeypatch.setattr(_programs, "PROGRAMS", programs)
        return programs

    return limit


def test_each_shape_is_compiled_once():
    double.clear_cache()
    assert compilations(double, 3, 4, 3, 4) == 2
    assert compilations(double, 3, 4) == 0
    double.clear_cache()
    assert compilations(double, 3) == 1


@needs_memory_maps
def test_programs_least_recently_used_are_dropped_first(limited):
    programs = limited(10**6)
    compilations(double, 3, 4, 5)
    double(np.ones(3))
    double(np.ones(99))
    programs.drop(list(programs._jitted)[:1])
    assert compilations(double, 3, 5) == 0
    assert compilations(double, 4) == 1


@needs_memory_maps
def test_maps_stay_below_the_limit_whatever_is_compiled(limited):
    compilations(double, 39)  # programs of up to 32 rows take fewer maps
    before = count_memory_maps()
    compilations(double, *range(40, 50))
    maps = count_memory_maps()
    of_ten = maps - before
    # Half of the limit is ten programs away, a third of it is here already.
    limit = 2 * (maps + of_ten)
    limited(limit, largest_program=limit // 10)  # so that maps are counted every third time
    for n in range(50, 75):
        np.testing.assert_allclose(double(np.zeros(n)), np.full(n, n))
        assert count_memory_maps() <= limit // 2 + of_ten  # without drops half as many again
    assert compilations(double, 50) == 1


@pytest.mark.parametrize("maps_of_program", [1, 10])
def test_maps_are_counted_rarely_and_in_time(maps_of_program, monkeypatch):
    programs, maps, counted = Programs(1000, largest_program=10), 0, []

    def count():
        counted.append(maps)
        return maps

    monkeypatch.setattr(_programs, "count_memory_maps", count)
    for maps in range(0, 990, maps_of_program):  # noqa: B007  # `count` reads it
        programs.make_room()
    assert sum(n < 500 for n in counted) < 12
    assert any(500 < n <= 800 for n in counted)  # where programs would be dropped
    maps = 991  # but none is here
    with pytest.raises(TooManyProgramsError):
        programs.make_room()


@needs_memory_maps
def test_programs_of_others_that_leave_no_room_are_an_error_not_a_crash(limited):
    limited(count_memory_maps() + 10, largest_program=100)
    with pytest.raises(TooManyProgramsError, match=r"Call jax\.clear_caches"):
        jax.jit(lambda x: x + 1)(np.ones(3))
    with pytest.raises(TooManyProgramsError, match="max_map_count"):
        double(np.ones(3))
    limited(10**6)
    np.testing.assert_array_equal(jax.jit(lambda x: x + 1)(np.ones(3)), np.full(3, 2.0))


@needs_memory_maps
def test_programs_of_others_do_not_have_ours_dropped_at_every_compilation(limited):
    maps = count_memory_maps()
    limited(int(1.6 * maps), largest_program=1)  # half of it, and a third, are held by others
    assert compilations(double, 3, 4, 5) == 3
    assert compilations(double, 3, 4, 5) == 0


MANY = """
import numpy as np
from jsparse import _programs
from jsparse._programs import PROGRAMS, compiled, count_memory_maps
import jax.numpy as jnp

@compiled
def many(x):
    for _ in range(12):
        x = jnp.cumsum(jnp.sort(jnp.sin(x)))
    return x

wanted, made, most = 2 * PROGRAMS.limit, 0, 0
n, before = 1, count_memory_maps()
while made < wanted:
    n += 1
    many(np.ones(n, np.float32))
    after = count_memory_maps()
    made, before, most = made + max(after - before, 0), after, max(most, after)
assert most < 0.6 * PROGRAMS.limit, (most, PROGRAMS.limit)
print("programs", n)
"""


@pytest.mark.slow
@needs_memory_maps
def test_a_process_compiles_past_twice_the_limit_of_memory_maps():
    process = subprocess.run(
        [sys.executable, "-c", MANY],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert process.returncode == 0, process.stdout + process.stderr
