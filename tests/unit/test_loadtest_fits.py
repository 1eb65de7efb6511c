"""Lines through points, bends, flatness: what the load tests say of their figures."""

import random

import pytest
from loadtest.fits import bends, fit, flatness, percentile


def test_a_straight_line_is_found_exactly() -> None:
    line = fit([1, 2, 5, 10], [5, 7, 13, 23])
    assert [line.intercept, line.slope] == pytest.approx([3, 2])
    assert line.residuals == pytest.approx((0, 0, 0, 0), abs=1e-9)
    assert line.slope_error == pytest.approx(0, abs=1e-9)
    assert line.r_squared == pytest.approx(1)
    assert line.at(7) == pytest.approx(17)


def test_residuals_and_the_slopes_error_are_those_of_least_squares() -> None:
    # By hand: mean (2, 2), slope 0.5, intercept 1; residuals -0.5, 1, -0.5; their squares 1.5, over 1 and over 2.
    line = fit([1, 2, 3], [1, 3, 2])
    assert [line.intercept, line.slope] == pytest.approx([1, 0.5])
    assert line.residuals == pytest.approx((-0.5, 1, -0.5))
    assert line.slope_error == pytest.approx(0.75**0.5)
    assert line.r_squared == pytest.approx(0.25)


def test_what_two_points_cannot_tell_is_absent() -> None:
    line = fit([1, 2], [4, 4])
    assert line.slope_error is None
    assert line.r_squared is None
    with pytest.raises(ValueError, match="two points"):
        fit([3, 3], [1, 2])


def test_a_bend_is_what_the_other_points_do_not_lead_to() -> None:
    xs, ys = [1, 2, 3, 4, 5], [10, 20, 30, 40, 80]
    found = bends(xs, ys, [0] * 5)
    last = next(bend for bend in found if bend.x == 5)
    assert [last.y, last.expected] == pytest.approx([80, 50])
    assert bends(xs, [10, 20, 30, 40, 50], [0] * 5) == []


def test_no_bend_within_the_spread_of_repeats_or_below_what_a_plot_shows() -> None:
    xs = [1, 2, 3, 4, 5]
    assert 5 not in [bend.x for bend in bends(xs, [10, 20, 30, 40, 65], [0, 0, 0, 0, 20])]
    assert bends([0.05, 1, 2, 5], [1.0, 51, 101, 251], [0] * 4) == []
    assert bends([0.05, 1, 2, 5], [2.6, 51, 101, 251], [0] * 4) == []
    assert bends([1, 2, 3], [1, 2, 9], [0] * 3) == []


def noisy(slope_per_hour: float, noise: float, minutes: int = 50) -> tuple[list[float], list[float]]:
    source = random.Random(1)
    times = [float(minute) for minute in range(minutes)]
    return times, [100 + slope_per_hour * minute / 60 + source.gauss(0, noise) for minute in times]


@pytest.mark.parametrize(
    ("slope", "noise", "verdict"),
    [
        (0.0, 0.1, "flat"),
        (1.0, 0.1, "flat"),
        (10.0, 0.5, "grows"),
        (-10.0, 0.5, "shrinks"),
        (1.0, 20.0, "undecided"),
        (0.0, 0.0, "flat"),
    ],
)
def test_flatness_is_judged_with_its_error(slope: float, noise: float, verdict: str) -> None:
    found = flatness(*noisy(slope, noise))
    assert found.verdict == verdict
    assert found.slope is not None
    assert found.slope == pytest.approx(slope, abs=3 * (found.slope_error or 0) + 1e-6)


def test_too_few_minutes_are_undecided() -> None:
    found = flatness([1, 2], [100, 200])
    assert (found.verdict, found.slope, found.share) == ("undecided", None, None)
    assert flatness([], []).verdict == "undecided"


def test_percentiles_are_values_that_were_measured() -> None:
    values = list(range(1, 101))
    random.Random(2).shuffle(values)
    assert [percentile(values, share) for share in (0.5, 0.99, 0.999, 1.0)] == [50, 99, 100, 100]
    assert percentile([7.0], 0.5) == 7
    assert percentile([], 0.5) is None
