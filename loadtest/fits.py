"""Straight lines through measured points, and what may be said of them. Nothing here measures anything."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Line:
    """The line of least squares, and how far the points lie from it."""

    intercept: float
    slope: float
    slope_error: float | None
    """Standard error of the slope; None for fewer than three points, which say nothing of it."""
    residuals: tuple[float, ...]
    """Each point's height above the line, in the order of the points."""
    r_squared: float | None
    """The share of the variance that the line explains; None where all heights are the same."""

    def at(self, x: float) -> float:
        """The line's height at ``x``."""
        return self.intercept + self.slope * x


def fit(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """The line through the points. Raises ValueError for fewer than two different ``xs``."""
    if len(xs) != len(ys) or len(set(xs)) < 2:
        raise ValueError("a line needs two points of different x")
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    intercept = mean_y - slope * mean_x
    residuals = tuple(y - intercept - slope * x for x, y in zip(xs, ys, strict=True))
    unexplained = math.fsum(residual**2 for residual in residuals)
    variance = math.fsum((y - mean_y) ** 2 for y in ys)
    error = math.sqrt(unexplained / (len(xs) - 2) / spread) if len(xs) > 2 else None
    return Line(intercept, slope, error, residuals, 1 - unexplained / variance if variance else None)


@dataclass(frozen=True)
class Bend:
    """A point that lies further from the line of the others than repeating the measurement moves it."""

    x: float
    y: float
    expected: float
    """The height at which the line of the other points passes."""


def bends(
    xs: Sequence[float], ys: Sequence[float], spreads: Sequence[float], *, share: float = 0.15
) -> list[Bend]:
    """The points that need an explanation.

    Each point is held against the line of all the others: a line through all points leans towards the odd one. It is
    a bend when it is off by more than ``share`` of what is expected there, by more than its spread (greatest less
    smallest of its repeats), and by more than a fiftieth of the greatest height, which a plot would not show. Fewer
    than four points have no bends: the line of two others always fits.
    """
    found: list[Bend] = []
    if len(xs) < 4:
        return found
    least = max(abs(y) for y in ys) / 50
    for n, (x, y, spread) in enumerate(zip(xs, ys, spreads, strict=True)):
        others_x, others_y = [*xs[:n], *xs[n + 1 :]], [*ys[:n], *ys[n + 1 :]]
        if len(set(others_x)) < 2:
            continue
        expected = fit(others_x, others_y).at(x)
        if abs(y - expected) > max(share * abs(expected), spread, least):
            found.append(Bend(x, y, expected))
    return found


FLAT_SHARE = 0.02
"""What grows by less than this share of itself in an hour counts as flat."""


@dataclass(frozen=True)
class Flatness:
    """Whether something grows with time."""

    verdict: str
    """flat, grows, shrinks, undecided (the error is too great to tell, or there are too few points)."""
    mean: float
    slope: float | None
    """Per hour."""
    slope_error: float | None

    @property
    def share(self) -> float | None:
        """The slope as a share of the mean."""
        return self.slope / self.mean if self.slope is not None and self.mean else None


def flatness(minutes: Sequence[float], values: Sequence[float], *, share: float = FLAT_SHARE) -> Flatness:
    """Whether ``values`` stay what they are: the slope of their line, two standard errors to each side, against
    ``share`` of their mean an hour. Neighbouring minutes resemble each other, so that the error is a lower bound.
    """
    mean = statistics.fmean(values) if values else 0.0
    if len(set(minutes)) < 3:
        return Flatness("undecided", mean, None, None)
    line = fit([minute / 60 for minute in minutes], values)
    slope, error, bound = line.slope, line.slope_error or 0.0, share * abs(mean)
    if abs(slope) + 2 * error <= bound:
        verdict = "flat"
    elif slope - 2 * error > bound:
        verdict = "grows"
    elif slope + 2 * error < -bound:
        verdict = "shrinks"
    else:
        verdict = "undecided"
    return Flatness(verdict, mean, slope, line.slope_error)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest of the values that at least ``share`` of all do not exceed; None without any value."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]
