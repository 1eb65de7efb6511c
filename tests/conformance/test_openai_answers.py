"""What OpenAI's SDK makes of answers that pass in their own dialect: whole, through its helpers, and chunk by chunk."""

import json
from typing import Any

import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from tests.http.engine import (
    END,
    USAGE,
    Peer,
    Received,
    ScriptedEngine,
    chat_chunk,
    chunked,
    event,
    respond,
    says,
    stream_head,
)

from .answers import arguments, call, pieces, recorded, replays, replays_either, streams

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def test_text(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = replays("say_chat_unicode")
    answer = gpt.chat.completions.create(model="m", messages=HI)
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("café 你好 😀 end", "stop")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens) == (34, 32)


def test_answers_are_the_engines_bytes(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = replays("say_chat_think_text_tools2")
    raw = gpt.chat.completions.with_raw_response.create(model="m", messages=HI)
    assert raw.content == recorded("say_chat_think_text_tools2").partition(b"\r\n\r\n")[2]
    assert raw.headers["request-id"].startswith("req_")
    assert (raw.parse().choices[0].message.model_extra or {})["reasoning"] == "\nLet me think.\n"


def test_stream_helper(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = replays("say_chat_think_text_tools2_stream")
    told = {"content": "", "arguments": ""}
    with gpt.chat.completions.stream(model="m", messages=HI, tools=[WEATHER]) as stream:
        for seen in stream:
            if seen.type == "content.delta":
                told["content"] += seen.delta
            elif seen.type == "tool_calls.function.arguments.done":
                told["arguments"] += seen.arguments
        final = stream.get_final_completion()
    [choice] = final.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == told["content"] == "\n\nLet me see.\n"
    assert (choice.message.model_extra or {})["reasoning"] == "\nLet me think.\n"
    calls = choice.message.tool_calls or []
    assert [(made.function.name, json.loads(made.function.arguments)) for made in calls] == [
        ("get_weather", {"city": "Paris", "unit": "C"}),
        ("read_file", {"path": "/a.txt"}),
    ]
    assert calls[0].function.parsed_arguments == {"city": "Paris", "unit": "C"}
    assert told["arguments"] == "".join(made.function.arguments for made in calls)


def test_large_arguments_in_small_pieces(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    given = {"path": "/a.txt", "content": 'a "quoted" \\ line 😀\n' * 2000}
    cut = pieces(json.dumps(given), 61)
    deltas = [call(0, "write_file", "call_0"), *(arguments(0, piece) for piece in cut)]
    engine.answer = streams(deltas, "tool_calls")
    with gpt.chat.completions.stream(model="m", messages=HI) as stream:
        [made] = stream.get_final_completion().choices[0].message.tool_calls or []
    assert json.loads(made.function.arguments) == given


@pytest.mark.parametrize("wanted", [False, True])
def test_usage_of_a_stream_is_there_if_it_was_asked_for(
    engine: ScriptedEngine, gpt: openai.OpenAI, *, wanted: bool
) -> None:
    """Foreword asks the engine for it in any case; the client sees what it asked for."""
    engine.answer = says("hello")
    options: Any = {"stream_options": {"include_usage": True}} if wanted else {}
    with gpt.chat.completions.create(model="m", messages=HI, stream=True, **options) as stream:
        chunks = list(stream)
    assert engine.requests[-1].json()["stream_options"] == {"include_usage": True}
    with_usage = [chunk for chunk in chunks if chunk.usage is not None]
    assert len(with_usage) == int(wanted)
    assert all(chunk.choices for chunk in chunks if chunk.usage is None)
    if wanted:
        [last] = with_usage
        assert last.usage is not None
        assert last.usage.prompt_tokens == USAGE["prompt_tokens"]


class City(pydantic.BaseModel):
    name: str
    inhabitants: int


@pytest.mark.parametrize("streamed", [False, True])
def test_structured_output(engine: ScriptedEngine, gpt: openai.OpenAI, *, streamed: bool) -> None:
    engine.answer = says('{"name":"Paris","inhabitants":2100000}')
    if streamed:
        with gpt.chat.completions.stream(model="m", messages=HI, response_format=City) as stream:
            parsed = stream.get_final_completion().choices[0].message.parsed
    else:
        parsed = (
            gpt.chat.completions.parse(model="m", messages=HI, response_format=City).choices[0].message.parsed
        )
    assert parsed == City(name="Paris", inhabitants=2_100_000)
    asked = engine.requests[-1].json()["response_format"]["json_schema"]
    assert (asked["name"], asked["strict"]) == ("City", True)
    assert list(asked["schema"]["properties"]) == ["name", "inhabitants"]


def test_requests_are_the_clients_bytes(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    """Compared with what the same client sends to an engine directly."""
    engine.answer = says("hello")
    messages: list[ChatCompletionMessageParam] = [
        {"role": "developer", "content": "Be kind."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it? é 😀"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            ],
        },
    ]
    with ScriptedEngine() as direct:
        direct.answer = says("hello")
        for client in (gpt, gpt.with_options(base_url=f"{direct.url}/v1")):
            client.chat.completions.create(
                model="m",
                messages=messages,
                tools=[WEATHER],
                temperature=0.1,
                seed=7,
                extra_body={"top_k": 3},
            )
        assert engine.requests[-1].body == direct.requests[-1].body
        assert engine.requests[-1].target == direct.requests[-1].target


@pytest.mark.parametrize("streamed", [False, True])
def test_legacy_completions(engine: ScriptedEngine, gpt: openai.OpenAI, *, streamed: bool) -> None:
    engine.answer = replays_either("completions")
    if streamed:
        with gpt.completions.create(model="m", prompt="import", stream=True) as stream:
            chunks = list(stream)
        assert chunks
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    else:
        assert gpt.completions.create(model="m", prompt="import").choices[0].text
    assert engine.requests[-1].target == "/v1/completions"


def test_responses(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = replays("responses")
    answer = gpt.responses.create(model="tiny", input="Hi", instructions="Be brief.", max_output_tokens=8)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (26, 8)
    assert engine.requests[-1].target == "/v1/responses"


def test_responses_stream(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = replays("responses_stream")
    with gpt.responses.create(model="tiny", input="Hi", stream=True) as stream:
        events = list(stream)
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type in ("response.completed", "response.incomplete")
    numbers = [getattr(event, "sequence_number", None) for event in events]
    assert numbers == list(range(len(events)))


def test_models(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = replays("models")
    [model] = gpt.models.list()
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "vllm")
    assert (model.model_extra or {})["max_model_len"] > 0


def test_one_model_and_other_paths_pass(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    served = [
        {"id": name, "object": "model", "created": 1, "owned_by": "vllm"} for name in ("other", "org/m")
    ]
    engine.answer = lambda peer, _: peer.send(respond(200, {"object": "list", "data": served}))
    assert gpt.models.retrieve("org/m").id == "org/m"
    assert engine.requests[-1].target == "/v1/models", "few engines know the path of one model"
    embedded = {"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}
    engine.answer = lambda peer, _: peer.send(
        respond(200, {"object": "list", "model": "m", "data": [embedded], "usage": None})
    )
    assert gpt.embeddings.create(model="m", input="Hi").data[0].embedding == [0.5, -0.25]
    assert engine.requests[-1].target == "/v1/embeddings"


def test_comments_and_unknown_fields_do_not_disturb(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    """Some engines keep streams alive with comments."""

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head())
        peer.send(chunked(b": still here\n\n"))
        peer.send(chunked(event({**chat_chunk({"content": "hello"}), "unknown": {"a": 1}})))
        peer.send(chunked(event(chat_chunk({}, "stop"))))
        peer.send(chunked(event("[DONE]")) + END)

    engine.answer = answer
    with gpt.chat.completions.stream(model="m", messages=HI) as stream:
        assert stream.get_final_completion().choices[0].message.content == "hello"
