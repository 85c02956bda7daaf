"""Relevance of each named column, from the lengthscales."""

import dataclasses
import pickle
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from predictor.plain_models import table_model

from jsparse import plotting
from jsparse.cli import report
from jsparse.data.frames import Frame
from jsparse.expansion import KernelExpansion
from jsparse.kernels import RBF, Linear, Matern32, Mixed, Projected, RationalQuadratic
from jsparse.model import Model
from jsparse.predictor.schema import Column, Schema
from jsparse.relevance import relevance_of

LENGTHS = np.array([2.0, 1.0, 8.0])


def test_it_is_the_inverse_lengthscale_over_the_largest():
    relevance = relevance_of(Matern32(LENGTHS), 3, names=["a", "b", "c"])
    assert relevance == pytest.approx({"a": 0.5, "b": 1.0, "c": 0.125})
    assert list(relevance_of(Mixed(RBF(LENGTHS), (1,)), 3)) == ["x0", "x1", "x2"]
    # A map of columns to others: how far a step along a column takes them.
    P = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 2.0]])
    far = np.linalg.norm(P / LENGTHS[:2, None], axis=0)
    mapped = relevance_of(Projected(RBF(LENGTHS[:2]), P), 3)
    np.testing.assert_allclose(list(mapped.values()), far / far.max(), rtol=1e-6)
    # The product of two RBF kernels is one, whose inverse squares are the sum.
    one = RBF((LENGTHS**-2 + 1 / 4) ** -0.5)
    assert relevance_of(RBF(LENGTHS) * RBF(2.0), 3) == pytest.approx(relevance_of(one, 3))
    # Of a sum, the slope at 0 of the sum, where inverse_temperatures are alike.
    both = 3.0 * RBF(LENGTHS) + RationalQuadratic(2.0, 0.7)
    squares = (3 * LENGTHS**-2 + 1 / 4) / 4
    expected = np.sqrt(squares / squares.max())
    np.testing.assert_allclose(list(relevance_of(both, 3).values()), expected, rtol=1e-6)


def test_kernels_that_tell_no_column_from_another_are_refused():
    for kernel, message in (
        (RBF(1.0), "got one common lengthscale"),
        (Linear(), "got Linear, which has no lengthscales"),
        (RBF(LENGTHS) + Linear(), "got Linear"),
    ):
        with pytest.raises(ValueError, match=message):
            relevance_of(kernel, 3)
    with pytest.raises(ValueError, match="names: expected 3 different names"):
        relevance_of(RBF(LENGTHS), 3, names=["a", "b", "b"])


def test_columns_that_share_a_lengthscale_or_are_switched_off_are_named():
    # What the gradient search gives where only leaving columns out has helped.
    lengths = np.array([5.198] * 5 + [3794.7324] * 2 + [5.198] * 3)
    relevance = relevance_of(RBF(lengths), 10)
    assert relevance.switched_off == ("x5", "x6")
    assert relevance.shared == (("x0", "x1", "x2", "x3", "x4", "x7", "x8", "x9"),)
    assert relevance.separate == ()
    assert relevance["x5"] == relevance["x6"] == 0
    assert "8 columns that share one lengthscale: x0" in repr(relevance)
    assert "switched off: x5, x6" in repr(relevance)
    assert pickle.loads(pickle.dumps(relevance)).shared == relevance.shared
    apart = relevance_of(RBF(np.array([4.0, 1.0, 2.0, 2.0, 8.0, 8.0])), 6)
    assert (apart.separate, apart.switched_off) == (("x1", "x0"), ())
    assert apart.shared == (("x2", "x3"), ("x4", "x5"))
    # The indicators of a column count as one: of equal lengths it shares them, else it does not.
    columns = Schema(
        (Column("town", ("a", "b")), Column("age"), Column("size", ("s", "t"))),
        "y", "regression", None, False,
    )  # fmt: skip
    relevance = relevance_of(RBF(np.array([2.0, 2.0, 2.0, 2.0, 1.0])), 5, columns)
    assert relevance.shared == (("town", "age"),)
    assert relevance.separate == ("size",)
    assert relevance["age"] == pytest.approx(relevance["town"] / np.sqrt(2))


def test_the_report_and_the_figure_say_so_too(capsys, as_users_call):
    Z = np.zeros((1, 4))
    kernel = RBF(np.array([2.0, 1.0, 2.0, 500.0]))
    model = Model(KernelExpansion(kernel, *map(jax.numpy.asarray, (Z, Z[:, 0], 0.0))))
    report._print_relevance(SimpleNamespace(model=model), None)
    lines = [line[16:] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "x1 1", "0.5 for 2 columns that share one lengthscale: x0, x2", "0, switched off: x3",
    ]  # fmt: skip
    axes = plotting.relevance(model)
    hatches = {
        label.get_text(): bar.get_hatch()
        for label, bar in zip(axes.get_yticklabels(), axes.patches, strict=True)
    }
    assert hatches == {"x1": None, "x0": "///", "x2": "///", "x3": None}
    assert [text.get_text() for text in axes.texts] == [
        "1", *["0.5, one lengthscale for 2 columns"] * 2, "switched off",
    ]  # fmt: skip


def test_categories_are_added_up_and_drawn():
    rng = np.random.default_rng(4)
    town, size = rng.choice(["Ghent", "Leuven", "Bruges", "Mons"], 48), rng.choice(["s", "m"], 48)
    model = table_model(Frame({"town": town, "age": rng.uniform(20, 60, 48), "size": size}))
    lengths = np.array([1.0, 2.0, 4.0, 1.0, 0.5, 2.0, 2.0])  # towns, age, sizes
    machine = dataclasses.replace(model.expansion, kernel=RBF(lengths))
    model = dataclasses.replace(model, expansion=machine)
    squares = lengths**-2
    each = np.sqrt([squares[:4].sum(), squares[4], squares[5:].sum()])
    expected = dict(zip(["town", "age", "size"], each / each.max(), strict=True))
    assert model.relevance() == pytest.approx(expected)
    axes = plotting.relevance(model, most=2)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["age", "town"]
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [1.0, expected["town"]])
    assert "1 less relevant columns not shown" in axes.get_xlabel()


def test_a_model_of_arrays_takes_names():
    Z = np.zeros((1, 3))
    model = Model(KernelExpansion(RBF(LENGTHS), *map(jax.numpy.asarray, (Z, Z[:, 0], 0.0))))
    assert model.relevance(["a", "b", "c"])["b"] == 1
    assert list(model.relevance()) == ["x0", "x1", "x2"]
