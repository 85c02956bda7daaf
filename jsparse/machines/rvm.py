"""Relevance vector machines (Tipping 2001; Tipping and Faul 2003)."""

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arguments import whole_number
from .._blocks import capacity, map_systems, padded, systems_at_once
from .._numerics import exponents, like, present_rows, times_power
from .._programs import compiled
from .._repr import short_repr
from .._types import CLike, Key, PointTable, ScalarLike
from ..expansion import KernelExpansion
from ..kernels import Kernel
from ..prototypes.choice import choose_rows
from ..solvers import sparse_bayes
from ..solvers.sparse_bayes import MAX_ITERATIONS, TOLERANCE, Likelihood, Tolerance
from .checks import check_choice, columns_in_one_dtype
from .family import Family, diagnostics, single
from .method import (
    Method,
    Points,
    Shape,
    Task,
    TrainingRows,
    check_number,
    iteration_limit,
    option,
    replaced,
    setting,
)
from .rows import Rows
from .stages import Stages, nearby_stages
from .surrogate import fixed_size_surrogate

CANDIDATES = 1000  # default limit of the number of candidates
MAX_PROTOTYPES = 100  # default limit of the number of prototypes
ROUGH_FACTOR = 100  # of the tolerance, where the optimum is out of reach or not needed


class RelevanceFit(NamedTuple):
    """A machine on all candidates, most of whose coefficients are 0.

    If the dtype cannot hold squared targets, `noise` is 0 or infinite. All other fields are sound.
    """

    expansion: KernelExpansion
    history: Float[Array, "*l s"]  # log evidence after 0, 1, .. steps; NaN after the last step
    steps: Int[Array, "*l"]  # number of steps, see `sparse_bayes.solve`
    noise: Float[Array, "*l"]  # variance of the targets about the machine's values; 1 for classes
    status: Int[Array, ""]

    __repr__ = short_repr


