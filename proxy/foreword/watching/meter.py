"""Keeps an engine's counters as totals that never fall, and as windows of the last hour.

A counter that fell, or a process that began anew, is a restart: what it shows then was counted since. So no window
ever holds a negative number, whatever the engine does.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from foreword.engines.reading import Counter, Gauge, Reading

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
        self._last: dict[tuple[Counter, str], float] = {}
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
        restarted = self._renewed(reading)
        anew = set(restarted)
        grown: dict[Counter, float] = {}
        for word, values in reading.counters.items():
            grown[word] = 0.0
            for replica, value in values.items():
                known = self._last.get((word, replica))
                if known is not None and value < known:
                    anew.add(replica)
                base = 0.0 if replica in restarted or known is None or value < known else known
                if not (first and known is None):
                    grown[word] += value - base
                self._last[word, replica] = value
            self.totals[word] = self.totals.get(word, 0.0) + grown[word]
        self.raw = {word: sum(values.values()) for word, values in reading.counters.items()}
        self.gauges = reading.gauges
        self._keep(now)
        return Step(grown, bool(anew))

    def window(self, seconds: float = WINDOW_SECONDS) -> Window:
        """Growth over the last ``seconds``, or since the watch began if that is less."""
        if self._newest is None or not self._history:
            return Window(0.0)
        edge = self._newest - seconds
        begin, before = self._history[0]
        for time, totals in self._history:
            if time > edge:
                break
            begin, before = time, totals
        return Window(
            self._newest - begin,
            {word: total - before.get(word, 0.0) for word, total in self.totals.items()},
        )

    def _renewed(self, reading: Reading) -> set[str]:
        """The replicas that say that they began anew."""
        renewed = set()
        for replica, started in reading.started.items():
            known = self._started.get(replica)
            if known is not None and started > known + _CLOCK_SLACK_SECONDS:
                renewed.add(replica)
            self._started[replica] = started
        if "" in renewed:  # one process stands for all
            return renewed | {replica for _, replica in self._last}
        return renewed

    def _keep(self, now: float) -> None:
        self._newest = now
        spacing = WINDOW_SECONDS / _SAMPLES
        if not self._history or now - self._history[-1][0] >= spacing:
            self._history.append((now, dict(self.totals)))
