"""Run by `test_shards.py` in several processes.

`on_shards.py PORT RANK COUNT fast|slow` compares several processes with one, and
`on_shards.py PORT RANK COUNT resumed FOLDER [MOMENT]` trains with a checkpoint; at the moment the
last process is killed, see `on_kills.kill_at`.
"""

import itertools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.multihost_utils import broadcast_one_to_all
from jax.sharding import Mesh

import jsparse
from jsparse.data.streams import ArrayStream, Shards
from jsparse.training import checkpoint

N, BATCH = 240, 60  # equal batches share programs
rng = np.random.default_rng(0)
X = rng.standard_normal((N, 3)) * [1, 5, 0.1] + 3
y = np.sin(2 * X[:, 0]) + 0.2 * X[:, 1] + 0.1 * rng.standard_normal(N)
w = rng.integers(0, 4, N) / 2.0
labels = np.array(["a", "bb", "c"])[np.digitize(y, [0.2, 1.2])]
OPTIONS = {"key": 0, "folds": 3, "search": jsparse.Profile(3)}
FIXED = jsparse.FixedSize(12)
CLASSES = {"task": "classification", "class_weight": "balanced"}


def shards(target, *ends, weights=None, batch_rows=BATCH):
    """Return streams of the rows up to each end."""
    return [
        ArrayStream(
            X[a:b], target[a:b], None if weights is None else weights[a:b], batch_rows=batch_rows
        )
        for a, b in itertools.pairwise([0, *ends])
    ]


def own(streams, owner, rank):
    """Return the shards of one process; `owner` has the process of each shard."""
    return Shards({i: s for i, s in enumerate(streams) if owner[i] == rank})


def all_of(streams):
    return Shards(dict(enumerate(streams)))


def numbers_of(trained):
    assert trained.out_of_fold is not None
    return {
        "C": np.asarray(trained.C),
        "point_rows": np.asarray(trained.point_rows),
        "n_rows": np.asarray(trained.n_rows),
        "cv_error": np.asarray(trained.cv_error),
        "values": np.asarray(trained.expansion(X)),
        "out_of_fold": np.asarray(trained.out_of_fold),
        "errors": np.zeros(0) if trained.curve is None else np.asarray(trained.curve.errors),
    }


def equal(streams, owner, mesh, rank, **options):
    """Assert that the result of all processes equals the result of one with all shards."""
    options = {**OPTIONS, "method": FIXED, **options}
    resources = {"sample_rows": 100, **options.pop("resources", {})}
    ours = jsparse.train(
        own(streams, owner, rank), resources=jsparse.Resources(mesh=mesh, **resources), **options
    )
    numbers = numbers_of(ours)
    expected = numbers
    if rank == 0:  # compiling it in every process would take long
        theirs = jsparse.train(all_of(streams), resources=jsparse.Resources(**resources), **options)
        expected = numbers_of(theirs)
        assert ours.model.labels == theirs.model.labels
    expected = broadcast_one_to_all(expected)
    for name in ("C", "point_rows", "n_rows"):
        np.testing.assert_array_equal(numbers[name], expected[name])
    np.testing.assert_allclose(numbers["cv_error"], expected["cv_error"], rtol=1e-8)
    for name in ("values", "out_of_fold"):
        np.testing.assert_allclose(numbers[name], expected[name], atol=1e-8, rtol=1e-8)
    np.testing.assert_allclose(numbers["errors"], expected["errors"], rtol=1e-7)
    assert {len(a.devices()) for a in jax.tree.leaves(ours.expansion)} == {1}
    return ours


def uneven_shards(mesh, rank, last):
    streams = shards(y, 10, 33, 200, 240, weights=w)
    equal(streams, [0, last, last, 0], mesh, rank, task="regression")


def an_empty_process(mesh, rank, last):
    streams = [*shards(labels, 100, 240, weights=w), []]
    equal(streams, [last, last, 0], mesh, rank, **CLASSES)


def classes_of_one_process(mesh, rank, last):
    """Train with a class that only one process sees."""
    order = np.argsort(labels, kind="stable")
    X_, labels_ = X[order], labels[order]
    cut = [int(np.sum(labels_ == "a")), int(np.sum(labels_ <= "bb")), N]
    streams = [
        ArrayStream(X_[a:b], labels_[a:b], batch_rows=BATCH)
        for a, b in itertools.pairwise([0, *cut])
    ]
    equal(streams, [last, 0, 0], mesh, rank, **CLASSES)


def separate_classes(mesh, rank, last):
    """Train binary problems that leave out rows; they have sums for each class."""
    options = {"task": "classification", "multiclass": "one_versus_one"}
    equal(shards(labels, 33, 240), [last, 0], mesh, rank, **options)


