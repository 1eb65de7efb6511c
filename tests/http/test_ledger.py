"""The ledger of a real sidecar: each exchange a line, whatever happens to the process or to its disk."""

import gzip
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import StartSidecar
from .engine import ScriptedEngine, answers, says
from .sidecar import CHAT, MESSAGES, Sidecar, ask, children


def records(directory: Path) -> list[dict[str, Any]]:
    """All records of a ledger; a line that is no JSON object fails."""
    lines = [line for path in sorted(directory.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    return [json.loads(line) for line in lines]


def wait_for(what: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def counter(sidecar: Sidecar, name: str) -> float:
    lines = sidecar.request("GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"foreword_{name} "))


def served(sidecar: Sidecar, number: int) -> list[str]:
    """Sends so many requests; their ids."""
    answers = [sidecar.post((CHAT, MESSAGES)[i % 2], ask(stream=i % 3 == 0)) for i in range(number)]
    assert [answer.status for answer in answers] == [200] * number
    return [answer.headers["request-id"] for answer in answers]


def test_each_exchange_is_a_line_and_is_there_when_the_process_ends(
    start_sidecar: StartSidecar, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.answer = says("a secret of the answer")
    directory = tmp_path / "made" / "ledger"
    sidecar = start_sidecar(engine.url, LEDGER=str(directory))
    ids = served(sidecar, 9)
    ids.append(sidecar.post(CHAT, ask(content="a secret of the prompt")).headers["request-id"])
    assert sidecar.stop() == 0
    kept = records(directory)
    assert [record["request_id"] for record in kept] == ids
    logged = {record["request_id"]: record for record in sidecar.records()}
    assert all(record.items() <= logged[record["request_id"]].items() for record in kept)
    everything = b"".join(path.read_bytes() for path in directory.iterdir())
    assert b"secret" not in everything
    assert (directory / "digest.key").stat().st_mode & 0o777 == 0o600


def test_lines_survive_kill_and_the_next_start_goes_on(
    start_sidecar: StartSidecar, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.answer = says("hi")
    directory = tmp_path / "ledger"
    sidecar = start_sidecar(engine.url, LEDGER=str(directory))
    before = served(sidecar, 5)
    wait_for(lambda: counter(sidecar, "ledger_records_total") == 5)
    key = (directory / "digest.key").read_text()
    for pid in (*children(sidecar.process.pid), sidecar.process.pid):
        os.kill(pid, signal.SIGKILL)
    sidecar.process.wait(10)
    (cut,) = directory.glob("*.jsonl")
    with cut.open("ab") as file:
        file.write(b'{"v":1,"request_id":"req_cut')  # as a crash in the middle of a write leaves it
    again = start_sidecar(engine.url, LEDGER=str(directory))
    after = served(again, 3)
    assert again.stop() == 0
    assert [record["request_id"] for record in records(directory)] == before + after
    assert len(list(directory.glob("*.jsonl"))) == 2
    assert (directory / "digest.key").read_text() == key


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "foreword-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_fails_no_request_and_loses_nothing_meanwhile(
    start_sidecar: StartSidecar, engine: ScriptedEngine, small_disk: Path
) -> None:
    engine.answer = says("hi")
    ballast = small_disk / "ballast"
    sidecar = start_sidecar(engine.url, LEDGER=str(small_disk / "ledger"))
    ids = served(sidecar, 3)
    wait_for(lambda: counter(sidecar, "ledger_records_total") == 3)
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(1 << 20))
    ids += served(sidecar, 30)
    wait_for(lambda: counter(sidecar, "ledger_failures_total") > 0)
    assert sidecar.request("GET", "/health/ready").status == 200
    ballast.unlink()
    wait_for(lambda: counter(sidecar, "ledger_records_total") == 33)
    assert [record["request_id"] for record in records(small_disk / "ledger")] == ids
    assert counter(sidecar, "ledger_dropped_total") == 0
    assert sidecar.stop() == 0
    told = [line for line in sidecar.log.read_text().splitlines() if "the ledger in" in line]
    assert ["cannot be written" in line for line in told] == [True, False]


def test_a_directory_that_cannot_be_used_and_one_that_vanishes(
    start_sidecar: StartSidecar, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.answer = says("hi")
    place = tmp_path / "ledger"
    place.write_text("a file where the directory should be")
    sidecar = start_sidecar(engine.url, LEDGER=str(place))
    first = served(sidecar, 2)
    wait_for(lambda: counter(sidecar, "ledger_failures_total") > 0)
    place.unlink()
    wait_for(lambda: counter(sidecar, "ledger_records_total") == 2)
    assert [record["request_id"] for record in records(place)] == first
    for file in place.iterdir():
        file.unlink()
    place.rmdir()
    second = served(sidecar, 2)
    wait_for(lambda: counter(sidecar, "ledger_records_total") == 4)
    assert [record["request_id"] for record in records(place)] == second
    assert (place / "digest.key").exists()


def test_without_a_ledger_there_is_none(start_sidecar: StartSidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    sidecar = start_sidecar(engine.url)
    served(sidecar, 1)
    assert "foreword_ledger" not in sidecar.request("GET", "/metrics").body.decode()


def test_records_go_to_clickhouse_and_wait_while_it_is_away(
    start_sidecar: StartSidecar, engine: ScriptedEngine
) -> None:
    engine.answer = says("hi")
    with ScriptedEngine() as table:
        table.answer = answers(500, b"Code: 60. no such table")
        url = f"http://me:hunter2@127.0.0.1:{table.port}/db?table=llm"
        sidecar = start_sidecar(engine.url, CLICKHOUSE_URL=url)
        ids = served(sidecar, 2)
        wait_for(lambda: counter(sidecar, "clickhouse_failures_total") > 0)
        table.answer = answers(200, b"")
        wait_for(lambda: counter(sidecar, "clickhouse_rows_total") == 2)
        ids += served(sidecar, 3)
        assert sidecar.stop() == 0, "what is queued goes out before the end"
        refused = table.requests[0]
        taken = [request for request in table.requests if request.body != refused.body]
        taken.insert(0, next(request for request in table.requests[1:] if request.body == refused.body))
        rows = [json.loads(line) for request in taken for line in request.body.splitlines()]
        assert sorted(row["request_id"] for row in rows) == sorted(ids)
        assert refused.target.startswith("/?query=INSERT%20INTO%20%60db%60.%60llm%60")
        assert (refused.header("x-clickhouse-user"), refused.header("x-clickhouse-key")) == ("me", "hunter2")
    log = sidecar.log.read_text()
    assert "no such table" in log
    assert "takes records again" in log
    assert "hunter2" not in log


def test_captures_are_whole_and_bounded_and_warned_of(
    start_sidecar: StartSidecar, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.answer = says("hi")
    directory = tmp_path / "captures"
    sidecar = start_sidecar(engine.url, CAPTURE=str(directory), CAPTURE_REQUESTS="2", CAPTURE_SECONDS="600")
    sidecar.post("/v1/messages/count_tokens", ask(content="not a prompt"))
    body = json.dumps(ask(False, 'all of the "text"')).encode()
    answer = sidecar.post(CHAT, gzip.compress(body), {"content-encoding": "gzip"})
    served(sidecar, 3)
    wait_for(lambda: "capture ended" in sidecar.log.read_text())
    (folder,) = directory.iterdir()
    first, second = sorted(folder.iterdir())
    captured = json.loads(first.read_text())
    assert captured["body"].encode() == body
    assert (captured["request_id"], captured["route"]) == (answer.headers["request-id"], "chat")
    assert json.loads(second.read_text())["route"] == "chat"
    assert {path.stat().st_mode & 0o777 for path in (directory, folder)} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in (first, second)} == {0o600}
    log = sidecar.log.read_text()
    assert "WITH THEIR TEXT" in log
    assert "all of the" not in log
