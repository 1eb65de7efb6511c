"""vLLM: /version, and /tokenize with messages."""

from collections.abc import Sequence
from typing import ClassVar

from foreword.engines.base import About, Engine, Fetch, Json, Message, get_json, post_json, text_of
from foreword.settings import EngineKind


class Vllm(Engine):
    """vLLM's OpenAI-compatible server."""

    kind: ClassVar[EngineKind] = "vllm"

    async def about(self, fetch: Fetch) -> About:
        answer = await get_json(fetch, "/version")
        return About(text_of(answer.get("version"))) if answer else About()

    async def render(
        self, fetch: Fetch, model: str, messages: Sequence[Message], tools: Sequence[Json]
    ) -> tuple[int, ...] | None:
        question = {"model": model, "messages": messages, **({"tools": tools} if tools else {})}
        answer = await post_json(fetch, "/tokenize", question)
        tokens = answer.get("tokens") if answer else None
        if isinstance(tokens, list) and tokens and all(isinstance(token, int) for token in tokens):
            return tuple(tokens)
        return None
