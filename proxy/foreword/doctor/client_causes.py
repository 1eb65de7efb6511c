"""Findings whose cause is in how a client uses its window: early compaction, overflow again and again."""

from collections.abc import Iterator
from typing import Final

from foreword.doctor import advice
from foreword.doctor.columns import PROMPT_ROUTES
from foreword.doctor.severity import Costs
from foreword.doctor.source import Loaded
from foreword.doctor.turns import listed
from foreword.doctor.values import real, text, whole
from foreword.findings import Finding

_COMPACTIONS: Final = 3
_FAR_BELOW: Final = 0.5
"""A compaction that begins below this share of the window is early."""

_ALIKE: Final = 0.3
"""Spread of the lengths at which a client compacts, over their median, that a threshold makes; people choose freely."""

_DOUBLED: Final = 1.2
"""A client that was told this much more context than its prompt had was told cached tokens twice."""

_OVERFLOWS: Final = 3


def early_compactions(loaded: Loaded, costs: Costs) -> Iterator[Finding]:
    """Clients that compact far below the window.

    The window is at least the longest prompt that the engine took from anybody. Where clients were told more context
    than the prompt had, that is the cause, however near the window they seemed.
    """
    rows = loaded.rows(
        f"""
        WITH windows AS (SELECT served, max(prompt_tokens) AS window_tokens FROM turns GROUP BY ALL),
        compactions AS (
            SELECT entry, client, served, time, recent_prompt, lost, prompt_tokens - coalesce(cached_tokens, 0) AS read
            FROM turns WHERE verdict = 'compacted' AND recent_prompt > prompt_tokens),
        told AS (
            SELECT entry, client, served, median(told_context / prompt_tokens) AS told
            FROM turns WHERE told_context IS NOT NULL AND prompt_tokens > 0 AND cached_tokens > 0.5 * prompt_tokens
            GROUP BY ALL)
        SELECT entry, client, served, count(*) AS n, median(recent_prompt)::BIGINT AS filled,
               any_value(window_tokens) AS window_tokens, any_value(told) AS told,
               count(*) FILTER (recent_prompt < {_FAR_BELOW} * window_tokens) AS early,
               quantile_cont(recent_prompt, 0.9) - quantile_cont(recent_prompt, 0.1) AS spread,
               sum(read)::BIGINT AS tokens, min(time) AS first, max(time) AS last
        FROM compactions JOIN windows USING (served) LEFT JOIN told USING (entry, client, served)
        GROUP BY ALL HAVING n >= {_COMPACTIONS}
               AND spread <= {_ALIKE} * filled
               AND (early >= 0.5 * n OR coalesce(any_value(told), 1) >= {_DOUBLED})
        """
    )
    for row in rows:
        tokens = whole(row["tokens"])
        doubled = real(row["told"]) >= _DOUBLED
        harm = costs.severity(str(row["entry"]), str(row["client"]), tokens)
        yield Finding(
            id="early-compaction",
            subject=f"{row['entry']} {row['client']}",
            severity="warning" if harm == "info" else harm,
            first_seen=real(row["first"]),
            last_seen=real(row["last"]),
            count=whole(row["n"]),
            tokens=tokens,
            evidence={
                "entry": text(row["entry"]),
                "client": text(row["client"]),
                "model": text(row["served"]),
                "compacts_at": whole(row["filled"]),
                "window_at_least": whole(row["window_tokens"]),
                "told_over_prompt": round(real(row["told"]), 3) if row["told"] is not None else None,
            },
            advice=advice.early_compaction(
                str(row["client"]), whole(row["filled"]), whole(row["window_tokens"]), double_counted=doubled
            ),
        )


def overflow_loops(loaded: Loaded) -> Iterator[Finding]:
    """Sessions whose prompts exceed the window again and again without an answer in between."""
    rows = loaded.rows(
        f"""
        WITH over AS (
            SELECT DISTINCT session, line FROM exchanges WHERE fault IN ('prompt-too-long', 'output-too-long')),
        tries AS (
            SELECT entry, client, session, line, time, fault IN ('prompt-too-long', 'output-too-long') AS over,
                   count(*) FILTER (fault IS NULL OR fault NOT IN ('prompt-too-long', 'output-too-long')) OVER (
                       PARTITION BY entry, client, session, line ORDER BY time) AS answered
            FROM exchanges SEMI JOIN over ON exchanges.session IS NOT DISTINCT FROM over.session
                 AND exchanges.line IS NOT DISTINCT FROM over.line
            WHERE route IN ({listed(PROMPT_ROUTES)}) AND (session IS NOT NULL OR line IS NOT NULL))
        SELECT entry, client, session, line, sum(n)::BIGINT AS n, min(first) AS first, max(last) AS last
        FROM (SELECT entry, client, session, line, answered, count(*) AS n, min(time) AS first, max(time) AS last
              FROM tries WHERE over GROUP BY ALL HAVING n >= {_OVERFLOWS})
        GROUP BY ALL
        """
    )
    for row in rows:
        name = text(row["session"]) or f"line-{whole(row['line'])}"
        yield Finding(
            id="overflow-loop",
            subject=name,
            severity="warning",
            first_seen=real(row["first"]),
            last_seen=real(row["last"]),
            count=whole(row["n"]),
            evidence={
                "entry": text(row["entry"]),
                "client": text(row["client"]),
                "session": text(row["session"]),
            },
            advice=advice.overflow_loop(str(row["client"])),
        )
