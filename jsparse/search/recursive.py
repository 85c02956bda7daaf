"""Recursive feature machines: a metric from the derivatives of the machine that it gave."""

import dataclasses

import numpy as np
from jaxtyping import Float

from .._arguments import real, whole_number
from .._numerics import as_array
from ..machines.gradient_product import agop
from ..validation.validate import Kept
from .metric import MetricSearch, scored_profile
from .strategies import LINE_EVALUATIONS, Evaluator, line_rounds

FACTOR = np.log(1.4)  # step of the common factor of the lengthscales in a round
EVALUATIONS = 5  # upper limit of the evaluations of a round
NEAR = 5  # values of `C` that a round tries around the best, if each takes a separate fit
LEAST = 1e-3  # smallest scale of a column, relative to the largest
PATIENCE = 2  # rounds without a better score after which the search ends


@dataclasses.dataclass(frozen=True, repr=False)
class Recursive(MetricSearch):
    """A search that learns a metric from derivatives of the machine, without gradient descent.

    First a profile varies one factor common to all lengthscales. Then each round fits the machine
    of the best kernel and computes its average gradient outer product over the rows
    (`machines.agop`). A power of the mean squared derivative in a column becomes the column's
    scale: recursive feature machines (Radhakrishnan et al., Science 383, 2024). The common factor
    is tuned again around its best value, and `C` with it. The search ends after `rounds` rounds, or
    when two rounds in a row have not lowered the score; after the first of them the power is
    halved. The kernel of the lowest score is the result, so it never scores worse than the profile.

    Args:
        rounds: upper limit of the rounds.
        exponent: the power of the mean squared derivative that becomes a column's scale; 0.5 is the
            root mean squared derivative of Radhakrishnan et al.
        per_column: if the kernel is given by name, it has one lengthscale for each column. A kernel
            object keeps its leaves.
        rank: if the kernel is given by name, replace the lengthscales by a matrix with this many
            rows, at most the number of columns (`kernels.Projected`). It becomes the matrix square
            root of the outer product, truncated to the rank.
        max_evaluations: limit of evaluations after the profile; by default five for each round.
    """

    rounds: int = 5
    exponent: float = 0.5

    def check(self) -> None:
        """See `Search.check`."""
        super().check()
        whole_number("rounds", self.rounds, 1)
        real("exponent", self.exponent, 0.0, above=True)

    def batch_sizes(self, p: int) -> list[int]:
        """See `Search.batch_sizes`."""
        if p == 0:
            return [1]
        line = [1] if self.start is not None else line_rounds(LINE_EVALUATIONS)
        return [*line, *[1] * (self.max_evaluations or EVALUATIONS * self.rounds)]

    def run(self, run: Evaluator) -> None:
        """See `Search.run`."""
        if run.template.size == 0:
            run.scores(np.zeros((1, 0)))
        else:
            _Rounds(self, run).run()


def lengthscales_of(
    product: Float[np.ndarray, " d"], like: Float[np.ndarray, " d"], exponent: float = 0.5
) -> Float[np.ndarray, " d"]:
    """Return lengthscales whose inverses are proportional to a power of mean squared derivatives.

    Args:
        product: the diagonal of an average gradient outer product: the mean squared derivatives.
        like: lengthscales that set the common factor of the result: both give standardised rows
            the same mean squared distance. For a constant machine the result is `like`.
        exponent: the power.
    """
    scales = np.maximum(np.asarray(product, float), 0) ** exponent
    if not (np.isfinite(scales).all() and np.any(scales)):
        return like
    scales = np.maximum(scales, LEAST * scales.max())
    return np.sqrt(np.square(scales).sum() / np.square(1 / like).sum()) / scales


