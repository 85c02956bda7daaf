"""Every learner behind one interface: a problem goes in, values at rows and diagnostics come out.

A learner joins every relation of `test_relations.py` by being in `PURE` or `TRAINERS`.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import jsparse
from jsparse import estimators, pursuit
from jsparse.data.streams import ArrayStream
from jsparse.features import Linear, Nystroem
from jsparse.kernels import RBF
from jsparse.machines import (
    direct,
    dual,
    fixed_size,
    one_class,
    pursuits,
    reduced_set,
    reduced_svm,
    reductions,
    robust,
    rvm,
    scdp,
    slmc,
    sparse_fisher,
    sparse_ridge,
    spsvm,
)
from jsparse.machines.method import Method
from jsparse.multiclass import accumulate_code, decode, output_code
from jsparse.normal_equations import accumulate, accumulate_batches
from jsparse.validation.cross_validation import cross_validate
from jsparse.validation.folds import Folds
from jsparse.validation.validate import validate

SIZE = 4  # of paths
CLASSES = 3
KEY = jax.random.key(0)
# Each step of a non-convex descent amplifies rounding, and after a hundred steps nothing is left of
# float32. Where all of them end is tested by the objective, in test_direct.py.
STEPS = 2


class Problem(NamedTuple):
    """Rows, and all that a learner may be told besides."""

    X: Any  # n d
    y: Any  # n 2, real targets
    label: Any  # n, class numbers; for what trains, labels of any type
    w: Any  # n
    Z: Any  # m d, prototypes or candidates
    new: Any  # q d, rows to be predicted
    folds: Any  # v r, row numbers
    C: Any  # ()
    lengthscale: Any  # d
    unit: Any  # unit of the targets, for settings in that unit


class Outcome(NamedTuple):
    """The results of a learner; None for results that it does not have."""

    values: Any  # .. q c, of the machine at `new`
    rows: Any = None  # .. n c, of each row by a machine that has not seen it
    scores: Any = None  # ..
    decisions: Any = None  # q, labels
    status: Any = 0


Learn = Callable[[Problem], Outcome]


class Learner(NamedTuple):
    """A learner, and the exceptions that its definition implies."""

    name: str  # the public function, and after a colon which way of it
    learn: Learn
    targets: str = "real"  # or "sign", or "class"
    power: int = 0  # targets times a ask for C times a ** power
    metric: int = 2  # scores go with targets to that power
    scheme: str | None = None  # of the code whose problems the values are of
    digits: float = 1.0  # its tolerance, in units of the tolerance of the others
    amplified: float = 1.0  # by how much more it errs where targets are rounded at 1e6
    standardises: bool = False
    sums_squares: bool = False  # of targets as they are, which must be in range
    without: Mapping[str, str] = {}
    ways: Mapping[str, Learn] = {}
    slow: bool = False  # much as another learner


def grid(p: Problem):
    return p.C * jnp.asarray([0.1, 1.0], p.X.dtype)


def both(p: Problem):
    return p.y


def first(p: Problem):
    return p.y[:, 0]


def sign(p: Problem):
    return jnp.where(p.label == 1, 1, -1).astype(p.X.dtype)


def nystroem(p: Problem):
    return Nystroem(RBF(p.lengthscale), p.Z)


def linear(p: Problem):
    return Linear(jnp.mean(p.Z, axis=0))


def folds_of(p: Problem) -> Folds:
    return Folds(jnp.asarray(p.folds), jnp.ones(p.folds.shape, bool))


def one_device() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), ("rows",))


def said(p: Problem, fitted, code=None) -> Outcome:
    values = fitted.expansion(p.new)
    decisions = None
    if code is not None:
        decisions = decode(jnp.asarray(code.matrix, values.dtype), values)
    return Outcome(values, decisions=decisions, status=fitted.status)


# Machines.


def fixed(**options) -> Learn:
    return lambda p: said(p, fixed_size.fit(RBF(p.lengthscale), p.Z, p.C, p.X, p.y, p.w, **options))


def fixed_on_mesh(p: Problem) -> Outcome:
    return fixed(mesh=one_device())(p)


def summed(p: Problem) -> Outcome:
    phi = nystroem(p)
    return said(p, fixed_size.solve(phi, accumulate(phi, p.X, p.y, p.w), p.C))


def in_batches(p: Problem) -> Outcome:
    phi = nystroem(p)
    parts = np.split(np.arange(len(p.X)), [7, 14])
    sums = accumulate_batches(
        phi, [tuple(np.asarray(a)[i] for a in (p.X, p.y, p.w)) for i in parts]
    )
    return said(p, fixed_size.solve(phi, sums, p.C))


def added(p: Problem) -> Outcome:
    phi, n = nystroem(p), 10
    sums = accumulate(phi, p.X[:n], p.y[:n], p.w[:n]) + accumulate(phi, p.X[n:], p.y[n:], p.w[n:])
    return said(p, fixed_size.solve(phi, sums, p.C))


def of_features(phi, **options) -> Learn:
    return lambda p: said(p, fixed_size.fit_features(phi(p), p.C, p.X, p.y, p.w, **options))


def coded(scheme: str, *, mesh: bool = False) -> Learn:
    code = output_code(scheme, CLASSES)

    def learn(p: Problem) -> Outcome:
        where = one_device() if mesh else None
        fitted = fixed_size.fit_classes(nystroem(p), p.C, p.X, p.label, code, p.w, mesh=where)
        return said(p, fitted, code)

    return learn


def coded_sums(scheme: str) -> Learn:
    code = output_code(scheme, CLASSES)

    def learn(p: Problem) -> Outcome:
        phi, own = nystroem(p), code.astype(p.X.dtype)
        sums = accumulate_code(own, phi, p.X, p.label, p.w)
        return said(p, fixed_size.solve(phi, sums, p.C, own), own)

    return learn


def by_gradients(p: Problem) -> Outcome:
    tolerance = 100 * float(jnp.finfo(p.X.dtype).eps)
    options = {"method": "conjugate_gradients", "landmarks": 5, "block_rows": 10}
    return in_the_dual(**options, tolerance=tolerance)(p)


def in_the_dual(**options) -> Learn:
    return lambda p: said(p, dual.fit(RBF(p.lengthscale), p.C, p.X, p.y, p.w, **options))


def coded_in_the_dual(scheme: str) -> Learn:
    code = output_code(scheme, CLASSES)
    return lambda p: said(
        p, dual.fit_classes(RBF(p.lengthscale), p.C, p.X, p.label, code, p.w), code
    )


def without_each_row(p: Problem) -> Outcome:
    values, status = dual.leave_one_out(RBF(p.lengthscale), grid(p), p.X, p.y, p.w)
    return Outcome(values[:, :0], values, status=status)


def robustly(loss: str, *, told: bool = False, **options: Any) -> Learn:
    def learn(p: Problem) -> Outcome:
        options["threshold"] = 0.3 * p.unit if told else None
        return said(p, robust.fit(nystroem(p), p.C, p.X, p.y, p.w, loss=loss, **options))

    return learn


def in_sizes(p: Problem, family) -> Outcome:
    """Values of the machines of all sizes."""
    return Outcome(jnp.moveaxis(family.values(p.new), 1, 0), status=family.status)


def sparse(**options) -> Learn:
    given = {"max_prototypes": SIZE, **options}
    return lambda p: in_sizes(p, scdp.fit(RBF(p.lengthscale), p.Z, p.C, p.X, p.y, p.w, **given))


def of_atoms(kind, **options) -> Learn:
    """Machines with given numbers of atoms."""
    method = kind(n_prototypes=tuple(range(1, SIZE + 1)), **options)
    return lambda p: in_sizes(p, pursuits.fit(method, RBF(p.lengthscale), p.Z, p.X, p.y, p.w))


def reduced(**options) -> Learn:
    def learn(p: Problem) -> Outcome:
        given = (RBF(p.lengthscale), p.Z, p.C * 100, p.X, p.y, p.w)
        return said(p, reductions.fit(*given, **options))

    return learn


def reduced_from_rows(p: Problem) -> Outcome:
    """Reduce from every row, because prototypes of the dual must be rows."""
    given = (RBF(p.lengthscale), p.X, p.C * 100, p.X, p.y, p.w)
    return said(p, reductions.fit(*given, initialization="dual"))


def sparse_svm(p: Problem) -> Outcome:
    options = {"key": KEY, "max_prototypes": SIZE}
    return in_sizes(p, spsvm.fit(RBF(p.lengthscale), p.Z, p.C, p.X, sign(p), p.w, **options))


def in_the_span(p: Problem) -> Outcome:
    machine = direct.LargeMargin(RBF(p.lengthscale), p.X, sign(p), p.C, p.w)
    solved = jax.jit(lambda machine, Z: direct.marginal(machine)(Z)[1])(machine, p.Z)
    values = machine.expansion(p.Z, solved)(p.new)
    return Outcome(values[:, None], status=solved.status)


def by_fit(fit, targets=both, **options) -> Learn:
    """By the public function of one kind, from the prototypes of the problem."""

    def learn(p: Problem) -> Outcome:
        given = (RBF(p.lengthscale), p.Z, p.C, p.X, targets(p), p.w)
        return in_columns(p, fit(*given, **options))

    return learn


def by_evidence(likelihood: str, targets) -> Learn:
    options = {"likelihood": likelihood, "max_prototypes": SIZE}
    return lambda p: in_columns(
        p, rvm.fit(RBF(p.lengthscale), p.Z, p.X, targets(p), p.w, **options)
    )


def of_one_class(p: Problem) -> Outcome:
    given = (RBF(p.lengthscale), p.Z, 0.3, p.X, p.w)
    return in_columns(p, one_class.fit(*given, max_iterations=STEPS))


def in_columns(p: Problem, found) -> Outcome:
    """Its values, a column for each output, of which there may be one without an axis."""
    return Outcome(found.expansion(p.new).reshape(len(p.new), -1), status=found.status)


# Validation.


def of_rows(p: Problem, found) -> Outcome:
    rows = found.predictions.reshape(*found.predictions.shape[:2], -1)
    return Outcome(rows[:, :0], rows, found.scores, None, found.status)


def validated(phi=nystroem, targets=both, scheme=None, *, mesh=False, **options) -> Learn:
    code = None if scheme is None else output_code(scheme, CLASSES)

    def learn(p: Problem) -> Outcome:
        y = p.label if code is not None else targets(p)
        where = one_device() if mesh else None
        found = cross_validate(
            phi(p), grid(p), p.X, y, folds_of(p), p.w, code=code, mesh=where, **options
        )
        return of_rows(p, found)

    return learn


def held_out(method: Method, targets=both, scheme=None, *, metric="mse", mesh=False) -> Learn:
    """By the method's own way; with the predictions for the last C, of the largest size."""
    code = None if scheme is None else output_code(scheme, CLASSES)

    def learn(p: Problem) -> Outcome:
        found = validate(
            method,
            RBF(p.lengthscale),
            None if isinstance(method, jsparse.Dual) else p.Z,
            grid(p),
            p.X,
            targets(p) if code is None else p.label,
            folds_of(p),
            p.w,
            metric=metric,
            code=None if code is None else code.astype(p.X.dtype),
            key=KEY,
            keep=1,
            size=SIZE - 1 if method.several_sizes else 0,
            mesh=one_device() if mesh else None,
        )
        return of_rows(p, found._replace(predictions=found.predictions[None]))

    return learn


