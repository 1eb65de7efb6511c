"""pinned: prompts grow, and what the engine reuses of them stays at one length."""

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from foreword.findings import advice
from foreword.findings.board import Board
from foreword.findings.detector import REUSED, Case, Detector, Key, severity
from foreword.findings.exchange import Exchange, Verdict
from foreword.findings.line import Lines

TURNS = 12
"""Turns of a line that are looked back on."""
LEAST = 4
"""Turns of one line that must have stopped at the same length, and half of those looked back on."""
SHORT_LINES = 8
"""The same over the lines of a client: conversations may be too short to show it alone."""
GROWTH_TOKENS = 64
"""By how much prompts must have grown over a plateau."""
COST = 0.05
"""The share of their prompts that the turns of a plateau must have lost: a shared beginning with a new question behind
it each time loses next to nothing."""
LENGTHS = 256
"""Cached lengths that are counted for one client; those met once go first."""

STOPPING = frozenset({"changed", "template", "engine-lost-or-template"})
"""Verdicts under which a prompt can stop at one length. What an engine evicts ends at no length of its own."""


class Turn(NamedTuple):
    """One turn of a line, in tokens."""

    prompt: int
    cached: int
    lost: int | None
    stopped: bool


_PACKED = struct.Struct("<IIIB")
_STOPPED, _LOST_KNOWN = 1, 2


def remember(turns: bytes, turn: Turn) -> bytes:
    """``turns`` and one more, the latest `TURNS` of them: 13 bytes each."""
    flags = _STOPPED * turn.stopped | _LOST_KNOWN * (turn.lost is not None)
    packed = _PACKED.pack(turn.prompt, turn.cached, turn.lost or 0, flags)
    return turns[-_PACKED.size * (TURNS - 1) :] + packed


def recall(turns: bytes) -> list[Turn]:
    """What was remembered, the latest last."""
    return [
        Turn(prompt, cached, lost if flags & _LOST_KNOWN else None, bool(flags & _STOPPED))
        for prompt, cached, lost, flags in _PACKED.iter_unpack(turns)
    ]


@dataclass(slots=True)
class Length:
    """Exchanges that reused so many tokens."""

    requests: int = 0
    stopped: int = 0
    """Those of them that could have reused more."""
    lost: int = 0
    stopped_prompt: int = 0
    """Prompt tokens of those that could have reused more."""
    least: int = 0
    most: int = 0
    """The shortest and the longest prompt."""

    def add(self, turn: Turn) -> None:
        self.least = min(self.least, turn.prompt) if self.requests else turn.prompt
        self.most = max(self.most, turn.prompt)
        self.requests += 1
        if turn.stopped:
            self.stopped += 1
            self.lost += turn.lost or 0
            self.stopped_prompt += turn.prompt


@dataclass(slots=True)
class Pinned(Case):
    """One entry of one client."""

    lengths: dict[int, Length] = field(default_factory=dict)
    recent: deque[Turn] = field(default_factory=lambda: deque(maxlen=2 * SHORT_LINES))
    """Continuations of all lines that grew."""
    differs: str | None = None
    """The first segment that was not reused, ..."""
    ends: str | None = None
    """... and the last one that was."""
    segment: str | None = None
    kind: str | None = None

    def add(self, turn: Turn) -> None:
        """Counts a turn by what it reused."""
        if turn.cached not in self.lengths and len(self.lengths) >= LENGTHS:
            self.lengths = {length: seen for length, seen in self.lengths.items() if seen.requests > 1}
            if len(self.lengths) >= LENGTHS:
                return
        self.lengths.setdefault(turn.cached, Length()).add(turn)

    def pinned(self) -> int:
        """The length at which most exchanges stopped."""
        return max(self.lengths, key=lambda length: (self.lengths[length].stopped, length))


