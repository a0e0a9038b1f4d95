"""Read access to Secrets: a value is returned only if the Secret's annotation lists the hosts that it will be sent to.

Authors of AgentMemories and QdrantConnections choose Secrets and URLs, and may lack the right to read Secrets. So the
Secret itself must list the hosts that it may be sent to.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from cachetools import FIFOCache

from agentmemory_operator.connections.rules.host_lists import (
    NOWHERE,
    AnnotatedSecret,
    Destination,
    can_be_sent,
    find_unlisted,
    is_valid_reference,
    refusal_message,
    unsendable_message,
)
from agentmemory_operator.errors import SecretMissing, SecretNotUsable
from agentmemory_operator.ports.kubernetes import Event, SecretSource
from agentmemory_operator.runtime.object_table import Key, ObjectTable
from agentmemory_operator.runtime.work_queue import CURRENT
from agentmemory_operator.settings import SecretHosts
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.conditions import Reason

log = logging.getLogger(__name__)

MAX_NOTICES = 10_000


class EventPoster(Protocol):
    """Posts Kubernetes events."""

    async def post_event(self, kind: str, metadata: Metadata, event: Event) -> None:
        """Post an event about the object with this kind and metadata."""
        ...


@contextmanager
def attribute_reads_to(key: Key) -> Iterator[None]:
    """Attribute reads of Secrets within this context to an object, instead of the object of the current pass."""
    token = CURRENT.set(key)
    try:
        yield
    finally:
        CURRENT.reset(token)


class SecretNotices:
    """Posts events to objects about Secrets that may not be sent to a host. An unchanged message is not repeated.

    The current object is that of the current pass, or of `attribute_reads_to`.

    Args:
        table: Latest objects from the watch.
        events: Posts the events. None logs them.
    """

    def __init__(self, table: ObjectTable, events: EventPoster | None = None) -> None:
        self._table = table
        self._events = events
        # Last message by UID of the object, name of the Secret and destination.
        self._last_messages: FIFOCache[tuple[str, str, Destination], str] = FIFOCache(MAX_NOTICES)

    async def report(self, secret: str, to: Destination, message: str) -> None:
        """Post a message as a Warning event of the current object, unless it repeats the last one for Secret and host.

        If there is no current object, or `events` is None, the message is only logged.

        Args:
            secret: NAMESPACE/NAME of the Secret.
        """
        metadata = self._metadata()
        notice = (metadata.uid if metadata else "", secret, to)
        if self._last_messages.get(notice) == message:
            return
        self._last_messages[notice] = message
        key = CURRENT.get()
        if metadata is None or self._events is None or not isinstance(key, Key):
            log.warning("%s", message)
            return
        await self._events.post_event(key.kind, metadata, Event("Warning", Reason.SECRET_NOT_USABLE, message))

    def clear(self, secret: str, to: Destination) -> None:
        """Forget the last message for a Secret that may be used now, so that a later fault is reported again."""
        if self._last_messages:
            metadata = self._metadata()
            self._last_messages.pop((metadata.uid if metadata else "", secret, to), None)

    def _metadata(self) -> Metadata | None:
        key = CURRENT.get()
        document = self._table.get(key) if isinstance(key, Key) else None
        return Metadata.model_validate(document["metadata"]) if document else None


class GuardedSecrets:
    """Implements ports.Secrets: reads a Secret for each value, and checks that it lists the value's destination.

    Args:
        source: Reads Secrets.
        demand: `Require` refuses a Secret that does not list the host. None permits every host.
    """

    def __init__(self, source: SecretSource, demand: SecretHosts | None) -> None:
        self._source = source
        self._demand = demand

    async def read(self, namespace: str, name: str, key: str, *, to: Destination) -> str:
        """Return the decoded value.

        The destination is checked before the key, so that an author does not learn the keys of other Secrets.

        Raises:
            SecretMissing: If the Secret or its key does not exist, or Kubernetes does not permit one of the names.
            SecretNotUsable: If the Secret does not list the destination, or a value with a destination cannot be sent
                in a header.
            TransientError: If the Secret cannot be read now.
        """
        secret = await self._source.read_secret(namespace, name) if is_valid_reference(name, key) else None
        if secret is None:
            raise SecretMissing(namespace, name, key)
        self._check(namespace, name, secret, to)
        value = secret.values.get(key)
        if value is None:
            raise SecretMissing(namespace, name, key)
        if to is not NOWHERE and not can_be_sent(value):
            raise SecretNotUsable(unsendable_message(namespace, name, key))
        return value

    def _check(self, namespace: str, name: str, secret: AnnotatedSecret, to: Destination) -> None:
        if self._demand and (unlisted := find_unlisted(to, secret.hosts)):
            raise SecretNotUsable(refusal_message(namespace, name, unlisted, secret.hosts))
