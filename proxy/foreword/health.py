"""How the sidecar and its engine are: what /health answers, made of what is known already. Nothing here asks anyone."""

import time
from collections.abc import Callable

from foreword import __version__
from foreword.engines import EngineState
from foreword.findings import Board
from foreword.watching import Observer

RATE_SECONDS = 300.0
"""The window of the rates that are shown."""


class Health:
    """Gathers what is known."""

    def __init__(
        self,
        engine: EngineState,
        board: Board,
        observer: Observer,
        *,
        streams: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``streams``: how many exchanges run."""
        self._engine = engine
        self._board = board
        self._observer = observer
        self._streams = streams
        self._clock = clock
        self._started = clock()

    @property
    def ready(self) -> bool:
        """Whether the engine answered the last probe and serves."""
        return self._engine.reachable

    def ready_json(self) -> dict[str, object]:
        """For /health/ready."""
        return {
            "ready": self.ready,
            "last_seen_seconds": _rounded(self._engine.last_seen_seconds()),
            "scrape_age_seconds": _rounded(self._observer.scraper.age()),
        }

    def as_json(self) -> dict[str, object]:
        """For /health."""
        return {
            "sidecar": {
                "version": __version__,
                "uptime_seconds": round(self._clock() - self._started, 3),
                "streams": self._streams(),
            },
            "engine": self._engine_json(),
            "cache": self._cache_json(),
            "parking": self._parking_json(),
            "findings": [finding.in_short() for finding in self._board.open()],
        }

    def _engine_json(self) -> dict[str, object]:
        engine, scraper, gauges = self._engine, self._observer.scraper, self._observer.meter.gauges
        follower = self._observer.follower
        return {
            "kind": engine.kind,
            "version": engine.version,
            "reachable": engine.reachable,
            "models": list(engine.models),
            "window": engine.window,
            "late_system": engine.late_system,
            "last_seen_seconds": _rounded(engine.last_seen_seconds()),
            "restarts": self._observer.restarts.count,
            "queue": {"running": _whole(gauges.get("running")), "waiting": _whole(gauges.get("waiting"))},
            "metrics": {
                "age_seconds": _rounded(scraper.age()),
                "trouble": scraper.trouble,
                "failures": scraper.failures,
                "missing": list(self._observer.missing.missing),
            },
            "log": None
            if follower is None
            else {
                "trouble": follower.trouble,
                "lines": dict(self._observer.lines),
                "joins": None if self._observer.joiner is None else dict(self._observer.joiner.counts),
            },
        }

    def _cache_json(self) -> dict[str, object] | None:
        meter, level = self._observer.meter, self._observer.second_level
        if not meter.totals:
            return None
        window = meter.window(RATE_SECONDS)
        raw, gauges = meter.raw, meter.gauges
        return {
            "seconds": round(window.seconds, 1),
            "block_tokens": _whole(gauges.get("block_tokens")),
            "l1": {
                "hit_rate": _rounded(window.share("l1_hit_tokens", "l1_queried_tokens"), 4),
                "queried_tokens": _whole(window.of("l1_queried_tokens")),
                "usage": _rounded(gauges.get("l1_usage"), 4),
            },
            "l2": {
                "configured": level.configured,
                "ever_loaded": level.ever_loaded,
                "hit_rate": _rounded(window.share("l2_hit_tokens", "l2_queried_tokens"), 4),
                "stored_bytes": _whole(raw.get("l2_stored_bytes")),
                "loaded_bytes": _whole(raw.get("l2_loaded_bytes")),
                "allocation_failures": _whole(raw.get("l2_allocation_failures")),
            },
        }

    def _parking_json(self) -> dict[str, object] | None:
        parking, gauges = self._observer.parking, self._observer.meter.gauges
        if not parking.seen and "parking_enabled" not in gauges:
            return None
        enabled = gauges.get("parking_enabled")
        budget = parking.budget_bytes
        return {
            "enabled": None if enabled is None else bool(enabled),
            "parked": _first(parking.parked, gauges.get("parked")),
            "bytes": _first(parking.bytes, gauges.get("parked_bytes")),
            "budget_bytes": _first(budget, gauges.get("parking_budget_bytes")),
            "slots": _whole(gauges.get("parking_slots")),
            "evictions": parking.evictions if parking.seen else None,
            "parks": parking.parks if parking.seen else None,
            "restores": sum(parking.restores.values()) if parking.seen else None,
            "skips": dict(parking.skips) if parking.seen else None,
            "snapshot_bytes": parking.snapshot_bytes,
            "largest_snapshot_bytes": parking.largest_snapshot_bytes,
        }


def _first(told: int | None, other: float | None) -> int | None:
    return _whole(other) if told is None else told


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def _rounded(number: float | None, digits: int = 3) -> float | None:
    return None if number is None else round(number, digits)
