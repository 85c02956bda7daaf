"""The contracts of every method in the registry; a new method is tested once it is registered."""

import dataclasses
import inspect
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import KINDS, NAMES, SLOW, fields_of, method_named, named
from sklearn.datasets import load_iris

import jsparse
from jsparse import estimators
from jsparse.cli.options import command_line, method_of
from jsparse.data.streams import ArrayStream
from jsparse.kernels import RBF
from jsparse.machines import METHODS, fixed_size, row_prototypes
from jsparse.machines.family import single
from jsparse.machines.from_sums import FromSums
from jsparse.machines.method import Shape
from jsparse.machines.row_prototypes import Prototypes
from jsparse.machines.rows import rows_of
from jsparse.validation.validate import validate


def rows(task, dtype="float64", classes=2, n=60):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3)).astype(dtype)
    score = X[:, 0] + np.tanh(X[:, 1])
    if task == "regression":
        return X, (score + 0.1 * rng.standard_normal(n)).astype(dtype)
    edges = np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1])
    return X, np.array(["a", "b", "c"])[np.searchsorted(edges, score)]


def trained(name, task, X, y, **options):
    given = {
        "task": task,
        "key": 0,
        "method": method_named(name),
        "C": np.array([1.0, 10.0]),
        "search": jsparse.Profile(3),
        "folds": 3,
    }
    if not METHODS[name].has_C:
        del given["C"]
        options.pop("C", None)
    return jsparse.train(X, y, **{**given, **options})


# Of the methods that are not fast, that they train is, unless even that takes long.
LONG = (
    "fixed-size", "kbp", "kmp", "reduced-set", "reduced-svm", "reduction", "rvm", "slmc",
    "sparse-fisher", "sparse-ridge", "spsvm",
)  # fmt: skip
CASES = [(name, task) for name in NAMES for task in METHODS[name].tasks]
ONCE = [pytest.param(*case, marks=() if case[0] in KINDS else SLOW) for case in CASES]
# Of each method that is fast one task in one precision, in turn.
FIRST = {case[0]: i for i, case in reversed(list(enumerate(CASES)))}
IN_BOTH = [
    pytest.param(
        *case,
        dtype,
        marks=SLOW if case[0] in LONG or i % 2 == half or FIRST[case[0]] != i else (),
    )
    for i, case in enumerate(CASES)
    for half, dtype in enumerate(("float64", "float32"))
]


@pytest.mark.parametrize(("name", "task", "dtype"), IN_BOTH)
def test_a_method_trains_predicts_and_is_saved(name, task, dtype, tmp_path):
    X, y = rows(task, dtype)
    found = trained(name, task, X, y)
    model = found.model
    assert str(model.dtype) == dtype
    assert np.isfinite(found.cv_error)
    assert set(found.statuses) == {"fit", "choice of prototypes", "cross-validation"}
    answers = model.predict(X)
    if task == "classification":
        assert (answers == y).mean() > 0.8
        probabilities = model.predict_proba(X)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
        assert (model.classes[probabilities.argmax(axis=1)] == answers).all()
        # The reported error is comparable between methods, regardless of the objective of the
        # search.
        assert found.metric == model.about["metric"] == "misclassification"
        wrong = (found.out_of_fold >= 0) != (y == model.classes[1])
        np.testing.assert_allclose(found.cv_error, wrong.mean(), rtol=1e-6)
        if found.curve is not None:
            assert found.curve.metric == found.metric
            assert found.cv_error == found.curve.errors[found.curve.chosen]
    else:
        assert np.mean((answers - y) ** 2) < 0.3 * np.var(y)
        assert found.out_of_fold.shape == y.shape
    model.save(tmp_path / "model")
    loaded = jsparse.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), answers)
    assert dict(loaded.about) == dict(model.about)
    assert name in repr(loaded)
    if METHODS[name].several_sizes:
        for size in (1, 3, int(found.curve.sizes[-1])):
            np.testing.assert_array_equal(loaded.at(size)(X), model.at(size)(X))
        with pytest.raises(ValueError, match="n_prototypes: expected"):
            model.at(1000)
    else:
        with pytest.raises(ValueError, match="size: expected"):
            model.at(model.size + 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", named((n for n in NAMES if "classification" in METHODS[n].tasks), "spsvm")
)
def test_three_classes(name):
    X, y = rows("classification", classes=3)
    found = trained(name, "classification", X, y)
    assert found.predict_proba(X).shape == (len(X), 3)
    assert (found.predict(X) == y).mean() > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("name", named(n for n in NAMES if "regression" in METHODS[n].tasks))
