"""Training from streams gives the results of training in memory; broken streams are refused."""

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
    settings = {"key": KEY, "method": FixedSize(20, "uniform"), "folds": 4, "search": Profile(3)}
    return {**settings, "C": np.array([0.1, 10.0, 1e3]), **more}


def test_streamed_equals_in_memory():
    """Train on weighted rows with balanced classes.

    All rows are in the sample, so the scores are the scores of all rows. The learners "stream" of
    `tests/contracts` compare several classes, several targets and paths.
    """
    X, y = blobs()
    w = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    stream = ArrayStream(X, y, w, batch_rows=50)
    model = train(stream, task="classification", **options(class_weight="balanced"))

    rows, labels, w = X[w > 0], (y[w > 0] == "c").astype(int), w[w > 0]
    v = w * (w.sum() / (2 * np.bincount(labels, w)))[labels]
    scaling = jsparse.standardize(rows, v)
    np.testing.assert_allclose(model.expansion.scaling.shift, scaling.shift, rtol=1e-12)
    np.testing.assert_allclose(model.expansion.scaling.scale, scaling.scale, rtol=1e-10)
    Z, target, v = scaling.apply(jnp.asarray(rows)), jnp.asarray(2.0 * labels - 1), jnp.asarray(v)
    prototypes = model.expansion.prototypes
    prototype_rows = scaling.apply(jnp.asarray(X[model.point_rows]))
    np.testing.assert_allclose(prototypes, prototype_rows, rtol=1e-9)
    for evaluation in model.tuning.history:
        features = Nystroem(jsparse.kernels.RBF(np.exp(evaluation.theta[0])), prototypes)
        expected = jsparse.cross_validate(
            features, evaluation.C, Z, target, model.folds, v, metric="misclassification"
        )
        np.testing.assert_allclose(evaluation.scores, expected.scores, atol=1e-12)
    fit = fixed_size.fit_features(Nystroem(model.kernel, prototypes), model.C, Z, target, v)
    np.testing.assert_allclose(model.expansion(rows), fit.expansion(Z), atol=1e-7)


def number_of(what):
    """Return the seed that training derives from the key for one purpose."""
    keys = Keys(*jax.random.split(KEY, len(Keys._fields)))
    return int(jax.random.bits(getattr(keys, what), dtype=jnp.uint32))


@pytest.mark.slow
def test_rows_held_out_once_choose_the_size_of_least_error():
    """One part has no standard error, by which a smaller machine might be taken."""
    X, _ = blobs()
    settings = options(folds=HoldOut(0.4), method=FixedSize([2, 30]))
    stream = ArrayStream(X, np.sin(X[:, 0]), batch_rows=50)
    trained = train(stream, task="regression", **settings)
    assert trained.curve.chosen == np.argmin(trained.curve.errors) > 0


@pytest.mark.slow
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
    """Plan a run on `blobs` in batches of 60, on a machine with ample memory."""
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
    stream = Counting(ArrayStream(X, y, batch_rows=60))

    def run(n_prototypes):
        settings = options(method=FixedSize(n_prototypes), search=Profile(1))
        settings["resources"] = Resources(memory=memory, sample_rows=240)
        return train(stream, task="classification", **settings)

    with pytest.raises(ValueError, match=r"n_prototypes: 200 .* at most 150 would fit"):
        run(200)
    assert stream.passes == 1
    run(150)
    with pytest.raises(ValueError, match="at most 150 would fit"):
        run(151)
    for method, memory, words in (
        (FixedSize(200), 10_000_000, "n_prototypes: 200 prototypes would take .* at most"),
        (SCDP(candidates=200), 10_000_000, "candidates: 200 candidates would take .* at most"),
        (Dual(), 100_000, "method: Dual, .* for kernel matrix.*FixedSize"),
        (RVM(), 100_000, "method: RVM, .* for kernel matrix.*FixedSize"),
    ):
        with pytest.raises(ValueError, match=words):
            train(
                X, y, task="classification", key=KEY, method=method,
                resources=Resources(memory=memory),
            )  # fmt: skip


class Broken:
    """A stream that is complete in its first passes, and changed by a function in later passes."""

    def __init__(self, sound, change):
        self.batches = list(ArrayStream(*blobs(), batch_rows=50))
        self.sound, self.change = sound, change

    def __iter__(self):
        self.sound -= 1
        return iter(self.batches if self.sound >= 0 else self.change(self.batches))


def with_nan(batches):
    X = batches[-1].X.copy()
    X[3, 1] = np.nan
    return [*batches[:-1], batches[-1]._replace(X=X)]


