"""Step two: the distribution instead of the mean. How long the reused prefixes are, and where they stand still.

A plateau, not a ratio: a length is pinned when many later turns of one client reuse exactly it, while their prompts
differ and are much longer. Turns that reused what they could are no evidence, however often they meet at a length: a
growing prompt stays below one block for a while, and new conversations share their head by right.
"""

from dataclasses import dataclass
from typing import Final

from foreword.doctor.source import Loaded
from foreword.doctor.turns import AVOIDABLE, KEPT_PREFIX, listed
from foreword.doctor.values import real, text, whole

_EVIDENCE: Final = 6
"""Exchanges that make a plateau."""

_SHARE: Final = 0.05
"""The least share of a client's later turns that makes one."""

_FAR_BELOW: Final = 0.6
"""Part of what is shared below which a plateau has nothing to do with where the prompts part."""

# A `first` that is a later turn all the same: its conversation shared nothing that would have told.
_NO_EVIDENCE: Final = (*KEPT_PREFIX, "compacted", "below-minimum", "not-reported")


@dataclass(frozen=True, slots=True)
class Plateau:
    """One length at which reuse stood still."""

    entry: str
    client: str
    model: str | None
    engine: str | None
    tokens: int
    requests: int
    """Exchanges of this client at this length."""
    share: float
    """Share of all exchanges of the entry that are at this length."""
    changed: int
    """Exchanges whose prompt had changed."""
    gone: int
    """Exchanges whose prompt had only grown: the engine lost its part."""
    lost: int
    """Tokens read again that need not have been."""
    shortest: int
    longest: int
    path: str | None
    segment_class: str | None
    kind: str | None
    """How that segment mostly changed."""
    first: float
    last: float

    shared: int | None
    """Median of the tokens up to which the prompts were what they had been; None where the records do not tell."""

    @property
    def by_engine(self) -> bool:
        """Whether the engine made it, not the prompts: they had only grown, or were the same far beyond it."""
        return self.gone > self.changed or (
            self.shared is not None and self.tokens < _FAR_BELOW * self.shared
        )


def histogram(loaded: Loaded) -> list[dict[str, object]]:
    """For each entry, client and model: exchanges by reused length, in bins that double, and the exact lengths at which
    many meet."""
    bins = loaded.rows(
        """
        SELECT entry, client, model,
               CASE WHEN cached_tokens <= 0 THEN 0
                    WHEN cached_tokens < 1024 THEN 1
                    ELSE 1 << floor(log2(cached_tokens))::INTEGER END AS "from",
               count(*) AS requests, round(avg(prompt_tokens))::BIGINT AS mean_prompt
        FROM turns WHERE cached_tokens IS NOT NULL GROUP BY ALL ORDER BY ALL
        """
    )
    exact = loaded.rows(
        f"""
        WITH lengths AS (
            SELECT entry, client, model, cached_tokens AS tokens, count(*) AS requests,
                   min(prompt_tokens) AS shortest, max(prompt_tokens) AS longest
            FROM turns WHERE cached_tokens IS NOT NULL GROUP BY ALL)
        SELECT *, round(requests / sum(requests) OVER (PARTITION BY entry, client, model), 4) AS share
        FROM lengths QUALIFY requests >= {_EVIDENCE} AND share >= {_SHARE} ORDER BY requests DESC, tokens
        """
    )
    groups: dict[tuple[object, object, object], dict[str, object]] = {}
    for rows, member in ((bins, "bins"), (exact, "exact")):
        for row in rows:
            key = (row.pop("entry"), row.pop("client"), row.pop("model"))
            names = dict(zip(("entry", "client", "model"), key, strict=True))
            group = groups.setdefault(key, {**names, "bins": [], "exact": []})
            group[member].append(row)  # type: ignore[attr-defined]
    return list(groups.values())


