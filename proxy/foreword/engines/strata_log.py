"""Strata's log: lines of the form ``strata serve: what: ...``, which change from build to build.

So keys may come in any order, verbs and keys may be unknown, and a number that cannot be right makes the line unknown
rather than wrong.
"""

import re
from typing import Literal

from foreword.engines.loglines import (
    BudgetCut,
    Event,
    Parked,
    PromptRead,
    RefusalPause,
    Restored,
    Skipped,
    SkipReason,
    Superseded,
    Unknown,
)

_LONGEST = 2_048
"""Of a line that is read: the longest known one has 250 characters."""
_MIB = 1 << 20
_GIB = 1 << 30

# Where a line of the engine begins: two writers without a line end between them make one line of two.
_BEGIN = re.compile(r"strata[\w .-]{0,40}?:\s")
_PROMPT = re.compile(r"\bprompt\s+([\d,]+)\s+tokens?\s*=\s*(.*)", re.DOTALL)
_AMOUNT = re.compile(r"([\d,]+)\s+(reused|read|generated)\b(?:\s+in\s+([\d.]+)\s*ms)?")
_CHECKPOINTS = re.compile(r"\b(\d+)\s+checkpoints?\b")
_CACHE = re.compile(r"\bconversation cache:\s*(.*)", re.DOTALL)
_MOVED = re.compile(r"(\w+)\s+([\d,]+)\s+tokens\b(?:\s*\((\w+)\))?(?:.*?\bin\s+([\d.]+)\s*ms)?")
_PAIR = re.compile(r"\b(\w+)=(\d+)\b")
_DROPPED = re.compile(r"dropped\s+(\d+)\s+superseded\b")
_MIB_SIZE = re.compile(r"snapshot\s+([\d.]+)\s+(MiB|GiB)\b")
_REFUSALS = re.compile(r"(\d+)\s+consecutive\b.*\brefusals?\b")
_BUDGET = re.compile(r"budget\s+([\d.]+)\s+GiB(?:,\s*not\s+([\d.]+))?")
_NOT_PARKED = re.compile(r"\bNOT parked\b(?:.*?\(\s*([\d,]+)\s+tokens)?")

_PARKED = frozenset({"parked", "put"})
_RESTORED = frozenset({"restored", "best"})
_SKIPS: tuple[tuple[str, SkipReason], ...] = (
    ("exceeds", "snapshot-over-budget"),
    ("budget", "snapshot-over-budget"),
    ("admission", "ram-admission"),
    ("floor", "ram-floor"),
    ("telemetry", "ram-floor"),
)


class StrataLog:
    """Reads Strata's log."""

    joins = True

    def read(self, line: str) -> list[Event]:
        """What the line tells."""
        line = line[:_LONGEST]
        starts = [found.start() for found in _BEGIN.finditer(line)]
        if not starts:
            return []
        ends = [*starts[1:], len(line)]
        parts = (line[start:end] for start, end in zip(starts, ends, strict=True))
        return [event for part in parts if (event := _event(part)) is not None]


def _event(text: str) -> Event | None:
    if (cache := _CACHE.search(text)) is not None:
        return _cache(cache[1])
    if (prompt := _PROMPT.search(text)) is not None:
        return _prompt(_count(prompt[1]), prompt[2])
    if "parked-prefix budget" in text:
        found = _BUDGET.search(text)
        return _budget(found) if found else Unknown("budget")
    if (slot := _NOT_PARKED.search(text)) is not None:
        return Skipped("not-parked", tokens=_count(slot[1]) if slot[1] else None)
    return None


def _prompt(tokens: int, rest: str) -> Event:
    amounts = {what: (_count(number), ms) for number, what, ms in _AMOUNT.findall(rest)}
    reused, read = amounts.get("reused"), amounts.get("read")
    # The sum is the proof that no digit was lost where the line was cut.
    if reused is None or read is None or reused[0] + read[0] != tokens:
        return Unknown("prompt")
    generated = amounts.get("generated")
    return PromptRead(
        tokens=tokens,
        reused=reused[0],
        read=read[0],
        read_seconds=_seconds(read[1]),
        generated=generated[0] if generated and generated[1] else None,
        checkpoints=int(kept[1]) if (kept := _CHECKPOINTS.search(rest)) else None,
    )


def _cache(text: str) -> Event:
    moved = _MOVED.match(text)
    verb = moved[1].lower() if moved else text.split(" ", 1)[0].strip(";:,").lower()
    known = {key: int(value) for key, value in _PAIR.findall(text)}
    if moved is not None and verb in _PARKED:
        return Parked(
            tokens=_count(moved[2]),
            parked=known.get("parked"),
            bytes=known.get("bytes"),
            evictions=known.get("evictions"),
            snapshot_bytes=known.get("snapshot_bytes"),
        )
    if moved is not None and verb in _RESTORED:
        return Restored(
            tokens=_count(moved[2]),
            how=_how(moved[3]),
            seconds=_seconds(moved[4] or ""),
            parked=known.get("parked"),
            bytes=known.get("bytes"),
            evictions=known.get("evictions"),
        )
    if verb in ("skip", "skipped"):
        return Skipped(_reason(text), _size(text), _count(moved[2]) if moved else None)
    if (dropped := _DROPPED.match(text)) is not None:
        return Superseded(int(dropped[1]))
    if (refusals := _REFUSALS.match(text)) is not None:
        return RefusalPause(int(refusals[1]))
    return Unknown(verb if verb.isalpha() and len(verb) <= 20 else "cache")


def _reason(text: str) -> SkipReason:
    return next((reason for mark, reason in _SKIPS if mark in text), "other")


def _size(text: str) -> int | None:
    found = _MIB_SIZE.search(text)
    try:
        return round(float(found[1]) * (_MIB if found[2] == "MiB" else _GIB)) if found else None
    except ValueError:
        return None


def _how(word: str | None) -> Literal["live", "exact", "other"]:
    match word:
        case "live":
            return "live"
        case "exact":
            return "exact"
        case _:
            return "other"


def _budget(found: re.Match[str]) -> Event:
    try:
        wanted = float(found[2].rstrip(".")) if found[2] else None
        return BudgetCut(round(float(found[1]) * _GIB), None if wanted is None else round(wanted * _GIB))
    except ValueError:
        return Unknown("budget")


def _seconds(milliseconds: str) -> float | None:
    try:
        return float(milliseconds) / 1000
    except ValueError:
        return None


def _count(digits: str) -> int:
    return int(digits.replace(",", "") or 0)
