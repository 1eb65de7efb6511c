"""One exchange as the detectors read it: a final exchange record with everything checked that may be missing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Verdict(NamedTuple):
    """Where the prompt left its line, and what that cost. Tokens; None is not known."""

    name: str
    expected: int | None = None
    shared: int | None = None
    lost: int | None = None
    path: str | None = None
    """The first segment that is another one than before. An engine that lost more has a verdict of its own, and the
    path beside it."""
    kind_of_segment: str | None = None
    """The record's ``class``: header, tools, system, late-system, first-user, history, last-turn or image."""
    kind: str | None = None
    """edited, inserted, removed or reordered."""


class Segment(NamedTuple):
    """One segment of a prompt. ``bytes`` is the length of its rendered text."""

    path: str
    kind: str
    """Its class. A header and the text that it is joined with are two segments of one path."""
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a detector may ask of one exchange. Nothing here is trusted to be there: what is not is None."""

    time: float
    """Seconds since 1970, when it began. The only clock that detectors have."""
    entry: str
    client: str
    model: str
    engine: str
    session: str | None
    line: int | None
    turn: int | None
    ok: bool
    """The engine answered in full, and the client stayed."""
    fault: str | None
    """The kind of the failure."""
    prompt: int | None
    """Prompt tokens, as the engine counted them."""
    cached: int | None
    """Those of them that came from the cache; None is not reported, which is not 0."""
    verdict: Verdict | None
    shadow: Mapping[str, int]
    """Tokens that each rule which is off would have saved."""
    text_bytes: int | None
    """The length of the rendered prompt."""
    streamed_ttft: float | None
    """Seconds to the first byte of a streamed answer."""
    _prompt: Mapping[str, object]

    @classmethod
    def of(cls, record: Mapping[str, object]) -> "Exchange":
        """Reads a record of any version; members of an unexpected type count as missing."""
        usage, prompt = _object(record.get("usage")), _object(record.get("prompt"))
        verdict, fault = record.get("verdict"), _object(record.get("fault"))
        return cls(
            time=_number(record.get("time")) or 0.0,
            entry=_text(record.get("entry")) or _text(record.get("route")) or "other",
            client=_text(record.get("client")) or "other",
            model=_text(record.get("model")) or _text(record.get("upstream_model")) or "unknown",
            engine=_text(record.get("engine")) or "unknown",
            session=_text(record.get("session")),
            line=_count(record.get("line")),
            turn=_count(record.get("turn")),
            ok=record.get("outcome") == "ok",
            fault=_text(fault.get("kind")),
            prompt=_count(usage.get("prompt_tokens")),
            cached=_count(usage.get("cached_tokens")),
            verdict=_verdict(verdict) if isinstance(verdict, dict) else None,
            shadow={
                rule: saved
                for rule, tokens in _object(record.get("shadow")).items()
                if (saved := _count(tokens))
            },
            text_bytes=_count(prompt.get("bytes")),
            streamed_ttft=_number(record.get("ttft_seconds")) if record.get("stream") is True else None,
            _prompt=prompt,
        )

    def head(self) -> Iterator[Segment]:
        """The segments up to and with the first user message, in the order in which they are rendered."""
        return _segments(self._prompt.get("head"))

    def asks_anew(self) -> bool:
        """Whether what changed is new by nature: the last turn, or a first message that nothing followed yet.

        Another question behind the same beginning is no change of a conversation.
        """
        if self.verdict is None:
            return False
        if self.verdict.kind_of_segment == "first-user":
            return (_count(self._prompt.get("segments")) or 0) <= sum(1 for _ in self.head())
        return self.verdict.kind_of_segment == "last-turn"

    def changed_segment(self) -> Segment | None:
        """The segment at which the prompt left its line, if the record tells of it."""
        verdict = self.verdict
        if verdict is None or verdict.path is None:
            return None
        for segments in (self.head(), _segments(self._prompt.get("new"))):
            for segment in segments:
                if (segment.path, segment.kind) == (verdict.path, verdict.kind_of_segment):
                    return segment
        return None

    def segment_at(self, tokens: int) -> str | None:
        """The path of the head's segment in which token number ``tokens`` lies, by the prompt's own bytes a token.

        None behind the head, or where the record does not tell.
        """
        if not self.prompt or not self.text_bytes:
            return None
        place = tokens * self.text_bytes / self.prompt
        end = 0
        for segment in self.head():
            end += segment.bytes
            if place < end:
                return segment.path
        return None


def _segments(value: object) -> Iterator[Segment]:
    for each in value if isinstance(value, list) else ():
        if isinstance(each, dict) and (path := _text(each.get("path"))):
            kind, digest = _text(each.get("class")) or "", _text(each.get("digest")) or ""
            yield Segment(path, kind, _count(each.get("bytes")) or 0, digest)


def _verdict(value: Mapping[str, object]) -> Verdict | None:
    name = _text(value.get("name"))
    if name is None:
        return None
    return Verdict(
        name,
        _count(value.get("expected")),
        _count(value.get("shared")),
        _count(value.get("lost")),
        _text(value.get("path")),
        _text(value.get("class")),
        _text(value.get("kind")),
    )


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


_MOST = 2**32 - 1
"""No prompt has more tokens, and no process more lines: what is greater counts as missing, as rubbish does."""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None
