"""The stand-in's answers against those of a real vLLM 0.32.0, raw as they came from the wire."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.standin_app import call, standin

SAY = "one two three four"
EDITS: dict[str, dict[str, Any]] = {
    # What the real model said of itself, or under a grammar, is told to the stand-in.
    "chat_stream": {"say": "no end of thinking, no end of thinking, no end of it"},
    "chat_stream_continuous_usage": {"say": "no end of thinking, no end of thinking, no end of it"},
    "chat_nonstream": {"say": "no end of thinking, no end of thinking, no end of it"},
    "chat_maxtokens_stream": {"say": SAY},
    "chat_nonstream_nothink": {"say": "a long text that is cut at twelve tokens, each of four characters"},
    "chat_stop_stream": {"say": "alpha STOP beta"},
    "completions": {"say": "a text that is longer than six tokens are"},
    "completions_stream": {"say": "a text that is longer than six tokens are"},
    "tools_auto_cut_by_max_tokens_stream": {
        "say": '<tool_call>\n{"name": "get_weather_of_a_city_and_more_than_that"'
    },
    "midstream_engine_dead_chat_stream": {"say": "</think>" + SAY, "say_raise_at": 4},
    "midstream_engine_dead_chat_nonstream": {"say": "</think>" + SAY, "say_raise_at": 4},
    # Three tokens of four characters stand for three of the real tokenizer's.
    "say_chat_only_think_cut_stream": {"say": "<think>thinking on and on"},
    "say_chat_only_think_cut": {"say": "<think>thinking on and on"},
}
STREAMS = [
    "say_chat_text_stream",
    "say_chat_think_text_stream",
    "say_chat_think_tool_stream",
    "say_chat_think_text_tools2_stream",
    "say_chat_tool_empty_args_stream",
    "say_chat_tool_string_args_stream",
    "say_chat_tool_array_args_stream",
    "say_chat_tool_bad_json_stream",
    "say_chat_tool_then_text_stream",
    "say_chat_tool_then_text_then_tool_stream",
    "say_chat_empty_stream",
    "say_chat_only_think_cut_stream",
    "say_chat_unicode_stream",
    "chat_stream",
    "chat_stream_continuous_usage",
    "chat_maxtokens_stream",
    "chat_stop_stream",
    "completions_stream",
    "tools_auto_cut_by_max_tokens_stream",
    "midstream_engine_dead_chat_stream",
]
WHOLE = [
    "say_chat_text",
    "say_chat_think_text",
    "say_chat_think_tool",
    "say_chat_think_text_tools2",
    "say_chat_tool_empty_args",
    "say_chat_tool_string_args",
    "say_chat_tool_array_args",
    "say_chat_tool_bad_json",
    "say_chat_tool_then_text",
    "say_chat_tool_then_text_then_tool",
    "say_chat_tool_cut_by_stop",
    "say_chat_empty",
    "say_chat_only_think_cut",
    "say_chat_unicode",
    "say_chat_stop_sequence",
    "chat_nonstream",
    "chat_nonstream_nothink",
    "completions",
    "midstream_engine_dead_chat_nonstream",
]
ERRORS = [
    "err_bad_json",
    "err_not_object",
    "err_empty_body",
    "err_missing_messages",
    "err_empty_messages",
    "err_max_tokens_too_big",
    "err_max_tokens_zero",
    "err_bad_type",
    "err_bad_temperature",
    "err_unknown_model",
    "err_stream_options_without_stream",
    "err_tool_choice_without_tools",
    "err_lone_surrogate",
]
TEXTS = {"content", "reasoning", "text", "arguments", "name"}


@pytest.fixture(scope="module")
def captures(root: Path) -> Path:
    return root / "tests/fixtures/captures/vllm-0.32.0"


def read(captures: Path, name: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a captured answer; chunked framing is taken off."""
    raw = (captures / f"{name}.resp.txt").read_bytes()
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    if headers.get("transfer-encoding") == "chunked":
        parts = []
        while size := int(body[: body.index(b"\r\n")], 16):
            start = body.index(b"\r\n") + 2
            parts.append(body[start : start + size])
            body = body[start + size + 2 :]
        body = b"".join(parts)
    return int(status.split(" ")[1]), headers, body


def asked(captures: Path, name: str) -> tuple[str, bytes]:
    """Path and body of a captured request, with what the stand-in is told."""
    path = "/v1/completions" if name.startswith("completions") else "/v1/chat/completions"
    body = (captures / f"{name}.req.json").read_bytes()
    if name in EDITS:
        body = json.dumps(json.loads(body) | {"vllm_xargs": EDITS[name]}).encode()
    return path, body


