"""Invalid arguments, at every function that users call.

Each invalid value raises a `ValueError` that names the argument, before any work. No error of
another library reaches the user. Scalars of NumPy and JAX are accepted as numbers.
"""

import dataclasses
import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jsparse
from jsparse import kernels, prototypes, pursuit
from jsparse._arguments import as_key
from jsparse._numerics import as_array
from jsparse.cli.main import main
from jsparse.data.streams import ArrayStream, StreamError
from jsparse.estimators import (
    FixedSizeLSSVMClassifier,
    FixedSizeLSSVMRegressor,
    SCDPClassifier,
    SCDPRegressor,
    SpSVMClassifier,
)
from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.machines import fixed_size, one_class, spsvm
from jsparse.solvers import conjugate_gradients

pytestmark = pytest.mark.usefixtures("as_users_call")

KEY = jax.random.key(0)
NAN, INF = float("nan"), float("inf")
X = np.random.default_rng(0).standard_normal((40, 2))
Y = X[:, 0] * X[:, 1]
LABELS = Y > 0

NOT_INTEGERS = (2.5, True, np.True_, NAN, "x", [], [3], np.array([3]), object())
NOT_COUNTS = (*NOT_INTEGERS, 0, -1)
NOT_SIZES = [value for value in NOT_COUNTS if value != [3]]  # a list holds sizes to choose from
NOT_REAL = ("x", True, [], object(), NAN, 1j, np.ones(2), -1.0)
NOT_POSITIVE = (*NOT_REAL, 0.0, INF)
NO_NAMES = ("x", 3, [], object())
NO_KEYS = (2.5, True, None, "x", np.zeros(2), jax.random.split(KEY, 2))
NO_NUMBERS = ("x", object(), None, [], ["1"], [[1.0], [1.0, 2.0]], [1j])


def mixed(*labels):
    return [labels[i % len(labels)] for i in range(40)]


PARTS = {
    "search": jsparse.Profile,
    "multiclass": jsparse.Multiclass,
    "resources": jsparse.Resources,
}


def train(kind=jsparse.FixedSize, *, streamed=False, **options):
    """Train; each option becomes a field of the method or of the part that has its name."""
    for name, part in {"method": kind, **PARTS}.items():
        fields = {field.name for field in dataclasses.fields(part)}
        values = {key: options.pop(key) for key in fields & set(options)}
        options.setdefault(name, part(**values))
    if "share" in options:
        options["folds"] = jsparse.HoldOut(options.pop("share"))
    table, y = options.pop("X", X), options.pop("y", Y)
    options = {"task": "regression", "key": KEY, **options}
    if streamed:
        stream = options.pop("stream", None)
        return jsparse.train(ArrayStream(table, y) if stream is None else stream, **options)
    return jsparse.train(table, y, **{"folds": 3, **options})


def plan_of_search(**options):
    return jsparse.plan(100, 3, 10, streamed=True, search=jsparse.Profile(**options))


MESH = Mesh(np.array(jax.devices()[:1]), ("rows",))
SEARCH = {
    "key": NO_KEYS,
    "kernel": (*NO_NAMES, RBF),
    "metric": NO_NAMES,
    "method": (*NO_NAMES, jsparse.FixedSize),
    "decoding": NO_NAMES,
    "search": (*NO_NAMES, jsparse.Profile),
    "preset": NO_NAMES,
    "max_evaluations": NOT_COUNTS,
    "resources": (*NO_NAMES, None),
    "max_seconds": NOT_REAL,
    "C": [v for v in (*NO_NUMBERS, -1.0, [-1.0], [0.0], [NAN], [INF], [[1.0]]) if v is not None],
    "progress": ("x", 1),
    "history": ("x", 1, [1], object()),
    "start": ("x", 1, object()),
    "task": (*NO_NAMES, None),
}
CANDIDATES = {
    "max_prototypes": (*NOT_COUNTS, 99),
    "candidates": (2.5, True, "x", 0, -1, 99, object(), X[:3, :1], [], [[1.0], [1.0, 2.0]], [NAN]),
    "candidate_method": NO_NAMES,
    "subset": (*NOT_COUNTS, 99),
    "size_tolerance": (*NOT_REAL, INF),
}
FEW = {"n_prototypes": 5}
CLASSES = {"y": LABELS, "task": "classification"}
NOT_LENGTHS = [value for value in NOT_POSITIVE if not isinstance(value, np.ndarray)]
DRAWN = {"key": KEY, "X": X, "n_prototypes": 3}
NOT_DRAWN = {"key": NO_KEYS, "n_prototypes": (*NOT_COUNTS, 99)}

