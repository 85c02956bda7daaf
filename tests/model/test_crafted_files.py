"""A file with a right checksum and any content is a model that predicts, or is refused."""

import argparse
import copy
import dataclasses
import hashlib
import json
import re
import struct
import time
from collections import Counter

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import safetensors
from crafted import crafted_examples
from families import KINDS as FAMILIES
from families import family

from jsparse import Model, kernels, load, save
from jsparse._status import NumericalError
from jsparse.cli import predict
from jsparse.cli.main import main
from jsparse.conformal import ConformalScores
from jsparse.data.encoding import fit_schema
from jsparse.data.tables import TableError
from jsparse.expansion import KernelExpansion
from jsparse.model import About
from jsparse.multiclass import output_code
from jsparse.scaling import Standardization, normal_scores
from jsparse.search.history import Evaluation, load_history, save_history
from jsparse.serialization import ModelFileError, load_state, save_state

M, ROWS = 4, 5
TAGS = {"float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64"}
NAMES = {tag: name for name, tag in TAGS.items()} | {
    "F16": "float16",
    "BOOL": "bool",
    "U8": "uint8",
}


def a_table(target):
    cells = {"a": [1.5, 2.5, None, 4.0, 5.5], "b": ["u", "v", "u", None, "v"], "c": [1, 2, 3, 4, 5]}
    targets = {
        "numbers": [0.5, 1.5, 2.5, 3.5, 4.5],
        "two": ["no", "yes", "no", "yes", "no"],
        "several": [3, 5, 7, 3, 5],
    }
    return pa.table({**cells, "y": targets[target]})


def a_model(target, kernel, dtype="float64", scaled=True):
    """Return a model such as `jsparse fit` saves for a table, with random numbers."""
    task = "regression" if target == "numbers" else "classification"
    schema = fit_schema(a_table(target), "y", task=task, impute=True)
    matrix = np.asarray(output_code("one_versus_one", 3).matrix) if target == "several" else None
    outputs = () if matrix is None else matrix.shape[1:]
    rng, d = np.random.default_rng(0), len(schema.features)
    parts = [rng.normal(size=shape) for shape in ((M, d), (M, *outputs), outputs, d)]
    prototypes, coefficients, intercept, shift = (jax.numpy.asarray(a, dtype) for a in parts)
    scaling = Standardization(shift, jax.numpy.ones_like(shift) * 2) if scaled else None
    expansion = KernelExpansion(kernel, prototypes, coefficients, intercept, scaling)
    return Model(
        expansion,
        inverse_temperatures=None
        if schema.classes is None
        else np.arange(1.0, 1 + len(schema.classes)),
        code=None if matrix is None else output_code(matrix, 3),
        labels=schema.classes,
        label_dtype="" if schema.classes is None else np.array(schema.classes).dtype.str,
        columns=schema,
        about=About(C=2.0, method="fixed-size", nested={"a": [1, None]}),
    )


def with_errors(model, folds=0, *, held_out=False):
    """Add conformal scores to a model, and machines of a number of folds."""
    with jax.enable_x64(True):
        expansion, rng = model.expansion, np.random.default_rng(2)
        single = model.labels is not None or len(model.quantiles) > 1
        outputs = () if single else expansion.intercept.shape
        errors = np.abs(rng.normal(size=(6, *outputs))).astype(model.dtype)
        if not folds:
            return dataclasses.replace(model, conformal=ConformalScores(errors, held_out=held_out))
        columns = folds * expansion.intercept.size
        shapes = (3, expansion.prototypes.shape[1]), (3, columns), (columns,)
        parts = (jax.numpy.asarray(rng.normal(size=shape), model.dtype) for shape in shapes)
        fold = rng.integers(0, folds, 6).astype(np.int32)
        conformal = ConformalScores(errors, fold, KernelExpansion(expansion.kernel, *parts))
    return dataclasses.replace(model, conformal=conformal)


