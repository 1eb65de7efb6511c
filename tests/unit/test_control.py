"""Health and metrics, asked as a client asks."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Router
from tests.conftest import ROOT
from tests.unit.engines_fake import Reply

from foreword import __version__
from foreword.app import control_routes
from foreword.control import Control
from foreword.engines import EngineState, FetchError
from foreword.engines.base import Answer
from foreword.findings import Board
from foreword.health import Health
from foreword.metrics import HELP, Metrics
from foreword.settings import Settings
from foreword.watching import Observer, observed
from foreword.watching.follower import Lines
from foreword.watching.stats import COUNTERS, GAUGES


class Sidecar:
    """The control endpoints with what stands behind them."""

    def __init__(self, **settings: str) -> None:
        self.now = 1000.0
        self.engine = EngineState(kind="auto", clock=lambda: self.now)
        self.board = Board()
        self.answers: dict[str, bytes] = {}
        self.observer = Observer(
            Settings.from_env({f"FOREWORD_{name}": value for name, value in settings.items()}),
            self._fetch,
            self.engine,
            self.board,
            core=None,
            final=lambda _: None,
            doubt=lambda _: None,
            clock=lambda: self.now,
            wall=lambda: 1.8e9 + self.now,
        )
        health = Health(self.engine, self.board, self.observer, streams=lambda: 3, clock=lambda: self.now)
        metrics = Metrics(lambda: observed(self.observer), self.engine)
        self._app = Router(control_routes(Control(health, metrics)))

    async def _fetch(self, method: str, path: str, body: bytes | None = None) -> Answer:
        if path not in self.answers:
            raise FetchError("no answer within 5 s")
        return Reply(200, self.answers[path])

    def scrape(self, answer: bytes | None) -> None:
        self.answers = {} if answer is None else {"/metrics": answer}
        asyncio.run(self.observer.scraper.once())

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
            "restarts": 0,
            "queue": {"running": None, "waiting": None},
            "metrics": {"age_seconds": None, "trouble": None, "failures": 0, "missing": []},
            "log": None,
        },
        "cache": None,
        "parking": None,
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
    engine = answer.json()["engine"]
    assert (
        engine.items()
        >= {
            "kind": "vllm",
            "version": "0.32.0",
            "reachable": True,
            "models": ["tiny"],
            "window": 65536,
            "late_system": "system",
            "last_seen_seconds": 4.0,
        }.items()
    )
    ready = sidecar.ask("/health/ready")
    assert ready.status_code == 200
    assert ready.json() == {"ready": True, "last_seen_seconds": 4.0, "scrape_age_seconds": None}


def test_what_the_engines_metrics_say() -> None:
    sidecar = Sidecar()
    sidecar.meet(kind="vllm", models=("ds",))
    text = (ROOT / "tests/fixtures/engines/vllm/metrics-offload.txt").read_bytes()
    sidecar.scrape(text)
    sidecar.now += 10
    later = text.replace(b"1.0e+07", b"1.0001e+07").replace(b"8.83e+06", b"8.8308e+06")
    sidecar.scrape(later)
    sidecar.now += 3
    health = sidecar.ask("/health").json()
    assert health["engine"]["queue"] == {"running": 5, "waiting": 7}
    assert health["engine"]["metrics"] == {"age_seconds": 3.0, "trouble": None, "failures": 0, "missing": []}
    assert health["cache"] == {
        "seconds": 10.0,
        "block_tokens": 256,
        "l1": {"hit_rate": 0.8, "queried_tokens": 1000, "usage": 0.25},
        "l2": {
            "configured": True,
            "ever_loaded": False,
            "hit_rate": None,
            "stored_bytes": 21_646_236_160,
            "loaded_bytes": 0,
            "allocation_failures": 4,
        },
    }
    assert health["parking"] is None
    assert health["findings"] == []
    shown = sidecar.ask("/metrics").text
    assert "foreword_engine_waiting 7.0" in shown
    assert "foreword_engine_l1_hit_tokens_total 800.0" in shown
    assert 'foreword_engine_scrapes_total{result="ok"} 2.0' in shown


def test_a_hung_engine_leaves_what_was_known_and_says_so() -> None:
    sidecar = Sidecar()
    sidecar.meet(kind="vllm")
    sidecar.scrape((ROOT / "tests/fixtures/engines/vllm/metrics-0.32.txt").read_bytes())
    sidecar.now += 60
    sidecar.scrape(None)
    assert "foreword_engine_running" in sidecar.ask("/metrics").text
    metrics = sidecar.ask("/health").json()["engine"]["metrics"]
    assert metrics == {"age_seconds": 60.0, "trouble": "no answer within 5 s", "failures": 1, "missing": []}
    sidecar.now += 10
    assert "foreword_engine_running" not in sidecar.ask("/metrics").text, "too old to say anything of now"
    assert "foreword_engine_prompt_tokens_total" in sidecar.ask("/metrics").text


def test_parking_as_metrics_and_log_tell_it(tmp_path: Path) -> None:
    sidecar = Sidecar(ENGINE_LOG=str(tmp_path / "engine.log"))
    sidecar.meet(kind="strata")
    sidecar.scrape((ROOT / "tests/fixtures/engines/strata/metrics.json").read_bytes())
    parking = sidecar.ask("/health").json()["parking"]
    assert parking == {
        "enabled": True,
        "parked": 1,
        "bytes": 4_716_362_992,
        "budget_bytes": 8192 * 2**20,
        "slots": 20,
        "evictions": None,
        "parks": None,
        "restores": None,
        "skips": None,
        "snapshot_bytes": None,
        "largest_snapshot_bytes": None,
    }
    lines = (ROOT / "tests/fixtures/engines/strata/engine.log").read_text().splitlines()
    sidecar.observer.read_lines(Lines(lines, history=False))
    health = sidecar.ask("/health").json()
    assert (
        health["parking"].items()
        >= {
            "parked": 1,
            "budget_bytes": 1717986918,
            "evictions": 2508,
            "parks": 2,
            "restores": 2,
            "skips": {"snapshot-over-budget": 1, "ram-admission": 1, "ram-floor": 1, "not-parked": 1},
            "largest_snapshot_bytes": 4_716_362_992,
        }.items()
    )
    assert health["engine"]["log"]["lines"] == {"parsed": 13, "other": 3, "unknown": 2}
    text = sidecar.ask("/metrics").text
    assert 'foreword_parking_skips_total{reason="ram-floor"} 1.0' in text
    assert 'foreword_engine_log_lines_total{result="unknown"} 2.0' in text
    assert "foreword_parking_evictions_total 2508.0" in text


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


def test_every_number_of_the_watch_is_explained() -> None:
    assert {*COUNTERS.values(), *GAUGES.values()} <= set(HELP)
    sidecar = Sidecar(ENGINE_LOG="/nowhere/engine.log")
    sidecar.meet(kind="strata")
    lines = (ROOT / "tests/fixtures/engines/strata/engine.log").read_text().splitlines()
    sidecar.observer.read_lines(Lines(lines, history=False))
    assert {key.partition("|")[0] for key in observed(sidecar.observer)} <= set(HELP)
