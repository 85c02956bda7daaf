"""`train_many`: results equal those of `train`, by one program; errors name the problem."""

import contextlib
import re

import jax
import jax.numpy as jnp
import joblib
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

import jsparse
from jsparse import FixedSize, Profile, train, train_many
from jsparse.compilation import count_compilations
from jsparse.prototypes import renyi
from jsparse.prototypes.renyi import select
from jsparse.prototypes.uniform import draws_of, encode
from jsparse.training import many as module
from jsparse.training import plan
from jsparse.training.settings import Resources
from jsparse.validation.folds import (
    folds_from_assignment,
    folds_of_padded_rows,
    plain_folds,
    shuffle_rounds,
    stratified_folds,
)

SETTINGS = {"C": np.geomspace(0.1, 1e3, 5), "folds": 4, "key": 0}
REGRESSION = {"task": "regression", **SETTINGS}
# Tables of 60 to 64 rows, of which a few have no weight, share the program of a batch.
WEIGHTS = np.random.default_rng(9).integers(1, 4, 64) * np.sign(np.arange(64.0) % 16)


def table(seed, n=60, d=3):
    rng = np.random.default_rng(seed)
    X = 10 * rng.standard_normal((n, d)) + 5
    return X, np.sin(X[:, 0] / 10) + 0.1 * X[:, 1] + 0.1 * rng.standard_normal(n)


