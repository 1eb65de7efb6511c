"""Anthropic's SDK on the whole way: a sidecar that found its engine by itself, an engine that renders and caches."""

from typing import Any

import anthropic
import pytest
from anthropic import beta_tool
from anthropic.types import Message, MessageParam, TextBlock, ThinkingBlock, ToolParam, ToolUseBlock

from .standin import MODEL, StandIn

ASKED = "claude-conformance-1"
"""A name that the engine does not serve."""

LOOK: ToolParam = {
    "name": "look",
    "description": "Looks at a file",
    "input_schema": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    },
}
NOW: ToolParam = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
SYSTEM = "You are a coding agent. " * 400
BLOCK = 64
"""Tokens of a block of the stand-in's cache."""


def say(text: str, **more: object) -> dict[str, object]:
    """What the engine is to say: a script that passes through /v1/messages."""
    return {"vllm_xargs": {"say": text, **more}}


def called(name: str, arguments: str) -> str:
    """A call as the engine writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def ask(client: anthropic.Anthropic, text: str, *, streamed: bool, **more: object) -> Message:
    messages: list[MessageParam] = [{"role": "user", "content": "Hi"}]
    if not streamed:
        return client.messages.create(
            model=ASKED, max_tokens=4000, messages=messages, tools=[LOOK, NOW], extra_body=say(text, **more)
        )
    with client.messages.stream(
        model=ASKED, max_tokens=4000, messages=messages, tools=[LOOK, NOW], extra_body=say(text, **more)
    ) as stream:
        return stream.get_final_message()


@pytest.mark.parametrize("streamed", [False, True])
def test_text_and_model(standin: StandIn, standin_claude: anthropic.Anthropic, *, streamed: bool) -> None:
    message = ask(standin_claude, "</think>Hello, wörld 😀.", streamed=streamed)
    [block] = message.content
    assert isinstance(block, TextBlock)
    assert block.text == "Hello, wörld 😀."
    assert message.model == ASKED
    assert standin.last()["model"] == MODEL
    assert message.stop_reason == "end_turn"


@pytest.mark.parametrize("streamed", [False, True])
def test_thinking_text_and_parallel_tools(standin_claude: anthropic.Anthropic, *, streamed: bool) -> None:
    calls = called("look", r'{"path": "/a\"b.txt", "lines": 3}') + "\n" + called("now", "{}")
    said = f"Two things to do.</think>I shall look.{calls}"
    message = ask(standin_claude, said, streamed=streamed)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    thinking, text, look, now = message.content
    assert isinstance(thinking, ThinkingBlock)
    assert isinstance(text, TextBlock)
    assert isinstance(look, ToolUseBlock)
    assert isinstance(now, ToolUseBlock)
    assert (thinking.thinking, text.text) == ("Two things to do.", "I shall look.")
    assert (look.input, now.input) == ({"path": '/a"b.txt', "lines": 3}, {})
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize("streamed", [False, True])
def test_an_engine_that_dies(standin_claude: anthropic.Anthropic, *, streamed: bool) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        ask(standin_claude, "</think>One two three four", streamed=streamed, say_raise_at=4)
    assert caught.value.type == "api_error"


@pytest.mark.parametrize(
    "mishap", [{"cut_after": 3}, {"cut_after": 3, "cut": "rst"}, {"end_after": 3}, {"error_after": 3}]
)
def test_a_stream_that_is_cut(standin_claude: anthropic.Anthropic, mishap: dict[str, object]) -> None:
    with (
        pytest.raises(anthropic.APIStatusError),
        standin_claude.messages.stream(
            model=ASKED,
            max_tokens=100,
            messages=[{"role": "user", "content": "Hi"}],
            extra_body=say("</think>One two three four five six", **mishap),
        ) as stream,
    ):
        stream.until_done()


def test_max_tokens(standin_claude: anthropic.Anthropic) -> None:
    message = standin_claude.messages.create(
        model=ASKED, max_tokens=3, messages=[{"role": "user", "content": "Hi"}]
    )
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)


def test_the_window(standin_claude: anthropic.Anthropic) -> None:
    """The stand-in's window is 262,144 tokens of four bytes."""
    with pytest.raises(anthropic.BadRequestError) as caught:
        standin_claude.messages.create(
            model=ASKED, max_tokens=10, messages=[{"role": "user", "content": "word" * 262_200}]
        )
    assert (caught.value.api_message or "").startswith("prompt is too long: ")
    with pytest.raises(anthropic.BadRequestError) as caught:
        standin_claude.messages.with_raw_response.create(
            model=ASKED, max_tokens=262_000, messages=[{"role": "user", "content": "word" * 1000}]
        )
    message = caught.value.api_message or ""
    assert message.startswith("input length and `max_tokens` exceed context limit: ")


