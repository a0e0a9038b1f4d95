"""Tenants that can write every status of their namespace gain and remove nothing of other tenants."""

import time
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.cluster.tenants import Rights, Tenant
from tests.support.cluster.workspace import AGENT, CONNECTION, Workspace, conditions_of
from tests.support.patience import wait_until
from tests.support.spec.documents import Document

SECRET, OWN = "the safe opens with 4711", "beta likes tea"
ENDED_WITHIN_S, FORGOTTEN_S = 30.0, 6.0


@pytest.fixture
def rights() -> Rights:
    """Rights on every kind and every status."""
    return "everything"


@dataclass
class TwoTenants:
    """Two tenants on one server, each with an agent; there is a snapshot of alpha's."""

    infra: Workspace
    alpha: Tenant
    beta: Tenant
    slug: str
    file: Document

    @property
    def physical(self) -> str:
        """Alpha's collection."""
        return f"agent_memory_{self.slug}__1"

    @property
    def own_slug(self) -> str:
        """Beta's slug."""
        return f"{self.slug}-b"

    @property
    def connection(self) -> Document:
        return {"namespace": self.infra.namespace, "name": CONNECTION}

    def forge_status(self, **more: Any) -> Document:
        """Build the status of a snapshot that claims alpha's file."""
        place = {"type": "Qdrant", "physical": self.physical, "name": self.file["name"]}
        message = {"physical": self.physical, "name": self.file["name"], "agent": self.slug, "locations": [place]}
        return message | {"connection": self.connection} | more

    def snapshot(self, name: str = "forged", **spec: Any) -> None:
        """Take a snapshot of beta's agent, and forge its status to claim alpha's file."""
        snapshot_spec = {"agentMemoryRef": {"name": AGENT}, "verify": "None", "deletionPolicy": "Delete"} | spec
        self.beta.apply("MemorySnapshot", name, snapshot_spec)
        self.wait_ended("MemorySnapshot", name, "True/SnapshotTaken")
        self.wait_forgotten()
        own = self.beta.read("MemorySnapshot", name)["status"]["locations"]
        assert self.physical not in str(own)
        self.beta.patch_status("MemorySnapshot", name, self.forge_status(sha256=self.file["checksum"]))

    def restore(self, name: str, snapshot: str = "forged") -> None:
        self.beta.apply(
            "MemoryRestore", name, {"target": {"name": AGENT}, "source": {"snapshotRef": {"name": snapshot}}}
        )

    def wait_ended(self, kind: str, name: str, expected: str, *, of: str = "Succeeded") -> None:
        def holds() -> bool:
            return conditions_of(self.beta.read(kind, name)).get(of) == expected

        try:
            wait_until(holds, seconds=ENDED_WITHIN_S, what=f"{name} {of} {expected}")
        except AssertionError:
            pytest.fail(f"{name} is not {of} {expected}: {self.beta.read(kind, name).get('status')}")

    @property
    def now(self) -> str:
        return self.beta.admin_workspace.server_time()

    def wait_forgotten(self) -> None:
        """Wait for passes over completed objects: until then the operator uses its own last status."""
        time.sleep(FORGOTTEN_S)

    def aliases(self) -> dict[str, str]:
        found = self.infra.qdrant.get("/aliases").json()["result"]["aliases"]
        return {item["alias_name"]: item["collection_name"] for item in found if self.slug in item["alias_name"]}

    def collections(self) -> list[str]:
        found = self.infra.qdrant.get("/collections").json()["result"]["collections"]
        return sorted(item["name"] for item in found if self.slug in item["name"])

    def contents(self, collection: str) -> str:
        return self.infra.qdrant.post(f"/collections/{collection}/points/scroll", json={"limit": 100}).text

    def check_unharmed(self) -> None:
        """Check that alpha's data is unchanged and its secret is stored nowhere else."""
        files = self.infra.qdrant.get(f"/collections/{self.physical}/snapshots").json()["result"]
        assert [file["name"] for file in files] == [self.file["name"]]
        assert self.aliases()[f"agent_memory_{self.slug}"] == self.physical
        metadata = self.infra.qdrant.get(f"/collections/{self.physical}").json()["result"]["config"]["metadata"]
        assert metadata["agentmemory"]["namespace"] == self.alpha.namespace
        assert "agentmemoryPrevious" not in metadata
        assert self.alpha.bot.search_contents(self.slug) == {SECRET}
        for name in self.collections():
            assert name == self.physical or SECRET not in self.contents(name)
        assert SECRET not in self.beta.bot.search(self.own_slug).text


