"""Exchanges from a table in ClickHouse (deploy/clickhouse/ledger.sql), read over its HTTP interface."""

import base64
import http.client
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from foreword.asking import why
from foreword.doctor.errors import DoctorError
from foreword.doctor.window import Window

_TIMEOUT_SECONDS = 300.0
_CHUNK = 1 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HTTP_PORT = 8123


def is_url(location: str) -> bool:
    """Whether a location names a ClickHouse server rather than files."""
    return location.startswith(("clickhouse://", "clickhouses://", "http://", "https://"))


@dataclass(frozen=True, slots=True)
class Table:
    """One table of one server."""

    tls: bool
    host: str
    port: int
    user: str | None
    password: str | None
    database: str
    table: str

    @property
    def shown(self) -> str:
        """The URL without credentials."""
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{self.host}:{self.port}/{self.database}?table={self.table}"

    @classmethod
    def parse(cls, url: str) -> "Table":
        """From ``clickhouse://[user:password@]host[:port]/[database][?table=name]``; ``http`` and ``https`` say the
        same, ``clickhouses`` is https. Raises DoctorError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise DoctorError(f"{url.partition('@')[2] or url}: {error}") from None
        if not parts.hostname:
            raise DoctorError("the ClickHouse URL names no host")
        tls = parts.scheme in ("https", "clickhouses")
        database = parts.path.strip("/") or "foreword"
        table = (parse_qs(parts.query).get("table") or ["exchanges"])[0]
        for name in (database, table):
            if not _NAME.fullmatch(name):
                raise DoctorError(f"{name!r} is no name of a ClickHouse database or table")
        default_port = 8443 if tls else _HTTP_PORT
        user = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password else None
        return cls(tls, parts.hostname, port or default_port, user, password, database, table)


def fetch(
    table: Table, columns: Sequence[str], window: Window, target: Path, progress: Callable[[str], None]
) -> None:
    """Writes the columns of all exchanges of a window to ``target``, one JSON object a line. Raises DoctorError."""
    shown = ", ".join(
        "toUnixTimestamp64Milli(e.time) / 1000 AS time" if name == "time" else f"e.`{name}`"
        for name in columns
    )
    # Qualified: an alias would hide the column of the same name.
    condition = window.sql("(toUnixTimestamp64Milli(e.time) / 1000)").replace("TRUE", "1")
    query = (
        f"SELECT {shown} FROM `{table.database}`.`{table.table}` AS e WHERE {condition} FORMAT JSONEachRow"
    )
    size = 0
    with _ask(table, query, {}) as answer, target.open("wb") as file:
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            size += len(chunk)
            progress(f"reading {size / 1e6:,.0f} MB from {table.host}")
    _refuse_broken(target)


def record(table: Table, request_id: str) -> bytes | None:
    """The whole record of one exchange, or None. Raises DoctorError."""
    query = (
        f"SELECT record FROM `{table.database}`.`{table.table}` WHERE request_id = {{id:String}} LIMIT 1"
        " FORMAT TSVRaw"
    )
    with _ask(table, query, {"param_id": request_id}) as answer:
        return answer.read().rstrip(b"\n") or None


@contextmanager
def _ask(table: Table, query: str, parameters: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
    connection = (
        http.client.HTTPSConnection(
            table.host, table.port, timeout=_TIMEOUT_SECONDS, context=ssl.create_default_context()
        )
        if table.tls
        else http.client.HTTPConnection(table.host, table.port, timeout=_TIMEOUT_SECONDS)
    )
    headers = {"content-type": "text/plain; charset=utf-8"}
    if table.user is not None:
        pair = f"{table.user}:{table.password or ''}".encode()
        headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    options = {
        "output_format_json_quote_64bit_integers": "0",
        "output_format_json_named_tuples_as_objects": "1",
        **parameters,
    }
    try:
        connection.request("POST", f"/?{urlencode(options)}", query.encode(), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            told = answer.read(2_000).decode("utf-8", "replace").strip().splitlines()
            raise DoctorError(f"{table.shown} answers {answer.status}: {told[0] if told else answer.reason}")
        yield answer
    except (OSError, http.client.HTTPException) as error:
        raise DoctorError(f"{table.shown} cannot be read: {why(error)}") from error
    finally:
        connection.close()


def _refuse_broken(target: Path) -> None:
    """ClickHouse may fail when it has begun to answer: its error is then the last line."""
    with target.open("rb") as file:
        file.seek(max(0, target.stat().st_size - 4096))
        last = file.read().rstrip().rsplit(b"\n", 1)[-1]
    if last and (not last.startswith(b"{") or last.startswith(b'{"exception"')):
        raise DoctorError(f"ClickHouse broke off: {last.decode('utf-8', 'replace')[:300]}")
