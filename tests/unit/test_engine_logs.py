"""The engines' logs: every form that is known, and what is not known must not hurt."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import ROOT

from foreword.engines.llamacpp_log import LlamaCppLog
from foreword.engines.loglines import (
    BudgetCut,
    Event,
    FullReread,
    Parked,
    PromptRead,
    RefusalPause,
    Restored,
    Skipped,
    Superseded,
    Unknown,
)
from foreword.engines.strata_log import StrataLog

FIXTURES = ROOT / "tests/fixtures/engines"
STRATA = (FIXTURES / "strata/engine.log").read_text().splitlines()
MIB = 2**20


def strata(line: str) -> list[Event]:
    return StrataLog().read(line)


def test_every_form_of_stratas_log() -> None:
    assert [event for line in STRATA for event in strata(line)] == [
        BudgetCut(1717986918, 8 * 2**30),
        Parked(64930, parked=2, bytes=4666064776, evictions=0, snapshot_bytes=2510827952),
        Restored(63261, "live", 0.2097, parked=2, bytes=6313466544),
        PromptRead(63293, 63261, 32, 0.838, 4, 6),
        PromptRead(254000, 16384, 237616, 365.563, 88, 6),
        Superseded(1),
        Skipped("snapshot-over-budget", 3346 * MIB),
        Skipped("ram-admission"),
        Skipped("ram-floor"),
        RefusalPause(3),
        Skipped("not-parked", tokens=175488),
        Parked(254000, parked=1, bytes=4716362992, evictions=2508, snapshot_bytes=4716362992),
        Restored(251787, "other", 0.31, parked=1, bytes=4716362992, evictions=2508),
        Unknown("compacted"),
        Unknown("prompt"),
    ]


@pytest.mark.parametrize(
    "prefix", ["", "2026-11-30T08:00:00Z ", "strata-b-1  | ", '{"log":"', "[12345.678] "]
)
def test_what_stands_before_a_line_does_not_matter(prefix: str) -> None:
    for line in STRATA:
        assert strata(prefix + line) == strata(line)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (
            "strata serve: prompt 1,000 tokens = 10 read in 5 ms + 990 reused",
            PromptRead(1000, 990, 10, 0.005),
        ),
        (
            "strata serve: prompt 176915 tokens = 0 reused + 176915 read in 97107",
            PromptRead(176915, 0, 176915),
        ),
        (
            "strata serve: prompt 63293 tokens = 63261 reused + 32 read in 838 ms (38.2 tok/s), 4 gener",
            PromptRead(63293, 63261, 32, 0.838),
        ),
        (
            "strata serve: prompt 63293 tokens = 63261 reused + 32 read in 838 ms (38.2 tok/s), 4 generated",
            PromptRead(63293, 63261, 32, 0.838),
        ),
        (
            "strata serve: conversation cache: parked 5 tokens; evictions=3 novel=9 parked=1 snapshot_bytes=7",
            Parked(5, parked=1, evictions=3, snapshot_bytes=7),
        ),
        ("strata serve: conversation cache: restored 7 tokens (exact)", Restored(7, "exact")),
        ("strata serve: conversation cache: restored 7 tokens (warm) in x ms", Restored(7, "other")),
        (
            "strata serve: conversation cache: skipped 900 tokens (snapshot 2.5 GiB exceeds available budget)",
            Skipped("snapshot-over-budget", 2684354560, 900),
        ),
        ("strata serve: conversation cache: skip parking (the moon)", Skipped("other")),
        ("strata serve: conversation cache: dropped 8 superseded copies", Superseded(8)),
        ("strata serve: conversation cache:", Unknown("cache")),
        ("strata serve: conversation cache: \ufffd\ufffd", Unknown("cache")),
        ("strata serve: parked-prefix budget unknown", Unknown("budget")),
        ("strata serve: prompt 12 tokens = 3 reused + 4 read", Unknown("prompt")),
        ("strata-new_model.v2: prompt 5 tokens = 1 reused + 4 read in 1 ms", PromptRead(5, 1, 4, 0.001)),
    ],
)
def test_odd_forms(line: str, event: Event) -> None:
    assert strata(line) == [event]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "GET /v1/models 200",
        "strata verify: captured the 3-token window",
        "prompt 5 tokens = 1 reused + 4 read",
    ],
)
def test_lines_about_other_things(line: str) -> None:
    assert strata(line) == []


def test_two_writers_on_one_line() -> None:
    cut = "strata serve: conversation cache: parked 64930 tok"
    assert strata(cut + STRATA[5]) == [Unknown("parked"), PromptRead(63293, 63261, 32, 0.838, 4, 6)]
    assert strata(STRATA[5] + STRATA[4]) == strata(STRATA[5]) + strata(STRATA[4])


def test_a_cut_prompt_line_is_never_read_wrong() -> None:
    line = STRATA[6]
    whole = strata(line)[0]
    assert isinstance(whole, PromptRead)
    for end in range(len(line)):
        for event in strata(line[:end]):
            if isinstance(event, PromptRead):
                assert (event.tokens, event.reused, event.read) == (whole.tokens, whole.reused, whole.read)
                assert event.read_seconds in (None, whole.read_seconds)
                assert event.generated in (None, whole.generated)


@given(st.text(max_size=200))
def test_no_text_breaks_a_reader(text: str) -> None:
    for line in (
        text,
        f"strata serve: {text}",
        f"strata serve: conversation cache: {text}",
        f"strata: prompt {text}",
    ):
        StrataLog().read(line)
        LlamaCppLog().read(line)


@given(st.integers(0, 2**32))
def test_shuffled_pieces_of_real_lines_break_nothing(seed: int) -> None:
    chance = random.Random(seed)
    pieces = [piece for line in STRATA for piece in line.split(" ")]
    for _ in range(20):
        StrataLog().read("strata serve: " + " ".join(chance.sample(pieces, chance.randint(1, 12))))


@pytest.mark.parametrize(
    "piece",
    [
        "strata ",
        "strata serve: x ",
        "strata serve: conversation cache: a",
        "1 reused ",
        "9 tokens ",
        "3 consecutive ",
        "NOT parked ( ",
        "a",
        "parked-prefix budget 1",
    ],
)
def test_no_line_takes_long(piece: str) -> None:
    begun = time.process_time()
    for head in (
        "",
        "strata serve: ",
        "strata serve: conversation cache: ",
        "strata serve: prompt 5 tokens = ",
    ):
        StrataLog().read(head + piece * (64_000 // len(piece)))
    assert time.process_time() - begun < 1


def test_llamacpp() -> None:
    lines = (FIXTURES / "llamacpp/server.log").read_text().splitlines()
    assert [event for line in lines for event in LlamaCppLog().read(line)] == [
        Parked(7783, snapshot_bytes=round(234.707 * MIB)),
        FullReread("no usable checkpoint"),
        FullReread("no usable checkpoint"),
        Skipped("snapshot-over-budget", round(9011.5 * MIB)),
    ]
