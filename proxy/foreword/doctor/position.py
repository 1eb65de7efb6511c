"""What lies at a length: from a token position back to a segment of the head."""

from collections import Counter

from foreword.doctor.lengths import Plateau
from foreword.doctor.segments import Segment
from foreword.doctor.source import Loaded
from foreword.doctor.values import whole

_SAMPLE = 200
_TOLERANCE = 0.15
"""How far a position told by bytes may be off: tools are denser in bytes than prose."""


def segment_at(loaded: Loaded, plateau: Plateau, segments: list[Segment]) -> tuple[str, str] | None:
    """Path and class of the segment at which a plateau's reuse ends, or None where the records do not tell.

    The verdicts of its exchanges name it. Where they do not, the head is laid out by bytes, scaled to the prompt's
    tokens, and the segment that begins next to the plateau's length is taken: a volatile one, if there is one near.
    """
    if plateau.path is not None:
        return plateau.path, plateau.segment_class or "unknown"
    volatile = {
        segment.path
        for segment in segments
        if (segment.entry, segment.client) == (plateau.entry, plateau.client) and segment.volatile
    }
    rows = loaded.db.execute(
        "SELECT prompt_tokens, prompt_bytes, head FROM exchanges"
        " WHERE entry = ? AND coalesce(client, 'other') = ? AND cached_tokens = ? AND prompt_bytes > 0"
        f" AND len(head) > 0 LIMIT {_SAMPLE}",
        [plateau.entry, plateau.client, plateau.tokens],
    ).fetchall()
    known = {
        identity: (path, segment_class, size)
        for identity, path, segment_class, size in loaded.db.execute(
            "SELECT id, path, class, bytes FROM segments WHERE list_contains(?, id)",
            [sorted({identity for row in rows for identity in row[2]})],
        ).fetchall()
    }
    votes: Counter[tuple[str, str]] = Counter()
    for prompt_tokens, prompt_bytes, head in rows:
        scale = whole(prompt_tokens) / prompt_bytes
        starts, at = [], 0.0
        for path, segment_class, size in (known[identity] for identity in head):
            starts.append((at, (path, segment_class)))
            at += whole(size) * scale
        near = [
            (abs(start - plateau.tokens), segment)
            for start, segment in starts
            if segment[0] in volatile and abs(start - plateau.tokens) <= _TOLERANCE * plateau.tokens
        ]
        if near:
            found = min(near, key=lambda pair: pair[0])[1]
        elif at > plateau.tokens:
            found = [segment for start, segment in starts if start <= plateau.tokens][-1]
        else:
            continue
        votes[str(found[0]), str(found[1] or "unknown")] += 1
    return votes.most_common(1)[0][0] if votes else None
