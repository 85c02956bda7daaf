"""The status of iterative solvers: CONVERGED only if an independent residual confirms it.

`SOLVERS` holds every loop with a limit on its steps. The tests stop each solver after every number
of steps up to its end.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import prototypes as reference
from reference import svm
from reference.kernels import gaussian
from scipy.optimize import minimize
from search import loops

from jsparse import features, pursuit
from jsparse._status import (
    COMPLETED,
    CONVERGED,
    EXHAUSTED,
    INDEFINITE,
    NOT_FINITE,
    PRECISION_LOST,
    TRUNCATED,
)
from jsparse.kernels import RBF
from jsparse.machines import dual, robust, scdp, spsvm
from jsparse.prototypes import bandwidth, k_means, renyi
from jsparse.search import simplex
from jsparse.solvers import conjugate_gradients, interior_point

KEY = jax.random.key(0)


class End(NamedTuple):
    """The status of one part, and its residual by NumPy, divided by what CONVERGED allows."""

    status: int
    excess: float


class Solver(NamedTuple):
    """A solver that can be stopped early."""

    run: Callable[[int], list[End]]  # with a limit on the number of steps
    last: int  # a limit that the solver does not reach
    capped: int = EXHAUSTED  # its status at the limit
    end: int = CONVERGED  # its status without a limit
    fast: bool = True  # a fast test stops it after one step and not at all


def rows(seed=0, n=12, d=5):
    return np.random.default_rng(seed).normal(size=(n, d))


def planted():
    """Return a dictionary, and targets that are a combination of three atoms."""
    X = rows(n=30)
    return X, X[:, [0, 2, 3]] @ np.array([2.0, -1.0, 0.5])


def ends_of_columns(solved, A, b, tolerance):
    """Return the end of each right-hand side of `A x = b`."""
    residuals = np.linalg.norm(b - A @ np.asarray(solved.x), axis=0)
    allowed = conjugate_gradients.DRIFT * tolerance * np.linalg.norm(b, axis=0)
    return [
        End(int(code), r / a if a > 0 else r)
        for code, r, a in zip(solved.status, residuals, allowed, strict=True)
    ]


def definite():
    """Return a matrix, and right-hand sides that take one step, many steps and none."""
    X = rows(1, 20, 8)
    A = X.T @ X
    first = np.linalg.eigh(A)[1][:, 0]
    return A, np.stack([first, X.T @ rows(2, 20, 1)[:, 0], 0 * first], axis=1)


@jax.jit
def by_conjugate_gradients(A, b, tolerance, k):
    return conjugate_gradients.solve(lambda x: A @ x, b, tolerance=tolerance, max_iterations=k)


def cg(k):
    A, b = definite()
    return ends_of_columns(by_conjugate_gradients(A, b, 1e-9, k), A, b, 1e-9)


def beyond_precision(k):
    """Use a tolerance that the recurrence meets and the solution does not."""
    A, b = definite()
    b = b[:, [1, 1, 1]]  # as many as for `cg`, for the same program
    return ends_of_columns(by_conjugate_gradients(A, b, 1e-18, k), A, b, 1e-18)


def dual_by_cg(k):
    """Solve for two outputs, one of which is zero; the column of the intercept converges first."""
    X = rows(3, 30, 2)
    y = np.stack([np.zeros(30), np.sin(3 * X[:, 0])], axis=1)
    fitted = dual.fit(
        RBF(0.5), 100.0, jnp.asarray(X), jnp.asarray(y),
        method="conjugate_gradients", tolerance=1e-4, max_iterations=k, landmarks=3,
    )  # fmt: skip
    alpha, b = (np.asarray(a) for a in (fitted.expansion.coefficients, fitted.expansion.intercept))
    residuals = np.linalg.norm(y - gaussian(X, X, 0.5) @ alpha - alpha / 100 - b, axis=0)
    allowed = 2e-4 * (np.linalg.norm(y, axis=0) + np.abs(b) * np.sqrt(30))
    return [End(int(fitted.status), float(np.max(residuals / np.where(allowed > 0, allowed, 1))))]


def end_of_path(path, w):
    """Return the residual of the normal equations in units of 1e-8 times the first residual."""
    X, y = planted()
    b = X.T @ y
    residual = np.linalg.norm(b - X.T @ (X @ np.asarray(w)))
    return [End(int(path.status), residual / (1e-8 * np.linalg.norm(b)))]


def normal_equations():
    X, y = planted()
    return X.T @ X, X.T @ y


def matching(k):
    A, b = normal_equations()
    path = pursuit.matching_pursuit(A, b, max_atoms=5, max_iterations=k, tolerance=1e-8)
    return end_of_path(path, path.dense(5))


def conjugate(k):
    A, b = normal_equations()
    path = pursuit.scdp(A, b, max_atoms=k, tolerance=1e-9)
    return end_of_path(path, path.dense(5))


def probabilistic(k):
    """Add two copies of atoms as candidates; the path ends once all candidates are examined."""
    X, y = planted()
    X = np.concatenate([X, X[:, :2]], axis=1)
    path = pursuit.scdpp(X.T @ X, X.T @ y, max_atoms=k, key=KEY, subset=2)
    w = np.asarray(path.dense(7))
    return end_of_path(path, w[:5] + np.pad(w[5:], (0, 3)))


def orthogonal(k):
    X, y = planted()
    path = pursuit.omp(X, y, max_atoms=k, tolerance=1e-9)
    return end_of_path(path, path.dense(5))


def stagewise(k):
    X, y = planted()
    path = pursuit.stagewise_omp(X, y, max_atoms=5, max_stages=k, threshold=3.5)
    r = y - X @ np.asarray(path.dense(5))
    above = np.max(np.abs(X.T @ r)) / (np.linalg.norm(r) / np.sqrt(len(X)))
    solved = np.linalg.norm(r) <= 1e-12 * np.linalg.norm(y)
    return [End(int(path.status), 0.0 if solved else above)]


def least_angle(k):
    A, b = normal_equations()
    path = pursuit.lasso(A, b, max_atoms=5, max_iterations=k)
    return end_of_path(path, path.coefficients[-1])


def scdp_machine(k):
    """Return the residual of the system (34) at eight candidates, three of them twice."""
    X = rows(4, 20, 2)
    Z, y = X[[0, 1, 2, 3, 4, 0, 1, 2]], np.sin(2 * X[:, 0]) + 0.1 * X[:, 1]
    path = scdp.fit(
        RBF(1.0), jnp.asarray(Z), 10.0, jnp.asarray(X), jnp.asarray(y),
        max_prototypes=k, subset=3, key=KEY,
    )  # fmt: skip
    (size,), (status,) = path.info["path_length"].tolist(), path.info["path_status"].tolist()
    S = Z[np.asarray(path.support)[0, :size]]
    w = np.asarray(path.coefficients)[0, -1, :size, 0]
    r = y - gaussian(X, S) @ w - float(path.intercepts[0, -1, 0])
    residual = gaussian(Z, X) @ r - gaussian(Z, S) @ w / 10
    return [End(status, float(np.max(np.abs(residual))) / 1e-9)]


def newton(k):
    """Optimise at the first and the last size; compare the gradient with the loss gradient."""
    X = rows(4, 60, 2)
    y = np.where(np.sin(2 * X[:, 0]) + 0.5 * rows(9, 60, 1)[:, 0] > 0, 1.0, -1.0)
    Z = X[:8]
    path = spsvm.fit(
        RBF(1.0), jnp.asarray(Z), 1e4, jnp.asarray(X), jnp.asarray(y),
        key=KEY, max_prototypes=8, subset=4, growth=10.0, max_iterations=k,
    )  # fmt: skip
    S, w = Z[np.asarray(path.support)[0]], np.asarray(path.coefficients)[0, -1, :, 0]
    K, R = gaussian(X, S), gaussian(S, S)
    loss_gradient = 1e4 * y * np.maximum(1 - y * (K @ w + float(path.intercepts[0, -1, 0])), 0)
    gradient = np.append(R @ w - K.T @ loss_gradient, -loss_gradient.sum())
    status = int(path.info["coefficient_status"][0, -1])
    assert path.status_at(8) == max(status, int(path.info["path_status"][0]))
    return [End(status, float(np.linalg.norm(gradient) / np.linalg.norm(loss_gradient)) / 1e-5)]


def huber(k):
    """Compare the objective with Nelder-Mead's, for two outputs, one of which is zero."""
    X = rows(5, 40, 1)
    y = np.stack([0 * X[:, 0], np.sin(2 * X[:, 0])], axis=1)
    y[::7, 1] += 3.0
    fitted = robust.fit(
        features.Linear(jnp.zeros(1)), 1.0, jnp.asarray(X), jnp.asarray(y),
        loss="huber", threshold=0.3, max_iterations=k,
    )  # fmt: skip

    def objective(p):
        size = np.abs(y[:, 1] - X @ p[:1] - p[1])
        loss = np.where(size <= 0.3, size**2, 0.6 * size - 0.09)
        return p[0] ** 2 / 2 + loss.sum() / 2

    model = fitted.expansion(jnp.asarray([[0.0], [1.0]]))[:, 1]
    reached = objective(np.array([float(model[1] - model[0]), float(model[0])]))
    best = minimize(objective, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-9}).fun
    return [End(int(fitted.status), (reached / best - 1) / 1e-4)]