# Pursuits.


def dictionary(p: Problem):
    """Atoms and targets, in rows times the roots of their weights; the atoms at new points."""
    here = (p.w > 0)[:, None]
    root = jnp.sqrt(p.w)[:, None]
    kernel = RBF(p.lengthscale)
    D = root * kernel.cross_gram(jnp.where(here, p.X, p.Z[:1]), p.Z)
    return D, jnp.where(here, root * p.y, 0), kernel.cross_gram(p.new, p.Z)


def on_three_atoms(p: Problem) -> Outcome:
    D, y, columns = dictionary(p)
    return Outcome(columns[:, :3] @ pursuit.least_squares(D[:, :3], y))


def pursued(run, *, on_rows: bool = False, batched: bool = False) -> Learn:
    """A dictionary of kernel columns, or its normal equations."""

    def learn(p: Problem) -> Outcome:
        D, y, columns = dictionary(p)
        if run in CORNERS:
            y = y[:, 0]
        A, b = (D, y) if on_rows else (D.T @ D, D.T @ y)
        if batched:
            path = run(jnp.stack([2 * A, A]), jnp.stack([b[::-1], b]))
            path = jax.tree.map(lambda a: a[1], path)
        else:
            path = run(A, b)
        if run in CORNERS:
            values = (path.coefficients @ columns.T)[:, :, None]
            return Outcome(values, scores=path.penalty, status=path.status)
        if isinstance(path, pursuit.Subspace):
            dense = path.dense(len(p.Z))
        else:
            dense = [path.dense(len(p.Z), size) for size in range(1, SIZE + 1)]
        values = jnp.stack([columns @ w for w in dense])
        return Outcome(values, scores=path.explained, status=path.status)

    return learn


