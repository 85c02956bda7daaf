"""Methods of few prototypes, and the RVM, equal their pure functions; bad arguments are refused."""

import dataclasses
from collections import namedtuple
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse
from jsparse.kernels import RBF
from jsparse.machines import (
    one_class,
    reduced_set,
    reduced_svm,
    rvm,
    slmc,
    sparse_fisher,
    sparse_ridge,
)
from jsparse.machines.fixed_size import FixedSize
from jsparse.machines.method import Shape, TrainingRows
from jsparse.machines.rows import rows_of
from jsparse.multiclass import output_code
from jsparse.training.tables import tuning_problem

N, M = 40, 4
KERNEL = RBF(1.2)
OPTIMISED = [jsparse.SLMC, jsparse.SparseFisher, jsparse.SparseRidge, jsparse.ReducedSetSVM]
FITS = {
    "slmc": slmc.fit,
    "sparse_fisher": sparse_fisher.fit,
    "sparse_ridge": sparse_ridge.fit,
    "reduced_set": reduced_set.fit,
    "reduced_svm": reduced_svm.fit,
    "rvm": lambda kernel, Z, C, X, y, w=None, **options: rvm.fit(kernel, Z, X, y, w, **options),
}


def data(dtype="float64"):
    """Return rows of three classes, row weights (some are 0), and prototypes for two starts."""
    rng = np.random.default_rng(0)
    label = np.arange(N) % 3
    X = rng.standard_normal((N, 2)) + 2 * np.stack([label == 1, label == 2], axis=1)
    w = rng.uniform(0.5, 1.5, N) * (np.arange(N) % 7 > 0)
    X, w, Z = (jnp.asarray(a.astype(dtype)) for a in (X, w, X[1 : 2 * M + 1]))
    return X, jnp.asarray(label.astype(np.int32)), w, Z


def columns(scheme):
    """Return rows with an output code, and their targets and weights, a column for each problem."""
    X, label, w, _ = data()
    code = output_code(scheme, 3).astype(X.dtype)
    rows = rows_of(X, label, w, code)
    return rows, rows.targets, rows.problem_weights


def assert_same(family, fit):
    """Assert that a family has the machine, the diagnostics and the status of a fit."""
    coefficients = np.asarray(family.coefficients)[0, 0]
    expected = np.asarray(fit.expansion.coefficients).reshape(len(coefficients), -1)
    np.testing.assert_array_equal(family.points, fit.expansion.prototypes)
    np.testing.assert_array_equal(coefficients, expected)
    np.testing.assert_array_equal(family.intercepts[0, 0], np.ravel(fit.expansion.intercept))
    assert int(family.status) == int(fit.status)
    assert family.info.keys() == fit._asdict().keys() - {"expansion", "status"}
    for name, value in family.info.items():
        np.testing.assert_array_equal(value, getattr(fit, name))


@pytest.mark.parametrize("penalty", ["norm", pytest.param("coefficients", marks=pytest.mark.slow)])
def test_a_reduced_machine_takes_the_first_of_several_starts(penalty):
    X, label, w, Z = data()
    y = jnp.where(label == 1, 1.0, -1.0)
    method = jsparse.ReducedSVM(M, starts=2, penalty=penalty)
    family = method.fit(KERNEL, Z, 10.0, rows_of(X, y, w))
    assert_same(family, reduced_svm.fit(KERNEL, Z[:M], 10.0, X, y, w, penalty=penalty))


@pytest.mark.slow
def test_the_family_of_an_rvm_drops_candidates_without_a_coefficient():
    X = data()[0]
    rows, y, w = columns("one_versus_one")
    family = jsparse.RVM(5).fit(KERNEL, X, 1.0, rows)
    fit = rvm.fit(KERNEL, X, X, y, w, likelihood="logistic", max_prototypes=5)
    assert_same(family, fit)
    used = np.any(np.asarray(fit.expansion.coefficients) != 0, axis=1)
    assert family.sizes.tolist() == [used.sum()]
    assert 0 < used.sum() < len(X)
    machine = family.at(int(used.sum()))
    np.testing.assert_array_equal(machine.prototypes, np.asarray(X)[used])
    np.testing.assert_allclose(machine(X), fit.expansion(X), rtol=1e-9)


