"""The plan as one page without anything to load: a plot of evictions and one of tokens read again, and the tables."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from .grid import Row
from .report import Plan, as_text

_WIDTH, _HEIGHT, _MARGIN = 640, 280, 56
_COLOURS: Final = ("#1b6ca8", "#c44e52", "#55803f", "#8172b2", "#b5803a", "#4c9f9f", "#7a7a7a", "#c77cba")


def page(plan: Plan) -> str:
    """HTML."""
    turns = max(1, len(plan.load.requests))
    charts = [
        _chart(plan.rows, "evictions, % of turns", lambda row: 100 * row.outcome.evictions / turns),
        _chart(plan.rows, "tokens read again, millions", lambda row: row.outcome.reread_tokens / 1e6),
    ]
    if plan.load.timed:
        charts.append(_chart(plan.rows, "TTFT p95, seconds", lambda row: row.outcome.ttft_p95 or 0.0))
    return (
        "<!doctype html>\n<html lang=en><meta charset=utf-8><title>Strata's parking, planned</title>"
        "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#222}"
        "pre{overflow-x:auto;font-size:13px}svg{max-width:100%;height:auto}svg text{font-size:12px;fill:#444}"
        "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}svg text{fill:#bbb}}</style>"
        f"<h1>Strata's parking, planned</h1>{''.join(charts)}<pre>{escape(as_text(plan))}</pre></html>\n"
    )


def _chart(rows: Sequence[Row], title: str, value: Callable[[Row], float]) -> str:
    lines: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        setting = row.setting
        skip = "" if setting.skip_above_mib is None else f", skip above {setting.skip_above_mib} MiB"
        lines[f"slots {setting.slots}, every {setting.every}{skip}"].append((setting.mib, value(row)))
    right = max(mib for line in lines.values() for mib, _ in line) or 1
    top = max(y for line in lines.values() for _, y in line) or 1.0

    def at(mib: int, y: float) -> str:
        x = _MARGIN + mib / right * (_WIDTH - _MARGIN - 16)
        return f"{x:.1f},{_HEIGHT - _MARGIN / 2 - y / top * (_HEIGHT - _MARGIN):.1f}"

    drawn, legend = [], []
    for n, (name, line) in enumerate(sorted(lines.items())):
        colour, dash = _COLOURS[n % len(_COLOURS)], "" if n < len(_COLOURS) else ' stroke-dasharray="5 4"'
        points = " ".join(at(*point) for point in sorted(line))
        drawn.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}>'
            f"<title>{escape(name)}</title></polyline>"
        )
        y = 20 + 16 * n
        legend.append(
            f'<line x1="{_WIDTH}" x2="{_WIDTH + 22}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="2"'
            f"{dash}/>"
            f'<text x="{_WIDTH + 28}" y="{y}">{escape(name)}</text>'
        )
    base = _HEIGHT - _MARGIN / 2
    height = max(_HEIGHT, 24 + 16 * len(lines))
    axes = (
        f'<line x1="{_MARGIN}" x2="{_WIDTH - 16}" y1="{base}" y2="{base}" stroke="#888"/>'
        f'<line x1="{_MARGIN}" x2="{_MARGIN}" y1="{_MARGIN / 2}" y2="{base}" stroke="#888"/>'
        f'<text x="4" y="{_MARGIN / 2 + 4}">{top:,.4g}</text><text x="4" y="{base}">0</text>'
        f'<text x="{_MARGIN}" y="{base + 16}">0</text>'
        f'<text x="{_WIDTH - 16}" y="{base + 16}" text-anchor="end">{right:,} MiB</text>'
    )
    return (
        f"<h2>{escape(title)}</h2>"
        f'<svg viewBox="0 0 {_WIDTH + 300} {height}" role="img" aria-label="{escape(title)} by budget">'
        f"{axes}{''.join(drawn)}{''.join(legend)}</svg>"
    )
