"""The plan of a run against what its programs and its process take."""

import json
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


STREAM = """
import json, sys
from pathlib import Path
import jax, numpy as np, jsparse
from jsparse.data.streams import Batch

n, d, m, batch_rows, folds = json.loads(sys.argv[1])

class Made:
    def __iter__(self):
        for start in range(0, n, batch_rows):
            X = np.random.default_rng(start).standard_normal((batch_rows, d), dtype=np.float32)
            yield Batch(X, np.sin(X[:, 0]) + X[:, 1])

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))

jax.block_until_ready(jax.numpy.zeros(1))
before, search = peak(), jsparse.Profile(3)
jsparse.train(
    Made(), task="regression", key=0, method=jsparse.FixedSize(m), search=search, folds=folds,
    out_of_fold=False, resources=jsparse.Resources(sample_rows=batch_rows),
)
planned = jsparse.plan(
    n, d, m, folds=folds, streamed=True, batch_rows=batch_rows, sample_rows=batch_rows,
    search=search,
)
print(json.dumps([peak() - before, planned.peak]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux states the peak of a process")
@pytest.mark.parametrize("shape", [(4000, 10, 20, 1000, 5), (160_000, 10, 1000, 40_000, 5)])
def test_a_stream_takes_the_planned_memory_within_a_fifth(shape):
    flags = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    environment = {k: v for k, v in os.environ.items() if k not in flags}
    process = subprocess.run(
        [sys.executable, "-c", STREAM, json.dumps(shape)],
        cwd=Path(__file__).parents[2],
        env=environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert process.returncode == 0, process.stderr
    used, planned = json.loads(process.stdout)
    assert planned / 1.2 < used < 1.2 * planned