def test_several_targets_are_those_alone(name):
    X, y = rows("regression")
    both = np.stack([y, 1000 - 2 * y + np.square(X[:, 2])], axis=1)
    options = {"C": np.array([10.0]), "kernel": RBF(1.5)}
    if name == "scdp":
        method = dataclasses.replace(method_named(name), selection="separate", size_tolerance=0.0)
        options["method"] = method
    options["search"] = jsparse.Profile(tune_kernel=False)
    found = trained(name, "regression", X, both, **options)
    assert found.predict(X).shape == both.shape == found.out_of_fold.shape
    if name in (
        "robust",
        "reduction",
        "sparse-ridge",
    ):  # the targets share its scale, or its prototypes
        assert np.mean((found.predict(X) - both) ** 2) < 0.3 * np.mean(both.var(axis=0))
        return
    for column, target in zip(found.predict(X).T, both.T, strict=True):
        alone = trained(name, "regression", X, target, **options)
        at = alone.at(found.curve.size) if METHODS[name].several_sizes else alone
        np.testing.assert_allclose(column, at.predict(X), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task"), ONCE)
def test_weight_two_is_twice_and_weight_zero_is_absent(name, task):
    """Of the pure fit, and of its validation."""
    X, y = rows(task, n=24)
    target = np.where(y == y[0], 1.0, -1.0) if task == "classification" else y
    method = method_named(name).resolve(Shape(24, 24, 16, 3, None, False))
    if name == "reduced-set":  # each step of its descent amplifies rounding
        method = dataclasses.replace(method, max_iterations=2)
    Z = None if name == "dual" else jnp.asarray(X[:12])
    key = jax.random.key(0)
    twice, w = np.concatenate([np.arange(len(X)), [3, 5]]), np.ones(len(X))
    w[[3, 5]] = 2
    args = RBF(1.2), Z, 3.0

    def fit(X, y, w=None):
        w = None if w is None else jnp.asarray(w)
        return method.fit(*args, rows_of(jnp.asarray(X), jnp.asarray(y), w), key)

    def machine(family):
        return family.at(4) if method.several_sizes else family.expansion

    weighted, plain = jax.jit(fit)(X, target, w), fit(X[twice], target[twice])
    np.testing.assert_allclose(machine(weighted)(X), machine(plain)(X), rtol=1e-5, atol=1e-5)
    gone, spoilt = np.arange(len(X)) < 20, X.copy()
    spoilt[~gone] = 1e6
    left, there = jax.jit(fit)(spoilt, target, gone * 1.0), fit(X[gone], target[gone])
    np.testing.assert_allclose(machine(left)(X), machine(there)(X), rtol=1e-5, atol=1e-5)


# Two that draw prototypes by the number of rows, and one that does not.
FAST_ABSENT = {("fixed-size", "classification"), ("robust", "regression"), ("dual", "regression")}
ABSENT = [pytest.param(*case, marks=() if case in FAST_ABSENT else SLOW) for case in CASES]


def with_rows_of_weight_zero(X, y):
    """Insert absurd rows of weight 0 among the others; return which rows are real."""
    at = [0, 0, 15, len(X)]
    w = np.insert(np.ones(len(X)), at, 0.0)
    absurd = y[0] if y.dtype.kind == "U" else 1e300
    return np.insert(X, at, -1e300, axis=0), np.insert(y, at, absurd), w, np.flatnonzero(w)


@pytest.mark.parametrize(("name", "task"), ABSENT)
def test_training_does_not_see_rows_of_weight_zero(name, task):
    X, y = rows(task, n=31)
    wide_X, wide_y, w, there = with_rows_of_weight_zero(X, y)
    alone = trained(name, task, X, y)
    found = trained(name, task, wide_X, wide_y, weights=w)
    np.testing.assert_array_equal(found.C, alone.C)
    np.testing.assert_allclose(found.cv_error, alone.cv_error, rtol=1e-9)
    np.testing.assert_allclose(found.expansion(X), alone.expansion(X), rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(found.predict(X), alone.predict(X))
    assert found.n_rows == 31
    # Results by row are in the caller's order.
    assert len(found.out_of_fold) == 35
    assert np.isnan(np.delete(found.out_of_fold, there, axis=0)).all()
    np.testing.assert_allclose(found.out_of_fold[there], alone.out_of_fold, rtol=1e-7, atol=1e-9)
    held_out = np.asarray(found.folds.index)[np.asarray(found.folds.valid)]
    np.testing.assert_array_equal(np.sort(held_out), there)
    if alone.point_rows is not None:
        np.testing.assert_array_equal(found.point_rows, there[alone.point_rows])
    assert found.seconds["compile"] == 0


ADDITIVE = [case for case in CASES if issubclass(METHODS[case[0]], FromSums)]


@pytest.mark.parametrize(
    ("name", "task"),
    [
        pytest.param(*case, marks=() if case == ("fixed-size", "regression") else SLOW)
        for case in ADDITIVE
    ],
)
@pytest.mark.parametrize("validation", [2, jsparse.HoldOut(0.4)], ids=["folds", "holdout"])
def test_streams_do_not_see_rows_of_weight_zero(name, task, validation):
    X, y = rows(task)
    wide_X, wide_y, w, there = with_rows_of_weight_zero(X, y)
    options = {"folds": validation, "resources": jsparse.Resources(sample_rows=40)}
    alone = trained(name, task, ArrayStream(X, y, batch_rows=25), None, **options)
    stream = ArrayStream(wide_X, wide_y, w, batch_rows=2)  # one batch has no row that counts
    found = trained(name, task, stream, None, **options)
    np.testing.assert_array_equal(found.C, alone.C)
    np.testing.assert_allclose(found.cv_error, alone.cv_error, rtol=1e-7)
    np.testing.assert_allclose(found.expansion(X), alone.expansion(X), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.out_of_fold, alone.out_of_fold, rtol=1e-6, atol=1e-8)
    assert found.n_rows == alone.n_rows == 60
    if alone.point_rows is not None:
        np.testing.assert_array_equal(found.point_rows, there[alone.point_rows])


DEFAULTS = [
    pytest.param(name, task, n, marks=() if (name, n) == ("fixed-size", 5) else SLOW)
    for name, task in CASES
    for n in (5, 20, *[150] * (name in ("fixed-size", "robust")))
]


@pytest.mark.parametrize(("name", "task", "n"), DEFAULTS)
def test_default_settings_suit_any_number_of_rows(name, task, n):
    X, y = load_iris(return_X_y=True)
    some = np.arange(n) * 37 % 150  # of all three classes
    X, y = (X[some], y[some]) if task == "classification" else (X[some, :3], X[some, 3])
    found = jsparse.train(X, y, task=task, key=0, method=METHODS[name](), search=jsparse.Profile(1))
    assert found.model.size <= n
    assert np.isfinite(found.model(X)).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_default_number_of_prototypes_is_one_rule(name):
    method = METHODS[name]()
    if "n_prototypes" not in fields_of(name) or "max_prototypes" in fields_of(name):
        return
    most = 20 if METHODS[name].tasks == ("classification",) or name == "sparse-ridge" else 300
    for n, classes in ((5, 3), (20, 2), (150, 3), (150, None), (5000, 2), (9, 7)):
        found = method.resolve(Shape(n, n, n - n // 10, 2, classes, False)).n_prototypes
        if name == "reduction":  # of the source: four roots
            assert found == min(n, max(classes or 1, math.ceil(4 * math.sqrt(n))))
        else:
            assert found == max(classes or 1, min(most, math.ceil(n / 3)))
    # Every entry point has the same default.
    parser = command_line(dict.fromkeys(("demo", "fit", "compare", "predict"), id))
    for words in (["demo"], ["fit", "x", "--target", "y"]):
        assert method_of(parser.parse_args([*words, "--method", name])) == method
    for _, estimator in inspect.getmembers(estimators, inspect.isclass):
        if hasattr(estimator, "method_class") and "n_prototypes" in estimator().get_params(False):
            assert estimator().make_method().n_prototypes is None


@pytest.mark.parametrize("name", named(NAMES, "scdp"))  # see test_stream_training
def test_streams_and_devices_or_one_clear_error(name):
    X, y = rows("classification", n=90)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("rows",))
    options = {"resources": jsparse.Resources(mesh=mesh)}
    if issubclass(METHODS[name], FromSums):
        one = trained(name, "classification", X, y)
        same = trained(name, "classification", X, y, **options)
        np.testing.assert_allclose(same.cv_error, one.cv_error, rtol=1e-5)
        np.testing.assert_allclose(same.expansion(X), one.expansion(X), rtol=1e-4, atol=1e-5)
        stream = trained(name, "classification", ArrayStream(X, y, batch_rows=40), None)
        assert (stream.predict(X) == y).mean() > 0.8
        assert stream.predict_proba(X).shape == (90, 2)
        return
    with pytest.raises(ValueError, match="mesh: expected a method that needs only sums"):
        trained(name, "classification", X, y, **options)
    with pytest.raises(ValueError, match="stream: expected a method that needs only sums"):
        trained(name, "classification", ArrayStream(X, y), None)


@pytest.mark.parametrize("name", named(NAMES, "scdp", "spsvm"))
def test_nothing_compiles_again_when_values_change(name):
    X, y = rows("classification")
    trained(name, "classification", X, y)
    again = trained(name, "classification", 1.5 * X[::-1] + 1, y[::-1])
    assert again.seconds["compile"] == 0, again.seconds


@pytest.mark.parametrize("name", named(NAMES))
def test_the_task_it_is_not_for(name):
    missing = {"classification", "regression"} - set(METHODS[name].tasks)
    X, y = rows("regression")
    for task in missing:
        with pytest.raises(ValueError, match=f"task: expected .* got '{task}'"):
            trained(name, task, X, y)


@pytest.mark.slow
def test_a_surrogate_tunes_the_kernel_and_the_method_its_own_C():
    X, y = rows("classification")
    found = trained("spsvm", "classification", X, y)
    own = trained("scdp", "classification", X, y, C=METHODS["scdp"].default_C)
    assert found.kernel.lengthscale == own.kernel.lengthscale
    assert found.C in (1.0, 10.0)
    assert found.metric == "misclassification"
    first = [e for e in found.tuning.history if e.stage == 0]
    assert [e.theta.tolist() for e in first] == [e.theta.tolist() for e in own.tuning.history]
    assert len(found.tuning.history) == len(first) + 1  # a separate C, in a second stage


def test_methods_are_values():
    for name in NAMES:
        method = method_named(name)
        assert method == method_named(name)
        assert hash(method) == hash(method_named(name))
        assert pickle.loads(pickle.dumps(method)) == method


class Shrunk(Prototypes, FromSums):
    """A fixed-size machine whose sums are solved otherwise than by ridge regression alone."""

    name = "shrunk"
    title = "shrunk machine"

    def features(self, kernel, points):
        return row_prototypes.feature_map(kernel, points)

    def solve(self, sums, C, code=None, key=None):
        found = fixed_size.solve(sums.features, sums.equations, C, code)
        model = found.expansion
        half = dataclasses.replace(model, coefficients=model.coefficients / 2)
        return single(half, found.status)


@pytest.mark.slow
def test_a_method_is_validated_by_its_own_solution():
    X, y = rows("regression", n=24)
    X, y, Z = jnp.asarray(X), jnp.asarray(y), jnp.asarray(X[:8])
    folds = jsparse.folds_from_assignment(np.arange(24) % 3)
    method, C = Shrunk(8), jnp.asarray([3.0])
    found = validate(method, RBF(1.2), Z, C, X, y, folds, metric="mse")
    errors = []
    for fold in np.asarray(folds.index):
        rest = np.setdiff1d(np.arange(24), fold)
        model = method.fit(RBF(1.2), Z, 3.0, rows_of(X[rest], y[rest])).expansion
        errors.append(np.square(model(X[fold]) - y[fold]))
    np.testing.assert_allclose(found.scores[0, 0], np.concatenate(errors).mean(), rtol=1e-6)
    options = {"method": method, "C": np.array([3.0]), "folds": 3}
    stream = ArrayStream(np.asarray(X), np.asarray(y))
    halved, whole = (
        trained("fixed-size", "regression", stream, None, **{**options, "method": of})
        for of in (method, jsparse.FixedSize(8))
    )
    assert halved.cv_error > 2 * whole.cv_error


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fixed-size", "robust"])
def test_without_values_out_of_fold_the_machine_is_the_same(name):
    X, y = rows("regression")
    usual, quick = (trained(name, "regression", X, y, out_of_fold=o) for o in (True, False))
    assert quick.out_of_fold is None
    np.testing.assert_allclose(quick.model(X), usual.model(X), rtol=1e-9)
    assert (quick.sums is None) is (name == "robust")