def assert_equal(one, alone, tol=1e-6):
    """Compare a result of a batch with the result of `train`."""
    assert one.C == alone.C
    assert one.metric == alone.metric
    assert one.n_rows == alone.n_rows
    assert one.method == alone.method
    assert one.n_points == alone.n_points
    np.testing.assert_array_equal(one.point_rows, alone.point_rows)
    for a, b in zip(one.folds, alone.folds, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(one.cv_error, alone.cv_error, rtol=tol)
    np.testing.assert_allclose(one.standard_error, alone.standard_error, rtol=10 * tol)
    np.testing.assert_allclose(one.out_of_fold, alone.out_of_fold, rtol=tol, atol=tol)
    assert one.statuses == alone.statuses
    assert len(one.tuning.history) == len(alone.tuning.history)
    for a, b in zip(one.tuning.history, alone.tuning.history, strict=True):
        np.testing.assert_allclose(a.theta, b.theta, rtol=1e-6)
        np.testing.assert_allclose(a.scores, b.scores, rtol=tol)
    X = np.random.default_rng(1).standard_normal((20, alone.expansion.prototypes.shape[1]))
    np.testing.assert_allclose(
        one.model.decision_function(X), alone.model.decision_function(X), rtol=tol, atol=tol
    )
    assert one.sums.equations.gram.shape == alone.sums.equations.gram.shape


@pytest.fixture
def four_tables_in_a_call(monkeypatch):
    """Make batches as small as those to which a test limits the memory: they share a program."""
    monkeypatch.setattr(plan, "TABLES_ON_CPU", 4)


def test_models_of_a_batch_are_those_of_train_by_one_program(four_tables_in_a_call):
    """Problems differ in rows, columns, prototypes, seeds and weights, and share one program."""
    narrow = dict(zip("Xy", table(1, 64, 2), strict=True))
    problems = {
        "plain": {},
        "narrow": {**narrow, "weights": WEIGHTS[::-1], "method": FixedSize(12)},
        "seed": {"key": 7, "C": np.geomspace(1.0, 10.0, 5)},
    }
    X, y = table(0, 62, 4)
    options = REGRESSION | {"X": X, "y": y, "weights": WEIGHTS[:62], "method": FixedSize(9)}
    with count_compilations() as counts:
        many = train_many(problems, **options)
    assert counts.programs == 1
    assert not many.alone
    assert "3 in batches" in repr(many)
    alone = {name: train(**(options | problem)) for name, problem in problems.items()}
    for name, result in alone.items():
        assert_equal(many.by_name[name], result)
        assert result.size == result.model.size
    for part, codes in many.statuses.items():
        assert codes.tolist() == [result.statuses[part] for result in alone.values()]
    # Later calls within the capacities compile nothing.
    later = [(*table(s, 60 + s, 2 + s), WEIGHTS[: 60 + s]) for s in range(3)]
    with count_compilations() as counts:
        train_many(later, **REGRESSION, method=FixedSize(10))
    assert counts.programs == 0


@pytest.mark.slow
def test_classes():
    X, y = table(2, 70)
    labels = np.array(["a", "b", "c"])[np.digitize(y, np.quantile(y, [0.4, 0.8]))]
    problems = [(X, labels), (X[::-1], labels[::-1]), (X[:65], labels[:65], np.ones(65))]
    options = {"task": "classification", "method": FixedSize(8), **SETTINGS}
    many = train_many(problems, **options)
    assert not many.alone
    for (X, y, *_), one in zip(problems, many, strict=True):
        alone = train(X, y, **options)
        assert_equal(one, alone)
        np.testing.assert_allclose(one.predict_proba(X), alone.predict_proba(X), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32"])
def test_float32(dtype):
    problems = [tuple(a.astype(dtype) for a in table(seed, 60 + seed)) for seed in range(3)]
    options = REGRESSION | {"method": FixedSize(7), "C": np.geomspace(0.1, 10.0, 5)}
    for (X, y), one in zip(problems, train_many(problems, **options), strict=True):
        alone = train(X, y, **options)
        assert one.model.dtype == alone.model.dtype == dtype
        np.testing.assert_allclose(one.cv_error, alone.cv_error, rtol=1e-3)
        np.testing.assert_allclose(one.predict(X), alone.predict(X), rtol=0.1, atol=1e-3)


@pytest.mark.slow
def test_stated_folds_fixed_kernels_and_several_targets():
    X, y = table(3, 60)
    folds = folds_from_assignment(np.arange(60) % 5)
    targets = np.stack([y, y**2], axis=1)
    options = REGRESSION | {"method": FixedSize(6), "folds": folds}
    assert_equal(train_many([(X, y)], **options)[0], train(X, y, **options))
    options |= {"search": Profile(tune_kernel=False), "kernel": "matern32"}
    many = train_many([(X, targets)], **options)
    assert_equal(many[0], train(X, targets, **options))
    assert len(many[0].tuning.history) == 1
    assert not many.alone


def test_memory_limits_the_tables_in_a_call(monkeypatch):
    sizes, finished = [], module._finished

    def observed(program, arguments):
        sizes.append(len(arguments[2].present))
        return finished(program, arguments)

    monkeypatch.setattr(module, "_finished", observed)
    options = REGRESSION | {"method": FixedSize(9), "weights": WEIGHTS[:62]}
    problems = [table(seed, 62, 4) for seed in range(5)]
    one, stored = module._Run(problems[:1], "raise", options).prepared()[0].bytes_in_batch(64)
    limited = train_many(problems, **options, resources=Resources(memory=one + 4 * stored))
    assert sizes == [4, 4]
    for (X, y), one in zip(problems, limited, strict=True):
        assert_equal(one, train(X, y, **options))
    with pytest.raises(ValueError, match="problem 0: n_prototypes: 9 prototypes would take"):
        train_many(problems, **options, resources=Resources(memory=10_000))


def test_problems_for_no_batch_are_trained_alone(four_tables_in_a_call):
    X, y = table(4, 62, 4)
    options = REGRESSION | {"X": X, "y": y, "weights": WEIGHTS[:62], "method": FixedSize(9)}
    problems = {"batch": {}, "uniform": {"method": FixedSize(9, selection="uniform")}}
    many = train_many(problems, **options)
    assert list(many.alone) == ["uniform"]
    assert "selection='renyi'" in many.alone["uniform"]
    assert "1 alone (a batch needs" in repr(many)
    alone = train(**(options | problems["uniform"]))
    np.testing.assert_array_equal(many.by_name["uniform"].predict(X), alone.predict(X))
    problems = {
        "sizes": {"method": FixedSize((3, 5))},
        "time": {"resources": Resources(max_seconds=60.0)},
        "linear": {"kernel": "linear"},
        "progress": {"progress": lambda *_: None},
        "ranks": {"columns": "ranks"},
    }
    run = module._Run(problems, "raise", options)
    assert not run.prepared()
    assert list(run.alone) == list(problems)
    assert "max_seconds" in run.alone["time"]


def test_a_batch_calls_lapack_for_one_matrix_at_a_time():
    """Two calls for several matrices at a time could wait for each other for ever."""
    X, y = table(0)
    options = {"task": "classification", "multiclass": "one_versus_one", "method": FixedSize(9)}
    run = module._Run([(X, np.digitize(y, [-0.3, 0.3]))], "raise", options | SETTINGS)
    ((rows, _),) = module.batches(members := run.prepared())
    group = module._Group(list(members.values()), rows, None, None)
    method, code, tables = group._arguments(slice(0, 1))
    static = {"steps": group.members[0].common.steps, "mesh": None}
    lowered = jax.jit(lambda t: module.solve_batch(method, code, t, **static)).lower(tables)
    ranks = []
    for call in re.findall(r"(?:@lapack|stablehlo\.(?:cholesky|triangular)).*", lowered.as_text()):
        ranks.extend(shape.count("x") for shape in re.findall(r"tensor<((?:\d+x)*)f", call))
    assert ranks
    assert max(ranks) == 2


def test_a_checkpoint_holds_one_run(tmp_path):
    shared = Resources(checkpoint=tmp_path / "state")
    options = {"method": FixedSize(9, "uniform"), "search": Profile(2), **REGRESSION}
    with pytest.raises(ValueError, match=r"resources\.checkpoint: expected None"):
        train_many([table(0), table(1)], resources=shared, **options)
    X, y = table(0, 62, 4)
    many = train_many([{"X": X, "y": y, "resources": shared}], **options)
    assert "checkpoint" in many.alone[0]
    assert many[0].status == many[0].statuses["fit"]


def test_an_error_names_the_problem(four_tables_in_a_call):
    X, y = table(5, 62, 4)
    bad = X.copy()
    bad[3, 1] = np.nan
    problems = {"good": (X, y), "shop 7": (bad, y), "other": (X[::-1], y[::-1])}
    options = REGRESSION | {"weights": WEIGHTS[:62], "method": FixedSize(9)}
    with pytest.raises(ValueError, match=r"problem 'shop 7': X: .*finite"):
        train_many(problems, **options)
    many = train_many(problems, **options, on_error="keep")
    assert list(many.errors) == ["shop 7"]
    assert many.by_name["shop 7"] is None
    assert np.isnan(many.cv_errors).tolist() == [False, True, False]
    with pytest.raises(jsparse.NumericalError, match=r"1 of 3 \(first 1\)"):
        jsparse.check(many.statuses["fit"])
    assert_equal(many[0], train(X, y, **options))
    with pytest.raises(ValueError, match=r"problem 0: n_prototypes: expected .*rows \(62\)"):
        train_many([(X, y)], **REGRESSION, method=FixedSize(63))


def test_bad_lists_of_problems():
    for problems, message in (
        ([], "at least one"),
        ("abc", "a sequence or a mapping"),
        ([3], "arguments of train, got int for problem 0"),
        ([{"X": 1, "rows": 2}], r"got \['rows'\]"),
        ([{"y": 1}], r"expected \['X'\] in every problem"),
    ):
        with pytest.raises(ValueError, match=message):
            train_many(problems, **REGRESSION)
    with pytest.raises((ValueError, TypeError), match="on_error"):  # the types are checked too
        train_many([table(0)], **REGRESSION, on_error="ignore")


@pytest.mark.parametrize("n", [7, 1700])
def test_folds_of_padded_rows(n):
    """Folds equal those of `plain_folds` and `stratified_folds`, also where JAX sorts twice."""
    key, labels = jax.random.key(3), np.random.default_rng(n).integers(0, 3, n).astype(np.int32)
    for classes, expected in (
        (np.zeros(n, np.int32), plain_folds(key, n, 3)),
        (labels, stratified_folds(key, labels, 3)),
    ):
        padded = np.pad(classes, (0, 25), constant_values=-1)
        folds = jax.jit(folds_of_padded_rows, static_argnums=(2, 3))(
            key, padded, 3, shuffle_rounds(n)
        )
        width = expected.index.shape[1]
        np.testing.assert_array_equal(np.asarray(folds.valid)[:, :width], expected.valid)
        assert not np.asarray(folds.valid)[:, width:].any()
        rows = np.where(expected.valid, expected.index, 0)
        np.testing.assert_array_equal(np.asarray(folds.index)[:, :width], rows)


@pytest.mark.parametrize(("m", "weighted"), [(9, True), (40, False)])
def test_empty_slots_change_no_selection(m, weighted):
    rng = np.random.default_rng(m)
    X, labels = rng.standard_normal((64, 4)), rng.integers(0, 2, 64)
    w = rng.uniform(0.5, 2.0, 64) if weighted else None
    expected = renyi(jax.random.key(1), jnp.asarray(X), m, labels=labels, weights=w)
    draws = draws_of(encode(labels), m, 70, w, stratify=True)
    places = draws.places
    fill = (0, 48 - m)
    places = places._replace(
        of_prototype=np.pad(places.of_prototype, fill), rank=np.pad(places.rank, fill)
    )
    padded = np.pad(np.pad(X, ((0, 6), (0, 0)), mode="edge"), ((0, 0), (0, 2)))
    indices, status = select(
        jax.random.key(1), jnp.asarray(padded), jax.device_put(draws._replace(places=places)), 48,
        jnp.int32(m), jnp.int32(4),
    )  # fmt: skip
    np.testing.assert_array_equal(np.asarray(indices)[:m], expected.indices)
    assert np.all(np.asarray(indices)[m:] == -1)
    assert int(status) == int(expected.status)


@pytest.mark.slow
def test_200_problems_are_those_of_train():
    rng = np.random.default_rng(0)
    problems = []
    for i in range(200):
        X, y = table(i, int(rng.integers(100, 500)), 5)
        weights = {} if i % 3 else {"weights": rng.uniform(0.5, 2.0, len(X))}
        problems.append({"X": X, "y": y, "key": i, **weights})
    options = {"task": "regression", "method": FixedSize(30)}
    many = train_many(problems, **options)
    assert not many.alone
    for problem, one in zip(problems, many, strict=True):
        assert_equal(one, train(**problem, **options), tol=1e-4)


@contextlib.contextmanager
def dask_client():
    """Start two processes of dask, and close them at the end."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loky", "dask"])
def test_grid_search_on_several_processes(backend):
    X, y = table(0, 80)
    estimator = jsparse.estimators.FixedSizeLSSVMRegressor(cv=3, random_state=0)
    search = GridSearchCV(estimator, {"n_prototypes": [4, 12]}, cv=2)
    alone = search.fit(X, y).cv_results_["mean_test_score"]
    with contextlib.ExitStack() as stack:
        if backend == "dask":
            stack.enter_context(dask_client())
            stack.enter_context(joblib.parallel_config("dask"))
        parallel = search.set_params(n_jobs=2).fit(X, y).cv_results_["mean_test_score"]
    np.testing.assert_allclose(parallel, alone, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ray's open files
@pytest.mark.parametrize("scheduler", ["dask", "ray"])
def test_workers_of_a_cluster_train_parts_of_the_problems(scheduler):
    def trained_part(problems):
        many = train_many(problems, **REGRESSION, method=FixedSize(9), on_error="keep")
        return many.by_name, many.errors

    problems = {f"store {seed}": table(seed, 60 + seed) for seed in range(4)}
    problems["no rows"] = (np.zeros((0, 5)), np.zeros(0))
    parts = [dict(list(problems.items())[i::2]) for i in range(2)]
    if scheduler == "dask":
        with dask_client() as client:
            results = client.gather(client.map(trained_part, parts))
    else:
        ray = pytest.importorskip("ray")
        ray.init(num_cpus=2, include_dashboard=False)
        try:
            results = ray.get([ray.remote(trained_part).remote(part) for part in parts])
        finally:
            ray.shutdown()
    trained = {name: one for by_name, _ in results for name, one in by_name.items()}
    failed = {name: error for _, errors in results for name, error in errors.items()}
    assert list(failed) == ["no rows"]
    alone = train_many(problems, **REGRESSION, method=FixedSize(9), on_error="keep")
    for name in problems:
        if name not in failed:
            X = problems[name][0]
            values, expected = trained[name].predict(X), alone.by_name[name].predict(X)
            np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-3)
