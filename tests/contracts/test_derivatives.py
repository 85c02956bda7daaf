"""Derivatives of every function that claims them, against finite differences in float64.

A case is a function of named arguments at a hard point: with row weights of zero, coincident points
or repeated eigenvalues. The tests differentiate it inside a loop, where JAX drops custom rules (see
`_numerics.with_derivative`). Slow tests differentiate it also without a loop, under `vmap`, and in
each argument alone.
"""

import functools
import re
from pathlib import Path
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse
from jsparse import _numerics, kernels, scaling
from jsparse.expansion import KernelExpansion
from jsparse.features import KernelColumns, Linear, Nystroem, Triangular
from jsparse.kernels import RBF, Custom, Laplacian, Matern32, Matern52, Polynomial
from jsparse.kernels import RationalQuadratic as Quadratic
from jsparse.kernels.distances import squared_distances
from jsparse.machines import dual, fixed_size, pursuits, reduced_svm
from jsparse.machines.direct import LeastSquares, marginal
from jsparse.machines.dual import Dual
from jsparse.model import Model
from jsparse.multiclass import distances, output_code
from jsparse.normal_equations import (
    NormalEquations,
    accumulate,
    accumulate_folds,
    accumulate_groups,
)
from jsparse.pursuit import debiased, lars, least_squares
from jsparse.solvers import conjugate_gradients, definite
from jsparse.solvers.ridge import (
    degrees_of_freedom,
    quadratic_form,
    resolvent,
    ridge,
    spectrum,
)
from jsparse.solvers.tridiagonal import tridiagonal
from jsparse.validation.cross_validation import cross_validate
from jsparse.validation.folds import folds_from_assignment
from jsparse.validation.validate import validate

N, D, M = 11, 2, 4  # rows, columns, prototypes
LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 2, 1], np.int32)
FOLDS = np.arange(N) % 3  # of 4, 4 and 3 rows: the last one is padded


class Case(NamedTuple):
    """A function of named arguments; arguments and results are pytrees of arrays."""

    function: object
    arguments: dict
    orders: int = 2  # order of the derivatives that the function claims
    rtol: float = 2e-6
    symmetric: tuple = ()  # arguments that are symmetric matrices


CASES = {}


def case(name, *, fast=False, **settings):
    """Register a function that returns a function and its arguments."""

    def register(make):
        def build():
            function, arguments = make()
            listed = {k: np.asarray(v) if isinstance(v, list) else v for k, v in arguments.items()}
            arguments = jax.tree.map(jnp.asarray, listed)
            return Case(function, arguments, **settings)

        assert name not in CASES
        CASES[name] = build, fast
        return make

    return register


