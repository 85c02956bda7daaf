"""Programs for accelerators, tested on a CPU: they lower, and their branches are right.

`jax.export` lowers the programs of every method for CUDA and TPU, in float32. `on_one_thread.py`
runs the branches that programs take on accelerators on a CPU.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerators import PACKAGE, PLATFORMS, check_lowers, traced_for
from registry import SLOW
from test_methods import EACH, KEY, setup

import jsparse
from jsparse import layers
from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.machines import one_class
from jsparse.normal_equations import accumulate, accumulate_groups
from jsparse.validation.validate import validate

pytestmark = pytest.mark.usefixtures("jax_in_float32")
METHODS = [pytest.param(name, marks=() if name == "fixed-size" else SLOW) for name in EACH]
# Methods whose programs do not lower for a TPU if they were traced for a CPU, and JAX's reason.
# Traced for an accelerator they lower, as all other programs do.
NOT_FROM_CPU_TO_TPU = dict.fromkeys(
    ("fixed-size", "fixed-size, tuned with fewer"), "'tridiagonal' not found for platform tpu"
)


def fit_and_validate(name):
    """Return the programs that fit and validate a method, with their arguments."""
    case = setup(name, dtype="float32")
    folds = jsparse.folds_from_assignment(np.arange(len(case.rows)) % 3)
    kernel = RBF(np.float32(1))

    def fit(method, points, C, rows):
        return method.fit(kernel, points, C, rows, KEY)

    def validated(method, points, C, rows):
        arrays = rows.X, rows.y, folds, rows.weights
        return validate(method, kernel, points, C, *arrays, metric="mse", key=KEY)

    one_C, several_C = np.float32(10), np.ones(2, np.float32)
    return (
        (jax.jit(fit), case.method, case.points, one_C, case.rows),
        (jax.jit(validated), case.method, case.points, several_C, case.rows),
    )


@pytest.mark.parametrize("name", METHODS)
def test_the_fit_and_the_validation_of_every_method_lower(name):
    """Trace for the platform, and for a CPU."""
    for platform in PLATFORMS:
        with traced_for(platform):
            for program in fit_and_validate(name):
                check_lowers(platform, *program)
    for program in fit_and_validate(name):
        check_lowers("cuda", *program)
        if name not in NOT_FROM_CPU_TO_TPU:
            check_lowers("tpu", *program)
            continue
        with pytest.raises(NotImplementedError, match=NOT_FROM_CPU_TO_TPU[name]):
            check_lowers("tpu", *program)


def functions():
    """Return the functions that networks and streams call, with their arguments."""
    rng = np.random.default_rng(0)
    X, y, w = (jnp.asarray(rng.random(shape), "float32") for shape in ((24, 2), 24, 24))
    kernel, group = RBF(np.float32(1)), jnp.arange(24, dtype=jnp.int32) % 3
    features = Nystroem(kernel, X[::3])
    head = layers.KernelHead(X[::3], kernel, C=20.0, n_folds=3)
    machine = jsparse.KernelExpansion(kernel, X[::3], y[::3], jnp.zeros((), "float32"))

    def loss(head, *rows):
        return head.loss(*rows)

    def sums_of_groups(*arrays):
        return accumulate_groups(*arrays, n_groups=3)

    return {
        "predict": (lambda machine, X: machine(X), machine, X),
        "Nystroem": (lambda points, X: Nystroem(kernel, points)(X), X[::3], X),
        "accumulate": (accumulate, features, X, y, w),
        "accumulate_groups": (sums_of_groups, features, X, y, w, group),
        "layer": (jax.value_and_grad(loss), head, X, y, w),
        "one_class": (one_class.fit, kernel, X[::3], np.float32(0.3), X, w),
    }


@pytest.mark.parametrize("platform", ["cuda", pytest.param("tpu", marks=SLOW)])
def test_sums_features_predictions_and_layers_lower(platform):
    with traced_for(platform):
        for function, *arguments in functions().values():
            check_lowers(platform, jax.jit(function), *arguments)


@pytest.mark.slow
def test_branches_for_accelerators_give_the_results_of_a_cpu():
    """Run `on_one_thread.py` with one thread of JAX."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    process = subprocess.run(
        [*command, str(Path(__file__).with_name("on_one_thread.py"))],
        env=environment | {"JAX_PLATFORMS": "cpu", "NPROC": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert " passed" in process.stdout


def test_only_one_function_asks_for_the_platform():
    """Other modules name a platform only to print it or to list its devices."""
    asking = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search("platform|default_backend", text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in ("platform", "default_backend")
    }
    to_print = {"cli/commands.py", "cli/report.py", "training/checkpoint.py"}
    assert asking == {"_runtime.py", "_mesh.py", *to_print}
