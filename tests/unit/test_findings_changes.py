"""Findings about prompts that change: volatile-segment, pinned, reassembled-block."""

import itertools
from collections.abc import Iterator

import pytest
from tests.unit.findings_records import HEAD, House, Record, changed, conversation, record


def broken(turns: int, path: str, segment: str, **members: object) -> Iterator[Record]:
    """A conversation that is changed at one place in each turn, and reuses what stands before it."""
    members = {"cached": 17_920, "line": 1, "kind": "edited", "growth": 2_000, "start": 0.0, **members}
    growth, start = int(str(members.pop("growth"))), float(str(members.pop("start")))
    for turn in range(2, turns + 2):
        prompt = 40_000 + growth * turn
        lost = prompt - growth - int(str(members["cached"]))
        yield changed(path, segment, lost=lost, prompt=prompt, turn=turn, time=start + 30.0 * turn, **members)  # type: ignore[arg-type]


def test_four_changes_of_a_line_are_a_habit_three_are_not() -> None:
    house = House().meet(broken(3, "system[0]", "header"))
    assert house.ids() == []
    house.meet([changed("system[0]", "header", prompt=60_000, cached=17_920, turn=5)])
    volatile = house.one("volatile-segment")
    assert (volatile.count, volatile.tokens) == (4, 24_080 + 26_080 + 28_080 + 30_000), (
        "those before it opened too"
    )
    assert volatile.severity == "critical"


def test_one_change_in_three_is_none() -> None:
    turns: list[Record] = []
    for n in range(2, 40):
        made = changed("tools[4]", "tools", cached=4_096) if n % 3 == 0 else record(cached=48_000)
        turns.append({**made, "turn": n, "time": 30.0 * n})
    assert House().meet(turns).never()


def test_tools_that_move_are_one_place_wherever_the_first_is() -> None:
    turns = (
        changed(
            f"tools[{n % 7}]",
            "tools",
            kind="reordered",
            cached=n % 7 * 700,
            turn=n,
            time=30.0 * n,
            lost=9_000,
        )
        for n in range(2, 12)
    )
    volatile = House().meet(turns).one("volatile-segment")
    assert volatile.subject == "/v1/messages claude-code tools[*]"
    assert volatile.evidence["path"] == "tools[*]"
    assert volatile.evidence["kind"] == "reordered"
    assert "ENABLE_TOOL_SEARCH=false" in volatile.advice


def test_a_block_that_only_the_last_message_has_is_one_place() -> None:
    turns = (
        changed(f"messages[{2 * n}].content[1]", "history", cached=1_000 * n, turn=n, time=30.0 * n, lost=900,
                client="other", entry="/v1/chat/completions", prompt=1_000 * n + 2_000)
        for n in range(2, 12)
    )  # fmt: skip
    house = House().meet(turns)
    assert house.ids() == ["volatile-segment"], "reuse grows with the prompt: nothing is pinned"
    assert house.one("volatile-segment").subject == "/v1/chat/completions other messages[*].content[1]"


def test_short_conversations_count_together() -> None:
    turns = (
        changed("system[0]", "header", line=n, turn=2, time=30.0 * n, prompt=40_000 + 20 * n, cached=17_920)
        for n in range(1, 12)
    )
    opened = House().meet(turns).one("volatile-segment")
    assert opened.evidence["requests"] == opened.count == 11


def test_changes_clear_when_the_same_conversation_is_well() -> None:
    house = House().meet(broken(8, "system[0]", "header"))
    assert house.ids() == ["pinned", "volatile-segment"]
    healthy = [
        record(prompt=60_000 + 500 * n, cached=59_500 + 500 * n, turn=n + 9, time=300.0 + n)
        for n in range(20)
    ]
    house.meet(healthy[:19])
    assert house.ids() == ["pinned", "volatile-segment"]
    house.meet(healthy[19:])
    assert house.ids() == []


def test_other_people_s_health_clears_nothing() -> None:
    """One user of twenty has the trouble; the others, on conversations that were there before, do not flap it."""
    house = House().meet(itertools.chain.from_iterable(conversation(2, line=n) for n in range(1, 20)))
    house.meet(broken(6, "system[0]", "header", line=20, start=100.0))
    first_seen = house.one("volatile-segment").first_seen
    for n in range(10):
        at = 400.0 + 300 * n
        house.meet(record(line=line, turn=3 + n, time=at + line) for line in [*range(1, 20), *range(1, 20)])
        assert house.ids() == ["pinned", "volatile-segment"]
        house.meet(broken(1, "system[0]", "header", line=20, start=at + 40, growth=30_000 + 1_000 * n))
    assert house.one("volatile-segment").first_seen == first_seen


