"""Saved models predict the same to the last bit; every bad file is refused with its reason."""

import dataclasses
import itertools
import json
import os
import pathlib
import re
import stat
import subprocess
import sys
import tempfile
import warnings

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from families import KINDS, LONGEST, SIZES, model_of_sizes

import jsparse
from jsparse import Model, kernels, load, save, serialization
from jsparse._status import PrecisionWarning
from jsparse.cli.main import main
from jsparse.conformal import conformal_scores
from jsparse.expansion import KernelExpansion
from jsparse.multiclass import output_code
from jsparse.scaling import standardize
from jsparse.serialization import (
    ModelFileError,
    OutputError,
    atomic_path,
    check_writable,
    load_state,
    save_state,
)

D, M = 3, 5


def every_kernel():
    lengthscale = np.array([0.7, 1.3, 2.9])
    rbf = kernels.RBF(jnp.asarray(lengthscale))
    return {
        "rbf": kernels.RBF(jnp.asarray(1 / 3)),
        "rbf per column": rbf,
        "rbf sigma2": kernels.RBF.from_sigma2(2.3),
        "laplacian": kernels.Laplacian(0.9),
        "matern32": kernels.Matern32(jnp.asarray(lengthscale)),
        "matern52": kernels.Matern52(1.1),
        "rational quadratic": kernels.RationalQuadratic(1.1, 0.6),
        "linear": kernels.Linear(0.5),
        "polynomial": kernels.Polynomial(3, 0.4, 1.2),
        "projected": kernels.Projected(kernels.Matern32(1.1), np.array([[0.5, -1.0, 2.0]])),
        "nested": 0.3 * (rbf + kernels.Linear() * kernels.Polynomial(2, 1.0, 0.1)),
        "product": rbf * kernels.Laplacian(2.0) + kernels.Scaled(kernels.Matern52(1.0), 3.0),
    }


def model(kernel=None, dtype="float64", outputs=(), scaled=True):
    rng = np.random.default_rng(0)
    X = jnp.asarray(7 + 3 * rng.normal(size=(20, D)), dtype)
    return KernelExpansion(
        kernel=kernels.RBF(jnp.asarray(1.5, dtype)) if kernel is None else kernel,
        prototypes=jnp.asarray(rng.normal(size=(M, D)), dtype),
        coefficients=jnp.asarray(rng.normal(size=(M, *outputs)), dtype),
        intercept=jnp.asarray(rng.normal(size=outputs), dtype),
        scaling=standardize(X) if scaled else None,
    )


def inputs(dtype="float64"):
    return jnp.asarray(7 + 3 * np.random.default_rng(1).normal(size=(11, D)), dtype)


