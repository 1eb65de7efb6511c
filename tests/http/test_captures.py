"""Raw answers of a real vLLM (tests/fixtures/captures) through the sidecar: each comes out as it went in."""

import json
from pathlib import Path

import pytest

from .crowd import body_of
from .engine import ScriptedEngine
from .sidecar import Sidecar

FOLDER = Path(__file__).parent.parent / "fixtures" / "captures" / "vllm-0.32.0"
ROUTES = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses"}


def captures() -> list[str]:
    """Those of the routes that pass through: chats of all kinds, completions, responses, and refusals."""
    kinds = ("chat_", "say_chat_", "tools_", "err_", "completions", "responses", "midstream_engine_dead_chat")
    names = sorted(path.name.removesuffix(".resp.txt") for path in FOLDER.glob("*.resp.txt"))
    return [name for name in names if name.startswith(kinds)]


@pytest.mark.parametrize("name", captures())
def test_a_captured_answer_passes(sidecar: Sidecar, engine: ScriptedEngine, name: str) -> None:
    raw = (FOLDER / f"{name}.resp.txt").read_bytes()
    head, _, body = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        body = body_of(raw)
    engine.answer = lambda peer, _: peer.send(raw)
    request = {"model": "tiny", "max_tokens": 5}
    if name.endswith("stream"):
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    route = ROUTES.get(name.partition("_")[0], ROUTES["chat"])
    answer = sidecar.post(route, json.dumps(request).encode())
    assert answer.status == int(head.split()[1])
    assert answer.body == body
    for line in head.decode().split("\r\n")[1:]:
        key, _, value = line.partition(": ")
        if key.lower() not in ("date", "server", "transfer-encoding", "connection"):
            assert answer.headers[key.lower()] == value
