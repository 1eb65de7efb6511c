"""Following a log file through everything that happens to one."""

import gzip
import os
import shutil
from pathlib import Path

import pytest

from foreword.watching import follower as module
from foreword.watching.follower import Follower


class Log:
    """A file, and what a follower has read of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.follower = Follower(str(path))

    def write(self, data: str | bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data.encode() if isinstance(data, str) else data)

    def read(self, polls: int = 3) -> list[str]:
        return [line for _ in range(polls) for line in self.follower.poll().lines]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "engine.log")
    log.write("")
    log.read()
    return log


def test_lines_as_they_come(log: Log) -> None:
    log.write("one\ntwo\nthr")
    assert log.read() == ["one", "two"]
    log.write("ee\n\nfour\n")
    assert log.read() == ["three", "four"]
    assert log.read() == []
    assert log.follower.trouble is None


def test_a_file_that_comes_later(tmp_path: Path) -> None:
    log = Log(tmp_path / "later.log")
    assert log.read() == []
    assert log.follower.trouble == "there is no such file yet"
    log.write("first\n")
    arrived = log.follower.poll()
    assert (arrived.lines, arrived.history) == (["first"], False)


def test_what_was_there_before_is_history(tmp_path: Path) -> None:
    log = Log(tmp_path / "engine.log")
    log.write("old\n")
    arrived = log.follower.poll()
    assert (arrived.lines, arrived.history) == (["old"], True)
    log.write("new\n")
    arrived = log.follower.poll()
    assert (arrived.lines, arrived.history) == (["new"], False)


def test_only_the_end_of_a_long_history_is_read(tmp_path: Path) -> None:
    log = Log(tmp_path / "engine.log")
    log.write("".join(f"line {number:06}\n" for number in range(100_000)))
    lines = log.read()
    assert lines[-1] == "line 099999"
    assert len("\n".join(lines)) <= module.TAIL_BYTES
    assert all(line.startswith("line ") for line in lines), "the first is a whole one"


def test_rotation_by_rename(log: Log) -> None:
    log.write("before\n")
    assert log.read() == ["before"]
    log.write("last of the old\nnot ended")
    log.path.rename(log.path.with_suffix(".1"))
    assert log.read() == ["last of the old"], "the new file is not there yet"
    log.write("first of the new\n")
    assert log.read(4) == ["not ended", "first of the new"]
    assert log.follower.rotations == 1


def test_a_writer_that_goes_on_in_the_renamed_file(log: Log) -> None:
    with log.path.open("ab") as file:
        log.path.rename(log.path.with_suffix(".1"))
        assert log.read() == []
        file.write(b"late\n")
        file.flush()
        assert log.read() == ["late"]
    log.write("new\n")
    assert log.read(4) == ["new"]


def test_rotation_by_truncation(log: Log) -> None:
    log.write("a long line that is there first\nand a half")
    assert log.read() == ["a long line that is there first"]
    os.truncate(log.path, 0)
    log.write("short\n")
    assert log.read() == ["short"]
    assert log.follower.rotations == 1


def test_truncation_and_more_than_was_there(log: Log) -> None:
    log.write("first\n")
    assert log.read() == ["first"]
    os.truncate(log.path, 0)
    log.write("second, which is longer than the first\n")
    assert log.read() == ["second, which is longer than the first"]


def rotate(path: Path, keep: int = 5) -> None:
    """As logrotate does by renaming."""
    for number in range(keep, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.rename(path.with_name(f"{path.name}.{number + 1}"))
    path.rename(path.with_name(f"{path.name}.1"))


@pytest.mark.parametrize("times", [1, 2, 3, 5])
def test_several_rotations_between_two_looks(log: Log, times: int) -> None:
    log.write("a 0\n")
    assert log.read() == ["a 0"]
    expected = []
    for number in range(times):
        log.write(f"b {number}\nnot ended {number}")
        expected += [f"b {number}", f"not ended {number}"]
        rotate(log.path)
    log.write("c\n")
    assert log.read(4 * times) == [*expected, "c"]
    assert (log.follower.rotations, log.follower.lost) == (times, 0)
    log.write("d\n")
    assert log.read() == ["d"]
    rotate(log.path)
    log.write("e\n")
    assert log.read(8) == ["e"], "what was read is not read again"


def test_rotations_by_date(log: Log) -> None:
    log.write("one\n")
    assert log.read() == ["one"]
    for day in (28, 29, 30):
        log.write(f"end of {day}\n")
        log.path.rename(log.path.with_name(f"{log.path.name}-202611{day}"))
    log.write("now\n")
    assert log.read(12) == ["end of 28", "end of 29", "end of 30", "now"]


def test_older_files_and_those_of_others_are_left_alone(log: Log) -> None:
    for name in ("engine.log.1", "engine.log.2", "engine.log-20260101", "engine.logs", "other.log.1"):
        log.path.with_name(name).write_text("old\n")
        os.utime(log.path.with_name(name), (1, 1))
    log.path.with_name("engine.log.d").mkdir()
    log.path.with_name("engine.logs").write_text("of another\n")
    log.write("one\n")
    assert log.read() == ["one"]
    rotate(log.path)
    rotate_target = log.path.with_name("engine.log.3")
    assert rotate_target.read_text() == "old\n"
    log.write("two\n")
    assert log.read(6) == ["two"]
    assert (log.follower.rotations, log.follower.lost) == (1, 0)


def test_a_file_that_was_packed_unread_is_counted(log: Log) -> None:
    log.write("one\n")
    assert log.read() == ["one"]
    rotate(log.path)
    log.write("two\n")
    rotate(log.path)
    with gzip.open(log.path.with_name("engine.log.1.gz"), "wb") as packed:
        packed.write(log.path.with_name("engine.log.1").read_bytes())
    log.path.with_name("engine.log.1").unlink()
    log.write("three\n")
    assert log.read(8) == ["three"]
    assert (log.follower.rotations, log.follower.lost) == (2, 1)


def test_the_first_file_is_gone_and_the_next_is_there(log: Log) -> None:
    log.write("one\n")
    assert log.read() == ["one"]
    log.write("end of one\n")
    log.path.unlink()
    log.write("two\n")
    log.path.rename(log.path.with_name("engine.log.1"))
    log.write("three\n")
    assert log.read(8) == ["end of one", "two", "three"]


@pytest.mark.parametrize("half", ["", "and a half"])
def test_a_copy_that_was_taken_before_the_cut(log: Log, half: str) -> None:
    log.write("first\n")
    assert log.read() == ["first"]
    log.write("read" + half)
    assert log.read() == []
    log.write(" by halves\nunread\n")
    shutil.copyfile(log.path, log.path.with_name("engine.log.1"))
    os.truncate(log.path, 0)
    log.write("anew\n")
    assert log.read(8) == [f"read{half} by halves", "unread", "anew"]
    assert (log.follower.rotations, log.follower.dropped) == (1, 0)
    log.write("more\n")
    assert log.read() == ["more"]


def test_a_copy_of_an_earlier_cut_is_not_read_again(log: Log) -> None:
    log.write("the same first line\none\n")
    assert len(log.read()) == 2
    older = log.path.with_name("engine.log.1")
    older.write_text("the same first line\none\nof long ago\n")
    os.utime(older, (1, 1))
    os.truncate(log.path, 0)
    log.write("two\n")
    assert log.read(8) == ["two"]


def test_removal_and_return(log: Log) -> None:
    log.write("one\n")
    assert log.read() == ["one"]
    log.path.unlink()
    assert log.read() == []
    log.write("two\n")
    assert log.read(4) == ["two"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1", "utf-8-sig"])
def test_any_encoding(tmp_path: Path, encoding: str) -> None:
    log = Log(tmp_path / "engine.log")
    log.read()
    log.write("strata serve: prompt 5 tokens = 1 reused + 4 read \xe9\r\nnext\r\n".encode(encoding))
    first, second = log.read()
    assert "strata serve: prompt 5 tokens = 1 reused + 4 read" in first
    assert second == "next"


def test_colours_and_carriage_returns(log: Log) -> None:
    log.write("\x1b[1;32mgreen\x1b[0m\rprogress 1\rprogress 2\r\n")
    assert log.read() == ["green", "progress 1", "progress 2"]


def test_a_line_that_never_ends_is_dropped(log: Log) -> None:
    for _ in range(8):
        log.write("x" * 20_000)
        assert log.read() == []
    log.write("end of it\nnext\n")
    assert log.read() == ["next"]
    assert log.follower.dropped == 1


def test_each_read_is_bounded(log: Log) -> None:
    log.write("a line of some length\n" * 50_000)
    arrived = log.follower.poll()
    assert sum(len(line) + 1 for line in arrived.lines) <= module.READ_BYTES
    lines = list(arrived.lines)
    while arrived.lines:
        arrived = log.follower.poll()
        lines += arrived.lines
    assert not log.follower.behind
    assert lines == ["a line of some length"] * 50_000


def test_what_is_no_file(tmp_path: Path) -> None:
    folder = Log(tmp_path)
    assert folder.read() == []
    assert folder.follower.trouble == "this is no regular file"
    os.mkfifo(tmp_path / "pipe")
    pipe = Log(tmp_path / "pipe")
    assert pipe.read() == [], "and nobody waits"
    nowhere = Log(tmp_path / "no" / "such" / "folder.log")
    assert nowhere.read() == []
    assert nowhere.follower.trouble == "there is no such file yet"


def test_every_split_gives_the_same_lines(log: Log) -> None:
    text = "strata serve: one\r\n\x1b[31mtwo\x1b[0m\n\nthree \xe4\n".encode()
    for cut in range(len(text)):
        log.write(text[:cut])
        lines = log.read(1)
        log.write(text[cut:])
        assert lines + log.read(1) == ["strata serve: one", "two", "three \xe4"], cut
