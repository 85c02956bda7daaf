"""The estimators: scikit-learn's checks of estimators, and what users of scikit-learn expect."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.metrics import brier_score_loss, log_loss
from sklearn.model_selection import (
    HalvingGridSearchCV,
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    train_test_split,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from jsparse import Annealing, FixedSize, Profile
from jsparse.estimators import (
    FixedSizeLSSVMClassifier,
    FixedSizeLSSVMRegressor,
    KernelBasisPursuitClassifier,
    KernelBasisPursuitRegressor,
    KernelMachineClassifier,
    KernelMachineRegressor,
    KernelMatchingPursuitClassifier,
    KernelMatchingPursuitRegressor,
    KernelSubspacePursuitClassifier,
    KernelSubspacePursuitRegressor,
    LSSVMClassifier,
    LSSVMRegressor,
    ReducedSetClassifier,
    RelevanceVectorClassifier,
    RelevanceVectorRegressor,
    RobustLSSVMClassifier,
    RobustLSSVMRegressor,
    SCDPClassifier,
    SCDPRegressor,
    SparseFisherClassifier,
    SparseKernelRidgeRegressor,
    SparseLargeMarginClassifier,
    SparseOneClassSVM,
    SparseReducedLSSVMClassifier,
    SparseReducedLSSVMRegressor,
    SpSVMClassifier,
)
from jsparse.kernels import Matern52

pytestmark = pytest.mark.usefixtures("jax_in_float32")
QUICK = {"lengthscale": 2.0, "C": 10.0, "random_state": 0}
EVERY = [
    FixedSizeLSSVMClassifier(**QUICK, cv=3),
    FixedSizeLSSVMRegressor(**QUICK, cv=3),
    KernelMachineClassifier(FixedSize(), **QUICK, cv=3),
    KernelMachineRegressor(FixedSize(), **QUICK, cv=3),
    RobustLSSVMClassifier(**QUICK, cv=3),
    RobustLSSVMRegressor(**QUICK, cv=3),
    LSSVMClassifier(**QUICK),
    LSSVMRegressor(**QUICK),
    SCDPClassifier(**QUICK, cv=3),
    SCDPRegressor(**QUICK, cv=3),
    SparseLargeMarginClassifier(**QUICK, cv=3),
    SpSVMClassifier(**QUICK, cv=3, max_prototypes=5),  # of 300 each check takes minutes
    *[
        kind(5, lengthscale=2.0, random_state=0, cv=3)
        for kind in (
            KernelBasisPursuitClassifier,
            KernelBasisPursuitRegressor,
            KernelMatchingPursuitClassifier,
            KernelMatchingPursuitRegressor,
            KernelSubspacePursuitClassifier,
            KernelSubspacePursuitRegressor,
        )
    ],
    SparseReducedLSSVMClassifier(**QUICK, cv=3),
    SparseReducedLSSVMRegressor(**QUICK, cv=3),
    SparseFisherClassifier(**QUICK, cv=3),
    # More steps than usual: where they run out it warns, and here that is an error.
    SparseKernelRidgeRegressor(**QUICK, cv=3, max_iter=2000),
    ReducedSetClassifier(**QUICK, cv=3, max_iter=2000),
    RelevanceVectorClassifier(20, lengthscale=2.0, random_state=0, cv=3),
    RelevanceVectorRegressor(20, lengthscale=2.0, random_state=0, cv=3),
    SparseOneClassSVM(random_state=0),
]


def argued(estimator):
    """Checks that cannot hold, and why."""
    drawn = FixedSizeLSSVMClassifier | FixedSizeLSSVMRegressor
    drawn |= SparseReducedLSSVMClassifier | SparseReducedLSSVMRegressor
    drawn |= KernelMachineClassifier | KernelMachineRegressor
    drawn |= RobustLSSVMClassifier | RobustLSSVMRegressor
    if isinstance(estimator, drawn):
        reason = (
            "prototypes and folds are drawn at random from the rows: a weight of two gives a row "
            "twice the chance, not the same draw as the row repeated"
        )
        return {
            "check_sample_weight_equivalence_on_dense_data": reason,
        }
    if isinstance(estimator, KernelBasisPursuitRegressor):
        reason = "five atoms that are shrunk explain less than the half that it asks for"
        return {"check_regressors_train": reason}
    pursuits = KernelSubspacePursuitClassifier | KernelSubspacePursuitRegressor
    pursuits |= SparseKernelRidgeRegressor | SparseLargeMarginClassifier | ReducedSetClassifier
    pursuits |= SparseFisherClassifier
    if isinstance(estimator, pursuits):
        reason = (
            "folds are drawn from the rows, and atoms are exchanged or points descend from where "
            "rows, one of them repeated, begin: another local optimum"
        )
        return {"check_sample_weight_equivalence_on_dense_data": reason}
    if isinstance(estimator, SparseOneClassSVM):
        reason = "the default number of prototypes is a third of the rows, whatever they weigh"
        return {"check_sample_weight_equivalence_on_dense_data": reason}
    if isinstance(estimator, LSSVMClassifier):
        reason = "a repeated row is not left out with its twin: other probabilities, same decisions"
        return {"check_sample_weight_equivalence_on_dense_data": reason}
    return {}


# A class that weighs ten million times the other is all there is: the answer is a constant.
@pytest.mark.filterwarnings("ignore:.*no prototype is left")
@pytest.mark.slow
@parametrize_with_checks(EVERY, expected_failed_checks=argued)
def test_scikit_learns_own_checks(as_users_call, estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def cancer():
    return load_breast_cancer(return_X_y=True)


@pytest.fixture(scope="module")
def tuned(cancer):
    X, y = cancer
    with jax.enable_x64(False):
        machine = FixedSizeLSSVMClassifier(60, selection="uniform", random_state=0)
        return machine.fit(X[:400], y[:400])


def test_attributes_calibrated_probabilities_pickles_and_clones(cancer, tuned):
    X, y = cancer
    assert tuned.prototypes_.shape == (60, 30)
    np.testing.assert_allclose(
        tuned.prototypes_, X[tuned.prototype_indices_], rtol=1e-9, atol=1e-12
    )
    assert tuned.dual_coef_.shape == (60,)
    assert tuned.intercept_.shape == ()
    assert tuned.n_iter_ == len(tuned.tuning_history_) == 10
    assert tuned.cv_error_ < 0.05
    assert tuned.score(X[400:], y[400:]) > 0.95
    proba = tuned.predict_proba(X[400:])
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert brier_score_loss(y[400:], proba[:, 1]) < 0.04
    assert proba.dtype == np.float64
    f = tuned.decision_function(X[400:])
    np.testing.assert_array_equal(tuned.predict(X[400:]), tuned.classes_[(f >= 0).astype(int)])
    again = pickle.loads(pickle.dumps(tuned))
    np.testing.assert_array_equal(again.predict_proba(X[400:]), proba)
    with pytest.raises(NotFittedError):
        clone(tuned).predict(X)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "scheme"),
    [(FixedSizeLSSVMClassifier, "one_versus_one"), (LSSVMClassifier, "minimum_output")],
)
def test_several_classes_with_names(machine, scheme):
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    train, test, y_train, y_test = train_test_split(X, names, random_state=0, stratify=names)
    model = machine(multiclass=scheme, lengthscale=2.0, random_state=0).fit(train, y_train)
    assert model.score(test, y_test) > 0.9
    assert list(model.feature_names_in_) == list(X.columns)
    scores, proba = model.decision_function(test), model.predict_proba(test)
    for decided in (scores, proba):
        np.testing.assert_array_equal(model.classes_[decided.argmax(axis=1)], model.predict(test))
    assert log_loss(y_test, proba) < 0.5 * log_loss(y_test, np.full((len(test), 3), 1 / 3))


@pytest.mark.slow
def test_weights_are_routed_and_outputs_are_arrays(cancer):
    X, y = cancer
    frame = pd.DataFrame(X[:200, :5], columns=list("abcde"))
    w = np.where(y[:200] == 1, 3.0, 1.0)
    model = FixedSizeLSSVMClassifier(20, **QUICK, cv=3)
    with config_context(enable_metadata_routing=True):
        model.set_fit_request(sample_weight=True)
        model.set_partial_fit_request(sample_weight=True, classes=True)
        scaler = StandardScaler().set_output(transform="pandas")
        pipe = make_pipeline(scaler.set_fit_request(sample_weight=False), model)
        pipe.fit(frame, y[:200], sample_weight=w)
    fitted = pipe[-1]
    assert list(fitted.feature_names_in_) == list("abcde")
    direct = FixedSizeLSSVMClassifier(20, **QUICK, cv=3)
    direct.fit(StandardScaler().fit_transform(frame), y[:200], w)
    expected = direct.predict_proba(StandardScaler().fit_transform(frame))
    np.testing.assert_allclose(pipe.predict_proba(frame), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="feature names"):
        fitted.partial_fit(pipe[0].transform(frame)[list("edcba")], y[:200])


@pytest.mark.slow
def test_class_weights_move_decisions_and_probabilities_alike(cancer):
    X, y = cancer
    X = X[:, :2]
    options = {"lengthscale": 2.0, "C": 1.0, "cv": 5, "random_state": 0}
    means = []
    for weight in ({0: 10.0}, {0: 1.0}, {1: 10.0}):
        model = FixedSizeLSSVMClassifier(20, **options, class_weight=weight).fit(X[:400], y[:400])
        p = model.predict_proba(X[400:])[:, 1]
        np.testing.assert_array_equal(model.predict(X[400:]) == 1, p > 0.5)
        means.append(p.mean())
    assert means[0] + 0.1 < means[1] < means[2] - 0.1


def test_bad_parameters_are_named(as_users_call, cancer):
    """`tests/contracts/test_arguments.py` refuses values that are wrong in themselves."""
    X, y = cancer
    three = y + (X[:, 0] > 15)  # a scheme matters for three classes only
    for options, message in (
        ({"kernel": "linear", "lengthscale": 1.0}, "lengthscale: expected 'auto'"),
        ({"lengthscale": None}, "lengthscale: expected 'auto' or numbers unless"),
        ({"multiclass": "two"}, "multiclass: expected"),
        (
            {"search": "csa"},
            r"search: .* \['annealing', 'auto', 'gradient', 'profile', 'recursive'\]",
        ),
        ({"max_seconds": -1.0}, "max_seconds: expected"),
        ({"cv": ShuffleSplit(3, random_state=0)}, "cv: expected splits that hold out each row"),
        ({"cv": [([0], range(1, 9))]}, "cv: .* none that holds out row index 0"),
        ({"cv": [([0], [0, 1]), ([0], [1, 2])]}, "cv: .* got several splits with row index 1"),
        ({"cv": [([0], [0, 1]), ([0], np.zeros(0, int))]}, "cv: .* no row to hold out in split 1"),
        ({"cv": [([0], [10**6])]}, "cv: expected a number, a splitter or pairs"),
    ):
        model = FixedSizeLSSVMClassifier(**{"n_prototypes": 20, "cv": 3, **QUICK, **options})
        with pytest.raises(ValueError, match=message):
            model.fit(X, three if "multiclass" in options else y)


@pytest.mark.slow
def test_folds_of_the_users_own(cancer):
    """The error is that by loops over the splits."""
    X, y = (a[:120] for a in cancer)
    options = {"lengthscale": 5.0, "C": 1.0, "random_state": 0, "selection": "uniform"}

    def errors_by_loops(model, splits):
        with jax.enable_x64(True):
            Z = model.expansion_.scaling.apply(jnp.asarray(X))
            Phi = np.asarray(model._sums.feature_map(Z))
        wrong = 0
        for rest, test in splits:
            A = np.column_stack([Phi[rest], np.ones(len(rest))])
            ridge = np.diag([*np.ones(Phi.shape[1]), 0.0])
            solution = np.linalg.solve(A.T @ A + ridge, A.T @ (2.0 * y[rest] - 1))
            values = Phi[test] @ solution[:-1] + solution[-1]
            wrong += np.sum((values >= 0) != (y[test] == 1))
        return wrong / 120

    for kind in (KFold, StratifiedKFold):
        splitter = kind(4, shuffle=True, random_state=1)
        splits = list(splitter.split(X, y))
        masks = [(None, np.isin(np.arange(120), test)) for _, test in splits]
        for cv in (splitter, splits, masks):
            model = FixedSizeLSSVMClassifier(20, cv=cv, **options).fit(X, y)
            assert model.cv_error_ == pytest.approx(errors_by_loops(model, splits), abs=1e-12)


@pytest.mark.slow
def test_a_warm_start_begins_where_the_last_search_ended(cancer):
    X, y = cancer
    model = FixedSizeLSSVMClassifier(20, cv=3, random_state=0, warm_start=True)
    first = model.fit(X[:300], y[:300])
    assert first.n_iter_ == 10
    best = first.kernel_.lengthscale
    model.fit(X[:320], y[:320])
    assert model.n_iter_ < 10
    with jax.enable_x64(True):
        begun = np.exp(model.tuning_history_[0].theta)
    np.testing.assert_allclose(begun, np.asarray(best).reshape(-1), rtol=1e-6)
    cold = clone(model).set_params(warm_start=False).fit(X[:320], y[:320])
    assert cold.n_iter_ == 10
    assert model.cv_error_ < cold.cv_error_ + 0.02
    # Also after a pickle, whatever JAX's precision.
    again = pickle.loads(pickle.dumps(first))
    assert again.fit(X[:320], y[:320]).n_iter_ < 10


@pytest.mark.slow
def test_what_is_reported_while_fitting(cancer, capsys):
    X, y = cancer
    options = {"cv": 3, "max_evaluations": 3, "random_state": 0}
    model = FixedSizeLSSVMClassifier(10, **options, verbose=1).fit(X[:100], y[:100])
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert lines[0] == "jsparse: compiling"
    assert len(lines) == 4
    for i, line in enumerate(lines[1:], 1):
        assert line.startswith(f"jsparse: {i} of 3 evaluations, best score ")
    assert f"best score {model.cv_error_:.4g}" in lines[-1]
    FixedSizeLSSVMClassifier(10, **options).fit(X[:100], y[:100])
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "")


@pytest.mark.slow
@pytest.mark.usefixtures("one_kernel_at_a_time")
def test_a_search_may_be_ended_by_time_and_be_an_object(cancer):
    X, y = (a[:100] for a in cancer)
    for evaluations, options in (
        (1, {"max_seconds": 0.0}),
        (6, {"search": Annealing(6)}),
        (6, {"search": "annealing", "max_evaluations": 6}),
        (1, {"search": Profile(tune_kernel=False)}),
        (1, {"kernel": 2.0 * Matern52(4.0), "lengthscale": None}),
        (1, {"lengthscale": np.full(30, 5.0)}),
    ):
        model = FixedSizeLSSVMClassifier(10, cv=3, random_state=0, **options).fit(X, y)
        assert model.n_iter_ == evaluations
    assert model.kernel_.lengthscale.shape == (30,)


def test_more_prototypes_than_rows_are_capped_with_both_numbers_said():
    X, y = load_iris(return_X_y=True)
    X, y = X[::5], y[::5] > 0
    with pytest.warns(
        UserWarning, match="n_prototypes: 200 is more than 30 rows.*30 is taken"
    ) as caught:
        model = FixedSizeLSSVMClassifier(
            200, selection="uniform", **QUICK, cv=3, out_of_fold=False
        ).fit(X, y)
    assert caught[0].filename == __file__
    assert len(model.prototypes_) == 30


@pytest.mark.slow
def test_more_prototypes_than_rows_are_capped_by_weights_among_sizes_and_in_other_machines():
    X, y = load_iris(return_X_y=True)
    X, y = X[::5], y[::5]
    with pytest.warns(UserWarning, match=r"n_prototypes: \(4, 200\) is .*\(4, 30\) is taken"):
        model = FixedSizeLSSVMClassifier([4, 200], **QUICK, cv=3).fit(X, y)
    assert model.sizes_.tolist() == [4, 30]
    w = np.where(np.arange(30) % 3 == 0, 0.0, 1.0)
    with pytest.warns(UserWarning, match="n_prototypes: 25 is more than 20 rows"):
        FixedSizeLSSVMClassifier(25, **QUICK, cv=3).fit(X, y, w)
    with pytest.warns(UserWarning, match="max_prototypes: 99 is more than 30 .* 16 is taken"):
        SCDPClassifier(99, **QUICK, cv=3).fit(X, y)
    with pytest.warns(UserWarning, match="n_prototypes: 99 is more than 30 rows"):
        SparseOneClassSVM(99, starts=1).fit(X)


@pytest.mark.slow
def test_a_search_by_halving_begins_with_few_rows():
    X, y = load_iris(return_X_y=True)
    model = FixedSizeLSSVMClassifier(**QUICK, cv=2)
    sizes = {"n_prototypes": [None, 40]}
    with pytest.warns(UserWarning, match="n_prototypes: 40 is more than"):
        search = HalvingGridSearchCV(
            model, sizes, cv=3, factor=2, min_resources=18, random_state=0, error_score="raise"
        ).fit(X, y)
    assert search.score(X, y) > 0.9


@pytest.mark.slow
def test_rows_of_weight_zero_are_in_no_split():
    X, y = (a[::4] for a in load_iris(return_X_y=True))
    at = [0, 7, 7, len(X)]
    wide_X, wide_y = np.insert(X, at, 1e300, axis=0), np.insert(y, at, 2)
    w = np.insert(np.ones(len(X)), at, 0.0)
    present = np.flatnonzero(w)
    splitter = KFold(3, shuffle=True, random_state=0)
    splits = [*splitter.split(X)]
    of_present = [(present[train], present[test]) for train, test in splits]
    for cv, other in ((splitter, splitter), (splits, of_present)):
        alone = FixedSizeLSSVMClassifier(9, **QUICK, cv=cv).fit(X, y)
        padded = FixedSizeLSSVMClassifier(9, **QUICK, cv=other).fit(wide_X, wide_y, w)
        values = (model.decision_function(X) for model in (padded, alone))
        np.testing.assert_allclose(*values, rtol=1e-9)
        assert padded.cv_error_ == alone.cv_error_
        np.testing.assert_array_equal(padded.prototype_indices_, present[alone.prototype_indices_])
