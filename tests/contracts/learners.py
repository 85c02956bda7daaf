"""Every learner behind one interface: a function from a `Problem` to an `Outcome`.

`test_relations.py` tests every relation for every learner in `PURE` and `TRAINERS`.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jsparse
from jsparse import estimators
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
from jsparse.multiclass import decode, output_code
from jsparse.validation.cross_validation import cross_validate
from jsparse.validation.folds import Folds
from jsparse.validation.validate import validate

SIZE = 4  # largest machine of a path
CLASSES = 3
KEY = jax.random.key(0)
# Each step of a non-convex descent amplifies rounding: after a hundred steps no digit of float32 is
# left. So the descents stop after two steps here. `test_direct_reference.py` compares their ends.
STEPS = 2


class Problem(NamedTuple):
    """Rows, and every other argument that a learner may take."""

    X: Any  # n d
    y: Any  # n 2, real targets
    label: Any  # n, class numbers; labels of any type for learners that train
    w: Any  # n
    Z: Any  # m d, prototypes or candidates
    new: Any  # q d, rows to be predicted
    folds: Any  # v r, row numbers
    C: Any  # ()
    lengthscale: Any  # d


class Outcome(NamedTuple):
    """The results of a learner, None if it lacks one; `..` are axes of several `C` or sizes."""

    values: Any  # .. q c, of the machine at the rows `new`
    rows: Any = None  # .. n c, out-of-fold values of the training rows
    scores: Any = None  # ..
    decisions: Any = None  # q, labels
    status: Any = 0


Learn = Callable[[Problem], Outcome]


class Learner(NamedTuple):
    """A learner, and the exceptions to the relations that follow from its definition."""

    name: str  # the public function; after a colon, its options
    learn: Learn
    targets: str = "real"  # or "sign", or "class"
    C_power: int = 0  # for targets times a, C times a ** C_power gives the machine times a
    metric_power: int = 2  # for targets times a, the scores grow by a ** metric_power
    class_columns: bool = False  # the values have a column for each class
    digits: float = 1.0  # factor of the tolerance of the comparisons
    error_growth: float = 1.0  # further factor where targets near 1e6 are rounded
    standardises: bool = False  # standardises inputs, as all training does
    sums_squares: bool = False  # of unscaled targets: the squares must be in range
    excluded: Mapping[str, str] = {}  # relations that do not hold, with the reason
    slow: bool = False  # computes much as another learner, so its tests are slow tests


def grid(p: Problem):
    return p.C * jnp.asarray([0.1, 1.0], p.X.dtype)


def all_targets(p: Problem):
    return p.y


def first_target(p: Problem):
    return p.y[:, 0]


def signs(p: Problem):
    return jnp.where(p.label == 1, 1, -1).astype(p.X.dtype)


def nystroem(p: Problem):
    return Nystroem(RBF(p.lengthscale), p.Z)


def folds_of(p: Problem) -> Folds:
    return Folds(jnp.asarray(p.folds), jnp.ones(p.folds.shape, bool))


# Machines.


def fit_outcome(p: Problem, fitted, code=None) -> Outcome:
    """Return values with a column for each output, also for a machine of one output."""
    values = fitted.expansion(p.new).reshape(len(p.new), -1)
    decisions = None
    if code is not None:
        decisions = decode(jnp.asarray(code.matrix, values.dtype), values)
    return Outcome(values, decisions=decisions, status=fitted.status)


def path_outcome(p: Problem, family) -> Outcome:
    """Return the values of the machines of all sizes."""
    return Outcome(jnp.moveaxis(family.values(p.new), 1, 0), status=family.status)


def fit_by(fit, targets=all_targets, *, outcome=fit_outcome, **options) -> Learn:
    """Fit by a method's public function, with the prototypes of the problem."""

    def learn(p: Problem) -> Outcome:
        rows = p.X, targets(p), p.w
        return outcome(p, fit(RBF(p.lengthscale), p.Z, p.C, *rows, **options))

    return learn


def fit_path(fit, targets=all_targets, **options) -> Learn:
    return fit_by(fit, targets, outcome=path_outcome, max_prototypes=SIZE, **options)


def fit_linear(p: Problem) -> Outcome:
    phi = Linear(jnp.mean(p.Z, axis=0))
    return fit_outcome(p, fixed_size.fit_features(phi, p.C, p.X, p.y, p.w))