@pytest.mark.slow
def test_an_rvm_of_the_intercept_alone_keeps_one_prototype():
    X, _, w, _ = data()
    family = jsparse.RVM(5).fit(KERNEL, X, 1.0, rows_of(X, jnp.ones(N), w))
    assert family.sizes.tolist() == [1]
    np.testing.assert_allclose(family.at(1)(X), 1.0, rtol=1e-6)


@pytest.mark.slow
def test_the_objective_of_a_reduced_machine_has_the_derivative_of_differences():
    """Move kernel, prototypes, C, inputs and weights along one direction; sum both penalties."""
    X, label, w, Z = data()
    y, Z = jnp.where(label == 1, 1.0, -1.0), Z[:M] + 0.1
    rng = np.random.default_rng(1)
    dX, dZ, dw = (jnp.asarray(rng.standard_normal(a.shape)) for a in (X, Z, w))

    @jax.jit
    def objective(t):
        arguments = (RBF(1.2 + 0.2 * t), Z + t * dZ, 3 + t, X + t * dX, y, w * (1 + 0.3 * t * dw))
        return sum(
            reduced_svm.fit(*arguments, penalty=penalty).objective
            for penalty in ("norm", "coefficients")
        )

    h = 1e-5
    expected = (objective(h) - objective(-h)) / (2 * h)
    np.testing.assert_allclose(jax.jit(jax.grad(objective))(0.0), expected, rtol=1e-6)


DESCENDING = ("slmc", "sparse_fisher", "sparse_ridge", "reduced_set")
OF_CLASSES = ("slmc", "sparse_fisher", "reduced_set", "reduced_svm")
BAD = [
    *[(name, {"y": jnp.zeros(N)}, r"y: expected -1 and \+1, got 0") for name in OF_CLASSES],
    *[(name, {"loss": "log"}, "loss: expected 'hinge' or") for name in OF_CLASSES],
    *[
        (name, {"max_iterations": 0}, "max_iterations: expected a whole")
        for name in (*DESCENDING, "rvm")
    ],
    *[(name, {"tolerance": -1.0}, "tolerance: expected a number") for name in DESCENDING],
    *[(name, {"weights": jnp.full(N, -1.0)}, "weights: expected all at least 0") for name in FITS],
    *[(name, {"points": jnp.ones((M, 3))}, r": expected shape \(m, 2\)") for name in FITS],
    *[(name, {"y": jnp.ones(N - 1)}, "y: expected 40 rows") for name in FITS],
    *[
        (name, {"points": jnp.ones((2, M, 2))}, r"expected shape \(m, 2\), got \(2, 4, 2\)")
        for name in ("reduced_set", "reduced_svm", "rvm")
    ],
    ("slmc", {"points": jnp.full((M, 2), jnp.nan)}, "start: expected finite values"),
    ("slmc", {"C": 0.0}, "C: expected a positive number"),
    ("slmc", {"C": jnp.ones(2)}, "C: expected one of the shapes"),
    ("slmc", {"weights": jnp.ones((N, 2))}, "weights: expected one of the shapes"),
    ("slmc", {"y": jnp.ones((N, 2)), "weights": -jnp.ones((N, 2))}, "weights: expected all at"),
    ("slmc", {"y": jnp.ones((N, 1, 1))}, r"y: expected shape \(n,\) or \(n, l\)"),
    ("reduced_svm", {"penalty": "none"}, "penalty: expected 'norm' or 'coefficients'"),
    ("rvm", {"likelihood": "poisson"}, "likelihood: expected 'normal' or 'logistic'"),
    ("rvm", {"max_prototypes": 0}, "max_prototypes: expected a whole number"),
    ("rvm", {"likelihood": "logistic", "y": jnp.zeros(N)}, r"y: expected -1 and \+1, got 0"),
]


@pytest.mark.parametrize(("name", "changes", "match"), BAD)
def test_bad_arguments_are_told(name, changes, match, as_users_call):
    X, label, _, Z = data()
    y = jnp.where(label == 1, 1.0, -1.0)
    arguments = {"points": Z[:M], "C": 1.0, "X": X, "y": y, "weights": None}
    arguments |= {key: changes[key] for key in arguments.keys() & changes.keys()}
    options = {key: value for key, value in changes.items() if key not in arguments}
    with pytest.raises(ValueError, match=match):
        FITS[name](KERNEL, *arguments.values(), **options)


