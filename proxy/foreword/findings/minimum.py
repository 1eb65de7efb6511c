"""below-minimum: a client whose prompts are shorter than the least that the engine keeps."""

from collections import deque
from dataclasses import dataclass, field

from foreword.findings.board import Board
from foreword.findings.detector import Case, Detector
from foreword.findings.exchange import Exchange

RECENT = 32
"""Exchanges of a client that are looked back on."""
LEAST = 20
"""Those below the minimum among them, and four fifths."""
WORTH_TOKENS = 256
"""Their mean length: shorter ones are read again faster than anybody could notice."""


@dataclass(slots=True)
class Short(Case):
    """One entry of one client."""

    recent: deque[int | None] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Prompt tokens of those below the minimum, None for the others."""


class BelowMinimum(Detector[Short]):
    """Nothing is wrong with such prompts; but no prefix cache will ever help them."""

    id = "below-minimum"

    def __init__(self, board: Board) -> None:
        super().__init__(board, Short)

    def note(self, exchange: Exchange) -> None:
        if exchange.verdict is None or exchange.prompt is None:
            return
        below = exchange.verdict.name == "below-minimum"
        key = (exchange.entry, exchange.client)
        if not below and self._cases.get(key) is None:
            return
        case = self._case(key, exchange)
        case.recent.append(exchange.prompt if below else None)
        if not below:
            self._well(key, case, exchange)
            return
        case.bad(exchange, exchange.verdict.lost)
        short = [tokens for tokens in case.recent if tokens is not None]
        usual = len(short) >= LEAST and 5 * len(short) >= 4 * len(case.recent)
        if case.open or (usual and sum(short) >= WORTH_TOKENS * len(short)):
            evidence = {
                "entry": exchange.entry,
                "client": exchange.client,
                "engine": exchange.engine,
                "requests": case.requests,
                "below": case.count,
                "prompt_tokens_mean": round(sum(short) / len(short)),
                "prompt_tokens_most": max(short),
            }
            self._open(key, case, "info", _advice(exchange.engine), evidence)


def _advice(engine: str) -> str:
    knob = {
        "strata": "lower --prompt-cache-root and --prompt-cache-every",
        "vllm": "lower --block-size",
    }.get(engine, "lower the engine's block or checkpoint step")
    return (
        f"If these requests matter, {knob} or put their shared part first and make it longer than that step."
    )
