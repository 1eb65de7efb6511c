"""Who lost the prefix: recorded sessions of real clients, and verdicts held to the engine's own counters."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.http.sidecar import Sidecar
from tests.real.conftest import StartSidecar
from tests.real.engine import recorded, trace, truth
from tests.real.engine.measure import ON_BOTH, on
from tests.real.engine.recorded import Request
from tests.real.engine.server import BLOCK, MODEL, Server
from tests.real.engine.truth import Seen, Witness
from tests.real.engine.versions import NEW, USED
from tests.real.patience import READY_SECONDS

Json = dict[str, Any]

StartWitness = Callable[..., Witness]


@pytest.fixture
def witness(engine: Server, start_sidecar: StartSidecar) -> StartWitness:
    """Starts a sidecar, before an engine that has forgotten everything."""

    def start(*, reports: bool = True, **settings: str) -> Witness:
        sidecar = start_sidecar(engine.url, **settings)
        sidecar.wait_until_ready(READY_SECONDS)
        _wait_for_blocks(sidecar)
        engine.forget()
        return Witness(engine, sidecar, reports)

    return start


def _wait_for_blocks(sidecar: Sidecar) -> None:
    """Until the sidecar has read the engine's metrics once: what it knows of blocks before is a guess."""
    deadline = time.monotonic() + READY_SECONDS
    while ((sidecar.request("GET", "/health").json()["cache"] or {}).get("block_tokens")) != BLOCK:
        assert time.monotonic() < deadline, sidecar.log.read_text()
        time.sleep(0.1)


SESSIONS: dict[str, list[str]] = {
    "claude-code-2.1.116_fresh3": ["begins", "0", "1", "begins", "3", "begins", "5"],
    "claude-code-2.1.332_haiku_total-tokens": ["begins", "0", "1", "2", "3", "4", "5"],
    # Two requests of the sub-agent between those of its parent.
    "claude-code-2.1.332_subagent": ["begins", "0", "begins", "2", "1", "3", "4"],
    # Two deferred tools are loaded; upstream they stand behind the others, the thirteenth first.
    "claude-code-2.1.332_toolsearch": ["begins", "0 tools[10] tools inserted", "1", "2", "3"],
    "claude-code-2.1.332_tui_compact": ["begins", "0", "1", "2", "3", "compacted"],
    "codex-0.171.0_responses": ["begins", "0", "1", "2", "3", "4", "5"],
    # A request for a title before the first turn.
    "opencode-1.18.33_anthropic": ["begins", "begins", "1", "2", "3", "4", "5", "6"],
    "opencode-1.18.33_chat": ["begins", "begins", "1", "2", "3", "4", "5", "6"],
    # `--continue` takes the date out of the earlier user message.
    "qwen-code-0.24.4_chat": ["begins", "0", "1", "2 messages[1].content[3] first-user removed", "3"],
    "reasonix-1.38.11_chat": ["begins", "0", "1", "2", "3", "4", "5"],
}
"""Of each recording, what its requests are: a number is the request that one goes on from, with the change, if any.
Measured on the clients; tests/fixtures/corpus says more."""


def _judge(what: str, seen: list[Seen], now: Seen) -> None:
    match what.split():
        case ["begins"]:
            truth.begins(now)
        case ["compacted"]:
            truth.compacted(now)
        case [before]:
            truth.goes_on(seen[int(before)], now)
        case [before, path, cls, kind]:
            truth.changed(seen[int(before)], now, path, cls, kind)


@ON_BOTH
@pytest.mark.parametrize("file", SESSIONS)
def test_sessions(witness: StartWitness, tmp_path: Path, file: str) -> None:
    at = witness(LEDGER=str(tmp_path / "ledger"))
    expected = SESSIONS[file]
    for what, request in zip(expected, recorded.session(file, len(expected)), strict=True):
        now = at.send(request)
        _judge(what, at.seen[:-1], now)

    # What the operator is told of it all: the engine's own sums, and no trouble where there was none.
    assert at.sidecar.request("GET", "/admin/findings").json() == {"findings": []}
    at.sidecar.stop()
    report = _doctor(tmp_path / "ledger")
    assert report["requests"] == len(expected)
    cached, prompt = sum(one.cached for one in at.seen), sum(one.prompt for one in at.seen)
    assert report["hit_rate"] == pytest.approx(cached / prompt, abs=1e-4)
    assert report["findings"] == []