def omp(X, y):
    return pursuit.omp(X, y, max_atoms=SIZE)


def stagewise(X, y):
    return pursuit.stagewise_omp(X, y, max_atoms=SIZE, threshold=0.5)


def subspace(X, y):
    return pursuit.subspace_pursuit(X, y, n_atoms=jnp.arange(1, SIZE + 1), max_atoms=SIZE)


def cosamp(X, y):
    return pursuit.cosamp(X, y, n_atoms=jnp.arange(1, SIZE + 1), max_atoms=SIZE)


def subspace_gram(A, b):
    return pursuit.subspace_pursuit_gram(A, b, n_atoms=jnp.arange(1, SIZE + 1), max_atoms=SIZE)


def conjugate(A, b):
    return pursuit.scdp(A, b, max_atoms=SIZE)


def by_chance(A, b):
    return pursuit.scdpp(A, b, key=KEY, max_atoms=SIZE, subset=3)


def matching(A, b):
    return pursuit.matching_pursuit(A, b, max_atoms=SIZE)


def least_angle(A, b):
    return pursuit.lars(A, b, max_atoms=SIZE)


def lasso(A, b):
    return pursuit.lasso(A, b, max_atoms=SIZE)


def debiased(A, b):
    return pursuit.debiased(lasso(A, b), A, b, max_atoms=SIZE)


CORNERS = (least_angle, lasso, debiased)


# What trains, from raw inputs.


def present(p: Problem) -> int:
    return int(np.count_nonzero(p.w))


def task_of(targets) -> str:
    return "regression" if targets == "real" else "classification"


def targets_of(p: Problem, targets: str):
    return p.y[:, 0] if targets == "real" else p.label


def settings(p: Problem, targets: str, search: jsparse.Profile | jsparse.Annealing) -> dict:
    C = np.asarray(p.C, float) * np.array([0.1, 1.0, 10.0] if search.tune_kernel else [1.0])
    return {"task": task_of(targets), "key": KEY, "kernel": RBF(1.5), "C": C, "search": search}


