"""/v1/messages over HTTP: failures, half answers, and ends that the engine did or did not state."""

import gzip
import json
import re
from typing import Any

import pytest

from .anthropic_stream import NET, data, names, text_of
from .engine import (
    END,
    HALF,
    USAGE,
    Answer,
    Peer,
    Received,
    ScriptedEngine,
    answers,
    chat_chunk,
    chat_events,
    chunked,
    completion,
    event,
    respond,
    stream_head,
    streams,
)
from .sidecar import MESSAGES, Sidecar, ask

USAGE_CHUNK = event({"id": "c", "choices": [], "usage": USAGE})
DONE = event("[DONE]")


def cut_by(close: str) -> Answer:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(HALF))
        if close == "FIN":
            peer.close()
        elif close == "RST":
            peer.reset()
        elif close == "end of chunks":
            peer.send(END)
        elif close == "FIN in a chunk":
            peer.send(b"40\r\ndata: {")
            peer.close()

    return answer


@pytest.mark.parametrize("close", ["FIN", "RST", "end of chunks", "FIN in a chunk"])
def test_a_cut_is_an_error_event_and_no_end(sidecar: Sidecar, engine: ScriptedEngine, close: str) -> None:
    engine.answer = cut_by(close)
    answer = sidecar.post(MESSAGES, ask())
    kinds = names(answer)
    if answer.status != 200:
        # A reset may overtake what was sent before it; then nothing had been told yet.
        assert close == "RST"
        assert (answer.status, answer.json()["error"]["type"]) == (502, "api_error")
        return
    assert kinds[-1] == "error"
    assert kinds.count("error") == 1
    assert "message_stop" not in kinds
    assert "message_delta" not in kinds
    assert text_of(answer) == "half "
    error = data(answer, "error")[0]
    assert error["error"]["type"] == "api_error"
    assert sidecar.record(answer)["outcome"] == "engine-error"


@pytest.mark.parametrize("close", ["FIN", "end of chunks"])
def test_a_finish_without_done_is_an_end(sidecar: Sidecar, engine: ScriptedEngine, close: str) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(HALF + event(chat_chunk({}, "stop"))))
        if close == "FIN":
            peer.close()
        else:
            peer.send(END)

    engine.answer = answer
    answered = sidecar.post(MESSAGES, ask())
    assert names(answered)[-2:] == ["message_delta", "message_stop"]
    assert sidecar.record(answered)["outcome"] == "ok"


@pytest.mark.parametrize("tail", [b"", b": bye\n\n"])
def test_done_without_a_finish_is_an_end(sidecar: Sidecar, engine: ScriptedEngine, tail: bytes) -> None:
    engine.answer = streams(HALF, DONE + tail)
    assert names(sidecar.post(MESSAGES, ask()))[-2:] == ["message_delta", "message_stop"]


@pytest.mark.parametrize("pieces", [[], [b": ping\n\n"], [DONE]], ids=["nothing", "a comment", "only [DONE]"])
def test_an_empty_stream_is_an_error(sidecar: Sidecar, engine: ScriptedEngine, pieces: list[bytes]) -> None:
    engine.answer = streams(*pieces)
    answer = sidecar.post(MESSAGES, ask())
    assert (answer.status, answer.json()["error"]["type"]) == (502, "api_error")
    assert "empty" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("body", [b"", b"  \n", b"<html>welcome</html>", b"[]", b"{}", b'"x"'])
def test_a_200_without_an_answer_is_an_error(
    sidecar: Sidecar, engine: ScriptedEngine, body: bytes, stream: bool
) -> None:
    engine.answer = answers(200, body)
    answer = sidecar.post(MESSAGES, ask(stream))
    assert (answer.status, answer.json()["type"]) == (502, "error")


@pytest.mark.parametrize("stream", [True, False])
def test_half_an_answer_with_a_length(sidecar: Sidecar, engine: ScriptedEngine, stream: bool) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(respond(200, completion({"content": "hi"}))[:-20])
        peer.close()

    engine.answer = answer
    answered = sidecar.post(MESSAGES, ask(stream))
    assert (answered.status, answered.json()["error"]["type"]) == (502, "api_error")


