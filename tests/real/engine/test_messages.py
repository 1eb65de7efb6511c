"""What agents use of /v1/messages, through the translation, on the real thing."""

import json
from typing import Any

import pytest
from tests.http.sidecar import Response, Sidecar
from tests.real.conftest import StartSidecar
from tests.real.engine.measure import ON_BOTH
from tests.real.engine.server import MODEL, Server, script

Json = dict[str, Any]

SCHEMA: Json = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL: Json = {"name": "read", "description": "Reads a file.", "input_schema": SCHEMA}
FUNCTION: Json = {"name": "read", "description": "Reads a file.", "parameters": SCHEMA}
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a \\"b\\".txt"}}\n</tool_call>'
THOUGHT = "The user wants the file."


def _body(content: object, **fields: Any) -> Json:
    return {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": content}], **fields}


def _content(answer: Response) -> tuple[list[Json], Json]:
    """The blocks of an answer, and the rest of the message; a stream is put together by the protocol's rules."""
    assert answer.status == 200, answer.body
    if not answer.headers["content-type"].startswith("text/event-stream"):
        message = answer.json()
        return message["content"], message
    blocks: list[Json] = []
    message = {}
    for name, data in answer.events():
        match name:
            case "message_start":
                message = data["message"]
            case "content_block_start":
                assert data["index"] == len(blocks)
                blocks.append(dict(data["content_block"]))
            case "content_block_delta":
                _apply(blocks[data["index"]], data["delta"])
            case "content_block_stop" if "json" in blocks[data["index"]]:
                blocks[data["index"]]["input"] = json.loads(blocks[data["index"]].pop("json"))
            case "message_delta":
                message |= data["delta"]
    assert answer.events()[-1][0] == "message_stop"
    return blocks, message


def _apply(block: Json, delta: Json) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "input_json_delta":
            block["json"] = block.get("json", "") + delta["partial_json"]


def _kinds(blocks: list[Json]) -> list[str]:
    return [block["type"] for block in blocks]


@pytest.fixture
def sidecar(engine: Server, start_sidecar: StartSidecar) -> Sidecar:
    return start_sidecar(engine.url)


@ON_BOTH
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_thinking_text_and_a_tool_call(sidecar: Sidecar, *, stream: bool) -> None:
    said = script(f"<think>\n{THOUGHT}\n</think>\n\nI read it.\n{CALL}")
    answer = sidecar.post("/v1/messages", _body(f"Read it. {said}", tools=[TOOL], stream=stream))
    blocks, message = _content(answer)
    assert _kinds(blocks) == ["thinking", "text", "tool_use"]
    assert blocks[0]["thinking"].strip() == THOUGHT
    assert blocks[1]["text"].strip() == "I read it."
    assert (blocks[2]["name"], blocks[2]["input"]) == ("read", {"path": 'a "b".txt'})
    assert message["stop_reason"] == "tool_use"


@ON_BOTH
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_two_tool_calls(sidecar: Sidecar, *, stream: bool) -> None:
    said = script(f"</think>{CALL}\n{CALL}")
    answer = sidecar.post("/v1/messages", _body(said, tools=[TOOL], stream=stream))
    blocks, message = _content(answer)
    calls = [block for block in blocks if block["type"] == "tool_use"]
    assert [call["input"] for call in calls] == [{"path": 'a "b".txt'}] * 2
    assert calls[0]["id"] != calls[1]["id"]
    assert message["stop_reason"] == "tool_use"


@ON_BOTH
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "read"}], ids=["any", "tool"])
def test_a_forced_tool(sidecar: Sidecar, choice: Json) -> None:
    fields: Json = {"tools": [TOOL], "tool_choice": choice, "thinking": {"type": "disabled"}}
    blocks, message = _content(sidecar.post("/v1/messages", _body(script(CALL), **fields)))
    assert [block["input"] for block in blocks if block["type"] == "tool_use"] == [{"path": 'a "b".txt'}]
    assert message["stop_reason"] == "tool_use"

    # Left to itself the model talks noise; the grammar leaves it nothing but the mark of a call, or its beginning.
    noise = [
        _content(sidecar.post("/v1/messages", _body("Go.", **fields) | {"max_tokens": 1})) for _ in range(3)
    ]
    assert all(message["stop_reason"] == "max_tokens" for _, message in noise)
    assert all("<tool_call>".startswith("".join(block["text"] for block in blocks)) for blocks, _ in noise)


