"""What a server can do, from its version."""

import pytest

from agentmemory_operator.connections.rules.capabilities import (
    SINCE,
    ServerCapabilities,
    derive_capabilities,
    parse_version,
)


@pytest.mark.parametrize(
    ("version", "newest"),
    [
        ("1.18.0", "turboQuantization"),
        ("1.18.3", "turboQuantization"),
        ("1.19.1-dev", "memoryTiers"),
        ("v1.20.0", "minMax"),
        ("2.0.0", "minMax"),
    ],
)
def test_a_version_has_what_came_with_it_or_before(version: str, newest: str) -> None:
    found = derive_capabilities(ServerCapabilities(version))

    assert list(found) == sorted(found)
    assert set(found) == {name for name, since in SINCE.items() if since <= SINCE[newest]}


def test_the_oldest_version_that_is_served_has_what_the_search_and_the_chains_need() -> None:
    assert {"formula", "metadata", "updateFilter", "updateMode"} <= set(
        derive_capabilities(ServerCapabilities("1.18.0"))
    )


@pytest.mark.parametrize("version", ["dev", "", "1", "1.x"])
def test_of_a_version_that_is_no_number_nothing_is_known(version: str) -> None:
    assert parse_version(version) is None
    assert derive_capabilities(ServerCapabilities(version)) == ()


@pytest.mark.parametrize(("told", "shown"), [(True, True), (False, False), (None, False)])
def test_tokens_with_limited_rights_are_shown_where_the_server_tells(told: bool | None, shown: bool) -> None:
    assert ("jwtRbac" in derive_capabilities(ServerCapabilities("1.18.3", has_jwt_rbac=told))) is shown