def same(ours, theirs):
    """Assert that two pytrees have equal structures, and leaves equal in every bit."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", list(every_kernel()))
def test_every_kernel_comes_back_to_the_last_bit(tmp_path, name, dtype):
    expansion = model(every_kernel()[name], dtype)  # made under this leg's precision
    save(tmp_path / "model.safetensors", expansion)
    loaded = load(tmp_path / "model.safetensors")
    same(loaded.expansion, expansion)
    assert loaded.about == {}
    parts = (loaded.path, loaded.inverse_temperatures, loaded.code, loaded.classes, loaded.columns)
    assert parts == (None,) * 5


def test_every_shape_comes_back_and_predicts_the_same(tmp_path, dtype):
    for outputs, scaled in itertools.product([(), (1,), (3,)], [True, False]):
        expansion = model(dtype=dtype, outputs=outputs, scaled=scaled)
        save(tmp_path / "m", expansion)
        loaded = load(tmp_path / "m")
        same(loaded.expansion, expansion)
        assert loaded(inputs(dtype)).shape == (11, *outputs)
        np.testing.assert_array_equal(loaded(inputs(dtype)), expansion(inputs(dtype)))


def test_arrays_of_any_order_and_byte_order_come_back_and_others_are_refused(tmp_path):
    a = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    arrays = {"a": a, "b": np.arange(10)[::3], "c": a.T, "d": np.arange(3).astype(">i8")}
    save_state(tmp_path / "s", arrays, {})
    loaded, _ = load_state(tmp_path / "s")
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
    for array in (np.array(["text"]), np.array([object()]), np.array([1j])):
        with pytest.raises(ValueError, match="array 'a': expected dtype bool, int8"):
            save_state(tmp_path / "t", {"a": array}, {})


def test_metadata_come_back_with_their_types_and_those_of_numpy_become_plain(tmp_path):
    metadata = {
        "classes": ["1", 1, 1.0, True, None, "<=50K", "é\n\"'"],
        "C": 2.0,
        "rows": 10**20,
        "nested": {"columns": [{"name": "age", "fill": 0.1}], "empty": []},
        "odd": [1e-320, float("inf")],
    }
    of_numpy = {
        "labels": np.array(["a", "b"]),
        "counts": (np.int64(3), np.float32(0.5), np.bool_(True)),
        "score": jnp.asarray(0.25),
    }
    save(tmp_path / "m", model(), metadata | of_numpy)
    loaded = dict(load(tmp_path / "m").about)
    plain = {"labels": ["a", "b"], "counts": [3, 0.5, True], "score": 0.25}
    assert loaded == metadata | plain
    assert [type(value) for value in loaded["classes"]] == [*map(type, metadata["classes"])]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
numbers = st.sampled_from(["f4", "f8", "i4", "i8", "u4", "b1"]).flatmap(
    lambda kind: hypothesis.extra.numpy.arrays(
        np.dtype(kind), hypothesis.extra.numpy.array_shapes(min_dims=0, max_side=3, min_side=0)
    )
)


@hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
@hypothesis.given(
    arrays=st.dictionaries(st.text("ab._", min_size=1, max_size=4), numbers, max_size=3),
    document=st.dictionaries(st.text(max_size=3), json_values, max_size=3),
)
def test_states_survive_bit_for_bit(tmp_path_factory, arrays, document):
    path = tmp_path_factory.getbasetemp() / "state"
    save_state(path, arrays, document)
    ours, text = load_state(path)
    assert text == document
    assert json.dumps(text) == json.dumps(document)  # 1 is not 1.0, nor True
    assert sorted(ours) == sorted(arrays)
    for name, array in arrays.items():
        assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape)
        assert ours[name].tobytes() == array.tobytes()


def test_equal_models_have_equal_files_that_any_safetensors_reader_can_open(tmp_path):
    expansion = model(every_kernel()["nested"])
    save(tmp_path / "m", expansion, {"task": "regression"})
    for _ in range(9):  # safetensors orders metadata at random
        save(tmp_path / "again", expansion, {"task": "regression"})
        assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()
    with safetensors.safe_open(tmp_path / "m", framework="numpy") as file:
        header = file.metadata()
        names = set(file.keys())
        np.testing.assert_array_equal(file.get_tensor("prototypes"), expansion.prototypes)
    assert {"prototypes", "coefficients", "intercept", "scaling.shift", "scaling.scale"} < names
    assert any(name.startswith("kernel.") and name.endswith(".lengthscale") for name in names)
    assert (header["format"], header["format_version"], header["kind"]) == ("jsparse", "1", "model")
    document = json.loads(header["document"])
    assert document["kernel"]["class"] == type(expansion.kernel).__name__
    assert document["versions"]["jax"] == jax.__version__
    assert b"pickle" not in (tmp_path / "m").read_bytes()


def test_what_cannot_be_saved(tmp_path, as_users_call):
    custom = kernels.Custom(lambda params, x, z: params * jnp.sum(x * z), jnp.asarray(1.0))

    class RBF(kernels.RBF):
        """A user's kernel with the name of a kernel of the package."""

    def save_metadata(metadata):
        save(tmp_path / "m", model(), metadata)

    wrong = [
        (lambda: save(tmp_path / "m", model(custom)), "got Custom, which holds a Python function"),
        (
            lambda: save(tmp_path / "m", model(custom + kernels.RBF(1.0))),
            r"kernel\.left: expected one of jsparse's own kernels",
        ),
        (lambda: save(tmp_path / "m", model(RBF(1.0))), "own kernels"),
        (lambda: save_metadata({"when": object()}), r"\['about'\]\['when'\]: .* got object"),
        (
            lambda: save_metadata({"a": [{"b": {1: 2}}]}),
            r"\['a'\]\[0\]\['b'\]: expected keys that are strings, got 1",
        ),
        (lambda: save_metadata({"raw": b"bytes"}), "got bytes"),
    ]
    wrong += [
        (lambda other=other: save(tmp_path / "m", other), "model: expected a Model .* or a Kernel")
        for other in (None, jnp.ones(3), {"a": 1}, kernels.RBF(1.0))
    ]
    wrong += [
        (lambda kind=kind: labelled(["2020-01-01", "2020-01-02"], kind).save(tmp_path / "m"),
         "classes: expected numbers or texts of at most")
        for kind in ("datetime64[D]", "U20000")
    ]  # fmt: skip
    for call, words in wrong:
        with pytest.raises(ValueError, match=words):
            call()
    assert list(tmp_path.iterdir()) == []


