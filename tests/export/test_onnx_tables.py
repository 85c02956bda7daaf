"""ONNX files of models of tables: one named input for each column, labels out."""

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx_program import program
from predictor.plain_models import table_model

import jsparse
from jsparse.data.frames import Frame

CATEGORIES = {"town", "smoker", "floor", "grade"}


def table(n=60):
    rng = np.random.default_rng(n)
    return pd.DataFrame(
        {
            "town": rng.choice(["Bern", "Köln", "Łódź"], n),
            "age": rng.integers(18, 90, n),
            "since": pd.Timestamp("2020-02-03") + pd.to_timedelta(rng.integers(0, 10**6, n), "m"),
            "smoker": rng.random(n) < 0.4,
            "floor": rng.integers(-1, 4, n),
            "grade": rng.choice([0.5, 1.5, 2.0], n),
            "income": rng.lognormal(3, 1, n),
        }
    )


KINDS = {"town": object, "smoker": bool, "floor": np.int64}


def columns(frame, kinds=KINDS):
    """Return the columns as the recipe in docs/howto/deploy.md passes them to a program."""
    frame = frame.assign(since=frame["since"].to_numpy("datetime64[us]").astype(np.int64))
    kinds = {"since": np.int64, **kinds}
    return {name: np.array(frame[[name]], kinds.get(name, float)) for name in frame}


def a_model(frame, **settings):
    codes = [name for name in ("floor", "grade") if name in frame]
    return table_model(Frame(frame, categorical=codes, **settings), ("old", "young"))


def check(model, frame, run, inputs):
    answers = run(**inputs)
    np.testing.assert_allclose(answers["scores"], model.decision_function(frame), atol=1e-12)
    np.testing.assert_allclose(answers["probabilities"], model.predict_proba(frame), atol=1e-12)
    np.testing.assert_array_equal(answers["label"], model.predict(frame))


@pytest.mark.parametrize("categories", ["indicators", "kernel"])
def test_columns_of_every_type_are_inputs(categories, tmp_path):
    frame = table()
    model = a_model(frame, categories=categories)
    run = program(model, tmp_path)
    described = {i.name: i.doc_string for i in onnx.load(tmp_path / "model.onnx").graph.input}
    assert described["town"] == "categories: 'Bern', 'Köln', 'Łódź'"
    assert described["since"].startswith("microseconds since 1970 in UTC")
    assert described["age"] == "numbers"
    assert run.inputs == {
        "town": "tensor(string)",
        "age": "tensor(double)",
        "since": "tensor(int64)",
        "smoker": "tensor(bool)",
        "floor": "tensor(int64)",
        "grade": "tensor(double)",
        "income": "tensor(double)",
    }
    new = table(1000)
    check(model, new, run, columns(new))
    # Categories that training did not see, for one row.
    unseen = new.iloc[:1].assign(town="Oslo", floor=99, grade=7.0)
    with pytest.warns(jsparse.UnseenCategoryWarning, match="'town': 'Oslo' .*'floor': 99 "):
        check(model, unseen, run, columns(unseen))
    # A missing number, which the model refuses, gives NaN.
    inputs = columns(new.iloc[:2])
    inputs["age"][0] = np.nan
    answers = run(**inputs)
    assert np.isnan(answers["scores"]).tolist() == [True, False]
    inputs = columns(new.iloc[:2])
    inputs["since"][1] = np.iinfo(np.int64).min
    assert np.isnan(run(**inputs)["scores"]).tolist() == [False, True]


@pytest.mark.parametrize("categories", ["indicators", "kernel"])
def test_missing_values_are_filled_in(categories, tmp_path):
    frame = table()
    holes = np.random.default_rng(0).random(frame.shape) < 0.1

    def with_holes(frame, holes):
        frame = frame.astype({"age": float, "floor": float, "smoker": object})
        return frame.mask(holes[: len(frame)])

    model = a_model(with_holes(frame, holes), categories=categories, impute=True)
    assert {c.name for c in model.columns.columns if None in (c.categories or ())} == CATEGORIES
    run = program(model, tmp_path)
    assert run.inputs["smoker"] == run.inputs["floor"] == "tensor(double)"
    new = table(1000)
    holes = np.random.default_rng(1).random(new.shape) < 0.1
    new = with_holes(new, holes)
    numbers = new.assign(
        town=new["town"].astype(object).where(new["town"].notna(), ""),
        smoker=pd.to_numeric(new["smoker"]),
    )
    check(model, new, run, columns(numbers, {"town": object}))


def test_numbers_have_the_model_s_dtype_and_columns_their_names(tmp_path):
    frame = table()[["income", "town"]].rename(columns={"income": "probabilities"})
    a_model(frame).save(tmp_path / "model.jsparse")
    model = jsparse.load(tmp_path / "model.jsparse", dtype="float32")
    run = program(model, tmp_path)
    assert run.inputs == {"probabilities": "tensor(float)", "town": "tensor(string)"}
    assert list(run.outputs) == ["label", "probabilities_", "scores"]  # the name is taken
    X, towns = frame[["probabilities"]].to_numpy(np.float32), frame[["town"]].to_numpy(object)
    answers = run(probabilities=X, town=towns)
    np.testing.assert_allclose(answers["probabilities_"], model.predict_proba(frame), atol=1e-5)
    np.testing.assert_array_equal(answers["label"], model.predict(frame))
