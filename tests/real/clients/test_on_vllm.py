"""The agents on a real engine: every verdict of their sessions is held to what vLLM itself counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.http.sidecar import Sidecar
from tests.real.clients.agents import AGENTS, Agent
from tests.real.clients.script import FIRST_ANSWER, NOTE, SECOND_ANSWER
from tests.real.clients.session import run, work_in
from tests.real.conftest import StartSidecar
from tests.real.engine import install, truth
from tests.real.engine.server import Server, call, script
from tests.real.engine.truth import Seen
from tests.real.engine.versions import NEW
from tests.real.patience import READY_SECONDS

Json = dict[str, Any]

CONTEXT = 131_072
"""Tokens: agents ask for room for 32,000 behind prompts of up to 50,000."""

TURN_SECONDS = 600.0
"""The first prompt of a session takes a CPU up to a minute, and longer while it has other work."""


@pytest.fixture(scope="module")
def vllm() -> Iterator[Server]:
    if not (install.site(NEW) / ".complete").exists():
        pytest.skip(f"vLLM {NEW} is not installed: python -m tests.real.engine.install {NEW}")
    with Server(NEW, context=CONTEXT) as server:
        yield server


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_verdicts(agent: Agent, vllm: Server, start_sidecar: StartSidecar, tmp_path: Path) -> None:
    if not agent.package.installed:
        pytest.skip(f"{agent.package.name} is not installed: python -m tests.real.clients.install")
    sidecar = start_sidecar(vllm.url)
    sidecar.wait_until_ready(READY_SECONDS)
    vllm.forget()
    # The model says what the last mark in its prompt tells it to.
    work = work_in(tmp_path, sidecar, f"{NOTE}\n{script('</think>' + FIRST_ANSWER)}\n")
    tool = agent.tool(work)
    asks = (
        f"What does note.txt speak of? {script('</think>I will read it.' + call(tool.name, tool.arguments))}"
    )
    follows = f"And where does it stand? {script('</think>' + SECOND_ANSWER)}"
    counted = truth.counters(vllm)

    assert FIRST_ANSWER in agent.answer(run(agent, work, asks, resume=False, seconds=TURN_SECONDS))
    assert SECOND_ANSWER in agent.answer(run(agent, work, follows, resume=True, seconds=TURN_SECONDS))

    seen = _seen(sidecar, vllm, counted)
    told = "\n".join(f"line {one.record['line']}: {one}" for one in seen)

    # The three requests of the conversation are one line; titles and the like have their own.
    line = Counter(one.record["line"] for one in seen).most_common(1)[0][0]
    talk = [one for one in seen if one.record["line"] == line]
    assert len(talk) == 3, told
    truth.begins(talk[0])
    for before, now in pairwise(talk):
        if agent.extends or now is not talk[-1]:
            truth.goes_on(before, now)
        else:
            truth.changed(before, now, now.verdict["path"], "first-user", "removed")
    assert sidecar.request("GET", "/admin/findings").json() == {"findings": []}


def _seen(sidecar: Sidecar, vllm: Server, before: tuple[int, int]) -> list[Seen]:
    """All exchanges with a prompt, once their records add up to what the engine has read since ``before``.

    Qwen Code leaves a request of its own under way when it exits; how much of that was read, no record can tell.
    """
    deadline = time.monotonic() + 10
    while True:
        records = sidecar.records()
        seen = [
            Seen(record["usage"]["prompt_tokens"], record["usage"]["cached_tokens"], record)
            for record in records
            if record["verdict"] is not None
        ]
        told = (sum(one.prompt for one in seen), sum(one.cached for one in seen))
        read = tuple(now - then for now, then in zip(truth.counters(vllm), before, strict=True))
        left = any(record["outcome"] == "left" for record in records)
        if told == read or (left and told[0] < read[0] and told[1] <= read[1]):
            return seen
        assert time.monotonic() < deadline, (
            f"{read} tokens were read and reused: {[str(one) for one in seen]}"
        )
        time.sleep(0.1)
