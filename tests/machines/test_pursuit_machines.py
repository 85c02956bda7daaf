"""Kernel subspace, matching and basis pursuit: machines against loops and scikit-learn."""

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
from jsparse.kernels import RBF, Mixture, Polynomial
from jsparse.machines import pursuits

SIZES = (1, 3, 6)
KERNEL = RBF(0.05)


def rows(n=50, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(size=(n, 1)), axis=0)
    y = np.sin(9 * X[:, 0]) + 0.1 * rng.standard_normal(n)
    return jnp.asarray(X.astype(dtype)), jnp.asarray(y.astype(dtype))


def bare(kind, **options):
    """Return a method without intercept, as in the papers."""
    return kind(n_prototypes=SIZES, intercept=False, **options)


def coefficients(method, X, y, **options):
    family = pursuits.fit(method, KERNEL, X[::2], X, y, **options)
    assert (np.asarray(family.statuses) <= COMPLETED).all()
    assert family.support is None
    for K, coefficients_of_size in zip(SIZES, atoms_of(family), strict=True):
        assert np.count_nonzero(coefficients_of_size) == K
    return family


def atoms_of(family):
    """Return the coefficients of all atoms for each size; there is one target."""
    return np.asarray(family.coefficients)[0, :, :, 0]


def gram(X):
    return np.asarray(KERNEL.cross_gram(jnp.asarray(X, float), jnp.asarray(X[::2], float)))


def test_ksp_is_algorithm_1_on_the_gram_matrix():
    X, y = rows()
    by_rows = coefficients(bare(KSP, formed=False), X, y)
    G = gram(X)
    for i, K in enumerate(SIZES):
        atoms, w, _ = reference.subspace_pursuit(G, np.asarray(y), K, 5)
        assert np.flatnonzero(atoms_of(by_rows)[i]).tolist() == sorted(atoms)
        np.testing.assert_allclose(by_rows.values(X)[:, i, 0], G[:, atoms] @ w, atol=1e-9)
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


@pytest.mark.slow
@pytest.mark.parametrize("fitting", ["basic", "backfitting"])
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
@pytest.mark.parametrize("kind", [KMP, KSP, KBP])
def test_a_dictionary_may_have_several_widths_and_kernels(kind):
    X, y = rows()
    kernels = (KERNEL, RBF(0.02), Polynomial(2))
    mixed = pursuits.fit(kind(n_prototypes=SIZES), kernels, X[::2], X, y)
    assert mixed.coefficients.shape == (1, 3, 75, 1)
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
    with pytest.raises(ValueError, match=r"size: expected one of \[1, 3, 6\]"):
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


@pytest.mark.slow
def test_the_command_line_takes_several_kernels(tmp_path, capsys):
    X, y = rows(n=40)
    table, model = tmp_path / "rows.csv", tmp_path / "model"
    columns = np.column_stack([X, y])
    names = [*(f"x{i}" for i in range(X.shape[1])), "y"]
    np.savetxt(table, columns, delimiter=",", header=",".join(names), comments="")
    fit = ["fit", str(table), "--target", "y", "--out", str(model), "--method", "kmp"]
    small = ["--max-prototypes", "6", "--folds", "2", "--evaluations", "1"]
    assert main([*fit, *small, "--kernel", "rbf,linear"]) == 0
    assert "RBF(" in (printed := capsys.readouterr().out)
    assert "Linear(" in printed
    assert isinstance(jsparse.load(model).expansion.kernel, Mixture)
    assert main([*fit, "--kernel", "rbf,sigmoid"]) == 2
    assert "expected one of rbf, laplacian" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_basis_pursuit_ends_before_an_atom_that_is_rounding(dtype):
    """The dictionary of a polynomial of degree 2 has rank 3."""
    X, y = rows(dtype=dtype)
    family = pursuits.fit(KBP(n_prototypes=(1, 20), intercept=False), Polynomial(2), X, X, y)
    assert int(family.statuses[1]) in (CONVERGED, TRUNCATED)
    assert np.count_nonzero(atoms_of(family)[1]) < 20
    values = np.asarray(family.values(X), float)[:, :, 0]
    errors = np.mean((values - np.asarray(y)[:, None]) ** 2, axis=0)
    assert errors[1] <= errors[0] < np.mean(np.square(y))


@pytest.mark.slow
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
def test_a_dictionary_of_rank_one_and_twins_among_the_candidates():
    X, y = rows()
    twins = jnp.concatenate([X[::5], X[::5]])
    for kind in (KSP, KMP, KBP):
        flat = pursuits.fit(kind(n_prototypes=(2, 4)), RBF(1e9), X[::5], X, y)
        assert np.isfinite(flat.values(X)).all()
        np.testing.assert_allclose(flat.values(X)[:, :, 0].mean(axis=0), y.mean(), atol=1e-2)
        family = pursuits.fit(kind(n_prototypes=(2, 4)), KERNEL, twins, X, y)
        assert (np.asarray(family.statuses) <= COMPLETED).all()
        values = np.asarray(family.values(X))[:, :, 0]
        assert np.mean((values[:, 1] - y) ** 2) <= np.var(y)


def test_a_path_that_is_too_short_says_so_and_a_ridge_makes_it_longer():
    X, y = rows()
    wide = RBF(1.0)
    bare = pursuits.fit(KMP(n_prototypes=(2, 20)), wide, X[::2], X, y)
    assert bare.statuses[0] <= COMPLETED
    assert bare.statuses[1] == TRUNCATED  # fewer than 20: the others depend on these
    eased = pursuits.fit(KMP(n_prototypes=(2, 20), ridge=1e-4), wide, X[::2], X, y)
    assert (np.asarray(eased.statuses) <= COMPLETED).all()
    assert np.abs(eased.coefficients).max() < np.abs(bare.coefficients).max()


def test_settings_are_compared_by_value_and_bad_ones_are_named(as_users_call):
    assert KSP(n_prototypes=[1, 3, 6]) == KSP(n_prototypes=SIZES)
    for number in (np.int64(5), np.asarray(5), jnp.asarray(5)):  # as Python's, without a warning
        assert KMP(candidates=number, n_prototypes=(1, number)) == KMP(
            candidates=5, n_prototypes=(1, 5)
        )
    X, y = rows()
    for method, what in (
        (KSP(n_prototypes=0), "n_prototypes: expected a whole number between 1"),
        (KSP(n_prototypes=26), "n_prototypes: .* between 1 and the number of atoms"),
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
    for method, options, what in (
        (KSP(), {"C": [1.0]}, "C: expected None with KSP"),
        (KSP(5, n_prototypes=SIZES), {}, "expected None or the last of n_prototypes, 6"),
        (KSP(n_prototypes=51), {}, "n_prototypes: expected a whole number between 1"),
    ):
        with pytest.raises(ValueError, match=what):
            jsparse.train(X, y, method=method, task="regression", key=0, **options)


@pytest.mark.slow
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
