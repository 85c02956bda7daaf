"""Training from streams: the same numbers as in memory, and no answer from a broken stream."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jsparse
from jsparse import (
    RVM,
    SCDP,
    Dual,
    FixedSize,
    HoldOut,
    Multiclass,
    Profile,
    Resources,
    Robust,
    train,
)
from jsparse.calibration import fit_inverse_temperatures
from jsparse.data.streams import ArrayStream, Batch, ReplayableStream, StreamError
from jsparse.features import Nystroem
from jsparse.machines import fixed_size
from jsparse.multiclass import output_code
from jsparse.training.settings import Keys
from jsparse.training.streamed import Split
from jsparse.training.summary import Summarizer

KEY = jax.random.key(3)


def blobs(n=240, k=2, d=3, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    number = rng.integers(0, k, n)
    X = 100 + 3 * rng.standard_normal((k, d))[number] + 2 * rng.standard_normal((n, d))
    return X.astype(dtype), np.array(["ab", "c", "de", "f"])[number]


def summarize(stream, seed, sample_rows, *, classification):
    """Return the moments of each class, and a sample."""
    summarizer = Summarizer(seed, sample_rows, classification=classification)
    for part in ReplayableStream(stream).located():
        summarizer.add(*part)
    return summarizer.summary


def options(**more):
    settings = {"key": KEY, "method": FixedSize(20), "folds": 4, "search": Profile(3)}
    return {**settings, "C": np.array([0.1, 10.0, 1e3]), **more}


@pytest.mark.parametrize(
    ("k", "scheme", "weighted"),
    [
        (2, "one_versus_rest", False),
        pytest.param(3, "one_versus_rest", True, marks=pytest.mark.slow),
        pytest.param(4, "one_versus_one", True, marks=pytest.mark.slow),
    ],
)
def test_streamed_equals_in_memory(k, scheme, weighted):
    # All rows are in the sample, so the scores are the scores of all rows.
    X, y = blobs(k=k)
    w = np.random.default_rng(1).integers(0, 3, len(y)).astype(float) if weighted else None
    stream = ArrayStream(X, y, w, batch_rows=50)
    balanced = "balanced" if weighted else None
    settings = options(multiclass=scheme, class_weight=balanced)
    model = train(stream, task="classification", **settings)

    present = np.ones(len(y), bool) if w is None else w > 0
    labels = np.unique(y, return_inverse=True)[1][present]
    factor = np.ones(k)
    if weighted:
        mass = np.bincount(labels, w[present])
        factor = mass.sum() / (k * mass)
    rows = X[present]
    v = factor[labels] * (1 if w is None else w[present])
    scaling = jsparse.standardize(rows, v)
    np.testing.assert_allclose(model.expansion.scaling.shift, scaling.shift, rtol=1e-12)
    np.testing.assert_allclose(model.expansion.scaling.scale, scaling.scale, rtol=1e-10)
    Z = scaling.apply(jnp.asarray(rows))
    code = output_code(scheme, k) if k > 2 else None
    target = jnp.asarray(labels, jnp.int32) if k > 2 else jnp.asarray(2.0 * labels - 1)
    prototypes = model.expansion.prototypes
    prototype_rows = scaling.apply(jnp.asarray(X[model.point_rows]))
    np.testing.assert_allclose(prototypes, prototype_rows, rtol=1e-9)

    for evaluation in model.tuning.history:
        kernel = jsparse.kernels.RBF(float(np.exp(evaluation.theta[0])))
        expected = jsparse.cross_validate(
            Nystroem(kernel, prototypes),
            jnp.asarray(evaluation.C),
            Z,
            target,
            model.folds,
            jnp.asarray(v),
            metric="misclassification",
            code=code,
        )
        np.testing.assert_allclose(evaluation.scores, expected.scores, atol=1e-12)
    map = Nystroem(model.kernel, prototypes)
    if code is None:
        fit = fixed_size.fit_features(map, model.C, Z, target, jnp.asarray(v))
    else:
        fit = fixed_size.fit_classes(map, model.C, Z, target, code, jnp.asarray(v))
    np.testing.assert_allclose(
        model.expansion(X), fit.expansion(scaling.apply(jnp.asarray(X))), atol=1e-7
    )


@pytest.mark.slow
def test_regression_and_batch_sizes_and_float32(dtype):
    X, _ = blobs(dtype=dtype)
    y = np.sin(X[:, 0]) + 100
    models = [
        train(ArrayStream(X, y, batch_rows=size), task="regression", **options())
        for size in (37, 1000)
    ]
    one, other = (np.asarray(m.expansion(X)) for m in models)
    assert one.dtype == dtype
    np.testing.assert_allclose(one, other, rtol=1e-4 if dtype == "float32" else 1e-9)
    np.testing.assert_allclose(
        models[0].cv_error, models[1].cv_error, rtol=0.02 if dtype == "float32" else 1e-8
    )
    assert models[0].n_rows == len(X)


def number_of(what):
    """The seed that training makes of the key for this."""
    keys = Keys(*jax.random.split(KEY, len(Keys._fields)))
    return int(jax.random.bits(getattr(keys, what), dtype=jnp.uint32))


def folds_of(n, present=None):
    """The folds that a stream of so many rows has; `there` says which of them have weight.

    A row without weight is as if it were not there: it counts for no place in the stream.
    """
    present = np.ones(n, bool) if present is None else present
    places = np.where(present, np.cumsum(present) - 1, 0)
    return jsparse.folds_from_assignment(Split(number_of("folds"), 4, 4, 0.0)(places))


@pytest.mark.slow
def test_scores_are_means_over_the_sample():
    X, y = blobs(n=600)
    settings = options(resources=Resources(sample_rows=200))
    model = train(ArrayStream(X, y, batch_rows=128), task="classification", **settings)
    assert int(model.folds.valid.sum()) == 200
    scaling = model.expansion.scaling
    # The same draw again, to know which rows they are.
    draw = number_of("sample")
    summary = summarize(ArrayStream(X, y, batch_rows=128), draw, 200, classification=True)
    folds = folds_of(600)
    best = model.tuning.history[0]
    result = jsparse.cross_validate(
        Nystroem(jsparse.kernels.RBF(float(np.exp(best.theta[0]))), model.expansion.prototypes),
        jnp.asarray(best.C),
        scaling.apply(jnp.asarray(X)),
        jnp.where(jnp.asarray(y == "c"), 1.0, -1.0),
        folds,
    )
    sampled = np.asarray(result.predictions)[:, summary.sample.rows]
    wrong = (sampled >= 0) != (summary.sample.y == "c")
    # Each sampled row stands for as many of its class as there are to one.
    by_class = [wrong[:, summary.sample.y == label].mean(axis=1) for label in ("ab", "c")]
    shares = np.array([(y == label).mean() for label in ("ab", "c")])
    np.testing.assert_allclose(best.scores, shares @ by_class, atol=1e-12)


@pytest.mark.slow
def test_holdout_trains_on_the_rest_and_validates_on_the_share():
    X, y = blobs(n=400)
    settings = options(folds=HoldOut(0.3))
    model = train(ArrayStream(X, y, batch_rows=64), task="classification", **settings)
    held = np.asarray(model.folds.index)[np.asarray(model.folds.valid)]
    assert abs(len(held) / 400 - 0.3) < 4 * np.sqrt(0.21 / 400)
    rest = np.setdiff1d(np.arange(400), held)
    Z = model.expansion.scaling.apply(jnp.asarray(X))
    target = np.where(y == "c", 1.0, -1.0)
    for evaluation in model.tuning.history:
        map = Nystroem(
            jsparse.kernels.RBF(float(np.exp(evaluation.theta[0]))), model.expansion.prototypes
        )
        for C, scored in zip(evaluation.C, evaluation.scores, strict=True):
            fit = fixed_size.fit_features(map, C, Z[rest], jnp.asarray(target[rest]))
            wrong = (np.asarray(fit.expansion(Z[held])) >= 0) != (target[held] > 0)
            assert scored == pytest.approx(wrong.mean(), abs=1e-12)


@pytest.mark.parametrize(
    "method",
    [FixedSize([2, 30]), pytest.param(SCDP(12, candidates=40), marks=pytest.mark.slow)],
)
def test_rows_held_out_once_choose_the_size_of_least_error(method):
    """One part has no standard error, by which a smaller machine might be taken."""
    X, _ = blobs(n=300)
    y = np.sin(X[:, 0])
    settings = options(folds=HoldOut(0.4), method=method)
    trained = train(ArrayStream(X, y, batch_rows=64), task="regression", **settings)
    assert trained.curve.chosen == np.argmin(trained.curve.errors) > 0


def test_sizes_of_the_user_that_memory_has_no_room_for_are_refused():
    X, y = blobs(n=400)
    settings = {"task": "classification", "key": KEY, "search": Profile(2), "folds": 3}
    resources = Resources(memory=jsparse.plan(400, 3, 130, memory=2**34, folds=3, n_C=25).bytes)
    grown = train(X, y, method=FixedSize("auto"), resources=resources, **settings)
    assert max(grown.curve.sizes) < 200
    for flat in (True, False):
        with pytest.raises(ValueError, match="n_prototypes: 256 prototypes would take"):
            train(
                X, y, method=FixedSize([30, 256], stop_when_flat=flat), resources=resources,
                **settings,
            )  # fmt: skip


@pytest.mark.slow
def test_less_memory_takes_more_passes_for_the_same_model():
    X, y = blobs()
    counts, models = [], []
    full = plan_of_small(60, folds=20)
    for memory in (full.bytes, full.bytes - full.parts["sums"] // 2):
        stream = Counting(ArrayStream(X, y, batch_rows=60))
        settings = options(method=FixedSize(60), search=Profile(10), folds=20)
        settings["resources"] = Resources(memory=memory, sample_rows=240)
        models.append(train(stream, task="classification", **settings))
        counts.append(stream.passes)
    assert counts[0] == 4  # the first one, and one for 6, 2 and 2 kernels
    assert counts[1] > 4
    np.testing.assert_allclose(models[0].expansion(X), models[1].expansion(X), rtol=1e-6)


def plan_of_small(m, **more):
    """What a run of `blobs` in batches of 60 takes, on a machine that has plenty."""
    shape = {"n_C": 3, "dtype": np.float64, "batch_rows": 60, "sample_rows": 240}
    return jsparse.plan(240, 3, m, streamed=True, memory=10**15, **shape, **more)


class Counting:
    def __init__(self, stream):
        self.stream, self.passes = stream, 0

    def __iter__(self):
        self.passes += 1
        return iter(self.stream)


@pytest.mark.slow
def test_too_many_prototypes_are_refused_with_the_most_that_fit():
    X, y = blobs()
    memory = plan_of_small(150, folds=4, search=Profile(1)).bytes + 1000
    settings = options(method=FixedSize(200), search=Profile(1))
    settings["resources"] = Resources(memory=memory, sample_rows=240)
    stream = Counting(ArrayStream(X, y, batch_rows=60))
    with pytest.raises(ValueError, match="n_prototypes: 200 prototypes would take") as caught:
        train(stream, task="classification", **settings)
    assert stream.passes == 1
    most = int(str(caught.value).split("at most ")[1].split()[0])
    assert most == 150
    settings["method"] = FixedSize(most)
    train(stream, task="classification", **settings)
    settings["method"] = FixedSize(most + 1)
    with pytest.raises(ValueError, match=f"at most {most} would fit"):
        train(stream, task="classification", **settings)
    settings = {"task": "classification", "key": KEY}
    for method, memory, words in (
        (FixedSize(200), 10_000_000, "n_prototypes: 200 prototypes would take .* at most"),
        (SCDP(candidates=200), 10_000_000, "candidates: 200 candidates would take .* at most"),
        (Dual(), 100_000, "method: Dual, .* for kernel matrix.*FixedSize"),
        (RVM(), 100_000, "method: RVM, .* for kernel matrix.*FixedSize"),
    ):
        with pytest.raises(ValueError, match=words):
            train(X, y, method=method, resources=Resources(memory=memory), **settings)


class Broken:
    """Sound in its first passes, then not."""

    def __init__(self, batches, sound, change):
        self.batches, self.sound, self.change = batches, sound, change

    def __iter__(self):
        self.sound -= 1
        return iter(self.batches if self.sound >= 0 else self.change(list(self.batches)))


def _with_nan(batches):
    X = batches[-1].X.copy()
    X[3, 1] = np.nan
    return [*batches[:-1], batches[-1]._replace(X=X)]


@pytest.mark.parametrize(
    ("sound", "change", "message"),
    [
        (2, lambda b: b[:-1], "ended after 200 rows"),  # the first pass has nothing to compare with
        *(
            (sound, change, message)
            for sound in (0, 2)
            for change, message in [
                (
                    lambda b: [*b[:2], *(part._replace(X=part.X[:, :2]) for part in b[2:])],
                    "row indices 100 to 149: expected 3 columns",
                ),
                (_with_nan, "row indices 200 to 239: X is not finite at row index 203"),
            ]
        ),
        (
            2,
            lambda b: [*b[:-1], b[-1]._replace(y=np.full(40, "new"))],
            "row indices 200 to 239: expected the labels of the first pass, got .*new",
        ),
    ],
)
def test_a_broken_stream_gives_no_model(sound, change, message):
    X, y = blobs()
    batches = [Batch(X[i : i + 50], y[i : i + 50]) for i in range(0, 240, 50)]
    stream = Broken(batches, sound, change)
    with pytest.raises(StreamError, match=message):
        train(stream, task="classification", **options())


def test_bad_settings_are_told_before_the_first_pass(as_users_call):
    class Untouched:
        def __iter__(self):
            raise AssertionError("read")

    for more, message in (
        ({"task": "ranking"}, "task"),
        ({"task": "regression", "metric": "misclassification"}, "metric"),
        ({"folds": HoldOut(1.5)}, "holdout"),
        ({"folds": 1}, "folds"),
        ({"method": FixedSize(0)}, "n_prototypes"),
        ({"resources": Resources(sample_rows=10), "method": FixedSize(11)}, "n_prototypes"),
        ({"C": np.array([-1.0])}, "C"),
        ({"method": FixedSize(9, selection="best")}, "selection"),
        ({"kernel": "best"}, "kernel"),
        ({"multiclass": "best"}, "multiclass"),
        ({"task": "regression", "class_weight": "balanced"}, "class_weight"),
        ({"folds": folds_of(9)}, "folds: expected a number or a HoldOut"),
        ({"method": Dual()}, "stream: expected a method that needs only sums"),
        ({"method": Robust(9), "task": "regression"}, "stream: expected a method that needs only"),
        ({"multiclass": Multiclass(classes=["a", "b"])}, "classes: expected None with a stream"),
        ({"weights": np.ones(9)}, "weights: expected None with a stream"),
    ):
        with pytest.raises(ValueError, match=message):
            train(Untouched(), **options(**{"task": "classification", **more}))


def test_bad_contents_are_told():
    X, y = blobs()
    with pytest.raises(ValueError, match="two classes"):
        train(ArrayStream(X, np.zeros(240)), task="classification", **options())
    with pytest.raises(ValueError, match="regression"):
        train(ArrayStream(X, np.arange(240)), task="classification", **options())
    with pytest.raises(ValueError, match="expected numbers"):
        train(ArrayStream(X, y), task="regression", **options())
    with pytest.raises(StreamError, match="zero only"):
        train(ArrayStream(X, y, np.zeros(240)), task="classification", **options())
    with pytest.raises(ValueError, match="n_prototypes"):
        train(ArrayStream(X, y), task="classification", **options(method=FixedSize(241)))
    with pytest.raises(StreamError, match="at least one row"):
        train([], task="classification", **options())


def test_stopped_and_taken_up_again():
    X, y = blobs()
    stream = ArrayStream(X, y, batch_rows=60)
    whole = train(stream, task="classification", **options(search=Profile(8)))
    settings = options(search=Profile(8), resources=Resources(max_seconds=0.0))
    part = train(stream, task="classification", **settings)
    assert part.tuning.stopped == "seconds"
    assert len(part.tuning.history) < 8
    counted = Counting(stream)
    settings = options(search=Profile(8, history=part.tuning.history))
    again = train(counted, task="classification", **settings)
    np.testing.assert_allclose(again.expansion(X), whole.expansion(X), rtol=1e-8)
    for a, b in zip(whole.tuning.history, again.tuning.history, strict=True):
        np.testing.assert_array_equal(a.theta, b.theta)


def test_moments_with_a_large_mean_and_classes():
    rng = np.random.default_rng(0)
    X = 1e8 + rng.standard_normal((1000, 4)) * [1, 1e-3, 1e3, 0]
    y, w = rng.integers(0, 3, 1000), rng.random(1000)
    summary = summarize(ArrayStream(X, y, w, batch_rows=64), 0, 100, classification=True)
    factors = np.array([1.0, 2.0, 5.0])
    scaling = summary.standardization(factors, np.dtype("float64"))
    v = factors[y] * w
    mean = np.average(X - 1e8, axis=0, weights=v)
    spread = np.sqrt(np.average((X - 1e8 - mean) ** 2, axis=0, weights=v))
    np.testing.assert_allclose(scaling.shift - 1e8, mean, atol=1e-6)
    # Values near 1e8 are 1.5e-8 apart.
    np.testing.assert_allclose(scaling.scale[:3], spread[:3], rtol=1e-4)
    assert scaling.scale[3] == 1
    assert (summary.n, summary.largest_batch) == (1000, 64)


@pytest.mark.slow
def test_the_sample_is_uniform_and_in_order():
    X = np.arange(300.0)[:, None]
    counts = np.zeros(300)
    draws = 400
    for seed in range(draws):
        stream = ArrayStream(X, np.zeros(300), batch_rows=7)
        sample = summarize(stream, seed, 30, classification=False).sample
        assert np.all(np.diff(sample.rows) > 0)
        np.testing.assert_array_equal(sample.X[:, 0], sample.rows)
        counts[sample.rows] += 1
    # Each row is there with chance a tenth; draws without replacement vary less than that.
    p = stats.chisquare(counts).pvalue
    assert p > 1e-3


@pytest.mark.slow
def test_a_rare_class_has_its_part_in_the_sample_and_its_weight_in_the_score():
    rng = np.random.default_rng(0)
    y = np.where(rng.random(4000) < 0.005, "rare", np.where(rng.random(4000) < 0.5, "a", "b"))
    X = rng.standard_normal((4000, 2))
    count = int((y == "rare").sum())
    assert 10 < count < 40
    stream = ArrayStream(X, y, batch_rows=256)
    sample = summarize(stream, 0, 300, classification=True).sample
    # A class has its share of a tenth of the sample, and the weight of all its rows.
    assert (sample.y == "rare").sum() == min(count, 300 // 30)
    for label in ("a", "b", "rare"):
        assert sample.weights[sample.y == label].sum() == pytest.approx((y == label).sum())
    settings = options(method=FixedSize(30), resources=Resources(sample_rows=300))
    model = train(stream, task="classification", **settings)
    assert "rare" in y[model.point_rows]


def test_a_buffer_that_is_filled_anew_is_no_matter():
    X, y = blobs()

    class Refilled:
        def __iter__(self):
            buffer = np.empty((40, 3))
            for start in range(0, 240, 40):
                buffer[:] = X[start : start + 40]
                yield Batch(buffer, y[start : start + 40])

    settings = options(search=Profile(1))
    ours = train(Refilled(), task="classification", **settings)
    plain = ArrayStream(X, y, batch_rows=40)
    theirs = train(plain, task="classification", **settings)
    np.testing.assert_allclose(ours.expansion(X), theirs.expansion(X), rtol=1e-9)


def test_a_later_pass_may_come_in_larger_batches():
    X, y = blobs()

    class Growing:
        size = 30

        def __iter__(self):
            self.size += 20
            return iter(ArrayStream(X, y, batch_rows=self.size))

    settings = options(search=Profile(1))
    ours = train(Growing(), task="classification", **settings)
    plain = ArrayStream(X, y, batch_rows=50)
    theirs = train(plain, task="classification", **settings)
    np.testing.assert_allclose(ours.expansion(X), theirs.expansion(X), rtol=1e-9)


def test_numbers_taken_for_labels_are_told_at_once():
    X = np.random.default_rng(0).standard_normal((500, 2))
    stream = Counting(ArrayStream(X, X[:, 0], batch_rows=100))
    seen = []

    def batches():
        for batch in stream.stream:
            seen.append(batch)
            yield batch

    class Watched:
        def __iter__(self):
            return batches()

    with pytest.raises(ValueError, match="regression"):
        summarize(Watched(), 0, 100, classification=True)
    assert len(seen) == 1


def test_splits_have_their_shares_whatever_the_batches():
    split = Split(5, 7, 7, 0.0)
    rows = np.arange(70_000)
    part = split(rows)
    np.testing.assert_array_equal(part[1234:], split(rows[1234:]))
    assert stats.chisquare(np.bincount(part, minlength=7)).pvalue > 1e-3
    # In any period too.
    assert stats.chisquare(np.bincount(part[::7], minlength=7)).pvalue > 1e-3
    held = Split(5, 2, 1, 0.1)(rows) == 0
    assert abs(held.mean() - 0.1) < 4 * np.sqrt(0.09 / len(rows))


def test_a_plan_says_what_takes_the_memory():
    small, large = (jsparse.plan(10**6, 10, m, memory=2**34) for m in (100, 1000))
    assert large.parts["sums"] / small.parts["sums"] == pytest.approx(100, rel=0.01)
    assert large.bytes == sum(large.parts.values())
    assert "together" in str(large)
    assert "16 GiB" in str(large)
    # Of a stream the rows do not matter, in memory they do.
    streams = [jsparse.plan(n, 10, 100, streamed=True, memory=2**34) for n in (10**5, 10**9)]
    assert streams[0] == streams[1]
    assert jsparse.plan(10**9, 10, 100, memory=2**34).largest == 0
    code = output_code("one_versus_one", 10)
    apart = jsparse.plan(10**6, 10, 100, code=code, memory=2**34)
    assert apart.parts["sums"] > 5 * small.parts["sums"]
    assert jsparse.plan(10**5, 10, "all", memory=2**34).bytes > 8 * 10**10 / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "selection", "weighted"),
    [
        pytest.param(None, "joint", True, marks=pytest.mark.slow),
        (2, "joint", False),
        pytest.param(3, "joint", True, marks=pytest.mark.slow),
        pytest.param(3, "separate", True, marks=pytest.mark.slow),
    ],
)
def test_a_streamed_path_is_that_in_memory(k, selection, weighted):
    """All rows are in the sample; candidates and folds are the same."""
    X, y = blobs(k=k or 2)
    task = "classification"
    if k is None:
        y, task = np.sin(X[:, 0]) + 100, "regression"
    w = np.random.default_rng(1).integers(0, 3, len(y)).astype(float) if weighted else None
    method = SCDP(max_prototypes=6, candidates=X[::10], selection=selection)
    weight = "balanced" if weighted and k else None
    settings = options(method=method, task=task, class_weight=weight, search=Profile(2))
    streamed = train(ArrayStream(X, y, w, batch_rows=50), **settings)
    # A row without weight is none of the sample's.
    present = np.ones(len(y), bool) if w is None else w > 0
    assert int(streamed.folds.valid.sum()) == present.sum()
    in_memory = train(X, y, weights=w, **{**settings, "folds": folds_of(len(y), present)})
    for a, b in zip(streamed.tuning.history, in_memory.tuning.history, strict=True):
        np.testing.assert_array_equal(a.theta, b.theta)
        np.testing.assert_allclose(a.scores, b.scores, rtol=1e-6)
    assert streamed.C == in_memory.C
    assert streamed.curve.size == in_memory.curve.size
    np.testing.assert_allclose(streamed.curve.errors, in_memory.curve.errors, rtol=1e-6)
    for size in (1, streamed.curve.size, 6):
        values = in_memory.at(size)(X)
        np.testing.assert_allclose(streamed.at(size)(X), values, atol=1e-6 * np.abs(values).max())
    np.testing.assert_allclose(
        streamed.out_of_fold, in_memory.out_of_fold[present], atol=1e-6 * np.ptp(in_memory.model(X))
    )
    if k is not None:
        np.testing.assert_allclose(
            streamed.model.inverse_temperatures, in_memory.model.inverse_temperatures, rtol=1e-4
        )
        np.testing.assert_allclose(streamed.predict_proba(X), in_memory.predict_proba(X), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "folds"),
    [
        pytest.param(2, 4, marks=pytest.mark.slow),
        (2, HoldOut(0.4)),
        pytest.param(3, 4, marks=pytest.mark.slow),
        pytest.param(3, HoldOut(0.4), marks=pytest.mark.slow),
    ],
)
def test_probabilities_come_from_rows_of_the_sample_that_are_held_out(k, folds):
    X, y = blobs(n=500, k=k)
    settings = options(folds=folds, C=np.array([10.0]), search=Profile(1))
    settings["resources"] = Resources(sample_rows=300)
    model = train(ArrayStream(X[:400], y[:400], batch_rows=64), task="classification", **settings)
    draw = number_of("sample")
    stream = ArrayStream(X[:400], y[:400], batch_rows=64)
    sample = summarize(stream, draw, 300, classification=True).sample
    held = Split(number_of("folds"), 4, 4, 0.0)
    if folds != 4:
        held = Split(number_of("folds"), 2, 1, 0.4)
    part = held(np.arange(400))
    scaling = model.expansion.scaling
    Z = scaling.apply(jnp.asarray(X[:400]))
    features = Nystroem(model.kernel, model.expansion.prototypes)
    numbers = np.unique(y, return_inverse=True)[1][:400]
    values = np.full((400, *model.out_of_fold.shape[1:]), np.nan)
    for i in range(held.validated):
        rest, out = part != i, part == i
        if k == 2:
            target = jnp.asarray(2.0 * numbers[rest] - 1)
            fitted = fixed_size.fit_features(features, 10.0, Z[rest], target)
        else:
            target = jnp.asarray(numbers[rest], jnp.int32)
            fitted = fixed_size.fit_classes(features, 10.0, Z[rest], target, model.code)
        values[out] = fitted.expansion(Z[out])
    predicted = np.isfinite(values).reshape(400, -1).all(1)[sample.rows]
    assert predicted.all() == (folds == 4)
    np.testing.assert_allclose(
        model.out_of_fold[predicted], values[sample.rows][predicted], atol=1e-7
    )
    scores = values[sample.rows][predicted]
    if k == 3:
        distances = jsparse.multiclass.distances(model.code.matrix, jnp.asarray(scores), "loss")
        scores = -np.asarray(distances)
    temperatures = fit_inverse_temperatures(
        scores, numbers[sample.rows][predicted], sample.weights[predicted]
    )
    np.testing.assert_allclose(model.model.inverse_temperatures, temperatures, rtol=1e-5)
    probabilities = model.predict_proba(X[400:])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_array_equal(
        model.classes[probabilities.argmax(axis=1)], model.predict(X[400:])
    )
    without = train(stream, task="classification", **settings, out_of_fold=False)
    with pytest.raises(ValueError, match="out_of_fold=True"):
        without.predict_proba(X)
