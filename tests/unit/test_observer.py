"""The watch as a whole, with a fake engine, a fake core and a clock."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from tests.conftest import ROOT
from tests.unit.engines_fake import FakeEngine, Reply

from foreword.engines import EngineState
from foreword.findings import Board
from foreword.settings import Settings
from foreword.watching import Observer, observed
from foreword.watching.engine_findings import RESTARTS_SECONDS
from foreword.watching.follower import Lines

FIXTURES = ROOT / "tests/fixtures/engines"


class House:
    """An observer with all that it needs."""

    def __init__(self, kind: str = "strata", log: str = "", **answers: bytes) -> None:
        self.now = 1000.0
        self.engine = FakeEngine({"/" + path: Reply(body=body) for path, body in answers.items()})
        self.state = EngineState(kind=kind, reachable=True, clock=lambda: self.now)
        self.board = Board()
        self.told: list[dict[str, object]] = []
        self.settled: dict[str, int | None] = {}
        self.final: list[bytes] = []
        self.doubts: list[bool] = []
        self.observer = Observer(
            Settings.from_env({"FOREWORD_ENGINE_LOG": log, "FOREWORD_ENGINE_METRICS_SECONDS": "0.2"}),
            self.engine,
            self.state,
            self.board,
            core=self,
            final=self.final.append,
            doubt=self.doubts.append,
            clock=lambda: self.now,
            wall=lambda: 1.8e9 + self.now,
        )

    def update(self, *, engine_log: bool | None = None, block_tokens: int | None = None) -> None:
        self.told.append({"engine_log": engine_log, "block_tokens": block_tokens})

    def settle(self, request_id: str, cached: int | None) -> bytes | None:
        self.settled[request_id] = cached
        return b"{}"

    def scrape(self, body: bytes | None, status: int = 200) -> None:
        self.engine.away = body is None
        self.engine.answers["/metrics"] = Reply(status, body or b"")
        self.now += 5
        self.observer._scraped(good=asyncio.run(self.observer.scraper.once()))

    @property
    def open(self) -> dict[str, str]:
        return {finding.id: finding.severity for finding in self.board.open()}


def counters(prompt: int, *, names: str = "prefix_cache") -> bytes:
    return (
        f"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:prompt_tokens_total {prompt}\n"
        f"vllm:{names}_queries_total {prompt}\nvllm:{names}_hits_total {prompt // 2}\n"
        "vllm:external_prefix_cache_queries_total 0\nvllm:external_prefix_cache_hits_total 0\n"
        'vllm:cache_config_info{block_size="64"} 1\n'
    ).encode()


def test_the_block_size_is_told_once() -> None:
    house = House("vllm")
    for prompt in (10, 20, 30):
        house.scrape(counters(prompt))
    assert house.told == [{"engine_log": None, "block_tokens": 64}]
    assert house.open == {}


def test_a_restart() -> None:
    house = House("vllm")
    house.scrape(counters(1000))
    house.scrape(counters(10))
    assert house.open == {"engine-restart": "info"}
    assert house.doubts == [True], "what the engine is must be asked again"
    house.now += RESTARTS_SECONDS + 1
    house.observer.review()
    assert house.open == {}
    assert house.observer.restarts.count == 1


def test_many_restarts_are_worse() -> None:
    house = House("vllm")
    for _ in range(3):
        house.scrape(counters(1000))
        house.now += 120
        house.scrape(counters(10))
    assert house.open == {"engine-restart": "warning"}
    assert house.board.open()[0].count == 3


def test_one_restart_seen_twice_is_one() -> None:
    house = House("vllm")
    house.scrape(counters(1000))
    house.scrape(counters(10))
    house.scrape(counters(5))
    assert house.observer.restarts.count == 1


def test_families_that_are_missing() -> None:
    house = House("vllm")
    house.scrape(counters(1000, names="cache_of_prefixes"))
    assert house.open == {"metrics-missing": "info"}
    evidence = house.board.open()[0].evidence
    assert evidence["missing"] == ["vllm_prefix_cache_queries", "vllm_prefix_cache_hits"]
    assert observed(house.observer)["engine_metrics_missing|"] == 2
    house.scrape(counters(2000))
    assert house.open == {}
    assert house.observer.restarts.count == 0


@pytest.mark.parametrize(("kind", "flag"), [("llamacpp", "--metrics"), ("sglang", "--enable-metrics")])
def test_metrics_that_are_switched_off(kind: str, flag: str) -> None:
    house = House(kind)
    house.scrape(b'{"error":"not found"}', 404)
    assert house.open == {}, "once may be an engine that starts"
    house.scrape(b'{"error":"not found"}', 404)
    assert house.open == {"metrics-missing": "warning"}
    assert flag in house.board.open()[0].advice
    house.scrape((FIXTURES / kind / "metrics.txt").read_bytes())
    assert house.open == {}


def test_an_engine_that_is_away() -> None:
    house = House("vllm")
    house.scrape(None)
    assert house.doubts == [False]
    assert house.observer.scraper.trouble == "connection refused"
    house.state.reachable = False
    house.scrape(None)
    assert house.doubts == [False], "that is known"
    house.scrape(counters(10))
    assert house.doubts == [False, False], "it is back"
    assert house.observer.scraper.age() == 0


@pytest.mark.parametrize("kind", ["auto", "openai"])
def test_engines_of_which_nothing_is_known_are_not_asked(kind: str) -> None:
    house = House(kind)
    house.scrape(counters(10))
    assert house.engine.asked == []
    assert house.doubts == []
    assert house.observer.scraper.scrapes == 0


def test_an_answer_that_nobody_foresaw_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House("vllm")
    monkeypatch.setattr(house.observer.meter, "take", lambda *_: 1 / 0)
    house.scrape(counters(10))
    assert "ZeroDivisionError" in str(house.observer.scraper.trouble)


def record(name: str, tokens: int, *, pending: bool = True) -> bytes:
    usage = {"prompt_tokens": tokens, "completion_tokens": 3, "cached_tokens": None}
    members = {"request_id": name, "usage": usage, "duration_seconds": 1.0}
    return orjson.dumps(members | ({"pending": True} if pending else {}))


def test_records_wait_for_the_log(tmp_path: Path) -> None:
    house = House(log=str(tmp_path / "engine.log"))
    assert not house.observer.holds(record("a", 1000, pending=False))
    assert house.observer.holds(record("b", 1000))
    line = "strata serve: prompt 1000 tokens = 900 reused + 100 read in 5 ms, 3 generated in 5 ms"
    house.observer.read_lines(Lines([line], history=True))
    assert house.settled == {}, "what was written before the watch began is nobody's"
    house.observer.read_lines(Lines([line], history=False))
    assert house.settled == {"b": 900}
    assert house.final == [b"{}"]
    assert house.observer.holds(record("c", 2000))
    house.observer.close()
    assert house.settled == {"b": 900, "c": None}


def test_without_a_log_no_record_waits() -> None:
    assert not House().observer.holds(record("a", 1000))


def test_a_pending_record_that_cannot_be_read_is_not_held(tmp_path: Path) -> None:
    house = House(log=str(tmp_path / "engine.log"))
    assert not house.observer.holds(b'{"pending":true')


def run_for(house: House, until: Callable[[], object]) -> None:
    async def run() -> None:
        task = asyncio.create_task(house.observer.run())
        async with asyncio.timeout(5):
            while not until():
                await asyncio.sleep(0.02)
        task.cancel()

    asyncio.run(run())


def test_it_runs(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text((FIXTURES / "strata/engine.log").read_text())
    house = House(log=str(log), metrics=(FIXTURES / "strata/metrics.json").read_bytes())
    run_for(house, lambda: house.observer.meter.gauges and house.observer.lines["parsed"])
    assert {"engine_log": True, "block_tokens": None} in house.told
    assert house.observer.parking.parked == 1
    assert house.observer.parking.parks == 0, "history"


def test_only_a_log_that_can_be_joined_makes_records_wait(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("slot update_slots: forcing full prompt re-processing due to lack of cache data\n")
    house = House("llamacpp", log=str(log))
    run_for(house, lambda: house.observer.lines["parsed"])
    assert house.told == []
    assert observed(house.observer)["engine_log_up|"] == 1


def test_parking_off_without_a_log() -> None:
    house = House()
    off = (FIXTURES / "strata/metrics-off.json").read_bytes()
    house.scrape(off)
    house.observer.review()
    assert house.open == {}, "nobody has used it yet"
    house.scrape(off.replace(b'"requests":20', b'"requests":26'))
    house.observer.review()
    assert house.open == {"parking-off": "info"}


def test_a_kind_of_which_nothing_is_known_any_more() -> None:
    house = House("vllm")
    house.scrape(counters(1000, names="cache_of_prefixes"))
    house.state.kind = "openai"
    house.scrape(counters(2000))
    assert house.open == {}
