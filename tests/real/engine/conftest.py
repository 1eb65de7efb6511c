"""Running engines for the tests, and the table of what was measured on them."""

from collections.abc import Iterator

import pytest
from tests.real.engine import install
from tests.real.engine.measure import Rows
from tests.real.engine.server import Server

_rows = Rows()


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Iterator[Server]:
    """An engine; its parameter is (version, what the template does with late system messages, whether it reports).

    pytest runs all tests of one engine together, so that there is never more than one.
    """
    version, late_system, reports = request.param
    if not (install.site(version) / ".complete").exists():
        pytest.skip(f"vLLM {version} is not installed: python -m tests.real.engine.install {version}")
    with Server(version, late_system, reports=reports) as server:
        yield server


@pytest.fixture
def rows() -> Rows:
    """Where a test puts what it measured."""
    return _rows


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _rows.lines:
        terminalreporter.section("hit rates: cached tokens / prompt tokens of all requests")
        for line in _rows.table():
            terminalreporter.write_line(line)
