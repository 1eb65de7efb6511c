"""What the doctor reads: ledgers in any state, ClickHouse, and the request logs of others."""

import csv
import gzip
import json
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.unit import doctor_ledgers as ledgers
from tests.unit.doctor_ledgers import MONDAY, Record

from foreword.doctor import clickhouse, explain
from foreword.doctor.columns import COLUMNS
from foreword.doctor.diagnosis import examine
from foreword.doctor.errors import DoctorError
from foreword.doctor.source import load
from foreword.doctor.window import Window, parse_range, parse_time


def report(location: Path | str, window: Window | None = None) -> dict[str, Any]:
    with load(str(location), window or Window(), lambda text: None) as loaded:
        return examine(loaded, lambda text: None).as_json()


def same(told: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two reports say the same, wherever they were read."""
    apart = ("ledger", "notes")
    return {k: v for k, v in told.items() if k not in apart} == {
        k: v for k, v in other.items() if k not in apart
    }


def test_cut_lines_rubbish_and_empty_files_are_passed_over(tmp_path: Path) -> None:
    clean = report(ledgers.write(tmp_path / "clean", ledgers.paper_day()))
    folder = ledgers.write(tmp_path / "crashed", ledgers.paper_day(), files=4)
    (folder / "exchanges-9000.jsonl").write_bytes(b"")
    (folder / "exchanges-9001.jsonl").write_bytes(b"\x00" * 500)
    (folder / "exchanges-9002.jsonl").write_bytes(
        b'\xff\xfe{}\n[1, 2]\n"text"\n17\n{"a": 1}\n{"request_id": "x"}\n'
    )
    (folder / "digest.key").write_bytes(b"not a ledger")
    with (folder / "exchanges-0001.jsonl").open("ab") as file:
        file.write(json.dumps(ledgers.paper_day()[0]).encode()[:700])
    told = report(folder)
    assert same(told, clean)
    assert told["notes"] == ["8 of 903 lines could not be read (cut off by a crash?)"]


def test_members_of_another_type_or_unknown_ones_do_no_harm(tmp_path: Path) -> None:
    records = ledgers.healthy()
    odd: list[Record] = [each | {"news": {"of": [1, {"a": "later"}]}, "v": 2} for each in records]
    odd[3] |= {"verdict": "a text"}
    odd[4] |= {"prompt": [1, 2, 3]}
    odd[5] |= {"shadow": None, "told": 17, "usage": {"prompt_tokens": "many"}}
    odd[6]["prompt"]["head"].append("no segment")
    told = report(ledgers.write(tmp_path, odd))
    assert told["requests"] == len(records)
    assert told["findings"] == []
    assert told["notes"] == [
        f"{len(records)} records of a newer version were read as far as this doctor knows them"
    ]


def test_numbers_and_times_that_cannot_be_do_no_harm(tmp_path: Path) -> None:
    records = ledgers.healthy()
    odd = [json.loads(json.dumps(each)) for each in records]
    odd[3]["usage"] |= {"prompt_tokens": 2**62, "cached_tokens": 2**61}
    odd[4]["usage"] |= {"prompt_tokens": -5, "cached_tokens": -7}
    odd[5]["usage"] |= {"prompt_tokens": 10, "cached_tokens": 50}
    odd[6]["told"] = {"input_tokens": 2**63 - 1, "cache_read_input_tokens": 2**63 - 1}
    for place, when in enumerate((-1.0, 1e18, 1e300, 253_402_300_800.0), start=7):
        odd[place]["time"] = when
    told = report(ledgers.write(tmp_path, odd))
    assert told["requests"] == len(records) - 4
    assert told["findings"] == []
    assert 0 <= told["hit_rate"] <= 1
    assert all(each["hit_rate"] is None or 0 <= each["hit_rate"] <= 1 for each in told["by_entry"])
    assert told["notes"] == [f"4 of {len(records)} lines could not be read (cut off by a crash?)"]


def test_a_folder_named_like_a_ledger_file_is_passed_over(tmp_path: Path) -> None:
    folder = ledgers.write(tmp_path, ledgers.healthy())
    (folder / "exchanges-0000-kept.jsonl").mkdir()
    assert report(folder)["requests"] == len(ledgers.healthy())


def test_records_without_a_version_are_read(tmp_path: Path) -> None:
    """Lines of the JSON log are exchange records too."""
    lines = [{"level": "info", "event": "exchange"} | each for each in ledgers.paper_day()]
    for line in lines:
        del line["v"]
    other = {"level": "info", "event": "message", "time": MONDAY, "message": "ready"}
    folder = ledgers.write(tmp_path / "log", [*lines, other])
    assert same(report(folder), report(ledgers.write(tmp_path / "ledger", ledgers.paper_day())))


def test_pending_records_wait_and_doubled_ones_count_once(tmp_path: Path) -> None:
    records = ledgers.healthy()
    pending = [each | {"pending": True, "verdict": None} for each in records[:50]]
    folder = ledgers.write(tmp_path, [*pending, *records, *records[:20]])
    told = report(folder)
    assert told["requests"] == len(records)
    assert told["notes"] == ["20 records were there twice and count once"]


def test_packed_files_and_single_files(tmp_path: Path) -> None:
    folder = ledgers.write(tmp_path / "a", ledgers.paper_day())
    plain = folder / "exchanges-0000.jsonl"
    other = tmp_path / "b"
    other.mkdir()
    with gzip.open(other / "exchanges-0000.jsonl.gz", "wb") as packed:
        packed.write(plain.read_bytes())
    assert same(report(plain), report(other))


@pytest.mark.parametrize("content", [None, b"", b'{"a": 1}\n'])
def test_what_is_no_ledger_is_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "exchanges-1.jsonl").write_bytes(content)
    with pytest.raises(DoctorError, match=r"no exchanges here yet|none of 1 lines"):
        report(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="no such directory or file"):
        report(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-08-17", MONDAY),
        ("2026-08-17T01:00", MONDAY + 3_600),
        ("2026-08-17T08:00:00+08:00", MONDAY),
        ("1786924800", MONDAY),
        ("90m", MONDAY - 5_400),
        ("7d", MONDAY - 604_800),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text, MONDAY) == seconds


def test_times_that_are_none() -> None:
    with pytest.raises(DoctorError, match="is no time"):
        parse_time("yesterday", MONDAY)
    assert parse_range("2026-08-17..2026-08-18", 0) == Window(MONDAY, MONDAY + 86_400)
    assert parse_range("..2026-08-17", 0) == Window(None, MONDAY)
    assert parse_range("2026-08-17", 0) is None


# ClickHouse


class ClickHouse(BaseHTTPRequestHandler):
    """The HTTP interface as far as the doctor speaks to it. It takes the columns out of records as the table does."""

    records: list[Record] = []
    asked: list[str] = []
    fail: bytes | None = None

    def do_POST(self) -> None:
        query = self.rfile.read(int(self.headers["content-length"])).decode()
        type(self).asked.append(query)
        parameters = parse_qs(urlsplit(self.path).query)
        if self.headers["authorization"] != "Basic ZG9jdG9yOnMzY3JldA==":
            self._answer(403, b"Code: 516. DB::Exception: doctor: Authentication failed\nmore\n")
        elif "param_id" in parameters:
            found = [each for each in self.records if each["request_id"] == parameters["param_id"][0]]
            self._answer(200, json.dumps(found[0]).encode() + b"\n" if found else b"")
        else:
            assert parameters["output_format_json_quote_64bit_integers"] == ["0"]
            match = re.fullmatch(
                r"SELECT (.+) FROM `fleet`.`exchanges` AS e WHERE (.+) FORMAT JSONEachRow", query
            )
            assert match, query
            names = [
                column.rpartition(" AS ")[2].removeprefix("e.").strip("`") for column in match[1].split(", ")
            ]
            since = re.search(r"time\) / 1000\) >= ([\d.]+)", match[2])
            rows = [
                {name: self._column(each, name) for name in names}
                for each in self.records
                if since is None or each["time"] >= float(since[1])
            ]
            self._answer(200, b"".join(json.dumps(row).encode() + b"\n" for row in rows) + (self.fail or b""))

    @staticmethod
    def _column(record: Record, name: str) -> Any:
        usage, verdict, prompt = (record[part] or {} for part in ("usage", "verdict", "prompt"))
        if name in ("prompt_tokens", "cached_tokens"):
            return usage.get(name)
        if name in ("expected", "shared", "lost", "path", "class", "kind"):
            return verdict.get(name)
        special = {
            "verdict": verdict.get("name"),
            "fault": (record["fault"] or {}).get("kind"),
            "told_context": None,
            "streamed_ttft": record["ttft_seconds"] if record["stream"] else None,
            "prompt_bytes": prompt.get("bytes"),
            "head": prompt.get("head", []),
        }
        return special[name] if name in special else record[name]

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """No access log in the tests' output."""


@pytest.fixture
def server() -> Iterator[type[ClickHouse]]:
    handler = type("OneServer", (ClickHouse,), {"records": [], "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        handler.port = listening.server_port  # type: ignore[attr-defined]
        thread = threading.Thread(target=listening.serve_forever, args=(0.02,))
        thread.start()
        yield handler
        listening.shutdown()
        thread.join()


def url(server: Any, scheme: str = "clickhouse", user: str = "doctor:s3cret@") -> str:
    return f"{scheme}://{user}127.0.0.1:{server.port}/fleet?table=exchanges"


def test_clickhouse_says_the_same_as_files(server: type[ClickHouse], tmp_path: Path) -> None:
    server.records = ledgers.paper_day()
    told = report(url(server))
    assert same(told, report(ledgers.write(tmp_path, server.records)))
    assert told["ledger"].startswith("http://127.0.0.1:")
    assert "s3cret" not in json.dumps(told)


def test_clickhouse_over_a_window(server: type[ClickHouse]) -> None:
    server.records = ledgers.paper_day() + ledgers.paper_day(repaired=True, day=MONDAY + 86_400)
    assert report(url(server, "http"), Window(since=MONDAY + 86_400))["requests"] == 895
    assert "1787011200.0" in server.asked[-1]


def test_clickhouse_that_refuses_or_breaks_off(server: type[ClickHouse]) -> None:
    with pytest.raises(DoctorError, match=r"answers 403: Code: 516.*Authentication failed"):
        report(url(server, user=""))
    server.records = ledgers.healthy()
    server.fail = b"Code: 241. DB::Exception: Memory limit exceeded\n"
    with pytest.raises(DoctorError, match="broke off: Code: 241"):
        report(url(server))


def test_clickhouse_that_is_away() -> None:
    with pytest.raises(DoctorError, match="cannot be read"):
        report("clickhouse://127.0.0.1:9/fleet")


@pytest.mark.parametrize(
    "bad", ["clickhouse:///fleet", "http://h:1/a-b", "http://h:1/a?table=x;DROP", "http://h:x/"]
)
def test_clickhouse_urls_that_are_none(bad: str) -> None:
    with pytest.raises(DoctorError):
        clickhouse.Table.parse(bad)


def test_clickhouse_urls() -> None:
    table = clickhouse.Table.parse("clickhouses://u:p%40ss@ch.example")
    assert (table.tls, table.port, table.user, table.password) == (True, 8443, "u", "p@ss")
    assert (table.database, table.table) == ("foreword", "exchanges")


def test_the_table_has_every_column_that_is_read(root: Path) -> None:
    ddl = (root / "deploy/clickhouse/ledger.sql").read_text()
    columns = set(re.findall(r"^    (\w+) [A-Z]", ddl, re.MULTILINE))
    assert {column.name for column in COLUMNS} | {"record"} == columns
    assert "ENGINE = ReplacingMergeTree" in ddl


def test_explain_from_clickhouse(server: type[ClickHouse]) -> None:
    server.records = ledgers.healthy()
    wanted = server.records[7]
    assert explain.from_ledger(wanted["request_id"], url(server)) == wanted
    assert explain.from_ledger("req_none", url(server)) is None


# What people already have: the same day as logs of others


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def tokens(each: Record) -> tuple[int, int]:
    return each["usage"]["prompt_tokens"], each["usage"]["cached_tokens"]


def as_langfuse(each: Record) -> Record:
    prompt, cached = tokens(each)
    return {
        "id": each["request_id"],
        "traceId": "t",
        "type": "GENERATION",
        "name": each["entry"],
        "startTime": iso(each["time"]),
        "model": each["model"],
        "usageDetails": {
            "input": prompt - cached,
            "input_cached_tokens": cached,
            "output": 200,
            "total": prompt + 200,
        },
    }


def as_litellm(each: Record) -> Record:
    prompt, cached = tokens(each)
    return {
        "request_id": each["request_id"],
        "call_type": each["entry"],
        "startTime": iso(each["time"]),
        "model": each["model"],
        "prompt_tokens": prompt,
        "completion_tokens": 200,
        "total_tokens": prompt + 200,
        "cache_hit": "False",
        "metadata": {"usage_object": {"prompt_tokens_details": {"cached_tokens": cached}}},
    }


def as_new_api(each: Record) -> Record:
    prompt, cached = tokens(each)
    return {
        "id": 1,
        "type": 2,
        "created_at": int(each["time"]),
        "model_name": each["model"],
        "quota": 5,
        "prompt_tokens": prompt,
        "completion_tokens": 200,
        "other": json.dumps({"cache_tokens": cached, "request_path": each["entry"]}),
    }


@pytest.mark.parametrize("form", ["jsonl", "json", "csv"])
@pytest.mark.parametrize(
    ("kind", "convert"), [("langfuse", as_langfuse), ("litellm", as_litellm), ("new-api", as_new_api)]
)
def test_logs_of_others(kind: str, convert: Any, form: str, tmp_path: Path) -> None:
    rows = [convert(each) for each in ledgers.paper_day()]
    path = tmp_path / f"export.{form}"
    if form == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(
                {name: json.dumps(value) if isinstance(value, dict) else value for name, value in row.items()}
                for row in rows
            )
    elif form == "json":
        path.write_text(json.dumps({"data": rows}, indent=1))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = report(path)
    assert told["format"] == kind
    assert told["requests"] == 895
    assert {row["entry"]: row["requests"] for row in told["by_entry"]} == {
        "/v1/messages": 451,
        "/v1/chat/completions": 444,
    }
    assert told["by_entry"][0]["hit_rate"] == pytest.approx(0.14, abs=0.01)
    assert [(pin["entry"], pin["tokens"], pin["share"]) for pin in told["pinned"]] == [
        ("/v1/messages", 17_920, round(383 / 451, 4))
    ]
    assert told["findings"] == []
    assert "only rates, reused lengths and plateaus" in told["notes"][0]


@pytest.mark.parametrize(
    ("usage", "prompt", "cached"),
    [
        ({"input": 100, "output": 10, "total": 110, "cache_read_input_tokens": 60}, 100, 60),
        ({"input": 40, "output": 10, "total": 110, "cache_read_input_tokens": 60}, 100, 60),
        ({"input": 40, "output": 10, "cache_read_input_tokens": 60}, 100, 60),
        ({"input": 30, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 10}, 100, 60),
        ({"input": 100, "output": 10}, 100, None),
    ],
)
def test_cached_tokens_beside_or_within_the_input(
    usage: dict[str, int], prompt: int, cached: int | None, tmp_path: Path
) -> None:
    row = {"traceId": "t", "startTime": "2026-08-17T00:00:00Z", "type": "GENERATION", "usageDetails": usage}
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    told = report(tmp_path)
    assert told["not_reported"] == (cached is None)
    assert told["prompt_tokens"] + told["not_reported_tokens"] == prompt
    assert told["cached_tokens"] == (cached or 0)


def test_rows_that_asked_no_engine_are_left_out(tmp_path: Path) -> None:
    rows = [as_litellm(each) for each in ledgers.healthy()[:10]]
    rows[0]["cache_hit"] = True
    rows[1] |= {"prompt_tokens": 0, "metadata": {}}
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = report(tmp_path)
    assert told["requests"] == 8
    assert told["notes"][1].startswith("2 rows")
