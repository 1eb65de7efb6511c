"""The command line: quick, exact about what is wrong, and true to its exit statuses."""

import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest
from tests.conftest import ROOT

from foreword import __version__, cli
from foreword.settings import TABLE


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in TABLE:
        monkeypatch.delenv(setting.name, raising=False)


def status(*arguments: str) -> int:
    """The exit status of one command, run in this process."""
    try:
        return cli.main(arguments)
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("--help") == 0
    text = capsys.readouterr().out
    assert all(f"  {command} " in text for command in ("serve", "engine", "demo", "check", "settings"))


def test_help_needs_neither_server_nor_core() -> None:
    code = """
import sys
from foreword.cli import main
try:
    main(["serve", "--help"])
except SystemExit:
    pass
print([name for name in ("granian", "starlette", "asyncio", "foreword._core") if name in sys.modules])
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"
    assert "FOREWORD_UPSTREAM" in answer.stdout


@pytest.mark.parametrize("arguments", [["settings", "--markdown"], ["plan", "--load", "conversations=1"]])
def test_a_reader_that_leaves_is_no_fault(arguments: list[str]) -> None:
    code = f"import sys; from foreword.cli import main; sys.exit(main({arguments!r}))"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        answer = subprocess.run(
            [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert answer.returncode == cli.READER_LEFT
    assert answer.stderr == b""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("--version") == 0
    assert capsys.readouterr().out == f"foreword {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [(), ("sevre",), ("serve", "--fast"), ("settings", "--markdown", "--comments")]
)
def test_wrong_usage_is_2(arguments: tuple[str, ...]) -> None:
    assert status(*arguments) == 2


@pytest.mark.parametrize("command", ["serve", "check"])
def test_wrong_settings_are_2_and_all_named(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOREWORD_PORT", "eighty")
    monkeypatch.setenv("FOREWORD_UPSTREAM", "engine:8000")
    monkeypatch.setenv("FOREWORD_UPSTRAEM", "http://engine:8000")
    assert status(command) == 2
    told = capsys.readouterr().err
    assert "FOREWORD_PORT must be a whole number from 1 to 65535 (it is 'eighty')" in told
    assert "FOREWORD_UPSTREAM must be http://" in told
    assert "warning: FOREWORD_UPSTRAEM is not a setting of Foreword; did you mean FOREWORD_UPSTREAM?" in told


@pytest.mark.parametrize(("command", "module"), [("engine", "foreword.standin"), ("demo", "foreword.demo")])
def test_commands_with_parsers_of_their_own_get_their_arguments(
    command: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        got.append(arguments)
        return 7

    stand_in = types.ModuleType(module)
    stand_in.main = main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module, stand_in)
    assert status(command, "--port", "1", "--help") == 7
    assert got == [["--port", "1", "--help"]]


class Engine(BaseHTTPRequestHandler):
    """vLLM as far as the preflight asks; class attributes set what is wrong with it."""

    details: dict[str, int] | None = {"cached_tokens": 480}
    stream_status = 200
    own_messages: tuple[int, dict[str, int] | None] | None = None
    """Status and usage at its own /v1/messages; None: it has none."""
    message_events: tuple[str, ...] = ("message_start", "message_delta", "message_stop")
    metrics = (ROOT / "tests/fixtures/engines/vllm/metrics-0.32.txt").read_bytes()

    def do_GET(self) -> None:
        if self.path == "/metrics" and self.metrics:
            self._answer(200, self.metrics)
            return
        answers: dict[str, object] = {
            "/v1/models": {"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 65536}]},
            "/version": {"version": "0.32.0"},
        }
        self._answer(200 if self.path in answers else 404, orjson.dumps(answers.get(self.path)))

    def do_POST(self) -> None:
        ask = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/tokenize":
            text = orjson.dumps([ask.get("tools"), ask["messages"]])
            self._answer(200, orjson.dumps({"tokens": list(text)}))
            return
        if self.path == "/v1/messages":
            self._message(stream=ask["stream"])
            return
        usage = {"prompt_tokens": 500, "completion_tokens": 1, "prompt_tokens_details": self.details}
        if not ask.get("stream"):
            self._answer(200, orjson.dumps({"choices": [], "usage": usage}))
        elif self.stream_status == 200:
            self._answer(
                200, b"data: " + orjson.dumps({"choices": [], "usage": usage}) + b"\n\ndata: [DONE]\n\n"
            )
        else:
            self._answer(self.stream_status, b'{"error":{"message":"no stream_options"}}')

    def _message(self, *, stream: bool) -> None:
        if self.own_messages is None:
            self._answer(404, b'{"detail":"Not Found"}')
            return
        code, usage = self.own_messages
        if not stream:
            self._answer(code, orjson.dumps({"type": "message", "content": [], "usage": usage}))
            return
        # As vLLM: the start tells the whole prompt, the end what was cached of it.
        told: dict[str, dict[str, object]] = {
            "message_start": {"message": {"usage": {"input_tokens": 500, "output_tokens": 0}}},
            "message_delta": {"delta": {"stop_reason": "max_tokens"}, "usage": usage},
        }
        events = [orjson.dumps({"type": name, **told.get(name, {})}) for name in self.message_events]
        self._answer(code, b"".join(b"data: " + event + b"\n\n" for event in events))

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """No access log in the tests' output."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Engine]]:
    handler = type("OneEngine", (Engine,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setenv("FOREWORD_UPSTREAM", f"http://127.0.0.1:{server.server_port}")
        yield handler
        server.shutdown()
        thread.join()


def checks(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, object]]:
    report = orjson.loads(capsys.readouterr().out)
    assert report["good"] is all(line["level"] != "fail" for line in report["checks"])
    return {line["name"]: (line["level"], line["value"]) for line in report["checks"]}


@pytest.mark.usefixtures("engine")
def test_check_of_a_good_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("check", "--json") == 0
    assert checks(capsys) == {
        "engine": ("ok", "vllm"),
        "models": ("ok", ["tiny"]),
        "context length": ("ok", 65536),
        "billing header": ("ok", False),
        "template order": ("ok", "tools-first"),
        "late system messages": ("ok", True),
        "earlier reasoning": ("ok", False),
        "cached tokens in usage": ("ok", 480),
        "usage of streams": ("ok", True),
        "metrics": ("ok", []),
        "cache step": ("ok", 32),
        "second cache level": ("ok", True),
    }


@pytest.mark.usefixtures("engine")
def test_check_of_an_order_that_is_set_and_is_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOREWORD_TEMPLATE_ORDER", "system-first")
    assert status("check") == 0
    assert "WARN  template order          tools-first, and FOREWORD_TEMPLATE_ORDER says system-first" in (
        capsys.readouterr().out
    )


@pytest.mark.usefixtures("engine")
def test_check_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("check") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("OK    engine                  vllm 0.32.0 at http://127.0.0.1:")
    assert len(lines) == 12


def test_check_finds_usage_without_cached_tokens(
    engine: type[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    engine.details = None
    assert status("check", "--json") == 1
    assert checks(capsys)["cached tokens in usage"] == ("fail", None)


def test_check_notes_a_cache_that_holds_nothing_and_refused_stream_options(
    engine: type[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    engine.details = {"cached_tokens": 0}
    engine.stream_status = 400
    assert status("check", "--json") == 0
    found = checks(capsys)
    assert found["cached tokens in usage"] == ("warn", 0)
    assert found["usage of streams"] == ("warn", False)


def test_check_says_what_to_do(engine: type[Engine], capsys: pytest.CaptureFixture[str]) -> None:
    engine.details = None
    assert status("check") == 1
    shown = capsys.readouterr().out
    assert "FAIL  cached tokens in usage  not reported\n" in shown
    assert "-> start vLLM with --enable-prompt-tokens-details" in shown


def test_check_of_metrics(engine: type[Engine], capsys: pytest.CaptureFixture[str]) -> None:
    engine.metrics = b""
    assert status("check", "--json") == 0
    assert checks(capsys)["metrics"] == ("warn", None)
    engine.metrics = (ROOT / "tests/fixtures/engines/vllm/metrics-offload.txt").read_bytes()
    status("check", "--json")
    found = checks(capsys)
    assert found["cache step"] == ("ok", 256)
    assert found["second cache level"] == ("warn", False), "written and not read"
    engine.metrics = (ROOT / "tests/fixtures/engines/vllm/metrics-0.8.txt").read_bytes()
    status("check", "--json")
    assert checks(capsys)["metrics"][0] == "warn"


NATIVE = "native /v1/messages"


def test_check_asks_the_engines_own_messages_where_they_are_used(
    engine: type[Engine], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.own_messages = 200, {"input_tokens": 20, "output_tokens": 1, "cache_read_input_tokens": 480}
    assert status("check", "--json") == 0
    assert NATIVE not in checks(capsys), "translated requests never go there"
    monkeypatch.setenv("FOREWORD_MESSAGES", "native")
    assert status("check", "--json") == 0
    assert checks(capsys)[NATIVE] == ("ok", 480)
    assert status("check") == 0
    assert "answers, also streams; cached tokens reported: 480 of 500 for" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "the engine has no /v1/messages (status 404)"),
        ((400, None), "a message of one token is answered with status 400"),
        ((200, None), "cached tokens not reported"),
        ((200, {"input_tokens": 500}), "cached tokens not reported"),
    ],
)
def test_check_finds_messages_that_the_engine_does_not_serve_well(
    answer: tuple[int, dict[str, int] | None] | None,
    told: str,
    engine: type[Engine],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FOREWORD_MESSAGES", "native")
    engine.own_messages = answer
    assert status("check") == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if NATIVE in line]
    assert line.startswith("FAIL")
    assert told in line


@pytest.mark.parametrize("events", [(), ("message_start", "message_delta"), ("error",)])
def test_check_finds_a_stream_of_messages_that_does_not_end(
    events: tuple[str, ...],
    engine: type[Engine],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FOREWORD_MESSAGES", "native")
    engine.own_messages, engine.message_events = (200, {"cache_read_input_tokens": 480}), events
    assert status("check", "--json") == 1
    assert checks(capsys)[NATIVE] == ("fail", None)


@pytest.mark.usefixtures("engine")
def test_check_finds_a_header_that_nobody_takes_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOREWORD_RULE_BILLING_HEADER", "off")
    assert status("check", "--json") == 1
    assert checks(capsys)["billing header"] == ("fail", False)


@pytest.mark.parametrize("upstream", ["http://127.0.0.1:9", "unix:/nowhere/engine.sock"])
def test_check_without_an_engine(
    upstream: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOREWORD_UPSTREAM", upstream)
    assert status("check", "--json") == 1
    assert checks(capsys) == {"engine": ("fail", None)}


def test_the_module_runs() -> None:
    command = [sys.executable, "-m", "foreword", "settings", "--markdown"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("# Settings\n")
