"""``foreword explain``: one exchange in a paragraph."""

import gzip
import http.client
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import orjson

from foreword.doctor import clickhouse
from foreword.doctor.errors import DoctorError
from foreword.doctor.story import story

_TIMEOUT_SECONDS = 10.0


def run(request_id: str, ledger: str | None, url: str, *, machine: bool, show: Callable[[str], None]) -> int:
    """Tells one exchange. Returns the exit status: 0 told, 1 not found. Raises DoctorError."""
    record = from_ledger(request_id, ledger) if ledger else from_sidecar(request_id, url)
    if record is None:
        where = ledger or url
        hint = "" if ledger else "; it keeps only recent ones, give --ledger for older"
        text = f"{request_id} is not in {where}{hint}"
        show(orjson.dumps({"request_id": request_id, "found": False}).decode() if machine else text)
        return 1
    told = story(record)
    if machine:
        answer = {"request_id": request_id, "found": True, "text": told, "record": record}
        show(orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode())
    else:
        show(told)
    return 0


def from_ledger(request_id: str, location: str) -> dict[str, Any] | None:
    """The record of one exchange from a ledger's files or from ClickHouse; None if it is not there."""
    if clickhouse.is_url(location):
        line = clickhouse.record(clickhouse.Table.parse(location), request_id)
        return _record(line or b"", request_id)
    path = Path(location)
    if not path.exists():
        raise DoctorError(f"{location}: no such directory or file")
    # The newest first: that is what one asks about.
    files = [path] if path.is_file() else sorted(path.iterdir(), reverse=True)
    needle = request_id.encode()
    for file in files:
        for line in _lines(file):
            if needle in line and (found := _record(line, request_id)):
                return found
    return None


def _lines(path: Path) -> Iterator[bytes]:
    try:
        if path.name.endswith(".jsonl.gz"):
            with gzip.open(path) as packed:
                yield from packed
        elif path.suffix in (".jsonl", ".json", ".log"):
            with path.open("rb") as plain:
                yield from plain
    except (OSError, EOFError):
        return  # rotated away meanwhile, or cut off


def _record(line: bytes, request_id: str) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and record.get("request_id") == request_id else None


def from_sidecar(request_id: str, url: str) -> dict[str, Any] | None:
    """What a running sidecar knows of one exchange, as far as its journal goes, in the form of a record."""
    base = url.rstrip("/")
    if urlsplit(base).scheme not in ("http", "https"):
        raise DoctorError(f"{url}: give http://host:port of a running sidecar")
    for entry in _get(f"{base}/admin/sessions"):
        name = entry.get("session") or f"line-{entry.get('line')}"
        session = next(_get(f"{base}/admin/sessions/{quote(str(name))}"), {})
        for line in session.get("lines") or ():
            for turn, told in enumerate(line.get("turns") or (), 1):
                if told.get("request_id") == request_id:
                    return _from_turn(told, entry, line, turn)
    return None


def _from_turn(
    told: dict[str, Any], entry: dict[str, Any], line: dict[str, Any], turn: int
) -> dict[str, Any]:
    names = ("expected", "shared", "lost", "exact", "path", "class", "kind")
    return {
        "request_id": told["request_id"],
        "time": told.get("time"),
        "client": line.get("client") or entry.get("client"),
        "model": line.get("model") or entry.get("model"),
        "session": entry.get("session"),
        "line": line.get("line"),
        "turn": told.get("turn") or turn,
        "usage": {"prompt_tokens": told.get("prompt"), "cached_tokens": told.get("reused")},
        "verdict": {"name": told.get("verdict"), **{name: told.get(name) for name in names}},
    }


def _get(url: str) -> Iterator[dict[str, Any]]:
    """The objects that a control endpoint answers with; the admin key opens it where one is asked for."""
    key = os.environ.get("FOREWORD_ADMIN_KEY")
    request = Request(url, headers={"authorization": f"Bearer {key}"} if key else {})  # noqa: S310 - http(s), see above
    try:
        # A sidecar is near: no proxy of the environment stands in between.
        with build_opener(ProxyHandler({})).open(request, timeout=_TIMEOUT_SECONDS) as answer:
            value = orjson.loads(answer.read())
    except HTTPError as error:
        error.close()
        if error.code == 404:
            return
        hint = ": set FOREWORD_ADMIN_KEY to the sidecar's" if error.code in (401, 403) else ""
        raise DoctorError(f"{url} answers {error.code}{hint}") from None
    except (URLError, OSError, http.client.HTTPException, orjson.JSONDecodeError) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise DoctorError(f"{url} cannot be read: {why}; give --url of a sidecar, or --ledger") from None
    if isinstance(value, dict) and isinstance(value.get("sessions"), list):
        value = value["sessions"]
    yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict))