def hinge(k):
    """Compare the objective with the optimum by an active-set method."""
    X = rows(5, 40, 2)
    y = np.where(X[:, 0] + rows(6, 40, 1)[:, 0] > 0, 1.0, -1.0)
    solution = interior_point.solve(
        jnp.asarray(X), jnp.asarray(y), 3.0, tolerance=1e-6, max_iterations=k
    )
    reached = svm.objective(X, y, 3.0, np.asarray(solution.weights), float(solution.intercept))
    return [End(int(solution.status), (reached / svm.dual(X, y, 3.0)[1] - 1) / 1e-6)]


def bowl(theta, centre):
    return jnp.sum(jnp.square(theta - centre))


def nelder_mead(k):
    centre = jnp.asarray([0.3, 0.6])
    box = jnp.zeros(2), jnp.ones(2)
    state = simplex.init(jnp.full(2, 0.5), *box, tolerance=1e-4, max_evaluations=k)
    for _ in range(k):
        state = loops.step(simplex, bowl, centre, state)
    distance = float(np.max(np.abs(np.asarray(state.best_theta) - np.asarray(centre))))
    return [End(int(state.status), distance / 1e-3)]


def lloyd(k):
    X = rows(6, 60, 2)
    clusters = k_means(KEY, jnp.asarray(X), 5, max_iterations=k)
    centres = np.asarray(clusters.centres)
    nearest = np.argmin(np.square(X[:, None] - centres[None]).sum(-1), axis=1)
    means = np.stack([X[nearest == j].mean(0) for j in range(5)])
    return [End(int(clusters.status), float(np.max(np.abs(means - centres))) / 1e-12)]