def fit_classes(scheme: str) -> Learn:
    code = output_code(scheme, CLASSES)
    return lambda p: fit_outcome(
        p, fixed_size.fit_classes(nystroem(p), p.C, p.X, p.label, code, p.w), code
    )


def fit_dual(**options) -> Learn:
    return lambda p: fit_outcome(p, dual.fit(RBF(p.lengthscale), p.C, p.X, p.y, p.w, **options))


def fit_dual_by_gradients(p: Problem) -> Outcome:
    tolerance = 100 * float(jnp.finfo(p.X.dtype).eps)
    options = {"method": "conjugate_gradients", "landmarks": 5, "block_rows": 10}
    return fit_dual(**options, tolerance=tolerance)(p)


def fit_dual_classes(p: Problem) -> Outcome:
    code = output_code("one_versus_one", CLASSES)
    fitted = dual.fit_classes(RBF(p.lengthscale), p.C, p.X, p.label, code, p.w)
    return fit_outcome(p, fitted, code)


def leave_one_out(p: Problem) -> Outcome:
    values, status = dual.leave_one_out(RBF(p.lengthscale), grid(p), p.X, p.y, p.w)
    return Outcome(values[:, :0], values, status=status)


def fit_robust(loss: str, **options) -> Learn:
    return lambda p: fit_outcome(
        p, robust.fit(nystroem(p), p.C, p.X, p.y, p.w, loss=loss, **options)
    )


def fit_pursuit(kind, **options) -> Learn:
    """Fit machines with 1 to `SIZE` atoms."""
    method = kind(n_prototypes=tuple(range(1, SIZE + 1)), **options)
    return lambda p: path_outcome(p, pursuits.fit(method, RBF(p.lengthscale), p.Z, p.X, p.y, p.w))


def fit_reduction(**options) -> Learn:
    """Reduce from the prototypes, or from every row, because prototypes of the dual are rows."""

    def learn(p: Problem) -> Outcome:
        Z = p.X if "initialization" in options else p.Z
        rows = p.X, p.y, p.w
        return fit_outcome(p, reductions.fit(RBF(p.lengthscale), Z, p.C * 100, *rows, **options))

    return learn


def solve_inner_problem(p: Problem) -> Outcome:
    machine = direct.LargeMargin(RBF(p.lengthscale), p.X, signs(p), p.C, p.w)
    solved = jax.jit(lambda machine, Z: direct.marginal(machine)(Z)[1])(machine, p.Z)
    values = machine.expansion(p.Z, solved)(p.new)
    return Outcome(values[:, None], status=solved.status)


def fit_rvm(likelihood: str, targets) -> Learn:
    options = {"likelihood": likelihood, "max_prototypes": SIZE}
    return lambda p: fit_outcome(
        p, rvm.fit(RBF(p.lengthscale), p.Z, p.X, targets(p), p.w, **options)
    )


def fit_one_class(p: Problem) -> Outcome:
    fitted = one_class.fit(RBF(p.lengthscale), p.Z, 0.3, p.X, p.w, max_iterations=STEPS)
    return fit_outcome(p, fitted)


# Validation.


def validation_outcome(validation) -> Outcome:
    """Return the out-of-fold values; there is no machine for the values at new rows."""
    rows = validation.predictions.reshape(*validation.predictions.shape[:2], -1)
    return Outcome(rows[:, :0], rows, validation.scores, None, validation.status)


def cross_validated(scheme=None, **options) -> Learn:
    """Cross-validate ridge regression for all targets, or for the classes by an output code."""
    code = None if scheme is None else output_code(scheme, CLASSES)

    def learn(p: Problem) -> Outcome:
        y = p.y if code is None else p.label
        rows = p.X, y, folds_of(p), p.w
        return validation_outcome(cross_validate(nystroem(p), grid(p), *rows, code=code, **options))

    return learn


def validated(method: Method, targets=first_target, scheme=None, *, metric="mse") -> Learn:
    """Validate a method; keep the predictions of its largest machine for the last `C`."""
    code = None if scheme is None else output_code(scheme, CLASSES)

    def learn(p: Problem) -> Outcome:
        Z = None if isinstance(method, jsparse.Dual) else p.Z
        y = targets(p) if code is None else p.label
        validation = validate(
            method, RBF(p.lengthscale), Z, grid(p), p.X, y, folds_of(p), p.w, metric=metric,
            code=None if code is None else code.astype(p.X.dtype), key=KEY, keep=1,
            size=SIZE - 1 if method.several_sizes else 0,
        )  # fmt: skip
        return validation_outcome(validation._replace(predictions=validation.predictions[None]))

    return learn


