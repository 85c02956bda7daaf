"""Kernels against loops, scikit-learn, closed-form derivatives and their own contracts."""

import functools
import operator

import chex
import equinox as eqx
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.gaussian_process.kernels as peers
from reference import kernels as loops
from sklearn.metrics import pairwise

from jsparse import kernels

SCALES = np.array([0.7, 1.6, 3.1])  # one lengthscale per dimension
MAP = np.array([[0.8, -0.3, 0.1], [0.2, 0.0, -1.1]])


def user_function(params, x, z):
    return params["variance"] * jnp.exp(-jnp.sum((x - z) ** 2)) + params["level"]


# Name to (kernel, its formula in loops). Made inside a test, in the precision of its leg.
CASES = {
    "rbf": (lambda: kernels.RBF(1.3), lambda x, z: loops.rbf(x, z, 1.3)),
    "rbf per dimension": (lambda: kernels.RBF(SCALES), lambda x, z: loops.rbf(x, z, SCALES)),
    "rbf sigma2": (lambda: kernels.RBF.from_sigma2(2.3), lambda x, z: loops.rbf(x, z, 1.15**0.5)),
    "laplacian": (lambda: kernels.Laplacian(1.3), lambda x, z: loops.laplacian(x, z, 1.3)),
    "matern32": (lambda: kernels.Matern32(SCALES), lambda x, z: loops.matern32(x, z, SCALES)),
    "matern52": (lambda: kernels.Matern52(1.3), lambda x, z: loops.matern52(x, z, 1.3)),
    "rational quadratic": (
        lambda: kernels.RationalQuadratic(1.3, 0.6),
        lambda x, z: loops.rational_quadratic(x, z, 1.3, 0.6),
    ),
    "linear": (lambda: kernels.Linear(0.5), lambda x, z: loops.linear(x, z, 0.5)),
    "polynomial": (
        lambda: kernels.Polynomial(3, 0.4, 1.2),
        lambda x, z: loops.polynomial(x, z, 3, 0.4, 1.2),
    ),
    "product": (
        lambda: kernels.Matern52(1.3) * kernels.Polynomial(2, 1.0, 0.1),
        lambda x, z: loops.matern52(x, z, 1.3) * loops.polynomial(x, z, 2, 1.0, 0.1),
    ),
    "scaled sum": (
        lambda: 0.3 * (kernels.Laplacian(1.3) + kernels.Linear()) * 2.0,
        lambda x, z: 0.6 * (loops.laplacian(x, z, 1.3) + loops.linear(x, z, 0.0)),
    ),
    "projected": (
        lambda: kernels.Projected(kernels.RBF(1.3), MAP),
        lambda x, z: loops.rbf(MAP @ x, MAP @ z, 1.3),
    ),
    "projected polynomial": (
        lambda: kernels.Projected(kernels.Polynomial(2, 0.4, 1.2), MAP),
        lambda x, z: loops.polynomial(MAP @ x, MAP @ z, 2, 0.4, 1.2),
    ),
    "custom": (
        lambda: kernels.Custom(user_function, {"variance": 2.0, "level": 0.1}),
        lambda x, z: 2 * np.exp(-(loops.scaled_distance(x, z, 1) ** 2)) + 0.1,
    ),
}
# One of each class, for what is tested of their sum.
ONE_OF_EACH = ["rbf", "laplacian", "matern32", "matern52", "rational quadratic", "polynomial"]
ONE_OF_EACH += ["projected"]
STATIONARY = ["rbf per dimension", "laplacian", "matern32", "matern52", "rational quadratic"]

every_stationary = pytest.mark.parametrize("name", STATIONARY)


def make(name):
    return CASES[name][0]()


def sum_of(names=ONE_OF_EACH):
    """Return a sum of kernels, which compiles once; if a sum is finite, each term is finite."""
    return functools.reduce(operator.add, [make(name) for name in names])


