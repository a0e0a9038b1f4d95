"""Agents with privacy zones and an in-memory keyring, with keys that a test can make unavailable."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentmemory_operator.agents.directory import HasSealed
from agentmemory_operator.errors import TransientError
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.zones.keyring import FRESH_MS, AgentKeys, Keyring
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.sealed_store import ZoneKeys
from tests.support.engine.fakes import FakeClock
from tests.support.spec.documents import Document, agent_document
from tests.support.zones import FakeKeyShards, FakeWrapping

ALL_ZONES = {
    "allowed": ["SENSITIVE", "PERSONAL", "PROFESSIONAL"],
    "keySecretRef": {"name": "zone-key"},
    "organisation": "acme",
}


def zoned_document(slug: str, zones: Document | None = None, **spec: object) -> Document:
    """Build an agent that embeds offline and allows all zones; `zones` overrides."""
    embedding = {"provider": "wordllama", "dimensions": 64}
    return agent_document(slug, embedding=embedding, zones=ALL_ZONES | (zones or {}), **spec)


@dataclass(slots=True)
class Keys:
    """Keys of the agents of one API.

    Attributes:
        shards: Store of the wrapped data keys.
        wrapping: Wrapping key.
    """

    shards: FakeKeyShards = field(default_factory=FakeKeyShards)
    wrapping: FakeWrapping = field(default_factory=FakeWrapping)
    clock: FakeClock = field(default_factory=FakeClock)
    keyring: Keyring = field(init=False)

    def __post_init__(self) -> None:
        self.keyring = Keyring(self.shards, self.clock)

    def expire_cached_keys(self) -> None:
        """Advance the clock by a minute, so that cached keys expire."""
        self.clock.move(ms=FRESH_MS + 1)

    @contextlib.contextmanager
    def unavailable(self) -> Iterator[None]:
        """Make the store of keys unavailable inside the context, and expire cached keys."""
        self.expire_cached_keys()
        self.shards.error = TransientError("the keys are away")
        try:
            yield
        finally:
            self.shards.error = None

    @contextlib.contextmanager
    def lost(self) -> Iterator[None]:
        """Delete all keys inside the context; restore them from a backup at the end."""
        texts, versions = dict(self.shards.texts), dict(self.shards.versions)
        self.shards.texts.clear()
        self.shards.versions.clear()
        self.expire_cached_keys()
        try:
            yield
        finally:
            # Like `kubectl create`: keys that were created in the meantime stay.
            self.shards.texts = texts | self.shards.texts
            self.shards.versions = versions | self.shards.versions

    def of(self, settings: AgentSettings, scope: str, has_sealed: HasSealed) -> ZoneKeys:
        """Return the keys of an agent for the directory."""
        before_ms = settings.zones.rotate_before_ms if settings.zones else 0
        ring = Ring(settings.namespace, settings.slug)
        keys = AgentKeys(ring, self.wrapping, has_sealed, rotate_before_ms=before_ms)
        organisation = (settings.zones and settings.zones.organisation) or ""
        return ZoneKeys(self.keyring, keys, scope, organisation)