def test_a_broken_stream_gives_no_model():
    """`tests/data/test_streams.py` breaks streams in more ways."""
    for sound, change, message in (
        (2, lambda b: b[:-1], "ended after 200 rows"),
        (0, with_nan, "row indices 200 to 239: X is not finite at row index 203"),
        (2, with_nan, "row indices 200 to 239: X is not finite at row index 203"),
        (
            2,
            lambda b: [*b[:-1], b[-1]._replace(y=np.full(40, "new"))],
            "row indices 200 to 239: expected the labels of the first pass, got .*new",
        ),
    ):
        with pytest.raises(StreamError, match=message):
            train(Broken(sound, change), task="classification", **options())


def test_bad_settings_are_told_before_the_first_pass(as_users_call):
    """`tests/contracts/test_arguments.py` refuses more of them."""

    class Untouched:
        def __iter__(self):
            raise AssertionError("read")

    for more, message in (
        ({"task": "ranking"}, "task"),
        ({"task": "regression", "metric": "misclassification"}, "metric"),
        ({"folds": jsparse.plain_folds(0, 9, 3)}, "folds: expected a number or a HoldOut"),
        ({"resources": Resources(sample_rows=10), "method": FixedSize(11)}, "n_prototypes"),
        ({"multiclass": "best"}, "multiclass"),
        ({"task": "regression", "class_weight": "balanced"}, "class_weight"),
        ({"method": Dual()}, "stream: expected a method that needs only sums"),
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


def test_batches_in_one_buffer_and_of_growing_size_give_the_same_model():
    X, y = blobs()

    class Refilled:
        def __iter__(self):
            buffer = np.empty((40, 3))
            for start in range(0, 240, 40):
                buffer[:] = X[start : start + 40]
                yield Batch(buffer, y[start : start + 40])

    class Growing:
        size = 30

        def __iter__(self):
            self.size += 20
            return iter(ArrayStream(X, y, batch_rows=self.size))

    settings = options(search=Profile(1))
    plain, *others = (
        train(stream, task="classification", **settings).expansion(X)
        for stream in (ArrayStream(X, y, batch_rows=50), Refilled(), Growing())
    )
    for values in others:
        np.testing.assert_allclose(values, plain, rtol=1e-9)


def test_numbers_taken_for_labels_are_told_at_once():
    X, seen = np.random.default_rng(0).standard_normal((500, 2)), []

    class Watched:
        def __iter__(self):
            for batch in ArrayStream(X, X[:, 0], batch_rows=100):
                seen.append(batch)
                yield batch

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
@pytest.mark.parametrize(("k", "folds"), [(2, 4), (2, HoldOut(0.4)), (3, HoldOut(0.4))])
def test_scores_and_probabilities_come_from_rows_of_the_sample_that_are_held_out(k, folds):
    X, y = blobs(n=500, k=k)
    stream = ArrayStream(X[:400], y[:400], batch_rows=64)
    settings = options(folds=folds, C=np.array([10.0]), search=Profile(1))
    settings["resources"] = Resources(sample_rows=300)
    model = train(stream, task="classification", **settings)
    sample = summarize(stream, number_of("sample"), 300, classification=True).sample
    held = Split(number_of("folds"), *((4, 4, 0.0) if folds == 4 else (2, 1, 0.4)))
    part = held(np.arange(400))
    Z = model.expansion.scaling.apply(jnp.asarray(X[:400]))
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
    scores = values[sample.rows][predicted]
    np.testing.assert_allclose(model.out_of_fold[predicted], scores, atol=1e-7)
    if k == 3:
        distances = jsparse.multiclass.distances(model.code.matrix, jnp.asarray(scores), "loss")
        scores = -np.asarray(distances)
    numbers, weights = numbers[sample.rows][predicted], sample.weights[predicted]
    # Each sampled row stands for as many of its class as there are to one.
    wrong = (scores >= 0 if k == 2 else scores.argmax(axis=1)) != numbers
    np.testing.assert_allclose(model.cv_error, np.average(wrong, weights=weights), rtol=1e-12)
    temperatures = fit_inverse_temperatures(scores, numbers, weights)
    np.testing.assert_allclose(model.model.inverse_temperatures, temperatures, rtol=1e-5)
    probabilities = model.predict_proba(X[400:])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    decisions = model.classes[probabilities.argmax(axis=1)]
    np.testing.assert_array_equal(decisions, model.predict(X[400:]))
    without = train(stream, task="classification", **settings, out_of_fold=False)
    with pytest.raises(ValueError, match="out_of_fold=True"):
        without.predict_proba(X)
