"""The second cache level, replayed as counters: the incident, its healthy and its too-small twin."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from foreword.engines.reading import Reading
from foreword.findings import Board, Finding
from foreword.watching.meter import Meter
from foreword.watching.reuse import Reuse
from foreword.watching.second_level import GAUGE, IDS, SecondLevel

GIB = float(2**30)


@dataclass
class Engine:
    """Counters of an engine with an L2, as it runs on."""

    counters: dict[str, float] = field(
        default_factory=lambda: {
            "l1_queried_tokens": 0,
            "l1_hit_tokens": 0,
            "l2_queried_tokens": 0,
            "l2_hit_tokens": 0,
            "l2_stored_bytes": 0,
            "l2_loaded_bytes": 0,
        }
    )
    gauges: dict[str, float] = field(default_factory=dict)

    def run(self, queried: float, l1: float, l2: float = 0.0, stored: float = 2e10) -> None:
        """Some prompts: ``l1`` and ``l2`` are the shares of what each level was asked for."""
        missed = queried * (1 - l1)
        self.counters["l1_queried_tokens"] += queried
        self.counters["l1_hit_tokens"] += queried * l1
        self.counters["l2_queried_tokens"] += missed
        self.counters["l2_hit_tokens"] += missed * l2
        self.counters["l2_stored_bytes"] += stored
        self.counters["l2_loaded_bytes"] += missed * l2 * 1e5


class Watch:
    """A meter and the level's findings, with a clock of their own."""

    def __init__(self) -> None:
        self.board = Board()
        self.meter = Meter()
        self.reuse = Reuse(lambda: self.meter.totals.get("l2_stored_bytes"), 4096)
        self.level = SecondLevel(self.board, self.reuse)
        self.now = 0.0

    def see(self, engine: Engine, passed: float = 5.0) -> None:
        self.now += passed
        counters: Any = {word: {"|": value} for word, value in engine.counters.items()}
        gauges: Any = engine.gauges
        step = self.meter.take(Reading(counters, gauges), self.now)
        self.level.take(
            step.grown, self.meter.raw, gauges, self.now, 1.8e9 + self.now, restarted=step.restarted
        )

    def record(self, line: int, verdict: str, lost: int | None = None) -> None:
        self.reuse.note({"line": line, "upstream_model": "m", "verdict": {"name": verdict, "lost": lost}})

    @property
    def open(self) -> list[str]:
        return [finding.id for finding in self.board.open()]

    def finding(self) -> Finding:
        (found,) = self.board.open()
        return found


def hours(watch: Watch, engine: Engine, count: float, step: Callable[[int], None]) -> Iterator[int]:
    """Runs the engine for so many hours, one reading in five seconds."""
    watch.see(engine)
    for turn in range(int(count * 720)):
        step(turn)
        watch.see(engine)
        yield turn


def test_the_incident() -> None:
    """11 days in short: 88 % in L1, stores of gigabytes, a gauge at 0, not one load."""
    watch, engine = Watch(), Engine()
    engine.gauges = {"l2_pinned": 0.0, "l2_bytes": 894 * GIB}
    seen = [
        tuple(watch.open)
        for _ in hours(watch, engine, 3, lambda turn: engine.run(174_000, 0.883, stored=2e10))
    ]
    assert seen[-1] == ("l2-write-only",)
    assert [each for index, each in enumerate(seen) if index == 0 or seen[index - 1] != each] == [
        (),
        ("l2-undecided",),
        ("l2-write-only",),
    ], "undecided while there is little to go by, then decided for good"
    assert seen.index(("l2-write-only",)) < 720, "within the first hour"
    finding = watch.finding()
    assert finding.severity == "critical"
    assert GAUGE in finding.advice
    evidence = finding.evidence
    assert evidence["loaded_bytes"] == 0
    assert evidence["stored_bytes"] == 3 * 720 * 2e10
    assert evidence["usage_gauge"] == 0
    assert "kv_offload_load_bytes" in str(evidence["criteria"])
    assert "external_prefix_cache_hits" in str(evidence["criteria"])
    assert evidence["repaired_when"]
    assert watch.level.ever_loaded is False


def test_it_clears_itself_when_loads_appear() -> None:
    watch, engine = Watch(), Engine()
    list(hours(watch, engine, 1, lambda _: engine.run(174_000, 0.883)))
    assert watch.open == ["l2-write-only"]
    engine.run(174_000, 0.883, l2=0.4)
    watch.see(engine)
    assert watch.open == []
    list(hours(watch, engine, 2, lambda _: engine.run(174_000, 0.883, l2=0.4)))
    assert watch.open == [], "nor do the eleven days before make it too small"
    assert watch.level.ever_loaded is True


@pytest.mark.parametrize("share", [0.15, 0.5, 0.9])
def test_the_healthy_twin(share: float) -> None:
    watch, engine = Watch(), Engine()
    for _ in hours(watch, engine, 3, lambda _: engine.run(174_000, 0.883, l2=share)):
        assert watch.open == []


def test_the_healthy_twin_that_loads_seldom_because_l1_does_nearly_all() -> None:
    watch, engine = Watch(), Engine()

    def step(turn: int) -> None:
        engine.run(20_000, 0.97, l2=0.9 if turn % 9 == 0 else 0.0, stored=6e7)
        watch.record(turn % 4, "append-only")

    for _ in hours(watch, engine, 3, step):
        assert watch.open in ([], ["l2-undecided"])
    assert watch.open == []


