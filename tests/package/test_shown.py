"""Displays in terminals and notebooks: short reprs, a tuned model's page, and figures."""

import dataclasses
import importlib
import itertools
import pkgutil
import re
import xml.etree.ElementTree as ET

import jax
import numpy as np
import pytest
from matplotlib.text import Text

import jsparse
from jsparse import FixedSize, Profile, plotting, train
from jsparse._ticks import linear_ticks, log_ticks, plain
from jsparse.data.frames import Frame
from jsparse.kernels import RBF
from jsparse.machines import METHODS
from jsparse.plotting import Machine
from jsparse.relevance import relevance_of
from jsparse.search.history import Evaluation, load_history, save_history
from jsparse.search.sizes import SizeCurve
from jsparse.training.presentation import size_curve_svg
from jsparse.training.trained import Trained

ROWS = 100_000


def records():
    """Yield every NamedTuple of the package that has a public name."""
    for module in pkgutil.walk_packages(jsparse.__path__, "jsparse."):
        if module.name.startswith("jsparse.cli") or module.name == "jsparse.__main__":
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            here = isinstance(value, type) and value.__module__ == module.name
            if here and not name.startswith("_") and hasattr(value, "_fields"):
                yield value


def assert_short(value):
    text = repr(value)
    assert len(text) <= 1500, text
    assert len(text.splitlines()) <= 12, text


def test_records_of_long_arrays_are_short():
    columns = [np.zeros((ROWS, 3)), np.arange(ROWS), [np.zeros(ROWS)] * 300, {"a" * 99: "b" * 999}]
    records_of_package = list(records())
    assert len(records_of_package) > 100
    for record in records_of_package:
        # Not by the class itself, which would check types.
        value = tuple.__new__(record, [columns[i % 4] for i in range(len(record._fields))])
        assert_short(value)
        assert repr(value).startswith(f"{record.__name__}(")


def fake_path(k=200, selected=11):
    sizes = np.arange(1, k + 1)
    errors = 0.04 + 0.4 * np.exp(-sizes / 6)
    return SizeCurve(sizes, errors, np.full(k, 0.01), selected, "mse")


class Drawn(Trained):
    """A result with the fields that figures read, without any training."""

    def __init__(self, curve, metric="misclassification"):
        vars(self).update(curve=curve, metric=metric, method=jsparse.SCDP())


@pytest.fixture(scope="module")
def tuned():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    with jax.enable_x64(True):
        return train(
            X, np.sin(X[:, 0]), task="regression", folds=3, key=0, search=Profile(2),
            method=FixedSize([4, 8], selection="uniform"), C=np.array([1.0, 10.0]),
        )  # fmt: skip


@pytest.mark.slow
def test_objects_with_long_arrays_inside_are_short(tuned):
    history = [Evaluation(*[np.zeros(30)] * 5, 1.0)] * 1000
    long = np.ones(ROWS)
    wide = RBF(np.ones(1000))
    points = jax.numpy.zeros((ROWS, 3))
    expansion = dataclasses.replace(tuned.expansion, prototypes=points, coefficients=points[:, 0])
    for value in (
        tuned, tuned.model, tuned.tuning, tuned.tuning.history, tuned.curve, tuned.curve.tunings,
        tuned.fit, tuned.sums, tuned.folds, tuned.expansion, expansion, tuned.search,
        tuned.model.conformal,
        Profile(history=history, start=tuned.tuning), wide, wide + wide * wide,
        tuned.tuning._replace(history=history, theta=long),
        jsparse.SCDP(candidates=np.zeros((30, 30))), jsparse.KSP(n_prototypes=list(range(1, 3000))),
        dataclasses.replace(tuned, n_rows=ROWS, out_of_fold=long, kernel=wide, C=long),
        dataclasses.replace(tuned.model, about={str(i): "x" * 999 for i in range(99)}),
        jsparse.plan(ROWS, 30, 500), relevance_of(wide, 1000),
    ):  # fmt: skip
        assert_short(value)
    pd = pytest.importorskip("pandas")
    assert_short(Frame(pd.DataFrame({f"c{i}": np.zeros(50) for i in range(300)})))
    for method in METHODS.values():
        assert_short(method())


def test_a_restored_history_is_short(tuned, tmp_path):
    save_history(tmp_path / "h", tuned.tuning.history * 9)
    restored = load_history(tmp_path / "h")
    assert_short(restored)
    assert len(restored) == 9 * len(tuned.tuning.history)


def test_the_repr_is_readable_under_jit():
    shown = []

    @jax.jit
    def f(lengthscale):
        shown.append(repr(RBF(lengthscale)))
        return lengthscale

    f(jax.numpy.ones(()))
    assert shown == ["RBF(lengthscale=float64[])"]
    assert repr(RBF(1.5)) == "RBF(lengthscale=1.5)"


