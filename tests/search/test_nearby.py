"""The search near the best kernel and `C` of a cheaper method."""

from types import SimpleNamespace

import numpy as np
import pytest

from jsparse.search.strategies import Nearby, Profile

LOW, HIGH = np.log([0.1, 0.1]), np.log([10.0, 10.0])


def run(grid, start, C, error, p=2, initial=None, **settings):
    """Run the search on a function of theta and C; return the points that it evaluates."""
    evaluated = []

    def scores(thetas, values):
        assert thetas.shape == (1, p)
        assert values.shape == (1, 1)
        assert values.item() in grid
        evaluated.append((thetas[0], values.item()))
        return np.array([error(thetas[0], values.item())])

    tuning = SimpleNamespace(theta=np.array(start, float), C=C)
    search = Profile().nearby(tuning)
    search = Nearby(start=tuning, **settings) if settings else search
    theta = tuning.theta if initial is None else np.array(initial, float)
    template = SimpleNamespace(size=p, theta=theta, signed=np.arange(p) > 1)
    unused = dict.fromkeys(("problem", "dtype", "key", "deadline", "stops"))
    evaluator = SimpleNamespace(
        grid=np.asarray(grid), template=template, planned=len(search.batch_sizes(p)),
        scores=scores, low=LOW[:p], high=HIGH[:p], best_C=print, slope=print, **unused,
    )  # fmt: skip
    search.run(evaluator)
    assert len({(*theta, C) for theta, C in evaluated}) == len(evaluated)
    return evaluated


@pytest.mark.parametrize("size", [5, 9, 25])
@pytest.mark.parametrize("best", [1e-2, 3.0, 1e6])
def test_it_finds_the_best_C_of_a_grid_with_few_evaluations(size, best):
    grid = np.geomspace(1e-2, 1e6, size)
    for power, steps in ((2, 0.5), (1, 1.0)):  # with a kink the parabola may be wrong by a step
        evaluated = run(grid, [], 30.0, lambda _, C, p=power: abs(np.log(C / best)) ** p, p=0)
        nearest = min(evaluated, key=lambda point: abs(np.log(point[1] / best)))[1]
        outside = max(0.0, np.log(best / grid[-1]), np.log(grid[0] / best))
        assert abs(np.log(nearest / best)) <= outside + steps * np.log(grid[1] / grid[0]) + 1e-9
        assert len(evaluated) <= 3 + size // 2


def test_it_scales_all_leaves_of_the_kernel_together_within_the_bounds():
    start, best = np.array([0.2, -0.4]), 0.75

    def error(theta, C):
        return (theta[0] - start[0] - best) ** 2 + 0.1 * np.log(C) ** 2

    evaluated = run([0.1, 1.0, 10.0], start, 1.0, error)
    for theta, _ in evaluated:
        np.testing.assert_allclose(theta[0] - theta[1], start[0] - start[1])
    theta, C = min(evaluated, key=lambda point: error(*point))
    assert abs(theta[0] - start[0] - best) < np.log(1.65) / 4  # half of the last step
    assert C == 1.0
    assert len(evaluated) <= 12
    for inside in (0.0, 0.3, 0.6):
        edge = run([1.0], HIGH - inside, 1.0, lambda theta, C: -theta[0])
        assert all(np.all(theta <= HIGH) for theta, _ in edge)


def test_it_begins_with_the_initial_kernel_if_the_other_kernel_is_worse():
    def error(theta, _):
        return 1.0 if theta[0] > 1 else abs(theta[0] - 0.5)

    evaluated = run([1.0], HIGH, 1.0, error, initial=[0.4, 0.4])
    np.testing.assert_array_equal([theta for theta, _ in evaluated[:2]], [HIGH, [0.4, 0.4]])
    assert min(error(*point) for point in evaluated) <= 0.1


def test_a_kernel_that_is_nearly_the_initial_one_is_not_evaluated_again():
    def error(theta, _):
        return abs(theta[0])

    start, step = np.array([0.6, 0.6]), np.log(1.65)
    evaluated = run([1.0], start, 1.0, error, initial=start - step - 0.01)
    firsts = np.array([theta[0] for theta, _ in evaluated])
    assert np.abs(np.subtract.outer(firsts, firsts))[~np.eye(len(firsts), dtype=bool)].min() > 0.02
    assert np.abs(firsts).min() <= step / 4


def test_it_goes_to_a_smaller_C_where_errors_cannot_be_trusted():
    grid = np.geomspace(1e-2, 1e6, 9)
    evaluated = run(grid, [], 1e6, lambda _, C: np.inf if C > 50 else 1 / C, p=0)
    assert 10.0 in [pytest.approx(C) for _, C in evaluated]
    assert len(run(grid, [], 1e6, lambda *_: np.inf, p=0)) == 9


def test_it_ends_with_its_budget():
    grid = np.geomspace(1e-2, 1e6, 25)
    evaluated = run(grid, [0.0, 0.0], 1e6, lambda theta, C: C - theta[0], max_evaluations=4)
    assert len(evaluated) == 4
