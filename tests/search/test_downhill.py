"""The walk downhill on a lattice, against an exhaustive search."""

import math

import pytest

from jsparse.search.downhill import Walk

STEPS = [(0, 4), (1, 2), (0, 4), (0, 2), (0, 1), (1, 1)]


def walk(error, begin=(0, 0), steps=STEPS):
    """Return the last point, and the points evaluated, each once."""
    errors = {}

    def remembered(point):
        if point not in errors:
            errors[point] = error(point)
        return errors[point]

    return Walk(remembered).descend(begin, steps), list(errors)


@pytest.mark.parametrize("correlation", [-0.6, 0.6])
def test_along_a_slanted_valley_it_forgets_parabolas_of_other_places(correlation):
    ends = []
    for best in [(3.0, -1.2), (-9.8, 4.1), (1.6, 0.9), (2.4, -0.6), (6.3, 2.2)]:

        def error(point, best=best):
            u, v = (point[0] - best[0]) / 4, (point[1] - best[1]) / 2
            return u * u + v * v + 2 * correlation * u * v

        end, evaluated = walk(error)
        ends.append(error(end))
        assert len(evaluated) <= 16
    assert max(ends) < 0.5  # at a distance of one coarse step the error is 1


@pytest.mark.parametrize("best", [(0, 0), (3.0, -1.2), (-9.8, 4.1), (1.6, 0.9), (2.4, -0.6)])
def test_it_finds_the_least_point_of_a_bowl(best):
    def error(point):
        return float((point[0] - best[0]) ** 2 + 3 * (point[1] - best[1]) ** 2 - 5)

    end, evaluated = walk(error)
    lattice = [(i, j) for i in range(-20, 21) for j in range(-20, 21)]
    assert end == min(lattice, key=error)
    assert len(evaluated) <= 13


def test_at_the_least_point_it_takes_the_coarse_neighbours_only():
    end, evaluated = walk(lambda point: float(point[0] ** 2 + point[1] ** 2))
    assert end == (0, 0)
    assert sorted(evaluated) == [(-4, 0), (0, -2), (0, 0), (0, 2), (4, 0)]


@pytest.mark.parametrize("place", [-4, 4])
@pytest.mark.parametrize("factor", [0.8, 1.0, 1.25])
def test_errors_at_the_coarse_neighbours_may_be_wrong_by_a_fifth(factor, place):
    def error(point):
        return (point[0] - 1.1) ** 2 * (factor if point[0] == place else 1)

    end, evaluated = walk(error, (0,), [(0, 4), (0, 2)])
    assert end == (2,)
    assert (-2,) not in evaluated


@pytest.mark.parametrize("wall", [math.inf, math.nan])
def test_next_to_points_without_an_error_it_tries_both_halves(wall):
    end, evaluated = walk(
        lambda point: wall if point[0] > 2 else -float(point[0]), (0, 0), [(0, 4), (0, 2)]
    )
    assert end == (2, 0)
    assert (-2, 0) in evaluated


def test_without_a_slope_it_stays():
    end, evaluated = walk(lambda point: 1.0)
    assert end == (0, 0)
    assert len(evaluated) == 11  # both neighbours for every length
