"""What the exchanges say of reuse that L1 could not give: how often a known prefix was gone, and how far away.

The distance of a return is told in bytes that went into the second level in between: exactly what a pool that drops
its oldest must have room for.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from foreword.findings.memory import Memory

_RETURNS = 512
_CONTINUED = frozenset({"append-only", "granularity", "repeat", "engine-lost", "engine-lost-or-template"})
_LOST = frozenset({"engine-lost", "engine-lost-or-template"})


class Return(NamedTuple):
    """A conversation came back, and its prefix was gone."""

    tokens: int
    """Read again that need not have been."""
    distance_bytes: float | None
    """Stored in the second level since the conversation was last here; None where that is not known."""


class Reuse:
    """Returns since `forget`."""

    def __init__(self, stored: Callable[[], float | None], lines: int) -> None:
        """``stored``: the bytes that went into the second level so far. ``lines``: conversation lines whose last
        turn is remembered.
        """
        self._stored = stored
        self._lines = lines
        self._seen_at = self._nothing()
        self._lost: deque[Return] = deque(maxlen=_RETURNS)
        self.continued = 0
        """Exchanges whose prompt continues one that was here before."""

    def note(self, record: Mapping[str, object]) -> None:
        """One final record."""
        verdict, line = record.get("verdict"), record.get("line")
        if not isinstance(verdict, dict) or not isinstance(line, int):
            return
        now, before = self._stored(), self._seen_at.get(line)
        self._seen_at.put(line, now)
        name, lost = verdict.get("name"), verdict.get("lost")
        if name in _CONTINUED:
            self.continued += 1
        if name in _LOST and isinstance(lost, int) and lost > 0:
            self._lost.append(Return(lost, None if now is None or before is None else now - before))

    def forget(self) -> None:
        """Begins anew: what was stored before does not count any more."""
        self._lost.clear()
        self._seen_at = self._nothing()
        self.continued = 0

    def _nothing(self) -> Memory[int, float | None]:
        return Memory(self._lines, lambda: None)

    @property
    def lost(self) -> list[Return]:
        """The returns whose prefix was gone."""
        return list(self._lost)

    def distances(self) -> list[float]:
        """Their distances in bytes, the nearest first, as far as they are known."""
        return sorted(each.distance_bytes for each in self._lost if each.distance_bytes is not None)