# Of each call: the function, valid arguments, and invalid values of arguments.
CALLS = {
    "train": (train, FEW, {
        **SEARCH,
        "n_prototypes": (*NOT_SIZES, 99, "all", [6, 3], [2.5], [True, 4]),
        "size_tolerance": (*NOT_REAL, INF),
        "selection": NO_NAMES,
        "folds": (*NOT_COUNTS, 1, 99, None, jsparse.HoldOut(0.3)),
        "weights": ("x", object(), [], -np.ones(40), np.zeros(40), np.ones(3), ["a"] * 40),
        "memory": (-1, 0, "x", NAN, True, []),
        "mesh": ("x", 1),
        "X": ("x", None, object(), [], 0, X[:, 0], X[:0], X[:, :0], X * NAN, [[1.0], []]),
        "y": ("x", None, Y[:3], Y * NAN, Y[:, None, None], Y.astype(str), Y.astype(complex)),
        "class_weight": ("balanced",),
        "classes": ([1.0, 2.0],),
    }),
    "train, two classes": (train, FEW | CLASSES, {
        "class_weight": ("x", 3, [1, 2], {True: -1.0}, {True: 0}, {True: "x"}, {5: 1.0}),
        "classes": ([True], [1, "a"], 3, [[0, 1]], object()),
        "weights": (np.where(LABELS, 0.0, 1.0),),
        "multiclass": NO_NAMES,
    }),
    "train, three classes": (train, {**FEW, **CLASSES, "y": np.arange(40) % 3}, {
        "scheme": (*NO_NAMES, np.ones((2, 2)), np.full((3, 3), 0.5), np.zeros((3, 2))),
        "multiclass": (*NO_NAMES, np.ones((2, 2))),
    }),
    "train, Dual": (train, {"kind": jsparse.Dual}, {"mesh": (MESH,), "memory": (0,)}),
    "train, Robust": (train, {"kind": jsparse.Robust, **FEW}, {
        "n_prototypes": (*NOT_SIZES, 99, [6, 3]),
        "size_tolerance": (*NOT_REAL, INF),
        "selection": NO_NAMES,
        "loss": (*NO_NAMES, None, "squared"),
        "quantile": (0.5, "x", NAN),  # with Huber's loss
        "mesh": (MESH,),
    }),
    "train, SCDP": (train, {"kind": jsparse.SCDP}, {
        **CANDIDATES,
        "stopping": (1, "x", jsparse.Stopping(-1, 0.1), jsparse.Stopping(3, NAN)),
        "selection": NO_NAMES,
        "nu": (*NOT_REAL, INF),
        "C_per_problem": (True,),
    }),
    "train, SpSVM": (train, {"kind": jsparse.SpSVM, **CLASSES}, {
        **CANDIDATES,
        "growth": (*NOT_REAL, 0.5),
        "task": (*NO_NAMES, "regression"),
        "mesh": (MESH,),
    }),
    "train, stream": (train, {"streamed": True, **FEW}, {
        **SEARCH,
        "stream": ("x", 3, object(), [1], [(X,)], [(X, Y, None, 3)], [], iter([(X, Y)])),
        "n_prototypes": (*NOT_SIZES, [6, 3]),
        "folds": (*NOT_COUNTS, 1, jsparse.Folds(np.zeros((2, 20), int), np.ones((2, 20), bool))),
        "share": (*NOT_POSITIVE, 1.0),
        "sample_rows": (*NOT_COUNTS, 1),
        "selection": NO_NAMES,
        "memory": (-1, "x", NAN),
        "mesh": ("x", 1),
        "weights": (np.ones(40),),
        "classes": ([1, 2],),
        "method": (*SEARCH["method"], jsparse.Dual(), jsparse.Robust(5), jsparse.SpSVM(5)),
    }),
    "plan": (jsparse.plan, {"n": 100, "d": 3, "n_prototypes": 10, "streamed": True}, {
        **dict.fromkeys(("n", "d", "n_prototypes", "n_C", "batch_rows", "sample_rows"), NOT_COUNTS),
        "folds": (*NOT_COUNTS, 1),
        "n_parameters": (*NOT_INTEGERS, -1),
        "search": (*NO_NAMES, None),
        "memory": ("x", -1, True, NAN),
    }),
    "plan of a search": (plan_of_search, {}, {"max_evaluations": NOT_COUNTS}),
    "plain_folds": (
        jsparse.plain_folds, {"key": KEY, "n": 40, "v": 3},
        {"key": NO_KEYS, "n": NOT_COUNTS, "v": (*NOT_COUNTS, 1, 99, None)},
    ),
    "stratified_folds": (jsparse.stratified_folds, {"key": KEY, "labels": LABELS, "v": 3}, {
        "key": NO_KEYS,
        "labels": (mixed("a", 1), mixed(1.0, NAN)),
        "v": (*NOT_COUNTS, 1, 99),
    }),
    "uniform": (
        prototypes.uniform, {"key": KEY, "n": 40, "n_prototypes": 3},
        {**NOT_DRAWN, "n": NOT_COUNTS},
    ),
    "stratified": (prototypes.stratified, {"key": KEY, "labels": LABELS, "n_prototypes": 3}, {
        "key": NO_KEYS,
        "n_prototypes": (*NOT_COUNTS, 1, 99),
        "labels": ("x", [], mixed("a", 1), np.array(mixed("a", 1), object)),
        "weights": ("x", -np.ones(40), np.zeros(40), np.ones(3)),
    }),
    "renyi": (
        prototypes.renyi, DRAWN, {**NOT_DRAWN, "candidates": NOT_COUNTS, "max_trials": NOT_COUNTS}
    ),
    "k_center": (prototypes.k_center, DRAWN, NOT_DRAWN),
    "k_means": (prototypes.k_means, DRAWN, {**NOT_DRAWN, "max_iterations": NOT_COUNTS}),
    "pivoted_cholesky": (prototypes.pivoted_cholesky, {**DRAWN, "kernel": RBF(1.0)}, NOT_DRAWN),
    "interleaved": (
        prototypes.interleaved, {"key": KEY, "n_prototypes": 3},
        {"key": NO_KEYS, "n_prototypes": NOT_COUNTS, "labels": ("x", [1, 2])},
    ),
    "RationalQuadratic": (
        kernels.RationalQuadratic, {"lengthscale": 1.0},
        {"lengthscale": NOT_LENGTHS, "alpha": NOT_POSITIVE},
    ),
    "Polynomial": (
        kernels.Polynomial, {},
        {"degree": NOT_COUNTS, "scale": NOT_POSITIVE, "offset": (*NOT_REAL, INF)},
    ),
    "Linear": (kernels.Linear, {}, {"offset": (*NOT_REAL, INF)}),
    "Scaled": (
        kernels.Scaled, {"kernel": RBF(1.0), "variance": 1.0},
        {"kernel": (*NO_NAMES, None), "variance": NOT_POSITIVE},
    ),
    "Projected": (
        kernels.Projected, {"kernel": RBF(1.0), "matrix": [[1.0, 2.0]]},
        {"kernel": (*NO_NAMES, None), "matrix": (*NOT_REAL, INF, [1.0, 2.0])},
    ),
    **{
        kind.__name__: (
            kind, {"left": RBF(1.0), "right": RBF(1.0)}, {"left": NO_NAMES, "right": (None, RBF)}
        )
        for kind in (kernels.Sum, kernels.Product)
    },
    "Custom": (kernels.Custom, {}, {"fn": ("x", None)}),
    **{
        kind.__name__: (kind, {}, {"lengthscale": NOT_LENGTHS})
        for kind in (kernels.RBF, kernels.Laplacian, kernels.Matern32, kernels.Matern52)
    },
    "from_sigma2": (RBF.from_sigma2, {}, {"sigma2": NOT_LENGTHS}),
    "from_gamma": (RBF.from_gamma, {}, {"gamma": NOT_LENGTHS}),
    "ArrayStream": (ArrayStream, {"X": X, "y": Y}, {"batch_rows": NOT_COUNTS}),
}  # fmt: skip