def test_files_of_others_and_of_other_versions_are_refused(tmp_path):
    path = tmp_path / "other"
    header = {"format": "jsparse", "kind": "model"}
    for metadata, words in (
        ({"format": "pt"}, r"of other origin \(format 'pt'\)"),
        (None, "of other origin"),
        (header | {"format_version": "2"}, "format of version 1; it has version"),
        (header | {"format_version": "one"}, "format of version 1; it has version"),
        (header, "format of version 1; it has version"),
    ):
        path.write_bytes(safetensors.numpy.save({"w": np.ones(3)}, metadata=metadata))
        with pytest.raises(ModelFileError, match=words):
            load(path)
    save_state(path, {"w": np.ones(3)}, kind="search", document={})
    for place, words in (
        (path, r"expected a jsparse model .* holds a jsparse search"),
        (tmp_path / "nothing", "there is no such file"),
        (tmp_path, "it is a folder"),
    ):
        with pytest.raises(ModelFileError, match=words):
            load(place)


def test_float64_model_without_float64_says_so(tmp_path):
    expansion = model()
    save(tmp_path / "m", expansion)
    with jax.enable_x64(False):
        with pytest.warns(PrecisionWarning, match="float64 is switched off") as caught:
            loaded = load(tmp_path / "m").expansion
        assert caught[0].filename == __file__
        assert {leaf.dtype for leaf in jax.tree.leaves(loaded)} == {jnp.dtype("float32")}
        values = loaded(inputs("float32"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            as_float32 = load(tmp_path / "m", dtype="float32")
        np.testing.assert_array_equal(as_float32(inputs("float32")), values)
        with pytest.raises(ValueError, match="float64 is switched off"):
            load(tmp_path / "m", dtype="float64")
    np.testing.assert_allclose(values, expansion(inputs()), rtol=1e-4, atol=1e-5)


def test_dtype_on_request(tmp_path):
    expansion = model(dtype="float32")
    save(tmp_path / "m", expansion)
    kept = load(tmp_path / "m").expansion  # float64 is on, yet the model stays what it was
    assert kept.prototypes.dtype == jnp.float32
    np.testing.assert_array_equal(kept(inputs("float32")), expansion(inputs("float32")))
    widened = load(tmp_path / "m", dtype="float64")
    assert {leaf.dtype for leaf in jax.tree.leaves(widened)} == {jnp.dtype("float64")}
    with pytest.raises(ValueError, match="got 'int8'"):
        load(tmp_path / "m", dtype="int8")
    huge = model()
    huge = KernelExpansion(huge.kernel, huge.prototypes, huge.coefficients * 1e60, huge.intercept)
    save(tmp_path / "huge", huge)
    with pytest.raises(ValueError, match="coefficients holds values too large for float32"):
        load(tmp_path / "huge", dtype="float32")


def test_a_failed_write_leaves_the_old_file_and_errors_of_the_block_stay(tmp_path, monkeypatch):
    path = tmp_path / "m"
    save(path, model())
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    for method in ("replace", "write_bytes"):
        with monkeypatch.context() as broken:
            broken.setattr(pathlib.Path, method, full)
            with pytest.raises(OutputError, match="m': cannot be written: No space left on device"):
                save(path, model(outputs=(2,)))

    def written(error):
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half")
            raise error

    for error in (KeyboardInterrupt, FileNotFoundError):
        with pytest.raises(error):
            written(error)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_paths_of_bytes_and_paths_that_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = os.fsencode(tmp_path / "é")
    check_writable(path)
    save(path, model())
    same(load(path).expansion, model())
    same(load(tmp_path / "é").expansion, model())
    for wrong in ("", b"", "a\0b", b"a\0b", "\ud800"):
        for refusal, attempt in (
            (OutputError, check_writable),
            (OutputError, lambda where: save(where, model())),
            (ModelFileError, load),
        ):
            with pytest.raises(refusal, match="expected a path"):
                attempt(wrong)
    assert os.listdir() == ["é"]


def test_written_files_have_the_users_permissions(tmp_path):
    old = os.umask(0o027)
    try:
        save(tmp_path / "m", model())
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o640
    (tmp_path / "m").chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "m")
    save(link, model())
    assert link.is_symlink()
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("nowhere/m", "there is no folder"),
        (".", "a folder"),
        ("old/m", "there is no folder"),
        ("pipe", "not a regular file"),
        ("n" * 300, "File name too long"),
        ("/proc/m", "cannot be written"),
    ],
)
def test_writability_is_known_beforehand_and_nothing_is_left(tmp_path, place, words):
    old, pipe = tmp_path / "old", tmp_path / "pipe"
    old.write_text("a file")
    os.mkfifo(pipe)
    stamp = old.stat().st_mtime_ns
    check_writable(tmp_path / "new.csv.gz")
    check_writable(old)
    path = tmp_path / place
    for attempt in (check_writable, lambda where: save(where, model())):
        with pytest.raises(OutputError) as caught:
            attempt(path)
        assert words in str(caught.value)
        assert os.path.realpath(path) in str(caught.value)
    assert (old.read_text(), old.stat().st_mtime_ns) == ("a file", stamp)
    assert sorted(tmp_path.iterdir()) == [old, pipe]


