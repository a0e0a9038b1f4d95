"""QdrantConnections through their lives: TLS, rotated keys, going away and coming back.

The operator here is the ordinary one with shorter waiting times.
"""

import pathlib
from collections.abc import Iterator

import pytest

from tests.support.api_stack import dev_qdrant
from tests.support.certificates import Authority
from tests.support.controlplane import ControlPlane
from tests.support.operator import ForkedOperator, Nursery
from tests.support.workspace import CONNECTION, Workspace

pytestmark = pytest.mark.usefixtures("quick_operator")

PERIODS = {"stalled_s": 1.0, "probe_s": 1.0}
TLS = {"caSecretRef": {"name": "qdrant-ca", "key": "ca.crt"}}


@pytest.fixture(scope="module")
def quick_operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedOperator]:
    """The operator, looking again after a second."""
    nursery = Nursery(control_plane, tmp_path_factory.mktemp("operator"))
    yield nursery.start(periods=PERIODS)
    nursery.close()


@pytest.fixture
def authority(tmp_path: pathlib.Path) -> Authority:
    """Vouches for the server."""
    return Authority(tmp_path)


@pytest.fixture
def tls_url(authority: Authority, tmp_path: pathlib.Path) -> Iterator[str]:
    """A development Qdrant server that speaks TLS."""
    with dev_qdrant(tmp_path / "qdrant", tls=authority.issue()) as url:
        yield url


class TestTls:
    def test_an_authority_from_a_secret_makes_the_server_usable(
        self, workspace: Workspace, authority: Authority, tls_url: str
    ) -> None:
        workspace.create_secret("qdrant-ca", **{"ca.crt": authority.pem})
        workspace.connect(url=tls_url, tls=TLS)
        workspace.create()

        workspace.wait_ready()

    def test_a_wrong_authority_is_told_on_both_objects_and_the_right_one_is_enough(
        self, workspace: Workspace, authority: Authority, tls_url: str, tmp_path: pathlib.Path
    ) -> None:
        workspace.create_secret("qdrant-ca", **{"ca.crt": Authority(tmp_path).pem})
        workspace.connect(url=tls_url, tls=TLS)
        workspace.create()
        condition = workspace.wait_condition("Ready", "False/TLSFailed")
        assert "spec.tls.caSecretRef" in condition["message"]
        workspace.wait_condition("Stalled", "True/TLSFailed", name=CONNECTION, of="QdrantConnection")

        workspace.change_secret("qdrant-ca", **{"ca.crt": authority.pem})

        workspace.wait_ready()

    def test_what_is_no_certificate_is_named(self, workspace: Workspace, tls_url: str) -> None:
        workspace.create_secret("qdrant-ca", **{"ca.crt": "s3cret"})

        workspace.connect(url=tls_url, tls=TLS)

        condition = workspace.wait_condition("Stalled", "True/InvalidCA", name=CONNECTION, of="QdrantConnection")
        assert "spec.tls.caSecretRef" in condition["message"]
        assert "s3cret" not in condition["message"]
