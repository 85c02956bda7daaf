"""Relations between the results of two problems, for every learner, in both precisions.

For example: if the targets are multiplied by a number, the predictions are too. A learner of
`learners.py` that cannot keep a relation gives its reason in `excluded`.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import PURE, TRAINERS, Learner, Outcome, Problem, folds_of, problem
from registry import SLOW

import jsparse
from jsparse._status import PRECISION_LOST
from jsparse.features import Nystroem
from jsparse.kernels import RBF
from jsparse.machines import METHODS, dual, one_class
from jsparse.validation.losses import standard_error

Expected = Callable[[Outcome], Outcome]


class Pair(NamedTuple):
    """Two problems, and the outcome of the second as a function of the outcome of the first."""

    before: Problem
    after: Problem
    expected: Expected
    score_factor: float = 1.0  # of the tolerance of scores: differences of large numbers cancel
    error_growth: float = 1.0  # factor of the tolerance of this pair


class Relation(NamedTuple):
    name: str
    pairs: Callable[[Learner, Problem], Iterator[Pair]]
    targets: tuple[str, ...] = ("real", "sign", "class")
    pure: bool = True  # tested for pure functions
    trained: bool = True  # tested for learners that train
    recompiles: bool = False  # changes shapes, so that programs compile again


def is_float32(p: Problem) -> bool:
    return p.X.dtype == np.float32


# Relations.


def targets_times(learner, p):
    """Multiply the targets: the values are multiplied too, and the scores by a power."""
    powers = (-30, -6, 6, 30) if is_float32(p) else (-150, -30, 30, 150)
    if learner.sums_squares:
        powers = (-15, 15) if is_float32(p) else (-140, 140)
    if learner.standardises:  # training is slow
        powers = (powers[0], powers[-1])
    for a in (-1.0, *(10.0**k for k in powers)):
        size = abs(a)
        q = p._replace(y=scaled(p.y, a), C=scaled(p.C, size**learner.C_power))

        def expected(o, a=a, size=size):
            times = size**learner.metric_power
            return o._replace(
                values=a * as_float64(o.values),
                rows=None if o.rows is None else a * as_float64(o.rows),
                scores=None if o.scores is None else times * as_float64(o.scores),
            )

        yield Pair(p, q, expected)


def targets_plus(learner, p):
    """Add a number to the targets: the values grow by the number."""
    for k in (0, 2, 3) if is_float32(p) else (0, 3, 6):
        b = 10.0**k

        def expected(o, b=b):
            rows = None if o.rows is None else b + as_float64(o.rows)
            return o._replace(values=b + as_float64(o.values), rows=rows)

        amplified = learner.error_growth if b > 1e3 else 1
        yield Pair(p, p._replace(y=(p.y + b).astype(p.y.dtype)), expected, b, amplified)


def weights_times(learner, p):
    for a in (1e-12,) if learner.standardises else (1e-12, 1e12):
        yield Pair(p, p._replace(w=scaled(p.w, a), C=scaled(p.C, 1 / a)), same)


def inputs_scaled(learner, p):
    """Multiply columns, and their lengthscales unless training scales them: nothing changes."""
    powers = ((1, -3, 0), (12, 10, 0), (-9, -12, 0))
    powers = powers if is_float32(p) else (*powers, (100, -100, 0))
    for exponents in powers[-1:] if learner.standardises else powers:
        a = 10.0 ** np.array(exponents)
        q = each_input(p, lambda x, a=a: scaled(x, a))
        if not learner.standardises:
            q = q._replace(lengthscale=scaled(p.lengthscale, a))
        yield Pair(p, q, same)


def inputs_shifted(learner, p):
    """Shift all columns; the third one is constant: 0 before, and 0 or 1024 after."""
    for b in ((1024, -1024, 0), (3, 512, 1024)):
        yield Pair(p, each_input(p, lambda x, b=b: x + np.asarray(b, x.dtype)), same)


def rows_permuted(learner, p):
    order = np.random.default_rng(1).permutation(len(p.X))
    new_number = np.argsort(order).astype(np.int32)
    q = p._replace(
        X=p.X[order], y=p.y[order], label=p.label[order], w=p.w[order], folds=new_number[p.folds]
    )

    def expected(o):
        return o if o.rows is None else o._replace(rows=as_float64(o.rows)[..., order, :])

    yield Pair(p, q, expected)


def row_repeated(learner, p):
    """Replace two equal rows by one with the sum of their weights: nothing changes."""
    X, y, label = (np.array(a) for a in (p.X, p.y, p.label))
    X[1], y[1], label[1] = X[0], y[0], label[0]
    p = p._replace(X=X, y=y, label=label)
    w = np.array(p.w)
    w[0], w[1] = w[0] + w[1], 0
    # Training has no out-of-fold value for a row of weight 0.
    expected = (lambda o: without_rows(o, [1])) if learner.standardises else same
    yield Pair(p, p._replace(w=w), expected)


def weight_zero_holds_anything(learner, p):
    """Change the inputs and targets of rows of weight 0: other rows keep their results."""
    absent = p.folds[:, -1]
    w = np.array(p.w)
    w[absent] = 0
    p = p._replace(w=w)
    # Training refuses infinite values and NaN, also at weight 0.
    values = (1e30, 5.0) if learner.standardises else (np.nan, np.inf, -1e30, 5.0)
    for value in values:
        X, y = np.array(p.X), np.array(p.y)
        X[absent], y[absent] = value, value
        yield Pair(p, p._replace(X=X, y=y), lambda o: without_rows(o, absent))


def weight_zero_is_absent(learner, p):
    """Remove the rows of weight 0: other rows keep their results."""
    absent = p.folds[:, -1]
    w = np.array(p.w)
    w[absent] = 0
    rest = np.setdiff1d(np.arange(len(w)), absent)
    new_folds = np.searchsorted(rest, p.folds[:, :-1]).astype(np.int32)
    q = p._replace(X=p.X[rest], y=p.y[rest], label=p.label[rest], w=p.w[rest], folds=new_folds)
    yield Pair(q, p._replace(w=w), lambda o: scatter_rows(o, rest, len(w)))


def constant_column_absent(learner, p):
    fewer = each_input(p, lambda x: x[:, :2])
    yield Pair(fewer._replace(lengthscale=p.lengthscale[:2]), p, same)


def duplicated_column(learner, p):
    q = each_input(p, lambda x: x[:, [0, 1, 1]])
    if learner.standardises:
        yield Pair(q, q, same)  # only checks that training succeeds
    else:  # a column and its copy equal the column times the root of two
        root = np.sqrt(np.asarray(2, p.X.dtype))
        yield Pair(each_input(p, lambda x: x * np.asarray([1, root, 1], x.dtype)), q, same)


def classes_reordered(learner, p):
    """Compare values only if they have a column for each class, and decisions always."""
    if learner.targets == "sign":
        yield Pair(p, p._replace(label=1 - p.label), lambda o: renamed(o, [1, 0], lambda v: -v))
        return
    order = np.array([2, 0, 1], np.int32)

    def expected(o):
        if learner.class_columns:
            return renamed(o, order, lambda values: values[..., np.argsort(order)])
        return renamed(o, order, lambda values: np.full(values.shape, np.nan))

    yield Pair(p, p._replace(label=order[p.label]), expected)


def classes_renamed(learner, p):
    kinds = [["b", "c", "e"], [-7, 0, 3], [-1.0, 1.0, 1e9], ["10", "9", "a"]]
    if learner.targets == "sign":
        kinds = [kind[:2] for kind in kinds] + [[False, True]]
    for kind in kinds:
        names = np.array(kind)
        yield Pair(
            p, p._replace(label=names[p.label]), lambda o, names=names: renamed(o, names, same)
        )


def one_output(learner, p):
    """Change the second output: the first one stays. Scores and statuses belong to all outputs."""
    second_target = np.random.default_rng(2).standard_normal(len(p.y))
    for size in (1e-3, 1e6):
        y = np.stack([p.y[:, 0], (size * second_target).astype(p.y.dtype)], axis=1)
        yield Pair(
            p,
            p._replace(y=y),
            lambda o: o._replace(
                values=o.values[..., :1],
                rows=None if o.rows is None else o.rows[..., :1],
                scores=None,
                status=None,
            ),
        )


RELATIONS = [
    Relation("targets times", targets_times, ("real",)),
    Relation("targets plus", targets_plus, ("real",)),
    Relation("weights times", weights_times),
    Relation("inputs scaled", inputs_scaled),
    Relation("inputs shifted", inputs_shifted),
    Relation("rows permuted", rows_permuted),
    Relation("row repeated", row_repeated),
    Relation("weight zero, anything", weight_zero_holds_anything),
    Relation("weight zero, absent", weight_zero_is_absent, recompiles=True),
    Relation("constant column, absent", constant_column_absent, recompiles=True),
    Relation("duplicated column", duplicated_column),
    Relation("classes reordered", classes_reordered, ("sign", "class")),
    Relation("classes renamed", classes_renamed, ("sign", "class"), pure=False),
    Relation("one output", one_output, ("real",), trained=False),
]


# Helpers.


def same(before):
    return before


def as_float64(a) -> np.ndarray:
    return np.asarray(a, float)


def scaled(a, factor) -> np.ndarray:
    return np.asarray(as_float64(a) * factor, a.dtype)


def each_input(p: Problem, change) -> Problem:
    return p._replace(X=change(p.X), Z=change(p.Z), new=change(p.new))


def without_rows(o: Outcome, at) -> Outcome:
    """Replace the out-of-fold values at some rows by NaN, which is not compared."""
    if o.rows is None:
        return o
    rows = np.array(as_float64(o.rows))
    rows[..., at, :] = np.nan
    return o._replace(rows=rows)


def scatter_rows(o: Outcome, numbers, n: int) -> Outcome:
    """Place out-of-fold values at some of `n` rows; other rows get NaN, which is not compared."""
    if o.rows is None:
        return o
    old = as_float64(o.rows)
    rows = np.full((*old.shape[:-2], n, old.shape[-1]), np.nan)
    rows[..., numbers, :] = old
    return o._replace(rows=rows)


def renamed(o: Outcome, names, columns) -> Outcome:
    return o._replace(
        values=columns(as_float64(o.values)),
        rows=None if o.rows is None else columns(as_float64(o.rows)),
        decisions=None if o.decisions is None else np.asarray(names)[np.asarray(o.decisions)],
    )


def problem_for(learner: Learner, dtype: str, **options) -> Problem:
    p = problem(dtype, **options)
    return p._replace(label=(p.label == 1).astype(np.int32)) if learner.targets == "sign" else p


def assert_as_expected(
    outcome: Outcome, expected: Outcome, tol: float, score_factor: float = 1.0, what: str = ""
) -> None:
    """Compare in units of the largest expected number; expected NaN is not compared."""
    for field, limit in (("values", tol), ("rows", tol), ("scores", score_factor * tol)):
        actual, wanted = getattr(outcome, field), getattr(expected, field)
        if actual is None or wanted is None or np.size(wanted) == 0:
            continue
        wanted = as_float64(wanted)
        actual = as_float64(actual)[..., : wanted.shape[-1]] if wanted.ndim else as_float64(actual)
        if field == "scores" and not representable(wanted, np.asarray(outcome.values).dtype):
            continue
        assert actual.shape == wanted.shape
        kept = ~np.isnan(wanted)
        size = np.abs(wanted[kept]).max(initial=0)
        np.testing.assert_allclose(
            actual[kept], wanted[kept], atol=limit * size, rtol=0, err_msg=f"{what}: {field}"
        )
    if expected.decisions is not None:
        np.testing.assert_array_equal(outcome.decisions, expected.decisions, err_msg=what)
    if expected.status is not None:
        np.testing.assert_array_equal(outcome.status, expected.status, err_msg=what)
    assert np.max(outcome.status) < PRECISION_LOST


def representable(scores: np.ndarray, dtype) -> bool:
    """Return whether scores are in the range of the dtype: squares may overflow or underflow."""
    size = np.abs(scores[scores != 0])
    info = np.finfo(dtype)
    return bool(np.all((size < info.max / 1e4) & (size > info.tiny * 1e8)))


def assert_relations(learner, learn, relations, p: Problem, tol: float) -> None:
    """Check the relations that the learner must keep; `learn` may be its compiled function."""
    for relation in relations:
        if learner.targets not in relation.targets or relation.name in learner.excluded:
            continue
        before = before_outcome = None
        for pair in relation.pairs(learner, p):
            if before is not pair.before:
                before, before_outcome = pair.before, learn(pair.before)
            outcome, expected = learn(pair.after), pair.expected(before_outcome)
            limit = learner.digits * pair.error_growth * tol
            assert_as_expected(outcome, expected, limit, pair.score_factor, relation.name)


# Tolerances in units of the largest value: several times the observed errors.
TOLERANCE = {"float64": 256 * 2.0**-52, "float32": 256 * 2.0**-23}
TRAINED_TOLERANCE = {"float64": 1e5 * 2.0**-52, "float32": 1e5 * 2.0**-23}


def cases(learners, is_fast=lambda learner: not learner.slow):
    """Return each learner in two precisions; the fast tests have one of these, by turns."""
    dtypes = tuple(TOLERANCE)
    fast = [learner for learner in learners if is_fast(learner)]
    turn = {learner.name: dtypes[i % 2] for i, learner in enumerate(fast)}
    return [
        pytest.param(
            learner,
            dtype,
            marks=() if turn.get(learner.name) == dtype else SLOW,
            id=f"{learner.name}, {dtype}".replace(" ", "_"),
        )
        for learner in learners
        for dtype in dtypes
    ]


@pytest.mark.parametrize(("learner", "dtype"), cases(PURE))
@pytest.mark.parametrize(
    "recompiles", [False, pytest.param(True, marks=SLOW)], ids=["shapes_stay", "shapes_change"]
)
def test_pure_functions_keep_every_relation(learner, dtype, recompiles):
    relations = [one for one in RELATIONS if one.pure and one.recompiles == recompiles]
    p = problem_for(learner, dtype)
    assert_relations(learner, jax.jit(learner.learn), relations, p, TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("learner", "dtype"),
    cases(TRAINERS, is_fast=lambda learner: learner.name == "train: linear"),
)
@pytest.mark.parametrize(
    "recompiles", [False, pytest.param(True, marks=SLOW)], ids=["shapes_stay", "shapes_change"]
)
def test_training_keeps_every_relation(learner, dtype, recompiles):
    relations = [one for one in RELATIONS if one.trained and one.recompiles == recompiles]
    p = problem_for(learner, dtype)
    assert_relations(learner, learner.learn, relations, p, TRAINED_TOLERANCE[dtype])


# Compilation takes seconds, so only sums by class are fast.
@pytest.mark.parametrize(
    ("learner", "dtype"),
    cases(PURE, is_fast=lambda learner: learner.name == "fixed_size.fit_classes: one_versus_rest"),
)
def test_results_are_equal_compiled_eager_and_in_a_batch(learner, dtype):
    """The other member of the batch has other rows, another kernel and another C."""
    members = [problem_for(learner, dtype, seed=seed) for seed in (0, 1)]
    members[1] = members[1]._replace(
        C=scaled(members[1].C, 10), lengthscale=scaled(members[1].lengthscale, 0.7)
    )
    compiled, tol = jax.jit(learner.learn), learner.digits * TOLERANCE[dtype]
    eager = learner.learn(jax.tree.map(jnp.asarray, members[0]))
    assert_as_expected(eager, compiled(members[0]), tol)
    batch = jax.jit(jax.vmap(learner.learn))(jax.tree.map(lambda *a: np.stack(a), *members))
    for i, p in enumerate(members):
        assert_as_expected(jax.tree.map(lambda a, i=i: a[i], batch), compiled(p), tol)


@pytest.mark.slow
def test_scores_and_standard_errors_ignore_a_fold_without_weight(dtype):
    p = problem(dtype)
    w = np.array(p.w)
    w[p.folds[2]] = 0
    p = jax.tree.map(jnp.asarray, p._replace(w=w))
    kernel, C = RBF(p.lengthscale), p.C[None]
    ridge = jsparse.cross_validate(Nystroem(kernel, p.Z), C, p.X, p.y, folds_of(p), p.w)
    assert np.isnan(ridge.fold_scores[0, 2])
    rows = p.X, p.y, folds_of(p), p.w
    two = jsparse.SCDP(max_prototypes=2)
    path = jsparse.validate(two, kernel, p.Z, C, *rows, metric="mse")
    assert np.isnan(path.fold_scores[0, 2]).all()
    huber = jsparse.Robust(len(p.Z))
    refits = jsparse.validate(huber, kernel, p.Z, C, *rows, metric="mae")
    assert np.isnan(refits.fold_scores[0, 2]).all()
    for scores, error in (
        (ridge.fold_scores, standard_error(ridge.fold_scores)),
        (refits.fold_scores[:, :, 0], standard_error(refits.fold_scores)[:, 0]),
        (path.fold_scores[:, :, 1], standard_error(path.fold_scores)[:, 1]),
    ):
        weighted = np.asarray(scores)[0, :2]
        np.testing.assert_allclose(error[0], np.std(weighted, ddof=1) / np.sqrt(2), rtol=1e-5)
    one_out = jsparse.validate(jsparse.Dual(), kernel, None, C, *rows, metric="mse")
    kept = np.asarray(one_out.fold_scores)[0, w > 0, 0]
    expected = np.std(kept, ddof=1) / np.sqrt(len(kept))
    np.testing.assert_allclose(standard_error(one_out.fold_scores)[0, 0], expected, rtol=1e-5)


def test_half_precision_is_refused():
    p = jax.tree.map(jnp.asarray, problem())
    for half in (jnp.float16, jnp.bfloat16):
        with pytest.raises(ValueError, match="X: expected numbers of 32 or 64 bits"):
            dual.fit(RBF(1.0), 1.0, p.X.astype(half), p.y)


def test_the_tables_hold_everything_that_learns():
    names = {learner.name.split(":")[0] for learner in PURE + TRAINERS}
    learn = {"train", "cross_validate", "validate"}
    for module in {one_class, *map(inspect.getmodule, METHODS.values())}:
        prefix = module.__name__.split(".")[-1]
        learn |= {
            f"{prefix}.{name}"
            for name, one in inspect.getmembers(module, inspect.isfunction)
            if one.__module__ == module.__name__ and re.match("fit|leave", name)
        }
    assert len(learn) > 15
    assert learn <= names
    # Each method is tested as a pure function, by its `fit` or the function that it calls.
    pure = {part for learner in PURE for part in re.split("[:,] ", learner.name)}
    for one in METHODS.values():
        assert pure & {one.__name__, f"{one.__module__.split('.')[-1]}.fit"}