def assert_refused(call, words, value):
    """Assert that a call raises a ValueError whose message has one of the words."""
    with pytest.raises(ValueError, match=r"\w") as caught:
        call()
    message = str(caught.value)
    assert any(word in message for word in words), (value, message)
    assert len(message) < 600


OTHER_WORDS = {
    "weights": ["positive", "some weight"],
    "memory": ["n_prototypes", "method"],
    "v": ["folds"],
    "X": ["m:", "y:"],
    "stream": ["batch", "row"],
    "classes": ["y:"],
    "task": ["metric"],
    "scheme": ["multiclass", "code"],
    "multiclass": ["code"],
    "method": ["with SpSVM"],
    "share": ["holdout"],
    "lengthscale": ["hyper-parameter"],
    "sample_rows": ["n_prototypes"],
}
HYPER = ["hyper-parameter"]


@pytest.mark.parametrize("name", CALLS)
def test_invalid_arguments_are_refused(name):
    function, valid, invalid = CALLS[name]
    for argument, values in invalid.items():
        words = [argument, *OTHER_WORDS.get(argument, []), *HYPER]
        for value in values:
            arguments = {**valid, argument: value}
            assert_refused(
                lambda arguments=arguments: function(**arguments), words, (argument, value)
            )


ESTIMATORS = {
    "n_prototypes": (*NOT_SIZES, [6, 3]),
    "max_prototypes": NOT_COUNTS,
    "lengthscale": (*NOT_POSITIVE, [1.0, -1.0], [1.0, 2.0, 3.0], [[1.0]]),
    "C": NOT_POSITIVE,
    "cv": (*NOT_COUNTS, 1, 99, None, [1, 2], [([0], [99])], [([0], [0.5])], [([0], range(39))]),
    "search": NO_NAMES,
    "max_evaluations": NOT_COUNTS,
    "random_state": ("x", -1, 2.5, object()),
    "selection": NO_NAMES,
    "loss": NO_NAMES,
    "class_weight": ("x", 3, {True: -1.0}),
    "kernel": (*NO_NAMES, None),
    "tolerance": (*NOT_REAL, INF),
    "candidates": (2.5, True, "x", 0),
    "candidate_method": NO_NAMES,
    "subset": NOT_COUNTS,
}


