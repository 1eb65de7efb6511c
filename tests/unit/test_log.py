"""One line an exchange, and a slow reader holds nobody up."""

import io
import logging
import subprocess
import sys
import threading

import orjson
import pytest

from foreword.log import ExchangeLog, Form, LineWriter

RECORD = b'{"request_id":"req_1","status":200,"model":"two words","cached":null,"usage":{"prompt_tokens":7}}'


def written(form: Form, record: bytes = RECORD) -> bytes:
    stream = io.BytesIO()
    writer = LineWriter(stream)
    ExchangeLog(writer, form)(record)
    writer.close()
    return stream.getvalue()


def test_a_record_as_json() -> None:
    line = orjson.loads(written("json"))
    assert line == {"level": "info", "event": "exchange", **orjson.loads(RECORD)}


def test_a_record_as_text() -> None:
    words = written("text").decode().rstrip("\n").split(" ", 3)
    told = 'request_id=req_1 status=200 model="two words" cached=null usage.prompt_tokens=7'
    assert words[1:] == ["info", "exchange", told]


def test_a_line_for_people_has_no_segments() -> None:
    prompt = (
        b'{"prompt":{"bytes":9,"head":[{"path":"system","digest":"0"}],"new":[]},"rules":["late-system"]}'
    )
    line = written("text", prompt).decode().rstrip("\n").split(" ", 3)[3]
    assert line == 'prompt.bytes=9 prompt.new=[] rules="[\\"late-system\\"]"'


class Stuck(io.BytesIO):
    """A stream whose reader sleeps until it is woken."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.woken = threading.Event()

    def write(self, line: object, /) -> int:
        self.reached.set()
        assert self.woken.wait(10)
        return super().write(line)  # type: ignore[arg-type]


def test_a_reader_that_sleeps_costs_lines_and_not_time() -> None:
    stream = Stuck()
    writer = LineWriter(stream, limit=2)
    writer.put(b"1")
    assert stream.reached.wait(10)
    for line in (b"2", b"3", b"4", b"5"):
        writer.put(line)
    assert writer.dropped == 2
    stream.woken.set()
    writer.close()
    assert stream.getvalue().splitlines() == [
        b"1",
        b"2",
        b'{"level":"warning","event":"log-lines-dropped","count":2}',
        b"3",
    ]


def test_nobody_reads() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream)
    stream.close()
    writer.put(b"lost")
    writer.close()
    assert writer.dropped == 0


@pytest.mark.parametrize("form", ["json", "text"])
def test_python_logging_goes_the_same_way(form: str) -> None:
    code = f"""
import logging
from foreword.log import configure
writer, _ = configure({form!r})
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("foreword.x").exception("it %s", "broke")
writer.close()
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if form == "json":
        line = orjson.loads(answer.stderr)
        assert (line["level"], line["event"], line["message"]) == ("error", "message", "it broke")
        assert line["trace"].endswith("ZeroDivisionError: division by zero")
    else:
        assert " error it broke\nTraceback" in answer.stderr
    assert logging.getLogger().level == logging.WARNING, "this process is not touched"
