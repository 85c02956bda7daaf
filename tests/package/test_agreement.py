"""The texts by which processes compare arguments; `on_two_processes.py` compares them."""

import copy
import functools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import jsparse
from jsparse import _agreement
from jsparse._agreement import described, same_in_all_processes
from jsparse.kernels import RBF, Custom


def shifted(by):
    def kernel(x, z):
        return by + x @ z

    return kernel


class Opaque:
    def __init__(self, value):
        self.value, self.itself = value, self


PAIRS = [
    (1, 2),
    ("a", "b"),
    (None, 0),
    (0.1, 0.1 + 1e-16),
    ([1, 2], [1, 2, 3]),
    ({"a": 1, "b": 2}, {"a": 1, "b": 3}),
    (np.arange(6.0), np.arange(6.0) + 1e-9),
    (np.arange(6.0), np.arange(6.0, dtype="f4")),
    (np.arange(6.0), np.arange(6.0).reshape(2, 3)),
    (np.array(["a", None], object), np.array(["b", None], object)),
    (np.array(["2020-01-01"], "M8[D]"), np.array(["2020-01-02"], "M8[D]")),
    (jax.random.key(0), jax.random.key(1)),
    (jax.random.key(0), jax.random.PRNGKey(0)),
    (RBF(1.0), RBF(2.0)),
    (jsparse.FixedSize(5), jsparse.FixedSize(6)),
    (jsparse.FixedSize(5), jsparse.SparseReduction(5)),
    (jsparse.Stopping, jsparse.HoldOut),
    (shifted(1.0), shifted(2.0)),
    (lambda x, z: x @ z, lambda x, z: 2 * (x @ z)),
    (functools.partial(shifted, 1), functools.partial(shifted, 2)),
    (Custom(shifted(1.0)), Custom(shifted(2.0))),
    (Opaque(1), Opaque(2)),
]


@pytest.mark.parametrize("pair", PAIRS, ids=[type(pair[0]).__name__ for pair in PAIRS])
def test_values_that_differ_have_different_texts_and_copies_the_same(pair):
    one, other = (dict(described("name", value)) for value in pair)
    assert one != other
    again = dict(described("name", copy.deepcopy(pair[0])))
    assert again == one
    assert not any(" at 0x" in text for text in one.values())


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, Custom, functools.partial])
def test_functions_of_equal_kinds_have_equal_texts(wrap):
    one, again, other = (dict(described("name", wrap(shifted(by)))) for by in (1.0, 1.0, 2.0))
    assert one == again != other


def test_order_does_not_matter_where_there_is_none():
    one, other = ({name: i for i, name in enumerate("abc")} for _ in range(2))
    other = dict(reversed(other.items()))
    assert dict(described("", one)) == dict(described("", other))
    one, other = set("abcdefgh"), set("hgfedcba")
    assert dict(described("", one)) == dict(described("", other))


@pytest.mark.parametrize("mesh", [None, Mesh(np.array(jax.devices()), ("rows",))])
def test_nothing_is_looked_at_in_one_process(mesh, monkeypatch):
    def never(*arguments):
        raise AssertionError("compared in one process")

    for name in ("described", "gather_messages", "checksum"):
        monkeypatch.setattr(_agreement, name, never)
    with same_in_all_processes(mesh) as compared:
        compared["X"] = np.zeros(3)
    rng = np.random.default_rng(0)
    X = jax.numpy.asarray(rng.standard_normal((20, 2)))
    feature_map = jsparse.Nystroem(RBF(1.0), jax.numpy.asarray(X[:3]))
    assert jsparse.accumulate(feature_map, X, X[:, 0], mesh=mesh).weight_sum == 20


def test_what_fails_in_the_block_is_raised():
    with pytest.raises(KeyError, match="what"), same_in_all_processes(None):
        raise KeyError("what")
