"""Sealed content is sealed in every copy, down to the bytes: the server's files, object storage, an export. Once its
key is deleted, no restored copy is readable.
"""

import base64
import hashlib
import json
import pathlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from agentmemory_operator.spec.kinds.agent_memory import TAKEOVER
from agentmemory_operator.zones.rules.entries import Ring
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import OperatorForks, run_command, start_api
from tests.support.cluster.workspace import AGENT, Workspace
from tests.support.cluster.zone_keys import StoredKeys
from tests.support.patience import wait_until
from tests.support.programs import Program, running, start_qdrant
from tests.support.web.s3_server import BUCKET, KEY, S3Server
from tests.support.zones import new_wrapping_key

ZONES = ("SENSITIVE", "PERSONAL", "PROFESSIONAL")
USERS = ("ada", "bob")
ALLOWED = {"allowed": [*ZONES], "keySecretRef": {"name": "zones"}, "organisation": "acme"}
EMBEDDING = {"provider": "wordllama", "dimensions": 64}
# Fields sealed in every zone; SENSITIVE seals labels too.
SEALED = ("content", "context", "key", "subject", "status_value")
LABELS = ("category", "event_type", "domain", "speaker")
WORD, PLAIN_WORD = "hippogriffine", "borborygmus"


@pytest.fixture(scope="module")
def folder(control_plane: ControlPlane) -> str:
    """Namespace for data keys only."""
    return control_plane.create_namespace("keys-")


@pytest.fixture(scope="module", autouse=True)
def own_operator(nursery: OperatorForks, folder: str) -> None:
    """Operator with short periods."""
    nursery.start(periods={"stalled_s": 0.5, "converged_s": 1.0, "busy_s": 0.3}, zone_keys_namespace=folder)


@pytest.fixture(scope="module")
def api_program(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory, folder: str
) -> Iterator[Program]:
    """API that reads data keys from that namespace."""
    program, _ = start_api(control_plane, tmp_path_factory.mktemp("api"), AGENTMEMORY_ZONE_KEYS_NAMESPACE=folder)
    with running(program):
        yield program


