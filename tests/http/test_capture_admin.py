"""Captures that a running sidecar is asked for."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from .conftest import StartSidecar
from .engine import ScriptedEngine, says
from .sidecar import CHAT, MESSAGES, Response, Sidecar, ask

PATH = "/admin/capture"


def wait_for(what: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def prompt(sidecar: Sidecar, path: str, text: str) -> str:
    """Sends one prompt; its request id."""
    answer = sidecar.post(path, ask(stream=False, content=text))
    assert answer.status == 200, answer.body
    return answer.headers["request-id"]


def written(folder: Path) -> list[dict[str, object]]:
    """The captures there; one that is being written counts as not there yet."""
    texts = [path.read_text() for path in sorted(folder.glob("*.json"))]
    return [json.loads(text) for text in texts if text.endswith("\n")]


def test_the_next_prompts_are_captured_and_go_again(
    start_sidecar: StartSidecar, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.answer = says("hi")
    directory = tmp_path / "captures"
    sidecar = start_sidecar(engine.url, CAPTURE=str(directory), CAPTURE_REQUESTS="0")
    prompt(sidecar, CHAT, "before")
    began = time.time()
    answer = sidecar.post(PATH, {"requests": 2, "seconds": 3})
    assert answer.status == 200, answer.body
    assert answer.headers["cache-control"] == "no-store"
    told = answer.json()
    assert (told["requests"], told["seconds"]) == (2, 3.0)
    assert abs(told["until"] - began - 3) < 2
    assert "with their text" in told["warning"]
    folder = Path(told["directory"])
    assert folder.parent == directory
    assert folder.stat().st_mode & 0o777 == 0o700
    ids = [prompt(sidecar, path, f"secret {path}") for path in (CHAT, MESSAGES)]
    prompt(sidecar, CHAT, "after")
    wait_for(lambda: len(written(folder)) == 2)
    kept = written(folder)
    assert [each["request_id"] for each in kept] == ids
    assert [json.loads(str(each["body"]))["messages"][0]["content"] for each in kept] == [
        f"secret {CHAT}",
        f"secret {MESSAGES}",
    ]
    wait_for(lambda: not folder.exists())
    wait_for(lambda: "capture ended; 2 prompts" in sidecar.log.read_text())
    log = sidecar.log.read_text()
    assert "capturing the next 2 prompts WITH THEIR TEXT" in log
    assert "secret" not in log


def test_what_cannot_be_is_refused_and_captures_nothing(
    start_sidecar: StartSidecar, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.answer = says("hi")
    off = start_sidecar(engine.url)
    directory = tmp_path / "captures"
    on = start_sidecar(engine.url, CAPTURE=str(directory), CAPTURE_REQUESTS="0")

    def refused(answer: Response, status: int) -> str:
        assert answer.status == status, answer.body
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        return str(error["message"])

    assert "FOREWORD_CAPTURE" in refused(off.post(PATH, {}), 409)
    message = refused(on.post(PATH, {"requests": 0, "directory": str(tmp_path)}), 400)
    assert "requests must be" in message
    assert "'directory'" in message
    refused(on.post(PATH, b"x"), 400)
    refused(on.post(PATH, b"{}", {"content-type": "text/plain"}), 415)
    refused(on.post(PATH, b" " * 100_000), 413)
    assert on.post(PATH, {}, {"x-forwarded-for": "10.0.0.1"}).status == 403
    assert on.request("GET", PATH).status == 405
    prompt(on, CHAT, "secret")
    assert not directory.exists() or not list(directory.iterdir())


def test_a_key_guards_it(start_sidecar: StartSidecar, engine: ScriptedEngine, tmp_path: Path) -> None:
    directory = str(tmp_path / "captures")
    sidecar = start_sidecar(
        engine.url, CAPTURE=directory, CAPTURE_REQUESTS="0", ADMIN_KEY="key", API_KEYS="c"
    )
    assert sidecar.post(PATH, {}).status == 401
    assert sidecar.post(PATH, {}, {"x-api-key": "c"}).status == 401
    assert sidecar.post(PATH, {}, {"authorization": "Bearer key"}).status == 200
