"""What Anthropic's SDK makes of an engine's answers: whole, through its accumulator, and event by event.

Most answers are a real vLLM's, recorded; where the SDK has two ways to read one, both must come to the same.
"""

import json
from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock
from tests.http.engine import ScriptedEngine, says

from .answers import arguments, call, pieces, replays, replays_either, streams

Ask = Callable[..., Message]


@pytest.fixture(params=["whole", "accumulated"])
def ask(request: pytest.FixtureRequest, claude: anthropic.Anthropic) -> Ask:
    """Asks for a message in one piece, or for a stream that the SDK puts together."""

    def whole() -> Message:
        return claude.messages.create(model="m", max_tokens=400, messages=[{"role": "user", "content": "?"}])

    def accumulated() -> Message:
        with claude.messages.stream(
            model="m", max_tokens=400, messages=[{"role": "user", "content": "?"}]
        ) as stream:
            return stream.get_final_message()

    return whole if request.param == "whole" else accumulated


def calls_of(message: Message) -> list[tuple[str, object]]:
    return [(block.name, block.input) for block in message.content if isinstance(block, ToolUseBlock)]


def test_text(engine: ScriptedEngine, ask: Ask) -> None:
    engine.answer = replays_either("say_chat_unicode")
    message = ask()
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "m")
    [block] = message.content
    assert isinstance(block, TextBlock)
    assert block.text == "café 你好 😀 end"
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)


def test_usage_is_net_of_the_cache(engine: ScriptedEngine, ask: Ask) -> None:
    engine.answer = replays_either("say_chat_unicode")  # 34 prompt tokens, 32 of them cached
    usage = ask().usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (
        2,
        32,
        0,
    )
    assert usage.output_tokens == 19


def test_usage_that_was_not_reported_is_zero_to_the_client(engine: ScriptedEngine, ask: Ask) -> None:
    engine.answer = says("hello", usage=None)
    usage = ask().usage
    assert (usage.input_tokens, usage.output_tokens) == (0, 0)
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (0, 0)


def test_thinking_and_text(engine: ScriptedEngine, ask: Ask) -> None:
    engine.answer = replays_either("say_chat_think_text")
    thinking, text = ask().content
    assert isinstance(thinking, ThinkingBlock)
    assert isinstance(text, TextBlock)
    assert thinking.thinking == "\nLet me think.\n"
    assert isinstance(thinking.signature, str)  # the SDK's own users send it back
    assert text.text == "\n\nHello there."


def test_parallel_tools(engine: ScriptedEngine, ask: Ask) -> None:
    engine.answer = replays_either("say_chat_think_text_tools2")
    message = ask()
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert calls_of(message) == [
        ("get_weather", {"city": "Paris", "unit": "C"}),
        ("read_file", {"path": "/a.txt"}),
    ]
    ids = {block.id for block in message.content if isinstance(block, ToolUseBlock)}
    assert len(ids) == 2
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize("capture", ["say_chat_tool_empty_args", "say_chat_tool_string_args"])
def test_zero_argument_tool(engine: ScriptedEngine, ask: Ask, capture: str) -> None:
    engine.answer = replays_either(capture)
    message = ask()
    assert calls_of(message) == [("get_weather", {})]
    assert message.stop_reason == "tool_use"


def test_arguments_that_are_no_object(engine: ScriptedEngine, ask: Ask) -> None:
    """A tool's input is an object, whatever the model wrote; what it wrote is in there."""
    engine.answer = replays_either("say_chat_tool_array_args")
    [(_, given)] = calls_of(ask())
    assert isinstance(given, dict)
    assert "[1, 2]" in json.dumps(given)


def test_stop_sequence(engine: ScriptedEngine, ask: Ask) -> None:
    engine.answer = replays_either("say_chat_stop_sequence")
    message = ask()
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "STOP")
    [block] = message.content
    assert isinstance(block, TextBlock)
    assert block.text == "one two "


def test_cut_while_thinking(engine: ScriptedEngine, ask: Ask) -> None:
    engine.answer = replays_either("say_chat_only_think_cut")
    message = ask()
    assert [block.type for block in message.content] == ["thinking"]
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)


def test_empty_answer(engine: ScriptedEngine, ask: Ask) -> None:
    engine.answer = replays_either("say_chat_empty")
    message = ask()
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "end_turn", 2)


