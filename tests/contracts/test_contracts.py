"""The contracts of training with every registered method."""

import dataclasses
import inspect
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import NAMES, SLOW, fields_of, method_named, named
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
    """Return inputs of three columns, and real targets or up to three labels."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3)).astype(dtype)
    score = X[:, 0] + np.tanh(X[:, 1])
    if task == "regression":
        return X, (score + 0.1 * rng.standard_normal(n)).astype(dtype)
    edges = np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1])
    return X, np.array(["a", "b", "c"])[np.searchsorted(edges, score)]


def trained(name, task, X, y, **options):
    """Train the method of a name with few prototypes; drop `C` if the method has none."""
    defaults = {
        "task": task,
        "key": 0,
        "method": method_named(name),
        "C": np.array([1.0, 10.0]),
        "search": jsparse.Profile(3),
        "folds": 3,
    }
    if not METHODS[name].has_C:
        del defaults["C"]
        options.pop("C", None)
    return jsparse.train(X, y, **{**defaults, **options})


CASES = [(name, task) for name in NAMES for task in METHODS[name].tasks]
IN_BOTH = [(*case, dtype) for case in CASES for dtype in ("float64", "float32")]


def fast_only(cases, *fast):
    """Return test parameters; training compiles for seconds, so only a few cases are fast."""
    return [pytest.param(*case, marks=() if case in fast else SLOW) for case in cases]


@pytest.mark.parametrize(
    ("name", "task", "dtype"),
    fast_only(
        IN_BOTH,
        ("dual", "regression", "float64"),
        ("scdp", "classification", "float32"),
    ),
)
def test_a_method_trains_predicts_and_is_saved_and_compiles_once(name, task, dtype, tmp_path):
    X, y = rows(task, dtype)
    result = trained(name, task, X, y)
    model = result.model
    assert str(model.dtype) == dtype
    assert np.isfinite(result.cv_error)
    assert set(result.statuses) == {"fit", "choice of prototypes", "cross-validation"}
    answers = model.predict(X)
    if task == "classification":
        assert (answers == y).mean() > 0.8
        probabilities = model.predict_proba(X)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
        assert (model.classes[probabilities.argmax(axis=1)] == answers).all()
        # The reported error is comparable between methods, regardless of the objective of the
        # search.
        assert result.metric == model.about["metric"] == "misclassification"
        wrong = (result.out_of_fold >= 0) != (y == model.classes[1])
        np.testing.assert_allclose(result.cv_error, wrong.mean(), rtol=1e-6)
        if result.curve is not None:
            assert result.curve.metric == result.metric
            assert result.cv_error == result.curve.errors[result.curve.chosen]
    else:
        assert np.mean((answers - y) ** 2) < 0.3 * np.var(y)
        assert result.out_of_fold.shape == y.shape
    second = trained(name, task, 1.5 * X[::-1] + 1, y[::-1])
    assert second.seconds["compile"] == 0, second.seconds
    model.save(tmp_path / "model")
    loaded = jsparse.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), answers)
    assert dict(loaded.about) == dict(model.about)
    assert name in repr(loaded)
    if METHODS[name].several_sizes:
        for size in (1, 3, int(result.curve.sizes[-1])):
            np.testing.assert_array_equal(loaded.at(size)(X), model.at(size)(X))
        with pytest.raises(ValueError, match="size: expected"):
            model.at(1000)
    else:
        with pytest.raises(ValueError, match="size: expected"):
            model.at(model.size + 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if "classification" in METHODS[n].tasks])
def test_three_classes(name):
    X, y = rows("classification", classes=3)
    result = trained(name, "classification", X, y)
    assert result.predict_proba(X).shape == (len(X), 3)
    assert (result.predict(X) == y).mean() > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if "regression" in METHODS[n].tasks])
def test_several_targets_are_fitted_as_each_target_alone(name):
    X, y = rows("regression")
    both = np.stack([y, 1000 - 2 * y + np.square(X[:, 2])], axis=1)
    options = {"C": np.array([10.0]), "kernel": RBF(1.5)}
    if name == "scdp":
        method = dataclasses.replace(method_named(name), selection="separate", size_tolerance=0.0)
        options["method"] = method
    options["search"] = jsparse.Profile(tune_kernel=False)
    model = trained(name, "regression", X, both, **options)
    assert model.predict(X).shape == both.shape == model.out_of_fold.shape
    if name in ("robust", "reduction", "sparse-ridge"):  # the targets share a scale, or prototypes
        assert np.mean((model.predict(X) - both) ** 2) < 0.3 * np.mean(both.var(axis=0))
        return
    for column, target in zip(model.predict(X).T, both.T, strict=True):
        alone = trained(name, "regression", X, target, **options)
        alone = alone.at(model.curve.size) if METHODS[name].several_sizes else alone
        np.testing.assert_allclose(column, alone.predict(X), rtol=1e-6, atol=1e-6)


def with_rows_of_weight_zero(X, y):
    """Insert rows of weight 0 with absurd values; return also the numbers of the real rows."""
    places = [0, 0, 15, len(X)]
    w = np.insert(np.ones(len(X)), places, 0.0)
    absurd = y[0] if y.dtype.kind == "U" else 1e300
    X, y = np.insert(X, places, -1e300, axis=0), np.insert(y, places, absurd)
    return X, y, w, np.flatnonzero(w)


@pytest.mark.parametrize(("name", "task"), fast_only(CASES, ("dual", "regression")))
def test_training_does_not_see_rows_of_weight_zero(name, task):
    X, y = rows(task, n=59)  # uneven folds, and the programs of 60 rows
    wide_X, wide_y, w, real_rows = with_rows_of_weight_zero(X, y)
    alone = trained(name, task, X, y)
    result = trained(name, task, wide_X, wide_y, weights=w)
    np.testing.assert_array_equal(result.C, alone.C)
    np.testing.assert_allclose(result.cv_error, alone.cv_error, rtol=1e-9)
    np.testing.assert_allclose(result.expansion(X), alone.expansion(X), rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(result.predict(X), alone.predict(X))
    assert result.n_rows == 59
    # Results by row are in the order of the caller's rows.
    assert len(result.out_of_fold) == 63
    assert np.isnan(np.delete(result.out_of_fold, real_rows, axis=0)).all()
    np.testing.assert_allclose(
        result.out_of_fold[real_rows], alone.out_of_fold, rtol=1e-7, atol=1e-9
    )
    held_out = np.asarray(result.folds.index)[np.asarray(result.folds.valid)]
    np.testing.assert_array_equal(np.sort(held_out), real_rows)
    if alone.point_rows is not None:
        np.testing.assert_array_equal(result.point_rows, real_rows[alone.point_rows])
    assert result.seconds["compile"] == 0


ADDITIVE = [
    (*case, validation)
    for case in CASES
    if issubclass(METHODS[case[0]], FromSums)
    for validation in (2, jsparse.HoldOut(0.4))
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task", "validation"), ADDITIVE)
def test_streams_do_not_see_rows_of_weight_zero(name, task, validation):
    X, y = rows(task)
    wide_X, wide_y, w, real_rows = with_rows_of_weight_zero(X, y)
    options = {"folds": validation, "resources": jsparse.Resources(sample_rows=40)}
    alone = trained(name, task, ArrayStream(X, y, batch_rows=25), None, **options)
    stream = ArrayStream(wide_X, wide_y, w, batch_rows=2)  # the first batch has no weight
    result = trained(name, task, stream, None, **options)
    np.testing.assert_array_equal(result.C, alone.C)
    np.testing.assert_allclose(result.cv_error, alone.cv_error, rtol=1e-7)
    np.testing.assert_allclose(result.expansion(X), alone.expansion(X), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(result.out_of_fold, alone.out_of_fold, rtol=1e-6, atol=1e-8)
    assert result.n_rows == alone.n_rows == 60
    if alone.point_rows is not None:
        np.testing.assert_array_equal(result.point_rows, real_rows[alone.point_rows])


DEFAULTS = [
    (name, task, n)
    for name, task in CASES
    for n in (5, 20, *[150] * (name in ("fixed-size", "robust")))
]


@pytest.mark.parametrize(
    ("name", "task", "n"), fast_only(DEFAULTS, ("fixed-size", "regression", 5))
)
def test_default_settings_suit_any_number_of_rows(name, task, n):
    X, y = load_iris(return_X_y=True)
    order = np.arange(n) * 37 % 150  # the first rows are of all three classes
    X, y = (X[order], y[order]) if task == "classification" else (X[order, :3], X[order, 3])
    result = jsparse.train(
        X, y, task=task, key=0, method=METHODS[name](), search=jsparse.Profile(1)
    )
    assert result.model.size <= n
    assert np.isfinite(result.model(X)).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_default_number_of_prototypes_follows_one_rule(name):
    method = METHODS[name]()
    if "n_prototypes" not in fields_of(name) or "max_prototypes" in fields_of(name):
        return
    most = 20 if METHODS[name].tasks == ("classification",) or name == "sparse-ridge" else 300
    for n, classes in ((5, 3), (20, 2), (150, 3), (150, None), (5000, 2), (9, 7)):
        n_prototypes = method.resolve(Shape(n, n, n - n // 10, 2, classes, False)).n_prototypes
        if name == "reduction":  # the paper's rule: four times the root of n
            assert n_prototypes == min(n, max(classes or 1, math.ceil(4 * math.sqrt(n))))
        else:
            assert n_prototypes == max(classes or 1, min(most, math.ceil(n / 3)))
    # Every entry point has the same default.
    parser = command_line()
    for words in (["demo"], ["fit", "x", "--target", "y"]):
        assert method_of(parser.parse_args([*words, "--method", name])) == method
    for _, estimator in inspect.getmembers(estimators, inspect.isclass):
        if hasattr(estimator, "method_class") and "n_prototypes" in estimator().get_params(False):
            assert estimator().make_method().n_prototypes is None


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_sets_the_limits_of_a_method(name):
    for field in fields_of(name) & {"max_iterations", "max_prototypes"}:
        words = ["fit", "x", "--target", "y", "--method", name, f"--{field.replace('_', '-')}", "7"]
        assert getattr(method_of(command_line().parse_args(words)), field) == 7
    if "max_iterations" in fields_of(name):  # as the help text says
        assert METHODS[name]().max_iterations == (5 if name == "ksp" else 200)


# Fast tests train on streams in test_stream_training.py, and on meshes in on_eight_devices.py.
@pytest.mark.parametrize("name", named(NAMES, "fixed-size", "scdp"))
def test_a_method_takes_streams_and_meshes_or_refuses_them(name):
    X, y = rows("classification", n=90)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("rows",))
    options = {"resources": jsparse.Resources(mesh=mesh)}
    if issubclass(METHODS[name], FromSums):
        plain = trained(name, "classification", X, y)
        on_mesh = trained(name, "classification", X, y, **options)
        np.testing.assert_allclose(on_mesh.cv_error, plain.cv_error, rtol=1e-5)
        np.testing.assert_allclose(on_mesh.expansion(X), plain.expansion(X), rtol=1e-4, atol=1e-5)
        stream = trained(name, "classification", ArrayStream(X, y, batch_rows=40), None)
        assert (stream.predict(X) == y).mean() > 0.8
        assert stream.predict_proba(X).shape == (90, 2)
        return
    with pytest.raises(ValueError, match="mesh: expected a method that needs only sums"):
        trained(name, "classification", X, y, **options)
    with pytest.raises(ValueError, match="stream: expected a method that needs only sums"):
        trained(name, "classification", ArrayStream(X, y), None)


def test_a_task_that_a_method_does_not_support_is_refused():
    X, y = rows("regression")
    for name in NAMES:
        for task in {"classification", "regression"} - set(METHODS[name].tasks):
            with pytest.raises(ValueError, match=f"task: expected .* got '{task}'"):
                trained(name, task, X, y)


@pytest.mark.slow
def test_a_surrogate_tunes_the_kernel_and_a_second_stage_tries_few_values_nearby():
    X, y = rows("classification")
    C = np.geomspace(1e-3, 1e6, 10)
    result = trained("robust", "classification", X, y, C=C)
    assert result.metric == "misclassification"
    last = [e for e in result.tuning.history if e.stage == 1]
    assert len({(*e.theta, e.C.item()) for e in last}) == len(last)
    assert len({e.C.item() for e in last}) < len(C)
    assert min(e.least for e in last) == pytest.approx(result.tuning.score)


def test_methods_are_compared_hashed_and_pickled_by_value():
    for name in NAMES:
        method = method_named(name)
        assert method == method_named(name)
        assert hash(method) == hash(method_named(name))
        assert pickle.loads(pickle.dumps(method)) == method


class Shrunk(Prototypes, FromSums):
    """A fixed-size machine that halves the coefficients of ridge regression."""

    name = "shrunk"
    title = "shrunk machine"

    def features(self, kernel, points):
        return row_prototypes.feature_map(kernel, points)

    def solve(self, sums, C, code=None, key=None):
        fitted = fixed_size.solve(sums.features, sums.equations, C, code)
        model = fitted.expansion
        half = dataclasses.replace(model, coefficients=model.coefficients / 2)
        return single(half, fitted.status)


@pytest.mark.slow
def test_validation_uses_the_solve_of_the_method():
    X, y = rows("regression", n=24)
    X, y, Z = jnp.asarray(X), jnp.asarray(y), jnp.asarray(X[:8])
    folds = jsparse.folds_from_assignment(np.arange(24) % 3)
    method, C = Shrunk(8), jnp.asarray([3.0])
    scores = validate(method, RBF(1.2), Z, C, X, y, folds, metric="mse").scores
    errors = []
    for fold in np.asarray(folds.index):
        rest = np.setdiff1d(np.arange(24), fold)
        model = method.fit(RBF(1.2), Z, 3.0, rows_of(X[rest], y[rest])).expansion
        errors.append(np.square(model(X[fold]) - y[fold]))
    np.testing.assert_allclose(scores[0, 0], np.concatenate(errors).mean(), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fixed-size", "robust"])
def test_without_out_of_fold_values_the_machine_is_the_same(name):
    X, y = rows("regression")
    usual, quick = (trained(name, "regression", X, y, out_of_fold=o) for o in (True, False))
    assert quick.out_of_fold is None
    np.testing.assert_allclose(quick.model(X), usual.model(X), rtol=1e-9)
    assert (quick.sums is None) is (name == "robust")
