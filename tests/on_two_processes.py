"""Run by `test_devices.py` twice at the same time: `on_two_processes.py PORT RANK`."""

import sys
import warnings

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jsparse
from jsparse.features import Nystroem
from jsparse.kernels import RBF

N = 60


def main(port, rank):
    warnings.simplefilter("error")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank, initialization_timeout=30)
    assert len(jax.local_devices()) == 2
    assert len(jax.devices()) == 4
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 3))
    y, w = np.sin(2 * X[:, 0]) + X[:, 1], rng.uniform(0.5, 1.5, N)
    the_sums(mesh, rank, X, y, w)
    the_training(mesh, X, y, w)


def the_sums(mesh, rank, X, y, w):
    """From each process's own half of the rows."""
    half = slice(rank * N // 2, (rank + 1) * N // 2)
    rows = NamedSharding(mesh, PartitionSpec("rows"))
    parts = [jax.make_array_from_process_local_data(rows, a[half]) for a in (X, y, w)]
    assert not parts[0].is_fully_addressable
    phi = Nystroem(RBF(1.5), jax.numpy.asarray(X[:5]))
    sums = jsparse.accumulate(phi, *parts, mesh=mesh)
    F = np.asarray(phi(jax.numpy.asarray(X)))
    np.testing.assert_allclose(sums.gram, F.T @ (w[:, None] * F), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sums.cross, F.T @ (w * y), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sums.target_square, np.sum(w * y * y), rtol=1e-12)
    solution = sums.solve(jax.numpy.array([1.0]))
    expected = jsparse.accumulate(phi, *map(jax.numpy.asarray, (X, y, w)))
    expected = expected.solve(jax.numpy.array([1.0]))
    np.testing.assert_allclose(solution.weights, expected.weights, rtol=1e-9)


def the_training(mesh, X, y, w):
    """From the same table in both, the same model in both: that of one device."""
    options = {
        "task": "regression",
        "key": jax.random.key(0),
        "method": jsparse.FixedSize(8, selection="uniform"),
        "folds": 3,
        "search": jsparse.Profile(2),
        "weights": w,
        "out_of_fold": True,
    }
    ours = jsparse.train(X, y, resources=jsparse.Resources(mesh=mesh), **options)
    theirs = jsparse.train(X, y, **options)
    assert ours.C == theirs.C
    np.testing.assert_allclose(ours.expansion(X), theirs.expansion(X), atol=1e-8)
    np.testing.assert_allclose(ours.out_of_fold, theirs.out_of_fold, atol=1e-8)
    resources = jsparse.Resources(mesh=mesh, max_seconds=9.0)
    with pytest.raises(ValueError, match="max_seconds: expected none in several processes"):
        jsparse.train(X, y, resources=resources, **options)


main(int(sys.argv[1]), int(sys.argv[2]))
