"""The fixed-size LS-SVM, its normal equations and its cross-validation against naive versions."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import fixed_size as reference
from reference.kernels import gaussian
from sklearn import kernel_approximation, linear_model

from jsparse import SCDP, FixedSize, Robust, SpSVM, _status, validate
from jsparse.features import KernelColumns, Linear, Nystroem
from jsparse.kernels import RBF, Custom
from jsparse.machines import fixed_size
from jsparse.machines.ridge import cheaper
from jsparse.normal_equations import accumulate, accumulate_batches
from jsparse.validation.cross_validation import cross_validate
from jsparse.validation.folds import folds_from_assignment, plain_folds, stratified_folds


def problem(dtype="float64", n=50, m=12, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n)
    return jnp.asarray(X, dtype), jnp.asarray(y, dtype), jnp.asarray(X[:m], dtype)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("C", "intercept_penalty"), [(0.1, 1.0), (1e3, 0.0)])
def test_fit_is_equation_7(dtype, tol, C, intercept_penalty):
    X, y, Z = problem(dtype)
    y = y + 3
    Phi = reference.nystroem(np.asarray(X, float), np.asarray(Z, float), 1.0)
    w = reference.ridge(Phi, np.asarray(y, float), C, intercept_penalty)
    phi, options = Nystroem(RBF(1.0), Z, center=False), {"intercept_penalty": intercept_penalty}
    for fitted in (
        fixed_size.fit_features(phi, C, X, y, **options),
        fixed_size.fit(RBF(1.0), Z, C, X, y, **options),
    ):
        values = fitted.expansion(X)
        assert values.dtype == X.dtype
        np.testing.assert_allclose(values, Phi @ w[:-1] + w[-1], atol=20 * tol)
        assert int(fitted.status) == _status.CONVERGED
        assert float(fitted.relative_residual) < tol


def test_all_points_as_prototypes_is_the_dual():
    X, y, _ = problem()
    fitted = fixed_size.fit(RBF(0.7), X, 10.0, X, y)
    K = gaussian(X, X, 0.7)
    alpha, b = reference.dual(K, np.asarray(y), 10.0)
    np.testing.assert_allclose(fitted.expansion(X), K @ alpha + b, atol=1e-10)


def test_agrees_with_scikit_learn_where_they_coincide():
    X, y, Z = problem()
    theirs = kernel_approximation.Nystroem(gamma=0.5, n_components=12)
    theirs.components_ = np.asarray(Z)
    U, S, V = np.linalg.svd(gaussian(Z, Z))
    theirs.normalization_ = (U / np.sqrt(S)) @ V
    theirs._n_features_out, theirs.component_indices_ = 12, np.arange(12)
    Phi = theirs.transform(np.asarray(X))
    ridge = linear_model.Ridge(alpha=1 / 30.0).fit(Phi, y)
    ours = fixed_size.fit(RBF(1.0), Z, 30.0, X, y).expansion(X)
    np.testing.assert_allclose(ours, ridge.predict(Phi), atol=1e-9)


def test_linear_features_are_ridge_regression():
    X, y, _ = problem()
    Y = jnp.asarray(np.stack([y, -2 * np.asarray(y)], axis=1))
    for target in (y, Y):
        fitted = fixed_size.fit_features(Linear(jnp.ones(3)), 5.0, X, target)
        ridge = linear_model.Ridge(alpha=0.2).fit(X, target)
        np.testing.assert_allclose(fitted.expansion(X), ridge.predict(X), atol=1e-10)


def test_sums_add_subtract_and_stream():
    *table, Z = problem()
    table = [*map(np.asarray, table), np.random.default_rng(1).uniform(0, 2, 50)]
    phi = Nystroem(RBF(1.0), Z)

    def sums(rows, **options):
        return accumulate(phi, *(jnp.asarray(a[rows]) for a in table), **options)

    total = sums(slice(None))
    blocks = sums(slice(None), block_rows=7)
    parts = sums(slice(25)) + sums(slice(25, None))
    rows = [tuple(a[i : i + 16] for a in table) for i in range(0, 50, 16)]
    stream = accumulate_batches(phi, iter(rows))
    folds = accumulate_batches(phi, iter(rows), n_folds=3)
    summed = jax.tree.map(lambda a: np.sum(a, axis=0), folds)
    for other in (blocks, parts, stream, summed):
        chex.assert_trees_all_close(other, total, atol=5e-9)
    mine = jax.tree.map(lambda a: np.asarray(a)[1], folds)
    table[2] = np.where(np.arange(50) % 3 == 1, table[2], 0)
    chex.assert_trees_all_close(mine, sums(slice(None)), atol=5e-9)
    np.testing.assert_allclose((total - parts).gram, 0, atol=5e-9)


@pytest.mark.parametrize("method", ["subtraction", "removal"])
@pytest.mark.parametrize("v", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_cross_validation_is_refitting(v, method):
    X, y, Z = problem()
    w = jnp.asarray(np.random.default_rng(1).uniform(0.2, 2, 50))
    assignment = np.random.default_rng(2).permutation(np.arange(50) % v)
    folds, C = folds_from_assignment(assignment), np.array([0.1, 10.0, 1e3])
    Phi = reference.nystroem(np.asarray(X), np.asarray(Z), 1.0)
    for p, block_rows in ((0.0, None), (1.0, 16)):  # all folds together, and one after another
        options = {"intercept_penalty": p, "method": method, "block_rows": block_rows}
        phi = Nystroem(RBF(1.0), Z, center=False)
        cv = cross_validate(phi, jnp.asarray(C), X, y, folds, w, **options)
        for i in range(3):
            out = reference.cross_validate(
                Phi, np.asarray(y), float(C[i]), assignment, p, np.asarray(w)
            )
            np.testing.assert_allclose(cv.predictions[i], out, atol=1e-10)
            loss = (np.asarray(y) - out) ** 2
            np.testing.assert_allclose(cv.scores[i], np.average(loss, weights=w), rtol=1e-9)
            inside = assignment == 1
            fold = np.average(loss[inside], weights=np.asarray(w)[inside])
            np.testing.assert_allclose(cv.fold_scores[i, 1], fold, rtol=1e-8)
        assert (np.asarray(cv.status) == _status.CONVERGED).all()


def test_metrics_and_several_targets():
    X, y, Z = problem()
    phi, C, folds = Nystroem(RBF(1.0), Z), jnp.array([10.0]), plain_folds(0, 50, 5)
    labels = np.sign(y)
    cv = cross_validate(phi, C, X, jnp.asarray(labels), folds, metric="misclassification")
    cv = jax.tree.map(np.asarray, cv)
    wrong = np.where(cv.predictions[0] >= 0, 1, -1) != labels
    np.testing.assert_allclose(cv.scores[0], wrong.mean())
    targets = np.stack([y, labels], 1)
    both = cross_validate(phi, C, X, jnp.asarray(targets), folds, metric="mae")
    both = jax.tree.map(np.asarray, both)
    np.testing.assert_allclose(both.predictions[0, :, 1], cv.predictions[0], atol=1e-10)
    np.testing.assert_allclose(both.scores[0], np.abs(targets - both.predictions[0]).mean())


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**31), st.sampled_from(["duplicated", "constant", "offset", "tiny", "huge"]))
def test_degenerate_inputs_stay_finite_and_row_order_does_not_matter(seed, kind):
    X, y, _ = map(np.array, problem(seed=seed % 97))
    if kind == "duplicated":
        X[1:10] = X[0]
    elif kind == "constant":
        X[:, 1], y[:] = 3.0, 1.0
    else:
        X = X * {"tiny": 1e-6, "huge": 1e6}.get(kind, 1.0) + (1e3 if kind == "offset" else 0.0)
    length = np.std(X)
    order = np.random.default_rng(seed).permutation(50)
    Z, X, y, X_ordered, y_ordered = jax.device_put((X[:12], X, y, X[order], y[order]))
    first = fixed_size.fit(RBF(length), Z, 10.0, X, y)
    second = fixed_size.fit(RBF(length), Z, 10.0, X_ordered, y_ordered)
    assert int(first.status) == _status.CONVERGED
    np.testing.assert_allclose(first.expansion(X), second.expansion(X), atol=1e-7)
    if kind == "duplicated":
        assert int(Nystroem(RBF(length), Z).rank) == 3


def test_float32_agrees_or_says_so():
    """Where float32 errs by more than one percentage point, the status reports it."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 10))
    signal = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3] ** 2 - 0.5
    y = np.where(signal + 0.3 * rng.standard_normal(2000) >= 0, 1.0, -1.0)
    n_reported = 0
    for length in (2.0, 200.0):
        for C in (1.0, 1e3, 1e8):
            errors = {}
            for dtype in ("float64", "float32"):
                Z, Xd, yd, held_out = jax.device_put(
                    [a.astype(dtype) for a in (X[:200], X[:1000], y[:1000], X[1000:])]
                )
                fitted = fixed_size.fit(RBF(length), Z, C, Xd, yd)
                out = np.asarray(fitted.expansion(held_out))
                errors[dtype] = (np.where(out >= 0, 1, -1) != y[1000:]).mean()
            lost = int(fitted.status) >= _status.TRUNCATED
            n_reported += lost
            assert lost or abs(errors["float32"] - errors["float64"]) <= 0.01, (length, C, errors)
    assert 0 < n_reported < 6


