"""overflow-loop: a session that runs into the end of the context window again and again."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from foreword.findings import advice
from foreword.findings.board import Board
from foreword.findings.detector import Case, Detector
from foreword.findings.exchange import Exchange

OVERFLOWS = frozenset({"prompt-too-long", "output-too-long"})
"""Kinds of faults that say: the context window is full."""
RECENT = 12
"""Exchanges of a session that are looked back on."""
LEAST = 3
"""Overflows among them that make a loop. One or two are a client that finds out the window."""
LEAST_WITHOUT_SESSION = 6
"""The same for clients that name no session: several people's overflows come together there."""


@dataclass(slots=True)
class Overflows(Case):
    """One session, or one client that names none."""

    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))
    longest: int | None = None
    """The longest prompt that still went through, in tokens."""


class OverflowLoop(Detector[Overflows]):
    """Counts overflows in each session's latest exchanges."""

    id = "overflow-loop"

    def __init__(self, board: Board, window: Callable[[], int | None]) -> None:
        super().__init__(board, Overflows)
        self._window = window

    def note(self, exchange: Exchange) -> None:
        overflow = exchange.fault in OVERFLOWS
        if not overflow and exchange.verdict is None:
            return
        key = (exchange.client, exchange.session or exchange.model)
        case = self._cases.get(key)
        if case is None and not overflow:
            return
        case = self._case(key, exchange)
        case.recent.append(overflow)
        if not overflow:
            case.longest = max(case.longest or 0, exchange.prompt or 0) or None
            if not any(case.recent):
                self._close(key)
            return
        case.bad(exchange, None)
        overflows = sum(case.recent)
        if case.open or overflows >= (LEAST if exchange.session else LEAST_WITHOUT_SESSION):
            window = self._window()
            evidence = {
                "client": exchange.client,
                "session": exchange.session,
                "entry": exchange.entry,
                "model": exchange.model,
                "overflows": case.count,
                "exchanges": case.requests,
                "window": window,
                "longest_prompt_tokens": case.longest,
                "fault": exchange.fault,
            }
            told = f"{advice.for_window(exchange.client, window)}: it sends more than fits and tries the same again."
            self._open(key, case, "critical" if overflows > RECENT // 2 else "warning", told, evidence)
