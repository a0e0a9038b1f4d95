"""Names of collections."""

import pytest

from agentmemory_operator.spec.naming import alias_of, physical_names


def test_alias_is_prefix_and_slug() -> None:
    assert alias_of("support-bot") == "agent_memory_support-bot"


@pytest.mark.parametrize(
    ("last", "likely", "fresh"),
    [
        (None, "a__1", "a__1"),
        ("a__1", "a__1", "a__2"),
        ("a__9", "a__9", "a__10"),
        ("a", "a", "a__1"),
        ("a__b", "a__b", "a__1"),
    ],
)
def test_collection_numbers_are_not_reused(last: str | None, likely: str, fresh: str) -> None:
    assert physical_names("a", last) == (likely, fresh)
