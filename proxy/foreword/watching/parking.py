"""What the engine's log says of parked conversations, counted since the watch began."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from foreword.engines.loglines import (
    BudgetCut,
    Event,
    FullReread,
    Parked,
    PromptRead,
    RefusalPause,
    Restored,
    Skipped,
    SkipReason,
    Superseded,
)

RECENT_SECONDS = 3600.0
_RECENT = 1000


@dataclass(frozen=True, slots=True)
class Park:
    """One conversation put away."""

    tokens: int
    snapshot_bytes: int | None
    evicted: int
    """Others that went for it."""


Happening = PromptRead | Park | Skipped | FullReread


class Parking:
    """Counts that only grow, the engine's state as of its last line, and what happened lately."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, Happening]] = deque(maxlen=_RECENT)
        self._evictions_told: int | None = None
        self._evictions_fallen: int | None = None
        self.seen = False
        """Whether the log told of parking at all."""
        self.parked: int | None = None
        self.bytes: int | None = None
        self.snapshot_bytes: int | None = None
        """Of the last conversation put away."""
        self.largest_snapshot_bytes: int | None = None
        """That was put away, or that was too large for it."""
        self.budget_bytes: int | None = None
        """What the engine said that it makes do with."""
        self.budget_wanted_bytes: int | None = None
        self.parks = 0
        self.evictions = 0
        self.superseded = 0
        self.pauses = 0
        self.prompts = 0
        self.full_rereads = 0
        self.restarts = 0
        self.restores: dict[str, int] = {}
        self.skips: dict[SkipReason, int] = {}

    def note(self, event: Event, at: float, *, history: bool) -> None:
        """Takes one event. ``history``: it was written before the watch began, and tells only how things stood."""
        evicted = self._stand(event, history=history)
        if not history:
            self._count(event, at, evicted)

    def _stand(self, event: Event, *, history: bool) -> int:
        """How things stand after ``event``; returns the evictions that it tells of."""
        match event:
            case Parked():
                self.seen = True
                self.snapshot_bytes = event.snapshot_bytes or self.snapshot_bytes
            case Restored():
                self.seen = True
            case Skipped():
                self.seen = True
                self._largest(event.snapshot_bytes)
                return 0
            case BudgetCut():
                self.seen = True
                self.budget_bytes, self.budget_wanted_bytes = event.bytes, event.wanted_bytes
                return 0
            case _:
                return 0
        self.parked = self.parked if event.parked is None else event.parked
        self.bytes = self.bytes if event.bytes is None else event.bytes
        if isinstance(event, Parked):
            self._largest(event.snapshot_bytes)
        return self._evicted(event.evictions, history=history)

    def _count(self, event: Event, at: float, evicted: int) -> None:
        happening: Happening | None = None
        match event:
            case PromptRead():
                self.prompts += 1
                happening = event
            case Parked():
                self.parks += 1
                happening = Park(event.tokens, event.snapshot_bytes, evicted)
            case Restored():
                self.restores[event.how] = self.restores.get(event.how, 0) + 1
            case Skipped():
                self.skips[event.reason] = self.skips.get(event.reason, 0) + 1
                happening = event
            case FullReread():
                self.full_rereads += 1
                happening = event
            case Superseded():
                self.superseded += event.copies
            case RefusalPause():
                self.pauses += 1
            case _:
                pass
        if happening is not None:
            self._recent.append((at, happening))

    def recent(self, now: float, seconds: float = RECENT_SECONDS) -> Iterator[Happening]:
        """What happened in the last ``seconds``, the oldest first."""
        return (happening for at, happening in self._recent if now - at <= seconds)

    def restarted(self) -> None:
        """The engine began anew: whatever was parked is lost, and it counts evictions from 0."""
        self.parked = self.bytes = None
        self._evictions_told, self._evictions_fallen = 0, None

    def _largest(self, snapshot_bytes: int | None) -> None:
        if snapshot_bytes is not None:
            self.largest_snapshot_bytes = max(snapshot_bytes, self.largest_snapshot_bytes or 0)

    def _evicted(self, told: int | None, *, history: bool) -> int:
        """What the engine's own count grew by. A count that falls is a restart, but a line may have been cut in a
        number: only the next one can tell."""
        if told is None:
            return 0
        known = self._evictions_told
        if known is None or history:
            self._evictions_told, self._evictions_fallen = told, None
            return 0
        if told >= known:
            self._evictions_told, self._evictions_fallen = told, None
            grown = told - known
        elif self._evictions_fallen is None:
            self._evictions_fallen = told
            return 0
        else:
            grown = told if told >= self._evictions_fallen else 0
            self.restarts += 1
            self._evictions_told, self._evictions_fallen = told, None
        self.evictions += grown
        return grown