@pytest.fixture
def folder_of_a_user():
    """Return a folder of a user without rights; meanwhile the process runs as this user."""
    with tempfile.TemporaryDirectory() as folder:
        root, nobody = os.geteuid() == 0, 65534
        if root:
            os.chown(folder, nobody, nobody)
            os.setresuid(nobody, nobody, 0)
        try:
            yield pathlib.Path(folder)
        finally:
            if root:
                os.setresuid(0, 0, 0)


def test_permissions_are_respected(folder_of_a_user):
    tmp_path = folder_of_a_user
    (tmp_path / "old").write_text("precious")
    (tmp_path / "old").chmod(0o444)
    with pytest.raises(OutputError, match="read-only"):
        check_writable(tmp_path / "old")
    tmp_path.chmod(0o555)
    with pytest.raises(OutputError, match="Permission denied"):
        check_writable(tmp_path / "new")
    tmp_path.chmod(0o755)
    save(tmp_path / "secret", model())
    (tmp_path / "secret").chmod(0)
    with pytest.raises(ModelFileError, match="cannot be read: Permission denied"):
        load(tmp_path / "secret")


# Writes half a file, says so, and waits to be killed.
WRITER = """
import sys
from jsparse._files import atomic_path
with atomic_path(sys.argv[1]) as scratch:
    with scratch.open("wb") as file:
        file.write(b"half")
        file.flush()
        print("half", flush=True)
        sys.stdin.read()
"""


def test_a_killed_process_leaves_the_old_model(tmp_path):
    path = tmp_path / "m"
    save(path, model())
    before = path.read_bytes()
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"half\n"
        process.kill()  # SIGKILL: no line of it runs any more
        process.wait()
    assert path.read_bytes() == before
    (left,) = set(tmp_path.iterdir()) - {path}
    assert left.name.startswith(".jsparse-")
    save(path, model(outputs=(2,)))
    same(load(path).expansion, model(outputs=(2,)))


def test_the_parts_below_a_model_come_back_too(tmp_path):
    parts = {"a": np.arange(3, dtype=np.int32), "b": np.ones((2, 0))}
    serialization.save(tmp_path / "m", model(), {"note": 1}, parts)
    expansion, metadata, arrays = serialization.load(tmp_path / "m")
    same(expansion, model())
    assert metadata == {"note": 1}
    assert sorted(arrays) == ["a", "b"]
    for name, array in parts.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(arrays[name], array)
    with pytest.raises(ModelFileError, match="expected a complete jsparse model"):
        load(tmp_path / "m")  # it is no `Model`


def same_content(path, other):
    (arrays, document), (others, also) = (load_state(p, kind="model") for p in (path, other))
    assert document == also
    assert sorted(arrays) == sorted(others)
    for name, array in arrays.items():
        assert (array.dtype, array.shape) == (others[name].dtype, others[name].shape)
        assert array.tobytes() == others[name].tobytes()


