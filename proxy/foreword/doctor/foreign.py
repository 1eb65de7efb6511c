"""Request logs of others: Langfuse exports, LiteLLM's and new-api's logs, as JSON, JSON lines or CSV.

They know no conversations and no segments, so only rates, the distribution of reused lengths and plateaus can be told.
docs/doctor.md lists the fields; all but time, prompt and cached tokens are dropped while a row is read.
"""

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import orjson

from foreword.doctor.errors import DoctorError

Fields = Mapping[str, object]

_CACHED: Final = (
    "cached_tokens",
    "cache_tokens",
    "insight_cache_tokens",
    "cache_read_input_tokens",
    "input_cached_tokens",
    "input_cache_read",
    "prompt_tokens_details.cached_tokens",
    "input_tokens_details.cached_tokens",
)
_CREATED: Final = ("cache_creation_input_tokens", "input_cache_creation", "cache_creation_tokens")
_ASKED: Final = ("input", "prompt_tokens", "input_tokens", "promptTokens")
_ANSWERED: Final = ("output", "completion_tokens", "output_tokens", "completionTokens")


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of log: how its rows are known, and where its numbers stand (paths through objects and JSON texts)."""

    name: str
    marks: tuple[tuple[str, ...], ...]
    """A row is of this kind if it has one field of each of these."""
    time: tuple[str, ...]
    model: tuple[str, ...]
    entry: tuple[str, ...]
    usage: tuple[str, ...]
    """Objects that hold the numbers, the first that has them counts; "" is the row itself."""
    split: bool
    """Whether input counts stand beside the cached ones where the totals do not tell."""


FORMATS: Final = (
    Format(
        "langfuse",
        (
            ("usageDetails", "usage_details", "usage", "inputUsage"),
            ("traceId", "trace_id", "startTime", "start_time"),
        ),
        ("startTime", "start_time", "timestamp"),
        ("model", "providedModelName", "provided_model_name"),
        ("name",),
        ("usageDetails", "usage_details", "usage"),
        split=True,
    ),
    Format(
        "litellm",
        (("prompt_tokens",), ("call_type", "startTime", "start_time", "api_base", "spend")),
        ("startTime", "start_time", "created_at"),
        ("model_group", "model"),
        ("call_type",),
        ("metadata.usage_object", "metadata.additional_usage_values", "response.usage", "usage", ""),
        split=False,
    ),
    Format(
        "new-api",
        (("prompt_tokens",), ("created_at", "time", "timestamp")),
        ("created_at", "time", "timestamp"),
        ("model_name", "model"),
        ("other.request_path", "request_path", "path", "endpoint"),
        ("other", "usage", ""),
        split=False,
    ),
)


def detect(files: list[Path]) -> Format | None:
    """The kind of log that the first row is; None for a ledger, or nothing known."""
    for path in files:
        try:
            row = next(_rows(path, first=True), None)
        except OSError:
            continue  # the reading of all of it tells why
        if row is None:
            continue
        if "request_id" in row and ("verdict" in row or ("route" in row and "outcome" in row)):
            return None
        for kind in FORMATS:
            if all(any(_at(row, name) is not None for name in mark) for mark in kind.marks):
                return kind
        return None
    return None


def convert(files: list[Path], kind: Format, target: Path) -> list[str]:
    """Writes the rows as flat records, one a line, to ``target``; tells what should be known of them."""
    taken = left = 0
    with target.open("wb") as out:
        for path in files:
            for row in _rows(path):
                record = _record(row, kind, taken)
                if record is None:
                    left += 1
                    continue
                taken += 1
                out.write(orjson.dumps(record) + b"\n")
    if not taken:
        raise DoctorError(f"{files[0].name}: rows of {kind.name}, but none with a time and prompt tokens")
    text = (
        f"a log of {kind.name}: it knows no conversations and no segments, so only rates, reused lengths and plateaus"
        " are told; a plateau of first turns looks like a pinned one"
    )
    notes = [text]
    if left:
        notes.append(
            f"{left:,} rows without a time or prompt tokens, or answered from the gateway's own cache, left out"
        )
    return notes


def _record(row: Fields, kind: Format, number: int) -> dict[str, object] | None:
    when = _seconds(_first(row, kind.time))
    if when is None or _first(row, ("cache_hit",)) in (True, "True", "true"):
        return None
    if _text(_first(row, ("type",))) not in (None, "GENERATION", "2", ""):
        return None
    prompt, cached = _tokens(row, kind)
    if not prompt:
        return None
    return {
        "request_id": f"{kind.name}-{number}",
        "time": when,
        "route": "chat",
        "entry": _text(_first(row, kind.entry)) or kind.name,
        "model": _text(_first(row, kind.model)),
        "outcome": "ok",
        "prompt_tokens": prompt,
        "cached_tokens": cached,
    }


def _tokens(row: Fields, kind: Format) -> tuple[int | None, int | None]:
    """All prompt tokens, and the cached ones among them (None: not reported)."""
    cached = created = None
    for place in kind.usage:
        usage = row if not place else _at(row, place)
        if not isinstance(usage, Mapping):
            continue
        cached, created = _count(_first(usage, _CACHED)), _count(_first(usage, _CREATED))
        if cached is not None:
            break
    held = next(
        (each for place in kind.usage if isinstance(each := _at(row, place), Mapping) and _asks(each)), row
    )
    # A log's own column of prompt tokens before what a provider wrote into its details.
    asked = _count(_first(row, ("prompt_tokens",)))
    if asked is None:
        asked = _count(_first(held, _ASKED))
    if asked is None or cached is None:
        return asked, cached
    beside = cached + (created or 0)
    total, answered = _count(_first(held, ("total", "total_tokens"))), _count(_first(held, _ANSWERED)) or 0
    if cached > asked or (total is not None and total == asked + beside + answered):
        return asked + beside, cached
    if total is not None and total == asked + answered:
        return asked, cached
    return (asked + beside if kind.split and _first(held, ("input",)) is not None else asked), cached


def _asks(usage: Fields) -> bool:
    return _first(usage, _ASKED) is not None


def _rows(path: Path, *, first: bool = False) -> Iterator[Fields]:
    """The rows of one file that are objects. With ``first`` only the head of the file is looked at where that does."""
    if path.suffix == ".csv":
        csv.field_size_limit(sys.maxsize)
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            yield from csv.DictReader(file)
        return
    if path.name.endswith(".gz"):
        return
    with path.open("rb") as file:
        line = file.readline().strip()
        whole = line[:1] == b"[" or (line[:1] == b"{" and not _is_json(line))
        file.seek(0)
        if whole:
            yield from _objects(file.read())
            return
        for n, line in enumerate(file):
            if first and n > 100:
                return
            yield from _objects(line)


def _objects(text: bytes) -> Iterator[Fields]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return
    if isinstance(value, Mapping) and isinstance(value.get("data"), list):
        value = value["data"]
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, Mapping):
            yield each


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _at(row: Fields, path: str) -> object:
    """The value at a path; a text on the way that holds JSON is opened."""
    value: object = row
    for name in path.split(".") if path else ():
        if isinstance(value, str) and value[:1] == "{":
            value = next(_objects(value.encode()), None)
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, str) and value[:1] == "{":
        value = next(_objects(value.encode()), value)
    return value if value != "" else None


def _first(row: Fields, paths: Iterable[str]) -> object:
    return next((value for path in paths if (value := _at(row, path)) is not None), None)


def _count(value: object) -> int | None:
    try:
        return int(float(value)) if isinstance(value, int | float | str) else None
    except ValueError:
        return None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _seconds(value: object) -> float | None:
    """A time as seconds since 1970: a number (of seconds or milliseconds), or a date and time (UTC unless it says)."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            try:
                moment = datetime.fromisoformat(str(value))
            except ValueError:
                return None
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not isinstance(value, int | float):
        return None
    return value / 1000 if value > 1e11 else float(value)
