"""Recorded requests of real clients, replayed in front of a recording engine.

The expectations are read from the clients' bodies by code of the tests' own; where a session's prompts extend one
another is written down from what was measured of the clients, not from what comes out.
"""

import gzip
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .conftest import StartSidecar
from .engine import Peer, Received, ScriptedEngine, completion, models, respond
from .sidecar import Sidecar

FOLDER = Path(__file__).parent.parent / "fixtures" / "corpus"
HEADER = "x-anthropic-billing-header"

LINES: dict[str, list[list[int]]] = {
    # Claude Code: each request of a session extends the one before, in both versions, also over --continue, with
    # cache_control that moves and `content` that changes between a string and a list. A sub-agent is a line of its
    # own, and after a compaction the messages are others; the request for the compaction still extends.
    "claude-code-2.1.332_print_continue_custom-model": [[0, 1, 2, 3, 4, 5, 6]],
    "claude-code-2.1.332_haiku_total-tokens": [[0, 1, 2, 3, 4, 5, 6]],
    "claude-code-2.1.332_subagent": [[0, 1, 4, 6], [2, 3, 5]],
    "claude-code-2.1.332_toolsearch": [[0, 1, 2, 3, 4]],
    "claude-code-2.1.332_tui_compact": [[0, 1, 2, 3, 4], [5]],
    "claude-code-2.1.332_rich_live": [list(range(15))],
    "claude-code-2.1.332_context_count-tokens": [[1, 2]],
    "claude-code-2.1.116_fresh3": [[1, 2, 3], [5, 6], [8, 9]],
    "claude-code-2.1.116_rich_live": [[*range(1, 15), 16]],
    "claude-code-2.1.175_cch": [[1, 2, 4]],
    # opencode: exact, beside a title request before the first turn.
    "opencode-1.18.33_chat": [[0], [1, 2, 3, 4, 5, 6, 7]],
    "opencode-1.18.33_anthropic": [[0], [1, 2, 3, 4, 5, 6, 7]],
    # codex: exact.
    "codex-0.171.0_responses": [[0, 1, 2, 3, 4, 5, 6]],
    # qwen-code: exact in one process; --continue takes the date reminder out of the earlier user message.
    "qwen-code-0.24.4_chat": [[0, 1, 2], [3, 4], [5, 6]],
    "qwen-code-0.24.4_anthropic": [[0, 1, 2], [3, 4], [5, 6]],
    # reasonix: append-only.
    "reasonix-1.38.11_chat": [[0, 1, 2, 3, 4, 5, 6]],
}
BREAKS = {
    # The first request of the line, and the earlier one that it does not extend.
    "claude-code-2.1.332_tui_compact": [(5, 4)],
    "qwen-code-0.24.4_chat": [(3, 2), (5, 4)],
    "qwen-code-0.24.4_anthropic": [(3, 2), (5, 4)],
}


class Recorded(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def recorded(name: str) -> list[Recorded]:
    own = {"host", "connection", "content-length", "transfer-encoding"}
    requests = []
    for entry in json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes())):
        body = entry.get("body")
        data = b"" if body is None else json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        headers = {key: value for key, value in entry["headers"] if key.lower() not in own}
        requests.append(Recorded(entry["method"], entry["path"], headers, data))
    return requests


def answer(peer: Peer, request: Received) -> None:
    path = request.target.partition("?")[0]
    if path == "/v1/models":
        peer.send(models("deepseek-v4-lab", "other"))
    elif path == "/tokenize":
        peer.send(respond(200, {"count": 7, "max_model_len": 65536, "tokens": []}))
    elif path == "/v1/messages/count_tokens":
        peer.send(respond(200, {"input_tokens": 7}))
    elif path == "/v1/messages":
        message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m"}
        peer.send(respond(200, {**message, "usage": {"input_tokens": 1, "output_tokens": 1}}))
    else:
        peer.send(respond(200, completion({"content": "ok"})))


class Replayed(NamedTuple):
    client: Recorded
    upstream: Received | None
    """None where the sidecar answers itself."""