def test_large_arguments_in_small_pieces(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    """Cut anywhere: inside of escapes, of characters beyond the basic plane, of numbers."""
    text = "".join(f'line {n}: "quoted" \\ \t émoji 😀\n' for n in range(1500))
    given = {"path": "/a.txt", "content": text, "mode": 420, "exact": 0.1, "flags": [True, None]}
    cut = pieces(json.dumps(given), 61)
    deltas = [call(0, "write_file", "call_0"), *(arguments(0, piece) for piece in cut)]
    engine.answer = streams(deltas, "tool_calls")
    with claude.messages.stream(
        model="m", max_tokens=400, messages=[{"role": "user", "content": "?"}]
    ) as stream:
        message = stream.get_final_message()
    assert calls_of(message) == [("write_file", given)]


def test_calls_whose_pieces_alternate(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    """The SDK takes blocks one after the other, while engines may write several calls at once."""
    deltas = [
        call(0, "first", "call_0"),
        call(1, "second", "call_1"),
        arguments(0, '{"a"'),
        arguments(1, '{"b"'),
        arguments(0, ":1}"),
        arguments(1, ":2}"),
    ]
    engine.answer = streams(deltas, "tool_calls")
    with claude.messages.stream(
        model="m", max_tokens=400, messages=[{"role": "user", "content": "?"}]
    ) as stream:
        message = stream.get_final_message()
    assert calls_of(message) == [("first", {"a": 1}), ("second", {"b": 2})]


def test_broken_arguments_are_passed_on_as_they_are(
    engine: ScriptedEngine, claude: anthropic.Anthropic
) -> None:
    engine.answer = replays("say_chat_tool_bad_json_stream")
    events = claude.messages.create(
        model="m", max_tokens=400, messages=[{"role": "user", "content": "?"}], stream=True
    )
    with events:
        written = [
            event.delta.partial_json
            for event in events
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta"
        ]
    assert "".join(written).startswith('{"city": oops')


def test_the_helpers_events_tell_what_they_say(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = replays("say_chat_think_text_tools2_stream")
    told: dict[str, str] = {"text": "", "thinking": "", "input_json": ""}
    with claude.messages.stream(
        model="m", max_tokens=400, messages=[{"role": "user", "content": "?"}]
    ) as stream:
        for event in stream:
            if event.type == "text":
                told["text"] += event.text
            elif event.type == "thinking":
                told["thinking"] += event.thinking
            elif event.type == "input_json":
                told["input_json"] += event.partial_json
        assert stream.current_message_snapshot.stop_reason == "tool_use"
    assert told["text"] == "\n\nLet me see.\n"
    assert told["thinking"] == "\nLet me think.\n"
    assert told["input_json"] == '{"city": "Paris", "unit": "C"}{"path": "/a.txt"}'


def test_raw_events_are_in_order(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    """Each block is opened, filled and closed before the next; usage is there at the start and whole at the end."""
    engine.answer = replays("say_chat_think_text_tools2_stream")
    events = claude.messages.create(
        model="m", max_tokens=400, messages=[{"role": "user", "content": "?"}], stream=True
    )
    with events:
        seen = list(events)
    assert seen[0].type == "message_start"
    assert seen[0].message.usage is not None
    assert seen[0].message.content == []
    assert [event.type for event in seen[-2:]] == ["message_delta", "message_stop"]
    open_block: int | None = None
    closed = 0
    for event in seen[1:-2]:
        if event.type == "content_block_start":
            assert open_block is None
            assert event.index == closed
            open_block = event.index
        elif event.type == "content_block_delta":
            assert event.index == open_block
        elif event.type == "content_block_stop":
            assert event.index == open_block
            open_block, closed = None, closed + 1
        else:
            raise AssertionError(f"unexpected event {event.type}")
    assert (open_block, closed) == (None, 4)
    delta = seen[-2]
    assert delta.type == "message_delta"
    usage: dict[str, Any] = delta.usage.to_dict()
    counts = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert [usage[name] for name in counts] == [11, 84, 288, 0]


def test_raw_answers_carry_the_request_id(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says("hello")
    raw = claude.messages.with_raw_response.create(
        model="m", max_tokens=400, messages=[{"role": "user", "content": "?"}]
    )
    assert raw.request_id is not None
    assert raw.request_id.startswith("req_")
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-foreword"].startswith("rules=none; verdict=")
    assert raw.parse()._request_id == raw.request_id


def test_streamed_raw_answer(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says("hello")
    with claude.messages.with_streaming_response.create(
        model="m", max_tokens=400, messages=[{"role": "user", "content": "?"}], stream=True
    ) as raw:
        assert raw.headers["content-type"].startswith("text/event-stream")
        assert raw.request_id is not None
        assert "content-encoding" not in raw.headers
        lines = list(raw.iter_lines())
    assert lines[0] == "event: message_start"
    said = [line for line in lines if line]
    assert said[-2:] == ["event: message_stop", 'data: {"type":"message_stop"}']
