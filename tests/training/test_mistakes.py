"""Frequent mistakes get a message with the expected and the given value."""

import jax
import numpy as np
import pytest

from jsparse import KSP, FixedSize, Profile, train
from jsparse._status import PrecisionWarning
from jsparse.cli.main import main
from jsparse.data.streams import ArrayStream
from jsparse.machines import dual, fixed_size

X = np.random.default_rng(0).uniform(size=(60, 2)).astype(np.float32)
y = np.sin(6 * X[:, 0]) + X[:, 1]
QUICK = {"task": "regression", "key": 0, "method": FixedSize(5), "search": Profile(2)}


@pytest.mark.usefixtures("as_users_call")
def test_a_wrong_argument_is_named():
    for changed, message in (
        ({"method": "scdpp"}, r"such as jsparse.SCDP\(\), got 'scdpp'"),
        ({"method": "RVM"}, r"such as jsparse.RVM\(\), got 'RVM'"),
        ({"method": "spsvm"}, r"such as jsparse.SpSVM\(\), got 'spsvm'"),
        ({"method": "xyz"}, r"such as jsparse.FixedSize\(\), got 'xyz'"),
        ({"method": FixedSize}, r"such as jsparse.FixedSize\(\), got FixedSize"),
        ({"method": 3}, r"such as jsparse.FixedSize\(\), got 3"),
        ({"budget": 1000}, r"such as Budget\(bytes=9000\), got 1000"),
        ({"search": Profile(2, tune_kernel="no")}, "tune_kernel: expected True or False, got 'no'"),
        ({"method": FixedSize(5, stop_when_flat=1)}, "stop_when_flat: expected True or False"),
        ({"method": KSP(5, formed="yes")}, "formed: expected True or False, got 'yes'"),
        ({"y": "price"}, "got 'price'; only a table has columns"),
        ({"X": X[:1], "y": y[:1]}, "expected at least two rows of positive weight, got 1"),
        (
            {"y": np.round(20 * y) / 20, "task": "classification"},
            r"\d+ different values in 60 rows",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            train(**{"X": X, "y": y, **QUICK, **changed})


@pytest.mark.parametrize("dtype", [int, float])
def test_whole_classes_may_be_many(dtype):
    labels = (np.arange(60) % 40).astype(dtype)
    with pytest.raises(ValueError, match="folds"):  # and not the number of classes
        train(X, labels, **{**QUICK, "task": "classification"}, folds=61)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("fit", [lambda: fixed_size.fit("rbf", X[:5], 10.0, X, y),
                                 lambda: dual.fit("rbf", 10.0, X, y)])  # fmt: skip
def test_a_pure_fit_takes_no_name_of_a_kernel(fit):
    with pytest.raises(ValueError, match=r"kernel: expected a kernel, such as .*, got 'rbf'"):
        fit()


def test_values_that_float32_rounds_to_few_steps_are_named():
    wide, days = X.astype(float), 2460000.5 + y.astype(float)
    wide[:, 1] += 1.7e9
    with jax.enable_x64(False):
        with pytest.warns(PrecisionWarning, match=r"y: float32 .* steps of 0.25"):
            train(X, days, **QUICK)
        with pytest.warns(PrecisionWarning, match=r"column 1 of X: float32 .* steps of 1.3e\+02"):
            train(wide, y, **QUICK)
        with pytest.warns(PrecisionWarning, match=r"column 1 of X: float32 .* steps of 1.3e\+02"):
            train(ArrayStream(wide, y), **QUICK)
        both = wide + np.array([1.7e9, 0])
        with pytest.warns(PrecisionWarning, match=r"column 0 of X \(and 1 more\)"):
            train(both, y, **QUICK)


@pytest.mark.usefixtures("cache_folder", "jax_in_float32")
@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_the_command_line_names_rounded_columns(tmp_path, stream, capsys):
    file = tmp_path / "rows.csv"
    table = np.column_stack([1.7e9 + X[:, 0].astype(float), X[:, 1], y])
    np.savetxt(file, table, delimiter=",", header="time,x,y", comments="", fmt="%.6f")
    options = ["--method", "fixed-size", "--prototypes", "5", "--evaluations", "2", "--quiet"]
    options += ["--target", "y", "--precision", "float32", "--out", str(tmp_path / "model")]
    with pytest.warns(PrecisionWarning, match="column time of X: float32 .* in steps of"):
        assert main(["fit", str(file), *options, *stream]) == 0
    table[7, 1] = 1e39
    np.savetxt(file, table, delimiter=",", header="time,x,y", comments="", fmt="%.6g")
    assert main(["fit", str(file), *options, *stream]) == 2
    assert "column 'x': expected numbers that fit float32, got 1e+39" in capsys.readouterr().err


@pytest.mark.parametrize(
    "column",
    [
        94102 + np.arange(60) % 9,  # postcodes
        1_000_000 + np.arange(60) % 2,
        np.where(np.arange(60) == 0, 0, 1.7e9 + 300 * np.arange(60)),  # row 0 has weight 0
        np.arange(60) % 2 == 0,
        np.full(60, 1e9),
        np.array([1e30, *np.arange(59)]),
    ],
)
def test_columns_that_keep_their_digits_give_no_warning(column, recwarn):
    with jax.enable_x64(False):
        inputs = np.column_stack([X[:, 0].astype(float), column])
        if column.dtype == float and column[0] == 0:
            with pytest.warns(PrecisionWarning, match="column 1 of X"):
                train(inputs, y, weights=np.minimum(np.arange(60), 1.0), **QUICK)
            return
        train(inputs, y, **QUICK)
    assert not [w for w in recwarn if issubclass(w.category, PrecisionWarning)]


def test_a_mean_of_a_thousand_deviations_gives_no_warning(recwarn):
    with jax.enable_x64(False):
        train(X + np.float32(300.0), 300 + y, **QUICK)
    assert not [w for w in recwarn if issubclass(w.category, PrecisionWarning)]
