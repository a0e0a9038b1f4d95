"""Where every Secret is read: its value is given for the places that the Secret lists, and for no others.

Whoever may write an AgentMemory or a QdrantConnection names Secrets and URLs, without the right to read Secrets: so the
Secret itself says where it may go.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from cachetools import FIFOCache

from agentmemory_operator.connections.rules.secret_hosts import (
    NOWHERE,
    Destination,
    KeptSecret,
    can_be_sent,
    may_exist,
    refusal,
    unlisted,
    unsendable,
)
from agentmemory_operator.errors import SecretMissing, SecretNotUsable
from agentmemory_operator.ports.kubernetes import Event, SecretSource
from agentmemory_operator.runtime.cache import Key, ObjectTable
from agentmemory_operator.runtime.queue import CURRENT
from agentmemory_operator.settings import SecretHosts
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.conditions import Reason

log = logging.getLogger(__name__)

MOST_NOTICES = 10_000


class Events(Protocol):
    """Whoever tells people of objects."""

    async def post_event(self, kind: str, metadata: Metadata, event: Event) -> None:
        """Tell people of the object."""
        ...


@contextmanager
def used_by(key: Key) -> Iterator[None]:
    """Read Secrets for an object, whatever the pass under way is about."""
    before = CURRENT.set(key)
    try:
        yield
    finally:
        CURRENT.reset(before)


class SecretNotices:
    """Tells each object once of each Secret that it uses and that does not list where its value goes.

    Args:
        table: the objects as they last came.
        events: where it is told; without, it is logged.
    """

    def __init__(self, table: ObjectTable, events: Events | None = None) -> None:
        self._table = table
        self._events = events
        # By uid of the object, name of the Secret and where it goes.
        self._told: FIFOCache[tuple[str, str, Destination], str] = FIFOCache(MOST_NOTICES)

    async def tell(self, secret: str, to: Destination, message: str) -> None:
        """Tell the object under way, unless it was told the same before."""
        metadata = self._metadata()
        place = (metadata.uid if metadata else "", secret, to)
        if self._told.get(place) == message:
            return
        self._told[place] = message
        key = CURRENT.get()
        if metadata is None or self._events is None or not isinstance(key, Key):
            log.warning("%s", message)
            return
        await self._events.post_event(key.kind, metadata, Event("Warning", Reason.SECRET_NOT_USABLE, message))

    def withdraw(self, secret: str, to: Destination) -> None:
        """Forget what the object under way was told of a Secret: it is as it should be."""
        if self._told:
            metadata = self._metadata()
            self._told.pop((metadata.uid if metadata else "", secret, to), None)

    def _metadata(self) -> Metadata | None:
        key = CURRENT.get()
        document = self._table.get(key) if isinstance(key, Key) else None
        return Metadata.model_validate(document["metadata"]) if document else None


class GuardedSecrets:
    """Implements ports.Secrets.

    Args:
        source: who keeps them.
        demand: what becomes of a Secret that does not list where its value goes: Require refuses it, None lets it go.
    """

    def __init__(self, source: SecretSource, demand: SecretHosts | None) -> None:
        self._source = source
        self._demand = demand

    async def read(self, namespace: str, name: str, key: str, *, to: Destination) -> str:
        """The decoded value.

        Whether it may go there is decided first: who names a Secret of others does not learn which keys it has.
        """
        secret = await self._source.read_secret(namespace, name) if may_exist(name, key) else None
        if secret is None:
            raise SecretMissing(namespace, name, key)
        self._check(namespace, name, secret, to)
        value = secret.values.get(key)
        if value is None:
            raise SecretMissing(namespace, name, key)
        if to is not NOWHERE and not can_be_sent(value):
            raise SecretNotUsable(unsendable(namespace, name, key))
        return value

    def _check(self, namespace: str, name: str, secret: KeptSecret, to: Destination) -> None:
        if self._demand and (places := unlisted(to, secret.hosts)):
            raise SecretNotUsable(refusal(namespace, name, places, secret.hosts))
