"""The stand-in as Strata: checkpoints, parking, one request after the other, and what its log and its metrics say."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.standin_app import call, exchange, standin

from foreword.standin import Standin
from foreword.standin.options import parse

USER = {"role": "user", "content": "hi"}
MIB = 2**20


class Session:
    """One conversation with the engine; answers become history as a client keeps them."""

    def __init__(self, app: Standin, name: str, system: int = 0, first: int = 100) -> None:
        self.app = app
        head = [{"role": "system", "content": "s" * 4 * system}] if system else []
        self.messages: list[dict[str, Any]] = [*head, {"role": "user", "content": name * 4 * first}]

    def turn(self) -> tuple[int, int]:
        """Prompt tokens, and those of them that were cached."""
        asked = {"messages": self.messages, "vllm_xargs": {"say": "</think>ok"}}
        answer = call(self.app, "/v1/chat/completions", asked).json()
        self.messages += [answer["choices"][0]["message"], USER]
        usage = answer["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def lines(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if "expert cache" not in line]


def strata(log: Path, **options: Any) -> Standin:
    return standin(kind="strata", log=str(log), **options)


def test_strata_resumes_at_checkpoints_only(tmp_path: Path) -> None:
    app = strata(tmp_path / "log", max_model_len=262_144)
    one = Session(app, "a", system=3_000, first=40_000)
    prompt, cached = one.turn()
    assert cached == 0
    # root, 16,384 and 32,768, the turn
    assert lines(tmp_path / "log")[-1].endswith(", 4 checkpoints")
    assert one.turn()[1] == prompt - 1
    # A change in the history falls back to the last checkpoint before it.
    text = one.messages[1]["content"]
    one.messages[1]["content"] = text[: 4 * 20_000] + "X" + text[4 * 20_000 + 1 :]
    assert one.turn()[1] == 16_384
    # What does not share the conversation shares the system prompt, and what does not share that reads all.
    assert Session(app, "b", system=3_000).turn()[1] == 3_002
    assert Session(app, "c", first=5_000).turn()[1] == 0


def test_what_was_reused_is_in_the_log_and_the_connection_closes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = standin(kind="strata")
    messages = [{"role": "system", "content": "x" * 4 * 2_100}, USER]
    for reused in (0, 2_105):
        asked = {"messages": messages, "vllm_xargs": {"say": "</think>ok"}}
        answer = call(app, "/v1/chat/completions", asked)
        assert answer.headers["connection"] == "close"
        body = answer.json()
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == reused
        assert (body["timings"]["cache_n"], body["timings"]["prompt_n"]) == (reused, 2_106 - reused)
        line, experts = capsys.readouterr().err.splitlines()
        assert re.fullmatch(
            rf"strata serve: prompt 2106 tokens = {reused} reused \+ {2_106 - reused} read in \d+ ms "
            r"\(\d+\.\d tok/s\), 3 generated in \d+ ms \(\d+\.\d tok/s\), 2 checkpoints",
            line,
        )
        assert experts == "strata serve: decode expert cache hit rate: 97.6% (123 hits / 126 lookups)"
    assert call(app, "/health", method="GET").json()["service"] == "strata"
    assert call(app, "/tokenize", {"prompt": "x"}).status == 404


def test_conversations_are_parked_restored_and_superseded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    app = strata(log, conversation_cache_mib=4_096)
    one, two = Session(app, "a", first=1_000), Session(app, "b", first=2_000)
    length = one.turn()[0]
    assert two.turn()[1] == 0
    assert one.turn()[1] == length - 1
    two.turn()
    said = [
        line.removeprefix("strata serve: conversation cache: ") for line in lines(log) if "cache:" in line
    ]
    parked = r"parked (\d+) tokens in \d+\.\d ms; parked=(\d) bytes=(\d+) evictions=0 snapshot_bytes=(\d+) "
    first, second, back, superseded, again, *_ = said
    assert (found := re.fullmatch(parked + r"reused_kv_bytes=\d+", first)) is not None
    assert (found[2], found[3]) == ("1", found[4])
    assert int(found[1]) == length + 2
    assert second.startswith("parked 20")
    assert re.fullmatch(
        rf"restored {length - 1} tokens \((live|exact)\) in \d+\.\d ms; parked=2 bytes=\d+", back
    )
    assert superseded == "dropped 1 superseded copy of this conversation"
    assert re.match(parked, again)
    cache = call(app, "/metrics", method="GET").json()["conversation_cache"]
    assert (cache["enabled"], cache["budget_mib"], cache["slots"]) == (True, 4_096, 4)
    assert (cache["parked"], cache["parks"], cache["restores"]) == (2, 3, 2)
    assert cache["last_event"] == "restored"


def test_a_storm_evicts_and_falls_back_to_the_step(tmp_path: Path) -> None:
    """Two conversations whose snapshots do not fit beside each other, with a head in common."""
    log = tmp_path / "log"
    # 118 MB at no tokens and 2,510,827,952 at 64,930: 20,000 tokens are about 816 MiB.
    app = strata(log, conversation_cache_mib=1_024, conversation_cache_slots=20, prompt_cache_every=512)
    sessions = [Session(app, name, system=600, first=20_000) for name in "ab"]
    for n in range(6):
        assert sessions[n % 2].turn()[1] == (0 if n == 0 else 512)
    text = log.read_text()
    assert re.findall(r"evictions=(\d)", text) == ["0", "1", "2", "3", "4"]
    # Nobody's snapshot: the engine does not say a word of evictions in its metrics.
    assert "evict" not in call(app, "/metrics", method="GET").body.decode()


def test_snapshots_that_cannot_be_parked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    app = strata(log, conversation_cache_mib=128)
    Session(app, "a", first=2_000).turn()
    Session(app, "b").turn()
    assert re.search(r"skip parking \(snapshot 18[23] MiB exceeds available budget\)", log.read_text())
    assert re.search(r"swap: slot 0 NOT parked - .* \(20\d\d tokens, budget/RAM refused\)", log.read_text())


def test_the_floor_of_free_memory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    app = strata(log, conversation_cache_mib=8_192, free_ram_mib=8_192, conversation_cache_min_free_mib=2_560)
    (line,) = lines(log)
    assert line == (
        "strata serve: parked-prefix budget 1.5 GiB, not 8.0: only 1.5 GiB of RAM is free above the 2.5 GiB parking "
        "floor and 4.0 GiB of request headroom"
    )
    assert call(app, "/metrics", method="GET").json()["conversation_cache"]["budget_mib"] == 1_536


def test_memory_that_runs_out_is_refused_and_asked_for_seldom(tmp_path: Path) -> None:
    log = tmp_path / "log"
    # A floor of 6,500 MiB under 11,000 leaves a budget of 404; a snapshot of 118 MB needs 112 above the floor.
    app = strata(log, conversation_cache_mib=404, free_ram_mib=11_000, conversation_cache_min_free_mib=6_500)
    assert app.engine.conversations is not None
    app.engine.conversations.free = 6_600 * MIB
    for name in "abcdef":
        Session(app, name, first=30).turn()
    text = log.read_text()
    assert text.count("skip parking (physical RAM floor after capture, or telemetry unavailable)") == 3
    assert text.count("3 consecutive RAM-admission refusals - parking will not re-ask for 64 requests") == 1
    assert text.count("NOT parked") == 5
    app.engine.conversations.free = 50 * MIB
    for n in range(66):
        Session(app, f"{n:04}", first=30).turn()
    assert "skip parking (physical RAM admission; 11" in log.read_text()


def test_prometheus_text_where_it_is_asked_for(tmp_path: Path) -> None:
    app = strata(tmp_path / "log", conversation_cache_mib=4_096)
    one = Session(app, "a")
    length = one.turn()[0]
    one.turn()
    answer = call(app, "/metrics", method="GET", accept="text/plain")
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.body.decode()
    assert f"vllm:prefix_cache_hits_total {float(length - 1)}" in text
    assert "strata:conversation_cache_parked 0.0" in text
    found = call(app, "/metrics", method="GET").json()
    assert found["totals"]["reused"] == length - 1
    assert [request["reused"] for request in found["requests"]] == [0, length - 1]


def test_one_request_after_the_other_until_its_answer_is_written(tmp_path: Path) -> None:
    app = strata(tmp_path / "log", decode_rate=50)

    async def run() -> None:
        asked = {"messages": [USER], "vllm_xargs": {"say": "</think>" + "word" * 10}}
        began = time.monotonic()
        requests = [exchange(app, "/v1/chat/completions", asked) for _ in range(2)]
        await asyncio.gather(*(request.run() for request in requests))
        assert time.monotonic() - began > 0.4

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_prompt_that_was_left_is_known_as_far_as_it_was_read(tmp_path: Path) -> None:
    app = strata(tmp_path / "log", prefill_rate=20_000, prefill_step=1_000, prompt_cache_every=1_000)
    asked = {"messages": [{"role": "user", "content": "z" * 4 * 8_000}], "stream": True}

    async def leave() -> None:
        request = exchange(app, "/v1/chat/completions", asked)
        running = asyncio.create_task(request.run())
        await asyncio.sleep(0.22)
        request.leave.set()
        await running

    asyncio.run(asyncio.wait_for(leave(), 10))
    usage = call(app, "/v1/chat/completions", asked | {"stream": False}).json()["usage"]
    assert 1_000 <= usage["prompt_tokens_details"]["cached_tokens"] <= 6_000


def test_the_engines_own_flags() -> None:
    flags = {"conversation-cache-mib": 8_192, "conversation-cache-slots": 20, "prompt-cache": 8}
    flags |= {"prompt-cache-every": 4_096, "prompt-cache-root": 0, "conversation-cache-min-free-mib": 1}
    given = parse(["--kind", "strata", *(f"--{name}={value}" for name, value in flags.items())])
    assert {name: getattr(given, name.replace("-", "_")) for name in flags} == flags
