"""Buckets that the operator opens for everybody: a tenant gets at its own keys there, and at no other's, by any way.

The operator has the storage's identity, the tenants have none: whatever they reach, they reach through it.
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
    """A platform whose operator opens one bucket for everybody."""
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
    """Alpha's copy in the shared bucket, and beta, who has an agent and a snapshot of its own.

    Attributes:
        place: of alpha's copy, as alpha's status says it.
        uid: of alpha's AgentMemory.
    """

    storage: S3Server
    alpha: Tenant
    beta: Tenant
    slug: str
    place: Document
    uid: str

    @property
    def copy(self) -> pathlib.Path:
        """The file that the storage keeps alpha's copy in."""
        return self.storage.file(self.place["key"])

    @property
    def takeover(self) -> dict[str, str]:
        """What beta writes on its own objects."""
        return {"agentmemory.dev/takeover": self.uid}

    def source(self, **more: Any) -> Document:
        """Return alpha's copy as a spec names it."""
        named = {key: self.place[key] for key in ("endpoint", "bucket", "key")}
        return {"s3": named | more}

    def forge(self, change: Callable[[str], str] = str) -> None:
        """Let a snapshot of beta's say that its bytes are alpha's copy.

        Args:
            change: spells the key otherwise.
        """
        copied(self.beta)
        record = self.alpha.read(SNAPSHOT, "nightly")["status"]
        forged = {key: record[key] for key in ("sha256", "sizeBytes", "points", "configHash", "owner")}
        place = self.place | {"key": change(self.place["key"])}
        # One that was started since goes by the status; another may go by what it wrote itself.
        with stopped(self.beta.platform):
            self.beta.patch_status(SNAPSHOT, "nightly", forged | {"locations": [place]})

    def check_refused(self, kind: str, name: str) -> None:
        """Fail unless an object of beta's has failed for its place, and nothing has changed for anybody."""
        end = ended(self.beta, kind, name)
        assert (end["status"], end["reason"]) in NO, end
        assert "secretRef" in end["message"]
        assert self.uid not in end["message"]
        self.check_untouched()

    def check_untouched(self) -> None:
        """Fail unless beta has what it had, and alpha its copy."""
        assert self.beta.bot.search_contents(f"{self.slug}-b") == {OWN}
        assert self.copy.exists()


# Of one that names several places, none of which can be used, the first reason is in the message.
NO = (("False", "SourceNotAllowed"), ("False", "SnapshotRefused"))


@pytest.fixture
def site(infra: Workspace, alpha: Tenant, beta: Tenant, slug: str, storage: S3Server) -> SharedBucket:
    uid = alpha.create_served(infra, slug, SECRET, snapshots=keeping(storage))["metadata"]["uid"]
    beta.create_served(infra, f"{slug}-b", OWN, snapshots=keeping(storage))
    return SharedBucket(storage, alpha, beta, slug, copied(alpha), uid)


def keeping(storage: S3Server, prefix: str = PREFIX) -> Document:
    """Return the `snapshots` block of an agent whose snapshots are copied into the shared bucket."""
    return {"storage": {"s3": {"endpoint": storage.url, "bucket": BUCKET, "prefix": prefix}}}


def copied(tenant: Tenant, name: str = "nightly", **spec: Any) -> Document:
    """Have a snapshot made; return where its copy lies, as the status says it."""
    tenant.apply(SNAPSHOT, name, {"agentMemoryRef": {"name": AGENT}, "verify": "None"} | spec)
    tenant.wait_condition("Succeeded", "True/SnapshotTaken", name=name, of=SNAPSHOT, seconds=ENDED_WITHIN_S)
    locations = tenant.read(SNAPSHOT, name)["status"]["locations"]
    return dict(next(place for place in locations if place["type"] == "S3"))


def restore(tenant: Tenant, source: Document, *, annotations: dict[str, str] | None = None) -> None:
    tenant.apply(RESTORE, "undo", {"target": {"name": AGENT}, "source": source}, annotations=annotations)


@contextlib.contextmanager
def stopped(platform: Platform) -> Iterator[None]:
    """Let no operator run while the context is open."""
    platform.operator.stop()
    yield
    platform.operator.restart(LEADING)


def wait_held(tenant: Tenant, name: str) -> None:
    """Wait until the operator holds the deletion of a snapshot up."""
    wait_until(lambda: tenant.read(SNAPSHOT, name)["metadata"].get("finalizers"), seconds=15, what="a finalizer")


def ended(tenant: Tenant, kind: str, name: str) -> Document:
    """Return the condition Succeeded of what has ended, well or not."""

    def found() -> Document | None:
        conditions = tenant.read(kind, name).get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == "Succeeded" and one["status"] != "Unknown"), None)

    return wait_until(found, seconds=ENDED_WITHIN_S, what=f"the end of {kind} {name}")


class TestAnothersCopy:
    @pytest.mark.parametrize("rights", BOTH)
    def test_is_not_restored_by_its_key(self, site: SharedBucket) -> None:
        restore(site.beta, site.source(), annotations=site.takeover)

        site.check_refused(RESTORE, "undo")

    @EVERYTHING
    def test_does_not_go_with_an_object_whose_status_names_it(self, site: SharedBucket) -> None:
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
def test_whoever_writes_anothers_folder_as_its_prefix_writes_below_it_and_reads_nothing_there(
    site: SharedBucket, infra: Workspace
) -> None:
    folder = site.place["key"].rpartition("/")[0]
    slug = f"{site.slug}-b"
    site.beta.claim(infra, slug, snapshots=keeping(site.storage, folder))
    site.beta.wait_ready()

    place = copied(site.beta, "below")

    assert place["key"].startswith(f"{folder}/{site.beta.namespace}/{slug}/below_")
    site.check_untouched()


class TestOnesOwnCopy:
    def test_is_restored_by_its_key_and_goes_with_its_object(self, site: SharedBucket) -> None:
        place = copied(site.beta, "own", deletionPolicy="Delete")
        uid = site.beta.read(SNAPSHOT, "own")["metadata"]["uid"]
        folder = f"{PREFIX}/{site.beta.namespace}/{site.slug}-b"
        assert place["key"].rpartition("/")[0] == f"{folder}/own_{uid[:8]}"

        restore(site.beta, {"s3": {key: place[key] for key in ("endpoint", "bucket", "key")}})
        assert ended(site.beta, RESTORE, "undo")["reason"] == "Restored"
        assert site.beta.bot.search_contents(f"{site.slug}-b") == {OWN}

        self.check_goes(site, "own", place)

    @staticmethod
    def check_goes(site: SharedBucket, name: str, place: Document) -> None:
        """Fail unless the copy goes with its object."""
        wait_held(site.beta, name)
        site.beta.delete(name, SNAPSHOT)
        wait_until(lambda: site.beta.admin_workspace.get(name, SNAPSHOT) is None, seconds=15, what=f"the end of {name}")
        assert not site.storage.file(place["key"]).exists()
