"""How long an engine takes to read prompts: what turns lost tokens into lost time.

Answers begin later by what had to be read before. Of a model's streamed answers the third that had least to read is
laid against the third that had most: the slope between their medians is seconds a token. No figure is better than one
that noise made, so it takes many answers, thirds that are far apart, and times that hardly overlap.
"""

from collections import deque
from collections.abc import Collection
from statistics import quantiles

from foreword.findings.exchange import Exchange
from foreword.findings.memory import Memory

ANSWERS = 256
"""Answers of a model that are looked back on."""
LEAST = 24
"""Answers that it takes; a third of them each."""
APART = 2048
"""Tokens by which the medians of the outer thirds must differ."""
MODELS = 64


class Pace:
    """What was learnt of each model."""

    def __init__(self) -> None:
        self._answers: Memory[str, deque[tuple[int, float]]] = Memory(MODELS, lambda: deque(maxlen=ANSWERS))

    def note(self, exchange: Exchange) -> None:
        """One exchange. Answers that are no stream began when they were whole: those tell nothing."""
        prompt, cached, began = exchange.prompt, exchange.cached, exchange.streamed_ttft
        if exchange.ok and prompt is not None and cached is not None and began is not None:
            self._answers.use(exchange.model).append((max(0, prompt - cached), began))

    def rate(self, model: str) -> float | None:
        """Seconds that the model takes for a token that it must read; None while that is not known."""
        return slope(self._answers.get(model) or ())


def slope(answers: Collection[tuple[int, float]]) -> float | None:
    """Seconds a token, from (tokens read, seconds to the first byte); None where they do not show it."""
    if len(answers) < LEAST:
        return None
    ordered = sorted(answers)
    third = len(ordered) // 3
    few, many = ordered[:third], ordered[-third:]
    _, few_tokens, _ = quantiles((tokens for tokens, _ in few), n=4, method="inclusive")
    _, many_tokens, _ = quantiles((tokens for tokens, _ in many), n=4, method="inclusive")
    _, quick, quick_end = quantiles((seconds for _, seconds in few), n=4, method="inclusive")
    slow_start, slow, _ = quantiles((seconds for _, seconds in many), n=4, method="inclusive")
    if many_tokens - few_tokens < APART or slow_start <= quick_end:
        return None
    return (slow - quick) / (many_tokens - few_tokens)