def test_bad_input_is_told(as_users_call):
    X, y, Z = map(np.asarray, problem())
    kernel, C = RBF(1.0), 1.0
    spoilt = np.array(X)
    spoilt[[4, 7], [1, 0]] = np.nan
    for arguments, options, message in (
        (
            (kernel, Z, C, spoilt, y),
            {},
            r"X: expected finite .* nan at index \(4, 1",
        ),
        ((kernel, Z, C, X, y[:-1]), {}, r"y: expected 50 rows, as many as X, got shape \(49,\)"),
        ((kernel, X, C, X[:10], y[:10]), {}, "as many as rows"),
        ((kernel, Z, C, X[:0], y[:0]), {}, "at least one row"),
        ((kernel, Z[:, :2], C, X, y), {}, r"prototypes: expected shape \(m, 3\), got \(12, 2\)"),
        ((RBF(np.ones(2)), Z, C, X, y), {}, "lengthscale: expected a scalar or one value for"),
        ((kernel, Z, C, X, y), {"weights": -np.ones(50)}, "weights: expected all at least 0"),
        (
            (kernel, Z, C, X, y),
            {"weights": np.ones(7)},
            r"weights: expected shape \(50,\), got \(7",
        ),
        *[((kernel, Z, bad, X, y), {}, "C: expected a positive") for bad in (0.0, -1.0, np.nan)],
    ):
        with pytest.raises(ValueError, match=message):
            fixed_size.fit(*jax.device_put(arguments), **jax.device_put(options))
    phi = Nystroem(kernel, jnp.asarray(Z))
    for batches, message in (
        ([], "at least one batch"),
        ([(np.ones((4, 3)), np.ones(4)), (np.ones((4, 2)), np.ones(4))], "row indices 4 to 7: exp"),
        ([(X[:5], y[:5]), (X[5:], y[5:, None])], "row indices 5 to 49"),
        (
            [(X[:5], y[:5]), (spoilt[5:10], y[5:10])],
            "X is not finite at row index 7",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            accumulate_batches(phi, jax.device_put(batches))


def test_values_that_are_not_checked_under_jit_have_a_status():
    X, y, Z = problem()
    fit = jax.jit(lambda C, p, y: fixed_size.fit(RBF(1.0), Z, C, X, y, intercept_penalty=p).status)
    assert int(fit(1.0, 0.0, y)) == _status.CONVERGED
    no_number = jnp.asarray(np.where(np.arange(50) == 0, np.nan, y))
    for bad in ((-1.0, 0.0, y), (1.0, -200.0, y), (1.0, 0.0, no_number)):
        status = fit(*bad)
        assert int(status) == _status.NOT_FINITE
        with pytest.raises(_status.NumericalError):
            _status.check(status)


def test_folds_cover_every_row_once_and_stratify():
    labels = np.random.default_rng(0).permutation([0] * 33 + [1] * 10)
    for folds in (
        plain_folds(jax.random.key(0), 43, 5),
        stratified_folds(jax.random.key(0), jnp.asarray(labels), 5),
    ):
        folds = jax.tree.map(np.asarray, folds)
        rows = np.sort(folds.index[folds.valid])
        np.testing.assert_array_equal(rows, np.arange(43))
        sizes = folds.valid.sum(1)
        assert sizes.max() - sizes.min() <= 1
    ones = [int(labels[folds.index[i]][folds.valid[i]].sum()) for i in range(5)]
    assert ones == [2] * 5
    with pytest.raises(ValueError, match="folds: expected a whole number between 2"):
        plain_folds(jax.random.key(0), 4, 5)
    with pytest.raises(ValueError, match="one fold number per row"):
        folds_from_assignment(np.array([0, 2, 2]))


@pytest.mark.usefixtures("jax_in_float32")
def test_columns_far_from_zero_are_told_in_float32():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3)) + 1e4
    y = jnp.asarray(X[:, 0] - X[:, 1], "float32")
    fitted = fixed_size.fit_features(Linear(jnp.zeros(3, "float32")), 1.0, jnp.float32(X), y)
    assert int(fitted.status) == _status.PRECISION_LOST
    shift = X.mean(0).astype("float32")
    fitted = fixed_size.fit_features(Linear(jnp.asarray(shift)), 1.0, jnp.float32(X), y)
    assert int(fitted.status) == _status.CONVERGED


