"""Annotated types and shapes hold for every method and pure function."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest
from beartype.roar import BeartypeCallHintViolation
from contracts.learners import PURE, problem
from jaxtyping import TypeCheckError

from jsparse import RBF

CONTRACTS = Path(__file__).parents[1] / "contracts"


def test_arguments_and_results_are_as_annotated():
    files = [CONTRACTS / "test_contracts.py", __file__]
    words = ["trains_predicts", "pure_functions", "wrong_shape"]
    which = " or ".join(words)
    options = ["--check-types", "-v", "-n", "0", "-p", "no:cacheprovider", "-k", which]
    command = [sys.executable, "-m", "pytest", *options, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CONTRACTS.parents[1])
    assert done.returncode == 0, done.stdout[-5000:]
    assert "SKIPPED" not in done.stdout
    assert all(word in done.stdout for word in words)


@pytest.fixture
def checked(request):
    if not request.config.getoption("--check-types"):
        pytest.skip("runs in the process that checks types")


def test_pure_functions_are_as_annotated(checked):
    """Tracing checks all annotations, and compiles nothing."""
    for learner in PURE:
        jax.eval_shape(learner.learn, problem())


def test_a_wrong_shape_is_an_error(checked):
    with pytest.raises((TypeCheckError, BeartypeCallHintViolation)):
        RBF(1.0).gram(jax.numpy.ones((2, 3, 4)))
