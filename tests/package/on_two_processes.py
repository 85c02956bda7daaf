"""Run by `test_devices.py` twice at the same time: `on_two_processes.py PORT RANK`."""

import re
import sys
import warnings

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jsparse
from jsparse.data.streams import ArrayStream
from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.multiclass import accumulate_code

N = 60

OPTIONS = {
    "task": "regression",
    "key": 0,
    "method": jsparse.FixedSize(8, selection="uniform"),
    "folds": 3,
    "search": jsparse.Profile(2),
}


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
    refused_resources(mesh, rank, X, y)
    rows_of_a_problem(mesh, X, y, w)
    differing_arguments(mesh, rank, X, y, w)
    differing_streams(mesh, rank, X, y)
    differing_rows_of_functions(mesh, rank, X, y, w)
    a_failure_in_one(mesh, rank, X, y)
    global_arrays(mesh, X, y, w)
    the_training(mesh, X, y, w)
    one_process_alone(rank, X, y)


def the_sums(mesh, rank, X, y, w):
    """Sum rows of which each process holds one half."""
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
    """Train on a table or a stream; both processes get the model of one device.

    Also by predictions for every `C`, if each binary problem has its own.
    """
    of_classes = {
        **OPTIONS, "task": "classification", "multiclass": jsparse.Multiclass(C_per_problem=True),
    }  # fmt: skip
    for rows, options in (
        ((X, y), {**OPTIONS, "kernel": "auto", "weights": w}),
        ((X, np.digitize(y, [-0.5, 0.5])), {**of_classes, "weights": w}),
        ((ArrayStream(X, y, w, batch_rows=25),), OPTIONS),
    ):
        ours = jsparse.train(*rows, resources=jsparse.Resources(mesh=mesh), **options)
        theirs = jsparse.train(*rows, **options)
        np.testing.assert_array_equal(ours.C, theirs.C)
        np.testing.assert_allclose(ours.cv_error, theirs.cv_error, rtol=1e-8)
        np.testing.assert_allclose(ours.expansion(X), theirs.expansion(X), atol=1e-8)
        assert np.isfinite(theirs.out_of_fold).all()
        np.testing.assert_allclose(ours.out_of_fold, theirs.out_of_fold, atol=1e-8)


def refused_resources(mesh, rank, X, y):
    theirs = Mesh(np.array([d for d in jax.devices() if d.process_index != rank]), ("rows",))
    for message, options in (
        ("max_seconds: expected no limit in several", {"mesh": mesh, "max_seconds": 9.0}),
        ("mesh: expected devices of this process", {"mesh": theirs}),
    ):
        with pytest.raises(ValueError, match=message):
            jsparse.train(X, y, resources=jsparse.Resources(**options), **OPTIONS)


def rows_of_a_problem(mesh, X, y, w):
    """Check that every process has all rows, of which a part decides between kernels."""
    folds = jsparse.plain_folds(jax.random.key(0), N, 3)
    problem = jsparse.tuning_problem(RBF(1.5), X[:5], X, y, folds, w, mesh=mesh)
    rows = problem.source.rows_in_memory()
    np.testing.assert_allclose(np.sum(rows[2]), np.sum(w), rtol=1e-12)
    np.testing.assert_allclose(rows[2] @ rows[0], w @ X, rtol=1e-12, atol=1e-12)


def refused(mesh, message, *rows, **changed):
    options = {**OPTIONS, "resources": jsparse.Resources(mesh=mesh), **changed}
    with pytest.raises(ValueError, match="expected the same rows and settings") as raised:
        jsparse.train(*rows, **options)
    assert re.search(message, str(raised.value)), (message, str(raised.value))


