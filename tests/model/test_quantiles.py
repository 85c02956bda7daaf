"""Models of quantiles: training, sorted predictions, intervals, files, estimator, command line."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.metrics import mean_pinball_loss
from test_model import NUMBERS, QUICK, ROWS

from jsparse import Robust, load, monitoring, train
from jsparse.cli.main import main
from jsparse.cli.options import command_line, method_of
from jsparse.compilation import count_compilations
from jsparse.data.encoding import fit_schema
from jsparse.estimators import RobustLSSVMRegressor

LEVELS = (0.1, 0.3, 0.5, 0.9)
NEW = ROWS[:40] + 0.3 * np.std(ROWS, axis=0)
TARGETS = 5 + 3 * NUMBERS


def learn(quantile=LEVELS, targets=TARGETS, **options):
    options = {**QUICK, "C": np.array([300.0]), **options}
    method = Robust(12, loss="quantile", quantile=quantile, selection="uniform")
    with jax.enable_x64(True):
        return train(ROWS, targets, task="regression", method=method, **options)


@pytest.fixture(scope="module")
def trained():
    return learn(out_of_fold="machines")


def test_quantiles_never_cross(trained):
    model = trained.model
    raw = np.asarray(model.expansion(NEW))
    assert (np.diff(raw, axis=1) < 0).any()  # the machines' values do cross
    values = model.predict(NEW)
    np.testing.assert_allclose(values, np.sort(raw, axis=1), rtol=1e-12)
    np.testing.assert_allclose(model.predict(NEW[3]), values[3], rtol=1e-12)
    np.testing.assert_allclose(model(NEW), values, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(model.predict)(jnp.asarray(NEW)), values, rtol=1e-12)
    np.testing.assert_array_equal(trained.out_of_fold, np.sort(trained.out_of_fold, axis=1))
    assert trained.out_of_fold.shape == (len(ROWS), 4)
    assert model.quantiles == LEVELS
    assert "quantiles: 0.1, 0.3, 0.5, 0.9" in repr(model)


def test_the_error_is_the_mean_pinball_loss_of_held_out_rows(trained):
    losses = [
        mean_pinball_loss(TARGETS, f, alpha=q)
        for f, q in zip(trained.out_of_fold.T, LEVELS, strict=True)
    ]
    assert trained.metric == trained.criterion == "pinball"
    np.testing.assert_allclose(trained.cv_error, np.mean(losses), rtol=1e-6)
    assert "mean pinball loss" in repr(trained)


def test_intervals_are_those_of_conformalised_quantile_regression(trained):
    calibrated = trained.model.calibrated(NEW, TARGETS[:40])
    f = calibrated.predict(NEW)
    errors = np.sort(np.maximum(f[:, 0] - TARGETS[:40], TARGETS[:40] - f[:, -1]))
    values = trained.predict(ROWS)
    for coverage in (0.1, 0.5, 0.9):
        error = errors[int(np.ceil(coverage * 41 - 1e-9)) - 1]
        expected = np.sort(np.stack([values[:, 0] - error, values[:, -1] + error], axis=1), axis=1)
        ends = calibrated.interval(ROWS, coverage)
        np.testing.assert_allclose(ends, expected, rtol=1e-10)
    assert errors[0] < 0  # a small coverage narrows the band
    with pytest.raises(ValueError, match=r"y: expected numbers of shape \(40,\)"):
        trained.model.calibrated(NEW, f)


def test_intervals_by_the_machines_of_the_folds(trained):
    conformal, n = trained.model.conformal, len(ROWS)
    f = trained.out_of_fold
    errors = np.maximum(f[:, 0] - TARGETS, TARGETS - f[:, -1])
    np.testing.assert_allclose(np.sort(conformal.errors), np.sort(errors), atol=1e-9)
    scaled = trained.model.expansion.scaling.apply(jnp.asarray(NEW))
    machines = np.asarray(conformal.machines(scaled)).reshape(40, -1, 4)
    machines = np.sort(machines, axis=2)[:, np.asarray(conformal.fold)]
    low = np.sort(machines[..., 0] - conformal.errors[None], axis=1)
    high = np.sort(machines[..., -1] + conformal.errors[None], axis=1)
    rank = int(np.ceil(0.8 * (n + 1) - 1e-9))
    expected = np.stack([low[:, n - rank], high[:, rank - 1]], axis=1)
    np.testing.assert_allclose(trained.interval(NEW, 0.8), expected, rtol=1e-9)


def test_errors_of_rows_are_twice_the_mean_pinball_loss(trained):
    values, errors = trained.predict(ROWS), monitoring.row_errors(trained.model, ROWS, TARGETS)
    losses = [mean_pinball_loss(TARGETS, f, alpha=q) for f, q in zip(values.T, LEVELS, strict=True)]
    assert errors.shape == (len(ROWS),)
    np.testing.assert_allclose(errors.mean(), 2 * np.mean(losses))


def test_training_for_other_quantiles_compiles_nothing_and_a_file_holds_them(trained, tmp_path):
    with count_compilations() as counted:
        later = learn((0.05, 0.2, 0.5, 0.95), out_of_fold="machines")
    assert counted.programs == 0
    assert later.model.quantiles == (0.05, 0.2, 0.5, 0.95)
    later.model.save(tmp_path / "model")
    with jax.enable_x64(True):
        again = load(tmp_path / "model")
    assert again.quantiles == later.model.quantiles
    np.testing.assert_array_equal(again.predict(NEW), later.predict(NEW))


def test_weights_and_units_do_as_for_one_target(trained):
    weights = np.ones(len(ROWS))
    weights[::7] = 0
    weighted = learn(weights=weights)
    np.testing.assert_array_equal(np.isnan(weighted.out_of_fold[:, 0]), weights == 0)
    large = learn(targets=1e6 * TARGETS - 7e9)
    np.testing.assert_allclose((large.predict(NEW) + 7e9) / 1e6, trained.predict(NEW), atol=1e-4)
    np.testing.assert_allclose(large.cv_error, 1e6 * trained.cv_error, rtol=1e-6)


@pytest.mark.slow
def test_the_estimator():
    options = {"lengthscale": 1.5, "C": 5.0, "cv": 3, "random_state": 0}
    model = RobustLSSVMRegressor(12, loss="quantile", quantile=[0.2, 0.8], **options)
    model.fit(ROWS, TARGETS)
    values = model.predict(ROWS)
    assert values.shape == model.oob_prediction_.shape == (len(ROWS), 2)
    assert (values[:, 0] <= values[:, 1]).all()
    assert model.set_params(quantile=0.9).fit(ROWS, TARGETS).predict(ROWS).shape == (len(ROWS),)
    with pytest.raises(ValueError, match="quantile: expected None with loss='huber'"):
        model.set_params(loss="huber").fit(ROWS, TARGETS)


def test_the_command_line_predicts_quantiles_and_refuses_wrong_ones(trained, tmp_path, capsys):
    table = pd.DataFrame({**{f"x{i}": column for i, column in enumerate(ROWS.T)}, "y": TARGETS})
    table.to_csv(tmp_path / "rows.csv", index=False)
    schema = fit_schema(pa.Table.from_pandas(table), "y")
    file, path, out = (str(tmp_path / name) for name in ("rows.csv", "model", "out.csv"))
    model = dataclasses.replace(trained.model, columns=schema)
    model.save(path)
    assert main(["predict", path, file, "--out", out, "--interval", "0.8"]) == 0
    assert "mean pinball loss on 80 rows" in capsys.readouterr().err
    with open(out) as lines:
        assert next(lines).strip() == '"y 0.1","y 0.3","y 0.5","y 0.9","y low","y high"'
    written = np.loadtxt(out, delimiter=",", skiprows=1)
    np.testing.assert_allclose(written[:, :4], model.predict(ROWS), rtol=1e-6)
    parser = command_line()
    options = parser.parse_args(["fit", file, *FIT, "--quantile", "0.1,0.9"])
    assert tuple(method_of(options).quantile) == (0.1, 0.9)
    for wrong in ("1.5", "0.9,0.1", "half"):
        assert main(["fit", file, *FIT, "--quantile", wrong]) == 2
        assert "expected a share between 0 and 1, or increasing ones" in capsys.readouterr().err


FIT = (
    "--target", "y", "--method", "robust", "--prototypes", "8", "--loss", "quantile",
    "--folds", "2", "--evaluations", "1",
)  # fmt: skip


@pytest.mark.slow
def test_the_command_line_fits_quantiles(tmp_path):
    table = pd.DataFrame({**{f"x{i}": column for i, column in enumerate(ROWS.T)}, "y": TARGETS})
    table.to_csv(tmp_path / "rows.csv", index=False)
    out = ["--out", str(tmp_path / "model"), "--quantile", "0.1,0.9"]
    assert main(["fit", str(tmp_path / "rows.csv"), *FIT, *out]) == 0
    assert load(tmp_path / "model", dtype="float64").quantiles == (0.1, 0.9)
