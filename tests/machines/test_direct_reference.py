"""The direct method against loops: objectives, gradients, minima of descents, and machines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import direct_method as reference
from sklearn.datasets import load_iris

from jsparse.kernels import RBF
from jsparse.machines import direct, one_class, slmc, sparse_fisher, sparse_ridge
from jsparse.machines.rows import rows_of
from jsparse.multiclass import output_code

C, NU, LENGTHSCALE = 10.0, 0.3, 1.0
PROBLEMS = ["hinge", "squared hinge", "least squares", "one class", "Fisher"]


def flowers(rows=slice(50, None, 2), dtype="float64"):
    """Return standardised petals of irises, species, sepal lengths, and weights (some are 0).

    The last two of the three species overlap.
    """
    data = load_iris()
    X = data.data[rows, 2:]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    w = np.random.default_rng(0).uniform(0.3, 2.0, len(X)) * (np.arange(len(X)) % 7 > 0)
    return X.astype(dtype), data.target[rows], data.data[rows, 0].astype(dtype), w.astype(dtype)


def starts(X, w, m, seeds):
    """Sets of different rows with weight."""
    rows = np.sort(np.unique(X[w > 0], axis=0, return_index=True)[1])
    draws = [np.random.default_rng(seed).choice(rows, m, replace=False) for seed in seeds]
    return np.stack([X[w > 0][draw] for draw in draws])


def signs(species):
    return np.where(species == 2, 1.0, -1.0)


def of_package(name, X, species, lengths, w):
    """Return the package's inner problem. Rows of weight 0 hold large numbers."""
    X = jnp.asarray(np.where((w > 0)[:, None], X, 1e6).astype(X.dtype))
    y, lengths, w = (jnp.asarray(a.astype(X.dtype)) for a in (signs(species), lengths, w))
    kernel = RBF(jnp.asarray(LENGTHSCALE, X.dtype))
    return {
        "hinge": direct.LargeMargin(kernel, X, y, C, w),
        "squared hinge": direct.LargeMargin(kernel, X, y, C, w, "squared_hinge"),
        "least squares": direct.LeastSquares(kernel, X, lengths, C, w),
        "one class": direct.OneClass(kernel, X, NU, w),
        "Fisher": direct.Fisher(kernel, X, y, C, w),
    }[name]


def of_reference(name, X, species, lengths, w):
    """Return the reference's machine as a function of the expansion vectors."""
    X, lengths, w = X.astype(float), lengths.astype(float), w.astype(float)
    y = signs(species)
    return {
        "hinge": lambda Z: reference.large_margin(Z, X, y, C, w, LENGTHSCALE),
        "squared hinge": lambda Z: reference.large_margin(
            Z, X, y, C, w, LENGTHSCALE, "squared_hinge"
        ),
        "least squares": lambda Z: reference.least_squares(Z, X, lengths, C, w, LENGTHSCALE),
        "one class": lambda Z: reference.one_class(Z, X, NU, w, LENGTHSCALE),
        "Fisher": lambda Z: reference.fisher(Z, X, y, 1 / (C * w.sum()), w, LENGTHSCALE),
    }[name]


def value_and_gradient(machine_of):
    def evaluate(Z):
        machine = machine_of(Z)
        return machine.value, machine.gradient

    return evaluate


def same_sign(beta, expected):
    """Flip coefficients to the expected sign: a Fisher direction is unique only up to its sign."""
    return beta * np.sign(beta @ expected)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PROBLEMS)
def test_objective_gradient_and_machine_match_the_reference(name, dtype):
    rows = flowers(dtype=dtype)
    near = {"float64": 1e-8, "float32": 2e-3}[dtype]
    marginal = direct.marginal(of_package(name, *rows))
    evaluate = jax.jit(jax.value_and_grad(marginal, has_aux=True))
    for Z in starts(rows[0], rows[3], 3, seeds=(0, 1)):
        expected = of_reference(name, *rows)(Z.astype(float))
        (value, solved), gradient = evaluate(jnp.asarray(Z))
        beta = np.asarray(solved.coefficients, float)
        if name == "Fisher":
            beta = same_sign(beta, expected.coefficients)
        scale = np.abs(expected.coefficients).max()
        np.testing.assert_allclose(value, expected.value, rtol=near)
        np.testing.assert_allclose(beta, expected.coefficients, rtol=0, atol=near * scale)
        np.testing.assert_allclose(solved.intercept, expected.intercept, rtol=0, atol=near * scale)
        steepest = np.abs(expected.gradient).max()
        np.testing.assert_allclose(gradient, expected.gradient, rtol=0, atol=near * steepest)


