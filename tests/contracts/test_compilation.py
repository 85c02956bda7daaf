"""Tables of similar size share compiled programs; padding changes no result."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import SLOW

import jsparse
from jsparse import estimators
from jsparse._arguments import as_key
from jsparse._blocks import capacity, rounded_down
from jsparse.compilation import _limit_instructions, count_compilations
from jsparse.prototypes import k_center, k_means, plug_in_bandwidth, renyi, stratified
from jsparse.prototypes.uniform import interleaved
from jsparse.search.strategies import Annealing, Profile


def table(n, d=3, seed=0, classes=2):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    score = X[:, 0] + X[:, 1] ** 2 + 0.3 * rng.standard_normal(n)
    return X, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes)), score


def test_capacities_are_few_and_cost_little():
    sizes = np.arange(1, 20_000)
    capacities = np.array([capacity(int(n)) for n in sizes])
    distinct = np.unique(capacities)
    assert (capacities >= sizes).all()
    assert ((capacities <= 1.07 * sizes) | (capacities - sizes < 16)).all()
    assert [capacity(int(n)) for n in distinct] == distinct.tolist()
    assert len(np.unique(capacities[1024:2048])) == 16
    assert all(rounded_down(int(n)) <= n for n in sizes)
    assert all(capacity(rounded_down(int(n))) == rounded_down(int(n)) for n in sizes[15:])


METHODS = {
    "fixed size": jsparse.FixedSize(10),
    "several sizes": jsparse.FixedSize((5, 10)),
    "uniform": jsparse.FixedSize(10, selection="uniform"),
    "scdp": jsparse.SCDP(max_prototypes=5, candidates=20),
    "scdp, means": jsparse.SCDP(max_prototypes=5, candidates=20, candidate_method="k_means"),
    "dual": jsparse.Dual(),
    "robust": jsparse.Robust(10, loss="huber"),
    "spsvm": jsparse.SpSVM(max_prototypes=4, candidates=20),
    "reduction": jsparse.SparseReduction(20),
    "reduction, dual": jsparse.SparseReduction(20, initialization="dual"),
    "ksp": jsparse.KSP(n_prototypes=(2, 4), candidates=20),
}
# Method, number of classes, and whether there are weights. One primal and one dual case are fast.
CASES = [
    ("fixed size", None, True),
    ("dual", 2, False),
    pytest.param("fixed size", 3, True, marks=SLOW),
    *[pytest.param(name, 2, False, marks=SLOW) for name in METHODS if name != "dual"],
    *[pytest.param(name, None, name == "scdp", marks=SLOW) for name in METHODS if name != "spsvm"],
    pytest.param("scdp", 3, True, marks=SLOW),
]


@pytest.mark.parametrize(("name", "classes", "weighted"), CASES)
def test_padding_changes_nothing_and_tables_of_similar_size_share_programs(
    name, classes, weighted, monkeypatch
):
    X, labels, score = table(53, classes=classes or 2)
    y = score if classes is None else labels

    def trained(n):
        return jsparse.train(
            X[:n], y[:n], task="regression" if classes is None else "classification", key=3,
            C=np.array([0.1, 10.0]) if METHODS[name].has_C else None,
            method=METHODS[name], folds=4, search=Profile(2),
            weights=np.arange(n) % 3 if weighted else None,
        )  # fmt: skip

    padded = trained(53)
    predictions = padded.predict(X)
    with count_compilations() as compiled:
        trained(51).predict(X[:40])
    assert compiled.programs == 0
    for module in ("training.tables", "validation.folds", "prototypes.renyi", "prediction"):
        monkeypatch.setattr(sys.modules[f"jsparse.{module}"], "capacity", lambda n: n)
    exact = trained(53)
    assert padded.C == exact.C
    np.testing.assert_array_equal(padded.point_rows, exact.point_rows)
    np.testing.assert_array_equal(padded.folds.index, exact.folds.index)
    np.testing.assert_allclose(padded.cv_error, exact.cv_error, rtol=1e-7)
    np.testing.assert_allclose(padded.out_of_fold, exact.out_of_fold, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(padded.model(X), exact.model(X), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(predictions, exact.predict(X), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(padded.model.expansion.scaling, exact.model.expansion.scaling)
    assert padded.model.size == exact.model.size
    assert len(padded.model.expansion.prototypes) <= 53


@pytest.mark.slow
def test_values_in_the_padding_change_nothing():
    X, labels, _ = table(53)
    X, spoilt = jnp.asarray(X), jnp.asarray(np.concatenate([X, np.full((11, 3), 1e6)]))
    is_row = jnp.asarray(np.concatenate([np.ones(53), np.zeros(11)]))
    plain, padded = plug_in_bandwidth(X), plug_in_bandwidth(spoilt, n_rows=53)
    np.testing.assert_allclose(plain.h, padded.h, rtol=1e-9)
    robust = {"spread": "robust", "method": "exact"}
    plain, padded = plug_in_bandwidth(X, **robust), plug_in_bandwidth(spoilt, n_rows=53, **robust)
    np.testing.assert_allclose(plain.h, padded.h, rtol=1e-9)
    for options in ({}, {"labels": labels}, {"weights": np.arange(53) % 4}):
        plain, padded = (renyi(1, X, 9, **options), renyi(1, spoilt, 9, n_rows=53, **options))
        np.testing.assert_array_equal(plain.indices, padded.indices)
        np.testing.assert_allclose(plain.entropy, padded.entropy, rtol=1e-9)
    plain, padded = k_center(1, X, 9), k_center(1, spoilt, 9, is_row)
    np.testing.assert_array_equal(plain.indices, padded.indices)
    plain, padded = k_means(1, X, 9), k_means(1, spoilt, 9, is_row)
    np.testing.assert_allclose(plain.centres, padded.centres, rtol=1e-9)


def test_folds_are_equal_inside_and_outside_of_jit():
    # Outside of jit, NumPy assigns rows to folds; inside, JAX does.
    labels = np.arange(1700) % 3
    for n in (20, 1700):
        host = jsparse.plain_folds(5, n, 4)
        traced = jax.jit(lambda key, n=n: jsparse.plain_folds(key, n, 4))(jax.random.key(5))
        np.testing.assert_array_equal(host.index, traced.index)
        np.testing.assert_array_equal(host.valid, traced.valid)
    host = jsparse.stratified_folds(5, labels, 4)
    traced = jax.jit(lambda key: jsparse.stratified_folds(key, labels, 4))(jax.random.key(5))
    np.testing.assert_array_equal(host.index, traced.index)


@pytest.mark.slow
def test_an_estimator_compiles_nothing_for_another_number_of_rows():
    estimator = estimators.KernelSubspacePursuitRegressor(
        n_prototypes=(2, 4), candidates=12, cv=3, random_state=0
    )

    def run(n):
        X, _, score = table(n, seed=n)
        estimator.fit(X, score).predict(X[: n - 20])

    run(60)
    with count_compilations() as compiled:
        run(59)
        run(63)
    assert compiled.programs == 0


def test_warming_up_compiles_what_a_run_needs(capsys):
    # That other selections share their programs is tested above.
    method = jsparse.FixedSize(6, selection="uniform")
    options = {"task": "classification", "folds": 3, "method": method}
    first = jsparse.warm_up(75, 2, classes=3, C=np.array([1.0, 9.0]), **options)
    assert first.programs > 0
    assert "ready for about 75 rows" in capsys.readouterr().err
    X, labels, _ = table(79, d=2, classes=3)
    with count_compilations() as compiled:
        jsparse.train(X, labels, key=1, C=np.array([2.0, 5.0]), **options).predict(X)
    assert compiled.programs == 0
    with pytest.raises(ValueError, match="n: expected"):
        jsparse.warm_up(0, 2, task="regression")


@pytest.mark.slow
def test_warming_up_for_another_search(capsys):
    options = {"task": "regression", "folds": 3, "method": jsparse.FixedSize(5)}
    search = Annealing(6)
    jsparse.warm_up(40, 2, search=search, verbose=False, **options)
    assert capsys.readouterr().err == ""
    X, _, score = table(43, d=2)
    with count_compilations() as compiled:
        jsparse.train(X, score, key=1, search=search, **options)
    assert compiled.programs == 0


def test_short_functions_compile_few_programs():
    # No other test has these sizes, so no program for them is in the cache.
    X, labels, score = table(83, d=4, classes=5)
    X, score = X.astype(np.float32), score.astype(np.float32)
    jax.block_until_ready(jax.random.bits(as_key(1)))

    def programs(function):
        with count_compilations() as compiled:
            result = function()
        return compiled.programs, result

    # The bandwidths, the first working set and the swaps.
    rows = jax.device_put(X)
    assert programs(lambda: renyi(1, rows, 11, labels=labels))[0] <= 3
    assert programs(lambda: stratified(1, labels, 11))[0] <= 1
    assert programs(lambda: interleaved(1, 13))[0] <= 1
    code = jsparse.output_code("one_versus_rest", 13)
    assert programs(lambda: code.astype(np.dtype(np.float32)))[0] == 0
    features = jsparse.Nystroem(jsparse.RBF(np.float32(1.0)), jax.device_put(X[:11]))
    batches = [(X[:43], score[:43]), (X[40:], score[40:])]
    # One program sums a batch, one adds these sums to the earlier ones.
    count, sums = programs(lambda: jsparse.accumulate_batches(features, batches))
    assert count <= 2
    assert programs(lambda: sums - sums)[0] <= 1


SCRIPT = """
import jsparse, numpy as np, sys
folder = jsparse.enable_compilation_cache(*sys.argv[1:])
from jsparse.compilation import _limit_instructions, count_compilations
X = np.random.default_rng(0).standard_normal((40, 2)).astype("f")
with count_compilations() as compiled:
    jsparse.train(X, X[:, 0], task="regression", key=0, method=jsparse.FixedSize(5), folds=3)
