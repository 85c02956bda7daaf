"""Every learner behind one interface: a function from a `Problem` to an `Outcome`.

`test_relations.py` tests every relation for every learner in `PURE` and `TRAINERS`.
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
    unit: Any  # unit of the targets, for settings in that unit


class Outcome(NamedTuple):
    """The results of a learner. A result that the learner does not have is None."""

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
    scheme: str | None = None  # the code whose binary problems `values` has; or "probabilities"
    digits: float = 1.0  # factor of the tolerance of the comparisons
    error_growth: float = 1.0  # further factor where targets near 1e6 are rounded
    standardises: bool = False  # standardises inputs, as all training does
    sums_squares: bool = False  # of unscaled targets: the squares must be in range
    excluded: Mapping[str, str] = {}  # relations that do not hold, with the reason
    variants: Mapping[str, Learn] = {}  # other computations with equal results
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


def linear(p: Problem):
    return Linear(jnp.mean(p.Z, axis=0))


def folds_of(p: Problem) -> Folds:
    return Folds(jnp.asarray(p.folds), jnp.ones(p.folds.shape, bool))


def one_device() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), ("rows",))


def fit_outcome(p: Problem, fitted, code=None) -> Outcome:
    """Return values with a column for each output, also for a machine of one output."""
    values = fitted.expansion(p.new).reshape(len(p.new), -1)
    decisions = None
    if code is not None:
        decisions = decode(jnp.asarray(code.matrix, values.dtype), values)
    return Outcome(values, decisions=decisions, status=fitted.status)


# Machines.


def fit_fixed_size(**options) -> Learn:
    return lambda p: fit_outcome(
        p, fixed_size.fit(RBF(p.lengthscale), p.Z, p.C, p.X, p.y, p.w, **options)
    )


def fit_fixed_size_on_mesh(p: Problem) -> Outcome:
    return fit_fixed_size(mesh=one_device())(p)


def fit_from_sums(p: Problem) -> Outcome:
    phi = nystroem(p)
    return fit_outcome(p, fixed_size.solve(phi, accumulate(phi, p.X, p.y, p.w), p.C))


def fit_from_batches(p: Problem) -> Outcome:
    phi = nystroem(p)
    parts = np.split(np.arange(len(p.X)), [7, 14])
    sums = accumulate_batches(
        phi, [tuple(np.asarray(a)[i] for a in (p.X, p.y, p.w)) for i in parts]
    )
    return fit_outcome(p, fixed_size.solve(phi, sums, p.C))


def fit_from_added_sums(p: Problem) -> Outcome:
    phi, n = nystroem(p), 10
    sums = accumulate(phi, p.X[:n], p.y[:n], p.w[:n]) + accumulate(phi, p.X[n:], p.y[n:], p.w[n:])
    return fit_outcome(p, fixed_size.solve(phi, sums, p.C))


def fit_on_features(phi, **options) -> Learn:
    return lambda p: fit_outcome(p, fixed_size.fit_features(phi(p), p.C, p.X, p.y, p.w, **options))


def fit_classes(scheme: str, *, mesh: bool = False) -> Learn:
    code = output_code(scheme, CLASSES)

    def learn(p: Problem) -> Outcome:
        where = one_device() if mesh else None
        fitted = fixed_size.fit_classes(nystroem(p), p.C, p.X, p.label, code, p.w, mesh=where)
        return fit_outcome(p, fitted, code)

    return learn


def fit_classes_from_sums(scheme: str) -> Learn:
    code = output_code(scheme, CLASSES)

    def learn(p: Problem) -> Outcome:
        phi, typed = nystroem(p), code.astype(p.X.dtype)
        sums = accumulate_code(typed, phi, p.X, p.label, p.w)
        return fit_outcome(p, fixed_size.solve(phi, sums, p.C, typed), typed)

    return learn


def fit_dual_by_gradients(p: Problem) -> Outcome:
    tolerance = 100 * float(jnp.finfo(p.X.dtype).eps)
    options = {"method": "conjugate_gradients", "landmarks": 5, "block_rows": 10}
    return fit_dual(**options, tolerance=tolerance)(p)


def fit_dual(**options) -> Learn:
    return lambda p: fit_outcome(p, dual.fit(RBF(p.lengthscale), p.C, p.X, p.y, p.w, **options))


def fit_dual_classes(scheme: str) -> Learn:
    code = output_code(scheme, CLASSES)
    return lambda p: fit_outcome(
        p, dual.fit_classes(RBF(p.lengthscale), p.C, p.X, p.label, code, p.w), code
    )


def leave_one_out(p: Problem) -> Outcome:
    values, status = dual.leave_one_out(RBF(p.lengthscale), grid(p), p.X, p.y, p.w)
    return Outcome(values[:, :0], values, status=status)


def fit_robust(loss: str, *, with_threshold: bool = False, **options: Any) -> Learn:
    def learn(p: Problem) -> Outcome:
        options["threshold"] = 0.3 * p.unit if with_threshold else None
        return fit_outcome(p, robust.fit(nystroem(p), p.C, p.X, p.y, p.w, loss=loss, **options))

    return learn


def path_outcome(p: Problem, family) -> Outcome:
    """Return the values of the machines of all sizes."""
    return Outcome(jnp.moveaxis(family.values(p.new), 1, 0), status=family.status)


def fit_scdp(**options) -> Learn:
    options = {"max_prototypes": SIZE, **options}
    return lambda p: path_outcome(
        p, scdp.fit(RBF(p.lengthscale), p.Z, p.C, p.X, p.y, p.w, **options)
    )


def fit_pursuit(kind, **options) -> Learn:
    """Fit machines with 1 to `SIZE` atoms."""
    method = kind(n_prototypes=tuple(range(1, SIZE + 1)), **options)
    return lambda p: path_outcome(p, pursuits.fit(method, RBF(p.lengthscale), p.Z, p.X, p.y, p.w))


def fit_reduction(**options) -> Learn:
    def learn(p: Problem) -> Outcome:
        rows = p.X, p.y, p.w
        return fit_outcome(p, reductions.fit(RBF(p.lengthscale), p.Z, p.C * 100, *rows, **options))

    return learn


def fit_dual_reduction(p: Problem) -> Outcome:
    """Reduce from every row, because prototypes of the dual must be rows."""
    fitted = reductions.fit(
        RBF(p.lengthscale), p.X, p.C * 100, p.X, p.y, p.w, initialization="dual"
    )
    return fit_outcome(p, fitted)


def fit_spsvm(p: Problem) -> Outcome:
    options = {"key": KEY, "max_prototypes": SIZE}
    return path_outcome(p, spsvm.fit(RBF(p.lengthscale), p.Z, p.C, p.X, signs(p), p.w, **options))


def solve_inner_problem(p: Problem) -> Outcome:
    machine = direct.LargeMargin(RBF(p.lengthscale), p.X, signs(p), p.C, p.w)
    solved = jax.jit(lambda machine, Z: direct.marginal(machine)(Z)[1])(machine, p.Z)
    values = machine.expansion(p.Z, solved)(p.new)
    return Outcome(values[:, None], status=solved.status)


def fit_by(fit, targets=all_targets, **options) -> Learn:
    """Fit by a method's public function, with the prototypes of the problem."""

    def learn(p: Problem) -> Outcome:
        rows = p.X, targets(p), p.w
        return fit_outcome(p, fit(RBF(p.lengthscale), p.Z, p.C, *rows, **options))

    return learn


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


