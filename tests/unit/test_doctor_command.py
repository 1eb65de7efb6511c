"""``foreword doctor`` and ``foreword explain`` as commands."""

import errno
import gzip
import io
import json
import random
import re
import socket
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.unit import doctor_ledgers as ledgers
from tests.unit.doctor_ledgers import MONDAY

from foreword import cli
from foreword.doctor.style import Style


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    both = ledgers.paper_day() + ledgers.paper_day(repaired=True, day=MONDAY + 86_400)
    return ledgers.write(tmp_path_factory.mktemp("paper"), both, files=2)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ledgers.write(tmp_path_factory.mktemp("good"), ledgers.healthy())


def status(*arguments: object) -> int:
    try:
        return cli.main([str(each) for each in arguments])
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


def test_the_report_names_entry_length_segment_and_rule(
    paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("doctor", paper, "--until", "2026-08-18") == 1
    text = capsys.readouterr().out
    assert "pinned at exactly 17,920 at system[0] (header): 383 requests" in text
    assert "FOREWORD_RULE_BILLING_HEADER=on" in text
    assert "/v1/messages claude-code llm-prime" in text
    assert re.search(r"system\[0\] +header +98 +451 +451 +100.0%  volatile", text)
    assert "the hit rate might have been 98." in text
    assert "\x1b" not in text, "no colours but on a terminal"
    assert len(text.splitlines()) < 60, "a minute's reading"


def test_segments_share_a_row_only_with_the_same_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = ledgers.Talk("s1")
    records = [talk.next(number, MONDAY + 60 * number, 400) for number in range(12)]
    for record in records[:5]:
        record["prompt"]["head"] = [
            each for each in record["prompt"]["head"] if each["path"] not in ("system[1]", "tools[22]")
        ]
    status("doctor", ledgers.write(tmp_path, records))
    text = capsys.readouterr().out
    assert re.search(r"tools\[0\] \.\. tools\[21\] +tools +68,200 +12 +1 +0.0%", text)
    assert re.search(r"tools\[22\] +tools +3,100 +7 +1 ", text)
    assert re.search(r"system\[0\] +system +60 +12 +1 ", text)
    assert re.search(r"system\[1\] +system +12,000 +7 +1 ", text)
    assert "a row with `..`: segments that never change" in text


def test_a_good_ledger_is_0(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("doctor", good) == 0
    assert "No findings." in capsys.readouterr().out


def test_json_is_one_object(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("doctor", paper, "--json", "--since", "2026-08-17", "--until", "2026-08-18") == 1
    told = json.loads(capsys.readouterr().out)
    assert {"requests", "hit_rate", "by_entry", "pinned", "volatile", "verdicts", "findings"} <= set(told)
    assert {"entry", "client", "model", "requests", "prompt_tokens", "cached_tokens", "hit_rate"} <= set(
        told["by_entry"][0]
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("/nowhere",),
        ("--compare", "a", "b"),
        ("--diff", "a", "b"),
        ("x", "--since", "soon"),
        ("a", "--fast"),
    ],
)
def test_wrong_usage_is_2_and_says_why(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("doctor", *arguments) == 2
    assert "foreword" in capsys.readouterr().err


def test_an_empty_ledger_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("doctor", tmp_path) == 2
    assert "no exchanges here yet" in capsys.readouterr().err


def test_a_time_without_exchanges_says_so(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("doctor", good, "--since", "2027-01-01") == 2
    assert "no answered request in this time" in capsys.readouterr().err


def test_the_page_is_one_file_that_loads_nothing(paper: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert status("doctor", paper, "--html", page) == 1
    text = page.read_text()
    assert not re.search(r"https?:|src=|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(plots) == 3, "two clients' lengths and the days"
    for plot in plots:
        ET.fromstring(plot)  # noqa: S314 - our own page
    assert "system[0]" in text


def test_names_from_clients_do_no_harm_on_the_page(tmp_path: Path) -> None:
    evil = [each | {"model": "<script>alert(1)</script>"} for each in ledgers.paper_day()]
    page = tmp_path / "report.html"
    assert status("doctor", ledgers.write(tmp_path / "ledger", evil), "--html", page) == 1
    assert "<script" not in page.read_text()


def test_names_from_clients_do_no_harm_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = [each | {"model": "\x1b]0;owned\x07\x1b[2J"} for each in ledgers.healthy()]
    assert status("doctor", ledgers.write(tmp_path, evil)) == 0
    assert "\x1b" not in capsys.readouterr().out


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_colours_only_where_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Style.of(Terminal()).paint("x", "red") == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Style.of(Terminal()).paint("x", "red") == "x"
    assert Style.of(io.StringIO()).paint("x", "red") == "x"


def test_bars() -> None:
    plain, blocks = Style(colour=False, blocks=False), Style(colour=False, blocks=True)
    assert plain.bar(0.5, 4) == "##  "
    assert blocks.bar(0.5, 4) == "██  "
    assert blocks.bar(0.0, 4) == "    "
    assert plain.bar(0.0001, 4) == "#   ", "only nothing is empty"


def test_compare_two_times(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = ("2026-08-17..2026-08-18", "2026-08-18..")
    assert status("doctor", paper, "--compare", *times) == 0
    text = capsys.readouterr().out
    assert re.search(r"requests at exactly 17,920 tokens +383 +0", text)
    assert "the comparison holds" in text
    assert status("doctor", paper, "--compare", *times, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["holds"] is True
    assert told["change"] > 0.4
    assert told["before"]["at_pinned"] == [{"tokens": 17_920, "requests": 383}]
    assert told["after"]["at_pinned"] == [{"tokens": 17_920, "requests": 0}]


def test_a_comparison_that_got_worse_is_1(paper: Path) -> None:
    assert status("doctor", paper, "--compare", "2026-08-18..", "..2026-08-18") == 1


def changed_use(what: str) -> list[ledgers.Record]:
    after = ledgers.paper_day(repaired=True, day=MONDAY + 86_400)
    if what == "clients":
        return [each for each in after if each["client"] == "claude-code"]
    if what == "lengths":
        return [each for each in after if each["usage"]["prompt_tokens"] < 60_000]
    for each in after:
        for segment in each["prompt"]["head"]:
            segment["digest"] = ledgers.digest("another key" + segment["digest"])
    return after


@pytest.mark.parametrize("what", ["clients", "lengths", "segments"])
def test_a_comparison_of_other_use_does_not_hold(
    what: str, paper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ledgers.write(tmp_path / "before", ledgers.paper_day())
    after = ledgers.write(tmp_path / "after", changed_use(what))
    assert status("doctor", "--compare", before, after, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["holds"] is False
    assert {each["name"].split()[0] for each in told["checks"] if not each["good"]} == {what}


def test_explain_from_a_ledger(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ledgers.paper_day()[100]
    assert status("explain", wanted["request_id"], "--ledger", paper) == 0
    text = capsys.readouterr().out
    assert text.count("\n") == 1, "one paragraph"
    assert f"a prompt of {wanted['usage']['prompt_tokens']:,} tokens to /v1/messages" in text
    assert "at system[0] (header, edited)" in text
    assert f"{wanted['verdict']['lost']:,} tokens were read again" in text
    assert "FOREWORD_RULE_BILLING_HEADER=on" in text
    assert status("explain", wanted["request_id"], "--ledger", paper, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["found"], told["record"]) == (True, wanted)


def test_explain_of_nothing(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("explain", "req_none", "--ledger", paper) == 1
    assert "req_none is not in" in capsys.readouterr().out
    assert status("explain", "req_none", "--ledger", paper / "nowhere") == 2
    assert status("explain", "req_none", "--url", "http://127.0.0.1:9") == 2
    assert "give --url of a sidecar, or --ledger" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("append-only", "what came before was reused"),
        ("engine-lost", "no longer held"),
        ("compacted", "no fault"),
        ("not-reported", "--enable-prompt-tokens-details"),
        ("template", "template"),
        ("something-new", "The verdict is something-new."),
    ],
)
def test_explain_says_why(
    verdict: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cached = None if verdict == "not-reported" else 640
    made = ledgers.record(1, MONDAY, prompt=1_000, cached=cached, verdict=verdict, lost=0)
    assert status("explain", made["request_id"], "--ledger", ledgers.write(tmp_path, [made])) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("verdict", ["engine-lost", "engine-lost-or-template"])
def test_explain_tells_a_change_beside_what_the_engine_lost(
    verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ledgers.record(1, MONDAY, prompt=9_000, cached=640, verdict=verdict, lost=8_000)
    made["verdict"] |= {"path": "messages[8].content", "class": "history", "kind": "edited"}
    assert status("explain", made["request_id"], "--ledger", ledgers.write(tmp_path, [made])) == 0
    text = capsys.readouterr().out
    assert "at messages[8].content (history, edited), yet" in text
    assert "only added" not in text


def test_explain_tells_an_excerpt_where_the_record_has_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    excerpt = {"before": "it is ", "was": "09:14\n\x1b[31m\x9b", "now": ""}
    made = ledgers.paper_day()[100]
    folder = ledgers.write(tmp_path, [made, made | {"request_id": "req_told", "excerpt": excerpt}])
    assert status("explain", "req_told", "--ledger", folder) == 0
    text = capsys.readouterr().out
    assert 'Behind "it is " it read "09:14\\n\\u001b[31m\\u009b" there and now reads nothing.' in text
    assert text.count("\n") == 1, "one paragraph, and nothing that a terminal obeys"
    assert status("explain", made["request_id"], "--ledger", folder) == 0
    assert "now reads" not in capsys.readouterr().out


class Sidecar(BaseHTTPRequestHandler):
    """A sidecar's /admin/sessions as the contract has it."""

    key: str | None = None
    listed: bytes | None = b"as the contract has it"
    """What it answers instead where a test says so; None: 404."""

    def do_GET(self) -> None:
        turn = {"request_id": "req_7", "time": MONDAY, "prompt": 9_000, "reused": 256, "expected": 8_192}
        turn |= {
            "verdict": "changed",
            "path": "tools[3]",
            "class": "tools",
            "kind": "inserted",
            "lost": 7_936,
            "exact": True,
        }
        answers: dict[str, Any] = {
            "/admin/sessions": [{"session": None, "line": 17, "client": "codex", "model": "m", "turns": 1}],
            "/admin/sessions/line-17": {"session": None, "lines": [{"line": 17, "turns": [turn]}]},
        }
        allowed = self.key is None or self.headers["authorization"] == f"Bearer {self.key}"
        body = json.dumps(answers.get(self.path)).encode()
        found = self.path in answers
        if self.listed != Sidecar.listed:
            body, found = self.listed or b"", self.listed is not None
        self.send_response(401 if not allowed else 200 if found else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """No access log in the tests' output."""


@pytest.fixture
def sidecar() -> Iterator[tuple[str, type[Sidecar]]]:
    handler = type("OneSidecar", (Sidecar,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


def test_explain_from_a_running_sidecar(
    sidecar: tuple[str, type[Sidecar]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, handler = sidecar
    monkeypatch.delenv("FOREWORD_ADMIN_KEY", raising=False)
    assert status("explain", "req_7", "--url", url) == 0
    text = capsys.readouterr().out
    assert "codex sent a prompt of 9,000 tokens for m, turn 1 of line 17." in text
    assert "at tools[3] (tools, inserted)" in text
    assert "So 7,936 tokens were read again." in text
    assert "which would have helped, only a ledger tells." in text
    assert status("explain", "req_8", "--url", url) == 1
    handler.key = "open sesame"
    assert status("explain", "req_7", "--url", url) == 2
    assert "set FOREWORD_ADMIN_KEY" in capsys.readouterr().err
    monkeypatch.setenv("FOREWORD_ADMIN_KEY", "open sesame")
    assert status("explain", "req_7", "--url", url) == 0


@pytest.mark.parametrize("answer", [None, b"<html>", b"{}", b'{"sessions":7}'])
def test_explain_from_what_is_no_sidecar(
    answer: bytes | None, sidecar: tuple[str, type[Sidecar]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, handler = sidecar
    handler.listed = answer
    assert status("explain", "req_7", "--url", url) == 2
    assert "answers, but not as a sidecar of Foreword does" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("explain", "req_7", "--url", "http://[::1"), "give http://host:port"),
        (("explain", "req_7", "--url", "http://"), "no host given"),
        (("explain", "req_7", "--url", ""), "a name is empty"),
        (("explain", "req_7", "--ledger", ""), "a name is empty"),
        (("explain", ""), "a name is empty"),
        (("doctor", ""), "a name is empty"),
        (("doctor", "--compare", "", "x"), "a name is empty"),
        (("explain", "req_7", "--ledger", "/dev/null"), "no such directory or file"),
        (("doctor", "/dev/null"), "no such directory or file"),
    ],
)
def test_a_place_that_is_none_is_told(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*arguments) == 2
    assert told in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_not_called_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"no gzip")
    for place in (tmp_path, tmp_path / "a.jsonl.gz"):
        assert status("doctor", place) == 2
        assert "a.jsonl.gz could not be read: " in capsys.readouterr().err
        assert status("explain", "req_7", "--ledger", place) == 2
        assert "a.jsonl.gz cannot be read: Not a gzipped file" in capsys.readouterr().err
    made = ledgers.record(7, MONDAY, prompt=100, cached=64)
    (tmp_path / "b.jsonl").write_text(json.dumps(made) + "\n")
    assert status("explain", made["request_id"], "--ledger", tmp_path) == 0
    assert status("doctor", tmp_path) == 0
    assert "a.jsonl.gz could not be read" in capsys.readouterr().out


def test_a_packed_file_with_a_broken_middle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = bytearray(gzip.compress(random.Random(7).randbytes(100_000)))
    packed[60_000:60_400] = b"\xff" * 400
    (tmp_path / "a.jsonl.gz").write_bytes(packed)
    assert status("explain", "req_7", "--ledger", tmp_path) == 2
    assert "a.jsonl.gz cannot be read" in capsys.readouterr().err


def test_what_may_not_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path, *arguments: Any, **more: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    ledgers.write(tmp_path, [ledgers.record(7, MONDAY, prompt=100, cached=64)])
    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refuse)
        for command in (("doctor", tmp_path), ("explain", "req_7", "--ledger", tmp_path)):
            assert status(*command) == 2
            assert f"{tmp_path} cannot be read: Permission denied" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        assert status("doctor", tmp_path) == 0, (
            "DuckDB reads what it can; where it cannot either, it says why"
        )


def test_what_comes_instead_of_http_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(3):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(b"\x1b[31m secret of another protocol \xff\r\n" * 100)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("FOREWORD_UPSTREAM", url)
        for command in (("doctor", url), ("explain", "req_7", "--url", url), ("check",)):
            assert status(*command) == (1 if command == ("check",) else 2)
            told = "".join(capsys.readouterr())
            assert "what answers there does not speak HTTP" in told
            assert "secret" not in told
        thread.join(5)


def capture(path: Path, body: dict[str, Any]) -> Path:
    path.write_text(
        json.dumps({"request_id": path.name, "time": MONDAY, "route": "messages", "body": json.dumps(body)})
    )
    return path


def body(cch: str, *more: dict[str, Any]) -> dict[str, Any]:
    return {
        "tools": [{"name": "Read"}, {"name": "Write"}],
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.116.d8c; cch={cch};"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [{"role": "user", "content": "hello"}, *more],
    }


def test_diff_names_the_segment_at_which_two_captures_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}
    again = {
        "role": "user",
        "content": [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}],
    }
    a, b = capture(tmp_path / "a", body("8c7f0")), capture(tmp_path / "b", body("7ee55", answer, again))
    assert status("doctor", "--diff", a, b, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["append_only"] is False
    assert told["first"]["path"] == "system[0]"
    assert told["first"]["class"] == "header"
    assert told["first"]["first_difference"] == len(
        "x-anthropic-billing-header: cc_version=2.1.116.d8c; cch="
    )
    assert [(each["state"], each["path"]) for each in told["segments"]] == [
        ("same", "tools[0]"),
        ("same", "tools[1]"),
        ("edited", "system[0]"),
        ("same", "system[1]"),
        ("same", "messages[0].content"),
        ("inserted", "messages[1].content[0]"),
        ("inserted", "messages[2].content[0]"),
    ]
    assert status("doctor", "--diff", a, b) == 1
    assert "The prompts part at system[0] (header)" in capsys.readouterr().out


def test_diff_of_a_prompt_that_only_grew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = capture(tmp_path / "a", body("1"))
    b = capture(tmp_path / "b", body("1", {"role": "assistant", "content": "hi"}))
    assert status("doctor", "--diff", a, b) == 0
    assert "B only adds to A" in capsys.readouterr().out
    assert status("doctor", "--diff", a, a) == 0


def test_diff_of_the_other_dialects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "result"},
        ]
    }
    other = json.loads(json.dumps(chat))
    other["messages"][3]["content"] = "another result"
    a, b = capture(tmp_path / "a", chat), capture(tmp_path / "b", other)
    assert status("doctor", "--diff", a, b, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["first"]["path"], told["first"]["class"]) == ("messages[3].content", "last-turn")
    responses = {
        "instructions": "be brief",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
    }
    assert status("doctor", "--diff", capture(tmp_path / "c", responses), a, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert {each["path"] for each in told["segments"] if each["state"] == "same"} <= {
        "messages[0].content[0]"
    }


def test_diff_of_what_is_no_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("no json")
    assert status("doctor", "--diff", tmp_path / "a", tmp_path / "a") == 2
    assert "holds no JSON body" in capsys.readouterr().err


def test_only_the_doctor_needs_duckdb() -> None:
    code = """
import sys
import foreword.app, foreword.serve, foreword.cli
for command in ("doctor", "explain"):
    try:
        foreword.cli.main([command, "--help"])
    except SystemExit:
        pass
print("duckdb" in sys.modules)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "False"


def test_without_duckdb_it_says_what_to_install(
    good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("foreword.doctor.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert status("doctor", good) == 2
    assert "pip install 'foreword[doctor]'" in capsys.readouterr().err
