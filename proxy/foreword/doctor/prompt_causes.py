"""Findings whose cause is in the prompts: volatile segments, pinned reuse, blocks that are built anew."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from foreword.doctor import advice
from foreword.doctor.lengths import Plateau
from foreword.doctor.segments import Segment
from foreword.doctor.severity import Costs
from foreword.doctor.source import Loaded
from foreword.doctor.turns import AVOIDABLE
from foreword.doctor.values import real, text, whole
from foreword.findings import Finding
from foreword.findings import advice as shared

_LONG_BYTES: Final = 4096
"""A segment, or the segments of one class together, that is worth the name of a block."""

_REBUILDS: Final = 5
_REBUILD_SHARE: Final = 0.1
"""Share of a client's later turns on which a block must be rebuilt."""


Shadows = dict[tuple[str, str, str], Counter[str]]
"""Tokens that rules which are off would have saved, by entry, client and the path at which prompts parted."""


def shadows(loaded: Loaded) -> Shadows:
    """From all exchanges."""
    found: Shadows = defaultdict(Counter)
    for entry, client, path, rule, tokens in loaded.db.execute(
        """
        SELECT coalesce(entry, 'other'), coalesce(client, 'other'), path, rule, sum(tokens)::BIGINT
        FROM (SELECT entry, client, path, unnest(map_keys(shadow)) AS rule, unnest(map_values(shadow)) AS tokens
              FROM exchanges WHERE cardinality(shadow) > 0 AND path IS NOT NULL)
        WHERE tokens > 0 GROUP BY ALL
        """
    ).fetchall():
        found[entry, client, path][rule] += whole(tokens)
    return found


def volatile_segments(
    loaded: Loaded, segments: list[Segment], costs: Costs, saved: Shadows
) -> Iterator[Finding]:
    """One finding for each client and class of segment: the first path in the template's order that changes."""
    groups: dict[tuple[str, str, str], list[Segment]] = defaultdict(list)
    for segment in segments:
        if segment.volatile:
            groups[segment.entry, segment.client, segment.segment_class].append(segment)
    for (entry, client, segment_class), members in groups.items():
        first = members[0]
        if _is_block(first):
            continue
        told = _costs_of(loaded, entry, client, [member.path for member in members])
        tokens = whole(told["tokens"]) if told["count"] else _behind(loaded, entry, client)
        harm = costs.severity(entry, client, tokens)
        shadow = sum((saved.get((entry, client, each.path), Counter()) for each in members), Counter[str]())
        yield Finding(
            id="volatile-segment",
            subject=f"{entry} {client} {first.path}",
            severity=harm,
            first_seen=real(told["first"]),
            last_seen=real(told["last"]),
            count=whole(told["count"]) or round(first.changes * first.requests),
            tokens=tokens,
            evidence={
                **first.as_json(),
                "paths": len(members),
                "kind": text(told["kind"]),
                "shadow": dict(shadow),
                "rule": advice.rule_for(segment_class, shadow),
            },
            advice=advice.mend(client, first.path, segment_class, text(told["kind"]), shadow),
        )


Pin = tuple[Plateau, tuple[str, str] | None]
"""A plateau, and path and class of the segment at which it ends."""

Place = tuple[str, str, str]
"""Where prompts of a client part: entry, client and the class of the segment."""


def without_accidents(found: list[Pin], segments: list[Segment]) -> list[Pin]:
    """Leaves out lengths at which prompts happen to meet while the order of volatile segments changes.

    An engine that knows some orders reuses what a new one has in common with any of them: a length here, a length
    there, and none of them a place.
    """
    volatile = _volatile_places(segments)
    return [pin for pin in found if pin[0].kind != "reordered" or _place_of(pin) not in volatile]


def _place_of(pin: Pin) -> Place | None:
    """The place at which a plateau ends, if the prompts made it and the records tell of it."""
    plateau, segment = pin
    return None if plateau.by_engine or segment is None else (plateau.entry, plateau.client, segment[1])


def _volatile_places(segments: list[Segment]) -> set[Place | None]:
    return {(each.entry, each.client, each.segment_class) for each in segments if each.volatile}


