"""Time limit of property tests: a busy machine must not fail a property."""

import pathlib

import pytest

FOLDER = pathlib.Path(__file__).parent
# Hypothesis takes up to five minutes to shrink a failing example; next to another suite it takes longer.
TIMEOUT_S = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the timeout of property tests."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
