"""What several test modules share."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the ids of `case` marks into the report, where `.ci/cases` reads which of them ran."""
    for item in items:
        faults = [fault for mark in item.iter_markers("case") for fault in mark.args]
        item.user_properties.extend(("case", fault) for fault in faults)
