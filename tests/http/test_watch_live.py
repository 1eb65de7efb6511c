"""The watch on the stand-in engine: the conditions that void reuse, one after the other, as an operator sees them."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.http.conftest import StartSidecar
from tests.http.sidecar import CHAT, Sidecar, free_port

EVERY = "0.2"


class Engine:
    """A stand-in engine as its own process; it may be ended and started again on its port."""

    def __init__(self, *flags: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        common = ["--port", str(self.port), "--model", "m", "--prefill-rate", "0", "--decode-rate", "0"]
        command = [sys.executable, "-m", "foreword", "engine", *common, *self._flags]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)


@pytest.fixture
def start_engine() -> Iterator[Callable[..., Engine]]:
    started: list[Engine] = []

    def start(*flags: str) -> Engine:
        started.append(Engine(*flags))
        return started[-1]

    yield start
    for engine in started:
        engine.stop()


class Conversation:
    """One that grows by a turn at a time; ``words`` is the length of its first message, two tokens or three each."""

    def __init__(self, sidecar: Sidecar, name: str, words: int) -> None:
        self._sidecar = sidecar
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": "s" * 4 * 2_500},
            {"role": "user", "content": f"{name} " * words},
        ]

    def turn(self) -> None:
        asked = {"model": "m", "max_tokens": 8, "messages": self.messages}
        answer = self._sidecar.post(CHAT, asked | {"vllm_xargs": {"say": "</think>ok"}})
        assert answer.status == 200, answer.body
        self.messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "go on"}]


def health(sidecar: Sidecar) -> Any:
    return sidecar.request("GET", "/health").json()


def findings(sidecar: Sidecar) -> dict[str, Any]:
    """The engine's own findings; those of exchanges have other subjects."""
    return {
        finding["id"]: finding for finding in health(sidecar)["findings"] if finding["subject"] == "engine"
    }


def until(true: Callable[[], object], seconds: float = 12.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


@pytest.fixture
def watched(
    start_engine: Callable[..., Engine], start_sidecar: StartSidecar, tmp_path: Path
) -> Callable[..., tuple[Engine, Sidecar]]:
    """A Strata with these flags and a sidecar that follows its log."""

    def start(*flags: str) -> tuple[Engine, Sidecar]:
        log = tmp_path / "strata.txt"
        engine = start_engine("--kind", "strata", "--log", str(log), *flags)
        sidecar = start_sidecar(
            engine.url, ENGINE="strata", ENGINE_LOG=str(log), ENGINE_METRICS_SECONDS=EVERY
        )
        until(lambda: health(sidecar)["engine"]["reachable"] and health(sidecar)["parking"])
        return engine, sidecar

    return start


def test_a_storm_of_evictions(watched: Callable[..., tuple[Engine, Sidecar]]) -> None:
    _, sidecar = watched("--conversation-cache-mib", "4096", "--conversation-cache-slots", "20")
    turns = [Conversation(sidecar, name, 80_000) for name in ("alpha", "beta")]
    for _ in range(7):
        for conversation in turns:
            conversation.turn()
    until(lambda: {"eviction-storm", "checkpoint-collapse"} <= set(findings(sidecar)))
    parking = health(sidecar)["parking"]
    assert parking["evictions"] >= 5
    assert parking["budget_bytes"] == 4096 * 2**20
    text = sidecar.request("GET", "/metrics").body.decode()
    assert f"foreword_parking_evictions_total {float(parking['evictions'])}" in text
    assert "eviction-storm" in text


def test_parking_with_room_is_quiet(watched: Callable[..., tuple[Engine, Sidecar]]) -> None:
    _, sidecar = watched("--conversation-cache-mib", "24000", "--conversation-cache-slots", "20")
    turns = [Conversation(sidecar, name, 80_000) for name in ("alpha", "beta")]
    for _ in range(7):
        for conversation in turns:
            conversation.turn()
    until(lambda: health(sidecar)["parking"]["restores"] >= 5)
    time.sleep(0.5)
    assert findings(sidecar) == {}


def test_no_checkpoints(watched: Callable[..., tuple[Engine, Sidecar]]) -> None:
    """--prompt-cache 0"""
    _, sidecar = watched("--prompt-cache", "0")
    conversation = Conversation(sidecar, "alpha", 10_000)
    for _ in range(6):
        conversation.turn()
    until(lambda: "checkpoint-collapse" in findings(sidecar))
    assert findings(sidecar)["checkpoint-collapse"]["severity"] == "critical"


def test_parking_is_off(watched: Callable[..., tuple[Engine, Sidecar]]) -> None:
    """--conversation-cache-mib 0"""
    _, sidecar = watched()
    Conversation(sidecar, "alpha", 10_000).turn()
    until(lambda: "parking-off" in findings(sidecar))


def test_a_budget_below_one_snapshot(watched: Callable[..., tuple[Engine, Sidecar]]) -> None:
    _, sidecar = watched("--conversation-cache-mib", "128")
    turns = [Conversation(sidecar, name, 10_000) for name in ("alpha", "beta")]
    for _ in range(3):
        for conversation in turns:
            conversation.turn()
    until(lambda: "parking-cannot-hold" in findings(sidecar))
    assert health(sidecar)["parking"]["skips"]["snapshot-over-budget"] >= 3


def test_a_restart(watched: Callable[..., tuple[Engine, Sidecar]]) -> None:
    engine, sidecar = watched("--conversation-cache-mib", "2048")
    conversation = Conversation(sidecar, "alpha", 10_000)
    conversation.turn()
    until(lambda: (health(sidecar)["cache"] or {}).get("l1", {}).get("queried_tokens"))
    engine.stop()
    until(lambda: sidecar.request("GET", "/health/ready").status == 503)
    engine.start()
    until(lambda: sidecar.request("GET", "/health/ready").status == 200)
    until(lambda: "engine-restart" in findings(sidecar))
    conversation.turn()


@pytest.mark.parametrize(
    ("mode", "expected"), [("write-only", "l2-write-only"), ("too-small", "l2-too-small"), ("healthy", None)]
)
def test_a_second_level(
    mode: str, expected: str | None, start_engine: Callable[..., Engine], start_sidecar: StartSidecar
) -> None:
    """Conversations that push each other out of a small L1, over an L2 that is read or is not."""
    engine = start_engine("--l2", mode, "--cache-blocks", "900")
    sidecar = start_sidecar(engine.url, ENGINE_METRICS_SECONDS=EVERY)
    until(lambda: health(sidecar)["cache"])
    turns = [Conversation(sidecar, name, 80_000) for name in ("alpha", "beta", "gamma")]
    for _ in range(9):
        for conversation in turns:
            conversation.turn()
            time.sleep(0.1)
    if expected is not None:
        until(lambda: expected in findings(sidecar))
    level = health(sidecar)["cache"]["l2"]
    assert level["ever_loaded"] is (mode == "healthy")
    assert set(findings(sidecar)) == ({expected} if expected else set())