def entropy(k):
    """Compare the entropy with the entropy one sweep (8 trials) earlier."""
    X = rows(7, 60, 2)
    h = np.array([0.5, 0.5])
    options = {"bandwidth": jnp.asarray(h), "candidates": 1, "tolerance": 0.02}
    now = renyi(KEY, jnp.asarray(X), 10, max_trials=8 * k, **options)
    value = reference.entropy(X[np.asarray(now.indices)], h)
    if k == 1:
        return [End(int(now.status), np.inf)]
    before = renyi(KEY, jnp.asarray(X), 10, max_trials=8 * (k - 1), **options)
    gained = value - reference.entropy(X[np.asarray(before.indices)], h)
    return [End(int(now.status), gained / 0.02 if before.trials < now.trials else 0.0)]


def plug_in(k):
    """Compare the bandwidth with the reference; a module constant limits the steps."""
    x = rows(8, 40, 1)[:, 0]
    with pytest.MonkeyPatch.context() as patch:
        bandwidth._plug_in.clear_cache()
        patch.setattr(bandwidth, "_ROOT_STEPS", min(k, bandwidth._ROOT_STEPS))
        result = bandwidth.plug_in_bandwidth(jnp.asarray(x)[:, None], method="exact")
    bandwidth._plug_in.clear_cache()
    h, _ = reference.plug_in(x)
    return [End(int(result.status[0]), abs(float(result.h[0]) / h - 1) / 1e-8)]


# A path that reaches its number of atoms has done what was asked for.
PathSolver = functools.partial(Solver, capped=COMPLETED)
SOLVERS = {
    "conjugate_gradients": Solver(cg, 12),
    "conjugate_gradients, beyond precision": Solver(beyond_precision, 20, end=PRECISION_LOST),
    "dual, by conjugate gradients": Solver(dual_by_cg, 32),
    "matching_pursuit": Solver(matching, 32),
    "scdp": PathSolver(conjugate, 5, fast=False),
    "scdpp": PathSolver(probabilistic, 7, fast=False),
    "omp": PathSolver(orthogonal, 5, fast=False),
    "stagewise_omp": Solver(stagewise, 6, fast=False),
    "lasso": Solver(least_angle, 6, fast=False),
    "scdp machine": PathSolver(scdp_machine, 8, fast=False),
    "spsvm, Newton": Solver(newton, 10, fast=False),
    "robust, two outputs": Solver(huber, 40),
    "interior point": Solver(hinge, 12, fast=False),
    "simplex": Solver(nelder_mead, 70),
    "k_means": Solver(lloyd, 8),
    "renyi": Solver(entropy, 12),
    "plug_in_bandwidth": Solver(plug_in, 48),
}


