"""The kernel head of a network, against refits by loops, finite differences and a real training."""

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jsparse import layers
from jsparse._status import CONVERGED, NOT_FINITE
from jsparse.kernels import RBF, Linear, Matern32, Projected

N, D, M, FOLDS = 23, 3, 6, 4


def problem(dtype="float64", classes=None, outputs=()):
    rng = np.random.default_rng(0)
    F = rng.standard_normal((N, D)).astype(dtype)
    if classes is None:
        y = np.sin(F[:, 0]) + 0.1 * rng.standard_normal(N)
        y = np.stack([y, F[:, 1] ** 2], axis=1) if outputs else y
        y = y.astype(dtype)
    else:
        y = (np.arange(N) % classes).astype(np.int32)
    w = rng.uniform(0.5, 1.5, N).astype(dtype)
    return jnp.asarray(F), jnp.asarray(y), jnp.asarray(w)


def head_of(F, classes=None, kernel=None):
    kernel = RBF(jnp.asarray([1.2, 0.9, 1.5], F.dtype)) if kernel is None else kernel
    return layers.KernelHead(F[:M], kernel, C=20.0, classes=classes, n_folds=FOLDS)


@jax.jit
def loss_of(head, F, y, w):
    return head.loss(F, y, w)


@jax.jit
def grams_of(head, F):
    return head.kernel.cross_gram(F, head.prototypes), head.kernel.gram(head.prototypes)


def values_without(head, F, Y, w, rows):
    """Refit by the normal equations of the expansion's coefficients, without some rows."""
    K, G = (np.asarray(a, float) for a in grams_of(head, F))
    C, w = float(jnp.exp(head.log_C)), np.asarray(w, float).copy()
    w[rows] = 0
    design = np.concatenate([K, np.ones((len(K), 1))], axis=1)
    penalty = np.zeros((M + 1, M + 1))
    penalty[:M, :M] = G
    system = penalty + C * design.T @ (w[:, None] * design)
    return (design @ np.linalg.solve(system, C * design.T @ (w[:, None] * np.asarray(Y, float))))[
        rows
    ]


@pytest.mark.parametrize("outputs", [(), (2,)])
def test_the_loss_is_the_error_of_refits_without_each_fold(outputs):
    F, y, w = problem(outputs=outputs)
    head = head_of(F)
    squares = np.zeros(N)
    for fold in range(FOLDS):
        rows = np.arange(fold, N, FOLDS)
        Y = np.asarray(y).reshape(N, -1)
        errors = values_without(head, F, Y, w, rows) - Y[rows]
        squares[rows] = np.mean(errors**2, axis=1)
    expected = np.sum(np.asarray(w) * squares) / np.sum(w)
    np.testing.assert_allclose(loss_of(head, F, y, w), expected, rtol=1e-8)


def test_the_loss_of_classes_is_the_cross_entropy_of_held_out_values():
    F, y, w = problem(classes=3)
    head = head_of(F, classes=3)
    Y, total = 2 * np.eye(3)[np.asarray(y)] - 1, 0.0
    for fold in range(FOLDS):
        rows = np.arange(fold, N, FOLDS)
        scores = np.exp(float(head.log_inverse_temperature)) * values_without(head, F, Y, w, rows)
        logs = scores - np.log(np.sum(np.exp(scores), axis=1, keepdims=True))
        total -= np.sum(np.asarray(w)[rows] * logs[np.arange(len(rows)), np.asarray(y)[rows]])
    np.testing.assert_allclose(loss_of(head, F, y, w), total / np.sum(w), rtol=1e-8)


@pytest.mark.parametrize(
    ("what", "classes"),
    [
        ("loss", None),
        pytest.param("loss", 3, marks=pytest.mark.slow),
        pytest.param("fit", None, marks=pytest.mark.slow),
        pytest.param("fit", 3, marks=pytest.mark.slow),
    ],
)
def test_derivatives_are_finite_differences(classes, what):
    F, y, w = problem(classes=classes)
    head = head_of(F, classes)
    rng = np.random.default_rng(1)
    where = (head, F, w)
    step = jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape)), where)

    def total(where):
        head, F, w = where
        if what == "loss":
            return head.loss(F, y, w)
        machine = head.fit(F, y, w)
        return jnp.sum(jnp.square(machine(F) if classes is None else machine.predict_proba(F)))

    @jax.jit
    def derivatives(where):
        return *jax.jvp(total, (where,), (step,)), jax.grad(total)(where)

    value, forward, gradient = derivatives(where)
    reverse = sum(map(np.vdot, *map(jax.tree.leaves, (gradient, step))))
    h, at = 1e-6, jax.jit(lambda t: total(jax.tree.map(lambda a, b: a + t * b, where, step)))
    near = [at(t) for t in (h, -h)]
    np.testing.assert_allclose(forward, (near[0] - near[1]) / (2 * h), rtol=1e-5)
    np.testing.assert_allclose(forward, reverse, rtol=1e-7)
    assert value > 0


