"""Fakes of ports that record calls: clock, cluster, claims, Secrets, handover store, reranker."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.collections.rules.claims import NO_CLAIMS, ClaimSet
from agentmemory_operator.connections.rules.agent_secret_slots import AgentSecret
from agentmemory_operator.connections.rules.host_lists import AnnotatedSecret, Destination
from agentmemory_operator.errors import AgentMemoryError, NotFound, SecretMissing
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Event
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from tests.support.fault_injection import Plantable, record_effect

START_MS = 1_795_000_000_000


class FakeClock:
    """Implements ports.Clock."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.value_ms = now_ms

    def now_ms(self) -> int:
        return self.value_ms

    def move(self, *, days: float = 0, ms: int = 0) -> None:
        self.value_ms += int(days * 86_400_000) + ms


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time: it advances only when all tasks wait, and then at once."""

    def __init__(self) -> None:
        super().__init__(_SkippingSelector(self))
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s


class _SkippingSelector(selectors.DefaultSelector):
    def __init__(self, loop: SkippingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select()
        self._loop.now_s += timeout
        return super().select(0)


def with_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on a `SkippingLoop`. It may wait for timers, but not for threads or processes."""

    @functools.wraps(test)
    def run() -> None:
        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            runner.run(test())

    return run


@dataclass(slots=True)
class FakeCluster(Plantable):
    """Implements ports.Cluster, and records every write.

    Attributes:
        namespaces: Labels by namespace.
        label_reads: Number of reads of labels.
        error: Raised by every write; None for none.
    """

    identity: str = "cluster-1"
    PLANTABLE = ("error",)

    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    label_reads: int = 0
    statuses: list[tuple[str, str, Json]] = field(default_factory=list)
    finalizers: list[tuple[str, list[str]]] = field(default_factory=list)
    created: dict[tuple[str, str], Json] = field(default_factory=dict)
    deleted: list[tuple[str, str]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    error: AgentMemoryError | None = None

    async def cluster_id(self) -> str:
        return self.identity

    async def labels(self, namespace: str) -> Mapping[str, str]:
        self.label_reads += 1
        self._check()
        return self.namespaces.get(namespace, {})

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        self._check()
        if (kind, name) not in self.created:
            raise NotFound(f"there is no {kind} {namespace}/{name}")
        return self.created[kind, name]

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> str:
        self._check()
        self.statuses.append((kind, metadata.name, status))
        return ""

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        self._check()
        self.finalizers.append((metadata.name, list(finalizers)))

    async def create_object(self, document: Json) -> bool:
        self._check()
        name = document["kind"], document["metadata"]["name"]
        is_new = name not in self.created
        self.created.setdefault(name, document)
        return is_new

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        self._check()
        self.deleted.append((kind, metadata.name))
        self.created.pop((kind, metadata.name), None)

    async def post_event(self, kind: str, metadata: Metadata, event: Event) -> None:
        self.events.append(event)

    @property
    def writes(self) -> int:
        """Number of writes of statuses, finalizers and events."""
        return len(self.statuses) + len(self.finalizers) + len(self.events)

    def _check(self) -> None:
        if self.error is not None:
            record_effect(self, "error")
            raise self.error


@dataclass(slots=True)
class FakeClaimStore(Plantable):
    """Implements ports.ClaimStore in memory.

    Attributes:
        saves: Stored claims, in order.
        errors: Raised by the next saves, one each.
    """

    PLANTABLE = ("errors",)

    stored: ClaimSet = NO_CLAIMS
    saves: list[ClaimSet] = field(default_factory=list)
    errors: list[AgentMemoryError] = field(default_factory=list)

    async def load(self) -> ClaimSet:
        return self.stored

    async def save(self, claims: ClaimSet) -> None:
        await asyncio.sleep(0)
        if self.errors:
            record_effect(self, "errors")
            raise self.errors.pop(0)
        self.stored = claims
        self.saves.append(claims)


@dataclass(slots=True)
class FakeSecrets:
    """Implements ports.SecretSource, and ports.Secrets without restrictions of destinations; by (namespace, name, key).

    Attributes:
        hosts: Annotations by (namespace, name).
        reads: Number of reads.
        sent_to: Destination of each read.
    """

    values: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    hosts: dict[tuple[str, str], str] = field(default_factory=dict)
    reads: int = 0
    sent_to: list[Destination] = field(default_factory=list)

    async def read(self, namespace: str, name: str, key: str, *, to: Destination) -> str:
        self.reads += 1
        self.sent_to.append(to)
        if (namespace, name, key) not in self.values:
            raise SecretMissing(namespace, name, key)
        return self.values[namespace, name, key]

    async def read_secret(self, namespace: str, name: str) -> AnnotatedSecret | None:
        self.reads += 1
        values = {key: value for (*place, key), value in self.values.items() if place == [namespace, name]}
        return AnnotatedSecret(values, self.hosts.get((namespace, name))) if values else None


@dataclass(slots=True)
class FakeHandoverStore:
    """Implements ports.HandoverStore in memory. Each write increments the version."""

    stored: dict[str, AgentSecret] = field(default_factory=dict)
    writes: int = 0
    reads: int = 0

    async def read(self, slug: str) -> AgentSecret | None:
        self.reads += 1
        return self.stored.get(slug)

    async def write(self, agent_secret: AgentSecret) -> None:
        before = self.stored.get(agent_secret.slug)
        assert agent_secret.version == (before.version if before else "")
        self.writes += 1
        self.stored[agent_secret.slug] = replace(agent_secret, version=str(self.writes))

    async def delete(self, agent_secret: AgentSecret) -> None:
        if (before := self.stored.get(agent_secret.slug)) and before.version == agent_secret.version:
            del self.stored[agent_secret.slug]

    async def list_all(self) -> list[AgentSecret]:
        return list(self.stored.values())


@dataclass(slots=True)
class FakeReranker(Plantable):
    """Implements ports.Reranker: texts later in the alphabet score higher. Records its calls.

    Attributes:
        error: Raised by every call; None for none.
    """

    PLANTABLE = ("error",)

    read: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    error: AgentMemoryError | None = None

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        self.read.append((model, query, tuple(texts)))
        # Let other calls start before this one ends, as a service does.
        await asyncio.sleep(0)
        if self.error:
            record_effect(self, "error")
            raise self.error
        return [float(ord(text[0])) for text in texts]
