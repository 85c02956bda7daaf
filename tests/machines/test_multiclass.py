"""Output codes, and machines of several classes against separate fits and scikit-learn."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import fixed_size as reference

from jsparse._status import CONVERGED, NOT_FINITE, NumericalError
from jsparse.calibration import decisions
from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.machines import dual, fixed_size
from jsparse.multiclass import accumulate_code, decode, distances, output_code
from jsparse.normal_equations import accumulate
from jsparse.prediction import scores_of
from jsparse.validation.cross_validation import cross_validate
from jsparse.validation.folds import stratified_folds

SCHEMES = ["one_versus_one", "one_versus_rest", "minimum_output"]
OWN = np.array([[1.0, 1, 0, 1], [-1, 1, 1, 1], [0, -1, -1, 1], [-1, 0, -1, -1]])


def problem(dtype="float64", n=120, k=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(k), rng.integers(0, k, n - k)])
    X = rng.standard_normal((n, 3)) + 1.5 * np.stack([labels % 2, labels // 2, 0 * labels], 1)
    w = rng.choice([0.0, 1.0, 2.0], n)
    return jnp.asarray(X, dtype), jnp.asarray(labels, jnp.int32), jnp.asarray(w, dtype)


@pytest.mark.parametrize("k", [2, 3, 7, 10, 26])
def test_codes_are_the_papers(k):
    if k == 2:
        for scheme in SCHEMES:
            np.testing.assert_array_equal(output_code(scheme, k).matrix, [[-1], [1]])
        return
    pairs = output_code("one_versus_one", k)
    assert pairs.matrix.shape == (k, k * (k - 1) // 2)
    seen = {tuple(np.flatnonzero(column)) for column in pairs.matrix.T}
    assert seen == set(itertools.combinations(range(k), 2))
    assert not pairs.shares_all_rows
    rest = output_code("one_versus_rest", k)
    assert (rest.matrix.sum(axis=0) == 2 - k).all()
    # Table 6: 3 bits for 7 classes, 4 for 10, 5 for 26.
    digits = output_code("minimum_output", k)
    assert digits.matrix.shape[1] == {3: 2, 7: 3, 10: 4, 26: 5}[k]
    assert len(np.unique(digits.matrix, axis=0)) == k
    for code in (rest, digits):
        assert code.shares_all_rows


def test_problems_with_the_same_classes_share_a_system():
    code = output_code(np.array([[1, 1, 1], [-1, 1, -1], [1, -1, 0], [-1, -1, 0]]), 4)
    assert code.members.shape == (2, 4)
    for j in range(3):
        assert code.problems[code.system[j], code.slot[j]] == j
        np.testing.assert_array_equal(code.members[code.system[j]], np.abs(code.matrix[:, j]))


def test_bad_codes_are_named(as_users_call):
    for scheme, message in (
        ("ecoc", "multiclass: expected 'one_versus_one'"),
        (np.ones((2, 2)), "expected shape"),
        (np.array([[1, 2], [-1, 1], [1, 1]]), "entries -1, 0"),
        (np.array([[1, 1], [-1, 1], [-1, 1]]), "problem 1 lacks"),
        (np.array([[1, 1], [-1, -1], [-1, -1]]), "two equal rows"),
        (np.array([[1, 1], [-1, -1], [0, 0]]), "class 2 is in no problem"),
    ):
        with pytest.raises(ValueError, match=message):
            output_code(scheme, 3)


def test_decoding_by_loops():
    rng = np.random.default_rng(0)
    f = np.concatenate([rng.standard_normal((40, 4)), np.zeros((1, 4)), np.ones((1, 4))])
    losses = np.array([[np.mean((1 - row * v) ** 2) for row in OWN] for v in f])
    np.testing.assert_allclose(distances(jnp.asarray(OWN), jnp.asarray(f), "loss"), losses)
    np.testing.assert_array_equal(
        decode(jnp.asarray(OWN), jnp.asarray(f), "loss"), losses.argmin(axis=1)
    )
    wrong = np.array(
        [[sum(0.5 if c == 0 else float((x >= 0) != (c > 0)) for c, x in zip(row, v, strict=True))
          for row in OWN] for v in f]
    )  # fmt: skip
    expected = [min(range(4), key=lambda c: (wrong[i, c], losses[i, c], c)) for i in range(len(f))]
    np.testing.assert_array_equal(decode(jnp.asarray(OWN), jnp.asarray(f), "hamming"), expected)


@pytest.mark.parametrize("decoding", ["loss", "hamming"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_values_that_cannot_be_compared_decide_for_no_class(decoding, value):
    f = np.random.default_rng(0).standard_normal((5, 4))
    classes = decode(jnp.asarray(OWN), jnp.asarray(f), decoding)
    code = output_code(OWN, 4)
    np.testing.assert_array_equal(decisions(scores_of(f, code, decoding)), classes)
    f[2, 1] = value
    expected = np.where(np.arange(5) == 2, -1, classes)
    np.testing.assert_array_equal(decode(jnp.asarray(OWN), jnp.asarray(f), decoding), expected)
    with pytest.raises(NumericalError, match="value at row index 2 is not finite, or too large"):
        scores_of(f, code, decoding)


def separately(Phi, C, rows, labels, w, matrix):
    """Solve ridge regression in NumPy for each binary problem, on the rows of its classes."""
    columns = []
    for j, column in enumerate(np.asarray(matrix).T):
        target = column[np.asarray(labels)]
        seen = rows[target[rows] != 0]
        solution = reference.ridge(Phi[seen], target[seen], C[j], 0.0, np.asarray(w)[seen])
        columns.append(Phi @ solution[:-1] + solution[-1])
    return np.stack(columns, axis=1)


@pytest.mark.parametrize(
    "scheme",
    ["one_versus_one", "one_versus_rest", pytest.param(OWN, marks=pytest.mark.slow)],
    ids=["one_versus_one", "one_versus_rest", "own"],
)
def test_one_pass_equals_separate_fits(scheme):
    X, labels, w = problem()
    code = output_code(scheme, 4)
    C = jnp.geomspace(0.1, 100, code.matrix.shape[1])
    phi = Nystroem(RBF(1.0), X[:10])
    fitted = fixed_size.fit_classes(phi, C, X, labels, code, w)
    every, Phi = np.arange(120), np.asarray(phi(X))
    expected = separately(Phi, C, every, labels, w, code.matrix)
    np.testing.assert_allclose(fitted.expansion(X), expected, atol=1e-10)


@pytest.mark.slow
def test_a_traced_label_out_of_range_gives_nan_and_a_status():
    X, labels, _ = problem(n=30)
    code, phi, C = output_code("one_versus_rest", 4), Nystroem(RBF(1.0), X[:5]), jnp.ones(1)
    folds = stratified_folds(0, np.asarray(labels), 3)

    @jax.jit
    def fits(labels):
        fixed = fixed_size.fit_classes(phi, 1.0, X, labels, code)
        in_dual = dual.fit_classes(RBF(1.0), 1.0, X, labels, code)
        scores = cross_validate(phi, C, X, labels, folds, code=code)
        values = fixed.expansion(X), in_dual.expansion(X), scores.predictions, scores.scores
        return values, (fixed.status, in_dual.status, scores.status[0])

    for labels_now, finite in ((labels, True), *((labels.at[7].set(i), False) for i in (-1, 4))):
        values, statuses = fits(labels_now)
        assert all(np.isfinite(a).all() == finite and np.isnan(a).all() != finite for a in values)
        assert all((status == NOT_FINITE) != finite for status in statuses)


@pytest.mark.slow
def test_classes_that_come_later_are_added_and_bad_numbers_refused(as_users_call):
    X, labels, w = problem()
    code = output_code("one_versus_one", 4)
    phi = Nystroem(RBF(1.0), X[:10])
    early = np.asarray(labels) < 2
    first, later = (
        accumulate_code(code, phi, X[rows], labels[rows], w[rows]) for rows in (early, ~early)
    )
    all_rows = fixed_size.fit_classes(phi, 3.0, X, labels, code, w)
    added = fixed_size.solve(phi, first + later, 3.0, code)
    np.testing.assert_allclose(added.expansion(X), all_rows.expansion(X), atol=1e-10)
    assert int(added.status) == int(all_rows.status) == CONVERGED
    # With classes 0 and 1 only, the problem of the classes 2 and 3 has no rows and no opinion.
    alone = fixed_size.solve(phi, first, 3.0, code)
    assert int(alone.status) == CONVERGED
    values = np.asarray(alone.expansion(X))
    empty = ~np.asarray(code.matrix)[:2].any(axis=0)
    assert empty.sum() == 1
    assert not values[:, empty].any()
    assert np.isfinite(values).all()
    sums = accumulate(phi, X, X[:, 0], w)
    for C, penalty in ((0.0, 0.0), (np.nan, 0.0), (1.0, -1.0)):
        with pytest.raises(ValueError, match="expected"):
            fixed_size.solve(phi, sums, C, intercept_penalty=penalty)


@pytest.mark.parametrize(
    ("scheme", "decoding"),
    [
        pytest.param("one_versus_one", "loss", marks=pytest.mark.slow),
        ("one_versus_rest", "hamming"),
        pytest.param(OWN, "loss", marks=pytest.mark.slow),
    ],
    ids=["one_versus_one", "hamming", "own"],
)
def test_cross_validation_equals_refitting(scheme, decoding):
    X, labels, w = problem()
    code = output_code(scheme, 4)
    folds = stratified_folds(jax.random.key(0), labels, 4)
    phi, C = Nystroem(RBF(1.0), X[:10]), jnp.array([0.5, 50.0])
    result = cross_validate(
        phi, C, X, labels, folds, w, metric="misclassification", code=code, decoding=decoding
    )
    squared = cross_validate(phi, C, X, labels, folds, w, metric="mse", code=code).scores
    wn = np.asarray(w)
    Phi, every = np.asarray(phi(X)), np.arange(120)
    for s in range(2):
        out = np.zeros((120, code.matrix.shape[1]))
        for index, valid in zip(*map(np.asarray, folds), strict=True):
            test = index[valid]
            C_of_problems, rest = np.full(code.matrix.shape[1], C[s]), np.setdiff1d(every, test)
            values = separately(Phi, C_of_problems, rest, labels, w, code.matrix)
            out[test] = values[test]
        np.testing.assert_allclose(result.predictions[s], out, atol=1e-9)
        classes = decode(jnp.asarray(code.matrix), jnp.asarray(out), decoding)
        error = np.sum(wn * (np.asarray(classes) != np.asarray(labels))) / wn.sum()
        np.testing.assert_allclose(result.scores[s], error, atol=1e-12)
        target = code.matrix[np.asarray(labels)]
        seen = np.abs(target)
        loss = (seen * (target - out) ** 2).sum(axis=1) / seen.sum(axis=1)
        np.testing.assert_allclose(squared[s], np.sum(wn * loss) / wn.sum(), atol=1e-9)