def test_every_leaf_of_a_head_is_a_parameter_with_a_gradient():
    F, y, w = problem(classes=2)
    head = head_of(F, 2)
    gradient = jax.jit(jax.grad(loss_of))(head, F, y, w)
    for leaf in jax.tree.leaves(gradient):
        assert np.linalg.norm(leaf) > 0
    matrix = Projected(RBF(1.0), jnp.asarray(np.eye(D) - 0.5))
    projected = head_of(F, 2, matrix)
    np.testing.assert_array_equal(projected.kernel.matrix, matrix.matrix)


def test_prototypes_are_held_fixed_or_come_from_the_network():
    F, y, w = problem()
    head = head_of(F)
    stopped = jax.lax.stop_gradient
    fixed = jax.jit(jax.grad(lambda h: h.loss(F, y, w, prototypes=stopped(h.prototypes))))(head)
    np.testing.assert_array_equal(fixed.prototypes, 0)
    elsewhere = jax.jit(lambda Z: head.loss(F, y, w, prototypes=Z))(F[5:11])
    moved = eqx.tree_at(lambda head: head.prototypes, head, F[5:11])
    np.testing.assert_allclose(elsewhere, loss_of(moved, F, y, w), rtol=1e-10)


def test_a_batch_of_heads_is_each_alone():
    F, y, w = problem()
    heads = [head_of(F), head_of(F, kernel=RBF(jnp.asarray([2.0, 2.0, 0.7])))]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *heads)
    losses = jax.jit(jax.vmap(lambda head: head.loss(F, y, w)))(batch)
    np.testing.assert_allclose(losses, [loss_of(head, F, y, w) for head in heads], rtol=1e-9)


def test_pure_functions_are_the_head():
    F, y, w = problem(classes=3)
    pure = layers.pure_head(M, Matern32(1.3), classes=3, n_folds=FOLDS)
    params = pure.init(0, F)
    chex.assert_trees_all_close(jax.jit(pure.init, static_argnums=0)(0, F), params, rtol=1e-12)
    head = layers.KernelHead.from_features(
        F, M, key=0, kernel=Matern32(1.3), classes=3, n_folds=FOLDS
    )
    loss, gradient = jax.jit(jax.value_and_grad(pure.loss))(params, F, y, w)
    np.testing.assert_allclose(loss, loss_of(head, F, y, w), rtol=1e-9)

    @jax.jit
    def fits(params, head):
        return pure.fit(params, F, y).predict_proba(F), head.fit(F, y).predict_proba(F)

    probabilities = fits(params, head)
    np.testing.assert_allclose(*probabilities, rtol=1e-7)
    assert jax.tree.structure(gradient) == jax.tree.structure(params)


@pytest.mark.parametrize("dtype", ["float32"])
def test_a_network_is_trained_through_the_head(dtype):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((96, 6)).astype(dtype)
    y = np.sin(3 * X[:, 0] * X[:, 1])
    network = eqx.nn.MLP(6, 2, 16, 1, key=jax.random.key(0), dtype=dtype)
    features_of = eqx.filter_jit(lambda network, X: jax.vmap(network)(X))
    head = layers.KernelHead(features_of(network, X)[:12], RBF(np.asarray(1.0, dtype)))
    model, adam = (network, head), optax.adam(0.02)
    arrays, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(arrays):
        network, head = eqx.combine(arrays, static)
        return head.loss(jax.vmap(network)(X), y)

    @jax.jit
    def step(arrays, state):
        value, gradient = jax.value_and_grad(loss)(arrays)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in integers
            updates, state = adam.update(gradient, state)
        return optax.apply_updates(arrays, updates), state, value

    state, values = adam.init(arrays), []
    for _ in range(60):
        arrays, state, value = step(arrays, state)
        values.append(float(value))
    assert np.isfinite(values).all()
    assert min(values) < 0.5 * values[0]
    network, head = eqx.combine(arrays, static)
    fitted = jax.jit(lambda F, y: head.fit(F, y)(F))(features_of(network, X), y)
    assert fitted.dtype == dtype


