"""The settings that `train` chooses by default, and machines of few prototypes."""

import numpy as np
import pandas as pd
import pytest

import jsparse
from jsparse import Dual, FixedSize, Profile, Recursive, Resources, train
from jsparse.cli.main import main
from jsparse.data.frames import Frame
from jsparse.data.streams import ArrayStream
from jsparse.estimators import KernelMachineClassifier
from jsparse.machines.imitation import MovedPrototypes
from jsparse.machines.scdp import SCDP
from jsparse.training.presets import PAPERS, Situation, completed
from jsparse.training.settings import Stated

NOTHING = Stated(None, None, None, None)


def rows(n=150, seed=0):
    """Return three columns, of which the last is noise, and a target."""
    X = np.random.default_rng(seed).normal(size=(n, 3))
    return X, np.sin(2 * X[:, 0]) + X[:, 1]


@pytest.mark.parametrize(
    ("preset", "situation", "method"),
    [
        (None, Situation(6000), Dual(tuned_with=1000)),
        (None, Situation(6001), FixedSize(500)),
        (None, Situation(400, by_folds=True), FixedSize(200)),
        (None, Situation(6000, memory=10**6), FixedSize(500)),
        (None, Situation(None), FixedSize()),
        ("fast", Situation(6000), FixedSize()),
        ("accurate", Situation(20_000, memory=10**11), Dual(tuned_with=2000)),
        ("accurate", Situation(20_001), FixedSize(2000, tuned_with=500)),
        ("accurate", Situation(800, by_folds=True), FixedSize(400)),
    ],
)
def test_the_rows_decide_about_the_method(preset, situation, method):
    assert completed(NOTHING, preset, situation)[0].method == method


def test_what_is_stated_is_kept():
    stated = NOTHING._replace(method=Dual(), columns="ranks")
    papers, preset = completed(stated, None, Situation(100))
    assert papers == PAPERS._replace(method=Dual(), columns="ranks")
    assert preset is None
    learned, preset = completed(stated, "balanced", Situation(100))
    assert (learned.method, learned.columns, learned.kernel) == (Dual(), "ranks", "auto")
    assert isinstance(learned.search, Recursive)
    assert preset == "balanced"


@pytest.mark.usefixtures("as_users_call")
def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match=r"preset: expected one of .*balanced"):
        train(*rows(), task="regression", key=0, preset="best")


def test_without_a_method_errors_are_lower_and_the_choice_is_told():
    (X, y), (new, truth) = rows(), rows(seed=1)
    options = {"task": "regression", "key": 0}
    automatic, fast = train(X, y, **options), train(X, y, preset="fast", **options)
    error, other = (np.mean((t.predict(new) - truth) ** 2) for t in (automatic, fast))
    assert error < 0.7 * other
    assert automatic.kernel.lengthscale[2] > 5 * automatic.kernel.lengthscale[0]  # the noise
    assert "settings    balanced; 'accurate' tunes" in repr(automatic)
    assert "'balanced' learns a metric" in repr(fast)
    assert "leave-one-out" in repr(automatic)
    assert "10 folds" in repr(fast)


@pytest.mark.slow
def test_streams_folds_little_memory_and_categories():
    X, y = rows()
    options = {"task": "regression", "key": 0, "out_of_fold": False}
    stream = train(ArrayStream(X, y), **options)
    stated = train(X, y, method=FixedSize(20), **options)
    for trained in (stream, stated):
        assert isinstance(trained.method, FixedSize)
        assert isinstance(trained.search, Profile)
        assert trained.preset is None
        assert "settings" not in repr(trained)
    folds = train(X, y, folds=3, **options)
    assert isinstance(folds.method, FixedSize)
    assert len(folds.folds.index) == 3
    town = np.random.default_rng(1).choice(["a", "b", "c"], len(X))
    table = pd.DataFrame({"town": town, "x": X[:, 0], "noise": X[:, 2]})
    mixed = train(Frame(table, categories="kernel"), 2.0 * (town == "b") + X[:, 0], **options)
    assert isinstance(mixed.method, Dual)
    assert mixed.relevance()["noise"] < 0.3 * mixed.relevance()["town"]
    with pytest.raises(ValueError, match="would take"):
        train(X, y, method=Dual(), resources=Resources(memory=10**5), **options)


@pytest.mark.slow
def test_few_prototypes_from_a_machine_of_all_rows(tmp_path, capsys):
    X, y = rows()
    new, truth = rows(seed=1)
    small = train(X, y, task="regression", key=0, n_prototypes=25)
    assert isinstance(small.method, SCDP | MovedPrototypes)
    assert small.model.size <= 25
    assert small.seconds["total"] > small.seconds["large machine"] > 0
    assert np.mean((small.predict(new) - truth) ** 2) < 0.1 * np.var(truth)
    labels = np.where(y > 0, "up", "down")
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    # Two classes are one problem under every scheme.
    options = {"n_prototypes": 25, "random_state": 0, "multiclass": "one_versus_one"}
    estimator = KernelMachineClassifier(**options).fit(table, labels)
    assert len(estimator.prototypes_) <= 25
    assert estimator.score(table, labels) > 0.9
    with pytest.raises(ValueError, match="n_prototypes: expected None with a method"):
        train(X, y, task="regression", key=0, method=FixedSize(20), n_prototypes=20)
    path = tmp_path / "t.csv"
    table.assign(y=y).to_csv(path, index=False)
    out = tmp_path / "m"
    assert main(["fit", str(path), "--target", "y", "--prototypes", "25", "--quiet",
                 "--out", str(out)]) == 0  # fmt: skip
    assert "'accurate' tunes" in capsys.readouterr().out
    assert jsparse.load(out).size <= 25
    sizes = ["fit", str(path), "--target", "y", "--prototypes", "15,20", "--quiet"]
    assert main(sizes) == 2
    assert (
        "--prototypes: expected one number, or several together with --method"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("multiclass", "message"),
    [("one_versus_one", "every problem sees every class"),
     (jsparse.Multiclass(C_per_problem=True), "C_per_problem")],
)  # fmt: skip
def test_codes_that_cannot_be_distilled_are_refused_before_the_large_machine(
    multiclass, message, as_users_call
):
    X, _ = rows()
    labels = np.digitize(X[:, 0], [-0.5, 0.5])

    def no_evaluation(*_):
        raise AssertionError("the large machine is being tuned")

    options = {"task": "classification", "key": 0, "progress": no_evaluation}
    for small in ({"n_prototypes": 20}, {"budget": jsparse.Budget(bytes=20_000)}):
        with pytest.raises(ValueError, match=message):
            train(X, labels, multiclass=multiclass, **small, **options)