def test_bad_arguments_of_one_class_are_told(as_users_call):
    X, _, _, Z = data()
    for changes, match in (
        *[({"nu": nu}, "nu: expected a number above 0 and below 1") for nu in (0.0, 1.0, np.nan)],
        ({"start": jnp.ones((M, 3))}, r"start: expected shape \(m, 2\)"),
        ({"weights": jnp.zeros(N)}, "weights: expected at least one above 0"),
        ({"max_iterations": 0}, "max_iterations: expected a whole number"),
    ):
        with pytest.raises(ValueError, match=match):
            one_class.fit(KERNEL, **{"start": Z[:M], "nu": 0.2, "X": X, **changes})


@pytest.mark.parametrize("kind", OPTIMISED)
def test_kernels_are_tuned_for_machines_on_five_rows_for_each_prototype(kind):
    X, y, *_ = data()
    problem = tuning_problem(
        KERNEL, X[:M], X, jnp.sign(y).astype(X.dtype), jsparse.plain_folds(0, N, 5), method=kind(M)
    )
    stages = problem.method.stages(problem, jsparse.Profile())
    first = next(stages).problem
    assert first.method == FixedSize(min(5 * M, N))
    assert first.scoring.metric == "mse"
    rows = {tuple(row) for row in np.asarray(X).tolist()}
    assert {tuple(row) for row in np.asarray(first.points).tolist()} <= rows
    assert len(np.unique(first.points, axis=0)) == min(5 * M, N)
    tuning = namedtuple("Best", "kernel theta C")(RBF(0.7), np.log([0.7]), 1.0)
    last = stages.send(SimpleNamespace(tuning=tuning))
    assert last.problem.method == problem.method
    assert float(last.problem.template.at(np.zeros(0)).lengthscale) == pytest.approx(0.7)
    assert isinstance(last.search, jsparse.Profile)
    assert not last.search.tune_kernel


