"""The vendors' own cache diagnostics, asked for and read with their SDKs, from an engine that knows nothing of them."""

import itertools
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import (
    CacheMissMessagesChanged,
    CacheMissModelChanged,
    CacheMissPreviousMessageNotFound,
    CacheMissSystemChanged,
    CacheMissToolsChanged,
    CacheMissUnavailable,
    Message,
    MessageParam,
    ToolParam,
)
from tests.http.engine import Peer, Received, ScriptedEngine, respond, says

SYSTEM = "You are a coding agent. " * 100
LOOK: ToolParam = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
TURN: list[MessageParam] = [{"role": "user", "content": "Look at the file. " * 20}]
NEXT: list[MessageParam] = [
    *TURN,
    {"role": "assistant", "content": "I see it."},
    {"role": "user", "content": "Go on."},
]


def ask(
    claude: anthropic.Anthropic, previous: str | None, *, streamed: bool = False, **changed: Any
) -> Message:
    asked: dict[str, Any] = {
        "model": "m",
        "max_tokens": 100,
        "system": SYSTEM,
        "tools": [LOOK],
        "messages": NEXT,
        "diagnostics": {"previous_message_id": previous},
        **changed,
    }
    if streamed:
        with claude.messages.stream(**asked) as stream:
            return stream.get_final_message()
    answer = claude.messages.create(**asked)
    assert isinstance(answer, Message)
    return answer


@pytest.mark.parametrize("streamed", [False, True])
def test_nothing_differs(engine: ScriptedEngine, claude: anthropic.Anthropic, *, streamed: bool) -> None:
    engine.answer = says("Fine.")
    first = ask(claude, None, streamed=streamed, messages=TURN)
    assert first.diagnostics is None
    assert "diagnostics" in first.model_fields_set
    second = ask(claude, first.id, streamed=streamed)
    assert second.diagnostics is None
    assert "diagnostics" in second.model_fields_set


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model": "n"}, CacheMissModelChanged),
        ({"system": "You are another. " + SYSTEM}, CacheMissSystemChanged),
        ({"tools": [{**LOOK, "name": "see"}]}, CacheMissToolsChanged),
        ({"messages": [{"role": "user", "content": "Edited."}, *NEXT[1:]]}, CacheMissMessagesChanged),
    ],
)
def test_what_differs(
    engine: ScriptedEngine,
    claude: anthropic.Anthropic,
    changed: dict[str, Any],
    reason: type[Any],
    *,
    streamed: bool,
) -> None:
    engine.answer = says("Fine.")
    first = ask(claude, None, messages=TURN)
    second = ask(claude, first.id, streamed=streamed, **changed)
    assert second.diagnostics is not None
    told = second.diagnostics.cache_miss_reason
    assert isinstance(told, reason)
    # Tokens of the earlier prompt, of which the engine counted 100.
    assert 0 < told.cache_missed_input_tokens <= 100


def test_what_has_no_reason_of_its_own(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says("Fine.")
    first = ask(claude, None, messages=TURN)
    second = ask(claude, first.id, thinking={"type": "enabled", "budget_tokens": 1024})
    assert second.diagnostics is not None
    assert isinstance(second.diagnostics.cache_miss_reason, CacheMissUnavailable)
    unknown = ask(claude, "msg_of_another_server")
    assert unknown.diagnostics is not None
    assert isinstance(unknown.diagnostics.cache_miss_reason, CacheMissPreviousMessageNotFound)


def test_who_does_not_ask_is_told_nothing(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says("Fine.")
    answer = claude.messages.create(model="m", max_tokens=100, messages=TURN)
    assert "diagnostics" not in answer.model_fields_set


NUMBERS = itertools.count(1)


def responds(peer: Peer, _: Received) -> None:
    """A whole response, each under an id of its own."""
    content = [{"type": "output_text", "text": "Fine.", "annotations": []}]
    message = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }
    body = {
        "id": f"resp_{next(NUMBERS)}",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 100,
            "output_tokens": 2,
            "total_tokens": 102,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    peer.send(respond(200, body))


def test_responses(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = responds
    asked: dict[str, Any] = {"model": "m", "instructions": SYSTEM, "input": "Look at the file."}
    first = gpt.responses.create(**asked)
    assert first.prompt_cache_diagnostics is None

    def compared(response_id: str, **changed: Any) -> Any:
        more: dict[str, Any] = {**asked, **changed}
        options: Any = {"comparison_response_id": response_id}
        return gpt.responses.create(**more, prompt_cache_options=options).prompt_cache_diagnostics

    assert compared(first.id).type == "cache_hit"
    assert compared("resp_of_another_server").type == "comparison_response_not_found"
    changes: list[tuple[dict[str, Any], str]] = [
        ({"model": "n"}, "model_changed"),
        ({"instructions": "Another."}, "input_changed"),
        ({"input": "Edited."}, "input_changed"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {}}]}, "tools_changed"),
        ({"reasoning": {"effort": "high"}}, "reasoning_effort_changed"),
    ]
    for changed, reason in changes:
        told = compared(first.id, **changed)
        assert (told.type, told.reason) == ("cache_miss", reason), changed
        assert 0 <= told.comparison_reusable_tokens <= 100