def labelled(labels, dtype=None):
    """Return a model of two or more classes."""
    known = np.array(labels, dtype=dtype)
    code = None if len(labels) == 2 else output_code("one_versus_rest", len(labels))
    outputs = () if code is None else (len(labels),)
    return Model(
        model(outputs=outputs),
        inverse_temperatures=np.linspace(1.0, 2.0, len(labels)),
        code=code,
        labels=tuple(known.tolist()),
        label_dtype=known.dtype.str,
    )


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        *[([0, 7, 100], kind) for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")],
        ([-(2**63), 0, 2**63 - 1], "i8"),
        ([0, 2**64 - 1], "u8"),
        *[([-0.5, 0.25, 1e4], kind) for kind in ("f2", "f4", "f8")],
        ([0.1, 0.3, 1e300], "f8"),
        ([float(np.float32(0.1)), float(np.float32(0.3))], "f4"),
        ([False, True], "?"),
        (["a", "é\n", "字"], None),
        (["", "no"], "U20"),
        (["1", "10", "9"], None),
    ],
)
def test_labels_of_every_type(tmp_path, labels, named):
    for order in "<>":
        kind = np.array(labels, dtype=named).dtype.newbyteorder(order)
        ours = labelled(labels, kind)
        ours.save(tmp_path / "m")
        loaded = load(tmp_path / "m")
        assert loaded.classes.dtype == ours.classes.dtype == kind
        assert loaded.classes.tolist() == labels
        assert [type(label) for label in loaded.labels] == [type(label) for label in labels]
        X = np.asarray(inputs())
        assert loaded.predict(X).dtype == kind
        np.testing.assert_array_equal(loaded.predict(X), ours.predict(X))
        np.testing.assert_array_equal(loaded.predict_proba(X), ours.predict_proba(X))
        if ours.code is not None:
            np.testing.assert_array_equal(loaded.code.matrix, ours.code.matrix)
        # What is loaded is saved as it was.
        loaded.save(tmp_path / "again")
        same_content(tmp_path / "again", tmp_path / "m")


def sizes_of(kind):
    """Return the sizes of a family, and the words for them in messages."""
    if kind in ("sizes", "dictionary"):
        return SIZES, "[2, 4]"
    return range(1, LONGEST + 1), f"1 to {LONGEST}"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if kind in ("joint", "dictionary") else ())
        for kind in KINDS
    ],
)
def test_machines_of_all_sizes_are_saved(tmp_path, kind):
    ours, X = model_of_sizes(kind)
    assert ours.path.info == {}
    ours.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    same(loaded.expansion, ours.expansion)
    same(loaded.path, ours.path.compact())
    sizes, words = sizes_of(kind)
    for size in sizes:
        mine, read = ours.at(size), loaded.at(size)
        np.testing.assert_array_equal(read(X), mine(X))
        assert read.size == mine.size
        assert read.about == mine.about or dict(read.about) == dict(mine.about)
        np.testing.assert_array_equal(read.predict(X), mine.predict(X))
        if size == (4 if kind != "joint" else 3):  # the selected size
            np.testing.assert_array_equal(read.predict_proba(X), ours.predict_proba(X))
        else:
            with pytest.raises(ValueError, match="only the selected size"):
                read.predict_proba(X)
    for size in (0, 7):
        with pytest.raises(ValueError, match=re.escape(f"expected one of {words}, got {size}")):
            loaded.at(size)
    exported = ["export", str(tmp_path / "m"), "--size", str(sizes[-1])]
    assert main([*exported, "--to", "numpy", "--out", str(tmp_path / "folder")]) == 0
    assert main([*exported, "--to", "jsparse"]) == 0
    for file in (tmp_path / "folder" / "model.jsparse", tmp_path / "m-exported.jsparse"):
        np.testing.assert_array_equal(load(file)(X), ours.at(sizes[-1])(X))
    # A single size may be saved too, and what is loaded again.
    loaded.at(2).save(tmp_path / "two")
    np.testing.assert_array_equal(load(tmp_path / "two")(X), ours.at(2)(X))
    loaded.save(tmp_path / "again")
    same_content(tmp_path / "again", tmp_path / "m")
    # In less precision every size is there as well.
    narrow = load(tmp_path / "m", dtype="float32")
    for size in (sizes[0], sizes[-1]):
        values = narrow.at(size)(X.astype(np.float32))
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, ours.at(size)(X), rtol=1e-3, atol=1e-3)


def test_a_cast_in_memory_is_the_cast_of_a_file(tmp_path):
    model, X = model_of_sizes("nested")
    errors = conformal_scores(np.random.default_rng(0).uniform(size=60))
    model = dataclasses.replace(model, path=model.path.compact(), conformal=errors)
    model.save(tmp_path / "model")
    loaded, cast = jsparse.load(tmp_path / "model", dtype="float32"), model.astype("float32")
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(cast), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(loaded.predict_proba(X), cast.predict_proba(X))
    with pytest.raises(ValueError, match="dtype: expected 'float32', 'float64' or None, got 'int'"):
        model.astype("int")
    with jax.enable_x64(False), pytest.raises(ValueError, match="float64 is switched off"):
        cast.astype("float64")
