"""The control endpoints: health, metrics, and the answers to what clients ask before they begin."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import orjson
from starlette.requests import Request
from starlette.responses import Response

from foreword import __version__
from foreword.engines import EngineState
from foreword.findings import Finding
from foreword.metrics import CONTENT_TYPE, Metrics


class Control:
    """The endpoints that say how the sidecar and its engine are. None asks for a key, none shows a prompt's text."""

    def __init__(
        self,
        engine: EngineState,
        metrics: Metrics,
        streams: Callable[[], int],
        findings: Callable[[], Sequence[Finding]] = list,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._streams = streams
        self._findings = findings
        self._clock = clock
        self._started = clock()

    def endpoints(self) -> Mapping[str, Callable[[Request], Awaitable[Response]]]:
        """What answers GET and HEAD, by path."""
        return {
            "/": self.hello,
            "/api/hello": self.hello,
            "/health": self.health,
            "/health/live": self.live,
            "/health/ready": self.ready,
            "/metrics": self.metrics,
        }

    async def hello(self, _: Request) -> Response:
        """Claude Code asks HEAD / and HEAD /api/hello at its start."""
        return _json(200, {"service": "foreword", "version": __version__})

    async def live(self, _: Request) -> Response:
        """200 as long as the event loop turns: the sidecar need not be restarted."""
        return _json(200, {"live": True})

    async def ready(self, _: Request) -> Response:
        """200 when the engine answered the last probe, else 503: send no requests here."""
        ready = self._engine.reachable
        return _json(200 if ready else 503, {"ready": ready})

    async def health(self, _: Request) -> Response:
        """Everything that is known, with the status of `ready`."""
        engine = self._engine
        seen = engine.last_seen_seconds()
        body = {
            "sidecar": {
                "version": __version__,
                "uptime_seconds": round(self._clock() - self._started, 3),
                "streams": self._streams(),
            },
            "engine": {
                "kind": engine.kind,
                "version": engine.version,
                "reachable": engine.reachable,
                "models": list(engine.models),
                "window": engine.window,
                "late_system": engine.late_system,
                "last_seen_seconds": None if seen is None else round(seen, 3),
            },
            "findings": [finding.in_short() for finding in self._findings()],
        }
        return _json(200 if engine.reachable else 503, body)

    async def metrics(self, _: Request) -> Response:
        """Prometheus' text format."""
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE)


def _json(status: int, body: object) -> Response:
    return Response(
        orjson.dumps(body), status, media_type="application/json", headers={"cache-control": "no-store"}
    )