@pytest.mark.slow
@pytest.mark.parametrize("classes", [None, 3])
def test_heads_are_made_under_vmap_as_in_a_loop(classes):
    F, y, w = problem(classes=classes)
    keys = jax.random.split(jax.random.key(1), 3)
    pure = layers.pure_head(M, classes=classes, n_folds=FOLDS)
    init, batched = jax.jit(pure.init), jax.jit(jax.vmap(pure.init, (0, None)))
    batch = batched(keys, F)
    for i, key in enumerate(keys):
        member = jax.tree.map(lambda leaf, i=i: leaf[i], batch)
        chex.assert_trees_all_close(member, init(key, F), rtol=1e-12)
    assert jax.eval_shape(pure.init, 0, F)["prototypes"].shape == (M, D)

    def loss(key):
        features = F * (1 + jax.random.uniform(key))
        return layers.KernelHead.from_features(features, M, key=key, classes=classes).loss(F, y, w)

    each = [eqx.filter_jit(loss)(key) for key in keys]
    np.testing.assert_allclose(eqx.filter_jit(eqx.filter_vmap(loss))(keys), each, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel", [lambda: RBF(1.3), lambda: Projected(RBF(0.7), np.eye(D) - 0.5), lambda: Linear(0.0)]
)
def test_a_head_constructed_under_jit_is_the_head_constructed_outside(kernel):
    F, y, w = problem()
    outside = layers.KernelHead(F[:M], kernel(), C=20.0)
    inside = jax.jit(lambda Z: layers.KernelHead(Z, kernel(), C=20.0))(F[:M])
    chex.assert_trees_all_close(inside, outside, rtol=1e-12)
    np.testing.assert_allclose(inside.loss(F, y, w), outside.loss(F, y, w), rtol=1e-9)


def test_a_traced_class_number_out_of_range_gives_nan():
    F, labels, w = problem(classes=3)
    head = head_of(F, 3)
    fit = jax.jit(lambda *a: head.fit(F, *a))
    assert np.isfinite(loss_of(head, F, labels, w))
    for wrong in (-1, 3):
        bad = labels.at[4].set(wrong)
        assert np.isnan(loss_of(head, F, bad, w))
        machine = fit(bad, w)
        assert np.isnan(machine(F)).all()
        assert machine.status == NOT_FINITE


def test_two_classes_may_be_booleans():
    F, labels, w = problem(classes=2)
    head = head_of(F, 2)
    losses = (loss_of(head, F, y, w) for y in (labels == 1, labels))
    np.testing.assert_array_equal(*losses)


@pytest.mark.parametrize("classes", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_a_machine_takes_one_row_and_works_under_jit_itself(classes):
    F, y, _ = problem(classes=classes)
    machine = head_of(F, classes).fit(F, y)
    assert machine.status == CONVERGED
    row = np.asarray(F)[2]
    methods = (machine, machine.predict, *([machine.predict_proba] if classes else []))

    @jax.jit
    def compiled(F, row):
        return [(method(F), jax.vmap(method)(F), method(row)) for method in methods]

    for method, (whole, each, one) in zip(methods, compiled(F, row), strict=True):
        table = np.asarray(method(F))
        np.testing.assert_allclose(whole, table, rtol=1e-9)
        np.testing.assert_allclose(each, table, rtol=1e-9)
        np.testing.assert_allclose(one, table[2], rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda F, y: layers.KernelHead(F[:0], RBF(1.0)), "prototypes: expected shape"),
        (lambda F, y: layers.KernelHead(F, RBF(1.0), C=0.0), "C: expected a positive number"),
        (lambda F, y: layers.KernelHead(F, RBF(1.0), classes=1), "classes: expected"),
        (lambda F, y: layers.KernelHead(F, RBF(1.0), n_folds=1), "n_folds: expected"),
        (lambda F, y: head_of(F).loss(F[:, :2], y), "features: expected shape"),
        (lambda F, y: head_of(F).loss(F[:3], y[:3]), "n_folds: expected"),
        (lambda F, y: head_of(F).loss(F.at[1, 2].set(jnp.nan), y), "features: expected finite"),
        (lambda F, y: head_of(F).loss(F, y.at[3].set(jnp.inf)), "targets: expected finite"),
        (lambda F, y: head_of(F).loss(F, y, y), "weights: expected all at least 0"),
        (lambda F, y: head_of(F).loss(F, y[:-1]), "targets: expected 23 rows, as many as features"),
        (lambda F, y: head_of(F).loss(F[:-1], y), "targets: expected 22 rows, as many as features"),
        (lambda F, y: head_of(F).loss(F, y, y[1:] ** 2), "weights: expected 23 rows, as many"),
        (lambda F, y: layers.pure_head(M).init(F, 0), "features: expected shape"),
        (lambda F, y: head_of(F, 3).loss(F, y > 0), "targets: expected class numbers, integers"),
        (lambda F, y: head_of(F, 3).loss(F, y), "targets: expected class numbers, integers"),
        (lambda F, y: head_of(F, 3).loss(F, jnp.full(N, 3)), "targets: expected class numbers"),
        (
            lambda F, y: jax.eval_shape(head_of(F).fit, F, y).predict_proba(F),
            "predict_proba: expected a head",
        ),
        (lambda F, y: layers.KernelHead.from_features(F, N + 1, key=0), "n_prototypes: expected"),
    ],
)
def test_wrong_arguments_are_refused(as_users_call, change, message):
    F, y, _ = problem()
    with pytest.raises(ValueError, match=message):
        change(F, y)
