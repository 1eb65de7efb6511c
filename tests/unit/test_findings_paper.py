"""The day of the incident, as records: which findings it makes, with which numbers."""

import random
from collections.abc import Iterator
from typing import Any

from tests.unit.findings_records import House, Record, changed, conversation, record

PINNED = 17_920


def claude_code(shadow: bool) -> Iterator[Record]:
    """451 requests of growing conversations with a header after the tools that is never the same twice.

    383 reuse the tools and nothing else, 40 the template's first words, 28 nothing.
    """
    dice = random.Random(17)
    lengths = [PINNED] * 383 + [256] * 40 + [0] * 28
    dice.shuffle(lengths)
    time, line, prompt = 0.0, 0, 180_000
    for n, cached in enumerate(lengths):
        time += 60
        first = prompt >= 180_000
        line, prompt = (line + 2, 40_000) if first else (line, prompt + dice.randint(900, 2_600))
        head = [
            {**segment, "digest": f"{n:012x}"} if segment["path"] == "system[0]" else segment
            for segment in HEAD
        ]
        common: dict[str, Any] = {"time": time, "prompt": prompt, "cached": cached, "line": line}
        members = {
            "prompt_of": head,
            "shadow": {"billing-header": prompt - PINNED} if shadow and not first else {},
        }
        made = (
            record("first", turn=1, **common)
            if first
            else changed("system[0]", "header", lost=prompt - 1_500 - cached, turn=2, **common)
        )
        made["prompt"]["head"] = members["prompt_of"]
        made["shadow"] = members["shadow"]
        yield made


HEAD = record()["prompt"]["head"]


def reasonix() -> Iterator[Record]:
    """444 requests of a client that only ever adds to its conversations, on the other endpoint."""
    for n in range(12):
        yield from conversation(
            37,
            line=2 * n + 1,
            start=n * 37 * 60.0,
            every=60,
            first=30_000,
            growth=2_500,
            client="reasonix",
            entry="/v1/chat/completions",
            block=64,
        )


def day(shadow: bool = True) -> list[Record]:
    return sorted([*claude_code(shadow), *reasonix()], key=lambda each: each["time"])


def test_the_day_makes_two_findings_and_no_other() -> None:
    records = day()
    assert len(records) == 451 + 444
    house = House().meet(records)
    assert house.ids() == ["pinned", "volatile-segment"]

    pinned = house.one("pinned")
    assert pinned.subject == "/v1/messages claude-code"
    assert pinned.severity == "critical"
    assert pinned.count == 383
    evidence = pinned.evidence
    assert (evidence["entry"], evidence["client"]) == ("/v1/messages", "claude-code")
    assert (evidence["tokens"], evidence["at_length"], evidence["requests"]) == (PINNED, 383, 451)
    assert evidence["share"] == round(383 / 451, 4)
    assert evidence["segment"] == "tools[22]"
    assert evidence["path"] == "system[0]"
    assert evidence["lengths"] == [
        {"tokens": PINNED, "requests": 383},
        {"tokens": 256, "requests": 40},
        {"tokens": 0, "requests": 28},
    ]
    assert pinned.tokens == sum(
        each["verdict"]["lost"]
        for each in records
        if each["verdict"]["name"] == "changed" and each["usage"]["cached_tokens"] == PINNED
    )
    assert "FOREWORD_RULE_BILLING_HEADER=on" in pinned.advice

    volatile = house.one("volatile-segment")
    broken = [each for each in records if each["verdict"]["name"] == "changed"]
    assert volatile.subject == "/v1/messages claude-code system[0]"
    assert volatile.count == len(broken)
    assert volatile.tokens == sum(each["verdict"]["lost"] for each in broken)
    assert volatile.evidence["path"] == "system[0]"
    assert (
        volatile.evidence["distinct"]
        == volatile.evidence["changed"]
        == volatile.evidence["requests"]
        == len(broken)
    )
    assert volatile.evidence["shadow"] == {
        "billing-header": sum(e["shadow"]["billing-header"] for e in broken)
    }
    assert "FOREWORD_RULE_BILLING_HEADER=on" in volatile.advice


def test_without_shadows_the_client_s_own_switch_is_named() -> None:
    house = House().meet(day(shadow=False))
    assert "CLAUDE_CODE_ATTRIBUTION_HEADER=0" in house.one("volatile-segment").advice
    assert "CLAUDE_CODE_ATTRIBUTION_HEADER=0" in house.one("pinned").advice


def test_the_day_after_the_header_is_gone_clears_both() -> None:
    house = House().meet(day())
    house.meet(conversation(30, line=1001, start=50_000, first=40_000))
    assert house.ids() == []


def test_the_order_of_the_lengths_does_not_matter() -> None:
    """As a day begins cold: first what found nothing, then what found the template's words, then the rest."""
    records = list(claude_code(shadow=True))
    lengths = iter(sorted(each["usage"]["cached_tokens"] for each in records))
    for each in records:
        each["usage"]["cached_tokens"] = next(lengths)
    pinned = House().meet(records).one("pinned")
    assert (pinned.evidence["tokens"], pinned.count) == (PINNED, 383)
