"""The standard set's table, from what locust reports."""

import sys
from typing import Any

import pytest
from loadtest import compare
from loadtest.run import Crowd, figures, table


def row(
    method: str, times: dict[str, int], failures: int = 0, name: str = "/v1/messages tool"
) -> dict[str, Any]:
    return {
        "method": method,
        "name": name,
        "num_requests": sum(times.values()),
        "num_failures": failures,
        "response_times": times,
    }


def test_names_are_summed_and_percentiles_count_samples() -> None:
    found = figures(
        [
            row("TTFT", {"10": 98, "200": 1}),
            row("TTFT", {"500": 1}, name="/v1/messages question"),
            row("stream", {"400.0": 99, "900": 1}, failures=2),
            row("left", {"50": 3}),
        ]
    )
    assert (found.requests, found.failures) == (103, 2)
    assert found.percentile("TTFT", 0.5) == 10
    assert found.percentile("TTFT", 0.99) == 200
    assert found.percentile("TTFT", 1.0) == 500
    assert found.percentile("stream", 0.5) == 400


@pytest.mark.parametrize("report", [[], [row("stream", {}, failures=0)]])
def test_what_was_not_measured_is_no_zero(report: list[dict[str, Any]]) -> None:
    assert figures(report).percentile("TTFT", 0.5) is None
    assert "| - |" in table([(Crowd("nobody", "opencode", relayed=False), figures(report))])[-1]


def test_ratios_are_to_the_same_client_without_a_relay() -> None:
    alone = figures([row("TTFT", {"20": 10}), row("stream", {"100": 10})])
    relayed = figures([row("TTFT", {"30": 10}), row("stream", {"100": 9}, failures=1)])
    head, _, first, second, third = table(
        [
            (Crowd("alone", "opencode", relayed=False), alone),
            (Crowd("relayed", "opencode", relayed=True), relayed),
            (Crowd("other", "claude-code", relayed=True), relayed),
        ]
    )
    assert head.startswith("| users | requests | failures | TTFT p50 ms |")
    assert first.startswith("| alone | 10 | 0 | 20 | 20 |")
    assert second.startswith("| relayed | 9 | 1 | 30 (1.50x) | 30 (1.50x) |")
    assert third.startswith("| other | 9 | 1 | 30 | 30 |")


def test_the_bare_server_needs_an_interpreter_that_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare.py", "--targets", "direct,granian"])
    assert compare.has_granian()
    assert compare.arguments().targets == ["direct", "granian"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        compare.arguments()
    assert "run this with .venv/bin/python" in capsys.readouterr().err
