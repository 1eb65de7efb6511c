"""What must become of a prompt, from what was planted and what the engine itself counts.

Written without a look at how the sidecar does it: it compares whole lists of tokens, as the engine's /tokenize gives
them, with those of the conversation's own earlier request, and knows which piece was changed because it changed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .conversation import Piece

QUIET = {"first", "append-only", "repeat", "granularity", "below-minimum"}
"""Verdicts that alarm nobody."""

LEAST = 64
"""Tokens that the sidecar's own place of a difference is coarse by: a block of 256 bytes."""


@dataclass
class Sent:
    """One request that was answered."""

    pieces: list[Piece]
    tokens: bytes
    """The engine's, four bytes each."""
    record: dict[str, Any]

    @property
    def count(self) -> int:
        return len(self.tokens) // 4

    @property
    def cached(self) -> int | None:
        found: int | None = self.record["usage"]["cached_tokens"]
        return found

    @property
    def verdict(self) -> dict[str, Any]:
        found: dict[str, Any] = self.record["verdict"]
        return found


def common(one: Sent, other: Sent) -> int:
    """Tokens that both begin with."""
    low, high = 0, min(len(one.tokens), len(other.tokens))
    while low < high:
        middle = (low + high + 1) // 2
        same = one.tokens[low:middle] == other.tokens[low:middle]
        low, high = (middle, high) if same else (low, middle - 1)
    return low // 4


@dataclass
class Oracle:
    """For an engine that keeps blocks of ``block`` tokens. ``mislays``: its template prints what was said earlier at
    another place, or no more, once more is said."""

    block: int
    mislays: bool = False

    def expected(self, before: Sent, now: Sent) -> int:
        """What could have been reused had nothing gone wrong."""
        return self._blocks(min(before.count, now.count - 1))

    def reach(self, before: Sent, now: Sent) -> int:
        """What could have been reused of the prompt as it is."""
        return self._blocks(min(common(before, now), now.count - 1))

    def _blocks(self, tokens: int) -> int:
        return tokens // self.block * self.block

    def tolerance(self, now: Sent) -> float:
        """Of tokens lost where they are an estimate: one block and 2 %."""
        return max(self.block, LEAST) + 0.02 * now.count

    def goes_on(self, before: Sent, now: Sent, *, doubtful: bool = False) -> None:
        """The prompt begins with the earlier one. ``doubtful``: templates may print the earlier part anew."""
        verdict, cached = now.verdict, now.cached
        assert verdict["path"] is None
        if cached is None:
            assert (verdict["name"], verdict["lost"]) == ("not-reported", None)
            return
        expected, reach = self.expected(before, now), self.reach(before, now)
        lost = max(0, expected - cached)
        assert verdict["expected"] == expected
        assert (verdict["lost"], verdict["exact"]) == (lost, True)
        if reach < expected:
            assert self.mislays, "the prompt does not begin with the earlier one"
        if lost == 0:
            names = {"append-only"} if expected else {"below-minimum", "append-only"}
        elif self._small(lost, cached):
            names = {"granularity"}
        elif reach < expected:
            names = {"template", "engine-lost-or-template"}
        else:
            names = {"engine-lost", "engine-lost-or-template"} if doubtful else {"engine-lost"}
        if lost > 0 and self._perhaps_small(lost, cached):
            names.add("granularity")
        assert verdict["name"] in names, names

    def _small(self, lost: int, cached: int) -> bool:
        """Whether a loss is nobody's fault."""
        return lost <= self.block

    def _perhaps_small(self, lost: int, cached: int) -> bool:
        return lost < self.block + 16

    def changed(self, before: Sent, now: Sent, piece: Piece, kind: str) -> None:
        """A piece of the earlier prompt is another one now."""
        verdict, cached = now.verdict, now.cached
        planted = (piece.path, piece.cls, kind)
        expected, reach = self.expected(before, now), self.reach(before, now)
        if self.mislays and reach == expected and cached is not None and verdict["path"] is None:
            # It was not printed, and what the engine reused behind it shows that.
            lost = max(0, expected - cached)
            name = "granularity" if lost else "append-only"
            assert (verdict["name"], verdict["lost"], lost <= self.block) == (name, lost, True)
            return
        assert (verdict["path"], verdict["class"], verdict["kind"]) == planted, planted
        if not self.mislays:
            assert abs(verdict["shared"] - common(before, now)) <= self.tolerance(now)
        if cached is None:
            assert verdict["name"] == "changed"
            assert not verdict["exact"]
            assert abs(verdict["lost"] - (expected - reach)) <= self.tolerance(now)
            return
        assert verdict["expected"] == expected
        assert (verdict["lost"], verdict["exact"]) == (max(0, expected - cached), True)
        names = self._blamed(max(0, reach - cached), expected - reach, now, piece)
        assert verdict["name"] in names, names

    def _blamed(self, by_engine: int, by_change: int, now: Sent, piece: Piece) -> set[str]:
        """Who may be named for a loss: the engine's part of it, and the change's."""
        engine = {"engine-lost", "engine-lost-or-template"}
        if by_engine == 0:
            return {"changed", "engine-lost-or-template"} if self.mislays else {"changed"}
        if self.mislays:  # what was changed may not have been printed at all
            return {"changed", *engine}
        return engine if by_engine > by_change + 2 * self.tolerance(now) else {"changed", *engine}

    def replaced(self, now: Sent, name: str) -> None:
        """Nothing of a conversation that has begun, or next to nothing."""
        verdict = now.verdict
        assert (verdict["name"], verdict["path"], verdict["lost"]) == (name, None, 0)


@dataclass
class Checkpoints(Oracle):
    """For Strata, whose prompts resume at checkpoints: at the end of a long head, at each turn, at each step."""

    block: int = 1
    step: int = 16_384
    root: int = 2_048

    def _small(self, lost: int, cached: int) -> bool:
        return lost < (self.step if cached else self.root)

    def _perhaps_small(self, lost: int, cached: int) -> bool:
        return self._small(lost, cached)

    def goes_on(self, before: Sent, now: Sent, *, doubtful: bool = False) -> None:
        if now.cached == 0 and before.count < self.root:
            assert now.verdict["name"] == "below-minimum"
            return
        # The last checkpoint stands in front of the answer's opening, which here is one token.
        if now.cached == self.expected(before, now) - 1:
            assert (now.verdict["name"], now.verdict["lost"]) == ("append-only", 0)
            return
        super().goes_on(before, now, doubtful=doubtful)

    def _blamed(self, by_engine: int, by_change: int, now: Sent, piece: Piece) -> set[str]:
        # In front of the first turn there may be no checkpoint at all.
        early = piece.cls in ("header", "tools", "system", "first-user")
        slack = self.step if now.cached or early else self.root
        if by_engine < slack - self.tolerance(now):
            return {"changed"}
        return {"changed", "engine-lost", "engine-lost-or-template"}