def with_sizes(kind):
    """Return a model with machines of several sizes."""
    with jax.enable_x64(True):
        model = a_model("several" if FAMILIES[kind] else "two", kernels.RBF(1.5))
        machines = family(kind, model.expansion.prototypes.shape[1])
        expansion = dataclasses.replace(machines.at(2), scaling=model.expansion.scaling)
        return dataclasses.replace(model, expansion=expansion, path=machines)


def with_quantiles(model):
    """Turn a model into one of three quantiles; one of its conformal scores is negative."""
    machine, steps = model.expansion, np.arange(3.0)
    expansion = dataclasses.replace(
        machine,
        coefficients=machine.coefficients[:, None] * jax.numpy.asarray(1 + steps)[None],
        intercept=machine.intercept - jax.numpy.asarray(steps),
    )
    model = with_errors(
        dataclasses.replace(model, expansion=expansion, quantiles=(0.1, 0.5, 0.9)), 2
    )
    errors = model.conformal.errors - np.max(model.conformal.errors) / 2
    return dataclasses.replace(model, conformal=dataclasses.replace(model.conformal, errors=errors))


def with_ranks(model):
    """Replace a model's standardisation by normal scores."""
    scaling = normal_scores(np.random.default_rng(3).normal(size=(9, 5)), n_knots=6)
    return dataclasses.replace(
        model, expansion=dataclasses.replace(model.expansion, scaling=scaling)
    )


def with_novelty(model):
    """Add the distribution of the novelty of rows to a model."""
    with jax.enable_x64(True):
        return model.with_novelty(np.random.default_rng(4).normal(size=(9, 5)))


def every_model():
    per_column = kernels.RBF(np.linspace(0.5, 2.0, 5))
    composed = 0.3 * (per_column + kernels.Linear(0.1) * kernels.Polynomial(3, 0.4, 1.2))
    return {
        "regression": with_errors(a_model("numbers", kernels.RationalQuadratic(1.1, 0.6)), 2),
        "two classes": with_errors(a_model("two", composed, scaled=False), held_out=True),
        "several": with_errors(a_model("several", kernels.Matern32(1.3)), 2),
        "float32": with_errors(
            a_model("several", kernels.Mixed(kernels.RBF(np.float32(1.3)), (1, 2)), "float32")
        ),
        "projected": a_model("two", kernels.Projected(kernels.RBF(1.3), np.ones((2, 5)))),
        "quantiles": with_quantiles(a_model("numbers", kernels.RBF(1.3))),
        "ranks": with_ranks(a_model("numbers", kernels.Laplacian(1.3))),
        "arrays": dataclasses.replace(a_model("several", kernels.RBF(1.3)), columns=None),
        "novelty": with_novelty(a_model("numbers", kernels.RBF(1.3))),
        **{kind: with_sizes(kind) for kind in FAMILIES},
    }


def written_parts(path):
    """Return the parts of a file: tensors, document and kind."""
    with safetensors.safe_open(path, framework="numpy") as file:
        kind = file.metadata()["kind"]
    arrays, document = load_state(path, kind=kind)
    tensors = {
        name: (TAGS[array.dtype.name], list(array.shape), array.tobytes())
        for name, array in arrays.items()
    }
    return tensors, json.dumps(document), kind


