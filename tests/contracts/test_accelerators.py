"""Programs for accelerators, without an accelerator: they lower, and their branches are right.

`jax.export` lowers the programs of every method for CUDA and TPU, in float32. A CPU then runs the
branches that programs take on accelerators, in float64.
"""

import ast
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from registry import SLOW
from test_methods import EACH, KEY, setup

import jsparse
from jsparse import _programs, _runtime, estimators, layers, pursuit
from jsparse.data.streams import ArrayStream
from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.machines import one_class
from jsparse.normal_equations import accumulate, accumulate_groups
from jsparse.validation.validate import validate

PACKAGE = Path(jsparse.__file__).parent
# Custom calls, which programs of these platforms may contain: routines of cuSOLVER, and routines
# that XLA's compiler for TPUs replaces. A `lapack_*` call would run on no accelerator.
CUSTOM_CALLS = {
    "cuda": {
        "cusolver_geqrf_ffi",
        "cusolver_gesvdj_ffi",
        "cusolver_potrf_ffi",
        "cusolver_syevd_ffi",
        "cusolver_sytrd_ffi",
    },
    "tpu": {"Eigh", "ProductOfElementaryHouseholderReflectors", "Qr"},
}
PLATFORMS = tuple(CUSTOM_CALLS)
# Methods whose programs do not lower for a TPU if they were traced for a CPU, and JAX's reason.
# Traced for an accelerator they lower, as all other programs do.
NOT_FROM_CPU_TO_TPU = dict.fromkeys(
    ("fixed-size", "fixed-size, tuned with fewer"), "'tridiagonal' not found for platform tpu"
)


def marks_of(name):
    return () if name == "fixed-size" else SLOW


@pytest.fixture
def float32():
    """Without 64-bit numbers, as accelerators compute."""
    with jax.enable_x64(False):
        yield


@pytest.fixture
def traced_for(monkeypatch):
    """Return a function that makes the package trace its programs for a platform, run on a CPU.

    The function returns the set of the places in the package that asked for the platform since.
    """

    def trace(platform):
        places = set()

        def platform_of(device=None):
            places.add(caller_outside(_runtime.__file__))
            return platform

        jax.clear_caches()  # JAX keeps what it traced for another platform
        monkeypatch.setattr(_runtime, "platform_of", platform_of)
        return places

    yield trace
    jax.clear_caches()


def caller_outside(file):
    """Return file and line of the innermost call from the package, but not from a file."""
    frame = sys._getframe(1)
    while (name := frame.f_code.co_filename) == file or not Path(name).is_relative_to(PACKAGE):
        frame = frame.f_back
    return name, frame.f_lineno


def custom_calls(jitted, platform, *arguments, **named):
    """Return the custom calls of a program that is lowered for a platform, all in float32."""
    module = export.export(jitted, platforms=[platform])(*arguments, **named).mlir_module()
    assert "f64" not in module
    assert "callback" not in module
    return set(re.findall(r"custom_call @([\w.]+)", module))


def fit_and_validate(name):
    """Return the programs that fit and validate a method, with their arguments."""
    case = setup(name, dtype="float32")
    folds = jsparse.folds_from_assignment(np.arange(len(case.rows)) % 3)
    kernel = RBF(np.float32(1))

    def fit(method, points, C, rows):
        return method.fit(kernel, points, C, rows, KEY)

    def validated(method, points, C, rows):
        arrays = rows.X, rows.y, folds, rows.weights
        return validate(method, kernel, points, C, *arrays, metric="mse", code=rows.code, key=KEY)

    for program, C in ((fit, np.float32(10)), (validated, np.ones(2, np.float32))):
        yield jax.jit(program), (case.method, case.points, C, case.rows)


def lowers(platform, programs):
    """Lower programs for a platform; check their custom calls."""
    for jitted, arguments in programs:
        assert custom_calls(jitted, platform, *arguments) <= CUSTOM_CALLS[platform]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in EACH])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_fit_and_the_validation_of_every_method_lower(name, platform, traced_for, float32):
    traced_for(platform)
    lowers(platform, fit_and_validate(name))


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in EACH])
def test_programs_traced_for_a_cpu_lower_unless_they_are_listed(name, float32):
    assert set(NOT_FROM_CPU_TO_TPU) <= set(EACH)
    lowers("cuda", fit_and_validate(name))
    if name not in NOT_FROM_CPU_TO_TPU:
        lowers("tpu", fit_and_validate(name))
        return
    for program in fit_and_validate(name):
        with pytest.raises(NotImplementedError, match=NOT_FROM_CPU_TO_TPU[name]):
            lowers("tpu", [program])