@dataclass(frozen=True, slots=True)
class Bank:
    """Agent with memories of every zone, and every place that stores bytes of them.

    Attributes:
        disk: Files of its Qdrant server.
        exported: File written by `agentmemory export`.
        wrapping: Value of the Secret with the wrapping key.
    """

    workspace: Workspace
    api: httpx.Client
    storage: S3Server
    disk: pathlib.Path
    exported: pathlib.Path
    keys: StoredKeys
    wrapping: str

    def create(self, slug: str, name: str = AGENT) -> None:
        """Create an agent whose snapshots are copied into the bucket; return once it accepts memories."""
        bucket = {"endpoint": self.storage.url, "bucket": BUCKET, "secretRef": {"name": "s3"}}
        spec = {"embedding": EMBEDDING, "zones": ALLOWED, "snapshots": {"storage": {"s3": bucket}}}
        self.workspace.create(name, agent=slug, index={"keyword": {"enabled": True}}, **spec)
        self.workspace.wait_ready(name, seconds=20)
        wait_until(lambda: self._get(slug, "memories", user_id="ada").is_success, seconds=20, what=f"agent {slug}")

    def fill(self) -> None:
        """Store memories and an item of every zone and user, with unique words in each field, and one plain memory."""
        for user in USERS:
            for zone in ZONES:
                fields = (*SEALED, *(LABELS if zone == "SENSITIVE" else ()))
                memory: dict[str, Any] = {field: word_of(field, zone, user) for field in fields}
                memory |= {"metadata": {word_of("name", zone, user): word_of("value", zone, user)}}
                memory |= {"tags": [word_of("tag", zone, user)]} if zone == "SENSITIVE" else {}
                self._post("memories", {"user_id": user, "zone": zone, "session_id": "s", **memory})
                for version in ("first", "second"):
                    place = {"namespace": ["memories", user], "key": word_of("item", zone, user), "zone": zone}
                    content = word_of(version, zone, user)
                    answer = self.api.put(self._path("items"), params=place, json={"content": content})
                    assert answer.is_success, answer.text
            self._post("memories", {"user_id": user, "session_id": "s", "content": plain_of(user)})

    def run(self, *arguments: str) -> str:
        """Run a command against the API; return its output."""
        url = ("--url", str(self.api.base_url))
        code, printed, errors = run_command(self.workspace.control_plane, *arguments, *url)
        assert code == 0, f"{arguments}: {printed}{errors}"
        return printed

    def contents(self, slug: str, user: str) -> dict[str, set[str | None]]:
        """Return the contents of a user's memories by zone; None for locked ones."""
        by_zone: dict[str, set[str | None]] = {}
        found = self._get(slug, "memories", user_id=user).raise_for_status().json()["results"]
        for memory in found:
            assert memory["locked"] is (memory["content"] is None)
            by_zone.setdefault(memory["zone"] or "", set()).add(memory["content"])
        return by_zone

    def snapshot(self) -> str:
        """Copy the collection into the bucket; return the key of the object."""
        self.workspace.create_snapshot("before")
        self.workspace.wait_condition("Verified", "True/Verified", name="before", of="MemorySnapshot", seconds=30)
        locations = self.workspace.status("before", "MemorySnapshot")["locations"]
        (key,) = [place["key"] for place in locations if place["type"] == "S3"]
        return str(key)

    def restore(self, name: str, key: str, into: str) -> None:
        """Restore an object of the bucket into an agent, also one of another agent."""
        s3 = {"endpoint": self.storage.url, "bucket": BUCKET, "key": key, "secretRef": {"name": "s3"}}
        annotations = {TAKEOVER: self.workspace.must_get()["metadata"]["uid"]}
        self.workspace.create_restore(name, {"s3": s3}, into=into, annotations=annotations)
        self.workspace.wait_condition("Succeeded", "True/Restored", name=name, of="MemoryRestore", seconds=40)

    def check_bytes(self, key: str, unpacked: pathlib.Path) -> None:
        """Check that each place contains plain content and no sealed content."""
        unpacked.mkdir(exist_ok=True)
        subprocess.run(["tar", "-xf", str(self.storage.file(key)), "-C", str(unpacked)], check=True)
        disk, plain = contents_of(self.disk), [PLAIN_WORD.encode()]
        assert holding(disk, [hash_of(plain_of("bob"))]), "the hash of what is not sealed is found so"
        assert any("/wal/" in path for path in holding(disk, plain)), "so does the log of writes"
        for contents in (disk, *map(contents_of, (self.storage.folder, unpacked, self.exported))):
            assert holding(contents, plain), f"the words of what is not sealed are found so in {sorted(contents)}"
            assert holding(contents, [*forms_of(WORD), *HASHES]) == [], "nothing of what is sealed lies there"

    def key_forms(self) -> list[bytes]:
        """Return the encodings of the wrapping key and the remaining data keys."""
        opened = self.keys.unwrap_all(self.wrapping).values()
        halves = [half for key in opened for half in (key[:32], key[32:])]
        shown = [text for half in halves for text in (base64.b64encode(half)[:40], half.hex().encode())]
        return [self.wrapping.encode(), base64.b64decode(self.wrapping).hex().encode(), *shown]

    def _get(self, slug: str, path: str, **parameters: str) -> httpx.Response:
        return self.api.get(f"/v1/agents/{slug}/{path}", params=parameters)

    def _post(self, path: str, body: dict[str, Any]) -> None:
        answer = self.api.post(self._path(path), json=body)
        assert answer.status_code == 201, answer.text

    def _path(self, path: str) -> str:
        return f"/v1/agents/{self.workspace.slug}/{path}"


def word_of(field: str, zone: str, user: str) -> str:
    """Return a unique content for a field of a memory."""
    return f"{WORD}-{field}-{zone.lower()}-{user}"


def forms_of(word: str) -> list[bytes]:
    """Return the bytes that reveal a word: as it is, in capitals, and in Base64 at each of three offsets."""
    plain = word.encode()
    shifted = [base64.b64encode(b"x" * shift + plain)[4:-4] for shift in range(3)]
    return [plain, plain.upper(), plain.capitalize(), *shifted]


def plain_of(user: str) -> str:
    """Return the content of a memory without a zone."""
    return f"{PLAIN_WORD} for {user}"


def hash_of(text: str) -> bytes:
    """Return the hash that an attacker who guesses a text would search for."""
    return hashlib.sha256(text.encode()).hexdigest()[:16].encode()


HASHES = [
    hash_of(word_of(field, zone, user))
    for field in ("content", "first", "second", "key", "subject", "item")
    for zone in ZONES
    for user in USERS
]


