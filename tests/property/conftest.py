"""How properties are tried: as long as it takes, because a busy machine breaks no property (`conftest.py`)."""

import pathlib

import pytest

FOLDER = pathlib.Path(__file__).parent
# What breaks a property is made small before it is shown, for which hypothesis takes up to five minutes; beside another
# suite all of it takes longer.
LONGEST_S = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the properties the time that they may take."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.timeout(LONGEST_S))