def check_limits(solver, limits):
    """Assert that no part claims to have converged unless its residual is small enough."""
    for k in limits:
        ends = solver.run(k)
        for status, excess in ends:
            assert status in (solver.capped, solver.end, CONVERGED), k
            assert excess <= 1 or status != CONVERGED, (k, excess)
        if k == limits[0]:
            assert solver.capped in {end.status for end in ends}
    assert {solver.end} <= {end.status for end in ends} <= {solver.end, CONVERGED}


@pytest.mark.parametrize("name", [name for name, solver in SOLVERS.items() if solver.fast])
def test_a_solver_that_is_stopped_after_one_step_has_not_converged(name):
    solver = SOLVERS[name]
    check_limits(solver, (1, solver.last))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_that_is_stopped_anywhere_has_not_converged(name):
    solver = SOLVERS[name]
    check_limits(solver, range(1, solver.last + 1))


# Pursuits on degenerate systems: atoms that are zero, repeated or infinite. `GREEDY` and `ANGLES`
# solve `A w = b`; `ANGLES` takes one system at a time. `ON_ROWS` solves `X w = y`.
D = 4
GREEDY = {
    "matching_pursuit": functools.partial(pursuit.matching_pursuit, max_iterations=3000),
    "scdp": pursuit.scdp,
    "scdpp": functools.partial(pursuit.scdpp, key=KEY, subset=3),
}
ANGLES = {"lars": pursuit.lars, "lasso": pursuit.lasso}
ON_ROWS = {
    "omp": pursuit.omp,
    "stagewise_omp": functools.partial(pursuit.stagewise_omp, threshold=1e-3, max_stages=50),
}


class Case(NamedTuple):
    """A system `A w = b`, a system `X w = y`, and the expected status of each pursuit."""

    A: np.ndarray
    b: np.ndarray
    X: np.ndarray
    y: np.ndarray
    ends: dict[str, int]


def case_of_rows(X, y, b=None, **ends):
    """Return a dictionary with its normal equations, or with another right-hand side `b`."""
    return Case(X.T @ X, X.T @ y if b is None else b, X, y, ends)


def expected(normal, angles=None, rows=None):
    """Return the status of each pursuit; `ANGLES` and `ON_ROWS` may differ from `GREEDY`."""
    angles = normal if angles is None else angles
    rows = normal if rows is None else rows
    return {
        **dict.fromkeys(GREEDY, normal),
        **dict.fromkeys(ANGLES, angles),
        **dict.fromkeys(ON_ROWS, rows),
    }


def degenerate():
    """Return the cases; every pursuit may select all atoms."""
    X, y = rows(10, 6, D), rows(11, 6, 1)[:, 0]
    A, b = X.T @ X, X.T @ y
    solved, nothing = expected(CONVERGED), 0 * X
    # The residual of `A w = b` is zero with all atoms, so the status is CONVERGED. It is COMPLETED
    # for `scdpp`, which does not read the residual, and for `X w = y`, whose residual is not zero.
    full = solved | {"scdpp": COMPLETED, "omp": COMPLETED, "stagewise_omp": COMPLETED}
    # `b` is not in the range of `A`. Greedy pursuits drop atoms that are zero to rounding
    # (TRUNCATED). On the path of angles the correlations are inconsistent (PRECISION_LOST). On rows
    # the problem does not exist: least squares always has a solution.
    outside = expected(TRUNCATED, PRECISION_LOST, CONVERGED)
    missing, twice, same = X.copy(), X[:, [0, 0, 1, 1]], X[:, [0, 0, 0, 0]]
    missing[:, 1] = 0
    low_rank = X[:, :2] @ rows(12, 2, D)
    hidden, negative = A.copy(), A - np.diag([0, 2 * A[1, 1], 0, 0])
    hidden[1, 1] = 0  # with a row that is not
    cases = {
        "all is well": case_of_rows(X, y, **full),
        "no matrix": case_of_rows(nothing, y, b, **outside),
        "no target": case_of_rows(X, 0 * y, **solved),
        "nothing at all": case_of_rows(nothing, 0 * y, **solved),
        "an atom of no length": case_of_rows(missing, y, **solved),
        "an atom of no length, wanted": case_of_rows(missing, y, b, **outside),
        "atoms twice": case_of_rows(twice, y, **solved),
        "one atom four times": case_of_rows(same, y, **solved),
        "rank two": case_of_rows(low_rank, y, **solved),
        # Matching pursuit never ends: the equations of repeated atoms contradict each other.
        "rank two, b outside": case_of_rows(
            low_rank, y, b, **(outside | {"matching_pursuit": EXHAUSTED})
        ),
    }
    indefinite = expected(INDEFINITE, rows=COMPLETED)
    for name, matrix in (
        ("an atom of no length with products", hidden),
        ("an eigenvalue below zero", A - 1.5 * np.linalg.eigvalsh(A)[0] * np.eye(D)),
        ("a diagonal below zero", negative),
        ("all below zero", -A),
    ):
        cases[name] = Case(matrix, b, X, y, indefinite)
    # Matching pursuit reads one column at a time, sees no negative curvature, and never ends.
    below = cases["an eigenvalue below zero"]
    cases["an eigenvalue below zero"] = below._replace(
        ends=indefinite | {"matching_pursuit": EXHAUSTED}
    )
    for value in (-np.inf, np.nan):
        for i in range(D):
            wrong, target = b.copy(), y.copy()
            wrong[i] = target[i] = value
            cases[f"{value} in b and y, {i}"] = Case(A, wrong, X, target, expected(NOT_FINITE))
            for j in range(i + 1):
                matrix, dictionary = A.copy(), X.copy()
                matrix[i, j] = matrix[j, i] = dictionary[i, j] = value
                cases[f"{value} in A and X, {i} {j}"] = Case(
                    matrix, b, dictionary, y, expected(NOT_FINITE)
                )
    return cases


