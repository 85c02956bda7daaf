"""Kernel subspace, matching and basis pursuit: machines against loops and scikit-learn."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import pursuit as reference
from sklearn.linear_model import lars_path, orthogonal_mp

import jsparse
from jsparse import KBP, KMP, KSP
from jsparse._status import COMPLETED, CONVERGED, TRUNCATED
from jsparse.cli.main import main
from jsparse.compilation import count_compilations
from jsparse.estimators import KernelMatchingPursuitRegressor, KernelSubspacePursuitRegressor
from jsparse.kernels import RBF, Mixture, Polynomial
from jsparse.machines import pursuits
from jsparse.machines.method import Shape
from jsparse.validation.validate import validate

SIZES = (1, 3, 6)
KERNEL = RBF(0.05)


def rows(n=50, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(size=(n, 1)), axis=0)
    y = np.sin(9 * X[:, 0]) + 0.1 * rng.standard_normal(n)
    return jnp.asarray(X.astype(dtype)), jnp.asarray(y.astype(dtype))


def bare(kind, **options):
    """As the papers have it: no intercept."""
    return kind(n_prototypes=SIZES, intercept=False, **options)


def coefficients(method, X, y, **options):
    family = pursuits.fit(method, KERNEL, X[::2], X, y, **options)
    assert (np.asarray(family.statuses) <= COMPLETED).all()
    assert family.support is None
    for K, coefficients_of_size in zip(SIZES, atoms_of(family), strict=True):
        assert np.count_nonzero(coefficients_of_size) == K
    return family


def atoms_of(family):
    """The coefficients of all atoms, of the one target, for each size."""
    return np.asarray(family.coefficients)[0, :, :, 0]


def gram(X):
    return np.asarray(KERNEL.cross_gram(jnp.asarray(X, float), jnp.asarray(X[::2], float)))


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_ksp_is_algorithm_1_on_the_gram_matrix(dtype):
    X, y = rows(dtype=dtype)
    by_rows = coefficients(bare(KSP, formed=False), X, y)
    assert by_rows.coefficients.dtype == dtype
    G = gram(X)
    for i, K in enumerate(SIZES):
        atoms, w, _ = reference.subspace_pursuit(G, y.astype(float), K, 5)
        assert np.flatnonzero(atoms_of(by_rows)[i]).tolist() == sorted(atoms)
        values = G[:, atoms] @ w
        np.testing.assert_allclose(
            by_rows.values(X)[:, i, 0],
            values,
            atol={"float64": 1e-9, "float32": 1e-3}[dtype],
        )
        np.testing.assert_allclose(by_rows.at(K)(X), by_rows.values(X)[:, i, 0], atol=1e-4)
    formed = coefficients(bare(KSP), X, y)
    np.testing.assert_allclose(formed.values(X), by_rows.values(X), atol=2e-2)


@pytest.mark.parametrize("fitting", ["basic", "backfitting", "prefitting"])
def test_kmp_is_that_of_vincent_and_bengio(fitting):
    X, y = rows()
    family = coefficients(bare(KMP, fitting=fitting), X, y)
    record = reference.kernel_matching_pursuit(gram(X), y, 6, fitting)
    for i, K in enumerate(SIZES):
        np.testing.assert_allclose(atoms_of(family)[i], record[K - 1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("fitting", [pytest.param("basic", marks=pytest.mark.slow), "backfitting"])
def test_stochastic_kmp_takes_the_best_of_those_drawn(fitting):
    X, y = rows()
    key, D = jax.random.key(3), 25
    every = coefficients(bare(KMP, fitting=fitting, subset=D), X, y, key=key)
    usual = coefficients(bare(KMP, fitting=fitting), X, y)
    np.testing.assert_allclose(every.coefficients, usual.coefficients, rtol=1e-6, atol=1e-9)
    family = coefficients(bare(KMP, fitting=fitting, subset=5), X, y, key=key)
    if fitting == "basic":  # its draws are of all atoms
        order = [
            jax.random.uniform(jax.random.fold_in(key, i), (D,), jnp.float32) for i in range(99)
        ]
        draws = [np.argsort(-np.asarray(one))[:5] for one in order]
        record = reference.kernel_matching_pursuit(gram(X), y, 6, fitting, draws)
        for i, K in enumerate(SIZES):
            np.testing.assert_allclose(atoms_of(family)[i], record[K - 1], rtol=1e-6, atol=1e-9)
    left = [np.linalg.norm(y - f) for f in family.values(X)[:, :, 0].T]
    best = [np.linalg.norm(y - f) for f in usual.values(X)[:, :, 0].T]
    assert left[0] > left[1] > left[2] > 0.9 * best[2]


def test_back_fitting_and_basis_pursuit_are_scikit_learns():
    X, y = rows()
    G = gram(X)
    length = np.linalg.norm(G, axis=0)
    backfitted = coefficients(bare(KMP), X, y)
    for i, K in enumerate(SIZES):
        theirs = orthogonal_mp(G / length, np.asarray(y), n_nonzero_coefs=K) / length
        np.testing.assert_allclose(atoms_of(backfitted)[i], theirs, rtol=1e-6, atol=1e-9)
    basis = coefficients(bare(KBP), X, y)
    _, _, corners = lars_path(G / length, np.asarray(y), method="lar", max_iter=6)
    np.testing.assert_allclose(
        atoms_of(basis), corners.T[list(SIZES)] / length, rtol=1e-6, atol=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [KSP(SIZES[-1], n_prototypes=SIZES), KMP(n_prototypes=SIZES), KBP(n_prototypes=SIZES)]
)
def test_targets_alone_constants_and_several_kernels(method):
    X, y = rows()
    Z, both = X[::2], jnp.stack([y, 3 - 2 * y**2], axis=1)
    joint = pursuits.fit(method, KERNEL, Z, X, both)
    for target in (0, 1):
        alone = pursuits.fit(method, KERNEL, Z, X, both[:, target])
        np.testing.assert_allclose(joint.values(X)[..., target], alone.values(X)[..., 0], atol=1e-9)
        moved = pursuits.fit(method, KERNEL, Z, X, both[:, target] + 100)
        np.testing.assert_allclose(moved.values(X), 100 + alone.values(X), atol=1e-7)
    # A dictionary of several widths and kernels: as good as the best of them, or nearly.
    kernels = (KERNEL, RBF(0.02), Polynomial(2))
    mixed = pursuits.fit(method, kernels, Z, X, y)
    assert mixed.coefficients.shape == (1, 3, 3 * len(Z), 1)
    machine = mixed.at(6)
    np.testing.assert_allclose(machine(X), mixed.values(X)[:, 2, 0], atol=1e-8)
    np.testing.assert_allclose(mixed.compact().values(X), mixed.values(X), atol=1e-8)
    assert machine.prototypes.shape == (6, 1)
    # Each prototype by its own kernel, summed by hand.
    each = [
        beta * np.asarray(kernels[which].cross_gram(X, z[None]))[:, 0]
        for beta, which, z in zip(
            machine.coefficients, machine.kernel.which, machine.prototypes, strict=True
        )
    ]
    np.testing.assert_allclose(sum(each) + machine.intercept, machine(X), atol=1e-8)
    with pytest.raises(ValueError, match=r"n_prototypes: expected one of \[1, 3, 6\]"):
        mixed.at(2)


def test_a_dictionary_of_several_kernels_is_trained_saved_and_refused_elsewhere(tmp_path):
    X, y = rows(n=40)
    options = {"task": "regression", "key": 0, "folds": 2, "out_of_fold": False}
    options["search"] = jsparse.Profile(tune_kernel=False)
    steps = jnp.where(X[:, 0] > 0.5, 1.0, 0.0) + 0.3 * y
    trained = jsparse.train(
        X, steps, method=KMP(6, n_prototypes=(6,)), kernel=[RBF(2.0), RBF(0.1), "linear"], **options
    )
    machine = trained.expansion
    assert isinstance(machine.kernel, Mixture)
    assert len(set(np.asarray(machine.kernel.which).tolist())) > 1
    assert trained.model.size == 6
    trained.model.save(tmp_path / "model")
    again = jsparse.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), trained.predict(X))
    np.testing.assert_array_equal(again.at(6).predict(X), trained.predict(X))
    both = ["rbf", "linear"]
    for method in (jsparse.FixedSize(5), jsparse.SCDP(5), jsparse.Dual(), jsparse.SpSVM(5)):
        task = "classification" if isinstance(method, jsparse.SpSVM) else "regression"
        with pytest.raises(ValueError, match=f"expected one with {type(method).__name__}, got 2"):
            jsparse.train(X, y > 0, method=method, kernel=both, **{**options, "task": task})
    with pytest.raises(ValueError, match="got a Mixture of prototypes"):
        jsparse.train(X, y, method=KSP(), kernel=machine.kernel, **options)
    for bad, what in (
        (lambda: Mixture(()), "kernels: expected at least one"),
        (lambda: Mixture((KERNEL,), [1]), "which: expected numbers of 1 kernels"),
        (lambda: Mixture((Mixture((KERNEL,)),)), "expected no Mixture among"),
        (lambda: Mixture((KERNEL,), [0]).cross_gram(X, X), "which: expected the number of a"),
        (lambda: Mixture((KERNEL,)).cross_gram(X, X), "expected a single kernel, got a Mixture"),
        (lambda: machine.kernel.gram(X), "expected a single kernel, got a Mixture"),
    ):
        with pytest.raises(ValueError, match=what):
            bad()


def test_the_command_line_takes_several_kernels(tmp_path, capsys):
    X, y = rows(n=40)
    table, model = tmp_path / "rows.csv", tmp_path / "model"
    columns = np.column_stack([X, y])
    names = [*(f"x{i}" for i in range(X.shape[1])), "y"]
    np.savetxt(table, columns, delimiter=",", header=",".join(names), comments="")
    fit = ["fit", str(table), "--target", "y", "--out", str(model), "--method", "kmp"]
    small = ["--max-prototypes", "6", "--folds", "2", "--evaluations", "1"]
    assert main([*fit, *small, "--kernel", "rbf,linear"]) == 0
    assert "RBF(" in (said := capsys.readouterr().out)
    assert "Linear(" in said
    assert isinstance(jsparse.load(model).expansion.kernel, Mixture)
    assert main([*fit, "--kernel", "rbf,sigmoid"]) == 2
    assert "expected one of rbf, laplacian" in capsys.readouterr().err


def test_basis_pursuit_ends_before_an_atom_that_is_rounding(dtype):
    """Of a polynomial of degree 2 the dictionary has rank 3."""
    X, y = rows(dtype=dtype)
    family = pursuits.fit(KBP(n_prototypes=(1, 20), intercept=False), Polynomial(2), X, X, y)
    assert int(family.statuses[1]) in (CONVERGED, TRUNCATED)
    assert np.count_nonzero(atoms_of(family)[1]) < 20
    values = np.asarray(family.values(X), float)[:, :, 0]
    errors = np.mean((values - np.asarray(y)[:, None]) ** 2, axis=0)
    assert errors[1] <= errors[0] < np.mean(np.square(y))


def test_refit_is_the_last_step_and_has_its_derivatives():
    X, y = rows(n=30)
    family = pursuits.fit(KSP(n_prototypes=6), KERNEL, X[::2], X, y)
    machine = family.at(6)
    again = pursuits.refit(KERNEL, machine.prototypes, X, y)
    np.testing.assert_allclose(again(X), machine(X), atol=1e-9)

    def error(width, shift, tilt, ridge):
        inputs, targets = X + shift * jnp.sin(7 * X), y + tilt * jnp.cos(5 * X[:, 0])
        model = pursuits.refit(RBF(width), machine.prototypes, inputs, targets, ridge=ridge)
        return jnp.mean(jnp.square(model(jnp.linspace(0, 1, 20)[:, None]) - 0.2))

    at, h = (0.15, 0.01, 0.1, 0.02), 1e-6
    gradient = jax.jit(jax.grad(error, (0, 1, 2, 3)))(*at)
    error = jax.jit(error)
    for place in range(4):
        ahead, behind = (
            error(*(a + s * h * (i == place) for i, a in enumerate(at))) for s in (1, -1)
        )
        np.testing.assert_allclose(gradient[place], (ahead - behind) / (2 * h), rtol=1e-5)


@pytest.mark.slow
def test_a_dictionary_of_rank_one_and_twins_among_the_candidates(dtype):
    X, y = rows(dtype=dtype)
    twins = jnp.concatenate([X[::5], X[::5]])
    for kind in (KSP, KMP, KBP):
        flat = pursuits.fit(kind(n_prototypes=(2, 4)), RBF(1e9), X[::5], X, y)
        assert np.isfinite(flat.values(X)).all()
        np.testing.assert_allclose(flat.values(X)[:, :, 0].mean(axis=0), y.mean(), atol=1e-2)
        family = pursuits.fit(kind(n_prototypes=(2, 4)), KERNEL, twins, X, y)
        assert (np.asarray(family.statuses) <= COMPLETED).all()
        values = np.asarray(family.values(X))[:, :, 0]
        assert np.mean((values[:, 1] - y) ** 2) <= np.var(y)


@pytest.mark.slow
def test_scores_are_those_of_fits_in_one_program_for_all_widths():
    X, y = rows(n=30)
    method = KSP(n_prototypes=SIZES, formed=False).resolve(Shape(30, 30, 24, 1, None, False))
    folds = jsparse.folds_from_assignment(np.arange(30) % 5)

    @jax.jit
    def scores(widths, Z, X, y, folds):
        return jax.lax.map(
            lambda width: validate(
                method, RBF(width), Z, jnp.ones(1), X, y, folds, metric="mse"
            ).scores[0],
            widths,
        )

    widths = jnp.array([0.1, 0.2])
    width_scores = scores(widths, X, X, y, folds)
    assert width_scores.shape == (2, 3)
    for width, width_score in zip(widths, width_scores, strict=True):
        errors = np.zeros(3)
        for fold in np.asarray(folds.index):
            rest = np.setdiff1d(np.arange(30), fold)
            fitted = pursuits.fit(method, RBF(width), X, X[rest], y[rest])
            values = np.asarray(fitted.values(X[fold]))[:, :, 0]
            errors += np.sum((values - y[fold][:, None]) ** 2, axis=0)
        np.testing.assert_allclose(width_score, errors / 30, rtol=1e-3)


def test_bad_settings_are_named(as_users_call):
    X, y = rows()
    for method, what in (
        (KSP(n_prototypes=0), "n_prototypes: expected a whole number between 1"),
        (
            KSP(n_prototypes=26),
            "n_prototypes: expected a whole number between 1 and the number of atoms",
        ),
        (KSP(n_prototypes=(3, 3)), "n_prototypes: expected increasing"),
        (KSP(), "n_prototypes: expected one number"),
        (KSP(n_prototypes=3, ridge=-1.0), "ridge: expected"),
        (KSP(n_prototypes=3, max_iterations=0), "max_iterations: expected"),
        (KSP(n_prototypes=3, subset=4), "subset: expected None with KSP"),
        (KBP(n_prototypes=3, subset=4), "subset: expected None with KBP"),
        (KMP(n_prototypes=3, fitting="other"), "fitting: expected"),
        (KMP(n_prototypes=3, fitting="prefitting", subset=3), "subset: expected None with"),
        (KMP(n_prototypes=3, subset=3), "key: expected one with a subset"),
    ):
        with pytest.raises(ValueError, match=what):
            pursuits.fit(method, KERNEL, X[::2], X, y)
    with pytest.raises(ValueError, match="kernel: expected a Kernel or several"):
        pursuits.fit(KSP(n_prototypes=3), (), X[::2], X, y)
    options = {"task": "regression", "key": 0}
    with pytest.raises(ValueError, match="C: expected None with KSP"):
        jsparse.train(X, y, method=KSP(), C=[1.0], **options)
    with pytest.raises(
        ValueError, match="max_prototypes: expected None or the last of n_prototypes, 6"
    ):
        jsparse.train(X, y, method=KSP(5, n_prototypes=SIZES), **options)
    with pytest.raises(ValueError, match="n_prototypes: expected a whole number between 1"):
        jsparse.train(X, y, method=KSP(n_prototypes=51), **options)


def test_a_path_that_is_too_short_says_so_and_a_ridge_makes_it_longer():
    X, y = rows()
    wide = RBF(1.0)
    bare = pursuits.fit(KMP(n_prototypes=(2, 20)), wide, X[::2], X, y)
    assert bare.statuses[0] <= COMPLETED
    assert bare.statuses[1] == TRUNCATED  # fewer than 20: the others depend on these
    eased = pursuits.fit(KMP(n_prototypes=(2, 20), ridge=1e-4), wide, X[::2], X, y)
    assert (np.asarray(eased.statuses) <= COMPLETED).all()
    assert np.abs(eased.coefficients).max() < np.abs(bare.coefficients).max()


@pytest.mark.slow
def test_estimators_choose_sizes_and_fold_back_into_models():
    X, y = rows(n=120, seed=2)
    for model in (
        KernelSubspacePursuitRegressor(n_prototypes=(2, 5, 10), random_state=0, cv=5),
        KernelMatchingPursuitRegressor(10, fitting="prefitting", random_state=0, cv=5),
    ):
        model.fit(X, y)
        assert model.score(X, y) > 0.95
        assert model.n_prototypes_ == len(model.prototypes_)
        assert model.expansion_at(5).prototypes.shape == (5, 1)
        assert not hasattr(model, "C") or model.C == "auto"


def test_methods_with_equal_settings_are_equal():
    assert KSP(n_prototypes=[1, 3, 6]) == KSP(n_prototypes=SIZES)
    assert hash(KSP(n_prototypes=[1, 3, 6])) == hash(KSP(n_prototypes=SIZES))
    assert dataclasses.replace(KMP(5), fitting="basic") != KMP(5)
    for number in (np.int64(5), np.asarray(5), jnp.asarray(5)):  # as Python's, without a warning
        assert KMP(candidates=number, n_prototypes=(1, number)) == KMP(
            candidates=5, n_prototypes=(1, 5)
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "name", "numbers"),
    [
        (KMP(n_prototypes=SIZES), "ridge", [1e-3, 0.1]),
        (KBP(n_prototypes=SIZES), "ridge", [1e-3, 0.1]),
        (KSP(n_prototypes=SIZES, formed=False), "max_iterations", [1, 5]),
    ],
)
def test_numbers_compile_once_and_vmap_runs_over_them(method, name, numbers):
    X, y = rows(n=30)

    def machines(number):
        changed = dataclasses.replace(method, **{name: number})
        return pursuits.fit(changed, KERNEL, X[::2], X, y)

    values = jax.vmap(lambda number: machines(number).values(X))(jnp.asarray(numbers))
    first = machines(numbers[0])
    with count_compilations() as compiled:
        second = machines(numbers[1])
    assert compiled.programs == 0
    np.testing.assert_allclose(values[0], first.values(X), atol=1e-9)
    np.testing.assert_allclose(values[1], second.values(X), atol=1e-9)
    assert not np.allclose(values[0], values[1])


def test_matching_pursuit_has_derivatives_without_a_ridge_and_at_unused_places():
    """Two of the three candidates differ, so the path of three has an unused place."""
    X, y = rows(n=20)
    method = KMP(n_prototypes=3)

    @jax.jit
    def figure(lengthscale):
        family = pursuits.fit(method, RBF(lengthscale), X[jnp.array([2, 15, 2])], X, y)
        return jnp.sum(jnp.sin(family.values(X)))

    slope = jax.jvp(figure, (0.2,), (1.0,))[1]
    difference = (figure(0.2 + 1e-6) - figure(0.2 - 1e-6)) / 2e-6
    np.testing.assert_allclose(slope, difference, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(figure)(0.2), difference, rtol=1e-6)


@pytest.mark.parametrize(
    "method", [KMP(n_prototypes=SIZES), KBP(n_prototypes=SIZES), KSP(n_prototypes=SIZES)]
)
def test_the_derivative_in_the_ridge_is_right_in_forward_mode(method):
    X, y = rows(n=30)

    def error(ridge):
        changed = dataclasses.replace(method, ridge=ridge)
        return jnp.sum(jnp.sin(pursuits.fit(changed, KERNEL, X[::2], X, y).values(X)))

    _, slope = jax.jvp(error, (0.02,), (1.0,))
    np.testing.assert_allclose(slope, (error(0.02 + 1e-6) - error(0.02 - 1e-6)) / 2e-6, rtol=1e-6)
