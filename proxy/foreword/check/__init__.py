"""``foreword check``: what the configured engine can do, and what of it stands in the way of a warm prefix cache."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict

import orjson

from foreword.check.line import Line
from foreword.check.preflight import Preflight
from foreword.doctor.style import Style
from foreword.engines.direct import Direct
from foreword.settings import Settings

TIMEOUT_SECONDS = 20.0
"""For each step of an answer: the first chat may wait behind others."""


def as_table(lines: Sequence[Line]) -> str:
    """The report for a terminal: a line for each check, and under it what to do."""
    width = max(len(line.name) for line in lines)
    shown = []
    for line in lines:
        shown.append(f"{line.level.upper():<4}  {line.name:<{width}}  {line.text}")
        if line.todo is not None:
            shown.append(f"{'':<4}  {'':<{width}}  -> {line.todo}")
    return Style(colour=False, blocks=False).safe("\n".join(shown))


def as_json(lines: Sequence[Line]) -> str:
    """The report for machines."""
    good = not any(line.level == "fail" for line in lines)
    return orjson.dumps({"good": good, "checks": [asdict(line) for line in lines]}).decode()


def run(settings: Settings, *, machine: bool, show: Callable[[str], None]) -> int:
    """Runs the preflight and shows the report. Returns the exit status: 0 when nothing failed, else 1."""
    fetch = Direct(settings.upstream, settings.upstream_api_key, TIMEOUT_SECONDS)
    lines = asyncio.run(Preflight(settings, fetch).lines())
    show(as_json(lines) if machine else as_table(lines))
    return 1 if any(line.level == "fail" for line in lines) else 0
