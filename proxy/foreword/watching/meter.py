"""Keeps an engine's counters as totals that never fall, and as windows of the last hour.

A counter that fell, or a process that began anew, is a restart: what it shows then was counted since. So no window
ever holds a negative number, whatever the engine does.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from foreword.engines.reading import Counter, Gauge, Reading, replica_of

WINDOW_SECONDS = 3600.0
_SAMPLES = 1000
_CLOCK_SLACK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Window:
    """What the counters grew by in some time."""

    seconds: float
    grown: Mapping[Counter, float] = field(default_factory=dict)

    def of(self, word: Counter) -> float | None:
        """The growth; None where the engine does not count it."""
        return self.grown.get(word)

    def share(self, part: Counter, whole: Counter) -> float | None:
        """``part`` over ``whole``, 0..1; None where either is not counted or nothing happened."""
        total, piece = self.grown.get(whole), self.grown.get(part)
        return min(1.0, piece / total) if piece is not None and total else None


@dataclass(frozen=True, slots=True)
class Step:
    """What one reading brought."""

    grown: Mapping[Counter, float]
    restarted: bool


class Meter:
    """Totals since the watch began, and their history."""

    def __init__(self) -> None:
        self._last: dict[Counter, dict[str, float]] = {}
        self._started: dict[str, float] = {}
        self._history: deque[tuple[float, dict[Counter, float]]] = deque(maxlen=_SAMPLES)
        self._newest: float | None = None
        self.totals: dict[Counter, float] = {}
        """Growth since the first reading; a word is there once the engine has told it."""
        self.gauges: Mapping[Gauge, float] = {}
        """As of the last reading."""
        self.raw: dict[Counter, float] = {}
        """The engine's own counts as of the last reading, summed over replicas."""

    def take(self, reading: Reading, now: float) -> Step:
        """Counts one reading; ``now`` is seconds of a clock that never goes back."""
        first = self._newest is None
        renewed = self._renewed(reading)
        grown: dict[Counter, float] = {}
        fallen = False
        for word, told in reading.counters.items():
            known, values = self._last.setdefault(word, {}), told
            if known and not known.keys() & values.keys():
                # Other labels for the same: what counts is what all of them came to.
                known, values = {"": sum(known.values())}, {"": sum(told.values())}
                self._last[word].clear()
            growth = 0.0
            for series, value in values.items():
                before = known.get(series)
                if before is not None and value < before:
                    fallen, before = True, 0.0
                elif replica_of(series) in renewed or "" in renewed:
                    before = 0.0
                if before is not None or not first:
                    growth += value - (before or 0.0)
            self._last[word].update(told)
            grown[word] = growth
            self.totals[word] = self.totals.get(word, 0.0) + growth
        self.raw = {word: sum(values.values()) for word, values in reading.counters.items()}
        self.gauges = reading.gauges
        self._keep(now)
        return Step(grown, fallen or bool(renewed))

    def window(self, seconds: float = WINDOW_SECONDS) -> Window:
        """Growth over the last ``seconds``, or since the watch began if that is less."""
        if self._newest is None or not self._history:
            return Window(0.0)
        after = bisect_right(self._history, self._newest - seconds, key=lambda sample: sample[0])
        begin, before = self._history[max(0, after - 1)]
        return Window(
            self._newest - begin,
            {word: total - before.get(word, 0.0) for word, total in self.totals.items()},
        )

    def _renewed(self, reading: Reading) -> set[str]:
        """The replicas that say that they began anew; an empty name stands for all."""
        renewed = set()
        for replica, started in reading.started.items():
            known = self._started.get(replica)
            if known is not None and started > known + _CLOCK_SLACK_SECONDS:
                renewed.add(replica)
            self._started[replica] = started
        return renewed

    def _keep(self, now: float) -> None:
        self._newest = now
        spacing = WINDOW_SECONDS / _SAMPLES
        if not self._history or now - self._history[-1][0] >= spacing:
            self._history.append((now, dict(self.totals)))
