"""How failures reach users of Anthropic's SDK: its own exceptions, its own retries, its own time limits."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from tests.http.engine import Peer, Received, ScriptedEngine, respond, says
from tests.http.sidecar import Sidecar, free_port

from .answers import begins, breaks_off, hangs_up, in_turn, is_silent, refuses, replays, streams
from .clients import SECONDS, base_url

Ask = Callable[[anthropic.Anthropic], str]


def hi(client: anthropic.Anthropic) -> str:
    """Says hello and returns the answer's text."""
    message = client.messages.create(model="m", max_tokens=10, messages=[{"role": "user", "content": "Hi"}])
    assert message.content[0].type == "text"
    return message.content[0].text


def read(client: anthropic.Anthropic) -> str:
    """The same as a stream."""
    with client.messages.stream(
        model="m", max_tokens=10, messages=[{"role": "user", "content": "Hi"}]
    ) as stream:
        return stream.get_final_text()


@pytest.fixture
def retrying(claude: anthropic.Anthropic) -> anthropic.Anthropic:
    """The SDK as it is out of the box: two retries."""
    return claude.with_options(max_retries=2)


@pytest.mark.parametrize("how", [hi, read])
@pytest.mark.parametrize(
    ("status", "exception", "kind"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (401, anthropic.AuthenticationError, "authentication_error"),
        (403, anthropic.PermissionDeniedError, "permission_error"),
        (404, anthropic.NotFoundError, "not_found_error"),
        (422, anthropic.UnprocessableEntityError, "invalid_request_error"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (503, anthropic.InternalServerError, "overloaded_error"),
        (529, anthropic.InternalServerError, "overloaded_error"),
    ],
)
def test_each_status_has_its_exception(
    engine: ScriptedEngine,
    claude: anthropic.Anthropic,
    how: Ask,
    *,
    status: int,
    exception: type[anthropic.APIStatusError],
    kind: str,
) -> None:
    engine.answer = refuses(status, "the engine's own words")
    with pytest.raises(exception) as caught:
        how(claude)
    error = caught.value
    assert (error.status_code, error.type) == (status, kind)
    assert error.api_message == "the engine's own words"
    assert error.request_id is not None
    assert error.request_id.startswith("req_")
    body = error.body
    assert isinstance(body, dict)
    assert body["request_id"] == error.request_id


def test_a_page_instead_of_an_answer(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    page = b"<html><body>502 Bad Gateway</body></html>"
    engine.answer = lambda peer, _: peer.send(respond(502, page, content_type="text/html"))
    with pytest.raises(anthropic.InternalServerError) as caught:
        hi(claude)
    assert (caught.value.status_code, caught.value.type) == (502, "api_error")
    assert "HTML" in (caught.value.api_message or "")


def test_context_overflow_in_the_words_that_clients_know(
    engine: ScriptedEngine, claude: anthropic.Anthropic
) -> None:
    engine.answer = replays("err_context_length")
    with pytest.raises(anthropic.BadRequestError) as caught:
        hi(claude)
    message = caught.value.api_message or ""
    assert message.startswith(
        ("prompt is too long: ", "input length and `max_tokens` exceed context limit: ")
    )


def test_a_wrong_request_is_told_with_its_place(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    wrong: Any = {"role": "user", "content": [{"type": "text"}]}
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(model="m", max_tokens=10, messages=[wrong])
    assert "messages.0.content.0.text" in (caught.value.api_message or "")
    assert engine.requests == []


def test_a_base_url_that_ends_too_late(sidecar: Sidecar, claude: anthropic.Anthropic) -> None:
    doubled = claude.with_options(base_url=f"{base_url(sidecar)}/v1")
    with pytest.raises(anthropic.NotFoundError) as caught:
        hi(doubled)
    assert caught.value.type == "not_found_error"
    assert "did you mean /v1/messages?" in (caught.value.api_message or "")


def test_a_failure_in_mid_stream(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = replays("midstream_engine_dead_chat_stream")
    with pytest.raises(anthropic.APIStatusError) as caught:
        read(claude)
    assert caught.value.type == "api_error"
    assert caught.value.request_id is not None


def test_a_stream_that_breaks_off(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    """What came is there; the end is an error, and never a made-up stop."""
    engine.answer = breaks_off("Once upon")
    heard: list[str] = []
    with (
        claude.messages.stream(
            model="m", max_tokens=10, messages=[{"role": "user", "content": "Hi"}]
        ) as stream,
        pytest.raises(anthropic.APIStatusError) as caught,
    ):
        heard.extend(stream.text_stream)
    assert heard == ["Once upon"]
    assert caught.value.type == "api_error"
    assert stream.current_message_snapshot.stop_reason is None


def test_a_stream_that_ends_without_an_end(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = streams([{"content": "Once upon"}], finish=None)
    with pytest.raises(anthropic.APIStatusError):
        read(claude)


def test_a_stream_that_was_asked_for_and_is_refused(
    engine: ScriptedEngine, claude: anthropic.Anthropic
) -> None:
    """Its status is real, as long as nothing was sent: SDKs retry by status only."""
    engine.answer = hangs_up
    with pytest.raises(anthropic.InternalServerError) as caught:
        read(claude)
    assert caught.value.status_code == 502


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("how", [hi, read])
def test_retry_after_is_obeyed(
    engine: ScriptedEngine, retrying: anthropic.Anthropic, how: Ask, status: int
) -> None:
    engine.answer = in_turn(refuses(status, "busy", headers=[("retry-after", "1")]), says("hello"))
    began = time.monotonic()
    assert how(retrying).strip() == "hello"
    took = time.monotonic() - began
    assert 1.0 <= took < 3.0
    assert len(engine.requests) == 2
    first, second = engine.requests
    assert first.body == second.body  # a retry finds its prefix in the cache


def test_retries_end(engine: ScriptedEngine, retrying: anthropic.Anthropic) -> None:
    engine.answer = refuses(503, "busy", headers=[("retry-after", "0.01")])
    with pytest.raises(anthropic.InternalServerError) as caught:
        hi(retrying)
    assert caught.value.response.headers["retry-after"] == "0.01"
    assert len(engine.requests) == 3  # the SDK's own, and not one more


@pytest.mark.parametrize("status", [400, 401, 404])
def test_what_a_retry_cannot_help_is_not_retried(
    engine: ScriptedEngine, retrying: anthropic.Anthropic, status: int
) -> None:
    engine.answer = refuses(status, "no")
    with pytest.raises(anthropic.APIStatusError):
        hi(retrying)
    assert len(engine.requests) == 1


def test_should_retry_is_passed_on(engine: ScriptedEngine, retrying: anthropic.Anthropic) -> None:
    engine.answer = refuses(500, "never again", headers=[("x-should-retry", "false")])
    with pytest.raises(anthropic.InternalServerError):
        hi(retrying)
    assert len(engine.requests) == 1


def test_retry_after_ms_is_passed_on(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = refuses(429, "busy", headers=[("retry-after-ms", "250")])
    with pytest.raises(anthropic.RateLimitError) as caught:
        hi(claude)
    assert caught.value.response.headers.get("retry-after-ms") == "250"


@pytest.mark.parametrize("how", [hi, read])
def test_the_clients_time_limit(engine: ScriptedEngine, claude: anthropic.Anthropic, how: Ask) -> None:
    """The SDK gives up, and with it the engine's work ends."""
    engine.answer = is_silent
    with pytest.raises(anthropic.APITimeoutError):
        how(claude.with_options(timeout=0.3))
    engine.wait_for(1)
    assert engine.peers[engine.requests[0].connection].closed.wait(2)


def test_a_client_that_leaves_in_mid_stream(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    engine.answer = begins("Once")
    with claude.messages.stream(
        model="m", max_tokens=10, messages=[{"role": "user", "content": "Hi"}]
    ) as stream:
        assert next(iter(stream.text_stream)) == "Once"
        stream.close()
        left = time.monotonic()
    peer = engine.peers[engine.requests[0].connection]
    assert peer.closed.wait(2)
    assert peer.closed_at - left < 0.5


def test_keys_of_the_sidecar(engine: ScriptedEngine, locked: Sidecar) -> None:
    engine.answer = says("hello")
    url = base_url(locked)
    with anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0, timeout=SECONDS) as client:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            hi(client)
        assert caught.value.request_id is not None
        assert hi(client.with_options(api_key="right")) == "hello"
    with anthropic.Anthropic(base_url=url, auth_token="right", max_retries=0, timeout=SECONDS) as client:
        assert hi(client) == "hello"
    assert [request.header("authorization") for request in engine.requests] == [None, None]


@pytest.fixture
def locked(engine: ScriptedEngine, tmp_path: Path) -> Iterator[Sidecar]:
    """A sidecar that asks for a key."""
    with Sidecar(engine.url, tmp_path / "sidecar.log", ENGINE="vllm", API_KEYS="right") as sidecar:
        yield sidecar


def test_no_engine(claude: anthropic.Anthropic, tmp_path: Path) -> None:
    with (
        Sidecar(f"http://127.0.0.1:{free_port()}", tmp_path / "sidecar.log") as sidecar,
        pytest.raises(anthropic.InternalServerError) as caught,
    ):
        hi(claude.with_options(base_url=base_url(sidecar)))
    assert caught.value.status_code == 502
    assert 0 < float(caught.value.response.headers["retry-after"]) <= 50


def test_an_engine_that_is_slow_to_begin(engine: ScriptedEngine, claude: anthropic.Anthropic) -> None:
    def slowly(peer: Peer, request: Received) -> None:
        time.sleep(0.5)
        says("late")(peer, request)

    engine.answer = slowly
    assert read(claude).strip() == "late"
