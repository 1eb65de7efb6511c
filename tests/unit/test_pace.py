"""Lost time: what is learnt of an engine's pace, and when nothing is."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit import simulated_days as days
from tests.unit.doctor_ledgers import write
from tests.unit.findings_records import House, Record, record
from tests.unit.simulated_days import day

from foreword.doctor.diagnosis import examine
from foreword.doctor.source import load
from foreword.doctor.terminal import cost_of
from foreword.doctor.window import Window
from foreword.findings import Finding
from foreword.findings.exchange import Exchange
from foreword.findings.pace import APART, LEAST, Pace, slope


def answers(n: int, rate: float, *, noise: float = 0.0, most: int = 60_000) -> list[tuple[int, float]]:
    rng = random.Random(n)
    read = [rng.randrange(most) for _ in range(n)]
    return [(tokens, 0.3 + tokens * rate + rng.random() * noise) for tokens in read]


def test_the_slope_is_seconds_a_token_whatever_an_answer_costs_besides() -> None:
    assert slope(answers(200, 1 / 4_000)) == pytest.approx(1 / 4_000)
    assert slope(answers(200, 1 / 4_000, noise=1.0)) == pytest.approx(1 / 4_000, rel=0.1)


@pytest.mark.parametrize(
    "seen",
    [
        [],
        answers(LEAST - 1, 1 / 4_000),
        answers(200, 1 / 4_000, most=APART),  # nothing had more to read than others
        answers(200, 0.0, noise=1.0),  # times of their own
        answers(200, 1 / 4_000, noise=60.0),  # a queue in front of it
        [(tokens, 15.0) for tokens, _ in answers(200, 1 / 4_000)],
        [(tokens, 20.0 - seconds) for tokens, seconds in answers(200, 1 / 4_000)],
    ],
)
def test_what_does_not_show_it_has_none(seen: list[tuple[int, float]]) -> None:
    assert slope(seen) is None


def test_only_streamed_answers_with_a_reported_cache_count() -> None:
    def met(**members: Any) -> Pace:
        pace = Pace()
        for tokens, seconds in answers(100, 1 / 2_000):
            values = {
                "prompt": tokens + 100,
                "cached": 100,
                "stream": True,
                "ttft_seconds": seconds,
            } | members
            pace.note(Exchange.of(record(**values)))
        return pace

    assert met().rate("llm-prime") == pytest.approx(1 / 2_000)
    assert met().rate("another") is None
    for members in ({"stream": False}, {"cached": None}, {"ttft_seconds": None}, {"outcome": "left"}):
        assert met(**members).rate("llm-prime") is None


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.4, "0 s"), (119, "119 s"), (600, "10.0 min"), (8_244.6, "2.3 h"), (200_000, "2.3 days")],
)
def test_times_are_told_short(seconds: float, told: str) -> None:
    finding = Finding("pinned", "a", "warning", 0.0, 1.0, 5, "", tokens=12_000, seconds=seconds)
    assert cost_of(finding) == f", 12.0 k tokens read again, which took the engine {told}"
    assert cost_of(replace(finding, seconds=None)) == ", 12.0 k tokens read again"
    assert cost_of(replace(finding, tokens=None)) == ""


def without_times(records: list[Record]) -> Iterator[Record]:
    for each in records:
        yield each | {"ttft_seconds": None}


def test_findings_tell_the_time_that_was_lost(tmp_path: Path) -> None:
    """The simulated engine reads 5,000 tokens a second."""
    records = day(days.header)

    def findings(folder: Path, made: list[Record]) -> list[dict[str, Any]]:
        write(folder, made)
        with load(str(folder), Window(), lambda _: None) as loaded:
            told: Any = examine(loaded, lambda _: None).as_json()["findings"]
        return [*told, *(each.as_json() for each in House().meet(made).board.open())]

    for each in findings(tmp_path / "timed", records):
        assert each["seconds"] == pytest.approx(each["tokens"] / 5_000, rel=0.001)
    for each in findings(tmp_path / "bare", list(without_times(records))):
        assert each["seconds"] is None
    # Of two models one has no figure: nothing is told of both together.
    for each in records[::2]:
        each["model"], each["upstream_model"], each["stream"] = "other", "other", False
    for each in findings(tmp_path / "half", records):
        assert each["seconds"] is None