def differing_arguments(mesh, rank, X, y, w):
    """Refuse arguments that differ, with their names, in both processes; then both go on."""
    of_half = slice(rank * N // 2, (rank + 1) * N // 2)
    refused(mesh, "got contents of X: checksum .* in process 0, .*; contents of y: checksum",
            X[of_half], y[of_half])  # fmt: skip
    less = slice(rank, None)
    refused(mesh, r"got X: float64 of shape \(60, 3\) in process 0, .*59, 3\) in process 1; y: ",
            X[less], y[less])  # fmt: skip
    moved = y + np.where(np.arange(N) == 3, 1e-9 * rank, 0)
    refused(mesh, "got contents of y: checksum [^;]*[.] Give", X, moved)
    refused(mesh, "got contents of weights: checksum [^;]*[.] Give", X, y, weights=w + rank)
    refused(mesh, "X: float64 .* in process 0, float32", X.astype(f"f{8 - 4 * rank}"), y)
    settings = [
        ("method.n_prototypes: 8 in process 0, 9 in", {"method": jsparse.FixedSize(8 + rank)}),
        ("search.max_evaluations: 2 in process 0, 3 in", {"search": jsparse.Profile(2 + rank)}),
        ("folds: 3 in process 0, 4 in process 1", {"folds": 3 + rank}),
        ("contents of key: checksum", {"key": rank}),
        ("contents of C: checksum", {"C": [1.0, 2.0 + rank]}),
        ("contents of kernel.lengthscale: checksum", {"kernel": RBF(1.0 + rank)}),
        ("kernel.*: 1 in process 0, 2 in", {"kernel": lambda x, z, n=1 + rank: n + x @ z}),
        ("out_of_fold: True in process 0, False in", {"out_of_fold": rank == 0}),
        ("task: 'regression' in", {"task": ("regression", "classification")[rank]}),
    ]
    for message, changed in settings:
        refused(mesh, f"got {message}", X, y, **changed)


def differing_streams(mesh, rank, X, y):
    """Refuse streams: other settings before reading, other rows at the end of the first pass."""
    longer = ArrayStream(X[rank:], y[rank:])
    refused(mesh, "got rows of the stream: 60 in process 0, 59 in", longer)
    half = slice(rank * N // 2, (rank + 1) * N // 2)
    halves = ArrayStream(X[half], y[half])
    refused(mesh, "got contents of X: checksum .*; contents of y", halves)
    batches = ArrayStream(X, y, batch_rows=20 + 10 * rank)
    refused(mesh, "got batches of the stream: 3 in process 0, 2 in", batches)

    class Unread:
        def __iter__(self):
            raise AssertionError("the stream was read")

    refused(mesh, "got folds: 3 in process 0, 4 in", Unread(), folds=3 + rank)


def differing_rows_of_functions(mesh, rank, X, y, w):
    """Refuse rows that differ in pure functions with a mesh; inside `jit` no value is known."""
    phi, changed = Nystroem(RBF(1.5), jax.numpy.asarray(X[:5])), w + rank
    C, code = jax.numpy.ones(1), jsparse.output_code("one_versus_one", 3)
    X, y, labels = jax.numpy.asarray(X), jax.numpy.asarray(y), np.arange(N) % 3
    folds, other_folds = (jsparse.plain_folds(jax.random.key(i), N, 3) for i in (0, rank))
    machine, points, rows = jsparse.fixed_size, X[:5], (X, y, changed)
    calls = [
        lambda: jsparse.accumulate(phi, *rows, mesh=mesh),
        lambda: accumulate_code(code, phi, X, labels, changed, mesh=mesh),
        lambda: machine.fit(RBF(1.5), points, 1.0, *rows, mesh=mesh),
        lambda: machine.fit_features(phi, 1.0, *rows, mesh=mesh),
        lambda: machine.fit_classes(phi, 1.0, X, labels, code, changed, mesh=mesh),
        lambda: jsparse.cross_validate(phi, C, X, y, folds, changed, mesh=mesh),
        lambda: jsparse.tuning_problem(RBF(1.5), points, X, y, folds, changed, mesh=mesh),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="got contents of weights: checksum"):
            call()
    with pytest.raises(ValueError, match=r"got contents of folds.index: checksum"):
        jsparse.cross_validate(phi, C, X, y, other_folds, mesh=mesh)
    jitted = jax.jit(lambda w: jsparse.accumulate(phi, X, y, w, mesh=mesh).weight_sum)
    np.testing.assert_allclose(jitted(w), np.sum(w))


def a_failure_in_one(mesh, rank, X, y):
    """Fail in one process; the other process raises an error instead of waiting."""
    X = np.where((np.arange(N) == 3)[:, None], (1.0, np.nan)[rank], X)
    cases = [
        ((X, y), "ValueError: X: expected finite values, got nan"),
        ((ArrayStream(X, y),), "StreamError: row indices 0 to 59: X is not finite at row index 3"),
    ]
    for rows, message in cases:
        error = (RuntimeError, ValueError)[rank]
        on_the_other = f"process 1 of the mesh stopped before any work: {message}"
        with pytest.raises(error, match=(on_the_other, message.split(": ", 1)[1])[rank]):
            jsparse.train(*rows, resources=jsparse.Resources(mesh=mesh), **OPTIONS)


def one_process_alone(rank, X, y):
    """Train in one process on its local devices, which neither compares nor waits."""
    if rank == 1:
        resources = jsparse.Resources(mesh=Mesh(np.array(jax.local_devices()), ("rows",)))
        assert jsparse.train(X[1:], y[1:], resources=resources, **OPTIONS).n_rows == N - 1


def global_arrays(mesh, X, y, w):
    """Refuse global arrays where rows go to the host, unless every process holds all rows."""
    rows = NamedSharding(mesh, PartitionSpec("rows"))
    Xs, ys, ws = (jax.make_array_from_callback(a.shape, rows, a.__getitem__) for a in (X, y, w))
    resources = jsparse.Resources(mesh=mesh)
    regressor = jsparse.estimators.FixedSizeLSSVMRegressor(8)
    machine = jsparse.KernelExpansion(RBF(1.5), *map(jax.numpy.asarray, (X[:5], y[:5], 0.0)))
    model = jsparse.Model(machine).calibrated(X, y)
    linear = jsparse.estimators.FixedSizeLSSVMRegressor(kernel="linear", C=1.0, cv=3).fit(X, y)
    calls = [
        ("X", lambda: linear.predict(Xs)),
        ("X", lambda: linear.partial_fit(Xs, y)),
        ("X", lambda: jsparse.train(Xs, ys, resources=resources, **OPTIONS)),
        ("X", lambda: jsparse.train(Xs, y, **OPTIONS)),
        ("y", lambda: jsparse.train(X, ys, resources=resources, **OPTIONS)),
        ("y", lambda: jsparse.train(X, ys, **{**OPTIONS, "task": "classification"})),
        ("weights", lambda: jsparse.train(X, y, weights=ws, **OPTIONS)),
        ("X", lambda: jsparse.train([(Xs, y)], **OPTIONS)),
        ("X", lambda: ArrayStream(Xs, y)),
        ("X", lambda: jsparse.distil(model, Xs, y, key=0)),
        ("X", lambda: model.predict(Xs)),
        ("X", lambda: model.predict(Xs[:, 0])),
        ("X", lambda: model.interval(Xs)),
        ("X", lambda: model.calibrated(Xs, y)),
        ("y", lambda: model.calibrated(X, ys)),
        ("X", lambda: regressor.fit(Xs, y)),
        ("y", lambda: regressor.fit(X, ys)),
        ("sample_weight", lambda: regressor.fit(X, y, ws)),
        ("batches", lambda: jsparse.accumulate_batches(Nystroem(RBF(1.5), X[:5]), [(Xs, ys)])),
        (
            "X",
            lambda: jsparse.tuning_problem(
                RBF(1.5), X[:5], Xs, ys, jsparse.plain_folds(0, N, 3), mesh=mesh
            ),
        ),
    ]
    for name, call in calls:
        with pytest.raises(ValueError, match=f"{name}: expected values that this process holds"):
            call()
    whole = jax.make_array_from_callback(
        X.shape, NamedSharding(mesh, PartitionSpec()), X.__getitem__
    )
    assert not whole.is_fully_addressable
    np.testing.assert_array_equal(model.predict(whole), model.predict(X))


main(*map(int, sys.argv[1:]))
