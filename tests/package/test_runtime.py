"""Versions of jaxlib that miscompile programs, and forked processes, are refused."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packaging.requirements import Requirement

import jsparse
from jsparse import KernelExpansion, _runtime, dual, fixed_size, pursuit, scdp, spsvm
from jsparse.data.streams import ArrayStream
from jsparse.estimators import FixedSizeLSSVMRegressor
from jsparse.features import Linear
from jsparse.kernels import RBF
from jsparse.machines import robust

HERE = Path(__file__).parent
PROGRAMS = """
import numpy as np
from jsparse import _runtime
for name, found, expected in _runtime.canary():
    np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)
    print(name)
"""


FLAGS = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")


def run(*command, seconds, without=FLAGS):
    """Run Python as a user does, without the flags with which this suite compiles."""
    flags = (*without, "PYTEST_CURRENT_TEST")
    kept = {k: v for k, v in os.environ.items() if k not in flags}
    environment = {**kept, "JAX_PLATFORMS": "cpu"}
    process = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=HERE.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout.splitlines()


def test_the_programs_that_were_once_miscompiled_are_right():
    names = run("-c", PROGRAMS, seconds=120)
    assert names == ["a sum of squared norms", "a sum of products along rows"]


@pytest.mark.slow
def test_a_process_forked_after_jax_has_started_is_told_so():
    # With the flags of this suite: what is compiled does not matter.
    assert run(HERE / "on_a_fork.py", seconds=120, without=()) == ["refused"]


def test_the_miscompiling_version_is_not_installed():
    requirements = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"][
        "dependencies"
    ]
    versions = {r.name: r.specifier for r in map(Requirement, requirements)}
    for name in ("jax", "jaxlib"):
        assert not versions[name].contains("0.10.2")
        assert all(versions[name].contains(right) for right in _runtime.KNOWN_RIGHT)


@pytest.fixture
def unknown(monkeypatch):
    """Let the package treat this jaxlib as an unknown version."""
    monkeypatch.setattr(_runtime, "_seen_right", False)


@pytest.fixture
def miscompiled(monkeypatch, unknown):
    """Let a program be wrong in one number, by the smallest error that was ever observed."""

    def wrong(function, *arguments):
        values = np.array(function(*map(jnp.asarray, arguments)))
        values[-1] *= 1 + 1e-3
        return values

    monkeypatch.setattr(_runtime, "_run", wrong)


X = np.random.default_rng(0).standard_normal((20, 2))
y = np.sign(X[:, 0])


def train(*data, **options):
    return jsparse.train(*data, task="regression", key=jax.random.key(0), **options)


def expansion():
    return KernelExpansion(RBF(1.0), jnp.asarray(X), jnp.asarray(y), jnp.zeros(()))


FITS = {
    "train": lambda: train(X, y, method=jsparse.FixedSize(5)),
    "train on a path": lambda: train(X, y, method=jsparse.SCDP(5)),
    "train on a stream": lambda: train(ArrayStream(X, y), method=jsparse.FixedSize(5)),
    "validate": lambda: jsparse.validate(
        jsparse.Dual(), RBF(1.0), None, jnp.ones(1), *arrays(), folds(), metric="mse"
    ),
    "cross_validate": lambda: jsparse.cross_validate(linear(), jnp.ones(1), *arrays(), folds()),
    "accumulate_batches": lambda: jsparse.accumulate_batches(linear(), [(X, y)]),
    "dual": lambda: dual.fit(RBF(1.0), 1.0, *arrays()),
    "fixed_size": lambda: fixed_size.fit(RBF(1.0), jnp.asarray(X[:5]), 1.0, *arrays()),
    "robust": lambda: robust.fit(linear(), 1.0, *arrays()),
    "scdp": lambda: scdp.fit(RBF(1.0), arrays()[0], 1.0, *arrays(), max_prototypes=5),
    "spsvm": lambda: spsvm.fit(
        RBF(1.0), arrays()[0], 1.0, *arrays(), key=jax.random.key(0), max_prototypes=5
    ),
    "pursuit of a system": lambda: pursuit.scdp(np.eye(3), np.ones(3), max_atoms=2),
    "pursuit of a dictionary": lambda: pursuit.omp(X, y, max_atoms=2),
    "estimator": lambda: FixedSizeLSSVMRegressor(n_prototypes=5).fit(X, y),
    "expansion": lambda: expansion()(X),
    "model": lambda: jsparse.Model(expansion()).predict(X),
}


def arrays():
    return jnp.asarray(X), jnp.asarray(y)


def linear():
    return Linear(jnp.zeros(2))


def folds():
    return jsparse.folds_from_assignment(np.arange(20) % 4)


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS.keys())
def test_whatever_fits_or_predicts_refuses_a_compiler_that_is_wrong(fit, miscompiled):
    for _ in range(2):  # also when it is asked again
        with pytest.raises(jsparse.UnusableJaxError, match=r"miscompiles.*0\.10\.1"):
            fit()


def test_the_programs_are_run_once_for_a_version_that_nobody_has_tried(monkeypatch, unknown):
    runs = []
    true = _runtime.canary
    monkeypatch.setattr(_runtime, "canary", lambda: runs.append(1) or true())

    @jax.jit
    def traced(x):
        _runtime.check_runtime()
        return 2 * x

    # Where all is traced, or nothing compiled, the programs are still compiled and run.
    np.testing.assert_array_equal(jax.vmap(traced)(jnp.ones(3)), 2)
    _runtime.check_runtime()
    assert runs == [1]
    monkeypatch.setattr(_runtime, "_seen_right", False)
    with jax.disable_jit():
        _runtime.check_runtime()
    assert runs == [1, 1]


def test_no_program_is_run_where_it_is_known_to_be_right(monkeypatch):
    monkeypatch.setattr(_runtime, "canary", lambda: pytest.fail("run"))
    assert _runtime._seen_right == (jax.lib.__version__ in _runtime.KNOWN_RIGHT)
    monkeypatch.setattr(_runtime, "_seen_right", True)
    _runtime.check_runtime()
    monkeypatch.setattr(_runtime, "_seen_right", False)
    monkeypatch.setattr(_runtime, "_cpus", list)
    _runtime.check_runtime()


def test_the_command_line_says_what_is_wrong(miscompiled, capsys, tmp_path):
    from jsparse.cli.main import main

    table = tmp_path / "table.csv"
    np.savetxt(table, np.column_stack([X, y]), delimiter=",", header="a,b,y", comments="")
    assert main(["fit", str(table), "--target", "y", "--out", str(tmp_path / "model")]) == 1
    assert "miscompiles" in capsys.readouterr().err
