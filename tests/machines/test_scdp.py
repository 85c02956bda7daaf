"""SCDP-FSLSSVM against the dense system (34), refitted folds, and the fixed-size machine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import pursuit as reference
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine

import jsparse
from jsparse import SCDP, Profile, plotting
from jsparse._status import COMPLETED, NOT_FINITE, PRECISION_LOST, TRUNCATED
from jsparse.cli.main import main
from jsparse.compilation import count_compilations
from jsparse.kernels import RBF
from jsparse.machines import fixed_size, scdp
from jsparse.machines.scdp_system import candidate_columns
from jsparse.multiclass import output_code
from jsparse.prototypes import k_center, k_means
from jsparse.validation.validate import validate as validate_method


def traced(function):
    """With NumPy arrays as JAX's, which the types ask for."""

    def call(*arguments, **options):
        return function(
            *(jnp.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments), **options
        )

    return call


fit, fixed_fit = traced(scdp.fit), traced(fixed_size.fit)
validate, centers, means = traced(validate_method), traced(k_center), traced(k_means)


def problem(n=80, d=3, c=None, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    if c is not None:
        y = np.stack([np.roll(y, i) + X[:, i % d] for i in range(c)], axis=1)
    y = y + 0.1 * rng.standard_normal(y.shape)
    return X.astype(dtype), y.astype(dtype)


def gram(X, Z, lengthscale):
    return np.exp(-np.square(X[:, None] - Z[None]).sum(-1) / (2 * lengthscale**2))


def system(X, y, Z, lengthscale, C, w, nu=0.0):
    """Equation (34), with row weights."""
    K, R = gram(X, Z, lengthscale), gram(Z, Z, lengthscale)
    E = np.concatenate([K, np.ones((len(X), 1))], axis=1)
    A = E.T @ (w[:, None] * E)
    A[:-1, :-1] += R / C
    A[-1, -1] += nu
    return A, E.T @ (w * y)


@pytest.mark.parametrize("weighted", [False, True])
def test_every_machine_on_the_path_solves_the_papers_system(weighted, dtype, tol):
    X, y = problem(dtype=dtype)
    Z, C = X[:30], 5.0
    w = np.random.default_rng(1).uniform(0, 2, len(X)).astype(dtype) if weighted else None
    path = fit(RBF(1.5), Z, C, X, y, w, max_prototypes=12)
    ones = np.ones(len(X)) if w is None else w.astype(float)
    A, b = system(*(a.astype(float) for a in (X, y, Z)), 1.5, C, ones)
    support = np.asarray(path.support[0])
    order = [30, *support.tolist()]  # the intercept comes first
    _, record = reference.scdp(A, b, 13, order)
    for k in (1, 5, 12):
        solved = record[k]
        inside = support[:k]
        model = path.at(k)
        # Coefficients of nearly dependent columns; their machine is determined far better.
        np.testing.assert_allclose(
            model.coefficients, solved[inside], rtol=1e3 * tol, atol=1e3 * tol
        )
        np.testing.assert_allclose(model.intercept, solved[30], rtol=1e3 * tol, atol=1e3 * tol)
        np.testing.assert_allclose(
            model(X), gram(X, Z, 1.5) @ solved[:30] + solved[30], rtol=30 * tol, atol=30 * tol
        )
    # Each prototype has the largest residual of the system.
    for k in (1, 4, 9):
        residual = np.abs(b - A @ record[k])[:30]
        residual[support[:k]] = -1
        assert residual[support[k]] >= residual.max() * (1 - 1e-3)


def test_a_machine_is_the_fixed_size_machine_of_its_prototypes():
    X, y = problem()
    path = fit(RBF(1.5), X, 5.0, X, y, max_prototypes=15)
    Z = jnp.asarray(X)[path.support[0]]
    fixed = fixed_fit(RBF(1.5), Z, 5.0, X, y).expansion
    np.testing.assert_allclose(path.at(15)(X), fixed(X), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("outputs", "selection"),
    [
        pytest.param(None, "joint", marks=pytest.mark.slow),
        (2, "joint"),
        pytest.param(None, "separate", marks=pytest.mark.slow),
        pytest.param(2, "separate", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_columns_computed_when_looked_at_give_the_path_of_the_system(
    outputs, selection, dtype, tol
):
    X, y = problem(c=outputs, dtype=dtype)
    w = np.random.default_rng(1).uniform(0, 2, len(X)).astype(dtype)
    w[::7] = 0
    options = {"subset": 9, "key": jax.random.key(2), "nu": 3.0, "selection": selection}
    X_other, y_other = X.copy(), y.copy()  # what has no weight does not matter
    X_other[::7], y_other[::7] = 7, 1e3
    formed, rows = (
        fit(RBF(1.5), X[:50], 5.0, *data, w, max_prototypes=12, formed=formed, **options)
        for formed, data in ((True, (X, y)), (False, (X_other, y_other)))
    )
    np.testing.assert_array_equal(rows.support, formed.support)
    np.testing.assert_array_equal(rows.info["path_length"], formed.info["path_length"])
    np.testing.assert_array_equal(rows.statuses, formed.statuses)
    for k in (1, 5, 12):
        np.testing.assert_allclose(rows.at(k)(X), formed.at(k)(X), rtol=30 * tol, atol=30 * tol)


@pytest.mark.slow
def test_columns_computed_when_looked_at_end_as_the_system_does():
    X, y = problem(60)
    options = {"subset": 40, "key": jax.random.key(2), "max_prototypes": 30}
    for Z in (np.repeat(X[:8], 5, axis=0), np.tile(X[:1], (40, 1))):  # dependent candidates
        formed, rows = (fit(RBF(1.5), Z, 5.0, X, y, formed=f, **options) for f in (True, False))
        assert rows.info["path_length"] == formed.info["path_length"] == len(np.unique(Z, axis=0))
        np.testing.assert_array_equal(rows.statuses, formed.statuses)
        np.testing.assert_allclose(rows.at(30)(X), formed.at(30)(X), rtol=1e-8)
    holes = y.copy()
    holes[3] = np.nan
    for formed in (True, False):  # under jit, where values cannot be looked at
        bad = jax.jit(
            lambda y, formed=formed: scdp.fit(
                RBF(1.5), jnp.asarray(X[:40]), 5.0, jnp.asarray(X), y, formed=formed, **options
            )
        )(jnp.asarray(holes))
        assert bad.status == NOT_FINITE
    with pytest.raises(ValueError, match="formed: expected True or None"):
        fit(RBF(1.5), X[:40], 5.0, X, y, max_prototypes=5, formed=False)


@pytest.mark.slow
def test_derivatives_are_right_in_forward_mode_and_nu_compiles_once():
    X, y = (jnp.asarray(a) for a in problem())

    def machines(lengthscale, C, nu, **options):
        kernel = RBF(jnp.asarray(lengthscale))
        return scdp.fit(kernel, X[:20], C, X, y, max_prototypes=5, nu=nu, **options)

    def error(t, **options):
        path = machines(1.5 + t, 3.0 + t, 0.5 + t, **options)
        return jnp.sum(jnp.sin(path.values(X)))

    for options in ({}, {"subset": 5, "key": jax.random.key(1), "formed": False}):

        @jax.jit
        def value_and_slope(t, options=options):
            return jax.jvp(lambda t: error(t, **options), (t,), (1.0,))

        ahead, behind = (value_and_slope(t)[0] for t in (1e-5, -1e-5))
        np.testing.assert_allclose(value_and_slope(0.0)[1], (ahead - behind) / 2e-5, rtol=1e-6)
    values = jax.vmap(lambda nu: machines(1.5, 3.0, nu).values(X))(jnp.array([0.0, 9.0]))
    machines(1.5, 3.0, 0.0)
    with count_compilations() as compiled:
        penalised = machines(1.5, 3.0, 9.0)
    assert compiled.programs == 0
    np.testing.assert_allclose(values[1], penalised.values(X), rtol=1e-9, atol=1e-9)
    assert not np.allclose(values[0], values[1])


@pytest.mark.parametrize("float_type", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_derivatives_of_a_path_that_ends_early_equal_differences_in_both_modes(float_type):
    """Four of the five candidates differ, so the path of five has an unused place."""
    X, y = problem(40)
    w = np.arange(40) % 7 + 1.0
    at = {"lengthscale": 2.0, "C": 9.0, "nu": 0.5, "Z": X[[0, 1, 2, 3, 0]], "X": X, "y": y, "w": w}
    at = {name: jnp.asarray(a) for name, a in at.items()}
    rng = np.random.default_rng(2)
    step = {name: jnp.asarray(rng.uniform(-1, 1, a.shape)) for name, a in at.items()}
    step["Z"] = step["Z"].at[4].set(step["Z"][0])  # the candidates stay equal

    @jax.jit
    def figure(at):
        arguments = (at[name] for name in ("Z", "C", "X", "y", "w"))
        path = scdp.fit(RBF(at["lengthscale"]), *arguments, max_prototypes=5, nu=at["nu"])
        return jnp.sum(jnp.sin(path.values(at["X"])))

    def cast(tree):
        return jax.tree.map(lambda a: a.astype(float_type), tree)

    tolerance = {"float64": 1e-6, "float32": 1e-4}[float_type]
    slope = jax.jit(lambda step: jax.jvp(figure, (cast(at),), (step,))[1])
    gradient = jax.jit(jax.grad(figure))(cast(at))
    for name, direction in step.items():
        alone = {key: direction if key == name else jnp.zeros_like(a) for key, a in at.items()}
        ahead, behind = (
            figure(jax.tree.map(lambda a, b, h=h: a + h * b, at, alone)) for h in (1e-6, -1e-6)
        )
        difference = float(ahead - behind) / 2e-6
        assert difference != 0
        for derivative in (slope(cast(alone)), jnp.vdot(gradient[name], cast(direction))):
            np.testing.assert_allclose(
                derivative, difference, rtol=tolerance, atol=tolerance, err_msg=name
            )


@pytest.mark.slow
def test_paths_in_step_predict_as_one_after_another(monkeypatch):
    """Folds go in step on accelerators."""
    X, y = problem(c=2)
    folds = jsparse.plain_folds(jax.random.key(0), len(X), 4)
    arguments = RBF(1.5), X[:20], jnp.array([1.0, 50.0]), X, y, folds
    scores = {}
    for together in (1, 64):
        # Settings that no other test has, so that no program is there already.
        method = SCDP(7, size_tolerance=0.1 + together, selection="separate")
        monkeypatch.setattr("jsparse.machines.scdp.systems_at_once", lambda n=together: n)
        validation = validate(method, *arguments, metric="mse", keep=1, size=3)
        scores[together] = validation.scores, validation.fold_scores, validation.predictions
    for one, other in zip(*scores.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_columns_less_a_constant_span_the_same_machines():
    X, y = (jnp.asarray(a) for a in problem())
    shifted = candidate_columns(RBF(1.5), X[:9])
    weights, intercept = y[:9], y[9]
    model = shifted.expansion(weights, intercept)
    np.testing.assert_allclose(model(X), shifted(X) @ weights + intercept, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_smooth_kernels_are_not_taken_for_indefinite(dtype):
    X = problem(200, 3, dtype=dtype)[0][:, :2]
    y = (X[:, 0] + 0.5 * X[:, 1]).astype(dtype)
    exact = {"float32": 1e-3, "float64": 1e-6}[str(np.dtype(dtype))]
    for lengthscale in (5.0, 17.0):
        options = {"max_prototypes": 30, "subset": 200, "key": jax.random.key(0)}
        formed, rows = (
            fit(RBF(lengthscale), X, 1e6, X, y, formed=formed, **options)
            for formed in (True, False)
        )
        for path in (formed, rows):
            assert path.info["path_status"] in (COMPLETED, TRUNCATED)
            assert np.mean(np.square(path.at(30)(X) - y)) < exact * np.var(y)


def test_float32_coefficients_are_those_of_float64_or_it_says_why_not():
    X, y = problem(300)
    exact = fit(RBF(2.0), X[:150], 100.0, X, y, max_prototypes=40)
    values = np.asarray(exact.values(jnp.asarray(X)))[:, :, 0]
    condition = exact.info["condition"][0]
    assert condition[-1] > 1e7  # squared in the system: nothing would be left of float32
    with jax.enable_x64(False):
        X32, y32 = X.astype(np.float32), y.astype(np.float32)
        single = fit(RBF(2.0), X32[:150], 100.0, X32, y32, max_prototypes=40)
        equal = np.asarray(single.support[0]) == np.asarray(exact.support[0])
        same = int(np.argmin(np.append(equal, False)))
        assert same >= 10
        ours, theirs = (np.asarray(p.coefficients[0, same - 1, :, 0]) for p in (single, exact))
        error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        assert error < 1e-3 or single.status_at(same) == PRECISION_LOST
        near = np.asarray(single.at(same)(X32)) - values[:, same - 1]
        assert np.abs(near).max() < 1e-3
        # From there on other prototypes are selected, as good ones as long as there are any left
        # that this precision can tell from the others.
        errors = [
            np.mean(np.square(f - y)) for f in (np.asarray(single.at(40)(X32)), values[:, 39])
        ]
        assert errors[0] < 1.05 * errors[1] or single.info["path_status"] == TRUNCATED


def test_targets_select_together_or_separately():
    X, y = problem(c=3)
    together = fit(RBF(1.5), X[:40], 5.0, X, y, max_prototypes=8)
    apart = fit(RBF(1.5), X[:40], 5.0, X, y, max_prototypes=8, selection="separate")
    assert together.support.shape == (1, 8)
    assert apart.support.shape == (3, 8)
    for i in range(3):
        alone = fit(RBF(1.5), X[:40], 5.0, X, y[:, i], max_prototypes=8)
        assert (apart.support[i] == alone.support[0]).all()
        for k in (1, 8):
            np.testing.assert_allclose(apart.at(k)(X)[:, i], alone.at(k)(X), rtol=1e-8, atol=1e-10)
    assert 8 <= len(apart.at(8).prototypes) <= 24
    Z = jnp.asarray(X)[:40][together.support[0]]
    fixed = fixed_fit(RBF(1.5), Z, 5.0, X, y).expansion
    np.testing.assert_allclose(together.at(8)(X), fixed(X), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("metric", "reported"),
    [("mse", "misclassification"), pytest.param("mae", None, marks=pytest.mark.slow)],
)
def test_cross_validation_equals_refitting_without_each_fold(metric, reported):
    X, y = problem()
    y = np.where(y > 0, 1.0, -1.0) if reported == "misclassification" else y
    w = np.random.default_rng(2).uniform(0.5, 2, len(X))
    folds = jsparse.plain_folds(jax.random.key(0), len(X), 4)
    C = jnp.array([1.0, 50.0])
    losses = {
        "mse": lambda y, f: np.square(y - f),
        "mae": lambda y, f: np.abs(y - f),
        "misclassification": lambda y, f: (y > 0) != (f >= 0),
    }
    for s in range(2):
        options = {"metric": metric, "reported": reported, "keep": s, "size": 5}
        validation = validate(SCDP(10), RBF(1.5), X[:30], C, X, y, folds, w, **options)
        results = {metric: (validation.scores, validation.fold_scores)}
        if reported is not None:
            results[reported] = validation.reported, validation.fold_reported
        total = {name: np.zeros((4, 10)) for name in results}
        for v, (index, valid) in enumerate(zip(*map(np.asarray, folds), strict=True)):
            out = index[valid]
            rest = np.setdiff1d(np.arange(len(X)), out)
            path = fit(RBF(1.5), X[:30], C[s], X[rest], y[rest], w[rest], max_prototypes=10)
            of_sizes = np.asarray(path.values(jnp.asarray(X[out])))[:, :, 0]
            for k in range(1, 11):
                values = of_sizes[:, k - 1]
                for name, each in total.items():
                    each[v, k - 1] = np.sum(w[out] * losses[name](y[out], values))
                if k == 6:
                    np.testing.assert_allclose(validation.predictions[out], values, rtol=1e-7)
        of_folds = [np.sum(w[i[valid]]) for i, valid in zip(*map(np.asarray, folds), strict=True)]
        for name, (scores, fold_scores) in results.items():
            np.testing.assert_allclose(scores[s], total[name].sum(0) / w.sum(), rtol=1e-7)
            expected = total[name] / np.array(of_folds)[:, None]
            np.testing.assert_allclose(fold_scores[s], expected, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True])
def test_cross_validation_of_classes_equals_refitting(separate):
    X, y = load_iris(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    y = y.astype(np.int32)
    code = output_code("one_versus_rest", 3)
    folds = jsparse.stratified_folds(jax.random.key(0), y, 3)
    selection = "separate" if separate else "joint"
    validation = validate(
        SCDP(6, selection=selection),
        RBF(1.5),
        X[::3],
        jnp.array([10.0]),
        X,
        y,
        folds,
        metric="misclassification",
        code=code,
    )
    wrong = np.zeros(6)
    for index, valid in zip(np.asarray(folds.index), np.asarray(folds.valid), strict=True):
        out = index[valid]
        rest = np.setdiff1d(np.arange(len(X)), out)
        path = fit(
            RBF(1.5),
            X[::3],
            10.0,
            X[rest],
            code.matrix[y[rest]],
            max_prototypes=6,
            selection=selection,
        )
        for k in range(1, 7):
            wrong[k - 1] += np.sum(np.argmax(np.asarray(path.at(k)(X[out])), axis=1) != y[out])
    np.testing.assert_allclose(validation.scores[0] * len(X), wrong, atol=1e-9)


def test_random_subsets_are_the_same_for_all_folds_and_values_of_C():
    """Remark 8: with all else equal, the same atoms are drawn whatever the data."""
    X, y = problem()
    key = jax.random.key(3)
    path = fit(RBF(1.5), X, 5.0, X, y, max_prototypes=10, subset=1, key=key)
    other = fit(RBF(0.8), X, 500.0, X, -y + 3, max_prototypes=10, subset=1, key=key)
    assert (path.support == other.support).all()  # of one drawn atom there is no choice


@pytest.mark.slow
def test_training_chooses_a_size_and_is_good_on_new_rows():
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    rows, test = order[:400], order[400:]
    options = {"task": "classification", "key": jax.random.key(0), "C": np.array([1.0, 100.0])}
    options |= {"method": SCDP(40, candidates=120)}
    model = jsparse.train(X[rows], y[rows], search=Profile(4), **options)
    assert (model.predict(X[test]) == y[test]).mean() > 0.94
    curve = model.curve
    assert 1 <= curve.size < 40
    assert curve.errors.shape == curve.standard_errors.shape == (40,)
    assert curve.sizes.tolist() == list(range(1, 41))
    assert model.size == curve.size == len(model.expansion.prototypes)
    assert model.cv_error == curve.errors[curve.size - 1]
    assert (model.metric, curve.metric) == ("misclassification", "misclassification")
    assert (model.criterion, curve.chosen_by.metric) == ("mse", "mse")
    assert curve.chosen_by.size == curve.size
    assert curve.smallest_within(0.0) == 1 + np.argmin(curve.chosen_by.errors)
    assert curve.smallest_within(1.0) <= curve.smallest_within(0.1) <= curve.smallest_within(0.0)
    # The size was chosen by the curve of the tuning: its least is the score that was minimised.
    np.testing.assert_allclose(curve.chosen_by.errors.min(), model.tuning.score, rtol=1e-6)
    squares = np.square(model.out_of_fold - np.where(y[rows] == 1, 1, -1)).mean()
    np.testing.assert_allclose(curve.chosen_by.errors[curve.size - 1], squares, rtol=1e-6)
    wrong = (model.out_of_fold >= 0) != (y[rows] == 1)
    np.testing.assert_allclose(model.cv_error, wrong.mean(), rtol=1e-6)
    for k in (1, curve.size, 40):
        assert len(model.at(k).expansion.prototypes) == k
    again = jsparse.train(
        X[rows],
        y[rows],
        search=Profile(4, history=model.tuning.history),
        out_of_fold=False,
        **options,
    )
    assert again.size == curve.size
    assert again.out_of_fold is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"candidate_method": "k_means", "candidates": 30}, marks=pytest.mark.slow),
        pytest.param({"candidate_method": "renyi", "candidates": 30}, marks=pytest.mark.slow),
        {"candidates": "all", "subset": "auto"},
        pytest.param({"selection": "separate", "candidates": 30}, marks=pytest.mark.slow),
        pytest.param(
            {"multiclass": "minimum_output", "candidates": 30, "class_weight": "balanced"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_classes_and_candidates(options):
    X, y = load_iris(return_X_y=True)
    names = np.array(["a", "b", "c"])[y]
    about_classes = {"multiclass", "class_weight"} & set(options)
    model = jsparse.train(
        X,
        names,
        task="classification",
        key=jax.random.key(1),
        method=SCDP(10, **{k: v for k, v in options.items() if k not in about_classes}),
        kernel=RBF(1.5),
        search=Profile(tune_kernel=False),
        C=np.array([10.0]),
        folds=5,
        **{name: options[name] for name in about_classes},
    )
    assert (model.predict(X) == names).mean() > 0.9


@pytest.mark.slow
def test_paths_end_where_their_error_no_longer_changes():
    X, y = load_breast_cancer(return_X_y=True)
    options = {
        "task": "classification",
        "key": jax.random.key(0),
        "kernel": RBF(5.0),
        "search": Profile(tune_kernel=False),
        "C": np.array([10.0]),
        "folds": 5,
    }

    def trained(stopping):
        method = SCDP(100, candidates=150, stopping=stopping)
        return jsparse.train(X, y, method=method, **options)

    whole = trained(None)
    model = trained(jsparse.Stopping(window=5, tolerance=5e-3))
    f = whole.curve.chosen_by.errors  # the rule by its formula
    k = next(k for k in range(5, 100) if abs(f[k - 5 : k].mean() - f[k]) < 5e-3 * f[k])
    assert len(model.curve.errors) == model.fit.n_sizes == k + 1 < 100
    np.testing.assert_allclose(model.curve.chosen_by.errors, f[: k + 1], rtol=1e-9)
    np.testing.assert_allclose(model.tuning.score, f[: k + 1].min(), rtol=1e-9)
    never = trained(jsparse.Stopping(5, 0.0))
    assert len(never.curve.errors) == 100


@pytest.mark.slow
def test_regression_with_the_callers_own_candidates():
    X, y = load_diabetes(return_X_y=True)
    points = X[:50] + 0.001
    model = jsparse.train(
        X,
        y,
        task="regression",
        key=jax.random.key(0),
        method=SCDP(20, candidates=points),
        search=Profile(2),
    )
    inside = np.asarray(model.expansion.scaling.undo(model.expansion.prototypes))
    assert all(np.min(np.abs(points - row).sum(axis=1)) < 1e-9 for row in inside)
    assert np.mean(np.square(model.predict(X) - y)) < 0.6 * y.var()
    assert model.point_rows is None
    assert model.n_points == 50


def test_nan_in_one_fold_is_told():
    X, y = problem()
    folds = jsparse.plain_folds(jax.random.key(0), len(X), 4)
    y = jnp.asarray(y).at[int(folds.index[2, 0])].set(jnp.nan)

    @jax.jit  # under which values cannot be looked at
    def status(y):
        return validate(SCDP(5), RBF(1.5), X[:20], jnp.ones(1), X, y, folds, metric="mse").status

    assert status(y)[0] == NOT_FINITE


def test_farthest_points_are_gonzalezs():
    X = np.random.default_rng(0).standard_normal((60, 2))
    selection = centers(jax.random.key(0), X, 10)
    indices = [int(selection.indices[0])]
    for k in range(10):
        apart = np.linalg.norm(X[:, None] - X[indices][None], axis=2).min(axis=1)
        np.testing.assert_allclose(selection.radius[k], apart.max(), rtol=1e-9)
        if k < 9:
            indices.append(int(np.argmax(apart)))
    assert np.asarray(selection.indices).tolist() == indices
    # Repeated rows are taken once each before any twice.
    twice = np.concatenate([X[:5], X[:5]])
    rows = np.asarray(centers(jax.random.key(0), twice, 10).indices)
    assert sorted(rows.tolist()) == list(range(10))
    assert len(set((rows[:5] % 5).tolist())) == 5
    weights = np.where(np.arange(60) < 30, 1.0, 0.0)
    assert np.asarray(centers(jax.random.key(1), X, 20, weights).indices).max() < 30


def test_means_are_those_of_their_rows_and_better_than_the_start(dtype):
    X = (np.random.default_rng(0).standard_normal((200, 3)) + 1e3).astype(dtype)
    w = np.random.default_rng(1).uniform(0, 2, 200).astype(dtype)
    clusters = means(jax.random.key(0), X, 8, w)
    centres = np.asarray(clusters.centres, float)
    squares = np.square(X.astype(float)[:, None] - centres[None]).sum(-1)
    nearest = squares.argmin(axis=1)
    for j in range(8):
        members = nearest == j
        mean = (w[members, None] * X[members].astype(float)).sum(0) / w[members].sum()
        np.testing.assert_allclose(centres[j], mean, atol=1e-3 if dtype == "float32" else 1e-9)
    np.testing.assert_allclose(clusters.inertia, (w * squares.min(axis=1)).sum(), rtol=1e-3)
    start = X[np.asarray(centers(jax.random.key(0), X, 8, w).indices)].astype(float)
    first = np.square(X.astype(float)[:, None] - start[None]).sum(-1).min(axis=1)
    assert clusters.inertia < (w * first).sum()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_prototypes": 500}, "max_prototypes: expected a whole number between 1"),
        ({"candidates": 1000}, "candidates: expected a whole number between 1"),
        ({"candidates": "some"}, "candidates: expected a number"),
        ({"candidates": np.zeros((3, 2))}, "candidates: expected shape"),
        ({"candidate_method": "median"}, "candidate_method: expected"),
        ({"candidates": 0.3}, "candidates: expected a whole number"),
        ({"candidates": True}, "candidates: expected a whole number"),
        ({"candidates": np.full((3, 4), np.nan)}, "candidates: expected finite"),
        ({"subset": 10**6}, "subset: expected a whole number"),
        ({"subset": "some"}, "subset: expected a whole number"),
        ({"stopping": jsparse.Stopping(window=0)}, "stopping.window: expected"),
        ({"stopping": jsparse.Stopping(tolerance=-1.0)}, "stopping.tolerance: expected"),
        ({"size_tolerance": -1.0}, "tolerance: expected"),
        ({"selection": "each"}, "selection: expected"),
        ({"multiclass": "one_versus_one"}, "every problem sees every class"),
        ({"task": "regression", "metric": "misclassification"}, "metric: expected"),
    ],
)
def test_bad_input_is_told_before_candidates_are_chosen(options, match, as_users_call, monkeypatch):
    monkeypatch.setattr("jsparse.machines.candidates.k_center", None)  # before points are chosen
    X, y = load_iris(return_X_y=True)
    training_options = {"task": "classification", "key": jax.random.key(0)}
    of_run = {"multiclass", "task", "metric"} & set(options)
    training_options |= {name: options[name] for name in of_run}
    method_options = {name: value for name, value in options.items() if name not in of_run}
    with pytest.raises(ValueError, match=match):
        jsparse.train(X, y, method=SCDP(**method_options), **training_options)


@pytest.mark.slow
def test_rows_without_weight_are_no_candidates():
    X, y = problem(90)
    w = np.ones(90)
    w[::3] = 0
    options = {"task": "regression", "key": jax.random.key(0), "folds": 3, "kernel": RBF(1.5)}
    options |= {"search": Profile(tune_kernel=False), "C": np.array([10.0])}
    for candidates in (None, "all", 55):
        model = jsparse.train(X, y, weights=w, method=SCDP(5, candidates=candidates), **options)
        present_rows = model.expansion.scaling.apply(jnp.asarray(X))[np.flatnonzero(w)]
        apart = np.abs(model.fit.points[:, None] - present_rows[None]).sum(-1).min(axis=1)
        assert apart.max() == 0
        prototype_rows = model.expansion.scaling.apply(jnp.asarray(X))[model.point_rows]
        np.testing.assert_array_equal(prototype_rows, model.expansion.prototypes)
    with pytest.raises(ValueError, match=r"candidates: expected .* rows with weight \(60\)"):
        jsparse.train(X, y, weights=w, method=SCDP(5, candidates=61), **options)
    w[:] = 0
    w[:5] = 1
    folds = jsparse.Folds(*(jnp.asarray(a) for a in _three_folds(90)))
    with pytest.raises(
        ValueError, match="folds: expected at least one row with weight outside of each fold"
    ):
        jsparse.train(X, y, weights=w, method=SCDP(5), **options | {"folds": folds})


def _three_folds(n):
    index = np.arange(n, dtype=np.int32).reshape(3, -1)
    return index, np.ones(index.shape, bool)


def test_the_first_centre_does_not_depend_on_weights(as_users_call):
    X, _ = problem()
    plain = centers(jax.random.key(1), X, 9).indices
    np.testing.assert_array_equal(
        centers(jax.random.key(1), X, 9, np.random.default_rng(0).uniform(1, 5, len(X))).indices,
        plain,
    )
    for call in (centers, means):
        with pytest.raises(ValueError, match="weights: expected"):
            call(jax.random.key(1), X, 9, np.ones(3))
        with pytest.raises(ValueError, match="weights: expected"):
            call(jax.random.key(1), X, 9, -np.ones(len(X)))


def test_a_path_has_an_end(as_users_call):
    X, y = problem()
    path = fit(RBF(1.5), X[:10], 5.0, X, y, max_prototypes=6)
    for size in (0, 7):
        with pytest.raises(ValueError, match="n_prototypes: expected one of 1 to 6"):
            path.at(size)
    with pytest.raises(ValueError, match="max_prototypes: expected a whole number between 1"):
        fit(RBF(1.5), X[:10], 5.0, X, y, max_prototypes=11)
    with pytest.raises(ValueError, match="key, subset"):
        fit(RBF(1.5), X[:10], 5.0, X, y, max_prototypes=5, subset=3)
    with pytest.raises(ValueError, match="C: expected a positive"):
        fit(RBF(1.5), X[:10], -5.0, X, y, max_prototypes=5)


@pytest.fixture(scope="module")
def wine(tmp_path_factory):
    data = load_wine(as_frame=True)
    path = tmp_path_factory.mktemp("tables") / "wine.csv"
    frame = data.frame.rename(columns={"target": "kind"})
    frame["kind"] = np.array(["one", "two", "three"])[frame["kind"]]
    frame.to_csv(path, index=False)
    return path


@pytest.mark.slow
def test_the_command_line_fits_a_path_and_applies_it(wine, tmp_path, capsys):
    model = tmp_path / "model.jsparse"
    options = ["--target", "kind", "--method", "scdp", "--quiet", "--evaluations", "2"]
    options += ["--max-prototypes", "12", "--candidates", "40", "--folds", "4"]
    assert main(["fit", str(wine), *options, "--out", str(model)]) == 0
    said = capsys.readouterr().out
    assert "of 40 candidates" in said
    assert "chosen" in said
    assert main(["predict", str(model), str(wine), "--out", str(tmp_path / "p.csv")]) == 0
    error = float(capsys.readouterr().err.split(":")[-1])
    assert error < 0.06
    assert main(["fit", str(wine), *options, "--stream", "--out", str(model)]) == 0
    said = capsys.readouterr().out
    assert "of 40 candidates" in said
    assert "chosen" in said
    assert main(["predict", str(model), str(wine), "--out", str(tmp_path / "p.csv")]) == 0
    assert float(capsys.readouterr().err.split(":")[-1]) < 0.06
    for wrong, message in (
        (["--method", "scdp", "--loss", "huber"], "--loss: expected together with --method robust"),
        (["--max-prototypes", "5"], "--max-prototypes: expected together with --method scdp"),
        (["--method", "spsvm", "--stream"], "--stream: expected a method that needs only sums"),
    ):
        assert main(["fit", str(wine), "--target", "kind", "--out", str(model), *wrong]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_curve_is_drawn_with_its_spread_and_its_choice():
    X, y = load_iris(return_X_y=True)
    model = jsparse.train(
        X, y, task="classification", key=jax.random.key(0), method=SCDP(8, candidates=20),
        search=Profile(2), folds=3, C=np.array([10.0]),
    )  # fmt: skip
    errors = model.curve.errors
    axes = plotting.error_curve(model, test_errors=errors + 0.1, others={"another": (5.0, 0.2)})
    band, (curve, new, selected, other, _) = axes.collections[0], axes.lines
    np.testing.assert_allclose(curve.get_ydata(), errors)
    np.testing.assert_allclose(new.get_ydata(), errors + 0.1)
    assert selected.get_xdata()[0] == model.curve.size
    assert other.get_xdata()[0] == 5
    edge = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose(edge.max(), (errors + model.curve.standard_errors).max())


def test_a_path_that_ended_before_gives_its_last_machine():
    X, y = problem()
    twice = np.concatenate([X[:4], X[:4]])  # four different candidates
    path = fit(RBF(1.5), twice, 5.0, X, y, max_prototypes=8)
    assert path.info["path_length"] == 4
    assert len(path.at(8).prototypes) == 4
    np.testing.assert_allclose(path.at(8)(X), path.at(4)(X), rtol=1e-9)
    constant = fit(RBF(1.5), twice, 5.0, X, np.full(len(X), 3.0), max_prototypes=8)
    np.testing.assert_allclose(constant.at(8)(X), np.full(len(X), 3.0), rtol=1e-6)
