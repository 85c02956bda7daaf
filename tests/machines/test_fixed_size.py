"""The fixed-size LS-SVM, its normal equations and its cross-validation against naive versions."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import fixed_size as reference
from sklearn import kernel_approximation, linear_model

from jsparse import SCDP, FixedSize, Robust, SpSVM, _status, validate
from jsparse.features import KernelColumns, Linear, Nystroem
from jsparse.features.nystroem import whitening
from jsparse.kernels import RBF, Custom
from jsparse.machines import fixed_size
from jsparse.normal_equations import accumulate, accumulate_batches
from jsparse.validation.cross_validation import cross_validate
from jsparse.validation.folds import folds_from_assignment, plain_folds, stratified_folds


def problem(dtype="float64", n=50, m=12, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n)
    return jnp.asarray(X, dtype), jnp.asarray(y, dtype), jnp.asarray(X[:m], dtype)


@pytest.mark.parametrize("intercept_penalty", [0.0, 1.0])
@pytest.mark.parametrize("C", [0.1, 10.0, 1e3])
def test_fit_is_equation_7(dtype, tol, C, intercept_penalty):
    X, y, Z = problem(dtype)
    phi = Nystroem(RBF(1.0), Z, center=False)
    fitted = fixed_size.fit_features(phi, C, X, y, intercept_penalty=intercept_penalty)
    Phi = reference.nystroem(np.asarray(X, float), np.asarray(Z, float), 1.0)
    w = reference.ridge(Phi, np.asarray(y, float), C, intercept_penalty)
    values = fitted.expansion(X)
    assert values.dtype == X.dtype
    np.testing.assert_allclose(values, Phi @ w[:-1] + w[-1], atol=20 * tol)
    assert int(fitted.status) == _status.CONVERGED
    assert float(fitted.relative_residual) < tol


def test_all_points_as_prototypes_is_the_dual():
    X, y, _ = problem()
    fitted = fixed_size.fit(RBF(0.7), X, 10.0, X, y)
    K = reference.rbf(np.asarray(X), np.asarray(X), 0.7)
    alpha, b = reference.dual(K, np.asarray(y), 10.0)
    np.testing.assert_allclose(fitted.expansion(X), K @ alpha + b, atol=1e-10)


def test_agrees_with_scikit_learn_where_they_coincide():
    X, y, Z = problem()
    theirs = kernel_approximation.Nystroem(gamma=0.5, n_components=12)
    theirs.components_ = np.asarray(Z)
    U, S, V = np.linalg.svd(reference.rbf(Z, Z, 1.0))
    theirs.normalization_ = (U / np.sqrt(S)) @ V
    theirs._n_features_out, theirs.component_indices_ = 12, np.arange(12)
    Phi = theirs.transform(np.asarray(X))
    ridge = linear_model.Ridge(alpha=1 / 30.0).fit(Phi, y)
    ours = fixed_size.fit(RBF(1.0), Z, 30.0, X, y).expansion(X)
    np.testing.assert_allclose(ours, ridge.predict(Phi), atol=1e-9)


def test_linear_features_are_ridge_regression():
    X, y, _ = problem()
    Y = jnp.stack([y, -2 * y], axis=1)
    for target in (y, Y):
        fitted = fixed_size.fit_features(Linear(jnp.ones(3)), 5.0, X, target)
        ridge = linear_model.Ridge(alpha=0.2).fit(X, target)
        np.testing.assert_allclose(fitted.expansion(X), ridge.predict(X), atol=1e-10)


@pytest.mark.slow
def test_kernel_columns_span_the_same_models():
    X, y, Z = problem()
    columns = KernelColumns(RBF(1.0), Z)
    T = whitening(columns.penalty())
    solution = accumulate(columns, X, y).transformed(T).solve(jnp.array([7.0]))
    model = columns.expansion(T @ solution.weights[0], solution.intercept[0])
    np.testing.assert_allclose(
        model(X), fixed_size.fit(RBF(1.0), Z, 7.0, X, y).expansion(X), atol=1e-9
    )


def test_sums_add_subtract_and_stream(dtype, tol):
    X, y, Z = problem(dtype)
    w = jnp.asarray(np.random.default_rng(1).uniform(0, 2, 50), dtype)
    phi = Nystroem(RBF(1.0), Z)
    total = accumulate(phi, X, y, w)
    blocks = accumulate(phi, X, y, w, block_rows=7)
    parts = accumulate(phi, X[:20], y[:20], w[:20]) + accumulate(phi, X[20:], y[20:], w[20:])
    rows = [
        (np.asarray(X[i : i + 16]), np.asarray(y[i : i + 16]), np.asarray(w[i : i + 16]))
        for i in range(0, 50, 16)
    ]
    stream = accumulate_batches(phi, iter(rows))
    folds = accumulate_batches(phi, iter(rows), n_folds=3)
    summed = jax.tree.map(lambda a: jnp.sum(a, axis=0), folds)
    for other in (blocks, parts, stream, summed):
        chex.assert_trees_all_close(other, total, atol=50 * tol)
    mine = accumulate(phi, X[1::3], y[1::3], w[1::3])
    chex.assert_trees_all_close(jax.tree.map(lambda a: a[1], folds), mine, atol=50 * tol)
    chex.assert_trees_all_close((total - parts).gram, jnp.zeros_like(total.gram), atol=50 * tol)


def test_a_weight_of_two_repeats_a_row_and_of_zero_removes_it():
    X, y, Z = problem()
    w = jnp.ones(50).at[3].set(2.0).at[7].set(0.0)
    rows = np.r_[0:50, 3]
    rows = rows[rows != 7]
    weighted = fixed_size.fit(RBF(1.0), Z, 10.0, X, y, w).expansion(X)
    repeated = fixed_size.fit(RBF(1.0), Z, 10.0, X[rows], y[rows]).expansion(X)
    np.testing.assert_allclose(weighted, repeated, atol=1e-10)


def test_batches_that_do_not_fit_are_named():
    _, _, Z = problem()
    phi = Nystroem(RBF(1.0), Z)
    with pytest.raises(ValueError, match="row indices 4 to 7: expected columns"):
        accumulate_batches(phi, [(np.ones((4, 3)), np.ones(4)), (np.ones((4, 2)), np.ones(4))])
    with pytest.raises(ValueError, match="at least one batch"):
        accumulate_batches(phi, [])


@pytest.mark.parametrize("method", ["subtraction", "removal"])
@pytest.mark.parametrize("v", [3, *(pytest.param(v, marks=pytest.mark.slow) for v in (10, 50))])
def test_cross_validation_is_refitting(v, method):
    X, y, Z = problem()
    w = jnp.asarray(np.random.default_rng(1).uniform(0.2, 2, 50))
    assignment = np.random.default_rng(2).permutation(np.arange(50) % v)
    folds, C = folds_from_assignment(assignment), jnp.array([0.1, 10.0, 1e3])
    Phi = reference.nystroem(np.asarray(X), np.asarray(Z), 1.0)
    for p in (0.0, 1.0):
        phi = Nystroem(RBF(1.0), Z, center=False)
        cv = cross_validate(phi, C, X, y, folds, w, intercept_penalty=p, method=method)
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


@pytest.mark.slow
def test_metrics_and_several_targets():
    X, y, Z = problem()
    phi, C, folds = Nystroem(RBF(1.0), Z), jnp.array([10.0]), plain_folds(jax.random.key(0), 50, 5)
    labels = jnp.sign(y)
    cv = cross_validate(phi, C, X, labels, folds, metric="misclassification")
    wrong = np.where(np.asarray(cv.predictions[0]) >= 0, 1, -1) != np.asarray(labels)
    np.testing.assert_allclose(cv.scores[0], wrong.mean())
    both = cross_validate(phi, C, X, jnp.stack([y, labels], 1), folds, metric="mae")
    one = cross_validate(phi, C, X, y, folds, metric="mae")
    two = cross_validate(phi, C, X, labels, folds, metric="mae")
    np.testing.assert_allclose(both.predictions[0, :, 0], one.predictions[0], atol=1e-10)
    np.testing.assert_allclose(both.scores, (one.scores + two.scores) / 2, rtol=1e-9)
    with pytest.raises(ValueError, match="penalised by the identity"):
        cross_validate(KernelColumns(RBF(1.0), Z), C, X, y, folds)


def test_fit_under_jit_vmap_and_without_a_second_compilation():
    X, y, Z = problem()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def value(length, C, y):
        return fixed_size.fit(RBF(length), Z, C, X, y).expansion(X)

    for length, C in ((1.0, 1.0), (2.0, 30.0)):
        expected = fixed_size.fit(RBF(length), Z, C, X, y).expansion(X)
        np.testing.assert_allclose(value(jnp.array(length), jnp.array(C), y), expected, atol=1e-10)

    lengths, Cs, ys = jnp.array([0.5, 1.0]), jnp.array([1.0, 100.0]), jnp.stack([y, y**2])
    batched = jax.vmap(lambda length, C, y: fixed_size.fit(RBF(length), Z, C, X, y).expansion(X))(
        lengths, Cs, ys
    )
    for i in range(2):
        expected = fixed_size.fit(RBF(lengths[i]), Z, Cs[i], X, ys[i]).expansion(X)
        np.testing.assert_allclose(batched[i], expected, atol=1e-9)


@pytest.mark.parametrize("v", [pytest.param(4, marks=pytest.mark.slow), 25])
def test_cv_over_kernels_and_data_sets_at_once_and_without_a_second_compilation(v):
    X, y, _ = problem()
    folds, C = plain_folds(jax.random.key(0), 50, v), jnp.array([1.0, 50.0])

    traces = []

    def scores(length, C, X, y):
        traces.append(v)
        return cross_validate(Nystroem(RBF(length), X[:12]), C, X, y, folds).scores

    lengths, Cs = jnp.array([0.7, 1.0, 2.0]), jnp.stack([C, 2 * C, 3 * C])
    Xs, ys = jnp.stack([X, X**2, X[::-1]]), jnp.stack([y, -y, y**2])
    compiled = jax.jit(scores)
    each = [compiled(*args) for args in zip(lengths, Cs, Xs, ys, strict=True)]
    assert len(traces) == 1
    together = jax.vmap(scores)(lengths, Cs, Xs, ys)
    np.testing.assert_allclose(together, jnp.stack(each), rtol=1e-9)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**31), st.sampled_from(["duplicated", "constant", "offset", "tiny", "huge"]))
def test_degenerate_inputs_stay_finite_and_row_order_does_not_matter(seed, kind):
    X, y, _ = problem(seed=seed % 97, n=30)
    if kind == "duplicated":
        X = X.at[1:10].set(X[0])
    elif kind == "constant":
        X, y = X.at[:, 1].set(3.0), jnp.ones(30)
    else:
        X = X * {"tiny": 1e-6, "huge": 1e6}.get(kind, 1.0) + (1e3 if kind == "offset" else 0.0)
    length = jnp.std(X)
    order = np.random.default_rng(seed).permutation(30)
    first = fixed_size.fit(RBF(length), X[:12], 10.0, X, y)
    second = fixed_size.fit(RBF(length), X[:12], 10.0, X[order], y[order])
    assert int(first.status) == _status.CONVERGED
    np.testing.assert_allclose(first.expansion(X), second.expansion(X), atol=1e-7)
    if kind == "duplicated":
        assert int(Nystroem(RBF(length), X[:12]).rank) == 3


def test_float32_agrees_or_says_so():
    """The stress case in small: where float32 is more than a point off, the status says it."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 10))
    signal = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3] ** 2 - 0.5
    y = np.where(signal + 0.3 * rng.standard_normal(2000) >= 0, 1.0, -1.0)
    n_reported = 0
    for length in (2.0, 20.0, 200.0):
        for C in (1.0, 1e3, 1e8):
            errors = {}
            for dtype in ("float64", "float32"):
                Xd, yd = jnp.asarray(X[:1000], dtype), jnp.asarray(y[:1000], dtype)
                fitted = fixed_size.fit(RBF(length), Xd[:200], C, Xd, yd)
                out = np.asarray(fitted.expansion(jnp.asarray(X[1000:], dtype)))
                errors[dtype] = (np.where(out >= 0, 1, -1) != y[1000:]).mean()
            lost = int(fitted.status) >= _status.TRUNCATED
            n_reported += lost
            assert lost or abs(errors["float32"] - errors["float64"]) <= 0.01, (length, C, errors)
    assert 0 < n_reported < 9


