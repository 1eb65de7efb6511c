"""Each engine's own metrics, read into the common words."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import ROOT

from foreword.engines.exposition import Exposition
from foreword.engines.llamacpp import LlamaCpp
from foreword.engines.probe import ENGINES
from foreword.engines.reading import Reading, Unreadable
from foreword.engines.sglang import Sglang
from foreword.engines.strata import Strata
from foreword.engines.vllm import Vllm

FIXTURES = ROOT / "tests/fixtures/engines"


def fixture(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def sums(reading: Reading) -> dict[str, float]:
    return {word: sum(values.values()) for word, values in reading.counters.items()}


def test_vllm_of_today() -> None:
    reading = Vllm().read_metrics(fixture("vllm/metrics-0.32.txt"))
    assert sums(reading) == {
        "requests": 8,
        "prompt_tokens": 59498,
        "generated_tokens": 32,
        "cached_tokens": 51264,
        "l1_queried_tokens": 59498,
        "l1_hit_tokens": 35200,
        "l2_queried_tokens": 24298,
        "l2_hit_tokens": 16064,
        "preemptions": 0,
    }
    assert reading.gauges["block_tokens"] == 32
    assert "l2_bytes" not in reading.gauges, "its label says None"
    assert reading.missing == ()


def test_vllm_with_replicas_and_offloading() -> None:
    reading = Vllm().read_metrics(fixture("vllm/metrics-offload.txt"))
    assert reading.counters["l1_hit_tokens"] == {
        "engine=0|model_name=ds": 8_830_000,
        "engine=1|model_name=ds": 1_000_000,
    }
    assert sums(reading)["l2_stored_bytes"] == 21_646_236_160
    assert sums(reading)["l2_loaded_bytes"] == 0
    assert sums(reading)["l2_allocation_failures"] == 4
    gauges = reading.gauges
    assert (gauges["running"], gauges["waiting"]) == (5, 7), "summed over replicas"
    assert gauges["l1_usage"] == 0.25, "the fullest counts"
    assert gauges["l2_bytes"] == 894 * 2**30
    assert gauges["l2_pinned"] == 0


def test_vllm_of_old() -> None:
    reading = Vllm().read_metrics(fixture("vllm/metrics-0.8.txt"))
    assert sums(reading)["l1_queried_tokens"] == 1000
    assert sums(reading)["l1_hit_tokens"] == 640
    assert reading.gauges["l1_usage"] == 0.5
    assert reading.missing == ("vllm_external_prefix_cache_queries", "vllm_external_prefix_cache_hits")


def test_vllm_of_old_transfers() -> None:
    reading = Vllm().read_metrics(fixture("vllm/metrics-old-transfers.txt"))
    assert sums(reading)["l2_stored_bytes"] == 5e9
    assert sums(reading)["l2_loaded_bytes"] == 2e8
    assert "vllm_num_requests_running" in reading.missing


def test_sglang() -> None:
    reading = Sglang().read_metrics(fixture("sglang/metrics.txt"))
    assert sums(reading)["l1_queried_tokens"] == 5000
    assert sums(reading)["l1_hit_tokens"] == 3000
    assert sums(reading)["l2_hit_tokens"] == 500
    assert (reading.gauges["running"], reading.gauges["waiting"]) == (4, 9)
    assert reading.missing == ()
    renamed = Sglang().read_metrics(fixture("sglang/metrics-underscore.txt"))
    assert sums(renamed)["cached_tokens"] == 64
    assert renamed.missing == ()


def test_llamacpp() -> None:
    reading = LlamaCpp().read_metrics(fixture("llamacpp/metrics.txt"))
    assert sums(reading) == {"prompt_tokens": 8023, "generated_tokens": 219}
    assert (reading.gauges["running"], reading.gauges["waiting"]) == (1, 2)
    assert "l1_hit_tokens" not in reading.counters, "it does not count what it reuses"


def test_strata() -> None:
    reading = Strata().read_metrics(fixture("strata/metrics.json"))
    assert sums(reading)["l1_hit_tokens"] == 30_500_000
    assert reading.gauges["parking_budget_bytes"] == 8192 * 2**20
    assert (reading.gauges["parked"], reading.gauges["parked_bytes"]) == (1, 4_716_362_992)
    assert reading.gauges["parking_enabled"] == 1
    assert reading.missing == ()
    assert Strata().read_metrics(fixture("strata/metrics-off.json")).gauges["parking_enabled"] == 0
    text = Strata().read_metrics(fixture("strata/metrics.prom"))
    assert sums(text)["l1_hit_tokens"] == 30_500_000
    assert text.gauges["parked"] == 1


@pytest.mark.parametrize("body", [b'{"live": ', b"[]", b"", b"<html>busy</html>", b"null"])
def test_what_is_no_metrics_of_strata(body: bytes) -> None:
    with pytest.raises(Unreadable):
        Strata().read_metrics(body)


def test_strata_of_other_forms() -> None:
    odd = b'{"live":null,"totals":{"reused":"many","prompt_tokens":-1},"conversation_cache":[1]}'
    reading = Strata().read_metrics(odd)
    assert (reading.counters, reading.gauges) == ({}, {})
    assert "totals.reused" in reading.missing


@pytest.mark.parametrize(
    "body", [b"", b"<html>Not Found</html>\n", b'{"detail":"Not Found"}\n', b"\xff\xfe\x00\n"]
)
def test_what_is_no_metrics_of_vllm(body: bytes) -> None:
    with pytest.raises(Unreadable):
        Vllm().read_metrics(body)


def test_odd_lines() -> None:
    text = (
        b'x_total{a="with } and , and \\"quotes\\"",b="1",} 5 1796000000000\n'
        b'x_total 7 # {trace="1"} 1\n'
        b'x_total NaN\nx_total +Inf\nx_total\nx_total{a="open 3\nx_total{a=b} 3\nx_total 1e3\r\n'
        b"   x_total   2  \n"
        b"y:z{} 4\n"
        b"x_total 9"
    )
    exposition = Exposition(text, {"x", "y_z"})
    assert [sample.value for sample in exposition.samples("x")] == [5, 7, 1000, 2], (
        "the last line was cut off"
    )
    assert exposition.samples("x")[0].labels == {"a": 'with } and , and "quotes"', "b": "1"}
    assert [sample.value for sample in exposition.samples("y_z")] == [4]


@given(st.binary(max_size=400))
def test_no_bytes_break_a_reader(body: bytes) -> None:
    for engine in ENGINES.values():
        for text in (body, body + b"\n", b"{" + body, b"vllm:prompt_tokens_total{" + body + b"\n"):
            try:
                reading = engine.read_metrics(text)
            except Unreadable:
                continue
            assert all(value >= 0 for values in reading.counters.values() for value in values.values())


@pytest.mark.parametrize(
    "path", sorted(FIXTURES.glob("*/metrics*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_a_text_cut_anywhere_never_shows_a_counter_that_fell(path: Path) -> None:
    engine = next(engine for engine in ENGINES.values() if engine.kind == path.parent.name)
    text = path.read_bytes()
    whole = engine.read_metrics(text)
    for end in range(0, len(text), max(1, len(text) // 400)):
        try:
            part = engine.read_metrics(text[:end])
        except Unreadable:
            continue
        for word, values in part.counters.items():
            assert values.items() <= whole.counters[word].items(), (word, end)
