"""Health and metrics, asked as a client asks."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.routing import Router

from foreword import __version__
from foreword.app import control_routes
from foreword.control import Control
from foreword.engines import EngineState
from foreword.metrics import Metrics


class Sidecar:
    """The control endpoints with what stands behind them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.engine = EngineState(kind="auto", clock=lambda: self.now)
        control = Control(self.engine, Metrics(dict, self.engine), streams=lambda: 3, clock=lambda: self.now)
        self._app = Router(control_routes(control))

    def ask(self, path: str, method: str = "GET") -> httpx.Response:
        async def asking() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
                return await client.request(method, path)

        return asyncio.run(asking())

    def meet(self, **known: Any) -> None:
        for name, value in known.items():
            setattr(self.engine, name, value)
        self.engine.seen()


def test_before_the_engine_was_reached() -> None:
    sidecar = Sidecar()
    sidecar.now += 2.5
    answer = sidecar.ask("/health")
    assert answer.status_code == 503
    assert answer.json() == {
        "sidecar": {"version": __version__, "uptime_seconds": 2.5, "streams": 3},
        "engine": {
            "kind": "auto",
            "version": None,
            "reachable": False,
            "models": [],
            "window": None,
            "late_system": None,
            "last_seen_seconds": None,
        },
        "findings": [],
    }
    assert sidecar.ask("/health/ready").status_code == 503
    assert sidecar.ask("/health/live").status_code == 200


def test_with_the_engine_there() -> None:
    sidecar = Sidecar()
    sidecar.meet(kind="vllm", version="0.32.0", models=("tiny",), window=65536, late_system="system")
    sidecar.now += 4
    answer = sidecar.ask("/health")
    assert answer.status_code == 200
    assert answer.json()["engine"] == {
        "kind": "vllm",
        "version": "0.32.0",
        "reachable": True,
        "models": ["tiny"],
        "window": 65536,
        "late_system": "system",
        "last_seen_seconds": 4.0,
    }
    assert sidecar.ask("/health/ready").status_code == 200


def test_an_engine_that_went_away() -> None:
    sidecar = Sidecar()
    sidecar.meet(kind="vllm", models=("tiny",))
    sidecar.engine.reachable = False
    assert sidecar.ask("/health").status_code == 503
    assert sidecar.ask("/health").json()["engine"]["models"] == ["tiny"], "what was known is still told"
    assert sidecar.ask("/health/ready").status_code == 503
    assert sidecar.ask("/health/live").status_code == 200


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("path", ["/", "/api/hello"])
def test_what_claude_code_asks_at_its_start(method: str, path: str) -> None:
    answer = Sidecar().ask(path, method)
    assert answer.status_code == 200
    assert bool(answer.content) is (method == "GET")


def test_metrics() -> None:
    answer = Sidecar().ask("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "foreword_engine_up 0.0" in answer.text