print(folder, compiled.programs, compiled.from_disk)
"""


def run(arguments, **changes):
    """Return what a fresh process prints on both streams, with XLA's default flags."""
    overridden = ("TF_CPP_MIN_LOG_LEVEL", "XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
    variables = {k: v for k, v in os.environ.items() if k not in overridden} | changes
    command = [sys.executable, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    return process.stdout, process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("folder_from", ["argument", "environment", "default"])
def test_programs_are_kept_on_the_disk_and_read_in_silence(tmp_path, folder_from):
    folder, arguments, variables = tmp_path / "cache", ["-c", SCRIPT], {}
    if folder_from == "argument":
        arguments.append(str(folder))
    if folder_from == "environment":
        variables["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    if folder_from == "default":
        variables["XDG_CACHE_HOME"], folder = str(tmp_path), tmp_path / "jsparse" / "xla"
    counts = []
    for _ in range(2):
        printed, errors = run(arguments, **variables)
        assert errors == ""
        name, *numbers = printed.split()
        assert name == str(folder)
        counts.append([int(number) for number in numbers])
    (programs, from_disk), (programs_second, from_disk_second) = counts
    assert 5 < programs == programs_second <= 12
    assert from_disk < programs
    assert from_disk_second == programs_second


@pytest.mark.slow
def test_the_command_line_reads_programs_in_silence_but_shows_errors_of_xla(tmp_path):
    table, folder = tmp_path / "t.csv", str(tmp_path / "cache")
    table.write_text("a,t\n" + "\n".join(f"{i % 7},{i % 5}" for i in range(40)))
    fit = ["-m", "jsparse", "fit", str(table), "--target", "t", "--task", "regression", "--quiet"]
    fit += ["--prototypes", "5", "--evaluations", "1", "--out", str(tmp_path / "model")]
    for _ in range(2):
        assert run(fit, JAX_COMPILATION_CACHE_DIR=folder)[1] == ""
        assert any("-cache" in name for name in os.listdir(folder))
    flags = "--xla_dump_to=/dev/null/dump"  # a folder that cannot be made
    _, errors = run(fit, JAX_COMPILATION_CACHE_DIR=folder, XLA_FLAGS=flags)
    assert "Could not create directory: /dev/null/dump" in errors


def test_xla_flags_of_the_caller_stay(monkeypatch):
    monkeypatch.setattr("jsparse.compilation.JAXLIB", "0.10.1")
    monkeypatch.setattr("jsparse.compilation.jax_started", lambda: False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    isa = "--xla_cpu_max_isa=AVX2"
    settings = {"": isa, "--xla_a=1": f"--xla_a=1 {isa}", "--xla_cpu_max_isa=AVX": None}
    for before, after in settings.items():
        monkeypatch.setenv("XLA_FLAGS", before)
        _limit_instructions()
        assert os.environ["XLA_FLAGS"] == (before if after is None else after)
    monkeypatch.setenv("XLA_FLAGS", "")
    for name, value in {"JAXLIB": "0.11.0", "jax_started": lambda: True}.items():
        with monkeypatch.context() as patch:
            patch.setattr(f"jsparse.compilation.{name}", value)
            _limit_instructions()
            assert os.environ["XLA_FLAGS"] == ""
