"""The report for people on a terminal: to be read in a minute, worst first."""

import textwrap
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from foreword.doctor.diagnosis import Diagnosis
from foreword.doctor.segments import Segment
from foreword.doctor.style import Style
from foreword.doctor.values import real, text, whole
from foreword.findings import Finding

Row = dict[str, object]

_ROWS: Final = 8
"""Rows of a table before the rest is summed up in a line."""

_WIDTH: Final = 116

_COLOURS: Final = {"critical": ("red", "bold"), "warning": ("yellow", "bold"), "info": ("cyan",)}

ABSENT: Final = "-"


def tokens(count: object) -> str:
    """A number of tokens, short."""
    number = whole(count)
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if letter == 'k' else size):.1f} {letter}"
    return f"{number:,}"


def percent(share: object) -> str:
    """A share, or a dash where none can be told."""
    return ABSENT if share is None else f"{real(share):.1%}"


def lasting(seconds: float) -> str:
    """A span of time, short."""
    for size, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} s"


def cost_of(finding: Finding) -> str:
    """What a finding cost, as the end of a list."""
    if not finding.tokens:
        return ""
    took = "" if finding.seconds is None else f", which took the engine {lasting(finding.seconds)}"
    return f", {tokens(finding.tokens)} tokens read again{took}"


def moment(seconds: object) -> str:
    """A time in UTC."""
    return datetime.fromtimestamp(real(seconds), UTC).strftime("%Y-%m-%d %H:%M")


def lines(found: Diagnosis, style: Style) -> Iterator[str]:
    """The report."""
    yield from _head(found, style)
    if found.format == "ledger":
        yield from _findings(found, style)
    yield from _rates(found, style)
    yield from _lengths(found, style)
    if found.format == "ledger":
        yield from _segments(found, style)
        yield from _verdicts(found, style)
        yield from _shadow(found, style)
    for note in found.notes:
        yield style.paint(f"note: {note}", "dim")


def _head(found: Diagnosis, style: Style) -> Iterator[str]:
    total = found.rates.total
    rate = total["hit_rate"]
    span = f"{moment(total['first'])} to {moment(total['last'])} UTC" if total["first"] else "no time"
    yield style.paint(f"{whole(total['requests']):,} requests, {span}", "bold")
    shown = style.rate(None if rate is None else real(rate), percent(rate))
    yield (
        f"hit rate {shown}: {tokens(total['cached_tokens'])} of {tokens(total['prompt_tokens'])} prompt tokens came"
        " from the cache"
    )
    if whole(total["not_reported"]):
        yield (
            f"{whole(total['not_reported']):,} requests ({tokens(total['not_reported_tokens'])} tokens) are not in it:"
            " their engine did not report cached tokens"
        )
    beside = [
        f"{whole(total[name]):,} {what}"
        for name, what in (("refused", "that were refused"), ("unanswered", "that had no answer"))
        if whole(total[name])
    ]
    if beside:
        yield style.paint(f"not counted: {' and '.join(beside)}", "dim")


def _findings(found: Diagnosis, style: Style) -> Iterator[str]:
    yield ""
    if not found.findings:
        yield style.paint("No findings.", "green", "bold")
        return
    for finding in found.findings:
        label = style.paint(f"{finding.severity:8}", *_COLOURS[finding.severity])
        told = f"{finding.subject} ({finding.count:,} times{cost_of(finding)})"
        yield f"{label} {style.paint(finding.id, 'bold')}: {told}"
        yield from textwrap.wrap(
            finding.advice, _WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 9, break_on_hyphens=False
        )


def _table(title: str, rows: list[Row], name: str, style: Style) -> Iterator[str]:
    yield ""
    yield style.paint(
        f"{title:44} {'requests':>9} {'prompt':>9} {'cached':>9} {'hit rate':>8} {'':20} not reported", "bold"
    )
    for row in rows[:_ROWS]:
        rate = None if row["hit_rate"] is None else real(row["hit_rate"])
        missing = whole(row["not_reported"])
        yield (
            f"{_cut(str(row[name]), 44):44} {whole(row['requests']):9,} {tokens(row['prompt_tokens']):>9}"
            f" {tokens(row['cached_tokens']):>9} {style.rate(rate, f'{percent(rate):>8}')}"
            f" {style.rate(rate, style.bar(rate or 0.0))} {f'{missing:,}' if missing else ''}"
        ).rstrip()
    if len(rows) > _ROWS:
        yield style.paint(f"... and {len(rows) - _ROWS} more (--json has all)", "dim")


def _rates(found: Diagnosis, style: Style) -> Iterator[str]:
    rates = found.rates
    entries = [row | {"name": _who(row)} for row in rates.by_entry]
    yield from _table("by entry, client, model", entries, "name", style)
    if len(rates.by_client) > 1 and len(rates.by_client) != len(rates.by_entry):
        yield from _table("by client", rates.by_client, "client", style)
    if len(rates.by_model) > 1 and len(rates.by_model) != len(rates.by_entry):
        yield from _table("by model", rates.by_model, "model", style)
    if len(rates.by_day) > 1:
        days = rates.by_day[-_ROWS:]
        yield from _table(
            "by day (UTC)" + (", latest" if len(rates.by_day) > _ROWS else ""), days, "day", style
        )