def blank(text: str) -> str:
    """Takes out what differs from request to request: ids, times, fingerprints, counts of tokens."""
    text = re.sub(r'"(chatcmpl|cmpl)-[0-9a-f]{16}"', r'"\1-ID"', text)
    text = re.sub(r'"chatcmpl-tool-[0-9a-f]{16}"', '"chatcmpl-tool-ID"', text)
    text = re.sub(r'"created":\d{10}\b', '"created":NOW', text)
    text = re.sub(r'"vllm-0\.32\.0-[0-9a-f]{8}"', '"vllm-0.32.0-PRINT"', text)
    return re.sub(r'_tokens":\d+', '_tokens":N', text)


def skeleton(body: bytes) -> list[str]:
    """The events without their texts; a run of the same event is one, because tokens are cut differently."""
    events = blank(body.decode()).split("\n\n")
    hollow = [
        re.sub(r'"(content|reasoning|text|arguments)":"(?:[^"\\]|\\.)+"', r'"\1":"TEXT"', event)
        for event in events
    ]
    return [event for event, _ in itertools.groupby(hollow)]


def texts(value: Any) -> list[tuple[str, str]]:
    """All texts of an answer in their order, those of one kind that follow each other joined."""
    found: list[tuple[str, str]] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key in TEXTS and isinstance(inner, str) and inner:
                    found.append((key, inner))
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(value)
    return [
        (key, "".join(text for _, text in run))
        for key, run in itertools.groupby(found, key=lambda item: item[0])
    ]


def events_of(body: bytes) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n")]
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize("name", STREAMS)
def test_streams_have_the_shape_of_the_real_ones(captures: Path, name: str) -> None:
    status, headers, body = read(captures, name)
    path, request = asked(captures, name)
    answer = call(standin(), path, request)
    assert (answer.status, answer.whole) == (status, True)
    assert answer.headers["content-type"] == headers["content-type"]
    assert skeleton(answer.body) == skeleton(body)
    if name not in EDITS:
        assert texts(events_of(answer.body)) == texts(events_of(body))


@pytest.mark.parametrize("name", WHOLE)
def test_answers_in_one_piece_are_the_real_ones(captures: Path, name: str) -> None:
    status, headers, body = read(captures, name)
    path, request = asked(captures, name)
    answer = call(standin(), path, request)
    assert answer.status == status
    assert answer.headers["content-type"] == headers["content-type"]
    if name in EDITS:
        assert skeleton(answer.body) == skeleton(body)
    else:
        assert blank(answer.body.decode()) == blank(body.decode())


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_the_real_ones(captures: Path, name: str) -> None:
    status, headers, body = read(captures, name)
    path, request = asked(captures, name)
    answer = call(standin(), path, request)
    assert (answer.status, answer.body) == (status, body)
    assert answer.headers["content-type"] == headers["content-type"]


def test_a_prompt_over_the_window(captures: Path) -> None:
    _, _, body = read(captures, "err_context_length")
    fields = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 4 * 65_536}]}
    for stream in (False, True):
        answer = call(standin(), "/v1/chat/completions", fields | {"stream": stream})
        assert (answer.status, answer.body) == (400, body)


def test_a_prompt_that_leaves_too_little_room() -> None:
    fields = {"messages": [{"role": "user", "content": "x" * 4 * 100}], "max_tokens": 65_500}
    answer = call(standin(), "/v1/chat/completions", fields)
    assert answer.status == 400
    assert answer.json()["error"]["message"].startswith(
        "This model's maximum context length is 65536 tokens. However, you requested 65500 output tokens and your "
        "prompt contains at least 103 input tokens, for a total of at least 65603 tokens."
    )


def test_other_media_types_are_refused(captures: Path) -> None:
    status, _, body = read(captures, "err_wrong_content_type")
    path, request = asked(captures, "err_wrong_content_type")
    answer = call(standin(), path, request, content_type="text/plain")
    assert (answer.status, answer.body) == (status, body)


def test_a_text_model_refuses_images(captures: Path) -> None:
    status, _, body = read(captures, "err_image_on_text_model")
    path, request = asked(captures, "err_image_on_text_model")
    answer = call(standin(images=False), path, request)
    assert (answer.status, answer.body) == (status, body)
    assert call(standin(), path, request).status == 200


