"""The table `turns`: every answered prompt with what can be told of its place in a conversation."""

from typing import Final

from foreword.doctor.columns import PROMPT_ROUTES
from foreword.doctor.source import Loaded

KEPT_PREFIX: Final = ("append-only", "repeat", "granularity")
"""Verdicts of exchanges that reused what they could."""

_LATER: Final = (
    "append-only",
    "changed",
    "compacted",
    "engine-lost",
    "engine-lost-or-template",
    "granularity",
    "parameters",
    "repeat",
    "template",
)

CONVERSATION: Final = "hash(entry, client, model, session, list_last(head))"
"""A conversation as the head tells it: the client's session, and the last text of its first user message."""


ANSWERED: Final = "(prompt_tokens IS NOT NULL OR coalesce(outcome = 'ok', FALSE))"
"""Exchanges whose prompt the engine answered: they are there with their tokens, or ended well."""


def listed(names: tuple[str, ...]) -> str:
    """Names as an SQL list."""
    return ", ".join(f"'{name}'" for name in names)


def build(loaded: Loaded) -> None:
    """Makes `turns`. An exchange counts if the engine answered it: it is there with its tokens, or ended well."""
    loaded.db.execute(
        f"""
        CREATE TABLE turns AS
        WITH answered AS (
            SELECT * EXCLUDE (entry, client, head, shadow, v, status, fault),
                   coalesce(entry, 'other') AS entry, coalesce(client, 'other') AS client,
                   CASE WHEN head IS NOT NULL AND len(head) > 0 THEN {CONVERSATION} END AS conversation,
                   coalesce(upstream_model, model) AS served
            FROM exchanges
            WHERE route IN ({listed(PROMPT_ROUTES)}) AND {ANSWERED}
        )
        SELECT *,
               coalesce(turn > 1, FALSE) OR coalesce(verdict IN ({listed(_LATER)}), FALSE)
                   OR (conversation IS NOT NULL
                       AND row_number() OVER (PARTITION BY conversation ORDER BY time) > 1) AS later,
               max(prompt_tokens) OVER (
                   PARTITION BY served, client, coalesce(session, 'line ' || line)
                   ORDER BY time ROWS BETWEEN 8 PRECEDING AND 1 PRECEDING) AS recent_prompt
        FROM answered
        """
    )


KNOWN: Final = "cached_tokens IS NOT NULL AND prompt_tokens IS NOT NULL"
"""Exchanges whose engine reported its cache: the only ones that a hit rate may count."""

AVOIDABLE: Final = (
    "coalesce(lost, greatest(0, least(prompt_tokens, coalesce(expected, recent_prompt, prompt_tokens))"
    " - cached_tokens))"
)
"""Tokens that were read again and need not have been; without a verdict, what an earlier prompt of the session held."""