def replay(sidecar: Sidecar, engine: ScriptedEngine, name: str) -> list[Replayed]:
    engine.answer = answer
    pairs = []
    for request in recorded(name):
        before = len(engine.requests)
        answered = sidecar.request(request.method, request.path, request.body or None, request.headers)
        assert answered.status == 200, answered.body
        arrived = engine.requests[before:]
        assert len(arrived) <= 1
        pairs.append(Replayed(request, arrived[0] if arrived else None))
    return pairs


# ---- an independent reading of bodies

Piece = tuple[str, str]
"""Who says it (system, user, result, thinking, assistant, call) and the text."""


def texts(content: Any) -> Iterator[str]:
    """The texts of a string, a list of blocks, or one block."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for block in content:
            yield from texts(block)
    elif isinstance(content, dict):
        if block_type(content) == "tool_reference":
            yield content["tool_name"]
        else:
            yield from texts(content.get("text"))


def block_type(block: Any) -> str:
    return block.get("type", "") if isinstance(block, dict) else ""


def call(name: str, arguments: str | dict[str, Any]) -> str:
    """A call's meaning: its name, and its input without the spelling."""
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    return f"{name} {json.dumps(value, sort_keys=True)}"


def of_messages(body: dict[str, Any]) -> Iterator[Piece]:
    """What an Anthropic request says, in order."""
    for text in texts(body.get("system")):
        if not text.startswith(HEADER):
            yield "system", text
    for message in body["messages"]:
        content = message["content"]
        listed: list[Any] = [content] if isinstance(content, str) else content
        for block in listed:
            match block_type(block):
                case "tool_result":
                    yield from (("result", text) for text in texts(block.get("content")))
                case "thinking":
                    yield "thinking", block["thinking"]
                case "tool_use":
                    yield "call", call(block["name"], block["input"])
                case _:
                    yield from ((message["role"], text) for text in texts(block))


def of_chat(body: dict[str, Any]) -> Iterator[Piece]:
    """What a chat request says, in order."""
    for message in body["messages"]:
        if reasoning := message.get("reasoning") or message.get("reasoning_content"):
            yield "thinking", reasoning
        role = "result" if message["role"] == "tool" else message["role"]
        yield from ((role, text) for text in texts(message.get("content")))
        for made in message.get("tool_calls") or ():
            yield "call", call(made["function"]["name"], made["function"]["arguments"])


GLUE = re.compile(r"(\s|</?system-reminder>|Error: |\(no output\)|Tool | is available\.)*")
"""What the sidecar may put between texts: white space, rule 2's wrapper, the mark of a failed tool, and the words
around a reference to a tool."""


def same_but_for_glue(client: list[Piece], upstream: list[Piece]) -> None:
    """Every piece of the client's stands upstream, in order, and nothing else does."""
    flat = "\n".join(text for _, text in upstream)
    at = 0
    for who, text in client:
        wanted = text.strip()
        place = flat.find(wanted, at)
        assert place >= 0, f"lost from {who}: {wanted[:200]!r}"
        assert GLUE.fullmatch(flat, at, place), (
            f"between {who} and what came before: {flat[at:place][:200]!r}"
        )
        at = place + len(wanted)
    assert GLUE.fullmatch(flat, at), f"added: {flat[at:][:200]!r}"


