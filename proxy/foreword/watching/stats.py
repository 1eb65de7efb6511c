"""What is watched, as metrics: ``family|label=value`` and a number, as `foreword.metrics` takes them.

What the engine does not tell is absent.
"""

from collections.abc import Iterator, Mapping

from foreword.engines.reading import Counter, Gauge
from foreword.watching.observer import Observer

COUNTERS: Mapping[Counter, str] = {
    "requests": "engine_requests_total",
    "prompt_tokens": "engine_prompt_tokens_total",
    "cached_tokens": "engine_cached_tokens_total",
    "generated_tokens": "engine_generated_tokens_total",
    "l1_queried_tokens": "engine_l1_queried_tokens_total",
    "l1_hit_tokens": "engine_l1_hit_tokens_total",
    "l2_queried_tokens": "engine_l2_queried_tokens_total",
    "l2_hit_tokens": "engine_l2_hit_tokens_total",
    "l2_stored_bytes": "engine_l2_stored_bytes_total",
    "l2_loaded_bytes": "engine_l2_loaded_bytes_total",
    "l2_stored_blocks": "engine_l2_stored_blocks_total",
    "l2_loaded_blocks": "engine_l2_loaded_blocks_total",
    "l2_allocation_failures": "engine_l2_allocation_failures_total",
    "l2_stores_skipped": "engine_l2_stores_skipped_total",
    "preemptions": "engine_preemptions_total",
}
GAUGES: Mapping[Gauge, str] = {
    "running": "engine_running",
    "waiting": "engine_waiting",
    "l1_usage": "engine_l1_usage_ratio",
    "block_tokens": "engine_block_tokens",
    "l2_bytes": "engine_l2_size_bytes",
    "parking_budget_bytes": "parking_budget_bytes",
    "parking_slots": "parking_slots",
    "parked": "parking_parked",
    "parked_bytes": "parking_bytes",
}


STALE_SECONDS = 60.0
"""A state that is older says nothing of now."""


def observed(observer: Observer) -> dict[str, float]:
    """Everything by its key."""
    return dict(
        [*_metrics(observer), *(_parking(observer) if observer.parking.seen else ()), *_log(observer)]
    )


def _metrics(observer: Observer) -> Iterator[tuple[str, float]]:
    scraper, meter = observer.scraper, observer.meter
    yield "engine_scrapes_total|result=failed", scraper.failures
    yield "engine_scrapes_total|result=ok", scraper.scrapes - scraper.failures
    yield "engine_restarts_total|", observer.restarts.count
    yield "engine_metrics_missing|", len(observer.missing.missing)
    if (age := scraper.age()) is not None:
        yield "engine_scrape_age_seconds|", age
    for word, family in COUNTERS.items():
        if word in meter.totals:
            yield f"{family}|", meter.totals[word]
    if age is not None and age <= max(STALE_SECONDS, observer.patience):
        for gauge, family in GAUGES.items():
            if gauge in meter.gauges:
                yield f"{family}|", meter.gauges[gauge]


def _parking(observer: Observer) -> Iterator[tuple[str, float]]:
    """The log's own counts; where it tells the state, that is newer than the last scrape's."""
    parking = observer.parking
    yield "parking_parks_total|", parking.parks
    yield "parking_evictions_total|", parking.evictions
    yield "parking_superseded_total|", parking.superseded
    yield "parking_refusal_pauses_total|", parking.pauses
    for how in sorted({"live", "exact", *parking.restores}):
        yield f"parking_restores_total|how={how}", parking.restores.get(how, 0)
    for reason, count in sorted(parking.skips.items()):
        yield f"parking_skips_total|reason={reason}", count
    states = {
        "parking_parked|": parking.parked,
        "parking_bytes|": parking.bytes,
        "parking_budget_bytes|": parking.budget_bytes,
        "parking_snapshot_bytes|": parking.snapshot_bytes,
        "parking_largest_snapshot_bytes|": parking.largest_snapshot_bytes,
    }
    for key, state in states.items():
        if state is not None:
            yield key, state


def _log(observer: Observer) -> Iterator[tuple[str, float]]:
    follower = observer.follower
    if follower is None:
        return
    yield "engine_log_up|", int(follower.trouble is None)
    yield "engine_log_rotations_total|", follower.rotations
    yield "engine_log_files_lost_total|", follower.lost
    yield "engine_full_rereads_total|", observer.parking.full_rereads
    for result, count in observer.lines.items():
        yield f"engine_log_lines_total|result={result}", count
    yield "engine_log_lines_total|result=too-long", follower.dropped
    if observer.joiner is not None:
        for result, count in observer.joiner.counts.items():
            yield f"engine_log_joins_total|result={result}", count
