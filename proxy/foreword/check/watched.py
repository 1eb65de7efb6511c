"""Looks at what the watch will have to go by: the engine's metrics, its second cache level, parking, and its log."""

import math
import statistics

from foreword._core import snapshot_bytes
from foreword.check.line import Line
from foreword.engines.base import Engine, Fetch
from foreword.engines.loglines import Parked, Unknown
from foreword.engines.probe import ENGINES, Finding
from foreword.engines.reading import Counter, Reading, Unreadable
from foreword.settings import Settings
from foreword.watching.follower import Follower

_MIB = 1 << 20
_STRATA_STEP = 16_384
_FIT_POINTS = 3
_FIT_SPREAD = 2.0
"""A line through snapshots needs some of which the largest has twice the tokens of the smallest."""


class Watched:
    """One look at metrics and log."""

    def __init__(self, settings: Settings, fetch: Fetch) -> None:
        self._settings = settings
        self._fetch = fetch

    async def lines(self, found: Finding) -> list[Line]:
        """The report. Raises FetchError when the engine goes away."""
        engine = ENGINES[found.kind]
        log, snapshots = self._log(engine)
        lines: list[Line] = []
        if engine.metrics_path is not None:
            reading, line = await self._metrics(engine, engine.metrics_path)
            lines.append(line)
            if reading is not None:
                lines.append(_step(engine, reading))
                lines.append(_second_level(reading))
                if engine.kind == "strata":
                    lines.append(_parking(reading, found.window, snapshots))
        return lines + log

    async def _metrics(self, engine: Engine, path: str) -> tuple[Reading | None, Line]:
        answer = await self._fetch("GET", path)
        flag = engine.metrics_flag
        todo = f"start it with {flag}" if flag else f"make {path} reachable for the sidecar"
        if answer.status != 200:
            return None, Line("metrics", "warn", None, f"{path} answers with status {answer.status}", todo)
        try:
            reading = engine.read_metrics(answer.body)
        except Unreadable as error:
            return None, Line("metrics", "warn", None, f"{path}: {error}", todo)
        if reading.missing:
            text = f"this version lacks {', '.join(reading.missing)}"
            todo = "what they tell will not be known; a newer version may have them"
            return reading, Line("metrics", "warn", list(reading.missing), text, todo)
        return reading, Line("metrics", "ok", [], "all families that are watched are there")

    def _log(self, engine: Engine) -> tuple[list[Line], list[tuple[int, int]]]:
        """The line on the log, and the snapshots that it tells of as (tokens, bytes)."""
        path, reader = self._settings.engine_log, engine.log_reader()
        if path is None:
            if reader is None or not reader.joins:
                return [], []
            text = (
                "not followed: evictions, and what was reused on builds that do not report it, stay unknown"
            )
            return [
                Line("engine log", "warn", None, text, "set FOREWORD_ENGINE_LOG to the engine's log file")
            ], []
        follower = Follower(path)
        lines = follower.poll().lines
        follower.close()
        if follower.trouble is not None:
            text, todo = (
                f"{path}: {follower.trouble}",
                "correct the path, or mount the file where the sidecar runs",
            )
            return [Line("engine log", "fail", None, text, todo)], []
        if reader is None:
            text = f"{path} is there, but nothing is known of the logs of this kind of engine"
            return [Line("engine log", "warn", None, text, "unset FOREWORD_ENGINE_LOG")], []
        events = [event for line in lines for event in reader.read(line)]
        known = [event for event in events if not isinstance(event, Unknown)]
        snapshots = [
            (event.tokens, event.snapshot_bytes)
            for event in known
            if isinstance(event, Parked) and event.snapshot_bytes
        ]
        text = f"{path}: {len(known)} lines about prompts and parking in its last {len(lines)}"
        if lines and not known:
            return [Line("engine log", "warn", 0, text, "see that it is the engine's stderr")], snapshots
        return [Line("engine log", "ok", len(known), text)], snapshots