@pytest.mark.parametrize("name", ["hinge", "least squares", "Fisher"])
def test_the_objective_of_shared_vectors_is_a_sum_over_problems(name):
    """Three species against the others, with different weights and values of `C`."""
    X, species, _, w = flowers(slice(0, None, 4))
    Y = np.where(species[:, None] == np.arange(3), 1.0, -1.0)
    W = w[:, None] * np.array([1.0, 0.5, 2.0])
    W[3:6, 1] = 0  # rows without weight in one of the problems
    each_C = np.array([3.0, 10.0, 1.0])
    Z = starts(X, w, 3, seeds=(0,))[0]

    def of_one(j):
        if name == "hinge":
            return reference.large_margin(Z, X, Y[:, j], each_C[j], W[:, j], LENGTHSCALE)
        if name == "least squares":
            return reference.least_squares(Z, X, Y[:, j], each_C[j], W[:, j], LENGTHSCALE)
        mu = 1 / (each_C[j] * W[:, j].sum())
        return reference.fisher(Z, X, Y[:, j], mu, W[:, j], LENGTHSCALE)

    kind = {"hinge": direct.LargeMargin, "least squares": direct.LeastSquares}
    arrays = [jnp.asarray(a) for a in (X, Y, each_C, W)]
    problem = kind.get(name, direct.Fisher)(RBF(LENGTHSCALE), *arrays)
    expected = [of_one(j) for j in range(3)]
    evaluate = jax.jit(jax.value_and_grad(direct.marginal(problem), has_aux=True))
    (value, solved), gradient = evaluate(jnp.asarray(Z))
    np.testing.assert_allclose(value, sum(one.value for one in expected), rtol=1e-8)
    np.testing.assert_allclose(gradient, sum(one.gradient for one in expected), rtol=1e-6)
    for j, one in enumerate(expected):
        beta = np.asarray(solved.coefficients[:, j])
        if name == "Fisher":
            beta = same_sign(beta, one.coefficients)
        np.testing.assert_allclose(beta, one.coefficients, rtol=1e-6)
        np.testing.assert_allclose(solved.intercept[j], one.intercept, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["least squares", "hinge"])
def test_descents_in_float32_reach_the_minima_of_the_reference(name):
    """Descend from each of two starts, which may lead to different local minima."""
    rows = flowers(dtype="float32")
    problem, machine_of = of_package(name, *rows), of_reference(name, *rows)
    both_starts, minima, early = starts(rows[0], rows[3], 2, seeds=(1, 4)), [], []
    for start in both_starts:
        _, naive = reference.descend(value_and_gradient(machine_of), start.astype(float))
        minimum = direct.minimise(problem, jnp.asarray(start), tolerance=1e-6)
        value = machine_of(np.asarray(minimum.Z, float)).value
        np.testing.assert_allclose(minimum.history[0], naive[0], rtol=1e-4)
        np.testing.assert_allclose(minimum.solved.value, value, rtol=1e-4)
        np.testing.assert_allclose(value, naive[-1], rtol=1e-3)
        minima.append(value)
        early.append(minimum.history[min(direct.FIRST_STEPS, int(minimum.steps))])
    best = direct.minimise(problem, jnp.asarray(both_starts), tolerance=1e-6)
    np.testing.assert_allclose(best.solved.value, minima[np.argmin(early)], rtol=1e-4)
    bad = jnp.asarray(both_starts).at[0].set(jnp.nan)  # a start that is not finite loses
    best = direct.minimise(problem, bad, tolerance=1e-6)
    np.testing.assert_allclose(best.solved.value, minima[1], rtol=1e-4)


