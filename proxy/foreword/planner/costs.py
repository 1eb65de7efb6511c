"""What the engine's work costs in bytes and seconds, fitted from its own log; where that is silent, as measured."""

import itertools
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from foreword._core import snapshot_bytes

MIB: Final = 2**20

_KNOTS: Final = 8
"""Points of a fitted table, at most."""
_MOST_CHECKS: Final = 60
"""Lengths that are left out in turn to measure the error."""


@dataclass(frozen=True, slots=True)
class Costs:
    """``sizes``: (tokens, bytes) of snapshots; none: as measured on Strata. Rates are a second's; 0: at once."""

    sizes: list[tuple[int, int]] = field(default_factory=list)
    prefill_rate: float = 4_300.0
    """Of 64k tokens read in 13.4 s and about 238k in 57 s, nearer to the longer ones, which are the trouble."""
    prefill_floor: float = 0.79
    """Seconds to the first token of a 64k prompt that was reused whole."""
    copy_rate: float = 2_510_827_952 / 0.3737
    """Bytes, from a snapshot of 64,930 tokens parked in 373.7 ms."""
    decode_rate: float = 63.0

    def snapshot_mib(self, tokens: int) -> int:
        """MiB of a snapshot, rounded up."""
        return -(-snapshot_bytes(self.sizes, [tokens])[0] // MIB)


@dataclass(frozen=True, slots=True)
class Fit:
    """How well something was fitted. Errors are shares of the true value; None: too few samples to tell."""

    source: str
    """``log``, or ``default``."""
    samples: int = 0
    mean_error: float | None = None
    max_error: float | None = None


def fit_sizes(samples: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], Fit]:
    """A table of snapshot sizes from (tokens, bytes). The error is that of lengths which the fit has not seen."""
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for length, size in samples:
        by_length[length].append(size)
    points = sorted((length, round(statistics.median(sizes))) for length, sizes in by_length.items())
    if not points:
        return [], Fit("default")
    errors: list[float] = []
    inner = points[1:-1]
    for left_out in inner[:: max(1, len(inner) // _MOST_CHECKS)]:
        table = _table([point for point in points if point != left_out])
        guess = snapshot_bytes(table, [left_out[0]])[0]
        errors.append(abs(guess - left_out[1]) / max(1, left_out[1]))
    mean, most = (statistics.fmean(errors), max(errors)) if errors else (None, None)
    return _table(points), Fit("log", len(samples), mean, most)


def _table(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most so many points: the ends, and between them the means of equal shares."""
    if len(points) <= _KNOTS:
        return points
    inner, groups = points[1:-1], _KNOTS - 2
    cuts = [len(inner) * n // groups for n in range(groups + 1)]
    shares = [inner[start:end] for start, end in itertools.pairwise(cuts)]
    means = [
        (round(statistics.fmean(t for t, _ in share)), round(statistics.fmean(b for _, b in share)))
        for share in shares
    ]
    return [points[0], *means, points[-1]]


def fit_prefill(samples: list[tuple[int, float]]) -> tuple[float, float, Fit]:
    """Tokens a second and seconds that every prompt takes, from (tokens read, seconds) by least squares. The error is
    what all prompts together miss, over all their time."""
    default = Costs()
    unfit = default.prefill_rate, default.prefill_floor, Fit("default")
    read = [float(tokens) for tokens, _ in samples]
    took = [seconds for _, seconds in samples]
    if len(samples) < 3 or max(read) - min(read) < 1_000:
        return unfit
    slope, floor = statistics.linear_regression(read, took)
    if floor < 0:
        # Through nothing: a prompt of no tokens cannot take less than no time.
        slope, floor = statistics.linear_regression(read, took, proportional=True)
    if slope <= 0:
        return unfit
    missed = sum(abs(floor + slope * n - seconds) for n, seconds in zip(read, took, strict=True))
    return 1 / slope, floor, Fit("log", len(samples), missed / sum(took))
