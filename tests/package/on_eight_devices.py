"""Run by `test_devices.py` in a separate process that has eight devices."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jsparse
from jsparse.cli.main import main
from jsparse.data.streams import ArrayStream
from jsparse.features import Nystroem
from jsparse.kernels import RBF, Kernel
from jsparse.machines import METHODS
from jsparse.machines.from_sums import FromSums
from jsparse.machines.method import Shape
from jsparse.normal_equations import accumulate, accumulate_folds
from jsparse.training.source import evaluate, evaluate_batch
from jsparse.training.tables import tuning_problem
from jsparse.validation.validate import FoldLosses, Kept, Scoring


@pytest.fixture
def mesh():
    devices = jax.devices()
    assert len(devices) == 8
    return Mesh(np.array(devices), ("rows",))


def data(n, dtype="float64"):
    rng = np.random.default_rng(0)
    X, y, w = rng.standard_normal((n, 3)), rng.standard_normal((n, 2)), rng.uniform(size=n)
    return tuple(jnp.asarray(a.astype(dtype)) for a in (X, y, w))


def classes(n=150):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, 3))
    return X, np.digitize(X[:, 0] + X[:, 1] ** 2 + 0.3 * rng.standard_normal(n), [0.5, 1.5])


def features(X, lengthscale=1.5):
    return Nystroem(RBF(lengthscale), X[:4])


def assert_equal(ours, theirs, tolerance):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_allclose(a, b, atol=tolerance * float(np.max(np.abs(b))), rtol=0)


@pytest.mark.slow
def test_devices_share_problems(mesh):
    rng = np.random.default_rng(0)
    problems = [(rng.standard_normal((40, 2)), rng.standard_normal(40)) for _ in range(5)]
    options = {"task": "regression", "key": 0, "method": jsparse.FixedSize(5), "folds": 3}
    spread = jsparse.train_many(problems, **options, resources=jsparse.Resources(mesh=mesh))
    alone = jsparse.train_many(problems, **options)
    assert not spread.alone
    np.testing.assert_allclose(spread.cv_errors, alone.cv_errors, rtol=1e-9)
    np.testing.assert_array_equal(spread[4].point_rows, alone[4].point_rows)


@pytest.mark.parametrize(
    ("dtype", "n"),
    [  # fewer rows than devices; a multiple of them; neither
        ("float64", 5),
        pytest.param("float64", 64, marks=pytest.mark.slow),
        ("float32", 203),
    ],
)
def test_sums_are_those_of_one_device(mesh, dtype, n):
    X, y, w = data(n, dtype)
    phi, tolerance = features(X), {"float64": 1e-12, "float32": 2e-6}[dtype]
    sums = accumulate(phi, X, y, w, mesh=mesh)
    assert sums.gram.dtype == dtype
    assert_equal(sums, accumulate(phi, X, y, w), tolerance)
    # The sums also equal NumPy's.
    F, W = np.asarray(phi(X), float), np.asarray(w, float)[:, None]
    np.testing.assert_allclose(sums.gram, F.T @ (W * F), atol=tolerance * float(W.sum()))
    np.testing.assert_allclose(sums.cross, F.T @ (W * y), atol=tolerance * float(W.sum()))
    np.testing.assert_allclose(sums.weight_sum, W.sum(), rtol=tolerance)


def test_any_mesh_and_rows_that_are_spread_already(mesh):
    X, y, w = data(64)
    phi, target = features(X), y[:, 0]
    assert_equal(
        accumulate(phi, X, target, mesh=mesh, block_rows=3), accumulate(phi, X, target), 1e-12
    )
    expected = accumulate(phi, X, y, w)
    devices = np.array(jax.devices())
    for other in (Mesh(devices.reshape(4, 2), ("a", "b")), Mesh(devices[3:], ("rows",))):
        assert_equal(accumulate(phi, X, y, w, mesh=other), expected, 1e-12)
    rows = NamedSharding(mesh, PartitionSpec("rows"))
    spread = [jax.device_put(a, rows) for a in (X, y, w)]
    assert_equal(accumulate(phi, *spread, mesh=mesh), expected, 1e-12)


def test_no_device_sees_the_rows_of_others(mesh):
    n, v = 24000, 4  # more rows on each device than a block has
    X = jax.random.normal(jax.random.key(0), (n, 20))
    folds = jsparse.plain_folds(jax.random.key(1), n, v)
    problem = tuning_problem(RBF(1.0), X[:10], X, X[:, 0], folds, mesh=mesh)
    rows = problem.source.placed
    assert {s.data.shape for s in rows.X.addressable_shards} == {(n // 8, 20)}
    sums = accumulate.lower(features(X), rows.X, rows.y, rows.weights, mesh=mesh)
    assert "all-gather" not in sums.compile().as_text()
    C, nothing_kept = jnp.geomspace(0.1, 10.0, 3), Kept(np.int32(0), np.int32(0))
    held_out = problem.source.held_out_rows(problem, jnp.zeros(1))
    compiled = evaluate.lower(held_out, C, FoldLosses(Scoring("mse"), nothing_kept)).compile()
    used = compiled.memory_analysis()
    # An eighth of the inputs, and blocks of features and predictions.
    assert used.argument_size_in_bytes < 1.1 * (X.nbytes + 2 * X[:, 0].nbytes) / 8 + 1e4
    assert used.temp_size_in_bytes < X.nbytes / 3
    # What goes from device to device: sums, solutions and scores of the folds, never rows.
    moved = re.findall(r"= (.*?) (?:all-\w+|collective-\w+)(?:-start)?\(", compiled.as_text())
    assert moved
    for arrays in moved:
        for shape in re.findall(r"\w\d+\[([\d,]+)\]", arrays):
            assert math.prod(map(int, shape.split(","))) <= v * 10 * 10, arrays


def test_rows_of_no_weight_may_hold_anything_and_fill_a_device(mesh):
    X, y, w = data(64)
    w = w.at[:20].set(0)
    dirty, wrong = X.at[:20].set(jnp.nan), y.at[:20].set(jnp.inf)
    phi = features(X)
    expected = accumulate(phi, X[20:], y[20:], w[20:])
    assert_equal(accumulate(phi, dirty, wrong, w, mesh=mesh), expected, 1e-12)
    assert_equal(accumulate(phi, dirty, wrong, w, block_rows=8), expected, 1e-12)


def is_from_sums(name):
    return issubclass(METHODS[name], FromSums)


class Logarithmic(Kernel):
    def __call__(self, x, z):
        return jnp.exp(-jnp.sum(jnp.abs(jnp.log(x) - jnp.log(z))))


def test_a_kernel_that_is_not_finite_at_zero_meets_no_padding(mesh):
    X, y, w = data(11)
    X = jnp.exp(X)
    phi = Nystroem(Logarithmic(), X[:3])
    assert_equal(accumulate(phi, X, y, w, mesh=mesh), accumulate(phi, X, y, w, block_rows=4), 1e-12)


@pytest.mark.slow
def test_sums_are_differentiable_in_everything(mesh):
    X, y, w = data(21)

    def value(arguments, mesh):
        lengthscale, X, y, w = arguments
        sums = accumulate(features(X, lengthscale), X, y, w, mesh=mesh)
        return sum(jnp.sum(jnp.sin(a)) for a in jax.tree.leaves(sums))

    @functools.partial(jax.jit, static_argnums=1)
    def derivatives(at, mesh):
        gradient = jax.grad(value)(at, mesh)
        return gradient, jax.jvp(lambda a: value(a, mesh), (at,), (jax.tree.map(jnp.cos, at),))[1]

    at = (jnp.asarray(1.5), X, y, w)
    (gradient, slope), (expected, expected_slope) = (derivatives(at, m) for m in (mesh, None))
    assert_equal(gradient, expected, 1e-10)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-10)


@pytest.mark.slow
def test_sums_of_every_fold_in_one_pass(mesh):
    X, y, w = data(3 * 25)
    by_fold = [a.reshape(3, 25, *a.shape[1:]) for a in (X, y, w)]
    phi = features(X)
    folds = jax.jit(accumulate_folds, static_argnames="mesh")(phi, *by_fold, mesh=mesh)
    for i in range(3):
        alone = accumulate(phi, *(a[i] for a in by_fold))
        assert_equal(jax.tree.map(lambda a, i=i: a[i], folds), alone, 1e-12)


@pytest.mark.parametrize(
    "method",
    ["subtraction", *(pytest.param(way, marks=pytest.mark.slow) for way in ("removal", "classes"))],
)
def test_cross_validation_is_that_of_one_device(mesh, method):
    X, y, w = data(101)
    C, folds = jnp.array([0.3, 30.0]), jsparse.plain_folds(jax.random.key(1), 101, 9)
    code, target, options = None, y, {"method": method}
    if method == "classes":
        code = jsparse.output_code("one_versus_one", 3)
        target = jnp.arange(101, dtype=jnp.int32) % 3
        options = {"metric": "misclassification"}

    phi = features(X)
    ours, theirs = (
        jsparse.cross_validate(phi, C, X, target, folds, w, mesh=where, code=code, **options)
        for where in (mesh, None)
    )
    assert_equal(ours, theirs, 1e-9)


@pytest.mark.slow
def test_the_error_of_cross_validation_is_differentiable(mesh):
    X, y, w = data(50)
    C, folds = jnp.array([0.3, 30.0]), jsparse.plain_folds(jax.random.key(1), 50, 3)

    def error(lengthscale, mesh):
        options = {"mesh": mesh, "method": "subtraction"}
        phi = features(X, lengthscale)
        return jnp.sum(jsparse.cross_validate(phi, C, X, y, folds, w, **options).scores)

    slope = jax.jit(jax.grad(error), static_argnums=1)
    at = jnp.asarray(1.5)
    np.testing.assert_allclose(slope(at, mesh), slope(at, None), rtol=1e-8)


@pytest.mark.slow
def test_a_batch_of_kernels_on_a_mesh(mesh):
    X, y, w = data(60)
    folds = jsparse.plain_folds(jax.random.key(0), 60, 4)
    problem = tuning_problem(RBF(1.0), X[:6], X, y[:, 0], folds, w, mesh=mesh)
    thetas, C = jnp.array([[0.2], [0.7]]), jnp.array([[1.0, 10.0]] * 2)
    alone = tuning_problem(RBF(1.0), X[:6], X, y[:, 0], folds, w)

    def scores(problem):
        held_out = problem.source.held_out_rows(problem, thetas)
        return evaluate_batch(held_out, C, FoldLosses(Scoring("mse"))).scores

    np.testing.assert_allclose(scores(problem), scores(alone), rtol=1e-10)


@pytest.mark.slow
def test_the_trained_model_is_that_of_one_device(mesh):
    X, y = classes()
    options = {
        "task": "classification",
        "key": jax.random.key(0),
        "method": jsparse.FixedSize(12, selection="uniform"),
        "folds": 5,
        "metric": "mse",
        "search": jsparse.Profile(3),
        "weights": np.linspace(0.5, 1.5, 150),
        "multiclass": "one_versus_one",
    }
    ours = jsparse.train(X, y, resources=jsparse.Resources(mesh=mesh), **options)
    theirs = jsparse.train(X, y, **options)
    np.testing.assert_array_equal(ours.C, theirs.C)
    np.testing.assert_allclose(ours.cv_error, theirs.cv_error, rtol=1e-10)
    np.testing.assert_allclose(ours.kernel.lengthscale, theirs.kernel.lengthscale, rtol=1e-12)
    np.testing.assert_allclose(ours.out_of_fold, theirs.out_of_fold, atol=1e-8)
    np.testing.assert_allclose(ours.expansion(X), theirs.expansion(X), atol=1e-8)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    # The model itself is on one device.
    assert {len(a.devices()) for a in jax.tree.leaves(ours.expansion)} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
def test_a_trained_path_is_that_of_one_device(mesh, streamed):
    X, y = classes()
    options = {
        "task": "classification",
        "key": jax.random.key(0),
        "method": jsparse.SCDP(max_prototypes=5, candidates=X[:20]),
        "folds": 3,
        "search": jsparse.Profile(2),
    }
    data = [ArrayStream(X, y, batch_rows=70)] if streamed else [X, y]
    ours = jsparse.train(*data, resources=jsparse.Resources(mesh=mesh), **options)
    theirs = jsparse.train(*data, **options)
    assert ours.C == theirs.C
    assert ours.curve.size == theirs.curve.size
    np.testing.assert_allclose(ours.curve.errors, theirs.curve.errors, rtol=1e-7)
    for size in (1, 5):
        np.testing.assert_allclose(ours.at(size)(X), theirs.at(size)(X), atol=1e-6)
    np.testing.assert_allclose(ours.out_of_fold, theirs.out_of_fold, atol=1e-6)
    of_model = [a for a in jax.tree.leaves(ours.model) if isinstance(a, jax.Array)]
    assert {len(a.devices()) for a in of_model} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if is_from_sums(name)])
@pytest.mark.parametrize("classes", [False, True])
def test_methods_of_sums_are_validated_as_on_one_device(mesh, name, classes):
    X, y, w = data(70)
    shape = Shape(70, 70, 46, 3, 3 if classes else None, False)
    method = METHODS[name](4).resolve(shape)
    folds, C = jsparse.plain_folds(jax.random.key(1), 70, 3), jnp.array([1.0, 30.0])
    target, options = y[:, 0], {"metric": "mse"}
    if classes:
        target = jnp.arange(70, dtype=jnp.int32) % 3
        code = jsparse.output_code("one_versus_rest", 3)
        options = {"metric": "misclassification", "code": code}
    ours, theirs = (
        jsparse.validate(
            method, RBF(1.5), X[:12], C, X, target, folds, w, key=jax.random.key(0), keep=1,
            mesh=where, **options,
        )
        for where in (mesh, None)
    )  # fmt: skip
    assert_equal(ours.scores, theirs.scores, 1e-8)
    assert_equal(ours.fold_scores, theirs.fold_scores, 1e-8)
    assert_equal(ours.predictions, theirs.predictions, 1e-7)
    np.testing.assert_array_equal(ours.status, theirs.status)


def test_what_a_mesh_cannot_do_is_told(mesh):
    X, y, w = data(40)
    explicit = jax.make_mesh((8,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    with pytest.raises(ValueError, match="mesh: expected axes of type Auto"):
        accumulate(features(X), X, y, w, mesh=explicit)
    resources = jsparse.Resources(mesh=explicit)
    with pytest.raises(ValueError, match="mesh: expected axes of type Auto"):
        jsparse.train(
            X, y, task="regression", key=0, method=jsparse.FixedSize(4), resources=resources
        )
    folds = jsparse.plain_folds(jax.random.key(0), 40, 4)
    kernel, C = RBF(1.0), jnp.ones(1)
    for method in (jsparse.Robust(4), jsparse.Dual()):
        with pytest.raises(ValueError, match="mesh: expected a method that needs only sums"):
            jsparse.validate(method, kernel, X[:4], C, X, y, folds, metric="mae", mesh=mesh)


def test_the_command_line_names_the_devices_there_are(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["demo", "--devices", "9", "--quiet"]) == 2
    assert "--devices: expected at most 8" in capsys.readouterr().err
