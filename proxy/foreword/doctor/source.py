"""Where exchanges come from: ledger files, ClickHouse, or somebody else's request log."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from foreword.doctor import clickhouse, foreign
from foreword.doctor.columns import (
    COLUMNS,
    LAST_TIME,
    RECORD_VERSION,
    definitions,
    flat_columns,
    names,
    projection,
    read_json_columns,
    sound,
)
from foreword.doctor.errors import DoctorError
from foreword.doctor.window import Window

Progress = Callable[[str], None]
"""Takes a line that says how far a long work is."""

_BATCH_BYTES = 256 * 1024 * 1024
_LINE_BYTES = 64 * 1024 * 1024
_READ = f"format = 'newline_delimited', ignore_errors = true, maximum_object_size = {_LINE_BYTES}"

_SPOTS = 1 << 20
"""More than a head has segments: a record's number and a place in its head as one number."""


@dataclass(slots=True)
class Loaded:
    """Exchanges in DuckDB's table `exchanges`, and what was noticed while they were read."""

    db: duckdb.DuckDBPyConnection
    name: str
    format: str
    """`ledger`, or the name of a foreign format."""
    notes: list[str] = field(default_factory=list)

    def rows(self, sql: str) -> list[dict[str, object]]:
        """The rows of a query, as dictionaries."""
        cursor = self.db.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@contextlib.contextmanager
def load(location: str, window: Window, progress: Progress) -> Iterator[Loaded]:
    """Opens ``location`` (a directory, a file, or a ClickHouse URL). Raises DoctorError."""
    with tempfile.TemporaryDirectory(prefix="foreword-doctor-") as scratch:
        db = duckdb.connect(config={"temp_directory": scratch, "preserve_insertion_order": "false"})
        try:
            db.execute("SET enable_progress_bar = false")
            db.execute(f"CREATE TABLE loaded ({definitions()})")
            db.execute(
                'CREATE TABLE segments (id UBIGINT, "path" VARCHAR, "class" VARCHAR, bytes BIGINT, digest VARCHAR)'
            )
            loaded = Loaded(db, location, "ledger")
            if clickhouse.is_url(location):
                _from_clickhouse(loaded, window, Path(scratch), progress)
            else:
                _from_files(loaded, window, Path(scratch), progress)
            _settle(loaded)
            yield loaded
        finally:
            db.close()


def files_of(location: str) -> list[Path]:
    """The files at a location, oldest name first. Raises DoctorError when there is none."""
    path = Path(location)
    try:
        if path.is_file():
            return [path]
        if not path.is_dir():
            raise DoctorError(f"{location}: no such directory or file")
        files = [each for each in path.iterdir() if each.is_file()]
    except OSError as error:
        raise DoctorError(f"{location} cannot be read: {error.strerror}") from None
    ledger = sorted(each for each in files if each.name.endswith((".jsonl", ".jsonl.gz")))
    return ledger or sorted(each for each in files if each.suffix in (".json", ".csv", ".log"))


def _from_files(loaded: Loaded, window: Window, scratch: Path, progress: Progress) -> None:
    files = [path for path in files_of(loaded.name) if path.stat().st_size]
    if not files:
        raise DoctorError(
            f"{loaded.name}: no exchanges here yet. `foreword serve` with FOREWORD_LEDGER={loaded.name} writes them"
        )
    known = foreign.detect(files)
    if known is not None:
        loaded.format = known.name
        loaded.notes += foreign.convert(files, known, scratch / "rows.jsonl")
        _from_flat(loaded, scratch / "rows.jsonl", window)
        return
    total = sum(path.stat().st_size for path in files)
    done = lines = unreadable = newer = 0
    for batch in _batches(files):
        progress(f"reading {done / total:4.0%} of {total / 1e6:,.0f} MB")
        counted = [0, 0, 0]
        for group in _insert(loaded, batch, window):
            counted = [old + new for old, new in zip(counted, group, strict=True)]
        lines, unreadable, newer = lines + counted[0], unreadable + counted[1], newer + counted[2]
        done += sum(path.stat().st_size for path in batch)
    if not lines and loaded.notes:
        raise DoctorError("; ".join(loaded.notes))
    if lines == unreadable:
        raise DoctorError(
            f"{loaded.name}: none of {lines:,} lines is an exchange record, nor a known log format"
        )
    if unreadable:
        loaded.notes.append(f"{unreadable:,} of {lines:,} lines could not be read (cut off by a crash?)")
    if newer:
        loaded.notes.append(
            f"{newer:,} records of a newer version were read as far as this doctor knows them"
        )


