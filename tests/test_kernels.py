"""Kernels against scikit-learn and their formulas; derivatives at coincident points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jsparse import kernels
from sklearn.metrics import pairwise

KERNELS = {
    "rbf": kernels.RBF(1.3),
    "ard": kernels.RBF(jnp.array([0.5, 1.0, 2.0])),
    "laplacian": kernels.Laplacian(0.8),
    "matern32": kernels.Matern32(1.1),
    "matern52": kernels.Matern52(1.1),
    "rational": kernels.RationalQuadratic(0.9, 1.5),
    "linear": kernels.Linear(0.5),
    "polynomial": kernels.Polynomial(3, 0.4, 1.0),
    "sum": kernels.RBF(1.0) + 2.0 * kernels.Linear(),
    "product": kernels.RBF(1.0) * kernels.Polynomial(2),
    "custom": kernels.Custom(lambda p, x, z: p * jnp.vdot(x, z) ** 2, jnp.array(2.0)),
}


def points(dtype="float64", n=9, offset=0.0):
    X = np.random.default_rng(0).standard_normal((n, 3))
    X[3] = X[1]  # a repeated row
    return jnp.asarray(X + offset, dtype)


@pytest.mark.parametrize("name", KERNELS)
def test_gram_is_the_function_of_two_points(name, dtype, tol):
    k, X = KERNELS[name], points(dtype)
    pairs = np.array([[float(k(x, z)) for z in X[:4]] for x in X])
    K = k.cross_gram(X, X[:4])
    assert K.dtype == X.dtype
    np.testing.assert_allclose(K, pairs, rtol=10 * tol, atol=10 * tol)
    G = np.asarray(k.gram(X))
    np.testing.assert_array_equal(G, G.T)
    np.testing.assert_allclose(np.diag(G), k.diagonal(X), rtol=10 * tol)
    assert np.linalg.eigvalsh(G.astype(float)).min() > -1e-5 * np.linalg.norm(G)


def test_scikit_learn_agrees():
    X = points()
    x = np.asarray(X)
    ours = kernels.RBF.from_gamma(0.3).gram(X)
    np.testing.assert_allclose(ours, pairwise.rbf_kernel(x, gamma=0.3), atol=1e-14)
    np.testing.assert_allclose(kernels.RBF.from_sigma2(1 / 0.3).gram(X), ours, atol=1e-14)
    ours = kernels.Polynomial(3, 0.4, 1.0).gram(X)
    np.testing.assert_allclose(ours, pairwise.polynomial_kernel(x, degree=3, gamma=0.4, coef0=1))
    np.testing.assert_allclose(kernels.Linear().gram(X), pairwise.linear_kernel(x), atol=1e-14)


def test_an_offset_costs_no_digits_in_float32():
    k = kernels.RBF(1.0)
    # Multiples of 1/64, so that adding 1024 is exact and only the arithmetic is tested.
    X = jnp.round(points("float32") * 64) / 64
    np.testing.assert_allclose(k.gram(X + 1024), k.gram(X), atol=2e-6)
    np.testing.assert_allclose(k.cross_gram(X + 1024, X[:2] + 1024), k.cross_gram(X, X[:2]), atol=2e-6)


@pytest.mark.parametrize("name", ["rbf", "ard", "matern32", "matern52", "rational", "polynomial"])
def test_first_and_second_derivatives_at_coincident_points(name):
    """The Hessian in x at x = z against central differences of the kernel itself."""
    k, z = KERNELS[name], points()[0]
    f = lambda x: k.cross_gram(x[None], z[None])[0, 0]
    for g in (f, lambda x: k(x, z)):
        hessian = jax.jit(jax.hessian(g))(z)
        h, expected = 1e-3, np.zeros((3, 3))
        e = np.eye(3) * h
        for i in range(3):
            for j in range(3):
                expected[i, j] = (
                    g(z + e[i] + e[j]) - g(z + e[i] - e[j]) - g(z - e[i] + e[j]) + g(z - e[i] - e[j])
                ) / (4 * h * h)
        atol = 2e-2 if name == "matern32" else 1e-4  # its third derivative jumps
        np.testing.assert_allclose(hessian, expected, atol=atol)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_are_finite_with_repeated_rows(name):
    X = points()
    g = jax.grad(lambda X: jnp.sum(KERNELS[name].gram(X) ** 2))(X)
    assert np.isfinite(g).all()
    h = 1e-6 * jnp.asarray(np.random.default_rng(1).standard_normal(X.shape))
    if name != "laplacian":  # not differentiable where rows repeat
        up, down = (jnp.sum(KERNELS[name].gram(X + s * h) ** 2) for s in (1, -1))
        np.testing.assert_allclose(jnp.vdot(g, h), (up - down) / 2, rtol=1e-4, atol=1e-12)


def test_no_rank_three_array_is_formed():
    X = jnp.zeros((50, 3))
    for name in ("ard", "matern52", "rational", "polynomial", "product"):
        jaxpr = str(jax.make_jaxpr(KERNELS[name].cross_gram)(X, X[:7]))
        assert "[50,7]" in jaxpr
        assert "[50,7,3]" not in jaxpr


def test_vmap_over_a_hyper_parameter():
    X, ls = points(), jnp.array([0.5, 1.0, 2.0])
    batch = jax.vmap(lambda l: kernels.RBF(l).gram(X))(ls)
    stacked = jax.vmap(lambda k: k.gram(X))(jax.vmap(kernels.RBF)(ls))
    np.testing.assert_allclose(batch, stacked)
    np.testing.assert_allclose(batch[1], kernels.RBF(1.0).gram(X))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kernels.RBF(0.0), "lengthscale"),
        (lambda: kernels.RBF(float("nan")), "lengthscale"),
        (lambda: kernels.RationalQuadratic(1.0, -1.0), "alpha"),
        (lambda: kernels.Polynomial(0), "degree"),
        (lambda: kernels.Linear(-1.0), "offset"),
        (lambda: 0.0 * kernels.RBF(1.0), "variance"),
        (lambda: kernels.RBF(1.0).cross_gram(jnp.ones((2, 3)), jnp.ones((2, 4))), "columns"),
        (lambda: kernels.RBF(jnp.ones(2)).gram(jnp.ones((2, 3))), "one per column"),
        (lambda: kernels.Custom(lambda p, x, z: x).gram(jnp.ones((2, 3))), "scalar"),
    ],
)
def test_bad_input_is_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()
