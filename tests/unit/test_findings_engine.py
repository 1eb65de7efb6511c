"""Findings about what engines do with intact prompts, and about clients at the end of the context window."""

import itertools
import random
from collections.abc import Iterator

import pytest
from tests.unit.findings_records import House, Record, conversation, record

LOST = "engine-lost"


def taking_turns(
    lines: int, rounds: int, left: object, verdict: str = LOST, **members: object
) -> Iterator[Record]:
    """Conversations one after the other, each of which finds only ``left`` of itself again."""
    dice = random.Random(5)
    for n in range(2, rounds + 2):
        for line in range(1, lines + 1):
            cached = dice.choice(left) if isinstance(left, list) else int(str(left))
            yield record(
                verdict, line=line, turn=n, time=600.0 * n + line, prompt=200_000 + 900 * n, cached=cached,
                verdict_lost=199_000 + 900 * n - cached, **members,  # type: ignore[arg-type]
            )  # fmt: skip


def test_a_storm() -> None:
    house = House().meet(taking_turns(8, 4, 0))
    assert house.ids() == ["eviction-storm"]
    storm = house.one("eviction-storm")
    assert storm.subject == "llm-prime"
    assert storm.severity == "critical"
    assert (storm.count, storm.evidence["continuations"], storm.evidence["lines"]) == (32, 32, 8)
    assert storm.tokens == sum(199_000 + 900 * n for n in range(2, 6)) * 8
    assert storm.evidence["left"] == [{"tokens": 0, "requests": 32}]
    assert "--gpu-memory-utilization" in storm.advice


def test_one_conversation_alone_can_have_a_storm() -> None:
    house = House().meet(taking_turns(1, 6, 256))
    assert house.ids() == ["eviction-storm"], "a length that is left of every conversation is no checkpoint"


def test_a_restart_is_no_storm() -> None:
    records: list[Record] = []
    for line in range(1, 31):
        records += conversation(6, line=line, start=line)
    records += [
        record(LOST, line=line, turn=7, time=500.0 + line, cached=0, verdict_lost=27_000)
        for line in range(1, 31)
    ]
    for turn in range(8, 12):
        records += [record(line=line, turn=turn, time=600.0 + line) for line in range(1, 31)]
    assert House().meet(records).never()


def test_pauses_are_no_storm() -> None:
    """A person who comes back after lunch finds the cache cold: once in ten turns."""
    turns = (
        record(LOST, line=n % 3, turn=n, time=60.0 * n, cached=0, verdict_lost=40_000)
        if n % 10 == 0
        else record(line=n % 3, turn=n, time=60.0 * n)
        for n in range(2, 300)
    )
    assert House().meet(turns).never()


