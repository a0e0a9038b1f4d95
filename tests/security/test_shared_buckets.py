"""Shared buckets of the operator: a tenant reaches only its own keys.

The operator has the storage's identity; tenants have none and reach the storage only through the operator.
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import LEADING
from tests.support.cluster.tenants import BOTH, Platform, Tenant, running_platform
from tests.support.cluster.workspace import AGENT, Workspace
from tests.support.patience import wait_until
from tests.support.spec.documents import Document
from tests.support.web.s3_server import BUCKET, KEY, S3Server

SNAPSHOT, RESTORE = "MemorySnapshot", "MemoryRestore"
SECRET, OWN = "the safe opens with 4711", "what beta knows"
PREFIX = "prod"
ENDED_WITHIN_S = 40
EVERYTHING = pytest.mark.parametrize("rights", ["everything"])


@pytest.fixture(scope="module")
def platform(
    control_plane: ControlPlane, storage: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    """Platform whose operator shares one bucket with all tenants."""
    more = {
        "AGENTMEMORY_SHARED_BUCKETS": f"{storage.url}/{BUCKET}",
        "AWS_ACCESS_KEY_ID": KEY.id,
        "AWS_SECRET_ACCESS_KEY": KEY.secret,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with running_platform(control_plane, tmp_path_factory.mktemp("platform"), more=more) as made:
        yield made


@dataclass(frozen=True, slots=True)
class SharedBucket:
    """Alpha's copy in the shared bucket, and beta, which has an agent and a snapshot of its own.

    Attributes:
        place: Location of alpha's copy, as in alpha's status.
        uid: Uid of alpha's AgentMemory.
    """

    storage: S3Server
    alpha: Tenant
    beta: Tenant
    slug: str
    place: Document
    uid: str

    @property
    def copy(self) -> pathlib.Path:
        """File of alpha's copy in the storage."""
        return self.storage.file(self.place["key"])

    @property
    def takeover(self) -> dict[str, str]:
        """Takeover annotation that beta writes on its own objects."""
        return {"agentmemory.dev/takeover": self.uid}

    def source(self, **more: Any) -> Document:
        """Return alpha's copy as a source in a spec."""
        named = {key: self.place[key] for key in ("endpoint", "bucket", "key")}
        return {"s3": named | more}

    def forge(self, change: Callable[[str], str] = str) -> None:
        """Forge the status of beta's snapshot to claim alpha's copy.

        Args:
            change: Changes the spelling of the key.
        """
        take_copy(self.beta)
        record = self.alpha.read(SNAPSHOT, "nightly")["status"]
        forged = {key: record[key] for key in ("sha256", "sizeBytes", "points", "configHash", "owner")}
        place = self.place | {"key": change(self.place["key"])}
        # An operator that starts later reads the status; a running one may use the status that it has written itself.
        with stop_operator(self.beta.platform):
            self.beta.patch_status(SNAPSHOT, "nightly", forged | {"locations": [place]})

    def check_refused(self, kind: str, name: str) -> None:
        """Check that beta's object has failed because of its location, and nothing has changed."""
        end = wait_ended(self.beta, kind, name)
        assert (end["status"], end["reason"]) in NO, end
        assert "secretRef" in end["message"]
        assert self.uid not in end["message"]
        self.check_untouched()

    def check_untouched(self) -> None:
        """Check that beta has its own memories, and alpha its copy."""
        assert self.beta.bot.search_contents(f"{self.slug}-b") == {OWN}
        assert self.copy.exists()


# If several locations cannot be used, the message contains the first reason.
NO = (("False", "SourceNotAllowed"), ("False", "SnapshotRefused"))


@pytest.fixture
def site(infra: Workspace, alpha: Tenant, beta: Tenant, slug: str, storage: S3Server) -> SharedBucket:
    uid = alpha.create_served(infra, slug, SECRET, snapshots=snapshots_block(storage))["metadata"]["uid"]
    beta.create_served(infra, f"{slug}-b", OWN, snapshots=snapshots_block(storage))
    return SharedBucket(storage, alpha, beta, slug, take_copy(alpha), uid)


def snapshots_block(storage: S3Server, prefix: str = PREFIX) -> Document:
    """Build the `snapshots` block of an agent whose snapshots are copied into the shared bucket."""
    return {"storage": {"s3": {"endpoint": storage.url, "bucket": BUCKET, "prefix": prefix}}}


