"""A search for many rows compares kernels by machines of a part of the rows."""

import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse
from jsparse.compilation import count_compilations
from jsparse.features import KernelColumns
from jsparse.kernels import RBF
from jsparse.machines import FixedSize, fixed_size
from jsparse.machines.imitation import MovedPrototypes
from jsparse.machines.ridge import Ridge
from jsparse.multiclass import output_code
from jsparse.normal_equations import accumulate_folds
from jsparse.search.history import load_history, save_history
from jsparse.search.strategies import Profile, Rescaling
from jsparse.training import source
from jsparse.training.tables import tuning_problem
from jsparse.validation.folds import folds_from_assignment, stratified_folds
from jsparse.validation.validate import Scoring, Validation

N, M, V = 12_000, 20, 5


def rows(classes=None, n=N, dtype=np.float32):
    """Return made inputs, and targets or `classes` classes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 2)).astype(dtype)
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.standard_normal(n)
    return X, y if classes is None else np.digitize(y, np.linspace(-0.5, 0.5, classes - 1))


@pytest.mark.parametrize("first_rows", [0, 1, 700, 1300])
@pytest.mark.parametrize("r", [300, 1300])  # one block of rows in each fold, and several
def test_sums_are_over_the_first_rows_of_each_fold(r, first_rows):
    rng = np.random.default_rng(1)
    X, y, w = rng.standard_normal((3, r, 2)), rng.standard_normal((3, r)), rng.random((3, r))
    features = KernelColumns(RBF(1.0), jnp.asarray(X[0, :5]))
    arrays = jax.device_put((X, y, w))
    with count_compilations() as compiled:
        sums_of = jax.jit(accumulate_folds)
        sums = sums_of(features, *arrays, first_rows=jnp.int32(first_rows))
        sums_of(features, *arrays, first_rows=jnp.int32(2))
    assert compiled.programs <= 2  # the features may take one
    # The oracle is NumPy.
    phi = np.asarray(jax.vmap(features)(jnp.asarray(X)), float)
    w = np.where(np.arange(r) < first_rows, w, 0)
    np.testing.assert_allclose(sums.gram, np.einsum("vrp,vr,vrq->vpq", phi, w, phi), atol=1e-10)
    np.testing.assert_allclose(sums.cross, np.einsum("vrp,vr->vp", phi, w * y), atol=1e-10)
    np.testing.assert_allclose(sums.weight_sum, w.sum(axis=1), atol=1e-10)


def problem_of(X, y, folds, n_prototypes=M):
    rng = np.random.default_rng(2)
    points = X[rng.choice(len(X), n_prototypes, replace=False)]
    labelled = np.where(y > 0, 1.0, -1.0) if y.dtype.kind == "i" else y
    arrays = jnp.asarray(points), jnp.asarray(X), jnp.asarray(labelled)
    return tuning_problem(
        RBF(1.0), *arrays, folds, method=FixedSize(n_prototypes), key=jax.random.key(0)
    )


def test_errors_on_a_part_are_those_of_machines_fitted_to_its_rows():
    X, y = rows(dtype=np.float64)
    problem = problem_of(X, y, jsparse.plain_folds(0, N, V))
    part = problem.on_a_part(3)
    theta, C = np.log([[0.8]]), np.asarray([[0.1, 10.0]])
    (validation,) = part.errors(theta, C, part.scoring)
    source = part.source
    index, count = np.asarray(source.folds.index), source.part.rows_of_fold
    assert N / 3 < count * V < N / 2
    assert np.isnan(validation.fold_scores[:, 3:]).all()
    for fold in range(3):
        fitted = np.concatenate([index[f, :count] for f in range(V) if f != fold])
        out = index[fold][np.asarray(source.folds.valid)[fold]]
        for i, c in enumerate(C[0]):
            rows_fitted = jnp.asarray(X[fitted]), jnp.asarray(y[fitted])
            machine = fixed_size.fit(RBF(0.8), problem.points, c, *rows_fitted)
            errors = np.square(np.asarray(machine.expansion(jnp.asarray(X[out]))) - y[out])
            assert validation.fold_scores[i, fold, 0] == pytest.approx(errors.mean(), rel=1e-6)
    assert np.allclose(validation.scores[:, 0], validation.fold_scores[:, :3, 0].mean(1), rtol=1e-3)


def test_the_cores_share_the_kernels_of_a_part(monkeypatch):
    """The errors are equal to the last bit."""
    X, y = rows(dtype=np.float64)
    thetas = np.log([[0.8], [0.4], [1.5], [3.0]])
    C, results = np.full((4, 2), [1.0, 100.0]), []
    sum_folds, threads = source.sum_folds, set()

    def sum_together(*arguments):
        """Sum once `at_once` threads have come this far."""
        threads.add(threading.get_ident())
        together.wait(60)
        return sum_folds(*arguments)

    monkeypatch.setattr(source, "sum_folds", sum_together)
    for cores, at_once in ((1, 1), (2, 2), (16, 4)):
        monkeypatch.setattr(source, "usable_cores", lambda cores=cores: cores)
        part = problem_of(X, y, jsparse.plain_folds(0, N, V)).on_a_part(2)
        assert part.kernels_at_once == at_once
        threads.clear()
        together = threading.Barrier(at_once)
        errors = part.errors(thetas, C, part.scoring)
        assert len(threads) == at_once
        assert (threading.get_ident() in threads) == (at_once == 1)
        results.append(jax.tree.map(np.asarray, errors))
    jax.tree.map(np.testing.assert_array_equal, results[0], results[1])
    jax.tree.map(np.testing.assert_array_equal, results[0], results[2])


def test_a_part_has_rows_of_every_class_though_folds_are_sorted_by_class():
    X, y = rows(classes=3)
    problem = problem_of(X, (y == 2).astype(int), stratified_folds(0, y, V))
    source = problem.on_a_part(2).source
    fitted = np.asarray(source.folds.index)[:, : source.part.rows_of_fold]
    share = np.bincount(y[fitted.ravel()]) / fitted.size
    np.testing.assert_allclose(share, np.bincount(y) / N, atol=0.02)


@pytest.mark.parametrize("classes", [None, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_kernel_and_C_are_as_good_as_those_of_a_search_on_all_rows(classes, monkeypatch):
    X, y = rows(classes)
    options = {"task": "regression" if classes is None else "classification", "key": 0, "folds": V}

    def trained(**more):
        return jsparse.train(X, y, method=FixedSize(M), **options, **more)

    by_part = trained()
    stages = {e.stage for e in by_part.tuning.history}
    assert stages == {0, 1}
    first, last = ([e for e in by_part.tuning.history if e.stage == s] for s in (0, 1))
    assert len(first) == 10
    assert len(last) == 1 if classes is None else len(last) <= 5
    # The scores of the last stage are those of a machine of all rows.
    assert not np.isnan([e.fold_scores for e in last]).any()
    stated = trained(
        kernel=by_part.tuning.kernel, search=Profile(tune_kernel=False), C=np.array([by_part.C])
    )
    assert by_part.cv_error == pytest.approx(stated.cv_error, rel=2e-3)
    np.testing.assert_allclose(
        by_part.out_of_fold, stated.out_of_fold, atol=2e-2 * np.abs(stated.out_of_fold).max()
    )
    monkeypatch.setattr(FixedSize, "rows_of_part", lambda *_: None)
    of_all_rows = trained()
    assert {e.stage for e in of_all_rows.tuning.history} == {0}
    margin = 0.5 * of_all_rows.tuning.standard_error
    assert by_part.tuning.score <= of_all_rows.tuning.score + margin


def test_the_part_and_all_rows_share_their_programs():
    X, y = rows(classes=2)
    options = {"task": "classification", "method": FixedSize(M), "key": 0, "folds": V}
    jsparse.train(X, y, search=Profile(tune_kernel=False), C=np.geomspace(0.1, 10, 7), **options)
    with count_compilations() as compiled:
        jsparse.train(X, y, C=np.geomspace(0.1, 10, 7), **options)
    # Both stages sum and validate by two programs. A search of `C` alone has a kernel without tuned
    # leaves, so it shares neither.
    assert compiled.programs <= 2


def test_a_stopped_search_goes_on_and_chooses_the_same(tmp_path):
    X, y = rows(classes=2)
    options = {"task": "classification", "method": FixedSize(M), "key": 0, "folds": V}
    whole = jsparse.train(X, y, **options)
    save_history(tmp_path / "history", whole.tuning.history[:11])
    search = Profile(history=load_history(tmp_path / "history"))
    resumed = jsparse.train(X, y, search=search, **options)
    assert resumed.C == whole.C
    assert [tuple(e.theta) for e in resumed.tuning.history] == [
        tuple(e.theta) for e in whole.tuning.history
    ]


def test_a_stated_metric_compares_kernels_too():
    X, y = rows(classes=2)
    options = {"task": "classification", "method": FixedSize(M), "key": 0, "folds": V}
    by_squares = jsparse.train(X, y, **options)
    by_share = jsparse.train(X, y, metric="misclassification", **options)
    least = [min(e.least for e in t.tuning.history if e.stage == 0) for t in (by_squares, by_share)]
    assert least[1] < least[0]
    assert by_share.cv_error == pytest.approx(by_squares.cv_error, rel=0.05)


def test_folds_of_few_rows_are_not_divided():
    X, y = rows()
    problem = problem_of(X, y, jsparse.plain_folds(0, N, 20))
    assert problem.rows_of_part is None
    assert problem_of(X, y, jsparse.plain_folds(0, N, V), 500).rows_of_part is None
    assert problem_of(X, y, jsparse.plain_folds(0, N, V)).rows_of_part == 4096


@pytest.mark.parametrize("sizes", [(5, 5, 4000, 4000, 3990), (11900, 25, 25, 25, 25)])
def test_folds_of_very_different_sizes_are_not_divided(sizes):
    X, y = rows()
    folds = folds_from_assignment(np.repeat(np.arange(len(sizes)), sizes))
    assert problem_of(X, y, folds).rows_of_part is None


def test_a_kernel_without_numbers_to_tune_needs_no_part():
    X, y = rows()
    trained = jsparse.train(X, y, task="regression", kernel="linear", method=FixedSize(M), key=0)
    assert {e.stage for e in trained.tuning.history} == {0}


def test_methods_that_validate_other_folds_do_not_keep_sums():
    """They hold out one fold alone, so sums of the folds would validate them on other rows."""
    X, y = rows()
    options = {"task": "regression", "key": 0, "folds": V, "search": Profile(max_evaluations=3)}
    iterated = FixedSize(M, solver="conjugate_gradients", tuned_with=10)
    trained = jsparse.train(X, y, method=iterated, **options)
    assert trained.tuning.score < 0.2
    moved = MovedPrototypes(M, prototypes=X[:M])
    trained = jsparse.train(X, y, method=moved, C=np.array([1.0, 10.0]), **options)
    # Errors by fold are not kept if the method validates other folds than the user's.
    assert {e.fold_scores.shape[1] for e in trained.tuning.history} == {0}


def test_every_method_with_another_validation_states_whether_it_keeps_sums():
    def subclasses(cls):
        return {cls}.union(*map(subclasses, cls.__subclasses__()))

    for method in subclasses(Ridge) - {Ridge}:
        changed = {"held_out", "validation_folds", "held_out_from_sums"} & set(vars(method))
        assert not changed or "fits_from_fold_sums" in vars(method), method


def test_few_random_rows_have_every_class():
    X, y = rows(classes=10)
    problem = tuning_problem(
        RBF(1.0), jnp.asarray(X[:M]), jnp.asarray(X), jnp.asarray(y, jnp.int32),
        jsparse.plain_folds(0, N, V), None,
        output_code("one_versus_rest", 10),
        method=FixedSize(M),
    )  # fmt: skip
    problem = dataclasses.replace(problem, task="classification")
    assert set(y[problem.with_rows_as_points(10).point_rows]) == set(range(10))


def test_problems_with_a_part_are_not_trained_as_a_batch():
    X, y = rows()
    options = {"task": "regression", "method": FixedSize(M), "key": 0, "folds": V}
    many = jsparse.train_many([(X, y)] * 2, **options)
    alone = jsparse.train(X, y, **options)
    assert many[0].C == alone.C
    assert many[0].cv_error == alone.cv_error


def test_first_rows_on_a_mesh_raise():
    X = jnp.ones((2, 4, 1))
    with pytest.raises(ValueError, match="first_rows: expected None on a mesh"):
        accumulate_folds(
            KernelColumns(RBF(1.0), jnp.ones((1, 1))), X, X[:, :, 0], X[:, :, 0],
            mesh=jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,)),
            first_rows=jnp.int32(1),
        )  # fmt: skip


def total_of_sums(Z, rows, first_rows=None):
    sums = accumulate_folds(KernelColumns(RBF(1.0), Z), *rows, first_rows=first_rows)
    return jnp.sum(jnp.sin(sums.gram)) + jnp.sum(sums.cross)


@jax.jit
def derivatives_of_sums(Z, rows, first_rows=None):
    """Return the derivatives in reverse mode, and in forward mode along the prototypes."""
    reverse = jax.grad(total_of_sums, (0, 1))(Z, rows, first_rows)
    return reverse, jax.jvp(lambda Z: total_of_sums(Z, rows, first_rows), (Z,), (Z,))[1]


@pytest.mark.parametrize("first_rows", [0, 700, 1300])
def test_derivatives_of_sums_are_those_of_the_first_rows(first_rows):
    rng = np.random.default_rng(1)
    X, y, w = rng.standard_normal((2, 1300, 2)), rng.standard_normal((2, 1300)), np.ones((2, 1300))
    Z, rows = X[0, :3], jax.device_put((X, y, w))
    (of_Z, of_rows), forward = derivatives_of_sums(jnp.asarray(Z), rows, jnp.int32(first_rows))
    expected_Z, expected_rows = np.zeros_like(Z), [np.zeros_like(a) for a in rows]
    if first_rows > 0:
        first = jax.tree.map(lambda a: a[:, :first_rows], (X, y, w))
        (expected_Z, of_first), _ = derivatives_of_sums(jnp.asarray(Z), jax.device_put(first))
        for whole, part in zip(expected_rows, of_first, strict=True):
            whole[:, :first_rows] = part
    for a, b in zip((of_Z, *of_rows), (expected_Z, *expected_rows), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(forward, np.vdot(of_Z, Z), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("signs", [(), (1,), (-1,), (-1, 1), (1, -1)])
def test_a_rescaling_tries_its_directions_in_order(signs):
    class Errors:
        """The error is least where the log of the factor is 0.6."""

        planned = 5
        problem = dtype = key = grid = low = high = deadline = stops = None  # not used

        def __init__(self):
            self.template = type("Template", (), {"size": 1, "theta": np.zeros(1)})
            self.tried = []

        def best_C(self, theta):
            raise NotImplementedError

        def slope(self, theta, C, evaluate):
            raise NotImplementedError

        def scores(self, thetas):
            self.tried += [float(thetas[0, 0])]
            return (thetas[:, 0] - 0.6) ** 2

    errors = Errors()
    search = Rescaling(signs=signs)
    search.run(errors)
    step = np.log(search.ratio)
    larger, smaller = [step, 2 * step, 3 * step], [-step]
    of = {1: larger, -1: smaller}
    expected = [0.0]
    for sign in signs:
        expected += of[sign]
        if sign == 1:
            break
    assert errors.tried == pytest.approx(expected[:5])
    assert search.batch_sizes(1) == [1] * (5 if signs else 1)


def test_folds_computed_beyond_the_wanted_ones_are_known():
    wanted = np.asarray([[True, True, False], [True, False, False]])
    scores = np.zeros((2, 1)), np.zeros((2, 3, 1))

    def computed(weights):
        return Validation(*scores, np.asarray(weights), np.zeros(2)).computed(wanted).tolist()

    assert computed([[1, 1, 0], [1, 1, 0]]) == [[True, True, False], [True, True, False]]
    assert computed([[1, 0, 0], [1, 0, 0]]) == wanted.tolist()  # the second fold has no weight
    assert computed([[1, 1, 1], [1, 1, 1]]) == np.ones((2, 3), bool).tolist()


def test_scoring_names_each_metric_once():
    scoring = Scoring("misclassification", "loss", "misclassification", "mse")
    assert scoring.metrics == ("misclassification", "mse")
    assert (scoring.place("mse"), scoring.place("misclassification")) == (1, None)
    assert not scoring.compares_as_it_scores
    assert Scoring("mse", "loss", "mse", "mse").compares_as_it_scores