@pytest.mark.parametrize("kind", [FixedSizeLSSVMClassifier, SCDPRegressor, SpSVMClassifier])
def test_invalid_parameters_of_estimators_are_refused(kind):
    parameters = inspect.signature(kind).parameters
    y = Y if kind is SCDPRegressor else LABELS
    small = {"n_prototypes": 5} if "n_prototypes" in parameters else {"max_prototypes": 5}
    words = {"random_state": "eed"}  # scikit-learn's and NumPy's word
    for name in set(ESTIMATORS) & set(parameters):
        for value in ESTIMATORS[name]:
            if name == "lengthscale" and isinstance(value, np.ndarray):
                continue  # valid: one lengthscale for each column
            model = kind(**{**small, "cv": 3, name: value})
            expected = [name, words.get(name, name), *HYPER]
            assert_refused(lambda model=model: model.fit(X, y), expected, (name, value))
    for weights in (-np.ones(40), np.ones(3), "x", np.zeros(40)):
        model = kind(**small, cv=3)
        assert_refused(lambda model=model, w=weights: model.fit(X, y, w), ["weight"], weights)


def test_other_parameters_override_the_settings_of_a_search():
    def resolve(**options):
        return FixedSizeLSSVMRegressor(5, **options)._search()

    search = jsparse.Annealing(30)
    assert resolve(search=search) == search
    assert resolve(search=search, lengthscale=1.0) == jsparse.Annealing(30, tune_kernel=False)
    assert resolve(search=search, max_evaluations=7) == jsparse.Annealing(7)
    assert resolve(search="annealing", max_evaluations=7) == jsparse.Annealing(7)
    assert resolve() == jsparse.Profile()


def test_labels_of_several_types_are_refused():
    """NumPy makes strings of some mixtures and cannot sort others. The message names the types."""
    refused = (
        (mixed("a", 1), "int and str"),
        (np.array(mixed("a", 1), object), "int and str"),
        (mixed("a", b"b"), "bytes and str"),
        (np.array(mixed("a", (1, 2)), object), "str and tuple"),
        (mixed("a", None), "None among them"),
        (np.array(mixed(1.0, NAN), object), "nan among them"),
        (np.array(mixed(1.0, NAN)), "NaN or infinity"),
        (np.array(mixed(1, 2j)), "can be sorted"),
        (np.array(mixed({1}, {2}), object), "can be sorted"),
        ([*mixed([1], [1, 2])], "one label for each row"),
        (mixed(np.datetime64("2020-01-01"), np.datetime64("NaT", "D")), "among them"),
    )
    for labels, words in refused:
        for call in (
            lambda y: train(**FEW, y=y, task="classification"),
            lambda y: train(jsparse.SCDP, y=y, task="classification"),
            lambda y: train(jsparse.SpSVM, y=y, task="classification"),
            lambda y: FixedSizeLSSVMClassifier(5, cv=3).fit(X, y),
        ):
            with pytest.raises(ValueError, match=words):
                call(labels)
    for batches in (
        [(X, np.array(mixed("a", 1), object))],
        [(X, np.array(mixed("a", "b"))), (X, np.array(mixed(0, 1)))],
    ):
        with pytest.raises(StreamError, match="labels of one type, got int and str"):
            train(**FEW, streamed=True, stream=batches, task="classification")


