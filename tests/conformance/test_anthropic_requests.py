"""What Anthropic's SDK sends, and what the engine gets of it."""

import base64
import json
from typing import Any

import anthropic
import pydantic
import pytest
from anthropic.types import MessageParam, ToolParam, ToolUnionParam
from tests.http.engine import Answer, Peer, Received, ScriptedEngine, respond, says

from .answers import refuses

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()

WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"zone": {"type": "string"}, "city": {"type": "string"}},
        "required": ["city"],
    },
    "cache_control": {"type": "ephemeral"},
}


def sent(engine: ScriptedEngine) -> dict[str, Any]:
    """The body that the engine got last."""
    body: dict[str, Any] = engine.requests[-1].json()
    return body


def test_system_blocks_and_cache_control(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says("hello")
    claude.messages.create(
        model="m",
        max_tokens=10,
        system=[
            {"type": "text", "text": "You are terse."},
            {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}],
            }
        ],
        metadata={"user_id": "u"},
        service_tier="auto",
    )
    assert engine.requests[-1].target == "/v1/chat/completions"
    system, user = sent(engine)["messages"]
    assert system["role"] == "system"
    text = system["content"]
    assert text.startswith("You are terse.")
    assert text.endswith("Be kind.")
    assert user == {"role": "user", "content": "Hi"}
    assert b"cache_control" not in engine.requests[-1].body
    assert b"user_id" not in engine.requests[-1].body


def test_sampling_and_stops(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says("hello")
    claude.messages.create(
        model="m",
        max_tokens=10,
        stop_sequences=["END"],
        messages=[{"role": "user", "content": "Hi"}],
        extra_body={"temperature": 0.25, "top_k": 5, "top_p": 0.5},
    )
    body = sent(engine)
    assert (body["max_tokens"], body["stop"]) == (10, ["END"])
    assert (body["temperature"], body["top_k"], body["top_p"]) == (0.25, 5, 0.5)


def test_tools_keep_their_schemas_bytes(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says("hello")
    claude.messages.create(
        model="m",
        max_tokens=10,
        tools=[WEATHER],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        messages=[{"role": "user", "content": "Hi"}],
    )
    body = sent(engine)
    [tool] = body["tools"]
    assert tool["function"]["name"] == "get_weather"
    assert tool["function"]["description"] == "Weather of a city"
    schema = tool["function"]["parameters"]
    assert schema == WEATHER["input_schema"]
    assert list(schema["properties"]) == ["zone", "city"]  # guided decoding follows this order
    assert body["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}
    assert body["parallel_tool_calls"] is False


@pytest.mark.parametrize(("choice", "upstream"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_tool_choice(engine: ScriptedEngine, claude: anthropic.Anthropic, choice: Any, upstream: str) -> None:
    engine.answer = says("hello")
    claude.messages.create(
        model="m",
        max_tokens=10,
        tools=[WEATHER],
        tool_choice={"type": choice},
        messages=[{"role": "user", "content": "Hi"}],
    )
    assert sent(engine)["tool_choice"] == upstream


def test_server_tools_are_left_out_and_named(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says("hello")
    tools: list[ToolUnionParam] = [{"type": "web_search_20250305", "name": "web_search"}, WEATHER]
    raw = claude.messages.with_raw_response.create(
        model="m", max_tokens=10, tools=tools, messages=[{"role": "user", "content": "Hi"}]
    )
    assert [tool["function"]["name"] for tool in sent(engine)["tools"]] == ["get_weather"]
    assert "web_search_20250305" in raw.headers["x-foreword"]


def test_images(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says("hello")
    url = "http://images.invalid/a.png"
    claude.messages.create(
        model="m",
        max_tokens=10,
        messages=[
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
                    },
                    {"type": "image", "source": {"type": "url", "url": url}},
                    {"type": "text", "text": "What is it?"},
                ],
            }
        ],
    )
    assert sent(engine)["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is it?"},
    ]


def test_documents(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    """Texts go as text; what no engine reads becomes words that say so, and never an error."""
    engine.answer = says("hello")
    claude.messages.create(
        model="m",
        max_tokens=10,
        messages=[
            {
                "role": "user",
                "content": [
                    {
                        "type": "document",
                        "title": "notes",
                        "source": {"type": "text", "media_type": "text/plain", "data": "First note."},
                    },
                    {
                        "type": "document",
                        "source": {"type": "content", "content": [{"type": "text", "text": "Second note."}]},
                    },
                    {
                        "type": "document",
                        "title": "paper.pdf",
                        "source": {"type": "base64", "media_type": "application/pdf", "data": PIXEL},
                    },
                    {"type": "text", "text": "Sum up."},
                ],
            }
        ],
    )
    content = json.dumps(sent(engine)["messages"][0]["content"])
    for part in ("notes", "First note.", "Second note.", "paper.pdf", "omitted", "Sum up."):
        assert part in content
    assert PIXEL not in content


def test_tool_results_of_every_shape(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says("hello")
    calls: list[Any] = [
        {"type": "tool_use", "id": f"call_{n}", "name": "get_weather", "input": {}} for n in range(4)
    ]
    image: Any = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    claude.messages.create(
        model="m",
        max_tokens=10,
        tools=[WEATHER],
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": calls},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_0", "content": "sunny"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_1",
                        "content": [{"type": "text", "text": "rain"}, {"type": "image", "source": image}],
                    },
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_2",
                        "content": "no such city",
                        "is_error": True,
                    },
                    {"type": "tool_result", "tool_use_id": "call_3"},
                    {"type": "text", "text": "Go on."},
                ],
            },
        ],
    )
    _, assistant, *results, user = sent(engine)["messages"]
    assert [called["id"] for called in assistant["tool_calls"]] == [f"call_{n}" for n in range(4)]
    assert [called["function"]["arguments"] for called in assistant["tool_calls"]] == ["{}"] * 4
    assert [(result["role"], result["tool_call_id"]) for result in results] == [
        ("tool", f"call_{n}") for n in range(4)
    ]
    assert [result["content"] for result in results[:2]] == ["sunny", "rain"]
    assert results[2]["content"].startswith("Error")
    assert results[2]["content"].endswith("no such city")
    assert results[3]["content"]
    assert [part["type"] for part in user["content"]] == ["image_url", "text"]