class RVM(Method):
    """The relevance vector machine (Tipping 2001; Tipping and Faul 2003).

    Every coefficient has a normal prior with a separate precision, which maximises the evidence.
    Most precisions become infinite, and their prototypes vanish. The evidence replaces `C`.
    Cross-validation tunes only the kernel: first for the fixed-size LS-SVM on some candidates, then
    for the method, near the best kernel found.

    Args:
        max_prototypes: limit of the prototypes of each target or binary problem.
        candidates: number of random rows that may become prototypes; None for all rows, but at most
            1000 rows: every step of the method examines all candidates.
        tolerance: stop when no change raises the log evidence by more than the tolerance, in nats.
            A machine with `max_prototypes` prototypes stops at 100 times the tolerance, because it
            cannot reach the optimum. On a CPU, so do the machines of cross-validation with the
            logistic likelihood, whose values also calibrate probabilities and prediction sets.
        max_iterations: limit of steps of the fit. It is the length of the history, so a new
            value compiles the programs again.
        likelihood: "normal" for real targets, "logistic" for classes -1 and +1; "auto" to choose by
            the task.
    """

    max_prototypes: int = option(
        MAX_PROTOTYPES, "largest number of prototypes", kind="count", metavar="K"
    )
    candidates: int | None = setting(None)
    tolerance: ScalarLike = TOLERANCE
    max_iterations: int = iteration_limit(MAX_ITERATIONS)
    likelihood: Literal["auto", "normal", "logistic"] = setting("auto")

    name: ClassVar[str] = "rvm"
    title: ClassVar[str] = "relevance vector machine"
    usual_folds: ClassVar[int] = 5
    has_C: ClassVar[bool] = False
    max_rows: ClassVar[int | None] = 1000
    info_powers: ClassVar[dict[str, int]] = {"noise": 2}

    @property
    def n_features(self) -> Literal["all"]:
        """See `Method.n_features`."""
        return "all"

    def largest_system(self, n_rows: int) -> int:
        """See `Method.largest_system`: the precision of the coefficients in the model."""
        return self.max_prototypes

    def check(self, task: Task) -> None:
        """See `Method.check`."""
        super().check(task)
        whole_number("max_prototypes", self.max_prototypes, 1, 10**6, "a million")
        whole_number("max_iterations", self.max_iterations, 1, 10**6, "a million")
        check_number("tolerance", self.tolerance, 0.0)
        check_choice("likelihood", self.likelihood, Literal["auto", Likelihood])
        if self.candidates is not None:
            whole_number("candidates", self.candidates, 1, 2**31 - 1, "the largest number")

    def resolve(self, shape: Shape) -> "RVM":
        """See `Method.resolve`."""
        count = min(CANDIDATES if self.candidates is None else self.candidates, shape.n_present)
        limit, likelihood = min(self.max_prototypes, count), self.likelihood
        if likelihood == "auto":
            likelihood = "normal" if shape.classes is None else "logistic"
        return replaced(self, candidates=count, max_prototypes=limit, likelihood=likelihood)

    def stages(self, problem: Any, search: Any) -> Stages:
        """See `Method.stages`: tune the kernel for the fixed-size LS-SVM, then near its kernel."""
        step = max(1, len(problem.points) // self.max_prototypes)  # rows may be in any order
        surrogate = fixed_size_surrogate(problem, self.max_prototypes, step=step)
        return nearby_stages(surrogate, problem, search, refine_kernel=True)

    def choose_points(self, key: Key, kernel: Kernel, rows: TrainingRows) -> Points:
        """Return at most `candidates` distinct rows, as equal rows could not raise the evidence."""
        present = np.flatnonzero(rows.weights)
        first = np.unique(np.asarray(rows.X)[present], axis=0, return_index=True)[1]
        numbers = np.sort(present[first])
        assert self.candidates is not None
        if self.candidates < len(numbers):
            weights = np.zeros_like(rows.weights)
            weights[numbers] = rows.weights[numbers]
            table = rows.X, self.candidates, rows.labels, weights, rows.n
            numbers = np.asarray(choose_rows(key, "uniform", *table)[0])
        # Pad with copies of the last row, so that tables of similar size share programs.
        return rows.points_at(padded(numbers, capacity(len(numbers))))._replace(rows=None)

    def fit(
        self, kernel: Kernel, points: PointTable, C: CLike, rows: Rows, key: Key | None = None
    ) -> Family:
        """See `fit` of this module; `C` has no effect. Unused candidates are dropped."""
        assert points is not None
        return _fit_rows(self, kernel, points, rows, _tolerance(self, rows.X))

    def fits_over_C(
        self, kernel: Kernel, points: PointTable, C: Float[np.ndarray, " s *l"], rows: Rows,
        key: Key | None = None,
    ) -> Iterator[Family]:  # fmt: skip
        """See `Method.fits_over_C`. With the logistic likelihood, fits stop earlier on a CPU.

        They take a third to two thirds of the time of full fits, and held-out errors change by a
        fraction of their standard error. With the normal likelihood the errors would rise by up to
        one standard error, so these fits are full.
        """
        assert points is not None
        is_rough = systems_at_once() == 1 and _likelihood(self, rows) == "logistic"
        tolerance = _tolerance(self, rows.X, ROUGH_FACTOR if is_rough else 1)
        for _ in C:
            yield _fit_rows(self, kernel, points, rows, tolerance)


def fit(
    kernel: Kernel,
    candidates: Float[Array, "m d"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *l"],
    weights: Float[Array, " n"] | Float[Array, "n l"] | None = None,
    *,
    likelihood: Likelihood = "normal",
    max_prototypes: int = MAX_PROTOTYPES,
    tolerance: ScalarLike = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> RelevanceFit:
    """Fit a relevance vector machine (Tipping and Faul 2003), see `sparse_bayes.solve`.

    Args:
        kernel: kernel of two points.
        candidates: points that may be prototypes, shape `m d`.
        X: inputs, shape `n d`, in the units of the candidates.
        y: targets, shape `n`, or `n l` for several machines; -1 and +1 for classes.
        weights: row weights, shape `n`, or `n l` for weights of each target; 0 for an absent row.
        likelihood: "normal" for real targets, "logistic" for classes (static).
        max_prototypes: limit of the prototypes of each machine (static).
        tolerance: see `RVM`.
        max_iterations: limit of steps of the fit; the length of the history (static).

    Returns:
        `RelevanceFit`. Its status is the worst over targets: `CONVERGED`, `COMPLETED` with
        `max_prototypes`, `EXHAUSTED` at `max_iterations`, or `NOT_FINITE`.

    Pure; works under `jit` and `vmap`. Not differentiable, as prototypes are added and removed.

    Raises:
        ValueError: for another likelihood, a limit below 1, shapes that do not fit, or (outside
            `jit`) NaN, infinity, negative weights, or classes that are neither -1 nor +1.
    """
    check_choice("likelihood", likelihood, Likelihood)
    candidates, _, X, y, weights = columns_in_one_dtype(
        "candidates", candidates, 1.0, X, y, weights, classes=likelihood == "logistic"
    )
    max_prototypes = min(whole_number("max_prototypes", max_prototypes, 1), len(candidates))
    method = RVM(max_prototypes, None, tolerance, max_iterations, likelihood)
    method.check("regression")
    return _fit(method, kernel, candidates, X, y, weights, _tolerance(method, X))


@compiled
def _fit(
    method: RVM,
    kernel: Kernel,
    candidates: Float[Array, "m d"],
    X: Float[Array, "n d"],
    y: Float[Array, " n *l"],
    weights: Float[Array, " n"] | Float[Array, "n l"],
    tolerance: Tolerance,
) -> RelevanceFit:
    columns, outputs = y.reshape(len(X), -1), y.shape[1:]
    max_prototypes, likelihood = min(method.max_prototypes, len(candidates)), method.likelihood
    assert likelihood != "auto"
    w = jnp.broadcast_to(weights if weights.ndim == 2 else weights[:, None], columns.shape)
    K = kernel.cross_gram(present_rows(X, jnp.max(w, axis=1)), candidates)
    Phi = jnp.concatenate([K, jnp.ones((len(X), 1), X.dtype)], axis=1)

    def fit_target(problem: tuple[Array, Array]) -> tuple[Array, ...]:
        target, row_weights = problem
        # Scale real targets to size one, so that the dtype holds their squares.
        target = jnp.where(row_weights > 0, target, 0)
        exponent = exponents(target[None]) * int(likelihood == "normal")
        target = times_power(target[None], -exponent)[0]
        last = sparse_bayes.solve(
            Phi, target, row_weights, tolerance, max_functions=max_prototypes + 1,
            max_iterations=method.max_iterations, likelihood=likelihood,
        )  # fmt: skip
        mean = last.posterior.mean
        coefficients = jnp.zeros(Phi.shape[1], X.dtype).at[last.model.columns].add(mean)
        coefficients = times_power(coefficients[None], exponent)[0]
        noise = times_power(1 / last.model.beta[None], 2 * exponent)[0]
        # The evidence is a density in the units of the unscaled targets.
        nats = math.log(2) * jnp.sum(row_weights) * exponent[0].astype(X.dtype)
        return coefficients, last.history - nats, last.steps, noise, last.status

    coefficients, history, steps, noise, status = map_systems(fit_target, (columns.T, w.T))
    beta, b = coefficients[:, :-1].T.reshape(-1, *outputs), coefficients[:, -1].reshape(outputs)
    return RelevanceFit(
        expansion=KernelExpansion(kernel, candidates, beta, b),
        history=history.reshape(*outputs, -1),
        steps=steps.reshape(outputs),
        noise=noise.reshape(outputs),
        status=jnp.max(status),
    )


def _tolerance(method: RVM, X: Float[Array, "n d"], factor: int = 1) -> Tolerance:
    """Return the tolerance of `method` times `factor`, in the dtype of `X`.

    A full machine always has `ROUGH_FACTOR` times the tolerance.
    """
    tolerance = like(method.tolerance, X)
    return Tolerance(factor * tolerance, ROUGH_FACTOR * tolerance)


def _likelihood(method: RVM, rows: Rows) -> Likelihood:
    if method.likelihood == "auto":  # the method was not resolved
        return "normal" if rows.code is None else "logistic"
    return method.likelihood


@compiled
def _fit_rows(
    method: RVM,
    kernel: Kernel,
    points: Float[Array, "m d"],
    rows: Rows,
    tolerance: Tolerance,
) -> Family:
    method = replaced(method, likelihood=_likelihood(method, rows))
    machine = _fit(method, kernel, points, rows.X, rows.targets, rows.problem_weights, tolerance)
    used = machine.expansion.coefficients.reshape(len(points), -1) != 0
    # An expansion has at least one prototype.
    count = jnp.maximum(jnp.sum(jnp.any(used, axis=1), dtype=jnp.int32), 1)
    return single(machine.expansion, machine.status, diagnostics(machine), count=count)
