"""One concept has one name in every method, estimator and public function."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import jsparse
from jsparse import estimators, machines
from jsparse.machines import METHODS

# Other spellings as patterns, and the names that this library uses instead.
INSTEAD = {
    r"(n|num|number_of)_(centers|centres|points|atoms|components|vectors|basis)": "n_prototypes",
    r"(num|number_of|max_n)_prototypes|m|atoms|prototype_count|k_max": "n_prototypes",
    r"(max|most)_(atoms|size|points|vectors|length|centers|centres)": "max_prototypes",
    r"max_?(steps?|iter|iters|iteration)|n_?(iter|iters|iterations|steps)": "max_iterations",
    r"num_(iters|steps|iterations)|iterations|steps|iteration_limit": "max_iterations",
    r"([arfgx]|rel_|abs_)?tol|eps|epsilon": "tolerance",
    r"standard_errors|se_tolerance|size_tol": "size_tolerance",
    r"seed|rng|random_key": "key",
    r"sample_weight|row_weights|w": "weights",
    r"gamma|sigma": "lengthscale",
    r"lam|lambda_|reg|penalty_weight": "C",
}
# scikit-learn's names, which its estimators keep.
SKLEARN = {"max_iter", "random_state", "cv", "sample_weight"}
# Functions on matrices speak of atoms and systems, so other names are allowed.
ON_MATRICES = {"pursuit", "solvers"}


def instead_of(name):
    return next((ours for words, ours in INSTEAD.items() if re.fullmatch(words, name)), None)


def functions():
    """Yield every public function, and every function of a public module, by name."""
    for name in jsparse._MODULE_OF:
        value = getattr(jsparse, name)
        if inspect.isfunction(value):
            yield name, value
        if not inspect.ismodule(value) or name in ON_MATRICES:
            continue
        for member, function in vars(value).items():
            defined_here = inspect.isfunction(function) and (
                f"{function.__module__}.".startswith(f"{value.__name__}.")
            )
            if defined_here and not member.startswith("_"):
                yield f"{name}.{member}", function


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_settings_of_methods_have_the_names_of_the_library(method):
    for field in dataclasses.fields(method):
        assert instead_of(field.name) is None, f"{field.name}: {instead_of(field.name)}"
    names = {field.name for field in dataclasses.fields(method)}
    if names - {"tuned_with"}:  # `Dual` has no other setting: every row is a prototype
        assert names & {"n_prototypes", "max_prototypes"}


def test_parameters_of_functions_have_the_names_of_the_library():
    seen = 0
    for place, function in functions():
        for name in inspect.signature(function).parameters:
            assert instead_of(name) is None, f"{place}({name}): {instead_of(name)}"
            seen += 1
    assert seen > 250


def test_parameters_of_estimators_are_those_of_methods_but_for_scikit_learns():
    for name in dir(estimators):
        value = getattr(estimators, name)
        if not isinstance(value, type):
            continue
        for parameter in inspect.signature(value).parameters:
            assert parameter in SKLEARN or instead_of(parameter) is None, f"{name}({parameter})"
            assert parameter not in {"max_iterations", "key", "folds", "weights"}


def test_the_table_of_parameters_is_in_the_contributors_guide():
    shared = ("n_prototypes", "max_prototypes", "size_tolerance", "tolerance", "max_iterations")
    lines = ["| method | " + " | ".join(f"`{name}`" for name in shared) + " |"]
    lines += ["|---|" + "---|" * len(shared)]
    for name in machines._REGISTRY:  # in the order of the command line's help
        method = getattr(machines, name)
        names = {field.name for field in dataclasses.fields(method)}
        marks = " | ".join("x" if name in names else "" for name in shared)
        lines.append(f"| `{method.__name__}` | {marks} |")
    guide = Path(__file__).parents[2] / "CONTRIBUTING.md"
    assert "\n".join(lines) in guide.read_text(), "\n".join(lines)
