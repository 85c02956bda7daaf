"""The documentation's table of what is differentiable in what, row by row."""

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
RNG = np.random.default_rng(0)
X, Z, NEW = (jnp.asarray(RNG.normal(size=(n, 2))) for n in (30, 4, 5))
Y = jnp.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
SIGNS = jnp.where(Y > 0.2, 1.0, -1.0)
LABELS = jnp.asarray(np.digitize(np.asarray(Y), [-0.3, 0.4]), jnp.int32)
W = jnp.asarray(RNG.uniform(0.5, 1.5, 30))
CODE = output_code("one_versus_rest", 3)
FOLDS = plain_folds(jax.random.key(0), 30, 3)
HEAD = KernelHead(Z, RBF(1.3), C=2.0, n_folds=3)
KERNEL = RBF(1.3)


def values(fit):
    """Values at new rows of the machine that a fit gives."""
    return lambda *arguments: getattr(fit(*arguments), "expansion", fit(*arguments))(NEW)


# Of each row of the table: functions, the arguments they are differentiable in, and the modes.
BOTH, FORWARD, NEITHER = ("fwd", "rev"), ("fwd",), ()
ROWS = {
    "kernels: gram, cross_gram": [
        (lambda k, X: k.gram(X), (Matern52(1.1), X[:6]), BOTH),
        (lambda k, X, Z: k.cross_gram(X, Z), (KERNEL, X[:6], Z), BOTH),
    ],
    "fixed_size.fit, fit_features, fit_classes, solve": [
        (values(fixed_size.fit), (KERNEL, Z, 2.0, X, Y, W), BOTH),
        (
            values(lambda k, C, X, y, w: fixed_size.fit_features(Nystroem(k, Z), C, X, y, w)),
            (KERNEL, 2.0, X, Y, W), BOTH,
        ),
        (
            values(lambda k, C, X, w: fixed_size.fit_classes(
                Nystroem(k, Z), C, X, LABELS, CODE, w)),
            (KERNEL, 2.0, X, W), BOTH,
        ),
        (
            values(lambda k, C, y: fixed_size.solve(
                Nystroem(k, Z), accumulate(Nystroem(k, Z), X, y), C)),
            (KERNEL, 2.0, Y), BOTH,
        ),
    ],
    "dual.fit": [(values(dual.fit), (KERNEL, 2.0, X, Y, W), BOTH)],
    "reduced_svm.fit": [
        (values(lambda C: reduced_svm.fit(KERNEL, Z, C, X, SIGNS, W)), (2.0,), BOTH)
    ],
    "cross_validate": [
        (
            lambda k, C, X, y, w: cross_validate(Nystroem(k, Z), C, X, y, FOLDS, w).scores,
            (KERNEL, jnp.array([0.5, 5.0]), X, Y, W), BOTH,
        )
    ],
    "layers.KernelHead.loss": [
        (lambda head, X, y, w: head.loss(X, y, w), (HEAD, X, Y, W), BOTH)
    ],
    "layers.KernelHead.fit": [
        (lambda head, X, y, w: head.fit(X, y, w)(NEW), (HEAD, X, Y, W), BOTH)
    ],
    "direct.marginal": [
        (
            lambda k, X, y, C, Z: direct.marginal(LeastSquares(k, X, y, C))(Z)[0],
            (KERNEL, X, Y, jnp.asarray(2.0), Z), BOTH,
        )
    ],
    "machines.agop": [
        (agop, (KernelExpansion(KERNEL, Z, Y[:4], jnp.zeros(())), X[:6], W[:6]), BOTH)
    ],
    "pursuits.refit, pursuit.least_squares": [
        (values(lambda k, Z, X, y: pursuits.refit(k, Z, X, y, ridge=0.1)), (KERNEL, Z, X, Y), BOTH),
        (least_squares, (X, Y), BOTH),
    ],
    "scdp.fit, spsvm.fit, pursuits.fit": [
        (values(lambda C, y: scdp.fit(KERNEL, Z, C, X, y, max_prototypes=3)), (2.0, Y), FORWARD),
        (
            values(lambda C: spsvm.fit(
                KERNEL, Z, C, X, SIGNS, key=jax.random.key(0), max_prototypes=2)),
            (2.0,), FORWARD,
        ),
        (values(lambda y: pursuits.fit(KSP(2), KERNEL, Z, X, y)), (Y,), FORWARD),
    ],
    "Model, KernelExpansion": [
        (
            lambda e, X: Model(e, about=About())(X),
            (KernelExpansion(KERNEL, Z, Y[:4], jnp.zeros(())), X[:6]), BOTH,
        ),
        (lambda e, X: e(X), (KernelExpansion(KERNEL, Z, Y[:4], jnp.zeros(())), X[:6]), BOTH),
    ],
    "slmc.fit, sparse_fisher.fit, sparse_ridge.fit, rvm.fit, robust.fit": [
        (values(lambda C: slmc.fit(KERNEL, Z, C, X, SIGNS)), (2.0,), NEITHER),
        (values(lambda C: sparse_fisher.fit(KERNEL, Z, C, X, SIGNS)), (2.0,), NEITHER),
        (values(lambda C: sparse_ridge.fit(KERNEL, Z, C, X, Y)), (2.0,), NEITHER),
        (values(lambda y: rvm.fit(KERNEL, Z, X, y)), (Y,), NEITHER),
        (values(lambda y: robust.fit(Nystroem(KERNEL, Z), 2.0, X, y)), (Y,), NEITHER),
    ],
}  # fmt: skip


def table():
    """The rows of the page's table: functions without marks, and modes."""
    rows = re.findall(r"^\| (.*?) \| .*? \| ?(.*?) ?\|$", PAGE.read_text(), re.M)
    return {name.replace("`", ""): modes for name, modes in rows if not name.startswith("function")}


def test_the_table_has_these_rows_and_modes():
    modes = {"both": BOTH, "forward": FORWARD, "": NEITHER}
    stated = {name: modes[text.split(",")[0]] for name, text in table().items()}
    assert stated == {name: cases[0][2] for name, cases in ROWS.items()}


@pytest.mark.parametrize("name", ROWS)
def test_derivatives_are_as_the_table_says(name):
    for function, arguments, modes in ROWS[name]:
        arguments = jax.tree.map(lambda a: jnp.asarray(a, float), arguments)
        if modes:
            check_grads(function, arguments, order=1, modes=list(modes), atol=1e-4, rtol=1e-4)
        if "rev" not in modes:
            with pytest.raises(ValueError, match="Reverse-mode differentiation"):
                jax.vjp(function, *arguments)
