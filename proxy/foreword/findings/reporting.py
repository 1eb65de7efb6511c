"""usage-not-reported: an engine that never says how much of a prompt came from its cache."""

from dataclasses import dataclass

from foreword.findings import advice
from foreword.findings.board import Board
from foreword.findings.detector import Case, Detector
from foreword.findings.exchange import Exchange

LEAST = 6
"""Exchanges without a figure, one after the other, and ..."""
CONTINUED = 4
"""... those of them that continued a conversation: some engines leave the figure out where it would be 0."""
LONG_TOKENS = 256
"""Prompts that are long enough for a cache to hold something of them: the largest block in common use."""


@dataclass(slots=True)
class Silent(Case):
    """One entry of one engine."""

    continued: int = 0


class UsageNotReported(Detector[Silent]):
    """One figure, be it 0, is enough to know that the engine reports."""

    id = "usage-not-reported"

    def __init__(self, board: Board) -> None:
        super().__init__(board, Silent)

    def note(self, exchange: Exchange) -> None:
        if exchange.verdict is None or not exchange.ok:
            return
        key = (exchange.engine, exchange.entry)
        if exchange.cached is not None:
            self._close(key)
            return
        case = self._case(key, exchange)
        case.bad(exchange, None)
        if (exchange.turn or 1) > 1 and (exchange.prompt is None or exchange.prompt >= LONG_TOKENS):
            case.continued += 1
        if case.count >= LEAST and case.continued >= CONTINUED:
            evidence = {
                "engine": exchange.engine,
                "entry": exchange.entry,
                "model": exchange.model,
                "requests": case.count,
                "continued": case.continued,
                "prompt_tokens_reported": exchange.prompt is not None,
            }
            self._open(key, case, "warning", advice.for_reporting(exchange.engine), evidence)