def sizes(mesh, rank, last):
    streams, owner = shards(y, 80, 240), [0, last]
    options = {"task": "regression", "folds": jsparse.HoldOut(0.3)}
    equal(streams, owner, mesh, rank, method=jsparse.SCDP(4, candidates=20), **options)


def other_methods(mesh, rank, last):
    streams, owner = shards(y, 80, 240), [0, last]
    for method in (jsparse.SparseReduction(15), jsparse.KSP(4, candidates=20)):
        equal(streams, owner, mesh, rank, method=method, task="regression")


def errors_of_one_process(mesh, rank, last):
    """Check errors that arise in one process: all processes raise them, and then go on."""

    def refused(stream, message, error: Any = ValueError, **more):
        options = {**OPTIONS, "method": FIXED, **CLASSES, **more}
        with pytest.raises(error, match=message) as raised:
            jsparse.train(stream, resources=jsparse.Resources(mesh=mesh), **options)
        return str(raised.value)

    both = Shards({0: shards(labels, 100)[0]})
    refused(both, "got shard 0 in processes 0 and")
    narrow = ArrayStream(X[:, : 3 - (rank == last)], labels, batch_rows=BATCH)
    refused(Shards({rank: narrow}), "as many columns in every process, got 3 .*, 2 in process")
    broken = X.copy()
    broken[50, 1] = np.nan
    part = ArrayStream(broken if rank == last else X, labels)
    message = (
        f"process {last} of the mesh stopped.*: StreamError: shard {last}: row indices 0 to 239: X"
    )
    refused(
        Shards({rank: part}), message if rank != last else "^shard .*at row index 50", Exception
    )
    mixed = Shards({rank: part}) if rank == last else ArrayStream(X, labels)
    refused(mixed, "sharded stream|StreamError|not finite", Exception)

    class Later:
        """Fails in a later pass."""

        passes = 0

        def __iter__(self):
            self.passes += 1
            if self.passes > 2 and rank == last:
                raise OSError("the network is down")
            return iter(ArrayStream(X, labels, batch_rows=BATCH))

    message = (
        f"process {last} of the mesh stopped: OSError: the network" if rank != last else "down"
    )
    refused(Shards({rank: Later()}), message, (OSError, RuntimeError))
    an_empty_process(mesh, rank, last)


def one_process_alone(mesh, rank, last):
    alone = Mesh(np.array(jax.local_devices()), ("rows",))
    if rank == last:
        resources = jsparse.Resources(mesh=alone)
        options = {**OPTIONS, "method": FIXED, "task": "regression", "resources": resources}
        assert jsparse.train(Shards({1: shards(y, 100)[0]}), **options).n_rows == 100


FAST = [an_empty_process, classes_of_one_process, errors_of_one_process]  # of one set of programs
CASES = {
    "fast": FAST,
    "slow": [*FAST, uneven_shards, separate_classes, sizes, other_methods, one_process_alone],
}


def connected(port, rank, count, devices):
    """Connect the processes, and return the mesh of a number of devices of each."""
    warnings.simplefilter("error")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(
        f"127.0.0.1:{port}", count, rank, initialization_timeout=60,
        heartbeat_timeout_seconds=10,
    )  # fmt: skip
    return Mesh(np.array(jax.devices()), ("rows",))


def resumed(mesh, rank, last, folder, moment=None):
    """Write the result of a run with a checkpoint; the last process may be killed."""
    import on_kills  # computes, so not before the processes are connected

    folder = Path(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    checkpoint._SHARE = 0.0  # write the file after every step, however long that takes
    if moment is not None and rank == last:
        on_kills.kill_at(moment)
    streams = shards(labels, 30, 60, 100, 240)
    resources = jsparse.Resources(
        mesh=mesh, checkpoint=folder / "checkpoint", checkpoint_seconds=0.0, sample_rows=100
    )
    options = {**OPTIONS, "method": FIXED, "task": "classification", "resources": resources}
    model = jsparse.train(own(streams, [0, last, last, 0], rank), **options)
    (folder / f"result{rank}").write_text(json.dumps(on_kills.result(model)))


if __name__ == "__main__":
    port, rank, count = map(int, sys.argv[1:4])
    what, *more = sys.argv[4:]
    mesh = connected(port, rank, count, devices=2 if what == "slow" else 1)
    if what == "resumed":
        resumed(mesh, rank, count - 1, *more)
    else:
        for case in CASES[what]:
            case(mesh, rank, count - 1)
            print(case.__name__, flush=True)
