"""Prometheus metrics: what the core counts, what exchange records say, and what is open on the board.

The core's keys are ``family|label=value,label=value``; families that end in ``_total`` are counters, all others gauges.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from foreword import __version__
from foreword.engines import EngineState
from foreword.findings import IDS, Board
from foreword.findings.exchange import Exchange

# A gauge beside each counter, for the time at which it began, would double the series and tell nothing new.
disable_created_metrics()  # type: ignore[no-untyped-call]

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
    "prefix_queried_tokens_total": "Prompt tokens of exchanges of which cached tokens are known, by who sent them;"
    " the hit rate is prefix_cached_tokens_total over this.",
    "prefix_cached_tokens_total": "Prompt tokens taken from the engine's cache, by who sent them.",
    "prefix_not_reported_total": "Exchanges of which no cached tokens are known, by who sent them. They are not zeros.",
    "cached_length_tokens": "Prompt tokens that an exchange found in the cache. A pinned length stands out.",
    "prepare_seconds": "Time to read, mend, translate and hash a request, off the event loop.",
    "first_divergence_tokens": "Prompt tokens before the first change, of exchanges whose prompt changed.",
    "verdicts_total": "Exchanges by verdict, and by the class of the segment that changed.",
    "wasted_tokens_total": "Prompt tokens read again that need not have been, by verdict.",
    "shadow_saved_tokens_total": "Prompt tokens that a rule would have saved, were it on.",
    "open_findings": "Findings that are open now, by their id.",
    "diagnosis_failures_total": "Records that a part of the diagnosis failed on. No request is harmed by it.",
    "journal_lines": "Conversation lines that the prefix journal remembers.",
    "journal_bytes": "Memory of the prefix journal.",
    "journal_forgotten_total": "Conversation lines that the prefix journal forgot to stay within its bounds.",
    "ledger_records_total": "Records written into the ledger.",
    "ledger_dropped_total": "Records that the ledger dropped: the disk refused them for too long, or one is over-long.",
    "ledger_failures_total": "Times that the ledger's disk refused to be written.",
    "clickhouse_rows_total": "Records that ClickHouse has taken.",
    "clickhouse_dropped_total": "Records dropped because ClickHouse took none for too long.",
    "clickhouse_failures_total": "Inserts that ClickHouse did not take; they are sent again.",
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
    "engine_log_files_lost_total": "Files of the engine's log that were rotated unread and cannot be read any more.",
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


VERDICTS = (
    "first",
    "repeat",
    "append-only",
    "changed",
    "compacted",
    "engine-lost",
    "granularity",
    "below-minimum",
    "template",
    "engine-lost-or-template",
    "parameters",
    "not-reported",
)
CLASSES = ("header", "tools", "system", "late-system", "first-user", "history", "last-turn", "image")
"""The classes of segments, as labels of the verdict ``changed``; others have none."""
SHADOWED = ("billing-header", "late-system")
"""The rules that can be off."""

ENTRIES, CLIENTS, MODELS, RULES = 16, 16, 16, 16
"""Values of a label that are told apart; what comes later counts as ``other``."""

LENGTHS = (0, 256, *(1024 << n for n in range(11)))
"""Buckets of lengths, in tokens: to 1,048,576."""

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
"""Buckets of what a request's preparation takes: from a small body's to many large ones at once."""


class Bounded:
    """The values of one label: the first so many that come, and ``other`` for the rest."""

    def __init__(self, limit: int, known: Iterable[str] = ()) -> None:
        self._limit = limit
        self._known = set(known)

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        if len(self._known) >= self._limit:
            return "other"
        self._known.add(value)
        return value


class Recorder:
    """Counts what final exchange records say."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(family: str, *labels: str) -> Counter:
            return Counter(f"foreword_{family}", HELP[family], labels, registry=registry)

        def histogram(family: str, *labels: str, buckets: tuple[float, ...] = LENGTHS) -> Histogram:
            return Histogram(f"foreword_{family}", HELP[family], labels, registry=registry, buckets=buckets)

        self._queried = counter("prefix_queried_tokens_total", "entry", "client", "model")
        self._cached = counter("prefix_cached_tokens_total", "entry", "client", "model")
        self._not_reported = counter("prefix_not_reported_total", "entry", "client", "model")
        self._length = histogram("cached_length_tokens", "entry", "client")
        self._divergence = histogram("first_divergence_tokens", "entry", "client")
        self._prepare = histogram("prepare_seconds", "entry", buckets=SECONDS)
        self._verdicts = counter("verdicts_total", "verdict", "class")
        self._wasted = counter("wasted_tokens_total", "verdict")
        self._shadow = counter("shadow_saved_tokens_total", "rule")
        self._entry, self._client, self._model = Bounded(ENTRIES), Bounded(CLIENTS), Bounded(MODELS)
        self._name = Bounded(len(VERDICTS), VERDICTS)
        self._class = Bounded(len(CLASSES) + 1, ("", *CLASSES))
        self._rule = Bounded(RULES, SHADOWED)
        # A rate over a counter that appears misses its first step: those whose labels are known begin at 0.
        for verdict in VERDICTS:
            self._wasted.labels(verdict)
            for name in CLASSES if verdict == "changed" else ("",):
                self._verdicts.labels(verdict, name)
        for rule in SHADOWED:
            self._shadow.labels(rule)

    def note(self, record: Mapping[str, object]) -> None:
        """One final record. Preliminary ones come again."""
        if record.get("pending") is True:
            return
        exchange = Exchange.of(record)
        entry, client = self._entry(exchange.entry), self._client(exchange.client)
        if isinstance(prepare := record.get("prepare_seconds"), int | float):
            self._prepare.labels(entry).observe(prepare)
        if exchange.prompt is not None:
            labels = (entry, client, self._model(exchange.model))
            if exchange.cached is None:
                self._not_reported.labels(*labels).inc()
            else:
                # A rate needs both numbers of the same exchanges: absent is not zero.
                self._queried.labels(*labels).inc(exchange.prompt)
                self._cached.labels(*labels).inc(exchange.cached)
                self._length.labels(entry, client).observe(exchange.cached)
        for rule, saved in exchange.shadow.items():
            self._shadow.labels(self._rule(rule)).inc(saved)
        verdict = exchange.verdict
        if verdict is None:
            return
        name, changed = self._name(verdict.name), verdict.name == "changed"
        segment = self._class(verdict.kind_of_segment or "") if changed else ""
        self._verdicts.labels(name, segment).inc()
        if verdict.lost:
            self._wasted.labels(name).inc(verdict.lost)
        if changed and verdict.shared is not None:
            self._divergence.labels(entry, client).observe(verdict.shared)


class _Findings(Collector):
    """Counts the board anew at each scrape."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterable[Metric]:
        gauge = _metric("open_findings", ["id"])
        counts = dict.fromkeys(IDS, 0)
        for finding in self._board.open():
            counts[finding.id] = counts.get(finding.id, 0) + 1
        for name, count in counts.items():
            gauge.add_metric([name], count)
        yield gauge


class Metrics:
    """What /metrics answers."""

    def __init__(
        self, stats: Callable[[], Mapping[str, float]], engine: EngineState, board: Board | None = None
    ) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Collector(stats, engine))
        self._registry.register(_Findings(board or Board()))
        self.recorder = Recorder(self._registry)
        """What is to be told of each exchange record."""

    def exposition(self) -> bytes:
        """The metrics in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)
