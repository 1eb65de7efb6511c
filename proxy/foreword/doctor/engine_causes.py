"""Findings whose cause is in the engine: evictions, checkpoints, what it does not report, what it does not cache."""

from collections.abc import Iterator
from typing import Final

from foreword.doctor import advice
from foreword.doctor.severity import Costs, rank
from foreword.doctor.source import Loaded
from foreword.doctor.turns import AVOIDABLE
from foreword.doctor.values import real, text, whole
from foreword.findings import Finding
from foreword.findings import advice as shared

_GONE: Final = "verdict IN ('engine-lost', 'engine-lost-or-template') AND cached_tokens IS NOT NULL"
_COLLAPSED: Final = f"{_GONE} AND cached_tokens < 0.5 * coalesce(expected, recent_prompt, prompt_tokens)"

_STORM: Final = 10
_STORM_SHARE: Final = 0.05
_STORM_HOUR_SHARE: Final = 0.2
_FEW: Final = 5

_STEPS: Final = (65536, 32768, 16384, 8192, 4096, 2048, 1024)
"""Checkpoint steps that are tried before the most frequent length itself."""


def eviction_storms(loaded: Loaded) -> Iterator[Finding]:
    """Turns that only grew and found little or nothing, often, on one engine: all day, or within an hour.

    A restart loses every conversation once; a storm loses the same ones again and again.
    """
    rows = loaded.rows(
        f"""
        WITH hours AS (
            SELECT served, engine, floor(time / 3600) AS hour, count(*) FILTER (later) AS turns,
                   count(*) FILTER ({_COLLAPSED}) AS n
            FROM turns GROUP BY ALL),
        worst AS (
            SELECT served, engine, max(n) AS peak,
                   coalesce(bool_or(n >= {_STORM} AND n >= {_STORM_HOUR_SHARE} * turns), FALSE) AS stormy
            FROM hours GROUP BY ALL),
        sums AS (
            SELECT served, engine, count(*) FILTER (later) AS turns, count(*) FILTER ({_COLLAPSED}) AS n,
                   count(DISTINCT coalesce(hash(session, line), conversation)) FILTER ({_COLLAPSED}) AS conversations,
                   sum({AVOIDABLE}) FILTER ({_COLLAPSED})::BIGINT AS tokens,
                   median(cached_tokens) FILTER ({_COLLAPSED})::BIGINT AS kept,
                   median(prompt_tokens) FILTER ({_COLLAPSED})::BIGINT AS prompt,
                   sum(prompt_tokens)::BIGINT AS sent, sum(prompt_tokens - cached_tokens)::BIGINT AS missed,
                   min(time) FILTER ({_COLLAPSED}) AS first, max(time) FILTER ({_COLLAPSED}) AS last
            FROM turns GROUP BY ALL)
        SELECT sums.*, peak FROM sums JOIN worst ON sums.served IS NOT DISTINCT FROM worst.served
               AND sums.engine IS NOT DISTINCT FROM worst.engine
        WHERE n >= {_STORM} AND (n >= {_STORM_SHARE} * turns OR stormy)
          AND (conversations = 0 OR n > 1.5 * conversations)
        """
    )
    for row in rows:
        tokens = whole(row["tokens"])
        yield Finding(
            id="eviction-storm",
            subject=str(row["served"]),
            severity=rank(tokens, whole(row["sent"]), whole(row["missed"])),
            first_seen=real(row["first"]),
            last_seen=real(row["last"]),
            count=whole(row["n"]),
            tokens=tokens,
            evidence={
                "model": text(row["served"]),
                "conversations": whole(row["conversations"]),
                "share_of_later_turns": round(whole(row["n"]) / max(1, whole(row["turns"])), 4),
                "worst_hour": whole(row["peak"]),
                "median_prompt": whole(row["prompt"]),
                "median_kept": whole(row["kept"]),
            },
            advice=shared.for_lost(str(row["engine"])),
        )


