"""Step one: split the hit rate instead of averaging it. Always sum over sum, what is not reported apart."""

from dataclasses import dataclass
from typing import Final

from foreword.doctor.columns import PROMPT_ROUTES
from foreword.doctor.source import Loaded
from foreword.doctor.turns import ANSWERED, KNOWN, listed

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Rates:
    """Hit rates of one ledger, split four ways; rows as they go into the JSON."""

    total: Row
    by_entry: list[Row]
    by_client: list[Row]
    by_model: list[Row]
    by_day: list[Row]


_SUMS = f"""
    count(*) AS requests,
    count(*) FILTER (cached_tokens IS NULL OR prompt_tokens IS NULL) AS not_reported,
    coalesce(sum(prompt_tokens) FILTER ({KNOWN}), 0)::BIGINT AS prompt_tokens,
    coalesce(sum(cached_tokens) FILTER ({KNOWN}), 0)::BIGINT AS cached_tokens,
    coalesce(sum(prompt_tokens) FILTER (cached_tokens IS NULL), 0)::BIGINT AS not_reported_tokens,
    round(sum(cached_tokens) FILTER ({KNOWN}) / nullif(sum(prompt_tokens) FILTER ({KNOWN}), 0), 4) AS hit_rate
"""

_REFUSED: Final = "coalesce(status BETWEEN 400 AND 498 AND outcome IS DISTINCT FROM 'left', FALSE)"
"""Exchanges that were answered with a refusal. 499 is no answer: the client had left."""

_WORST_FIRST = "prompt_tokens - cached_tokens DESC, requests DESC, 1"


def measure(loaded: Loaded) -> Rates:
    """The rates of the answered prompts."""

    def split(columns: str, order: str = _WORST_FIRST) -> list[Row]:
        return loaded.rows(
            f"SELECT * FROM (SELECT {columns}, {_SUMS} FROM turns GROUP BY ALL) ORDER BY {order}"
        )

    (total,) = loaded.rows(f"SELECT {_SUMS}, min(time) AS first, max(time) AS last FROM turns")
    (extra,) = loaded.rows(
        f"SELECT count(*) FILTER ({_REFUSED}) AS refused, count(*) FILTER (NOT {_REFUSED}) AS unanswered FROM exchanges"
        f" WHERE route IN ({listed(PROMPT_ROUTES)}) AND NOT {ANSWERED}"
    )
    return Rates(
        total | extra,
        split("entry, client, model"),
        split("client"),
        split("model, upstream_model"),
        split("strftime(make_timestamp((time * 1e6)::BIGINT), '%Y-%m-%d') AS day", "day"),
    )
