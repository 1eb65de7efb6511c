"""OpenAI's SDK on the whole way: a sidecar that found its engine by itself, and an engine that renders and caches."""

import json

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionToolParam

from .standin import MODEL, StandIn

LOOK: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at a file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
SYSTEM = "You are a coding agent. " * 400
BLOCK = 64
"""Tokens of a block of the stand-in's cache."""


def ask(
    client: openai.OpenAI, messages: list[ChatCompletionMessageParam], said: str, *, streamed: bool = True
) -> ChatCompletion:
    body = {"vllm_xargs": {"say": said}}
    if not streamed:
        return client.chat.completions.create(model="any", messages=messages, tools=[LOOK], extra_body=body)
    with client.chat.completions.stream(
        model="any",
        messages=messages,
        tools=[LOOK],
        stream_options={"include_usage": True},
        extra_body=body,
    ) as stream:
        return stream.get_final_completion()


@pytest.mark.parametrize("streamed", [False, True])
def test_text_and_model(standin: StandIn, standin_gpt: openai.OpenAI, *, streamed: bool) -> None:
    answer = ask(
        standin_gpt, [{"role": "user", "content": "Hi"}], "</think>Hello, wörld 😀.", streamed=streamed
    )
    assert answer.choices[0].message.content == "Hello, wörld 😀."
    assert answer.model == "any"
    assert standin.last()["model"] == MODEL


@pytest.mark.parametrize("streamed", [False, True])
def test_parallel_tools(standin_gpt: openai.OpenAI, *, streamed: bool) -> None:
    said = "".join(
        f'<tool_call>\n{{"name": "look", "arguments": {{"path": "/{n}"}}}}\n</tool_call>\n' for n in range(3)
    )
    answer = ask(standin_gpt, [{"role": "user", "content": "Hi"}], f"Hm.</think>{said}", streamed=streamed)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.model_extra or {})["reasoning"] == "Hm."
    paths = [
        json.loads(made.function.arguments)["path"]
        for made in choice.message.tool_calls or []
        if made.type == "function"
    ]
    assert paths == ["/0", "/1", "/2"]


def test_a_session_extends_its_prompt(standin: StandIn, standin_gpt: openai.OpenAI) -> None:
    """With a billing header that changes each turn, which agents put into their system message."""
    header = "x-anthropic-billing-header: cc_version=2.1.116.abc; cc_entrypoint=cli; cch={:05x};\n"
    thought = "<think>" + "One more thing to look at. " * 40 + "</think>"
    said = [
        f'{thought}Looking.<tool_call>\n{{"name": "look", "arguments": {{"path": "/é"}}}}\n</tool_call>',
        f'{thought}<tool_call>\n{{"name": "look", "arguments": {{"path": "a\\n\\"c\\""}}}}\n</tool_call>',
        f"{thought}All seen.",
    ]
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Look around."}]
    before: list[int] = []
    known = 0
    for turn, text in enumerate(said):
        system: ChatCompletionMessageParam = {"role": "system", "content": header.format(turn) + SYSTEM}
        answer = ask(standin_gpt, [system, *messages], text)
        prompt = standin.tokens(standin.last())
        assert prompt[: len(before)] == before
        usage = answer.usage
        assert usage is not None
        assert usage.prompt_tokens == len(prompt)
        if turn:
            assert usage.prompt_tokens_details is not None
            assert (usage.prompt_tokens_details.cached_tokens or 0) >= known // BLOCK * BLOCK
        before = prompt
        known = len(prompt) + usage.completion_tokens - 1  # the last token was written and never read
        message = answer.choices[0].message
        sent_back = {"role": "assistant", "content": message.content, **(message.model_extra or {})}
        if message.tool_calls:
            sent_back["tool_calls"] = [
                {
                    "id": made.id,
                    "type": "function",
                    "function": {"name": made.function.name, "arguments": made.function.arguments},
                }
                for made in message.tool_calls
                if made.type == "function"
            ]
        messages.append(sent_back)  # type: ignore[arg-type]
        messages += [
            {"role": "tool", "tool_call_id": made.id, "content": "Seen."} for made in message.tool_calls or []
        ]


def test_models(standin_gpt: openai.OpenAI) -> None:
    assert [model.id for model in standin_gpt.models.list()] == [MODEL]


def test_legacy_completions(standin_gpt: openai.OpenAI) -> None:
    with standin_gpt.completions.create(
        model="any",
        prompt="Once",
        max_tokens=8,
        stream=True,
        extra_body={"vllm_xargs": {"say": " upon a time"}},
    ) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == " upon a time"


@pytest.mark.parametrize("mishap", [{"cut_after": 3}, {"end_after": 3}, {"error_after": 3}])
def test_a_stream_that_is_cut(standin_gpt: openai.OpenAI, mishap: dict[str, object]) -> None:
    with (
        pytest.raises(openai.APIError),
        standin_gpt.chat.completions.stream(
            model="any",
            messages=[{"role": "user", "content": "Hi"}],
            extra_body={"vllm_xargs": {"say": "</think>One two three four five six", **mishap}},
        ) as stream,
    ):
        stream.until_done()