def test_a_tuned_model_says_how_it_came_about(tuned):
    text = repr(tuned)
    method = "fixed-size LS-SVM", "Profile search", "3 folds", "60 rows x 3 columns", "RBF("
    for words in (*method, "mean squared error", "standard error", "seconds", "converged"):
        assert words in text
    assert tuned.standard_error == tuned.curve.standard_errors[tuned.curve.chosen]
    page = ET.fromstring(tuned._repr_html_())  # well-formed, so all of it is escaped
    rows = {row[0].text: row[1].text for row in page.iter("tr")}
    assert rows == tuned._facts()
    assert page.find("svg") is not None
    assert dataclasses.replace(tuned, curve=None)._repr_html_().count("<svg") == 0


def test_the_curve_in_a_page_has_the_notebooks_colours_and_no_numbers_on_each_other():
    narrow = SizeCurve(np.array([40, 45, 60]), np.ones(3), np.full(3, np.nan), 2, "mse")
    wide = SizeCurve(np.array([1, 10**6]), np.array([1e-9, 2e9]), np.zeros(2), 0, "mse")
    ends = [fake_path(selected=0), fake_path(selected=199), fake_path(1, 0)]
    for curve in (fake_path(), *ends, narrow, wide):
        svg = size_curve_svg(curve, "misclassification")
        root = ET.fromstring(svg)
        assert set(re.findall(r'(?:fill|stroke)="([^"]+)"', svg)) <= {
            "none", "currentColor", "#D55E00",
        }  # fmt: skip
        boxes = []
        for text in (t for t in root.iter("text") if t.get("x")):
            wide, x = 6.2 * len(text.text), float(text.get("x"))
            left = {"middle": x - wide / 2, "end": x - wide, "start": x}[text.get("text-anchor")]
            boxes.append((left, float(text.get("y")) - 9, left + wide, float(text.get("y"))))
        for a, b in itertools.combinations(boxes, 2):
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)
        assert any(t.text == f"chosen: {curve.size}" for t in root.iter("text"))


def test_ticks_are_few_and_plain():
    assert log_ticks(1, 210) == pytest.approx([1, 2, 5, 10, 20, 50, 100, 200])
    assert log_ticks(0.9, 1.1e6) == pytest.approx([10.0**p for p in range(7)])
    assert log_ticks(42, 47)[0] >= 42
    assert linear_ticks(0.02, 0.31) == pytest.approx([0.1, 0.2, 0.3])
    assert [plain(v) for v in (1, 0.30000000000000004, 2e7, 1e-7, -5.0)] == [
        "1", "0.3", "20000000", "0.0000001", "-5",
    ]  # fmt: skip


MACHINES = [
    ("fixed-size LS-SVM", 60, 0.035), ("SCDP", 14, 0.042), ("LS-SVM", 379, 0.031),
    ("sparse SVM", 14, 0.042), ("KSP", 16, 0.05), ("KMP", 16, 0.055), ("KBP", 20, 0.053),
    ("SLMC", 10, 0.035), ("reduced SVM", 60, 0.035), ("relevance vector machine", 9, 0.061),
    ("sparse Fisher", 10, 0.04), ("reduced set SVM", 10, 0.09), ("SVM (scikit-learn)", 120, 0.03),
    ("outliers", 5000, 0.2), ("robust machine", 60, 0.034), ("none at all", 0, 0.036),
]  # fmt: skip


def drawings():
    machines = [Machine(*one) for one in MACHINES]
    constant = Machine("constant", 0, 0.37)
    path = np.arange(1, 200, 7), np.linspace(0.4, 0.04, 29)
    curve = Drawn(fake_path())
    errors = fake_path().errors + 0.01
    others = {"another": (5.0, 0.2), "SVM": (300.0, 0.05), "LS-SVM": (200.0, 0.051)}
    yield plotting.error_curve(curve, test_errors=errors, others=others).figure
    few = SizeCurve(
        np.array([10, 25]), np.array([2978.0, 2950.0]), np.array([240.0, np.nan]), 0, "mse"
    )
    yield plotting.error_curve(Drawn(few, "mse")).figure
    yield plotting.compared(curve, machines, constant, error="misclassification", path=path)
    cubes = [Machine(name, size, 1e9 * error**3) for name, size, error in machines]
    for some in (cubes, cubes[:1]):
        yield plotting.comparison(some, error="mean squared error", baseline=constant).figure
    lengths = np.array([5.2] * 5 + [3794.0] * 2 + [2.6, 7.0, 5.2])
    yield plotting.relevance(relevance_of(RBF(lengths), 10)).figure


def overlap(a, b):
    # A pixel is less than the space between letters.
    return a.x0 < b.x1 - 1 and b.x0 < a.x1 - 1 and a.y0 < b.y1 - 1 and b.y0 < a.y1 - 1