def _step(engine: Engine, reading: Reading) -> Line:
    name, block = "cache step", reading.gauges.get("block_tokens")
    if reading.gauges.get("prefix_caching") == 0:
        return Line(name, "fail", None, "prefix caching is off", "start the engine with prefix caching on")
    if block:
        return Line(
            name, "ok", round(block), f"blocks of {round(block)} tokens: less than one is never reused"
        )
    if engine.kind == "strata":
        text = f"checkpoints every {_STRATA_STEP:,} tokens, unless --prompt-cache-every says otherwise"
        return Line(name, "ok", None, text)
    return Line(name, "ok", None, "not told")


def _second_level(reading: Reading) -> Line:
    def total(*words: Counter) -> float | None:
        told = [sum(reading.counters[word].values()) for word in words if word in reading.counters]
        return sum(told) if told else None

    name = "second cache level"
    stored = total("l2_stored_bytes", "l2_stored_blocks")
    loaded = total("l2_loaded_bytes", "l2_loaded_blocks")
    hits = total("l2_hit_tokens")
    if loaded or hits:
        return Line(name, "ok", True, "configured, and it has been read")
    if stored:
        text = f"{stored:,.0f} bytes or blocks written, and not one was read yet"
        todo = "with traffic that returns, see /health for l2-write-only: it may save nothing"
        return Line(name, "warn", False, text, todo)
    if stored is not None or reading.gauges.get("l2_bytes"):
        return Line(name, "ok", None, "configured; nothing was written yet")
    return Line(name, "ok", None, "none configured")


def _parking(reading: Reading, window: int | None, snapshots: list[tuple[int, int]]) -> Line:
    name, gauges = "parking", reading.gauges
    enabled, budget = gauges.get("parking_enabled"), gauges.get("parking_budget_bytes")
    if enabled is None and budget is None:
        return Line(
            name, "warn", None, "this build does not tell of it", "see its start-up line for the budget"
        )
    if not enabled and not budget:
        text = "off: conversations that take turns are read again"
        return Line(name, "warn", False, text, "start Strata with --conversation-cache-mib")
    if budget is None:
        return Line(name, "warn", None, "on, with a budget that it does not tell", "see its start-up line")
    shown = f"budget {budget / _MIB:,.0f} MiB"
    if window is None:
        text = f"{shown}; the context length is not told, so how many conversations of it fit is not known"
        return Line(name, "warn", None, text, "see Strata's start-up line for the context length")
    own = snapshot_size(snapshots, window)
    size = snapshot_bytes([], [window])[0] if own is None else own
    fits = math.floor(budget / size)
    text = f"{shown}; a conversation of the context length takes about {size / _MIB:,.0f} MiB"
    if own is None:
        # Sizes go by the model: the default is the planner's, as measured on one.
        text += " by the planner's default table, as no conversation was parked in the log yet"
        todo = "park a long conversation, with FOREWORD_ENGINE_LOG set, and check again for this engine's own sizes"
        return Line(name, "ok" if fits else "warn", fits, f"{text}: room for {fits}", todo)
    if fits < 1:
        return Line(name, "fail", 0, text, f"set --conversation-cache-mib above {math.ceil(size / _MIB)}")
    return Line(name, "ok", fits, f"{text}: room for {fits}")


def snapshot_size(snapshots: list[tuple[int, int]], tokens: int) -> float | None:
    """What a conversation of ``tokens`` takes, in bytes, by the snapshots (tokens, bytes) of this engine's own log.

    A line through them where they differ enough; else in proportion to the largest, which is too much rather than too
    little. None without any.
    """
    known = [(size, held) for size, held in snapshots if size > 0]
    if not known:
        return None
    sizes = [size for size, _ in known]
    if len(set(sizes)) >= _FIT_POINTS and max(sizes) >= _FIT_SPREAD * min(sizes):
        slope, base = statistics.linear_regression(sizes, [held for _, held in known])
        if slope > 0 and slope * tokens + base > 0:
            return slope * tokens + base
    size, held = max(known)
    return held / size * tokens
