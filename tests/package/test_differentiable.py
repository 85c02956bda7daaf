"""The documentation's table of what is differentiable: its modes, and where each row is checked."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.machines import dual, pursuits, robust, rvm, slmc, sparse_fisher, sparse_ridge, spsvm
from jsparse.machines.ksp import KSP

ROOT = Path(__file__).parents[2]
# By row: its modes, and the tests that compare the derivatives with finite differences.
CHECKED = {
    "kernels: gram, cross_gram": ("both", "kernels/test_kernels.py"),
    "fixed_size.fit, fit_features, fit_classes, solve": ("both", "contracts/test_derivatives.py"),
    "dual.fit": ("both", "contracts/test_derivatives.py"),
    "reduced_svm.fit: the objective": ("both", "machines/test_descent_fits.py"),
    "cross_validate": ("both", "contracts/test_derivatives.py"),
    "layers.KernelHead.loss": ("both", "layers/test_layers.py"),
    "layers.KernelHead.fit": ("both", "layers/test_layers.py"),
    "direct.marginal": ("both", "machines/test_direct.py"),
    "machines.agop": ("both", "machines/test_agop.py"),
    "pursuits.refit, pursuit.least_squares": ("both", "contracts/test_derivatives.py"),
    "scdp.fit": ("both", "machines/test_scdp.py"),
    "spsvm.fit, pursuits.fit": ("forward", "machines/test_spsvm.py"),
    "Model, KernelExpansion": ("both", "contracts/test_derivatives.py"),
    "slmc.fit, sparse_fisher.fit, sparse_ridge.fit, rvm.fit, robust.fit": (
        "", "package/test_differentiable.py",
    ),
}  # fmt: skip


def test_the_table_has_these_rows_and_modes():
    page = (ROOT / "docs" / "tutorials" / "jax.md").read_text()
    table = re.findall(r"^\| (.*?) \| .*? \| ?(.*?) ?\|$", page, re.M)
    stated = {name.replace("`", ""): modes.split(",")[0] for name, modes in table}
    del stated["function"]
    assert stated == {name: modes for name, (modes, _) in CHECKED.items()}
    for name, (_, place) in CHECKED.items():
        functions = re.findall(r"\w+", name.split(": ")[-1].split(".")[-1])
        assert any(function in (ROOT / "tests" / place).read_text() for function in functions), name


rng = np.random.default_rng(0)
X, Z, NEW = (rng.normal(size=(n, 2)) for n in (30, 4, 5))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
SIGNS = np.where(Y > 0.2, 1.0, -1.0)
KERNEL = RBF(1.3)
FITS = {
    "spsvm": lambda C: spsvm.fit(KERNEL, Z, C, X, SIGNS, key=jax.random.key(0), max_prototypes=2),
    "pursuits": lambda C: pursuits.fit(KSP(n_prototypes=2), KERNEL, Z, X, C * Y),
    "slmc": lambda C: slmc.fit(KERNEL, Z, C, X, SIGNS),
    "sparse_fisher": lambda C: sparse_fisher.fit(KERNEL, Z, C, X, SIGNS),
    "sparse_ridge": lambda C: sparse_ridge.fit(KERNEL, Z, C, X, Y),
    "rvm": lambda C: rvm.fit(KERNEL, Z, X, C * Y),
    "robust": lambda C: robust.fit(Nystroem(KERNEL, Z), 2.0, X, C * Y),
}


REFUSED = ()


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_reverse_mode_is_an_error_or_gives_zeros_where_the_table_lacks_it(name):
    def values(C):
        machine = FITS[name](C)
        return getattr(machine, "expansion", machine)(jnp.asarray(NEW))

    def derivative(C):
        value, pull = jax.vjp(values, C)
        return pull(jnp.ones_like(value))[0]

    if name in REFUSED:
        with pytest.raises(ValueError, match="Reverse-mode differentiation|Linearization failed"):
            derivative(jnp.asarray(2.0))
    else:
        assert derivative(jnp.asarray(2.0)) == 0


def test_the_dual_is_differentiable_in_everything():
    def values(*arguments):
        return dual.fit(*arguments).expansion(jnp.asarray(NEW))

    arguments = KERNEL, jnp.asarray(2.0), jnp.asarray(X), jnp.asarray(Y), jnp.ones(len(X))
    check_grads(jax.jit(values), arguments, order=1, modes=["fwd", "rev"], atol=1e-4, rtol=1e-4)