def _batches(files: list[Path]) -> Iterator[list[Path]]:
    batch: list[Path] = []
    size = 0
    for path in files:
        batch.append(path)
        size += path.stat().st_size
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _insert(loaded: Loaded, batch: list[Path], window: Window) -> Iterator[tuple[int, int, int]]:
    """Reads files; yields how many lines there were, how many unreadable, how many of a newer version."""
    try:
        yield _insert_files(loaded, batch, window)
    except duckdb.Error as error:
        # A file that was rotated away meanwhile, or one line too long: the others are read all the same.
        if len(batch) > 1:
            for path in batch:
                yield from _insert(loaded, [path], window)
        else:
            loaded.notes.append(f"{batch[0].name} could not be read: {str(error).splitlines()[0]}")


def _insert_files(loaded: Loaded, batch: list[Path], window: Window) -> tuple[int, int, int]:
    paths = ", ".join(_quoted(str(path)) for path in batch)
    return _take(
        loaded,
        f"SELECT {projection()} FROM read_json([{paths}], {_READ}, columns = {{{read_json_columns()}}})"
        " WHERE pending IS DISTINCT FROM TRUE",
        window,
    )


def _from_clickhouse(loaded: Loaded, window: Window, scratch: Path, progress: Progress) -> None:
    table = clickhouse.Table.parse(loaded.name)
    loaded.name = table.shown
    rows = scratch / "rows.jsonl"
    clickhouse.fetch(table, [column.name for column in COLUMNS], window, rows, progress)
    if rows.stat().st_size:
        lines, unreadable, _ = _from_flat(loaded, rows, window)
        if lines == unreadable:
            raise DoctorError(f"{loaded.name} answers, but not with exchanges")


def _from_flat(loaded: Loaded, rows: Path, window: Window) -> tuple[int, int, int]:
    """Takes in a file of flat records, and removes it; tells as `_take`."""
    columns = flat_columns()
    counted = _take(
        loaded,
        f"SELECT {names()} FROM read_json({_quoted(str(rows))}, {_READ}, columns = {{{columns}}})",
        window,
    )
    rows.unlink()
    return counted


def _take(loaded: Loaded, select: str, window: Window) -> tuple[int, int, int]:
    """Takes records in; tells how many lines there were, how many unreadable, how many of a newer version.

    A head becomes a list of numbers, and each segment that such a number stands for is kept once: the same tools in a
    million records are a million times the same few numbers.
    """
    # NaN is greater than any time.
    whole_record = f"request_id IS NOT NULL AND time IS NOT NULL AND time >= 0 AND time < {LAST_TIME}"
    run = loaded.db.execute
    run(f"CREATE OR REPLACE TABLE batch AS {select}")
    run(
        f"INSERT INTO loaded SELECT * REPLACE (list_transform(head, lambda each: hash(each)) AS head, {sound()})"
        f" FROM batch WHERE {whole_record} AND {window.sql()}"
    )
    run(
        f"""
        INSERT INTO segments
        SELECT id, text ->> 'path', text ->> 'class', try_cast(text ->> 'bytes' AS BIGINT), text ->> 'digest'
        FROM (SELECT id, batch.head[spot % {_SPOTS}] AS text
              FROM (SELECT hash(each) AS id, min(n * {_SPOTS} + place) AS spot
                    FROM (SELECT unnest(head) AS each, generate_subscripts(head, 1) AS place, rowid AS n FROM batch)
                    GROUP BY id) AS first JOIN batch ON batch.rowid = spot // {_SPOTS})
        WHERE id NOT IN (SELECT id FROM segments)
        """
    )
    (counted,) = run(
        f"SELECT count(*), count(*) FILTER (NOT coalesce({whole_record}, FALSE)),"
        f" count(*) FILTER ({whole_record} AND v > {RECORD_VERSION}) FROM batch"
    ).fetchall()
    run("DROP TABLE batch")
    lines, unreadable, newer = counted
    return int(lines), int(unreadable), int(newer)


def _settle(loaded: Loaded) -> None:
    """Makes `exchanges` of what was loaded: each exchange once."""
    twice = _count(loaded) - _one(loaded, "SELECT count(DISTINCT request_id) FROM loaded")
    if twice:
        loaded.notes.append(f"{twice:,} records were there twice and count once")
        loaded.db.execute(
            "DELETE FROM loaded WHERE rowid NOT IN (SELECT max(rowid) FROM loaded GROUP BY request_id)"
        )
    loaded.db.execute("ALTER TABLE loaded RENAME TO exchanges")


def _count(loaded: Loaded) -> int:
    return _one(loaded, "SELECT count(*) FROM loaded")


def _one(loaded: Loaded, sql: str) -> int:
    row = loaded.db.execute(sql).fetchone()
    return int(row[0]) if row else 0


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
