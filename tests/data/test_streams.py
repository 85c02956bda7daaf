"""Streams of row batches must be equal in every pass; an error names the rows that differ."""

import numpy as np
import pytest

from jsparse.data.streams import (
    SHARD_ROWS,
    ArrayStream,
    Batch,
    ReplayableStream,
    StreamError,
    indices_in_words,
)


def data(n=23):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 3)), rng.standard_normal(n)


def test_arrays_and_memory_maps_come_in_batches(tmp_path):
    X, y = data()
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    stream = ReplayableStream(ArrayStream(mapped, y, batch_rows=5))
    for _ in range(2):
        batches = list(stream)
        assert [len(b.X) for b in batches] == [5, 5, 5, 5, 3]
        np.testing.assert_array_equal(np.concatenate([b.X for b in batches]), X)
        np.testing.assert_array_equal(np.concatenate([b.y for b in batches]), y)
    assert stream.rows == 23
    assert stream.passes == 2


class Shifting:
    """A stream with other batches in every pass."""

    def __init__(self, *passes):
        self.passes = list(passes)

    def __iter__(self):
        return iter(self.passes.pop(0))


def cut(X, y, size=10):
    return [Batch(X[i : i + size], y[i : i + size]) for i in range(0, len(X), size)]


def with_nan(batches):
    last = batches[-1]
    X = last.X.copy()
    X[2, 1] = np.nan
    return [*batches[:-1], last._replace(X=X)]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda b: b[:-1], "ended after 20 rows; expected 23"),
        (lambda b: [*b, b[-1]], "row indices 23 to 25: expected 23 rows"),
        (
            lambda b: [b[0], b[1]._replace(X=b[1].X[:, :2])],
            "row indices 10 to 19: expected 3 columns",
        ),
        (with_nan, "row indices 20 to 22: X is not finite at row index 22"),
        (lambda b: [b[0]._replace(y=b[0].y[:-1])], "row indices 0 to 9: 10 rows of X, 9 of y"),
        (lambda b: [], "ended after 0 rows"),
        (
            lambda b: [part._replace(X=part.X[:, :1]) for part in b],
            "row indices 0 to 9: expected 3 columns",
        ),
        (
            lambda b: [b[0], b[1]._replace(weights=np.where(np.arange(10) == 4, -1.0, 1.0))],
            "row indices 10 to 19: expected weights of at least 0, not so at row index 14",
        ),
        (lambda b: [b[0]._replace(y=b[0].y[:, None])], "row indices 0 to 9: y: expected .* shape"),
        (
            lambda b: [b[0]._replace(X=b[0].X.astype(str))],
            "row indices 0 to 9: X: expected numbers",
        ),
        (
            lambda b: [b[0]._replace(y=np.array(["a", None] * 5, object))],
            "row indices 0 to 9: y is not finite at row index 1",
        ),
    ],
)
def test_a_stream_that_changes_is_told(second, message):
    batches = cut(*data())
    stream = ReplayableStream(Shifting(batches, second(batches)))
    assert sum(len(b.X) for b in stream) == 23
    with pytest.raises(StreamError, match=message):
        list(stream)


def test_what_can_be_read_once_is_refused(as_users_call):
    with pytest.raises(ValueError, match="read several times"):
        ReplayableStream(iter(cut(*data())))
    with pytest.raises(StreamError, match="at least one row"):
        list(ReplayableStream([]))


def test_lengths_must_agree(as_users_call):
    X, y = data()
    with pytest.raises(
        ValueError, match=f"X, y: .* got {len(X)} rows of X, {len(y) - 1} rows of y$"
    ):
        ArrayStream(X, y[:-1])
    with pytest.raises(
        ValueError, match=rf"X, y, weights: .* {len(y)} rows of y, 3 rows of weights"
    ):
        ArrayStream(X, y, np.ones(3))
    with pytest.raises(ValueError, match="batch_rows"):
        ArrayStream(X, y, batch_rows=0)


def test_rows_of_a_later_shard_are_named_by_their_index_in_it():
    rows = np.arange(3, 10)
    assert indices_in_words(rows) == "row indices 3 to 9"
    assert indices_in_words(7 * SHARD_ROWS + rows) == "shard 7: row indices 3 to 9"