def data():
    """Return rows, targets, weights and prototypes: two equal rows, two zero weights.

    Two prototypes are rows too.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D))
    X[5] = X[4]
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(N)
    w = np.linspace(0.5, 1.5, N)
    w[[2, 7]] = 0
    Z = np.concatenate([X[:2], rng.standard_normal((M - 2, D))])
    return X, y, w, Z


def semidefinite(seed=1, p=4):
    """Return a random matrix with eigenvalues 0.5, 0.5, 2 and 3."""
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((p, p)))[0]
    return Q * np.array([0.5, 0.5, 2, 3]) @ Q.T


# Solvers


for factorise in (spectrum, tridiagonal):

    @case(f"resolvent by {factorise.__name__}", fast=True, symmetric=("A",))
    def _(factorise=factorise):
        def solve(A, rhs, shifts):
            return resolvent(factorise(A), rhs, shifts)

        rhs = np.random.default_rng(2).standard_normal((4, 2))
        return solve, {"A": semidefinite(), "rhs": rhs, "shifts": [0.1, 2.0]}

    @case(f"degrees_of_freedom by {factorise.__name__}", fast=True, symmetric=("A",))
    def _(factorise=factorise):
        return (
            lambda A, C: degrees_of_freedom(factorise(A), C),
            {"A": semidefinite(), "C": [0.5, 20.0]},
        )


@case("quadratic_form", fast=True, symmetric=("A",))
def _():
    B = np.random.default_rng(2).standard_normal((4, 3))
    return (
        lambda A, B, shifts: quadratic_form(spectrum(A), B, shifts),
        {"A": semidefinite(), "B": B, "shifts": [0.1, 2.0]},
    )


for penalty in (0.0, 1.0):

    @case(f"ridge, penalty {penalty}", symmetric=("gram",))
    def _(penalty=penalty):
        rng = np.random.default_rng(0)
        Phi, Y = rng.standard_normal((N, 3)) + 1, rng.standard_normal((N, 2))
        names = "gram", "cross", "feature_sum", "target_sum", "weight_sum", "C", "penalty"
        sums = Phi.T @ Phi, Phi.T @ Y, Phi.sum(axis=0), Y.sum(axis=0), float(N)
        arguments = dict(zip(names, (*sums, [0.1, 10.0], penalty), strict=True))

        def solve(**arguments):
            solution = ridge(*(arguments[name] for name in names))
            return solution.weights, solution.intercept, solution.degrees_of_freedom

        return solve, arguments


@case("definite.factorise", symmetric=("A",))
def _():
    rhs = np.random.default_rng(2).standard_normal((4, 2))
    return (
        lambda A, rhs, shift: definite.factorise(A, shift).solve(rhs),
        {"A": semidefinite(), "rhs": rhs, "shift": 0.1},
    )


@case("conjugate_gradients.solve", symmetric=("A",))
def _():
    def solve(A, rhs):
        return conjugate_gradients.solve(lambda x: A @ x, rhs, tolerance=1e-15, max_iterations=50)[
            0
        ]

    return solve, {"A": semidefinite(), "rhs": np.random.default_rng(2).standard_normal((4, 2))}


# `eigh` claims first derivatives only: at second order repeated eigenvalues split, and a rule with
# fixed eigenvectors misses that.
@case("eigh", orders=1, symmetric=("A",))
def _():
    def projection(A):
        values, vectors = _numerics.eigh(A)
        return vectors[:, 2:] @ vectors[:, 2:].T, jnp.sum(values[:2]), values[2:]

    return projection, {"A": semidefinite()}


@case("with_derivative", fast=True)
def _():
    # A rule that uses the value of the function.
    def exponential(x):
        return _numerics.with_derivative(jnp.exp, lambda value, _, dx: value * dx, x)

    return exponential, {"x": [0.1, -0.3]}


# Kernels


def table_of_kernels():
    length = jnp.asarray([0.9, 1.3])
    return {
        "RBF": RBF(length),
        "Matern32": Matern32(length),
        "Matern52": Matern52(length),
        "RationalQuadratic": Quadratic(length, jnp.asarray(1.5)),
        "Linear": kernels.Linear(jnp.asarray(0.5)),
        "Polynomial": Polynomial(3, jnp.asarray(0.7), jnp.asarray(1.1)),
        "Projected": kernels.Projected(RBF(1.1), jnp.asarray([[0.8, -0.3], [0.2, 1.1]])),
        "combined": 0.5 * RBF(length) + Matern52(length) * kernels.Linear(jnp.asarray(0.5)),
        "Custom": Custom(lambda c, x, z: jnp.exp(-c * jnp.sum((x - z) ** 2)), jnp.asarray(0.4)),
    }


KERNELS = (
    "RBF",
    "Matern32",
    "Matern52",
    "RationalQuadratic",
    "Linear",
    "Polynomial",
    "Projected",
    "combined",
    "Custom",
)

for name in KERNELS:
    # Matern32 has no third derivative, so differences of its first derivative err by H.
    rtol = 1e-3 if name == "Matern32" else 2e-6

    @case(f"cross_gram of {name}", fast=name in ("Matern32", "Matern52"), rtol=rtol)
    def _(name=name):
        X, _, _, Z = data()
        return (
            lambda kernel, X, Z: kernel.cross_gram(X, Z),
            {"kernel": table_of_kernels()[name], "X": X, "Z": Z},
        )

    @case(f"gram and diagonal of {name}", fast=name == "combined", rtol=rtol)
    def _(name=name):
        return (
            lambda kernel, X: (kernel.gram(X), kernel.diagonal(X)),
            {"kernel": table_of_kernels()[name], "X": data()[0]},
        )


@case("cross_gram of Laplacian")  # it has a cusp at coincident points, so `X` has no prototype
def _():
    X, _, _, Z = data()
    return (
        lambda kernel, X, Z: kernel.cross_gram(X, Z),
        {"kernel": Laplacian(jnp.asarray([0.9, 1.3])), "X": X[6:], "Z": Z},
    )


@case("cross_gram of Mixed")  # in the numeric columns; codes have no derivative
def _():
    X, _, _, Z = data()

    def coded(X):
        codes = jnp.arange(len(X), dtype=X.dtype) % 3
        return jnp.concatenate([X, codes[:, None]], axis=1)

    return (
        lambda kernel, X, Z: kernel.cross_gram(coded(X), coded(Z)),
        {"kernel": kernels.Mixed(RBF(jnp.asarray([0.9, 1.3, 0.8])), (2,)), "X": X, "Z": Z},
    )


@case("squared_distances", fast=True)
def _():
    X, _, _, Z = data()
    return squared_distances, {"X": X, "Z": Z, "lengthscale": [0.9, 1.3]}


# Features and sums


@case("Nystroem")
def _():
    X, _, _, Z = data()

    def gram(kernel, Z, X):  # the features themselves are unique only up to a rotation
        phi = Nystroem(kernel, Z)(X)
        return phi @ phi.T

    return gram, {"kernel": RBF(jnp.asarray([0.9, 1.3])), "Z": Z, "X": X}


@case("Triangular")
def _():
    X, _, _, Z = data()

    def features(kernel, Z, X):
        return Triangular(kernel, Z)(X)

    return features, {"kernel": RBF(jnp.asarray([0.9, 1.3])), "Z": Z, "X": X}


@case("Nystroem with repeated eigenvalues")
def _():
    def gram(Z, X):  # `Z` holds the corners of a square
        phi = Nystroem(RBF(jnp.asarray(1.0)), Z)(X)
        return phi @ phi.T

    return gram, {"Z": [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], "X": data()[0]}


@case("KernelColumns")
def _():
    X, _, _, Z = data()

    def both(kernel, Z, X):
        columns = KernelColumns(kernel, Z)
        return columns(X), columns.penalty()

    return both, {"kernel": RBF(jnp.asarray([0.9, 1.3])), "Z": Z, "X": X}


def sums(which):
    X, y, w, Z = data()

    def total(length, Z, X, y, w):
        phi = KernelColumns(RBF(length), Z)
        if which == "accumulate":
            return tuple(accumulate(phi, X, y, w, block_rows=4))
        if which == "accumulate_folds":
            rows = folds_from_assignment(FOLDS)
            X, y, w = rows.gather(X), rows.gather(y), jnp.where(rows.valid, rows.gather(w), 0)
            return tuple(accumulate_folds(phi, X, y, w))
        return tuple(accumulate_groups(phi, X, y, w, jnp.asarray(LABELS), n_groups=3))

    return total, {"length": [0.9, 1.3], "Z": Z, "X": X, "y": y, "w": w}


for which in ("accumulate", "accumulate_folds", "accumulate_groups"):
    case(which, fast=which == "accumulate")(functools.partial(sums, which))


@case("KernelExpansion")
def _():
    X, _, _, Z = data()
    scale = scaling.Standardization(jnp.asarray([0.1, -0.2]), jnp.asarray([0.8, 1.2]))
    model = KernelExpansion(
        RBF(jnp.asarray([0.9, 1.3])), jnp.asarray(Z), jnp.ones((M, 2)), jnp.ones(2), scale
    )
    return lambda model, X: model(X, block_rows=4), {"model": model, "X": X}


@case("standardize")
def _():
    def scaled(X):
        scale = scaling.standardize(X, jnp.linspace(0.5, 1.5, N))
        return scale.shift, scale.scale, scale.apply(X)

    return scaled, {"X": data()[0]}


@case("Model")
def _():
    X, _, _, Z = data()
    scale = scaling.Standardization(jnp.asarray([0.1, -0.2]), jnp.asarray([0.8, 1.2]))
    model = KernelExpansion(
        RBF(jnp.asarray([0.9, 1.3])), jnp.asarray(Z), jnp.ones((M, 3)), jnp.ones(3), scale
    )
    names, code = ("a", "b", "c"), output_code("one_versus_rest", 3)
    model = Model(model, inverse_temperatures=jnp.ones(3), labels=names, label_dtype="<U1")
    code = jnp.asarray(code.matrix)  # integers
    return lambda model, X: distances(code, model(X), "loss"), {"model": model, "X": X}


# Machines


def machine(fit):
    """Return a function of the arguments of `fit`, at five new rows, and the arguments."""
    X, y, w, Z = data()
    arguments = {"length": [0.9, 1.3], "Z": Z, "C": 5.0, "X": X, "y": y, "w": w}
    at = jnp.asarray(np.random.default_rng(3).standard_normal((5, D)))
    return lambda **arguments: fit(at, **arguments), arguments


for penalty in (0.0, 1.0):

    @case(f"fixed_size.fit, penalty {penalty}")
    def _(penalty=penalty):
        def fit(at, length, Z, C, X, y, w):
            fitted = fixed_size.fit(RBF(length), Z, C, X, y, w, intercept_penalty=penalty)
            return fitted.expansion(at), fitted.degrees_of_freedom

        return machine(fit)


@case("fixed_size.fit_features")
def _():
    def fit(at, length, Z, C, X, y, w):
        del length, Z
        fitted = fixed_size.fit_features(Linear(jnp.ones(D)), C, X, y, w, block_rows=4)
        return fitted.expansion(at)

    function, arguments = machine(fit)
    return functools.partial(function, length=0, Z=0), {
        k: arguments[k] for k in ("C", "X", "y", "w")
    }


for scheme in ("one_versus_one", "one_versus_rest"):

    @case(f"fixed_size.fit_classes, {scheme}")
    def _(scheme=scheme):
        code = output_code(scheme, 3)

        def fit(at, length, Z, C, X, w):
            phi = Nystroem(RBF(length), Z)
            C = jnp.stack([C, 2 * C, 3 * C])
            return fixed_size.fit_classes(phi, C, X, jnp.asarray(LABELS), code, w).expansion(at)

        function, arguments = machine(fit)
        return function, {k: v for k, v in arguments.items() if k != "y"}


@case("fixed_size.solve", symmetric=("gram",))
def _():
    X, y, w, Z = (jnp.asarray(a) for a in data())
    total = accumulate(Nystroem(RBF(1.0), Z), X, y, w)

    def solve(gram, cross, rest, C):
        sums = NormalEquations(gram, cross, *rest)
        fitted = fixed_size.solve(Linear(jnp.zeros(M)), sums, C)
        return fitted.expansion(jnp.eye(M)), fitted.degrees_of_freedom

    return solve, {"gram": total.gram, "cross": total.cross, "rest": total[2:], "C": 5.0}


for method in ("cholesky", "conjugate_gradients"):

    @case(f"dual.fit by {method}")
    def _(method=method):
        def fit(at, length, C, X, y, w):
            fitted = dual.fit(RBF(length), C, X, y, w, method=method, tolerance=1e-15, block_rows=6)
            return fitted.expansion(at), fitted.expansion.coefficients

        function, arguments = machine(fit)
        return function, {k: v for k, v in arguments.items() if k != "Z"}


@case("dual.fit_classes")
def _():
    code = output_code("one_versus_one", 3)

    def fit(at, length, C, X, w):
        return dual.fit_classes(
            RBF(length), jnp.stack([C, 2 * C, 3 * C]), X, jnp.asarray(LABELS), code, w
        ).expansion(at)

    function, arguments = machine(fit)
    return function, {k: arguments[k] for k in ("length", "C", "X", "w")}


@case("dual.leave_one_out")
def _():
    X, y, w, _ = data()
    return (
        lambda length, C, X, y, w: dual.leave_one_out(RBF(length), C, X, y, w)[0],
        {"length": [0.9, 1.3], "C": [0.5, 20.0], "X": X, "y": y, "w": w},
    )


@case("Dual.held_out, one_versus_one")
def _():
    X, _, w, _ = data()
    code, folds = output_code("one_versus_one", 3), folds_from_assignment(np.arange(len(X)) % 2)

    def score(length, C, X, w):
        rows = X, jnp.asarray(LABELS), folds, w
        return validate(Dual(), RBF(length), None, C, *rows, metric="mse", code=code).scores

    return score, {"length": [0.9, 1.3], "C": [0.5, 20.0], "X": X, "w": w}


@case("multiclass.distances")
def _():
    values = np.random.default_rng(4).standard_normal((5, 3))
    matrix = jnp.asarray(output_code("one_versus_one", 3).matrix, float)
    return lambda values: distances(matrix, values, "loss"), {"values": values}


@case("debiased")
def _():
    rng = np.random.default_rng(5)
    A = rng.standard_normal((9, 4))
    A, b = A.T @ A, rng.standard_normal(4)
    path = lars(jnp.asarray(A), jnp.asarray(b), max_atoms=3)

    def refit(A, b):
        refitted = debiased(path, A, b, max_atoms=3)
        return refitted.coefficients, refitted.residual_norm, refitted.explained

    return refit, {"A": A, "b": b}


# Cross-validation


def cross_validation(
    method="auto", *, metric="mse", penalty=0.0, code=None, weights=True, columns=(0, 1)
):
    X, y, w, Z = data()
    arguments = {"length": [0.9, 1.3], "Z": Z, "C": [0.5, 20.0], "X": X}
    if code is None:
        arguments["y"] = np.stack([y, np.cos(y)], axis=1)[:, list(columns)]
    if weights:
        arguments["w"] = w
    code = None if code is None else output_code(code, 3)

    def scores(length, Z, C, X, y=None, w=None):
        result = cross_validate(
            Nystroem(RBF(length), Z, center=penalty == 0),
            C,
            X,
            jnp.asarray(LABELS) if y is None else y,
            folds_from_assignment(FOLDS),
            w,
            method=method,
            metric=metric,
            intercept_penalty=penalty,
            code=code,
        )
        return result.scores, result.predictions

    return scores, arguments


for method in ("subtraction", "removal"):
    case(f"cross_validate by {method}", fast=method == "subtraction")(
        functools.partial(cross_validation, method, columns=(0,))
    )
    for name, settings in {
        "mae": {"metric": "mae"},
        "penalty": {"penalty": 1.0},
        "no weights": {"weights": False},
        "one_versus_rest": {"code": "one_versus_rest"},
    }.items():
        case(f"cross_validate by {method}, {name}")(
            functools.partial(cross_validation, method, **settings)
        )
case("cross_validate, one_versus_one")(functools.partial(cross_validation, code="one_versus_one"))


# Machines on fixed atoms


@case("least_squares", orders=1)
def _():
    rng = np.random.default_rng(0)
    return least_squares, {"X": rng.standard_normal((N, 3)), "y": rng.standard_normal((N, 2))}


@case("pursuits.refit", orders=1)
def _():
    X, y, w, Z = data()

    def values(lengthscale, Z, X, y, w):
        return pursuits.refit(RBF(lengthscale), Z, X, y, 1 + w)(X[:3] + 0.2)

    return values, {"lengthscale": 0.8, "Z": Z, "X": X, "y": y, "w": w}


@case("direct.marginal", orders=1)
def _():
    X, y, _, Z = data()

    def value(lengthscale, Z, X, C):
        return marginal(LeastSquares(RBF(lengthscale), X, jnp.asarray(y), C))(Z)[0]

    return value, {"lengthscale": 0.8, "Z": Z, "X": X, "C": 5.0}


@case("reduced_svm.fit", orders=1)
def _():
    X, y, _, Z = data()

    def objective(lengthscale, Z, C, X, w):
        kernel, sign = RBF(lengthscale), jnp.asarray(np.where(y > 0, 1.0, -1.0))
        return reduced_svm.fit(kernel, Z, C, X, sign, w, loss="squared_hinge").objective

    return objective, {"lengthscale": 0.8, "Z": Z, "C": 5.0, "X": X, "w": np.linspace(0.5, 1.5, N)}


# The checks


def scalar(case):
    """Return a scalar function of the arguments; every entry of the results has another weight."""

    def value(arguments):
        parts = jax.tree.leaves(case.function(**arguments))
        flat = jnp.concatenate([jnp.ravel(a) for a in parts])
        return jnp.dot(jnp.sin(flat), jnp.linspace(1, 2, flat.size))

    return value


def looped(function):
    """Return the sum of the function at two scaled arguments, by a loop."""
    # Scaling keeps coincident points coincident and zero weights zero.
    scales = jnp.array([1.0, 1.01])
    return lambda x: jnp.sum(jax.lax.map(lambda s: function(times(s, x)), scales))


def batched(function):
    scales = jnp.array([1.0, 1.01])
    return lambda x: jnp.sum(jax.vmap(lambda s: function(times(s, x)))(scales))


def plain(function):
    return function


def times(factor, tree):
    return jax.tree.map(lambda a: factor * a, tree)


def random_direction(case, seed):
    """Return a direction in every argument; zero weights and penalties must not decrease."""
    rng = np.random.default_rng(seed)
    directions = {}
    for name, value in case.arguments.items():
        leaves, structure = jax.tree.flatten(value)
        steps = [rng.uniform(-1, 1, a.shape) for a in leaves]
        if name in case.symmetric:
            steps = [a + a.T for a in steps]
        if name in ("w", "penalty"):
            pairs = zip(leaves, steps, strict=True)
            steps = [np.where(np.asarray(a) == 0, np.abs(t), t) for a, t in pairs]
        directions[name] = jax.tree.unflatten(structure, [jnp.asarray(a) for a in steps])
    return directions


def inner(a, b):
    """Return the inner product of two pytrees."""
    return sum(jnp.vdot(s, t) for s, t in zip(*map(jax.tree.leaves, (a, b)), strict=True))


H = 2e-4
FORWARD = np.array([-25, 48, -36, 16, -3]) / 12  # at steps 0 to 4, of fourth order
CENTRAL = np.array([1, -8, 0, 8, -1]) / 12  # at steps -2 to 2, of fourth order


def difference(of, x, direction):
    """Return the difference of `of` along a direction; forward if a weight or penalty moves."""
    one_sided = {"w", "penalty"} & {
        name for name, t in direction.items() if any(np.any(a) for a in jax.tree.leaves(t))
    }
    weights, places = (FORWARD, range(5)) if one_sided else (CENTRAL, range(-2, 3))
    at = [of(jax.tree.map(lambda a, t, i=i: a + i * H * t, x, direction)) for i in places]
    return float(np.dot(weights, at)) / H


def assert_close(actual, expected, scale, rtol=2e-6):
    # A difference errs by eps / H times the value, and by H^4 times the fifth derivative.
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=2e-8 * max(1, scale))


def check(case, wrap, differentiated):
    """Check first and second derivatives in the named arguments; the others stay fixed.

    Forward and reverse mode must agree with each other and with differences.
    """
    value = wrap(scalar(case))
    names = tuple(differentiated)
    x = case.arguments

    def of(free, fixed):
        return value({**fixed, **free})

    @jax.jit
    def program(free, fixed, u):
        forward = jax.jvp(lambda free: of(free, fixed), (free,), (u,))
        reverse = jax.grad(of)
        if case.orders == 1:
            return forward, reverse(free, fixed), None
        return forward, *jax.jvp(lambda free: reverse(free, fixed), (free,), (u,))

    free = {name: x[name] for name in names}
    fixed = {name: x[name] for name in x if name not in names}
    u, v = ({name: random_direction(case, seed)[name] for name in names} for seed in (0, 1))
    (result, forward), gradient, hessian_u = program(free, fixed, u)
    chex.assert_tree_all_finite((result, gradient, hessian_u))
    assert_close(forward, inner(gradient, u), abs(float(result)))
    plain_value = jax.jit(of)
    for name in names:
        alone = {k: times(float(k == name), t) for k, t in u.items()}
        slope = difference(lambda x: float(plain_value(x, fixed)), free, alone)
        assert_close(inner(gradient, alone), slope, abs(float(result)))
    if case.orders == 1:
        return
    # Second derivatives equal differences of the gradient, and are symmetric in u and v.
    scale = max(float(jnp.max(jnp.abs(a))) for a in jax.tree.leaves(gradient))
    for t in (u, v):
        slope = difference(lambda x, t=t: inner(program(x, fixed, t)[1], t), free, u)
        assert_close(inner(hessian_u, t), slope, scale, case.rtol)
    hessian_v = program(free, fixed, v)[2]
    assert_close(inner(hessian_v, u), inner(hessian_u, v), scale)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if fast else pytest.mark.slow)
        for name, (_, fast) in CASES.items()
    ],
)
def test_derivatives_in_a_loop_are_differences(name):
    case = CASES[name][0]()
    check(case, looped, case.arguments)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [plain, batched])
@pytest.mark.parametrize("name", CASES)
def test_derivatives_without_a_loop_and_of_a_batch_are_differences(name, wrap):
    case = CASES[name][0]()
    check(case, wrap, case.arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_derivatives_in_each_argument_alone(name):
    case = CASES[name][0]()
    for argument in case.arguments:
        check(case, looped, [argument])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_in_every_mode(name):
    case = CASES[name][0]()
    if case.orders == 1:
        return
    value, x = looped(scalar(case)), case.arguments
    u, v = random_direction(case, 0), random_direction(case, 1)

    def slope(x):
        return jax.jvp(value, (x,), (u,))[1]

    @jax.jit
    def modes(x):
        forward_forward = jax.jvp(slope, (x,), (v,))[1]
        reverse_forward = jax.grad(slope)(x)
        reverse_reverse = jax.grad(lambda x: inner(jax.grad(value)(x), u))(x)
        return forward_forward, inner(reverse_forward, v), inner(reverse_reverse, v)

    forward, *others = modes(x)
    for other in others:
        np.testing.assert_allclose(other, forward, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_the_hessian_of_cross_validation_is_symmetric_and_equal_by_both_methods():
    X, y, _, Z = (jnp.asarray(a) for a in data())
    folds = folds_from_assignment(FOLDS)

    def score(x, method):
        phi = Nystroem(RBF(x[:2]), Z)
        return cross_validate(phi, x[2:], X, y, folds, method=method).scores[0]

    x = jnp.array([0.9, 1.3, 10.0])
    by_subtraction, by_removal = (
        jax.jit(jax.hessian(lambda x, method=method: score(x, method)))(x)
        for method in ("subtraction", "removal")
    )
    np.testing.assert_allclose(by_subtraction, by_subtraction.T, rtol=1e-9)
    np.testing.assert_allclose(by_subtraction, by_removal, rtol=1e-7)


@pytest.mark.parametrize("method", ["cholesky", "conjugate_gradients"])
def test_a_weight_of_zero_has_the_same_derivative_in_the_dual_and_in_the_primal(method):
    X, y, w, _ = (jnp.asarray(a) for a in data())
    X = X.at[5].add(0.1)  # K(X, X) of full rank
    at = X[:3] + 0.2

    def slope(fit):
        return jax.jit(jax.jacfwd(lambda w: fit(w).expansion(at)))(w)

    ours = slope(lambda w: dual.fit(RBF(0.7), 5.0, X, y, w, method=method, tolerance=1e-15))
    theirs = slope(lambda w: fixed_size.fit(RBF(0.7), X, 5.0, X, y, w))
    assert float(jnp.min(jnp.abs(ours[:, 2]))) > 1e-4
    np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)


# Modules whose text says "differentiable", and the cases that check their claims.
CLAIMS = {
    "_numerics.py": ("eigh", "with_derivative"),
    "expansion.py": ("KernelExpansion",),
    "features/triangular.py": ("Triangular",),
    "kernels/base.py": tuple(f"cross_gram of {name}" for name in KERNELS),
    "kernels/distances.py": ("squared_distances",),
    "kernels/mixed.py": ("cross_gram of Mixed",),
    "machines/dual.py": ("dual.fit by cholesky",),
    "machines/dual_leave_one_out.py": ("dual.leave_one_out", "Dual.held_out, one_versus_one"),
    "machines/direct.py": ("direct.marginal",),
    "machines/fixed_size.py": ("fixed_size.fit, penalty 0.0", "fixed_size.solve"),
    "machines/pursuits.py": ("pursuits.refit",),
    "machines/reduced_svm.py": ("reduced_svm.fit",),
    "model.py": ("Model",),
    "predictor/codes.py": ("multiclass.distances",),
    "normal_equations.py": ("accumulate",),
    "pursuit/debias.py": ("debiased",),
    "pursuit/on_atoms.py": ("least_squares",),
    "scaling.py": ("standardize",),
    "solvers/conjugate_gradients.py": ("conjugate_gradients.solve",),
    "solvers/definite.py": ("definite.factorise",),
    "solvers/ridge.py": ("resolvent by spectrum", "quadratic_form", "ridge, penalty 1.0"),
    "validation/cross_validation.py": ("cross_validate by subtraction",),
}
CLAIMED_ELSEWHERE = {
    "machines/gradient_product.py": "tests/machines/test_agop.py",
    "validation/error_gradient.py": "once: against differences, in tests/layers/test_layers.py and "
    "of a machine in NumPy in tests/search/test_gradient_search.py",
    "layers.py": "the loss and the fit against differences: tests/layers/test_layers.py",
    "predictor/answers.py": "scores and probabilities: tests/model/test_prediction.py",
    "novelty.py": "distances against differences: tests/model/test_novelty.py",
    "machines/family.py": "values of every machine: tests/machines/test_family.py",
    "machines/scdp.py": "between changes of the selection: tests/machines/test_scdp.py",
    "machines/spsvm.py": "forwards, between changes of the selection: tests/machines/test_spsvm.py",
    "validation/validate.py": "by the methods: cross_validate and Dual.held_out, above",
    "prediction.py": "scores, in every kind of prediction: tests/model/test_prediction.py",
    "_mesh.py": "a sum or a function on several devices: tests/package/on_eight_devices.py",
}


def test_every_claim_is_checked():
    root = Path(jsparse.__file__).parent
    claiming = set()
    for path in root.rglob("*.py"):
        text = re.sub(r"\s+", " ", path.read_text())
        if re.search(r"(?<!Not )(?<!not )[Dd]ifferentiable(?! in any useful)", text):
            claiming.add(path.relative_to(root).as_posix())
    assert claiming == set(CLAIMS) | set(CLAIMED_ELSEWHERE)
    assert {name for names in CLAIMS.values() for name in names} <= set(CASES)
    kinds = {type(kernel) for kernel in table_of_kernels().values()} | {Laplacian, kernels.Sum}
    kinds |= {kernels.Mixed}
    public = {k for k in vars(kernels).values() if isinstance(k, type)}
    assert public - kinds <= {kernels.Kernel, kernels.Mixture, kernels.Product, kernels.Scaled}


def near_duplicates(name):
    """Return rows, and a function of their weights; the first two rows nearly coincide."""
    X = jnp.array([[0.0], [0.01], [1.0], [3.0], [1.0], [2.0]])
    y, kernel = jnp.array([1, 1.01, 5, 2, 4, 0.0]), RBF(1.0)
    features, at = Nystroem(kernel, X[:2]), jnp.array([[0.7]])
    three, C = (X[:3], y[:3]), jnp.array(10.0)
    if name.startswith("cross"):
        folds = folds_from_assignment(np.arange(6) // 3)
        method = name.split()[1]
        return X, lambda w: cross_validate(features, C[None], X, y, folds, w, method=method).scores[
            0
        ]
    return {
        "sums": (X, lambda w: jnp.sum(accumulate(features, X, y, w, block_rows=3).gram)),
        "fixed size": (
            X[:3],
            lambda w: fixed_size.fit(kernel, X[:2], C, *three, w).expansion(at)[0],
        ),
        "dual": (X[:3], lambda w: dual.fit(kernel, C, *three, w).expansion(at)[0]),
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "sums",
        "fixed size",
        "dual",
        "cross subtraction",
        pytest.param("cross removal", marks=pytest.mark.slow),
    ],
)
def test_the_derivative_in_a_zero_weight_beside_near_duplicates(name):
    X, function = near_duplicates(name)
    w = jnp.ones(len(X)).at[2].set(0.0)
    h = 1e-6
    # A weight cannot be negative, so the difference is one-sided; it is of second order.
    f0, f1, f2 = (float(function(w.at[2].set(step))) for step in (0.0, h, 2 * h))
    expected = (-3 * f0 + 4 * f1 - f2) / (2 * h)
    np.testing.assert_allclose(jax.grad(function)(w)[2], expected, rtol=1e-5)


def test_padding_of_blocks_is_valid_input_of_a_kernel():
    """The kernel is NaN at zero, so rows of zeros would spoil the gradient."""

    def cosine(p, x, z):
        return jnp.exp(p * jnp.dot(x, z) / jnp.linalg.norm(x) / jnp.linalg.norm(z))

    X = jnp.asarray(np.random.default_rng(0).standard_normal((20, 2)))

    def total(p, block_rows):
        columns = KernelColumns(Custom(cosine, p), X[:3])
        return jnp.sum(accumulate(columns, X, X[:, 0], block_rows=block_rows).gram)

    one_block, blocks = (jax.grad(total)(jnp.array(1.0), rows) for rows in (20, 8))
    np.testing.assert_allclose(blocks, one_block, rtol=1e-12)