# Training, from raw inputs.

THREE_KERNELS = jsparse.Profile(3)
FIXED_KERNEL = jsparse.Profile(tune_kernel=False)
Settings = Callable[[Problem], Method]  # the method for a problem


def all_rows(p: Problem) -> jsparse.FixedSize:
    return jsparse.FixedSize(int(np.count_nonzero(p.w)))


def absolute(p: Problem) -> jsparse.Robust:
    return jsparse.Robust(int(np.count_nonzero(p.w)), loss="absolute")


def path_of(kind) -> Settings:
    return lambda p: kind(max_prototypes=SIZE, candidates=p.Z)


def trained(
    targets: str = "real",
    method: Settings | Method = all_rows,
    search=THREE_KERNELS,
    *,
    streamed: bool = False,
    **options,
) -> Learn:
    """Train on a table with the folds of the problem, or on a stream with two random folds."""

    def learn(p: Problem) -> Outcome:
        y = p.y[:, 0] if targets == "real" else p.label
        settings = {
            "task": "regression" if targets == "real" else "classification",
            "key": KEY,
            "kernel": RBF(1.5),
            "C": np.asarray(p.C, float) * np.array([0.1, 1.0, 10.0]),
            "search": search,
            "method": method if isinstance(method, Method) else method(p),
            **options,
        }
        if streamed:
            stream = ArrayStream(*map(np.asarray, (p.X, y, p.w)), batch_rows=10)
            model = jsparse.train(stream, folds=2, **settings)
        else:
            model = jsparse.train(p.X, y, weights=p.w, folds=folds_of(p), **settings)
        decisions = None if model.classes is None else model.predict(p.new)
        values = np.asarray(model.expansion(p.new)).reshape(len(p.new), -1)
        rows = model.out_of_fold.reshape(len(model.out_of_fold), -1)
        return Outcome(values, rows, model.cv_error, decisions, model.status)

    return learn


def estimated(cls, targets: str) -> Learn:
    """Fit an estimator; the values are its predictions, or for classes its probabilities."""
    options = {"max_evaluations": 3, "n_prototypes": 8, "cv": 3, "random_state": 0}

    def learn(p: Problem) -> Outcome:
        y = np.asarray(p.y[:, 0] if targets == "real" else p.label)
        model = cls(kernel=RBF(1.5), **options).fit(np.asarray(p.X), y, np.asarray(p.w))
        if targets == "real":
            return Outcome(model.predict(p.new)[:, None], scores=model.cv_error_)
        probabilities = model.predict_proba(p.new)
        return Outcome(probabilities, None, model.cv_error_, model.predict(p.new))

    return learn


def fit_one_class_estimator(p: Problem) -> Outcome:
    model = estimators.SparseOneClassSVM(4, nu=0.3, max_iter=STEPS, kernel=RBF(1.5), random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jsparse.ConvergenceWarning)
        model.fit(np.asarray(p.X), sample_weight=np.asarray(p.w))
    return Outcome(model.decision_function(p.new)[:, None])


# The lists.

JOINT = {"one output": "the outputs select their atoms jointly"}
PENALISED = {"targets plus": "the intercept is penalised"}
MIRROR = {"targets times": "-1 turns a quantile into another, see test_quantile.py"}
COPIED = {"row repeated": "a row may be left out while its copy is not"}
RANDOM = dict.fromkeys(
    ("rows permuted", "row repeated", "weight zero, absent", "classes reordered"),
    "the random prototypes or folds depend on the order of the rows",
)
MEASURED_IN_SPREADS = {
    "duplicated column": "a descent measures each column by its standard deviation"
}
EVIDENCE = {"weights times": "the evidence counts weights as rows, and no C offsets that"}
NO_TARGETS = dict.fromkeys(("targets times", "targets plus"), "it has no targets")
ONE_C = {"weights times": "the default grid of C does not scale with the weights"}
STARTS = {"weights times": "descents of validation start from machines with the default C"}
LEAST_SQUARES_C = {"weights times": "the kernel is tuned with the default C of least squares"}
IN_UNITS = {"inputs scaled": "the penalty is of weights in units of the inputs"}
ALL_ROWS = dict.fromkeys(
    ("row repeated", "weight zero, anything", "weight zero, absent"),
    "every row is a prototype, whatever its weight",
)