def test_a_whole_answer_to_a_stream_request(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(200, completion({"content": "hi", "reasoning": "hm"}))
    answer = sidecar.post(MESSAGES, ask())
    assert answer.headers["content-type"] == "text/event-stream"
    kinds = names(answer)
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert text_of(answer) == "hi"
    assert data(answer, "message_delta")[0]["usage"] == NET


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
def test_a_stream_as_the_answer_to_a_whole_request(
    sidecar: Sidecar, engine: ScriptedEngine, content_type: str
) -> None:
    body = b"".join(chat_events("one two", USAGE))
    engine.answer = lambda peer, _: peer.send(respond(200, body, content_type=content_type))
    answer = sidecar.post(MESSAGES, ask(stream=False))
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["content"] == [{"type": "text", "text": "one two "}]
    assert answer.json()["usage"] == NET


@pytest.mark.parametrize("stream", [True, False])
def test_a_compressed_answer_is_read(sidecar: Sidecar, engine: ScriptedEngine, stream: bool) -> None:
    body = gzip.compress(json.dumps(completion({"content": "hi"})).encode())
    engine.answer = answers(200, body, ("content-encoding", "gzip"))
    answer = sidecar.post(MESSAGES, ask(stream))
    assert "content-encoding" not in answer.headers
    assert (text_of(answer) if stream else answer.json()["content"][0]["text"]) == "hi"


TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@pytest.mark.case("B113")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", TYPES)
def test_errors_by_status(sidecar: Sidecar, engine: ScriptedEngine, status: int, stream: bool) -> None:
    body = {"error": {"message": "The reason.", "type": "X", "param": None, "code": status}}
    engine.answer = answers(status, body)
    answer = sidecar.post(MESSAGES, ask(stream))
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "type": "error",
        "error": {"type": TYPES[status], "message": "The reason."},
        "request_id": answer.headers["request-id"],
    }


@pytest.mark.parametrize("name", ["err_context_length", "messages_err_context_length"])
def test_captured_overflows(sidecar: Sidecar, engine: ScriptedEngine, name: str, root: Any) -> None:
    path = root / "tests/fixtures/captures/vllm-0.32.0" / f"{name}.resp.txt"
    engine.answer = lambda peer, _: peer.send(path.read_bytes())
    answer = sidecar.post(MESSAGES, ask())
    assert answer.status == 400
    assert re.fullmatch(r"prompt is too long: \d+ tokens > \d+ maximum", answer.json()["error"]["message"])


OVERFLOWS = {
    "This model's maximum context length is 65536 tokens. However, your request has 70000 input tokens. Please"
    " reduce the length of the input messages.": "prompt is too long: 70000 tokens > 65536 maximum",
    "request (9500 tokens) exceeds the available context size (8192 tokens), try increasing it": (
        "prompt is too long: 9500 tokens > 8192 maximum"
    ),
    "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 131072"
    " tokens and your request has 120000 input tokens (32000 > 131072 - 120000).": (
        "input length and `max_tokens` exceed context limit: 120000 + 32000 > 131072,"
        " decrease input length or `max_tokens` and try again"
    ),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 413, 500])
@pytest.mark.parametrize("said", OVERFLOWS)
def test_both_overflow_messages(
    sidecar: Sidecar, engine: ScriptedEngine, said: str, status: int, stream: bool
) -> None:
    engine.answer = answers(status, {"error": {"message": said, "type": "BadRequestError", "code": status}})
    answer = sidecar.post(MESSAGES, ask(stream))
    assert (answer.status, answer.json()["error"]) == (
        400,
        {"type": "invalid_request_error", "message": OVERFLOWS[said]},
    )


@pytest.mark.parametrize("value", ["7", "120", "Wed, 21 Oct 2026 07:28:00 GMT"])
@pytest.mark.parametrize("status", [429, 503, 529])
def test_retry_after_of_the_engine_is_kept(
    sidecar: Sidecar, engine: ScriptedEngine, status: int, value: str
) -> None:
    engine.answer = answers(status, {"error": {"message": "later"}}, ("Retry-After", value))
    assert sidecar.post(MESSAGES, ask()).headers["retry-after"] == value


