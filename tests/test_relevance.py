"""Relevance: what lengthscales say of columns, by name."""

import jax
import numpy as np
import pytest
from test_mixed import GIVEN, table

from jsparse import FixedSize, plotting, train
from jsparse.data.frames import Frame
from jsparse.expansion import KernelExpansion
from jsparse.kernels import RBF, Linear, Matern32, Mixed, Projected, RationalQuadratic
from jsparse.model import Model
from jsparse.relevance import relevance_of

LENGTHS = np.array([2.0, 1.0, 8.0])


def test_it_is_the_inverse_lengthscale_over_the_largest():
    found = relevance_of(Matern32(LENGTHS), 3, names=["a", "b", "c"])
    assert found == pytest.approx({"a": 0.5, "b": 1.0, "c": 0.125})
    assert list(relevance_of(Mixed(RBF(LENGTHS), (1,)), 3)) == ["x0", "x1", "x2"]
    # A map of columns to others: how far a step along a column takes them.
    P = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 2.0]])
    far = np.linalg.norm(P / LENGTHS[:2, None], axis=0)
    mapped = relevance_of(Projected(RBF(LENGTHS[:2]), P), 3)
    np.testing.assert_allclose(list(mapped.values()), far / far.max(), rtol=1e-6)
    # The product of two RBF kernels is one, whose inverse squares are the sum.
    one = RBF((LENGTHS**-2 + 1 / 4) ** -0.5)
    assert relevance_of(RBF(LENGTHS) * RBF(2.0), 3) == pytest.approx(relevance_of(one, 3))
    # Of a sum, the slope at 0 of the sum, where slopes are alike.
    both = 3.0 * RBF(LENGTHS) + RationalQuadratic(2.0, 0.7)
    squares = (3 * LENGTHS**-2 + 1 / 4) / 4
    expected = np.sqrt(squares / squares.max())
    np.testing.assert_allclose(list(relevance_of(both, 3).values()), expected, rtol=1e-6)


def test_kernels_that_tell_no_column_from_another_are_refused():
    for kernel, message in (
        (RBF(1.0), "got one for all"),
        (Linear(), "got Linear, which has no lengthscales"),
        (RBF(LENGTHS) + Linear(), "got Linear"),
    ):
        with pytest.raises(ValueError, match=message):
            relevance_of(kernel, 3)
    with pytest.raises(ValueError, match="names: expected 3 different ones"):
        relevance_of(RBF(LENGTHS), 3, names=["a", "b", "b"])


@pytest.mark.slow
def test_categories_are_added_up_and_drawn():
    frame = Frame(table())
    lengths = np.array([1.0, 2.0, 4.0, 1.0, 0.5, 2.0, 2.0])  # towns, age, sizes
    with jax.enable_x64(True):
        found = train(
            frame, "income", task="regression", method=FixedSize(8), kernel=RBF(lengths), **GIVEN
        )
    squares = lengths**-2
    each = np.sqrt([squares[:4].sum(), squares[4], squares[5:].sum()])
    expected = dict(zip(["town", "age", "size"], each / each.max(), strict=True))
    assert found.relevance() == pytest.approx(expected)
    axes = plotting.relevance(found, most=2)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["age", "town"]
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [1.0, expected["town"]])
    assert "1 columns of less left out" in axes.get_xlabel()


def test_a_model_of_arrays_takes_names():
    Z = np.zeros((1, 3))
    model = Model(KernelExpansion(RBF(LENGTHS), *map(jax.numpy.asarray, (Z, Z[:, 0], 0.0))))
    assert model.relevance(["a", "b", "c"])["b"] == 1
    assert list(model.relevance()) == ["x0", "x1", "x2"]
