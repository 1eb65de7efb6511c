"""reassembled-block: a long text at the head that is put together anew instead of being added to."""

import sys
from collections import Counter
from dataclasses import dataclass, field

from foreword.findings import advice
from foreword.findings.board import Board
from foreword.findings.detector import CONTINUATIONS, Case, Detector
from foreword.findings.exchange import Exchange, Verdict
from foreword.findings.line import Line, Lines

LONG_BYTES = 4096
"""A block is long from here on."""
BLOCKS = 64
"""Long blocks of one line whose lengths are remembered, the latest of them."""
SAME_BYTES = 64
"""A rebuilt block has another length: by more than a date or a counter takes, ..."""
SAME_SHARE = 0.01
"""... and by more than this share of it."""
REBUILDS = 3
"""Rebuilds at one place, ..."""
SHARE = 0.1
"""... and their share of the continuations of this client, before they are a habit."""

CLASSES = frozenset({"system", "first-user", "late-system"})


@dataclass(slots=True)
class Rebuilt(Case):
    """One place."""

    bytes: Counter[str] = field(default_factory=Counter)
    """The least and the greatest length of the block."""


class ReassembledBlock(Detector[Rebuilt]):
    """Watches the length of long blocks: what changes with its length is no clock but another text."""

    id = "reassembled-block"

    def __init__(self, board: Board, lines: Lines) -> None:
        super().__init__(board, Rebuilt)
        self._lines = lines

    def note(self, exchange: Exchange) -> None:
        verdict, line = exchange.verdict, exchange.line
        if verdict is None or line is None:
            return
        if verdict.name in CONTINUATIONS and exchange.turn != 1:
            for key, case in self._known(exchange.entry, exchange.client):
                case.hear(exchange)
                self._well(key, case, exchange)
            return
        known = self._lines.use(line)
        place = _rebuilt(exchange, verdict, known)
        _learn(exchange, known)  # only here: what continues has the head that it had
        if place is None:
            return
        path, size = place
        key = (exchange.entry, exchange.client, path)
        case = self._case(key, exchange)
        case.bad(exchange, verdict.lost)
        case.bytes["least"] = min(case.bytes["least"] or size, size)
        case.bytes["most"] = max(case.bytes["most"], size)
        if case.open or (case.count >= REBUILDS and case.count >= SHARE * case.requests):
            evidence = {
                "entry": exchange.entry,
                "client": exchange.client,
                "path": path,
                "class": verdict.kind_of_segment,
                "kind": verdict.kind,
                "rebuilds": case.count,
                "requests": case.requests,
                "bytes": [case.bytes["least"], case.bytes["most"]],
            }
            told = advice.for_rebuilt(exchange.client, path)
            self._open(key, case, case.severity(), told, evidence)


def _rebuilt(exchange: Exchange, verdict: Verdict, line: Line) -> tuple[str, int] | None:
    """Path and length of the block that this exchange brings rebuilt."""
    path = verdict.path
    if verdict.name != "changed" or path is None or verdict.kind_of_segment not in CLASSES:
        return None
    if exchange.asks_anew():
        return None
    if verdict.kind == "reordered":
        # Which of the passages is first to move says nothing: all of them together are the block.
        beginning = path.partition("[")[0] + "["
        size = sum(segment.bytes for segment in exchange.head() if segment.path.startswith(beginning))
        return (f"{beginning}*]", size) if size >= LONG_BYTES else None
    segment = exchange.changed_segment()
    size = segment.bytes if segment is not None else 0
    was = dict(line.blocks).get(path, 0)
    if verdict.kind == "removed":
        return (path, was) if was >= LONG_BYTES else None
    if size < LONG_BYTES or (was and abs(size - was) <= max(SAME_BYTES, SAME_SHARE * was)):
        return None
    return (path, size) if was or verdict.kind == "inserted" else None


def _learn(exchange: Exchange, line: Line) -> None:
    lengths = dict(line.blocks)
    for segment in exchange.head():
        if segment.bytes >= LONG_BYTES and not segment.path.startswith("tools"):
            lengths.pop(segment.path, None)
            lengths[sys.intern(segment.path)] = segment.bytes
    line.blocks = tuple(lengths.items())[-BLOCKS:]
