"""The watch beside real requests: an engine that hangs, restarts and renames its metrics, and a log that rotates."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import ROOT
from tests.http.conftest import StartSidecar
from tests.http.engine import ScriptedEngine, models, respond, says
from tests.http.sidecar import CHAT, Sidecar, ask

FIXTURES = ROOT / "tests/fixtures/engines"
EVERY = "0.1"


class Probes(Mapping[str, bytes]):
    """An engine's answers to the sidecar's own questions; ``hung`` paths answer nothing."""

    def __init__(self, **metrics: float) -> None:
        self.counters = metrics
        self.names: dict[str, str] = {}
        self.hung: set[str] = set()
        self.over = threading.Event()
        self.scrapes = 0

    def __getitem__(self, path: str) -> bytes:
        if path in self.hung:
            self.over.wait(30)
        if path == "/metrics":
            self.scrapes += 1
            return respond(200, self.text(), content_type="text/plain")
        if path == "/v1/models":
            return models("m")
        raise KeyError(path)

    def __iter__(self) -> Any:
        return iter(("/metrics", "/v1/models"))

    def __len__(self) -> int:
        return 2

    def text(self) -> bytes:
        lines = [
            'vllm:cache_config_info{block_size="16"} 1',
            "vllm:num_requests_running 1",
            "vllm:num_requests_waiting 4",
        ]
        for name, value in self.counters.items():
            lines.append(f'vllm:{self.names.get(name, name)}_total{{engine="0"}} {value}')
        return "\n".join(lines).encode() + b"\n"


def counters(**more: float) -> Probes:
    known = {
        "prompt_tokens": 1e6,
        "prefix_cache_queries": 1e6,
        "prefix_cache_hits": 8e5,
        "external_prefix_cache_queries": 2e5,
        "external_prefix_cache_hits": 0,
    }
    return Probes(**(known | more))


@pytest.fixture
def engine() -> Any:
    with ScriptedEngine() as engine:
        engine.answer = says("hello")
        yield engine


def health(sidecar: Sidecar) -> Any:
    return sidecar.request("GET", "/health").json()


def findings(sidecar: Sidecar) -> dict[str, Any]:
    return {finding["id"]: finding for finding in health(sidecar)["findings"]}


def until(true: Callable[[], object], seconds: float = 8.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def chats(sidecar: Sidecar) -> None:
    assert sidecar.post(CHAT, ask()).status == 200


def test_the_first_scrape_waits_for_nothing_but_the_engine(
    engine: ScriptedEngine, start_sidecar: StartSidecar
) -> None:
    engine.probes = counters()
    sidecar = start_sidecar(engine.url, ENGINE="auto", ENGINE_METRICS_SECONDS="600")
    until(lambda: (health(sidecar)["cache"] or {}).get("block_tokens") == 16)


def test_a_scrape_shows_in_health_and_metrics(engine: ScriptedEngine, start_sidecar: StartSidecar) -> None:
    engine.probes = counters()
    sidecar = start_sidecar(engine.url, ENGINE_METRICS_SECONDS=EVERY)
    until(lambda: health(sidecar)["cache"])
    body = health(sidecar)
    assert body["engine"]["queue"] == {"running": 1, "waiting": 4}
    assert body["cache"]["block_tokens"] == 16
    assert body["engine"]["metrics"]["age_seconds"] < 5
    text = sidecar.request("GET", "/metrics").body.decode()
    assert "foreword_engine_waiting 4.0" in text


def test_hanging_metrics_hold_nobody_up(engine: ScriptedEngine, start_sidecar: StartSidecar) -> None:
    probes = engine.probes = counters()
    probes.hung = {"/metrics"}
    sidecar = start_sidecar(engine.url, ENGINE_METRICS_SECONDS=EVERY)
    until(lambda: health(sidecar)["engine"]["reachable"])
    begun = time.monotonic()
    for _ in range(20):
        chats(sidecar)
        assert sidecar.request("GET", "/health").status == 200
    assert time.monotonic() - begun < 4
    until(lambda: health(sidecar)["engine"]["metrics"]["trouble"] == "no answer within 5 s")
    assert health(sidecar)["engine"]["reachable"], "it answers all else"
    probes.over.set()
    probes.hung = set()
    until(lambda: health(sidecar)["engine"]["metrics"]["trouble"] is None)


@pytest.mark.slow
def test_an_engine_that_hangs_whole_is_not_ready(engine: ScriptedEngine, start_sidecar: StartSidecar) -> None:
    probes = engine.probes = counters()
    sidecar = start_sidecar(engine.url, ENGINE_METRICS_SECONDS=EVERY)
    until(lambda: health(sidecar)["cache"])
    probes.hung = {"/metrics", "/v1/models"}
    until(lambda: sidecar.request("GET", "/health/ready").status == 503, 20)
    begun = time.monotonic()
    assert sidecar.request("GET", "/health").status == 503
    assert time.monotonic() - begun < 1
    probes.over.set()
    probes.hung = set()
    until(lambda: sidecar.request("GET", "/health/ready").status == 200)


def test_a_restart_while_requests_go_on(engine: ScriptedEngine, start_sidecar: StartSidecar) -> None:
    probes = engine.probes = counters()
    sidecar = start_sidecar(engine.url, ENGINE_METRICS_SECONDS=EVERY)
    until(lambda: probes.scrapes >= 3 and health(sidecar)["cache"])
    assert "engine-restart" not in findings(sidecar)
    probes.counters = dict.fromkeys(probes.counters, 5.0)
    chats(sidecar)
    until(lambda: "engine-restart" in findings(sidecar))
    chats(sidecar)
    text = sidecar.request("GET", "/metrics").body.decode()
    assert "foreword_engine_restarts_total 1.0" in text
    assert "foreword_engine_prompt_tokens_total 5.0" in text
    assert health(sidecar)["cache"]["l1"]["hit_rate"] == 1.0


def test_metrics_that_change_their_names(engine: ScriptedEngine, start_sidecar: StartSidecar) -> None:
    probes = engine.probes = counters()
    sidecar = start_sidecar(engine.url, ENGINE_METRICS_SECONDS=EVERY)
    until(lambda: health(sidecar)["cache"])
    probes.names = {"prefix_cache_hits": "gpu_prefix_cache_hits"}
    chats(sidecar)
    time.sleep(0.3)
    assert findings(sidecar) == {}, "an older name for the same"
    probes.names = {"prefix_cache_hits": "hits_of_the_cache"}
    until(lambda: "metrics-missing" in findings(sidecar))
    assert health(sidecar)["engine"]["metrics"]["missing"] == ["vllm_prefix_cache_hits"]
    chats(sidecar)
    probes.names = {}
    until(lambda: findings(sidecar) == {})
    assert "foreword_engine_restarts_total 0.0" in sidecar.request("GET", "/metrics").body.decode()


def test_no_metrics_at_all(engine: ScriptedEngine, start_sidecar: StartSidecar) -> None:
    engine.probes = {"/v1/models": models("m")}
    sidecar = start_sidecar(engine.url, ENGINE_METRICS_SECONDS=EVERY, ENGINE="llamacpp")
    until(lambda: "metrics-missing" in findings(sidecar))
    assert "--metrics" in findings(sidecar)["metrics-missing"]["advice"]
    chats(sidecar)
    assert sidecar.request("GET", "/health").status == 200


def test_the_second_level_incident(engine: ScriptedEngine, start_sidecar: StartSidecar) -> None:
    """Hours of counters in seconds: written, never read; then repaired."""
    probes = engine.probes = counters(kv_offload_store_bytes=0, kv_offload_load_bytes=0)
    sidecar = start_sidecar(engine.url, ENGINE_METRICS_SECONDS=EVERY)
    until(lambda: health(sidecar)["cache"])

    def run(l2: float = 0.0) -> None:
        told = probes.counters
        probes.counters = told | {
            "prefix_cache_queries": told["prefix_cache_queries"] + 2e6,
            "prefix_cache_hits": told["prefix_cache_hits"] + 1.76e6,
            "external_prefix_cache_queries": told["external_prefix_cache_queries"] + 2.4e5,
            "external_prefix_cache_hits": told["external_prefix_cache_hits"] + 2.4e5 * l2,
            "kv_offload_store_bytes": told["kv_offload_store_bytes"] + 2e10,
            "kv_offload_load_bytes": told["kv_offload_load_bytes"] + 2e10 * l2,
        }
        seen = probes.scrapes
        until(lambda: probes.scrapes > seen)

    for _ in range(25):
        run()
    until(lambda: "l2-write-only" in findings(sidecar))
    assert health(sidecar)["cache"]["l2"]["ever_loaded"] is False
    run(0.5)
    until(lambda: findings(sidecar) == {})
    assert health(sidecar)["cache"]["l2"]["ever_loaded"] is True
    run(0.5)
    assert findings(sidecar) == {}


def test_a_log_that_rotates(engine: ScriptedEngine, start_sidecar: StartSidecar, tmp_path: Path) -> None:
    metrics = (FIXTURES / "strata/metrics.json").read_bytes()
    engine.probes = {"/v1/models": models("m"), "/metrics": respond(200, metrics)}
    log = tmp_path / "strata.txt"
    sidecar = start_sidecar(engine.url, ENGINE="strata", ENGINE_LOG=str(log), ENGINE_METRICS_SECONDS=EVERY)
    until(lambda: health(sidecar)["engine"]["reachable"])
    assert health(sidecar)["engine"]["log"]["trouble"] == "there is no such file yet"
    lines = (FIXTURES / "strata/engine.log").read_text()
    log.write_text(lines)
    until(lambda: health(sidecar)["engine"]["log"]["lines"]["parsed"] == 13)
    log.rename(tmp_path / "strata.txt.1")
    log.write_text(lines)
    until(lambda: health(sidecar)["engine"]["log"]["lines"]["parsed"] == 26)
    chats(sidecar)
    parking = health(sidecar)["parking"]
    assert parking["enabled"]
    assert parking["evictions"] == 2508
    assert parking["skips"]["ram-floor"] == 2
    assert "parking-cannot-hold" not in findings(sidecar)
    log.write_text(
        lines
        + "strata serve: conversation cache: skip parking (snapshot 3346 MiB exceeds available budget)\n" * 3
    )
    until(lambda: "parking-cannot-hold" in findings(sidecar))


def test_the_log_tells_what_was_reused(
    engine: ScriptedEngine, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """A build that reports no cached tokens: the record waits for the log's line."""
    engine.probes = {"/v1/models": models("m")}
    engine.answer = says("hello", {"prompt_tokens": 1000, "completion_tokens": 5, "total_tokens": 1005})
    log = tmp_path / "strata.txt"
    log.write_text("strata serve: session is up\n")
    sidecar = start_sidecar(engine.url, ENGINE="strata", ENGINE_LOG=str(log), ENGINE_METRICS_SECONDS="0")
    until(lambda: health(sidecar)["engine"]["log"]["trouble"] is None)
    until(lambda: health(sidecar)["engine"]["log"]["joins"] is not None)
    time.sleep(0.3)
    answer = sidecar.post(CHAT, ask())
    with log.open("a") as file:
        file.write(
            "strata serve: prompt 1000 tokens = 900 reused + 100 read in 150 ms, 5 generated in 60 ms\n"
        )
    record = sidecar.record(answer)
    assert record["usage"]["cached_tokens"] == 900
    assert record["cached_source"] == "log"
    assert "pending" not in record
    begun = time.monotonic()
    record = sidecar.record(sidecar.post(CHAT, ask()))
    assert 2 < time.monotonic() - begun < 8, "no line comes: it waits for a while, and no longer"
    assert record["usage"]["cached_tokens"] is None
    assert record["cached_source"] is None
    assert health(sidecar)["engine"]["log"]["joins"].items() >= {"joined": 1, "unmatched": 1}.items()
