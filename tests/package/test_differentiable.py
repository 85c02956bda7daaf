"""The documentation's table of what is differentiable in what, row by row."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jsparse import cross_validate
from jsparse.expansion import KernelExpansion
from jsparse.features import Nystroem
from jsparse.kernels import RBF, Matern52
from jsparse.layers import KernelHead
from jsparse.machines import (
    agop,
    direct,
    dual,
    fixed_size,
    pursuits,
    reduced_svm,
    robust,
    rvm,
    scdp,
    slmc,
    sparse_fisher,
    sparse_ridge,
    spsvm,
)
from jsparse.machines.inner_problems import LeastSquares
from jsparse.machines.ksp import KSP
from jsparse.model import About, Model
from jsparse.multiclass import output_code
from jsparse.normal_equations import accumulate
from jsparse.pursuit import least_squares
from jsparse.validation.folds import plain_folds

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "jax.md"
BOTH, FORWARD, NEITHER = ("fwd", "rev"), ("fwd",), ()


@functools.cache
def rows():
    """Of each row of the table: functions, the arguments they are differentiable in, the modes."""
    rng = np.random.default_rng(0)
    X, Z, new = (jnp.asarray(rng.normal(size=(n, 2))) for n in (30, 4, 5))
    Y = jnp.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
    signs = jnp.where(Y > 0.2, 1.0, -1.0)
    labels = jnp.asarray(np.digitize(np.asarray(Y), [-0.3, 0.4]), jnp.int32)
    W = jnp.asarray(rng.uniform(0.5, 1.5, 30))
    code = output_code("one_versus_rest", 3)
    folds = plain_folds(jax.random.key(0), 30, 3)
    head = KernelHead(Z, RBF(1.3), C=2.0, n_folds=3)
    kernel = RBF(1.3)

    def values(fit):
        """Return the values at new rows of the machine that a fit gives."""

        def at_new_rows(*arguments):
            machine = fit(*arguments)
            return getattr(machine, "expansion", machine)(new)

        return at_new_rows

    C = jnp.asarray(2.0)
    return {
        "kernels: gram, cross_gram": [
            (lambda k, X: k.gram(X), (Matern52(1.1), X[:6]), BOTH),
            (lambda k, X, Z: k.cross_gram(X, Z), (kernel, X[:6], Z), BOTH),
        ],
        "fixed_size.fit, fit_features, fit_classes, solve": [
            (values(fixed_size.fit), (kernel, Z, C, X, Y, W), BOTH),
            (
                values(lambda k, C, X, y, w: fixed_size.fit_features(Nystroem(k, Z), C, X, y, w)),
                (kernel, C, X, Y, W), BOTH,
            ),
            (
                values(lambda k, C, X, w: fixed_size.fit_classes(
                    Nystroem(k, Z), C, X, labels, code, w)),
                (kernel, C, X, W), BOTH,
            ),
            (
                values(lambda k, C, y: fixed_size.solve(
                    Nystroem(k, Z), accumulate(Nystroem(k, Z), X, y), C)),
                (kernel, C, Y), BOTH,
            ),
        ],
        "dual.fit": [(values(dual.fit), (kernel, C, X, Y, W), BOTH)],
        "reduced_svm.fit: the objective": [
            (
                lambda C, Z: reduced_svm.fit(kernel, Z, C, X, signs, W).objective,
                (C, Z), BOTH,
            )
        ],
        "cross_validate": [
            (
                lambda k, C, X, y, w: cross_validate(Nystroem(k, Z), C, X, y, folds, w).scores,
                (kernel, jnp.array([0.5, 5.0]), X, Y, W), BOTH,
            )
        ],
        "layers.KernelHead.loss": [
            (lambda h, X, y, w: h.loss(X, y, w), (head, X, Y, W), BOTH)
        ],
        "layers.KernelHead.fit": [
            (lambda h, X, y, w: h.fit(X, y, w)(new), (head, X, Y, W), BOTH)
        ],
        "direct.marginal": [
            (
                lambda k, X, y, C, Z: direct.marginal(LeastSquares(k, X, y, C))(Z)[0],
                (kernel, X, Y, C, Z), BOTH,
            )
        ],
        "machines.agop": [
            (agop, (KernelExpansion(kernel, Z, Y[:4], jnp.zeros(())), X[:6], W[:6]), BOTH)
        ],
        "pursuits.refit, pursuit.least_squares": [
            (
                values(lambda k, Z, X, y: pursuits.refit(k, Z, X, y, ridge=0.1)),
                (kernel, Z, X, Y), BOTH,
            ),
            (least_squares, (X, Y), BOTH),
        ],
        "scdp.fit": [
            (values(lambda C, y: scdp.fit(kernel, Z, C, X, y, max_prototypes=3)), (C, Y), BOTH)
        ],
        "spsvm.fit, pursuits.fit": [
            (
                values(lambda C: spsvm.fit(
                    kernel, Z, C, X, signs, key=jax.random.key(0), max_prototypes=2)),
                (C,), FORWARD,
            ),
            (values(lambda y: pursuits.fit(KSP(n_prototypes=2), kernel, Z, X, y)), (Y,), FORWARD),
        ],
        "Model, KernelExpansion": [
            (
                lambda e, X: Model(e, about=About())(X),
                (KernelExpansion(kernel, Z, Y[:4], jnp.zeros(())), X[:6]), BOTH,
            ),
            (lambda e, X: e(X), (KernelExpansion(kernel, Z, Y[:4], jnp.zeros(())), X[:6]), BOTH),
        ],
        "slmc.fit, sparse_fisher.fit, sparse_ridge.fit, rvm.fit, robust.fit": [
            (values(lambda C: slmc.fit(kernel, Z, C, X, signs)), (C,), NEITHER),
            (values(lambda C: sparse_fisher.fit(kernel, Z, C, X, signs)), (C,), NEITHER),
            (values(lambda C: sparse_ridge.fit(kernel, Z, C, X, Y)), (C,), NEITHER),
            (values(lambda y: rvm.fit(kernel, Z, X, y)), (Y,), NEITHER),
            (values(lambda y: robust.fit(Nystroem(kernel, Z), 2.0, X, y)), (Y,), NEITHER),
        ],
    }  # fmt: skip


def table():
    """The rows of the page's table: functions without marks, and modes."""
    rows = re.findall(r"^\| (.*?) \| .*? \| ?(.*?) ?\|$", PAGE.read_text(), re.M)
    return {name.replace("`", ""): modes for name, modes in rows if not name.startswith("function")}


def test_the_table_has_these_rows_and_modes():
    modes = {"both": BOTH, "forward": FORWARD, "": NEITHER}
    stated = {name: modes[text.split(",")[0]] for name, text in table().items()}
    assert stated == {name: cases[0][2] for name, cases in rows().items()}


def reverse_mode_gives_numbers(function, arguments):
    """Return whether reverse mode gives derivatives other than 0, instead of an error."""
    try:
        value, pull = jax.vjp(function, *arguments)
        derivatives = pull(jnp.ones_like(value))
    except ValueError as error:
        if not re.search("Reverse-mode differentiation|Linearization failed", str(error)):
            raise
        return False
    return any(np.any(leaf) for leaf in jax.tree.leaves(derivatives))


QUICK = ("kernels: gram, cross_gram", "machines.agop", "dual.fit", "Model, KernelExpansion")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in table()],
)
def test_derivatives_are_as_the_table_says(name):
    for case, arguments, modes in rows()[name]:
        function = jax.jit(case)
        if modes:
            check_grads(function, arguments, order=1, modes=list(modes), atol=1e-4, rtol=1e-4)
        if "rev" not in modes:
            assert not reverse_mode_gives_numbers(function, arguments)
