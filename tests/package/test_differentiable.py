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


def rows():
    """Return rows, prototypes, new rows, targets and signs."""
    rng = np.random.default_rng(0)
    X, Z, new = (rng.normal(size=(n, 2)) for n in (30, 4, 5))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
    return tuple(map(jnp.asarray, (X, Z, new, y, np.where(y > 0.2, 1.0, -1.0))))


def fits():
    """Return functions of one number that reverse mode refuses, or gives the derivative 0."""
    X, Z, _, y, signs = rows()
    kernel, greedy = RBF(1.3), {"key": jax.random.key(0), "max_prototypes": 2}
    return {
        "spsvm": lambda C: spsvm.fit(kernel, Z, C, X, signs, **greedy),
        "pursuits": lambda a: pursuits.fit(KSP(n_prototypes=2), kernel, Z, X, a * y),
        "slmc": lambda C: slmc.fit(kernel, Z, C, X, signs),
        "sparse_fisher": lambda C: sparse_fisher.fit(kernel, Z, C, X, signs),
        "sparse_ridge": lambda C: sparse_ridge.fit(kernel, Z, C, X, y),
        "rvm": lambda a: rvm.fit(kernel, Z, X, a * y),
        "robust": lambda a: robust.fit(Nystroem(kernel, Z), 2.0, X, a * y),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["spsvm", "pursuits", "slmc", "sparse_fisher", "sparse_ridge", "rvm", "robust"]
)
def test_reverse_mode_is_an_error_or_gives_zeros_where_the_table_lacks_it(name):
    def values(number):
        machine = fits()[name](number)
        return getattr(machine, "expansion", machine)(rows()[2])

    def derivative(number):
        value, pull = jax.vjp(values, number)
        return float(pull(jnp.ones_like(value))[0])

    try:
        slope = derivative(jnp.asarray(2.0))
    except ValueError as error:
        slope = 0.0
        if not re.search("Reverse-mode differentiation|Linearization failed", str(error)):
            raise
    assert slope == 0


def test_the_dual_is_differentiable_in_everything():
    X, _, new, y, _ = rows()
    arguments = RBF(1.3), jnp.asarray(2.0), X, y, jnp.ones(len(X))
    values = jax.jit(lambda *arguments: dual.fit(*arguments).expansion(new))
    check_grads(values, arguments, order=1, modes=["fwd", "rev"], atol=1e-4, rtol=1e-4)
