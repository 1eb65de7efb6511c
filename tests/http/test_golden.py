"""The golden files of tests/fixtures through a real sidecar; tests/fixtures/README.md tells their form.

The Rust tests run the same files on the core alone. Here they also pass the network half: framing, cuts, heads and
statuses.
"""

import json
import random
import re
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from .conftest import StartSidecar
from .engine import (
    END,
    Answer,
    Peer,
    Received,
    ScriptedEngine,
    answers,
    chunked,
    completion,
    models,
    respond,
    stream_head,
)
from .sidecar import Response, Sidecar

FIXTURES = Path(__file__).parent.parent / "fixtures"
PATHS = {
    "messages": "/v1/messages",
    "count_tokens": "/v1/messages/count_tokens",
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "models": "/v1/models",
    "other": "/v1/embeddings",
}
Json = dict[str, Any]


def golden(folder: str, elsewhere: Collection[str] = ()) -> list[Any]:
    paths = sorted((FIXTURES / folder).glob("*.json"))
    return [
        pytest.param(path, id=path.stem, marks=pytest.mark.case(*read(path).get("case", [])))
        for path in paths
        if path.stem not in elsewhere
    ]


def read(path: Path) -> Json:
    case: Json = json.loads(path.read_text())
    return case


def bytes_of(body: Any) -> bytes:
    text = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


# ---- requests


# The upstream is Anthropic only by its host name, and here it is a loopback address.
ELSEWHERE = {"anthropic-upstream"}


@pytest.mark.parametrize("path", golden("requests", ELSEWHERE))
def test_a_request(
    path: Path, engine: ScriptedEngine, sidecar_with: StartSidecar, start_sidecar: StartSidecar
) -> None:
    case = read(path)
    profile = case.get("profile", {})
    settings = settings_of(profile)
    if not {"models", "stream_options", "refused_effort"} & set(profile):
        run_request(case, sidecar_with(**settings), engine)
        return
    with ScriptedEngine() as taught:  # what it tells of itself is not for other sidecars
        if "models" in profile:
            taught.probes = {"/v1/models": models(*profile["models"])}
        sidecar = start_sidecar(taught.url, **settings)
        sidecar.wait_until_ready()
        if profile.get("stream_options") is False:
            taught.answer = answers(400, {"error": {"message": "unknown field: stream_options"}})
            sidecar.post(PATHS["chat"], {"model": "m", "messages": [], "stream": True})
        if effort := profile.get("refused_effort"):
            taught.answer = answers(400, {"error": {"message": f"Unexpected reasoning effort {effort}."}})
            asked = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
            sidecar.post(PATHS["messages"], {**asked, "output_config": {"effort": effort}})
        run_request(case, sidecar, taught)


def run_request(case: Json, sidecar: Sidecar, engine: ScriptedEngine) -> None:
    own_path = PATHS[case.get("route", "messages")]
    for request in [case["request"], *case.get("also", [])]:
        engine.all.clear()
        engine.answer = any_answer
        body = bytes_of(request)
        answer = sidecar.post(own_path, body)
        if "fault" in case:
            told = {"status": answer.status, "message": answer.json()["error"]["message"]}
            assert told == {name: case["fault"][name] for name in told}
            assert not engine.requests
            continue
        received = engine.wait_for(1)[0]
        assert received.body == (body if case["upstream"] == "=" else bytes_of(case["upstream"]))
        assert received.target == case.get("path", own_path)
        record = sidecar.record(answer)
        noted = {name: record[name] for name in ("rules", "unknown_shapes", "dropped")}
        wanted = {"rules": case.get("rules", []), "unknown_shapes": case.get("unknown", [])}
        assert noted == {**wanted, "dropped": case.get("dropped", [])}
        header = answer.headers.get("x-foreword", "")
        assert ("rules=" + ",".join(case.get("rules", [])) in header) or not case.get("rules")


