"""The preflight's look at metrics, parking and log of a Strata."""

import asyncio
from pathlib import Path

import pytest
from tests.conftest import ROOT
from tests.unit.engines_fake import FakeEngine, Reply, reply

from foreword.check.line import Line
from foreword.check.preflight import Preflight
from foreword.check.watched import snapshot_size
from foreword.settings import Settings

FIXTURES = ROOT / "tests/fixtures/engines/strata"
MIB = 2**20


def strata(metrics: str, window: int = 254_000) -> FakeEngine:
    usage = {"prompt_tokens": 500, "completion_tokens": 1}
    return FakeEngine(
        {
            "/v1/models": reply({"data": [{"id": "qwen"}]}),
            "/health": reply({"service": "strata", "status": "ok", "max_context": window}),
            "/metrics": Reply(body=(FIXTURES / metrics).read_bytes()),
            "/v1/chat/completions": reply({"choices": [], "usage": usage}),
        }
    )


def checked(engine: FakeEngine, **settings: str) -> dict[str, Line]:
    made = Settings.from_env({f"FOREWORD_{name}": value for name, value in settings.items()})
    return {line.name: line for line in asyncio.run(Preflight(made, engine).lines())}


def test_a_strata_without_its_log() -> None:
    lines = checked(strata("metrics.json"))
    assert lines["engine log"].level == "warn"
    assert "FOREWORD_ENGINE_LOG" in str(lines["engine log"].todo)
    assert lines["cached tokens in usage"].level == "fail"
    assert "FOREWORD_ENGINE_LOG" in str(lines["cached tokens in usage"].todo)
    parking = lines["parking"]
    assert (parking.level, parking.value) == ("ok", 1)
    assert "default table" in parking.text
    assert "FOREWORD_ENGINE_LOG" in str(parking.todo)
    assert lines["context length"].value == 254_000


def test_a_default_that_does_not_fit_is_a_doubt_only() -> None:
    parking = checked(strata("metrics.json", window=1_000_000))["parking"]
    assert (parking.level, parking.value) == ("warn", 0)
    assert "default table" in parking.text


def test_a_log_in_which_nothing_was_parked(tmp_path: Path) -> None:
    lines = (FIXTURES / "engine.log").read_text().splitlines(keepends=True)
    log = tmp_path / "engine.log"
    log.write_text("".join(line for line in lines if "parked" not in line))
    assert "default table" in checked(strata("metrics.json"), ENGINE_LOG=str(log))["parking"].text


def test_a_strata_with_its_log() -> None:
    lines = checked(strata("metrics.json"), ENGINE_LOG=str(FIXTURES / "engine.log"))
    assert lines["engine log"].level == "ok"
    assert lines["cached tokens in usage"].level == "ok"
    parking = lines["parking"]
    assert (parking.level, parking.value) == ("ok", 1), "8,192 MiB hold one conversation of 4,498"
    assert "default" not in parking.text


def test_the_order_of_a_template_that_is_set() -> None:
    line = checked(strata("metrics.json"))["template order"]
    assert line.level == "warn"
    assert "FOREWORD_TEMPLATE_ORDER" in str(line.todo)
    line = checked(strata("metrics.json"), TEMPLATE_ORDER="system-first")["template order"]
    assert (line.level, line.value) == ("ok", "system-first")


def test_parking_that_cannot_hold_one() -> None:
    lines = checked(strata("metrics.json", window=1_000_000), ENGINE_LOG=str(FIXTURES / "engine.log"))
    assert lines["parking"].level == "fail"
    assert "--conversation-cache-mib above" in str(lines["parking"].todo)


def test_parking_off() -> None:
    assert checked(strata("metrics-off.json"))["parking"].level == "warn"


@pytest.mark.parametrize("name", ["missing.log", "folder"])
def test_a_log_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    lines = checked(strata("metrics.json"), ENGINE_LOG=str(tmp_path / name))
    assert lines["engine log"].level == "fail"


def test_a_log_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_text("hello\nworld\n")
    assert (
        checked(strata("metrics.json"), ENGINE_LOG=str(tmp_path / "other.log"))["engine log"].level == "warn"
    )


def test_the_size_of_a_snapshot() -> None:
    assert snapshot_size([], 1000) is None
    assert snapshot_size([(0, 5)], 1000) is None
    assert snapshot_size([(500, 5000)], 1000) == 10_000
    line = [(10_000, 1_020_000), (20_000, 1_040_000), (40_000, 1_080_000)]
    assert snapshot_size(line, 100_000) == pytest.approx(1_200_000)


def test_few_and_tiny_requests() -> None:
    engine = strata("metrics.json")
    checked(engine)
    assert sum(asked.startswith("POST") for asked in engine.asked) <= 3
    assert len(engine.asked) <= 8