Settings = Callable[[Problem], Method]  # of the method, which may depend on the rows


def every_row(p: Problem) -> jsparse.FixedSize:
    return jsparse.FixedSize(present(p))


def path_of(**options) -> Settings:
    return lambda p: jsparse.SCDP(**{"max_prototypes": SIZE, "candidates": p.Z, **options})


def svm_of(p: Problem) -> jsparse.SpSVM:
    return jsparse.SpSVM(max_prototypes=SIZE, candidates=p.Z)


THREE = jsparse.Profile(3)
GIVEN = jsparse.Profile(tune_kernel=False)


def trained(
    targets: str = "real",
    method: Settings | Method = every_row,
    search: jsparse.Profile | jsparse.Annealing = THREE,
    *,
    mesh: bool = False,
    sizes: bool = False,
    **options,
) -> Learn:
    def learn(p: Problem) -> Outcome:
        found = jsparse.train(
            p.X,
            targets_of(p, targets),
            **{
                "method": method if isinstance(method, Method) else method(p),
                "folds": folds_of(p),
                "weights": p.w,
                "resources": jsparse.Resources(mesh=one_device() if mesh else None),
                **settings(p, targets, search),
                **options,
            },
        )
        return outcome(p, found, sizes=sizes)

    return learn


def outcome(p: Problem, found: jsparse.Trained, *, sizes: bool = False) -> Outcome:
    """Return the results of the chosen machine, or of the machines of all sizes."""
    if sizes:
        machines = [found.at(k) for k in range(1, SIZE + 1)]
        values = np.stack([np.asarray(one(p.new)).reshape(len(p.new), -1) for one in machines])
        return Outcome(values, status=np.asarray(found.fit.status))
    decisions = None if found.classes is None else found.predict(p.new)
    values = np.asarray(found.expansion(p.new))
    rows = found.out_of_fold
    rows = None if rows is None else rows.reshape(len(rows), -1)
    return Outcome(values.reshape(len(p.new), -1), rows, found.cv_error, decisions, found.status)


def as_given(p: Problem) -> Outcome:
    """With the kernel as it is, in units of standardised inputs."""
    return trained(search=GIVEN, kernel=RBF(jnp.asarray(p.lengthscale)))(p)


def streamed(
    targets: str = "real",
    method: Settings | Method = every_row,
    search: jsparse.Profile | jsparse.Annealing = THREE,
    *,
    sizes: bool = False,
    **options,
) -> Learn:
    def learn(p: Problem) -> Outcome:
        stream = ArrayStream(
            np.asarray(p.X), np.asarray(targets_of(p, targets)), np.asarray(p.w), batch_rows=10
        )
        own = method if isinstance(method, Method) else method(p)
        given = {**settings(p, targets, search), "folds": 2, **options}
        found = outcome(p, jsparse.train(stream, method=own, **given), sizes=sizes)
        # The method has its own folds.
        return found if search.tune_kernel else found._replace(scores=None, rows=None)

    return learn


def estimated(cls, targets: str) -> Learn:
    names = cls().get_params()
    options = {"kernel": RBF(1.5), "max_evaluations": 3, "random_state": 0, "cv": 3}
    options |= {"n_prototypes": 8, "max_prototypes": SIZE, "max_iter": STEPS}
    if "max_prototypes" in names:
        del options["n_prototypes"]
    options = {name: value for name, value in options.items() if name in names}

    def learn(p: Problem) -> Outcome:
        X, w = np.asarray(p.X), np.asarray(p.w)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", jsparse.ConvergenceWarning)  # the steps are few
            # Nearby prototypes with coefficients in the thousands lose digits in float32.
            warnings.simplefilter("ignore", jsparse.PrecisionWarning)
            model = cls(**options).fit(X, np.asarray(targets_of(p, targets)), sample_weight=w)
        if targets == "real":
            return Outcome(model.predict(p.new)[:, None], scores=model.cv_error_)
        probabilities = model.predict_proba(p.new)
        return Outcome(probabilities, None, model.cv_error_, model.predict(p.new))

    return learn


def outliers(p: Problem) -> Outcome:
    model = estimators.SparseOneClassSVM(4, nu=0.3, max_iter=STEPS, kernel=RBF(1.5), random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jsparse.ConvergenceWarning)
        model.fit(np.asarray(p.X), sample_weight=np.asarray(p.w))
    return Outcome(model.decision_function(p.new)[:, None])


# The lists.

JOINT = dict.fromkeys(("one output", "one output alone"), "the outputs select their atoms together")
PENALISED = {"targets plus": "the intercept is penalised"}
NO_INTERCEPT = {"targets plus": "there is no intercept"}
UNIT_LENGTH = {"weights times": "its threshold is for columns of unit length"}
OTHER_PROBLEMS = {"classes reordered": "other classes make other problems"}
MIRROR = {"targets times": "-1 turns a quantile into another, see test_quantile.py"}
TWIN = {"row repeated": "a row is not left out together with its copy"}
DRAWN = dict.fromkeys(
    ("rows permuted", "row repeated", "weight zero, absent", "classes reordered"),
    "prototypes or folds are drawn from the rows in their order",
)

