"""One cause planted in a day of two clients: the sidecar's findings and the doctor's name it, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit import simulated_days as days
from tests.unit.doctor_ledgers import write
from tests.unit.findings_records import House
from tests.unit.simulated_days import Cause, Record, day

from foreword.doctor.diagnosis import examine
from foreword.doctor.source import load
from foreword.doctor.window import Window

CLIENT = ("/v1/messages", "claude-code")
BOTH = {"volatile-segment", "pinned"}


def doctor(folder: Path, records: list[Record]) -> dict[str, Any]:
    write(folder, records)
    with load(str(folder), Window(), lambda _: None) as loaded:
        return examine(loaded, lambda _: None).as_json()


@pytest.mark.parametrize("lines", [1, 6])
def test_a_clean_day_has_no_findings(tmp_path: Path, lines: int) -> None:
    records = day(lines=lines)
    assert len(records) == 451 + 444
    assert House().meet(records).never()
    told = doctor(tmp_path, records)
    assert (told["findings"], told["pinned"], told["volatile"]) == ([], [], [])


@pytest.mark.parametrize(
    ("cause", "place", "ids"),
    [
        (days.header, "system[0]", BOTH),
        (days.tools_shuffled, "tools", {"volatile-segment"}),
        (days.few_tools_shuffled, "tools", {"volatile-segment"}),
        (days.two_tools_swapped, "tools", {"volatile-segment"}),
        (days.a_tool_tells_the_time, "tools", BOTH),
        (days.system_tells_the_time, "system[1]", BOTH),
        (days.opening_rewritten, "messages[0].content[0]", BOTH),
    ],
)
def test_one_cause_is_named_and_no_other(cause: Cause, place: str, ids: set[str], tmp_path: Path) -> None:
    records = day(cause)
    changed = [each for each in records if each["verdict"]["name"] == "changed"]
    lost = sum(each["verdict"]["lost"] for each in changed)

    house = House().meet(records)
    assert set(house.ids()) == house.ever == ids
    for finding in house.board.open():
        assert (finding.evidence["entry"], finding.evidence["client"]) == CLIENT
        assert str(finding.evidence["path"]).startswith(place)
    assert house.one("volatile-segment").tokens == lost

    told = doctor(tmp_path, records)
    found = {each["id"]: each for each in told["findings"]}
    assert len(found) == len(told["findings"])
    assert set(found) == ids
    volatile = found["volatile-segment"]
    assert volatile["subject"].startswith(f"/v1/messages claude-code {place}")
    assert (volatile["count"], volatile["tokens"]) == (len(changed), lost)
    assert {each["path"].partition("[")[0] for each in told["volatile"]} == {place.partition("[")[0]}
    assert len(told["pinned"]) == ("pinned" in ids)
    if "pinned" in ids:
        (pin,) = told["pinned"]
        assert (pin["entry"], pin["client"]) == CLIENT
        assert pin["share"] > 0.99
        assert pin["segment"].startswith(place)
        assert (
            found["pinned"]["evidence"]["pinned_at"]
            == pin["tokens"]
            == house.one("pinned").evidence["tokens"]
        )


def test_the_headers_length_and_rule_are_named(tmp_path: Path) -> None:
    told = doctor(tmp_path, day(days.header))
    (pin,) = told["pinned"]
    tools = sum(each.bytes for each in days.tools()) // days.BYTES_A_TOKEN
    assert pin["tokens"] == tools // days.BLOCK * days.BLOCK
    assert all("FOREWORD_RULE_BILLING_HEADER=on" in each["advice"] for each in told["findings"])


def test_passages_that_are_rebuilt_are_one_cause_too(tmp_path: Path) -> None:
    records = day(days.passages_rebuilt)
    house = House().meet(records)
    assert set(house.ids()) == {*BOTH, "reassembled-block"}
    assert {each.evidence["path"] for each in house.board.open()} == {"messages[0].content[0]"}
    told = doctor(tmp_path, records)
    assert {each["id"] for each in told["findings"]} == {"reassembled-block", "pinned"}
    assert {each["segment"] for each in told["pinned"]} == {"messages[0].content[0]"}


def test_an_eviction_storm_is_the_engines(tmp_path: Path) -> None:
    records = day(days.evicted, lines=6)
    house = House().meet(records)
    assert set(house.ids()) == house.ever == {"eviction-storm"}
    told = doctor(tmp_path, records)
    assert [each["id"] for each in told["findings"]] == ["eviction-storm"]
    assert (told["pinned"], told["volatile"]) == ([], [])


def test_two_lengths_at_one_volatile_place_are_one_finding(tmp_path: Path) -> None:
    """Two kinds of conversations with tools of their own behind which the header stands."""

    def cause(line: days.Line, rng: Any, engine: days.Engine) -> None:
        if line.number % 2:
            line.tools = days.tools(12)
        days.header(line, rng, engine)

    told = doctor(tmp_path, day(cause, lines=4))
    assert sorted(each["id"] for each in told["findings"]) == ["pinned", "volatile-segment"]
    assert len(told["pinned"]) == 2
    assert {each["segment"] for each in told["pinned"]} == {"system[0]"}
