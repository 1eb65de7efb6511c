"""A load from Foreword's ledger: who, when, and how much of each prompt its conversation had before."""

import gzip
import math
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from .load import Load, LoadError, Request

_LINE: Final = 64 * 2**20
_FORGETFUL: Final = frozenset({"first", "changed", "compacted", "parameters"})
"""Verdicts after which a prompt does not begin with all of the one before it."""


_SYSTEM: Final = frozenset({"header", "tools", "system"})
"""Classes of segments that a template prints in front of the conversation."""


def load_of(directory: Path) -> Load:
    """The requests of a ledger's files. Raises LoadError where there are none."""
    records: dict[str, dict[str, Any]] = {}
    unreadable = 0
    for line in _lines(directory):
        record = _record(line)
        if record is None:
            unreadable += 1
        elif not record.get("pending") and _is_prompt(record):
            records[str(record.get("request_id"))] = record
    if not records:
        raise LoadError(f"{directory}: no exchange with a prompt")
    ordered = sorted(records.values(), key=lambda record: float(record["time"]))
    reader = _Reader(float(ordered[0]["time"]))
    placed = [reader.place(record) for record in ordered]
    head, systems = _common_head(ordered), _systems(ordered)
    requests = [
        Request(number, prompt, min(shared, prompt), min(head, prompt), min(system, prompt), output, at=at)
        for (number, prompt, shared, output, at), system in zip(placed, systems, strict=True)
    ]
    notes = []
    if not all(systems):
        notes.append(
            f"{systems.count(0):,} exchanges have no system prompt or do not tell where it ends: it counts as none."
        )
    if unreadable:
        notes.append(f"{unreadable:,} lines of the ledger are no records.")
    if reader.nameless:
        notes.append(f"{reader.nameless:,} exchanges have no conversation and count as one each.")
    notes.append(
        "Arrivals are those of the ledger: with another setting the same clients would have come at other times."
    )
    return Load("ledger", requests, "known", notes)


def beside_log(load: Load, prompts: list[int]) -> str | None:
    """What to say of prompts in the engine's log that no exchange of the ledger has."""
    missing = Counter(prompts) - Counter(request.prompt for request in load.requests)
    if not (count := missing.total()):
        return None
    return (
        f"{count:,} of {len(prompts):,} prompts in the log are not in the ledger: they went past Foreword, or before or"
        " after it, and are not simulated."
    )


class _Reader:
    """Conversations while records pass in the order of their times."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._current: dict[object, tuple[int, int, int]] = {}
        self._made = 0
        self.nameless = 0

    def place(self, record: dict[str, Any]) -> tuple[int, int, int, int, float]:
        """Conversation, prompt tokens, shared tokens, answer tokens, arrival."""
        usage = record["usage"]
        prompt, output = int(usage["prompt_tokens"]), _count(usage.get("completion_tokens")) or 0
        line, turn = _count(record.get("line")), _count(record.get("turn")) or 0
        key = line if line is not None else record.get("session")
        number, before, last_turn = self._current.get(key) or self._new()
        # Numbers of lines begin again when the sidecar does.
        if line is not None and turn and turn <= last_turn:
            number, before, last_turn = self._new()
        if key is None:
            self.nameless += 1
        else:
            self._current[key] = (number, prompt + output, turn)
        return number, prompt, _shared(record, before), output, float(record["time"]) - self._start

    def _new(self) -> tuple[int, int, int]:
        self._made += 1
        return self._made - 1, 0, 0


def _shared(record: dict[str, Any], before: int) -> int:
    verdict = record.get("verdict")
    if not isinstance(verdict, dict):
        return before
    if verdict.get("name") not in _FORGETFUL:
        return before
    known = _count(verdict.get("shared"))
    return min(before, known if known is not None else _count(verdict.get("expected")) or 0)


def _common_head(records: list[dict[str, Any]]) -> int:
    """What conversations find of others' at their first turn: the most frequent length, of equals the longest."""
    counts: Counter[int] = Counter()
    for record in records:
        verdict = record.get("verdict")
        cached = _count(record["usage"].get("cached_tokens"))
        if cached and isinstance(verdict, dict) and verdict.get("name") in ("first", "engine-lost"):
            counts[cached] += 1
    return max(counts, key=lambda cached: (counts[cached], cached), default=0)


def _systems(records: list[dict[str, Any]]) -> list[int]:
    """Where the system prompt of each ends, in tokens; 0: it has none, or the record does not tell.

    Records tell it in bytes. All prompts of a model together make its tokens a byte, so that one system prompt ends at
    one place, whoever brings it.
    """
    tokens: Counter[object] = Counter()
    size: Counter[object] = Counter()
    for record in records:
        if told := _count(_prompt(record).get("bytes")):
            tokens[_served(record)] += int(record["usage"]["prompt_tokens"])
            size[_served(record)] += told
    return [
        round(_system_bytes(record) * tokens[model] / size[model]) if size[model := _served(record)] else 0
        for record in records
    ]


def _system_bytes(record: dict[str, Any]) -> int:
    """The length of everything in front of the conversation; 0 where the head was cut off before it ended."""
    head = _prompt(record).get("head")
    end = 0
    for segment in head if isinstance(head, list) else ():
        if not isinstance(segment, dict):
            return 0
        if segment.get("class") not in _SYSTEM:
            return end
        end += _count(segment.get("bytes")) or 0
    return 0


def _prompt(record: dict[str, Any]) -> dict[str, Any]:
    prompt = record.get("prompt")
    return prompt if isinstance(prompt, dict) else {}


def _served(record: dict[str, Any]) -> object:
    return record.get("upstream_model") or record.get("model")


def _is_prompt(record: dict[str, Any]) -> bool:
    usage, time = record.get("usage"), record.get("time")
    if not isinstance(usage, dict) or not isinstance(time, int | float) or not math.isfinite(time):
        return False
    return bool(_count(usage.get("prompt_tokens"))) and record.get("route") not in (
        "models",
        "count_tokens",
        "other",
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and "request_id" in record else None


def _lines(directory: Path) -> Iterator[bytes]:
    if directory.is_file():
        files = [directory]
    elif directory.is_dir():
        files = sorted(
            path
            for path in directory.iterdir()
            if path.name.endswith((".jsonl", ".jsonl.gz")) and path.is_file()
        )
    else:
        raise LoadError(f"{directory}: there is no such directory or file")
    for path in files:
        opened = gzip.open if path.suffix == ".gz" else open
        try:
            with opened(path, "rb") as file:
                while line := file.readline(_LINE):
                    if line.strip():
                        yield line
        except (OSError, EOFError, zlib.error) as error:
            told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise LoadError(f"{path}: {told}") from None
