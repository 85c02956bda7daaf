"""Distilled machines: few prototypes of a large machine, with its kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jsparse
from jsparse.kernels import RBF, Linear, Mixture


def rows(n=160, dtype=np.float64):
    rng = np.random.default_rng(0)
    X = 10 + 3 * rng.standard_normal((n, 3))
    y = np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.05 * rng.standard_normal(n)
    return X.astype(dtype), y.astype(dtype)


def trained(X, y, m=60, task="regression", **options):
    return jsparse.train(
        X, y, task=task, key=0, method=jsparse.FixedSize(m, "pivoted_cholesky"),
        search=jsparse.Profile(6), **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def numbers():
    """Return rows in float32, and a machine of the first 120."""
    X, y = rows(dtype=np.float32)
    with jax.enable_x64(False):
        return X, y, trained(X[:120], y[:120])


def error_of_last(machine, X, y):
    return np.mean((machine.predict(X[120:]) - y[120:]) ** 2)


def test_few_of_the_prototypes_do_nearly_as_well(numbers, tmp_path):
    X, y, large = numbers
    large.model.save(tmp_path / "large")
    method = jsparse.SCDP(max_prototypes=40)
    loaded = jsparse.load(tmp_path / "large")
    small = jsparse.distil(loaded, X[:120], y[:120], key=1, method=method, folds=5)
    error = error_of_last(small, X, y)
    assert small.size <= 40
    assert error < 1.2 * error_of_last(large, X, y)
    assert small.model.dtype == np.float64
    assert pytest.approx(large.C) == small.C
    assert small.large_error == large.cv_error
    assert f"distilled   from a machine with error {large.cv_error:.4g}\n" in repr(small)
    np.testing.assert_allclose(small.kernel.lengthscale, large.kernel.lengthscale, rtol=1e-6)
    # Its prototypes are some of the large machine's, and the curve has every size.
    Z, small_Z = (
        np.asarray(t.expansion.scaling.undo(t.expansion.prototypes)) for t in (large, small)
    )
    distances = np.abs(small_Z[:, None] - Z[None]).max(axis=2).min(axis=1)
    assert distances.max() < 1e-5
    assert len(small.curve.errors) == 40
    assert error_of_last(small.at(5), X, y) > 2 * error
    assert small.at(5).about["cv_error"] == small.curve.errors[4] > small.cv_error


@pytest.mark.slow
def test_n_prototypes_limits_the_path_of_scdp(numbers, as_users_call):
    X, y, large = numbers
    X, y = X[:120], y[:120]
    by_number, by_method = (
        jsparse.distil(large, X, y, key=1, folds=5, **stated)
        for stated in ({"n_prototypes": 12}, {"method": jsparse.SCDP(max_prototypes=12)})
    )
    assert by_number.curve.sizes.tolist() == list(range(1, 13))
    np.testing.assert_array_equal(by_number.predict(X), by_method.predict(X))
    # A number above the size of the large machine, or above the rows of a training split, is no
    # error.
    for machine, n, folds, largest in ((large, 120, 5, 60), (large.model, 30, 3, 20)):
        small = jsparse.distil(machine, X[:n], y[:n], key=1, n_prototypes=500, folds=folds)
        assert small.curve.sizes[-1] == largest
        assert type(small.method) is jsparse.SCDP
    with pytest.raises(ValueError, match=r"n_prototypes: expected None with a method.* got 12"):
        jsparse.distil(large, X, y, key=1, n_prototypes=12, method=jsparse.SCDP())
    with pytest.raises(ValueError, match="n_prototypes: expected a whole number of at least 1"):
        jsparse.distil(large, X, y, key=1, n_prototypes=0)


@pytest.fixture(scope="module")
def table():
    X, _ = rows(90)
    place = np.digitize(X[:, 0], [8.5, 11.5])
    return pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=np.array(["x", "y", "z"])[place])


@pytest.fixture(scope="module")
def large(table):
    """Return a machine with a lengthscale for each column of the table."""
    with jax.enable_x64(True):
        return jsparse.train(
            table, "kind", task="classification", key=0, method=jsparse.FixedSize(30),
            kernel=RBF(np.array([1.0, 20.0, 30.0])), search=jsparse.Profile(tune_kernel=False),
        )  # fmt: skip


def of_classes(large, table, **options):
    small = jsparse.distil(large, table, "kind", key=0, folds=3, **options)
    assert small.model.size <= 30
    assert small.classes.tolist() == ["x", "y", "z"]
    right = (small.predict(table) == table["kind"].to_numpy()).mean()
    assert right > (large.predict(table) == table["kind"].to_numpy()).mean() - 0.1
    assert small.model.columns is not None
    return small


@pytest.mark.slow
def test_classes_and_tables(large, table):
    method = jsparse.SCDP(max_prototypes=12)
    small = of_classes(large, table, method=method)
    # The kernel has a lengthscale for each column, whatever their order in the table.
    options = {"key": 0, "method": method, "folds": 3}
    again = jsparse.distil(large, table[["kind", "c", "a", "b"]], "kind", **options)
    np.testing.assert_array_equal(again.decision_function(table), small.decision_function(table))
    with pytest.raises(
        ValueError, match=r"columns \['a', 'b', 'c'\], of which \['b'\] are missing"
    ):
        jsparse.distil(large, table.drop(columns="b"), "kind", **options)
    with pytest.raises(ValueError, match="expected the columns of the large machine, a, b, c, got"):
        jsparse.distil(large, table.assign(d=1.0), "kind", **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [jsparse.SparseReduction(n_prototypes=1), jsparse.KSP(n_prototypes=[6, 12])]
)
def test_classes_by_other_methods(table, method):
    large = trained(table, "kind", 30, "classification", out_of_fold=False)
    of_classes(large, table, method=method)


def test_what_cannot_be_distilled_is_refused(as_users_call):
    X, y = rows(60)

    def model(kernel):
        return jsparse.Model(
            jsparse.KernelExpansion(kernel, jnp.asarray(X[:10]), jnp.ones(10), jnp.zeros(()))
        )

    large = model(RBF(1.0))
    with pytest.raises(ValueError, match="method: expected one that selects out of candidates"):
        jsparse.distil(large, X, y, key=0, method=jsparse.Dual())
    with pytest.raises(ValueError, match="method: expected a method"):
        jsparse.distil(large, X, y, key=0, method="scdp")
    with pytest.raises(ValueError, match="trained: expected a result of train"):
        jsparse.distil(3, X, y, key=0)
    with pytest.raises(ValueError, match="search: expected none"):
        jsparse.distil(large, X, y, key=0, search=jsparse.Profile())
    with pytest.raises(ValueError, match=r"candidates: expected shape \(M, 2\), got \(10, 3\)"):
        jsparse.distil(large, X[:, :2], y, key=0)
    several = model(Mixture((RBF(1.0), Linear()), np.arange(10) % 2))
    with pytest.raises(ValueError, match="trained: expected a machine of one kernel, got one of 2"):
        jsparse.distil(several, X, y, key=0)


def test_moved_prototypes_imitate_the_large_machine_better(numbers, as_users_call):
    X, y, large = numbers
    weights = np.append(np.ones(120), np.zeros(40))
    options = {"key": 1, "method": jsparse.SCDP(max_prototypes=8), "weights": weights, "folds": 5}
    selected, moved = (
        jsparse.distil(large, X, y, move_prototypes=move, **options) for move in (False, True)
    )
    assert moved.model.size <= 8
    apart = [np.mean((m.predict(X) - large.predict(X))[120:] ** 2) for m in (moved, selected)]
    assert apart[0] < 0.7 * apart[1]
    assert moved.curve is None
    assert moved.seconds["moving"] > 0
    # The error is of the fifth of the rows that the prototypes have not seen.
    held_out = ~np.isnan(moved.out_of_fold)
    assert held_out.sum() == 24
    squares = (moved.out_of_fold - y)[held_out] ** 2
    assert moved.cv_error == pytest.approx(np.mean(squares), rel=1e-4)


@pytest.mark.slow
def test_moved_prototypes_of_classes_and_tables(large, table):
    method = jsparse.SCDP(max_prototypes=6)
    moved = of_classes(large, table, method=method, move_prototypes=True)
    assert moved.model.size <= 6
