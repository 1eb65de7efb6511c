"""Template or engine: where a prefix is intact as it was sent, the engine's own tokens say who lost it."""

from pathlib import Path
from typing import Any

import pytest
from tests.conformance.clients import wait_until_ready
from tests.conformance.standin import StandIn

from .sidecar import MESSAGES, Sidecar

THOUGHT = "I weigh what the file says against what was asked. " * 40


def turns() -> list[list[dict[str, Any]]]:
    """A tool loop, and then a new word of the user's: there templates drop the reasoning of the loop."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read the file. " * 30}]
    bodies = []
    for number in range(3):
        bodies.append(list(messages))
        messages += [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": f"{number}. {THOUGHT}", "signature": ""},
                    {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": {"n": number}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "text " * 200}
                ],
            },
        ]
    bodies.append(list(messages))
    messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Now the next one."}]
    bodies.append(list(messages))
    return bodies


def verdicts(sidecar: Sidecar) -> list[dict[str, Any]]:
    """Asks turn by turn; the verdicts as their final records have them."""
    found = []
    for messages in turns():
        body = {
            "model": "m",
            "max_tokens": 10,
            "system": "You are a coding agent. " * 50,
            "tools": [{"name": "read", "input_schema": {"type": "object"}}],
            "messages": messages,
        }
        answer = sidecar.post(MESSAGES, body, {"x-claude-code-session-id": "s"})
        assert answer.status == 200
        found.append(sidecar.record(answer)["verdict"])
    return found


@pytest.mark.parametrize("forgets", [True, False])
def test_a_template_that_drops_reasoning_is_told_from_an_engine(tmp_path: Path, *, forgets: bool) -> None:
    # Room for hardly more than one prompt: without a template to blame, it is the engine that loses.
    flags = ("--drop-reasoning",) if forgets else ("--cache-blocks", "8")
    with (
        StandIn(tmp_path / "engine.log", "--block-size", "16", *flags) as engine,
        Sidecar(engine.url, tmp_path / "sidecar.log", ENGINE="vllm") as sidecar,
    ):
        wait_until_ready(sidecar)
        *loop, last = verdicts(sidecar)
    assert last["name"] == ("template" if forgets else "engine-lost")
    assert last["lost"] > 500
    if forgets:
        assert [verdict["name"] for verdict in loop] == ["first", *["append-only"] * 3]
