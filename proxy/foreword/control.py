"""The control endpoints: health, metrics, and the answers to what clients ask before they begin."""

from collections.abc import Awaitable, Callable, Mapping

import orjson
from starlette.requests import Request
from starlette.responses import Response

from foreword import __version__
from foreword.health import Health
from foreword.metrics import CONTENT_TYPE, Metrics


class Control:
    """The endpoints that say how the sidecar and its engine are. None asks for a key, none shows a prompt's text."""

    def __init__(self, health: Health, metrics: Metrics) -> None:
        self._health = health
        self._metrics = metrics

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
        return _json(200 if self._health.ready else 503, self._health.ready_json())

    async def health(self, _: Request) -> Response:
        """Everything that is known, with the status of `ready`."""
        return _json(200 if self._health.ready else 503, self._health.as_json())

    async def metrics(self, _: Request) -> Response:
        """Prometheus' text format."""
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE)


def _json(status: int, body: object) -> Response:
    return Response(
        orjson.dumps(body), status, media_type="application/json", headers={"cache-control": "no-store"}
    )