def test_numbers_of_every_library_are_numbers():
    for four in (4, np.int64(4), np.uint8(4), np.array(4), jnp.asarray(4)):
        assert jsparse.plain_folds(KEY, 40, four).index.shape == (4, 10)
        assert prototypes.uniform(KEY, 40, four).shape == (4,)
        assert prototypes.k_center(KEY, jnp.asarray(X), four).indices.shape == (4,)
        assert jsparse.plan(100, 3, four, memory=10**9) == jsparse.plan(100, 3, 4, memory=10**9)
        assert kernels.Polynomial(four).degree == 4
        assert len(list(ArrayStream(X, Y, batch_rows=four))) == 10
    for two in (2, 2.0, np.float32(2), np.array(2), jnp.asarray(2.0)):
        assert float(RBF(two).lengthscale) == 2.0
        assert float((two * RBF(1.0)).variance) == 2.0
        with pytest.raises(ValueError, match="C: expected a positive number"):
            train(**FEW, C=-two, size_tolerance=two)  # `size_tolerance` was accepted first
    # The value of a traced number is not known, so it is not checked.
    assert jax.jit(lambda s: RBF(s).lengthscale)(-1.0) == -1.0


def test_concrete_values_are_checked_inside_a_callers_jit():
    """Inside jit, JAX traces operations even on concrete values; the checks must not do so."""
    points, A, sign = jnp.asarray(X), jnp.asarray(X[:2] @ X[:2].T), jnp.sign(jnp.asarray(Y))

    def outliers(nu, x):
        return one_class.fit(RBF(x), points[:4], nu, points, max_iterations=1).status

    def classes(y, x):
        rows = points, y, weights
        return spsvm.fit(RBF(x), points[:4], 1.0, *rows, key=KEY, max_prototypes=2).statuses

    def atoms(A, x):
        return pursuit.subspace_pursuit_gram(A, x * A[0], n_atoms=1).status

    def steps(max_iterations, x):
        system = {"tolerance": 1e-3, "max_iterations": max_iterations}
        return conjugate_gradients.solve(lambda b: b, x * A, **system).status

    weights = jnp.ones(40)
    for name, call, good, bad in (
        ("nu", outliers, jnp.asarray(0.5), jnp.asarray(1.5)),
        ("y", classes, sign, 2 * sign),
        ("A", atoms, A, -A),
        ("max_iterations", steps, jnp.asarray(3), jnp.asarray(0)),
    ):
        jax.eval_shape(lambda x, call=call, good=good: call(good, x), 1.0)
        with pytest.raises(ValueError, match=f"{name}: expected"):
            jax.eval_shape(lambda x, call=call, bad=bad: call(bad, x), 1.0)


def test_mistakes_of_callers_from_jax_are_named(tmp_path):
    points, y, C = jnp.asarray(X), jnp.asarray(Y), jnp.ones(1)
    phi, folds = Nystroem(RBF(1.0), points[:4]), jsparse.plain_folds(0, 40, 5)
    expansion = fixed_size.fit_features(phi, 1.0, points, y).expansion

    def trains(X):
        return jsparse.train(X, Y, task="regression", method=jsparse.FixedSize(5), key=0)

    for message, call in (
        (r"folds: expected Folds, such as jsparse.plain_folds.0, 40, 5., got 5",
         lambda: jsparse.cross_validate(phi, C, points, y, 5)),
        ("feature_map: expected a map such as .*Nystroem.*, got RBF",
         lambda: jsparse.cross_validate(RBF(1.0), C, points, y, folds)),
        ("X: expected values, got an array that JAX traces", lambda: jax.jit(trains)(points)),
        ("expected an array of real numbers, got complex",
         lambda: fixed_size.fit(RBF(1.0), points[:4], 1.0, points.astype(complex), y)),
        ("X: expected rows, such as .*, got the path 'rows.csv'", lambda: trains("rows.csv")),
        ("X: expected rows, such as .*, got the path 'rows.csv'",
         lambda: jsparse.train(Path("rows.csv"), task="regression", key=0)),
        ("the path comes first", lambda: jsparse.save(expansion, tmp_path / "file")),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [FixedSizeLSSVMClassifier, SCDPClassifier, SCDPRegressor, SpSVMClassifier]
)
def test_two_or_three_rows_are_enough_and_every_class_has_a_prototype(kind):
    for rows in (2, 3):
        y = Y[:rows] if kind is SCDPRegressor else np.array(["a", "b", "b"][:rows])
        model = kind(random_state=0).fit(X[:rows], y)
        assert len(model.predict(X)) == 40
        if kind is FixedSizeLSSVMClassifier:
            assert set(y[model.prototype_indices_]) == {"a", "b"}