def signed(path, tensors, text, kind="model"):
    """Write a file with any content, and with the right checksum of this content."""
    digest = hashlib.sha256(f"{kind}\n{text}\n".encode())
    described, data = {}, b""
    for name in sorted(tensors):
        tag, shape, content = tensors[name]
        digest.update(f"{name} {NAMES.get(tag, tag)} {tuple(shape)}\n".encode() + content)
        offsets = [len(data), len(data) + len(content)]
        described[name] = {"dtype": tag, "shape": shape, "data_offsets": offsets}
        data += content
    metadata = {"format": "jsparse", "format_version": "1", "kind": kind}
    metadata |= {"document": text, "sha256": digest.hexdigest()}
    header = json.dumps({"__metadata__": metadata, **described}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crafted")
    pyarrow.csv.write_csv(a_table("several").drop_columns(["y"]), folder / "rows.csv")
    return folder


@pytest.fixture(scope="module")
def bases(folder):
    """Return the parts of valid files, by name."""
    with jax.enable_x64(True):
        models = every_model()
        for name, model in models.items():
            model.save(folder / name)
        grid = np.geomspace(0.1, 10, 3)
        point = Evaluation(np.zeros(2), grid, grid, grid, np.full(3, 2, np.int32), 1.5)
        save_history(folder / "history", [point, point])
    return {name: written_parts(folder / name) for name in (*models, "history")}


# Text that stands for what `json.dumps` does not write.
VERBATIM = {
    "@digits": "9" * 5000,
    "@deep": "[" * 100_000 + "]" * 100_000,
    "@deep names": '{"a":' * 5000 + "1" + "}" * 5000,
    "@open": "[" * 400,
    "@cut": '{"a": [1, 2',
    "@huge": "1e999",
    "@long": "0." + "3" * 5000,
    "@twice": '{"a": 1, "a": 2}',
    "@nothing": "",
}
odd = st.one_of(
    st.sampled_from(list(VERBATIM)),
    st.sampled_from(
        [None, True, False, 0, 1, -1, 2, 3, 10**9, 2**63, -(2**70), 10**600, 0.5, -0.0]
    ),
    st.sampled_from([1e308, 5e-324, float("nan"), float("inf"), -float("inf")]),
    st.sampled_from(["", "x", "\ud800", "a\0", "RBF", "Custom", "Sum", "y", "a", "loss"]),
    st.sampled_from(
        [[], {}, [[]], [None], {"value": 1}, {"tensor": "prototypes"}, [1, "a"], ["a"]]
    ),
    st.sampled_from([[[-1, 1, 0]], [0, 1, 2], ["no", "yes", "maybe"], [True, False], [1.5, None]]),
)


def nodes(value, at=()):
    """Return the paths to all values of a document."""
    places = [at]
    pairs = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for key, item in pairs:
        places += nodes(item, (*at, key))
    return places


def value_at(document, place):
    for key in place:
        document = document[key]
    return document


def changed_document(draw, document):
    """Change one value of a document."""
    places = nodes(document)[1:]
    if not places:
        return copy.deepcopy(draw(odd))
    place = draw(st.sampled_from(places))
    parent, key = value_at(document, place[:-1]), place[-1]
    how = draw(st.sampled_from(["replace", "transplant", "delete", "insert", "nest"]))
    if how == "delete":
        del parent[key]
    elif how == "transplant":
        parent[key] = copy.deepcopy(value_at(document, draw(st.sampled_from(places))))
    elif how == "nest":
        parent[key] = draw(st.sampled_from([lambda x: [x], lambda x: {"kernel": x}]))(parent[key])
    elif how == "insert" and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(draw(odd)))
    elif how == "insert":
        parent[draw(st.sampled_from(["x", "value", "tensor", "kernel", "origin"]))] = copy.deepcopy(
            draw(odd)
        )
    else:
        parent[key] = copy.deepcopy(draw(odd))
    return document


extreme = st.sampled_from([0.0, -1.0, np.nan, np.inf, 1e308, 5e-324, -1e-300, 1e30])