OWN_SPREAD = {"duplicated column": "a descent measures each column by its standard deviation"}
EVIDENCE = {"weights times": "the evidence is of so many rows, and no C undoes that"}
NO_TARGETS = dict.fromkeys(("targets times", "targets plus"), "it has no targets")
OWN_C = {"weights times": "C is one number or the default grid"}
LEAST_SQUARES_C = {"weights times": "the kernel is tuned with the default C of least squares"}

REDUCED = {"digits": 100, "without": JOINT}  # the last steps round apart

ESTIMATOR_DIGITS = {
    "SparseKernelRidgeRegressor": 2000.0,  # coefficients reach 1e5 where predictions are near 1
    "RobustLSSVMClassifier": 2e4,  # the solver stops within its tolerance of the optimum
}

OF_ROWS = dict.fromkeys(
    ("row repeated", "weight zero, anything", "weight zero, absent"),
    "every row is a prototype, whatever its weight",
)

PURE = [
    Learner("fixed_size.fit", fixed(), ways={"mesh": fixed_on_mesh, "blocks": fixed(block_rows=5)}),
    Learner(
        "fixed_size.fit: intercept penalised",
        fixed(intercept_penalty=1.0),
        without=PENALISED,
        slow=True,
    ),
    Learner("fixed_size.solve", summed, ways={"stream": in_batches, "sums": added}, slow=True),
    Learner(
        "fixed_size.fit_features",
        of_features(nystroem),
        slow=True,
        ways={"blocks": of_features(nystroem, block_rows=5)},
    ),
    Learner(
        "fixed_size.fit_features: linear",
        of_features(linear),
        digits=4,
        without={"inputs scaled": "the penalty is of weights in units of the inputs"},
    ),
    *[
        Learner(
            f"fixed_size.fit_classes: {scheme}",
            coded(scheme),
            "class",
            scheme=scheme,
            ways={"mesh": coded(scheme, mesh=True), "sums": coded_sums(scheme)},
            without=OTHER_PROBLEMS if scheme == "minimum_output" else {},
            slow=scheme != "one_versus_one",
        )
        for scheme in ("one_versus_rest", "one_versus_one", "minimum_output")
    ],
    Learner("dual.fit", in_the_dual(method="cholesky")),
    Learner(
        "dual.fit: conjugate_gradients",
        by_gradients,
        digits=4,
    ),
    *[
        Learner(f"dual.fit_classes: {scheme}", coded_in_the_dual(scheme), "class", scheme=scheme)
        for scheme in ("one_versus_rest", "one_versus_one")
    ],
    Learner("dual.leave_one_out", without_each_row, without=TWIN),
    Learner("robust.fit: absolute", robustly("absolute"), power=1),
    Learner("robust.fit: quantile", robustly("quantile", quantile=0.8), power=1, without=MIRROR),
    Learner("robust.fit: huber", robustly("huber")),
    Learner("robust.fit: huber, threshold", robustly("huber", told=True), slow=True),
    Learner("scdp.fit", sparse(), without=JOINT),
    Learner("scdp.fit: separate", sparse(selection="separate")),
    Learner(
        "scdp.fit: subset",
        sparse(subset=3, key=KEY, formed=True),
        without=JOINT,
        ways={"by columns": sparse(subset=3, key=KEY, formed=False)},
        slow=True,
    ),
    Learner("scdp.fit: subset, by columns", sparse(subset=3, key=KEY, formed=False), without=JOINT),
    Learner("spsvm.fit", sparse_svm, "sign", digits=2),
    Learner("pursuits.fit: KSP", of_atoms(jsparse.KSP)),
    Learner("pursuits.fit: KSP, on rows", of_atoms(jsparse.KSP, formed=False), slow=True),
    Learner("pursuits.fit: KMP", of_atoms(jsparse.KMP), slow=True),
    Learner("pursuits.fit: KMP, basic", of_atoms(jsparse.KMP, fitting="basic"), slow=True),
    Learner(
        "pursuits.fit: KMP, prefitting", of_atoms(jsparse.KMP, fitting="prefitting"), slow=True
    ),
    Learner("pursuits.fit: KBP", of_atoms(jsparse.KBP), slow=True),
    Learner("reductions.fit", reduced(), ways={"blocks": reduced(block_rows=5)}, **REDUCED),
    Learner(
        "reductions.fit: dual",
        reduced_from_rows,
        amplified=30,  # by the condition of the kernel matrix of all rows
        slow=True,
        **{**REDUCED, "without": {**REDUCED["without"], **OF_ROWS}},
    ),
    Learner(
        "validate: SparseReduction",
        held_out(jsparse.SparseReduction(), first),
        sums_squares=True,
        **{**REDUCED, "digits": 300},
    ),
    Learner("direct.marginal", in_the_span, "sign"),
    Learner(
        "sparse_ridge.fit",
        by_fit(sparse_ridge.fit, max_iterations=STEPS),
        digits=30,
        without=JOINT | OWN_SPREAD,
    ),
    *[
        Learner(
            f"{module.__name__.split('.')[-1]}.fit",
            by_fit(module.fit, sign, max_iterations=STEPS),
            "sign",
            digits=digits,
            without=OWN_SPREAD,
            slow=module is not slmc,
        )
        for module, digits in (
            (slmc, 30),
            (sparse_fisher, 30),
            (reduced_set, 4000),  # as precise as all rows' own machine
        )
    ],
    Learner("reduced_svm.fit", by_fit(reduced_svm.fit, sign), "sign", slow=True),
    Learner(
        "reduced_svm.fit: coefficients",
        by_fit(reduced_svm.fit, sign, penalty="coefficients"),
        "sign",
        digits=100,  # features that are not whitened
        slow=True,
    ),
    Learner("one_class.fit", of_one_class, digits=30, without=NO_TARGETS | OWN_SPREAD, slow=True),
    Learner(
        "rvm.fit",
        by_evidence("normal", both),
        digits=100,  # the prototypes' columns nearly depend on each other
        without=EVIDENCE | PENALISED,
    ),
    Learner(
        "rvm.fit: logistic",
        by_evidence("logistic", sign),
        "sign",
        digits=100,
        without=EVIDENCE,
        slow=True,
    ),
    Learner(
        "cross_validate: subtraction",
        validated(method="subtraction"),
        ways={
            "mesh": validated(method="subtraction", mesh=True),
            "removal": validated(method="removal"),
        },
    ),
    Learner(
        "cross_validate: removal",
        validated(method="removal"),
        ways={"mesh": validated(method="removal", mesh=True)},
    ),
    Learner("cross_validate: mae", validated(method="removal", metric="mae"), metric=1, slow=True),
    Learner(
        "cross_validate: linear",
        validated(linear, method="subtraction"),
        digits=4,
        slow=True,
        without={"inputs scaled": "the penalty is in units of the inputs"},
    ),
    Learner(
        "cross_validate: misclassification",
        validated(targets=sign, method="subtraction", metric="misclassification"),
        "sign",
        slow=True,
    ),
    Learner(
        "cross_validate: one_versus_one",
        validated(scheme="one_versus_one", metric="misclassification"),
        "class",
        scheme="one_versus_one",
        ways={"mesh": validated(scheme="one_versus_one", metric="misclassification", mesh=True)},
    ),
    Learner(
        "cross_validate: one_versus_rest",
        validated(scheme="one_versus_rest"),
        "class",
        scheme="one_versus_rest",
        slow=True,
    ),
    Learner(
        "validate: Robust, absolute",
        held_out(jsparse.Robust(loss="absolute"), first, metric="mae"),
        power=1,
        metric=1,
        digits=30,  # in a batch or not, the last steps round apart
    ),
    Learner(
        "validate: Robust, huber",
        held_out(jsparse.Robust(loss="huber"), first, metric="mae"),
        metric=1,
        slow=True,
    ),
    Learner(
        "validate: Robust, one_versus_one",
        held_out(jsparse.Robust(), scheme="one_versus_one", metric="misclassification"),
        "class",
        scheme="one_versus_one",
        slow=True,
    ),
    Learner("validate: SpSVM", held_out(jsparse.SpSVM(max_prototypes=SIZE), sign), "sign"),
    Learner(
        "validate: SpSVM, one_versus_rest",
        held_out(jsparse.SpSVM(max_prototypes=SIZE), scheme="one_versus_rest"),
        "class",
        scheme="one_versus_rest",
        slow=True,
    ),
    Learner("validate: Dual", held_out(jsparse.Dual()), without=TWIN),
    Learner(
        "validate: Dual, one_versus_one",
        held_out(jsparse.Dual(), scheme="one_versus_one", metric="misclassification"),
        "class",
        scheme="one_versus_one",
        without=TWIN,
    ),
    Learner(
        "validate: SCDP",
        held_out(jsparse.SCDP(SIZE), first),
        ways={"mesh": held_out(jsparse.SCDP(SIZE), first, mesh=True)},
    ),
    Learner(
        "validate: SCDP, one_versus_rest",
        held_out(jsparse.SCDP(SIZE), scheme="one_versus_rest"),
        "class",
        scheme="one_versus_rest",
        slow=True,
    ),
    Learner(
        "pursuit.omp",
        pursued(omp, on_rows=True),
        ways={"batch": pursued(omp, on_rows=True, batched=True)},
        without={**JOINT, **NO_INTERCEPT},
    ),
    Learner(
        "pursuit.stagewise_omp",
        pursued(stagewise, on_rows=True),
        ways={"batch": pursued(stagewise, on_rows=True, batched=True)},
        slow=True,
        without={**JOINT, **NO_INTERCEPT, **UNIT_LENGTH},
    ),
    Learner(
        "pursuit.subspace_pursuit",
        pursued(subspace, on_rows=True),
        ways={"batch": pursued(subspace, on_rows=True, batched=True)},
        without={**JOINT, **NO_INTERCEPT},
    ),
    Learner("pursuit.least_squares", on_three_atoms, without=NO_INTERCEPT, slow=True),
    Learner(
        "pursuit.cosamp",
        pursued(cosamp, on_rows=True),
        ways={"batch": pursued(cosamp, on_rows=True, batched=True)},
        slow=True,
        without={**JOINT, **NO_INTERCEPT},
    ),
    Learner(
        "pursuit.subspace_pursuit_gram",
        pursued(subspace_gram),
        ways={"batch": pursued(subspace_gram, batched=True)},
        slow=True,
        without={**JOINT, **NO_INTERCEPT},
    ),
    Learner(
        "pursuit.scdp",
        pursued(conjugate),
        ways={"batch": pursued(conjugate, batched=True)},
        without={**JOINT, **NO_INTERCEPT},
        slow=True,
    ),
    Learner(
        "pursuit.scdpp",
        pursued(by_chance),
        ways={"batch": pursued(by_chance, batched=True)},
        without={**JOINT, **NO_INTERCEPT},
        slow=True,
    ),
    Learner(
        "pursuit.matching_pursuit",
        pursued(matching),
        ways={"batch": pursued(matching, batched=True)},
        without={**JOINT, **NO_INTERCEPT},
    ),
    Learner("pursuit.lars", pursued(least_angle), metric=1, without=NO_INTERCEPT, slow=True),
    Learner("pursuit.lasso", pursued(lasso), metric=1, without=NO_INTERCEPT, slow=True),
    Learner("pursuit.debiased", pursued(debiased), metric=1, without=NO_INTERCEPT),
]

