"""Estimators on tables with categories, and their intervals and sets."""

import pickle
import warnings

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from test_estimators import EVERY

import jsparse
from jsparse.data.frames import Frame
from jsparse.estimators import (
    FixedSizeLSSVMClassifier,
    FixedSizeLSSVMRegressor,
    SparseLargeMarginClassifier,
    SparseOneClassSVM,
)
from jsparse.kernels import Mixed

pytestmark = pytest.mark.usefixtures("jax_in_float32")
N = 60
OPTIONS = {"lengthscale": 2.0, "C": 10.0, "cv": 3, "random_state": 0}
CODED = ["town", "size", "zone", "member"]
FAST = {FixedSizeLSSVMClassifier, FixedSizeLSSVMRegressor}


def people(n=N, seed=0):
    """Return a table of texts, a category, a category of whole numbers, booleans and numbers."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "town": rng.choice(["Ghent", "Leuven", "Mons"], n),
            "size": pd.Categorical(rng.choice(["s", "m"], n), ["s", "m", "l"]),
            "zone": pd.Categorical(rng.integers(5, 8, n)),
            "member": rng.random(n) > 0.5,
            "age": rng.uniform(20, 60, n),
            "rooms": rng.integers(1, 6, n),
        }
    )


def incomes(rows):
    ghent, eighth = (rows["town"] == "Ghent"), (rows["zone"].astype(int) == 7)
    return (rows["age"] / 10 + 3.0 * ghent - 2.0 * eighth + rows["member"]).to_numpy()


def one_hot():
    encode = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    return ColumnTransformer([("codes", encode, CODED)], remainder="passthrough")


@pytest.fixture(scope="module")
def fitted():
    rows = people()
    with jax.enable_x64(False):
        return FixedSizeLSSVMRegressor(20, **OPTIONS).fit(rows, incomes(rows))


@pytest.mark.filterwarnings("ignore::jsparse.UnseenCategoryWarning")
def test_categories_are_scikit_learns_one_hot_columns(fitted):
    rows, new, encode = people(), people(9, 1), one_hot()
    new["town"] = ["Namur", *new["town"][1:]]  # not seen in training
    by_array = FixedSizeLSSVMRegressor(20, **OPTIONS)
    by_array.fit(encode.fit_transform(rows), incomes(rows))
    np.testing.assert_array_equal(fitted.prototype_indices_, by_array.prototype_indices_)
    numbers = encode.transform(new)
    for table in (new, pa.Table.from_pandas(new), Frame(new)):
        np.testing.assert_allclose(fitted.predict(table), by_array.predict(numbers), rtol=1e-9)
    np.testing.assert_allclose(fitted.interval(new, 0.8), by_array.interval(numbers, 0.8))
    assert fitted.prototypes_.shape == (20, 12)
    fitted, by_array = (pickle.loads(pickle.dumps(one)) for one in (fitted, by_array))
    fitted.partial_fit(new, incomes(new))
    by_array.partial_fit(numbers, incomes(new))
    np.testing.assert_allclose(fitted.predict(rows), by_array.predict(encode.transform(rows)))


@pytest.mark.parametrize("estimator", [FixedSizeLSSVMRegressor, FixedSizeLSSVMClassifier])
def test_the_name_of_a_target_is_answered_with_what_to_give(estimator):
    with pytest.raises(ValueError, match=r"got the name 'age'; give table\['age'\]"):
        estimator(20).fit(people(), "age")


def test_every_predictor_warns_once_in_a_call_of_unseen_categories(fitted):
    rows, new = people(), people(9, 1)
    new["town"] = ["Namur", "Huy", "Namur", *new["town"][3:]]
    classifier = FixedSizeLSSVMClassifier(20, **OPTIONS).fit(rows, rows["zone"].astype(int) == 7)
    model = fitted.model_.with_novelty(rows)
    regressions = [fitted, model, model.to_numpy()]
    classifiers = [classifier, classifier.model_, classifier.model_.to_numpy()]
    calls = [getattr(one, name) for one in regressions for name in ("predict", "interval")]
    calls += [
        getattr(one, name)
        for one in classifiers
        for name in ("predict", "decision_function", "predict_proba", "predict_set")
    ]
    calls += [model.novelty, lambda table: model.calibrated(table, incomes(table))]
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(new)
        (warning,) = caught
        assert warning.category is jsparse.UnseenCategoryWarning
        assert warning.filename == __file__  # not a file of equinox, which calls a Model's methods
        assert "column 'town': 'Namur', 'Huy' (rows: 3);" in str(warning.message)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(rows)  # training saw these categories
            warnings.simplefilter("ignore", jsparse.UnseenCategoryWarning)
            call(new)


def test_columns_are_those_of_training_in_their_order(fitted):
    rows = people(5, 2)
    assert list(fitted.feature_names_in_) == list(rows.columns)
    assert fitted.n_features_in_ == 6
    for call in (fitted.predict, fitted.interval, lambda X: fitted.score(X, incomes(rows))):
        with pytest.raises(ValueError, match="must be in the same order"):
            call(rows[rows.columns[::-1]])
        with pytest.raises(ValueError, match=r"yet now missing:\n- age"):
            call(rows.drop(columns="age"))
    reordered = fitted.model_.predict(rows[rows.columns[::-1]])
    np.testing.assert_array_equal(reordered, fitted.predict(rows))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(fitted.predict(rows.to_numpy()), reordered)
    with (
        pytest.warns(UserWarning, match="does not have valid feature names"),
        pytest.raises(ValueError, match="column 'member': expected booleans"),
    ):
        fitted.predict(np.zeros((2, 6)))
    with pytest.raises(ValueError, match="column 'age'"):
        fitted.predict(rows.assign(age=np.nan))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.partial_fit(rows, np.zeros(4))


@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(each, id=type(each).__name__, marks=[pytest.mark.slow] * (kind not in FAST))
        for each in EVERY
        for kind in [type(each)]
    ],
)
def test_every_estimator_takes_a_table(as_users_call, estimator):
    rows, new = people(), people(7, 1)
    model = clone(estimator)
    if isinstance(model, SparseOneClassSVM):
        assert set(model.fit(rows).predict(new)) <= {-1, 1}
        return
    truth = incomes(rows)
    y = np.where(truth > 5, "rich", "poor") if hasattr(model, "multiclass") else truth
    if isinstance(model, SparseLargeMarginClassifier):
        model.set_params(max_iter=1000)  # one fold does not converge in the default number
    model.fit(rows, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(pa.Table.from_pandas(new)), model.predict(new))
    if hasattr(model, "multiclass"):
        assert model.predict_set(new, 0.8).shape == (7, 2)
        assert model.predict_proba(new).shape == (7, 2)
    else:
        assert (np.diff(model.interval(new, 0.8)) > 0).all()


@pytest.mark.slow
def test_in_a_pipeline_a_grid_search_and_cross_validation(as_users_call):
    rows = people()
    scaled = ColumnTransformer(
        [("numbers", StandardScaler(), ["age", "rooms"])],
        remainder="passthrough",
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    machine = FixedSizeLSSVMRegressor(20, **OPTIONS)
    pipe = make_pipeline(scaled, machine)
    grid = {"fixedsizelssvmregressor__categories": ["indicators", "kernel"]}
    search = GridSearchCV(pipe, grid, cv=KFold(2), error_score="raise").fit(rows, incomes(rows))
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.score(rows, incomes(rows)) > 0.5
    rows = rows.drop(columns="zone").assign(zone=rows["zone"].astype(str) + "th")
    table, y = pa.Table.from_pandas(rows), incomes(people())
    scores = cross_val_score(machine, table, y, cv=KFold(2), error_score="raise")
    same = cross_val_score(machine, rows, y, cv=KFold(2), error_score="raise")
    np.testing.assert_array_equal(scores, same)


@pytest.mark.slow
def test_categories_may_be_compared_by_the_kernel(as_users_call):
    rows = people()
    y = incomes(rows) > 5
    model = FixedSizeLSSVMClassifier(20, **OPTIONS, categories="kernel").fit(rows, y)
    assert isinstance(model.kernel_, Mixed)
    assert model.kernel_.columns == (0, 1, 2, 3)
    assert model.prototypes_.shape == (20, 6)
    mixed = FixedSizeLSSVMClassifier(20, **OPTIONS).fit(Frame(rows, categories="kernel"), y)
    np.testing.assert_array_equal(mixed.predict_proba(rows), model.predict_proba(rows))
    with pytest.raises(ValueError, match="expected prototypes that are rows"):
        SparseLargeMarginClassifier(3, **OPTIONS, categories="kernel").fit(rows, y)
    with pytest.raises(ValueError, match="categories: expected 'indicators' or 'kernel'"):
        clone(model).set_params(categories="codes").fit(rows, y)


def test_a_frame_may_leave_columns_out(fitted):
    rows = people()
    more = Frame(rows.assign(house=np.arange(N) % 7), drop=["house"])
    model = FixedSizeLSSVMRegressor(20, **OPTIONS).fit(more, incomes(rows))
    assert "house" not in model.feature_names_in_
    for table in (rows, more):
        np.testing.assert_array_equal(model.predict(table), fitted.predict(rows))
    with pytest.raises(ValueError, match="the columns to drop"):
        clone(model).fit(Frame(rows, drop=["street"]), incomes(rows))


def test_rows_of_weight_zero_are_not_encoded():
    rows = people()
    y, weights = incomes(rows), np.r_[np.zeros(5), np.ones(N - 5)]
    odd = rows.assign(age=rows["age"].where(weights > 0), town=["Namur", *rows["town"][1:]])
    model = FixedSizeLSSVMRegressor(20, **OPTIONS).fit(odd, y, weights)
    assert "town=Namur" not in model.model_.columns.features
    assert len(model.model_.columns.features) == 12
    assert np.isfinite(model.predict(rows)).all()
    with pytest.raises(ValueError, match="weights of zero only"):
        model.fit(rows, y, np.zeros(N))
    with pytest.raises(ValueError, match=r"weights: expected 60 finite numbers.* shape \(3,\)"):
        model.fit(rows, y, np.ones(3))


@pytest.mark.slow
def test_precision_is_that_of_the_numbers():
    rows = people()[[*CODED, "age"]]
    y = incomes(rows)
    short = FixedSizeLSSVMRegressor(20, **OPTIONS).fit(rows.astype({"age": "float32"}), y)
    assert short.predict(rows).dtype == np.float32
    with pytest.raises(ValueError, match="column 'age': expected numbers that fit float32"):
        short.predict(rows.assign(age=1e300))
    assert Frame(rows).dtype == Frame(rows[CODED]).dtype == np.float64


def test_intervals_and_sets_need_errors_out_of_fold():
    rows, new = people(), people(40, 1)
    y = incomes(rows)
    model = FixedSizeLSSVMRegressor(20, **OPTIONS, out_of_fold=False)
    assert not hasattr(model, "interval")
    model.fit(rows, y)
    assert not hasattr(model, "oob_prediction_")
    with pytest.raises(AttributeError, match="no attribute 'interval'") as caught:
        model.interval(new)
    assert "out_of_fold: expected True or 'machines'" in str(caught.value.__cause__)
    model.model_ = model.model_.calibrated(new, incomes(new))
    half = np.sort(np.abs(model.predict(new) - incomes(new)))[32]  # ceil(0.8 * 41) of them
    ends = model.interval(rows, 0.8)
    np.testing.assert_allclose(ends[:, 1] - model.predict(rows), half, rtol=1e-9)
    classifier = FixedSizeLSSVMClassifier(20, **OPTIONS, out_of_fold=False).fit(rows, y > 5)
    assert not hasattr(classifier, "predict_proba")
    assert not hasattr(classifier, "predict_set")
    assert not hasattr(classifier, "oob_decision_function_")


def test_machines_of_the_folds_lack_rows_that_come_later():
    rows, new = people(), people(9, 1)
    model = FixedSizeLSSVMRegressor(20, **OPTIONS, out_of_fold="machines")
    model.fit(rows, incomes(rows))
    assert model.model_.conformal.guarantee == "folds"
    model.partial_fit(new, incomes(new))
    assert model.model_.conformal.guarantee == "none"
    np.testing.assert_allclose(model.interval(new).mean(axis=1), model.predict(new), rtol=1e-6)
