"""SGLang: /get_server_info."""

from typing import ClassVar

from foreword.engines.base import About, Engine, Fetch, count_of, get_json, text_of
from foreword.settings import EngineKind


class Sglang(Engine):
    """SGLang's server; its OpenAI endpoints do not tell the rendered prompt."""

    kind: ClassVar[EngineKind] = "sglang"

    async def about(self, fetch: Fetch) -> About:
        info = await get_json(fetch, "/get_server_info")
        return About(text_of(info.get("version")), count_of(info.get("context_length"))) if info else About()