def test_the_too_small_twin() -> None:
    """Loads happen now and then."""
    watch, engine = Watch(), Engine()
    chance = random.Random(7)
    list(
        hours(
            watch, engine, 3, lambda _: engine.run(174_000, 0.883, l2=0.1 if chance.random() < 0.03 else 0.0)
        )
    )
    assert watch.open == ["l2-too-small"]
    evidence = watch.finding().evidence
    loads, rounds = evidence["readings_with_loads"], evidence["readings_with_misses"]
    assert isinstance(loads, int)
    assert isinstance(rounds, int)
    assert 0 < loads < rounds / 10
    assert GAUGE in watch.finding().advice


def test_no_load_ever_but_returns_that_the_pool_cannot_reach() -> None:
    watch, engine = Watch(), Engine()
    engine.gauges = {"l2_bytes": 10 * GIB}

    def step(turn: int) -> None:
        engine.run(174_000, 0.5, stored=2e9)
        watch.record(turn % 12, "engine-lost" if turn >= 12 else "first", 80_000)

    for turn in hours(watch, engine, 0.5, step):
        if turn > 24:
            assert watch.open == ["l2-too-small"], "24 GB lie between two visits, the pool has 10"
    evidence = watch.finding().evidence
    assert evidence["nearest_return_bytes"] == 24e9
    assert watch.finding().tokens == 80_000 * evidence["lost_returns"]  # type: ignore[operator]


def test_returns_that_would_fit_decide_at_once() -> None:
    watch, engine = Watch(), Engine()
    engine.gauges = {"l2_bytes": 800 * GIB}
    watch.see(engine)
    for turn in range(8):
        engine.run(174_000, 0.5, stored=2e9)
        watch.see(engine)
        watch.record(turn % 2, "engine-lost" if turn >= 2 else "first", 80_000)
    engine.run(174_000, 0.5, stored=2e9)
    watch.see(engine)
    assert watch.open == ["l2-write-only"]


def test_undecided_says_what_would_decide() -> None:
    watch, engine = Watch(), Engine()
    watch.see(engine)
    for _ in range(9):
        engine.run(174_000, 0.883)
        watch.see(engine)
    assert watch.open == ["l2-undecided"]
    evidence = watch.finding().evidence
    assert evidence["hypotheses"].keys() == {"write-only", "too-small"}  # type: ignore[attr-defined]
    assert evidence["would_decide"]


def test_none_when_l1_answered_everything() -> None:
    watch, engine = Watch(), Engine()
    for _ in hours(watch, engine, 2, lambda _: engine.run(174_000, 1.0)):
        assert watch.open == []


def test_none_when_only_new_text_missed() -> None:
    """Each turn's new text is a miss; the exchanges show that nothing known was lost."""
    watch, engine = Watch(), Engine()

    def step(turn: int) -> None:
        engine.run(20_000, 0.97, stored=6e7)
        watch.record(turn % 5, "append-only")

    for turn in hours(watch, engine, 2, step):
        assert watch.open == [], turn


def test_none_without_a_second_level() -> None:
    watch, engine = Watch(), Engine()
    for word in ("l2_stored_bytes", "l2_loaded_bytes"):
        del engine.counters[word]
    watch.see(engine)
    for _ in range(1000):
        engine.counters["l1_queried_tokens"] += 174_000
        engine.counters["l2_queried_tokens"] += 90_000
        watch.see(engine)
    assert watch.open == []
    assert not watch.level.configured
    assert watch.level.ever_loaded is None


def test_no_load_ever_but_stores_that_find_no_room() -> None:
    watch, engine = Watch(), Engine()
    engine.counters["l2_allocation_failures"] = 0

    def step(_: int) -> None:
        engine.run(174_000, 0.5)
        engine.counters["l2_allocation_failures"] += 4

    list(hours(watch, engine, 1, step))
    assert watch.open == ["l2-too-small"]
    assert watch.finding().evidence["allocation_failures"] == 4 * 720


def test_a_few_failed_stores_decide_nothing() -> None:
    watch, engine = Watch(), Engine()
    engine.counters["l2_allocation_failures"] = 0

    def step(turn: int) -> None:
        engine.run(174_000, 0.5)
        engine.counters["l2_allocation_failures"] += turn % 50 == 0

    list(hours(watch, engine, 1, step))
    assert watch.open == ["l2-write-only"]


def test_a_restart_begins_anew() -> None:
    watch, engine = Watch(), Engine()
    list(hours(watch, engine, 1, lambda _: engine.run(174_000, 0.883)))
    assert watch.open == ["l2-write-only"]
    engine.counters = dict.fromkeys(engine.counters, 0.0)
    watch.see(engine)
    assert watch.open == [], "an empty pool has proved nothing"
    list(hours(watch, engine, 1, lambda _: engine.run(174_000, 0.883)))
    assert watch.open == ["l2-write-only"]


def test_what_was_loaded_before_the_watch_began_counts() -> None:
    watch, engine = Watch(), Engine()
    engine.run(1e6, 0.5, l2=0.5)
    list(hours(watch, engine, 2, lambda _: engine.run(174_000, 0.883)))
    assert watch.open == ["l2-too-small"], "it can be read, so it is not write-only"


def test_blocks_where_no_bytes_are_counted() -> None:
    watch = Watch()
    engine = Engine(
        {"l2_stored_blocks": 0, "l2_loaded_blocks": 0, "l1_queried_tokens": 0, "l1_hit_tokens": 0}
    )
    watch.see(engine)
    for _ in range(720):
        engine.counters["l2_stored_blocks"] += 500
        engine.counters["l1_queried_tokens"] += 20_000
        engine.counters["l1_hit_tokens"] += 15_000
        watch.see(engine)
    assert watch.open == ["l2-write-only"]
    engine.counters["l2_loaded_blocks"] += 400
    watch.see(engine)
    assert watch.open == []


def test_ids_are_cleared_one_by_one() -> None:
    assert set(IDS) == {"l2-write-only", "l2-too-small", "l2-undecided"}
