"""Prometheus metrics: the core counts, this module names and explains.

The core's keys are ``family|label=value,label=value``; families that end in ``_total`` are counters, all others gauges.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from foreword import __version__
from foreword.engines import EngineState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

HELP = {
    "exchanges_total": "Exchanges that ended, by route and the status that the client got.",
    "outcomes_total": "How exchanges ended, by route.",
    "open_exchanges": "Exchanges that run now.",
    "upstream_retries_total": "Requests sent again on a fresh connection because a reused one was dead.",
    "events_total": "Events of streams read from the engine.",
    "unreadable_events_total": "Events of streams that could not be read and were skipped.",
    "prompt_tokens_total": "Prompt tokens as the engine reported them.",
    "cache_queried_tokens_total": "Prompt tokens of those exchanges of which the engine reported cached tokens;"
    " the hit rate is cached_tokens_total over this.",
    "cached_tokens_total": "Prompt tokens that the engine reported as taken from its cache.",
    "cache_not_reported_total": "Exchanges of which the engine reported no cached tokens. They are not zeros.",
    "completion_tokens_total": "Completion tokens as the engine reported them.",
    "rule_total": "What each rule did: applied, dormant (nothing to do) or unknown (a form that it does not know).",
    "log_lines_dropped_total": "Log lines dropped because stderr was not read.",
    "build_info": "The version of Foreword and of Python.",
    "engine_up": "1 when the engine answered the last probe.",
    "engine_info": "The engine's kind and version, as far as it told.",
    "engine_last_seen_seconds": "Seconds since the engine last answered a probe.",
    "engine_scrapes_total": "Readings of the engine's own metrics, by whether they came.",
    "engine_scrape_age_seconds": "Seconds since the last reading of the engine's metrics.",
    "engine_metrics_missing": "Expected families that the engine's metrics lack.",
    "engine_restarts_total": "Restarts of the engine, seen in its counters or its log.",
    "engine_running": "Requests that the engine reads or answers.",
    "engine_waiting": "Requests in the engine's queue.",
    "engine_requests_total": "Requests that the engine ended, whoever sent them.",
    "engine_prompt_tokens_total": "Prompt tokens as the engine counts them, whoever sent them.",
    "engine_cached_tokens_total": "Prompt tokens that the engine took from any cache.",
    "engine_generated_tokens_total": "Tokens that the engine generated.",
    "engine_preemptions_total": "Requests that the engine interrupted for want of room.",
    "engine_block_tokens": "Tokens of a block of the engine's prefix cache.",
    "engine_l1_usage_ratio": "Share of the engine's own KV cache in use.",
    "engine_l1_queried_tokens_total": "Prompt tokens looked up in the engine's own prefix cache.",
    "engine_l1_hit_tokens_total": "Prompt tokens found in the engine's own prefix cache.",
    "engine_l2_queried_tokens_total": "Prompt tokens looked up in the second cache level: what the first had not.",
    "engine_l2_hit_tokens_total": "Prompt tokens found in the second cache level.",
    "engine_l2_stored_bytes_total": "Bytes written to the second cache level.",
    "engine_l2_loaded_bytes_total": "Bytes read from the second cache level; 0 beside growing stores: written only.",
    "engine_l2_stored_blocks_total": "Blocks written to the second cache level, where no bytes are counted.",
    "engine_l2_loaded_blocks_total": "Blocks read from the second cache level, where no bytes are counted.",
    "engine_l2_allocation_failures_total": "Stores to the second cache level that found no room.",
    "engine_l2_stores_skipped_total": "Stores that the second cache level left out by its threshold.",
    "engine_l2_size_bytes": "Size of the second cache level, where the engine tells it.",
    "engine_log_up": "1 when the engine's log can be followed.",
    "engine_log_rotations_total": "How often the engine's log was replaced or cut.",
    "engine_log_lines_total": "Lines of the engine's log: parsed, other (about other things), unknown or too-long.",
    "engine_log_joins_total": "Prompt lines and exchanges: joined, ambiguous, unmatched (no line came in time),"
    " late (a line came after that), unclaimed (a line that no exchange asked for).",
    "engine_full_rereads_total": "Prompts of which the engine's log says that they are read whole again.",
    "parking_parked": "Conversations that are parked.",
    "parking_bytes": "Memory of the parked conversations.",
    "parking_budget_bytes": "Memory that parking may use.",
    "parking_slots": "Conversations that may be parked.",
    "parking_snapshot_bytes": "Size of the conversation parked last.",
    "parking_largest_snapshot_bytes": "Size of the largest conversation that was parked, or was too large to be.",
    "parking_parks_total": "Conversations parked.",
    "parking_restores_total": "Parked conversations that came back, by whether they went on live or from a copy.",
    "parking_evictions_total": "Parked conversations that were pushed out, by the engine's own count.",
    "parking_superseded_total": "Older copies of parked conversations dropped, which costs nothing.",
    "parking_skips_total": "Conversations that were not parked, by the reason.",
    "parking_refusal_pauses_total": "How often the engine stopped asking for memory to park in.",
}

Labels = tuple[tuple[str, str], ...]


def parse_key(key: str) -> tuple[str, Labels]:
    """``exchanges_total|route=messages,status=2xx`` as family and labels."""
    family, _, rest = key.partition("|")
    pairs = (pair.partition("=") for pair in rest.split(",") if pair)
    return family, tuple((name, value) for name, _, value in pairs)


def families(stats: Mapping[str, float]) -> Iterator[Metric]:
    """The metrics of the core's counters, families in alphabetical order."""
    samples = sorted((*parse_key(key), value) for key, value in stats.items())
    for family, group in groupby(samples, key=lambda sample: sample[0]):
        rows = list(group)
        names = [name for name, _ in rows[0][1]]
        metric = _metric(family, names)
        for _, labels, value in rows:
            metric.add_metric([text for _, text in labels], value)
        yield metric


def _metric(family: str, labels: list[str]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if family.endswith("_total") else GaugeMetricFamily
    return kind(f"foreword_{family}", HELP.get(family, family.replace("_", " ")), labels=labels)


class _Collector(Collector):
    def __init__(self, stats: Callable[[], Mapping[str, float]], engine: EngineState) -> None:
        self._stats = stats
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        yield from families(self._stats())
        build = _metric("build_info", ["version", "python"])
        build.add_metric([__version__, platform.python_version()], 1)
        yield build
        engine = self._engine
        up = _metric("engine_up", [])
        up.add_metric([], int(engine.reachable))
        yield up
        info = _metric("engine_info", ["kind", "version"])
        info.add_metric([engine.kind, engine.version or ""], 1)
        yield info
        if (seen := engine.last_seen_seconds()) is not None:
            last = _metric("engine_last_seen_seconds", [])
            last.add_metric([], seen)
            yield last


class Metrics:
    """What /metrics answers."""

    def __init__(self, stats: Callable[[], Mapping[str, float]], engine: EngineState) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Collector(stats, engine))

    def exposition(self) -> bytes:
        """The metrics in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)