CASES = degenerate()


def check_ends(name, statuses):
    """Compare the statuses of a pursuit, in the order of `CASES`, with the expected ones."""
    actual = {case: int(code) for case, code in zip(CASES, statuses, strict=True)}
    assert actual == {case: CASES[case].ends[name] for case in CASES}


def stacked(field, dtype):
    return jnp.asarray(np.stack([getattr(case, field) for case in CASES.values()]), dtype)


@pytest.mark.slow
def test_degenerate_batches_end_as_they_should(dtype):
    A, b, X, y = (stacked(field, dtype) for field in ("A", "b", "X", "y"))
    for name, solve in GREEDY.items():
        check_ends(name, solve(A, b, max_atoms=D).status)
    for name, solve in ON_ROWS.items():
        check_ends(name, solve(X, y, max_atoms=D).status)
    for name, solve in ANGLES.items():
        batched = jax.jit(jax.vmap(lambda A, b, solve=solve: solve(A, b, max_atoms=D).status))
        check_ends(name, batched(A, b))


@pytest.mark.slow
def test_a_path_reports_the_infinite_entries_that_it_reads():
    """A path of two atoms does not read every entry off the diagonal; the others change nothing."""
    X, y = rows(10, 6, D), rows(11, 6, 1)[:, 0]
    A, b = X.T @ X, X.T @ y
    reported = 0
    for name, solve in (GREEDY | ANGLES).items():
        finite = solve(A, b, max_atoms=2)
        assert int(finite.status) == COMPLETED
        for i in range(D):
            for j in range(i + 1):
                matrix = A.copy()
                matrix[i, j] = matrix[j, i] = np.inf
                path = solve(matrix, b, max_atoms=2)
                if int(path.status) == NOT_FINITE:
                    reported += 1
                    continue
                assert int(path.status) == COMPLETED, (name, i, j)
                assert i != j
                np.testing.assert_array_equal(path.coefficients, finite.coefficients)
    assert reported > 5 * D


@pytest.mark.slow
def test_systems_of_one_atom_end_as_they_should():
    x, y = rows(10, 6, 1), rows(11, 6, 1)[:, 0]
    for a, b, normal in ((x.T @ x, x.T @ y, CONVERGED), (0 * x[:1], x.T @ y, TRUNCATED)):
        for name, solve in GREEDY.items():
            options = {"subset": 1} if name == "scdpp" else {}
            end = COMPLETED if name == "scdpp" and normal == CONVERGED else normal
            assert int(solve(a, b, max_atoms=1, **options).status) == end
        for solve in ANGLES.values():
            end = CONVERGED if normal == CONVERGED else PRECISION_LOST
            assert int(solve(a, b, max_atoms=1).status) == end
    for solve in ON_ROWS.values():
        assert int(solve(x, y, max_atoms=1).status) == COMPLETED
        assert int(solve(x, 3 * x[:, 0], max_atoms=1).status) == CONVERGED
        assert int(solve(0 * x, y, max_atoms=1).status) == CONVERGED