def test_an_unknown_role_is_no_error(captures: Path) -> None:
    path, request = asked(captures, "err_bad_role")
    assert call(standin(), path, request).status == read(captures, "err_bad_role")[0] == 200


@pytest.mark.parametrize(
    ("name", "method", "path"),
    [
        ("notfound", "GET", "/nope"),
        ("method_not_allowed", "GET", "/v1/chat/completions"),
        ("version", "GET", "/version"),
        ("health", "GET", "/health"),
        ("ping", "GET", "/ping"),
        ("ping_post", "POST", "/ping"),
    ],
)
def test_small_endpoints(captures: Path, name: str, method: str, path: str) -> None:
    status, headers, body = read(captures, name)
    answer = call(standin(), path, b"{}", method)
    assert (answer.status, answer.body) == (status, body)
    assert answer.headers.get("content-type") == headers.get("content-type")
    assert answer.headers.get("allow") == headers.get("allow")


def test_models(captures: Path) -> None:
    _, _, body = read(captures, "models")
    answer = call(standin(), "/v1/models", method="GET")
    expected = json.loads(body)
    expected["data"][0]["root"] = "tiny"

    def still(text: str) -> str:
        return re.sub(r"modelperm-[0-9a-f]{16}", "modelperm-ID", blank(text))

    assert still(answer.body.decode()) == still(json.dumps(expected, separators=(",", ":")))


def test_a_request_id_becomes_the_answers_id(captures: Path) -> None:
    _, _, body = read(captures, "say_chat_xrequestid")
    path, request = asked(captures, "say_chat_xrequestid")
    answer = call(standin(), path, request, x_request_id="req-from-client-1")
    assert answer.json()["id"] == json.loads(body)["id"]


def test_keys_are_bearer_only_and_only_under_v1(captures: Path) -> None:
    app = standin(api_key="sekret")
    for name, sent in (
        ("auth_Authorization__Bearer_bad", {"authorization": "Bearer bad"}),
        ("auth_x_api_key__sekret", {"x_api_key": "sekret"}),
    ):
        status, _, body = read(captures, name)
        answer = call(app, "/v1/models", method="GET", **sent)
        assert (answer.status, answer.body) == (status, body)
    assert call(app, "/v1/models", method="GET", authorization="Bearer sekret").status == 200
    assert call(app, "/tokenize", {"prompt": "x"}).status == 200


def test_tokenize_and_detokenize_have_the_real_keys(captures: Path) -> None:
    app = standin()
    answer: Any = None
    for name in ("tokenize_prompt", "tokenize_messages_billing"):
        request = (captures / f"{name}.req.json").read_bytes()
        answer = call(app, "/tokenize", request).json()
        assert list(answer) == list(json.loads(read(captures, name)[2]))
        assert len(answer["tokens"]) == len(answer["token_strs"]) == answer["count"]
    assert call(app, "/tokenize", {"prompt": "x"}).json()["token_strs"] is None
    back = call(app, "/detokenize", {"model": "tiny", "tokens": answer["tokens"]})
    assert list(back.json()) == list(json.loads(read(captures, "detokenize")[2]))
    # What vLLM 0.32 does not do on chat in every shape, the stand-in never does: it prints the header.
    assert back.json()["prompt"] == (
        "<|system|>x-anthropic-billing-header: cc_version=2.1.116.d8c; cc_entrypoint=cli; cch=1a2b3;\n"
        "You are Claude Code.<|end|><|user|>Say something about import os and path.<|end|><|assistant|>"
    )


@pytest.mark.parametrize("details", [True, False])
def test_cached_tokens_are_absent_where_they_are_not_reported(details: bool) -> None:
    app = standin(prompt_tokens_details=details)
    fields = {"messages": [{"role": "user", "content": "hi"}], "stream_options": {"include_usage": True}}
    usage = call(app, "/v1/chat/completions", fields | {"stream": True}).events[-2]["usage"]
    assert ("prompt_tokens_details" in usage) is details
    del fields["stream_options"]
    usage = call(app, "/v1/chat/completions", fields).json()["usage"]
    assert (usage["prompt_tokens_details"] is not None) is details


def test_metrics_have_the_names_of_the_real_ones() -> None:
    text = call(standin(), "/metrics", method="GET").body.decode()
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "prompt_tokens_total",
        "prompt_tokens_cached_total",
        "generation_tokens_total",
    ):
        assert f'vllm:{name}{{engine="0",model_name="tiny"}} 0.0\n' in text
    assert 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 0.0\n' in text
