"""Strata: it prints system messages where they stand, and tells nothing of its template."""

from collections.abc import Mapping
from typing import ClassVar

import orjson

from foreword.engines.base import About, Engine, Fetch, count_of, get_json, text_of
from foreword.engines.reading import (
    Counter,
    CounterAt,
    Expected,
    Gauge,
    GaugeAt,
    Reading,
    Table,
    Unreadable,
    read,
)
from foreword.engines.strata_log import StrataLog
from foreword.settings import EngineKind

_MIB = float(1 << 20)

# The members of its JSON, as (section, member).
_COUNTERS: tuple[tuple[Counter, str, str], ...] = (
    ("requests", "totals", "requests"),
    ("prompt_tokens", "totals", "prompt_tokens"),
    ("cached_tokens", "totals", "reused"),
    ("generated_tokens", "totals", "output_tokens"),
    # Each prompt is looked up.
    ("l1_queried_tokens", "totals", "prompt_tokens"),
    ("l1_hit_tokens", "totals", "reused"),
    ("parks", "conversation_cache", "parks"),
    ("restores", "conversation_cache", "restores"),
)
_GAUGES: tuple[tuple[Gauge, str, str, float], ...] = (
    ("running", "live", "running", 1.0),
    ("waiting", "live", "waiting", 1.0),
    ("waiting", "live", "queued", 1.0),
    ("parking_enabled", "conversation_cache", "enabled", 1.0),
    ("parking_budget_bytes", "conversation_cache", "budget_mib", _MIB),
    ("parking_slots", "conversation_cache", "slots", 1.0),
    ("parked", "conversation_cache", "parked", 1.0),
    ("parked_bytes", "conversation_cache", "bytes", 1.0),
)
_EXPECTED = (
    ("live", "waiting"),
    ("totals", "prompt_tokens"),
    ("totals", "reused"),
    ("conversation_cache", "enabled"),
    ("conversation_cache", "parked"),
)

_QUERIES = ("vllm_prefix_cache_queries",)
_HITS = ("vllm_prefix_cache_hits",)
# Its Prometheus form, which some builds answer without being asked for it.
TEXT = Table(
    counters=(
        CounterAt("requests", ("vllm_request_success",)),
        CounterAt("prompt_tokens", ("vllm_prompt_tokens", "vllm_prefix_cache_queries")),
        CounterAt("cached_tokens", _HITS),
        CounterAt("generated_tokens", ("vllm_generation_tokens",)),
        CounterAt("l1_queried_tokens", _QUERIES),
        CounterAt("l1_hit_tokens", _HITS),
    ),
    gauges=(
        GaugeAt("running", ("vllm_num_requests_running",)),
        GaugeAt("waiting", ("vllm_num_requests_waiting",)),
        GaugeAt("parked", ("strata_conversation_cache_parked", "strata_parked")),
        GaugeAt("parked_bytes", ("strata_conversation_cache_bytes", "strata_parked_bytes")),
    ),
    expected=(Expected(_QUERIES, "the hit rate"), Expected(_HITS, "the hit rate")),
)


class Strata(Engine):
    """Strata's Python server."""

    kind: ClassVar[EngineKind] = "strata"
    cached_tokens_advice: ClassVar[str] = "set FOREWORD_ENGINE_LOG: the log tells what was reused"
    late_system: ClassVar[str | None] = "system"

    async def about(self, fetch: Fetch) -> About:
        health = await get_json(fetch, "/health")
        return (
            About(text_of(health.get("version")), count_of(health.get("max_context"))) if health else About()
        )

    metrics_path: ClassVar[str] = "/metrics"

    def read_metrics(self, body: bytes) -> Reading:
        if not body.lstrip().startswith(b"{"):
            return read(TEXT, body)
        try:
            told = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise Unreadable(f"its JSON cannot be read: {error}") from error
        gauges: dict[Gauge, float] = {}
        for word, section, member, scale in _GAUGES:
            if (value := _number(told, section, member)) is not None:
                gauges.setdefault(word, value * scale)
        return Reading(
            counters={
                word: {"|": value}
                for word, section, member in _COUNTERS
                if (value := _number(told, section, member)) is not None
            },
            gauges=gauges,
            missing=tuple(
                f"{section}.{member}"
                for section, member in _EXPECTED
                if _number(told, section, member) is None
            ),
        )

    def log_reader(self) -> StrataLog:
        return StrataLog()


def _number(told: Mapping[str, object], section: str, member: str) -> float | None:
    """A member that is a number or a switch, and not negative."""
    part = told.get(section)
    value = part.get(member) if isinstance(part, dict) else None
    return float(value) if isinstance(value, (bool, int, float)) and value >= 0 else None