def test_count_tokens_is_what_the_prompt_takes(standin_claude: anthropic.Anthropic) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "Count this, please."}]
    counted = standin_claude.messages.count_tokens(
        model=ASKED, system=SYSTEM, tools=[LOOK, NOW], messages=messages
    )
    usage = standin_claude.messages.create(
        model=ASKED, max_tokens=10, system=SYSTEM, tools=[LOOK, NOW], messages=messages
    ).usage
    read, created = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    assert counted.input_tokens == usage.input_tokens + read + created


def test_models(standin_claude: anthropic.Anthropic) -> None:
    assert [model.id for model in standin_claude.models.list()] == [MODEL]


def test_prefill_goes_on_where_it_ends(standin: StandIn, standin_claude: anthropic.Anthropic) -> None:
    message = standin_claude.messages.create(
        model=ASKED,
        max_tokens=100,
        messages=[
            {"role": "user", "content": "6 * 7?"},
            {"role": "assistant", "content": "The answer is"},
        ],
        extra_body=say(" 42."),
    )
    [block] = message.content
    assert isinstance(block, TextBlock)
    assert block.text == " 42."
    assert standin.last()["continue_final_message"] is True


def test_a_session_extends_its_prompt(standin: StandIn, standin_claude: anthropic.Anthropic) -> None:
    """What the SDK sends back of an answer renders to the very tokens that the engine wrote: thinking, text, parallel
    calls and their arguments. Behind them come results of several kinds and a late system message, before them a
    billing header that is another one in each turn.
    """
    header = "x-anthropic-billing-header: cc_version=2.1.116.abc; cc_entrypoint=cli; cch={:05x};"
    thought = "<think>" + "One more thing to look at. " * 40 + "</think>"
    said = [
        f"{thought}Looking." + called("look", '{"path": "/é", "lines": 3}') + "\n" + called("now", "{}"),
        thought + called("look", r'{"path": "a\n\"c\"", "lines": 0}'),
        f"{thought}All seen.",
        f"{thought}Nothing new.",
    ]
    messages: list[Any] = [{"role": "user", "content": "Look around."}]
    before: list[int] = []
    known = 0
    for turn, text in enumerate(said):
        with standin_claude.messages.stream(
            model=ASKED,
            max_tokens=1000,
            system=[
                {"type": "text", "text": header.format(turn)},
                {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}},
            ],
            tools=[LOOK, NOW],
            messages=messages,
            extra_body=say(text),
        ) as stream:
            message = stream.get_final_message()
            assert "billing-header" in stream.response.headers["x-foreword"]
        prompt, usage = standin.tokens(standin.last()), message.usage
        assert prompt[: len(before)] == before
        if turn:
            # All that the last turn computed, but for a part of a block: its prompt, and its answer too.
            assert (usage.cache_read_input_tokens or 0) >= known // BLOCK * BLOCK
        before = prompt
        known = len(prompt) + usage.output_tokens - 1  # the last token was written and never read
        messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": [{"type": "text", "text": f"Result of {block.name}."}],
                "is_error": block.name == "now",
            }
            for block in message.content
            if isinstance(block, ToolUseBlock)
        ]
        if results:
            messages.append({"role": "user", "content": results})
            messages.append({"role": "system", "content": f"Note {turn}: the disk fills."})
        else:
            messages.append({"role": "user", "content": "And now?"})
    assert len(messages) == 11


def test_the_tool_runner(standin: StandIn, standin_claude: anthropic.Anthropic) -> None:
    """The SDK's own agent loop: it calls the tools and sends the results until the model is done."""
    seen: list[tuple[str, int]] = []

    @beta_tool
    def look(path: str, lines: int) -> str:
        """Looks at a file.

        Args:
            path: The file.
            lines: How many lines.
        """
        seen.append((path, lines))
        return f"{lines} lines of {path}"

    standin.script(
        {
            "say": 'Hm.</think><tool_call>\n{"name": "look", "arguments": {"path": "/a", "lines": 2}}\n</tool_call>'
        },
        {
            "say": 'So.</think><tool_call>\n{"name": "look", "arguments": {"path": "/b", "lines": 5}}\n</tool_call>'
        },
        {"say": "Well.</think>Seen both."},
    )
    runner = standin_claude.beta.messages.tool_runner(
        model=ASKED, max_tokens=1000, tools=[look], messages=[{"role": "user", "content": "Look at both."}]
    )
    final = runner.until_done()
    assert seen == [("/a", 2), ("/b", 5)]
    assert final.content[-1].type == "text"
    assert final.content[-1].text == "Seen both."
    roles = [message["role"] for message in standin.last()["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]
    reasoning = [
        message["reasoning"] for message in standin.last()["messages"] if message["role"] == "assistant"
    ]
    assert reasoning == ["Hm.", "So."]