class _Rounds:
    """The run of a `Recursive` search: a profile, then rounds of a fit, a metric and its scores."""

    def __init__(self, search: Recursive, run: Evaluator) -> None:
        self.search, self.evaluator = search, run
        self.signed = run.template.signed  # elements of theta in a matrix; the others are logs
        self.evaluations_left = search.max_evaluations or EVALUATIONS * search.rounds

    def run(self) -> None:
        """Find the best common factor, then improve the metric round by round."""
        best, theta = self._profile()
        if not (self.signed.any() or len(self.evaluator.template.lengthscales)):
            return  # the kernel has no metric to learn
        exponent, failures, product = self.search.exponent, 0, None
        for _ in range(self.search.rounds):
            C = self.evaluator.best_C(theta)
            if product is None:
                product = self._product(theta, C)
            score, moved = self._rescaled(self._with_metric(theta, product, exponent), C)
            if score < best:
                best, theta, product, failures = score, moved, None, 0
            else:
                exponent, failures = exponent / 2, failures + 1
            if failures == PATIENCE or self.evaluations_left == 0:
                return

    def _profile(self) -> tuple[float, Float[np.ndarray, " p"]]:
        """Return the best score and theta of a profile; of `start` in a local search."""
        if self.search.start is None:
            return scored_profile(self.evaluator)[0]
        theta = np.asarray(self.search.start.theta, float)
        return self.evaluator.scores(theta[None])[0], theta

    def _product(self, theta: Float[np.ndarray, " p"], C: float) -> Float[np.ndarray, " d *d"]:
        """Fit a machine; return its average gradient outer product (its diagonal if no matrix)."""
        run, problem = self.evaluator, self.evaluator.problem
        theta, grid = theta.astype(run.dtype), run.grid.astype(run.dtype)
        kernel, start = run.template.at(theta), None
        # The fit starts from the kernel's evaluation, also in a run that has resumed and so has
        # not kept it: from other sums the product would differ by rounding.
        if problem.method.shares_work_over_C and problem.source.keeps_predictions(
            problem, len(grid)
        ):
            best = Kept(np.int32(np.argmin(np.abs(grid - C))), np.int32(0))
            _, start = problem.source.held_out_values(problem, theta, grid, problem.scoring, best)
        family, _ = problem.source.fit(problem, kernel, as_array(np.asarray(C, run.dtype)), start)
        X, _, weights = problem.source.rows_in_memory()
        return np.asarray(agop(family.expansion, X, weights, diagonal=not self.signed.any()), float)

    def _with_metric(
        self, theta: Float[np.ndarray, " p"], product: Float[np.ndarray, " d *d"], exponent: float
    ) -> Float[np.ndarray, " p"]:
        """Return `theta` with lengthscales or matrix replaced, given the `product` of `_product`.

        The inverse lengthscales or the matrix become a power of `product`, scaled so that the mean
        squared distance of standardised rows is unchanged.
        """
        if not (np.isfinite(product).all() and np.any(product)):
            return theta  # the machine is constant
        theta = theta.copy()
        if self.signed.any():
            matrix = theta[self.signed].reshape(-1, len(product))
            values, vectors = np.linalg.eigh(product)
            powers = np.maximum(values, 0)[::-1][: len(matrix)] ** exponent
            root = powers[:, None] * vectors.T[::-1][: len(matrix)]
            norm = np.sqrt(np.sum(np.square(matrix)) / np.sum(np.square(root)))
            theta[self.signed] = (norm * root).reshape(-1)
            return theta
        columns = self.evaluator.template.lengthscales
        for places in columns.T:  # of each factor of a product of kernels
            theta[places] = np.log(lengthscales_of(product, np.exp(theta[places]), exponent))
        return theta

    def _rescaled(
        self, theta: Float[np.ndarray, " p"], C: float
    ) -> tuple[float, Float[np.ndarray, " p"]]:
        """Return the best score and its theta over a common factor of the lengthscales.

        Every factor is scored with values of the grid near `C`; with all if they cost little.
        """
        run, grid = self.evaluator, np.sort(self.evaluator.grid)
        if run.problem.method.shares_work_over_C:
            near = run.grid  # fewer values would compile another program
        else:
            begin = int(np.argmin(np.abs(np.log(grid / C)))) - NEAR // 2
            begin = int(np.clip(begin, 0, max(0, len(grid) - NEAR)))
            near = grid[begin : begin + NEAR]
        scored: dict[int, tuple[float, np.ndarray]] = {}

        def score(step: int) -> float:
            if step not in scored:
                self.evaluations_left -= 1
                moved = theta + np.where(self.signed, 0, step * FACTOR)
                scored[step] = (run.scores(moved[None], near[None])[0], moved)
            return scored[step][0]

        step, budget = 0, min(EVALUATIONS, self.evaluations_left)
        score(0)
        while len(scored) < budget:
            new = [s for s in (step - 1, step + 1) if s not in scored]
            if not new:
                break
            score(new[0])
            step = min(scored, key=lambda s: scored[s][0])
        return scored[step]