PURE = [
    Learner("fixed_size.fit", fit_by(fixed_size.fit)),
    Learner("fixed_size.fit_features: linear", fit_linear, digits=4, excluded=IN_UNITS),
    Learner("fixed_size.fit_classes: one_versus_one", fit_classes("one_versus_one"), "class"),
    Learner("fixed_size.fit_classes: one_versus_rest", fit_classes("one_versus_rest"), "class",
        class_columns=True, slow=True),
    Learner("dual.fit", fit_dual(method="cholesky")),
    Learner("dual.fit: conjugate_gradients", fit_dual_by_gradients, digits=4),
    Learner("dual.fit_classes", fit_dual_classes, "class", slow=True),
    Learner("dual.leave_one_out", leave_one_out, excluded=COPIED),
    Learner("robust.fit: absolute", fit_robust("absolute"), C_power=1),
    Learner("robust.fit: quantile", fit_robust("quantile", quantile=0.8), C_power=1, digits=10,
        excluded=MIRROR, slow=True),
    Learner("robust.fit: huber", fit_robust("huber"), slow=True),
    Learner("scdp.fit", fit_path(scdp.fit), excluded=JOINT, slow=True),
    Learner("scdp.fit: separate", fit_path(scdp.fit, selection="separate"), slow=True),
    Learner("scdp.fit: subset, by columns",
        fit_path(scdp.fit, subset=3, key=KEY, formed=False), excluded=JOINT),
    Learner("spsvm.fit", fit_path(spsvm.fit, signs, key=KEY), "sign", digits=2),
    Learner("pursuits.fit: KSP", fit_pursuit(jsparse.KSP)),
    Learner("pursuits.fit: KMP", fit_pursuit(jsparse.KMP), slow=True),
    Learner("pursuits.fit: KMP, prefitting", fit_pursuit(jsparse.KMP, fitting="prefitting"),
        slow=True),
    Learner("pursuits.fit: KBP", fit_pursuit(jsparse.KBP), slow=True),
    # The last reweighting steps round differently.
    Learner("reductions.fit", fit_reduction(), digits=100, excluded=JOINT),
    # The kernel matrix of all rows is ill-conditioned.
    Learner("reductions.fit: dual", fit_reduction(initialization="dual"), digits=100,
        error_growth=30, excluded=JOINT | ALL_ROWS, slow=True),
    Learner("direct.marginal", solve_inner_problem, "sign", slow=True),
    Learner("sparse_ridge.fit", fit_by(sparse_ridge.fit, max_iterations=STEPS), digits=30,
        excluded=JOINT | MEASURED_IN_SPREADS),
    Learner("slmc.fit", fit_by(slmc.fit, signs, max_iterations=STEPS), "sign", digits=30,
        excluded=MEASURED_IN_SPREADS),
    Learner("sparse_fisher.fit", fit_by(sparse_fisher.fit, signs, max_iterations=STEPS), "sign",
        digits=30, excluded=MEASURED_IN_SPREADS, slow=True),
    # As precise as the machine of all rows that it approximates.
    Learner("reduced_set.fit", fit_by(reduced_set.fit, signs, max_iterations=STEPS), "sign",
        digits=4000, excluded=MEASURED_IN_SPREADS, slow=True),
    Learner("reduced_svm.fit", fit_by(reduced_svm.fit, signs), "sign", slow=True),
    Learner("one_class.fit", fit_one_class, digits=30, excluded=NO_TARGETS | MEASURED_IN_SPREADS,
        slow=True),
    # The columns of the prototypes are nearly dependent.
    Learner("rvm.fit", fit_rvm("normal", all_targets), digits=100, excluded=EVIDENCE | PENALISED),
    Learner("rvm.fit: logistic", fit_rvm("logistic", signs), "sign", digits=100,
        excluded=EVIDENCE, slow=True),
    Learner("cross_validate: subtraction", cross_validated(method="subtraction")),
    Learner("cross_validate: removal, mae", cross_validated(method="removal", metric="mae"),
        metric_power=1),
    Learner("cross_validate: one_versus_one",
        cross_validated("one_versus_one", metric="misclassification"), "class", slow=True),
    # The last iterations of a batch round differently.
    Learner("validate: Robust, absolute", validated(jsparse.Robust(loss="absolute"), metric="mae"),
        C_power=1, metric_power=1, digits=30),
    Learner("validate: SpSVM", validated(jsparse.SpSVM(max_prototypes=SIZE), signs), "sign",
        slow=True),
    Learner("validate: Dual", validated(jsparse.Dual(), all_targets), excluded=COPIED, slow=True),
    # `test_methods.py` compares these values with fits, and `scdp.fit` is here.
    Learner("validate: SCDP", validated(jsparse.SCDP(SIZE)), slow=True),
    Learner("validate: SparseReduction", validated(jsparse.SparseReduction()), sums_squares=True,
        digits=300, excluded=JOINT, slow=True),
]  # fmt: skip