def points(n=9, d=3, seed=0, dtype="float64"):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


@jax.jit
def evaluate(kernel, X, Z):
    """Return cross-Gram matrix, Gram matrix, diagonal and the value of one pair."""
    return kernel.cross_gram(X, Z), kernel.gram(X), kernel.diagonal(X), kernel(X[0], Z[0])


def close(actual, desired, dtype, factor=1.0):
    """Compare to within some roundings of the largest entry, as a matrix product guarantees."""
    desired = np.asarray(desired, np.float64)
    atol = factor * 50 * np.finfo(dtype).eps * max(1.0, np.max(np.abs(desired), initial=0.0))
    np.testing.assert_allclose(np.asarray(actual, np.float64), desired, rtol=0, atol=atol)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_loops(name, dtype):
    kernel, reference = make(name), CASES[name][1]
    X, Z = points(9, dtype=dtype), points(5, seed=1, dtype=dtype)
    cross, gram, diagonal, pair = evaluate(kernel, X, Z)
    assert cross.dtype == gram.dtype == diagonal.dtype == pair.dtype == dtype
    close(cross, loops.matrix(reference, X, Z), dtype)
    close(gram, loops.matrix(reference, X, X), dtype)
    close(diagonal, [reference(x, x) for x in X], dtype)
    close(pair, reference(X[0], Z[0]), dtype)
    np.testing.assert_array_equal(gram, gram.T)


def test_agrees_with_scikit_learn():
    X, Z = points(9), points(5, seed=1)
    pairs = [
        (kernels.RBF.from_gamma(0.4), pairwise.rbf_kernel(X, Z, gamma=0.4)),
        (kernels.Linear(), pairwise.linear_kernel(X, Z)),
        (kernels.Polynomial(3, 0.4, 1.2), pairwise.polynomial_kernel(X, Z, 3, 0.4, 1.2)),
        (kernels.RBF(SCALES), peers.RBF(SCALES)(X, Z)),
        (kernels.Laplacian(1.3), peers.Matern(1.3, nu=0.5)(X, Z)),
        (kernels.Matern32(SCALES), peers.Matern(SCALES, nu=1.5)(X, Z)),
        (kernels.Matern52(1.3), peers.Matern(1.3, nu=2.5)(X, Z)),
        (kernels.RationalQuadratic(1.3, 0.6), peers.RationalQuadratic(1.3, 0.6)(X, Z)),
        (kernels.Linear(1.44), peers.DotProduct(1.2)(X, Z)),
    ]
    for kernel, desired in pairs:
        close(evaluate(kernel, X, Z)[0], desired, "float64")


@every_stationary
def test_offset_in_the_data_costs_nothing(name, dtype):
    """The reference is computed from the float32 numbers, so only our rounding is seen."""
    X = (points(9, dtype=np.float64) + 1e3).astype(dtype)
    Z = X[3:8]
    cross, gram, _, _ = evaluate(make(name), X, Z)
    # A square root turns the error of a distance 0 from eps into sqrt(eps), were it not snapped.
    close(cross, loops.matrix(CASES[name][1], X, Z), dtype, 2)
    close(gram, loops.matrix(CASES[name][1], X, X), dtype, 2)


@pytest.mark.parametrize("lengthscale", [20.0, 200.0])
def test_long_lengthscale_is_right_to_the_last_bit(dtype, lengthscale):
    X = points(60, 10, dtype=dtype)
    desired = loops.matrix(lambda x, z: loops.rbf(x, z, lengthscale), X, X[:20])
    actual = np.asarray(jax.jit(kernels.RBF.cross_gram)(kernels.RBF(lengthscale), X, X[:20]))
    assert np.max(np.abs(actual.astype(np.float64) - desired)) <= np.finfo(dtype).eps


