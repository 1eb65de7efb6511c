"""eviction-storm and checkpoint-collapse: prompts are intact, and the engine has dropped what it would need again."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from foreword.findings import advice
from foreword.findings.board import Board
from foreword.findings.detector import REUSED, Case, Detector
from foreword.findings.exchange import Exchange
from foreword.findings.line import Line, Lines

WINDOW = 64
"""Continuations of all lines of a model that are looked back on."""
LOSSES = 5
"""Losses among them that a storm has at least, ..."""
SHARE = 0.25
"""... and the share of the continuations that they are."""
REPEATS = 4
"""Losses beyond the first of a line: an engine that restarts takes one from each line, and that is no storm."""

LOST = frozenset({"engine-lost", "engine-lost-or-template"})


class Turn(NamedTuple):
    """One continuation, in tokens."""

    line: int
    lost: bool
    cached: int


class Drops:
    """Says of each exchange whether the engine dropped what its prompt would have needed.

    Two detectors ask, and the answer moves what is remembered of the line: so each exchange is looked at once.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._latest: tuple[Exchange, bool | None] | None = None

    def of(self, exchange: Exchange) -> bool | None:
        """None for an exchange that tells nothing of the engine."""
        if self._latest is None or self._latest[0] is not exchange:
            self._latest = exchange, self._look(exchange)
        return self._latest[1]

    def _look(self, exchange: Exchange) -> bool | None:
        verdict, cached, number = exchange.verdict, exchange.cached, exchange.line
        if verdict is None or cached is None or number is None:
            return None
        lost = verdict.name in LOST
        if not lost and verdict.name not in REUSED:
            return None
        line = self._lines.use(number)
        dropped = lost and _dropped(line, verdict.name, cached)
        if lost:
            line.left = cached
        line.reused = cached
        return dropped if dropped or not lost else None


def _dropped(line: Line, verdict: str, cached: int) -> bool:
    """Whether the engine, and no template, must have made this loss.

    A template that rewrites earlier turns leaves a beginning that never gets shorter, or the same one each time.
    """
    again = cached > 0 and cached == line.left
    return verdict == "engine-lost" or (cached < line.reused and not again)


@dataclass(slots=True)
class Losses(Case):
    """One model of one engine."""

    recent: deque[Turn] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lengths: Counter[int] = field(default_factory=Counter)
    """What was left, by length."""


class _EngineLosses(Detector[Losses]):
    """What both have: the continuations of each model, and which of them the engine had dropped."""

    def __init__(self, board: Board, drops: Drops) -> None:
        super().__init__(board, Losses)
        self._drops = drops

    def note(self, exchange: Exchange) -> None:
        verdict, cached, line = exchange.verdict, exchange.cached, exchange.line
        lost = self._drops.of(exchange)
        if lost is None or verdict is None or cached is None or line is None:
            return
        key = (exchange.model,)
        case = self._case(key, exchange)
        case.recent.append(Turn(line, lost, cached))
        if not lost:
            if not case.count or case.good(exchange):
                self._close(key)
            return
        case.bad(exchange, verdict.lost)
        if cached in case.lengths or len(case.lengths) < WINDOW:
            case.lengths[cached] += 1
        self._lost(case, exchange)

    def _lost(self, case: Losses, exchange: Exchange) -> None:
        raise NotImplementedError

    @staticmethod
    def _evidence(case: Losses, exchange: Exchange) -> dict[str, object]:
        lost = [turn for turn in case.recent if turn.lost]
        return {
            "model": exchange.model,
            "engine": exchange.engine,
            "continuations": case.requests,
            "share": round(case.count / case.requests, 4),
            "lines": len({turn.line for turn in lost}),
            "left": [{"tokens": tokens, "requests": n} for tokens, n in case.lengths.most_common(3)],
        }


class EvictionStorm(_EngineLosses):
    """Many conversations, or one again and again, find nothing of what they read a turn before."""

    id = "eviction-storm"

    def _lost(self, case: Losses, exchange: Exchange) -> None:
        if case.open or storm(case.recent):
            told = advice.for_lost(exchange.engine)
            self._open((exchange.model,), case, case.severity(), told, self._evidence(case, exchange))


class CheckpointCollapse(_EngineLosses):
    """What is left of evicted conversations are checkpoints: exact multiples of their step."""

    id = "checkpoint-collapse"

    def _lost(self, case: Losses, exchange: Exchange) -> None:
        step = checkpoint_step(case.lengths, exchange.engine)
        if step is None:
            return
        at = sum(times for tokens, times in case.lengths.items() if tokens and tokens % step == 0)
        evidence = {"step": step, "at_multiples": at, **self._evidence(case, exchange)}
        told = advice.for_checkpoints(exchange.engine, step)
        self._open((exchange.model,), case, case.severity(), told, evidence)


def storm(recent: Iterable[Turn]) -> bool:
    """Whether so many losses are more than a restart, a pause or a cold morning."""
    turns = list(recent)
    lost = [turn.line for turn in turns if turn.lost]
    return len(lost) >= LOSSES and len(lost) >= SHARE * len(turns) and len(lost) - len(set(lost)) >= REPEATS


STEPS = tuple(1024 << n for n in range(6, -1, -1))
"""Steps that engines take checkpoints at, in tokens, widest first: 65,536 down to 1,024."""
CHECKPOINTS = 5
"""Losses that must have ended at multiples of a step, ..."""
MOST = 0.6
"""... and the share of all losses."""


def checkpoint_step(lengths: Counter[int], engine: str) -> int | None:
    """The step of which what was left is an exact multiple.

    A shared system prompt is one length too. So it takes two different multiples, or an engine that is known to take
    checkpoints, before a length is called one.
    """
    total = sum(lengths.values())
    for step in STEPS:
        at = {tokens: times for tokens, times in lengths.items() if tokens and tokens % step == 0}
        hits = sum(at.values())
        if hits >= CHECKPOINTS and hits >= MOST * total and (len(at) > 1 or engine == "strata"):
            return step
    return None