# Training has much in common for all methods; so each way to read the rows, each task and each kind
# of method is here once.
BALANCED = {"multiclass": jsparse.Multiclass(C_per_problem=True), "class_weight": "balanced"}
TRAINERS = [
    Learner("train", trained()),
    Learner("train: linear", trained(kernel="linear")),
    Learner("train: Robust, absolute", trained(method=absolute), metric_power=1,
        excluded=LEAST_SQUARES_C),
    Learner("train: Dual, two classes", trained("sign", jsparse.Dual()), "sign", excluded=COPIED),
    Learner("train: one_versus_one", trained("class", multiclass="one_versus_one"), "class"),
    Learner("train: C per problem, balanced", trained("class", **BALANCED), "class",
        class_columns=True),
    Learner("train: SCDP", trained(method=path_of(jsparse.SCDP))),
    Learner("train: SpSVM", trained("sign", path_of(jsparse.SpSVM)), "sign",
        excluded=LEAST_SQUARES_C),
    Learner("train: SparseRidge, not tuned",
        trained(method=jsparse.SparseRidge(8, max_iterations=STEPS), search=FIXED_KERNEL),
        excluded=RANDOM | STARTS),
    Learner("train: RVM", trained(method=jsparse.RVM(), C=None), excluded=RANDOM | EVIDENCE),
    Learner("train: stream", trained(streamed=True), excluded=RANDOM),
    Learner("train: stream, one_versus_one",
        trained("class", streamed=True, multiclass="one_versus_one"), "class", excluded=RANDOM),
    Learner("estimators.FixedSizeLSSVMRegressor",
        estimated(estimators.FixedSizeLSSVMRegressor, "real"), excluded=ONE_C | RANDOM),
    Learner("estimators.FixedSizeLSSVMClassifier",
        estimated(estimators.FixedSizeLSSVMClassifier, "class"), "class", class_columns=True,
        excluded=ONE_C | RANDOM),
    Learner("estimators.SparseOneClassSVM", fit_one_class_estimator, excluded=RANDOM | NO_TARGETS),
]  # fmt: skip
TRAINERS = [learner._replace(standardises=True, slow=True) for learner in TRAINERS]


def problem(dtype: str = "float64", *, seed: int = 0) -> Problem:
    """Return rows of three classes around a circle, with smooth targets and a zero third column.

    All inputs are multiples of 1/64, so that a shift of 1024 loses nothing in float32.
    """
    n, m, q, v = 24, 6, 5, 3
    rng = np.random.default_rng(seed)
    label = np.arange(n) % CLASSES
    angle = 2 * np.pi * label / CLASSES
    X = 1.2 * np.stack([np.cos(angle), np.sin(angle)], axis=1) + rng.standard_normal((n, 2))
    y = np.stack([np.sin(X[:, 0]) + X[:, 1], X[:, 0] * X[:, 1]], axis=1)
    y = y + 0.3 * rng.standard_normal((n, 2))
    # The prototypes are far apart, so that their kernel matrix is well-conditioned.
    Z = np.stack(np.meshgrid([-1.5, 0.0, 1.5], [-1.0, 1.0]), axis=-1).reshape(m, 2)
    Z = Z + 0.3 * rng.standard_normal(Z.shape)
    new = 1.5 * rng.standard_normal((q, 2))
    X, Z, new = (np.round(64 * np.pad(a, ((0, 0), (0, 1)))) / 64 for a in (X, Z, new))
    # Rows 0 and 1, which one relation makes equal, share a fold. Relations with absent rows remove
    # the last row of each fold.
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
    )
    return Problem(*(a.astype(dtype) if a.dtype.kind == "f" else a for a in p))