@ON_BOTH
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_structured_output(sidecar: Sidecar, *, stream: bool) -> None:
    schema = {"type": "object", "properties": {"really": {"enum": ["yes"]}}, "required": ["really"]}
    form = {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}
    body = _body("Go.", output_config={"format": form}, thinking={"type": "disabled"}, stream=stream)
    blocks, message = _content(sidecar.post("/v1/messages", body))
    assert _kinds(blocks) == ["text"]
    assert json.loads(blocks[0]["text"]) == {"really": "yes"}
    assert message["stop_reason"] == "end_turn"


@ON_BOTH
def test_history_reaches_the_template(engine: Server, sidecar: Sidecar) -> None:
    """The prompt is as long as that of the chat request that says the same, thoughts and calls included."""
    step: list[Json] = [
        {"type": "thinking", "thinking": THOUGHT, "signature": ""},
        {"type": "text", "text": "I read it."},
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.txt"}},
    ]
    result: Json = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "blue"}],
    }
    turns: list[Json] = [
        {"role": "user", "content": "What is in a.txt?"},
        {"role": "assistant", "content": step},
        {"role": "user", "content": [result]},
    ]
    call = {"name": "read", "arguments": '{"path":"a.txt"}'}
    said: Json = {
        "role": "assistant",
        "content": "I read it.",
        "reasoning": THOUGHT,
        "tool_calls": [{"id": "toolu_1", "type": "function", "function": call}],
    }
    tools = [{"type": "function", "function": FUNCTION}]
    chat = [turns[0], said, {"role": "tool", "tool_call_id": "toolu_1", "content": "blue"}]
    expected = len(engine.tokens(messages=chat, tools=tools))
    without = {key: value for key, value in said.items() if key != "reasoning"}
    assert expected > len(engine.tokens(messages=[chat[0], without, chat[2]], tools=tools))

    counted = sidecar.post("/v1/messages/count_tokens", {"model": MODEL, "messages": turns, "tools": [TOOL]})
    assert counted.json() == {"input_tokens": expected}


@ON_BOTH
def test_thinking_switched_off(engine: Server, sidecar: Sidecar) -> None:
    messages = [{"role": "user", "content": "Hm?"}]
    switches = {"enable_thinking": False}
    expected = len(engine.tokens(messages=messages, chat_template_kwargs=switches))
    assert expected > len(engine.tokens(messages=messages))

    body = {"model": MODEL, "messages": messages, "thinking": {"type": "disabled"}}
    assert sidecar.post("/v1/messages/count_tokens", body).json() == {"input_tokens": expected}
    used = sidecar.post("/v1/messages", {**body, "max_tokens": 1}).json()["usage"]
    assert (
        used["input_tokens"] + used["cache_read_input_tokens"] + used["cache_creation_input_tokens"]
        == expected
    )


@ON_BOTH
@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max"])
def test_effort_is_accepted(sidecar: Sidecar, effort: str) -> None:
    body = _body(script("</think>Yes."), output_config={"effort": effort}, thinking={"type": "adaptive"})
    blocks, message = _content(sidecar.post("/v1/messages", body))
    assert (blocks[-1]["text"], message["stop_reason"]) == ("Yes.", "end_turn")


@ON_BOTH
def test_a_prefilled_answer_goes_on(engine: Server, sidecar: Sidecar) -> None:
    messages = [{"role": "user", "content": "Which?"}, {"role": "assistant", "content": "The answer is"}]
    expected = engine.tokens(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert len(expected) < len(engine.tokens(messages=messages))

    used = sidecar.post("/v1/messages", {"model": MODEL, "max_tokens": 1, "messages": messages}).json()[
        "usage"
    ]
    prompt = used["input_tokens"] + used["cache_read_input_tokens"] + used["cache_creation_input_tokens"]
    assert prompt == len(expected)
