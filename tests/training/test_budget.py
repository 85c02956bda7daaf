"""The number of prototypes that a budget of bytes or seconds allows."""

import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest

import jsparse
from jsparse import SCDP, Budget, BudgetError, Dual, FixedSize, Profile
from jsparse.cli.main import main
from jsparse.kernels import RBF, Mixture
from jsparse.training import budget as budgets

RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 4))
Y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * RNG.standard_normal(120)
OPTIONS = {"search": Profile(max_evaluations=2), "key": 0}


def regression(method, budget):
    return jsparse.train(X, Y, task="regression", method=method, budget=budget, **OPTIONS)


@pytest.fixture(scope="module")
def free():
    """Return a machine of no budget."""
    with jax.enable_x64(True):
        return regression(FixedSize(60, "uniform"), None)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "method",
    [
        FixedSize(60, "uniform"),
        pytest.param(FixedSize((20, 60), "uniform"), marks=SLOW),
        pytest.param(SCDP(max_prototypes=40), marks=SLOW),
    ],
)
def test_the_saved_file_is_within_its_bytes_and_one_more_prototype_is_not(method, tmp_path):
    trained = regression(method, Budget(bytes=3000))
    trained.save(tmp_path / "model")
    size = (tmp_path / "model").stat().st_size
    assert trained.costs == {"bytes": size}
    assert size <= 3000
    if isinstance(method, FixedSize):  # the largest that fits, but for some bytes of the header
        assert size > 3000 - 2 * 5 * 8 - 64
    np.testing.assert_array_equal(jsparse.load(tmp_path / "model").predict(X), trained.predict(X))
    assert f"costs       {size} bytes" in str(trained)
    assert trained.status == trained.statuses["fit"]


def test_a_machine_that_fits_is_kept(free):
    trained = regression(FixedSize(60, "uniform"), Budget(bytes=10**6))
    assert free.costs is None
    np.testing.assert_array_equal(free.predict(X), trained.predict(X))


@pytest.mark.parametrize("serving", ["numpy", "c"])
def test_the_latency_decides_by_what_the_clock_says(monkeypatch, serving):
    servings = []

    def seconds(model, by):
        servings.append(by)
        return 1e-5 + 1e-6 * model.size

    monkeypatch.setattr(budgets, "seconds_of_a_row", seconds)
    latency = 2.5e-5  # as many prototypes as in 3000 bytes, so the same programs
    trained = regression(FixedSize(60, "uniform"), Budget(latency=latency, serving=serving))
    assert trained.model.size == int(1 + (0.9 * latency - 1.1e-5) / 1e-6)
    assert trained.costs == {"latency": 1e-5 + 1e-6 * trained.model.size}
    assert set(servings) == {serving}
    with pytest.raises(BudgetError, match=r"latency: expected at least 1.1e-05 s, which one proto"):
        regression(FixedSize(60, "uniform"), Budget(latency=1.05e-5))


@pytest.mark.parametrize("kernels", [1, 2])
def test_a_row_takes_time_by_numpy_and_by_c(free, kernels):
    model = free.model
    if kernels == 2:
        mixture = Mixture((RBF(1.0), RBF(3.0)), np.arange(60) % 2)
        model = replace(model, expansion=replace(model.expansion, kernel=mixture))
    for serving in ("numpy", "c") if shutil.which("cc") else ("numpy",):
        for m in (1, model.size):
            few = budgets._first_prototypes(model, m)
            assert 1e-9 < budgets.seconds_of_a_row(few, serving) < 10


@pytest.mark.slow
def test_without_a_method_the_machine_is_distilled_to_the_budget():
    trained = jsparse.train(
        X, Y, task="regression", key=0, columns="standard", kernel="matern32",
        search=jsparse.Recursive(max_evaluations=4), budget=Budget(bytes=4000),
    )  # fmt: skip
    assert type(trained.method) is SCDP
    assert trained.costs["bytes"] <= 4000
    assert trained.preset == "balanced"
    assert trained.model.path is None


@pytest.mark.parametrize(
    ("method", "budget", "message"),
    [
        (
            FixedSize(60, "uniform"),
            Budget(bytes=300),
            "bytes: expected at least [0-9]+, which the file",
        ),
        (Dual(), Budget(bytes=3000), "method: expected a method whose number of prototypes"),
    ],
)  # fmt: skip
def test_a_budget_that_nothing_meets_says_what_would(method, budget, message):
    with pytest.raises(ValueError, match=message):
        regression(method, budget)


def test_budgets_that_make_no_sense_are_refused(monkeypatch):
    for settings, message in (
        ({}, "budget: expected bytes, latency or both, got neither"),
        ({"bytes": 0}, "bytes: expected a whole number"),
        ({"latency": 0.0}, "latency: expected a"),
    ):
        with pytest.raises(ValueError, match=message):
            Budget(**settings)
    monkeypatch.setattr(budgets.shutil, "which", lambda name: None)
    with pytest.raises(BudgetError, match="serving: expected a C compiler"):
        regression(FixedSize(60, "uniform"), Budget(latency=1.0, serving="c"))


def test_the_command_line_takes_a_budget(tmp_path, capsys):
    table, out = tmp_path / "rows.csv", tmp_path / "model"
    rows = [",".join(f"{v:.6f}" for v in (*x, y)) for x, y in zip(X, Y, strict=True)]
    table.write_text("\n".join(["a,b,c,d,y", *rows]))
    fit = ["fit", str(table), "--target", "y", "--out", str(out), "--quiet", "--evaluations", "2"]
    method = ["--method", "fixed-size", "--prototypes", "60"]
    assert main([*fit, *method, "--max-bytes", "6000"]) == 0
    assert out.stat().st_size <= 6000
    assert f"costs           {out.stat().st_size} bytes" in capsys.readouterr().out
