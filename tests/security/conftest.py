"""Fixtures: operator and API as shipped, for each module; tenants for each test. docs/security.md names these tests.

`infra` is the platform's namespace, with the only Qdrant key. `alpha` and `beta` are tenants with unique names, like
`slug`. A test for tenants with and without the right to write statuses takes the parameter:

    @pytest.mark.parametrize("rights", BOTH)
    def test_something(infra, alpha, beta, slug): ...
"""

import uuid
from collections.abc import Iterator

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.tenants import Platform, Rights, Tenant, create_infra, running_platform
from tests.support.cluster.workspace import Workspace


@pytest.fixture(scope="module")
def platform(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Platform:
    """Operator, API and the platform's Qdrant. The modules of a test process share them."""
    folder = tmp_path_factory.mktemp("platform")
    return control_plane.watcher.get("platform", lambda: running_platform(control_plane, folder))


@pytest.fixture
def infra(platform: Platform) -> Iterator[Workspace]:
    """The platform's namespace; its connection `main` serves all namespaces."""
    made = create_infra(platform)
    yield made
    made.clean()


@pytest.fixture
def rights() -> Rights:
    """Rights of the tenants in their own namespace."""
    return "edit"


@pytest.fixture
def alpha(platform: Platform, infra: Workspace, rights: Rights) -> Iterator[Tenant]:
    """A tenant with the rights of the fixture `rights`."""
    made = Tenant.create(platform, "alpha", rights)
    yield made
    made.close()


@pytest.fixture
def beta(platform: Platform, infra: Workspace, rights: Rights) -> Iterator[Tenant]:
    """A second tenant with the same rights."""
    made = Tenant.create(platform, "beta", rights)
    yield made
    made.close()


@pytest.fixture
def slug() -> str:
    """Agent name that is unique to the test."""
    return f"support-bot-{uuid.uuid4().hex[:8]}"