def test_a_constant_column_is_no_lost_precision(dtype):
    X, y, _ = problem(dtype)
    X = np.asarray(X) * np.array([1, 0, 1], dtype)
    fitted = fixed_size.fit_features(Linear(jnp.zeros(3, dtype)), 1e7, jnp.asarray(X), y)
    assert int(fitted.status) == _status.CONVERGED


@pytest.mark.slow
def test_features_left_out_in_float32_are_told():
    """Rows that are not prototypes use small eigenvalues far more than the prototypes do."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(400)
    folds = plain_folds(jax.random.key(0), 400, 5)
    C = np.geomspace(0.1, 1e5, 7)
    cv = {}
    for name in ("float64", "float32"):
        Xd = jnp.asarray(X, name)
        phi = Nystroem(RBF(jnp.asarray(3.0, name)), Xd[:100])
        cv[name] = cross_validate(phi, jnp.asarray(C, name), Xd, jnp.asarray(y, name), folds)
    gap = np.abs(np.asarray(cv["float32"].scores, float) / np.asarray(cv["float64"].scores) - 1)
    reported = np.asarray(cv["float32"].status) >= _status.TRUNCATED
    assert reported.any()
    assert (gap[~reported] < 0.1).all()
    assert (gap[reported] > 0.1).any()


@pytest.mark.slow
def test_a_kernel_that_is_not_finite_at_zero_meets_no_padding():
    X, y, Z = problem()

    def cosine(_, x, z):
        return jnp.vdot(x, z) / jnp.linalg.norm(x) / jnp.linalg.norm(z)

    fitted = fixed_size.fit(Custom(cosine), Z[:2], 1.0, X, y, block_rows=7)
    assert int(fitted.status) < _status.NOT_FINITE
    slope = jax.grad(lambda x: jnp.sum(fitted.expansion(x, block_rows=7)))(X)
    assert jnp.isfinite(slope).all()


def test_float_settings_of_integer_data_stay_what_they_are(as_users_call):
    # These are the shapes of `problem`, so both fits take its program.
    X = np.random.default_rng(0).integers(0, 5, (50, 3))
    Z, X, y = jax.device_put((X[:12], X, np.arange(50) % 2))
    ours = fixed_size.fit(RBF(1.0), Z, 0.5, X, y).expansion(X)
    Z, Xf, yf = (a.astype(float) for a in (Z, X, y))
    theirs = fixed_size.fit(RBF(1.0), Z, 0.5, Xf, yf).expansion(X)
    np.testing.assert_allclose(ours, theirs)
    batches = [(np.arange(48).reshape(16, 3), np.arange(16), np.full(16, 0.5))]
    assert accumulate_batches(Nystroem(RBF(1.0), Z), batches).weight_sum == 8


def test_cross_validation_refuses(as_users_call):
    X, y, Z = problem()
    folds = plain_folds(jax.random.key(0), 50, 5)
    rows = {"C": jnp.asarray(np.ones(1)), "X": X, "y": y, "folds": folds}
    spoilt = np.array(X)
    spoilt[0, 0] = np.nan
    phi = Nystroem(RBF(1.0), Z)
    of_both = (
        ({"folds": plain_folds(jax.random.key(0), 70, 5)}, "folds of other data"),
        ({"metric": "misclassification"}, r"expected -1 and \+1"),
        ({"metric": "auc"}, "metric: expected one of .* got 'auc'"),
        ({"C": jnp.asarray(np.ones(()))}, "C: expected a vector"),
        ({"C": jnp.asarray(np.array([1.0, -1.0]))}, "C: expected a positive"),
        ({"X": jnp.asarray(spoilt)}, "X: expected finite"),
        ({"weights": jnp.asarray(np.zeros(50))}, "at least one above 0"),
    )
    for change, message in (
        *of_both,
        ({"method": "substraction"}, "method: expected"),
        ({"feature_map": KernelColumns(RBF(1.0), Z)}, "whose penalty is the squared norm"),
    ):
        with pytest.raises(ValueError, match=message):
            cross_validate(**{"feature_map": phi, **rows, **change})
    for method in (FixedSize(12), SCDP(3), Robust(12), SpSVM(3)):
        for change, message in of_both:
            with pytest.raises(ValueError, match=message):
                validate(method, RBF(1.0), Z, **{"metric": "mse", **rows, **change})


@pytest.mark.parametrize(
    ("p", "r", "s", "way"),
    [
        # The way that was faster by a third or more, in both precisions on a CPU of two cores.
        (100, 10, 25, "removal"),
        (200, 20, 25, "removal"),
        (50, 25, 25, "subtraction"),
        (200, 200, 1, "subtraction"),
        (300, 381, 1, "subtraction"),
        (700, 951, 1, "subtraction"),
    ],
)
def test_cross_validation_takes_the_way_that_was_measured_to_be_faster(p, r, s, way):
    assert cheaper(p, r, s) == way