@pytest.mark.parametrize("place", range(6))
def test_figures_are_legible(place):
    figure = next(itertools.islice(drawings(), place, None))
    figure.draw_without_rendering()
    for axes in figure.axes:
        texts = [
            *axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(),
            *axes.get_yticklabels(),
            *(label for child in axes.child_axes for label in child.get_xticklabels()),
        ]  # fmt: skip
        # Of a label without the line to its point.
        shown = [(t.get_text(), Text.get_window_extent(t)) for t in texts if t.get_text()]
        for (a, box), (b, other) in itertools.combinations(shown, 2):
            assert not overlap(box, other), (a, b)
        for _, box in shown:
            assert box.x0 >= 0
            assert box.y0 >= 0
            assert box.x1 <= figure.bbox.x1
            assert box.y1 <= figure.bbox.y1
        for text in axes.texts:  # so that no line to a point crosses the numbers of an axis
            assert axes.bbox.y0 - 6 <= Text.get_window_extent(text).y0
        assert axes.get_legend() is None
        for axis in (axes.xaxis, axes.yaxis):
            numbers = [label.get_text() for label in axis.get_ticklabels()]
            named = any(number.startswith("x") for number in numbers)  # names of columns
            assert named or all(re.fullmatch(r"-?[\d.]+", number) for number in numbers)
            assert axis.get_offset_text().get_text() == ""
        points = [line for line in axes.lines if line.get_linestyle() == "None"]
        for line in points:
            assert axes.bbox.contains(*axes.transData.transform(line.get_xydata()[0]))
        colours = [tuple(line.get_color()) for line in points]
        assert len(set(colours)) == len(colours)


def test_the_baseline_takes_no_room_of_the_machines():
    machines = [Machine("a", 3, 0.03), Machine("b", 9, 0.05)]
    for error, words in ((0.4, "above these axes"), (0.04, "dashed")):
        axes = plotting.comparison(machines, error="e", baseline=Machine("constant", 0, error))
        assert axes.get_ylim()[1] < 0.06
        assert words in axes.child_axes[0].get_xticklabels()[0].get_text()
    with pytest.raises(ValueError, match="machines: expected at least one"):
        plotting.comparison([], error="e")


def test_results_of_train_are_compared_by_name(tuned):
    other = dataclasses.replace(tuned, cv_error=0.5)
    axes = plotting.comparison({"small": tuned, "other": other})
    assert axes.get_ylabel() == "mean squared error"
    points = [tuple(line.get_xydata()[0]) for line in axes.lines]
    assert points == [(tuned.model.size, tuned.cv_error), (tuned.model.size, 0.5)]
    assert plotting.comparison({"small": tuned}, error="e").get_ylabel() == "e"
    for machines, message in (
        ([tuned, other], "machines: expected points jsparse.plotting.Machine.*, got Trained"),
        (tuned, "machines: expected .*mapping from names to results of train, got Trained"),
        ({"a": Machine("a", 3, 0.1)}, "machines: expected .*, got Machine"),
        ({"a": tuned, "b": dataclasses.replace(tuned, metric="mae")},
         r"machines: expected errors in one metric, got \['mae', 'mse'\]"),
        ([Machine("a", 3, 0.1)], "error: expected the label"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            plotting.comparison(machines)
    with pytest.raises(ValueError, match="trained: expected a Trained, got list"):
        plotting.error_curve([tuned, other])


def test_notebooks_show_figures_without_pyplot_and_axes_of_others_are_drawn_on():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = plotting.error_curve(Drawn(fake_path()))
    for shown in (axes, axes.figure):
        assert shown._repr_png_().startswith(b"\x89PNG")
    assert pyplot.get_fignums() == []
    figure = type(axes.figure)()
    one, two, three = figure.subplots(1, 3)
    assert plotting.error_curve(Drawn(fake_path()), one) is one
    assert plotting.comparison([Machine("a", 3, 0.1)], two, error="e") is two
    assert plotting.relevance(relevance_of(RBF(np.array([1.0, 2.0])), 2), three) is three


def test_a_curve_is_printed_as_its_errors_and_an_attribute_of_the_model_is_named():
    errors = np.linspace(1, 0.1, 50)
    curve = SizeCurve(np.arange(1, 51), errors, np.full(50, 0.01), 30, "mse")
    lines = str(curve).splitlines()
    assert lines[0] == "1: CV mean squared error 1 +- 0.01"
    assert f"31: CV mean squared error {errors[30]:.4g} +- 0.01 chosen" in lines
    assert len(lines) <= 9
    one_fold = curve._replace(standard_errors=np.full(50, np.nan))
    assert "nan" not in str(one_fold)
    trained = object.__new__(Trained)
    with pytest.raises(AttributeError, match="no attribute 'to_onnx'; use model"):
        _ = trained.to_onnx
    with pytest.raises(AttributeError, match=r"no attribute 'fit_all'$"):
        _ = trained.fit_all