@pytest.mark.parametrize("status", [502, 503, 404, 400])
def test_an_html_page_is_summed_up(sidecar: Sidecar, engine: ScriptedEngine, status: int) -> None:
    page = b"<html><head><title>nginx</title></head><body>secret host name</body></html>"
    engine.answer = lambda peer, _: peer.send(respond(status, page, content_type="text/html"))
    answer = sidecar.post(MESSAGES, ask())
    assert (answer.status, answer.json()["error"]["type"]) == (status, TYPES[status])
    message = answer.json()["error"]["message"]
    assert "HTML" in message
    assert "secret" not in message


def test_a_compressed_error_is_read(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    body = gzip.compress(b'{"error":{"message":"too many"}}')
    engine.answer = answers(429, body, ("content-encoding", "gzip"))
    answer = sidecar.post(MESSAGES, ask())
    assert (answer.status, answer.json()["error"]["message"]) == (429, "too many")
    assert "content-encoding" not in answer.headers


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (
            {"message": "bad", "type": "BadRequestError", "param": None, "code": 400},
            400,
            "invalid_request_error",
        ),
        ({"message": "boom", "type": "InternalServerError", "code": 500}, 500, "api_error"),
        ({"message": "busy", "type": "overloaded_error"}, 529, "overloaded_error"),
    ],
)
def test_an_error_that_comes_first_has_its_status(
    sidecar: Sidecar, engine: ScriptedEngine, error: dict[str, Any], status: int, kind: str
) -> None:
    engine.answer = streams(event({"error": error}), DONE)
    answer = sidecar.post(MESSAGES, ask())
    assert (answer.status, answer.json()["error"]) == (status, {"type": kind, "message": error["message"]})


def test_an_overflow_that_comes_first_in_a_stream(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    said, told = next(iter(OVERFLOWS.items()))
    engine.answer = streams(event({"error": {"message": said, "type": "BadRequestError", "code": 400}}), DONE)
    answer = sidecar.post(MESSAGES, ask())
    assert (answer.status, answer.json()["error"]["message"]) == (400, told)


def test_an_error_in_mid_stream(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    error = {"message": "EngineCore died", "type": "InternalServerError", "param": None, "code": 500}
    engine.answer = streams(HALF, event({"error": error}), DONE)
    answer = sidecar.post(MESSAGES, ask())
    assert answer.status == 200
    assert names(answer)[-1] == "error"
    assert data(answer, "error")[0]["error"] == {"type": "api_error", "message": "EngineCore died"}
    assert "message_stop" not in names(answer)
    assert sidecar.record(answer)["outcome"] == "engine-error"


BAD = {
    "not JSON": (b'{"model":', "JSON"),
    "not UTF-8": (b'{"model":"\xff"}', "UTF-8"),
    "a list": (b"[]", "object"),
    "no model": (b'{"max_tokens":5,"messages":[{"role":"user","content":"x"}]}', "model"),
    "no messages": (b'{"model":"m","max_tokens":5}', "messages"),
    "no max_tokens": (b'{"model":"m","messages":[{"role":"user","content":"x"}]}', "max_tokens"),
    "a bad role": (
        b'{"model":"m","max_tokens":5,"messages":[{"role":"tool","content":"x"}]}',
        "messages.0.role",
    ),
}


@pytest.mark.case("B119")
@pytest.mark.parametrize("name", BAD)
def test_what_is_no_request_is_told_here(sidecar: Sidecar, engine: ScriptedEngine, name: str) -> None:
    body, said = BAD[name]
    answer = sidecar.post(MESSAGES, body)
    assert (answer.status, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert said in answer.json()["error"]["message"]
    assert not engine.requests
    assert sidecar.record(answer)["outcome"] == "client-error"


@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}])
@pytest.mark.parametrize(
    ("path", "message_dialect"), [("/v1/messages/batches", True), ("/v1/embeddings", False)]
)
def test_failures_of_other_paths_are_told_in_the_callers_dialect(
    sidecar: Sidecar, engine: ScriptedEngine, path: str, message_dialect: bool, headers: dict[str, str]
) -> None:
    engine.answer = lambda peer, _: peer.close()
    answer = sidecar.post(path, ask(), headers)
    assert answer.status == 502
    assert answer.json().get("type") == ("error" if message_dialect or headers else None)