def test_bad_input_is_told():
    X, y, Z = problem()
    with pytest.raises(ValueError, match=r"X: expected finite values, got nan at index \(4, 1\)"):
        fixed_size.fit(RBF(1.0), Z, 1.0, X.at[4, 1].set(jnp.nan), y)
    with pytest.raises(ValueError, match="y: expected 50 rows"):
        fixed_size.check_problem(Z, 1.0, X, y[:-1], None)
    with pytest.raises(ValueError, match="as many as rows"):
        fixed_size.fit(RBF(1.0), X, 1.0, X[:10], y[:10])
    for C in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="C: expected a positive number"):
            fixed_size.fit(RBF(1.0), Z, C, X, y)
    with pytest.raises(ValueError, match="weights: expected all at least 0"):
        fixed_size.fit(RBF(1.0), Z, 1.0, X, y, -jnp.ones(50))
    with pytest.raises(ValueError, match="at least one row"):
        fixed_size.fit(RBF(1.0), Z, 1.0, X[:0], y[:0])


@pytest.mark.usefixtures("as_users_call")
def test_shapes_that_do_not_fit_are_told():
    X, y, Z = problem()
    phi, folds = Nystroem(RBF(1.0), Z), plain_folds(jax.random.key(0), 50, 5)
    with pytest.raises(ValueError, match=r"y: expected 50 rows, as many as X, got shape \(49,\)"):
        fixed_size.fit(RBF(1.0), Z, 1.0, X, y[:-1])
    with pytest.raises(ValueError, match=r"weights: expected shape \(50,\), got \(7,\)"):
        fixed_size.fit(RBF(1.0), Z, 1.0, X, y, jnp.ones(7))
    with pytest.raises(ValueError, match=r"prototypes: expected shape \(m, 3\), got \(12, 2\)"):
        fixed_size.fit(RBF(1.0), Z[:, :2], 1.0, X, y)
    with pytest.raises(ValueError, match="lengthscale: expected a scalar or one value for each"):
        fixed_size.fit(RBF(jnp.ones(2)), Z, 1.0, X, y)
    with pytest.raises(ValueError, match=r"metric: expected one of .* got 'auc'"):
        cross_validate(phi, jnp.ones(1), X, y, folds, metric="auc")