def test_a_client_that_is_gone_is_closed_by_the_clock_of_the_records() -> None:
    house = House().meet(broken(8, "system[0]", "header"))
    house.meet([record(client="codex", entry="/v1/responses", line=2, time=5 * 3600.0)])
    assert house.ids() == ["pinned", "volatile-segment"]
    house.meet([record(client="codex", entry="/v1/responses", line=2, time=7 * 3600.0)])
    assert house.ids() == []


def test_a_fixed_head_uncovers_what_lay_behind_it() -> None:
    house = House().meet(broken(8, "system[0]", "header"))
    house.meet(broken(25, "system[2]", "system", start=400.0, cached=18_016))
    volatile = house.one("volatile-segment")
    assert volatile.evidence["path"] == "system[2]", (
        "system[0] stands before it, so it is known to have stood still"
    )
    assert "--exclude-dynamic-system-prompt-sections" in volatile.advice


def test_an_engine_that_reports_nothing_does_not_hide_a_change() -> None:
    turns = [*broken(8, "system[0]", "header", cached=0)]
    for turn in turns:
        turn["usage"]["cached_tokens"] = None
    house = House().meet(turns)
    assert house.ids() == ["usage-not-reported", "volatile-segment"]
    assert house.one("volatile-segment").count == 8


def test_a_change_counts_though_the_engine_lost_more() -> None:
    """A cold turn among them: its verdict is the engine's, and the path is told all the same."""
    turns = [*broken(9, "system[0]", "header")]
    for turn in turns[::3]:
        turn["verdict"]["name"] = "engine-lost"
    volatile = House().meet(turns).one("volatile-segment")
    assert volatile.count == 9
    assert volatile.tokens == sum(
        turn["verdict"]["lost"] for turn in turns if turn["verdict"]["name"] == "changed"
    )


def test_a_header_joined_with_its_text_is_told_from_it() -> None:
    """One path, two segments: the header, and the long text behind it."""
    head = [
        {"path": "messages[0].content", "class": "header", "bytes": 90, "digest": "1" * 12},
        {"path": "messages[0].content", "class": "system", "bytes": 26_000, "digest": "2" * 12},
    ]
    turns = [*broken(9, "messages[0].content", "header", cached=0)]
    for n, turn in enumerate(turns):
        turn["prompt"]["head"] = [{**head[0], "digest": f"{n:012x}"}, head[1]]
    house = House().meet(turns)
    assert house.ids() == ["pinned", "volatile-segment"]
    assert house.one("volatile-segment").evidence["bytes"] == 90
    assert house.one("volatile-segment").evidence["distinct"] == 9
    assert house.one("pinned").evidence["segment"] is None, "nothing stands before it"


@pytest.mark.parametrize("cached", [0, 32])
def test_a_clock_at_the_very_beginning_is_pinned_too(cached: int) -> None:
    house = House().meet(broken(8, "system[0]", "header", cached=cached))
    assert house.one("pinned").evidence["tokens"] == cached
    assert house.one("pinned").severity == "critical"


def test_a_template_that_rewrites_is_pinned_without_a_path() -> None:
    turns = (
        record("engine-lost-or-template", prompt=20_000 + 1_000 * n, cached=8_192, turn=n, time=30.0 * n,
               verdict_lost=11_000 + 1_000 * n)
        for n in range(2, 12)
    )  # fmt: skip
    house = House().meet(turns)
    assert house.ids() == ["pinned"]
    pinned = house.one("pinned")
    assert pinned.evidence["path"] is None
    assert pinned.evidence["segment"] == "tools[10]", (
        "8,192 tokens at 4 bytes a token, in tools of 3,100 bytes"
    )
    assert "template" in pinned.advice


@pytest.mark.parametrize("segment", ["last-turn", "history", "first-user"])
def test_one_document_with_many_questions_is_none(segment: str) -> None:
    """An evaluation: the same 10,000 tokens, another question behind them each time."""
    turns = (
        changed("messages[0].content[1]", segment, prompt=10_300 + 2 * n, cached=10_240, lost=60,
                turn=n, time=float(n))
        for n in range(2, 100)
    )  # fmt: skip
    assert House().meet(turns).never()