def _lengths(found: Diagnosis, style: Style) -> Iterator[str]:
    pinned = {
        (plateau.entry, plateau.client, plateau.model, plateau.tokens): (plateau, segment)
        for plateau, segment in found.plateaus
    }
    order = {(row["entry"], row["client"], row["model"]): n for n, row in enumerate(found.rates.by_entry)}
    groups = sorted(
        found.lengths, key=lambda group: order.get((group["entry"], group["client"], group["model"]), 0)
    )
    for group in groups[:_ROWS]:
        yield ""
        yield style.paint(f"reused length, {_who(group)}", "bold")
        bins = _rows(group["bins"])
        total = sum(whole(each["requests"]) for each in bins)
        for each in bins:
            share = whole(each["requests"]) / total
            yield (
                f"  {_bin(whole(each['from'])):>22} {whole(each['requests']):8,} {style.bar(share)}"
                f" {share:6.1%}   mean prompt {tokens(each['mean_prompt'])}"
            )
        for each in _rows(group["exact"]):
            key = (str(group["entry"]), str(group["client"]), text(group["model"]), whole(each["tokens"]))
            if key in pinned:
                plateau, segment = pinned[key]
                yield _pin(plateau.by_engine, whole(each["requests"]), plateau.tokens, segment, style) + (
                    f" while prompts went from {tokens(plateau.shortest)} to {tokens(plateau.longest)}"
                )


def _pin(by_engine: bool, requests: int, length: int, segment: tuple[str, str] | None, style: Style) -> str:
    if by_engine:
        return f"  exactly {length:,}: {requests:,} requests, where the engine kept no more,"
    at = f" at {segment[0]} ({segment[1]})" if segment else ""
    return style.paint(f"  pinned at exactly {length:,}{at}: {requests:,} requests", "red") + ","


def _segments(found: Diagnosis, style: Style) -> Iterator[str]:
    if not found.segments:
        return
    yield ""
    yield style.paint(
        f"{'segments of the head':44} {'class':11} {'bytes':>8} {'requests':>9} {'distinct':>9} {'change':>7}",
        "bold",
    )
    shown = list(_folded(found.segments))
    owner = None
    for name, segment, size in shown[: 3 * _ROWS]:
        if owner != (segment.entry, segment.client):
            owner = (segment.entry, segment.client)
            yield style.paint(" ".join(owner), "dim")
        told = segment.later or segment.distinct == 1
        change = f"{segment.changes:7.1%}" if told else f"{ABSENT:>7}"
        line = (
            f"  {_cut(name, 42):42} {segment.segment_class:11} {size:8,} {segment.requests:9,}"
            f" {segment.distinct:9,} {change}"
        )
        yield style.paint(f"{line}  volatile", "red") if segment.volatile else line
    if len(shown) > 3 * _ROWS:
        yield style.paint(f"... and {len(shown) - 3 * _ROWS} more (--json has all)", "dim")
    yield style.paint("change: on how many later turns of a conversation the segment differed", "dim")
    if any(" .. " in name for name, _, _ in shown[: 3 * _ROWS]):
        yield style.paint(
            "a row with `..`: segments that never change, in as many requests each; bytes of all", "dim"
        )


def _folded(segments: list[Segment]) -> Iterator[tuple[str, Segment, int]]:
    """Neighbours of one class that never change, in as many requests, as one row: name, one of them, bytes of all."""
    held: list[Segment] = []

    def flush() -> Iterator[tuple[str, Segment, int]]:
        if held:
            first, last = held[0], held[-1]
            name = first.path if len(held) == 1 else f"{first.path} .. {last.path}"
            yield name, first, sum(each.bytes for each in held)
            held.clear()

    for segment in segments:
        if held and not (segment.distinct == 1 and _alike(held[0], segment)):
            yield from flush()
        held.append(segment)
    yield from flush()


def _alike(one: Segment, other: Segment) -> bool:
    """Whether the figures of the one stand for the other's too."""

    def figures(segment: Segment) -> tuple[str, str, str, int, int]:
        return segment.entry, segment.client, segment.segment_class, segment.requests, segment.distinct

    return figures(one) == figures(other)


def _verdicts(found: Diagnosis, style: Style) -> Iterator[str]:
    if not found.verdicts:
        return
    yield ""
    yield style.paint(f"{'verdicts':44} {'requests':>9} {'share':>8} {'':20} tokens lost", "bold")
    for row in found.verdicts:
        share = real(row["share"])
        yield (
            f"{row['name']!s:44} {whole(row['requests']):9,} {share:8.1%} {style.bar(share)}"
            f" {tokens(row['tokens_lost'])}"
        )
    for row in found.divergences[:_ROWS]:
        yield (
            f"  {'changed at ' + str(row['path']):42} {whole(row['requests']):9,} {'':8} {row['class']!s:20}"
            f" {tokens(row['tokens_lost'])}"
        )


def _shadow(found: Diagnosis, style: Style) -> Iterator[str]:
    if not found.shadow:
        return
    yield ""
    yield style.paint("rules that are off would have saved", "bold")
    for row in found.shadow:
        might = (
            "" if row["hit_rate"] is None else f"; the hit rate might have been {percent(row['hit_rate'])}"
        )
        yield f"  {row['rule']}: {tokens(row['tokens'])} tokens in {whole(row['requests']):,} requests{might}"


def _who(row: Row) -> str:
    return " ".join(str(row[name]) for name in ("entry", "client", "model") if row[name] is not None)


def _bin(start: int) -> str:
    if start == 0:
        return "0"
    end = 1024 if start == 1 else 2 * start
    return f"{start:,} .. {end - 1:,}"


def _rows(value: object) -> Iterable[Row]:
    return value if isinstance(value, list) else []


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 3] + "..."