def test_nan_inside_jit_gives_a_status():
    X, y, Z = problem()
    run = jax.jit(lambda y: fixed_size.fit(RBF(1.0), Z, 1.0, X, y).status)
    status = run(y.at[0].set(jnp.nan))
    assert int(status) == _status.NOT_FINITE
    with pytest.raises(_status.NumericalError):
        _status.check(status)


def test_folds_cover_every_row_once_and_stratify():
    labels = jnp.asarray(np.random.default_rng(0).permutation([0] * 33 + [1] * 10))
    for folds in (
        plain_folds(jax.random.key(0), 43, 5),
        stratified_folds(jax.random.key(0), labels, 5),
    ):
        rows = np.sort(np.asarray(folds.index)[np.asarray(folds.valid)])
        np.testing.assert_array_equal(rows, np.arange(43))
        sizes = np.asarray(folds.valid).sum(1)
        assert sizes.max() - sizes.min() <= 1
    ones = [int(labels[folds.index[i]][folds.valid[i]].sum()) for i in range(5)]
    assert ones == [2] * 5
    with pytest.raises(ValueError, match="folds: expected a whole number between 2"):
        plain_folds(jax.random.key(0), 4, 5)
    with pytest.raises(ValueError, match="one fold number per row"):
        folds_from_assignment(np.array([0, 2, 2]))


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_fit_with_a_penalised_intercept_is_equation_7(penalty):
    X, y, Z = problem()
    Phi = reference.nystroem(np.asarray(X), np.asarray(Z), 1.0)
    w = reference.ridge(Phi, np.asarray(y) + 3, 0.1, penalty)
    fitted = fixed_size.fit(RBF(1.0), Z, 0.1, X, y + 3, intercept_penalty=penalty)
    np.testing.assert_allclose(fitted.expansion(X), Phi @ w[:-1] + w[-1], atol=1e-9)