def plateaus(loaded: Loaded, *, conversations: bool = True) -> list[Plateau]:
    """The lengths at which reuse stood still, worst first.

    Without ``conversations`` (a foreign log knows none) every exchange is evidence, and a plateau must be plainer.
    """
    evidence = f"later AND coalesce(verdict, '') NOT IN ({listed(_NO_EVIDENCE)})" if conversations else "TRUE"
    share = _SHARE if conversations else 0.2
    spread = 0.05 if conversations else 0.3
    rows = loaded.rows(
        f"""
        WITH lengths AS (
            SELECT entry, client, model, cached_tokens AS tokens,
                   count(*) AS requests,
                   count(*) FILTER ({evidence}) AS n,
                   count(DISTINCT prompt_tokens) FILTER ({evidence}) AS prompts,
                   quantile_cont(prompt_tokens, 0.1) FILTER ({evidence}) AS low,
                   quantile_cont(prompt_tokens, 0.9) FILTER ({evidence}) AS high,
                   median(prompt_tokens) FILTER ({evidence}) AS middle,
                   min(prompt_tokens) FILTER ({evidence}) AS shortest,
                   max(prompt_tokens) FILTER ({evidence}) AS longest,
                   count(*) FILTER ({evidence} AND coalesce(verdict, 'first') IN ('changed', 'parameters', 'first'))
                       AS changed,
                   count(*) FILTER ({evidence} AND verdict LIKE 'engine-lost%') AS gone,
                   sum({AVOIDABLE}) FILTER ({evidence})::BIGINT AS lost,
                   mode(path) FILTER ({evidence}) AS path, mode(kind) FILTER ({evidence}) AS kind,
                   median(shared) FILTER ({evidence} AND shared > 0)::BIGINT AS shared,
                   any_value(engine) AS engine, min(time) AS first, max(time) AS last
            FROM turns WHERE cached_tokens > 0 AND prompt_tokens IS NOT NULL GROUP BY ALL),
        later AS (SELECT entry, client, model, count(*) FILTER ({evidence}) AS evidence,
                         count(*) FILTER (later OR {not conversations}) AS turns
                  FROM turns GROUP BY ALL),
        entries AS (SELECT entry, count(*) AS requests FROM turns GROUP BY ALL),
        same AS (SELECT entry, cached_tokens AS tokens, count(*) AS requests FROM turns GROUP BY ALL)
        SELECT lengths.*, same.requests / entries.requests AS share
        FROM lengths
        JOIN later ON (lengths.entry, lengths.client) = (later.entry, later.client)
             AND lengths.model IS NOT DISTINCT FROM later.model
        JOIN entries ON lengths.entry = entries.entry
        JOIN same ON lengths.entry = same.entry AND lengths.tokens = same.tokens
        WHERE n >= {_EVIDENCE} AND n >= {share} * later.turns AND prompts >= {_EVIDENCE}
          AND high - low >= greatest(512, {spread} * middle)
          AND middle - lengths.tokens >= greatest(512, 0.1 * middle)
        ORDER BY lost DESC NULLS LAST, n DESC, tokens
        """
    )
    classes = {
        (row["path"]): row["class"]
        for row in loaded.rows(
            "SELECT path, mode(class) AS class FROM turns WHERE path IS NOT NULL GROUP BY path"
        )
    }
    return [
        Plateau(
            entry=str(row["entry"]),
            client=str(row["client"]),
            model=text(row["model"]),
            engine=text(row["engine"]),
            tokens=whole(row["tokens"]),
            requests=whole(row["requests"]),
            share=round(real(row["share"]), 4),
            changed=whole(row["changed"]),
            gone=whole(row["gone"]),
            lost=whole(row["lost"]),
            shortest=whole(row["shortest"]),
            longest=whole(row["longest"]),
            path=text(row["path"]),
            segment_class=text(classes.get(row["path"])),
            kind=text(row["kind"]),
            first=real(row["first"]),
            last=real(row["last"]),
            shared=whole(row["shared"]) if row["shared"] is not None else _beyond(row, rows),
        )
        for row in rows
    ]


def _beyond(row: dict[str, object], rows: list[dict[str, object]]) -> int | None:
    """Where records say nothing of what is shared: prompts with the same path part at the most frequent plateau."""
    same = [
        whole(other["tokens"])
        for other in rows
        if all(other[name] == row[name] for name in ("entry", "client", "model", "path"))
        and whole(other["requests"]) > whole(row["requests"])
    ]
    return max(same, default=None)
