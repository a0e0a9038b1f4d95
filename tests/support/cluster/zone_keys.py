"""Data keys of privacy zones in a real cluster: helpers to store and read them."""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentmemory_operator.adapters.kubernetes.key_shard_secrets import AGENT, KEY, NAMESPACE, PREFIX, SHARD
from agentmemory_operator.zones.rules.entries import KeyEntry, Ring
from agentmemory_operator.zones.rules.shards import parse_shard
from agentmemory_operator.zones.wrapping_keys import WrappingKeys, parse_wrapping_keys
from tests.support.cluster.controlplane import ControlPlane
from tests.support.engine.fakes import FakeClock
from tests.support.spec.documents import Document
from tests.support.web.http_server import check_success
from tests.support.zones import FakeKeyShards, FakeWrapping, agent_keys, keyring


def wrapping_of(value: str) -> WrappingKeys:
    """Return the wrapping key for a Secret's value."""
    return parse_wrapping_keys(value, None, secret="a test's", key="key")


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """Data keys of one agent.

    Args:
        folder: Namespace of their Secrets.
    """

    control_plane: ControlPlane
    folder: str
    ring: Ring

    def create(self, wrapping: str, users: Sequence[str]) -> None:
        """Create a key for each user, like the API does.

        Args:
            wrapping: Value of the Secret with the wrapping key.
        """
        shards = FakeKeyShards()

        async def make_all() -> None:
            replica, keys = keyring(FakeClock(), shards), agent_keys(self.ring, FakeWrapping(wrapping_of(wrapping)))
            for user in users:
                await replica.get_or_create_key(keys, "PERSONAL", user)

        asyncio.run(make_all())
        for (_, name), text in shards.texts.items():
            self._create(self.ring, name, text)

    def copy_to(self, ring: Ring) -> None:
        """Copy the current keys to another agent, as an administrator does to move its memories."""
        for secret in self.secrets():
            name, text = secret["metadata"]["labels"][SHARD], base64.b64decode(secret["data"][KEY]).decode()
            self._create(ring, name, text)

    def secrets(self) -> list[Document]:
        """Return the Secrets, sorted by name."""
        selector = f"{NAMESPACE}={self.ring.namespace},{AGENT}={self.ring.agent}"
        found = check_success(self.control_plane.http.get(self._path, params={"labelSelector": selector})).json()[
            "items"
        ]
        return sorted(found, key=lambda secret: str(secret["metadata"]["name"]))

    def entries(self) -> dict[str, KeyEntry]:
        """Return all keys in their stored, wrapped form."""
        entries: dict[str, KeyEntry] = {}
        for secret in self.secrets():
            name, text = secret["metadata"]["labels"][SHARD], base64.b64decode(secret["data"][KEY]).decode()
            entries.update(parse_shard(text, ring=self.ring, name=name, version="1").entries)
        return entries

    def unwrap_all(self, wrapping: str) -> Mapping[str, bytes]:
        """Return all keys unwrapped.

        Args:
            wrapping: Value of the Secret with the wrapping key.
        """
        keys = wrapping_of(wrapping)
        return {key_id: keys.unwrap(key_id, entry) for key_id, entry in self.entries().items()}

    def _create(self, ring: Ring, name: str, text: str) -> None:
        labels = {NAMESPACE: ring.namespace, AGENT: ring.agent, SHARD: name}
        metadata = {"name": f"{PREFIX}{ring.namespace}.{ring.agent}-{name}", "labels": labels}
        check_success(self.control_plane.http.post(self._path, json={"metadata": metadata, "stringData": {KEY: text}}))

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.folder}/secrets"