METHODS = {
    "slmc": slmc.SLMC(2, starts=2, tolerance=1e-7),
    "sparse-ridge": sparse_ridge.SparseRidge(2, starts=2, tolerance=1e-7),
    "sparse-fisher": sparse_fisher.SparseFisher(2, starts=2, tolerance=1e-7),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_fits_the_best_machine_of_the_reference(name):
    """The vectors are the best of two descents, the coefficients the solution for these vectors.

    For the vectors of the Fisher discriminant the coefficients are a support vector machine's (end
    of Appendix A).
    """
    rows = flowers()
    X, species, lengths, w = rows
    objective, machine = {
        "slmc": ("hinge", "hinge"),
        "sparse-ridge": ("least squares", "least squares"),
        "sparse-fisher": ("Fisher", "hinge"),
    }[name]
    both_starts = starts(X, w, 2, seeds=(1, 4))
    targets = lengths if name == "sparse-ridge" else signs(species)
    rows_of_problem = rows_of(*(jnp.asarray(a) for a in (X, targets, w)))
    starts_in_a_row = jnp.asarray(both_starts.reshape(4, 2))
    fitted = METHODS[name].fit(RBF(LENGTHSCALE), starts_in_a_row, C, rows_of_problem)
    evaluate = value_and_gradient(of_reference(objective, *rows))
    best = min(reference.descend(evaluate, start)[1][-1] for start in both_starts)
    np.testing.assert_allclose(np.nanmin(fitted.info["history"]), best, rtol=1e-5)
    Z = np.asarray(fitted.expansion.prototypes)
    np.testing.assert_allclose(evaluate(Z)[0], best, rtol=1e-5)
    expected = of_reference(machine, *rows)(Z)
    near = 1e-5 * np.abs(expected.coefficients).max()
    coefficients, intercept = fitted.expansion.coefficients, fitted.expansion.intercept
    np.testing.assert_allclose(coefficients, expected.coefficients, rtol=0, atol=near)
    np.testing.assert_allclose(intercept, expected.intercept, rtol=0, atol=near)


@pytest.mark.slow
def test_machines_of_separate_vectors_match_the_reference():
    """Three species: each problem, one species against the others, has two vectors."""
    X, species, _, w = flowers(slice(0, None, 4))
    code = output_code("one_versus_rest", 3).astype(X.dtype)
    Z = starts(X, w, 2, seeds=(0,))[0]
    method = slmc.SLMC(2, starts=1, sharing="separate", loss="squared_hinge", tolerance=1e-8)
    arrays = (jnp.asarray(a) for a in (X, species.astype(np.int32), w))
    fitted = method.fit(RBF(LENGTHSCALE), jnp.asarray(Z), C, rows_of(*arrays, code))
    targets = np.asarray(code.matrix)[species]
    vectors = np.asarray(fitted.expansion.prototypes)
    coefficients = np.asarray(fitted.expansion.coefficients)
    for j in range(3):
        of_problem = np.arange(2 * j, 2 * j + 2)
        machine = reference.large_margin(
            vectors[of_problem], X, targets[:, j], C, w, LENGTHSCALE, "squared_hinge"
        )
        np.testing.assert_allclose(np.nanmin(fitted.info["history"][j]), machine.value, rtol=1e-7)
        np.testing.assert_allclose(coefficients[of_problem, j], machine.coefficients, rtol=1e-5)
        assert not np.delete(coefficients[:, j], of_problem).any()
        np.testing.assert_allclose(fitted.expansion.intercept[j], machine.intercept, rtol=1e-5)


def test_the_one_class_machine_matches_the_reference():
    rows = flowers()
    X, _, _, w = rows
    arrays = [jnp.asarray(a) for a in (starts(X, w, 2, seeds=(1, 2)), NU, X, w)]
    minimum = one_class.fit(RBF(LENGTHSCALE), *arrays, tolerance=1e-7)
    Z = np.asarray(minimum.expansion.prototypes)
    machine = of_reference("one class", *rows)(Z)
    np.testing.assert_allclose(np.nanmin(minimum.history), machine.value, rtol=1e-7)
    X, w = X[w > 0], w[w > 0]
    expected = reference.gaussian(X, Z, LENGTHSCALE) @ machine.coefficients + machine.intercept
    values = minimum.expansion(jnp.asarray(X))
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-5)
    # `NU` is at least the share of the weight with negative values, and at most the share with
    # values that are not positive.
    share = w / w.sum()
    assert share @ (expected < -1e-6) <= NU <= share @ (expected < 1e-6)