@pytest.mark.parametrize("d", [1, 300])
def test_cusp_sees_coincident_points(dtype, d):
    Z = 30 + 10 * points(17, d, dtype=dtype)
    X = np.concatenate([points(40, d, 1, dtype), Z])
    cross = jax.jit(kernels.Laplacian.cross_gram)(kernels.Laplacian(1.0), X, Z)
    np.testing.assert_array_equal(np.diag(cross[40:]), 1)
    assert jnp.all(cross[:40] < 0.5)


def test_rational_quadratic_tends_to_rbf(dtype):
    X, Z = points(9, dtype=dtype), points(5, seed=1, dtype=dtype)
    many, limit = kernels.RationalQuadratic(1.3, 1e16), kernels.RBF(1.3)
    chex.assert_trees_all_close(evaluate(many, X, Z), evaluate(limit, X, Z), atol=1e-6)
    close(evaluate(many, X, Z)[0], evaluate(limit, X, Z)[0], dtype)


@every_stationary
def test_nan_stays_nan(name):
    X, Z = points(9), points(5, seed=1)
    X[1, 1] = np.nan
    cross, gram, _, _ = evaluate(make(name), X, Z)
    np.testing.assert_array_equal(np.isnan(cross).all(axis=1), np.arange(9) == 1)
    assert np.isnan(gram[1, 0])


# --- properties -----------------------------------------------------------------------------------

seeds = st.integers(0, 2**32 - 1)
no_deadline = hypothesis.settings(deadline=None, max_examples=6)


def with_duplicates(seed):
    """Return nine rows, drawn with replacement from one to nine different rows."""
    rng = np.random.default_rng(seed)
    return points(9, seed=seed)[rng.integers(0, rng.integers(1, 10), 9)]


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("rbf", "rbf sigma2")])
@no_deadline
@hypothesis.given(seed=seeds)
def test_gram_is_symmetric_and_positive_and_rows_may_come_in_any_order(name, seed):
    kernel, X, Z = make(name), with_duplicates(seed), points(5, seed=1)
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(9), rng.permutation(5)
    cross, gram, diagonal, _ = map(np.asarray, evaluate(kernel, X, Z))
    np.testing.assert_array_equal(gram, gram.T)
    eigenvalues = np.linalg.eigvalsh(gram)
    assert eigenvalues[0] >= -1e-12 * max(1, eigenvalues[-1])
    close(np.diag(gram), diagonal, "float64")
    if name in STATIONARY:
        np.testing.assert_array_equal(np.diag(gram), 1)
        assert np.all(gram <= 1)
    permuted = evaluate(kernel, X[rows], Z[columns])
    close(permuted[0], cross[rows][:, columns], "float64")
    close(permuted[1], gram[rows][:, rows], "float64")
    close(permuted[2], diagonal[rows], "float64")


@every_stationary
@no_deadline
@hypothesis.given(seed=seeds, scale=st.floats(1e-30, 1e30))
def test_only_scaled_differences_count(name, seed, scale):
    kernel, X, Z = make(name), with_duplicates(seed), points(5, seed=1)
    stretched = eqx.tree_at(lambda k: k.lengthscale, kernel, replace_fn=lambda a: a * scale)
    desired = evaluate(kernel, X, Z)
    for actual, expected in zip(evaluate(stretched, X * scale, Z * scale), desired, strict=True):
        close(actual, expected, "float64")


# --- derivatives ----------------------------------------------------------------------------------


def central(f, x, h):
    """Return first derivatives of a scalar function by central differences, shaped like `x`."""
    out = np.empty(np.shape(x))
    for i in np.ndindex(out.shape):
        step = np.zeros(out.shape)
        step[i] = h
        out[i] = (float(f(x + step)) - float(f(x - step))) / (2 * h)
    return out