TRAINERS = [
    Learner("train", trained(), ways={"mesh": trained(mesh=True)}),
    Learner("train: kernel as it is", as_given),
    Learner("train: linear", trained(kernel="linear")),
    *[
        Learner(
            f"train: not tuned, {targets}",
            trained(targets, search=GIVEN, multiclass="one_versus_one"),
            targets,
            scheme="one_versus_one" if targets == "class" else None,
            ways={"stream": streamed(targets, search=GIVEN, multiclass="one_versus_one")},
        )
        for targets in ("real", "sign", "class")
    ],
    Learner("train: renyi", trained(method=jsparse.FixedSize(8)), without=DRAWN),
    Learner(
        "train: uniform", trained(method=jsparse.FixedSize(8, selection="uniform")), without=DRAWN
    ),
    Learner("train: several sizes", trained(method=jsparse.FixedSize([4, 8])), without=DRAWN),
    Learner("train: Annealing", trained(search=jsparse.Annealing(20))),
    Learner("train: Dual", trained(method=jsparse.Dual()), without=TWIN),
    *[
        Learner(
            f"train: Robust, {loss}",
            trained(method=lambda p, loss=loss: jsparse.Robust(present(p), loss=loss)),
            metric=1,
        )
        for loss in ("absolute", "huber")
    ],
    Learner(
        "train: Robust, quantile",
        trained(method=lambda p: jsparse.Robust(present(p), loss="quantile", quantile=0.8)),
        metric=1,
        without=MIRROR,
    ),
    Learner(
        "train: Robust, two classes",
        trained("sign", lambda p: jsparse.Robust(present(p), loss="absolute")),
        "sign",
    ),
    Learner(
        "train: two classes", trained("sign"), "sign", ways={"mesh": trained("sign", mesh=True)}
    ),
    Learner("train: Dual, two classes", trained("sign", jsparse.Dual()), "sign", without=TWIN),
    *[
        Learner(
            f"train: {scheme}",
            trained("class", multiclass=scheme),
            "class",
            scheme=scheme,
            without=OTHER_PROBLEMS if scheme == "minimum_output" else {},
        )
        for scheme in ("one_versus_rest", "one_versus_one", "minimum_output")
    ],
    Learner(
        "train: C per problem, balanced",
        trained(
            "class", multiclass=jsparse.Multiclass(C_per_problem=True), class_weight="balanced"
        ),
        "class",
        scheme="one_versus_rest",
    ),
    Learner(
        "train: Dual, one_versus_one",
        trained("class", jsparse.Dual(), multiclass="one_versus_one"),
        "class",
        without=TWIN,
        scheme="one_versus_one",
    ),
    Learner(
        "train: SCDP",
        trained(method=path_of()),
        ways={"mesh": trained(method=path_of(), mesh=True)},
    ),
    *[
        Learner(
            f"train: SCDP, not tuned, {targets}",
            trained(targets, path_of(**options), GIVEN, sizes=True),
            targets,
            scheme="one_versus_rest" if targets == "class" else None,
            ways={"stream": streamed(targets, path_of(**options), GIVEN, sizes=True)},
        )
        for targets, options in (("real", {}), ("class", {"selection": "separate"}))
    ],
    *[
        Learner(
            f"train: SCDP, {chosen}",
            trained(method=path_of(candidates=8, candidate_method=chosen)),
            without=DRAWN,
        )
        for chosen in ("k_center", "k_means", "renyi")
    ],
    Learner("train: SCDP, two classes", trained("sign", path_of()), "sign"),
    Learner(
        "train: SCDP, separate",
        trained("class", path_of(selection="separate")),
        "class",
        scheme="one_versus_rest",
    ),
    Learner("train: SpSVM", trained("sign", svm_of), "sign", without=LEAST_SQUARES_C),
    Learner(
        "train: SpSVM, one_versus_one",
        trained("class", svm_of, GIVEN, multiclass="one_versus_one"),
        "class",
        scheme="one_versus_one",
    ),
    Learner(
        "train: ReducedSVM",
        trained("sign", jsparse.ReducedSVM(8, selection="uniform")),
        "sign",
        without=DRAWN,
    ),
    Learner(
        "train: SLMC, not tuned",
        trained(
            "class", jsparse.SLMC(8, max_iterations=STEPS), GIVEN, multiclass="one_versus_rest"
        ),
        "class",
        scheme="one_versus_rest",
        without=DRAWN,
    ),
    Learner(
        "train: SparseFisher, not tuned",
        trained("sign", jsparse.SparseFisher(8, max_iterations=STEPS), GIVEN),
        "sign",
        without=DRAWN,
    ),
    Learner(
        "train: SparseRidge, not tuned",
        trained(method=jsparse.SparseRidge(8, max_iterations=STEPS), search=GIVEN),
        without=DRAWN,
    ),
    Learner(
        "train: ReducedSetSVM, not tuned",
        trained("sign", jsparse.ReducedSetSVM(8, max_iterations=STEPS), GIVEN),
        "sign",
        without=DRAWN,
    ),
    Learner("train: RVM", trained(method=jsparse.RVM(), C=None), without=DRAWN | EVIDENCE),
    Learner(
        "train: RVM, two classes", trained("sign", jsparse.RVM(), C=None), "sign", without=EVIDENCE
    ),
    Learner("estimators.SparseOneClassSVM", outliers, without=DRAWN | NO_TARGETS),
    Learner("train: stream", streamed(), without=DRAWN),
    Learner("train: stream, two classes", streamed("sign"), "sign", without=DRAWN),
    Learner(
        "train: stream, one_versus_one",
        streamed("class", multiclass="one_versus_one"),
        "class",
        scheme="one_versus_one",
        without=DRAWN,
    ),
    Learner("train: stream, SCDP", streamed(method=path_of()), without=DRAWN),
    Learner(
        "train: stream, SCDP, separate",
        streamed("class", path_of(selection="separate")),
        "class",
        scheme="one_versus_rest",
        without=DRAWN,
    ),
    *[
        Learner(
            f"estimators.{name}: {targets}",
            estimated(cls, targets),
            targets,
            metric=1 if name.startswith("Robust") else 2,  # mean absolute error, or squared
            scheme="probabilities" if targets != "real" else None,
            digits=ESTIMATOR_DIGITS.get(name, 1.0),
            without={**OWN_C, **(TWIN if name.startswith("LSSVM") else DRAWN)},
        )
        for name in sorted(dir(estimators))
        if isinstance(cls := getattr(estimators, name), type) and name != "SparseOneClassSVM"
        for targets in (("real",) if name.endswith("Regressor") else ("sign", "class"))
    ],
]
TRAINERS = [learner._replace(standardises=True) for learner in TRAINERS]