def take_copy(tenant: Tenant, name: str = "nightly", **spec: Any) -> Document:
    """Take a snapshot; return the location of its copy in the status."""
    tenant.apply(SNAPSHOT, name, {"agentMemoryRef": {"name": AGENT}, "verify": "None"} | spec)
    tenant.wait_condition("Succeeded", "True/SnapshotTaken", name=name, of=SNAPSHOT, seconds=ENDED_WITHIN_S)
    locations = tenant.read(SNAPSHOT, name)["status"]["locations"]
    return dict(next(place for place in locations if place["type"] == "S3"))


def restore(tenant: Tenant, source: Document, *, annotations: dict[str, str] | None = None) -> None:
    tenant.apply(RESTORE, "undo", {"target": {"name": AGENT}, "source": source}, annotations=annotations)


@contextlib.contextmanager
def stop_operator(platform: Platform) -> Iterator[None]:
    """Stop the operator within the context."""
    platform.operator.stop()
    yield
    platform.operator.restart(LEADING)


def wait_held(tenant: Tenant, name: str) -> None:
    """Wait until a snapshot has a finalizer."""
    wait_until(lambda: tenant.read(SNAPSHOT, name)["metadata"].get("finalizers"), seconds=15, what="a finalizer")


def wait_ended(tenant: Tenant, kind: str, name: str) -> Document:
    """Return the condition Succeeded of a completed object."""

    def found() -> Document | None:
        conditions = tenant.read(kind, name).get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == "Succeeded" and one["status"] != "Unknown"), None)

    return wait_until(found, seconds=ENDED_WITHIN_S, what=f"the end of {kind} {name}")


class TestAnothersCopy:
    @pytest.mark.parametrize("rights", BOTH)
    def test_is_not_restored_by_key(self, site: SharedBucket) -> None:
        restore(site.beta, site.source(), annotations=site.takeover)

        site.check_refused(RESTORE, "undo")

    @EVERYTHING
    def test_survives_deletion_of_forged_snapshot(self, site: SharedBucket) -> None:
        site.forge()
        site.beta.annotate("nightly", of=SNAPSHOT, confirm_delete="nightly")
        wait_held(site.beta, "nightly")
        site.beta.delete("nightly", SNAPSHOT)

        wait_until(
            lambda: site.beta.admin_workspace.get("nightly", SNAPSHOT) is None, seconds=15, what="the end of nightly"
        )
        site.check_untouched()
        assert "does not belong to this MemorySnapshot" in site.beta.admin_workspace.events("nightly")["SnapshotKept"]


@pytest.mark.parametrize("rights", BOTH)
def test_foreign_folder_as_prefix_is_harmless(site: SharedBucket, infra: Workspace) -> None:
    folder = site.place["key"].rpartition("/")[0]
    slug = f"{site.slug}-b"
    site.beta.claim(infra, slug, snapshots=snapshots_block(site.storage, folder))
    site.beta.wait_ready()

    place = take_copy(site.beta, "below")

    assert place["key"].startswith(f"{folder}/{site.beta.namespace}/{slug}/below_")
    site.check_untouched()


class TestOnesOwnCopy:
    def test_is_restored_by_key_and_deleted_with_object(self, site: SharedBucket) -> None:
        place = take_copy(site.beta, "own", deletionPolicy="Delete")
        uid = site.beta.read(SNAPSHOT, "own")["metadata"]["uid"]
        folder = f"{PREFIX}/{site.beta.namespace}/{site.slug}-b"
        assert place["key"].rpartition("/")[0] == f"{folder}/own_{uid[:8]}"

        restore(site.beta, {"s3": {key: place[key] for key in ("endpoint", "bucket", "key")}})
        assert wait_ended(site.beta, RESTORE, "undo")["reason"] == "Restored"
        assert site.beta.bot.search_contents(f"{site.slug}-b") == {OWN}

        self.check_goes(site, "own", place)

    @staticmethod
    def check_goes(site: SharedBucket, name: str, place: Document) -> None:
        """Check that the copy is deleted with its object."""
        wait_held(site.beta, name)
        site.beta.delete(name, SNAPSHOT)
        wait_until(lambda: site.beta.admin_workspace.get(name, SNAPSHOT) is None, seconds=15, what=f"the end of {name}")
        assert not site.storage.file(place["key"]).exists()
