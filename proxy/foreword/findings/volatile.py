"""volatile-segment: a part of the prompt that changes on most requests of a conversation."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from foreword.findings import advice
from foreword.findings.board import Board
from foreword.findings.detector import CONTINUATIONS, SUBJECTS, Case, Detector, Key
from foreword.findings.exchange import Exchange, Verdict
from foreword.findings.line import Lines
from foreword.findings.memory import Numbers

TURNS = 8
"""Continuations of a line that are looked back on."""
LEAST = 4
"""Changes at one place that a line must have shown among them, and more than half of them. Lines too short for that
count together: `TURNS` changes, and more than half of what their client continued."""
COST = 0.02
"""The share of their prompts that the changes must have cost, where that is known; less is nobody's trouble."""
DIGESTS = 4096
"""Different texts of one place that are told apart; more count as so many."""

_HEAD = frozenset({"header", "system", "first-user"})


class Place(NamedTuple):
    """Where prompts of one client begin to differ. Paths whose number moves with the conversation are one place."""

    entry: str
    client: str
    path: str

    @classmethod
    def of(cls, exchange: Exchange, verdict: Verdict) -> "Place":
        path = verdict.path or ""
        if verdict.kind_of_segment == "tools":
            path = re.sub(r"^(\w+)\[\d+\].*", r"\1[*]", path)
        elif verdict.kind_of_segment not in _HEAD:
            path = re.sub(r"^(\w+)\[\d+\]", r"\1[*]", path)
        return _place(exchange.entry, exchange.client, path)


@lru_cache(maxsize=SUBJECTS)
def _place(entry: str, client: str, path: str) -> Place:
    """One object a place, however many lines remember it."""
    return Place(entry, client, path)


@dataclass(slots=True)
class Volatile(Case):
    """One place."""

    paths: Counter[str] = field(default_factory=Counter)
    digests: Numbers = field(default_factory=lambda: Numbers(DIGESTS))
    """Hashes of the digests."""


class VolatileSegment(Detector[Volatile]):
    """Counts where the prompts of each line first differ from the prompt before."""

    id = "volatile-segment"

    def __init__(self, board: Board, lines: Lines) -> None:
        super().__init__(board, Volatile)
        self._lines = lines

    def note(self, exchange: Exchange) -> None:
        verdict, line = exchange.verdict, exchange.line
        if verdict is None or line is None or exchange.asks_anew():
            return
        changed = verdict.path is not None
        if not changed and (verdict.name not in CONTINUATIONS or exchange.turn == 1):
            return
        place = Place.of(exchange, verdict) if changed else None
        known = self._lines.use(line)
        known.places = turns = (*known.places[1 - TURNS :], place)
        for key, case in self._known(exchange.entry, exchange.client):
            if key != place and self._stood(exchange, verdict, case):
                case.hear(exchange)
                self._well(key, case, exchange)
        if place is None:
            return
        case = self._case(place, exchange)
        # What an engine lost beyond that is not this segment's.
        case.bad(exchange, verdict.lost if verdict.name == "changed" else None)
        path = verdict.path or ""
        if path in case.paths or len(case.paths) < TURNS:
            case.paths[path] += 1
        segment = exchange.changed_segment()
        if segment is not None:
            case.digests.add(hash(segment.digest) & (2**64 - 1))
        if case.tokens is not None and case.tokens < COST * case.prompt:
            return
        if case.open or habit(turns, place) or (case.count >= TURNS and 2 * case.count > case.requests):
            self._tell(place, case, verdict, segment.bytes if segment else None)

    def _tell(self, place: Place, case: Volatile, verdict: Verdict, size: int | None) -> None:
        usual, times = case.paths.most_common(1)[0]
        path = usual if 2 * times > case.count else place.path
        evidence = {
            "entry": place.entry,
            "client": place.client,
            "path": path,
            "class": verdict.kind_of_segment,
            "kind": verdict.kind,
            "requests": case.requests,
            "changed": case.count,
            "distinct": len(case.digests) or None,
            "lines": len(case.lines),
            "bytes": size,
        }
        told = advice.for_change(place.client, path, verdict.kind_of_segment, verdict.kind, case.shadow)
        self._open(place, case, case.severity(), told, evidence)

    @staticmethod
    def _stood(exchange: Exchange, verdict: Verdict, case: Volatile) -> bool:
        """Whether the place of ``case`` is known to be as it was: a difference hides all that comes behind it."""
        if verdict.path is None:
            return True
        for segment in exchange.head():
            if segment.path == verdict.path:
                return False
            if segment.path in case.paths:
                return True
        return False


def habit(turns: Sequence[Key | None], place: Place) -> bool:
    """Whether one line's prompts begin to differ at ``place`` most of the time."""
    times = turns.count(place)
    return times >= LEAST and 2 * times > len(turns)
