"""Capabilities of a server, derived from its version."""

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
def test_version_includes_older_capabilities(version: str, newest: str) -> None:
    found = derive_capabilities(ServerCapabilities(version))

    assert list(found) == sorted(found)
    assert set(found) == {name for name, since in SINCE.items() if since <= SINCE[newest]}


def test_oldest_supported_version_suffices() -> None:
    """Search and chains need these four capabilities."""
    assert {"formula", "metadata", "updateFilter", "updateMode"} <= set(
        derive_capabilities(ServerCapabilities("1.18.0"))
    )


@pytest.mark.parametrize("version", ["dev", "", "1", "1.x"])
def test_unparsable_version_has_no_capabilities(version: str) -> None:
    assert parse_version(version) is None
    assert derive_capabilities(ServerCapabilities(version)) == ()


@pytest.mark.parametrize(("has_jwt_rbac", "expected"), [(True, True), (False, False), (None, False)])
def test_jwt_rbac_requires_a_report_of_the_server(has_jwt_rbac: bool | None, expected: bool) -> None:
    assert ("jwtRbac" in derive_capabilities(ServerCapabilities("1.18.3", has_jwt_rbac=has_jwt_rbac))) is expected
