"""The core's counters in Prometheus' words."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from foreword import __version__
from foreword.engines import EngineState
from foreword.metrics import HELP, Metrics, families, parse_key


@pytest.mark.parametrize(
    ("key", "family", "labels"),
    [
        ("open_exchanges|", "open_exchanges", ()),
        (
            "rule_total|rule=late-system,state=applied",
            "rule_total",
            (("rule", "late-system"), ("state", "applied")),
        ),
        ("exchanges_total|route=chat,status=200", "exchanges_total", (("route", "chat"), ("status", "200"))),
    ],
)
def test_keys(key: str, family: str, labels: tuple[tuple[str, str], ...]) -> None:
    assert parse_key(key) == (family, labels)


def samples(exposition: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition.decode())
        for sample in family.samples
    }


def test_exposition() -> None:
    engine = EngineState(kind="vllm", version="0.32.0", clock=lambda: 50.0)
    stats = {
        "exchanges_total|route=messages,status=200": 3,
        "exchanges_total|route=chat,status=502": 1,
        "open_exchanges|": 2,
    }
    metrics = Metrics(lambda: stats, engine)
    found = samples(metrics.exposition())
    assert found["foreword_exchanges_total", (("route", "messages"), ("status", "200"))] == 3
    assert found["foreword_exchanges_total", (("route", "chat"), ("status", "502"))] == 1
    assert found["foreword_open_exchanges", ()] == 2
    assert found["foreword_engine_up", ()] == 0
    assert found["foreword_engine_info", (("kind", "vllm"), ("version", "0.32.0"))] == 1
    assert ("foreword_engine_last_seen_seconds", ()) not in found, "absent is not zero"
    assert any(
        name == "foreword_build_info" and dict(labels)["version"] == __version__ for name, labels in found
    )

    stats["open_exchanges|"] = 0
    engine.seen()
    found = samples(metrics.exposition())
    assert found["foreword_open_exchanges", ()] == 0
    assert found["foreword_engine_up", ()] == 1
    assert found["foreword_engine_last_seen_seconds", ()] == 0


def test_counters_and_gauges_by_their_names() -> None:
    kinds = {family.name: family.type for family in families({"a_total|": 1, "b|": 1})}
    assert kinds == {"foreword_a": "counter", "foreword_b": "gauge"}


def test_every_counter_of_the_core_is_explained(root: Path) -> None:
    sources = [path.read_text() for path in (root / "rust/net/src").rglob("*.rs")]
    counted = {name for source in sources for name in re.findall(r'"([a-z_]+)\|', source)}
    assert "exchanges_total" in counted, "counters are named otherwise now: adapt this test"
    assert counted <= set(HELP)
