"""Step three: which segment of the head changes. Distinct digests over requests, and changes from turn to turn.

A path that is new in every conversation but stays the same within each costs nothing after the first turn. So volatile
is what changes *within* a conversation: on the lines of the journal where the records name them, else among exchanges
of one session that begin with the same first user text.
"""

from dataclasses import dataclass
from typing import Final

from foreword.doctor.columns import PROMPT_ROUTES
from foreword.doctor.source import Loaded
from foreword.doctor.turns import ANSWERED, CONVERSATION, listed
from foreword.doctor.values import real, whole

VOLATILE: Final = 0.5
"""Share of later turns on which a path must change to be volatile: most."""

_EVIDENCE: Final = 5
_SAMPLE: Final = 100_000
"""Exchanges beyond which changes from turn to turn are counted on a sample of whole conversations."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One path of one client on one entry, and one class there: a header and the text that it is joined with are two
    segments of one path.
    """

    entry: str
    client: str
    path: str
    segment_class: str
    position: int
    """Where it stands in the head, from 1."""
    requests: int
    distinct: int
    bytes: int
    """Mean length."""
    shortest: int
    longest: int
    later: int
    """Later turns on which it could have changed."""
    changes: float
    """Share of those on which it did; 0 without any."""
    changed_bytes: int | None = None
    """Mean length where it changed; None where it never did."""
    moved_bytes: int | None = None
    """The most by which a change made it longer or shorter."""
    in_restless_list: bool = False
    """Whether it is one of a list of tools that changes on most later turns, each time elsewhere."""

    @property
    def volatile(self) -> bool:
        """Whether it changes on most later turns, or its list does and it is one that changed."""
        restless = self.in_restless_list and self.changes > 0
        return self.later >= _EVIDENCE and (self.changes >= VOLATILE or restless)

    def as_json(self) -> dict[str, object]:
        """For the report."""
        return {
            "path": self.path,
            "distinct": self.distinct,
            "requests": self.requests,
            "entry": self.entry,
            "client": self.client,
            "class": self.segment_class,
            "bytes": self.bytes,
            "later": self.later,
            "changes": round(self.changes, 4),
        }


