"""Agents with privacy zones over a keyring in this process, whose keys a test may take away."""

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
    """Return an agent that embeds offline and allows all zones, unless `zones` says otherwise."""
    embedding = {"provider": "wordllama", "dimensions": 64}
    return agent_document(slug, embedding=embedding, zones=ALL_ZONES | (zones or {}), **spec)


@dataclass(slots=True)
class Keys:
    """The keys of the agents of one API.

    Attributes:
        shards: where they lie.
        wrapping: what they are under.
    """

    shards: FakeKeyShards = field(default_factory=FakeKeyShards)
    wrapping: FakeWrapping = field(default_factory=FakeWrapping)
    clock: FakeClock = field(default_factory=FakeClock)
    keyring: Keyring = field(init=False)

    def __post_init__(self) -> None:
        self.keyring = Keyring(self.shards, self.clock)

    def let_known_ones_age(self) -> None:
        """Let a minute pass: what was read of keys before is relied on no more."""
        self.clock.move(ms=FRESH_MS + 1)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Let nobody reach the keys, and nothing be known of them from before."""
        self.let_known_ones_age()
        self.shards.error = TransientError("the keys are away")
        try:
            yield
        finally:
            self.shards.error = None

    @contextlib.contextmanager
    def lost(self) -> Iterator[None]:
        """Let all keys be gone, and bring them back from a backup at the end."""
        texts, versions = dict(self.shards.texts), dict(self.shards.versions)
        self.shards.texts.clear()
        self.shards.versions.clear()
        self.let_known_ones_age()
        try:
            yield
        finally:
            # As `kubectl create` does: what was made meanwhile stays.
            self.shards.texts = texts | self.shards.texts
            self.shards.versions = versions | self.shards.versions

    def of(self, settings: AgentSettings, scope: str, has_sealed: HasSealed) -> ZoneKeys:
        """The keys of an agent, as the directory asks for them."""
        before_ms = settings.zones.rotate_before_ms if settings.zones else 0
        ring = Ring(settings.namespace, settings.slug)
        keys = AgentKeys(ring, self.wrapping, has_sealed, rotate_before_ms=before_ms)
        organisation = (settings.zones and settings.zones.organisation) or ""
        return ZoneKeys(self.keyring, keys, scope, organisation)
