"""What the log says of parking, and the findings that it gives. The storm of the background chapter as the example."""

import pytest

from foreword.engines.loglines import Parked, PromptRead, Restored, Skipped
from foreword.engines.strata_log import StrataLog
from foreword.findings import Board, Finding
from foreword.watching.parking import RECENT_SECONDS, Parking
from foreword.watching.parking_findings import ParkingFindings

GB = 1_000_000_000
MIB = 2**20
GIANT = 4_716_362_992


class Watch:
    """A log's events, and the findings at the end of them."""

    def __init__(self, **gauges: float) -> None:
        self.parking = Parking()
        self.board = Board()
        self.findings = ParkingFindings(self.parking, self.board)
        self.gauges = gauges
        self.now = 0.0
        self.evictions = 0

    def line(self, text: str, *, history: bool = False) -> None:
        for event in StrataLog().read(text):
            self.parking.note(event, self.now, history=history)
        self.now += 0.5

    def prompt(self, tokens: int, reused: int, seconds: float | None = None) -> None:
        read = tokens - reused
        ms = int(1000 * (read / 650 if seconds is None else seconds))
        self.line(
            f"strata serve: prompt {tokens} tokens = {reused} reused + {read} read in {ms} ms (1 tok/s)"
        )

    def park(self, tokens: int, snapshot: int, evicted: int = 0, parked: int = 1) -> None:
        self.evictions += evicted
        self.line(
            f"strata serve: conversation cache: parked {tokens} tokens in 9.0 ms; parked={parked} bytes={snapshot}"
            f" evictions={self.evictions} snapshot_bytes={snapshot} reused_kv_bytes=0"
        )

    def review(self) -> dict[str, Finding]:
        asked = self.parking.prompts
        self.findings.review(self.now, 1.8e9 + self.now, self.gauges, asked)  # type: ignore[arg-type]
        return {finding.id: finding for finding in self.board.open()}


@pytest.fixture
def storm() -> Watch:
    """Eight conversations of 254k tokens take turns; the budget holds one of them."""
    watch = Watch(parking_budget_bytes=8192 * MIB, parking_slots=20, parking_enabled=1)
    watch.park(254_000, GIANT)
    for turn in range(60):
        watch.park(254_000, GIANT, evicted=1)
        watch.prompt(254_000 + 400 * turn, 16_384 if turn % 3 else 251_000)
    return watch


def test_the_storm(storm: Watch) -> None:
    found = storm.review()
    assert set(found) == {"eviction-storm", "checkpoint-collapse"}
    evictions = found["eviction-storm"]
    assert evictions.severity == "critical"
    assert evictions.subject == "engine"
    assert evictions.count == 60
    assert evictions.evidence["snapshots_that_fit"] == 1
    assert evictions.tokens == sum(254_000 + 400 * turn - 16_384 for turn in range(60) if turn % 3)
    assert evictions.seconds is not None
    assert evictions.seconds > 10_000
    collapse = found["checkpoint-collapse"]
    assert collapse.evidence["reused_tokens"] == 16_384
    assert collapse.evidence["exactly_so_often"] == 40
    assert collapse.evidence["long_prompts"] == 60
    assert collapse.evidence["step_tokens"] == 16_384
    assert collapse.severity == "critical"


def test_the_storm_passes(storm: Watch) -> None:
    storm.review()
    storm.now += RECENT_SECONDS + 1
    assert storm.review() == {}


def test_the_counterexample() -> None:
    """One conversation that grows turn by turn: nothing is wrong."""
    watch = Watch(parking_budget_bytes=8192 * MIB, parking_enabled=1)
    for turn in range(200):
        watch.prompt(200_000 + 500 * turn, 199_800 + 500 * (turn - 1))
    assert watch.review() == {}


