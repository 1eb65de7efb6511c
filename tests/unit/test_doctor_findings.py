"""The doctor finds planted causes without being told where to look, and finds nothing where nothing is."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.unit import doctor_ledgers as ledgers
from tests.unit.doctor_ledgers import MONDAY, Record, Talk, record, segment, tools

from foreword.doctor.diagnosis import examine
from foreword.doctor.source import load
from foreword.doctor.window import Window


def report(folder: Path, records: list[Record], window: Window | None = None) -> dict[str, Any]:
    """The doctor's report of a ledger of these records."""
    ledgers.write(folder, records, files=3)
    with load(str(folder), window or Window(), lambda text: None) as loaded:
        return examine(loaded, lambda text: None).as_json()


def ids(told: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in told["findings"]]


def test_the_day_of_the_incident(tmp_path: Path) -> None:
    told = report(tmp_path, ledgers.paper_day())
    assert told["requests"] == 895
    worst, other = told["by_entry"]
    assert (worst["entry"], worst["client"], worst["model"]) == ("/v1/messages", "claude-code", "llm-prime")
    assert worst["requests"] == 451
    assert worst["hit_rate"] == pytest.approx(0.14, abs=0.01)
    assert other["requests"] == 444
    assert other["hit_rate"] > 0.9
    (pin,) = told["pinned"]
    assert (pin["entry"], pin["tokens"], pin["segment"]) == ("/v1/messages", 17_920, "system[0]")
    assert pin["share"] == round(383 / 451, 4)
    (volatile,) = told["volatile"]
    assert (volatile["path"], volatile["distinct"], volatile["requests"]) == ("system[0]", 451, 451)
    assert set(ids(told)) == {"volatile-segment", "pinned"}
    assert all(finding["severity"] == "critical" for finding in told["findings"])
    assert all("FOREWORD_RULE_BILLING_HEADER=on" in finding["advice"] for finding in told["findings"])
    (rule,) = told["shadow"]
    assert rule["rule"] == "billing-header"
    assert rule["hit_rate"] > 0.95
    assert told["verdicts"][0]["name"] == "changed"
    assert told["verdicts"][0]["tokens_lost"] == rule["tokens"]
    exact = {each["tokens"]: each["requests"] for group in told["lengths"] for each in group["exact"]}
    assert exact == {0: 28, 256: 40, 17_920: 383}


def test_the_day_without_verdicts(tmp_path: Path) -> None:
    """The heads alone name the segment: neither verdicts, nor lines, nor sessions."""
    bare = [
        each | {"verdict": None, "line": None, "turn": None, "session": None, "shadow": {}}
        for each in ledgers.paper_day()
    ]
    told = report(tmp_path, bare)
    assert [(pin["tokens"], pin["segment"]) for pin in told["pinned"]] == [(17_920, "system[0]")]
    assert [each["path"] for each in told["volatile"]] == ["system[0]"]
    assert set(ids(told)) == {"volatile-segment", "pinned"}


def test_the_day_after(tmp_path: Path) -> None:
    told = report(tmp_path, ledgers.paper_day(repaired=True))
    assert told["findings"] == told["pinned"] == told["volatile"] == []


@pytest.mark.parametrize("seed", range(4))
def test_healthy_days_have_no_findings(seed: int, tmp_path: Path) -> None:
    told = report(tmp_path, ledgers.healthy(seed=seed))
    assert told["findings"] == told["pinned"] == told["volatile"] == []
    assert told["good"] is True


def test_one_shot_requests_with_a_common_head_are_not_pinned(tmp_path: Path) -> None:
    rng = random.Random(2)
    records = []
    for n in range(300):
        head = [*tools(), segment("messages[0].content[0]", "first-user", 900 + n, f"question {n}")]
        records.append(
            record(
                n,
                MONDAY + n,
                prompt=18_500 + rng.randrange(40_000),
                cached=17_920 if n else 0,
                verdict="first",
                lost=0,
                head=head,
                session=None,
                line=n,
                turn=1,
            )
        )
    told = report(tmp_path, records)
    assert told["findings"] == told["pinned"] == told["volatile"] == []