def changed_tensors(draw, tensors):
    """Change one of the tensors."""
    name = draw(st.sampled_from(sorted(tensors)))
    tag, shape, content = tensors[name]
    how = draw(st.sampled_from(["values", "value", "dtype", "shape", "delete", "rename", "add"]))
    if how == "values":
        tensors[name] = (tag, shape, draw(st.binary(min_size=len(content), max_size=len(content))))
    elif how == "value" and tag in ("F32", "F64") and content:
        array = np.frombuffer(content, NAMES[tag]).copy()
        with np.errstate(over="ignore"):
            array[draw(st.integers(0, array.size - 1))] = draw(extreme)
        tensors[name] = (tag, shape, array.tobytes())
    elif how == "dtype":
        others = ["F8_E4M3", "F8_E5M2", "F8_E8M0", "BF16", "F16", "C64", "BOOL", "U8", "F4", "X9"]
        sizes = {"F64": 8, "I64": 8, "C64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2}
        tag = draw(st.sampled_from([*others, "F32", "F64", "I64"]))
        tensors[name] = (tag, shape, bytes(int(np.prod(shape)) * sizes.get(tag, 1)))
    elif how == "shape":
        size = len(content) // max(1, int(np.prod(shape)))
        shapes = [[], [1], [M], [2, M], [0, 2**62], [2**40, 0, 2**40], [1] * 70, [0], [M, 0]]
        shape = draw(st.sampled_from([*shapes, shape[::-1], [*shape, 1], [M + 1, *shape[1:]]]))
        tensors[name] = (tag, shape, bytes(size * int(np.prod(shape, dtype=object))))
    elif how == "delete":
        del tensors[name]
    else:
        new = draw(st.sampled_from(["x", "kernel.lengthscale", "scaling.shift", "intercept", ""]))
        tensors[new] = tensors[name] if how == "add" else tensors.pop(name)
    return tensors


def craft(draw, parts):
    """Return the parts of a file with one or two changes."""
    tensors, text, kind = parts
    tensors, document = dict(tensors), json.loads(text)
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.booleans()) and tensors:
            tensors = changed_tensors(draw, tensors)
        else:
            document = changed_document(draw, document)
    return tensors, with_verbatim(document), kind


def check_message(error):
    assert len(str(error).splitlines()) == 1
    assert 20 < len(str(error)) < 2000


