"""The planned memory of a run against the memory of its programs and its process."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jsparse
from jsparse import _programs
from jsparse.data.streams import ArrayStream

N, D, M, FOLDS = 3000, 4, 150, 4


def rows():
    X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    return X, np.sin(X[:, 0]) + X[:, 1]


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
def test_no_program_takes_more_memory_than_the_plan_says(streamed, monkeypatch):
    get, program_bytes = _programs.PROGRAMS.get, {}

    def measured(key, make):
        jitted = get(key, make)

        def call(*arguments, **named):
            memory = jitted.lower(*arguments, **named).compile().memory_analysis()
            program_bytes[key[0].__name__] = (
                memory.argument_size_in_bytes
                + memory.output_size_in_bytes
                + memory.temp_size_in_bytes
                - memory.alias_size_in_bytes
            )
            return jitted(*arguments, **named)

        return call

    monkeypatch.setattr(_programs.PROGRAMS, "get", measured)
    data = (ArrayStream(*rows(), batch_rows=1000),) if streamed else rows()
    search = jsparse.Profile(2)
    batches = {"batch_rows": 1000, "sample_rows": N} if streamed else {}
    with jax.enable_x64(False):
        jsparse.train(
            *data, task="regression", method=jsparse.FixedSize(M), key=0, folds=FOLDS, search=search
        )
    planned = jsparse.plan(
        N, D, M, folds=FOLDS, search=search, streamed=streamed, memory=10**10, **batches
    )
    assert {"evaluate", "_plug_in"} <= set(program_bytes)
    # The plan adds the memory of several programs, and of rows on the host.
    assert 0.1 * planned.bytes < max(program_bytes.values()) < planned.bytes


MEASURE = """
import sys
from pathlib import Path
import jax, numpy as np, jsparse
from jsparse.data.streams import Batch

def table(n, seed=0):
    X = np.random.default_rng(seed).standard_normal((n, 10), dtype=np.float32)
    return X, np.sin(X[:, 0]) + X[:, 1]

class Made:
    def __init__(self, n, batch_rows):
        self.n, self.batch_rows = n, batch_rows

    def __iter__(self):
        for start in range(0, self.n, self.batch_rows):
            yield Batch(*table(self.batch_rows, start))

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))

def stream(n, m, batch_rows):
    stated = {"folds": 5, "search": jsparse.Profile(3)}
    run = stated | {
        "method": jsparse.FixedSize(m), "resources": jsparse.Resources(sample_rows=batch_rows)
    }
    planned = jsparse.plan(
        n, 10, m, streamed=True, batch_rows=batch_rows, sample_rows=batch_rows, **stated
    )
    return planned, jsparse.train, (Made(n, batch_rows),), run | {"out_of_fold": False}

def many(problems, n, m):
    search = jsparse.Profile(3)
    planned = jsparse.plan(n, 10, m, problems=problems, search=search)
    run = {"method": jsparse.FixedSize(m), "search": search}
    return planned, jsparse.train_many, ([table(n, seed) for seed in range(problems)],), run

def no_method(n):
    return jsparse.plan(n, 10), jsparse.train, table(n), {}

jax.block_until_ready(jax.numpy.zeros(1))
planned, call, data, options = eval(sys.argv[1])
before = peak()
result = call(*data, task="regression", key=0, **options)
print((peak() - before) / planned.peak)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux states the peak of a process")
@pytest.mark.parametrize(
    "run",
    [
        "stream(4000, 20, 1000)",
        "stream(160_000, 1000, 40_000)",
        "many(256, 400, 30)",
        "many(128, 2000, 200)",
        "no_method(2500)",
        "no_method(10_000)",
    ],
)
def test_a_run_takes_the_planned_memory_within_a_fifth(run):
    flags = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_COMPILATION_CACHE_DIR")
    environment = {k: v for k, v in os.environ.items() if k not in flags}
    process = subprocess.run(
        [sys.executable, "-c", MEASURE, run],
        cwd=Path(__file__).parents[2],
        env=environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert process.returncode == 0, process.stderr
    assert 1 / 1.2 < float(process.stdout) < 1.2


def test_problems_that_are_trained_alone_have_no_plan():
    for several in ({"n_prototypes": "all"}, {}, {"n_prototypes": 30, "streamed": True}):
        with pytest.raises(ValueError, match="problems: expected 1 for a stream"):
            jsparse.plan(10_000, 5, problems=3, **several)
    with pytest.raises(ValueError, match="n_prototypes: expected a number for a stream, got None"):
        jsparse.plan(400, 5, streamed=True)


def test_many_problems_need_more_than_one_and_without_a_method_all_rows_count():
    one, many = (jsparse.plan(400, 5, 30, problems=count) for count in (1, 1000))
    assert many.parts["results"] > 1000 * 30 * 30 * 4
    assert many.bytes > 16 * one.bytes
    by_preset, dual = jsparse.plan(3000, 5), jsparse.plan(3000, 5, "all")
    assert by_preset.parts == dual.parts
    assert by_preset.peak > dual.peak
    assert jsparse.plan(10_000, 5).parts == jsparse.plan(10_000, 5, 500).parts