def assert_equal(first, second):
    """Assert that two families are equal up to rounding, which differs with a padded start."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for value, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-9)


def descents(kind):
    """Return a method, a function of values of `C` that returns their machines, rows and points."""
    X, y, w, Z = data()
    rows = rows_of(X, jnp.where(y == 0, 1.0, -1.0), w)
    method = kind(M, starts=2, max_iterations=40)
    return method, lambda *C: [*method.fits_over_C(KERNEL, Z, np.array(C), rows)], rows, Z


# All are validated by `DirectMethod.fits_over_C`.
DIRECT = [
    jsparse.SLMC,
    *(
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in (jsparse.SparseFisher, jsparse.SparseRidge)
    ),
]


@pytest.mark.parametrize("kind", DIRECT)
def test_validation_descends_from_the_prototypes_of_the_next_smaller_default(kind):
    method, machines, rows, Z = descents(kind)
    rough = dataclasses.replace(method, tolerance=10 * method.tolerance)
    smallest, second = method.default_C[:2]
    first, last = machines(smallest, 3 * second)
    assert_equal(first, rough.fit(KERNEL, Z, jnp.asarray(smallest), rows))
    between = rough.fit(KERNEL, first.expansion.prototypes, jnp.asarray(second), rows)
    start = between.expansion.prototypes
    assert_equal(last, rough.fit(KERNEL, start, jnp.asarray(3 * second), rows))


@pytest.mark.parametrize("kind", DIRECT)
def test_a_machine_of_validation_depends_on_no_other_C(kind):
    _, machines, *_ = descents(kind)
    values = (20.0, 0.5, 1.0, 1e-3, 10.0, 1e7, 10.0)  # below, inside, at and above the grid
    for C, machine in zip(values, machines(*values), strict=True):
        assert_equal(*machines(C), machine)


def test_each_problem_may_have_another_C_in_validation():
    rows, *_ = columns("one_versus_rest")
    method, Z = jsparse.SLMC(M, starts=2, max_iterations=5), data()[-1]
    C = np.array([[1e-2, 1e-3, 1e-2], [1.0, 50.0, 2.0], [1.0, 1.0, 1.0], [2e3, 5e3, 1e4]])
    for one_C, machine in zip(C, method.fits_over_C(KERNEL, Z, C, rows), strict=True):
        assert_equal(*method.fits_over_C(KERNEL, Z, one_C[None], rows), machine)
    (equal,) = method.fits_over_C(KERNEL, Z, np.ones(1), rows)
    assert_equal(*method.fits_over_C(KERNEL, Z, C[2:3], rows), equal)


def test_descents_of_validation_start_lower_than_separate_descents():
    method, machines, rows, Z = descents(jsparse.SLMC)
    later = method.default_C[1:]
    for C, machine in zip(later, machines(*later), strict=True):
        separate = method.fit(KERNEL, Z[:M], jnp.asarray(C), rows)
        assert float(machine.info["history"][0]) < float(separate.info["history"][0])


def test_a_descent_without_finite_prototypes_is_no_start(monkeypatch):
    method, machines, *_ = descents(jsparse.SLMC)
    fit, starts = jsparse.SLMC.fit, []

    def lost(self, kernel, points, C, *arguments):
        family = fit(self, kernel, points, C, *arguments)
        starts.append(np.asarray(points))
        return dataclasses.replace(family, points=family.points * np.nan)

    monkeypatch.setattr(jsparse.SLMC, "fit", lost)
    machines(*method.default_C[:2])
    np.testing.assert_array_equal(starts[0], starts[1])


def test_separate_prototypes_are_validated_by_separate_fits():
    rows, *_ = columns("one_versus_rest")
    Z = data()[-1]
    method = jsparse.SLMC(M, starts=2, sharing="separate", max_iterations=5)
    C = method.default_C[:2]
    for one_C, machine in zip(C, method.fits_over_C(KERNEL, Z, C, rows), strict=True):
        assert_equal(machine, method.fit(KERNEL, Z, jnp.asarray(one_C), rows))


@pytest.mark.parametrize("kind", [jsparse.SLMC, jsparse.ReducedSVM])
def test_points_of_several_sizes_are_those_of_each_size_alone(kind):
    X, _, w, _ = data()
    inputs = TrainingRows(X, None, np.asarray(w), jsparse.standardize(X), len(X))
    several = kind([2, 7], starts=2)
    points = np.asarray(several.choose_points(jax.random.key(0), KERNEL, inputs).X)
    assert len(points) == 2 * (2 + 7)
    for m in (2, 7):
        method, place = several.at_size(m)
        assert (method.n_prototypes, method.starts) == (m, 2)
        alone = kind(m, starts=2).choose_points(jax.random.key(0), KERNEL, inputs)
        np.testing.assert_array_equal(points[place], alone.X)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        jsparse.SLMC,
        jsparse.SparseFisher,
        jsparse.SparseRidge,
        jsparse.ReducedSVM,
        jsparse.ReducedSetSVM,
        jsparse.SparseReduction,
    ],
)
def test_cross_validation_chooses_one_of_several_sizes(kind, tmp_path):
    """The errors are those of each size alone, and the model has the chosen size."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    task = kind.tasks[-1]
    options = {
        "task": task,
        "search": jsparse.Profile(2),
        "folds": 3,
        "key": 0,
        "C": np.array([1.0, 100.0]),
    }
    targets = y if task == "regression" else y > 0
    trained = jsparse.train(X, targets, method=kind([2, 8], size_tolerance=0.5), **options)
    assert trained.curve.sizes.tolist() == [2, 8]
    assert trained.curve.size == trained.method.n_prototypes
    assert trained.cv_error == trained.curve.errors[trained.curve.chosen]
    assert trained.curve.size == trained.curve.smallest_within(0.5)
    if kind is not jsparse.SparseReduction:  # its first two of eight rows are not the best two
        alone = jsparse.train(X, targets, method=kind(2), **options)
        np.testing.assert_allclose(trained.curve.errors[0], alone.cv_error, rtol=1e-6)
    trained.model.save(tmp_path / "m")
    np.testing.assert_array_equal(jsparse.load(tmp_path / "m").predict(X), trained.predict(X))


def test_auto_doubles_the_number_of_prototypes_within_the_rows():
    shape = Shape(60, 60, 40, 2, 3, False)
    assert jsparse.SLMC("auto").resolve(shape).n_prototypes == (8, 16, 32)
    assert jsparse.SLMC("auto").resolve(shape).stop_when_flat
    large = shape._replace(n=5000, n_present=5000, training=4500)
    assert jsparse.ReducedSVM("auto").resolve(large).n_prototypes == (5, 10, 20, 40, 80)
    assert jsparse.SparseReduction("auto").resolve(large).n_prototypes[-1] == 1984