@pytest.mark.parametrize("names", [STATIONARY, ["linear", "polynomial", "projected", "product"]])
def test_derivatives_in_points_and_hyperparameters_are_differences_of_the_loops(names):
    """The derivative of a sum is right only if the derivative of every term is right."""
    kernel = sum_of(names)
    X, Z, W = points(4), points(3, seed=1), points(4, 3, 2)

    def total(kernel, X, Z):
        return jnp.sum(W * kernel.cross_gram(X, Z))

    def by_loops(X, Z):
        return np.sum([W * loops.matrix(CASES[name][1], X, Z) for name in names])

    @jax.jit
    def derivatives(kernel, X, Z):
        gradient = jax.grad(total, argnums=(0, 1, 2))
        along = (jax.tree.map(jnp.zeros_like, kernel), jnp.ones_like(X), jnp.zeros_like(Z))
        return gradient(kernel, X, Z), jax.jvp(gradient, (kernel, X, Z), along)[1]

    (in_kernel, in_X, in_Z), (_, along_X, along_Z) = derivatives(kernel, X, Z)
    np.testing.assert_allclose(in_X, central(lambda X: by_loops(X, Z), X, 1e-5), atol=1e-8)
    np.testing.assert_allclose(in_Z, central(lambda Z: by_loops(X, Z), Z, 1e-5), atol=1e-8)
    (_, ahead_X, ahead_Z), (_, behind_X, behind_Z) = (
        derivatives(kernel, X + step, Z)[0] for step in (1e-5, -1e-5)
    )
    np.testing.assert_allclose(along_X, (ahead_X - behind_X) / 2e-5, atol=1e-7)
    np.testing.assert_allclose(along_Z, (ahead_Z - behind_Z) / 2e-5, atol=1e-7)
    leaves, structure = jax.tree.flatten(kernel)
    compiled = jax.jit(total)
    for i, (leaf, derivative) in enumerate(zip(leaves, jax.tree.leaves(in_kernel), strict=True)):

        def moved(value, i=i):
            changed = [*leaves[:i], jnp.asarray(value), *leaves[i + 1 :]]
            return compiled(jax.tree.unflatten(structure, changed), X, Z)

        np.testing.assert_allclose(derivative, central(moved, np.asarray(leaf), 1e-6), atol=1e-8)


# -d^2/dr^2 of the kernel at r = 0, in units of the lengthscale.
CURVATURE = {
    "rbf per dimension": 1.0,
    "matern32": 3.0,
    "matern52": 5 / 3,
    "rational quadratic": 1.0,
    "laplacian": 0.0,  # by convention
}


@jax.jit
def at_coincident_points(kernel, x, Z):
    """Return gradients and second derivatives, in both modes, of a pair and of a matrix entry."""

    def in_cross_gram(x, z):
        return kernel.cross_gram(jnp.stack([Z[1], x]), jnp.stack([Z[0], z, z]))[1, 2]

    return [
        (
            jax.grad(f, argnums=(0, 1))(x, x),
            jax.jacfwd(jax.grad(f), argnums=(0, 1))(x, x),
            jax.jacrev(jax.jacfwd(f), argnums=(0, 1))(x, x),
        )
        for f in (kernel, in_cross_gram)
    ]