def functions():
    """Return the functions that networks and streams call, with arguments, by name."""
    rng = np.random.default_rng(0)
    X, y, w = (jnp.asarray(rng.random(shape), "float32") for shape in ((24, 2), 24, 24))
    kernel, groups = RBF(np.float32(1)), jnp.arange(24, dtype=jnp.int32) % 3
    features = Nystroem(kernel, X[::3])
    head = layers.KernelHead(X[::3], kernel, C=20.0, n_folds=3)
    machine = jsparse.KernelExpansion(kernel, X[::3], y[::3], jnp.zeros((), "float32"))
    return {
        "predict": (lambda machine, X: machine(X), (machine, X)),
        "nystroem": (lambda points, X: Nystroem(kernel, points)(X), (X[::3], X)),
        "accumulate": (accumulate, (features, X, y, w)),
        "accumulate_groups": (
            lambda *arrays: accumulate_groups(*arrays, n_groups=3),
            (features, X, y, w, groups),
        ),
        "layer": (jax.value_and_grad(lambda head, *rows: head.loss(*rows)), (head, X, y, w)),
        "one_class": (one_class.fit, (kernel, X[::3], np.float32(0.3), X, w)),
    }


@pytest.mark.parametrize("platform", PLATFORMS)
def test_sums_features_predictions_and_layers_lower(platform, traced_for, float32):
    traced_for(platform)
    lowers(platform, [(jax.jit(f), arguments) for f, arguments in functions().values()])


# Training.


GRID = np.array([0.1, 10.0])


def table():
    X = np.random.default_rng(3).standard_normal((48, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1]


def trained(method, *rows, **options):
    """Train on a table; on an accelerator one program scores several kernels."""
    search = {"C": GRID, "search": jsparse.Annealing(12)} if method.has_C else {}
    settings = {"search": jsparse.Profile(2), "folds": 3, "key": 5, **search, **options}
    return jsparse.train(*(rows or table()), task="regression", method=method, **settings)


def streamed():
    X, y = table()
    stream = ArrayStream(X, y, batch_rows=20)
    return trained(jsparse.FixedSize(8), stream, search=jsparse.Profile(2))


def fitted_in_parts():
    X, y = (a.astype(np.float32) for a in table())
    estimator = estimators.FixedSizeLSSVMClassifier(n_prototypes=8, cv=3, random_state=0)
    for part in (slice(0, 32), slice(32, 48)):
        estimator.partial_fit(X[part], (y > 0)[part])
    return estimator.predict_proba(X)


RUNS = {
    "in memory": lambda: trained(jsparse.FixedSize(8)).predict(table()[0]),
    "stream": streamed,
    "partial_fit": fitted_in_parts,
}


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_all_programs_of_training_lower(run, monkeypatch, traced_for, float32):
    traced_for("gpu")
    get, names = _programs.PROGRAMS.get, set()

    def lowered_first(key, make):
        jitted = get(key, make)

        def call(*arguments, **named):
            for platform in PLATFORMS:
                calls = custom_calls(jitted, platform, *arguments, **named)
                assert calls <= CUSTOM_CALLS[platform]
            names.add(key[0].__name__)
            return jitted(*arguments, **named)

        return call

    monkeypatch.setattr(_programs.PROGRAMS, "get", lowered_first)
    run()
    assert len(names) > 5


# Branches.


METHODS = {
    "fixed-size": jsparse.FixedSize(8),
    "dual": jsparse.Dual(),
    "scdp": jsparse.SCDP(4, 8),
    "robust": jsparse.Robust(8),
    "ksp": jsparse.KSP(n_prototypes=(2, 4), candidates=8),
    "conjugate gradients": jsparse.FixedSize(8, solver="conjugate_gradients"),
}


def branches():
    """Return file and line of every call of `on_cpu` in the package."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "on_cpu":
                yield str(path), node.lineno


def answers(method):
    """Return the numbers that a user sees of a trained method, and predictions of few rows."""
    result = trained(method)
    X = table()[0]
    kernel = jax.tree.leaves(result.model.expansion.kernel)
    return (result.cv_error, result.out_of_fold, result.C, kernel, result.predict(X))


def subspace_path():
    """Return the result of a pursuit that a user calls, which measures its arrays itself."""
    X, y = table()
    return pursuit.subspace_pursuit(X, y, n_atoms=1, max_atoms=2).coefficients


def agree(accelerator, cpu):
    for ours, expected in zip(jax.tree.leaves(accelerator), jax.tree.leaves(cpu), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-7)


def test_a_fixed_size_machine_is_that_of_a_cpu_where_programs_are_traced_for_a_gpu(traced_for):
    cpu = answers(METHODS["fixed-size"])
    traced_for("gpu")
    agree(answers(METHODS["fixed-size"]), cpu)


@pytest.mark.slow
def test_all_branches_for_accelerators_give_the_results_of_a_cpu(traced_for):
    cpu = [subspace_path(), *map(answers, METHODS.values())]
    places = traced_for("gpu")
    agree([subspace_path(), *map(answers, METHODS.values())], cpu)
    assert places == set(branches())


def test_only_one_function_asks_for_the_platform():
    """Other modules may name a platform, to print it or to list its devices."""
    asking = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("platform", "default_backend")
    }
    assert asking == {"_runtime.py", "_mesh.py", "cli/commands.py", "cli/report.py"}