def pinned_lengths(
    found: list[Pin],
    segments: list[Segment],
    costs: Costs,
    saved: Shadows,
) -> Iterator[Finding]:
    """The lengths at which prompts, not the engine, hold reuse: one finding for each.

    Of those that end at one place which is volatile only the worst is told: they have one cause.
    """
    by_path = {(each.entry, each.client, each.path, each.segment_class): each for each in segments}
    volatile = _volatile_places(segments)
    told_of: set[Place | None] = set()
    for plateau, segment in found:
        if plateau.by_engine:
            continue
        path, segment_class = segment or (None, None)
        place = _place_of((plateau, segment))
        if place in told_of:
            continue
        if place in volatile:
            told_of.add(place)
        shadow = saved.get((plateau.entry, plateau.client, path or ""), Counter())
        known = by_path.get((plateau.entry, plateau.client, path or "", segment_class or ""))
        told = (
            shared.for_rebuilt(plateau.client, known.path)
            if known is not None and _is_block(known)
            else advice.mend(plateau.client, path, segment_class, plateau.kind, shadow)
        )
        yield Finding(
            id="pinned",
            subject=f"{plateau.entry} {plateau.client} {plateau.tokens}",
            severity=costs.severity(plateau.entry, plateau.client, plateau.lost),
            first_seen=plateau.first,
            last_seen=plateau.last,
            count=plateau.requests,
            tokens=plateau.lost,
            evidence={
                "entry": plateau.entry,
                "client": plateau.client,
                "model": plateau.model,
                "pinned_at": plateau.tokens,
                "share": plateau.share,
                "prompts_from": plateau.shortest,
                "prompts_to": plateau.longest,
                "segment": path,
                "class": segment_class,
                "distinct": known.distinct if known else None,
                "rule": advice.rule_for(segment_class, shadow),
            },
            advice=advice.pinned(plateau.tokens, path, told),
        )


def reassembled_blocks(loaded: Loaded, segments: list[Segment], costs: Costs) -> Iterator[Finding]:
    """Long blocks of the system prompt or the first user message that were rebuilt or re-ordered."""
    rows = loaded.rows(
        f"""
        WITH later AS (SELECT entry, client, count(*) FILTER (later) AS turns FROM turns GROUP BY ALL)
        SELECT entry, client, class, mode(path) AS path, mode(kind) AS kind, count(*) AS n,
               sum({AVOIDABLE})::BIGINT AS tokens, min(time) AS first, max(time) AS last,
               any_value(later.turns) AS turns
        FROM turns JOIN later USING (entry, client)
        WHERE verdict = 'changed' AND class IN ('system', 'first-user')
        GROUP BY entry, client, class HAVING n >= {_REBUILDS} AND n >= {_REBUILD_SHARE} * any_value(later.turns)
        """
    )
    for row in rows:
        entry, client, segment_class = str(row["entry"]), str(row["client"]), str(row["class"])
        own = [
            each
            for each in segments
            if (each.entry, each.client, each.segment_class) == (entry, client, segment_class)
        ]
        block = next((each for each in own if each.path == row["path"]), None)
        moved = row["kind"] in ("reordered", "inserted", "removed")
        whole_class = sum(each.bytes for each in own if each.changes > 0)
        if block is None or not (_is_block(block) or (moved and whole_class >= _LONG_BYTES)):
            continue
        tokens = whole(row["tokens"])
        yield Finding(
            id="reassembled-block",
            subject=f"{entry} {client} {block.path}",
            severity=costs.severity(entry, client, tokens),
            first_seen=real(row["first"]),
            last_seen=real(row["last"]),
            count=whole(row["n"]),
            tokens=tokens,
            evidence={
                **block.as_json(),
                "kind": text(row["kind"]),
                "shortest": block.shortest,
                "longest": block.longest,
                "rebuilt_share": round(whole(row["n"]) / max(1, whole(row["turns"])), 4),
            },
            advice=shared.for_rebuilt(client, block.path),
        )


def _is_block(segment: Segment) -> bool:
    """Whether a change of this segment means that it was put together anew, rather than that a detail of it differs.

    A clock in a long system prompt keeps its length from turn to turn, assembled passages do not; nor does a short
    clock become a block by the long text behind it. The first user message has no clock that large: whoever changes a
    long one puts it together.
    """
    size = segment.bytes if segment.changed_bytes is None else segment.changed_bytes
    if size < _LONG_BYTES:
        return False
    if segment.segment_class == "first-user":
        return True
    return segment.segment_class == "system" and (segment.moved_bytes or 0) > 0.05 * size


def _costs_of(loaded: Loaded, entry: str, client: str, paths: list[str]) -> dict[str, object]:
    """What changes of these paths cost by the verdicts; times of the client's exchanges."""
    cursor = loaded.db.execute(
        f"SELECT count(*) FILTER (list_contains(?, path)),"
        f" sum({AVOIDABLE}) FILTER (list_contains(?, path))::BIGINT, min(time), max(time),"
        " mode(kind) FILTER (list_contains(?, path))"
        " FROM turns WHERE entry = ? AND client = ?",
        [paths, paths, paths, entry, client],
    ).fetchone()
    return dict(zip(("count", "tokens", "first", "last", "kind"), cursor or (0, 0, 0, 0, None), strict=True))


def _behind(loaded: Loaded, entry: str, client: str) -> int:
    """Without verdicts: what later turns read again although an earlier prompt of their session held it."""
    row = loaded.db.execute(
        f"SELECT sum({AVOIDABLE})::BIGINT FROM turns WHERE entry = ? AND client = ? AND later",
        [entry, client],
    ).fetchone()
    return whole(row[0]) if row else 0