def test_what_differs_by_session_only_is_not_volatile(tmp_path: Path) -> None:
    records = []
    for n in range(200):
        talk = n % 20  # twenty sessions take turns
        head = [
            *tools(),
            segment("system[0]", "system", 5_000, f"scratch folder of {talk}"),
            segment("messages[0].content[0]", "first-user", 20, "hello"),
        ]
        grown = 25_000 + 800 * (n // 20)
        first = n < 20
        records.append(
            record(
                n,
                MONDAY + n,
                prompt=grown,
                cached=17_920 if first else grown - 832,
                lost=0,
                verdict="first" if first else "append-only",
                head=head,
                session=f"{talk:016x}",
                line=talk,
                turn=n // 20 + 1,
            )
        )
    told = report(tmp_path, records)
    (path,) = [each for each in told["segments"] if each["path"] == "system[0]"]
    assert (path["distinct"], path["changes"]) == (20, 0)
    assert told["findings"] == told["volatile"] == []


def test_tools_in_another_order_each_time(tmp_path: Path) -> None:
    rng = random.Random(1)
    records, prompt = [], 30_000
    for n in range(80):
        held, prompt = prompt, prompt + 1_000
        shuffled = rng.sample(range(12), 12)
        head = [segment(f"tools[{k}]", "tools", 2_000, f"tool {name}") for k, name in enumerate(shuffled)]
        head = [
            each | {"digest": ledgers.digest(str(name))} for each, name in zip(head, shuffled, strict=True)
        ]
        head.append(segment("messages[0].content[0]", "first-user", 500, "question"))
        records.append(
            record(
                n,
                MONDAY + 30 * n,
                prompt=prompt,
                cached=64 if n else 0,
                verdict="changed" if n else "first",
                path="tools[0]",
                kind=("tools", "reordered"),
                expected=held,
                lost=held - 64,
                head=head,
                turn=n + 1,
            )
        )
    told = report(tmp_path, records)
    (volatile,) = [each for each in told["findings"] if each["id"] == "volatile-segment"]
    assert volatile["evidence"]["path"] == "tools[0]"
    assert volatile["evidence"]["paths"] == 12
    assert volatile["severity"] == "critical"
    assert "order" in volatile["advice"]


@pytest.mark.parametrize("seed", range(8))
def test_a_cause_planted_anywhere(seed: int, tmp_path: Path) -> None:
    records, path, length = ledgers.planted(seed)
    told = report(tmp_path, records)
    assert [each["path"] for each in told["volatile"]] == [path]
    assert [(each["tokens"], each["segment"]) for each in told["pinned"]] == [(length, path)]
    assert set(ids(told)) == {"volatile-segment", "pinned"}
    assert all(path in finding["advice"] for finding in told["findings"])


def test_evictions(tmp_path: Path) -> None:
    told = report(tmp_path, ledgers.evictions())
    assert ids(told) == ["eviction-storm"]
    (finding,) = told["findings"]
    assert finding["severity"] == "critical"
    assert finding["evidence"]["conversations"] == 8
    assert told["pinned"] == []


def test_a_restart_is_not_a_storm(tmp_path: Path) -> None:
    talks = [Talk(f"talk {n}", line=n) for n in range(20)]
    records = []
    for n in range(400):
        talk = talks[n % 20]
        lost = 200 <= n < 220
        changes: Record = {"cached": 0, "verdict": "engine-lost", "lost": talk.held} if lost else {}
        records.append(talk.next(n, MONDAY + 10 * n, 700, **changes))
    assert report(tmp_path, records)["findings"] == []


def test_checkpoints(tmp_path: Path) -> None:
    told = report(tmp_path, ledgers.evictions(checkpoints=True))
    assert set(ids(told)) == {"eviction-storm", "checkpoint-collapse"}
    (collapse,) = [each for each in told["findings"] if each["id"] == "checkpoint-collapse"]
    assert collapse["evidence"]["step"] == 16_384
    assert "--prompt-cache-every" in collapse["advice"]


def test_a_template_that_drops_reasoning_is_no_storm_and_no_plateau(tmp_path: Path) -> None:
    told = report(tmp_path, ledgers.template_drops())
    assert told["findings"] == told["pinned"] == []
    assert {row["name"]: row["tokens_lost"] for row in told["verdicts"]}["template"] == 59 * 1_500


def test_reassembled_passages(tmp_path: Path) -> None:
    told = report(tmp_path, ledgers.rag())
    (block,) = [each for each in told["findings"] if each["id"] == "reassembled-block"]
    assert block["evidence"]["path"] == "messages[1].content[0]"
    assert block["count"] == 20
    assert "volatile-segment" not in ids(told)


@pytest.mark.parametrize("told_twice", [True, False])
def test_early_compaction(told_twice: bool, tmp_path: Path) -> None:
    told = report(tmp_path, ledgers.compactions(told_twice=told_twice))
    assert ids(told) == ["early-compaction"]
    (finding,) = told["findings"]
    assert 80_000 < finding["evidence"]["compacts_at"] < 100_000
    assert finding["advice"].startswith("Set FOREWORD_USAGE=net") is told_twice


def test_compaction_near_the_window_is_no_finding(tmp_path: Path) -> None:
    early = ledgers.compactions(told_twice=False)
    assert report(tmp_path, [each for each in early if each["client"] == "claude-code"])["findings"] == []


def failed(number: int, session: str) -> Record:
    return record(
        number,
        MONDAY + number,
        prompt=None,
        cached=None,
        verdict=None,
        status=400,
        outcome="engine-error",
        session=session,
        line=None,
        turn=None,
        fault={"kind": "prompt-too-long", "source": "engine"},
    )


def test_overflow_loop(tmp_path: Path) -> None:
    loop = [failed(90_000 + n, "00000000000000aa") for n in range(9)]
    once = [failed(91_000 + n, f"{n:016x}") for n in range(9)]
    told = report(tmp_path, ledgers.healthy() + loop + once)
    assert [(each["id"], each["subject"], each["count"]) for each in told["findings"]] == [
        ("overflow-loop", "00000000000000aa", 9)
    ]
    assert (told["refused"], told["unanswered"]) == (18, 0)


def test_a_refusal_is_an_answer_and_a_client_that_left_is_none(tmp_path: Path) -> None:
    refused = [failed(91_000 + n, f"{n:016x}") | {"outcome": "refused", "status": 429} for n in range(2)]
    left = [failed(92_000 + n, f"{n:016x}") | {"outcome": "left", "status": 499} for n in range(3)]
    broken = [failed(93_000, "0" * 16) | {"status": 502}, failed(93_001, "0" * 16) | {"status": None}]
    told = report(tmp_path, ledgers.healthy() + refused + left + broken)
    assert (told["refused"], told["unanswered"]) == (2, 5)


def clocked(kind: str, *, sizes: tuple[int, ...] = (26_000,)) -> list[Record]:
    """Conversations whose clock stands in front of a long text, both of one path. Their texts differ in length."""
    records = []
    for session in range(4):
        talk = ledgers.Talk(f"clock {session}", line=session + 1)
        for turn in range(12):
            size = sizes[turn % len(sizes)] + 3_000 * session
            said = f"manual {session}" if len(sizes) == 1 else f"passages {session} {turn}"
            head = [
                *ledgers.tools(),
                ledgers.segment("system[0]", kind, 40, f"{session} {turn}"),
                ledgers.segment("system[0]", "system", size, said),
                ledgers.segment("messages[0].content[0]", "first-user", 700, f"question of {talk.session}"),
            ]
            changes: dict[str, Any] = {"head": head}
            if turn:
                changes |= {
                    "cached": 17_920,
                    "verdict": "changed",
                    "path": "system[0]",
                    "kind": (kind, "edited"),
                    "lost": 12_000 + 900 * turn,
                }
            records.append(
                talk.next(100 * session + turn, ledgers.MONDAY + 3_600 * session + 60 * turn, 900, **changes)
            )
    return records


@pytest.mark.parametrize("kind", ["header", "system"])
def test_a_clock_in_front_of_a_long_text_of_its_path_is_no_block(kind: str, tmp_path: Path) -> None:
    told = report(tmp_path, clocked(kind))
    assert "reassembled-block" not in ids(told)
    assert "volatile-segment" in ids(told)
    (pinned,) = [each for each in told["findings"] if each["id"] == "pinned"]
    assert "append" not in pinned["advice"].lower()


def test_passages_behind_a_clock_of_their_path_are_a_block(tmp_path: Path) -> None:
    assert "reassembled-block" in ids(report(tmp_path, clocked("system", sizes=(26_000, 31_000, 22_000))))


def test_not_reported_is_not_zero(tmp_path: Path) -> None:
    silent = Talk("silent", client="codex", entry="/v1/responses")
    records = [
        silent.next(n, MONDAY + n, 900, cached=None, verdict="not-reported", lost=None, expected=None)
        for n in range(40)
    ]
    told = report(tmp_path, records)
    assert told["hit_rate"] is None
    assert (told["not_reported"], told["prompt_tokens"]) == (40, 0)
    assert told["lengths"] == []
    assert ids(told) == ["usage-not-reported"]
    assert "--enable-prompt-tokens-details" in told["findings"][0]["advice"]
    mixed = report(tmp_path / "mixed", records + ledgers.healthy())
    assert mixed["hit_rate"] == report(tmp_path / "healthy", ledgers.healthy())["hit_rate"]


def test_prompts_below_the_minimum_are_worth_knowing_only(tmp_path: Path) -> None:
    records = [
        record(
            n, MONDAY + n, prompt=30, cached=0, verdict="below-minimum", lost=0, session=None, line=n, turn=1
        )
        for n in range(50)
    ]
    told = report(tmp_path, records)
    assert [(each["id"], each["severity"]) for each in told["findings"]] == [("below-minimum", "info")]
    assert told["good"] is True


def test_findings_have_the_shape_of_live_ones(tmp_path: Path) -> None:
    for finding in report(tmp_path, ledgers.paper_day())["findings"]:
        assert set(finding) == {
            "id",
            "subject",
            "severity",
            "first_seen",
            "last_seen",
            "count",
            "tokens",
            "seconds",
            "evidence",
            "advice",
        }


def test_a_window_of_time(tmp_path: Path) -> None:
    days = ledgers.paper_day() + ledgers.paper_day(repaired=True, day=MONDAY + 86_400)
    assert [each["day"] for each in report(tmp_path, days)["by_day"]] == ["2026-08-17", "2026-08-18"]
    after = report(tmp_path, days, Window(since=MONDAY + 86_400))
    assert (after["requests"], after["findings"]) == (895, [])
    assert report(tmp_path, days, Window(until=MONDAY + 86_400))["requests"] == 895
