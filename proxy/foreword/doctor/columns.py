"""The columns that the doctor reads, and where each stands in an exchange record.

Everything else of a record is ignored, so records of a newer version can be read as far as they are known. A member
that is missing or of another type becomes null.
"""

from dataclasses import dataclass
from typing import Final

RECORD_VERSION: Final = 1
"""The newest version of the record that this doctor knows."""

RECORD: Final = {
    "v": "INTEGER",
    "request_id": "VARCHAR",
    "time": "DOUBLE",
    "route": "VARCHAR",
    "entry": "VARCHAR",
    "client": "VARCHAR",
    "client_version": "VARCHAR",
    "model": "VARCHAR",
    "upstream_model": "VARCHAR",
    "engine": "VARCHAR",
    "session": "VARCHAR",
    "line": "BIGINT",
    "turn": "BIGINT",
    "status": "INTEGER",
    "outcome": "VARCHAR",
    "stream": "BOOLEAN",
    "ttft_seconds": "DOUBLE",
    "fault": "STRUCT(kind VARCHAR)",
    "usage": "STRUCT(prompt_tokens BIGINT, cached_tokens BIGINT)",
    "told": "STRUCT(input_tokens BIGINT, cache_creation_input_tokens BIGINT, cache_read_input_tokens BIGINT)",
    "verdict": "STRUCT(name VARCHAR, expected BIGINT, shared BIGINT, lost BIGINT,"
    ' "path" VARCHAR, "class" VARCHAR, kind VARCHAR)',
    "prompt": "STRUCT(bytes BIGINT, head JSON[])",
    "shadow": "MAP(VARCHAR, BIGINT)",
    "pending": "BOOLEAN",
}
"""The members of a record that are read, with DuckDB's types."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the doctor's table `exchanges`, and of the table in ClickHouse."""

    name: str
    type: str
    source: str
    """Its value as an expression over the members of a record."""


_TOLD = (
    "told.input_tokens::HUGEINT + coalesce(told.cache_creation_input_tokens, 0)"
    " + coalesce(told.cache_read_input_tokens, 0)"
)

COLUMNS: Final = (
    Column("v", "INTEGER", "v"),
    Column("request_id", "VARCHAR", "request_id"),
    Column("time", "DOUBLE", "time"),
    Column("route", "VARCHAR", "route"),
    Column("entry", "VARCHAR", "coalesce(entry, route)"),
    Column("client", "VARCHAR", "client"),
    Column("client_version", "VARCHAR", "client_version"),
    Column("model", "VARCHAR", "model"),
    Column("upstream_model", "VARCHAR", "upstream_model"),
    Column("engine", "VARCHAR", "engine"),
    Column("session", "VARCHAR", "session"),
    Column("line", "BIGINT", "line"),
    Column("turn", "BIGINT", "turn"),
    Column("status", "INTEGER", "status"),
    Column("outcome", "VARCHAR", "outcome"),
    Column("fault", "VARCHAR", "fault.kind"),
    # An answer that is no stream begins when it is whole, which tells nothing of its prompt.
    Column("streamed_ttft", "DOUBLE", "CASE WHEN stream THEN ttft_seconds END"),
    Column("prompt_tokens", "BIGINT", "usage.prompt_tokens"),
    Column("cached_tokens", "BIGINT", "usage.cached_tokens"),
    Column("told_context", "BIGINT", _TOLD),
    Column("verdict", "VARCHAR", "verdict.name"),
    Column("expected", "BIGINT", "verdict.expected"),
    Column("shared", "BIGINT", "verdict.shared"),
    Column("lost", "BIGINT", "verdict.lost"),
    Column("path", "VARCHAR", 'verdict."path"'),
    Column("class", "VARCHAR", 'verdict."class"'),
    Column("kind", "VARCHAR", "verdict.kind"),
    Column("prompt_bytes", "BIGINT", "prompt.bytes"),
    # Each segment as it is written: most are the same in a million records, and only one of each is parsed.
    Column("head", "JSON[]", "prompt.head"),
    Column("shadow", "MAP(VARCHAR, BIGINT)", "shadow"),
)
"""What `exchanges` is made of."""

MOST: Final = 1 << 40
"""No count of an exchange is greater: sums of millions of them still fit."""

LAST_TIME: Final = 253_402_300_800
"""The end of the year 9999 in seconds since 1970: a calendar ends there, and no exchange began later."""

PROMPT_ROUTES: Final = ("messages", "chat", "completions", "responses")
"""Routes whose exchanges make the engine read a prompt."""


def read_json_columns() -> str:
    """The schema of a ledger line, as `read_json` takes it."""
    return ", ".join(f"'{name}': '{kind}'" for name, kind in RECORD.items())


def flat_columns() -> str:
    """The schema of the flat columns, as `read_json` takes it."""
    return ", ".join(f"'{column.name}': '{column.type}'" for column in COLUMNS)


def definitions() -> str:
    """The columns of `exchanges`, where a head is a list of numbers of `segments`."""
    types = {column.name: column.type for column in COLUMNS} | {"head": "UBIGINT[]"}
    return ", ".join(f'"{name}" {kind}' for name, kind in types.items())


def names() -> str:
    """The columns' names."""
    return ", ".join(f'"{column.name}"' for column in COLUMNS)


def sound() -> str:
    """The flat columns as `SELECT` takes them, with what no exchange can have as null: whoever wrote a count below
    zero or above `MOST` did not count. Of a prompt at most all of it was reused."""
    counts = [column.name for column in COLUMNS if column.type == "BIGINT"]
    bounded = {name: f'CASE WHEN "{name}" BETWEEN 0 AND {MOST} THEN "{name}" END' for name in counts}
    bounded["cached_tokens"] = (
        f"CASE WHEN cached_tokens BETWEEN 0 AND {MOST}"
        " THEN CASE WHEN cached_tokens > prompt_tokens THEN prompt_tokens ELSE cached_tokens END END"
    )
    return ", ".join(f'{value} AS "{name}"' for name, value in bounded.items())


def projection() -> str:
    """The flat columns out of a record."""
    return ", ".join(f'{column.source} AS "{column.name}"' for column in COLUMNS)