class PinnedReuse(Detector[Pinned]):
    """Looks for plateaus. A low ratio alone is none: a cold start and a long new text have one too."""

    id = "pinned"

    def __init__(self, board: Board, lines: Lines) -> None:
        super().__init__(board, Pinned)
        self._lines = lines

    def note(self, exchange: Exchange) -> None:
        verdict, prompt, cached = exchange.verdict, exchange.prompt, exchange.cached
        if verdict is None or prompt is None or cached is None:
            return
        key = (exchange.entry, exchange.client)
        case = self._case(key, exchange)
        # A prompt that did not change and found nothing at all was dropped by the engine, not stopped.
        stopped = verdict.name == "changed" or (verdict.name in STOPPING and cached > 0)
        # An engine that knows some orders of the same segments reuses what a new one has in common with any of them:
        # a length here, a length there, and none of them a place.
        stopped = stopped and not exchange.asks_anew() and verdict.kind != "reordered"
        turn = Turn(prompt, cached, verdict.lost, stopped)
        case.add(turn)
        if exchange.line is None or not (stopped or verdict.name in REUSED):
            return
        line = self._lines.use(exchange.line)
        if line.turns and prompt > _PACKED.unpack_from(line.turns, len(line.turns) - _PACKED.size)[0]:
            case.recent.append(turn)
        line.turns = remember(line.turns, turn)
        if stopped:
            self._stopped(key, case, exchange, verdict, recall(line.turns))
        elif not case.count or case.good(exchange):
            # Numbers begin anew: what was healthy is no part of the trouble that may come.
            self._close(key)

    def _stopped(
        self, key: Key, case: Pinned, exchange: Exchange, verdict: Verdict, turns: list[Turn]
    ) -> None:
        cached = turns[-1].cached
        found = plateau(turns, cached) or shared_plateau(case.recent, cached)
        if case.open and not found and cached != case.pinned():
            return  # a change of another kind keeps no plateau alive
        case.bad(exchange, verdict.lost)
        if not (found or case.open):
            return
        if cached == case.pinned():
            case.differs, case.segment, case.kind = verdict.path, verdict.kind_of_segment, verdict.kind
            case.ends = (
                _before(exchange, verdict) if verdict.path else exchange.segment_at(max(0, cached - 1))
            )
        self._tell(key, case)

    def _tell(self, key: Key, case: Pinned) -> None:
        tokens = case.pinned()
        at = case.lengths[tokens]
        usual = sorted(case.lengths.items(), key=lambda item: -item[1].requests)[:3]
        evidence = {
            "entry": key[0],
            "client": key[1],
            "tokens": tokens,
            "requests": case.requests,
            "at_length": at.requests,
            "share": round(at.requests / case.requests, 4),
            "prompt_tokens": [at.least, at.most],
            "segment": case.ends,
            "path": case.differs,
            "class": case.segment,
            "kind": case.kind,
            "lengths": [{"tokens": length, "requests": seen.requests} for length, seen in usual],
        }
        self._open(
            key,
            case,
            severity(at.lost, at.stopped_prompt),
            _advice(key[1], case),
            evidence,
            count=at.requests,
            tokens=at.lost,
        )


def plateau(turns: Iterable[Turn], cached: int) -> bool:
    """Whether a line's reuse stands still at ``cached`` while its prompts grow."""
    turns = list(turns)
    there = [turn for turn in turns if turn.stopped and turn.cached == cached]
    if len(there) < LEAST or 2 * len(there) < len(turns):
        return False
    grew = sum(later.prompt > earlier.prompt for earlier, later in pairwise(there))
    if 4 * grew < 3 * (len(there) - 1) or there[-1].prompt < there[0].prompt + GROWTH_TOKENS:
        return False
    return _costly(there)


def shared_plateau(recent: Iterable[Turn], cached: int) -> bool:
    """The same over many short lines, all of whose turns grew."""
    recent = list(recent)
    there = [turn for turn in recent if turn.stopped and turn.cached == cached]
    if len(there) < SHORT_LINES or 2 * len(there) < len(recent):
        return False
    prompts = [turn.prompt for turn in there]
    return max(prompts) >= min(prompts) + GROWTH_TOKENS and _costly(there)


def _costly(turns: list[Turn]) -> bool:
    return sum(turn.lost or 0 for turn in turns) >= COST * sum(turn.prompt for turn in turns)


def _before(exchange: Exchange, verdict: Verdict) -> str | None:
    """The last segment of the head that stands before the change; None where it changes from the beginning."""
    before = None
    for segment in exchange.head():
        if (segment.path, segment.kind) == (verdict.path, verdict.kind_of_segment):
            break
        before = segment.path
    return before


def _advice(client: str, case: Pinned) -> str:
    if case.differs is None and not case.shadow:
        return (
            "Ask the engine's template (`foreword check`, /tokenize) what it makes of earlier turns: the prompts as"
            " sent are intact, so either the template rewrites them (reasoning dropped, late system messages moved to"
            " the head) or the engine drops all but this length."
        )
    return advice.for_change(client, case.differs or "the prompt", case.segment, case.kind, case.shadow)
