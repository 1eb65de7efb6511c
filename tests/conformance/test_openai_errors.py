"""How failures reach users of OpenAI's SDK."""

import time
from collections.abc import Callable

import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from tests.http.engine import ScriptedEngine, respond, says
from tests.http.sidecar import Sidecar, free_port

from .answers import begins, breaks_off, hangs_up, in_turn, is_silent, refuses, replays, streams
from .clients import base_url

Ask = Callable[[openai.OpenAI], str]


def hi(client: openai.OpenAI) -> str:
    """Says hello and returns the answer's text."""
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    return answer.choices[0].message.content or ""


def read(client: openai.OpenAI) -> str:
    """The same as a stream."""
    with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "Hi"}]) as stream:
        return stream.get_final_completion().choices[0].message.content or ""


@pytest.fixture
def retrying(gpt: openai.OpenAI) -> openai.OpenAI:
    """The SDK as it is out of the box: two retries."""
    return gpt.with_options(max_retries=2)


@pytest.mark.parametrize("how", [hi, read])
@pytest.mark.parametrize(
    ("status", "exception"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
def test_each_status_has_its_exception(
    engine: ScriptedEngine,
    gpt: openai.OpenAI,
    how: Ask,
    status: int,
    exception: type[openai.APIStatusError],
) -> None:
    """The engine's own answer passes as it is."""
    engine.answer = refuses(status, "the engine's own words", "ItsOwnType")
    with pytest.raises(exception) as caught:
        how(gpt)
    error = caught.value
    assert (error.status_code, error.type, error.code) == (status, "ItsOwnType", str(status))
    assert "the engine's own words" in error.message
    assert error.response.headers["request-id"].startswith("req_")


def test_the_request_id_is_where_the_sdk_looks_for_it(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    """OpenAI's SDKs read x-request-id."""
    engine.answer = says("hello")
    answer = gpt.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    assert (answer._request_id or "").startswith("req_")
    engine.answer = refuses(400, "no")
    with pytest.raises(openai.BadRequestError) as caught:
        hi(gpt)
    assert (caught.value.request_id or "").startswith("req_")


def test_the_engines_own_request_id_stays(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    body = b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[]}'
    engine.answer = lambda peer, _: peer.send(respond(200, body, [("x-request-id", "of-the-engine")]))
    answer = gpt.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    assert answer._request_id == "of-the-engine"


def test_context_overflow(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = replays("err_context_length")
    with pytest.raises(openai.BadRequestError) as caught:
        hi(gpt)
    assert "maximum context length" in caught.value.message


def test_a_base_url_that_ends_too_late(sidecar: Sidecar, engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    """What Foreword itself says has the dialect's form."""
    with pytest.raises(openai.NotFoundError) as caught:
        hi(gpt.with_options(base_url=base_url(sidecar) + "/v1/v1"))
    assert caught.value.type == "invalid_request_error"
    assert "did you mean /v1/chat/completions?" in caught.value.message
    assert engine.requests == []


def test_a_failure_in_mid_stream(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = replays("midstream_engine_dead_chat_stream")
    with pytest.raises(openai.APIError) as caught:
        read(gpt)
    assert "EngineCore" in caught.value.message


def test_a_stream_that_breaks_off(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = breaks_off("Once upon")
    heard: list[ChatCompletionChunk] = []
    with (
        gpt.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
        ) as stream,
        pytest.raises(openai.APIError) as caught,
    ):
        heard.extend(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in heard) == "Once upon"
    assert all(chunk.choices[0].finish_reason is None for chunk in heard)
    assert caught.value.type == "server_error"


def test_a_stream_that_ends_without_an_end(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = streams([{"content": "Once upon"}], finish=None)
    with pytest.raises(openai.APIError):
        read(gpt)


def test_an_engine_that_hangs_up(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = hangs_up
    with pytest.raises(openai.InternalServerError) as caught:
        read(gpt)
    assert (caught.value.status_code, caught.value.type) == (502, "server_error")


def test_no_engine(gpt: openai.OpenAI, tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path_factory.mktemp("alone") / "sidecar.log"
    with (
        Sidecar(f"http://127.0.0.1:{free_port()}", log) as sidecar,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        hi(gpt.with_options(base_url=base_url(sidecar) + "/v1"))
    assert caught.value.status_code == 502
    assert 0 < float(caught.value.response.headers["retry-after"]) <= 50


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("how", [hi, read])
def test_retry_after_is_obeyed(
    engine: ScriptedEngine, retrying: openai.OpenAI, how: Ask, status: int
) -> None:
    engine.answer = in_turn(refuses(status, "busy", headers=[("retry-after", "1")]), says("hello"))
    began = time.monotonic()
    assert how(retrying).strip() == "hello"
    assert 1.0 <= time.monotonic() - began < 3.0
    first, second = engine.requests
    assert first.body == second.body


def test_should_retry_is_passed_on(engine: ScriptedEngine, retrying: openai.OpenAI) -> None:
    engine.answer = refuses(500, "never again", headers=[("x-should-retry", "false")])
    with pytest.raises(openai.InternalServerError):
        hi(retrying)
    assert len(engine.requests) == 1


def test_retries_end(engine: ScriptedEngine, retrying: openai.OpenAI) -> None:
    engine.answer = refuses(429, "busy", headers=[("retry-after", "0.01")])
    with pytest.raises(openai.RateLimitError):
        hi(retrying)
    assert len(engine.requests) == 3


@pytest.mark.parametrize("how", [hi, read])
def test_the_clients_time_limit(engine: ScriptedEngine, gpt: openai.OpenAI, how: Ask) -> None:
    engine.answer = is_silent
    with pytest.raises(openai.APITimeoutError):
        how(gpt.with_options(timeout=0.3))
    engine.wait_for(1)
    assert engine.peers[engine.requests[0].connection].closed.wait(2)


def test_a_client_that_leaves_in_mid_stream(engine: ScriptedEngine, gpt: openai.OpenAI) -> None:
    engine.answer = begins("Once")
    with gpt.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
    ) as stream:
        next(stream)
        assert next(stream).choices[0].delta.content == "Once"
        stream.response.close()
        left = time.monotonic()
    peer = engine.peers[engine.requests[0].connection]
    assert peer.closed.wait(2)
    assert peer.closed_at - left < 0.5