def settings_of(profile: Json) -> dict[str, str]:
    """The part of a profile that is set."""
    settings = {"RULE_LATE_SYSTEM": "tool"}  # what the core does that was told nothing
    names = {"engine": "ENGINE", "messages": "MESSAGES", "late_system": "RULE_LATE_SYSTEM"}
    for name, value in profile.items():
        match name:
            case "engine" | "messages" | "late_system":
                settings[names[name]] = value
            case "billing_header":
                settings["RULE_BILLING_HEADER"] = "on" if value else "off"
            case "model_map":
                pairs = (
                    value if isinstance(value, str) else ",".join(f"{glob}={model}" for glob, model in value)
                )
                settings["MODEL_MAP"] = pairs
            case "models" | "stream_options" | "refused_effort":
                pass
            case _:
                raise AssertionError(f"no setting for {name}")
    return settings


def any_answer(peer: Peer, request: Received) -> None:
    if request.target == "/tokenize":
        peer.send(respond(200, {"count": 1}))
    elif request.target == PATHS["count_tokens"]:
        peer.send(respond(200, {"input_tokens": 1}))
    else:
        peer.send(respond(200, completion({"content": "ok"})))


# ---- answers


@pytest.mark.parametrize("path", golden("answers"))
def test_an_answer(path: Path, engine: ScriptedEngine, sidecar_with: StartSidecar) -> None:
    case = read(path)
    wanted, cut = case["client"], case["upstream"].get("cut")
    settings = {}
    if case["ask"].get("native"):
        settings["MESSAGES"] = "native"
    if case["ask"].get("raw_usage"):
        settings["USAGE"] = "raw"
    if aliases := case["ask"].get("aliases"):
        settings["MODEL_MAP"] = ",".join(f"{alias}={model}" for alias, model in aliases)
    if case["ask"].get("model_mapped"):
        settings["MODEL_MAP"] = "*=served"
    if cut == "timeout":
        settings["IDLE_SECONDS"] = "1"
    if wanted.get("pinged"):
        settings["PING_SECONDS"] = "0.3"
    sidecar = sidecar_with(**settings)
    pinged = threading.Event()
    engine.answer = scripted(case, pinged, random.Random(path.stem))
    answer = asked(sidecar, case["ask"], pinged if wanted.get("pinged") else None)
    check(answer, case, sidecar)
    assert len(engine.requests) == 1, "one question, one request"


