"""Constructors and documentation are made from the methods' settings."""

import dataclasses
import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import jsparse
from jsparse import estimators
from jsparse.estimators import _stub
from jsparse.estimators._base import Machine
from jsparse.machines import METHODS

ALL = [getattr(estimators, name) for name in sorted(dir(estimators))]
NAMED = [one for one in ALL if isinstance(one, type) and issubclass(one, Machine)]
SIZES = ("n_prototypes", "max_prototypes")
pytestmark = pytest.mark.usefixtures("jax_in_float32")
X = np.random.default_rng(0).standard_normal((40, 2))
Y = {"classification": X[:, 0] > 0, "regression": X[:, 0] + X[:, 1] ** 2}


@pytest.mark.parametrize(
    "estimator", [*NAMED, estimators.SparseOneClassSVM], ids=lambda one: one.__name__
)
def test_a_signature_names_every_parameter_and_the_docstring_describes_it(estimator):
    parameters = inspect.signature(estimator).parameters.values()
    assert {p.kind for p in parameters} <= {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    }
    names = [p.name for p in parameters]
    assert set(names) == set(estimator().get_params(deep=False)) == set(vars(estimator()))
    arguments = inspect.getdoc(estimator).split("\nAttributes:\n")[0]
    for name in names:
        assert f"\n    {name}: " in arguments


@pytest.mark.parametrize("estimator", NAMED, ids=lambda one: one.__name__)
def test_defaults_and_spellings_are_the_methods_and_others_are_refused(estimator):
    with pytest.raises(TypeError, match=f"{estimator.__name__}: .*'no_such'"):
        estimator(no_such=1)
    if "method" in estimator().get_params(deep=False):
        return  # without a method it takes the settings of a preset
    method = estimator.method_class
    assert estimator().make_method() == method()
    spelt = {"max_iterations": "max_iter"}
    for field in dataclasses.fields(method):
        name = spelt.get(field.name, field.name)
        if field.name in estimator._parameter_of:
            assert inspect.signature(estimator).parameters[name].default == field.default


def test_every_method_has_an_estimator_for_each_of_its_tasks():
    suffix = {"classification": "Classifier", "regression": "Regressor"}
    covered = {
        (one.method_class, task)
        for one in NAMED
        if hasattr(one, "method_class")
        for task, end in suffix.items()
        if one.__name__.endswith(end)
    }
    missing = {(m, task) for m in METHODS.values() for task in m.tasks} - covered
    # For classes `SparseLargeMarginClassifier` moves the prototypes.
    assert missing == {(jsparse.SparseRidge, "classification")}


def test_the_stub_is_what_the_code_says():
    stub = Path(estimators.__file__).with_name("__init__.pyi")
    assert stub.read_text() == _stub.stub(), "run `python -m jsparse.estimators._stub`"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_any_method_is_a_parameter_with_settings(name):
    method = METHODS[name]()
    task = method.tasks[0]
    kind = {"classification": "Classifier", "regression": "Regressor"}[task]
    machine = getattr(estimators, f"KernelMachine{kind}")(method, random_state=3)
    for field in dataclasses.fields(method):
        assert machine.get_params()[f"method__{field.name}"] is getattr(method, field.name)
    for copy in (clone(machine), pickle.loads(pickle.dumps(machine))):
        assert copy.make_method() == method
        assert copy.random_state == 3
    if dataclasses.fields(method):
        sizes = (*SIZES, "tuned_with")  # the dual has no other
        setting = next(f.name for f in dataclasses.fields(method) if f.name in sizes)
        changed = clone(machine).set_params(**{f"method__{setting}": 7, "verbose": 0})
        assert getattr(changed.method, setting) == 7
        assert machine.method is method
    with pytest.raises(
        ValueError, match=f"method__no_such: expected a setting of {type(method).__name__}"
    ):
        machine.set_params(method__no_such=1)


@pytest.mark.parametrize(
    "name",
    [n if n == "fixed-size" else pytest.param(n, marks=pytest.mark.slow) for n in METHODS],
)
def test_a_grid_over_settings_of_the_method(name):
    method = METHODS[name]
    task = method.tasks[-1]
    kind = {"classification": "Classifier", "regression": "Regressor"}[task]
    named = next(
        one
        for one in NAMED
        if getattr(one, "method_class", None) is method and one.__name__.endswith(kind)
    )
    options = {"lengthscale": 2.0, "out_of_fold": False, "random_state": 0, "cv": 2}
    options |= {"C": 10.0} if method.has_C else {}
    machine = getattr(estimators, f"KernelMachine{kind}")(method(), **options)
    sizes = [f.name for f in dataclasses.fields(method) if f.name in SIZES]
    grid = {f"method__{sizes[0]}": [2, 8]} if sizes else {"method": [method()]}
    if name == "fixed-size":  # a fast test: one size has one set of programs
        grid = {f"method__{sizes[0]}": [8], "method__selection": ["uniform", "pivoted_cholesky"]}
    every = np.arange(len(X))  # each fit is to all rows, so that all take the same programs
    search = GridSearchCV(machine, grid, cv=[(every, every)], error_score="raise").fit(X, Y[task])
    best = {key.removeprefix("method__"): value for key, value in search.best_params_.items()}
    best.pop("method", None)
    assert search.best_estimator_.method == method(**best)
    parameters = inspect.signature(named).parameters
    same = named(**best, **{key: value for key, value in options.items() if key in parameters})
    same.fit(X, Y[task])
    np.testing.assert_array_equal(search.best_estimator_.predict(X), same.predict(X))
    for fitted in (same, search.best_estimator_):
        again = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(again.predict(X), same.predict(X))
    assert (same.C_ is None) == (not method.has_C)


def test_what_is_no_method_is_refused():
    with pytest.raises(ValueError, match="method: expected one such as FixedSize"):
        estimators.KernelMachineRegressor("scdp").fit(X, Y["regression"])
    mended = estimators.KernelMachineRegressor("scdp").set_params(method=jsparse.SCDP())
    assert mended.get_params()["method__max_prototypes"] is None
