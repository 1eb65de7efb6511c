"""Strata: it prints system messages where they stand, and tells nothing of its template."""

from typing import ClassVar

from foreword.engines.base import About, Engine, Fetch, count_of, get_json, text_of
from foreword.settings import EngineKind


class Strata(Engine):
    """Strata's Python server."""

    kind: ClassVar[EngineKind] = "strata"
    late_system: ClassVar[str | None] = "system"

    async def about(self, fetch: Fetch) -> About:
        health = await get_json(fetch, "/health")
        return (
            About(text_of(health.get("version")), count_of(health.get("max_context"))) if health else About()
        )
