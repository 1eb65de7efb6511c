"""What every detector of exchanges has: cases, one a subject, that open a finding and close it again."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from foreword.findings.board import Board
from foreword.findings.exchange import Exchange
from foreword.findings.finding import Finding, Severity
from foreword.findings.memory import Memory, Numbers
from foreword.findings.pace import Pace

HEALTHY = 20
"""Healthy exchanges in a row after which a subject counts as well again."""
PATIENCE = 4
"""A subject whose trouble came with pauses is well only after a pause so many times longer than the longest."""
OTHERS_SECONDS = 600.0
"""Conversations that were there before, and never had the trouble, say nothing of those that had it, until those have
been silent for so long."""
AGAIN_SECONDS = 3600.0
"""Trouble that comes back so soon was not over: the pause between counts as one of its pauses, so that a finding does
not open and close with each bout."""
SILENCE_SECONDS = 6 * 3600.0
"""A case of which nothing was heard for so long is closed: its client or its engine is gone."""
SUBJECTS = 64
"""Cases that one detector keeps; the one that was heard of least recently is closed to make room."""
TROUBLED = 4096
"""Conversation lines with the trouble that one case keeps: eight bytes each."""

CONTINUATIONS = frozenset(
    {
        "append-only",
        "granularity",
        "engine-lost",
        "engine-lost-or-template",
        "template",
        "not-reported",
        "below-minimum",
    }
)
"""Verdicts that say: this prompt begins with all of the prompt before it."""

REUSED = frozenset({"append-only", "granularity"})
"""Verdicts that say: and the engine took it from its cache, as far as an engine can."""

Key = tuple[str, ...]


@dataclass(slots=True)
class Case:
    """What was seen of one subject since it last was well."""

    first_seen: float = 0.0
    last_seen: float = 0.0
    heard: float = 0.0
    """When an exchange of the subject was last seen, be it good or bad."""
    count: int = 0
    requests: int = 0
    """Exchanges among which the ``count`` bad ones were found."""
    tokens: int | None = None
    """Tokens lost, as far as they are known, ..."""
    lost_of: Counter[str] = field(default_factory=Counter)
    """... and those of each model, which take their time each."""
    prompt: int = 0
    """Prompt tokens of the bad exchanges."""
    open: bool = False
    shadow: Counter[str] = field(default_factory=Counter)
    lines: Numbers = field(default_factory=lambda: Numbers(TROUBLED))
    """Conversation lines that showed the trouble."""
    newest_line: int = 0
    quiet: int = 0
    longest_quiet: int = 0
    pause: int = 0
    """Healthy exchanges after which the subject was last taken for well, and was not."""

    def hear(self, exchange: Exchange) -> None:
        """An exchange of the subject, good or bad."""
        self.heard = exchange.time
        self.requests += 1

    def bad(self, exchange: Exchange, tokens: int | None) -> None:
        """An exchange that shows the trouble and cost ``tokens``."""
        self.first_seen = self.first_seen if self.count else exchange.time
        self.last_seen = exchange.time
        self.longest_quiet = max(self.longest_quiet, self.quiet) if self.count else self.pause
        self.quiet = 0
        self.count += 1
        self.prompt += exchange.prompt or 0
        if tokens is not None:
            self.tokens = (self.tokens or 0) + tokens
            self.lost_of[exchange.model] += tokens
        self.shadow.update(exchange.shadow)
        if exchange.line is not None and len(self.lines) < TROUBLED:
            self.lines.add(exchange.line)
            self.newest_line = max(self.newest_line, exchange.line)

    def good(self, exchange: Exchange) -> bool:
        """A healthy exchange; says whether the subject is well again."""
        line = exchange.line
        elsewhere = line is not None and line not in self.lines and line <= self.newest_line
        if elsewhere and exchange.time - self.last_seen < OTHERS_SECONDS:
            return False
        self.quiet += 1
        return self.quiet >= max(HEALTHY, PATIENCE * self.longest_quiet)

    def seconds(self, tokens: int | None, pace: Pace) -> float | None:
        """What ``tokens`` of the lost ones took to be read; None unless the pace of each model is known."""
        rates = [(lost, pace.rate(model)) for model, lost in self.lost_of.items() if lost]
        known = [lost * rate for lost, rate in rates if rate is not None]
        if tokens is None or not rates or len(known) < len(rates):
            return None
        return round(tokens * sum(known) / sum(lost for lost, _ in rates), 3)

    def severity(self) -> Severity:
        """By the share of their prompts that the bad exchanges lost."""
        return severity(self.tokens, self.prompt)


def severity(lost: int | None, prompt: int) -> Severity:
    """By the share of ``prompt`` tokens that were lost; a warning where that is not known."""
    if not lost or not prompt:
        return "warning"
    share = lost / prompt
    return "critical" if share >= 0.5 else "warning" if share >= 0.05 else "info"


C = TypeVar("C", bound=Case)


class Detector(ABC, Generic[C]):
    """Reads exchanges one after the other and keeps its findings on the board up to date."""

    id: ClassVar[str]

    pace = Pace()
    """What was learnt of the engine's pace; nothing until `Detectors` puts in the one that it keeps."""

    def __init__(self, board: Board, case: type[C]) -> None:
        self._board = board
        self._cases: Memory[Key, C] = Memory(SUBJECTS, case, self._forgotten)
        self._closed: Memory[Key, list[tuple[float, int]]] = Memory(SUBJECTS, list)
        """When findings were closed, and after how many healthy exchanges."""

    @abstractmethod
    def note(self, exchange: Exchange) -> None:
        """One exchange. They come in the order in which they ended."""

    def expire(self, now: float) -> None:
        """Closes the cases of which nothing was heard any more. ``now`` is the time of the latest record."""
        for key, case in self._cases.items():
            if now - case.heard > SILENCE_SECONDS:
                self._close(key)

    def _case(self, key: Key, exchange: Exchange) -> C:
        """The case of the subject ``key``, which this exchange belongs to."""
        case = self._cases.use(key)
        if not case.requests:
            closed = self._closed.get(key) or ()
            case.pause = max((n for when, n in closed if exchange.time - when < AGAIN_SECONDS), default=0)
        case.hear(exchange)
        return case

    def _known(self, *beginning: str) -> Iterator[tuple[Key, C]]:
        """The cases whose key begins so."""
        for key, case in self._cases.items():
            if key[: len(beginning)] == beginning:
                yield key, case

    def _well(self, key: Key, case: C, exchange: Exchange) -> None:
        """A healthy exchange of a subject that there is a case of."""
        if case.good(exchange):
            self._close(key)

    def _open(
        self,
        key: Key,
        case: C,
        grade: Severity,
        advice: str,
        evidence: Mapping[str, object],
        *,
        count: int | None = None,
        tokens: int | None = None,
    ) -> None:
        """Opens the finding of a case, or renews it. ``count`` and ``tokens`` stand for the case's own if given."""
        case.open = True
        tokens = case.tokens if tokens is None else tokens
        saved = {"shadow": dict(case.shadow)} if case.shadow else {}
        self._board.set(
            Finding(
                self.id,
                " ".join(key),
                grade,
                case.first_seen,
                case.last_seen,
                case.count if count is None else count,
                advice,
                tokens=tokens,
                seconds=case.seconds(tokens, self.pace),
                evidence={**evidence, **saved},
            )
        )

    def _close(self, key: Key) -> None:
        case = self._cases.get(key)
        if case is not None and case.open:
            self._closed.use(key)[:] = [(case.heard, case.quiet)]
        self._cases.drop(key)
        self._board.clear(self.id, " ".join(key))

    def _forgotten(self, key: Key, _: C) -> None:
        self._board.clear(self.id, " ".join(key))