@pytest.mark.parametrize("offset", [0.0, 50.0])
@pytest.mark.parametrize(
    "name",
    [
        "rbf per dimension",
        "matern32",
        pytest.param("matern52", marks=pytest.mark.slow),
        pytest.param("rational quadratic", marks=pytest.mark.slow),
        "laplacian",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_derivatives_at_coincident_points(name, dtype, offset):
    """The closed forms: gradient 0, second derivative -metric, mixed derivative +metric."""
    kernel = make(name)
    Z = points(2, dtype=dtype) + np.asarray(offset, dtype)
    eps = float(np.finfo(dtype).eps)
    metric = CURVATURE[name] * np.diag(np.ones(3) / np.asarray(kernel.lengthscale) ** 2)
    # The second derivative of Matern 3/2 has a cusp here, so it is wrong by the root of the error
    # of the squared distance.
    tolerance = 20 * eps**0.5 if name == "matern32" else 100 * eps
    for gradient, *seconds in at_coincident_points(kernel, Z[0] + Z[1], Z):
        np.testing.assert_allclose(gradient, np.zeros((2, 3)), atol=100 * eps)
        for second, mixed in seconds:
            np.testing.assert_allclose(second, -metric, atol=tolerance)
            np.testing.assert_allclose(mixed, metric, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_derivatives_are_finite_however_near(dtype):
    kernel = sum_of()

    def pair(kernel, x, z):
        return kernel.cross_gram(x[None], z[None])[0, 0]

    @jax.jit
    def derivatives(x, z):
        return [
            (f(kernel, x, z), jax.jacfwd(jax.grad(f, argnums=(0, 1, 2)), argnums=1)(kernel, x, z))
            for f in (type(kernel).__call__, pair)
        ]

    x = np.zeros(3, dtype)
    for distance in (0.0, 1e-42, 1e-38, 1e-30, 1e-20, 1e-15, 1e-12, 1e-8, 1e-6, 1e-4):
        chex.assert_tree_all_finite(derivatives(x, x + np.asarray(distance, dtype)))


def test_gram_derivative_is_that_of_its_entries():
    """The exact diagonal is constant, and both arguments of an entry move with the rows."""
    X, W = points(5), points(5, 5, 2)
    kernel = sum_of()

    def whole(X):
        return jnp.sum(W * kernel.gram(X))

    def pairs(X):
        return jnp.sum(W * jax.vmap(lambda x: jax.vmap(lambda z: kernel(x, z))(X))(X))

    actual, desired = jax.jit(lambda X: (jax.grad(whole)(X), jax.grad(pairs)(X)))(X)
    np.testing.assert_allclose(actual, desired, atol=1e-9, rtol=1e-10)


# --- memory ---------------------------------------------------------------------------------------


def sizes(jaxpr):
    """Yield the number of entries of every intermediate array, in called functions too."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield int(np.prod(variable.aval.shape))
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)  # closed or open
            if hasattr(inner, "eqns"):
                yield from sizes(inner)


@pytest.mark.parametrize("name", [*ONE_OF_EACH, "linear", "product", "custom"])
def test_nothing_is_larger_than_the_gram_matrix(name):
    kernel = make(name)
    X, Z = jnp.ones((31, 3)), jnp.ones((17, 3))

    def total(kernel, X, Z):
        return jnp.sum(jnp.sin(kernel.cross_gram(X, Z)))

    gradient = jax.grad(total, argnums=(0, 1, 2))

    def second(kernel, X, Z):
        return jax.jvp(gradient, (kernel, X, Z), (kernel, X, Z))

    if name == "custom":  # pair by pair, the differences are an array of their own
        assert max(sizes(jax.make_jaxpr(total)(kernel, X, Z).jaxpr)) == 31 * 17 * 3
        return
    # A kernel with a custom derivative holds its values and its slopes in one array.
    twice = 2 if name in ("matern32", "matern52", "product") else 1
    for f in (total, gradient, second):
        assert max(sizes(jax.make_jaxpr(f)(kernel, X, Z).jaxpr)) == twice * 31 * 17, f
    assert max(sizes(jax.make_jaxpr(lambda X: kernel.gram(X))(X).jaxpr)) == twice * 31 * 31


# --- contracts ------------------------------------------------------------------------------------


def test_dtype_is_that_of_the_points_whatever_the_hyperparameters():
    """float64 hyper-parameters, float32 points, strict promotion."""
    kernel = sum_of([*ONE_OF_EACH, "scaled sum", "product", "custom"])
    assert all(leaf.dtype == "float64" for leaf in jax.tree.leaves(kernel))
    X = points(9, dtype="float32")

    def total(kernel, X):
        each = evaluate(kernel, X, X[:5])
        return sum(jnp.sum(values) for values in each), each

    gradient = jax.grad(total, argnums=(0, 1), has_aux=True)
    (in_kernel, in_X), each = jax.eval_shape(gradient, kernel, jnp.asarray(X))
    assert {values.dtype for values in each} == {np.dtype("float32")}
    assert in_X.dtype == "float32"
    assert all(leaf.dtype == "float64" for leaf in jax.tree.leaves(in_kernel))


def test_batches_over_hyperparameters_and_data():
    X, Z, one = points(), points(5, seed=1), sum_of()
    singles = [jax.tree.map(lambda leaf, f=f: leaf * f, one) for f in (0.5, 3.0)]
    tables = np.stack([X, X[::-1]])
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *singles)
    batch = jax.device_get(jax.vmap(evaluate, in_axes=(0, 0, None))(stacked, tables, Z))
    for i, (single, table) in enumerate(zip(singles, tables, strict=True)):
        for actual, desired in zip(batch, evaluate(single, table, Z), strict=True):
            close(actual[i], desired, "float64")


@pytest.mark.parametrize("vmap", [jax.vmap, eqx.filter_vmap])
def test_a_batch_of_kernels_is_made_by_vmap(vmap):
    many = vmap(kernels.RBF)(jnp.arange(1.0, 4.0))
    assert many.lengthscale.shape == (3,)
    per_dimension = vmap(kernels.Matern32)(jnp.ones((5, 3)))
    assert per_dimension.lengthscale.shape == (5, 3)
    pairs = vmap(lambda a, b: a * kernels.RationalQuadratic(a, b) + kernels.Polynomial(2, b))(
        jnp.ones(4), jnp.ones(4)
    )
    assert {leaf.shape for leaf in jax.tree.leaves(pairs)} == {(4,)}
    gram = jax.eval_shape(jax.vmap(lambda k: k.gram(jnp.ones((6, 3)))), pairs)
    assert gram.shape == (4, 6, 6)


def test_a_kernel_may_be_made_while_tracing():
    X = jnp.asarray(points(4))

    def loss(a, b):
        kernel = kernels.RBF(a) * kernels.Linear(b) + b * kernels.RationalQuadratic(a, b)
        return jnp.sum((kernel + kernels.RBF.from_sigma2(a) * kernels.RBF.from_gamma(b)).gram(X))

    chex.assert_tree_all_finite(jax.jit(jax.grad(loss, argnums=(0, 1)))(1.0, 2.0))
    jax.eval_shape(loss, -1.0, -1.0)  # values cannot be seen, so nothing is raised


def test_a_kernel_is_a_plain_pytree():
    for name in CASES:
        kernel = make(name)
        for leaf in (None, object(), "?", jnp.full((2, 2), -1.0)):  # nothing is checked on the way
            jax.tree.map(lambda _, leaf=leaf: leaf, kernel)
        hash(jax.tree.structure(kernel))
        shapes = jax.eval_shape(lambda kernel: kernel, kernel)
        assert jax.tree.structure(shapes) == jax.tree.structure(kernel)


class UserKernel(kernels.Kernel):
    """A kernel of which only `__call__` is written."""

    rate: jax.Array

    def __call__(self, x, z):
        return jnp.exp(-self.rate.astype(x.dtype) * jnp.sum(jnp.abs(x - z)))


def test_a_kernel_of_the_users_needs_only_two_points():
    X, Z = points(9), points(5, seed=1)
    cross, gram, diagonal, _ = evaluate(2.0 * UserKernel(jnp.asarray(0.3)), X, Z)
    close(cross, 2 * pairwise.laplacian_kernel(X, Z, 0.3), "float64")
    close(gram, 2 * pairwise.laplacian_kernel(X, X, 0.3), "float64")
    close(diagonal, 2 * np.ones(9), "float64")


def test_tables_may_be_empty_or_have_one_row():
    X, Z, kernel = points(9), points(5, seed=1), make("rbf") + make("polynomial")
    nothing, none, one = jax.jit(lambda k: (k.cross_gram(X[:0], Z), k.gram(X[:0]), k.gram(X[:1])))(
        kernel
    )
    assert (nothing.shape, none.shape) == ((0, 5), (0, 0))
    close(one[0, 0], kernel(X[0], X[0]), "float64")


def test_gram_is_symmetric_whatever_the_rounding():
    lopsided = kernels.Custom(lambda p, x, z: jnp.sum(x / p * z) * p, 3.3)
    X = points(9)
    cross, gram, _, _ = evaluate(lopsided, X, X)
    assert np.any(cross != cross.T)
    np.testing.assert_array_equal(gram, gram.T)


# --- what users may pass, and what they are told --------------------------------------------------


@pytest.mark.usefixtures("as_users_call")
def test_hyperparameters_keep_their_dtype_and_are_never_weak():
    for value in (1, 1.5, np.float32(1.5), np.float64(1.5), jnp.asarray(1.5), jnp.float32(1.5)):
        for kernel in (kernels.RBF(value), kernels.Linear(value), value * kernels.RBF(1.0)):
            leaf = jax.tree.leaves(kernel)[-1]
            wanted = "float32" if getattr(value, "dtype", None) == "float32" else "float64"
            assert leaf.dtype == wanted
            assert not leaf.weak_type
            assert float(leaf) == float(value)


@pytest.mark.usefixtures("as_users_call")
def test_algebra():
    a, b = kernels.RBF(1.0), kernels.Linear(0.5)
    assert isinstance(a + b, kernels.Sum)
    assert isinstance(a * b, kernels.Product)
    for two in (2, 2.0, np.float32(2), np.float64(2), np.asarray(2.0), jnp.asarray(2.0)):
        for scaled in (two * a, a * two):
            assert isinstance(scaled, kernels.Scaled)
            assert scaled.kernel is a
            assert float(scaled.variance) == 2
    for wrong in ("2", None, [1.0]):
        with pytest.raises(TypeError):
            a * wrong
    with pytest.raises(TypeError):
        a + 2.0


@pytest.mark.usefixtures("as_users_call")
def test_numpy_and_integer_points_are_taken():
    X = np.arange(6).reshape(3, 2)
    for kernel in (kernels.RBF(2.0), kernels.Linear(), kernels.Custom(lambda p, x, z: x @ z)):
        desired = kernel.gram(jnp.asarray(X, "float64"))
        assert desired.dtype == kernel.gram(X).dtype == "float64"
        np.testing.assert_array_equal(kernel.gram(X), desired)


@pytest.mark.usefixtures("as_users_call")
def test_hyperparameters_of_the_wrong_kind():
    for bad in (0.0, -1.0, np.nan, np.inf):  # alone: tests/contracts/test_arguments.py
        with pytest.raises(ValueError, match=r"^lengthscale: expected positive and finite, got"):
            kernels.Matern32(jnp.asarray([1.0, bad, 2.0]))
    with pytest.raises(ValueError, match=r"lengthscale: .* got shape \(2, 2\)"):
        kernels.RBF(jnp.ones((2, 2)))
    for maker in (
        lambda v: kernels.RationalQuadratic(1.0, v),
        lambda v: v * kernels.RBF(1.0),
        lambda v: kernels.Polynomial(2, v),
        kernels.Linear,
    ):
        with pytest.raises(ValueError, match=r"expected a scalar, got shape \(3,\)"):
            maker(jnp.ones(3))
    assert kernels.Polynomial(np.int64(3)).degree == 3
    X, kernel = jnp.asarray(points(5)), kernels.RBF(jnp.ones(2))
    match = r"lengthscale: expected a scalar or one value for each of the 3 .* \(2,\)"
    for call in (
        lambda: kernel.gram(X),
        lambda: kernel.cross_gram(X, X),
        lambda: kernel.diagonal(X),
        lambda: kernel(X[0], X[1]),
        lambda: jax.jit(lambda X: kernel.gram(X))(X),
        lambda: (2.0 * kernel + kernels.Linear()).gram(X),
    ):
        with pytest.raises(ValueError, match=match):
            call()


@pytest.mark.parametrize("name", ["rbf", "product", "projected", "custom"])
@pytest.mark.usefixtures("as_users_call")
def test_points_that_do_not_fit(name):
    kernel, X = make(name), jnp.asarray(points(5))
    with pytest.raises(ValueError, match=r"X \(5, 3\) and Z \(4, 2\)"):
        kernel.cross_gram(X, jnp.ones((4, 2)))
    with pytest.raises(ValueError, match=r"X \(5, 3\) and Z \(3,\)"):
        kernel.cross_gram(X, X[0])
    for method in (kernel.gram, kernel.diagonal):
        with pytest.raises(ValueError, match=r"\(3,\)"):
            method(X[0])
    with pytest.raises(ValueError, match=r"two points of one shape .* \(3,\) and \(2,\)"):
        kernel(X[0], X[0, :2])
    with pytest.raises(ValueError, match="for two tables call cross_gram"):
        kernel(X, X)


@pytest.mark.usefixtures("as_users_call")
def test_custom_errors():
    X = jnp.asarray(points(4))
    with pytest.raises(ValueError, match=r"fn: expected a function of \(params, x, z\), got 3.0"):
        kernels.Custom(3.0, None)
    answers = [
        (lambda p, x, z: x * z, r"float64\[3\]"),
        (lambda p, x, z: None, "None"),
        (lambda p, x, z: (x @ z, 1.0), r"\("),
        (lambda p, x, z: (x @ z).astype("complex128"), "complex128"),
    ]
    for fn, got in answers:
        for call in (lambda k: k.gram(X), lambda k: k(X[0], X[1]), lambda k: k.diagonal(X)):
            with pytest.raises(ValueError, match=rf"expected a real scalar from fn.* got {got}"):
                call(kernels.Custom(fn, None))


def test_custom_answers_in_the_dtype_of_the_points():
    X = jnp.asarray(points(4, dtype="float32"))
    for fn in (
        lambda p, x, z: 1.0,
        lambda p, x, z: 1,
        lambda p, x, z: jnp.all(x == z),
        lambda p, x, z: (x @ z).astype("float64"),
        lambda p, x, z: p["a"] * x @ z,
    ):
        kernel = kernels.Custom(fn, {"a": np.float64(2), "degree": 3, "unused": None})
        assert jax.eval_shape(lambda X, kernel=kernel: kernel.gram(X), X).dtype == "float32"
        assert not kernel.params["a"].weak_type
        assert kernel.params["degree"] == 3


def test_the_kernel_of_some_prototypes_has_their_columns():
    rng = np.random.default_rng(0)
    X, Z = (rng.normal(size=(n, 3)).astype("float32") for n in (7, 12))
    mixture = kernels.Mixture((kernels.RBF(1.3), kernels.Laplacian(0.8)), np.arange(12) % 2)
    indices = np.array([5, 0, 8])

    @jax.jit
    def both(kernel, part, X, Z):
        return kernel.cross_gram(X, Z), part.cross_gram(X, Z[indices])

    for kernel in (kernels.RBF(1.3), mixture, 2.0 * mixture, mixture + kernels.Linear(0.5)):
        part = kernel.of_prototypes(indices)
        whole, columns = both(kernel, part, X, Z)
        np.testing.assert_allclose(columns, np.asarray(whole)[:, indices], atol=1e-6)
    assert kernels.RBF(1.3).of_prototypes(indices) == kernels.RBF(1.3)
    with pytest.raises(ValueError, match="kernel: expected a single kernel"):
        kernels.Mixture((kernels.RBF(1.3),)).of_prototypes(indices)
