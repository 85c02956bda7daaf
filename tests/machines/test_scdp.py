"""SCDP-FSLSSVM against the dense system (34), refitted folds, and the fixed-size machine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import pursuit as reference
from reference.kernels import gaussian as gram
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

import jsparse
from jsparse import SCDP, Profile, plotting
from jsparse._status import COMPLETED, PRECISION_LOST, TRUNCATED
from jsparse.cli.main import main
from jsparse.kernels import RBF
from jsparse.machines import fixed_size, scdp
from jsparse.prototypes import k_center, k_means
from jsparse.validation.validate import validate as validate_method


def traced(function):
    """Convert NumPy arguments to JAX arrays, which the type annotations require."""

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


def system(X, y, Z, lengthscale, C, w, nu=0.0):
    """Return matrix and right-hand side of equation (34), with row weights."""
    K, R = gram(X, Z, lengthscale), gram(Z, Z, lengthscale)
    E = np.concatenate([K, np.ones((len(X), 1))], axis=1)
    A = E.T @ (w[:, None] * E)
    A[:-1, :-1] += R / C
    A[-1, -1] += nu
    return A, E.T @ (w * y)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_every_machine_on_the_path_solves_the_papers_system(dtype, tol):
    X, y = problem(dtype=dtype)
    Z, C = X[:30], 5.0
    w = np.random.default_rng(1).uniform(0, 2, len(X)).astype(dtype)
    path = fit(RBF(1.5), Z, C, X, y, w, max_prototypes=12)
    A, b = system(*(a.astype(float) for a in (X, y, Z)), 1.5, C, w.astype(float))
    support = np.asarray(path.support[0])
    order = [30, *support.tolist()]  # the intercept comes first
    _, record = reference.scdp(A, b, 13, order)
    for k in (1, 5, 12):
        solved = record[k]
        model = path.at(k)
        # Coefficients of nearly dependent columns; their machine is determined far better.
        np.testing.assert_allclose(
            model.coefficients, solved[support[:k]], rtol=1e3 * tol, atol=1e3 * tol
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


@pytest.mark.parametrize("selection", ["joint", pytest.param("separate", marks=pytest.mark.slow)])
def test_columns_computed_when_looked_at_give_the_path_of_the_system(selection):
    X, y = problem(c=2)
    w = np.random.default_rng(1).uniform(0, 2, len(X))
    w[::7] = 0
    options = {"subset": 9, "key": jax.random.key(2), "nu": 3.0, "selection": selection}
    formed, rows = (
        fit(RBF(1.5), X[:50], 5.0, X, y, w, max_prototypes=12, formed=formed, **options)
        for formed in (True, False)
    )
    np.testing.assert_array_equal(rows.support, formed.support)
    np.testing.assert_array_equal(rows.info["path_length"], formed.info["path_length"])
    np.testing.assert_array_equal(rows.statuses, formed.statuses)
    for k in (1, 5, 12):
        np.testing.assert_allclose(rows.at(k)(X), formed.at(k)(X), rtol=3e-9, atol=3e-9)


@pytest.mark.slow
def test_derivatives_of_a_path_that_ends_early_equal_differences_in_both_modes():
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

    slope = jax.jit(lambda step: jax.jvp(figure, (at,), (step,))[1])
    gradient = jax.jit(jax.grad(figure))(at)
    for name, direction in step.items():
        alone = {key: direction if key == name else jnp.zeros_like(a) for key, a in at.items()}
        ahead, behind = (
            figure(jax.tree.map(lambda a, b, h=h: a + h * b, at, alone)) for h in (1e-6, -1e-6)
        )
        difference = float(ahead - behind) / 2e-6
        assert difference != 0
        for derivative in (slope(alone), jnp.vdot(gradient[name], direction)):
            np.testing.assert_allclose(derivative, difference, rtol=1e-6, atol=1e-6, err_msg=name)


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


@pytest.mark.slow
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


def test_targets_select_separately():
    X, y = problem(c=3)
    apart = fit(RBF(1.5), X[:40], 5.0, X, y, max_prototypes=8, selection="separate")
    assert apart.support.shape == (3, 8)
    for i in range(3):
        alone = fit(RBF(1.5), X[:40], 5.0, X, y[:, i], max_prototypes=8)
        assert (apart.support[i] == alone.support[0]).all()
        for k in (1, 8):
            np.testing.assert_allclose(apart.at(k)(X)[:, i], alone.at(k)(X), rtol=1e-8, atol=1e-10)
    assert 8 <= len(apart.at(8).prototypes) <= 24


@pytest.mark.slow
def test_targets_that_select_together_have_the_fixed_size_machine():
    X, y = problem(c=3)
    together = fit(RBF(1.5), X[:40], 5.0, X, y, max_prototypes=8)
    assert together.support.shape == (1, 8)
    Z = jnp.asarray(X)[:40][together.support[0]]
    fixed = fixed_fit(RBF(1.5), Z, 5.0, X, y).expansion
    np.testing.assert_allclose(together.at(8)(X), fixed(X), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_cross_validation_equals_refitting_without_each_fold():
    X, y = problem()
    y = np.where(y > 0, 1.0, -1.0)
    w = np.random.default_rng(2).uniform(0.5, 2, len(X))
    folds = jsparse.plain_folds(jax.random.key(0), len(X), 4)
    C = jnp.array([1.0, 50.0])
    for s in range(2):
        options = {"metric": "mse", "reported": "misclassification", "keep": s, "size": 5}
        validation = validate(SCDP(10), RBF(1.5), X[:30], C, X, y, folds, w, **options)
        losses, weight_of_folds = np.zeros((2, 4, 10)), np.zeros(4)
        for v, (index, valid) in enumerate(zip(*map(np.asarray, folds), strict=True)):
            out = index[valid]
            rest = np.setdiff1d(np.arange(len(X)), out)
            path = fit(RBF(1.5), X[:30], C[s], X[rest], y[rest], w[rest], max_prototypes=10)
            values = np.asarray(path.values(jnp.asarray(X[out])))[:, :, 0]
            errors = values - y[out, None]
            losses[:, v] = (
                w[out] @ np.square(errors),
                w[out] @ ((values >= 0) != (y[out] > 0)[:, None]),
            )
            weight_of_folds[v] = w[out].sum()
            np.testing.assert_allclose(validation.predictions[out], values[:, 5], rtol=1e-7)
        for loss, scores, fold_scores in (
            (losses[0], validation.scores, validation.fold_scores),
            (losses[1], validation.reported, validation.fold_reported),
        ):
            np.testing.assert_allclose(scores[s], loss.sum(0) / w.sum(), rtol=1e-7)
            np.testing.assert_allclose(fold_scores[s], loss / weight_of_folds[:, None], rtol=1e-7)


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
    assert curve.errors.shape == curve.standard_errors.shape == (40,)
    assert curve.sizes.tolist() == list(range(1, 41))
    assert 1 <= model.size == curve.size == len(model.expansion.prototypes) < 40
    assert (model.metric, curve.metric) == ("misclassification", "misclassification")
    assert (model.criterion, curve.chosen_by.metric) == ("mse", "mse")
    assert curve.chosen_by.size == curve.size
    assert curve.smallest_within(0.0) == 1 + np.argmin(curve.chosen_by.errors)
    assert curve.smallest_within(1.0) <= curve.smallest_within(0.1) <= curve.smallest_within(0.0)
    # The size was chosen by the curve of the tuning: its least is the score that was minimised.
    np.testing.assert_allclose(curve.chosen_by.errors.min(), model.tuning.score, rtol=1e-6)
    squares = np.square(model.out_of_fold - np.where(y[rows] == 1, 1, -1)).mean()
    np.testing.assert_allclose(curve.chosen_by.errors[curve.size - 1], squares, rtol=1e-6)
    search = Profile(4, history=model.tuning.history)
    again = jsparse.train(X[rows], y[rows], search=search, out_of_fold=False, **options)
    assert again.size == curve.size
    assert again.out_of_fold is None
    # The curve is drawn with its spread and its choice.
    errors = curve.errors
    axes = plotting.error_curve(model, test_errors=errors + 0.1, others={"another": (5.0, 0.2)})
    band, (drawn, new, selected, other, _) = axes.collections[0], axes.lines
    np.testing.assert_allclose(drawn.get_ydata(), errors)
    np.testing.assert_allclose(new.get_ydata(), errors + 0.1)
    assert selected.get_xdata()[0] == curve.size
    assert other.get_xdata()[0] == 5
    edge = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose(edge.max(), (errors + curve.standard_errors).max())


@pytest.mark.slow
def test_candidates_may_be_all_rows_or_points_of_the_caller():
    X, y = load_diabetes(return_X_y=True)
    points = X[:50] + 0.001
    options = {"task": "regression", "key": 0, "search": Profile(2)}
    model = jsparse.train(X, y, method=SCDP(20, candidates=points), **options)
    inside = np.asarray(model.expansion.scaling.undo(model.expansion.prototypes))
    assert all(np.min(np.abs(points - row).sum(axis=1)) < 1e-9 for row in inside)
    assert model.point_rows is None
    assert model.n_points == 50
    every = jsparse.train(X, y, method=SCDP(20, candidates="all", subset="auto"), **options)
    for one in (model, every):
        assert np.mean(np.square(one.predict(X) - y)) < 0.6 * y.var()


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


def test_farthest_points_are_gonzalezs(as_users_call):
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
    assert np.asarray(centers(jax.random.key(1), X, 10, weights).indices).max() < 30
    # The first centre does not depend on the weights.
    heavy = centers(jax.random.key(0), X, 10, np.random.default_rng(0).uniform(1, 5, 60))
    assert np.asarray(heavy.indices).tolist() == indices
    for call in (centers, means):
        for bad in (np.ones(3), -np.ones(60)):
            with pytest.raises(ValueError, match="weights: expected"):
                call(jax.random.key(1), X, 9, bad)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
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


@pytest.mark.slow
def test_the_command_line_fits_a_path_and_applies_it(tmp_path, capsys):
    table, model = tmp_path / "wine.csv", tmp_path / "model"
    load_wine(as_frame=True).frame.to_csv(table, index=False)
    fit = ["fit", str(table), "--target", "target", "--out", str(model)]
    options = ["--method", "scdp", "--max-prototypes", "12", "--candidates", "40"]
    options += ["--task", "classification", "--quiet", "--evaluations", "2", "--folds", "4"]
    for more in ([], ["--stream"]):
        assert main([*fit, *options, *more]) == 0
        printed = capsys.readouterr().out
        assert "of 40 candidates" in printed
        assert "chosen" in printed
        assert main(["predict", str(model), str(table), "--out", str(tmp_path / "p.csv")]) == 0
        assert float(capsys.readouterr().err.split(":")[-1]) < 0.06
    for wrong, message in (
        (["--method", "scdp", "--loss", "huber"], "--loss: expected together with --method robust"),
        (["--max-prototypes", "5"], "--max-prototypes: expected together with --method scdp"),
        (["--method", "spsvm", "--stream"], "--stream: expected a method that needs only sums"),
    ):
        assert main([*fit, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_a_path_has_an_end(as_users_call):
    X, y = problem()
    path = fit(RBF(1.5), X[:8], 5.0, X, y, max_prototypes=8)
    for size in (0, 9):
        with pytest.raises(ValueError, match="size: expected one of 1 to 8"):
            path.at(size)
    for options, message in (
        ({"max_prototypes": 11}, "max_prototypes: expected a whole number between 1"),
        ({"subset": 3}, "key, subset"),
        ({"formed": False}, "formed: expected True or None"),
        ({"C": -5.0}, "C: expected a positive"),
    ):
        settings = {"C": 5.0, "max_prototypes": 5, **options}
        with pytest.raises(ValueError, match=message):
            fit(RBF(1.5), X[:10], settings.pop("C"), X, y, **settings)
    w = np.where(np.arange(80) < 5, 1.0, 0.0)
    for settings, message in (
        ({"method": SCDP(5, candidates=6)}, r"candidates: expected .* rows with weight \(5\)"),
        ({"folds": jsparse.folds_from_assignment(np.arange(80) // 20)}, "row with weight outside"),
    ):
        settings = {"method": SCDP(2), "folds": 2, **settings}
        with pytest.raises(ValueError, match=message):
            jsparse.train(X, y, weights=w, task="regression", key=0, **settings)


def test_a_path_that_ended_before_gives_its_last_machine():
    X, y = problem()
    twice = np.concatenate([X[:4], X[:4]])  # four different candidates
    path = fit(RBF(1.5), twice, 5.0, X, y, max_prototypes=8)
    assert path.info["path_length"] == 4
    assert len(path.at(8).prototypes) == 4
    np.testing.assert_allclose(path.at(8)(X), path.at(4)(X), rtol=1e-9)
    constant = fit(RBF(1.5), twice, 5.0, X, np.full(len(X), 3.0), max_prototypes=8)
    np.testing.assert_allclose(constant.at(8)(X), np.full(len(X), 3.0), rtol=1e-6)