def _doctor(ledger: Path) -> Json:
    command = [sys.executable, "-m", "foreword", "doctor", str(ledger), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    report: Json = json.loads(done.stdout)
    return report


# What each of these plants is done to one request and all that follow, as a client would.


def _system_text(request: Request) -> tuple[Json, str]:
    """The longest text of the system prompt: what holds it, and under which name."""
    if request.route == "/v1/responses":
        return request.said[0]["content"][0], "text"
    if "system" in request.body:
        return request.body["system"][-1], "text"
    return request.said[0], "content"


def _edit_system(request: Request) -> None:
    part, name = _system_text(request)
    half = len(part[name]) // 2
    part[name] = f"{part[name][:half]} Today is Tuesday. {part[name][half:]}"


def _describe(tool: Json, text: str) -> None:
    tool.get("function", tool)["description"] = text


def _edit_tool(request: Request) -> None:
    _describe(request.body["tools"][1], "Another description than before.")


def _insert_tool(request: Request) -> None:
    tools = request.body["tools"]
    new = json.loads(json.dumps(tools[1]).replace(tools[1].get("function", tools[1])["name"], "late_tool"))
    _describe(new, "This one came late.")
    tools.insert(2, new)


def _remove_tool(request: Request) -> None:
    del request.body["tools"][2]


def _swap_tools(request: Request) -> None:
    tools = request.body["tools"]
    tools[1], tools[2] = tools[2], tools[1]


def _edit_answer(request: Request) -> None:
    """Of the text that the assistant said first."""
    answer = next(item for item in request.said if item.get("role") == "assistant")
    if isinstance(answer["content"], str):
        answer["content"] = "What I never said."
    else:
        part = next(part for part in answer["content"] if "text" in part)
        part["text"] = "What I never said."


PLANTS: dict[str, Callable[[Request], None]] = {
    "system edited": _edit_system,
    "tool edited": _edit_tool,
    "tool inserted": _insert_tool,
    "tool removed": _remove_tool,
    "tools reordered": _swap_tools,
    "answer edited": _edit_answer,
}

TOOLS = {
    "tool edited": ("tools[1]", "tools", "edited"),
    "tool inserted": ("tools[2]", "tools", "inserted"),
    "tool removed": ("tools[2]", "tools", "removed"),
    "tools reordered": ("tools[1]", "tools", "reordered"),
}

PLACES: dict[str, dict[str, tuple[str, str, str]]] = {
    "opencode-1.18.33_chat": {
        **TOOLS,
        "system edited": ("messages[0].content", "system", "edited"),
        "answer edited": ("messages[2].content", "history", "edited"),
    },
    "opencode-1.18.33_anthropic": {
        **TOOLS,
        "system edited": ("system[0]", "system", "edited"),
        "answer edited": ("messages[1].content[1]", "history", "edited"),
    },
    "codex-0.171.0_responses": {
        **TOOLS,
        "system edited": ("input[0].content[0]", "system", "edited"),
        "answer edited": ("input[5].content[0]", "history", "edited"),
    },
}
"""Where each plant is found, in the client's own terms."""


@ON_BOTH
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("file", PLACES)
def test_a_change(witness: StartWitness, file: str, plant: str) -> None:
    # Behind the request for a title, if there is one: three turns, the third with the change, and one more.
    turns = [request for request in recorded.session(file) if request.body.get("tools")][:4]
    at = witness()
    first, second = at.send_all(turns[:2])
    truth.begins(first)
    truth.goes_on(first, second)
    third, fourth = (request.edited() for request in turns[2:])
    PLANTS[plant](third)
    PLANTS[plant](fourth)
    now = at.send(third)
    truth.changed(second, now, *PLACES[file][plant])
    truth.goes_on(now, at.send(fourth))


@on(*USED, reports=False)
@pytest.mark.parametrize("plant", PLANTS)
def test_an_engine_that_does_not_report(witness: StartWitness, plant: str) -> None:
    """Absent is not zero; what a change cost is estimated from the prompts alone."""
    file = "opencode-1.18.33_chat"
    turns = [request for request in recorded.session(file) if request.body.get("tools")][:3]
    at = witness(reports=False)
    first, second = at.send_all(turns[:2])
    assert first.verdict["name"] == "first"
    told = second.verdict
    assert (told["name"], told["lost"], told["path"]) == ("not-reported", None, None), second
    third = turns[2].edited()
    PLANTS[plant](third)
    now = at.send(third)
    told = now.verdict
    assert (told["name"], told["exact"]) == ("changed", False), now
    assert (told["path"], told["class"], told["kind"]) == PLACES[file][plant], now
    assert abs(told["lost"] - (now.expected(second) - now.cached)) <= now.tolerance, now


@ON_BOTH
def test_an_emptied_cache(engine: Server, witness: StartWitness) -> None:
    at = witness()
    one, two, three, four = recorded.session("reasonix-1.38.11_chat", 4)
    first, second = at.send_all([one, two])
    truth.goes_on(first, second)
    engine.forget()
    third = at.send(three)
    assert third.cached == 0
    truth.lost_by_engine(second, third)
    truth.goes_on(third, at.send(four))


@on(NEW)
def test_a_restart(engine: Server, witness: StartWitness) -> None:
    """Another process at the same address: it remembers nothing, counts from nothing, and cut the idle connections."""
    at = witness()
    one, two, three, four = recorded.session("reasonix-1.38.11_chat", 4)
    first, second = at.send_all([one, two])
    truth.goes_on(first, second)
    engine.restart()
    third = at.send(three)
    assert third.cached == 0
    truth.lost_by_engine(second, third)
    truth.goes_on(third, at.send(four))
    # The operator is told once that the engine began anew, and of nothing that the client did.
    deadline = time.monotonic() + READY_SECONDS
    while not (findings := at.sidecar.request("GET", "/admin/findings").json()["findings"]):
        assert time.monotonic() < deadline, at.sidecar.log.read_text()
        time.sleep(0.2)
    assert [(one["id"], one["count"]) for one in findings] == [("engine-restart", 1)]


@ON_BOTH
def test_the_same_again(witness: StartWitness) -> None:
    at = witness()
    one, two = recorded.session("reasonix-1.38.11_chat", 2)
    first, again, second = at.send_all([one, one, two])
    assert (again.verdict["name"], again.verdict["lost"]) == ("repeat", 0), again
    assert again.cached == again.expected(first)
    truth.goes_on(again, second)


@ON_BOTH
@pytest.mark.parametrize("session", ["x-session-id", None], ids=["with sessions", "without"])
def test_two_clients_with_one_head(witness: StartWitness, session: str | None) -> None:
    at = witness()
    talk = [request for request in recorded.session("opencode-1.18.33_chat") if request.body.get("tools")]
    turns = {
        "one": [request.edited() for request in talk[:3]],
        "other": [request.edited() for request in talk[:3]],
    }
    for name, requests in turns.items():
        for request in requests:
            request.said[1]["content"] = f"I am {name}, and what I want is my own."
            request.headers.pop("x-session-affinity", None)
            request.headers.pop("x-session-id", None)
            if session is not None:
                request.headers[session] = name
    one, other = at.send(turns["one"][0]), at.send(turns["other"][0])
    truth.begins(one)
    assert other.cached > 0.9 * other.prompt
    truth.begins(other)
    # In turn, as two people work.
    for turn in (1, 2):
        one_now, other_now = at.send(turns["one"][turn]), at.send(turns["other"][turn])
        truth.goes_on(one, one_now)
        truth.goes_on(other, other_now)
        one, other = one_now, other_now


TALK = trace.conversation()


def _with_headers(shape: Callable[[str], object]) -> list[Request]:
    headers = trace.headers()
    body = [trace.chat(TALK, number, shape(next(headers))) for number in range(1, 6)]
    return [Request("/v1/chat/completions", {}, one | {"model": MODEL}) for one in body]


@ON_BOTH
@pytest.mark.parametrize("joined", [True, False], ids=["joined", "part of its own"])
@pytest.mark.parametrize("rule", ["on", "off"])
def test_the_billing_header(witness: StartWitness, rule: str, *, joined: bool) -> None:
    def shape(header: str) -> object:
        parts = [{"type": "text", "text": text} for text in (header, TALK.system)]
        return f"{header}\n{TALK.system}" if joined else parts

    at = witness(RULE_BILLING_HEADER=rule)
    seen = at.send_all(_with_headers(shape))
    truth.begins(seen[0])
    for before, now in pairwise(seen):
        if rule == "on":
            truth.goes_on(before, now)
            assert now.record["shadow"] == {}
            continue
        lost = now.expected(before) - now.cached
        assert now.record["shadow"] == ({"billing-header": lost} if lost else {}), now.record["shadow"]
        if lost:
            path = "messages[0].content" if joined else "messages[0].content[0]"
            truth.changed(before, now, path, "header", "edited")
        else:  # this version of the engine takes it out itself
            truth.goes_on(before, now)
