"""llama.cpp's server: /props, and /apply-template for the rendered text."""

from collections.abc import Sequence
from typing import ClassVar

from foreword.engines.base import About, Engine, Fetch, Json, Message, count_of, get_json, post_json, text_of
from foreword.settings import EngineKind


class LlamaCpp(Engine):
    """llama-server."""

    kind: ClassVar[EngineKind] = "llamacpp"

    async def about(self, fetch: Fetch) -> About:
        props = await get_json(fetch, "/props")
        if props is None:
            return About()
        defaults = props.get("default_generation_settings")
        window = count_of(defaults.get("n_ctx")) if isinstance(defaults, dict) else None
        return About(text_of(props.get("build_info")), window)

    async def render(
        self, fetch: Fetch, model: str, messages: Sequence[Message], tools: Sequence[Json]
    ) -> str | None:
        question = {"model": model, "messages": messages, **({"tools": tools} if tools else {})}
        answer = await post_json(fetch, "/apply-template", question)
        return text_of(answer.get("prompt")) if answer else None
