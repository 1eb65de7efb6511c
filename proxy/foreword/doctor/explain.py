"""``foreword explain``: one exchange in a paragraph."""

import gzip
import http.client
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import orjson

from foreword.asking import why
from foreword.doctor import clickhouse
from foreword.doctor.errors import DoctorError
from foreword.doctor.story import story

_TIMEOUT_SECONDS = 10.0
_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".log")


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
    needle = request_id.encode()
    unread: list[str] = []
    for file in _files(location):
        for line in _lines(file, unread):
            if needle in line and (found := _record(line, request_id)):
                return found
    if unread:
        raise DoctorError(f"{request_id} is not in what could be read of {location}; {', '.join(unread[:3])}")
    return None


def _files(location: str) -> list[Path]:
    """The newest first: that is what one asks about."""
    path = Path(location)
    try:
        if path.is_file():
            return [path]
        if path.is_dir():
            return sorted((each for each in path.iterdir() if each.name.endswith(_ENDINGS)), reverse=True)
    except OSError as error:
        raise DoctorError(f"{location} cannot be read: {error.strerror}") from None
    raise DoctorError(f"{location}: no such directory or file")


def _lines(path: Path, unread: list[str]) -> Iterator[bytes]:
    """The lines of one file; one that cannot be read is noted in ``unread``."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (EOFError, FileNotFoundError):
        return  # cut off, or rotated away meanwhile
    except (OSError, zlib.error) as error:
        told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        unread.append(f"{path.name} cannot be read: {told}")


def _record(line: bytes, request_id: str) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and record.get("request_id") == request_id else None


def from_sidecar(request_id: str, url: str) -> dict[str, Any] | None:
    """What a running sidecar knows of one exchange, as far as its journal goes, in the form of a record."""
    base = url.rstrip("/")
    if not _is_http(base):
        raise DoctorError(f"{url}: give http://host:port of a running sidecar")
    listed = _get(f"{base}/admin/sessions")
    if isinstance(listed, dict):
        listed = listed.get("sessions")
    if not isinstance(listed, list):
        raise DoctorError(f"{url} answers, but not as a sidecar of Foreword does")
    for entry in _objects(listed):
        name = entry.get("session") or f"line-{entry.get('line')}"
        session = _get(f"{base}/admin/sessions/{quote(str(name))}")
        for line in _objects(session.get("lines") if isinstance(session, dict) else None):
            for turn, told in enumerate(_objects(line.get("turns")), 1):
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


def _is_http(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:  # brackets that hold no address
        return False


def _objects(value: object) -> Iterator[dict[str, Any]]:
    """Those of a list."""
    return (each for each in (value if isinstance(value, list) else ()) if isinstance(each, dict))


def _get(url: str) -> object:
    """The JSON that a control endpoint answers with, None where it has none; the admin key opens it where one is asked
    for.
    """
    key = os.environ.get("FOREWORD_ADMIN_KEY")
    request = Request(url, headers={"authorization": f"Bearer {key}"} if key else {})  # noqa: S310 - http(s), see above
    try:
        # A sidecar is near: no proxy of the environment stands in between.
        with build_opener(ProxyHandler({})).open(request, timeout=_TIMEOUT_SECONDS) as answer:
            body = answer.read()
    except HTTPError as error:
        error.close()
        if error.code == 404:
            return None
        hint = ": set FOREWORD_ADMIN_KEY to the sidecar's" if error.code in (401, 403) else ""
        raise DoctorError(f"{url} answers {error.code}{hint}") from None
    except (URLError, OSError, http.client.HTTPException) as error:
        told = f"{url} cannot be read: {why(error)}; give --url of a sidecar, or --ledger"
        raise DoctorError(told) from None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