def test_columns_far_from_zero_are_told_in_float32():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3)) + 1e4
    y = jnp.asarray(X[:, 0] - X[:, 1], "float32")
    fitted = fixed_size.fit_features(Linear(jnp.zeros(3, "float32")), 1.0, jnp.float32(X), y)
    assert int(fitted.status) == _status.PRECISION_LOST
    shift = jnp.asarray(X.mean(0), "float32")
    fitted = fixed_size.fit_features(Linear(shift), 1.0, jnp.float32(X), y)
    assert int(fitted.status) == _status.CONVERGED


def test_a_constant_column_is_no_lost_precision(dtype):
    X, y, _ = problem(dtype)
    X = X.at[:, 1].set(0)
    fitted = fixed_size.fit_features(Linear(jnp.zeros(3, dtype)), 1e7, X, y)
    assert int(fitted.status) == _status.CONVERGED


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


def test_rows_of_no_weight_may_hold_anything():
    X, y, Z = problem()
    w = jnp.ones(50).at[3].set(0)
    clean = accumulate(Nystroem(RBF(1.0), Z), X, y, w)
    dirty = accumulate(
        Nystroem(RBF(1.0), Z), X.at[3].set(jnp.nan), y.at[3].set(jnp.inf), w, block_rows=7
    )
    for a, b in zip(clean, dirty, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_a_kernel_that_is_not_finite_at_zero_meets_no_padding():
    X, y, Z = problem()

    def cosine(_, x, z):
        return jnp.vdot(x, z) / jnp.linalg.norm(x) / jnp.linalg.norm(z)

    fitted = fixed_size.fit(Custom(cosine), Z[:2], 1.0, X, y, block_rows=7)
    assert int(fitted.status) < _status.NOT_FINITE
    slope = jax.grad(lambda x: jnp.sum(fitted.expansion(x, block_rows=7)))(X)
    assert jnp.isfinite(slope).all()


def test_float_settings_of_integer_data_stay_what_they_are(as_users_call):
    X = jnp.arange(12).reshape(6, 2) % 5
    y = jnp.arange(6) % 2
    ours = fixed_size.fit(RBF(1.0), X[:2], 0.5, X, y).expansion(X)
    Z, Xf, yf = (a.astype(float) for a in (X[:2], X, y))
    theirs = fixed_size.fit(RBF(1.0), Z, 0.5, Xf, yf).expansion(X)
    np.testing.assert_allclose(ours, theirs)
    batches = [(np.arange(8).reshape(4, 2), np.arange(4), np.full(4, 0.5))]
    assert accumulate_batches(Nystroem(RBF(1.0), X[:2].astype(float)), batches).weight_sum == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"folds": "other"}, "folds of other data"),
        ({"method": "substraction"}, "method: expected"),
        ({"metric": "misclassification"}, r"expected -1 and \+1"),
        ({"metric": "auc"}, "metric: expected one of .* got 'auc'"),
        ({"C": jnp.array(1.0)}, "C: expected a vector"),
        ({"C": jnp.array([1.0, -1.0])}, "C: expected a positive"),
        ({"X": "nan"}, "X: expected finite"),
        ({"weights": jnp.zeros(50)}, "at least one above 0"),
        ({"feature_map": "columns"}, "penalised by the identity"),
    ],
)
def test_cross_validation_refuses(as_users_call, change, message):
    X, y, Z = problem()
    special = {
        "other": plain_folds(jax.random.key(0), 70, 5),
        "nan": X.at[0, 0].set(jnp.nan),
        "columns": KernelColumns(RBF(1.0), Z),
    }
    change = {
        k: special[v] if isinstance(v, str) and v in special else v for k, v in change.items()
    }
    arguments = {
        "feature_map": Nystroem(RBF(1.0), Z),
        "C": jnp.array([1.0]),
        "X": X,
        "y": y,
        "folds": plain_folds(jax.random.key(0), 50, 5),
    }
    with pytest.raises(ValueError, match=message):
        cross_validate(**{**arguments, **change})
    if "feature_map" in change or "method" in change:
        return
    del arguments["feature_map"]
    all_arguments = {"kernel": RBF(1.0), "metric": "mse", **arguments, **change}
    for method in (FixedSize(12), SCDP(3), Robust(12), SpSVM(3)):
        with pytest.raises(ValueError, match=message):
            validate(method, points=Z, **all_arguments)


def test_settings_that_make_no_sense_fail_under_jit():
    X, y, Z = problem()
    fit = jax.jit(lambda C, p: fixed_size.fit(RBF(1.0), Z, C, X, y, intercept_penalty=p).status)
    assert int(fit(1.0, 0.0)) == _status.CONVERGED
    for C, p in ((-1.0, 0.0), (1.0, -200.0)):
        assert int(fit(C, p)) == _status.NOT_FINITE
    batches = [(X[:5], y[:5]), (X[5:], y[5:, None])]
    with pytest.raises(ValueError, match="row indices 5 to 49"):
        accumulate_batches(Nystroem(RBF(1.0), Z), batches)
    with pytest.raises(ValueError, match="X is not finite at row index 7"):
        accumulate_batches(
            Nystroem(RBF(1.0), Z), [(X[:5], y[:5]), (X[5:10].at[2, 0].set(jnp.nan), y[5:10])]
        )