def asked(sidecar: Sidecar, ask: Json, pinged: threading.Event | None) -> Response:
    """Asks; with ``pinged`` the engine goes on when the client has read a ping."""
    route, model = ask["route"], ask.get("model", "m")
    if route == "models":
        headers = {"anthropic-version": "2023-06-01"} if ask.get("anthropic") else {}
        return sidecar.request("GET", PATHS[route], headers=headers)
    body: Json = {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
    if ask.get("stream"):
        body["stream"] = True
        if route in ("chat", "completions") and not ask.get("usage_injected"):
            body["stream_options"] = {"include_usage": True}
    with sidecar.open("POST", PATHS[route], body) as stream:
        if pinged is not None:
            head = stream.read_until(b"event: ping")
            pinged.set()
            rest = stream.whole()
            return Response(rest.status, rest.headers, head + rest.body)
        return stream.whole()


def scripted(case: Json, pinged: threading.Event, draw: random.Random) -> Answer:
    upstream = case["upstream"]
    body = engine_bytes(upstream)
    status = upstream.get("status", 200)

    def answer(peer: Peer, _: Received) -> None:
        if status != 200 or not case["ask"].get("stream"):
            retry = [("retry-after", upstream["retry_after"])] if "retry_after" in upstream else []
            peer.send(respond(status, body, retry))
            return
        peer.send(stream_head())
        if case["client"].get("pinged"):
            assert pinged.wait(10)
        cuts = sorted(draw.sample(range(1, len(body)), min(len(body) - 1, 3))) if len(body) > 1 else []
        for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
            if begin < end:
                peer.send(chunked(body[begin:end]))
        match upstream.get("cut"):
            case None:
                peer.send(END)
            case "reset":
                # With FIN inside the chunked body: RST could overtake the bytes before it.
                peer.close()
            case "timeout":
                peer.watch()
                peer.closed.wait(10)

    return answer


def engine_bytes(upstream: Json) -> bytes:
    if "data" in upstream:
        lines = [
            data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            for data in upstream["data"]
        ]
        return "".join(f"data: {line}\n\n" for line in lines).encode()
    if "bytes_hex" in upstream:
        return bytes.fromhex(upstream["bytes_hex"])
    if "text" in upstream:
        return str(upstream["text"]).encode()
    return json.dumps(upstream["body"], separators=(",", ":"), ensure_ascii=False).encode()


def check(answer: Response, case: Json, sidecar: Sidecar) -> None:
    ask, upstream, wanted = case["ask"], case["upstream"], case["client"]
    fault = wanted.get("fault")
    told = "events" in wanted or "bytes" in wanted
    if wanted.get("passes"):
        assert (answer.status, answer.body) == (upstream["status"], engine_bytes(upstream))
    elif fault is not None and not told:
        assert answer.status == fault["status"]
        assert answer.headers.get("retry-after") == fault.get("retry_after")
        error = answer.json()["error"]
        if ask["route"] in ("messages", "count_tokens"):
            assert (answer.json()["type"], error["type"]) == ("error", fault["type"])
        says(error["message"], fault, upstream)
    else:
        assert answer.status == 200
        if "events" in wanted:
            check_events(answer, wanted["events"])
        if "bytes" in wanted:
            assert own_words(answer.body.decode(), upstream) == own_words(wanted["bytes"], upstream)
        if wanted.get("estimated"):
            assert answer.json()["input_tokens"] > 0
            assert "tokens=estimated" in answer.headers["x-foreword"]
        elif "body" in wanted:
            assert plain_ids(answer.json()) == wanted["body"]
        for piece in wanted.get("contains", []):
            assert piece in answer.body.decode()
    record = sidecar.record(answer)
    # A refusal is a fault of the record, also where the client gets the engine's own words or an estimate.
    assert (record["fault"] is not None) == (fault is not None or upstream.get("status", 200) != 200)
    check_summary(record, wanted.get("summary", {}))


def says(message: str, fault: Json, upstream: Json) -> None:
    if "cut" in upstream:
        return  # the transport's own words
    assert message == fault.get("message", message)
    assert fault.get("says", "") in message


def own_words(text: str, upstream: Json) -> str:
    """Without what the transport says of a cut, which is another thing here than in the core's tests."""
    return (
        re.sub(r"answer is broken: [^.]*\.", "answer is broken.", text)
        if upstream.get("cut") == "reset"
        else text
    )


def check_events(answer: Response, wanted: list[Json]) -> None:
    events: list[Json] = []
    for name, data in answer.events():
        assert name == data["type"]
        if not (
            name == "ping" and events and events[-1]["type"] == "ping"
        ):  # a slow machine pings more often
            events.append(plain_ids(data))
    assert len(events) == len(wanted), events
    for event, expected in zip(events, wanted, strict=True):
        assert matches(event, expected), (event, expected)


def check_summary(record: Json, wanted: Json) -> None:
    usage = record["usage"]
    names = ("prompt", "completion", "cached", "created", "reasoning")
    found = {name: usage[f"{name}_tokens"] for name in names}
    found |= {
        "finish": record["finish"],
        "events": record["events"],
        "unreadable": record["unreadable_events"],
    }
    assert {name: found[name] for name in wanted} == wanted


DRAWN: list[tuple[str, Callable[[re.Match[str]], str]]] = [
    (r"msg_[0-9A-Za-z]{24}", lambda _: "msg_NEW"),
    (r"toolu_01[0-9A-Za-z]{22}", lambda _: "toolu_NEW"),
    (r"toolu_x[0-9A-Za-z]{8}(_.*)", lambda found: f"toolu_xSALT{found[1]}"),
]


def plain_ids(value: Any) -> Any:
    """Puts names in the place of what is drawn at random."""
    if isinstance(value, dict):
        return {key: plain_ids(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_ids(item) for item in value]
    if isinstance(value, str):
        for pattern, name in DRAWN:
            if found := re.fullmatch(pattern, value):
                return name(found)
    return value


def matches(found: Any, wanted: Any) -> bool:
    """Equal; but `...` stands for any text."""
    if wanted == "..." and isinstance(found, str):
        return True
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(matches(found[key], wanted[key]) for key in wanted)
    return bool(found == wanted)
