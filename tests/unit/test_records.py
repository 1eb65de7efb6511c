"""Who is told of an exchange: everybody, whatever becomes of the others."""

import logging
from collections.abc import Mapping

import pytest

from foreword.records import Records


def test_a_record_is_read_once_and_only_if_somebody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    raw: list[bytes] = []
    read: list[Mapping[str, object]] = []
    Records([raw.append], [read.append, read.append])(b'{"v":1}')
    assert raw == [b'{"v":1}']
    assert read == [{"v": 1}, {"v": 1}]
    assert read[0] is read[1]

    Records([raw.append])(b"no JSON at all")
    assert raw[1:] == [b"no JSON at all"]


def test_a_consumer_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    read: list[Mapping[str, object]] = []

    def fail(_: object) -> None:
        raise KeyError("usage")

    records = Records([fail], [fail, read.append])
    with caplog.at_level(logging.ERROR):
        records(b'{"v":1}')
        records(b"{broken")
        records(b'{"v":2}')
    assert read == [{"v": 1}, {"v": 2}]
    assert records.failures == 2 + 2 + 2
    assert len(caplog.records) == 1
