"""What holds for all detectors: no record harms them, no bug in one harms another, and they forget in order."""

import json
import logging
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.findings_records import House, changed, conversation, record

from foreword.findings import IDS, Board, Detectors
from foreword.findings.detector import SUBJECTS
from foreword.findings.exchange import Exchange
from foreword.findings.memory import Memory, Numbers
from foreword.findings.pinned import TURNS, Turn, recall, remember

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200)
@given(
    st.dictionaries(st.sampled_from(sorted(record())), JSON),
    st.sampled_from(["changed", "append-only", "compacted"]),
)
def test_any_record_is_read(members: dict[str, Any], verdict: str) -> None:
    """Newer, older and broken records: what is not as expected counts as missing."""
    House().meet([{**record(verdict), **members}] * 3)


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(["name", "path", "class", "lost", "shared", "kind"]), JSON))
def test_any_verdict_is_read(members: dict[str, Any]) -> None:
    House().meet([{**record(), "verdict": {"name": "changed", **members}}] * 3)


def test_absent_is_not_zero() -> None:
    bare = Exchange.of({})
    assert (bare.prompt, bare.cached, bare.line, bare.verdict, bare.session) == (None,) * 5
    assert Exchange.of({"usage": {"cached_tokens": 0}}).cached == 0
    assert Exchange.of({"usage": {"cached_tokens": True, "prompt_tokens": -1}}).cached is None


def test_a_preliminary_record_is_not_noted() -> None:
    """It comes again when it is settled; counted twice it would be wrong."""
    house = House().meet(
        {**changed("system[0]", "header", turn=n, time=30.0 * n), "pending": True} for n in range(20)
    )
    assert house.ids() == []


def test_a_bug_in_one_detector_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    detectors = Detectors(board := Board())
    broken = next(each for each in detectors._all if each.id == "pinned")

    def fail(_: object) -> None:
        raise ZeroDivisionError

    broken.note = fail  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.ERROR):
        for n in range(2, 12):
            detectors.note(
                changed(
                    "system[0]", "header", turn=n, time=30.0 * n, prompt=40_000 + 1_000 * n, cached=17_920
                )
            )
    assert [finding.id for finding in board.open()] == ["volatile-segment"]
    assert detectors.failures["pinned"] == 10
    assert sum(detectors.failures.values()) == 10
    assert len(caplog.records) == 1


def test_subjects_are_bounded_and_the_oldest_is_closed_first() -> None:
    house = House()
    for n in range(SUBJECTS + 5):
        house.meet(
            changed(
                "system[0]",
                "header",
                client=f"client-{n}",
                line=n,
                turn=turn,
                time=float(n),
                prompt=40_000 + turn * 900,
            )
            for turn in range(2, 7)
        )
    subjects = [finding.subject for finding in house.board.open() if finding.id == "volatile-segment"]
    assert len(subjects) == SUBJECTS
    assert not any(f" client-{n} " in subject for subject in subjects for n in range(5))


def test_memory_forgets_what_was_used_least_recently() -> None:
    gone: list[str] = []
    memory: Memory[str, list[int]] = Memory(2, list, lambda key, _: gone.append(key))
    memory.use("a").append(1)
    memory.use("b")
    memory.use("a")
    memory.use("c")
    assert gone == ["b"]
    assert memory.get("a") == [1]
    assert memory.get("b") is None
    assert len(memory) == 2


def test_every_finding_says_what_to_do_and_names_no_text() -> None:
    house = House().meet(
        changed("system[0]", "header", turn=n, time=30.0 * n, prompt=40_000 + 900 * n, cached=17_920)
        for n in range(2, 12)
    )
    for finding in house.board.open():
        assert finding.id in IDS
        assert finding.advice.endswith(".")
        assert set(finding.as_json()) >= {"id", "subject", "evidence", "advice", "count", "tokens"}
        assert finding.first_seen <= finding.last_seen


def test_numbers_begin_with_the_trouble() -> None:
    house = House().meet(conversation(200, line=1, first=2_000, growth=100))
    house.meet(
        changed(
            "system[0]", "header", line=2, turn=n, time=9_000.0 + n, prompt=40_000 + 900 * n, cached=17_920
        )
        for n in range(2, 12)
    )
    assert house.one("pinned").evidence["requests"] == 10
    assert house.one("volatile-segment").evidence["requests"] == 10


def test_as_many_lines_are_remembered_as_the_setting_says() -> None:
    """A plateau needs four turns of one line: with others between them it shows only while the line is remembered."""

    def found(lines: int) -> bool:
        detectors = Detectors(board := Board(), lines=lines)
        for turn in range(2, 7):
            for line in range(3):
                detectors.note(
                    changed(
                        "system[0]",
                        "header",
                        client=f"client-{line}",
                        line=line,
                        turn=turn,
                        time=30.0 * turn + line,
                        prompt=40_000 + 1_000 * turn,
                        cached=17_920,
                    )
                )
        assert not any(detectors.failures.values())
        return any(finding.id == "pinned" for finding in board.open())

    assert found(3)
    assert not found(2)


def test_a_line_takes_little_memory_however_long_it_grows() -> None:
    """Healthy ones of forty turns, after the first ones have made what all share."""
    lines = 300
    detectors = Detectors(Board(), lambda: 200_000)

    def meet(first: int) -> None:
        for line in range(first, first + lines):
            for each in conversation(40, line=line, start=5.0 * line, first=20_000 + line):
                # As it is read from JSON: nothing of one record is part of another.
                detectors.note(json.loads(json.dumps(each)))

    meet(0)
    tracemalloc.start()
    try:
        meet(lines)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / lines < 1_000


def test_turns_come_back_from_their_packing() -> None:
    turns = [Turn(2**32 - 1, 17_920, None, stopped=True), Turn(5, 0, 0, stopped=False), Turn(9, 3, 4, True)]
    packed = b""
    for turn in turns:
        packed = remember(packed, turn)
    assert recall(packed) == turns
    for n in range(TURNS):
        packed = remember(packed, Turn(n, n, n, stopped=False))
    assert [turn.prompt for turn in recall(packed)] == list(range(TURNS))


def test_what_no_counter_holds_counts_as_missing() -> None:
    assert Exchange.of({"usage": {"prompt_tokens": 2**32}}).prompt is None
    assert Exchange.of({"line": 2**32 - 1}).line == 2**32 - 1


def test_numbers_are_a_bounded_set() -> None:
    numbers = Numbers(3)
    for number in (7, 2**64 - 1, 7, 1, 5):
        numbers.add(number)
    assert len(numbers) == 3
    assert [number in numbers for number in (1, 5, 7, 2**64 - 1)] == [True, False, True, True]
