"""The recorded sessions of real clients (tests/fixtures/corpus), cut to what an engine on a CPU reads in seconds."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.real.engine.server import MODEL

Json = dict[str, Any]

CORPUS = Path(__file__).parents[2] / "fixtures" / "corpus"

ROUTES = ("/v1/messages", "/v1/chat/completions", "/v1/responses")

HEAD, END = 600, 300
"""Characters that are left of a long text of the head: what changes in it may stand at either end."""

HOP = {"host", "content-length", "connection", "accept-encoding", "transfer-encoding"}
"""Headers of the recording's own connection."""


@dataclass(frozen=True)
class Request:
    """One request as its client sent it."""

    path: str
    headers: dict[str, str]
    body: Json

    @property
    def route(self) -> str:
        return self.path.partition("?")[0]

    @property
    def said(self) -> list[Json]:
        """The conversation, whatever the dialect calls it."""
        items: list[Json] = self.body["input"] if self.route == "/v1/responses" else self.body["messages"]
        return items

    def edited(self) -> Request:
        """A copy of its own, to plant something in."""
        return replace(self, body=copy.deepcopy(self.body))


def session(file: str, requests: int | None = None) -> list[Request]:
    """The first ``requests`` of a recording, each to be answered with one token."""
    entries = json.loads(gzip.decompress((CORPUS / f"{file}.json.gz").read_bytes()))
    return list(_requests(entries))[:requests]


def _requests(entries: list[Json]) -> Iterator[Request]:
    for entry in entries:
        if entry["path"].partition("?")[0] in ROUTES:
            headers = {name: value for name, value in entry["headers"] if name.lower() not in HOP}
            yield _cut(Request(entry["path"], headers, entry["body"]))


def _cut(request: Request) -> Request:
    body = request.edited().body
    limit = "max_output_tokens" if request.route == "/v1/responses" else "max_tokens"
    body |= {limit: 1, "model": MODEL}
    for tool in body.get("tools") or []:
        described = tool.get("function", tool)
        if "description" in described:
            described["description"] = _shorter(described["description"])
    for part in body.get("system") or []:
        part["text"] = _shorter(part["text"])
    for message in body.get("messages") or body["input"]:
        if message.get("role") in ("system", "developer"):
            _shorten(message)
        # What the recorded engine sealed no other engine opens: vLLM refuses it.
        message.pop("encrypted_content", None)
    return replace(request, body=body)


def _shorten(message: Json) -> None:
    if isinstance(message["content"], str):
        message["content"] = _shorter(message["content"])
        return
    for part in message["content"]:
        part["text"] = _shorter(part["text"])


def _shorter(text: str) -> str:
    return text if len(text) <= HEAD + END else text[:HEAD] + text[-END:]
