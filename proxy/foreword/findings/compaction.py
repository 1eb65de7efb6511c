"""early-compaction: a client throws its history away far below the context window."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from foreword.findings import advice
from foreword.findings.board import Board
from foreword.findings.detector import Case, Detector
from foreword.findings.exchange import Exchange
from foreword.findings.line import Lines
from foreword.findings.memory import Memory
from foreword.findings.overflow import OVERFLOWS

RESERVE_TOKENS = 33_000
"""What Claude Code keeps free below its window when it compacts: the widest reserve of the agents measured."""
EARLY = 0.6
"""Below this share of what is left then, it is early."""
ALIKE = ((2, 0.1), (3, 0.3))
"""So many compactions that lie so near to each other (as a share of the highest) are the client's own threshold. One
alone, or some at lengths of any kind, are a person's wish."""


@dataclass(slots=True)
class Compactions(Case):
    """One model as one client uses it."""

    peaks: deque[int] = field(default_factory=lambda: deque(maxlen=4))
    """Prompt tokens before the latest compactions, early ones and others."""


class EarlyCompaction(Detector[Compactions]):
    """Compares the longest prompt before each compaction with the engine's window; without that it is silent."""

    id = "early-compaction"

    def __init__(self, board: Board, window: Callable[[], int | None], lines: Lines, sessions: int) -> None:
        super().__init__(board, Compactions)
        self._window = window
        self._lines = lines
        self._overflowed: Memory[str, bool] = Memory(sessions, lambda: True)
        """Sessions whose context overflowed since: they had to compact."""

    def note(self, exchange: Exchange) -> None:
        if exchange.fault in OVERFLOWS and exchange.session:
            self._overflowed.use(exchange.session)
        verdict, line, prompt = exchange.verdict, exchange.line, exchange.prompt
        if verdict is None or line is None or prompt is None:
            return
        known = self._lines.use(line)
        if verdict.name != "compacted":
            known.peak = max(prompt, known.peak)
            return
        peak, known.peak = known.peak, prompt
        forced = exchange.session is not None and self._overflowed.get(exchange.session)
        self._overflowed.drop(exchange.session or "")
        window = self._window()
        if window is None or not peak or forced:
            return
        self._compacted(exchange, peak, window)

    def _compacted(self, exchange: Exchange, peak: int, window: int) -> None:
        key = (exchange.client, exchange.model)
        case = self._case(key, exchange)
        case.peaks.append(peak)
        if peak > EARLY * (window - RESERVE_TOKENS):
            if case.count:
                # One at its proper place shows that the client knows the window now.
                self._close(key)
            return
        case.bad(exchange, exchange.verdict.lost if exchange.verdict else None)
        if case.open or threshold(list(case.peaks)):
            evidence = {
                "client": exchange.client,
                "model": exchange.model,
                "window": window,
                "compacted_at": list(case.peaks),
                "share": round(max(case.peaks) / window, 4),
            }
            told = (
                f"{advice.for_window(exchange.client, window)} and keep FOREWORD_USAGE=net: the client compacts at"
                f" {max(case.peaks):,} of {window:,} tokens, and each compaction costs the whole prefix."
            )
            self._open(key, case, "warning", told, evidence)


def threshold(peaks: list[int]) -> bool:
    """Whether the latest compactions lie so near to each other that a threshold made them."""
    for times, spread in ALIKE:
        latest = peaks[-times:]
        if len(latest) == times and max(latest) - min(latest) <= spread * max(latest):
            return True
    return False