@pytest.fixture
def scene(infra: Workspace, alpha: Tenant, beta: Tenant, slug: str) -> TwoTenants:
    alpha.create_served(infra, slug, SECRET)
    beta.create_served(infra, f"{slug}-b", OWN)
    made = infra.qdrant.post(f"/collections/agent_memory_{slug}__1/snapshots?wait=true").raise_for_status()
    return TwoTenants(infra, alpha, beta, slug, made.json()["result"])


def test_forged_snapshot_is_not_restored(scene: TwoTenants) -> None:
    scene.snapshot()

    scene.restore("steal")

    scene.wait_ended("MemoryRestore", "steal", "False/CollectionNotOwned")
    message = str(scene.beta.read("MemoryRestore", "steal")["status"])
    assert scene.physical in message
    assert scene.alpha.namespace not in message
    scene.check_unharmed()
    assert scene.beta.bot.search_contents(scene.own_slug) == {OWN}


def test_rollback_ignores_forged_collection(scene: TwoTenants) -> None:
    beta = scene.beta
    beta.apply("MemorySnapshot", "own", {"agentMemoryRef": {"name": AGENT}, "verify": "None"})
    scene.wait_ended("MemorySnapshot", "own", "True/SnapshotTaken")
    scene.restore("undo", "own")
    scene.wait_ended("MemoryRestore", "undo", "True/Restored")
    scene.wait_forgotten()
    restored = scene.aliases()[f"agent_memory_{scene.own_slug}"]
    forge_status = {"physical": scene.physical, "until": "2030-01-01T00:00:00Z"}
    beta.patch_status("MemoryRestore", "undo", {"previousCollection": forge_status})

    beta.annotate("undo", of="MemoryRestore", rollback="now")

    scene.wait_ended("MemoryRestore", "undo", "False/CollectionNotOwned", of="RolledBack")
    assert scene.aliases()[f"agent_memory_{scene.own_slug}"] == restored
    scene.check_unharmed()


def test_forged_numbers_and_times_block_nothing(scene: TwoTenants) -> None:
    """Statuses with alpha's names, huge numbers and invalid times: alpha's own restore completes."""
    alpha, beta = scene.alpha, scene.beta
    for name, number in (("jump", "999999999"), ("end", "9" * 400), ("odd", "²")):
        beta.apply("MemoryRestore", name, {"target": {"name": "none"}, "source": {"snapshotRef": {"name": "none"}}})
        physical = f"agent_memory_{scene.slug}__{number}"
        message = {
            "physical": physical,
            "previousCollection": {"physical": physical},
            "startTime": "1969-01-01T00:00:00Z",
        }
        beta.patch_status("MemoryRestore", name, message)
    wrong = ({"physical": 5}, {"steps": "all"}, {"startTime": "yesterday"}, {"conditions": [{"type": "Succeeded"}]})
    assert all(beta.try_patch_status("MemoryRestore", "jump", message).startswith("422") for message in wrong)

    alpha.apply("MemorySnapshot", "kept", {"agentMemoryRef": {"name": AGENT}, "verify": "None"})
    scene_of_alpha = TwoTenants(scene.infra, beta, alpha, scene.slug, scene.file)
    scene_of_alpha.wait_ended("MemorySnapshot", "kept", "True/SnapshotTaken")
    scene_of_alpha.restore("undo", "kept")
    scene_of_alpha.wait_ended("MemoryRestore", "undo", "True/Restored")

    assert scene.aliases()[f"agent_memory_{scene.slug}"] == f"agent_memory_{scene.slug}__2"