def cross_validated(
    phi=nystroem, targets=all_targets, scheme=None, *, mesh=False, **options
) -> Learn:
    code = None if scheme is None else output_code(scheme, CLASSES)

    def learn(p: Problem) -> Outcome:
        y = p.label if code is not None else targets(p)
        where = one_device() if mesh else None
        return validation_outcome(
            cross_validate(
                phi(p), grid(p), p.X, y, folds_of(p), p.w, code=code, mesh=where, **options
            )
        )

    return learn


def validated(
    method: Method, targets=all_targets, scheme=None, *, metric="mse", mesh=False
) -> Learn:
    """Validate a method; keep the predictions of its largest machine for the last `C`."""
    code = None if scheme is None else output_code(scheme, CLASSES)

    def learn(p: Problem) -> Outcome:
        validation = validate(
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
        return validation_outcome(validation._replace(predictions=validation.predictions[None]))

    return learn


# Pursuits.


def dictionary(p: Problem):
    """Return atoms and targets times the roots of the weights, and the atoms at the new rows."""
    has_weight = (p.w > 0)[:, None]
    root = jnp.sqrt(p.w)[:, None]
    kernel = RBF(p.lengthscale)
    D = root * kernel.cross_gram(jnp.where(has_weight, p.X, p.Z[:1]), p.Z)
    return D, jnp.where(has_weight, root * p.y, 0), kernel.cross_gram(p.new, p.Z)


def solve_on_three_atoms(p: Problem) -> Outcome:
    D, y, columns = dictionary(p)
    return Outcome(columns[:, :3] @ pursuit.least_squares(D[:, :3], y))


def run_pursuit(run, *, on_rows: bool = False, batched: bool = False) -> Learn:
    """Run a pursuit on a dictionary of kernel columns, or on its normal equations."""

    def learn(p: Problem) -> Outcome:
        D, y, columns = dictionary(p)
        if run in ANGLE_PATHS:
            y = y[:, 0]
        A, b = (D, y) if on_rows else (D.T @ D, D.T @ y)
        if batched:
            path = run(jnp.stack([2 * A, A]), jnp.stack([b[::-1], b]))
            path = jax.tree.map(lambda a: a[1], path)
        else:
            path = run(A, b)
        if run in ANGLE_PATHS:
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


def scdp_path(A, b):
    return pursuit.scdp(A, b, max_atoms=SIZE)


def scdpp_path(A, b):
    return pursuit.scdpp(A, b, key=KEY, max_atoms=SIZE, subset=3)


def matching(A, b):
    return pursuit.matching_pursuit(A, b, max_atoms=SIZE)


def least_angle(A, b):
    return pursuit.lars(A, b, max_atoms=SIZE)


def lasso(A, b):
    return pursuit.lasso(A, b, max_atoms=SIZE)


def debiased(A, b):
    return pursuit.debiased(lasso(A, b), A, b, max_atoms=SIZE)


ANGLE_PATHS = (least_angle, lasso, debiased)


# Training, from raw inputs.


def n_present(p: Problem) -> int:
    return int(np.count_nonzero(p.w))


def task_of(targets) -> str:
    return "regression" if targets == "real" else "classification"


def targets_of(p: Problem, targets: str):
    return p.y[:, 0] if targets == "real" else p.label


def settings(p: Problem, targets: str, search: jsparse.Profile | jsparse.Annealing) -> dict:
    C = np.asarray(p.C, float) * np.array([0.1, 1.0, 10.0] if search.tune_kernel else [1.0])
    return {"task": task_of(targets), "key": KEY, "kernel": RBF(1.5), "C": C, "search": search}


Settings = Callable[[Problem], Method]  # the method for a problem


def all_rows(p: Problem) -> jsparse.FixedSize:
    return jsparse.FixedSize(n_present(p))


def scdp_settings(**options) -> Settings:
    return lambda p: jsparse.SCDP(**{"max_prototypes": SIZE, "candidates": p.Z, **options})


def spsvm_settings(p: Problem) -> jsparse.SpSVM:
    return jsparse.SpSVM(max_prototypes=SIZE, candidates=p.Z)


THREE_KERNELS = jsparse.Profile(3)
FIXED_KERNEL = jsparse.Profile(tune_kernel=False)


def trained(
    targets: str = "real",
    method: Settings | Method = all_rows,
    search: jsparse.Profile | jsparse.Annealing = THREE_KERNELS,
    *,
    mesh: bool = False,
    sizes: bool = False,
    **options,
) -> Learn:
    def learn(p: Problem) -> Outcome:
        model = jsparse.train(
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
        return training_outcome(p, model, sizes=sizes)

    return learn


def training_outcome(p: Problem, model: jsparse.Trained, *, sizes: bool = False) -> Outcome:
    """Return the results of the chosen machine, or of the machines of all sizes."""
    if sizes:
        machines = [model.at(k) for k in range(1, SIZE + 1)]
        values = np.stack([np.asarray(one(p.new)).reshape(len(p.new), -1) for one in machines])
        return Outcome(values, status=np.asarray(model.fit.status))
    decisions = None if model.classes is None else model.predict(p.new)
    values = np.asarray(model.expansion(p.new))
    rows = model.out_of_fold
    rows = None if rows is None else rows.reshape(len(rows), -1)
    return Outcome(values.reshape(len(p.new), -1), rows, model.cv_error, decisions, model.status)


def trained_with_fixed_kernel(p: Problem) -> Outcome:
    """Train with a fixed kernel, whose lengthscales are in units of standardised inputs."""
    return trained(search=FIXED_KERNEL, kernel=RBF(jnp.asarray(p.lengthscale)))(p)


def streamed(
    targets: str = "real",
    method: Settings | Method = all_rows,
    search: jsparse.Profile | jsparse.Annealing = THREE_KERNELS,
    *,
    sizes: bool = False,
    **options,
) -> Learn:
    def learn(p: Problem) -> Outcome:
        stream = ArrayStream(
            np.asarray(p.X), np.asarray(targets_of(p, targets)), np.asarray(p.w), batch_rows=10
        )
        resolved = method if isinstance(method, Method) else method(p)
        arguments = {**settings(p, targets, search), "folds": 2, **options}
        result = training_outcome(
            p, jsparse.train(stream, method=resolved, **arguments), sizes=sizes
        )
        # A stream draws other folds than `p.folds`. So without a search only the final machine can
        # equal the machine from arrays.
        return result if search.tune_kernel else result._replace(scores=None, rows=None)

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
            warnings.simplefilter("ignore", jsparse.ConvergenceWarning)  # STEPS is small
            # Nearby prototypes with coefficients in the thousands lose digits in float32.
            warnings.simplefilter("ignore", jsparse.PrecisionWarning)
            model = cls(**options).fit(X, np.asarray(targets_of(p, targets)), sample_weight=w)
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

JOINT = dict.fromkeys(("one output", "one output alone"), "the outputs select their atoms jointly")
PENALISED = {"targets plus": "the intercept is penalised"}
NO_INTERCEPT = {"targets plus": "there is no intercept"}
UNIT_LENGTH = {"weights times": "its threshold assumes columns of unit length"}
OTHER_PROBLEMS = {"classes reordered": "the binary problems depend on the order of the classes"}
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
ONE_C = {
    "weights times": "C is one number or the default grid, which does not scale with the weights"
}
LEAST_SQUARES_C = {"weights times": "the kernel is tuned with the default C of least squares"}

REDUCTION = {"digits": 100, "excluded": JOINT}  # the last reweighting steps round differently

ESTIMATOR_DIGITS = {
    "SparseKernelRidgeRegressor": 2000.0,  # coefficients reach 1e5, predictions 1
    "RobustLSSVMClassifier": 2e4,  # the solver stops within its tolerance of the optimum
}

ALL_ROWS = dict.fromkeys(
    ("row repeated", "weight zero, anything", "weight zero, absent"),
    "every row is a prototype, whatever its weight",
)

PURE = [
    Learner(
        "fixed_size.fit",
        fit_fixed_size(),
        variants={"mesh": fit_fixed_size_on_mesh, "blocks": fit_fixed_size(block_rows=5)},
    ),
    Learner(
        "fixed_size.fit: intercept penalised",
        fit_fixed_size(intercept_penalty=1.0),
        excluded=PENALISED,
        slow=True,
    ),
    Learner(
        "fixed_size.solve",
        fit_from_sums,
        variants={"stream": fit_from_batches, "sums": fit_from_added_sums},
        slow=True,
    ),
    Learner(
        "fixed_size.fit_features",
        fit_on_features(nystroem),
        slow=True,
        variants={"blocks": fit_on_features(nystroem, block_rows=5)},
    ),
    Learner(
        "fixed_size.fit_features: linear",
        fit_on_features(linear),
        digits=4,
        excluded={"inputs scaled": "the penalty is of weights in units of the inputs"},
    ),
    *[
        Learner(
            f"fixed_size.fit_classes: {scheme}",
            fit_classes(scheme),
            "class",
            scheme=scheme,
            variants={
                "mesh": fit_classes(scheme, mesh=True),
                "sums": fit_classes_from_sums(scheme),
            },
            excluded=OTHER_PROBLEMS if scheme == "minimum_output" else {},
            slow=scheme != "one_versus_one",
        )
        for scheme in ("one_versus_rest", "one_versus_one", "minimum_output")
    ],
    Learner("dual.fit", fit_dual(method="cholesky")),
    Learner(
        "dual.fit: conjugate_gradients",
        fit_dual_by_gradients,
        digits=4,
    ),
    *[
        Learner(f"dual.fit_classes: {scheme}", fit_dual_classes(scheme), "class", scheme=scheme)
        for scheme in ("one_versus_rest", "one_versus_one")
    ],
    Learner("dual.leave_one_out", leave_one_out, excluded=COPIED),
    Learner("robust.fit: absolute", fit_robust("absolute"), C_power=1),
    Learner(
        "robust.fit: quantile", fit_robust("quantile", quantile=0.8), C_power=1, excluded=MIRROR
    ),
    Learner("robust.fit: huber", fit_robust("huber")),
    Learner("robust.fit: huber, threshold", fit_robust("huber", with_threshold=True), slow=True),
    Learner("scdp.fit", fit_scdp(), excluded=JOINT),
    Learner("scdp.fit: separate", fit_scdp(selection="separate")),
    Learner(
        "scdp.fit: subset",
        fit_scdp(subset=3, key=KEY, formed=True),
        excluded=JOINT,
        variants={"by columns": fit_scdp(subset=3, key=KEY, formed=False)},
        slow=True,
    ),
    Learner(
        "scdp.fit: subset, by columns", fit_scdp(subset=3, key=KEY, formed=False), excluded=JOINT
    ),
    Learner("spsvm.fit", fit_spsvm, "sign", digits=2),
    Learner("pursuits.fit: KSP", fit_pursuit(jsparse.KSP)),
    Learner("pursuits.fit: KSP, on rows", fit_pursuit(jsparse.KSP, formed=False), slow=True),
    Learner("pursuits.fit: KMP", fit_pursuit(jsparse.KMP), slow=True),
    Learner("pursuits.fit: KMP, basic", fit_pursuit(jsparse.KMP, fitting="basic"), slow=True),
    Learner(
        "pursuits.fit: KMP, prefitting", fit_pursuit(jsparse.KMP, fitting="prefitting"), slow=True
    ),
    Learner("pursuits.fit: KBP", fit_pursuit(jsparse.KBP), slow=True),
    Learner(
        "reductions.fit",
        fit_reduction(),
        variants={"blocks": fit_reduction(block_rows=5)},
        **REDUCTION,
    ),
    Learner(
        "reductions.fit: dual",
        fit_dual_reduction,
        error_growth=30,  # the kernel matrix of all rows is ill-conditioned
        slow=True,
        **{**REDUCTION, "excluded": {**REDUCTION["excluded"], **ALL_ROWS}},
    ),
    Learner(
        "validate: SparseReduction",
        validated(jsparse.SparseReduction(), first_target),
        sums_squares=True,
        **{**REDUCTION, "digits": 300},
    ),
    Learner("direct.marginal", solve_inner_problem, "sign"),
    Learner(
        "sparse_ridge.fit",
        fit_by(sparse_ridge.fit, max_iterations=STEPS),
        digits=30,
        excluded=JOINT | MEASURED_IN_SPREADS,
    ),
    *[
        Learner(
            f"{module.__name__.split('.')[-1]}.fit",
            fit_by(module.fit, signs, max_iterations=STEPS),
            "sign",
            digits=digits,
            excluded=MEASURED_IN_SPREADS,
            slow=module is not slmc,
        )
        for module, digits in (
            (slmc, 30),
            (sparse_fisher, 30),
            (reduced_set, 4000),  # as precise as the machine of all rows that it approximates
        )
    ],
    Learner("reduced_svm.fit", fit_by(reduced_svm.fit, signs), "sign", slow=True),
    Learner(
        "reduced_svm.fit: coefficients",
        fit_by(reduced_svm.fit, signs, penalty="coefficients"),
        "sign",
        digits=100,  # the features are not whitened
        slow=True,
    ),
    Learner(
        "one_class.fit",
        fit_one_class,
        digits=30,
        excluded=NO_TARGETS | MEASURED_IN_SPREADS,
        slow=True,
    ),
    Learner(
        "rvm.fit",
        fit_rvm("normal", all_targets),
        digits=100,  # the columns of the prototypes are nearly dependent
        excluded=EVIDENCE | PENALISED,
    ),
    Learner(
        "rvm.fit: logistic",
        fit_rvm("logistic", signs),
        "sign",
        digits=100,
        excluded=EVIDENCE,
        slow=True,
    ),
    Learner(
        "cross_validate: subtraction",
        cross_validated(method="subtraction"),
        variants={
            "mesh": cross_validated(method="subtraction", mesh=True),
            "removal": cross_validated(method="removal"),
        },
    ),
    Learner(
        "cross_validate: removal",
        cross_validated(method="removal"),
        variants={"mesh": cross_validated(method="removal", mesh=True)},
    ),
    Learner(
        "cross_validate: mae",
        cross_validated(method="removal", metric="mae"),
        metric_power=1,
        slow=True,
    ),
    Learner(
        "cross_validate: linear",
        cross_validated(linear, method="subtraction"),
        digits=4,
        slow=True,
        excluded={"inputs scaled": "the penalty is in units of the inputs"},
    ),
    Learner(
        "cross_validate: misclassification",
        cross_validated(targets=signs, method="subtraction", metric="misclassification"),
        "sign",
        slow=True,
    ),
    Learner(
        "cross_validate: one_versus_one",
        cross_validated(scheme="one_versus_one", metric="misclassification"),
        "class",
        scheme="one_versus_one",
        variants={
            "mesh": cross_validated(scheme="one_versus_one", metric="misclassification", mesh=True)
        },
    ),
    Learner(
        "cross_validate: one_versus_rest",
        cross_validated(scheme="one_versus_rest"),
        "class",
        scheme="one_versus_rest",
        slow=True,
    ),
    Learner(
        "validate: Robust, absolute",
        validated(jsparse.Robust(loss="absolute"), first_target, metric="mae"),
        C_power=1,
        metric_power=1,
        digits=30,  # the last iterations of a batch round differently
    ),
    Learner(
        "validate: Robust, huber",
        validated(jsparse.Robust(loss="huber"), first_target, metric="mae"),
        metric_power=1,
        slow=True,
    ),
    Learner(
        "validate: Robust, one_versus_one",
        validated(jsparse.Robust(), scheme="one_versus_one", metric="misclassification"),
        "class",
        scheme="one_versus_one",
        slow=True,
    ),
    Learner("validate: SpSVM", validated(jsparse.SpSVM(max_prototypes=SIZE), signs), "sign"),
    Learner(
        "validate: SpSVM, one_versus_rest",
        validated(jsparse.SpSVM(max_prototypes=SIZE), scheme="one_versus_rest"),
        "class",
        scheme="one_versus_rest",
        slow=True,
    ),
    Learner("validate: Dual", validated(jsparse.Dual()), excluded=COPIED),
    Learner(
        "validate: Dual, one_versus_one",
        validated(jsparse.Dual(), scheme="one_versus_one", metric="misclassification"),
        "class",
        scheme="one_versus_one",
        excluded=COPIED,
    ),
    Learner(
        "validate: SCDP",
        validated(jsparse.SCDP(SIZE), first_target),
        variants={"mesh": validated(jsparse.SCDP(SIZE), first_target, mesh=True)},
    ),
    Learner(
        "validate: SCDP, one_versus_rest",
        validated(jsparse.SCDP(SIZE), scheme="one_versus_rest"),
        "class",
        scheme="one_versus_rest",
        slow=True,
    ),
    Learner(
        "pursuit.omp",
        run_pursuit(omp, on_rows=True),
        variants={"batch": run_pursuit(omp, on_rows=True, batched=True)},
        excluded={**JOINT, **NO_INTERCEPT},
    ),
    Learner(
        "pursuit.stagewise_omp",
        run_pursuit(stagewise, on_rows=True),
        variants={"batch": run_pursuit(stagewise, on_rows=True, batched=True)},
        slow=True,
        excluded={**JOINT, **NO_INTERCEPT, **UNIT_LENGTH},
    ),
    Learner(
        "pursuit.subspace_pursuit",
        run_pursuit(subspace, on_rows=True),
        variants={"batch": run_pursuit(subspace, on_rows=True, batched=True)},
        excluded={**JOINT, **NO_INTERCEPT},
    ),
    Learner("pursuit.least_squares", solve_on_three_atoms, excluded=NO_INTERCEPT, slow=True),
    Learner(
        "pursuit.cosamp",
        run_pursuit(cosamp, on_rows=True),
        variants={"batch": run_pursuit(cosamp, on_rows=True, batched=True)},
        slow=True,
        excluded={**JOINT, **NO_INTERCEPT},
    ),
    Learner(
        "pursuit.subspace_pursuit_gram",
        run_pursuit(subspace_gram),
        variants={"batch": run_pursuit(subspace_gram, batched=True)},
        slow=True,
        excluded={**JOINT, **NO_INTERCEPT},
    ),
    Learner(
        "pursuit.scdp",
        run_pursuit(scdp_path),
        variants={"batch": run_pursuit(scdp_path, batched=True)},
        excluded={**JOINT, **NO_INTERCEPT},
        slow=True,
    ),
    Learner(
        "pursuit.scdpp",
        run_pursuit(scdpp_path),
        variants={"batch": run_pursuit(scdpp_path, batched=True)},
        excluded={**JOINT, **NO_INTERCEPT},
        slow=True,
    ),
    Learner(
        "pursuit.matching_pursuit",
        run_pursuit(matching),
        variants={"batch": run_pursuit(matching, batched=True)},
        excluded={**JOINT, **NO_INTERCEPT},
    ),
    Learner(
        "pursuit.lars", run_pursuit(least_angle), metric_power=1, excluded=NO_INTERCEPT, slow=True
    ),
    Learner("pursuit.lasso", run_pursuit(lasso), metric_power=1, excluded=NO_INTERCEPT, slow=True),
    Learner("pursuit.debiased", run_pursuit(debiased), metric_power=1, excluded=NO_INTERCEPT),
]

TRAINERS = [
    Learner("train", trained(), variants={"mesh": trained(mesh=True)}),
    Learner("train: kernel as it is", trained_with_fixed_kernel),
    Learner("train: linear", trained(kernel="linear")),
    *[
        Learner(
            f"train: not tuned, {targets}",
            trained(targets, search=FIXED_KERNEL, multiclass="one_versus_one"),
            targets,
            scheme="one_versus_one" if targets == "class" else None,
            variants={
                "stream": streamed(targets, search=FIXED_KERNEL, multiclass="one_versus_one")
            },
        )
        for targets in ("real", "sign", "class")
    ],
    Learner("train: renyi", trained(method=jsparse.FixedSize(8)), excluded=RANDOM),
    Learner(
        "train: uniform", trained(method=jsparse.FixedSize(8, selection="uniform")), excluded=RANDOM
    ),
    Learner("train: several sizes", trained(method=jsparse.FixedSize([4, 8])), excluded=RANDOM),
    Learner("train: Annealing", trained(search=jsparse.Annealing(20))),
    Learner("train: Dual", trained(method=jsparse.Dual()), excluded=COPIED),
    *[
        Learner(
            f"train: Robust, {loss}",
            trained(method=lambda p, loss=loss: jsparse.Robust(n_present(p), loss=loss)),
            metric_power=1,
        )
        for loss in ("absolute", "huber")
    ],
    Learner(
        "train: Robust, quantile",
        trained(method=lambda p: jsparse.Robust(n_present(p), loss="quantile", quantile=0.8)),
        metric_power=1,
        excluded=MIRROR,
    ),
    Learner(
        "train: Robust, two classes",
        trained("sign", lambda p: jsparse.Robust(n_present(p), loss="absolute")),
        "sign",
    ),
    Learner(
        "train: two classes", trained("sign"), "sign", variants={"mesh": trained("sign", mesh=True)}
    ),
    Learner("train: Dual, two classes", trained("sign", jsparse.Dual()), "sign", excluded=COPIED),
    *[
        Learner(
            f"train: {scheme}",
            trained("class", multiclass=scheme),
            "class",
            scheme=scheme,
            excluded=OTHER_PROBLEMS if scheme == "minimum_output" else {},
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
        excluded=COPIED,
        scheme="one_versus_one",
    ),
    Learner(
        "train: SCDP",
        trained(method=scdp_settings()),
        variants={"mesh": trained(method=scdp_settings(), mesh=True)},
    ),
    *[
        Learner(
            f"train: SCDP, not tuned, {targets}",
            trained(targets, scdp_settings(**options), FIXED_KERNEL, sizes=True),
            targets,
            scheme="one_versus_rest" if targets == "class" else None,
            variants={
                "stream": streamed(targets, scdp_settings(**options), FIXED_KERNEL, sizes=True)
            },
        )
        for targets, options in (("real", {}), ("class", {"selection": "separate"}))
    ],
    *[
        Learner(
            f"train: SCDP, {candidate_method}",
            trained(method=scdp_settings(candidates=8, candidate_method=candidate_method)),
            excluded=RANDOM,
        )
        for candidate_method in ("k_center", "k_means", "renyi")
    ],
    Learner("train: SCDP, two classes", trained("sign", scdp_settings()), "sign"),
    Learner(
        "train: SCDP, separate",
        trained("class", scdp_settings(selection="separate")),
        "class",
        scheme="one_versus_rest",
    ),
    Learner("train: SpSVM", trained("sign", spsvm_settings), "sign", excluded=LEAST_SQUARES_C),
    Learner(
        "train: SpSVM, one_versus_one",
        trained("class", spsvm_settings, FIXED_KERNEL, multiclass="one_versus_one"),
        "class",
        scheme="one_versus_one",
    ),
    Learner(
        "train: ReducedSVM",
        trained("sign", jsparse.ReducedSVM(8, selection="uniform")),
        "sign",
        excluded=RANDOM,
    ),
    Learner(
        "train: SLMC, not tuned",
        trained(
            "class",
            jsparse.SLMC(8, max_iterations=STEPS),
            FIXED_KERNEL,
            multiclass="one_versus_rest",
        ),
        "class",
        scheme="one_versus_rest",
        excluded=RANDOM,
    ),
    Learner(
        "train: SparseFisher, not tuned",
        trained("sign", jsparse.SparseFisher(8, max_iterations=STEPS), FIXED_KERNEL),
        "sign",
        excluded=RANDOM,
    ),
    Learner(
        "train: SparseRidge, not tuned",
        trained(method=jsparse.SparseRidge(8, max_iterations=STEPS), search=FIXED_KERNEL),
        excluded=RANDOM,
    ),
    Learner(
        "train: ReducedSetSVM, not tuned",
        trained("sign", jsparse.ReducedSetSVM(8, max_iterations=STEPS), FIXED_KERNEL),
        "sign",
        excluded=RANDOM,
    ),
    Learner("train: RVM", trained(method=jsparse.RVM(), C=None), excluded=RANDOM | EVIDENCE),
    Learner(
        "train: RVM, two classes", trained("sign", jsparse.RVM(), C=None), "sign", excluded=EVIDENCE
    ),
    Learner("estimators.SparseOneClassSVM", fit_one_class_estimator, excluded=RANDOM | NO_TARGETS),
    Learner("train: stream", streamed(), excluded=RANDOM),
    Learner("train: stream, two classes", streamed("sign"), "sign", excluded=RANDOM),
    Learner(
        "train: stream, one_versus_one",
        streamed("class", multiclass="one_versus_one"),
        "class",
        scheme="one_versus_one",
        excluded=RANDOM,
    ),
    Learner("train: stream, SCDP", streamed(method=scdp_settings()), excluded=RANDOM),
    Learner(
        "train: stream, SCDP, separate",
        streamed("class", scdp_settings(selection="separate")),
        "class",
        scheme="one_versus_rest",
        excluded=RANDOM,
    ),
    *[
        Learner(
            f"estimators.{name}: {targets}",
            estimated(cls, targets),
            targets,
            metric_power=1 if name.startswith("Robust") else 2,  # mean absolute or squared error
            scheme="probabilities" if targets != "real" else None,
            digits=ESTIMATOR_DIGITS.get(name, 1.0),
            excluded={**ONE_C, **(COPIED if name.startswith("LSSVM") else RANDOM)},
        )
        for name in sorted(dir(estimators))
        if isinstance(cls := getattr(estimators, name), type) and name != "SparseOneClassSVM"
        for targets in (("real",) if name.endswith("Regressor") else ("sign", "class"))
    ],
]
TRAINERS = [learner._replace(standardises=True) for learner in TRAINERS]


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
        unit=np.asarray(1.0),
    )
    return Problem(*(a.astype(dtype) if a.dtype.kind == "f" else a for a in p))