def checkpoint_collapses(loaded: Loaded) -> Iterator[Finding]:
    """Lost prefixes whose rest is an exact multiple of one step that healthy turns do not keep to."""
    engines = loaded.rows(
        f"""
        SELECT served, engine, count(*) AS n, mode(cached_tokens) AS common
        FROM turns WHERE {_COLLAPSED} AND cached_tokens > 0 GROUP BY ALL HAVING n >= {_FEW}
        """
    )
    for engine in engines:
        for step in (*_STEPS, whole(engine["common"])):
            # A checkpoint step is a round number of a thousand or more; smaller ones are blocks.
            if step % 1024:
                continue
            (row,) = loaded.db.execute(
                f"""
                SELECT count(*) FILTER ({_COLLAPSED} AND cached_tokens > 0 AND cached_tokens % {step} = 0) AS n,
                       avg((cached_tokens % {step} = 0)::INTEGER)
                           FILTER (verdict IN ('append-only', 'repeat') AND cached_tokens > 0) AS healthy,
                       sum({AVOIDABLE}) FILTER ({_COLLAPSED} AND cached_tokens % {step} = 0)::BIGINT AS tokens,
                       sum(prompt_tokens)::BIGINT AS sent, sum(prompt_tokens - cached_tokens)::BIGINT AS missed,
                       min(time) FILTER ({_COLLAPSED}) AS first, max(time) FILTER ({_COLLAPSED}) AS last,
                       mode(cached_tokens) FILTER ({_COLLAPSED} AND cached_tokens > 0) AS common
                FROM turns WHERE served IS NOT DISTINCT FROM ? AND engine IS NOT DISTINCT FROM ?
                """,
                [engine["served"], engine["engine"]],
            ).fetchall()
            n, healthy, tokens, sent, missed, first, last, common = row
            if n < max(_FEW, 0.6 * whole(engine["n"])) or real(healthy) > 0.2:
                continue
            yield Finding(
                id="checkpoint-collapse",
                subject=str(engine["served"]),
                severity=rank(whole(tokens), whole(sent), whole(missed)),
                first_seen=real(first),
                last_seen=real(last),
                count=whole(n),
                tokens=whole(tokens),
                evidence={
                    "model": text(engine["served"]),
                    "step": step,
                    "of_lost_with_a_rest": whole(engine["n"]),
                    "most_common": whole(common),
                },
                advice=shared.for_checkpoints(str(engine["engine"]), step),
            )
            break


def usage_not_reported(loaded: Loaded) -> Iterator[Finding]:
    """Entries whose engine says nothing of its cache on most answers."""
    rows = loaded.rows(
        f"""
        SELECT entry, engine, served, count(*) AS all_requests, count(*) FILTER (cached_tokens IS NULL) AS n,
               min(time) FILTER (cached_tokens IS NULL) AS first, max(time) FILTER (cached_tokens IS NULL) AS last
        FROM turns GROUP BY ALL HAVING n >= {_FEW} AND n >= 0.5 * all_requests
        """
    )
    for row in rows:
        yield Finding(
            id="usage-not-reported",
            subject=f"{row['entry']} {row['served']}",
            severity="warning",
            first_seen=real(row["first"]),
            last_seen=real(row["last"]),
            count=whole(row["n"]),
            evidence={
                "entry": text(row["entry"]),
                "model": text(row["served"]),
                "engine": text(row["engine"]),
                "requests": whole(row["all_requests"]),
            },
            advice=shared.for_reporting(str(row["engine"])),
        )


def below_minimum(loaded: Loaded, costs: Costs) -> Iterator[Finding]:
    """Clients most of whose prompts are too short to be cached."""
    rows = loaded.rows(
        f"""
        SELECT entry, client, count(*) AS all_requests, count(*) FILTER (verdict = 'below-minimum') AS n,
               sum(lost) FILTER (verdict = 'below-minimum')::BIGINT AS tokens,
               max(prompt_tokens) FILTER (verdict = 'below-minimum') AS longest,
               min(time) FILTER (verdict = 'below-minimum') AS first,
               max(time) FILTER (verdict = 'below-minimum') AS last
        FROM turns GROUP BY ALL HAVING n >= {_STORM} AND n >= 0.5 * all_requests
        """
    )
    for row in rows:
        tokens = whole(row["tokens"])
        harm = costs.severity(str(row["entry"]), str(row["client"]), tokens)
        yield Finding(
            id="below-minimum",
            subject=f"{row['entry']} {row['client']}",
            # Nobody lost what the engine could not have kept, so it is never worse than worth knowing at a small cost.
            severity="info" if harm == "info" else "warning",
            first_seen=real(row["first"]),
            last_seen=real(row["last"]),
            count=whole(row["n"]),
            tokens=tokens,
            evidence={"requests": whole(row["all_requests"]), "longest_prompt": whole(row["longest"])},
            advice=advice.below_minimum(),
        )
