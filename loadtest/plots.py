"""Plots as SVG files, written by hand: points, lines, axes. They stand on any background, light or dark."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_WIDTH, _HEIGHT = 440, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 46, 44
_COLOURS = ("#3b7dd8", "#d9822b", "#3d9a5f", "#b04fb8", "#8a6d3b")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#67717b}text.title{font-weight:600;fill:#4a8ae0}"
    ".axis{stroke:#8a949e;stroke-opacity:.6}.grid{stroke:#8a949e;stroke-opacity:.2}"
)


@dataclass(frozen=True)
class Series:
    """Points of one name. A line joins them, or ``line`` (intercept and slope) is drawn through them."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    line: tuple[float, float] | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes; both begin at 0."""

    title: str
    x_title: str
    series: list[Series] = field(default_factory=list)


def ticks(top: float, wanted: int = 5) -> list[float]:
    """Round numbers from 0 to the first that is not below ``top``, about ``wanted`` of them."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    return [n * step for n in range(math.ceil(top / step - 1e-9) + 1)]


def label(value: float) -> str:
    """A tick's number in few characters."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def svg(panels: Sequence[Panel], columns: int = 2) -> str:
    """The panels beside and below each other, as one SVG document."""
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = columns * _WIDTH, rows * _HEIGHT
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>']
    for n, panel in enumerate(panels):
        parts.append(f'<g transform="translate({n % columns * _WIDTH} {n // columns * _HEIGHT})">')
        parts += _panel(panel)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> Iterator[str]:
    across = ticks(max((x for series in panel.series for x in series.xs), default=0.0))
    up = ticks(max((y for series in panel.series for y in series.ys), default=0.0))
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + inner_width * x / across[-1], _TOP + inner_height * (1 - y / up[-1])

    floor = _TOP + inner_height
    yield f'<text class="title" x="{_LEFT}" y="16">{escape(panel.title)}</text>'
    yield f'<text x="{_LEFT + inner_width / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(panel.x_title)}</text>'
    for value in up:
        _, y = place(0, value)
        kind = "grid" if value else "axis"
        yield f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label(value)}</text>'
    for value in across:
        x, _ = place(value, 0)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{floor + 4}"/>'
        yield f'<text x="{x:.1f}" y="{floor + 17}" text-anchor="middle">{label(value)}</text>'
    for n, series in enumerate(panel.series):
        colour = _COLOURS[n % len(_COLOURS)]
        points = [place(x, y) for x, y in zip(series.xs, series.ys, strict=True)]
        path = points
        if series.line is not None:
            # Only the part of the line that is inside the axes.
            path = list(_inside(series.line, across[-1], up[-1], place))
        if len(path) > 1:
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
            dash = ' stroke-dasharray="5 4"' if series.line is not None else ""
            yield f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>'
        if series.line is not None or len(points) <= 30:
            yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points)
        if len(panel.series) > 1:
            # The names stand above the axes, where no point can be.
            x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * n / len(panel.series)
            yield f'<circle cx="{x + 4:.1f}" cy="30" r="4" fill="{colour}"/>'
            yield f'<text x="{x + 13:.1f}" y="34">{escape(series.name)}</text>'


def _inside(
    line: tuple[float, float], right: float, top: float, place: Callable[[float, float], tuple[float, float]]
) -> Iterator[tuple[float, float]]:
    steps = 100
    for n in range(steps + 1):
        x = right * n / steps
        y = line[0] + line[1] * x
        if 0 <= y <= top:
            yield place(x, y)