def problem(dtype: str = "float64", *, seed: int = 0) -> Problem:
    """Three classes about a circle, and smooth targets; the third column is zero.

    All inputs are multiples of 1/64, so that a shift of 1024 loses nothing in float32.
    """
    n, m, q, v = 24, 6, 5, 3
    rng = np.random.default_rng(seed)
    label = np.arange(n) % CLASSES
    angle = 2 * np.pi * label / CLASSES
    X = 1.2 * np.stack([np.cos(angle), np.sin(angle)], axis=1) + rng.standard_normal((n, 2))
    y = np.stack([np.sin(X[:, 0]) + X[:, 1], X[:, 0] * X[:, 1]], axis=1)
    y = y + 0.3 * rng.standard_normal((n, 2))
    # Well apart.
    Z = np.stack(np.meshgrid([-1.5, 0.0, 1.5], [-1.0, 1.0]), axis=-1).reshape(m, 2)
    Z = Z + 0.3 * rng.standard_normal(Z.shape)
    new = 1.5 * rng.standard_normal((q, 2))
    X, Z, new = (np.round(64 * np.pad(a, ((0, 0), (0, 1)))) / 64 for a in (X, Z, new))
    # Rows 0 and 1 in one fold; the last of each have no weight where some have none.
    order = np.concatenate([[0, 1], 2 + rng.permutation(n - 2)])
    p = Problem(
        X=X,
        y=y,
        label=label.astype(np.int32),
        w=rng.uniform(0.5, 1.5, n),
        Z=Z,
        new=new,
        folds=order.reshape(v, -1).astype(np.int32),
        C=np.asarray(3.0),
        lengthscale=np.full(3, 1.2),
        unit=np.asarray(1.0),
    )
    return Problem(*(a.astype(dtype) if a.dtype.kind == "f" else a for a in p))