def test_healthy_parking() -> None:
    watch = Watch(parking_budget_bytes=24_000 * MIB, parking_enabled=1)
    for turn in range(100):
        watch.park(60_000, 2 * GB, evicted=1 if turn % 50 == 0 else 0)
        watch.line(
            "strata serve: conversation cache: restored 60000 tokens (live) in 209.7 ms; parked=2 bytes=1"
        )
        watch.prompt(60_100 + turn, 60_000)
    assert watch.review() == {}
    assert watch.parking.restores == {"live": 100}
    assert watch.parking.evictions == 1, "the first count is where the watch began"


def test_the_root_checkpoint_pins_too() -> None:
    watch = Watch()
    for turn in range(30):
        watch.prompt(100_000 + 777 * turn, 9_321)
    finding = watch.review()["checkpoint-collapse"]
    assert finding.evidence["reused_tokens"] == 9_321
    assert finding.evidence["exactly_so_often"] == 30


def test_an_engine_without_checkpoints() -> None:
    """--prompt-cache 0"""
    watch = Watch()
    for turn in range(6):
        tokens = 10_000 + 500 * turn
        watch.line(
            f"strata serve: prompt {tokens} tokens = 0 reused + {tokens} read in 900 ms, 0 checkpoints"
        )
    finding = watch.review()["checkpoint-collapse"]
    assert finding.severity == "critical"
    assert finding.tokens == sum(10_000 + 500 * turn for turn in range(1, 6)), "the first had to be read"
    assert "--prompt-cache" in finding.advice
    watch.line("strata serve: prompt 20000 tokens = 0 reused + 20000 read in 900 ms, 1 checkpoints")
    assert watch.review() == {}


def test_first_readings_are_no_collapse() -> None:
    watch = Watch()
    for turn in range(30):
        watch.prompt(100_000 + 777 * turn, 0)
        watch.prompt(40_000 + 777 * turn, 10_000 + 1_111 * turn)
        watch.prompt(17_000, 16_384)
    assert watch.review() == {}


def test_parking_that_cannot_hold_a_conversation() -> None:
    watch = Watch(parking_budget_bytes=2048 * MIB, parking_enabled=1)
    for _ in range(733):
        watch.line(
            "strata serve: conversation cache: skip parking (snapshot 3346 MiB exceeds available budget)"
        )
    finding = watch.review()["parking-cannot-hold"]
    assert finding.severity == "critical"
    assert finding.evidence["largest_snapshot_bytes"] == 3346 * MIB
    assert finding.evidence["budget_bytes"] == 2048 * MIB
    assert finding.evidence["skips"] == {"snapshot-over-budget": 733}
    assert "--conversation-cache-mib" in finding.advice


def test_a_conversation_that_is_not_parked_counts_once() -> None:
    watch = Watch(parking_budget_bytes=2048 * MIB, parking_enabled=1)
    for turn in range(10):
        watch.line(
            "strata serve: conversation cache: skip parking (snapshot 3346 MiB exceeds available budget)"
        )
        watch.line(
            "strata serve: swap: slot 0 NOT parked - it cannot be resumed and will be re-read from token 0"
            f" ({100_000 + turn} tokens, budget/RAM refused)"
        )
    finding = watch.review()["parking-cannot-hold"]
    assert (finding.count, finding.evidence["attempts"]) == (10, 10)
    assert finding.evidence["skips"] == {"snapshot-over-budget": 10, "not-parked": 10}


def test_a_machine_without_memory_to_park_in() -> None:
    watch = Watch(parking_enabled=1)
    watch.line("strata serve: parked-prefix budget 1.6 GiB, not 8.0: only 1.6 GiB of RAM is free")
    for turn in range(100):
        if turn % 10 < 6:
            watch.line("strata serve: conversation cache: skip parking (physical RAM admission; 1 GiB)")
        else:
            watch.park(60_000, GB)
    finding = watch.review()["parking-cannot-hold"]
    assert finding.severity == "warning"
    assert finding.evidence["attempts"] == 100
    assert finding.evidence["budget_configured_bytes"] == 8 * 2**30
    assert "memory" in finding.advice