FIT = ["fit", "nowhere.csv", "--target", "y"]
OPTIONS = {
    "--prototypes": ("x", "0", "-3", "1.5", "5,5", "9,5", "5,", "", ","),
    "--size-tolerance": ("x", "-1", "nan", "inf"),
    "--folds": ("x", "0", "1", "-1", "2.5"),
    "--evaluations": ("x", "0", "-1", "1.5"),
    "--rank": ("x", "0", "1.5"),
    "--seconds": ("x", "-1", "nan"),
    "--seed": ("x", "-1", "4294967296", "0.5"),
    "--devices": ("x", "0", "-1"),
    "--max-categories": ("x", "0", "-1"),
    "--holdout": ("x", "0", "1", "-0.1", "nan"),
    "--max-prototypes": ("x", "0"),
    "--candidates": ("x", "0"),
    "--subset": ("x", "0", "-1"),
    "--task": ("x",),
    "--kernel": ("x",),
    "--loss": ("x",),
    "--precision": ("float16",),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_invalid_options_of_the_command_line_are_refused(option, capsys):
    for value in OPTIONS[option]:
        assert main([*FIT, f"{option}={value}"]) == 2
        message = capsys.readouterr().err.splitlines()[-1]
        names, _ = message.removeprefix("jsparse fit: error: argument ").split(": ", 1)
        assert option in names.split("/")
        assert repr(value) in message
        assert "invalid _" not in message  # argparse's words for a private converter


def test_invalid_columns_of_the_command_line_are_refused(cache_folder, capsys, monkeypatch):
    monkeypatch.chdir(cache_folder)
    for arguments, words in (
        ([*FIT, "--drop", "a", "y"], "--drop: expected other columns than the target 'y'"),
        ([*FIT, "--categorical", "y"], "--categorical: expected other columns than the target"),
        ([*FIT, "--size-tolerance", "1"], "--size-tolerance: expected together with"),
        (
            [*FIT, "--rank", "2"],
            "--rank: expected --search gradient or recursive, got none",
        ),
        (["compare", *FIT[1:], "--drop", "y"], "--drop: expected other columns"),
        (["compare", *FIT[1:], "--test", "1.5"], "argument --test: expected a share"),
        (["predict", "m", "t.csv", "--out", ""], "expected a path"),
        (["demo", "--size-tolerance", "1"], "--size-tolerance: expected together with"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err
    assert list(cache_folder.iterdir()) == []


@pytest.mark.parametrize("source_dtype", ["float32", "float64"])
def test_a_write_into_the_callers_array_does_not_change_our_copy(source_dtype, dtype):
    # Several sizes, because JAX may share the memory of large and aligned arrays.
    for n in (3, 64, 4096):
        array = np.full(n, 2.0, source_dtype)
        kernel = RBF(array)
        array *= 2
        assert float(np.max(np.asarray(kernel.lengthscale))) == 2.0
        copy = as_array(array)
        array += 1
        np.testing.assert_array_equal(as_array(array), np.full(n, 5.0))
        np.testing.assert_array_equal(copy, np.full(n, 4.0))


@pytest.mark.parametrize("seed", [0, 7, -4, 2**31 + 5, 2**40 + 3, np.int32(-3), np.uint32(2**31)])
@pytest.mark.parametrize("x64", [False, True])
def test_a_seed_gives_the_key_that_jax_gives(seed, x64):
    with jax.enable_x64(x64):
        ours, theirs = (jax.random.key_data(key) for key in (as_key(seed), jax.random.key(seed)))
    np.testing.assert_array_equal(ours, theirs)
