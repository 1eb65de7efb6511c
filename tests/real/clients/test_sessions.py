"""Each agent, unchanged, through a session of two turns with one tool call."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.http.engine import ScriptedEngine
from tests.http.sidecar import Sidecar
from tests.real.clients.agents import AGENTS, Agent
from tests.real.clients.script import FIRST_ANSWER, NOTE, SECOND_ANSWER, Conversation, Usage
from tests.real.clients.session import run, work_in
from tests.real.conftest import StartSidecar

Json = dict[str, Any]


def _messages(body: Json) -> list[Json]:
    messages: list[Json] = body.get("messages") or body["input"]
    return messages


def _result(message: Json) -> str:
    """The text of a tool's result."""
    content = message["output"] if message.get("type") == "function_call_output" else message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _sum(used: list[Usage]) -> Usage:
    return Usage(
        sum(one.prompt for one in used), sum(one.cached for one in used), sum(one.completion for one in used)
    )


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_session(agent: Agent, engine: ScriptedEngine, start_sidecar: StartSidecar, tmp_path: Path) -> None:
    if not agent.package.installed:
        pytest.skip(f"{agent.package.name} is not installed: python -m tests.real.clients.install")
    sidecar = start_sidecar(engine.url, ENGINE="vllm")
    work = work_in(tmp_path, sidecar, NOTE)
    talk = Conversation(engine, agent.tool(work))

    first = run(agent, work, "What does note.txt speak of?", resume=False)
    printed = agent.printed(work, first)
    second = run(agent, work, "And where does it stand?", resume=True)

    # What the user saw.
    assert FIRST_ANSWER in agent.answer(first)
    assert SECOND_ANSWER in agent.answer(second)

    # What the engine was asked: for the call, for the answer to its result, for the second answer.
    call, answer, followed = talk.asked
    assert NOTE in _result(_messages(answer)[-1])
    assert all(b"x-anthropic-billing-header" not in request.body for request in engine.requests)
    assert all(body["tools"] == call["tools"] for body in talk.asked)
    assert all(body["model"] == call["model"] for body in talk.asked)
    assert _extends(_messages(answer), _messages(call))
    if agent.extends:
        assert _extends(_messages(followed), _messages(answer))

    # What it told the user of the first turn.
    assert printed == _sum(talk.used()[:2])

    # The sidecar's own count of the same.
    assert _recorded(sidecar, talk.used()) == talk.used()


def _extends(later: list[Json], earlier: list[Json]) -> bool:
    return later[: len(earlier)] == earlier


def _recorded(sidecar: Sidecar, expected: list[Usage]) -> list[Usage]:
    """The usage in the sidecar's records once it is all there, in the order of the requests; no side requests."""
    prompts = {used.prompt for used in expected}
    deadline = time.monotonic() + 5
    while True:
        counts = [record["usage"] for record in sidecar.records()]
        found = [
            Usage(count["prompt_tokens"], count["cached_tokens"], count["completion_tokens"])
            for count in counts
            if count["prompt_tokens"] in prompts
        ]
        if len(found) >= len(expected) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