def offered(body: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Name, description and schema of the tools that an Anthropic request offers: loaded ones among the deferred."""
    named = set(re.findall(r'"type": "tool_reference", "tool_name": "([^"]+)"', json.dumps(body["messages"])))
    return {
        tool["name"]: (tool.get("description"), tool.get("input_schema"))
        for tool in body.get("tools") or ()
        if not tool.get("defer_loading") or tool["name"] in named
    }


def functions(body: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    listed = [tool["function"] for tool in body.get("tools") or ()]
    return {tool["name"]: (tool.get("description"), tool.get("parameters")) for tool in listed}


def members(body: bytes) -> dict[str, str]:
    """The top-level members of a JSON object, each as it is written."""
    text = body.decode()
    decoder = json.JSONDecoder()
    found: dict[str, str] = {}
    at = text.index("{") + 1
    while (at := skip(text, at)) < len(text) and text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        begin = skip(text, skip(text, at) + 1)  # behind the colon
        _, at = decoder.raw_decode(text, begin)
        found[name] = text[begin:at]
        at = skip(text, at)
        at += text[at] == ","
    return found


def skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def extends(later: str, earlier: str) -> bool:
    """Whether the list ``later``, as written, goes on where ``earlier`` ends."""
    opened = earlier.rstrip().removesuffix("]").rstrip()
    return later.startswith(opened) and later[len(opened) :].lstrip()[:1] in (",", "]")


# ---- the tests


def test_the_table_knows_every_file() -> None:
    listed = {
        entry["file"].removesuffix(".json.gz") for entry in json.loads((FOLDER / "index.json").read_text())
    }
    assert set(LINES) == listed


@pytest.mark.parametrize("name", LINES)
def test_replay(sidecar: Sidecar, engine: ScriptedEngine, name: str) -> None:
    pairs = replay(sidecar, engine, name)
    for client, upstream in pairs:
        if client.path == "/":
            assert upstream is None
            continue
        assert upstream is not None
        assert HEADER.encode() not in upstream.body
        path = client.path.partition("?")[0]
        if path in ("/v1/messages", "/v1/messages/count_tokens"):
            sent, arrived = json.loads(client.body), upstream.json()
            same_but_for_glue(list(of_messages(sent)), list(of_chat(arrived)))
            assert functions(arrived) == offered(sent)
        elif path == "/v1/chat/completions":
            sent, arrived = json.loads(client.body), upstream.json()
            same_but_for_glue(list(of_chat(sent)), list(of_chat(arrived)))
            others = {key: text for key, text in members(client.body).items() if key != "messages"}
            assert {key: text for key, text in members(upstream.body).items() if key != "messages"} == others
        else:
            assert upstream.body == client.body

    prompt = "input" if "responses" in name else "messages"
    bodies = {index: members(up.body) for index, (_, up) in enumerate(pairs) if up is not None and up.body}
    for line in LINES[name]:
        for earlier, later in pairwise(line):
            assert extends(bodies[later][prompt], bodies[earlier][prompt]), (
                f"{later} does not extend {earlier}"
            )
            tools = [bodies[index].get("tools", "[]") for index in (later, earlier)]
            assert extends(*tools), f"the tools of {later} are not those of {earlier} and further ones"
    for later, earlier in BREAKS.get(name, ()):
        assert not extends(bodies[later][prompt], bodies[earlier][prompt]), "the table is wrong"


def unmarked(value: Any) -> Any:
    """Without cache markers."""
    if isinstance(value, list):
        return [unmarked(item) for item in value]
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    return value


def blocks(body: dict[str, Any]) -> list[tuple[str, Any]]:
    """The conversation block by block (a last message may get further blocks), strings as text blocks."""
    flat: list[tuple[str, Any]] = []
    for message in body["messages"]:
        content = message["content"]
        listed = [{"type": "text", "text": content}] if isinstance(content, str) else content
        flat += [(message["role"], unmarked(block)) for block in listed]
    return flat


@pytest.mark.parametrize("name", [name for name in LINES if "claude" in name or "anthropic" in name])
def test_native_replay(sidecar_with: StartSidecar, engine: ScriptedEngine, name: str) -> None:
    pairs = replay(sidecar_with(MESSAGES="native"), engine, name)
    bodies: dict[int, dict[str, Any]] = {}
    for index, (client, upstream) in enumerate(pairs):
        if upstream is None or not upstream.body:
            continue
        assert HEADER.encode() not in upstream.body
        sent, arrived = json.loads(client.body), upstream.json()
        same_but_for_glue(list(of_messages(sent)), list(of_messages(arrived)))
        rest = {"messages", "system"}
        assert {k: v for k, v in arrived.items() if k not in rest} == {
            k: v for k, v in sent.items() if k not in rest
        }
        if not any(message["role"] == "system" for message in sent["messages"]):
            assert members(upstream.body)["messages"] == members(client.body)["messages"]
        bodies[index] = arrived
    for line in LINES[name]:
        for earlier, later in pairwise(line):
            before = blocks(bodies[earlier])
            assert blocks(bodies[later])[: len(before)] == before, f"{later} does not extend {earlier}"
            assert unmarked(bodies[later].get("system")) == unmarked(bodies[earlier].get("system"))
