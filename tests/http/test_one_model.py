"""GET /v1/models/{id}: one model of the engine's list, in either dialect, by any name that a request may use."""

import pytest

from .conftest import StartSidecar
from .engine import ScriptedEngine, answers, models
from .sidecar import Response, Sidecar

ANTHROPIC = {"anthropic-version": "2023-06-01"}


def asked(sidecar: Sidecar, name: str, anthropic: bool = False) -> Response:
    return sidecar.request("GET", f"/v1/models/{name}", headers=ANTHROPIC if anthropic else {})


@pytest.mark.parametrize(("path", "name"), [("org/big", "org/big"), ("org%2Fbig?x=1", "org/big"), ("b", "b")])
def test_a_model_that_the_engine_serves(
    sidecar: Sidecar, engine: ScriptedEngine, path: str, name: str
) -> None:
    engine.answer = lambda peer, _: peer.send(models("a", "org/big", "b"))
    plain = asked(sidecar, path)
    assert plain.status == 200
    assert plain.json() == {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "vllm"}
    assert plain.headers["content-type"] == "application/json"
    told = asked(sidecar, path, anthropic=True)
    assert told.status == 200
    date = "2023-11-14T22:13:20Z"
    assert told.json() == {"type": "model", "id": name, "display_name": name, "created_at": date}
    record = sidecar.record(told)
    assert (record["route"], record["entry"], record["model"]) == ("models", "/v1/models/{id}", name)
    assert record["verdict"] is None


def test_a_model_that_there_is_not(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = lambda peer, _: peer.send(models("a", "b"))
    plain = asked(sidecar, "c")
    assert plain.status == 404
    assert "'c'" in plain.json()["error"]["message"].replace('"', "'")
    told = asked(sidecar, "c", anthropic=True)
    assert told.status == 404
    assert told.json()["type"] == "error"
    assert told.json()["error"]["type"] == "not_found_error"


def test_a_name_that_stands_for_another(
    start_sidecar: StartSidecar, engine: ScriptedEngine, sidecar_with: StartSidecar
) -> None:
    engine.answer = lambda peer, _: peer.send(models("small", "big"))
    sidecar = sidecar_with(MODEL_MAP="claude-*=big")
    assert asked(sidecar, "claude-x").json()["id"] == "claude-x"
    told = asked(sidecar, "claude-x", anthropic=True).json()
    assert (told["id"], told["display_name"]) == ("claude-x", "claude-x")
    assert asked(sidecar, "other").status == 404
    engine.probes = {"/v1/models": models("only")}
    engine.answer = lambda peer, _: peer.send(models("only"))
    alone = start_sidecar(engine.url)
    alone.wait_until_ready()
    assert asked(alone, "whatever").json()["id"] == "whatever"


def test_no_name_is_no_model(start_sidecar: StartSidecar, engine: ScriptedEngine) -> None:
    engine.probes = {"/v1/models": models("only")}
    engine.answer = lambda peer, _: peer.send(models("only"))
    alone = start_sidecar(engine.url)
    alone.wait_until_ready()
    assert asked(alone, "").status == asked(alone, "", anthropic=True).status == 404


def test_what_answers_head_is_not_read(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    head = models("a").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    engine.answer = lambda peer, _: peer.send(head)
    for headers in ({}, ANTHROPIC):
        answer = sidecar.request("HEAD", "/v1/models", headers=headers)
        assert (answer.status, answer.body) == (200, b"")


def test_the_engines_refusal_is_told_in_the_callers_dialect(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(401, {"error": {"message": "no", "type": "x", "code": 401}})
    assert (asked(sidecar, "a").status, asked(sidecar, "a").json()["error"]["message"]) == (401, "no")
    told = asked(sidecar, "a", anthropic=True)
    assert (told.status, told.json()["error"]["type"]) == (401, "authentication_error")
    engine.answer = answers(200, {"no": "list"})
    assert asked(sidecar, "a").status == asked(sidecar, "a", anthropic=True).status == 502


def test_other_methods_pass_as_they_are(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(200, {"deleted": True})
    answer = sidecar.request("DELETE", "/v1/models/a")
    assert answer.json() == {"deleted": True}
    assert sidecar.record(answer)["route"] == "other"
