"""The core's counters in Prometheus' words."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.findings_records import Record, changed, record

from foreword import __version__
from foreword.engines import EngineState
from foreword.findings import IDS, Board, Finding
from foreword.metrics import CLASSES, HELP, MODELS, SHADOWED, VERDICTS, Metrics, Recorder, families, parse_key


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


def test_what_is_counted_from_records_is_in_the_document(root: Path) -> None:
    registry = CollectorRegistry()
    Recorder(registry)
    families = {f"{each.name}_total" if each.type == "counter" else each.name for each in registry.collect()}
    table = (root / "docs/metrics.md").read_text()
    assert len(families) == 9
    assert [name for name in families if f"`{name.removeprefix('foreword_')}`" not in table] == []


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def counted(*records: Record, board: Board | None = None) -> Samples:
    metrics = Metrics(dict, EngineState(kind="vllm"), board)
    for each in records:
        metrics.recorder.note(each)
    return samples(metrics.exposition())


def sample(found: Samples, family: str, **labels: str) -> float | None:
    return found.get((f"foreword_{family}", tuple(sorted(labels.items()))))


WHO = {"entry": "/v1/messages", "client": "claude-code", "model": "llm-prime"}


def test_hit_rate_as_two_counters() -> None:
    found = counted(
        record(prompt=1_000, cached=0), record(prompt=3_000, cached=960), record(prompt=700, cached=None)
    )
    assert sample(found, "prefix_queried_tokens_total", **WHO) == 4_000
    assert sample(found, "prefix_cached_tokens_total", **WHO) == 960
    assert sample(found, "prefix_not_reported_total", **WHO) == 1, "absent is not zero"


def test_an_engine_that_reports_nothing_has_no_rate() -> None:
    found = counted(record(cached=None))
    assert sample(found, "prefix_queried_tokens_total", **WHO) is None
    assert sample(found, "cached_length_tokens_count", entry="/v1/messages", client="claude-code") is None


def test_lengths() -> None:
    found = counted(
        record(cached=17_920), record(cached=0), changed("system[0]", "header", shared=312, cached=256)
    )
    who = {"entry": "/v1/messages", "client": "claude-code"}
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in found.items()
        if name == "foreword_cached_length_tokens_bucket"
    }
    assert (buckets[0], buckets[256], buckets[16_384], buckets[32_768]) == (1, 2, 2, 3)
    assert sample(found, "cached_length_tokens_sum", **who) == 17_920 + 256
    assert sample(found, "first_divergence_tokens_count", **who) == 1
    assert sample(found, "first_divergence_tokens_sum", **who) == 312


def test_what_preparing_took() -> None:
    found = counted(
        record(prepare_seconds=0.0004), record(prepare_seconds=0.02), record(prepare_seconds=None)
    )
    assert sample(found, "prepare_seconds_count", entry="/v1/messages") == 2
    assert sample(found, "prepare_seconds_bucket", entry="/v1/messages", le="0.0005") == 1
    assert sample(found, "prepare_seconds_sum", entry="/v1/messages") == pytest.approx(0.0204)


def test_verdicts_and_what_they_cost() -> None:
    found = counted(
        changed("system[0]", "header", lost=17_600),
        changed("tools[3]", "tools", lost=None),
        record("engine-lost", verdict_lost=900),
        record("append-only", verdict_lost=0),
        record(None),
    )
    assert sample(found, "verdicts_total", verdict="changed", **{"class": "header"}) == 1
    assert sample(found, "verdicts_total", verdict="changed", **{"class": "tools"}) == 1
    assert sample(found, "verdicts_total", verdict="engine-lost", **{"class": ""}) == 1
    assert sample(found, "wasted_tokens_total", verdict="changed") == 17_600
    assert sample(found, "wasted_tokens_total", verdict="engine-lost") == 900
    assert sample(found, "wasted_tokens_total", verdict="append-only") == 0


def test_known_labels_begin_at_zero() -> None:
    found = counted()
    for verdict in VERDICTS:
        assert sample(found, "wasted_tokens_total", verdict=verdict) == 0
        for name in CLASSES if verdict == "changed" else ("",):
            assert sample(found, "verdicts_total", verdict=verdict, **{"class": name}) == 0
    assert [sample(found, "shadow_saved_tokens_total", rule=rule) for rule in SHADOWED] == [0] * len(SHADOWED)
    assert [sample(found, "open_findings", id=name) for name in IDS] == [0] * len(IDS)
    assert not any(name.endswith("_created") for name, _ in found)


def test_shadows() -> None:
    shadow = {"billing-header": 17_600, "late-system": 4}
    found = counted(record(shadow=shadow), record(shadow=shadow), record(None, prompt=None, shadow=shadow))
    assert sample(found, "shadow_saved_tokens_total", rule="billing-header") == 3 * 17_600
    assert sample(found, "shadow_saved_tokens_total", rule="late-system") == 12


def test_labels_are_bounded() -> None:
    found = counted(*(record(model=f"model-{n}", prompt=10, cached=5) for n in range(MODELS + 7)))
    models = {
        dict(labels)["model"] for name, labels in found if name == "foreword_prefix_queried_tokens_total"
    }
    assert len(models) == MODELS + 1
    assert sample(found, "prefix_queried_tokens_total", **{**WHO, "model": "other"}) == 70
    odd = counted(record("a-new-verdict"), changed("x", "a-new-class"))
    assert sample(odd, "verdicts_total", verdict="other", **{"class": ""}) == 1
    assert sample(odd, "verdicts_total", verdict="changed", **{"class": "other"}) == 1


def test_a_preliminary_record_is_not_counted_twice() -> None:
    found = counted({**record(prompt=100, cached=None), "pending": True}, record(prompt=100, cached=50))
    assert sample(found, "prefix_queried_tokens_total", **WHO) == 100
    assert sample(found, "prefix_not_reported_total", **WHO) is None


def test_open_findings() -> None:
    board = Board()
    for subject in ("one", "two"):
        board.set(Finding("pinned", subject, "warning", 1.0, 2.0, 3, "Do something."))
    found = counted(board=board)
    assert sample(found, "open_findings", id="pinned") == 2
    assert sample(found, "open_findings", id="volatile-segment") == 0