def test_single_questions_of_a_service_are_none() -> None:
    """A service that asks one question a prompt, with long passages in it: each is a conversation of its own."""
    turns: list[Record] = []
    for n in range(2, 60):
        made = changed("messages[1].content", "first-user", cached=2_048, prompt=5_000 + n * 371 % 1_900, turn=n,
                       time=float(n), lost=2_900, client="openai-sdk", entry="/v1/chat/completions")  # fmt: skip
        head = [
            {"path": "messages[0].content", "class": "system", "bytes": 8_000, "digest": "a" * 12},
            {
                "path": "messages[1].content",
                "class": "first-user",
                "bytes": 12_000 + n * 371 % 7_600,
                "digest": f"{n:012x}",
            },
        ]
        made["prompt"] |= {"head": head, "segments": 2}
        turns.append(made)
    assert House().meet(turns).never()


def test_a_first_message_put_together_anew_behind_a_conversation_is_one() -> None:
    turns: list[Record] = []
    for n in range(2, 12):
        made = changed(
            "messages[1].content", "first-user", cached=2_048, prompt=20_000 + n * 900, turn=n, time=float(n)
        )
        size = 12_000 + n * 371 % 7_600
        head = [{"path": "messages[1].content", "class": "first-user", "bytes": size, "digest": f"{n:012x}"}]
        made["prompt"] |= {"head": head, "segments": 1 + 2 * n}
        turns.append(made)
    assert House().meet(turns).ids() == ["pinned", "reassembled-block", "volatile-segment"]


@pytest.mark.parametrize("growth", [-100, 1])
def test_prompts_that_hardly_grow_are_no_plateau(growth: int) -> None:
    turns = (
        changed("messages[0]", "first-user", prompt=40_000 + growth * n, cached=17_920, turn=n, time=float(n))
        for n in range(2, 20)
    )
    assert "pinned" not in House().meet(turns).ever


def test_checkpoints_of_a_healthy_engine_are_no_plateau() -> None:
    """A hybrid engine reuses up to its last checkpoint; until the next one it is the same length again."""
    turns = (
        record("granularity", prompt=17_000 + 900 * n, cached=(17_000 + 900 * (n - 1)) // 16_384 * 16_384,
               turn=n, time=30.0 * n, verdict_lost=900 * n % 16_384)
        for n in range(2, 60)
    )  # fmt: skip
    assert House().meet(turns).never()


def rebuilt(turns: int, path: str = "system[2]", kind: str = "edited") -> Iterator[Record]:
    for n in range(2, turns + 2):
        sizes = {path: 9_000 + 700 * (n * 5 % 7)}
        head = [{**each, "bytes": sizes.get(str(each["path"]), each["bytes"])} for each in HEAD]
        made = changed(path, "system", kind=kind, cached=18_000 + n, turn=n, time=30.0 * n, client="other")
        made["prompt"]["head"] = head
        yield made


def test_a_block_put_together_anew_is_told_from_a_clock() -> None:
    house = House().meet(rebuilt(6))
    block = house.one("reassembled-block")
    assert block.subject == "/v1/messages other system[2]"
    assert block.count == 5, "the first length is only learnt"
    assert block.tokens == 5 * 30_000
    assert "append-only" in block.advice

    clock = House().meet(broken(10, "system[2]", "system", client="other"))
    assert "reassembled-block" not in clock.ever, "a long segment of the same length"
    assert "volatile-segment" in clock.ids()


def test_a_block_rebuilt_every_fifth_turn_is_found_though_no_majority_changes() -> None:
    parts = rebuilt(40)
    turns = [
        {**next(parts), "turn": n, "time": 30.0 * n}
        if n % 5 == 0
        else record(client="other", turn=n, time=30.0 * n)
        for n in range(2, 60)
    ]
    assert House().meet(turns).ids() == ["reassembled-block"]


def test_passages_in_another_order_are_a_rebuilt_block() -> None:
    turns = (
        changed(f"system[{n % 3}]", "system", kind="reordered", cached=400 * n, turn=n, time=30.0 * n)
        for n in range(2, 8)
    )
    house = House().meet(turns)
    assert house.one("reassembled-block").subject == "/v1/messages claude-code system[*]"


def test_a_rebuilt_block_clears() -> None:
    house = House().meet(rebuilt(6))
    house.meet(record(client="other", turn=n, time=300.0 + n) for n in range(9, 29))
    assert house.ids() == []


def test_an_edit_of_the_instructions_now_and_then_is_none() -> None:
    turns = [
        *conversation(40, line=1),
        *(changed("system[2]", "system", turn=41, time=1300.0) for _ in range(2)),
    ]
    assert House().meet(turns).never()
