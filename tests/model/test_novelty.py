"""Novelty against projections by NumPy's least squares, also in files and compiled programs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsparse import KernelExpansion, Model, ModelFileError, load
from jsparse.conformal import ConformalScores
from jsparse.kernels import RBF, Laplacian, Linear, Mixture, Polynomial
from jsparse.scaling import Standardization

SHIFT, SCALE = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 0.5])


def a_model(dtype="float64", kernel=None, repeats=1, m=8):
    """Return a model with every prototype `repeats` times, and its prototypes in raw units."""
    rng = np.random.default_rng(0)
    raw = (np.repeat(rng.standard_normal((m, 3)), repeats, axis=0) * SCALE + SHIFT).astype(dtype)
    scaling = Standardization(jnp.asarray(SHIFT.astype(dtype)), jnp.asarray(SCALE.astype(dtype)))
    kernel = Laplacian(2.0) if kernel is None else kernel
    coefficients, intercept = jnp.ones(len(raw), dtype), jnp.zeros((), dtype)
    prototypes = scaling.apply(jnp.asarray(raw))
    return Model(KernelExpansion(kernel, prototypes, coefficients, intercept, scaling)), raw


def rows(n=60, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 3)) * SCALE + SHIFT


def scaled(X):
    return (np.asarray(X, float) - SHIFT) / SCALE


def laplacian(A, B):
    return np.exp(-np.sqrt(((A[:, None] - B[None]) ** 2).sum(-1)) / 2.0)


def distances(X, Z, kernel):
    """Return each row's squared distance from the span of the rows of `Z`, over `k(x, x)`."""
    K, shares = kernel(Z, Z), []
    for x in X:
        k, squared_length = kernel(x[None], Z)[0], kernel(x[None], x[None])[0, 0]
        coefficients = np.linalg.lstsq(K, k, rcond=1e-10)[0]
        # |phi(x) - sum_j c_j phi(z_j)|^2
        shares.append(
            (squared_length - 2 * coefficients @ k + coefficients @ K @ coefficients)
            / squared_length
        )
    return np.clip(shares, 0, 1)


def p_values(new, known):
    return np.array([(1 + np.sum(known >= value)) / (1 + len(known)) for value in new])


@pytest.mark.parametrize(
    ("dtype", "repeats"), [("float64", 1), ("float64", 3), ("float32", 1)], indirect=["dtype"]
)
def test_distances_are_those_of_projections(dtype, repeats):
    model, _ = a_model(dtype, repeats=repeats)
    X, Z = rows().astype(dtype), np.asarray(model.expansion.prototypes, float)
    got = model.with_novelty(X).novelty(X)
    assert got.distance.dtype == got.p_value.dtype == dtype
    expected = distances(scaled(X), Z, laplacian)
    assert expected.min() < 0.4 < 0.6 < expected.max()
    atol = 1e-10 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(got.distance, expected, atol=atol)
    np.testing.assert_allclose(got.p_value, p_values(got.distance, got.distance), rtol=1e-6)


def test_a_polynomial_spans_less_than_its_prototypes():
    """Four functions, the constant and the coordinates, span all; two prototypes do not."""

    def values(A, B):
        return 1.0 * A @ B.T + 0.5

    for m in (2, 9):
        model, _ = a_model(kernel=Polynomial(1, 1.0, 0.5), m=m)
        expected = distances(scaled(rows()), np.asarray(model.expansion.prototypes), values)
        got = model.with_novelty(rows()).novelty(rows()).distance
        np.testing.assert_allclose(got, expected, atol=1e-9)
        assert (got.max() < 1e-9) == (m == 9)


def test_a_far_row_is_wholly_novel_and_a_prototype_is_not(dtype):
    model, prototypes = a_model(dtype)
    X = rows().astype(dtype)
    model = model.with_novelty(X)
    far = model.novelty(np.full((1, 3), 1e3, dtype))
    np.testing.assert_allclose(far.distance, 1.0)
    np.testing.assert_allclose(far.p_value, 1 / 61, rtol=1e-6)
    novelty = model.novelty(prototypes)
    np.testing.assert_allclose(novelty.distance, 0.0, atol=1e-12 if dtype == "float64" else 2e-6)
    np.testing.assert_allclose(novelty.p_value, 1.0)
    one = model.novelty(X[3])
    assert one.distance.shape == one.p_value.shape == ()
    np.testing.assert_allclose(one.distance, model.novelty(X).distance[3], rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "repeats"), [("float64", 1), ("float64", 2), ("float32", 1)], indirect=["dtype"]
)
def test_prototypes_among_the_rows_count_as_if_held_out(dtype, repeats):
    model, prototypes = a_model(dtype, repeats=repeats)
    X = np.concatenate([rows().astype(dtype), prototypes])
    known = np.asarray(model.with_novelty(X).novelties.errors)  # 68 or 76 rows are kept whole
    Z = np.asarray(model.expansion.prototypes, float)
    others = [distances(Z[j : j + 1], np.delete(Z, j, axis=0), laplacian)[0] for j in range(len(Z))]
    assert (np.max(others) > 0.1) == (repeats == 1)
    expected = np.sort([*distances(scaled(rows().astype(dtype)), Z, laplacian), *others])
    np.testing.assert_allclose(known, expected, atol=1e-10 if dtype == "float64" else 1e-5)