def contents_of(place: pathlib.Path) -> dict[str, bytes]:
    """Return the contents of the files of a folder, or of the single file, without the reserved zeros at their end."""
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes().rstrip(b"\0") for path in files}


def holding(contents: dict[str, bytes], forms: list[bytes]) -> list[str]:
    """Return the files that contain any of the forms."""
    return [path for path, content in contents.items() if any(form in content for form in forms)]


@pytest.fixture
def bank(
    control_plane: ControlPlane,
    namespace: str,
    api: httpx.Client,
    storage: S3Server,
    folder: str,
    tmp_path: pathlib.Path,
) -> Iterator[Bank]:
    """Agent with memories, on a Qdrant server of its own."""
    program, url = start_qdrant(tmp_path / "qdrant")
    with running(program):
        workspace = Workspace(control_plane, namespace, url)
        workspace.create_secret("s3", **{"access-key-id": KEY.id, "secret-access-key": KEY.secret})
        workspace.create_secret("zones", key=(wrapping := new_wrapping_key()))
        workspace.connect(timeoutSeconds=2)
        keys = StoredKeys(control_plane, folder, Ring(namespace, workspace.slug))
        made = Bank(workspace, api, storage, tmp_path / "qdrant/data", tmp_path / "export.ndjson", keys, wrapping)
        made.create(workspace.slug)
        made.fill()
        yield made
        workspace.clean()


def test_copies_are_sealed_and_unreadable_without_key(
    bank: Bank,
    api_program: Program,
    nursery: OperatorForks,
    control_plane: ControlPlane,
    folder: str,
    tmp_path: pathlib.Path,
) -> None:
    slug, other = bank.workspace.slug, f"{bank.workspace.slug}-x"
    before = {user: bank.contents(slug, user) for user in USERS}
    assert all(None not in contents for by_zone in before.values() for contents in by_zone.values())
    assert {zone for by_zone in before.values() for zone in by_zone} == {*ZONES, ""}
    key = bank.snapshot()
    for user in USERS:
        bank.run("export", slug, "--user", user, "--output", str(bank.exported.with_suffix(f".{user}")))
    bank.exported.write_bytes(b"".join(bank.exported.with_suffix(f".{user}").read_bytes() for user in USERS))
    bank.check_bytes(key, tmp_path / "unpacked")

    receipts = [
        json.loads(bank.run("forget", slug, *of, "--crypto", "--yes", "--output", "json"))
        for of in (("--user", "ada", "--everything"), ("--zone", "PROFESSIONAL"))
    ]

    assert [sorted(receipt["keys_deleted"]) for receipt in receipts] == [["PERSONAL", "SENSITIVE"], ["PROFESSIONAL"]]
    bank.check_bytes(key, tmp_path / "after")
    locked: dict[str, set[str | None]] = {"PROFESSIONAL": {None}}
    bank.restore("back", key, AGENT)
    wait_until(lambda: bank.contents(slug, "bob") == before["bob"] | locked, seconds=70, what="what is bob's")
    assert bank.contents(slug, "ada") == {}

    # Another cluster has no record of the erasures since the snapshot.
    bank.create(other, "other")
    bank.restore("there", key, "other")
    nothing: dict[str, set[str | None]] = {zone: {None} for zone in ZONES}
    wait_until(lambda: bank.contents(other, "bob") == before["bob"] | nothing, seconds=70, what="the other agent")
    assert bank.contents(other, "ada") == before["ada"] | nothing
    output = f"{api_program.log}{nursery.log}{bank.workspace.must_get()}{bank.workspace.events(kind='Normal')}"
    assert slug in output
    assert [form for form in [*forms_of(WORD), *bank.key_forms()] if form.decode() in output] == []
    bank.keys.copy_to(Ring(bank.workspace.namespace, other))
    # A new process: this one relies on what it read of the keys for a minute.
    program, url = start_api(control_plane, tmp_path, AGENTMEMORY_ZONE_KEYS_NAMESPACE=folder)
    with running(program), httpx.Client(base_url=url, timeout=30) as fresh:
        wait_until(lambda: fresh.get("/readyz").status_code == 200, seconds=20, what="a new API process")
        seen_there = replace(bank, api=fresh)
        assert seen_there.contents(other, "bob") == before["bob"] | locked
        assert seen_there.contents(other, "ada") == before["ada"] | nothing