def test_a_few_refusals_are_no_finding() -> None:
    watch = Watch(parking_enabled=1)
    for turn in range(100):
        watch.park(60_000, GB)
        if turn < 8:
            watch.line("strata serve: conversation cache: skip parking (physical RAM admission; 1 GiB)")
    assert watch.review() == {}


def test_parking_off() -> None:
    watch = Watch(parking_enabled=0)
    assert watch.review() == {}, "nobody has used it yet"
    for turn in range(6):
        watch.prompt(20_000 + turn, 19_000)
    assert watch.review()["parking-off"].severity == "info"
    for turn in range(3):
        watch.prompt(100_000 + turn, 12_345 + turn)
    assert watch.review()["parking-off"].severity == "warning"
    watch.gauges = {"parking_enabled": 1}
    assert "parking-off" not in watch.review()


def test_parking_off_is_not_guessed() -> None:
    watch = Watch()
    watch.prompt(20_000, 19_000)
    assert watch.review() == {}


def test_giants_evict() -> None:
    watch = Watch(parking_budget_bytes=8192 * MIB, parking_enabled=1)
    watch.park(30_000, GB)
    for _ in range(10):
        for _ in range(4):
            watch.park(30_000, GB)
            watch.prompt(30_100, 30_000)
        watch.park(254_000, GIANT, evicted=4)
    finding = watch.review()["giants-evict"]
    assert finding.evidence["giants"] == 10
    assert finding.evidence["evictions_for_giants"] == 40
    assert finding.count == 40


def test_equal_ones_are_no_giants(storm: Watch) -> None:
    assert "giants-evict" not in storm.review()


def test_full_rereads_of_llamacpp() -> None:
    from foreword.engines.llamacpp_log import LlamaCppLog

    watch = Watch()
    for _ in range(5):
        for event in LlamaCppLog().read("slot update_slots: forcing full prompt re-processing due to lack"):
            watch.parking.note(event, watch.now, history=False)
    assert watch.review()["checkpoint-collapse"].evidence["full_rereads"] == 5


def test_history_tells_how_things_stand_and_counts_nothing() -> None:
    watch = Watch()
    for _ in range(50):
        watch.evictions += 1
        watch.line(
            f"strata serve: conversation cache: parked 9 tokens in 1 ms; parked=2 bytes=77 evictions={watch.evictions}"
            " snapshot_bytes=50",
            history=True,
        )
    assert watch.review() == {}
    parking = watch.parking
    assert (parking.parked, parking.bytes, parking.snapshot_bytes, parking.evictions) == (2, 77, 50, 0)
    watch.park(9, 50, evicted=3)
    assert parking.evictions == 3, "counted from where the history ended"


def parked(parking: Parking, evictions: int) -> None:
    parking.note(Parked(5, evictions=evictions), 0.0, history=False)


def test_evictions_after_a_restart_go_on() -> None:
    parking = Parking()
    for told in (100, 104, 1, 3):
        parked(parking, told)
    assert parking.evictions == 4 + 3
    assert parking.restarts == 1


def test_a_cut_number_is_no_restart() -> None:
    parking = Parking()
    for told in (2508, 25, 2510):
        parked(parking, told)
    assert parking.evictions == 2
    assert parking.restarts == 0


def test_a_restart_seen_elsewhere() -> None:
    parking = Parking()
    parked(parking, 100)
    parking.restarted()
    parked(parking, 2)
    assert (parking.evictions, parking.restarts, parking.parked) == (2, 0, None)


def test_what_is_kept_is_bounded() -> None:
    parking = Parking()
    for _ in range(5000):
        parking.note(PromptRead(5, 1, 4), 0.0, history=False)
        parking.note(Restored(5, "exact"), 0.0, history=False)
        parking.note(Skipped("other"), 0.0, history=False)
    assert parking.prompts == 5000
    assert len(list(parking.recent(0.0))) == 1000