def test_a_storm_clears() -> None:
    house = House().meet(taking_turns(8, 4, 0))
    house.meet(record(line=1 + n % 8, turn=6 + n // 8, time=4_000.0 + n) for n in range(24))
    assert house.ids() == []


def test_a_storm_that_comes_and_goes_does_not_open_and_close_each_time() -> None:
    house, seen = House(), []
    for n in range(600):  # eight losses, then thirty turns that find everything
        if n % 38 < 8:
            turn = record(LOST, line=1 + n % 3, turn=n, time=5.0 * n, cached=0, verdict_lost=40_000)
        else:
            turn = record(line=1 + n % 3, turn=n, time=5.0 * n)
        house.meet([turn])
        seen.append("eviction-storm" in house.ids())
    changes = sum(before != after for before, after in itertools.pairwise(seen))
    assert changes <= 3, "open, well too early once, and open from then on"
    house.meet(record(line=1 + n % 3, turn=n, time=5.0 * n) for n in range(600, 900))
    assert house.ids() == []


def test_a_template_makes_no_storm() -> None:
    """Reasoning dropped from earlier turns: reuse ends there, and that place only moves on."""
    turns = (
        record("engine-lost-or-template", line=1, turn=n, time=30.0 * n, prompt=20_000 + 1_000 * n,
               cached=(15_000 + 1_000 * n) // 64 * 64, verdict_lost=4_000)
        for n in range(2, 40)
    )  # fmt: skip
    assert House().meet(turns).never()


def test_the_strata_incident() -> None:
    """Of 194 prompts 123 found exactly one checkpoint step; the others other checkpoints."""
    house = House().meet(taking_turns(8, 6, [16_384] * 5 + [32_768] * 2 + [0], engine="strata"))
    assert house.ids() == ["checkpoint-collapse", "eviction-storm"]
    collapse = house.one("checkpoint-collapse")
    assert collapse.evidence["step"] == 16_384
    assert collapse.count == 48
    assert "--prompt-cache-every" in collapse.advice
    assert "--conversation-cache-mib" in house.one("eviction-storm").advice


def test_the_step_is_learnt_where_the_engine_is_not_known() -> None:
    house = House().meet(taking_turns(4, 6, [4_096, 8_192, 12_288], engine="openai"))
    assert house.one("checkpoint-collapse").evidence["step"] == 4_096
    assert "checkpoint-collapse" not in House().meet(taking_turns(4, 6, 16_384, engine="vllm")).ids(), (
        "one length at a multiple is a system prompt that happens to end there"
    )


def test_a_healthy_checkpoint_engine() -> None:
    turns = (
        record("granularity", line=line, turn=n, time=30.0 * n + line, prompt=20_000 + 2_000 * n, engine="strata",
               cached=(18_000 + 2_000 * n) // 16_384 * 16_384, verdict_lost=(18_000 + 2_000 * n) % 16_384)
        for n in range(2, 40) for line in range(1, 5)
    )  # fmt: skip
    assert House().meet(turns).never()


def compacting(
    peaks: list[int], client: str = "claude-code", line: int = 1, start: float = 0.0
) -> Iterator[Record]:
    turn, time = 1, start
    for peak in peaks:
        for prompt in range(20_000, peak + 1, max(1, (peak - 20_000) // 10)):
            turn, time = turn + 1, time + 30
            yield record(
                turn=turn, time=time, prompt=prompt, cached=max(0, prompt - 3_000), client=client, line=line
            )
        turn, time = turn + 1, time + 30
        yield record("compacted", turn=turn, time=time, prompt=19_000, cached=17_920, client=client, line=line,
                     verdict_lost=0)  # fmt: skip


def test_early_compaction() -> None:
    house = House(window=200_000).meet(compacting([84_000, 82_000]))
    assert house.ids() == ["early-compaction"]
    early = house.one("early-compaction")
    assert early.subject == "claude-code llm-prime"
    assert early.count == 2
    assert early.evidence["window"] == 200_000
    assert "CLAUDE_CODE_AUTO_COMPACT_WINDOW=200000" in early.advice
    house.meet(compacting([167_000], start=10_000))
    assert house.ids() == [], "a compaction at its place shows that it is over"


@pytest.mark.parametrize(
    ("window", "peaks"),
    [
        (200_000, [167_000] * 4),  # Claude Code's own place: 33,000 below the window
        (131_072, [98_000] * 4),
        (65_536, [32_000] * 4),
        (200_000, [84_000]),  # somebody typed /compact
        (200_000, [30_000, 90_000, 60_000]),  # somebody types it now and then
        (None, [84_000] * 4),  # nobody knows the window
    ],
)
def test_compactions_at_their_place(window: int | None, peaks: list[int]) -> None:
    assert House(window).meet(compacting(peaks)).never()


def overflow(time: float, **members: object) -> Record:
    members = {"fault": {"kind": "prompt-too-long", "source": "client"}, **members}
    made = record(None, time=time, prompt=None, cached=None, line=None, turn=None, **members)  # type: ignore[arg-type]
    return {**made, "status": 400, "outcome": "client-error"}


def test_a_compaction_after_an_overflow_is_not_early() -> None:
    """The engine's real window was smaller than it said; the client had to."""
    records: list[Record] = []
    for n in range(3):
        *growing, compacted = compacting([84_000], start=1_000.0 * n)
        records += [*growing, overflow(1_000.0 * n + 900), compacted]
    assert House(200_000).meet(records).never()


def test_an_overflow_loop() -> None:
    house = House(65_536).meet([record(prompt=60_000, cached=59_000)])
    house.meet(overflow(30.0 + n, client="opencode") for n in range(2))
    assert house.ids() == [], "a client may find out the window that way"
    house.meet([record(client="opencode", prompt=61_000, line=2, turn=1), overflow(40.0, client="opencode")])
    loop = house.one("overflow-loop")
    assert loop.subject == "opencode 0123456789abcdef"
    assert (loop.count, loop.evidence["window"]) == (3, 65_536)
    assert loop.tokens is None
    assert "limit.context of the model to 65536" in loop.advice
    house.meet(overflow(50.0 + n, client="opencode") for n in range(200))
    assert (house.one("overflow-loop").count, house.one("overflow-loop").severity) == (203, "critical")
    house.meet(record(client="opencode", time=300.0 + n, line=2) for n in range(12))
    assert house.ids() == []


def test_overflows_far_apart_are_no_loop() -> None:
    records: list[Record] = []
    for n in range(6):
        records += [overflow(1_000.0 * n), *(record(time=1_000.0 * n + m) for m in range(1, 12))]
    assert House().meet(records).never()


def test_overflows_of_people_without_sessions() -> None:
    several = [overflow(float(n), client="qwen-code", session=None) for n in range(5)]
    house = House(None).meet(several)
    assert house.ids() == []
    house.meet([overflow(9.0, client="qwen-code", session=None)])
    assert house.one("overflow-loop").advice.startswith("Tell the client the engine's context window")


def silent(records: Iterator[Record]) -> Iterator[Record]:
    for made in records:
        made["usage"]["cached_tokens"] = None
        if made["verdict"]["name"] != "changed":
            made["verdict"] = {"name": "not-reported", "lost": None}
        yield made


def test_an_engine_that_never_reports() -> None:
    house = House().meet(silent(conversation(5, line=1)))
    assert house.ids() == []
    house.meet(silent(conversation(1, line=2, start=400)))
    found = house.one("usage-not-reported")
    assert found.subject == "vllm /v1/messages"
    assert (found.count, found.tokens) == (6, None)
    assert "--enable-prompt-tokens-details" in found.advice
    house.meet([record(cached=0)])
    assert house.ids() == [], "a zero is a report"


@pytest.mark.parametrize("turns", [1, 2])
def test_an_engine_that_leaves_zeros_out(turns: int) -> None:
    """Cold starts without a figure, and continuations with one."""
    records: list[Record] = []
    for line in range(40):
        first, *rest = conversation(turns, line=line, start=100.0 * line)
        records += [*silent(iter([first])), *rest]
    assert House().meet(records).never()


def short(n: int, prompt: int, verdict: str = "below-minimum") -> Iterator[Record]:
    return (
        record(verdict, prompt=prompt, cached=0, line=line, turn=1, time=float(line), engine="strata")
        for line in range(1, n + 1)
    )


def test_prompts_below_the_engine_s_minimum() -> None:
    house = House().meet(short(19, 1_200))
    assert house.ids() == []
    house.meet(short(1, 1_200))
    found = house.one("below-minimum")
    assert (found.severity, found.count) == ("info", 20)
    assert "--prompt-cache-root" in found.advice
    house.meet(record(line=99, turn=n, time=100.0 + n) for n in range(20))
    assert house.ids() == []


def test_tiny_prompts_are_nobody_s_trouble() -> None:
    assert House().meet(short(200, 40)).never()
