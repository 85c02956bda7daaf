"""The greedy sparse SVM of Keerthi et al. (2006), spSVM-2, by loops in float64.

The objective is `1/2 beta'K beta + C/2 sum_i w_i max(0, 1 - y_i f(x_i))^2` with
`f(x_i) = K_i beta + b`. Rows of weight 0 are left out.
"""

from typing import NamedTuple

import numpy as np


class Problem(NamedTuple):
    """Kernel values, targets and weights."""

    rows: np.ndarray  # k(x_i, z_j), shape n M
    candidates: np.ndarray  # k(z_i, z_j), shape M M
    y: np.ndarray  # -1 and +1, shape n
    w: np.ndarray  # weights, shape n; 0 is an absent row
    C: float


class Machine(NamedTuple):
    """The machine with the first prototypes of the path."""

    coefficients: np.ndarray  # of the prototypes, in their order of selection
    intercept: float
    objective: float


def objective(problem, support, beta, b):
    short = np.maximum(0, 1 - problem.y * (problem.rows[:, support] @ beta + b))
    penalty = beta @ problem.candidates[np.ix_(support, support)] @ beta
    return penalty / 2 + problem.C / 2 * np.sum(problem.w * short**2)


def line_minimum(problem, outputs, change, curvature, slope):
    """Return the step length `t` that minimises the objective along a direction.

    At some values of `t` a row reaches its margin; between these values the objective is quadratic.
    The minimum lies between the last value with a negative slope and the next one.

    Args:
        problem: the problem.
        outputs: `f(x_i)` at `t = 0`.
        change: derivative of `f(x_i)` with respect to `t`.
        curvature: second derivative of the penalty with respect to `t`.
        slope: first derivative of the penalty at `t = 0`.
    """
    y, w, C = problem.y, problem.w, problem.C

    def derivative(t):
        short = np.maximum(0, 1 - y * (outputs + t * change))
        return curvature * t + slope - C * np.sum(w * y * change * short)

    moving = change != 0
    ends = np.sort((y[moving] - outputs[moving]) / change[moving])
    low = max((t for t in ends if derivative(t) <= 0), default=ends[0] - 1)
    high = min((t for t in ends if derivative(t) > 0), default=ends[-1] + 1)
    # The derivative is linear from `low` to `high`; outside of all ends it is linear too.
    at_low, at_high = derivative(low), derivative(high)
    return low - at_low * (high - low) / (at_high - at_low)


def optimise(problem, support, beta, b, tolerance=1e-13, steps=100):
    """Optimise all coefficients and the intercept by Newton's method with exact line search."""
    y, w, C = problem.y, problem.w, problem.C
    k = len(support)
    K, penalty = problem.rows[:, support], np.zeros((k + 1, k + 1))
    penalty[:k, :k] = problem.candidates[np.ix_(support, support)]
    design = np.column_stack([K, np.ones(len(y))])
    solution = np.append(beta, b)
    for _ in range(steps):
        outputs = design @ solution
        hessian, gradient = penalty.copy(), penalty @ solution
        for i in range(len(y)):
            short = 1 - y[i] * outputs[i]
            if short > 0:
                hessian += C * w[i] * np.outer(design[i], design[i])
                gradient -= C * w[i] * y[i] * short * design[i]
        direction = -np.linalg.solve(hessian, gradient)
        t = line_minimum(
            problem, outputs, design @ direction, direction @ penalty @ direction,
            direction @ penalty @ solution,
        )  # fmt: skip
        solution = solution + t * direction
        if -gradient @ direction <= tolerance * objective(problem, support, *parts(solution)):
            break
    return parts(solution)


def parts(solution):
    return solution[:-1], solution[-1]


def gain_of(problem, support, beta, b, candidate):
    """Return the best coefficient of one more candidate, and how far it lowers the objective."""
    column = problem.rows[:, candidate]
    outputs = problem.rows[:, support] @ beta + b
    slope = problem.candidates[candidate, support] @ beta
    curvature = problem.candidates[candidate, candidate]
    t = line_minimum(problem, outputs, column, curvature, slope)
    before = objective(problem, support, beta, b)
    return t, before - objective(problem, [*support, candidate], np.append(beta, t), b)


def is_dependent(problem, support, candidate):
    """Return whether a candidate's function is a combination of the selected ones, to rounding."""
    square = problem.candidates[candidate, candidate]
    cross = problem.candidates[candidate, support]
    projected = cross @ np.linalg.solve(problem.candidates[np.ix_(support, support)], cross)
    return square - projected <= 1e-12 * square


def path(problem, max_prototypes, subset, growth, priorities):
    """Return the machines of 1, 2, .. prototypes.

    Args:
        problem: the problem; rows of weight 0 are left out.
        max_prototypes: length of the path.
        subset: number of candidates examined in each step.
        growth: factor of the size by which the path grows between two optimisations of all
            coefficients. The first size and the last one are always optimised.
        priorities: a row of `M` numbers for each step; the step examines the candidates with the
            largest numbers.

    Returns:
        The candidates in the order of selection, and a `Machine` of each size.
    """
    present = problem.w > 0
    problem = problem._replace(
        rows=problem.rows[present], y=problem.y[present], w=problem.w[present]
    )
    support, beta, b, machines, optimised = [], np.zeros(0), 0.0, [], 0
    free = list(range(len(problem.candidates)))
    for priority in priorities:
        examined = sorted(free, key=lambda j: -priority[j])[:subset]
        independent = [j for j in examined if not is_dependent(problem, support, j)]
        gains = {j: gain_of(problem, support, beta, b, j) for j in independent}
        free = [j for j in free if j not in examined or j in independent]
        if independent:
            best = max(independent, key=lambda j: gains[j][1])
            support, beta = [*support, best], np.append(beta, gains[best][0])
            free.remove(best)
        ends = len(support) == max_prototypes or not free
        if ends or (independent and len(support) >= growth * optimised):
            beta, b = optimise(problem, support, beta, b)
            optimised = len(support)
        machine = Machine(beta, b, objective(problem, support, beta, b))
        machines = [*machines[: len(support) - 1], machine]
        if ends:
            break
    return support, machines