def same(ours, theirs):
    """Assert that two models are equal to the last bit."""
    assert jax.tree.structure(ours.expansion) == jax.tree.structure(theirs.expansion)
    assert jax.tree.structure(ours.path) == jax.tree.structure(theirs.path)
    for name in ("expansion", "path", "inverse_temperatures", "conformal", "novelties", "code"):
        pairs = zip(*(jax.tree.leaves(getattr(m, name)) for m in (ours, theirs)), strict=True)
        for leaf, before in pairs:
            assert leaf.dtype == before.dtype
            np.testing.assert_array_equal(leaf, before)
    for name in ("decoding", "labels", "label_dtype", "columns"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert json.dumps(ours.about) == json.dumps(theirs.about)


def outcome(path, kind, rows):
    """Return whether a file is loaded or clearly refused; everything else is an error."""
    start = time.perf_counter()
    try:
        if kind != "model":
            history = load_history(path)
            assert all(e.C.shape == e.scores.shape == e.status.shape for e in history)
            return "loaded"
        model = load(path)
        assert isinstance(model.about, dict)
    except ModelFileError as error:
        check_message(error)
        return "refused"
    finally:
        assert time.perf_counter() - start < 20
    model.save(f"{path}.again")  # what is read could be written
    same(load(f"{path}.again"), model)
    expansion = model.expansion
    d, outputs = expansion.prototypes.shape[1], expansion.coefficients.shape[1:]
    X = np.full((ROWS, d), 0.3, expansion.prototypes.dtype)
    values = model(X)
    assert values.shape == (ROWS, *outputs)
    assert values.dtype == expansion.prototypes.dtype
    if model.novelties is not None:
        try:
            assert model.novelty(X).p_value.shape == (ROWS,)
        except NumericalError as error:
            check_message(error)
    if model.path is not None:
        for size in np.asarray(model.path.sizes).tolist():
            assert model.at(size)(X).shape == (ROWS, *outputs)
        values = model.path.values(jax.numpy.asarray(X))
        assert values.shape == (ROWS, model.path.n_sizes, int(np.prod(outputs)))
    model = load(path, dtype="float64")  # as the command line does
    options = argparse.Namespace(
        model=str(path), file=str(rows), out=f"{path}.csv", precision="float64", stream=False,
        proba=model.inverse_temperatures is not None,
        interval=None if model.conformal is None else 0.5,
    )  # fmt: skip
    try:
        predict.run(options, model)
    except (ModelFileError, TableError, NumericalError) as error:
        check_message(error)
        return f"refused later: {type(error).__name__}"
    except ValueError as error:  # the rows are of other columns
        check_message(error)
        if model.columns is not None:
            raise
        return "refused later: other columns"
    assert len(pa.csv.read_csv(f"{path}.csv")) == ROWS
    return "loaded"


# What is written in the place of the prototypes, by their shape and the number of their values.
DAMAGE = {
    "F8_E4M3": lambda shape, n: ("F8_E4M3", shape, bytes(n)),
    "BF16": lambda shape, n: ("BF16", shape, bytes(2 * n)),
    "shape": lambda shape, n: ("F64", [0, 2**62], b""),
    "not finite": lambda shape, n: ("F64", shape, np.full(n, np.nan).tobytes()),
}
HARMLESS = ("@huge", "@long", "@twice")  # JSON that gives a value
METADATA = (
    "classes", "class_dtype", "code", "decoding", "inverse_temperatures", "quantiles", "columns",
    "about",
)  # fmt: skip


def crafted(parts, how):
    """Return the parts of a model with one invalid value."""
    tensors, text, kind = parts
    tensors, document = dict(tensors), json.loads(text)
    _, shape, content = tensors["prototypes"]
    if how == "no document":
        return tensors, "", kind
    if how in DAMAGE:
        tensors["prototypes"] = DAMAGE[how](shape, len(content) // 8)
    elif how in VERBATIM:
        document["metadata"]["about"]["C"] = how
    elif how == "column":
        document["metadata"]["columns"]["columns"][0]["name"] = ["a"]
    else:
        document["metadata"][how] = [[{"x": 1}]]
    return tensors, with_verbatim(document), kind


def with_verbatim(document):
    text = json.dumps(document)
    for mark, verbatim in VERBATIM.items():
        text = text.replace(json.dumps(mark), verbatim)
    return text


def test_the_command_line_says_one_line_of_a_crafted_file(folder, bases, capsys, cache_folder):
    for how in (*VERBATIM.keys() - HARMLESS, *DAMAGE, "no document", *METADATA, "column"):
        signed(folder / "m", *crafted(bases["several"], how))
        assert main(["predict", str(folder / "m"), str(folder / "rows.csv")]) == 2, how
        output = capsys.readouterr()
        assert output.out == ""
        assert len(output.err.splitlines()) == 1
        assert output.err.startswith(f"jsparse: error: {str(folder / 'm')!r}: expected a"), how
        with pytest.raises(ModelFileError):
            load(folder / "m")


def test_long_documents_are_judged_in_a_time_proportional_to_them(folder, bases):
    tensors, _, kind = bases["history"]
    for text in ("[" * 1_000_000, '"' + '\\"' * 600_000, '{"a":' * 200_000):
        start = time.perf_counter()
        signed(folder / "long", tensors, text, kind)
        with pytest.raises(ModelFileError):
            load_history(folder / "long")
        assert time.perf_counter() - start < 20


def called_from_deep_within(calls, function):
    return called_from_deep_within(calls - 1, function) if calls else function()


def deep_sum(terms):
    kernel = kernels.RBF(1.0)
    for _ in range(terms):
        kernel = kernel + kernels.Linear(1.0)
    return kernel


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("calls", [0, 400])
def test_deep_kernels_from_deep_within(calls, folder):
    model = a_model("numbers", deep_sum(95))
    model.save(folder / "kernels")
    try:
        loaded = called_from_deep_within(calls, lambda: load(folder / "kernels"))
    except ModelFileError as error:
        check_message(error)
        assert calls
    else:
        assert jax.tree.structure(loaded.expansion) == jax.tree.structure(model.expansion)


@pytest.mark.usefixtures("as_users_call")
def test_what_could_not_be_read_is_not_written(tmp_path):
    expansion = a_model("numbers", kernels.RBF(1.0)).expansion
    deep = []
    for _ in range(5000):
        deep = [deep]
    for metadata, words in (
        ({"a": deep}, "document: expected what JSON can hold: maximum recursion"),
        ({"a": [10**5000]}, "document: expected what JSON can hold: Exceeds the limit"),
        ({"a": "x" * 40_000_000}, "at most 40000000 characters"),
    ):
        with pytest.raises(ValueError, match=words):
            save(tmp_path / "m", expansion, metadata)
    for change, words in (
        ({"coefficients": expansion.coefficients * np.nan}, "coefficients: expected finite"),
        ({"coefficients": expansion.coefficients.astype("float32")}, "expected float64, got"),
        ({"intercept": jax.numpy.zeros(3)}, "intercept: expected shape"),
    ):
        with pytest.raises(ValueError, match=words):
            save(tmp_path / "m", dataclasses.replace(expansion, **change))
    assert list(tmp_path.iterdir()) == []
    # Up to there everything is.
    number = {"a": [10**4000 - 1]}
    expansion = dataclasses.replace(expansion, kernel=deep_sum(80))
    save(tmp_path / "m", expansion, number)
    loaded = load(tmp_path / "m")
    assert dict(loaded.about) == number
    assert jax.tree.structure(loaded.expansion) == jax.tree.structure(expansion)


# Changes of the arrays and of the document of a file.


def metadata(**values):
    return lambda arrays, document: document["metadata"].update(values)


def labels(dtype, *classes):
    """Replace the labels, and remove the columns, whose labels would have to be equal."""
    return metadata(columns=None, class_dtype=dtype, classes=list(classes))


def kernel(**values):
    return lambda arrays, document: document["kernel"].update(values)


def array(name, change):
    return lambda arrays, document: arrays.update({name: change(arrays.get(name))})


def path(name, change):
    return array(f"part.path.{name}", change)


def without(name):
    return lambda arrays, document: arrays.pop(name)


NAN, INF = float("nan"), float("inf")
CODE = [[1, -1], [-1, 1], [-1, -1]]
SHAPES = r"path\.\w+: expected (shape|one for each)"
FINITE = "expected finite numbers"
NESTED = [
    (path("support", lambda a: a + 10), r"path.support: expected -1 or numbers of \d+ points"),
    (path("support", lambda a: a - 4), "path.support: expected -1 or numbers"),
    (path("support", np.zeros_like), "path.support: expected each point once"),
    (path("support", lambda a: a.astype(float)), "path.support: expected int32"),
    (path("support", lambda a: a[:, :2]), SHAPES),
    (path("support", lambda a: a[:, :0]), SHAPES),
    (path("support", lambda a: a[:0]), SHAPES),
    (path("support", lambda a: a[0]), "path.support: expected shape g q"),
    (path("points", lambda a: a[:, :2]), "path.points: expected shape M d"),
    (path("points", lambda a: a[0]), "path.points: expected shape M d"),
    (path("points", lambda a: a[:0]), "path.points: expected shape M d"),
    (path("points", lambda a: a[:1]), "path.support: expected -1 or numbers of 1 points"),
    (path("points", lambda a: a.astype(np.float32)), "path.points: expected float64"),
    (path("points", lambda a: a * np.nan), FINITE),
    (path("coefficients", lambda a: a[..., None]), SHAPES),
    (path("coefficients", lambda a: a[..., :0]), SHAPES),
    (path("coefficients", lambda a: np.full_like(a, np.inf)), FINITE),
    (path("intercepts", lambda a: a[None]), SHAPES),
    (path("sizes", lambda a: a - 1), "path.sizes: expected increasing numbers of at least 1"),
    (path("sizes", lambda a: a[:2]), SHAPES),
    (path("statuses", lambda a: a[:0]), SHAPES),
    (path("more", lambda a: np.ones(())), "'more'"),
    (without("part.path.intercepts"), "'intercepts'"),
    (without("part.path.sizes"), "'sizes'"),
]
OVERFLOWS = np.array([191589830, -2085298248], np.int32)  # their difference becomes positive
SIZES = [
    (path("sizes", lambda a: a[::-1].copy()), "path.sizes: expected increasing numbers"),
    (path("sizes", lambda a: a - 2), "path.sizes: expected increasing numbers"),
    (path("sizes", lambda a: OVERFLOWS), "path.sizes: expected increasing numbers"),
    (path("sizes", lambda a: a.astype(float)), "path.sizes: expected int32"),
    (path("sizes", lambda a: a[:1]), SHAPES),
    (path("sizes", lambda a: a[:0]), SHAPES),
    (path("sizes", lambda a: a[0]), SHAPES),
    (path("coefficients", lambda a: a[..., :1, :1]), SHAPES),
    (path("coefficients", lambda a: np.full_like(a, np.inf)), FINITE),
    (path("intercepts", lambda a: a.astype(np.float32)), "path.intercepts: expected float64"),
    (path("statuses", lambda a: a[None]), SHAPES),
    (without("part.path.statuses"), "'statuses'"),
]
# By the file that is changed: changes, and words of the refusal.
NONSENSE = {
    "two classes": [
        (metadata(more=1), "'more'"),
        (lambda a, document: document["metadata"].pop("about"), "'about'"),
        (metadata(about=[1]), "about: expected names and values"),
        (metadata(decoding="best"), "decoding: got 'best'"),
        (metadata(decoding=["loss"]), "decoding"),
        (metadata(classes=None), "classes: expected the classes of"),
        (metadata(classes=["yes", "no"]), "sorted, distinct"),
        (metadata(classes=["no", "off"]), "classes: expected the classes of"),
        (labels("<U3", "yes", "no"), "sorted, distinct"),
        (labels("<U3", "no", "no"), "sorted, distinct"),
        (labels("<U3", "no"), "at least two labels"),
        (labels("<U3", "no", 1), "labels of one type"),
        (labels("<U3", None, None), "numbers, booleans or texts"),
        (labels("<U3", [1], [2]), "numbers, booleans or texts"),
        (metadata(columns=None, classes="no"), "at least two labels"),
        (labels("<U3", "a", "b\0"), "labels of type"),
        (metadata(class_dtype="<U1"), "labels of type '<U1'"),
        (metadata(class_dtype="<i8"), "labels of type '<i8'"),
        (metadata(class_dtype="<U99999999"), "labels of type"),
        (metadata(class_dtype="O"), "labels of type 'O'"),
        (metadata(class_dtype="sometimes"), "sometimes"),
        (metadata(class_dtype=None), "labels of one type, with its name"),
        (metadata(code=CODE), "expected"),
        (metadata(inverse_temperatures=[1.0]), "inverse_temperatures: expected a positive number"),
        (metadata(inverse_temperatures=[1.0, 0.0]), "temperatures: expected a positive number"),
        (metadata(inverse_temperatures=[1.0, NAN]), "temperatures: expected a positive number"),
        (metadata(inverse_temperatures=[1.0, INF]), "expected"),
        (metadata(inverse_temperatures=["a", "b"]), "expected a complete"),
        (metadata(inverse_temperatures={}), "expected a complete"),
        (metadata(columns=[]), "columns: expected names and values"),
        (metadata(columns={}), "schema: expected what"),
        (
            lambda a, document: document["metadata"]["columns"]["columns"].pop(),
            "columns: expected 5 columns as encoded, got 4",
        ),
        (array("part.other", lambda a: np.ones(2)), "'other'"),
        (path("sizes", lambda a: np.ones(())), "path"),
    ],
    "arrays": [
        (labels("|i1", 1, 2, 300), "300"),
        (labels("<f4", 0.1, 0.2, 0.3), "labels of type '<f4'"),
        (labels("<i8", 1, 2, 10**30), "expected a complete"),
        (labels("<f8", 1.0, 2.0, NAN), "labels of type"),
        (metadata(classes=[3, 5]), "code"),
    ],
    "ranks": [
        (without("scaling.scores"), "'scaling.scores'"),
        (array("scaling.knots", np.negative), "scaling.knots: expected columns that do not fall"),
        (array("scaling.scores", np.negative), "scaling.scores: expected columns that do not fall"),
    ],
    "several": [
        (metadata(code=None), "code: expected one"),
        (metadata(code=[[1]]), "expected"),
        (metadata(code=CODE), r"code: expected outputs \(2,\), the model has \(3,\)"),
        (metadata(code=[[0.5, 1, 1], [-1, 1, -1], [-1, -1, 1]]), "expected"),
        (metadata(code="one_versus_rest"), "expected a complete"),
        (metadata(code=[[1, -1, 1], [1, -1, 1], [1, -1, 1]]), "expected"),
        (metadata(quantiles=[0.1, 0.5, 0.9]), "quantiles: expected"),
    ],
    "regression": [
        (metadata(code=CODE), "code: expected classes with it"),
        (metadata(inverse_temperatures=[1.0, 1.0]), "inverse_temperatures: expected"),
        (metadata(classes=["a", "b"], class_dtype="<U1"), "classes of the columns"),
        (metadata(class_dtype="<U1"), "class_dtype: expected '' without classes"),
        (without("coefficients"), "complete .*coefficients"),
        (without("kernel.lengthscale"), "complete .*lengthscale"),
        (without("scaling.scale"), "complete .*scaling.scale"),
        (lambda a, document: document.pop("kernel"), "complete .*kernel"),
        (kernel(**{"class": "eval"}), "complete .*'eval' is none of"),
        (kernel(other=1), "complete .*other"),
        (array("scaling.shift", lambda a: np.ones(2)), "complete .*fit together"),
        (array("coefficients", lambda a: np.ones(3)), "complete .*fit together"),
        (array("intercept", lambda a: np.ones(2)), "complete .*fit together"),
    ],
    "quantiles": [
        (metadata(quantiles=[0.1, 0.9]), "quantiles: expected increasing numbers"),
        (metadata(quantiles=[0.5, 0.1, 0.9]), "quantiles: expected increasing numbers"),
        (metadata(quantiles=[0.0, 0.5, 0.9]), "quantiles: expected increasing numbers"),
        (metadata(quantiles=[0.1, 0.5, 1.0]), "quantiles: expected increasing numbers"),
        (metadata(quantiles=0.5), "quantiles: expected increasing numbers"),
        (metadata(quantiles=[[0.5]]), "quantiles: expected increasing numbers"),
        (metadata(quantiles=[]), "conformal"),
        (metadata(quantiles=["a", "b", "c"]), "expected a complete"),
        (metadata(quantiles=[0.1, 0.5, NAN]), "quantiles: expected"),
    ],
    "nested": NESTED,
    "separate": NESTED,
    "sizes": [*SIZES, (path("points", lambda a: a[:-1]), SHAPES)],
    "dictionary": [  # prototypes of several kernels
        *SIZES,
        (path("support", lambda a: np.ones((1, 2), np.int32)), r"\['support'\] not expected"),
        (array("prototypes", lambda a: np.ones(())), "prototypes: expected shape m d"),
    ],
}


@pytest.mark.parametrize(
    ("base", "change", "words"), [(base, *case) for base in NONSENSE for case in NONSENSE[base]]
)
@pytest.mark.filterwarnings("error")
def test_parts_of_a_model_that_make_no_sense(folder, bases, base, change, words, tmp_path):
    arrays, document = load_state(folder / base, kind="model")
    change(arrays, document)
    save_state(tmp_path / "m", arrays, document, kind="model")
    with pytest.raises(ModelFileError, match="expected a") as caught:
        load(tmp_path / "m")
    check_message(caught.value)
    assert re.search(words, str(caught.value))


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("examples", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_crafted_file_is_a_model_or_refused(folder, bases, examples):
    counts = Counter()

    @crafted_examples(examples)
    @hypothesis.given(st.data())
    def check_file(data):
        parts = craft(data.draw, bases[data.draw(st.sampled_from(sorted(bases)))])
        signed(folder / "crafted", *parts)
        counts[outcome(folder / "crafted", parts[2], folder / "rows.csv")] += 1

    check_file()
    # Not vacuous: some changes leave a model.
    assert counts["refused"] > 0.4 * examples
    assert counts["loaded"] > 0.02 * examples