def test_prefill(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says(" 42")
    claude.messages.create(
        model="m",
        max_tokens=10,
        messages=[
            {"role": "user", "content": "6 * 7?"},
            {"role": "assistant", "content": "The answer is"},
        ],
    )
    body = sent(engine)
    assert body["messages"][-1] == {"role": "assistant", "content": "The answer is"}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


def test_system_messages_within_the_conversation(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    """They stay behind what was said before: the head of the prompt must not change with them."""
    engine.answer = says("hello")
    messages: list[MessageParam] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Go on."},
    ]
    later: list[MessageParam] = [
        *messages,
        {"role": "assistant", "content": "Yes."},
        {"role": "system", "content": "The disk is nearly full."},
    ]

    def forwarded(messages: list[MessageParam]) -> list[Any]:
        claude.messages.create(model="m", max_tokens=10, system="You are terse.", messages=messages)
        upstream: list[Any] = sent(engine)["messages"]
        return upstream

    before, after = forwarded(messages), forwarded(later)
    assert after[: len(before)] == before
    assert "The disk is nearly full." in json.dumps(after[len(before) :])


def test_thinking_and_effort(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says("hello")
    claude.messages.create(
        model="m",
        max_tokens=2048,
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "max"},
        messages=[{"role": "user", "content": "Hi"}],
    )
    body = sent(engine)
    assert body["chat_template_kwargs"]["enable_thinking"] is True
    assert body["reasoning_effort"] == "high"
    claude.messages.create(
        model="m",
        max_tokens=2048,
        thinking={"type": "disabled"},
        messages=[{"role": "user", "content": "Hi"}],
    )
    assert sent(engine)["chat_template_kwargs"]["enable_thinking"] is False


class City(pydantic.BaseModel):
    name: str
    inhabitants: int


@pytest.mark.parametrize("streamed", [False, True])
def test_structured_output(engine: ScriptedEngine, claude: anthropic.Anthropic, *, streamed: bool) -> None:
    engine.answer = says('{"name":"Paris","inhabitants":2100000}')
    if streamed:
        with claude.messages.stream(
            model="m",
            max_tokens=10,
            output_format=City,
            messages=[{"role": "user", "content": "Which city?"}],
        ) as stream:
            message = stream.get_final_message()
    else:
        message = claude.messages.parse(
            model="m",
            max_tokens=10,
            output_format=City,
            messages=[{"role": "user", "content": "Which city?"}],
        )
    assert message.parsed_output == City(name="Paris", inhabitants=2_100_000)
    asked = sent(engine)["response_format"]
    assert asked["type"] == "json_schema"
    assert list(asked["json_schema"]["schema"]["properties"]) == ["name", "inhabitants"]
    assert asked["json_schema"]["name"]


def test_beta_fields_are_tolerated(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = says("hello")
    message = claude.beta.messages.create(
        model="m",
        max_tokens=10,
        betas=["context-management-2025-06-27", "interleaved-thinking-2025-05-14"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        messages=[{"role": "user", "content": "Hi"}],
        extra_body={"unknown_field": {"a": 1}},
    )
    assert message.stop_reason == "end_turn"
    assert set(sent(engine)) == {"model", "messages", "max_tokens"}
    assert engine.requests[-1].header("anthropic-beta") is None


def counts(count: int) -> Answer:
    return lambda peer, _: peer.send(respond(200, {"count": count, "max_model_len": 65536, "tokens": []}))


def test_count_tokens_asks_the_engine(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = counts(299)
    counted = claude.messages.count_tokens(
        model="m", system="Be kind.", tools=[WEATHER], messages=[{"role": "user", "content": "Hi"}]
    )
    assert counted.input_tokens == 299
    assert engine.requests[-1].target == "/tokenize"
    body = sent(engine)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["tools"][0]["function"]["name"] == "get_weather"


def test_count_tokens_estimates_and_says_so(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = lambda peer, _: peer.send(respond(404, {"detail": "Not Found"}))
    raw = claude.messages.with_raw_response.count_tokens(
        model="m", messages=[{"role": "user", "content": "word " * 1000}]
    )
    assert 500 <= raw.parse().input_tokens <= 3000
    assert "estimate" in raw.headers["x-foreword"]


def test_count_tokens_of_an_unknown_model(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = refuses(404, "The model `m` does not exist.", "NotFoundError")
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.count_tokens(model="m", messages=[{"role": "user", "content": "Hi"}])


def test_models(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    served = [{"id": name, "object": "model", "created": 1_700_000_000} for name in ("one", "two")]
    engine.answer = lambda peer, _: peer.send(respond(200, {"object": "list", "data": served}))
    page = claude.models.list(limit=20)
    assert [model.id for model in page] == ["one", "two"]
    assert page.data[0].type == "model"
    assert page.data[0].created_at.year == 2023
    assert page.data[0].display_name
    assert not page.has_more


def test_the_key_goes_on_as_bearer(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    """Engines know no x-api-key."""
    engine.answer = says("hello")
    claude.messages.create(model="m", max_tokens=10, messages=[{"role": "user", "content": "Hi"}])
    request: Received = engine.requests[-1]
    assert request.header("authorization") == f"Bearer {claude.api_key}"
    assert request.header("x-api-key") is None


def test_a_large_request(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    text = "prefix caches live by their heads. " * 200_000  # 7 MB

    def answer(peer: Peer, request: Received) -> None:
        says(str(len(request.json()["messages"][0]["content"])))(peer, request)

    engine.answer = answer
    message = claude.messages.create(model="m", max_tokens=10, messages=[{"role": "user", "content": text}])
    assert message.content[0].type == "text"
    assert message.content[0].text == str(len(text))


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
def test_threads_are_refused_in_the_words_that_the_sdk_knows(
    engine: ScriptedEngine, claude: anthropic.Anthropic, thread: Any
) -> None:
    """A turn that continues a thread brings no history: answered, it would be without tools and conversation.

    The SDK's agent loop sends the whole conversation from this refusal on.
    """
    engine.answer = says("hello")
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.beta.messages.create(
            model="m",
            max_tokens=10,
            betas=["message-threads-2026-08-12"],
            thread=thread,
            messages=[{"role": "user", "content": "Hi"}],
        )
    assert caught.value.error_code == "thread_unsupported_request"
    assert engine.requests == []