def stability(loaded: Loaded) -> list[Segment]:
    """Every path of the heads, by entry and client in template order."""
    who = "coalesce(entry, 'other') AS entry, coalesce(client, 'other') AS client"
    answered = f"route IN ({listed(PROMPT_ROUTES)}) AND {ANSWERED} AND len(head) > 0"
    loaded.db.execute(
        f"""
        CREATE TABLE paths AS
        SELECT entry, client, path, coalesce(class, 'unknown') AS class,
               (sum(place * n) / sum(n))::BIGINT AS position, sum(n)::BIGINT AS requests,
               count(DISTINCT digest) AS distinct_digests, (sum(bytes * n) / sum(n))::BIGINT AS bytes,
               min(bytes) AS shortest, max(bytes) AS longest
        FROM (SELECT entry, client, id, count(*) AS n, min(place) AS place
              FROM (SELECT {who}, unnest(head) AS id, generate_subscripts(head, 1) AS place
                    FROM exchanges WHERE {answered})
              GROUP BY ALL)
        JOIN segments USING (id) WHERE path IS NOT NULL GROUP BY ALL
        """
    )
    heads = loaded.db.execute("SELECT max(requests) FROM paths").fetchone()
    parts = 1 + whole(heads[0] if heads else None) // _SAMPLE
    if parts > 1:
        loaded.notes.append(
            f"changes of segments from turn to turn were counted on one conversation in {parts}"
        )
    loaded.db.execute(
        f"""
        CREATE TABLE changes AS
        WITH changing AS (
            SELECT DISTINCT path, class FROM paths WHERE distinct_digests > 1),
        sampled AS (
            SELECT {who}, request_id, head, {CONVERSATION} AS conversation, time, list_last(head) AS opening,
                   CASE WHEN session IS NOT NULL AND line IS NOT NULL THEN hash(session, line, model)
                        -- Lines are numbered anew by each process: without a session they need the opening.
                        WHEN line IS NOT NULL THEN hash(line, model, list_last(head)) END AS line
            FROM exchanges WHERE {answered} AND hash(session, line, list_last(head)) % {parts} = 0),
        parts AS (
            SELECT * EXCLUDE (class), coalesce(class, 'unknown') AS class
            FROM (SELECT * EXCLUDE (head), unnest(head) AS id, generate_subscripts(head, 1) AS place FROM sampled)
            JOIN segments USING (id)),
        -- Where a path has several segments the first is held against the first, the second against the second.
        counted AS (
            SELECT *, row_number() OVER (PARTITION BY request_id, path, class ORDER BY place) AS nth
            FROM parts SEMI JOIN changing USING (path, class)),
        steps AS (
            SELECT entry, client, path, class, digest, bytes, id = opening AS is_opening,
                   CASE WHEN line IS NOT NULL THEN lag(digest) OVER its_line END AS on_line,
                   CASE WHEN line IS NOT NULL THEN lag(bytes) OVER its_line END AS line_bytes,
                   lag(digest) OVER its_talk AS in_talk, lag(bytes) OVER its_talk AS talk_bytes
            FROM counted
            WINDOW its_line AS (PARTITION BY entry, client, path, class, nth, line ORDER BY time),
                   its_talk AS (PARTITION BY entry, client, path, class, nth, conversation ORDER BY time)),
        compared AS (
            SELECT *, coalesce(on_line, CASE WHEN NOT is_opening THEN in_talk END) <> digest AS changed,
                   abs(bytes - CASE WHEN on_line IS NOT NULL THEN line_bytes ELSE talk_bytes END) AS moved
            FROM steps)
        SELECT entry, client, path, class,
               avg(bytes) FILTER (changed)::BIGINT AS changed_bytes, max(moved) FILTER (changed) AS moved_bytes,
               count(*) FILTER (on_line IS NOT NULL) AS line_later,
               count(*) FILTER (on_line IS NOT NULL AND on_line <> digest) AS line_changes,
               count(*) FILTER (in_talk IS NOT NULL AND NOT is_opening) AS talk_later,
               count(*) FILTER (in_talk IS NOT NULL AND NOT is_opening AND in_talk <> digest) AS talk_changes,
               count(*) AS seen
        FROM compared GROUP BY ALL
        """
    )
    rows = loaded.rows(
        f"""
        SELECT paths.*, changed_bytes, moved_bytes,
               CASE WHEN line_later >= greatest({_EVIDENCE}, 0.2 * seen) THEN line_later
                    ELSE talk_later END AS later,
               CASE WHEN line_later >= greatest({_EVIDENCE}, 0.2 * seen) THEN line_changes / line_later
                    WHEN talk_later > 0 THEN talk_changes / talk_later ELSE 0 END AS changes
        FROM paths LEFT JOIN changes USING (entry, client, path, class)
        ORDER BY entry, client, position, path, class
        """
    )
    restless = _restless(loaded)
    return [
        Segment(
            entry=str(row["entry"]),
            client=str(row["client"]),
            path=str(row["path"]),
            segment_class=str(row["class"]),
            position=whole(row["position"]),
            requests=whole(row["requests"]),
            distinct=whole(row["distinct_digests"]),
            bytes=whole(row["bytes"]),
            shortest=whole(row["shortest"]),
            longest=whole(row["longest"]),
            later=whole(row["later"]),
            changes=real(row["changes"]),
            changed_bytes=None if row["changed_bytes"] is None else whole(row["changed_bytes"]),
            moved_bytes=None if row["moved_bytes"] is None else whole(row["moved_bytes"]),
            in_restless_list=row["class"] == "tools" and (str(row["entry"]), str(row["client"])) in restless,
        )
        for row in rows
    ]


def _restless(loaded: Loaded) -> set[tuple[str, str]]:
    """Entries and clients whose tools change on most later turns by their verdicts, wherever in the list."""
    rows = loaded.rows(
        f"""
        SELECT entry, client FROM turns GROUP BY ALL
        HAVING count(*) FILTER (later) >= {_EVIDENCE}
           AND count(*) FILTER (verdict = 'changed' AND class = 'tools') >= {VOLATILE} * count(*) FILTER (later)
        """
    )
    return {(str(row["entry"]), str(row["client"])) for row in rows}
