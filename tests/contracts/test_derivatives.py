"""Derivatives of every function that claims them, against finite differences in float64.

A case is a function of named arguments at a hard point: with row weights of zero, coincident points
or repeated eigenvalues. The tests differentiate it inside a loop, where JAX drops custom rules (see
`_numerics.with_derivative`). Slow tests compare the results with derivatives without a loop, under
`vmap`, in each argument alone, and in other orders of forward and reverse mode.
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
from registry import SLOW

import jsparse
from jsparse import _numerics, kernels, scaling
from jsparse.expansion import KernelExpansion
from jsparse.features import KernelColumns, Linear, Nystroem, Triangular
from jsparse.kernels import RBF, Custom, Laplacian, Matern32, Matern52, Polynomial
from jsparse.kernels import RationalQuadratic as Quadratic
from jsparse.kernels.distances import squared_distances
from jsparse.machines import dual, fixed_size, pursuits
from jsparse.machines.dual import Dual
from jsparse.model import Model
from jsparse.multiclass import distances, output_code
from jsparse.normal_equations import (
    NormalEquations,
    accumulate,
    accumulate_folds,
    accumulate_groups,
)
from jsparse.pursuit import least_squares
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
    """Return a decorator that registers a maker of a function and its arguments as a case."""

    def register(make):
        def build():
            function, arguments = make()
            listed = {k: np.asarray(v) if isinstance(v, list) else v for k, v in arguments.items()}
            return Case(function, jax.tree.map(jnp.asarray, listed), **settings)

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


def definite_matrix(seed=1, p=4):
    """Return a random symmetric matrix with eigenvalues 0.5, 0.5, 2 and 3."""
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((p, p)))[0]
    return Q * np.array([0.5, 0.5, 2, 3]) @ Q.T


RHS = np.random.default_rng(2).standard_normal((4, 2))


# Solvers


for factorise in (spectrum, tridiagonal):

    @case(f"resolvent by {factorise.__name__}", fast=True, symmetric=("A",))
    def _(factorise=factorise):
        def solve(A, rhs, shifts):
            factors = factorise(A)
            return resolvent(factors, rhs, shifts), degrees_of_freedom(factors, 1 / shifts)

        return solve, {"A": definite_matrix(), "rhs": RHS, "shifts": [0.1, 2.0]}


@case("quadratic_form", fast=True, symmetric=("A",))
def _():
    return (
        lambda A, B, shifts: quadratic_form(spectrum(A), B, shifts),
        {"A": definite_matrix(), "B": RHS, "shifts": [0.1, 2.0]},
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
    return (
        lambda A, rhs, shift: definite.factorise(A, shift).solve(rhs),
        {"A": definite_matrix(), "rhs": RHS, "shift": 0.1},
    )


@case("conjugate_gradients.solve", symmetric=("A",))
def _():
    options = {"tolerance": 1e-15, "max_iterations": 50}
    return (
        lambda A, rhs: conjugate_gradients.solve(lambda x: A @ x, rhs, **options)[0],
        {"A": definite_matrix(), "rhs": RHS},
    )


# `eigh` claims first derivatives only: at second order repeated eigenvalues split, and a rule with
# fixed eigenvectors misses that.
@case("eigh", orders=1, symmetric=("A",))
def _():
    def projection(A):
        values, vectors = _numerics.eigh(A)
        return vectors[:, 2:] @ vectors[:, 2:].T, jnp.sum(values[:2]), values[2:]

    return projection, {"A": definite_matrix()}


@case("with_derivative", fast=True)
def _():
    # A rule that uses the value of the function.
    def exponential(x):
        return _numerics.with_derivative(jnp.exp, lambda value, _, dx: value * dx, x)

    return exponential, {"x": [0.1, -0.3]}


# Kernels


LENGTH = np.array([0.9, 1.3])
KERNELS = {
    "RBF": lambda: RBF(LENGTH),
    "Matern32": lambda: Matern32(LENGTH),
    "Matern52": lambda: Matern52(LENGTH),
    "RationalQuadratic": lambda: Quadratic(LENGTH, 1.5),
    "Linear": lambda: kernels.Linear(0.5),
    "Polynomial": lambda: Polynomial(3, 0.7, 1.1),
    "Projected": lambda: kernels.Projected(RBF(1.1), np.array([[0.8, -0.3], [0.2, 1.1]])),
    "combined": lambda: 0.5 * RBF(LENGTH) + Matern52(LENGTH) * kernels.Linear(0.5),
    "Custom": lambda: Custom(lambda c, x, z: jnp.exp(-c * jnp.sum((x - z) ** 2)), 0.4),
}
for name in KERNELS:
    # Matern32 has no third derivative, so differences of its first derivative err by H.
    @case(f"kernel {name}", fast=name == "Matern32", rtol=1e-3 if name == "Matern32" else 2e-6)
    def _(name=name):
        X, _, _, Z = data()
        return (
            lambda kernel, X, Z: (kernel.cross_gram(X, Z), kernel.gram(X), kernel.diagonal(X)),
            {"kernel": KERNELS[name](), "X": X, "Z": Z},
        )


@case("kernel Laplacian")  # it has a cusp at coincident points, so `X` has no prototype
def _():
    X, _, _, Z = data()
    return (
        lambda kernel, X, Z: kernel.cross_gram(X, Z),
        {"kernel": Laplacian(LENGTH), "X": X[6:], "Z": Z},
    )


@case("kernel Mixed")  # in the numeric columns; codes have no derivative
def _():
    X, _, _, Z = data()

    def coded(X):
        codes = jnp.arange(len(X), dtype=X.dtype) % 3
        return jnp.concatenate([X, codes[:, None]], axis=1)

    return (
        lambda kernel, X, Z: kernel.cross_gram(coded(X), coded(Z)),
        {"kernel": kernels.Mixed(RBF(np.array([0.9, 1.3, 0.8])), (2,)), "X": X, "Z": Z},
    )


@case("squared_distances", fast=True)
def _():
    X, _, _, Z = data()
    return squared_distances, {"X": X, "Z": Z, "lengthscale": LENGTH}


# Features, sums and models


@case("Nystroem")
def _():
    def gram(kernel, Z, X):  # the features themselves are unique only up to a rotation
        phi = Nystroem(kernel, Z)(X)
        return phi @ phi.T

    square = [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]  # repeated eigenvalues
    return gram, {"kernel": RBF(1.0), "Z": square, "X": data()[0]}


@case("Triangular")
def _():
    X, _, _, Z = data()
    return (
        lambda kernel, Z, X: Triangular(kernel, Z)(X),
        {"kernel": RBF(LENGTH), "Z": Z, "X": X},
    )


for which in ("accumulate", "accumulate_folds", "accumulate_groups"):

    @case(which, fast=which == "accumulate")
    def _(which=which):
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

        return total, {"length": LENGTH, "Z": Z, "X": X, "y": y, "w": w}


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
    expansion = KernelExpansion(RBF(LENGTH), jnp.asarray(Z), jnp.ones((M, 3)), jnp.ones(3), scale)
    names, code = ("a", "b", "c"), jnp.asarray(output_code("one_versus_rest", 3).matrix)
    model = Model(expansion, inverse_temperatures=jnp.ones(3), labels=names, label_dtype="<U1")
    return (
        lambda model, X: (model.expansion(X, block_rows=4), distances(code, model(X), "loss")),
        {"model": model, "X": X},
    )


# Machines


def machine(fit, *names):
    """Return a function of the named arguments of `fit`, at five new rows, and the arguments."""
    X, y, w, Z = data()
    arguments = {"length": LENGTH, "Z": Z, "C": 5.0, "X": X, "y": y, "w": w}
    at = jnp.asarray(np.random.default_rng(3).standard_normal((5, D)))
    return lambda **arguments: fit(at, **arguments), {name: arguments[name] for name in names}


@case("fixed_size.fit")
def _():
    def fit(at, length, Z, C, X, y, w):
        fitted = fixed_size.fit(RBF(length), Z, C, X, y, w)
        return fitted.expansion(at), fitted.degrees_of_freedom

    return machine(fit, "length", "Z", "C", "X", "y", "w")


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

        return machine(fit, "length", "C", "X", "y", "w")


@case("dual.fit_classes")
def _():
    code = output_code("one_versus_one", 3)

    def fit(at, length, C, X, w):
        C, labels = jnp.stack([C, 2 * C, 3 * C]), jnp.asarray(LABELS)
        return dual.fit_classes(RBF(length), C, X, labels, code, w).expansion(at)

    return machine(fit, "length", "C", "X", "w")


@case("least_squares", fast=True, orders=1)
def _():
    rng = np.random.default_rng(0)
    return least_squares, {"X": rng.standard_normal((N, 3)), "y": rng.standard_normal((N, 2))}


@case("pursuits.refit", orders=1)
def _():
    X, y, w, Z = data()

    def values(lengthscale, Z, X, y, w):
        return pursuits.refit(RBF(lengthscale), Z, X, y, 1 + w)(X[:3] + 0.2)

    return values, {"lengthscale": 0.8, "Z": Z, "X": X, "y": y, "w": w}


@case("dual.leave_one_out")
def _():
    X, y, w, _ = data()
    return (
        lambda length, C, X, y, w: dual.leave_one_out(RBF(length), C, X, y, w)[0],
        {"length": LENGTH, "C": [0.5, 20.0], "X": X, "y": y, "w": w},
    )


@case("Dual.held_out, one_versus_one")
def _():
    X, _, w, _ = data()
    code, folds = output_code("one_versus_one", 3), folds_from_assignment(np.arange(len(X)) % 2)

    def score(length, C, X, w):
        rows = X, jnp.asarray(LABELS), folds, w
        return validate(Dual(), RBF(length), None, C, *rows, metric="mse", code=code).scores

    return score, {"length": LENGTH, "C": [0.5, 20.0], "X": X, "w": w}


# Cross-validation


for name, settings in {
    "subtraction": {"method": "subtraction"},
    "subtraction, penalty": {"method": "subtraction", "intercept_penalty": 1.0},
    "removal, mae": {"method": "removal", "metric": "mae"},
    "removal, one_versus_rest": {"method": "removal", "code": output_code("one_versus_rest", 3)},
    "one_versus_one": {"code": output_code("one_versus_one", 3)},
}.items():

    @case(f"cross_validate by {name}")
    def _(settings=settings):
        X, y, w, Z = data()
        arguments = {"length": LENGTH, "Z": Z, "C": [0.5, 20.0], "X": X, "w": w}
        if "code" not in settings:
            arguments["y"] = y

        def scores(length, Z, C, X, w, y=LABELS):
            phi = Nystroem(RBF(length), Z, center="intercept_penalty" not in settings)
            folds = folds_from_assignment(FOLDS)
            result = cross_validate(phi, C, X, jnp.asarray(y), folds, w, **settings)
            return result.scores, result.predictions

        return scores, arguments


# The checks


def scalar(case):
    """Return a scalar function of the arguments: sines of all results, weighted differently."""

    def value(arguments):
        parts = jax.tree.leaves(case.function(**arguments))
        flat = jnp.concatenate([jnp.ravel(a) for a in parts])
        return jnp.dot(jnp.sin(flat), jnp.linspace(1, 2, flat.size))

    return value


def looped(function):
    """Return the function that sums `function` at two multiples of its argument, by a loop."""
    # Scaling keeps coincident points coincident and zero weights zero.
    return lambda x: jnp.sum(jax.lax.map(lambda s: function(times(s, x)), SCALES))


def batched(function):
    return lambda x: jnp.sum(jax.vmap(lambda s: function(times(s, x)))(SCALES))


def plain(function):
    return lambda x: sum(function(times(s, x)) for s in SCALES)


SCALES = np.array([1.0, 1.01])


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
        directions[name] = jax.tree.unflatten(structure, [np.asarray(a) for a in steps])
    return directions


def inner(a, b):
    """Return the inner product of two pytrees."""
    return sum((s * t).sum() for s, t in zip(*map(jax.tree.leaves, (a, b)), strict=True))


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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if fast else SLOW) for name, (_, fast) in CASES.items()]
)
def test_derivatives_in_a_loop_are_differences(name):
    """Forward and reverse mode agree with each other and with differences."""
    case = CASES[name][0]()
    # In NumPy, so that only the programs compile.
    value, x = looped(scalar(case)), jax.device_get(case.arguments)
    u, v = (random_direction(case, seed) for seed in (0, 1))

    @jax.jit
    def compiled(x, t):
        forward, reverse = jax.jvp(value, (x,), (t,)), jax.grad(value)
        if case.orders == 1:
            return forward, reverse(x), None
        return forward, *jax.jvp(reverse, (x,), (t,))

    def program(x, t):
        return jax.device_get(compiled(x, t))

    (result, forward), gradient, hessian_u = program(x, u)
    chex.assert_tree_all_finite((result, gradient, hessian_u))
    assert_close(forward, inner(gradient, u), abs(float(result)))
    plain_value = jax.jit(value)
    for name in x:
        alone = {k: times(float(k == name), t) for k, t in u.items()}
        slope = difference(lambda x: float(plain_value(x)), x, alone)
        assert_close(inner(gradient, alone), slope, abs(float(result)))
    if case.orders == 1:
        return
    # Second derivatives equal differences of the gradient, and are symmetric in u and v.
    scale = max(float(np.max(np.abs(a))) for a in jax.tree.leaves(gradient))
    for t in (u, v):
        slope = difference(lambda x, t=t: inner(program(x, t)[1], t), x, u)
        assert_close(inner(hessian_u, t), slope, scale, case.rtol)
    assert_close(inner(program(x, v)[2], u), inner(hessian_u, v), scale)


@functools.partial(jax.jit, static_argnums=0)
def forward(value, x, u):
    return jax.jvp(value, (x,), (u,))[1]


@functools.partial(jax.jit, static_argnums=0)
def reverse(value, x, u):
    return inner(jax.grad(value)(x), u)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_equal_in_every_mode(name):
    """Compare derivatives without a loop, batched, in each argument, and in all orders of modes."""
    case = CASES[name][0]()
    x, u, v = case.arguments, random_direction(case, 0), random_direction(case, 1)
    value = looped(scalar(case))

    def assert_equal(actual, expected):
        np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-9)

    def second(outer, inside, value, x, u, v):
        return outer(lambda x: inside(value, x, u), x, v)

    for other in (plain(scalar(case)), batched(scalar(case))):
        assert_equal(reverse(other, x, u), reverse(value, x, u))
        if case.orders == 2:
            hessian = second(forward, reverse, value, x, u, v)
            assert_equal(second(forward, reverse, other, x, u, v), hessian)
    for name in x:

        def of_one(one, name=name):
            return value({**x, name: one})

        alone = {k: times(float(k == name), t) for k, t in u.items()}
        for mode in (forward, reverse):
            assert_equal(mode(of_one, x[name], u[name]), reverse(value, x, alone))
        if case.orders == 2:
            ours = second(forward, reverse, of_one, x[name], u[name], u[name])
            assert_equal(ours, second(forward, reverse, value, x, alone, alone))
    if case.orders == 2:
        for outer, inside in ((forward, forward), (reverse, forward), (reverse, reverse)):
            assert_equal(second(outer, inside, value, x, u, v), hessian)


# Modules whose text says "differentiable", and the cases that check their claims.
CLAIMS = {
    "_numerics.py": ("eigh", "with_derivative"),
    "expansion.py": ("Model",),
    "features/triangular.py": ("Triangular",),
    "kernels/base.py": tuple(f"kernel {name}" for name in KERNELS),
    "kernels/distances.py": ("squared_distances",),
    "kernels/mixed.py": ("kernel Mixed",),
    "machines/dual.py": ("dual.fit by cholesky",),
    "machines/pursuits.py": ("pursuits.refit",),
    "pursuit/on_atoms.py": ("least_squares",),
    "machines/dual_leave_one_out.py": ("dual.leave_one_out", "Dual.held_out, one_versus_one"),
    "machines/fixed_size.py": ("fixed_size.fit", "fixed_size.solve"),
    "model.py": ("Model",),
    "predictor/codes.py": ("Model",),
    "normal_equations.py": ("accumulate",),
    "scaling.py": ("standardize",),
    "solvers/conjugate_gradients.py": ("conjugate_gradients.solve",),
    "solvers/definite.py": ("definite.factorise",),
    "solvers/ridge.py": ("resolvent by spectrum", "quadratic_form", "ridge, penalty 1.0"),
    "validation/cross_validation.py": ("cross_validate by subtraction",),
}
CLAIMED_ELSEWHERE = {
    "machines/direct.py": "first derivatives: tests/machines/test_direct.py",
    "machines/reduced_svm.py": "of the objective: tests/machines/test_descent_fits.py",
    "pursuit/debias.py": "first derivatives: tests/pursuit/test_least_angle.py",
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
    kinds = {type(make()) for make in KERNELS.values()} | {Laplacian, kernels.Sum, kernels.Mixed}
    public = {k for k in vars(kernels).values() if isinstance(k, type)}
    assert public - kinds <= {kernels.Kernel, kernels.Mixture, kernels.Product, kernels.Scaled}


def near_duplicates(name):
    """Return rows, of which two nearly coincide, and a prediction or score by their weights."""
    X = np.array([[0.0], [0.01], [1.0], [3.0], [1.0], [2.0]])
    y, kernel, at = np.array([1, 1.01, 5, 2, 4, 0.0]), RBF(1.0), np.array([[0.7]])
    three, C = (X[:3], y[:3]), np.array(10.0)
    folds = folds_from_assignment(np.arange(6) // 3)

    def score(w):
        return cross_validate(Nystroem(kernel, X[:2]), C[None], X, y, folds, w).scores[0]

    return {
        "fixed size": (
            X[:3],
            lambda w: fixed_size.fit(kernel, X[:2], C, *three, w).expansion(at)[0],
        ),
        "dual": (X[:3], lambda w: dual.fit(kernel, C, *three, w).expansion(at)[0]),
        "cross-validation": (X, score),
    }[name]


@pytest.mark.parametrize("name", ["fixed size", "dual", "cross-validation"])
def test_the_derivative_in_a_zero_weight_beside_near_duplicates(name):
    X, function = near_duplicates(name)
    program, w, h = jax.jit(jax.value_and_grad(function)), np.ones(len(X)), 1e-6
    # A weight cannot be negative, so the difference is one-sided; it is of second order.
    w[2] = 0
    f0, slope = program(w)
    f1, f2 = (program(w + step * (np.arange(len(X)) == 2))[0] for step in (h, 2 * h))
    np.testing.assert_allclose(slope[2], (-3 * f0 + 4 * f1 - f2) / (2 * h), rtol=1e-5)


def test_padding_of_blocks_is_valid_input_of_a_kernel():
    """The kernel is NaN at zero, so rows of zeros would spoil the gradient."""

    def cosine(p, x, z):
        return jnp.exp(p * jnp.dot(x, z) / jnp.linalg.norm(x) / jnp.linalg.norm(z))

    X = jnp.asarray(np.random.default_rng(0).standard_normal((20, 2)))

    def total(p, block_rows):
        columns = KernelColumns(Custom(cosine, p), X[:3])
        return jnp.sum(accumulate(columns, X, X[:, 0], block_rows=block_rows).gram)

    one_block, blocks = (jax.jit(jax.grad(total), static_argnums=1)(1.0, n) for n in (20, 8))
    np.testing.assert_allclose(blocks, one_block, rtol=1e-12)