def test_of_rows_like_those_of_training_a_tenth_has_a_p_value_up_to_a_tenth():
    X = np.random.default_rng(1).standard_normal((1200, 3)) * SCALE + SHIFT
    machine = a_model()[0].expansion
    Z = machine.scaling.apply(jnp.asarray(X[:30]))
    model = Model(dataclasses.replace(machine, prototypes=Z, coefficients=jnp.ones(30)))

    def share(rows, shift=0.0):
        """Return the share of new rows with a p-value up to 0.1; its standard error is 0.02."""
        return np.mean(model.with_novelty(rows).novelty(X[600:] + shift).p_value <= 0.1)

    seen, held_out = X[:300], X[300:600]  # the prototypes are among those seen
    assert 0.06 < share(held_out) < 0.14
    assert 0.06 < share(seen) < 0.14
    assert min(share(held_out, 6.0), share(seen, 6.0)) > 0.8


def test_files_keep_the_calibration(tmp_path, dtype):
    model, _ = a_model(dtype)
    X = rows(300).astype(dtype)
    model = model.with_novelty(X)
    assert len(model.novelties.errors) < 300
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    for ours, theirs in zip(model.novelty(X), again.novelty(X), strict=True):
        np.testing.assert_array_equal(ours, theirs)


DAMAGE = [
    ({"errors": np.array([0.1, 0.2, 1.1])}, "novelty.errors: expected increasing distances"),
    ({"errors": np.array([-0.1, 0.2, 0.3])}, "novelty.errors: expected increasing distances"),
    ({"errors": np.array([0.1, 0.3, 0.2])}, "novelty.errors: expected increasing distances"),
    ({"errors": np.ones((3, 1))}, "novelty"),
    ({"errors": np.ones(3, np.float32)}, "novelty.errors"),
    ({"counts": np.array([1, 0, 1], np.int32)}, "novelty.counts: expected numbers of rows"),
    ({"counts": np.ones(2, np.int32)}, "novelty"),
]


@pytest.mark.usefixtures("as_users_call")
def test_damaged_files_are_refused(tmp_path):
    model, _ = a_model()
    whole = {"errors": np.array([0.1, 0.2, 0.3]), "counts": np.ones(3, np.int32)}
    for damage, message in DAMAGE:
        novelties = ConformalScores(**{**whole, **damage})
        dataclasses.replace(model, novelties=novelties).save(tmp_path / "model")
        with pytest.raises(ModelFileError, match=message):
            load(tmp_path / "model")


def test_programs_give_the_novelty_of_the_host_and_its_derivative():
    model, _ = a_model()
    model, X = model.with_novelty(rows()), rows(5, seed=2)
    for traced in (jax.jit(model.novelty)(X), jax.jit(lambda m, X: m.novelty(X))(model, X)):
        for ours, theirs in zip(traced, model.novelty(X), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    slope = jax.jit(jax.grad(lambda x: model.novelty(x).distance))(jnp.asarray(X[0]))
    for j, step in enumerate(1e-5 * np.eye(3)):
        above, below = (model.novelty(X[0] + sign * step).distance for sign in (1, -1))
        np.testing.assert_allclose(slope[j], (above - below) / 2e-5, rtol=1e-5, atol=1e-8)


def test_what_has_no_novelty_says_so(as_users_call):
    model, _ = a_model()
    with pytest.raises(ValueError, match="novelty: expected a model of `with_novelty`"):
        model.novelty(rows())
    with pytest.raises(ValueError, match="X: expected 3 columns"):
        model.with_novelty(rows()[:, :2])
    mixture = Mixture((RBF(1.0), Linear()), [0] * 4 + [1] * 4)
    mixed = dataclasses.replace(model.expansion, kernel=mixture)
    with pytest.raises(ValueError, match="kernel: expected a single kernel, got a Mixture"):
        Model(mixed).with_novelty(rows())
