"""Run by `test_runtime.py` in a separate process: fork before and after JAX has started."""

import faulthandler
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse
from jsparse import dual, pursuit
from jsparse.data.streams import ArrayStream
from jsparse.estimators import FixedSizeLSSVMRegressor
from jsparse.features import Linear
from jsparse.kernels import RBF

X = np.random.default_rng(0).standard_normal((20, 2)).astype(np.float32)
y = X[:, 0] * X[:, 1]


def in_a_child(call) -> int:
    """Return the exit status of a forked process that makes the call, 0 if the call returns."""
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(60, exit=True)  # a hang
        try:
            call()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fitted() -> jsparse.KernelExpansion:
    kernel = RBF(np.float32(1.0))
    return dual.fit(kernel, np.float32(10.0), X, y).expansion


def refused(model, machine, pickled, path, features, folds, key) -> None:
    """Assert that whatever fits or predicts with objects made before the fork is refused."""
    options = {"task": "regression", "key": key}
    for call in (
        lambda: jsparse.train(X, y, method=jsparse.FixedSize(5), **options),
        lambda: jsparse.train(X, y, method=jsparse.SCDP(5), **options),
        lambda: jsparse.train(
            ArrayStream(X, y, batch_rows=10), method=jsparse.FixedSize(5), **options
        ),
        lambda: jsparse.cross_validate(features, np.ones(1, np.float32), X, y, folds),
        lambda: jsparse.accumulate_batches(features, [(X, y)]),
        lambda: machine.fit(X, y),
        lambda: pursuit.scdp(np.eye(3, dtype=np.float32), np.ones(3, np.float32), max_atoms=2),
        lambda: pursuit.omp(X, y, max_atoms=2),
        fitted,
        lambda: RBF(1.0),
        lambda: model(X),
        lambda: jsparse.Model(model).predict(X),
        lambda: pickle.loads(pickled).predict(X),
        lambda: jsparse.load(path),
    ):
        with pytest.raises(jsparse.UnusableJaxError, match=r"forked.*spawn"):
            call()


# JAX's own warning of forks, and Python's.
warnings.filterwarnings("ignore", category=RuntimeWarning)
warnings.filterwarnings("ignore", category=DeprecationWarning)
assert in_a_child(fitted) == 0, "a fork before JAX has started computes"
model, features, key = fitted(), Linear(jnp.zeros(2)), jax.random.key(0)
machine, folds = FixedSizeLSSVMRegressor(5), jsparse.folds_from_assignment(np.arange(20) % 4)
before = np.asarray(model(X))
pickled = pickle.dumps(FixedSizeLSSVMRegressor(5, lengthscale=1.0, C=1.0).fit(X, y))
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model")
    jsparse.save(path, model)
    code = in_a_child(lambda: refused(model, machine, pickled, path, features, folds, key))
assert code == 0, f"a fork after JAX had started ended with {code}"
np.testing.assert_array_equal(model(X), before)

# JAX is used before any name of the package, whose modules are imported in the child only.
early = """
import jax, jsparse, os
key = jax.random.key(0)
if os.fork() == 0:
    try:
        jsparse.train([[0.0], [1.0]], [0.0, 1.0], task="regression", key=key)
    except jsparse.UnusableJaxError:
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
command = [sys.executable, "-W", "ignore", "-c", early]
process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
assert process.stdout.strip() == "7", process
print("refused")
