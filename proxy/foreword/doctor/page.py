"""The report as one HTML page: plots as inline SVG, nothing loaded from anywhere, light and dark."""

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any, Final

from foreword.doctor.diagnosis import Diagnosis
from foreword.doctor.terminal import cost_of, moment, percent, tokens
from foreword.doctor.values import real, text, whole

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2126; --dim: #66707a; --page: #fff; --line: #dfe3e7; --bar: #3b7dd8;
  --red: #c62f2f; --amber: #a86a00; --green: #1f7a45; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e7eb; --dim: #98a2ac; --page: #15191d; --line: #30373e;
  --bar: #5c9bee; --red: #f07070; --amber: #e0a63c; --green: #5cc98a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; } h3 { font-size: 1rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid var(--line); } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.dim { color: var(--dim); } .critical, .bad { color: var(--red); } .warning, .middling { color: var(--amber); }
.good { color: var(--green); }
.finding { border-left: 4px solid currentColor; padding: .1rem 0 .1rem .9rem; margin: .9rem 0; }
.finding p { color: var(--ink); margin: .2rem 0; } .wide { overflow-x: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .faint { fill: var(--dim); }
svg rect { fill: var(--bar); } svg rect.pin { fill: var(--red); }
svg path { stroke: var(--bar); fill: none; stroke-width: 2; }
svg line { stroke: var(--line); } svg circle { fill: var(--bar); }
"""

_WIDTH: Final = 760


def page(found: Diagnosis) -> str:
    """The whole page."""
    return "".join(_page(found))


def _page(found: Diagnosis) -> Iterator[str]:
    total = found.rates.total
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Foreword: who lost the prefix</title><style>{_STYLE}</style></head><body>"
        f"<h1>Hit rate {_rate(total['hit_rate'])}</h1>"
        f"<p>{whole(total['requests']):,} requests from {moment(total['first'])} to {moment(total['last'])} UTC:"
        f" {tokens(total['cached_tokens'])} of {tokens(total['prompt_tokens'])} prompt tokens came from the cache."
    )
    if whole(total["not_reported"]):
        yield f" {whole(total['not_reported']):,} requests are not in it: their engine did not report cached tokens."
    yield f'</p><p class="dim">{escape(found.name)}</p>'
    if found.format == "ledger":
        yield from _findings(found)
    yield from _entries(found)
    yield from _days(found)
    yield from _lengths(found)
    yield from _segments(found)
    yield from _verdicts(found)
    yield from (f'<p class="dim">{escape(note)}</p>' for note in found.notes)
    yield "</body></html>\n"


def _findings(found: Diagnosis) -> Iterator[str]:
    yield "<h2>Findings</h2>"
    if not found.findings:
        yield '<p class="good">None.</p>'
    for finding in found.findings:
        yield (
            f'<div class="finding {finding.severity}"><strong>{finding.severity}: {finding.id}</strong>'
            f"<p>{escape(finding.subject)} ({finding.count:,} times{cost_of(finding)})</p>"
            f"<p>{escape(finding.advice)}</p></div>"
        )


def _entries(found: Diagnosis) -> Iterator[str]:
    rows = (
        [
            " ".join(str(row[name]) for name in ("entry", "client", "model") if row[name] is not None),
            whole(row["requests"]),
            tokens(row["prompt_tokens"]),
            tokens(row["cached_tokens"]),
            _Markup(_rate(row["hit_rate"])),
            whole(row["not_reported"]),
        ]
        for row in found.rates.by_entry
    )
    yield "<h2>Hit rate by entry, client, model</h2>"
    yield from _table(["", "requests", "prompt", "cached", "hit rate", "not reported"], rows)


def _days(found: Diagnosis) -> Iterator[str]:
    days = [row for row in found.rates.by_day if row["hit_rate"] is not None]
    if len(days) < 2:
        return
    height, left = 160, 40
    step = (_WIDTH - left - 20) / (len(days) - 1)
    points = [
        (left + n * step, 10 + (1 - real(row["hit_rate"])) * (height - 40)) for n, row in enumerate(days)
    ]
    yield f'<h2>Hit rate by day</h2><div class="wide"><svg width="{_WIDTH}" height="{height}" role="img">'
    for share in (0.0, 0.5, 1.0):
        y = 10 + (1 - share) * (height - 40)
        yield f'<line x1="{left}" x2="{_WIDTH}" y1="{y}" y2="{y}"/>'
        yield f'<text class="faint" x="0" y="{y + 4}">{share:.0%}</text>'
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    yield f'<path d="M{path}"/>'
    every = max(1, len(days) // 8)
    for n, ((x, y), row) in enumerate(zip(points, days, strict=True)):
        label = f"{row['day']}: {percent(row['hit_rate'])} of {whole(row['requests']):,} requests"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{label}</title></circle>'
        if n % every == 0:
            yield f'<text class="faint" x="{x - 16:.1f}" y="{height - 6}">{str(row["day"])[5:]}</text>'
    yield "</svg></div>"


def _lengths(found: Diagnosis) -> Iterator[str]:
    if found.lengths:
        yield "<h2>How much was reused</h2>"
    for group in found.lengths:
        bins: list[dict[str, object]] = list(_rows(group["bins"]))
        pins = [
            (plateau, segment)
            for plateau, segment in found.plateaus
            if (plateau.entry, plateau.client, plateau.model)
            == (str(group["entry"]), str(group["client"]), text(group["model"]))
        ]
        most = max(whole(each["requests"]) for each in bins)
        name = " ".join(str(group[key]) for key in ("entry", "client", "model") if group[key] is not None)
        height = 22 * len(bins) + 6
        yield f'<h3>{escape(name)}</h3><div class="wide"><svg width="{_WIDTH}" height="{height}" role="img">'
        for n, each in enumerate(bins):
            start, count = whole(each["from"]), whole(each["requests"])
            end = 0 if start == 0 else 1024 if start == 1 else 2 * start
            pinned = any(start <= plateau.tokens < end and not plateau.by_engine for plateau, _ in pins)
            width = max(1.0, (_WIDTH - 330) * count / most)
            y = 22 * n + 3
            span = "0" if start == 0 else f"{start:,} .. {end - 1:,}"
            kind = 'class="pin" ' if pinned else ""
            yield (
                f'<text x="150" y="{y + 13}" text-anchor="end">{span}</text>'
                f'<rect {kind}x="160" y="{y}" width="{width:.1f}" height="17"/>'
                f'<text class="faint" x="{166 + width:.1f}" y="{y + 13}">{count:,} (mean prompt'
                f" {tokens(each['mean_prompt'])})</text>"
            )
        yield "</svg></div>"
        for plateau, segment in pins:
            where = f" at {escape(segment[0])} ({escape(segment[1])})" if segment else ""
            told = "the engine kept no more than" if plateau.by_engine else f"pinned{where} at exactly"
            yield (
                f'<p class="{"dim" if plateau.by_engine else "bad"}">{plateau.requests:,} requests: {told}'
                f" {plateau.tokens:,} tokens, while prompts went from {tokens(plateau.shortest)} to"
                f" {tokens(plateau.longest)}</p>"
            )


def _segments(found: Diagnosis) -> Iterator[str]:
    if not found.segments:
        return
    yield "<h2>Segments of the head</h2>"
    rows = (
        [
            f"{each.entry} {each.client}",
            each.path,
            each.segment_class,
            each.bytes,
            each.requests,
            each.distinct,
            _Markup(
                f'<span class="bad">{each.changes:.1%} volatile</span>'
                if each.volatile
                else f"{each.changes:.1%}"
                if each.later or each.distinct == 1
                else "-"
            ),
        ]
        for each in found.segments
    )
    yield from _table(
        ["entry, client", "path", "class", "bytes", "requests", "distinct", "change by turn"], rows
    )


def _verdicts(found: Diagnosis) -> Iterator[str]:
    if found.verdicts:
        yield "<h2>Verdicts</h2>"
        yield from _table(
            ["", "requests", "share", "tokens lost"],
            (
                [row["name"], whole(row["requests"]), percent(row["share"]), tokens(row["tokens_lost"])]
                for row in found.verdicts
            ),
        )
    if found.shadow:
        yield "<h2>What rules that are off would have saved</h2>"
        yield from _table(
            ["rule", "requests", "tokens", "hit rate that might have been"],
            (
                [row["rule"], whole(row["requests"]), tokens(row["tokens"]), percent(row["hit_rate"])]
                for row in found.shadow
            ),
        )


class _Markup(str):
    """A cell that is markup already."""

    __slots__ = ()


def _table(heads: list[str], rows: Iterable[list[Any]]) -> Iterator[str]:
    yield '<div class="wide"><table><tr>'
    yield "".join(f'<th class="{"" if n == 0 else "n"}">{escape(head)}</th>' for n, head in enumerate(heads))
    yield "</tr>"
    for row in rows:
        yield "<tr>"
        for cell in row:
            number = isinstance(cell, int)
            shown = cell if isinstance(cell, _Markup) else f"{cell:,}" if number else escape(str(cell))
            yield f'<td class="{"" if cell is row[0] else "n"}">{shown}</td>'
        yield "</tr>"
    yield "</table></div>"


def _rate(value: object) -> str:
    if value is None:
        return '<span class="dim">-</span>'
    share = real(value)
    kind = "good" if share >= 0.8 else "middling" if share >= 0.5 else "bad"
    return f'<span class="{kind}">{share:.1%}</span>'


def _rows(value: object) -> Iterable[dict[str, object]]:
    return value if isinstance(value, list) else []
